/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between host and device in graphs. The back end cannot reach this host's memory by an
 * address. So it copies between the device and a slot, page-locked memory of its own, by a node of
 * CUDA's, and calls a function of ours (host_functions.c) before the copy to the device, and behind
 * that from it: this side then copies between the slot and its memory, which needs no call of
 * CUDA's. Few bytes from the device come with the word that the function is to be called.
 *
 * Where the back end has no slot for a copy, its graph calls another function of ours in place of
 * it, which makes the copy. Both functions are host_copies.c's.
 *
 * The same copy is the same function. They are not given back here: nobody tells this process when
 * the last graph that calls one has gone.
 */
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *copies; /* a tree */

/* Copies behind functions, each in a graph that is launched again. */
#define BEHIND       64u
#define BEHIND_BYTES ((size_t)256 << 20) /* of all, in slots of the back end's */
static struct behind {
    struct ibx_host_copy *copy;
    void *exec, *stream; /* the latter of its last launch */
    unsigned due;        /* calls of the copy's function by which all its launches are over */
} behind[BEHIND];
static unsigned behind_count, behind_resets;
static size_t behind_bytes;
static pthread_mutex_t behind_lock = PTHREAD_MUTEX_INITIALIZER;

/* Another thread may be changing the tree, which the child goes on with. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&behind_lock, NULL);
    behind_bytes = behind_count = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ------------------------------------------------------------------------------ in a graph */

static int compare(const void *a, const void *b)
{
    const struct ibx_host_copy *left = a, *right = b;
    const int copies_differ =
        memcmp(&left->parameters, &right->parameters, offsetof(struct ibx_cuda_memcpy3d, kind));
    if (copies_differ)
        return copies_differ;
    return left->device != right->device ? left->device - right->device
                                         : left->parameters.kind - right->parameters.kind;
}

static struct ibx_host_copy *find_or_make(const struct ibx_cuda_memcpy3d *p, int device)
{
    const struct ibx_host_copy wanted = {.parameters = *p, .device = device};
    pthread_mutex_lock(&lock);
    struct ibx_host_copy *const *found = tfind(&wanted, &copies, compare);
    struct ibx_host_copy *made = found ? NULL : malloc(sizeof(*made));
    if (made) {
        *made = wanted;
        found = tsearch(made, &copies, compare);
    }
    struct ibx_host_copy *copy = found ? *found : NULL;
    pthread_mutex_unlock(&lock); /* who forks waits for it, and for no bytes of a copy */
    if (copy)
        ibx_host_copy_wanted(copy);
    else
        free(made);
    return copy;
}

static struct ibx_host_copy *copy_of(const struct ibx_cuda_memcpy3d *p, int *rc)
{
    int device = 0;
    *rc = CUDA_NOT_SUPPORTED;
    /* Elements of an array have a size of their own; and a copy there is one of the legacy stream.
     */
    if (p->from_array || p->to_array || !NEXT(cudaStreamCreateWithFlags))
        return NULL;
    if (cudaGetDevice(&device) || device < 0 || device >= IBX_HOST_COPY_DEVICES)
        return NULL;
    *rc = CUDA_MEMORY_ALLOCATION;
    return find_or_make(p, device);
}

uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *p, uint64_t *queue, int *rc)
{
    struct ibx_host_copy *copy = copy_of(p, rc);
    const uint64_t number = copy ? ibx_frontend_host_repeated(ibx_host_copy_make, copy, queue) : 0;
    if (copy && !number)
        *rc = CUDA_NOT_SUPPORTED;
    ibx_frontend_device_used();
    return number;
}

uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy)
{
    uint64_t queue, number;
    int rc;
    struct ibx_cuda_memcpy3d p = *copy;
    struct ibx_host_copy *found =
        p.kind == CUDA_MEMCPY_ON_HOST || !ibx_host_copy_bytes(&p) ? NULL : copy_of(&p, &rc);
    if (!found || !(number = ibx_frontend_host_repeated(ibx_host_copy_exchange, found, &queue)) ||
        number >> 31)
        return 0;
    found->number = number;
    *(p.kind == CUDA_MEMCPY_TO_DEVICE ? &p.from : &p.to) = (struct ibx_cuda_pitched){.at = NULL};
    ibx_put_u64(body, queue);
    ibx_put_u64(body, number);
    ibx_layout_put(body, IBX_LAYOUT_MEMCPY3D, &p);
    return number;
}

bool ibx_frontend_slot_made(struct own_request *e, void *out, size_t n, int *rc)
{
    const bool made = ibx_frontend_request_known(e, out, n, rc);
    if (made && !*rc)
        ibx_host_copies_by_slots();
    ibx_frontend_device_used();
    return made;
}

bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *p)
{
    struct host_node host;
    if (!ibx_frontend_host_function_of(number, &host) || host.function != ibx_host_copy_exchange)
        return false;
    *p = ((const struct ibx_host_copy *)host.argument)->parameters;
    return true;
}

/* --------------------------------------------------------------- behind functions of a stream's */

/* Locked. */
static struct behind take_behind(unsigned at)
{
    const struct behind taken = behind[at];
    behind[at] = behind[--behind_count];
    behind_bytes -= ibx_host_copy_bytes(&taken.copy->parameters);
    return taken;
}

