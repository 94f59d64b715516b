/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A QMP client, between its files: qmp.c asks, and knows which answer is whose; qmp_stream.c knows
 * the bytes of the connection, and when it has ended; qmp_kept.c knows how much of all that is
 * kept.
 */
#ifndef IBX_MIGRATE_QEMU_QMP_INTERNAL_H
#define IBX_MIGRATE_QEMU_QMP_INTERNAL_H

#include "migrate/qemu/qemu.h"

#define READS_AHEAD   "oob"
#define ENDING_MS     1000 /* for a QEMU whose VM was shut down to end, or to stay */
#define ENDING_REASON 32   /* bytes */

/* A question that was sent before it is asked. */
struct ahead {
    uint64_t id;
    char *text;     /* of the question */
    json_t *answer; /* the message; NULL: it has not come */
    size_t weight;  /* of that */
};

struct ibx_qmp {
    int fd;
    pid_t pid;
    int pid_fd; /* of that process; -1: this kernel does not tell (before Linux 6.5) */
    struct ibx_qmp_version version;
    unsigned greetings; /* that have come: see negotiate() */
    bool negotiated;
    bool reads_ahead;  /* QEMU can read a command while it is at another one */
    uint64_t asked;    /* id of the last command: they count from a random number */
    uint64_t answered; /* id of the last answer: QEMU answers in the order of the commands */
    json_t *answer;    /* to the last command; NULL: it has not come */
    uint64_t posted;   /* id of the command of ibx_qmp_post(); 0: none */
    json_t *reply;     /* its answer; NULL: it has not come */
    struct ahead ahead[IBX_QMP_AHEAD_MAX];
    unsigned aheads;
    json_t *events;    /* array, oldest first */
    size_t needed;     /* so many events at its begin are none that may be left out */
    json_t *answers;   /* that are remembered: what was returned, by the command; NULL: none is */
    json_t *fixed;     /* the same of what does not change; NULL: none yet */
    size_t remembered; /* the weight of both */
    uint64_t since_ns; /* the oldest of `answers` */
    char *line;        /* bytes received and not yet parsed */
    size_t length, capacity, scanned;
    uint64_t busy_until_ns;
    uint64_t kills;           /* ibx_qmp_oom_kills() at first */
    uint64_t ends_ns;         /* since when QEMU ends, as SHUTDOWN says; 0: it does not */
    bool hangs;               /* ... and has not closed this connection */
    char ends[ENDING_REASON]; /* ... why */
    struct ibx_error failed;  /* code 0 while the connection is good */
};

/* Latches the first error of the connection; every later call returns it. */
int ibx_qmp_break(struct ibx_qmp *qmp, int code, const char *message);
int ibx_qmp_failure(const struct ibx_qmp *qmp, struct ibx_error *err);

/* Takes what has come, without blocking; 0 also when there is nothing. */
int ibx_qmp_read(struct ibx_qmp *qmp);
/* Waits for bytes, and takes also what came in the last moment, while this thread did not run.
 * -ETIMEDOUT. */
int ibx_qmp_await_bytes(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Sends all of it, `fd` (or -1) with its first byte. -ETIMEDOUT: nothing of it was sent. */
int ibx_qmp_write(struct ibx_qmp *qmp, const char *text, size_t length, int fd,
                  uint64_t deadline_ns);

/* Nothing is sent to a QEMU that ends. 0: it does not. -ETIMEDOUT: it may. */
int ibx_qmp_await_ending(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Of a QEMU that has not answered for a while: one that has crashed, and whose core dump is being
 * written, breaks the connection here, since it does so only when that is done. */
void ibx_qmp_look_for_crash(struct ibx_qmp *qmp);
/* Whether nothing will answer any more. */
bool ibx_qmp_leaves_unanswered(struct ibx_qmp *qmp);

/* About how many bytes of memory a value takes: up to a hundred times what its text has. */
size_t ibx_qmp_weight(const json_t *value);
/* Whether a message may be parsed; if not the connection is broken. */
bool ibx_qmp_may_parse(struct ibx_qmp *qmp, const char *text, size_t length);
/* Of an event what a migration may need, for ibx_qmp_event_next(). */
void ibx_qmp_keep_event(struct ibx_qmp *qmp, json_t *event);
/* An answer, until its question is asked; where all of them are too many the connection is broken.
 */
void ibx_qmp_keep_ahead(struct ibx_qmp *qmp, struct ahead *ahead, json_t *answer);
/* In `*kept`, one of the two in which answers are remembered, unless all of them are too many. */
void ibx_qmp_keep_answer(struct ibx_qmp *qmp, json_t **kept, const char *question, json_t *value);

/* Processes that this kernel has ended for want of memory so far, those of control groups too. It
 * counts one before it ends it. */
uint64_t ibx_qmp_oom_kills(void);

#endif
