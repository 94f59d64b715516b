/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by streams.c, events.c and driver_copies.c. All of it is under the lock. */
#ifndef TESTS_DOUBLES_CUDA_STREAMS_H
#define TESTS_DOUBLES_CUDA_STREAMS_H

#include "tests/doubles/cuda/internal.h"

#define FIXED       3 /* the legacy one of device 0, the one per thread, the legacy one of device 1 */
#define CONNECTIONS 8 /* if more streams wait for a function, no copy is made */

/* Of an event that other processes may have: in memory that they share, and it stays there. */
struct shared_event {
    _Atomic unsigned recorded, done; /* so often */
    _Atomic int process;             /* that has recorded it last */
};

struct job {
    bool sync; /* of cuMemcpyHtoD or cuMemcpyDtoH */
    struct job *next;
    uint8_t *to;
    const uint8_t *from;
    size_t to_pitch, from_pitch, width, height; /* 0 height: a marker */
    uint8_t *snapshot;
    void (*function)(void *argument); /* NULL: a copy, or a marker */
    void *argument;
    struct shared_event *records, *awaits; /* it is done, or waits until it is, so often: */
    unsigned times;
    unsigned count;   /* streams there were when it was made: it needs nothing of later ones */
    unsigned needs[]; /* of each so many jobs must be done before */
};

struct stream {
    struct stream *next; /* in the order of their numbers */
    unsigned number;
    bool used, blocking, working, gone; /* working: its worker is there; gone: by a reset */
    bool held;                          /* its work does not run */
    bool urgent;             /* of a priority by which it goes ahead of all that is held */
    struct context *context; /* NULL: the current one */
    int device;              /* -1: of whichever (the per-thread stream) */
    pthread_t worker;
    unsigned submitted, done;
    struct job *first, **last;
};

/* All that there have been; the first are the fixed ones. */
extern struct stream streams[FIXED];

struct stream *legacy_of(int device);
bool is_legacy(const struct stream *stream);
/* Ends the process. */
_Noreturn void no_handle(const char *what, const void *handle);
struct stream *stream_of(void *handle);
struct job *job_new(void);
/* Puts a job behind what it has to wait for. */
void submit(struct stream *stream, struct job *job);
/* A call that no graph makes for its own nodes: counted while a stream waits for a function. */
void note_beside_functions(void);
/* Whether it is done so often, or nobody is left who would do it. */
bool shared_event_done(const struct shared_event *event, unsigned times);
/* Locked. Lets others in for a moment. */
void wait_a_moment(void);
/* Until that many of the stream's jobs are done. */
void wait_for(const struct stream *stream, unsigned job);

#endif
