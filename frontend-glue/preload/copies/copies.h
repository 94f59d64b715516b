/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies, and what bytes are copied to and from besides memory.
 *
 *   memcpy.c         cudaMemcpy*
 *   batches.c        cudaMemcpyBatchAsync, cudaMemcpy3DBatchAsync
 *   symbols.c        copies to and from variables; the profiler's calls
 *   arrays.c, mipmaps.c, textures.c  arrays, textures and surfaces, as extension requests
 *   array_rows.c     copies of bytes and rows from and to arrays
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_COPIES_COPIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_COPIES_COPIES_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------- memcpy.c */

/* To be called before memory of this process is read or written here in the order of the stream:
 * waits for copies that are under way in it, and for host functions of the application. Returns a
 * CUDA error. */
int ibx_frontend_before_host(const void *memory, size_t n, void *stream);
/* Before a copy in bytes that is not captured. If it is within host memory, and so made here (its
 * kind is CUDA_MEMCPY_ON_HOST): the error of one in the legacy stream beside captures; else waits,
 * once, for what a copy in the stream comes after, as CUDA does. Another one waits for functions
 * before it in that order if both sides are host memory all the same: the back end's CUDA waits for
 * these, too, and keeps out all other calls if that is the legacy stream, though a function may
 * need one. Returns a CUDA error. */
int ibx_frontend_before_on_host(const struct ibx_cuda_memcpy3d *copy, void *stream);
/* Whether the back end has both devices. Returns a CUDA error, which is the thread's last one. */
int ibx_frontend_are_devices(int one, int other);
/* Before and after a copy between devices in that stream, of memory of a pool perhaps, which other
 * devices may not reach: a device that reaches both is selected. _begin() returns an error, and
 * sets *back in any case; _end() returns `rc`, or an error of its own. */
int ibx_frontend_peers_begin(const void *to, const void *from, const void *stream, int *back);
int ibx_frontend_peers_end(int rc, void *stream, int back);
/* Whether no device reaches both: memory of two devices' pools. */
bool ibx_frontend_peers_apart(const void *to, const void *from);
/* Of a copy between devices in a stream that is captured: CUDA permits none, and ends the capture.
 * Returns the back end's error for a copy of `n` bytes. CUDA looks at addresses first: an array's
 * side needs one of memory. */
int ibx_frontend_peers_captured(void *to, int to_device, const void *from, int from_device,
                                size_t n, void *stream);

/* ------------------------------------------------------------------------------------ batches.c */

/* The calls with a place, which may be NULL, for the index of the copy that has failed; SIZE_MAX:
 * it was no certain one. */
int ibx_frontend_copy_batch(const struct copy_batch *batch, size_t *failed, void *stream);
int ibx_frontend_copy_planes_batch(size_t count, const struct planes_in_batch *list, size_t *failed,
                                   unsigned long long flags, void *stream);

/* ------------------------------------------------------------------------------------- arrays.c */

/* Bytes of an element; 0: unknown. *known: this process has made the array, so the size does not
 * come from the back end, which could say another one each time. */
size_t ibx_frontend_array_element(const void *array, bool *known);
/* What copies of an array count in; false: that is unknown. */
bool ibx_frontend_array_unit(const void *array, struct ibx_array_unit *unit, bool *known);

/* Whether `n` from `at` on are within an array that is so long; 0 is 1. `unit`: in which the rest
 * counts, but for the length. */
bool ibx_frontend_ends_within(size_t at, size_t n, size_t length, size_t texels, size_t unit);
/* Device memory for a while, through which bytes of the host get to an array. Captures do not
 * notice it, as they do not notice the copy. */
struct ibx_frontend_bounce {
    void *memory;
    int mode; /* of the thread's captures, before */
};
int ibx_frontend_bounce_begin(struct ibx_frontend_bounce *b, size_t n);
/* Frees it, also after _begin() has failed. Returns `rc` or, if that is 0, the error of cudaFree,
 * which waits for the copies from and to the memory. */
int ibx_frontend_bounce_end(const struct ibx_frontend_bounce *b, int rc);
/* Ends an asynchronous call that was made in the legacy stream. A copy within the device is not
 * complete yet, and a stream that the legacy stream does not block would not wait for it. So this
 * does. */
int ibx_frontend_copy_over(int rc, const void *stream);
static inline bool ibx_frontend_bytes_of(size_t width, size_t height, size_t *n)
{
    return !__builtin_mul_overflow(width, height, n) && *n <= PTRDIFF_MAX;
}

/* ----------------------------------------------------------------------------------- textures.c */

/* cudaCreateTextureObject. `by`: 0, or IBX_TEXTURE_BY_DRIVER, with which back ends that do not know
 * it answer CUDA_INVALID_VALUE. */
int ibx_frontend_create_texture(unsigned long long *texture,
                                const struct ibx_cuda_resource *resource,
                                const struct ibx_cuda_texture *how,
                                const struct ibx_cuda_view *view, unsigned by);

#endif
