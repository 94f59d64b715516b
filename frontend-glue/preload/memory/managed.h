/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Managed memory (cudaMallocManaged): device memory, and memory of this process at the same
 * addresses. Shared by the files managed*.c:
 *
 *   managed.c         CUDA's calls about managed memory
 *   managed_list.c    the list of managed memory; the locks
 *   managed_pages.c   which side has the newest bytes, and copies between the sides
 *   managed_work.c    what happens before and after the device works
 *   managed_faults.c  accesses of the host to bytes that the device may have changed, and of
 *                     functions that a stream waits for
 *   managed_signals.c  handlers of the program's own signals
 *   managed_masks.c   signal masks
 *   managed_io.c      system calls that access managed memory
 *   managed_hints.c   cudaMemAdvise and prefetches
 *   managed_in_place.c   page-locked memory that becomes managed
 *   replaced_pages.c     how its pages, and those of registered memory, are replaced
 *
 * Variables that are declared __managed__ (kernels/managed_variables.c) are managed memory, too.
 *
 * Coherence is that of devices without concurrent access (cudaDevAttrConcurrentManagedAccess is 0).
 * A block of pages has one of four states, which its page protection enforces:
 *
 *   STALE   no access     the device may have changed it
 *   SAME    read only     both sides have the same bytes
 *   NEWER   read, write   the host may have changed it
 *   LENT    read, write   a function that a stream waits for may have changed it, and the device
 *                         may have, too
 *
 *   STALE -> SAME         an access: waits for the device, then the bytes are copied here
 *   SAME  -> NEWER        a write
 *   SAME, NEWER -> STALE  the device is about to work: newer bytes are copied there first
 *   STALE -> LENT         an access of such a function, which cannot wait for the device: the work
 *                         before it in its stream has ended. The bytes are copied here, and kept
 *   LENT -> STALE         the function has returned, or the device is about to work: the words
 *                         that differ from those kept are copied there first
 *
 * Bytes are copied through a second mapping of the same pages, so no thread sees a half-copied
 * block.
 *
 * Locks: `pages` protects states and page protections; `list` protects lookups in the list. To
 * change the list takes both, in this order. A thread that waits for the device while it holds
 * `pages` lends the lock: the device may wait for a function that needs it. A thread that holds
 * `pages` must not access managed memory, because the handler of its fault needs the lock. Handlers
 * of the program's signals may access it, so they are held back until the thread has released the
 * lock. They may search the list while they have interrupted a search.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MANAGED_H

#include "frontend-glue/preload/preload.h"

#include <signal.h>

enum pages_state { PAGES_STALE, PAGES_SAME, PAGES_NEWER, PAGES_LENT };

struct lent; /* blocks that are LENT, and their bytes as they were */

/* Sequential accesses, up or down: more blocks change at once. */
struct run {
    size_t first, count; /* the blocks that changed last; count is 0: none */
};

struct managed_variable {
    struct place where;
    void **module; /* the module that it ends with */
};

struct managed {
    struct managed *next;
    uintptr_t begin;
    size_t asked, n; /* bytes that the application requested; bytes of whole pages */
    size_t before;   /* bytes in the first page before the requested ones, which belong to others */
    uint8_t *other;  /* the second mapping of the pages */
    void *base;      /* the result of cudaMalloc: `begin`, or less than a page before it */
    struct managed_variable *variables; /* the __managed__ variables in these pages, of any module;
                                           NULL: not such memory */
    size_t variable_count;
    int device;
    unsigned mapped; /* from cudaHostAlloc, with these flags; 0: it is not */
    /* It was page-locked memory; the back end has pages of its own at this address. */
    bool in_place;
    size_t block, blocks; /* bytes of a block; number of blocks */
    size_t fresh, newer;  /* number of blocks that are not STALE; that are NEWER or LENT */
    struct run fetched, written;
    struct lent *lent;
    uint8_t state[]; /* the state of each block */
};

