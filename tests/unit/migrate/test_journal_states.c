/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Records of migrations: which state may follow which, epochs, and what states are called. */
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <string.h>

/* For each state (row, in the order of the enum; 0: a new record) a bit for each other state
 * that may follow. */
static const unsigned source_table[14] = {
    [0] = 1 << IBX_JOURNAL_HERE,
    [IBX_JOURNAL_HERE] =
        1 << IBX_JOURNAL_MAY_RUN | 1 << IBX_JOURNAL_KEPT | 1 << IBX_JOURNAL_ROLLED_BACK,
    [IBX_JOURNAL_MAY_RUN] = 1 << IBX_JOURNAL_MOVED | 1 << IBX_JOURNAL_DONE | 1 << IBX_JOURNAL_KEPT |
                            1 << IBX_JOURNAL_ROLLED_BACK | 1 << IBX_JOURNAL_BROKEN |
                            1 << IBX_JOURNAL_ENDED,
    [IBX_JOURNAL_MOVED] = 1 << IBX_JOURNAL_DONE | 1 << IBX_JOURNAL_ROLLED_BACK |
                          1 << IBX_JOURNAL_BROKEN | 1 << IBX_JOURNAL_ENDED,
    [IBX_JOURNAL_BROKEN] = 1 << IBX_JOURNAL_ROLLED_BACK,
};
static const unsigned destination_table[14] = {
    [0] = 1 << IBX_JOURNAL_NOT_YET,
    [IBX_JOURNAL_NOT_YET] = 1 << IBX_JOURNAL_MAY_RUN | 1 << IBX_JOURNAL_GIVEN_UP,
    [IBX_JOURNAL_MAY_RUN] = 1 << IBX_JOURNAL_RUNNING | 1 << IBX_JOURNAL_COMPLETE |
                            1 << IBX_JOURNAL_GIVEN_UP | 1 << IBX_JOURNAL_BROKEN |
                            1 << IBX_JOURNAL_SHUT_DOWN | 1 << IBX_JOURNAL_ENDED,
    [IBX_JOURNAL_RUNNING] = 1 << IBX_JOURNAL_COMPLETE | 1 << IBX_JOURNAL_GIVEN_UP |
                            1 << IBX_JOURNAL_BROKEN | 1 << IBX_JOURNAL_SHUT_DOWN |
                            1 << IBX_JOURNAL_ENDED,
    [IBX_JOURNAL_SHUT_DOWN] = 1 << IBX_JOURNAL_ENDED | 1 << IBX_JOURNAL_BROKEN,
    [IBX_JOURNAL_COMPLETE] = 1 << IBX_JOURNAL_DONE | 1 << IBX_JOURNAL_BROKEN,
};

static void check_step(bool source, unsigned from, unsigned to, bool allowed)
{
    struct ibx_record r = sample(source, 9);
    bring_to(&r, (enum ibx_journal_state)from);
    r.state = (enum ibx_journal_state)to;
    complete_as_its_state(&r);
    int rc = write_record(&r);
    if (rc != (allowed ? 0 : -EINVAL))
        fail_msg("%s from %u to %u: %d", source ? "source" : "destination", from, to, rc);
    if (rc && from) { /* the record is unchanged */
        assert_int_equal(only().state, from);
        error_has(ibx_journal_state_name((enum ibx_journal_state)from));
    }
    if (from || !rc) {
        r.state = (enum ibx_journal_state)from;
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    }
}

static void only_moves_of_the_table(NO_STATE)
{
    const unsigned all[2] = {
        1 << IBX_JOURNAL_NOT_YET | 1 << IBX_JOURNAL_MAY_RUN | 1 << IBX_JOURNAL_RUNNING |
            1 << IBX_JOURNAL_COMPLETE | 1 << IBX_JOURNAL_DONE | 1 << IBX_JOURNAL_GIVEN_UP |
            1 << IBX_JOURNAL_BROKEN | 1 << IBX_JOURNAL_SHUT_DOWN | 1 << IBX_JOURNAL_ENDED,
        1 << IBX_JOURNAL_HERE | 1 << IBX_JOURNAL_MAY_RUN | 1 << IBX_JOURNAL_MOVED |
            1 << IBX_JOURNAL_DONE | 1 << IBX_JOURNAL_KEPT | 1 << IBX_JOURNAL_ROLLED_BACK |
            1 << IBX_JOURNAL_BROKEN | 1 << IBX_JOURNAL_ENDED};
    for (unsigned source = 0; source < 2; source++) {
        const unsigned *table = source ? source_table : destination_table;
        for (unsigned from = 0; from < 14; from++) {
            if (from && !(all[source] >> from & 1))
                continue;
            for (unsigned to = 0; to < 16; to++) /* some numbers are no states */
                check_step(source, from, to, table[from] >> to & 1 || (from && to == from));
        }
    }
}

static void epochs_only_rise(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    r.epoch = 0;
    assert_int_equal(write_record(&r), -EINVAL);
    r.epoch = 5;
    assert_int_equal(write_record(&r), 0);
    r.epoch = 4;
    assert_int_equal(write_record(&r), -EINVAL);
    error_has("epoch 4");
    r.epoch = UINT64_MAX;
    assert_int_equal(write_record(&r), -EINVAL);
    assert_int_equal(only().epoch, 5);
    r.epoch = INT64_MAX;
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(only().epoch, INT64_MAX);
}

/* What else may be true of the source is in brackets: the condition behind it is that of the
 * restart. */
