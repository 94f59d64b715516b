/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* While two ends connect and one READs from the other, one allocation, one descriptor or one
 * control call is refused to one end; each of them in turn. Then the READ has the right bytes or
 * none, no end waits until its time is over or blames the other one, and the next connection finds
 * nothing amiss. */
#include "tests/fixtures/failing_calls.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/pattern.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"
#include "transport/transport.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define BYTES       300001u
#define MISSES      3   /* so many connections without the call: it was the last one */
#define CALLS_MOST  500 /* of one kind for one connection */
#define ACCEPT_MS   5
#define WAIT_MS     20
#define PATIENCE_MS 10000

enum end { CLIENT, SERVER, ENDS };
enum way { TLS, TCP, SHM, WAYS };

static const struct {
    const char *name, *provider, *encryption;
} ways[] = {{"tls", "tcp", "required"}, {"tcp", "tcp", "off"}, {"shm", "shm", "off"}};
static const char *const ends[] = {"client", "server"};
static const char *const kinds[] = {"memory", "descriptors", "control"};

struct scene {
    enum way way;
    enum end end; /* whose call fails */
    enum failing_kind kind;
    char name[64];
    struct ibx_options options;
    struct ibx_listener *listener;
};

/* One connection, or the try to make one. */
struct attempt {
    const struct scene *scene;
    bool faulty;
    unsigned nth;       /* with `faulty`: the call that fails */
    atomic_bool over;   /* the client's end */
    const char *failed; /* the call that has failed; NULL: none */
    bool answered;      /* the client knows that the READ is complete */
    bool read, right;   /* the READ has succeeded; its bytes are those of the client */
    int rc;
    struct ibx_error err; /* of the client */
};

static char key_file[] = "/tmp/ibx-test-failing-XXXXXX";
static uint8_t exposed[BYTES], landed[BYTES];

static void arm(const struct attempt *a, enum end end)
{
    if (a->faulty && a->scene->end == end)
        failing_call_arm(a->scene->kind, a->nth);
}

static void disarm(struct attempt *a, enum end end)
{
    if (a->faulty && a->scene->end == end)
        a->failed = failing_call_disarm();
}

/* ------------------------------------------------------------------------ server */

/* READs what a message names, and answers by a message. False: nothing more comes. */
static bool serve_event(struct attempt *a, struct ibx_conn *conn, struct ibx_mr *mr,
                        const struct ibx_event *event)
{
    struct ibx_reader r;
    struct ibx_remote remote;
    struct iovec answer = {"done", 4};
    switch (event->type) {
    case IBX_EVENT_MESSAGE:
        r = ibx_reader_of(event->data, event->length);
        ibx_remote_get(&r, &remote);
        ibx_message_release(conn, event);
        return !r.failed && !ibx_read(conn, mr, landed, &remote, 0, BYTES, 0, 0);
    case IBX_EVENT_READ:
        a->read = !event->status;
        a->right = a->read && pattern_check(landed, BYTES, a->nth) == BYTES;
        return a->read && !ibx_send(conn, &answer, 1, 0, 0);
    default:
        return event->type != IBX_EVENT_CLOSED;
    }
}

static void serve_connection(struct attempt *a, struct ibx_conn *conn)
{
    struct ibx_span span = ibx_span_host(landed, BYTES);
    struct ibx_mr *mr = NULL;
    bool goes_on = !ibx_mr_register(conn, &span, IBX_ACCESS_LOCAL, &mr, NULL);
    memset(landed, 0, BYTES);
    while (goes_on) {
        struct ibx_event event;
        int count;
        ibx_wait(conn, WAIT_MS);
        while (goes_on && (count = ibx_poll(conn, &event, 1)) > 0)
            goes_on = serve_event(a, conn, mr, &event);
        goes_on = goes_on && count == 0;
    }
    if (mr)
        ibx_mr_deregister(mr);
}

/* Serves until the client's end. */
static void *serve(void *argument)
{
    struct attempt *a = argument;
    arm(a, SERVER);
    while (!atomic_load(&a->over)) {
        struct ibx_conn *conn;
        if (ibx_accept_wait(a->scene->listener, ACCEPT_MS, &conn, NULL))
            continue;
        if (!ibx_establish(conn, NULL))
            serve_connection(a, conn);
        ibx_close(conn);
    }
    disarm(a, SERVER);
    return NULL;
}

/* ------------------------------------------------------------------------ client */

static int send_remote(struct ibx_conn *conn, const struct ibx_mr *mr)
{
    struct ibx_remote remote;
    uint8_t bytes[IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    int rc = ibx_mr_remote(mr, 0, BYTES, &remote);
    if (rc)
        return rc;
    ibx_remote_put(&w, &remote);
    struct iovec message = {bytes, w.length};
    return ibx_send(conn, &message, 1, 0, 0);
}

/* Until the answer or the end of the connection: 0, or a negative errno. */
static int await_answer(struct attempt *a, struct ibx_conn *conn)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(PATIENCE_MS));
    while (ibx_now_ns() < deadline) {
        struct ibx_event event;
        int rc = ibx_wait(conn, WAIT_MS);
        if (rc >= 0)
            rc = ibx_poll(conn, &event, 1);
        if (rc < 0)
            return rc;
        if (rc && event.type == IBX_EVENT_CLOSED)
            return event.status ? event.status : -ECONNRESET;
        if (rc && event.type == IBX_EVENT_MESSAGE) {
            a->answered = true;
            ibx_message_release(conn, &event);
            return 0;
        }
    }
    return -ETIMEDOUT;
}

