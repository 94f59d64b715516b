/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page connections: over each, the destination READs pages of guest RAM that the source exposes.
 *
 *   page_map.c     which pages of a VM hold data and which are known to be zero
 *   page_connections.c  the source: makes the connections
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
    uint64_t next;  /* pages decoded so far */
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
/* The same of guest RAM. */
int ibx_page_map_init_ram(struct ibx_page_map *map, const struct ibx_guest_ram *ram,
                          struct ibx_error *err);
void ibx_page_map_fini(struct ibx_page_map *map);
/* Takes over a block's bits, as ibx_guest_block_written() sets them. */
void ibx_page_map_put_block(struct ibx_page_map *map, unsigned block, const uint64_t *bits);
/* The reverse; returns how many are set. */
uint64_t ibx_page_map_get_block(const struct ibx_page_map *map, unsigned block, uint64_t *bits);
static inline bool ibx_page_map_data(const struct ibx_page_map *map, uint64_t page)
{
    return map->bits[page / 64] >> (page % 64) & 1;
}

/* Sets, adds, takes away, or keeps only, pages; both maps are of the same RAM. */
void ibx_page_map_set(struct ibx_page_map *map, uint64_t first, uint64_t count);
void ibx_page_map_add(struct ibx_page_map *map, const struct ibx_page_map *more);
void ibx_page_map_remove(struct ibx_page_map *map, const struct ibx_page_map *less);
void ibx_page_map_keep(struct ibx_page_map *map, const struct ibx_page_map *only);
/* Makes one like another, of the same RAM; `next` stays. */
void ibx_page_map_copy(struct ibx_page_map *map, const struct ibx_page_map *from);
/* Makes it that of bits which were noted of one of the same RAM, none of which has come. */
void ibx_page_map_recall(struct ibx_page_map *map, const void *bits);
/* After changes to `bits` by the caller. */
void ibx_page_map_recount(struct ibx_page_map *map);

/* The block that a page lies in. */
unsigned ibx_page_map_block(const struct ibx_page_map *map, uint64_t page);

/* Encodes as many segments from page `*from` on as fit into `size` bytes (at least 9000), moves
 * `*from` behind them and returns the bytes; 0 after the last page. A segment is all zero, all
 * data, runs, or bits, whichever is shortest. */
size_t ibx_page_map_encode(const struct ibx_page_map *map, uint64_t *from, uint8_t *out,
                           size_t size);
/* Decodes one such piece; they come in order, from page 0. -EPROTO: the map is of no use until
 * restart. It is complete when `next` is `pages`. */
int ibx_page_map_decode(struct ibx_page_map *map, const uint8_t *bytes, size_t length,
                        struct ibx_error *err);
/* All pages zero again, for a map that is sent again. */
void ibx_page_map_restart(struct ibx_page_map *map);

/* SHA-256 over the blocks' pages and page sizes and all bits, in a defined order. */
void ibx_page_map_hash(const struct ibx_page_map *map, uint8_t hash[IBX_MIGRATE_HASH_BYTES]);

/* Calls `each` for every run of equal pages of one block, in order; stops at, and returns, its
 * first non-zero answer. */
int ibx_page_map_runs(const struct ibx_page_map *map,
                      int (*each)(void *context, uint64_t first, uint64_t count, bool data),
                      void *context);

/* How many page connections this machine has processors for, one of them for faults only. */
unsigned ibx_page_links_default(void);

/* On PCs the option ROM of the APIC is what loading devices touches in guest RAM with every VM
 * (these bytes of the first block have option ROMs, and QEMU's kvmvapic.bin among them). */
#define IBX_EARLY_MACHINES "pc-"
#define IBX_EARLY_AT       0xc0000u
#define IBX_EARLY_BYTES    0x20000u
/* Of VMs with pages of this size the source sends those that hold data with the page map. */
#define IBX_EARLY_PAGE  4096u
#define IBX_EARLY_PAGES (IBX_EARLY_BYTES / IBX_EARLY_PAGE)

