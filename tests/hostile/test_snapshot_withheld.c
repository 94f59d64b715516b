/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A snapshot's server that sends every page but one, and continues with the others as long as
 * anybody wants some. The test process is both servers of a cache: this one, and one that sends
 * all pages. A reader that waits for the missing page gets it from the other server.
 *
 * The same with a server that could send all pages by multicast, but has its group send what
 * nobody wants.
 *
 * Also: the process that fills a cache is told to end while it computes the digest of the pages
 * that have arrived, which may be many GiB. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/snapshot_peer.h"

#include "common/clock.h"
#include "migrate/snapshot/cache.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES    4096u
#define WITHHELD 2048u /* the page that is not sent */
#define AROUND   4u    /* how many pages arrive together in a cache that is filled on demand */
#define TOUCH_MS 40
#define TOUCHES  900u /* twice as long as the cache waits for the page on an idle host, and more */
/* timeout_ms of the cache on an idle host; all pages but one arrive within it */
#define LIMIT_MS 300u

static const char large[] =
    "{\"format\":\"ibx snapshot\",\"version\":3,\"id\":\"00112233445566778899aabbccddeeff\","
    "\"complete\":true,\"ran\":false,\"qemu\":[7,2,17],\"machine\":\"q35\",\"uuid\":\"u\","
    "\"name\":\"web\",\"page_size\":4096,\"ram\":[{\"id\":\"a\",\"size\":16777216}],"
    "\"state_bytes\":100,\"hashes\":false,\"digest\":"
    "\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\",\"description\":{}}";

/* ------------------------------------------------------------ the servers */

struct server {
    struct ibx_listener *listener;
    pthread_t thread;
    bool withholds;
};

static atomic_bool over;

static void send_all(struct ibx_conn *conn, const struct ibx_snapshot_any *m)
{
    ibx_snapshot_send(conn, m, ibx_deadline_in_ms(patience), NULL);
}

/* All pages of both blocks hold data, and must be asked for. */
static void describe(struct ibx_conn *conn)
{
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_MANIFEST, .length = sizeof(large) - 1};
    struct ibx_snapshot_manifest text;
    struct ibx_page_map all;
    uint64_t from = 0;
    uint8_t bytes[1024];
    size_t n;
    m.bytes.bytes = (const uint8_t *)large;
    m.bytes.length = sizeof(large) - 1;
    send_all(conn, &m);
    ibx_snapshot_manifest_read(large, sizeof(large) - 1, &text, NULL);
    ibx_snapshot_map_init(&text, &all, NULL);
    ibx_page_map_set(&all, 0, all.pages);
    while ((n = ibx_page_map_encode(&all, &from, bytes, sizeof(bytes)))) {
        m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_MAP};
        m.bytes.bytes = bytes;
        m.bytes.length = n;
        send_all(conn, &m);
    }
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_LIST, .asked = true};
    memcpy(m.id, text.id, sizeof(m.id));
    send_all(conn, &m);
    ibx_page_map_fini(&all);
    ibx_snapshot_manifest_fini(&text);
}

/* What was asked for, and how much of it was sent. */
struct asks {
    struct ibx_snapshot_any all[IBX_SNAPSHOT_ASKS];
    unsigned first, count;
    uint32_t sent;
};

static bool is_withheld(const struct server *server, const struct ibx_snapshot_any *ask)
{
    const uint64_t withheld = WITHHELD * (uint64_t)IBX_SNAPSHOT_PAGE;
    return server->withholds && ask->at <= withheld && ask->at + ask->length > withheld;
}

/* Sends the next half of a page; each page has its number in its first bytes. Returns false if
 * there is no credit or nothing to send. */
