/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The last checks before the source hands the VM over. Each of them alone keeps it here, and after
 * COMMIT nothing here continues it. */
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <string.h>

/* ------------------------------------------------------------ replaced functions */

enum check { NONE, RETURN, STATUS, SINCE, USERS, IMAGES, WARM, PUMP, WATCHDOG, CHECKS };

static struct {
    enum check fails;               /* by an error */
    enum check blocks;              /* by what it finds */
    const char *status, *migration; /* of the VM, and of QEMU's own migration */
    bool events;
    unsigned dismissed, committed; /* how often the watchdog was, and COMMIT was sent */
} is;

static int result(enum check check, struct ibx_error *err)
{
    return is.fails == check ? ibx_error_set(err, -EIO, "check %u fails", check) : 0;
}

static int found(enum check check, struct ibx_blockers *blockers, struct ibx_error *err)
{
    if (is.blocks == check)
        ibx_blockers_add(blockers, "check %u finds something", check);
    return result(check, err);
}

int __wrap_ibx_source_return_compared(struct source *s, struct ibx_error *err);
int __wrap_ibx_source_return_compared(struct source *s, struct ibx_error *err)
{
    (void)s;
    return is.blocks == RETURN ? -EAGAIN : result(RETURN, err);
}

int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err);
int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns;
    snprintf(status, size, "%s", is.status);
    return result(STATUS, err);
}

int __wrap_ibx_vm_migration(struct ibx_qmp *qmp, struct ibx_vm_progress *now, uint64_t deadline_ns,
                            struct ibx_error *err);
int __wrap_ibx_vm_migration(struct ibx_qmp *qmp, struct ibx_vm_progress *now, uint64_t deadline_ns,
                            struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    memset(now, 0, sizeof(*now));
    snprintf(now->status, sizeof(now->status), "%s", is.migration);
    return 0;
}

int __wrap_ibx_preflight_since(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                               struct ibx_blockers *blockers, uint64_t deadline_ns,
                               struct ibx_error *err);
int __wrap_ibx_preflight_since(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                               struct ibx_blockers *blockers, uint64_t deadline_ns,
                               struct ibx_error *err)
{
    (void)qmp, (void)disks, (void)compared, (void)deadline_ns;
    return found(SINCE, blockers, err);
}

int __wrap_ibx_preflight_block_users(struct ibx_qmp *qmp, struct ibx_blockers *blockers,
                                     uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_preflight_block_users(struct ibx_qmp *qmp, struct ibx_blockers *blockers,
                                     uint64_t deadline_ns, struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns;
    return found(USERS, blockers, err);
}

int __wrap_ibx_preflight_keeps_image(pid_t pid, struct ibx_images *images, char path[PATH_MAX],
                                     struct ibx_error *err);
int __wrap_ibx_preflight_keeps_image(pid_t pid, struct ibx_images *images, char path[PATH_MAX],
                                     struct ibx_error *err)
{
    (void)pid, (void)images;
    snprintf(path, PATH_MAX, "/images/disk");
    return is.blocks == IMAGES ? 1 : result(IMAGES, err);
}

int __wrap_ibx_source_warm_check(const struct source *s, struct ibx_error *err);
int __wrap_ibx_source_warm_check(const struct source *s, struct ibx_error *err)
{
    (void)s;
    return result(WARM, err);
}

int __wrap_ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err);
int __wrap_ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err)
{
    (void)qmp;
    return result(PUMP, err);
}

bool __wrap_ibx_qmp_has_events(const struct ibx_qmp *qmp);
bool __wrap_ibx_qmp_has_events(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return is.events;
}

int __wrap_ibx_watchdog_commit(struct ibx_watchdog *watchdog, struct ibx_error *err);
int __wrap_ibx_watchdog_commit(struct ibx_watchdog *watchdog, struct ibx_error *err)
{
    (void)watchdog;
    assert_int_equal(is.committed, 0);
    is.dismissed++;
    return result(WATCHDOG, err);
}

int __wrap_ibx_source_link_send(struct source_link *link, enum ibx_migrate_message type,
                                struct ibx_error *err);
int __wrap_ibx_source_link_send(struct source_link *link, enum ibx_migrate_message type,
                                struct ibx_error *err)
{
    (void)link, (void)err;
    assert_int_equal(type, IBX_MIGRATE_COMMIT);
    assert_int_equal(is.dismissed, 1);
    is.committed++;
    return 0;
}

/* ------------------------------------------------------------ steps */

static struct source source;
static struct ibx_error error;

/* The destination has loaded the VM, and waits. */
static void begin(bool managed)
{
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    memset(&is, 0, sizeof(is));
    memset(&error, 0, sizeof(error));
    is.status = "finish-migrate";
    is.migration = "none";
    source = (struct source){.options = &options, .lock_fd = -1};
    ibx_source_vm_init(&source.vm);
    ibx_source_vm_drive(&source.vm, managed);
    assert_int_equal(ibx_source_begin(&source, SOURCE_ASKING), 0);
    source.state.now = SOURCE_SENDING;
    source.vm.qmp = (struct ibx_qmp *)&source;
    source.link.compared = (json_t *)&source;
    source.vm.ran = true;
}

