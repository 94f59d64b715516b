/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The source of a migration. ibx_migrate_send() of migrate/migrate.h is here, nothing else is
 * called from outside.
 *
 *   begin.c     that call: what is checked and opened, and in the end closed
 *   source.c    the loop and the steps of each state
 *   events.c    events of QEMU, and its monitor
 *   control_messages.c  messages of the destination on the control connection
 *   libvirt.c   where libvirt drives QEMU's migration
 *   commit.c    the point of no return: dismisses the watchdog, sends COMMIT
 *   ending.c    everything that ends a migration: trouble, interrupts, the confirmation
 *   broken.c    ... its pages are not, or may not be, what they were
 *   lost.c      the VM's QEMU has ended at the destination, nobody is there any more, or it has
 *               completed the migration by another page map
 *   intruder.c  after the commit: others who continue, reset or write to the VM here
 *   vm.c        QEMU: what its events mean, which pages hold data
 *   files.c     guest RAM when QEMU has ended after the commit
 *   stream.c    the device state, from QEMU to the destination
 *   link.c      the control connection and the page connections
 *   warm.c      pages that are fetched while the VM still runs
 *   return.c    a VM that returns to where it was borrowed from: which pages it has written
 *   stop_map.c  the page map of the stop, for recover
 *   verify.c    digests of the pages that have come there
 *   remove.c    files of guest RAM, once the migration is complete
 *   states.c    the states
 *
 * Calls go downwards: begin.c, source.c, events.c, control_messages.c and libvirt.c, then commit.c
 * to intruder.c, which call each other, then the parts, of which link.c, warm.c, return.c and
 * stop_map.c use others, then states.c. These are called from below: ibx_source_on_message(), to
 * take the last messages; ibx_source_on_quiet(), ibx_source_libvirt_saved() and
 * ibx_source_libvirt_resumed(), to go on in another way; ibx_source_set_settings(); and by return.c
 * and verify.c ibx_source_check_interrupts() and ibx_source_broken(). vm.h (with files.c),
 * stream.h, link.h, warm.h (with warm_parts.c) and return.h are headers of parts.
 */
#ifndef IBX_MIGRATE_SOURCE_SOURCE_H
#define IBX_MIGRATE_SOURCE_SOURCE_H

#include "migrate/common/common.h"
#include "migrate/common/write_protection.h"
#include "migrate/common/libvirt.h"
#include "migrate/operator/control_socket.h"
#include "migrate/pages/digest.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/link.h"
#include "migrate/source/return.h"
#include "migrate/source/stream.h"
#include "migrate/source/vm.h"
#include "migrate/source/warm.h"

/* ---------------------------------------------------------------- source.c */

/*
 * state machine: source
 *   [*] -> ASKING -> EXPOSING      HELLO is accepted; RAM is registered and READY is awaited
 *   EXPOSING -> WARMING            the destination fetches pages while the VM runs (--warm)
 *   EXPOSING | WARMING -> STARTING  QEMU's migration is started, or libvirt may start it
 *   STARTING -> STOPPED            the VM is stopped; the page map is made
 *   STOPPED -> SENDING             the page map is sent; the device state follows
 *   SENDING -> COMMITTED           LOADED has come and COMMIT goes: the point of no return
 *   COMMITTED -> SERVING           RUNNING has come: the VM runs at the destination
 *   SERVING -> CONFIRMING          COMPLETE or ENDED has come and is in the journal
 *   CONFIRMING -> DONE -> [*]      the destination confirmed it, or the time for that is over
 *   [*] -> COMMITTED | SERVING     ib-migrate recover
 *   ASKING | EXPOSING | WARMING | STARTING | STOPPED | SENDING | COMMITTED -> KEPT | STRANDED
 *   KEPT | STRANDED -> [*]
 *   COMMITTED | SERVING -> LEFT | BROKEN -> [*]
 *   SERVING -> LOST -> LEFT | KEPT | STRANDED
 *   SERVING -> LOST -> KEPT        also when libvirt continues a VM here that never ran there
 *
 * KEPT: the VM stays here. Before COMMITTED every failure leads there. In COMMITTED only the
 * destination's own statement that the VM never ran there does; without it, and in SERVING, the
 * source makes a lost link again for as long as necessary. STRANDED: the same, but QEMU could not
 * be told to continue. LEFT: given up or interrupted after the commit; the pages stay in QEMU, the
 * VM must not be continued here, and ib-migrate recover continues. BROKEN: the destination has
 * other pages than this side; they stay in QEMU, for ib-migrate rollback. LOST: the VM's QEMU has
 * ended there; where libvirt drives, this side waits whether libvirt continues the VM here. In
 * CONFIRMING the destination needs nothing from this side.
 *
 * A move that the table refuses is an internal failure: before the commit it ends as any failure
 * does, in KEPT; after the commit it is a lost link, and every page is kept.
 */