static bool send_part(struct ibx_conn *conn, struct asks *asks)
{
    const uint32_t part = IBX_SNAPSHOT_PAGE / 2;
    uint8_t bytes[IBX_SNAPSHOT_PAGE / 2] = {0}, message[IBX_SNAPSHOT_PAGE];
    const struct ibx_snapshot_any *ask = &asks->all[asks->first];
    if (!asks->count)
        return false;
    struct ibx_snapshot_any m = {
        .type = IBX_SNAPSHOT_PAGES, .number = ask->number, .offset = asks->sent};
    const uint64_t number = (ask->at + asks->sent) / IBX_SNAPSHOT_PAGE;
    if (asks->sent % IBX_SNAPSHOT_PAGE == 0)
        memcpy(bytes, &number, sizeof(number));
    m.bytes.bytes = bytes;
    m.bytes.length = part;
    const struct iovec iov = {message, (size_t)ibx_snapshot_encode(&m, message, sizeof(message))};
    if (ibx_send(conn, &iov, 1, 0, 0))
        return false;
    asks->sent += part;
    if (asks->sent == ask->length) {
        asks->first = (asks->first + 1) % IBX_SNAPSHOT_ASKS;
        asks->count--;
        asks->sent = 0;
    }
    return true;
}

static void take_message(const struct server *server, struct ibx_conn *conn,
                         const struct ibx_event *event, struct asks *asks)
{
    struct ibx_snapshot_any ask;
    const bool good = !ibx_snapshot_decode(event->data, event->length, &ask, NULL);
    ibx_message_release(conn, event);
    if (good && ask.type == IBX_SNAPSHOT_OPEN)
        describe(conn);
    else if (good && ask.type == IBX_SNAPSHOT_ASK && !is_withheld(server, &ask))
        asks->all[(asks->first + asks->count++) % IBX_SNAPSHOT_ASKS] = ask;
}

static void serve_one(const struct server *server, struct ibx_conn *conn)
{
    struct ibx_event event;
    struct asks asks = {.count = 0};
    bool closed = false;
    while (!closed && !over) {
        const int n = ibx_poll(conn, &event, 1);
        closed = n < 0 || (n && event.type == IBX_EVENT_CLOSED);
        if (n == 1 && event.type == IBX_EVENT_MESSAGE)
            take_message(server, conn, &event, &asks);
        if (!closed && !send_part(conn, &asks) && !n)
            ibx_wait(conn, 20);
    }
}

static void *serve(void *argument)
{
    const struct server *server = argument;
    while (!over) {
        struct ibx_conn *conn;
        if (ibx_accept_wait(server->listener, 20, &conn, NULL))
            continue;
        if (!ibx_establish(conn, NULL))
            serve_one(server, conn);
        ibx_close(conn);
    }
    return NULL;
}

static void begin(struct server *server, bool withholds)
{
    const struct ibx_options o = options();
    server->withholds = withholds;
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &o, &server->listener, NULL), 0);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void end(struct server *server)
{
    if (!server->listener)
        return;
    pthread_join(server->thread, NULL);
    ibx_listener_close(server->listener);
    server->listener = NULL;
}

/* ------------------------------------------------------------ the cache */

static struct snapshot_cache cache;
static atomic_bool withheld_came;
static uint64_t withheld_number;

static uint64_t touch(unsigned page)
{
    const volatile uint64_t *at =
        (const uint64_t *)((uint8_t *)cache.memory[0] + (size_t)page * IBX_SNAPSHOT_PAGE);
    return *at;
}

static void *wait_for_it(void *argument)
{
    (void)argument;
    withheld_number = touch(WITHHELD);
    withheld_came = true;
    return NULL;
}

static atomic_uint came, wrong; /* of the other pages */

/* In an order in which the cache does not fetch ahead. */
static void *want_others(void *argument)
{
    unsigned windows[PAGES / AROUND], count = 0;
    uint32_t number = 1;
    (void)argument;
    /* each is inserted at a random place among those before */
    for (unsigned i = 0; i < PAGES / AROUND; i++) {
        number = number * 1664525u + 1013904223u;
        const unsigned at = (number >> 16) % (count + 1);
        windows[count++] = windows[at];
        windows[at] = i;
    }
    for (unsigned i = 0; came < TOUCHES && !withheld_came; i++) {
        const unsigned page = windows[i] * AROUND;
        if (windows[i] == WITHHELD / AROUND)
            continue;
        wrong += touch(page) != page;
        came++;
        poll(NULL, 0, TOUCH_MS);
    }
    return NULL;
}

static char said[4096];

static void note(void *context, const char *line)
{
    const size_t n = strlen(said);
    (void)context;
    snprintf(said + n, sizeof(said) - n, "%s\n", line);
}

