/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A relay between two ends that encrypt. All sockets of the connection go through it. It records
 * the bytes, and changes one of them, or drops, repeats or delays one piece. No end ever accepts
 * wrong bytes, and the recorded bytes contain no payload. */
#include "tests/fixtures/must.h"
#include "tests/fixtures/relayed_connect.h"

#include "common/clock.h"
#include "transport/transport.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FLIPS  500u
#define LENGTH ((size_t)300000)
/* The first bytes, handshakes and small messages, which get at least a quarter of the flips. */
#define EARLY     4000u
#define RECORDED  ((size_t)4 << 20)
#define STALL_MS  400u /* without an event: if a length is changed, an end waits for more */
#define SOCKETS   8u   /* of a session, at most */
#define MAX_WORDS 256u
#define PIECES    40u /* of each kind that are dropped, repeated or delayed */

/* ------------------------------------------------------------------------- the relay */

struct pipe {
    int from, to;
    pthread_t thread;
};

/* What happens to the piece that contains the byte. LATE: it is sent after its socket's next
 * piece. */
enum harm { CHANGED, DROPPED, REPEATED, LATE };

static struct {
    enum harm harm;
    struct pipe pipes[2 * SOCKETS];
    unsigned count;
    pthread_mutex_t lock;
    size_t passed; /* bytes of all sockets and both directions, in order of arrival */
    size_t flip;   /* the number of the byte that is changed; SIZE_MAX: none */
    bool flipped;
    uint8_t *record;
} relay = {.lock = PTHREAD_MUTEX_INITIALIZER, .flip = SIZE_MAX};

