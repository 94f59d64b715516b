/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Users of this host without a key attack the unix socket of shm: they replace files and links
 * while these are used, or come in large numbers. Tests that need another user run as root and
 * use nobody. Relays are in test_shm_relay.c. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/shm_places.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534u
#define OFFERS 4000u /* enough against a process that races with them */

static struct end *const server = &both.server, *const client = &both.client;

static unsigned entries(const char *directory)
{
    unsigned n = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static bool is_root(void)
{
    if (geteuid() == 0)
        return true;
    print_message("needs root\n");
    return false;
}

static void become_nobody(void)
{
    MUST(!setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY));
}

/* ---------------------------------------------------------------- directories */

static void advice_can_be_pasted_into_a_shell(void)
{
    char path[] = "/tmp/ibx shm-XXXXXX", advice[64];
    struct ibx_error err = {0};
    bool shared;
    assert_non_null(mkdtemp(path));
    assert_int_equal(chmod(path, 0777), 0);
    const int rc = ibx_shm_directory_open(path, &shared, &err);
    rmdir(path);
    snprintf(advice, sizeof(advice), "chmod go-w '%s'", path);
    assert_int_equal(rc, -EPERM);
    said(&err, advice);
}

static void test_directories_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        uid_t owner;
        const char *why;
    } cases[] = {
        {0777, 0, "chmod go-w"},
        {0770, 0, "chmod go-w"},
        {0702, 0, "chmod go-w"},
        {0700, NOBODY, "belongs to user 65534"},
        {01777, NOBODY, "belongs to user"},
        {0755, NOBODY, "belongs to user 65534"},
    };
    advice_can_be_pasted_into_a_shell();
    if (!is_root())
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[512];
        char description[128];
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        directory_of(server, "sock", cases[i].mode, cases[i].owner);
        assert_int_equal(ibx_provider_shm.offer(server->shm, &w, &server->err), -EPERM);
        said(&server->err, cases[i].why);
        said(&server->err, base);
        assert_int_equal(ibx_provider_shm.probe(&server->options, description, sizeof(description),
                                                &server->err),
                         -EPERM);
        assert_int_equal(entries(server->options.shm_dir), 0);
    }
}

/* The other end of a connection, as another user, which sends a hello and receives one. */
static void client_as_nobody(void)
{
    become_nobody();
    MUST(!join(offered, offered_length));
    if (ibx_provider_shm.finish(client->shm, NULL, in_time(), &client->err)) {
        fprintf(stderr, "%s\n", client->err.message);
        _exit(1);
    }
    MUST(!client->shm->direct && !end_send(client, "hello", 5, 0));
    _exit(end_await(client, NULL, 1) ? 0 : 1);
}

static void test_a_client_of_another_user(void **state)
{
    static const mode_t modes[] = {0711, 0755, 01777, 01733};
    if (!is_root())
        skip();
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        struct ibx_reader none = {0};
        int status;
        directory_of(server, "sock", modes[i], 0);
        mode_t mask = umask(0077); /* must not keep the client out */
        offered_length = pair_offer(&both, offered, sizeof(offered));
        umask(mask);
        pid_t pid = start(client_as_nobody);
        int rc = ibx_provider_shm.finish(server->shm, &none, in_time(), &server->err);
        if (rc)
            fail_msg("%s", server->err.message);
        /* the name is removed after its use */
        assert_int_equal(entries(server->options.shm_dir), 0);
        await_notes(server, NULL, 1);
        assert_int_equal(end_send(server, "hello", 5, 0), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        both_close(state);
        both_apart(state);
    }
}

/* In a sticky directory of root the socket is in a folder that only the server can change. */
static void test_a_sticky_directory(void **state)
{
    (void)state;
    char path[160];
    struct stat status;
    uint8_t bytes[512];
    if (!is_root())
        skip();
    directory_of(server, "sock", 01777, 0);
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    const char *name = server->shm->place.name;
    snprintf(path, sizeof(path), "%s/%s", server->options.shm_dir, name);
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISDIR(status.st_mode) && (status.st_mode & 07777) == 0711);
    /* Others can neither move nor enter it. */
    assert_int_equal(seteuid(NOBODY), 0);
    assert_int_equal(rename(path, "/tmp/ibx-strangers-elsewhere"), -1);
    assert_int_equal(rmdir(path), -1);
    snprintf(path, sizeof(path), "%s/%s/x", server->options.shm_dir, name);
    assert_int_equal(mkdir(path, 0700), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(join(bytes, length), 0);
    both_close(state);
    both_apart(state);
    snprintf(path, sizeof(path), "%s/sock", base);
    assert_int_equal(entries(path), 0); /* an abandoned attempt leaves nothing */
}

