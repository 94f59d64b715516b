/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The plugin and the preloaded library may come from different builds, and read the structs of
 * attach_table.h in each other's memory. So what has another layout has another version. */
#include "frontend-glue/preload/attach_table.h"
#include "tests/fixtures/unit.h"

/* Of the versions since the first one that this program knows: where the last of each group of
 * members is, and how long the structs are. A change needs a new line, not another one. */
static const struct layout {
    unsigned version;
    size_t stream, pinned, settle, alone, whole, rows, copy, calls;
} layouts[] = {{26, 40, 49, 50, 51, 52, 56, 80, 216},
               {27, 40, 49, 51, 52, 53, 56, 80, 216},
               {28, 40, 49, 51, 52, 53, 56, 80, 216},
               {29, 40, 49, 51, 52, 53, 56, 80, 216},
               {30, 40, 49, 51, 52, 53, 56, 80, 216}};

static void test_layout_has_its_version(NO_STATE)
{
    const struct layout now = {
        .version = IBX_FRONTEND_VERSION,
        .stream = offsetof(struct ibx_frontend_copy, stream),
        .pinned = offsetof(struct ibx_frontend_copy, pinned),
        .settle = offsetof(struct ibx_frontend_copy, settle),
        .alone = offsetof(struct ibx_frontend_copy, alone),
        .whole = offsetof(struct ibx_frontend_copy, whole),
        .rows = offsetof(struct ibx_frontend_copy, rows),
        .copy = sizeof(struct ibx_frontend_copy),
        .calls = sizeof(struct ibx_frontend_calls),
    };
    const struct layout *last = &layouts[sizeof(layouts) / sizeof(layouts[0]) - 1];
    const struct layout *of = last;
    while (of > layouts && of->version != now.version)
        of--;
    assert_int_equal(of->version, now.version);
    assert_int_equal(now.calls, of->calls);
    assert_int_equal(now.settle, of->settle);
    assert_true(now.stream == of->stream && now.pinned == of->pinned && now.alone == of->alone &&
                now.whole == of->whole && now.rows == of->rows && now.copy == of->copy);
    assert_ptr_equal(of, last);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layout_has_its_version)};
    return cmocka_run_group_tests_name("attach-table", tests, NULL, NULL);
}
