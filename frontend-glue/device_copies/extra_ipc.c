/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own about memory and events of other processes (cudaIpc*). All clients of a back
 * end are threads of one process with one context: what one has allocated the others reach by the
 * same address, and CUDA would refuse to open its own handle in the process that made it. So a
 * handle is a random number that is good here alone, for clients of the tenant that asked for it,
 * until the memory is freed or the event destroyed. Using either behind that is undefined in CUDA,
 * too. What its maker leaves as it ends is there until those have closed it that have opened it.
 */
#include "frontend-glue/device_copies/extra.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SHARED_MAX 4096u /* of a tenant */
#define NUMBER     16u   /* bytes: the first ones of a handle; the others are zero */
#define BUCKETS    1024u /* each free of any client looks into one */

enum kind { MEMORY, EVENT, POOL }; /* as IPC_CLOSE has it */

struct shared {
    struct shared *next, **at;          /* of all, the newest first */
    struct shared *next_there, **there; /* of its bucket, by its value */
    uint8_t number[NUMBER];
    enum kind kind;
    uint64_t value, n;         /* an event, a pool; or memory, n bytes */
    unsigned long long buffer; /* memory: CUDA's number of the allocation, ever */
    const void *context;       /* in which it is; NULL: not known */
    const struct ibx_tenant *tenant;
    const struct copies *maker; /* NULL: its session has ended */
    bool known;                 /* what it is has a handle (handles.c) */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared *all, *buckets[BUCKETS];
static atomic_uint count;

/* ---------------------------------------------------------------------------- the list; locked */

static struct shared **bucket_of(uint64_t value)
{
    return &buckets[(value * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BUCKETS];
}

static void add(struct shared *s)
{
    s->at = &all;
    s->next = all;
    if (s->next)
        s->next->at = &s->next;
    all = s;
    s->there = bucket_of(s->value);
    s->next_there = *s->there;
    if (s->next_there)
        s->next_there->there = &s->next_there;
    *s->there = s;
    atomic_fetch_add(&count, 1);
}

static void drop(struct shared *gone)
{
    *gone->at = gone->next;
    if (gone->next)
        gone->next->at = gone->at;
    *gone->there = gone->next_there;
    if (gone->next_there)
        gone->next_there->there = gone->there;
    free(gone);
    atomic_fetch_sub(&count, 1);
}

static void drop_value(enum kind kind, uint64_t value)
{
    for (struct shared *s = *bucket_of(value), *next; s; s = next) {
        next = s->next_there;
        if (s->kind == kind && s->value == value)
            drop(s);
    }
}

static struct shared *find_value(const struct shared *like)
{
    struct shared *s = *bucket_of(like->value);
    while (s && !(s->kind == like->kind && s->value == like->value && s->buffer == like->buffer &&
                  s->tenant == like->tenant))
        s = s->next_there;
    return s;
}

static const struct shared *find_number(const struct ibx_tenant *tenant, enum kind kind,
                                        const uint8_t *handle)
{
    static const uint8_t zeros[IBX_EXTRA_HANDLE - NUMBER];
    const struct shared *s = all;
    if (memcmp(handle + NUMBER, zeros, sizeof(zeros)) != 0)
        return NULL;
    while (s && !(s->tenant == tenant && s->kind == kind && !memcmp(s->number, handle, NUMBER)))
        s = s->next;
    return s;
}

/* What a client leaves behind may stay: of what sessions have shared that are no more, the oldest
 * goes for want of room. */
static bool make_room(const struct ibx_tenant *tenant)
{
    unsigned of_tenant = 0;
    struct shared *left = NULL;
    for (struct shared *s = all; s; s = s->next) {
        of_tenant += s->tenant == tenant;
        if (s->tenant == tenant && !s->maker)
            left = s;
    }
    if (of_tenant < SHARED_MAX)
        return true;
    if (left)
        drop(left);
    return left;
}

static struct shared *enter(const struct shared *made)
{
    drop_value(made->kind, made->value); /* one whose end nobody has seen */
    struct shared *s = make_room(made->tenant) ? malloc(sizeof(*s)) : NULL;
    if (!s)
        return NULL;
    *s = *made;
    if (getrandom(s->number, sizeof(s->number), 0) != (ssize_t)sizeof(s->number)) {
        free(s);
        return NULL;
    }
    add(s);
    return s;
}

/* ---------------------------------------------------------------------------------- its ends */

void ibx_ipc_gone(uint64_t value)
{
    if (!atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    for (enum kind kind = MEMORY; kind <= POOL; kind++)
        drop_value(kind, value);
    pthread_mutex_unlock(&lock);
}

void ibx_ipc_end(const struct copies *x)
{
    if (!atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    for (struct shared *s = all; s; s = s->next)
        s->maker = s->maker == x ? NULL : s->maker;
    pthread_mutex_unlock(&lock);
}

void ibx_ipc_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct shared *s = all, *next; s; s = next) {
        next = s->next;
        if (!context || !s->context || s->context == context)
            drop(s);
    }
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------------------------- requests */

/* Whether the driver may be asked about memory: that may be the first that the thread does. */
static bool ready(const struct extra *e)
{
    ibx_copies_begin_context(e->x);
    return ibx_copies_have_cuda(e->x);
}

/* The allocation that holds the address, if it is one of the device's that is ours. */
static bool measure(const struct extra *e, uint64_t address, struct shared *s)
{
    static const int names[] = {IBX_CUDA_POINTER_MEMORY_TYPE, IBX_CUDA_POINTER_IS_MANAGED,
                                IBX_CUDA_POINTER_BUFFER_ID, IBX_CUDA_POINTER_RANGE_START,
                                IBX_CUDA_POINTER_RANGE_SIZE};
    unsigned type = 0, managed = 0;
    size_t n = 0;
    void *values[] = {&type, &managed, &s->buffer, &s->value, &n};
    if (!address || !ready(e) || e->x->cuda->pointer_get_attributes(5, names, values, address) ||
        type != IBX_CUDA_MEMORY_DEVICE || managed || !s->value || !n)
        return false;
    s->n = n;
    return mine(e, pointer_to(s->value), n);
}

static enum ibx_handle_kind handle_kind(enum kind kind)
{
    return kind == MEMORY  ? IBX_HANDLE_MEMORY
           : kind == EVENT ? IBX_HANDLE_EVENT
                           : IBX_HANDLE_MADE_POOL;
}

static int share(struct extra *e, struct shared *wish)
{
    void *context = NULL;
    uint8_t handle[IBX_EXTRA_HANDLE] = {0};
    wish->tenant = e->x->isolation.tenant;
    wish->maker = e->x;
    wish->known = ibx_handles_has(e->x, handle_kind(wish->kind), wish->value);
    if (ibx_copies_have_cuda(e->x) && !e->x->cuda->ctx_get_current(&context))
        wish->context = context;
    pthread_mutex_lock(&lock);
    struct shared *s = find_value(wish);
    if (!s)
        s = enter(wish);
    if (s) {
        s->maker = wish->maker;
        memcpy(handle, s->number, NUMBER);
    }
    pthread_mutex_unlock(&lock);
    ibx_put_bytes(&e->out, handle, sizeof(handle));
    return s ? 0 : CUDA_MEMORY_ALLOCATION;
}

static int share_memory(struct extra *e)
{
    struct shared wish = {0};
    const uint64_t address = ibx_get_u64(&e->in);
    if (!whole(e) || !measure(e, address, &wish))
        return CUDA_INVALID_VALUE;
    return share(e, &wish);
}

/* Whether it is one that can be shared CUDA knows: what it would share it by is of no use. */
static int share_event(struct extra *e)
{
    int (*get)(void *handle, void *event) = NULL;
    uint8_t unused[IBX_EXTRA_HANDLE];
    struct shared wish = {.kind = EVENT, .value = (uintptr_t)event_in(e)};
    if (!whole(e) || !wish.value)
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(unused, pointer_to(wish.value));
    return rc ? rc : share(e, &wish);
}

static int open_shared(struct extra *e, enum kind kind, struct shared *found)
{
    const uint8_t *handle = ibx_get_bytes(&e->in, IBX_EXTRA_HANDLE);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    const struct shared *s = find_number(e->x->isolation.tenant, kind, handle);
    if (s)
        *found = *s;
    const bool there = s && (!s->known || ibx_handles_open(e->x, handle_kind(kind), s->value));
    pthread_mutex_unlock(&lock);
    return there ? 0 : CUDA_INVALID_HANDLE;
}

/* Says so of what it has never opened, too: nothing comes of that. */
static int close_shared(struct extra *e)
{
    const uint8_t kind = ibx_get_u8(&e->in);
    const uint64_t value = ibx_get_u64(&e->in);
    if (!whole(e) || kind > POOL)
        return CUDA_INVALID_VALUE;
    ibx_handles_close(e->x, handle_kind((enum kind)kind), value);
    return 0;
}

/* Whether it is what was shared, and memory of the pool if that is not NULL. */
static int check_found(struct extra *e, const struct shared *found, const void *pool)
{
    struct shared now = {0};
    const void *of = NULL;
    if (!measure(e, found->value, &now) || now.buffer != found->buffer) { /* freed unseen */
        ibx_ipc_gone(found->value);
        return CUDA_INVALID_HANDLE;
    }
    if (pool && (e->x->cuda->pointer_get_attributes(1, &(int){IBX_CUDA_POINTER_MEMPOOL},
                                                    &(void *){&of}, found->value) ||
                 of != pool))
        return CUDA_INVALID_VALUE;
    return 0;
}

static int open_found(struct extra *e, const void *pool)
{
    struct shared found = {0};
    int rc = open_shared(e, MEMORY, &found);
    if (rc)
        return rc;
    rc = check_found(e, &found, pool);
    if (rc && found.known)
        ibx_handles_close(e->x, handle_kind(MEMORY), found.value);
    if (rc)
        return rc;
    ibx_put_u64(&e->out, found.value);
    ibx_put_u64(&e->out, found.n);
    return 0;
}

static int open_memory(struct extra *e)
{
    return open_found(e, NULL);
}

static int open_pointer(struct extra *e)
{
    const void *pool = pointer(&e->in);
    return pool && ibx_extra_is_pool(e, pool) ? open_found(e, pool) : CUDA_INVALID_VALUE;
}

static int share_pool(struct extra *e)
{
    struct shared wish = {.kind = POOL, .value = ibx_get_u64(&e->in)};
    if (!whole(e) || !ibx_handles_know(e->x, IBX_HANDLE_MADE_POOL, wish.value))
        return CUDA_INVALID_VALUE;
    return share(e, &wish);
}

static int open_pool(struct extra *e)
{
    struct shared found = {0};
    const int rc = open_shared(e, POOL, &found);
    ibx_put_u64(&e->out, found.value);
    return rc;
}

static int open_event(struct extra *e)
{
    struct shared found = {0};
    const int rc = open_shared(e, EVENT, &found);
    ibx_put_u64(&e->out, found.value);
    return rc;
}

const struct extra_call ibx_ipc_extras[IBX_EXTRAS] = {
    [IBX_EXTRA_IPC_MEMORY] = {"cudaIpcGetMemHandle", share_memory},
    [IBX_EXTRA_IPC_OPEN_MEMORY] = {"cudaIpcOpenMemHandle", open_memory},
    [IBX_EXTRA_IPC_EVENT] = {"cudaIpcGetEventHandle", share_event},
    [IBX_EXTRA_IPC_OPEN_EVENT] = {"cudaIpcOpenEventHandle", open_event},
    [IBX_EXTRA_IPC_POOL] = {"cudaMemPoolCreate", share_pool},
    [IBX_EXTRA_IPC_OPEN_POOL] = {"cudaMemPoolCreate", open_pool},
    [IBX_EXTRA_IPC_OPEN_POINTER] = {"cudaMallocFromPoolAsync", open_pointer},
    [IBX_EXTRA_IPC_CLOSE] = {"cudaIpcGetMemHandle", close_shared},
};
