/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies.h"

#include "common/clock.h"
#include "common/log.h"
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/clients/unpinned_copies.h"
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "frontend-glue/session/client_process.h"
#include "frontend-glue/tenants/shared_handles.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Most bytes of a connection's allocations in the shared region that are pinned here. */
#define PINS_MAX (4ull << 30)
#define WORK_MS  2000u /* for so long work is waited for before memory is unpinned */

/* ----------------------------------------------------------------------------- requests */

/* A copy from page-locked memory that kernels of the client use is one from the host for CUDA. */
static int run_row_on_device(struct gpu_session *x, void *stream)
{
    const struct ibx_frame *f = &x->copy.frame;
    int rc = 0;
    if (x->copy.from_host)
        rc = ibx_copies_staging(x) ? ibx_staging_put_behind(x->staging, stream, f->width)
                                   : ibx_cuda_stream_wait(x->cuda, stream);
    return rc ? rc : x->cuda->memcpy_async(f->dst, f->src, (size_t)f->width, stream);
}

/* Does not wait for the copy, as CUDA does not. */
static int run_on_device(struct gpu_session *x)
{
    const struct ibx_frame *f = &x->copy.frame;
    void *stream = f->stream ? (void *)(uintptr_t)f->stream : IBX_CUDA_STREAM_LEGACY;
    if (f->height == 1)
        return ibx_copies_outcome(x, run_row_on_device(x, stream));
    struct ibx_cuda_memcpy2d rows = {
        .src_type = IBX_CUDA_MEMORY_DEVICE,
        .src_device = f->src,
        .src_pitch = (size_t)f->spitch,
        .dst_type = IBX_CUDA_MEMORY_DEVICE,
        .dst_device = f->dst,
        .dst_pitch = (size_t)f->dpitch,
        .width = (size_t)f->width,
        .height = (size_t)f->height,
    };
    return ibx_copies_outcome(x, x->cuda->memcpy_2d_async(&rows, stream));
}

static int run_checked(struct gpu_session *x, const struct ibx_request *q)
{
    uint64_t began = ibx_now_ns();
    int rc;
    x->copy = (struct copy){.settle = q->settle, .path = -1};
    if (q->body && (!ibx_copies_parse(q, &x->copy.frame) || !ibx_copies_sound(x, &x->copy.frame)))
        return IBX_REQUEST_PASS;
    if (q->body && x->copy.frame.kind == IBX_FRAME_D2H)
        return ibx_copies_from_device(x, q, began);
    if (q->body && x->copy.frame.kind == IBX_FRAME_D2D)
        rc = run_on_device(x);
    else
        rc = ibx_copies_to_device(x, q);
    if (rc != IBX_REQUEST_DONE)
        return rc;
    rc = ibx_copies_begin_answer(x, q);
    if (!rc)
        rc = ibx_copies_answer(x, began, NULL, 0);
    return rc ? rc : IBX_REQUEST_DONE;
}

static int run(struct gpu_session *x, const struct ibx_request *q)
{
    const int rc = run_checked(x, q);
    ibx_held_end(x);
    return rc;
}

/* Copies that are not asynchronous run in the legacy stream. */
static int run_in_stream(struct gpu_session *x, const struct ibx_request *q)
{
    if (q->call == IBX_FRAME_MEMCPY_ASYNC)
        return run(x, q);
    ibx_captures_legacy_begin(x);
    const int rc = run(x, q);
    ibx_captures_legacy_end();
    return rc;
}

/* Chooses the paths for the device that ibx_back_end_able() has found. */
static void choose(struct gpu_session *x)
{
    if (x->device >= 0 && x->chosen_for != x->device)
        ibx_copies_choose(x, x->device);
}

static int run_call(struct gpu_session *x, const struct ibx_request *q)
{
    int rc = ibx_session_answer_delayed(x->s);
    x->answering = true;
    if (!rc)
        rc = ibx_device_call(x, q, ibx_extension_run);
    x->answering = false;
    choose(x);
    return rc;
}

/* A graph waits for this copy. */
static int run_slot_copy(struct gpu_session *x, const struct ibx_request *q)
{
    x->answering = true;
    const int rc = ibx_slot_copy(x, q);
    x->answering = false;
    x->ran += rc == IBX_REQUEST_DONE;
    return rc;
}

/* Copies run in relaxed capture mode: they neither end another client's capture nor fail because of
 * it, nor because of this client's own capture in a stream that does not wait for the legacy one. A
 * copy in a stream that is being captured is not run here. GVirtuS's handlers find the thread's
 * mode unchanged. */
