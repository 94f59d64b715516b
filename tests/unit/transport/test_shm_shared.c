/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that belongs to the process and to none of its shm connections. */
#include "tests/scenes/shm_pair.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT ((size_t)700001)

static struct end *const server = &both.server, *const client = &both.client;

static void test_in_two_connections(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    uint8_t *memory[4];
    for (size_t i = 0; i < 4; i++) {
        memory[i] = ibx_shared_allocate((i + 1) * UNIT, &err);
        assert_non_null(memory[i]);
        assert_int_equal((uintptr_t)memory[i] % 4096, 0);
        for (size_t at = 0; at < (i + 1) * UNIT; at += 1000)
            assert_int_equal(memory[i][at], 0);
        memset(memory[i], 'a' + (int)i, (i + 1) * UNIT);
    }
    /* Odd parts of it, in any connection; the peer sees them and may write there. */
    struct pair second;
    pair_open(&second);
    ends_connect(&second.server, &second.client);
    struct ibx_mr *mr = end_register(client, memory[2] + 333, 500000, READ_WRITE);
    struct ibx_mr *other = end_register(&second.client, memory[1] + 5, 7, READ_WRITE);
    const uint8_t *there = pointer(server, mr, 500000);
    assert_non_null(there);
    assert_ptr_not_equal(there, memory[2] + 333);
    assert_memory_equal(there, memory[2] + 333, 500000);
    uint8_t *writable = (uint8_t *)(uintptr_t)pointer(&second.server, other, 7);
    assert_non_null(writable);
    memcpy(writable, "written", 7);
    assert_memory_equal(memory[1] + 5, "written", 7);
    /* All pieces are one allocation to who would pin them, at the places where they are. */
    struct ibx_reach reach;
    assert_int_equal(hold(server, mr, 67, 1000, IBX_ACCESS_REMOTE_WRITE, &reach), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_ptr_equal(reach.address, there + 67);
    assert_ptr_equal(reach.base, there - 333);
    assert_true(reach.length == (3 * UNIT + 4095) / 4096 * 4096);
    assert_true(reach.id == IBX_SHM_SHARED_ID && reach.writable);
    /* A key is good on its own connection only, until the deregistration. */
    assert_null(pointer(server, other, 7));
    const struct ibx_mr old = *mr;
    end_deregister(client, mr);
    assert_null(pointer(server, &old, 1));
    end_deregister(&second.client, other);
    pair_close(&second);

    /* It outlives the connection, and its pages are the same when it was freed in between. */
    memcpy(memory[2], "seen", 5);
    const uint8_t *page = there - 333;
    assert_true(ibx_shared_free(memory[2]));
    assert_false(ibx_shared_free(memory[2]));
    assert_false(ibx_shared_free(memory[1] + 4096));
    assert_false(ibx_shared_free(&second));
    assert_ptr_equal(ibx_shared_allocate(3 * UNIT, &err), memory[2]);
    memcpy(memory[2], "again", 6);
    assert_string_equal((const char *)page, "again");
    for (size_t i = 0; i < 4; i++)
        assert_true(ibx_shared_free(memory[i]));
    assert_null(ibx_shared_allocate(IBX_SHM_ARENA + 1, &err));
    assert_non_null(strstr(err.message, "17179869185 bytes"));
}

/* A child has what its parent had, but neither frees it for the parent nor shares it. */
static void test_in_a_child(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    uint8_t *memory = ibx_shared_allocate(5 << 20, &err);
    assert_non_null(memory);
    memory[4 << 20] = 'p';
    pid_t child = fork();
    if (!child) {
        bool good = memory[4 << 20] == 'p' && !ibx_shared_allocate(1, NULL);
        struct ibx_mr *mr = end_register(client, memory, 4096, READ_WRITE);
        good = good && !pointer(server, mr, 1) && ibx_shared_free(memory);
        _exit(good ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(memory[4 << 20], 'p');
    uint8_t *more = ibx_shared_allocate(5 << 20, &err);
    assert_true(more >= memory + (5 << 20) || more + (5 << 20) <= memory);
    assert_true(ibx_shared_free(memory) && ibx_shared_free(more));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_in_two_connections, both_connected, both_close),
        cmocka_unit_test_setup_teardown(test_in_a_child, both_connected, both_close),
    };
    alarm(120);
    return cmocka_run_group_tests_name("shm_shared", tests, NULL, NULL);
}
