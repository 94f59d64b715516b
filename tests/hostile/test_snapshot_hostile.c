/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Snapshots' servers and readers that break the protocol. The test process is the one that lies; a
 * reader names what is wrong and is left with nothing, a server serves all others as before.
 */
#include "migrate/snapshot/snapshot.h"
#include "tests/scenes/patience.h"
#include "tests/scenes/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RAM (8 * IBX_SNAPSHOT_PAGE)

static unsigned answer_ms = 1500; /* that a reader waits for an answer */
static unsigned patience;         /* ms, for what is to come: main() sets it */
static struct ibx_error error;
static const char manifest[] =
    "{\"format\":\"ibx snapshot\",\"version\":3,\"id\":\"00112233445566778899aabbccddeeff\","
    "\"complete\":true,\"ran\":false,\"qemu\":[7,2,17],\"machine\":\"q35\",\"uuid\":\"u\","
    "\"name\":\"web\",\"page_size\":4096,\"ram\":[{\"id\":\"a\",\"size\":32768}],"
    "\"state_bytes\":100,\"hashes\":false,\"digest\":"
    "\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\",\"description\":{}}";

static struct ibx_options options(void)
{
    struct ibx_options o;
    ibx_options_init(&o);
    o.message = IBX_MIGRATE_MESSAGE;
    o.timeout_ms = answer_ms;
    snprintf(o.purpose, sizeof(o.purpose), IBX_SNAPSHOT_PURPOSE);
    return o;
}

/* ---------------------------------------------------------------- a server that lies */

struct step {
    const void *bytes;
    size_t length;
};

struct liar {
    struct ibx_listener *listener;
    const struct step *steps; /* to each connection; up to an empty one */
    unsigned connections;
    pthread_t thread;
};

static void put(struct ibx_conn *conn, const void *bytes, size_t length)
{
    uint8_t copy[4096];
    memcpy(copy, bytes, length);
    ibx_snapshot_send_bytes(conn, copy, length, NULL, ibx_deadline_in_ms(patience), NULL);
}

/* Until then, or until the reader has closed. */
static void linger_until(struct ibx_conn *conn, uint64_t until)
{
    struct ibx_event event;
    int n = 0;
    while (n >= 0 && ibx_now_ns() < until) {
        n = ibx_poll(conn, &event, 1);
        if (n == 1 && event.type == IBX_EVENT_CLOSED)
            return;
        if (n == 1 && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(conn, &event);
        if (!n)
            ibx_wait(conn, ibx_ms_until(until) < 100 ? ibx_ms_until(until) : 100);
    }
}

static void linger(struct ibx_conn *conn)
{
    linger_until(conn, ibx_deadline_in_ms(patience));
}

static void *lie(void *argument)
{
    struct liar *liar = argument;
    for (unsigned i = 0; i < liar->connections; i++) {
        struct ibx_conn *conn;
        if (ibx_accept_wait(liar->listener, (int)patience, &conn, NULL))
            return NULL;
        if (!ibx_establish(conn, NULL)) {
            for (const struct step *s = liar->steps; s->length; s++)
                put(conn, s->bytes, s->length);
            linger(conn);
        }
        ibx_close(conn);
    }
    return NULL;
}

/* The reader refuses what this server says, with these words. */
static void refused(const struct step *steps, unsigned links, int code, const char *words)
{
    struct liar liar = {.steps = steps, .connections = links};
    const struct ibx_options o = options();
    struct ibx_snapshot_reader *reader = NULL;
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &liar.listener, NULL), 0);
    assert_int_equal(pthread_create(&liar.thread, NULL, lie, &liar), 0);
    memset(&error, 0, sizeof(error));
    const int rc =
        ibx_snapshot_reader_open(ibx_listener_uri(liar.listener), &o, links, &reader, &error);
    pthread_join(liar.thread, NULL);
    ibx_listener_close(liar.listener);
    if (rc != code || !strstr(error.message, words))
        fail_msg("%d \"%s\" does not say \"%s\"", rc, error.message, words);
    assert_null(reader);
}

static uint8_t whole_manifest[1024], map[64], list[32], region[256];
static size_t manifest_length, list_length, region_length;

