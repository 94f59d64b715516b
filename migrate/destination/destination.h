/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination of a migration. ibx_migrate_receive() of migrate/migrate.h is here, nothing else
 * is called from outside.
 *
 *   begin.c              that call: checks, opens, and in the end closes
 *   destination.c        the loop and the steps of each state
 *   recover.c            what a tool takes over of the one before it
 *   requests.c           what others ask: sources by HELLO and JOIN, operators by the socket
 *   control_messages.c   messages of the source on the control connection
 *   commit.c             the point of no return: gives QEMU the end of the device state
 *   ending.c, silence.c  trouble, interrupts, other ends; a source from which nothing comes
 *   warm.c               pages that are fetched while the VM runs at the source
 *   borrow.c             a VM that is to return: lends the monitor, notices the return
 *   complete.c           every page is here, or nobody needs them: says so, lets go of QEMU
 *   reports.c            what the source is told on the control connection
 *   compared.c           whether QEMU is still as it was compared with the source's
 *   digests.c            digests of the pages that have come, to the source
 *   home.c               a VM that returns here: the memory that it left
 *   receiver_lock.c      one receiver at a time takes a VM into a QEMU
 *   states.c             the states
 *   ram.c, arrived.c     guest RAM, its userfaultfd and the fault engine
 *   unmapped_memory.c    memory that QEMU has unmapped since
 *   early.c              pages that come with the page map, or ahead of it
 *   watchdog.c           lets QEMU go on where libvirt drives and the tool has died
 *   link.c               the control connection, page connections and query connections
 *   stream.c             the device state, into QEMU, without its end before the commit
 *   qemu.c               QEMU's monitor
 *
 * Each file calls only those below it in this list, but for ending.c, which has
 * ibx_destination_on_message() take the last messages of a source that ends. early.c to qemu.c do
 * not call each other. ram.c, link.c, stream.c and qemu.c have headers of their own.
 */
#ifndef IBX_MIGRATE_DESTINATION_DESTINATION_H
#define IBX_MIGRATE_DESTINATION_DESTINATION_H

#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"
#include "migrate/destination/link.h"
#include "migrate/destination/qemu.h"
#include "migrate/destination/ram.h"
#include "migrate/destination/stream.h"
#include "migrate/operator/control_socket.h"

#define DESTINATION_SOON_MS 5000 /* a link that has no room for its pages lasts no longer */

/* ---------------------------------------------------------------- warm.c */

/*
 * state machine: destination warm
 *   [*] -> OFF -> WISHED -> IDLE         both sides want it; a part is awaited
 *   WISHED -> OFF                        the next source does not
 *   IDLE -> NAMED -> FETCHING -> IDLE    all of a part is named; an engine fetches it
 *   IDLE -> PREPARED                     what was written since is dropped: the VM may stop
 *   PREPARED -> SETTLED                  the same, after the stop
 *   SETTLED -> APPLIED                   the page map is here: QEMU may load the device state
 *   OFF | WISHED | IDLE | NAMED | FETCHING -> [*]
 *   PREPARED | SETTLED | APPLIED -> [*]
 *
 * In PREPARED the source may name more that is to be dropped.
 */
enum destination_warm_state {
    WARM_OFF,
    WARM_WISHED,
    WARM_IDLE,
    WARM_NAMED,
    WARM_FETCHING,
    WARM_PREPARED,
    WARM_SETTLED,
    WARM_APPLIED
};

struct destination_warm {
    struct ibx_state_machine state;
    /* part: pages that the latest ROUNDs name; gone: those of them that had come. */
    struct ibx_page_map part, gone;
    struct ibx_migrate_round round; /* the last one that was announced */
    uint64_t since_ns;              /* FETCHING */
};

struct destination;
void ibx_destination_warm_init(struct destination_warm *warm);
/* `wished`: the source of the latest HELLO wants it, and it is possible here. */
int ibx_destination_warm_wish(struct destination_warm *warm, bool wished);
/* All page connections have joined: makes the maps. Afterwards IDLE. */
int ibx_destination_warm_begin(struct destination *d, struct ibx_error *err);
int ibx_destination_warm_step(struct destination *d, struct ibx_error *err);
/* Take ROUND and ROUND_END. -EPROTO: they may not come now, or do not add up. */
int ibx_destination_warm_on_round(struct destination *d, const struct ibx_bytes *piece,
                                  struct ibx_error *err);
