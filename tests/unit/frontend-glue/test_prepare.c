/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that is pinned before the first copy needs it. */
#include "tests/fixtures/copies_scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES ((size_t)3 << 20)

static uint8_t *memory;
static unsigned long pins; /* pins before the test */

/* The back end's pool is made before anything is counted. */
static int set_up_memory(void **state)
{
    int rc = set_up(state);
    struct ibx_frontend_copy first = {
        .to_device = true, .host = scene_memory(1 << 20), .n = 1 << 20};
    assert_int_equal(copy_by_client(first), 0);
    memory = ibx_shared_allocate(BYTES, NULL);
    assert_non_null(memory);
    memset(memory, 1, BYTES);
    pins = cuda_stats().host_pins;
    return rc;
}

static int tear_down_memory(void **state)
{
    assert_true(ibx_shared_free(memory));
    gpu.limits = (struct ibx_tenant_limits){0};
    int rc = tear_down(state);
    on_request = NULL;
    return rc;
}

static struct ibx_frontend_copy wish(bool to_device)
{
    return (struct ibx_frontend_copy){
        .to_device = to_device, .host = memory, .n = BYTES, .lasting = true, .pinned = true};
}

/* Copies there and back and checks the bytes. Returns how many pieces of memory were pinned for
 * that. */
static unsigned long copies_pin(void)
{
    const unsigned long before = cuda_stats().host_pinned;
    pattern_fill(memory, BYTES, 5);
    assert_int_equal(copy_by_client(wish(true)), 0);
    memset(memory, 0, BYTES);
    assert_int_equal(copy_by_client(wish(false)), 0);
    assert_int_equal(pattern_check(memory, BYTES, 5), BYTES);
    return cuda_stats().host_pinned - before;
}

/* Must run first: the pool exists when the back end's thread has its context, before any copy. */
static void test_pool(void **state)
{
    (void)state;
    assert_int_equal(cuda_stats().host_pins, 1);
    assert_int_equal(ibx_pinned_count(), POOL / IBX_PINNED_STRIDE);
    assert_int_equal(cuda_stats().copies_async + cuda_stats().copies_sync, 0);
    assert_false(ibx_pinned_wanted());
}

static void test_before_the_first_copy(void **state)
{
    (void)state;
    ibx_session_prepare(pair.client, memory, BYTES);
    assert_int_equal(cuda_stats().host_pins, pins + 1);
    assert_int_equal(copies_pin(), 0);
    ibx_session_prepare(pair.client, memory, BYTES);
    assert_int_equal(cuda_stats().host_pins, pins + 1);
}

/* Without the preparation, the first copy pins. This shows that the test above tests something. */
static void test_first_copy_pins_without_preparation(void **state)
{
    (void)state;
    assert_int_equal(copies_pin(), 1);
}

/* The back end would have to allocate pages for untouched memory, and it does not map other
 * memory. */
static void test_memory_that_is_not_prepared(void **state)
{
    (void)state;
    ibx_session_prepare(pair.client, scene_memory(BYTES), BYTES);
    ibx_session_prepare(pair.client, memory, 1000);
    assert_int_equal(cuda_stats().host_pins, pins);
}

static void leave_context(const char *name)
{
    if (!strcmp(name, "leave"))
        app->ctx_set_current(NULL);
    if (!strcmp(name, "enter"))
        cuda_application_use(0);
}

static int set_up_leaving(void **state)
{
    on_request = leave_context;
    return set_up_memory(state);
}

/* The back end's thread may not have made a call yet that gives it a context. */
static void test_without_a_context(void **state)
{
    (void)state;
    struct frame nothing = {0};
    expect_code("leave", &nothing, HANDLED);
    ibx_session_prepare(pair.client, memory, BYTES);
    assert_int_equal(cuda_stats().host_pins, pins + 1);
    expect_code("enter", &nothing, HANDLED);
    assert_int_equal(copies_pin(), 0);
}

static int set_up_little(void **state)
{
    gpu.limits.pins = 1 << 20;
    return set_up_memory(state);
}

static void test_more_than_allowed(void **state)
{
    (void)state;
    ibx_session_prepare(pair.client, memory, BYTES);
    assert_int_equal(cuda_stats().host_pins, pins);
    assert_int_equal(copies_pin(), 0);
    struct frame nothing = {0};
    expect_code("other", &nothing, HANDLED); /* updates seen() */
    assert_non_null(strstr(seen().refused, "rdma.pins"));
}

static void test_refused_by_cuda(void **state)
{
    (void)state;
    app->inject("cuMemHostRegister", 1, 2, false);
    ibx_session_prepare(pair.client, memory, BYTES);
    assert_int_equal(cuda_stats().host_pins, pins);
    copies_pin();
}

/* Registrations end with the session; LeakSanitizer detects those that do not. */
static void test_connection_breaks_meanwhile(void **state)
{
    (void)state;
    struct ibx_injected_faults faults = {.disconnect_in = 2}; /* the FLUSH */
    assert_int_equal(ibx_fault_injection_attach(pair.client->conn, &faults, NULL), 0);
    ibx_session_prepare(pair.client, memory, BYTES);
    assert_false(ibx_session_live(pair.client));
}

static void test_ends_with_the_client(void **state)
{
    (void)state;
    ibx_session_prepare(pair.client, memory, BYTES);
    ibx_session_close(pair.client);
    join_server();
    assert_int_equal(cuda_stats().host_pins, 1); /* the pool */
}

/* The back end ignores an unknown key; a length of 0 is an error. */
static void test_wrong_keys_and_lengths(void **state)
{
    (void)state;
    struct ibx_remote remote = {.address = 4096, .length = 1 << 20, .keys = {12345}};
    struct frame nothing = {0};
    assert_int_equal(ibx_session_add_remote(pair.client, SEGMENT_PREPARE, &remote), 0);
    expect_code("other", &nothing, HANDLED);
    assert_int_equal(cuda_stats().host_pins, pins);
    remote.length = 0;
    assert_int_equal(ibx_session_add_remote(pair.client, SEGMENT_PREPARE, &remote), 0);
    send_frame("other", &nothing);
    assert_int_equal(receive_reply(NULL, 0), -1);
    join_server();
    assert_int_equal(seen().end, -EPROTO);
}

int main(void)
{
#define CASE(name, up) cmocka_unit_test_setup_teardown(name, up, tear_down_memory)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pool, set_up, tear_down),
        CASE(test_before_the_first_copy, set_up_memory),
        CASE(test_first_copy_pins_without_preparation, set_up_memory),
        CASE(test_memory_that_is_not_prepared, set_up_memory),
        CASE(test_without_a_context, set_up_leaving),
        CASE(test_more_than_allowed, set_up_little),
        CASE(test_refused_by_cuda, set_up_memory),
        CASE(test_connection_breaks_meanwhile, set_up_memory),
        CASE(test_ends_with_the_client, set_up_memory),
        CASE(test_wrong_keys_and_lengths, set_up_memory),
    };
    app = cuda_application();
    session_pair_use("shm", NULL, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
