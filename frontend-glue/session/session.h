/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A GVirtuS communicator as plain C: the byte stream that GVirtuS reads and
 * writes, carried as messages and one-sided copies over transport.
 *
 * Writes are gathered and leave at sync. Short ones are copied at once; a long
 * one (caps->rendezvous bytes and up) is only noted, and its bytes move
 * one-sidedly: the server READs a request's body from the client's memory while
 * the client waits for the reply; a reply's body is WRITten by the server into
 * the memory that the client's read names, before the server's sync returns.
 *
 * Threads: one session, one thread at a time. Sessions accepted from one
 * listening session are independent of it and of each other.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_SESSION_H
#define IBX_FRONTEND_GLUE_SESSION_SESSION_H

#include "frontend-glue/preload/attach_table.h"
#include "frontend-glue/device_copies/tuning.h"
#include "transport/transport.h"

#include <sys/types.h>

struct ibx_session;

/* Whether the server runs copies between its client and the GPU itself (copies.h). */
enum ibx_gpu_mode {
    IBX_GPU_OFF,
    IBX_GPU_AUTO, /* where CUDA is there */
    IBX_GPU_ON,   /* the same, and a warning where it is not */
};

struct ibx_gpu_options {
    enum ibx_gpu_mode mode;
    size_t memory;    /* bytes of pinned memory that this process's sessions share */
    unsigned threads; /* of one session, that copy; 0: as tuned, or by the processors there are */
    struct ibx_tuning tuning; /* counts where it fits the GPU */
};

struct ibx_copy_counts {
    unsigned long all, inlined, in_place, by_crew, direct;
};

/* Keeps copies of both; touches no network, thread or device. */
int ibx_session_create(const char *uri, const struct ibx_options *options,
                       struct ibx_session **session, struct ibx_error *err);
/* Server, before it serves: how the sessions that it accepts treat copies. Off without this call.
 * Client, before its first copy: only its threads count. */
void ibx_session_set_gpu(struct ibx_session *session, const struct ibx_gpu_options *options);
/* Accepts NULL; closes first. */
void ibx_session_destroy(struct ibx_session *session);

/* Server: opens the door. */
int ibx_session_serve(struct ibx_session *session, struct ibx_error *err);
/* The URI a client would use, with the real port; only after ibx_session_serve(). */
const char *ibx_session_uri(const struct ibx_session *session);
/* Server: blocks until a client knocks. The new session is established by its first read, in
 * whatever thread or forked child that happens; a client that fails the proof is one log line and a
 * read of 0. */
int ibx_session_accept(struct ibx_session *listening, struct ibx_session **session,
                       struct ibx_error *err);
/* Client: connects and establishes. */
int ibx_session_connect(struct ibx_session *session, struct ibx_error *err);

/* Reads exactly n bytes: n; 0 when the peer ended the stream at a boundary or in the middle; a
 * negative errno when it broke the protocol or the connection failed (logged once). Either ends the
 * session for good: its resources are given back before the return. */
ssize_t ibx_session_read(struct ibx_session *session, void *buffer, size_t n);
/* Adds n bytes to the stream: n or a negative errno. The bytes of a long write must stay unchanged
 * until the next sync has returned (server), or until the first byte of the reply has been read or
 * the first write after the next sync has returned (client). A client may send several requests
 * ahead of the replies; where requests and replies are long, one (-EDEADLK on the server). */
ssize_t ibx_session_write(struct ibx_session *session, const void *buffer, size_t n);
/* Sends what was gathered; nothing gathered, nothing sent. On the server it returns when a long
 * body has arrived at the client (a write after that body may have waited for it already). 0 or a
 * negative errno. */
int ibx_session_sync(struct ibx_session *session);
/* Whether bytes have been read since the last sync: in the middle of a request or a reply. */
bool ibx_session_in_frame(const struct ibx_session *session);
/* Client: fills the buffer of a read that was not successful with what a dead back end answers:
 * exit code 999 (cudaErrorUnknown) where that is due, otherwise zeros. The first time it is logged
 * why. In the middle of a reply that is no answer any more, and an application with half of its
 * data must not go on: the process is ended by abort(3), after a sentence. */
void ibx_session_answer(struct ibx_session *session, void *buffer, size_t n);
/* Client, where GVirtuS would begin a request: the copy, between the caller's memory and the
 * device, with no buffer of GVirtuS's in between. 0: *exit_code is what the call returns, 999 when
 * the back end is gone (logged the first time). -ENOTCONN: it was gone before, or a request has
 * begun: nothing was done. The frames are those of G2 and later. */
int ibx_session_copy(struct ibx_session *session, const struct ibx_frontend_copy *copy,
                     int *exit_code);
/* Client, likewise: a call of GVirtuS's that answers nothing but its exit code. */
int ibx_session_call(struct ibx_session *session, const char *name, const void *body, size_t n,
                     int *exit_code);
/* A client as `other` was when it was created. */
int ibx_session_create_like(const struct ibx_session *other, struct ibx_session **session,
                            struct ibx_error *err);
/* Client: registers memory that will be copied often, both ways, where registrations are kept. */
void ibx_session_prepare(struct ibx_session *session, void *address, size_t n);
/* Server, in the session's thread: the copies that it has run, by the way they took (tuning.h);
 * those beside the others went through chunks. */
void ibx_session_count_copies(const struct ibx_session *session, struct ibx_copy_counts *counts);
/* Likewise: why the last copy that could not take a better way could not; "" where all could. */
const char *ibx_session_refused_way(const struct ibx_session *session);
void ibx_session_close(struct ibx_session *session);

/* After establishment, otherwise NULL. */
const struct ibx_path *ibx_session_path(const struct ibx_session *session);
/* The sentence behind the last negative return; "" when there was none. */
const char *ibx_session_reason(const struct ibx_session *session);

#endif
