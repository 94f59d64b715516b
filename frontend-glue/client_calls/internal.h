/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of client_calls/. */
#ifndef IBX_FRONTEND_GLUE_CLIENT_CALLS_INTERNAL_H
#define IBX_FRONTEND_GLUE_CLIENT_CALLS_INTERNAL_H

#include "common/state_machine.h"
#include "frontend-glue/client_calls/learned.h"
#include "frontend-glue/client_calls/pipeline.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/hooks.h"

#include <pthread.h>
#include <stdatomic.h>

#define STAGED_MAX    4608u      /* bytes of a request that may be answered here: any launch */
#define BACKLOG_MAX   (8u << 20) /* bytes that were not sent; then a call waits */
#define AHEAD_MOST    16384u /* requests without a reply, whose end other threads' calls await */
#define STREAMS_NONE  UINT64_MAX /* of outstanding requests: there are none */
#define STREAMS_MANY  (UINT64_MAX - 1)
#define STREAM_LEGACY 1u /* 0 and 1: ordered with all others */
#define STREAM_THREAD 2u /* each thread has its own of this name */

/*
 * state machine: request of GVirtuS
 *   [*] -> STAGING                its bytes are kept
 *   STAGING -> ANSWERED           answered here
 *   STAGING -> WAITING            in the session: too long, or its reply is needed
 *   ANSWERED | WAITING -> STAGING  the next one
 */
enum request_state { REQUEST_STAGING, REQUEST_ANSWERED, REQUEST_WAITING };

/*
 * state machine: launch that is kept
 *   [*] -> NONE
 *   NONE -> NEXT               the next one is not sent
 *   NEXT -> KEPT | LONG   it was written; its body is staged, or too long
 *   NEXT | KEPT | LONG -> NONE
 */
enum divert_state { DIVERT_NONE, DIVERT_NEXT, DIVERT_KEPT, DIVERT_LONG };

/* Streams without work and events that are over, as of an epoch of the process. */
#define IBX_IDLE 8u
struct ibx_idle {
    struct {
        uint64_t handle, epoch; /* 0: never */
    } items[IBX_IDLE];
    unsigned next; /* to be replaced */
};

/* Launches that nobody sees, and of which it is not known yet whether they succeed again. The items
 * are the owner's; what has become of them is noted by who takes their replies, under the lock. */
#define IBX_UNSEEN 32u
struct ibx_unseen {
    struct ibx_unseen_launch {
        uint64_t number;          /* of the request */
        uint64_t launch, stream;  /* keys */
        unsigned resets, handles; /* of the process, when it was answered */
        bool replied, failed;
    } items[IBX_UNSEEN];
    unsigned count, open; /* open: not replied */
};

/* Which process this is: another number after fork(2). */
unsigned ibx_process_number(void);

/* Bytes at the beginning of the backlog, how many requests end in it, and how many bytes of one
 * that has begun are left for the next message. */
struct ibx_message {
    size_t n, cut;
    unsigned requests;
};

struct ibx_pipeline {
    struct ibx_pipeline *next; /* in the process; its lock */
    uint64_t id;
    unsigned process; /* of ibx_process_number(): another one: it was forked */
    struct ibx_session *session;
    enum ibx_pipeline_mode mode;
    size_t room; /* of a message, bytes */
    bool eager;  /* a send costs so little that only a busy back end is a reason to gather */

    /* The request in hand: of the connection's thread alone. */
    struct ibx_state_machine state;  /* enum request_state */
    struct ibx_state_machine divert; /* enum divert_state */
    uint8_t staged[STAGED_MAX];
    size_t staged_length;
    const struct ibx_call *call;
    const uint8_t *answer; /* what is read of an ANSWERED one */
    size_t answer_left;
    uint8_t reply[IBX_REPLY_MAX]; /* of a WAITING one, as far as it fits; or an answer */
    uint64_t reply_length;        /* read so far */
    unsigned reads;               /* of it */
    bool was_long;                /* its request was too long to be staged */

