/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How QEMU begins a migration without RAM, and what becomes of the VM after one that has failed: it
 * is continued, has its disks activated, and stops again. With a scripted peer. */
#include "migrate/common/vm.h"
#include "tests/fixtures/qmp_peer.h"

#include "common/log.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#define STATUS(status, id) "{\"return\": {\"status\": \"" status "\"}, \"id\": " #id "}\r\n"
#define DISK(status, id)                                                                           \
    "{\"return\": [{\"device\": \"cd\"}, {\"device\": \"\", \"qdev\": \"/machine/virtio\", "       \
    "\"io-status\": \"" status "\", \"inserted\": {\"file\": \"/srv/web\"}}], \"id\": " #id        \
    "}\r\n"

static int stay(const char *after)
{
    static struct step steps[8]; /* read by the peer's thread */
    const struct step script[] = {GREETED,
                                  {"query-migrate", STATUS("failed", 2), 0},
                                  {"query-status", STATUS("postmigrate", 3), 0},
                                  {"cont", READY(4), 0},
                                  {"query-status", after, 0},
                                  {"migrate-set-capabilities", READY(6), 0},
                                  {0}};
    memcpy(steps, script, sizeof(script));
    struct ibx_vm_undo vm = {.was_running = true, .touched = true};
    attached(steps);
    return ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error);
}

static void test_runs(NO_STATE)
{
    assert_int_equal(stay(STATUS("running", 5)), 0);
    done();
}

/* The VM ran, and a disk request failed. Its migration is still over, and the settings are
 * restored. */
static void test_is_stopped_by_its_disk(NO_STATE)
{
    assert_int_equal(stay(STATUS("io-error", 5)), 0);
    done();
}

static void test_does_not_run(NO_STATE)
{
    const int rc = stay(STATUS("postmigrate", 5));
    says(rc, -EIO, "is \"postmigrate\" after cont");
    ibx_qmp_close(qmp); /* the script has one more step */
    pthread_join(peer.thread, NULL);
    close(peer.fd);
}

#define LOOKS 400 /* more than there is time for */

/* ... and QEMU answers each time: it is not said to be stopped. */
static void test_is_still_being_cancelled(NO_STATE)
{
    static struct step steps[LOOKS] = {
        GREETED, {"query-migrate", STATUS("active", 2), 0}, {"migrate_cancel", READY(3), 0}};
    static char answers[LOOKS][64];
    for (unsigned i = 4; i < LOOKS - 1; i++) {
        snprintf(answers[i], sizeof(answers[i]),
                 "{\"return\": {\"status\": \"cancelling\"}, \"id\": %u}\r\n", i);
        steps[i] = (struct step){"query-migrate", answers[i], 0};
    }
    struct ibx_vm_undo vm = {.was_running = true, .touched = true};
    attached(steps);
    says(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(200), &error), -ETIMEDOUT,
         "still \"cancelling\" after it was cancelled");
    ibx_qmp_close(qmp); /* the script has more steps */
    pthread_join(peer.thread, NULL);
    close(peer.fd);
}

#define STOP_EVENT "{\"event\": \"STOP\", \"timestamp\": {\"seconds\": 1, \"microseconds\": 0}}\r\n"
#define NEWER                                                                                      \
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, \"major\": 10}, "             \
    "\"package\": \"\"}, \"capabilities\": [\"oob\"]}}\r\n"

/* libvirt has cancelled the migration and continued the VM. */
static void stays_with_libvirt(const struct step *steps)
{
    struct ibx_vm_undo vm = {.libvirt = "/run/ibx/web.sock", .before = json_object()};
    attached(steps);
    assert_int_equal(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), 0);
    done();
}

/* QEMU before 10.0 may have left its disks inactive. cont is sent after the cancel has ended,
 * because QEMU deactivates the disks before that. */
static void test_has_its_disks_activated(NO_STATE)
{
    stays_with_libvirt(SCRIPT({"query-migrate", STATUS("cancelling", 2), 0},
                              {"query-migrate", STOP_EVENT STATUS("cancelled", 3), 0},
                              {"query-status", STATUS("running", 4), 0}, {"cont", READY(5), 0}));
}

/* The client that continues the VM activates its disks. */
static void test_is_left_paused(NO_STATE)
{
    stays_with_libvirt(SCRIPT({"query-migrate", STATUS("cancelled", 2), 0},
                              {"query-status", STATUS("paused", 3), 0}));
}

/* Another client pauses the VM between the two commands. */
static void test_is_paused_meanwhile(NO_STATE)
{
    stays_with_libvirt(SCRIPT({"query-migrate", STATUS("cancelled", 2), 0},
                              {"query-status", STATUS("running", 3), 0},
                              {"cont", STOP_EVENT READY(4), 0}, {"stop", READY(5), 0}));
}

