/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sessions whose peer sends handmade messages: the bytes of docs/protocol.md, and malformed
 * ones. Runs on the fabric inside the process, which can refuse memory on command. */
#include "tests/fixtures/session_memory.h"

/* Sends `head` (a type, or a type and a kind of segment) and a remote. */
static void send_remote(struct ibx_conn *conn, const char *head, const struct ibx_remote *remote)
{
    uint8_t bytes[2 + IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_bytes(&w, head, strlen(head));
    ibx_remote_put(&w, remote);
    send_message(conn, bytes, w.length);
}

/* Registers n bytes of `conn` and describes them in `remote`. */
static struct ibx_mr *memory_of(struct ibx_conn *conn, size_t n, unsigned access,
                                struct ibx_remote *remote)
{
    struct ibx_mr *mr;
    assert_int_equal(ibx_mr_allocate(conn, n, access, &mr, NULL), 0);
    assert_int_equal(ibx_mr_remote(mr, 0, n, remote), 0);
    return mr;
}

/* ------------------------------------------------------------------- golden bytes */

static void client_data_golden_bytes(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t heard[1 << 15];
    struct ibx_conn *server = session_pair_open_bare_server(&pair);
    assert_int_equal(ibx_session_write(pair.client, "abc", 3), 3);
    assert_int_equal(ibx_session_write(pair.client, "de", 2), 2);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    static const uint8_t inline_data[] = {1, 1, 5, 0, 0, 0, 'a', 'b', 'c', 'd', 'e'};
    assert_int_equal(receive_message(server, heard, sizeof(heard)), sizeof(inline_data));
    assert_memory_equal(heard, inline_data, sizeof(inline_data));

    static uint8_t body[BODY];
    assert_int_equal(ibx_session_write(pair.client, "x", 1), 1);
    assert_int_equal(ibx_session_write(pair.client, body, BODY), BODY);
    assert_int_equal(ibx_session_write(pair.client, "y", 1), 1);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(receive_message(server, heard, sizeof(heard)), 1 + 6 + 1 + 48 + 6);
    static const uint8_t before[] = {1, 1, 1, 0, 0, 0, 'x', 2}, after[] = {1, 1, 0, 0, 0, 'y'};
    assert_memory_equal(heard, before, sizeof(before));
    assert_memory_equal(heard + 56, after, sizeof(after));
    struct ibx_remote remote;
    struct ibx_reader r = ibx_reader_of(heard + 8, 48);
    ibx_remote_get(&r, &remote);
    assert_true(remote.address == (uintptr_t)body && remote.length == BODY);

    /* The client writes again without a reply: it sends FLUSH, and nothing more before FLUSHED. */
    send_message(server, "\5", 1); /* FLUSHED before FLUSH */
    assert_int_equal(ibx_session_write(pair.client, "z", 1), 1);
    assert_int_equal(receive_message(server, heard, sizeof(heard)), 1);
    assert_int_equal(heard[0], 4);
    session_pair_close(&pair);
}

static int write_body_and_sync(struct session_pair *pair, void *argument)
{
    ssize_t n = ibx_session_write(pair->server, argument, BODY);
    return n < 0 ? (int)n : ibx_session_sync(pair->server);
}

static void server_data_and_done_golden_bytes(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t heard[100];
    struct ibx_conn *client = session_pair_open_bare_client(&pair);

    /* A request with a body of 16 bytes, which the server READs. */
    struct ibx_remote remote;
    uint8_t got[16];
    struct ibx_mr *mr = memory_of(client, 16, IBX_ACCESS_REMOTE_READ, &remote);
    memcpy(ibx_mr_address(mr), "sixteen bytes!!!", 16);
    send_remote(client, "\1\2", &remote);
    assert_int_equal(ibx_session_read(pair.server, got, 16), 16);
    assert_memory_equal(got, "sixteen bytes!!!", 16);

    /* The reply has short bytes and a body, and counts the body that the server has READ. */
    static uint8_t body[BODY];
    pattern_fill(body, BODY, 9);
    assert_int_equal(ibx_session_write(pair.server, "ok", 2), 2);
    session_pair_start(&pair, write_body_and_sync, body);
    static const uint8_t data[] = {1,   1, 0, 0, 0, 1, 2, 0, 0, 0, 'o',
                                   'k', 3, 0, 0, 1, 0, 0, 0, 0, 0};
    assert_int_equal(receive_message(client, heard, sizeof(heard)), sizeof(data));
    assert_memory_equal(heard, data, sizeof(data));

    /* Two CTSs for half of it each, and their DONEs. */
    struct ibx_mr *to = memory_of(client, BODY, IBX_ACCESS_REMOTE_WRITE, &remote);
    for (unsigned half = 0; half < 2; half++) {
        assert_int_equal(ibx_mr_remote(to, half * BODY / 2, BODY / 2, &remote), 0);
        send_remote(client, "\2", &remote);
        assert_int_equal(receive_message(client, heard, sizeof(heard)), 1);
        assert_int_equal(heard[0], 3);
    }
    assert_int_equal(session_pair_join(&pair), 0);
    assert_int_equal(pattern_check(ibx_mr_address(to), BODY, 9), BODY);

    /* The side that reads answers FLUSH. */
    send_message(client, "\4", 1);
    send_message(client, "\1\1\1\0\0\0q", 7);
    assert_int_equal(ibx_session_read(pair.server, got, 1), 1);
    assert_int_equal(receive_message(client, heard, sizeof(heard)), 1);
    assert_int_equal(heard[0], 5);
    session_pair_close(&pair);
}

/* Tells of the reply after it, once; and a client that does not ask for that takes the reply. */
static void printed_golden_bytes(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t byte;
    struct ibx_conn *server = session_pair_open_bare_server(&pair);
    for (unsigned some = 0; some < 2; some++) {
        const uint8_t told[] = {1, 0, 0, 0, 0, 11, (uint8_t)some, 1, 1, 0, 0, 0, 'x'};
        send_message(server, told, sizeof(told));
        assert_int_equal(ibx_session_take_printed(pair.client), IBX_PRINTED_UNKNOWN);
        assert_int_equal(ibx_session_read(pair.client, &byte, 1), 1);
        assert_int_equal(byte, 'x');
        assert_int_equal(ibx_session_take_printed(pair.client),
                         some ? IBX_PRINTED_SOME : IBX_PRINTED_NOTHING);
        assert_int_equal(ibx_session_take_printed(pair.client), IBX_PRINTED_UNKNOWN);
    }
    session_pair_close(&pair);

    static const uint8_t reply[] = {1, 0, 0, 0, 0, 11, 1, 1, 1, 0, 0, 0, 'x'};
    uint8_t heard[100];
    struct ibx_conn *client = session_pair_open_bare_client(&pair);
    send_message(client, "\1\1\1\0\0\0q", 7);
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);
    assert_int_equal(ibx_session_reply_printed(pair.server, true), 0);
    assert_int_equal(ibx_session_write(pair.server, "x", 1), 1);
    assert_int_equal(ibx_session_sync(pair.server), 0);
    assert_int_equal(receive_message(client, heard, sizeof(heard)), sizeof(reply));
    assert_memory_equal(heard, reply, sizeof(reply));
    session_pair_close(&pair);
}

