/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the two sides of a migration share. source/, destination/, operator/ and snapshot/ call it;
 * it calls none of them.
 *
 *   process.c     the tool's process: signals, when it may spin, how a side enters a state
 *   report.c      what a side tells its tool: the status, notices, a peer from which nothing comes
 *   greeting.c    connections to the destination: their options, HELLO and ANSWER
 *   records.c     the journal's records of this VM
 *   vm.c          QEMU's state by its monitor (vm.h)
 *   claim.c       claims a VM, while the watchdog of a killed tool may have it (vm.h)
 *   others_migration.c  another client's migration of the VM, beside this tool's (vm.h)
 *   stopped_vm.c  a VM that one of its disks has stopped (vm.h)
 *   return_path.c  QEMU's migration, held open at the source (return_path.h)
 *   write_protection.c  what stops others from writing to the VM's memory there
 *                 (write_protection.h)
 *   watchdog.c    gives the VM back when the tool dies (watchdog.h)
 *   stand_in.c    acts for a tool that stands still (stand_in.h)
 *   libvirt.c     the socket by which libvirt drives a migration (libvirt.h)
 *   page_state.c  what one tool leaves for the next in /dev/shm (page_state.h)
 */
#ifndef IBX_MIGRATE_COMMON_COMMON_H
#define IBX_MIGRATE_COMMON_COMMON_H

#include "common/state_machine.h"
#include "migrate/channel/channel.h"
#include "migrate/migrate.h"

#include <signal.h>

#define MIGRATION_TICK_MS      200   /* between two statuses */
#define MIGRATION_QMP_MS       20000 /* for an answer of QEMU */
#define MIGRATION_LINGER_MS    5000  /* for the peer to take the last message */
#define MIGRATION_TRY_MS       3000  /* for each step of one of many tries to reach the peer */
#define MIGRATION_LOCK_MS      2000  /* for the watchdog of a dead tool to end */
#define MIGRATION_LOCK_LOOK_MS 20    /* between two checks whether it has ended */
#define MIGRATION_AWAY_NS                                                                          \
    (1000 * IBX_NS_PER_MS) /* longer between two checks: this tool itself was stopped */

/* ---------------------------------------------------------------- process.c */

/* Until when (CLOCK_MONOTONIC, ns) a tool polls without sleeping, because a VM is stopped or
 * about to be, and each wake-up costs tens of microseconds. 0: this machine has too few processors.
 */
uint64_t ibx_migration_busy_until(void);
/* How long (ms) the peer may make no progress before the commit while a VM depends on it: 5 times
 * timeout_ms, at least 10 s. */
uint64_t ibx_migration_stall_ms(const struct ibx_options *transport);
/* How long (ms) nothing may come over a connection that stands, from a peer that is well and would
 * send: as long, at least 30 s, because it may wait for QEMU's monitor. */
uint64_t ibx_migration_sign_ms(const struct ibx_options *transport);

/* SIGINT, SIGTERM and SIGHUP as a descriptor, unless they are ignored (common/signals.h). */
struct migration_signals {
    int fd;
    sigset_t before;
};
int ibx_migration_signals_open(struct migration_signals *signals, struct ibx_error *err);
/* Whether such a signal is pending: it has arrived, and was not taken yet. */
bool ibx_migration_signals_pending(void);
/* Takes the signals that have come and returns their number. SIGHUP counts only with `hangups`;
 * otherwise a terminal that is closed ends nothing. */
unsigned ibx_migration_signals_take(struct migration_signals *signals, bool hangups);
void ibx_migration_signals_close(struct migration_signals *signals);

/* Moves the state machine of `side` ("source", "destination") to a state, and logs the move. For
 * tests, it stops the process (SIGSTOP) if $IBX_MOVE_STOP_AT names the state, for instance
 * "source:sending". The variable may name several with commas between: each stops the process once,
 * in this order. -EINVAL: the table does not allow the move; nothing has changed. */
int ibx_migration_enter(struct ibx_state_machine *state, const char *side, unsigned to,
                        struct ibx_error *err);
