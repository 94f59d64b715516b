/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams that have joined a capture by events. When capture_graphs.c splits the capture, they
 * join the first stream again, or CUDA would refuse the end of a part, and they are forked anew:
 *
 *   first stream   ---- part ----.end  begin. root ---- part ----.
 *   a joined one     `-- part ---^             `--- part --------^
 *
 * A part is one node of the program's graph, behind which the next part comes. So whatever comes
 * after the split is behind all that came before it: a stream that waits then for an event of an
 * earlier part gets no other dependency than to be in the capture, and waits for the root instead.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>

struct joined {
    struct joined *next;
    void *stream;
    uint64_t by; /* the thread whose own stream it may be */
};

/* An event that was recorded in the capture last. */
struct recorded {
    struct recorded *next;
    const void *event;
    unsigned part;
};

struct ibx_forks {
    struct ibx_forks *next;
    const void *stream; /* that has begun the capture */
    uint64_t by;
    unsigned part;              /* how often the capture was split */
    struct ibx_kept_event root; /* recorded in the first stream as a part began */
    bool has_root;
    struct joined *joined;
    struct recorded *events;
};

static struct ibx_forks *all; /* with what they have, protected by the lock of ranges */

/* The captures are the parent's. */
static void in_child(void)
{
    all = NULL;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* No later thread has the number; a pthread_t it may have. */
uint64_t ibx_frontend_thread_number(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t number;
    if (!number)
        number = atomic_fetch_add(&last, 1) + 1;
    return number;
}

/* Called under the lock. The place of the stream in the list, or of NULL at its end. */
static struct joined **place_of(struct ibx_forks *f, const void *stream)
{
    struct joined **at = &f->joined;
    while (*at && !ibx_frontend_same_stream((*at)->stream, (*at)->by, stream))
        at = &(*at)->next;
    return at;
}

/* Likewise. The capture that the stream is in. */
static struct ibx_forks *capture_of(const void *stream)
{
    struct ibx_forks *f = all;
    while (f && !ibx_frontend_same_stream(f->stream, f->by, stream) && !*place_of(f, stream))
        f = f->next;
    return f;
}

static struct recorded **place_of_event(struct ibx_forks *f, const void *event)
{
    struct recorded **at = &f->events;
    while (*at && (*at)->event != event)
        at = &(*at)->next;
    return at;
}

/* Called under the lock: of the event, in whichever capture; NULL: in none. */
static const struct recorded *record_of(const void *event, struct ibx_forks **in)
{
    const struct recorded *found = NULL;
    for (struct ibx_forks *f = all; f && !found; f = f->next) {
        found = *place_of_event(f, event);
        *in = f;
    }
    return found;
}

static void forget_event(const void *event)
{
    for (struct ibx_forks *f = all; f; f = f->next) {
        struct recorded **at = place_of_event(f, event), *found = *at;
        if (found)
            *at = found->next;
        free(found);
    }
}

/* ----------------------------------------------------------------- what the program's calls do */

struct ibx_forks *ibx_frontend_forks_begin(const void *stream)
{
    struct ibx_forks *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->stream = stream;
    f->by = ibx_frontend_thread_number();
    ibx_frontend_ranges_lock();
    f->next = all;
    all = f;
    ibx_frontend_ranges_unlock();
    return f;
}

void ibx_frontend_forks_end(struct ibx_forks *f)
{
    ibx_frontend_ranges_lock();
    struct ibx_forks **at = &all;
    while (*at && *at != f)
        at = &(*at)->next;
    if (*at)
        *at = f->next;
    ibx_frontend_ranges_unlock();
    if (!f)
        return;
    for (struct joined *j = f->joined, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    for (struct recorded *r = f->events, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    if (f->has_root)
        ibx_frontend_event_give_back(&f->root, true);
    free(f);
}

void ibx_frontend_forks_lose_root(struct ibx_forks *f)
{
    if (f)
        f->has_root = false;
}

/* Without memory the event is not known, and a split ends the capture with CUDA's error. */
void ibx_frontend_forks_recorded(const void *event, const void *stream)
{
    ibx_frontend_ranges_lock();
    struct ibx_forks *f = capture_of(stream);
    struct recorded *r = f ? *place_of_event(f, event) : NULL;
    if (r) {
        r->part = f->part;
    } else {
        forget_event(event);
        if (f && (r = malloc(sizeof(*r)))) {
            *r = (struct recorded){.next = f->events, .event = event, .part = f->part};
            f->events = r;
        }
    }
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_forks_event_gone(const void *event)
{
    ibx_frontend_ranges_lock();
    forget_event(event);
    ibx_frontend_ranges_unlock();
}

bool ibx_frontend_forks_captured(const void *event)
{
    struct ibx_forks *f;
    ibx_frontend_ranges_lock();
    const bool captured = record_of(event, &f);
    ibx_frontend_ranges_unlock();
    return captured;
}

void *ibx_frontend_forks_event(void *event)
{
    struct ibx_forks *f;
    ibx_frontend_ranges_lock();
    const struct recorded *r = record_of(event, &f);
    void *root = r && r->part != f->part && f->has_root ? f->root.event : event;
    ibx_frontend_ranges_unlock();
    return root;
}

void ibx_frontend_forks_waited(void *stream, const void *event)
{
    struct ibx_forks *f;
    ibx_frontend_ranges_lock();
    if (record_of(event, &f) && !capture_of(stream) && (uintptr_t)stream > 1) {
        struct joined *j = malloc(sizeof(*j));
        if (j)
            *j = (struct joined){f->joined, stream, ibx_frontend_thread_number()};
        f->joined = j ? j : f->joined;
    }
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_forks_stream_gone(const void *stream)
{
    ibx_frontend_ranges_lock();
    for (struct ibx_forks *f = all; f; f = f->next) {
        struct joined **at = place_of(f, stream), *found = *at;
        if (found)
            *at = found->next;
        free(found);
    }
    ibx_frontend_ranges_unlock();
}

const struct ibx_forks *ibx_frontend_forks_of(const void *stream)
{
    ibx_frontend_ranges_lock();
    const struct ibx_forks *f = capture_of(stream);
    ibx_frontend_ranges_unlock();
    return f;
}

bool ibx_frontend_forks_any(const struct ibx_forks *f)
{
    ibx_frontend_ranges_lock();
    const bool any = f && f->joined;
    ibx_frontend_ranges_unlock();
    return any;
}

/* ------------------------------------------------------------------------------------- a split */

/* A copy of the list, since calls are made for each stream of it; *streams is NULL if it is empty.
 * Another thread's own stream cannot be named here. Returns a CUDA error. */
static int copy_of(const struct ibx_forks *f, void ***streams, size_t *count)
{
    bool named = true;
    *streams = NULL;
    *count = 0;
    ibx_frontend_ranges_lock();
    size_t n = 0;
    for (const struct joined *j = f->joined; j; j = j->next)
        n++;
    void **made = n ? malloc(n * sizeof(*made)) : NULL;
    for (const struct joined *j = f->joined; j && made; j = j->next) {
        named = named && ibx_frontend_same_stream(j->stream, j->by, j->stream);
        made[(*count)++] = j->stream;
    }
    ibx_frontend_ranges_unlock();
    if (n && made && named) {
        *streams = made;
        return CUDA_SUCCESS;
    }
    free(made);
    return n ? ibx_frontend_fail(made ? CUDA_NOT_SUPPORTED : CUDA_MEMORY_ALLOCATION) : CUDA_SUCCESS;
}

/* Makes an event of the stream's device, or takes one. */
static int take_event(struct ibx_kept_event *own, const void *stream)
{
    const int device = ibx_frontend_current_device(), there = ibx_frontend_stream_device(stream);
    int rc = there == device ? CUDA_SUCCESS : cudaSetDevice(there);
    if (rc)
        return rc;
    rc = ibx_frontend_event_take(own);
    if (there != device)
        cudaSetDevice(device);
    return rc;
}

/* The work of a stream comes before what is captured in the first one from now on. One that is in
 * no capture has left it, and is forgotten. */
static int come_back(const struct ibx_forks *f, void *stream)
{
    struct ibx_kept_event own;
    int status = 0;
    int rc = cudaStreamIsCapturing(stream, &status);
    if (rc || !status) {
        ibx_frontend_forks_stream_gone(stream);
        return CUDA_SUCCESS;
    }
    if ((rc = take_event(&own, stream)))
        return rc;
    rc = ibx_frontend_event_record(own.event, stream);
    rc = rc ? rc : ibx_frontend_stream_wait_event((void *)f->stream, own.event, 0);
    ibx_frontend_event_give_back(&own, !rc);
    return rc;
}

static int all_come_back(struct ibx_forks *f)
{
    void **streams;
    size_t count;
    int rc = copy_of(f, &streams, &count);
    for (size_t i = 0; i < count && !rc && streams; i++)
        rc = come_back(f, streams[i]);
    free(streams);
    return rc;
}

int ibx_frontend_forks_split(struct ibx_forks *f)
{
    if (!f)
        return CUDA_SUCCESS;
    ibx_frontend_ranges_lock();
    const bool forks = f->joined || f->events;
    ibx_frontend_ranges_unlock();
    if (forks && !f->has_root) { /* first: without it nothing may change */
        const int rc = take_event(&f->root, f->stream);
        if (rc)
            return rc;
        ibx_frontend_ranges_lock();
        f->has_root = true;
        ibx_frontend_ranges_unlock();
    }
    return all_come_back(f);
}

int ibx_frontend_forks_go_on(struct ibx_forks *f)
{
    void **streams = NULL;
    size_t count = 0;
    if (!f)
        return CUDA_SUCCESS;
    ibx_frontend_ranges_lock();
    f->part++;
    ibx_frontend_ranges_unlock();
    if (!f->has_root)
        return CUDA_SUCCESS;
    int rc = ibx_frontend_event_record(f->root.event, (void *)f->stream);
    rc = rc ? rc : copy_of(f, &streams, &count);
    for (size_t i = 0; i < count && !rc && streams; i++)
        rc = ibx_frontend_stream_wait_event(streams[i], f->root.event, 0);
    free(streams);
    return rc;
}

int ibx_frontend_forks_join(struct ibx_forks *f)
{
    return f && f->part ? all_come_back(f) : CUDA_SUCCESS;
}
