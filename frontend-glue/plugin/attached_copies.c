/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The preload's copies, over the connection of the thread that makes them. They are gathered in its
 * pipeline, sent without waiting for their end, made in the background, or made between two
 * requests.
 */
#include "frontend-glue/plugin/attached.h"

#include "common/handlers.h"
#include "common/wire.h"
#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/plugin/host_memory.h"

#include <errno.h>

#define SHORT_COPY       1900u       /* bytes of a copy that go in its request */
#define BACKGROUND_LEAST (64u << 10) /* a shorter copy ends before another thread begins */

/* Starts the copy in the background. False: it has to be run in this thread. */
static bool run_in_background(const struct ibx_session *session,
                              const struct ibx_frontend_copy *copy)
{
    if (!copy->async || !copy->pinned || copy->lasting || copy->checked ||
        copy->stream <= IBX_ASYNC_COPY_STREAM_SPECIAL ||
        (copy->n < BACKGROUND_LEAST && !ibx_async_copy_pending(copy->stream)))
        return false;
    /* The copy goes over another connection. */
    ibx_pipeline_settle(ibx_attached->pipeline, copy->stream);
    const bool started =
        ibx_attached_live(session) && ibx_async_copy_start(session, copy, ibx_attached->device);
    ibx_pipeline_elsewhere();
    return started;
}

/* An asynchronous copy from the device into lasting memory was answered before it was made, or
 * kernels can write to such memory. */
static atomic_bool left_for_later;

void ibx_attached_changes_memory(void)
{
    atomic_store(&left_for_later, true);
}

/* Whether nothing is left that the copy comes after: no work of its stream and, unless the stream
 * is a non-blocking one, which is not known here, of the legacy stream. */
static bool order_rests(uint64_t stream)
{
    struct ibx_pipeline *const pipeline = ibx_attached->pipeline;
    return stream > IBX_ASYNC_COPY_STREAM_SPECIAL
               ? ibx_pipeline_rests(pipeline, stream) && ibx_pipeline_legacy_rests(pipeline)
               : ibx_pipeline_all_rests(pipeline);
}

/* Whether earlier work may still change the copy's bytes: then the back end has to read them in the
 * stream's order. */
static bool may_change(const struct ibx_frontend_copy *copy)
{
    return copy->to_device && atomic_load(&left_for_later) &&
           (copy->lasting || ibx_shared_holds(copy->host, copy->n)) && !order_rests(copy->stream);
}

/* Turns a copy into an asynchronous one in the legacy stream that is waited for. */
static void put_in_order(struct ibx_frontend_copy *copy)
{
    copy->async = copy->lasting = copy->settle = true;
    copy->stream = 0;
}

static const char *name_of(const struct ibx_frontend_copy *copy)
{
    return copy->async ? "cudaMemcpyAsync" : "cudaMemcpy";
}

/* Runs a short copy to the device in the pipeline, with its bytes in the request. False: it was not
 * run. */
static bool run_in_pipeline(const struct ibx_frontend_copy *copy, int *exit_code)
{
    uint8_t body[SHORT_COPY + 36];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    if (!copy->to_device || copy->rows || copy->n > SHORT_COPY || copy->checked ||
        ibx_async_copy_any() || may_change(copy))
        return false;
    ibx_put_u64(&w, copy->device);
    ibx_put_u64(&w, copy->n);
    ibx_put_bytes(&w, copy->host, copy->n);
    ibx_put_u64(&w, copy->n);
    ibx_put_u32(&w, IBX_FRAME_H2D);
    if (copy->async)
        ibx_put_u64(&w, copy->stream);
    const struct ibx_pipeline_request request = {
        .name = name_of(copy), .body = body, .n = w.length};
    return !ibx_pipeline_call(ibx_attached->pipeline, &request, exit_code);
}

/* Runs a longer synchronous copy to the device that natively waits only for its own bytes: sends
 * it, and returns before the back end has made it. False: it was not run. */