int ibx_destination_warm_on_end(struct destination *d, const struct ibx_migrate_round *round,
                                struct ibx_error *err);
/* The page map is here: drops the pages that are zero by now. Afterwards APPLIED. -EPROTO: no round
 * has named the pages that were written last. */
int ibx_destination_warm_apply(struct destination *d, struct ibx_error *err);
/* QEMU must not get any of the device state yet, because it would read guest RAM. */
bool ibx_destination_warm_holds(const struct destination *d);
void ibx_destination_warm_fini(struct destination_warm *warm);

/* ---------------------------------------------------------------- early.c */

struct destination_early {
    uint64_t pages[IBX_EARLY_PAGES];
    uint8_t *bytes;         /* of these pages, or NULL */
    unsigned count, placed; /* pages that have come; that are in their place */
};

/* Takes PAGES, which follow MAP_END; those of a VM that returns may also precede it. -EPROTO: these
 * pages may not come; -ENOMEM. */
int ibx_destination_early_take(struct destination *d, const struct ibx_migrate_pages *pages,
                               struct ibx_error *err);
/* The page map is here. -EPROTO: it has no data for a page that came before it. */
int ibx_destination_early_check(const struct destination *d, struct ibx_error *err);
/* Places the pages that may be placed by now. An error is one of the engine's check. */
int ibx_destination_early_place(struct destination *d, struct ibx_error *err);
void ibx_destination_early_fini(struct destination_early *early);

/* ---------------------------------------------------------------- borrow.c */

/* Adds the reasons why the VM of this HELLO cannot be borrowed here. */
void ibx_destination_borrow_check(const struct destination *d,
                                  const struct ibx_migrate_hello *hello,
                                  struct ibx_blockers *blockers);
/* To be called right before guest RAM is watched. -EOPNOTSUPP: devices of this VM write to it
 * without a mark. */
int ibx_destination_borrow_begin(struct destination *d, struct ibx_error *err);
/* Whether the journal says that this borrowed VM has returned. `record` (or NULL): the record of
 * its return. */
bool ibx_destination_has_returned(const struct destination *d, struct ibx_record *record);
/* In FILLING: checks from time to time whether a device has come that changes guest RAM without a
 * mark, and records that for `return`. */
void ibx_destination_borrow_watch(struct destination *d);
/* Leaves QEMU's monitor to the tool by which the VM returns. Meanwhile only pages that the VM asks
 * for are fetched: the VM may run at home by now, and change the memory there. */
void ibx_destination_borrow_lend(struct destination *d);
/* While a return may have come to its commit, this tool does not take the monitor back: the tool
 * that continues the return needs it. */
void ibx_destination_borrow_keep_lent(struct destination *d);
/* In FILLING: the monitor is back, and pages are fetched ahead again. */
void ibx_destination_borrow_take_back(struct destination *d);
/* In FILLING, at an interrupt: true if the VM has all of its pages, and so stays here. Later calls
 * return false. */
bool ibx_destination_borrow_stays(struct destination *d);
/* In FILLING: whether the journal says that the VM has returned. It is read from time to time, or
 * `now`. If the VM has returned, ends this side's part as if the guest had shut the VM down. */
bool ibx_destination_borrow_returned(struct destination *d, bool now, struct ibx_error *err);

/* ---------------------------------------------------------------- home.c */

struct destination_home {
    struct ibx_record record; /* of the migration by which the VM was borrowed; epoch 0: none */
    struct ibx_guest_ram ram; /* the memory that the VM left here */
    struct ibx_page_map has;  /* which pages of it are still there */
    char names[IBX_GUEST_BLOCKS_MAX][IBX_GUEST_FILE_PATH]; /* of the files that this QEMU had */
};

/* Adds a reason if the VM returns and this receiver cannot take it back, or if it does not return
 * and this receiver waits for one that does (--home). */
void ibx_destination_home_check(struct destination *d, const struct ibx_migrate_hello *hello,
                                struct ibx_blockers *blockers);
