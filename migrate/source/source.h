/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The source of a migration. ibx_migrate_send() of migrate/migrate.h is here, nothing else is
 * called from outside.
 *
 *   begin.c     that call: what is checked and opened, and in the end closed
 *   source.c    the states, events of QEMU and the loop
 *   messages.c  messages of the destination on the control connection
 *   libvirt.c   where libvirt drives QEMU's migration
 *   commit.c    the point of no return: dismisses the watchdog, sends COMMIT
 *   ending.c    everything that ends a migration: trouble, interrupts, the confirmation
 *   broken.c    ... its pages are not, or may not be, what they were
 *   lost.c      the VM's QEMU has ended at the destination, or nobody is there any more
 *   intruder.c  after the commit: others who continue, reset or write to the VM here
 *   vm.c        QEMU: what its events mean, which pages hold data
 *   files.c     guest RAM when QEMU has ended after the commit
 *   stream.c    the device state, from QEMU to the destination
 *   link.c      the control connection and the page connections
 *   warm.c      pages that are fetched while the VM still runs
 *   return.c    a VM that returns to where it was borrowed from: which pages it has written
 *   verify.c    digests of the pages that have come there
 *   remove.c    files of guest RAM, once the migration is complete
 *
 * Calls go downwards: begin.c, source.c, messages.c, libvirt.c, then commit.c to lost.c, then the
 * parts. Two functions are exceptions, ibx_source_on_message() and ibx_source_move(): those have no
 * other way to read a message or to move.
 */
#ifndef IBX_MIGRATE_SOURCE_SOURCE_H
#define IBX_MIGRATE_SOURCE_SOURCE_H

#include "migrate/common/common.h"
#include "migrate/common/guard.h"
#include "migrate/common/libvirt.h"
#include "migrate/common/note.h"
#include "migrate/common/watchdog.h"
#include "migrate/operator/control_socket.h"
#include "migrate/pages/digest.h"
#include "migrate/pages/pages.h"

/* ---------------------------------------------------------------- vm.c */

/*
 * state machine: source vm
 *   [*] -> GOING -> STOPPED -> GOING     STOPPED: by QEMU's STOP, since its migration began
 *   GOING -> FINISHING                   it was paused before, and QEMU's migration finishes
 *   STOPPED | FINISHING -> SAVED -> [*]  QEMU has written its device state
 */
enum source_vm_state { VM_GOING, VM_STOPPED, VM_FINISHING, VM_SAVED };

/*
 * state machine: source libvirt
 *   [*] -> OFF -> [*]              QEMU's migration is this tool's
 *   [*] -> DRIVES -> AWAITED       libvirt starts it; AWAITED: QEMU pauses before its device state
 *   DRIVES | AWAITED -> CONTINUED  it has continued the VM here, because its migration failed
 *   DRIVES | AWAITED | CONTINUED -> [*]
 */
enum source_libvirt_state { LIBVIRT_OFF, LIBVIRT_DRIVES, LIBVIRT_AWAITED, LIBVIRT_CONTINUED };

struct source_vm {
    struct ibx_state_machine state;
    struct ibx_qmp *qmp; /* NULL: QEMU has ended, after the commit */
    bool of_files;       /* it had ended when this tool began: RAM is what its files hold */
    struct ibx_guest_ram ram;
    struct ibx_page_map map;
    struct ibx_vm_undo undo;
    struct ibx_watchdog watchdog;
    struct ibx_state_machine libvirt;
    uint64_t ahead_until_ns; /* then what QEMU was asked ahead is out of date */
    uint64_t stop_ns;        /* of QEMU's STOP; 0: the VM was paused before */
    bool paused;             /* before QEMU's migration was started */
    bool asks;               /* QEMU is to be asked whether it has written its state */
    bool ran_there;          /* the destination has said so, or this tool cannot know */
    bool ran;                /* until QEMU's migration stopped it */
};

static inline bool source_managed(const struct source_vm *vm)
{
    return vm->libvirt.now != LIBVIRT_OFF;
}

