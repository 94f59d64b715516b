/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What an operator can do while pages are missing, by the table of ib-migrate(1): each command is
 * given to the monitor of the destination's QEMU, or of the source's. QEMU does or refuses it as
 * the table says, and the migration ends with a VM that is right. Also, a VM that somebody pauses
 * before QEMU's migration stops it.
 */
#include "tests/fixtures/mover.h"

#include <fcntl.h>
#include <signal.h>

#define LOOK_MS 5

struct attempt {
    const char *command;
    const char *arguments; /* JSON with ' for "; % is the folder; NULL: none. Or a line of HMP */
    const char *refusal;   /* words of QEMU's; NULL: it is done */
    const char *event;     /* to wait for afterwards; NULL: none */
    const char *inactive;  /* refusal of a QEMU that has handed its disks over, from 10 on */
};

#define HMP "human-monitor-command"

/* With what a VM is plugged into and out of. */
static const struct vm_options machine = {
    .append = "balloon=2048",
    .extra = {VM_BALLOON, "-device", "pcie-root-port,id=free,addr=6,chassis=1", "-device",
              "pcie-root-port,id=taken,addr=7,chassis=2", "-device",
              "virtio-rng-pci,id=rng,bus=taken", "-drive", "if=none,id=disk,driver=null-co,size=1M",
              "-device", "virtio-blk-pci,drive=disk,addr=8"},
};

static json_t *arguments_of(const struct attempt *a)
{
    char text[512];
    size_t n = 0;
    if (!strcmp(a->command, HMP))
        return json_pack("{s:s}", "command-line", a->arguments);
    for (const char *p = a->arguments ? a->arguments : "{}"; *p && n < sizeof(text) - 80; p++) {
        if (*p == '%')
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", mover_folder);
        else
            text[n++] = *p == '\'' ? '"' : *p;
    }
    text[n] = '\0';
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    return json;
}

/* A command of the human monitor answers with a text: "Error: ..." is one, too. */
static void give(struct vm *vm, const struct attempt *a)
{
    json_t *result = NULL;
    const bool gone = vm == &vms[0] && ibx_qmp_at_least(ibx_qmp_version(vm->qmp), 10, 0);
    const struct attempt refused = {
        .command = a->command, .arguments = a->arguments, .refusal = a->inactive};
    if (gone && a->inactive)
        a = &refused;
    const int rc =
        ibx_qmp_execute(vm->qmp, a->command, arguments_of(a), &result, vm_soon(), &vm_error);
    const char *text = json_string_value(result);
    const bool hmp_error = text && !strcmp(a->command, HMP) && !strncmp(text, "Error", 5);
    const char *said = rc ? vm_error.message : text ? text : "";
    print_message("%s %s: %.100s\n", a->command, a->arguments ? a->arguments : "", said);
    if ((rc || hmp_error) != !!a->refusal || (a->refusal && !strstr(said, a->refusal)))
        fail_msg("%s: %d %s", a->command, rc, said);
    if (rc && rc != -EREMOTEIO)
        fail_msg("%s: %s", a->command, said);
    json_decref(result);
    if (a->event)
        json_decref(vm_event(vm, a->event, NULL));
}

static void give_all(struct vm *vm, const struct attempt *attempts)
{
    for (; attempts->command; attempts++)
        give(vm, attempts);
}

/* Has the same answer at both ends. */
static const struct attempt anywhere[] = {
    {"query-migrate", NULL, NULL, NULL, NULL},
    {HMP, "info registers", NULL, NULL, NULL},
    {HMP, "info block", NULL, NULL, NULL},
    {HMP, "info qtree", NULL, NULL, NULL},
    {HMP, "xp /2x 0x2000000", NULL, NULL, NULL},
    {"migrate-pause", NULL, "postcopy-active", NULL, NULL},
    {"migrate-recover", "{'uri':'tcp:127.0.0.1:1'}", "postcopy", NULL, NULL},
    {"migrate-set-parameters", "{'announce-rounds':5}", NULL, NULL, NULL},
    {"object-add", "{'qom-type':'memory-backend-ram','id':'m1','size':1048576}", NULL, NULL, NULL},
    {"object-del", "{'id':'m1'}", NULL, NULL, NULL},
    {"blockdev-add", "{'driver':'null-co','node-name':'n0','size':1048576}", NULL, NULL, NULL},
    {"blockdev-mirror", "{'job-id':'j0','device':'disk','target':'n0','sync':'full'}", NULL,
     "BLOCK_JOB_READY", "can't be a backing child"},
    {"block-job-cancel", "{'device':'j0'}", NULL, "BLOCK_JOB_COMPLETED", "not found"},
    {"blockdev-del", "{'node-name':'n0'}", NULL, NULL, NULL},
    {"nbd-server-start", "{'addr':{'type':'unix','data':{'path':'%/nbd'}}}", NULL, NULL, NULL},
    {"nbd-server-add", "{'device':'disk'}", NULL, NULL, NULL},
    {"nbd-server-stop", NULL, NULL, NULL, NULL},
    {"system_wakeup", NULL, "not in suspended state", NULL, NULL},
    {"pmemsave", "{'val':1048576,'size':65536,'filename':'%/part'}", NULL, NULL, NULL},
    {"blockdev-snapshot-sync", "{'device':'disk','snapshot-file':'%/overlay'}", NULL, NULL, NULL},
    {0}};

