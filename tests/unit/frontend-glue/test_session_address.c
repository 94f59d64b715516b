/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The host of a session gets another address, for example in a VM that has migrated to another
 * network. The session continues from the new address at once, not when TCP has given the old
 * connection up. It also does if the host has no address for a while, if only another server of
 * the same name answers meanwhile, and if nobody resolves the name or no resolver answers. It
 * ends if the name leads to another server instead.
 *
 *   test_session_address PROVIDER */
#include "tests/fixtures/last_client.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/session_pair.h"
#include "tests/fixtures/shell.h"

#include "common/clock.h"
#include "frontend-glue/session/hooks.h"
#include "transport/core/conn.h"

#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define SERVER     "10.99.0.1"
#define OTHER      "127.0.0.1"
#define SOON_MS    patience_ms(5000)
#define MOMENT_MS  2000u /* reconnect.c: SOON_MS */
#define LONG_MS    (MOMENT_MS + 100)
#define CALL_BYTES 4u

#define MEAN_PAUSE_MS 25u /* between 200 attempts that only changes of the network cause */

static const char *provider;

/* From now on the client's packets to the server come from this address. */
static void come_from(const char *address)
{
    shell("ip addr add %s/32 dev lo && ip route replace local " SERVER " dev lo table local src %s",
          address, address);
}

static int echo(struct session_pair *pair, void *argument)
{
    uint8_t bytes[CALL_BYTES];
    (void)argument;
    while (ibx_session_read(pair->server, bytes, sizeof(bytes)) == sizeof(bytes)) {
        bytes[0]++;
        if (ibx_session_write(pair->server, bytes, sizeof(bytes)) != sizeof(bytes) ||
            ibx_session_sync(pair->server))
            return -1;
    }
    return 0;
}

static void call(struct session_pair *pair, uint8_t number)
{
    uint8_t bytes[CALL_BYTES] = {number};
    if (ibx_session_write(pair->client, bytes, sizeof(bytes)) != sizeof(bytes) ||
        ibx_session_sync(pair->client) ||
        ibx_session_read(pair->client, bytes, sizeof(bytes)) != sizeof(bytes))
        fail_msg("%s", ibx_session_reason(pair->client));
    assert_int_equal(bytes[0], (uint8_t)(number + 1));
}

static int server_socket; /* of its first connection */

static void echo_begin(struct session_pair *pair, unsigned keeps, const char *timeout_ms)
{
    session_keeps = keeps;
    session_pair_use(provider, SERVER, "timeout_ms", timeout_ms);
    session_pair_open(pair);
    server_socket = pair->server->conn->handshake_socket;
    session_pair_start(pair, echo, NULL);
    call(pair, 1);
}

static void echo_end(struct session_pair *pair)
{
    ibx_session_close(pair->client);
    assert_int_equal(session_pair_join(pair), 0);
    session_pair_close(pair);
}

/* From now on the client's server has this name. */
static void rename_server(struct ibx_session *client, const char *host)
{
    struct ibx_uri uri;
    char name[128];
    assert_int_equal(ibx_uri_parse(client->uri, &uri, NULL), 0);
    snprintf(name, sizeof(name), "rdma://%s:%u", host, uri.port);
    free(client->uri);
    client->uri = strdup(name);
}

/* The client behaves as on another host, where it cannot see its server's process. */
static void forget_process(struct ibx_session *client)
{
    close(client->link.peer_fd);
    client->link.peer_fd = -1;
}

/* Neither end has an address any more. */
static void lose_addresses(void)
{
    shell("ip addr flush dev lo scope global && "
          "ip route del local " SERVER " dev lo table local src 10.99.0.2");
}

static void another_address_during_calls(void **state)
{
    struct session_pair pair;
    (void)state;
    echo_begin(&pair, 30, "600000");
    /* another address */
    shell("ip addr add 10.99.0.9/32 dev lo && ip addr del 10.99.0.9/32 dev lo");
    call(&pair, 2);
    assert_int_equal(ibx_session_resumed(pair.client), 0);
    /* The route of the old address is removed with it; packets to it are dropped. */
    shell("ip addr del 10.99.0.2/32 dev lo");
    come_from("10.99.0.3");
    const uint64_t began = ibx_now_ns();
    call(&pair, 3);
    assert_in_range((ibx_now_ns() - began) / IBX_NS_PER_MS, 0, SOON_MS);
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    assert_non_null(strstr(ibx_session_path(pair.server)->peer, "10.99.0.3"));
    call(&pair, 4);
    echo_end(&pair);
}

/* The session makes no calls meanwhile; another thread looks after its connection. */
static void another_address_while_idle(void **state)
{
    struct session_pair pair;
    (void)state;
    echo_begin(&pair, 30, "600000");
    assert_true(ibx_session_look_closely(pair.client));
    assert_false(ibx_session_broken(pair.client));
    shell("ip addr del 10.99.0.3/32 dev lo");
    come_from("10.99.0.4");
    const uint64_t deadline = ibx_deadline_in_ms(SOON_MS);
    while (ibx_session_look_closely(pair.client) && !ibx_session_broken(pair.client))
        assert_true(ibx_now_ns() < deadline);
    assert_true(ibx_session_resume_if_ended(pair.client));
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    call(&pair, 2);
    echo_end(&pair);
}

