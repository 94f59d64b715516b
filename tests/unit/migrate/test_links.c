/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The default number of page connections, which depends on the number of processors. */
#include "common/thread.h"
#include "migrate/common/common.h"
#include "migrate/pages/pages.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

static unsigned processors; /* 0: more than a set holds */

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    errno = EINVAL;
    CPU_ZERO_S(size, set);
    for (unsigned i = 0; i < processors; i++)
        CPU_SET_S((size_t)i, size, set);
    return processors ? 0 : -1;
}

static void offered(unsigned of, unsigned wished, unsigned least, unsigned most)
{
    struct ibx_migrate_hello hello = {0};
    processors = of;
    ibx_migration_offer_links(&hello, wished);
    assert_int_equal(hello.links_least, least);
    assert_int_equal(hello.links, most);
}

static void test_links_follow_processors(NO_STATE)
{
    offered(1, 0, 1, 3);
    offered(7, 0, 1, 3);
    offered(8, 0, 1, 5);
    offered(15, 0, 1, 5);
    offered(16, 0, 1, 7);
    offered(64, 0, 1, 7);
    offered(0, 0, 1, 7);
}

static void test_wished_number_is_offered(NO_STATE)
{
    offered(2, 1, 1, 1);
    offered(2, 9, 9, 9);
    offered(16, 2, 2, 2);
    offered(16, 17, 16, 16);
}

static void test_processors_are_counted(NO_STATE)
{
    processors = 7;
    assert_int_equal(ibx_thread_processors(), 7);
    assert_false(ibx_thread_may_spin());
    processors = 8;
    assert_true(ibx_thread_may_spin());
    processors = 0;
    assert_true(ibx_thread_processors() > 8 && ibx_thread_may_spin());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_follow_processors),
        cmocka_unit_test(test_wished_number_is_offered),
        cmocka_unit_test(test_processors_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
