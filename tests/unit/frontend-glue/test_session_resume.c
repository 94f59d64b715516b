/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Sessions whose connections break: at every message and chunk of a talk, in the middle of going
 * on, and at random. The bytes of both streams stay what was written, once each, in order.
 *
 *   test_session_resume PROVIDER [CUTS [HOST]]    shm, tcp, ...; how many random cuts there are at
 *                                                  least; the server's address (127.0.0.1)
 */
#include "tests/scenes/cuts.h"
#include "tests/scenes/patience.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define SECONDS      30u
#define IBX_NS_PER_S (1000 * IBX_NS_PER_MS)

static const char *provider, *host;
static unsigned random_cuts = 40;

static const char *other_path(void)
{
    return strcmp(provider, "tcp") ? "tcp" : "shm";
}

/* From connection to connection, between the provider and another one. */
static bool paths_change;

static void change_path(struct ibx_options *options, unsigned n)
{
    if (paths_change)
        ibx_options_set(options, "provider", n % 2 ? other_path() : provider, NULL);
}

/* The client's URI names providers, of which the server allows tcp alone at first. */
static bool paths_in_query;

static void tcp_first(struct ibx_options *options, unsigned n)
{
    if (!n)
        ibx_options_set(options, "provider", "tcp", NULL);
}

/* ------------------------------------------------------------------------------- scene */

struct scene {
    struct ibx_session *listening, *server, *client;
    pthread_t accepting, serving;
    int (*serve)(struct ibx_session *s, void *argument);
    void *argument;
    int served;
};

static void *serve_thread(void *argument)
{
    struct scene *scene = argument;
    scene->served = scene->serve(scene->server, scene->argument);
    return NULL;
}

/* As GVirtuS: a thread for each session that accept returns, which is one here. */
static void *accept_thread(void *argument)
{
    struct scene *scene = argument;
    struct ibx_session *another;
    if (ibx_session_accept(scene->listening, &scene->server, NULL))
        return NULL;
    pthread_create(&scene->serving, NULL, serve_thread, scene);
    ibx_session_accept(scene->listening, &another, NULL);
    abort(); /* a connection of the same session is none for GVirtuS */
}

static char key_file[64]; /* of alice and bob, "": there are no keys */

static void set_options(struct ibx_options *options)
{
    ibx_options_init(options);
    assert_int_equal(ibx_options_set(options, "provider", provider, NULL), 0);
    options->insecure = host != NULL;
    assert_int_equal(ibx_options_set(options, "key_file", key_file, NULL), 0);
    assert_int_equal(ibx_options_set(options, "name", key_file[0] ? "alice" : "", NULL), 0);
}

static void scene_listen(struct scene *scene, unsigned seconds)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    set_options(&options);
    if (paths_change) {
        char both[32];
        snprintf(both, sizeof(both), "%s,%s", provider, other_path());
        ibx_options_set(&options, "provider", both, NULL);
        ibx_options_set(&options, "ofi_provider", "tcp", NULL); /* an emulation will do */
    }
    char uri[128];
    snprintf(uri, sizeof(uri), "rdma://%s:0", host ? host : "127.0.0.1");
    if (ibx_session_create(uri, &options, &scene->listening, &err))
        fail_msg("%s", err.message);
    ibx_session_keep(scene->listening, seconds);
    if (ibx_session_serve(scene->listening, &err))
        fail_msg("%s", err.message);
}

static void scene_open(struct scene *scene, unsigned seconds,
                       int (*serve)(struct ibx_session *, void *), void *argument)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    *scene = (struct scene){.serve = serve, .argument = argument};
    client_end.count = server_end.count = 0;
    scene_listen(scene, seconds);
    pthread_create(&scene->accepting, NULL, accept_thread, scene);
    set_options(&options);
    if (paths_change) /* each connection is made with one of them: change_path() */
        ibx_options_set(&options, "provider", "shm,tcp,ofi", NULL);
    char uri[160];
    snprintf(uri, sizeof(uri), "%s%s", ibx_session_uri(scene->listening),
             paths_in_query ? "?provider=shm,tcp" : "");
    if (ibx_session_create(uri, &options, &scene->client, &err))
        fail_msg("%s", err.message);
    ibx_session_keep(scene->client, seconds);
    /* A cut in the first two messages is an ordinary failure to connect. */
    if (ibx_session_connect(scene->client, &err))
        fail_msg("%s", err.message);
}

static int scene_join(struct scene *scene)
{
    pthread_join(scene->serving, NULL);
    return scene->served;
}