/* Has this QEMU map the memory that the VM left. This and the next two do nothing for a VM that
 * does not return. */
int ibx_destination_home_adopt(struct destination *d, struct ibx_error *err);
/* Finds which of its pages are still there. */
int ibx_destination_home_look(struct destination *d, struct ibx_error *err);
/* Sends these to the source (HAVE, HAVE_END). */
int ibx_destination_home_send(struct destination *d, struct ibx_error *err);
/* The VM is about to run here: marks that, so that nobody here serves its memory to the borrower
 * any more. An error: that cannot be marked, and the VM must not run here. */
int ibx_destination_home_comes(struct destination *d, struct ibx_error *err);
/* The VM never ran here: removes that marker, unless this side has not had the VM's memory. */
void ibx_destination_home_never_came(const struct destination *d);
/* The VM runs here: gives its files the names that QEMU knows, and puts these into the record,
 * which is not written. */
void ibx_destination_home_rename(struct destination *d);
/* Recover: finds the record of the borrowing, since the tool before this one may have ended before
 * it renamed the files. */
void ibx_destination_home_recover(struct destination *d);
/* Recover: asks QEMU for these names, and renames the files. True: QEMU has not told them yet. */
bool ibx_destination_home_rename_late(struct destination *d);
/* The VM does not run here: ends a QEMU that has its memory. */
void ibx_destination_home_give_up(struct destination *d);
void ibx_destination_home_fini(struct destination_home *home);

/* ---------------------------------------------------------------- states.c */

/*
 * state machine: destination
 *   [*] -> LISTENING -> JOINING           HELLO is accepted; JOINs are awaited
 *   JOINING -> READY                      userfaultfd in place, QEMU waits; here warm.c may fetch
 *   READY -> MAPPED                       page map and regions are here: faults are served
 *   MAPPED -> WAITING                     QEMU has loaded all but the end: LOADED is sent
 *   WAITING -> RESUMING                   COMMIT has come: the end goes to QEMU
 *   RESUMING -> FILLING                   the VM runs; pages follow
 *   FILLING -> COMPLETE                   every page is here, and the journal says so
 *   COMPLETE -> DONE -> [*]               the source has confirmed it
 *   RESUMING | FILLING -> SHUT_DOWN       the guest has shut the VM down, and QEMU has ended
 *   SHUT_DOWN -> DONE                     the source has confirmed that
 *   [*] -> RESUMING | FILLING | COMPLETE | SHUT_DOWN  ib-migrate recover
 *   LISTENING | JOINING | READY | MAPPED | WAITING | RESUMING -> GIVEN_UP -> [*]
 *   WAITING | RESUMING -> ANSWERING -> GIVEN_UP
 *   FILLING -> GIVEN_UP                   libvirt has not continued the VM here, but at the source
 *   RESUMING | FILLING -> FAILED -> [*]
 *   RESUMING | FILLING | COMPLETE | SHUT_DOWN -> LEFT -> [*]
 *   RESUMING | FILLING | COMPLETE | SHUT_DOWN -> BROKEN -> [*]
 *
 * Before WAITING a lost link ends the migration here, as it does at the source. From WAITING on the
 * destination waits for the source, which makes the link again. GIVEN_UP: the VM never ran here and
 * will not; from RESUMING only when QEMU reported so or got nothing of the end, or when libvirt has
 * continued the VM at the source and not here; the QEMU here is ended then. ANSWERING: as GIVEN_UP,
 * and a source that may have committed has to learn it. FAILED: the VM ran here, and its QEMU has
 * ended. BROKEN: pages here are not what they are at the source; the VM ran with them, and is
 * paused if its guest has not shut it down. LEFT: given up or interrupted while the VM is this
 * side's; ib-migrate recover continues. In COMPLETE and SHUT_DOWN QEMU is not needed any more, and
 * only the source has to learn it.
 *
 * A move that the table refuses is an internal failure: before WAITING it ends as any failure does,
 * in GIVEN_UP; from then on it is a lost link, and QEMU keeps all that it needs.
 */
