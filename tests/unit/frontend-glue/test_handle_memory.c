/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Device memory of clients, in a back end without CUDA: what is noted while one of them frees
 * memory, and another one may already have memory there. */
#include "frontend-glue/handles/handles.h"
#include "frontend-glue/tenants/client_list_internal.h"
#include "tests/fixtures/unit.h"

#define MEMORY 0x700000000000u
#define BYTES  4096u

static int get_current(void **context)
{
    static int context_of_all;
    *context = &context_of_all;
    return 0;
}

static const struct ibx_cuda cuda = {.ctx_get_current = get_current};
static struct ibx_client clients[2] = {{.number = 1}, {.number = 2}};
static struct gpu_session alice, bob;

static void begin(struct gpu_session *x, const char *name, struct ibx_client *client)
{
    const struct ibx_tenant_limits limits = {.shared = false};
    *x = (struct gpu_session){.options = {.mode = IBX_GPU_ON}, .cuda = &cuda, .client = client};
    x->isolation.tenant = ibx_tenant_get(name, &limits, 0);
    assert_non_null(x->isolation.tenant);
}

static int set_up(void **state)
{
    (void)state;
    begin(&alice, "alice", &clients[0]);
    begin(&bob, "bob", &clients[1]);
    return 0;
}

/* Whether memory of the client begins there, and is not being freed. It counts as being freed from
 * then on. */
static bool has(const struct gpu_session *x, uint64_t *number)
{
    uint64_t base = 0;
    const bool is = ibx_memory_keep_begin(ibx_clients_number_of(x), MEMORY, BYTES, &base, number);
    assert_true(!is || base == MEMORY);
    return is;
}

/* CUDA may give the memory to another client between the two. */
static void test_freed_twice_at_once(NO_STATE)
{
    uint64_t first, second;
    assert_true(ibx_memory_add(&alice, MEMORY, BYTES, false));
    assert_true(ibx_memory_free_begin(&alice, MEMORY, &first) && first);
    assert_false(ibx_memory_free_begin(&alice, MEMORY, &second));
    assert_int_equal(second, 0);
    ibx_memory_free_end(MEMORY, first, false); /* CUDA has refused it */
    assert_true(ibx_memory_free_begin(&alice, MEMORY, &second));
    assert_int_equal(second, first);
    ibx_memory_free_end(MEMORY, second, true);
    assert_false(has(&alice, &first));
}

/* The end of a free that comes late concerns the memory that was there, not what is there now. */
static void test_freed_and_given_to_another(NO_STATE)
{
    uint64_t old, number;
    assert_true(ibx_memory_add(&alice, MEMORY, BYTES, false));
    assert_true(ibx_memory_free_begin(&alice, MEMORY, &old));
    assert_true(ibx_memory_add(&bob, MEMORY, BYTES, false));
    ibx_memory_free_end(MEMORY, old, true);
    assert_true(has(&bob, &number));
    assert_int_not_equal(number, old);
    ibx_memory_free_end(MEMORY, number, true);
}

/* Memory that a graph has made is there again at its next launch. */
static void test_memory_of_a_graph(NO_STATE)
{
    uint64_t number;
    assert_true(ibx_memory_add(&alice, MEMORY, BYTES, true));
    assert_true(ibx_memory_free_begin(&alice, MEMORY, &number));
    ibx_memory_free_end(MEMORY, number, true);
    assert_true(has(&alice, &number));
    assert_true(ibx_memory_add(&bob, MEMORY, 1, false)); /* and goes if the address is another's */
    assert_false(has(&alice, &number));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_freed_twice_at_once),
        cmocka_unit_test(test_freed_and_given_to_another),
        cmocka_unit_test(test_memory_of_a_graph),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
