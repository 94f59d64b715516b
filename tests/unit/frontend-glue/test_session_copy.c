/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies that a client requests by itself: the bytes of docs/protocol.md, and malformed answers.
 * Also: what a session keeps registered, and what a client reads once its back end has gone.
 * Runs on the fabric inside the process. */
#include "tests/fixtures/session_memory.h"

#include "frontend-glue/client_copies/client_copies.h"

#include <signal.h>
#include <sys/wait.h>

#define DEVICE  0x0102030405060708ull
#define UNKNOWN 999

static uint8_t memory[BODY];

static struct ibx_frontend_copy copy_of(bool to_device, bool async, size_t n)
{
    return (struct ibx_frontend_copy){.to_device = to_device,
                                      .async = async,
                                      .device = DEVICE,
                                      .host = memory,
                                      .n = n,
                                      .stream = async ? 0x77 : 0};
}

/* Opens a connection over the fabric inside the process. `as_shm`: long copies go through memory
 * of the session's own, as over shm; otherwise the tests check their bytes. */
static struct ibx_conn *open_server(struct session_pair *pair, bool as_shm)
{
    struct ibx_conn *server = session_pair_open_bare_server(pair);
    if (!as_shm)
        strcpy(pair->client->path.provider, "memory");
    return server;
}

/* Sends a reply: exit code, seconds, length, and then these bytes of segments. */
static void send_reply(struct ibx_conn *server, uint32_t bodies, int code, uint64_t out,
                       const void *more, size_t n)
{
    uint8_t bytes[128];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, 1);
    ibx_put_u32(&w, bodies);
    ibx_put_u8(&w, 1);
    ibx_put_u32(&w, 20);
    ibx_put_u32(&w, (uint32_t)code);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, out);
    ibx_put_bytes(&w, more, n);
    send_message(server, bytes, w.length);
}

/* Writes the end of such a reply: the count inline, and the place of the payload. Returns its
 * length. */
static size_t payload_at(uint8_t *bytes, uint64_t count, uint8_t kind, uint64_t length)
{
    struct ibx_writer w = ibx_writer_of(bytes, 64);
    ibx_put_u8(&w, 1);
    ibx_put_u32(&w, 8);
    ibx_put_u64(&w, count);
    ibx_put_u8(&w, kind);
    ibx_put_u64(&w, length);
    return w.length;
}

/* ------------------------------------------------------------------- golden bytes */

static void assert_names_memory(const uint8_t *bytes)
{
    struct ibx_reader r = ibx_reader_of(bytes, IBX_REMOTE_BYTES);
    struct ibx_remote remote;
    ibx_remote_get(&r, &remote);
    assert_true(remote.address == (uintptr_t)memory && remote.length == BODY);
}

static void to_device_golden_bytes(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t heard[256], frame[128];
    int code = -1;
    struct ibx_conn *server = open_server(&pair, false);
    for (unsigned async = 0; async < 2; async++) {
        struct ibx_frontend_copy copy = copy_of(true, async, BODY);
        send_reply(server, async + 1, 17, 0, NULL, 0);
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        assert_int_equal(code, 17);
        size_t n = receive_message(server, heard, sizeof(heard)), tail = async ? 20 : 12;
        struct ibx_writer w = ibx_writer_of(frame, sizeof(frame));
        const char *name = async ? "cudaMemcpyAsync" : "cudaMemcpy";
        ibx_put_u8(&w, 1);
        ibx_put_u8(&w, 1);
        ibx_put_u32(&w, (uint32_t)strlen(name) + 1 + 24);
        ibx_put_bytes(&w, name, strlen(name) + 1);
        ibx_put_u64(&w, 16 + BODY + tail);
        ibx_put_u64(&w, DEVICE);
        ibx_put_u64(&w, BODY);
        ibx_put_u8(&w, 2);
        assert_int_equal(n, w.length + 48 + 5 + tail);
        assert_memory_equal(heard, frame, w.length);
        assert_names_memory(heard + w.length);
        static const uint8_t rest[] = {0, 0, 1,    0, 0, 0, 0, 0, 1, 0,
                                       0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0};
        assert_int_equal(heard[n - tail - 5], 1);
        assert_memory_equal(heard + n - tail, rest, tail);
    }
    session_pair_close(&pair);
}

