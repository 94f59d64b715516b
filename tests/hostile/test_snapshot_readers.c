/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Readers of snapshots that break the protocol, or take more than their share. The test process
 * is the hostile reader. The server closes its connection and serves all others as before. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/raw_handshake.h"
#include "tests/fixtures/snapshot_peer.h"

#include "common/clock.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define LARGE       ((size_t)16 << 20)
#define UNSENT_MOST (320u << 10) /* of a socket */
#define LOOKS       40u          /* in a row, at what does not change */
#define SOCKETS     256          /* descriptors that are looked at */

static struct ibx_snapshot_server *server;
static struct ibx_snapshot_manifest own;
static struct ibx_page_map own_map;
static uint8_t *memory;
static void *blocks[2];
static size_t ram = RAM; /* of its VM */
static bool vast; /* a VM of 1 TiB in which every other page holds data; its pages are never sent */

static const char *place = "tcp://127.0.0.1:0";
static char keys[] = "/tmp/ibx-snapshot-keys-XXXXXX";

static struct ibx_options with_key(const char *key)
{
    struct ibx_options o = options();
    snprintf(o.key_file, sizeof(o.key_file), "%s", keys);
    snprintf(o.name, sizeof(o.name), "%s", key);
    return o;
}

static void open_server_like(struct ibx_options o, unsigned most, bool touched)
{
    assert_int_equal(ibx_snapshot_manifest_read(manifest, strlen(manifest), &own, NULL), 0);
    own.ram[0].size = vast ? 1ull << 40 : ram;
    assert_int_equal(ibx_snapshot_map_init(&own, &own_map, NULL), 0);
    ibx_page_map_set(&own_map, 0, own_map.pages);
    if (vast)
        memset(own_map.bits, 0x55, own_map.pages / 8);
    memory = aligned_alloc(IBX_SNAPSHOT_PAGE, ram + IBX_SNAPSHOT_PAGE);
    memset(memory, 0x5a, ram + IBX_SNAPSHOT_PAGE);
    blocks[0] = memory;
    blocks[1] = memory + ram;
    const struct ibx_snapshot_server_config config = {.uri = place,
                                                      .options = &o,
                                                      .manifest = &own,
                                                      .map = &own_map,
                                                      .memory = blocks,
                                                      .connections_max = most,
                                                      .touched = touched,
                                                      .share = most > 0};
    assert_int_equal(ibx_snapshot_server_open(&config, &server, &error), 0);
}

static void open_server_for(struct ibx_options o, unsigned most)
{
    open_server_like(o, most, false);
}

static void close_server(void)
{
    ibx_snapshot_server_close(server);
    ibx_page_map_fini(&own_map);
    ibx_snapshot_manifest_fini(&own);
    free(memory);
}

/* A correct reader gets everything. */
static void read_all(void)
{
    const struct ibx_options o = options();
    struct ibx_snapshot_reader *reader;
    uint8_t got[RAM];
    assert_int_equal(
        ibx_snapshot_reader_open(ibx_snapshot_server_uri(server), &o, 2, &reader, &error), 0);
    assert_int_equal(ibx_snapshot_reader_fetch(reader, 0, 0, got, sizeof(got), &error), 0);
    assert_memory_equal(got, memory, sizeof(got));
    assert_int_equal(ibx_snapshot_reader_fetch(reader, 0, 1, got, sizeof(got), &error), -ERANGE);
    ibx_snapshot_reader_close(reader);
}

static struct ibx_conn *connect_raw(const char *purpose)
{
    struct ibx_options o = options();
    struct ibx_conn *conn = NULL;
    snprintf(o.purpose, sizeof(o.purpose), "%s", purpose);
    const int rc = ibx_connect(ibx_snapshot_server_uri(server), &o, &conn, &error);
    return rc ? NULL : conn;
}

static void closes_on(const struct step *steps)
{
    struct ibx_conn *conn = connect_raw(IBX_SNAPSHOT_PURPOSE);
    assert_non_null(conn);
    for (; steps->length; steps++)
        put(conn, steps->bytes, steps->length);
    const uint64_t began = ibx_now_ns();
    linger(conn);
    assert_true(ibx_now_ns() - began < patience * IBX_NS_PER_MS);
    ibx_close(conn);
}

