/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Descriptors that processes of one back end pass to each other, and strangers at their sockets. */
#include "frontend-glue/extensions/passed_descriptors.h"

#include "common/descriptor.h"
#include "tests/fixtures/open_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define STRANGER 12345

/* as in passed_descriptors.c */
struct where {
    uint8_t key[16];
    pid_t process;
    socklen_t length;
    char name[16];
};

static ino_t file_of(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_ino;
}

/* Fetches in another process. Returns 0 if it gets the descriptor of that file. */
static int fetched(const struct ibx_cuda_handle *where, ino_t file)
{
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        struct stat st;
        const int before = open_fds();
        const int fd = ibx_passed_fetch(where);
        if (open_fds() != before + (fd >= 0))
            _exit(254);
        _exit(fd < 0 ? -fd : fstat(fd, &st) || st.st_ino != file ? 255 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void test_offered(void **state)
{
    (void)state;
    struct ibx_cuda_handle where, other;
    const int fd = memfd_create("offered", MFD_CLOEXEC), more = memfd_create("more", MFD_CLOEXEC);
    const ino_t file = file_of(fd), files = file_of(more);
    assert_int_equal(ibx_passed_offer(fd, &where), 0);
    assert_int_equal(ibx_passed_offer(more, &other), 0);
    assert_int_equal(fetched(&where, file), 0);
    assert_int_equal(fetched(&other, files), 0);
    struct ibx_cuda_handle guessed = where;
    guessed.bytes[0] ^= 1;
    assert_int_equal(fetched(&guessed, file), -ENOENT);
    ibx_passed_withdraw(&where);
    assert_int_equal(fetched(&where, file), -ENOENT);
    assert_int_equal(fetched(&other, files), 0);
    ibx_passed_withdraw(&other);
}

/* Nobody listens there, or the table contains nonsense. */
static void test_no_listener_or_nonsense(void **state)
{
    (void)state;
    struct ibx_cuda_handle where = {{0}};
    struct where its = {.process = getpid(), .length = 6, .name = "\0ibx-x"};
    memcpy(where.bytes, &its, sizeof(its));
    assert_int_equal(fetched(&where, 0), -ENOENT);
    its.length = UINT32_MAX;
    memcpy(where.bytes, &its, sizeof(its));
    assert_int_equal(fetched(&where, 0), -ENOENT);
}

/* A process of `user`, if that is possible, that gives a descriptor to everyone who asks, with so
 * many bytes. */
static void stranger(int ready, uid_t user, size_t bytes)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = sizeof(at);
    struct where its = {.process = getpid()};
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if ((user != getuid() && setresuid(user, user, user)) ||
        bind(listener, (struct sockaddr *)&at, sizeof(at.sun_family)) ||
        getsockname(listener, (struct sockaddr *)&at, &length) || listen(listener, 4))
        _exit(1);
    its.length = length - (socklen_t)offsetof(struct sockaddr_un, sun_path);
    memcpy(its.name, at.sun_path, its.length);
    if (write(ready, &its, sizeof(its)) != sizeof(its))
        _exit(1);
    for (;;) {
        char byte = 0, key[16];
        struct iovec data = {&byte, bytes};
        union ibx_descriptor_room room;
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
        const int peer = accept(listener, NULL, NULL);
        ibx_descriptor_add(&message, &room, STDIN_FILENO);
        if (recv(peer, key, sizeof(key), 0) > 0)
            sendmsg(peer, &message, MSG_NOSIGNAL);
        close(peer);
    }
}

/* Returns 0 if the stranger's descriptor was accepted. */
static int fetched_from(uid_t user, size_t bytes)
{
    int ready[2];
    struct ibx_cuda_handle where = {{0}};
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (!child)
        stranger(ready[1], user, bytes);
    close(ready[1]);
    assert_int_equal(read(ready[0], where.bytes, sizeof(struct where)), sizeof(struct where));
    close(ready[0]);
    const int rc = fetched(&where, file_of(STDIN_FILENO));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return rc;
}

/* A process of another user may have the name and number of one that has ended. */
static void test_stranger(void **state)
{
    (void)state;
    /* shows that a stranger of the same user would be accepted */
    assert_int_equal(fetched_from(getuid(), 1), 0);
    if (geteuid())
        skip();
    assert_int_equal(fetched_from(STRANGER, 1), -ENOENT);
}

/* A message of no bytes, as the end has, that brings a descriptor nevertheless. */
static void test_descriptor_with_no_bytes(void **state)
{
    (void)state;
    assert_int_equal(fetched_from(getuid(), 0), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offered),
        cmocka_unit_test(test_no_listener_or_nonsense),
        cmocka_unit_test(test_stranger),
        cmocka_unit_test(test_descriptor_with_no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