static void scene_close(struct scene *scene)
{
    ibx_session_destroy(scene->client);
    pthread_cancel(scene->accepting);
    pthread_join(scene->accepting, NULL);
    ibx_session_destroy(scene->server);
    ibx_session_destroy(scene->listening);
}

/* -------------------------------------------------------------------------------- talks */

/* Requests and answers of all sizes: both sides make the same plan. */
struct talk {
    uint64_t seed;
    unsigned turns;
};

static size_t some_size(struct random *r)
{
    static const size_t most[] = {8, 300, 20000, 200000, 400000};
    return random_below(r, most[random_below(r, 5)]) + 1;
}

static int move(struct ibx_session *s, struct random *r, bool writing, uint8_t *bytes, size_t total)
{
    for (size_t at = 0, n; at < total; at += n) {
        n = some_size(r);
        n = n < total - at ? n : total - at;
        ssize_t rc =
            writing ? ibx_session_write(s, bytes + at, n) : ibx_session_read(s, bytes + at, n);
        if (rc != (ssize_t)n || (writing && random_below(r, 4) == 0 && ibx_session_sync(s)))
            return -1;
    }
    return writing ? ibx_session_sync(s) : 0;
}

static int talk(struct ibx_session *s, const struct talk *t, bool server)
{
    struct random plan = {t->seed};
    uint8_t *kept = NULL; /* a client's bytes stay until the answer is read */
    int rc = 0;
    for (unsigned turn = 0; turn < t->turns && !rc; turn++) {
        size_t total = some_size(&plan) + some_size(&plan) + some_size(&plan);
        uint8_t *bytes = calloc(1, total);
        bool writing = (turn % 2 == 0) != server; /* the client begins */
        struct random pieces = {random_next(&plan) + writing};
        if (writing)
            pattern_fill(bytes, total, t->seed + turn);
        rc = move(s, &pieces, writing, bytes, total);
        if (!rc && pattern_check(bytes, total, t->seed + turn) != total)
            rc = -2;
        free(kept);
        kept = writing ? bytes : NULL;
        if (!writing)
            free(bytes);
    }
    free(kept);
    return rc;
}

/* A last call: from then on nothing keeps BYE from arriving, without which the server waits. */
static int end_talk(struct ibx_session *s, bool server)
{
    uint8_t byte = 7;
    int rc = 0;
    for (unsigned turn = 0; turn < 2 && !rc; turn++) {
        bool writing = (turn == 0) != server;
        ssize_t n = writing ? ibx_session_write(s, &byte, 1) : ibx_session_read(s, &byte, 1);
        if (!turn)
            cuts_disarm(server ? &server_end : &client_end);
        rc = n != 1 || byte != 7 || (writing && ibx_session_sync(s)) ? -4 : 0;
    }
    return rc;
}

static int serve_talk(struct ibx_session *s, void *argument)
{
    uint8_t byte;
    int rc = talk(s, argument, true);
    if (!rc)
        rc = end_talk(s, true);
    if (!rc && ibx_session_read(s, &byte, 1)) /* the client closes */
        rc = -3;
    return rc;
}

/* How often the session went on; the events of each end's first connection. */
static unsigned run_talk(const struct talk *t, unsigned long *of_client, unsigned long *of_server)
{
    struct scene scene;
    struct talk copy = *t;
    scene_open(&scene, SECONDS, serve_talk, &copy);
    int rc = talk(scene.client, t, false);
    if (!rc)
        rc = end_talk(scene.client, false);
    unsigned resumed = ibx_session_resumed(scene.client);
    if (of_client)
        *of_client = client_end.faults[0].seen;
    ibx_session_close(scene.client);
    int served = scene_join(&scene);
    if (of_server)
        *of_server = server_end.faults[0].seen;
    if (rc || served)
        fail_msg("seed %u: client %d \"%s\", server %d \"%s\"", (unsigned)t->seed, rc,
                 ibx_session_reason(scene.client), served, ibx_session_reason(scene.server));
    scene_close(&scene);
    return resumed;
}

static void every_boundary(void **state)
{
    static const struct talk t = {7, 4};
    unsigned long events[2], resumed = 0;
    (void)state;
    cuts_plan_nothing();
    run_talk(&t, &events[0], &events[1]);
    struct cut_end *ends[] = {&client_end, &server_end};
    for (unsigned side = 0; side < 2; side++) {
        /* KEEP and KEPT are the first two; those of the last call and BYE are not cut. */
        for (unsigned n = 3; n < events[side] - 1; n++) {
            cuts_plan_nothing();
            ends[side]->plan[0] = n;
            resumed += run_talk(&t, NULL, NULL);
        }
    }
    assert_in_range(resumed, (events[0] + events[1] - 4) / 2, UINT32_MAX);
}

