/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_COMMON_VERBS_FORK_H
#define IBX_COMMON_VERBS_FORK_H

#include <infiniband/verbs.h>

/* Before Linux 5.12 a fork takes registered pages away from the parent; with this the child is the
 * one that lacks them, and what else of its heap lies in them. Not where Linux copies them. Comes
 * before the first registration. 0 or an errno. */
static inline int ibx_verbs_fork_init(void)
{
    return ibv_is_fork_initialized() == IBV_FORK_UNNEEDED ? 0 : ibv_fork_init();
}

#endif