static void test_has_a_qemu_that_activates_them(NO_STATE)
{
    static const struct step steps[] = {{NULL, NEWER, 0}, {"qmp_capabilities", READY(1), 0}, {0}};
    stays_with_libvirt(steps);
}

/* A migration that started before the tool had set anything was not the tool's. */
static void test_has_a_migration_of_another_client(NO_STATE)
{
    struct ibx_vm_undo vm = {.libvirt = "/run/ibx/web.sock"};
    static const struct step steps[] = {GREETED, {0}};
    attached(steps);
    assert_int_equal(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), 0);
    done();
}

/* libvirt has had QEMU begin a migration, or save the VM, right before QEMU gets its settings back:
 * without RAM, so it is cancelled. QEMU takes no setting meanwhile, and is asked for no other one,
 * with whose refusal this would end. */
static void test_has_a_migration_without_its_ram(NO_STATE)
{
    struct ibx_vm_undo vm = {.libvirt = "/run/ibx/web.sock",
                             .touched = true,
                             .before =
                                 json_pack("{s:{s:b}}", "capabilities", "x-ignore-shared", 0)};
    static const struct step steps[] = {
        {NULL, NEWER, 0},
        {"qmp_capabilities", READY(1), 0},
        {"query-migrate", STATUS("none", 2), 0},
        {"\"x-ignore-shared\"",
         "{\"error\": {\"class\": \"GenericError\", \"desc\": \"migrates\"}, \"id\": 3}\r\n", 0},
        {"query-migrate-capabilities",
         "{\"return\": [{\"capability\": \"x-ignore-shared\", \"state\": true}], \"id\": 4}\r\n",
         0},
        {"query-migrate", STATUS("active", 5), 0},
        {"migrate_cancel", READY(6), 0},
        {"\"x-ignore-shared\"", READY(7), 0},
        {0}};
    attached(steps);
    assert_int_equal(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), 0);
    done();
}

/* The VM stays anyway, and advice is logged. */
static void test_has_a_qemu_that_refuses(NO_STATE)
{
    struct ibx_vm_undo vm = {.libvirt = "/run/ibx/web.sock", .before = json_object()};
    char logged[IBX_ERROR_MAX] = "";
    attached(SCRIPT(
        {"query-migrate", STATUS("cancelled", 2), 0}, {"query-status", STATUS("running", 3), 0},
        {"cont", "{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}, \"id\": 4}\r\n",
         0}));
    const int before = dup(STDERR_FILENO), log = memfd_create("log", MFD_CLOEXEC);
    assert_true(before >= 0 && log >= 0);
    ibx_log_set_level(IBX_LOG_WARN);
    dup2(log, STDERR_FILENO);
    const int rc = ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error);
    dup2(before, STDERR_FILENO);
    const ssize_t n = pread(log, logged, sizeof(logged) - 1, 0);
    close(before);
    close(log);
    assert_int_equal(rc, 0);
    assert_true(n > 0);
    text_has(logged, IBX_VM_DISKS_BACK);
    done();
}

/* Without libvirt: the migration was cancelled before the stop, and the VM continues without a
 * command. */
static void test_has_its_disks_activated_without_libvirt(NO_STATE)
{
    struct ibx_vm_undo vm = {.was_running = true, .touched = true};
    attached(SCRIPT(
        {"query-migrate", STATUS("active", 2), 0}, {"migrate_cancel", READY(3), 0},
        {"query-migrate", STATUS("cancelled", 4), 0}, {"query-status", STATUS("running", 5), 0},
        {"query-status", STATUS("running", 6), 0}, {"cont", READY(7), 0},
        {"query-status", STATUS("running", 8), 0}, {"migrate-set-capabilities", READY(9), 0}));
    assert_int_equal(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), 0);
    done();
}

/* Others may save the VM as soon as it runs: it has to have its RAM by then. */
static void test_has_its_ram_before_it_runs(NO_STATE)
{
    struct ibx_vm_undo vm = {.was_running = true,
                             .touched = true,
                             .before =
                                 json_pack("{s:{s:b}}", "capabilities", "x-ignore-shared", 0)};
    attached(
        SCRIPT({"query-migrate", STATUS("cancelled", 2), 0}, {"\"x-ignore-shared\"", READY(3), 0},
               {"query-status", STATUS("postmigrate", 4), 0}, {"cont", READY(5), 0},
               {"query-status", STATUS("running", 6), 0}, {"migrate-set-capabilities", READY(7), 0},
               {"\"x-ignore-shared\"", READY(8), 0}));
    assert_int_equal(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), 0);
    done();
}

/* ------------------------------------------------------------ how it begins without RAM */

#define REFUSED(id)                                                                                \
    "{\"error\": {\"class\": \"GenericError\", \"desc\": \"migrates\"}, \"id\": " #id "}\r\n"
