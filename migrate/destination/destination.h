/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination of a migration. ibx_migrate_receive() of migrate/migrate.h is here, nothing else
 * is called from outside.
 *
 *   begin.c, recover.c   that call: what is checked, opened and recovered, in the end closed
 *   destination.c        the loop and the steps of each state
 *   requests.c           what others ask: sources by HELLO and JOIN, operators by the socket
 *   messages.c           messages of the source on the control connection
 *   commit.c             the point of no return: gives QEMU the end of the device state
 *   ending.c, silence.c  trouble, interrupts, the end; a source from which nothing comes
 *   digests.c            digests of the pages that have come, to the source
 *   warm.c               pages that are fetched while the VM runs at the source
 *   borrow.c             a VM that is to return: the monitor for that, and when it has
 *   home.c               a VM that returns here: the memory that it left
 *   claim.c              one receiver at a time takes a VM into a QEMU
 *   states.c             the states
 *   ram.c, arrived.c     guest RAM, its userfaultfd and the fault engine
 *   early.c              pages that come with the page map, or ahead of it
 *   watchdog.c           lets QEMU go on where libvirt drives and the tool has died
 *   link.c               the control connection, page connections and query connections
 *   stream.c             the device state, into QEMU, without its end before the commit
 *   qemu.c               QEMU's monitor
 *
 * Each file calls only those below it in this list; ram.c to qemu.c do not call each other, and
 * have headers of their own.
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
    struct ibx_page_map part, gone;
    struct ibx_migrate_round round; /* the last one that was announced */
    uint64_t since_ns;              /* FETCHING */
};

struct destination;
void ibx_destination_warm_init(struct destination_warm *warm);
/* Whether the source that has just come wants it, and it is possible here. */
int ibx_destination_warm_wish(struct destination_warm *warm, bool wished);
int ibx_destination_warm_begin(struct destination *d, struct ibx_error *err);
int ibx_destination_warm_step(struct destination *d, struct ibx_error *err);
/* ROUND and ROUND_END. */
int ibx_destination_warm_on_round(struct destination *d, const struct ibx_bytes *piece,
                                  struct ibx_error *err);
int ibx_destination_warm_on_end(struct destination *d, const struct ibx_migrate_round *round,
                                struct ibx_error *err);
/* The page map is here. -EPROTO: what was written last was not named. */
int ibx_destination_warm_apply(struct destination *d, struct ibx_error *err);
/* QEMU must not read guest RAM yet. */
bool ibx_destination_warm_holds(const struct destination *d);
void ibx_destination_warm_fini(struct destination_warm *warm);

/* ---------------------------------------------------------------- early.c */

struct destination_early {
    uint64_t pages[IBX_EARLY_PAGES];
    uint8_t *bytes;         /* theirs, or NULL */
    unsigned count, placed; /* that have come; of them */
};

/* PAGES, behind MAP_END; of a VM that returns before that, too. -EPROTO: not what may come. */
int ibx_destination_early_take(struct destination *d, const struct ibx_migrate_pages *pages,
                               struct ibx_error *err);
/* The page map is here. -EPROTO: by it a page that came before holds no data. */
int ibx_destination_early_check(const struct destination *d, struct ibx_error *err);
/* Those that may be placed by now. An error: of the engine's check. */
int ibx_destination_early_place(struct destination *d, struct ibx_error *err);
void ibx_destination_early_fini(struct destination_early *early);

/* ---------------------------------------------------------------- borrow.c */

/* This VM is borrowed: whether it can be, here. */
void ibx_destination_borrow_check(const struct destination *d,
                                  const struct ibx_migrate_hello *hello,
                                  struct ibx_blockers *blockers);
/* Right before guest RAM is watched. -EOPNOTSUPP: devices of this VM write to it unseen. */
int ibx_destination_borrow_begin(struct destination *d, struct ibx_error *err);
/* Whether the journal says that the VM of this record, which was borrowed, has returned: to where.
 */
bool ibx_destination_has_returned(const struct destination *d, struct ibx_record *record);
/* FILLING: looks now and then whether something has come that changes guest RAM unseen, and notes
 * that for `return`. */
void ibx_destination_borrow_watch(struct destination *d);
/* Leaves QEMU's monitor to the tool by which the VM returns. Meanwhile nothing is fetched that the
 * VM does not ask for: home's memory may be the VM's there by now. */
void ibx_destination_borrow_lend(struct destination *d);
/* While its return may have come to its commit, this tool does not take the monitor back: the one
 * that continues the return needs it. */
