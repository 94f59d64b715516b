/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which unauthenticated clients the server drops when descriptors are scarce. */
#include "tests/fixtures/pool_scene.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

/* pool_step() while this process may open `count` descriptors more; *left: how many of them the
 * clients have left. */
static struct ibx_error step_with(unsigned count, unsigned *left)
{
    struct rlimit all, few;
    int fds[POOL_CLIENTS];
    unsigned n = 0;
    getrlimit(RLIMIT_NOFILE, &all);
    few = all;
    few.rlim_cur = (rlim_t)dup(0);
    close((int)few.rlim_cur);
    few.rlim_cur += count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const struct ibx_error err = pool_step();
    while (n < count && (fds[n] = dup(0)) >= 0)
        n++;
    for (*left = n; n; n--)
        close(fds[n - 1]);
    setrlimit(RLIMIT_NOFILE, &all);
    return err;
}

/* Clients from `first` on connect, each from an address of its own, and stay silent. */
static void connect_silent(int first)
{
    for (int i = first; i < POOL_CLIENTS; i++) {
        char address[32];
        snprintf(address, sizeof(address), "127.0.0.%d", 2 + i);
        pool_raws[i] = raw_connect(pool_scene.port, address, "127.0.0.1");
    }
}

/* Without a free descriptor an unauthenticated client is dropped, and the server continues. */
static void descriptors_run_out(void **state)
{
    (void)state;
    unsigned left;
    pool_open();
    for (int i = 0; i < 4; i++)
        pool_come(i, 2 + i, false);
    pool_raws[4] = raw_connect(pool_scene.port, "127.0.0.9", "127.0.0.1");
    assert_int_equal(step_with(0, &left).code, -EBUSY);
    pool_only_lost(0, 5);
    pool_close();
}

/* There are places for all clients. */
static void open_with_many_places(void)
{
    pool_open();
    pool_scene.options.unauthenticated = 64;
    handshake_listen_again(&pool_scene);
}

/* Clients that have not authenticated leave some for those that have, and for the process. */
static void strangers_leave_descriptors(void **state)
{
    (void)state;
    struct raw_frame frame;
    unsigned left;
    open_with_many_places();
    connect_silent(0);
    assert_int_equal(step_with(POOL_CLIENTS, &left).code, -EBUSY);
    assert_int_equal(left, 4);
    for (int i = 0; i < 4; i++) { /* the oldest ones gave way */
        raw_expect(&pool_raws[i], REFUSE, &frame);
        assert_true(raw_receives_end(&pool_raws[i]));
    }
    for (int i = 4; i < POOL_CLIENTS; i++)
        assert_int_equal(poll(&(struct pollfd){.fd = pool_raws[i].fd, .events = POLLIN}, 1, 0), 0);
    pool_close();
}

/* The oldest client has sent its HELLO: silent ones give way before it. */
static void silent_strangers_leave_them(void **state)
{
    (void)state;
    struct raw_frame frame;
    unsigned left;
    open_with_many_places();
    pool_come(0, 2, false);
    connect_silent(1);
    assert_int_equal(step_with(POOL_CLIENTS - 1, &left).code, -EBUSY);
    assert_true(left);
    raw_expect(&pool_raws[1], REFUSE, &frame); /* the oldest silent one */
    pool_only_lost(-1, 1);
    pool_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_run_out),
        cmocka_unit_test(strangers_leave_descriptors),
        cmocka_unit_test(silent_strangers_leave_them),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
