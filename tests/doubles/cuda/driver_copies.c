/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: copies in streams. */
#include "tests/doubles/cuda/streams.h"

#include <stdlib.h>
#include <string.h>

#define EARLY_MOST (16u << 10) /* bytes that the driver reads in the call */

/* One end of a copy: device memory, or host memory that a job can use when it runs. With unified
 * addressing pinned memory has an address of the device's, too. */
static uint8_t *end_of(unsigned type, uint64_t device, const void *host, size_t n, bool *pinned)
{
    const struct allocation *a = find((void *)(uintptr_t)device, n);
    if (type == IBX_CUDA_MEMORY_DEVICE)
        return a && a->device < 0 ? a->address + (device - (uintptr_t)a->address)
                                  : device_bytes(device, n);
    a = find(host, 1);
    *pinned = a && a->device < 0;
    if (*pinned && !find(host, n)) /* an H200 refuses what is only partly page-locked at once */
        return NULL;
    return (uint8_t *)(uintptr_t)host;
}

static bool is_pinned(const uint8_t *bytes)
{
    const struct allocation *a = find(bytes, 1);
    return a && a->device < 0;
}

static size_t span_of(size_t pitch, size_t width, size_t height)
{
    return (height - 1) * pitch + width;
}

static _Thread_local bool between_devices; /* in cudaMemcpyPeerAsync, which needs no access */

EXPORT void ibx_double_between_devices(bool begins)
{
    between_devices = begins;
}

/* Memory of a pool of another device than the current one, which has no access to it. An H200
 * refuses to copy it, in whichever device's stream. */
static bool is_far(unsigned type, uint64_t device)
{
    const struct allocation *a = find((void *)(uintptr_t)device, 1);
    return type == IBX_CUDA_MEMORY_DEVICE && a && a->pool && a->device >= 0 &&
           a->device != current->device && !between_devices;
}

static bool is_between(const struct ibx_cuda_memcpy2d *c)
{
    const struct allocation *to = find((void *)(uintptr_t)c->dst_device, 1),
                            *from = find((void *)(uintptr_t)c->src_device, 1);
    return c->dst_type == IBX_CUDA_MEMORY_DEVICE && c->src_type == IBX_CUDA_MEMORY_DEVICE && to &&
           from && to->device != from->device;
}

/* A copy between devices in a legacy stream comes behind all work of both devices, in streams that
 * wait for the legacy stream. These streams wait for the copy, too: `behind` is its stream. */
static void meet_devices(struct job *job, const struct stream *behind)
{
    for (struct stream *s = streams; s; s = s->next) {
        if (job && s->used && s->blocking)
            job->needs[s->number] = s->submitted;
    }
    struct stream *other = behind ? legacy_of(behind == &streams[0]) : NULL;
    struct job *marker = other ? job_new() : NULL;
    if (!marker)
        return;
    marker->needs[behind->number] = behind->submitted;
    submit(other, marker);
}

/* KERNEL: the double's kernel makes it, for which nobody waits. */
enum maker { SYNC, ASYNC, KERNEL };

/* Whether the stream has no work itself, but comes after that of others. */
static bool only_others_before(const struct stream *stream)
{
    bool others = false;
    for (const struct stream *s = streams; s && stream->blocking; s = s->next)
        others = others || (s != stream && s->used && s->blocking &&
                            (is_legacy(stream) || is_legacy(s)) && has_work(s));
    return others && !has_work(stream);
}

static _Thread_local bool in_turn; /* rows, or a node of a graph: they are not read early */

EXPORT void ibx_double_copy_in_turn(bool begins)
{
    in_turn = begins;
}

/* As driver 580 on an H200, which reads few bytes of page-locked memory in the call if the stream
 * has no work itself, whatever other streams' work it comes after by the legacy stream. So it does
 * with an asynchronous copy to the device's own memory; not with rows. */
static bool reads_early(const struct stream *stream, const struct ibx_cuda_memcpy2d *c,
                        const uint8_t *from, const uint8_t *to, enum maker maker)
{
    return maker == ASYNC && !in_turn && c->height == 1 && c->width <= EARLY_MOST &&
           is_pinned(from) && !is_pinned(to) && only_others_before(stream);
}

static enum queue queue_of(const struct ibx_cuda_memcpy2d *c, enum maker maker)
{
    const bool from_device = c->src_type == IBX_CUDA_MEMORY_DEVICE,
               to_device = c->dst_type == IBX_CUDA_MEMORY_DEVICE;
    const bool is_short = !from_device && c->height == 1 && c->width < QUEUE_SHORT;
    if (maker == KERNEL || (to_device && (from_device || is_short)))
        return QUEUE_KERNELS;
    return from_device ? QUEUE_TO_HOST : to_device ? QUEUE_TO_DEVICE : QUEUE_OTHER;
}

