/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Restarts a server's process when it has ended by a fault. Its clients share the process, so a
 * fault that one of them causes would otherwise keep all later clients out until somebody restarts
 * the server.
 *
 * The calling process becomes the supervisor, which only waits, and a child serves. Each next child
 * starts from the same state as the first. The supervisor has the listening socket, too, so clients
 * that come between two children wait there.
 *
 * If tenants or programs have processes of their own (ibx_session_set_processes()),
 * client_processes.h makes them, and nothing is restarted.
 */
#ifndef IBX_FRONTEND_GLUE_BACK_END_PROCESSES_SUPERVISOR_H
#define IBX_FRONTEND_GLUE_BACK_END_PROCESSES_SUPERVISOR_H

#include <stdbool.h>
#include <sys/types.h>

struct ibx_session;

/* To be called after ibx_session_serve(). Returns in each process that has to serve. If a child
 * ends otherwise than by a fault, the supervisor ends in the same way: by its exit status or its
 * signal. If the supervisor ends, the child is killed. If the process cannot be restarted, because
 * it has other threads or uses a GPU already, it serves everything itself and logs the reason; or
 * it ends, if separate processes are required. */
void ibx_supervise(struct ibx_session *listening);
/* fork(2), with a child that is killed when this process ends: 0 in the child; -1, with errno. */
pid_t ibx_supervised_fork(void);
/* Whether this process is such a child, which may call the following. */
bool ibx_supervised(void);
/* Ends this process, and the next one takes its place. All of its sessions are lost. */
void ibx_supervised_begin_again(void) __attribute__((noreturn));

#endif
