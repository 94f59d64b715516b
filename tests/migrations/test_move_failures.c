/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What can go wrong while ib-migrate moves a VM: both tools killed, a QEMU that ends, tools that
 * stand still, a destination that cannot take it. (One tool killed at each state:
 * test_move_killed.c.) Afterwards the guest is alive and right on exactly one side.
 *
 * A tool is caught at a state by IBX_MOVE_STOP_AT, which makes it stop itself there.
 */
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <dirent.h>
#include <fcntl.h>

#define LOCKED_OUT 100 /* looks: so long nobody waits for a lock that is given back */

/* Both tools, of which one stops at a state: it is killed there. */
static void killed_at(const char *state)
{
    pair_start(NULL);
    mover_kill(pair_run_to(state, NULL), SIGKILL);
}

/* ------------------------------------------------------------ before the commit */

static void test_interrupted(void)
{
    pair_start(NULL);
    pair_run_to("source:stopped", NULL);
    mover_kill(&sender, SIGINT);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "cancelled");
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* A terminal is closed. */
static void test_hung_up(void)
{
    pair_start(NULL);
    pair_run_to("source:stopped", NULL);
    mover_kill(&sender, SIGHUP);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "cancelled");
    mover_ends(&receiver, 1);
    pair_stayed();
    mover_end_all(NULL);

    pair_filling(NULL, NULL);
    mover_kill(&sender, SIGHUP);
    mover_kill(&receiver, SIGHUP);
    pair_filled();
    assert_false(mover_printed(&sender, "interrupt once more"));
    assert_false(mover_printed(&receiver, "interrupt once more"));
}

/* The sender prints the receiver's sentence, not that its connections have ended. */
static void test_interrupted_at_the_destination(void)
{
    static const char *const states[] = {"source:exposing", "source:starting", "source:stopped",
                                         "source:sending"};
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        pair_start(NULL);
        pair_run_to(states[i], NULL);
        mover_kill(&receiver, SIGINT);
        mover_ends(&receiver, 1);
        mover_kill(&sender, SIGCONT);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "the destination gave up: cancelled");
        pair_stayed();
        mover_end_all(NULL);
    }
}

static void test_cancelled(void)
{
    pair_start(NULL);
    pair_receive(NULL);
    mover_stop_next("destination:ready");
    mover_kill(&receiver, SIGKILL);
    pair_receive(NULL);
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){"--set", "timeout_ms=60000", NULL});
    mover_await_stop(&receiver);
    MOVER_RUN(0, "cancel", "--qmp", vms[0].tool);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&sender, 1);
    mover_ends(&receiver, 1);
    pair_stayed();
}

/* A receiver is known before its record is written, which takes as long as its disk does. */
static void test_asked_before_its_record(void)
{
    pair_start(NULL);
    pair_run_to("destination:named", NULL);
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[1].tool),
                     "that waits for a VM does not answer");
    mover_kill(&receiver, SIGCONT);
    pair_done();
    pair_moved("");
}

/* ------------------------------------------------------------ after the commit */

/* Reads /proc/TID/NAME. */
static void read_proc(pid_t tid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)tid, name);
    FILE *file = fopen(path, "re");
    text[file ? fread(text, 1, size - 1, file) : 0] = 0;
    if (file)
        fclose(file);
}

/* Where in the kernel a thread waits is in `stack` only if a signal is pending that does not end
 * the wait: a processor of a VM under KVM then tries again and again. */
static bool a_thread_waits_for_a_page(pid_t pid)
{
    char path[64], where[64], stack[4096];
    bool waits = false;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; !waits && (entry = readdir(dir));) {
        const pid_t tid = (pid_t)atoi(entry->d_name);
        read_proc(tid, "wchan", where, sizeof(where));
        read_proc(tid, "stack", stack, sizeof(stack));
        waits = strstr(where, "userfault") || strstr(stack, "userfault");
    }
    closedir(dir);
    return waits;
}

/* Has QEMU's main thread read a page that has not come: until then it answers nobody. A processor
 * of the VM that waits for a page while it holds QEMU's lock, or which the main thread must stop
 * first, is as good: the main thread waits for that. */
