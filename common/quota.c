/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/quota.h"

bool ibx_quota_take(struct ibx_quota *quota, uint64_t n)
{
    const uint64_t most = atomic_load(&quota->most);
    uint64_t used = atomic_load(&quota->used);
    do {
        if (used > most || n > most - used)
            return false;
    } while (!atomic_compare_exchange_weak(&quota->used, &used, used + n));
    if (!quota->of || ibx_quota_take(quota->of, n))
        return true;
    atomic_fetch_sub(&quota->used, n);
    return false;
}

void ibx_quota_note(struct ibx_quota *quota, uint64_t n)
{
    for (; quota; quota = quota->of)
        atomic_fetch_add(&quota->used, n);
}

uint64_t ibx_quota_left(const struct ibx_quota *quota)
{
    uint64_t left = UINT64_MAX;
    for (; quota; quota = quota->of) {
        const uint64_t most = atomic_load(&quota->most), used = atomic_load(&quota->used);
        const uint64_t here = used < most ? most - used : 0;
        left = here < left ? here : left;
    }
    return left;
}

void ibx_quota_give_here(struct ibx_quota *quota, uint64_t n)
{
    uint64_t used = atomic_load(&quota->used);
    while (!atomic_compare_exchange_weak(&quota->used, &used, n < used ? used - n : 0))
        ;
}

void ibx_quota_give(struct ibx_quota *quota, uint64_t n)
{
    if (!quota)
        return;
    ibx_quota_give(quota->of, n);
    ibx_quota_give_here(quota, n);
}
