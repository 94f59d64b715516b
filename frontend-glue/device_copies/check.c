/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Asks CUDA about a copy before it runs. None of these calls changes anything. */
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/clients/virtual_memory.h"
#include "frontend-glue/session/extensions.h"

/* Whether [address, address + n) is device memory of the current device (`any`: of any device),
 * within one allocation, and not of another tenant (n 0: these two are not checked); or page-locked
 * memory that kernels of the client use. One driver call: a few would take a good part of a short
 * copy's time. *of_host: it is the latter. */
static bool allocated(struct gpu_session *x, uint64_t address, uint64_t n, bool any, bool *of_host)
{
    static const int names[] = {IBX_CUDA_POINTER_MEMORY_TYPE, IBX_CUDA_POINTER_IS_MANAGED,
                                IBX_CUDA_POINTER_ORDINAL, IBX_CUDA_POINTER_RANGE_START,
                                IBX_CUDA_POINTER_RANGE_SIZE};
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    uint64_t base = 0;
    size_t size = 0;
    void *values[] = {&type, &managed, &ordinal, &base, &size};
    if (x->cuda->pointer_get_attributes(5, names, values, address))
        return false;
    *of_host = type == IBX_CUDA_MEMORY_HOST;
    if (*of_host) /* with unified addressing the device has it, too */
        return n && ibx_host_maps_hold(x, address, n);
    return type == IBX_CUDA_MEMORY_DEVICE && !managed && (any || ordinal == x->device) &&
           (!n || (address - base < size && n <= size - (address - base) &&
                   ibx_isolation_allows_now(x, address, n) && !ibx_virtual_lacks(address, n)));
}

static uint64_t span_of(uint64_t pitch, const struct ibx_frame *f)
{
    return (f->height - 1) * pitch + f->width;
}

/* Whether the client has marked the copy as one that comes after no work; takes the mark away. */
static bool is_alone(struct ibx_frame *f)
{
    uint64_t *device = f->kind == IBX_FRAME_H2D ? &f->dst : &f->src;
    const bool can = f->kind != IBX_FRAME_D2D && f->call == IBX_FRAME_MEMCPY_ASYNC &&
                     f->height == 1 && f->stream > 2 &&
                     (f->kind == IBX_FRAME_H2D || f->out == f->width);
    if (!can || !(*device & IBX_EXT_ALONE))
        return false;
    *device &= ~IBX_EXT_ALONE;
    return true;
}

bool ibx_copies_sound(struct gpu_session *x, struct ibx_frame *f)
{
    int capturing = 0;
    bool on_both = f->kind == IBX_FRAME_D2D, of_host;
    if (f->call == IBX_FRAME_TO_SYMBOL) /* not an allocation, but the runtime knows its size */
        return ibx_copies_symbol(f) && allocated(x, f->dst, 0, false, &of_host);
    x->copy.alone = is_alone(f);
    ibx_held_by_copy(x, f);
    if (f->kind != IBX_FRAME_D2H && !allocated(x, f->dst, span_of(f->dpitch, f), on_both, &of_host))
        return false;
    if (f->kind != IBX_FRAME_H2D &&
        !allocated(x, f->src, span_of(f->spitch, f), on_both, &x->copy.from_host))
        return false;
    if (f->stream <= 1) { /* the legacy stream, which cannot be captured */
        if (f->call == IBX_FRAME_MEMCPY_ASYNC)
            ibx_captures_spare(x, f->stream);
        return true;
    }
    void *stream = (void *)(uintptr_t)f->stream;
    return ibx_named_stream(x, f->stream) && !x->cuda->stream_is_capturing(stream, &capturing) &&
           !capturing;
}