/* The pause of a client that has found no way to its server: it waits for these two descriptors
 * only. `endless`: time does not end the pause. `restless`: the network changes at once each
 * time; what the client sleeps before it listens for changes is only added up. */
static _Atomic bool endless, restless;
static _Atomic unsigned paused, slept_ms;
int __real_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    const bool pause = (endless || restless) && count == 2 && fds[1].fd < 0 && timeout >= 0;
    paused += pause;
    if (restless && !fds) {
        slept_ms += (unsigned)timeout;
        return 0;
    }
    if (restless && pause)
        return 1;
    return __real_poll(fds, count, pause ? -1 : timeout);
}

/* Looking up this name waits until the test lets it. */
#define SILENT "says-nothing.invalid"
/* This name leads to OTHER and to SERVER. */
#define BOTH "has-two-addresses.invalid"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool answers;
static _Atomic unsigned asked, answered;
int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list);

int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list)
{
    if (!strcmp(node, BOTH) && !(hints->ai_flags & AI_NUMERICHOST)) {
        const int rc = __real_getaddrinfo(OTHER, service, hints, list);
        return rc ? rc : __real_getaddrinfo(SERVER, service, hints, &(*list)->ai_next);
    }
    if (strcmp(node, SILENT) != 0 || hints->ai_flags & AI_NUMERICHOST)
        return __real_getaddrinfo(node, service, hints, list);
    asked++;
    pthread_mutex_lock(&lock);
    while (!answers)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    answered++;
    return EAI_AGAIN;
}

static atomic_bool called;

static void *call_in_thread(void *argument)
{
    call(argument, 2);
    called = true;
    return NULL;
}

/* Another back end, which has no sessions, at OTHER with the port of the client's server. */
struct other {
    struct ibx_session *listening;
    pthread_t thread;
};

static void *accept_other(void *argument)
{
    struct ibx_session *last;
    if (!ibx_session_accept(((struct other *)argument)->listening, &last, NULL))
        ibx_session_destroy(last);
    return NULL;
}

/* From now on the client's server has this name, which leads to OTHER or to both. */
static void other_server_begin(struct other *other, struct ibx_session *client, const char *name)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    struct ibx_uri uri;
    char text[64];
    ibx_options_init(&options);
    assert_int_equal(ibx_uri_parse(client->uri, &uri, NULL), 0);
    snprintf(text, sizeof(text), "rdma://" OTHER ":%u", uri.port);
    if (ibx_session_create(text, &options, &other->listening, &err))
        fail_msg("%s", err.message);
    ibx_session_keep(other->listening, session_keeps);
    if (ibx_session_serve(other->listening, &err))
        fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&other->thread, NULL, accept_other, other), 0);
    rename_server(client, name);
}

static void other_end(struct other *other)
{
    struct ibx_options options;
    ibx_options_init(&options);
    last_client(other->listening, &options, other->thread);
    ibx_session_destroy(other->listening);
}

/* The client tries for longer than it ignores refusals by the server of another address. */
static void attempt_for_long(void)
{
    const uint64_t until = ibx_deadline_in_ms(LONG_MS);
    while (ibx_now_ns() < until && !called) {
        const unsigned before = paused;
        shell("ip addr add 10.99.0.9/32 dev lo && ip addr del 10.99.0.9/32 dev lo");
        while (paused == before && !called)
            sched_yield();
    }
}

static void without_address(bool beside_other)
{
    struct session_pair pair;
    struct other other;
    pthread_t thread;
    echo_begin(&pair, 3600, "60000");
    if (beside_other)
        other_server_begin(&other, pair.client, BOTH);
    forget_process(pair.client);
    paused = 0;
    called = false;
    endless = true;
    lose_addresses();
    assert_int_equal(pthread_create(&thread, NULL, call_in_thread, &pair), 0);
    while (!paused)
        sched_yield();
    if (beside_other)
        attempt_for_long();
    shell("ip addr add " SERVER "/32 dev lo");
    pthread_join(thread, NULL);
    endless = false;
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    call(&pair, 3);
    if (beside_other)
        other_end(&other);
    echo_end(&pair);
    come_from("10.99.0.2");
}

/* Neither the server's address nor its own exists; on one host it is enough that the server's is
 * gone. */
static void no_address_for_a_while(void **state)
{
    (void)state;
    without_address(false);
}

/* The other server does not have the session, and says so. */
static void another_server_answers(void **state)
{
    (void)state;
    without_address(true);
}

/* A name of one server leads to one that does not have the session: the server was restarted at
 * another address. But the name may also lead elsewhere for a moment, in another network. */
