/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Blocks of managed memory: their states, and copies between host and device (managed_pages.h). */
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/preload/memory/managed_pages.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RUN_BYTES (4u << 20) /* bytes that change at once, at most */

static _Thread_local bool in_gvirtus; /* the thread is in a request of GVirtuS's front end */
/* The thread serves the others (managed_faults.c), or functions that streams wait for. */
static _Thread_local bool serves, serves_functions;

void ibx_managed_in_gvirtus(bool is)
{
    in_gvirtus = is;
}

void ibx_managed_serves(bool functions)
{
    serves = true;
    serves_functions = functions;
}

bool ibx_managed_is_server(void)
{
    return serves;
}

/* ---------------------------------------------------------------------- blocks change state */

void ibx_managed_set_all(struct managed *m, enum pages_state state)
{
    memset(m->state, (int)state, m->blocks);
    m->fresh = state == PAGES_STALE ? 0 : m->blocks;
    m->newer = state == PAGES_NEWER ? m->blocks : 0;
}

static size_t bytes_of(const struct managed *m, size_t first, size_t count)
{
    const size_t end = (first + count) * m->block;
    return (end < m->n ? end : m->n) - first * m->block;
}

static bool protect(const struct managed *m, size_t first, size_t count, int access)
{
    void *at = (void *)(m->begin + first * m->block);
    if (!mprotect(at, bytes_of(m, first, count), access))
        return true;
    ibx_log(IBX_LOG_ERROR,
            "managed memory at %p cannot change its protection: %s; where this process has more "
            "mappings than vm.max_map_count, raise that by sysctl(8)",
            at, strerror(errno));
    return false;
}

static void set(struct managed *m, size_t first, size_t count, enum pages_state state)
{
    for (size_t i = first; i < first + count; i++) {
        m->fresh += (state != PAGES_STALE) - (size_t)(m->state[i] != PAGES_STALE);
        m->newer += (state >= PAGES_NEWER) - (size_t)(m->state[i] >= PAGES_NEWER);
        m->state[i] = (uint8_t)state;
    }
}

/* How many blocks of the same state change at once: from *first on or, for a program that goes
 * down, up to it. *first becomes the first of them. */
static size_t run_of(const struct managed *m, size_t *first, struct run *run)
{
    const size_t most = RUN_BYTES / m->block > 1 ? RUN_BYTES / m->block : 1;
    const bool down = run->count && *first + 1 == run->first;
    const bool goes_on = down || (run->count && *first == run->first + run->count);
    const enum pages_state state = m->state[*first];
    size_t wanted = goes_on ? 2 * run->count : 1, count = 1;
    if (wanted > most)
        wanted = most;
    if (down)
        for (; count < wanted && *first && m->state[*first - 1] == state; count++)
            --*first;
    else
        while (count < wanted && *first + count < m->blocks && m->state[*first + count] == state)
            count++;
    *run = (struct run){*first, count};
    return count;
}

static bool make_newer(struct managed *m, size_t block)
{
    size_t first = block;
    const size_t count = run_of(m, &first, &m->written);
    if (!protect(m, first, count, PROT_READ | PROT_WRITE))
        return false;
    set(m, first, count, PAGES_NEWER);
    return true;
}

/* Makes the block accessible, unless another thread has done so. False: it could not. */
static bool make_ready(struct managed *m, size_t block, enum pages_access access)
{
    if (m->state[block] >= PAGES_NEWER)
        return protect(m, block, 1, PROT_READ | PROT_WRITE);
    return access == ACCESS_READ ? protect(m, block, 1, PROT_READ) : make_newer(m, block);
}

enum pages_answer ibx_managed_look_at(struct managed *m, uintptr_t at, enum pages_access access)
{
    const size_t block = m ? (at - m->begin) / m->block : 0;
    if (!m)
        return PAGES_NONE;
    if (m->state[block] == PAGES_STALE)
        return PAGES_REMOTE;
    return make_ready(m, block, access) ? PAGES_READY : PAGES_FAILED;
}

/* -------------------------------------------------------------------------- bytes are copied */

/* During captures the copy is made in a stream of its own, because one in the legacy stream would
 * invalidate them. The same is done beside functions of the host: the legacy stream may wait for
 * one that needs the lock. */
static bool copied_beside(const struct managed *m, size_t at, uint8_t *host, size_t n,
                          bool to_device)
{
    void *device = (void *)(m->begin + at), *to = to_device ? device : host;
    const void *from = to_device ? (const void *)host : device;
    const int kind = to_device ? CUDA_MEMCPY_TO_DEVICE : CUDA_MEMCPY_FROM_DEVICE;
    if (!serves || !ibx_frontend_gives_beside())
        return false;
    return (m->in_place && ibx_managed_copy_pages(m->begin + at, host, n, to_device)) ||
           !ibx_frontend_copy_beside(to, from, n, kind, m->device);
}

/* A complete copy between the device and the second mapping. In a thread without a connection
 * GVirtuS's front end makes it. */
