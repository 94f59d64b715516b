/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Helpers for code that runs inside the dynamic loader, while this library or another one is being
 * relocated. They use system calls only. A call of the C library could go through a PLT entry that
 * is not filled yet, to a sanitizer that is not initialized, or to an allocator of the program.
 * Files that include this header are compiled separately (ibx-frontend-early), so that the compiler
 * inserts no such calls either. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_EARLY_H
#define IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_EARLY_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef SYS_mmap /* on a machine without it, where nothing here is used */
#define SYS_mmap -1
#endif

/* A raw system call. Returns what the kernel returns; -errno is a failure. */
static inline long ibx_early_call(long number, long a, long b, long c, long d, long e, long f)
{
#ifdef __x86_64__
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#else
    (void)number, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return -ENOSYS;
#endif
}

static inline int ibx_early_open(const char *path, int flags)
{
    return (int)ibx_early_call(SYS_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0, 0, 0);
}

static inline void ibx_early_close(int file)
{
    ibx_early_call(SYS_close, file, 0, 0, 0, 0, 0);
}

/* Reads exactly n bytes at offset `at`; false: it could not. */
static inline bool ibx_early_read(int file, void *to, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        const long got = ibx_early_call(SYS_pread64, file, (long)((char *)to + done),
                                        (long)(n - done), (long)(at + done), 0, 0);
        if (got <= 0 && got != -EINTR)
            return false;
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static inline long ibx_early_write(int file, const void *from, size_t n, uint64_t at)
{
    return ibx_early_call(SYS_pwrite64, file, (long)from, (long)n, (long)at, 0, 0);
}

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* an access beyond the end is found */
#include <stdlib.h>
static inline void *ibx_early_map(size_t n)
{
    return calloc(n, 1);
}

static inline void ibx_early_unmap(void *memory, size_t n)
{
    (void)n;
    free(memory);
}
#else
/* n bytes of zeros; NULL: there is no memory. */
static inline void *ibx_early_map(size_t n)
{
    const long at = ibx_early_call(SYS_mmap, 0, (long)n, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

static inline void ibx_early_unmap(void *memory, size_t n)
{
    if (memory)
        ibx_early_call(SYS_munmap, (long)memory, (long)n, 0, 0, 0, 0);
}
#endif

static inline size_t ibx_early_length(const char *text)
{
    size_t n = 0;
    while (text[n])
        n++;
    return n;
}

static inline bool ibx_early_begins(const char *text, const char *with)
{
    while (*with && *text == *with)
        text++, with++;
    return !*with;
}

static inline bool ibx_early_same(const void *a, const void *b, size_t n)
{
    size_t i = 0;
    while (i < n && ((const uint8_t *)a)[i] == ((const uint8_t *)b)[i])
        i++;
    return i == n;
}

/* Compares the first letter first: most symbols differ there. */
static inline bool ibx_early_equal(const char *a, const char *b)
{
    while (*b && *a == *b)
        a++, b++;
    return *a == *b;
}

static inline void ibx_early_copy(void *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
}

#endif
