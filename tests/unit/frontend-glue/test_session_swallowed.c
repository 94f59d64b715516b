/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Between a client and its server there is a relay that swallows, from some point on, everything
 * that passes, and acknowledges it. The session goes on over another connection, and each request
 * runs once; if that is swallowed, too, it ends. A server that runs a long handler meanwhile is not
 * taken for dead. */
#include "tests/fixtures/must.h"
#include "tests/fixtures/relayed_connect.h"
#include "tests/fixtures/session_pair.h"

#include "common/clock.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define KEY        "alice:00112233445566778899aabbccddeeff\n"
#define SILENCE_MS 3000u
#define LONG_MS    (2 * SILENCE_MS)
#define LONGER_MS  1000u /* each time */
#define ECHOES     100u
#define KEEPS      20u /* seconds */
#define CALL_BYTES 8u
#define LONG_BYTES (1u << 20)

enum ask { ASK_ECHO, ASK_SWALLOW, ASK_SLOWLY, ASK_LONG }; /* the first byte of a call */

/* ------------------------------------------------------------ the relay */

enum direction { TO_SERVER = 1, TO_CLIENT = 2 };

static atomic_uint connection; /* the number of the last one */
static atomic_uint swallowing; /* directions, of connections up to this number: */
static atomic_uint swallows_to;

struct pipe {
    int from, to;
    unsigned number;
    enum direction direction;
};

static void *pass(void *argument)
{
    struct pipe *pipe = argument;
    uint8_t bytes[65536];
    ssize_t n;
    while ((n = recv(pipe->from, bytes, sizeof(bytes), 0)) > 0) {
        if (atomic_load(&swallowing) & pipe->direction && pipe->number <= atomic_load(&swallows_to))
            continue;
        if (send(pipe->to, bytes, (size_t)n, MSG_NOSIGNAL) != n)
            break;
    }
    shutdown(pipe->to, SHUT_WR);
    close(pipe->from);
    close(pipe->to);
    free(pipe);
    return NULL;
}

static void begin(int from, int to, unsigned number, enum direction direction)
{
    struct pipe *pipe = malloc(sizeof(*pipe));
    pthread_t thread;
    MUST(pipe);
    *pipe = (struct pipe){from, to, number, direction};
    MUST(!pthread_create(&thread, NULL, pass, pipe) && !pthread_detach(thread));
}

void relay_start(int client, int server)
{
    const unsigned number = atomic_fetch_add(&connection, 1) + 1;
    begin(dup(client), dup(server), number, TO_SERVER);
    begin(server, client, number, TO_CLIENT);
}

static void swallow(unsigned directions, unsigned to)
{
    atomic_store(&swallows_to, to);
    atomic_store(&swallowing, directions);
}

/* ------------------------------------------------------------ the session */

static char key_file[] = "/tmp/ibx-swallowed-XXXXXX";
static bool encrypted;
static unsigned timeout_ms; /* 0: the usual one */
static unsigned directions; /* that ASK_SWALLOW swallows */
static atomic_uint runs;    /* requests that the server has run */
static uint8_t body[LONG_BYTES];

static void set_options(struct ibx_options *options)
{
    options->silence_ms = SILENCE_MS;
    if (timeout_ms)
        options->timeout_ms = timeout_ms;
    options->signs = true;
    strcpy(options->key_file, key_file); /* without it, a client refuses to use a relay */
    options->encryption = encrypted ? IBX_ENCRYPTION_REQUIRED : IBX_ENCRYPTION_OFF;
}

static int serve(struct session_pair *pair, void *argument)
{
    uint8_t bytes[CALL_BYTES];
    (void)argument;
    while (ibx_session_read(pair->server, bytes, sizeof(bytes)) == sizeof(bytes)) {
        atomic_fetch_add(&runs, 1);
        if (bytes[0] == ASK_LONG && ibx_session_read(pair->server, body, LONG_BYTES) != LONG_BYTES)
            return -1;
        if (bytes[0] == ASK_SWALLOW)
            swallow(directions, atomic_load(&connection));
        if (bytes[0] == ASK_SLOWLY)
            poll(NULL, 0, (int)(LONG_MS + runs * LONGER_MS));
        if (ibx_session_write(pair->server, bytes, sizeof(bytes)) != sizeof(bytes) ||
            ibx_session_sync(pair->server))
            return -1;
    }
    return 0;
}

static bool call(struct session_pair *pair, enum ask ask)
{
    uint8_t bytes[CALL_BYTES] = {(uint8_t)ask, 1, 2, 3}, answer[CALL_BYTES];
    static uint8_t sent[LONG_BYTES];
    const bool done =
        ibx_session_write(pair->client, bytes, sizeof(bytes)) == sizeof(bytes) &&
        (ask != ASK_LONG || ibx_session_write(pair->client, sent, LONG_BYTES) == LONG_BYTES) &&
        !ibx_session_sync(pair->client) &&
        ibx_session_read(pair->client, answer, sizeof(answer)) == sizeof(answer);
    if (done)
        assert_memory_equal(bytes, answer, sizeof(bytes));
    return done;
}

