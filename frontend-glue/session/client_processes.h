/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A back end with several processes for its clients (rdma.processes). Those of a tenant share one
 * (tenant), or each program has one, as natively (program): what breaks its contexts, ends it or
 * fills its streams is nobody else's matter, and CUDA itself keeps processes apart. Within one,
 * kernels of several programs run at the same time, where the GPU has room, which those of several
 * processes do not.
 *
 * The process that listens lets clients prove themselves and looks whose they are
 * (process_owners.h): a connection that goes on with a session is for the process that has it,
 * others are for that of their tenant or program. That one takes them by a socket (ibx_accept()),
 * and asks to be let go once nobody is there any more who could come again.
 *
 * It is forked for the first client, or before: a spare process has made ready what takes long
 * (hooks.h) by the time a client comes, and becomes the process of those that it is for.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_CLIENT_PROCESSES_H
#define IBX_FRONTEND_GLUE_SESSION_CLIENT_PROCESSES_H

#include "transport/transport.h"

#include <sys/types.h>

struct ibx_session;

/* The process that listens. Returns in each child, whose listener takes its connections from then
 * on. -ENOMEM. */
int ibx_client_processes_serve(struct ibx_session *listening);
/* Of the listener that it is about to serve: a client is told that it gets no process. */
extern const struct ibx_admission ibx_client_processes_admission;

/* Whether this process is such a child. */
bool ibx_client_process(void);

/* In the child: the socket to the process that listens, and an eventfd(2); it stays for so long
 * after its last client. */
void ibx_client_process_begin(int socket, int event, unsigned idle_ms);
/* What it says on that socket, a u64: the connections that it has taken, all there are for it, or
 * this. */
#define IBX_CLIENT_PROCESS_RETIRES UINT64_MAX

/* Such a child's, without effect elsewhere. A session of a client begins, and has ended; or
 * somebody else who could come again does no more, or a connection has come to nothing. */
void ibx_client_process_session_begins(void);
void ibx_client_process_session_ended(void);
void ibx_client_process_look_again(void);
/* Whoever comes from now on, but for threads of programs that are here, is to get another process:
 * the contexts of this one are broken. */
void ibx_client_process_retire(void);
/* Readable when it is to look; -1: never. */
int ibx_client_process_event(void);
/* It looks whether `anybody` may come again (NULL: nobody does), beside those that have sessions;
 * its listener has taken so many connections. After how many milliseconds it is to look again even
 * if the event is not readable; -1: then only. */
int ibx_client_process_look(bool (*anybody)(void), uint64_t taken);

#endif
