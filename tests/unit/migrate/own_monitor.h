/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For tests that replace QEMU's monitor (-Wl,--wrap=ibx_qmp_connect,--wrap=ibx_qmp_pid,
 * --wrap=ibx_qmp_close): this process is the QEMU behind it. A test whose monitor may be gone
 * defines MONITOR_MAY_BE_GONE, and connects itself. */
#ifndef IBX_TESTS_OWN_MONITOR_H
#define IBX_TESTS_OWN_MONITOR_H

#include "migrate/qemu/qemu.h"

#include <unistd.h>

#ifndef MONITOR_MAY_BE_GONE
int __wrap_ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                           struct ibx_error *err);
int __wrap_ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                           struct ibx_error *err)
{
    static char any;
    (void)path, (void)deadline_ns, (void)err;
    *qmp = (struct ibx_qmp *)&any;
    return 0;
}
#endif

pid_t __wrap_ibx_qmp_pid(const struct ibx_qmp *qmp);
pid_t __wrap_ibx_qmp_pid(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return getpid();
}

void __wrap_ibx_qmp_close(struct ibx_qmp *qmp);
void __wrap_ibx_qmp_close(struct ibx_qmp *qmp)
{
    (void)qmp;
}

#endif
