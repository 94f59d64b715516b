/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * All work of a context that is under way at some moment: events behind it tell when it is over.
 * Streams of clients are known by their handles (handles.c), what threads have had in streams of
 * their own by left_work.c.
 *
 * Whose work there is in the legacy stream, is not known. It may be behind what does not end in
 * another client's blocking stream.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"

#include <stdlib.h>
#include <time.h>

#define NAP_LEAST_NS 50000u
#define NAP_MOST_NS  10000000u

struct behind {
    void *event;
    uint64_t client; /* whose work it is behind; 0: the legacy stream's */
};

struct moment {
    struct behind *events;
    size_t count;
    unsigned resets; /* with one the events are gone */
    uint64_t left;   /* likewise what threads have left */
};

void ibx_nap(uint64_t *ns)
{
    *ns = *ns ? *ns : NAP_LEAST_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)*ns}, NULL);
    *ns = 2 * *ns < NAP_MOST_NS ? 2 * *ns : NAP_MOST_NS;
}

static bool put_event(const struct ibx_cuda *cuda, struct moment *m, void *stream, uint64_t client)
{
    void *event = NULL;
    if (cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING))
        return false;
    if (cuda->event_record(event, stream)) {
        cuda->event_destroy(event);
        return false;
    }
    m->events[m->count++] = (struct behind){event, client};
    return true;
}

static bool put_behind_legacy(const struct ibx_cuda *cuda, struct moment *m)
{
    if (cuda->stream_query(IBX_CUDA_STREAM_LEGACY) != IBX_CUDA_NOT_READY)
        return true;
    void *event = ibx_own_event_behind_legacy(cuda);
    if (event)
        m->events[m->count++] = (struct behind){event, 0};
    return event;
}

/* Of streams that are held; false: one of the client's own is busy, or one is captured, or CUDA
 * fails. */
static bool put_behind(const struct ibx_cuda *cuda, uint64_t client, struct handle **streams,
                       size_t count, struct moment *m)
{
    for (size_t i = 0; i < count; i++) {
        void *stream = (void *)(uintptr_t)ibx_handles_value(streams[i]);
        const uint64_t whose = ibx_handles_client(streams[i]);
        int capturing = 0;
        const int rc = cuda->stream_is_capturing(stream, &capturing);
        if (!rc && capturing)
            return false;
        if (rc || cuda->stream_query(stream) != IBX_CUDA_NOT_READY)
            continue;
        if (whose == client || !put_event(cuda, m, stream, whose))
            return false;
    }
    return true;
}

/* Nobody captures, nor begins to, and no reset is under way. */
static bool put_events(const struct ibx_cuda *cuda, uint64_t client, const void *context,
                       struct moment *m)
{
    size_t count = 0;
    struct handle **streams = ibx_handles_hold_streams(0, context, &count);
    m->events = streams ? calloc(count + 1, sizeof(*m->events)) : NULL;
    m->resets = ibx_copies_resets();
    m->left = ibx_left_work_so_far();
    const bool put = m->events && !ibx_left_work_any(cuda, client, 0) &&
                     !ibx_left_work_in_legacy(cuda, client) &&
                     put_behind(cuda, client, streams, count, m) && put_behind_legacy(cuda, m);
    while (!put && m->count)
        cuda->event_destroy(m->events[--m->count].event);
    if (streams)
        ibx_handles_release(streams, count);
    return put;
}

static bool begin(const struct ibx_cuda *cuda, uint64_t client, const void *context,
                  struct moment *m)
{
    bool begun = false;
    *m = (struct moment){.events = NULL};
    if (!ibx_captures_wait_try())
        return false;
    if (ibx_clients_give_begin()) {
        begun = put_events(cuda, client, context, m);
        ibx_clients_give_end();
    }
    ibx_captures_wait_end();
    if (!begun)
        free(m->events);
    return begun;
}

/* Whether it is over; `gives_up`: it is waited for no more. */
static bool look(const struct ibx_cuda *cuda, struct moment *m, bool gives_up)
{
    if (!ibx_clients_give_begin())
        return false;
    if (m->resets != ibx_copies_resets())
        m->count = 0;
    while (m->count &&
           (gives_up || cuda->event_query(m->events[m->count - 1].event) != IBX_CUDA_NOT_READY))
        cuda->event_destroy(m->events[--m->count].event);
    const bool over = !m->count && !ibx_left_work_any(cuda, 0, m->left);
    ibx_clients_give_end();
    return over;
}

/* What the client has left in the legacy stream was over when the moment began (left_work.c). */
static enum ibx_work give_up(const struct ibx_cuda *cuda, struct moment *m, uint64_t *whose)
{
    uint64_t ns = 0;
    *whose = m->count ? m->events[m->count - 1].client : 0;
    for (look(cuda, m, true); m->count; look(cuda, m, true)) /* a reset is under way */
        ibx_nap(&ns);
    return IBX_WORK_OF_OTHERS;
}

enum ibx_work ibx_work_wait(struct copies *x, uint64_t client, const void *context, unsigned ms,
                            uint64_t *whose)
{
    struct moment m;
    uint64_t ns = 0, deadline = ibx_deadline_in_ms(ms);
    bool over = false;
    *whose = client;
    while (!begin(x->cuda, client, context, &m)) {
        if (ibx_copies_broken() || ibx_now_ns() >= deadline)
            return ibx_copies_broken() ? IBX_WORK_LOST : IBX_WORK_OWN;
        ibx_nap(&ns);
    }
    deadline = ibx_deadline_in_ms(ms);
    for (ns = 0; !(over = look(x->cuda, &m, false)) && ibx_now_ns() < deadline; ibx_nap(&ns))
        if (ibx_copies_broken())
            break;
    enum ibx_work work = over ? IBX_WORK_OVER : IBX_WORK_LOST;
    if (!over && !ibx_copies_broken())
        work = give_up(x->cuda, &m, whose);
    free(m.events);
    return ibx_copies_broken() ? IBX_WORK_LOST : work;
}
