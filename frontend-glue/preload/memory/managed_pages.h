/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the files share that know which side has the newest bytes of managed memory (managed.h):
 *
 *   managed_list.c   which memory there is, and the locks
 *   managed_pages.c  its blocks: their states, and the bytes between host and device
 *   managed_work.c   when the device works; before that, and behind it
 *
 * Each calls those above it. Locked: with `pages`.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_PAGES_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_PAGES_H

#include "frontend-glue/preload/memory/managed.h"

#include <time.h>

/* `pages`. A handler of the program's that touches managed memory needs it: it waits until its own
 * thread has it no more. */
void ibx_managed_lock(struct held_handlers *before);
/* False: somebody has it longer than that, of CLOCK_MONOTONIC. */
bool ibx_managed_lock_until(struct held_handlers *before, const struct timespec *until);
void ibx_managed_unlock(const struct held_handlers *before);

/* The rest is locked, but for what is said of it. */

/* The list: adds it; its first, of which m->next is the one behind m. */
void ibx_managed_link(struct managed *m);
struct managed *ibx_managed_first(void);
/* The memory that has this address, or NULL. */
struct managed *ibx_managed_holding(uintptr_t at);
/* Whether any of it is in these n bytes. Needs no lock. */
bool ibx_managed_touches(uint64_t at, uint64_t n);
/* False: no memory. */
bool ibx_managed_add_variable(struct managed *m, const struct managed_variable *variable);

/* All blocks of memory that is in no list yet. Needs no lock. */
void ibx_managed_set_all(struct managed *m, enum pages_state state);
/* What that access has to wait for, now; m: what has the address, or NULL. */
enum pages_answer ibx_managed_look_at(struct managed *m, uintptr_t at, enum pages_access access);
/* All memory becomes the device's, or else keeps its state: an error of CUDA's. Until then who
 * touches it waits for the lock. */
int ibx_managed_give_all(void);
/* The block that has the address, which is STALE, comes from the device; others behind it may. */
bool ibx_managed_fetch_block(struct managed *m, uintptr_t address, enum pages_access access);

/* Of the calling thread: whether it is in a request of GVirtuS's front end, which makes no other
 * call meanwhile; whether it serves the others. */
void ibx_managed_in_gvirtus(bool is);
bool ibx_managed_is_server(void);

#endif