enum destination_state {
    DESTINATION_LISTENING,
    DESTINATION_JOINING,
    DESTINATION_READY,
    DESTINATION_MAPPED,
    DESTINATION_WAITING,
    DESTINATION_RESUMING,
    DESTINATION_FILLING,
    DESTINATION_COMPLETE,
    DESTINATION_SHUT_DOWN,
    DESTINATION_DONE,
    DESTINATION_ANSWERING,
    DESTINATION_GIVEN_UP,
    DESTINATION_FAILED,
    DESTINATION_LEFT,
    DESTINATION_BROKEN
};

/*
 * The last statement of the source about the end.
 *
 * state machine: destination peer
 *   [*] -> QUIET -> ABORTED | CONFIRMED -> [*]    its own statement, never an error of the network
 *   ABORTED -> CONFIRMED                          an ABORT after the commit ends nothing
 */
enum destination_peer_state { PEER_QUIET, PEER_ABORTED, PEER_CONFIRMED };

/* ---------------------------------------------------------------- watchdog.c */

/* Where libvirt drives: lets QEMU fail when this tool is killed while QEMU loads. */
struct destination_watchdog {
    pid_t pid; /* 0: none */
    int fd;
};

int ibx_destination_watchdog_start(struct destination_watchdog *watchdog, struct ibx_error *err);
/* From here on it works, for guest RAM that is registered with its userfaultfd. 0 also without a
 * watchdog. -EPIPE: it has died. */
int ibx_destination_watchdog_arm(struct destination_watchdog *watchdog,
                                 const struct destination_ram *ram, struct ibx_error *err);
/* The commit has come: the watchdog does nothing any more. */
void ibx_destination_watchdog_commit(struct destination_watchdog *watchdog);
/* Ends the watchdog, because this tool ends. */
void ibx_destination_watchdog_end(struct destination_watchdog *watchdog);

/* ---------------------------------------------------------------- destination.c */

struct destination {
    const struct ibx_receive_options *options;
    struct ibx_options transport;
    struct ibx_state_machine state, peer;
    struct destination_ram ram;
    struct destination_link link;
    struct destination_stream stream;
    struct destination_qemu qemu;
    struct destination_warm warm;
    struct destination_early early;
    struct destination_home home;
    json_t *description;   /* of this VM, made ahead for a HELLO; or NULL */
    uint64_t described_ns; /* when that was made */
    json_t *compared;      /* its devices and disks at that moment; or NULL */
    bool disks_differ;     /* on purpose */
    bool stays;            /* borrowed: it has all pages, and does not return */
    bool lent;             /* borrowed: the monitor is the return's, and no page is fetched ahead */
    uint64_t watch_ns;     /* borrowed: when to look for devices that leave no marks */
    uint64_t returned_ns;  /* borrowed: when to look next whether it has returned */
    struct destination_watchdog watchdog;

    struct ibx_migrate_status status;
    struct migration_reporter reporter;
    struct migration_keeping keeping; /* of the record, in FILLING and COMPLETE */
    struct migration_signals signals;
    struct ibx_control_socket *socket;
    struct ibx_control_socket *waiting_socket; /* the first one, until there is a record; or NULL */
    int ram_lock_fds[2];                       /* -1: none */
    int lock_fd;
    unsigned interrupts;       /* signals, and a request to cancel */
    struct ibx_error unpaused; /* BROKEN: code not 0: the VM could not be paused */
    enum destination_wish { WISH_UNKNOWN, WISH_PAUSED, WISH_RUNS } wish; /* by COMMIT or RESUME */
    bool undecided;      /* recover: the VM is loaded and paused, and the source has not told yet */
    bool told_undecided; /* ... though all pages are here */

