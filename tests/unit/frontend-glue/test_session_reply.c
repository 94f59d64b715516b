/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Replies of a session: those that go to the pre-posted buffer, the bytes of
 * docs/protocol.md for it and every way to get them wrong; and what a client reads once its back
 * end is gone. Runs on the fabric inside the process.
 */
#include "tests/scenes/session_memory.h"

#include <signal.h>
#include <sys/wait.h>

/* ------------------------------------------------------------- replies just long enough */

struct reply {
    size_t bytes;
    unsigned calls;
};

static int serve_replies(struct session_pair *pair, void *argument)
{
    const struct reply *reply = argument;
    uint8_t *bytes = malloc(reply->bytes);
    int rc = 0;
    for (unsigned call = 0; call < reply->calls && !rc; call++) {
        uint32_t seed;
        if (ibx_session_read(pair->server, &seed, sizeof(seed)) != sizeof(seed))
            rc = -1;
        pattern_fill(bytes, reply->bytes, seed);
        if (!rc && ibx_session_write(pair->server, bytes, reply->bytes) != (ssize_t)reply->bytes)
            rc = -2;
        if (!rc)
            rc = ibx_session_sync(pair->server);
    }
    free(bytes);
    return rc;
}

static void ask(struct ibx_session *s, uint32_t seed)
{
    assert_int_equal(ibx_session_write(s, &seed, sizeof(seed)), sizeof(seed));
    assert_int_equal(ibx_session_sync(s), 0);
}

/* In pieces of every length. */
static void expect_reply(struct ibx_session *s, size_t n, uint32_t seed)
{
    uint8_t *got = calloc(1, n);
    size_t piece = 1;
    for (size_t at = 0; at < n; at += piece) {
        piece = n - at < 3 * piece ? n - at : 3 * piece;
        assert_int_equal(ibx_session_read(s, got + at, piece), piece);
    }
    assert_int_equal(pattern_check(got, n, seed), n);
    free(got);
}

/* From the second one on they go to the posted buffer; longer ones never do. */
static void replies_in_posted(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    size_t most = pair.rendezvous + pair.rendezvous / 2;
    const struct reply replies[] = {{most + 1, 2},        {pair.rendezvous, 1}, {most, 3},
                                    {pair.rendezvous, 3}, {most + 1, 2},        {100, 2}};
    bool posts = false; /* the request with which it may begin */
    for (unsigned i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        struct reply reply = replies[i];
        session_pair_start(&pair, serve_replies, &reply);
        for (unsigned call = 0; call < reply.calls; call++) {
            ask(pair.client, i * 10 + call);
            assert_int_equal(pair.client->posted.state.now == POSTED_POSTED, posts);
            expect_reply(pair.client, reply.bytes, i * 10 + call);
            posts = posts || reply.bytes <= most;
            bool used = i >= 2 && reply.bytes >= pair.rendezvous && reply.bytes <= most;
            assert_int_equal(pair.client->posted.state.now == POSTED_POSTED, i >= 2 && !used);
        }
        assert_int_equal(session_pair_join(&pair), 0);
    }
    session_pair_close(&pair);
}

/* With requests ahead of the replies only one of these lands at a time. */
static void replies_in_posted_one_by_one(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    struct reply reply = {pair.rendezvous, 31};
    session_pair_start(&pair, serve_replies, &reply);
    ask(pair.client, 0);
    expect_reply(pair.client, reply.bytes, 0);
    for (uint32_t call = 1; call < 31; call += 3) {
        for (uint32_t ahead = 0; ahead < 3; ahead++)
            ask(pair.client, call + ahead);
        for (uint32_t ahead = 0; ahead < 3; ahead++)
            expect_reply(pair.client, reply.bytes, call + ahead);
    }
    assert_int_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
}

/* Then every one waits for its cts. */
static void without_posted_memory(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    struct reply reply = {pair.rendezvous, 3};
    memory_control.fail_allocate = -ENOMEM;
    session_pair_start(&pair, serve_replies, &reply);
    for (uint32_t call = 0; call < 3; call++) {
        ask(pair.client, call);
        assert_false(pair.client->posted.state.now == POSTED_POSTED);
        expect_reply(pair.client, reply.bytes, call);
    }
    assert_int_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
}

/* ------------------------------------------------------------------- golden bytes */

