/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination of a migration. ibx_migrate_receive() of migrate/migrate.h is here, nothing else
 * is called from outside.
 *
 *   begin.c, recover.c   that call: what is checked, opened and recovered, in the end closed
 *   destination.c        the loop and the steps of each state
 *   requests.c           what others ask: sources by HELLO and JOIN, operators by the socket
 *   messages.c           messages of the source on the control connection
 *   digests.c            digests of the pages that have come, to the source
 *   commit.c             the point of no return: gives QEMU the end of the device state
 *   ending.c, silence.c  trouble, interrupts, the end; a source from which nothing comes
 *   warm.c               pages that are fetched while the VM runs at the source
 *   borrow.c             a VM that is to return: the monitor for that, and when it has
 *   home.c               a VM that returns here: the memory that it left
 *   states.c             the states
 *   ram.c, arrived.c     guest RAM, its userfaultfd and the fault engine
 *   link.c               the control connection, page connections and query connections
 *   stream.c             the device state, into QEMU, without its end before the commit
 *   qemu.c               QEMU's monitor
 *
 * Each file calls only those below it in this list; ram.c to qemu.c do not call each other.
 */
#ifndef IBX_MIGRATE_DESTINATION_DESTINATION_H
#define IBX_MIGRATE_DESTINATION_DESTINATION_H

#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"
#include "migrate/common/note.h"
#include "migrate/operator/control_socket.h"
#include "migrate/pages/digest.h"
#include "migrate/pages/pages.h"
#include "migrate/qemu/qemu.h"

#include <poll.h>

/* The QEMU of the record lives. */
static inline bool destination_qemu_lives(const struct ibx_journal *record)
{
    return record->pid_started && ibx_process_started(record->pid) == record->pid_started;
}

/* ---------------------------------------------------------------- ram.c */

/*
 * state machine: destination ram
 *   [*] -> UNTOUCHED -> OPENED -> REGISTERED     QEMU has a userfaultfd; guest RAM is on it
 *   REGISTERED -> OPENED                         unregistered; the descriptor is still in QEMU
 *   OPENED | REGISTERED -> UNTOUCHED -> [*]      closed in QEMU, or QEMU has ended
 */
enum destination_ram_state { RAM_UNTOUCHED, RAM_OPENED, RAM_REGISTERED };

struct destination_ram {
    struct ibx_state_machine state;
    struct ibx_guest_ram guest;
    struct ibx_page_map map;
    struct ibx_page_map had; /* warm.c: pages that came before the stop; of no pages without it */
    uint64_t warm_bytes;     /* fetched before the stop */
    uint8_t borrow;          /* enum ibx_migrate_borrow: pages are placed write-protected */
    bool kept;               /* home.c: memory is that which the VM left here */
    struct ibx_note base;    /* borrowed: which pages hold data at the source */
    struct ibx_uffd uffd;    /* fd -1 in UNTOUCHED */
    bool minor;              /* minor faults: READs go into the page cache */
    bool recovered;          /* from a tool that ended; the engine is rebuilt */
    void *aliases[IBX_GUEST_BLOCKS_MAX]; /* minor mode */
    struct ibx_note arrived;             /* minor mode: arrived.c; as are the next two */
    struct ibx_note tags;                /* when pages are verified: one a page */
    struct ibx_page_tags *page_tags;     /* NULL: they are not */
    struct ibx_fault *engine;
    size_t buffer_bytes;    /* of a page connection, for the engine */
    uint64_t max_bandwidth; /* bytes per second; 0: no limit */
    uint64_t waiting;       /* faults that are not answered yet */
    uint64_t discarded;     /* pages that the guest gave back before they came */
};

void ibx_destination_ram_init(struct destination_ram *ram, bool minor, uint64_t max_bandwidth);
/* Recover: guest RAM as the record has it, and the page map. */
int ibx_destination_ram_of_record(struct destination_ram *ram, const struct ibx_journal *record,
                                  struct ibx_error *err);
