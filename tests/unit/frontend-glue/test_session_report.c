/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a back end reports about its sessions: those under the asking client's name that have
 * continued over another connection, with path and time. */
#include "tests/fixtures/last_client.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/session_pair.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define SECONDS 30u
#define ASK_MS  patience_ms(10000)

/* ------------------------------------------------------------------------------- scene */

static struct {
    struct ibx_session *listening, *client, *servers[8];
    pthread_t accepting, serving[8];
    atomic_uint count;
    atomic_uint answers; /* of all sessions; all earlier work of their threads is visible then */
    atomic_bool ends;    /* the next session is not served */
    atomic_bool breaks;  /* the first session's connection, after its next answer */
} scene;

static void *echo(void *argument)
{
    struct ibx_session *s = argument;
    uint8_t bytes[4];
    while (ibx_session_read(s, bytes, 4) == 4 && ibx_session_write(s, bytes, 4) == 4 &&
           !ibx_session_sync(s)) {
        scene.answers++;
        if (atomic_exchange(&scene.breaks, false)) {
            ibx_abort(s->conn);
            ibx_hang_up(s->conn);
        }
    }
    return NULL;
}

static void *accept_all(void *argument)
{
    struct ibx_session *s;
    (void)argument;
    while (!ibx_session_accept(scene.listening, &s, NULL)) {
        if (scene.ends) {
            ibx_session_destroy(s);
            break;
        }
        if (scene.count == 8)
            abort();
        scene.servers[scene.count] = s;
        pthread_create(&scene.serving[scene.count], NULL, echo, s);
        scene.count++;
    }
    return NULL;
}

static void set_options(struct ibx_options *options, const char *provider)
{
    ibx_options_init(options);
    assert_int_equal(ibx_options_set(options, "provider", provider, NULL), 0);
}

static void call(void)
{
    uint8_t bytes[4] = "abc";
    assert_int_equal(ibx_session_write(scene.client, bytes, 4), 4);
    assert_int_equal(ibx_session_sync(scene.client), 0);
    assert_int_equal(ibx_session_read(scene.client, bytes, 4), 4);
}

static int set_up(void **state)
{
    struct ibx_options options;
    (void)state;
    memset(&scene, 0, sizeof(scene));
    set_options(&options, "shm,tcp");
    assert_int_equal(ibx_session_create("rdma://127.0.0.1:0", &options, &scene.listening, NULL), 0);
    ibx_session_keep(scene.listening, SECONDS);
    assert_int_equal(ibx_session_serve(scene.listening, NULL), 0);
    pthread_create(&scene.accepting, NULL, accept_all, NULL);
    set_options(&options, "shm");
    assert_int_equal(
        ibx_session_create(ibx_session_uri(scene.listening), &options, &scene.client, NULL), 0);
    ibx_session_keep(scene.client, SECONDS);
    assert_int_equal(ibx_session_connect(scene.client, NULL), 0);
    call();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    struct ibx_options options;
    set_options(&options, "shm,tcp");
    ibx_session_destroy(scene.client);
    scene.ends = true;
    last_client(scene.listening, &options, scene.accepting);
    for (unsigned i = 0; i < scene.count; i++) {
        pthread_join(scene.serving[i], NULL);
        ibx_session_destroy(scene.servers[i]);
    }
    ibx_session_destroy(scene.listening);
    return 0;
}

static struct ibx_conn *connected(void)
{
    struct ibx_options options;
    struct ibx_conn *conn;
    set_options(&options, "tcp");
    assert_int_equal(ibx_connect(ibx_session_uri(scene.listening), &options, &conn, NULL), 0);
    return conn;
}

static void ask(struct ibx_sessions_report *report)
{
    struct ibx_conn *conn = connected();
    assert_int_equal(ibx_sessions_ask(conn, ASK_MS, report), 0);
    ibx_close(conn);
}

/* The next connection uses this provider. */
static void continue_by(const char *provider)
{
    const unsigned before = ibx_session_resumed(scene.client);
    assert_int_equal(ibx_options_set(&scene.client->options, "provider", provider, NULL), 0);
    scene.breaks = true;
    call(); /* its answer comes before the connection ends, or after it */
    call();
    assert_int_equal(ibx_session_resumed(scene.client), before + 1);
}

/* ------------------------------------------------------------------------------- tests */

static void the_path_and_its_changes(void **state)
{
    struct ibx_sessions_report report;
    (void)state;
    ask(&report);
    assert_int_equal(report.sessions, 1);
    assert_int_equal(report.resumed, 0);
    assert_int_equal(report.count, 0);
    continue_by("tcp");
    ask(&report);
    assert_int_equal(report.resumed, 1);
    assert_int_equal(report.count, 1);
    const struct ibx_session_report *told = &report.told[0];
    assert_string_equal(told->provider, "tcp");
    assert_int_equal(strncmp(told->peer, "127.0.0.1:", 10), 0);
    assert_int_equal(told->resumed, 1);
    assert_int_equal(told->count, 1);
    assert_string_equal(told->changes[0].from, "shm");
    assert_string_equal(told->changes[0].to, "tcp");
    assert_in_range(told->changes[0].when, 0, 60000);
    /* The latest changes are remembered. */
    for (unsigned i = 0; i < IBX_REPORT_CHANGES; i++)
        continue_by(i % 2 ? "tcp" : "shm");
    ask(&report);
    assert_int_equal(told->resumed, 1 + IBX_REPORT_CHANGES);
    assert_int_equal(told->count, IBX_REPORT_CHANGES);
    assert_string_equal(told->changes[0].from, "tcp");
    assert_string_equal(told->changes[IBX_REPORT_CHANGES - 1].to, "tcp");
}