/* What an event of QEMU means for the migration. */
enum source_vm_event {
    VM_NOTHING,
    VM_QUIET,  /* nothing writes to guest RAM any more */
    VM_FAILED, /* QEMU's migration */
    VM_RESET,
    VM_CONTINUED, /* by another client */
};

void ibx_source_vm_init(struct source_vm *vm);
/* Before anything else: whether libvirt does. */
void ibx_source_vm_drive(struct source_vm *vm, bool libvirt);
/* Connects to QEMU, unless that is done, and finds its RAM; `ahead`: has QEMU tell at once all that
 * is asked until it is described. */
int ibx_source_vm_find(struct source_vm *vm, const char *qmp, bool ahead, struct ibx_error *err);
/* Sends these questions, so that QEMU answers while this tool does other things. */
void ibx_source_vm_ask_ahead(struct source_vm *vm);
/* Before the description: drops what has been told too long ago. */
void ibx_source_vm_check_ahead(const struct source_vm *vm);
/* The same of a QEMU whose memory is where this record says, though its file has another name. */
int ibx_source_vm_of_record(struct source_vm *vm, const char *qmp, const struct ibx_record *record,
                            struct ibx_error *err);
/* Finds guest RAM in the files of this record, whose QEMU has ended, and sets them aside. -ESRCH
 * with the reason: they are not there, or are another process's now. */
int ibx_source_vm_of_files(struct source_vm *vm, const struct ibx_record *record,
                           const struct ibx_migrate_observer *observer, struct ibx_error *err);
/* Finds which pages hold data at this moment. */
int ibx_source_vm_find_map(struct source_vm *vm, struct ibx_error *err);
/* Leaves those pages in `bits` (of the scan of a block for written ones) that hold data, and adds
 * to the map which are new; with `look`, by looking into the holes of the file. Huge pages that are
 * not there do not count as written. */
int ibx_source_vm_keep_data(struct source_vm *vm, unsigned block, bool look, uint64_t *bits,
                            struct ibx_error *err);
/* `starting`: QEMU's migration has been started, and the VM is expected to stop. */
enum source_vm_event ibx_source_vm_on_event(struct source_vm *vm, bool starting, json_t *event);
/* After each event: asks QEMU, if it may have been the last one before its state. */
int ibx_source_vm_ask(struct source_vm *vm, struct ibx_error *err);
/* Whether the answer says that QEMU has written its state: SAVED. `what`: VM_QUIET or VM_NOTHING.
 */
int ibx_source_vm_check_saved(struct source_vm *vm, enum source_vm_event *what,
                              struct ibx_error *err);
void ibx_source_vm_lose(struct source_vm *vm);
/* QEMU has ended after the commit: sets the files aside that still have a name. */
void ibx_source_vm_keep_files(struct source_vm *vm, const struct ibx_record *record,
                              const struct ibx_migrate_observer *observer);
void ibx_source_vm_fini(struct source_vm *vm);

/* ---------------------------------------------------------------- stream.c */

/*
 * The stream stays open when QEMU has written all of it, so that QEMU's migration does too
 * (migrate/common/hold.h).
 *
 * state machine: source stream
 *   [*] -> CLOSED -> MADE -> OPEN -> READ -> SENT -> HELD    READ: all of it; SENT: with STATE_END
 *   [*] -> HELD                                              recover
 *   HELD -> RELEASED -> [*]                                  QEMU's migration has ended
 *   MADE | OPEN | READ | SENT | HELD -> CLOSED -> [*]        this tool's end; in HELD QEMU has one
 */
enum source_stream_state {
    STREAM_CLOSED,
    STREAM_MADE,
    STREAM_OPEN,
    STREAM_READ,
    STREAM_SENT,
    STREAM_HELD,
    STREAM_RELEASED
};

struct source_stream {
    struct ibx_state_machine state;
    int fd;         /* to QEMU; -1 in CLOSED and RELEASED */
    int theirs;     /* MADE: QEMU's end; else -1 */
    bool managed;   /* libvirt has started QEMU's migration, and ends it */
    uint64_t bytes; /* sent */
    uint8_t *held;  /* OPEN: read and not sent, since the state may end with it */
    size_t held_length, held_room;
    size_t pending;   /* OPEN: bytes that QEMU has written and nobody has read, by the last look */
    uint64_t grew_ns; /* when these were not as many as before */
    bool flows;       /* they were all that QEMU could write, once */
};