enum source_state {
    SOURCE_ASKING,
    SOURCE_EXPOSING,
    SOURCE_WARMING,
    SOURCE_STARTING,
    SOURCE_STOPPED,
    SOURCE_SENDING,
    SOURCE_COMMITTED,
    SOURCE_SERVING,
    SOURCE_LOST,
    SOURCE_CONFIRMING,
    SOURCE_DONE,
    SOURCE_KEPT,
    SOURCE_STRANDED,
    SOURCE_LEFT,
    SOURCE_BROKEN
};

/*
 * The last statement of the destination.
 *
 * state machine: source peer
 *   [*] -> QUIET -> READY -> LOADED -> COMPLETE | ENDED -> CONFIRMED -> [*]
 *   [*] -> LOADED                             ib-migrate recover
 *   QUIET | READY | LOADED -> ABORTED -> [*]  its own statement, never an error of the network
 */
enum source_peer_state {
    PEER_QUIET,
    PEER_READY,
    PEER_LOADED,
    PEER_COMPLETE,
    PEER_ENDED, /* the guest has shut the VM down there, or the VM has returned */
    PEER_CONFIRMED,
    PEER_ABORTED
};

/*
 * What is known of the protection of guest RAM here (write_protection.h has its own states).
 *
 * state machine: source protection
 *   [*] -> WISHED -> NOTED                the protection is in the record, so that recover finds it
 *   NOTED -> ASKED -> WHOLE               all is protected, and QEMU has answered since
 *   NOTED -> WHOLE                        recover: all was protected, by the record
 *   WISHED | NOTED | ASKED | WHOLE -> IMPOSSIBLE                  for the reason that was notified
 *   WISHED | NOTED | ASKED | IMPOSSIBLE -> LAST -> NEEDLESS
 *   LAST -> WHOLE                         all was protected before
 *   WISHED | NOTED | ASKED | WHOLE | IMPOSSIBLE | LAST | NEEDLESS -> [*]
 *
 * What QEMU does in WHOLE it does under protection. LAST: every page has come to the destination,
 * and QEMU was asked something since. NEEDLESS: it has answered, so that nothing that it reports
 * from then on has changed a page that came.
 */
enum source_protecting_state {
    PROTECTING_WISHED,
    PROTECTING_NOTED,
    PROTECTING_ASKED,
    PROTECTING_WHOLE,
    PROTECTING_IMPOSSIBLE,
    PROTECTING_LAST,
    PROTECTING_NEEDLESS
};

/* The page map of the stop, in memory that outlives this tool: stop_map.c. */
struct source_stop_map {
    struct ibx_page_state state; /* without memory: there is none */
    bool looked_again;           /* recover: there was none, and the pages were looked for again */
};

/* What destination's tools before the present one have reported last: pages fetched, and faults. */
struct source_earlier {
    unsigned reconnects; /* when it was last looked whether the destination's tool is another one */
    uint64_t bytes, faults, fault_max_ns;
};

struct source {
    const struct ibx_send_options *options;
    struct ibx_options transport;
    struct ibx_state_machine state, peer;
    struct source_vm vm;
    struct source_link link;
    struct source_stream stream;
    struct source_warm warm;
    struct source_return home;
    struct source_stop_map stop_map;
    struct ibx_gate gate;     /* CLOSED unless libvirt drives */
    struct ibx_images images; /* of the VM's disks, before it stopped */

    struct ibx_migrate_status status;
    struct source_earlier earlier;
    struct migration_reporter reporter;
    struct migration_keeping keeping; /* of the record, in SERVING */
    struct migration_signals signals;
    struct ibx_control_socket *socket;
    int lock_fd;
    unsigned interrupts; /* signals, and a request to cancel */

