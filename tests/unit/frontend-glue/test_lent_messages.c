/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Long messages that are received into page-locked memory, where the GPU reads their payloads. */
#include "tests/fixtures/copies_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static atomic_uint taken, lent, most; /* chunks: in total, now, at most */

static void *take(size_t bytes)
{
    void *memory = ibx_pinned_borrow(bytes);
    if (!memory)
        return NULL;
    taken++;
    lent++;
    most = lent > most ? lent : most;
    return memory;
}

static void give(void *memory)
{
    lent--;
    ibx_pinned_return(memory);
}

static const struct ibx_message_memory memory = {take, give};

/* One driver call for each copy, and no further chunk. */
static void test_payload_is_read_where_it_came(void **state)
{
    (void)state;
    static const size_t sizes[] = {20000, 65536, 100001, 262144, 512 << 10};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t n = sizes[i];
        const unsigned before = taken;
        const struct ibx_double_stats was = cuda_stats();
        uint8_t *bytes = pattern(n, n);
        const struct ibx_frontend_copy copy = {.to_device = true, .host = bytes, .n = n};
        assert_int_equal(copy_by_client(copy), 0);
        assert_device(n, n);
        assert_int_equal(taken, before + 1);
        assert_int_equal(cuda_stats().copies_sync, was.copies_sync + 1);
        assert_int_equal(cuda_stats().copies_async, was.copies_async);
    }
}

/* The same for a frame that GVirtuS's front end writes in three pieces. */
static void test_frame_in_pieces(void **state)
{
    (void)state;
    const size_t n = 262144;
    struct frame f = to_device(pattern(n, 5), n);
    const struct ibx_double_stats was = cuda_stats();
    expect_code("cudaMemcpy", &f, 0);
    assert_device(n, 5);
    assert_int_equal(cuda_stats().copies_sync, was.copies_sync + 1);
    assert_int_equal(cuda_stats().copies_async, was.copies_async);
}

/* The copy is made in the order of its stream. */
static void test_streams(void **state)
{
    (void)state;
    const size_t n = 100000;
    void *stream;
    assert_int_equal(app->stream_create(&stream, 0), 0);
    app->slow(5000);
    assert_int_equal(app->copy_async(device, device + n, n, stream), 0);
    const struct ibx_frontend_copy copy = {.to_device = true,
                                           .async = true,
                                           .host = pattern(n, 3),
                                           .n = n,
                                           .stream = (uintptr_t)stream};
    const unsigned before = taken;
    assert_int_equal(copy_by_client(copy), 0);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_device(n, 3);
    assert_int_equal(taken, before + 1);
}

/* A client that sends many messages ahead gets no more of the memory than one that waits. */
static void test_one_at_a_time(void **state)
{
    (void)state;
    const size_t n = 100000;
    uint8_t *bytes = pattern(n, 1);
    struct frame first = to_device(bytes, n), again = to_device(bytes, n);
    most = 0;
    app->slow(20000);
    for (unsigned i = 0; i < 4; i++)
        send_frame("cudaMemcpy", i % 2 ? &again : &first);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(receive_reply(NULL, 0), 0);
    assert_int_equal(most, 1);
}

/* GVirtuS reads requests that it runs as before. */
static void test_request_of_gvirtus(void **state)
{
    (void)state;
    const size_t n = 100000;
    struct frame body = {0};
    put(&body, pattern(n, 9), n);
    const unsigned before = taken;
    expect_code("cudaOther", &body, HANDLED);
    assert_int_equal(seen().last_length, n);
    assert_memory_equal(seen().last_body, body.bytes, 64);
    assert_int_equal(taken, before + 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_payload_is_read_where_it_came),
        TEST(test_frame_in_pieces),
        TEST(test_streams),
        TEST(test_one_at_a_time),
        TEST(test_request_of_gvirtus),
    };
    app = cuda_application();
    gpu.memory = (size_t)40 * IBX_PINNED_STRIDE;
    session_lends = &memory;
    session_pair_use(argc > 1 ? argv[1] : "tcp", NULL, NULL, NULL);
    return cmocka_run_group_tests_name("lent-messages", tests, NULL, NULL);
}