static void test_readers(void **state)
{
    (void)state;
    static const char open_it[] = "\x40\x69\x62\x78\x73\x03\x00\x01";
    const struct step o = {open_it, 8}, end = {NULL, 0};
    struct ibx_options patient = options();
    patient.timeout_ms = 600000;
    open_server_for(patient, 0);
    /* A silent reader delays nobody, and is closed, however long this server waits for hosts. */
    struct ibx_conn *quiet = connect_raw(IBX_SNAPSHOT_PURPOSE);
    assert_non_null(quiet);
    read_all();
    closes_on((const struct step[]){{"\x01hello", 6}, end});
    closes_on((const struct step[]){{"\x40\x69\x62\x78\x73\x09\x00\x01", 8}, end});
    closes_on((const struct step[]){o, o, end});
    const uint64_t began = ibx_now_ns();
    linger(quiet);
    assert_true(ibx_now_ns() - began < patience * IBX_NS_PER_MS);
    ibx_close(quiet);
    assert_null(connect_raw(IBX_MIGRATE_PURPOSE));
    read_all();
    close_server();
}

/* A part of a page map may not fit into its messages: nothing is sent to it. */
static void test_a_reader_of_short_messages(void **state)
{
    static const char open_it[] = "\x40\x69\x62\x78\x73\x03\x00\x01";
    const uint64_t until = ibx_deadline_in_ms(patience);
    struct ibx_options o = options();
    struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
    struct ibx_conn *conn;
    char uri[64];
    int n = 0;
    (void)state;
    snprintf(uri, sizeof(uri), "shm:///tmp/ibx-short-%d", (int)getpid());
    place = uri;
    open_server_for(options(), 0);
    place = "tcp://127.0.0.1:0";
    read_all();
    o.message = 1024;
    assert_int_equal(ibx_connect(ibx_snapshot_server_uri(server), &o, &conn, &error), 0);
    put(conn, open_it, sizeof(open_it) - 1);
    while (n >= 0 && ibx_now_ns() < until)
        if (!(n = ibx_poll(conn, &event, 1)))
            ibx_wait(conn, 10);
        else if (n == 1)
            assert_int_equal(event.type, IBX_EVENT_CLOSED);
    assert_true(ibx_now_ns() < until);
    ibx_close(conn);
    close_server();
}

/* The reader learns the server's version from an OPEN of this version. It leaves, or is closed.
 * Further fields are ignored. */
static void test_a_reader_of_another_version(void **state)
{
    (void)state;
    static const char later[] = "\x40\x69\x62\x78\x73\x09\x00\x01news", more[] = "\xf0more";
    struct ibx_options patient = options();
    struct ibx_event event = {.type = IBX_EVENT_CLOSED};
    struct ibx_snapshot_any open;
    patient.timeout_ms = 600000;
    open_server_for(patient, 0);
    struct ibx_conn *conn = connect_raw(IBX_SNAPSHOT_PURPOSE);
    assert_non_null(conn);
    put(conn, later, sizeof(later) - 1);
    put(conn, more, sizeof(more) - 1);
    while (ibx_poll(conn, &event, 1) == 0)
        ibx_wait(conn, 100);
    assert_int_equal(event.type, IBX_EVENT_MESSAGE);
    assert_int_equal(ibx_snapshot_decode(event.data, event.length, &open, &error), 0);
    assert_int_equal(open.type, IBX_SNAPSHOT_OPEN);
    ibx_message_release(conn, &event);
    const uint64_t began = ibx_now_ns();
    linger(conn);
    assert_true(ibx_now_ns() - began < patience * IBX_NS_PER_MS);
    ibx_close(conn);
    read_all();
    close_server();
}

/* Sending a large VM's description takes long over a slow link. A reader that does not read it
 * does not delay the end of the server. */
static void test_a_reader_that_stands_still(void **state)
{
    (void)state;
    static const char open_it[] = "\x40\x69\x62\x78\x73\x03\x00\x01";
    struct ibx_options patient = options();
    struct ibx_event event = {.type = IBX_EVENT_CLOSED};
    patient.timeout_ms = 600000;
    vast = true;
    open_server_like(patient, 0, true);
    vast = false;
    struct ibx_conn *conn = connect_raw(IBX_SNAPSHOT_PURPOSE);
    assert_non_null(conn);
    put(conn, open_it, sizeof(open_it) - 1);
    for (int n = 0; !n; n = ibx_poll(conn, &event, 1))
        ibx_wait(conn, 100);
    assert_int_equal(event.type, IBX_EVENT_MESSAGE);
    const uint64_t began = ibx_now_ns();
    close_server();
    assert_true(ibx_now_ns() - began < patience * IBX_NS_PER_MS);
    ibx_message_release(conn, &event);
    ibx_close(conn);
}

