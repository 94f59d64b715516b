/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Something else has the name of the unix socket at which a client looks for shm: a process that
 * forwards what both ends send, one that sends nothing, or a file that is no socket. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/shm_places.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct end *const server = &both.server, *const client = &both.client;

/* What the kernel does not report in some containers, simulated by the linker's --wrap. */
static bool no_netlink, no_namespace;

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __real_stat64(const char *path, struct stat *status);
int __wrap_stat64(const char *path, struct stat *status);

int __wrap_socket(int domain, int type, int protocol)
{
    if (domain != AF_NETLINK || !no_netlink)
        return __real_socket(domain, type, protocol);
    errno = EAFNOSUPPORT;
    return -1;
}

int __wrap_stat64(const char *path, struct stat *status)
{
    if (!no_namespace || strncmp(path, "/proc/thread-self/ns/", 21))
        return __real_stat64(path, status);
    errno = ENOENT;
    return -1;
}

static int set_up(void **state)
{
    no_netlink = no_namespace = false;
    return places_make(state);
}

/* -------------------------------------------------------------------------------------- a relay */

static struct middleman {
    char name[IBX_SHM_NAME + 1];
    char here[108], there[108]; /* where the client looks, and where the server listens */
    int listener;
    bool in_process;
    pthread_t thread;
    pid_t pid;
    int told[2]; /* a pipe: a byte for each descriptor that the relay has received */
} middle;

/* Forwards one packet, and keeps a descriptor that comes with it. Returns whether there was a
 * packet. */
static bool pass_on(int from, int to)
{
    uint8_t packet[256];
    int fd;
    ssize_t n = ibx_shm_packet_receive(from, packet, sizeof(packet), &fd);
    if (n <= 0)
        return false;
    if (fd >= 0)
        MUST(write(middle.told[1], "!", 1) == 1);
    ibx_shm_packet_send(to, packet, (size_t)n, fd);
    return true;
}

static void *relay(void *unused)
{
    (void)unused;
    int near = accept4(middle.listener, NULL, NULL, SOCK_CLOEXEC);
    int far = unix_at(middle.there, false);
    struct pollfd wait[2] = {{.fd = near, .events = POLLIN}, {.fd = far, .events = POLLIN}};
    bool open = true;
    while (open && poll(wait, 2, (int)END_PATIENCE_MS) > 0) {
        if (wait[0].revents)
            open = pass_on(near, far);
        if (open && wait[1].revents)
            open = pass_on(far, near);
    }
    close(near);
    close(far);
    return NULL;
}

/* The client gets another directory than the server's, where the relay listens. */
static void stand_between(bool in_process)
{
    uint8_t bytes[512];
    directory_of(server, "sock", 0711, geteuid());
    directory_of(client, "false", 0711, geteuid());
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    middle.in_process = in_process;
    snprintf(middle.here, sizeof(middle.here), "%s/%s", client->options.shm_dir,
             server->shm->place.name);
    snprintf(middle.there, sizeof(middle.there), "%s/%s", server->options.shm_dir,
             server->shm->place.name);
    assert_int_equal(pipe2(middle.told, O_CLOEXEC | O_NONBLOCK), 0);
    if (in_process)
        middle.listener = unix_at(middle.here, true);
    if (in_process)
        assert_int_equal(pthread_create(&middle.thread, NULL, relay, NULL), 0);
    assert_true(length > 0);
    memcpy(offered, bytes, length);
    offered_length = length;
}

static void relay_listening(void)
{
    middle.listener = unix_at(middle.here, true);
    MUST(write(middle.told[1], "L", 1) == 1);
    relay(NULL);
}

static void assert_kept_out(int expected, const char *words)
{
    struct finishing one;
    struct ibx_reader none = {0};
    char byte;
    assert_int_equal(join(offered, offered_length), 0);
    finish_start(&one, server, &none, ibx_deadline_in_ms(patience_ms(500)));
    int rc = ibx_provider_shm.finish(client->shm, NULL, in_time(), &client->err);
    assert_int_equal(rc, expected);
    said(&client->err, words);
    assert_int_equal(finish_join(&one), -ETIMEDOUT);
    assert_null(client->shm->segment);
    assert_null(server->shm->segment);
    /* the relay did not get the descriptor either */
    assert_int_equal(read(middle.told[0], &byte, 1), -1);
    ibx_provider_shm.close(client->shm); /* ends the relay */
    assert_int_equal(ibx_provider_shm.open(&client->link, &client->endpoint, &client->err), 0);
    if (middle.in_process)
        pthread_join(middle.thread, NULL);
    else
        waitpid(middle.pid, NULL, 0);
    close(middle.told[0]);
    close(middle.told[1]);
}

/* The sockets show that there is a relay, even if it is in the same process. */
static void test_a_relay(void **state)
{
    (void)state;
    stand_between(true);
    assert_kept_out(-EPERM, "is between");
}

static void relay_elsewhere(void)
{
    struct pollfd told = {.events = POLLIN};
    char byte;
    stand_between(false);
    middle.pid = start(relay_listening);
    told.fd = middle.told[0];
    assert_int_equal(poll(&told, 1, (int)END_PATIENCE_MS), 1);
    assert_int_equal(read(middle.told[0], &byte, 1), 1);
}

/* If the kernel does not report peers of sockets, the process numbers show the relay. */
static void test_a_relay_without_unix_diag(void **state)
{
    (void)state;
    relay_elsewhere();
    no_netlink = true;
    assert_kept_out(-EPERM, "is between");
}