/* Empties guest RAM and makes its userfaultfd in QEMU, which goes into the record with the layout.
 */
int ibx_destination_ram_watch(struct destination_ram *ram, struct ibx_qmp *qmp,
                              struct ibx_journal *record, struct ibx_error *err);
/* Recover: takes the userfaultfd that QEMU still has. -ENOENT: it has none. */
int ibx_destination_ram_take_uffd(struct destination_ram *ram, const struct ibx_journal *record,
                                  struct ibx_error *err);
/* Recover: the rest, for a VM that still misses pages. -ESTALE: what came before is not known. */
int ibx_destination_ram_recover(struct destination_ram *ram, const struct ibx_journal *record,
                                struct ibx_error *err);
/* Makes the engine for these page connections; it holds all faults. `runs`: the VM does. */
int ibx_destination_ram_engine(struct destination_ram *ram, struct ibx_page_reader **readers,
                               unsigned count, bool runs, struct ibx_error *err);
/* The page map and all regions are there: serves faults, or serves them again by new connections.
 */
int ibx_destination_ram_serve(struct destination_ram *ram, struct ibx_page_reader **readers,
                              unsigned count, bool runs, struct ibx_error *err);
/* Before the stop: makes an engine that fetches these pages, and is COMPLETE then. */
int ibx_destination_ram_fetch(struct destination_ram *ram, struct ibx_page_reader **readers,
                              unsigned count, const struct ibx_page_map *pages,
                              struct ibx_error *err);
/* Before the stop, without a serving engine: these pages are missing again. */
int ibx_destination_ram_drop(struct destination_ram *ram, const struct ibx_page_map *pages,
                             struct ibx_error *err);
/* No engine uses page connections. */
bool ibx_destination_ram_stopped(const struct destination_ram *ram);
void ibx_destination_ram_set_bandwidth(struct destination_ram *ram, uint64_t bytes_per_second);
void ibx_destination_ram_stats(struct destination_ram *ram, struct ibx_migrate_status *status);
/* Every page is there: destroys the engine, unregisters guest RAM and closes the userfaultfd in
 * QEMU. May be repeated after a failure; while REGISTERED the VM may wait at its first touch of
 * memory. 0 also when there is nothing to do. */
int ibx_destination_ram_let_go(struct destination_ram *ram, const struct ibx_journal *record,
                               struct ibx_error *err);
/* Gives up a descriptor that cannot be closed in QEMU. */
void ibx_destination_ram_abandon(struct destination_ram *ram);
/* The VM will not run here: removes the engine, and what was done to QEMU, as far as possible. */
void ibx_destination_ram_give_up(struct destination_ram *ram, const struct ibx_journal *record);
void ibx_destination_ram_end_engine(struct destination_ram *ram);
void ibx_destination_ram_fini(struct destination_ram *ram);

/* arrived.c: which pages have come, in minor mode, and what has come in them, when verified. */

/* Makes the file. -EEXIST and others, with what is in the way. */
int ibx_destination_arrived_make(struct destination_ram *ram, const struct ibx_journal *record,
                                 struct ibx_error *err);
/* Finds that of the tool before this one. -ESTALE: it is gone, or is another one's. */
int ibx_destination_arrived_find(struct destination_ram *ram, const struct ibx_journal *record,
                                 struct ibx_error *err);
/* Deletes the file, which is not needed any more. It stays mapped. */
void ibx_destination_arrived_remove(const struct ibx_journal *record);
/* Borrowed: where the engine notes which pages are in their place, in the same file; else NULL. */
_Atomic uint64_t *ibx_destination_placed(const struct destination_ram *ram);
/* Borrowed: notes the page map, for the return. */
int ibx_destination_base_make(struct destination_ram *ram, const struct ibx_journal *record,
                              struct ibx_error *err);