static void session_open(struct session_pair *pair)
{
    runs = 0;
    swallow(0, 0);
    session_options = set_options;
    session_keeps = KEEPS;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(pair);
    session_pair_start(pair, serve, NULL);
    assert_true(call(pair, ASK_ECHO));
}

/* `ask`: a call that finds the connection swallowed. */
static void goes_on(enum ask ask, unsigned swallowed)
{
    struct session_pair pair;
    directions = swallowed;
    session_open(&pair);
    if (ask != ASK_SWALLOW) /* otherwise the server begins, when the request has come */
        swallow(swallowed, atomic_load(&connection));
    const uint64_t began = ibx_now_ns();
    if (!call(&pair, ask))
        fail_msg("%s", ibx_session_reason(pair.client));
    assert_true(ibx_now_ns() - began >= SILENCE_MS * IBX_NS_PER_MS);
    assert_true(call(&pair, ASK_ECHO));
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    assert_int_equal(runs, 3);
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
}

static void requests(void **state)
{
    (void)state;
    goes_on(ASK_ECHO, TO_SERVER);
}

static void replies(void **state)
{
    (void)state;
    goes_on(ASK_SWALLOW, TO_CLIENT);
}

static void both(void **state)
{
    (void)state;
    goes_on(ASK_ECHO, TO_SERVER | TO_CLIENT);
}

static void a_long_payload(void **state)
{
    (void)state;
    goes_on(ASK_LONG, TO_CLIENT);
}

static void encrypted_ones(void **state)
{
    (void)state;
    encrypted = true;
    goes_on(ASK_ECHO, TO_SERVER | TO_CLIENT);
    goes_on(ASK_SWALLOW, TO_CLIENT);
    encrypted = false;
}

/* A handler that takes longer than the silence that is allowed. */
static void takes_long(bool encrypts, unsigned times)
{
    struct session_pair pair;
    encrypted = encrypts;
    session_open(&pair);
    for (unsigned i = 0; i < times; i++)
        assert_true(call(&pair, ASK_SLOWLY));
    for (unsigned i = 0; i < ECHOES; i++) /* in which answers to CHECKs are read */
        assert_true(call(&pair, ASK_ECHO));
    assert_int_equal(ibx_session_resumed(pair.client), 0);
    assert_int_equal(runs, 1 + times + ECHOES);
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
    encrypted = false;
}

/* Each time it takes longer than bytes may be on their way: the CHECKs that the server reads late
 * are not lost. */
static void long_handlers(void **state)
{
    (void)state;
    timeout_ms = SILENCE_MS;
    takes_long(false, 2);
    timeout_ms = 0;
}

static void a_long_handler_in_tls(void **state)
{
    (void)state;
    takes_long(true, 1);
}

/* The next connections are swallowed, too. */
static void all_connections(void **state)
{
    struct session_pair pair;
    (void)state;
    session_open(&pair);
    swallow(TO_SERVER | TO_CLIENT, UINT32_MAX);
    assert_false(call(&pair, ASK_ECHO));
    assert_non_null(strstr(ibx_session_reason(pair.client), "no sign of life"));
    assert_int_equal(runs, 1);
    swallow(0, 0);
    ibx_session_abandon(pair.server);
    ibx_session_close(pair.client);
    session_pair_join(&pair);
    session_pair_close(&pair);
}

static int make_key(void **state)
{
    (void)state;
    const int fd = mkstemp(key_file);
    const bool made = fd >= 0 && write(fd, KEY, sizeof(KEY) - 1) == sizeof(KEY) - 1;
    close(fd);
    return made ? 0 : -1;
}

static int remove_key(void **state)
{
    (void)state;
    return unlink(key_file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest swallowed[] = {cmocka_unit_test(requests), cmocka_unit_test(replies),
                                           cmocka_unit_test(both), cmocka_unit_test(a_long_payload),
                                           cmocka_unit_test(encrypted_ones)};
    const struct CMUnitTest slow[] = {cmocka_unit_test(long_handlers),
                                      cmocka_unit_test(a_long_handler_in_tls)};
    const struct CMUnitTest lost[] = {cmocka_unit_test(all_connections)};
    const char *which = argc > 1 ? argv[1] : "swallowed";
    if (!strcmp(which, "slow"))
        return cmocka_run_group_tests(slow, make_key, remove_key);
    if (!strcmp(which, "lost"))
        return cmocka_run_group_tests(lost, make_key, remove_key);
    return cmocka_run_group_tests(swallowed, make_key, remove_key);
}