/* Locked. */
static void put_behind(const struct behind *last)
{
    behind[behind_count++] = *last;
    behind_bytes += ibx_host_copy_bytes(&last->copy->parameters);
}

/* Locked. */
static bool is_over(const struct behind *b)
{
    return (int)(atomic_load(&b->copy->called) - b->due) >= 0;
}

/* Locked. Those that went with their context; before one of them is chosen for its bytes. */
static void forget_reset(void)
{
    const unsigned now = ibx_host_copies_resets();
    while (now != behind_resets && behind_count) {
        const struct behind gone = take_behind(behind_count - 1);
        if (is_over(&gone))
            ibx_host_copy_give_back(gone.copy);
    }
    behind_resets = now;
}

/* Locked. False: it is not there yet. */
static bool find_behind(const struct ibx_host_copy *copy, struct behind *found)
{
    unsigned i = 0;
    while (i < behind_count && behind[i].copy != copy)
        i++;
    const bool there = i < behind_count;
    if (there)
        *found = take_behind(i);
    return there;
}

/* Locked. All its launches are over. */
static void end_behind(struct behind over)
{
    cudaGraphExecDestroy(over.exec);
    ibx_host_copy_give_back(over.copy);
}

/* Locked. Those that are not under way. The driver may wait for what else is in their streams, so
 * not while a function is. */
static void drop_behind(void)
{
    for (unsigned i = 0; ibx_host_copies_resets() == behind_resets && i < behind_count;) {
        if (!is_over(&behind[i]) || ibx_frontend_host_waits(behind[i].stream))
            i++;
        else
            end_behind(take_behind(i));
    }
}

void ibx_frontend_graph_behind_trim(void)
{
    pthread_mutex_lock(&behind_lock);
    if (behind_count > BEHIND / 2 || behind_bytes > BEHIND_BYTES / 2)
        drop_behind();
    pthread_mutex_unlock(&behind_lock);
}

/* Locked. */
static bool has_room(const struct ibx_host_copy *copy)
{
    return behind_count < BEHIND &&
           ibx_host_copy_bytes(&copy->parameters) <= BEHIND_BYTES - behind_bytes;
}

/* Locked. False: it is not to be had. */
static bool make_behind(struct ibx_host_copy *copy, struct behind *made)
{
    void *graph = NULL, *node;
    int rc = CUDA_SUCCESS;
    *made = (struct behind){.copy = copy, .due = atomic_load(&copy->called)};
    if (!has_room(copy))
        drop_behind();
    if (!has_room(copy) || cudaGraphCreate(&graph, 0))
        return false;
    const bool good = ibx_frontend_slot_node(&node, graph, &copy->parameters, &rc) && !rc &&
                      !cudaGraphInstantiate(&made->exec, graph, 0);
    cudaGraphDestroy(graph);
    return good;
}

/* Locked. Likewise; then no call of the program's has failed. */
static bool try_behind(struct ibx_host_copy *copy, struct behind *made)
{
    const int before = cudaPeekAtLastError();
    if (make_behind(copy, made))
        return true;
    cudaGetLastError();
    if (before)
        ibx_frontend_fail(before);
    return false;
}

/* Locked. One that takes as many bytes to the same place, and is over; NULL: there is none. */
static struct ibx_host_copy *find_taken(const struct ibx_cuda_memcpy3d *p)
{
    int device = -1;
    for (unsigned i = 0; i < behind_count && !cudaGetDevice(&device); i++) {
        struct ibx_host_copy *copy = behind[i].copy;
        if (copy->taken && copy->device == device && copy->parameters.to.at == p->to.at &&
            ibx_host_copy_bytes(&copy->parameters) == ibx_host_copy_bytes(p) && is_over(&behind[i]))
            return copy;
    }
    return NULL;
}

/* Locked. That copy of the bytes that its memory has now; NULL: no memory. */
static struct ibx_host_copy *take_bytes(const struct ibx_cuda_memcpy3d *p)
{
    struct ibx_cuda_memcpy3d own = *p;
    int code;
    struct ibx_host_copy *copy = find_taken(p);
    if (!copy && (own.from.at = malloc(ibx_host_copy_bytes(p))) && (copy = copy_of(&own, &code)))
        copy->taken = own.from.at;
    else if (!copy)
        free(own.from.at);
    if (copy)
        memcpy(copy->taken, p->from.at, ibx_host_copy_bytes(p));
    return copy;
}

bool ibx_frontend_graph_copy_behind(const struct ibx_cuda_memcpy3d *parameters, bool takes,
                                    void *stream, int *rc)
{
    struct behind b;
    int code;
    pthread_mutex_lock(&behind_lock);
    forget_reset();
    struct ibx_host_copy *copy = takes ? take_bytes(parameters) : copy_of(parameters, &code);
    if (!copy) {
        pthread_mutex_unlock(&behind_lock);
        return false;
    }
    const bool there = find_behind(copy, &b) || try_behind(copy, &b);
    if (there) {
        const unsigned called = atomic_load(&copy->called);
        *rc = cudaGraphLaunch(b.exec, stream);
        b.stream = stream;
        if (!*rc)
            b.due = ((int)(b.due - called) > 0 ? b.due : called) + 1;
        put_behind(&b);
    } else if (takes) {
        ibx_host_copy_give_back(copy);
    }
    pthread_mutex_unlock(&behind_lock);
    return there;
}
