/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * With --libvirt: a migration may go past the tools, as with virsh migrate without --migrateuri
 * unix://... Whenever it comes, the tools name it, and what to give instead; they also name an
 * option with which QEMU itself connects to the tool's socket. The VM runs on where it was.
 */
#include "tests/fixtures/mover.h"

#include "common/clock.h"
#include "migrate/common/vm.h"
#include "tests/fixtures/process.h"

#define LOOK_MS 5

static char here[128], there[128], elsewhere[128], at[160], elsewhere_uri[140];

static void start(void)
{
    pair_start(NULL);
    snprintf(here, sizeof(here), "%s/a.sock", vms[0].dir);
    snprintf(there, sizeof(there), "%s/b.sock", vms[1].dir);
    snprintf(elsewhere, sizeof(elsewhere), "%s/c.sock", vms[0].dir);
    snprintf(elsewhere_uri, sizeof(elsewhere_uri), "unix:%s", elsewhere);
    snprintf(at, sizeof(at), "--migrateuri unix://%s", here);
}

static void migrate(const char *uri)
{
    vm_do(&vms[0], "migrate", json_pack("{s:s}", "uri", uri));
}

/* The sender alone, as it waits for a receiver; the URI of that. */
static void send_first(void)
{
    const uint64_t deadline = vm_soon();
    snprintf(receiver.uri, sizeof(receiver.uri), "tcp://127.0.0.1:%u?%s", process_free_port(),
             pair_timeout);
    pair_send((const char *[]){"--libvirt", here, NULL});
    while (access(here, F_OK) && ibx_now_ns() < deadline)
        poll(NULL, 0, LOOK_MS);
    assert_int_equal(access(here, F_OK), 0);
}

static void receive(const char *uri)
{
    mover_receive(&receiver, &vms[1], uri, (const char *[]){"--libvirt", there, NULL});
}

/* The destination has its QEMU listen before the source's QEMU begins, and send looks at what that
 * one does when its receiver says that it is ready. */
static void receive_and_listen(const char *uri)
{
    char at_there[140];
    snprintf(at_there, sizeof(at_there), "unix:%s", there);
    receive(uri);
    vm_do(&vms[1], "migrate-incoming", json_pack("{s:s}", "uri", at_there));
}

/* Both tools, up to this state; libvirt has its QEMUs begin as with --migrateuri unix://... */
static void run_to(const char *state)
{
    struct mover *which = strncmp(state, "source", 6) ? &receiver : &sender;
    vm_set_capability(&vms[0], "pause-before-switchover", true);
    mover_stop_next(state);
    receive_and_listen("tcp://127.0.0.1:0");
    pair_send((const char *[]){"--libvirt", here, NULL});
    mover_await_stop(which);
}

static void sender_says(const char *words)
{
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    mover_ends(&receiver, 1);
    assert_int_not_equal(access(here, F_OK), 0);
}

/* virsh migrate --parallel as soon as the socket is there: QEMU begins, and takes no settings. */
static void test_parallel_at_once(void)
{
    char uri[300], to[140];
    start();
    send_first();
    snprintf(uri, sizeof(uri), "%s", receiver.uri);
    snprintf(to, sizeof(to), "unix:%s", here);
    vm_set_capability(&vms[0], "pause-before-switchover", true);
    vm_set_capability(&vms[0], "multifd", true);
    migrate(to);
    receive_and_listen(uri);
    sender_says("virsh migrate was given --parallel");
    pair_runs_at_the_source();
}

/* The migration waits for the destination at another address when the tool is to give QEMU its
 * settings. */
static void test_before_the_settings(void)
{
    char uri[300];
    int place;
    start();
    send_first();
    snprintf(uri, sizeof(uri), "%s", receiver.uri);
    const int listener = process_full_listener(elsewhere, &place);
    vm_set_capability(&vms[0], "pause-before-switchover", true);
    migrate(elsewhere_uri);
    receive_and_listen(uri);
    sender_says(at);
    assert_false(mover_printed(&sender, "left the disks")); /* nor did this tool's migration */
    close(listener);
    close(place);
    pair_runs_at_the_source();
}

/* The migration is complete before there is a receiver, and libvirt has ended QEMU here: the VM
 * runs elsewhere, and may be started from its disk only if virsh finds it nowhere. */
static void test_through_before_the_receiver(void)
{
    const uint64_t until = vm_soon();
    char status[32] = "";
    start();
    send_first();
    migrate("exec:cat >/dev/null");
    while (!ibx_vm_status(vms[0].qmp, status, sizeof(status), until, NULL) &&
           strcmp(status, "postmigrate") != 0 && ibx_now_ns() < until)
        poll(NULL, 0, LOOK_MS);
    assert_string_equal(status, "postmigrate");
    assert_int_equal(kill(vms[0].pid, SIGTERM), 0);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "virsh list --all here and virsh list on the other hosts tell");
    mover_must_print(&sender, "unless virsh list has it on another host");
    assert_false(mover_printed(&sender, "has ended with it"));
    assert_false(mover_printed(&sender, "could run elsewhere"));
}

/* The migration has stopped the VM, or is complete, before the tool's socket lets anybody in. */
static void test_before_the_gate(void)
{
    start();
    run_to("source:compared");
    migrate("exec:cat >/dev/null");
    while (vm_runs(&vms[0]))
        poll(NULL, 0, LOOK_MS);
    mover_kill(&sender, SIGCONT);
    sender_says(at);
    assert_false(mover_printed(&sender, "virsh resume")); /* it may run elsewhere */
    assert_false(mover_printed(&sender, "stayed here"));
}

/* The destination's QEMU has another one's state, which it cannot load, before the first look at
 * where it listens. */
static void test_before_the_destination_looks(void)
{
    start();
    snprintf(at, sizeof(at), "--migrateuri unix://%s", there);
    mover_stop_next("destination:joining");
    receive("tcp://127.0.0.1:0");
    pair_send((const char *[]){"--libvirt", here, NULL});
    mover_await_stop(&receiver);
    vm_do(&vms[1], "migrate-incoming", json_pack("{s:s}", "uri", "exec:echo no VM"));
    vm_await_end(&vms[1]);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, at);
    mover_ends(&sender, 1);
    pair_runs_at_the_source();
}

/* It listens elsewhere. */
static void test_listens_elsewhere(void)
{
    start();
    snprintf(at, sizeof(at), "--migrateuri unix://%s", there);
    receive("tcp://127.0.0.1:0");
    pair_send((const char *[]){"--libvirt", here, NULL});
    vm_do(&vms[1], "migrate-incoming", json_pack("{s:s}", "uri", elsewhere_uri));
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, at);
    mover_ends(&sender, 1);
    pair_runs_at_the_source();
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_parallel_at_once),
                                           VM_TEST(test_before_the_settings),
                                           VM_TEST(test_through_before_the_receiver),
                                           VM_TEST(test_before_the_gate),
                                           VM_TEST(test_before_the_destination_looks),
                                           VM_TEST(test_listens_elsewhere),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
