/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The source of a move, between source.c (its states) and source_link.c (its connections). */
#ifndef IBX_MIGRATE_SOURCE_SOURCE_H
#define IBX_MIGRATE_SOURCE_SOURCE_H

#include "migrate/common/common.h"
#include "migrate/operator/control_socket.h"
#include "migrate/pages/pages.h"
#include "migrate/source/watchdog.h"

/*
 *   ASKING ----> EXPOSING ----> STARTING ----> STOPPED ----> SENDING ----> COMMITTED ---> SERVING
 *    HELLO        RAM, READY     QEMU sends     map           device        |  RUNNING       |
 *     |              |             |              |           state         |       COMPLETE |
 *     |              |             |              |              |   GIVEN_UP|  by dest.      v
 *     +--------------+-------------+--------------+--------------+----------+          CONFIRMING
 *                                  |                                                        |
 *                                  v                                              CONFIRMED v
 *                                KEPT: the VM goes on here                                 DONE
 *
 * The point of no return is the move to COMMITTED: before it whatever goes wrong leads to KEPT;
 * after it only the destination's word that the VM never ran there does. Without that word a lost
 * connection (`linked` is false in COMMITTED and SERVING) is made again for as long as it takes.
 *
 * In CONFIRMING nothing depends on this side any more, and that is on record: only that the
 * destination has heard so is waited for, for a while.
 */
enum source_state {
    SOURCE_ASKING,
    SOURCE_EXPOSING,
    SOURCE_STARTING,
    SOURCE_STOPPED,
    SOURCE_SENDING,
    SOURCE_COMMITTED,
    SOURCE_SERVING,
    SOURCE_CONFIRMING,
    SOURCE_DONE,
    SOURCE_KEPT,
    SOURCE_STATES
};

struct source {
    const struct ibx_send_options *options;
    struct ibx_options transport;
    enum source_state state;
    bool linked;
    struct ibx_migrate_status status;
    struct migration_reporter reporter;
    struct migration_signals signals;
    struct ibx_control_socket *talk;
    int lock_fd;

    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    struct ibx_source_vm vm;
    struct ibx_watchdog guard;
    struct ibx_page_map map;

    struct ibx_channel control;
    struct ibx_page_server *pages;
    unsigned links; /* page connections, as the destination has answered; 0: not yet */
    uint32_t regions;
    bool exposing, ready, loaded, complete; /* the other side's word: READY, LOADED, COMPLETE */
    bool map_sent;                          /* over this control connection */
    struct ibx_migrate_totals record;       /* of COMPLETE */

    int stream;   /* QEMU's device state; -1: none, or at its end */
    bool stopped; /* by QEMU's word, since the migration began */
    bool stream_ended, qemu_completed, state_sent;

    uint64_t busy_until_ns; /* of ibx_migration_busy_until() */
    uint64_t retry_ns, retry_pause_ms, linked_ns, lost_ns;
    bool cancelled;
    bool aborted;   /* the destination's own word, never a mere error of the network */
    bool leaving;   /* after the commit: given up or interrupted, recover goes on */
    bool unkept;    /* it stays here, but could not be continued */
    bool waited;    /* RUNNING is long overdue, and it was said */
    uint64_t heard; /* messages */
    struct migration_silence silence;
    unsigned interrupts;
    uint64_t stop_ns, mapped_ns, loaded_ns; /* moments of the downtime */
    uint64_t still_ns;                      /* since when the VM stands still, by this tool */
    bool confirmed;                         /* the other side's word: CONFIRMED */
    uint64_t confirm_by_ns;                 /* until when that is waited for */
};

/* The one place that moves. */
void ibx_source_move(struct source *s, enum source_state to);
static inline bool source_committed(const struct source *s)
{
    return s->state >= SOURCE_COMMITTED && s->state <= SOURCE_CONFIRMING;
}

/* source.c: until DONE or KEPT, or until it is left to ib-migrate recover. */
int ibx_source_run(struct source *s, struct ibx_error *err);
/* Before the commit: the VM goes on here; returns `code`. */
int ibx_source_keep(struct source *s, int code, struct ibx_error *err);

/* ibx_source_confirm.c */

/* All pages are there: puts that on record, goes to CONFIRMING and says so. */
int ibx_source_confirm(struct source *s, struct ibx_error *err);
/* In CONFIRMING: waits for the answer, or says it again over a new connection; DONE in any case. */
void ibx_source_await_confirmed(struct source *s,
                                int (*hear)(void *context, const struct ibx_migrate_any *message),
                                void *context);

/* source_link.c */

/* HELLO and its answer, then the page connections. */
int ibx_source_link_ask(struct source *s, struct ibx_error *err);
/* Exposes what holds data now; asynchronously. */
int ibx_source_link_expose(struct source *s, struct ibx_error *err);
/* 0: all is exposed and told; -EAGAIN: not yet. */
int ibx_source_link_exposed(struct source *s, struct ibx_error *err);
/* After the commit: one try to connect again. -EAGAIN: in vain, later again; -ECANCELED: the
 * destination has given up, the VM never ran there. */
int ibx_source_link_again(struct source *s, struct ibx_error *err);
void ibx_source_link_close(struct source *s);
/* Tells a destination that may wait for the commit, over a connection of its own, that the VM goes
 * on here: as good as that goes. */
void ibx_source_link_disown(struct source *s, const char *why);
/* Which pages hold data at this moment. */
int ibx_source_find_map(struct source *s, struct ibx_error *err);
/* Writes the record in this state. */
int ibx_source_record(struct source *s, enum ibx_journal_state state, struct ibx_error *err);

#endif
