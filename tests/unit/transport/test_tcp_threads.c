/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bulk lanes that have threads, encrypted or (argument "plain") not: transfers, deregistration,
 * and the end. */
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BOTH   (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)
#define LENGTH (1u << 20)
#define MUCH   (32u << 20) /* more than the sockets hold */

static struct end server, client;

static void begin(unsigned server_threads, unsigned client_threads)
{
    int sockets[2];
    sockets_tcp(sockets);
    end_threads = server_threads;
    end_init(&server, IBX_ROLE_SERVER, sockets[0], 2, 4);
    end_threads = client_threads;
    end_init(&client, IBX_ROLE_CLIENT, sockets[1], 2, 4);
    ends_encrypt_and_connect(&server, &client);
}

static void end(void)
{
    end_close(&client);
    end_close(&server);
}

static struct ibx_chunk chunk_of(enum ibx_rdma_kind kind, unsigned lane, void *local,
                                 const struct ibx_mr *mr, size_t at, size_t length)
{
    return (struct ibx_chunk){.kind = kind,
                              .lane = lane,
                              .local = local,
                              .remote_address = (uintptr_t)mr->span.address + at,
                              .remote_keys = mr->keys,
                              .length = length};
}

static void turn_both(void)
{
    end_turn(&server);
    end_turn(&client);
}

/* Makes turns until the condition holds. */
#define UNTIL(condition, turn)                                                                     \
    for (uint64_t until_ = ibx_deadline_in_ms(END_PATIENCE_MS); !(condition); turn)                \
    assert_true(ibx_now_ns() < until_)

/* READs and WRITEs of both ends at once, each on both lanes, in short, odd and long pieces. */
static void test_both_directions_at_once(void **state)
{
    static const size_t pieces[] = {1, 20000, 32768, 100001, 400000, 495806};
    static uint8_t read_to[2][LENGTH], write_from[2][LENGTH];
    struct end *ends[] = {&server, &client};
    struct ibx_chunk chunks[2][12];
    struct ibx_mr *from[2], *to[2];
    (void)state;
    begin(2, 2);
    for (unsigned e = 0; e < 2; e++) {
        from[e] = end_register(ends[e], NULL, LENGTH, IBX_ACCESS_REMOTE_READ);
        to[e] = end_register(ends[e], NULL, LENGTH, IBX_ACCESS_REMOTE_WRITE);
        memset(read_to[e], 0, LENGTH);
        for (size_t i = 0; i < LENGTH; i++) {
            ((uint8_t *)from[e]->span.address)[i] = (uint8_t)(i * 7 + i / 4096 + e);
            write_from[e][i] = (uint8_t)(i * 11 + i / 2048 + e);
        }
    }
    for (unsigned e = 0; e < 2; e++) {
        size_t at = 0;
        unsigned accepted = 0;
        for (unsigned i = 0; i < 6; at += pieces[i++]) {
            chunks[e][2 * i] =
                chunk_of(IBX_RDMA_READ, 1 + i % 2, read_to[e] + at, from[!e], at, pieces[i]);
            chunks[e][2 * i + 1] =
                chunk_of(IBX_RDMA_WRITE, 1 + i % 2, write_from[e] + at, to[!e], at, pieces[i]);
        }
        assert_int_equal(at, LENGTH);
        for (unsigned i = 0; i < 12; i++)
            accepted += !ibx_provider_tcp.rdma(ends[e]->tcp, &chunks[e][i]);
        assert_int_equal(accepted, 12);
    }
    UNTIL(server.count == 12 && client.count == 12, turn_both());
    for (unsigned e = 0; e < 2; e++) {
        for (unsigned i = 0; i < 12; i++)
            assert_int_equal(ends[e]->notes[i].status, 0);
        assert_memory_equal(read_to[e], from[!e]->span.address, LENGTH);
        assert_memory_equal(write_from[e], to[!e]->span.address, LENGTH);
        assert_int_equal(ends[e]->tcp->threads, 2);
    }
    for (unsigned e = 0; e < 2; e++) {
        end_deregister(ends[e], from[e]);
        end_deregister(ends[e], to[e]);
    }
    end();
}

