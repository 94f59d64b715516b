/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which unauthenticated clients the server drops when it has no room, and what a fork does with
 * them. */
#include "tests/fixtures/pool_scene.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/fixtures/forward_clock.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define PROVE_MS   10000u /* time limit for HELLO and PROOF */
#define CROWDED_MS 2000u  /* the limit while more than half of the places are taken */

/* Silent clients of one address get an eighth of the places, even if others are free. */
static void silent_ones_of_one_address(void **state)
{
    (void)state;
    pool_open();
    pool_come(0, 2, true);
    pool_come(1, 3, true);
    pool_only_lost(-1, 2);
    pool_come(2, 2, false);
    pool_only_lost(0, 3);
    raw_close(&pool_raws[0]);
    pool_come(3, 2, true); /* the only silent one */
    pool_only_lost(-1, 4);
    pool_come(4, 2, true);
    pool_only_lost(3, 5);
    pool_close();
}

/* Clients that have sent HELLO may take all places. */
static void silent_ones_give_way_first(void **state)
{
    (void)state;
    pool_open();
    for (int i = 0; i < POOL_PLACES; i++)
        pool_come(i, i == 5 ? 9 : 2, i == 5);
    pool_only_lost(-1, POOL_PLACES);
    pool_come(POOL_PLACES, 2, false);
    pool_only_lost(5, POOL_PLACES + 1);
    pool_close();
}

static void then_the_oldest_of_the_address_with_most_places(void **state)
{
    (void)state;
    pool_open();
    for (int i = 0; i < POOL_PLACES; i++)
        pool_come(i, i == 4 || i == 6 ? 2 : 10 + i, false);
    pool_come(POOL_PLACES, 2, false); /* 127.0.0.2 has two places: its oldest client is dropped */
    pool_only_lost(4, POOL_PLACES + 1);
    raw_close(&pool_raws[4]);
    /* this address has no place: the oldest client of all is dropped */
    pool_come(POOL_PLACES + 1, 99, false);
    pool_only_lost(0, POOL_PLACES + 2);
    pool_close();
}

/* A client from 127.0.0.`from` proves that it has the key, and disconnects. */
static void prove(int from)
{
    struct raw_frame frame;
    struct ibx_conn *conn = NULL;
    uint8_t ours[RAW_HASH], theirs[RAW_HASH];
    pool_come(0, from, false);
    pool_raws[0].flags = from == 1 ? RAW_SAME_HOST : RAW_ENCRYPT;
    raw_derive(&pool_raws[0], ours, theirs);
    raw_send_proof(&pool_raws[0], ours);
    assert_int_equal(ibx_accept_wait(pool_scene.listener, 10000, &conn, NULL), 0);
    raw_expect(&pool_raws[0], PROOF, &frame);
    ibx_close(conn);
    raw_close(&pool_raws[0]);
    pool_raws[0].fd = -1;
}

/* Clients from an address that has authenticated before are preferred for half of the places. Those
 * that are gone do not count. */
static void known_addresses_have_half_of_the_places(void **state)
{
    (void)state;
    pool_open();
    for (int i = 0; i < POOL_PLACES; i++)
        prove(1);
    for (int i = 0; i < POOL_PLACES / 2; i++)
        pool_come(i, 1, i < 2); /* silent ones too */
    for (int i = POOL_PLACES / 2; i < POOL_PLACES; i++)
        pool_come(i, 10 + i, false);
    pool_only_lost(-1, POOL_PLACES);
    for (int i = 0; i < 3; i++) { /* the oldest client of the others is dropped */
        pool_come(POOL_PLACES + i, 50 + i, false);
        pool_only_lost(POOL_PLACES / 2 + i, POOL_PLACES + i + 1);
        raw_close(&pool_raws[POOL_PLACES / 2 + i]);
        pool_raws[POOL_PLACES / 2 + i].fd = -1;
    }
    pool_close();
}

