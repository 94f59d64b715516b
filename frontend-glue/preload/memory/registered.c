/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Registered memory (cudaHostRegister) that kernels use, over shm. Linux cannot map private pages
 * of another process. So when the first launch names such memory, its bytes move to memory that is
 * shared with the back end (allocate() in struct ibx_frontend_calls), whose pages are mapped over
 * the program's. The back end maps the same pages at the same address. Memory that is only copied
 * stays as it is, and costs nothing. cudaHostUnregister moves the bytes back to private pages.
 *
 *   READY   the back end has the new pages, the program still has its own
 *   MOVED   both have the same pages
 *   LEFT    as MOVED, but no longer registered
 *
 *   READY -> MOVED   the bytes were copied, and the pages replaced
 *   MOVED -> LEFT    the registration ends: the pages are replaced again, and with that the piece
 *                    ends, unless there is no memory for others
 *
 * Either way no write is lost. Threads that write meanwhile wait in the handler of their fault, and
 * read what was there; copies of CUDA's wait or have ended (replaced_pages.c); and a fork waits.
 * What a device or another process writes by itself, to pages that it has pinned before, is not
 * seen any more. So nothing moves while the kernel counts pinned memory of this process (io_uring,
 * RDMA: mappings.c); a read by O_DIRECT that is under way is not counted.
 *
 * A child must not share memory with its parent. So it does not get the shared mappings
 * (MADV_DONTFORK), but private pages at the same addresses, with the bytes of the moment before the
 * fork, which the forking thread has copied. This goes by what is mapped, so memory that the
 * program has unmapped or moved since is left alone, or found. The program's own handlers of forks
 * (pthread_atfork) may run first in the child: what they have mapped there stays.
 */
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/memory/mappings.h"
#include "frontend-glue/preload/memory/memory.h"

#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RUNS 1024u /* mappings that a child can get */

enum piece_state { PIECE_READY, PIECE_MOVED, PIECE_LEFT };

/* The pages of a registered range. */
struct piece {
    struct piece *next;
    uint64_t range;  /* its number, ... */
    uintptr_t begin; /* ... and where it begins */
    struct ibx_registered_pages pages;
    enum piece_state state;
};

/* Changed by one thread at a time (kernel_reach.c). The lock is for the others, and is held for a
 * few instructions. */
static struct piece *pieces;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(void *) shared_at; /* an address in the shared memory; NULL: nothing has moved yet */

/* Held while pages are replaced, and across a fork. Whoever has it needs no other lock. */
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ------------------------------------------------------------------------------- why it cannot */

enum refusal {
    REFUSAL_PATH = MAPPINGS_NEIGHBOURS + 1,
    REFUSAL_BACK_END,
    REFUSAL_MEMORY,
    REFUSAL_SHARED_PAGE
};

static const char *const reasons[] = {
    [MAPPINGS_MOVABLE] = "they were registered",
    [MAPPINGS_UNKNOWN] = "they were registered, and /proc/self/maps cannot be read",
    [MAPPINGS_OTHER] = "they were registered, and not all of them are private memory of no file "
                       "that the program may write",
    [MAPPINGS_STACK] = "they were registered, and are on a stack",
    [MAPPINGS_LOCKED] = "they were registered, and are locked by mlock(2)",
    [MAPPINGS_PINNED] = "they were registered, and a device or io_uring has pinned memory of this "
                        "program, perhaps these pages: name them in a kernel before",
    [MAPPINGS_NEIGHBOURS] = "they were registered, and their first or last page has other bytes, "
                            "too: register whole pages",
    [REFUSAL_PATH] = "they were registered, and the back end gets such memory over shm only, "
                     "and not of a forked child",
    [REFUSAL_BACK_END] = "they were registered, and the back end cannot map them",
    [REFUSAL_MEMORY] = "they were registered, and there is no memory or no mapping left to move "
                       "them to",
    [REFUSAL_SHARED_PAGE] = "they were registered, and have a page in common with other registered "
                            "memory that kernels use",
};

