/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client's allocations, pinned while they are what they were. */
#include "gpudirect/client_pins.h"
#include "tests/cuda/application.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define KIB 1024u

static const struct ibx_cuda *cuda;
static const struct cuda_calls *app;
static uint8_t memory[512 * KIB];

static struct ibx_double_stats stats(void)
{
    struct ibx_double_stats now;
    app->get_stats(&now);
    return now;
}

static bool pin(struct ibx_client_pins *pins, size_t at, size_t n, uint64_t id)
{
    struct ibx_error err = {0};
    return ibx_client_pin(pins, cuda, memory + at, n, id, true, &err);
}

static void test_once(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    unsigned long ever = stats().host_pinned;
    for (int i = 0; i < 5; i++) {
        assert_true(pin(&pins, 0, 64 * KIB, 1));
        assert_true(pin(&pins, 64 * KIB, 4 * KIB, 2));
    }
    assert_int_equal(stats().host_pinned, ever + 2);
    assert_int_equal(stats().host_pins, 2);
    assert_int_equal(pins.bytes, 68 * KIB);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().host_pins, 0);
    assert_int_equal(pins.bytes, 0);
}

/* The same place under another id is other memory: the GPU must not see the old pages. */
static void test_made_anew(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    unsigned long ever = stats().host_pinned;
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_true(pin(&pins, 64 * KIB, 64 * KIB, 2));
    assert_true(pin(&pins, 0, 64 * KIB, 3));
    assert_int_equal(stats().host_pinned, ever + 3);
    assert_int_equal(stats().host_pins, 2);
    assert_true(pin(&pins, 4 * KIB, 120 * KIB, 4)); /* over both */
    assert_int_equal(stats().host_pins, 1);
    assert_true(pin(&pins, 0, 4 * KIB, 5)); /* beside it */
    assert_int_equal(stats().host_pins, 2);
    ibx_client_pins_drop(&pins, cuda);
}

/* Bounded in bytes and number: the longest unused goes. */
static void test_bounds(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = 100 * KIB};
    assert_false(pin(&pins, 0, 101 * KIB, 1));
    assert_true(pin(&pins, 0, 40 * KIB, 1));
    assert_true(pin(&pins, 40 * KIB, 40 * KIB, 2));
    assert_true(pin(&pins, 0, 40 * KIB, 1));
    unsigned long ever = stats().host_pinned;
    assert_true(pin(&pins, 80 * KIB, 40 * KIB, 3));
    assert_int_equal(pins.bytes, 80 * KIB);
    assert_true(pin(&pins, 0, 40 * KIB, 1)); /* still there */
    assert_int_equal(stats().host_pinned, ever + 1);
    for (unsigned i = 0; i < 2 * IBX_CLIENT_PINS; i++)
        assert_true(pin(&pins, 200 * KIB + i * KIB, KIB, 10 + i));
    assert_true(stats().host_pins <= IBX_CLIENT_PINS && pins.bytes <= pins.bytes_max);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().host_pins, 0);
}

/* Said once, and not asked again for that allocation. */
static void test_refused(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    struct ibx_error err = {0}, again = {0};
    app->inject("cuMemHostRegister", 1, 801, false);
    assert_false(ibx_client_pin(&pins, cuda, memory, KIB, 1, true, &err));
    assert_int_equal(err.code, 801);
    assert_non_null(strstr(err.message, "1024"));
    assert_false(ibx_client_pin(&pins, cuda, memory, KIB, 1, true, &again));
    assert_int_equal(again.code, 0);
    assert_true(ibx_client_pin(&pins, cuda, memory, KIB, 2, true, &again));
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(stats().host_pins, 0);
}

static void test_reset(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->primary_reset(0);
    assert_int_equal(stats().host_pins, 0);
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    assert_int_equal(stats().host_pins, 1);
    assert_int_equal(pins.bytes, 64 * KIB);
    app->primary_reset(0);
    ibx_client_pins_drop(&pins, cuda); /* gone already */
    assert_int_equal(pins.bytes, 0);
}

/* A session can end in a thread that has no context. */
static void test_dropped_elsewhere(void **state)
{
    (void)state;
    struct ibx_client_pins pins = {.bytes_max = sizeof(memory)};
    void *context = &pins;
    assert_true(pin(&pins, 0, 64 * KIB, 1));
    app->ctx_set_current(NULL);
    ibx_client_pins_drop(&pins, cuda);
    assert_int_equal(cuda->ctx_get_current(&context), 0);
    assert_null(context);
    cuda_application_use(0);
    assert_int_equal(stats().host_pins, 0);
}

static int find_cuda(void **state)
{
    (void)state;
    app = cuda_application();
    cuda_application_use(0);
    cuda = ibx_cuda_load(NULL);
    return cuda ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),   cmocka_unit_test(test_made_anew),
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_reset),  cmocka_unit_test(test_dropped_elsewhere),
    };
    return cmocka_run_group_tests_name("pins", tests, find_cuda, NULL);
}
