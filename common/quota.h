/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How much of something may be held at once: by one holder, and by all of them together. From any
 * thread, without a lock.
 */
#ifndef IBX_COMMON_QUOTA_H
#define IBX_COMMON_QUOTA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ibx_quota {
    _Atomic uint64_t used;
    _Atomic uint64_t most;
    struct ibx_quota *of; /* what is taken here counts in that quota, too; NULL: there is none */
    _Atomic uint64_t *shared; /* NULL, or the counter in place of `used`, in memory of several
                                 processes: any of them may have written anything there */
};

/* So many percent (0 to 100) of `all`, rounded down. */
static inline uint64_t ibx_quota_share(uint64_t all, uint64_t percent)
{
    return all / 100 * percent + all % 100 * percent / 100;
}

/* False: n more would be too many, here or in a quota that this one is `of`; nothing was taken. */
bool ibx_quota_take(struct ibx_quota *quota, uint64_t n);
/* Counts n more, which are held already, even if that is too many. */
void ibx_quota_note(struct ibx_quota *quota, uint64_t n);
/* How much is held. */
uint64_t ibx_quota_used(const struct ibx_quota *quota);
/* How much more could be taken now. */
uint64_t ibx_quota_left(const struct ibx_quota *quota);
/* Gives back n of what was taken. A process that is killed in these calls may leave more in a
 * shared quota than in its `of`, never less: when the surplus is given back, too, the latter stays
 * at 0. */
void ibx_quota_give(struct ibx_quota *quota, uint64_t n);
/* Gives back to this counter alone, which stops at 0. */
void ibx_quota_give_to(_Atomic uint64_t *counter, uint64_t n);

#endif