/* ---------------------------------------------------------------- a racing user */

/* Creates in EVIL a link to the victim for whatever appears in DIR, and exchanges the two
 * directories. */
static void exchange_repeatedly(void)
{
    char victim[160], dir[160], evil[160], link[512];
    snprintf(victim, sizeof(victim), "%s/victim", base);
    snprintf(dir, sizeof(dir), "%s/theirs/sock", base);
    snprintf(evil, sizeof(evil), "%s/theirs/evil", base);
    become_nobody();
    for (;;) {
        DIR *list = opendir(dir);
        for (struct dirent *e; list && (e = readdir(list));) {
            if (strncmp(e->d_name, "ibx-", 4))
                continue;
            snprintf(link, sizeof(link), "%s/%s", evil, e->d_name);
            if (!symlink(victim, link) &&
                !renameat2(AT_FDCWD, dir, AT_FDCWD, evil, RENAME_EXCHANGE)) {
                renameat2(AT_FDCWD, dir, AT_FDCWD, evil, RENAME_EXCHANGE);
                unlink(link);
            }
        }
        if (list)
            closedir(list);
    }
}

/* The directory is root's, but its parent is not: a stranger can replace it at any moment. */
static void test_links_swapped_in_a_race(void **state)
{
    char victim[160], theirs[160];
    struct stat status;
    if (!is_root())
        skip();
    snprintf(victim, sizeof(victim), "%s/victim", base);
    snprintf(theirs, sizeof(theirs), "%s/theirs", base);
    close(open(victim, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(mkdir(theirs, 0755), 0);
    directory_of(server, "theirs/evil", 0755, NOBODY);
    directory_of(server, "theirs/sock", 0755, 0);
    assert_int_equal(chown(theirs, NOBODY, NOBODY), 0);
    const struct ibx_options options = server->options;
    pid_t pid = start(exchange_repeatedly);
    unsigned made = 0;
    for (unsigned i = 0; i < OFFERS; i++) {
        uint8_t bytes[512];
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        made += !ibx_provider_shm.offer(server->shm, &w, &server->err);
        both_close(state);
        both_apart(state);
        server->options = options;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(made > 0);
    assert_int_equal(stat(victim, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}

/* ------------------------------------------------------------------------------- many strangers */

static int stranger(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, server->shm->place.name, IBX_SHM_NAME);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    MUST(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + IBX_SHM_NAME))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* More connections than the queue holds: the client waits for its turn. */
static void test_full_queue(void **state)
{
    (void)state;
    int fds[300];
    unsigned in = 0;
    size_t length = pair_offer(&both, offered, sizeof(offered));
    for (unsigned i = 0; i < 300; i++) {
        fds[i] = stranger();
        in += fds[i] >= 0;
    }
    assert_true(in < 300); /* the queue is full */
    assert_int_equal(join(offered, length), 0);
    struct finishing one, other;
    struct ibx_reader none = {0};
    finish_start(&other, client, NULL, in_time());
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec++;
    assert_int_equal(pthread_timedjoin_np(other.thread, NULL, &soon), ETIMEDOUT);
    finish_start(&one, server, &none, in_time());
    assert_int_equal(finish_join(&one), 0);
    assert_int_equal(finish_join(&other), 0);
    for (unsigned i = 0; i < 300; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    assert_int_equal(end_send(client, "hello", 5, 0), 0);
    await_notes(server, NULL, 1);
}

static unsigned asked;

static bool ends_soon(void)
{
    return asked++ > 1;
}

/* Until the deadline, or until the client's process is told to end. */
static void test_the_queue_stays_full(void **state)
{
    (void)state;
    int fds[300];
    size_t length = pair_offer(&both, offered, sizeof(offered));
    for (unsigned i = 0; i < 300; i++)
        fds[i] = stranger();
    assert_int_equal(join(offered, length), 0);
    int rc = ibx_provider_shm.finish(client->shm, NULL, ibx_deadline_in_ms(200), &client->err);
    assert_int_equal(rc, -ETIMEDOUT);
    said(&client->err, "stayed full");
    client->options.ends = ends_soon;
    rc = ibx_provider_shm.finish(client->shm, NULL, in_time(), &client->err);
    client->options.ends = NULL;
    assert_int_equal(rc, -EINTR);
    said(&client->err, "told to end");
    for (unsigned i = 0; i < 300; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

/* Another user comes more often than the server has places, after the client and before it has
 * answered: that user's connections give way to each other, and not the client's. */
static void test_another_user_takes_no_place_of_the_clients(void **state)
{
    (void)state;
    int fds[40];
    if (!is_root())
        skip();
    size_t length = pair_offer(&both, offered, sizeof(offered));
    assert_int_equal(join(offered, length), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    for (unsigned i = 0; i < 40; i++) {
        fds[i] = stranger();
        assert_true(fds[i] >= 0);
    }
    assert_int_equal(seteuid(0), 0);
    struct finishing one, other;
    struct ibx_reader none = {0};
    finish_start(&one, server, &none, in_time());
    for (unsigned i = 0; i < 40; i++) { /* all have come, and most have been closed again */
        struct pollfd hello = {.fd = fds[i], .events = POLLIN};
        assert_int_equal(poll(&hello, 1, (int)END_PATIENCE_MS), 1);
    }
    finish_start(&other, client, NULL, in_time());
    const int rc = finish_join(&other);
    if (rc)
        fail_msg("%s", client->err.message);
    assert_int_equal(finish_join(&one), 0);
    for (unsigned i = 0; i < 40; i++)
        close(fds[i]);
    assert_int_equal(end_send(client, "hello", 5, 0), 0);
    await_notes(server, NULL, 1);
}

/* The server closes its end before the client has looked who is there, as if others had taken the
 * client's place. */
static void test_client_that_loses_its_place_early(void **state)
{
    (void)state;
    uint8_t hello[128];
    struct ibx_writer w = ibx_writer_of(hello, sizeof(hello));
    size_t length = pair_offer(&both, offered, sizeof(offered));
    assert_int_equal(join(offered, length), 0);
    const int fd = accept4(server->shm->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(ibx_shm_hello_put(server->shm, fd, &w), 0);
    assert_int_equal(ibx_shm_packet_send(fd, hello, w.length, -1), 0);
    close(fd);
    const int rc = ibx_provider_shm.finish(client->shm, NULL, in_time(), &client->err);
    assert_int_equal(rc, -EACCES);
    said(&client->err, "at the shm socket and does not answer");
}

/* The same, before it has read the client's answer. */
static void test_client_that_loses_its_place(void **state)
{
    (void)state;
    uint8_t hello[128];
    struct ibx_writer w = ibx_writer_of(hello, sizeof(hello));
    size_t length = pair_offer(&both, offered, sizeof(offered));
    assert_int_equal(join(offered, length), 0);
    struct finishing f;
    finish_start(&f, client, NULL, in_time());
    struct pollfd wait = {.fd = server->shm->listener, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, (int)END_PATIENCE_MS), 1);
    wait.fd = accept4(server->shm->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(ibx_shm_hello_put(server->shm, wait.fd, &w), 0);
    assert_int_equal(ibx_shm_packet_send(wait.fd, hello, w.length, -1), 0);
    assert_int_equal(poll(&wait, 1, (int)END_PATIENCE_MS), 1);
    close(wait.fd);
    assert_int_equal(finish_join(&f), -EACCES);
    said(&client->err, "at the shm socket and does not answer");
}

/* A stranger's descriptors are not even received, so none needs to be closed. Those of the
 * client are received. */
static void test_descriptors_of_strangers(void **state)
{
    (void)state;
    int ends[2], one = 1;
    char byte;
    size_t length = pair_offer(&both, offered, sizeof(offered));
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    int fd = stranger();
    bool can_refuse = !setsockopt(fd, SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &one, sizeof(one));
    int rc = ibx_shm_packet_send(fd, "let me in", 9, ends[1]);
    assert_int_equal(rc, can_refuse ? -EPERM : 0);
    if (can_refuse)
        assert_int_equal(ibx_shm_packet_send(fd, "let me in", 9, -1), 0);
    assert_int_equal(join(offered, length), 0);
    struct finishing f, other;
    struct ibx_reader none = {0};
    finish_start(&other, client, NULL, in_time());
    finish_start(&f, server, &none, in_time());
    assert_int_equal(finish_join(&f), 0);
    assert_int_equal(finish_join(&other), 0);
    close(fd);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* no other process holds it */
    close(ends[0]);
    struct ibx_mr *mr = end_register(client, NULL, 4096, IBX_ACCESS_REMOTE_READ);
    memset(mr->span.address, 1, 4096);
    assert_non_null(pointer(server, mr, 4096));
    end_deregister(client, mr);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, places_make, places_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_directories_that_are_refused),
        TEST(test_a_client_of_another_user),
        TEST(test_a_sticky_directory),
        TEST(test_links_swapped_in_a_race),
        TEST(test_full_queue),
        TEST(test_the_queue_stays_full),
        TEST(test_another_user_takes_no_place_of_the_clients),
        TEST(test_client_that_loses_its_place_early),
        TEST(test_client_that_loses_its_place),
        TEST(test_descriptors_of_strangers),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm_strangers", tests, NULL, NULL);
}
