/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A VM that is to return from here: who may borrow it, when it has left, and who has QEMU's monitor
 * meanwhile. */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/new_destination.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct destination d;
static struct ibx_record its_return;
static char notices[4096];
static int looked;                           /* what the look for devices returns */
static enum { UNCHANGED, OFF, ON } fetching; /* pages ahead, as the engine was told last */

static void note_notice(void *context, const char *text)
{
    (void)context;
    strncat(notices, text, sizeof(notices) - strlen(notices) - 1);
}

static const struct ibx_receive_options options = {.folder = folder,
                                                   .observer = {.notify = note_notice}};

/* ------------------------------------------------------------ replaced functions */

int __wrap_ibx_preflight_warm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, bool *nests,
                              uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_preflight_warm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, bool *nests,
                              uint64_t deadline_ns, struct ibx_error *err)
{
    (void)qmp, (void)ram, (void)nests, (void)deadline_ns;
    return looked ? ibx_error_set(err, looked, "a device writes to it") : 0;
}

void __wrap_ibx_fault_set_background(struct ibx_fault *engine, bool on);
void __wrap_ibx_fault_set_background(struct ibx_fault *engine, bool on)
{
    (void)engine;
    fetching = on ? ON : OFF;
}

enum ibx_fault_state __wrap_ibx_fault_state(const struct ibx_fault *engine);
enum ibx_fault_state __wrap_ibx_fault_state(const struct ibx_fault *engine)
{
    (void)engine;
    return d.status.present ? IBX_FAULT_COMPLETE : IBX_FAULT_SERVING;
}

/* ------------------------------------------------------------ steps */

/* The VM runs here. */
static void begin(uint8_t borrow)
{
    struct ibx_record *record = &d.status.record;
    notices[0] = '\0';
    fetching = UNCHANGED;
    looked = 0;
    new_destination(&d, &options);
    assert_int_equal(ibx_destination_begin(&d, DESTINATION_FILLING), 0);
    *record = sample(false, 3);
    record->pid = getpid();
    record->pid_started = ibx_process_started(record->pid);
    record->borrow = d.ram.borrow = borrow;
    d.ram.engine = (struct ibx_fault *)&d;
    bring_to(record, IBX_JOURNAL_RUNNING);
}

/* The tool by which the VM returns has this record. */
static void returns(enum ibx_journal_state state)
{
    its_return = sample(true, 9);
    memcpy(its_return.base, d.status.record.id, sizeof(its_return.base));
    bring_to(&its_return, state);
}

static void end(void)
{
    ibx_journal_remove(folder, &its_return, &error);
    assert_int_equal(ibx_journal_remove(folder, &d.status.record, &error), 0);
}

/* ------------------------------------------------------------ tests */

static unsigned reasons(const struct ibx_migrate_hello *hello, const char *word)
{
    struct ibx_blockers blockers = {0};
    ibx_destination_borrow_check(&d, hello, &blockers);
    if (blockers.count)
        text_has(blockers.reasons[0], word);
    return (unsigned)blockers.count;
}

/* Pages are placed one by one, write-protected, and compared before the VM returns. */
static void who_may_borrow(NO_STATE)
{
    struct ibx_guest_block block = {.id = "ram0", .size = 4 << 20, .page_size = 2 << 20};
    struct ibx_receive_options own = options;
    struct ibx_migrate_hello hello = {.borrow = IBX_BORROW_NOT};
    begin(IBX_BORROW_NOT);
    d.ram.guest.blocks = &block;
    d.ram.guest.count = 1;
    assert_int_equal(reasons(&hello, ""), 0);
    hello.borrow = IBX_BORROW_LAZY;
    hello.verify = true;
    assert_int_equal(reasons(&hello, "needs pages of 4096 bytes"), 1);
    block.page_size = 4096;
    assert_int_equal(reasons(&hello, ""), 0);
    hello.verify = false;
    assert_int_equal(reasons(&hello, "would not compare the pages"), 1);
    hello.verify = d.ram.minor = true;
    assert_int_equal(reasons(&hello, "--minor"), 1);
    d.ram.minor = false;
    own.stand_still = true;
    d.options = &own;
    assert_int_equal(reasons(&hello, "--stand-still"), 1);
    own.stand_still = false;
    d.qemu.managed = true;
    assert_int_equal(reasons(&hello, "--libvirt"), 1);
    end();
}