static void send_on(const struct pipe *pipe, const uint8_t *bytes, ssize_t n)
{
    for (ssize_t at = 0, m; at < n; at += m) {
        m = send(pipe->to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (m < 0)
            m = n; /* the receiver has gone */
    }
}

static void *pass(void *argument)
{
    struct pipe *pipe = argument;
    static __thread uint8_t bytes[65536], held[65536];
    ssize_t n, late = 0;
    while ((n = recv(pipe->from, bytes, sizeof(bytes), 0)) > 0) {
        pthread_mutex_lock(&relay.lock);
        const bool hit = relay.flip - relay.passed < (size_t)n;
        if (hit && relay.harm == CHANGED)
            bytes[relay.flip - relay.passed] ^= 0x10;
        relay.flipped = relay.flipped || hit;
        if (relay.record && relay.passed + (size_t)n <= RECORDED)
            memcpy(relay.record + relay.passed, bytes, (size_t)n);
        relay.passed += (size_t)n;
        const enum harm harm = hit ? relay.harm : CHANGED;
        pthread_mutex_unlock(&relay.lock);
        if (harm == LATE)
            memcpy(held, bytes, (size_t)n);
        for (unsigned i = harm == CHANGED ? 1 : harm == REPEATED ? 2 : 0; i; i--)
            send_on(pipe, bytes, n);
        if (harm != LATE)
            send_on(pipe, held, late);
        late = harm == LATE ? n : 0;
    }
    shutdown(pipe->to, SHUT_WR);
    return NULL;
}

static void pipe_start(int from, int to)
{
    struct pipe *pipe = &relay.pipes[relay.count++];
    MUST(relay.count <= 2 * SOCKETS);
    *pipe = (struct pipe){.from = from, .to = to};
    MUST(!pthread_create(&pipe->thread, NULL, pass, pipe));
}

static void relay_end(void)
{
    for (unsigned i = 0; i < relay.count; i++)
        pthread_join(relay.pipes[i].thread, NULL);
    for (unsigned i = 0; i < relay.count; i++)
        close(relay.pipes[i].from);
    relay.count = 0;
}

void relay_start(int client, int server)
{
    pipe_start(client, server);
    pipe_start(server, client);
}

/* ---------------------------------------------------------------------- the session */

static struct ibx_listener *listener;
static struct ibx_options options;
static unsigned patience;          /* milliseconds, for the next event */
static uint8_t payload[2][LENGTH]; /* the client's, which is READ; the server's, which is WRITTEN */
static char key_file[] = "/tmp/ibx-test-key-XXXXXX";

/* The result of a session at one end. */
struct outcome {
    bool whole; /* everything arrived, and is right */
    int status;
};

/* Waits for the next event of that type. Returns its status, or why it does not come. */
static int await(struct ibx_conn *conn, enum ibx_event_type type, uint8_t *words, size_t *length)
{
    uint64_t deadline = ibx_deadline_in_ms(patience);
    while (ibx_now_ns() < deadline) {
        struct ibx_event event;
        int n = ibx_poll(conn, &event, 1);
        if (n < 0)
            return n;
        if (!n) {
            ibx_wait(conn, ibx_ms_until(deadline));
            continue;
        }
        if (event.type == IBX_EVENT_CLOSED)
            return event.status ? event.status : -ECONNRESET;
        if (event.type == IBX_EVENT_MESSAGE && words) {
            MUST(event.length <= MAX_WORDS);
            memcpy(words, event.data, event.length);
            *length = event.length;
        }
        if (event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(conn, &event);
        if (event.type == type)
            return event.status;
    }
    return -ETIMEDOUT;
}

static int say(struct ibx_conn *conn, const void *words, size_t n)
{
    struct iovec iov = {(void *)(uintptr_t)words, n};
    return ibx_send(conn, &iov, 1, 0, 0);
}

static int serve(struct ibx_conn *conn)
{
    uint8_t words[MAX_WORDS], *bytes = calloc(1, LENGTH);
    size_t length = 0;
    struct ibx_remote remote;
    struct ibx_mr *mr = NULL;
    struct ibx_span span = ibx_span_host(bytes, LENGTH);
    MUST(bytes);
    int rc = await(conn, IBX_EVENT_MESSAGE, words, &length);
    if (!rc) {
        struct ibx_reader r = ibx_reader_of(words, length);
        ibx_remote_get(&r, &remote);
        MUST(remote.length == LENGTH);
        rc = ibx_mr_register(conn, &span, 0, &mr, NULL);
    }
    if (!rc)
        rc = ibx_read(conn, mr, bytes, &remote, 0, LENGTH, 1, 0);
    if (!rc)
        rc = await(conn, IBX_EVENT_READ, NULL, NULL);
    if (!rc) {
        MUST(!memcmp(bytes, payload[0], LENGTH));
        memcpy(bytes, payload[1], LENGTH);
        rc = ibx_write(conn, mr, bytes, &remote, 0, LENGTH, 2, 0);
    }
    if (!rc)
        rc = await(conn, IBX_EVENT_WRITE, NULL, NULL);
    if (!rc)
        rc = say(conn, payload[1], 100);
    if (!rc)
        rc = await(conn, IBX_EVENT_MESSAGE, words, &length);
    if (!rc) {
        MUST(length == 200);
        MUST(!memcmp(words, payload[0], 200));
    }
    ibx_close(conn);
    free(bytes);
    return rc;
}

static atomic_bool client_gone;

static void *server_main(void *argument)
{
    struct outcome *outcome = argument;
    struct ibx_conn *conn = NULL;
    struct pollfd door = {.fd = ibx_listener_fd(listener), .events = POLLIN};
    struct ibx_error err = {0};
    int rc = -EAGAIN;
    while (rc == -EAGAIN) {
        if (poll(&door, 1, 20) > 0)
            rc = ibx_accept(listener, &conn, &err);
        else if (atomic_load(&client_gone))
            rc = -ETIMEDOUT;
    }
    if (!rc) {
        rc = ibx_establish(conn, &err);
        if (rc)
            ibx_close(conn);
        else
            rc = serve(conn);
    }
    *outcome = (struct outcome){.whole = !rc, .status = rc};
    return NULL;
}

static int use(struct ibx_conn *conn)
{
    uint8_t words[MAX_WORDS], *bytes = malloc(LENGTH);
    struct ibx_span span = ibx_span_host(bytes, LENGTH);
    struct ibx_mr *mr = NULL;
    struct ibx_remote remote;
    size_t length = 0;
    memcpy(bytes, payload[0], LENGTH);
    int rc =
        ibx_mr_register(conn, &span, IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE, &mr, NULL);
    MUST(rc == 0);
    MUST(!ibx_mr_remote(mr, 0, LENGTH, &remote));
    struct ibx_writer w = ibx_writer_of(words, sizeof(words));
    ibx_remote_put(&w, &remote);
    rc = say(conn, words, w.length);
    if (!rc)
        rc = await(conn, IBX_EVENT_MESSAGE, words, &length);
    if (!rc) {
        MUST(length == 100);
        MUST(!memcmp(words, payload[1], 100));
        MUST(!memcmp(bytes, payload[1], LENGTH));
        rc = say(conn, payload[0], 200);
    }
    /* The server closes when it has everything. */
    while (!rc)
        rc = await(conn, IBX_EVENT_CLOSED, NULL, NULL);
    ibx_close(conn);
    /* In any case each byte of the memory is an old one, a new one, or zero. */
    for (size_t i = 0; i < LENGTH; i++)
        MUST(bytes[i] == payload[0][i] || bytes[i] == payload[1][i] || !bytes[i]);
    free(bytes);
    return rc;
}

/* Runs a session through the relay. Returns whether both ends received everything. */
static bool session(size_t flip, int *status)
{
    struct outcome server;
    pthread_t thread;
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    relay.flip = flip;
    relay.flipped = false;
    relay.passed = 0;
    atomic_store(&client_gone, false);
    MUST(!pthread_create(&thread, NULL, server_main, &server));
    *status = ibx_connect(ibx_listener_uri(listener), &options, &conn, &err);
    if (!*status)
        *status = use(conn);
    atomic_store(&client_gone, true);
    pthread_join(thread, NULL);
    relay_end();
    if (server.status && *status == -ECONNRESET)
        *status = server.status;
    return server.whole;
}

/* A session that must fail may only take a moment; one that must succeed has time. */
static void listen_with(const char *encryption, bool well)
{
    char uri[64] = "tcp://127.0.0.1:0";
    struct ibx_error err = {0};
    ibx_options_init(&options);
    snprintf(options.key_file, sizeof(options.key_file), "%s", key_file);
    assert_int_equal(ibx_options_set(&options, "encryption", encryption, &err), 0);
    options.timeout_ms = well ? 60000 : 1000;
    patience = well ? 60000 : STALL_MS;
    options.spin_us = 0;
    assert_int_equal(ibx_listen(uri, &options, &listener, &err), 0);
}

/* ------------------------------------------------------------------------- tests */

static bool recorded(const uint8_t *bytes)
{
    size_t have = relay.passed < RECORDED ? relay.passed : RECORDED;
    for (size_t at = 0; at + 16 <= LENGTH; at += 1000) {
        if (memmem(relay.record, have, bytes + at, 16))
            return true;
    }
    return false;
}

static void record(const char *encryption, bool found)
{
    int status;
    listen_with(encryption, true);
    relay.record = malloc(RECORDED);
    assert_true(session(SIZE_MAX, &status));
    assert_true(relay.passed > 2 * LENGTH);
    assert_int_equal(recorded(payload[0]), found);
    assert_int_equal(recorded(payload[1]), found);
    free(relay.record);
    relay.record = NULL;
    ibx_listener_close(listener);
}

static void test_a_recorder_finds_no_payload(void **state)
{
    (void)state;
    record("off", true); /* shows that the search works */
    record("required", false);
    record("auto", false); /* both see 127.0.0.1 and one boot id, but the relay is in between */
}

static void test_no_changed_byte_is_taken(void **state)
{
    (void)state;
    unsigned noticed = 0, flipped = 0, told = 0;
    int status;
    listen_with("required", true);
    assert_true(session(SIZE_MAX, &status));
    size_t total = relay.passed;
    ibx_listener_close(listener);
    listen_with("required", false);
    srand(1);
    for (unsigned i = 0; i < FLIPS; i++) {
        size_t range = i % 4 ? total : EARLY;
        bool whole = session(((size_t)rand() << 16 ^ (size_t)rand()) % range, &status);
        flipped += relay.flipped;
        noticed += relay.flipped && !whole;
        told += relay.flipped && status == -EBADMSG;
    }
    ibx_listener_close(listener);
    print_message("%u bytes changed, %u sessions ended by it, %u of them with -EBADMSG\n", flipped,
                  noticed, told);
    assert_true(flipped >= FLIPS - FLIPS / 50);
    /* The other changes affected a record on which nothing depended: credits, or the last
     * message. */
    assert_true(noticed >= flipped - FLIPS / 50);
    assert_true(told >= FLIPS / 4);
}

/* A record that is missing, is repeated, or comes after a later one ends the session too, unless
 * nothing follows it. An end may wait for a lost record. */
static void test_no_record_is_taken_out_of_order(void **state)
{
    (void)state;
    int status;
    listen_with("required", true);
    assert_true(session(SIZE_MAX, &status));
    const size_t total = relay.passed;
    ibx_listener_close(listener);
    listen_with("required", false);
    for (enum harm harm = DROPPED; harm <= LATE; harm++) {
        unsigned noticed = 0, hit = 0;
        relay.harm = harm;
        for (unsigned i = 0; i < PIECES; i++) {
            const bool whole =
                session(((size_t)rand() << 16 ^ (size_t)rand()) % (i % 4 ? total : EARLY), &status);
            hit += relay.flipped;
            noticed += relay.flipped && !whole;
        }
        print_message("%u pieces %s, %u sessions ended by it\n", hit,
                      harm == DROPPED    ? "dropped"
                      : harm == REPEATED ? "repeated"
                                         : "delayed",
                      noticed);
        assert_true(hit >= PIECES / 2 && noticed >= hit / 2);
    }
    relay.harm = CHANGED;
    ibx_listener_close(listener);
}

static int setup(void **state)
{
    (void)state;
    static const char hex[] = "5ca1ab1e0ddba11c0ffee0decade0123456789abcdef0123456789abcdef0011\n";
    int fd = mkstemp(key_file);
    if (fd < 0 || write(fd, hex, sizeof(hex) - 1) != sizeof(hex) - 1)
        return -1;
    close(fd);
    for (unsigned i = 0; i < 2; i++) {
        for (size_t at = 0; at < LENGTH; at += 250)
            if (getrandom(payload[i] + at, 250, 0) != 250)
                return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(key_file);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_recorder_finds_no_payload),
        cmocka_unit_test(test_no_changed_byte_is_taken),
        cmocka_unit_test(test_no_record_is_taken_out_of_order),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
