/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Listening: full queues, sockets that are in use or left behind, and errors with advice. */
#include "common/clock.h"
#include "common/descriptor.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/thread_state.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define QUEUED_MAX 8

static unsigned patience; /* milliseconds for what must happen; set by main() */
static char directory[] = "/tmp/ibx-test-XXXXXX";
static struct ibx_uri uri;
static int listener;
static int queued[QUEUED_MAX]; /* connected but not accepted */
static unsigned queued_count;

static int full_queue(void **state)
{
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(directory, "/tmp/ibx-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    uri = (struct ibx_uri){.scheme = "rdma"};
    snprintf(uri.path, sizeof(uri.path), "%s/socket", directory);
    memcpy(address.sun_path, uri.path, sizeof(address.sun_path));
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(listener, 0), 0);
    queued_count = 0;
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
        int code = errno;
        assert_true(queued_count < QUEUED_MAX);
        queued[queued_count++] = fd;
        if (rc) {
            assert_int_equal(code, EAGAIN);
            return 0;
        }
    }
}

static int end(void **state)
{
    (void)state;
    while (queued_count)
        close(queued[--queued_count]);
    close(listener);
    unlink(uri.path);
    rmdir(directory);
    return 0;
}

struct client {
    pthread_t thread;
    atomic_int tid;
    int rc, fd;
};

static void *client_run(void *arg)
{
    struct client *client = arg;
    struct ibx_error err = {0};
    atomic_store(&client->tid, gettid());
    client->rc = ibx_handshake_connect(&uri, NULL, patience, NULL, &client->fd, NULL, &err);
    return NULL;
}

/* Waits until the kernel reports that the thread sleeps. */
static void await_asleep(const struct client *client)
{
    uint64_t deadline = ibx_deadline_in_ms(patience);
    while (thread_state(getpid(), atomic_load(&client->tid)) != 'S') {
        assert_true(ibx_now_ns() < deadline);
        sched_yield();
    }
}

static void test_client_waits_for_a_full_queue(void **state)
{
    (void)state;
    struct client client = {.fd = -1};
    assert_int_equal(pthread_create(&client.thread, NULL, client_run, &client), 0);
    await_asleep(&client);
    int taken = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(taken >= 0);
    pthread_join(client.thread, NULL);
    assert_int_equal(client.rc, 0);
    assert_true(fcntl(client.fd, F_GETFL) & O_NONBLOCK);
    struct timeval limit = {.tv_sec = 1};
    socklen_t length = sizeof(limit);
    assert_int_equal(getsockopt(client.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &length), 0);
    assert_true(!limit.tv_sec && !limit.tv_usec);
    close(client.fd);
    close(taken);
}

static void test_client_stops_waiting_for_a_full_queue(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    int fd = -1;
    assert_int_equal(ibx_handshake_connect(&uri, NULL, 20, NULL, &fd, NULL, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.message, uri.path));
    assert_non_null(strstr(err.message, "full"));
    assert_int_equal(fd, -1);
}

static atomic_uint asked;

static bool ends_soon(void)
{
    return atomic_fetch_add(&asked, 1) > 1;
}

/* It waits for a long time, and is told to end meanwhile. */
static void test_client_is_told_to_end(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    const uint64_t before = ibx_now_ns();
    int fd = -1;
    assert_int_equal(ibx_handshake_connect(&uri, NULL, 3 * patience, ends_soon, &fd, NULL, &err),
                     -EINTR);
    assert_non_null(strstr(err.message, "told to end"));
    assert_true(ibx_now_ns() - before < patience * IBX_NS_PER_MS);
    assert_int_equal(fd, -1);
}

/* A second process that wants to listen there learns at once that the address is in use. */
static void test_second_listener_is_refused(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_listener *second;
    struct ibx_error err = {0};
    char text[160];
    ibx_options_init(&options);
    snprintf(text, sizeof(text), "rdma://%s", uri.path);
    assert_int_equal(ibx_listen(text, &options, &second, &err), -EADDRINUSE);
    assert_int_equal(access(uri.path, F_OK), 0);
}

static void *let_go(void *old)
{
    poll(NULL, 0, 50); /* like the kernel, which closes a killed process's sockets a moment later */
    close(*(int *)old);
    return NULL;
}

/* A killed server that is restarted at once may come before the kernel has closed the old
 * sockets. */
