/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies_internal.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- wires */

struct ibx_gpu_copy ibx_copies_copy_of(const struct ibx_frame *f)
{
    bool to_device = f->kind == IBX_FRAME_H2D;
    return (struct ibx_gpu_copy){
        .device = to_device ? f->dst : f->src,
        .device_pitch = to_device ? f->dpitch : f->spitch,
        .host_pitch = to_device ? f->spitch : f->dpitch,
        .width = f->width,
        .height = f->height,
        .stream = f->stream ? (void *)(uintptr_t)f->stream : IBX_CUDA_STREAM_LEGACY,
    };
}

int ibx_copies_post(struct ibx_session *s, bool read, struct ibx_mr *mr, void *local, uint64_t at,
                    size_t n, uint64_t cookie, unsigned flags)
{
    const struct ibx_remote *remote = &s->copies.remote;
    int rc = read ? ibx_read(s->conn, mr, local, remote, at, n, cookie, flags)
                  : ibx_write(s->conn, mr, local, remote, at, n, cookie, flags);
    if (rc)
        return ibx_session_fail(s, rc, "%s of %zu bytes with %s failed: %s",
                                read ? "READ" : "WRITE", n, s->path.peer, strerror(-rc));
    s->ops_pending++;
    return 0;
}

static int fabric_read(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                       size_t n)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    return ibx_copies_post(s, true, x->regions[chunk], local, x->remote_at + offset, n, place + 1,
                           0);
}

static int fabric_write(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                        size_t n)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    return ibx_copies_post(s, false, x->regions[chunk], local, x->remote_at + offset, n, place + 1,
                           0);
}

static int fabric_arrived(void *context, bool wait, uint32_t *places)
{
    struct ibx_session *s = context;
    struct copies *x = &s->copies;
    uint32_t windows = x->arrived & COPIES_WINDOWS;
    int rc = 0;
    do {
        rc = wait && !(x->arrived & COPIES_PLACES) ? ibx_session_pump(s) : ibx_session_poll(s);
        if (rc < 0)
            return rc;
    } while (wait && !(x->arrived & COPIES_PLACES) && windows == (x->arrived & COPIES_WINDOWS));
    if (s->ops_status)
        return ibx_session_fail(s, s->ops_status, "copying with %s failed: %s", s->path.peer,
                                strerror(-s->ops_status));
    *places = x->arrived & COPIES_PLACES;
    x->arrived &= ~COPIES_PLACES;
    return 0;
}

struct ibx_staging_wire ibx_copies_wire_read(struct ibx_session *s)
{
    return (struct ibx_staging_wire){s, fabric_read, fabric_arrived, NULL, 1};
}

struct ibx_staging_wire ibx_copies_wire_write(struct ibx_session *s)
{
    return (struct ibx_staging_wire){s, fabric_write, fabric_arrived, NULL, 1};
}

static int memory_read(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                       size_t n)
{
    (void)chunk;
    struct ibx_session *s = context;
    memcpy(local, s->copies.payload + offset, n);
    s->copies.arrived |= 1u << place;
    return 0;
}

static int message_write(void *context, unsigned place, unsigned chunk, void *local,
                         uint64_t offset, size_t n)
{
    (void)chunk;
    (void)offset;
    struct ibx_session *s = context;
    ssize_t rc = ibx_session_write(s, local, n);
    if (rc < 0)
        return (int)rc;
    s->copies.arrived |= 1u << place;
    return 0;
}

static int memory_arrived(void *context, bool wait, uint32_t *places)
{
    (void)wait;
    struct ibx_session *s = context;
    *places = s->copies.arrived & COPIES_PLACES;
    s->copies.arrived &= ~COPIES_PLACES;
    return 0;
}

struct ibx_staging_wire ibx_copies_wire_from_message(struct ibx_session *s)
{
    return (struct ibx_staging_wire){s, memory_read, memory_arrived, NULL, 1};
}

struct ibx_staging_wire ibx_copies_wire_to_message(struct ibx_session *s)
{
    return (struct ibx_staging_wire){s, message_write, memory_arrived, NULL, 1};
}

/* ------------------------------------------------------------------------ staging */

static void say_poor(struct copies *x, const char *why)
{
    if (!x->poor)
        ibx_log(IBX_LOG_WARN, "GVirtuS runs longer copies itself: %s", why);
    x->poor = true;
}

/* Registers the chunks in hand with the connection, where that has not been done. */
static bool regions_ready(struct ibx_session *s)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    if (!x->regions) {
        x->regions = calloc(ibx_pinned_count(), sizeof(*x->regions));
        if (!x->regions)
            return false;
        x->region_count = ibx_pinned_count();
    }
    for (unsigned i = 0; i < ibx_staging_chunks(x->staging); i++) {
        unsigned chunk = ibx_staging_chunk(x->staging, i);
        struct ibx_span span = ibx_span_host(ibx_pinned_payload(chunk), IBX_PINNED_CHUNK);
        if (!x->regions[chunk] &&
            ibx_mr_register(s->conn, &span, IBX_ACCESS_LOCAL, &x->regions[chunk], &err)) {
            say_poor(x, err.message);
            return false;
        }
    }
    return true;
}

struct ibx_staging *ibx_copies_lane(struct copies *x)
{
    if (!x->staging && ibx_staging_create(x->cuda, &x->staging, NULL))
        return NULL;
    ibx_staging_set_chunk(x->staging, x->choice.chunk);
    ibx_copies_handle_resets(x);
    return x->staging;
}

bool ibx_copies_stage(struct ibx_session *s, uint64_t bytes, bool fabric)
{
    struct copies *x = &s->copies;
    struct ibx_error err = {0};
    if (!ibx_copies_lane(x))
        return false;
    if (ibx_pinned_open(x->cuda, x->options.memory, &err)) {
        say_poor(x, err.message);
        return false;
    }
    if (!ibx_staging_begin(x->staging, bytes))
        return false;
    if (!fabric || regions_ready(s))
        return true;
    ibx_staging_end(x->staging);
    return false;
}

int ibx_copies_outcome(const struct copies *x, int rc)
{
    if (rc <= 0)
        return rc ? rc : DONE;
    if (rc != IBX_STAGING_REFUSED)
        ibx_log(IBX_LOG_DEBUG, "a copy goes to GVirtuS: %s", ibx_cuda_error_name(x->cuda, rc));
    return PASS;
}

int ibx_copies_stage_end(struct copies *x, int rc)
{
    if (rc >= 0)
        ibx_staging_end(x->staging);
    return ibx_copies_outcome(x, rc);
}
