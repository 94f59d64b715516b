/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Objects of the program that graphs keep (cudaUserObjectCreate). When neither the program nor a
 * graph has a reference any more, the object's function is called. The function and all references
 * are in this process, and the back end does not know of them:
 *
 *   a graph has the objects that it was given, and those of its child graphs; of one that was moved
 *     there, or is the body of a conditional node, instead of that one
 *   a clone, and an executable graph, has the objects of the graph
 *   an executable graph that is updated has those of the new graph
 *
 * A launched graph keeps its objects until the launch has completed, also if it is destroyed or
 * updated meanwhile. Then a host function releases them, behind an event that the launch has
 * reached. It runs in the thread for host functions, where CUDA permits no calls, as natively.
 *
 * The event is recorded with each launch: one that is recorded when the graph is destroyed would
 * come after later work of the stream, which may wait for what the release does. That costs a
 * record, as the events are kept (streams/kept_events.c).
 *
 * Each device has one stream for these functions: a stream that waits takes memory of the GPU and
 * one of the few connections to it, and a program may destroy many graphs that run. So the objects
 * of one graph are released after those of the graphs that were destroyed before, if these had
 * their last launches on the same device.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_SYNC      1u /* cudaUserObjectNoDestructorSync, which CUDA requires */
#define MOVE         1u /* cudaGraphUserObjectMove */
#define NON_BLOCKING 1u /* cudaStreamNonBlocking */

#define DEVICES 64 /* launches on a device with a higher number are waited for */

#define NO_STREAM ((void *)UINTPTR_MAX) /* it was destroyed; another one may have its handle */

struct object {
    struct object *next;
    void *what;
    void (*destroy)(void *what);
    uint64_t references;
    uint64_t program; /* of these, the references of the program */
};

/* The references of a graph, or of an executable graph, to an object. */
struct holding {
    struct holding *next;
    const void *holder;
    struct object *object;
    uint64_t count;
    bool unseen; /* there was no memory to note the last launch */
};

/* A graph that ends with another one: the body of a conditional node, or one that was moved. */
struct inner {
    struct inner *next;
    const void *graph, *outer;
};

/* An executable graph with objects, the stream and the device of its last launch, and an event
 * behind that, or NULL: there is none. */
