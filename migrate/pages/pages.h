/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page connections: over each, the destination READs pages of guest RAM that the source exposes.
 * The source's side exports, the destination's is a page source of the fault engine.
 */
#ifndef IBX_MIGRATE_PAGES_PAGES_H
#define IBX_MIGRATE_PAGES_PAGES_H

#include "migrate/pages/page_map.h"
#include "userfaultfd/fault.h"

/* How many, one of them for faults only, this machine has processors for. */
unsigned ibx_page_links_default(void);

/* --------------------------------------------------------------------- source */

/*
 * All page connections of the source and their threads. Guest RAM is mapped here once, and exposed
 * over every connection with remote READ only.
 *
 * Where registration costs nothing (tcp, shm) whole blocks are exposed at once. Elsewhere it pins
 * memory, and pins holes as zero pages, which then are pages like others and go over the wire: so
 * only those pieces (of IBX_EXPORT_PIECE bytes) are registered that hold data, as regions of up to
 * IBX_EXPORT_STRETCH bytes, in parallel by one thread a connection, while the VM runs; what came to
 * hold data since then follows by another ibx_page_server_expose(), when the VM has stopped. The
 * connections have a domain (transport.h) of their own: where caps->shares, each region is
 * registered once and good on all of them.
 *
 * A thread a connection does the registering and then keeps the connection going (tcp, shm: it is
 * the one that serves READs); on RDMA it sleeps. All calls are for one thread.
 *
 * A READ of a hole would allocate a page of the source's file: the destination asks for none.
 */
struct ibx_page_server;

#define IBX_EXPORT_PIECE   (2ull << 20)
#define IBX_EXPORT_STRETCH (64ull << 20)

struct ibx_page_server_config {
    const struct ibx_guest_ram *ram; /* kept by the caller until close */
    const char *uri;                 /* of the destination */
    const struct ibx_options *options;
    struct ibx_migrate_join join; /* `link` is set for each */
    unsigned links;
};

/* Maps the RAM, connects, JOINs, and starts the threads. */
int ibx_page_server_open(const struct ibx_page_server_config *config,
                         struct ibx_page_server **pages, struct ibx_error *err);
/* Exposes the pages that hold data by `map` and are not exposed yet: asynchronously; -EAGAIN while
 * an earlier call is under way. */
int ibx_page_server_expose(struct ibx_page_server *pages, const struct ibx_page_map *map,
                           struct ibx_error *err);
/* 0: all that was asked for is exposed and told, `regions` a connection; -EAGAIN: not yet; else the
 * first connection's failure (RLIMIT_MEMLOCK and its remedy, for instance). */
int ibx_page_server_done(struct ibx_page_server *pages, uint32_t *regions, struct ibx_error *err);
/* Readable when ibx_page_server_done() or _failed() has changed its answer; both, and _expose(),
 * make it unreadable, before they look. */
int ibx_page_server_fd(const struct ibx_page_server *pages);
/* Whether a connection has ended, and why: 0 while all live. Also when the destination closed it,
 * as it does when it has every page. */
int ibx_page_server_failed(struct ibx_page_server *pages, struct ibx_error *err);
/* The path of the first connection, valid until close. */
const struct ibx_path *ibx_page_server_path(const struct ibx_page_server *pages);
/* CPU time of the threads since the last REGION was sent, nanoseconds. */
uint64_t ibx_page_server_cpu_ns(struct ibx_page_server *pages);
/* Ends the threads and connections and unmaps the RAM. Accepts NULL. */
void ibx_page_server_close(struct ibx_page_server *pages);

/* --------------------------------------------------------------- destination */

/*
 * One page connection at the destination. It belongs to one thread at a time: whoever accepted it
 * until the engine is created, then the engine's worker.
 */
struct ibx_page_reader;

/* Takes over (if it succeeds) an established connection whose first message was JOIN (decoded by
 * the caller and released). `blocks`: as in HELLO; `first_page` of each range in the engine is that
 * of the map, `source_offset` the sum of the sizes of the blocks before. */
int ibx_page_reader_create(struct ibx_conn *conn, const struct ibx_migrate_block *blocks,
                           unsigned block_count, struct ibx_page_reader **source,
                           struct ibx_error *err);
/* Takes in what has arrived, without blocking: how many regions there are so far, or an error: the
 * connection has ended, or is of no more use since the source said what it may not (-EPROTO). Only
 * before the engine has it (-EBUSY). */
int ibx_page_reader_regions(struct ibx_page_reader *source, struct ibx_error *err);
/* For poll(2) while waiting for regions: ibx_arm(), then this fd. */
struct ibx_conn *ibx_page_reader_conn(struct ibx_page_reader *source);
/* Makes and registers the engine's buffer (`buffer_bytes` of ibx_fault_buffer_bytes()) and fills in
 * the engine's description, with which ibx_fault_create() may be called, but nothing served yet. */
int ibx_page_reader_serve(struct ibx_page_reader *source, size_t buffer_bytes,
                          struct ibx_fault_source *as, struct ibx_error *err);
/* When all regions are there: the same, unless that was done before, and after it the engine may
 * serve, or resume with `as`. -EPROTO: regions overlap. */
int ibx_page_reader_arm(struct ibx_page_reader *source, size_t buffer_bytes,
                        struct ibx_fault_source *as, struct ibx_error *err);
/* In minor mode: the alias of each block (or NULL), registered with this connection as the local
 * side, or shared with `other` (or NULL), which has the same ones already. Before the engine uses
 * either. Kept mapped until destroy. */
int ibx_page_reader_aliases(struct ibx_page_reader *source, const struct ibx_page_reader *other,
                            void *const *aliases, struct ibx_error *err);
/* Armed: whether every page that holds data is in a region. To be asked before the commit, as a
 * page that is not would be missing for ever. -EPROTO names the first that is not. */
int ibx_page_reader_covers(const struct ibx_page_reader *source, const struct ibx_page_map *map,
                           struct ibx_error *err);
/* Armed: the source's memory with these bytes, for who READs them without the engine while that
 * does not use the source. -ERANGE: not in one region. */
int ibx_page_reader_remote(const struct ibx_page_reader *source, uint64_t offset, size_t length,
                           struct ibx_remote *remote);
/* Why it ended; "" while it lives. Safe from any thread after the engine has stopped. */
const char *ibx_page_reader_reason(const struct ibx_page_reader *source);
const struct ibx_path *ibx_page_reader_path(const struct ibx_page_reader *source);
/* Closes the connection. The engine must have stopped using it. Accepts NULL. */
void ibx_page_reader_destroy(struct ibx_page_reader *source);

#endif
