/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a source asks QEMU after its VM has moved, and what it marks there, with a scripted peer;
 * and what a tool learns that libvirt drives. */
#include "migrate/common/return_path.h"
#include "migrate/source/source.h"
#include "tests/fixtures/qmp_peer.h"

#include <fcntl.h>
#include <sys/resource.h>

#define STOOD_IN    "{\"return\": {}, \"id\" : \"" IBX_QMP_STAND_IN "\"}\r\n"
#define RUNNING(id) "{\"return\": {\"status\": \"running\"}, \"id\": " #id "}\r\n"

/* Only QEMU's answer shows that all memory was protected, so a question that could not be sent
 * is asked again. */
static void test_protection_repeats_an_unsent_question(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-status", READY(2), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_warm_init(&s.warm);
    ibx_source_protection_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.protection.state.now = PROTECTION_ARMED; /* the question after it was not sent */
    s.protecting.now = PROTECTING_NOTED;
    ibx_source_protect(&s);
    assert_int_equal(s.protecting.now, PROTECTING_ASKED);
    ibx_source_protect(&s); /* asked once */
    for (const uint64_t by = ibx_deadline_in_ms(GENEROUS); ibx_now_ns() < by;) {
        ibx_qmp_pump(qmp, NULL);
        ibx_source_protection_answered(&s);
        if (s.protecting.now == PROTECTING_WHOLE)
            break;
    }
    assert_int_equal(s.protecting.now, PROTECTING_WHOLE);
    done();
}

/* Only an answer to a question that was asked when every page had arrived counts, whatever the
 * protection's state. Earlier answers prove nothing. */
