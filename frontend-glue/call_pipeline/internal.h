/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Shared by the files of call_pipeline/. Three calls close circles: library_calls.c, which
 * answers.c asks, answers by ibx_answer_success(); process.c, which orders the connections for
 * backlog.c, has backlog.c send what another one holds back; and process_facts.c has
 * library_calls.c forget what the back end has lost, while library_calls.c asks process_facts.c
 * whether a capture is under way.
 */
#ifndef IBX_FRONTEND_GLUE_CALL_PIPELINE_INTERNAL_H
#define IBX_FRONTEND_GLUE_CALL_PIPELINE_INTERNAL_H

#include "common/state_machine.h"
#include "frontend-glue/call_pipeline/pipeline.h"
#include "frontend-glue/call_pipeline/reply_cache.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/hooks.h"

#include <pthread.h>
#include <stdatomic.h>

#define STAGED_MAX    4608u      /* bytes of a request that may be answered here: any launch */
#define BACKLOG_MAX   (8u << 20) /* most bytes that are not sent; beyond it a call waits */
#define AHEAD_MOST    16384u     /* most requests without a reply, for which others may wait */
#define STREAMS_NONE  UINT64_MAX /* in a scope: no stream */
#define STREAM_LEGACY 1u         /* 0 and 1: the legacy stream, ordered with all others */
#define STREAM_THREAD 2u         /* each thread has a stream of its own with this handle */

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
 *   NONE -> NEXT          the next launch is not sent
 *   NEXT -> KEPT | LONG   it was written; its body is staged, or too long
 *   NEXT | KEPT | LONG -> NONE
 */
enum divert_state { DIVERT_NONE, DIVERT_NEXT, DIVERT_KEPT, DIVERT_LONG };

/* Streams without work and events that are over, as of an epoch of the process. */
#define IBX_IDLE 8u
struct ibx_idle {
    struct {
        uint64_t handle, epoch; /* epoch 0: unused */
    } items[IBX_IDLE];
    unsigned next; /* the next one to be replaced */
};

/* Launches whose result nobody sees, and of which it is not known yet whether they succeed. The
 * items belong to the pipeline's own thread; whoever takes replies notes the results, under the
 * lock. */
#define IBX_UNSEEN 32u
struct ibx_unseen {
    struct ibx_unseen_launch {
        uint64_t number;          /* of the request */
        uint64_t launch, stream;  /* keys */
        unsigned resets, handles; /* counters of the process when it was answered */
        bool replied, failed;
    } items[IBX_UNSEEN];
    unsigned count, open; /* open: not replied */
};

/* A request that names an event. */
struct ibx_event_use {
    uint64_t pipeline, number; /* ids of the pipeline and of the request; 0: none */
};

/* The last requests that name an event, of each pipeline that has answered one. */
#define IBX_EVENT_USES 4u
struct ibx_event_uses {
    struct ibx_event_use of[IBX_EVENT_USES];
    unsigned count;
    bool many; /* there are more pipelines */
};

/* The last requests that were answered, by the streams that they concern. */
#define IBX_STREAM_USES 8u
struct ibx_stream_uses {
    struct {
        _Atomic uint64_t stream, number; /* number 0: unused */
    } of[IBX_STREAM_USES];
    _Atomic uint64_t others; /* the last one in any other stream */
    _Atomic uint64_t all;    /* the last one that concerns all streams */
};

/* Whether the requests without a reply concern events. */
enum event_concern {
    EVENTS_NONE,
    EVENTS_NAMED, /* events of this process, and each request says which one */
    EVENTS_ANY,   /* a request does not say which, or names one that this process has not made */
};

/* What is in the backlog: only copies, only records of events, or others or several kinds. */
enum backlog_kind { BACKLOG_COPIES, BACKLOG_RECORDS, BACKLOG_OTHER };

/* A number of this process; it is another one after fork(2). */
unsigned ibx_process_number(void);

/* A message: n bytes at the beginning of the backlog, in which so many requests end, and `cut`
 * bytes of a request that has begun in it are left for the next message. */
struct ibx_message {
    size_t n, cut;
    unsigned requests;
};

/* Where a request may leave work when its call returns. */
enum ibx_leaves {
    IBX_LEAVES_NOTHING,   /* nowhere */
    IBX_LEAVES_IN_STREAM, /* in one stream, which is not the legacy stream */
    IBX_LEAVES_IN_LEGACY, /* in the legacy stream, or nobody knows where */
};