void ibx_destination_borrow_keep_lent(struct destination *d);
/* FILLING: the monitor is back. */
void ibx_destination_borrow_take_back(struct destination *d);
/* FILLING, at an interrupt: whether the VM has all of its pages, and so can stay, which it does. */
bool ibx_destination_borrow_stays(struct destination *d);
/* FILLING: whether the VM has returned, as the journal says; looked at now and then, or `now`. Ends
 * this side's part then, as if its guest had shut it down. */
bool ibx_destination_borrow_returned(struct destination *d, bool now, struct ibx_error *err);

/* ---------------------------------------------------------------- home.c */

struct destination_home {
    struct ibx_record record; /* of the migration by which the VM was borrowed; id all zeros: of
                                  none */
    struct ibx_guest_ram ram; /* its memory */
    struct ibx_page_map has;  /* of which these pages hold data */
    char names[IBX_GUEST_BLOCKS_MAX][IBX_GUEST_FILE_PATH]; /* of the files of this QEMU */
};

/* A VM that returns, or any other that comes: whether it is this side's. */
void ibx_destination_home_check(struct destination *d, const struct ibx_migrate_hello *hello,
                                struct ibx_blockers *blockers);
/* Puts the memory that the VM left into this QEMU. */
int ibx_destination_home_adopt(struct destination *d, struct ibx_error *err);
/* Looks which of its pages are there. */
int ibx_destination_home_look(struct destination *d, struct ibx_error *err);
/* Sends that. */
int ibx_destination_home_send(struct destination *d, struct ibx_error *err);
/* The VM is about to run here: from now on nobody serves its memory to where it was. An error: it
 * must not run here, since that cannot be noted. */
int ibx_destination_home_comes(struct destination *d, struct ibx_error *err);
/* It never ran here: they may again, unless this side has not had its memory. */
void ibx_destination_home_never_came(const struct destination *d);
/* The VM runs here: its files get the names that QEMU knows, which the record gets, too. */
void ibx_destination_home_rename(struct destination *d);
/* The same after a recovery: the tool before this one may have ended before it did so. */
void ibx_destination_home_recover(struct destination *d);
/* True: not yet, QEMU has to be asked first. */
bool ibx_destination_home_rename_late(struct destination *d);
/* The VM does not run here: a QEMU that has its memory must not either. */
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
 * Before WAITING a lost link ends the migration here, as it does at the source. From WAITING on
 * the destination waits: the source makes it again. GIVEN_UP: the VM never ran here and will not;
 * from RESUMING only when QEMU reported so or got nothing of the end, or when libvirt has continued
 * the VM at the source and not here, whose QEMU is ended then. ANSWERING: the same, and a
 * source that may have committed has to learn it. FAILED: the VM ran here, and its QEMU has ended.
 * BROKEN: pages here are not what they are at the source; the VM ran with them, and is paused if
 * its guest has not shut it down.
 * LEFT: given up or interrupted while the VM is this side's; ib-migrate recover continues. In
 * COMPLETE and SHUT_DOWN QEMU is not needed any more, and only the source has to learn it.
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
/* From here on, for guest RAM that is on its userfaultfd; 0 also without a watchdog. */
int ibx_destination_watchdog_arm(struct destination_watchdog *watchdog,
                                 const struct destination_ram *ram, struct ibx_error *err);
/* The commit has come: it does nothing any more. */
void ibx_destination_watchdog_commit(struct destination_watchdog *watchdog);
/* This tool ends. */
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
    json_t *description;   /* of this VM, for a HELLO that is about to come; or NULL */
    uint64_t described_ns; /* when that was made */
    json_t *compared;      /* its devices and disks at that moment; or NULL */
    bool disks_differ;     /* on purpose */
    bool stays;            /* borrowed: it has all pages, and does not return */
    bool lent;             /* borrowed: the monitor is the return's, and no page is fetched ahead */
    uint64_t watch_ns;     /* borrowed: when to look for who changes guest RAM unseen */
    uint64_t returned_ns;  /* borrowed: when to look next whether it has returned */
    struct destination_watchdog watchdog;

    struct ibx_migrate_status status;
    struct migration_reporter reporter;
    struct migration_signals signals;
    struct ibx_control_socket *socket;
    struct ibx_control_socket
        *waiting_socket; /* the one before, until there is a record; or NULL */
    int claim_fds[2];    /* -1: none */
    int lock_fd;
    unsigned interrupts;       /* signals, and a request to cancel */
    struct ibx_error unpaused; /* BROKEN: code not 0: the VM could not be paused */
    enum destination_wish { WISH_UNKNOWN, WISH_PAUSED, WISH_RUNS } wish; /* by COMMIT or RESUME */
    bool undecided;      /* recover: the VM is loaded and paused, and the source has not told yet */
    bool told_undecided; /* ... though all pages are here */

    struct destination_digests {
        bool *sent; /* a range, over this link; NULL: none */
        /* A range, in minor mode. SETTLED: none of its tags will be taken back. */
        enum { RANGE_COMES, RANGE_IN_PLACE, RANGE_SETTLED } * ranges;
        uint64_t left;    /* ranges that are not sent */
        uint64_t look_ns; /* when to look again for what has come */
    } digests;
    struct migration_silence silence;
    uint64_t messages;                      /* and page connections, from the source */
    uint64_t stall_count;                   /* of these and regions, before the commit */
    uint64_t stall_since_ns, stall_look_ns; /* since when it is the same; the last check */
    uint64_t busy_until_ns;                 /* of ibx_migration_busy_until() */
    uint64_t listens_ns; /* when to look next at where libvirt has QEMU listen; 0: not yet */
    unsigned load_looks; /* at whether QEMU has read the device state */
    uint64_t fill_ns;    /* WAITING over a long wire: when the background begins; 0: not so */
    uint64_t lost_ns, progress_ns, complete_ns;
    bool zeros_unknown;    /* pages come again that the guest has given back: it may take them for
                            * zeros, and QEMU has not told yet */
    uint64_t told_away_ns; /* the source has been away for long: told last */
    uint64_t retry_ns;     /* when to try again what failed at the end: the record, letting go */
    uint64_t let_go_by_ns; /* until when to try to close QEMU's descriptor */
};