void ibx_destination_base_note(struct destination_ram *ram);
/* The pages that were here have arrived, too. */
void ibx_destination_arrived_had(struct destination_ram *ram);
/* The same of the tags, for `page_tags`. */
int ibx_destination_tags_make(struct destination_ram *ram, const struct ibx_journal *record,
                              struct ibx_error *err);
int ibx_destination_tags_find(struct destination_ram *ram, const struct ibx_journal *record,
                              struct ibx_error *err);
void ibx_destination_tags_remove(const struct ibx_journal *record);

/* ---------------------------------------------------------------- link.c */

/*
 * state machine: destination link
 *   [*] -> NONE -> OPEN -> MAPPED -> SERVING     MAPPED: the page map is here
 *   SERVING -> MAPPED                            the engine is no more
 *   SERVING -> STOPPING                          lost; the engine still has the page connections
 *   OPEN | MAPPED | STOPPING -> NONE -> [*]
 */
enum destination_link_state { LINK_NONE, LINK_OPEN, LINK_MAPPED, LINK_SERVING, LINK_STOPPING };

#define QUERIES_MAX 4u /* query connections: they take an answer and go */
#define LINK_FDS    (2u + IBX_MIGRATE_LINKS_MAX + QUERIES_MAX)

struct destination_link {
    struct ibx_state_machine state;
    struct ibx_acceptor *acceptor;
    struct ibx_channel control;
    struct ibx_page_reader *readers[IBX_MIGRATE_LINKS_MAX]; /* of page connections */
    unsigned count, joined;
    unsigned block_count;
    struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX];
    struct ibx_migrate_map_end map_end;
    uint64_t regions;                     /* that have come, over all page connections */
    struct ibx_connection_request resume; /* conn not NULL: waits for the engine to stop */
    struct ibx_channel queries[QUERIES_MAX];
    uint64_t query_since[QUERIES_MAX];
};

void ibx_destination_link_init(struct destination_link *link);
static inline bool destination_linked(const struct destination_link *link)
{
    return link->state.now >= LINK_OPEN && link->state.now <= LINK_SERVING;
}
/* Takes over the connection of a HELLO, for `count` page connections, and accepts it;
 * `verify`: pages are verified; `warm`: they are fetched before the stop. */
int ibx_destination_link_accept(struct destination_link *link, struct ibx_conn *conn,
                                unsigned count, enum ibx_answer_state state, bool verify, bool warm,
                                const struct ibx_blockers *notes);
/* Answers a HELLO over a query connection and takes that over. `links`: page connections. */
void ibx_destination_link_answer(struct destination_link *link, struct ibx_conn *conn,
                                 bool accepted, enum ibx_answer_state state, unsigned links,
                                 const struct ibx_blockers *blockers);
void ibx_destination_link_refuse(struct destination_link *link, struct ibx_conn *conn,
                                 enum ibx_answer_state state, const char *why);
void ibx_destination_link_check_queries(struct destination_link *link);
bool ibx_destination_link_has_queries(const struct destination_link *link);
/* Takes over the page connection of a JOIN, which must fit. */
int ibx_destination_link_join(struct destination_link *link, struct ibx_conn *conn, unsigned at,
                              struct ibx_error *err);
/* All page connections have joined and have all regions of the map. -EAGAIN: not yet. */
int ibx_destination_link_complete(struct destination_link *link, struct ibx_error *err);
/* The same, before there is a map: all have so many regions. */
int ibx_destination_link_has_regions(struct destination_link *link, uint32_t regions,
                                     struct ibx_error *err);
/* The engine is destroyed: page connections are this thread's again. */
void ibx_destination_link_engine_ended(struct destination_link *link);
/* It is lost. In SERVING page connections stay until the engine has stopped. */
void ibx_destination_link_lose(struct destination_link *link);
/* Not in SERVING. */
void ibx_destination_link_close(struct destination_link *link);
/* Fills at most LINK_FDS entries and returns how many; `at_once`: something is there
 * already. `readers`: no engine reads from the page connections. */