static void test_a_relay_that_nobody_sees(void **state)
{
    (void)state;
    relay_elsewhere();
    no_netlink = no_namespace = true;
    assert_kept_out(-EOPNOTSUPP, "unix_diag");
}

/* Either fact is enough to accept a correct connection. */
static void test_one_fact_is_enough(void **state)
{
    for (int i = 0; i < 2; i++) {
        no_netlink = i == 0;
        no_namespace = i == 1;
        ends_connect(&both.server, &both.client);
        both_close(state);
        both_apart(state);
    }
}

/* An answer to the server's hello is valid on that socket only. */
static void test_an_answer_on_another_socket(void **state)
{
    (void)state;
    uint8_t hello[128], answer[IBX_PROOF_BYTES];
    directory_of(server, "sock", 0711, geteuid());
    pair_offer(&both, offered, sizeof(offered));
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", server->options.shm_dir, server->shm->place.name);
    int one = unix_at(path, false), other = unix_at(path, false);
    struct finishing f;
    struct ibx_reader none = {0};
    finish_start(&f, server, &none, ibx_deadline_in_ms(patience_ms(500)));
    ssize_t n = recv(one, hello, sizeof(hello), 0);
    assert_true(n > 0);
    struct pollfd accepted = {.fd = other, .events = POLLIN};
    assert_int_equal(poll(&accepted, 1, (int)END_PATIENCE_MS), 1);
    struct ibx_reader r = ibx_reader_of(hello, (size_t)n);
    assert_int_equal(ibx_shm_hello_check(client->shm, one, &r, answer), 0);
    r = ibx_reader_of(hello, (size_t)n);
    assert_int_equal(ibx_shm_hello_check(client->shm, other, &r, answer), -EPERM);
    assert_int_equal(send(other, answer, sizeof(answer), MSG_NOSIGNAL), sizeof(answer));
    assert_int_equal(finish_join(&f), -ETIMEDOUT);
    assert_null(server->shm->segment);
    close(one);
    close(other);
}

/* ------------------------------------------------------------------- at the name */

static void test_files_that_are_no_sockets(void **state)
{
    (void)state;
    char path[160];
    size_t length;
    directory_of(server, "sock", 0711, geteuid());
    directory_of(client, "false", 0711, geteuid());
    length = pair_offer(&both, offered, sizeof(offered));
    snprintf(path, sizeof(path), "%s/%s", client->options.shm_dir, server->shm->place.name);
    char target[160];
    snprintf(target, sizeof(target), "%s/%s", server->options.shm_dir, server->shm->place.name);
    assert_int_equal(symlink(target, path), 0); /* even if it leads to the right socket */
    assert_int_equal(join(offered, length), -ENOTSOCK);
    both.client.provider->close(client->shm);
    assert_int_equal(ibx_provider_shm.open(&client->link, &client->endpoint, &client->err), 0);
    unlink(path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(join(offered, length), -ENOTSOCK);
}

/* A process that has this name, or fills the server's queue, and then neither proves nor sends
 * anything. The client's user must be warned as after a wrong proof. */

enum sitting { SAYS_NOTHING, CLOSES, SITTINGS };

static void *sit(void *argument)
{
    const enum sitting how = *(const enum sitting *)argument;
    struct pollfd wait = {.events = POLLIN};
    wait.fd = accept4(middle.listener, NULL, NULL, SOCK_CLOEXEC);
    MUST(wait.fd >= 0);
    if (how == SAYS_NOTHING)
        poll(&wait, 1, (int)END_PATIENCE_MS);
    close(wait.fd);
    close(middle.listener);
    return NULL;
}

static void test_somebody_sits_on_the_socket(void **state)
{
    for (enum sitting how = 0; how < SITTINGS; how++) {
        directory_of(server, "sock", 0711, geteuid());
        directory_of(client, "false", 0711, geteuid());
        size_t length = pair_offer(&both, offered, sizeof(offered));
        snprintf(middle.here, sizeof(middle.here), "%s/%s", client->options.shm_dir,
                 server->shm->place.name);
        middle.listener = unix_at(middle.here, true);
        assert_int_equal(pthread_create(&middle.thread, NULL, sit, &how), 0);
        assert_int_equal(join(offered, length), 0);
        const unsigned wait_ms = how == SAYS_NOTHING ? 200 : (unsigned)END_PATIENCE_MS;
        int rc =
            ibx_provider_shm.finish(client->shm, NULL, ibx_deadline_in_ms(wait_ms), &client->err);
        assert_int_equal(rc, how == SAYS_NOTHING ? -ETIMEDOUT : -EACCES);
        said(&client->err, "at the shm socket and does not answer");
        ibx_provider_shm.close(client->shm);
        assert_int_equal(ibx_provider_shm.open(&client->link, &client->endpoint, &client->err), 0);
        pthread_join(middle.thread, NULL);
        both_close(state);
        both_apart(state);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, places_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_relay),
        TEST(test_a_relay_without_unix_diag),
        TEST(test_a_relay_that_nobody_sees),
        TEST(test_one_fact_is_enough),
        TEST(test_an_answer_on_another_socket),
        TEST(test_files_that_are_no_sockets),
        TEST(test_somebody_sits_on_the_socket),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm_relay", tests, NULL, NULL);
}