/* The connections that are to go on break in their first messages, too. */
static void while_going_on(void **state)
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
            assert_in_range(run_talk(&t, NULL, NULL), 1, 9);
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
        cuts += run_talk(&t, NULL, NULL);
    }
    print_message("%u cuts\n", cuts);
}

/* Longer messages than shm carries go on by tcp. */
static void another_path(void **state)
{
    (void)state;
    paths_change = true;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct talk t = {seed, 20};
        cuts_plan_nothing();
        client_end.random.state = seed;
        client_end.often = 40;
        client_end.plan[0] = 3 + (unsigned)seed;
        assert_in_range(run_talk(&t, NULL, NULL), 1, UINT32_MAX);
    }
    paths_change = false;
}

/* The same where the URI, not an option, asks for shm before tcp. */
static void another_path_than_the_uri_asks_for(void **state)
{
    unsigned refused = 0;
    (void)state;
    if (strcmp(provider, "tcp") != 0)
        skip();
    paths_change = paths_in_query = true;
    cuts_connect_with = NULL;
    cuts_establish_with = tcp_first;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct talk t = {seed, 20};
        cuts_plan_nothing();
        client_end.plan[0] = 3 + (unsigned)seed;
        assert_int_equal(run_talk(&t, NULL, NULL), 1);
        refused += client_end.count - 2;
    }
    assert_in_range(refused, 1, 3); /* by shm, over which not all fits that was under way */
    cuts_establish_with = NULL;
    cuts_connect_with = change_path;
    paths_change = paths_in_query = false;
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

/* A client has sent a message that shm does not carry, and one of the ends, which says so, allows
 * nothing else than shm now. The server waits for the rest of `seconds`. False: it had given the
 * session up before it could say that. */
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
    if (strcmp(provider, "tcp") != 0)
        skip();
    paths_change = true;
    while (!only_shm_within(seconds, at_server, words))
        assert_true((seconds *= 4) < 100);
    paths_change = false;
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

/* ---------------------------------------------------------------- messages by hand */

/* A client's end of a session without one. */
struct hand {
    struct scene scene;
    struct ibx_conn *conn;
    uint8_t id[IBX_SECRET_BYTES], secret[IBX_SECRET_BYTES];
    struct ibx_options options;
};

static int claim(struct hand *hand, struct ibx_claim *how, struct ibx_conn **conn)
{
    struct ibx_options options = hand->options;
    options.claim = how;
    return __real_ibx_connect(ibx_session_uri(hand->scene.listening), &options, conn, NULL);
}

static struct ibx_claim claim_of(const struct hand *hand)
{
    struct ibx_claim how = {.secret = hand->secret};
    memcpy(how.id, hand->id, sizeof(how.id));
    return how;
}

static int echo(struct ibx_session *s, void *argument)
{
    uint8_t bytes[4];
    (void)argument;
    while (ibx_session_read(s, bytes, 4) == 4) {
        bytes[3]++;
        if (ibx_session_write(s, bytes, 4) != 4 || ibx_session_sync(s))
            return -1;
    }
    return 0;
}

static void expect_message(struct ibx_conn *conn, const void *bytes, size_t n)
{
    uint8_t got[64] = {0};
    assert_int_equal(receive_message(conn, got, sizeof(got)), n);
    assert_memory_equal(got, bytes, n);
}

static void hand_open(struct hand *hand, unsigned seconds, uint8_t kept_seconds)
{
    struct ibx_error err = {0};
    uint8_t keep[13] = {7, 1, 0, 0, 0, 0xff, 0xff}, kept[64];
    cuts_plan_nothing();
    *hand = (struct hand){.scene = {.serve = echo}};
    scene_listen(&hand->scene, seconds);
    pthread_create(&hand->scene.accepting, NULL, accept_thread, &hand->scene);
    set_options(&hand->options);
    if (__real_ibx_connect(ibx_session_uri(hand->scene.listening), &hand->options, &hand->conn,
                           &err))
        fail_msg("%s", err.message);
    send_message(hand->conn, keep, sizeof(keep));
    assert_int_equal(receive_message(hand->conn, kept, sizeof(kept)), 18);
    assert_memory_equal(kept, ((uint8_t[]){8, kept_seconds, 0, 0, 0}), 5);
    assert_int_equal(kept[5] | kept[6] << 8 | kept[7] << 16, getpid());
    assert_int_equal(kept[17], 1);
    ibx_conn_secret(hand->conn, "session id", hand->id);
    ibx_conn_secret(hand->conn, "session resumption", hand->secret);
}

