/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * device_copies/: the back end runs copies itself. Requests of cudaMemcpy, cudaMemcpyAsync,
 * cudaMemcpy2D and cudaMemcpyToSymbol are taken out of a session's stream before GVirtuS reads
 * them, run on the calling thread's current context and answered as GVirtuS's handler would.
 * plugin/, classic/ and ib-bw attach it to their sessions by this header.
 *
 * If in doubt, the request stays in the stream, untouched, and GVirtuS's handler runs it: a frame
 * that is not recognised byte for byte, device memory that is not within one allocation of the
 * current device, no current context yet, no free chunk, and each copy that CUDA refuses, so that
 * exit code and cudaGetLastError are the runtime's own.
 *
 *   device_copies.c  the session's hooks, and the run of a request
 *   to_device.c      copies to the device
 *   from_device.c    copies from it
 *   answers.c        their answers
 *   paths.c          the table of paths that bytes may take, the choice of one; the path inline
 *   in_place.c       the GPU accesses the client's memory
 *   staged.c         pinned chunks, moved by the fabric (staged) or by several threads
 *   direct.c         the fabric accesses the GPU's memory
 *   choice.c         from which sizes paths are used, and the outcome of a copy
 *   check.c          asks CUDA about a copy before it runs
 *   parts_ahead.c    parts of long copies from the device that are answered late
 *   slot_copies.c    copies between slots of graphs and clients
 *   symbol.c         the address of a symbol of the program
 *
 * paths.c and direct.c call each other: the table has direct.c's path, and the part of a reply that
 * this path cannot move takes another path of the table.
 *
 * Below this folder are extensions/, device_calls/, clients/, handles/, tenants/,
 * gvirtus_handlers/ and back_end_common/: each may call those that come after it in this list.
 */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_DEVICE_COPIES_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_DEVICE_COPIES_H

#include "frontend-glue/back_end_common/options.h"
#include "frontend-glue/session/session.h"

/* Copies that were run, by path (tuning.h); all others were staged. */
struct ibx_copy_counts {
    unsigned long all, inlined, in_place, copy_threads, direct;
};

/* Has the session, and those that it accepts from now on, run copies by these options. Without this
 * call GVirtuS runs all copies. A client's session takes only the number of threads from it.
 * -ENOMEM; for a session that serves already, also the error that has ended it. */
int ibx_device_copies_attach(struct ibx_session *session, const struct ibx_gpu_options *options,
                             struct ibx_error *err);
/* Copies so far. In the session's thread. */
void ibx_device_copies_count(const struct ibx_session *session, struct ibx_copy_counts *counts);
/* Why the last copy that was refused a better path was; "": none was. Valid until the next copy.
 * In the session's thread. */
const char *ibx_device_copies_refused(const struct ibx_session *session);

#endif
