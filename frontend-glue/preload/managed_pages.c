/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which side has the newest bytes of managed memory, and how they come to the other (managed.h). */
#include "frontend-glue/preload/managed.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RUN_BYTES  (4u << 20) /* that change at once, at most */
#define CAPTURE_MS 5000u      /* that another program's capture is waited for */

static pthread_mutex_t pages = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t list = PTHREAD_RWLOCK_INITIALIZER;
static struct managed *all;
static _Atomic uintptr_t lowest = UINTPTR_MAX, highest; /* that any had */

/* Before the device works a thread says so, and looks whether any block is fresh; who is about to
 * make one fresh says so, and waits until no thread is there. So nobody misses the other. */
static atomic_uint working; /* threads that are about to have the device work */
static atomic_bool fresh;   /* some block may be */
/* How often work has begun, and how many of these are over, as far as a wait has shown: the device
 * may be working while they differ. */
static _Atomic uint64_t work_begun, work_over;
static bool ended; /* locked: with the process nothing is fetched any more */
static _Thread_local unsigned inside;
static _Thread_local unsigned own;
static _Thread_local bool in_gvirtus; /* the thread is in a request of GVirtuS's front end */
static _Thread_local bool captured;   /* what the thread has the device do becomes a graph's */
static _Thread_local bool waited;     /* for a fetch, while the device was about to work */
static _Thread_local bool recorded;   /* what it has begun is a graph's */
static _Thread_local bool serves;     /* the thread serves the others (managed_faults.c) */

/* A handler of the program's that touches managed memory needs the lock: it waits until its own
 * thread has it no more. */
static void lock_pages(struct held_handlers *before)
{
    ibx_managed_hold_handlers(before);
    pthread_mutex_lock(&pages);
}

static void unlock_pages(const struct held_handlers *before)
{
    pthread_mutex_unlock(&pages);
    ibx_managed_let_handlers(before);
}

/* ------------------------------------------------------------------------------- the list */

static void widen(const struct managed *m)
{
    if (m->begin < atomic_load(&lowest))
        atomic_store(&lowest, m->begin);
    if (m->begin + m->n > atomic_load(&highest))
        atomic_store(&highest, m->begin + m->n);
}

void ibx_managed_add(struct managed *m, enum pages_state state)
{
    struct held_handlers before;
    memset(m->state, (int)state, m->blocks);
    m->fresh = state == PAGES_STALE ? 0 : m->blocks;
    m->newer = state == PAGES_NEWER ? m->blocks : 0;
    lock_pages(&before);
    pthread_rwlock_wrlock(&list);
    if (m->fresh)
        atomic_store(&fresh, true);
    widen(m);
    m->next = all;
    all = m;
    pthread_rwlock_unlock(&list);
    unlock_pages(&before);
}

struct managed *ibx_managed_take(uintptr_t begin)
{
    struct held_handlers before;
    lock_pages(&before);
    pthread_rwlock_wrlock(&list);
    struct managed **at = &all;
    while (*at && ((*at)->variables || (begin ? (*at)->begin != begin : (*at)->in_place)))
        at = &(*at)->next;
    struct managed *found = *at;
    if (found)
        *at = found->next;
    pthread_rwlock_unlock(&list);
    unlock_pages(&before);
    return found;
}

/* ------------------------------------------------------------------------------ variables */

/* From the first one's beginning to the last one's end. */
static void note_extent(struct managed *m)
{
    uint64_t first = UINT64_MAX, end = 0;
    for (size_t i = 0; i < m->variable_count; i++) {
        const struct place *where = &m->variables[i].where;
        first = where->at < first ? where->at : first;
        end = where->at + where->n > end ? where->at + where->n : end;
    }
    m->before = first - m->begin;
    m->asked = end - first;
}

bool ibx_managed_set_variables(struct managed *m, const struct managed_variable *which,
                               size_t count)
{
    m->variables = calloc(count, sizeof(*m->variables));
    if (!m->variables)
        return false;
    memcpy(m->variables, which, count * sizeof(*which));
    m->variable_count = count;
    note_extent(m);
    return true;
}

static void drop_variables(struct managed *m, void *const *module)
{
    size_t left = 0;
    for (size_t i = 0; i < m->variable_count; i++) {
        if (m->variables[i].module != module)
            m->variables[left++] = m->variables[i];
    }
    m->variable_count = left;
    if (left)
        note_extent(m);
}