/* ------------------------------------------------------------ page server */

/*
 * All page connections of the source and their threads. It maps guest RAM and exposes it over every
 * connection with remote READ only.
 *
 * Where registration costs nothing (tcp, shm) it exposes whole blocks at once. Elsewhere
 * registration pins memory, and holes as zero pages, which then cross the wire like data. So it
 * registers only pieces (of IBX_EXPORT_PIECE bytes) that hold data, as regions of up to
 * IBX_EXPORT_STRETCH bytes, in parallel by one thread a connection, while the VM runs. After the
 * stop of the VM another ibx_page_server_expose() adds what has been written since. The connections
 * have a domain (transport.h) of their own: where caps->shares, each region is registered once for
 * all of them.
 *
 * A thread a connection registers, and then keeps the connection going: it serves READs on tcp and
 * shm, and sleeps on RDMA. All calls are for one thread. The destination READs no hole, because
 * that would allocate a page of the source's file.
 */
struct ibx_page_server;

#define IBX_EXPORT_PIECE   (2ull << 20)
#define IBX_EXPORT_STRETCH (64ull << 20)

/* Over so long a wire what can go ahead of need does. */
static inline bool ibx_path_is_far(const struct ibx_path *path)
{
    return path->remote && path->round_trip_ns >= 1000000u;
}

struct ibx_page_server_config {
    const struct ibx_guest_ram *ram; /* kept by the caller until close */
    const char *uri;                 /* of the destination */
    const struct ibx_options *options;
    struct ibx_migrate_join join; /* `link` is set for each */
    unsigned links;
    struct ibx_page_connections *begun; /* NULL, or these: taken over, also on failure */
    bool pads; /* over a long wire: padding (ibx_pad) goes ahead, until ibx_page_server_quiet() */
};

/* Page connections of one domain that have sent no JOIN yet. They can be begun while it is not
 * known yet how many the destination wants: what is too many is closed. Over a long wire padding
 * goes ahead at once. */
struct ibx_page_connections;

/* Returns at once; what fails shows when they are taken. -ENOMEM, or no threads. */
int ibx_page_connections_begin(const char *uri, const struct ibx_options *options, unsigned count,
                               struct ibx_page_connections **out, struct ibx_error *err);
/* The first of config->begun, which all have to be there; new ones when it is NULL, has too few or
 * one that failed, or the other end will not wait much longer for JOIN. Sends JOIN. The connections
 * and the domain are the caller's; of one that was made alone there is no domain. */
int ibx_page_connections_take(const struct ibx_page_server_config *config, struct ibx_conn **conns,
                              struct ibx_domain **domain, struct ibx_error *err);
/* Waits for them and closes them. Accepts NULL. */
void ibx_page_connections_drop(struct ibx_page_connections *connections);

/* Maps the RAM, connects, JOINs, and starts the threads. */
int ibx_page_server_open(const struct ibx_page_server_config *config,
                         struct ibx_page_server **server, struct ibx_error *err);
/* Exposes the pages that hold data by `map`, of the same RAM, and are not exposed yet.
 * Asynchronous; -EAGAIN while an earlier call is under way. */
int ibx_page_server_expose(struct ibx_page_server *server, const struct ibx_page_map *map,
                           struct ibx_error *err);
/* The VM is about to stop: no more padding. */
void ibx_page_server_quiet(struct ibx_page_server *server);
/* 0: all is exposed and sent, `regions` on each connection; -EAGAIN: not yet; else the first
 * failure of a connection (RLIMIT_MEMLOCK and its remedy, for instance). */
int ibx_page_server_done(struct ibx_page_server *server, uint32_t *regions, struct ibx_error *err);
/* Registering keeps pages: those of a part that the VM gives back and uses again are others then,
 * and READs bring the old ones. */
bool ibx_page_server_keeps(const struct ibx_page_server *server);
/* Readable when the result of _done() or _failed() has changed; both, and _expose(), clear it
 * before they look. */