static int run_request(void *context, const struct ibx_request *q)
{
    struct gpu_session *x = context;
    if (x->replies.shape == IBX_REPLY_UNKNOWN && !ibx_device_call_is_first(q->called))
        return IBX_REQUEST_PASS;
    x->replies.shape = ibx_reply_shape_known(&x->replies);
    if (q->called)
        return run_call(x, q);
    if (ibx_slot_is_named(x, q))
        return run_slot_copy(x, q);
    const bool able = ibx_back_end_able(x);
    choose(x);
    if (!able) {
        ibx_copies_pass_in_order(x, q);
        return IBX_REQUEST_PASS;
    }
    int mode = ibx_cuda_capture_relax(x->cuda);
    x->answering = true;
    int rc = run_in_stream(x, q);
    x->answering = false;
    /* GVirtuS's handler does not wait for earlier copies; but the client may use their memory again
     * after this answer. */
    if (rc == IBX_REQUEST_PASS && q->settle) {
        ibx_back_end_handle_resets(x);
        ibx_client_pins_wait(&x->pins, x->cuda);
        ibx_unpinned_wait(x);
    }
    ibx_cuda_capture_restore(x->cuda, mode);
    if (rc == IBX_REQUEST_PASS)
        ibx_copies_pass_in_order(x, q);
    else
        ibx_handles_let_go(x);
    x->ran += rc == IBX_REQUEST_DONE;
    if (rc == IBX_REQUEST_DONE && x->copy.path >= 0)
        x->taken[x->copy.path]++;
    return rc;
}

static bool wants_request(void *context)
{
    const struct gpu_session *x = context;
    return x->options.mode != IBX_GPU_OFF && ibx_reply_can_read(&x->replies) &&
           ibx_request_begins(&x->requests);
}

/* --------------------------------------------------------------- what GVirtuS does itself */

/* A handler of GVirtuS has returned: it no longer frees memory, waits, or uses registrations. */
static void handled(struct gpu_session *x)
{
    if (x->handler.frees)
        ibx_frees_end();
    ibx_held_end(x);
    if (x->handler.frees && x->handler.task == TASK_UNLOADS)
        ibx_frees_unloaded();
    x->handler.frees = false;
    ibx_captures_ran(x);
    ibx_registrations_end(x);
    ibx_isolation_launched(x);
    ibx_functions_let_go(&x->launches.user);
    x->handler.may_reset = false;
}

/* To be called before GVirtuS looks for the handler of that name. */
static void guard(struct gpu_session *x, uint8_t *bytes, size_t n)
{
    ibx_own_reset_guard(x, ibx_reply_can_read(&x->replies), bytes, n);
    ibx_own_unload_guard(x, bytes, n);
}

/* Has GVirtuS find no handler where one must not get the request. */
static void bar(struct gpu_session *x, uint8_t *bytes, size_t n)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    uint8_t *last;
    unsigned why = ibx_shapes_barred(&x->requests, bytes, n, &last);
    if (why & IBX_BARRED_BESIDE) {
        ibx_clients_number(x); /* it counts from now on */
        why = ibx_clients_were_several() ? why : why & ~IBX_BARRED_BESIDE;
    }
    why = x->isolation.limited ? why : why & ~IBX_BARRED_LIMITED;
    why = x->options.limits.pins ? why : why & ~IBX_BARRED_PINNED;
    why = x->isolation.on ? why : why & ~IBX_BARRED_TENANTS;
    if (!why)
        return;
    *last = '?';
    if (why != IBX_BARRED && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "GVirtuS's own contexts, IPC handles, mapped and registered memory (cuCtxCreate, "
                "cudaIpcOpenMemHandle, cuMemCreate, cudaHostRegister and the like) are refused to "
                "%s, since %s: preload libibx-frontend.so",
                ibx_session_path(x->s)->peer,
                why & (IBX_BARRED_BESIDE | IBX_BARRED_TENANTS)
                    ? "they reach what other programs have"
                    : "rdma.device_memory and rdma.pins do not count them");
}

/* Other sessions' copies in that memory come first: only then can these end their registrations. */
static void free_begins(struct gpu_session *x, uint64_t address)
{
    const bool first = !x->handler.frees;
    if (first)
        ibx_held_by_free(x, address);
    ibx_gpu_registrations_freed(&x->registrations, address);
    if (first)
        ibx_frees_begin(x, address);
    x->handler.frees = true;
}