static void test_port_is_released_a_moment_later(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(at);
    int old = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct ibx_options options;
    struct ibx_listener *again;
    pthread_t kernel;
    char text[160];
    assert_int_equal(bind(old, (struct sockaddr *)&at, length), 0);
    assert_int_equal(listen(old, 1), 0);
    assert_int_equal(getsockname(old, (struct sockaddr *)&at, &length), 0);
    snprintf(text, sizeof(text), "rdma://127.0.0.1:%u", ntohs(at.sin_port));
    ibx_options_init(&options);
    assert_int_equal(pthread_create(&kernel, NULL, let_go, &old), 0);
    assert_int_equal(ibx_listen(text, &options, &again, NULL), 0);
    pthread_join(kernel, NULL);
    ibx_listener_close(again);
}

/* A child that closes an inherited listener must not remove its socket file. */
static void test_a_forked_child_leaves_the_socket(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_listener *l;
    char text[160];
    int status;
    ibx_options_init(&options);
    snprintf(text, sizeof(text), "rdma://%s.other", uri.path);
    assert_int_equal(ibx_listen(text, &options, &l, NULL), 0);
    pid_t pid = fork();
    if (!pid) {
        ibx_listener_close(l);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(access(strchr(text, '/') + 2, F_OK), 0);
    ibx_listener_close(l);
    assert_int_not_equal(access(strchr(text, '/') + 2, F_OK), 0);
}

/* A server whose socket somebody has removed leaves alone what is there when it ends: the socket of
 * the next one, or another file to which the path leads by then. */
static void test_anothers_socket_stays(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_listener *first, *second;
    char text[160], moved[160], folder[] = "/tmp/ibx-test-XXXXXX";
    const char *path = text + strlen("rdma://");
    assert_non_null(mkdtemp(folder));
    ibx_options_init(&options);
    snprintf(text, sizeof(text), "rdma://%s/socket", folder);
    snprintf(moved, sizeof(moved), "%s.moved", folder);
    assert_int_equal(ibx_listen(text, &options, &first, NULL), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ibx_listen(text, &options, &second, NULL), 0);
    ibx_listener_close(first);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(rename(folder, moved), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
    const int other = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(other >= 0);
    close(other);
    ibx_listener_close(second);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    strncat(moved, "/socket", sizeof(moved) - strlen(moved) - 1);
    assert_int_equal(unlink(moved), 0);
    *strrchr(moved, '/') = '\0';
    assert_int_equal(rmdir(moved), 0);
}

#define AT_ONCE 4
#define ROUNDS  50

struct server {
    pthread_t thread;
    pthread_barrier_t *begin;
    const char *text;
    struct ibx_listener *listener;
    int rc;
};

static void *serve(void *arg)
{
    struct server *server = arg;
    struct ibx_options options;
    ibx_options_init(&options);
    pthread_barrier_wait(server->begin);
    server->rc = ibx_listen(server->text, &options, &server->listener, NULL);
    return NULL;
}

/* Several servers start at once at the socket of a killed one. One of them gets it, and the
 * others learn that it is in use. */
static void test_one_of_several_servers_gets_a_left_socket(void **state)
{
    (void)state;
    char place[] = "/tmp/ibx-test-XXXXXX", text[64];
    pthread_barrier_t begin;
    assert_non_null(mkdtemp(place));
    snprintf(text, sizeof(text), "rdma://%s/socket", place);
    assert_int_equal(pthread_barrier_init(&begin, NULL, AT_ONCE), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct server servers[AT_ONCE];
        int left = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), good = 0;
        snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", place);
        assert_int_equal(bind(left, (struct sockaddr *)&address, sizeof(address)), 0);
        close(left);
        for (int i = 0; i < AT_ONCE; i++) {
            servers[i] = (struct server){.begin = &begin, .text = text};
            assert_int_equal(pthread_create(&servers[i].thread, NULL, serve, &servers[i]), 0);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            pthread_join(servers[i].thread, NULL);
            good += !servers[i].rc;
            assert_true(!servers[i].rc || servers[i].rc == -EADDRINUSE);
        }
        assert_int_equal(good, 1);
        for (int i = 0; i < AT_ONCE; i++)
            ibx_listener_close(servers[i].listener);
        assert_int_not_equal(access(address.sun_path, F_OK), 0);
    }
    pthread_barrier_destroy(&begin);
    assert_int_equal(rmdir(place), 0);
}

static void expect_listening(const char *text, int code, const char *remedy)
{
    struct ibx_options options;
    struct ibx_listener *none;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    assert_int_equal(ibx_listen(text, &options, &none, &err), code);
    if (!strstr(err.message, remedy))
        fail_msg("\"%s\" lacks \"%s\"", err.message, remedy);
}

static void expect_connecting(const char *text, int code, const char *remedy)
{
    struct ibx_uri there;
    struct ibx_error err = {0};
    int fd = -1;
    assert_int_equal(ibx_uri_parse(text, &there, NULL), 0);
    assert_int_equal(ibx_handshake_connect(&there, NULL, patience, NULL, &fd, NULL, &err), code);
    if (!strstr(err.message, remedy))
        fail_msg("\"%s\" lacks \"%s\"", err.message, remedy);
}

/* Listens at a URI and returns what that logs on standard error. */
static void listen_and_log(const char *text, char *logged, size_t size)
{
    struct ibx_options options;
    struct ibx_listener *l;
    int before = dup(STDERR_FILENO), file = memfd_create("log", MFD_CLOEXEC);
    ibx_options_init(&options);
    assert_true(before >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    int rc = ibx_listen(text, &options, &l, NULL);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_int_equal(rc, 0);
    ssize_t n = pread(file, logged, size - 1, 0);
    assert_true(n >= 0);
    logged[n] = '\0';
    close(file);
    ibx_listener_close(l);
}

/* The resolver reads "127.1" as 127.0.0.1; to ibx it is a name. */
static void test_name_of_loopback(void **state)
{
    (void)state;
    char logged[512];
    listen_and_log("rdma://127.1:0", logged, sizeof(logged));
    assert_non_null(strstr(logged, "\"127.1\" is 127.0.0.1 here, so no other host can connect"));
    listen_and_log("rdma://127.0.0.1:0", logged, sizeof(logged));
    assert_string_equal(logged, "");
    listen_and_log("rdma://localhost:0", logged, sizeof(logged));
    assert_string_equal(logged, "");
    listen_and_log("rdma://0.0.0.0:0", logged, sizeof(logged));
    assert_string_equal(logged, "");
}

static void test_errors_say_what_to_do(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_listener *first;
    char here[IBX_ERROR_MAX];
    ibx_options_init(&options);
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &options, &first, NULL), 0);
    snprintf(here, sizeof(here), "%s", ibx_listener_uri(first));
    expect_listening(here, -EADDRINUSE, "in use; stop the server there");
    ibx_listener_close(first);
    expect_connecting(here, -ECONNREFUSED, "refused; start the server there");
    expect_listening("rdma://192.0.2.1:0", -EADDRNOTAVAIL, "; give an address of this host");
    expect_listening("rdma:///nosuch/ibx/socket", -ENOENT, "; make its folder");
    expect_connecting("rdma:///nosuch/ibx/socket", -ECONNREFUSED,
                      "No such file or directory; start the server there");
}

