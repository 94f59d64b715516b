/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What both ends of a session report about their processes, and how a client leaves. A process
 * number means nothing on another host, even if both hosts have the same address, and their first
 * namespaces the same number. In this test the client reads another boot id than the server. */
#include "tests/fixtures/session_pair.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

static pthread_t client;
static const char *client_boot; /* NULL: this host's; "": none */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (!client_boot || strcmp(path, BOOT_ID) != 0 || !pthread_equal(client, pthread_self()))
        return __real_open64(path, flags, mode);
    const int fd = memfd_create("boot_id", MFD_CLOEXEC);
    assert_int_equal(pwrite(fd, client_boot, strlen(client_boot), 0), strlen(client_boot));
    return fd;
}

static void open_pair(struct session_pair *pair, const char *boot)
{
    client = pthread_self();
    client_boot = boot;
    session_keeps = 30;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(pair);
    client_boot = NULL;
}

static void close_pair(struct session_pair *pair)
{
    ibx_session_close(pair->client);
    session_pair_close(pair);
}

static uint64_t namespace_of_peer(const struct ibx_session *s)
{
    uint64_t its_namespace = 0;
    assert_int_equal(ibx_session_process(s, &its_namespace), getpid());
    return its_namespace;
}

/* The end of the peer's process is noticed at once. */
static void test_one_host(void **state)
{
    struct session_pair pair;
    (void)state;
    open_pair(&pair, NULL);
    assert_true(pair.server->link.peer_fd >= 0 && pair.client->link.peer_fd >= 0);
    assert_true(namespace_of_peer(pair.server));
    assert_int_equal(namespace_of_peer(pair.server), namespace_of_peer(pair.client));
    close_pair(&pair);
}

/* On another host the numbers belong to other processes. */
static void test_two_hosts(void **state)
{
    static const char *const boots[] = {"01234567-89ab-cdef-0123-456789abcdef\n",
                                        "01234567-89ab-cdef-0123-456789abcdee\n", ""};
    uint64_t seen[3];
    struct session_pair pair;
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        open_pair(&pair, boots[i]);
        assert_int_equal(pair.server->link.peer_fd, -1);
        assert_int_equal(pair.client->link.peer_fd, -1);
        seen[i] = namespace_of_peer(pair.server);
        assert_int_not_equal(seen[i], namespace_of_peer(pair.client));
        close_pair(&pair);
    }
    assert_int_not_equal(seen[0], seen[1]);
    assert_int_not_equal(seen[0], seen[2]);
}

/* Ends the client, and has the server read until it knows. */
static void leave(struct session_pair *pair)
{
    char byte;
    open_pair(pair, NULL);
    assert_false(ibx_session_took_leave(pair->server) || ibx_session_process_ended(pair->server));
    ibx_session_close(pair->client);
    assert_int_not_equal(ibx_session_read(pair->server, &byte, 1), 1);
}

/* A server that took one for the other would free what a live process has, or keep what one that
 * has ended had: it may not see that end itself. */
static void test_leaves(void **state)
{
    struct session_pair pair;
    (void)state;
    leave(&pair);
    assert_true(ibx_session_took_leave(pair.server));
    assert_false(ibx_session_process_ended(pair.server));
    session_pair_close(&pair);
    ibx_session_process_ends(); /* it cannot be taken back */
    leave(&pair);
    assert_true(ibx_session_process_ended(pair.server));
    assert_false(ibx_session_took_leave(pair.server));
    session_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
