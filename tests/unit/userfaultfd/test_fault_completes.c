/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The last page becomes present just when the engine begins to serve. */
#include "common/state_machine.h"
#include "tests/fixtures/fault_memory.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static bool marks; /* the next move to SERVING finds all pages present after it has looked */

bool __real_ibx_state_allows(const struct ibx_state_table *table, unsigned from, unsigned to);
bool __wrap_ibx_state_allows(const struct ibx_state_table *table, unsigned from, unsigned to);

bool __wrap_ibx_state_allows(const struct ibx_state_table *table, unsigned from, unsigned to)
{
    if (marks && to == IBX_FAULT_SERVING) {
        marks = false; /* as another thread would, which needs no lock for that */
        assert_int_equal(ibx_fault_mark_zero(rig.engine, 0, PAGES), 0);
    }
    return __real_ibx_state_allows(table, from, to);
}

static int begin(void **state)
{
    (void)state;
    rig_make(1, 0);
    rig.config.no_background = true;
    rig_start();
    return 0;
}

static void test_when_it_begins(void **state)
{
    (void)state;
    marks = true;
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_false(marks);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
}

static void test_when_it_is_resumed(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    ibx_fault_stop(rig.engine, -ECONNRESET, "its server is lost");
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    marks = true;
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), 0);
    assert_false(marks);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_when_it_begins, begin, rig_end),
        cmocka_unit_test_setup_teardown(test_when_it_is_resumed, begin, rig_end),
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