/* ------------------------------------------------- nonsense to a server that reads */

static const struct message to_server[] = {
    {0, {0}},                            /* an empty message */
    BYTES(0),                            /* unknown type */
    BYTES(6),                            /* unknown type */
    BYTES(255, 1, 2, 3),                 /* unknown type */
    BYTES(4, 0),                         /* FLUSH with more bytes */
    BYTES(1, 0),                         /* segment without a kind */
    BYTES(1, 10),                        /* unknown kind */
    BYTES(1, 9),                         /* PLACED: only servers send it */
    BYTES(1, 11, 1, 1, 1, 0, 0, 0, 'x'), /* PRINTED likewise */
    BYTES(1, 8, 0),                      /* SETTLE without a kind after it */
    BYTES(1, 6),                         /* truncated EARLY_CTS */
    BYTES(1, 6, REMOTE_1, REMOTE_0, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0), /* length 0 */
    BYTES(1, 7, REMOTE_1), /* EARLY_DONE: only servers send it */
    BYTES(1, 4),           /* unknown kind */
    BYTES(1, 4, REMOTE_1, REMOTE_0, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0), /* length 0 */
    BYTES(1, 5, REMOTE_1),                                                   /* unknown kind */
    BYTES(1, 1),                               /* inline without a length */
    BYTES(1, 1, 1, 0, 0),                      /* with half a length */
    BYTES(1, 1, 2, 0, 0, 0, 'x'),              /* longer than the message */
    BYTES(1, 1, 0xff, 0xff, 0xff, 0xff, 'x'),  /* much longer */
    BYTES(1, 3, REMOTE_1),                     /* RTS_WRITE: only servers send it */
    BYTES(1, 2),                               /* truncated RTS_READ */
    BYTES(1, 2, REMOTE_1, REMOTE_1, REMOTE_1), /* truncated RTS_READ */
    BYTES(1, 2, REMOTE_1, REMOTE_0, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0), /* length 0 */
};

