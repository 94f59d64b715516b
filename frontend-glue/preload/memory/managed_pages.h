/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Shared by the files that know which side has the newest bytes of managed memory (managed.h):
 *
 *   managed_list.c   the list of managed memory, and the locks
 *   managed_pages.c  blocks: their states, and copies between host and device
 *   managed_work.c   when the device works, and what happens before and after that
 *
 * Each calls only those above it. "Locked" means that the caller holds `pages`.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_PAGES_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_PAGES_H

#include "frontend-glue/preload/memory/managed.h"

#include <time.h>

/* Takes `pages`. Handlers of the program that access managed memory need the lock: they are held
 * back in this thread until it is released. */
void ibx_managed_lock(struct held_handlers *before);
/* False: it could not be taken until then (CLOCK_MONOTONIC). */
bool ibx_managed_lock_until(struct held_handlers *before, const struct timespec *until);
void ibx_managed_unlock(const struct held_handlers *before);
/* Locked. Between these the holder waits for the device, and changes nothing: a thread may borrow
 * the lock. */
void ibx_managed_lend(void);
void ibx_managed_lend_end(void);
/* Takes `pages`, or borrows it; the latter returns true. */
bool ibx_managed_borrow(struct held_handlers *before);
void ibx_managed_give_back(const struct held_handlers *before, bool borrowed);

/* The functions below need the lock, unless said otherwise. */

/* Adds it to the list; the first entry, which m->next continues. */
void ibx_managed_link(struct managed *m);
struct managed *ibx_managed_first(void);
/* The memory that contains this address, or NULL. */
struct managed *ibx_managed_holding(uintptr_t at);
/* Whether any of these n bytes is managed. Needs no lock. */
bool ibx_managed_touches(uint64_t at, uint64_t n);
/* Adds a variable. False: no memory. */
bool ibx_managed_add_variable(struct managed *m, const struct managed_variable *variable);

/* Sets the state of all blocks of memory that is in no list yet. Needs no lock. */
void ibx_managed_set_all(struct managed *m, enum pages_state state);
/* What has to happen before this access. m: the memory that contains the address, or NULL. */
enum pages_answer ibx_managed_look_at(struct managed *m, uintptr_t at, enum pages_access access);
/* Makes all blocks STALE, and copies newer ones to the device. A CUDA error: all states are as
 * before. A thread that accesses the memory meanwhile waits for the lock. */
int ibx_managed_give_all(void);
/* Copies the STALE block with this address from the device, and perhaps following ones. */
bool ibx_managed_fetch_block(struct managed *m, uintptr_t address, enum pages_access access);
/* The same for a function that a stream waits for: the blocks become LENT. */
bool ibx_managed_lend_block(struct managed *m, uintptr_t address);
/* Makes all LENT blocks STALE, and copies what was changed there to the device. Returns a CUDA
 * error: such blocks are as before. */
int ibx_managed_take_lent(void);
/* Frees what is kept of LENT blocks. Needs no lock if the memory is in no list. */
void ibx_managed_forget_lent(struct managed *m);

/* About the calling thread: whether it is in a request of GVirtuS's front end, which makes no other
 * call meanwhile; whether it serves accesses of others. */
void ibx_managed_in_gvirtus(bool is);
bool ibx_managed_is_server(void);

#endif