unsigned ibx_destination_link_poll_fds(struct destination_link *link, bool readers,
                                       struct pollfd *fds, bool *at_once);
void ibx_destination_link_fini(struct destination_link *link, uint64_t linger_until_ns);

/* ---------------------------------------------------------------- stream.c */

/*
 * state machine: destination stream
 *   [*] -> CLOSED -> TAKING -> WHOLE -> RELEASED    RELEASED: the end may go to QEMU, too
 *   RELEASED -> ENDING -> FED -> [*]                ENDING: some of the end has gone to QEMU
 *   [*] -> ENDING                                   recover: the tool before may have done so
 *   TAKING | WHOLE | RELEASED | ENDING -> CUT -> [*]
 */
enum destination_stream_state {
    STREAM_CLOSED,
    STREAM_TAKING,
    STREAM_WHOLE,
    STREAM_RELEASED,
    STREAM_ENDING,
    STREAM_FED,
    STREAM_CUT
};

struct destination_stream {
    struct ibx_state_machine state;
    int fd;  /* into QEMU; -1: none */
    int fed; /* the same when QEMU has all, if libvirt drives: QEMU may
                still answer, to nobody; else -1 */
    bool managed;
    uint8_t *bytes;                   /* what QEMU has not taken yet */
    size_t from, sure, end, capacity; /* `sure`: up to there certainly without EOF */
    uint64_t total;                   /* bytes that came */
};

/*
 * QEMU's stream ends with the byte QEMU_VM_EOF (0) and, for almost every machine type, a
 * description for debuggers behind it: QEMU_VM_VMDESCRIPTION (6), u32 length, big-endian, JSON. The
 * VM runs as soon as EOF was read, even when the description is cut off. So EOF is what is held
 * back until the commit, not just the last byte.
 *
 * How many of these bytes (the stream's latest) QEMU may have now, certainly without EOF. When the
 * stream has `ended`, the rest is EOF and what follows it, and `*whole` is whether it was
 * recognised; otherwise the stream is not QEMU's.
 */
size_t ibx_state_tail(const uint8_t *bytes, size_t length, bool ended, bool *whole);

/* CLOSED, or for recover ENDING. */
void ibx_destination_stream_init(struct destination_stream *stream,
                                 enum destination_stream_state first);
/* Connects to where libvirt has this QEMU wait for its device state. -EAGAIN: it does not yet. */
int ibx_destination_stream_connect(struct destination_stream *stream, const char *path, pid_t qemu,
                                   struct ibx_error *err);
/* QEMU waits for the device state from here on; unless connected, it is told to. */
int ibx_destination_stream_open(struct destination_stream *stream, struct ibx_qmp *qmp,
                                struct ibx_error *err);
int ibx_destination_stream_append(struct destination_stream *stream, const uint8_t *bytes,
                                  size_t length, struct ibx_error *err);
/* All has come, of which `total` bytes were announced. -EPROTO: it does not end as it must. */
int ibx_destination_stream_end(struct destination_stream *stream, uint64_t total,
                               struct ibx_error *err);
/* Writes to QEMU what it takes: before RELEASED without EOF. */
int ibx_destination_stream_feed(struct destination_stream *stream, struct ibx_error *err);
/* QEMU takes no more at the moment. */
bool ibx_destination_stream_stuck(const struct destination_stream *stream);
/* QEMU has read everything but the end. */
bool ibx_destination_stream_loaded(const struct destination_stream *stream);
/* QEMU's incoming migration fails. */
void ibx_destination_stream_cut(struct destination_stream *stream);
void ibx_destination_stream_fini(struct destination_stream *stream);

/* ---------------------------------------------------------------- qemu.c */