static void from_device_golden_bytes(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t heard[256], frame[128], end[64];
    int code = -1;
    struct ibx_conn *server = open_server(&pair, false);
    for (unsigned i = 0; i < 2; i++) {
        struct ibx_frontend_copy copy = copy_of(false, false, BODY);
        send_reply(server, 0, 0, BODY + 8, end, payload_at(end, BODY, 7, BODY));
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        assert_int_equal(code, 0);
        struct ibx_writer w = ibx_writer_of(frame, sizeof(frame));
        ibx_put_u8(&w, 1);
        ibx_put_u32(&w, 11 + 8 + 29);
        ibx_put_bytes(&w, "cudaMemcpy", 11);
        ibx_put_u64(&w, 29);
        ibx_put_u64(&w, 1);
        ibx_put_u8(&w, 0);
        ibx_put_u64(&w, DEVICE);
        ibx_put_u64(&w, BODY);
        ibx_put_u32(&w, 2);
        assert_int_equal(receive_message(server, heard, sizeof(heard)), 2 + 48 + w.length);
        assert_memory_equal(heard, "\1\6", 2);
        assert_memory_equal(heard + 50, frame, w.length);
        assert_names_memory(heard + 2);
    }
    session_pair_close(&pair);
}

/* A frame of rows with gaps describes and contains only the rows; a reply writes nothing else. */
static void rows_golden_bytes(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t heard[256], frame[160], end[64];
    int code = -1;
    struct ibx_conn *server = open_server(&pair, false);
    for (unsigned to_device = 0; to_device < 2; to_device++) {
        struct ibx_frontend_copy copy = copy_of(to_device, false, 3);
        copy.rows = 4;
        copy.host_pitch = 5;
        copy.device_pitch = 512;
        memcpy(memory, "abc..def..ghi..jkl..", 20);
        struct ibx_writer reply = ibx_writer_of(end, sizeof(end));
        ibx_put_u8(&reply, 1);
        ibx_put_u32(&reply, 20);
        ibx_put_u64(&reply, 12);
        ibx_put_bytes(&reply, "ABCDEFGHIJKL", 12);
        send_reply(server, 0, 0, to_device ? 0 : 20, end, to_device ? 0 : reply.length);
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        assert_int_equal(code, 0);
        assert_memory_equal(memory, to_device ? "abc..def..ghi..jkl.." : "ABC..DEF..GHI..JKL..",
                            20);
        struct ibx_writer w = ibx_writer_of(frame, sizeof(frame));
        ibx_put_u8(&w, 1);
        ibx_put_u8(&w, 1);
        ibx_put_u32(&w, 13 + 8 + (to_device ? 28 : 17) + 36);
        ibx_put_bytes(&w, "cudaMemcpy2D", 13);
        ibx_put_u64(&w, (to_device ? 28 : 17) + 36);
        ibx_put_u64(&w, to_device ? DEVICE : 1);
        if (to_device) {
            ibx_put_u64(&w, 12);
            ibx_put_bytes(&w, "abcdefghijkl", 12);
        } else {
            ibx_put_u8(&w, 0);
            ibx_put_u64(&w, DEVICE);
        }
        ibx_put_u64(&w, to_device ? 512 : 3);
        ibx_put_u64(&w, to_device ? 3 : 512);
        ibx_put_u64(&w, 3);
        ibx_put_u64(&w, 4);
        ibx_put_u32(&w, to_device ? 1 : 2);
        assert_int_equal(receive_message(server, heard, sizeof(heard)), w.length);
        assert_memory_equal(heard, frame, w.length);
    }
    session_pair_close(&pair);
}