/* A reader that has proven itself, and stops before its TRY, its ANSWER or its RESULT. */
static struct raw stop_before(enum raw_type type)
{
    const uint16_t port = (uint16_t)atoi(strrchr(ibx_snapshot_server_uri(server), ':') + 1);
    struct raw raw = raw_connect(port, "127.0.0.1", "127.0.0.1");
    static const uint8_t terms[] = {2, 0, 0, 16, 0, 64, 0, 0, 64, 0, 0, 0}; /* one socket for all */
    struct raw_frame frame;
    uint8_t payload[16];
    raw.purpose = IBX_SNAPSHOT_PURPOSE;
    raw_prove(&raw);
    if (type != TRY) {
        raw_send_frame(&raw, TRY, payload, raw_string(payload, "tcp"));
        raw_expect(&raw, OFFER, &frame);
    }
    if (type == RESULT) {
        raw_send_frame(&raw, ANSWER, terms, sizeof(terms));
        raw_expect(&raw, RESULT, &frame);
    }
    return raw;
}

/* Readers that stop while their connections are set up do not delay the end of the server. */
static void test_readers_that_stop_half_way(void **state)
{
    static const enum raw_type stops[] = {TRY, ANSWER, RESULT};
    const unsigned limit_ms = patience / 4;
    struct raw raws[3];
    struct ibx_options patient = options();
    (void)state;
    patient.timeout_ms = 3 * limit_ms;
    open_server_for(patient, 0);
    for (unsigned i = 0; i < 3; i++)
        raws[i] = stop_before(stops[i]);
    read_all();
    const uint64_t began = ibx_now_ns();
    close_server();
    assert_true(ibx_now_ns() - began < limit_ms * IBX_NS_PER_MS);
    for (unsigned i = 0; i < 3; i++)
        raw_close(&raws[i]);
}

/* Readers must ask for pages; these ask for wrong ones. */
static void test_who_asks(void **state)
{
    (void)state;
    static const char open_it[] = "\x40\x69\x62\x78\x73\x03\x00\x00";
    static const struct ibx_snapshot_any wrong[] = {
        {.type = IBX_SNAPSHOT_ASK, .at = RAM - 1, .length = 2}, /* in two blocks */
        {.type = IBX_SNAPSHOT_ASK, .at = RAM + IBX_SNAPSHOT_PAGE, .length = 1},
        {.type = IBX_SNAPSHOT_ASK, .at = UINT64_MAX, .length = 4096},
        {.type = IBX_SNAPSHOT_LIST},
    };
    const struct step end = {NULL, 0};
    open_server_like(options(), 100, true);
    read_all();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint8_t bytes[64];
        const ssize_t n = ibx_snapshot_encode(&wrong[i], bytes, sizeof(bytes));
        assert_true(n > 0);
        closes_on((const struct step[]){{open_it, 8}, {bytes, (size_t)n}, end});
    }
    /* More requests than allowed: they are answered in order, or the connection ends. Other
     * readers do not notice. */
    const struct ibx_snapshot_any most = {.type = IBX_SNAPSHOT_ASK, .length = RAM};
    uint8_t bytes[64];
    const size_t n = (size_t)ibx_snapshot_encode(&most, bytes, sizeof(bytes));
    struct ibx_conn *greedy = connect_raw(IBX_SNAPSHOT_PURPOSE);
    assert_non_null(greedy);
    struct iovec iov[] = {{bytes, n}};
    put(greedy, open_it, 8);
    for (unsigned i = 0; i < 3 * IBX_SNAPSHOT_ASKS && ibx_send(greedy, iov, 1, 0, 0) == 0; i++)
        ;
    read_all();
    ibx_close(greedy);
    read_all();
    close_server();
}

/* The sum of what `look` returns for each socket of this process that is the server's, or if `far`
 * its reader's. */
static unsigned of_sockets(bool far, unsigned (*look)(int fd))
{
    const int port = atoi(strrchr(ibx_snapshot_server_uri(server), ':') + 1);
    unsigned all = 0;
    for (int fd = 0; fd < SOCKETS; fd++) {
        struct sockaddr_in end[2] = {{0}};
        socklen_t length[2] = {sizeof(end[0]), sizeof(end[1])};
        if (!getsockname(fd, (struct sockaddr *)&end[0], &length[0]) &&
            !getpeername(fd, (struct sockaddr *)&end[1], &length[1]) &&
            end[far].sin_family == AF_INET && ntohs(end[far].sin_port) == port)
            all += look(fd);
    }
    return all;
}

/* How many bytes the kernel has taken and not sent. */
static unsigned unsent_of(int fd)
{
    int bytes = 0;
    assert_int_equal(ioctl(fd, SIOCOUTQNSD, &bytes), 0);
    return (unsigned)bytes;
}

static unsigned take_few(int fd)
{
    const int least = 1;
    return !setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof(least));
}

