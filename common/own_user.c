/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/own_user.h"

#include "common/path_check.h"

#include <unistd.h>

bool ibx_is_own_user(uid_t user)
{
    return (user == geteuid() || user == 0) && !ibx_path_is_from_outside(user);
}
