/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How the two ends of the shm provider connect: unauthenticated connections, false servers, and
 * the wrong namespace. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/shm_pair.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME "ibx-0123456789abcdef0123456789abcdef"

static struct end *const server = &both.server, *const client = &both.client;

static struct ibx_reader no_answer; /* what the client gets as the server's answer: nothing */

static uint64_t in_time(void)
{
    return ibx_deadline_in_ms(END_PATIENCE_MS);
}

/* ---------------------------------------------------------------------- setup */

static socklen_t server_address(struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, server->shm->place.name, IBX_SHM_NAME);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + IBX_SHM_NAME);
}

static int connect_unproven(const char *packet)
{
    struct sockaddr_un address;
    socklen_t length = server_address(&address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, length), 0);
    if (packet)
        assert_int_equal(send(fd, packet, strlen(packet), MSG_NOSIGNAL), strlen(packet));
    return fd;
}

static void join_client(const uint8_t *bytes, size_t length)
{
    struct ibx_reader offer = ibx_reader_of(bytes, length);
    struct ibx_writer answer = {0};
    if (ibx_provider_shm.join(client->shm, &offer, &answer, &client->err))
        fail_msg("join: %s", client->err.message);
}

static void finish_both(struct finishing *server_finishing)
{
    struct finishing other;
    finish_start(&other, client, NULL, in_time());
    assert_int_equal(finish_join(server_finishing), 0);
    assert_int_equal(finish_join(&other), 0);
}

static void test_unproven_connections_before_the_client(void **state)
{
    (void)state;
    uint8_t bytes[512];
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    struct finishing one;
    int fds[5] = {connect_unproven("let me in"), connect_unproven(NULL), connect_unproven(NULL),
                  connect_unproven("\1\0"), connect_unproven(NULL)};
    finish_start(&one, server, &no_answer, in_time());
    /* A packet without a proof closes its connection; the others may wait. */
    char hello;
    assert_int_equal(recv(fds[0], &hello, 1, 0), 1);
    assert_int_equal(recv(fds[0], &hello, 1, 0), 0);
    join_client(bytes, length);
    finish_both(&one);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
    assert_int_equal(end_send(client, "hello", 5, 0), 0);
    await_notes(server, NULL, 1);
}

static void test_more_unproven_connections_than_room(void **state)
{
    (void)state;
    uint8_t bytes[512];
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    struct finishing one;
    int fds[20];
    finish_start(&one, server, &no_answer, in_time());
    for (int i = 0; i < 20; i++) {
        fds[i] = connect_unproven(NULL);
        struct pollfd first = {.fd = fds[0], .events = POLLRDHUP};
        if (i == 19) /* the oldest connection was dropped for it */
            assert_int_equal(poll(&first, 1, (int)patience_ms(20000)), 1);
    }
    join_client(bytes, length);
    finish_both(&one);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
}

/* The server waits for a client no longer than agreed, uses no processor time meanwhile, and
 * reports its own lack of descriptors as the reason. */
static void test_no_descriptors_for_the_client(void **state)
{
    (void)state;
    uint8_t bytes[512];
    struct rlimit usual;
    struct timespec spent;
    pair_offer(&both, bytes, sizeof(bytes));
    int fd = connect_unproven(NULL);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    const int next = dup(fd);
    close(next);
    const struct rlimit one_more = {(rlim_t)next + 1, usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &one_more), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    const uint64_t before = (uint64_t)spent.tv_sec * 1000 + (uint64_t)spent.tv_nsec / 1000000;
    struct ibx_reader none = no_answer;
    int rc = ibx_provider_shm.finish(server->shm, &none, ibx_deadline_in_ms(300), &server->err);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    const uint64_t after = (uint64_t)spent.tv_sec * 1000 + (uint64_t)spent.tv_nsec / 1000000;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_int_equal(rc, -EMFILE);
    assert_true(after - before < 150);
    close(fd);
}

static void test_wrong_key(void **state)
{
    (void)state;
    uint8_t bytes[512];
    client->wrong_proofs = true;
    server->options.timeout_ms = client->options.timeout_ms = 1;
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    join_client(bytes, length);
    struct finishing one;
    finish_start(&one, client, NULL, in_time()); /* sees that its socket is closed */
    assert_int_equal(
        ibx_provider_shm.finish(server->shm, &no_answer, ibx_deadline_in_ms(200), &server->err),
        -ETIMEDOUT);
    assert_int_equal(finish_join(&one), -EACCES);
    assert_null(client->shm->segment);
    assert_null(server->shm->segment);
}

