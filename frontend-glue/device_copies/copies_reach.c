/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/copies_internal.h"

#include "common/log.h"

#include <string.h>

#define NOT_REACHED                                                                                \
    "the kernel does not let the back end reach the client's memory (process_vm_readv: both must " \
    "belong to one user), or shm_direct is no"

static unsigned crew_threads(const struct copies *x)
{
    unsigned wanted = x->options.threads ? x->options.threads : x->choice.threads;
    return wanted ? wanted : ibx_copy_threads_count();
}

struct ibx_copy_threads *ibx_copies_threads(struct copies *x)
{
    struct ibx_error err = {0};
    unsigned threads = x->crew || x->alone ? 0 : crew_threads(x);
    if (!x->crew && !x->alone && threads > 1 && ibx_copy_threads_create(threads, &x->crew, &err))
        ibx_log(IBX_LOG_WARN, "copies have one thread: %s", err.message);
    x->alone = !x->crew;
    return x->crew;
}

void ibx_copies_threads_drop(struct copies *x)
{
    ibx_copy_threads_destroy(x->crew);
    x->crew = NULL;
    x->alone = false;
}

bool ibx_copies_threads_likely(struct ibx_session *s, uint64_t length)
{
    struct copies *x = &s->copies;
    return length >= IBX_FRAME_WINDOW &&
           length - IBX_FRAME_WINDOW >= ibx_copies_way(x, true)->threads_min && s->caps->direct &&
           ibx_copies_threads(x);
}

enum copies_reach ibx_copies_hold(struct ibx_session *s, const struct ibx_remote *remote,
                                  uint64_t at, uint64_t n, unsigned access, void **address)
{
    struct copies *x = &s->copies;
    struct ibx_remote part = *remote;
    struct ibx_reach reach;
    struct ibx_error err = {0};
    const struct ibx_choice_way *way = ibx_copies_way(x, access == IBX_ACCESS_REMOTE_READ);
    if (s->ops_pending || at > remote->length || n > remote->length - at)
        return COPIES_FAR;
    part.address += at;
    part.length = n;
    if (ibx_remote_hold(s->conn, &part, access, &reach)) {
        if (n >= way->threads_min && !strcmp(s->path.provider, "shm"))
            ibx_copies_note_refusal(x, NOT_REACHED);
        return COPIES_FAR;
    }
    /* Only in place can a copy be under way still when it is answered. */
    bool leave = reach.lasting && !s->settle && x->frame.call == IBX_FRAME_MEMCPY_ASYNC;
    if (reach.id && (leave || n >= way->in_place_min) &&
        ibx_client_pin(&x->pins, x->cuda, reach.base, reach.length, reach.id, reach.writable,
                       &err)) {
        *address = reach.address;
        x->early = leave && ibx_client_pin_fence(&x->pins, x->cuda, reach.base,
                                                 ibx_copies_copy_of(&x->frame).stream);
        return COPIES_PINNED;
    }
    if (err.code && !x->unpinned) {
        x->unpinned = true;
        ibx_log(IBX_LOG_WARN, "copies for %s go through chunks: %s", s->path.peer, err.message);
    }
    if (err.code)
        ibx_copies_note_refusal(x, err.message);
    /* The kernel may have become unwilling since the last time; posts find another way then. */
    if (reach.copies && n >= way->threads_min && ibx_copies_threads(x) &&
        !ibx_remote_copy(s->conn, true, NULL, &part, 0, 0))
        return COPIES_BY_CREW;
    ibx_remote_release(s->conn);
    return COPIES_FAR;
}

/* ------------------------------------------------------------------ the crew's wires */

static int crew_read(void *context, void *local, uint64_t offset, size_t n)
{
    struct ibx_session *s = context;
    const struct copies *x = &s->copies;
    return ibx_remote_copy(s->conn, true, local, &x->remote, x->remote_at + offset, n);
}

static int crew_write(void *context, void *local, uint64_t offset, size_t n)
{
    struct ibx_session *s = context;
    const struct copies *x = &s->copies;
    return ibx_remote_copy(s->conn, false, local, &x->remote, x->remote_at + offset, n);
}

static int crew_move(void *context, unsigned place, unsigned chunk, void *local, uint64_t offset,
                     size_t n)
{
    (void)chunk;
    struct ibx_session *s = context;
    ibx_copy_threads_post(s->copies.crew, place, local, offset, n);
    return 0;
}

static int crew_arrived(void *context, bool wait, uint32_t *places)
{
    struct ibx_session *s = context;
    return ibx_copy_threads_take(s->copies.crew, wait, places);
}

struct ibx_staging_wire ibx_copies_wire_threads(struct ibx_session *s, bool read)
{
    ibx_copy_threads_begin(s->copies.crew, read ? crew_read : crew_write, s);
    return (struct ibx_staging_wire){s, crew_move, crew_arrived, NULL, crew_threads(&s->copies)};
}

int ibx_copies_threads_end(struct ibx_session *s, int rc)
{
    struct copies *x = &s->copies;
    ibx_copy_threads_stop(x->crew);
    ibx_remote_release(s->conn);
    x->by_crew += !rc;
    return rc < 0
               ? ibx_session_fail(s, rc, "copying with %s failed: %s", s->path.peer, strerror(-rc))
               : rc;
}