static void make_messages(void)
{
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_MANIFEST, .length = sizeof(manifest) - 1};
    m.bytes.bytes = (const uint8_t *)manifest;
    m.bytes.length = sizeof(manifest) - 1;
    manifest_length = (size_t)ibx_snapshot_encode(&m, whole_manifest, sizeof(whole_manifest));
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_LIST, .regions = 1};
    for (unsigned i = 0; i < sizeof(m.id); i++)
        m.id[i] = (uint8_t)(i * 0x11);
    list_length = (size_t)ibx_snapshot_encode(&m, list, sizeof(list));
    struct ibx_migrate_any r = {.type = IBX_MIGRATE_REGION};
    r.is.region.length = r.is.region.remote.length = RAM;
    region_length = (size_t)ibx_migrate_encode(&r, region, sizeof(region));
}

/* One segment: all 9 pages of both blocks hold data. */
static size_t make_map(void)
{
    struct ibx_snapshot_manifest m;
    struct ibx_page_map all;
    uint64_t from = 0;
    uint8_t bytes[9000];
    assert_int_equal(ibx_snapshot_manifest_read(manifest, sizeof(manifest) - 1, &m, NULL), 0);
    assert_int_equal(ibx_snapshot_map_init(&m, &all, NULL), 0);
    ibx_page_map_set(&all, 0, all.pages);
    const size_t n = ibx_page_map_encode(&all, &from, bytes, sizeof(bytes));
    assert_true(n && n < sizeof(map));
    map[0] = IBX_SNAPSHOT_MAP;
    memcpy(map + 1, bytes, n);
    ibx_page_map_fini(&all);
    ibx_snapshot_manifest_fini(&m);
    return n + 1;
}

static void test_servers(void **state)
{
    (void)state;
    make_messages();
    const struct step m = {whole_manifest, manifest_length}, p = {map, make_map()},
                      l = {list, list_length}, r = {region, region_length}, end = {NULL, 0};
    uint8_t later[1024], other[32], beyond[256];
    memcpy(later, whole_manifest, manifest_length);
    later[5] = 1; /* it begins with its second byte */
    memcpy(other, list, list_length);
    other[1] ^= 1;
    memcpy(beyond, region, region_length);
    beyond[1] = 7; /* a block that there is not */
    refused((const struct step[]){{"\xff", 1}, end}, 1, -EPROTO, "is none of a snapshot's");
    refused((const struct step[]){l, end}, 1, -EPROTO, "not to their end");
    refused((const struct step[]){p, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){m, m, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){m, l, end}, 1, -EPROTO, "not to their end");
    refused((const struct step[]){m, p, p, end}, 1, -EPROTO, "");
    refused((const struct step[]){{later, manifest_length}, end}, 1, -EPROTO, "");
    refused((const struct step[]){m, p, {other, list_length}, end}, 1, -ESTALE, "another snapshot");
    refused((const struct step[]){m, p, l, {beyond, region_length}, end}, 1, -EPROTO, "block 7");
    refused((const struct step[]){m, p, l, l, end}, 1, -EPROTO, "");
    /* What holds data is not exposed: the device state. */
    refused((const struct step[]){m, p, l, r, end}, 1, -EPROTO, "does not expose it");
    refused((const struct step[]){{"\x45\x01\0\0\0\0\0\0\0abc", 12}, end}, 1, -EPROTO,
            "message 69, which nobody expects");
    /* Says nothing more, and does not end. */
    refused((const struct step[]){m, end}, 1, -ETIMEDOUT, "in time");
}

#define LONG (2u << 20) /* 32 s at 64 KiB a second */

static bool stalls;

/* An honest server over a slow link: a long manifest comes little by little, in twice the time in
 * which something must come; or most of it comes at once, and the rest never (`stalls`). */
