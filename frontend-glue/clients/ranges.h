/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Ranges of addresses, or of numbers, that do not overlap, in a tree: finding one takes logarithmic
 * time, so that a client that has many does not delay others. The caller has a lock.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_RANGES_H
#define IBX_FRONTEND_GLUE_CLIENTS_RANGES_H

#include <stdbool.h>
#include <stdint.h>

/* The first member of each structure in a tree; both bounds belong to the range. */
struct ibx_range {
    uint64_t begin, last;
};

/* A range that overlaps [begin, last]; NULL: none does. */
void *ibx_ranges_find(void *tree, uint64_t begin, uint64_t last);
/* The range must overlap none in the tree. False: no memory. */
bool ibx_ranges_add(void **tree, struct ibx_range *range);
void ibx_ranges_remove(void **tree, struct ibx_range *range);

/* What pieces cover without a gap, in a tree of its own, which is empty if NULL. Pieces do not
 * overlap. False: no memory. */
bool ibx_cover_add(void **cover, uint64_t begin, uint64_t last);
/* Removes a piece that was added. If there is no memory, removes more: up to the next gap. */
void ibx_cover_remove(void **cover, uint64_t begin, uint64_t last);
/* Whether all of [begin, last] is covered. */
bool ibx_cover_has(void *cover, uint64_t begin, uint64_t last);

#endif
