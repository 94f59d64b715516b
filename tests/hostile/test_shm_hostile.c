/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The shm provider with a hostile peer. */
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/shm_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static struct end *const server = &both.server, *const client = &both.client;

/* -------------------------------------------------------------------- false data in the segment */

/* The client is correct; these functions put false data into the server's half. */

static struct shm_command *entry(void)
{
    struct shm *shm = server->shm;
    return &shm->mine.commands[shm->put & (shm->geometry.commands - 1)];
}

static void lie(const struct shm_command *command)
{
    ibx_shm_command_put(server->shm, command);
}

static void assert_broken(const char *about)
{
    end_turn(client);
    assert_lost(client, -EPROTO);
    const char *reason = end_lost(client)->reason;
    if (!strstr(reason, about))
        fail_msg("\"%s\" does not say \"%s\"", reason, about);
    /* Nothing more is read from the segment. */
    ibx_provider_shm.abort(client->shm);
    unsigned count = client->count;
    lie(&(struct shm_command){.kind = SHM_COMMAND_MESSAGE, .length = 1});
    end_turn(client);
    assert_int_equal(client->count, count);
}

/* Each one ends the connection. */
static void test_malformed_commands(void **state)
{
    static const struct {
        enum shm_command_kind kind;
        uint16_t piece;
        uint32_t length;
        const char *about;
    } cases[] = {
        {SHM_COMMAND_MESSAGE, 0, 8193, "longer than agreed"},
        {SHM_COMMAND_MESSAGE, 0, UINT32_MAX, "longer than agreed"},
        {200, 0, 0, "does not exist"},
        {SHM_COMMAND_DONE, 3, 0, "was not made"},
        {SHM_COMMAND_DONE, IBX_SHM_PIECES, 0, "was not made"},
        {SHM_COMMAND_READ, IBX_SHM_PIECES, 1, "an impossible copy"},
        {SHM_COMMAND_READ, 0, 0, "an impossible copy"},
        {SHM_COMMAND_READ, 0, IBX_SHM_PIECE + 1, "an impossible copy"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        lie(&(struct shm_command){
            .kind = (uint8_t)cases[i].kind, .piece = cases[i].piece, .length = cases[i].length});
        assert_broken(cases[i].about);
        both_close(state);
        both_connected(state);
    }
}

static void test_messages_without_credit(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(end_send(server, "x", 1, 0), 0);
    await_notes(client, NULL, 8);
    client->count = 0;
    lie(&(struct shm_command){.kind = SHM_COMMAND_MESSAGE, .length = 1});
    assert_broken("without credit");
}

static void credit_lie(uint64_t released)
{
    for (int i = 0; i < 8; i++) /* makes the client read the credit */
        assert_int_equal(end_send(client, "x", 1, 0), 0);
    atomic_store(&server->shm->mine.control->released, released);
    assert_int_equal(end_send(client, "x", 1, 0), -EAGAIN);
    assert_broken("never had");
}

static void test_more_given_back_than_sent(void **state)
{
    (void)state;
    credit_lie(9);
}

static void test_credit_taken_back(void **state)
{
    (void)state;
    for (unsigned lap = 0; lap < 2; lap++) {
        assert_int_equal(end_send(client, "x", 1, 0), 0);
        await_notes(server, NULL, lap + 1);
        ibx_provider_shm.release(server->shm, server->notes[lap].token);
    }
    credit_lie(1);
}

static void test_answer_with_a_strange_status(void **state)
{
    (void)state;
    static uint8_t theirs[64], mine[64];
    struct ibx_mr *mr = end_register(server, theirs, sizeof(theirs), IBX_ACCESS_REMOTE_READ);
    struct ibx_chunk chunk;
    client->shm->direct = false;
    post(client, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, sizeof(mine));
    end_turn(client);
    assert_int_equal(client->shm->pieces[IBX_SHM_URGENT_PIECES].state.now, SHM_PIECE_REQUESTED);
    lie(&(struct shm_command){
        .kind = SHM_COMMAND_DONE, .piece = IBX_SHM_URGENT_PIECES, .status = 5});
    assert_broken("was not made");
    assert_int_equal(client->notes[1].kind, NOTE_CHUNK); /* flushed by the abort */
    assert_int_equal(client->notes[1].status, -ECONNRESET);
    end_deregister(server, mr);
}

static void test_request_twice(void **state)
{
    (void)state;
    lie(&(struct shm_command){.kind = SHM_COMMAND_READ, .piece = 1, .length = 1});
    lie(&(struct shm_command){.kind = SHM_COMMAND_READ, .piece = 1, .length = 1});
    assert_broken("an impossible copy");
}

/* A message cannot be changed once it has been delivered. */
static void test_message_rewritten_later(void **state)
{
    (void)state;
    char text[1000] = "the first";
    memset(text + 10, 'a', sizeof(text) - 10);
    struct shm_command *small = entry();
    assert_int_equal(end_send(server, text, 20, 0), 0);
    assert_int_equal(end_send(server, text, sizeof(text), 0), 0);
    await_notes(client, NULL, 2);
    memset(small->data, 'x', sizeof(small->data));
    memset(server->shm->mine.messages, 'x', 8 * server->shm->geometry.stride);
    assert_memory_equal(client->notes[0].data, text, 20);
    assert_memory_equal(client->notes[1].data, text, sizeof(text));
}

/* The peer's description of an allocation is checked against the mapping and the region: nothing
 * outside is pinned. */
static void test_allocation_out_of_range(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(server, NULL, 8192, IBX_ACCESS_REMOTE_READ);
    memset(mr->span.address, 1, 8192);
    struct shm_published *shared = &server->shm->mine.regions[mr->keys[0] & 0xffff];
    const struct shm_published good = *shared;
    const uint64_t lies[][2] = {
        {0, 4096},
        {4096, 8192},
        {0, IBX_SHM_ARENA + 4096},
        {IBX_SHM_ARENA, 1},
        {UINT64_MAX - 4095, 8192},
        {1, 8192},
        {0, UINT64_MAX},
        {UINT64_MAX, 2},
    };
    for (size_t i = 0; i <= sizeof(lies) / sizeof(lies[0]); i++) {
        bool last = i == sizeof(lies) / sizeof(lies[0]);
        struct ibx_reach reach;
        shared->allocation_offset = last ? good.allocation_offset : lies[i][0];
        shared->allocation_length = last ? good.allocation_length : lies[i][1];
        assert_int_equal(hold(client, mr, 0, 8192, IBX_ACCESS_REMOTE_READ, &reach), 0);
        ibx_provider_shm.remote_release(client->shm);
        assert_non_null(reach.address);
        assert_int_equal(reach.id != 0, last);
    }
    end_deregister(server, mr);
}

/* The table's offset of an arena is checked against the mapping. */
static void test_arena_offset_out_of_range(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(server, NULL, 8192, IBX_ACCESS_REMOTE_READ);
    memset(mr->span.address, 1, 8192);
    struct shm_published *shared = &server->shm->mine.regions[mr->keys[0] & 0xffff];
    assert_non_null(pointer(client, mr, 8192));
    const uint64_t offsets[] = {IBX_SHM_ARENA - 4096, IBX_SHM_ARENA, UINT64_MAX - 4095};
    for (int i = 0; i < 3; i++) {
        shared->arena_offset = offsets[i];
        assert_null(pointer(client, mr, 8192));
    }
    shared->arena_offset = 0;
    const uint32_t arenas[] = {SHM_ARENA_KINDS, SHM_ARENA_WRITE, UINT32_MAX};
    for (int i = 0; i < 3; i++) {
        shared->arena = arenas[i];
        assert_null(pointer(client, mr, 8192));
    }
    /* A WRITE must not go to a read-only mapping either. */
    uint8_t bytes[8] = {0};
    struct ibx_chunk chunk;
    shared->arena = SHM_ARENA_READ;
    shared->access = IBX_ACCESS_REMOTE_WRITE;
    post(client, &chunk, IBX_RDMA_WRITE, 1, bytes, mr, 0, sizeof(bytes));
    await_notes(client, NULL, 1);
    assert_int_equal(client->notes[0].status, -EACCES);
    end_deregister(server, mr);
}

/* --------------------------------------------------------- the control socket */

static void malformed(const char *packet, size_t length, int fd)
{
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    assert_int_equal(ibx_shm_packet_send(server->shm->control, packet, length, fd), 0);
    assert_broken("");
}

/* No arena, one without seals, not a memfd, one that is too large, one that ends within a page. */
static void test_malformed_packets(void **state)
{
    int fds[] = {-1, memfd_create("loose", MFD_CLOEXEC), open("/dev/zero", O_RDWR | O_CLOEXEC),
                 ibx_shm_memfd("large", IBX_SHM_ARENA + 4096), ibx_shm_memfd("odd", 4096 + 64)};
    static const char *const packets[] = {"??", "a\1", "a\2", "a\2", "a\2"};
    assert_int_equal(ftruncate(fds[1], 1 << 20), 0);
    for (int i = 0; i < 5; i++) {
        assert_true(!i || fds[i] >= 0);
        malformed(packets[i], 2, fds[i]);
        close(fds[i]);
        both_close(state);
        both_connected(state);
    }
}

/* If the system has no huge pages, an access would end in SIGBUS. */
static void test_arena_of_huge_pages(void **state)
{
    (void)state;
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0)
        skip(); /* the kernel does not support them */
    assert_int_equal(ftruncate(fd, 2 << 20), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    malformed("a\2", 2, fd);
    close(fd);
}

static void test_arena_twice(void **state)
{
    (void)state;
    int fd = ibx_shm_memfd("arena", 1 << 20);
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    assert_int_equal(ibx_shm_packet_send(server->shm->control, "a\1", 2, fd), 0);
    malformed("a\1", 2, fd);
    close(fd);
}

static void test_a_socket_that_ends_is_no_alarm(void **state)
{
    (void)state;
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    shutdown(server->shm->control, SHUT_RDWR);
    end_turn(client);
    assert_int_equal(client->count, 0); /* the handshake socket says why */
    assert_int_equal(client->watched, -1);
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
}

/* An empty packet looks like the end of the socket, also one that a descriptor comes with. */
static void test_an_empty_packet_leaves_no_descriptor(void **state)
{
    (void)state;
    const int before = open_fds();
    int fd = memfd_create("left", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    assert_int_equal(ibx_shm_packet_send(server->shm->control, "", 0, fd), 0);
    close(fd);
    end_turn(client);
    assert_int_equal(client->watched, -1);
    assert_int_equal(open_fds(), before);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, both_connected, both_close)
    const struct CMUnitTest tests[] = {
        TEST(test_malformed_commands),
        TEST(test_messages_without_credit),
        TEST(test_more_given_back_than_sent),
        TEST(test_credit_taken_back),
        TEST(test_answer_with_a_strange_status),
        TEST(test_request_twice),
        TEST(test_message_rewritten_later),
        TEST(test_allocation_out_of_range),
        TEST(test_arena_offset_out_of_range),
        TEST(test_malformed_packets),
        TEST(test_arena_of_huge_pages),
        TEST(test_arena_twice),
        TEST(test_a_socket_that_ends_is_no_alarm),
        TEST(test_an_empty_packet_leaves_no_descriptor),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm_hostile", tests, NULL, NULL);
}