static int note_read(void *context, void *bytes, size_t n)
{
    struct gpu_session *x = context;
    const unsigned resets = x->requests.resets;
    const enum ibx_request_stage stage = x->requests.stage;
    const bool whole = stage == IBX_REQUEST_BODY && !x->requests.got && n == x->requests.length;
    if (whole)
        ibx_device_launch_spare(x, bytes, n);
    int rc = ibx_isolation_before_read(x, bytes, n);
    if (rc)
        return rc;
    if (x->options.mode != IBX_GPU_OFF)
        guard(x, bytes, n);
    if (stage == IBX_REQUEST_NAME)
        bar(x, bytes, n);
    ibx_request_note_read(&x->requests, bytes, n);
    if (stage == IBX_REQUEST_NAME && x->requests.stage != IBX_REQUEST_NAME)
        ibx_device_call_read(x, x->requests.name);
    /* The handler runs after this: what it destroys is released before. */
    if (x->requests.resets != resets)
        ibx_context_lose(x);
    if (x->requests.resets)
        ibx_gpu_registrations_freed(&x->registrations, 0);
    else if (x->requests.freed)
        free_begins(x, x->requests.freed);
    x->requests.freed = 0;
    rc = ibx_isolation_after_read(x, stage);
    if (!rc && stage != IBX_REQUEST_NAME && x->requests.stage == IBX_REQUEST_NAME) {
        if (x->handler.task == TASK_UNLOADS && !x->handler.frees) {
            ibx_frees_begin(x, 0);
            x->handler.frees = true;
        }
        rc = ibx_made_run(x, whole ? bytes : NULL); /* the request is complete */
        if (!ibx_captures_run(x) && !rc)
            rc = ibx_captures_refuse(x, whole ? bytes : NULL);
        ibx_registrations_begin(x);
    }
    if (x->options.mode != IBX_GPU_OFF)
        ibx_captures_mind_own(x);
    return rc;
}

static bool note_write(void *context, const void *bytes, size_t n)
{
    struct gpu_session *x = context;
    if (x->answering)
        return false;
    if (!x->replies.count)
        handled(x); /* the client may never take the reply */
    ibx_isolation_answers(x, (uint8_t *)(uintptr_t)bytes, n); /* GVirtuS's own, of this reply */
    ibx_reply_note_write(&x->replies, bytes, n);
    return ibx_isolation_withholds(x);
}

static bool has_context(const struct gpu_session *x)
{
    const struct ibx_cuda *cuda = x->options.mode == IBX_GPU_OFF ? NULL : ibx_cuda_load(NULL);
    void *context = NULL;
    return cuda && !cuda->ctx_get_current(&context) && context;
}

#define INVALID_DEVICE 101 /* cudaError_t */

/* Selecting a device that does not exist leaves the one that was selected before; after other
 * errors it is not known which one is. */
static void note_selection(struct gpu_session *x)
{
    if (x->handler.task == TASK_SELECTS && x->replies.exit_code == INVALID_DEVICE)
        x->requests.device = x->selected;
    x->selected = x->requests.device;
    ibx_ready_context_selected(x->selected);
}

static void note_sync(void *context)
{
    struct gpu_session *x = context;
    if (x->answering)
        return;
    handled(x);
    ibx_clients_number(x); /* from its first reply on, the session counts as its client's */
    ibx_reply_note_sync(&x->replies);
    ibx_reply_know(x->replies.shape);
    note_selection(x);
    if (x->replies.exit_code)
        ibx_context_note_error(x, x->replies.exit_code);
    ibx_isolation_replied(x);
    if (ibx_pinned_wanted() && has_context(x)) /* perhaps the first context of the process */
        ibx_pinned_prepare(x->options.memory);
    ibx_device_call_answered(x);
    if (x->requests.resets)
        ibx_context_lost(x, x->replies.exit_code);
    x->requests.resets = 0;
    ibx_clients_reset_over(x); /* the reset context is forgotten: others may begin */
}

static void note_sent(void *context)
{
    struct gpu_session *x = context;
    if (!x->answering)
        ibx_isolation_sent(x);
}

static void arrived(void *context, uint64_t cookie)
{
    struct gpu_session *x = context;
    x->arrived |= 1u << (cookie - 1);
}

/* Another thread may be about to free memory that is registered here. A direct copy whose parts the
 * client has not all requested yet registers it again. */
static void waits(void *context)
{
    struct gpu_session *x = context;
    if (x->staging && ibx_back_end_resets() == x->resets)
        ibx_staging_unawaited_look(x->staging);
    if (!ibx_session_posts_pending(x->s) && ibx_gpu_registrations_tidy(&x->registrations))
        x->copy.mr = NULL;
}

