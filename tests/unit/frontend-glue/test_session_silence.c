/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The network is silent for one connection of a session and not for the next one. The session
 * continues over another connection long before TCP notices, even if only the server has sent
 * something. A slow server does not count as silent.
 *
 *   test_session_silence [slow]    the test of the slow server, or the others
 *
 * The test uses two network namespaces. What the server's host sends to an address of the client
 * goes to a MAC address that nobody has; the next connection comes from another address. */
#include "tests/fixtures/networks.h"
#include "tests/fixtures/session_pair.h"
#include "tests/fixtures/shell.h"

#include "transport/core/conn.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <cmocka.h>

#define SERVER     "10.99.0.1"
#define CALL_BYTES 4u
#define SLOW_MS    4000u /* a silence this long would end the connection */

enum ask { ASK_ECHO, ASK_SILENCE, ASK_SLOWLY }; /* the first byte of a call */

static unsigned client_address; /* its last byte */

/* From now on nothing reaches the client's address. Its next connection comes from another one. */
static void silence(void)
{
    const unsigned now = client_address++;
    shell("ip neigh replace 10.99.0.%u lladdr 02:00:00:00:00:99 dev v0 nud permanent", now);
    networks_enter_client();
    shell("ip addr add 10.99.0.%u/24 dev v1 && ip route replace " SERVER " dev v1 src 10.99.0.%u",
          client_address, client_address);
    networks_leave_client();
}

static int client_socket; /* of its first connection */

static bool is_acknowledged(void)
{
    int left = -1;
    return !ioctl(client_socket, SIOCOUTQ, &left) && !left;
}

static int serve(struct session_pair *pair, void *argument)
{
    uint8_t bytes[CALL_BYTES];
    (void)argument;
    while (ibx_session_read(pair->server, bytes, sizeof(bytes)) == sizeof(bytes)) {
        if (bytes[0] == ASK_SILENCE) {
            while (!is_acknowledged())
                sched_yield();
            silence();
        }
        if (bytes[0] == ASK_SLOWLY)
            poll(NULL, 0, SLOW_MS);
        if (ibx_session_write(pair->server, bytes, sizeof(bytes)) != sizeof(bytes) ||
            ibx_session_sync(pair->server))
            return -1;
    }
    return 0;
}

static void call(struct session_pair *pair, enum ask ask)
{
    uint8_t bytes[CALL_BYTES] = {(uint8_t)ask, 1, 2, 3};
    networks_enter_client();
    if (ibx_session_write(pair->client, bytes, sizeof(bytes)) != sizeof(bytes) ||
        ibx_session_sync(pair->client) ||
        ibx_session_read(pair->client, bytes, sizeof(bytes)) != sizeof(bytes))
        fail_msg("%s", ibx_session_reason(pair->client));
    networks_leave_client();
    assert_memory_equal(bytes, ((uint8_t[]){(uint8_t)ask, 1, 2, 3}), sizeof(bytes));
}

static void session_open(struct session_pair *pair)
{
    session_keeps = 60;
    session_pair_use("tcp", SERVER, "timeout_ms", "600000");
    session_pair_open(pair);
    client_socket = pair->client->conn->handshake_socket;
    session_pair_start(pair, serve, NULL);
    call(pair, ASK_ECHO);
}

static void session_end(struct session_pair *pair, unsigned resumed)
{
    call(pair, ASK_ECHO);
    assert_int_equal(ibx_session_resumed(pair->client), resumed);
    ibx_session_close(pair->client);
    assert_int_equal(session_pair_join(pair), 0);
    session_pair_close(pair);
}

static void a_request_is_lost(void **state)
{
    struct session_pair pair;
    (void)state;
    session_open(&pair);
    silence();
    call(&pair, ASK_ECHO);
    session_end(&pair, 1);
}

static void an_answer_is_lost(void **state)
{
    struct session_pair pair;
    (void)state;
    session_open(&pair);
    call(&pair, ASK_SILENCE);
    session_end(&pair, 1);
}

static void a_slow_server(void **state)
{
    struct session_pair pair;
    (void)state;
    session_open(&pair);
    call(&pair, ASK_SLOWLY);
    session_end(&pair, 0);
}

static bool wire_make(void)
{
    char there[64];
    if (!networks_make(there, sizeof(there)))
        return false;
    client_address = 10;
    char command[256];
    snprintf(command, sizeof(command),
             "ip link add v0 type veth peer name v1 && ip link set v1 netns %s && "
             "ip addr add " SERVER "/24 dev v0 && ip link set v0 up && ip link set lo up",
             there);
    if (system(command))
        return false;
    networks_enter_client();
    shell("ip link set lo up && ip addr add 10.99.0.10/24 dev v1 && ip link set v1 up");
    networks_leave_client();
    return true;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_request_is_lost),
                                       cmocka_unit_test(an_answer_is_lost)};
    const struct CMUnitTest slow[] = {cmocka_unit_test(a_slow_server)};
    if (!wire_make()) {
        print_message("needs root, for two networks of its own\n");
        return 77;
    }
    if (argc > 1 && !strcmp(argv[1], "slow"))
        return cmocka_run_group_tests(slow, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