/* What has no work left when a request has succeeded. */
enum ibx_settles {
    IBX_SETTLES_NOTHING,
    IBX_SETTLES_LEGACY,  /* the legacy stream itself */
    IBX_SETTLES_ORDERED, /* all that is ordered with it, as after a synchronous copy */
    IBX_SETTLES_ALL,     /* all streams, as after a wait for the device */
};

/* How often a request may have left work so far: anywhere, and in the legacy stream itself. */
struct ibx_left {
    uint64_t anywhere, in_legacy;
};

/* What the request in hand, or work that is enqueued without one, means for other requests. */
struct ibx_effects {
    uint64_t epoch;           /* ibx_process_epoch() before it is sent */
    struct ibx_left left;     /* ibx_process_left() then */
    unsigned breaks;          /* ibx_process_breaks() then */
    enum ibx_leaves leaves;   /* ibx_request_leaves() */
    enum ibx_settles settles; /* ibx_request_settles() */
    bool frees;               /* it frees memory that cudaMalloc has returned */
    bool begins_capture;      /* ibx_request_begins_capture() */
    bool ends_nodes;          /* it destroys a graph, or one of its nodes */
    bool changes_graphs;      /* ibx_request_changes_graphs() */
    bool ends_handle;         /* it destroys a stream, an event or an executable graph: */
    uint64_t ended_handle;    /* ... this one */
    uint64_t records;         /* the event that it records; 0: none */
};

/* The device that the thread has selected. */
struct ibx_selected {
    uint8_t body[4]; /* of the cudaSetDevice that succeeded last */
    bool known;      /* ... and no other call has changed it since */
    uint64_t before; /* devices that it has selected before, a bit for each of the first 64 */
    int32_t current; /* what cudaGetDevice returns; -1: not known */
};

/* The errors that the thread's calls have returned. */
struct ibx_returned_errors {
    bool clean;      /* the back end has no last error of this thread */
    bool late;       /* since cudaGetLastError a call has returned the error of one that was
                        answered before it was run */
    int last_error;  /* a last error that the back end may not know; 0: none */
    unsigned errors; /* how many they have returned so far */
    unsigned losses; /* ibx_process_losses() that this thread has reported */
};

/* Requests that were answered and not sent: [begin, end) of `bytes`. */
struct ibx_backlog {
    uint8_t *bytes;
    size_t begin, end, room;
    size_t cut; /* so many bytes at its beginning end a request that was sent in part */
    unsigned requests;
    enum backlog_kind kind;  /* of all requests since it was empty */
    unsigned messages;       /* sent since nothing was outstanding at the back end */
    bool refused;            /* the last message was refused: no credit, or no connection */
    struct ibx_message kept; /* a message that was refused, and took time to find; n 0: none */
    size_t kept_room;        /* ... the room of a message then */
    uint64_t looked_at;      /* when the connection was polled last, ns */
};

/* What the requests without a reply concern. It is written under the pipeline's lock, and read by
 * other threads, whose requests may have to come after those. */
struct ibx_concerns {
    struct ibx_stream_uses streams;
    _Atomic(enum event_concern) events;
    _Atomic bool memory; /* one of them frees memory, or destroys an event */
};

struct ibx_pipeline {
    struct ibx_pipeline *next; /* in the list of the process, under its lock */

    /* What does not change. */
    uint64_t id;
    unsigned process; /* ibx_process_number(); another number: this is a forked child's copy */
    struct ibx_session *session;
    enum ibx_pipeline_mode mode;
    size_t room; /* bytes of a message */
    bool eager;  /* sends are cheap: requests are gathered only while the back end is busy */
    unsigned server_ends; /* ibx_process_ends() when this pipeline began */

    /* The request in hand; used by the connection's thread only. */
    struct ibx_state_machine state;  /* enum request_state */
    struct ibx_state_machine divert; /* enum divert_state */
    uint8_t staged[STAGED_MAX];
    size_t staged_length;
    const struct ibx_call *call;
    const uint8_t *answer; /* the reply to read, if ANSWERED */
    size_t answer_left;
    uint8_t reply[IBX_REPLY_MAX]; /* of a WAITING request, or an answer made here */
    uint64_t reply_length;        /* read so far */
    unsigned reads;               /* reads of it */
    bool was_long;                /* its request was too long to be staged */
    bool unseen;                  /* the next request may be a launch by <<<>>> */
    struct ibx_effects effects;