/* What the server exposes of its first block. */
static struct ibx_remote exposed(struct ibx_conn *conn)
{
    struct ibx_remote remote = {0};
    const uint64_t until = ibx_deadline_in_ms(patience);
    while (!remote.length) {
        struct ibx_event event;
        struct ibx_migrate_any message;
        const int n = ibx_poll(conn, &event, 1);
        assert_true(n >= 0 && ibx_now_ns() < until);
        if (!n) {
            ibx_wait(conn, 100);
            continue;
        }
        assert_int_equal(event.type, IBX_EVENT_MESSAGE);
        if (!ibx_migrate_decode(event.data, event.length, &message, NULL)) {
            assert_int_equal(message.type, IBX_MIGRATE_REGION);
            remote = message.is.region.remote;
        }
        ibx_message_release(conn, &event);
    }
    return remote;
}

/* Of a reader that asks for more than the kernel would like to hold, and takes none of it, it holds
 * little. */
static void test_a_reader_that_reads_nothing(void **state)
{
    static const char open_it[] = "\x40\x69\x62\x78\x73\x03\x00\x00";
    struct ibx_mr *mr;
    (void)state;
    ram = LARGE;
    open_server_for(options(), 0);
    ram = RAM;
    struct ibx_options alone = options();
    struct ibx_conn *conn = NULL;
    snprintf(alone.purpose, sizeof(alone.purpose), "%s", IBX_SNAPSHOT_PURPOSE);
    alone.messages_only = true; /* one socket for all */
    assert_int_equal(ibx_connect(ibx_snapshot_server_uri(server), &alone, &conn, &error), 0);
    assert_int_equal(of_sockets(true, take_few), 1);
    put(conn, open_it, 8);
    const struct ibx_remote remote = exposed(conn);
    assert_int_equal(ibx_mr_allocate(conn, LARGE, 0, &mr, NULL), 0);
    assert_int_equal(ibx_read(conn, mr, ibx_mr_address(mr), &remote, 0, LARGE, 1, 0), 0);
    const uint64_t until = ibx_deadline_in_ms(patience);
    for (unsigned now = 0, before, same = 0; same < LOOKS;) {
        struct ibx_event event;
        before = now;
        now = of_sockets(false, unsent_of);
        same = now && now == before ? same + 1 : 0;
        if (!now && ibx_poll(conn, &event, 1)) {             /* its requests are not sent yet */
            assert_int_equal(event.type, IBX_EVENT_MESSAGE); /* of the other block */
            ibx_message_release(conn, &event);
        }
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 5);
    }
    assert_in_range(of_sockets(false, unsent_of), 1, UNSENT_MOST);
    ibx_close(conn);
    close_server();
}

/* Returns NULL if the reader was refused. */
static struct ibx_snapshot_reader *reader_of(const char *key)
{
    const struct ibx_options o = with_key(key);
    struct ibx_snapshot_reader *reader = NULL;
    ibx_snapshot_reader_open(ibx_snapshot_server_uri(server), &o, 1, &reader, &error);
    return reader;
}

static void reads(struct ibx_snapshot_reader *reader)
{
    uint8_t got[RAM];
    assert_non_null(reader);
    assert_int_equal(ibx_snapshot_reader_fetch(reader, 0, 0, got, sizeof(got), &error), 0);
    assert_memory_equal(got, memory, sizeof(got));
}

/* The first reader cannot keep others out. Memory that was registered for one reader serves all. */
static void test_one_name_leaves_room(void **state)
{
    struct ibx_snapshot_server_stats stats;
    struct ibx_snapshot_reader *first, *second, *other;
    (void)state;
    const int fd = mkstemp(keys);
    assert_true(fd >= 0 && dprintf(fd, "a:%032d\nb:%032d\n", 1, 2) > 0);
    close(fd);
    open_server_for(with_key(""), 4);
    first = reader_of("a");
    reads(first);
    second = reader_of("a");
    reads(second);
    assert_null(reader_of("a"));
    other = reader_of("b");
    reads(other);
    ibx_snapshot_reader_close(first);
    do { /* until the server has noticed */
        ibx_snapshot_server_stats(server, &stats);
        poll(NULL, 0, 1);
    } while (stats.connections > 2);
    reads(second);
    reads(other);
    first = reader_of("a");
    reads(first);
    ibx_snapshot_server_stats(server, &stats);
    assert_int_equal(stats.pinned, 2);
    ibx_snapshot_reader_close(first);
    ibx_snapshot_reader_close(second);
    ibx_snapshot_reader_close(other);
    close_server();
    unlink(keys);
}

int main(void)
{
    patience = patience_ms(20000);
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_readers),
                                              cmocka_unit_test(test_a_reader_of_short_messages),
                                              cmocka_unit_test(test_a_reader_of_another_version),
                                              cmocka_unit_test(test_a_reader_that_stands_still),
                                              cmocka_unit_test(test_a_reader_that_reads_nothing),
                                              cmocka_unit_test(test_readers_that_stop_half_way),
                                              cmocka_unit_test(test_who_asks),
                                              cmocka_unit_test(test_one_name_leaves_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
