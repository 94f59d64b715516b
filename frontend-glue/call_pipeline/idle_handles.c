/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Streams without work, and events that have completed. */
#include "frontend-glue/call_pipeline/internal.h"

static const uint64_t *idle_since(const struct ibx_idle *idle, uint64_t handle)
{
    for (unsigned i = 0; i < IBX_IDLE; i++) {
        if (idle->items[i].epoch && idle->items[i].handle == handle)
            return &idle->items[i].epoch;
    }
    return NULL;
}

static void note_idle(struct ibx_idle *idle, uint64_t handle, uint64_t epoch)
{
    for (unsigned i = 0; i < IBX_IDLE; i++) {
        if (idle->items[i].epoch && idle->items[i].handle == handle) {
            idle->items[i].epoch = epoch;
            return;
        }
    }
    idle->items[idle->next].handle = handle;
    idle->items[idle->next].epoch = epoch;
    idle->next = (idle->next + 1) % IBX_IDLE;
}

/* The list for a query's only argument: streams or events. */
static struct ibx_idle *idle_of(struct ibx_pipeline *p)
{
    return p->call->event ? &p->events_idle : &p->streams_idle;
}

bool ibx_idle_holds(struct ibx_pipeline *p, const struct ibx_idle *idle, uint64_t handle)
{
    const uint64_t *since = idle_since(idle, handle);
    return since && *since == ibx_process_epoch() && !atomic_load(&p->failure) &&
           ibx_pipeline_idle(p) && !ibx_process_captures() && !ibx_process_is_broken();
}

bool ibx_idle_answers(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    return n == 8 && ibx_idle_holds(p, idle_of(p), handle);
}

bool ibx_idle_device(const struct ibx_pipeline *p)
{
    return p->rests && p->rests == ibx_process_epoch() && !atomic_load(&p->failure) &&
           !ibx_process_captures() && !ibx_process_is_broken() && !ibx_process_devices();
}

/* After a wait for all work no stream has any. */
static void learn_device(struct ibx_pipeline *p)
{
    if (ibx_process_devices())
        return;
    p->rests = p->effects.epoch;
    for (unsigned i = 0; i < IBX_IDLE; i++) {
        if (p->streams_idle.items[i].epoch)
            p->streams_idle.items[i].epoch = p->effects.epoch;
    }
}

void ibx_idle_learn(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    if (p->effects.epoch != ibx_process_epoch())
        return;
    if (p->call->stream_at == IBX_CALL_ALL_STREAMS)
        learn_device(p);
    else if (p->call->length == 8)
        note_idle(idle_of(p), handle, p->effects.epoch);
}
