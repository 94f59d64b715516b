/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Post-copy migration of a running VM: the header of migrate/ for tools (tools/ib-migrate).
 *
 * Each side is one call that runs until the migration ends there: ibx_migrate_send() in source/,
 * ibx_migrate_receive() in destination/. It reports through an observer. Another process asks and
 * controls it through its control socket (operator/). source.h and destination.h have the states,
 * docs/protocol.md has the messages, journal/ the records that survive a crash.
 *
 * All calls are for one thread. Each returns 0 or a negative errno with a message in `err`.
 */
#ifndef IBX_MIGRATE_MIGRATE_H
#define IBX_MIGRATE_MIGRATE_H

#include "migrate/journal/journal.h"
#include "migrate/preflight/preflight.h"
#include "transport/transport.h"

#include <jansson.h>

/* The phases of both sides, in order. */
enum ibx_migrate_phase {
    IBX_PHASE_WAITING,      /* the destination waits for a source, a source for the answer */
    IBX_PHASE_PREPARING,    /* checks, connections, registration; the VM runs at the source */
    IBX_PHASE_WARMING,      /* pages are fetched, and the VM runs at the source */
    IBX_PHASE_SWITCHING,    /* the VM is stopped; the page map and the device state are sent */
    IBX_PHASE_FILLING,      /* the VM runs at the destination, pages follow */
    IBX_PHASE_RECONNECTING, /* after the commit: the connection is lost and is being made again */
    IBX_PHASE_DONE,         /* complete and confirmed */
    IBX_PHASE_ENDED,  /* the guest shut down at the destination; a borrowed VM: it has returned */
    IBX_PHASE_FAILED, /* see `message` */
};

/* A snapshot, for a progress bar, `status` and JSON lines. */
struct ibx_migrate_status {
    bool source;
    enum ibx_migrate_phase phase;
    struct ibx_record record;
    char path[192];              /* of the page connections: "verbs mlx5_0 port 1 ..." */
    char message[IBX_ERROR_MAX]; /* why it is BROKEN or FAILED, or what is overdue; else "" */
    uint64_t began_ns, now_ns;   /* CLOCK_MONOTONIC */
    uint64_t ram_bytes;
    uint64_t pages, present, zero_pages; /* zero: known to be, never fetched */
    uint64_t bytes;                      /* of pages on the wire */
    uint64_t bytes_per_second;           /* lately */
    uint64_t faults, faults_per_second;
    uint64_t fault_p50_ns, fault_p99_ns, fault_max_ns, fault_sum_ns;
    uint64_t max_bandwidth; /* bytes per second; 0 none */
    uint64_t silent_ns;     /* how long an awaited message is overdue; 0 until that is long */
    unsigned reconnects;
    /* Durations in nanoseconds; 0 until they are known. */
    uint64_t downtime_ns;   /* from STOP to RESUME as the source sees it; 0 also if the VM was
                             * paused before, or is paused at the destination */
    uint64_t map_ns;        /* part of it: finding and sending the map, exposing the last pages */
    uint64_t state_ns;      /* part of it: the device state, until all but its end was taken */
    uint64_t commit_ns;     /* part of it: the commit and the resume */
    uint64_t register_ns;   /* exposing RAM before the stop */
    uint64_t filled_ns;     /* at the destination: from the start to the last page */
    uint64_t total_ns;      /* from the start to the confirmation */
    uint64_t source_cpu_ns; /* of the source's page threads while pages were fetched */
    uint64_t state_bytes;
    /* --warm: passes through guest RAM before the stop; bytes fetched in them; pages fetched in
     * them that are still up to date at the stop. */
    uint64_t warm_rounds, warm_bytes, warm_pages;
};

struct ibx_migrate_observer {
    /* At least every 200 ms, and at once when the phase changes. May be NULL. */
    void (*status)(void *context, const struct ibx_migrate_status *status);
    /* One line for a person that is no error: a reconnection, a warning. May be NULL. */
    void (*notify)(void *context, const char *line);
    /* Called when a signal ends the source while it waits for an answer and has changed nothing
     * yet. Called by a thread of its own; when it returns, the process ends by _exit(2). May be
     * NULL. */
    void (*leaving)(void *context, const struct ibx_migrate_status *last, const char *why);
    void *context;
};