static int copy_part(const struct managed *m, size_t at, size_t n, bool to_device)
{
    const struct ibx_frontend_copy wish = {
        .to_device = to_device, .device = m->begin + at, .host = m->other + at, .n = n};
    void *device = (void *)(m->begin + at), *host = m->other + at;
    void *to = to_device ? device : host, *from = to_device ? host : device;
    const int kind = to_device ? CUDA_MEMCPY_TO_DEVICE : CUDA_MEMCPY_FROM_DEVICE;
    int rc;
    if (copied_beside(m, at, m->other + at, n, to_device))
        return CUDA_SUCCESS;
    if (serves_functions)
        return CUDA_UNKNOWN;
    if (!ibx_frontend_plugin()->copy(&wish, &rc))
        return rc;
    return in_gvirtus ? CUDA_UNKNOWN : CALL_NEXT(cudaMemcpy, to, from, n, kind);
}

/* Pages with variables may also have data of others, so only the variables are copied. */
static int copy(const struct managed *m, size_t at, size_t n, bool to_device)
{
    int rc = CUDA_SUCCESS;
    if (!m->variables)
        return copy_part(m, at, n, to_device);
    for (size_t i = 0; i < m->variable_count && !rc; i++) {
        const struct place *where = &m->variables[i].where;
        const size_t begin = where->at - m->begin, end = begin + where->n;
        const size_t from = begin > at ? begin : at, last = end < at + n ? end : at + n;
        if (from < last)
            rc = copy_part(m, from, last - from, to_device);
    }
    return rc;
}

static void not_given(const struct managed *m, int rc)
{
    static int said; /* each error is logged once: all later calls may return the same one */
    if (rc != said)
        ibx_log(IBX_LOG_ERROR,
                "what the program has written to managed memory at %p does not reach the device, "
                "with CUDA's error %d: take no results from there, and see what the back end says",
                (void *)m->begin, rc);
    said = rc;
}

/* False; rc is 0 if the failure was logged already. */
static bool not_fetched(const struct managed *m, size_t at, int rc)
{
    if (rc)
        ibx_log(IBX_LOG_ERROR,
                "the program reads managed memory at %p that the device has, and the copy fails "
                "with CUDA's error %d: see what the back end says",
                (void *)(m->begin + at), rc);
    return false;
}

/* ----------------------------------------------------------------------- lent to functions */

/* Blocks that a function has, and their bytes as the device had them. */
struct lent {
    struct lent *next;
    size_t first, count;
    uint8_t bytes[];
};

static atomic_size_t lent_runs; /* how many there are */