    /* Likewise: what is known. */
    bool foreign; /* the front end reads replies in another way: nothing is answered */
    struct ibx_successes launches, others; /* others: of handles */
    struct ibx_successes libraries;        /* calls of cuBLAS and the like */
    struct ibx_successes forms;            /* calls that were answered without output */
    unsigned launches_from;                /* of ibx_process_resets() */
    unsigned others_from;                  /* of ibx_process_handles() */
    unsigned libraries_from;               /* of ibx_process_set_ups() */
    struct ibx_known_replies replies;
    struct ibx_configurations configurations;
    struct ibx_idle streams_idle, events_idle;
    bool unseen;      /* the next request is a launch by <<<>>> */
    bool plain_known; /* a reply without output has come */
    struct ibx_unseen unseens;
    uint64_t epoch;    /* when the request in hand was sent */
    uint64_t left;     /* likewise: ibx_process_left() */
    bool stays;        /* it: ibx_request_stays() */
    bool settles;      /* likewise */
    bool ends_nodes;   /* it destroys a graph, or one of its nodes */
    uint8_t device[4]; /* the body of the cudaSetDevice that succeeded last */
    bool device_known;
    int32_t current;      /* device, -1: not known */
    uint64_t rests;       /* the epoch as of which the device has no work, 0: not known */
    bool freed;           /* the request in hand: it gives back what cudaMalloc has returned */
    unsigned losses;      /* of ibx_process_losses(), that this thread was told of */
    unsigned server_ends; /* ibx_process_ends() as this began */
    bool clean;           /* the back end has no error to tell of this thread */
    int last_error;       /* that it may not know of */

    unsigned errors; /* that calls of this thread's have returned so far */

    /* Under the lock; the atomics are read without. */
    pthread_mutex_t lock;
    uint8_t *backlog; /* answered and not sent: [backlog_begin, backlog_end) */
    size_t backlog_begin, backlog_end, backlog_room;
    size_t backlog_cut; /* the first so many bytes end a request whose others have left */
    unsigned backlog_requests;
    bool copies_alone;         /* since it was empty */
    bool records_alone;        /* likewise, of events */
    unsigned messages;         /* sent since nothing was outstanding at the back end */
    uint64_t mute;             /* the number of the last registration */
    bool refused;              /* the last message was: for want of credit, or of a peer */
    struct ibx_message kept;   /* what was refused, if it took looking for; n 0: nothing */
    size_t kept_room;          /* ... and how much fits into a message */
    uint64_t looked_at;        /* ns: when the connection was polled last */
    _Atomic bool unsent;       /* there is a backlog, or the back end's replies have to be taken */
    _Atomic uint32_t patience; /* ns: for so long nobody has to look after that */
    uint64_t library_calls[AHEAD_MOST / 64]; /* a bit each, by their numbers */
    uint64_t chatty;            /* the number of the last one whose reply waits for no other */
    _Atomic uint64_t answered;  /* requests, ever */
    _Atomic uint64_t replied;   /* of these */
    _Atomic uint64_t unsure;    /* the number of the last one that may fail by itself */
    _Atomic uint64_t streams;   /* of those without reply */
    _Atomic bool events;        /* among those is one about an event */
    _Atomic bool memory;        /* or one that gives memory back */
    _Atomic bool ended;         /* the session has, or its connection */
    _Atomic int failure;        /* that no call has returned yet */
    _Atomic int launch_failure; /* of one that nobody saw, until cudaGetLastError */
};

static inline bool ibx_pipeline_idle(const struct ibx_pipeline *p)
{
    return atomic_load(&p->answered) == atomic_load(&p->replied);
}

/* Whether a fork has brought it into another process, to which it does not belong. */
static inline bool ibx_pipeline_is_inherited(const struct ibx_pipeline *p)
{
    return p->process != ibx_process_number();
}

/* What a request has to come after. */
struct ibx_scope {
    bool any;        /* of other threads' requests at all */
    bool all;        /* of any stream, or only ... */
    uint64_t stream; /* ... of this one */
    bool events;     /* and those about events */
    bool memory;     /* and those that give memory back */
};