/* A reply of a length that lands, asked for by hand. */
static int write_16_and_sync(struct session_pair *pair, void *argument)
{
    ssize_t n = ibx_session_write(pair->server, argument, BODY + 16);
    return n < 0 ? (int)n : ibx_session_sync(pair->server);
}

static void posted_golden_bytes_of_a_server(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t heard[100], request[64] = {1, 4}, byte;
    struct ibx_conn *client = session_pair_open_bare_client(&pair);
    struct ibx_mr *mr;
    struct ibx_remote remote;
    assert_int_equal(ibx_mr_allocate(client, 2 * BODY, IBX_ACCESS_REMOTE_WRITE, &mr, NULL), 0);
    assert_int_equal(ibx_mr_remote(mr, 100, BODY + 16, &remote), 0);
    struct ibx_writer w = ibx_writer_of(request + 2, 48);
    ibx_remote_put(&w, &remote);
    memcpy(request + 50, "\1\1\0\0\0q", 6);
    send_message(client, request, 56);
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);

    static uint8_t body[BODY + 16];
    pattern_fill(body, sizeof(body), 7);
    memset(ibx_mr_address(mr), 'x', 2 * BODY);
    session_pair_start(&pair, write_16_and_sync, body);
    static const uint8_t data[] = {1, 0, 0, 0, 0, 5, 16, 0, 1, 0, 0, 0, 0, 0};
    assert_int_equal(receive_message(client, heard, sizeof(heard)), sizeof(data));
    assert_memory_equal(heard, data, sizeof(data));
    assert_int_equal(receive_message(client, heard, sizeof(heard)), 1);
    assert_int_equal(heard[0], 6);
    assert_int_equal(session_pair_join(&pair), 0);
    const uint8_t *landed = ibx_mr_address(mr);
    assert_int_equal(pattern_check(landed + 100, sizeof(body), 7), sizeof(body));
    assert_true(landed[99] == 'x' && landed[100 + sizeof(body)] == 'x'); /* no further */

    /* Posted once: the next one waits for a CTS. */
    session_pair_start(&pair, write_16_and_sync, body);
    assert_int_equal(receive_message(client, heard, sizeof(heard)), 19);
    assert_int_equal(heard[10], 3);
    session_pair_leave(&pair);
    assert_true(session_pair_join(&pair) < 0);
    session_pair_close(&pair);
}

/* A client that has read a reply that the buffer would have served, and has sent a request that
 * posts a buffer for the next; the remote goes to `posted`. */
static struct ibx_conn *open_posting_client(struct session_pair *pair, struct ibx_remote *posted)
{
    struct ibx_conn *server = session_pair_open_bare_server(pair);
    uint8_t heard[100], bytes[100];
    send_message(server, "\1\0\0\0\0\1\0\0\0\0\3\100\0\0\0\0\0\0\0", 19);
    send_message(server, "\3", 1);
    assert_int_equal(ibx_session_read(pair->client, bytes, 64), 64);
    assert_int_equal(receive_message(server, heard, sizeof(heard)), 49); /* the cts */
    assert_int_equal(ibx_session_write(pair->client, "q", 1), 1);
    assert_int_equal(ibx_session_sync(pair->client), 0);
    assert_int_equal(receive_message(server, heard, sizeof(heard)), 1 + 49 + 6);
    assert_memory_equal(heard, "\1\4", 2);
    assert_memory_equal(heard + 50, "\1\1\0\0\0q", 6);
    struct ibx_reader r = ibx_reader_of(heard + 2, 48);
    ibx_remote_get(&r, posted);
    return server;
}

static void posted_golden_bytes_of_a_client(void **state)
{
    (void)state;
    struct session_pair pair;
    struct ibx_remote posted;
    uint8_t heard[100], got[64];
    struct ibx_conn *server = open_posting_client(&pair, &posted);
    assert_int_equal(posted.length, pair.client->caps->rendezvous * 3 / 2);

    /* It stays posted: the next request does not say it again. */
    assert_int_equal(ibx_session_write(pair.client, "q", 1), 1);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(receive_message(server, heard, sizeof(heard)), 7);

    /* Two replies; what came before counts no more, and the second request lends it once more. */
    for (unsigned reply = 0; reply < 2; reply++) {
        memset((void *)(uintptr_t)posted.address, 'a' + (int)reply, 64);
        send_message(server, "\1\0\0\0\0\5\100\0\0\0\0\0\0\0", 14);
        send_message(server, "\6", 1);
        assert_int_equal(ibx_session_read(pair.client, got, 64), 64);
        assert_true(got[0] == 'a' + reply && got[63] == 'a' + reply);
        assert_int_equal(ibx_session_write(pair.client, "q", 1), 1);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(receive_message(server, heard, sizeof(heard)), 56);
        assert_memory_equal(heard, "\1\4", 2);
    }
    session_pair_close(&pair);
}

