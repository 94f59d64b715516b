/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A kept session has lost its connection and its peer does not come back. If it notices that
 * while it registers memory for a long payload, it ends in the same way. Also: when the server
 * of a long request considers its client gone; when a client takes resets for lost packets,
 * which ends a session; and that an answer of another protocol does not end a session. */
#include "tests/fixtures/session_pair.h"

#include "common/clock.h"
#include "transport/core/conn.h"
#include "transport/core/segments.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define LONG (4u << 20)

static struct session_pair pair;
static uint8_t *memory;

static int open_pair(unsigned seconds)
{
    memory = calloc(1, LONG);
    session_keeps = seconds;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return open_pair(1);
}

static int setup_without(void **state)
{
    (void)state;
    return open_pair(0);
}

static int setup_for_long(void **state)
{
    (void)state;
    return open_pair(30);
}

static int teardown(void **state)
{
    (void)state;
    free(memory);
    session_pair_close(&pair);
    return 0;
}

/* Vanishes like a peer whose process dies. */
static void vanish(struct ibx_session *s)
{
    ibx_abort(s->conn);
    ibx_hang_up(s->conn);
}

static void stop_listening(void)
{
    session_pair_stop_accepting(&pair);
    ibx_session_close(pair.listening);
}

static void await_end(struct ibx_session *s)
{
    while (!s->ended)
        assert_true(ibx_session_poll(s) >= 0);
}

static void expect_lost(struct ibx_session *s)
{
    assert_false(ibx_session_live(s));
    if (!strstr(ibx_session_reason(s), "the session cannot go on"))
        fail_msg("%s", ibx_session_reason(s));
}

static void a_client_writes(void **state)
{
    (void)state;
    stop_listening();
    vanish(pair.server);
    await_end(pair.client);
    assert_true(ibx_session_write(pair.client, memory, LONG) < 0);
    expect_lost(pair.client);
}

static void a_server_reads(void **state)
{
    (void)state;
    assert_int_equal(ibx_session_write(pair.client, memory, LONG), LONG);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    while (!pair.server->stream.count)
        assert_true(ibx_session_poll(pair.server) >= 0);
    vanish(pair.client);
    await_end(pair.server);
    assert_true(ibx_session_read(pair.server, memory, LONG) < 0);
    expect_lost(pair.server);
}

/* ------------------------------------------------------------------------------- a process that
 * ends */

/* As if the peer's process, which runs on this host, had ended. */
static void process_ends(struct ibx_session *s)
{
    if (s->link.peer_fd >= 0)
        close(s->link.peer_fd);
    s->link.peer_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
}

/* Nobody comes back, so the client does not try for as long as the session is kept. */
static void a_back_end_ends(void **state)
{
    (void)state;
    uint8_t byte;
    const uint64_t deadline = ibx_deadline_in_ms(pair.client->link.agreed * 1000);
    stop_listening();
    vanish(pair.server);
    process_ends(pair.client);
    assert_true(ibx_session_read(pair.client, &byte, 1) < 0);
    assert_true(ibx_now_ns() < deadline);
    expect_lost(pair.client);
    assert_non_null(strstr(ibx_session_reason(pair.client), "process has ended"));
    assert_true(ibx_session_server_gone(pair.client));
}

/* Between two calls that is the end of the stream, and no failure. */
static void a_client_ends(void **state)
{
    (void)state;
    uint8_t byte;
    const uint64_t deadline = ibx_deadline_in_ms(pair.server->link.seconds * 1000);
    vanish(pair.client);
    process_ends(pair.server);
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 0);
    assert_true(ibx_now_ns() < deadline);
    assert_false(ibx_session_live(pair.server));
}

/* ------------------------------------------------------------------------------- a long request */

/* Waits until the server, which checks its client now and then, has noticed that the connection
 * has ended. */
static uint64_t await_loss(void)
{
    uint64_t since = 0;
    assert_false(ibx_session_client_gone(pair.server, &since));
    assert_int_equal(since, 0);
    vanish(pair.client);
    while (!since)
        assert_false(ibx_session_client_gone(pair.server, &since));
    return since;
}

static void client_is_gone_when_its_time_is_over(void **state)
{
    (void)state;
    stop_listening();
    uint64_t since = await_loss();
    const uint64_t then = since;
    assert_false(ibx_session_client_gone(pair.server, &since));
    assert_int_equal(since, then);
    since -= 30001 * IBX_NS_PER_MS;
    assert_true(ibx_session_client_gone(pair.server, &since));
}

static void *come_back(void *argument)
{
    const uint8_t byte = 3;
    (void)argument;
    return ibx_session_write(pair.client, &byte, 1) == 1 && !ibx_session_sync(pair.client) ? &pair
                                                                                           : NULL;
}

static void a_client_that_comes_back_is_not_gone(void **state)
{
    (void)state;
    uint8_t byte = 0;
    pthread_t client;
    void *came = NULL;
    uint64_t since = await_loss();
    assert_int_equal(pthread_create(&client, NULL, come_back, NULL), 0);
    while (since)
        assert_false(ibx_session_client_gone(pair.server, &since));
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);
    assert_int_equal(byte, 3);
    pthread_join(client, &came);
    assert_non_null(came);
    assert_false(ibx_session_client_gone(pair.server, &since));
    assert_int_equal(since, 0);
}

