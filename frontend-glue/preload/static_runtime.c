/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A program into which nvcc has linked CUDA's runtime, as it does by default, calls no libcudart:
 * neither GVirtuS nor this library would see any of its calls, and that runtime wants a driver's
 * private tables. So before the program's constructors run, each of that runtime's functions
 * becomes a jump to this library's, or to GVirtuS's. They are found by their names in the program's
 * symbol table; a program that is stripped, or for whose version of CUDA there is no libcudart, is
 * told so.
 *
 * Libraries with such a runtime are left alone: their constructors, which register their kernels,
 * run before those of a library that is preloaded.
 */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/elf_functions.h"
#include "frontend-glue/preload/internal.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PROGRAM "/proc/self/exe"
#define MEMORY  "/proc/self/mem"
#define INSIDE  "libcudart_static_" /* how names begin of what that runtime has for itself */

/* A jump to any address, which comes behind it. */
#ifdef __x86_64__
static const uint8_t jump[] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp *0(%rip) */
#elif defined(__aarch64__)
static const uint8_t jump[] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6}; /* ldr x16, .+8; br x16 */
#else
static const uint8_t jump[1]; /* no file is read: elf_functions.c */
#endif
#define JUMP (sizeof(jump) + sizeof(void *))

struct program {
    char path[PATH_MAX];
    struct ibx_elf elf;
    uintptr_t by; /* its addresses differ by so much from those in the file */
    const ElfW(Phdr) * segments;
    unsigned count;
};

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

static int look_at_program(struct dl_phdr_info *loaded, size_t size, void *argument)
{
    struct program *program = argument;
    (void)size;
    program->by = loaded->dlpi_addr;
    program->segments = loaded->dlpi_phdr;
    program->count = loaded->dlpi_phnum;
    return 1; /* it is the first one */
}

/* What is mapped begins as the file: that is no loader that was told to load another program. */
static bool is_mapped(const struct program *program)
{
    for (unsigned i = 0; i < program->count; i++) {
        const ElfW(Phdr) *p = &program->segments[i];
        if (p->p_type == PT_LOAD && !p->p_offset && p->p_filesz >= sizeof(program->elf.head))
            return !memcmp((const void *)(program->by + p->p_vaddr), &program->elf.head,
                           sizeof(program->elf.head));
    }
    return false;
}

static bool read_file(struct program *program, const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const bool good = file >= 0 && ibx_elf_read(file, &program->elf) && is_mapped(program);
    if (file >= 0)
        close(file);
    if (!good)
        ibx_elf_free(&program->elf);
    return good;
}

/* Where the loader was called by its name, /proc has that, and the program's is the other one. */
static bool read_program(struct program *program)
{
    const char *name = program_invocation_name;
    const ssize_t n = readlink(PROGRAM, program->path, sizeof(program->path) - 1);
    program->path[n > 0 ? n : 0] = 0;
    dl_iterate_phdr(look_at_program, program);
    if (read_file(program, PROGRAM))
        return true;
    snprintf(program->path, sizeof(program->path), "%s", name);
    return strchr(name, '/') && read_file(program, name);
}

/* The libcudart for which the runtime in the program stands, by what came and went with versions;
 * NULL: there is none in it. `*inside`: where one of its functions is. */
static const char *libcudart_of(const struct program *program, uintptr_t *inside)
{
    bool of_12 = false, of_13 = false;
    *inside = 0;
    for (size_t i = 0; i < program->elf.count; i++) {
        const char *name = ibx_elf_function(&program->elf, i);
        if (name && begins(name, INSIDE))
            *inside = program->elf.symbols[i].st_value;
        of_12 = of_12 || (name && !strcmp(name, "cudaGetDeviceProperties_v2"));
        of_13 = of_13 || (name && !strcmp(name, "cudaMemcpyBatchAsync"));
    }
    return !*inside ? NULL
           : of_12  ? "libcudart.so.12"
           : of_13  ? "libcudart.so.13"
                    : "libcudart.so.11.0";
}

static const ElfW(Phdr) * code_with(const struct program *program, uintptr_t address)
{
    for (unsigned i = 0; i < program->count; i++) {
        const ElfW(Phdr) *p = &program->segments[i];
        if (p->p_type == PT_LOAD && address - p->p_vaddr < p->p_filesz)
            return p;
    }
    return NULL;
}

static bool protect(const struct program *program, const ElfW(Phdr) * code, ElfW(Word) flags)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = program->by + code->p_vaddr,
                    first = at & ~(page - 1);
    const int protection = (flags & PF_R ? PROT_READ : 0) | (flags & PF_W ? PROT_WRITE : 0) |
                           (flags & PF_X ? PROT_EXEC : 0);
    return !mprotect((void *)first, at + code->p_filesz - first, protection);
}