int ibx_page_server_fd(const struct ibx_page_server *server);
/* 0 while all connections live, else why one has ended. The destination closes them when it has
 * every page. */
int ibx_page_server_failed(struct ibx_page_server *server, struct ibx_error *err);
/* The path of the first connection, valid until close. */
const struct ibx_path *ibx_page_server_path(const struct ibx_page_server *server);
/* A page of a block as it is now. */
const uint8_t *ibx_page_server_bytes(const struct ibx_page_server *server, unsigned block,
                                     uint64_t offset);
/* CPU time of the threads since the last REGION was sent, nanoseconds. */
uint64_t ibx_page_server_cpu_ns(struct ibx_page_server *server);
/* Ends the threads and connections and unmaps the RAM. Accepts NULL. */
void ibx_page_server_close(struct ibx_page_server *server);

/* ------------------------------------------------------------ page reader */

/* One page connection at the destination. It belongs to one thread at a time: the one that accepted
 * it until the engine is created, then the engine's worker. */
struct ibx_page_reader;

/* Takes over (if it succeeds) an established connection whose first message was JOIN (decoded by
 * the caller and released). `blocks`: as in HELLO; `first_page` of each range in the engine is that
 * of the map, `reader_offset` the sum of the sizes of the blocks before. */
int ibx_page_reader_create(struct ibx_conn *conn, const struct ibx_migrate_block *blocks,
                           unsigned block_count, struct ibx_page_reader **reader,
                           struct ibx_error *err);
/* Takes what has arrived, without blocking, and returns the number of regions so far. An error: the
 * connection has ended, or the source sent what it may not (-EPROTO), or the engine has it
 * (-EBUSY). */
int ibx_page_reader_regions(struct ibx_page_reader *reader, struct ibx_error *err);
/* Its connection: for its path, and for poll(2) while waiting for regions. */
struct ibx_conn *ibx_page_reader_conn(const struct ibx_page_reader *reader);
/* Registers the engine's buffer (`buffer_bytes` of ibx_fault_buffer_bytes()) and fills in `as` for
 * ibx_fault_create(); the engine may not serve yet. */
int ibx_page_reader_serve(struct ibx_page_reader *reader, size_t buffer_bytes,
                          struct ibx_fault_reader *as, struct ibx_error *err);
/* The same, when all regions are there: the engine may serve, or resume with `as`. -EPROTO: regions
 * overlap. */
int ibx_page_reader_arm(struct ibx_page_reader *reader, size_t buffer_bytes,
                        struct ibx_fault_reader *as, struct ibx_error *err);
/* The engine that used it is no more: further regions may come before it is armed again. */
void ibx_page_reader_disarm(struct ibx_page_reader *reader);
/* In minor mode: registers the alias of each block (or NULL) as the local side, or shares what
 * `other` (or NULL) has registered. Before the engine uses either; kept mapped until destroy. */
int ibx_page_reader_aliases(struct ibx_page_reader *reader, const struct ibx_page_reader *other,
                            void *const *aliases, struct ibx_error *err);
/* Armed: -EPROTO names the first page with data that is in no region. Before the commit, because
 * such a page would be lost. */
int ibx_page_reader_covers(const struct ibx_page_reader *reader, const struct ibx_page_map *map,
                           struct ibx_error *err);
/* Armed: where these bytes are at the source, to READ them while the engine does not use the
 * reader. -ERANGE: not in one region. */
int ibx_page_reader_remote(const struct ibx_page_reader *reader, uint64_t offset, size_t length,
                           struct ibx_remote *remote);
/* Why it ended; "" while it lives. Safe from any thread after the engine has stopped. */
const char *ibx_page_reader_reason(const struct ibx_page_reader *reader);
/* Closes the connection. The engine must have stopped using it. Accepts NULL. */
void ibx_page_reader_destroy(struct ibx_page_reader *reader);

#endif
