/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Second contexts of two devices. */
#include "gpudirect/second_context.h"
#include "common/clock.h"
#include "tests/fixtures/cuda_unit.h"
#include "tests/fixtures/patience.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define SIZE ((size_t)4096)

static struct ibx_cuda table; /* the driver's, but for stream_synchronize */

static atomic_bool held; /* device 0 makes nothing */
static atomic_bool waits;

/* Of the current context, which the copy has entered. */
static int synchronize(void *stream)
{
    int device;
    if (!cuda->ctx_get_device(&device) && !device) {
        atomic_store(&waits, true);
        while (atomic_load(&held))
            sched_yield();
    }
    return cuda->stream_synchronize(stream);
}

/* Whether it is so by and by. */
static bool await(atomic_bool *what)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (!atomic_load(what) && ibx_now_ns() < deadline)
        sched_yield();
    return atomic_load(what);
}

struct copier {
    pthread_t thread;
    int device, rc;
    uint64_t memory; /* of which the first half is copied to the second */
    uint8_t bytes[SIZE];
    void *context; /* of the program */
    bool stays;    /* its thread, in that context */
    atomic_bool ends;
};

static void *copy(void *argument)
{
    struct copier *c = argument;
    void *after;
    cuda_application_use(c->device);
    cuda->ctx_get_current(&c->context);
    c->rc = ibx_second_context_make(&table)
                ? ibx_second_context_copy(&table, c->memory + SIZE, c->memory, SIZE)
                : -1;
    c->stays = !cuda->ctx_get_current(&after) && after == c->context;
    atomic_store(&c->ends, true);
    return NULL;
}

static void begin(struct copier *c, int device)
{
    c->device = device;
    cuda_application_use(device);
    memset(c->bytes, 'a' + device, SIZE);
    assert_int_equal(app->mem_alloc(&c->memory, 2 * SIZE), 0);
    assert_true(app->poke(c->memory, c->bytes, SIZE));
    assert_int_equal(pthread_create(&c->thread, NULL, copy, c), 0);
}

static void end(struct copier *c)
{
    pthread_join(c->thread, NULL);
    assert_int_equal(c->rc, 0);
    assert_true(c->stays);
    cuda_application_use(c->device);
    assert_on_device(c->memory + SIZE, c->bytes, SIZE);
    app->mem_free(c->memory);
}

/* A device that does not get on keeps no copy of another one waiting. */
static void test_beside_a_device_that_does_not_get_on(void **state)
{
    static struct copier stuck, other;
    (void)state;
    atomic_store(&held, true);
    begin(&stuck, 0);
    assert_true(await(&waits));
    begin(&other, 1);
    const bool gets_on = await(&other.ends);
    atomic_store(&held, false);
    end(&stuck);
    end(&other);
    assert_true(gets_on);
}

static int set_up(void **state)
{
    if (find_cuda(state))
        return -1;
    table = *cuda;
    table.stream_synchronize = synchronize;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_a_device_that_does_not_get_on),
    };
    return cmocka_run_group_tests_name("second-context", tests, set_up, NULL);
}
