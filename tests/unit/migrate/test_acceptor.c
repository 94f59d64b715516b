/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which connections a destination keeps. Peers that know a key and then stay silent keep out
 * neither each other nor the source of the running migration. */
#include "migrate/channel/channel.h"
#include "migrate/common/common.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/raw_handshake.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"
#include "common/log.h"
#include "transport/core/conn.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAMES       10u /* n0 to n9 */
#define CONNS_MAX   128u
#define PAGES       IBX_MIGRATE_LINKS_MAX
#define PATIENCE_MS patience_ms(60000)

static char key_file[] = "/tmp/ibx-acceptor-XXXXXX";
static struct ibx_acceptor *acceptor;
static struct ibx_conn *conns[CONNS_MAX];
static unsigned count;
static int fds;

static int make_keys(void **state)
{
    (void)state;
    int fd = mkstemp(key_file);
    for (unsigned i = 0; i < NAMES; i++)
        dprintf(fd, "n%u:%032u\n", i, i + 1);
    return fd < 0 || close(fd);
}

static int remove_keys(void **state)
{
    (void)state;
    return unlink(key_file);
}

static struct ibx_options options_of(unsigned name)
{
    struct ibx_options options;
    ibx_options_init(&options);
    snprintf(options.key_file, sizeof(options.key_file), "%s", key_file);
    snprintf(options.name, sizeof(options.name), "n%u", name);
    snprintf(options.purpose, sizeof(options.purpose), IBX_MIGRATE_PURPOSE);
    options.lanes = 1;
    options.message = IBX_MIGRATE_MESSAGE;
    options.timeout_ms = PATIENCE_MS;
    return options;
}

static void begin_with(const char *uri, unsigned timeout_ms)
{
    struct ibx_options options = options_of(0);
    options.name[0] = '\0';
    options.timeout_ms = timeout_ms;
    count = 0;
    fds = open_fds();
    assert_int_equal(ibx_acceptor_open(uri, &options, &acceptor, NULL), 0);
}

static void begin_at(const char *uri)
{
    begin_with(uri, PATIENCE_MS);
}

/* A silent peer keeps its place longer than the test runs. */
static void begin(void)
{
    begin_at("tcp://127.0.0.1:0");
    ibx_acceptor_first_within(acceptor, PATIENCE_MS);
}

static void end(void)
{
    while (count)
        ibx_close(conns[--count]);
    ibx_acceptor_close(acceptor);
    assert_int_equal(open_fds(), fds);
}

/* Connects a peer with this key, which then sends nothing. Returns whether it gets a place. */
static bool gets_place(unsigned name)
{
    struct ibx_options options = options_of(name);
    struct ibx_error err = {0};
    assert_true(count < CONNS_MAX);
    int rc = ibx_connect(ibx_acceptor_uri(acceptor), &options, &conns[count], &err);
    if (rc && rc != -ECONNRESET)
        fail_msg("%d: %s", rc, err.message);
    count += !rc;
    return !rc;
}

/* The latest connection sends JOIN and is taken. */
static struct ibx_connection_request take_join(void)
{
    struct ibx_migrate_any join = {.type = IBX_MIGRATE_JOIN, .is.join = {.id = {1}, .epoch = 1}};
    struct ibx_connection_request request;
    struct ibx_channel channel;
    ibx_channel_init(&channel, conns[count - 1]);
    assert_int_equal(ibx_channel_send(&channel, &join, NULL), 0);
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    while (!ibx_acceptor_take(acceptor, &request)) {
        struct pollfd wait = {.fd = ibx_acceptor_fd(acceptor), .events = POLLIN};
        assert_true(ibx_now_ns() < deadline);
        ibx_poll(conns[count - 1], NULL, 0); /* sending may need a poll */
        poll(&wait, 1, 10);
    }
    return request;
}

/* Sends a HELLO that announces a description of `length` bytes, and messages with these parts;
 * with `bad`, an invalid message after them. */
