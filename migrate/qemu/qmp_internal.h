/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A QMP client, between its files: qmp.c asks, and knows which answer is whose; qmp_stream.c knows
 * the bytes of the connection, and when it has ended; qmp_kept.c limits how much of QEMU's messages
 * is kept.
 */
#ifndef IBX_MIGRATE_QEMU_QMP_INTERNAL_H
#define IBX_MIGRATE_QEMU_QMP_INTERNAL_H

#include "migrate/qemu/qemu.h"

#define READS_AHEAD   "oob"
#define ENDING_MS     1000 /* in which a QEMU whose VM was shut down ends, or shows that it stays */
#define ENDING_REASON 32   /* bytes */

/* A query that was sent by ibx_qmp_ahead(). */
struct ahead {
    uint64_t id;
    char *text;     /* command and arguments */
    json_t *answer; /* the message; NULL: it has not come */
    size_t weight;  /* of `answer` */
};

struct ibx_qmp {
    int fd;
    pid_t pid;
    int pid_fd; /* of that process; -1: this kernel does not tell (before Linux 6.5) */
    struct ibx_qmp_version version;
    unsigned greetings; /* received so far: see negotiate() */
    bool negotiated;
    bool alone;        /* no other client has used this connection */
    bool reads_ahead;  /* QEMU can read a command while it runs another one */
    uint64_t asked;    /* id of the last command */
    uint64_t answered; /* id of the last answer: QEMU answers in the order of the commands */
    json_t *answer;    /* to the last command; NULL: it has not come */
    uint64_t stood_in; /* `answered` when QEMU first did a command of the watchdog since the last
                          ibx_qmp_mark(); 0: it has not */
    uint64_t posted;   /* id of the command of ibx_qmp_post(); 0: none */
    json_t *reply;     /* its answer; NULL: it has not come */
    struct ahead ahead[IBX_QMP_AHEAD_MAX];
    unsigned aheads;
    json_t *events;   /* array, oldest first */
    size_t needed;    /* the first so many events are known to matter, and are dropped last */
    json_t *answers;  /* cached results by command and arguments; NULL: no caching */
    json_t *fixed;    /* the same for results that never change; NULL: none yet */
    char *fixed_path; /* of ibx_qmp_fix(); NULL: none */
    bool (*constant)(const char *property);
    size_t remembered; /* the weight of both */
    uint64_t since_ns; /* when `answers` was last emptied */
    char *line;        /* bytes received and not yet parsed */
    size_t length, capacity, scanned;
    uint64_t busy_until_ns;
    uint64_t kills;           /* ibx_qmp_oom_kills() when the client was made */
    uint64_t ends_ns;         /* when SHUTDOWN said that QEMU is about to end; 0: it is not */
    bool looked, stays;       /* whether its command line was read, and says -no-shutdown */
    bool hangs;               /* it has not answered since, nor closed this connection */
    char ends[ENDING_REASON]; /* the reason in SHUTDOWN */
    struct ibx_error failed;  /* code 0 while the connection is good */
};

/* Latches the first error of the connection; every later call returns it. */
static inline int ibx_qmp_break(struct ibx_qmp *qmp, int code, const char *message)
{
    if (!qmp->failed.code)
        ibx_error_set(&qmp->failed, code, "%s", message);
    return qmp->failed.code;
}
int ibx_qmp_failure(const struct ibx_qmp *qmp, struct ibx_error *err);

/* Receives what has come, without blocking; 0 also if nothing has. */
int ibx_qmp_read(struct ibx_qmp *qmp);
/* Waits for bytes and receives them. Bytes that came before the deadline count even if this thread
 * runs only later. -ETIMEDOUT. */
int ibx_qmp_await_bytes(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Sends all of it, `fd` (or -1) with its first byte. -ETIMEDOUT: nothing of it was sent. */
int ibx_qmp_write(struct ibx_qmp *qmp, const char *text, size_t length, int fd,
                  uint64_t deadline_ns);

/* To be called before sending: nothing is sent to a QEMU that is about to end. 0: it is not;
 * -ETIMEDOUT: it may be. */
int ibx_qmp_await_ending(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* To be called if QEMU has not answered for a while: breaks the connection if QEMU has crashed and
 * its core dump is being written, since the kernel closes the connection only after that. */
void ibx_qmp_look_for_crash(struct ibx_qmp *qmp);
/* Whether QEMU, which is about to end, hangs and will answer no more; then breaks the connection.
 */
bool ibx_qmp_leaves_unanswered(struct ibx_qmp *qmp);

/* About how many bytes of memory a value takes, up to a hundred times the bytes of its text. */
size_t ibx_qmp_weight(const json_t *value);
/* Whether a message may be parsed; if not the connection is broken. */
bool ibx_qmp_may_parse(struct ibx_qmp *qmp, const char *text, size_t length);
/* Queues an event for ibx_qmp_event_next(), without its data if it is large. */
void ibx_qmp_keep_event(struct ibx_qmp *qmp, json_t *event);
/* Keeps the answer to a query that was sent ahead. If these answers take too much memory, breaks
 * the connection. */
void ibx_qmp_keep_ahead(struct ibx_qmp *qmp, struct ahead *ahead, json_t *answer);
/* Caches an answer in `*kept`, which is `answers` or `fixed`, unless the caches take too much
 * memory. */
void ibx_qmp_keep_answer(struct ibx_qmp *qmp, json_t **kept, const char *question, json_t *value);

/* The number of processes that this kernel has killed so far because memory ran out, also in
 * control groups. The kernel counts a process before it kills it. */
uint64_t ibx_qmp_oom_kills(void);

#endif