struct ibx_receive_options {
    const char *qmp;     /* QEMU's monitor */
    const char *listen;  /* URI */
    const char *libvirt; /* NULL, or the path of `virsh migrate --migrateuri unix://PATH`: libvirt
                            starts QEMU, its migration and the VM */
    const char *folder;  /* of records, from ibx_journal_folder() */
    struct ibx_options transport;
    uint64_t max_bandwidth; /* bytes per second for all pages but faulted ones; 0: no limit */
    unsigned give_up_s;     /* give up when the source has been away for so long; 0: never */
    bool home;              /* for a VM that was borrowed from here and returns */
    bool minor;             /* READ in place and CONTINUE instead of COPY */
    bool paused;            /* the VM does not run here until somebody continues it */
    bool stand_still;       /* the VM runs here only when all of its pages are here */
    bool no_verify; /* pages are compared only if the source wants it; with a record: never */
    struct ibx_migrate_observer observer;
};

struct ibx_send_options {
    const char *qmp;
    const char *uri;
    const char *libvirt; /* as above */
    const char *folder;
    struct ibx_options transport;
    unsigned links; /* page connections; 0: ibx_page_links_default() of both ends, the lesser */
    unsigned give_up_s;
    bool quit;         /* ends the source QEMU when all is confirmed */
    bool remove;       /* ... and removes the files of guest RAM */
    bool no_verify;    /* pages are compared only if the destination wants it */
    bool disks_differ; /* the operator says that different disks are intended: no blocker */
    bool stand_still;  /* as above; either side can ask for it */
    bool warm;         /* pages are fetched before the VM stops, and again when they are written */
    unsigned warm_rounds, warm_seconds; /* at most; 0: as many as suit */
    enum ibx_migrate_borrow borrow;     /* the VM is lent; its memory here is kept for its return */
    const struct ibx_record *returns;   /* to return a borrowed VM: the destination's record of its
                                           borrowing, on this host; otherwise NULL */
    struct ibx_migrate_observer observer;
};

/*
 * Runs one side of a migration. With a `record` it continues a migration whose tool has ended: the
 * destination takes QEMU's userfaultfd again and waits for the source; the source connects again;
 * options that are NULL or 0 come from the record.
 *
 * 0: complete and confirmed, or the record in the last status is ENDED. Otherwise that record says
 * where the VM is:
 *
 * - -ECANCELED: stopped before the commit, by request or signal; the VM stays at the source.
 * - -EPERM: the VM cannot be migrated; the message has all blockers, and nothing was changed.
 * - -EBADMSG: the VM's pages at the destination are not those of the source; it is paused there.
 * - others before the commit: the VM stays at the source.
 * - others after the commit, only with give_up_s or a second signal: the VM belongs to the
 *   destination, and `ib-migrate recover` continues.
 * - with a record also -EALREADY: the migration has ended; -EBUSY: another tool works on it;
 *   -ESRCH: its QEMU has ended.
 */
int ibx_migrate_receive(const struct ibx_receive_options *options, const struct ibx_record *record,
                        struct ibx_migrate_status *last, struct ibx_error *err);
int ibx_migrate_send(const struct ibx_send_options *options, const struct ibx_record *record,
                     struct ibx_migrate_status *last, struct ibx_error *err);

/* ---------------------------------------------------------------- operator/queries.c */

/* Asks the destination of this (source's) record for its state. -EPROTOTYPE: an ib-migrate that has
 * the key runs there, but its version cannot answer. -ENODATA: one closed the connection without an
 * answer, because it is just ending or is of an earlier version. In both cases the VM may run
 * there. -EHOSTUNREACH and others: no answer. */
int ibx_migrate_query(const struct ibx_record *record, const struct ibx_options *transport,
                      struct ibx_migrate_answer *answer, struct ibx_error *err);
/* Tells the destination that this (source's) record is DONE. 0: the destination knows it now.
 * -ENOENT: the tool there knows nothing of this migration; others: no tool answers. */
int ibx_migrate_confirm(const struct ibx_record *record, const struct ibx_options *transport,
                        struct ibx_error *err);
/* For a (source's) record that is DONE and whose tool died before it had ended its QEMU's
 * migration: ends that migration, which is held open (common/return_path.h), and restores QEMU's
 * settings. 0 also if there is nothing to do. */
int ibx_migrate_let_go(const struct ibx_record *record, struct ibx_error *err);
/* Ends the QEMU of this (source's) record, which is DONE; 0 also when it has ended. -ESRCH: its
 * monitor belongs to another process. */
int ibx_migrate_quit(const struct ibx_record *record, struct ibx_error *err);
/* Continues the VM at the source from the moment it was stopped. The caller must have asked the
 * operator, since what the VM did at the destination is lost.
 * -EBUSY: the destination answers that the VM runs there, or the record has changed. -EINVAL: the
 * migration has ended, or the record is not the source's. */
int ibx_migrate_rollback(const char *folder, struct ibx_record *record,
                         const struct ibx_options *transport, struct ibx_error *err);
