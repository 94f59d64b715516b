/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Graphs of cuDNN in a back end, in which no library is loaded: what is checked before it. */
#include "frontend-glue/device_calls/math_dnn.h"
#include "tests/scenes/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define NOT_SUPPORTED 3000 /* there is no library */
#define WAIT_MS       5000u
enum { PLAN = 0x1000, ANOTHER = 0x2000 };

static sem_t other_has_ended;
static bool went_on;

static void *end_other(void *unused)
{
    (void)unused;
    ibx_dnn_ended(ANOTHER);
    sem_post(&other_has_ended);
    return NULL;
}

static pthread_t other;

/* CUDA may take its time. Another client's descriptor ends meanwhile. */
static int ask(unsigned count, const int *attributes, void **values, uint64_t address)
{
    struct timespec until;
    (void)address;
    for (unsigned i = 0; i < count; i++)
        *(unsigned *)values[i] =
            attributes[i] == IBX_CUDA_POINTER_MEMORY_TYPE ? IBX_CUDA_MEMORY_DEVICE : 0;
    assert_int_equal(pthread_create(&other, NULL, end_other, NULL), 0);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += patience_ms(WAIT_MS) / 1000;
    went_on = !sem_clockwait(&other_has_ended, CLOCK_MONOTONIC, &until);
    return 0;
}

static void others_do_not_wait(void **state)
{
    static const struct ibx_cuda cuda = {.pointer_get_attributes = ask};
    struct copies x = {.options = {.mode = IBX_GPU_ON}, .cuda = &cuda};
    int64_t number = 1;
    uint64_t address = 0x7000, value = 0;
    uint8_t has = 0;
    const union ibx_math_value values[] = {
        {.p = NULL},    {.p = (void *)PLAN}, {.i = 1},      {.p = NULL},
        {.p = &number}, {.p = &address},     {.p = &value}, {.p = &has},
    };
    (void)state;
    assert_int_equal(sem_init(&other_has_ended, 0, 0), 0);
    assert_int_equal(ibx_dnn_execute(&x, NULL, values), NOT_SUPPORTED);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_true(went_on);
    sem_destroy(&other_has_ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(others_do_not_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