static _Thread_local unsigned why;

static int refuse(unsigned reason)
{
    why = reason;
    return CUDA_NOT_SUPPORTED;
}

const char *ibx_registered_why(void)
{
    return reasons[why];
}

/* -------------------------------------------------------------------------------- the list */

static struct piece *find(uint64_t range)
{
    struct piece *p = pieces;
    while (p && p->range != range)
        p = p->next;
    return p;
}

static struct piece *overlapping(uintptr_t at, size_t n)
{
    struct piece *p = pieces;
    while (p && !(p->pages.at < at + n && at < p->pages.at + p->pages.n))
        p = p->next;
    return p;
}

static void add(struct piece *p)
{
    pthread_mutex_lock(&table);
    p->next = pieces;
    pieces = p;
    pthread_mutex_unlock(&table);
}

/* Frees the shared memory, too. */
static void drop(struct piece *p)
{
    struct piece **at = &pieces;
    pthread_mutex_lock(&table);
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pthread_mutex_unlock(&table);
    ibx_frontend_plugin()->release(p->pages.shared, p->pages.n);
    free(p);
}

static void set_state(struct piece *p, enum piece_state state)
{
    pthread_mutex_lock(&table);
    p->state = state;
    pthread_mutex_unlock(&table);
}

/* ------------------------------------------------------------------------- other pages */

/* A second mapping of shared pages, which a child does not get. NULL: there is no memory. */
static void *map_again(void *shared, size_t n)
{
    void *there = mremap(shared, 0, n, MREMAP_MAYMOVE); /* a length of 0 asks for that */
    if (there == MAP_FAILED)
        return NULL;
    if (!madvise(there, n, MADV_DONTFORK))
        return there;
    munmap(there, n);
    return NULL;
}

/* Copies n bytes from `here` to `to`, and maps `there`, which has the pages of `to`, at `here`.
 * `there` NULL: another mapping of these shared pages; a fork meanwhile would take it for the
 * program's memory. After an error the program's memory is as it was. */
static int replace(void *here, size_t n, void *there, void *to)
{
    struct join held;
    ibx_managed_join_begin((uintptr_t)here, n, &held);
    pthread_mutex_lock(&moving);
    if (!there)
        there = map_again(to, n);
    const int rc = there ? ibx_managed_replace(here, n, there, to, "registered") : -ENOMEM;
    if (rc && there)
        munmap(there, n);
    pthread_mutex_unlock(&moving);
    ibx_managed_join_end(&held);
    return rc;
}

/* The last page is a mapping of its own: so mremap(2) of all of it to more bytes fails (EFAULT),
 * and realloc(3) copies. It would find other shared memory behind. A single page has no such
 * limit of the kernel's, only that of mremap() below; malloc(3) maps no allocation of one page by
 * itself, unless M_MMAP_THRESHOLD says so. */
static void keep_length(const struct ibx_registered_pages *pages)
{
    const size_t page = page_size();
    if (pages->n > page)
        madvise((void *)(pages->at + pages->n - page), page, MADV_RANDOM);
}