/* --------------------------------------------------------------------- odd answers */

/* Answers that GVirtuS's handlers give or might give. The session continues. */
static void answers_of_handlers(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t end[64], heard[256];
    int code;
    struct ibx_conn *server = open_server(&pair, false);
    struct ibx_frontend_copy from = copy_of(false, true, 5), to = copy_of(true, false, 5);
    memset(memory, 'm', 16);
    /* Memory although the call has failed; the count of something else; nothing at all. */
    struct {
        int code, expected;
        uint64_t out, count;
        const char *payload;
        bool to_device;
    } answers[] = {
        {700, 700, 13, 5, "junk!", false},  {0, UNKNOWN, 13, 6, "junk!", false},
        {0, UNKNOWN, 12, 5, "junk", false}, {0, UNKNOWN, 14, 5, "junk!!", false},
        {0, UNKNOWN, 0, 0, NULL, false},    {3, 3, 0, 0, NULL, false},
        {0, 0, 13, 5, "junk!", true},       {0, 0, 13, 5, "bytes", false},
    };
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct ibx_writer w = ibx_writer_of(end, sizeof(end));
        if (answers[i].out) {
            ibx_put_u8(&w, 1);
            ibx_put_u32(&w, (uint32_t)answers[i].out);
            ibx_put_u64(&w, answers[i].count);
            ibx_put_bytes(&w, answers[i].payload, (size_t)answers[i].out - 8);
        }
        send_reply(server, 0, answers[i].code, answers[i].out, end, w.length);
        code = -1;
        assert_int_equal(ibx_client_copy(pair.client, answers[i].to_device ? &to : &from, &code),
                         0);
        assert_int_equal(code, answers[i].expected);
        assert_true(receive_message(server, heard, sizeof(heard)) > 0);
        bool good = !code && !answers[i].to_device;
        assert_memory_equal(memory, good ? "bytesm" : "mmmmmm", 6);
    }
    session_pair_close(&pair);
}

static void nonsense_instead_of_an_answer(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 12; way++) {
        struct session_pair pair;
        uint8_t end[64];
        int code = -1;
        unsigned i = way % 6;
        struct ibx_conn *server = open_server(&pair, way > 5);
        struct ibx_frontend_copy copy = copy_of(i == 2, false, i == 1 ? 100 : BODY);
        size_t n = payload_at(end, copy.n, 7, i == 0 ? BODY - 1 : copy.n);
        uint64_t out = copy.n + 8;
        if (i == 3) { /* to more memory than it announced, and elsewhere */
            n = payload_at(end, copy.n + 1, 7, copy.n);
            out++;
        }
        if (i == 4)
            n = payload_at(end, copy.n, 6, copy.n);
        send_reply(server, i == 2, i == 5 ? 700 : 0, out, end, n);
        if (i == 3)
            send_message(server, "\1\0\0\0\0\1\1\0\0\0x", 11);
        memset(memory, 'm', sizeof(memory));
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), 0);
        if (code != UNKNOWN || !*ibx_session_reason(pair.client))
            fail_msg("answer %u: %d \"%s\"", i, code, ibx_session_reason(pair.client));
        expect_reason(pair.client);
        /* From now on GVirtuS is asked, and answers likewise. */
        assert_int_equal(ibx_client_copy(pair.client, &copy, &code), -ENOTCONN);
        session_pair_close(&pair);
    }
}

/* GVirtuS is in the middle of a request. */
static void not_between_requests(void **state)
{
    (void)state;
    struct session_pair pair;
    int code = -1;
    open_server(&pair, false);
    struct ibx_frontend_copy copy = copy_of(true, false, 10);
    assert_int_equal(ibx_session_write(pair.client, "cuda", 4), 4);
    assert_int_equal(ibx_client_copy(pair.client, &copy, &code), -ENOTCONN);
    assert_int_equal(code, -1);
    session_pair_close(&pair);
}