static void test_asks_when_every_page_has_come(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-status", "{\"event\": \"RESET\"}\r\n" READY(2), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    ibx_source_protection_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    assert_int_equal(ibx_state_move(&s.protecting, PROTECTING_IMPOSSIBLE), 0);
    ibx_source_all_came(&s);
    assert_int_equal(s.protecting.now, PROTECTING_LAST);
    for (const uint64_t by = ibx_deadline_in_ms(GENEROUS);
         ibx_now_ns() < by && s.protecting.now != PROTECTING_NEEDLESS;) {
        ibx_qmp_pump(qmp, NULL);
        assert_true(ibx_qmp_has_events(qmp) || s.protecting.now == PROTECTING_LAST);
        ibx_source_protection_answered(&s);
    }
    assert_int_equal(s.protecting.now, PROTECTING_NEEDLESS);
    assert_true(ibx_qmp_has_events(qmp));
    done();
}

/* Complete protection is not given up if every page arrives before QEMU answers. */
static void test_a_whole_protection_when_every_page_has_come(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-status", NULL, 0}, {"query-status", READY(2) READY(3), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_warm_init(&s.warm);
    ibx_source_protection_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.protection.state.now = PROTECTION_ARMED;
    s.protecting.now = PROTECTING_NOTED;
    ibx_source_protect(&s);
    assert_int_equal(s.protecting.now, PROTECTING_ASKED);
    ibx_source_all_came(&s);
    assert_int_equal(s.protecting.now, PROTECTING_LAST);
    for (const uint64_t by = ibx_deadline_in_ms(GENEROUS);
         ibx_now_ns() < by && s.protecting.now == PROTECTING_LAST;) {
        ibx_qmp_pump(qmp, NULL);
        ibx_source_protection_answered(&s);
    }
    assert_int_equal(s.protecting.now, PROTECTING_WHOLE);
    done();
}

/* The record was removed, so no record can name a write protection. The source does not try
 * again in each turn. */
static void test_no_protection_without_a_record(NO_STATE)
{
    static struct source s;
    char folder[] = "/tmp/ibx-test-qmp-XXXXXX";
    struct ibx_send_options options = {.folder = folder};
    assert_non_null(mkdtemp(folder));
    attached(SCRIPT({"query-status", READY(2), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    s.status.record = (struct ibx_record){
        .source = true, .epoch = 3, .state = IBX_JOURNAL_MAY_RUN, .uffd = -1, .pid = getpid()};
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_warm_init(&s.warm);
    ibx_source_protection_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.protection.state.now = PROTECTION_MADE;
    ibx_source_protect(&s);
    assert_int_equal(s.protecting.now, PROTECTING_IMPOSSIBLE);
    assert_int_equal(s.protection.state.now, PROTECTION_NONE);
    assert_int_equal(s.note_ns, 0); /* the link is closed as after any other note */
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    assert_int_equal(rmdir(folder), 0);
}

#define MIGRATED(pages, id)                                                                        \
    "{\"return\": {\"total-time\": 10, \"downtime\": 1, \"setup-time\": 2, \"ram\": "              \
    "{\"normal\": " #pages "}}, \"id\": " #id "}\r\n"

/* Migrations of equal duration are distinguished by what they have sent. */
static void test_a_marked_migration(NO_STATE)
{
    const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    attached(
        SCRIPT({"query-migrate", MIGRATED(5, 2), 0}, {"-ended-10-1-2-5\"", READY(3), 0},
               {"query-migrate", MIGRATED(6, 4), 0},
               {"-ended-10-1-2-6\"", "{\"error\": {\"desc\": \"not found\"}, \"id\": 5}\r\n", 0},
               {"query-migrate", MIGRATED(5, 6), 0}, {"-ended-10-1-2-5\"", READY(7), 0},
               {"-ended-10-1-2-5\"", READY(8), 0}));
    ibx_return_path_mark(qmp, any, ibx_deadline_in_ms(GENEROUS));
    assert_false(ibx_return_path_marked(qmp, any, ibx_deadline_in_ms(GENEROUS)));
    assert_true(ibx_return_path_marked(qmp, any, ibx_deadline_in_ms(GENEROUS)));
    close(any);
    done();
}

#define COMPLETED(pages, id)                                                                       \
    "{\"return\": {\"status\": \"completed\", \"total-time\": 10, \"downtime\": 1, "               \
    "\"setup-time\": 2, \"ram\": {\"normal\": " #pages "}}, \"id\": " #id "}\r\n"
#define LASTS(id) "{\"return\": {\"status\": \"active\", \"total-time\": 1}, \"id\": " #id "}\r\n"

/* A VM that libvirt's migration has left is recognized by what QEMU reports about that
 * migration. After or during another migration its pages are not served. */
static void test_the_migration_that_libvirt_drove(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-migrate", LASTS(2), 0}, {"query-migrate", COMPLETED(5, 3), 0},
                    {"query-migrate", COMPLETED(5, 4), 0}, {"query-migrate", COMPLETED(6, 5), 0},
                    {"query-migrate", LASTS(6), 0}, {"query-status", READY(7), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    strcpy(s.vm.ram.status, "postmigrate");
    ibx_source_vm_drive(&s.vm, true);
    ibx_source_protection_init(&s);
    assert_int_equal(ibx_source_protection_check_past(&s, &error), 0); /* no migration is noted */
    ibx_source_note_figures(&s);
    assert_string_equal(s.status.record.qemu_migration, "");
    ibx_source_note_figures(&s);
    assert_string_equal(s.status.record.qemu_migration, "10-1-2-5");
    ibx_source_note_figures(&s); /* noted once */
    assert_int_equal(ibx_source_protection_check_past(&s, &error), 0);
    says(ibx_source_protection_check_past(&s, &error), -EBUSY, "may be another program's");
    says(ibx_source_protection_check_past(&s, &error), -EBUSY, "may be another program's");
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
}

#define REGISTERS(text, id) "{\"return\": \"" text "\", \"id\": " #id "}\r\n"
#define NO_X86(id)          REGISTERS("PC=0000000000000040", id)
#define AT_ITS_RESET(id)    REGISTERS("EIP=0000fff0 CS =f000 ffff0000 ", id)

/* A source that has reconnected to its monitor before the VM's memory was protected. */
static struct source *source_with_new_monitor(bool was_running)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    s = (struct source){.options = &options, .vm.qmp = qmp};
    s.status.record.was_running = was_running;
    strcpy(s.vm.ram.status, "finish-migrate");
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_protection_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    return &s;
}

/* If the monitor was lost for a while, it is unknown whether the VM was reset. This tool still
 * serves the VM's pages; the next tool does not. */
static void test_unknown_reset_lets_this_tool_serve_pages(NO_STATE)
{
    attached(SCRIPT({"info registers", NO_X86(2), 0}, {"info registers", NO_X86(3), 0},
                    {"info registers", AT_ITS_RESET(4), 0}, {"info registers", AT_ITS_RESET(5), 0},
                    {"query-status", READY(6), 0}));
    for (int runs = 1; runs >= 0; runs--) {
        struct source *s = source_with_new_monitor(runs);
        says(ibx_source_protection_check_past(s, &error), -EOPNOTSUPP, "its pages are not served");
        assert_int_equal(ibx_source_protection_recheck(s, &error), 0);
        assert_int_equal(s->state.now, SOURCE_SERVING);
    }
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
}

/* Nor does it matter what was done while nobody was there if every page had come before, or if each
 * write was seen: QEMU is not even asked. */
static void test_pages_that_cannot_have_changed(NO_STATE)
{
    attached(SCRIPT({"query-status", READY(2), 0}));
    for (unsigned whole = 0; whole < 2; whole++) {
        struct source *s = source_with_new_monitor(true);
        s->protecting.now = whole ? PROTECTING_WHOLE : PROTECTING_NEEDLESS;
        s->protection.state.now = whole ? PROTECTION_MADE : PROTECTION_NONE;
        assert_int_equal(ibx_source_protection_check_past(s, &error), 0);
    }
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
}

/* If no descriptor is free to ask QEMU with, nothing ends. */
static void test_lack_of_descriptors_ends_nothing(NO_STATE)
{
    struct rlimit before, none;
    attached(SCRIPT({"query-status", READY(2), 0}));
    struct source *s = source_with_new_monitor(true);
    s->status.record.stream = 1;
    s->vm.ram.pid = getpid();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int rc = ibx_source_protection_recheck(s, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    says(rc, -EMFILE, "cannot be seen");
    assert_int_equal(s->state.now, SOURCE_SERVING);
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
}

static enum source_vm_event happens(struct source_vm *vm, const char *event)
{
    json_t *message = json_pack("{s:s}", "event", event);
    const enum source_vm_event means = ibx_source_vm_on_event(vm, true, message);
    json_decref(message);
    return means;
}

/* QEMU with -no-shutdown sends STOP only for a running VM. A guest may shut down at the moment
 * in which QEMU stops the VM. The source must not wait for STOP then. */
static void test_vm_shuts_down_while_it_is_stopped(NO_STATE)
{
    struct source_vm vm;
    ibx_source_vm_init(&vm);
    assert_int_equal(happens(&vm, "MIGRATION_PASS"), VM_NOTHING);
    assert_false(vm.asks);
    assert_int_equal(happens(&vm, "SHUTDOWN"), VM_SHUT_DOWN);
    assert_true(vm.paused); /* it is not continued if the migration fails */
    assert_int_equal(happens(&vm, "MIGRATION_PASS"), VM_NOTHING);
    assert_true(vm.asks);
    assert_int_equal(happens(&vm, "RESUME"), VM_CONTINUED);
    assert_false(vm.paused);
    ibx_source_vm_fini(&vm);
}

static void migration_is(struct source_vm *vm, const char *status)
{
    json_t *event = json_pack("{s:s, s:{s:s}}", "event", "MIGRATION", "data", "status", status);
    assert_int_equal(ibx_source_vm_on_event(vm, true, event), VM_NOTHING);
    json_decref(event);
}

/* Another client pauses the VM just before QEMU begins to migrate it. That STOP is not the stop of
 * the migration: the disks may still be at work, and the VM stays paused if the migration fails. */
static void test_vm_is_paused_before_its_migration_begins(NO_STATE)
{
    struct source_vm vm;
    ibx_source_vm_init(&vm);
    assert_int_equal(happens(&vm, "STOP"), VM_NOTHING);
    assert_true(vm.ran);
    migration_is(&vm, "setup");
    assert_true(vm.paused && !vm.ran && !vm.stop_ns);
    assert_int_equal(vm.state.now, VM_GOING);
    ibx_source_vm_fini(&vm);
}

/* Nor is one after which somebody has continued the VM. */
static void test_vm_is_continued_after_its_stop(NO_STATE)
{
    struct source_vm vm;
    ibx_source_vm_init(&vm);
    assert_int_equal(happens(&vm, "STOP"), VM_NOTHING);
    assert_int_equal(happens(&vm, "RESUME"), VM_CONTINUED);
    assert_true(!vm.paused && !vm.ran && !vm.stop_ns);
    assert_int_equal(happens(&vm, "MIGRATION_PASS"), VM_NOTHING);
    assert_false(vm.asks);
    ibx_source_vm_fini(&vm);
}

/* ------------------------------------------------------------ where libvirt drives */

/* QEMU takes settings by two commands. */
int __wrap_ibx_source_set_settings(struct source *s, struct ibx_error *err);
int __wrap_ibx_source_set_settings(struct source *s, struct ibx_error *err)
{
    const uint64_t by = ibx_deadline_in_ms(GENEROUS);
    const int rc = ibx_qmp_execute(s->vm.qmp, "migrate-set-capabilities", NULL, NULL, by, err);
    return rc ? rc : ibx_qmp_execute(s->vm.qmp, "migrate-set-parameters", NULL, NULL, by, err);
}

/* The tool has stood still between the two, and its watchdog has put x-ignore-shared back. */
static void test_stands_still_amid_the_settings(NO_STATE)
{
    static struct source s;
    attached(SCRIPT({"migrate-set-capabilities", READY(2) STOOD_IN, 0},
                    {"migrate-set-parameters", READY(3), 0}, {"query-status", RUNNING(4), 0}));
    s = (struct source){.vm.qmp = qmp};
    ibx_source_vm_drive(&s.vm, true);
    ibx_gate_init(&s.gate, NULL);
    assert_int_equal(ibx_source_begin(&s, SOURCE_ASKING), 0);
    assert_int_equal(ibx_source_libvirt_set(&s, &error), 0);
    assert_int_equal(ibx_source_libvirt_gate(&s, &error), -EBUSY);
    assert_non_null(strstr(error.message, "stood still"));
    done();
}

/* Its watchdog puts x-ignore-shared back after QEMU has written its state, because the tool got no
 * time while the destination loads: that ends nothing if QEMU's answers show that it came later. */
static void test_stands_still_after_the_state(NO_STATE)
{
    static struct source s;
    static const char *const answers[] = {READY(5) STOOD_IN, STOOD_IN READY(5),
                                          STOOD_IN READY(5) STOOD_IN};
    for (unsigned i = 0; i < 3; i++) {
        attached(SCRIPT({"migrate-set-capabilities", READY(2), 0},
                        {"migrate-set-parameters", READY(3), 0}, {"query-status", RUNNING(4), 0},
                        {"query-block", answers[i], 0}, {"query-name", READY(6), 0}));
        s = (struct source){.vm.qmp = qmp};
        ibx_source_vm_drive(&s.vm, true);
        ibx_gate_init(&s.gate, NULL);
        assert_int_equal(ibx_source_begin(&s, SOURCE_ASKING), 0);
        assert_int_equal(ibx_source_libvirt_set(&s, &error), 0);
        s.state.now = SOURCE_SENDING;
        ibx_source_libvirt_written(&s);
        assert_int_equal(run("query-block", NULL, GENEROUS), 0);
        assert_int_equal(run("query-name", NULL, GENEROUS), 0);
        assert_int_equal(ibx_source_libvirt_gate(&s, &error), i ? -EBUSY : 0);
        done();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_protection_repeats_an_unsent_question),
        cmocka_unit_test(test_asks_when_every_page_has_come),
        cmocka_unit_test(test_a_whole_protection_when_every_page_has_come),
        cmocka_unit_test(test_no_protection_without_a_record),
        cmocka_unit_test(test_a_marked_migration),
        cmocka_unit_test(test_the_migration_that_libvirt_drove),
        cmocka_unit_test(test_unknown_reset_lets_this_tool_serve_pages),
        cmocka_unit_test(test_pages_that_cannot_have_changed),
        cmocka_unit_test(test_lack_of_descriptors_ends_nothing),
        cmocka_unit_test(test_vm_shuts_down_while_it_is_stopped),
        cmocka_unit_test(test_vm_is_paused_before_its_migration_begins),
        cmocka_unit_test(test_vm_is_continued_after_its_stop),
        cmocka_unit_test(test_stands_still_amid_the_settings),
        cmocka_unit_test(test_stands_still_after_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
