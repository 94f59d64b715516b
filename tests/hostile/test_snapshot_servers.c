/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Servers of snapshots that break the protocol. The test process is the hostile server. The
 * reader reports the fault and is left with nothing. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/snapshot_peer.h"

#include "common/clock.h"

#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct liar {
    struct ibx_listener *listener;
    const struct step *steps; /* what is sent on each connection, ended by an empty step */
    unsigned connections;
    pthread_t thread;
};

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

/* The reader refuses what this server sends, with these words. */
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
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_MANIFEST,
                                 .length = (uint32_t)strlen(manifest)};
    m.bytes.bytes = (const uint8_t *)manifest;
    m.bytes.length = strlen(manifest);
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
    assert_int_equal(ibx_snapshot_manifest_read(manifest, strlen(manifest), &m, NULL), 0);
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
    later[5] = 1; /* it starts with its second byte */
    memcpy(other, list, list_length);
    other[1] ^= 1;
    memcpy(beyond, region, region_length);
    beyond[1] = 7; /* a block that does not exist */
    refused((const struct step[]){{"\xff", 1}, end}, 1, -EPROTO, "is none of a snapshot's");
    refused((const struct step[]){{"\x40\x69\x62\x78\x73\x09\x00\x00", 8}, end}, 1,
            -EPROTONOSUPPORT, "speaks version 9 of the snapshot protocol");
    refused((const struct step[]){l, end}, 1, -EPROTO, "did not send its whole manifest");
    refused((const struct step[]){p, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){m, m, end}, 1, -EPROTO, "out of turn");
    refused((const struct step[]){m, l, end}, 1, -EPROTO, "did not send its whole manifest");
    refused((const struct step[]){m, p, p, end}, 1, -EPROTO, "");
    refused((const struct step[]){{later, manifest_length}, end}, 1, -EPROTO, "");
    refused((const struct step[]){m, p, {other, list_length}, end}, 1, -ESTALE, "another snapshot");
    refused((const struct step[]){m, p, l, {beyond, region_length}, end}, 1, -EPROTO, "block 7");
    refused((const struct step[]){m, p, l, l, end}, 1, -EPROTO, "");
    /* The device state holds data and is not exposed. */
    refused((const struct step[]){m, p, l, r, end}, 1, -EPROTO, "does not expose it");
    refused((const struct step[]){{"\x45\x01\0\0\0\0\0\0\0abc", 12}, end}, 1, -EPROTO,
            "message 69, which nobody expects");
    /* Sends nothing more and does not close. */
    refused((const struct step[]){m, end}, 1, -ETIMEDOUT, "in time");
}

#define LONG (2u << 20) /* 32 s at 64 KiB per second */

static bool stalls;

/* A correct server over a slow link: a long manifest arrives slowly, in twice the time within
 * which something must arrive; or, with `stalls`, most of it arrives at once and the rest never. */
static void *describe_slowly(void *argument)
{
    static char text[LONG];
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    struct ibx_listener *listener = argument;
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_MANIFEST, .length = sizeof(text)};
    struct ibx_event open;
    struct ibx_conn *conn;
    const size_t end = strlen(manifest) - 1; /* without the final bracket */
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
    /* All of the description was accepted; a part of what it describes is missing. */
    if (rc != -EPROTO || !strstr(error.message, "does not expose it"))
        fail_msg("%d %s", rc, error.message);
}

/* Even if the first part arrived quickly, the reader does not wait long for the rest: another
 * server may have it. */
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

/* The server pins and exposes piece by piece, which takes longer in total than one piece may
 * take. */
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
    answer_ms = 4000; /* a piece may be late on a busy machine */
    const int rc = read_from(expose_slowly);
    answer_ms = 1500;
    /* All of these were accepted; the device state is not among them. */
    if (rc != -EPROTO || !strstr(error.message, "does not expose it"))
        fail_msg("%d %s", rc, error.message);
}

static const struct step *before_the_end;
static sem_t ended;

/* Sends these steps, has this process told to end when they are in flight, and then sends
 * nothing. */
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

/* The same with a server that listens and makes no handshake. */
static void *take_and_end(void *argument)
{
    const int fd = accept(*(const int *)argument, NULL, NULL);
    kill(getpid(), SIGTERM);
    sem_wait(&ended);
    close(fd);
    return NULL;
}

/* The process that fills a cache is told to end while it waits for this server. */
static void told_to_end(void *(*server)(void *), void *argument, const char *uri)
{
    char folder[64]; /* two of these tests may run at once */
    struct ibx_options o = options();
    pthread_t thread;
    sigset_t term, before;
    snprintf(folder, sizeof(folder), "/dev/shm/ibx-snapshot-told-%d", (int)getpid());
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before); /* for the server's thread too */
    o.timeout_ms = 2 * patience;
    sem_init(&ended, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, server, argument), 0);
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
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* It is told while a slow server describes its snapshot. */
static void ends_when_told(const struct step *steps)
{
    const struct ibx_options o = options();
    struct ibx_listener *listener;
    before_the_end = steps;
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &listener, NULL), 0);
    told_to_end(say_and_end, listener, ibx_listener_uri(listener));
    ibx_listener_close(listener);
}

/* It is told while it connects. */
static void test_told_while_it_connects(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(at);
    char uri[64];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
    told_to_end(take_and_end, &fd, uri);
    close(fd);
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
    /* Everything is described, and the device state is not sent. */
    ends_when_told((const struct step[]){m, p, t, r0, r1, end});
    l.asked = true;
    l.regions = 0;
    const struct step a = {two, (size_t)ibx_snapshot_encode(&l, two, sizeof(two))};
    ends_when_told((const struct step[]){m, p, a, end});
}

/* A snapshot with hashes. Their index has 16 bytes here, all of them wrong. */
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
    refused((const struct step[]){h, p, l, end}, 1, -EPROTO, "did not send its whole index");
    refused((const struct step[]){h, p, i, l, end}, 1, -EBADMSG, "not those that were frozen");
}

/* A server that sends unrequested data. */
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

int main(void)
{
    patience = patience_ms(20000);
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_servers),
                                              cmocka_unit_test(test_an_index_that_lies),
                                              cmocka_unit_test(test_a_slow_link),
                                              cmocka_unit_test(test_regions_that_come_slowly),
                                              cmocka_unit_test(test_told_to_end),
                                              cmocka_unit_test(test_told_while_it_connects),
                                              cmocka_unit_test(test_a_server_that_stalls),
                                              cmocka_unit_test(test_who_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