/*
 * state machine: destination qemu
 *   [*] -> LOADING -> RUNNING | FAILED -> [*]
 *   FAILED -> RUNNING                           what it reported last is what counts
 *   [*] -> RUNNING                              recover
 */
enum destination_qemu_state {
    QEMU_LOADING,
    QEMU_RUNNING, /* it has the whole state: running, or paused */
    QEMU_FAILED   /* it could not load the state */
};

/*
 * The monitor can be lost while QEMU lives: QEMU serves one client, and none while its main thread
 * waits for a page. As long as the process is there, so is the VM, and the monitor is tried again.
 */
struct destination_qemu {
    struct ibx_state_machine state;
    struct ibx_qmp *qmp; /* NULL: none */
    const char *path;
    const struct ibx_journal *record; /* names the process */
    const struct ibx_migrate_observer *observer;
    char status[IBX_MIGRATE_STATUS]; /* of query-status, lately; "": not known */
    char end[IBX_MIGRATE_STATUS];    /* QEMU's reason for its end, of SHUTDOWN; "": none yet */
    bool stale;                      /* an event says that the status is another one now */
    uint64_t ask_ns;                 /* when to ask for it again, after QEMU gave no answer */
    json_t *settings;                /* to put back: ibx_settings_restore(); NULL: none */
    uint64_t settle_ns;              /* when to try that again; 0: it has not failed */
    uint64_t retry_ns;               /* when to try a lost monitor again; 0: it was never lost */
    uint64_t inmigrate_ns;           /* recover: since when it waits for the state; or 0 */
    bool managed;                    /* libvirt continues the VM when it has loaded */
    uint64_t loaded_ns;              /* managed: since when it has, and is paused; or 0 */
};

void ibx_destination_qemu_init(struct destination_qemu *qemu, const char *path,
                               const struct ibx_journal *record,
                               const struct ibx_migrate_observer *observer);
/* Connects to the monitor, which must be that of this process (-ESRCH). */
int ibx_destination_qemu_reach(struct destination_qemu *qemu, uint64_t deadline_ns,
                               struct ibx_error *err);
/* Takes its events, or tries a lost monitor. `recovered`: RUNNING may have been before this tool.
 * An error: QEMU failed, or its monitor or the process is gone. */
int ibx_destination_qemu_check(struct destination_qemu *qemu, bool recovered,
                               struct ibx_error *err);
/* The VM is loaded: continues it if it is `to_run` and does not (-S, a paused start), or pauses it
 * if it is not to run though it does. Its failure changes only the status. */
void ibx_destination_qemu_run(struct destination_qemu *qemu, bool to_run);
/* Whether QEMU ended because its guest has shut the VM down. */
bool ibx_destination_qemu_shut_down(const struct destination_qemu *qemu);
/* What QEMU's end was, for a person: "its guest panicked, and its QEMU (process 7) ended then". */
void ibx_destination_qemu_describe_end(const struct destination_qemu *qemu, char *text,
                                       size_t size);
/* Leaves the monitor to the tool by which a borrowed VM returns, for a while. */
void ibx_destination_qemu_lend(struct destination_qemu *qemu);
/* Continues without the monitor. */
void ibx_destination_qemu_lose(struct destination_qemu *qemu, const char *why);
/* The stream is loaded but for its end: 0 once QEMU's main thread, which loads, answers. */
int ibx_destination_qemu_has_loaded(struct destination_qemu *qemu, uint64_t hurry_until_ns,
                                    struct ibx_error *err);
/* The VM's status, once QEMU has noticed that its stream has ended. */
int ibx_destination_qemu_await(struct destination_qemu *qemu, char *status, size_t size,
                               struct ibx_error *err);
/* The VM ran before the commit: stops it. -EPROTO. */
int ibx_destination_qemu_stop(struct destination_qemu *qemu, struct ibx_error *err);
/* Pauses the VM, as far as the monitor answers soon. */
int ibx_destination_qemu_pause(struct destination_qemu *qemu, struct ibx_error *err);
/* Finds which migration settings have to change, writes what they are into the record, sets them.
 */
