/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The wire between the guest's two devices. While it is cut, every packet in both directions is
 * lost. */
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

/* Mends the wire after a while, in a thread that the caller joins. */
static inline pthread_t wire_mend_in(int ms)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wire_mend_main, (void *)(intptr_t)ms), 0);
    return thread;
}

static inline void links_down(void)
{
    shell("ip link set veth0 down && ip link set veth1 down");
}

/* Restores routes and neighbours of guest-setup too, which are removed with the links. */
static inline void links_up(void)
{
    shell("set -e\n"
          "one() {\n"
          "ip link set $1 up\n"
          "ip neighbour replace $4 lladdr $(cat /sys/class/net/$2/address) dev $1 nud permanent\n"
          "ip route replace $4 dev $1 src $3 scope link table $5\n"
          "}\n"
          "ip link set veth1 up\n"
          "one veth0 veth1 $IBX_VM_ADDR_A $IBX_VM_ADDR_B 101\n"
          "one veth1 veth0 $IBX_VM_ADDR_B $IBX_VM_ADDR_A 102\n");
}

/* Removes the client's device. */
static inline void device_remove(void)
{
    shell("rdma link delete rxe1");
}

static inline void device_add(void)
{
    shell("rdma link add rxe1 type rxe netdev veth1");
}

/* For a tear-down: mends whatever a test has left. */
static inline int wire_mend_any(void)
{
    return system("tc qdisc del dev veth0 root 2>/dev/null; "
                  "tc qdisc del dev veth1 root 2>/dev/null; true");
}

#endif