/* Only long bodies get a thread, and only as many threads as allowed. */
static void test_threads_start_when_useful(void **state)
{
    static uint8_t here[LENGTH];
    (void)state;
    begin(1, 0);
    struct ibx_mr *mr = end_register(&client, NULL, LENGTH, BOTH);
    struct ibx_chunk chunks[3];
    assert_int_equal(server.tcp->threads, 0);
    const size_t lengths[] = {10000, LENGTH, LENGTH};
    for (unsigned i = 0; i < 3; i++) {
        chunks[i] = chunk_of(IBX_RDMA_WRITE, 1 + i % 2, here, mr, 0, lengths[i]);
        assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunks[i]), 0);
        UNTIL(server.count == i + 1, turn_both());
        assert_int_equal(server.notes[i].status, 0);
        assert_int_equal(server.tcp->threads, i ? 1 : 0);
    }
    assert_int_equal(client.tcp->threads, 0);
    end_deregister(&client, mr);
    end();
}

/* With several connections each has one thread, which sends the data of READs. */
static void test_connections_of_a_domain_have_one_thread(void **state)
{
    static uint8_t here[LENGTH];
    (void)state;
    end_domain = (struct ibx_domain *)here; /* nobody looks into it */
    begin(2, 2);
    struct ibx_mr *mr = end_register(&server, NULL, LENGTH, BOTH);
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_READ, 1, here, mr, 0, LENGTH);
    memset(mr->span.address, 0x3c, LENGTH);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    UNTIL(client.count, turn_both());
    assert_int_equal(client.notes[0].status, 0);
    assert_memory_equal(mr->span.address, here, LENGTH);
    assert_int_equal(server.tcp->threads, 0);
    assert_int_equal(client.tcp->threads, 1);
    end_deregister(&server, mr);
    end();
    end_domain = NULL;
}

/* The first connection has the threads until it closes. */
static void test_limit_of_threads_in_a_process(void **state)
{
    static uint8_t here[LENGTH];
    (void)state;
    end_threads_all = 3;
    for (unsigned round = 0; round < 2; round++) {
        begin(2, 2);
        struct ibx_mr *mr = end_register(&client, NULL, 2 * LENGTH, BOTH);
        struct ibx_chunk chunks[6];
        for (unsigned i = 0; i < 6; i++) { /* each lane has its half */
            chunks[i] =
                chunk_of(IBX_RDMA_WRITE, 1 + i % 2, here, mr, (size_t)(i % 2) * LENGTH, LENGTH);
            assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunks[i]), 0);
        }
        UNTIL(server.count == 6, turn_both());
        assert_int_equal(server.tcp->threads + client.tcp->threads, 3);
        end_deregister(&client, mr);
        end();
    }
    end_threads_all = 16;
}

/* The client's READ is given to the thread, which can send a part of it; another READ waits
 * behind it. */
static void test_deregistration_under_reads(void **state)
{
    static uint8_t there[LENGTH];
    (void)state;
    begin(1, 0);
    struct ibx_mr *first = end_register(&server, NULL, MUCH, BOTH);
    struct ibx_mr *second = end_register(&server, there, LENGTH, BOTH);
    uint8_t *room = malloc(MUCH);
    struct ibx_chunk chunks[] = {chunk_of(IBX_RDMA_READ, 1, room, first, 0, MUCH),
                                 chunk_of(IBX_RDMA_READ, 1, room, second, 0, LENGTH)};
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunks[i]), 0);
    /* Waits until the thread has begun with the first one. Before that it could be taken back as
     * well. */
    UNTIL(client.tcp->lanes[1].body_left, turn_both());
    end_settle(&server); /* the socket is full of it */
    end_deregister(&server, second);
    assert_null(end_lost(&server));
    UNTIL(client.count || end_lost(&client) || end_lost(&server), turn_both());
    assert_null(end_lost(&client));
    assert_null(end_lost(&server));
    assert_ptr_equal(client.notes[0].chunk, &chunks[1]);
    assert_int_equal(client.notes[0].status, -EACCES);
    assert_true(ibx_tcp_thread_sends(&server.tcp->lanes[1]));
    end_deregister(&server, first); /* frees the memory: a later read of it would end in a signal */
    int waits = 1; /* The socket has room again, until it has nothing left to send. */
    UNTIL(ioctl(server.tcp->lanes[1].fd, SIOCOUTQ, &waits) || !waits, end_turn(&client));
    end_settle(&client);
    UNTIL(end_lost(&server), end_turn(&server));
    assert_int_equal(end_lost(&server)->status, -ECONNABORTED);
    ibx_provider_tcp.abort(server.tcp);
    ibx_provider_tcp.abort(client.tcp);
    end();
    free(room);
}

