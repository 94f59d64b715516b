/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Clients with the key among many without: 2,000 sockets that send nothing, stop in the middle
 * of a HELLO, send a byte now and then, or go as far as possible without the key; and 200 new
 * ones per second, from the clients' own address and from others. Every client is soon accepted,
 * and the server holds a limited number of descriptors and bytes. */
#include "common/clock.h"
#include "tests/fixtures/handshake_scene.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/strangers.h"

#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <cmocka.h>

#define CLIENTS     100
#define VISITS      20
#define CLIENT_MS   30u /* time from one client to the next */
#define PLACES      64u
#define CONNECT_MS  60000u /* for a client's attempts, which take long without a processor */
#define SOON_MS     1000u
#define LATE_MS     5000u /* one of twenty clients may take this long */
#define PLACE_BYTES 32768u

static uint8_t hello[RAW_FRAME], proof[RAW_FRAME]; /* what any of them may send */
static size_t hello_length, proof_length;

/* Makes the HELLO of a client with the key. */
static void make_hello(struct handshake_scene *s)
{
    struct raw_frame frame;
    struct raw raw = raw_connect(s->port, "127.0.0.1", "127.0.0.1");
    raw_set_key(&raw);
    handshake_make_step(&raw, AT_HELLO, &frame);
    memcpy(hello, frame.bytes, frame.length);
    hello_length = frame.length;
    uint8_t payload[1 + RAW_HASH] = {0};
    raw_frame_make(&raw, &frame, PROOF, payload, sizeof(payload));
    memcpy(proof, frame.bytes, frame.length);
    proof_length = frame.length;
    raw_close(&raw);
}

/* ----------------------------------------------------------------------- the server */

struct server {
    struct ibx_listener *listener;
    pthread_t thread;
    _Atomic pid_t tid;
    atomic_bool over;
    int served, fds, fds_most;
    size_t bytes, bytes_most;
};

static void *server_main(void *argument)
{
    struct server *server = argument;
    struct ibx_conn *conn;
    struct pollfd wait = {.fd = ibx_listener_fd(server->listener), .events = POLLIN};
    server->tid = gettid();
    server->fds = open_fds();
    server->bytes = mallinfo2().uordblks;
    for (unsigned round = 0; !server->over; round++) {
        poll(&wait, 1, 100);
        int rc = ibx_accept(server->listener, &conn, NULL);
        if (!rc) {
            server->served += !ibx_establish(conn, NULL);
            ibx_close(conn);
        }
        if (round % 16)
            continue;
        int fds = open_fds();
        size_t bytes = mallinfo2().uordblks;
        server->fds_most = fds > server->fds_most ? fds : server->fds_most;
        server->bytes_most = bytes > server->bytes_most ? bytes : server->bytes_most;
    }
    return NULL;
}

/* ------------------------------------------------------------------------- the test */

/* A server with a thread of its own. `places`: for clients in their handshake; 0: the default
 * number. */
static void begin(struct handshake_scene *s, struct server *server, unsigned places)
{
    handshake_open(s, true, CONNECT_MS);
    make_hello(s);
    ibx_listener_close(s->listener);
    if (places)
        s->options.unauthenticated = places;
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s->options, &server->listener, NULL), 0);
    s->port = (uint16_t)atoi(strrchr(ibx_listener_uri(server->listener), ':') + 1);
    pthread_create(&server->thread, NULL, server_main, server);
    while (!server->tid)
        sched_yield();
}

static void over(struct server *server)
{
    server->over = true;
    pthread_join(server->thread, NULL);
}

static void end(struct handshake_scene *s, struct server *server)
{
    ibx_listener_close(server->listener);
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s->options, &s->listener, NULL), 0);
    handshake_close(s);
}

struct times {
    uint64_t longest;
    unsigned late;
};

/* How long this thread has waited for a processor; 0: this kernel does not report it. */
static uint64_t kept_waiting(pid_t tid)
{
    char path[64];
    unsigned long long ns = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", (int)tid);
    FILE *file = fopen(path, "re");
    if (!file || fscanf(file, "%*u %llu", &ns) != 1)
        ns = 0;
    if (file)
        fclose(file);
    return ns;
}

/* The time until now, without the time in which other processes had the processors. */
static uint64_t now_of(const struct server *server)
{
    return ibx_now_ns() - kept_waiting(server->tid) - kept_waiting(gettid());
}