static void stays(int code)
{
    const int rc = ibx_source_commit(&source, &error);
    if (rc != code)
        fail_msg("%d: %s", rc, error.message);
    assert_int_equal(source.state.now, SOURCE_SENDING);
    assert_int_equal(is.committed, 0);
}

/* ------------------------------------------------------------ tests */

static void test_handed_over(NO_STATE)
{
    for (unsigned managed = 0; managed < 2; managed++) {
        begin(managed);
        assert_int_equal(ibx_source_commit(&source, &error), 0);
        assert_int_equal(source.state.now, SOURCE_COMMITTED);
        assert_int_equal(is.committed, 1);
        assert_true(source.status.record.was_running);
        assert_true(source.loaded_ns && source.heard_ns == source.loaded_ns); /* its patience */
    }
}

/* It was paused before its stop: it does not begin to run there, nor here by a rollback. */
static void test_paused_vm_is_handed_over(NO_STATE)
{
    begin(false);
    source.status.record.was_running = true; /* as it was when this tool began */
    source.vm.ran = false;
    assert_int_equal(ibx_source_commit(&source, &error), 0);
    assert_false(source.status.record.was_running);
}

static void test_a_check_that_fails_keeps_the_vm(NO_STATE)
{
    for (enum check check = RETURN; check < CHECKS; check++) {
        begin(check == STATUS);
        is.fails = check;
        stays(-EIO);
        assert_int_equal(is.dismissed, check == WATCHDOG);
    }
}

/* Something was plugged in, or uses a disk, or QEMU has taken one back. */
static void test_what_a_check_finds_keeps_the_vm(NO_STATE)
{
    for (enum check check = SINCE; check <= IMAGES; check++) {
        begin(false);
        is.blocks = check;
        stays(-EPERM);
        assert_int_equal(is.dismissed, 0);
    }
    begin(false);
    is.blocks = RETURN; /* pages of a VM that returns wait: the next turn is here again */
    stays(0);
    begin(true);
    is.status = "running"; /* libvirt has continued it here */
    stays(-EBUSY);
    assert_int_equal(is.dismissed, 0);
}

/* QEMU may have reported that the VM was continued or reset here. It does not stop to report. */
static void test_events_are_read_first(NO_STATE)
{
    begin(false);
    is.events = true;
    for (unsigned i = 0; i < 9; i++)
        stays(0);
    stays(-EBUSY);
    assert_int_equal(is.dismissed, 0);
    begin(false);
    is.events = true;
    stays(0);
    is.events = false;
    assert_int_equal(ibx_source_commit(&source, &error), 0);
    assert_int_equal(is.committed, 1);
}

static unsigned notices;

static void count_notice(void *context, const char *text)
{
    (void)context, (void)text;
    notices++;
}

static const struct ibx_send_options observed = {.folder = "/nonexistent",
                                                 .observer = {.notify = count_notice}};

/* While pages come before the stop, another client may have QEMU migrate the VM. */
static void test_another_migration_before_the_stop(NO_STATE)
{
    begin(false);
    source.state.now = SOURCE_WARMING;
    assert_int_equal(ibx_source_look_at_warming(&source, &error), 0);
    assert_true(source.warm.look_ns);
    source.warm.look_ns = 0;
    is.migration = "active";
    assert_int_equal(ibx_source_look_at_warming(&source, &error), -EBUSY);
    assert_non_null(strstr(error.message, "(active)"));
    source.warm.look_ns = 0;
    is.migration = "completed";
    is.status = "postmigrate";
    assert_int_equal(ibx_source_look_at_warming(&source, &error), -EBUSY);
    assert_non_null(strstr(error.message, "see where it runs now"));
}

/* A device that was plugged in meanwhile ends it at once. What uses a disk may have ended by the
 * stop, and the operator is told of it, once. */
static void test_what_is_found_before_the_stop(NO_STATE)
{
    begin(false);
    source.state.now = SOURCE_WARMING;
    source.options = &observed;
    notices = 0;
    is.blocks = SINCE;
    assert_int_equal(ibx_source_look_at_warming(&source, &error), -EPERM);
    assert_int_equal(notices, 0);
    is.blocks = USERS;
    for (unsigned i = 0; i < 2; i++) {
        source.warm.look_ns = 0;
        assert_int_equal(ibx_source_look_at_warming(&source, &error), 0);
        assert_int_equal(notices, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handed_over),
        cmocka_unit_test(test_paused_vm_is_handed_over),
        cmocka_unit_test(test_a_check_that_fails_keeps_the_vm),
        cmocka_unit_test(test_what_a_check_finds_keeps_the_vm),
        cmocka_unit_test(test_events_are_read_first),
        cmocka_unit_test(test_another_migration_before_the_stop),
        cmocka_unit_test(test_what_is_found_before_the_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
