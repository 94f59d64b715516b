/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hostile readers that ask for a multicast group, and hostile servers that offer one. The test
 * process is the hostile side. A server continues with all other readers; a cache reports the
 * fault and continues without the group. */
#include "migrate/multicast/datagrams.h"
#include "migrate/snapshot/cache.h"
#include "tests/fixtures/fault_memory.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNKS (PAGES / IBX_MULTICAST_CHUNK_PAGES) /* two chunks, whose bits are in one byte */

static unsigned patience; /* milliseconds for what must happen; set by main() */
static struct ibx_error error;
static struct ibx_snapshot_manifest manifest;
static struct ibx_page_map map;

static struct ibx_options options(void)
{
    struct ibx_options o;
    ibx_options_init(&o);
    o.message = IBX_MIGRATE_MESSAGE;
    o.timeout_ms = 1000;
    snprintf(o.purpose, sizeof(o.purpose), IBX_SNAPSHOT_PURPOSE);
    return o;
}

/* Makes a snapshot of the rig's memory. */
static void make_snapshot(void)
{
    manifest = (struct ibx_snapshot_manifest){
        .complete = true, .hashed = true, .ram_count = 1, .state_bytes = 1};
    memset(manifest.id, 5, sizeof(manifest.id));
    manifest.ram[0].size = (uint64_t)PAGES * PAGE;
    snprintf(manifest.ram[0].id, sizeof(manifest.ram[0].id), "mem0");
    manifest.description = json_object();
    assert_int_equal(ibx_snapshot_map_init(&manifest, &map, &error), 0);
    ibx_page_map_set(&map, 0, map.pages);
}

static void end_snapshot(void)
{
    ibx_page_map_fini(&map);
    ibx_snapshot_manifest_fini(&manifest);
}

static void send_message(struct ibx_conn *conn, const struct ibx_snapshot_any *m)
{
    ibx_snapshot_send(conn, m, ibx_deadline_in_ms(patience), NULL);
}

/* Returns false if the other side has closed. */
static bool next_message(struct ibx_conn *conn, struct ibx_snapshot_any *m)
{
    const uint64_t until = ibx_deadline_in_ms(patience);
    struct ibx_event event;
    while (ibx_now_ns() < until) {
        const int n = ibx_poll(conn, &event, 1);
        if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
            return false;
        if (n && event.type == IBX_EVENT_MESSAGE) {
            assert_int_equal(ibx_snapshot_decode(event.data, event.length, m, &error), 0);
            if (m->type == IBX_SNAPSHOT_NO_GROUP)
                snprintf(error.message, sizeof(error.message), "%.*s", (int)m->bytes.length,
                         (const char *)m->bytes.bytes);
            ibx_message_release(conn, &event);
            return true;
        }
        if (!n)
            ibx_wait(conn, 50);
    }
    fail_msg("it neither answers nor closes");
    return false;
}

/* ---------------------------------------------------------------- readers that lie */

static struct ibx_snapshot_server *server;
static uint8_t *ram;
static void *memory[3];
static struct ibx_snapshot_multicast multicast;
static struct ibx_snapshot_index index_of;

static void open_server(bool sends, unsigned timeout_ms)
{
    struct ibx_options o = options();
    o.timeout_ms = timeout_ms;
    const struct ibx_snapshot_multicast_options how = {.on = true, .interface = "lo"};
    make_snapshot();
    ram = aligned_alloc(PAGE, (size_t)PAGES * PAGE);
    memset(ram, 0x5a, (size_t)PAGES * PAGE);
    memory[0] = ram;
    memory[1] = memory[2] = ram;
    multicast = (struct ibx_snapshot_multicast){&manifest, &map, memory, NULL, NULL, NULL};
    assert_int_equal(ibx_snapshot_multicast_open(&multicast, &how, false, &error), 0);
    index_of.hashes = calloc((size_t)ibx_snapshot_pieces(&manifest), IBX_SNAPSHOT_HASH);
    index_of.pieces = ibx_snapshot_pieces(&manifest);
    const struct ibx_snapshot_server_config config = {.uri = "tcp://127.0.0.1:0",
                                                      .options = &o,
                                                      .manifest = &manifest,
                                                      .map = &map,
                                                      .memory = memory,
                                                      .index = &index_of,
                                                      .multicast = sends ? multicast.sender : NULL,
                                                      .interface = "lo"};
    assert_int_equal(ibx_snapshot_server_open(&config, &server, &error), 0);
}

