/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between host and device in graphs. The back end cannot access this host's memory. So a
 * node of CUDA copies between the device and a slot, page-locked memory of the back end, and the
 * graph calls a host function of this library (host_functions.c): before a copy to the device,
 * after one from it. The function copies between the slot and this process's memory, for which it
 * needs no call of CUDA. If a copy from the device is short, its bytes come with the message that
 * the function is to be called.
 *
 * If the back end has no slot for a copy, its graph calls another function of this library instead,
 * which makes the whole copy. Both functions are in host_copies.c.
 *
 * What a graph copies from pageable memory is what this has when the graph is launched, and the
 * launch waits for copies to it (launch_copies.c). Page-locked memory is read when the graph gets
 * there. What counts is what the memory was when the node was added.
 *
 * Equal copies share one function. They are never freed here, because nothing tells this process
 * when the last graph with such a function is destroyed.
 */
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *copies; /* a tree (tsearch(3)) of struct ibx_host_copy */

/* Copies that come after a host function in a stream. Each is a graph of one node, which is
 * launched again for an equal copy in the same stream, until a reset. */
#define BEHIND       64u
#define BEHIND_BYTES ((size_t)256 << 20) /* bytes of all of them, in slots of the back end */
static struct behind {
    struct ibx_host_copy *copy;
    void *exec, *stream; /* stream: of its last launch */
    unsigned due;        /* its launches are complete when copy->called reaches this */
} behind[BEHIND];
static unsigned behind_count, behind_resets;
static size_t behind_bytes;
static pthread_mutex_t behind_lock = PTHREAD_MUTEX_INITIALIZER;

/* The lock is held across a fork, because the child uses the tree. */
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

static int compare_planes(const struct ibx_cuda_memcpy3d *left,
                          const struct ibx_cuda_memcpy3d *right)
{
    return memcmp(left, right, offsetof(struct ibx_cuda_memcpy3d, kind));
}

/* An array may have the number of one that had other elements. */
static int compare(const void *a, const void *b)
{
    const struct ibx_host_copy *left = a, *right = b;
    const int copies_differ = compare_planes(&left->parameters, &right->parameters);
    const int bytes_differ = copies_differ ? 0 : compare_planes(&left->bytes, &right->bytes);
    if (copies_differ || bytes_differ)
        return copies_differ ? copies_differ : bytes_differ;
    if (left->pageable != right->pageable)
        return left->pageable - right->pageable;
    return left->device != right->device ? left->device - right->device
                                         : left->parameters.kind - right->parameters.kind;
}

static struct ibx_host_copy *find_or_make(const struct ibx_host_copy *wanted)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_copy *const *found = tfind(wanted, &copies, compare);
    struct ibx_host_copy *made = found ? NULL : malloc(sizeof(*made));
    if (made) {
        *made = *wanted;
        found = tsearch(made, &copies, compare);
    }
    struct ibx_host_copy *copy = found ? *found : NULL;
    pthread_mutex_unlock(&lock);
    if (!copy)
        free(made);
    return copy;
}

/* Of an array that this process has not made, only the back end could say how large its elements
 * are, and so how much of this process's memory is copied. */
static bool in_bytes(const struct ibx_cuda_memcpy3d *p, struct ibx_cuda_memcpy3d *bytes)
{
    const void *array = p->from_array ? p->from_array : p->to_array;
    struct ibx_frontend_array is;
    struct ibx_array_unit unit = {1, 1};
    if (array && !ibx_frontend_array_known(array, &is))
        return false;
    if (array)
        unit = ibx_array_unit_of(&is.channel);
    *bytes = ibx_frontend_planes_in_bytes(p, &unit);
    return unit.bytes && (bytes->extent.width || !p->extent.width);
}

/* What matters is what the memory is now, as for CUDA, not what it is when the graph is launched.
 */
static bool is_pageable(const struct ibx_cuda_memcpy3d *bytes)
{
    if (!ibx_host_copy_bytes(bytes) || bytes->kind == CUDA_MEMCPY_ON_HOST)
        return bytes->kind == CUDA_MEMCPY_ON_HOST;
    const struct ibx_host_span span = bytes->kind == CUDA_MEMCPY_TO_DEVICE
                                          ? ibx_host_copy_reads(bytes)
                                          : ibx_host_copy_writes(bytes);
    return ibx_frontend_host_memory((const void *)span.begin, span.end - span.begin) ==
           HOST_PAGEABLE;
}

static struct ibx_host_copy *copy_of(const struct ibx_cuda_memcpy3d *p, int *rc)
{
    struct ibx_host_copy wanted = {.parameters = *p};
    *rc = CUDA_NOT_SUPPORTED;
    if (!in_bytes(p, &wanted.bytes) || !NEXT(cudaStreamCreateWithFlags))
        return NULL;
    if (cudaGetDevice(&wanted.device) || wanted.device < 0 ||
        wanted.device >= IBX_HOST_COPY_DEVICES)
        return NULL;
    *rc = CUDA_MEMORY_ALLOCATION;
    wanted.pageable = is_pageable(&wanted.bytes);
    return find_or_make(&wanted);
}

uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *p, uint64_t *queue, int *rc)
{
    /* Copies of arrays run in the legacy stream, for which a function must not wait. */
    struct ibx_host_copy *copy = p->from_array || p->to_array ? NULL : copy_of(p, rc);
    const uint64_t number = copy ? ibx_frontend_host_repeated(ibx_host_copy_make, copy, queue) : 0;
    if (!number && (copy || p->from_array || p->to_array))
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

bool ibx_frontend_slot_made(struct extension_request *e, void *out, size_t n, int *rc)
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
    p->from.x = p->to.x = 0; /* as natively, whatever the program gave */
    return true;
}

