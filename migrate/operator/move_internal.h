/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What both sides of a move have in common. */
#ifndef IBX_MIGRATE_OPERATOR_MOVE_INTERNAL_H
#define IBX_MIGRATE_OPERATOR_MOVE_INTERNAL_H

#include "migrate/channel/channel.h"
#include "migrate/operator/move.h"
#include "migrate/pages/page_map.h"
#include "migrate/operator/control_socket.h"

#include <signal.h>

#define MOVE_TICK_MS      200   /* between two statuses */
#define MOVE_QMP_MS       20000 /* for an answer of QEMU */
#define MOVE_LINGER_MS    5000  /* for the other side to hear the last word */
#define MOVE_STILL_TIMES  5 /* timeout_ms: how long before the commit somebody is waited for ... */
#define MOVE_STILL_MIN_MS 10000 /* ... at least: guests and disks of QEMU are slow, too */
#define MOVE_TRY_MS       3000  /* for each step of one try to reach the other side, of many */
#define MOVE_LOCK_MS      2000  /* for the guardian of a dead tool to end; it may have to do more */
#define MOVE_LOCK_LOOK_MS 20    /* between two looks at that */

/* While a VM stands still, or is about to, a tool looks for what comes instead of sleeping, where
 * processors are many: each time that it would be woken costs tens of microseconds. So long from
 * now; 0: not here. */
uint64_t ibx_migration_busy_until(void);

/* SIGINT and SIGTERM as a descriptor, while a move is under way. */
struct move_signals {
    int fd;
    sigset_t before;
};
int ibx_migration_signals_open(struct move_signals *signals, struct ibx_error *err);
/* Signals since the last call. */
unsigned ibx_migration_signals_take(struct move_signals *signals);
void ibx_migration_signals_close(struct move_signals *signals);

/* For tests of what happens when a tool dies: stops this process (SIGSTOP) on entering the state
 * that $IBX_MOVE_STOP_AT names, "source:sending" for instance; once. */
void ibx_migration_stop_at(const char *side, const char *state);

/* Tells the status, at most every MOVE_TICK_MS unless `now`; computes the rates. */
struct move_teller {
    const struct ibx_migrate_tell *tell;
    uint64_t told_ns;
    uint64_t rate_ns, rate_bytes, rate_faults; /* where the present measurement began */
};
void ibx_migration_tell(struct move_teller *teller, struct ibx_migrate_status *status, bool now);
void ibx_migration_say(const struct ibx_migrate_tell *tell, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define MOVE_OWN_PAUSE_NS                                                                          \
    (1000 * IBX_NS_PER_MS) /* who has not looked for so long was away itself */

/* Since when nothing has come from the other side, and whether that was said. */
struct move_silence {
    uint64_t since_ns, looked_ns, count;
    bool said;
};
struct move_heard {
    bool awaited;        /* something is to come from there */
    uint64_t count;      /* changes with whatever comes */
    uint64_t pause_ns;   /* that may go by without anything, beside the usual */
    unsigned timeout_ms; /* of the transport */
    const char *means;   /* what it means for the VM, for a person */
};
/* Says once that nothing comes, and once that something does again; keeps status->silent_ns. */
void ibx_migration_mind_silence(struct move_silence *silence, const struct move_heard *heard,
                                struct ibx_migrate_status *status,
                                const struct ibx_migrate_tell *tell);

/* The options of every connection of a move; timeout_ms as the URI (NULL: none) has it, if so. */
struct ibx_options ibx_migration_options(const struct ibx_options *options, const char *uri);
/* Such options for one try of many. */
struct ibx_options ibx_migration_options_of_a_try(const struct ibx_options *options);
/* -EPERM and all sentences in one. */
int ibx_migration_refused(const char *where, const struct ibx_blockers *refusals,
                          struct ibx_error *err);
/* When a QMP event happened, CLOCK_MONOTONIC. */
uint64_t ibx_migration_event_ns(json_t *event);
/* Whether it is this event and, with `status`, has this data.status. */
bool ibx_migration_event_is(json_t *event, const char *name, const char *status);
/* An unfinished record of this very QEMU or of another with this UUID: -EBUSY and what to do. */
int ibx_migration_no_other(const char *folder, const struct ibx_guest_ram *ram, const char *qmp,
                           bool source, struct ibx_error *err);
/* The record as it is now, once its lock is held. -EALREADY: the move is over meanwhile. */
int ibx_migration_record_again(const char *folder, struct ibx_journal *record,
                               struct ibx_error *err);
/* Fills in what a record says of a VM. */
void ibx_migration_record_describe(struct ibx_journal *record, const struct ibx_guest_ram *ram,
                                   const char *qmp, const char *uri,
                                   const struct ibx_options *transport);
/* How many page connections a HELLO offers, of --links (0: up to what this machine is good for). */
void ibx_migration_offer_links(struct ibx_migrate_hello *hello, unsigned wished);
/* What cannot be pinned for the page connections of a move over the fabric of `conn`, `bytes` on
 * each or, where they share it, on all: the messages of such a connection, too, are left out, so
 * that no move is refused that is possible. */
void ibx_migration_refuse_locked(const struct ibx_conn *conn, unsigned links, uint64_t bytes,
                                 struct ibx_blockers *refusals);
/* HELLO and its ANSWER over a fresh connection; for the source. `control` is open on success. The
 * options are whole: the timeout_ms of the URI does not count beside theirs. */
int ibx_migration_greet(const char *uri, const struct ibx_options *options,
                        const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                        struct ibx_migrate_answer *answer, struct ibx_error *err);
/* ibx_migrate_confirm() with whole options. */
int ibx_migration_confirm(const struct ibx_journal *record, const struct ibx_options *options,
                          struct ibx_error *err);
/* MAP messages and MAP_END. */
int ibx_migration_send_map(struct ibx_channel *control, const struct ibx_page_map *map,
                           uint32_t regions, struct ibx_error *err);

#endif
