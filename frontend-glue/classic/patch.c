/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/classic/patch.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* An absolute jump: the address follows the instructions that load it. */
#if defined(__x86_64__)
static const unsigned char jump_code[] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp *0(%rip) */
#elif defined(__aarch64__)
static const unsigned char jump_code[] = {0x50, 0,    0,    0x58,  /* ldr x16, #8 */
                                          0x00, 0x02, 0x1f, 0xd6}; /* br x16 */
#else
static const unsigned char jump_code[] = {0};
#define NO_JUMP
#endif
#define JUMP_BYTES (sizeof(jump_code) + sizeof(uint64_t))

_Static_assert(JUMP_BYTES <= IBX_CLASSIC_JUMP_MAX, "a patch holds the jump");

void *ibx_classic_executable_symbol(const char *symbol, size_t *length)
{
    /* The executable comes first in the global scope, before anything preloaded. */
    void *function = dlsym(RTLD_DEFAULT, symbol);
    void *executable = dlopen(NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (!function || !executable)
        return NULL;
    dlclose(executable); /* it stays */
    Dl_info info;
    const struct link_map *home = NULL;
    const ElfW(Sym) *entry = NULL;
    if (!dladdr1(function, &info, (void **)&home, RTLD_DL_LINKMAP) ||
        (const void *)home != executable)
        return NULL;
    if (!dladdr1(function, &info, (void **)&entry, RTLD_DL_SYMENT) || !entry)
        return NULL;
    *length = entry->st_size;
    return function;
}

static void put_code(void *function, const unsigned char *bytes)
{
    memcpy(function, bytes, JUMP_BYTES);
    __builtin___clear_cache((char *)function, (char *)function + JUMP_BYTES);
}

/* After an error the code is as it was before. */
static int write_code(void *function, const unsigned char *bytes, struct ibx_error *err)
{
    unsigned char before[JUMP_BYTES];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t start = (uintptr_t)function & ~(page - 1);
    uintptr_t end = ((uintptr_t)function + JUMP_BYTES + page - 1) & ~(page - 1);
    /* Executable all the while: other threads may run other code of these pages. */
    if (mprotect((void *)start, end - start, PROT_READ | PROT_WRITE | PROT_EXEC))
        return ibx_error_set(err, -errno,
                             "the program's code cannot be made writable: %s (does a "
                             "security policy such as SELinux's execmod forbid it?)",
                             strerror(errno));
    memcpy(before, function, JUMP_BYTES);
    put_code(function, bytes);
    if (!mprotect((void *)start, end - start, PROT_READ | PROT_EXEC))
        return 0;
    const int code = errno;
    put_code(function, before);
    return ibx_error_set(err, -code, "the program's code cannot be made read-only again: %s",
                         strerror(code));
}

int ibx_classic_patch_apply(struct ibx_classic_patch *patch, void *function, size_t length,
                            const void *target, struct ibx_error *err)
{
#ifdef NO_JUMP
    return ibx_error_set(err, -ENOTSUP, "no jump is known for this processor");
#endif
    if (length < JUMP_BYTES)
        return ibx_error_set(err, -ENOTSUP,
                             "the function of %zu bytes is too short for a jump of "
                             "%zu",
                             length, JUMP_BYTES);
    struct ibx_classic_patch made = {.function = function};
    uint64_t address = (uintptr_t)target;
    memcpy(made.original, function, JUMP_BYTES);
    memcpy(made.jump, jump_code, sizeof(jump_code));
    memcpy(made.jump + sizeof(jump_code), &address, sizeof(address));
    int rc = write_code(function, made.jump, err);
    if (!rc)
        *patch = made;
    return rc;
}

int ibx_classic_patch_switch(const struct ibx_classic_patch *patch, int on, struct ibx_error *err)
{
    return write_code(patch->function, on ? patch->jump : patch->original, err);
}
