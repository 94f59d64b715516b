/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Somebody cuts a file of guest RAM short in the middle of a migration. What it held beyond its end
 * is lost, at the source the pages that the destination lacks, at the destination those that it
 * has. Both sides name the file and end, and nothing continues the VM with such memory.
 */
#include "tests/fixtures/mover.h"

#define HALF ((off_t)VM_RAM_MIB << 19)

static void cut(unsigned side)
{
    assert_int_equal(truncate(vms[side].ram, HALF), 0);
}

/* The VM runs at the destination, over this provider, and lacks nearly all of its pages. Both sides
 * have the option: if one of them verifies pages, so does the other. */
static void filling(const char *provider, const char *option)
{
    char uri[64];
    pair_start(NULL);
    snprintf(uri, sizeof(uri), "%s://127.0.0.1:0?%s", provider, pair_timeout);
    mover_receive(&receiver, &vms[1], uri,
                  (const char *[]){"--max-bandwidth", "64K", option, NULL});
    pair_send((const char *[]){option, NULL});
    mover_await(&receiver, "filling", 0);
}

static void both_say(const char *words)
{
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    mover_must_print(&sender, words);
    mover_must_print(&receiver, words);
}

static void at_the_source(const char *provider, const char *option)
{
    filling(provider, option);
    cut(0);
    both_say(vms[0].ram);
    mover_must_print(&sender, "does not go on there, and here ");
    mover_must_print(&sender, "start it from its disk");
    assert_false(mover_printed(&sender, "rollback"));
    assert_false(vm_runs(&vms[1]));
    vm_kill(&vms[1]);
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool), "was cut short to ");
    assert_false(vm_runs(&vms[0]));
}

static void test_source_over_tcp(void)
{
    at_the_source("tcp", NULL);
}

static void test_source_over_shm(void)
{
    at_the_source("shm", NULL);
}

static void test_source_unverified(void)
{
    at_the_source("shm", "--no-verify");
}

static void at_the_destination(const char *provider, const char *option)
{
    filling(provider, option);
    cut(1);
    both_say(vms[1].ram);
    vm_kill(&vms[1]);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool);
    pair_runs_at_the_source();
}

static void test_destination_over_tcp(void)
{
    at_the_destination("tcp", NULL);
}

static void test_destination_over_shm(void)
{
    at_the_destination("shm", "--no-verify");
}

/* QEMU needs a page beyond the end, and is gone before its tool has looked. */
static void test_destination_ends_by_sigbus(void)
{
    filling("tcp", NULL);
    mover_kill(&receiver, SIGSTOP);
    cut(1);
    vm_kill(&vms[1]); /* as SIGBUS does, which it may not come to while it waits for a page */
    mover_kill(&receiver, SIGCONT);
    mover_ends(&sender, 3);
    mover_ends(&receiver, 3);
    mover_must_print(&receiver, vms[1].ram);
    mover_must_print(&sender, vms[1].ram);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool);
    pair_runs_at_the_source();
}

/* A tool that is back sees it as well. */
static void test_source_before_a_new_link(void)
{
    filling("tcp", NULL);
    mover_kill(&receiver, SIGKILL);
    mover_await_words(&sender, "connecting again");
    cut(0);
    pair_recover(&receiver);
    both_say(vms[0].ram);
}

/* The VM has all of its pages, and only the source does not know it. */
static void test_source_after_the_last_page(void)
{
    mover_stop_next("destination:complete");
    filling("tcp", "--no-verify");
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_await_stop(&receiver);
    mover_kill(&receiver, SIGKILL);
    mover_await_words(&sender, "connecting again");
    cut(0);
    pair_recover(&receiver);
    pair_done();
    assert_true(vm_runs(&vms[1]));
}

/* No tool was there. The QEMU that rollback continues would end by SIGBUS. */
static void test_rollback_refuses(void)
{
    pair_filling(NULL, NULL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    cut(0);
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool), "was cut short to ");
    assert_false(vm_runs(&vms[0]));
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_source_over_tcp),
        VM_TEST(test_source_over_shm),
        VM_TEST(test_source_unverified),
        VM_TEST(test_source_before_a_new_link),
        VM_TEST(test_source_after_the_last_page),
        VM_TEST(test_destination_over_tcp),
        VM_TEST(test_destination_over_shm),
        VM_TEST(test_destination_ends_by_sigbus),
        VM_TEST(test_rollback_refuses),
        {0},
    };
    return vm_tests(tests, mover_end_all);
}
