/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the record of a tool that was killed, and QEMU, say of where the VM is: whether it has never
 * left, or has been taken back. If that is wrong, it runs twice, or nowhere. */
#include "migrate/common/common.h"
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/unit/migrate/own_monitor.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------ a QEMU that answers */

static struct {
    const char *status, *migration; /* of the VM, and of QEMU's own migration */
    bool held;                      /* QEMU has a copy of the return path */
    int stay;                       /* its answer when it is told to continue the VM */
    unsigned told;                  /* how often it was */
    struct ibx_vm_undo undo;        /* what was to be undone then */
    uint64_t disowned;              /* the epoch with which the destination was told */
} is;

int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err);
int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    snprintf(status, size, "%s", is.status);
    return 0;
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

int __wrap_ibx_return_path_find(pid_t pid, uint64_t name, bool *has, struct ibx_error *err);
int __wrap_ibx_return_path_find(pid_t pid, uint64_t name, bool *has, struct ibx_error *err)
{
    (void)pid, (void)name, (void)err;
    *has = is.held;
    return 0;
}

int __wrap_ibx_vm_stay(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, uint64_t deadline_ns,
                       struct ibx_error *err);
int __wrap_ibx_vm_stay(struct ibx_qmp *qmp, struct ibx_vm_undo *vm, uint64_t deadline_ns,
                       struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns;
    is.told++;
    is.undo = *vm;
    return is.stay ? ibx_error_set(err, is.stay, "its disk is in use") : 0;
}

bool __wrap_ibx_vm_say_stopped(struct ibx_qmp *qmp, const char *status, char *text, size_t size,
                               uint64_t deadline_ns);
bool __wrap_ibx_vm_say_stopped(struct ibx_qmp *qmp, const char *status, char *text, size_t size,
                               uint64_t deadline_ns)
{
    (void)qmp, (void)status, (void)text, (void)size, (void)deadline_ns;
    return false;
}

int __wrap_ibx_migration_take_from(const struct ibx_record *record,
                                   const struct ibx_options *transport, const char *why,
                                   enum ibx_answer_state *there, struct ibx_error *err);
int __wrap_ibx_migration_take_from(const struct ibx_record *record,
                                   const struct ibx_options *transport, const char *why,
                                   enum ibx_answer_state *there, struct ibx_error *err)
{
    (void)transport, (void)why, (void)there, (void)err;
    is.disowned = record->epoch;
    return 0;
}

/* ------------------------------------------------------------ steps */

/* A record of a VM that ran, in a QEMU that lives: this process. */
static struct ibx_record recorded(enum ibx_journal_state state)
{
    struct ibx_record r = sample(true, 5);
    memset(&is, 0, sizeof(is));
    is.status = "running";
    is.migration = "cancelled";
    r.block_count = 0;
    r.pid = getpid();
    r.pid_started = ibx_process_started(r.pid);
    r.boot[0] = '\0';
    snprintf(r.uri, sizeof(r.uri), "tcp://127.0.0.1:1"); /* nobody listens there */
    bring_to(&r, state);
    return r;
}

/* Ends by removing the record. */
static void has_stayed(struct ibx_record *r, bool wanted)
{
    const enum ibx_journal_state before = r->state;
    bool stays;
    assert_int_equal(ibx_migrate_stays(folder, r, &stays, &error), 0);
    assert_int_equal(stays, wanted);
    assert_int_equal(is.told, wanted);
    assert_int_equal(only().state, wanted ? IBX_JOURNAL_KEPT : before);
    assert_int_equal(r->epoch, wanted ? 2 : 1);
    assert_int_equal(ibx_journal_remove(folder, r, &error), 0);
}

/* ------------------------------------------------------------ tests */

static void the_vm_has_never_left(NO_STATE)
{
    struct ibx_record r = recorded(IBX_JOURNAL_MAY_RUN);
    has_stayed(&r, true);
    assert_true(is.undo.touched && is.undo.was_running && is.undo.hold == 4711);
    r = recorded(IBX_JOURNAL_HERE);
    has_stayed(&r, true);
    assert_false(is.undo.touched); /* QEMU was not told to migrate: another one is not ended */
    r = recorded(IBX_JOURNAL_MAY_RUN);
    r.was_running = false; /* and still stands */
    assert_int_equal(write_record(&r), 0);
    is.status = "postmigrate";
    is.migration = "failed";
    has_stayed(&r, true);
    assert_false(is.undo.was_running);
}