static void known_addresses_have_no_more_than_half(void **state)
{
    (void)state;
    pool_open();
    prove(1);
    for (int i = 0; i < POOL_PLACES; i++)
        pool_come(i, 1, false);
    pool_only_lost(-1, POOL_PLACES);
    pool_come(POOL_PLACES, 50, false);
    pool_only_lost(0, POOL_PLACES + 1);
    pool_close();
}

static void send_wrong_proof(int i)
{
    uint8_t wrong[RAW_HASH] = {1};
    raw_send_proof(&pool_raws[i], wrong);
}

static bool is_refused(int i)
{
    struct raw_frame frame;
    struct pollfd look = {.fd = pool_raws[i].fd, .events = POLLIN};
    if (poll(&look, 1, 0) != 1)
        return false;
    raw_expect(&pool_raws[i], REFUSE, &frame);
    assert_int_equal((int8_t)frame.payload[0], -EACCES);
    return true;
}

/* The last client with a PROOF is checked before clients from an address that has sent wrong
 * proofs, and from a known address before all. Returns how many of the six others were checked. */
static int checked_before(int from)
{
    struct raw_frame frame;
    struct ibx_conn *conn = NULL;
    uint8_t ours[RAW_HASH], theirs[RAW_HASH];
    int refused = 0;
    bool told[6];
    for (int i = 0; i < 6; i++)
        pool_come(i, 2, false);
    pool_come(6, from, false);
    for (int i = 0; i < 6; i++)
        send_wrong_proof(i);
    pool_raws[6].flags = RAW_ENCRYPT;
    raw_derive(&pool_raws[6], ours, theirs);
    raw_send_proof(&pool_raws[6], ours);
    assert_int_equal(ibx_accept(pool_scene.listener, &conn, NULL), 0);
    raw_expect(&pool_raws[6], PROOF, &frame);
    ibx_close(conn);
    for (int i = 0; i < 6; i++)
        refused += told[i] = is_refused(i);
    pool_step(); /* the others wake the listener without an event of their own */
    for (int i = 0; i < 6; i++) {
        assert_true(told[i] || is_refused(i));
        raw_close(&pool_raws[i]);
    }
    raw_close(&pool_raws[6]);
    for (int i = 0; i <= 6; i++)
        pool_raws[i].fd = -1;
    pool_step();
    return refused;
}

static void wrong_proofs_delay_nobody(void **state)
{
    (void)state;
    pool_open();
    /* the first client from an address without wrong proofs */
    assert_int_equal(checked_before(50), 1);
    assert_int_equal(checked_before(50), 0);
    assert_int_equal(checked_before(51), 0);
    pool_close();
}

/* At an address that has authenticated before, clients come after those of other addresses if
 * they send wrong proofs. */
static void wrong_proofs_at_a_known_address(void **state)
{
    (void)state;
    pool_open();
    prove(2);
    assert_int_equal(checked_before(50), 1);
    pool_close();
}

