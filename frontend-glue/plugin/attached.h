/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the parts of attach.c share; nobody else includes this. */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_ATTACHED_H
#define IBX_FRONTEND_GLUE_PLUGIN_ATTACHED_H

#include "frontend-glue/plugin/attach.h"
#include "frontend-glue/session/frames.h"

#include <pthread.h>
#include <stdatomic.h>

/* Held by the thread and by the communicator; either may go first. */
struct ibx_attachment {
    _Atomic(struct ibx_session *) session; /* NULL: detached */
    struct ibx_pipeline *pipeline;         /* of the session; NULL: it has none */
    _Atomic unsigned users;
    pid_t process;
    bool counted;              /* last_session.c: its session counts as open */
    struct ibx_session *owned; /* ... which its communicator has left to it, with the pipeline */
    pthread_mutex_t closing;   /* held while the session is closed, but for GVirtuS's own Close() */
    atomic_bool ended;         /* the thread has */
    bool preloaded;            /* the session carries the thread's own copies too */
    void (*begins)(void);      /* before its first request; NULL: it has begun */
    struct ibx_request_watch watch; /* the thread's */
    int stream_at;                  /* of the current request: see stream_at() */
    bool selects;                   /* the current request is cudaSetDevice, not answered yet */
    bool works;                     /* the watch has begun for it, and is not over */
    int device;                     /* that the thread has selected, -1: not known */
};

extern _Thread_local struct ibx_attachment *ibx_attached; /* the calling thread's; NULL: none */
extern _Atomic(const struct ibx_frontend_watch *) ibx_attached_watcher; /* NULL: there is none */

/* The calling thread's; NULL: it has none. */
struct ibx_session *ibx_attached_session(void);
/* The next two are about that session. The keeper may be about to have it go on over another
 * connection, or find that it has ended. */
bool ibx_attached_over_shm(const struct ibx_session *session);
bool ibx_attached_live(const struct ibx_session *session);
void ibx_attachment_drop(struct ibx_attachment *attachment);

/* last_session.c */

/* How many sessions of this process have ended. */
unsigned ibx_attached_epoch(void);
/* A session is the calling thread's from now on. */
void ibx_last_session_begins(struct ibx_attachment *attachment);
/* `closing` is locked. Its thread has ended, or its communicator goes, and nothing is under way.
 * False: its session is to be closed. */
bool ibx_last_session_stays(struct ibx_attachment *attachment);
/* Its session is about to be closed, in any case. */
void ibx_last_session_ends(struct ibx_attachment *attachment);
/* Closes what has stayed, if anything has. */
void ibx_last_session_close(void);
/* In the child. */
void ibx_last_session_forked(void);

/* attached_copies.c: the table's `copy`. */
int ibx_attached_copy(const struct ibx_frontend_copy *wish, int *exit_code);
/* The device writes to host memory unseen: later copies from such memory go in the order of their
 * streams. */
void ibx_attached_changes_memory(void);

/* attached_calls.c: the table. */
extern const struct ibx_frontend_calls ibx_attached_calls;
/* How it makes launches. */
void ibx_attached_launch_by(ibx_attach_launch *launch);
/* `session` is the last that connected: page-locked memory that is asked for suits its path. */
void ibx_attached_path(const struct ibx_session *session);

#endif
