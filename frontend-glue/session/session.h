/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * session/: the byte stream that GVirtuS reads and writes, carried as messages and one-sided copies
 * over a connection of transport. It knows nothing of CUDA. plugin/, classic/ and ib-bw call this
 * header; client_copies/ and device_copies/ extend a session through hooks.h.
 *
 *   session.c       begins and ends a session; its hooks and copy threads
 *   stream.c        the stream as segments of DATA messages, read and written
 *   message_queues.c  sends messages with credit, and queues received ones by their purpose
 *   rendezvous.c    long writes, which the server moves one-sidedly
 *   shared_regions.c  memory that both ends map and that stays registered
 *   names.c         the names (remotes) of the client's memory
 *   requests.c      GVirtuS's requests at the beginning of the stream, for the hooks
 *   calls.c         the table of GVirtuS's calls
 *   math_calls.c    functions of cuBLAS and others; math_descriptors.c: cuBLASLt's descriptors
 *   extensions.c  encodes the structures in extension requests
 *   textures.c    converts formats of textures between the runtime and the driver
 *   frames.c        the frames of GVirtuS's own wire
 *   deferred_replies.c  replies to requests that were answered before the server has run them
 *   held_replies.c      replies of a server that are sent together
 *   agreement.c     whether a session survives its connection
 *   link.c          continues a session over another connection
 *   unacknowledged.c  messages that may have to be sent again then
 *   reconnect.c     how the client finds its server again
 *   session_registry.c  where the server finds the session
 *   report.c        what a server reports about such sessions
 *   dead_backend.c  what a client reads once its back end is gone
 *   client_process.c  one of several processes of a server (back_end_processes/client_processes.h)
 *   records.c       kept sessions, in memory that these processes share
 *
 * Writes are gathered and leave at sync. A short write is copied at once. A long one
 * (caps->rendezvous bytes and more) is noted, and its bytes move one-sidedly: the server READs a
 * request's payload from the client's memory while the client waits for the reply. It WRITEs a
 * reply's payload into the memory that the client's read names, before its own sync returns.
 *
 * Threads: one thread at a time per session. Sessions accepted from one listening session are
 * independent of it and of each other.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_SESSION_H
#define IBX_FRONTEND_GLUE_SESSION_SESSION_H

#include "transport/transport.h"

#include <sys/types.h>

struct ibx_session;

/* Makes a session; copies both arguments. Uses no network, thread or device yet. -EINVAL: the URI
 * or one of its options; -ENOMEM. */
int ibx_session_create(const char *uri, const struct ibx_options *options,
                       struct ibx_session **session, struct ibx_error *err);
/* Makes a client with the URI, options, copy threads and hooks of `other`. Errors as above. */
int ibx_session_create_like(const struct ibx_session *other, struct ibx_session **session,
                            struct ibx_error *err);
/* How many threads copy long payloads, here and in sessions accepted from now on. 0: by the number
 * of processors. None is made before the first long copy. */
void ibx_session_set_threads(struct ibx_session *session, unsigned threads);
/* Before it serves: sets memory for long messages of its clients. */
void ibx_session_lend(struct ibx_session *session, const struct ibx_message_memory *memory);
/* Before it listens or connects: for how many seconds this session, and those that are accepted
 * from now on, wait when their connection has broken. 0, the default: they end with it. Both ends
 * have to be willing; the shorter time counts. In a server, the accepting thread and those of its
 * sessions have to be in one process. */
void ibx_session_keep(struct ibx_session *session, unsigned seconds);

/* Which clients share a process of the server. */
enum ibx_processes_for {
    IBX_PROCESSES_ONE,     /* all clients */
    IBX_PROCESSES_TENANT,  /* clients whose keys have one name; on the server's host, of one user */
    IBX_PROCESSES_PROGRAM, /* a process and the processes that it forks */
};
#define IBX_PROCESSES_MOST 1024u /* each costs some 100 MB here, and a context on the GPU */
struct ibx_processes {
    enum ibx_processes_for each;
    bool required;      /* a server that cannot fork ends; if false, one process serves all */
    unsigned share;     /* percent of the processes that clients of one key name or user may have */
    unsigned own_share; /* ... if they have no key and are of this process's own user */
    unsigned most;      /* number of processes, 1 to IBX_PROCESSES_MOST */
    unsigned spares;    /* spare processes that wait for clients */
    unsigned idle_seconds; /* how long a tenant's process stays after its last client */
};
/* Before it serves: sets the processes, which ibx_supervise() makes. `admission`: who tells clients
 * that they get none. Without this call one process serves all. */