/* A client that disconnects while it waits is not checked and causes no more events. */
static void client_disconnects_while_it_waits(void **state)
{
    (void)state;
    struct linger reset = {.l_onoff = 1};
    struct pollfd wait;
    pool_open();
    for (int i = 0; i < POOL_PLACES; i++) {
        pool_come(i, 2, false);
        send_wrong_proof(i);
        if (i == POOL_PLACES / 2)
            assert_int_equal(ibx_accept(pool_scene.listener, &(struct ibx_conn *){NULL}, NULL),
                             -EAGAIN);
        setsockopt(pool_raws[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        raw_close(&pool_raws[i]);
        pool_raws[i].fd = -1;
    }
    pool_step();
    wait = (struct pollfd){.fd = ibx_listener_fd(pool_scene.listener), .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 0), 0);
    pool_close();
}

/* Clients of the same second get the same public key of the server, with different nonces. */
static void a_key_pair_serves_a_second(void **state)
{
    (void)state;
    const atomic_bool nobody_waits = true;
    pool_open();
    forward_clock_hold(true);
    pool_come(0, 2, false);
    forward_clock(999, &nobody_waits);
    pool_come(1, 3, false);
    assert_memory_equal(pool_raws[0].peer_public, pool_raws[1].peer_public, RAW_HASH);
    assert_memory_not_equal(pool_raws[0].server_nonce, pool_raws[1].server_nonce, RAW_HASH);
    forward_clock(1, &nobody_waits);
    pool_come(2, 4, false);
    assert_memory_not_equal(pool_raws[1].peer_public, pool_raws[2].peer_public, RAW_HASH);
    forward_clock_hold(false);
    pool_close();
}

/* The descriptor wakes for the deadline although nothing can be read. */
static void deadline_wakes(void **state)
{
    (void)state;
    struct raw_frame frame;
    struct ibx_error err = {0};
    struct ibx_conn *conn;
    pool_open();
    pool_scene.options.timeout_ms = 100;
    handshake_listen_again(&pool_scene);
    pool_come(0, 1, true);
    struct pollfd wait = {.fd = ibx_listener_fd(pool_scene.listener), .events = POLLIN};
    assert_int_equal(poll(&wait, 1, (int)patience_ms(10000)), 1);
    while (!err.code)
        assert_int_equal(ibx_accept(pool_scene.listener, &conn, &err), -EAGAIN);
    assert_int_equal(err.code, -ETIMEDOUT);
    raw_expect(&pool_raws[0], REFUSE, &frame); /* the server may not have had a processor */
    assert_int_equal((int8_t)frame.payload[0], -EBUSY);
    assert_true(raw_receives_end(&pool_raws[0]));
    assert_int_equal(poll(&wait, 1, 0), 0); /* nothing is left to do */
    ibx_listener_close(pool_scene.listener);
    pool_scene.options.timeout_ms = 10000;
    assert_int_equal(
        ibx_listen("rdma://127.0.0.1:0", &pool_scene.options, &pool_scene.listener, NULL), 0);
    pool_close();
}

/* The host is so busy that neither end gets a processor in time. A PROOF that has arrived counts
 * anyway, and a client that has not sent it is told to try again. */
static void busy_host_counts_proofs_that_have_arrived(void **state)
{
    (void)state;
    struct raw_frame proof, frame;
    struct ibx_error err = {0};
    struct ibx_conn *conn = NULL;
    const atomic_bool nobody_waits = true;
    pool_open();
    pool_come(0, 2, false);
    pool_come(1, 1, true);
    handshake_make_step(&pool_raws[1], AT_HELLO, &frame);
    raw_send(&pool_raws[1], frame.bytes, frame.length);
    pool_step();
    handshake_make_step(&pool_raws[1], AT_PROOF, &proof);
    raw_send(&pool_raws[1], proof.bytes, proof.length);
    forward_clock(PROVE_MS + 1, &nobody_waits);
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(10000));
    while (!conn && ibx_now_ns() < deadline)
        ibx_accept(pool_scene.listener, &conn, &err);
    assert_non_null(conn);
    ibx_close(conn);
    assert_int_equal(err.code, -ETIMEDOUT); /* the error of the other client */
    raw_expect(&pool_raws[0], REFUSE, &frame);
    assert_int_equal((int8_t)frame.payload[0], -EBUSY);
    assert_true(raw_receives_end(&pool_raws[0]));
    pool_close();
}

/* A slow client has more time while there is room. */
static void deadlines_are_shorter_when_places_are_few(void **state)
{
    (void)state;
    const atomic_bool nobody_waits = true;
    struct ibx_conn *conn;
    pool_open();
    for (int i = 0; i < POOL_PLACES / 2; i++)
        pool_come(i, 2 + i, false);
    forward_clock(CROWDED_MS + 1, &nobody_waits);
    assert_int_equal(ibx_accept(pool_scene.listener, &conn, NULL), -EAGAIN);
    pool_only_lost(-1, POOL_PLACES / 2);
    pool_come(POOL_PLACES / 2, 9, false);
    assert_int_equal(ibx_accept(pool_scene.listener, &conn, NULL), -EAGAIN);
    pool_only_lost(0, POOL_PLACES / 2 + 1); /* now half of the places are taken */
    forward_clock(PROVE_MS - CROWDED_MS, &nobody_waits);
    assert_int_equal(ibx_accept(pool_scene.listener, &conn, NULL), -EAGAIN);
    for (int i = 1; i < POOL_PLACES / 2; i++) {
        struct raw_frame frame;
        raw_expect(&pool_raws[i], REFUSE, &frame);
        assert_true(raw_receives_end(&pool_raws[i]));
    }
    assert_int_equal(
        poll(&(struct pollfd){.fd = pool_raws[POOL_PLACES / 2].fd, .events = POLLIN}, 1, 0), 0);
    pool_close();
}