static void hand_close(struct hand *hand)
{
    ibx_close(hand->conn);
    assert_int_equal(scene_join(&hand->scene), 0);
    scene_close(&hand->scene);
}

#define ASKS(letter) "\1\1\4\0\0\0abc" letter
#define SAYS(letter) "\1\0\0\0\0\1\4\0\0\0abc" letter

static void golden_bytes(void **state)
{
    static const uint8_t resume[29] = {9,
                                       1,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       /* names */ 0,
                                       0,
                                       0,
                                       0,
                                       /* taken */ 1};
    static const uint8_t resumed[21] = {11, 0, 0, 0, 0, /* taken */ 2};
    struct hand hand;
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    send_message(hand.conn, ASKS("A"), 10);
    expect_message(hand.conn, SAYS("B"), 14);
    send_message(hand.conn, ASKS("K"), 10); /* the answer is not taken */
    while (ibx_wait(hand.conn, 10000) != 1)
        ;
    ibx_close(hand.conn);
    struct ibx_claim how = claim_of(&hand);
    assert_int_equal(claim(&hand, &how, &hand.conn), 0);
    assert_true(how.reached);
    send_message(hand.conn, resume, sizeof(resume));
    expect_message(hand.conn, resumed, sizeof(resumed));
    expect_message(hand.conn, SAYS("L"), 14);
    send_message(hand.conn, "\14", 1); /* BYE */
    hand_close(&hand);
}

/* Who comes again is served, whether that was noticed or not; who comes once more replaces it. */
static void duplicates(void **state)
{
    static const uint8_t resume[29] = {9, 7};
    struct hand hand;
    struct ibx_conn *conns[3];
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    struct ibx_claim how = claim_of(&hand);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(claim(&hand, &how, &conns[i]), 0);
    send_message(conns[2], resume, sizeof(resume));
    uint8_t got[64];
    assert_int_equal(receive_message(conns[2], got, sizeof(got)), 21);
    send_message(conns[2], ASKS("A"), 10);
    expect_message(conns[2], SAYS("B"), 14);
    expect_closed(conns[0]);
    expect_closed(conns[1]);
    expect_closed(hand.conn);
    send_message(conns[2], "\14", 1);
    ibx_close(conns[0]);
    ibx_close(conns[1]);
    ibx_close(conns[2]);
    hand_close(&hand);
}

static void impostors(void **state)
{
    struct hand hand;
    struct ibx_conn *none;
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    struct ibx_claim wrong = claim_of(&hand);
    wrong.id[5] ^= 1;
    assert_int_equal(claim(&hand, &wrong, &none), -ESTALE);
    wrong = claim_of(&hand);
    uint8_t secret[IBX_SECRET_BYTES];
    memcpy(secret, hand.secret, sizeof(secret));
    secret[31] ^= 0x80;
    wrong.secret = secret;
    assert_int_equal(claim(&hand, &wrong, &none), -ESTALE);
    assert_false(wrong.reached);
    send_message(hand.conn, ASKS("A"), 10); /* and the session is where it was */
    expect_message(hand.conn, SAYS("B"), 14);
    send_message(hand.conn, "\14", 1);
    hand_close(&hand);
}

/* They have seen all that the client has: and have its key, but are another user of this host, or
 * a good key of their own. Where it is not known that both are on this host, the key counts. */
