/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Clients without a key accept only servers on this host that belong to their own user or to
 * root. */
#include "tests/fixtures/client_scene.h"

#include "tests/fixtures/patience.h"
#include "transport/handshake/handshake.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* The server's socket is not the peer of the client's socket: a process of this host forwards
 * the bytes, perhaps to a clone of this host. So the kernel cannot say who the server is. */
static void without_a_key_no_process_in_between(void **state)
{
    (void)state;
    struct scene s;
    uint8_t payload[300];
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    size_t n = put_challenge(&raw, false, payload);
    int other = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    raw_end_mark(&raw, other, payload + n);
    close(other);
    raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
    expect_failure(&s, -EACCES,
                   "forwards to another one, which cannot be authenticated without a key");
    assert_true(raw_receives_end(&raw));
    raw_close(&raw);
    close_scene(&s);
}

/* Without a key nothing can be proven. The client sends nothing to another host unless an option
 * allows it. */
static void without_a_key_no_other_host(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    challenge_from_another_host(&raw);
    expect_failure(
        &s, -EACCES,
        "is on another host and cannot be authenticated without a key: set rdma.key_file "
        "(--key-file) on both "
        "ends, or rdma.insecure : yes (--set insecure=yes)");
    assert_true(raw_receives_end(&raw));
    raw_close(&raw);
    close_scene(&s);
}

/* Runs a server as user `uid` until it has sent its CHALLENGE and sees the connection end, or
 * until `parent`, which may not be allowed to kill it, has ended. */
static int serve_as(uid_t uid, int listening, pid_t parent)
{
    struct raw_frame frame;
    alarm(30 * patience_times());
    struct pollfd comes = {.fd = listening, .events = POLLIN};
    if (setresuid(uid, uid, uid))
        return 1;
    while (poll(&comes, 1, 100) == 0)
        if (getppid() != parent)
            return 1;
    struct raw raw = raw_accept(listening);
    make_step(&raw, AT_CHALLENGE, &frame);
    raw_send(&raw, frame.bytes, frame.length);
    return !raw_receives_end(&raw);
}

static void without_a_key_no_other_user(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    struct scene s;
    int status;
    open_scene(&s, false, 10000);
    const pid_t own = getpid(), server = fork();
    if (!server)
        _exit(serve_as(12345, s.listening, own));
    client(&s);
    assert_int_equal(s.rc, -EACCES);
    assert_non_null(strstr(
        s.err.message,
        "belongs to user 12345, not to user 0 or root: set "
        "rdma.key_file (--key-file) on both ends, or rdma.insecure : yes (--set insecure=yes)"));
    assert_int_equal(waitpid(server, &status, 0), server);
    assert_int_equal(status, 0);
    close_scene(&s);
}

static bool write_to(const char *file, const char *text)
{
    const int fd = open(file, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return written;
}

/* Becomes user 65534 (nobody) of a user namespace that maps only this user, so that all other
 * users appear as nobody too. */
static bool become_nobody(void)
{
    return !setresuid(12346, 12346, 12346) && !prctl(PR_SET_DUMPABLE, 1) &&
           !unshare(CLONE_NEWUSER) && write_to("/proc/self/uid_map", "65534 12346 1");
}

#define CANNOT 77

/* A server whose user is not mapped in this namespace is not taken for this user's. */
static int client_as_nobody(struct scene *s)
{
    alarm(30 * patience_times());
    const pid_t own = getpid(), server = fork();
    if (!server)
        _exit(serve_as(12345, s->listening, own));
    if (!become_nobody())
        return CANNOT;
    client(s);
    return !(s->rc == -EACCES && geteuid() == 65534 &&
             strstr(s->err.message, "it is not known which user the server at"));
}

static void without_a_key_no_user_from_outside(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    struct scene s;
    int status;
    open_scene(&s, false, 10000);
    const pid_t child = fork();
    if (!child)
        _exit(client_as_nobody(&s));
    assert_int_equal(waitpid(child, &status, 0), child);
    close_scene(&s);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT)
        skip();
    assert_int_equal(status, 0);
}

/* The server's CHALLENGE and its end arrive together. Returns whether the client connects again:
 * it does not if it asked the kernel for the socket's owner in time. */