/* LISTENING, or for recover RESUMING, FILLING or COMPLETE. */
int ibx_destination_begin(struct destination *d, enum destination_state first);
/* The one place that moves. -EINVAL: refused, nothing has changed. */
int ibx_destination_move(struct destination *d, enum destination_state to, struct ibx_error *err);
enum ibx_migrate_phase ibx_destination_phase(const struct destination *d);
/* The state in an ANSWER. */
enum ibx_answer_state ibx_destination_answer_state(const struct destination *d);
int ibx_destination_record(struct destination *d, enum ibx_journal_state state,
                           struct ibx_error *err);
/* Figures of the parts, for the status. */
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
/* Only the source has to learn how the migration came out. */
static inline bool destination_settled(const struct destination *d)
{
    return d->state.now == DESTINATION_COMPLETE || d->state.now == DESTINATION_SHUT_DOWN;
}

/* ---------------------------------------------------------------- claim.c */

/* Before the QEMU is changed: -EBUSY where another receiver is about to, or a VM has come to it. */
int ibx_destination_claim(struct destination *d, struct ibx_error *err);
/* ... and before it is given this memory: as long as it has that, too. */
int ibx_destination_claim_also(struct destination *d, int file, struct ibx_error *err);
/* -EBUSY: what is to be said of that. */
int ibx_destination_is_taken(const struct destination *d, struct ibx_error *err);
/* Once nothing of this tool is in the memory any more. */
void ibx_destination_unclaim(struct destination *d);

/* ---------------------------------------------------------------- silence.c */

void ibx_destination_check_silence(struct destination *d);
/* The source is away and has pages that the VM needs: what waits for it, and what is left where it
 * is gone for good. */
