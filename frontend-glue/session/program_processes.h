/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A back end with a process for each program of its clients (rdma.processes : program). Natively a
 * program has its contexts for itself; here it does so, too: what breaks its context, ends its
 * process or fills its streams is nobody else's matter, and CUDA itself keeps programs apart.
 *
 * The process that listens lets clients prove themselves and looks whose they are: a connection
 * that goes on with a session is for the process that has it, others are for the process of their
 * program. That process takes them by a socket (ibx_accept()), and asks to be let go once nobody is
 * there any more who could come again.
 *
 * It is forked for the program's first connection, or before: a spare process has made ready what
 * takes long (hooks.h) by the time a program comes, and becomes that program's.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_PROGRAM_PROCESSES_H
#define IBX_FRONTEND_GLUE_SESSION_PROGRAM_PROCESSES_H

#include "transport/transport.h"

#include <sys/types.h>

struct ibx_session;

/* The process that listens. Returns in each child, whose listener takes its connections from then
 * on. -ENOMEM. */
int ibx_programs_serve(struct ibx_session *listening);

/* Whether this process is such a child. */
bool ibx_serves_program(void);

/* Such a child's, without effect elsewhere. A session of a client begins, and has ended; or
 * somebody else who could come again does no more, or a connection has come to nothing. */
void ibx_program_session_begins(void);
void ibx_program_session_ended(void);
void ibx_program_look_again(void);
/* Readable when it is to look; -1: never. */
int ibx_program_event(void);
/* It looks whether `anybody` may come again (NULL: nobody does), beside those that have sessions;
 * its listener has taken so many connections. */
void ibx_program_look(bool (*anybody)(void), uint64_t taken);

#endif
