/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The destination of a move, between destination.c (its states), destination_link.c (who knocks)
 * and destination_vm.c (QEMU, its memory and the fault engine). */
#ifndef IBX_MIGRATE_DESTINATION_DESTINATION_H
#define IBX_MIGRATE_DESTINATION_DESTINATION_H

#include "migrate/qemu/qemu.h"
#include "migrate/common/common.h"
#include "migrate/operator/control_socket.h"
#include "migrate/pages/pages.h"
#include "migrate/channel/channel.h"

/*
 *   LISTENING --> JOINING --> READY --> MAPPED --> WAITING --> RESUMING --> FILLING --> COMPLETE
 *    HELLO         JOINs       state     faults     LOADED       COMMIT       |            |
 *      |             |         to QEMU   served       |            |          |   CONFIRM  |
 *      |             |           |         |          |            |          |            v
 *      +-------------+-----------+---------+----------+            |          |          DONE
 *                    |                                             |          |
 *                    v             QEMU says that it failed        v          v
 *                GIVEN_UP <------------------------------------- (FAILED: the VM ran here and
 *                the VM never ran here                            is lost with its QEMU)
 *
 * COMPLETE: every page is here, on record and by QEMU's own count no more business of this tool: it
 * lets go of QEMU, which may end from now on, and only the source is to be told.
 *
 * Before WAITING a lost connection ends the move here, as it does at the source. From there on it
 * (`linked` is false) is waited for: the source makes it again.
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
    DESTINATION_DONE,
    DESTINATION_GIVEN_UP,
    DESTINATION_FAILED,
    DESTINATION_STATES
};

/* What a tool says that has only the source's word to wait for. */
#define DESTINATION_UNCONFIRMED                                                                    \
    "all pages are here, and only the source's confirmation is waited for (if ib-migrate status "  \
    "there says done, ib-migrate recover there gives it)"

#define DESTINATION_GUESTS 4u /* connections that only asked something, until they go */

struct destination {
    const struct ibx_receive_options *options;
    struct ibx_options transport;
    enum destination_state state;
    bool linked;
    struct ibx_migrate_status status;
    struct migration_reporter reporter;
    struct migration_signals signals;
    struct ibx_control_socket *talk;
    int lock_fd;
    struct ibx_acceptor *porch;

    /* QEMU and its memory */
    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    struct ibx_uffd uffd;                /* fd -1: none */
    json_t *capabilities;                /* to put back */
    bool registered;                     /* the ranges are, on uffd */
    bool minor;                          /* for minor faults too */
    void *aliases[IBX_GUEST_BLOCKS_MAX]; /* minor mode */
    _Atomic uint64_t *arrived;           /* minor mode: destination_arrived.c */
    size_t arrived_bytes;

    /* The move */
    struct ibx_migrate_hello hello;
    struct ibx_page_map map;
    struct ibx_migrate_map_end map_end;
    bool map_ended,
        taken_over; /* taken_over: from a tool that died; the engine is yet to be made */
    struct ibx_fault *engine;
    size_t buffer_bytes; /* of a page connection, for the engine */
    bool serving;        /* the engine has the page connections */
    bool stopping;       /* and gives them back, for want of a link */
    uint64_t discarded;  /* pages that the guest gave back before they came */
    uint64_t waiting;    /* faults that are not answered yet */
    uint64_t again_ns;   /* when to try again what failed at the end: the record, letting go */
    uint64_t
        let_go_by_ns; /* until when QEMU's descriptor, that needs no care any more, is seen to */

    /* The link */
    struct ibx_channel control;
    struct ibx_page_reader *sources[IBX_MIGRATE_LINKS_MAX];
    unsigned joined;
    struct ibx_connection_request resume; /* conn not NULL: waits for the engine to stop */
    struct ibx_channel guests[DESTINATION_GUESTS];
    uint64_t guest_since[DESTINATION_GUESTS];

