/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page connections: over each, the destination READs pages of guest RAM that the source exposes.
 *
 *   page_map.c     which pages of a VM hold data and which are known to be zero
 *   page_server.c  the source: registers guest RAM and tells the destination where it is
 *   page_reader.c  the destination: a page reader of the fault engine (userfaultfd/)
 */
#ifndef IBX_MIGRATE_PAGES_PAGES_H
#define IBX_MIGRATE_PAGES_PAGES_H

#include "migrate/channel/channel.h"
#include "userfaultfd/fault.h"

/* ------------------------------------------------------------ page map */

/* Pages are numbered through all blocks in their order. One bit a page, and a compact form of it
 * for the wire (docs/protocol.md, "The page map"). */
#define IBX_PAGE_MAP_SEGMENT 65536u /* pages described by one piece on the wire */

struct ibx_page_map {
    uint64_t pages;
    uint64_t data_pages;
    uint64_t *bits; /* 1: data; lowest first */
    uint64_t next;  /* ibx_page_map_take: pages described so far */
    unsigned block_count;
    struct {
        uint64_t first; /* page of the block's beginning */
        uint64_t pages;
        uint64_t page_size; /* bytes */
    } blocks[IBX_GUEST_BLOCKS_MAX];
};

/* All pages zero. -ENOMEM, -E2BIG (more than 2^40 pages), -EINVAL. Ended by fini. */
int ibx_page_map_init(struct ibx_page_map *map, const struct ibx_migrate_block *blocks,
                      unsigned count, struct ibx_error *err);
void ibx_page_map_fini(struct ibx_page_map *map);
/* Takes over a block's bits, as ibx_guest_block_written() sets them. */
void ibx_page_map_put_block(struct ibx_page_map *map, unsigned block, const uint64_t *bits);
/* The reverse; returns how many are set. */
uint64_t ibx_page_map_get_block(const struct ibx_page_map *map, unsigned block, uint64_t *bits);
static inline bool ibx_page_map_data(const struct ibx_page_map *map, uint64_t page)
{
    return map->bits[page / 64] >> (page % 64) & 1;
}

/* Describes as many segments from page `*from` on as fit into `size` bytes (at least 9000), moves
 * *from behind them and returns the bytes; 0 after the last page. A segment is all zero, all data,
 * runs, or bits, whichever is shortest. */
size_t ibx_page_map_give(const struct ibx_page_map *map, uint64_t *from, uint8_t *out, size_t size);
/* Takes in one such piece; they come in order, from page 0. -EPROTO with the reason: then the map
 * is of no use until restart. It is whole when `next` has come to `pages`. */
int ibx_page_map_take(struct ibx_page_map *map, const uint8_t *bytes, size_t length,
                      struct ibx_error *err);
/* All pages zero again: starts taking anew, for a map that is sent again. */
void ibx_page_map_restart(struct ibx_page_map *map);

/* SHA-256 over the blocks' pages and page sizes and all bits, in a defined order. */
void ibx_page_map_hash(const struct ibx_page_map *map, uint8_t hash[IBX_MIGRATE_HASH_BYTES]);

/* Calls `each` for every run of equal pages of one block, in order; stops at, and returns, its
 * first non-zero answer. */
int ibx_page_map_runs(const struct ibx_page_map *map,
                      int (*each)(void *context, uint64_t first, uint64_t count, bool data),
                      void *context);

/* How many, one of them for faults only, this machine has processors for. */
unsigned ibx_page_links_default(void);

/* ------------------------------------------------------------ page server */

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

/* ------------------------------------------------------------ page reader */

/*
 * One page connection at the destination. It belongs to one thread at a time: whoever accepted it
 * until the engine is created, then the engine's worker.
 */
struct ibx_page_reader;

/* Takes over (if it succeeds) an established connection whose first message was JOIN (decoded by
 * the caller and released). `blocks`: as in HELLO; `first_page` of each range in the engine is that
 * of the map, `reader_offset` the sum of the sizes of the blocks before. */
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
                          struct ibx_fault_reader *as, struct ibx_error *err);
/* When all regions are there: the same, unless that was done before, and after it the engine may
 * serve, or resume with `as`. -EPROTO: regions overlap. */
int ibx_page_reader_arm(struct ibx_page_reader *source, size_t buffer_bytes,
                        struct ibx_fault_reader *as, struct ibx_error *err);
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
