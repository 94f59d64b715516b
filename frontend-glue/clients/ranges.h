/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Ranges of addresses, or of numbers, that do not touch each other, in a tree: what one of them is
 * found by takes the logarithm of how many there are, so that nobody who has many delays others.
 * The caller has a lock.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_RANGES_H
#define IBX_FRONTEND_GLUE_CLIENTS_RANGES_H

#include <stdbool.h>
#include <stdint.h>

/* The first member of what is in a tree. */
struct ibx_range {
    uint64_t begin, last;
};

/* One that has any of [begin, last]; NULL: none does. */
void *ibx_ranges_find(void *tree, uint64_t begin, uint64_t last);
/* None of the tree has any of it. False: no memory. */
bool ibx_ranges_add(void **tree, struct ibx_range *range);
void ibx_ranges_remove(void **tree, struct ibx_range *range);

/* What pieces cover without a gap, in a tree of its own: NULL is nothing. Pieces touch no other.
 * False: no memory. */
bool ibx_cover_add(void **cover, uint64_t begin, uint64_t last);
/* A piece that was added. Where there is no memory more is taken than that, up to the next gap. */
void ibx_cover_remove(void **cover, uint64_t begin, uint64_t last);
bool ibx_cover_has(void *cover, uint64_t begin, uint64_t last);

#endif
