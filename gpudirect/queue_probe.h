/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies to the device that show whether the GPU makes any in a stream now. Streams that wait may
 * have taken all queues for such copies. These copies are of few bytes, to memory that nobody
 * reads, one piece in each context. So nothing is lost if the GPU makes them later, unlike a copy
 * of the program's. From any thread.
 */
#ifndef IBX_GPUDIRECT_QUEUE_PROBE_H
#define IBX_GPUDIRECT_QUEUE_PROBE_H

#include "gpudirect/cuda.h"

#define IBX_QUEUE_PROBE_PITCH ((size_t)64 << 10) /* bytes of pinned memory that it reads, and 8 */

/* On an H200 (driver 580) kernels and copies of less than 32 KiB without rows share queues; longer
 * ones, and ones with two rows that are apart, have others. */
enum ibx_queue_kind { IBX_QUEUE_OF_KERNELS, IBX_QUEUE_OF_COPIES };

/* Has the stream of the current context, which is `context`, make a copy that takes a queue of this
 * kind. It reads `pinned`, which has to stay pinned, and may be changed. 0; a CUresult, also if
 * no memory of the device is to be had: the next probe asks again. */
int ibx_queue_probe(const struct ibx_cuda *cuda, const void *context, void *stream,
                    const void *pinned, enum ibx_queue_kind kind);
/* The context was destroyed, with this memory. To be called once, before others use the context
 * that may have its address. */
void ibx_queue_probe_forget(const void *context);

#endif