static void *describe_slowly(void *argument)
{
    static char text[LONG];
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    struct ibx_listener *listener = argument;
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_MANIFEST, .length = sizeof(text)};
    struct ibx_event open;
    struct ibx_conn *conn;
    const size_t end = sizeof(manifest) - 2; /* without the last bracket */
    memset(text, ' ', sizeof(text));
    memcpy(text, manifest, end);
    text[sizeof(text) - 1] = '}';
    if (ibx_accept_wait(listener, (int)patience, &conn, NULL))
        return NULL;
    const size_t piece = sizeof(bytes) / 2;
    int rc = ibx_establish(conn, NULL);
    while (!rc && !(rc = ibx_poll(conn, &open, 1)))
        ibx_wait(conn, 100);
    rc = rc == 1 && open.type == IBX_EVENT_MESSAGE ? 0 : -EPROTO;
    if (!rc)
        ibx_message_release(conn, &open);
    for (size_t at = 0; !rc && at < sizeof(text); at += piece) {
        if (at / piece % 4 == 3 && !stalls)
            linger_until(conn, ibx_deadline_in_ms(options().timeout_ms / 8));
        if (stalls && at + piece >= sizeof(text))
            break;
        m.offset = (uint32_t)at;
        m.bytes.bytes = (const uint8_t *)text + at;
        m.bytes.length = sizeof(text) - at < piece ? sizeof(text) - at : piece;
        rc = ibx_snapshot_send(conn, &m, ibx_deadline_in_ms(patience), NULL);
    }
    const struct step rest[] = {{map, make_map()}, {list, list_length}, {region, region_length}};
    for (size_t i = 0; !rc && i < 3 && !stalls; i++)
        put(conn, rest[i].bytes, rest[i].length);
    linger_until(conn, ibx_deadline_in_ms(3 * patience));
    ibx_close(conn);
    return NULL;
}

static int read_from(void *(*server)(void *))
{
    const struct ibx_options o = options();
    struct ibx_snapshot_reader *reader = NULL;
    struct ibx_listener *listener;
    pthread_t thread;
    make_messages();
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &listener, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, server, listener), 0);
    const int rc = ibx_snapshot_reader_open(ibx_listener_uri(listener), &o, 1, &reader, &error);
    pthread_join(thread, NULL);
    ibx_listener_close(listener);
    return rc;
}

static void test_a_slow_link(void **state)
{
    (void)state;
    const int rc = read_from(describe_slowly);
    /* All of its description was taken: a part of what it describes is missing. */
    if (rc != -EPROTO || !strstr(error.message, "does not expose it"))
        fail_msg("%d %s", rc, error.message);
}

/* What has come quickly is no reason to wait long for the rest: another server may have it. */
static void test_a_server_that_stalls(void **state)
{
    (void)state;
    const uint64_t began = ibx_now_ns();
    stalls = true;
    const int rc = read_from(describe_slowly);
    stalls = false;
    assert_int_equal(rc, -ETIMEDOUT);
    assert_true(ibx_now_ns() - began < patience_ms(30000) * IBX_NS_PER_MS);
}

#define REGIONS (RAM / IBX_SNAPSHOT_PAGE)

/* It pins what it exposes piece by piece: in all in more than the time in which one must come. */
static void *expose_slowly(void *argument)
{
    struct ibx_listener *listener = argument;
    const struct step steps[] = {{whole_manifest, manifest_length}, {map, make_map()}};
    struct ibx_snapshot_any l;
    struct ibx_conn *conn;
    uint8_t bytes[256];
    if (ibx_accept_wait(listener, (int)patience, &conn, NULL))
        return NULL;
    int rc = ibx_establish(conn, NULL);
    for (size_t i = 0; !rc && i < 2; i++)
        put(conn, steps[i].bytes, steps[i].length);
    ibx_snapshot_decode(list, list_length, &l, NULL);
    l.regions = REGIONS;
    const ssize_t length = ibx_snapshot_encode(&l, bytes, sizeof(bytes));
    put(conn, bytes, (size_t)length);
    for (unsigned i = 0; !rc && i < REGIONS; i++) {
        struct ibx_migrate_any r = {.type = IBX_MIGRATE_REGION};
        r.is.region.offset = i * IBX_SNAPSHOT_PAGE;
        r.is.region.length = r.is.region.remote.length = IBX_SNAPSHOT_PAGE;
        linger_until(conn, ibx_deadline_in_ms(answer_ms / 6));
        put(conn, bytes, (size_t)ibx_migrate_encode(&r, bytes, sizeof(bytes)));
    }
    linger(conn);
    ibx_close(conn);
    return NULL;
}

static void test_regions_that_come_slowly(void **state)
{
    (void)state;
    answer_ms = 4000; /* one may come late on a busy machine */
    const int rc = read_from(expose_slowly);
    answer_ms = 1500;
    /* All of them were taken: the device state is none of them. */
    if (rc != -EPROTO || !strstr(error.message, "does not expose it"))
        fail_msg("%d %s", rc, error.message);
}

static const struct step *before_the_end;
static sem_t ended;

/* Says what there is before the end, has this process told to end when that is on its way, and
 * answers nothing meanwhile. */
