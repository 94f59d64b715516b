/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "userfaultfd/stride.h"

#define FIRST_AHEAD 4u /* pages, of a new stride */
#define CREDIT      4u
#define PRESENT_MAX 32u /* pages of a stride that do not fault because they are present */
#define AHEAD_MAX   64u /* passes of a loop by which the faulting process may have got ahead */
#define STRAYS_MAX  8u  /* strides at other distances before a loop is given up */
#define STEP_MIN    8u  /* pages of a loop's distance; the background fetches nearer ones anyhow */

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

/* The distance at which `page` and two recent faults follow each other; 0: there are no such. */
static uint64_t distance_of(const struct stride_detector *d, uint64_t page)
{
    for (uint64_t i = 1; i <= STRIDE_RECENT && i <= d->count; i++) {
        uint64_t distance = page - d->recent[(d->count - i) % STRIDE_RECENT];
        if (distance && was_recent(d, page - 2 * distance))
            return distance;
    }
    return 0;
}

/* ------------------------------------------------------------ loops */

static uint64_t loop_distance(const struct stride_loop *loop)
{
    return loop->down ? -loop->step : loop->step;
}

static void loop_saw(struct stride_loop *loop, uint64_t page)
{
    loop->low = page < loop->low ? page : loop->low;
    loop->high = page > loop->high ? page : loop->high;
}

/* How many passes after the one that is being fetched comes the one with this page, if each pass
 * begins `shift` pages after the one before. AHEAD_MAX: none of the next passes has it; only a
 * sixteenth of all passes is looked at. */
static unsigned passes_to(const struct stride_loop *loop, uint64_t shift, uint64_t page)
{
    const uint64_t phase = page % loop->step;
    uint64_t at = loop->phase;
    for (unsigned n = 0; n < AHEAD_MAX && n <= loop->step / 16; n++) {
        if (at == phase)
            return n;
        at = (at + shift) % loop->step;
    }
    return AHEAD_MAX;
}

/* The lowest and the highest page of a loop: those that were seen, extended by a quarter on both
 * sides, limited to [from, to). */
static void loop_bounds(const struct stride_loop *loop, uint64_t from, uint64_t to, uint64_t *low,
                        uint64_t *high)
{
    const uint64_t first = loop->low > from ? loop->low : from;
    const uint64_t last = loop->high < to ? loop->high : to - 1;
    const uint64_t more = last > first ? (last - first) / 4 : 0;
    *low = first - from > more ? first - more : from;
    *high = to - 1 - last > more ? last + more : to - 1;
}

/* The loop continues at this page. */
static void loop_go(struct stride_loop *loop, uint64_t page)
{
    loop->phase = page % loop->step;
    loop->at = loop->where = page;
}

/* Whether a fault is in the loop. If so the loop continues there: the faulting process has got
 * ahead of the prefetch, or has found a page that was left out. The caller skips pages that are
 * present. */
static bool loop_follow(struct stride_loop *loop, uint64_t page)
{
    uint64_t low, high;
    if (!loop->left)
        return false;
    loop_bounds(loop, 0, UINT64_MAX, &low, &high);
    if (page < low || page > high)
        return false;
    const unsigned ahead = passes_to(loop, loop->shift, page);
    const unsigned behind = passes_to(loop, loop->step - loop->shift, page);
    if (ahead == AHEAD_MAX && behind == AHEAD_MAX)
        return false;
    if (ahead < behind && ahead >= loop->left)
        return false;
    loop->left = ahead < behind ? loop->left - ahead : loop->left + behind;
    loop_saw(loop, page);
    loop_go(loop, page);
    loop->strays = 0;
    return true;
}

/* Whether one of the remembered strides began one pass (`shift` pages, modulo the step) before this
 * page; `which` is its first page. */
static bool began_before(const struct stride_detector *d, uint64_t page, uint64_t shift,
                         uint64_t *which)
{
    const uint64_t n = d->start_count < STARTS_RECENT ? d->start_count : STARTS_RECENT;
    for (uint64_t i = 1; i <= n; i++) {
        *which = d->starts[(d->start_count - i) % STARTS_RECENT];
        if ((*which + shift) % d->loop.step == page % d->loop.step)
            return true;
    }
    return false;
}

/* The shift at which this start and two remembered ones follow each other; 0: there is no such. */
static uint64_t shift_of(const struct stride_detector *d, uint64_t page)
{
    const uint64_t step = d->loop.step, phase = page % step;
    uint64_t other;
    for (uint64_t i = 1; i <= STARTS_RECENT && i <= d->start_count; i++) {
        const uint64_t before = d->starts[(d->start_count - i) % STARTS_RECENT];
        const uint64_t shift = (phase + step - before % step) % step;
        if (shift && began_before(d, before, shift, &other))
            return shift;
    }
    return 0;
}

