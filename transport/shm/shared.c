/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of the process that all its shm peers map: one sparse memfd, mapped here as a whole with
 * nothing accessible in it until it is allocated. Pages are kept when they are freed, for the next
 * who allocates: a peer may have pinned them.
 *
 * A forked child has its parent's memory, but may not hand out any of it, nor pass it on.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE   4096ull
#define HUGE   (2ull << 20)
#define BYTES  IBX_SHM_ARENA
#define AT_ALL (PROT_READ | PROT_WRITE)

struct piece {
    uint64_t offset, length;
    struct piece *next; /* by offset */
};

static struct {
    pthread_mutex_t lock;
    bool begun, forked;
    int fd;
    _Atomic(uint8_t *) base; /* NULL: there is none */
    struct piece *pieces;
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

/* Locked; once. */
static void begin(void)
{
    shared.begun = true;
    if (pthread_atfork(before_fork, after_fork, in_child))
        return;
    int fd = ibx_shm_memfd("ibx-shared", BYTES);
    if (fd < 0)
        return;
    void *base = mmap(NULL, BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        close(fd);
        return;
    }
    shared.fd = fd;
    atomic_store(&shared.base, base);
}

/* First fit. Locked. */
static bool place(struct piece *piece)
{
    uint64_t unit = piece->length >= HUGE ? HUGE : PAGE, at = 0;
    struct piece **link = &shared.pieces;
    for (; *link; link = &(*link)->next) {
        if ((*link)->offset >= at && (*link)->offset - at >= piece->length)
            break;
        at = ((*link)->offset + (*link)->length + unit - 1) & ~(unit - 1);
    }
    if (at > BYTES || BYTES - at < piece->length)
        return false;
    piece->offset = at;
    piece->next = *link;
    *link = piece;
    return true;
}

/* Locked. */
static struct piece *take_out(uint64_t offset)
{
    struct piece **link = &shared.pieces, *found;
    while (*link && (*link)->offset != offset)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    return found;
}

/* All pages are brought in now: the system says here, and not by a signal later, that it has none.
 */
static int bring_in(uint8_t *address, uint64_t length)
{
    if (mprotect(address, length, AT_ALL))
        return -errno;
    if (length >= HUGE)
        madvise(address, length, MADV_HUGEPAGE);
    if (madvise(address, length, MADV_POPULATE_WRITE) && errno != EINVAL) { /* from Linux 5.14 on */
        int rc = -errno;
        mprotect(address, length, PROT_NONE);
        return rc;
    }
    return 0;
}

static int allocate(struct piece *piece, uint8_t **address)
{
    if (!shared.begun)
        begin();
    uint8_t *base = atomic_load(&shared.base);
    if (!base || shared.forked || !place(piece))
        return -ENOSPC;
    int rc = bring_in(base + piece->offset, piece->length);
    if (rc)
        take_out(piece->offset);
    else
        *address = base + piece->offset;
    return rc;
}

void *ibx_shared_allocate(size_t length, struct ibx_error *err)
{
    struct piece *piece = length && length <= BYTES ? calloc(1, sizeof(*piece)) : NULL;
    uint8_t *address = NULL;
    int rc = -ENOSPC;
    if (piece) {
        piece->length = (length + PAGE - 1) & ~(PAGE - 1);
        pthread_mutex_lock(&shared.lock);
        rc = allocate(piece, &address);
        pthread_mutex_unlock(&shared.lock);
    }
    if (!address) {
        free(piece);
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
    struct piece *piece = take_out(offset);
    if (piece)
        mprotect(address, piece->length, PROT_NONE);
    pthread_mutex_unlock(&shared.lock);
    free(piece);
    return piece != NULL;
}

bool ibx_shared_holds(const void *address, size_t length)
{
    uint64_t offset;
    return ibx_shm_shared_fd(address, length, &offset) >= 0;
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

bool ibx_shm_shared_piece(uint64_t offset, uint64_t *begin_at, uint64_t *length)
{
    pthread_mutex_lock(&shared.lock);
    const struct piece *piece = shared.pieces;
    while (piece && (offset < piece->offset || offset - piece->offset >= piece->length))
        piece = piece->next;
    if (piece) {
        *begin_at = piece->offset;
        *length = piece->length;
    }
    pthread_mutex_unlock(&shared.lock);
    return piece != NULL;
}
