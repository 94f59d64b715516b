/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What this process may do: its capabilities, and where they count. */
#ifndef IBX_COMMON_RIGHTS_H
#define IBX_COMMON_RIGHTS_H

#include <stdbool.h>

/* Whether this process is in the first user namespace, or in one that has all users as that has
 * them: not in a container's of its own. */
bool ibx_in_first_user_namespace(void);
/* Whether a capability (CAP_...) of this process counts: not one that it has in a user namespace of
 * its own alone, where it is root of a container. */
bool ibx_capable(unsigned capability);
/* Whether it has it in its own user namespace, where it counts for the processes there. */
bool ibx_capable_in_namespace(unsigned capability);

#endif
