/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What other clients of the source's QEMU do while the destination still needs its pages: nobody
 * runs the VM twice, and no page that is served becomes another one. Nothing else protects these
 * VMs: they have no disks, whose locks would.
 */
#include "tests/scenes/mover.h"

#include "common/clock.h"

/* Also by the guest, whatever -no-reboot says. */
#define RESETS "-action", "reboot=reset"

static int refused(const char *command, const char *words)
{
    struct ibx_error why = {0};
    int rc = ibx_qmp_execute(vms[0].qmp, command, NULL, NULL, vm_soon(), &why);
    if (!rc || !strstr(why.message, words))
        fail_msg("%s: %d \"%s\" does not say \"%s\"", command, rc, why.message, words);
    return rc;
}

static void is_held(void)
{
    json_t *status = vm_run(&vms[0], "query-status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "status")), "finish-migrate");
    json_decref(status);
    refused("cont", "not finalized yet");
    assert_false(mover_resumed(&vms[0]));
}

static void is_released(void)
{
    json_t *status = vm_run(&vms[0], "query-status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "status")), "postmigrate");
    json_decref(status);
}

/* From the commit to the end; not any more when nothing is left to protect. */
static void test_cont_is_refused(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", (const char *[]){"--max-bandwidth", "64K", NULL}),
               SIGCONT);
    is_held();
    mover_await(&sender, "filling", 0);
    is_held();
    pair_filled();
    assert_false(mover_resumed(&vms[0]));
    is_released();
}

/* ... also while no tool is there, and by the next one. */
static void test_cont_is_refused_without_a_tool(void)
{
    pair_filling(NULL, NULL);
    mover_await(&sender, "filling", 0);
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "broken", 0);
    is_held();
    for (unsigned i = 0; i < 2; i++) { /* twice, since the first one dies, too */
        pair_recover(&sender);
        mover_await(&receiver, "filling", 0);
        is_held();
        if (!i)
            mover_kill(&sender, SIGKILL);
    }
    pair_filled();
    is_released();
}

/* A tool that dies at the very end leaves a QEMU that refuses still; recover releases it. */
static void test_killed_at_the_end(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:confirming", NULL), SIGKILL);
    is_held();
    pair_recover(&sender);
    mover_ends(&sender, 0);
    mover_ends(&receiver, 0);
    is_released();
    pair_moved("");
}

int main(void)
{
    pair_beats = 10;
    static const struct vm_test tests[] = {VM_TEST(test_cont_is_refused),
                                           VM_TEST(test_cont_is_refused_without_a_tool),
                                           VM_TEST(test_killed_at_the_end),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