static bool run_ahead(struct ibx_session *session, const struct ibx_frontend_copy *copy,
                      int *exit_code)
{
    if (copy->async || !copy->to_device || copy->rows || ibx_async_copy_any() || may_change(copy))
        return false;
    *exit_code = 0;
    if (ibx_pipeline_copy_gathered(ibx_attached->pipeline, copy->device, copy->host, copy->n))
        return true;
    /* The connection monitor may continue the session over another connection meanwhile. */
    ibx_pipeline_lock(ibx_attached->pipeline);
    const bool can = ibx_client_can_go_ahead(session, copy);
    ibx_pipeline_unlock(ibx_attached->pipeline);
    if (!can || !ibx_pipeline_copy_begin(ibx_attached->pipeline, copy->device, copy->n))
        return false;
    ibx_client_go_ahead(session, copy, exit_code);
    ibx_pipeline_copy_end(ibx_attached->pipeline);
    return true;
}

static int run_alone(struct ibx_session *session, struct ibx_frontend_copy *copy, int *exit_code)
{
    copy->lasting = false; /* its bytes have come when the call returns */
    ibx_pipeline_enter_alone(ibx_attached->pipeline);
    const int rc = ibx_client_copy(session, copy, exit_code);
    const int code = ibx_pipeline_leave(ibx_attached->pipeline, rc ? 0 : *exit_code, false);
    if (!rc)
        *exit_code = code;
    return rc;
}

static int run_whole(const struct ibx_frontend_copy *wish, int *exit_code);

/* Rows are read here, not in the stream's order: so this waits for earlier work that may still
 * change them, by a copy of one byte back in the order of the legacy stream. */
static int wait_for_rows(const struct ibx_frontend_copy *rows, int *exit_code)
{
    uint8_t byte;
    const struct ibx_frontend_copy back = {.device = rows->device, .host = &byte, .n = 1};
    return run_whole(&back, exit_code);
}

static int run_whole(const struct ibx_frontend_copy *wish, int *exit_code)
{
    struct ibx_session *session = ibx_attached_session();
    struct ibx_frontend_copy copy = *wish;
    if (!session)
        return -ENOTCONN;
    if (copy.alone)
        return run_alone(session, &copy, exit_code);
    if (run_in_pipeline(&copy, exit_code) || run_ahead(session, &copy, exit_code))
        return 0;
    /* The back end maps such memory only over shm. */
    copy.lasting = copy.lasting && ibx_attached_over_shm(session);
    if (run_in_background(session, &copy)) {
        *exit_code = 0;
        return 0;
    }
    if (copy.async && copy.lasting && !copy.to_device)
        atomic_store(&left_for_later, true);
    int rc;
    if (!copy.async && copy.rows && may_change(&copy) &&
        ((rc = wait_for_rows(&copy, exit_code)) || *exit_code))
        return rc;
    if (!copy.async && !copy.rows && may_change(&copy) && ibx_attached_over_shm(session))
        put_in_order(&copy);
    ibx_async_copy_wait(copy.async ? copy.stream : 0);
    ibx_pipeline_enter(ibx_attached->pipeline, copy.async ? copy.stream : 0, wish->async);
    rc = ibx_client_copy(session, &copy, exit_code);
    int code = ibx_pipeline_leave(ibx_attached->pipeline, rc ? 0 : *exit_code, !rc && !wish->async);
    if (!rc)
        *exit_code = code;
    if (!rc && !code && copy.to_device && !copy.rows)
        ibx_pipeline_learn(ibx_attached->pipeline, name_of(&copy));
    if (!rc && !code && !wish->async && !copy.to_device)
        ibx_pipeline_settled(ibx_attached->pipeline);
    return rc;
}

static int run_watched(const struct ibx_frontend_copy *wish, int *exit_code)
{
    const struct ibx_frontend_watch *watch =
        atomic_load_explicit(&ibx_attached_watcher, memory_order_acquire);
    if (watch && watch->withheld(wish))
        return -ENOTCONN;
    bool works = false;
    int rc = 0;
    if (watch && ibx_attached_session())
        *exit_code = watch->copy(wish, &works);
    if (!works || !*exit_code)
        rc = run_whole(wish, exit_code);
    if (works)
        watch->over();
    return rc;
}

int ibx_attached_copy(const struct ibx_frontend_copy *wish, int *exit_code)
{
    struct ibx_host_copy copy;
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_host_copy_begins(&copy, wish);
    const int rc = run_watched(wish, exit_code);
    ibx_host_copy_ends(&copy);
    ibx_inside_end(inside);
    return rc;
}
