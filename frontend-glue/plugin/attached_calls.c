/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table that the preload gets (attach_table.h): calls over the thread's session. */
#include "frontend-glue/plugin/attached.h"

#include "common/handlers.h"
#include "common/log.h"
#include "common/wire.h"
#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/plugin/host_memory.h"
#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/hooks.h"
#include "frontend-glue/session/math_calls.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_bool over_shm; /* the path of the last connection */

/* The stream of a request that ends with it. */
static uint64_t last_word(const struct ibx_frontend_request *request)
{
    struct ibx_reader r = ibx_reader_of(request->body, request->n);
    if (request->n > 8)
        ibx_get_bytes(&r, request->n - 8);
    return ibx_get_u64(&r);
}

static bool begins_capture(const struct ibx_frontend_request *request)
{
    struct ibx_reader r = ibx_reader_of(request->body, request->n);
    return !strcmp(request->name, IBX_EXT_NAME) && ibx_get_u16(&r) == IBX_EXT_CAPTURE_INTO;
}

/* While there are copies in the background, GVirtuS has to make the call: ibx_attachment_on_write()
 * waits for them. */
static int make_call_inside(const struct ibx_frontend_request *request, int *exit_code)
{
    const struct ibx_pipeline_request call = {request->name, request->body,  request->n,
                                              request->out,  request->out_n, request->unseen};
    if (!ibx_attached_session())
        return -ENOTCONN;
    if (begins_capture(request)) /* ibx_attachment_on_write() sees other captures begin */
        ibx_async_copy_forbid();
    if (!strcmp(request->name, IBX_EXT_NAME) || ibx_math_is(request->name)) /* all copies */
        ibx_async_copy_wait(0);
    else if (!strcmp(request->name, IBX_EXT_QUEUE))
        ibx_async_copy_wait(last_word(request));
    else if (ibx_async_copy_any() && strcmp(request->name, IBX_EXT_WORK) != 0)
        return -ENOTCONN;
    const struct ibx_frontend_watch *watch =
        atomic_load_explicit(&ibx_attached_watcher, memory_order_acquire);
    bool works = false;
    int rc = 0;
    if (watch)
        *exit_code = watch->request(request->name, request->body, request->n, &works);
    if (!works || !*exit_code)
        rc = ibx_pipeline_call(ibx_attached->pipeline, &call, exit_code);
    if (works)
        watch->over();
    return rc;
}

static int make_call(const struct ibx_frontend_request *request, int *exit_code)
{
    const struct ibx_inside inside = ibx_inside_begin();
    const int rc = make_call_inside(request, exit_code);
    ibx_inside_end(inside);
    return rc;
}

static int make_last_call(const struct ibx_frontend_request *request, unsigned ms, int *exit_code)
{
    if (!ibx_attached_session() || !ibx_pipeline_limit(ibx_attached->pipeline, ms))
        return -ENOTCONN;
    const int rc = make_call(request, exit_code);
    ibx_pipeline_unlimit(ibx_attached->pipeline);
    return rc;
}

static void unseen(bool launch)
{
    if (ibx_attached_session())
        ibx_pipeline_unseen(ibx_attached->pipeline, launch);
}

static bool divert(void)
{
    return ibx_attached_session() && ibx_pipeline_divert(ibx_attached->pipeline);
}

static const void *diverted(size_t *n)
{
    return ibx_attached_session() ? ibx_pipeline_diverted(ibx_attached->pipeline, n) : NULL;
}

static bool knows_printed(int *answer)
{
    const enum ibx_printed told = ibx_session_take_printed(ibx_attached_session());
    *answer = told == IBX_PRINTED_SOME;
    return told != IBX_PRINTED_UNKNOWN;
}

