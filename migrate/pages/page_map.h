/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pages of a VM hold data and which are known to be zero, numbered through all blocks in
 * their order: one bit a page, and a compact form of it for the wire.
 */
#ifndef IBX_MIGRATE_PAGES_PAGE_MAP_H
#define IBX_MIGRATE_PAGES_PAGE_MAP_H

#include "migrate/channel/protocol.h"

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

#endif