static void describes(uint32_t length, const char *const *parts, bool bad)
{
    struct ibx_migrate_hello hello = {.purpose = IBX_PURPOSE_CHECK,
                                      .machine = "pc",
                                      .uuid = "01234567-89ab-cdef-0123-456789abcdef",
                                      .block_count = 1,
                                      .blocks = {{"ram0", 1u << 30, 4096, 0}},
                                      .description_length = length};
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = &hello};
    struct ibx_channel channel;
    assert_true(gets_place(0));
    ibx_channel_init(&channel, conns[count - 1]);
    assert_int_equal(ibx_channel_send(&channel, &message, NULL), 0);
    for (; *parts; parts++) {
        message = (struct ibx_migrate_any){.type = IBX_MIGRATE_DESCRIPTION};
        message.is.description.bytes = (const uint8_t *)*parts;
        message.is.description.length = strlen(*parts);
        ibx_channel_send(&channel, &message, NULL);
    }
    message = (struct ibx_migrate_any){.type = IBX_MIGRATE_READY};
    if (bad)
        ibx_channel_send(&channel, &message, NULL);
}

/* bits of message types */
struct seen {
    unsigned types, awaited;
};

static int note_type(void *context, const struct ibx_migrate_any *message)
{
    struct seen *seen = context;
    seen->types |= 1u << message->type;
    return (seen->types & seen->awaited) == seen->awaited ? -EISCONN : 0;
}

/* Messages may arrive together. Waiting for one of them leaves the others for the next wait. */
static void messages_after_the_awaited_one_stay(NO_STATE)
{
    static const enum ibx_migrate_message types[] = {IBX_MIGRATE_READY, IBX_MIGRATE_LOADED,
                                                     IBX_MIGRATE_CONFIRMED};
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    struct seen seen = {.awaited = 1u << types[0]};
    struct ibx_channel server, client;
    begin();
    assert_true(gets_place(1));
    struct ibx_connection_request request = take_join();
    ibx_channel_init(&server, request.conn);
    ibx_channel_init(&client, conns[count - 1]);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        assert_int_equal(ibx_channel_send_plain(&server, types[i], NULL), 0);
    assert_int_equal(ibx_channel_take_until(&client, note_type, &seen, deadline, NULL), -EISCONN);
    assert_int_equal(seen.types, seen.awaited);
    seen.awaited |= 1u << types[1] | 1u << types[2];
    assert_int_equal(ibx_channel_take_until(&client, note_type, &seen, deadline, NULL), -EISCONN);
    ibx_close(request.conn);
    end();
}

struct greeter {
    struct ibx_options options;
    char uri[64];
    int rc;
};

static void *greeter_main(void *argument)
{
    struct greeter *g = argument;
    static const struct ibx_migrate_hello hello = {.purpose = IBX_PURPOSE_CHECK,
                                                   .machine = "pc",
                                                   .uuid = "01234567-89ab-cdef-0123-456789abcdef",
                                                   .block_count = 1,
                                                   .blocks = {{"ram0", 1u << 30, 4096, 0}}};
    struct ibx_migrate_answer answer;
    struct ibx_channel control;
    /* a peer that asks where the VM is gets no sentence */
    g->rc = ibx_migration_greet(g->uri, &g->options, &hello, &control, &answer, NULL);
    return NULL;
}

/* A bulk lane costs a round trip and a TLS handshake, and messages need none. */
static void a_control_connection_has_no_bulk_lane(NO_STATE)
{
    struct ibx_options options = options_of(0);
    struct greeter g = {.options = options_of(1)};
    struct ibx_connection_request request;
    pthread_t thread;
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    options.lanes = g.options.lanes = 4;
    fds = open_fds();
    assert_int_equal(ibx_acceptor_open("tcp://127.0.0.1:0", &options, &acceptor, NULL), 0);
    snprintf(g.uri, sizeof(g.uri), "%s", ibx_acceptor_uri(acceptor));
    assert_int_equal(pthread_create(&thread, NULL, greeter_main, &g), 0);
    while (!ibx_acceptor_take(acceptor, &request)) {
        struct pollfd wait = {.fd = ibx_acceptor_fd(acceptor), .events = POLLIN};
        assert_true(ibx_now_ns() < deadline);
        poll(&wait, 1, 10);
    }
    assert_int_equal(ibx_conn_caps(request.conn)->lanes, 0);
    ibx_migrate_message_free(&request.first);
    ibx_close(request.conn);
    pthread_join(thread, NULL);
    assert_int_equal(g.rc, -ENODATA); /* the destination closed it without an answer */
    end();
}

