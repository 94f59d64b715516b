/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls by which the kernel reads or writes memory that the program names, managed memory too. It
 * raises no signal where it may not: the call would fail with EFAULT. So the pages are touched
 * before. For all other memory that is a comparison.
 *
 * The names are given to the assembler: what <unistd.h> makes of some of them depends on macros.
 */
#include "frontend-glue/preload/managed.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define STEP (64u << 10) /* no block is shorter */

/* The handler of SIGSEGV does the rest. The byte stays what it is. */
static void touch(uintptr_t at, bool writes)
{
    volatile uint8_t *byte = (volatile uint8_t *)at;
    uint8_t value = *byte;
    while (writes && !__atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED,
                                                  __ATOMIC_RELAXED))
        ;
}

static void ready(const void *memory, size_t n, bool writes)
{
    uintptr_t at = (uintptr_t)memory;
    const uintptr_t end = n > UINTPTR_MAX - at ? UINTPTR_MAX : at + n;
    for (uintptr_t last; ibx_managed_within(&at, end, &last); at = last) {
        for (uintptr_t step = at; step < last; step = step / STEP * STEP + STEP)
            touch(step, writes);
        touch(last - 1, writes);
    }
}

static void ready_all(const struct iovec *v, int count, bool writes)
{
    for (int i = 0; v && i < count; i++)
        ready(v[i].iov_base, v[i].iov_len, writes);
}

/* Before main(), since dlsym(3) takes locks, and drops what dlerror(3) would return; later only
 * for calls before that. NULL: it is under way in this thread, whose malloc(3) may need these. */
static void *next_of(_Atomic(void *) *known, const char *name)
{
    static _Thread_local bool looks;
    void *found = atomic_load_explicit(known, memory_order_relaxed);
    if (found || looks)
        return found;
    looks = true;
    atomic_store(known, found = dlsym(RTLD_NEXT, name));
    looks = false;
    return found;
}

/* A function of that name: sees to its memory, calls the next one with the same arguments. */
#define PASSED(...) (__VA_ARGS__)
#define TAKEN(type, name, parameters, arguments, before, otherwise)                                \
    static _Atomic(void *) known_##name;                                                           \
    __attribute__((constructor)) static void find_##name(void)                                     \
    {                                                                                              \
        next_of(&known_##name, #name);                                                             \
    }                                                                                              \
    __attribute__((visibility("default"))) type own_##name parameters __asm__(#name);              \
    type own_##name parameters                                                                     \
    {                                                                                              \
        __typeof__(&own_##name) next = NULL;                                                       \
        *(void **)&next = next_of(&known_##name, #name);                                           \
        before;                                                                                    \
        return next ? next arguments : (type)(otherwise);                                          \
    }

/* clang-format off */
TAKEN(ssize_t, read, (int fd, void *to, size_t n), PASSED(fd, to, n),
      ready(to, n, true), syscall(SYS_read, fd, to, n))
TAKEN(ssize_t, pread, (int fd, void *to, size_t n, off_t at), PASSED(fd, to, n, at),
      ready(to, n, true), syscall(SYS_pread64, fd, to, n, at))
TAKEN(ssize_t, pread64, (int fd, void *to, size_t n, off_t at), PASSED(fd, to, n, at),
      ready(to, n, true), syscall(SYS_pread64, fd, to, n, at))
TAKEN(ssize_t, readv, (int fd, const struct iovec *to, int n), PASSED(fd, to, n),
      ready_all(to, n, true), syscall(SYS_readv, fd, to, n))
TAKEN(ssize_t, write, (int fd, const void *from, size_t n), PASSED(fd, from, n),
      ready(from, n, false), syscall(SYS_write, fd, from, n))
TAKEN(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), PASSED(fd, from, n, at),
      ready(from, n, false), syscall(SYS_pwrite64, fd, from, n, at))
TAKEN(ssize_t, pwrite64, (int fd, const void *from, size_t n, off_t at), PASSED(fd, from, n, at),
      ready(from, n, false), syscall(SYS_pwrite64, fd, from, n, at))
TAKEN(ssize_t, writev, (int fd, const struct iovec *from, int n), PASSED(fd, from, n),
      ready_all(from, n, false), syscall(SYS_writev, fd, from, n))
TAKEN(ssize_t, recv, (int fd, void *to, size_t n, int flags), PASSED(fd, to, n, flags),
      ready(to, n, true), syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL))
TAKEN(ssize_t, send, (int fd, const void *from, size_t n, int flags), PASSED(fd, from, n, flags),
      ready(from, n, false), syscall(SYS_sendto, fd, from, n, flags, NULL, 0))
TAKEN(size_t, fread, (void *to, size_t size, size_t n, FILE *file), PASSED(to, size, n, file),
      ready(to, size * n, true), 0)
TAKEN(size_t, fwrite, (const void *from, size_t size, size_t n, FILE *file),
      PASSED(from, size, n, file), ready(from, size * n, false), 0)
/* What _FORTIFY_SOURCE makes of them. */
TAKEN(ssize_t, __read_chk, (int fd, void *to, size_t n, size_t room), PASSED(fd, to, n, room),
      ready(to, n, true), syscall(SYS_read, fd, to, n))
TAKEN(ssize_t, __pread_chk, (int fd, void *to, size_t n, off_t at, size_t room),
      PASSED(fd, to, n, at, room), ready(to, n, true), syscall(SYS_pread64, fd, to, n, at))
TAKEN(ssize_t, __pread64_chk, (int fd, void *to, size_t n, off_t at, size_t room),
      PASSED(fd, to, n, at, room), ready(to, n, true), syscall(SYS_pread64, fd, to, n, at))
TAKEN(ssize_t, __recv_chk, (int fd, void *to, size_t n, size_t room, int flags),
      PASSED(fd, to, n, room, flags), ready(to, n, true),
      syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL))
TAKEN(size_t, __fread_chk, (void *to, size_t room, size_t size, size_t n, FILE *file),
      PASSED(to, room, size, n, file), ready(to, size * n, true), 0)
/* clang-format on */
