/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/line_bound.h"

#include "common/clock.h"

#include <stdatomic.h>

#define EARLY_NS (10 * 1000 * IBX_NS_PER_MS) /* how far `due` may be ahead of now */

bool ibx_line_bound_take(struct ibx_line_bound *bound, uint64_t pause_ns, uint64_t *left_out)
{
    const uint64_t now = ibx_now_ns();
    uint64_t next = atomic_load(&bound->due), then;
    do {
        /* A faulty process may have written a time that never comes. */
        const bool nonsense = next > now + EARLY_NS + IBX_NS_PER_MS * 1000 + pause_ns;
        if (next > now + EARLY_NS && !nonsense) {
            atomic_fetch_add(&bound->left_out, 1);
            return false;
        }
        then = (next > now && !nonsense ? next : now) + pause_ns;
    } while (!atomic_compare_exchange_weak(&bound->due, &next, then));
    *left_out = atomic_exchange(&bound->left_out, 0);
    return true;
}