static void a_description_follows_its_hello(NO_STATE)
{
    struct ibx_connection_request request;
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    begin();
    describes(9, (const char *[]){"{\"a\"", ":", "\"b\"", "}", NULL}, false);
    while (!ibx_acceptor_take(acceptor, &request)) {
        assert_true(ibx_now_ns() < deadline);
        ibx_poll(conns[count - 1], NULL, 0);
    }
    assert_string_equal(request.first.is.hello->description, "{\"a\":\"b\"}");
    ibx_migrate_message_free(&request.first);
    ibx_close(request.conn);
    end();
}

/* A part of a page map might not fit into its messages. */
static void a_peer_of_short_messages_is_turned_away(NO_STATE)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    struct ibx_options options = options_of(1);
    struct ibx_connection_request request;
    struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
    char uri[64];
    snprintf(uri, sizeof(uri), "shm:///tmp/ibx-acceptor-%d", (int)getpid());
    options.message = IBX_MIGRATE_MESSAGE_LEAST - 1024;
    begin_at(uri);
    ibx_acceptor_first_within(acceptor, 2 * PATIENCE_MS);
    assert_int_equal(ibx_connect(ibx_acceptor_uri(acceptor), &options, &conns[count++], NULL), 0);
    while (ibx_poll(conns[0], &event, 1) >= 0 && event.type != IBX_EVENT_CLOSED)
        assert_true(ibx_now_ns() < deadline);
    assert_false(ibx_acceptor_take(acceptor, &request));
    end();
}

/* Too long a description, in one part or in several, or another message in its place, ends the
 * connection. */
static void a_bad_description_ends_its_connection(NO_STATE)
{
    static const char *const bad[][3] = {{"12345"}, {"123", "45"}, {"12"}};
    for (unsigned i = 0; i < COUNT(bad); i++) {
        struct ibx_connection_request request;
        struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
        const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
        begin();
        describes(4, bad[i], i == 2);
        while (ibx_poll(conns[count - 1], &event, 1) >= 0 && event.type != IBX_EVENT_CLOSED) {
            assert_false(ibx_acceptor_take(acceptor, &request));
            assert_true(ibx_now_ns() < deadline);
        }
        assert_false(ibx_acceptor_take(acceptor, &request));
        end();
    }
}

struct reason {
    char text[IBX_ERROR_MAX];
};

static int note_reason(void *context, const struct ibx_migrate_any *message)
{
    struct reason *reason = context;
    assert_int_equal(message->type, IBX_MIGRATE_ABORT);
    snprintf(reason->text, sizeof(reason->text), "%s", message->is.reason);
    return -EISCONN;
}

/* A peer of another version gets a place, is told so, and keeps its connection. Further fields
 * belong to the other version and are ignored. */
static void is_told_of_versions(unsigned name)
{
    static const struct ibx_migrate_hello hello = {.purpose = IBX_PURPOSE_QUERY, .id = {1}};
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = &hello};
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    struct ibx_channel client;
    struct reason reason = {""};
    uint8_t bytes[1024], unknown[] = {200, 1};
    const ssize_t length = ibx_migrate_encode(&message, bytes, sizeof(bytes));
    assert_true(length > 7);
    assert_int_equal(bytes[5], IBX_MIGRATE_VERSION); /* after the type and the magic */
    bytes[5]++;
    assert_true(gets_place(name));
    struct ibx_conn *conn = conns[count - 1];
    const struct iovec first = {bytes, (size_t)length}, more = {unknown, sizeof(unknown)};
    assert_int_equal(ibx_send(conn, &first, 1, 0, 0), 0);
    assert_int_equal(ibx_send(conn, &more, 1, 0, 0), 0);
    ibx_channel_init(&client, conn);
    assert_int_equal(ibx_channel_take_until(&client, note_reason, &reason, deadline, NULL),
                     -EISCONN);
    assert_non_null(strstr(reason.text, "the peer speaks version "));
}