/* For so long the watchdog of a tool that has ended tries to reach QEMU and to continue the VM. */
#define IBX_MIGRATE_STAY_MS 60000u
/* For a (source's) record whose tool and watchdog have ended: if its VM has certainly never left,
 * as QEMU shows, ends what is left of the migration as the watchdog would have done, and the record
 * is KEPT. `*stays`: whether that is so; otherwise nothing was changed. An error: what is left
 * could not be ended. */
int ibx_migrate_stays(const char *folder, struct ibx_record *record, bool *stays,
                      struct ibx_error *err);
/* Whether the QEMU of a (source's) record leaves the VM's memory out of what it saves
 * (x-ignore-shared). An error: it does not say so within a second; it may be stopped, or another
 * client has its monitor. */
int ibx_migrate_leaves_out_ram(const struct ibx_record *record, bool *leaves);
/* For a (source's) record beside which a rollback has noted that it would continue the VM, and that
 * does not say that it did: finds out whether it did. If so, the record is ROLLED_BACK, with QEMU's
 * status here in vm_status, and `*back` is set. So it is, too, if QEMU has ended since and had run
 * the VM before: its memory may have changed. An error: that could not be found out or recorded. */
int ibx_migrate_was_taken_back(const char *folder, struct ibx_record *record, bool *back,
                               struct ibx_error *err);
/* For a (source's) record that has been rolled back, or whose VM has stayed: tells its destination
 * that the VM for which it waits does not come, or that it must pause the VM that it has. `*there`:
 * the state that it answered with. -EBUSY: it could not pause the VM; -EPROTO: it knows of none;
 * others: no tool answers. */
int ibx_migrate_disown(const struct ibx_record *record, const struct ibx_options *transport,
                       enum ibx_answer_state *there, struct ibx_error *err);
/* The same, when a tool may have told it before: writes the record anew. */
int ibx_migrate_disown_again(const char *folder, struct ibx_record *record,
                             const struct ibx_options *transport, enum ibx_answer_state *there,
                             struct ibx_error *err);
struct ibx_check_options {
    const char *qmp;
    bool source;     /* of a VM that is to be sent; otherwise of a QEMU that is to receive one */
    const char *uri; /* of the destination that waits there, or NULL: it is not asked */
    const struct ibx_options *transport;
    unsigned links;     /* as those of a source */
    bool disks_differ;  /* likewise */
    const char *folder; /* of the records, in which a destination's side looks; NULL: it does not */
};

/* Whether the VM can be migrated: finds the blockers of this side, with a URI also those of the
 * destination, and whether the memory for `links` page connections may be locked. Changes nothing.
 * blockers->managed: libvirt has had the destination's QEMU listen, and the tool
 * there accepts that. After a failure `blockers` has those found until then: if only the
 * destination could not be asked, all of this side. */
int ibx_migrate_check(const struct ibx_check_options *options, struct ibx_blockers *blockers,
                      struct ibx_error *err);

/* ---------------------------------------------------------------- operator/control_client.c */

/* The control socket of a receiver to which no source has come yet: FOLDER/PID.waiting. */
void ibx_control_socket_waiting_path(const char *folder, pid_t pid, char *path, size_t size);
/* Calls `each` with the path of each such socket in the folder; those of processes that have ended
 * are removed. -EACCES and others from opening the folder. */
int ibx_control_socket_waiting(const char *folder,
                               void (*each)(void *context, const char *path, pid_t pid),
                               void *context, struct ibx_error *err);
/* Sends one request to a control socket and returns the answer, a new reference. `request` is
 * consumed. -ECONNREFUSED, -ENOENT: no tool works on that migration; -EREMOTEIO, with the tool's
 * message: it refused; -ETIMEDOUT, at once if the tool's process is stopped; -ECONNRESET, -EPROTO.
 */
int ibx_control_socket_ask(const char *path, json_t *request, json_t **answer, uint64_t deadline_ns,
                           struct ibx_error *err);

/* ---------------------------------------------------------------- operator/status.c */

const char *ibx_migrate_phase_name(enum ibx_migrate_phase phase);
/* The objects of `status`, --json lines and summaries. Stable, documented in ib-migrate(1). The
 * caller owns the reference. NULL: no memory. */
json_t *ibx_migrate_status_json(const struct ibx_migrate_status *status);
json_t *ibx_migrate_record_json(const struct ibx_record *record);
/* Decodes what ibx_migrate_status_json() made, perhaps in another process; leaves the record alone.
 * -EPROTO: it is malformed. */
int ibx_migrate_status_take(const json_t *json, struct ibx_migrate_status *status,
                            struct ibx_error *err);

#endif
