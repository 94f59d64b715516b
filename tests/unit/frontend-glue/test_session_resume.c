/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sessions whose connections break: at every message and chunk of a dialogue, while the session
 * is being continued, and at random. The bytes of both streams are what was written, once each
 * and in order. And connections that end as the client says BYE.
 *
 *   test_session_resume PROVIDER [CUTS [HOST]]    shm, tcp, ...; the least number of random cuts;
 *                                                 the server's address (127.0.0.1) */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/resume_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static unsigned random_cuts = 40;

static void change_path(struct ibx_options *options, unsigned n)
{
    if (scene_paths_change)
        ibx_options_set(options, "provider", n % 2 ? scene_other_path() : scene_provider, NULL);
}

/* At first the server allows only tcp. */
static void tcp_first(struct ibx_options *options, unsigned n)
{
    if (!n)
        ibx_options_set(options, "provider", "tcp", NULL);
}

static unsigned run_talk(const struct talk *t, unsigned long events[2])
{
    struct scene scene;
    struct talk copy = *t;
    scene_open(&scene, SECONDS, talk_serve, &copy);
    return scene_talk(&scene, t, events);
}

static void every_boundary(void **state)
{
    static const struct talk t = {7, 4};
    unsigned long events[2], resumed = 0;
    (void)state;
    cuts_plan_nothing();
    run_talk(&t, events);
    struct cut_end *ends[] = {&client_end, &server_end};
    for (unsigned side = 0; side < 2; side++) {
        /* KEEP and KEPT are the first two. The messages of the last call and BYE are not cut. */
        for (unsigned n = 3; n < events[side] - 1; n++) {
            cuts_plan_nothing();
            ends[side]->plan[0] = n;
            resumed += run_talk(&t, NULL);
        }
    }
    assert_in_range(resumed, (events[0] + events[1] - 4) / 2, UINT32_MAX);
}

/* The connections over which the session continues break in their first messages too. */
static void while_it_is_continued(void **state)
{
    static const struct talk t = {9, 6};
    (void)state;
    struct cut_end *ends[] = {&client_end, &server_end};
    for (unsigned side = 0; side < 4; side++) {
        for (unsigned n = 1; n <= 6; n++) {
            cuts_plan_nothing();
            ends[side / 2]->plan[0] = 9;
            ends[side % 2]->plan[1] = n;
            ends[side / 2]->plan[2] = n;
            assert_in_range(run_talk(&t, NULL), 1, 9);
        }
    }
}

static void at_random(void **state)
{
    unsigned cuts = 0;
    (void)state;
    for (uint64_t seed = 1; cuts < random_cuts; seed++) {
        struct talk t = {seed, 40};
        cuts_plan_nothing();
        client_end.random.state = seed;
        server_end.random.state = seed + 1000000;
        client_end.often = server_end.often = 40;
        client_end.plan[0] = server_end.plan[0] = 3 + (unsigned)seed % 8;
        cuts += run_talk(&t, NULL);
    }
    print_message("%u cuts\n", cuts);
}

/* A session whose messages are too long for shm continues over tcp. */
static void another_path(void **state)
{
    (void)state;
    scene_paths_change = true;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct talk t = {seed, 20};
        cuts_plan_nothing();
        client_end.random.state = seed;
        client_end.often = 40;
        client_end.plan[0] = 3 + (unsigned)seed;
        assert_in_range(run_talk(&t, NULL), 1, UINT32_MAX);
    }
    scene_paths_change = false;
}

/* The same if the URI, not an option, asks for shm before tcp. */
static void another_path_than_the_uri_asks_for(void **state)
{
    unsigned refused = 0;
    (void)state;
    if (strcmp(scene_provider, "tcp") != 0)
        skip();
    scene_paths_change = scene_paths_in_query = true;
    cuts_connect_with = NULL;
    cuts_establish_with = tcp_first;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct talk t = {seed, 20};
        cuts_plan_nothing();
        client_end.plan[0] = 3 + (unsigned)seed;
        assert_int_equal(run_talk(&t, NULL), 1);
        refused += client_end.count - 2;
    }
    /* by shm, which does not have room for all that was in flight */
    assert_in_range(refused, 1, 3);
    cuts_establish_with = NULL;
    cuts_connect_with = change_path;
    scene_paths_change = scene_paths_in_query = false;
}

#define PIECE  1000u
#define PIECES 90u

