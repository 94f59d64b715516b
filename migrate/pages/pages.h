/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page connections: over each, the destination READs pages of guest RAM that the source exposes.
 *
 *   page_map.c     which pages of a VM hold data and which are known to be zero
 *   page_connections.c  the source: makes the connections
 *   page_server.c  the source: registers guest RAM and tells the destination where it is
 *   ram_view.c     the source: maps guest RAM, to serve and to compare its pages
 *   page_reader.c  the destination: a page reader of the fault engine (userfaultfd/)
 */
#ifndef IBX_MIGRATE_PAGES_PAGES_H
#define IBX_MIGRATE_PAGES_PAGES_H

#include "migrate/channel/channel.h"
#include "userfaultfd/fault.h"

/* ------------------------------------------------------------ page map */

/* One bit for each page of guest RAM; pages are numbered through all blocks in order. It has a
 * compact form for the wire (docs/protocol.md, "The page map"). Not thread-safe. */
#define IBX_PAGE_MAP_SEGMENT 65536u /* pages described by one piece on the wire */

struct ibx_page_map {
    uint64_t pages;
    uint64_t data_pages;
    uint64_t *bits; /* 1: data; lowest first */
    uint64_t next;  /* pages decoded so far */
    unsigned block_count;
    struct {
        uint64_t first; /* the block's first page */
        uint64_t pages;
        uint64_t page_size; /* bytes */
    } blocks[IBX_GUEST_BLOCKS_MAX];
};

/* Makes a map in which all pages are zero pages. -ENOMEM, -E2BIG (more than 2^40 pages), -EINVAL.
 * To be freed by fini. */
int ibx_page_map_init(struct ibx_page_map *map, const struct ibx_migrate_block *blocks,
                      unsigned count, struct ibx_error *err);
/* The same, with the blocks of `ram`. */
int ibx_page_map_init_ram(struct ibx_page_map *map, const struct ibx_guest_ram *ram,
                          struct ibx_error *err);
void ibx_page_map_fini(struct ibx_page_map *map);
/* Replaces a block's bits by `bits`, whose bit 0 is the block's first page, as
 * ibx_guest_block_written() sets them. */
void ibx_page_map_put_block(struct ibx_page_map *map, unsigned block, const uint64_t *bits);
/* Finds which pages of `ram` hold data at this moment. In a block of which the map has pages
 * already it looks at the others only, as ibx_guest_block_written_since() does. */
int ibx_page_map_search(struct ibx_page_map *map, const struct ibx_guest_ram *ram,
                        struct ibx_error *err);
/* Copies a block's bits into `bits`; returns how many are set. */
uint64_t ibx_page_map_get_block(const struct ibx_page_map *map, unsigned block, uint64_t *bits);
static inline bool ibx_page_map_data(const struct ibx_page_map *map, uint64_t page)
{
    return map->bits[page / 64] >> (page % 64) & 1;
}

/* Marks pages as data: `count` from `first` on; those of `more`, too; all but those of `less`; only
 * those of `only`. Both maps are of the same RAM. */
void ibx_page_map_set(struct ibx_page_map *map, uint64_t first, uint64_t count);
void ibx_page_map_add(struct ibx_page_map *map, const struct ibx_page_map *more);
void ibx_page_map_remove(struct ibx_page_map *map, const struct ibx_page_map *less);
void ibx_page_map_keep(struct ibx_page_map *map, const struct ibx_page_map *only);
/* Copies the bits of `from`, a map of the same RAM; `next` is left alone. */
void ibx_page_map_copy(struct ibx_page_map *map, const struct ibx_page_map *from);
/* The same with saved bits of such a map. */
void ibx_page_map_recall(struct ibx_page_map *map, const void *bits);
/* Counts data_pages again, after the caller has changed `bits`. */
void ibx_page_map_recount(struct ibx_page_map *map);

/* The block that a page lies in. */
unsigned ibx_page_map_block(const struct ibx_page_map *map, uint64_t page);

/* Encodes as many segments from page `*from` on as fit into `size` bytes (at least 9000), advances
 * `*from` past them and returns the number of bytes; 0 after the last page. Each segment is encoded
 * as all zero, all data, runs, or bits, whichever is shortest. */
size_t ibx_page_map_encode(const struct ibx_page_map *map, uint64_t *from, uint8_t *out,
                           size_t size);
/* Decodes what one call of encode made; the pieces come in order, from page 0. -EPROTO: it is
 * malformed, and the map is of no use until restart. The map is complete when `next` is `pages`. */
int ibx_page_map_decode(struct ibx_page_map *map, const uint8_t *bytes, size_t length,
                        struct ibx_error *err);