    struct destination_digests {
        bool *sent; /* for each range, over this link; NULL: no list yet. Of a borrowed VM: since
                     * the last COMPARED */
        uint64_t told, answered; /* borrowed: DIGESTs over this link, and those of COMPARED */
        uint64_t told_ns;        /* ... and when the last one was sent */
        /* For each range, in minor mode. SETTLED: none of its tags will be taken back any more. */
        enum { RANGE_COMES, RANGE_IN_PLACE, RANGE_SETTLED } * ranges;
        uint64_t left;    /* ranges that are not sent */
        uint64_t look_ns; /* when to look again for what has come */
    } digests;
    struct migration_silence silence;
    uint64_t messages;                      /* and page connections that have come */
    uint64_t stall_count;                   /* these, regions and bytes, before the commit */
    uint64_t stall_since_ns, stall_look_ns; /* since when that is the same; the last check */
    uint64_t busy_until_ns;                 /* of ibx_migration_busy_until() */
    uint64_t listens_ns; /* when to look next at where libvirt has QEMU listen; 0: not yet */
    unsigned load_looks; /* at whether QEMU has read the device state */
    uint64_t fill_ns;    /* WAITING over a long wire: when the background begins; 0: not set */
    uint64_t lost_ns, progress_ns, complete_ns;
    char lost[IBX_ERROR_MAX]; /* why the last link was lost; "": none was */
    bool full;                /* ... because this host had no room for a page */
    uint64_t full_present;    /* pages that were here then */
    uint64_t back_ns;         /* when the present link was made, if it is not the first one */
    bool zeros_unknown;     /* pages come again that the guest has given back: it may take them for
                             * zeros, and QEMU has not told yet */
    uint64_t tell_away_ns;  /* when to tell the operator that the source is away; 0: not set */
    uint64_t loaded_ns;     /* since when QEMU has what it needs to run the VM, or 0 */
    bool told_loaded;       /* that it has not run it for a while */
    uint64_t retry_ns;      /* when to try again what failed at the end: the record, letting go */
    uint64_t record_end_ns; /* when to try again to write the last record; 0: it has not failed */
    uint64_t let_go_by_ns;  /* until when to try to close QEMU's descriptor */
};

/* states.c. `first`: LISTENING, or for recover RESUMING, FILLING, COMPLETE or SHUT_DOWN. */
int ibx_destination_begin(struct destination *d, enum destination_state first);
/* The one place that moves. -EINVAL: refused, nothing has changed. */
int ibx_destination_move(struct destination *d, enum destination_state to, struct ibx_error *err);
enum ibx_migrate_phase ibx_destination_phase(const struct destination *d);
/* The state in an ANSWER. */
enum ibx_answer_state ibx_destination_answer_state(const struct destination *d);
/* Writes the record with this state. On failure d->status.record is unchanged. */
int ibx_destination_record(struct destination *d, enum ibx_journal_state state,
                           struct ibx_error *err);
/* Copies figures of all parts into d->status. */
void ibx_destination_update(struct destination *d);
static inline bool destination_over(const struct destination *d)
{
    return d->state.now >= DESTINATION_DONE;
}
/* The VM runs here, or will, or did: this side must not give up. */
static inline bool destination_ours(const struct destination *d)
{
    return d->state.now >= DESTINATION_RESUMING && d->state.now <= DESTINATION_SHUT_DOWN;
}
/* All pages are here, or the VM has been shut down: only the source has to learn it. */
static inline bool destination_settled(const struct destination *d)
{
    return d->state.now == DESTINATION_COMPLETE || d->state.now == DESTINATION_SHUT_DOWN;
}

/* ------------------------------------------------------------ receiver_lock.c */

/* To be called before QEMU is changed. -EBUSY: another receiver is about to change it, or a VM has
 * come to it. */
int ibx_destination_lock(struct destination *d, struct ibx_error *err);
/* For recover. -EBUSY: another tool continues the migration by a copy of the record, and both would
 * take page faults, half of which neither would serve. */
int ibx_destination_lock_again(struct destination *d, struct ibx_error *err);
/* To be called before QEMU is given this memory, which is then locked as well. */
int ibx_destination_lock_also(struct destination *d, int file, struct ibx_error *err);
/* Returns -EBUSY, with the sentence that a VM has come by another monitor. */
int ibx_destination_refuse_taken(const struct destination *d, struct ibx_error *err);
/* Releases these locks, once this tool does not write to the memory any more. */
void ibx_destination_unlock(struct destination *d);

/* ---------------------------------------------------------------- silence.c */

void ibx_destination_check_silence(struct destination *d);
/* For a tool that has just begun to wait for the source: tells the operator that the VM needs pages
 * of it, if it does. ibx_destination_check_silence() tells what to do if the source is gone for
 * good when it has had the time to connect. */
