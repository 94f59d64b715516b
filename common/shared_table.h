/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A table in memory that a process shares with those that it forks. Each place belongs to one of
 * them at a time, which alone writes it; all read it. There is no lock: a process that is stopped
 * or killed at any instruction holds nobody up, and readers meanwhile find what it has written
 * whole before that. One that has gone wrong may write there what it likes: what is read is as
 * trustworthy as all of these processes are, and has to be checked. Nothing there leads a reader
 * out of the table.
 *
 * From any thread; of one place one thread of its process at a time writes.
 */
#ifndef IBX_COMMON_SHARED_TABLE_H
#define IBX_COMMON_SHARED_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_shared_table;

/* Of `count` places, each for a value of n bytes; only what is used takes memory. `secret`: they
 * are kept from swap space, as far as the process may lock memory. For those that are forked from
 * now on. NULL: no memory. */
struct ibx_shared_table *ibx_shared_table_create(unsigned count, size_t n, bool secret);
/* Of this process. Accepts NULL. */
void ibx_shared_table_destroy(struct ibx_shared_table *table);

/* A place for the process that calls itself `owner` (not 0), which nobody can read before it is
 * written. -1: none is free. */
int ibx_shared_table_take(struct ibx_shared_table *table, uint32_t owner);
/* How many have an owner: it looks at all of them. */
unsigned ibx_shared_table_taken(const struct ibx_shared_table *table);
/* How often one was taken, or tried to be, by any process: so many more at most have an owner now
 * than had one when it was less. */
uint64_t ibx_shared_table_takes(const struct ibx_shared_table *table);
/* Others find the former value, or this one. */
void ibx_shared_table_write(struct ibx_shared_table *table, int place, const void *value);
/* What is there is overwritten. */
void ibx_shared_table_give(struct ibx_shared_table *table, int place);
/* All of that process, which has ended. */
void ibx_shared_table_forget(struct ibx_shared_table *table, uint32_t owner);

/* Copies the next value from `*place` on, whose first n bytes are `first` (n = 0: any), and leaves
 * behind it. Its owner; 0: there is none. */
uint32_t ibx_shared_table_next(const struct ibx_shared_table *table, unsigned *place,
                               const void *first, size_t n, void *value);

#endif
