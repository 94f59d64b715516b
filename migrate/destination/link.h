/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The control connection, page connections and query connections of the destination. Part of
 * destination.h. */
#ifndef IBX_MIGRATE_DESTINATION_LINK_H
#define IBX_MIGRATE_DESTINATION_LINK_H

#include "common/state_machine.h"
#include "migrate/channel/channel.h"
#include "migrate/migrate.h"
#include "migrate/pages/pages.h"

#include <poll.h>

/*
 * state machine: destination link
 *   [*] -> NONE -> OPEN -> MAPPED -> SERVING     MAPPED: the page map is here
 *   SERVING -> MAPPED                            the engine was destroyed
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
/* What an answer to a HELLO says beside reasons and notes. */
struct link_terms {
    bool accepted;
    enum ibx_answer_state state;
    unsigned links; /* page connections */
    bool verify;    /* pages are verified */
    bool warm;      /* they are fetched before the stop */
};
/* Takes over the connection of a HELLO and accepts it, on terms that say so. */
int ibx_destination_link_accept(struct destination_link *link, struct ibx_conn *conn,
                                const struct link_terms *terms, const struct ibx_blockers *notes);
/* Answers a HELLO over a query connection and takes that over. */
void ibx_destination_link_answer(struct destination_link *link, struct ibx_conn *conn,
                                 const struct link_terms *terms,
                                 const struct ibx_blockers *blockers);
void ibx_destination_link_refuse(struct destination_link *link, struct ibx_conn *conn,
                                 enum ibx_answer_state state, const char *why);
/* Closes query connections that have ended, or that are 5 s old. */
void ibx_destination_link_check_queries(struct destination_link *link);
bool ibx_destination_link_has_queries(const struct destination_link *link);
/* Takes over page connection `at` of a JOIN, which the caller has checked. Closes it on failure. */
int ibx_destination_link_join(struct destination_link *link, struct ibx_conn *conn, unsigned at,
                              struct ibx_error *err);
/* All page connections have joined and have all regions of the map. -EAGAIN: not yet. */
int ibx_destination_link_complete(struct destination_link *link, struct ibx_error *err);
/* Whether all page connections have joined, and registering memory pins nothing on any of them. */
bool ibx_destination_link_registers_free(const struct destination_link *link);
/* As ibx_destination_link_complete(), before there is a map: all have at least this many regions.
 */
int ibx_destination_link_check_regions(struct destination_link *link, uint32_t regions,
                                       struct ibx_error *err);
/* The engine is destroyed: page connections are this thread's again. */
void ibx_destination_link_engine_ended(struct destination_link *link);
/* The link is lost. In SERVING page connections stay until the engine has stopped. */
void ibx_destination_link_lose(struct destination_link *link);
/* Closes the link. In SERVING it does nothing, because the engine uses the page connections. */
void ibx_destination_link_close(struct destination_link *link);
/* Fills at most LINK_FDS entries and returns how many; `at_once`: something is there
 * already. `readers`: no engine reads from the page connections. */
unsigned ibx_destination_link_poll_fds(struct destination_link *link, bool readers,
                                       struct pollfd *fds, bool *at_once);
/* Waits until the peers have closed, or until then, and closes everything, with the acceptor. */
void ibx_destination_link_fini(struct destination_link *link, uint64_t linger_until_ns);

#endif