static void visit(const struct handshake_scene *s, const struct server *server, struct times *times)
{
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    const uint64_t began = now_of(server);
    if (ibx_connect(ibx_listener_uri(server->listener), &s->options, &conn, &err))
        fail_msg("a client with the key did not get in: %s", err.message);
    const uint64_t now = now_of(server), took = now > began ? now - began : 0;
    times->longest = took > times->longest ? took : times->longest;
    times->late += took >= SOON_MS * IBX_NS_PER_MS;
    ibx_close(conn);
}

static void assert_soon(const struct times *took, unsigned visits)
{
    assert_true(took->longest < LATE_MS * IBX_NS_PER_MS);
    assert_true(took->late <= visits / 20);
}

static void clients_get_in_among_strangers(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct server server = {0};
    begin(&s, &server, PLACES);
    pid_t child = strangers_begin(&(struct strangers){.to = "127.0.0.1",
                                                      .from = "127.0.0.1",
                                                      .port = s.port,
                                                      .addresses = 100,
                                                      .hello = hello,
                                                      .hello_length = hello_length});

    struct times took = {0};
    uint64_t times;
    struct itimerspec tick = {.it_interval.tv_nsec = CLIENT_MS * IBX_NS_PER_MS,
                              .it_value.tv_nsec = 1};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    timerfd_settime(timer, 0, &tick, NULL);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(read(timer, &times, sizeof(times)), sizeof(times));
        visit(&s, &server, &took);
    }
    close(timer);
    strangers_end(child);
    over(&server);
    print_message("the slowest client took %.1f ms; %d descriptors and %zu KiB more at most\n",
                  (double)took.longest / 1e6, server.fds_most - server.fds,
                  (server.bytes_most - server.bytes) / 1024);
    assert_int_equal(server.served, CLIENTS);
    assert_soon(&took, CLIENTS);
    /* Besides the strangers: a client that has authenticated, and the clients of this process. */
    assert_true(server.fds_most - server.fds <= (int)PLACES + 16);
    assert_true(server.bytes_most <= server.bytes + PLACES * PLACE_BYTES + (1 << 20));
    end(&s, &server);
}

static bool own_network;

/* Connection requests in this network namespace that found no room in a queue. */
static unsigned long overflows(void)
{
    char names[4096], values[4096], *name = NULL, *value = NULL, *next_name, *next_value;
    unsigned long count = 0;
    FILE *file = fopen("/proc/net/netstat", "re");
    assert_non_null(file);
    bool read = fgets(names, sizeof(names), file) && fgets(values, sizeof(values), file);
    fclose(file);
    name = read ? strtok_r(names, " ", &next_name) : NULL;
    value = read ? strtok_r(values, " ", &next_value) : NULL;
    for (; name && value;
         name = strtok_r(NULL, " ", &next_name), value = strtok_r(NULL, " ", &next_value)) {
        if (!strcmp(name, "ListenOverflows"))
            count = strtoul(value, NULL, 10);
    }
    return count;
}

/* Starts as many handshakes as one processor can; all of them fail. */
static void flood(const char *from, unsigned addresses)
{
    struct handshake_scene s;
    struct server server = {0};
    begin(&s, &server, 0);
    pid_t child = strangers_flood(&(struct strangers){.to = "127.0.0.1",
                                                      .from = from,
                                                      .port = s.port,
                                                      .addresses = addresses,
                                                      .hello = hello,
                                                      .hello_length = hello_length,
                                                      .proof = proof,
                                                      .proof_length = proof_length});
    struct times took = {0};
    for (int i = 0; i < VISITS; i++)
        visit(&s, &server, &took);
    strangers_end(child);
    over(&server);
    print_message("a flood from %u addresses: the slowest client took %.1f ms\n", addresses,
                  (double)took.longest / 1e6);
    assert_int_equal(server.served, VISITS);
    assert_soon(&took, VISITS);
    end(&s, &server);
}

static void clients_get_in_among_a_flood(void **state)
{
    (void)state;
    const unsigned long before = overflows();
    flood("127.0.0.1", 1); /* the clients' own address */
    flood("127.0.1.0", 200);
    /* A client whose request finds no room tries again after a second, or three, or seven. */
    if (own_network)
        assert_int_equal(overflows(), before);
    else
        print_message("not counted: requests that found no room, in a network of others\n");
}

int main(void)
{
    own_network = (!unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET)) &&
                  !system("ip link set lo up");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_get_in_among_strangers),
        cmocka_unit_test(clients_get_in_among_a_flood),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
