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
    struct ibx_quota *of;     /* what is taken of this counts there too; NULL: nowhere */
    _Atomic uint64_t *shared; /* NULL, or what counts for `used`, in memory of several processes:
                               * any of them may have written there what it likes */
};

/* So many percent, 0 to 100, of any number: rounded down. */
static inline uint64_t ibx_quota_share(uint64_t all, uint64_t percent)
{
    return all / 100 * percent + all % 100 * percent / 100;
}

/* False: n more would be too many, here or in a quota that this one is `of`; nothing was taken. */
bool ibx_quota_take(struct ibx_quota *quota, uint64_t n);
/* Takes n more of what is there already, also where that is too many. */
void ibx_quota_note(struct ibx_quota *quota, uint64_t n);
/* How much is held. */
uint64_t ibx_quota_used(const struct ibx_quota *quota);
/* How much more could be taken now. */
uint64_t ibx_quota_left(const struct ibx_quota *quota);
/* Of what was taken. A process that is killed in these calls may leave more in a quota that it
 * shares than in that which is `of` it, never less: who gives that back, too, meets 0 there. */
void ibx_quota_give(struct ibx_quota *quota, uint64_t n);
/* The same of what counts for one quota alone. */
void ibx_quota_give_to(_Atomic uint64_t *counter, uint64_t n);

#endif