static int read_100(struct session_pair *pair, void *argument)
{
    uint8_t bytes[100];
    (void)argument;
    return (int)ibx_session_read(pair->server, bytes, sizeof(bytes));
}

static void nonsense_to_a_reading_server(void **state)
{
    (void)state;
    struct session_pair witness;
    session_pair_open(&witness);
    for (size_t i = 0; i < sizeof(to_server) / sizeof(to_server[0]); i++) {
        struct session_pair pair;
        struct ibx_conn *client = session_pair_open_bare_client(&pair);
        send_message(client, "\1\1\2\0\0\0ok", 8); /* the start may be correct */
        send_message(client, to_server[i].bytes, to_server[i].length);
        int rc = read_100(&pair, NULL);
        if (rc != -EPROTO)
            fail_msg("message %zu: %d \"%s\"", i, rc, ibx_session_reason(pair.server));
        expect_reason(pair.server);
        expect_closed(client);
        session_pair_close(&pair);
    }
    uint8_t byte = 1;
    assert_int_equal(ibx_session_write(witness.client, &byte, 1), 1);
    assert_int_equal(ibx_session_sync(witness.client), 0);
    assert_int_equal(ibx_session_read(witness.server, &byte, 1), 1);
    session_pair_close(&witness);
}

/* Every DATA message with all kinds of segments, cut at every byte. */
static void data_cut_at_every_byte(void **state)
{
    (void)state;
    static const uint8_t data[] = {
        1, 1, 3, 0,   0, 0,        'a',      'b',      'c',      1,        1,
        0, 0, 0, 'd', 2, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0};
    for (size_t n = 1; n < sizeof(data); n++) {
        struct session_pair pair;
        struct ibx_conn *client = session_pair_open_bare_client(&pair);
        send_message(client, data, n);
        session_pair_leave(&pair);
        int rc = read_100(&pair, NULL);
        bool whole = n == 1 || n == 9 || n == 15;
        assert_int_equal(rc, whole ? 0 : -EPROTO);
        session_pair_close(&pair);
    }
}

/* Memory that the client does not have, or has not exposed for reading. */
static void rts_memory_that_is_not_there(void **state)
{
    (void)state;
    static const struct ibx_remote bad[] = {
        {1, 1, {1}, 0},
        {0x1000, UINT64_MAX, {1}, 0},
        {UINT64_MAX - 4, 100, {1}, 0},
        {UINT64_MAX, 1, {0}, 0},
    };
    for (size_t i = 0; i <= sizeof(bad) / sizeof(bad[0]); i++) {
        struct session_pair pair;
        struct ibx_conn *client = session_pair_open_bare_client(&pair);
        struct ibx_remote remote;
        memory_of(client, 200, IBX_ACCESS_REMOTE_WRITE, &remote);
        send_remote(client, "\1\2", i < 4 ? &bad[i] : &remote);
        assert_true(read_100(&pair, NULL) < 0);
        expect_reason(pair.server);
        expect_closed(client);
        session_pair_close(&pair);
    }
}

/* Unrequested answers wait as long as there is credit, and change nothing. */
static void unrequested_answers(void **state)
{
    (void)state;
    static const uint8_t control[] = {2, 3, 5};
    for (unsigned i = 0; i < 3; i++) {
        struct session_pair pair;
        struct ibx_conn *client = session_pair_open_bare_client(&pair);
        struct iovec iov = {(void *)(uintptr_t)&control[i], 1};
        unsigned sent = 0;
        send_message(client, "\1\1\2\0\0\0ok", 8);
        while (ibx_send(client, &iov, 1, 0, 0) == 0 && sent < 1000)
            sent++;
        assert_true(sent < 1000);
        uint8_t two[2];
        assert_int_equal(ibx_session_read(pair.server, two, 2), 2);
        session_pair_leave(&pair);
        assert_true(read_100(&pair, NULL) <= 0);
        session_pair_close(&pair);
    }
}

/* ---------------------------------------------- nonsense to a server that delivers */