void ibx_destination_tell_waits(struct destination *d);
/* -ETIMEDOUT: a source has done nothing for too long, before all of the device state was here. */
int ibx_destination_check_stall(struct destination *d, struct ibx_error *err);

/* -------------------------------------------------------- control_messages.c */

struct message_context {
    struct destination *destination;
    struct ibx_error *err;
};
/* Takes a message of the source; `context` is a struct message_context. */
int ibx_destination_on_message(void *context, const struct ibx_migrate_any *message);

/* ---------------------------------------------------------------- digests.c */

/* In minor mode: 0 when no tag of a page that is in its place now was computed from what a hole had
 * left. In missing mode always 0. */
int ibx_destination_digests_settle(struct destination *d);
/* For a new link: forgets what was sent. Also frees the lists. */
void ibx_destination_digests_restart(struct destination *d);
/* Sends what is due. 0: the source has been sent all of them, or pages are not verified; -EAGAIN:
 * not yet. */
int ibx_destination_send_digests(struct destination *d, struct ibx_error *err);
/* Takes COMPARED, of a VM that is borrowed. -EPROTO: it answers no DIGEST. */
int ibx_destination_on_compared(struct destination *d, uint64_t count, struct ibx_error *err);
/* After which time to look again for what is due. */
uint64_t ibx_destination_digests_wait_ns(const struct destination *d);

/* ---------------------------------------------------------------- commit.c */