/* A stranger's REFUSE is not a frame that a client may send. It is not answered with -EAGAIN, on
 * which the server would retry at once for ever, and its text is not logged. */
static void a_stranger_that_refuses(void **state)
{
    (void)state;
    uint8_t payload[64];
    pool_open();
    pool_raws[0] = raw_connect(pool_scene.port, "127.0.0.1", "127.0.0.1");
    raw_send_frame(&pool_raws[0], REFUSE, payload, raw_result(payload, -EAGAIN, "all is well"));
    raw_send(&pool_raws[0], "more", 4);
    struct ibx_error err = pool_step();
    assert_int_equal(err.code, -EPROTO);
    assert_null(strstr(err.message, "all is well"));
    pool_close();
}

/* Serves one client at an inherited listener. */
static int serve_one(void)
{
    struct ibx_conn *conn;
    alarm(30 * patience_times());
    if (ibx_accept_wait(pool_scene.listener, 10000, &conn, NULL))
        return 1;
    ibx_close(conn);
    return 0;
}

/* Without descriptors for its own events a child does not use its parent's, but tries again. */
static int serve_one_later(void)
{
    struct rlimit all, few;
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    alarm(30 * patience_times());
    getrlimit(RLIMIT_NOFILE, &all);
    few = all;
    few.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &few))
        return 2;
    for (int i = 0; i < 3; i++)
        if (ibx_accept(pool_scene.listener, &conn, &err) != -EMFILE)
            return 3 + i;
    setrlimit(RLIMIT_NOFILE, &all);
    return serve_one();
}

/* A client whose PROOF arrives while the child is stopped belongs to the child; the parent
 * ignores it. The child ends with that client. */