void ibx_source_stream_init(struct source_stream *stream);
/* `hold`: its name for the journal. */
int ibx_source_stream_make(struct source_stream *stream, uint64_t *hold, struct ibx_error *err);
/* Starts QEMU's migration into it. */
int ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp,
                           struct ibx_error *err);
/* libvirt has started QEMU's migration into `fd`, which is taken over. */
int ibx_source_stream_adopt(struct source_stream *stream, int fd, struct ibx_error *err);
/* HELD: lets QEMU end such a migration, as completed. */
int ibx_source_stream_let_go(struct source_stream *stream, struct ibx_error *err);
/* OPEN: looks how much QEMU has written that nobody has read. */
void ibx_source_stream_look(struct source_stream *stream);
/* Whether that may wait for the page map, by the last look. */
bool ibx_source_stream_waits(const struct source_stream *stream, bool stopped);
/* Sends what QEMU has written, unless messages already wait for credit. READ when that ends as a
 * whole state does and `saved`: QEMU is about to have written all of it, or has. */
int ibx_source_stream_carry(struct source_stream *stream, struct ibx_channel *control, bool saved,
                            struct ibx_error *err);
/* Where the end may begin in bytes of a state that have come so far, and where it does if these are
 * all; `length`: nowhere. */
size_t ibx_state_may_end(const uint8_t *bytes, size_t length);
size_t ibx_state_ends(const uint8_t *bytes, size_t length);
/* READ: sends STATE_END, and has QEMU hold it open whatever becomes of this tool. */
int ibx_source_stream_end(struct source_stream *stream, struct ibx_channel *control,
                          struct ibx_qmp *qmp, struct ibx_error *err);
/* Recover: takes it from the QEMU `pid`. -ENOENT: QEMU's migration is not held open. */
int ibx_source_stream_take(struct source_stream *stream, pid_t pid, uint64_t hold,
                           struct ibx_error *err);
/* HELD: the migration is complete. */
int ibx_source_stream_release(struct source_stream *stream, struct ibx_qmp *qmp,
                              uint64_t deadline_ns, struct ibx_error *err);
void ibx_source_stream_close(struct source_stream *stream);

/* ---------------------------------------------------------------- link.c */

/*
 * state machine: source link
 *   [*] -> NONE -> OPEN -> EXPOSING -> EXPOSED -> MAPPED    MAPPED: the page map is sent
 *   EXPOSED -> EXPOSING                                     what came to hold data since
 *   OPEN | EXPOSING | EXPOSED | MAPPED -> NONE -> [*]
 */
enum source_link_state {
    LINK_NONE,
    LINK_OPEN, /* without page connections where the destination has all pages */
    LINK_EXPOSING,
    LINK_EXPOSED,
    LINK_MAPPED
};

struct source_link {
    struct ibx_state_machine state;
    /* What it is made for; not changed here. */
    const struct ibx_record *record;
    const struct ibx_options *transport;
    const struct source_vm *vm;
    unsigned wished; /* page connections; 0: any number */
    bool verify;     /* pages, in a new migration */

    struct ibx_channel control;
    bool disks_differ;                  /* on purpose */
    bool warm;                          /* pages are to be fetched before the stop */
    uint8_t borrow;                     /* enum ibx_migrate_borrow */
    struct ibx_migrate_hello hello;     /* the last one, */
    struct ibx_migrate_answer answer;   /* and its answer */
    struct ibx_page_connections *begun; /* while the destination is asked */
    struct ibx_page_server *pages;
    struct retiring *retiring; /* what is closed in a thread, or NULL */
    unsigned count;            /* page connections, as the destination has answered; 0: not yet */
    uint32_t regions;
    uint64_t cpu_ns; /* of closed page servers */
    uint64_t retry_ns, retry_pause_ms, tried_ns;
};

