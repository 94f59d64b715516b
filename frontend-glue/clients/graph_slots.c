/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/clients/graph_slots.h"

#include "common/log.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64u
#define PAGE      4096u
#define LOOKS     256u /* places in a block that are tried for a gap */

#define NOT_REGISTERED 713 /* CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED */

struct slot {
    struct slot *next, *before; /* of the block, in the order of their places */
    uint64_t number;
    struct block *block;
    size_t at, n;            /* within the block */
    unsigned graphs, users;  /* that hold the slot; it is freed with the last */
    void *function;          /* the function that its graphs call (host_work.c); NULL: none yet */
    const void *context;     /* of its graphs */
    struct ibx_quota *quota; /* the quota that n counts in; NULL: none */
};

/* Pinned memory. It is unpinned only for want of room, and by clients that end, because CUDA waits
 * for all work of the device as it does that. A reset of the context unpins it, so a block has
 * slots for graphs of one context only. */
struct block {
    uint8_t *base;
    size_t length, used;
    struct slot *slots;
    struct slot *last;   /* a gap is looked for behind this slot first; NULL: at the beginning */
    const void *context; /* of its slots; NULL: that is gone, and any context may use the block */
    bool unpinned;       /* it is being unpinned, and gets no slots */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[IBX_SLOT_BLOCKS];
static unsigned block_count;
static size_t reserved; /* bytes of blocks, with those that are being made */
static void *tree;      /* of slots, by number */
static uint64_t numbers;
static size_t used;
static const void *wanting; /* the context that found no room for a block last, or NULL */
static bool yielding;       /* a thread unpins blocks */

static int compare(const void *a, const void *b)
{
    const struct slot *left = a, *right = b;
    return (left->number > right->number) - (left->number < right->number);
}

/* Locked. */
static struct slot *find(uint64_t number)
{
    const struct slot wanted = {.number = number};
    struct slot *const *found = tfind(&wanted, &tree, compare);
    return found ? *found : NULL;
}

/* ---------------------------------------------------------------------------------- blocks */

/* Locked. Whether there is a gap of n bytes behind `before` (NULL: at the beginning). */
static bool fits(const struct block *block, const struct slot *before, size_t n)
{
    const struct slot *next = before ? before->next : block->slots;
    const size_t at = before ? before->at + before->n : 0;
    return (next ? next->at : block->length) - at >= n;
}

/* Locked. Whether there is such a gap, behind *before: near where the last slot came or went.
 * Others wait for the lock, so only LOOKS places are tried, and a gap may stay unseen. */
static bool find_gap(const struct block *block, size_t n, struct slot **before)
{
    *before = block->last;
    for (unsigned i = 0; i < LOOKS && block->length - block->used >= n; i++) {
        if (fits(block, *before, n))
            return true;
        struct slot *next = *before ? (*before)->next : block->slots;
        *before = next; /* NULL: from the beginning again */
    }
    return false;
}

/* Locked. */
static void put_behind(struct block *block, struct slot *s, struct slot *before)
{
    s->block = block;
    s->at = before ? before->at + before->n : 0;
    s->before = before;
    s->next = before ? before->next : block->slots;
    *(before ? &before->next : &block->slots) = s;
    if (s->next)
        s->next->before = s;
    block->last = s;
    block->used += s->n;
}

/* Locked. Finds a place for `s`, whose size is set. False: there is none. */
static bool place(struct slot *s)
{
    for (unsigned i = 0; i < block_count; i++) {
        const void *context = blocks[i].context;
        struct slot *before;
        if ((context && context != s->context) || blocks[i].unpinned ||
            !find_gap(&blocks[i], s->n, &before))
            continue;
        put_behind(&blocks[i], s, before);
        s->block->context = s->context;
        used += s->n;
        return true;
    }
    return false;
}

/* Not locked: the driver may take long, and keep other calls out. */
static uint8_t *pin(const struct ibx_cuda *cuda, size_t length)
{
    uint8_t *base = mmap(NULL, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    madvise(base, length, MADV_DONTFORK);
    if (!cuda->mem_host_register(base, length, IBX_CUDA_HOST_REGISTER_PORTABLE))
        return base;
    munmap(base, length);
    return NULL;
}

/* The limit of the bytes of all blocks; never less than IBX_SLOTS_LEAST, since each context needs
 * blocks of its own. */
static size_t room_of_all(const struct ibx_quota *quota)
{
    const uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);
    const uint64_t host = pages * (uint64_t)sysconf(_SC_PAGESIZE) / 8;
    const uint64_t pins = quota && quota->of ? atomic_load(&quota->of->most) : UINT64_MAX;
    uint64_t room = host < IBX_SLOTS_MAX ? host : IBX_SLOTS_MAX;
    room = pins < room ? pins : room;
    return room < IBX_SLOTS_LEAST ? IBX_SLOTS_LEAST : (size_t)room;
}

/* Makes a new block, which has room for the slot. False: there is no room for it, or CUDA fails. */
static bool add_block(const struct ibx_cuda *cuda, const struct slot *s)
{
    const size_t n = s->n, all = room_of_all(s->quota);
    const size_t length = n < IBX_SLOT_BLOCK ? IBX_SLOT_BLOCK : (n + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&lock);
    const bool room = reserved <= all && length <= all - reserved;
    reserved += room ? length : 0;
    wanting = room ? wanting : s->context;
    pthread_mutex_unlock(&lock);
    uint8_t *base = room ? pin(cuda, length) : NULL;
    pthread_mutex_lock(&lock);
    if (base)
        blocks[block_count++] =
            (struct block){.base = base, .length = length, .context = s->context};
    else if (room)
        reserved -= length;
    pthread_mutex_unlock(&lock);
    return base;
}

/* Not locked, as pin(). False: it is still pinned. */
static bool unpin(struct gpu_session *x, struct block *block, void *context)
{
    void *popped = NULL;
    if (x->cuda->ctx_push_current(context))
        return true; /* the context is gone, and has unpinned it */
    ibx_frees_begin(x, 0);
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const int rc = x->cuda->mem_host_unregister(block->base);
    ibx_cuda_capture_restore(x->cuda, mode);
    ibx_frees_end();
    x->cuda->ctx_pop_current(&popped);
    return !rc || rc == NOT_REGISTERED; /* a reset has unpinned it */
}

/* One thread at a time: it may have to wait for a device that never ends its work. */
void ibx_slots_yield(struct gpu_session *x)
{
    pthread_mutex_lock(&lock);
    const void *const to = yielding ? NULL : wanting;
    wanting = to ? NULL : wanting;
    yielding = yielding || to;
    for (unsigned i = 0; to && i < block_count; i++) {
        struct block *block = &blocks[i];
        const void *context = block->context;
        if (!context || context == to || block->slots)
            continue;
        block->unpinned = true;
        pthread_mutex_unlock(&lock);
        const bool done = unpin(x, block, (void *)(uintptr_t)context);
        pthread_mutex_lock(&lock);
        block->unpinned = false;
        block->context = done ? NULL : block->context;
    }
    yielding = yielding && !to;
    pthread_mutex_unlock(&lock);
}

/* Pins the block again if a reset of the context has unpinned it. False: CUDA fails. */
static bool is_pinned(const struct ibx_cuda *cuda, const struct block *block)
{
    unsigned flags;
    if (!cuda->mem_host_get_flags(&flags, block->base))
        return true;
    const int rc =
        cuda->mem_host_register(block->base, block->length, IBX_CUDA_HOST_REGISTER_PORTABLE);
    return !rc || rc == IBX_CUDA_HOST_MEMORY_REGISTERED; /* another thread has */
}

/* ----------------------------------------------------------------------------------- slots */

/* Locked. */
static void take_out(struct slot *s)
{
    *(s->before ? &s->before->next : &s->block->slots) = s->next;
    if (s->next)
        s->next->before = s->before;
    s->block->last = s->before;
    s->block->used -= s->n;
    used -= s->n;
    tdelete(s, &tree, compare);
    if (s->quota)
        ibx_quota_give(s->quota, s->n);
    free(s);
}

/* Locked. Frees the slot if nobody holds it any more. */
static void drop_if_unheld(struct slot *s)
{
    if (!s->graphs && !s->users)
        take_out(s);
}

/* Locked. Gives it a number, by which it is found. False: no memory. */
static bool enter(struct slot *s)
{
    s->number = ++numbers;
    s->graphs = tsearch(s, &tree, compare) ? 1 : 0;
    return s->graphs;
}

/* Finds a place for the slot in a block, or in a new one. */
static bool settle(struct slot *s, const struct ibx_cuda *cuda)
{
    pthread_mutex_lock(&lock);
    bool placed = place(s);
    pthread_mutex_unlock(&lock);
    if (!placed && add_block(cuda, s)) {
        pthread_mutex_lock(&lock);
        placed = place(s); /* fails if others were quicker */
        pthread_mutex_unlock(&lock);
    }
    return placed;
}

static void tell_once(size_t n, size_t all)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "no page-locked memory for a copy of %zu bytes in a client's graph (%zu bytes at "
                "most for one, %zu for all, rdma.pins, the limit of locked memory): it is made by "
                "calls of CUDA while the graph waits, which is slower, and fails if the program "
                "has freed the copy's device memory by then",
                n, IBX_SLOT_MAX, all);
}

