/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Streams and events at rest. */
#include "frontend-glue/client_calls/internal.h"

static const uint64_t *quiet_since(const struct ibx_quiet *quiet, uint64_t handle)
{
    for (unsigned i = 0; i < IBX_QUIET; i++) {
        if (quiet->items[i].epoch && quiet->items[i].handle == handle)
            return &quiet->items[i].epoch;
    }
    return NULL;
}

static void note_quiet(struct ibx_quiet *quiet, uint64_t handle, uint64_t epoch)
{
    for (unsigned i = 0; i < IBX_QUIET; i++) {
        if (quiet->items[i].epoch && quiet->items[i].handle == handle) {
            quiet->items[i].epoch = epoch;
            return;
        }
    }
    quiet->items[quiet->next].handle = handle;
    quiet->items[quiet->next].epoch = epoch;
    quiet->next = (quiet->next + 1) % IBX_QUIET;
}

/* What a query is about: a stream or an event, by its only argument. */
static struct ibx_quiet *quiet_of(struct ibx_pipeline *p)
{
    return p->call->event ? &p->events_quiet : &p->streams_quiet;
}

bool ibx_quiet_holds(struct ibx_pipeline *p, const struct ibx_quiet *quiet, uint64_t handle)
{
    const uint64_t *since = quiet_since(quiet, handle);
    return since && *since == ibx_process_epoch() && !atomic_load(&p->failure) &&
           ibx_pipeline_idle(p) && !ibx_process_captures();
}

bool ibx_quiet_answers(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    return n == 8 && ibx_quiet_holds(p, quiet_of(p), handle);
}

bool ibx_quiet_device(const struct ibx_pipeline *p)
{
    return p->rests && p->rests == ibx_process_epoch() && !atomic_load(&p->failure) &&
           !ibx_process_captures() && !ibx_process_devices();
}

/* A wait for all work says of all streams that were known that they have none. */
static void learn_device(struct ibx_pipeline *p)
{
    if (ibx_process_devices())
        return;
    p->rests = p->epoch;
    for (unsigned i = 0; i < IBX_QUIET; i++) {
        if (p->streams_quiet.items[i].epoch)
            p->streams_quiet.items[i].epoch = p->epoch;
    }
}

void ibx_quiet_learn(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    if (p->epoch != ibx_process_epoch())
        return;
    if (p->call->stream_at == IBX_CALL_ALL_STREAMS)
        learn_device(p);
    else if (p->call->length == 8)
        note_quiet(quiet_of(p), handle, p->epoch);
}