/* Once all of a buffer was sent, its memory is free, even before the completion is reported. */
static void test_deregistration_after_a_read(void **state)
{
    static uint8_t here[LENGTH];
    (void)state;
    begin(1, 0);
    for (unsigned i = 0; i < 20; i++) {
        struct ibx_mr *mr = end_register(&server, NULL, LENGTH, BOTH);
        struct ibx_chunk chunk = chunk_of(IBX_RDMA_READ, 1, here, mr, 0, LENGTH);
        assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
        UNTIL(ibx_tcp_thread_sends(&server.tcp->lanes[1]), turn_both());
        UNTIL(client.count == i + 1, end_turn(&client)); /* the server makes no turn meanwhile */
        assert_int_equal(client.notes[i].status, 0);
        end_deregister(&server, mr);
        assert_null(end_lost(&server));
    }
    end();
}

#define AGREED 8u /* requests of the client */

/* A client that has all answers may have as many requests again, even before the server has
 * noticed that its thread has sent them. */
static void test_as_many_requests_as_agreed(void **state)
{
    static uint8_t here[LENGTH];
    int sockets[2];
    (void)state;
    sockets_tcp(sockets);
    end_threads = 1;
    end_init(&server, IBX_ROLE_SERVER, sockets[0], 2, 4);
    end_threads = 0;
    end_init(&client, IBX_ROLE_CLIENT, sockets[1], 2, 4);
    client.tcp->mine.depth = AGREED;
    ends_encrypt_and_connect(&server, &client);
    struct ibx_mr *mr = end_register(&server, NULL, LENGTH, BOTH);
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_READ, 1, here, mr, 0, LENGTH / AGREED);
    struct pollfd asked = {.fd = server.handshake_socket, .events = POLLIN};
    for (unsigned round = 1; round <= 4; round++) {
        for (unsigned i = 0; i < AGREED; i++)
            assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
        end_turn(&client); /* they go in one write, so they arrive together */
        assert_int_equal(poll(&asked, 1, (int)END_PATIENCE_MS), 1);
        end_turn(&server);
        /* The thread has them now, and sends the data while the server makes no turn. */
        UNTIL(client.count == round * AGREED, end_turn(&client));
        assert_null(end_lost(&client));
    }
    assert_null(end_lost(&server));
    end_deregister(&server, mr);
    end();
}

/* The server's thread has begun to receive a WRITE of the client. Returns its memory there. */
static struct ibx_mr *write_arrives(uint8_t *here, struct ibx_chunk *chunk)
{
    struct ibx_mr *mr = end_register(&server, NULL, MUCH, BOTH);
    *chunk = chunk_of(IBX_RDMA_WRITE, 1, here, mr, 0, MUCH);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, chunk), 0);
    UNTIL(ibx_tcp_thread_receives(&server.tcp->lanes[1]), turn_both());
    return mr;
}

static void test_deregistration_stops_an_arriving_write(void **state)
{
    (void)state;
    begin(1, 0);
    struct ibx_chunk chunk;
    uint8_t *here = calloc(1, MUCH);
    struct ibx_mr *mr = write_arrives(here, &chunk);
    end_turn(&client);
    end_deregister(&server, mr);
    assert_false(ibx_tcp_thread_receives(&server.tcp->lanes[1]));
    UNTIL(client.count, turn_both());
    assert_int_equal(client.notes[0].status, -EACCES);
    assert_null(end_lost(&server));
    /* The lane continues to work. */
    mr = end_register(&server, NULL, LENGTH, BOTH);
    memset(here, 0x3c, LENGTH);
    chunk = chunk_of(IBX_RDMA_WRITE, 1, here, mr, 0, LENGTH);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    UNTIL(client.count == 2, turn_both());
    assert_int_equal(client.notes[1].status, 0);
    assert_memory_equal(mr->span.address, here, LENGTH);
    end_deregister(&server, mr);
    end();
    free(here);
}