/* request_keys.c: of the request in hand; `body`, n: what ibx_request_body() has returned. */

const uint8_t *ibx_request_body(const struct ibx_pipeline *pipeline, size_t *n);
static inline uint32_t ibx_request_word(const uint8_t *at)
{
    struct ibx_reader r = ibx_reader_of(at, 4);
    return ibx_get_u32(&r);
}
struct ibx_scope ibx_request_scope(const struct ibx_call *call, const uint8_t *body, size_t n);
/* It may add work, or end a handle. */
bool ibx_call_adds_work(const struct ibx_call *call);
/* cudaEventRecord. */
bool ibx_call_records(const struct ibx_call *call);
/* Work of it may be behind in a stream when its call returns. */
bool ibx_request_stays(const struct ibx_call *call, const uint8_t *body, size_t n);
/* It waits, as a synchronous copy does, for what is ordered with the legacy stream. */
bool ibx_request_settles(const struct ibx_call *call, const uint8_t *body, size_t n);
/* A launch whose grid every device takes. */
bool ibx_launch_is_plain(const uint8_t *body, size_t n);
/* Whether it gives a node of a graph such a launch, and what decides whether that succeeds. */
bool ibx_request_sets_node(const struct ibx_call *call, const uint8_t *body, size_t n);
uint64_t ibx_node_key(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Of what decides whether a launch succeeds: device, function, block, shared memory; and that its
 * stream is one, of this device. */
uint64_t ibx_launch_key(const struct ibx_pipeline *pipeline, const uint8_t *body);
uint64_t ibx_launch_stream_key(const struct ibx_pipeline *pipeline, const uint8_t *body);
/* That a stream is one, of this device; that an event is. NULL is a stream, and no event. */
uint64_t ibx_stream_key(const struct ibx_pipeline *pipeline, uint64_t stream);
uint64_t ibx_event_key(const struct ibx_pipeline *pipeline, uint64_t event);
/* That a call of this kind was answered with so many bytes of output, and has a body of as many as
 * the table says. */
uint64_t ibx_call_key(const struct ibx_call *call, size_t out);
/* The same of a request without output whose body begins there: of ours, each is a call of its own.
 */
uint64_t ibx_form_key(const struct ibx_call *call, const uint8_t *body, size_t n);
/* Of a call that succeeds again with the same body. The default stream is that of the device. */
uint64_t ibx_request_key(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* All that the reply to the request in hand depends on; its length. Front ends send what the
 * application has where the reply is to go. */
size_t ibx_reply_key(const struct ibx_pipeline *pipeline, uint8_t key[STAGED_MAX]);
/* What has succeeded, and replies: all of it, or what other threads' requests have outdated. */
void ibx_pipeline_forget(struct ibx_pipeline *pipeline);
void ibx_pipeline_forget_old(struct ibx_pipeline *pipeline);

/* answers.c */

/* Whether a synchronous copy of n bytes to the device may be made later. It succeeds, as far as
 * anybody knows, and a native one would wait for nothing but itself; nobody but who comes after it
 * in this process can tell when it is made. */
bool ibx_answer_copy_may_be_early(const struct ibx_pipeline *pipeline, uint64_t device, uint64_t n);
/* The request in hand is complete, and `call` is known: it is answered here, or sent. */
void ibx_answer_or_send(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* The last error is none, and none may come: of a `call` that returns it. */
bool ibx_answer_no_error(struct ibx_pipeline *pipeline, const struct ibx_call *call);
/* What is read next is the reply of a success without output. */
void ibx_answer_success(struct ibx_pipeline *pipeline);

/* backlog.c */

/* Answers the request in hand, which is run later. False: it has to wait, since there is no
 * connection or no memory. */
bool ibx_backlog_add(struct ibx_pipeline *pipeline, const struct ibx_scope *scope, bool sure);
/* Answers a synchronous copy to the device, as part of the backlog. False: as above. */
bool ibx_backlog_add_copy(struct ibx_pipeline *pipeline, uint64_t device, const void *host,
                          size_t n);
/* Around a copy that is answered and sent by others: ordered, behind the backlog, and locked.
 * False: there is no connection. */
bool ibx_backlog_copy_begin(struct ibx_pipeline *pipeline);
void ibx_backlog_copy_end(struct ibx_pipeline *pipeline);
/* The others: locked. Sends what can be sent, and takes the replies that are there, without
 * waiting. `now`: not only full messages. */
void ibx_backlog_push(struct ibx_pipeline *pipeline, bool now);
/* Hands it to the session, in front of the request that follows. */
void ibx_backlog_gather(struct ibx_pipeline *pipeline);
/* Sends it and takes all replies. */
void ibx_backlog_finish(struct ibx_pipeline *pipeline);
/* The session has ended: what was not answered by the back end never is. */
void ibx_backlog_drop(struct ibx_pipeline *pipeline);

/* unseen_launches.c */

/* The request in hand is a launch that may be answered though it may fail. */
bool ibx_unseen_may_be_early(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Locked. It was, as request `number`. */
void ibx_unseen_add(struct ibx_pipeline *pipeline, uint64_t number);
/* Locked. The reply to that request; whether it is one of those. */
bool ibx_unseen_replied(struct ibx_pipeline *pipeline, uint64_t number, int exit_code);
/* Learns from those that were replied. */
void ibx_unseen_learn(struct ibx_pipeline *pipeline);

/* library_calls.c */

/* The request in hand, an IBX_CALL_LIBRARY, has succeeded with so much output. */
void ibx_library_learn(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n, uint64_t out);
/* Whether it succeeds again; then what is read next is that reply. */
bool ibx_library_answer(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Another request, an IBX_CALL_SELECTS: it has succeeded without output; it changes nothing. */
void ibx_library_selected(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
bool ibx_library_has_selected(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* The stream that its handle has, or that it names, if that is known. */
bool ibx_library_stream(const struct ibx_call *call, const uint8_t *body, size_t n,
                        uint64_t *stream);
/* The request in hand, an IBX_CALL_SETS_UP or IBX_CALL_SELECTS that is about to be sent, may end a
 * handle or give it another stream. */
void ibx_library_sets_up(const uint8_t *body, size_t n);
/* The former has succeeded, and returned so much: at its end the handle, if it has made one. */
void ibx_library_made(const uint8_t *out, size_t n);
/* A request destroys a stream; all handles are no more. */
void ibx_library_stream_ends(const uint8_t *body, size_t n);
void ibx_library_clear(void);
/* Around a fork. */
void ibx_library_lock(void);
void ibx_library_unlock(void);
/* Locked. Request `number` was answered so, or otherwise; and what its reply means to CUDA. */
void ibx_library_note(struct ibx_pipeline *pipeline, uint64_t number, bool is);
int ibx_library_replied(struct ibx_pipeline *pipeline, uint64_t number, int exit_code);

/* idle_handles.c */

/* A query, or a wait, about this stream or event has succeeded before, and nobody has added work
 * since. */
bool ibx_idle_holds(struct ibx_pipeline *pipeline, const struct ibx_idle *idle, uint64_t handle);
/* The same of the request in hand. */
bool ibx_idle_answers(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* One has succeeded. */
void ibx_idle_learn(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);

/* Nobody has added work anywhere since a wait for all of the device's work, of which there is one.
 */
bool ibx_idle_device(const struct ibx_pipeline *pipeline);

/* allocations.c: what cudaMalloc has returned to this process; from any thread */

void ibx_allocations_add(uint64_t address, uint64_t n);
/* Whether it was there; it is no more. */
bool ibx_allocations_remove(uint64_t address);
/* Whether n bytes from there on are within one. */
bool ibx_allocations_hold(uint64_t address, uint64_t n);
void ibx_allocations_clear(void);
/* Around a fork, whose child clears them: it has none. */
void ibx_allocations_lock(void);
void ibx_allocations_unlock(void);

/* waiting.c */

/* Hands what is staged to the session. `body`, n: as much of the body as is there. */
void ibx_waiting_begin(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* A request that is too long to be kept, by what there is of it: its name, at least. */
void ibx_waiting_begin_long(struct ibx_pipeline *pipeline);
/* n bytes of a reply were read. Front ends of another kind read it in other pieces. */
void ibx_waiting_note_reply(struct ibx_pipeline *pipeline, uint8_t *bytes, size_t n);
/* The back end has returned `exit_code`. Returns it, or that of an earlier call which nobody was
 * told of if this one `waits`. */
int ibx_waiting_told(struct ibx_pipeline *pipeline, int exit_code, bool waits);

/* process.c */

/* How often requests have made successes of old worthless: all, those with streams and events, or
 * those of libraries. */
unsigned ibx_process_resets(void);
void ibx_process_reset(void);
unsigned ibx_process_handles(void);
void ibx_process_handle(void);
unsigned ibx_process_set_ups(void);
void ibx_process_set_up(void);
/* Graphs, or nodes, that were destroyed; one more. */
unsigned ibx_process_graphs(void);
void ibx_process_graph(void);
/* Rises with each request that may add work to a stream, or record an event: before it is sent, and
 * before its call returns. `stays`: see ibx_process_left(). Never 0. */
uint64_t ibx_process_epoch(void);
void ibx_process_work(bool stays);
/* How often that was for work that may stay behind in a stream when its call returns. */
uint64_t ibx_process_left(void);
/* All of it up to this number has ended that a synchronous copy would wait for: what is in the
 * legacy stream, or ordered with it. */
void ibx_process_settled(uint64_t left);
/* There is none that has not. */
bool ibx_process_rests(void);
/* Whether other processes may have opened memory of this one's. */
bool ibx_process_shares_memory(void);
void ibx_process_share_memory(void);
/* Whether another device than the first one may ever have been selected. */
bool ibx_process_devices(void);
void ibx_process_select(void);
/* Whether a capture may be under way, or events are shared with other processes. */
bool ibx_process_captures(void);
void ibx_process_capture(bool begins);
/* The stream's has begun. Whether one had: no more. All of them end: the only device was reset. */
void ibx_process_captured(uint64_t stream);
bool ibx_process_captured_ends(uint64_t stream);
void ibx_process_captured_reset(void);
void ibx_process_add(struct ibx_pipeline *pipeline);
void ibx_process_remove(struct ibx_pipeline *pipeline);
/* So many requests were answered that nobody runs any more: their connection has ended. Each
 * thread's next call that waits is to return that. */
void ibx_process_lose(uint64_t requests);
/* The server's process is gone, with all that this one has there: likewise, once for all threads,
 * unless they were `told` of requests. */
void ibx_process_lose_all(const struct ibx_pipeline *pipeline, bool told);
/* Of how many processes of the server's the end was noticed. */
unsigned ibx_process_ends(void);
/* How often that was so. */
unsigned ibx_process_losses(void);
/* How many of these some thread was told of: those that begin later are not. */
unsigned ibx_process_told_losses(void);
void ibx_process_tell_losses(unsigned n);
/* An error, or 0, that no call of a thread which ends has returned: the next one that waits does,
 * in any thread. */
void ibx_process_leave_failure(int code);
int ibx_process_take_failure(int code); /* that one, or 0: any */
/* n requests more, or fewer, are outstanding. */
void ibx_process_count(int n);
/* Returns when the back end has run what other threads' pipelines have answered and the scope
 * covers. */
void ibx_process_order(const struct ibx_pipeline *pipeline, const struct ibx_scope *scope);
/* The next pipeline in falling order of ids whose lock nobody has, locked; *below: of its id. NULL:
 * there are no more. It lives until it is unlocked. */
struct ibx_pipeline *ibx_process_lock_below(uint64_t *below);

/* keeper.c: once a process */
void ibx_keeper_begin(void);
/* What it does twice a second. */
void ibx_keeper_look(void);

/* A pipeline's `unsent` is true: somebody sends it as soon as its `patience` wants. False: nobody
 * can. */
bool ibx_process_send_soon(uint32_t patience);

#endif