int ibx_destination_qemu_set(struct destination_qemu *qemu, const char *folder,
                             struct ibx_journal *record, struct ibx_error *err);
/* Puts the settings back, at once or, after a failure, when it is time to try again. 0: they are,
 * and the record, which is not written here, says so. */
int ibx_destination_qemu_settle(struct destination_qemu *qemu, struct ibx_journal *record);
/* QEMU is not needed any more: the same at once, and closes the monitor, which is reached again
 * when this is repeated after a failure. 0 also when QEMU has ended. */
int ibx_destination_qemu_leave(struct destination_qemu *qemu, struct ibx_journal *record,
                               struct ibx_error *err);
void ibx_destination_qemu_fini(struct destination_qemu *qemu);

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

/* ---------------------------------------------------------------- borrow.c */

/* This VM is borrowed: whether it can be, here. */
void ibx_destination_borrow_check(const struct destination *d,
                                  const struct ibx_migrate_hello *hello,
                                  struct ibx_blockers *blockers);
/* Right before guest RAM is watched. -EOPNOTSUPP: devices of this VM write to it unseen. */
int ibx_destination_borrow_begin(struct destination *d, struct ibx_error *err);
/* Whether the journal says that the VM of this record, which was borrowed, has returned: to where.
 */
bool ibx_destination_has_returned(const struct destination *d, struct ibx_journal *record);
/* FILLING, at an interrupt: whether the VM has all of its pages, and so can stay, which it does. */
bool ibx_destination_borrow_stays(struct destination *d);
/* FILLING: whether the VM has returned, as the journal says; looked at now and then, or `now`. Ends
 * this side's part then, as if its guest had shut it down. */
bool ibx_destination_borrow_returned(struct destination *d, bool now, struct ibx_error *err);

/* ---------------------------------------------------------------- home.c */

struct destination_home {
    struct ibx_journal record; /* of the migration by which the VM was borrowed; id all zeros: of
                                  none */
    struct ibx_guest_ram ram;  /* its memory */
    struct ibx_page_map has;   /* of which these pages hold data */
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
 *   RESUMING | FILLING -> FAILED -> [*]
 *   RESUMING | FILLING | COMPLETE | SHUT_DOWN -> LEFT -> [*]
 *   RESUMING | FILLING | COMPLETE -> BROKEN -> [*]
 *
 * Before WAITING a lost link ends the migration here, as it does at the source. From WAITING on
 * the destination waits: the source makes it again. GIVEN_UP: the VM never ran here and will not;
 * from RESUMING only when QEMU reported so or got nothing of the end. ANSWERING: the same, and a
 * source that may have committed has to learn it. FAILED: the VM ran here, and its QEMU has ended.
 * BROKEN: pages here are not what they are at the source; the VM ran with them, and is paused.
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
    struct destination_home home;
    bool stays;           /* borrowed: it has all pages, and does not return */
    uint64_t returned_ns; /* borrowed: when to look next whether it has returned */
    struct destination_watchdog watchdog;

    struct ibx_migrate_status status;
    struct migration_reporter reporter;
    struct migration_signals signals;
    struct ibx_control_socket *socket;
    int lock_fd;
    unsigned interrupts; /* signals, and a request to cancel */
    enum destination_wish { WISH_UNKNOWN, WISH_PAUSED, WISH_RUNS } wish; /* by COMMIT or RESUME */
    bool undecided; /* recover: the VM is loaded and paused, and the source has not told yet */