/* -------------------------------------------------------------------- beginning and end */

static int serve(struct gpu_session *x)
{
    ibx_context_tell_broken(x);
    return ibx_isolation_begin(x);
}

static int began(void *context)
{
    const struct gpu_session *x = context;
    if (x->options.mode != IBX_GPU_OFF && ibx_pinned_wanted())
        ibx_pinned_prepare(x->options.memory);
    return serve(context);
}

/* Unpinning waits without end for a kernel that waits for its program, or never ends. If all
 * programs that this process serves have ended, nobody needs it any more: then it ends with that
 * kernel, as natively the program's context would. */
static void end_with_work(struct gpu_session *x)
{
    if (!x->pins.bytes || !ibx_client_process() || !ibx_back_end_have_cuda(x) ||
        ibx_work_on_devices(x, ibx_clients_number_of(x), WORK_MS) || !ibx_clients_all_ended())
        return;
    ibx_log(IBX_LOG_INFO, "the process of the back end for %s ends, with work that was under way",
            ibx_session_path(x->s)->peer);
    _exit(EXIT_SUCCESS);
}

/* The connection is broken. Copies that were answered before they had ended may still use the
 * client's memory. */
static void broken(void *context)
{
    struct gpu_session *x = context;
    ibx_gpu_registrations_pause(&x->registrations); /* who frees such memory waits for that */
    ibx_back_end_handle_resets(x);
    end_with_work(x);
    ibx_unpinned_end(x);
    ibx_client_pins_drop(&x->pins, x->cuda);
}

/* The new connection may have other abilities, and has no registrations of GPU memory. */
static void resumed(void *context)
{
    struct gpu_session *x = context;
    ibx_gpu_registrations_drop(&x->registrations, 0);
    x->registrations.registrar = (struct ibx_gpu_registrar){0};
    x->copy.mr = NULL;
    x->not_direct = false;
    x->logged_direct = false;
}

/* The session is about to end; the connection still exists. */
static void ending(void *context)
{
    struct gpu_session *x = context;
    ibx_host_work_end(x); /* unpinning below waits for streams, which may wait for it */
    for (unsigned i = 0; i < x->region_count; i++)
        ibx_mr_deregister(x->regions[i]);
    ibx_slot_regions_end(x);
    ibx_mr_deregister(x->windows);
    ibx_gpu_registrations_drop(&x->registrations, 0);
    x->late.pending = false;
    ibx_back_end_handle_resets(x);
    end_with_work(x);
    ibx_unpinned_end(x);
    ibx_client_pins_drop(&x->pins, x->cuda); /* before the connection unmaps them */
    free(x->regions);
    x->regions = NULL;
    x->region_count = 0;
    x->windows = NULL;
}

static void ended(void *context)
{
    struct gpu_session *x = context;
    if (x->ran)
        ibx_log(IBX_LOG_INFO,
                "%lu copies were run for %s: %lu by the fabric in GPU memory, %lu in memory that "
                "both map, %lu by several threads, %lu straight from or into messages, the others "
                "by chunks",
                x->ran, ibx_session_path(x->s)->peer, x->taken[PATH_DIRECT],
                x->taken[PATH_IN_PLACE], x->taken[PATH_COPY_THREADS], x->taken[PATH_INLINE]);
    handled(x);
    ibx_back_end_handle_resets(x);
    ibx_staging_destroy(x->staging);
    x->staging = NULL;
    ibx_captures_end(x);
    ibx_isolation_end(x);
    ibx_ipc_end(x);
    x->ran = 0;
    memset(x->taken, 0, sizeof(x->taken));
    x->options.mode = IBX_GPU_OFF;
}

static void destroy(void *context)
{
    struct gpu_session *x = context;
    if (ibx_session_live(x->s)) /* other hooks replace these */
        ending(x);
    handled(x);
    ibx_captures_end(x);
    ibx_host_work_end(x);
    ibx_ipc_end(x);
    ibx_staging_destroy(x->staging);
    ibx_isolation_end(x);
    free(x->regions);
    free(x->long_reply);
    free(x->long_arrays);
    free(x);
}

static int inherit(void *context, struct ibx_session *heir, struct ibx_error *err)
{
    const struct gpu_session *x = context;
    return ibx_device_copies_attach(heir, &x->options, err);
}

static int admit(void *context, const struct ibx_path *path, struct ibx_error *err)
{
    return ibx_isolation_admit(context, path, err);
}

static bool processes(unsigned most)
{
    return ibx_tenants_share(most) && ibx_turns_share(most) &&
           ibx_shared_handles_create(IBX_SHARED_PLACES);
}