struct launched {
    struct launched *next;
    const void *exec;
    void *stream; /* or NO_STREAM */
    int device;
    struct ibx_kept_event behind;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;
static struct holding *holdings;
static struct launched *launches;
static struct inner *inners;
static void *releasing[DEVICES]; /* the streams in which objects are released; NULL: none yet */
static _Atomic unsigned holding_count;

/* A child drops all: the functions are the parent's to call. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    objects = NULL;
    holdings = NULL;
    launches = NULL;
    inners = NULL;
    memset(releasing, 0, sizeof(releasing));
    atomic_store(&holding_count, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* ------------------------------------------------------------------------------ references */

/* Called under the lock. NULL: there is none. */
static struct object *object_of(const void *handle)
{
    struct object *o = objects;
    while (o && o != handle)
        o = o->next;
    return o;
}

/* Called under the lock. Adds the object to *over if that was the last reference. */
static void release(struct object *o, uint64_t count, struct object **over)
{
    o->references -= count;
    if (o->references)
        return;
    struct object **at = &objects;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    o->next = *over;
    *over = o;
}

/* Called without the lock: calls the functions of these objects. */
static void call(struct object *over)
{
    for (struct object *o; (o = over);) {
        over = o->next;
        o->destroy(o->what);
        free(o);
    }
}

/* Called under the lock. The pointer in the list that points to the entry, or to NULL at the end.
 */
static struct holding **place_of(const void *holder, const struct object *object)
{
    struct holding **at = &holdings;
    while (*at && !((*at)->holder == holder && (!object || (*at)->object == object)))
        at = &(*at)->next;
    return at;
}

/* Called under the lock. False: there is no memory. */
static bool hold(const void *holder, struct object *object, uint64_t count)
{
    struct holding *h = *place_of(holder, object);
    if (!h) {
        if (!(h = malloc(sizeof(*h))))
            return false;
        *h = (struct holding){.next = holdings, .holder = holder, .object = object};
        holdings = h;
        atomic_fetch_add(&holding_count, 1);
    }
    h->count += count;
    return true;
}

/* Called under the lock. Removes all entries of one holder from the list. */
static struct holding *take_all(const void *holder)
{
    struct holding *taken = NULL;
    for (struct holding **at; *(at = place_of(holder, NULL));) {
        struct holding *h = *at;
        *at = h->next;
        h->next = taken;
        taken = h;
        atomic_fetch_sub(&holding_count, 1);
    }
    return taken;
}

static void free_all(struct holding *taken)
{
    for (struct holding *h; (h = taken);) {
        taken = h->next;
        free(h);
    }
}

static void give_up(struct holding *taken)
{
    struct object *over = NULL;
    pthread_mutex_lock(&lock);
    for (struct holding *h = taken; h; h = h->next)
        release(h->object, h->count, &over);
    pthread_mutex_unlock(&lock);
    free_all(taken);
    call(over);
}

/* ------------------------------------------------------------------------ graphs come and go */

/* Called under the lock. NULL: it ends with no other one. */
static struct inner *inner_of(const void *graph)
{
    struct inner *i = inners;
    while (i && i->graph != graph)
        i = i->next;
    return i;
}

/* Called under the lock. The graph that has its objects. The back end might say that graphs are
 * within each other in a circle. */
static const void *holder_of(const void *graph)
{
    const struct inner *i = inner_of(graph);
    for (unsigned depth = 0; i && depth < IBX_EXT_GRAPHS_DEEP; depth++) {
        graph = i->outer;
        i = inner_of(graph);
    }
    return graph;
}

/* Called under the lock. The graph is about to be destroyed, and those that end with it. */
static void forget_inners(const void *outer)
{
    struct inner *ended = NULL;
    for (struct inner **at = &inners, *i; (i = *at);) {
        if (i->outer != outer) {
            at = &i->next;
            continue;
        }
        *at = i->next;
        i->next = ended;
        ended = i;
    }
    for (struct inner *i; (i = ended);) {
        ended = i->next;
        forget_inners(i->graph);
        free(i);
    }
}

static bool any(void)
{
    return atomic_load_explicit(&holding_count, memory_order_relaxed);
}

/* Without memory for an entry the references are for good: `to` may use the objects. */
void ibx_frontend_objects_share(const void *from, const void *to)
{
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    to = holder_of(to);
    for (const struct holding *h = holdings; h; h = h->next) {
        if (h->holder != from)
            continue;
        hold(to, h->object, h->count); /* the new entry is before h */
        h->object->references += h->count;
    }
    pthread_mutex_unlock(&lock);
}

void ibx_frontend_objects_move(const void *from, const void *to)
{
    struct holding *gone = NULL;
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    to = holder_of(to);
    for (struct holding **at = &holdings, *h; (h = *at);) {
        struct holding *same = h->holder == from ? *place_of(to, h->object) : NULL;
        if (!same) {
            h->holder = h->holder == from ? to : h->holder;
            at = &h->next;
            continue;
        }
        same->count += h->count;
        *at = h->next;
        h->next = gone;
        gone = h;
        atomic_fetch_sub(&holding_count, 1);
    }
    pthread_mutex_unlock(&lock);
    for (struct holding *h; (h = gone);) {
        gone = h->next;
        free(h);
    }
}

/* Called under the lock. NULL: it was not launched. */
static struct launched *take_launched(const void *exec)
{
    struct launched **at = &launches;
    while (*at && (*at)->exec != exec)
        at = &(*at)->next;
    struct launched *found = *at;
    if (found)
        *at = found->next;
    return found;
}

/* The calls below are not the program's: nor are their errors. */
static void forget_errors(int before)
{
    if (!before && cudaPeekAtLastError())
        cudaGetLastError();
}

/* The event ends. `over`: it was reached, so that nothing waits for it. */
static void end_event(struct launched *l, bool over)
{
    if (l->behind.event)
        ibx_frontend_event_give_back(&l->behind, over);
    l->behind.event = NULL;
}

static void end_launched(struct launched *l)
{
    if (l)
        end_event(l, false);
    free(l);
}

/* Whether it is known, without a request, that the launch has completed. The legacy stream, and a
 * thread's own, have the same handle on each device and in each thread. */
static bool is_over(const struct launched *l)
{
    return (uintptr_t)l->stream > (uintptr_t)CUDA_STREAM_PER_THREAD &&
           ibx_frontend_knows(IBX_FRONTEND_STREAM_RESTS, (uintptr_t)l->stream, NULL);
}

/* An event belongs to the device on which it is made. */
static bool has_event(struct launched *l, int device)
{
    if (l->behind.event && l->behind.device != device)
        end_event(l, false);
    if (!l->behind.event && ibx_frontend_event_take(&l->behind))
        l->behind.event = NULL;
    return l->behind.event;
}

/* Puts the event behind the launch. As a rule this sends one request, which is not waited for. */
static void mark(struct launched *l, void *stream)
{
    const bool clean = ibx_frontend_knows(IBX_FRONTEND_NONE_KNOWN, 0, NULL);
    const int here = ibx_frontend_current_device(), there = ibx_frontend_device_of_stream(stream);
    bool good = there == here || !cudaSetDevice(there);
    l->stream = stream;
    l->device = there;
    good = good && has_event(l, there) && !cudaEventRecord(l->behind.event, stream);
    if (!good)
        end_event(l, false);
    if (there != here && cudaSetDevice(here))
        good = false;
    if (!good && clean)
        cudaGetLastError();
}

/* Called under the lock. The last launch of an executable graph with objects, which is taken out of
 * the list; NULL: it has none, or there is no memory, which its objects tell then. */
static struct launched *launched_of(const void *exec)
{
    struct launched *l = take_launched(exec);
    if (l || !*place_of(exec, NULL))
        return l;
    l = calloc(1, sizeof(*l));
    if (l)
        l->exec = exec;
    for (struct holding *h = holdings; h; h = h->next)
        h->unseen = h->holder == exec ? !l : h->unseen;
    return l;
}

void ibx_frontend_objects_launched(const void *exec, void *stream)
{
    if (!any() || ibx_frontend_captures(stream))
        return;
    pthread_mutex_lock(&lock);
    struct launched *l = launched_of(exec);
    pthread_mutex_unlock(&lock);
    if (!l)
        return;
    mark(l, stream);
    pthread_mutex_lock(&lock);
    l->next = launches;
    launches = l;
    pthread_mutex_unlock(&lock);
}

static void behind_launch(void *taken)
{
    give_up(taken);
}

/* The current device's; NULL: there is none. */
static void *stream_to_release(int device)
{
    void *made = NULL;
    if (device >= DEVICES)
        return NULL;
    pthread_mutex_lock(&lock);
    void *stream = releasing[device];
    pthread_mutex_unlock(&lock);
    if (stream || cudaStreamCreateWithFlags(&made, NON_BLOCKING))
        return stream;
    pthread_mutex_lock(&lock);
    stream = releasing[device] = releasing[device] ? releasing[device] : made;
    pthread_mutex_unlock(&lock);
    if (stream != made) /* another thread was faster */
        ibx_frontend_stream_destroy(made);
    return stream;
}

/* Releases the objects by a host function behind the event, on its device: a reset of another one
 * does not touch that. */
static bool gives_up_behind(struct holding *taken, const struct ibx_kept_event *behind)
{
    const int here = ibx_frontend_current_device();
    if (behind->device != here && cudaSetDevice(behind->device))
        return false;
    void *stream = stream_to_release(behind->device);
    const bool later = stream && !cudaStreamWaitEvent(stream, behind->event, 0) &&
                       !cudaLaunchHostFunc(stream, behind_launch, taken);
    if (behind->device != here)
        cudaSetDevice(here);
    return later;
}

/* There is no event. The stream may have been destroyed, or is being captured; then nothing tells
 * when the launch has completed, and the objects, which it may use, are never released. */
static void give_up_unseen(struct holding *taken, void *stream)
{
    if (stream == NO_STREAM || ibx_frontend_captures(stream) ||
        cudaLaunchHostFunc(stream, behind_launch, taken))
        free_all(taken);
}

/* Releases the objects once the launch has completed. */
static void give_up_later(struct holding *taken, struct launched *l)
{
    void *const event = l->behind.event;
    const int before = cudaPeekAtLastError(), mode = ibx_frontend_relax();
    const int state = event ? ibx_frontend_event_ask(event) : CUDA_NOT_READY;
    bool later = !event;
    if (!event) {
        give_up_unseen(taken, l->stream);
    } else if (state == CUDA_NOT_READY) {
        later = gives_up_behind(taken, &l->behind);
        if (!later)
            cudaEventSynchronize(event);
    }
    end_event(l, state == CUDA_SUCCESS);
    ibx_frontend_relax_end(mode);
    forget_errors(before);
    if (!later)
        give_up(taken);
}

/* The same; NULL: nothing was launched, or nothing tells when the launch has completed. */
static void give_up_behind(struct holding *taken, struct launched *l)
{
    if (l)
        give_up_later(taken, l);
    else if (taken->unseen)
        free_all(taken);
    else
        give_up(taken);
}

void ibx_frontend_objects_updated(const void *exec, const void *graph)
{
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    struct holding *taken = take_all(exec);
    struct launched *l = take_launched(exec);
    pthread_mutex_unlock(&lock);
    ibx_frontend_objects_share(graph, exec);
    if (taken)
        give_up_behind(taken, l);
    end_launched(l);
}

/* What was launched there has gone, with the events: its objects are left for the end of the
 * process. */
void ibx_frontend_objects_reset(int device)
{
    pthread_mutex_lock(&lock);
    if (device < DEVICES)
        releasing[device] = NULL;
    for (struct launched **at = &launches, *l; (l = *at);) {
        if (l->device != device) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
    pthread_mutex_unlock(&lock);
}

void ibx_frontend_objects_within(const void *graph, const void *outer)
{
    struct inner *made = malloc(sizeof(*made));
    if (!made)
        return; /* what the graph gets is never released */
    pthread_mutex_lock(&lock);
    *made = (struct inner){inners, graph, outer};
    inners = made;
    pthread_mutex_unlock(&lock);
}

void ibx_frontend_objects_made(const void *graph)
{
    pthread_mutex_lock(&lock);
    for (struct inner **at = &inners, *i; (i = *at);) {
        if (i->graph != graph) {
            at = &i->next;
            continue;
        }
        *at = i->next;
        free(i);
    }
    pthread_mutex_unlock(&lock);
}

struct holding *ibx_frontend_objects_take(const void *holder, struct launched **launched)
{
    pthread_mutex_lock(&lock);
    if (inners && holder_of(holder) == holder) /* others are not destroyed */
        forget_inners(holder);
    struct holding *taken = take_all(holder);
    *launched = taken ? take_launched(holder) : NULL;
    pthread_mutex_unlock(&lock);
    if (*launched && is_over(*launched)) { /* asked now: to destroy it may add work */
        end_event(*launched, true);
        free(*launched);
        *launched = NULL;
    }
    return taken;
}

void ibx_frontend_objects_stream_gone(const void *stream)
{
    if (!any())
        return;
    pthread_mutex_lock(&lock);
    for (struct launched *l = launches; l; l = l->next)
        if (l->stream == stream)
            l->stream = NO_STREAM;
    pthread_mutex_unlock(&lock);
}

void ibx_frontend_objects_gone(struct holding *taken, struct launched *launched, bool gone)
{
    if (gone)
        give_up_behind(taken, launched);
    if (gone)
        end_launched(launched);
    pthread_mutex_lock(&lock);
    if (!gone && launched) {
        launched->next = launches;
        launches = launched;
    }
    for (struct holding *h; !gone && (h = taken);) {
        taken = h->next;
        h->next = holdings;
        holdings = h;
        atomic_fetch_add(&holding_count, 1);
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------- the calls */

int cudaUserObjectCreate(void **object, void *what, void (*destroy)(void *what),
                         unsigned references, unsigned flags)
{
    struct object *made =
        object && destroy && references && flags == NO_SYNC ? malloc(sizeof(*made)) : NULL;
    if (!made)
        return ibx_frontend_fail(object && destroy && references && flags == NO_SYNC
                                     ? CUDA_MEMORY_ALLOCATION
                                     : CUDA_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    *made = (struct object){objects, what, destroy, references, references};
    objects = made;
    pthread_mutex_unlock(&lock);
    *object = made;
    return CUDA_SUCCESS;
}

/* Of references that are retained or released. */
static bool is_count(unsigned count)
{
    return count && count <= INT_MAX;
}

int cudaUserObjectRetain(void *object, unsigned count)
{
    pthread_mutex_lock(&lock);
    struct object *o = is_count(count) ? object_of(object) : NULL;
    if (o) {
        o->references += count;
        o->program += count;
    }
    pthread_mutex_unlock(&lock);
    return o ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaUserObjectRelease(void *object, unsigned count)
{
    struct object *over = NULL;
    pthread_mutex_lock(&lock);
    struct object *o = is_count(count) ? object_of(object) : NULL;
    const bool has = o && count <= o->program;
    if (has) {
        o->program -= count;
        release(o, count, &over);
    }
    pthread_mutex_unlock(&lock);
    call(over);
    return has ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

int cudaGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags)
{
    size_t nodes = 0;
    /* Checks that it is a graph. */
    int rc = is_count(count) && flags <= MOVE ? cudaGraphGetNodes(graph, NULL, &nodes)
                                              : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    struct object *o = object_of(object);
    const bool sound = o && (flags != MOVE || count <= o->program);
    const bool held = sound && hold(holder_of(graph), o, count);
    if (held && flags == MOVE)
        o->program -= count;
    else if (held)
        o->references += count;
    pthread_mutex_unlock(&lock);
    return held ? CUDA_SUCCESS
                : ibx_frontend_fail(sound ? CUDA_MEMORY_ALLOCATION : CUDA_INVALID_VALUE);
}

int cudaGraphReleaseUserObject(void *graph, void *object, unsigned count)
{
    struct object *over = NULL;
    struct holding *gone = NULL;
    pthread_mutex_lock(&lock);
    struct object *o = is_count(count) ? object_of(object) : NULL;
    struct holding **at = o ? place_of(holder_of(graph), o) : NULL, *h = at ? *at : NULL;
    const bool has = h && count <= h->count;
    if (has && !(h->count -= count)) {
        *at = h->next;
        gone = h;
        atomic_fetch_sub(&holding_count, 1);
    }
    if (has)
        release(o, count, &over);
    pthread_mutex_unlock(&lock);
    free(gone);
    call(over);
    return has ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}
