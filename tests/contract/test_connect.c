/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Listening, connecting, establishing and closing; unauthenticated peers; many connections at
 * once. */
#include "tests/contract/harness.h"

#include <netinet/in.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REGION_BYTES (64 * 1024)

static void test_path_and_caps(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    const struct ibx_path *path = ibx_conn_path(pair->end.conn);
    const struct ibx_caps *caps = ibx_conn_caps(pair->end.conn);

    CHECK(!strcmp(path->provider, contract.provider));
    CHECK(path->description[0]);
    CHECK(path->peer[0]);
    CHECK(caps->message_max >= 4096);
    CHECK(caps->chunk >= 4096);
    CHECK(caps->depth >= 1);
    CHECK(caps->lanes >= 1);
    CHECK(!strcmp(ibx_conn_reason(pair->end.conn), ""));
    CHECK(path->refused_count == 0); /* only one provider was allowed, so none was refused */
    CHECK(ibx_fd(pair->end.conn) >= 0);
    pair_close(pair);
}

static void test_listener_has_a_real_port(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_error err = {0};
    struct ibx_listener *one = NULL, *two = NULL;
    struct ibx_conn *conn = NULL;
    struct ibx_uri uri;
    contract_options(&options, 's');
    CHECK_OK(ibx_listen(contract_uri(), &options, &one, &err), err);
    CHECK_OK(ibx_uri_parse(ibx_listener_uri(one), &uri, &err), err);
    CHECK(uri.port != 0);
    CHECK(!strcmp(uri.scheme, contract.provider));
    CHECK(ibx_accept(one, &conn, &err) == -EAGAIN);
    /* Listening at the same port again is refused with a message. */
    CHECK(ibx_listen(ibx_listener_uri(one), &options, &two, &err) == -EADDRINUSE);
    CHECK(!two && err.message[0]);
    char taken[300];
    snprintf(taken, sizeof(taken), "%s", ibx_listener_uri(one));
    ibx_listener_close(one);
    /* Nobody listens there any more. */
    CHECK(ibx_connect(taken, &options, &conn, &err) == -ECONNREFUSED);
    CHECK(!conn && err.message[0]);
}

/* Opens at the test's own URI and exchanges messages, which shows that it is a connection. */
static struct pair *open_at(enum side side, const char *uri, const char *set)
{
    struct pair *pair = pair_open_with(side, &(struct pair_options){.uri = uri, .set = set});
    end_send_many(&pair->end, 20);
    pair_ask(pair, (struct order){.verb = ORDER_PING});
    return pair;
}

/* The `n`-th of a list of providers separated by commas; "" after the last one. */
static const char *nth_of(const char *list, unsigned n, char name[16])
{
    for (; n && *list; n--) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    snprintf(name, 16, "%.*s", (int)strcspn(list, ","), list);
    return name;
}

/* The first provider of the list that works is used, and there is a reason for each one before
 * it. A failure on the client alone does not reach the server. */
static void check_first(const struct ibx_path *path, enum side side, const char *list)
{
    char name[16];
    unsigned told = 0;
    for (unsigned i = 0; strcmp(nth_of(list, i, name), path->provider); i++) {
        if (!*name)
            FAIL("%s was taken, which is not among %s", path->provider, list);
        bool refused = told < path->refused_count && !strcmp(path->refused[told].provider, name);
        if (!refused && side == SIDE_CLIENT)
            FAIL("%s was taken and %s not refused before", path->provider, name);
        CHECK(!refused || path->refused[told].reason[0]);
        told += refused;
    }
    CHECK(told == path->refused_count && path->description[0]);
}

/* rdma:// uses the best provider that works, and gives a reason for every better one. */
static void test_chosen_by_itself(void **state)
{
    char uri[300], set[64];
    snprintf(uri, sizeof(uri), "rdma%s", strchr(contract_uri(), ':'));
    struct pair *pair = open_at(SIDE_OF(state), uri, NULL);
    check_first(ibx_conn_path(pair->end.conn), SIDE_OF(state), "shm,verbs,ofi,tcp");
    CHECK(!strcmp(ibx_conn_path(pair->end.conn)->provider, "shm")); /* both ends are on one host */
    pair_close(pair);

    pair = open_at(SIDE_OF(state), uri, "provider=verbs,ofi,tcp");
    check_first(ibx_conn_path(pair->end.conn), SIDE_OF(state), "verbs,ofi,tcp");
    bool device = !strcmp(contract.provider, "verbs");
    CHECK(!device || !strcmp(ibx_conn_path(pair->end.conn)->provider, "verbs"));
    pair_close(pair);

    snprintf(set, sizeof(set), "provider=%s", contract.provider);
    pair = open_at(SIDE_OF(state), uri, set);
    CHECK(!strcmp(ibx_conn_path(pair->end.conn)->provider, contract.provider));
    pair_close(pair);
}