void ibx_destination_tell_away(struct destination *d);
/* -ETIMEDOUT: a source has done nothing for too long, before all of the device state was here. */
int ibx_destination_check_stall(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- messages.c */

struct message_context {
    struct destination *destination;
    struct ibx_error *err;
};
/* Takes a message of the source; `context` is a struct message_context. */
int ibx_destination_on_message(void *context, const struct ibx_migrate_any *message);
void ibx_destination_send_progress(struct destination *d);
/* COMPLETE, or in SHUT_DOWN ENDED. */
int ibx_destination_send_complete(struct destination *d, struct ibx_error *err);
int ibx_destination_send_running(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- digests.c */

/* Minor mode: 0 when no tag of a page that is in its place now is that of what a hole has left. */
int ibx_destination_digests_settle(struct destination *d);
/* For a new link; also frees. */
void ibx_destination_digests_restart(struct destination *d);
/* Sends what is due. 0: the source has been sent all of them, or pages are not verified; -EAGAIN:
 * not yet. */
int ibx_destination_send_digests(struct destination *d, struct ibx_error *err);
/* After which time to look again for what is due. */
uint64_t ibx_destination_digests_wait_ns(const struct destination *d);

/* ---------------------------------------------------------------- commit.c */

int ibx_destination_commit(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- ending.c */

/* SHUT_DOWN, for a person. */
static inline const char *destination_unconfirmed_end(const struct ibx_record *record)
{
    return ibx_journal_has_returned(record) ? "the VM has returned, and only the confirmation of "
                                              "home is missing, which keeps its "
                                              "pages for it"
                                            : "the guest has shut the VM down here, and only the "
                                              "source's confirmation of that is "
                                              "missing";
}
#define DESTINATION_UNDECIDED                                                                      \
    "the VM is loaded here, and libvirt has not continued it: this tool waits for the source, "    \
    "which may have been told to continue it there; if virsh list has it running there, end this " \
    "QEMU (virsh destroy here)"
#define DESTINATION_UNCONFIRMED                                                                    \
    "all pages are here, and only the source's confirmation is missing (if ib-migrate status "     \
    "there says done, ib-migrate recover there sends it)"

/* A page is not what it is at the source, as `err` says: pauses the VM, ends in BROKEN, and with
 * `tell` sends that to the source. Before the VM is this side's, gives up. Returns -EBADMSG. */
int ibx_destination_broken(struct destination *d, bool tell, struct ibx_error *err);
/* -EBADMSG, in BROKEN: pages came twice with different bytes. */
int ibx_destination_check_pages(struct destination *d, struct ibx_error *err);
/* COMMIT has come, and the VM cannot run here after all: it stays at the source. Returns `code`. */
int ibx_destination_refuse_commit(struct destination *d, int code, struct ibx_error *err);
/* The source says that libvirt has continued the VM there: what runs here is stopped, and what does
 * not run is ended. */
int ibx_destination_taken_back(struct destination *d, const char *why, struct ibx_error *err);
/* The link is lost: it is closed as soon as the engine has stopped. */
void ibx_destination_unlink(struct destination *d, int code, const char *reason);
/* What QEMU reports; before the commit, and when the VM is lost, that ends the migration. */
int ibx_destination_check_qemu(struct destination *d, struct ibx_error *err);
/* An error of the link: before WAITING the end of the migration, else the beginning of a wait. */
int ibx_destination_link_trouble(struct destination *d, int code, struct ibx_error *err);
/* SIGINT, SIGTERM and the cancel command; a source that is away for longer than give_up_s. */
int ibx_destination_check_interrupts(struct destination *d, struct ibx_error *err);
int ibx_destination_check_patience(struct destination *d, struct ibx_error *err);
/* What the record says then. The page map is the last one that has come whole: a source that has
 * connected again may be sending it. */
void ibx_destination_total(const struct destination *d, struct ibx_journal_totals *totals);
/* The engine has every page: writes that and goes to COMPLETE, or tries again later. */
int ibx_destination_complete(struct destination *d, struct ibx_error *err);
/* The VM ran here and does not any more, for the reason in `why`: nobody needs a page of it. */
int ibx_destination_end(struct destination *d, const char why[IBX_MIGRATE_STATUS],
                        const char *sentence, struct ibx_error *err);
/* In COMPLETE: whether nothing of this tool is left in QEMU; tries it when it is time for that. */
bool ibx_destination_has_let_go(struct destination *d);

/* ---------------------------------------------------------------- requests.c */

int ibx_destination_check_requests(struct destination *d, struct ibx_error *err);
void ibx_destination_forget_description(struct destination *d);
/* Whether this QEMU still has the devices and images that were compared with the source's. Looked
 * at before guest RAM is watched: QEMU may wait for a page from then on, which comes later. */
int ibx_destination_check_compared(struct destination *d, struct ibx_error *err);
/* Asks QEMU for it once more, when the state of the VM begins to come, or before the source stops a
 * VM that was fetched for long, and does not wait: the answers are looked at when QEMU has loaded.
 */
void ibx_destination_compared_ask(struct destination *d);
/* Keeps places for the source of a recovered migration. */
void ibx_destination_expect_recorded(struct destination *d);
/* The control socket: before a source has come it is named by the process, then by the record,
 * which is locked. */
int ibx_destination_open_waiting(struct destination *d, struct ibx_error *err);
int ibx_destination_open_record(struct destination *d, struct ibx_error *err);
/* The one before, when the record is written: whoever asks finds the one or the other. */
void ibx_destination_close_waiting(struct destination *d);

/* ---------------------------------------------------------------- destination.c, recover.c */

/* Until a final state; 0 in DONE. */
int ibx_destination_run(struct destination *d, struct ibx_error *err);
/* In ANSWERING: tells sources that ask, for a while, that the VM never ran here. */
void ibx_destination_answer(struct destination *d, const struct ibx_error *why);
/* Continues what a tool began that has ended, by its record, whose lock is held: COMPLETE when all
 * pages are here, FILLING when the VM runs, RESUMING as long as only QEMU knows. -ECANCELED: the VM
 * never ran here. -ESRCH: its QEMU has ended before it had all pages. */
int ibx_destination_recover(struct destination *d, struct ibx_error *err);
/* Asks again what QEMU did not tell then. -EBADMSG: the VM's memory is wrong. */
int ibx_destination_check_given_back(struct destination *d, struct ibx_error *err);

#endif