/* The thread has received all of a WRITE, which the server has not noticed yet: it is complete. */
static void test_deregistration_after_a_write_has_arrived(void **state)
{
    (void)state;
    begin(1, 0);
    struct ibx_chunk chunk;
    uint8_t *here = calloc(1, MUCH);
    struct ibx_mr *mr = write_arrives(here, &chunk);
    const size_t left = server.tcp->lanes[1].body_left;
    UNTIL(ibx_tcp_thread_got(&server.tcp->lanes[1]) >= left, end_turn(&client));
    end_deregister(&server, mr);
    assert_null(end_lost(&server));
    UNTIL(client.count, turn_both());
    assert_int_equal(client.notes[0].kind, NOTE_CHUNK);
    assert_int_equal(client.notes[0].status, 0);
    assert_null(end_lost(&server));
    end();
    free(here);
}

/* When everything is reported, no thread touches the memory any more, and the test unmaps it. */
static void test_abort_stops_all(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        begin(2, 0);
        struct ibx_mr *mr = end_register(&client, NULL, MUCH, BOTH);
        struct ibx_mr *local = end_register(&server, NULL, MUCH, 0);
        struct ibx_chunk chunk =
            chunk_of(way ? IBX_RDMA_WRITE : IBX_RDMA_READ, 1, local->span.address, mr, 0, MUCH);
        assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
        struct tcp_lane *lane = &server.tcp->lanes[1];
        UNTIL(way ? ibx_tcp_thread_sends(lane) : ibx_tcp_thread_receives(lane), turn_both());
        ibx_provider_tcp.abort(server.tcp);
        assert_int_equal(server.count, 1);
        assert_int_equal(server.notes[0].status, -ECONNRESET);
        end_deregister(&server, local);
        for (unsigned i = 0; i < 100; i++)
            end_turn(&client);
        end_deregister(&client, mr);
        end();
    }
}

static bool is_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, 0) > 0;
}

/* A sleeper is woken by its threads, not by the socket that they read. */
static void test_sleepers_are_woken_by_threads(void **state)
{
    (void)state;
    begin(1, 0);
    struct ibx_chunk chunk;
    uint8_t *here = calloc(1, MUCH);
    struct ibx_mr *mr = write_arrives(here, &chunk);
    while (ibx_provider_tcp.arm(server.tcp))
        end_turn(&server);
    assert_false(end_wakes(&server, 0));
    UNTIL(is_readable(server.tcp->threads_fd), end_turn(&client));
    assert_true(end_wakes(&server, 0));
    assert_int_equal(client.count, 0); /* the polling thread sends the answer */
    end_turn(&server);
    UNTIL(client.count, turn_both());
    assert_int_equal(client.notes[0].status, 0);
    do
        end_settle(&server);
    while (ibx_provider_tcp.arm(server.tcp));
    assert_false(end_wakes(&server, 0));
    end_deregister(&server, mr);
    end();
    free(here);
}

/* Who is about to sleep learns of what the thread has done before, and of what it can be given. */
static void test_nobody_sleeps_on_news(void **state)
{
    (void)state;
    begin(1, 0);
    struct ibx_chunk chunk, other;
    uint8_t *here = calloc(1, MUCH);
    struct ibx_mr *mr = write_arrives(here, &chunk);
    while (ibx_provider_tcp.arm(server.tcp))
        end_turn(&server);
    other = chunk_of(IBX_RDMA_WRITE, 1, here, mr, 0, LENGTH);
    other.remote_address = 0; /* refused, which is as good */
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &other), 0);
    assert_true(ibx_provider_tcp.arm(server.tcp));
    do
        end_turn(&server);
    while (ibx_tcp_thread_sends(&server.tcp->lanes[1]));
    while (ibx_provider_tcp.arm(server.tcp))
        end_turn(&server);
    const size_t left = server.tcp->lanes[1].body_left;
    UNTIL(ibx_tcp_thread_got(&server.tcp->lanes[1]) >= left, end_turn(&client));
    assert_true(ibx_provider_tcp.arm(server.tcp));
    UNTIL(client.count && server.count, turn_both());
    assert_int_equal(client.notes[0].status, 0);
    end_deregister(&server, mr);
    end();
    free(here);
}