static void *say_and_end(void *argument)
{
    struct ibx_listener *listener = argument;
    struct ibx_conn *conn;
    if (ibx_accept_wait(listener, (int)patience, &conn, NULL))
        return NULL;
    if (!ibx_establish(conn, NULL))
        for (const struct step *s = before_the_end; s->length; s++)
            put(conn, s->bytes, s->length);
    kill(getpid(), SIGTERM);
    sem_wait(&ended);
    ibx_close(conn);
    return NULL;
}

/* Who fills a cache is told to end while a slow server describes its snapshot. */
static void ends_when_told(const struct step *steps)
{
    static char folder[] = "/dev/shm/ibx-snapshot-told";
    struct ibx_options o = options();
    struct ibx_listener *listener;
    pthread_t thread;
    sigset_t term, before;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before); /* of the server's thread, too */
    o.timeout_ms = 2 * patience;
    before_the_end = steps;
    sem_init(&ended, 0, 0);
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &listener, NULL), 0);
    const char *uri = ibx_listener_uri(listener);
    assert_int_equal(pthread_create(&thread, NULL, say_and_end, listener), 0);
    const struct ibx_serve_options serve = {
        .folder = folder, .caches = {uri}, .cache_count = 1, .transport = o};
    const uint64_t began = ibx_now_ns();
    const int rc = ibx_snapshot_serve(&serve, &error);
    sem_post(&ended);
    assert_true(ibx_now_ns() - began < patience * IBX_NS_PER_MS);
    if (rc)
        fail_msg("%d %s", rc, error.message);
    assert_int_equal(access(folder, F_OK), -1);
    pthread_join(thread, NULL);
    ibx_listener_close(listener);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void test_told_to_end(void **state)
{
    (void)state;
    make_messages();
    uint8_t exposes[256];
    struct ibx_migrate_any r = {.type = IBX_MIGRATE_REGION, .is.region.block = 1};
    struct ibx_snapshot_any l;
    uint8_t two[32];
    r.is.region.length = r.is.region.remote.length = IBX_SNAPSHOT_PAGE;
    const size_t length = (size_t)ibx_migrate_encode(&r, exposes, sizeof(exposes));
    ibx_snapshot_decode(list, list_length, &l, NULL);
    l.regions = 2;
    const size_t two_length = (size_t)ibx_snapshot_encode(&l, two, sizeof(two));
    const struct step m = {whole_manifest, manifest_length}, p = {map, make_map()},
                      t = {two, two_length}, r0 = {region, region_length}, r1 = {exposes, length},
                      end = {NULL, 0};
    ends_when_told((const struct step[]){m, end});
    ends_when_told((const struct step[]){m, p, t, end});
    /* All is described, and the device state does not come. */
    ends_when_told((const struct step[]){m, p, t, r0, r1, end});
    l.asked = true;
    l.regions = 0;
    const struct step a = {two, (size_t)ibx_snapshot_encode(&l, two, sizeof(two))};
    ends_when_told((const struct step[]){m, p, a, end});
}

/* Of a snapshot with hashes: their index has 16 bytes here, and none of it is right. */
static void test_an_index_that_lies(void **state)
{
    (void)state;
    uint8_t hashed[1024];
    char *at;
    make_messages();
    memcpy(hashed, whole_manifest, manifest_length);
    at = memmem(hashed, manifest_length, "\"hashes\":false", 14);
    memcpy(at, "\"hashes\":true ", 14);
    const struct step m = {whole_manifest, manifest_length}, h = {hashed, manifest_length},
                      p = {map, make_map()}, l = {list, list_length}, end = {NULL, 0},
                      i = {"\x46\0\0\0\0"
                           "0123456789abcdef",
                           21},
                      half = {"\x46\0\0\0\0"
                              "01234567",
                              13},
                      late = {"\x46\x01\0\0\0"
                              "123456789abcdef",
                              20},
                      more = {"\x46\x10\0\0\0"
                              "0123456789abcdef",
                              21},
                      long_one = {"\x46\0\0\0\0"
                                  "0123456789abcdefg",
                                  22};
    refused((const struct step[]){m, i, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){i, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){h, late, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){h, i, end}, 1, -EPROTO, "out of turn"); /* before the map */
    refused((const struct step[]){h, p, i, i, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){h, p, i, more, end}, 1, -EPROTO, "longer than its map");
    refused((const struct step[]){h, p, long_one, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){h, p, half, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){h, p, l, end}, 1, -EPROTO, "its index not to the end");
    refused((const struct step[]){h, p, i, l, end}, 1, -EBADMSG, "not those that were frozen");
}

