/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/static_runtime/code.h"

#include "frontend-glue/preload/static_runtime/early.h"

#define MEMORY "/proc/self/mem"

/* The instructions. The address follows them. */
#ifdef __x86_64__
static const uint8_t to_pointee[] = {0x4c, 0x8b, 0x1d, 3, 0, 0, 0, /* mov 3(%rip), %r11 */
                                     0x41, 0xff, 0x23};            /* jmp *(%r11) */
#elif defined(__aarch64__)
#define BTI_C 0xd503245f
static const uint8_t to_pointee[] = {0x70, 0,    0,    0x58,  /* ldr x16, .+12 */
                                     0x11, 0x02, 0x40, 0xf9,  /* ldr x17, [x16] */
                                     0x20, 0x02, 0x1f, 0xd6}; /* br x17 */
#else /* not used: elf_functions.c reads no file there */
static const uint8_t to_pointee[IBX_CODE_JUMP_BY - sizeof(void *)];
#endif

_Static_assert(sizeof(to_pointee) + sizeof(void *) == IBX_CODE_JUMP_BY, "a jump");

bool ibx_code_jump(uint8_t bytes[IBX_CODE_JUMP], const void *at, const void *function)
{
#ifdef __x86_64__
    const int64_t distance = (int64_t)((uintptr_t)function - (uintptr_t)at - IBX_CODE_JUMP);
    const int32_t operand = (int32_t)distance;
    bytes[0] = 0xe9; /* jmp */
    ibx_early_copy(bytes + 1, &operand, sizeof(operand));
    return operand == distance;
#elif defined(__aarch64__)
    const int64_t distance = (int64_t)((uintptr_t)function - (uintptr_t)at), most = 1 << 27;
    const uint32_t word = 0x14000000 | ((uint32_t)(distance / 4) & 0x3ffffff); /* b */
    ibx_early_copy(bytes, &word, sizeof(word));
    return distance >= -most && distance < most;
#else
    (void)bytes, (void)at, (void)function;
    return false;
#endif
}

size_t ibx_code_jump_bytes(const void *function, size_t length)
{
    size_t pad = 0;
#ifdef __aarch64__
    uint32_t word; /* bti c, bti jc, paciasp, pacibsp */
    ibx_early_copy(&word, function, sizeof(word));
    if (length >= IBX_CODE_MOST &&
        (word == BTI_C || word == 0xd50324df || word == 0xd503233f || word == 0xd503237f))
        pad = IBX_CODE_PAD;
#else
    (void)function, (void)length;
#endif
    return pad + IBX_CODE_JUMP_BY;
}

void ibx_code_jump_by(uint8_t bytes[IBX_CODE_MOST], size_t n, const void *place)
{
#ifdef __aarch64__
    const uint32_t pad = BTI_C;
    ibx_early_copy(bytes, &pad, n - IBX_CODE_JUMP_BY);
#endif
    bytes += n - IBX_CODE_JUMP_BY;
    ibx_early_copy(bytes, to_pointee, sizeof(to_pointee));
    ibx_early_copy(bytes + sizeof(to_pointee), &place, sizeof(place));
}

/* Tries the possible page sizes: only the C library knows the real one. */
static long protect(struct ibx_code *code, uintptr_t at, size_t n, int protection)
{
    long rc = -EINVAL;
    for (uintptr_t page = 4096; page <= 65536 && rc == -EINVAL; page *= 4) {
        code->first = at & ~(page - 1);
        code->n = at + n - code->first;
        rc = ibx_early_call(SYS_mprotect, (long)code->first, (long)code->n, protection, 0, 0, 0);
    }
    return rc;
}

/* Prefers /proc/self/mem to mprotect(2), which systemd or SELinux may forbid for executable pages.
 */
int ibx_code_open(struct ibx_code *code, void *at, size_t n, int protection)
{
    code->first = (uintptr_t)at;
    code->n = n;
    code->protection = protection;
    code->memory = ibx_early_open(MEMORY, O_RDWR);
    if (code->memory >= 0 && ibx_early_write(code->memory, at, 1, (uintptr_t)at) == 1)
        return 0;
    if (code->memory >= 0)
        ibx_early_close(code->memory);
    code->memory = -1;
    return (int)protect(code, (uintptr_t)at, n, PROT_READ | PROT_WRITE | PROT_EXEC);
}

bool ibx_code_write(const struct ibx_code *code, void *to, const void *bytes, size_t n)
{
    if (code->memory >= 0)
        return ibx_early_write(code->memory, bytes, n, (uintptr_t)to) == (long)n;
    ibx_early_copy(to, bytes, n);
    return true;
}

void ibx_code_close(const struct ibx_code *code)
{
    if (code->memory >= 0)
        ibx_early_close(code->memory);
    else
        ibx_early_call(SYS_mprotect, (long)code->first, (long)code->n, code->protection, 0, 0, 0);
    __builtin___clear_cache((char *)code->first, (char *)code->first + code->n);
}