/* ----------------------------------------------------------------------- nonsense */

/* Posted twice before it is used. */
static void posted_twice(void **state)
{
    (void)state;
    static const struct message lend =
        BYTES(1, 4, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0);
    struct session_pair pair;
    struct ibx_conn *client = session_pair_open_bare_client(&pair);
    send_message(client, lend.bytes, lend.length);
    send_message(client, lend.bytes, lend.length);
    uint8_t byte;
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), -EPROTO);
    expect_reason(pair.server);
    expect_closed(client);
    session_pair_close(&pair);
}

/* Memory that the client does not have, or has not opened for writing. */
static void posted_memory_that_is_not_there(void **state)
{
    (void)state;
    static uint8_t body[BODY + 16];
    for (unsigned i = 0; i < 3; i++) {
        struct session_pair pair;
        struct ibx_mr *mr;
        struct ibx_conn *client = session_pair_open_bare_client(&pair);
        struct ibx_remote remote = {0x1000, BODY + 16, {1}};
        uint8_t request[64] = {1, 4}, byte;
        assert_int_equal(ibx_mr_allocate(client, BODY + 16, IBX_ACCESS_REMOTE_READ, &mr, NULL), 0);
        if (i == 1)
            assert_int_equal(ibx_mr_remote(mr, 0, BODY + 16, &remote), 0);
        if (i == 2)
            remote.length = UINT64_MAX;
        struct ibx_writer w = ibx_writer_of(request + 2, 48);
        ibx_remote_put(&w, &remote);
        memcpy(request + 50, "\1\1\0\0\0q", 6);
        send_message(client, request, 56);
        assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);
        assert_true(write_16_and_sync(&pair, body) < 0);
        expect_reason(pair.server);
        expect_closed(client);
        session_pair_close(&pair);
    }
}

/* What a server may not say of memory that was posted to it. */
static void nonsense_about_posted(void **state)
{
    (void)state;
    static const struct message replies[] = {
        BYTES(1, 0, 0, 0, 0, 5, REMOTE_0),
        BYTES(1, 0, 0, 0, 0, 5, 0, 0),
        BYTES(1, 0, 0, 0, 0, 5, 255, 255, 255, 255, 255, 255, 255, 255),
        BYTES(1, 0, 0, 0, 0, 5, 1, 0, 0, 0, 1, 0, 0, 0),                /* more than was posted */
        BYTES(1, 0, 0, 0, 0, 5, REMOTE_1, 5, REMOTE_1),                 /* two of them */
        BYTES(1, 0, 0, 0, 0, 5, REMOTE_1, 1, 1, 0, 0, 0, 'x', 5, 1, 0), /* and cut off */
    };
    for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
        struct session_pair pair;
        struct ibx_remote posted;
        uint8_t got[3];
        struct ibx_conn *server = open_posting_client(&pair, &posted);
        send_message(server, "\6", 1);
        send_message(server, replies[i].bytes, replies[i].length);
        ssize_t rc = ibx_session_read(pair.client, got, sizeof(got));
        if (rc != -EPROTO)
            fail_msg("reply %zu: %zd \"%s\"", i, rc, ibx_session_reason(pair.client));
        expect_reason(pair.client);
        session_pair_close(&pair);
    }
    /* POSTED_DONE twice */
    struct session_pair pair;
    struct ibx_remote posted;
    uint8_t byte;
    struct ibx_conn *server = open_posting_client(&pair, &posted);
    send_message(server, "\6", 1);
    send_message(server, "\6", 1);
    assert_int_equal(ibx_session_read(pair.client, &byte, 1), -EPROTO);
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
        TEST(replies_in_posted),
        TEST(replies_in_posted_one_by_one),
        TEST(without_posted_memory),
        TEST(posted_golden_bytes_of_a_server),
        TEST(posted_golden_bytes_of_a_client),
        TEST(posted_twice),
        TEST(posted_memory_that_is_not_there),
        TEST(nonsense_about_posted),
        TEST(dead_back_end_answers),
        TEST(half_an_answer_ends_the_application),
    };
    return cmocka_run_group_tests(tests, session_memory_group, NULL);
}