static void test_listeners_of_other_kinds(void **state)
{
    char uri[300];
    if (!strcmp(contract.provider, "verbs"))
        SKIP("a verbs device has the address that it has");
    snprintf(uri, sizeof(uri), "%s://localhost:0", contract.provider);
    pair_close(open_at(SIDE_OF(state), uri, NULL));
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool v6 = fd >= 0 && !bind(fd, (struct sockaddr *)&loopback, sizeof(loopback));
    if (fd >= 0)
        close(fd);
    if (v6) {
        snprintf(uri, sizeof(uri), "%s://[::1]:0", contract.provider);
        pair_close(open_at(SIDE_OF(state), uri, NULL));
    }
    if (!strcmp(contract.provider, "shm")) {
        snprintf(uri, sizeof(uri), "shm:///tmp/ibx-contract-%d.sock", (int)getpid());
        pair_close(open_at(SIDE_OF(state), uri, NULL));
        CHECK(access(uri + strlen("shm://"), F_OK) && errno == ENOENT);
    }
}

static void test_many_connections_one_after_another(void **state)
{
    for (size_t i = 0; i < contract_size(20, 5); i++) {
        struct pair *pair = pair_open(SIDE_OF(state));
        pair->end.seed_out = i;
        pair_ask(pair, (struct order){.verb = ORDER_MODE, .value = MODE_SEQUENCE, .seed = i});
        end_send_many(&pair->end, 3);
        pair_close(pair);
    }
}

static void test_close_by_the_peer(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    pair_ask(pair, (struct order){.verb = ORDER_CLOSE});
    AWAIT(&pair->end, pair->end.closed);
    struct iovec iov = {"x", 1};
    CHECK(ibx_send(pair->end.conn, &iov, 1, 0, 0) == -ENOTCONN);
    for (int i = 0; i < 3; i++)
        end_poll(&pair->end); /* returns -ENOTCONN for ever */
    pair_close(pair);
}

static void test_close_by_this_side(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    ibx_close(pair->end.conn);
    pair->end.conn = NULL; /* pair_close() then calls ibx_close(NULL) */
    pair_await(pair, ORDER_STATUS, true);
    pair_close(pair);
}

static int live_on(void *arg)
{
    (void)arg;
    return pause();
}

/* A child that was forked meanwhile has the sockets open too. The peer still notices the close. */
static void test_close_while_a_child_lives(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    const pid_t child = process_start(live_on, NULL);
    ibx_close(pair->end.conn);
    pair->end.conn = NULL;
    pair_await(pair, ORDER_STATUS, true);
    CHECK(!kill(child, SIGKILL) && process_end(child) == -SIGKILL);
    pair_close(pair);
}

/* ----------------------------------------------------- a server and its clients */

/* A client exposes a region, sends its description, and waits until the server has READ and
 * overwritten it. */
struct visit {
    struct end end;
    struct ibx_mr *mr;
    uint8_t *bytes;
    struct ibx_remote remote;
    uint64_t seed;
    bool asked, answered;
};

static void message_of_visit(struct end *end, const struct ibx_event *event)
{
    struct visit *visit = end->owner;
    struct ibx_reader reader = ibx_reader_of(event->data, event->length);
    visit->seed = ibx_get_u64(&reader);
    if (ibx_reader_left(&reader)) {
        ibx_remote_get(&reader, &visit->remote);
        visit->asked = true;
    } else {
        visit->answered = true;
    }
    CHECK(!reader.failed && ibx_reader_left(&reader) == 0);
    ibx_message_release(end->conn, event);
}

static void visit_init(struct visit *visit, struct ibx_conn *conn, unsigned access)
{
    *visit = (struct visit){.bytes = pages_map(REGION_BYTES)};
    end_init(&visit->end, conn);
    visit->end.message = message_of_visit;
    visit->end.owner = visit;
    visit->mr = end_register(&visit->end, visit->bytes, REGION_BYTES, access);
}

static void visit_fini(struct visit *visit)
{
    end_check_books(&visit->end);
    ibx_close(visit->end.conn);
    end_fini(&visit->end);
    pages_unmap(visit->bytes, REGION_BYTES);
}