#define CANNOT_FAIL 77

static bool connecting_says(const char *text, int code, const char *remedy)
{
    struct ibx_uri there;
    struct ibx_error err = {0};
    int fd = -1;
    const bool says =
        !ibx_uri_parse(text, &there, NULL) &&
        ibx_handshake_connect(&there, NULL, patience, NULL, &fd, NULL, &err) == -code &&
        strstr(err.message, remedy) && !strstr(err.message, "listen");
    if (!says)
        fprintf(stderr, "\"%s\" lacks \"%s\"\n", err.message, remedy);
    return says;
}

/* Checks the messages for a connection to an address and to a socket's path. */
static int refused_says(int code, const char *by_address, const char *by_path)
{
    if (!deny_call(SYS_connect, code))
        return CANNOT_FAIL;
    return !connecting_says("rdma://127.0.0.1:1", code, by_address) +
           !connecting_says("rdma:///tmp/socket", code, by_path);
}

static void test_advice_is_about_connecting(void **state)
{
    static const char rule[] = "; look for a rule that forbids it: of a firewall";
    static const char user[] = "; run this as a user who may write it";
    const struct {
        int code;
        const char *by_address, *by_path;
    } cases[] = {{EPERM, rule, user},
                 {EACCES, rule, user},
                 {EADDRNOTAVAIL, "; give an address of a kind that this host has one of", ""}};
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int status;
        const pid_t child = fork();
        if (!child)
            _exit(refused_says(cases[i].code, cases[i].by_address, cases[i].by_path));
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_FAIL)
            skip();
        assert_int_equal(status, 0);
    }
}

