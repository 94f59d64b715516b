/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Two paths through pinned chunks. Staged: the fabric fills or empties them, or they are copied out
 * of a request's message or into a reply's. Pooled: several threads of this process fill or empty
 * them, where the kernel lets it reach the client's memory.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- wires of the fabric */

static int fabric_move(struct copies *x, bool read, unsigned place, unsigned chunk, void *local,
                       uint64_t offset, size_t n)
{
    return ibx_session_post(x->s, read, x->regions[chunk], local, &x->copy.remote,
                            x->copy.remote_at + offset, n, place + 1, 0);
}

static int fabric_read(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                       size_t n)
{
    return fabric_move(context, true, place, chunk, local, offset, n);
}

static int fabric_write(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                        size_t n)
{
    return fabric_move(context, false, place, chunk, local, offset, n);
}

static int take_arrived(struct copies *x, uint32_t *places)
{
    *places = x->arrived & COPIES_PLACES;
    x->arrived &= ~COPIES_PLACES;
    return 0;
}

static int fabric_arrived(void *context, bool wait, uint32_t *places)
{
    struct copies *x = context;
    uint32_t windows = x->arrived & COPIES_WINDOWS;
    int rc = 0;
    do {
        bool none = !(x->arrived & COPIES_PLACES);
        rc = wait && none ? ibx_session_pump(x->s) : ibx_session_poll(x->s);
        if (rc < 0)
            return rc;
    } while (wait && !(x->arrived & COPIES_PLACES) && windows == (x->arrived & COPIES_WINDOWS));
    rc = ibx_session_check_posts(x->s);
    return rc ? rc : take_arrived(x, places);
}

/* ------------------------------------------------------------------- wires of messages */

static int message_read(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                        size_t n)
{
    (void)chunk;
    struct copies *x = context;
    memcpy(local, x->copy.payload + offset, n);
    x->arrived |= 1u << place;
    return 0;
}

static int message_write(void *context, unsigned place, unsigned chunk, void *local,
                         uint64_t offset, size_t n)
{
    (void)chunk;
    (void)offset;
    struct copies *x = context;
    ssize_t rc = ibx_session_write(x->s, local, n);
    if (rc < 0)
        return (int)rc;
    x->arrived |= 1u << place;
    return 0;
}

static int message_arrived(void *context, bool wait, uint32_t *places)
{
    (void)wait;
    return take_arrived(context, places);
}

/* --------------------------------------------------------------------- wires of threads */

static int threads_read(void *context, void *local, uint64_t offset, size_t n)
{
    const struct copies *x = context;
    return ibx_remote_copy(ibx_session_conn(x->s), true, local, &x->copy.remote,
                           x->copy.remote_at + offset, n);
}

static int threads_write(void *context, void *local, uint64_t offset, size_t n)
{
    const struct copies *x = context;
    return ibx_remote_copy(ibx_session_conn(x->s), false, local, &x->copy.remote,
                           x->copy.remote_at + offset, n);
}

static int threads_move(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                        size_t n)
{
    (void)chunk;
    const struct copies *x = context;
    ibx_copy_threads_post(ibx_session_threads(x->s), place, local, offset, n);
    return 0;
}

static int threads_arrived(void *context, bool wait, uint32_t *places)
{
    const struct copies *x = context;
    return ibx_copy_threads_take(ibx_session_threads(x->s), wait, places);
}

static struct ibx_staging_wire threads_begin(struct copies *x, ibx_copy_threads_copy copy)
{
    ibx_copy_threads_begin(ibx_session_threads(x->s), copy, x);
    return (struct ibx_staging_wire){x, threads_move, threads_arrived, NULL,
                                     ibx_session_thread_count(x->s)};
}

/* With the copy's result; a negative one as ibx_session_fail(). */
static int threads_end(struct copies *x, int rc)
{
    ibx_copy_threads_stop(ibx_session_threads(x->s));
    ibx_remote_release(ibx_session_conn(x->s));
    return ibx_session_copied(x->s, rc);
}

/* ------------------------------------------------------------------------------- chunks */

static void tell_staging(struct copies *x, const char *why)
{
    if (!x->told_staging)
        ibx_log(IBX_LOG_WARN, "GVirtuS runs longer copies itself: %s", why);
    x->told_staging = true;
}

