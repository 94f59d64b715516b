/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who may have the memory that a borrowed VM left here: one QEMU at a time, and none any more when
 * the VM has run in one. Otherwise it would run twice, or with memory that is not its own. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file of that memory has no name in this test, so a receiver that may have it comes as far as
 * that: "guest RAM". */

static struct destination d;
static struct ibx_receive_options options = {.folder = folder};

static unsigned adopted; /* how often QEMU was given that memory */

int __wrap_ibx_guest_ram_adopt(struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                               struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_guest_ram_adopt(struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                               struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    (void)ram, (void)base, (void)qmp, (void)deadline_ns, (void)err;
    adopted++;
    return 0;
}

/* The VM was borrowed from here. */
static struct ibx_record lent(enum ibx_journal_state state)
{
    struct ibx_record r = sample(true, 5);
    r.borrow = IBX_BORROW_LAZY;
    r.pid = getpid();
    r.pid_started = ibx_process_started(r.pid) + 1;
    r.boot[0] = r.blocks[0].file.path[0] = '\0';
    bring_to(&r, state);
    return r;
}

/* An earlier return of it, into a QEMU that lives or has ended. */
static struct ibx_record returned(const struct ibx_record *away, enum ibx_journal_state state,
                                  bool lives)
{
    struct ibx_record r = sample(false, 6);
    memcpy(r.base, away->id, sizeof(r.base));
    r.pid = getpid();
    r.pid_started = ibx_process_started(r.pid) + !lives;
    r.boot[0] = '\0';
    bring_to(&r, state);
    return r;
}

/* A source asks whether it may bring the VM home. */
static void asks(const struct ibx_record *away, bool home, const char *word)
{
    struct ibx_migrate_hello hello = {.purpose = IBX_PURPOSE_MOVE};
    struct ibx_blockers blockers = {0};
    memcpy(hello.base, away->id, sizeof(hello.base));
    options.home = home;
    d = (struct destination){.options = &options, .lock_fd = -1};
    ibx_destination_home_check(&d, &hello, &blockers);
    assert_int_equal(blockers.count, 1);
    if (!strstr(blockers.reasons[0], word))
        fail_msg("\"%s\" does not say \"%s\"", blockers.reasons[0], word);
    ibx_destination_home_fini(&d.home);
}

static void one_that_is_away_may_return(NO_STATE)
{
    const struct ibx_record away = lent(IBX_JOURNAL_MOVED);
    asks(&away, true, "guest RAM");
    asks(&away, false, "it is received with --home");
}

static void one_that_is_not_away_does_not(NO_STATE)
{
    struct ibx_record none = sample(true, 7), away = lent(IBX_JOURNAL_MAY_RUN);
    asks(&none, true, "no such VM that was borrowed from here");
    asks(&away, true, "no such VM that was borrowed from here");
}

static void nobody_else_has_its_memory(NO_STATE)
{
    static const struct {
        enum ibx_journal_state state;
        bool lives;
        const char *word;
    } cases[] = {
        {IBX_JOURNAL_NOT_YET, true, "has it, for a return that is not over"},
        {IBX_JOURNAL_NOT_YET, false, "guest RAM"},
        {IBX_JOURNAL_MAY_RUN, true, "has it, for a return that is not over"},
        {IBX_JOURNAL_GIVEN_UP, true, "guest RAM"},
        {IBX_JOURNAL_RUNNING, true, "the VM has returned already"},
        {IBX_JOURNAL_RUNNING, false, "the VM has returned already"},
        {IBX_JOURNAL_DONE, false, "the VM has returned already"},
    };
    const struct ibx_record away = lent(IBX_JOURNAL_MOVED);
    for (unsigned i = 0; i < COUNT(cases); i++) {
        const struct ibx_record r = returned(&away, cases[i].state, cases[i].lives);
        asks(&away, true, cases[i].word);
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    }
}

/* A receiver that was chosen for this VM is about to give its QEMU the memory. */
static void adopts(const struct ibx_record *away, int code)
{
    struct ibx_guest_block block = {.id = "mem0", .fd = memfd_create("mem0", MFD_CLOEXEC)};
    d = (struct destination){.options = &options, .lock_fd = -1, .ram_lock_fds = {-1, -1}};
    d.home.record = *away;
    d.status.record = sample(false, 7);
    memcpy(d.status.record.base, away->id, sizeof(away->id));
    d.home.ram = (struct ibx_guest_ram){.blocks = &block, .count = 1};
    adopted = 0;
    assert_int_equal(ibx_destination_home_adopt(&d, &error), code);
    assert_int_equal(adopted, !code);
    assert_int_equal(d.ram.kept, !code);
    ibx_destination_unlock(&d);
    close(block.fd);
}

/* Since this receiver was chosen, the VM may have returned into another QEMU, and have run there.
 * This one gets the memory only if that is not so when it is locked. */
static void nobody_else_has_had_it_meanwhile(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_GIVEN_UP, IBX_JOURNAL_RUNNING,
                                                    IBX_JOURNAL_MAY_RUN};
    const struct ibx_record away = lent(IBX_JOURNAL_MOVED);
    for (unsigned i = 0; i < COUNT(states); i++) {
        const struct ibx_record other = returned(&away, states[i], true);
        adopts(&away, !i ? 0 : i == 1 ? -EALREADY : -EBUSY);
        assert_int_equal(ibx_journal_remove(folder, &other, &error), 0);
    }
}

/* Or somebody may have taken it back, or has begun to. The mark of a return would forbid that
 * rollback, or its repetition after it was killed: there is none unless the return begins. */
static void nobody_has_taken_the_vm_back_meanwhile(NO_STATE)
{
    const struct ibx_record away = lent(IBX_JOURNAL_MOVED);
    struct ibx_record theirs = away;
    assert_int_equal(ibx_journal_mark_back(folder, &away, &error), 0);
    adopts(&away, -EBUSY);
    error_has("a rollback has begun");
    assert_false(ibx_journal_base_touched(folder, &away));
    theirs.state = IBX_JOURNAL_ROLLED_BACK;
    assert_int_equal(write_record(&theirs), 0);
    adopts(&away, -EALREADY);
    assert_false(ibx_journal_base_touched(folder, &away));
    assert_int_equal(ibx_journal_remove(folder, &theirs, &error), 0);
    const struct ibx_record again = lent(IBX_JOURNAL_MOVED);
    adopts(&again, 0);
    assert_true(ibx_journal_base_touched(folder, &again));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_that_is_away_may_return),
        TEST(one_that_is_not_away_does_not),
        TEST(nobody_else_has_its_memory),
        TEST(nobody_else_has_had_it_meanwhile),
        TEST(nobody_has_taken_the_vm_back_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