static void malformed_cts(void **state)
{
    (void)state;
    static uint8_t body[BODY];
    static const struct message ctss[] = {
        /* not the server's memory */
        BYTES(2, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0),
        BYTES(2),
        BYTES(2, REMOTE_1, REMOTE_1, REMOTE_1),
        BYTES(2, REMOTE_1, REMOTE_0, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0),
        BYTES(2, REMOTE_1, 1, 0, 1, 0, 0, 0, 0, 0, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0),
        BYTES(2, REMOTE_1, 255, 255, 255, 255, 255, 255, 255, 255, REMOTE_1, REMOTE_0, REMOTE_0,
              REMOTE_0),
        BYTES(2, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0, 0),
        BYTES(3),
        BYTES(5),
    };
    for (size_t i = 0; i < sizeof(ctss) / sizeof(ctss[0]); i++) {
        struct session_pair pair;
        struct ibx_conn *client = session_pair_open_bare_client(&pair);
        send_message(client, ctss[i].bytes, ctss[i].length);
        int rc = write_body_and_sync(&pair, body);
        if (rc != (i ? -EPROTO : -EACCES))
            fail_msg("message %zu: %d \"%s\"", i, rc, ibx_session_reason(pair.server));
        expect_reason(pair.server);
        expect_closed(client);
        session_pair_close(&pair);
    }
}

/* Over shm the peer reports how a copy ended, by any errno, also one on which the caller would
 * act. */
static void a_copy_that_is_not_supported(void **state)
{
    (void)state;
    static uint8_t body[BODY], filler[1000];
    struct session_pair pair;
    struct ibx_conn *client = session_pair_open_bare_client(&pair);
    struct ibx_remote remote;
    memory_of(client, BODY, IBX_ACCESS_REMOTE_WRITE, &remote);
    send_remote(client, "\2", &remote);
    assert_int_equal(ibx_session_write(pair.server, body, BODY), BODY);
    while (pair.message - pair.server->out.length > sizeof(filler) + 5)
        assert_true(ibx_session_write(pair.server, filler, sizeof(filler)) > 0);
    size_t left = pair.message - pair.server->out.length - 5;
    assert_int_equal(ibx_session_write(pair.server, filler, left), left);
    memory_control.refuse = -EOPNOTSUPP;
    assert_int_equal(ibx_session_write(pair.server, body, BODY), -EOPNOTSUPP);
    expect_reason(pair.server);
    session_pair_close(&pair);
}

/* --------------------------------------------------------------- nonsense to a client */

static void nonsense_to_a_client(void **state)
{
    (void)state;
    static const struct message to_client[] = {
        {0, {0}},
        BYTES(0),
        BYTES(4), /* FLUSH: only clients send it */
        BYTES(1), /* DATA without its count */
        BYTES(1, 0, 0, 0),
        BYTES(1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 'x'), /* counts a body that was never sent */
        BYTES(1, 255, 255, 255, 255),
        BYTES(1, 0, 0, 0, 0, 0),
        BYTES(1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 'x'),
        BYTES(1, 0, 0, 0, 0, 3, REMOTE_0),
        BYTES(1, 0, 0, 0, 0, 3, 1, 0, 0),
        BYTES(1, 0, 0, 0, 0, 5, REMOTE_1),               /* unknown kind */
        BYTES(1, 0, 0, 0, 0, 7, REMOTE_1),               /* EARLY_DONE, but no CTS was sent */
        BYTES(1, 0, 0, 0, 0, 8),                         /* SETTLE: only clients send it */
        BYTES(1, 0, 0, 0, 0, 9, 10),                     /* PLACED, and then an unknown kind */
        BYTES(1, 0, 0, 0, 0, 11),                        /* truncated PRINTED */
        BYTES(1, 0, 0, 0, 0, 11, 2, 1, 1, 0, 0, 0, 'x'), /* neither something nor nothing */
        BYTES(1, 0, 0, 0, 0, 6, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0),
        BYTES(1, 0, 0, 0, 0, 4, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0),
        BYTES(6), /* unknown type */
        BYTES(6, 0),
        BYTES(1, 0, 0, 0, 0, 2, REMOTE_1, REMOTE_1, REMOTE_1, REMOTE_0, REMOTE_0, REMOTE_0),
    };
    for (size_t i = 0; i < sizeof(to_client) / sizeof(to_client[0]); i++) {
        struct session_pair pair;
        uint8_t byte;
        struct ibx_conn *server = session_pair_open_bare_server(&pair);
        send_message(server, to_client[i].bytes, to_client[i].length);
        ssize_t rc = ibx_session_read(pair.client, &byte, 1);
        if (rc != -EPROTO)
            fail_msg("message %zu: %zd \"%s\"", i, rc, ibx_session_reason(pair.client));
        expect_reason(pair.client);
        session_pair_close(&pair);
    }
}