static struct ibx_quota *quota_of(const struct gpu_session *x)
{
    return x->isolation.tenant ? ibx_tenant_quota(x->isolation.tenant, IBX_HOLD_PINS) : NULL;
}

static struct slot *new_slot(struct gpu_session *x, size_t n)
{
    void *context = NULL;
    struct slot *s = calloc(1, sizeof(*s));
    struct ibx_quota *quota = quota_of(x);
    const size_t bytes = (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!s || x->cuda->ctx_get_current(&context) || (quota && !ibx_quota_take(quota, bytes))) {
        free(s);
        return NULL;
    }
    *s = (struct slot){.n = bytes, .users = 1, .context = context, .quota = quota};
    return s;
}

/* Clears the slot, since another client's bytes may be there, and gives it a number. The place is
 * the slot's own by now, so that is done without the lock. */
static uint64_t begin(struct slot *s, const struct ibx_cuda *cuda)
{
    const bool pinned = is_pinned(cuda, s->block);
    if (pinned)
        memset(s->block->base + s->at, 0, s->n);
    pthread_mutex_lock(&lock);
    const uint64_t number = pinned && enter(s) ? s->number : 0;
    s->users--;
    drop_if_unheld(s);
    pthread_mutex_unlock(&lock);
    return number;
}

uint64_t ibx_slot_make(struct gpu_session *x, size_t n)
{
    struct slot *s = n && n <= IBX_SLOT_MAX ? new_slot(x, n) : NULL;
    uint64_t number = 0;
    if (s && settle(s, x->cuda)) {
        number = begin(s, x->cuda);
    } else if (s) {
        if (s->quota)
            ibx_quota_give(s->quota, s->n);
        free(s);
    }
    if (!number)
        tell_once(n, room_of_all(quota_of(x)));
    return number;
}