static struct server liar, honest;
static struct ibx_snapshot_folder folder;
static struct ibx_options limited;
static const char *uris[2];

static char path[64];

/* Fills a cache from both servers. */
static void fill(bool withholds, unsigned timeout_ms)
{
    static const struct ibx_snapshot_multicast_options none;
    over = false;
    said[0] = 0;
    limited = options();
    limited.timeout_ms = timeout_ms;
    begin(&liar, withholds);
    begin(&honest, false);
    uris[0] = ibx_listener_uri(liar.listener);
    uris[1] = ibx_listener_uri(honest.listener);
    memset(&folder, 0, sizeof(folder));
    ibx_snapshot_cache_init(&cache);
    cache.folder = &folder;
    cache.options = &limited;
    cache.uris = uris;
    cache.uri_count = 2;
    cache.links = 1;
    cache.multicast = &none;
    if (ibx_snapshot_cache_begin(&cache, path, &error) ||
        ibx_snapshot_cache_fill(&cache, false, 0, &error))
        fail_msg("%s", error.message);
}

static void step(void)
{
    struct pollfd fd = {ibx_snapshot_cache_fd(&cache), POLLIN, 0};
    poll(&fd, 1, 20);
    if (ibx_snapshot_cache_step(&cache, note, NULL, &error))
        fail_msg("%s", error.message);
}

/* Runs also after a failed test, so that the next test or run starts clean. */
static int end_all(void **state)
{
    (void)state;
    over = true;
    ibx_snapshot_cache_end(&cache);
    end(&liar);
    end(&honest);
    ibx_snapshot_folder_remove(&folder);
    ibx_snapshot_manifest_fini(&folder.manifest);
    return 0;
}

static void test_one_page_of_all(void **state)
{
    pthread_t waits, wants;
    (void)state;
    fill(true, patience_ms(LIMIT_MS));
    assert_int_equal(pthread_create(&waits, NULL, wait_for_it, NULL), 0);
    assert_int_equal(pthread_create(&wants, NULL, want_others, NULL), 0);
    while (!withheld_came && came < TOUCHES)
        step();
    if (!withheld_came)
        fail_msg("the page did not come, though %u others did: \"%s\"", came, said);
    pthread_join(waits, NULL);
    pthread_join(wants, NULL);
    assert_int_equal(withheld_number, WITHHELD);
    assert_int_equal(wrong, 0);
    assert_true(came > LIMIT_MS / TOUCH_MS); /* without a pause */
    assert_non_null(strstr(said, "it does not send a page that is waited for"));
}

/* ------------------------------------------------------------ by multicast */

static char group[1]; /* a group that gives no page, and does not end */

bool __wrap_ibx_snapshot_feed_over(struct snapshot_feed *feed);
bool __wrap_ibx_snapshot_feed_over(struct snapshot_feed *feed)
{
    assert_ptr_equal(feed, group);
    return false;
}

bool __wrap_ibx_snapshot_feed_says(struct snapshot_feed *feed, char line[IBX_ERROR_MAX]);
bool __wrap_ibx_snapshot_feed_says(struct snapshot_feed *feed, char line[IBX_ERROR_MAX])
{
    (void)feed, (void)line;
    return false;
}

void __wrap_ibx_snapshot_feed_close(struct snapshot_feed *feed,
                                    struct ibx_multicast_receiver_stats *sum);
void __wrap_ibx_snapshot_feed_close(struct snapshot_feed *feed,
                                    struct ibx_multicast_receiver_stats *sum)
{
    (void)feed, (void)sum;
}

/* Nobody waits for a page, and the background leaves the pages to the group. */
static void test_a_group_without_pages(void **state)
{
    const uint64_t until = ibx_deadline_in_ms(patience);
    (void)state;
    fill(false, 5 * LIMIT_MS); /* all pages must arrive in one go */
    cache.background = true;
    cache.feed = (struct snapshot_feed *)(void *)group;
    cache.feeds = true;
    while (ibx_fault_state(cache.engine) != IBX_FAULT_COMPLETE) {
        step();
        if (ibx_now_ns() >= until)
            fail_msg("pages do not come, neither by multicast nor otherwise: \"%s\"", said);
    }
    assert_non_null(strstr(said, "no page has come by multicast"));
    assert_int_equal(touch(WITHHELD), WITHHELD);
}