/* Registers the chunks in hand with the connection, where that has not been done. */
static bool regions_ready(struct copies *x)
{
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
        if (!x->regions[chunk] && ibx_mr_register(ibx_session_conn(x->s), &span, IBX_ACCESS_LOCAL,
                                                  &x->regions[chunk], &err)) {
            tell_staging(x, err.message);
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

bool ibx_copies_take_chunks(struct copies *x, uint64_t bytes, bool fabric)
{
    struct ibx_error err = {0};
    if (!ibx_copies_lane(x))
        return false;
    if (ibx_pinned_open(x->cuda, x->options.memory, &err)) {
        tell_staging(x, err.message);
        return false;
    }
    if (!ibx_staging_begin(x->staging, bytes))
        return false;
    if (!fabric || regions_ready(x))
        return true;
    ibx_staging_end(x->staging);
    return false;
}

int ibx_copies_staged_outcome(struct copies *x, int rc)
{
    if (rc >= 0) /* otherwise the session has ended, and the pipeline with it */
        ibx_staging_end(x->staging);
    return ibx_copies_outcome(x, rc);
}

int ibx_copies_broke_off(struct copies *x, int code)
{
    return ibx_session_fail(x->s, -EIO, "a copy for %s broke off in the middle of its reply: %s",
                            ibx_session_path(x->s)->peer, ibx_cuda_error_name(x->cuda, code));
}

/* The next n bytes of a reply, as ibx_session_fail(). */
static int deliver(struct copies *x, const struct ibx_staging_wire *wire, size_t n)
{
    int rc = ibx_staging_deliver(x->staging, wire, n);
    return rc > 0 ? ibx_copies_broke_off(x, rc) : rc;
}

/* ------------------------------------------------------------------------------- staged */

static bool staged_able(struct copies *x)
{
    return x->copy.stage == COPY_PART || ibx_gpu_copy_fits(&x->copy.gpu);
}

struct ibx_staging_wire ibx_copies_wire_read(struct copies *x)
{
    return (struct ibx_staging_wire){x, fabric_read, fabric_arrived, NULL, 1};
}

static int staged_to_device(struct copies *x)
{
    bool fabric = x->copy.stage == COPY_FROM_CLIENT;
    struct ibx_staging_wire wire = {x, message_read, message_arrived, NULL, 1};
    if (fabric)
        wire = ibx_copies_wire_read(x);
    if (!ibx_copies_take_chunks(x, x->copy.bytes, fabric))
        return IBX_REQUEST_PASS;
    return ibx_copies_staged_outcome(x, ibx_staging_to_device(x->staging, &wire, &x->copy.gpu));
}

static int staged_part(struct copies *x, size_t n)
{
    struct ibx_staging_wire wire = {x, fabric_write, fabric_arrived, NULL, 1};
    return deliver(x, &wire, n);
}

static int staged_to_client(struct copies *x)
{
    struct ibx_staging_wire wire = {x, fabric_write, fabric_arrived, NULL, 1};
    if (!ibx_copies_take_chunks(x, x->copy.bytes, true))
        return IBX_REQUEST_PASS;
    int rc = ibx_staging_from_device(x->staging, &x->copy.gpu, true);
    if (!rc)
        rc = ibx_staging_deliver(x->staging, &wire, x->copy.bytes);
    return ibx_copies_staged_outcome(x, rc);
}

/* The chunks stay in hand: the first have come from the GPU. */
static int staged_to_reply(struct copies *x)
{
    bool fabric = x->copy.bytes >= ibx_session_caps(x->s)->rendezvous;
    if (!ibx_copies_take_chunks(x, x->copy.bytes, fabric))
        return IBX_REQUEST_PASS;
    int rc = ibx_staging_from_device(x->staging, &x->copy.gpu, !x->straight);
    return rc ? ibx_copies_staged_outcome(x, rc) : IBX_REQUEST_DONE;
}

int ibx_copies_write_staged(struct copies *x, size_t n)
{
    struct ibx_staging_wire wire = {x, message_write, message_arrived, NULL, 1};
    return deliver(x, &wire, n);
}

const struct copy_path ibx_path_staged = {
    .name = "staged",
    .able = staged_able,
    .to_device = staged_to_device,
    .to_client = staged_to_client,
    .to_reply = staged_to_reply,
    .part = staged_part,
};

/* ------------------------------------------------------------------------------- pooled */

/* The kernel may have become unwilling since the last time; posts find another way then. */
static bool pooled_able(struct copies *x)
{
    const struct copy *c = &x->copy;
    return c->held && staged_able(x) && c->reach.copies &&
           c->bytes >= ibx_copies_way(x)->threads_min && ibx_session_threads(x->s) &&
           !ibx_remote_copy(ibx_session_conn(x->s), true, NULL, &c->part, 0, 0);
}

static int pooled_to_device(struct copies *x)
{
    if (!ibx_copies_take_chunks(x, x->copy.bytes, false)) {
        ibx_remote_release(ibx_session_conn(x->s));
        return IBX_REQUEST_PASS;
    }
    struct ibx_staging_wire wire = threads_begin(x, threads_read);
    int rc = ibx_staging_to_device(x->staging, &wire, &x->copy.gpu);
    return ibx_copies_staged_outcome(x, threads_end(x, rc));
}

static int pooled_to_client(struct copies *x)
{
    if (!ibx_copies_take_chunks(x, x->copy.bytes, false)) {
        ibx_remote_release(ibx_session_conn(x->s));
        return IBX_REQUEST_PASS;
    }
    int rc = ibx_staging_from_device(x->staging, &x->copy.gpu, true);
    struct ibx_staging_wire wire = threads_begin(x, threads_write);
    if (!rc)
        rc = ibx_staging_deliver(x->staging, &wire, x->copy.bytes);
    return ibx_copies_staged_outcome(x, threads_end(x, rc));
}

static int pooled_part(struct copies *x, size_t n)
{
    struct ibx_staging_wire wire = threads_begin(x, threads_write);
    int rc = threads_end(x, ibx_staging_deliver(x->staging, &wire, n));
    return rc > 0 ? ibx_copies_broke_off(x, rc) : rc;
}

const struct copy_path ibx_path_pooled = {
    .name = "pooled",
    .holds = true,
    .able = pooled_able,
    .to_device = pooled_to_device,
    .to_client = pooled_to_client,
    .part = pooled_part,
};