/* Only the stop for tests, where ibx_migration_enter() enters no state. */
void ibx_migration_stop_at(const char *side, const char *state);

/* ---------------------------------------------------------------- report.c */

struct migration_reporter {
    const struct ibx_migrate_observer *observer;
    uint64_t told_ns;
    uint64_t rate_ns, rate_bytes, rate_faults; /* where the present measurement began */
};
/* Reports the status, at most every MIGRATION_TICK_MS unless `now`; computes the rates. */
void ibx_migration_report(struct migration_reporter *reporter, struct ibx_migrate_status *status,
                          bool now);
/* Tells the operator one line. A peer must not fill the log of this host, so lines of the same
 * `format` are limited to ten a second, and to a hundred at once; the next line that is printed
 * says how many were left out. */
void ibx_migration_notify(const struct ibx_migrate_observer *observer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct migration_silence {
    uint64_t since_ns, looked_ns, count;
    bool notified;
};
struct migration_expectation {
    bool awaited;        /* something is to come from the peer */
    uint64_t count;      /* changes with whatever comes */
    uint64_t pause_ns;   /* allowed beyond the usual */
    unsigned timeout_ms; /* of the transport */
    const char *means;   /* what the silence means for the VM, for a person */
};
/* Notifies once that nothing comes, and once that something does again; keeps status->silent_ns. */
void ibx_migration_check_silence(struct migration_silence *silence,
                                 const struct migration_expectation *expected,
                                 struct ibx_migrate_status *status,
                                 const struct ibx_migrate_observer *observer);

/* Label under which both sides derive the key that verifies pages from the first control
 * connection. */
#define IBX_MIGRATION_VERIFY "ib-migrate verify"

/* ---------------------------------------------------------------- greeting.c */

/* Completes `options` for a connection of a migration. Options in the query of `uri` (or NULL)
 * override timeout_ms and those that a record keeps: key file, name, allow, encryption, insecure.
 */
struct ibx_options ibx_migration_options(const struct ibx_options *options, const char *uri);
/* A copy with timeout_ms at most MIGRATION_TRY_MS, for one of many attempts to connect. */
struct ibx_options ibx_migration_retry_options(const struct ibx_options *options);
/* How many page connections a HELLO offers: `wished`, or as many as suit this machine if that is 0.
 */
void ibx_migration_offer_links(struct ibx_migrate_hello *hello, unsigned wished);
/* Asks QEMU for the description of this VM and puts it into `hello`, replacing the one there. The
 * caller frees hello->description. */
int ibx_migration_describe_vm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                              struct ibx_migrate_hello *hello, struct ibx_error *err);
/* Adds a blocker if `links` page connections over the fabric of `conn` would pin more memory than
 * may be locked. `bytes` count for each connection, or once if connections share registrations.
 * Message buffers of page connections do not count, so that no possible migration is refused. */
void ibx_migration_check_locked(const struct ibx_conn *conn, unsigned links, uint64_t bytes,
                                struct ibx_blockers *blockers);
/* Returns -EPERM, with the blockers in one message: as many whole ones as fit, and the number of
 * the others. */
int ibx_migration_refused(const char *where, const struct ibx_blockers *blockers,
                          struct ibx_error *err);
/* For the source: connects to the destination, sends HELLO and waits for its ANSWER. On success
 * `control` is open and the caller's. `options` are those of ibx_migration_options(): the
 * timeout_ms of the URI is ignored. -ETIMEDOUT: no answer within timeout_ms; -ENODATA: the
 * destination closed before it answered; -EPROTO: it answered with something else; -EPROTOTYPE: it
 * speaks another version; others as ibx_connect(). */
int ibx_migration_greet(const char *uri, const struct ibx_options *options,
                        const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                        struct ibx_migrate_answer *answer, struct ibx_error *err);
/* The same in two steps. ibx_migration_say_hello() takes over `conn`, and closes it if it fails. */
int ibx_migration_connect(const char *uri, const struct ibx_options *options, uint8_t purpose,
                          struct ibx_conn **conn, struct ibx_error *err);