/* As the driver, reads pageable memory at once, and waits for an asynchronous copy to pageable
 * memory. If IBX_DOUBLE_ALONE is set, it keeps other threads out while it waits. */
static int copy_submit(const struct ibx_cuda_memcpy2d *c, void *handle, enum maker maker)
{
    const bool sync = maker == SYNC;
    bool from_pinned = true, to_pinned = true;
    struct stream *stream = stream_of(handle);
    uint8_t *from = end_of(c->src_type, c->src_device, c->src_host,
                           span_of(c->src_pitch, c->width, c->height), &from_pinned);
    uint8_t *to = end_of(c->dst_type, c->dst_device, c->dst_host,
                         span_of(c->dst_pitch, c->width, c->height), &to_pinned);
    if (!stream || !from || !to || is_far(c->src_type, c->src_device) ||
        is_far(c->dst_type, c->dst_device))
        return stream ? INVALID_VALUE : INVALID_HANDLE;
    int code;
    if (capture_takes(handle, is_legacy(stream), &code))
        return code;
    struct job *job = job_new();
    if (!job)
        return OUT_OF_MEMORY;
    const bool everywhere = is_legacy(stream) && is_between(c);
    if (everywhere) /* behind all that is under way on the other device, too */
        meet_devices(job, NULL);
    *(sync ? &stats.copies_sync : &stats.copies_async) += 1;
    stats.unpinned_async += !sync && (!from_pinned || !to_pinned);
    job->sync = sync;
    job->queue = queue_of(c, maker);
    job->to = to;
    job->from = from;
    job->to_pitch = c->dst_pitch;
    job->from_pitch = c->src_pitch;
    job->width = c->width;
    job->height = c->height;
    if ((!from_pinned && !sync) || reads_early(stream, c, from, to, maker)) {
        job->snapshot = malloc(span_of(c->src_pitch, c->width, c->height));
        if (job->snapshot)
            job->from = memcpy(job->snapshot, from, span_of(c->src_pitch, c->width, c->height));
    }
    submit(stream, job);
    if (everywhere)
        meet_devices(NULL, stream);
    if (maker == ASYNC && is_pinned(from) && is_pinned(to)) {
        /* as driver 580 on an H200, which makes it by the processor */
        const bool alone = is_legacy(stream);
        if (alone)
            keep_out(true);
        wait_for(stream, stream->submitted);
        if (alone)
            keep_out(false);
    } else if (sync || !to_pinned) {
        begin_alone();
        copies_wait++;
        wait_for(stream, stream->submitted);
        copies_wait--;
        end_alone();
    }
    return sync ? sticky() : SUCCESS;
}

static struct ibx_cuda_memcpy2d one_row(unsigned to_type, uint64_t to, unsigned from_type,
                                        uint64_t from, size_t n)
{
    struct ibx_cuda_memcpy2d c = {.width = n, .height = 1, .src_pitch = n, .dst_pitch = n};
    c.src_type = from_type;
    c.src_device = from;
    c.src_host = (void *)(uintptr_t)from;
    c.dst_type = to_type;
    c.dst_device = to;
    c.dst_host = (void *)(uintptr_t)to;
    return c;
}

int copy_plain(const char *name, unsigned to_type, uint64_t to, unsigned from_type, uint64_t from,
               size_t n, void *stream, bool sync)
{
    const struct ibx_cuda_memcpy2d c = one_row(to_type, to, from_type, from, n);
    int code = enter(name);
    if (code)
        return code;
    if (strcmp(name, "cuMemcpyAsync") != 0)
        note_beside_functions();
    const enum maker maker = !strcmp(name, "cuLaunchKernel") ? KERNEL : sync ? SYNC : ASYNC;
    return leave(n ? copy_submit(&c, stream, maker) : SUCCESS);
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n)
{
    return copy_plain("cuMemcpyHtoD", IBX_CUDA_MEMORY_DEVICE, to, IBX_CUDA_MEMORY_HOST,
                      (uintptr_t)from, n, NULL, true);
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n)
{
    return copy_plain("cuMemcpyDtoH", IBX_CUDA_MEMORY_HOST, (uintptr_t)to, IBX_CUDA_MEMORY_DEVICE,
                      from, n, NULL, true);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream)
{
    return copy_plain("cuMemcpyHtoDAsync", IBX_CUDA_MEMORY_DEVICE, to, IBX_CUDA_MEMORY_HOST,
                      (uintptr_t)from, n, stream, false);
}

/* Fills memory, for the runtime's double. It does not count as a copy of ibx from unpinned
 * memory. */