static void child_takes_one(pid_t child)
{
    struct raw_frame frame;
    int status;
    struct raw raw = raw_connect(pool_scene.port, "127.0.0.1", "127.0.0.1");
    raw_set_key(&raw);
    handshake_play_to(&raw, AT_PROOF);
    handshake_make_step(&raw, AT_PROOF, &frame);
    kill(child, SIGSTOP);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    raw_send(&raw, frame.bytes, frame.length);
    assert_int_equal(pool_step().code, 0);
    kill(child, SIGCONT);
    raw_expect(&raw, PROOF, &frame);
    raw_close(&raw);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_child_without_descriptors(void **state)
{
    (void)state;
    pool_open();
    pool_come(0, 1, false);
    pid_t child = fork();
    if (!child)
        _exit(serve_one_later());
    child_takes_one(child);
    pool_only_lost(-1, 1);
    pool_close();
}

/* Clients that are in their handshake stay with the parent. Parent and child accept at the same
 * descriptor. */
static void parent_and_child_accept_after_a_fork(void **state)
{
    (void)state;
    struct raw_frame frame;
    struct ibx_conn *conn = NULL;
    uint8_t ours[RAW_HASH], theirs[RAW_HASH];
    pool_open();
    pool_come(0, 1, false);
    pid_t child = fork();
    if (!child)
        _exit(serve_one());
    child_takes_one(child);
    /* the earlier client, which the child has dropped silently */
    pool_only_lost(-1, 1);
    raw_derive(&pool_raws[0], ours, theirs);
    raw_send_proof(&pool_raws[0], ours);
    assert_int_equal(ibx_accept_wait(pool_scene.listener, 10000, &conn, NULL), 0);
    raw_expect(&pool_raws[0], PROOF, &frame);
    assert_memory_equal(frame.payload, theirs, RAW_HASH);
    ibx_close(conn);
    pool_close();
}

/* A child that lives on keeps no socket of a client that was in its handshake. */
static void a_child_keeps_no_client(void **state)
{
    (void)state;
    struct raw_frame frame;
    struct ibx_conn *conn = NULL;
    uint8_t ours[RAW_HASH], theirs[RAW_HASH];
    int until[2];
    pool_open();
    pool_come(0, 1, false);
    assert_int_equal(pipe(until), 0);
    pid_t child = fork();
    if (!child) {
        close(until[1]);
        _exit(read(until[0], ours, 1) != 0); /* until the parent says so */
    }
    close(until[0]);
    raw_derive(&pool_raws[0], ours, theirs);
    raw_send_proof(&pool_raws[0], ours);
    assert_int_equal(ibx_accept_wait(pool_scene.listener, 10000, &conn, NULL), 0);
    raw_expect(&pool_raws[0], PROOF, &frame);
    ibx_close(conn);
    assert_true(raw_receives_end(&pool_raws[0]));
    close(until[1]);
    waitpid(child, NULL, 0);
    pool_close();
}

/* A child that was made without the handlers of fork(2) has the sockets of clients open. They see
 * the end all the same. */
static void a_child_delays_no_end(void **state)
{
    (void)state;
    struct raw_frame frame;
    static const uint8_t wrong[RAW_HASH];
    uint8_t ours[RAW_HASH], theirs[RAW_HASH], byte;
    int until[2];
    pool_open();
    pool_come(0, 1, false);
    assert_int_equal(pipe(until), 0);
    const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        close(until[1]);
        _exit(read(until[0], &byte, 1) != 0); /* until the parent says so */
    }
    assert_true(child > 0);
    close(until[0]);
    raw_derive(&pool_raws[0], ours, theirs);
    raw_send_proof(&pool_raws[0], wrong);
    while (!poll(&(struct pollfd){.fd = pool_raws[0].fd, .events = POLLIN}, 1, 0))
        pool_step();
    raw_expect(&pool_raws[0], REFUSE, &frame);
    assert_true(raw_receives_end(&pool_raws[0]));
    close(until[1]);
    waitpid((pid_t)child, NULL, 0);
    pool_close();
}

/* ------------------------------------------------------------------------- IPv6 */

/* Moves this process into a network namespace of its own. Returns false if that is not
 * permitted. */
static bool own_network(void)
{
    return (!unshare(CLONE_NEWNET) || !unshare(CLONE_NEWUSER | CLONE_NEWNET)) &&
           !system("ip link set lo up && ip addr add fd99::1 dev lo nodad &&"
                   " ip addr add fd99::2 dev lo nodad && ip addr add fd99:0:0:1::1 dev lo nodad");
}

