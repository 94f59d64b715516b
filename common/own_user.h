/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who may do with this process whatever it does to others. */
#ifndef IBX_COMMON_OWN_USER_H
#define IBX_COMMON_OWN_USER_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether the user is this process's, or root: he may end it, and read its memory. Where several
 * users of the host have one number here (path_check.h), that one is nobody's own. */
bool ibx_is_own_user(uid_t user);

#endif