#define SET_OFF      "\"x-ignore-shared\",\"state\":false"
#define OFF_BEFORE   "{\"capabilities\": {\"x-ignore-shared\": false}}"
#define NO_MIGRATION "{\"return\": [], \"id\": 2}\r\n"
#define WITHOUT_RAM(id)                                                                            \
    "{\"return\": [{\"capability\": \"x-ignore-shared\", \"state\": true}], \"id\": " #id "}\r\n"

static int migrate_without_ram(const struct step *steps, json_t *before)
{
    attached(steps);
    const int end = memfd_create("end", MFD_CLOEXEC);
    assert_true(end >= 0);
    const int rc =
        ibx_vm_migrate_without_ram(qmp, before, end, ibx_deadline_in_ms(GENEROUS), &error);
    close(end);
    close(peer.received_fd);
    return rc;
}

/* QEMU has both commands before it answers the first: nothing of this process is between them. */
static void test_begins_with_its_setting(NO_STATE)
{
    json_t *before = json_loads(OFF_BEFORE, 0, NULL);
    assert_int_equal(
        migrate_without_ram(SCRIPT({"query-yank", NO_MIGRATION, 0}, {"getfd", READY(3), 0},
                                   {"\"x-ignore-shared\",\"state\":true", NULL, 0},
                                   {"\"migrate\"", READY(4) READY(5), 0}),
                            before),
        0);
    done();
    json_decref(before);
}

static void test_begins_without_a_setting_that_is_on(NO_STATE)
{
    json_t *before = json_object();
    assert_int_equal(
        migrate_without_ram(SCRIPT({"query-yank", NO_MIGRATION, 0}, {"getfd", READY(3), 0},
                                   {"\"migrate\"", READY(4), 0}),
                            before),
        0);
    done();
    json_decref(before);
}

/* Another client's migration has ended between the two: ours has begun, with RAM. */
static void test_begins_with_ram(NO_STATE)
{
    json_t *before = json_loads(OFF_BEFORE, 0, NULL);
    const int rc = migrate_without_ram(
        SCRIPT({"query-yank", NO_MIGRATION, 0}, {"getfd", READY(3), 0},
               {"\"x-ignore-shared\"", NULL, 0}, {"\"migrate\"", REFUSED(4) READY(5), 0}),
        before);
    says(rc, -EBUSY, "refused to leave the VM's memory out");
    done();
    json_decref(before);
}

/* Another client's has begun between the two, and so without RAM: it is ended. */
static void test_does_not_begin(NO_STATE)
{
    json_t *before = json_loads(OFF_BEFORE, 0, NULL);
    const int rc = migrate_without_ram(
        SCRIPT({"query-yank", NO_MIGRATION, 0}, {"getfd", READY(3), 0},
               {"\"x-ignore-shared\"", NULL, 0}, {"\"migrate\"", READY(4) REFUSED(5), 0},
               {"closefd", READY(6), 0}, {SET_OFF, REFUSED(7), 0},
               {"query-migrate-capabilities", WITHOUT_RAM(8), 0},
               {"query-migrate", STATUS("active", 9), 0}, {"migrate_cancel", READY(10), 0},
               {SET_OFF, READY(11), 0}, {"query-status", STATUS("running", 12), 0},
               {"query-migrate", STATUS("cancelled", 13), 0}),
        before);
    says(ibx_vm_not_begun_since(rc, qmp, before, &error), -EREMOTEIO, "both were given up");
    done();
    json_decref(before);
}

/* The same, and the other client's is complete by then. */
static void is_over_by_then(const struct step *steps, const char *words)
{
    json_t *before = json_loads(OFF_BEFORE, 0, NULL);
    const int rc = migrate_without_ram(steps, before);
    says(ibx_vm_not_begun_since(rc, qmp, before, &error), -EREMOTEIO, words);
    done();
    json_decref(before);
}

#define REFUSES                                                                                    \
    {"query-yank", NO_MIGRATION, 0}, {"getfd", READY(3), 0}, {"\"x-ignore-shared\"", NULL, 0},     \
        {"\"migrate\"", READY(4) REFUSED(5), 0}, {"closefd", READY(6), 0},                         \
    {                                                                                              \
        SET_OFF, READY(7), 0                                                                       \
    }
/* With so many of the VM's 16384 pages. */
#define COMPLETED(normal, id)                                                                      \
    "{\"return\": {\"status\": \"completed\", \"ram\": {\"total\": 67108864, \"normal\": " normal  \
    ", \"duplicate\": 100, \"page-size\": 4096}}, \"id\": " #id "}\r\n"

