/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Small pieces of page-locked memory. Natively the driver has a stock of them; here the back end
 * would have to pin each piece for copies, of which it keeps only some pinned, and map it for
 * kernels (kernel_reach.c): either takes CUDA much longer than a call. So pieces are cut from
 * slabs. When kernels get access to one piece, they get it to the whole slab.
 *
 * Pieces of slabs cannot become managed memory (managed_in_place.c). Neither can other memory that
 * is shared with the back end. So only pieces of shared slabs are given to programs that did not
 * ask for memory that kernels use.
 *
 * A slab is freed with its last piece, unless it is the last slab that can be cut. A forked child
 * cuts nothing from its parent's slabs, since both have the same pages.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SLAB   ((size_t)2 << 20) /* bytes */
#define GRAIN  ((size_t)512)     /* the alignment of CUDA's own pieces */
#define GRAINS (SLAB / GRAIN)
#define PAGE   ((size_t)4096 / GRAIN) /* grains */

struct slab {
    struct slab *next;
    struct range whole;
    bool shared; /* with the back end */
    bool closed; /* a slab of the parent */
    size_t used; /* grains in use */
    bool grains[GRAINS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slab *slabs;
static bool refused; /* kernels could not access a piece */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (struct slab *s = slabs; s; s = s->next)
        s->closed = true;
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

static size_t grains_of(size_t n)
{
    return (n + GRAIN - 1) / GRAIN;
}

/* Called under the lock. The slab that contains the address, and the pointer that leads to it;
 * NULL: none. */
static struct slab *find(uintptr_t address, struct slab ***link)
{
    for (*link = &slabs; **link; *link = &(**link)->next) {
        if (address - (**link)->whole.begin < SLAB)
            return **link;
    }
    return NULL;
}

/* Called under the lock. NULL: there is no room in the slab. A piece of a page or more begins with
 * a page, as other page-locked memory does. */
static void *cut(struct slab *s, size_t wanted)
{
    const size_t step = wanted < PAGE ? 1 : PAGE;
    for (size_t i = 0, row = 0; !s->closed && s->used + wanted <= GRAINS && i < GRAINS; i++) {
        row = s->grains[i] || (!row && i % step) ? 0 : row + 1;
        if (row < wanted)
            continue;
        const size_t first = i + 1 - wanted;
        memset(&s->grains[first], true, wanted);
        s->used += wanted;
        return (void *)(s->whole.begin + first * GRAIN);
    }
    return NULL;
}

static struct slab *make(const struct ibx_frontend_calls *calls)
{
    struct slab *s = calloc(1, sizeof(*s));
    void *memory = s ? calls->allocate(SLAB) : NULL;
    if (!memory) {
        free(s);
        return NULL;
    }
    s->whole = (struct range){.begin = (uintptr_t)memory, .n = SLAB, .allocated = true};
    s->shared = ibx_frontend_knows(IBX_FRONTEND_SHARED, s->whole.begin, NULL);
    return s;
}

void *ibx_frontend_small_take(const struct ibx_frontend_calls *calls, size_t n, bool shared)
{
    const size_t wanted = grains_of(n);
    void *piece = NULL;
    if (shared && !ibx_frontend_knows(IBX_FRONTEND_SHARED, 0, NULL))
        return NULL;
    pthread_mutex_lock(&lock);
    bool more = n <= IBX_FRONTEND_SMALL && !refused;
    for (struct slab *s = slabs; more && s && !piece; s = s->next)
        piece = shared && !s->shared ? NULL : cut(s, wanted);
    pthread_mutex_unlock(&lock);
    struct slab *made = more && !piece ? make(calls) : NULL;
    if (!made)
        return piece;
    if (shared && !made->shared) {
        calls->release((void *)made->whole.begin, SLAB);
        free(made);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    piece = cut(made, wanted);
    made->next = slabs;
    slabs = made;
    pthread_mutex_unlock(&lock);
    return piece;
}

void ibx_frontend_small_refuse(void)
{
    if (ibx_frontend_reach_likely()) /* kernels are likely to get access */
        return;
    pthread_mutex_lock(&lock);
    refused = true;
    pthread_mutex_unlock(&lock);
}

/* Called under the lock. Whether a slab other than `but` can be cut. */
static bool can_be_cut(const struct slab *but)
{
    const struct slab *s = slabs;
    while (s && (s == but || s->closed))
        s = s->next;
    return s;
}

bool ibx_frontend_small_give(const void *address, size_t n)
{
    struct slab **link;
    pthread_mutex_lock(&lock);
    struct slab *s = find((uintptr_t)address, &link), *over = NULL;
    if (s) {
        const size_t first = ((uintptr_t)address - s->whole.begin) / GRAIN, count = grains_of(n);
        memset(&s->grains[first], false, count);
        s->used -= count;
        if (!s->used && !s->closed && (refused || can_be_cut(s))) {
            *link = s->next;
            over = s;
        }
    }
    pthread_mutex_unlock(&lock);
    if (over) {
        ibx_frontend_reach_ends(&over->whole);
        ibx_frontend_plugin()->release((void *)over->whole.begin, SLAB);
        free(over);
    }
    return s;
}

bool ibx_frontend_small_whole(const void *address, struct range *whole)
{
    struct slab **link;
    pthread_mutex_lock(&lock);
    const struct slab *s = find((uintptr_t)address, &link);
    if (s)
        *whole = s->whole;
    pthread_mutex_unlock(&lock);
    return s;
}

void ibx_frontend_small_reached(const void *address, unsigned epoch)
{
    struct slab **link;
    pthread_mutex_lock(&lock);
    struct slab *s = find((uintptr_t)address, &link);
    if (s)
        s->whole.reach = epoch;
    pthread_mutex_unlock(&lock);
}