    /* Likewise: what the thread knows. The first two are never unlearned. */
    bool foreign; /* the front end reads replies in another way: nothing is answered */
    /* A reply without output has come from this back end. The monitor asks, too. */
    atomic_bool plain_known;
    struct ibx_successes launches, others; /* `others`: with handles */
    struct ibx_successes libraries;        /* calls of cuBLAS and the like */
    struct ibx_successes forms;            /* calls by name and length of output: ibx_call_key() */
    unsigned launches_from;                /* ibx_process_outdated() of all */
    unsigned others_from;                  /* ... of streams */
    unsigned libraries_from;               /* ... of libraries */
    struct ibx_known_replies replies;
    struct ibx_configurations configurations;
    struct ibx_idle streams_idle, events_idle;
    uint64_t rests; /* the epoch at which the device had no work; 0: not known */
    struct ibx_unseen unseens;
    struct ibx_selected device;
    struct ibx_returned_errors returned;

    /* Under the lock; the atomics are read without it. */
    pthread_mutex_t lock;
    struct ibx_backlog backlog;
    _Atomic bool unsent;                     /* there is a backlog, or replies have to be taken */
    _Atomic uint32_t patience;               /* ns for which that can wait */
    uint64_t library_calls[AHEAD_MOST / 64]; /* one bit for each request, by number */
    uint64_t mute;                           /* the number of the last registration */
    uint64_t chatty;           /* the last request whose reply does not wait for others */
    _Atomic uint64_t answered; /* requests so far */
    _Atomic uint64_t replied;  /* of these, how many have a reply */
    _Atomic uint64_t unsure;   /* the last request that may fail by itself */
    _Atomic uint64_t failed;   /* the last request that was answered, and has failed */
    uint64_t answered_at_exit; /* under the process's lock */
    struct ibx_concerns concerns;
    _Atomic bool ended;         /* the session, or its connection, has ended */
    _Atomic int failure;        /* an error that no call has returned yet */
    _Atomic int launch_failure; /* of a launch by <<<>>>, until cudaGetLastError */
};

static inline bool ibx_pipeline_idle(const struct ibx_pipeline *p)
{
    return atomic_load(&p->answered) == atomic_load(&p->replied);
}

/* Whether this is the copy in a forked child, which does not own the connection. */
static inline bool ibx_pipeline_is_inherited(const struct ibx_pipeline *p)
{
    return p->process != ibx_process_number();
}

/* Which requests of other threads a request has to come after. */
struct ibx_scope {
    bool any;        /* any at all */
    bool all;        /* those of all streams, or only ... */
    uint64_t stream; /* ... of this stream */
    bool events;     /* ... and those about events, or only ... */
    uint64_t event;  /* ... about this one, if this process has made it; 0: all */
    bool memory;     /* ... and those that free memory, or destroy an event */
};

/* request_keys.c: `body` and n of the request in hand are those of ibx_request_body(). */

const uint8_t *ibx_request_body(const struct ibx_pipeline *pipeline, size_t *n);
static inline uint32_t ibx_request_word(const uint8_t *at)
{
    struct ibx_reader r = ibx_reader_of(at, 4);
    return ibx_get_u32(&r);
}
struct ibx_scope ibx_request_scope(const struct ibx_call *call, const uint8_t *body, size_t n);
/* Whether the call may add work, or destroy a handle. */
bool ibx_call_adds_work(const struct ibx_call *call);
/* Whether the call is cudaEventRecord. */
bool ibx_call_records(const struct ibx_call *call);
enum ibx_leaves ibx_request_leaves(const struct ibx_call *call, const uint8_t *body, size_t n);
enum ibx_settles ibx_request_settles(const struct ibx_call *call, const uint8_t *body, size_t n);
/* The only event that it is about; 0: it is about none, or does not say about which. */
uint64_t ibx_request_event(const struct ibx_call *call, const uint8_t *body, size_t n);
/* Whether it is cudaEventDestroy. */
bool ibx_call_ends_event(const struct ibx_call *call);
/* Whether it is a launch with a grid that every device accepts. */
bool ibx_launch_is_plain(const uint8_t *body, size_t n);
/* Whether the request sets such a launch as the parameters of a graph's node; and the key of what
 * decides whether that succeeds. */