    /* The device state */
    int stream;     /* into QEMU; -1 none */
    uint8_t *unfed; /* what QEMU has not taken yet; its end is kept until the commit */
    size_t unfed_from, unfed_sure, unfed_end, unfed_capacity; /* `sure`: surely before its EOF */
    uint64_t state_total;                                     /* bytes that came */
    bool state_ended, committed, stuck; /* stuck: QEMU takes no more at the moment */
    unsigned load_looks;                /* at whether QEMU has read it */

    uint64_t busy_until_ns; /* of ibx_migration_busy_until() */
    uint64_t lost_ns, progress_ns, complete_ns;
    struct migration_silence silence;
    uint64_t heard, regions;               /* messages and page connections; REGIONs */
    uint64_t early_count;                  /* of all these before the commit, ... */
    uint64_t early_at_ns, early_looked_ns; /* ... since when, and the last look at it */
    bool resumed, qemu_failed, confirmed, cancelled;
    bool answering; /* given up where the source may have committed, and without a link to say so */
    bool told;      /* that source has asked since, and was answered */
    bool aborted;   /* the source's own word, never a mere error of the network */
    bool ending;    /* QEMU was given some of what is held back until the commit */
    uint64_t monitor_ns;   /* when to look again for a lost monitor; 0: it was never lost */
    uint64_t inmigrate_ns; /* taken_over: when QEMU was first heard to wait for the state; or 0 */
    unsigned interrupts;
};

void ibx_destination_move(struct destination *d, enum destination_state to);
int ibx_destination_record(struct destination *d, enum ibx_journal_state state,
                           struct ibx_error *err);
/* The connection or one of its page connections is gone: everything of it is closed as soon as the
 * engine has stopped. */
void ibx_destination_unlink(struct destination *d, int code, const char *reason);

/* destination_again.c */

/* What a dead tool left, by its record, whose lock is held: all pages are there (COMPLETE), or the
 * VM runs in QEMU (FILLING), or that does not say yet whether it does (RESUMING, until its monitor
 * answers), or (-ECANCELED) it never ran. -ESRCH: its QEMU has ended before it had all pages. */
int ibx_destination_take_over(struct destination *d, struct ibx_error *err);

/* The VM runs here, or will. */
bool ibx_destination_ours(const struct destination *d);
bool ibx_destination_over(const struct destination *d);
/* destination.c: until the move is over here, or left to ib-migrate recover. */
int ibx_destination_run(struct destination *d, struct ibx_error *err);
/* After a move that was given up without a link: stays a while to say so to its source. */
void ibx_destination_answer(struct destination *d, const struct ibx_error *err);

/* destination_begin.c: with the move's id, which the source brings, there is a record, a lock and a
 * socket. */
int ibx_destination_open_record(struct destination *d, struct ibx_error *err);

/* destination_arrived.c */

/* Makes the file of pages that have come, for ranges as given to the engine; -EEXIST and others
 * with what is in the way. */
int ibx_destination_arrived_make(struct destination *d, struct ibx_error *err);
/* Finds that of the tool that died. -ESTALE: it is gone, or is not it. */
int ibx_destination_arrived_find(struct destination *d, struct ibx_error *err);
/* Nobody will ask for it any more: of this tool or of the one that died, if there is one. It stays
 * mapped. */
void ibx_destination_arrived_remove(const struct destination *d);
/* After the engine. */
void ibx_destination_arrived_end(struct destination *d);

/* destination_end.c */

/* The engine has put every page in its place: puts that on record and goes to COMPLETE, or tries
 * again when it is called later. */
int ibx_destination_complete(struct destination *d, struct ibx_error *err);
/* In COMPLETE: whether nothing of ours is left in QEMU; tries it when it is time for that. */
bool ibx_destination_has_let_go(struct destination *d);

/* destination_link.c */

/* Serves whoever knocked. */
int ibx_destination_link_serve(struct destination *d, struct ibx_error *err);
/* Connections that only asked. */
void ibx_destination_link_tend(struct destination *d);
void ibx_destination_link_close(struct destination *d);
/* Whether those that asked have taken their answers. */
bool ibx_destination_link_alone(const struct destination *d);
/* All page connections have joined and know all regions of the map. -EAGAIN: not yet. */
int ibx_destination_link_complete(struct destination *d, struct ibx_error *err);
/* The state as the source needs to know it. */
enum ibx_answer_state ibx_destination_standing(const struct destination *d);

