/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which peer is dead and which is only slow. If permitted, the test runs in a network namespace
 * of its own, which it can take down. A stopped peer is one that does not poll. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cmocka.h>

#define BOTH        (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)
#define TIMEOUT_MS  200u
#define LENGTH      ((size_t)48 << 20) /* more than the sockets hold */
#define PATIENCE_MS patience_ms(60000)

static struct end server, client;
static struct ibx_mr *source, *target;
static struct ibx_chunk chunk;
static bool own_network;

static void network(bool up)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &request), 0);
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}

static void connect_ends(unsigned lanes)
{
    int door[2];
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
    server.options.timeout_ms = client.options.timeout_ms = TIMEOUT_MS;
    if (lanes)
        ends_encrypt_and_connect(&server, &client);
    else
        ends_encrypt_and_connect_alone(&server, &client);
    source = end_register(&client, NULL, LENGTH, 0);
    target = end_register(&server, NULL, LENGTH, BOTH);
    memset(source->span.address, 0x77, LENGTH);
    chunk = (struct ibx_chunk){
        .kind = IBX_RDMA_WRITE,
        .lane = lanes,
        .local = source->span.address,
        .remote_address = (uintptr_t)target->span.address,
        .remote_keys = target->keys,
        .length = LENGTH,
    };
}

static void disconnect(void)
{
    end_deregister(&client, source);
    end_deregister(&server, target);
    end_close(&client);
    end_close(&server);
}

/* One turn of a client that sleeps in between as long as it may. */
static void sleep_and_turn(int limit_ms)
{
    end_turn(&client);
    if (!ibx_provider_tcp.arm(client.tcp))
        end_wakes(&client, limit_ms);
}

static struct tcp_info info_of(const struct end *end, unsigned lane)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    assert_int_equal(getsockopt(end->tcp->lanes[lane].fd, IPPROTO_TCP, TCP_INFO, &info, &length),
                     0);
    return info;
}

/* Writes until the server's window is full and its kernel has answered several probes, which
 * takes several times TIMEOUT_MS. */
static void write_into_full_window(unsigned lane)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    while (info_of(&client, lane).tcpi_backoff < 4 && !client.count) {
        assert_true(ibx_now_ns() < deadline);
        sleep_and_turn(10);
    }
}

static void stopped(unsigned lanes)
{
    connect_ends(lanes);
    assert_int_equal(client.tcp->lane_count, lanes);
    write_into_full_window(lanes);
    assert_int_equal(client.count, 0);
    /* The transfer continues. */
    assert_true(end_await(&client, &server, 1));
    assert_int_equal(client.notes[0].kind, NOTE_CHUNK);
    assert_int_equal(client.notes[0].status, 0);
    assert_memory_equal(target->span.address, source->span.address, LENGTH);
    disconnect();
}

static void test_peer_that_does_not_read_is_alive(void **state)
{
    (void)state;
    stopped(1);
}

/* Without the keepalive of another lane. */
static void test_peer_is_alive_on_one_socket_too(void **state)
{
    (void)state;
    stopped(0);
}

/* Waits until the client reports that the peer is dead. */
static void await_death(void)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    while (!client.count) {
        assert_true(ibx_now_ns() < deadline);
        sleep_and_turn((int)PATIENCE_MS);
    }
    assert_int_equal(client.notes[0].kind, NOTE_LOST);
    assert_int_equal(client.notes[0].status, -ETIMEDOUT);
    assert_non_null(strstr(client.notes[0].reason, "200 ms"));
    network(true);
    disconnect();
}

static void test_dead_while_data_is_in_flight(void **state)
{
    (void)state;
    if (!own_network)
        skip();
    connect_ends(1);
    end_settle(&client);
    network(false);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    await_death();
}

static void test_dead_while_idle(void **state)
{
    (void)state;
    if (!own_network)
        skip();
    connect_ends(1);
    end_settle(&client);
    network(false);
    await_death();
}

static void test_dead_behind_a_full_window(void **state)
{
    (void)state;
    if (!own_network)
        skip();
    connect_ends(1);
    write_into_full_window(1);
    network(false);
    await_death();
}

/* An idle server has nothing to check and is not woken. */
static void test_an_idle_server_sleeps(void **state)
{
    (void)state;
    struct itimerspec timer;
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    connect_ends(1);
    /* The acknowledgement comes after the following data, as it does without TCP_DELACK_MAX_US. */
    const int late_us = 200000;
    setsockopt(client.tcp->lanes[0].fd, IPPROTO_TCP, 46, &late_us, sizeof(late_us));
    assert_int_equal(end_send(&server, "abcd", 4, 0), 0);
    ibx_provider_tcp.arm(server.tcp);
    assert_true(server.tcp->look_at); /* later the server may have found everything acknowledged */
    assert_true(end_await(&client, &server, 1));
    end_settle(&server);
    assert_int_equal(ibx_provider_tcp.arm(server.tcp), 0);
    while (server.tcp->look_at) {
        assert_true(ibx_now_ns() < deadline);
        end_turn(&server);
        if (!ibx_provider_tcp.arm(server.tcp) && server.tcp->look_at)
            assert_true(end_wakes(&server, (int)PATIENCE_MS));
    }
    assert_int_equal(timerfd_gettime(server.tcp->timer, &timer), 0);
    assert_true(!timer.it_value.tv_sec && !timer.it_value.tv_nsec);
    assert_false(end_wakes(&server, 0));
    assert_int_equal(server.count, 0);
    disconnect();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_that_does_not_read_is_alive),
        cmocka_unit_test(test_peer_is_alive_on_one_socket_too),
        cmocka_unit_test(test_an_idle_server_sleeps),
        cmocka_unit_test(test_dead_while_data_is_in_flight),
        cmocka_unit_test(test_dead_while_idle),
        cmocka_unit_test(test_dead_behind_a_full_window),
    };
    own_network = !unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET);
    if (own_network)
        network(true);
    if (argc > 1)
        end_choose(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