int ibx_registered_move(const struct range *range)
{
    struct piece *p = find(range->number);
    if (p->state == PIECE_MOVED)
        return CUDA_SUCCESS;
    atomic_store(&shared_at, p->pages.shared);
    if (replace((void *)p->pages.at, p->pages.n, NULL, p->pages.shared))
        return refuse(REFUSAL_MEMORY);
    set_state(p, PIECE_MOVED);
    keep_length(&p->pages);
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------- begin and end */

static int make(const struct range *range, size_t n)
{
    const uintptr_t at = range->begin / page_size() * page_size();
    struct piece *p = malloc(sizeof(*p));
    uint8_t *shared = p ? ibx_frontend_plugin()->allocate(n) : NULL;
    if (!shared) {
        free(p);
        return refuse(REFUSAL_MEMORY);
    }
    *p = (struct piece){.range = range->number,
                        .begin = range->begin,
                        .pages = {.at = at, .n = n, .shared = shared}};
    add(p);
    return CUDA_SUCCESS;
}

bool ibx_registered_in_the_way(const struct range *range, uint64_t *number)
{
    const size_t page = page_size();
    const uintptr_t at = range->begin / page * page;
    const struct piece *p = overlapping(at, range->begin + range->n - at);
    if (!p || ibx_frontend_host_numbered((void *)p->begin, p->range))
        return false;
    *number = p->range;
    return true;
}

enum range_moves ibx_registered_moves(const struct range *range)
{
    switch (ibx_mappings_movable(range->begin, range->n)) {
    case MAPPINGS_MOVABLE:
        return MOVES_YES;
    case MAPPINGS_STACK:
    case MAPPINGS_NEIGHBOURS:
        return MOVES_NEVER;
    default: /* the program may unlock it, or change its protection */
        return MOVES_UNKNOWN;
    }
}

int ibx_registered_begin(const struct range *range, struct ibx_registered_pages *pages)
{
    const size_t page = page_size();
    const uintptr_t at = range->begin / page * page;
    const size_t n = (range->begin + range->n - at + page - 1) / page * page;
    const struct piece *p = find(range->number);
    if (!p) {
        const enum mappings_refusal refused = ibx_mappings_movable(range->begin, range->n);
        if (overlapping(at, n))
            return refuse(REFUSAL_SHARED_PAGE);
        if (refused)
            return refuse(refused);
        if (!ibx_managed_begin_joins())
            return refuse(REFUSAL_MEMORY);
        if (make(range, n))
            return CUDA_NOT_SUPPORTED;
        p = find(range->number);
    }
    *pages = p->pages;
    return CUDA_SUCCESS;
}

void ibx_registered_refused(const struct range *range, bool path)
{
    struct piece *p = find(range->number);
    if (p && p->state == PIECE_READY)
        drop(p);
    refuse(path ? REFUSAL_PATH : REFUSAL_BACK_END);
}

bool ibx_registered_has(uint64_t range, struct ibx_registered_pages *pages)
{
    const struct piece *p = find(range);
    if (p)
        *pages = p->pages;
    return p;
}

/* Addresses, and what they are mapped to: which parts of the shared file. */
struct search {
    struct mapping whole; /* one of this process's own mappings of that file */
    uintptr_t at, end;
    uint64_t from, until; /* in the file */
};

/* Limits a mapping to the part that is searched for. False: it has none. */
static bool is_part(const struct search *s, struct mapping *m)
{
    if (!ibx_mapping_is_alias(m, &s->whole) || m->offset >= s->until)
        return false;
    const uint64_t before = m->offset < s->from ? s->from - m->offset : 0;
    const uint64_t most = s->until - m->offset;
    const uintptr_t begin = m->begin;
    m->end = m->end - begin < most ? m->end : begin + most;
    m->begin = begin + before > s->at ? begin + before : s->at;
    m->end = m->end < s->end ? m->end : s->end;
    return m->begin < m->end;
}

/* The next part that the program has, in the order of addresses. False: there is none. */
static bool next_part(struct search *s, struct mapping *part)
{
    struct mappings all;
    bool found = false;
    const int cancel = ibx_thread_hold_cancel();
    if (s->at < s->end && ibx_mappings_open(&all)) {
        while (!found && ibx_mappings_next(&all, part) && part->begin < s->end)
            found = part->end > s->at && is_part(s, part);
        ibx_mappings_close(&all);
    }
    ibx_thread_release_cancel(cancel);
    if (found)
        s->at = part->end;
    return found;
}

/* False: there is no memory. */
static bool move_back(const struct mapping *part)
{
    const size_t n = part->end - part->begin;
    const int access = PROT_READ | PROT_WRITE;
    void *there = mmap(NULL, n, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return there != MAP_FAILED && !replace((void *)part->begin, n, there, there);
}

static void tell_left(const struct piece *p)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%zu bytes at %p, which are no longer registered, stay in memory that is shared "
                "with the back end, since there is no memory or no mapping left for others",
                p->pages.n, (void *)p->pages.at);
}

