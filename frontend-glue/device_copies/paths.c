/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which path a copy takes: by its size, as measured for this GPU or by default, and by what is
 * there. The path inline. */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define NOT_REACHED                                                                                \
    "the kernel does not let the back end reach the client's memory (process_vm_readv: both must " \
    "belong to one user), or shm_direct is no"

/* ------------------------------------------------------------------------ measured sizes */

/* Logged once a process: its sessions have the same file, and mostly the same GPU. */
static void tell_misfit(const struct ibx_tuning *tuning, const struct ibx_error *why)
{
    static atomic_bool told;
    if (!atomic_exchange(&told, true))
        ibx_log(IBX_LOG_WARN, "%s is not used: %s; measure here by \"ib-bw tune\"", tuning->file,
                why->message);
}

static const struct ibx_choice *choice_on(const struct copies *x, int device)
{
    const struct ibx_tuning *tuning = &x->options.tuning;
    struct ibx_tuning_machine here;
    struct ibx_error why = {0};
    if (!tuning->found)
        return &ibx_choice_default;
    ibx_tuning_machine_of(x->cuda, device, &here);
    if (ibx_tuning_fits(tuning, &here, &why)) {
        tell_misfit(tuning, &why);
        return &ibx_choice_default;
    }
    ibx_log(IBX_LOG_DEBUG, "copies for %s take the paths that %s says",
            ibx_session_path(x->s)->peer, tuning->file);
    return &tuning->choice;
}

void ibx_copies_choose(struct copies *x, int device)
{
    x->chosen_for = device;
    x->choice = *choice_on(x, device);
    ibx_session_set_threads(x->s, x->options.threads ? x->options.threads : x->choice.threads);
}

const struct ibx_choice_way *ibx_copies_way(const struct copies *x)
{
    bool to_device = x->copy.stage <= COPY_FROM_CLIENT;
    return &x->choice.ways[to_device ? IBX_CHOICE_TO_DEVICE : IBX_CHOICE_FROM_DEVICE];
}

void ibx_copies_note_refusal(struct copies *x, const char *why)
{
    snprintf(x->refused, sizeof(x->refused), "%s", why);
}

/* --------------------------------------------------------------------------------- inline */

/* Between a message and the driver, without a chunk. */
static bool inline_able(struct copies *x)
{
    const struct copy *c = &x->copy;
    const struct ibx_frame *f = &c->frame;
    bool plain = f->height == 1 && f->stream <= 1;
    bool stage = c->stage == COPY_FROM_MESSAGE || (c->stage == COPY_TO_REPLY && f->out == f->width);
    return stage && plain && f->width <= ibx_copies_way(x)->inline_max;
}

static int inline_to_device(struct copies *x)
{
    const struct ibx_frame *f = &x->copy.frame;
    return ibx_copies_outcome(x,
                              x->cuda->memcpy_to_device(f->dst, x->copy.payload, (size_t)f->width));
}

static int inline_to_reply(struct copies *x)
{
    const struct ibx_frame *f = &x->copy.frame;
    return ibx_copies_outcome(x,
                              x->cuda->memcpy_from_device(x->copy.out, f->src, (size_t)f->width));
}

const struct copy_path ibx_path_inline = {
    .name = "inline",
    .able = inline_able,
    .to_device = inline_to_device,
    .to_reply = inline_to_reply,
};

/* ------------------------------------------------------------------------------ the table */

const struct copy_path *const ibx_copy_paths[PATHS] = {
    [PATH_INLINE] = &ibx_path_inline, /* up to inline_max */
    [PATH_MAPPED] = &ibx_path_mapped, /* from in_place_min */
    [PATH_POOLED] = &ibx_path_pooled, /* from threads_min */
    [PATH_DIRECT] = &ibx_path_direct, /* from direct_min */
    [PATH_STAGED] = &ibx_path_staged,
};

void ibx_copies_begin(struct copies *x, enum copy_stage stage, uint64_t bytes)
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
    };
}

/* Holds the client's memory that this stage is about, if it is within reach and that is worth
 * while. */
static void hold(struct copies *x)
{
    struct copy *c = &x->copy;
    struct ibx_conn *conn = ibx_session_conn(x->s);
    bool rows = c->stage == COPY_PART && (c->frame.height != 1 || c->frame.out != c->frame.width);
    c->held = false;
    if (c->stage == COPY_FROM_MESSAGE || c->stage == COPY_TO_REPLY || rows ||
        ibx_session_posts_pending(x->s) || c->remote_at > c->remote.length ||
        c->bytes > c->remote.length - c->remote_at)
        return;
    c->part = c->remote;
    c->part.address += c->remote_at;
    c->part.length = c->bytes;
    unsigned access =
        c->stage == COPY_FROM_CLIENT ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE;
    c->held = !ibx_remote_hold(conn, &c->part, access, &c->reach);
    if (!c->held && c->bytes >= ibx_copies_way(x)->threads_min &&
        !strcmp(ibx_session_path(x->s)->provider, "shm"))
        ibx_copies_note_refusal(x, NOT_REACHED);
}

const struct copy_path *ibx_copies_path(struct copies *x)
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