/* A payload was announced and cleared to send, and is never written. Any message but DONE ends
 * the session. */
static void body_that_is_never_confirmed(void **state)
{
    (void)state;
    static const uint8_t instead[] = {2, 5};
    for (unsigned i = 0; i < 2; i++) {
        struct session_pair pair;
        uint8_t bytes[100];
        struct ibx_conn *server = session_pair_open_bare_server(&pair);
        send_message(server, "\1\0\0\0\0\3\100\0\0\0\0\0\0\0", 14);
        send_message(server, &instead[i], 1);
        assert_int_equal(ibx_session_read(pair.client, bytes, 64), -EPROTO);
        session_pair_close(&pair);
    }
}

static void flush_that_is_never_confirmed(void **state)
{
    (void)state;
    static uint8_t body[BODY];
    static const uint8_t instead[] = {2, 3};
    for (unsigned i = 0; i < 2; i++) {
        struct session_pair pair;
        struct ibx_conn *server = session_pair_open_bare_server(&pair);
        assert_int_equal(ibx_session_write(pair.client, body, BODY), BODY);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        send_message(server, &instead[i], 1);
        assert_int_equal(ibx_session_write(pair.client, "x", 1), -EPROTO);
        session_pair_close(&pair);
    }
}

/* ------------------------------------------------------ memory that is not registered */

static int echo_body(struct session_pair *pair, void *argument)
{
    size_t n = *(size_t *)argument;
    uint8_t *bytes = malloc(n);
    int rc = ibx_session_read(pair->server, bytes, n) == (ssize_t)n ? 0 : -1;
    if (!rc)
        rc = ibx_session_write(pair->server, bytes, n) == (ssize_t)n ? 0 : -2;
    if (!rc)
        rc = ibx_session_sync(pair->server);
    free(bytes);
    return rc;
}

/* If locked memory is limited, none of GVirtuS's memory can be registered. The data is then
 * copied in bounded pieces; 600000 bytes are more than the pipeline holds at once. */
static void without_registration_bytes_go_by_copy(void **state)
{
    (void)state;
    for (size_t n = 20000; n < 3000000; n = n * 5 + 1) {
        struct session_pair pair;
        memory_control_reset();
        session_pair_open(&pair);
        memory_control.fail_register = -ENOMEM;
        uint8_t *bytes = malloc(n), *back = calloc(1, n);
        pattern_fill(bytes, n, n);
        session_pair_start(&pair, echo_body, &n);
        assert_int_equal(ibx_session_write(pair.client, bytes, n), n);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(ibx_session_read(pair.client, back, n), n);
        assert_int_equal(pattern_check(back, n, n), n);
        assert_int_equal(session_pair_join(&pair), 0);
        session_pair_close(&pair);
        free(bytes);
        free(back);
    }
}

/* If there are no bounce buffers either, the side that lacks them reports that as the error. */
static void without_any_memory(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    memory_control.fail_allocate = -ENOMEM;
    size_t n = BODY;
    uint8_t *bytes = calloc(1, n);
    assert_int_equal(ibx_session_write(pair.client, bytes, n), n);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    memory_control.fail_register = -ENOMEM;
    session_pair_start(&pair, echo_body, &n);
    assert_int_equal(session_pair_join(&pair), -1);
    assert_non_null(strstr(ibx_session_reason(pair.server), "no bounce buffer"));
    assert_true(ibx_session_read(pair.client, bytes, n) <= 0);
    session_pair_close(&pair);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(client_data_golden_bytes),
        TEST(server_data_and_done_golden_bytes),
        TEST(printed_golden_bytes),
        TEST(nonsense_to_a_reading_server),
        TEST(data_cut_at_every_byte),
        TEST(rts_memory_that_is_not_there),
        TEST(unrequested_answers),
        TEST(malformed_cts),
        TEST(a_copy_that_is_not_supported),
        TEST(nonsense_to_a_client),
        TEST(body_that_is_never_confirmed),
        TEST(flush_that_is_never_confirmed),
        TEST(without_registration_bytes_go_by_copy),
        TEST(without_any_memory),
    };
    return cmocka_run_group_tests(tests, session_memory_group, NULL);
}
