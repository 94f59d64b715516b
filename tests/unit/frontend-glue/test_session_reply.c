/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a session keeps registered for payloads, and what a client reads once its back end is gone.
 * Runs on the fabric inside the process.
 */
#include "tests/scenes/session_memory.h"

#include <signal.h>
#include <sys/wait.h>

/* ------------------------------------------------------------ exposures taken back */

struct exchange {
    size_t request, reply;
};

static int serve_exchange(struct session_pair *pair, void *argument)
{
    const struct exchange *x = argument;
    uint8_t *bytes = calloc(1, x->request + x->reply);
    int rc = ibx_session_read(pair->server, bytes, x->request) == (ssize_t)x->request ? 0 : -1;
    if (!rc && ibx_session_write(pair->server, bytes, x->reply) != (ssize_t)x->reply)
        rc = -2;
    if (!rc)
        rc = ibx_session_sync(pair->server);
    free(bytes);
    return rc;
}

/* Memory of either side is registered, and the client's within reach of the server, only while a
 * payload of it is under way. */
static void nothing_stays_registered(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    const size_t most = pair.rendezvous * 2;
    const struct exchange exchanges[] = {{most, 8}, {8, most}, {most, most}};
    uint8_t *bytes = calloc(1, most);
    for (unsigned i = 0; i < sizeof(exchanges) / sizeof(exchanges[0]); i++) {
        struct exchange x = exchanges[i];
        session_pair_start(&pair, serve_exchange, &x);
        assert_int_equal(ibx_session_write(pair.client, bytes, x.request), x.request);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(ibx_session_read(pair.client, bytes, x.reply), x.reply);
        assert_int_equal(session_pair_join(&pair), 0);
        assert_int_equal(memory_live_regions(), 0);
    }
    free(bytes);
    session_pair_close(&pair);
}

/* -------------------------------------------------------- a back end that is gone */

/* Two calls whose back end goes after the first one's answer, or in the middle of it. */
static int serve_part_of_an_answer(struct session_pair *pair, void *argument)
{
    char call[4];
    if (ibx_session_read(pair->server, call, sizeof(call)) != sizeof(call))
        return -1;
    ibx_session_write(pair->server, "answered", *(size_t *)argument);
    ibx_session_sync(pair->server);
    ibx_session_close(pair->server);
    return 0;
}

static void expect_answer(struct ibx_session *s, size_t n, int exit_code)
{
    uint8_t bytes[16], expected[16] = {0};
    memset(bytes, 'x', sizeof(bytes));
    memcpy(expected, &exit_code, sizeof(exit_code));
    assert_true(ibx_session_read(s, bytes, n) <= 0);
    ibx_session_answer(s, bytes, n);
    assert_memory_equal(bytes, expected, n);
}

/* A dead back end answers every call with cudaErrorUnknown, no time and no output. */
static void dead_back_end_answers(void **state)
{
    (void)state;
    struct session_pair pair;
    char answer[8];
    size_t n = sizeof(answer);
    session_pair_open(&pair);
    session_pair_start(&pair, serve_part_of_an_answer, &n);
    assert_int_equal(ibx_session_write(pair.client, "call", 4), 4);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_false(ibx_session_in_frame(pair.client));
    assert_int_equal(ibx_session_read(pair.client, answer, n), n);
    assert_true(ibx_session_in_frame(pair.client));
    assert_int_equal(session_pair_join(&pair), 0);
    for (unsigned call = 0; call < 2; call++) {
        ibx_session_write(pair.client, "call", 4);
        ibx_session_sync(pair.client);
        assert_false(ibx_session_in_frame(pair.client));
        expect_answer(pair.client, 4, 999);
        expect_answer(pair.client, 8, 0);
        expect_answer(pair.client, 16, 0);
    }
    session_pair_close(&pair);
}

/* Half of an answer is none: the application must not go on with it. */
static void half_an_answer_ends_the_application(void **state)
{
    (void)state;
    struct session_pair pair;
    char answer[8];
    size_t n = sizeof(answer);
    session_pair_open(&pair);
    session_pair_start(&pair, serve_part_of_an_answer, &n);
    assert_int_equal(ibx_session_write(pair.client, "call", 4), 4);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(ibx_session_read(pair.client, answer, 4), 4);
    assert_int_equal(session_pair_join(&pair), 0);
    assert_true(ibx_session_read(pair.client, answer, n) <= 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        ibx_session_answer(pair.client, answer, n);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    session_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_stays_registered),
        TEST(dead_back_end_answers),
        TEST(half_an_answer_ends_the_application),
    };
    return cmocka_run_group_tests(tests, session_memory_group, NULL);
}