/* The peer must learn that the versions differ, or its user would search for a fault on that
 * host. */
static void peer_of_another_version_is_told(NO_STATE)
{
    struct ibx_connection_request request;
    begin();
    is_told_of_versions(1);
    assert_false(ibx_acceptor_take(acceptor, &request));
    end();
}

static void crowd(unsigned from, unsigned to)
{
    for (unsigned name = from; name < to; name++)
        for (unsigned i = 0; i < IBX_ACCEPTOR_PEER; i++)
            assert_true(gets_place(name));
}

static void a_peer_has_few_places(NO_STATE)
{
    begin();
    crowd(0, 1);
    assert_false(gets_place(0));
    assert_true(gets_place(1));
    end();
}

static void ends(struct ibx_conn *conn)
{
    struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(30000));
    while (ibx_poll(conn, &event, 1) >= 0 && event.type != IBX_EVENT_CLOSED) {
        assert_true(ibx_now_ns() < deadline);
        ibx_wait(conn, 100);
    }
}

/* A silent connection loses its place, however long the migration waits for a host that does not
 * answer. */
static void silent_connection_loses_its_place(NO_STATE)
{
    begin_at("tcp://127.0.0.1:0");
    crowd(0, 1);
    for (unsigned i = 0; i < IBX_ACCEPTOR_PEER; i++)
        ends(conns[i]);
    assert_true(gets_place(0));
    struct ibx_connection_request request = take_join();
    ibx_close(request.conn);
    end();
}

static int receive_buffer(int fd)
{
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length), 0);
    return bytes;
}

static bool may_force_buffers(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bytes = 4 << 20;
    const int rc = setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
    close(fd);
    return !rc;
}

/* The kernel's buffers for an unread connection grow only once the peer has said what it is. At
 * this address the ends do not notice that they are on one host. */
static void buffers_grow_once_a_peer_has_said_what_it_is(NO_STATE)
{
    begin_at("tcp://127.0.0.2:0");
    assert_true(gets_place(0));
    struct ibx_connection_request request = take_join();
    assert_true(receive_buffer(conns[0]->handshake_socket) < 4 << 20);
    if (may_force_buffers())
        assert_true(receive_buffer(request.conn->handshake_socket) >= 4 << 20);
    ibx_close(request.conn);
    end();
}

/* A side that waits for requests is told of one before its first message, so that it can
 * prepare. */
static void connection_is_reported_before_its_first_message(NO_STATE)
{
    begin();
    struct ibx_connection_request request;
    struct pollfd wait = {.fd = ibx_acceptor_fd(acceptor), .events = POLLIN};
    assert_false(ibx_acceptor_busy(acceptor));
    assert_int_equal(poll(&wait, 1, 0), 0);
    assert_true(gets_place(0));
    assert_int_equal(poll(&wait, 1, (int)PATIENCE_MS), 1);
    assert_true(ibx_acceptor_busy(acceptor));
    assert_false(ibx_acceptor_take(acceptor, &request));
    assert_int_equal(poll(&wait, 1, 0), 0); /* reported once */
    request = take_join();
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    while (ibx_acceptor_busy(acceptor))
        assert_true(ibx_now_ns() < deadline);
    ibx_close(request.conn);
    end();
}

static void a_place_is_free_once_it_is_taken(NO_STATE)
{
    begin();
    crowd(0, 1);
    struct ibx_connection_request request = take_join();
    assert_int_equal(request.first.type, IBX_MIGRATE_JOIN);
    assert_true(gets_place(0));
    assert_false(gets_place(0));
    ibx_close(request.conn);
    end();
}

