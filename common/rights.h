/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a process may do: its capabilities, and where they count. */
#ifndef IBX_COMMON_RIGHTS_H
#define IBX_COMMON_RIGHTS_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether this process is in the first user namespace, or in one where all users have the same
 * numbers as there. The namespace of a container's own users is none of these. */
bool ibx_in_first_user_namespace(void);
/* The same of another process, which this one may trace. */
bool ibx_process_in_first_user_namespace(pid_t pid);
/* Whether a capability (CAP_...) of this process counts for the host. One that it has only in a
 * user namespace of its own, as root of a container, does not. */
bool ibx_capable(unsigned capability);
/* Whether it has the capability in its own user namespace, where it counts for the processes
 * there. */
bool ibx_capable_in_namespace(unsigned capability);

#endif
