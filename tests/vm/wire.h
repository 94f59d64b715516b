/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The wire between the two devices of the guest: cut, every packet is lost in both directions. */
#ifndef IBX_TESTS_VM_WIRE_H
#define IBX_TESTS_VM_WIRE_H

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

static inline void shell(const char *command)
{
    if (system(command))
        fail_msg("failed: %s", command);
}

static inline void wire_cut(void)
{
    shell("tc qdisc add dev veth0 root netem loss 100% && "
          "tc qdisc add dev veth1 root netem loss 100%");
}

static inline void wire_mend(void)
{
    shell("tc qdisc del dev veth0 root && tc qdisc del dev veth1 root");
}

static inline void *wire_mend_main(void *ms)
{
    poll(NULL, 0, (int)(intptr_t)ms);
    wire_mend();
    return NULL;
}

/* In a thread, which the caller joins. */
static inline pthread_t wire_mend_in(int ms)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wire_mend_main, (void *)(intptr_t)ms), 0);
    return thread;
}

/* For a teardown: whatever a test has left. */
static inline int wire_mend_any(void)
{
    return system("tc qdisc del dev veth0 root 2>/dev/null; "
                  "tc qdisc del dev veth1 root 2>/dev/null; true");
}

#endif
