/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-migrate between two hosts whose wire is cut for a while: two network namespaces and a veth
 * pair. Before the commit the VM stays, after it the VM waits and goes on, also where strangers
 * beset the receiver.
 */
#include "tests/fixtures/mover.h"

#include "tests/fixtures/patience.h"
#include "tests/fixtures/strangers.h"

#include <dirent.h>
#include <fcntl.h>

#define LISTEN "tcp://10.77.31.2:0"
#define QUICK  "--set", quick(), "--set", "insecure=yes", "--encryption", "off"
#define BESET  "--set", "timeout_ms=3000", "--set", "unauthenticated=64"

/* A cut is noticed within this time; a handshake has to end within it, too. */
static const char *quick(void)
{
    static char option[32];
    if (!*option)
        snprintf(option, sizeof(option), "timeout_ms=%u", patience_ms(1000));
    return option;
}

#define STRANGERS      64 /* places for them */
#define OF_A_MIGRATION 64 /* descriptors of its connections, QEMU's memory and the journal */

static int shell(const char *command)
{
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Of this process alone, as the same test may run twice on a host. */
static const char *here(void)
{
    static char name[32];
    snprintf(name, sizeof(name), "ibx-move-a-%d", (int)getpid());
    return name;
}

static const char *there(void)
{
    static char name[32];
    snprintf(name, sizeof(name), "ibx-move-b-%d", (int)getpid());
    return name;
}

static int wire_remove(void **state)
{
    char command[256];
    (void)state;
    snprintf(command, sizeof(command), "ip netns del %s 2>/dev/null; ip netns del %s 2>/dev/null",
             here(), there());
    shell(command);
    return 0;
}

/* Not every sandbox may make network namespaces. */
static bool wire_make(void)
{
    char command[1024];
    wire_remove(NULL);
    snprintf(command, sizeof(command),
             "a=%s b=%s; ip netns add $a && ip netns add $b && "
             "ip link add wire netns $a type veth peer name wire netns $b && "
             "ip -n $a addr add 10.77.31.1/24 dev wire && "
             "ip -n $b addr add 10.77.31.2/24 dev wire && "
             "ip -n $a link set wire up && ip -n $b link set wire up && "
             "ip -n $a link set lo up && ip -n $b link set lo up",
             here(), there());
    return !shell(command);
}

static void wire(const char *state)
{
    char command[128];
    snprintf(command, sizeof(command), "ip -n %s link set wire %s", here(), state);
    assert_int_equal(shell(command), 0);
}

static int end(void **state)
{
    int rc = mover_end_all(state);
    wire_remove(state);
    return rc;
}

/* Both tools under way, one of them stopped at a state when one is given. */
static void begin(const char *stop_at, const char *bandwidth)
{
    if (!wire_make())
        skip();
    pair_start(NULL);
    if (stop_at)
        mover_stop_next(stop_at);
    mover_namespace = there();
    mover_receive(&receiver, &vms[1], LISTEN,
                  (const char *[]){QUICK, "--max-bandwidth", bandwidth, NULL});
    mover_namespace = here();
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){QUICK, NULL});
}

/* It says why a migration is broken, and this one is done. */
static void assert_no_sentence(const struct mover *of)
{
    json_t *last = mover_summary(of);
    assert_string_equal(json_string_value(json_object_get(last, "phase")), "done");
    assert_string_equal(json_string_value(json_object_get(last, "sentence")), "");
    json_decref(last);
}

/* Pages are still to come when the wire is cut, and it stays so until both have noticed. */
static void test_cut_while_filling(void)
{
    begin(NULL, HARDLY);
    mover_await(&receiver, "filling", 0);
    wire("down");
    mover_await(&sender, "reconnecting", 0);
    mover_await(&receiver, "reconnecting", 0);
    wire("up");
    mover_await(&receiver, "filling", 0);
    pair_filled();
    assert_no_sentence(&receiver);
    mover_must_print(&sender, "guest RAM is not encrypted between this host and 10.77.31.2:");
    mover_must_print(&receiver, "guest RAM is not encrypted between this host and 10.77.31.1:");
}

/* Cut twice, and the tool on one side is killed while the wire is down; the record says that
 * migrations need no key. */
static void test_cut_and_killed(void)
{
    begin(NULL, HARDLY);
    mover_await(&receiver, "filling", 0);
    wire("down");
    mover_await(&sender, "reconnecting", 0);
    mover_kill(&receiver, SIGKILL);
    wire("up");
    mover_namespace = there();
    mover_start(&receiver, (const char *[]){"recover", "--qmp", vms[1].tool, "--json", "--set",
                                            quick(), NULL});
    pair_done();
    pair_moved("");
}

