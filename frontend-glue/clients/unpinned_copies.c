/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA is given a number of the stream's instead of an address: a stream that was forgotten is not
 * found. The functions of a stream are called in the order in which they were added. */
#include "frontend-glue/clients/unpinned_copies.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 20u /* how often a wait looks whether it is in vain */

typedef int launch_function(void *stream, void (*function)(void *), void *argument);

struct part_of_copy {
    struct part_of_copy *next;
    uint8_t *client; /* memory of the client's */
    size_t n;        /* 0: the chunk has been copied from, and that is all */
    bool to_device;
};

struct ibx_unpinned_stream {
    struct ibx_unpinned_stream *next;
    const struct gpu_session *owner; /* NULL: its session has ended */
    const struct ibx_tenant *tenant;
    uintptr_t id;
    const void *stream, *context;
    uint8_t *chunk;
    struct part_of_copy *first, **end;
    unsigned count;
    unsigned promised; /* parts of the copy that is being added which are not in the list yet */
    unsigned before;   /* as a copy began: ibx_captures_over_so_far() */
    bool adding;       /* the session adds a copy */
    bool moving;       /* the first part is being copied */
    bool lost;         /* its context may be gone, or it is captured */
    bool graphs;       /* may have the chunk: it is never given back */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ibx_unpinned_stream *all, *kept; /* kept: forgotten, but for their chunks */
static uintptr_t last_id;

/* Locked. */
static struct ibx_unpinned_stream *find(uintptr_t id)
{
    struct ibx_unpinned_stream *l = all;
    while (l && l->id != id)
        l = l->next;
    return l;
}

/* Locked. Forgets the stream, unless somebody needs it still. */
static void drop_if_over(struct ibx_unpinned_stream *l)
{
    struct ibx_unpinned_stream **at = &all;
    if (l->first || l->adding || l->moving)
        return;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    if (l->graphs) {
        l->next = kept;
        kept = l;
        return;
    }
    ibx_pinned_return(l->chunk);
    free(l);
}

/* Locked. */
static void take_first(struct ibx_unpinned_stream *l)
{
    struct part_of_copy *p = l->first;
    l->first = p->next;
    if (!l->first)
        l->end = &l->first;
    l->count--;
    free(p);
}

/* A client that has ended gets nothing, and its memory of the device gets zeros. */
static void move(const struct part_of_copy *p, uint8_t *chunk, bool lives)
{
    if (lives && p->n)
        memcpy(p->to_device ? chunk : p->client, p->to_device ? p->client : chunk, p->n);
    else if (p->to_device)
        memset(chunk, 0, p->n);
}

/* In a thread of the driver's, for which the stream waits. Graphs may call it for several streams
 * at a time. */
static void call(void *id)
{
    pthread_mutex_lock(&lock);
    struct ibx_unpinned_stream *l = find((uintptr_t)id);
    if (l && l->first && !l->moving) {
        const bool lives = l->owner;
        l->moving = true;
        pthread_mutex_unlock(&lock);
        move(l->first, l->chunk, lives);
        pthread_mutex_lock(&lock);
        l->moving = false;
        take_first(l);
        drop_if_over(l);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

/* Locked. How many chunks graphs of the tenant's may have, or may get by the copies that are being
 * added now. */
static unsigned count_kept(const struct ibx_tenant *tenant)
{
    unsigned count = 0;
    for (const struct ibx_unpinned_stream *l = all; l; l = l->next)
        count += (l->graphs || l->adding) && l->tenant == tenant;
    for (const struct ibx_unpinned_stream *l = kept; l; l = l->next)
        count += l->tenant == tenant;
    return count;
}

/* Locked. The session's entry of that stream, or a new one; NULL: see ibx_unpinned_begin(). */
static struct ibx_unpinned_stream *enter(const struct gpu_session *x, const void *stream,
                                         const void *context)
{
    unsigned count = 0;
    const bool room = count_kept(x->isolation.tenant) < IBX_UNPINNED_KEPT;
    for (struct ibx_unpinned_stream *l = all; l; l = l->next) {
        if (l->owner == x && l->stream == stream && l->context == context && !l->lost)
            return l->graphs || room ? l : NULL;
        count += l->owner == x;
    }
    const bool may = count < IBX_UNPINNED_STREAMS && room;
    struct ibx_unpinned_stream *made = may ? calloc(1, sizeof(*made)) : NULL;
    uint8_t *chunk = made ? ibx_pinned_borrow(IBX_PINNED_CHUNK) : NULL;
    if (!chunk) {
        free(made);
        return NULL;
    }
    *made = (struct ibx_unpinned_stream){.next = all,
                                         .owner = x,
                                         .tenant = x->isolation.tenant,
                                         .id = ++last_id,
                                         .stream = stream,
                                         .context = context,
                                         .chunk = chunk};
    made->end = &made->first;
    return all = made;
}

/* Locked. Whether the tenant may have so many parts more. If there are several tenants, none gets
 * more than half of what the others have left, so that there is always room for another one. */
static bool has_room(const struct ibx_tenant *tenant, uint64_t parts)
{
    unsigned own = 0, others = 0;
    for (const struct ibx_unpinned_stream *l = all; l; l = l->next)
        *(l->tenant == tenant ? &own : &others) += l->count + l->promised;
    const uint64_t want = own + parts;
    return (ibx_tenants_several() ? 2 * want : want) + others < IBX_UNPINNED_PARTS;
}

struct ibx_unpinned_stream *ibx_unpinned_begin(struct gpu_session *x, void *stream, uint64_t bytes)
{
    void *context = NULL, *of_stream = NULL;
    if (bytes > (uint64_t)IBX_UNPINNED_PARTS * IBX_PINNED_CHUNK ||
        !ibx_cuda_symbol("cuLaunchHostFunc") || x->cuda->ctx_get_current(&context) ||
        x->cuda->stream_get_context(stream, &of_stream) || of_stream != context)
        return NULL;
    const uint64_t parts = (bytes + IBX_PINNED_CHUNK - 1) / IBX_PINNED_CHUNK;
    pthread_mutex_lock(&lock);
    struct ibx_unpinned_stream *l =
        has_room(x->isolation.tenant, parts) ? enter(x, stream, context) : NULL;
    if (l) {
        l->adding = true;
        l->promised = (unsigned)parts + 1; /* the last one says that the chunk is free */
        l->before = ibx_captures_over_so_far(x);
    }
    pthread_mutex_unlock(&lock);
    return l;
}

/* Another thread of the client may have begun to capture the stream while the copy was added: then
 * the parts are nodes of a graph, which the client launches whenever it likes. */
static bool is_captured(const struct gpu_session *x, void *stream)
{
    int capturing = 0;
    return stream != IBX_CUDA_STREAM_LEGACY && ibx_captures_any() &&
           (x->cuda->stream_is_capturing(stream, &capturing) || capturing);
}

/* Locked, except while it waits. Takes back the part that was added last. A graph of the client's,
 * which was captured with functions of earlier copies, may be copying it, and then takes it. */
static void take_back(struct ibx_unpinned_stream *l, struct part_of_copy *p)
{
    while (l->moving && l->first == p)
        pthread_cond_wait(&changed, &lock);
    struct part_of_copy **at = &l->first;
    while (*at && *at != p)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = NULL;
    l->end = at;
    l->count--;
    free(p);
}

/* Has the stream call the function for a part. */
static int add(struct ibx_unpinned_stream *l, void *stream, const struct part_of_copy *part)
{
    launch_function *launch = NULL;
    struct part_of_copy *p = malloc(sizeof(*p));
    *(void **)&launch = ibx_cuda_symbol("cuLaunchHostFunc");
    if (!p)
        return CUDA_MEMORY_ALLOCATION;
    *p = *part;
    pthread_mutex_lock(&lock);
    *l->end = p;
    l->end = &p->next;
    l->count++;
    l->promised -= l->promised > 0;
    pthread_mutex_unlock(&lock);
    const int rc = launch(stream, call, (void *)l->id);
    if (rc) {
        pthread_mutex_lock(&lock);
        take_back(l, p);
        pthread_mutex_unlock(&lock);
    }
    return rc;
}

static int add_part(const struct ibx_cuda *cuda, struct ibx_unpinned_stream *l,
                    const struct ibx_gpu_copy *copy, uint64_t at, const struct part_of_copy *part)
{
    const uint64_t device = copy->device + at;
    int rc;
    if (part->to_device) {
        rc = add(l, copy->stream, part);
        return rc ? rc : cuda->memcpy_to_device_async(device, l->chunk, part->n, copy->stream);
    }
    rc = cuda->memcpy_from_device_async(l->chunk, device, part->n, copy->stream);
    return rc ? rc : add(l, copy->stream, part);
}

int ibx_unpinned_add(struct gpu_session *x, struct ibx_unpinned_stream *behind, void *host,
                     const struct ibx_gpu_copy *copy, bool to_device)
{
    int rc = 0;
    for (uint64_t at = 0, some; at < copy->width && !rc; at += some) {
        const uint64_t rest = copy->width - at;
        some = rest < IBX_PINNED_CHUNK ? rest : IBX_PINNED_CHUNK;
        const struct part_of_copy part = {
            .client = (uint8_t *)host + at, .n = (size_t)some, .to_device = to_device};
        rc = add_part(x->cuda, behind, copy, at, &part);
    }
    if (!rc && to_device) /* the chunk is in use until the last part has been copied from it */
        rc = add(behind, copy->stream, &(struct part_of_copy){.to_device = true});
    if (rc)
        ibx_cuda_stream_wait(x->cuda, copy->stream);
    const bool captured = is_captured(x, copy->stream);
    const bool over = ibx_captures_ended_since(x, behind->before);
    pthread_mutex_lock(&lock);
    behind->graphs = behind->graphs || captured || over;
    behind->lost = behind->lost || captured;
    behind->adding = false;
    behind->promised = 0;
    drop_if_over(behind);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Locked. The next entry of the session's from there on. */
static struct ibx_unpinned_stream *next_of(const struct gpu_session *x,
                                           struct ibx_unpinned_stream *from)
{
    while (from && from->owner != x)
        from = from->next;
    return from;
}

/* Locked. */
static bool has_any(const struct gpu_session *x)
{
    struct ibx_unpinned_stream *l = next_of(x, all);
    while (l && l->lost)
        l = next_of(x, l->next);
    return l;
}

static bool in_vain(const struct gpu_session *x)
{
    return ibx_context_broken() || ibx_clients_own_ended(x);
}

void ibx_unpinned_wait(struct gpu_session *x)
{
    pthread_mutex_lock(&lock);
    while (has_any(x)) {
        pthread_mutex_unlock(&lock);
        const bool stops = in_vain(x);
        const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(LOOK_MS));
        pthread_mutex_lock(&lock);
        if (stops)
            break;
        if (has_any(x))
            pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    }
    pthread_mutex_unlock(&lock);
}

void ibx_unpinned_end(struct gpu_session *x)
{
    struct ibx_unpinned_stream *l;
    ibx_unpinned_wait(x);
    pthread_mutex_lock(&lock);
    while ((l = next_of(x, all))) {
        if (l->moving)
            pthread_cond_wait(&changed, &lock);
        else
            l->owner = NULL;
    }
    pthread_mutex_unlock(&lock);
}

void ibx_unpinned_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct ibx_unpinned_stream *l = all, *next; l; l = next) {
        next = l->next;
        l->lost = l->lost || !context || l->context == context;
        while (context && l->context == context && l->first && !l->moving)
            take_first(l);
        if (l->lost)
            drop_if_over(l);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
