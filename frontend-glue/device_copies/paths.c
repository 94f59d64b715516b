/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table of paths, the choice of one for each copy, and the path inline. */
#include "frontend-glue/device_copies/copies.h"

#include <string.h>

#define NOT_REACHED                                                                                \
    "the kernel does not let the back end reach the client's memory (process_vm_readv: both must " \
    "belong to one user), or shm_direct is no"

/* --------------------------------------------------------------------------------- inline */

/* Whether the payload came in page-locked memory, and is long enough for the GPU to fetch it. */
static bool came_pinned(struct gpu_session *x)
{
    const struct copy *c = &x->copy;
    return c->stage == COPY_FROM_MESSAGE && !c->alone && !c->gpu.unawaited &&
           c->bytes > ibx_copies_way(x)->inline_max && ibx_pinned_holds(c->payload, c->bytes);
}

/* Between a message and the driver, without a chunk. */
static bool inline_able(struct gpu_session *x)
{
    const struct copy *c = &x->copy;
    const struct ibx_frame *f = &c->frame;
    if (came_pinned(x) && ibx_copies_staging(x))
        return true;
    /* While such a copy waits, the driver keeps other calls out, also those for which a graph
     * waits. */
    bool plain = f->height == 1 && f->stream <= 1 && !c->gpu.beside_graphs && !c->gpu.unawaited;
    bool stage = c->stage == COPY_FROM_MESSAGE || (c->stage == COPY_TO_REPLY && f->out == f->width);
    return stage && plain && f->width <= ibx_copies_way(x)->inline_max;
}

static int inline_to_device(struct gpu_session *x)
{
    const struct ibx_frame *f = &x->copy.frame;
    if (came_pinned(x))
        return ibx_copies_outcome(x, ibx_staging_straight(x->staging,
                                                          (void *)(uintptr_t)x->copy.payload,
                                                          &x->copy.gpu, true));
    ibx_turn_take(&x->turn, f->width);
    return ibx_copies_outcome(x,
                              x->cuda->memcpy_to_device(f->dst, x->copy.payload, (size_t)f->width));
}

static int inline_to_reply(struct gpu_session *x)
{
    const struct ibx_frame *f = &x->copy.frame;
    ibx_turn_take(&x->turn, f->width);
    return ibx_copies_outcome(x,
                              x->cuda->memcpy_from_device(x->copy.out, f->src, (size_t)f->width));
}

const struct copy_path ibx_path_inline = {
    .able = inline_able,
    .to_device = inline_to_device,
    .to_reply = inline_to_reply,
};

/* ------------------------------------------------------------------------------ the table */

const struct copy_path *const ibx_copy_paths[PATHS] = {
    [PATH_INLINE] = &ibx_path_inline,             /* up to inline_max */
    [PATH_IN_PLACE] = &ibx_path_in_place,         /* from in_place_min */
    [PATH_COPY_THREADS] = &ibx_path_copy_threads, /* from copy_threads_min */
    [PATH_DIRECT] = &ibx_path_direct,             /* from direct_min */
    [PATH_STAGED] = &ibx_path_staged,
};

/* Whether nobody waits for the end of the copy: CUDA does not, since it takes the bytes. The stream
 * may wait for what the client does behind the call. */
static bool is_unawaited(const struct copy *c)
{
    const struct ibx_frame *f = &c->frame;
    return f->call == IBX_FRAME_MEMCPY_ASYNC && f->kind == IBX_FRAME_H2D && f->height == 1 &&
           f->width <= IBX_UNAWAITED_MOST && !c->settle && !c->alone &&
           c->stage <= COPY_FROM_CLIENT;
}

void ibx_copies_begin(struct gpu_session *x, enum copy_stage stage, uint64_t bytes)
{
    const struct ibx_frame *f = &x->copy.frame;
    bool to_device = f->kind == IBX_FRAME_H2D;
    x->copy.stage = stage;
    x->copy.bytes = bytes;
    x->copy.gpu = (struct ibx_gpu_copy){
        .device = to_device ? f->dst : f->src,
        .device_pitch = to_device ? f->dpitch : f->spitch,
        .host_pitch = to_device ? f->spitch : f->dpitch,
        .width = f->width,
        .height = f->height,
        .stream = f->stream ? (void *)(uintptr_t)f->stream : IBX_CUDA_STREAM_LEGACY,
        .beside_graphs = ibx_host_work_repeats(),
        .alone = x->copy.alone,
        .unawaited = is_unawaited(&x->copy),
    };
}

/* Holds the client's memory for this stage, if this process can reach it and that pays. */
static void hold(struct gpu_session *x)
{
    struct copy *c = &x->copy;
    struct ibx_conn *conn = ibx_session_conn(x->s);
    bool rows = c->stage == COPY_PART && (c->frame.height != 1 || c->frame.out != c->frame.width);
    c->held = false;
    struct ibx_remote now = c->remote;    /* c->remote keeps the client's name for it */
    if (!ibx_session_resolve(x->s, &now)) /* then a post would not find it either */
        return;
    if (c->stage == COPY_FROM_MESSAGE || c->stage == COPY_TO_REPLY || rows ||
        ibx_session_posts_pending(x->s) || c->remote_at > c->remote.length ||
        c->bytes > c->remote.length - c->remote_at)
        return;
    c->part = now;
    c->part.address += c->remote_at;
    c->part.length = c->bytes;
    unsigned access =
        c->stage == COPY_FROM_CLIENT ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE;
    c->held = !ibx_remote_hold(conn, &c->part, access, &c->reach);
    if (!c->held && c->bytes >= ibx_copies_way(x)->copy_threads_min &&
        !strcmp(ibx_session_path(x->s)->provider, "shm"))
        ibx_copies_note_refusal(x, NOT_REACHED);
}

const struct copy_path *ibx_copies_path(struct gpu_session *x)
{
    const struct copy_path *path = NULL;
    int i = 0;
    hold(x);
    while (i < PATHS && !ibx_copy_paths[i]->able(x))
        i++;
    if (i < PATHS) {
        path = ibx_copy_paths[i];
        x->copy.path = i;
    }
    if (x->copy.held && !(path && path->holds))
        ibx_remote_release(ibx_session_conn(x->s));
    return path;
}

int ibx_copies_deliver(void *context, const struct ibx_remote *remote, size_t n)
{
    struct gpu_session *x = context;
    x->copy.remote = *remote;
    x->copy.remote_at = 0;
    if (x->copy.direct)
        return ibx_path_direct.part(x, n);
    ibx_copies_begin(x, COPY_PART, n);
    const struct copy_path *path = ibx_copies_path(x);
    x->last_in_place = path == &ibx_path_in_place;
    return path->part(x, n); /* not NULL: staged is able to move any part */
}
