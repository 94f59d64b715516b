/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Device memory in which a copy is under way is not freed. A copy is checked once, and goes on in
 * parts, as fast as its client takes them: if another session of that client freed the memory, the
 * other parts would go into or out of what another tenant has there by then. So cudaFree waits for
 * such copies, as natively for all work, and a copy either begins before the free, or finds the
 * memory gone. The same holds for giving back a client's page-locked memory (host_maps.c), which
 * copies may name as well.
 */
#include "frontend-glue/clients/clients.h"

#include "common/thread.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct gpu_session *all; /* sessions that copy or free */

static bool overlap(const struct held_range *a, const struct held_range *b)
{
    return a->begin < b->end && b->begin < a->end;
}

static bool any_overlaps(const struct held_memory *held, const struct held_range *freed)
{
    return overlap(&held->copied[0], freed) || overlap(&held->copied[1], freed);
}

/* Locked. Whether another session frees what this one is to copy, or the other way round. */
static bool is_in_the_way(const struct gpu_session *x)
{
    const struct gpu_session *other = all;
    while (other && (other == x || (!any_overlaps(&other->keeps, &x->keeps.freed) &&
                                    !any_overlaps(&x->keeps, &other->keeps.freed))))
        other = other->keeps.next;
    return other;
}

static void begin(struct gpu_session *x, const struct held_memory *wanted)
{
    pthread_mutex_lock(&lock);
    x->keeps = *wanted;
    while (is_in_the_way(x))
        ibx_thread_wait(&changed, &lock);
    x->keeps.next = all;
    all = x;
    pthread_mutex_unlock(&lock);
}

void ibx_held_end(struct gpu_session *x)
{
    if (!x->keeps.listed)
        return;
    pthread_mutex_lock(&lock);
    struct gpu_session **at = &all;
    while (*at != x)
        at = &(*at)->keeps.next;
    *at = x->keeps.next;
    x->keeps = (struct held_memory){0};
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static struct held_range range_of(uint64_t at, uint64_t pitch, const struct ibx_frame *f)
{
    const uint64_t n = f->height ? (f->height - 1) * pitch + f->width : 0;
    return (struct held_range){at, n > UINT64_MAX - at ? UINT64_MAX : at + n};
}

void ibx_held_by_copy(struct gpu_session *x, const struct ibx_frame *f)
{
    struct held_memory wanted = {.listed = true};
    ibx_held_end(x);
    if (f->kind != IBX_FRAME_D2H)
        wanted.copied[0] = range_of(f->dst, f->dpitch, f);
    if (f->kind != IBX_FRAME_H2D)
        wanted.copied[1] = range_of(f->src, f->spitch, f);
    begin(x, &wanted);
}

void ibx_held_by_request(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t end = n > UINT64_MAX - address ? UINT64_MAX : address + n;
    ibx_held_end(x);
    begin(x, &(struct held_memory){.listed = true, .copied[0] = {address, end}});
}

void ibx_held_by_free(struct gpu_session *x, uint64_t address)
{
    struct held_memory wanted = {.listed = true};
    uint64_t base;
    size_t n;
    ibx_held_end(x);
    if (!address || !ibx_back_end_have_cuda(x) ||
        x->cuda->mem_get_address_range(&base, &n, address))
        return;
    wanted.freed = (struct held_range){base, base + n};
    begin(x, &wanted);
}

void ibx_held_by_unmap(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const struct held_memory wanted = {.listed = true, .freed = {address, address + n}};
    ibx_held_end(x);
    begin(x, &wanted);
}
