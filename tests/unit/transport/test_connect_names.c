/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connecting to a name that has several addresses. An address that does not answer costs a
 * moment only; of all addresses' errors the most informative one is reported. Also: a socket
 * that TCP connects to itself is not taken for a server. */
#include "common/clock.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define ADDRESSES  3u
#define LONG_MS    600000u
#define PATIENT_NS (60000 * IBX_NS_PER_MS)
#define QUEUED     2u

/* the addresses that the name resolves to */
static struct sockaddr_in addresses[ADDRESSES];
static struct addrinfo list[ADDRESSES];
static unsigned count;

int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **res);
void __wrap_freeaddrinfo(struct addrinfo *res);
int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);

int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **res)
{
    (void)service;
    (void)hints;
    assert_true(!strcmp(node, "many") || !strcmp(node, "localhost"));
    for (unsigned i = 0; i < count; i++)
        list[i] = (struct addrinfo){.ai_family = AF_INET,
                                    .ai_addr = (struct sockaddr *)&addresses[i],
                                    .ai_addrlen = sizeof(addresses[i]),
                                    .ai_next = i + 1 < count ? &list[i + 1] : NULL};
    *res = list;
    return 0;
}

void __wrap_freeaddrinfo(struct addrinfo *res)
{
    assert_ptr_equal(res, list);
}

/* If set, each new socket is bound to this address, which the kernel could also choose. */
static const struct sockaddr_in *local;
static bool no_descriptors;

int __wrap_socket(int domain, int type, int protocol)
{
    if (no_descriptors) {
        errno = EMFILE;
        return -1;
    }
    const int one = 1, fd = __real_socket(domain, type, protocol);
    if (fd < 0 || !local)
        return fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    assert_int_equal(bind(fd, (const struct sockaddr *)local, sizeof(*local)), 0);
    return fd;
}

/* A listening socket on some port of this host. */
static int listen_at(struct sockaddr_in *at)
{
    socklen_t length = sizeof(*at);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof(*at)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &length), 0);
    assert_int_equal(listen(fd, 0), 0);
    return fd;
}

/* Gives an address at which nobody listens. */
static void refusing(struct sockaddr_in *at)
{
    close(listen_at(at));
}

/* A listener whose queue is full: the kernel drops further requests. */
struct silent {
    int listening, queued[QUEUED];
};

static struct silent silent_at(struct sockaddr_in *at)
{
    struct silent silent = {.listening = listen_at(at)};
    for (unsigned i = 0; i < QUEUED; i++) {
        silent.queued[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(silent.queued[i], (struct sockaddr *)at, sizeof(*at)))
            assert_int_equal(errno, EINPROGRESS);
    }
    return silent;
}

static void silent_end(struct silent *silent)
{
    for (unsigned i = 0; i < QUEUED; i++)
        close(silent->queued[i]);
    close(silent->listening);
}

static int connect_to_many(unsigned timeout_ms, int *fd, struct ibx_error *err)
{
    const struct ibx_uri uri = {.scheme = "rdma", .host = "many", .port = 1};
    *fd = -1;
    return ibx_handshake_connect(&uri, NULL, timeout_ms, NULL, fd, NULL, err);
}

static void expect_connected(const struct sockaddr_in *to)
{
    struct sockaddr_in peer;
    socklen_t length = sizeof(peer);
    struct ibx_error err = {0};
    int fd;
    const uint64_t began = ibx_now_ns();
    if (connect_to_many(LONG_MS, &fd, &err))
        fail_msg("%s", err.message);
    assert_true(ibx_now_ns() - began < PATIENT_NS);
    assert_int_equal(getpeername(fd, (struct sockaddr *)&peer, &length), 0);
    assert_int_equal(peer.sin_port, to->sin_port);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    close(fd);
}

static void test_the_first_address_is_silent(void **state)
{
    (void)state;
    struct silent silent = silent_at(&addresses[0]);
    const int good = listen_at(&addresses[1]);
    count = 2;
    expect_connected(&addresses[1]);
    close(good);
    silent_end(&silent);
}

static void test_refused_then_silent_then_good(void **state)
{
    (void)state;
    refusing(&addresses[0]);
    struct silent silent = silent_at(&addresses[1]);
    const int good = listen_at(&addresses[2]);
    count = 3;
    expect_connected(&addresses[2]);
    close(good);
    silent_end(&silent);
}