static void test_does_not_begin_beside_one_that_is_over(NO_STATE)
{
    is_over_by_then(SCRIPT(REFUSES, {"query-status", STATUS("postmigrate", 8), 0},
                           {"query-migrate", COMPLETED("60", 9), 0}),
                    "without its memory (x-ignore-shared): do not use what it");
    is_over_by_then(SCRIPT(REFUSES, {"query-status", STATUS("postmigrate", 8), 0},
                           {"query-migrate", COMPLETED("16284", 9), 0},
                           {"query-status", STATUS("postmigrate", 10), 0}),
                    "see where it runs now");
}

/* QEMU reports that a moment before it is done with the VM. */
static void test_does_not_begin_beside_one_that_is_nearly_over(NO_STATE)
{
    is_over_by_then(SCRIPT(REFUSES, {"query-status", STATUS("finish-migrate", 8), 0},
                           {"query-migrate", COMPLETED("60", 9), 0},
                           {"query-status", STATUS("postmigrate", 10), 0},
                           {"query-migrate", COMPLETED("60", 11), 0}),
                    "without its memory (x-ignore-shared): do not use what it");
    is_over_by_then(SCRIPT(REFUSES, {"query-status", STATUS("finish-migrate", 8), 0},
                           {"query-migrate", STATUS("active", 9), 0},
                           {"query-status", STATUS("finish-migrate", 10), 0},
                           {"query-migrate", STATUS("active", 11), 0}),
                    "did not begin");
}

/* QEMU has taken the setting and refused to migrate: what another client saves next has RAM. */
static void test_does_not_begin_and_leaves_ram_in(NO_STATE)
{
    json_t *before = json_loads(OFF_BEFORE, 0, NULL);
    const int rc = migrate_without_ram(
        SCRIPT({"query-yank", NO_MIGRATION, 0}, {"getfd", READY(3), 0},
               {"\"x-ignore-shared\"", NULL, 0}, {"\"migrate\"", READY(4) REFUSED(5), 0},
               {"closefd", READY(6), 0}, {SET_OFF, READY(7), 0},
               {"query-status", STATUS("running", 8), 0}),
        before);
    says(ibx_vm_not_begun_since(rc, qmp, before, &error), -EREMOTEIO, "did not begin");
    done();
    json_decref(before);
}

/* ... and does not end, though it was told to: QEMU's next save would have no RAM, and the watchdog
 * tries again. Nothing is logged before that has ended. */
static void test_waits_for_one_that_does_not_end(NO_STATE)
{
    struct ibx_vm_undo vm = {.before = json_loads(OFF_BEFORE, 0, NULL)};
    attached(SCRIPT({SET_OFF, REFUSED(2), 0}, {"query-migrate-capabilities", WITHOUT_RAM(3), 0},
                    {SET_OFF, READY(4), 0}));
    says(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), -EAGAIN,
         "let nobody save the VM");
    assert_int_equal(ibx_vm_stay(qmp, &vm, ibx_deadline_in_ms(GENEROUS), &error), 0);
    done();
}

static void said(const char *answer, const char *words)
{
    char text[IBX_ERROR_MAX];
    attached(SCRIPT({"query-block", answer, 0}));
    assert_true(
        ibx_vm_say_stopped(qmp, IBX_VM_IO_ERROR, text, sizeof(text), ibx_deadline_in_ms(GENEROUS)));
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
    done();
}

static void test_names_the_disk(NO_STATE)
{
    said(DISK("nospace", 2), "no room for what its disk /machine/virtio (/srv/web) is to hold");
    said(DISK("failed", 2), "a request of its disk /machine/virtio (/srv/web) has failed");
    said(DISK("ok", 2), "a request of one of its disks has failed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_is_stopped_by_its_disk),
        cmocka_unit_test(test_does_not_run),
        cmocka_unit_test(test_is_still_being_cancelled),
        cmocka_unit_test(test_has_its_disks_activated),
        cmocka_unit_test(test_is_left_paused),
        cmocka_unit_test(test_is_paused_meanwhile),
        cmocka_unit_test(test_has_a_qemu_that_activates_them),
        cmocka_unit_test(test_has_a_migration_of_another_client),
        cmocka_unit_test(test_has_a_migration_without_its_ram),
        cmocka_unit_test(test_has_a_qemu_that_refuses),
        cmocka_unit_test(test_has_its_disks_activated_without_libvirt),
        cmocka_unit_test(test_has_its_ram_before_it_runs),
        cmocka_unit_test(test_begins_with_its_setting),
        cmocka_unit_test(test_begins_without_a_setting_that_is_on),
        cmocka_unit_test(test_begins_with_ram),
        cmocka_unit_test(test_does_not_begin),
        cmocka_unit_test(test_does_not_begin_beside_one_that_is_over),
        cmocka_unit_test(test_does_not_begin_beside_one_that_is_nearly_over),
        cmocka_unit_test(test_does_not_begin_and_leaves_ram_in),
        cmocka_unit_test(test_waits_for_one_that_does_not_end),
        cmocka_unit_test(test_names_the_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