struct managed *ibx_managed_take_module(void **module)
{
    struct held_handlers before;
    struct managed *found = NULL;
    lock_pages(&before);
    pthread_rwlock_wrlock(&list);
    for (struct managed **at = &all; *at && !found; at = found ? at : &(*at)->next) {
        if (!(*at)->variables)
            continue;
        drop_variables(*at, module);
        if (!(*at)->variable_count) {
            found = *at;
            *at = found->next;
        }
    }
    pthread_rwlock_unlock(&list);
    unlock_pages(&before);
    return found;
}

bool ibx_managed_variable(size_t number, struct managed_variable *found)
{
    pthread_rwlock_rdlock(&list);
    const struct managed *m = all;
    while (m && number >= m->variable_count) {
        number -= m->variable_count;
        m = m->next;
    }
    if (m)
        *found = m->variables[number];
    pthread_rwlock_unlock(&list);
    return m;
}

/* With one of the locks. */
static struct managed *holding(uintptr_t at)
{
    struct managed *m = all;
    while (m && at - m->begin >= m->n)
        m = m->next;
    return m;
}

bool ibx_managed_may_hold(uintptr_t at)
{
    return at >= atomic_load_explicit(&lowest, memory_order_relaxed) &&
           at < atomic_load_explicit(&highest, memory_order_relaxed);
}

bool ibx_managed_find(uintptr_t at, struct managed *found)
{
    if (!ibx_managed_may_hold(at))
        return false;
    pthread_rwlock_rdlock(&list);
    const struct managed *m = holding(at);
    if (m && found)
        *found = (struct managed){.begin = m->begin,
                                  .n = m->n,
                                  .before = m->before,
                                  .asked = m->asked,
                                  .device = m->device,
                                  .mapped = m->mapped,
                                  .in_place = m->in_place,
                                  .variables = m->variables};
    pthread_rwlock_unlock(&list);
    return m;
}

bool ibx_managed_any(void)
{
    return atomic_load_explicit(&highest, memory_order_relaxed);
}

uint8_t *ibx_managed_other(uintptr_t at, size_t n)
{
    if (!n || !ibx_managed_may_hold(at))
        return NULL;
    pthread_rwlock_rdlock(&list);
    const struct managed *m = holding(at);
    uint8_t *other = m && n <= m->n - (at - m->begin) ? m->other + (at - m->begin) : NULL;
    pthread_rwlock_unlock(&list);
    return other;
}

bool ibx_managed_within(uintptr_t *at, uintptr_t end, uintptr_t *last)
{
    const struct managed *first = NULL;
    if (*at >= end || *at >= atomic_load_explicit(&highest, memory_order_relaxed) ||
        end <= atomic_load_explicit(&lowest, memory_order_relaxed))
        return false;
    pthread_rwlock_rdlock(&list);
    for (const struct managed *m = all; m; m = m->next) {
        if (m->begin < end && *at < m->begin + m->n && (!first || m->begin < first->begin))
            first = m;
    }
    if (first) {
        *at = *at < first->begin ? first->begin : *at;
        *last = end < first->begin + first->n ? end : first->begin + first->n;
    }
    pthread_rwlock_unlock(&list);
    return first;
}

bool ibx_frontend_is_managed(const void *address)
{
    return ibx_managed_find((uintptr_t)address, NULL);
}

/* The memory is not a child's, as CUDA has it. Who holds `pages` may wait for whatever else a fork
 * has locked. */
static void before_fork(void)
{
    pthread_rwlock_rdlock(&list);
}

static void in_parent(void)
{
    pthread_rwlock_unlock(&list);
}

