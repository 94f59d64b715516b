/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session continues over a connection on which one end cannot register memory, for example
 * because verbs may lock less memory than the program has registered. It then uses tcp, which
 * locks none. */
#include "tests/fixtures/session_pair.h"

#include "transport/core/conn.h"
#include "transport/shm/shm.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define BODY          (3u << 20)
#define SECONDS       20
#define SHORT_SECONDS 5 /* the server waits this long in vain */

static atomic_bool register_none, may_read;
static bool reads_on; /* the server, after both bodies */
static enum ibx_role fails_at;
static int failure = -ENOMEM;
static atomic_uint failures, fails_most;

int __real_ibx_shm_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
int __wrap_ibx_shm_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err);
int __wrap_ibx_shm_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    if (!register_none || mr->conn->role != fails_at || failures >= fails_most)
        return __real_ibx_shm_mr_register(endpoint, mr, err);
    failures++;
    return ibx_error_set(err, failure, "this memory cannot be registered");
}

/* Returns 1 if both bodies were right. */
static int read_bodies(struct session_pair *pair, void *argument)
{
    uint8_t *bytes = malloc(BODY);
    struct ibx_mr *mr = NULL;
    const struct ibx_span span = ibx_span_host(bytes, BODY);
    int right = !ibx_mr_register(pair->server->conn, &span, IBX_ACCESS_LOCAL, &mr, NULL);
    (void)argument;
    for (unsigned i = 0; i < 2; i++) {
        uint8_t answer = 7;
        while (i && !may_read)
            poll(NULL, 0, 1);
        right &= ibx_session_read(pair->server, bytes, BODY) == BODY &&
                 pattern_check(bytes, BODY, i) == BODY &&
                 ibx_session_write(pair->server, &answer, 1) == 1 &&
                 !ibx_session_sync(pair->server);
    }
    /* It may have had both before it noticed that the connection had ended. */
    uint8_t none;
    right &= !reads_on || ibx_session_read(pair->server, &none, 1) < 0;
    if (ibx_session_live(pair->server)) /* otherwise it has ended with the connection */
        ibx_mr_deregister(mr);
    free(bytes);
    return right;
}

static void send_body(struct session_pair *pair, uint8_t *body, unsigned number, void (*then)(void))
{
    uint8_t answer = 0;
    pattern_fill(body, BODY, number);
    assert_int_equal(ibx_session_write(pair->client, body, BODY), BODY);
    assert_int_equal(ibx_session_sync(pair->client), 0);
    if (then)
        then();
    if (ibx_session_read(pair->client, &answer, 1) != 1)
        fail_msg("body %u: \"%s\"", number, ibx_session_reason(pair->client));
    assert_int_equal(answer, 7);
}

static struct session_pair pair;

/* The client's part of a body is in flight. */
static void comes_back_by_shm(void)
{
    strcpy(pair.client->options.provider, "shm,tcp");
    register_none = true;
    ibx_abort(pair.client->conn);
    may_read = true;
}

static void goes_on(enum ibx_role role)
{
    uint8_t *body = malloc(BODY);
    session_keeps = SECONDS;
    fails_at = role;
    failures = 0;
    fails_most = UINT_MAX;
    register_none = may_read = false;
    session_pair_use("tcp,shm", NULL, NULL, NULL);
    session_pair_open(&pair);
    assert_string_equal(ibx_session_path(pair.client)->provider, "tcp");
    /* From now on the server's memory is registered. */
    session_pair_start(&pair, read_bodies, NULL);
    send_body(&pair, body, 0, NULL);
    send_body(&pair, body, 1, comes_back_by_shm);
    assert_string_equal(ibx_session_path(pair.client)->provider, "tcp");
    assert_in_range(failures, 1, 100);
    assert_int_equal(session_pair_join(&pair), 1);
    session_pair_close(&pair);
    free(body);
}

static void the_client_cannot(void **state)
{
    (void)state;
    goes_on(IBX_ROLE_CLIENT);
}

static void the_server_cannot(void **state)
{
    (void)state;
    goes_on(IBX_ROLE_SERVER);
}

static void comes_back(void)
{
    register_none = true;
    ibx_abort(pair.client->conn);
    may_read = true;
}

/* The server does not accept tcp either. It may be able to lock memory a little later. */
static void no_other_path(void **state)
{
    (void)state;
    uint8_t *body = malloc(BODY);
    session_keeps = SECONDS;
    fails_at = IBX_ROLE_CLIENT;
    failures = 0;
    fails_most = 2;
    register_none = may_read = false;
    session_pair_use("shm", NULL, NULL, NULL);
    session_pair_open(&pair);
    session_pair_start(&pair, read_bodies, NULL);
    send_body(&pair, body, 0, NULL);
    strcpy(pair.client->options.provider, "auto");
    send_body(&pair, body, 1, comes_back);
    assert_string_equal(ibx_session_path(pair.client)->provider, "shm");
    assert_int_equal(failures, fails_most);
    assert_int_equal(session_pair_join(&pair), 1);
    session_pair_close(&pair);
    free(body);
}

/* The program may no longer write to its memory, which another attempt does not change. */
static void registration_never_succeeds(void **state)
{
    (void)state;
    uint8_t *body = malloc(BODY), answer;
    session_keeps = SHORT_SECONDS;
    reads_on = true;
    fails_at = IBX_ROLE_CLIENT;
    failure = -EACCES;
    failures = 0;
    fails_most = UINT_MAX;
    register_none = may_read = false;
    session_pair_use("shm", NULL, NULL, NULL);
    session_pair_open(&pair);
    session_pair_start(&pair, read_bodies, NULL);
    send_body(&pair, body, 0, NULL);
    pattern_fill(body, BODY, 1);
    assert_int_equal(ibx_session_write(pair.client, body, BODY), BODY);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    comes_back();
    assert_int_not_equal(ibx_session_read(pair.client, &answer, 1), 1);
    assert_non_null(strstr(ibx_session_reason(pair.client), strerror(EACCES)));
    session_pair_join(&pair); /* when its time is over */
    session_pair_close(&pair);
    free(body);
    failure = -ENOMEM;
    reads_on = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_client_cannot),
        cmocka_unit_test(the_server_cannot),
        cmocka_unit_test(no_other_path),
        cmocka_unit_test(registration_never_succeeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