static bool strangers_without_end;

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    if (!strangers_without_end)
        return __real_poll(fds, count, timeout_ms);
    fds[0].revents = POLLIN;
    return 1;
}

/* Unauthenticated clients always give the server something to do, and none of them
 * authenticates. */
static void test_unauthenticated_clients_delay_no_deadline(void **state)
{
    struct ibx_options options;
    struct ibx_listener *listening;
    struct ibx_conn *conn;
    (void)state;
    ibx_options_init(&options);
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &options, &listening, NULL), 0);
    strangers_without_end = true;
    const int rc = ibx_accept_wait(listening, 100, &conn, NULL);
    strangers_without_end = false;
    assert_int_equal(rc, -ETIMEDOUT);
    ibx_listener_close(listening);
}

/* A server without a usable provider does not start. */
static void test_no_provider(void **state)
{
    static const char nowhere[] = "rdma://127.0.0.1:0?provider=verbs,ofi&device=no_such_device";
    struct ibx_options options;
    struct ibx_error err = {0};
    (void)state;
    ibx_options_init(&options);
    assert_true(ibx_listen_check(nowhere, &options, &err) < 0);
    assert_non_null(strstr(err.message, "nobody could be served at rdma://127.0.0.1:0?"));
    assert_true(ibx_listen_check("verbs://127.0.0.1:0?device=no_such_device", &options, &err) < 0);
    assert_int_equal(ibx_listen_check("verbs://127.0.0.1", &options, &err), -EINVAL);
    strcpy(options.device, "no_such_device"); /* tcp needs no device */
    assert_int_equal(ibx_listen_check("rdma://127.0.0.1:0", &options, &err), 0);
    assert_int_equal(ibx_listen_check("tcp://127.0.0.1:0", &options, &err), 0);
}

/* What a faulty process might send in place of a connection: fewer bytes, and none. The descriptor
 * with them is closed. */
static void test_what_is_no_connection(void **state)
{
    static const int expected[] = {-ENOTCONN, -EPROTO};
    struct ibx_options options;
    (void)state;
    ibx_options_init(&options);
    for (size_t bytes = 0; bytes < 2; bytes++) {
        char byte = 0;
        struct iovec data = {&byte, bytes};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
        union ibx_descriptor_room room;
        struct ibx_conn *conn;
        uint64_t taken = 0;
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        ibx_descriptor_add(&message, &room, ends[1]);
        assert_int_equal(sendmsg(ends[0], &message, 0), bytes);
        const int before = open_fds();
        assert_int_equal(ibx_handshake_take(ends[1], &options, &taken, &conn, NULL),
                         expected[bytes]);
        assert_int_equal(taken, bytes);
        assert_int_equal(open_fds(), before);
        close(ends[0]);
        close(ends[1]);
    }
}

int main(void)
{
    patience = patience_ms(20000);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_client_waits_for_a_full_queue, full_queue, end),
        cmocka_unit_test_setup_teardown(test_client_stops_waiting_for_a_full_queue, full_queue,
                                        end),
        cmocka_unit_test_setup_teardown(test_client_is_told_to_end, full_queue, end),
        cmocka_unit_test_setup_teardown(test_second_listener_is_refused, full_queue, end),
        cmocka_unit_test_setup_teardown(test_a_forked_child_leaves_the_socket, full_queue, end),
        cmocka_unit_test(test_anothers_socket_stays),
        cmocka_unit_test(test_one_of_several_servers_gets_a_left_socket),
        cmocka_unit_test(test_port_is_released_a_moment_later),
        cmocka_unit_test(test_name_of_loopback),
        cmocka_unit_test(test_errors_say_what_to_do),
        cmocka_unit_test(test_advice_is_about_connecting),
        cmocka_unit_test(test_unauthenticated_clients_delay_no_deadline),
        cmocka_unit_test(test_no_provider),
        cmocka_unit_test(test_what_is_no_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