EXPORT int ibx_double_fill(uint64_t to, const void *bytes, size_t n, void *stream)
{
    const struct ibx_cuda_memcpy2d c =
        one_row(IBX_CUDA_MEMORY_DEVICE, to, IBX_CUDA_MEMORY_HOST, (uintptr_t)bytes, n);
    int code = enter("cuMemcpyHtoDAsync");
    if (code)
        return code;
    if (is_out_of_reach(to))
        return leave(INVALID_VALUE);
    const unsigned long unpinned = stats.unpinned_async;
    note_beside_functions();
    code = n ? copy_submit(&c, stream, ASYNC) : SUCCESS; /* and does not wait */
    stats.unpinned_async = unpinned;
    return leave(code);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream)
{
    return copy_plain("cuMemcpyDtoHAsync", IBX_CUDA_MEMORY_HOST, (uintptr_t)to,
                      IBX_CUDA_MEMORY_DEVICE, from, n, stream, false);
}

/* What unified addressing makes of an address. */
static unsigned type_of(uint64_t address)
{
    const struct allocation *a = find((void *)(uintptr_t)address, 1);
    return a && a->device >= 0 ? IBX_CUDA_MEMORY_DEVICE : IBX_CUDA_MEMORY_HOST;
}

EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t n, void *stream)
{
    pthread_mutex_lock(&mutex);
    unsigned to_type = type_of(to), from_type = type_of(from);
    pthread_mutex_unlock(&mutex);
    return copy_plain("cuMemcpyAsync", to_type, to, from_type, from, n, stream, false);
}

EXPORT int cuMemcpy2DAsync_v2(const struct ibx_cuda_memcpy2d *c, void *stream)
{
    int code = enter("cuMemcpy2DAsync");
    if (code)
        return code;
    if (!c->width || !c->height || c->width > c->src_pitch || c->width > c->dst_pitch)
        return leave(INVALID_VALUE);
    return leave(copy_submit(c, stream, ASYNC));
}

/* ------------------------------------------------------------------------- sets */

static int set_rows(uint64_t at, size_t pitch, unsigned value, unsigned element, size_t width,
                    size_t rows, void *stream)
{
    const size_t row = width * element;
    uint8_t *bytes = at % element ? NULL : malloc(row + 1);
    int rc = bytes ? SUCCESS : INVALID_VALUE;
    for (size_t i = 0; i < row && bytes; i += element)
        memcpy(bytes + i, &value, element);
    for (size_t y = 0; y < rows && !rc; y++)
        rc = ibx_double_fill(at + y * pitch, bytes, row, stream);
    free(bytes);
    return rc;
}

EXPORT int cuMemsetD16Async(uint64_t at, unsigned short value, size_t count, void *stream)
{
    return set_rows(at, 0, value, 2, count, 1, stream);
}

EXPORT int cuMemsetD32Async(uint64_t at, unsigned value, size_t count, void *stream)
{
    return set_rows(at, 0, value, 4, count, 1, stream);
}

EXPORT int cuMemsetD2D16Async(uint64_t at, size_t pitch, unsigned short value, size_t width,
                              size_t rows, void *stream)
{
    return set_rows(at, pitch, value, 2, width, rows, stream);
}

EXPORT int cuMemsetD2D32Async(uint64_t at, size_t pitch, unsigned value, size_t width, size_t rows,
                              void *stream)
{
    return set_rows(at, pitch, value, 4, width, rows, stream);
}

/* ------------------------------------------------------------------------- words in memory */

static int await_word(uint64_t at, uint64_t value, unsigned n, unsigned flags, void *handle)
{
    const unsigned nor = 3;
    bool pinned;
    int code = enter("cuStreamWaitValue32");
    if (code)
        return code;
    struct stream *stream = stream_of(handle);
    const void *word =
        at % n || flags > nor ? NULL : end_of(IBX_CUDA_MEMORY_DEVICE, at, NULL, n, &pinned);
    struct job *job = word ? job_new() : NULL;
    if (!job)
        return leave(word ? OUT_OF_MEMORY : INVALID_VALUE);
    job->word = word;
    job->word_bytes = n;
    job->value = value;
    job->condition = flags;
    submit(stream, job);
    return leave(SUCCESS);
}

EXPORT int cuStreamWaitValue32_v2(void *stream, uint64_t at, uint32_t value, unsigned flags)
{
    return await_word(at, value, sizeof(value), flags, stream);
}

EXPORT int cuStreamWaitValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags)
{
    return await_word(at, value, sizeof(value), flags, stream);
}

EXPORT int cuStreamWriteValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags)
{
    return at % sizeof(value) || flags ? INVALID_VALUE
                                       : ibx_double_fill(at, &value, sizeof(value), stream);
}