/* A stride of `distance` begins at `page`. */
static void loop_start(struct stride_detector *d, uint64_t page, uint64_t distance, bool in_loop)
{
    struct stride_loop *loop = &d->loop;
    const bool down = distance >> 63;
    const uint64_t step = down ? -distance : distance;
    if (step != loop->step || down != loop->down) {
        if (loop->left && loop->shift && loop->strays++ < STRAYS_MAX)
            return;
        *loop = (struct stride_loop){.step = step, .down = down, .low = page, .high = page};
        d->start_count = 0;
    }
    loop_saw(loop, page);
    uint64_t other;
    const bool goes_on = loop->left && (in_loop || began_before(d, page, loop->shift, &other));
    const uint64_t shift = goes_on || step < STEP_MIN ? 0 : shift_of(d, page);
    d->starts[d->start_count++ % STARTS_RECENT] = page;
    if (!shift)
        return;
    loop->shift = shift;
    loop_go(loop, page);
    loop->left = step;
}

/* A stride continues as predicted. A long one is taken for a loop of one pass until a shift is
 * known. */
static void loop_pass(struct stride_detector *d, const struct stride *stride, unsigned most)
{
    struct stride_loop *loop = &d->loop;
    if (stride->distance != loop_distance(loop))
        return;
    loop_saw(loop, stride->last);
    if (loop->left || stride->ahead < most || loop->step < STEP_MIN)
        return;
    loop->shift = 0;
    loop_go(loop, stride->last);
    loop->left = 1;
}

bool ibx_fault_loop_next(struct stride_loop *loop, uint64_t from, uint64_t to, uint64_t *page)
{
    const uint64_t step = loop->step;
    uint64_t low, high;
    loop_bounds(loop, from, to, &low, &high);
    for (unsigned empty = 0; loop->left && empty < AHEAD_MAX; empty++) {
        if (loop->at == LOOP_BEGINS)
            loop->at = loop->down ? high - (high % step + step - loop->phase) % step
                                  : low + (loop->phase + step - low % step) % step;
        const bool there = loop->at >= low && loop->at <= high;
        *page = loop->at;
        if (there && (loop->down ? loop->at - low >= step : high - loop->at >= step)) {
            loop->at += loop->down ? -step : step;
            return true;
        }
        loop->phase = (loop->phase + loop->shift) % step;
        loop->at = LOOP_BEGINS;
        loop->left--;
        if (there)
            return true;
    }
    return false;
}

/* ------------------------------------------------------------ strides */

/* Whether the page has faulted just before: another thread waits for it, too, which says nothing
 * about the stride. */
static bool is_known(const struct stride_detector *d, uint64_t page)
{
    for (unsigned i = 0; i < STRIDE_LATEST && i < d->faults; i++)
        if (d->latest[i] == page)
            return true;
    return false;
}

struct stride_prefetch ibx_fault_stride(struct stride_detector *d, uint64_t page, unsigned most)
{
    struct stride *oldest = &d->strides[0];
    if (is_known(d, page))
        return (struct stride_prefetch){.from = page, .distance = 1};
    const bool in_loop = loop_follow(&d->loop, page);
    d->latest[d->faults++ % STRIDE_LATEST] = page;
    for (unsigned i = 0; i < STRIDES_MAX; i++) {
        struct stride *stride = &d->strides[i];
        unsigned steps = steps_to(stride, page);
        if (steps) {
            stride->used = d->faults;
            d->distance = stride->distance;
            d->credit = CREDIT;
            const struct stride_prefetch next = stride_extend(stride, steps, page, most);
            loop_pass(d, stride, most);
            return next;
        }
        oldest = stride->used < oldest->used ? stride : oldest;
    }
    const uint64_t distance = in_loop     ? loop_distance(&d->loop)
                              : d->credit ? d->distance
                                          : distance_of(d, page);
    d->credit -= d->credit > 0;
    d->recent[d->count++ % STRIDE_RECENT] = page;
    if (!distance || !most)
        return (struct stride_prefetch){0};
    const unsigned ahead = FIRST_AHEAD < most ? FIRST_AHEAD : most;
    *oldest = (struct stride){page, distance, ahead, d->faults};
    loop_start(d, page, distance, in_loop);
    return (struct stride_prefetch){page, distance, ahead};
}