static void block_main_thread(void)
{
    char line[64], where[64] = "";
    const uint64_t deadline = vm_soon();
    int from = open(vms[0].ram, O_RDONLY | O_CLOEXEC), to = open(vms[1].ram, O_RDONLY | O_CLOEXEC);
    off_t at = ((off_t)VM_RAM_MIB << 20) - 4096; /* others come in their order, from the first on */
    while (lseek(from, at, SEEK_DATA) != at || lseek(to, at, SEEK_HOLE) != at) {
        at -= 4096;
        assert_true(at > 0);
    }
    close(from);
    close(to);
    snprintf(line, sizeof(line), "xp /1xb 0x%llx", (unsigned long long)at);
    vm_hmp_blocks(&vms[1], line);
    for (unsigned locked_out = 0; !strstr(where, "userfault") && locked_out < LOCKED_OUT;) {
        read_proc(vms[1].pid, "wchan", where, sizeof(where));
        bool waits = strstr(where, "futex") && a_thread_waits_for_a_page(vms[1].pid);
        locked_out = waits ? locked_out + 1 : 0;
        if (ibx_now_ns() >= deadline)
            fail_msg("QEMU's main thread waits in %s", where);
        poll(NULL, 0, 2);
    }
}

/* The monitor cannot answer before the pages come: recover uses the record alone, in RUNNING
 * and before. */
static void test_destination_killed_with_a_silent_monitor(void)
{
    for (int known = 0; known < 2; known++) {
        print_message("%s\n", known ? "running" : "may-run");
        pair_start(NULL);
        if (!known)
            mover_stop_next("destination:filling"); /* before it is written */
        pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
        if (known)
            mover_await(&receiver, "filling", 0);
        else
            mover_await_stop(&receiver);
        mover_kill(&receiver, SIGKILL);
        block_main_thread();
        pair_recover(&receiver);
        mover_ends(&receiver, 0);
        mover_must_print(&receiver, "its monitor does not answer");
        mover_ends(&sender, 0);
        vm_do(&vms[1], "query-status", NULL); /* it answers again */
        pair_moved("");
        mover_end_all(NULL);
    }
}

/* An operator who begins anew where recover is needed is told so, and is not told to end a QEMU
 * that the VM needs. */
static void begun_anew(const char *const *arguments)
{
    struct mover again = {0};
    mover_start(&again, arguments);
    mover_ends(&again, 1);
    mover_must_print(&again, "an earlier migration of this VM is not over");
    mover_must_print(&again, "ib-migrate recover");
    assert_false(mover_printed(&again, "restart it"));
}

/* Both die, each is started again, and the VM has every page in the end. */
static void test_both_killed(void)
{
    killed_at("destination:filling");
    mover_kill(&sender, SIGKILL);
    begun_anew((const char *[]){"send", "--qmp", vms[0].tool, "tcp://127.0.0.1:1", NULL});
    begun_anew(
        (const char *[]){"receive", "--qmp", vms[1].tool, "--listen", "tcp://127.0.0.1:0", NULL});
    pair_recover(&sender);
    pair_recover(&receiver);
    pair_done();
    pair_moved("");
}

/* A second send while the first works is told so, and not to recover or roll back. */
static void test_a_second_send(void)
{
    struct mover again = {0};
    char process[48];
    pair_start(NULL);
    pair_run_to("source:sending", NULL);
    snprintf(process, sizeof(process), "another ib-migrate (process %d)", (int)sender.pid);
    ibx_qmp_close(vms[0].qmp);
    vms[0].qmp = NULL; /* its monitor, which serves one client */
    mover_start(&again,
                (const char *[]){"send", "--qmp", vms[0].socket, "tcp://127.0.0.1:1", NULL});
    mover_ends(&again, 1);
    mover_must_print(&again, process);
    mover_must_print(&again, "wait for its end");
    assert_false(mover_printed(&again, "recover"));
    assert_false(mover_printed(&again, "rollback"));
    vm_ok(ibx_qmp_connect(vms[0].socket, vm_soon(), &vms[0].qmp, &vm_error));
    mover_kill(&sender, SIGCONT);
    pair_done();
    pair_moved("");
}

