/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A move of a running VM: what the command ib-migrate calls. Each of the two sides is one call that
 * runs until the end; everything that happens meanwhile is told through `tell`, and a running move
 * is looked at and influenced through its socket (migrate/operator/control_socket.h) by another
 * process.
 *
 * docs/architecture.md has the states of both sides, docs/protocol.md the messages.
 */
#ifndef IBX_MIGRATE_OPERATOR_MOVE_H
#define IBX_MIGRATE_OPERATOR_MOVE_H

#include "migrate/journal/journal.h"
#include "migrate/preflight/blockers.h"
#include "transport/transport.h"

/* Both sides' phases, in their order. */
enum ibx_migrate_phase {
    IBX_PHASE_WAITING,   /* destination: for a source. source: for the destination's answer */
    IBX_PHASE_PREPARING, /* checks, connections, registration; the VM runs at the source */
    IBX_PHASE_SWITCHING, /* the VM stands still: map, device state */
    IBX_PHASE_FILLING,   /* it runs at the destination, pages follow */
    IBX_PHASE_BROKEN,    /* the same, but the connection is lost: being made again */
    IBX_PHASE_DONE,      /* complete and confirmed */
    IBX_PHASE_FAILED,    /* see `sentence` */
};

/* A snapshot, for a progress bar, `status` and JSON lines. */
struct ibx_migrate_status {
    bool source;
    enum ibx_migrate_phase phase;
    struct ibx_journal record;
    char path[192];               /* of the page connections: "verbs mlx5_0 port 1 ..." */
    char sentence[IBX_ERROR_MAX]; /* why it is BROKEN or FAILED; else "" */
    uint64_t began_ns, now_ns;    /* CLOCK_MONOTONIC */
    uint64_t ram_bytes;
    uint64_t pages, present, zero_pages; /* zero: known to be, never fetched */
    uint64_t bytes;                      /* of pages on the wire */
    uint64_t bytes_per_second;           /* lately */
    uint64_t faults, faults_per_second;
    uint64_t fault_p50_ns, fault_p99_ns, fault_max_ns, fault_sum_ns;
    uint64_t max_bandwidth; /* bytes a second; 0 none */
    uint64_t silent_ns;     /* that nothing has come which is awaited, once that is long; else 0 */
    unsigned reconnects;
    /* When they are known, else 0. Durations in nanoseconds. */
    uint64_t downtime_ns;   /* the VM's, from its STOP to its RESUME as the source sees it */
    uint64_t map_ns;        /* of it: finding and sending the map, exposing what was left */
    uint64_t state_ns;      /* of it: the device state, until all but its end was taken */
    uint64_t commit_ns;     /* of it: the commit and the resume */
    uint64_t register_ns;   /* exposing RAM before the stop */
    uint64_t total_ns;      /* from the start to the confirmation */
    uint64_t source_cpu_ns; /* of the source's page threads while pages were fetched */
    uint64_t state_bytes;
};

struct ibx_migrate_tell {
    /* At least every 200 ms, and at once when the phase changes. May be NULL. */
    void (*status)(void *context, const struct ibx_migrate_status *status);
    /* One line for a person that is no error: a reconnection, a warning. May be NULL. */
    void (*say)(void *context, const char *line);
    void *context;
};

struct ibx_receive_options {
    const char *qmp;    /* QEMU's monitor */
    const char *listen; /* URI */
    const char *folder; /* of records, from ibx_journal_folder() */
    struct ibx_options transport;
    uint64_t max_bandwidth; /* bytes a second of what is not urgent; 0: no limit */
    unsigned give_up_s;     /* end a move whose source is away for so long; 0: never */
    bool minor;             /* READ in place and CONTINUE instead of COPY */
    struct ibx_migrate_tell tell;
};

struct ibx_send_options {
    const char *qmp;
    const char *uri;
    const char *folder;
    struct ibx_options transport;
    unsigned links; /* page connections; 0: ibx_page_links_default() of both ends, the lesser */
    unsigned give_up_s;
    bool quit; /* ends the source QEMU when all is confirmed */
    struct ibx_migrate_tell tell;
};

/*
 * 0: complete and confirmed. Else the sentence is in `err`, and the VM is where the last status'
 * record says:
 *   -ECANCELED  stopped before the commit, by request or signal: it goes on at the source
 *   -EPERM      it cannot be moved, all reasons are in the sentence; nothing was touched
 *   others      the same, before the commit; after it only with give_up_s or a second signal, and
 *               then `ib-migrate recover` goes on
 */
int ibx_migrate_receive(const struct ibx_receive_options *options, struct ibx_migrate_status *last,
                        struct ibx_error *err);
int ibx_migrate_send(const struct ibx_send_options *options, struct ibx_migrate_status *last,
                     struct ibx_error *err);

/* Goes on with a move whose tool has died, as its record says: the destination takes the fault
 * descriptor back from QEMU and waits for the source, the source connects again. Options that are
 * NULL or 0 come from the record. */
int ibx_migrate_receive_again(const struct ibx_receive_options *options,
                              const struct ibx_journal *record, struct ibx_migrate_status *last,
                              struct ibx_error *err);
int ibx_migrate_send_again(const struct ibx_send_options *options, const struct ibx_journal *record,
                           struct ibx_migrate_status *last, struct ibx_error *err);

/* Asks the destination how far it is with the move of this (source's) record; -EHOSTUNREACH and the
 * like when it does not answer. */
int ibx_migrate_query(const struct ibx_journal *record, const struct ibx_options *transport,
                      struct ibx_migrate_answer *answer, struct ibx_error *err);
/* Tells it that this (source's) record is DONE, which it may not have heard: 0 when it has.
 * -ENOENT: who answers knows nothing of this move; others when nobody does. */
int ibx_migrate_confirm(const struct ibx_journal *record, const struct ibx_options *transport,
                        struct ibx_error *err);
/* Ends the QEMU of this (source's) record, which is DONE; 0 also when it has ended. -ESRCH: its
 * monitor is another one's. */
int ibx_migrate_quit(const struct ibx_journal *record, struct ibx_error *err);
/* Restarts the source's VM from its stop. The caller has asked the operator. -EBUSY: the
 * destination answers that the VM runs there. */
int ibx_migrate_rollback(const char *folder, struct ibx_journal *record,
                         const struct ibx_options *transport, struct ibx_error *err);

/* Whether the VM can be moved: refusals of this side, and with a URI of the destination waiting
 * there, and whether so much memory may be locked as `links` page connections (as in
 * ibx_send_options) over that fabric pin. Touches nothing. */
int ibx_migrate_check(const char *qmp, bool source, const char *uri,
                      const struct ibx_options *transport, unsigned links,
                      struct ibx_blockers *refusals, struct ibx_error *err);

const char *ibx_migrate_phase_name(enum ibx_migrate_phase phase);

#endif