static void close_server(void)
{
    ibx_snapshot_server_close(server);
    ibx_multicast_sender_destroy(multicast.sender);
    free(index_of.hashes);
    end_snapshot();
    free(ram);
}

static struct ibx_conn *join_as(const struct ibx_snapshot_any *first)
{
    const struct ibx_options o = options();
    struct ibx_conn *conn;
    assert_int_equal(ibx_connect(ibx_snapshot_server_uri(server), &o, &conn, &error), 0);
    send_message(conn, first);
    return conn;
}

static struct ibx_snapshot_any joining(void)
{
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_JOIN};
    memcpy(m.id, manifest.id, sizeof(m.id));
    return m;
}

static struct ibx_snapshot_any wanting(uint32_t length, uint32_t offset, const char *bytes,
                                       size_t n)
{
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_WANT, .length = length, .offset = offset};
    m.bytes.bytes = (const uint8_t *)bytes;
    m.bytes.length = n;
    return m;
}

static void honest_one_is_fed(void)
{
    struct ibx_snapshot_any m = joining();
    struct ibx_conn *conn = join_as(&m);
    uint8_t secret[IBX_SECRET_BYTES];
    assert_true(next_message(conn, &m) && m.type == IBX_SNAPSHOT_GROUP);
    struct ibx_multicast_group group = m.group;
    ibx_conn_secret(conn, IBX_SNAPSHOT_SECRET, secret);
    assert_true(ibx_multicast_key_open(secret, &group, m.sealed));
    assert_memory_equal(&group.key, ibx_multicast_sender_group(multicast.sender)->key, 16);
    secret[0] ^= 1; /* the secret of another connection */
    assert_false(ibx_multicast_key_open(secret, &group, m.sealed));
    m = wanting(1, 0, "\x03", 1);
    send_message(conn, &m);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_HEARD, .through = 2, .packets = 1};
    send_message(conn, &m);
    assert_true(next_message(conn, &m) && m.type == IBX_SNAPSHOT_FED && m.packets >= PAGES);
    ibx_close(conn);
}

/* The reader claims to have received more than was sent. */
static void hears_too_much(void)
{
    struct ibx_snapshot_any m = joining();
    struct ibx_conn *conn = join_as(&m);
    assert_true(next_message(conn, &m) && m.type == IBX_SNAPSHOT_GROUP);
    m = wanting(1, 0, "\x03", 1);
    send_message(conn, &m);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_HEARD, .through = 2, .packets = 3};
    send_message(conn, &m);
    while (next_message(conn, &m)) /* it may have been fed before the claim was checked */
        assert_int_equal(m.type, IBX_SNAPSHOT_FED);
    ibx_close(conn);
}

/* The reader gets the group, sends this, and is closed. */
static void closes_on(struct ibx_snapshot_any lie)
{
    struct ibx_snapshot_any m = joining();
    struct ibx_conn *conn = join_as(&m);
    assert_true(next_message(conn, &m) && m.type == IBX_SNAPSHOT_GROUP);
    send_message(conn, &lie);
    assert_false(next_message(conn, &m));
    ibx_close(conn);
}

/* The server closes each for its message; its own time limit is longer than this test. */
static void test_readers(NO_STATE)
{
    open_server(true, 600000);
    struct ibx_snapshot_any m = wanting(1, 0, "\x03", 1);
    struct ibx_conn *conn = join_as(&m); /* before it has joined */
    assert_false(next_message(conn, &m));
    ibx_close(conn);
    closes_on(wanting(2, 0, "\x03\x03", 2)); /* of another memory */
    closes_on(wanting(2, 1, "\x03", 1));
    closes_on(joining());
    closes_on((struct ibx_snapshot_any){.type = IBX_SNAPSHOT_FED});
    closes_on((struct ibx_snapshot_any){.type = IBX_SNAPSHOT_OPEN});
    closes_on((struct ibx_snapshot_any){.type = IBX_SNAPSHOT_HEARD});
    hears_too_much();
    m = joining();
    m.id[0] ^= 1;
    conn = join_as(&m);
    assert_true(next_message(conn, &m) && m.type == IBX_SNAPSHOT_NO_GROUP && m.code == -ESTALE);
    ibx_close(conn);
    honest_one_is_fed();
    close_server();
}