static void visit_send(struct visit *visit, uint64_t seed, const struct ibx_remote *remote)
{
    uint8_t bytes[8 + IBX_REMOTE_BYTES];
    struct ibx_writer writer = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u64(&writer, seed);
    if (remote)
        ibx_remote_put(&writer, remote);
    struct iovec iov = {bytes, writer.length};
    end_push(&visit->end, &iov, 1, 0, 0);
}

static void serve_until_closed(struct ibx_conn *conn)
{
    struct visit visit;
    visit_init(&visit, conn, IBX_ACCESS_LOCAL);
    for (;;) {
        AWAIT(&visit.end, visit.asked || visit.end.closed);
        if (!visit.asked)
            break;
        visit.asked = false;
        end_read(&visit.end, visit.mr, visit.bytes, &visit.remote, 0, REGION_BYTES, 0);
        AWAIT(&visit.end, visit.end.completed == visit.end.posted);
        CHECK(visit.end.failed == 0);
        CHECK(pattern_check(visit.bytes, REGION_BYTES, visit.seed, 0) < 0);
        pattern_fill(visit.bytes, REGION_BYTES, visit.seed + 1, 0);
        end_write(&visit.end, visit.mr, visit.bytes, &visit.remote, 0, REGION_BYTES, 0);
        AWAIT(&visit.end, visit.end.completed == visit.end.posted);
        CHECK(visit.end.failed == 0);
        visit_send(&visit, visit.seed + 1, NULL);
    }
    visit_fini(&visit);
}

static void visit_server(const char *uri, uint64_t seed, int rounds)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    struct ibx_conn *conn = NULL;
    struct ibx_remote remote;
    struct visit visit;
    contract_options(&options, 'c');
    options.timeout_ms = contract_patience_ms(); /* with many connections everything takes longer */
    CHECK_OK(ibx_connect(uri, &options, &conn, &err), err);
    visit_init(&visit, conn, R | W);
    CHECK(ibx_mr_remote(visit.mr, 0, REGION_BYTES, &remote) == 0);
    for (int i = 0; i < rounds; i++, seed += 2) {
        pattern_fill(visit.bytes, REGION_BYTES, seed, 0);
        visit_send(&visit, seed, &remote);
        visit.answered = false;
        AWAIT(&visit.end, visit.answered);
        CHECK(visit.seed == seed + 1);
        CHECK(pattern_check(visit.bytes, REGION_BYTES, seed + 1, 0) < 0);
    }
    visit_fini(&visit);
}

static int visit_three_times(void *arg)
{
    visit_server(ibx_listener_uri(arg), 1000, 3);
    return 0;
}

static struct ibx_listener *listen_here(unsigned timeout_ms)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    struct ibx_listener *listener = NULL;
    contract_options(&options, 's');
    if (timeout_ms)
        options.timeout_ms = timeout_ms;
    CHECK_OK(ibx_listen(contract_uri(), &options, &listener, &err), err);
    return listener;
}

/* ---------------------------------------- forks, unauthenticated peers */

static int establish_and_serve(void *arg)
{
    struct ibx_error err = {0};
    CHECK_OK(ibx_establish(arg, &err), err);
    serve_until_closed(arg);
    return 0;
}

/* Like a forking server: the parent accepts and drops the connection, and the child establishes
 * it. */
static void test_fork_between_accept_and_establish(void **state)
{
    (void)state;
    struct ibx_listener *listener = listen_here(0);
    for (int i = 0; i < 2; i++) {
        pid_t client = process_start(visit_three_times, listener);
        struct ibx_conn *conn = contract_accept(listener);
        pid_t server = process_start(establish_and_serve, conn);
        ibx_close(conn);
        CHECK(process_end(client) == 0);
        CHECK(process_end(server) == 0);
    }
    ibx_listener_close(listener);
}

static int close_inherited(void *arg)
{
    ibx_close(arg);
    return 0;
}

/* A child that runs its exit handlers closes what it inherited. The parent must not notice. */
static void test_close_in_a_forked_child(void **state)
{
    struct pair *pair = pair_open(SIDE_OF(state));
    CHECK(process_end(process_start(close_inherited, pair->end.conn)) == 0);
    end_send_many(&pair->end, 20);
    pair_ask(pair, (struct order){.verb = ORDER_PING});
    pair_close(pair);
}

static int want_another_provider(void *arg)
{
    const char *other = strcmp(contract.provider, "tcp") ? "tcp" : "shm";
    struct ibx_options options;
    struct ibx_error err = {0};
    struct ibx_conn *conn = NULL;
    char uri[300];
    contract_options(&options, 'c');
    snprintf(uri, sizeof(uri), "%s%s", other, strchr(ibx_listener_uri(arg), ':'));
    CHECK(ibx_connect(uri, &options, &conn, &err) < 0);
    CHECK(!conn && err.code < 0 && strstr(err.message, other));
    return 0;
}

