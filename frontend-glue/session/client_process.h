/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process of clients (rdma.processes), in that process: a child of the listening process, which
 * back_end_processes/client_processes.h is about. */
#ifndef IBX_FRONTEND_GLUE_SESSION_CLIENT_PROCESS_H
#define IBX_FRONTEND_GLUE_SESSION_CLIENT_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

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
