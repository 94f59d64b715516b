/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Counts values in buckets whose width is a sixteenth of the value, as HdrHistogram does. For any
 * thread. */
#ifndef IBX_USERFAULTFD_HISTOGRAM_H
#define IBX_USERFAULTFD_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#define HISTOGRAM_SUB     16u
#define HISTOGRAM_BUCKETS ((64u - 3u) * HISTOGRAM_SUB)

struct histogram {
    _Atomic uint64_t buckets[HISTOGRAM_BUCKETS];
    _Atomic uint64_t count, sum, max;
};

static inline unsigned histogram_bucket(uint64_t value)
{
    if (value < HISTOGRAM_SUB)
        return (unsigned)value;
    unsigned exponent = 63 - (unsigned)__builtin_clzll(value);
    return (exponent - 3) * HISTOGRAM_SUB +
           (unsigned)(value >> (exponent - 4) & (HISTOGRAM_SUB - 1));
}

/* The largest value of a bucket. */
static inline uint64_t histogram_value(unsigned bucket)
{
    if (bucket < HISTOGRAM_SUB)
        return bucket;
    unsigned shift = bucket / HISTOGRAM_SUB - 1;
    uint64_t low = (uint64_t)(HISTOGRAM_SUB + bucket % HISTOGRAM_SUB) << shift;
    return low + ((1ull << shift) - 1);
}

static inline void histogram_add(struct histogram *h, uint64_t value)
{
    atomic_fetch_add_explicit(&h->buckets[histogram_bucket(value)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum, value, memory_order_relaxed);
    uint64_t max = atomic_load_explicit(&h->max, memory_order_relaxed);
    while (value > max && !atomic_compare_exchange_weak_explicit(
                              &h->max, &max, value, memory_order_relaxed, memory_order_relaxed))
        ;
    atomic_fetch_add_explicit(&h->count, 1, memory_order_release);
}

/* The value that `permille` of all do not exceed; 0 when there are none. */
static inline uint64_t histogram_quantile(const struct histogram *h, unsigned permille)
{
    uint64_t count = atomic_load_explicit(&h->count, memory_order_acquire);
    uint64_t max = atomic_load_explicit(&h->max, memory_order_relaxed), seen = 0;
    uint64_t want = count / 1000 * permille + (count % 1000 * permille + 999) / 1000;
    for (unsigned i = 0; count && i < HISTOGRAM_BUCKETS; i++) {
        seen += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        if (seen >= want)
            return histogram_value(i) < max ? histogram_value(i) : max;
    }
    return count ? max : 0;
}

#endif