/* The connection of a silent member is closed. One that leaves while it is fed does no harm. */
static void test_readers_that_fall_silent(NO_STATE)
{
    open_server(true, 1000);
    struct ibx_snapshot_any m = joining();
    struct ibx_conn *silent = join_as(&m), *leaves = join_as(&m);
    assert_true(next_message(leaves, &m) && m.type == IBX_SNAPSHOT_GROUP);
    m = wanting(1, 0, "\x03", 1);
    send_message(leaves, &m);
    send_message(leaves, &m); /* wants it twice */
    ibx_close(leaves);
    honest_one_is_fed();
    assert_true(next_message(silent, &m) && m.type == IBX_SNAPSHOT_GROUP);
    assert_false(next_message(silent, &m));
    ibx_close(silent);
    honest_one_is_fed();
    close_server();
}

static void test_a_server_without_a_group(NO_STATE)
{
    open_server(false, 1000);
    struct ibx_snapshot_any m = joining();
    struct ibx_conn *conn = join_as(&m);
    assert_true(next_message(conn, &m) && m.type == IBX_SNAPSHOT_NO_GROUP && m.code == -EOPNOTSUPP);
    text_has(error.message, "serve there with --multicast");
    ibx_close(conn);
    close_server();
}

/* ---------------------------------------------------------------- servers that lie */

struct liar {
    struct ibx_listener *listener;
    void (*lie)(struct ibx_conn *conn);
    pthread_t thread;
};

static void *liar_main(void *argument)
{
    struct liar *liar = argument;
    struct ibx_conn *conn;
    struct ibx_snapshot_any m;
    if (ibx_accept_wait(liar->listener, (int)patience, &conn, NULL))
        return NULL;
    if (!ibx_establish(conn, NULL) && next_message(conn, &m) && m.type == IBX_SNAPSHOT_JOIN)
        liar->lie(conn);
    ibx_close(conn);
    return NULL;
}

static struct ibx_snapshot_any offer(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_GROUP, .group = {.rate = 1 << 30}};
    uint8_t secret[IBX_SECRET_BYTES];
    ibx_multicast_group_choose(NULL, false, &m.group.address, NULL);
    ibx_conn_secret(conn, IBX_SNAPSHOT_SECRET, secret);
    ibx_multicast_key_seal(secret, &m.group, m.sealed);
    return m;
}

static void await_close(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m;
    while (next_message(conn, &m))
        ;
}

static void says_nothing(struct ibx_conn *conn)
{
    await_close(conn);
}

static void refuses_with(struct ibx_conn *conn, int code)
{
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_NO_GROUP, .code = code};
    m.bytes.bytes = (const uint8_t *)"not \x1b[31mnow";
    m.bytes.length = 12;
    send_message(conn, &m);
    await_close(conn);
}

static void says_no(struct ibx_conn *conn)
{
    refuses_with(conn, -EBUSY);
}

/* Sends a code that could be one of the cache's own. */
static void says_cancelled(struct ibx_conn *conn)
{
    refuses_with(conn, -ECANCELED);
}

static void seals_wrong(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m = offer(conn);
    m.sealed[3] ^= 1;
    send_message(conn, &m);
    await_close(conn);
}

static void feeds_at_once(struct ibx_conn *conn)
{
    const struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_FED};
    send_message(conn, &m);
    await_close(conn);
}

static void offers_twice(struct ibx_conn *conn)
{
    const struct ibx_snapshot_any m = offer(conn);
    send_message(conn, &m);
    send_message(conn, &m);
    await_close(conn);
}

static void goes(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m = offer(conn);
    send_message(conn, &m);
    next_message(conn, &m);
}

