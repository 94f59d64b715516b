/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a test that leaks a descriptor is found out by. */
#ifndef IBX_TESTS_UNIT_OPEN_FDS_H
#define IBX_TESTS_UNIT_OPEN_FDS_H

#include <dirent.h>

/* How many this process has; the one of the look itself counts each time. */
static inline int open_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

#endif
