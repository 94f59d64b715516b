/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Streams and events at rest. */
#include "frontend-glue/client_calls/internal.h"

static uint64_t *quiet_since(struct ibx_quiet *quiet, uint64_t handle)
{
    for (unsigned i = 0; i < IBX_QUIET; i++) {
        if (quiet->items[i].epoch && quiet->items[i].handle == handle)
            return &quiet->items[i].epoch;
    }
    return NULL;
}

static void note_quiet(struct ibx_quiet *quiet, uint64_t handle, uint64_t epoch)
{
    uint64_t *known = quiet_since(quiet, handle);
    if (known) {
        *known = epoch;
        return;
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

bool ibx_quiet_holds(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    const uint64_t *since = n == 8 ? quiet_since(quiet_of(p), handle) : NULL;
    return since && *since == ibx_process_epoch() && !atomic_load(&p->failure) &&
           ibx_pipeline_idle(p) && !ibx_process_captures();
}

/* A wait for the device says the same of all streams that were known, if there
 * is but one device. */
void ibx_quiet_learn(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = ibx_get_u64(&r);
    if (p->epoch != ibx_process_epoch())
        return;
    if (p->call->length == 8)
        note_quiet(quiet_of(p), handle, p->epoch);
    for (unsigned i = 0; i < IBX_QUIET && !p->call->length && !ibx_process_devices(); i++) {
        if (p->streams_quiet.items[i].epoch)
            p->streams_quiet.items[i].epoch = p->epoch;
    }
}