static void test_all_are_silent(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    struct silent silent = silent_at(&addresses[0]);
    int fd;
    addresses[1] = addresses[0];
    count = 2;
    assert_int_equal(connect_to_many(50, &fd, &err), -ETIMEDOUT);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, "many port 1"));
    assert_non_null(strstr(err.message, "no reply in time"));
    silent_end(&silent);
}

static void test_all_refuse(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    int fd;
    refusing(&addresses[0]);
    addresses[1] = addresses[0];
    count = 2;
    assert_int_equal(connect_to_many(LONG_MS, &fd, &err), -ECONNREFUSED);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, "start the server there"));
}

/* The host has no route for one of the name's kinds of addresses. The client learns this first,
 * but it is not the reason why it cannot reach the server. */
static void test_refusal_is_reported_before_missing_route(void **state)
{
    (void)state;
    for (unsigned refused = 0; refused < 2; refused++) {
        struct ibx_error err = {0};
        int fd;
        refusing(&addresses[refused]);
        addresses[!refused] = (struct sockaddr_in){.sin_family = AF_INET,
                                                   .sin_addr = {htonl(INADDR_ALLHOSTS_GROUP)},
                                                   .sin_port = htons(1)};
        count = 2;
        assert_int_equal(connect_to_many(LONG_MS, &fd, &err), -ECONNREFUSED);
        assert_non_null(strstr(err.message, "start the server there"));
    }
}

/* If nobody listens at a port, TCP may connect a socket to itself when the kernel chooses the
 * same local port. */
static void test_socket_connected_to_itself(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    int fd;
    refusing(&addresses[0]);
    count = 1;
    local = &addresses[0];
    const int rc = connect_to_many(LONG_MS, &fd, &err);
    local = NULL;
    assert_int_equal(rc, -ECONNREFUSED);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, "start the server there"));
    /* Nothing occupies the port afterwards: a server can start there at once. */
    const int server = __real_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server, (struct sockaddr *)&addresses[0], sizeof(addresses[0])), 0);
    close(server);
}

static void test_no_descriptors_left(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_listener *listener;
    struct ibx_error err = {0};
    int fd;
    ibx_options_init(&options);
    refusing(&addresses[0]);
    count = 1;
    no_descriptors = true;
    const int connecting = connect_to_many(LONG_MS, &fd, &err);
    struct ibx_error of_listening = {0};
    const int listening = ibx_listen("rdma://many:0", &options, &listener, &of_listening);
    no_descriptors = false;
    assert_int_equal(connecting, -EMFILE);
    assert_non_null(strstr(err.message, "ulimit -n"));
    assert_null(strstr(err.message, "no server answers")); /* nobody was asked */
    assert_int_equal(listening, -EMFILE);
    assert_non_null(strstr(of_listening.message, "ulimit -n"));
}

/* A server at such a name listens at the first address that it can have, and says so. All of
 * localhost's are for this host alone. */
static void test_a_server_says_at_which_address_it_listens(void **state)
{
    (void)state;
    struct ibx_options options;
    char logged[512] = "";
    static const char *const uris[] = {"rdma://many:0", "rdma://many:0", "rdma://localhost:0"};
    for (unsigned k = 0; k < 3; k++) {
        struct ibx_listener *listener;
        count = k ? 2 : 1;
        for (unsigned i = 0; i < count; i++)
            addresses[i] = (struct sockaddr_in){.sin_family = AF_INET,
                                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i)};
        const int before = dup(STDERR_FILENO), file = memfd_create("log", MFD_CLOEXEC);
        ibx_options_init(&options);
        assert_true(before >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
        const int rc = ibx_listen(uris[k], &options, &listener, NULL);
        dup2(before, STDERR_FILENO);
        close(before);
        assert_int_equal(rc, 0);
        const ssize_t n = pread(file, logged, sizeof(logged) - 1, 0);
        assert_true(k < 2 ? n > 0 : n == 0);
        logged[n] = '\0';
        close(file);
        ibx_listener_close(listener);
        const bool told = strstr(logged, "\"many\" has several addresses, and this listens at "
                                         "127.0.0.1 port ") != NULL;
        assert_int_equal(told, k == 1);
        assert_true(k < 2 || !strstr(logged, "several"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_address_is_silent),
        cmocka_unit_test(test_refused_then_silent_then_good),
        cmocka_unit_test(test_all_are_silent),
        cmocka_unit_test(test_all_refuse),
        cmocka_unit_test(test_refusal_is_reported_before_missing_route),
        cmocka_unit_test(test_socket_connected_to_itself),
        cmocka_unit_test(test_no_descriptors_left),
        cmocka_unit_test(test_a_server_says_at_which_address_it_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