/* ----------------------------------------------------------------- after a host function */

/* Called under the lock, like the next two. Removes an entry of the array. */
static struct behind take_behind(unsigned at)
{
    const struct behind taken = behind[at];
    behind[at] = behind[--behind_count];
    behind_bytes -= ibx_host_copy_bytes(&taken.copy->bytes);
    return taken;
}

static void put_behind(const struct behind *last)
{
    behind[behind_count++] = *last;
    behind_bytes += ibx_host_copy_bytes(&last->copy->bytes);
}

static bool is_over(const struct behind *b)
{
    return (int)(atomic_load(&b->copy->called) - b->due) >= 0;
}

/* Called under the lock, before one is looked up. Drops those whose context was reset. */
static void forget_reset(void)
{
    const unsigned now = ibx_host_copies_resets();
    while (now != behind_resets && behind_count)
        take_behind(behind_count - 1);
    behind_resets = now;
}

/* Called under the lock. Removes the graph of this copy from the array; false: there is none. */
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

/* Called under the lock. Destroys those whose launches are complete, except in a stream that waits
 * for a host function: the driver may wait there for the rest of the stream. */
static void drop_behind(void)
{
    for (unsigned i = 0; ibx_host_copies_resets() == behind_resets && i < behind_count;) {
        if (!is_over(&behind[i]) || ibx_frontend_host_waits(behind[i].stream))
            i++;
        else
            cudaGraphExecDestroy(take_behind(i).exec);
    }
}

void ibx_frontend_graph_behind_trim(void)
{
    pthread_mutex_lock(&behind_lock);
    if (behind_count > BEHIND / 2 || behind_bytes > BEHIND_BYTES / 2)
        drop_behind();
    pthread_mutex_unlock(&behind_lock);
}

/* Called under the lock. */
static bool has_room(const struct ibx_host_copy *copy)
{
    return behind_count < BEHIND &&
           ibx_host_copy_bytes(&copy->bytes) <= BEHIND_BYTES - behind_bytes;
}

/* Called under the lock. Makes the graph; false: it cannot be made. */
static bool make_behind(struct ibx_host_copy *copy, struct behind *made)
{
    void *graph = NULL, *node;
    int rc = CUDA_SUCCESS;
    *made = (struct behind){.copy = copy, .due = atomic_load(&copy->called)};
    if (!has_room(copy))
        drop_behind();
    if (!has_room(copy) || cudaGraphCreate(&graph, 0))
        return false;
    const int mode = ibx_frontend_relax();
    const bool good = ibx_frontend_slot_node(&node, graph, &copy->parameters, &rc) && !rc &&
                      !cudaGraphInstantiate(&made->exec, graph, 0);
    ibx_frontend_relax_end(mode);
    cudaGraphDestroy(graph);
    return good;
}

/* Called under the lock. As make_behind(); if it fails, the program's last error stays as it was.
 */
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

/* Called under the lock. The copy as it is in a graph of the stream's own: CUDA makes launches of
 * one graph wait for each other, also in different streams. Copies before a reset are others, too:
 * if it has ended them, their function was called less often than is_over() expects. A copy of one
 * row does not use the width and height of the memory, which the back end is not sent either.
 * Without an address the bytes are those that a launch has. */
static struct ibx_cuda_memcpy3d within_stream(const struct ibx_cuda_memcpy3d *p, bool takes,
                                              const void *stream)
{
    static _Thread_local char own;
    struct ibx_cuda_memcpy3d all = *p;
    struct ibx_cuda_pitched *host = p->kind == CUDA_MEMCPY_TO_DEVICE ? &all.from : &all.to;
    host->y = (uintptr_t)(stream == CUDA_STREAM_PER_THREAD ? &own : stream);
    host->x = behind_resets;
    host->at = takes ? NULL : host->at;
    return all;
}

/* Called under the lock. False: there is no graph for this copy. */
static bool launch_behind(struct ibx_host_copy *copy, struct ibx_launch_copy *bytes, void *stream,
                          int *rc)
{
    struct behind b;
    if (!find_behind(copy, &b) && !try_behind(copy, &b))
        return false;
    const unsigned called = atomic_load(&copy->called);
    *rc = ibx_frontend_launch_later(b.exec, stream, copy->number, bytes);
    b.stream = stream;
    if (!*rc)
        b.due = ((int)(b.due - called) > 0 ? b.due : called) + 1;
    put_behind(&b);
    return true;
}

bool ibx_frontend_graph_copy_behind(const struct ibx_cuda_memcpy3d *p, bool takes, void *stream,
                                    int *rc)
{
    const struct ibx_host_copy now = {.bytes = *p};
    struct ibx_launch_copy bytes = {IBX_COPY_LATER, NULL};
    int code;
    if (takes && !(bytes.taken = ibx_launch_bytes_take(&now)))
        return false;
    bytes.use = takes ? IBX_COPY_TAKEN : IBX_COPY_LATER;
    pthread_mutex_lock(&behind_lock);
    forget_reset();
    const struct ibx_cuda_memcpy3d planes = within_stream(p, takes, stream);
    struct ibx_host_copy *copy = copy_of(&planes, &code);
    const bool made = copy && launch_behind(copy, &bytes, stream, rc);
    pthread_mutex_unlock(&behind_lock);
    ibx_launch_bytes_free(bytes.taken); /* that no function has got */
    return made;
}