/* Only the other tool's record says that the VM runs at home, or has ended there. */
static void when_it_has_returned(NO_STATE)
{
    static const struct {
        enum ibx_journal_state state;
        bool away;
    } cases[] = {
        {IBX_JOURNAL_HERE, false},        {IBX_JOURNAL_MAY_RUN, false}, {IBX_JOURNAL_KEPT, false},
        {IBX_JOURNAL_ROLLED_BACK, false}, {IBX_JOURNAL_MOVED, true},    {IBX_JOURNAL_DONE, true},
        {IBX_JOURNAL_ENDED, true},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(IBX_BORROW_FILL);
        d.ram.engine = NULL;
        returns(cases[i].state);
        assert_int_equal(ibx_destination_has_returned(&d, NULL), cases[i].away);
        assert_int_equal(ibx_destination_borrow_returned(&d, false, &error), cases[i].away);
        assert_int_equal(d.state.now, cases[i].away ? DESTINATION_SHUT_DOWN : DESTINATION_FILLING);
        end();
    }
}

/* A return that may have come to its commit needs the monitor, and no page is fetched ahead: the VM
 * may change them at home. */
static void who_has_the_monitor(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_HERE, IBX_JOURNAL_MAY_RUN};
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(IBX_BORROW_FILL);
        returns(states[i]);
        ibx_destination_borrow_keep_lent(&d);
        assert_int_equal(d.lent, i);
        assert_int_equal(fetching, i ? OFF : UNCHANGED);
        end();
    }
}

static void the_monitor_is_back(NO_STATE)
{
    for (uint8_t borrow = IBX_BORROW_LAZY; borrow <= IBX_BORROW_FILL; borrow++) {
        begin(borrow);
        d.lent = true;
        ibx_destination_borrow_take_back(&d);
        assert_true(d.lent);
        d.qemu.qmp = (struct ibx_qmp *)&d;
        ibx_destination_borrow_take_back(&d);
        assert_false(d.lent);
        assert_int_equal(fetching, borrow == IBX_BORROW_FILL ? ON : UNCHANGED);
        end();
    }
}

/* A VM that misses pages does not stay because its borrower is interrupted. */
static void only_a_whole_vm_stays(NO_STATE)
{
    begin(IBX_BORROW_FILL);
    assert_false(ibx_destination_borrow_stays(&d));
    assert_false(d.stays);
    d.status.present = 1;
    d.state.now = DESTINATION_RESUMING; /* it is not known whether the VM runs here */
    assert_false(ibx_destination_borrow_stays(&d));
    d.state.now = DESTINATION_FILLING;
    assert_true(ibx_destination_borrow_stays(&d));
    assert_true(d.stays);
    assert_false(ibx_destination_borrow_stays(&d)); /* the next interrupt is one */
    end();
}

/* Which of its pages are others than at home is not known then, whatever becomes of the device. */
static void a_device_that_leaves_no_marks(NO_STATE)
{
    static const int found[] = {0, -ETIMEDOUT, -EOPNOTSUPP};
    for (unsigned i = 0; i < COUNT(found); i++) {
        const bool unseen = found[i] == -EOPNOTSUPP;
        begin(IBX_BORROW_FILL);
        d.qemu.qmp = (struct ibx_qmp *)&d;
        looked = found[i];
        ibx_destination_borrow_watch(&d);
        assert_int_equal(d.ram.unseen, unseen);
        assert_int_equal(ibx_journal_base_touched(folder, &d.status.record), unseen);
        assert_int_equal(strlen(notices) != 0, unseen);
        if (unseen)
            text_has(notices, "a device writes to it: ");
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_may_borrow),      TEST(when_it_has_returned),  TEST(who_has_the_monitor),
        TEST(the_monitor_is_back), TEST(only_a_whole_vm_stays), TEST(a_device_that_leaves_no_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