/* Wherever the program has moved them to. */
static bool move_all_back(const struct ibx_registered_pages *pages)
{
    struct search s = {.end = UINTPTR_MAX};
    struct mapping part;
    const uintptr_t shared = (uintptr_t)pages->shared;
    bool good = true;
    if (!ibx_mapping_of(shared, &s.whole))
        return false;
    s.from = s.whole.offset + (shared - s.whole.begin);
    s.until = s.from + pages->n;
    while (next_part(&s, &part))
        good = move_back(&part) && good;
    return good;
}

void ibx_registered_back(uint64_t range)
{
    struct piece *p = find(range);
    if (!p)
        return;
    set_state(p, p->state == PIECE_MOVED ? PIECE_LEFT : p->state); /* no copy begins there now */
    ibx_frontend_plugin()->drain(p->pages.shared, p->pages.n);
    if (p->state == PIECE_READY || move_all_back(&p->pages))
        drop(p);
    else
        tell_left(p);
}

uint8_t *ibx_registered_shared(const void *address, size_t n)
{
    uint8_t *shared = NULL;
    const uintptr_t at = (uintptr_t)address;
    if (!atomic_load_explicit(&shared_at, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&table);
    for (const struct piece *p = pieces; p && !shared; p = p->next) {
        const uintptr_t into = at - p->pages.at;
        if (p->state == PIECE_MOVED && into < p->pages.n && n <= p->pages.n - into)
            shared = p->pages.shared + into;
    }
    pthread_mutex_unlock(&table);
    return shared;
}

/* ------------------------------------------------------------------------------------- forks */

/* What a child gets. */
static struct child_run {
    void *at, *copy;
    size_t n;
} runs[RUNS];
static unsigned run_count;

static void tell_lost(const struct mapping *m)
{
    ibx_log(IBX_LOG_WARN,
            "a child does not get the %zu bytes of registered memory at %p, since this process has "
            "no memory or too many mappings for a copy",
            (size_t)(m->end - m->begin), (void *)m->begin);
}

static void copy_run(const struct mapping *m)
{
    const size_t n = m->end - m->begin;
    if (m->access[0] != 'r') /* the program has made it so */
        return;
    void *copy = run_count == RUNS
                     ? MAP_FAILED
                     : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        tell_lost(m);
        return;
    }
    ibx_managed_copy_whole(copy, (void *)m->begin, n);
    if (m->access[1] != 'w')
        mprotect(copy, n, PROT_READ);
    runs[run_count++] = (struct child_run){(void *)m->begin, copy, n};
}

static bool any_piece(void)
{
    pthread_mutex_lock(&table);
    const bool any = pieces;
    pthread_mutex_unlock(&table);
    return any;
}

static void before_fork(void)
{
    struct mapping whole, m;
    struct mappings all;
    pthread_mutex_lock(&moving);
    run_count = 0;
    const uintptr_t shared = (uintptr_t)atomic_load(&shared_at);
    if (!shared || !any_piece())
        return;
    const int cancel = ibx_thread_hold_cancel();
    if (ibx_mapping_of(shared, &whole) && ibx_mappings_open(&all)) {
        while (ibx_mappings_next(&all, &m))
            if (ibx_mapping_is_alias(&m, &whole))
                copy_run(&m);
        ibx_mappings_close(&all);
    }
    ibx_thread_release_cancel(cancel);
}

static void in_parent(void)
{
    for (unsigned i = 0; i < run_count; i++)
        munmap(runs[i].copy, runs[i].n);
    pthread_mutex_unlock(&moving);
}

/* Whether nothing was mapped there; then memory without access is. */
static bool reserve(void *at, size_t n)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *there = mmap(at, n, PROT_NONE, flags, -1, 0);
    if (there != at && there != MAP_FAILED)
        munmap(there, n); /* a kernel before 4.17 ignores MAP_FIXED_NOREPLACE */
    return there == at;
}

