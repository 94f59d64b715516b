/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * System calls that read or write memory of the program, which may be managed memory. The kernel
 * raises no signal if it has no access: the call fails with EFAULT, also if another thread's launch
 * makes the pages inaccessible while the call waits. So these functions let the kernel read managed
 * memory through the second mapping, after they have touched the pages, and write to other memory,
 * which is copied afterwards. For all other memory this costs a comparison.
 *
 * The names are given to the assembler, because <unistd.h> may make macros of some of them.
 */
#include "frontend-glue/preload/memory/managed.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define STEP   (64u << 10) /* bytes; no block is shorter */
#define IOVECS 16          /* more are only touched: the stacks of signal handlers are small */
#define FEW    512u /* bytes; shorter reads, which O_DIRECT cannot make, are not worth a mapping */
#define MOST   (2u << 30) /* bytes of one read(2); fread(3) would hold all of a model twice */

/* Accesses a byte, without changing it: the handler of SIGSEGV makes the block accessible. */
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

/* ------------------------------------------------------------- what the kernel reads */

/* The address from which the kernel can read these bytes, even if another thread launches work
 * meanwhile. */
static const void *source(const void *from, size_t n)
{
    const uint8_t *other = ibx_managed_other((uintptr_t)from, n);
    ready(from, n, false);
    return other ? other : from;
}

static const struct iovec *sources(const struct iovec *v, int count, struct iovec own[IOVECS])
{
    if (!v || count <= 0 || count > IOVECS || !ibx_managed_any())
        return v;
    for (int i = 0; i < count; i++)
        own[i] =
            (struct iovec){(void *)(uintptr_t)source(v[i].iov_base, v[i].iov_len), v[i].iov_len};
    return own;
}

struct message {
    struct msghdr head;
    struct iovec parts[IOVECS];
};

/* If there are more parts than the kernel accepts, it reads none of them. */
static const struct msghdr *message_from(const struct msghdr *message, struct message *own)
{
    if (!message || message->msg_iovlen > IOVECS)
        return message;
    own->head = *message;
    own->head.msg_iov =
        (struct iovec *)(uintptr_t)sources(message->msg_iov, (int)message->msg_iovlen, own->parts);
    return &own->head;
}

/* ------------------------------------------------------------- what the kernel writes */

/* The call writes to other memory, and the result is copied afterwards: a launch of another thread
 * may make managed memory inaccessible while the call waits. */
struct bounce {
    struct iovec parts[IOVECS];
    const struct iovec *wanted; /* the program's parts; `count` is for both arrays */
    int count;
    uint8_t *memory;
    size_t n;
    uint8_t few[FEW];
};

static void ready_all(const struct iovec *v, int count)
{
    for (int i = 0; v && i < count; i++)
        ready(v[i].iov_base, v[i].iov_len, true);
}

/* False: the call is made as it is, after the pages were touched. */
static bool bounce_begin(struct bounce *b, const struct iovec *wanted, int count)
{
    bool managed[IOVECS];
    b->wanted = wanted;
    b->count = count;
    b->n = 0;
    for (int i = 0; wanted && i < count && count <= IOVECS; i++) {
        managed[i] = ibx_managed_other((uintptr_t)wanted[i].iov_base, wanted[i].iov_len);
        b->n += managed[i] ? wanted[i].iov_len : 0;
    }
    void *memory = b->n && b->n < FEW ? b->few : MAP_FAILED;
    /* A mapping, because signal handlers must not call malloc(3). */
    if (b->n >= FEW && b->n <= MOST)
        memory = mmap(NULL, b->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        ready_all(wanted, count);
        return false;
    }
    b->memory = memory;
    uint8_t *next = memory;
    for (int i = 0; i < count; i++) {
        b->parts[i] = (struct iovec){managed[i] ? next : wanted[i].iov_base, wanted[i].iov_len};
        next += managed[i] ? wanted[i].iov_len : 0;
        if (!managed[i]) /* a part of it may be managed */
            ready(wanted[i].iov_base, wanted[i].iov_len, true);
    }
    return true;
}