bool ibx_slot_hold(uint64_t slot)
{
    pthread_mutex_lock(&lock);
    struct slot *s = find(slot);
    if (s && s->graphs)
        s->graphs++;
    const bool held = s && s->graphs;
    pthread_mutex_unlock(&lock);
    return held;
}

void ibx_slot_call(uint64_t slot, void *function)
{
    pthread_mutex_lock(&lock);
    struct slot *s = find(slot);
    if (s)
        s->function = function;
    pthread_mutex_unlock(&lock);
}

void ibx_slot_release(void *slot)
{
    void *function = NULL;
    pthread_mutex_lock(&lock);
    struct slot *s = find((uintptr_t)slot);
    if (s && s->graphs) {
        function = --s->graphs ? NULL : s->function;
        drop_if_unheld(s);
    }
    pthread_mutex_unlock(&lock);
    if (function)
        ibx_host_work_unused(function, (uintptr_t)slot);
}

bool ibx_slot_use(uint64_t slot, struct ibx_slot_memory *memory)
{
    pthread_mutex_lock(&lock);
    struct slot *s = find(slot);
    if (s) {
        s->users++;
        *memory = (struct ibx_slot_memory){.at = s->block->base + s->at,
                                           .n = s->n,
                                           .block = (unsigned)(s->block - blocks),
                                           .base = s->block->base,
                                           .length = s->block->length};
    }
    pthread_mutex_unlock(&lock);
    return s;
}

void ibx_slot_stop_using(uint64_t slot)
{
    pthread_mutex_lock(&lock);
    struct slot *s = find(slot);
    s->users--;
    drop_if_unheld(s);
    pthread_mutex_unlock(&lock);
}

void ibx_slots_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; context && i < block_count; i++) {
        if (blocks[i].context != context)
            continue;
        blocks[i].context = NULL;
        for (struct slot *s = blocks[i].slots, *next; s; s = next) {
            next = s->next;
            s->graphs = 0;
            if (s->function)
                ibx_host_work_unused(s->function, s->number);
            drop_if_unheld(s);
        }
    }
    pthread_mutex_unlock(&lock);
}

size_t ibx_slots_bytes(void)
{
    pthread_mutex_lock(&lock);
    const size_t bytes = used;
    pthread_mutex_unlock(&lock);
    return bytes;
}