bool ibx_request_sets_node(const struct ibx_call *call, const uint8_t *body, size_t n);
uint64_t ibx_node_key(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Whether the request updates an executable graph; the key that such an update was answered by
 * ibx_refresh_answer, and that no graph was changed since; and that nobody reads the answer to the
 * one in hand. */
bool ibx_request_refreshes(const struct ibx_call *call, const uint8_t *body, size_t n);
uint64_t ibx_refresh_key(const struct ibx_pipeline *pipeline, const uint8_t *body);
void ibx_request_refreshes_late(struct ibx_pipeline *pipeline);
/* Whether a stream is captured from the request on, if that succeeds. */
bool ibx_request_begins_capture(const struct ibx_call *call, const uint8_t *body, size_t n);
/* Whether the request in hand may change a graph or an executable graph so that an update of one by
 * the other, which has succeeded before, may fail, or comes to another answer. */
bool ibx_request_changes_graphs(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* The reply to an update by a graph that names no events and calls no functions. */
extern const uint8_t ibx_refresh_answer[IBX_REPLY_HEAD + IBX_EXT_REFRESHED];
/* Keys of what decides whether a launch succeeds: device, function, block, shared memory and
 * divisors of the grid; and that its stream exists on this device. */
uint64_t ibx_launch_key(const struct ibx_pipeline *pipeline, const uint8_t *body);
uint64_t ibx_launch_stream_key(const struct ibx_pipeline *pipeline, const uint8_t *body);
/* A launch with attributes, and the body of the cudaLaunchKernel in it. It records an event, maybe,
 * which may be destroyed. One that is not plain always waits: it does that, or has no grid. False:
 * it is no launch. */
struct ibx_queued_launch {
    const uint8_t *attributes, *body;
    size_t attributes_n;
    bool plain, records;
};
bool ibx_request_queued_launch(const struct ibx_call *call, const uint8_t *body, size_t n,
                               struct ibx_queued_launch *launch);
uint64_t ibx_queued_launch_key(const struct ibx_pipeline *pipeline,
                               const struct ibx_queued_launch *launch);
/* Keys that a stream, or an event, exists on this device. NULL is a stream, and no event. */
uint64_t ibx_stream_key(const struct ibx_pipeline *pipeline, uint64_t stream);
uint64_t ibx_event_key(const struct ibx_pipeline *pipeline, uint64_t event);
/* The key that this call was answered with `out` bytes of output, and has the body length of the
 * table. */
uint64_t ibx_call_key(const struct ibx_call *call, size_t out);
/* The same for a request without output: each extension request counts as a call of its own, by
 * the beginning of its body. */
uint64_t ibx_form_key(const struct ibx_call *call, const uint8_t *body, size_t n);
/* The key of a call that succeeds again with the same body, on the same device. */
uint64_t ibx_request_key(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Writes all that the reply to the request in hand depends on; returns its length. Where front ends
 * send whatever is in the application's output memory, zeros stand in for it. */
size_t ibx_reply_key(const struct ibx_pipeline *pipeline, uint8_t key[STAGED_MAX]);
/* Forgets what has succeeded, and known replies: all of it, or what other threads' requests have
 * outdated. */
void ibx_pipeline_forget(struct ibx_pipeline *pipeline);
void ibx_pipeline_forget_old(struct ibx_pipeline *pipeline);
/* The thread selects the device in this body of cudaSetDevice, and may_select(): whether it has
 * selected it before, so that it succeeds again. */
void ibx_pipeline_selects(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
bool ibx_pipeline_may_select(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);

/* pipeline.c */

/* Reads the rest of a reply, n bytes that the call has no use for. As ibx_pipeline_read(). */
bool ibx_pipeline_skip(struct ibx_pipeline *pipeline, uint64_t n);

/* answers.c */

/* Whether the call of a synchronous copy of n bytes to the device may return before the copy is
 * made: it will succeed, as far as is known; natively it would wait for nothing but itself; and
 * only later calls of this process can notice when it is made. */
bool ibx_answer_copy_may_be_early(const struct ibx_pipeline *pipeline, uint64_t device, uint64_t n);
/* Answers the request in hand, which is complete and whose `call` is known, or sends it. */
void ibx_answer_or_send(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Whether there is no last error, and none can come from requests without a reply: for a `call`
 * that returns it. */
bool ibx_answer_no_error(struct ibx_pipeline *pipeline, const struct ibx_call *call);
/* Whether no call that was answered before it was run may fail yet. Ask this before you read what
 * they have left: the thread that takes a reply leaves its error, and then counts the reply. */
bool ibx_answer_errors_known(const struct ibx_pipeline *pipeline);
/* Whether a call that was answered before it was run has left an error that no call has returned,
 * or may yet. */
bool ibx_answer_has_late_error(const struct ibx_pipeline *pipeline);
/* The reply to be read next is that of a success without output. */
void ibx_answer_success(struct ibx_pipeline *pipeline);

/* backlog.c */

/* Answers the request in hand before it is run. `sure`: it cannot fail by itself. False: it has to
 * wait, since there is no connection or no memory. */
bool ibx_backlog_add(struct ibx_pipeline *pipeline, const struct ibx_scope *scope, bool sure);
/* Answers a synchronous copy to the device, as part of the backlog. False: as above. */
bool ibx_backlog_add_copy(struct ibx_pipeline *pipeline, uint64_t device, const void *host,
                          size_t n);
/* Around a copy that the caller answers and sends: it comes behind the backlog, and after what it
 * has to in other threads; the pipeline is locked. False: there is no connection, and nothing is
 * locked. */
bool ibx_backlog_copy_begin(struct ibx_pipeline *pipeline);
void ibx_backlog_copy_end(struct ibx_pipeline *pipeline);
/* The following are called locked. push(): sends what can be sent, and takes the replies that are
 * there, without waiting. `now`: also messages that are not full. */
void ibx_backlog_push(struct ibx_pipeline *pipeline, bool now);
/* Hands the backlog to the session, in front of the request that follows. */
void ibx_backlog_gather(struct ibx_pipeline *pipeline);
/* Sends the backlog, and waits for all replies. */
void ibx_backlog_finish(struct ibx_pipeline *pipeline);
/* The session has ended: requests without a reply will get none. */
void ibx_backlog_drop(struct ibx_pipeline *pipeline);

/* unseen_launches.c */

/* Whether the request in hand is a launch that may be answered although it may fail. */
bool ibx_unseen_may_be_early(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* Locked. That launch was answered, as request `number`. */
void ibx_unseen_add(struct ibx_pipeline *pipeline, uint64_t number);
/* Locked. A reply has come to that request; whether it is one of these launches. */
bool ibx_unseen_replied(struct ibx_pipeline *pipeline, uint64_t number, int exit_code);
/* Learns from those that have got a reply. */
void ibx_unseen_learn(struct ibx_pipeline *pipeline);

/* library_calls.c */

/* The request in hand, an IBX_CALL_LIBRARY, has succeeded with `out` bytes of output. */
void ibx_library_learn(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n, uint64_t out);
/* Whether it succeeds again; then the reply to be read next is set. */
bool ibx_library_answer(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* The request in hand is an IBX_CALL_SELECTS: selected(): it has succeeded without output;
 * has_selected(): it would change nothing. */
void ibx_library_selected(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
bool ibx_library_has_selected(const struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* The stream of the library's handle that the request uses, or that it names. False: not known. */
bool ibx_library_stream(const struct ibx_call *call, const uint8_t *body, size_t n,
                        uint64_t *stream);
/* The request in hand, an IBX_CALL_SETS_UP or IBX_CALL_SELECTS that is about to be sent, may end a
 * handle or give it another stream: the stream of that handle is no longer known. */
void ibx_library_sets_up(const uint8_t *body, size_t n);
/* That request has succeeded, and returned n bytes, which end with the handle, if it has made
 * one. */
void ibx_library_made(const uint8_t *out, size_t n);
/* stream_ends(): a request destroys a stream; clear(): all handles are gone. */
void ibx_library_stream_ends(const uint8_t *body, size_t n);
void ibx_library_clear(void);
/* Around a fork. */
void ibx_library_lock(void);
void ibx_library_unlock(void);
/* Called with the pipeline locked. note(): request `number` was answered, and is a library's call
 * or not. replied(): returns the exit code of its reply as a cudaError_t. */
void ibx_library_note(struct ibx_pipeline *pipeline, uint64_t number, bool is);
int ibx_library_replied(struct ibx_pipeline *pipeline, uint64_t number, int exit_code);

/* idle_handles.c */

/* Whether a query of this stream or event, or a wait for it, has succeeded before, and nobody has
 * added work since. */
bool ibx_idle_holds(struct ibx_pipeline *pipeline, const struct ibx_idle *idle, uint64_t handle);
/* The same of the request in hand. */
bool ibx_idle_answers(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* A query or a wait has succeeded: the request in hand. */
void ibx_idle_learn(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);

/* Whether nobody has added work anywhere since a wait for all of the device's work, and only one
 * device is used. */
bool ibx_idle_device(const struct ibx_pipeline *pipeline);

/* events.c: events that this process has made; from any thread */

void ibx_events_add(uint64_t event);
/* To be called before the request that destroys it can be run. */
void ibx_events_remove(uint64_t event);
void ibx_events_clear(void);
/* A number that no other event has had; 0: this process has not made it. */
uint64_t ibx_events_made(uint64_t event);
/* A request that names the event was answered. */
void ibx_events_use(uint64_t event, const struct ibx_event_use *use);
/* False: it is not known who uses it. */
bool ibx_events_uses(uint64_t event, struct ibx_event_uses *uses);
/* The event is recorded: called before and after a record that waits, with no use, or after a
 * record that was answered, with its use. */
void ibx_events_record(uint64_t event, const struct ibx_event_use *use);
/* Its last record. False: that has a reply, or the event is not known. */
bool ibx_events_last(uint64_t event, struct ibx_event_use *last);
/* Around a fork; the child, which has no events, clears them. */
void ibx_events_lock(void);
void ibx_events_unlock(void);

/* allocations.c: memory that cudaMalloc has returned to this process; from any thread */

void ibx_allocations_add(uint64_t address, uint64_t n);
/* Removes the allocation that begins there. False: there is none. */
bool ibx_allocations_remove(uint64_t address);
/* Whether n bytes from there on are within one allocation. */
bool ibx_allocations_hold(uint64_t address, uint64_t n);
void ibx_allocations_clear(void);
/* Around a fork; the child, which has no allocations, clears them. */
void ibx_allocations_lock(void);
void ibx_allocations_unlock(void);

/* awaited_replies.c */

/* Hands the staged bytes of a request to the session. `body`, n: the part of the body that is
 * there. */
void ibx_awaited_begin(struct ibx_pipeline *pipeline, const uint8_t *body, size_t n);
/* The same for a request that is too long to be staged whole; at least its name is there. */
void ibx_awaited_begin_long(struct ibx_pipeline *pipeline);
/* n bytes of a reply were read, and may be changed. Front ends that read other pieces than
 * GVirtuS's are noticed here. */
void ibx_awaited_note_reply(struct ibx_pipeline *pipeline, uint8_t *bytes, size_t n);
/* The back end has returned `exit_code`. Returns that, or, if it is 0 and this call `waits` for the
 * device, the error of an earlier call that was not returned yet. */
int ibx_awaited_returned(struct ibx_pipeline *pipeline, int exit_code, bool waits);

/* process_facts.c: what holds for all pipelines; from any thread */

/* What a request makes worthless of what is known. */
enum ibx_outdated {
    IBX_OUTDATED_ALL,       /* by a reset: all earlier successes, allocations and events */
    IBX_OUTDATED_STREAMS,   /* earlier successes with streams and events */
    IBX_OUTDATED_LIBRARIES, /* ... of libraries */
    IBX_OUTDATED_NODES,     /* ... with nodes, since graphs or nodes were destroyed */
    IBX_OUTDATED_GRAPHS,    /* ... with graphs, as ibx_request_changes_graphs() says */
    IBX_OUTDATED_KINDS
};
/* How often that has happened; once more. */
unsigned ibx_process_outdated(enum ibx_outdated what);
void ibx_process_outdate(enum ibx_outdated what);
/* How often streams, events and executable graphs with this handle were destroyed, or one that is
 * counted with it; one more time. */
unsigned ibx_process_destroyed(uint64_t handle);
void ibx_process_destroy(uint64_t handle);
/* A counter that rises with each request that may add work to a stream, or record an event: before
 * it is sent, and before its call returns. Never 0. work() raises it. */
uint64_t ibx_process_epoch(void);
void ibx_process_work(enum ibx_leaves leaves);
/* How often it was raised for work that may be left in a stream when its call returns. */
struct ibx_left ibx_process_left(void);
/* All such work up to this number has ended that a synchronous copy would wait for: work in the
 * legacy stream, or ordered with it. */
void ibx_process_settled(struct ibx_left left);
/* Whether there is no such work left. */
bool ibx_process_rests(void);
/* The same of all work, in non-blocking streams, too. Each device has its own: with several, or
 * once that was so, nothing is known to have ended. */
void ibx_process_all_settled(struct ibx_left left);
bool ibx_process_all_rests(void);
/* The same of work in the legacy stream itself, which precedes later work in blocking streams. Each
 * device has a legacy stream: with several, nothing is known to have ended. */
void ibx_process_legacy_settled(uint64_t left);
bool ibx_process_legacy_rests(void);
/* Whether other processes may have opened memory of this one's. */
bool ibx_process_shares_memory(void);
void ibx_process_share_memory(void);
/* Whether another device than the first one may ever have been selected. */
bool ibx_process_devices(void);
void ibx_process_select(void);
/* The back end has returned `exit_code`. Whether the last one that says so was a sticky error: no
 * call succeeds then, whatever has succeeded before. `waits`: the call would have returned it.
 * `before`: ibx_process_breaks() before the request was sent: an error that has come since may be
 * newer than its success. */
unsigned ibx_process_breaks(void);
void ibx_process_returned(int exit_code, bool waits, unsigned before);
bool ibx_process_is_broken(void);
/* Whether a capture may be under way, or events are shared with other processes. */
bool ibx_process_captures(void);
void ibx_process_capture(bool begins);
/* captured(): a capture of that stream has begun. captured_ends(): whether one had begun; it is
 * forgotten. captured_reset(): all of them end, since the only device was reset. */
void ibx_process_captured(uint64_t stream);
bool ibx_process_captured_ends(uint64_t stream);
void ibx_process_captured_reset(void);
/* So many requests were answered, but will not be run, since their connection has ended: the next
 * call of each thread that waits is to return an error. */
void ibx_process_lose(uint64_t requests);
/* The server's process is gone, with all that this process has there: the same, once for each
 * server process, unless `told`: ibx_process_lose() was called for it. */
void ibx_process_lose_all(const struct ibx_pipeline *pipeline, bool told);
/* The end of how many server processes was noticed. */
unsigned ibx_process_ends(void);
/* A session has ended, and not because its thread did. */
void ibx_process_cut(void);
/* See ibx_pipeline_server(). */
unsigned ibx_process_server(const struct ibx_pipeline *pipeline);
/* How often errors of the last two kinds have come. */
unsigned ibx_process_losses(void);
/* How many of these some thread was told of; threads that begin later are not told of those. */
unsigned ibx_process_reported_losses(void);
void ibx_process_tell_losses(unsigned n);
/* leave(): an error, or 0, that no call of a thread which ends has returned. take(): takes it, if
 * it is `code`, or any if that is 0; for the next call that waits, in any thread. */
void ibx_process_leave_failure(int code);
int ibx_process_take_failure(int code); /* 0: there is none */
/* Around a fork; the child, which has none of the parent's work, clears them. */
void ibx_process_facts_lock(void);
void ibx_process_facts_unlock(void);
void ibx_process_facts_clear(void);

/* process.c */

void ibx_process_add(struct ibx_pipeline *pipeline);
void ibx_process_remove(struct ibx_pipeline *pipeline);
/* n more requests (n < 0: fewer) are outstanding. */
void ibx_process_count(int n);
/* How long a wait before a connection ends may take, ns: ibx_pipeline_finish_last(). waited(): one
 * that has begun at that time, ibx_now_ns(), is over. */
uint64_t ibx_process_end_ns(void);
void ibx_process_end_waited(uint64_t since);
/* Blocks until the back end has run the requests that other threads' pipelines have answered and
 * that the scope covers. */
void ibx_process_order(const struct ibx_pipeline *pipeline, const struct ibx_scope *scope);
/* Whether the back end has not run that request yet; sends it, without waiting. */
bool ibx_process_waits_for(const struct ibx_event_use *use);
/* The next pipeline with an id below *below, in falling order, whose lock nobody has; it is locked,
 * and *below is its id. NULL: there are no more. It lives until it is unlocked. */
struct ibx_pipeline *ibx_process_lock_below(uint64_t *below);

/* connection_monitor.c: starts the process's connection monitor, if that was not done yet. */
void ibx_connection_monitor_begin(void);
/* Does what the connection monitor does twice a second. */
void ibx_connection_monitor_check(void);

/* process.c: a pipeline's `unsent` is true: has the sender send its backlog within `patience` ns.
 * False: there is no sender. */
bool ibx_process_send_soon(uint32_t patience);

#endif