void ibx_source_link_init(struct source_link *link, const struct ibx_record *record,
                          const struct ibx_options *transport, const struct source_vm *vm,
                          unsigned wished, bool verify);
static inline bool source_linked(const struct source_link *link)
{
    return link->state.now != LINK_NONE;
}
/* HELLO and its answer, then the page connections. `peer` gets the destination's name. -EPERM with
 * the destination's blockers: it refuses. */
int ibx_source_link_ask(struct source_link *link, char *peer, size_t size, struct ibx_error *err);
/* Exposes, asynchronously, the pages that hold data now. */
int ibx_source_link_expose(struct source_link *link, struct ibx_error *err);
/* READY has come: the padding ends that widens a long wire's windows. */
void ibx_source_link_quiet(struct source_link *link);
/* 0: all is exposed and told to the destination; -EAGAIN: not yet. */
int ibx_source_link_exposed(struct source_link *link, struct ibx_error *err);
int ibx_source_link_send_map(struct source_link *link, struct ibx_error *err);
/* The pages that loading devices needs. Between hosts they are sent right after the map. */
uint32_t ibx_source_link_early(const struct source_link *link); /* a bit for each with data */
bool ibx_source_link_has_early(const struct source_link *link);
int ibx_source_link_send_early(struct source_link *link, uint32_t which, struct ibx_error *err);
/* A message with no field, or with the epoch only. */
int ibx_source_link_send(struct source_link *link, enum ibx_migrate_message type,
                         struct ibx_error *err);
/* Whether a try to reconnect is due; and after each, a successful one too, the delay of the next.
 */
bool ibx_source_link_due(struct source_link *link);
void ibx_source_link_delay(struct source_link *link);
/* After the commit: one try to reconnect, with the epoch of the record. `state` gets the state that
 * the destination answers, and nothing without an answer. -EAGAIN: try again later; -ECANCELED: the
 * destination has given up and the VM never ran there. */
int ibx_source_link_resume(struct source_link *link, enum ibx_answer_state *state,
                           struct ibx_error *err);
/* The same without pages, to say that the migration is broken: OPEN. */
int ibx_source_link_rejoin(struct source_link *link, struct ibx_error *err);
/* Nobody needs a page any more: page connections are closed while CONFIRMED is awaited. */
void ibx_source_link_retire(struct source_link *link);
/* Waits until they are. */
void ibx_source_link_retired(struct source_link *link);
void ibx_source_link_close(struct source_link *link);
/* Tells a destination that may wait, over a connection of its own, that the VM stays here. The
 * epoch of the record is a new one. -EALREADY: it has given up. Another failure has no consequence
 * before the commit. */
int ibx_source_link_disown(struct source_link *link, const char *why);

/* ---------------------------------------------------------------- warm.c */

/*
 * state machine: source warm
 *   [*] -> OFF                          not asked for, or not possible
 *   OFF -> BETWEEN                      written pages are noted; no part is at the destination
 *   BETWEEN -> EXPOSING -> FETCHING     a part is registered, then the destination fetches it
 *   FETCHING -> BETWEEN                 it has all of it
 *   BETWEEN -> EMPTYING -> DROPPING     a return: it drops what was given back here
 *   BETWEEN -> DROPPING -> OVER         it drops what was written since: QEMU may stop the VM
 *   OVER -> STOPPED                     the VM is stopped, and what was written last is named
 *   BETWEEN | EXPOSING | FETCHING | EMPTYING | DROPPING -> ENDED          no writes are noted
 *   OVER | STOPPED -> ENDED
 *   OFF | ENDED -> [*]
 */
enum source_warm_state {
    WARM_OFF,
    WARM_BETWEEN,
    WARM_EXPOSING,
    WARM_FETCHING,
    WARM_EMPTYING,
    WARM_DROPPING,
    WARM_OVER,
    WARM_STOPPED,
    WARM_ENDED
};

/*
 * state machine: written pages
 *   [*] -> KNOWN -> LOST -> [*]
 *   KNOWN -> [*]
 *
 * LOST: pages may have changed unseen, so that nothing that the destination has is known to be
 * right. For good.
 */
