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
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_CLIENT_PROCESSES_H
#define IBX_FRONTEND_GLUE_SESSION_CLIENT_PROCESSES_H

#include "transport/transport.h"

#include <sys/types.h>

struct ibx_session;

/* Runs the listening process. Returns in each child, whose listener accepts the child's connections
 * from then on. -ENOMEM. */
int ibx_client_processes_serve(struct ibx_session *listening);
/* For the listener: tells a client that it gets no process. */
extern const struct ibx_admission ibx_client_processes_admission;

/* Whether this process is such a child. */
bool ibx_client_process(void);

/* In the child. `socket`: to the listening process; `event`: an eventfd(2); `idle_ms`: how long the
 * child stays after its last client. */
void ibx_client_process_begin(int socket, int event, unsigned idle_ms);
/* The child sends a u64 on that socket: the number of connections that it has accepted, if that is
 * all; or this. */
#define IBX_CLIENT_PROCESS_RETIRES UINT64_MAX

/* In such a child, without effect elsewhere: a session of a client begins, or has ended; or
 * something else changed, after which nobody may be left who could come again. */
void ibx_client_process_session_begins(void);
void ibx_client_process_session_ended(void);
void ibx_client_process_look_again(void);
/* From now on new clients get another process, because the contexts of this one are broken. Threads
 * of programs that are here still come here. */
void ibx_client_process_retire(void);
/* Readable when the child has to call _look(); -1: never. */
int ibx_client_process_event(void);
/* Asks to be released if neither a session nor `anybody` (NULL: nobody) is left that could come
 * again. `taken`: connections that its listener has accepted. Returns after how many milliseconds
 * it has to be called again even without the event; -1: only with the event. */
int ibx_client_process_look(bool (*anybody)(void), uint64_t taken);

#endif
