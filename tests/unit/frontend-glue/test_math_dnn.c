/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Graphs and networks of cuDNN in a back end without the library: what is checked before the
 * library is called. */
#include "frontend-glue/device_calls/math_dnn.h"
#include "tests/fixtures/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define BAD_PARAM 2000
/* also returned if everything else was right, because there is no library */
#define NOT_SUPPORTED 3000
#define WAIT_MS       5000u

/* Descriptors, which are never accessed, and an address of the device. */
enum { PLAN = 0x1000, GRAPH = 0x2000, TENSOR = 0x3000, ANOTHER = 0x4000, DEVICE = 0x70000000 };
enum { OPERATIONS = 800, TYPE = 901, SIZES = 902, NUMBER = 906, BY_VALUE = 908 };
enum { DATA = 1, BOOLEAN = 2, INT64 = 3, POINTER = 6, DESCRIPTOR = 15 };

static int get_current(void **context)
{
    static int context_of_all;
    *context = &context_of_all;
    return 0;
}

static int ask(unsigned count, const int *attributes, void **values, uint64_t address);
static const struct ibx_cuda cuda = {.ctx_get_current = get_current, .pointer_get_attributes = ask};
static struct gpu_session alice, bob;

static enum ibx_handle_kind graph_kind(void)
{
    return (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_GRAPH);
}

static void begin(struct gpu_session *x, const char *name)
{
    const struct ibx_tenant_limits limits = {.shared = false};
    *x = (struct gpu_session){.options = {.mode = IBX_GPU_ON}, .cuda = &cuda};
    x->isolation.tenant = ibx_tenant_get(name, &limits, 0);
    assert_non_null(x->isolation.tenant);
}

static int set_up(void **state)
{
    static const uint64_t own[] = {PLAN, GRAPH, TENSOR};
    (void)state;
    begin(&alice, "alice");
    begin(&bob, "bob");
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        assert_true(ibx_handles_add(&alice, graph_kind(), own[i]));
    assert_true(ibx_handles_add(&bob, graph_kind(), ANOTHER));
    return 0;
}

static int tear_down(void **state)
{
    static const uint64_t all[] = {PLAN, GRAPH, TENSOR, ANOTHER};
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        ibx_dnn_ended(all[i]);
        ibx_handles_remove(all[i] == ANOTHER ? &bob : &alice, graph_kind(), all[i]);
    }
    return 0;
}

/* Returns 0 as if the library accepted it, or the error of the check that refuses it. */
static int set(uint64_t descriptor, int name, int type, uint64_t count, void *array)
{
    const struct ibx_math_function *f = ibx_math_find(IBX_MATH_cudnnBackendSetAttribute);
    const union ibx_math_value values[] = {
        {.p = pointer_to(descriptor)}, {.i = name}, {.i = type}, {.l = count}, {.p = array}};
    const int status = ibx_dnn_check(&alice, f, values);
    if (!status)
        ibx_dnn_done(&alice, f, values);
    ibx_handles_let_go(&alice);
    return status;
}

static int set_descriptor(uint64_t descriptor, uint64_t other)
{
    return set(descriptor, OPERATIONS, DESCRIPTOR, 1, &other);
}

/* The library fills the other one. */
static int get_descriptor(uint64_t descriptor, uint64_t other)
{
    const struct ibx_math_function *f = ibx_math_find(IBX_MATH_cudnnBackendGetAttribute);
    const union ibx_math_value values[] = {{.p = pointer_to(descriptor)},
                                           {.i = OPERATIONS},
                                           {.i = DESCRIPTOR},
                                           {.l = 1},
                                           {.p = NULL},
                                           {.p = &other}};
    const int status = ibx_dnn_check(&alice, f, values);
    ibx_handles_let_go(&alice);
    return status;
}

/* A tensor with this number, of one element of this type, passed by value. */
static void set_tensor(int64_t number, uint32_t type)
{
    uint8_t yes = 1;
    int64_t sizes[] = {1, 1};
    assert_int_equal(set(TENSOR, NUMBER, INT64, 1, &number), 0);
    assert_int_equal(set(TENSOR, TYPE, DATA, 1, &type), 0);
    assert_int_equal(set(TENSOR, SIZES, INT64, 2, sizes), 0);
    assert_int_equal(set(TENSOR, BY_VALUE, BOOLEAN, 1, &yes), 0);
}

