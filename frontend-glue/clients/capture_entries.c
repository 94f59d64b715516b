/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The captures that sessions have begun. All of this is called under the lock of captures.c, which
 * is here.
 */
#include "frontend-glue/clients/captures_internal.h"

#include <stdlib.h>

pthread_mutex_t ibx_captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gpu_session *capturing; /* sessions that have begun captures */

unsigned ibx_capture_place(const struct gpu_session *x, uint64_t stream)
{
    unsigned i = 0;
    while (i < x->capturing.room &&
           !(x->capturing.list[i].stream == stream && !x->capturing.list[i].id))
        i++;
    return i;
}

void ibx_capture_add(struct gpu_session *x, uint64_t stream)
{
    unsigned i = ibx_capture_place(x, 0);
    if (i == x->capturing.room) {
        const unsigned room = 2 * i + 8;
        struct ibx_captured *more = realloc(x->capturing.list, room * sizeof(*more));
        if (!more)
            return;
        for (unsigned k = i; k < room; k++)
            more[k] = (struct ibx_captured){.stream = 0};
        x->capturing.list = more;
        x->capturing.room = room;
    }
    x->capturing.list[i].stream = stream;
}

void ibx_capture_forget_one(struct gpu_session *x, struct ibx_captured *c)
{
    if (c->id && x->isolation.tenant)
        ibx_graph_capture_over(x->isolation.tenant, c->id);
    if (c->graph)
        ibx_handles_capture_over(x, c->graph, false);
    *c = (struct ibx_captured){.stream = 0};
}

void ibx_capture_forget(struct gpu_session *x, uint64_t stream)
{
    for (unsigned i = 0; i < x->capturing.room; i++) {
        if (x->capturing.list[i].stream == stream)
            ibx_capture_forget_one(x, &x->capturing.list[i]);
    }
}

bool ibx_capture_holds(const struct gpu_session *x, uint64_t stream)
{
    unsigned i = 0;
    while (i < x->capturing.room && x->capturing.list[i].stream != stream)
        i++;
    return stream && i < x->capturing.room;
}

/* Which of several entries of a stream is that of its capture: rather one of whose graph a client
 * was told, then one of which CUDA has a number. Others are about to begin a capture, in vain if
 * there is one, or their capture has ended unseen. 0: it is of another stream. */
static unsigned rank(const struct ibx_captured *c, uint64_t stream)
{
    return c->stream != stream || !stream ? 0 : c->graph ? 3 : c->id ? 2 : 1;
}

/* Takes the best entry of the session if it is better than *best. */
static void improve(struct gpu_session *x, uint64_t stream, struct ibx_captured **best,
                    struct gpu_session **holder)
{
    for (unsigned i = 0; i < x->capturing.room; i++) {
        struct ibx_captured *c = &x->capturing.list[i];
        if (rank(c, stream) <= (*best ? rank(*best, stream) : 0))
            continue;
        *best = c;
        *holder = x;
    }
}

/* Of the session, or of another one of its tenant that has a better one. NULL: there is none. */
static struct ibx_captured *find_best(struct gpu_session *x, uint64_t stream,
                                      struct gpu_session **holder)
{
    struct ibx_captured *best = NULL;
    *holder = NULL;
    improve(x, stream, &best, holder);
    for (struct gpu_session *of = stream > 2 ? capturing : NULL; of; of = of->capturing.next)
        if (of->isolation.tenant == x->isolation.tenant)
            improve(of, stream, &best, holder);
    return best;
}

struct gpu_session *ibx_capture_holder(struct gpu_session *x, uint64_t stream)
{
    struct gpu_session *holder;
    find_best(x, stream, &holder);
    return holder;
}

void ibx_capture_join(struct gpu_session *x)
{
    if (x->capturing.listed)
        return;
    x->capturing.listed = true;
    x->capturing.next = capturing;
    capturing = x;
}

struct gpu_session *ibx_capture_next_of_client(const struct gpu_session *x,
                                               const struct gpu_session *before)
{
    struct gpu_session *of = before ? before->capturing.next : capturing;
    while (of && of != x && !(of->client && of->client == x->client))
        of = of->capturing.next;
    return of;
}

void ibx_capture_part(struct gpu_session *x)
{
    struct gpu_session **at = &capturing;
    while (*at && *at != x)
        at = &(*at)->capturing.next;
    if (*at)
        *at = x->capturing.next;
    x->capturing.listed = false;
    free(x->capturing.list);
    x->capturing.list = NULL;
    x->capturing.room = 0;
}

struct ibx_captured *ibx_capture_entry_of(const struct gpu_session *x, uint64_t id, uint64_t graph)
{
    for (struct gpu_session *of = id || graph ? capturing : NULL; of; of = of->capturing.next)
        for (unsigned i = 0; i < of->capturing.room; i++) {
            struct ibx_captured *c = &of->capturing.list[i];
            if (of->isolation.tenant == x->isolation.tenant &&
                (id ? c->id == id : c->graph == graph))
                return c;
        }
    return NULL;
}

uint64_t ibx_capture_any_stream(const struct gpu_session *x)
{
    unsigned i = 0;
    while (i < x->capturing.room && !x->capturing.list[i].stream)
        i++;
    return x->capturing.begun && i < x->capturing.room ? x->capturing.list[i].stream : 0;
}

void ibx_capture_forget_work(const struct gpu_session *x)
{
    const struct gpu_session *other = capturing;
    while (other && (other->isolation.tenant != x->isolation.tenant || !other->capturing.begun))
        other = other->capturing.next;
    if (!other && x->isolation.tenant)
        ibx_graph_captures_over(x->isolation.tenant);
}

struct ibx_captured *ibx_capture_entry_in(struct gpu_session *x, uint64_t stream)
{
    struct gpu_session *holder;
    struct ibx_captured *best = find_best(x, stream, &holder);
    return best && best->id ? best : NULL;
}
