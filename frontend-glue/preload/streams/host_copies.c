/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between host and device that are host functions, called by a graph or a stream
 * (host_functions.c). If the back end has a slot for the copy, page-locked memory of its own, this
 * side copies between the slot and its memory, which needs no call of CUDA; short copies from the
 * device come with the message that the function is to be called. If it has none, the function
 * makes the whole copy while the graph waits: in a stream that waits for nothing else, and without
 * an order with other threads' calls, which may be waiting for the graph.
 */
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/preload/streams/host_copies.h"

#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>

#define NON_BLOCKING 1u /* cudaStreamNonBlocking */

#define SLOT(number) ((uint64_t)1 << 63 | (number) << 32) /* see docs/protocol.md */
#define PIECE        ((size_t)1 << 19)  /* bytes of a slot in one request, as a message may have */
#define TAKEN_MOST   ((size_t)16 << 20) /* bytes that launches have taken; CUDA: about 2 MiB */

static struct streams {
    void *of[IBX_HOST_COPY_DEVICES];
    unsigned resets_seen;
} functions; /* of the thread that calls functions */
/* Of one that serves accesses to managed memory. The latter, which the back end may leave behind
 * with a copy that is not made, are for copies from the device. */
static _Thread_local struct streams beside, fetches;
static atomic_bool slots; /* the back end has slots */
static _Atomic unsigned resets;
static _Atomic int failure;
static _Atomic size_t taken_bytes; /* by launches */

