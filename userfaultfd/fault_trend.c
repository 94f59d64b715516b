/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "userfaultfd/fault_trend.h"

#include <stdbool.h>
#include <stddef.h>

#define FIRST_AHEAD 4u /* pages, when a walk has just been seen */
#define CREDIT      4u
#define PRESENT_MAX 32u /* pages of a walk that may be there already, and so do not fault */

/* Whether this page belongs to the walk: what was asked for ahead, or the first behind it that was
 * missing. */
static unsigned steps_to(const struct trend_walk *walk, uint64_t page)
{
    uint64_t at = walk->last;
    for (unsigned i = 1; walk->step && i <= walk->ahead + PRESENT_MAX; i++)
        if ((at += walk->step) == page)
            return i;
    return 0;
}

static struct trend_next go_on(struct trend_walk *walk, unsigned steps, uint64_t page,
                               unsigned most)
{
    unsigned asked = walk->ahead > steps ? walk->ahead - steps : 0;
    unsigned ahead = walk->ahead * 2 < most ? walk->ahead * 2 : most;
    walk->last = page;
    walk->ahead = ahead > asked ? ahead : asked;
    return (struct trend_next){page + asked * walk->step, walk->step, walk->ahead - asked};
}

static bool was_recent(const struct trends *t, uint64_t page)
{
    for (unsigned i = 0; i < TREND_RECENT && i < t->count; i++)
        if (t->recent[i] == page)
            return true;
    return false;
}

/* Three faults at one distance; of several, those that came last. */
static uint64_t step_of(const struct trends *t, uint64_t page)
{
    for (uint64_t i = 1; i <= TREND_RECENT && i <= t->count; i++) {
        uint64_t step = page - t->recent[(t->count - i) % TREND_RECENT];
        if (step && was_recent(t, page - 2 * step))
            return step;
    }
    return 0;
}

struct trend_next ibx_fault_trend(struct trends *t, uint64_t page, unsigned most)
{
    struct trend_walk *oldest = &t->walks[0];
    t->faults++;
    for (unsigned i = 0; i < TREND_WALKS; i++) {
        struct trend_walk *walk = &t->walks[i];
        unsigned steps = steps_to(walk, page);
        if (steps) {
            walk->used = t->faults;
            t->step = walk->step;
            t->credit = CREDIT;
            return go_on(walk, steps, page, most);
        }
        oldest = walk->used < oldest->used ? walk : oldest;
    }
    uint64_t step = t->credit ? t->step : step_of(t, page);
    t->credit -= t->credit > 0;
    t->recent[t->count++ % TREND_RECENT] = page;
    if (!step || !most)
        return (struct trend_next){0};
    unsigned ahead = FIRST_AHEAD < most ? FIRST_AHEAD : most;
    *oldest = (struct trend_walk){page, step, ahead, t->faults};
    return (struct trend_next){page, step, ahead};
}