static void still_paused(void)
{
    assert_false(vm_runs(&vms[0]));
    vm_do(&vms[0], "cont", NULL);
}

/* The source's tool is gone after its commit, and the destination gives up for itself. */
static void given_up_alone(bool paused)
{
    pair_start(NULL);
    if (paused)
        vm_do(&vms[0], "stop", NULL);
    pair_run_to("source:committed", NULL);
    mover_kill(&sender, SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    mover_kill(&receiver, SIGINT);
    mover_await_words(&receiver, "interrupt to end");
}

/* The destination waits for COMMIT and has all pages: it takes another link all the same. */
static void test_killed_at_the_commit_with_all_pages(void)
{
    pair_start(NULL);
    mover_kill(pair_run_to("source:committed", (const char *[]){"--stand-still", NULL}), SIGKILL);
    mover_await(&receiver, "reconnecting", 0);
    pair_recover(&sender);
    pair_done();
    pair_moved("");
}

/* The destination tells a source that comes back. A VM that was paused before the move stays
 * paused. */
static void test_destination_gives_up_while_the_source_is_away(void)
{
    for (int paused = 0; paused < 2; paused++) {
        given_up_alone(paused);
        pair_recover(&sender);
        mover_ends(&sender, 1);
        mover_must_print(&sender, "given up before the VM ran there");
        mover_ends(&receiver, 1);
        if (paused)
            still_paused();
        pair_stayed();
        mover_end_all(NULL);
    }
}

/* ... also when it is taken back. */
static void test_rollback_of_a_paused_vm(void)
{
    given_up_alone(true);
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
    const struct mover *rollback = MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    mover_must_print(rollback, "as it was when it stopped, paused");
    mover_must_print(rollback, "rolled back, it is here again, paused as it was");
    still_paused();
    pair_stayed();
}

/* ... and when it was paused by somebody since its migration began, and its tool and the watchdog
 * of that are killed: the record is all that is left. */
static void test_rollback_of_a_vm_paused_meanwhile(void)
{
    char path[64];
    int watchdog = 0;
    pair_start(NULL);
    pair_run_to("source:exposing", NULL);
    mover_kill(&receiver, SIGSTOP); /* the source waits until it is ready */
    vm_do(&vms[0], "stop", NULL);
    mover_kill(&sender, SIGCONT);
    mover_await_asleep(&sender); /* it has heard of the pause */
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)sender.pid, (int)sender.pid);
    FILE *children = fopen(path, "re");
    assert_non_null(children);
    assert_int_equal(fscanf(children, "%d", &watchdog), 1);
    fclose(children);
    assert_int_equal(kill(watchdog, SIGKILL), 0);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    const struct mover *rollback = MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    mover_must_print(rollback, "rolled back, it is here again, paused as it was");
    still_paused();
    pair_stayed();
}

/* While the VM runs at the destination it cannot be taken back. */
static void test_no_rollback_of_a_running_vm(void)
{
    killed_at("source:serving");
    mover_await(&receiver, "reconnecting", 0);
    struct mover *rollback = MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    mover_must_print(rollback, "the VM is there");
    pair_recover(&sender);
    pair_done();
    pair_moved("");
}

/* Both tools are dead, and the VM runs there: QEMU, whose disk is in use, refuses a rollback, after
 * which the move can still be gone on with. */
static void test_a_refused_rollback(void)
{
    char file[] = "/tmp/ibx-disk-XXXXXX", drive[64];
    int fd = mkstemp(file);
    assert_true(fd >= 0 && !ftruncate(fd, 1 << 20));
    close(fd);
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=virtio", file);
    pair_filling(&(struct vm_options){.append = "", .extra = {"-drive", drive}}, NULL);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_recover(&receiver);
    mover_await_words(&receiver, "waiting at ");
    pair_recover(&sender);
    pair_done();
    pair_moved("");
    unlink(file);
}

