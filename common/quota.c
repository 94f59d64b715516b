/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/quota.h"

static _Atomic uint64_t *counter_of(const struct ibx_quota *quota)
{
    return quota->shared ? quota->shared : (_Atomic uint64_t *)&quota->used;
}

uint64_t ibx_quota_used(const struct ibx_quota *quota)
{
    return atomic_load(counter_of(quota));
}

bool ibx_quota_take(struct ibx_quota *quota, uint64_t n)
{
    _Atomic uint64_t *counter = counter_of(quota);
    const uint64_t most = atomic_load(&quota->most);
    uint64_t used = atomic_load(counter);
    do {
        if (used > most || n > most - used)
            return false;
    } while (!atomic_compare_exchange_weak(counter, &used, used + n));
    if (!quota->of || ibx_quota_take(quota->of, n))
        return true;
    ibx_quota_give_to(counter, n); /* others may have given back a surplus meanwhile */
    return false;
}

void ibx_quota_note(struct ibx_quota *quota, uint64_t n)
{
    for (; quota; quota = quota->of)
        atomic_fetch_add(counter_of(quota), n);
}

uint64_t ibx_quota_left(const struct ibx_quota *quota)
{
    uint64_t left = UINT64_MAX;
    for (; quota; quota = quota->of) {
        const uint64_t most = atomic_load(&quota->most), used = ibx_quota_used(quota);
        const uint64_t here = used < most ? most - used : 0;
        left = here < left ? here : left;
    }
    return left;
}

void ibx_quota_give_to(_Atomic uint64_t *counter, uint64_t n)
{
    uint64_t used = atomic_load(counter);
    while (!atomic_compare_exchange_weak(counter, &used, n < used ? used - n : 0))
        ;
}

void ibx_quota_give(struct ibx_quota *quota, uint64_t n)
{
    if (!quota)
        return;
    ibx_quota_give(quota->of, n);
    ibx_quota_give_to(counter_of(quota), n);
}