/* Through the file of this process's memory, which asks for no mprotect(2) that a program of
 * systemd's or SELinux's may not call; -1: there is none, and the code is writable. */
static bool write_code(int memory, char *to, const void *bytes, size_t n)
{
    if (memory >= 0)
        return pwrite(memory, bytes, n, (off_t)(uintptr_t)to) == (ssize_t)n;
    memcpy(to, bytes, n);
    return true;
}

/* Each of the runtime's functions that has room for a jump, and that there is elsewhere. Meanwhile
 * the program's code runs: its malloc(3), and what a library's thread calls. */
static bool redirect(const struct program *program, const ElfW(Phdr) * code, void *libcudart,
                     int memory)
{
    char *begin = (char *)(program->by + code->p_vaddr);
    bool good = true;
    for (size_t i = 0; i < program->elf.count && good; i++) {
        const char *name = ibx_elf_function(&program->elf, i);
        const ElfW(Sym) *s = &program->elf.symbols[i];
        const uintptr_t offset = s->st_value - code->p_vaddr;
        if (!name || (!begins(name, "cuda") && !begins(name, "__cuda")) || s->st_size < JUMP ||
            offset >= code->p_filesz || code->p_filesz - offset < JUMP)
            continue;
        void *function = dlsym(libcudart, name); /* this library's, where it has one */
        uint8_t bytes[JUMP];
        memcpy(bytes, jump, sizeof(jump));
        memcpy(bytes + sizeof(jump), &function, sizeof(function));
        good = !function || write_code(memory, begin + offset, bytes, sizeof(bytes));
    }
    __builtin___clear_cache(begin, begin + code->p_filesz);
    return good;
}

/* GVirtuS's libcudart of that name, which gvirtus.c finds as one that a program has opened; NULL:
 * there is none, which is said. */
static void *load(const char *path, const char *version)
{
    void *library = dlopen(version, RTLD_LAZY);
    const bool is_nvidias = library && ibx_frontend_dlsym(library, "cudaGetExportTable");
    if (library && !is_nvidias)
        return library;
    ibx_log(IBX_LOG_WARN,
            "%s has CUDA's runtime in itself, whose calls cannot reach the remote GPU: %s%s; "
            "LD_LIBRARY_PATH has to name the folder of GVirtuS's front end for that version of "
            "CUDA",
            path, library ? version : dlerror(), library ? " is found, but NVIDIA's" : "");
    if (library)
        dlclose(library);
    return NULL;
}

/* The file of this process's memory, if it can be written where the code is. */
static int open_memory(char *code)
{
    const int memory = open(MEMORY, O_RDWR | O_CLOEXEC);
    if (memory < 0 || write_code(memory, code, code, 1))
        return memory;
    close(memory);
    return -1;
}

static void take_over(const struct program *program, const char *version, uintptr_t inside)
{
    const ElfW(Phdr) *code = code_with(program, inside);
    void *libcudart = code ? load(program->path, version) : NULL;
    if (!libcudart)
        return;
    const int memory = open_memory((char *)(program->by + inside));
    if (memory < 0 && !protect(program, code, code->p_flags | PF_W)) {
        ibx_log(IBX_LOG_WARN,
                "%s has CUDA's runtime in itself, and its code may not be changed to reach the "
                "remote GPU: %s; allow that, or link it with nvcc -cudart shared",
                program->path, strerror(errno));
        return;
    }
    if (!redirect(program, code, libcudart, memory)) {
        ibx_log(IBX_LOG_ERROR, "%s: its code is changed in part, and the rest cannot be: %s",
                program->path, strerror(errno));
        _exit(127);
    }
    dlerror(); /* of functions that are nowhere else */
    if (memory >= 0)
        close(memory);
    else
        protect(program, code, code->p_flags);
}

static bool is_runtime(const char *path, ElfW(Dyn) * dynamic, void *argument)
{
    const char *slash = strrchr(path, '/');
    (void)dynamic, (void)argument;
    return begins(slash ? slash + 1 : path, "libcudart.so");
}

/* errno is the program's, which may not have begun to look at it. */
__attribute__((constructor)) static void begin(void)
{
    const int before = errno;
    struct program program = {.count = 0};
    uintptr_t inside;
    const bool is_read = read_program(&program);
    const char *version = is_read ? libcudart_of(&program, &inside) : NULL;
    if (version)
        take_over(&program, version, inside);
    else if (is_read && program.elf.has_kernels && !ibx_frontend_each_library(is_runtime, NULL))
        ibx_log(IBX_LOG_WARN,
                "%s has kernels, is not linked with libcudart.so, and has no symbols: the runtime "
                "that nvcc puts into a program by default does not reach the remote GPU then, and "
                "its calls fail; do not strip it, or link it with nvcc -cudart shared",
                program.path);
    ibx_elf_free(&program.elf);
    errno = before;
}
