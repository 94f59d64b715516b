/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * device_copies/: the back end runs copies itself. Requests of cudaMemcpy, cudaMemcpyAsync,
 * cudaMemcpy2D and cudaMemcpyToSymbol are taken out of a session's stream before GVirtuS reads
 * them, run on the calling thread's current context and answered as GVirtuS's handler would.
 * plugin/, classic/ and ib-bw attach it to their sessions by this header.
 *
 * In doubt the request stays in the stream, untouched, and GVirtuS's handler runs it: a frame
 * that is not recognised byte for byte, device memory that is not one allocation of the current
 * device, no current context yet, no free chunk, and each copy that CUDA refuses, so that exit code
 * and cudaGetLastError are the runtime's own.
 *
 *   device_copies.c  the session's hooks, and one request after the other
 *   to_device.c      copies to the device
 *   from_device.c    copies from it, and their replies
 *   paths.c          the table of paths that bytes may take, the choice of one; the path inline
 *   in_place.c       the GPU accesses the client's memory
 *   staged.c         pinned chunks, moved by the fabric (staged) or by several threads
 *   direct.c         the fabric accesses the GPU's memory
 *   choice.c         the sizes from which paths count, and what a copy's end means
 *   check.c          asks CUDA about a copy before it runs
 *   held_memory.c    no free of memory that a copy is under way in
 *   calls.c          short calls that are no copies, by CUDA's runtime
 *   late.c           parts of long copies from the device that are answered late
 *   captures.c       captures of streams, kept from waits for the device
 *   launch.c         kernels, by the driver
 *   math_calls.c     functions of cuBLAS and others; math_libraries.c: where these are
 *   math_descriptors.c  descriptors of cuBLASLt
 *   math_dnn.c       graphs of cuDNN
 *   math_limits.c    what handles of libraries count as, and which of them one request has alone
 *   host_maps.c      page-locked memory of clients, for kernels
 *   request_shapes.c what handlers do with a request before CUDA checks it
 *   registrations.c  keeps handlers apart that register kernels
 *   client_functions.c  ... and what clients register under the same addresses
 *   module_owners.c, last_requests.c  whose modules these are, and what takes them back
 *   extra.c          requests of our own, for calls that GVirtuS lacks
 *   extra_arrays.c   likewise: arrays, textures and surfaces
 *   extra_graphs.c, extra_nodes.c  likewise: graphs
 *   extra_copies.c, graph_slots.c, slot_copies.c  likewise: copies between host and device in them
 *   extra_ipc.c      likewise: memory and events of other processes
 *   shared_handles.c, opened_handles.c  ... which programs that have a process each share
 *   passed_descriptors.c  ... of which CUDA has them share some by a descriptor
 *   extra_host_maps.c likewise: page-locked memory of clients, for kernels
 *   extra_pools.c, extra_variables.c, extra_queries.c, extra_virtual.c  likewise: pools,
 *                    variables, questions, memory that is mapped
 *   printed.c        what kernels print
 *   handles.c        what they have returned
 *   handle_ends.c    ... of which, what a client leaves
 *   handle_memory.c  ... memory: which program has it, and who gives it back
 *   cleared_memory.c ... which has nothing of another program's in it
 *   named_streams.c  which of these, and which streams, a request may name
 *   clients.c        which sessions are one client's
 *   client_ends.c, left_work.c  what clients leave behind
 *   moments.c        when all work that is under way now is over
 *   own_work.c       what a client's call waits for beside other clients
 *   own_reset.c      cudaDeviceReset of one client of several
 *   broken_context.c what the log says of CUDA errors that stay
 *   end_hooks.c      what of this other files give back, or are to know of
 *   frees.c          memory that is given back beside graphs
 *   host_work.c      functions that the client calls when a stream gets there
 *   runtime.c        CUDA in this process: driver, and runtime as GVirtuS's handlers have it
 *   process_memory.c which addresses are this process's own memory
 *   symbol.c         where a symbol of the program is
 *   resets.c         contexts that clients reset or destroy
 *   ready_context.c  a context that is there before a client is
 *   replies.c        the shape of GVirtuS's replies
 *   virtual_memory.c memory that is mapped apart from its addresses
 *   ranges.c         ranges of addresses, found by any of them
 *   tenants.c        who the clients are, and what each makes the back end hold
 *   graph_limits.c, graph_room.c, descriptors.c  likewise: graphs, those that wait, descriptors
 *   owners.c         which tenant has allocated which device memory
 *   named_memory.c   which device memory GVirtuS's requests name
 *   isolation.c      refuses memory of other tenants, and what is too much
 *   tuning.c         which path from which size, and the file of `ib-bw tune`
 */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_DEVICE_COPIES_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_DEVICE_COPIES_H

#include "frontend-glue/device_copies/options.h"
#include "frontend-glue/session/session.h"

/* Copies that were run, by path (tuning.h); all others were staged. */
struct ibx_copy_counts {
    unsigned long all, inlined, in_place, copy_threads, direct;
};

/* How the session, and those that it accepts from now on, treat copies. Without this call GVirtuS
 * runs them all. A client's session takes the number of threads from it and nothing else.
 * -ENOMEM. */
int ibx_device_copies_attach(struct ibx_session *session, const struct ibx_gpu_options *options,
                             struct ibx_error *err);
/* In the session's thread. */
void ibx_device_copies_count(const struct ibx_session *session, struct ibx_copy_counts *counts);
/* Likewise: why the last copy that could not take a better path could not; "" where all could. */
const char *ibx_device_copies_refused(const struct ibx_session *session);

#endif