/* Adds it to the list, with all blocks in this state. */
void ibx_managed_add(struct managed *m, enum pages_state state);
/* Removes the allocation that begins there from the list; NULL: there is none. 0: any allocation,
 * but nothing that has become managed in place. */
struct managed *ibx_managed_take(uintptr_t begin);
/* Adds it again, with its blocks as they are. */
void ibx_managed_put_back(struct managed *m);
/* Removes the variables of a module, and returns pages that then have no variables; NULL: there are
 * none. */
struct managed *ibx_managed_take_module(void **module);
/* The `number`-th variable of all, from 0 on; false: there are not so many. */
bool ibx_managed_variable(size_t number, struct managed_variable *found);
/* Sets the variables of `m`, which is not in the list yet. False: no memory. */
bool ibx_managed_set_variables(struct managed *m, const struct managed_variable *all, size_t count);
/* Adds a variable, or a part of one, to pages that have variables. The next access fetches its
 * bytes. Returns a CUDA error. */
int ibx_managed_join(const struct managed_variable *variable);
/* Finds the memory that contains the address. `found` (may be NULL) gets its fields, but not those
 * of blocks; `variables` only tells whether there are any. */
bool ibx_managed_find(uintptr_t at, struct managed *found);
/* Finds the first managed part of [*at, end): [*at, *last). False: none. */
bool ibx_managed_within(uintptr_t *at, uintptr_t end, uintptr_t *last);
/* Whether there was ever managed memory. Quick. */
bool ibx_managed_any(void);
/* The second mapping of these bytes, if they are all in one allocation; else NULL. */
uint8_t *ibx_managed_other(uintptr_t at, size_t n);
/* False if there is and was no managed memory at this address. Quick. */
bool ibx_managed_may_hold(uintptr_t at);

/* managed.c: makes an entry for n bytes of whole pages, `asked` of which are requested, with as
 * many blocks as are left; NULL: no memory. */
struct managed *ibx_managed_make(size_t asked, size_t n);
/* Maps its pages at m->begin, and a second time. -EEXIST: something is mapped there. */
int ibx_managed_map(struct managed *m);
/* Unmaps and frees it. */
void ibx_managed_discard(struct managed *m);
/* Whether this library provides managed memory in this process, for which it starts what is needed.
 * If not, GVirtuS has to. */
bool ibx_managed_begin(void);
/* The same for ibx_managed_join_begin() alone, with neither a thread nor a connection. */
bool ibx_managed_begin_joins(void);

/* managed_hints.c: forgets hints about freed memory. */
void ibx_managed_hints_gone(uintptr_t begin, size_t n);
/* An error of CUDA unless all n bytes are in one allocation. */
int ibx_managed_check(const void *address, size_t n);

/* managed_in_place.c: copies between host memory and the back end's pages at that address, without
 * CUDA. False: it is not done. */
bool ibx_managed_copy_pages(uintptr_t at, uint8_t *host, size_t n, bool to_device);

/* replaced_pages.c: whether one of n bytes is in memory whose pages are being replaced, because it
 * becomes managed or moves (registered.c). Quick. */
bool ibx_managed_joins(uintptr_t at, size_t n);
/* Waits until that is done. Makes system calls only. */
void ibx_managed_wait_for_join(uintptr_t at);
/* Before and after that, one thread at a time: accesses that fault wait, no copy of CUDA's is under
 * way in these bytes, and the thread has neither signals nor a cancellation. */
struct join {
    sigset_t before;
    int cancel;
};
void ibx_managed_join_begin(uintptr_t at, size_t n, struct join *held);
void ibx_managed_join_end(const struct join *held);
/* Between these: copies n bytes of whole pages from `here` to `to`, and moves the mapping `there`,
 * which has the pages of `to`, to `here`. After an error the memory is as it was, but writable, and
 * `there` is left; `kind` says in a message which memory it is. */
int ibx_managed_replace(void *here, size_t n, void *there, void *to, const char *kind);
/* memcpy(3) of whole pages. */
void ibx_managed_copy_whole(void *to, const void *from, size_t n);