static bool connects_again(struct scene *s, bool resets)
{
    const struct linger at_once = {.l_onoff = resets};
    struct raw_frame frame;
    struct pollfd again = {.fd = s->listening, .events = POLLIN};
    const int one = 1;
    struct raw raw = take_client(s);
    make_step(&raw, AT_CHALLENGE, &frame);
    setsockopt(raw.fd, IPPROTO_TCP, TCP_CORK, &one, sizeof(one));
    raw_send(&raw, frame.bytes, frame.length);
    if (resets) {
        setsockopt(raw.fd, IPPROTO_TCP, TCP_CORK, &(int){0}, sizeof(int));
        setsockopt(raw.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    raw_close(&raw);
    while (!s->over && poll(&again, 1, 10) <= 0)
        ;
    return !s->over;
}

/* A busy server refuses clients. This says nothing about its user or its host. */
static void from_a_server_that_has_closed(bool resets)
{
    struct scene s;
    struct raw_frame frame;
    for (open_scene(&s, false, 10000); !connects_again(&s, resets); open_scene(&s, false, 10000)) {
        expect_failure(&s, -ECONNRESET, "the handshake with");
        close_scene(&s);
    }
    struct raw raw = raw_accept(s.listening);
    play_to(&raw, STEPS);
    raw_expect(&raw, RESULT, &frame);
    assert_int_equal(client_result(&s), 0);
    raw_close(&raw);
    close_scene(&s);
}

static void without_a_key_from_a_server_that_has_closed(void **state)
{
    (void)state;
    from_a_server_that_has_closed(false);
}

static void without_a_key_from_a_server_that_resets(void **state)
{
    (void)state;
    from_a_server_that_has_closed(true);
}

/* Opens a socket that listens at this address, and one connected to it. -1: this host has no
 * such address. */
static int connected_at(const char *host, int *listening)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    const bool is_four = inet_pton(AF_INET, host, &four.sin_addr) == 1;
    struct sockaddr *address = is_four ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    socklen_t length = is_four ? sizeof(four) : sizeof(six);
    assert_true(is_four || inet_pton(AF_INET6, host, &six.sin6_addr) == 1);
    *listening = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(*listening, address, length)) {
        close(*listening);
        return -1;
    }
    assert_int_equal(listen(*listening, 1), 0);
    getsockname(*listening, address, &length);
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, address, length), 0);
    return fd;
}

/* Finds the user at the other end, for sockets of every kind, once the connection is accepted. */
static void user_at_the_other_end(void **state)
{
    (void)state;
    static const char *const hosts[] = {"127.0.0.1", "::1", "::ffff:127.0.0.1"};
    for (int i = 0; i < 3; i++) {
        int listening;
        uid_t uid = 4711;
        const int fd = connected_at(hosts[i], &listening);
        if (fd < 0) /* this host has no IPv6 */
            continue;
        assert_int_equal(ibx_handshake_peer_user(fd, &uid), -ENOENT);
        int accepted = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        assert_int_equal(ibx_handshake_peer_user(fd, &uid), 0);
        assert_int_equal(uid, geteuid());
        close(accepted);
        close(fd);
        close(listening);
    }
    int pair[2];
    uid_t uid = 4711;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(ibx_handshake_peer_user(pair[0], &uid), 0);
    assert_int_equal(uid, geteuid());
    close(pair[0]);
    close(pair[1]);
}

/* The kernel is asked about one socket. Reading its table of all sockets would take
 * milliseconds. */
static void user_is_found_without_the_table(void **state)
{
    (void)state;
    int listening, status;
    const int fd = connected_at("127.0.0.1", &listening);
    assert_true(fd >= 0);
    int accepted = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    pid_t child = fork();
    if (!child) {
        uid_t uid = 4711;
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
            mount("none", "/proc", "tmpfs", 0, NULL))
            _exit(2); /* not permitted here */
        _exit(ibx_handshake_peer_user(fd, &uid) || uid != geteuid());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    close(accepted);
    close(fd);
    close(listening);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_key_no_other_host),
        cmocka_unit_test(without_a_key_no_process_in_between),
        cmocka_unit_test(without_a_key_no_other_user),
        cmocka_unit_test(without_a_key_no_user_from_outside),
        cmocka_unit_test(without_a_key_from_a_server_that_has_closed),
        cmocka_unit_test(without_a_key_from_a_server_that_resets),
        cmocka_unit_test(user_at_the_other_end),
        cmocka_unit_test(user_is_found_without_the_table),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