    struct ibx_write_protection protection; /* of guest RAM here, in SERVING */
    uint64_t protect_ns;                    /* managed: when to make it, unless QEMU has ended */
    uint64_t decided_epoch;                 /* managed: of the link over which DECIDED was sent */
    uint64_t pause_by_ns;                   /* managed: until when libvirt's settings are awaited */
    uint64_t set_mark; /* managed: ibx_qmp_mark() before x-ignore-shared was set; 0: it is not */
    uint64_t written_mark; /* managed: ibx_qmp_mark_next() when QEMU had written its state, or 0 */
    bool without_ram;      /* managed: QEMU has completed another migration with x-ignore-shared */
    uint64_t gate_by_ns;   /* managed: until when it is awaited at the gate */
    struct ibx_state_machine protecting;
    struct ibx_error disturbed;    /* code not 0: what others did to the VM here after the commit */
    struct ibx_verifier *verifier; /* from RUNNING or the first DIGEST on */
    bool unseen_since;             /* disturbed: not known when, and pages are not compared */
    bool uncompared;               /* NEEDLESS: the rest cannot be compared any more */
    struct ibx_error given_up; /* why digests could not be compared, which come again over the next
                                * link */
    struct {
        uint64_t first, count; /* from the first to the last range whose digests came before there
                                * was a verifier */
    } missed;
    struct {
        uint64_t heard, told; /* borrowed: DIGESTs over this link, and those of the last COMPARED */
    } parts;
    uint64_t complete_epoch; /* of the link over which COMPLETE came last */
    uint64_t messages;       /* from the destination */
    struct migration_silence silence;
    uint64_t busy_until_ns;   /* of ibx_migration_busy_until() */
    uint64_t lost_ns;         /* when the link was lost */
    uint64_t back_ns;         /* ... and when it was made again, or 0 */
    unsigned closed;          /* links in a row that the destination closed at once */
    uint64_t nobody_ns;       /* since when nobody listens at the destination; 0: somebody does */
    bool shut_down;           /* the VM was shut down here while it was being migrated */
    bool untold;              /* pages are wrong there, and the link to say so is lost */
    uint64_t heard_ns;        /* when the destination last sent something, or COMMIT was sent */
    uint64_t unsure_ns;       /* COMMITTED: since when a link that stood brought no RUNNING, or 0 */
    uint64_t unheard_ns;      /* SERVING: when to tell again that it does not answer */
    uint64_t unheard_look_ns; /* when that was last checked */
    uint64_t decide_by_ns;    /* LOST: until when libvirt's decision is awaited */
    uint64_t still_ns;        /* since when the VM is stopped */
    uint64_t away_ns;         /* ... and for how much of that time this tool did nothing, or was
                               * busy for more than a second */
    unsigned looks;           /* times that QEMU had reported something before COMMIT */
    bool short_told;          /* the operator was told why no link can be made from here */
    bool still_told;          /* the operator was told that this takes long */
    uint64_t mapped_ns, loaded_ns; /* moments of the downtime */
    uint64_t confirm_by_ns;        /* until when CONFIRMED is awaited */
    uint64_t home_look_ns;         /* borrowed: when to look again whether it has returned */
    uint64_t home_by_ns;           /* borrowed: it has, and until when ENDED is awaited */
    uint64_t settle_ns;            /* when to try again to put QEMU's settings back */
    uint64_t note_ns;              /* ... and to write a record that could not be written */
    uint64_t whole_ns;             /* ... and that all memory is protected */
    uint64_t end_ns;               /* ... and the record of the end; 0: that has not failed */
    bool unseen; /* the destination has not seen the epoch, which could not be written */
};

/* Whether the VM returns to where it was borrowed from. */
static inline bool source_returns(const struct source *s)
{
    return ibx_journal_returns(&s->status.record);
}
/* Finds which pages hold data at this moment. */
int ibx_source_find_map(struct source *s, struct ibx_error *err);
/* In STARTING: nothing writes to guest RAM any more, and QEMU writes the device state meanwhile.
 * Goes to STOPPED and finds the page map. */
int ibx_source_on_quiet(struct source *s, struct ibx_error *err);
/* While the VM is stopped and could continue here, a slow destination is an error: -ETIMEDOUT.
 * After the commit this side can only notify. */