/* Even if that peer still has earlier connections. */
static void the_expected_peer_always_gets_a_place(NO_STATE)
{
    const unsigned all = IBX_ACCEPTOR_OTHERS / IBX_ACCEPTOR_PEER;
    begin();
    assert_true(gets_place(9));
    struct ibx_connection_request first = take_join();
    ibx_acceptor_expect(acceptor, first.conn);
    crowd(0, all);
    assert_false(gets_place(all)); /* a peer of another name, from the same host */
    for (unsigned i = 0; i < 2 * (1 + PAGES); i++)
        assert_true(gets_place(9));
    assert_false(gets_place(9)); /* the expected peer has a limit too */
    ibx_close(first.conn);
    end();
}

/* After `recover`, which knows the key unless its record is old. */
static void the_expected_host_always_gets_a_place(NO_STATE)
{
    begin();
    ibx_acceptor_expect_host(acceptor, "10.0.0.7", "");
    crowd(0, IBX_ACCEPTOR_OTHERS / IBX_ACCEPTOR_PEER);
    assert_false(gets_place(9));
    ibx_acceptor_expect_host(acceptor, "127.0.0.1", "n8");
    assert_false(gets_place(9));
    assert_true(gets_place(8));
    ibx_acceptor_expect_host(acceptor, "127.0.0.1", "");
    for (unsigned i = 0; i <= PAGES; i++) {
        assert_true(gets_place(9));
        struct ibx_connection_request request = take_join();
        ibx_close(request.conn);
    }
    end();
}

/* A peer with a name is the same peer from everywhere; one without a name only from the same
 * host. */
static void a_peer_is_its_name_or_its_host(NO_STATE)
{
    const struct ibx_peer bob = {"bob", "10.0.0.1"}, moved = {"bob", "10.0.0.2"},
                          eve = {"eve", "10.0.0.1"}, one = {"", "10.0.0.1"},
                          again = {"", "10.0.0.1"}, other = {"", "10.0.0.2"};
    assert_true(ibx_peer_same(&bob, &moved) && ibx_peer_same(&one, &again));
    assert_false(ibx_peer_same(&bob, &eve) || ibx_peer_same(&bob, &one));
    assert_false(ibx_peer_same(&one, &other));
}

static atomic_bool no_thread;
static atomic_uint thread_passes;   /* how many threads begin before those that fail */
static atomic_uint thread_failures; /* how many threads fail from now on */
static atomic_uint blamed;          /* how many clients count as having a wrong key */

struct ibx_pool;
struct ibx_source;
void __wrap_ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source);

void __wrap_ibx_pool_note_wrong(struct ibx_pool *pool, const struct ibx_source *source)
{
    (void)pool, (void)source;
    blamed++;
}

static bool count_down(atomic_uint *left_of)
{
    unsigned left = *left_of;
    while (left && !atomic_compare_exchange_weak(left_of, &left, left - 1))
        ;
    return left;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *argument);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *),
                          void *argument)
{
    const bool fails = !count_down(&thread_passes) && count_down(&thread_failures);
    return no_thread || fails ? EAGAIN : __real_pthread_create(thread, how, run, argument);
}

static atomic_bool no_files;

int __wrap_fcntl64(int fd, int command, ...);
int __real_fcntl64(int fd, int command, ...);

int __wrap_fcntl64(int fd, int command, ...)
{
    va_list rest;
    va_start(rest, command);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (!no_files || command != F_DUPFD_CLOEXEC)
        return __real_fcntl64(fd, command, argument);
    errno = EMFILE;
    return -1;
}

static void is_refused(const char *why)
{
    struct ibx_options options = options_of(1);
    struct ibx_error err = {0};
    assert_int_equal(ibx_connect(ibx_acceptor_uri(acceptor), &options, &conns[0], &err), -EACCES);
    if (!strstr(err.message, why))
        fail_msg("%s", err.message);
    assert_int_equal(blamed, 0);
}

/* The peer, too, hears what this host lacks. */
static void a_peer_is_told_of_the_lack_of_a_thread(NO_STATE)
{
    begin();
    no_thread = true;
    is_refused("no thread there for it: raise the limits on processes");
    no_thread = false;
    assert_true(gets_place(1));
    end();
}

static void a_peer_is_told_of_the_lack_of_descriptors(NO_STATE)
{
    begin();
    no_files = true;
    is_refused("no descriptors there for it: raise the limit on open");
    no_files = false;
    assert_true(gets_place(1));
    end();
}