/* COMMIT has come: gives QEMU the end of the device state. If that must not be, gives up. */
int ibx_destination_commit(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- ending.c */

/* In SHUT_DOWN: what is still missing, for the operator. */
static inline const char *destination_unconfirmed_end(const struct ibx_record *record)
{
    return ibx_journal_has_returned(record) ? "the VM has returned, and only the confirmation of "
                                              "home is missing, which keeps its "
                                              "pages for it"
                                            : "the guest has shut the VM down here, and only the "
                                              "source's confirmation of that is "
                                              "missing";
}
/* Where libvirt drives: it has not continued the VM here, as far as is known, nor has the source
 * said that the VM runs there. What that means, for the operator; NULL: it is decided. */
const char *ibx_destination_undecided(const struct destination *d);
#define DESTINATION_UNCONFIRMED                                                                    \
    "all pages are here, and only the source's confirmation is missing (if ib-migrate status "     \
    "there says done, ib-migrate recover there sends it)"

/* A page is not what it is at the source, as `err` says: pauses the VM, ends in BROKEN, and with
 * `tell` sends that to the source. Before the VM is this side's, gives up. Returns -EBADMSG. */
int ibx_destination_broken(struct destination *d, bool tell, struct ibx_error *err);
/* The same if `err` says that the source has taken the VM back. */
int ibx_destination_rolled_back(struct destination *d, struct ibx_error *err);
/* -EBADMSG, in BROKEN: pages came twice with different bytes. */
int ibx_destination_check_pages(struct destination *d, struct ibx_error *err);
/* After each turn, which ended with `code`: whether a file of guest RAM was cut short while pages
 * come. Then as ibx_destination_broken(); otherwise `code`. */
int ibx_destination_check_files(struct destination *d, int code, struct ibx_error *err);
/* COMMIT has come, and the VM cannot run here after all: it stays at the source. Returns `code`. */
int ibx_destination_refuse_commit(struct destination *d, int code, struct ibx_error *err);
/* The source says that libvirt has continued the VM there: a VM that has run here is paused, and is
 * BROKEN; otherwise its QEMU is ended. Returns -EBADMSG or -ECONNABORTED. */
int ibx_destination_taken_back(struct destination *d, const char *why, struct ibx_error *err);
/* The link is lost: it is closed as soon as the engine has stopped. */
void ibx_destination_unlink(struct destination *d, int code, const char *reason);
/* Takes what QEMU reports. If QEMU fails, that ends the migration before the commit, and later if
 * the VM is lost. */
int ibx_destination_check_qemu(struct destination *d, struct ibx_error *err);
/* An error of the link: before WAITING it ends the migration, later this side waits for the source
 * (0). */
int ibx_destination_link_trouble(struct destination *d, int code, struct ibx_error *err);
/* SIGINT, SIGTERM and the cancel command; a source that is away for longer than give_up_s. */
int ibx_destination_check_interrupts(struct destination *d, struct ibx_error *err);
int ibx_destination_check_patience(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- compared.c */

/* -EPERM: this QEMU no longer has the devices and images that were compared with the source's. To
 * be called before guest RAM is watched: from then on QEMU may have to wait for a page before it
 * can answer. */
int ibx_destination_check_compared(struct destination *d, struct ibx_error *err);
/* Asks QEMU for the same once more, and does not wait: when the state of the VM begins to come, or
 * before the source stops a VM whose pages were fetched before. The next check, when QEMU has
 * loaded, looks at the answers. */
void ibx_destination_compared_ask(struct destination *d);

/* ---------------------------------------------------------------- reports.c */

/* Sends PROGRESS, once in MIGRATION_TICK_MS at most. */
void ibx_destination_send_progress(struct destination *d);
/* Before ABORT, which does not tell it: another client has migrated the VM on. The source may not
 * know that yet. */
void ibx_destination_send_migrated_on(struct destination *d);
/* Sends COMPLETE, or in SHUT_DOWN ENDED. */
int ibx_destination_send_complete(struct destination *d, struct ibx_error *err);
/* Sends RUNNING. A connection that is lost is noticed when it is read. */
void ibx_destination_send_running(struct destination *d);

/* ---------------------------------------------------------------- complete.c */

/* Fills in the totals of COMPLETE. Their hash is that of the last page map that has come whole: a
 * source that has connected again may be sending another one. */
void ibx_destination_total(const struct destination *d, struct ibx_journal_totals *totals);
/* The engine has every page: writes that and goes to COMPLETE, or tries again later. */
int ibx_destination_complete(struct destination *d, struct ibx_error *err);
/* The VM ran here and does not any more, for the reason in `why`, so that nobody needs its pages:
 * goes to SHUT_DOWN. */
int ibx_destination_end(struct destination *d, const char why[IBX_MIGRATE_STATUS],
                        const char *sentence, struct ibx_error *err);
/* In COMPLETE and SHUT_DOWN: whether nothing of this tool is left in QEMU. Tries to remove it, when
 * it is time for that. */
bool ibx_destination_has_let_go(struct destination *d);
/* The source has confirmed the end: records that. -EAGAIN: it cannot be written now; other errors:
 * it will never be. */
int ibx_destination_record_end(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- requests.c */

/* Takes the HELLOs and JOINs that have come, and answers them. */
int ibx_destination_check_requests(struct destination *d, struct ibx_error *err);
void ibx_destination_forget_description(struct destination *d);
/* Reserves places (ibx_acceptor_expect_host()) for the source of a recovered migration. */
void ibx_destination_expect_recorded(struct destination *d);
/* Open the control socket: before a source has come its name is that of the process, then that of
 * the record, which ibx_destination_open_record() locks. */
int ibx_destination_open_waiting(struct destination *d, struct ibx_error *err);
int ibx_destination_open_record(struct destination *d, struct ibx_error *err);
/* Closes the first one, when the record is written: so whoever asks finds one of them. */
void ibx_destination_close_waiting(struct destination *d);

/* ---------------------------------------------------------------- destination.c, recover.c */

/* Runs until a final state; 0 in DONE. */
int ibx_destination_run(struct destination *d, struct ibx_error *err);
/* In ANSWERING: tells sources that ask, for a while, that the VM never ran here. */
void ibx_destination_answer(struct destination *d, const struct ibx_error *why);
/* Continues what a tool began that has ended, by its record, whose lock is held: COMPLETE when all
 * pages are here, FILLING when the VM runs, RESUMING as long as only QEMU knows. -ECANCELED: the VM
 * never ran here. -ESRCH: its QEMU has ended before it had all pages. */
int ibx_destination_recover(struct destination *d, struct ibx_error *err);
/* After recover: if QEMU could not tell whether the guest takes pages that it had given back for
 * zeros, asks again. -EBADMSG: it does, and the VM's memory is wrong. */
int ibx_destination_check_given_back(struct destination *d, struct ibx_error *err);

#endif
