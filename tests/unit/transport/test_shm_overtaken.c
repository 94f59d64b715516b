/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A copy that the peer was requested to make, overtaken by so many urgent ones that the ring of
 * commands goes round: its own bytes arrive, once. */
#include "tests/scenes/shm_pair.h"

#include <string.h>

#define ROUNDS 300 /* more commands than the ring has places, several times */

static struct end *const server = &both.server, *const client = &both.client;
static uint8_t theirs[IBX_SHM_PIECE], mine[IBX_SHM_PIECE];

static int meet(void **state)
{
    both_connected(state);
    server->shm->direct = false;
    for (size_t i = 0; i < sizeof(theirs); i++)
        theirs[i] = (uint8_t)(i * 7 + i / 251);
    memset(mine, 0, sizeof(mine));
    return 0;
}

/* Two urgent READs: as many as the client serves between two looks at its ring. */
static void overtake(struct ibx_mr *mr)
{
    struct ibx_chunk urgent[2];
    uint64_t words[2];
    for (unsigned i = 0; i < 2; i++)
        post(server, &urgent[i], IBX_RDMA_READ, 0, &words[i], mr, 1000u * i, sizeof(words[i]));
    for (int before = -1; before != end_turn(server);)
        before = 0; /* until both are requested */
    end_turn(client);
    await_notes(server, NULL, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_ptr_equal(server->notes[i].chunk, &urgent[i]);
        assert_memory_equal(&words[i], theirs + 1000u * i, sizeof(words[i]));
    }
    server->count = 0;
}

static void overtaken(enum ibx_rdma_kind kind)
{
    struct ibx_chunk bulk;
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs),
                                     IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE);
    post(server, &bulk, kind, 1, mine, mr, 0, sizeof(mine));
    while (ibx_shm_request_room(server->shm, &bulk) && end_turn(server))
        ; /* it is requested */
    for (unsigned i = 0; i < ROUNDS; i++)
        overtake(mr);
    await_notes(server, client, 1);
    assert_ptr_equal(server->notes[0].chunk, &bulk);
    assert_int_equal(server->notes[0].status, 0);
    end_deregister(client, mr);
}

static void test_a_read_overtaken(void **state)
{
    (void)state;
    overtaken(IBX_RDMA_READ);
    assert_memory_equal(mine, theirs, sizeof(mine));
}

static void test_a_write_overtaken(void **state)
{
    (void)state;
    memcpy(mine, theirs, sizeof(mine)); /* which the urgent READs look at */
    mine[5000] ^= 1;
    overtaken(IBX_RDMA_WRITE);
    assert_memory_equal(theirs, mine, sizeof(mine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_read_overtaken, meet, both_close),
        cmocka_unit_test_setup_teardown(test_a_write_overtaken, meet, both_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