static void in_child(void)
{
    memset(&functions, 0, sizeof(functions));
    atomic_store(&slots, false);
    atomic_store(&failure, 0);
    atomic_store(&taken_bytes, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ibx_frontend_graph_reset(void)
{
    atomic_fetch_add(&resets, 1);
}

int ibx_frontend_graph_failure(void)
{
    return atomic_load_explicit(&failure, memory_order_relaxed) ? atomic_exchange(&failure, 0) : 0;
}

unsigned ibx_host_copies_resets(void)
{
    return atomic_load(&resets);
}

/* ------------------------------------------------------------- in a stream of this library's */

/* Forgets streams whose context was reset. */
static void forget_streams(struct streams *s)
{
    const unsigned now = atomic_load_explicit(&resets, memory_order_relaxed);
    if (now == s->resets_seen)
        return;
    memset(s->of, 0, sizeof(s->of));
    s->resets_seen = now;
}

/* The device, which may be any number of the back end's, stays selected: the thread is not the
 * program's. */
static int stream_of(struct streams *s, int device, void **stream)
{
    int now = 0;
    if (device < 0 || device >= IBX_HOST_COPY_DEVICES)
        return CUDA_INVALID_DEVICE;
    int rc = cudaGetDevice(&now);
    forget_streams(s);
    if (!rc && now != device)
        rc = cudaSetDevice(device);
    if (!rc && !s->of[device])
        rc = CALL_NEXT(cudaStreamCreateWithFlags, &s->of[device], NON_BLOCKING);
    *stream = s->of[device];
    return rc;
}

/* In memory of the device, any number may be an address. */
static void *row_of(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                    size_t y, size_t z)
{
    const size_t row = (at->depth + z) * memory->y + at->height + y;
    return (void *)((uintptr_t)memory->at + row * memory->pitch + at->width);
}

/* Without an order with other threads' calls, which may wait for the graph. */
static int copy_row(const struct ibx_cuda_memcpy3d *p, size_t y, size_t z, void *stream)
{
    const bool to_device = p->kind == CUDA_MEMCPY_TO_DEVICE;
    void *to = row_of(&p->to, &p->to_at, y, z), *from = row_of(&p->from, &p->from_at, y, z);
    const struct ibx_frontend_copy copy = {.to_device = to_device,
                                           .async = true,
                                           .alone = true,
                                           .device = (uintptr_t)(to_device ? to : from),
                                           .host = to_device ? from : to,
                                           .n = p->extent.width,
                                           .stream = (uintptr_t)stream};
    int code = CUDA_SUCCESS;
    return ibx_frontend_plugin()->copy(&copy, &code) ? CUDA_UNKNOWN : code;
}

static int copy_rows(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    int rc = CUDA_SUCCESS;
    for (size_t z = 0; z < p->extent.depth && !rc; z++)
        for (size_t y = 0; y < p->extent.height && !rc; y++) {
            if (p->kind == CUDA_MEMCPY_ON_HOST)
                memcpy(row_of(&p->to, &p->to_at, y, z), row_of(&p->from, &p->from_at, y, z),
                       p->extent.width);
            else
                rc = copy_row(p, y, z, stream);
        }
    return rc;
}

static int wait_for(void *stream)
{
    struct extension_request e;
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_WAIT, "cudaStreamSynchronize");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return ibx_frontend_request_try(&e, NULL, 0, &code) ? code : CUDA_UNKNOWN;
}

/* A copy of a thread that serves accesses to managed memory. The back end makes it though streams
 * that wait for a function take the GPU's queues, if it is told that the copy comes after nothing.
 * An earlier one refuses the mark as an address that it does not know. */
static int copy_alone(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    struct ibx_cuda_memcpy3d marked = *copy;
    void **device = copy->kind == CUDA_MEMCPY_TO_DEVICE ? &marked.to.at : &marked.from.at;
    *device = (void *)((uintptr_t)*device | IBX_EXT_ALONE);
    if (!copy_row(&marked, 0, 0, stream)) /* complete, unlike copies without the mark */
        return CUDA_SUCCESS;
    const int rc = copy_row(copy, 0, 0, stream);
    return rc ? rc : wait_for(stream);
}

int ibx_frontend_copy_beside(void *to, const void *from, size_t n, int kind, int device)
{
    const struct ibx_cuda_memcpy3d copy = {.kind = kind,
                                           .from = {(void *)(uintptr_t)from, n, n, 1},
                                           .to = {to, n, n, 1},
                                           .extent = {n, 1, 1}};
    struct streams *streams = kind == CUDA_MEMCPY_TO_DEVICE ? &beside : &fetches;
    void *stream;
    const int rc = ibx_frontend_plugin() ? stream_of(streams, device, &stream) : CUDA_UNKNOWN;
    return rc ? rc : copy_alone(&copy, stream);
}

static void note_failure(int rc)
{
    atomic_store(&failure, rc);
    ibx_log(IBX_LOG_ERROR,
            "a copy between host and device in a graph has failed with CUDA error %d: the next "
            "call that waits returns it",
            rc);
}

void ibx_host_copy_make(void *argument)
{
    const struct ibx_host_copy *copy = argument;
    const bool by_cuda = copy->parameters.kind != CUDA_MEMCPY_ON_HOST;
    void *stream = NULL;
    int rc = by_cuda ? stream_of(&functions, copy->device, &stream) : CUDA_SUCCESS;
    if (!rc)
        rc = copy_rows(&copy->parameters, stream);
    if (!rc && by_cuda)
        rc = wait_for(stream); /* a copy to pinned memory returns before it is complete */
    if (rc)
        note_failure(rc);
}

/* ---------------------------------------------------------------------------------- by a slot */

static bool copies_to_device(const struct ibx_host_copy *copy)
{
    return copy->parameters.kind == CUDA_MEMCPY_TO_DEVICE;
}

size_t ibx_host_copy_bytes(const struct ibx_cuda_memcpy3d *p)
{
    return p->extent.width * p->extent.height * p->extent.depth;
}

static struct ibx_host_span span_of(const struct ibx_cuda_pitched *memory,
                                    const struct ibx_cuda_extent *at,
                                    const struct ibx_cuda_extent *extent)
{
    const uintptr_t first = (uintptr_t)row_of(memory, at, 0, 0);
    const uintptr_t last = (uintptr_t)row_of(memory, at, extent->height - 1, extent->depth - 1);
    return (struct ibx_host_span){first, last + extent->width};
}

struct ibx_host_span ibx_host_copy_reads(const struct ibx_cuda_memcpy3d *p)
{
    return span_of(&p->from, &p->from_at, &p->extent);
}

struct ibx_host_span ibx_host_copy_writes(const struct ibx_cuda_memcpy3d *p)
{
    return span_of(&p->to, &p->to_at, &p->extent);
}

static const struct ibx_cuda_pitched *host_side(const struct ibx_cuda_memcpy3d *p)
{
    return p->kind == CUDA_MEMCPY_TO_DEVICE ? &p->from : &p->to;
}

static char *host_row(const struct ibx_cuda_memcpy3d *p, size_t y, size_t z)
{
    return p->kind == CUDA_MEMCPY_TO_DEVICE ? row_of(&p->from, &p->from_at, y, z)
                                            : row_of(&p->to, &p->to_at, y, z);
}

/* Whether the rows are contiguous. */
static bool is_whole(const struct ibx_cuda_memcpy3d *p)
{
    const struct ibx_cuda_pitched *host = host_side(p);
    const struct ibx_cuda_extent *e = &p->extent;
    return (e->height * e->depth == 1 || host->pitch == e->width) &&
           (e->depth == 1 || host->y == e->height);
}

/* Copies between the rows and `bytes`, without gaps. */
static void pack(const struct ibx_cuda_memcpy3d *p, uint8_t *bytes, bool rows_to_bytes)
{
    for (size_t z = 0; z < p->extent.depth; z++)
        for (size_t y = 0; y < p->extent.height; y++, bytes += p->extent.width) {
            char *row = host_row(p, y, z);
            memcpy(rows_to_bytes ? (char *)bytes : row, rows_to_bytes ? row : (char *)bytes,
                   p->extent.width);
        }
}

/* False: the plugin has refused it, as it does if the bytes are, or become, managed memory. */
static bool exchange_bytes(const struct ibx_host_copy *copy, uint8_t *bytes, size_t n, int *rc)
{
    int code = CUDA_SUCCESS;
    for (size_t at = 0; at < n && !code; at += PIECE) {
        const struct ibx_frontend_copy piece = {.to_device = copies_to_device(copy),
                                                .async = true,
                                                .alone = true,
                                                .device = SLOT(copy->number) + at,
                                                .host = bytes + at,
                                                .n = n - at < PIECE ? n - at : PIECE};
        if (ibx_frontend_plugin()->copy(&piece, &code))
            return false;
    }
    *rc = code;
    return true;
}

/* Through bytes in between: this thread accesses the rows as a function of the program does. */
static int exchange_packed(const struct ibx_host_copy *copy)
{
    const struct ibx_cuda_memcpy3d *p = &copy->bytes;
    const size_t n = ibx_host_copy_bytes(p);
    uint8_t *bytes = malloc(n);
    int rc = CUDA_UNKNOWN;
    if (!bytes)
        return CUDA_MEMORY_ALLOCATION;
    if (copies_to_device(copy))
        pack(p, bytes, true);
    const bool made = exchange_bytes(copy, bytes, n, &rc);
    if (made && !rc && !copies_to_device(copy))
        pack(p, bytes, false);
    free(bytes);
    return rc;
}

struct ibx_launch_bytes *ibx_launch_bytes_take(const struct ibx_host_copy *copy)
{
    const size_t n = ibx_host_copy_bytes(&copy->bytes);
    size_t before = atomic_load(&taken_bytes);
    do {
        if (n > TAKEN_MOST || before > TAKEN_MOST - n)
            return NULL;
    } while (!atomic_compare_exchange_weak(&taken_bytes, &before, before + n));
    struct ibx_launch_bytes *taken = malloc(sizeof(*taken) + n);
    if (!taken) {
        atomic_fetch_sub(&taken_bytes, n);
        return NULL;
    }
    taken->n = n;
    pack(&copy->bytes, taken->bytes, true);
    return taken;
}

void ibx_launch_bytes_free(struct ibx_launch_bytes *taken)
{
    if (taken)
        atomic_fetch_sub(&taken_bytes, taken->n);
    free(taken);
}

void ibx_frontend_graph_give(void *argument, struct ibx_launch_bytes *taken)
{
    struct ibx_host_copy *copy = argument;
    int rc;
    const bool made = exchange_bytes(copy, taken->bytes, taken->n, &rc);
    atomic_fetch_add(&copy->called, 1);
    if (!made || rc)
        note_failure(made ? rc : CUDA_UNKNOWN);
}

static int exchange_rows(const struct ibx_host_copy *copy)
{
    const struct ibx_cuda_memcpy3d *p = &copy->bytes;
    int rc;
    return is_whole(p) &&
                   exchange_bytes(copy, (uint8_t *)host_row(p, 0, 0), ibx_host_copy_bytes(p), &rc)
               ? rc
               : exchange_packed(copy);
}

void ibx_host_copy_exchange(void *argument)
{
    struct ibx_host_copy *copy = argument;
    /* A back end may name a function for which no launch has bytes. */
    const int rc = host_side(&copy->bytes)->at ? exchange_rows(copy) : CUDA_UNKNOWN;
    atomic_fetch_add(&copy->called, 1);
    if (rc)
        note_failure(rc);
}

void ibx_host_copies_by_slots(void)
{
    atomic_store(&slots, true);
}

bool ibx_frontend_graph_takes_bytes(void)
{
    return atomic_load_explicit(&slots, memory_order_relaxed);
}

bool ibx_frontend_graph_copies(void (*function)(void *argument))
{
    return function == ibx_host_copy_make || function == ibx_host_copy_exchange;
}

bool ibx_frontend_graph_copied(void (*function)(void *argument), void *argument, uint8_t *bytes,
                               size_t n)
{
    const struct ibx_host_copy *copy = argument;
    if (function != ibx_host_copy_exchange || copies_to_device(copy) ||
        n != ibx_host_copy_bytes(&copy->bytes))
        return false;
    pack(&copy->bytes, bytes, false);
    return true;
}