    struct destination_digests {
        bool *sent;       /* a range, over this link; NULL: none */
        uint64_t left;    /* ranges that are not sent */
        uint64_t look_ns; /* when to look again for what has come */
    } digests;
    struct migration_silence silence;
    uint64_t messages;                      /* and page connections, from the source */
    uint64_t stall_count;                   /* of these and regions, before the commit */
    uint64_t stall_since_ns, stall_look_ns; /* since when it is the same; the last check */
    uint64_t busy_until_ns;                 /* of ibx_migration_busy_until() */
    unsigned load_looks;                    /* at whether QEMU has read the device state */
    uint64_t lost_ns, progress_ns, complete_ns;
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

/* ---------------------------------------------------------------- silence.c */

void ibx_destination_check_silence(struct destination *d);
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
static inline const char *destination_unconfirmed_end(const struct ibx_journal *record)
{
    return ibx_journal_has_returned(record) ? "the VM has returned, and only the confirmation of "
                                              "home is missing, which keeps its "
                                              "pages for it"
                                            : "the guest has shut the VM down here, and only the "
                                              "source's confirmation of that is "
                                              "missing";
}
#define DESTINATION_UNCONFIRMED                                                                    \
    "all pages are here, and only the source's confirmation is missing (if ib-migrate status "     \
    "there says done, ib-migrate recover there sends it)"

/* A page is not what it is at the source, as `err` says: pauses the VM, ends in BROKEN, and with
 * `tell` sends that to the source. Before the VM is this side's, gives up. Returns -EBADMSG. */
int ibx_destination_broken(struct destination *d, bool tell, struct ibx_error *err);
/* -EBADMSG, in BROKEN: pages came twice with different bytes. */
int ibx_destination_check_pages(struct destination *d, struct ibx_error *err);
/* The link is lost: it is closed as soon as the engine has stopped. */
void ibx_destination_unlink(struct destination *d, int code, const char *reason);
/* What QEMU reports; before the commit, and when the VM is lost, that ends the migration. */
int ibx_destination_check_qemu(struct destination *d, struct ibx_error *err);
/* An error of the link: before WAITING the end of the migration, else the beginning of a wait. */
int ibx_destination_link_trouble(struct destination *d, int code, struct ibx_error *err);
/* SIGINT, SIGTERM and the cancel command; a source that is away for longer than give_up_s. */
int ibx_destination_check_interrupts(struct destination *d, struct ibx_error *err);
int ibx_destination_check_patience(struct destination *d, struct ibx_error *err);
/* The engine has every page: writes that and goes to COMPLETE, or tries again later. */
int ibx_destination_complete(struct destination *d, struct ibx_error *err);
/* The VM ran here and does not any more, for the reason in `why`: nobody needs a page of it. */
int ibx_destination_end(struct destination *d, const char why[IBX_MIGRATE_STATUS],
                        const char *sentence, struct ibx_error *err);
/* In COMPLETE: whether nothing of this tool is left in QEMU; tries it when it is time for that. */
bool ibx_destination_has_let_go(struct destination *d);

/* ---------------------------------------------------------------- requests.c */

int ibx_destination_check_requests(struct destination *d, struct ibx_error *err);
/* Keeps places for the source of a recovered migration. */
void ibx_destination_expect_recorded(struct destination *d);
/* The control socket: before a source has come it is named by the process, then by the record,
 * which is locked. */
int ibx_destination_open_waiting(struct destination *d, struct ibx_error *err);
int ibx_destination_open_record(struct destination *d, struct ibx_error *err);

/* ---------------------------------------------------------------- destination.c, recover.c */

/* Until a final state; 0 in DONE. */
int ibx_destination_run(struct destination *d, struct ibx_error *err);
/* In ANSWERING: tells sources that ask, for a while, that the VM never ran here. */
void ibx_destination_answer(struct destination *d, const struct ibx_error *why);
/* Continues what a tool began that has ended, by its record, whose lock is held: COMPLETE when all
 * pages are here, FILLING when the VM runs, RESUMING as long as only QEMU knows. -ECANCELED: the VM
 * never ran here. -ESRCH: its QEMU has ended before it had all pages. */
int ibx_destination_recover(struct destination *d, struct ibx_error *err);

#endif
