/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by streams.c, events.c and driver_copies.c. All of it is under the lock. */
#ifndef TESTS_DOUBLES_CUDA_STREAMS_H
#define TESTS_DOUBLES_CUDA_STREAMS_H

#include "tests/doubles/cuda/internal.h"

#define FIXED       3 /* the legacy stream of device 0, the one per thread, and that of device 1 */
#define CONNECTIONS 8 /* if more streams wait for a function, no copy is made */
/* The queues of a context for the kinds of work, as driver 580 has them on an H200. If so many
 * streams wait with work of a kind behind that, no other stream's work of that kind begins. A
 * second context has queues of its own. */
enum queue { QUEUE_OTHER, QUEUE_TO_HOST, QUEUE_TO_DEVICE, QUEUE_KERNELS, QUEUES };
#define QUEUE_TO_HOST_STREAMS   4
#define QUEUE_TO_DEVICE_STREAMS 4
#define QUEUE_KERNELS_STREAMS   8
#define QUEUE_SHORT                                                                                \
    (32u << 10) /* bytes: a shorter copy to the device, unless it has rows, is one of KERNELS */

/* The state of an event that other processes may have, in memory that they share. */
struct shared_event {
    _Atomic unsigned recorded, done; /* how often */
    _Atomic int process;             /* the last one that has recorded it */
};

struct job {
    bool sync; /* of cuMemcpyHtoD or cuMemcpyDtoH */
    enum queue queue;
    struct job *next;
    uint8_t *to;
    const uint8_t *from;
    size_t to_pitch, from_pitch, width, height; /* 0 height: a marker */
    uint8_t *snapshot;
    void (*function)(void *argument); /* NULL: a copy, or a marker */
    void *argument;
    const void *word; /* a word in memory that has to become so; NULL: none */
    uint64_t value;
    unsigned word_bytes, condition; /* CUstreamWaitValue_flags */
    bool idle; /* an event without a time that is recorded, or a wait for one that is done: for the
                  driver the stream has no work by that */
    struct shared_event *records, *awaits; /* events that are then done, or have to be, */
    unsigned times;                        /* so often */
    unsigned count;   /* of streams when it was made: it needs nothing of later ones */
    unsigned needs[]; /* how many jobs of each stream must be done before */
};

struct stream {
    struct stream *next; /* in the order of their numbers */
    unsigned number;
    bool used, blocking, working, gone; /* working: its worker is there; gone: by a reset */
    bool held;                          /* its work does not run */
    unsigned copies_until_held;         /* 0: it is not held by any copy */
    bool urgent;                        /* its priority lets its work run while all is held */
    struct context *context;            /* NULL: the current one */
    int device;                         /* -1: of any device (the per-thread stream) */
    pthread_t worker;
    pthread_cond_t given; /* a job, or its end: what a worker without one waits for */
    unsigned submitted, done;
    struct job *first, **last;
};

/* All streams that there ever were; the first are the fixed ones. */
extern struct stream streams[FIXED];

/* Calls that copy and wait. */
extern unsigned copies_wait;

struct stream *legacy_of(int device);
bool is_legacy(const struct stream *stream);
/* Ends the process, for a handle that does not exist. */
_Noreturn void no_handle(const char *what, const void *handle);
struct stream *stream_of(void *handle);
struct job *job_new(void);
/* Submits a job, behind all that it has to wait for. */
void submit(struct stream *stream, struct job *job);
/* Counts a call that is not made by a graph's own nodes, if a stream waits for a function. */
void note_beside_functions(void);
/* Whether the event was done so often, or no process is left that could do it. */
bool shared_event_done(const struct shared_event *event, unsigned times);
/* Locked. Lets other threads have the lock for a moment. */
void wait_a_moment(void);
/* Whether the stream has work, as the driver sees it. */
bool has_work(const struct stream *stream);
/* Waits until that many of the stream's jobs are done. */
void wait_for(const struct stream *stream, unsigned job);

#endif