static void impostors_with_keys(void **state)
{
    static const char keys[] = "alice:00112233445566778899aabbccddeeff\n"
                               "bob:112233445566778899aabbccddeeff00\n";
    struct hand hand;
    struct ibx_conn *conn;
    int status = 0;
    (void)state;
    strcpy(key_file, "/tmp/ibx-impostors-XXXXXX");
    const int fd = mkstemp(key_file);
    assert_int_equal(write(fd, keys, sizeof(keys) - 1), sizeof(keys) - 1);
    close(fd);
    hand_open(&hand, SECONDS, SECONDS);
    struct ibx_claim how = claim_of(&hand);
    const bool users_are_known = !ibx_conn_path(hand.conn)->remote;
    const pid_t child = geteuid() || !users_are_known ? -1 : fork();
    if (!child)
        _exit(setresuid(12345, 12345, 12345) || claim(&hand, &how, &conn) != -ESTALE);
    assert_true(child < 0 || (waitpid(child, &status, 0) == child && !status));
    assert_int_equal(ibx_options_set(&hand.options, "name", "bob", NULL), 0);
    assert_int_equal(claim(&hand, &how, &conn), -ESTALE);
    assert_int_equal(ibx_options_set(&hand.options, "name", "alice", NULL), 0);
    send_message(hand.conn, ASKS("A"), 10); /* the session is where it was */
    expect_message(hand.conn, SAYS("B"), 14);
    ibx_close(hand.conn);
    assert_int_equal(claim(&hand, &how, &hand.conn), 0);
    send_message(hand.conn, (uint8_t[29]){9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 29);
    uint8_t got[64];
    assert_int_equal(receive_message(hand.conn, got, sizeof(got)), 21);
    send_message(hand.conn, "\14", 1);
    hand_close(&hand);
    unlink(key_file);
    key_file[0] = 0;
}

/* The client's file of keys has another key by now, or is only half written: the server goes on
 * with the one that it has read as it began, and so does the session. */
static void keys_are_replaced(void **state)
{
    static const char *const texts[] = {"", "alice:ffeeddccbbaa99887766554433221100\n"};
    static const char key[] = "alice:00112233445566778899aabbccddeeff\n";
    static const struct talk t = {11, 6};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct scene scene;
        struct talk copy = t;
        cuts_plan_nothing();
        client_end.plan[0] = 5;
        strcpy(key_file, "/tmp/ibx-replaced-XXXXXX");
        const int fd = mkstemp(key_file);
        assert_int_equal(write(fd, key, sizeof(key) - 1), sizeof(key) - 1);
        scene_open(&scene, SECONDS, serve_talk, &copy);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, texts[i], strlen(texts[i]), 0), strlen(texts[i]));
        close(fd);
        int rc = talk(scene.client, &t, false);
        if (!rc)
            rc = end_talk(scene.client, false);
        if (rc)
            fail_msg("%s", ibx_session_reason(scene.client));
        assert_int_equal(ibx_session_resumed(scene.client), 1);
        ibx_session_close(scene.client);
        assert_int_equal(scene_join(&scene), 0);
        scene_close(&scene);
        unlink(key_file);
        key_file[0] = 0;
    }
}