/* The limit is reached for a moment only: the kernel still counts a thread that has ended. */
static void a_thread_is_tried_again(NO_STATE)
{
    begin();
    thread_failures = 3;
    assert_true(gets_place(1));
    assert_int_equal(thread_failures, 0);
    end();
}

/* There is none when the peer has been let in: its place is free again. */
static void a_thread_is_lacking_behind_the_look(NO_STATE)
{
    begin();
    for (unsigned i = 0; i < IBX_ACCEPTOR_PEER + 1; i++) {
        thread_passes = 1;
        thread_failures = 21;
        assert_false(gets_place(1));
        assert_int_equal(thread_failures, 0);
    }
    assert_true(gets_place(1));
    end();
}

/* A peer with the key n1 that has proven itself and then sends nothing. */
static struct raw stop_half_way(void)
{
    static const uint8_t key[16] = {[15] = 2};
    const uint16_t port = (uint16_t)atoi(strrchr(ibx_acceptor_uri(acceptor), ':') + 1);
    struct raw raw = raw_connect(port, "127.0.0.1", "127.0.0.1");
    ibx_hash(&(struct ibx_piece){key, sizeof(key)}, 1, raw.key);
    raw.name = "n1";
    raw.purpose = IBX_MIGRATE_PURPOSE;
    raw_prove(&raw);
    return raw;
}

static atomic_uint warnings;

void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...);
void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)format;
    warnings += level <= IBX_LOG_WARN;
}

/* At the end of a migration such peers are not waited for: not for their handshakes, their first
 * messages or their descriptions, nor until one of another version closes. That is no trouble. */
static void peers_that_stop_half_way_delay_no_end(NO_STATE)
{
    const char *const part[] = {"{", NULL};
    const unsigned limit_ms = patience_ms(5000);
    struct raw raws[2];
    begin_with("tcp://127.0.0.1:0", 3 * limit_ms);
    ibx_acceptor_first_within(acceptor, 3 * limit_ms);
    for (unsigned i = 0; i < 2; i++)
        raws[i] = stop_half_way();
    assert_true(gets_place(0));
    describes(100, part, false);
    is_told_of_versions(2);
    warnings = 0;
    const uint64_t began = ibx_now_ns();
    ibx_acceptor_close(acceptor);
    assert_true(ibx_now_ns() - began < limit_ms * IBX_NS_PER_MS);
    assert_int_equal(warnings, 0);
    while (count)
        ibx_close(conns[--count]);
    for (unsigned i = 0; i < 2; i++)
        raw_close(&raws[i]);
    assert_int_equal(open_fds(), fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_is_its_name_or_its_host),
        cmocka_unit_test(a_peer_has_few_places),
        cmocka_unit_test(connection_is_reported_before_its_first_message),
        cmocka_unit_test(a_place_is_free_once_it_is_taken),
        cmocka_unit_test(silent_connection_loses_its_place),
        cmocka_unit_test(buffers_grow_once_a_peer_has_said_what_it_is),
        cmocka_unit_test(the_expected_peer_always_gets_a_place),
        cmocka_unit_test(the_expected_host_always_gets_a_place),
        cmocka_unit_test(messages_after_the_awaited_one_stay),
        cmocka_unit_test(a_control_connection_has_no_bulk_lane),
        cmocka_unit_test(a_description_follows_its_hello),
        cmocka_unit_test(a_peer_of_short_messages_is_turned_away),
        cmocka_unit_test(a_bad_description_ends_its_connection),
        cmocka_unit_test(peer_of_another_version_is_told),
        cmocka_unit_test(a_peer_is_told_of_the_lack_of_a_thread),
        cmocka_unit_test(a_peer_is_told_of_the_lack_of_descriptors),
        cmocka_unit_test(a_thread_is_tried_again),
        cmocka_unit_test(a_thread_is_lacking_behind_the_look),
        cmocka_unit_test(peers_that_stop_half_way_delay_no_end),
    };
    return cmocka_run_group_tests(tests, make_keys, remove_keys);
}
