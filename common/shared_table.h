/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A table in memory that a process shares with the processes that it forks. Each place belongs to
 * one of them at a time, and only that one writes it; all read it. There is no lock: a process that
 * is stopped or killed at any instruction holds nobody up, and readers find the last value that it
 * has written completely. A faulty process may write anything there: so what is read has to be
 * checked. Nothing that it may write leads a reader out of the table.
 *
 * From any thread; only one thread of the owner at a time writes a place.
 */
#ifndef IBX_COMMON_SHARED_TABLE_H
#define IBX_COMMON_SHARED_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_shared_table;

/* A table of `count` places, each for a value of n bytes. Only places that are used take up memory.
 * `secret`: they are kept from swap space, as far as the process may lock memory. Processes that
 * are forked from now on have the table, too. NULL: no memory. */
struct ibx_shared_table *ibx_shared_table_create(unsigned count, size_t n, bool secret);
/* Unmaps it from this process only. Accepts NULL. */
void ibx_shared_table_destroy(struct ibx_shared_table *table);

/* Takes a place for the process that calls itself `owner` (not 0). Nobody can read it before it is
 * written. -1: none is free. */
int ibx_shared_table_take(struct ibx_shared_table *table, uint32_t owner);
/* How many places have an owner. Looks at all of them. */
unsigned ibx_shared_table_taken(const struct ibx_shared_table *table);
/* How often any process has taken a place, or tried to. If this count has grown by n since an
 * earlier moment, at most n more places have an owner than then. */
uint64_t ibx_shared_table_takes(const struct ibx_shared_table *table);
/* Replaces the value. Readers find the former one, or this one. */
void ibx_shared_table_write(struct ibx_shared_table *table, int place, const void *value);
/* Overwrites the value with zeros, and frees the place. */
void ibx_shared_table_give(struct ibx_shared_table *table, int place);
/* Frees all places of that process, which has ended. */
void ibx_shared_table_forget(struct ibx_shared_table *table, uint32_t owner);

/* Copies the next value, from `*place` on, whose first n bytes are `first` (n = 0: any), and sets
 * `*place` behind it. Returns its owner; 0: there are no more. */
uint32_t ibx_shared_table_next(const struct ibx_shared_table *table, unsigned *place,
                               const void *first, size_t n, void *value);

#endif
