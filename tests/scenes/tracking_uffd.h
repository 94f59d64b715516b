/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A userfaultfd that tracks what is written, of this process; skips the test before Linux 6.7. */
#ifndef IBX_TESTS_TRACKING_UFFD_H
#define IBX_TESTS_TRACKING_UFFD_H

#include "tests/scenes/unit.h"
#include "userfaultfd/dirty.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int tracking_uffd(void)
{
    struct ibx_error error = {0};
    const int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    assert_true(fd >= 0);
    if (ibx_dirty_enable(fd, &error) == -EOPNOTSUPP) {
        close(fd);
        skip();
    }
    return fd;
}

#endif