/* Runs the client against a server that the test makes. */
static void refuse_segment(bool wrong_proof, uint32_t slots, uint32_t message, int segment,
                           int expected)
{
    uint8_t bytes[512], packet[128], answer[128];
    struct finishing one;
    join_client(bytes, pair_offer(&both, bytes, sizeof(bytes)));
    int fd = accept4(server->shm->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    server->wrong_proofs = wrong_proof;
    struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
    assert_int_equal(ibx_shm_hello_put(server->shm, fd, &w), 0);
    assert_int_equal(w.length, 22 + IBX_PROOF_BYTES);
    assert_int_equal(ibx_shm_packet_send(fd, packet, w.length, -1), 0);
    finish_start(&one, client, NULL, in_time());
    if (!wrong_proof)
        assert_int_equal(recv(fd, answer, sizeof(answer), 0), IBX_PROOF_BYTES);
    w = ibx_writer_of(packet, sizeof(packet));
    ibx_put_u32(&w, slots);
    ibx_put_u32(&w, message);
    for (int i = 0; i < 3; i++)
        ibx_put_u64(&w, 0);
    ibx_shm_packet_send(fd, packet, w.length, segment);
    assert_int_equal(finish_join(&one), expected);
    assert_null(client->shm->segment);
    close(fd);
}

static void test_segments_that_are_refused(void **state)
{
    int sealed = ibx_shm_memfd("segment", 16 << 20), small = ibx_shm_memfd("segment", 4096);
    int loose = memfd_create("loose", MFD_CLOEXEC); /* of the right size but not sealed */
    struct pair honest;
    pair_open(&honest);
    ends_connect(&honest.server, &honest.client);
    assert_int_equal(ftruncate(loose, (off_t)(2 * honest.client.shm->geometry.half)), 0);
    pair_close(&honest);
    const struct {
        bool wrong_proof;
        uint32_t slots, message;
        int segment, expected;
    } cases[] = {
        {true, 8, 8192, sealed, -EACCES}, /* not the server's proof */
        {false, 8, 8192, small, -EPROTO},       {false, 8, 8192, loose, -EPROTO},
        {false, 8, 8192, -1, -EPROTO},          {false, 0x80000001, 8192, small, -EPROTO},
        {false, 64, 8192, small, -EPROTO}, /* more slots than agreed */
        {false, 8, UINT32_MAX, small, -EPROTO},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refuse_segment(cases[i].wrong_proof, cases[i].slots, cases[i].message, cases[i].segment,
                       cases[i].expected);
        both_close(state);
        both_apart(state);
    }
    close(sealed);
    close(small);
    close(loose);
}

/* --------------------------------------------------------------- names and paths */

static int join_of(unsigned version, const char *name, const char *directory)
{
    uint8_t bytes[512];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes)), answer = {0};
    ibx_put_u16(&w, (uint16_t)version);
    ibx_put_string(&w, name);
    ibx_put_string(&w, directory);
    ibx_put_u8(&w, 0);
    struct ibx_reader offer = ibx_reader_of(bytes, w.length);
    return ibx_provider_shm.join(client->shm, &offer, &answer, &client->err);
}

static int join_by(const char *name, const char *directory)
{
    return join_of(IBX_SHM_VERSION, name, directory);
}