static bool knows_now(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    switch (fact) {
    case IBX_FRONTEND_NO_ERROR:
        return ibx_pipeline_has_no_error(ibx_attached->pipeline);
    case IBX_FRONTEND_DEVICE:
        return ibx_pipeline_device(ibx_attached->pipeline, answer);
    case IBX_FRONTEND_SELECTED:
        return ibx_pipeline_selected(ibx_attached->pipeline, (int)handle);
    case IBX_FRONTEND_STREAM_RESTS:
        return ibx_pipeline_rests(ibx_attached->pipeline, handle);
    case IBX_FRONTEND_LEGACY_RESTS:
        return ibx_pipeline_legacy_rests(ibx_attached->pipeline);
    case IBX_FRONTEND_ALL_RESTS: /* see knows() */
    case IBX_FRONTEND_DEVICE_RESTS:
    case IBX_FRONTEND_PRINTED:
    case IBX_FRONTEND_BROKEN:
        break;
    case IBX_FRONTEND_EVENT_OVER:
        return ibx_pipeline_is_over(ibx_attached->pipeline, handle);
    case IBX_FRONTEND_EVENT_PENDING:
        return ibx_pipeline_is_pending(ibx_attached->pipeline, handle);
    case IBX_FRONTEND_LEAVES:
        return ibx_attached_over_shm(ibx_attached_session()) &&
               ibx_client_leaves_surely(ibx_attached_session(), (size_t)handle);
    case IBX_FRONTEND_SHARED:
        return ibx_attached_over_shm(ibx_attached_session()) &&
               (!handle || ibx_shared_holds((void *)(uintptr_t)handle, 1));
    case IBX_FRONTEND_NONE_KNOWN:
        return ibx_pipeline_knows_no_error(ibx_attached->pipeline);
    case IBX_FRONTEND_NONE_LATE:
        return ibx_pipeline_has_no_late_error(ibx_attached->pipeline);
    case IBX_FRONTEND_ERRORS:
        return ibx_pipeline_errors(ibx_attached->pipeline, answer);
    case IBX_FRONTEND_ANSWERED:
        return ibx_pipeline_answered(ibx_attached->pipeline, answer);
    case IBX_FRONTEND_FAILURES:
        return ibx_pipeline_failures(ibx_attached->pipeline, (unsigned)handle, answer);
    case IBX_FRONTEND_LAUNCH_FAILURE:
        return ibx_pipeline_launch_failure(ibx_attached->pipeline, answer);
    case IBX_FRONTEND_LOSSES:
        *answer = (int)ibx_pipeline_server_ends();
        return true;
    case IBX_FRONTEND_SERVER:
        *answer = (int)ibx_pipeline_server(ibx_attached->pipeline);
        return true;
    }
    return false;
}

static bool knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    if (fact == IBX_FRONTEND_BROKEN) /* also of a thread that has no session yet */
        return ibx_pipeline_broken_by(answer);
    if (!ibx_attached_session())
        return false;
    if (fact == IBX_FRONTEND_PRINTED)
        return knows_printed(answer);
    if (ibx_async_copy_any())
        return false;
    if (fact == IBX_FRONTEND_ALL_RESTS) /* is asked often, and sends nothing */
        return ibx_pipeline_all_rests(ibx_attached->pipeline);
    if (fact == IBX_FRONTEND_DEVICE_RESTS)
        return ibx_pipeline_device_rests(ibx_attached->pipeline);
    const struct ibx_inside inside = ibx_inside_begin(); /* a backlog may be sent in here */
    const bool known = knows_now(fact, handle, answer);
    ibx_inside_end(inside);
    return known;
}

static void prepare(void *address, size_t n)
{
    struct ibx_session *session = ibx_attached_session();
    if (!session)
        return;
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_pipeline_enter(ibx_attached->pipeline, 0, false);
    ibx_session_prepare(session, address, n);
    ibx_pipeline_leave(ibx_attached->pipeline, 0, false);
    ibx_inside_end(inside);
}

/* Over shm: memory that the back end maps, and pins in the background. Page-locked memory takes its
 * time natively, too, and then copies at once. Over other paths: memory whose registration can be
 * cached. */
static void *allocate_inside(size_t n)
{
    void *address = atomic_load(&over_shm) ? ibx_shared_allocate(n, NULL) : NULL;
    if (!address)
        address = ibx_host_memory_map(n);
    if (address)
        prepare(address, n);
    else
        ibx_log(IBX_LOG_WARN, "the application gets no %zu bytes of page-locked memory: %s", n,
                strerror(errno));
    return address;
}

static void *allocate(size_t n)
{
    const struct ibx_inside inside = ibx_inside_begin();
    void *address = allocate_inside(n);
    ibx_inside_end(inside);
    return address;
}

static int ask_for_map(const struct ibx_writer *body, int *exit_code)
{
    const struct ibx_frontend_request request = {
        .name = IBX_EXT_NAME, .body = body->data, .n = body->length};
    return make_call(&request, exit_code);
}

static int stand_in(void *address, size_t n, bool on, int *exit_code)
{
    uint8_t body[32];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    uint64_t offset;
    if (ibx_shared_offset(address, n, &offset)) /* not for shared memory, which only reach() maps */
        return -EOPNOTSUPP;
    ibx_put_u16(&w, on ? IBX_EXT_HOST_MAP : IBX_EXT_HOST_UNMAP);
    ibx_put_u64(&w, (uintptr_t)address);
    if (on) {
        ibx_put_u64(&w, n);
        ibx_put_u64(&w, IBX_EXT_OWN_PAGES);
    }
    return ask_for_map(&w, exit_code);
}