enum source_writes { WRITES_KNOWN, WRITES_LOST };

struct source_warm {
    struct ibx_state_machine state;
    struct ibx_state_machine writes;
    struct ibx_tracker tracker;
    struct ibx_page_map written; /* by the last scan */
    struct ibx_page_map wanted;  /* not at the destination, or not as they are here */
    struct ibx_page_map held;    /* at the destination, as they are or were here */
    struct ibx_page_map part;    /* that a message names */
    uint64_t cursor;             /* the next place of a pass to be considered */
    uint64_t pass_pages;         /* wanted when this pass through guest RAM began */
    uint64_t pass_sent;          /* pages that have been fetched in it */
    uint64_t rate;               /* bytes per second, of the last part; 0: not known */
    uint64_t began_ns;
    uint64_t part_ns;                     /* when the last part began */
    uint64_t overhead_ns;                 /* what it took besides fetching its pages */
    unsigned drops;                       /* rounds of that kind */
    uint32_t number;                      /* of the last round that was sent */
    int64_t others[IBX_GUEST_BLOCKS_MAX]; /* pages of a block's file beside those with data */
    bool nests;                           /* its guest may run VMs under KVM */
    struct ibx_error why;                 /* of WRITES_LOST */
};

struct source;
void ibx_source_warm_init(struct source_warm *warm);
/* The destination is ready. Afterwards still OFF where it does not fetch before the stop. */
int ibx_source_warm_begin(struct source *s, struct ibx_error *err);
/* The next part, if the destination waits for one. */
int ibx_source_warm_step(struct source *s, struct ibx_error *err);
/* Whether an event of QEMU's means that pages change unseen. */
void ibx_source_warm_on_event(struct source *s, json_t *event);
int ibx_source_warm_on_done(struct source *s, const struct ibx_migrate_round_done *done,
                            struct ibx_error *err);
/* The VM is quiet, and the page map made: names what the destination must not keep. */
int ibx_source_warm_stopped(struct source *s, struct ibx_error *err);
/* Before the commit: whether what the destination keeps is still known to be right. */
int ibx_source_warm_check(const struct source *s, struct ibx_error *err);
/* Takes the protection away. May be repeated. */
void ibx_source_warm_end(struct source *s);

/* ---------------------------------------------------------------- warm_parts.c */

/* Which pages are `place` and those behind it, of a piece, in the order of a pass; none may be left
 * (*first = *end). false: the pass is over. */
bool ibx_warm_piece(const struct ibx_page_map *map, uint64_t place, uint64_t *first, uint64_t *end);
/* The next part: pages that are wanted, from the cursor on. */
void ibx_source_warm_choose(struct source *s);
/* At the beginning of a part: whether another one does not pay. May begin another pass. */
bool ibx_source_warm_is_enough(struct source *s);
static inline bool source_warm_lost(const struct source_warm *warm)
{
    return warm->writes.now == WRITES_LOST;
}

/* ---------------------------------------------------------------- return.c */

/*
 * What the tool by which the VM came here, and which serves it, has noted in memory that outlives
 * it, and what this one notes. All are bits of pages, as those of a page map.
 */
struct source_return {
    struct ibx_note base;        /* with data at home when the VM left */
    struct ibx_note arrived;     /* that have come here since */
    struct ibx_note left;        /* the page map of the stop, for recover */
    struct ibx_page_map have;    /* at home now */
    struct ibx_page_map gone;    /* given back here, by the last look */
    struct ibx_page_map there;   /* in the files here, by the last look at all of them */
    struct ibx_page_map written; /* here, by the last look */
    struct ibx_page_map among;   /* that may have been written since the look before */
    bool looked;                 /* at `gone` */
    bool have_it;                /* all of `have` has come */
    bool early;                  /* what loading looks at has been sent ahead of the page map */
    bool stopped;                /* `left` is what counts */
    int64_t others;              /* pages of the files beside those that had arrived then */
};