/* Executes with one tensor; `has`: whether the request contains its value. */
static int execute(int64_t number, uint64_t address, uint8_t has)
{
    uint64_t value = 0;
    const union ibx_math_value values[] = {
        {.p = NULL},    {.p = pointer_to(PLAN)}, {.i = 1},      {.p = NULL},
        {.p = &number}, {.p = &address},         {.p = &value}, {.p = &has}};
    return ibx_dnn_execute(&alice, NULL, values);
}

/* Creates a descriptor of this type. */
static int create(int type)
{
    const union ibx_math_value values[] = {{.i = type}, {.p = NULL}};
    return ibx_dnn_check(&alice, ibx_math_find(IBX_MATH_cudnnBackendCreateDescriptor), values);
}

/* ----------------------------------------------------------------- descriptors of other clients */

static void descriptors_of_others(void **state)
{
    (void)state;
    assert_int_equal(set_descriptor(GRAPH, TENSOR), 0);
    assert_int_equal(set_descriptor(GRAPH, ANOTHER), BAD_PARAM);
    assert_int_equal(set_descriptor(GRAPH, GRAPH), BAD_PARAM);
    assert_int_equal(get_descriptor(GRAPH, PLAN), 0);
    assert_int_equal(get_descriptor(GRAPH, ANOTHER), BAD_PARAM);
}

/* The library would read and write at this address. */
static void memory_of_the_back_end(void **state)
{
    static uint64_t own;
    (void)state;
    assert_int_equal(execute(1, DEVICE, 0), NOT_SUPPORTED);
    assert_int_equal(execute(1, (uintptr_t)&own, 1), BAD_PARAM);
    assert_int_equal(set(PLAN, OPERATIONS, POINTER, 1, &own), NOT_SUPPORTED);
    assert_int_equal(create(15), 0);
    assert_int_equal(create(16), NOT_SUPPORTED); /* of addresses */
}

/* --------------------------------------------------------------------- what has a value */

static void values_are_in_the_request(void **state)
{
    (void)state;
    set_tensor(7, 0);
    assert_int_equal(set_descriptor(GRAPH, TENSOR), 0);
    assert_int_equal(get_descriptor(GRAPH, PLAN), 0);
    assert_int_equal(execute(7, DEVICE, 0), BAD_PARAM);
    assert_int_equal(execute(7, DEVICE, 1), NOT_SUPPORTED);
    assert_int_equal(execute(8, DEVICE, 0), NOT_SUPPORTED);
}

/* A descriptor that contains this one already has a copy of its contents, so nothing may be
 * added later. */
static void contents_cannot_be_added_later(void **state)
{
    (void)state;
    uint8_t yes = 1;
    assert_int_equal(set_descriptor(PLAN, GRAPH), 0);
    set_tensor(7, 0);
    assert_int_equal(set_descriptor(GRAPH, TENSOR), NOT_SUPPORTED);
    assert_int_equal(set_descriptor(PLAN, TENSOR), 0);
    assert_int_equal(set(TENSOR, BY_VALUE, BOOLEAN, 1, &yes), BAD_PARAM);
    assert_int_equal(execute(7, DEVICE, 0), BAD_PARAM);
}

/* A request has only 8 bytes for a value. */
static void values_that_are_long(void **state)
{
    enum { DOUBLE = 1, FOUR_BYTES_BY_32 = 8, NONE = 1000 };
    (void)state;
    set_tensor(7, FOUR_BYTES_BY_32);
    assert_int_equal(set_descriptor(GRAPH, TENSOR), NOT_SUPPORTED);
    set_tensor(7, NONE);
    assert_int_equal(set_descriptor(GRAPH, TENSOR), NOT_SUPPORTED);
    set_tensor(7, DOUBLE);
    assert_int_equal(set_descriptor(GRAPH, TENSOR), 0);
}

/* --------------------------------------------------------------------------- networks */