static void process_begins(unsigned process)
{
    ibx_tenants_are_of(process);
    ibx_turns_are_of(process);
    ibx_shared_handles_are_of(process);
}

static void process_ended(unsigned process)
{
    ibx_tenants_ended(process);
    ibx_turns_ended(process);
    ibx_shared_handles_ended(process);
}

static void make_ready(void *context)
{
    ibx_ready_context_make(context);
}

static void hold_back(void)
{
    ibx_memory_hold_back();
    ibx_ready_context_taken();
}

static const struct ibx_session_hooks hooks = {
    .inherit = inherit,
    .hold_back = hold_back,
    .processes = processes,
    .process_serves = ibx_tenants_serves,
    .process_begins = process_begins,
    .process_ended = process_ended,
    .make_ready = make_ready,
    .anybody = ibx_clients_left,
    .admit = admit,
    .began = began,
    .wants_request = wants_request,
    .request = run_request,
    .answer = ibx_copies_answer_late,
    .prepare = ibx_copies_prepare,
    .deliver = ibx_copies_deliver,
    .note_read = note_read,
    .note_write = note_write,
    .note_sync = note_sync,
    .note_sent = note_sent,
    .waits = waits,
    .arrived = arrived,
    .broken = broken,
    .resumed = resumed,
    .ending = ending,
    .ended = ended,
    .destroy = destroy,
};

/* Messages are received into pinned memory, so that the GPU can read their payloads there. */
static const struct ibx_message_memory message_memory = {ibx_pinned_borrow, ibx_pinned_return};

struct gpu_session *ibx_copies_of(const struct ibx_session *s)
{
    return ibx_session_context(s, &hooks);
}

void ibx_copies_set_end_hooks(void)
{
    static const struct ibx_end_hooks ends = {
        .gone = ibx_ipc_gone,
        .mappable_gone = ibx_ipc_mappable_gone,
        .forget = ibx_ipc_forget,
        .give_back_opened = ibx_opened_give_back,
        .give_back_math = ibx_math_end,
    };
    ibx_end_hooks_set(&ends);
}

/* Around unpinning of a client's memory. */
static void unpins(void *context, bool begins)
{
    if (begins)
        ibx_frees_begin(context, 0);
    else
        ibx_frees_end();
}

/* Whether the client has work under way, for which unpinning would wait; with `others` whether
 * anybody may have. While somebody captures, it is not known who has. */
static bool works(void *context, bool others)
{
    struct gpu_session *x = context;
    if (ibx_captures_any() || (others && ibx_clients_several(x)))
        return others;
    return !ibx_work_on_devices(x, ibx_clients_number_of(x), 0);
}

int ibx_device_copies_attach(struct ibx_session *s, const struct ibx_gpu_options *options,
                             struct ibx_error *err)
{
    struct gpu_session *x = malloc(sizeof(*x));
    if (!x)
        return ibx_error_set(err, -ENOMEM, "no memory for a session's copies");
    *x = (struct gpu_session){
        .s = s,
        .options = *options,
        .choice = ibx_choice_default,
        .device = -1,
        .chosen_for = -1,
        .selected = -1,
        .pins = {.bytes_max = PINS_MAX, .waits = unpins, .works = works, .owner = x}};
    ibx_request_watch_init(&x->requests);
    ibx_back_end_resets_begin(x);
    ibx_copies_set_end_hooks();
    ibx_session_set_hooks(s, &hooks, x);
    ibx_session_set_threads(s, options->threads);
    ibx_session_lend(s, options->mode == IBX_GPU_OFF ? NULL : &message_memory);
    int rc = ibx_session_serving(s) ? serve(x) : 0;
    return rc ? ibx_error_set(err, rc, "%s", ibx_session_reason(s)) : 0;
}

void ibx_device_copies_count(const struct ibx_session *s, struct ibx_copy_counts *counts)
{
    const struct gpu_session *x = ibx_copies_of(s);
    *counts = (struct ibx_copy_counts){0};
    if (x)
        *counts = (struct ibx_copy_counts){.all = x->ran,
                                           .inlined = x->taken[PATH_INLINE],
                                           .in_place = x->taken[PATH_IN_PLACE],
                                           .copy_threads = x->taken[PATH_COPY_THREADS],
                                           .direct = x->taken[PATH_DIRECT]};
}

const char *ibx_device_copies_refused(const struct ibx_session *s)
{
    const struct gpu_session *x = ibx_copies_of(s);
    return x ? x->refused : "";
}
