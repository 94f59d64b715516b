/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A back end with several processes for its clients (rdma.processes). The clients of a tenant share
 * one process (tenant), or each program has its own, as natively (program). Then a program that
 * breaks its contexts, ends its process or fills its streams affects nobody else, and CUDA itself
 * separates the processes. On the other hand, kernels of programs in one process can run at the
 * same time if the GPU has room; those of several processes cannot.
 *
 * The listening process authenticates clients and finds out to which process they belong
 * (process_owners.h). A connection that continues a session goes to the process that has the
 * session; others go to the process of their tenant or program, through a socket (ibx_accept()). A
 * process asks to be released when no client is left that could come again.
 *
 * A process is forked for its first client, or before: a spare process has done what takes long
 * (hooks.h) before a client comes, and then becomes the process of that client's tenant or program.
 *
 *   client_processes.c  the listening process: who gets which process, and spare ones
 *   process_owners.c    which process a client belongs to
 *   supervisor.c        restarts the only process of a back end after a fault
 */
#ifndef IBX_FRONTEND_GLUE_BACK_END_PROCESSES_CLIENT_PROCESSES_H
#define IBX_FRONTEND_GLUE_BACK_END_PROCESSES_CLIENT_PROCESSES_H

#include "transport/transport.h"

#include <sys/types.h>

struct ibx_session;

/* Runs the listening process. Returns in each child, whose listener accepts the child's connections
 * from then on. -ENOMEM. */
int ibx_client_processes_serve(struct ibx_session *listening);
/* For the listener: tells a client that it gets no process. */
extern const struct ibx_admission ibx_client_processes_admission;

#endif
