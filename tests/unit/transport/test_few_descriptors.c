/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client or server process that has few descriptors left. Whatever their number, either a
 * connection is made, or both ends say that descriptors lack and whose limit it is. The client
 * is a child process. */
#include "tests/fixtures/patience.h"

#include "common/clock.h"
#include "common/log.h"
#include "transport/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define MORE_MAX 40u /* more descriptors than a connection takes */

enum end { CLIENT, SERVER };
enum outcome { CONNECTED, REFUSED, WITHOUT_REMEDY };

static enum end limited; /* whose descriptors are limited */
static struct ibx_options options;
static struct ibx_listener *listener;

/* Limits this process to `more` descriptors beyond those that are open. Returns the old limit. */
static struct rlimit leave(unsigned more)
{
    struct rlimit before, few;
    const int lowest = dup(STDIN_FILENO);
    close(lowest);
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = (rlim_t)lowest + more;
    setrlimit(RLIMIT_NOFILE, &few);
    return before;
}

static enum outcome outcome_of(int rc, const char *who, unsigned more, const struct ibx_error *err)
{
    static const char *const whose[] = {[CLIENT] = "of the client", [SERVER] = "of the server"};
    if (!rc)
        return CONNECTED;
    if (!strstr(err->message, strerror(EMFILE)) && !strstr(err->message, "it is not known"))
        return REFUSED;
    if (strstr(err->message, "ulimit -n") &&
        (rc != -ENOTSUP || strstr(err->message, whose[limited])))
        return REFUSED;
    print_error("the %s, %u descriptors: %s\n", who, more, err->message);
    return WITHOUT_REMEDY;
}

/* Ends the connection in the same way as the server, so that both report their reason. */
static enum outcome client(unsigned more)
{
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    if (limited == CLIENT)
        leave(more);
    const int rc = ibx_connect(ibx_listener_uri(listener), &options, &conn, &err);
    if (!rc)
        ibx_close(conn);
    return outcome_of(rc, "client", more, &err);
}

/* Whether both ends were connected. */
static bool connects(unsigned more)
{
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    struct rlimit before;
    int status, rc = -ECONNREFUSED;
    const pid_t child = fork();
    if (!child)
        _exit((int)client(more));
    if (limited == SERVER)
        before = leave(more);
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    pid_t over = 0;
    while (!conn && !(over = waitpid(child, &status, WNOHANG)) && ibx_now_ns() < deadline)
        ibx_accept_wait(listener, 10, &conn, &err);
    if (conn)
        rc = ibx_establish(conn, &err);
    if (conn)
        ibx_close(conn);
    if (limited == SERVER)
        setrlimit(RLIMIT_NOFILE, &before);
    if (!over)
        assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), WITHOUT_REMEDY);
    assert_int_not_equal(outcome_of(rc, "server", more, &err), WITHOUT_REMEDY);
    return !rc && WEXITSTATUS(status) == CONNECTED;
}

static void with_few(const char *provider, enum end who)
{
    struct ibx_error err;
    unsigned more = 0;
    char uri[64];
    limited = who;
    ibx_options_init(&options);
    options.timeout_ms = patience_ms(300); /* a server without descriptors cannot answer */
    snprintf(uri, sizeof(uri), "%s://127.0.0.1:0", provider);
    assert_int_equal(ibx_listen(uri, &options, &listener, &err), 0);
    while (!connects(more))
        assert_true(++more < MORE_MAX);
    print_message("%s takes %u descriptors of a %s\n", provider, more,
                  who == CLIENT ? "client" : "server");
    ibx_listener_close(listener);
}

static void clients_over_tcp(void **state)
{
    (void)state;
    with_few("tcp", CLIENT);
}

static void servers_over_tcp(void **state)
{
    (void)state;
    with_few("tcp", SERVER);
}

static void clients_over_shm(void **state)
{
    (void)state;
    with_few("shm", CLIENT);
}

static void servers_over_shm(void **state)
{
    (void)state;
    with_few("shm", SERVER);
}

/* A program has closed all descriptors, as if they were its own. The number of the one that tells
 * changes of the network then belongs to another socket, which may block, or have ended. */
static void changes_of_a_number_that_is_another_socket(void **state)
{
    int ends[2];
    (void)state;
    assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), errno);
    alarm(patience_ms(10000) / 1000);
    ibx_network_changes_seen(ends[0]);
    close(ends[1]);
    errno = ENOBUFS; /* of an earlier call: the end of a socket leaves it as it is */
    ibx_network_changes_seen(ends[0]);
    alarm(0);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_of_a_number_that_is_another_socket),
        cmocka_unit_test(clients_over_tcp),
        cmocka_unit_test(servers_over_tcp),
        cmocka_unit_test(clients_over_shm),
        cmocka_unit_test(servers_over_shm),
    };
    ibx_log_set_level(IBX_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
