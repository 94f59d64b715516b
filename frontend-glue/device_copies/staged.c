/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Two paths through pinned chunks. staged: the fabric fills or empties the chunks, or they are
 * copied out of a request's message or into a reply's. copy_threads: several threads of this
 * process copy, if the kernel lets it reach the client's memory.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- wires */

static bool to_device(const struct gpu_session *x)
{
    return x->copy.stage <= COPY_FROM_CLIENT;
}

/* Called in any of the copy threads. */
static int threads_copy(void *context, void *local, uint64_t offset, size_t n)
{
    const struct gpu_session *x = context;
    return ibx_remote_copy(ibx_session_conn(x->s), to_device(x), local, &x->copy.part, offset, n);
}

static int wire_move(void *context, unsigned slot, unsigned chunk, void *local, uint64_t offset,
                     size_t n)
{
    struct gpu_session *x = context;
    const struct copy *c = &x->copy;
    if (c->wire == COPY_WIRE_FABRIC)
        return ibx_session_post(x->s, &(struct ibx_session_op){.read = to_device(x),
                                                               .mr = x->regions[chunk],
                                                               .local = local,
                                                               .remote = &c->remote,
                                                               .offset = c->remote_at + offset,
                                                               .n = n,
                                                               .cookie = slot + 1});
    if (c->wire == COPY_WIRE_THREADS) {
        ibx_copy_threads_post(ibx_session_threads(x->s), slot, local, offset, n);
        return 0;
    }
    x->arrived |= 1u << slot;
    if (to_device(x)) {
        memcpy(local, c->payload + offset, n);
        return 0;
    }
    ssize_t rc = ibx_session_write(x->s, local, n);
    return rc < 0 ? (int)rc : 0;
}

static int fabric_arrived(struct gpu_session *x, bool wait)
{
    uint32_t windows = x->arrived & COPIES_WINDOWS;
    int rc;
    do {
        bool none = !(x->arrived & COPIES_SLOTS);
        rc = wait && none ? ibx_session_pump(x->s) : ibx_session_poll(x->s);
        if (rc < 0)
            return rc;
    } while (wait && !(x->arrived & COPIES_SLOTS) && windows == (x->arrived & COPIES_WINDOWS));
    return ibx_session_check_posts(x->s);
}

static int wire_arrived(void *context, bool wait, uint32_t *slots)
{
    struct gpu_session *x = context;
    if (x->copy.wire == COPY_WIRE_THREADS)
        return ibx_copy_threads_take(ibx_session_threads(x->s), wait, slots);
    int rc = x->copy.wire == COPY_WIRE_FABRIC ? fabric_arrived(x, wait) : 0;
    if (rc)
        return rc;
    *slots = x->arrived & COPIES_SLOTS;
    x->arrived &= ~COPIES_SLOTS;
    return 0;
}

struct ibx_staging_wire ibx_copies_wire(struct gpu_session *x, enum copy_wire wire)
{
    const bool by_threads = wire == COPY_WIRE_THREADS;
    x->copy.wire = wire;
    if (by_threads)
        ibx_copy_threads_begin(ibx_session_threads(x->s), threads_copy, x);
    return (struct ibx_staging_wire){x, wire_move, wire_arrived, NULL,
                                     by_threads ? ibx_session_thread_count(x->s) : 1};
}

/* Ends the use of the wire. `rc` is the result of that use; returns it, or an error as
 * ibx_session_fail(). */
static int wire_end(struct gpu_session *x, int rc)
{
    if (x->copy.wire != COPY_WIRE_THREADS)
        return rc;
    ibx_copy_threads_stop(ibx_session_threads(x->s));
    ibx_remote_release(ibx_session_conn(x->s));
    return ibx_session_copied(x->s, rc);
}

/* ------------------------------------------------------------------------------- chunks */

static void tell_staging(struct gpu_session *x, const char *why)
{
    if (!x->logged_staging)
        ibx_log(IBX_LOG_WARN, "GVirtuS runs longer copies itself: %s", why);
    x->logged_staging = true;
}

/* Registers the chunks in hand with the connection, unless they are. False: that fails. */
static bool regions_ready(struct gpu_session *x)
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

struct ibx_staging *ibx_copies_staging(struct gpu_session *x)
{
    if (!x->staging && ibx_staging_create(x->cuda, &x->staging))
        return NULL;
    ibx_staging_set_turn(x->staging, &x->turn);
    ibx_staging_set_chunk(x->staging, x->choice.chunk);
    if (!ibx_staging_chunks(x->staging) && x->isolation.tenant)
        ibx_staging_set_quota(x->staging, ibx_tenant_quota(x->isolation.tenant, IBX_HOLD_CHUNKS));
    ibx_back_end_handle_resets(x);
    return x->staging;
}

