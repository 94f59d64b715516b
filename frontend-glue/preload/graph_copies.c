/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between host and device in graphs. The back end cannot reach this host's memory by an
 * address, so its graph calls a function of ours there (host_functions.c), which makes the copy as
 * any other while the graph waits, in a stream that waits for nothing else, and in no order with
 * other threads' calls, which may be waiting for the graph. Few bytes from the device come with the
 * word that the function is to be called.
 *
 * The same copy is the same function. They are not given back: nobody tells when the last graph
 * that calls one has gone.
 */
#include "frontend-glue/preload/internal.h"

#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>

#define DEVICES      64
#define NON_BLOCKING 1u /* cudaStreamNonBlocking */

struct graph_copy {
    struct graph_copy *next;
    struct ibx_cuda_memcpy3d parameters;
    int device;       /* that was current */
    atomic_bool told; /* the back end knows which bytes these are */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_copy *copies;
static void *streams[DEVICES]; /* of the one thread that calls functions */
static void *answering;        /* one of these, in which the back end makes copies; likewise */
static unsigned resets_seen;   /* likewise */
static _Atomic unsigned resets;
static _Atomic int failure;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(streams, 0, sizeof(streams));
    answering = NULL;
    atomic_store(&failure, 0);
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

/* ---------------------------------------------------------------------- when a graph gets there */

/* Those that went with their context. */
static void forget_streams(void)
{
    const unsigned now = atomic_load_explicit(&resets, memory_order_relaxed);
    if (now == resets_seen)
        return;
    memset(streams, 0, sizeof(streams));
    answering = NULL;
    resets_seen = now;
}

static int stream_of(int device, void **stream)
{
    int now = 0, rc = cudaGetDevice(&now);
    forget_streams();
    if (!rc && now != device)
        rc = cudaSetDevice(device);
    if (!rc && !streams[device])
        rc = CALL_NEXT(cudaStreamCreateWithFlags, &streams[device], NON_BLOCKING);
    *stream = streams[device];
    return rc;
}

static void *row_of(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                    size_t y, size_t z)
{
    return (char *)memory->at + ((at->depth + z) * memory->y + at->height + y) * memory->pitch +
           at->width;
}

/* In no order with calls of other threads: these may wait for the graph. */
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
    struct extra e;
    int code;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_STREAM_WAIT, "cudaStreamSynchronize");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return ibx_frontend_extra_try(&e, NULL, 0, &code) ? code : CUDA_UNKNOWN;
}

static void make_copy(void *argument)
{
    struct graph_copy *copy = argument;
    void *stream;
    int rc = stream_of(copy->device, &stream);
    answering = !rc && atomic_load(&copy->told) ? stream : NULL;
    if (!rc)
        rc = copy_rows(&copy->parameters, stream);
    if (!rc && copy->parameters.kind != CUDA_MEMCPY_ON_HOST)
        rc = wait_for(stream); /* pinned memory is written without that */
    if (!rc)
        return;
    atomic_store(&failure, rc);
    ibx_log(IBX_LOG_ERROR,
            "a copy between host and device in a graph has failed with CUDA error %d: the next "
            "call that waits returns it",
            rc);
}

void *ibx_frontend_graph_stream(void)
{
    forget_streams();
    return answering;
}

bool ibx_frontend_graph_copied(void (*function)(void *argument), void *argument,
                               const uint8_t *bytes, size_t n)
{
    struct graph_copy *copy = argument;
    if (function != make_copy || !atomic_load(&copy->told) || n != copy->parameters.extent.width)
        return false;
    memcpy(row_of(&copy->parameters.to, &copy->parameters.to_at, 0, 0), bytes, n);
    return true;
}

/* The back end may send the bytes of a short row. If it does not know that, nothing is lost. */
static void tell(struct graph_copy *copy, uint64_t queue, uint64_t number)
{
    const struct ibx_cuda_memcpy3d *p = &copy->parameters;
    struct extra e;
    int code;
    if (p->kind != CUDA_MEMCPY_FROM_DEVICE || p->extent.height != 1 || p->extent.depth != 1 ||
        !p->extent.width || p->extent.width > IBX_EXTRA_COPIED || atomic_load(&copy->told))
        return;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_HOST_COPY, "cudaGraphAddMemcpyNode");
    ibx_put_u64(&e.body, queue);
    ibx_put_u64(&e.body, number);
    ibx_put_u64(&e.body, (uintptr_t)row_of(&p->from, &p->from_at, 0, 0));
    ibx_put_u32(&e.body, (uint32_t)p->extent.width);
    if (ibx_frontend_extra_try(&e, NULL, 0, &code) && !code)
        atomic_store(&copy->told, true);
}

/* ------------------------------------------------------------------------------ in a graph */

bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *p)
{
    const bool by_address = p->kind == CUDA_MEMCPY_DEFAULT;
    const bool from_host = !p->from_array && !ibx_frontend_is_managed(p->from.at) &&
                           (p->kind == CUDA_MEMCPY_TO_DEVICE || p->kind == CUDA_MEMCPY_ON_HOST ||
                            (by_address && !ibx_frontend_is_device(p->from.at)));
    const bool to_host = !p->to_array && !ibx_frontend_is_managed(p->to.at) &&
                         (p->kind == CUDA_MEMCPY_FROM_DEVICE || p->kind == CUDA_MEMCPY_ON_HOST ||
                          (by_address && !ibx_frontend_is_device(p->to.at)));
    p->kind = from_host && to_host ? CUDA_MEMCPY_ON_HOST
              : from_host          ? CUDA_MEMCPY_TO_DEVICE
              : to_host            ? CUDA_MEMCPY_FROM_DEVICE
                                   : CUDA_MEMCPY_ON_DEVICE;
    return from_host || to_host;
}

static struct graph_copy *find_or_make(const struct ibx_cuda_memcpy3d *p, int device)
{
    pthread_mutex_lock(&lock);
    struct graph_copy *copy = copies;
    while (copy && (copy->device != device ||
                    memcmp(&copy->parameters, p, offsetof(struct ibx_cuda_memcpy3d, kind)) != 0 ||
                    copy->parameters.kind != p->kind))
        copy = copy->next;
    if (!copy && (copy = malloc(sizeof(*copy)))) {
        *copy = (struct graph_copy){.next = copies, .parameters = *p, .device = device};
        copies = copy;
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *p, uint64_t *queue, int *rc)
{
    int device = 0;
    *rc = CUDA_NOT_SUPPORTED;
    /* Elements of an array have a size of their own; and a copy there is one of the legacy stream.
     */
    if (p->from_array || p->to_array || !NEXT(cudaStreamCreateWithFlags))
        return 0;
    if (cudaGetDevice(&device) || device < 0 || device >= DEVICES)
        return 0;
    struct graph_copy *copy = find_or_make(p, device);
    const uint64_t number = copy ? ibx_frontend_host_repeated(make_copy, copy, queue) : 0;
    if (!copy)
        *rc = CUDA_MEMORY_ALLOCATION;
    if (number)
        tell(copy, *queue, number);
    ibx_frontend_device_used();
    return number;
}