/* destination_qemu.c */

/* Events of QEMU. An error: it failed, its monitor or the process is gone, or (-EPROTO) it ran
 * before the commit and was stopped. */
int ibx_destination_qemu_hear(struct destination *d, struct ibx_error *err);
/* By process id and start. */
bool ibx_destination_qemu_lives(const struct destination *d);
/* Goes on without its monitor, which is looked for by later calls of _hear. */
void ibx_destination_qemu_lose(struct destination *d, const char *why);
/* After ibx_destination_vm_loaded(): QEMU's main thread, which loads, answers only when it has
 * nothing left to load and no error was in it. */
int ibx_destination_qemu_has_loaded(struct destination *d, struct ibx_error *err);
/* The monitor, which must be that of this very process. -ETIMEDOUT: it does not answer. */
int ibx_destination_qemu_reach(struct destination *d, uint64_t deadline_ns, struct ibx_error *err);
/* The VM's status, once QEMU has noticed that its stream has ended. */
int ibx_destination_qemu_await(struct destination *d, char *status, size_t size,
                               struct ibx_error *err);

/* destination_silence.c */

/* Says when nothing comes that is awaited. */
void ibx_destination_mind_silence(struct destination *d);
/* -ETIMEDOUT: before all of the device state is here a source has stood still for too long. */
int ibx_destination_mind_source(struct destination *d, struct ibx_error *err);

/* destination_vm.c */

/* Makes the page map: of RAM that can be moved. */
int ibx_destination_vm_measure(struct destination *d, struct ibx_error *err);
/* Finds QEMU and its RAM. */
int ibx_destination_vm_find(struct destination *d, struct ibx_error *err);
/* For a tool that takes over: guest RAM as the record says it was, and the map of its pages. */
int ibx_destination_vm_recall(struct destination *d, struct ibx_error *err);
/* The same, and it must be there still, without the monitor. -ESTALE: it is not. */
int ibx_destination_vm_find_again(struct destination *d, struct ibx_error *err);
/* userfaultfd, punch, registration; then QEMU waits for the device state. */
int ibx_destination_vm_prepare(struct destination *d, struct ibx_error *err);
/* For a tool that takes over: the descriptor that QEMU still has. */
int ibx_destination_vm_take_over(struct destination *d, struct ibx_error *err);
/* Makes the engine, which holds all faults. */
int ibx_destination_vm_engine(struct destination *d, struct ibx_error *err);
/* The map is there and all links know it: pages are served, or again, by the new links. */
int ibx_destination_vm_serve(struct destination *d, struct ibx_error *err);
/* Writes to QEMU what it takes, but for the end before the commit (state_tail.h). */
int ibx_destination_vm_feed(struct destination *d, struct ibx_error *err);
/* Appends device state. */
int ibx_destination_vm_state(struct destination *d, const uint8_t *bytes, size_t length,
                             struct ibx_error *err);
/* All of it has come: -EPROTO when it does not end as it must. */
int ibx_destination_vm_state_end(struct destination *d, struct ibx_error *err);
/* QEMU has read everything but the end. */
bool ibx_destination_vm_loaded(const struct destination *d);
/* Every page is there: the monitor is QEMU's other users'. */
void ibx_destination_vm_leave_monitor(struct destination *d);
/* Every page is there: takes our hands off QEMU's memory and the userfaultfd out of QEMU. After a
 * failure it can be called again; while `registered`, the VM may wait where it touches memory for
 * the first time. 0 also when there is nothing (any more) to let go. */
int ibx_destination_vm_let_go(struct destination *d, struct ibx_error *err);
/* The VM will not run here: nothing of ours stays in QEMU, whose incoming migration fails. */
void ibx_destination_vm_give_up(struct destination *d);
void ibx_destination_vm_fini(struct destination *d);
/* Figures of the engine. */
void ibx_destination_vm_stats(struct destination *d);

#endif