/* The library remembers the address of a network's dropout. */
static int use_dropout(uint64_t network, uint64_t dropout)
{
    const struct ibx_math_function *f = ibx_math_find(IBX_MATH_cudnnSetRNNDescriptor_v8);
    union ibx_math_value values[IBX_MATH_ARGUMENTS] = {{.p = pointer_to(network)}};
    values[13].p = pointer_to(dropout);
    const int status = ibx_dnn_check(&alice, f, values);
    if (!status)
        ibx_dnn_done(&alice, f, values);
    return status;
}

static int use_network(uint64_t network)
{
    const struct ibx_math_function *f = ibx_math_find(IBX_MATH_cudnnGetRNNWeightSpaceSize);
    const union ibx_math_value values[] = {{.p = NULL}, {.p = pointer_to(network)}, {.p = NULL}};
    return ibx_dnn_check(&alice, f, values);
}

/* A new dropout at the address of the network's earlier one is a different one. */
static void dropouts_that_were_replaced(void **state)
{
    enum { NETWORK = 0x5000, DROPOUT = 0x6000 };
    const enum ibx_handle_kind network = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_RNN);
    const enum ibx_handle_kind dropout = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_DROPOUT);
    (void)state;
    assert_true(ibx_handles_add(&alice, network, NETWORK));
    assert_true(ibx_handles_add(&alice, dropout, DROPOUT));
    assert_int_equal(use_dropout(NETWORK, DROPOUT), 0);
    assert_int_equal(use_network(NETWORK), 0);
    assert_int_equal(alice.held_count, 1); /* it stays while the library uses it */
    ibx_handles_let_go(&alice);
    assert_true(ibx_handles_remove(&alice, dropout, DROPOUT));
    assert_int_equal(use_network(NETWORK), BAD_PARAM);
    assert_true(ibx_handles_add(&alice, dropout, DROPOUT));
    assert_int_equal(use_network(NETWORK), BAD_PARAM);
    assert_int_equal(use_dropout(NETWORK, DROPOUT), 0);
    assert_int_equal(use_network(NETWORK), 0);
    ibx_handles_let_go(&alice);
    assert_true(ibx_handles_remove(&alice, dropout, DROPOUT));
    assert_true(ibx_handles_remove(&alice, network, NETWORK));
}

/* --------------------------------------------------------------------- others meanwhile */

static sem_t other_has_ended;
static pthread_t other;
static enum { DOES_NOT_RUN, RUNS, HAS_ENDED } other_client;

static void *end_other(void *unused)
{
    (void)unused;
    ibx_dnn_ended(ANOTHER);
    sem_post(&other_has_ended);
    return NULL;
}

/* CUDA may take its time; another client's descriptor is destroyed meanwhile. */
static void let_other_end(void)
{
    struct timespec until;
    assert_int_equal(pthread_create(&other, NULL, end_other, NULL), 0);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += patience_ms(WAIT_MS) / 1000;
    if (!sem_clockwait(&other_has_ended, CLOCK_MONOTONIC, &until))
        other_client = HAS_ENDED;
}

static int ask(unsigned count, const int *attributes, void **values, uint64_t address)
{
    if (other_client == RUNS)
        let_other_end();
    if (address != DEVICE)
        return 1;
    for (unsigned i = 0; i < count; i++)
        *(unsigned *)values[i] =
            attributes[i] == IBX_CUDA_POINTER_MEMORY_TYPE ? IBX_CUDA_MEMORY_DEVICE : 0;
    return 0;
}

static void others_do_not_wait(void **state)
{
    (void)state;
    assert_int_equal(sem_init(&other_has_ended, 0, 0), 0);
    other_client = RUNS;
    assert_int_equal(execute(1, DEVICE, 0), NOT_SUPPORTED);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(other_client, HAS_ENDED);
    sem_destroy(&other_has_ended);
    other_client = DOES_NOT_RUN;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(descriptors_of_others),     TEST(memory_of_the_back_end),
        TEST(values_are_in_the_request), TEST(contents_cannot_be_added_later),
        TEST(values_that_are_long),      TEST(dropouts_that_were_replaced),
        TEST(others_do_not_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