/* Makes all pages zero pages again, before a map is decoded anew. */
void ibx_page_map_restart(struct ibx_page_map *map);

/* SHA-256 over the blocks' pages and page sizes and all bits, in a defined order. */
void ibx_page_map_hash(const struct ibx_page_map *map, uint8_t hash[IBX_MIGRATE_HASH_BYTES]);

/* Calls `each` for every run of equal pages, in order; no run crosses a block. Stops at the first
 * answer that is not 0 and returns it. */
int ibx_page_map_runs(const struct ibx_page_map *map,
                      int (*each)(void *context, uint64_t first, uint64_t count, bool data),
                      void *context);

/* How many page connections this machine has processors for, one of them for faults only. */
unsigned ibx_page_links_default(void);

/* The bytes of guest RAM that the loading of devices touches in every VM on PC machine types:
 * option ROMs, in the first block, among them QEMU's kvmvapic.bin, which the APIC needs. */
#define IBX_EARLY_MACHINES "pc-"
#define IBX_EARLY_AT       0xc0000u
#define IBX_EARLY_BYTES    0x20000u
/* If pages have this size, the source sends those of these bytes that hold data with the page map.
 */
#define IBX_EARLY_PAGE  4096u
#define IBX_EARLY_PAGES (IBX_EARLY_BYTES / IBX_EARLY_PAGE)

/* ------------------------------------------------------------ page server */

/*
 * All page connections of the source and their threads. It maps guest RAM and exposes it over every
 * connection with remote READ only.
 *
 * Where registration costs nothing (tcp, shm) it exposes whole blocks at once. Elsewhere
 * registration pins memory and turns holes into zero pages, which then cross the wire like data. So
 * it registers only pieces (of IBX_EXPORT_PIECE bytes) that hold data, as regions of up to
 * IBX_EXPORT_STRETCH bytes, in parallel by one thread for each connection, while the VM runs. After
 * the stop of the VM another ibx_page_server_expose() adds what has been written since. The
 * connections have a domain (transport.h) of their own: where caps->shares, each region is
 * registered once for all of them.
 *
 * Each connection has a thread, which registers, and then keeps the connection going: it serves
 * READs on tcp and shm, and sleeps on RDMA. All calls are for one thread. The destination must not
 * READ a hole, because that would allocate a page of the source's file.
 */
struct ibx_page_server;
struct ibx_ram_view;

#define IBX_EXPORT_PIECE   (2ull << 20)
#define IBX_EXPORT_STRETCH (64ull << 20)

/* Whether the round trip is so long (1 ms) that data and padding are sent ahead of need. */
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
    struct ibx_page_connections *begun; /* NULL, or begun earlier; taken over, also on failure */
    bool pads; /* over a long wire: send padding (ibx_pad) until ibx_page_server_quiet() */
};

/* Page connections of one domain that have not sent JOIN. They can be begun before it is known how
 * many the destination wants; those that are too many are closed. Over a long wire they send
 * padding at once. */
struct ibx_page_connections;

/* Returns at once; connections that fail are reported by ibx_page_connections_take(). -ENOMEM, and
 * errors of pthread_create and ibx_domain_create(). */
int ibx_page_connections_begin(const char *uri, const struct ibx_options *options, unsigned count,
                               struct ibx_page_connections **out);
/* Waits for the connections of config->begun, sends JOIN over the first config->links of them and
 * returns these. Makes new ones if it is NULL, has too few, if one has failed, or if the other end
 * will not wait much longer for JOIN. The caller owns the connections and the domain, which is NULL
 * for a single connection. */
int ibx_page_connections_take(const struct ibx_page_server_config *config, struct ibx_conn **conns,
                              struct ibx_domain **domain, struct ibx_error *err);
/* Waits for them and closes them. Accepts NULL. */
void ibx_page_connections_drop(struct ibx_page_connections *connections);

/* Maps the RAM, connects, JOINs, and starts the threads. */
int ibx_page_server_open(const struct ibx_page_server_config *config,
                         struct ibx_page_server **server, struct ibx_error *err);
/* Exposes the pages with data of `map`, a map of the same RAM, that are not exposed yet. Returns at
 * once; ibx_page_server_done() tells when it is done. -EAGAIN while an earlier call is under way.
 */
int ibx_page_server_expose(struct ibx_page_server *server, const struct ibx_page_map *map,
                           struct ibx_error *err);
/* The VM is about to stop: no more padding. */
void ibx_page_server_quiet(struct ibx_page_server *server);
/* 0: all is exposed and sent, `regions` on each connection; -EAGAIN: not yet; else the first
 * failure of a connection (RLIMIT_MEMLOCK and its remedy, for instance). */