/* ---------------------------------------------------------------- readers that lie */

static struct ibx_snapshot_server *server;
static struct ibx_snapshot_manifest own;
static struct ibx_page_map own_map;
static uint8_t *memory;
static void *blocks[2];
static bool vast; /* a VM of 1 TiB, of which every other page holds data; nobody gets its pages */

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
    assert_int_equal(ibx_snapshot_manifest_read(manifest, sizeof(manifest) - 1, &own, NULL), 0);
    own.ram[0].size = vast ? 1ull << 40 : own.ram[0].size;
    assert_int_equal(ibx_snapshot_map_init(&own, &own_map, NULL), 0);
    ibx_page_map_set(&own_map, 0, own_map.pages);
    if (vast)
        memset(own_map.bits, 0x55, own_map.pages / 8);
    memory = aligned_alloc(IBX_SNAPSHOT_PAGE, RAM + IBX_SNAPSHOT_PAGE);
    memset(memory, 0x5a, RAM + IBX_SNAPSHOT_PAGE);
    blocks[0] = memory;
    blocks[1] = memory + RAM;
    const struct ibx_snapshot_server_config config = {.uri = "tcp://127.0.0.1:0",
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

/* An honest one gets what there is. */
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
    /* A quiet one holds nobody up, and does not stay, however long this server waits for hosts. */
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

/* A large VM's description takes long over a slow link; one that takes none of it holds up no end.
 */
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

/* Readers who have to ask for pages, and ask for what is not theirs. */
static void test_who_asks(void **state)
{
    (void)state;
    static const char open_it[] = "\x40\x69\x62\x78\x73\x03\x00\x00";
    static const struct ibx_snapshot_any wrong[] = {
        {.type = IBX_SNAPSHOT_ASK, .at = RAM - 1, .length = 2}, /* of two blocks */
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
    /* More than may be open: they are answered as they come, or it ends; nobody else notices. */
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

/* A server that sends what nobody asked for. */
static void test_who_answers(void **state)
{
    (void)state;
    make_messages();
    uint8_t asked[32];
    const struct ibx_options o = options();
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_LIST, .asked = true};
    struct ibx_snapshot_reader *reader;
    uint8_t got[IBX_SNAPSHOT_PAGE];
    for (unsigned i = 0; i < sizeof(m.id); i++)
        m.id[i] = (uint8_t)(i * 0x11);
    const size_t length = (size_t)ibx_snapshot_encode(&m, asked, sizeof(asked));
    static const char later[] = "\x45\0\0\0\0\x01\0\0\0abc", other[] = "\x45\x05\0\0\0\0\0\0\0a";
    const struct step lies[] = {{later, 12}, {other, 10}, {"\x42x", 2}};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        const struct step steps[] = {{whole_manifest, manifest_length},
                                     {map, make_map()},
                                     {asked, length},
                                     lies[i],
                                     {NULL, 0}};
        struct liar liar = {.steps = steps, .connections = 1};
        assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &liar.listener, NULL), 0);
        assert_int_equal(pthread_create(&liar.thread, NULL, lie, &liar), 0);
        assert_int_equal(
            ibx_snapshot_reader_open(ibx_listener_uri(liar.listener), &o, 1, &reader, &error), 0);
        assert_int_equal(ibx_snapshot_reader_fetch(reader, 0, 0, got, sizeof(got), &error),
                         -EPROTO);
        assert_non_null(strstr(error.message, "nobody has asked for"));
        ibx_snapshot_reader_close(reader);
        pthread_join(liar.thread, NULL);
        ibx_listener_close(liar.listener);
    }
}

/* NULL: it was turned away. */
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

/* Who comes first cannot keep others out, and what one has registered serves all. */
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
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_servers),
                                              cmocka_unit_test(test_an_index_that_lies),
                                              cmocka_unit_test(test_a_slow_link),
                                              cmocka_unit_test(test_regions_that_come_slowly),
                                              cmocka_unit_test(test_told_to_end),
                                              cmocka_unit_test(test_a_server_that_stalls),
                                              cmocka_unit_test(test_readers),
                                              cmocka_unit_test(test_a_reader_that_stands_still),
                                              cmocka_unit_test(test_who_asks),
                                              cmocka_unit_test(test_who_answers),
                                              cmocka_unit_test(test_one_name_leaves_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