/* The tool prints once that nothing comes, and once that something comes again. */
static void stands_still(struct mover *who, struct mover *other, const char *means)
{
    mover_kill(who, SIGSTOP);
    mover_await_words(other, "nothing has come from");
    mover_must_print(other, means);
    mover_await_silent(other);
    mover_kill(who, SIGCONT);
    mover_await_words(other, "sends again");
}

/* A tool that stands still is not a dead one: the VM waits, and goes on. */
static void test_stopped_for_a_while(void)
{
    pair_timeout = PAIR_TIMEOUT_SHORT;
    pair_filling(NULL, NULL);
    stands_still(&receiver, &sender, "the VM is there, and may wait");
    mover_kill(&sender, SIGSTOP);
    /* With a limit the receiver would wait longer, unless the VM does. */
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    stands_still(&sender, &receiver, "the VM waits where it needs a page");
    const unsigned long before = vm_beats(&vms[1]);
    pair_done();
    vm_wait_beats(&vms[1], before + 1);
    pair_moved("");
    pair_timeout = PAIR_TIMEOUT;
}

/* Nobody waits for a source that stands still before anything has happened, and it keeps its VM. */
static void test_source_stands_still_early(void)
{
    char uri[64];
    pair_start(NULL);
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:0?timeout_ms=%u", patience_ms(1000));
    mover_receive(&receiver, &vms[1], uri, NULL);
    mover_stop_next("source:exposing");
    pair_send(NULL);
    mover_await_stop(&sender);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "nothing has come from");
    pair_stayed();
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 1);
    pair_stayed();
}

/* A destination's QEMU that stands still cannot be compared. */
static void test_destination_qemu_stands_still(void)
{
    pair_timeout = PAIR_TIMEOUT_SHORT;
    pair_start(NULL);
    pair_receive(NULL);
    kill(vms[1].pid, SIGSTOP);
    pair_send(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "see whether its ib-migrate or its QEMU is stopped");
    kill(vms[1].pid, SIGCONT);
    pair_stays();
    pair_timeout = PAIR_TIMEOUT;
}

/* The source's QEMU is not needed after the commit. */
static void test_source_qemu_ends(void)
{
    pair_start(NULL);
    pair_run((const char *[]){"--max-bandwidth", "1M", NULL});
    mover_await(&sender, "filling", 0);
    vm_kill(&vms[0]);
    pair_done();
    pair_moved("");
}

/* ... but without both of them nobody has the VM. Each side says what it knows about that. */
static void test_destination_qemu_ends_after_the_switch(void)
{
    pair_filling(NULL, NULL);
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "where its QEMU has ended: the QEMU here still has the VM as it was");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool), "its QEMU there has ended: ");
    struct mover *recover = MOVER_RUN(6, "recover", "--qmp", vms[0].tool, TIMED);
    mover_must_print(recover, "ib-migrate rollback");
    assert_false(mover_printed(recover, "reports: ")); /* this tool has heard nothing */
    vm_kill(&vms[0]);
    mover_must_print(MOVER_RUN(6, "recover", "--qmp", vms[0].tool, TIMED), "start it from its");
    mover_must_print(MOVER_RUN(0, "status", "--qmp", vms[0].tool), "start it from its disk");
    MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
}

/* The source reads the destination's last message when the destination has long ended. */
static void test_destination_qemu_ends_while_the_source_is_busy(void)
{
    pair_filling(NULL, NULL);
    mover_kill(&sender, SIGSTOP);
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_kill(&sender, SIGCONT);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "where its QEMU has ended: the QEMU here still has the VM as it was");
}

