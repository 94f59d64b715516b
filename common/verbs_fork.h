/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_COMMON_VERBS_FORK_H
#define IBX_COMMON_VERBS_FORK_H

#include <infiniband/verbs.h>

/* Call it before the first registration. Before Linux 5.12 a fork takes registered pages away from
 * the parent. After this call it is the child that lacks them, with whatever else of its heap lies
 * in them. Does nothing where Linux copies such pages. 0 or a (positive) errno. */
static inline int ibx_verbs_fork_init(void)
{
    return ibv_is_fork_initialized() == IBV_FORK_UNNEEDED ? 0 : ibv_fork_init();
}

#endif