static void filling(void)
{
    pair_start(&machine);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
}

static void test_at_the_destination(void)
{
    static const struct attempt attempts[] = {
        {"stop", NULL, NULL, "STOP", NULL},
        {"cont", NULL, NULL, "RESUME", NULL},
        {"migrate-incoming", "{'uri':'tcp:127.0.0.1:1'}", "already been started", NULL, NULL},
        {"migrate_cancel", NULL, NULL, NULL, NULL},
        {"device_add", "{'driver':'virtio-rng-pci','id':'new','bus':'free'}", NULL, NULL, NULL},
        {"device_del", "{'id':'rng'}", NULL, NULL, NULL},
        {"balloon", "{'value':58720256}", NULL, "BALLOON_CHANGE", NULL},
        {"system_powerdown", NULL, NULL, "POWERDOWN", NULL},
        {"migrate-set-capabilities",
         "{'capabilities':[{'capability':'background-snapshot','state':true}]}", "not compatible",
         NULL, NULL},
        {"yank", "{'instances':[{'type':'migration'}]}", "not found", NULL, NULL},
        {"dump-guest-memory", "{'paging':false,'protocol':'file:%/dump'}", NULL, NULL, NULL},
        {0}};
    filling();
    vm_do(&vms[1], "balloon", json_pack("{s:i}", "value", 60 << 20)); /* a change to come */
    json_decref(vm_event(&vms[1], "BALLOON_CHANGE", NULL));
    give_all(&vms[1], anywhere);
    give_all(&vms[1], attempts);
    mover_ends(&sender, 0); /* the dump has touched every page */
    mover_ends(&receiver, 0);
    pair_moved("");
}

/* There, the VM behaves as on any host; the pages still come. */
static void test_reset_at_the_destination(void)
{
    filling();
    vm_do(&vms[1], "set-action", json_pack("{s:s}", "reboot", "reset")); /* not: end */
    give(&vms[1], &(struct attempt){"system_reset", NULL, NULL, "RESET", NULL});
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats); /* from its beginning on */
    struct mover quicker; /* if the guest has left it anything to do */
    mover_start(&quicker,
                (const char *[]){"set", "--max-bandwidth", "0", "--qmp", vms[1].tool, NULL});
    mover_wait(&quicker);
    pair_done();
}

/* The VM is sent on before all its pages have come: QEMU reads, and so fetches, every page. */
static void test_migrate_at_the_destination(void)
{
    filling();
    give(&vms[1], &(struct attempt){"migrate", "{'uri':'exec:cat >%/state'}", NULL, "STOP", NULL});
    pair_done();
    assert_false(vm_runs(&vms[0]));
}

/* ... also before QEMU's other settings are put back. */
static void test_migrate_before_the_settings_are_put_back(void)
{
    pair_start(NULL);
    pair_run_to("destination:filling", (const char *[]){"--max-bandwidth", "1M", NULL});
    give(&vms[1], &(struct attempt){"migrate", "{'uri':'exec:cat >/dev/null'}", NULL, NULL, NULL});
    mover_kill(&receiver, SIGCONT);
    mover_await_words(&receiver, "settings are not put back yet");
    pair_done();
    assert_false(mover_printed(&receiver, "no RAM"));
}

static void test_at_the_source(void)
{
    static const struct attempt attempts[] = {
        {"stop", NULL, NULL, NULL, NULL},
        {"cont", NULL, "not finalized yet", NULL, NULL},
        {"migrate", "{'uri':'exec:cat >%/state'}", "in progress", NULL, NULL},
        {"migrate-set-capabilities", "{'capabilities':[{'capability':'xbzrle','state':true}]}",
         "in progress", NULL, NULL},
        {"migrate-incoming", "{'uri':'tcp:127.0.0.1:1'}", "incoming", NULL, NULL},
        {"device_add", "{'driver':'virtio-rng-pci','id':'new','bus':'free'}", "while migrating",
         NULL, NULL},
        {"device_del", "{'id':'rng'}", "while migrating", NULL, NULL},
        {"dump-guest-memory", "{'paging':false,'protocol':'file:%/dump'}", "in progress", NULL,
         NULL},
        {"balloon", "{'value':58720256}", NULL, NULL, NULL},
        {"system_powerdown", NULL, NULL, NULL, NULL},
        {"migrate-set-capabilities",
         "{'capabilities':[{'capability':'background-snapshot','state':true}]}", "in progress",
         NULL, NULL},
        {0}};
    filling();
    give_all(&vms[0], anywhere);
    give_all(&vms[0], attempts);
    assert_false(vm_runs(&vms[0]));
    pair_filled();
}