/* COMMIT itself is lost on the wire: sent again when the wire is back. */
static void test_cut_at_the_commit(void)
{
    begin("source:committed", "0");
    mover_await_stop(&sender);
    wire("down");
    mover_kill(&sender, SIGCONT);
    mover_await(&sender, "reconnecting", 0);
    mover_await(&receiver, "reconnecting", 0);
    assert_int_equal(vm_beats(&vms[1]), 0);
    wire("up");
    pair_done();
    pair_moved("");
}

#define SHORT    "timeout_ms=150" /* 60 of these */
#define UNTIL_ON "for 9 s "

/* A host that is off answers nothing, unlike one where nobody listens, and the source cannot know
 * whether the VM runs there. It ends and says so, and the operator, who knows, takes the VM back.
 */
static void test_gone_at_the_commit(void)
{
    begin("source:committed", "0");
    mover_await_stop(&sender);
    wire("down");
    mover_kill(&sender, SIGCONT);
    mover_await(&sender, "reconnecting", 0);
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGKILL);
    vm_kill(&vms[1]);
    struct mover *left = MOVER_RUN(3, "recover", "--qmp", vms[0].tool, "--set", SHORT);
    mover_must_print(left, UNTIL_ON);
    mover_must_print(left, "has not said whether the VM runs there, and here it is stopped");
    mover_must_print(left,
                     "and then ib-migrate rollback here restarts the VM from where it stopped");
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", "--set", SHORT);
    pair_runs_at_the_source();
}

/* The VM is known to run there, and the pages that it needs are here: the source waits, and says
 * so. */
static void test_gone_while_filling(void)
{
    begin(NULL, HARDLY);
    mover_await(&receiver, "filling", 0);
    mover_await(&sender, "filling", 0);
    wire("down");
    mover_await(&sender, "reconnecting", 0);
    mover_kill(&sender, SIGKILL);
    mover_start(&sender,
                (const char *[]){"recover", "--qmp", vms[0].tool, "--json", "--set", SHORT, NULL});
    mover_await_words(&sender, "has not answered, where the VM is and may wait for pages");
    wire("up");
    mover_await_words(&receiver, "the source is back");
    mover_kill(&sender, SIGKILL); /* its timeout is too short for a busy machine */
    mover_start(&sender, (const char *[]){"recover", "--qmp", vms[0].tool, "--json", QUICK, NULL});
    mover_await(&receiver, "filling", 0);
    pair_filled();
}

static struct mover *stopped(const char *state)
{
    struct mover *which = strncmp(state, "source", 6) ? &receiver : &sender;
    print_message("%s\n", state);
    begin(state, "0");
    mover_await_stop(which);
    return which;
}

/* A destination that cannot know whether COMMIT was sent waits until it is interrupted. */
static void interrupt_receiver(void)
{
    mover_kill(&receiver, SIGINT);
    mover_await_words(&receiver, "never ran here");
    mover_kill(&receiver, SIGINT);
    mover_ends(&receiver, 1);
}

/* Before the commit the VM goes on at the source, and never runs at the destination. The
 * destination may have all of the state or not when it goes on: the source went on sending until
 * the wire was cut. */
static void cut_before_the_commit(const char *const *states)
{
    for (; *states; states++) {
        struct mover *which = stopped(*states);
        wire("down");
        mover_kill(which, SIGCONT);
        mover_ends(&sender, 1);
        bool may_have_all =
            !strcmp(*states, "destination:ready") || !strcmp(*states, "destination:mapped");
        if (!may_have_all)
            mover_ends(&receiver, 1);
        else if (!mover_ends_or_prints(&receiver, 1, "waits for the source to be back"))
            interrupt_receiver();
        pair_stayed();
        end(NULL);
    }
}

static void test_cut_before_the_commit(void)
{
    cut_before_the_commit(
        (const char *[]){"source:starting", "source:sending", "destination:mapped", NULL});
}

static void test_cut_at_more_states_before_the_commit(void)
{
    cut_before_the_commit((const char *[]){"source:exposing", "source:stopped",
                                           "destination:joining", "destination:ready", NULL});
}

/* With all but COMMIT. The destination cannot know whether that was sent, and waits. */
static void test_cut_when_loaded(void)
{
    stopped("destination:waiting");
    wire("down");
    mover_kill(&receiver, SIGCONT);
    mover_ends(&sender, 1);
    mover_await(&receiver, "reconnecting", 0);
    wire("up"); /* the same VM once more: what keeps it here, and the remedy */
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){QUICK, NULL});
    mover_ends(&sender, 1);
    mover_must_print(&sender, "waits here for its source to hand it over");
    mover_must_print(&sender, "interrupt its ib-migrate here");
    interrupt_receiver();
    pair_stayed();
}