/* Takes pieces, and answers with the last byte of each. */
static int serve_pieces(struct ibx_session *s, void *argument)
{
    uint8_t bytes[PIECE];
    (void)argument;
    while (ibx_session_read(s, bytes, sizeof(bytes)) == PIECE) {
        if (bytes[PIECE - 1] &&
            (ibx_session_write(s, &bytes[PIECE - 1], 1) != 1 || ibx_session_sync(s)))
            return -1;
    }
    return 0;
}

/* A client has gathered more than one message of shm can carry, and has sent none of it. The
 * session continues over tcp, and is free to use any path afterwards. */
static void what_is_gathered_fits(void **state)
{
    struct scene scene;
    uint8_t bytes[PIECE] = {0}, byte = 0;
    (void)state;
    if (strcmp(scene_provider, "tcp") != 0)
        skip();
    scene_paths_change = true;
    cuts_plan_nothing();
    scene_open(&scene, SECONDS, serve_pieces, NULL);
    for (unsigned round = 1; round <= 2; round++) {
        for (unsigned i = 1; i <= PIECES; i++) {
            bytes[PIECE - 1] = i == PIECES ? (uint8_t)round : 0;
            assert_int_equal(ibx_session_write(scene.client, bytes, PIECE), PIECE);
        }
        assert_true(scene.client->out.length > PIECE * PIECES);
        ibx_abort(scene.client->conn);
        while (ibx_session_resumed(scene.client) < round)
            assert_true(ibx_session_poll(scene.client) >= 0);
        if (ibx_session_sync(scene.client) || ibx_session_read(scene.client, &byte, 1) != 1)
            fail_msg("%s", ibx_session_reason(scene.client));
        assert_int_equal(byte, round);
        assert_int_equal(ibx_session_resumed(scene.client), round);
        assert_int_equal(scene.client->link.only_tcp, BY_ANY_PATH);
    }
    ibx_session_close(scene.client);
    assert_int_equal(scene_join(&scene), 0);
    scene_close(&scene);
    scene_paths_change = false;
}

static int read_on(struct ibx_session *s, void *argument)
{
    uint8_t byte;
    (void)argument;
    while (ibx_session_read(s, &byte, 1) == 1)
        ;
    return 0;
}

static void shm_alone(struct ibx_options *options, unsigned n)
{
    if (n)
        ibx_options_set(options, "provider", "shm", NULL);
}

/* A client has sent a message that is too long for shm, and one of the ends, which says so, now
 * allows only shm. The server waits for the rest of `seconds`. False: it had given the session
 * up before it could say that. */
static bool only_shm_within(unsigned seconds, bool at_server, const char *words)
{
    static const uint8_t bytes[100000];
    struct scene scene;
    uint8_t byte;
    cuts_plan_nothing();
    scene_open(&scene, seconds, read_on, NULL);
    if (at_server)
        cuts_establish_with = shm_alone;
    else
        ibx_options_set(&scene.client->options, "provider", "shm", NULL);
    assert_int_equal(ibx_session_write(scene.client, bytes, sizeof(bytes)), sizeof(bytes));
    assert_int_equal(ibx_session_sync(scene.client), 0);
    ibx_abort(scene.client->conn);
    assert_true(ibx_session_read(scene.client, &byte, 1) < 0);
    const char *reason = ibx_session_reason(scene.client);
    const bool late = strstr(reason, "no such session is waiting");
    if (!late && (!strstr(reason, words) || !strstr(reason, "allow tcp in rdma.provider")))
        fail_msg("%s", reason);
    scene_join(&scene);
    scene_close(&scene);
    cuts_establish_with = NULL;
    return !late;
}

static void only_shm_from_now_on(bool at_server, const char *words)
{
    unsigned seconds = 1; /* less than a busy host may need */
    if (strcmp(scene_provider, "tcp") != 0)
        skip();
    scene_paths_change = true;
    while (!only_shm_within(seconds, at_server, words))
        assert_true((seconds *= 4) < 100);
    scene_paths_change = false;
}

static void no_path_for_it(void **state)
{
    (void)state;
    only_shm_from_now_on(false, "tcp, which would, is not allowed here");
}

static void the_server_forbids_its_path(void **state)
{
    (void)state;
    only_shm_from_now_on(true, "only provider : shm is allowed");
}

/* ------------------------------------------------------------------------------- ends */

static int serve_one(struct ibx_session *s, void *argument)
{
    uint8_t bytes[4];
    (void)argument;
    return ibx_session_read(s, bytes, 4) == 4 ? 0 : -1;
}