static void come_from(int i, const char *from)
{
    struct sockaddr_in6 here = {.sin6_family = AF_INET6};
    struct sockaddr_in6 there = {.sin6_family = AF_INET6,
                                 .sin6_port = htons(pool_scene.port),
                                 .sin6_addr = in6addr_loopback};
    assert_int_equal(inet_pton(AF_INET6, from, &here.sin6_addr), 1);
    pool_raws[i].fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(pool_raws[i].fd, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(connect(pool_raws[i].fd, (struct sockaddr *)&there, sizeof(there)), 0);
    pool_step();
}

/* A host with one IPv6 address can use the 2^64 addresses of its network, so these count as one. */
static void addresses_of_one_network(void **state)
{
    (void)state;
    if (!own_network())
        skip();
    pool_open();
    ibx_listener_close(pool_scene.listener);
    assert_int_equal(ibx_listen("rdma://[::]:0", &pool_scene.options, &pool_scene.listener, NULL),
                     0);
    pool_scene.port = (uint16_t)atoi(strrchr(ibx_listener_uri(pool_scene.listener), ':') + 1);
    come_from(0, "fd99::1");
    come_from(1, "fd99:0:0:1::1");
    pool_come(2, 1, true); /* IPv4 mapped into IPv6 */
    pool_come(3, 2, true);
    pool_only_lost(-1, 4);
    come_from(4, "fd99::2");
    pool_only_lost(0, 5);
    pool_close();
}

static unsigned times(const char *text, const char *word)
{
    unsigned count = 0;
    while ((text = strstr(text, word)) != NULL) {
        text++;
        count++;
    }
    return count;
}

/* What the pool logs within a second about three strangers from one address, one from another,
 * and a connection that closes before its first byte. */
static void log_about_strangers(char *text, size_t size)
{
    static const uint8_t nonsense[256] = {0xff, 1, 2, 3};
    pool_open();
    const int log = memfd_create("log", MFD_CLOEXEC), before = dup(STDERR_FILENO);
    ibx_log_set_level(IBX_LOG_WARN);
    dup2(log, STDERR_FILENO);
    forward_clock_hold(true);
    for (int i = 0; i < 4; i++) { /* like a port scan, with FIN and with RST */
        const struct linger reset = {.l_onoff = i % 2};
        pool_come(i, 4 + i, true);
        setsockopt(pool_raws[i].fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        raw_close(&pool_raws[i]);
        assert_int_equal(pool_step().code, -ECONNRESET);
    }
    pool_come(4, 9, true);
    raw_send(&pool_raws[4], nonsense + 1, 1);
    raw_close(&pool_raws[4]);
    pool_raws[4].fd = -1;
    pool_step();
    for (int i = 0; i < 4; i++) {
        pool_raws[i] = raw_connect(pool_scene.port, i < 3 ? "127.0.0.2" : "127.0.0.3", "127.0.0.1");
        raw_send(&pool_raws[i], nonsense, sizeof(nonsense));
        pool_step();
    }
    dup2(before, STDERR_FILENO);
    ibx_log_set_level(IBX_LOG_ERROR);
    close(before);
    forward_clock_hold(false);
    const ssize_t n = pread(log, text, size - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    close(log);
    pool_close();
}

/* A client with a wrong key may come with several connections; one line says so. */
static void one_line_says_why(void **state)
{
    static char text[8192];
    (void)state;
    log_about_strangers(text, sizeof(text));
    assert_int_equal(times(text, "127.0.0.2:"), 1);
    assert_int_equal(times(text, "127.0.0.3:"), 1);
    assert_int_equal(times(text, "127.0.0.9:"), 1);
    for (const char *silent = "4567"; *silent; silent++)
        assert_int_equal(times(text, (char[]){'0', '.', '0', '.', *silent, ':', '\0'}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_ones_of_one_address),
        cmocka_unit_test(silent_ones_give_way_first),
        cmocka_unit_test(then_the_oldest_of_the_address_with_most_places),
        cmocka_unit_test(known_addresses_have_half_of_the_places),
        cmocka_unit_test(known_addresses_have_no_more_than_half),
        cmocka_unit_test(wrong_proofs_delay_nobody),
        cmocka_unit_test(wrong_proofs_at_a_known_address),
        cmocka_unit_test(client_disconnects_while_it_waits),
        cmocka_unit_test(a_key_pair_serves_a_second),
        cmocka_unit_test(deadline_wakes),
        cmocka_unit_test(busy_host_counts_proofs_that_have_arrived),
        cmocka_unit_test(deadlines_are_shorter_when_places_are_few),
        cmocka_unit_test(a_stranger_that_refuses),
        cmocka_unit_test(parent_and_child_accept_after_a_fork),
        cmocka_unit_test(a_child_without_descriptors),
        cmocka_unit_test(a_child_keeps_no_client),
        cmocka_unit_test(a_child_delays_no_end),
        cmocka_unit_test(one_line_says_why),
        cmocka_unit_test(addresses_of_one_network), /* must be last: it changes the network */
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
