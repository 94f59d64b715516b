/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Descriptors that are sent with messages. The receiver keeps one of those that a message
 * carries and closes the others. A sender is refused when too many descriptors are in flight. */
#include "common/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static unsigned open_now(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 64; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void send_one(int socket, int fd)
{
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union ibx_descriptor_room room;
    ibx_descriptor_add(&message, &room, fd);
    assert_int_equal(sendmsg(socket, &message, 0), 1);
}

/* Sends several descriptors with one message, as a faulty or hostile peer may. */
static void send_several(int socket, const int *fds, size_t count)
{
    char byte = 'x';
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } several = {.bytes = {0}};
    const struct msghdr message = {.msg_iov = &part,
                                   .msg_iovlen = 1,
                                   .msg_control = &several,
                                   .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    several.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)),
                                      .cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&several.header), fds, count * sizeof(int));
    assert_int_equal(sendmsg(socket, &message, 0), 1);
}

static int receive_one(int socket)
{
    char byte;
    struct iovec part = {&byte, 1};
    union ibx_descriptor_room room;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
    assert_int_equal(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
    return ibx_descriptor_take(&message);
}

static void test_receiver_keeps_one_descriptor(void **state)
{
    int ends[2], pipes[2];
    char byte = 0;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(pipe(pipes), 0);
    const unsigned before = open_now();
    send_one(ends[0], pipes[1]);
    const int fd = receive_one(ends[1]);
    assert_true(fd >= 0 && fd != pipes[1]);
    assert_int_equal(write(fd, "y", 1), 1);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    close(fd);
    send_one(ends[0], -1);
    assert_int_equal(receive_one(ends[1]), -1);
    for (size_t count = 2; count < 5; count++) {
        send_several(ends[0], (int[]){pipes[1], pipes[0], 0, 1}, count);
        const int first = receive_one(ends[1]);
        assert_true(first >= 0);
        assert_int_equal(open_now(), before + 1);
        close(first);
    }
    assert_int_equal(open_now(), before);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(pipes[i]);
    }
}

#define SOFT 20u
#define HARD 60u

static ssize_t send_by(int socket, int fd, bool to_stranger)
{
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union ibx_descriptor_room room;
    ibx_descriptor_add(&message, &room, fd);
    return ibx_descriptor_send(socket, &message, MSG_DONTWAIT, to_stranger);
}

/* Sends descriptors that nobody receives. Returns 0 if as many could be sent as the hard limit
 * allows, and if the soft limit is what it was before. */
static int fill(void)
{
    const uid_t user = 200000 + (uid_t)getpid(); /* a user with no other processes */
    const struct rlimit few = {SOFT, HARD};
    struct rlimit now;
    int ends[2];
    unsigned sent = 0;
    if (setrlimit(RLIMIT_NOFILE, &few) || setresuid(user, user, user) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return 1;
    while (sent < 2 * HARD && send_by(ends[0], STDIN_FILENO, true) == 1)
        sent++;
    if (errno != ETOOMANYREFS || sent < (SOFT + HARD) / 2 || sent > (SOFT + HARD) / 2 + 1)
        return 6;
    while (sent < 2 * HARD && send_by(ends[0], STDIN_FILENO, false) == 1)
        sent++;
    if (errno != ETOOMANYREFS || sent < HARD || sent > HARD + 1)
        return 2;
    if (getrlimit(RLIMIT_NOFILE, &now) || now.rlim_cur != SOFT || now.rlim_max != HARD)
        return 3;
    if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){SOFT, SOFT}) || receive_one(ends[1]) < 0)
        return 4;
    return send_by(ends[0], STDIN_FILENO, false) == -1 && errno == ETOOMANYREFS ? 0 : 5;
}

static void test_limit_of_descriptors_in_flight(void **state)
{
    (void)state;
    int status = -1;
    if (geteuid())
        skip();
    const pid_t child = fork();
    if (!child)
        _exit(fill());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Descriptors of a library: 0 if they have high numbers, each one another. */
static int have_high_numbers(void)
{
    const struct rlimit limit = {64, 64};
    bool used[64] = {false};
    if (ibx_descriptor_apart(dup(0)) >= 32 || setrlimit(RLIMIT_NOFILE, &limit))
        return 1;
    ibx_descriptors_of_library();
    for (unsigned i = 0; i < 32; i++) {
        const int low = dup(0), fd = ibx_descriptor_apart(low);
        if (fd < 32 || used[fd] || fcntl(fd, F_GETFD) != FD_CLOEXEC || fcntl(low, F_GETFD) != -1)
            return 2;
        used[fd] = true;
        close(fd);
    }
    errno = EMFILE;
    if (ibx_descriptor_apart(-1) != -1 || errno != EMFILE)
        return 3;
    for (unsigned i = 0; i < 32; i++) { /* until all are in use */
        if (ibx_descriptor_apart(dup(0)) < 32)
            return 4;
    }
    const int fd = ibx_descriptor_apart(dup(0));
    return fd >= 0 && fd < 32 && !fcntl(fd, F_GETFD) ? 0 : 5;
}

static void test_descriptors_of_library(void **state)
{
    (void)state;
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        close_range(3, ~0u, 0);
        _exit(have_high_numbers());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_receiver_keeps_one_descriptor),
                                       cmocka_unit_test(test_limit_of_descriptors_in_flight),
                                       cmocka_unit_test(test_descriptors_of_library)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