static void a_client_whose_session_is_not_kept_is_gone_at_once(void **state)
{
    (void)state;
    uint64_t since = 0;
    assert_false(ibx_session_client_gone(pair.server, &since));
    vanish(pair.client);
    while (!ibx_session_client_gone(pair.server, &since))
        assert_int_equal(since, 0);
}

/* ------------------------------------------------------------------------------- resets */

/* How the client judges the reset of a connection that it has had this long. */
static int judge_reset(uint64_t lived_ms)
{
    struct session_link *link = &pair.client->link;
    struct ibx_error err;
    link->resumed = 1;
    link->resumed_at = ibx_now_ns() - lived_ms * IBX_NS_PER_MS;
    pair.client->conn->lost_status = -ECONNRESET;
    return ibx_reconnect_judge(pair.client, &err);
}

/* As if the connections since then had lasted longer than the session would be kept. */
static void time_passes(void)
{
    pair.client->link.futile.since -= (pair.client->link.agreed * 1000 + 1) * IBX_NS_PER_MS;
}

static unsigned segments_limit(void)
{
    return ibx_segments_limit_of(pair.client->conn->handshake_socket);
}

static void a_client_is_reset_again_and_again(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(judge_reset(10), 0);
    time_passes();
    assert_int_equal(judge_reset(10), -EMSGSIZE);
}

/* A call takes hours, on a network where something resets connections now and then. */
static void a_client_is_reset_now_and_then(void **state)
{
    (void)state;
    const unsigned long_ms = 2 * pair.client->options.timeout_ms;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(judge_reset(i % 2 ? long_ms : 10), 0);
        time_passes();
    }
}

static void connection_that_received_something_has_lost_nothing(void **state)
{
    (void)state;
    const unsigned before = segments_limit();
    for (unsigned i = 0; i < 8; i++) {
        pair.client->link.taken[ORDER_STREAM]++;
        assert_int_equal(judge_reset(10), 0);
        time_passes();
    }
    assert_int_equal(segments_limit(), before);
}

/* The server needs 2 seconds to notice, however short the time-out is. */
static void short_timeout_does_not_retry_for_ever(void **state)
{
    (void)state;
    pair.client->options.timeout_ms = 100;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(judge_reset(2500), 0);
    time_passes();
    assert_int_equal(judge_reset(2500), -EMSGSIZE);
}

static int answer(struct session_pair *of, void *argument)
{
    uint8_t byte;
    (void)argument;
    return ibx_session_read(of->server, &byte, 1) == 1 &&
                   ibx_session_write(of->server, &byte, 1) == 1
               ? ibx_session_sync(of->server)
               : -1;
}

/* Accepts one connection, and answers it as a web server answers a malformed request. */
static void *answer_as_another(void *argument)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    const int *listening = argument, fd = accept(*listening, NULL, NULL);
    char request[4096];
    assert_true(recv(fd, request, sizeof(request), 0) > 0);
    assert_int_equal(send(fd, answer, strlen(answer), MSG_NOSIGNAL), strlen(answer));
    close(fd);
    return NULL;
}

static _Atomic unsigned elsewhere; /* the port of the next connection; 0: unchanged */

int __real_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **out,
                       struct ibx_error *err);
int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **out,
                       struct ibx_error *err);

int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **out,
                       struct ibx_error *err)
{
    char other[64];
    const unsigned port = atomic_exchange(&elsewhere, 0);
    snprintf(other, sizeof(other), "rdma://127.0.0.1:%u", port);
    return __real_ibx_connect(port ? other : uri, options, out, err);
}

static void another_program_answers_in_the_servers_place(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    struct sockaddr *const at = (struct sockaddr *)&address;
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t another;
    uint8_t byte = 0;
    (void)state;
    assert_int_equal(bind(listening, at, sizeof(address)), 0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(getsockname(listening, at, &size), 0);
    assert_int_equal(pthread_create(&another, NULL, answer_as_another, &listening), 0);
    elsewhere = ntohs(address.sin_port);
    vanish(pair.server);
    session_pair_start(&pair, answer, NULL);
    if (ibx_session_write(pair.client, &byte, 1) != 1 || ibx_session_sync(pair.client) ||
        ibx_session_read(pair.client, &byte, 1) != 1)
        fail_msg("%s", ibx_session_reason(pair.client));
    assert_int_equal(session_pair_join(&pair), 0);
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    pthread_join(another, NULL);
    close(listening);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_client_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(a_back_end_ends, setup_for_long, teardown),
        cmocka_unit_test_setup_teardown(a_client_ends, setup_for_long, teardown),
        cmocka_unit_test_setup_teardown(client_is_gone_when_its_time_is_over, setup_for_long,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_client_that_comes_back_is_not_gone, setup_for_long,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_client_whose_session_is_not_kept_is_gone_at_once,
                                        setup_without, teardown),
        cmocka_unit_test_setup_teardown(connection_that_received_something_has_lost_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_client_is_reset_now_and_then, setup, teardown),
        cmocka_unit_test_setup_teardown(a_client_is_reset_again_and_again, setup, teardown),
        cmocka_unit_test_setup_teardown(short_timeout_does_not_retry_for_ever, setup, teardown),
        cmocka_unit_test_setup_teardown(another_program_answers_in_the_servers_place,
                                        setup_for_long, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