/* Its pages are served by the tool from then on. */
static void test_quit_at_the_source(void)
{
    filling();
    give(&vms[0], &(struct attempt){"quit", NULL, NULL, NULL, NULL});
    vm_kill(&vms[0]);
    mover_await_words(&sender, "pages are held here");
    pair_filled();
}

static void test_sigterm_at_the_source(void)
{
    filling();
    assert_int_equal(kill(vms[0].pid, SIGTERM), 0);
    mover_await_words(&sender, "pages are held here");
    vm_kill(&vms[0]);
    pair_filled();
}

/* ------------------------------------------------------------ before the commit */

/* QEMU continues the VM, and gives no reason. */
static void test_cancelled_at_the_source(void)
{
    static const struct attempt attempts[] = {
        {"migrate_cancel", NULL, NULL, NULL, NULL},
        {"yank", "{'instances':[{'type':'migration'}]}", NULL, NULL, NULL}};
    static const char *const said[] = {"another client has cancelled QEMU's migration",
                                       "QEMU's migration failed: "};
    for (size_t i = 0; i < 2; i++) {
        pair_start(NULL);
        pair_run_to("source:sending", NULL);
        give(&vms[0], &attempts[i]);
        mover_kill(&sender, SIGCONT);
        mover_ends(&sender, 1);
        mover_must_print(&sender, said[i]);
        mover_ends(&receiver, 1);
        pair_runs_at_the_source();
        mover_end_all(NULL);
    }
}

/* ------------------------------------------------------------ paused before its stop */

/* Before QEMU is asked for its migration, at the earliest and at the last moment. */
static const char *const before_the_stop[] = {"source:exposing", "source:compared"};

static void paused_at(const char *state)
{
    pair_start(NULL);
    pair_run_to(state, NULL);
    vm_do(&vms[0], "stop", NULL);
}

static void is_paused(struct vm *vm)
{
    json_t *status = vm_run(vm, "query-status", NULL);
    assert_string_equal(json_string_value(json_object_get(status, "status")), "paused");
    json_decref(status);
}

static void test_paused_before_its_stop(void)
{
    for (size_t i = 0; i < 2; i++) {
        paused_at(before_the_stop[i]);
        mover_kill(&sender, SIGCONT);
        pair_done();
        is_paused(&vms[1]);
        vm_do(&vms[1], "cont", NULL);
        pair_moved("");
        mover_end_all(NULL);
    }
}

/* If the migration fails, the VM stays as somebody has left it, also if the tool was killed. */
static void stays_paused(const char *state, bool killed)
{
    mover_stop_next("destination:mapped");
    paused_at(state);
    mover_kill(&sender, SIGCONT);
    mover_await_stop(&receiver);
    mover_kill(&sender, killed ? SIGKILL : SIGINT);
    mover_kill(&receiver, SIGKILL);
    if (killed)
        mover_await_watchdog(&sender, "does not run here, and is left so (QEMU says ");
    else
        mover_ends(&sender, 1);
    assert_false(vm_runs(&vms[0]));
    assert_false(mover_resumed(&vms[0]));
    vm_do(&vms[0], "cont", NULL);
    pair_runs_at_the_source();
    mover_end_all(NULL);
}

static void test_paused_when_it_fails(void)
{
    for (size_t i = 0; i < 2; i++) {
        stays_paused(before_the_stop[i], false);
        stays_paused(before_the_stop[i], true);
    }
}

/* ... or continued again: then it runs. */
static void test_paused_and_continued(void)
{
    mover_stop_next("destination:mapped");
    paused_at("source:exposing");
    vm_do(&vms[0], "cont", NULL);
    mover_kill(&sender, SIGCONT);
    mover_await_stop(&receiver);
    mover_kill(&sender, SIGINT);
    mover_kill(&receiver, SIGKILL);
    mover_ends(&sender, 1);
    assert_true(vm_runs(&vms[0]));
    pair_runs_at_the_source();
}

int main(void)
{
    static const struct vm_test tests[] = {VM_TEST(test_at_the_destination),
                                           VM_TEST(test_reset_at_the_destination),
                                           VM_TEST(test_migrate_at_the_destination),
                                           VM_TEST(test_migrate_before_the_settings_are_put_back),
                                           VM_TEST(test_at_the_source),
                                           VM_TEST(test_quit_at_the_source),
                                           VM_TEST(test_sigterm_at_the_source),
                                           VM_TEST(test_cancelled_at_the_source),
                                           VM_TEST(test_paused_before_its_stop),
                                           VM_TEST(test_paused_when_it_fails),
                                           VM_TEST(test_paused_and_continued),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