/* Copies the result. Also a cleanup handler, in case the thread is cancelled in the call. */
static void bounce_end(void *bounce)
{
    struct bounce *b = bounce;
    if (b->memory != b->few)
        munmap(b->memory, b->n);
}

static void bounce_take(const struct bounce *b, size_t got)
{
    for (int i = 0; i < b->count && got; i++) {
        const size_t n = b->wanted[i].iov_len < got ? b->wanted[i].iov_len : got;
        if (b->parts[i].iov_base != b->wanted[i].iov_base)
            memcpy(b->wanted[i].iov_base, b->parts[i].iov_base, n);
        got -= n;
    }
}

/* ------------------------------------------------------------------------- the calls */

/* Looked up before main(), because dlsym(3) takes locks and resets dlerror(3); later only for calls
 * before that. NULL: this thread is in dlsym(3), whose malloc(3) may make such calls. */
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

#define PASSED(...) (__VA_ARGS__)

/* Declares own_NAME, this library's function of that name; its next function is looked up before
 * main(). */
#define NAMED(type, name, parameters)                                                              \
    static _Atomic(void *) known_##name;                                                           \
    __attribute__((constructor)) static void find_##name(void)                                     \
    {                                                                                              \
        next_of(&known_##name, #name);                                                             \
    }                                                                                              \
    __attribute__((visibility("default"))) type own_##name parameters __asm__(#name);

/* A function that prepares its memory and calls the next one with the same arguments. */
#define TAKEN(type, name, parameters, arguments, before, otherwise)                                \
    NAMED(type, name, parameters)                                                                  \
    type own_##name parameters                                                                     \
    {                                                                                              \
        __typeof__(&own_##name) next = NULL;                                                       \
        *(void **)&next = next_of(&known_##name, #name);                                           \
        before;                                                                                    \
        return next ? next arguments : (type)(otherwise);                                          \
    }

/* A function that fills `count` parts. `bounced` is the same call with b.parts; it returns bytes,
 * which the program gets in units. */
#define FILLS(type, name, parameters, arguments, into, count, bounced, unit, otherwise)            \
    NAMED(type, name, parameters)                                                                  \
    type own_##name parameters                                                                     \
    {                                                                                              \
        __typeof__(&own_##name) volatile next = NULL; /* gcc: setjmp(3) of the cleanup */          \
        const struct iovec *const wanted = into;      /* lives on behind a condition */            \
        struct bounce b;                                                                           \
        type result;                                                                               \
        *(void *volatile *)&next = next_of(&known_##name, #name);                                  \
        if (!next)                                                                                 \
            return (type)(otherwise);                                                              \
        if (!ibx_managed_any() || !bounce_begin(&b, wanted, count))                                \
            return next arguments;                                                                 \
        pthread_cleanup_push(bounce_end, &b);                                                      \
        result = next bounced;                                                                     \
        const int code = errno;                                                                    \
        bounce_take(&b, (ssize_t)result > 0 ? (size_t)result : 0);                                 \
        errno = code;                                                                              \
        pthread_cleanup_pop(1);                                                                    \
        return result / (type)(unit);                                                              \
    }

/* clang-format off */
#define ONE(n)      (&(struct iovec){to, n})
#define FIRST       b.parts[0].iov_base
/* With MSG_TRUNC the kernel may count bytes without writing them, as TCP does. */
#define PARTS       (flags & MSG_TRUNC ? (ready(to, n, true), 0) : 1)
FILLS(ssize_t, read, (int fd, void *to, size_t n), PASSED(fd, to, n), ONE(n), 1,
      PASSED(fd, FIRST, n), 1, syscall(SYS_read, fd, to, n))
FILLS(ssize_t, pread, (int fd, void *to, size_t n, off_t at), PASSED(fd, to, n, at), ONE(n), 1,
      PASSED(fd, FIRST, n, at), 1, syscall(SYS_pread64, fd, to, n, at))
FILLS(ssize_t, pread64, (int fd, void *to, size_t n, off_t at), PASSED(fd, to, n, at), ONE(n), 1,
      PASSED(fd, FIRST, n, at), 1, syscall(SYS_pread64, fd, to, n, at))
FILLS(ssize_t, readv, (int fd, const struct iovec *to, int n), PASSED(fd, to, n), to, n,
      PASSED(fd, b.parts, n), 1, syscall(SYS_readv, fd, to, n))
FILLS(ssize_t, recv, (int fd, void *to, size_t n, int flags), PASSED(fd, to, n, flags), ONE(n),
      PARTS, PASSED(fd, FIRST, n, flags), 1,
      syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL))
FILLS(ssize_t, preadv, (int fd, const struct iovec *to, int n, off_t at), PASSED(fd, to, n, at),
      to, n, PASSED(fd, b.parts, n, at), 1, syscall(SYS_preadv, fd, to, n, at, 0))
FILLS(ssize_t, preadv64, (int fd, const struct iovec *to, int n, off_t at),
      PASSED(fd, to, n, at), to, n, PASSED(fd, b.parts, n, at), 1,
      syscall(SYS_preadv, fd, to, n, at, 0))
FILLS(ssize_t, preadv2, (int fd, const struct iovec *to, int n, off_t at, int flags),
      PASSED(fd, to, n, at, flags), to, n, PASSED(fd, b.parts, n, at, flags), 1,
      syscall(SYS_preadv2, fd, to, n, at, 0, flags))
FILLS(ssize_t, preadv64v2, (int fd, const struct iovec *to, int n, off_t at, int flags),
      PASSED(fd, to, n, at, flags), to, n, PASSED(fd, b.parts, n, at, flags), 1,
      syscall(SYS_preadv2, fd, to, n, at, 0, flags))
FILLS(ssize_t, recvfrom,
      (int fd, void *to, size_t n, int flags, struct sockaddr *who, socklen_t *length),
      PASSED(fd, to, n, flags, who, length), ONE(n), PARTS,
      PASSED(fd, FIRST, n, flags, who, length), 1,
      syscall(SYS_recvfrom, fd, to, n, flags, who, length))
FILLS(ssize_t, getrandom, (void *to, size_t n, unsigned flags), PASSED(to, n, flags), ONE(n), 1,
      PASSED(FIRST, n, flags), 1, syscall(SYS_getrandom, to, n, flags))
FILLS(size_t, fread, (void *to, size_t size, size_t n, FILE *file), PASSED(to, size, n, file),
      ONE(size * n), 1, PASSED(FIRST, 1, size * n, file), size, 0)
TAKEN(ssize_t, write, (int fd, const void *from, size_t n), PASSED(fd, from, n),
      from = source(from, n), syscall(SYS_write, fd, from, n))
TAKEN(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), PASSED(fd, from, n, at),
      from = source(from, n), syscall(SYS_pwrite64, fd, from, n, at))
TAKEN(ssize_t, pwrite64, (int fd, const void *from, size_t n, off_t at), PASSED(fd, from, n, at),
      from = source(from, n), syscall(SYS_pwrite64, fd, from, n, at))
TAKEN(ssize_t, writev, (int fd, const struct iovec *from, int n), PASSED(fd, from, n),
      from = sources(from, n, (struct iovec[IOVECS]){{0}}), syscall(SYS_writev, fd, from, n))
TAKEN(ssize_t, send, (int fd, const void *from, size_t n, int flags), PASSED(fd, from, n, flags),
      from = source(from, n), syscall(SYS_sendto, fd, from, n, flags, NULL, 0))
TAKEN(ssize_t, pwritev, (int fd, const struct iovec *from, int n, off_t at),
      PASSED(fd, from, n, at), from = sources(from, n, (struct iovec[IOVECS]){{0}}),
      syscall(SYS_pwritev, fd, from, n, at, 0))
TAKEN(ssize_t, pwritev64, (int fd, const struct iovec *from, int n, off_t at),
      PASSED(fd, from, n, at), from = sources(from, n, (struct iovec[IOVECS]){{0}}),
      syscall(SYS_pwritev, fd, from, n, at, 0))
TAKEN(ssize_t, pwritev2, (int fd, const struct iovec *from, int n, off_t at, int flags),
      PASSED(fd, from, n, at, flags), from = sources(from, n, (struct iovec[IOVECS]){{0}}),
      syscall(SYS_pwritev2, fd, from, n, at, 0, flags))
TAKEN(ssize_t, pwritev64v2, (int fd, const struct iovec *from, int n, off_t at, int flags),
      PASSED(fd, from, n, at, flags), from = sources(from, n, (struct iovec[IOVECS]){{0}}),
      syscall(SYS_pwritev2, fd, from, n, at, 0, flags))
TAKEN(ssize_t, sendto,
      (int fd, const void *from, size_t n, int flags, const struct sockaddr *to, socklen_t length),
      PASSED(fd, from, n, flags, to, length), from = source(from, n),
      syscall(SYS_sendto, fd, from, n, flags, to, length))
TAKEN(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
      PASSED(fd, message, flags), message = message_from(message, &(struct message){0}),
      syscall(SYS_sendmsg, fd, message, flags))
TAKEN(size_t, fwrite, (const void *from, size_t size, size_t n, FILE *file),
      PASSED(from, size, n, file), from = source(from, size * n), 0)
/* The names that _FORTIFY_SOURCE uses. */
FILLS(ssize_t, __read_chk, (int fd, void *to, size_t n, size_t room), PASSED(fd, to, n, room),
      ONE(n), 1, PASSED(fd, FIRST, n, room), 1, syscall(SYS_read, fd, to, n))
FILLS(ssize_t, __pread_chk, (int fd, void *to, size_t n, off_t at, size_t room),
      PASSED(fd, to, n, at, room), ONE(n), 1, PASSED(fd, FIRST, n, at, room), 1,
      syscall(SYS_pread64, fd, to, n, at))
FILLS(ssize_t, __pread64_chk, (int fd, void *to, size_t n, off_t at, size_t room),
      PASSED(fd, to, n, at, room), ONE(n), 1, PASSED(fd, FIRST, n, at, room), 1,
      syscall(SYS_pread64, fd, to, n, at))
FILLS(ssize_t, __recv_chk, (int fd, void *to, size_t n, size_t room, int flags),
      PASSED(fd, to, n, room, flags), ONE(n), PARTS, PASSED(fd, FIRST, n, room, flags), 1,
      syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL))
FILLS(size_t, __fread_chk, (void *to, size_t room, size_t size, size_t n, FILE *file),
      PASSED(to, room, size, n, file), ONE(size * n), 1, PASSED(FIRST, room, 1, size * n, file),
      size, 0)
FILLS(ssize_t, __recvfrom_chk,
      (int fd, void *to, size_t n, size_t room, int flags, struct sockaddr *who, socklen_t *length),
      PASSED(fd, to, n, room, flags, who, length), ONE(n), PARTS,
      PASSED(fd, FIRST, n, room, flags, who, length), 1,
      syscall(SYS_recvfrom, fd, to, n, flags, who, length))
/* clang-format on */

NAMED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags))
ssize_t own_recvmsg(int fd, struct msghdr *message, int flags)
{
    __typeof__(&own_recvmsg) volatile next = NULL;
    struct msghdr head;
    struct bounce b;
    ssize_t result;
    *(void *volatile *)&next = next_of(&known_recvmsg, "recvmsg");
    if (!next)
        return syscall(SYS_recvmsg, fd, message, flags);
    if (!ibx_managed_any() || !message || message->msg_iovlen > IOVECS || flags & MSG_TRUNC ||
        !bounce_begin(&b, message->msg_iov, (int)message->msg_iovlen)) {
        if (message && ibx_managed_any())
            ready_all(message->msg_iov, (int)message->msg_iovlen);
        return next(fd, message, flags);
    }
    head = *message;
    head.msg_iov = b.parts;
    pthread_cleanup_push(bounce_end, &b);
    result = next(fd, &head, flags);
    const int code = errno;
    if (result >= 0) {
        bounce_take(&b, (size_t)result);
        message->msg_namelen = head.msg_namelen;
        message->msg_controllen = head.msg_controllen;
        message->msg_flags = head.msg_flags;
    }
    errno = code;
    pthread_cleanup_pop(1);
    return result;
}
