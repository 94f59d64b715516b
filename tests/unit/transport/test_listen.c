/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Knocking at a unix socket whose queue is full, and what to do about places that cannot be had. */
#include "common/clock.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_MS 20000u
#define QUEUED_MAX  8

static char directory[] = "/tmp/ibx-test-XXXXXX";
static struct ibx_uri uri;
static int listener;
static int queued[QUEUED_MAX]; /* connected, and not accepted */
static unsigned queued_count;

static int full_queue(void **state)
{
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(directory, "/tmp/ibx-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    uri = (struct ibx_uri){.scheme = "rdma"};
    snprintf(uri.path, sizeof(uri.path), "%s/door", directory);
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

struct knock {
    pthread_t thread;
    atomic_int tid;
    int rc, fd;
};

static void *knock_run(void *arg)
{
    struct knock *knock = arg;
    struct ibx_error err = {0};
    atomic_store(&knock->tid, gettid());
    knock->rc = ibx_handshake_connect(&uri, PATIENCE_MS, &knock->fd, &err);
    return NULL;
}

/* Until the kernel says that the thread sleeps. */
static void await_asleep(const struct knock *knock)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    char state = 'R';
    while (state != 'S') {
        char path[64], text[256] = "";
        assert_true(ibx_now_ns() < deadline);
        sched_yield();
        snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&knock->tid));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        assert_true(read(fd, text, sizeof(text) - 1) > 0);
        close(fd);
        const char *behind = strrchr(text, ')');
        if (behind)
            state = behind[2];
    }
}

static void test_a_full_queue_is_waited_for(void **state)
{
    (void)state;
    struct knock knock = {.fd = -1};
    assert_int_equal(pthread_create(&knock.thread, NULL, knock_run, &knock), 0);
    await_asleep(&knock);
    int taken = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(taken >= 0);
    pthread_join(knock.thread, NULL);
    assert_int_equal(knock.rc, 0);
    assert_true(fcntl(knock.fd, F_GETFL) & O_NONBLOCK);
    struct timeval limit = {.tv_sec = 1};
    socklen_t length = sizeof(limit);
    assert_int_equal(getsockopt(knock.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &length), 0);
    assert_true(!limit.tv_sec && !limit.tv_usec);
    close(knock.fd);
    close(taken);
}

static void test_not_for_ever(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    int fd = -1;
    assert_int_equal(ibx_handshake_connect(&uri, 20, &fd, &err), -ETIMEDOUT);
    assert_non_null(strstr(err.message, uri.path));
    assert_non_null(strstr(err.message, "full"));
    assert_int_equal(fd, -1);
}

/* Who wants to listen there does not wait to be told that the place is taken. */
static void test_a_second_listener_is_refused(void **state)
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

/* A child that lets go of a listener takes nobody's door away. */
static void test_a_forked_child_leaves_the_socket(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_listener *door;
    char text[160];
    int status;
    ibx_options_init(&options);
    snprintf(text, sizeof(text), "rdma://%s.other", uri.path);
    assert_int_equal(ibx_listen(text, &options, &door, NULL), 0);
    pid_t pid = fork();
    if (!pid) {
        ibx_listener_close(door);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(access(strchr(text, '/') + 2, F_OK), 0);
    ibx_listener_close(door);
    assert_int_not_equal(access(strchr(text, '/') + 2, F_OK), 0);
}

static void expect_listening(const char *text, int code, const char *remedy)
{
    struct ibx_options options;
    struct ibx_listener *none;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    assert_int_equal(ibx_listen(text, &options, &none, &err), code);
    if (!strstr(err.message, remedy))
        fail_msg("\"%s\" does not say \"%s\"", err.message, remedy);
}

static void expect_knock(const char *text, int code, const char *remedy)
{
    struct ibx_uri there;
    struct ibx_error err = {0};
    int fd = -1;
    assert_int_equal(ibx_uri_parse(text, &there, NULL), 0);
    assert_int_equal(ibx_handshake_connect(&there, PATIENCE_MS, &fd, &err), code);
    if (!strstr(err.message, remedy))
        fail_msg("\"%s\" does not say \"%s\"", err.message, remedy);
}

/* What listening at `uri` says on standard error. */
static void listen_and_hear(const char *text, char *said, size_t size)
{
    struct ibx_options options;
    struct ibx_listener *door;
    int before = dup(STDERR_FILENO), file = memfd_create("said", MFD_CLOEXEC);
    ibx_options_init(&options);
    assert_true(before >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    int rc = ibx_listen(text, &options, &door, NULL);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_int_equal(rc, 0);
    ssize_t n = pread(file, said, size - 1, 0);
    assert_true(n >= 0);
    said[n] = '\0';
    close(file);
    ibx_listener_close(door);
}

/* "127.1" is 127.0.0.1 to the resolver, and a name to us. */
static void test_a_name_that_is_loopback(void **state)
{
    (void)state;
    char said[512];
    listen_and_hear("rdma://127.1:0", said, sizeof(said));
    assert_non_null(strstr(said, "\"127.1\" is 127.0.0.1 here, so no other host can come"));
    listen_and_hear("rdma://127.0.0.1:0", said, sizeof(said));
    assert_string_equal(said, "");
    listen_and_hear("rdma://localhost:0", said, sizeof(said));
    assert_string_equal(said, "");
    listen_and_hear("rdma://0.0.0.0:0", said, sizeof(said));
    assert_string_equal(said, "");
}

static void test_sentences_say_what_to_do(void **state)
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
    expect_knock(here, -ECONNREFUSED, "refused; start the server there");
    expect_listening("rdma://192.0.2.1:0", -EADDRNOTAVAIL, "; give an address of this host");
    expect_listening("rdma:///nosuch/ibx/door", -ENOENT, "; make its folder");
    expect_knock("rdma:///nosuch/ibx/door", -ENOENT, "; start the server there");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_full_queue_is_waited_for, full_queue, end),
        cmocka_unit_test_setup_teardown(test_not_for_ever, full_queue, end),
        cmocka_unit_test_setup_teardown(test_a_second_listener_is_refused, full_queue, end),
        cmocka_unit_test_setup_teardown(test_a_forked_child_leaves_the_socket, full_queue, end),
        cmocka_unit_test(test_a_name_that_is_loopback),
        cmocka_unit_test(test_sentences_say_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