/* ------------------------------------------------------------ told to end */

#define BEGUN "a digest that takes long"

static pid_t filler;
static int from_filler = -1; /* reads what the filling process says, and BEGUN */
static bool takes_long;      /* computing the digest takes long */

static void say(void *context, const char *line)
{
    /* in one write(2), because the other thread may end this process */
    char whole[IBX_ERROR_MAX + 1];
    const int n = snprintf(whole, sizeof(whole), "%s\n", line);
    (void)context;
    assert_int_equal(write(from_filler, whole, (size_t)n), n);
}

int __real_ibx_snapshot_digest(const struct ibx_snapshot_folder *of,
                               const struct ibx_page_map *pages,
                               uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
int __wrap_ibx_snapshot_digest(const struct ibx_snapshot_folder *of,
                               const struct ibx_page_map *pages,
                               uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
int __wrap_ibx_snapshot_digest(const struct ibx_snapshot_folder *of,
                               const struct ibx_page_map *pages,
                               uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    if (takes_long)
        say(NULL, BEGUN);
    while (takes_long)
        pause();
    return __real_ibx_snapshot_digest(of, pages, digest, err);
}

/* The process that fills the cache from the server with this URI. */
static void fill_from(int uri, int says)
{
    static char source[300];
    struct ibx_serve_options o = {
        .folder = path, .caches = {source}, .cache_count = 1, .links = 1, .notify = say};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    from_filler = says;
    takes_long = true;
    o.transport = options();
    if (read(uri, source, sizeof(source) - 1) > 0 && ibx_snapshot_serve(&o, &error))
        say(NULL, error.message);
    _exit(2);
}

/* Waits until the process has said that, or has ended. */
static void hear(const char *words)
{
    const uint64_t until = ibx_deadline_in_ms(patience);
    struct pollfd fd = {from_filler, POLLIN, 0};
    size_t n = strlen(said);
    while (!words || !strstr(said, words)) {
        if (poll(&fd, 1, 20) > 0) {
            const ssize_t got = read(from_filler, said + n, sizeof(said) - 1 - n);
            if (got <= 0)
                return;
            n += (size_t)got;
            said[n] = '\0';
        } else if (ibx_now_ns() >= until) {
            fail_msg("it neither ends nor says \"%s\", but \"%s\"", words ? words : "", said);
        }
    }
}

static int end_filler(void **state)
{
    char command[80];
    (void)state;
    over = true;
    end(&honest);
    close(from_filler);
    if (filler > 0) {
        kill(filler, SIGKILL);
        waitpid(filler, NULL, 0);
    }
    snprintf(command, sizeof(command), "rm -rf %s", path);
    return system(command);
}

/* It ends at once, and does not claim that pages are missing. */
static void test_told_to_end_while_it_checks(void **state)
{
    int uri[2], says[2], status = -1;
    (void)state;
    said[0] = '\0';
    assert_int_equal(pipe(uri) | pipe(says), 0);
    filler = fork(); /* while this process has no other threads */
    if (!filler)
        fill_from(uri[0], says[1]);
    close(uri[0]);
    close(says[1]);
    from_filler = says[0];
    over = false;
    begin(&honest, false);
    dprintf(uri[1], "%s", ibx_listener_uri(honest.listener));
    close(uri[1]);
    hear(BEGUN);
    text_has(said, BEGUN);
    assert_int_equal(kill(filler, SIGTERM), 0);
    hear(NULL);
    assert_int_equal(waitpid(filler, &status, 0), filler);
    filler = 0;
    assert_int_equal(status, 0);
    text_has(said, "the cache has all pages, ");
}

int main(void)
{
    patience = patience_ms(20000);
    snprintf(path, sizeof(path), "/dev/shm/ibx-snapshot-withheld-%d", (int)getpid());
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_told_to_end_while_it_checks, end_filler),
        cmocka_unit_test_teardown(test_one_page_of_all, end_all),
        cmocka_unit_test_teardown(test_a_group_without_pages, end_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