/* The back end was restarted. The client gets an error at once, and never an old answer. */
static void a_back_end_started_again(void **state)
{
    struct scene scene, again = {0};
    uint8_t bytes[4] = "abc";
    (void)state;
    cuts_plan_nothing();
    scene_open(&scene, SECONDS, serve_one, NULL);
    assert_int_equal(ibx_session_write(scene.client, bytes, 4), 4);
    assert_int_equal(ibx_session_sync(scene.client), 0);
    assert_int_equal(scene_join(&scene), 0);
    char uri[128];
    snprintf(uri, sizeof(uri), "%s", ibx_session_uri(scene.listening));
    scene_stop_accepting(&scene);
    ibx_session_destroy(scene.listening);
    ibx_abort(scene.server->conn); /* as if it were killed: without BYE */
    struct ibx_options options;
    scene_options(&options);
    assert_int_equal(ibx_session_create(uri, &options, &again.listening, NULL), 0);
    ibx_session_keep(again.listening, SECONDS);
    assert_int_equal(ibx_session_serve(again.listening, NULL), 0);
    scene_accept(&again);
    ibx_hang_up(scene.server->conn);
    assert_true(ibx_session_read(scene.client, bytes, 4) < 4);
    assert_non_null(strstr(ibx_session_reason(scene.client), "started again"));
    ibx_session_answer(scene.client, bytes, 4);
    assert_memory_equal(bytes, "\xe7\3\0\0", 4); /* 999 */
    ibx_session_destroy(scene.client);
    scene_stop_accepting(&again);
    ibx_session_destroy(again.listening);
    scene.server->link.state.now = LINK_SINGLE; /* a restarted back end would not have it */
    ibx_session_destroy(scene.server);
}

#define SENDS_AT 3u

/* A device that has accepted the thread's BYE sends it some polls later, unless the connection
 * has ended by then. */
static _Thread_local struct {
    bool is_late;
    uint8_t bytes[4];
    size_t n; /* 0: it has none */
    unsigned flags, polls;
} device;
int __real_ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
                    unsigned flags);
int __wrap_ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
                    unsigned flags);
int __real_ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int n);
int __wrap_ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int n);

int __wrap_ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
                    unsigned flags)
{
    if (!device.is_late || *(const uint8_t *)iov->iov_base != MESSAGE_BYE)
        return __real_ibx_send(conn, iov, iovcnt, cookie, flags);
    device.n = iov->iov_len;
    device.flags = flags;
    memcpy(device.bytes, iov->iov_base, device.n);
    return 0;
}

int __wrap_ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int n)
{
    const struct iovec iov = {device.bytes, device.n};
    if (device.n && ++device.polls == SENDS_AT)
        __real_ibx_send(conn, &iov, 1, 0, device.flags);
    return __real_ibx_poll(conn, events, n);
}

/* False: on a busy host the client had no time to poll until the device has sent it. */
static bool bye_arrives(void)
{
    struct scene scene;
    cuts_plan_nothing();
    scene_open(&scene, 1, scene_echo, NULL);
    assert_true(scene_echoes(&scene));
    memset(&device, 0, sizeof(device));
    device.is_late = true;
    ibx_session_close(scene.client);
    device.is_late = false;
    device.n = 0;
    assert_int_equal(scene_join(&scene), 0);
    const bool heard = ibx_session_took_leave(scene.server);
    scene_close(&scene);
    assert_true(heard || device.polls < SENDS_AT);
    return heard;
}

/* A client that says BYE is not waited for, however soon its connection ends after that. */
static void bye_arrives_before_the_end(void **state)
{
    unsigned tries = 1;
    (void)state;
    while (!bye_arrives())
        assert_in_range(++tries, 2, 20);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_boundary),
        cmocka_unit_test(while_it_is_continued),
        cmocka_unit_test(at_random),
        cmocka_unit_test(another_path),
        cmocka_unit_test(another_path_than_the_uri_asks_for),
        cmocka_unit_test(what_is_gathered_fits),
        cmocka_unit_test(no_path_for_it),
        cmocka_unit_test(the_server_forbids_its_path),
        cmocka_unit_test(a_back_end_started_again),
        cmocka_unit_test(bye_arrives_before_the_end),
    };
    if (argc < 2)
        return EXIT_FAILURE;
    scene_provider = argv[1];
    if (argc > 2)
        random_cuts = (unsigned)strtoul(argv[2], NULL, 10);
    if (argc > 3)
        scene_host = argv[3];
    cuts_connect_with = change_path;
    /* libfabric's emulation takes two seconds for a connection on a busy host. */
    alarm((random_cuts > 1000              ? 1700
           : strcmp(scene_provider, "ofi") ? 250
                                           : 550) *
          patience_times());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
