/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Shared by attach.c, attached_calls.c, attached_copies.c and last_session.c only. These call each
 * other in a circle: attach.c passes the table of attached_calls.c to the preload, and the
 * functions in it, with attached_copies.c, ask attach.c for the calling thread's connection.
 * attach.c also asks last_session.c whether a session stays open, and last_session.c lets the
 * attachment of that session go by attach.c.
 */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_ATTACHED_H
#define IBX_FRONTEND_GLUE_PLUGIN_ATTACHED_H

#include "frontend-glue/plugin/attach.h"
#include "frontend-glue/session/frames.h"

#include <pthread.h>
#include <stdatomic.h>

/* Held by the thread, by the communicator, and by last_session.c while the session stays open as
 * the last one; any of these may let it go first. */
struct ibx_attachment {
    _Atomic(struct ibx_session *) session; /* NULL: detached */
    struct ibx_pipeline *pipeline;         /* of the session; NULL: it has none */
    _Atomic unsigned users;
    pid_t process;
    bool counted;              /* last_session.c: its session counts as open */
    struct ibx_session *owned; /* its communicator has left this and the pipeline to it; NULL: no */
    pthread_mutex_t closing;   /* held while the session is closed, but for GVirtuS's Close() */
    atomic_bool ended;         /* the thread has ended */
    bool preloaded;            /* the session carries the thread's own copies too */
    void (*begins)(void);      /* called before its first request; NULL: that was done */
    struct ibx_request_watch watch; /* of the thread's requests */
    int stream_at;                  /* of the current request: see stream_at() */
    bool selects;                   /* the current request is cudaSetDevice, not answered yet */
    bool works; /* the watcher was told that the request has begun, not its end */
    int device; /* selected by the thread; -1: not known */
};

extern _Thread_local struct ibx_attachment *ibx_attached; /* the calling thread's; NULL: none */
extern _Atomic(const struct ibx_frontend_watch *) ibx_attached_watcher; /* NULL: there is none */

/* The calling thread's; NULL: it has none. */
struct ibx_session *ibx_attached_session(void);
/* Whether that session is over shm, and whether it is live: asked under the pipeline's lock, since
 * the connection monitor may continue it over another connection, or find that it has ended. */
bool ibx_attached_over_shm(const struct ibx_session *session);
bool ibx_attached_live(const struct ibx_session *session);
void ibx_attachment_drop(struct ibx_attachment *attachment);

/* last_session.c */

/* How many sessions of this process have ended. */
unsigned ibx_attached_epoch(void);
/* A session was attached to the calling thread. */
void ibx_last_session_begins(struct ibx_attachment *attachment);
/* Called with `closing` locked, when its thread has ended or its communicator is destroyed, and
 * nothing is under way. True: its session stays open as the process's last one; false: it is to be
 * closed. */
bool ibx_last_session_stays(struct ibx_attachment *attachment);
/* Its session is about to be closed. */
void ibx_last_session_ends(struct ibx_attachment *attachment);
/* Closes the session that has stayed open, if any. */
void ibx_last_session_close(void);
/* Called in a forked child. */
void ibx_last_session_forked(void);

/* attached_copies.c: the table's `copy`. */
int ibx_attached_copy(const struct ibx_frontend_copy *wish, int *exit_code);
/* From now on the device may write to host memory without a call: later copies from such memory are
 * made in the order of their streams. */
void ibx_attached_changes_memory(void);

/* attached_calls.c: the table. */
extern const struct ibx_frontend_calls ibx_attached_calls;
/* Sets the function by which GVirtuS makes launches. */
void ibx_attached_launch_by(ibx_attach_launch *launch);
/* `session` was the last to connect: page-locked memory is allocated as its path wants. */
void ibx_attached_path(const struct ibx_session *session);

#endif
