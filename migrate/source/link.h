/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The control connection and the page connections of the source. Part of source.h. */
#ifndef IBX_MIGRATE_SOURCE_LINK_H
#define IBX_MIGRATE_SOURCE_LINK_H

#include "common/state_machine.h"
#include "migrate/channel/channel.h"
#include "migrate/migrate.h"
#include "migrate/pages/pages.h"
#include "migrate/source/vm.h"

/*
 * state machine: source link
 *   [*] -> NONE -> OPEN -> EXPOSING -> EXPOSED -> MAPPED    MAPPED: the page map is sent
 *   EXPOSED -> EXPOSING                                     pages that have got data since
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
    /* Given to ibx_source_link_init(), and not changed here. */
    const struct ibx_record *record;
    const struct ibx_options *transport;
    const struct source_vm *vm;
    unsigned wished; /* page connections; 0: any number */
    bool verify;     /* pages are to be verified, in a new migration */

    struct ibx_channel control;
    bool disks_differ;                  /* on purpose */
    bool warm;                          /* pages are to be fetched before the stop */
    uint8_t borrow;                     /* enum ibx_migrate_borrow */
    json_t *compared;                   /* ibx_preflight_compared(): what both sides compare */
    struct ibx_migrate_hello hello;     /* the last one, */
    struct ibx_migrate_answer answer;   /* and its answer */
    struct ibx_page_connections *begun; /* page connections, while the destination is asked */
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
/* READY has come: ends the padding that opens TCP's windows over a long wire. */
void ibx_source_link_quiet(struct source_link *link);
/* 0: all is exposed and told to the destination; -EAGAIN: not yet. */
int ibx_source_link_exposed(struct source_link *link, struct ibx_error *err);
int ibx_source_link_send_map(struct source_link *link, struct ibx_error *err);
/* The pages that loading devices needs. Between hosts they are sent right after the map. */
uint32_t ibx_source_link_early(const struct source_link *link); /* a bit for each that has data */
/* Whether this VM has such pages: it is a PC, in pages of IBX_EARLY_PAGE bytes. */
bool ibx_source_link_has_early(const struct source_link *link);
int ibx_source_link_send_early(struct source_link *link, uint32_t which, struct ibx_error *err);
/* Sends COMMIT, or a message that has no field or only the epoch. */
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
/* The same without page connections, to tell that the migration is broken: OPEN. */
int ibx_source_link_rejoin(struct source_link *link, enum ibx_answer_state *state,
                           struct ibx_error *err);
/* Nobody needs a page any more: page connections are closed while CONFIRMED is awaited. */
void ibx_source_link_retire(struct source_link *link);
/* Waits until they are closed. */
void ibx_source_link_retired(struct source_link *link);
void ibx_source_link_close(struct source_link *link);
/* Tells a destination that may wait, over a connection of its own, that the VM stays here. The
 * caller has raised the epoch of the record. -EALREADY: the destination has given up; -EAGAIN and
 * others: it could not be told, which has no consequence before the commit. */
int ibx_source_link_disown(struct source_link *link, const char *why);

#endif