/* A child has no managed memory, so its functions have no blocks of any. */
static void in_child(void)
{
    atomic_store(&lent_runs, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

#define WORD       sizeof(uint32_t)
#define PARTS_MOST 256u /* copies for what was changed in a struct lent */

static bool differs(const uint8_t *a, const uint8_t *b, size_t at, size_t n)
{
    return memcmp(a + at, b + at, n - at < WORD ? n - at : WORD) != 0;
}

/* The next words from *at on that were changed, up to the result; *at is n if there are none. */
static size_t next_changed(const uint8_t *now, const uint8_t *was, size_t n, size_t *at)
{
    while (*at < n && !differs(now, was, *at, n))
        *at += WORD;
    size_t end = *at;
    while (end < n && differs(now, was, end, n))
        end += WORD;
    *at = *at < n ? *at : n;
    return end < n ? end : n;
}

/* Writes changed words to the bytes that the device has now, and copies all of them. */
static int push_merged(const struct managed *m, const struct lent *l, size_t n)
{
    const size_t begin = l->first * m->block;
    uint8_t *there = m->other + begin, *changed = malloc(n);
    if (!changed)
        return CUDA_MEMORY_ALLOCATION;
    memcpy(changed, there, n);
    const int rc = copy(m, begin, n, false);
    for (size_t at = 0, end; (end = next_changed(changed, l->bytes, n, &at)) > at; at = end)
        memcpy(there + at, changed + at, end - at);
    free(changed);
    return rc ? rc : copy(m, begin, n, true);
}

/* Copies words only, because the device may be writing the others. If they are in too many places,
 * the time in which it may is made as short as possible. */
static int push_changed(const struct managed *m, const struct lent *l)
{
    const size_t begin = l->first * m->block, n = bytes_of(m, l->first, l->count);
    const uint8_t *now = m->other + begin;
    size_t parts = 0;
    int rc = CUDA_SUCCESS;
    for (size_t at = 0, end; (end = next_changed(now, l->bytes, n, &at)) > at; at = end)
        parts++;
    if (parts > PARTS_MOST)
        return push_merged(m, l, n);
    for (size_t at = 0, end; !rc && (end = next_changed(now, l->bytes, n, &at)) > at; at = end)
        rc = copy(m, begin + at, end - at, true);
    return rc;
}

static int push_lent(const struct managed *m)
{
    int rc = CUDA_SUCCESS;
    for (const struct lent *l = m->lent; l && !rc; l = l->next)
        rc = push_changed(m, l);
    return rc;
}

void ibx_managed_forget_lent(struct managed *m)
{
    for (struct lent *l; (l = m->lent);) {
        m->lent = l->next;
        free(l);
        atomic_fetch_sub(&lent_runs, 1);
    }
}

bool ibx_managed_any_lent(void)
{
    return atomic_load(&lent_runs);
}

bool ibx_managed_lend_block(struct managed *m, uintptr_t address)
{
    size_t first = (address - m->begin) / m->block;
    const size_t count = run_of(m, &first, &m->fetched), at = first * m->block;
    const size_t n = bytes_of(m, first, count);
    struct lent *l = malloc(sizeof(*l) + n);
    const int rc = l ? copy(m, at, n, false) : CUDA_MEMORY_ALLOCATION;
    if (rc || !protect(m, first, count, PROT_READ | PROT_WRITE)) {
        free(l);
        return not_fetched(m, at, rc);
    }
    l->first = first;
    l->count = count;
    memcpy(l->bytes, m->other + at, n);
    l->next = m->lent;
    m->lent = l;
    atomic_fetch_add(&lent_runs, 1);
    set(m, first, count, PAGES_LENT);
    return true;
}

static int take_lent_of(struct managed *m)
{
    int rc = CUDA_SUCCESS;
    for (const struct lent *l = m->lent; l && !rc; l = l->next)
        rc = protect(m, l->first, l->count, PROT_NONE) ? CUDA_SUCCESS : CUDA_MEMORY_ALLOCATION;
    rc = rc ? rc : push_lent(m);
    if (rc) {
        not_given(m, rc);
        return rc;
    }
    for (const struct lent *l = m->lent; l; l = l->next)
        set(m, l->first, l->count, PAGES_STALE);
    ibx_managed_forget_lent(m);
    return CUDA_SUCCESS;
}

int ibx_managed_take_lent(void)
{
    int rc = CUDA_SUCCESS;
    for (struct managed *m = ibx_managed_first(); m && !rc; m = m->next)
        rc = m->lent ? take_lent_of(m) : CUDA_SUCCESS;
    return rc;
}

/* ------------------------------------------------------------------------- to the device */

/* Called under the lock. Copies newer bytes to the device; settle() tells whether the copies have
 * succeeded. */
static int push(const struct managed *m)
{
    int rc = push_lent(m);
    for (size_t first = 0, count; first < m->blocks && !rc; first += count) {
        const bool newer = m->state[first] == PAGES_NEWER;
        for (count = 1;
             first + count < m->blocks && (m->state[first + count] == PAGES_NEWER) == newer;)
            count++;
        if (newer)
            rc = copy(m, first * m->block, bytes_of(m, first, count), true);
    }
    return rc;
}

/* A copy to the device may return before it is made, and streams that the legacy stream does not
 * block would not wait for it. A copy of one byte back does wait. */
static int settle(const struct managed *m)
{
    uint8_t byte = 0;
    const struct ibx_frontend_copy wish = {.device = m->begin + m->before, .host = &byte, .n = 1};
    int rc;
    if (copied_beside(m, m->before, &byte, 1, false))
        return CUDA_SUCCESS;
    if (!ibx_frontend_plugin()->copy(&wish, &rc))
        return rc;
    return in_gvirtus ? CUDA_UNKNOWN
                      : CALL_NEXT(cudaMemcpy, &byte, (void *)(m->begin + m->before), 1,
                                  CUDA_MEMCPY_FROM_DEVICE);
}

int ibx_managed_give_all(void)
{
    const struct managed *last = NULL, *pushed = NULL;
    int rc = CUDA_SUCCESS;
    for (const struct managed *m = ibx_managed_first(); m && !rc; m = m->next) {
        if (!m->fresh)
            continue;
        if (!last)
            ibx_managed_catch_again();
        last = m;
        if (!protect(m, 0, m->blocks, PROT_NONE))
            rc = CUDA_MEMORY_ALLOCATION;
        else if (m->newer)
            rc = push(pushed = m);
    }
    if (!rc && pushed)
        rc = settle(last = pushed);
    for (struct managed *m = ibx_managed_first(); m && !rc; m = m->next) {
        if (m->fresh)
            set(m, 0, m->blocks, PAGES_STALE);
        ibx_managed_forget_lent(m);
    }
    if (rc)
        not_given(last, rc);
    return rc;
}

/* ----------------------------------------------------------------------- from the device */

bool ibx_managed_fetch_block(struct managed *m, uintptr_t address, enum pages_access access)
{
    const size_t block = (address - m->begin) / m->block;
    size_t first = block;
    const size_t count = run_of(m, &first, &m->fetched), at = first * m->block;
    const int rc = copy(m, at, bytes_of(m, first, count), false);
    if (rc)
        return not_fetched(m, at, rc);
    if (!protect(m, first, count, PROT_READ))
        return false;
    set(m, first, count, PAGES_SAME);
    return access != ACCESS_WRITE || make_newer(m, block);
}