static void the_server_has_moved(void **state)
{
    struct session_pair pair;
    struct other other;
    uint8_t bytes[CALL_BYTES] = {1};
    (void)state;
    echo_begin(&pair, 1, "60000");
    pair.client->link.agreed = 30; /* the client would wait this long */
    other_server_begin(&other, pair.client, OTHER);
    forget_process(pair.client);
    lose_addresses();
    const uint64_t began = ibx_now_ns();
    assert_true(ibx_session_write(pair.client, bytes, sizeof(bytes)) != sizeof(bytes) ||
                ibx_session_sync(pair.client) ||
                ibx_session_read(pair.client, bytes, sizeof(bytes)) != sizeof(bytes));
    assert_in_range((ibx_now_ns() - began) / IBX_NS_PER_MS, MOMENT_MS, SOON_MS);
    assert_non_null(strstr(ibx_session_reason(pair.client), "refuses"));
    assert_true(ibx_session_server_gone(pair.client));
    other_end(&other);
    shell("ip addr add " SERVER "/32 dev lo");
    come_from("10.99.0.2");
    shutdown(server_socket, SHUT_RDWR); /* ends its thread, to which its session belongs */
    session_pair_join(&pair);
    session_pair_close(&pair);
}

/* The client tries after each change, but not as often as changes may come. */
static void a_restless_network(void **state)
{
    struct session_pair pair;
    pthread_t thread;
    (void)state;
    echo_begin(&pair, 3600, "60000");
    forget_process(pair.client);
    paused = slept_ms = 0;
    restless = true;
    lose_addresses();
    assert_int_equal(pthread_create(&thread, NULL, call_in_thread, &pair), 0);
    while (paused < 200)
        sched_yield();
    assert_in_range(slept_ms, 200 * MEAN_PAUSE_MS, UINT32_MAX);
    shell("ip addr add " SERVER "/32 dev lo");
    restless = false;
    pthread_join(thread, NULL);
    echo_end(&pair);
    come_from("10.99.0.2");
}

static void no_resolver(void **state)
{
    struct session_pair pair;
    (void)state;
    echo_begin(&pair, 10, "60000");
    rename_server(pair.client, "nobody-knows-it.invalid");
    ibx_abort(pair.client->conn);
    call(&pair, 2);
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    echo_end(&pair);
}

/* The resolver does not answer, while the server can be reached again. */
static void silent_resolver(void **state)
{
    struct session_pair pair;
    pthread_t thread;
    (void)state;
    echo_begin(&pair, 3600, "60000");
    rename_server(pair.client, SILENT);
    forget_process(pair.client);
    lose_addresses();
    called = false;
    assert_int_equal(pthread_create(&thread, NULL, call_in_thread, &pair), 0);
    while (!asked)
        sched_yield();
    shell("ip addr add " SERVER "/32 dev lo");
    const uint64_t until = ibx_deadline_in_ms(SOON_MS);
    while (!called && ibx_now_ns() < until)
        sched_yield();
    const bool goes_on = called;
    pthread_mutex_lock(&lock);
    answers = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    assert_true(goes_on);
    pthread_join(thread, NULL);
    while (asked != answered) /* until the thread that asks has ended */
        sched_yield();
    echo_end(&pair);
    come_from("10.99.0.2");
}

/* The last server that answered does not have the session, and proves it, while no resolver says
 * where else its name leads. The session has ended. */
static void end_without_resolver(const char *named)
{
    struct session_pair pair;
    uint8_t bytes[CALL_BYTES] = {1};
    echo_begin(&pair, 1, "60000");
    rename_server(pair.client, named);
    pair.client->link.id[0] ^= 1;
    ibx_abort(pair.client->conn);
    assert_true(ibx_session_write(pair.client, bytes, sizeof(bytes)) != sizeof(bytes) ||
                ibx_session_sync(pair.client));
    assert_non_null(strstr(ibx_session_reason(pair.client), "on: " SERVER));
    assert_non_null(strstr(ibx_session_reason(pair.client), "refuses"));
    assert_true(ibx_session_server_gone(pair.client));
    session_pair_join(&pair);
    session_pair_close(&pair);
}

static void restarted_without_resolver(void **state)
{
    (void)state;
    end_without_resolver("nobody-knows-it.invalid");
    answers = false;
    asked = answered = 0;
    end_without_resolver(SILENT);
    pthread_mutex_lock(&lock);
    answers = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    while (asked != answered)
        sched_yield();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_resolver),
                                       cmocka_unit_test(silent_resolver),
                                       cmocka_unit_test(restarted_without_resolver),
                                       cmocka_unit_test(no_address_for_a_while),
                                       cmocka_unit_test(another_server_answers),
                                       cmocka_unit_test(the_server_has_moved),
                                       cmocka_unit_test(a_restless_network),
                                       cmocka_unit_test(another_address_during_calls),
                                       cmocka_unit_test(another_address_while_idle)};
    provider = argc > 1 ? argv[1] : "tcp";
    if (unshare(CLONE_NEWNET)) {
        print_message("needs root, for a network of its own\n");
        return 77;
    }
    shell("ip link set lo up && ip addr add " SERVER "/32 dev lo");
    come_from("10.99.0.2");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
