/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The list of managed memory, and the locks (managed_pages.h). */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/memory/managed_pages.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t pages = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t list = PTHREAD_RWLOCK_INITIALIZER;

/* What the holder of `pages` does with it.
 *
 *   KEPT -> LENT -> BORROWED
 *   LENT -> KEPT   the holder goes on
 *   BORROWED -> LENT
 */
enum lend_state { LEND_KEPT, LEND_LENT, LEND_BORROWED };

#define BORROW_NS 200000u /* how often a thread looks whether it may borrow the lock */

static pthread_mutex_t lend_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t lend_changed = PTHREAD_COND_INITIALIZER;
static enum lend_state lend_state; /* protected by lend_lock */
static struct managed *all;
/* The range of addresses that managed memory ever had. */
static _Atomic uintptr_t lowest = UINTPTR_MAX, highest;

void ibx_managed_lock(struct held_handlers *before)
{
    ibx_managed_hold_handlers(before);
    pthread_mutex_lock(&pages);
}

bool ibx_managed_lock_until(struct held_handlers *before, const struct timespec *until)
{
    ibx_managed_hold_handlers(before);
    const bool locked = !pthread_mutex_clocklock(&pages, CLOCK_MONOTONIC, until);
    if (!locked)
        ibx_managed_let_handlers(before);
    return locked;
}

void ibx_managed_unlock(const struct held_handlers *before)
{
    pthread_mutex_unlock(&pages);
    ibx_managed_let_handlers(before);
}

static void set_lend_state(enum lend_state now)
{
    lend_state = now;
    pthread_cond_broadcast(&lend_changed);
}

void ibx_managed_lend(void)
{
    pthread_mutex_lock(&lend_lock);
    set_lend_state(LEND_LENT);
    pthread_mutex_unlock(&lend_lock);
}

void ibx_managed_lend_end(void)
{
    pthread_mutex_lock(&lend_lock);
    while (lend_state == LEND_BORROWED)
        pthread_cond_wait(&lend_changed, &lend_lock);
    set_lend_state(LEND_KEPT);
    pthread_mutex_unlock(&lend_lock);
}

bool ibx_managed_borrow(struct held_handlers *before)
{
    for (;;) {
        const struct timespec until = ibx_timespec_of(ibx_now_ns() + BORROW_NS);
        if (ibx_managed_lock_until(before, &until))
            return false;
        pthread_mutex_lock(&lend_lock);
        const bool borrowed = lend_state == LEND_LENT;
        if (borrowed)
            set_lend_state(LEND_BORROWED);
        pthread_mutex_unlock(&lend_lock);
        if (!borrowed)
            continue;
        ibx_managed_hold_handlers(before);
        return true;
    }
}

void ibx_managed_give_back(const struct held_handlers *before, bool borrowed)
{
    if (!borrowed) {
        ibx_managed_unlock(before);
        return;
    }
    pthread_mutex_lock(&lend_lock);
    set_lend_state(LEND_LENT);
    pthread_mutex_unlock(&lend_lock);
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

void ibx_managed_link(struct managed *m)
{
    pthread_rwlock_wrlock(&list);
    widen(m);
    m->next = all;
    all = m;
    pthread_rwlock_unlock(&list);
}

struct managed *ibx_managed_first(void)
{
    return all;
}

struct managed *ibx_managed_take(uintptr_t begin)
{
    struct held_handlers before;
    ibx_managed_lock(&before);
    pthread_rwlock_wrlock(&list);
    struct managed **at = &all;
    while (*at && ((*at)->variables || (begin ? (*at)->begin != begin : (*at)->in_place)))
        at = &(*at)->next;
    struct managed *found = *at;
    if (found)
        *at = found->next;
    pthread_rwlock_unlock(&list);
    ibx_managed_unlock(&before);
    return found;
}

/* ------------------------------------------------------------------------------ variables */

/* Sets the range from the first variable to the end of the last. */
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

bool ibx_managed_add_variable(struct managed *m, const struct managed_variable *variable)
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

struct managed *ibx_managed_take_module(void **module)
{
    struct held_handlers before;
    struct managed *found = NULL;
    ibx_managed_lock(&before);
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
    ibx_managed_unlock(&before);
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

/* -------------------------------------------------------------------------- what is where */

struct managed *ibx_managed_holding(uintptr_t at)
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
    const struct managed *m = ibx_managed_holding(at);
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
    const struct managed *m = ibx_managed_holding(at);
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

bool ibx_frontend_is_in_place(const void *address)
{
    struct managed m;
    return ibx_managed_find((uintptr_t)address, &m) && m.in_place;
}

bool ibx_managed_touches(uint64_t at, uint64_t n)
{
    pthread_rwlock_rdlock(&list);
    const struct managed *m = all;
    while (m && (at >= m->begin + m->n || (at < m->begin && m->begin - at >= n)))
        m = m->next;
    pthread_rwlock_unlock(&list);
    return m;
}

/* A child has no managed memory, as with CUDA. `pages` is not taken at a fork: its holder may wait
 * for locks that the fork has taken. */
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
    pthread_mutex_init(&pages, NULL);
    pthread_mutex_init(&lend_lock, NULL);
    pthread_cond_init(&lend_changed, NULL);
    lend_state = LEND_KEPT;
    pthread_rwlock_init(&list, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}