int ibx_source_check_stall(struct source *s, struct ibx_error *err);
/* Runs until a final state; 0 in DONE. */
int ibx_source_run(struct source *s, struct ibx_error *err);

/* After the commit: the VM must not be continued here, as far as this side knows. */
static inline bool source_committed(const struct source *s)
{
    return s->state.now >= SOURCE_COMMITTED && s->state.now <= SOURCE_CONFIRMING;
}
static inline bool source_over(const struct source *s)
{
    return s->state.now >= SOURCE_DONE;
}

/* ---------------------------------------------------------------- states.c */

/* `first`: ASKING, or for recover COMMITTED or SERVING. */
int ibx_source_begin(struct source *s, enum source_state first);
/* The one place that moves. -EINVAL: refused, nothing has changed. */
int ibx_source_move(struct source *s, enum source_state to, struct ibx_error *err);
enum ibx_migrate_phase ibx_source_phase(const struct source *s);
/* Copies figures of all parts into s->status. */
void ibx_source_update(struct source *s);

/* ---------------------------------------------------------------- begin.c */

/* Sets QEMU's migration settings, once the record and the watchdog know what they were before.
 * Unless libvirt drives, this is done as late as possible: a snapshot that another client takes of
 * the VM with these settings has no RAM. */
int ibx_source_set_settings(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- stop_map.c */

/* Makes the page state for the page map of the stop. To be called once there is a record, without
 * which nobody would look for it. If it cannot be made, only the return of a borrowed VM fails;
 * otherwise the operator is told. */
int ibx_source_stop_map_make(struct source *s, struct ibx_error *err);
/* Recover, after the commit: takes the page map from the page state. -ENOENT: nothing is noted, and
 * the pages have to be looked for again; -ESTALE: the page state of a return is gone, and nobody
 * can find its map again. */
int ibx_source_stop_map_recall(struct source *s, struct ibx_error *err);
/* The page map is that of the stop: notes it, before the destination is told. */
void ibx_source_stop_map_note(struct source *s);
void ibx_source_stop_map_fini(struct source *s);

/* ---------------------------------------------------------------- events.c */

/* Takes what QEMU has reported, and tries a monitor again that was lost after the commit. After the
 * commit only -EBADMSG is an error: the migration is broken. */
int ibx_source_check_qemu(struct source *s, struct ibx_error *err);
/* Returns an error with the reason why QEMU's migration has ended before it was complete, as far as
 * QEMU reports that. */
int ibx_source_qemu_failed(struct source *s, struct ibx_error *err);
/* Tells the operator of a VM that its disk or its watchdog has stopped: such a VM is migrated as it
 * is, and nobody waits for it to run. */
void ibx_source_tell_of_stop(const struct source *s, const char *status);

/* -------------------------------------------------------- control_messages.c */

struct message_context {
    struct source *source;
    struct ibx_error *err;
};
/* Takes a message of the destination; `context` is a struct message_context. */
int ibx_source_on_message(void *context, const struct ibx_migrate_any *message);

/* ---------------------------------------------------------------- commit.c */

/* -EPERM: the VM no longer has the devices, or its disks the images, that the destination has
 * compared: it would continue with other devices, or with an image that lacks what the VM has
 * written to another one. To be called before QEMU is told to migrate, and before the commit, as
 * they were when the VM had stopped. */
int ibx_source_check_compared(struct source *s, struct ibx_error *err);
/* To be called all the time while pages come before the stop; looks once a second. -EPERM: the VM
 * has other devices than the destination has compared; -EBUSY: QEMU migrates it, or has, for
 * another client. At the stop both would be refused, too. Notifies, once, of other images and of
 * block jobs, which would be as well. */
int ibx_source_look_at_warming(struct source *s, struct ibx_error *err);
/* -EPERM: somebody uses the VM's disks here. To be called at the same moments. */
int ibx_source_check_block_users(struct source *s, struct ibx_error *err);
/* -EPERM: QEMU cannot have the memory that its migration takes. To be called while the VM runs. */
int ibx_source_check_memory(struct ibx_error *err);
/* While the VM runs: finds which images QEMU has to hand over. When QEMU has written its state, the
 * second function returns -EPERM if QEMU has not handed one over, so that the VM could not run at
 * the destination. */
int ibx_source_find_images(struct source *s, struct ibx_error *err);
int ibx_source_check_images(struct source *s, struct ibx_error *err);
/* To be called right before QEMU is told to migrate. -EBUSY: its settings are not what they were
 * set to. The VM would stand still without events of that, or its state could not be loaded. */
int ibx_source_check_settings(struct source *s, struct ibx_error *err);
/* The same. -EBUSY: another client has brought the VM into a state in which QEMU would end by an
 * assertion ("invalid runstate transition") when it began. */
int ibx_source_check_status(struct source *s, struct ibx_error *err);
/* Asks QEMU for what the checks of devices, images and users need, and does not wait; while the VM
 * runs (not `stopped`), only for what cannot change any more. */
void ibx_source_compared_ask(struct source *s, bool stopped);
/* LOADED has come: checks all that once more, sends COMMIT, and goes to COMMITTED; not if QEMU has
 * reported something meanwhile, which has to be taken first. */
int ibx_source_commit(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- lost.c */

/* In SERVING: the destination says that the VM's QEMU has ended there. Goes to LOST. */
int ibx_source_lose_vm(struct source *s, const char *why, struct ibx_error *err);
/* In LOST: ends the tool with a sentence about what is left of the VM; where libvirt drives, once
 * it has decided. */
int ibx_source_vm_lost(struct source *s, struct ibx_error *err);
/* Recover: an earlier tool has come to LOST. */
int ibx_source_recover_lost(struct source *s, struct ibx_error *err);
/* COMPLETE has come, with another page map: -EPROTO, in LEFT. */
int ibx_source_other_map(struct source *s, const struct ibx_migrate_totals *totals,
                         struct ibx_error *err);
/* -ETIMEDOUT, in LEFT: for too long the destination has not said whether the VM runs there; or,
 * while the VM runs there, nobody has listened. In SERVING this side waits for a host that does not
 * answer, and tells the operator. With give_up_s this looks only at a destination that answers each
 * new link, and never says whether the VM runs there. */
int ibx_source_check_unheard(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- libvirt.c */

/* Gives the files of guest RAM a second name, because libvirt removes them when it ends QEMU. */
void ibx_source_libvirt_link_files(struct source *s);
/* Before the gate opens. 0: libvirt has set what it sets, all at once, and is about to connect;
 * -EAGAIN: not yet. */
int ibx_source_libvirt_check_set(struct source *s, struct ibx_error *err);
/* QEMU has refused its settings. True: it took none of them, because it is in a migration, and
 * `*rc` and `err` say which. */
bool ibx_source_libvirt_is_early(const struct source *s, int *rc, struct ibx_error *err);
/* -EBUSY: the VM was stopped before QEMU's migration could stop it, which then reports nothing; or
 * another migration has stopped it. */
int ibx_source_libvirt_runs(const struct source *s, struct ibx_error *err);
/* Gives QEMU its settings, and looks whether the VM runs, for ibx_source_libvirt_runs(). */
int ibx_source_libvirt_set(struct source *s, struct ibx_error *err);
/* Opens the gate. */
int ibx_source_libvirt_let(struct source *s, struct ibx_error *err);
/* Takes QEMU's connection, if libvirt has started QEMU's migration: then the stream is OPEN. 0 also
 * if it has not come so far. */
int ibx_source_libvirt_gate(struct source *s, struct ibx_error *err);
/* QEMU has written its whole state: before any question about the stopped VM. */
void ibx_source_libvirt_written(struct source *s);
/* Before other uses of this event. An error if it is a stop of the VM that is not that of libvirt's
 * migration. */
int ibx_source_libvirt_stopped(struct source *s, json_t *event, struct ibx_error *err);
/* The stream has ended. Whether libvirt has left before QEMU began to migrate; says so in `err`. */
bool ibx_source_libvirt_left(const struct source *s, struct ibx_error *err);
/* libvirt has saved the VM without its memory (`without_ram`): keeps that, which the record notes,
 * and goes to STRANDED. Returns -ENOTRECOVERABLE, as the second one, which only says it. */
int ibx_source_libvirt_saved(struct source *s, struct ibx_error *err);
int ibx_source_libvirt_say_saved(const struct source *s, struct ibx_error *err);
/* The VM has moved, or was shut down there: says so where libvirt has left its QEMU here, for
 * somebody to continue it. Waits some seconds for its end. */
void ibx_source_libvirt_tell_left(struct source *s);
/* The migration has failed, and the VM is here: says so where libvirt has not continued it within
 * seconds, unless it was paused before. */
void ibx_source_libvirt_tell_paused(struct source *s);
/* The VM has been continued here. True: libvirt has decided that, and may. */
bool ibx_source_libvirt_resumed(struct source *s);
/* If libvirt has ended QEMU here: tells the destination, once for each link, that the VM stays
 * there. */
int ibx_source_libvirt_decided(struct source *s, struct ibx_error *err);
/* If libvirt has continued the VM here: -ECANCELED, in KEPT; the destination has been told, or
 * `err` says that it could not be. */
int ibx_source_libvirt_check(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- intruder.c */

/*
 * After the commit nobody may run the VM here or change its memory. QEMU refuses most of that while
 * its migration is held open, and the protection stops whoever writes nevertheless. Whatever
 * happens then, the tool does not end with success.
 */

void ibx_source_protection_init(struct source *s);
/* In SERVING: makes the protection, and then protects one part more with each call. */
void ibx_source_protect(struct source *s);
/* Recover: takes over the protection of the tool before this one. If it holds a thread of QEMU,
 * whose monitor may not answer then, finds guest RAM by the record alone. -EAGAIN: it holds none.
 */
int ibx_source_protection_take(struct source *s, struct ibx_error *err);
/* The same while QEMU does not answer: a thread that was about to write may be held by now.
 * -EAGAIN: QEMU's monitor is reached, or there is no write protection. */
int ibx_source_protection_reach(struct source *s, struct ibx_error *err);
/* ... or after QEMU has not answered, with `rc`. Returns `rc` if the protection is not the reason.
 */
int ibx_source_protection_blamed(struct source *s, int rc, struct ibx_error *err);
/* ... and when its monitor is reached: checks what was done to the VM before all of its memory was
 * protected. -EBADMSG, in BROKEN: its memory may have changed; -EBUSY, -EOPNOTSUPP: that is not
 * known. */
int ibx_source_protection_check_past(struct source *s, struct ibx_error *err);
/* QEMU's monitor is there again, vm.ram.status is what it says, and what QEMU has reported
 * meanwhile is lost: checks what was done. -EBADMSG, in BROKEN; -EBUSY, in LEFT: somebody has ended
 * QEMU's migration, so that the pages may have changed. Any other error: QEMU could not be asked.
 * What nobody can tell is no error. */
int ibx_source_protection_recheck(struct source *s, struct ibx_error *err);
/* Where libvirt drives: puts the figures of QEMU's migration into the record, which is not written,
 * so that recover can tell it from another. */
void ibx_source_note_figures(struct source *s);
/* COMPLETE has come: asks QEMU something, for LAST. */
void ibx_source_all_came(struct source *s);
/* Checks whether the protection has caught somebody. -EBADMSG, in BROKEN: before all of the memory
 * was protected. */
int ibx_source_check_protection(struct source *s, struct ibx_error *err);
/* RUNNING has come, and the VM is paused there: tells why, if that is to be seen here. */
void ibx_source_blame_export(struct source *s);
/* To be called when QEMU's events have been taken: takes its answer in ASKED or LAST. */
void ibx_source_protection_answered(struct source *s);
/* An event of QEMU's after the commit. -EBADMSG, in BROKEN: its memory may have changed. */
int ibx_source_on_intruder(struct source *s, json_t *event, struct ibx_error *err);
/* In CONFIRMING and DONE: ends QEMU's migration and removes the protection, unless the protection
 * has caught somebody, who would continue then, or the VM runs here. ibx_source_let_go_early()
 * neither waits for a slow QEMU nor notifies: it is tried again in DONE. */
void ibx_source_let_go_early(struct source *s);
void ibx_source_let_go(struct source *s);
/* After an intruder, in BROKEN and DONE: sees to it that the VM does not run here. The `stop` that
 * was posted when the intruder was seen may have been lost with the monitor. */
void ibx_source_stop_at_last(struct source *s);
/* In DONE: 0, or the error to report instead of success. */
int ibx_source_verdict(const struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- verify.c */

/* Once the VM runs there: computes tags ahead of the destination's digests, where that pays. */
void ibx_source_verify_ahead(struct source *s);
/* To be called when a new link is made. */
void ibx_source_verify_anew(struct source *s);
/* To be called before a link is closed, so that its mapping of guest RAM goes with it: pages are
 * read from files until there is another link. Unmapping takes long, and would delay CONFIRM. */
void ibx_source_verify_unlinked(struct source *s);
/* Takes a DIGEST: compares its ranges with guest RAM. */
int ibx_source_on_digest(struct source *s, const struct ibx_migrate_digest *digest,
                         struct ibx_error *err);
/* -EBADMSG, in BROKEN: a page differs. */
int ibx_source_check_pages(struct source *s, struct ibx_error *err);
/* When COMPLETE has come. 0: all pages are the same, or are not verified; -EAGAIN: some are being
 * compared, or come over the next link; -EPROTO: digests are missing. */
int ibx_source_verified(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- remove.c */

/* The migration is complete: removes the files of guest RAM that were set aside, with --remove all
 * of them, and notifies of those that stay. */
void ibx_source_remove_files(struct source *s);

/* ---------------------------------------------------------------- broken.c */

/* The pages at the destination are not those here, as `err` says: BROKEN, and with `untold` the
 * destination is told, over a new link where this one is lost. Returns -EBADMSG. */
int ibx_source_broken(struct source *s, bool untold, struct ibx_error *err);
/* After each turn, which ended with `code`: whether a file of guest RAM was cut short whose pages
 * the destination needs. Then -EBADMSG, in BROKEN, or before the commit -ESTALE; otherwise `code`.
 */
int ibx_source_check_files(struct source *s, int code, struct ibx_error *err);
/* Recover of such a migration: tells the destination. -EBADMSG. */
int ibx_source_recover_broken(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- ending.c */

/* Whether QEMU has ended. Waits shortly for one whose monitor has ended a moment ago. */
bool ibx_source_qemu_has_ended(const struct source *s);

/* Continues the VM here and goes to KEPT or STRANDED; returns `code`. Where the table has no move
 * to KEPT it changes nothing and returns `code`: the VM may run at the destination. */
int ibx_source_keep(struct source *s, int code, struct ibx_error *err);
/* An error after the commit. 0: go on, and connect again. */
int ibx_source_link_trouble(struct source *s, int code, struct ibx_error *err);
/* In SERVING: takes what has come, up to an ABORT, within `ms`; with `err` also BROKEN, which leads
 * to that state. */
void ibx_source_take_last_abort(struct source *s, unsigned ms, struct ibx_error *err);
/* After the commit: writes the record, or notifies that it cannot be written: 0 as well, since the
 * VM at the destination does not wait for a disk that is full. The record on the disk is true then,
 * but not the latest. */
int ibx_source_note(struct source *s, enum ibx_journal_state state, struct ibx_error *err);
/* The same with the epoch of the next link. The epoch is raised, unless the last one could not be
 * written and the destination has not seen it: so the destination does not get far ahead of the
 * record. */
int ibx_source_note_epoch(struct source *s, struct ibx_error *err);
/* Notes what became of the link with that epoch; `there`: 0 without an answer. */
void ibx_source_tried(struct source *s, int rc, enum ibx_answer_state there);
/* After the commit, without a link: one try to reconnect, when it is time. */
int ibx_source_reconnect(struct source *s, struct ibx_error *err);
/* SIGINT, SIGTERM and the cancel command: -ECANCELED before the commit, -EINTR (in LEFT) after it.
 */
int ibx_source_check_interrupts(struct source *s, struct ibx_error *err);
/* Once the VM runs at the destination: puts QEMU's migration settings back as soon as QEMU allows
 * it, which is tried now and then. */
void ibx_source_settle(struct source *s);
/* The same at the end of the tool, for the last time. */
void ibx_source_settle_at_last(struct source *s);
/* All pages are at the destination, or the VM has ended there: writes that, goes to CONFIRMING,
 * sends CONFIRM. */
int ibx_source_confirm(struct source *s, struct ibx_error *err);
/* Gives the destination more time for CONFIRMED. */
void ibx_source_await_longer(struct source *s);
/* In SERVING: if the records say that a borrowed VM has returned, ends as with ENDED. */
int ibx_source_check_home(struct source *s, struct ibx_error *err);
/* In CONFIRMING: waits for CONFIRMED, or confirms again over a new connection; then DONE. */
int ibx_source_await_confirmed(struct source *s, struct ibx_error *err);

#endif
