/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session over a network that silently drops long packets and passes short ones, for example
 * through a tunnel with a firewall that drops ICMP. The session continues with segments that
 * pass, in whichever direction and over whichever provider the long ones were lost. If not even
 * short TCP packets pass, it ends with that reason.
 *
 * The test uses two network namespaces. An interface accepts no packet longer than its MTU, and
 * each end offers the other one longer ones. */
#include "tests/fixtures/networks.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/session_pair.h"
#include "tests/fixtures/shell.h"

#include "common/clock.h"
#include "transport/core/conn.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CLIENT     "10.98.0.1"
#define INLINE     8000u
#define LONG       (3u << 20)
#define TUNNEL_MTU 1280u
#define TINY_MTU   420u

struct call {
    uint32_t there, back; /* bytes of the request and of the reply */
};

/* the address is 10.98.0.2 and so on, because results for one server do not apply to the next */
static unsigned server = 1;
static uint8_t pattern[LONG], got[LONG];

static void in_client(const char *command)
{
    networks_enter_client();
    shell("%s", command);
    networks_leave_client();
}

static void middle_mtu(unsigned bytes)
{
    shell("ip link set middle mtu %u", bytes);
}

static int serve(struct session_pair *pair, void *argument)
{
    struct call call;
    static uint8_t request[LONG], reply[LONG];
    (void)argument;
    memset(reply, 0x5a, sizeof(reply));
    while (ibx_session_read(pair->server, &call, sizeof(call)) == sizeof(call)) {
        if (ibx_session_read(pair->server, request, call.there) != (ssize_t)call.there ||
            memcmp(request, pattern, call.there) ||
            ibx_session_write(pair->server, reply, call.back) != (ssize_t)call.back ||
            ibx_session_sync(pair->server))
            return -1;
    }
    return 0;
}

static bool call(struct session_pair *pair, uint32_t to, uint32_t back)
{
    const struct call what = {to, back};
    memset(got, 0, back);
    networks_enter_client();
    const bool good = ibx_session_write(pair->client, &what, sizeof(what)) == sizeof(what) &&
                      ibx_session_write(pair->client, pattern, to) == (ssize_t)to &&
                      !ibx_session_sync(pair->client) &&
                      ibx_session_read(pair->client, got, back) == (ssize_t)back;
    networks_leave_client();
    for (uint32_t i = 0; good && i < back; i++)
        assert_int_equal(got[i], 0x5a);
    return good;
}

static void open_pair(struct session_pair *pair, unsigned keep)
{
    char host[32];
    snprintf(host, sizeof(host), "10.98.0.%u", ++server);
    session_keeps = keep;
    session_pair_use("tcp", host, NULL, NULL);
    session_pair_open(pair);
    session_pair_start(pair, serve, NULL);
    assert_true(call(pair, 16, 16));
}

static void end_pair(struct session_pair *pair)
{
    ibx_session_close(pair->client);
    session_pair_join(pair);
    middle_mtu(1500);
    session_pair_close(pair);
}

static void goes_on(uint32_t to, uint32_t back)
{
    struct session_pair pair;
    open_pair(&pair, 60);
    middle_mtu(TUNNEL_MTU);
    if (!call(&pair, to, back))
        fail_msg("%s", ibx_session_reason(pair.client));
    assert_true(ibx_session_resumed(pair.client));
    end_pair(&pair);
}

static void long_requests_are_lost(void **state)
{
    (void)state;
    goes_on(INLINE, 16);
}

static void long_replies_are_lost(void **state)
{
    (void)state;
    goes_on(16, INLINE);
}

static void long_payloads_there_are_lost(void **state)
{
    (void)state;
    goes_on(LONG, 16);
}

static void long_payloads_back_are_lost(void **state)
{
    (void)state;
    goes_on(16, LONG);
}

/* Shorter than every IPv4 network passes, longer than the frames of a handshake. */
static void all_but_the_shortest_are_lost(void **state)
{
    struct session_pair pair;
    (void)state;
    open_pair(&pair, 5);
    middle_mtu(TINY_MTU);
    assert_false(call(&pair, INLINE, 16));
    print_message("%s\n", ibx_session_reason(pair.client));
    assert_non_null(strstr(ibx_session_reason(pair.client), "bytes of data"));
    assert_non_null(strstr(ibx_session_reason(pair.client), "tcp_mtu_probing"));
    end_pair(&pair);
}

static bool wire_make(void)
{
    char there[64];
    if (!networks_make(there, sizeof(there)))
        return false;
    char command[640];
    snprintf(command, sizeof(command),
             "ip link set lo up && ip link add v0 gso_max_segs 1 type veth peer name p0 && "
             "ip link add middle type veth peer name middle netns %s && "
             "ip link add switch type bridge && ip link set p0 master switch && "
             "ip link set middle master switch && "
             "for i in 2 3 4 5 6 7 8 9; do ip addr add 10.98.0.$i/24 dev v0 || exit; done && "
             "for i in v0 p0 middle switch; do ip link set $i up || exit; done",
             there);
    if (system(command))
        return false;
    in_client("ip link set lo up && ip link add v1 gso_max_segs 1 type veth peer name p1 && "
              "ip link add switch type bridge && ip link set p1 master switch && "
              "ip link set middle master switch && ip addr add " CLIENT "/24 dev v1 && "
              "for i in v1 p1 middle switch; do ip link set $i up || exit; done");
    return true;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_requests_are_lost),
        cmocka_unit_test(long_replies_are_lost),
        cmocka_unit_test(long_payloads_there_are_lost),
        cmocka_unit_test(long_payloads_back_are_lost),
        cmocka_unit_test(all_but_the_shortest_are_lost),
    };
    for (size_t i = 0; i < sizeof(pattern); i++)
        pattern[i] = (uint8_t)(i * 7);
    if (!wire_make()) {
        print_message("needs root, for two networks of its own\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
