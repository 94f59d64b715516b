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

/* The session's capture in this stream, of which CUDA has a number; NULL: there is none. */
static struct ibx_captured *numbered(const struct gpu_session *x, uint64_t stream)
{
    for (unsigned i = 0; stream && i < x->capturing.room; i++)
        if (x->capturing.list[i].stream == stream && x->capturing.list[i].id)
            return &x->capturing.list[i];
    return NULL;
}

/* The session, or another one of its tenant: with such a capture, or with any. */
static struct gpu_session *find_holder(struct gpu_session *x, uint64_t stream, bool any)
{
    if (any ? ibx_capture_holds(x, stream) : numbered(x, stream) != NULL)
        return x;
    struct gpu_session *of = stream > 2 ? capturing : NULL;
    while (of && !(of->isolation.tenant == x->isolation.tenant &&
                   (any ? ibx_capture_holds(of, stream) : numbered(of, stream) != NULL)))
        of = of->capturing.next;
    return of;
}

/* One that is about to begin a capture there may do so in vain, since there is one already. */
struct gpu_session *ibx_capture_holder(struct gpu_session *x, uint64_t stream)
{
    struct gpu_session *holder = find_holder(x, stream, false);
    return holder ? holder : find_holder(x, stream, true);
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
    const struct gpu_session *holder = find_holder(x, stream, false);
    return holder ? numbered(holder, stream) : NULL;
}