/* What has to happen before an access of the host. */
enum pages_answer {
    PAGES_NONE,   /* the address is in no managed memory */
    PAGES_READY,  /* repeat the access */
    PAGES_REMOTE, /* call ibx_managed_fetch(), in a thread that may call CUDA */
    PAGES_FAILED
};
enum pages_access { ACCESS_READ, ACCESS_WRITE, ACCESS_UNKNOWN };
enum pages_answer ibx_managed_look(uintptr_t at, enum pages_access access);
enum pages_answer ibx_managed_fetch(uintptr_t at, enum pages_access access);
/* Waits until the device has no work or, during a capture, for the work outside of it. In such a
 * thread, too. */
void ibx_managed_rest(void);
/* The same for a function that a stream waits for, in a thread that serves such functions. */
enum pages_answer ibx_managed_fetch_for_function(uintptr_t at, enum pages_access access);
/* In such a thread, when the function has returned: what it has changed goes to the device. */
int ibx_managed_function_over(void);
/* Whether a function has blocks. Quick. */
bool ibx_managed_any_lent(void);
/* Copies newer bytes to the device. `works`: the calling thread, or the one for which this is done,
 * then gives the device work. Returns a CUDA error. */
int ibx_managed_give(bool works);
/* Waits for copies of managed memory that are under way. */
void ibx_managed_copies_end(void);
/* The calling thread serves accesses of the others, or those of functions that streams wait for. */
void ibx_managed_serves(bool functions);
/* From now on nothing is fetched. Waits at most `ms` milliseconds for a fetch that is under way. */
void ibx_managed_end(unsigned ms);
/* Before and after calls that this library makes for itself in this thread. */
void ibx_managed_own_begin(void);
void ibx_managed_own_end(void);
/* Before and after the wait for a fetch. _begin() returns whether the thread was about to give the
 * device work, which _end() is told. */
bool ibx_managed_wait_begin(void);
void ibx_managed_wait_end(bool works);

/* What the plugin calls for this process's calls. */
extern const struct ibx_frontend_watch ibx_managed_watch;
/* The same while there is no managed memory. */
extern const struct ibx_frontend_watch ibx_managed_joining;

/* Before and after code during which a fault of the same thread would deadlock: handlers of the
 * program's signals run after it. Signals without a handler and faults are delivered as usual. */
struct held_handlers {
    bool any;
    sigset_t before; /* the thread's mask, if there are handlers */
};
void ibx_managed_hold_handlers(struct held_handlers *held);
void ibx_managed_let_handlers(const struct held_handlers *held);
/* The same for threads that are inside the plugin. */
extern const struct ibx_handlers_calls ibx_managed_handlers;

/* managed_signals.c: installs the handler of SIGSEGV, for good. False: it could not. */
bool ibx_managed_catch(void (*handler)(int number, siginfo_t *info, void *context));
bool ibx_managed_catches(void);
/* Installs it again before managed memory becomes inaccessible: the program may have set a handler
 * by a raw system call. */
void ibx_managed_catch_again(void);
/* Handles a signal that is not this library's as the kernel would. */
void ibx_managed_pass_on(int number, siginfo_t *info, void *context);
/* managed_masks.c: the real pthread_sigmask(3); the conversion of the program's mask to the
 * kernel's and back; whether the program blocks SIGSEGV by a mask of the kernel's. */
int ibx_managed_real_mask(int how, const sigset_t *set, sigset_t *old);
void ibx_managed_mark(sigset_t *set);
void ibx_managed_unmark(sigset_t *set);
bool ibx_managed_marked(const sigset_t *set);

/* Starts the thread that serves accesses of the host; false: there is none. */
bool ibx_managed_faults_begin(void);
/* Accesses of the host to memory whose pages are being replaced wait; false: they cannot. */
bool ibx_managed_faults_wait(void);
/* Has that thread call ibx_managed_rest(), and waits for it. */
void ibx_managed_have_rested(void);
/* The same with ibx_managed_give(), whose result it returns. */
int ibx_managed_have_given(bool works);

#endif