/* Neither the QEMU nor the tool is there any more: nobody tells the source. */
static void test_nobody_is_there(void)
{
    pair_filling(NULL, NULL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    mover_await_words(&sender, "Connection refused");
    mover_kill(&sender, SIGKILL);
    struct mover *left = MOVER_RUN(3, "recover", "--qmp", vms[0].tool, "--set", "timeout_ms=100");
    mover_must_print(left, "for 6 s nobody has listened at");
    mover_must_print(left, "ib-migrate rollback here restarts the VM from where it stopped");
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

/* The destination's QEMU crashes before the switch: the VM stays. */
static void test_destination_qemu_ends(void)
{
    pair_start(NULL);
    pair_run_to("destination:mapped", NULL);
    vm_kill(&vms[1]);
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 1);
    mover_ends(&sender, 1);
    pair_stayed();
}

/* QEMU does not tell which clock it has. Its command line may not tell all: a file has options. */
static void test_a_state_that_qemu_cannot_load(void)
{
    struct vm_options options = {.accel = "tcg,thread=single",
                                 .append = "",
                                 .extra = {"-icount", "shift=7", "-readconfig", "/dev/null"}};
    mover_begin();
    vm_start(&vms[0], &options);
    vm_start(&vms[1], &(struct vm_options){.accel = options.accel, .append = "", .incoming = true});
    vm_wait_beats(&vms[0], pair_beats);
    pair_run(NULL);
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "has not loaded the VM: see its log");
    mover_ends(&sender, 1);
    pair_stayed();
}

/* ------------------------------------------------------------ refused */

static void refused(const struct vm_options *from, const struct vm_options *to, const char *words)
{
    mover_begin();
    vm_start(&vms[0], from);
    vm_start(&vms[1], to);
    vm_wait_beats(&vms[0], pair_beats);
    pair_receive(NULL);
    struct mover *check = MOVER_RUN(1, "check", "--qmp", vms[0].tool, receiver.uri, TIMED);
    mover_must_print(check, words);
    pair_send(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    pair_stayed();
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
}

/* A file of this process alone, which vm_available() removes when a test has failed. */
static void shared_place(char *place, size_t size)
{
    snprintf(place, size, "/dev/shm/ibx-vm-%d-own", (int)getpid());
}

static void test_too_small(void)
{
    char place[64], ram[192];
    shared_place(place, sizeof(place));
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem1,size=32M,mem-path=%s,share=on", place);
    refused(&(struct vm_options){.append = ""},
            &(struct vm_options){
                .append = "",
                .incoming = true,
                .extra = {"-m", "32", "-object", ram, "-machine", "memory-backend=mem1"}},
            "mem");
    unlink(place);
}

/* Both QEMUs on one file: the running VM's memory would be emptied. */
static void test_same_file(void)
{
    char place[64], ram[192];
    shared_place(place, sizeof(place));
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=%uM,mem-path=%s,share=on",
             VM_RAM_MIB, place);
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = "", .ram = ram});
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true, .ram = ram});
    mover_must_print(MOVER_RUN(1, "receive", "--qmp", vms[1].tool, "--listen", "tcp://127.0.0.1:0"),
                     "uses /dev/shm");
    assert_true(vm_runs(&vms[0]));
    unlink(place);
}

static void test_other_machine(void)
{
    refused(&(struct vm_options){.append = ""},
            &(struct vm_options){.append = "", .machine = "pc", .incoming = true}, "machine");
}

static void test_other_devices(void)
{
    refused(&(struct vm_options){.append = "", .extra = {"-device", "virtio-rng-pci,addr=5"}},
            &(struct vm_options){.append = "", .incoming = true}, "lacks virtio-rng-pci");
    mover_end_all(NULL);
    refused(&(struct vm_options){.append = ""},
            &(struct vm_options){.append = "",
                                 .incoming = true,
                                 .extra = {"-device", "pcie-root-port,id=p,addr=4", "-device",
                                           "virtio-rng-pci,bus=p"}},
            "virtio-rng-pci @ q35-pcihost/04.0/00.0");
}

static void test_other_processors(void)
{
    refused(&(struct vm_options){.append = ""},
            &(struct vm_options){.append = "", .two = true, .incoming = true}, "-smp");
    mover_end_all(NULL);
    refused(&(struct vm_options){.append = ""},
            &(struct vm_options){.append = "", .incoming = true, .extra = {"-cpu", "Nehalem"}},
            "-cpu");
}