bool ibx_copies_take_chunks(struct gpu_session *x, uint64_t bytes, bool fabric)
{
    struct ibx_error err = {0};
    if (!ibx_copies_staging(x))
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

int ibx_copies_staged_outcome(struct gpu_session *x, int rc)
{
    if (rc >= 0) /* otherwise the session has ended, and the pipeline with it */
        ibx_staging_end(x->staging);
    return ibx_copies_outcome(x, rc);
}

/* ------------------------------------------------------------------------- either path */

/* What fills the chunks on the path that was chosen. */
static enum copy_wire wire_of(const struct gpu_session *x)
{
    if (x->copy.path == PATH_COPY_THREADS)
        return COPY_WIRE_THREADS;
    return x->copy.stage == COPY_FROM_MESSAGE ? COPY_WIRE_MESSAGE : COPY_WIRE_FABRIC;
}

static bool chunks_taken(struct gpu_session *x)
{
    enum copy_wire wire = wire_of(x);
    bool taken = ibx_copies_take_chunks(x, x->copy.bytes, wire == COPY_WIRE_FABRIC);
    if (!taken && wire == COPY_WIRE_THREADS)
        ibx_remote_release(ibx_session_conn(x->s));
    return taken;
}

static int run_to_device(struct gpu_session *x)
{
    if (!chunks_taken(x))
        return IBX_REQUEST_PASS;
    struct ibx_staging_wire wire = ibx_copies_wire(x, wire_of(x));
    int rc = ibx_staging_to_device(x->staging, &wire, &x->copy.gpu);
    return ibx_copies_staged_outcome(x, wire_end(x, rc));
}

/* A copy that is overdue keeps its chunks: it is begun again with others, as often as the GPU has
 * made the overdue ones by then and does not begin this one either. */
static int begin_from_device(struct gpu_session *x, bool ahead, bool fabric)
{
    int rc = ibx_staging_from_device(x->staging, &x->copy.gpu, ahead);
    while (rc == IBX_STAGING_OVERDUE)
        rc = ibx_copies_take_chunks(x, x->copy.bytes, fabric)
                 ? ibx_staging_from_device(x->staging, &x->copy.gpu, ahead)
                 : IBX_STAGING_REFUSED;
    return rc;
}

static int run_to_client(struct gpu_session *x)
{
    if (!chunks_taken(x))
        return IBX_REQUEST_PASS;
    struct ibx_staging_wire wire = ibx_copies_wire(x, wire_of(x));
    int rc = begin_from_device(x, true, x->copy.wire == COPY_WIRE_FABRIC);
    if (!rc)
        rc = ibx_staging_deliver(x->staging, &wire, x->copy.bytes);
    return ibx_copies_staged_outcome(x, wire_end(x, rc));
}

static int deliver(struct gpu_session *x, enum copy_wire by, size_t n)
{
    struct ibx_staging_wire wire = ibx_copies_wire(x, by);
    int rc = wire_end(x, ibx_staging_deliver(x->staging, &wire, n));
    return rc > 0 ? ibx_copies_broke_off(x, rc) : rc;
}

static int run_part(struct gpu_session *x, size_t n)
{
    return deliver(x, wire_of(x), n);
}

int ibx_copies_write_staged(struct gpu_session *x, size_t n)
{
    return deliver(x, COPY_WIRE_MESSAGE, n);
}

static bool staged_able(struct gpu_session *x)
{
    return x->copy.stage == COPY_PART || ibx_gpu_copy_fits(&x->copy.gpu);
}

/* Keeps the chunks: the first bytes have come from the GPU into them. */
static int staged_to_reply(struct gpu_session *x)
{
    bool fabric = x->copy.bytes >= ibx_session_caps(x->s)->rendezvous;
    if (!ibx_copies_take_chunks(x, x->copy.bytes, fabric))
        return IBX_REQUEST_PASS;
    int rc = begin_from_device(x, !x->last_in_place, fabric);
    return rc ? ibx_copies_staged_outcome(x, rc) : IBX_REQUEST_DONE;
}

const struct copy_path ibx_path_staged = {
    .able = staged_able,
    .to_device = run_to_device,
    .to_client = run_to_client,
    .to_reply = staged_to_reply,
    .part = run_part,
};

/* Tries a copy of 0 bytes, since the kernel may refuse by now; the fabric can copy then. */
static bool copy_threads_able(struct gpu_session *x)
{
    const struct copy *c = &x->copy;
    return c->held && staged_able(x) && c->reach.copies &&
           c->bytes >= ibx_copies_way(x)->copy_threads_min && ibx_session_threads(x->s) &&
           !ibx_remote_copy(ibx_session_conn(x->s), true, NULL, &c->part, 0, 0);
}

const struct copy_path ibx_path_copy_threads = {
    .holds = true,
    .able = copy_threads_able,
    .to_device = run_to_device,
    .to_client = run_to_client,
    .part = run_part,
};
