/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's command line, from that of the source to that of the destination. */
#include "tests/fixtures/unit.h"
#include "tools/ib-migrate/run.h"

#include <string.h>

static json_t *convert(json_t *given)
{
    static const struct run_maps maps;
    static const struct run_tokens tokens = {"/run/token", "/memory/token"};
    struct ibx_error err = {0};
    json_t *none = json_object(), *nothing = json_array();
    json_t *made = ibx_run_arguments(given, &maps, &tokens, none, nothing, &err);
    if (!made)
        assert_string_equal(err.message, "");
    json_decref(given);
    json_decref(none);
    json_decref(nothing);
    return made;
}

/* What follows an option that has no value is an option of its own: -S and -daemonize are dropped
 * wherever they are. */
static void test_options_without_a_value(NO_STATE)
{
    static const char *const alone[] = {
        "-nographic",       "-enable-sync-profile",
        "-one-insn-per-tb", "-async-teardown", /* QEMU 7.2 to 9.0 */
        "-perfmap",         "-jitdump",        /* since 8.0 */
        "-curses",          "-show-cursor",
        "-enable-hax", /* old ones */
    };
    for (size_t i = 0; i < sizeof(alone) / sizeof(alone[0]); i++) {
        json_t *made = convert(json_pack("[s, s, s, s, s]", "qemu", alone[i], "-S", "-m", "64")),
               *wanted = json_pack("[s, s, s, s, s, s, s, s]", "qemu", alone[i], "-m", "64", "-qmp",
                                   "unix:/run/token/qmp,server=on,wait=off", "-incoming", "defer");
        if (!json_equal(made, wanted))
            fail_msg("%s: %s", alone[i], json_dumps(made, 0));
        json_decref(made);
        json_decref(wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_without_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
