/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/networks.h"

#include "transport/transport.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

static int servers = -1, clients = -1;

bool networks_make(char *there, unsigned size)
{
    static const char self[] = "/proc/thread-self/ns/net";
    if (unshare(CLONE_NEWNET))
        return false;
    clients = open(self, O_RDONLY | O_CLOEXEC);
    if (unshare(CLONE_NEWNET))
        return false;
    servers = open(self, O_RDONLY | O_CLOEXEC);
    snprintf(there, size, "/proc/%d/fd/%d", (int)getpid(), clients);
    return clients >= 0 && servers >= 0;
}

void networks_enter_client(void)
{
    assert_int_equal(setns(clients, CLONE_NEWNET), 0);
}

void networks_leave_client(void)
{
    assert_int_equal(setns(servers, CLONE_NEWNET), 0);
}

/* The client's connections belong to its namespace. */
int __real_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                       struct ibx_error *err);
int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                       struct ibx_error *err);

int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                       struct ibx_error *err)
{
    networks_enter_client();
    int rc = __real_ibx_connect(uri, options, conn, err);
    networks_leave_client();
    return rc;
}
