/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients with the key among a crowd without: 2,000 sockets that say nothing, stop in the middle of
 * a HELLO, send a byte now and then, or go as far as one can without the key; and 200 new ones a
 * second, from the clients' own address and from others. Each client gets in, soon, and the server
 * holds a bounded number of descriptors and bytes.
 */
#include "common/clock.h"
#include "tests/scenes/handshake_scene.h"
#include "tests/scenes/open_fds.h"

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define CROWD       2000u
#define TICK_MS     5u /* one new one each */
#define CLIENTS     100
#define CLIENT_MS   30u /* from one to the next */
#define PLACES      64u
#define SOON_MS     5000u /* on a busy machine */
#define PLACE_BYTES 32768u

/* ------------------------------------------------------------------------ the crowd */

enum manner { SILENT, HALF_A_HELLO, DRIP, NO_PROOF, MANNERS };

struct stranger {
    int fd;
    enum manner manner;
    size_t sent;
};

static struct stranger crowd[CROWD];
static uint8_t hello[RAW_FRAME]; /* that any of them may send */
static size_t hello_length;

/* All of 127.0.0.0/8 is here: every fourth comes from the clients' address. */
static void come(struct stranger *s, uint16_t port, int epoll_fd)
{
    static unsigned number;
    number++;
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr =
                                   htonl(INADDR_LOOPBACK + (number % 4 ? number % 100 : 0))};
    *s = (struct stranger){.manner = (enum manner)(number / 4 % MANNERS)};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&from, sizeof(from)) ||
        (connect(s->fd, (struct sockaddr *)&to, sizeof(to)) && errno != EINPROGRESS)) {
        close(s->fd);
        s->fd = -1;
        return;
    }
    struct epoll_event event = {.events = EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = s};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, s->fd, &event);
}

static void say(struct stranger *s)
{
    const size_t until = s->manner == SILENT         ? 0
                         : s->manner == HALF_A_HELLO ? hello_length / 2
                         : s->manner == NO_PROOF     ? hello_length
                         : s->sent < hello_length    ? s->sent + 1
                                                     : s->sent;
    if (s->fd < 0 || until <= s->sent)
        return;
    ssize_t n = send(s->fd, hello + s->sent, until - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        s->sent += (size_t)n;
}

/* In a process of its own, until it is killed; a byte in `ready` once all have come. */
static void crowd_main(uint16_t port, int ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit limit = {.rlim_cur = CROWD + 100, .rlim_max = CROWD + 100};
    struct epoll_event events[64];
    struct itimerspec tick = {.it_interval.tv_nsec = TICK_MS * IBX_NS_PER_MS,
                              .it_value.tv_nsec = TICK_MS * IBX_NS_PER_MS};
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct epoll_event ticks = {.events = EPOLLIN, .data.ptr = NULL};
    if (setrlimit(RLIMIT_NOFILE, &limit) || timerfd_settime(timer, 0, &tick, NULL) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer, &ticks))
        _exit(1);
    for (unsigned i = 0; i < CROWD; i++)
        come(&crowd[i], port, epoll_fd);
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (unsigned next = 0;;) {
        int n = epoll_wait(epoll_fd, events, 64, -1);
        for (int i = 0; i < n; i++) {
            struct stranger *s = events[i].data.ptr;
            uint64_t times = 0;
            if (s) {
                say(s);
                continue;
            }
            if (read(timer, &times, sizeof(times)) < 0)
                _exit(1);
            for (; times; times--, next++) {
                /* The oldest one goes, and another one comes; one more byte of each that drips. */
                struct stranger *old = &crowd[next % CROWD];
                if (old->fd >= 0)
                    close(old->fd);
                come(old, port, epoll_fd);
                if (next % (1000 / TICK_MS) == 0)
                    for (unsigned j = 0; j < CROWD; j++)
                        if (crowd[j].manner == DRIP)
                            say(&crowd[j]);
            }
        }
    }
}

/* A HELLO as a client with the key sends it, from its file's point of view. */
static void make_hello(struct handshake_scene *s)
{
    struct raw_frame frame;
    struct raw raw = raw_connect(s->port, "127.0.0.1", "127.0.0.1");
    raw_set_key(&raw);
    handshake_make_step(&raw, AT_HELLO, &frame);
    memcpy(hello, frame.bytes, frame.length);
    hello_length = frame.length;
    raw_close(&raw);
}

/* ----------------------------------------------------------------------- the server */

struct server {
    struct ibx_listener *listener;
    atomic_bool over;
    int served, fds, fds_most;
    size_t bytes, bytes_most;
};

static void *server_main(void *argument)
{
    struct server *server = argument;
    struct ibx_conn *conn;
    struct pollfd wait = {.fd = ibx_listener_fd(server->listener), .events = POLLIN};
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

static void visit(const struct handshake_scene *s, const char *uri, uint64_t *longest)
{
    struct ibx_conn *conn;
    struct ibx_error err = {0};
    uint64_t began = ibx_now_ns();
    if (ibx_connect(uri, &s->options, &conn, &err))
        fail_msg("a client with the key did not get in: %s", err.message);
    uint64_t took = ibx_now_ns() - began;
    *longest = took > *longest ? took : *longest;
    ibx_close(conn);
}

static void clients_get_in_among_strangers(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct server server = {0};
    pthread_t thread;
    int ready[2];
    char byte;
    handshake_open(&s, true, 10000);
    make_hello(&s);
    ibx_listener_close(s.listener);
    s.options.unauthenticated = PLACES;
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s.options, &server.listener, NULL), 0);
    s.port = (uint16_t)atoi(strrchr(ibx_listener_uri(server.listener), ':') + 1);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child)
        crowd_main(s.port, ready[1]);
    close(ready[1]);
    pthread_create(&thread, NULL, server_main, &server);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);

    uint64_t longest = 0, times;
    struct itimerspec tick = {.it_interval.tv_nsec = CLIENT_MS * IBX_NS_PER_MS,
                              .it_value.tv_nsec = 1};
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    timerfd_settime(timer, 0, &tick, NULL);
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(read(timer, &times, sizeof(times)), sizeof(times));
        visit(&s, ibx_listener_uri(server.listener), &longest);
    }
    close(timer);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    server.over = true;
    pthread_join(thread, NULL);
    print_message("the slowest client took %.1f ms; %d descriptors and %zu KiB more at most\n",
                  (double)longest / 1e6, server.fds_most - server.fds,
                  (server.bytes_most - server.bytes) / 1024);
    assert_int_equal(server.served, CLIENTS);
    assert_true(longest < SOON_MS * IBX_NS_PER_MS);
    /* Beside the strangers: one who has proven itself, and the clients of this process. */
    assert_true(server.fds_most - server.fds <= (int)PLACES + 16);
    assert_true(server.bytes_most <= server.bytes + PLACES * PLACE_BYTES + (1 << 20));
    ibx_listener_close(server.listener);
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s.options, &s.listener, NULL), 0);
    handshake_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_get_in_among_strangers),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