static void feeds_nothing(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m = offer(conn);
    send_message(conn, &m);
    next_message(conn, &m);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_FED, .packets = UINT64_MAX};
    send_message(conn, &m);
    await_close(conn);
}

/* The server is silent. Somebody without the key keeps sending to its group what nobody wants,
 * and what the server has sent. */
static void strangers_speak(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m = offer(conn);
    struct ibx_multicast_group stranger = m.group;
    struct ibx_multicast_packet packet = {.page = 1ull << 40, .parts = 1};
    static const uint8_t page[PAGE];
    uint8_t old[IBX_MULTICAST_PACKET];
    struct ibx_event event;
    struct ibx_multicast_out *way;
    unsigned lo;
    int n = 0;
    send_message(conn, &m);
    next_message(conn, &m);
    struct ibx_multicast_cipher *cipher = ibx_multicast_cipher_create(&stranger, true);
    const size_t all = ibx_multicast_seal(cipher, &packet, page, old);
    ibx_multicast_cipher_destroy(cipher);
    stranger.key[0] ^= 1;
    cipher = ibx_multicast_cipher_create(&stranger, true);
    ibx_multicast_interface("lo", NULL, &lo, NULL);
    assert_int_equal(ibx_multicast_out_open(&stranger.address, lo, 1, &way, &error), 0);
    for (; n >= 0 && !(n && event.type == IBX_EVENT_CLOSED); n = ibx_poll(conn, &event, 1)) {
        ibx_multicast_seal(cipher, &packet, page, way->pages[0]);
        packet.number++;
        memcpy(way->pages[1], old, all);
        way->ops->send(way, 2, 1, NULL);
        poll(NULL, 0, 100);
    }
    ibx_multicast_out_close(way);
    ibx_multicast_cipher_destroy(cipher);
}

static void feed_of(void (*lie)(struct ibx_conn *conn), const char *words)
{
    struct liar liar = {.lie = lie};
    const struct ibx_options o = options();
    struct snapshot_feed *feed;
    struct ibx_multicast_receiver_stats sum = {0};
    char line[IBX_ERROR_MAX] = "";
    struct ibx_snapshot_index none = {.hashes = calloc(128, IBX_SNAPSHOT_HASH)};
    struct ibx_snapshot_checker *checker;
    none.pieces = ibx_snapshot_pieces(&manifest); /* all of them zeros: kept */
    assert_true(none.pieces <= 128);
    assert_int_equal(ibx_snapshot_checker_create(&manifest, &none, 1, &checker, &error), 0);
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &liar.listener, NULL), 0);
    assert_int_equal(pthread_create(&liar.thread, NULL, liar_main, &liar), 0);
    const struct snapshot_feed_config config = {.uri = ibx_listener_uri(liar.listener),
                                                .options = &o,
                                                .manifest = &manifest,
                                                .map = &map,
                                                .engine = rig.engine,
                                                .checker = checker};
    assert_int_equal(ibx_snapshot_feed_open(&config, &feed, &error), 0);
    struct pollfd fd = {.fd = ibx_snapshot_feed_fd(feed), .events = POLLIN};
    const uint64_t until = ibx_deadline_in_ms(patience);
    while (!ibx_snapshot_feed_over(feed)) {
        assert_true(ibx_now_ns() < until);
        poll(&fd, 1, 20);
    }
    assert_true(ibx_snapshot_feed_says(feed, line));
    text_has(line, words);
    assert_null(strchr(line, '\x1b'));
    if (lie == strangers_speak) {
        assert_true(ibx_snapshot_feed_says(feed, line));
        text_has(line, "nothing came from the multicast group");
    }
    assert_false(ibx_snapshot_feed_says(feed, line));
    ibx_snapshot_feed_close(feed, &sum);
    assert_true(!sum.pages && !sum.packets == (lie != strangers_speak));
    pthread_join(liar.thread, NULL);
    ibx_listener_close(liar.listener);
    ibx_snapshot_checker_destroy(checker);
}

