/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a peer can make this process hold: pages of memory that the peer never touched, mappings,
 * and address space. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/shm_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_WRITE (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)
#define LENGTH     ((size_t)1 << 20)
#define PAGE       4096u
#define NOBODY     65534u

static struct end *const server = &both.server, *const client = &both.client;
static uint8_t mine[LENGTH];

static blkcnt_t blocks(enum shm_arena_kind kind)
{
    struct stat status;
    assert_int_equal(fstat(client->shm->arenas[kind].fd, &status), 0);
    return status.st_blocks;
}

/* Only the server polls. */
static void read_alone(const struct ibx_mr *mr, size_t offset, size_t length)
{
    struct ibx_chunk chunk;
    memset(mine, 0x77, sizeof(mine));
    server->count = 0;
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, offset, length);
    await_notes(server, NULL, 1);
    assert_int_equal(server->notes[0].status, 0);
}

static void test_reading_holes(void **state)
{
    (void)state;
    static const struct {
        unsigned access;
        enum shm_arena_kind kind;
    } arenas[] = {{IBX_ACCESS_REMOTE_READ, SHM_ARENA_READ}, {READ_WRITE, SHM_ARENA_WRITE}};
    server->shm->direct = false;
    for (int i = 0; i < 2; i++) {
        struct ibx_mr *mr = end_register(client, NULL, LENGTH, arenas[i].access);
        uint8_t *memory = mr->span.address;
        read_alone(mr, 0, LENGTH);
        for (size_t at = 0; at < LENGTH; at++)
            assert_int_equal(mine[at], 0);
        assert_int_equal(blocks(arenas[i].kind), 0);
        /* Among present pages, from the middle of one to the middle of another. */
        memory[5 * PAGE + 7] = 'a';
        memory[7 * PAGE + 7] = 'b';
        const blkcnt_t before = blocks(arenas[i].kind);
        read_alone(mr, 4 * PAGE + 100, 5 * PAGE);
        for (size_t at = 0; at < (size_t)5 * PAGE; at++)
            assert_int_equal(mine[at], memory[4 * PAGE + 100 + at]);
        assert_int_equal(mine[PAGE - 93], 'a');
        assert_int_equal(blocks(arenas[i].kind) >= before, true);
        end_deregister(client, mr);
    }
}

/* The peer allocates the pages of a WRITE. */
static void test_writing_into_holes(void **state)
{
    (void)state;
    struct ibx_chunk chunk;
    struct ibx_mr *mr = end_register(client, NULL, LENGTH, READ_WRITE);
    server->shm->direct = false;
    fill(mine, LENGTH);
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, LENGTH);
    for (int i = 0; i < 100; i++)
        end_turn(server);
    assert_int_equal(server->count, 0);
    assert_int_equal(blocks(SHM_ARENA_WRITE), 0);
    await_notes(server, client, 1);
    assert_int_equal(server->notes[0].status, 0);
    check(mr->span.address, LENGTH, 0);
    /* Now the pages are present. */
    server->count = 0;
    memset(mr->span.address, 0, LENGTH);
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, LENGTH);
    await_notes(server, NULL, 1);
    check(mr->span.address, LENGTH, 0);
    end_deregister(client, mr);
}

/* If the system allows this process to write to the peer's address space, it does so itself. */
static void test_writing_into_holes_alone(void **state)
{
    (void)state;
    struct ibx_chunk chunk;
    if (!server->shm->direct)
        skip();
    struct ibx_mr *mr = end_register(client, NULL, LENGTH, READ_WRITE);
    fill(mine, LENGTH);
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, LENGTH);
    await_notes(server, NULL, 1);
    assert_int_equal(server->notes[0].status, 0);
    check(mr->span.address, LENGTH, 0);
    end_deregister(client, mr);
}

