/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The environment of libraries for RDMA, which they read in any program. */
#ifndef IBX_COMMON_LIBRARY_ENVIRONMENT_H
#define IBX_COMMON_LIBRARY_ENVIRONMENT_H

#include "common/error.h"

/* Call it before anything of libibverbs, librdmacm or libfabric. In a program that runs with rights
 * which its caller lacks (file capabilities, set-user-ID, set-group-ID), variables of these
 * libraries and of their drivers would have them load a library, or write a file, of the caller's
 * choice. libibverbs itself ignores some of its own in a set-user-ID program, but in no other one.
 * 0, or -EPERM with a sentence that names the variable. Changes nothing; for any thread. */
int ibx_library_environment_check(struct ibx_error *err);

#endif
