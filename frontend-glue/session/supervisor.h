/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A server's process that begins again when it has ended by a fault. Its clients share it, and what
 * one of them breaks would otherwise keep all later ones out until somebody starts it by hand.
 *
 * Two processes come of the calling one: it becomes the supervisor, which does nothing but wait,
 * and a child serves. Whatever the child was when it began, the next one is, too. The listening
 * socket is the supervisor's as well: clients that come between two children wait there.
 *
 * Where tenants or programs have processes of their own (ibx_session_set_processes()), it is
 * client_processes.h that makes them, and nothing is to be begun again.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_SUPERVISOR_H
#define IBX_FRONTEND_GLUE_SESSION_SUPERVISOR_H

#include <stdbool.h>
#include <sys/types.h>

struct ibx_session;

/* Behind ibx_session_serve(). Returns in each process that is to serve. The supervisor ends as the
 * child does that ends otherwise than by a fault: by its exit status or its signal; and the child
 * is killed when the supervisor ends. Where the process cannot be begun again, because it has other
 * threads or uses a GPU already, it serves all itself, and the log says why; or it ends, where
 * processes of their own are required. */
void ibx_supervise(struct ibx_session *listening);
/* A child that is killed when this process ends: 0 there; -1, with errno. */
pid_t ibx_supervised_fork(void);
/* Whether this process was made by that: it may end by the following. */
bool ibx_supervised(void);
/* The next process takes its place. All of this one's sessions are lost. */
void ibx_supervised_begin_again(void) __attribute__((noreturn));

#endif
