/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The process's arena, which all its shm peers map: one sparse memfd, mapped here as a whole and
 * inaccessible until it is allocated. Freed pages stay, because a peer may have pinned them. A
 * forked child neither allocates from it nor sends it to a peer. */
#include "transport/shm/shm.h"

#include "common/thread.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES  IBX_SHM_ARENA
#define AT_ALL (PROT_READ | PROT_WRITE)

#define PARTS      4u            /* threads that bring memory in */
#define PARTS_FROM (16ull << 20) /* bytes; for fewer, one thread is as fast */

static struct {
    pthread_mutex_t lock;
    bool begun, forked;
    int fd;
    _Atomic(uint8_t *) base; /* NULL: there is none */
    struct shm_extent *extents;
    _Atomic uint64_t freed; /* how many extents were freed */
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static void before_fork(void)
{
    pthread_mutex_lock(&shared.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&shared.lock);
}

static void in_child(void)
{
    shared.forked = true;
    pthread_mutex_unlock(&shared.lock);
}

/* An address where most likely nothing is mapped. NULL: the kernel chooses. */
static void *place(void)
{
    uint64_t random;
    if (ibx_random(&random, sizeof(random), NULL))
        return NULL;
    const uint64_t places = (IBX_SHARED_UNTIL - IBX_SHARED_FROM - BYTES) / IBX_SHM_HUGE;
    return (void *)(uintptr_t)(IBX_SHARED_FROM + random % places * IBX_SHM_HUGE);
}

/* Makes the arena; is tried again until it works, since this process may have been out of
 * descriptors. The caller has the lock. */
static int begin(void)
{
    if (!shared.begun && pthread_atfork(before_fork, after_fork, in_child))
        return -ENOMEM;
    shared.begun = true;
    int fd = ibx_shm_memfd("ibx-shared", BYTES);
    if (fd < 0)
        return fd;
    /* A peer may want to map it at the same address, and the kernel gives the same addresses to all
     * processes: so place() chooses one. */
    void *base = mmap(place(), BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    shared.fd = fd;
    atomic_store(&shared.base, base);
    return 0;
}

/* The allocation around `offset`, or NULL. The caller has the lock. */
static struct shm_extent *find(uint64_t offset)
{
    struct shm_extent *e = shared.extents;
    while (e && (offset < e->offset || offset - e->offset >= e->length))
        e = e->next;
    return e;
}

/* A part of the memory to bring in, for one thread. */
struct part {
    pthread_t thread;
    uint8_t *address;
    size_t length;
    int rc;
};

/* For Linux before 5.14. The pages are allocated first, so that writing to them cannot raise a
 * signal. */
static int touch(const struct part *part)
{
    const off_t at = part->address - atomic_load(&shared.base);
    if (fallocate(shared.fd, 0, at, (off_t)part->length))
        return -errno;
    volatile uint8_t *bytes = part->address;
    for (size_t i = 0; i < part->length; i += ibx_shm_page())
        bytes[i] = 0; /* it is nobody's yet */
    return 0;
}

static void *populate(void *argument)
{
    struct part *part = argument;
    if (madvise(part->address, part->length, MADV_POPULATE_WRITE))
        part->rc = errno == EINVAL ? touch(part) : -errno;
    return NULL;
}

/* Uses several threads, because one zeroes only 5 to 10 GB/s. */
static int populate_all(uint8_t *address, uint64_t length)
{
    struct part parts[PARTS];
    unsigned count = ibx_thread_processors() / 2, begun = 0;
    count = length < PARTS_FROM || !count ? 1 : count < PARTS ? count : PARTS;
    const uint64_t each = (length / count + IBX_SHM_HUGE - 1) & ~(uint64_t)(IBX_SHM_HUGE - 1);
    for (uint64_t at = 0; at < length; begun++) {
        struct part *part = &parts[begun];
        const bool last = begun + 1 == count || length - at <= each;
        *part = (struct part){.address = address + at, .length = last ? length - at : each};
        if (last || ibx_thread_begin(&part->thread, populate, part)) {
            part->length = length - at; /* the rest is this thread's */
            populate(part);
        }
        at += part->length;
    }
    int rc = parts[begun - 1].rc;
    for (unsigned i = 0; i + 1 < begun; i++) {
        pthread_join(parts[i].thread, NULL);
        rc = rc ? rc : parts[i].rc;
    }
    return rc;
}

/* Allocates all pages now: a system without free ones is an error here, and not a signal later. */
static int bring_in(uint8_t *address, uint64_t length)
{
    if (mprotect(address, length, AT_ALL))
        return -errno;
    ibx_shm_huge_advise(address, length);
    int rc = populate_all(address, length);
    if (rc)
        mprotect(address, length, PROT_NONE);
    return rc;
}

/* The caller has the lock. */
static int allocate(struct shm_extent *extent, uint8_t **address)
{
    int rc = shared.forked || atomic_load(&shared.base) ? 0 : begin();
    if (rc)
        return rc;
    uint8_t *base = atomic_load(&shared.base);
    if (shared.forked || !ibx_shm_extent_place(&shared.extents, extent, BYTES))
        return -ENOSPC;
    rc = bring_in(base + extent->offset, extent->length);
    if (rc)
        ibx_shm_extent_remove(&shared.extents, extent);
    else
        *address = base + extent->offset;
    return rc;
}

void *ibx_shared_allocate(size_t length, struct ibx_error *err)
{
    struct shm_extent *extent = length && length <= BYTES ? calloc(1, sizeof(*extent)) : NULL;
    uint8_t *address = NULL;
    int rc = -ENOSPC;
    if (extent) {
        extent->length = (length + ibx_shm_page() - 1) & ~(uint64_t)(ibx_shm_page() - 1);
        const int cancel = ibx_thread_hold_cancel();
        pthread_mutex_lock(&shared.lock);
        rc = allocate(extent, &address);
        pthread_mutex_unlock(&shared.lock);
        ibx_thread_release_cancel(cancel);
    }
    if (!address) {
        free(extent);
        ibx_error_set(err, rc, "cannot allocate %zu bytes of shared memory: %s", length,
                      strerror(-rc));
    }
    return address;
}

bool ibx_shared_free(void *address)
{
    uint8_t *base = atomic_load(&shared.base);
    uint64_t offset = (uintptr_t)address - (uintptr_t)base;
    if (!base || offset >= BYTES)
        return false;
    pthread_mutex_lock(&shared.lock);
    struct shm_extent *extent = find(offset);
    bool found = extent && extent->offset == offset;
    if (found) {
        atomic_fetch_add(&shared.freed, 1);
        ibx_shm_extent_remove(&shared.extents, extent);
        mprotect(address, extent->length, PROT_NONE);
    }
    pthread_mutex_unlock(&shared.lock);
    if (found)
        free(extent);
    return found;
}

uint64_t ibx_shared_freed(void)
{
    return atomic_load(&shared.freed);
}

bool ibx_shared_piece(const void *address, size_t length, struct ibx_span *piece)
{
    uint64_t offset, begin_at, whole;
    if (ibx_shm_shared_fd(address, length, &offset) < 0 ||
        !ibx_shm_shared_allocation(offset, &begin_at, &whole) ||
        length > whole - (offset - begin_at))
        return false;
    *piece = ibx_span_host(atomic_load(&shared.base) + begin_at, (size_t)whole);
    return true;
}

bool ibx_shared_holds(const void *address, size_t length)
{
    uint64_t offset;
    return ibx_shm_shared_fd(address, length, &offset) >= 0;
}

bool ibx_shared_offset(const void *address, size_t length, uint64_t *offset)
{
    return ibx_shm_shared_fd(address, length, offset) >= 0;
}

int ibx_shm_shared_file(void)
{
    return atomic_load(&shared.base) && !shared.forked ? shared.fd : -1;
}

int ibx_shm_shared_fd(const void *address, size_t length, uint64_t *offset)
{
    uint8_t *base = atomic_load(&shared.base);
    uint64_t at = (uintptr_t)address - (uintptr_t)base;
    if (!base || shared.forked || at >= BYTES || length > BYTES - at)
        return -1;
    *offset = at;
    return shared.fd;
}

bool ibx_shm_shared_allocation(uint64_t offset, uint64_t *begin_at, uint64_t *length)
{
    pthread_mutex_lock(&shared.lock);
    const struct shm_extent *extent = find(offset);
    if (extent) {
        *begin_at = extent->offset;
        *length = extent->length;
    }
    pthread_mutex_unlock(&shared.lock);
    return extent != NULL;
}

bool ibx_shm_shared_hold(const void *address, size_t length)
{
    uint64_t offset;
    if (ibx_shm_shared_fd(address, length, &offset) < 0)
        return false;
    pthread_mutex_lock(&shared.lock);
    const struct shm_extent *extent = find(offset);
    const bool whole = extent && length <= extent->length - (offset - extent->offset);
    if (!whole)
        pthread_mutex_unlock(&shared.lock);
    return whole;
}

void ibx_shm_shared_let_go(void)
{
    pthread_mutex_unlock(&shared.lock);
}
