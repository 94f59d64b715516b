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
    struct ibx_quota *of; /* what is taken of this counts there too; NULL: nowhere */
};

/* False: n more would be too many, here or in a quota that this one is `of`; nothing was taken. */
bool ibx_quota_take(struct ibx_quota *quota, uint64_t n);
/* Takes n more of what is there already, also where that is too many. */
void ibx_quota_note(struct ibx_quota *quota, uint64_t n);
/* How much more could be taken now. */
uint64_t ibx_quota_left(const struct ibx_quota *quota);
/* Of what was taken. A process that is killed in these calls may leave more in a quota that it
 * shares than in that which is `of` it, never less: who gives that back, too, meets 0 there. */
void ibx_quota_give(struct ibx_quota *quota, uint64_t n);
/* The same in this one alone. */
void ibx_quota_give_here(struct ibx_quota *quota, uint64_t n);

#endif
