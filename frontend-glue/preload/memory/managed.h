/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Managed memory (cudaMallocManaged): memory of the device, and memory of this process at the same
 * addresses. Shared by the files managed*.c:
 *
 *   managed.c         CUDA's calls about it
 *   managed_list.c    which there is; the locks
 *   managed_pages.c   which side has the newest bytes, and how they come to the other
 *   managed_work.c    ... before the device works, and behind that
 *   managed_faults.c  accesses of the host to bytes that are the device's
 *   managed_signals.c  handlers of the program's own signals
 *   managed_masks.c   masks of these
 *   managed_io.c      ... of the kernel for it
 *   managed_hints.c   what the program says of its use
 *   managed_in_place.c   page-locked memory that becomes managed
 *
 * Variables that are declared __managed__ (kernels/managed_variables.c) are such memory, too.
 *
 * Coherence is that of devices without concurrent access (cudaDevAttrConcurrentManagedAccess is 0).
 * A block of pages is in one of three states, and its protection says which:
 *
 *   STALE   no access     the device may have changed it
 *   SAME    reads         both sides have the same bytes
 *   NEWER   all accesses  the host may have changed it
 *
 *   STALE -> SAME         an access: the device is waited for, and the bytes come
 *   SAME  -> NEWER        a write
 *   SAME, NEWER -> STALE  the device is about to work: what is newer goes there first
 *
 * The bytes come and go by a second mapping of the same pages, so no thread sees half of them.
 *
 * Locks: `pages` for states and protections; `list` for a look at which memory there is. Who
 * changes the list has both, in this order. A thread that has `pages` touches no managed memory,
 * since the handler of its fault would need it, too; and handlers of the program's signals, which
 * may, wait until it has the lock no more. They may look at the list beside a look that they have
 * interrupted.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_H

#include "frontend-glue/preload/preload.h"

#include <signal.h>

enum pages_state { PAGES_STALE, PAGES_SAME, PAGES_NEWER };

/* Where accesses go on one after the other, more blocks change at once. */
struct run {
    size_t next, count; /* the block behind the last ones, and how many they were */
};

struct managed_variable {
    struct place where;
    void **module; /* that it is gone with */
};

struct managed {
    struct managed *next;
    uintptr_t begin;
    size_t asked, n; /* bytes: the application's; of whole pages */
    size_t before;   /* ... of another's before those that are asked for */
    uint8_t *other;  /* the second mapping */
    void *base;      /* what cudaMalloc has returned: `begin` or less than a page before it */
    struct managed_variable *variables; /* that lie there, of any module; or NULL: it is no such */
    size_t variable_count;
    int device;
    unsigned mapped; /* cudaHostAlloc's, with these flags; 0: it is not */
    bool in_place;   /* it was page-locked memory before; the device's bytes are the back end's */
    size_t block, blocks; /* bytes of one, how many */
    size_t fresh, newer;  /* blocks that are not STALE; that are NEWER */
    struct run fetched, written;
    uint8_t state[]; /* of each block */
};

/* Adds it, all blocks in that state. */
void ibx_managed_add(struct managed *m, enum pages_state state);
/* Takes it out: NULL if none that was allocated begins there. 0: any that was allocated, but not
 * what has become managed in place. */
struct managed *ibx_managed_take(uintptr_t begin);
/* Takes that module's variables out, and pages that have no other's: NULL if there are none. */
struct managed *ibx_managed_take_module(void **module);
/* The one of that number, from 0 on, of all variables; false: there are not so many. */
bool ibx_managed_variable(size_t number, struct managed_variable *found);
/* Variables that are to be those of `m`, which is not there yet. False: no memory. */
bool ibx_managed_set_variables(struct managed *m, const struct managed_variable *all, size_t count);
/* One more, or a part of one, in pages that have variables: the next access fetches its bytes. An
 * error of CUDA's. */
int ibx_managed_join(const struct managed_variable *variable);
/* Whether it holds this address; its fields but those of its blocks. `variables` only says that it
 * has any. */
bool ibx_managed_find(uintptr_t at, struct managed *found);
/* The first part of [*at, end) that is managed: begins at *at, ends at *last. False: none is. */
bool ibx_managed_within(uintptr_t *at, uintptr_t end, uintptr_t *last);
/* Quick: whether there was ever any. */
bool ibx_managed_any(void);
/* The second mapping of these bytes, if one allocation has all of them; otherwise NULL. */
uint8_t *ibx_managed_other(uintptr_t at, size_t n);
/* Quick: false where no managed memory is or was. */
bool ibx_managed_may_hold(uintptr_t at);

