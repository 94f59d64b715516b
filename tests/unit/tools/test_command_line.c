/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's command line, from that of the source to that of the destination. */
#include "tests/fixtures/shown_line.h"
#include "tests/fixtures/unit.h"
#include "tools/ib-migrate/run.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

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

/* QEMU would make another one of guid=auto, and of none. */
static void test_the_generation_id_stays(NO_STATE)
{
    static const char guid[] = "324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87";
    json_t *given = json_pack("[s, s, s, s, s, s, s, s, s, s, s, s]", "qemu", "-device", "vmgenid",
                              "-device", "guid=auto,id=g,driver=vmgenid", "--device",
                              "{\"driver\": \"vmgenid\", \"guid\": \"auto\"}", "-device",
                              "virtio-rng-pci,id=vmgenid", "-append", "vmgenid", "-S"),
           *wanted = json_pack(
               "[s, s, s, s, s, s, s, s, s, s, s, s]", "qemu", "-device",
               "vmgenid,guid=324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87", "-device",
               "guid=auto,id=g,driver=vmgenid,guid=324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87",
               "--device",
               "{\"driver\":\"vmgenid\",\"guid\":\"324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87\"}",
               "-device", "virtio-rng-pci,id=vmgenid", "-append", "vmgenid", "-S");
    ibx_run_set_guid(given, guid);
    if (!json_equal(given, wanted))
        fail_msg("%s", json_dumps(given, 0));
    json_decref(given);
    json_decref(wanted);
}

/* QEMU can be started with less than 6 MiB. One that shows more is not started elsewhere with the
 * beginning of that. */
static void test_no_command_line_is_cut(NO_STATE)
{
    const size_t most = (size_t)8 << 20, words = 16;
    char *text = mmap(NULL, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(text, MAP_FAILED);
    memset(text, 'x', most);
    for (size_t i = 1; i <= words; i++)
        text[i * most / words - 1] = '\0';
    for (unsigned mib = 5; mib <= 8; mib += 3) {
        struct ibx_error err = {0};
        const pid_t child = shows(text, (size_t)mib << 20);
        if (!child) {
            munmap(text, most);
            skip();
        }
        json_t *list = ibx_run_arguments_of(child, &err);
        assert_int_equal(json_array_size(list), mib < 6 ? 10 : 0);
        assert_int_equal(err.code, mib < 6 ? 0 : -E2BIG);
        json_decref(list);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    munmap(text, most);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_generation_id_stays),
        cmocka_unit_test(test_options_without_a_value),
        cmocka_unit_test(test_no_command_line_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
