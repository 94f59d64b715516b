/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handles that a client gives back. That waits while other requests use them, except for streams
 * and events: natively one thread may destroy a stream for which another one waits. So these cannot
 * be named any more, and stay in the list, where they count, until the last request that uses them
 * is over, which destroys them.
 */
#include "frontend-glue/handles/handle_lists.h"

#include "common/clock.h"

#include <stdatomic.h>

#define HELD_MS 10000u /* for so long a request waits for those who hold something */

static struct handle *destroyed; /* still used: locked */
static atomic_uint count;        /* of them */

/* Locked. Releases the handle if this request holds it, so that it does not wait for itself. */
static void let_go_of(struct gpu_session *x, struct handle *h)
{
    for (unsigned i = 0; i < x->held_count; i++) {
        if (x->held[i] != h)
            continue;
        x->held[i] = x->held[--x->held_count];
        ibx_handle_release(x, h);
        return;
    }
}

/* Locked. Whether another program here has made it, and it is only open to the client. */
static bool is_others(const struct gpu_session *x, const struct handle *h)
{
    return !h->theirs && ibx_handle_is_apart(x, h);
}

/* Locked. What the client may end; NULL: nothing. */
static struct handle *find_ending(const struct gpu_session *x, enum ibx_handle_kind kind,
                                  uint64_t value)
{
    struct handle *found = ibx_handle_find(x, kind, value);
    return found && !is_others(x, found) ? found : NULL;
}

/* Locked. Whether the client may name it, or one of its requests leaves it to others to destroy. */
static bool is_known(const struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const struct handle *h = ibx_handle_of_any(kind, value);
    return h && (h->destroy || ibx_handle_find(x, kind, value));
}

bool ibx_handles_may_end(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, kind, value);
    const bool may = !found || !(is_others(x, found) || found->captured ||
                                 (kind == IBX_HANDLE_GRAPH && (found->of || found->into)));
    pthread_mutex_unlock(&ibx_handles_lock);
    return may;
}

/* Locked. Whether another request needs it. */
static bool is_held(const struct gpu_session *x, const struct handle *h)
{
    return h->holders || ibx_handle_is_used(x, h);
}

/* Locked, except while it waits: for who has only noted that it uses the handle, a moment. */
static void wait_for(const struct handle *h, const struct timespec *until)
{
    const struct timespec soon = ibx_timespec_of(ibx_deadline_in_ms(1));
    ibx_handle_wait(h->holders ? until : &soon);
}

/* As ibx_handles_remove(). If `room` is wanted, the handle does not give it back; *of: to which
 * graph it belonged. */
static bool remove_handle(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                          uint64_t *of, struct ibx_room *room)
{
    if (!ibx_handle_any_of(kind))
        return false;
    const uint64_t deadline = ibx_deadline_in_ms(HELD_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = find_ending(x, kind, value);
    ibx_handle_use_ends(x, value);
    if (found)
        let_go_of(x, found);
    bool held; /* who notes it after that was asked has to wait for the lock */
    while ((held = found && is_held(x, found)) && ibx_now_ns() < deadline) {
        wait_for(found, &until);
        found = find_ending(x, kind, value); /* another request may have given it back */
    }
    const bool known = found && !held;
    if (known && kind == IBX_HANDLE_NODE && found->of)
        ibx_handle_grow_graph(x, found->of, found->weight, 0, true);
    if (known)
        ibx_handle_forget_parts(kind, value);
    if (known && room) {
        *of = found->of;
        *room = (struct ibx_room){found->counted, found->weight};
        found->counted = NULL;
    }
    if (known)
        ibx_handle_drop(found);
    pthread_mutex_unlock(&ibx_handles_lock);
    if (!known)
        ibx_handles_destroy_unused(); /* its own note may have kept it */
    return known;
}

bool ibx_handles_remove(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    return remove_handle(x, kind, value, NULL, NULL);
}

bool ibx_handles_remove_exec(struct gpu_session *x, uint64_t exec, uint64_t *graph,
                             struct ibx_room *room)
{
    return remove_handle(x, IBX_HANDLE_EXEC, exec, graph, room);
}

bool ibx_handles_gone(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const bool known = is_known(x, kind, value);
    pthread_mutex_unlock(&ibx_handles_lock);
    /* another request may have given it back meanwhile */
    return ibx_handles_remove(x, kind, value) || !known;
}

/* ------------------------------------------------------- streams and events that are still used */

void ibx_handle_forget_destroy(struct handle *h)
{
    struct handle **at = &destroyed;
    if (!h->destroy)
        return;
    while (*at != h)
        at = &(*at)->next_destroyed;
    *at = h->next_destroyed;
    h->destroy = NULL;
    atomic_fetch_sub(&count, 1);
}

/* Locked. Its users look at the count when they are done: so it is counted before they are looked
 * for. False: there are none. */
static bool leave_to_users(const struct gpu_session *x, struct handle *h,
                           void (*destroy)(const struct ibx_taken *taken))
{
    h->destroy = destroy;
    h->next_destroyed = destroyed;
    destroyed = h;
    atomic_fetch_add(&count, 1);
    ibx_handle_is_going(); /* who remembers it looks again */
    if (is_held(x, h))
        return true;
    ibx_handle_forget_destroy(h);
    return false;
}

bool ibx_handles_destroy(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                         void (*destroy)(const struct ibx_taken *taken), bool *later)
{
    *later = false;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = find_ending(x, kind, value);
    const bool known = is_known(x, kind, value);
    ibx_handle_use_ends(x, value);
    if (h) {
        let_go_of(x, h);
        *later = leave_to_users(x, h, destroy);
        if (!*later)
            ibx_handle_drop(h);
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    ibx_handles_destroy_unused(); /* another thread may have left it to this request */
    return h || !known;
}

bool ibx_handle_any_destroyed(const uint64_t *values, unsigned n)
{
    bool any = false;
    if (!atomic_load(&count))
        return false;
    pthread_mutex_lock(&ibx_handles_lock);
    for (unsigned i = 0; i < n && !any; i++) {
        const struct handle *stream = ibx_handle_of_any(IBX_HANDLE_STREAM, values[i]),
                            *event = ibx_handle_of_any(IBX_HANDLE_EVENT, values[i]);
        any = (stream && stream->destroy) || (event && event->destroy);
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    return any;
}

/* Takes one that nobody uses any more out of the list. Returns what destroys it; NULL: there is
 * none. */
static void (*take_unused(struct ibx_taken *taken))(const struct ibx_taken *)
{
    void (*destroy)(const struct ibx_taken *) = NULL;
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *h = destroyed;
    while (h && is_held(NULL, h))
        h = h->next_destroyed;
    if (h) {
        destroy = h->destroy;
        *taken = (struct ibx_taken){.kind = h->kind, .value = h->value, .context = h->context};
        ibx_handle_drop(h);
    }
    pthread_mutex_unlock(&ibx_handles_lock);
    return destroy;
}

/* During a reset nothing is destroyed: what is left is destroyed by the next call, if it is still
 * there. */
void ibx_handles_destroy_unused(void)
{
    void (*destroy)(const struct ibx_taken *);
    struct ibx_taken taken;
    if (!atomic_load(&count) || !ibx_clients_give_begin())
        return;
    while ((destroy = take_unused(&taken)))
        destroy(&taken);
    ibx_clients_give_end();
}