/* managed.c: a new one of so many bytes from the beginning of a page on, and of blocks that are
 * left; NULL: no memory. */
struct managed *ibx_managed_make(size_t asked, size_t n);
/* Maps its pages at m->begin, and another time. -EEXIST: there is something. */
int ibx_managed_map(struct managed *m);
/* Unmaps it, and frees it. */
void ibx_managed_discard(struct managed *m);
/* Whether this library has managed memory here, which begins it; otherwise GVirtuS has to. */
bool ibx_managed_begin(void);

/* managed_hints.c: what is known of memory that is no more. */
void ibx_managed_hints_gone(uintptr_t begin, size_t n);
/* An error unless all n bytes are of one allocation. */
int ibx_managed_check(const void *address, size_t n);

/* managed_in_place.c: whether that address is in memory that is about to become managed. Quick. */
bool ibx_managed_joins(uintptr_t at, size_t n);
/* Until that is over. Makes system calls only. */
void ibx_managed_wait_for_join(uintptr_t at);

/* What an access of the host needs. */
enum pages_answer {
    PAGES_NONE,   /* it is no managed memory */
    PAGES_READY,  /* try it again */
    PAGES_REMOTE, /* ibx_managed_fetch(), in a thread that may make calls of CUDA's */
    PAGES_FAILED
};
enum pages_access { ACCESS_READ, ACCESS_WRITE, ACCESS_UNKNOWN };
enum pages_answer ibx_managed_look(uintptr_t at, enum pages_access access);
enum pages_answer ibx_managed_fetch(uintptr_t at, enum pages_access access);
/* Until the device rests, or what no capture minds. Likewise. */
void ibx_managed_rest(void);
/* What is newer here goes to the device; `works`: the calling thread, or the one that this is done
 * for, has it work then. An error of CUDA's. */
int ibx_managed_give(bool works);
/* The calling thread is the one that serves the others. */
void ibx_managed_serves(void);
/* No fetch begins any more, and none is under way, unless that takes longer. */
void ibx_managed_end(unsigned ms);
/* Around the calls of the calling thread that are this library's own. */
void ibx_managed_own_begin(void);
void ibx_managed_own_end(void);
/* Around the wait for a fetch, of a thread that may be about to have the device work: whether it
 * is, which the end is told. */
bool ibx_managed_wait_begin(void);
void ibx_managed_wait_end(bool works);

/* What the plugin tells of this process's calls. */
extern const struct ibx_frontend_watch ibx_managed_watch;

/* Around what a thread does that its own faults would wait for: handlers of the program's signals
 * run behind that. Signals that have none, and faults, come as ever. */
struct held_handlers {
    bool any;
    sigset_t before; /* the mask of the thread, if there are any */
};
void ibx_managed_hold_handlers(struct held_handlers *held);
void ibx_managed_let_handlers(const struct held_handlers *held);
/* The same for threads that are inside of the plugin. */
extern const struct ibx_handlers_calls ibx_managed_handlers;

/* managed_signals.c: from here on the library has SIGSEGV, for good. False: it has not. */
bool ibx_managed_catch(void (*handler)(int number, siginfo_t *info, void *context));
bool ibx_managed_catches(void);
/* The same, before managed memory is withdrawn: the program may have set a handler by the system
 * call itself. */
void ibx_managed_catch_again(void);
/* One that is not this library's, as the kernel would have it. */
void ibx_managed_pass_on(int number, siginfo_t *info, void *context);
/* managed_masks.c: pthread_sigmask(3) as it is; a mask of the program's as the kernel is to have
 * it, and the other way about; whether the program blocks SIGSEGV by what is such a mask. */
int ibx_managed_real_mask(int how, const sigset_t *set, sigset_t *old);
void ibx_managed_mark(sigset_t *set);
void ibx_managed_unmark(sigset_t *set);
bool ibx_managed_marked(const sigset_t *set);

/* Starts what serves accesses of the host; false: there is no thread. */
bool ibx_managed_faults_begin(void);
/* Has it call ibx_managed_rest(), and waits for that. */
void ibx_managed_have_rested(void);
/* Likewise ibx_managed_give(). */
int ibx_managed_have_given(bool works);

#endif
