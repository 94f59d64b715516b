/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "userfaultfd/stride.h"

#include <stdbool.h>

#define FIRST_AHEAD 4u /* pages, of a new stride */
#define CREDIT      4u
#define PRESENT_MAX 32u /* pages of a stride that do not fault because they are present */

/* How many distances this page lies after the stride's last fault; it was prefetched, or is the
 * first missing page after those that were. 0: it is not part of the stride. */
static unsigned steps_to(const struct stride *stride, uint64_t page)
{
    uint64_t at = stride->last;
    for (unsigned i = 1; stride->distance && i <= stride->ahead + PRESENT_MAX; i++)
        if ((at += stride->distance) == page)
            return i;
    return 0;
}

static struct stride_prefetch stride_extend(struct stride *stride, unsigned steps, uint64_t page,
                                            unsigned most)
{
    const unsigned asked = stride->ahead > steps ? stride->ahead - steps : 0;
    const unsigned ahead = stride->ahead * 2 < most ? stride->ahead * 2 : most;
    stride->last = page;
    stride->ahead = ahead > asked ? ahead : asked;
    return (struct stride_prefetch){page + asked * stride->distance, stride->distance,
                                    stride->ahead - asked};
}

static bool was_recent(const struct stride_detector *d, uint64_t page)
{
    for (unsigned i = 0; i < STRIDE_RECENT && i < d->count; i++)
        if (d->recent[i] == page)
            return true;
    return false;
}

/* That of the latest three faults at one distance; 0: there are none. */
static uint64_t distance_of(const struct stride_detector *d, uint64_t page)
{
    for (uint64_t i = 1; i <= STRIDE_RECENT && i <= d->count; i++) {
        uint64_t distance = page - d->recent[(d->count - i) % STRIDE_RECENT];
        if (distance && was_recent(d, page - 2 * distance))
            return distance;
    }
    return 0;
}

struct stride_prefetch ibx_fault_stride(struct stride_detector *d, uint64_t page, unsigned most)
{
    struct stride *oldest = &d->strides[0];
    d->faults++;
    for (unsigned i = 0; i < STRIDES_MAX; i++) {
        struct stride *stride = &d->strides[i];
        unsigned steps = steps_to(stride, page);
        if (steps) {
            stride->used = d->faults;
            d->distance = stride->distance;
            d->credit = CREDIT;
            return stride_extend(stride, steps, page, most);
        }
        oldest = stride->used < oldest->used ? stride : oldest;
    }
    const uint64_t distance = d->credit ? d->distance : distance_of(d, page);
    d->credit -= d->credit > 0;
    d->recent[d->count++ % STRIDE_RECENT] = page;
    if (!distance || !most)
        return (struct stride_prefetch){0};
    const unsigned ahead = FIRST_AHEAD < most ? FIRST_AHEAD : most;
    *oldest = (struct stride){page, distance, ahead, d->faults};
    return (struct stride_prefetch){page, distance, ahead};
}