/* Once kernels can reach the memory, they may write to it without a call: later copies from such
 * memory are made in the order of their streams. */
static int reach_inside(const void *memory, uintptr_t at, size_t n, bool on, int *exit_code)
{
    struct ibx_session *session = ibx_attached_session();
    uint8_t body[32];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    uint64_t offset;
    /* Allocations of shared memory are multiples of it. */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!session)
        return -ENOTCONN;
    if (!ibx_attached_over_shm(session) || !ibx_shared_offset(memory, n, &offset))
        return -EOPNOTSUPP;
    ibx_pipeline_lock(ibx_attached->pipeline);
    const int rc = ibx_session_share(session);
    ibx_pipeline_unlock(ibx_attached->pipeline);
    if (rc)
        return rc;
    ibx_put_u16(&w, !on                       ? IBX_EXT_HOST_UNMAP
                    : at == (uintptr_t)memory ? IBX_EXT_HOST_MAP
                                              : IBX_EXT_HOST_MAP_AT);
    ibx_put_u64(&w, at);
    if (on) {
        ibx_put_u64(&w, (n + page - 1) / page * page);
        ibx_put_u64(&w, offset);
        ibx_attached_changes_memory();
    }
    return ask_for_map(&w, exit_code);
}

static int reach(const void *memory, uintptr_t at, size_t n, bool on, int *exit_code)
{
    const struct ibx_inside inside = ibx_inside_begin();
    const int rc = reach_inside(memory, at, n, on, exit_code);
    ibx_inside_end(inside);
    return rc;
}

static void drain(const void *address, size_t n)
{
    const struct ibx_inside inside = ibx_inside_begin();
    ibx_host_copies_drain(address, n);
    ibx_async_copy_wait_memory(address, n);
    ibx_inside_end(inside);
}

static void watch(const struct ibx_frontend_watch *calls)
{
    atomic_store(&ibx_attached_watcher, calls);
    ibx_handlers_use(calls->handlers);
}

static void leave_inside(void)
{
    struct ibx_session *session = ibx_attached_session();
    if (session && ibx_attached->process != getpid())
        return;
    ibx_session_process_ends(); /* process_ends() may never run, nor GVirtuS's destructors */
    if (session)
        ibx_pipeline_finish_last(ibx_attached->pipeline);
    ibx_process_leave();
    if (session && !ibx_attached->pipeline)
        ibx_session_close(session);
}

static void leave(void)
{
    if (ibx_inside_cut_off())
        return;
    const struct ibx_inside inside = ibx_inside_begin();
    leave_inside();
    ibx_inside_end(inside);
}

static void release(void *address, size_t n)
{
    const struct ibx_inside inside = ibx_inside_begin();
    if (!ibx_shared_free(address))
        munmap(address, n);
    ibx_inside_end(inside);
}

static _Atomic(ibx_attach_launch *) by_gvirtus;

static bool launch_by_gvirtus(const struct ibx_frontend_launch *launch, int *rc)
{
    return atomic_load(&by_gvirtus)(launch, rc);
}

void ibx_attached_launch_by(ibx_attach_launch *launch)
{
    atomic_store(&by_gvirtus, launch);
}

void ibx_attached_path(const struct ibx_session *session)
{
    atomic_store(&over_shm, ibx_attached_over_shm(session));
}

const struct ibx_frontend_calls ibx_attached_calls = {
    .version = IBX_FRONTEND_VERSION,
    .copy = ibx_attached_copy,
    .call = make_call,
    .unseen = unseen,
    .divert = divert,
    .diverted = diverted,
    .launch = launch_by_gvirtus,
    .knows = knows,
    .legacy_left = ibx_pipeline_legacy_left,
    .legacy_over = ibx_pipeline_legacy_over,
    .all_left = ibx_pipeline_all_left,
    .all_over = ibx_pipeline_all_over,
    .legacy_orders = ibx_pipeline_legacy_orders,
    .allocate = allocate,
    .release = release,
    .prepare = prepare,
    .reach = reach,
    .stand_in = stand_in,
    .reach_epoch = ibx_attached_epoch,
    .pending = ibx_async_copy_pending,
    .failure = ibx_async_copy_failure,
    .finish = ibx_async_copy_wait_memory,
    .drain = drain,
    .watch = watch,
    .last_call = make_last_call,
    .leave = leave,
    .exits = ibx_inside_exits,
};
