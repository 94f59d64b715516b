/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A second context of a device. Its kernels have queues of the GPU's to themselves, and get on
 * while streams of the first context, which wait, have taken all queues there. Such a kernel reads
 * and writes memory of the first context: both have the same addresses. Copies do not serve: the
 * driver makes one in the queues of the context that has the memory (driver 580, H200).
 *
 * A context takes 0.13 s to make, and its kernel up to 0.14 s to load. On an H200 it takes 549 MB
 * of memory when it is made, and 272 MB from then on, since its kernels have no stack. So it is
 * made when it is needed, once for all sessions, and stays.
 */
#ifndef IBX_GPUDIRECT_SECOND_CONTEXT_H
#define IBX_GPUDIRECT_SECOND_CONTEXT_H

#include "gpudirect/cuda.h"

#include <stdbool.h>

/* All of these are about the device of the current context, and may be called by any thread. */

/* Whether it was made, and has not failed. Quick. */
bool ibx_second_context_is_there(const struct ibx_cuda *cuda);
/* Makes it, unless it was made. False: the driver refuses it, or it has failed, for good. */
bool ibx_second_context_make(const struct ibx_cuda *cuda);
/* Copies n bytes between the device's memory and pinned memory, and waits for that. The caller
 * knows that the addresses are valid. 0; or a CUresult: there is no such context (any more), and
 * nothing copies there. */
int ibx_second_context_copy(const struct ibx_cuda *cuda, uint64_t to, uint64_t from, size_t n);

#endif