/* An early CTS may be sent once per request. */
static void early_cts_twice(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t aim[50] = {1, 6, 0, 16}, byte;
    aim[10] = 1; /* the length */
    struct ibx_conn *client = session_pair_open_bare_client(&pair);
    send_message(client, aim, sizeof(aim));
    send_message(client, "\1\1\1\0\0\0q", 7);
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);
    assert_int_equal(ibx_session_write(pair.server, "a", 1), 1);
    assert_int_equal(ibx_session_sync(pair.server), 0);
    send_message(client, aim, sizeof(aim)); /* of the next request */
    send_message(client, "\1\1\1\0\0\0q", 7);
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);
    send_message(client, aim, sizeof(aim));
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), -EPROTO);
    expect_reason(pair.server);
    session_pair_close(&pair);
}

/* registrations that are undone */

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

/* Memory of either side is registered, and the client's is exposed to the server, only while a
 * payload of it is in flight. */
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

/* -------------------------------------------------------------------- a back end that has ended */

/* The back end ends after the first of two calls' answer, or in the middle of it. */
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

static void call(struct session_pair *pair, size_t *answer)
{
    session_pair_open(pair);
    session_pair_start(pair, serve_part_of_an_answer, answer);
    assert_int_equal(ibx_session_write(pair->client, "call", 4), 4);
    assert_int_equal(ibx_session_sync(pair->client), 0);
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

/* Lines of `log` with these words. */
static unsigned lines_with(FILE *log, const char *words)
{
    char line[512];
    unsigned count = 0;
    rewind(log);
    while (fgets(line, sizeof(line), log))
        count += strstr(line, words) != NULL;
    return count;
}

/* If the back end is dead, every call returns cudaErrorUnknown, no time and no output; the log says
 * it once. */
static void dead_back_end_answers(void **state)
{
    (void)state;
    struct session_pair pair;
    char answer[8];
    size_t n = sizeof(answer);
    call(&pair, &n);
    assert_false(ibx_session_in_frame(pair.client));
    assert_int_equal(ibx_session_read(pair.client, answer, n), n);
    assert_true(ibx_session_in_frame(pair.client));
    assert_int_equal(session_pair_join(&pair), 0);
    FILE *log = tmpfile();
    const int before = dup(STDERR_FILENO);
    assert_true(log && before >= 0 && dup2(fileno(log), STDERR_FILENO) == STDERR_FILENO);
    for (unsigned call = 0; call < 2; call++) {
        ibx_session_write(pair.client, "call", 4);
        ibx_session_sync(pair.client);
        assert_false(ibx_session_in_frame(pair.client));
        expect_answer(pair.client, 4, 999);
        expect_answer(pair.client, 8, 0);
        expect_answer(pair.client, 16, 0);
    }
    dup2(before, STDERR_FILENO);
    close(before);
    assert_int_equal(lines_with(log, "the back end is gone"), 1);
    fclose(log);
    session_pair_close(&pair);
}

/* With half of an answer the application must not continue. */
static void half_an_answer_ends_the_application(void **state)
{
    (void)state;
    struct session_pair pair;
    char answer[8];
    size_t n = sizeof(answer);
    call(&pair, &n);
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
        TEST(to_device_golden_bytes),
        TEST(from_device_golden_bytes),
        TEST(rows_golden_bytes),
        TEST(answers_of_handlers),
        TEST(nonsense_instead_of_an_answer),
        TEST(not_between_requests),
        TEST(early_cts_twice),
        TEST(nothing_stays_registered),
        TEST(dead_back_end_answers),
        TEST(half_an_answer_ends_the_application),
    };
    return cmocka_run_group_tests_name("session_copy", tests, session_memory_group, NULL);
}