/* A server whose options name one provider uses no other. */
static void test_no_provider_in_common(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    struct ibx_listener *listener = listen_here(0);
    pid_t client = process_start(want_another_provider, listener);
    struct ibx_conn *conn = contract_accept(listener);
    CHECK(ibx_establish(conn, &err) < 0);
    CHECK(err.code < 0 && err.message[0]);
    ibx_close(conn);
    CHECK(process_end(client) == 0);
    ibx_listener_close(listener);
}

/* Random bytes, silence and a closed socket end one connection request and disturb no other. */
static void test_unauthenticated_peers(void **state)
{
    (void)state;
    struct ibx_listener *listener = listen_here(300);
    for (int kind = 0; kind < 4; kind++) {
        uint8_t garbage[4096];
        struct ibx_error err = {0};
        int fd = contract_raw_connect(listener);
        pattern_fill(garbage, sizeof(garbage), (uint64_t)kind, 0);
        if (kind == 0)
            CHECK(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL) == sizeof(garbage));
        else if (kind == 1)
            shutdown(fd, SHUT_RDWR);
        else if (kind == 2)
            CHECK(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
        contract_turn_away(listener, &err);
        CHECK(err.code < 0 && err.message[0]);
        close(fd);
    }
    ibx_listener_close(listener);
    /* With slow emulators a real client needs longer than the 300 ms above. */
    listener = listen_here(0);
    int silent = contract_raw_connect(listener);
    pid_t client = process_start(visit_three_times, listener);
    CHECK(establish_and_serve(contract_accept(listener)) == 0);
    CHECK(process_end(client) == 0);
    close(silent);
    ibx_listener_close(listener);
}

/* ---------------------------------------------------------------- many at once */

struct crowd {
    struct ibx_listener *listener;
    unsigned size;
};

struct crowd_member {
    pthread_t thread;
    struct ibx_conn *conn;
    const char *uri;
    uint64_t seed;
};

static void *crowd_server(void *arg)
{
    struct crowd_member *member = arg;
    establish_and_serve(member->conn);
    return NULL;
}

static void *crowd_client(void *arg)
{
    struct crowd_member *member = arg;
    visit_server(member->uri, member->seed, 5);
    return NULL;
}

/* Runs in a process of its own, because a test cannot fail in another thread. */
static int crowd_run(const struct crowd *crowd, void *(*run)(void *))
{
    struct crowd_member *members = calloc(crowd->size, sizeof(*members));
    CHECK(members);
    for (unsigned i = 0; i < crowd->size; i++) {
        members[i].uri = ibx_listener_uri(crowd->listener);
        members[i].seed = 100 * i;
        if (run == crowd_server)
            members[i].conn = contract_accept(crowd->listener);
        CHECK(!pthread_create(&members[i].thread, NULL, run, &members[i]));
    }
    for (unsigned i = 0; i < crowd->size; i++)
        CHECK(!pthread_join(members[i].thread, NULL));
    free(members);
    return 0;
}

static int crowd_servers(void *arg)
{
    return crowd_run(arg, crowd_server);
}

static int crowd_clients(void *arg)
{
    return crowd_run(arg, crowd_client);
}

static void test_a_crowd_at_one_listener(void **state)
{
    (void)state;
    struct crowd crowd = {listen_here(contract_patience_ms()), (unsigned)contract_size(64, 16)};
    pid_t servers = process_start(crowd_servers, &crowd);
    pid_t clients = process_start(crowd_clients, &crowd);
    CHECK(process_end(clients) == 0);
    CHECK(process_end(servers) == 0);
    ibx_listener_close(crowd.listener);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_path_and_caps),
    TEST(test_listener_has_a_real_port),
    TEST_BOTH(test_chosen_by_itself),
    TEST_BOTH(test_listeners_of_other_kinds),
    TEST_BOTH(test_many_connections_one_after_another),
    TEST_BOTH(test_close_by_the_peer),
    TEST_BOTH(test_close_by_this_side),
    TEST_BOTH(test_close_while_a_child_lives),
    TEST(test_fork_between_accept_and_establish),
    TEST_BOTH(test_close_in_a_forked_child),
    TEST(test_no_provider_in_common),
    TEST(test_unauthenticated_peers),
    TEST(test_a_crowd_at_one_listener),
};
GROUP(group_connect, "connect", tests);