struct source;
/* Before anything is touched. -ENOENT, -ESTALE: the notes are gone. */
int ibx_source_return_open(struct source *s, struct ibx_error *err);
/* For the page map of the stop, once there is a record: nobody would look for it without one. */
int ibx_source_return_note_make(struct source *s, struct ibx_error *err);
/* Recover, after the commit. */
int ibx_source_return_recover(struct source *s, struct ibx_error *err);
/* Which pages hold data at this moment, here or, as they were, at home. */
int ibx_source_return_find_map(struct source *s, struct ibx_error *err);
/* What the VM has written here, in `written` and in the page map. */
int ibx_source_return_find_written(struct source *s, struct ibx_error *err);
/* The VM has stopped, and its page map is still to be found: QEMU at home can load meanwhile. */
int ibx_source_return_send_early(struct source *s, struct ibx_error *err);
/* The VM has stopped, and the page map is that of the stop. */
void ibx_source_return_note(struct source *s);
/* HAVE and HAVE_END. */
int ibx_source_return_on_have(struct source *s, const struct ibx_migrate_any *message,
                              struct ibx_error *err);
/* The destination is ready: what it has, and what was written since, in the maps of `warm`. */
int ibx_source_return_begin(struct source *s, struct ibx_error *err);
/* The page connections are there. -EOPNOTSUPP: their fabric would touch pages that are not here. */
int ibx_source_return_check_fabric(const struct source *s, struct ibx_error *err);
void ibx_source_return_fini(struct source *s);

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
 * ended there; where libvirt drives, it is awaited whether it continues the VM here. In CONFIRMING
 * the destination needs nothing from this side.
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
    PEER_ENDED, /* the guest has shut the VM down there */
    PEER_CONFIRMED,
    PEER_ABORTED
};

/*
 * What is known of the protection of guest RAM here (guard.h has its own states).
 *
 * state machine: source guarding
 *   [*] -> WISHED -> NOTED                it is in the record, so that recover finds it
 *   NOTED -> ASKED -> WHOLE               all is protected, and QEMU has answered since
 *   NOTED -> WHOLE                        recover: it was, by the record
 *   WISHED | NOTED | ASKED | WHOLE -> IMPOSSIBLE                  for the reason that was notified
 *   WISHED | NOTED | ASKED | WHOLE | IMPOSSIBLE -> [*]
 *
 * What QEMU does in WHOLE it does under protection.
 */
enum source_guarding_state {
    GUARDING_WISHED,
    GUARDING_NOTED,
    GUARDING_ASKED,
    GUARDING_WHOLE,
    GUARDING_IMPOSSIBLE
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
    struct ibx_gate gate; /* CLOSED unless libvirt drives */

    struct ibx_migrate_status status;
    struct migration_reporter reporter;
    struct migration_signals signals;
    struct ibx_control_socket *socket;
    int lock_fd;
    unsigned interrupts; /* signals, and a request to cancel */

    struct ibx_guard guard; /* of guest RAM here, in SERVING */
    uint64_t guard_ns;      /* managed: when to make it, unless QEMU has ended */
    uint64_t decided_epoch; /* managed: of the link over which DECIDED was sent */
    uint64_t pause_by_ns;   /* managed: until when libvirt's settings are awaited */
    struct ibx_state_machine guarding;
    struct ibx_error disturbed;    /* code not 0: what others did to the VM here after the commit */
    struct ibx_verifier *verifier; /* from RUNNING or the first DIGEST on */
    uint64_t messages;             /* from the destination */
    struct migration_silence silence;
    uint64_t busy_until_ns; /* of ibx_migration_busy_until() */
    uint64_t lost_ns;       /* when the link was */
    uint64_t nobody_ns;     /* since when nobody listens at the destination; 0: not so */
    bool untold;            /* pages are wrong there, and the link to say so is lost */
    uint64_t heard_ns;      /* when it said something of this migration last, or COMMIT went */
    uint64_t unheard_ns;    /* SERVING: when to say again that it does not */
    uint64_t decide_by_ns;  /* LOST: until when libvirt's decision is awaited */
    uint64_t still_ns;      /* since when the VM is stopped; 0: an overdue RUNNING was notified */
    uint64_t mapped_ns, loaded_ns; /* moments of the downtime */
    uint64_t confirm_by_ns;        /* until when CONFIRMED is awaited */
    uint64_t home_look_ns;         /* borrowed: when to look again whether it has returned */
    uint64_t home_by_ns;           /* borrowed: it has, and until when ENDED is awaited */
    uint64_t settle_ns;            /* when to try again to put QEMU's settings back */
};

