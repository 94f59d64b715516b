/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which tenant has allocated which device memory: a search tree of ranges that do not overlap. */
#include "frontend-glue/tenants/tenants.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

struct allocation {
    uint64_t begin, last; /* its first and its last byte */
    uint64_t number;
    struct ibx_tenant *tenant;
    const void *context;
    uint64_t charge;
    bool kept;                     /* ibx_owners_keep() */
    struct allocation *next, **at; /* the list of all */
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static void *tree;
static struct allocation *all;
static uint64_t numbers;
static _Atomic uint64_t changes; /* of the table; changed under the lock */

/* Ranges that overlap compare as equal: so a search finds one. */
static int compare(const void *a, const void *b)
{
    const struct allocation *left = a, *right = b;
    return left->last < right->begin ? -1 : left->begin > right->last ? 1 : 0;
}

/* An allocation that overlaps [begin, last]; NULL: there is none. */
static struct allocation *touched(uint64_t begin, uint64_t last)
{
    const struct allocation range = {.begin = begin, .last = last};
    struct allocation *const *found = tfind(&range, &tree, compare);
    return found ? *found : NULL;
}

static void drop(struct allocation *a)
{
    tdelete(a, &tree, compare);
    *a->at = a->next;
    if (a->next)
        a->next->at = a->at;
    ibx_quota_give(ibx_tenant_quota(a->tenant, IBX_HOLD_ALLOCATIONS), 1);
    ibx_quota_give(ibx_tenant_quota(a->tenant, IBX_HOLD_DEVICE), a->charge);
    free(a);
    atomic_fetch_add(&changes, 1);
}

static bool enter(const struct allocation *made)
{
    struct allocation *a = malloc(sizeof(*a));
    if (!a)
        return false;
    *a = *made;
    if (!tsearch(a, &tree, compare)) {
        free(a);
        return false;
    }
    a->number = ++numbers;
    a->next = all;
    a->at = &all;
    if (all)
        all->at = &a->next;
    all = a;
    atomic_fetch_add(&changes, 1);
    return true;
}

bool ibx_owners_add(struct ibx_tenant *tenant, uint64_t base, uint64_t size, const void *context,
                    uint64_t charge)
{
    struct ibx_quota *quota = ibx_tenant_quota(tenant, IBX_HOLD_ALLOCATIONS);
    struct allocation made = {.begin = base,
                              .last = ibx_range_last(base, size),
                              .tenant = tenant,
                              .context = context,
                              .charge = charge};
    pthread_rwlock_wrlock(&lock);
    for (struct allocation *gone; (gone = touched(made.begin, made.last));)
        drop(gone);
    bool added = ibx_quota_take(quota, 1);
    if (added && !enter(&made)) {
        ibx_quota_give(quota, 1);
        added = false;
    }
    pthread_rwlock_unlock(&lock);
    return added;
}

uint64_t ibx_owners_number(uint64_t base)
{
    pthread_rwlock_rdlock(&lock);
    const struct allocation *a = touched(base, base);
    const uint64_t number = a && a->begin == base ? a->number : 0;
    pthread_rwlock_unlock(&lock);
    return number;
}

void ibx_owners_remove(uint64_t base, uint64_t number)
{
    if (!number)
        return;
    pthread_rwlock_wrlock(&lock);
    struct allocation *a = touched(base, base);
    if (a && a->number == number && !a->kept)
        drop(a);
    pthread_rwlock_unlock(&lock);
}

void ibx_owners_keep(uint64_t base)
{
    pthread_rwlock_wrlock(&lock);
    struct allocation *a = touched(base, base);
    if (a && a->begin == base)
        a->kept = true;
    pthread_rwlock_unlock(&lock);
}

void ibx_owners_forget(const void *context)
{
    pthread_rwlock_wrlock(&lock);
    for (struct allocation *a = all, *next; a; a = next) {
        next = a->next;
        if (!context || a->context == context)
            drop(a);
    }
    pthread_rwlock_unlock(&lock);
}

/* Another tenant that has memory in [begin, last], or NULL; recursive to the left and to the right
 * of the allocation that it finds. `steps` are counted down; with none left, any tenant is
 * returned. */
static const struct ibx_tenant *other_in(const struct ibx_tenant *tenant, uint64_t begin,
                                         uint64_t last, unsigned *steps)
{
    const struct ibx_tenant *other = NULL;
    const struct allocation *a = touched(begin, last);
    if (!a)
        return NULL;
    if (a->tenant != tenant || !*steps)
        return a->tenant;
    --*steps;
    if (a->begin > begin)
        other = other_in(tenant, begin, a->begin - 1, steps);
    if (!other && a->last < last)
        other = other_in(tenant, a->last + 1, last, steps);
    return other;
}

const struct ibx_tenant *ibx_owners_other(const struct ibx_tenant *tenant, uint64_t at, uint64_t n)
{
    struct ibx_owners_cache none = {.begin = 1, .changes = UINT64_MAX};
    return ibx_owners_other_cached(tenant, &none, at, n);
}

const struct ibx_tenant *ibx_owners_other_cached(const struct ibx_tenant *tenant,
                                                 struct ibx_owners_cache *cache, uint64_t at,
                                                 uint64_t n)
{
    const uint64_t last = ibx_range_last(at, n);
    unsigned steps = IBX_RANGE_CROSSED_MAX;
    if (cache->changes == atomic_load(&changes) && at >= cache->begin && last <= cache->end)
        return NULL;
    pthread_rwlock_rdlock(&lock);
    const struct ibx_tenant *other = other_in(tenant, at, last, &steps);
    const struct allocation *a = other ? NULL : touched(at, at);
    if (a)
        *cache = (struct ibx_owners_cache){a->begin, a->last, atomic_load(&changes)};
    pthread_rwlock_unlock(&lock);
    return other;
}