int ibx_page_server_done(struct ibx_page_server *server, uint32_t *regions, struct ibx_error *err);
/* Whether registrations pin pages. Then, if the VM discards a part of its RAM and uses it again, it
 * gets new pages there, and READs still return the old ones. */
bool ibx_page_server_keeps(const struct ibx_page_server *server);
/* Readable when the result of _done() or _failed() has changed; both, and _expose(), clear it
 * before they look. */
int ibx_page_server_fd(const struct ibx_page_server *server);
/* 0 while all connections live, else why one has ended. The destination closes them when it has
 * every page. */
int ibx_page_server_failed(struct ibx_page_server *server, struct ibx_error *err);
/* The path of the first connection, valid until close. */
const struct ibx_path *ibx_page_server_path(const struct ibx_page_server *server);
/* The bytes at `offset` of a block, in this process's mapping of guest RAM; valid until close. */
const uint8_t *ibx_page_server_bytes(const struct ibx_page_server *server, unsigned block,
                                     uint64_t offset);
/* This process's mapping of guest RAM. A caller that uses it beyond close holds it. */
struct ibx_ram_view *ibx_page_server_view(const struct ibx_page_server *server);
/* CPU time of the threads since each has sent its last REGION, nanoseconds. */
uint64_t ibx_page_server_cpu_ns(struct ibx_page_server *server);
/* Ends the threads and connections, and unmaps the RAM unless others hold its view. Accepts NULL.
 */
void ibx_page_server_close(struct ibx_page_server *server);

/* ------------------------------------------------------------ page reader */

/* One page connection at the destination. It belongs to one thread at a time: the one that accepted
 * it until the engine is created, then the engine's worker. */
struct ibx_page_reader;

/* Takes over, if it succeeds, an established connection whose first message, JOIN, the caller has
 * decoded and released. `blocks`: as in HELLO. In the engine, first_page of each range has to be
 * that of the page map, and reader_offset the sum of the sizes of the blocks before. */
int ibx_page_reader_create(struct ibx_conn *conn, const struct ibx_migrate_block *blocks,
                           unsigned block_count, struct ibx_page_reader **reader,
                           struct ibx_error *err);
/* Takes REGION messages that have arrived, without blocking, and returns the number of regions so
 * far. Errors: -EPROTO: the source sent another or a wrong message; -EBUSY: the engine uses the
 * reader; others: the connection has ended. */
int ibx_page_reader_regions(struct ibx_page_reader *reader, struct ibx_error *err);
/* Its connection: for its path, and for poll(2) while waiting for regions. */
struct ibx_conn *ibx_page_reader_conn(const struct ibx_page_reader *reader);
/* Registers the engine's buffer (`buffer_bytes` of ibx_fault_buffer_bytes()) and fills in `as` for
 * ibx_fault_create(); the engine may not serve yet. */
int ibx_page_reader_serve(struct ibx_page_reader *reader, size_t buffer_bytes,
                          struct ibx_fault_reader *as, struct ibx_error *err);
/* As ibx_page_reader_serve(), once all regions have come: from now on the engine may serve, or
 * resume with `as`. -EPROTO: regions overlap. */
int ibx_page_reader_arm(struct ibx_page_reader *reader, size_t buffer_bytes,
                        struct ibx_fault_reader *as, struct ibx_error *err);
/* After the engine that used the reader was destroyed: more regions may come, before it is armed
 * again. */
void ibx_page_reader_disarm(struct ibx_page_reader *reader);
/* Minor mode: registers the alias of each block (entries may be NULL) as the local side of READs,
 * or shares what `other` (may be NULL) has registered. To be called before the engine uses either
 * reader; the aliases must stay mapped until destroy. */
int ibx_page_reader_aliases(struct ibx_page_reader *reader, const struct ibx_page_reader *other,
                            void *const *aliases, struct ibx_error *err);
/* When armed: checks that each page with data is in a region. -EPROTO names the first that is not.
 * To be called before the commit, because such a page would be lost. */
int ibx_page_reader_covers(const struct ibx_page_reader *reader, const struct ibx_page_map *map,
                           struct ibx_error *err);
/* When armed: where these bytes are at the source, to READ them while the engine does not use the
 * reader. -ERANGE: no single region contains them. */
int ibx_page_reader_remote(const struct ibx_page_reader *reader, uint64_t offset, size_t length,
                           struct ibx_remote *remote);
/* Why it ended; "" while it lives. Safe from any thread after the engine has stopped. */
const char *ibx_page_reader_reason(const struct ibx_page_reader *reader);
/* Closes the connection. The engine must have stopped using it. Accepts NULL. */
void ibx_page_reader_destroy(struct ibx_page_reader *reader);

#endif