/* The number of threads of this process. */
static unsigned threads(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* A server's host accepts a connection, and nobody answers. */
struct silent {
    int listener, conn; /* conn: of the feed, once it has sent something */
    char uri[64];
    struct ibx_options options;
    struct ibx_snapshot_checker *checker;
    struct snapshot_feed *feed;
};

static void connect_to_silence(struct silent *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    struct ibx_snapshot_index none = {.hashes = calloc(128, IBX_SNAPSHOT_HASH)};
    char byte;
    s->options = options();
    s->options.timeout_ms = patience;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listener, (const struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(s->listener, 4), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&at, &size), 0);
    snprintf(s->uri, sizeof(s->uri), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    rig_make(1, 0);
    rig.config.no_background = true;
    rig_serve();
    make_snapshot();
    none.pieces = ibx_snapshot_pieces(&manifest);
    assert_true(none.pieces <= 128);
    assert_int_equal(ibx_snapshot_checker_create(&manifest, &none, 1, &s->checker, &error), 0);
    const struct snapshot_feed_config config = {.uri = s->uri,
                                                .options = &s->options,
                                                .manifest = &manifest,
                                                .map = &map,
                                                .engine = rig.engine,
                                                .checker = s->checker};
    assert_int_equal(ibx_snapshot_feed_open(&config, &s->feed, &error), 0);
    s->conn = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(s->conn >= 0 && recv(s->conn, &byte, 1, 0) == 1);
}

static void close_while_it_connects(struct silent *s)
{
    struct ibx_multicast_receiver_stats sum = {0};
    ibx_snapshot_feed_close(s->feed, &sum);
    ibx_snapshot_checker_destroy(s->checker);
    end_snapshot();
}

/* A thread that closes the feed meanwhile does not wait for that: the connection is still there
 * afterwards. */
static void test_closed_while_it_connects(NO_STATE)
{
    struct silent s;
    char byte;
    const unsigned before = threads();
    connect_to_silence(&s);
    close_while_it_connects(&s);
    ssize_t n;
    while ((n = recv(s.conn, &byte, 1, MSG_DONTWAIT)) > 0) /* the rest of its first bytes */
        ;
    assert_true(n < 0 && errno == EAGAIN);
    close(s.conn);
    rig_end(NULL);
    const uint64_t until = ibx_deadline_in_ms(patience);
    while (threads() > before) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 5);
    }
    close(s.listener);
}

static int left; /* a connection of a feed that was left */

/* Registered before the feed's own, and so called after it: the feed has closed its connection. */
static void look_at_exit(void)
{
    struct pollfd end = {.fd = left, .events = POLLRDHUP};
    _exit(poll(&end, 1, 5) == 1 ? 10 : 11);
}

static int exit_while_it_connects(void)
{
    struct silent s;
    atexit(look_at_exit);
    connect_to_silence(&s);
    left = s.conn;
    close_while_it_connects(&s);
    rig_end(NULL);
    return 0;
}

/* exit(3) ends OpenSSL, in which the feed's thread could be. */
static void test_exit_waits_for_what_connects(NO_STATE)
{
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        execl("/proc/self/exe", "test_multicast_hostile", "exit", NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 10);
}

static void test_servers(NO_STATE)
{
    rig_make(1, 0);
    rig.config.no_background = true;
    rig_serve();
    make_snapshot();
    feed_of(says_nothing, "it does not say which group it sends to");
    feed_of(says_no, "not ?[31mnow");
    feed_of(says_cancelled, "not ?[31mnow");
    feed_of(seals_wrong, "the key of its group was changed on its way here");
    feed_of(feeds_at_once, "out of turn");
    feed_of(offers_twice, "out of turn");
    feed_of(goes, "the server is lost");
    feed_of(feeds_nothing, "0 pages came");
    feed_of(strangers_speak, "that nobody with the group's key has made");
    end_snapshot();
    rig_end(NULL);
}

int main(int argc, char **argv)
{
    (void)argv;
    patience = patience_ms(20000);
    if (argc > 1)
        return exit_while_it_connects();
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_readers_that_fall_silent),
        cmocka_unit_test(test_a_server_without_a_group),
        cmocka_unit_test(test_servers),
        cmocka_unit_test(test_closed_while_it_connects),
        cmocka_unit_test(test_exit_waits_for_what_connects),
    };
    const int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