static void test_holes_are_not_lent(void **state)
{
    (void)state;
    struct ibx_reach reach;
    struct ibx_mr *mr = end_register(client, NULL, LENGTH, READ_WRITE);
    uint8_t *memory = mr->span.address;
    server->shm->direct = false;
    memset(memory, 1, LENGTH);
    assert_int_equal(hold(server, mr, 0, LENGTH, IBX_ACCESS_REMOTE_READ, &reach), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_int_equal(madvise(memory + 20 * PAGE, PAGE, MADV_REMOVE), 0);
    server->shm->peer_arenas[SHM_ARENA_WRITE].believed_until = 0;
    assert_int_equal(hold(server, mr, 0, LENGTH, IBX_ACCESS_REMOTE_READ, &reach), -EOPNOTSUPP);
    assert_int_equal(hold(server, mr, (size_t)20 * PAGE - 1, 2, IBX_ACCESS_REMOTE_WRITE, &reach),
                     -EOPNOTSUPP);
    assert_int_equal(hold(server, mr, 0, (size_t)20 * PAGE, IBX_ACCESS_REMOTE_READ, &reach), 0);
    ibx_provider_shm.remote_release(server->shm);
    /* What may be held ends at the hole. */
    assert_int_equal(hold(server, mr, 0, (size_t)20 * PAGE + 1, IBX_ACCESS_REMOTE_READ, &reach),
                     -EOPNOTSUPP);
    end_deregister(client, mr);
}

/* For a user who may not write to the file, mincore(2) reports all of its pages as resident. */
static void test_a_file_that_hides_its_holes(void **state)
{
    (void)state;
    struct ibx_chunk chunk;
    if (geteuid() != 0)
        skip();
    struct ibx_mr *mr = end_register(client, NULL, LENGTH, READ_WRITE);
    server->shm->direct = false;
    assert_int_equal(fchmod(client->shm->arenas[SHM_ARENA_WRITE].fd, 0), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    read_alone(mr, 0, LENGTH);
    server->count = 0;
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, LENGTH);
    for (int i = 0; i < 100; i++)
        end_turn(server);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(blocks(SHM_ARENA_WRITE), 0);
    await_notes(server, client, 1);
    end_deregister(client, mr);
}

/* ------------------------------------------------------------------ address space */

#define CONNECTIONS ((unsigned)(IBX_SHM_MAPPED / IBX_SHM_ARENA / 3) + 10)

/* Beyond the process's limit arenas are not mapped; an arena's address space is released with
 * it. */
static void test_address_space_has_a_limit(void **state)
{
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_cur < 4 * CONNECTIONS + 100)
        skip();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct shm *many = calloc(CONNECTIONS, sizeof(*many));
    assert_non_null(many);
    for (int round = 0; round < 2; round++) {
        uint64_t mapped = 0;
        for (unsigned i = 0; i < CONNECTIONS; i++) {
            for (unsigned kind = SHM_ARENA_READ; kind < SHM_ARENA_KINDS; kind++) {
                int fd = ibx_shm_memfd("arena", IBX_SHM_ARENA);
                assert_true(fd >= 0);
                ibx_shm_arena_accept(&many[i], kind, fd);
                assert_true(many[i].peer_arenas[kind].seen && !many[i].broken);
                if (many[i].peer_arenas[kind].base)
                    mapped += IBX_SHM_ARENA;
                else /* no descriptor is kept either */
                    assert_int_equal(fcntl(fd, F_GETFD), -1);
            }
        }
        assert_true(mapped <= IBX_SHM_MAPPED && mapped > IBX_SHM_MAPPED / 100 * 95);
        for (unsigned i = 0; i < CONNECTIONS; i++)
            ibx_shm_peer_arenas_fini(&many[i]);
        memset(many, 0, CONNECTIONS * sizeof(*many));
    }
    free(many);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, both_connected, both_close)
    const struct CMUnitTest tests[] = {
        TEST(test_reading_holes),
        TEST(test_writing_into_holes),
        TEST(test_writing_into_holes_alone),
        TEST(test_holes_are_not_lent),
        TEST(test_a_file_that_hides_its_holes),
        cmocka_unit_test(test_address_space_has_a_limit),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm_holes", tests, NULL, NULL);
}