/* Only the hosts see the differences: other names, another order, another network, a monitor. */
static void test_the_same_hardware(void)
{
    const struct vm_options from = {.append = "",
                                    .extra = {"-netdev", "hubport,id=a,hubid=0", "-device",
                                              "virtio-net-pci,netdev=a,id=one,addr=6", "-device",
                                              "virtio-rng-pci,addr=7", "-device",
                                              "pcie-root-port,id=root,addr=8", "-device",
                                              "virtio-balloon-pci,bus=root"}};
    const struct vm_options to = {.append = "",
                                  .incoming = true,
                                  .extra = {"-device", "pcie-root-port,id=other,addr=8", "-device",
                                            "virtio-balloon-pci,bus=other", "-device",
                                            "virtio-rng-pci,addr=7,id=two", "-netdev",
                                            "socket,id=b,listen=127.0.0.1:0", "-device",
                                            "virtio-net-pci,netdev=b,addr=6", "-monitor", "null"}};
    mover_begin();
    vm_start(&vms[0], &from);
    vm_start(&vms[1], &to);
    vm_wait_beats(&vms[0], pair_beats);
    pair_run(NULL);
    pair_done();
    pair_moved("");
}

static void test_check_says_yes(void)
{
    pair_start(NULL);
    pair_receive(NULL);
    MOVER_RUN(0, "check", "--qmp", vms[0].tool, receiver.uri, TIMED);
    pair_send(NULL);
    pair_done();
    pair_moved("");
}

static void test_wrong_key(void)
{
    char a[128], b[128], command[512];
    pair_start(NULL);
    snprintf(a, sizeof(a), "%s/a", mover_folder);
    snprintf(b, sizeof(b), "%s/b", mover_folder);
    snprintf(command, sizeof(command),
             "umask 077; openssl rand -hex 32 > %s; openssl rand -hex 32 > %s", a, b);
    assert_int_equal(system(command), 0);
    pair_receive((const char *[]){"--key-file", a, NULL});
    pair_send((const char *[]){"--key-file", b, NULL});
    mover_ends(&sender, 1);
    mover_must_print(&sender, "key");
    pair_stayed();
    pair_send((const char *[]){"--key-file", a, NULL});
    pair_done();
    pair_moved("");
}

static void test_nobody_there(void)
{
    pair_start(NULL);
    mover_send(&sender, &vms[0], "tcp://127.0.0.1:1", (const char *[]){TIMED, NULL});
    mover_ends(&sender, 1);
    pair_stayed();
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {
        VM_TEST(test_interrupted),
        VM_TEST(test_hung_up),
        VM_TEST(test_interrupted_at_the_destination),
        VM_TEST(test_cancelled),
        VM_TEST(test_asked_before_its_record),
        VM_TEST(test_destination_killed_with_a_silent_monitor),
        VM_TEST(test_both_killed),
        VM_TEST(test_a_second_send),
        VM_TEST(test_killed_at_the_commit_with_all_pages),
        VM_TEST(test_destination_gives_up_while_the_source_is_away),
        VM_TEST(test_rollback_of_a_paused_vm),
        VM_TEST(test_rollback_of_a_vm_paused_meanwhile),
        VM_TEST(test_no_rollback_of_a_running_vm),
        VM_TEST(test_a_refused_rollback),
        VM_TEST(test_stopped_for_a_while),
        VM_TEST(test_source_stands_still_early),
        VM_TEST(test_destination_qemu_stands_still),
        VM_TEST(test_source_qemu_ends),
        VM_TEST(test_destination_qemu_ends_after_the_switch),
        VM_TEST(test_destination_qemu_ends_while_the_source_is_busy),
        VM_TEST(test_nobody_is_there),
        VM_TEST(test_destination_qemu_ends),
        VM_TEST(test_a_state_that_qemu_cannot_load),
        VM_TEST(test_too_small),
        VM_TEST(test_same_file),
        VM_TEST(test_other_machine),
        VM_TEST(test_other_devices),
        VM_TEST(test_other_processors),
        VM_TEST(test_the_same_hardware),
        VM_TEST(test_check_says_yes),
        VM_TEST(test_wrong_key),
        VM_TEST(test_nobody_there),
        {0}};
    return vm_tests(tests, mover_end_all);
}
