/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a tool that takes over at the destination makes of the record and of what QEMU says: whether
 * the VM runs here, is to be continued, never came or has left again. */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/new_destination.h"
#include "tests/unit/migrate/own_monitor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct destination d;
static const char *status; /* QEMU's */
static int locked, zeros;  /* what the lock of guest RAM says, and QEMU of pages of zeros */
static bool has_list;
static char notices[4096];

static void note_notice(void *context, const char *text)
{
    (void)context;
    strncat(notices, text, sizeof(notices) - strlen(notices) - 1);
}

static const struct ibx_receive_options options = {.folder = folder,
                                                   .observer = {.notify = note_notice}};

/* ------------------------------------------------------------ replaced functions */

int __wrap_ibx_journal_reopen_to_fill(const struct ibx_record *record, struct ibx_guest_ram *ram,
                                      struct ibx_error *err);
int __wrap_ibx_journal_reopen_to_fill(const struct ibx_record *record, struct ibx_guest_ram *ram,
                                      struct ibx_error *err)
{
    (void)record, (void)ram, (void)err;
    return 0;
}

int __wrap_ibx_destination_lock_again(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_lock_again(struct destination *of, struct ibx_error *err)
{
    (void)of;
    return locked ? ibx_error_set(err, locked, "another tool has it") : 0;
}

int __wrap_ibx_destination_qemu_reach(struct destination_qemu *qemu, uint64_t deadline_ns,
                                      struct ibx_error *err);
int __wrap_ibx_destination_qemu_reach(struct destination_qemu *qemu, uint64_t deadline_ns,
                                      struct ibx_error *err)
{
    (void)qemu, (void)deadline_ns;
    return status ? 0 : ibx_error_set(err, -ETIMEDOUT, "it does not answer");
}

int __wrap_ibx_destination_qemu_await(struct destination_qemu *qemu, char *out, size_t size,
                                      struct ibx_error *err);
int __wrap_ibx_destination_qemu_await(struct destination_qemu *qemu, char *out, size_t size,
                                      struct ibx_error *err)
{
    (void)qemu, (void)err;
    snprintf(out, size, "%s", status);
    return 0;
}

static bool was_kept; /* the RAM, when its pages were counted */

int __wrap_ibx_destination_ram_recover(struct destination_ram *ram, const struct ibx_record *record,
                                       struct ibx_error *err);
int __wrap_ibx_destination_ram_recover(struct destination_ram *ram, const struct ibx_record *record,
                                       struct ibx_error *err)
{
    static uint64_t list[1024];
    (void)record, (void)err;
    was_kept = ram->kept;
    ram->arrived.memory = has_list ? list : NULL;
    ram->arrived.bytes = 2 * ((size_t)(ram->map.pages + 63) / 64 * 8);
    assert_true(ram->arrived.bytes <= sizeof(list));
    return 0;
}

int __wrap_ibx_preflight_wants_zeros(struct ibx_qmp *qmp, uint64_t deadline_ns,
                                     struct ibx_error *err);
int __wrap_ibx_preflight_wants_zeros(struct ibx_qmp *qmp, uint64_t deadline_ns,
                                     struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns;
    return zeros ? ibx_error_set(err, zeros, "so it says") : 0;
}

/* ------------------------------------------------------------ steps */

/* A tool has ended with this record. This process acts as QEMU, which says `says`. */
static void begin(enum ibx_journal_state state, const char *says)
{
    struct ibx_record *record = &d.status.record;
    notices[0] = '\0';
    memset(&error, 0, sizeof(error));
    locked = zeros = 0;
    has_list = true;
    status = says;
    new_destination(&d, &options);
    *record = sample(false, 3);
    record->boot[0] = '\0';
    record->pid = getpid();
    record->pid_started = ibx_process_started(record->pid);
    bring_to(record, state);
}

static void recovers(int rc)
{
    assert_int_equal(ibx_destination_recover(&d, &error), rc);
}

static void end(void)
{
    d.ram.arrived.memory = NULL;
    json_decref(d.qemu.settings);
    ibx_destination_ram_fini(&d.ram);
    assert_int_equal(ibx_journal_remove(folder, &d.status.record, &error), 0);
}

/* ------------------------------------------------------------ tests */

/* Before RUNNING only QEMU knows. A paused VM may have been so at its source, which has to tell
 * whether it is to run. Where libvirt drives, libvirt continues it. */
static void qemu_says_whether_the_vm_runs(NO_STATE)
{
    static const struct {
        const char *says;
        bool managed;
        enum destination_state now;
        enum ibx_journal_state recorded;
        bool undecided;
    } cases[] = {
        {"running", false, DESTINATION_FILLING, IBX_JOURNAL_RUNNING, false},
        {"shutdown", false, DESTINATION_FILLING, IBX_JOURNAL_RUNNING, false},
        {"paused", false, DESTINATION_FILLING, IBX_JOURNAL_MAY_RUN, true},
        {"running", true, DESTINATION_FILLING, IBX_JOURNAL_RUNNING, false},
        {"paused", true, DESTINATION_RESUMING, IBX_JOURNAL_MAY_RUN, true},
        {NULL, false, DESTINATION_RESUMING, IBX_JOURNAL_MAY_RUN, false},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(IBX_JOURNAL_MAY_RUN, cases[i].says);
        d.qemu.managed = cases[i].managed;
        recovers(0);
        assert_int_equal(d.state.now, cases[i].now);
        assert_int_equal(only().state, cases[i].recorded);
        assert_int_equal(d.undecided, cases[i].undecided);
        end();
    }
}

/* The VM is at its source: this QEMU, which lost its stream, must not count as one that runs it. */
static void the_vm_never_came(NO_STATE)
{
    begin(IBX_JOURNAL_MAY_RUN, "inmigrate");
    recovers(-ECANCELED);
    error_has("the VM is at the source");
    assert_int_equal(only().state, IBX_JOURNAL_MAY_RUN);
    end();
}

static void its_qemu_has_ended(NO_STATE)
{
    begin(IBX_JOURNAL_RUNNING, NULL);
    d.status.record.pid_started++;
    recovers(-ESRCH);
    error_has("has ended, and the VM with it");
    end();
}

/* Two tools would take the page faults of one VM, and each would answer half of them. */
static void another_tool_continues_it(NO_STATE)
{
    begin(IBX_JOURNAL_RUNNING, "running");
    locked = -EBUSY;
    recovers(-EBUSY);
    error_has("another tool has it");
    assert_null(d.ram.arrived.memory);
    end();
}

/* Pages that the guest has given back come again, with their old bytes: a guest that takes them for
 * zeros must not go on with those. */
static void the_list_of_pages_is_gone(NO_STATE)
{
    static const int answers[] = {0, -ETIMEDOUT, -EOPNOTSUPP};
    for (unsigned i = 0; i < COUNT(answers); i++) {
        begin(IBX_JOURNAL_RUNNING, "running");
        has_list = false;
        zeros = answers[i];
        recovers(answers[i] == -EOPNOTSUPP ? -ESTALE : 0);
        if (answers[i] == -EOPNOTSUPP)
            error_has("which it may take for zeros");
        else
            text_has(notices, i ? "is asked again" : "take memory");
        assert_int_equal(d.zeros_unknown, answers[i] == -ETIMEDOUT);
        end();
    }
}

/* Its borrower has nothing of it to fetch any more, and must not ask home for pages. */
static void a_borrowed_vm_has_returned_meanwhile(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_MAY_RUN, IBX_JOURNAL_MOVED};
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(IBX_JOURNAL_RUNNING, "running");
        struct ibx_record its_return = sample(true, 9);
        memcpy(its_return.base, d.status.record.id, sizeof(its_return.base));
        bring_to(&its_return, states[i]);
        d.status.record.borrow = IBX_BORROW_LAZY;
        assert_int_equal(write_record(&d.status.record), 0);
        recovers(0);
        assert_int_equal(d.state.now, i ? DESTINATION_SHUT_DOWN : DESTINATION_FILLING);
        assert_int_equal(d.status.record.state, i ? IBX_JOURNAL_SHUT_DOWN : IBX_JOURNAL_RUNNING);
        assert_int_equal(ibx_journal_has_returned(&d.status.record), i);
        assert_int_equal(ibx_journal_remove(folder, &its_return, &error), 0);
        end();
    }
}

/* Holes of memory that the VM had left here are no pages that came: which VM's it was has to be
 * known when they are counted. */
static void a_vm_that_returns_is_recovered(NO_STATE)
{
    for (unsigned known = 0; known < 2; known++) {
        struct ibx_record away = sample(true, 5);
        away.borrow = IBX_BORROW_LAZY;
        if (known)
            bring_to(&away, IBX_JOURNAL_MOVED);
        begin(IBX_JOURNAL_RUNNING, "running");
        memcpy(d.status.record.base, away.id, sizeof(away.id));
        assert_int_equal(write_record(&d.status.record), 0);
        recovers(0);
        assert_true(was_kept);
        assert_int_equal(d.home.record.state, known ? IBX_JOURNAL_MOVED : 0);
        end();
        if (known)
            assert_int_equal(ibx_journal_remove(folder, &away, &error), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(qemu_says_whether_the_vm_runs),
        TEST(the_vm_never_came),
        TEST(its_qemu_has_ended),
        TEST(another_tool_continues_it),
        TEST(the_list_of_pages_is_gone),
        TEST(a_borrowed_vm_has_returned_meanwhile),
        TEST(a_vm_that_returns_is_recovered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