void ibx_session_set_processes(struct ibx_session *session, const struct ibx_processes *processes,
                               const struct ibx_admission *admission);

/* For tests: how often it has continued over another connection. */
unsigned ibx_session_resumed(const struct ibx_session *session);
/* Accepts NULL; closes first. */
void ibx_session_destroy(struct ibx_session *session);
/* To be called before _destroy(): what the server's thread has allocated for this client remains,
 * since nothing frees it. */
void ibx_session_abandon(struct ibx_session *session);

/* Server: listens. -EINVAL: the session is in use; otherwise as ibx_listen(). */
int ibx_session_serve(struct ibx_session *session, struct ibx_error *err);
/* The URI a client would use, with the real port; only after ibx_session_serve(). */
const char *ibx_session_uri(const struct ibx_session *session);
/* Server: blocks until a client asks for a connection. The new session is established by its first
 * read, in whatever thread or forked child that happens; a client that fails authentication is one
 * log line and a read of 0. pthread_cancel(3) ends it between two connections. -EINVAL: the session
 * does not listen; -ENOMEM; an errno of poll(2). */
int ibx_session_accept(struct ibx_session *listening, struct ibx_session **session,
                       struct ibx_error *err);
/* Client: connects and establishes. -EINVAL: the session is in use; -ENOMEM; otherwise as
 * ibx_connect(). */
int ibx_session_connect(struct ibx_session *session, struct ibx_error *err);

/* Reads exactly n bytes: n; 0 when the peer ended the stream, wherever; a negative errno when it
 * broke the protocol or the connection failed (logged once). Both ends of the stream end the
 * session and release its resources. */
ssize_t ibx_session_read(struct ibx_session *session, void *buffer, size_t n);
/* Adds n bytes to the stream: n or a negative errno. The bytes of a long write must stay unchanged
 * until the next sync has returned (server), or until the first byte of the reply has been read or
 * the first write after the next sync has returned (client). A client may send several requests
 * ahead of the replies; where requests and replies are long, only one (-EDEADLK on the server). */
ssize_t ibx_session_write(struct ibx_session *session, const void *buffer, size_t n);
/* Sends what was gathered, if anything was. On the server it returns when a long payload has
 * arrived at the client (a write after that payload may have waited for it already). 0 or a
 * negative errno. */
int ibx_session_sync(struct ibx_session *session);
/* Whether bytes were read since the last sync: in the middle of a request or reply. */
bool ibx_session_in_frame(const struct ibx_session *session);
/* Client: after a failed read, fills its buffer with the answer of a dead back end: exit code 999
 * (cudaErrorUnknown) for a read of four bytes, otherwise zeros. Logs why, once. In the middle of a
 * reply it calls abort(3): an application with half of its data must not go on. */
void ibx_session_answer(struct ibx_session *session, void *buffer, size_t n);
/* Client: the same for a request that registers a module: it succeeds. */
void ibx_session_answer_registration(void *buffer, size_t n);
/* Client: the caller has logged why the session has no connection, so that _answer() does not. */
void ibx_session_reason_logged(struct ibx_session *session);
/* Client: the same with exit code 4 (cudaErrorCudartUnloading), without a session or a log: in a
 * thread that exit(3) has cut off (common/handlers.h). */
void ibx_session_answer_unloading(void *buffer, size_t n);
/* Client, between two requests: memory that will be copied often, in both directions. Registers it
 * if registrations are kept. If both ends map the memory, the server may pin it before this
 * returns, so that no copy has to wait for that; gathered requests are sent then, and answered. */
void ibx_session_prepare(struct ibx_session *session, void *address, size_t n);
/* Client, between two requests: has the server map what ibx_shared_allocate() returns. -EOPNOTSUPP:
 * it cannot. */
int ibx_session_share(struct ibx_session *session);
void ibx_session_close(struct ibx_session *session);
/* Client: sessions that are closed from now on tell the server that their process ends, so that the
 * server can free what the process has allocated. */
void ibx_session_process_ends(void);
/* Client: whether the back end knows only from this process's sessions that the process lives. */
bool ibx_session_shows_process(const struct ibx_session *session);

/* The path; NULL before the session is established. */
const struct ibx_path *ibx_session_path(const struct ibx_session *session);
/* The message that belongs to the last negative return; "": there was none. */
const char *ibx_session_reason(const struct ibx_session *session);

#endif