/* The thread cannot read what it is to send. It wakes the sleeper, who learns why. */
static void test_memory_that_cannot_be_read(void **state)
{
    (void)state;
    const int file = memfd_create("cut short", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, LENGTH), 0);
    uint8_t *bytes = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_ptr_not_equal(bytes, MAP_FAILED);
    begin(1, 0);
    struct ibx_mr *mr = end_register(&client, NULL, LENGTH, BOTH);
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_WRITE, 1, bytes, mr, 0, LENGTH);
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    UNTIL(server.tcp->threads, end_turn(&server));
    if (!ibx_provider_tcp.arm(server.tcp)) { /* otherwise it knows already */
        UNTIL(is_readable(server.tcp->threads_fd), end_turn(&client));
        assert_true(ibx_provider_tcp.arm(server.tcp));
    }
    UNTIL(end_lost(&server), end_turn(&server));
    assert_int_equal(end_lost(&server)->status, -EFAULT);
    end_deregister(&client, mr);
    end();
    munmap(bytes, LENGTH);
    close(file);
}

/* Bytes of somebody else within a body that the thread receives. */
static void test_changed_bytes_end_the_connection(void **state)
{
    static uint8_t junk[20000];
    (void)state;
    begin(1, 0);
    struct ibx_chunk chunk;
    uint8_t *here = calloc(1, MUCH);
    struct ibx_mr *mr = write_arrives(here, &chunk);
    while (send(client.tcp->lanes[1].fd, junk, sizeof(junk), MSG_DONTWAIT) <= 0)
        end_turn(&server);
    UNTIL(end_lost(&server), end_turn(&server));
    assert_int_equal(end_lost(&server)->status, -EBADMSG);
    ibx_provider_tcp.abort(client.tcp);
    ibx_provider_tcp.abort(server.tcp);
    end_deregister(&server, mr);
    end();
    free(here);
}

/* A child has none of the threads, so its close waits for none. */
static void test_a_child_closes_its_part(void **state)
{
    static uint8_t here[LENGTH];
    int status;
    (void)state;
    begin(1, 1);
    struct ibx_mr *mr = end_register(&server, NULL, LENGTH, BOTH);
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_READ, 1, here, mr, 0, LENGTH);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    UNTIL(client.count, turn_both());
    pid_t child = fork();
    if (!child) {
        alarm(END_PATIENCE_MS / 1000);
        ibx_provider_tcp.close(server.tcp);
        ibx_provider_tcp.close(client.tcp);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    chunk = chunk_of(IBX_RDMA_READ, 1, here, mr, 0, LENGTH);
    assert_int_equal(ibx_provider_tcp.rdma(client.tcp, &chunk), 0);
    UNTIL(client.count == 2, turn_both());
    assert_int_equal(client.notes[1].status, 0);
    end_deregister(&server, mr);
    end();
}

int main(int argc, char **argv)
{
    end_encrypts = argc < 2 || strcmp(argv[1], "plain") != 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_directions_at_once),
        cmocka_unit_test(test_threads_start_when_useful),
        cmocka_unit_test(test_connections_of_a_domain_have_one_thread),
        cmocka_unit_test(test_limit_of_threads_in_a_process),
        cmocka_unit_test(test_deregistration_under_reads),
        cmocka_unit_test(test_deregistration_after_a_read),
        cmocka_unit_test(test_as_many_requests_as_agreed),
        cmocka_unit_test(test_deregistration_stops_an_arriving_write),
        cmocka_unit_test(test_deregistration_after_a_write_has_arrived),
        cmocka_unit_test(test_abort_stops_all),
        cmocka_unit_test(test_sleepers_are_woken_by_threads),
        cmocka_unit_test(test_nobody_sleeps_on_news),
        cmocka_unit_test(test_a_child_closes_its_part),
    };
    const struct CMUnitTest plain[] = {
        cmocka_unit_test(test_memory_that_cannot_be_read), /* SIGBUS, if it is encrypted */
    };
    const struct CMUnitTest sealed[] = {
        cmocka_unit_test(test_changed_bytes_end_the_connection),
    };
    int rc = cmocka_run_group_tests_name(end_encrypts ? "sealed" : "plain", tests, NULL, NULL);
    return rc + (end_encrypts ? cmocka_run_group_tests(sealed, NULL, NULL)
                              : cmocka_run_group_tests(plain, NULL, NULL));
}