static void assert_message(const char *words)
{
    if (!strstr(client->err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", client->err.message, words);
}

/* What another version has in the segments is elsewhere, or means something else. */
static void test_another_version(void **state)
{
    (void)state;
    for (int by = -1; by <= 1; by += 2) {
        assert_int_equal(join_of((unsigned)((int)IBX_SHM_VERSION + by), NAME, ""),
                         -EPROTONOSUPPORT);
        assert_message("the server has version ");
    }
}

static void test_another_network_namespace(void **state)
{
    (void)state;
    assert_int_equal(join_by(NAME, ""), -ECONNREFUSED);
    assert_message("network namespace");
    assert_message("shm_dir");
}

static void test_a_directory_that_is_not_shared(void **state)
{
    (void)state;
    assert_int_equal(join_by(NAME, "/nowhere/at/all"), -ENOENT);
    assert_message("/nowhere/at/all/" NAME);
    assert_message("shm_dir");
}

static void test_names_that_are_none(void **state)
{
    (void)state;
    const char *names[] = {"",
                           "ibx-",
                           "../run/docker.sock",
                           NAME "0",
                           "ibx-0123456789abcdef0123456789abcde/",
                           "ibx-0123456789ABCDEF0123456789abcdef"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_int_equal(join_by(names[i], "/tmp"), -EPROTO);
    struct ibx_reader cut = ibx_reader_of("\1", 1);
    struct ibx_writer answer = {0};
    assert_int_equal(ibx_provider_shm.join(client->shm, &cut, &answer, &client->err), -EPROTO);
}

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

/* Two containers see one directory under different names. */
static void test_a_shared_directory(void **state)
{
    (void)state;
    char directory[] = "/tmp/ibx-test-XXXXXX", other[64];
    assert_non_null(mkdtemp(directory));
    snprintf(other, sizeof(other), "%s-link", directory);
    assert_int_equal(symlink(directory, other), 0);
    snprintf(server->options.shm_dir, sizeof(server->options.shm_dir), "%s", directory);
    snprintf(client->options.shm_dir, sizeof(client->options.shm_dir), "%s", other);
    ends_connect(&both.server, &both.client);
    assert_string_equal(client->shm->directory, other);
    assert_int_equal(end_send(client, "hello", 5, 0), 0);
    await_notes(server, NULL, 1);
    assert_int_equal(entries(directory), 0); /* the name is removed once it has been used */
    unlink(other);
    assert_int_equal(rmdir(directory), 0);
}

/* The path is longer than that of a unix socket may be. */
static void test_a_long_path(void **state)
{
    (void)state;
    char base[] = "/tmp/ibx-test-XXXXXX", directory[200];
    assert_non_null(mkdtemp(base));
    memset(directory, 'd', sizeof(directory));
    memcpy(directory, base, strlen(base));
    directory[strlen(base)] = '/';
    directory[sizeof(directory) - 1] = '\0';
    assert_int_equal(mkdir(directory, 0700), 0);
    snprintf(server->options.shm_dir, sizeof(server->options.shm_dir), "%s", directory);
    ends_connect(&both.server, &both.client);
    assert_int_equal(end_send(client, "hello", 5, 0), 0);
    await_notes(server, NULL, 1);
    assert_int_equal(rmdir(directory), 0);
    assert_int_equal(rmdir(base), 0);
}

static void test_an_attempt_given_up_leaves_nothing(void **state)
{
    (void)state;
    char directory[] = "/tmp/ibx-test-XXXXXX";
    uint8_t bytes[512];
    struct pair other;
    assert_non_null(mkdtemp(directory));
    pair_open(&other);
    snprintf(other.server.options.shm_dir, sizeof(other.server.options.shm_dir), "%s", directory);
    pair_offer(&other, bytes, sizeof(bytes));
    assert_int_equal(entries(directory), 1);
    pair_close(&other);
    assert_int_equal(entries(directory), 0);
    assert_int_equal(rmdir(directory), 0);
}

static void test_a_bad_directory(void **state)
{
    (void)state;
    uint8_t bytes[512];
    char description[128];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    snprintf(server->options.shm_dir, sizeof(server->options.shm_dir), "/nowhere/at/all");
    assert_int_equal(ibx_provider_shm.offer(server->shm, &w, &server->err), -ENOENT);
    assert_non_null(strstr(server->err.message, "/nowhere/at/all"));
    assert_int_equal(
        ibx_provider_shm.probe(&server->options, description, sizeof(description), &server->err),
        -ENOENT);
    server->options.shm_dir[0] = '\0';
    assert_int_equal(
        ibx_provider_shm.probe(&server->options, description, sizeof(description), &server->err),
        0);
}

static unsigned mappings(void)
{
    unsigned count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    for (int c; (c = fgetc(maps)) != EOF;)
        count += c == '\n';
    fclose(maps);
    return count;
}

/* Whole connections leave neither descriptors nor mappings. malloc(3) may need a few of these
 * meanwhile. */
static void test_nothing_is_left(void **state)
{
    enum { ROUNDS = 16 };
    (void)state;
    struct pair other;
    unsigned before = entries("/proc/self/fd"), mapped = mappings();
    for (int i = 0; i < ROUNDS; i++) {
        pair_open(&other);
        ends_connect(&other.server, &other.client);
        struct ibx_mr *mr = end_register(&other.client, NULL, 4096, IBX_ACCESS_REMOTE_READ);
        memset(mr->span.address, 1, 4096);
        assert_non_null(pointer(&other.server, mr, 4096));
        end_deregister(&other.client, mr);
        pair_close(&other);
    }
    assert_int_equal(entries("/proc/self/fd"), before);
    assert_in_range(mappings(), 0, mapped + ROUNDS - 1);
}

/* If a message arrives without its descriptor, the error says why; otherwise a full table of
 * this process would look like a fault of the peer. */
static void test_no_room_for_a_descriptor(void **state)
{
    (void)state;
    struct rlimit before, none;
    int ends[2], fd = -1;
    char byte = 'a';
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(ibx_shm_packet_send(ends[0], &byte, 1, ends[0]), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const ssize_t n = ibx_shm_packet_receive(ends[1], &byte, 1, &fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(n, 1);
    assert_int_equal(fd, -EMFILE);
    assert_int_equal(ibx_shm_packet_send(ends[0], &byte, 1, -1), 0);
    assert_int_equal(ibx_shm_packet_receive(ends[1], &byte, 1, &fd), 1);
    assert_int_equal(fd, -1);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, both_apart, both_close)
    const struct CMUnitTest tests[] = {
        TEST(test_unproven_connections_before_the_client),
        TEST(test_more_unproven_connections_than_room),
        TEST(test_no_descriptors_for_the_client),
        TEST(test_wrong_key),
        TEST(test_segments_that_are_refused),
        TEST(test_another_version),
        TEST(test_another_network_namespace),
        TEST(test_a_directory_that_is_not_shared),
        TEST(test_names_that_are_none),
        TEST(test_a_shared_directory),
        TEST(test_a_long_path),
        TEST(test_an_attempt_given_up_leaves_nothing),
        TEST(test_a_bad_directory),
        TEST(test_nothing_is_left),
        cmocka_unit_test(test_no_room_for_a_descriptor),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm_setup", tests, NULL, NULL);
}