static int use(struct attempt *a, struct ibx_conn *conn)
{
    struct ibx_span span = ibx_span_host(exposed, BYTES);
    struct ibx_mr *mr;
    int rc = ibx_mr_register(conn, &span, IBX_ACCESS_REMOTE_READ, &mr, &a->err);
    if (rc)
        return rc;
    rc = send_remote(conn, mr);
    if (!rc)
        rc = await_answer(a, conn);
    ibx_mr_deregister(mr);
    return rc;
}

static void attempt_make(struct attempt *a)
{
    struct ibx_conn *conn;
    pthread_t server;
    pattern_fill(exposed, BYTES, a->nth);
    assert_int_equal(pthread_create(&server, NULL, serve, a), 0);
    arm(a, CLIENT);
    a->rc = ibx_connect(ibx_listener_uri(a->scene->listener), &a->scene->options, &conn, &a->err);
    if (!a->rc) {
        a->rc = use(a, conn);
        ibx_close(conn);
    }
    disarm(a, CLIENT);
    atomic_store(&a->over, true);
    pthread_join(server, NULL);
}

/* ------------------------------------------------------------------------- cases */

static void expect_success(const struct attempt *a, const char *after, unsigned nth)
{
    if (a->rc || !a->answered || !a->read || !a->right)
        fail_msg("the connection after %s, call %u, gets %d \"%s\", READ %s", after, nth, a->rc,
                 a->err.message,
                 !a->read   ? "nothing"
                 : a->right ? "all"
                            : "wrong bytes");
}

static void expect_no_harm(const struct attempt *a)
{
    if (a->read && !a->right)
        fail_msg("without %s, call %u, the READ has wrong bytes", a->failed, a->nth);
    if (a->answered && !a->read)
        fail_msg("without %s, call %u, a READ is reported that has failed", a->failed, a->nth);
    if (a->rc == -ETIMEDOUT || strstr(a->err.message, "timed out") ||
        strstr(a->err.message, "in time"))
        fail_msg("without %s, call %u, an end waits in vain: %d \"%s\"", a->failed, a->nth, a->rc,
                 a->err.message);
    if (strstr(a->err.message, "malformed") || strstr(a->err.message, "process"))
        fail_msg("without %s, call %u, the other end is blamed: %d \"%s\"", a->failed, a->nth,
                 a->rc, a->err.message);
}

static void listen_for(struct scene *s)
{
    struct ibx_error err = {0};
    if (ibx_listen("rdma://127.0.0.1:0", &s->options, &s->listener, &err))
        fail_msg("%s", err.message);
}

static void connect_undisturbed(const struct scene *s, const char *after, unsigned nth)
{
    struct attempt a = {.scene = s, .nth = nth + 1000};
    attempt_make(&a);
    expect_success(&a, after, nth);
}

static void test_each_call_fails(void **state)
{
    struct scene *s = *state;
    unsigned failures = 0, misses = 0;
    /* What the process keeps is made. */
    listen_for(s);
    connect_undisturbed(s, "nothing", 0);
    ibx_listener_close(s->listener);
    const int fds = open_fds();
    listen_for(s);
    for (unsigned nth = 0; misses < MISSES; nth++) {
        struct attempt a = {.scene = s, .faulty = true, .nth = nth};
        assert_in_range(nth, 0, CALLS_MOST);
        attempt_make(&a);
        misses = a.failed ? 0 : misses + 1;
        failures += a.failed != NULL;
        if (!a.failed) {
            expect_success(&a, "nothing", nth);
            continue;
        }
        expect_no_harm(&a);
        connect_undisturbed(s, a.failed, nth);
    }
    ibx_listener_close(s->listener);
    assert_int_equal(open_fds(), fds);
    assert_true(failures > 0);
    print_message("%u calls failed\n", failures);
}

static int make_key(void **state)
{
    static const char key[] = "6661696c696e672063616c6c73206f66206f6e6520656e64\n";
    (void)state;
    int fd = mkstemp(key_file);
    return fd < 0 || write(fd, key, strlen(key)) < 0 || close(fd);
}

static int remove_key(void **state)
{
    (void)state;
    return unlink(key_file);
}

static int setup(void **state)
{
    struct scene *s = *state;
    ibx_options_init(&s->options);
    s->options.timeout_ms = patience_ms(PATIENCE_MS);
    s->options.spin_us = 0;
    return ibx_options_set(&s->options, "provider", ways[s->way].provider, NULL) ||
           ibx_options_set(&s->options, "encryption", ways[s->way].encryption, NULL) ||
           ibx_options_set(&s->options, "key_file", key_file, NULL);
}

int main(void)
{
    static struct scene scenes[WAYS * ENDS * FAILING_KINDS];
    struct CMUnitTest tests[WAYS * ENDS * FAILING_KINDS];
    for (unsigned i = 0; i < COUNT(scenes); i++) {
        struct scene *s = &scenes[i];
        s->way = i / (ENDS * FAILING_KINDS);
        s->end = i / FAILING_KINDS % ENDS;
        s->kind = i % FAILING_KINDS;
        snprintf(s->name, sizeof(s->name), "test_%s_%s_%s", ways[s->way].name, ends[s->end],
                 kinds[s->kind]);
        tests[i] = (struct CMUnitTest){s->name, test_each_call_fails, setup, NULL, s};
    }
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
