/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/host_memory.h"

#include "transport/transport.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#define HUGE  (2u << 20) /* bytes of a huge page */
#define TRIES 8u         /* places that are tried, since something may be mapped there */

/* ------------------------------------------------------------------ copies under way */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_host_copy *under_way;

void ibx_host_copy_begins(struct ibx_host_copy *copy, const struct ibx_frontend_copy *of)
{
    *copy = (struct ibx_host_copy){.begin = (uintptr_t)of->host, .n = ibx_frontend_copy_extent(of)};
    pthread_mutex_lock(&lock);
    copy->next = under_way;
    under_way = copy;
    pthread_mutex_unlock(&lock);
}

/* The copy may be missing from the list, in a child that a signal handler has forked meanwhile. */
void ibx_host_copy_ends(const struct ibx_host_copy *copy)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_copy **at = &under_way;
    while (*at && *at != copy)
        at = &(*at)->next;
    if (*at)
        *at = copy->next;
    pthread_mutex_unlock(&lock);
}

static bool any(uintptr_t begin, size_t n)
{
    pthread_mutex_lock(&lock);
    const struct ibx_host_copy *copy = under_way;
    while (copy && !(copy->begin < begin + n && begin < copy->begin + copy->n))
        copy = copy->next;
    pthread_mutex_unlock(&lock);
    return copy;
}

void ibx_host_copies_drain(const void *address, size_t n)
{
    while (any((uintptr_t)address, n))
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

void ibx_host_copies_forget(void)
{
    under_way = NULL;
    pthread_mutex_init(&lock, NULL);
}

/* --------------------------------------------------------------- page-locked memory */

static void *map_anywhere(size_t n)
{
    const size_t room = IBX_SHARED_UNTIL - IBX_SHARED_FROM;
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t random;
    for (unsigned i = 0; i < TRIES && n < room / 2; i++) {
        if (getrandom(&random, sizeof(random), 0) != sizeof(random))
            break;
        void *wanted = (void *)(uintptr_t)(IBX_SHARED_FROM + random % ((room - n) / HUGE) * HUGE);
        void *there = mmap(wanted, n, PROT_READ | PROT_WRITE, kind | MAP_FIXED_NOREPLACE, -1, 0);
        if (there != MAP_FAILED) /* elsewhere, if the kernel does not know the flag */
            return there;
    }
    return mmap(NULL, n, PROT_READ | PROT_WRITE, kind, -1, 0);
}

void *ibx_host_memory_map(size_t n)
{
    void *address = map_anywhere(n);
    if (address == MAP_FAILED)
        return NULL;
    madvise(address, n, MADV_HUGEPAGE);
    if (!madvise(address, n, MADV_POPULATE_WRITE) || errno == EINVAL) /* from Linux 5.14 on */
        return address;
    int why = errno;
    munmap(address, n);
    errno = why;
    return NULL;
}