/* ASKING, or for recover COMMITTED or SERVING. */
int ibx_source_begin(struct source *s, enum source_state first);
/* Whether it returns to where it was borrowed from. */
static inline bool source_returns(const struct source *s)
{
    return ibx_journal_returns(&s->status.record);
}
/* Finds which pages hold data at this moment. */
int ibx_source_find_map(struct source *s, struct ibx_error *err);
/* The one place that moves. -EINVAL: refused, nothing has changed. */
int ibx_source_move(struct source *s, enum source_state to, struct ibx_error *err);
enum ibx_migrate_phase ibx_source_phase(const struct source *s);
/* Figures of the parts, for the status. */
void ibx_source_update(struct source *s);
/* Until a final state; 0 in DONE. */
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

/* ---------------------------------------------------------------- messages.c */

struct message_context {
    struct source *source;
    struct ibx_error *err;
};
/* Takes a message of the destination; `context` is a struct message_context. */
int ibx_source_on_message(void *context, const struct ibx_migrate_any *message);

/* ---------------------------------------------------------------- commit.c */

/* LOADED has come: COMMITTED, and COMMIT is sent. */
int ibx_source_commit(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- lost.c */

/* SERVING: the destination says that the VM's QEMU has ended there. */
int ibx_source_lose_vm(struct source *s, const char *why, struct ibx_error *err);
/* LOST: ends with what is left of the VM, once libvirt has decided where it drives. */
int ibx_source_vm_lost(struct source *s, struct ibx_error *err);
/* Recover: a tool before this one has come there. */
int ibx_source_was_lost(struct source *s, struct ibx_error *err);
/* -ETIMEDOUT, in LEFT: for too long the destination has not said whether the VM runs there; or,
 * while it runs there, nobody has listened. In SERVING a host that does not answer is waited for,
 * which is notified. give_up_s says for how long instead. */
int ibx_source_check_unheard(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- libvirt.c */

/* It removes the files of guest RAM when it ends QEMU: they get a second name. */
void ibx_source_libvirt_link_files(struct source *s);
/* Before the gate opens. 0: libvirt has set what it sets, all at once, and is about to connect;
 * -EAGAIN: not yet. */
int ibx_source_libvirt_has_set(struct source *s, struct ibx_error *err);
/* Whether it has started QEMU's migration; then the stream is OPEN. */
int ibx_source_libvirt_gate(struct source *s, struct ibx_error *err);
/* The VM goes on here. true: libvirt has decided so, as it may. */
bool ibx_source_libvirt_resumed(struct source *s);
/* It has ended QEMU here: tells the destination that the VM is to stay there, once a link. */
int ibx_source_libvirt_decided(struct source *s, struct ibx_error *err);
/* Whether it has. -ECANCELED, in KEPT; the destination has been told, or `err` says that it could
 * not be. */
int ibx_source_libvirt_check(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- intruder.c */

/*
 * After the commit nobody may run the VM here or change its memory. QEMU refuses most of that while
 * its migration is held open, and the guard stops who writes all the same. Whatever happens then,
 * the tool does not end with success.
 */

void ibx_source_guard_init(struct source *s);
/* SERVING: makes the guard, and then protects one part more. */
void ibx_source_guard(struct source *s);
/* Recover: takes the guard of the tool before this one, and the VM's RAM by the record alone where
 * QEMU's main thread is held by it, which answers no monitor then. -EAGAIN: it is not. */
int ibx_source_guard_take(struct source *s, struct ibx_error *err);
/* The same while QEMU does not answer: who was on the way to a write then is held by now. -EAGAIN:
 * its monitor is reached, or there is no guard. */
int ibx_source_guard_reach(struct source *s, struct ibx_error *err);
/* ... or after it has not: `rc` where that is not why. */
int ibx_source_guard_blamed(struct source *s, int rc, struct ibx_error *err);
/* ... and its monitor is reached: whether somebody has reset the VM before all of its memory was
 * protected. -EBADMSG, in BROKEN. */
int ibx_source_guard_check_past(struct source *s, struct ibx_error *err);
/* Looks whether somebody was caught. -EBADMSG: before all of the memory was protected. */
int ibx_source_check_guard(struct source *s, struct ibx_error *err);
/* Behind the events of QEMU that have come: takes its answer of ASKED. */
void ibx_source_guard_answered(struct source *s);
/* An event of QEMU's after the commit. -EBADMSG, in BROKEN: its memory may have changed. */
int ibx_source_on_intruder(struct source *s, json_t *event, struct ibx_error *err);
/* CONFIRMING, DONE: lets go of QEMU, unless somebody was caught, who would go on then. Early: does
 * not wait for a QEMU that is slow, nor notifies: it is tried again in DONE. */
void ibx_source_let_go_early(struct source *s);
void ibx_source_let_go(struct source *s);
/* DONE: 0, or what is to be said instead of success. */
int ibx_source_verdict(const struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- verify.c */

/* Once the VM runs there: begins with what the destination will name. */
void ibx_source_verify_ahead(struct source *s);
int ibx_source_on_digest(struct source *s, const struct ibx_migrate_digest *digest,
                         struct ibx_error *err);
/* -EBADMSG, in BROKEN: a page differs. */
int ibx_source_check_pages(struct source *s, struct ibx_error *err);
/* COMPLETE has come. 0: all pages are the same, or are not verified; -EAGAIN: some are being
 * compared. */
int ibx_source_verified(struct source *s, struct ibx_error *err);

/* ---------------------------------------------------------------- remove.c */

/* The migration is complete: removes the files of guest RAM that were set aside, with --remove all
 * of them, and notifies of those that stay. */
void ibx_source_remove_files(struct source *s);

/* ---------------------------------------------------------------- ending.c */

/* Continues the VM here and goes to KEPT or STRANDED; returns `code`. Where the table has no move
 * to KEPT it changes nothing and returns `code`: the VM may run at the destination. */
int ibx_source_keep(struct source *s, int code, struct ibx_error *err);
/* An error after the commit. 0: to go on and connect again. */
int ibx_source_link_trouble(struct source *s, int code, struct ibx_error *err);
/* SERVING: takes what has come, up to an ABORT, within `ms`; with `err` also BROKEN, which leads to
 * that state. */
void ibx_source_take_last_abort(struct source *s, unsigned ms, struct ibx_error *err);
/* The pages at the destination are not those here, as `err` says: BROKEN, and with
 * `untold` the destination is told, over a new link where this one is lost. Returns -EBADMSG. */
int ibx_source_broken(struct source *s, bool untold, struct ibx_error *err);
/* Recover of such a migration: tells the destination. -EBADMSG. */
int ibx_source_recover_broken(struct source *s, struct ibx_error *err);
/* After the commit, without a link: one try to reconnect, when it is time. */
int ibx_source_reconnect(struct source *s, struct ibx_error *err);
int ibx_source_check_interrupts(struct source *s, struct ibx_error *err);
/* Once the VM runs at the destination: puts QEMU's migration settings back as soon as QEMU allows
 * it, which is tried now and then. */
void ibx_source_settle(struct source *s);
/* The same at the end of the tool, for the last time. */
void ibx_source_settle_at_last(struct source *s);
/* All pages are at the destination, or the VM has ended there: writes that, goes to CONFIRMING,
 * sends CONFIRM. */
int ibx_source_confirm(struct source *s, struct ibx_error *err);
/* CONFIRMED may come later than was thought. */
void ibx_source_await_longer(struct source *s);
/* SERVING: ends as that when the records say that a borrowed VM has returned. */
int ibx_source_check_home(struct source *s, struct ibx_error *err);
/* In CONFIRMING: waits for CONFIRMED, or confirms again over a new connection; then DONE. */
int ibx_source_await_confirmed(struct source *s, struct ibx_error *err);

#endif