/* COMMIT may have been sent. */
static void the_vm_may_have_left(NO_STATE)
{
    struct ibx_record r = recorded(IBX_JOURNAL_MAY_RUN);
    is.held = true;
    has_stayed(&r, false);
    r = recorded(IBX_JOURNAL_MAY_RUN);
    is.migration = "completed";
    has_stayed(&r, false);
    r = recorded(IBX_JOURNAL_MAY_RUN);
    is.status = "postmigrate";
    is.migration = "failed";
    has_stayed(&r, false);
    r = recorded(IBX_JOURNAL_MOVED);
    has_stayed(&r, false);
    r = recorded(IBX_JOURNAL_MAY_RUN);
    r.hold = 0; /* an earlier version's */
    assert_int_equal(write_record(&r), 0);
    has_stayed(&r, false);
    r = recorded(IBX_JOURNAL_MAY_RUN);
    r.libvirt = true;
    assert_int_equal(write_record(&r), 0);
    has_stayed(&r, false);
}

/* A rollback was killed after its note: whether it had continued the VM, QEMU knows. */
static void a_rollback_was_killed(NO_STATE)
{
    bool back;
    struct ibx_record r = recorded(IBX_JOURNAL_MOVED);
    assert_int_equal(ibx_journal_mark_back(folder, &r, &error), 0);
    is.status = "postmigrate";
    assert_int_equal(ibx_migrate_was_taken_back(folder, &r, &back, &error), 0);
    assert_false(back || ibx_journal_back_marked(folder, &r));
    assert_int_equal(only().state, IBX_JOURNAL_MOVED);
    assert_int_equal(ibx_journal_mark_back(folder, &r, &error), 0);
    is.status = "running";
    assert_int_equal(ibx_migrate_was_taken_back(folder, &r, &back, &error), 0);
    assert_true(back);
    assert_false(ibx_journal_back_marked(folder, &r));
    assert_int_equal(only().state, IBX_JOURNAL_ROLLED_BACK);
    assert_string_equal(only().settings, "");
}

/* Nothing is noted any more if QEMU has refused; what cannot be told is left to the next tool. */
static void a_rollback_is_refused(NO_STATE)
{
    struct ibx_record r = recorded(IBX_JOURNAL_MOVED);
    struct ibx_options transport;
    ibx_options_init(&transport);
    is.stay = -EREMOTEIO;
    is.status = "postmigrate";
    assert_int_equal(ibx_migrate_rollback(folder, &r, &transport, &error), -EREMOTEIO);
    assert_false(ibx_journal_back_marked(folder, &r));
    is.status = "running";
    assert_int_equal(ibx_migrate_rollback(folder, &r, &transport, &error), -EREMOTEIO);
    assert_true(ibx_journal_back_marked(folder, &r));
    is.stay = 0;
    assert_int_equal(ibx_migrate_rollback(folder, &r, &transport, &error), 0);
    assert_false(ibx_journal_back_marked(folder, &r));
    assert_int_equal(only().state, IBX_JOURNAL_ROLLED_BACK);
    assert_int_equal(only().epoch, 2);
    assert_string_equal(only().settings, "");
}

/* It takes no source that it has seen. */
static void the_destination_is_told_again(NO_STATE)
{
    struct ibx_record r = recorded(IBX_JOURNAL_ROLLED_BACK);
    enum ibx_answer_state there;
    assert_int_equal(ibx_migrate_disown_again(folder, &r, NULL, &there, &error), 0);
    assert_int_equal(is.disowned, 2);
    assert_int_equal(only().epoch, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_vm_has_never_left),         TEST(the_vm_may_have_left),
        TEST(a_rollback_was_killed),         TEST(a_rollback_is_refused),
        TEST(the_destination_is_told_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