static void advice_to_roll_back_has_one_reading(NO_STATE)
{
    char text[IBX_ERROR_MAX];
    for (unsigned returns = 0; returns < 2; returns++) {
        struct ibx_record r = sample(false, 1);
        r.state = IBX_JOURNAL_BROKEN;
        r.base[0] = returns ? 1 : 0;
        snprintf(r.vm_status, sizeof(r.vm_status), "%s", returns ? "" : IBX_JOURNAL_MIGRATED_ON);
        ibx_journal_describe(&r, text, sizeof(text));
        text_has(text, returns ? "from where it stopped (unless ib-migrate status there says that "
                                 "this was done), if it had all of its pages there, else"
                               : "from where it stopped (unless ib-migrate status there says that "
                                 "this was done), unless it runs where");
    }
}

/* Where libvirt drives, rollback continues no VM. */
static void libvirt_restarts_a_vm(NO_STATE)
{
    static const struct {
        bool source;
        enum ibx_journal_state state;
        const char *vm_status;
    } lost[] = {{true, IBX_JOURNAL_MOVED, IBX_JOURNAL_QEMU_ENDED},
                {true, IBX_JOURNAL_MOVED, IBX_JOURNAL_MIGRATED_ON},
                {true, IBX_JOURNAL_BROKEN, "paused"},
                {false, IBX_JOURNAL_BROKEN, "paused"}};
    char text[IBX_ERROR_MAX];
    for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
        struct ibx_record r = sample(lost[i].source, 1);
        r.state = lost[i].state;
        r.libvirt = true;
        snprintf(r.vm_status, sizeof(r.vm_status), "%s", lost[i].vm_status);
        ibx_journal_describe(&r, text, sizeof(text));
        text_has(text, "virsh resume");
        if (strstr(text, "restarts it"))
            fail_msg("%s", text);
    }
}

static void states_have_names_and_meanings(NO_STATE)
{
    char text[IBX_ERROR_MAX];
    const bool over[14] = {[IBX_JOURNAL_DONE] = true,
                           [IBX_JOURNAL_KEPT] = true,
                           [IBX_JOURNAL_ROLLED_BACK] = true,
                           [IBX_JOURNAL_GIVEN_UP] = true,
                           [IBX_JOURNAL_ENDED] = true};
    for (unsigned i = 1; i < 14; i++) {
        struct ibx_record r = sample(i < IBX_JOURNAL_NOT_YET || i == IBX_JOURNAL_BROKEN, 1);
        r.state = (enum ibx_journal_state)i;
        assert_int_equal(ibx_journal_over(&r), over[i]);
        assert_string_not_equal(ibx_journal_state_name(r.state), "unknown");
        ibx_journal_describe(&r, text, sizeof(text));
        if (!strstr(text, "VM db1") || !strstr(text, "node-b") || strchr(text, '%'))
            fail_msg("%s", text);
        /* Nobody has reported that this VM is lost at its borrower's. */
        r.borrow = IBX_BORROW_LAZY;
        ibx_journal_describe(&r, text, sizeof(text));
        if (r.source && (strstr(text, "QEMU there has ended") || strstr(text, "is lost there")))
            fail_msg("%s", text);
    }
    /* A state that QEMU has reported is not called running. */
    struct ibx_record r = sample(false, 1);
    r.state = IBX_JOURNAL_RUNNING;
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "VM db1 runs here and needs");
    text_has(text, "; if no ib-migrate is at work, \"ib-migrate recover\" continues to fetch them");
    strcpy(r.vm_status, "paused");
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "VM db1 was \"paused\" when QEMU was last asked, and is here and needs");
    /* The first was named by this host, the second by the other one. */
    strcpy(r.name, "K\u00f6ln");
    strcpy(r.peer, "N\u00f6rd");
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "VM K\u00f6ln was \"paused\"");
    text_has(text, "still at N??rd");
    /* A borrowed VM, and one that has returned to a host that keeps its memory. */
    r = sample(false, 1);
    r.state = IBX_JOURNAL_RUNNING;
    r.borrow = IBX_BORROW_FILL;
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text,
             "VM db1 runs here, borrowed from node-b, which has the pages that have not come");
    text_has(text, "\"ib-migrate return\" brings it home; if no ib-migrate");
    r.base[0] = 7;
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "VM db1 runs here again, and node-b keeps what it has of it");
    text_has(text, "interrupt ib-migrate if it says that the VM has all of its pages; otherwise");
    r.source = true;
    r.state = IBX_JOURNAL_MOVED;
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "VM db1 runs at node-b again: this side keeps what it has of it");
    r = sample(true, 1);
    r.name[0] = r.peer[0] = '\0';
    strcpy(r.uri, "tcp://%s%n\033");
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "VM 01234567-89ab");
    text_has(text, "tcp://%s%n?");
    strcpy(r.uuid, "00000000-0000-0000-0000-000000000000");
    ibx_journal_describe(&r, text, sizeof(text));
    text_has(text, "the VM of /run/db1.qmp");
    ibx_journal_describe(&r, text, 10);
    assert_int_equal(strlen(text), 9);
    r.state = (enum ibx_journal_state)99;
    ibx_journal_describe(&r, text, sizeof(text));
    assert_string_equal(ibx_journal_state_name(r.state), "unknown");
    assert_false(ibx_journal_over(&r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(only_moves_of_the_table),
        TEST(epochs_only_rise),
        TEST(advice_to_roll_back_has_one_reading),
        TEST(libvirt_restarts_a_vm),
        TEST(states_have_names_and_meanings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