/* After the commit the VM is at the destination, and waits for the wire if it has to. */
static void test_cut_after_the_commit(void)
{
    static const char *const states[] = {"source:serving", "destination:resuming",
                                         "destination:filling", "destination:complete"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        struct mover *which = stopped(states[i]);
        wire("down");
        mover_kill(which, SIGCONT);
        mover_await(&sender, "reconnecting", 0);
        mover_await(&receiver, "reconnecting", 0);
        wire("up");
        pair_done();
        pair_moved("");
        end(NULL);
    }
}

static int count_fds(const struct mover *m)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)m->pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void check_fds(int before)
{
    const int more = count_fds(&receiver) - before;
    if (more > STRANGERS + OF_A_MIGRATION)
        fail_msg("the receiver has %d descriptors more than when it began to wait", more);
}

static void make_key_file(char *path, size_t size)
{
    snprintf(path, size, "%s/keys", mover_folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "alice:%032d\nbob:%032d\n", 1, 2) > 0);
    close(fd);
}

/* The source gave way only because others were quicker: the answer that says so may be lost with
 * the connection. */
static void gave_way(void)
{
    static const char *const reasons[] = {"try again", "it closed the connection",
                                          "no answer in time"};
    for (unsigned i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (mover_printed(&sender, reasons[i]))
            return;
    }
    mover_must_print(&sender, reasons[0]);
}

/* Until its host is known there, a source that has no processor for a moment gives way to
 * newcomers, and its operator tries again. */
static void send_among_strangers(const char *keys)
{
    bool again = false;
    mover_namespace = here();
    for (unsigned left = 10; left; left--) {
        if (again)
            gave_way();
        mover_send(&sender, &vms[0], receiver.uri,
                   (const char *[]){BESET, "--key-file", keys, "--set", "name=bob", NULL});
        again = mover_ends_or_prints(&sender, 1, "\"filling\"");
        if (!again)
            return;
    }
    fail_msg("it never got in");
}

/* Strangers come before the source, from its host too. It gets in; its link is cut after the commit
 * and made again; and both tools, which have died, find each other again with the keys and the
 * names of their records alone. */
static void test_cut_among_strangers(void)
{
    char keys[96];
    if (!wire_make())
        skip();
    pair_start(NULL);
    make_key_file(keys, sizeof(keys));
    mover_namespace = there();
    mover_receive(&receiver, &vms[1], LISTEN,
                  (const char *[]){BESET, "--key-file", keys, "--allow", "bob", "--max-bandwidth",
                                   HARDLY, NULL});
    const int before = count_fds(&receiver);
    const struct strangers strangers = {.to = "10.77.31.2",
                                        .from = "10.77.31.1",
                                        .port = (uint16_t)atoi(strrchr(receiver.uri, ':') + 1),
                                        .addresses = 1,
                                        .namespace = here()};
    pid_t crowd = strangers_begin(&strangers);
    check_fds(before);
    send_among_strangers(keys);
    mover_await(&receiver, "filling", 0);
    check_fds(before);
    for (int killed = 0; killed < 2; killed++) {
        wire("down");
        mover_await(&sender, "reconnecting", 0);
        if (!killed)
            mover_await(&receiver, "reconnecting", 0);
        wire("up");
        if (killed) {
            mover_kill(&sender, SIGKILL);
            mover_kill(&receiver, SIGKILL);
            mover_namespace = here();
            mover_start(&sender,
                        (const char *[]){"recover", "--qmp", vms[0].tool, "--json", BESET, NULL});
            mover_namespace = there();
            mover_start(&receiver, (const char *[]){"recover", "--qmp", vms[1].tool, "--json",
                                                    BESET, "--max-bandwidth", HARDLY, NULL});
        }
        mover_await(&receiver, "filling", 0);
        mover_await(&sender, "filling", 0);
        check_fds(before);
    }
    pair_filled();
    strangers_end(crowd);
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {VM_TEST(test_cut_while_filling),
                                           VM_TEST(test_cut_and_killed),
                                           VM_TEST(test_cut_among_strangers),
                                           VM_TEST(test_cut_at_the_commit),
                                           VM_TEST(test_gone_at_the_commit),
                                           VM_TEST(test_gone_while_filling),
                                           VM_TEST(test_cut_before_the_commit),
                                           VM_TEST(test_cut_at_more_states_before_the_commit),
                                           VM_TEST(test_cut_when_loaded),
                                           VM_TEST(test_cut_after_the_commit),
                                           {0}};
    return vm_tests(tests, end);
}