static void in_child(void)
{
    all = NULL;
    atomic_store(&lowest, UINTPTR_MAX);
    atomic_store(&highest, 0);
    atomic_store(&working, 0);
    atomic_store(&fresh, false);
    atomic_store(&work_over, atomic_load(&work_begun));
    pthread_mutex_init(&pages, NULL);
    pthread_rwlock_init(&list, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---------------------------------------------------------------------- blocks change state */

static size_t bytes_of(const struct managed *m, size_t first, size_t count)
{
    const size_t end = (first + count) * m->block;
    return (end < m->n ? end : m->n) - first * m->block;
}

static bool protect(const struct managed *m, size_t first, size_t count, int access)
{
    void *at = (void *)(m->begin + first * m->block);
    if (!mprotect(at, bytes_of(m, first, count), access))
        return true;
    ibx_log(IBX_LOG_ERROR,
            "managed memory at %p cannot change its protection: %s; where this process has more "
            "mappings than vm.max_map_count, raise that by sysctl(8)",
            at, strerror(errno));
    return false;
}

static void set(struct managed *m, size_t first, size_t count, enum pages_state state)
{
    for (size_t i = first; i < first + count; i++) {
        m->fresh += (state != PAGES_STALE) - (size_t)(m->state[i] != PAGES_STALE);
        m->newer += (state == PAGES_NEWER) - (size_t)(m->state[i] == PAGES_NEWER);
        m->state[i] = (uint8_t)state;
    }
}

/* How many blocks of its state change with this one. */
static size_t run_of(const struct managed *m, size_t first, struct run *run)
{
    const size_t most = RUN_BYTES / m->block > 1 ? RUN_BYTES / m->block : 1;
    size_t wanted = first == run->next && run->count ? 2 * run->count : 1, count = 1;
    if (wanted > most)
        wanted = most;
    while (count < wanted && first + count < m->blocks &&
           m->state[first + count] == m->state[first])
        count++;
    *run = (struct run){first + count, count};
    return count;
}

static bool make_newer(struct managed *m, size_t first)
{
    const size_t count = run_of(m, first, &m->written);
    if (!protect(m, first, count, PROT_READ | PROT_WRITE))
        return false;
    set(m, first, count, PAGES_NEWER);
    return true;
}

/* Another thread may have been here first. */
static bool make_ready(struct managed *m, size_t block, enum pages_access access)
{
    if (m->state[block] == PAGES_NEWER)
        return protect(m, block, 1, PROT_READ | PROT_WRITE);
    return access == ACCESS_READ ? protect(m, block, 1, PROT_READ) : make_newer(m, block);
}

enum pages_answer ibx_managed_look(uintptr_t at, enum pages_access access)
{
    struct held_handlers before;
    enum pages_answer answer = PAGES_READY;
    lock_pages(&before);
    struct managed *m = holding(at);
    const size_t block = m ? (at - m->begin) / m->block : 0;
    if (!m)
        answer = PAGES_NONE;
    else if (m->state[block] == PAGES_STALE)
        answer = PAGES_REMOTE;
    else if (!make_ready(m, block, access))
        answer = PAGES_FAILED;
    unlock_pages(&before);
    return answer;
}

void ibx_managed_serves(void)
{
    serves = true;
}

/* In a stream of its own, while captures would mind one in the legacy stream. */
static bool copied_beside(void *to, const void *from, size_t n, int kind, int device)
{
    return serves && ibx_frontend_capturing() &&
           !ibx_frontend_copy_beside(to, from, n, kind, device);
}

/* A copy that is over when this returns, between the device and our second mapping. GVirtuS's front
 * end makes those of a thread without a connection. */
static int copy_part(const struct managed *m, size_t at, size_t n, bool to_device)
{
    const struct ibx_frontend_copy wish = {
        .to_device = to_device, .device = m->begin + at, .host = m->other + at, .n = n};
    void *device = (void *)(m->begin + at), *host = m->other + at;
    void *to = to_device ? device : host, *from = to_device ? host : device;
    const int kind = to_device ? CUDA_MEMCPY_TO_DEVICE : CUDA_MEMCPY_FROM_DEVICE;
    int rc;
    if (copied_beside(to, from, n, kind, m->device))
        return CUDA_SUCCESS;
    if (!ibx_frontend_plugin()->copy(&wish, &rc))
        return rc;
    return in_gvirtus ? CUDA_UNKNOWN : CALL_NEXT(cudaMemcpy, to, from, n, kind);
}

/* Beside variables others may have theirs in the same pages. */
static int copy(const struct managed *m, size_t at, size_t n, bool to_device)
{
    int rc = CUDA_SUCCESS;
    if (!m->variables)
        return copy_part(m, at, n, to_device);
    for (size_t i = 0; i < m->variable_count && !rc; i++) {
        const struct place *where = &m->variables[i].where;
        const size_t begin = where->at - m->begin, end = begin + where->n;
        const size_t from = begin > at ? begin : at, last = end < at + n ? end : at + n;
        if (from < last)
            rc = copy_part(m, from, last - from, to_device);
    }
    return rc;
}

/* ---------------------------------------------------------------------- the device works */

/* Locked. What is newer here goes to the device; settle() tells whether it is there. */
static int push(const struct managed *m)
{
    int rc = CUDA_SUCCESS;
    for (size_t first = 0, left = m->newer, count; left && !rc; first += count) {
        const bool newer = m->state[first] == PAGES_NEWER;
        for (count = 1;
             first + count < m->blocks && (m->state[first + count] == PAGES_NEWER) == newer;)
            count++;
        if (newer) {
            rc = copy(m, first * m->block, bytes_of(m, first, count), true);
            left -= count;
        }
    }
    return rc;
}

/* A copy to the device may return before it is made, and streams that the legacy one does not block
 * would not wait for it: one back does. */
static int settle(const struct managed *m)
{
    uint8_t byte = 0;
    const struct ibx_frontend_copy wish = {.device = m->begin + m->before, .host = &byte, .n = 1};
    int rc;
    if (copied_beside(&byte, (void *)(m->begin + m->before), 1, CUDA_MEMCPY_FROM_DEVICE, m->device))
        return CUDA_SUCCESS;
    if (!ibx_frontend_plugin()->copy(&wish, &rc))
        return rc;
    return in_gvirtus ? CUDA_UNKNOWN
                      : CALL_NEXT(cudaMemcpy, &byte, (void *)(m->begin + m->before), 1,
                                  CUDA_MEMCPY_FROM_DEVICE);
}

static void not_given(const struct managed *m, int rc)
{
    static int said; /* each error once: the same one may meet all calls that follow */
    if (rc != said)
        ibx_log(IBX_LOG_ERROR,
                "what the program has written to managed memory at %p does not reach the device, "
                "with CUDA's error %d: take no results from there, and see what the back end says",
                (void *)m->begin, rc);
    said = rc;
}

/* Locked. All of it becomes the device's, or else keeps its state. Until then who touches it waits
 * for the lock. */
static int give(void)
{
    const struct managed *last = NULL, *pushed = NULL;
    int rc = CUDA_SUCCESS;
    ibx_managed_own_begin();
    for (const struct managed *m = all; m && !rc; m = m->next) {
        if (!m->fresh)
            continue;
        last = m;
        if (!protect(m, 0, m->blocks, PROT_NONE))
            rc = CUDA_MEMORY_ALLOCATION;
        else if (m->newer)
            rc = push(pushed = m);
    }
    if (!rc && pushed)
        rc = settle(last = pushed);
    for (struct managed *m = all; m && !rc; m = m->next) {
        if (m->fresh)
            set(m, 0, m->blocks, PAGES_STALE);
    }
    if (rc)
        not_given(last, rc);
    else
        atomic_store(&fresh, false);
    ibx_managed_own_end();
    return rc;
}

void ibx_managed_own_begin(void)
{
    own++;
}

void ibx_managed_own_end(void)
{
    own--;
}

int ibx_managed_give(bool works)
{
    struct held_handlers before;
    lock_pages(&before);
    const int rc = give();
    if (works) {
        atomic_fetch_add(&working, 1);
        atomic_fetch_add(&work_begun, 1);
    }
    unlock_pages(&before);
    return rc;
}

/* Beside captures another thread does: it has streams that no capture minds. */
static int have_given(bool works)
{
    return ibx_frontend_capturing() ? ibx_managed_have_given(works) : ibx_managed_give(works);
}

void ibx_frontend_managed_resets(void)
{
    if (ibx_managed_any())
        have_given(false);
}

/* Locked. False: no memory. */
static bool add_variable(struct managed *m, const struct managed_variable *variable)
{
    pthread_rwlock_wrlock(&list);
    struct managed_variable *more =
        realloc(m->variables, (m->variable_count + 1) * sizeof(*m->variables));
    if (more) {
        m->variables = more;
        m->variables[m->variable_count++] = *variable;
        note_extent(m);
    }
    pthread_rwlock_unlock(&list);
    return more;
}

/* No block of theirs is fresh meanwhile: it would have none of these bytes. */
int ibx_managed_join(const struct managed_variable *variable)
{
    for (;;) {
        struct held_handlers before;
        int rc = have_given(false);
        lock_pages(&before);
        struct managed *m = holding(variable->where.at);
        const bool touched = !rc && m && m->fresh;
        if (!rc && (!m || !m->variables))
            rc = CUDA_INVALID_VALUE;
        if (!rc && !touched && !add_variable(m, variable))
            rc = CUDA_MEMORY_ALLOCATION;
        unlock_pages(&before);
        if (!touched)
            return rc;
    }
}

/* In between a handler of the program's would take its thread for one that is counted. */
static int give_before_work(void)
{
    struct held_handlers before;
    ibx_managed_hold_handlers(&before);
    atomic_fetch_sub(&working, 1);
    const int rc = have_given(true);
    ibx_managed_let_handlers(&before);
    return rc;
}

static int work_begins(void)
{
    if (own || inside++)
        return CUDA_SUCCESS;
    atomic_fetch_add(&working, 1);
    recorded = captured;
    if (!captured)
        atomic_fetch_add(&work_begun, 1);
    return captured || !atomic_load(&fresh) ? CUDA_SUCCESS : give_before_work();
}

/* What was fetched meanwhile for this thread, for its arguments for instance, is stale now. A copy
 * of this thread's would come between its request and the reply: a handler of a signal may have
 * written meanwhile. Another one may have waited for the device before the work was there. */
static void work_has_begun(void)
{
    if (own || !inside || --inside)
        return;
    const bool again = waited;
    waited = false;
    if (again || !recorded)
        atomic_fetch_add(&work_begun, 1);
    atomic_fetch_sub(&working, 1);
    if (again)
        ibx_managed_have_given(false);
}

void ibx_managed_wait_begin(void)
{
    if (inside)
        atomic_fetch_sub(&working, 1);
}

void ibx_managed_wait_end(void)
{
    waited = inside;
    if (inside)
        atomic_fetch_add(&working, 1);
}

/* ------------------------------------------------------------- accesses to what is stale */

static bool is_busy(void)
{
    return atomic_load(&work_over) != atomic_load(&work_begun);
}

/* Beside captures of this process's there may be more work than this. What begins meanwhile, this
 * does not wait for. */
static int wait_once(bool all_work)
{
    const uint64_t before = atomic_load(&work_begun);
    if (ibx_frontend_capturing())
        return ibx_frontend_streams_rest(all_work);
    const int rc = ibx_frontend_devices_wait();
    if (!rc)
        atomic_store(&work_over, before);
    return rc;
}

/* Until the device rests. While another program of the back end captures it cannot be
 * waited for, which is over soon. */
static bool rest(bool all_work)
{
    const uint64_t deadline = ibx_deadline_in_ms(CAPTURE_MS);
    int rc = CUDA_SUCCESS;
    do {
        if (rc)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        rc = wait_once(all_work);
    } while (rc == CUDA_CAPTURE_UNSUPPORTED && ibx_now_ns() < deadline);
    if (rc)
        ibx_log(IBX_LOG_ERROR,
                "managed memory cannot be read behind the device's work: the wait for that fails "
                "with CUDA's error %d: see what the back end says",
                rc);
    return !rc;
}

/* Locked. Until the device rests and nobody is about to change that. */
static bool wait_for_device(void)
{
    atomic_store(&fresh, true);
    while (atomic_load(&working))
        nanosleep(&(struct timespec){.tv_nsec = 5000}, NULL);
    return !is_busy() || rest(true);
}

static bool fetch(struct managed *m, size_t first, enum pages_access access)
{
    const size_t count = run_of(m, first, &m->fetched), at = first * m->block;
    const int rc = copy(m, at, bytes_of(m, first, count), false);
    if (rc) {
        ibx_log(IBX_LOG_ERROR,
                "the program reads managed memory at %p that the device has, and the copy fails "
                "with CUDA's error %d: see what the back end says",
                (void *)(m->begin + at), rc);
        return false;
    }
    if (!protect(m, first, count, PROT_READ))
        return false;
    set(m, first, count, PAGES_SAME);
    return access != ACCESS_WRITE || make_newer(m, first);
}

enum pages_answer ibx_managed_fetch(uintptr_t at, enum pages_access access)
{
    struct held_handlers before;
    enum pages_answer answer = PAGES_READY;
    ibx_managed_own_begin();
    lock_pages(&before);
    struct managed *m = holding(at);
    const size_t block = m ? (at - m->begin) / m->block : 0;
    if (!m)
        answer = PAGES_NONE;
    else if (m->state[block] == PAGES_STALE &&
             (ended || !wait_for_device() || !fetch(m, block, access)))
        answer = PAGES_FAILED;
    unlock_pages(&before);
    ibx_managed_own_end();
    return answer;
}

void ibx_managed_end(unsigned ms)
{
    const uint64_t deadline = ibx_deadline_in_ms(ms);
    const struct timespec until = ibx_timespec_of(deadline);
    struct held_handlers before;
    ibx_managed_hold_handlers(&before);
    if (!pthread_mutex_clocklock(&pages, CLOCK_MONOTONIC, &until)) {
        ended = true;
        pthread_mutex_unlock(&pages);
    }
    ibx_managed_let_handlers(&before);
}

/* -------------------------------------------------------------------- what the plugin tells */

static bool starts(const char *name, const char *prefix)
{
    return !strncmp(name, prefix, strlen(prefix));
}

/* A request of our own, by its number. */
static bool extra_works(const void *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    switch (ibx_get_u16(&r)) {
    case IBX_EXTRA_LAUNCH:
    case IBX_EXTRA_TO_ARRAY:
    case IBX_EXTRA_FROM_ARRAY:
    case IBX_EXTRA_2D_TO_ARRAY:
    case IBX_EXTRA_2D_FROM_ARRAY:
    case IBX_EXTRA_MEMCPY_3D:
    case IBX_EXTRA_MEMCPY_3D_ASYNC:
    case IBX_EXTRA_MEMSET:
    case IBX_EXTRA_MEMSET_2D:
        return true;
    default:
        return false;
    }
}

/* Whether a request may have the device read or write memory: all do that are not known here. */
static bool works(const char *name)
{
    static const char *const idle[] = {
        "cudaGet",    "cudaSet",        "cudaStream",   "cudaEvent",   "cudaDevice",
        "cudaMalloc", "cudaFree",       "cudaHost",     "cudaPeek",    "cudaFunc",
        "cudaOccup",  "cudaRegister",   "cudaUnregist", "cudaPush",    "cudaPop",
        "cudaChoose", "cudaCreate",     "cudaDestroy",  "cudaDriver",  "cudaRuntime",
        "cudaBind",   "cudaUnbind",     "cudaIpc",      "cudaPointer", "cudaMemGetInfo",
        "cudaGraph",  "cudaThreadExit", "cudaConfigure"};
    if (!strcmp(name, "cudaLaunchKernel") || !strcmp(name, "cudaGraphLaunch"))
        return true;
    for (size_t i = 0; i < sizeof(idle) / sizeof(idle[0]); i++) {
        if (starts(name, idle[i]))
            return false;
    }
    return true;
}

static int request_begins(const char *name, const void *body, size_t n, bool *begun)
{
    in_gvirtus = !body;
    *begun = starts(name, "ibx") ? extra_works(body, n) : works(name);
    const int rc = *begun ? work_begins() : CUDA_SUCCESS;
    in_gvirtus = false;
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS; /* nobody sees what <<<>>> returns */
}

static bool touches(uint64_t at, uint64_t n)
{
    pthread_rwlock_rdlock(&list);
    const struct managed *m = all;
    while (m && (at >= m->begin + m->n || (at < m->begin && m->begin - at >= n)))
        m = m->next;
    pthread_rwlock_unlock(&list);
    return m;
}

/* Copies between other memory leave ours alone. One that is made while graphs wait for it does, by
 * what it was made from. */
static int copy_begins(const struct ibx_frontend_copy *copy, bool *begun)
{
    const uint64_t n = copy->rows ? (copy->rows - 1) * copy->device_pitch + copy->n : copy->n;
    *begun = !copy->alone && touches(copy->device, n);
    return *begun ? work_begins() : CUDA_SUCCESS;
}

/* A copy that began before its memory became managed. Our own are of the second mapping. */
static bool withheld(const struct ibx_frontend_copy *copy)
{
    const size_t n = ibx_frontend_copy_extent(copy);
    uintptr_t at = (uintptr_t)copy->host, last;
    return ibx_managed_joins(at, n) || ibx_managed_within(&at, at + n, &last);
}

const struct ibx_frontend_watch ibx_managed_watch = {request_begins, copy_begins, work_has_begun,
                                                     withheld};

bool ibx_frontend_managed_captured(void *stream)
{
    captured = stream && atomic_load_explicit(&highest, memory_order_relaxed) &&
               ibx_frontend_captures(stream);
    return captured;
}

void ibx_frontend_managed_launched(void)
{
    captured = false;
}

/* The thread of this library has the lock meanwhile, for the end of the process. One of the
 * program's has not: its handlers may touch managed memory while the device works. */
void ibx_managed_rest(void)
{
    struct held_handlers before;
    if (serves)
        lock_pages(&before);
    if (is_busy())
        rest(false);
    if (serves)
        unlock_pages(&before);
}

/* Beside captures another thread waits: this one may have begun them, and a wait of its own for any
 * stream may end them. */
void ibx_frontend_managed_rests(void)
{
    if (!atomic_load(&highest) || !is_busy())
        return;
    if (ibx_frontend_capturing())
        ibx_managed_have_rested();
    else
        ibx_managed_rest();
}