/* The first session's thread waits in its next read. */
static struct ibx_session *first_server(void)
{
    while (!scene.answers)
        poll(NULL, 0, 1);
    return scene.servers[0];
}

static void only_sessions_of_the_same_name(void **state)
{
    struct ibx_sessions_report report;
    (void)state;
    struct ibx_session *server = first_server();
    memcpy(server->link.name, "another", 8);
    ask(&report);
    assert_int_equal(report.sessions, 0);
    memcpy(server->link.name, "", 1);
    ask(&report);
    assert_int_equal(report.sessions, 1);
}

static void golden_bytes(void **state)
{
    static const uint8_t wanted[] = "\16\1\0\0\0\1\0\0\0\1" /* type, sessions, resumed, reported */
                                    "\5\0a:123\3\0tcp\7\0\0\0\1" /* peer, provider, resumed */
                                    "\0\0\0\0\0\0\0\0\11\0\0\0\3\0shm\3\0tcp";
    struct ibx_conn *conn = connected();
    uint8_t got[256];
    (void)state;
    /* no other thread looks at it now */
    struct ibx_session_report *report = &first_server()->link.report;
    *report = (struct ibx_session_report){
        .peer = "a:123",
        .provider = "tcp",
        .resumed = 7,
        .count = 1,
        .changes = {{.when = ibx_now_ns() + 900 * IBX_NS_PER_US, .took_ms = 9, "shm", "tcp"}}};
    while (report->changes[0].when > ibx_now_ns())
        ;
    send_message(conn, "\15", 1);
    const size_t n = receive_message(conn, got, sizeof(got));
    assert_int_equal(n, sizeof(wanted) - 1);
    memset(got + 27, 0, 2); /* milliseconds since then */
    assert_memory_equal(got, wanted, n);
    ibx_close(conn);
}

/* The question is invalid after KEEP, and with additional bytes. */
static void question_at_the_wrong_time(void **state)
{
    static const uint8_t keep[13] = {7, 1};
    struct ibx_conn *conn = connected();
    uint8_t kept[64];
    (void)state;
    send_message(conn, keep, sizeof(keep));
    assert_int_equal(receive_message(conn, kept, sizeof(kept)), 18);
    send_message(conn, "\15", 1);
    expect_closed(conn);
    ibx_close(conn);
    conn = connected();
    send_message(conn, "\15\0", 2);
    expect_closed(conn);
    ibx_close(conn);
}

/* ---------------------------------------------------------------------------- malformed reports */

static const struct {
    const char *bytes;
    size_t n;
    int rc;
} answers[] = {
    {"\16\0\0\0\0\0\0\0\0\0", 10, 0},
    {"\16\0\0\0\0\0\0\0\0", 9, -EPROTO},                      /* too short */
    {"\16\0\0\0\0\0\0\0\0\0\0", 11, -EPROTO},                 /* too long */
    {"\15\0\0\0\0\0\0\0\0\0", 10, -EPROTO},                   /* not an answer */
    {"\16\1\0\0\0\2\0\0\0\0", 10, -EPROTO},                   /* more have continued than exist */
    {"\16\1\0\0\0\1\0\0\0\2", 10, -EPROTO},                   /* more are reported than continued */
    {"\16\377\0\0\0\377\0\0\0\11", 10, -EPROTO},              /* more than fit */
    {"\16\1\0\0\0\1\0\0\0\1\0\0\0\0\1\0\0\0\5", 19, -EPROTO}, /* more changes than fit */
    /* a name that is too long */
    {"\16\1\0\0\0\1\0\0\0\1\0\0\21\0aaaaaaaaaaaaaaaaa\1\0\0\0\0", 36, -EPROTO},
    {"\16\1\0\0\0\1\0\0\0\1\2\0\33X\3\0tcp\1\0\0\0\0", 24, 0}, /* for a terminal */
};

static void *lie(void *argument)
{
    struct ibx_listener *listener = argument;
    for (unsigned i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct ibx_conn *conn;
        uint8_t byte;
        if (ibx_accept_wait(listener, 10000, &conn, NULL) || ibx_establish(conn, NULL))
            return NULL;
        if (receive_message(conn, &byte, 1) == 1)
            send_message(conn, answers[i].bytes, answers[i].n);
        while (ibx_wait(conn, 10000) == 1 && !ibx_conn_over(conn)) {
            struct ibx_event event;
            if (ibx_poll(conn, &event, 1) < 0)
                break;
        }
        ibx_close(conn);
    }
    return NULL;
}

static void malformed_reports(void **state)
{
    struct ibx_listener *listener;
    struct ibx_options options;
    pthread_t thread;
    (void)state;
    set_options(&options, "tcp");
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &options, &listener, NULL), 0);
    pthread_create(&thread, NULL, lie, listener);
    for (unsigned i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct ibx_sessions_report report;
        struct ibx_conn *conn;
        assert_int_equal(ibx_connect(ibx_listener_uri(listener), &options, &conn, NULL), 0);
        int rc = ibx_sessions_ask(conn, ASK_MS, &report);
        if (rc != answers[i].rc)
            fail_msg("answer %u: %d", i, rc);
        if (!rc && report.count)
            assert_string_equal(report.told[0].peer, "?X");
        ibx_close(conn);
    }
    pthread_join(thread, NULL);
    ibx_listener_close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_path_and_its_changes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(only_sessions_of_the_same_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(golden_bytes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(question_at_the_wrong_time, set_up, tear_down),
        cmocka_unit_test(malformed_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