int ibx_migration_say_hello(struct ibx_conn *conn, const struct ibx_options *options,
                            const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                            struct ibx_migrate_answer *answer, struct ibx_error *err);
/* The same for a QUERY or CONFIRM, for which a record is enough. Closes the connection again.
 * -EPERM: whoever confirms, or says that the VM has not run there, has another key than this
 * migration (ibx_migration_check_key()). */
int ibx_migration_ask(const struct ibx_record *record, enum ibx_migrate_purpose purpose,
                      const struct ibx_options *options, struct ibx_migrate_answer *answer,
                      struct ibx_error *err);
/* ibx_migrate_confirm() with options of ibx_migration_options(). -ENOENT: the tool there does not
 * know this migration; -EPROTO: it is not complete there; -EPERM: as for ibx_migration_ask(). */
int ibx_migration_confirm(const struct ibx_record *record, const struct ibx_options *options,
                          struct ibx_error *err);
/* Tells the destination of this source's record, which waits for the VM, by ABORT why the VM does
 * not come. 0, too, if the destination has given up. -EPROTO: it does not wait for the VM; -EPERM:
 * whoever answers has another key than this migration; other errors: no tool answers there. */
int ibx_migration_disown(const struct ibx_record *record, const struct ibx_options *transport,
                         const char *why, struct ibx_error *err);
/* The same after the commit: the VM has been taken back, as `why` says (IBX_MIGRATE_TAKEN_BACK),
 * and a destination that has it pauses it. `*there`: the state that it answered with. -EBUSY: it
 * could not pause the VM, for the reason in `err`. */
int ibx_migration_take_from(const struct ibx_record *record, const struct ibx_options *transport,
                            const char *why, enum ibx_answer_state *there, struct ibx_error *err);
/* Notifies the operator if guest RAM crosses a network without encryption because this side was
 * told so (--encryption off). */
void ibx_migration_warn_plain(const struct ibx_migrate_observer *observer,
                              const struct ibx_options *options, const struct ibx_conn *conn);

/* ---------------------------------------------------------------- records.c */

/* -EBUSY, with what to do: this side (`source` or not) has an unfinished record of this QEMU, or of
 * another QEMU with this UUID; or at a destination, of a VM that left from the same memory. If the
 * VM `returns`, the record of the migration by which it was borrowed does not count. */
int ibx_migration_check_unfinished(const char *folder, const struct ibx_guest_ram *ram, bool source,
                                   bool returns, struct ibx_error *err);
/* Reads the record again, under its lock. -EALREADY: the migration has ended meanwhile. */
int ibx_migration_reload(const char *folder, struct ibx_record *record, struct ibx_error *err);
/* Writes the record in this state; it is unchanged on failure. */
int ibx_migration_record(const char *folder, struct ibx_record *record,
                         enum ibx_journal_state state, struct ibx_error *err);
/* While a tool works on a migration, somebody may remove or damage its record, or the folder. The
 * tool writes it anew, and says so once; begins as zeros. */
struct migration_keeping {
    uint64_t look_ns; /* when it is looked at next; 0: never yet */
    bool told;        /* that it cannot be written */
};
void ibx_migration_keep_record(struct migration_keeping *keeping, const char *folder,
                               struct ibx_record *record,
                               const struct ibx_migrate_observer *observer);
/* Fills in the fields of a new record that describe the VM. An error: when its QEMU started cannot
 * be read, so that nobody could tell whether it lives. */
int ibx_migration_describe(struct ibx_record *record, const struct ibx_guest_ram *ram,
                           const char *qmp, const char *uri, const struct ibx_options *transport,
                           struct ibx_error *err);
/* Notes the URI. A relative path of a key file in its query becomes absolute. */
void ibx_migration_note_uri(struct ibx_record *record, const char *uri);
/* Notes the name of the key with which the source has authenticated on `conn`. Both sides do this.
 */
void ibx_migration_note_key(struct ibx_record *record, const struct ibx_conn *conn);
/* -EPERM: the source has authenticated on `conn` with another key than the record's. */
int ibx_migration_check_key(const struct ibx_record *record, const struct ibx_conn *conn,
                            struct ibx_error *err);

#endif