/* Moves the pages at `copy` to where nothing is mapped, in halves if something is. Returns the
 * bytes that have no place. */
static size_t put(uint8_t *at, uint8_t *copy, size_t n)
{
    const size_t page = page_size(), half = n / page / 2 * page;
    if (reserve(at, n)) {
        if (mremap(copy, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED)
            return 0;
        munmap(at, n);
    } else if (half) {
        return put(at, copy, half) + put(at + half, copy + half, n - half);
    }
    munmap(copy, n);
    return n;
}

/* The child has nothing of the list, nor of the shared memory. */
static void in_child(void)
{
    for (unsigned i = 0; i < run_count; i++) {
        const size_t left = put(runs[i].at, runs[i].copy, runs[i].n);
        if (left)
            ibx_log(IBX_LOG_WARN,
                    "a child does not get %zu of the %zu bytes of registered memory at %p, in "
                    "place of which a handler of the program (pthread_atfork) has mapped others, "
                    "or since there are too many mappings",
                    left, runs[i].n, runs[i].at);
    }
    pieces = NULL;
    atomic_store(&shared_at, NULL);
    pthread_mutex_init(&table, NULL);
    pthread_mutex_init(&moving, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ------------------------------------------------------------------------------- madvise(2) */

static bool has_moved(uintptr_t at, size_t n)
{
    pthread_mutex_lock(&table);
    const struct piece *p = pieces;
    while (p &&
           (p->state == PIECE_READY || p->pages.at >= at + n || p->pages.at + p->pages.n <= at))
        p = p->next;
    pthread_mutex_unlock(&table);
    return p;
}

/* Private pages that are not needed any more read as zeros, on which allocators rely. Those of
 * shared memory would keep their bytes; without them there are zeros, too. The back end's kernels
 * then still have the former pages, as natively. */
static void forget(uintptr_t at, size_t n)
{
    struct search s = {.at = at, .until = UINT64_MAX};
    struct mapping part;
    const size_t page = page_size();
    s.end = at + (n + page - 1) / page * page;
    if (!has_moved(at, s.end - at) || !ibx_mapping_of((uintptr_t)atomic_load(&shared_at), &s.whole))
        return;
    while (next_part(&s, &part))
        syscall(SYS_madvise, part.begin, part.end - part.begin, MADV_REMOVE);
}

/* The next function of that name is not looked up: allocators call this one at any time. */
__attribute__((visibility("default"))) int madvise(void *at, size_t n, int advice)
{
    const int rc = (int)syscall(SYS_madvise, at, n, advice);
    if (rc || advice != MADV_DONTNEED || !atomic_load_explicit(&shared_at, memory_order_relaxed))
        return rc;
    const int before = errno;
    forget((uintptr_t)at, n);
    errno = before;
    return 0;
}

/* ------------------------------------------------------------------------------- mremap(2) */

static bool has_shared_part(uintptr_t at, size_t n)
{
    struct search s = {.at = at, .end = at + n, .until = UINT64_MAX};
    struct mapping part;
    return has_moved(at, n) && ibx_mapping_of((uintptr_t)atomic_load(&shared_at), &s.whole) &&
           next_part(&s, &part);
}

/* More bytes would be those that the shared file has behind. So this fails as for a range of
 * several mappings, which keep_length() makes of what has several pages: an allocator calls the
 * kernel itself. */
__attribute__((visibility("default"))) void *mremap(void *at, size_t n, size_t now, int flags, ...)
{
    void *to = NULL;
    if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) {
        va_list more;
        va_start(more, flags);
        to = va_arg(more, void *);
        va_end(more);
    }
    if (n && now > n && atomic_load_explicit(&shared_at, memory_order_relaxed) &&
        has_shared_part((uintptr_t)at, n)) {
        errno = EFAULT;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, at, n, now, flags, to);
}