static void key_file_write(const char *text)
{
    FILE *file = fopen(key_file, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* ... also where another thread has begun with the new key since, here at another server. */
static void keys_are_replaced_and_used(void **state)
{
    static const struct talk t = {11, 6};
    struct talk copy = t;
    struct scene scene;
    struct hand other = {.scene = {.serve = echo}};
    (void)state;
    cuts_plan_nothing();
    client_end.plan[0] = 5;
    strcpy(key_file, "/tmp/ibx-replaced-XXXXXX");
    close(mkstemp(key_file));
    key_file_write("alice:00112233445566778899aabbccddeeff\n");
    scene_open(&scene, SECONDS, serve_talk, &copy);
    key_file_write("alice:ffeeddccbbaa99887766554433221100\n");
    scene_listen(&other.scene, SECONDS);
    pthread_create(&other.scene.accepting, NULL, accept_thread, &other.scene);
    set_options(&other.options);
    assert_int_equal(__real_ibx_connect(ibx_session_uri(other.scene.listening), &other.options,
                                        &other.conn, NULL),
                     0);
    send_message(other.conn, ASKS("A"), 10);
    expect_message(other.conn, SAYS("B"), 14);
    send_message(other.conn, "\14", 1);
    hand_close(&other);
    int rc = talk(scene.client, &t, false);
    if (!rc)
        rc = end_talk(scene.client, false);
    if (rc)
        fail_msg("%s", ibx_session_reason(scene.client));
    assert_int_equal(ibx_session_resumed(scene.client), 1);
    ibx_session_close(scene.client);
    assert_int_equal(scene_join(&scene), 0);
    scene_close(&scene);
    unlink(key_file);
    key_file[0] = 0;
}

/* Numbers that cannot be: of messages that were never sent. */
static void lies(void **state)
{
    static const uint8_t wrong[][29] = {
        {9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},                         /* taken */
        {9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, /* of control */
        {9, 0},                                                             /* an old epoch */
        {9, 1, 0, 1},                                                       /* too high a one */
        {10, 1},                                                            /* no RESUME */
    };
    static const uint8_t right[29] = {9, 5};
    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hand hand;
        hand_open(&hand, SECONDS, SECONDS);
        ibx_close(hand.conn);
        struct ibx_claim how = claim_of(&hand);
        assert_int_equal(claim(&hand, &how, &hand.conn), 0);
        send_message(hand.conn, wrong[i], sizeof(wrong[i]));
        expect_closed(hand.conn);
        ibx_close(hand.conn); /* and the session is there for who says the truth */
        assert_int_equal(claim(&hand, &how, &hand.conn), 0);
        send_message(hand.conn, right, sizeof(right));
        uint8_t got[64];
        assert_int_equal(receive_message(hand.conn, got, sizeof(got)), 21);
        send_message(hand.conn, "\14", 1);
        hand_close(&hand);
    }
}

/* ------------------------------------------------------------------------------- ends */

static void not_kept(void **state)
{
    struct hand hand;
    (void)state;
    hand_open(&hand, 0, 0);
    struct ibx_claim how = claim_of(&hand);
    struct ibx_conn *none;
    assert_int_equal(claim(&hand, &how, &none), -ESTALE);
    uint64_t before = ibx_now_ns();
    hand_close(&hand);
    assert_in_range(ibx_now_ns() - before, 0, patience_ms(20000) * IBX_NS_PER_MS);
}

static void time_is_up(void **state)
{
    struct hand hand;
    (void)state;
    hand_open(&hand, 1, 1);
    uint64_t before = ibx_now_ns();
    ibx_close(hand.conn);
    hand.conn = NULL;
    scene_join(&hand.scene);
    assert_in_range(ibx_now_ns() - before, IBX_NS_PER_S * 9 / 10,
                    patience_ms(20000) * IBX_NS_PER_MS);
    assert_non_null(strstr(ibx_session_reason(hand.scene.server), "come back for 1 seconds"));
    scene_close(&hand.scene);
}

static int serve_one(struct ibx_session *s, void *argument)
{
    uint8_t bytes[4];
    (void)argument;
    return ibx_session_read(s, bytes, 4) == 4 ? 0 : -1;
}

/* The back end was started again: at once an error, and never an old answer. */
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
    pthread_cancel(scene.accepting);
    pthread_join(scene.accepting, NULL);
    ibx_session_destroy(scene.listening);
    ibx_abort(scene.server->conn); /* as if it were killed: no BYE */
    struct ibx_options options;
    set_options(&options);
    assert_int_equal(ibx_session_create(uri, &options, &again.listening, NULL), 0);
    ibx_session_keep(again.listening, SECONDS);
    assert_int_equal(ibx_session_serve(again.listening, NULL), 0);
    pthread_create(&again.accepting, NULL, accept_thread, &again);
    ibx_hang_up(scene.server->conn);
    assert_true(ibx_session_read(scene.client, bytes, 4) < 4);
    assert_non_null(strstr(ibx_session_reason(scene.client), "started again"));
    ibx_session_answer(scene.client, bytes, 4);
    assert_memory_equal(bytes, "\xe7\3\0\0", 4); /* 999 */
    ibx_session_destroy(scene.client);
    pthread_cancel(again.accepting);
    pthread_join(again.accepting, NULL);
    ibx_session_destroy(again.listening);
    scene.server->link.state.now = LINK_SINGLE; /* its process would be no more */
    ibx_session_destroy(scene.server);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_boundary),
        cmocka_unit_test(while_going_on),
        cmocka_unit_test(at_random),
        cmocka_unit_test(another_path),
        cmocka_unit_test(another_path_than_the_uri_asks_for),
        cmocka_unit_test(no_path_for_it),
        cmocka_unit_test(the_server_forbids_its_path),
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(duplicates),
        cmocka_unit_test(impostors),
        cmocka_unit_test(impostors_with_keys),
        cmocka_unit_test(keys_are_replaced),
        cmocka_unit_test(keys_are_replaced_and_used),
        cmocka_unit_test(lies),
        cmocka_unit_test(not_kept),
        cmocka_unit_test(time_is_up),
        cmocka_unit_test(a_back_end_started_again),
    };
    if (argc < 2)
        return EXIT_FAILURE;
    provider = argv[1];
    if (argc > 2)
        random_cuts = (unsigned)strtoul(argv[2], NULL, 10);
    if (argc > 3)
        host = argv[3];
    cuts_connect_with = change_path;
    /* libfabric's emulation takes two seconds for a connection on a busy host. */
    alarm((random_cuts > 1000 ? 1700 : strcmp(provider, "ofi") ? 250 : 550) * patience_times());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
