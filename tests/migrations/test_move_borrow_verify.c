/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Somebody changes a byte of a page on its way to where a VM is borrowed, over tcp without
 * encryption. The VM must not bring the wrong byte home: the migration is broken, the VM is paused
 * there, and goes on at the lender's from where it was stopped.
 *
 * A relay between the two tools looks for words of guest pages and changes one.
 */
#include "tests/fixtures/borrow.h"
#include "tests/fixtures/held_verifier.h"
#include "tests/fixtures/ram_file.h"
#include "tests/fixtures/tcp_relay.h"
#include "tests/migrations/guest/churn.h"

#include "common/clock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define SAMPLES 512u /* guest pages that are searched for: a piece of a stream may end in one */
#define WORDS   32u  /* bytes of each */
#define AT      1024 /* where they are in the page */
#define LOOK_MS 2
#define LEFT    (61 << 20) /* data that the guest never touches */

/* ------------------------------------------------------------ the relay */

/* Of the relay's process, shared with the test. */
static struct wire {
    atomic_bool armed, changed;
    unsigned samples;
    uint8_t words[SAMPLES][WORDS];
} * wire;

static void change_one(unsigned connection, bool to_receiver, uint8_t *bytes, size_t size)
{
    (void)connection;
    (void)to_receiver;
    for (unsigned i = 0; wire->armed && i < wire->samples && !wire->changed; i++) {
        uint8_t *at = memmem(bytes, size, wire->words[i], WORDS);
        if (!at)
            continue;
        at[WORDS / 2] ^= 0x40;
        wire->changed = true;
    }
}

static const struct tcp_relay relay = {.passes = change_one};

static int end(void **state)
{
    verifier_let_go();
    tcp_relay_end();
    return mover_end_all(state);
}

/* ------------------------------------------------------------ a borrowed VM */

/* A beat visits few pages, so that the VM needs others for a while. */
static const struct vm_options calm = {.append = "mib=16 beat=32", .extra = {"-no-shutdown"}};
static char key[128];

static void make_key(void)
{
    char command[256];
    snprintf(key, sizeof(key), "%s/key", mover_folder);
    snprintf(command, sizeof(command), "umask 077; openssl rand -hex 32 > %s", key);
    assert_int_equal(system(command), 0);
}

/* Notes words of pages that the guest churns: the VM stands still, and they stay as they are. */
static void take_samples(const struct vm *of)
{
    const unsigned pages = CHURN_MIB << 8, step = pages / SAMPLES;
    static const uint8_t zeros[WORDS];
    const int fd = open(of->ram, O_RDONLY | O_CLOEXEC);
    wire->samples = 0;
    for (unsigned page = step / 2; page < pages; page += step) {
        uint8_t *words = wire->words[wire->samples];
        assert_int_equal(pread(fd, words, WORDS, CHURN_BASE + page * 4096 + AT), WORDS);
        wire->samples += memcmp(words, zeros, WORDS) != 0;
    }
    close(fd);
    assert_true(wire->samples > SAMPLES / 2);
}

/* The tools of a borrowed VM, with the relay between them. The lender's is in the stop. */
static void lent_by_a_relay(const char *more)
{
    borrow_options = calm;
    pair_start(&calm);
    vm_wait_beats(&vms[0], (CHURN_MIB << 8) / 32 + 1); /* all of its pages */
    make_key();
    mover_receive(&receiver, &vms[1], TCP,
                  (const char *[]){"--key-file", key, "--set", "encryption=off", NULL});
    wire->armed = wire->changed = false;
    tcp_relay_begin(&receiver, &relay);
    mover_stop_next("source:sending");
    mover_start(&sender,
                (const char *[]){"borrow", receiver.uri, "--qmp", vms[0].tool, "--json", "--yes",
                                 TIMED, "--key-file", key, "--set", "encryption=off", more, NULL});
    mover_await_stop(&sender);
    take_samples(&vms[0]);
}

static void await_change(void)
{
    for (const uint64_t until = vm_soon(); !wire->changed; poll(NULL, 0, LOOK_MS))
        assert_true(ibx_now_ns() < until);
}

static void goes_on_at_the_lender(void)
{
    mover_await_words(&sender, "the migration is broken");
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the migration is broken: pages ");
    mover_must_print(&sender, "they were changed on their way");
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "the migration is broken: pages ");
    mover_must_print(&receiver, "was paused");
    assert_false(vm_runs(&vms[1]));
    assert_false(vm_runs(&vms[0]));
    vm_end(&vms[1]);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, calm.append);
}

/* ------------------------------------------------------------ tests */

/* A page for which the VM waits, or one that comes in the background. */
static void test_a_byte_is_changed_on_the_way(void)
{
    static const char *const more[] = {NULL, "--fill"};
    for (unsigned i = 0; i < 2; i++) {
        lent_by_a_relay(more[i]);
        wire->armed = true;
        mover_kill(&sender, SIGCONT);
        await_change();
        goes_on_at_the_lender();
        end(NULL);
    }
}

/* The page has been changed, and nobody has compared it, when the VM is to return. */
static void test_it_does_not_return_before_its_pages_are_compared(void)
{
    lent_by_a_relay(NULL);
    mover_kill(&sender, SIGCONT);
    verifier_hold(verifier_find());
    wire->armed = true;
    await_change();
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + 2); /* with that page */
    home_start(NULL);
    home_receives(TCP, NULL);
    bring(NULL);
    mover_await_words(&bringer, "compared");
    verifier_let_go();
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "cannot return");
    assert_int_equal(vm_beats(&home), 0);
    mover_kill(&lender, SIGINT);
    mover_ends(&lender, 1);
    vm_end(&home);
    goes_on_at_the_lender();
}

/* A page comes while the VM returns, and home may have dropped some of its memory by then: no tool
 * advises a rollback there. */
static void test_a_byte_is_changed_beside_the_return(void)
{
    lent_by_a_relay(NULL);
    mover_kill(&sender, SIGCONT);
    home_start(NULL);
    home_receives(TCP, NULL);
    mover_stop_next("source:dropping");
    bring(NULL);
    mover_await_stop(&bringer);
    verifier_hold(verifier_find());
    wire->armed = true;
    await_change();
    mover_kill(&bringer, SIGCONT);
    mover_await_words(&bringer, "compared");
    verifier_let_go();
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "start it from its disk");
    mover_ends(&lender, 1);
    assert_int_equal(vm_beats(&home), 0);
    vm_end(&home);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "they were changed on their way");
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "was paused");
    assert_false(vm_runs(&vms[0]) || vm_runs(&vms[1]));
    mover_must_print(MOVER_RUN(1, "rollback", "--qmp", vms[0].tool, "--yes", TIMED),
                     "a return of this VM has begun");
}

/* A page that the VM has written where it was borrowed to. It is found when the VM runs at home. If
 * all of its pages had come before, it goes on from where it stopped there; otherwise it is lost,
 * as home has overwritten pages that are only there. */
static void test_a_byte_is_changed_on_the_way_home(void)
{
    static const char *const fill[] = {"--fill", NULL};
    for (unsigned i = 0; i < 2; i++) {
        borrowed(&calm, TCP, i ? fill : NULL);
        vm_wait_beats(&vms[1], vm_beats(&vms[1]) + (CHURN_MIB << 8) / 32 + 1);
        if (i) {
            mover_await(&sender, "filling", 100);
            borrow_compared();
            mover_kill(&sender, SIGSTOP); /* so that the tool that has served the VM waits for it */
        }
        make_key();
        home_start(NULL);
        mover_receive(&lender, &home, TCP,
                      (const char *[]){"--home", "--key-file", key, "--set", "encryption=off",
                                       "--max-bandwidth", HARDLY, NULL});
        wire->armed = wire->changed = false;
        tcp_relay_begin(&lender, &relay);
        mover_stop_next("source:sending");
        mover_start(&bringer,
                    (const char *[]){"return", lender.uri, "--qmp", vms[1].tool, "--json", TIMED,
                                     "--key-file", key, "--set", "encryption=off", NULL});
        mover_await_stop(&bringer);
        take_samples(&vms[1]);
        mover_kill(&bringer, SIGCONT);
        if (i) /* the tool that has served the VM reads that it is at home */
            mover_await_words(&receiver, "\"vm_status\":\"returned\"");
        wire->armed = true;
        await_change();
        MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", home.tool);
        mover_ends(&bringer, 1);
        mover_must_print(&bringer, "they were changed on their way");
        mover_ends(&lender, 1);
        mover_must_print(&lender, "was paused");
        assert_false(vm_runs(&home) || vm_runs(&vms[1]));
        vm_end(&home);
        MOVER_RUN(i ? 0 : 1, "rollback", "--yes", "--qmp", vms[1].tool);
        if (i)
            vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
        mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, calm.append);
        end(NULL);
    }
}

/* Somebody reads a page in the QEMU that the VM has left, which fetches it, and the VM at home
 * writes to it before the lender has compared it. */
static void test_a_page_of_the_life_at_home_is_no_difference(void)
{
    char path[128], byte;
    borrowed(&calm, TCP, NULL);
    const int base = open(vms[0].ram, O_RDWR | O_CLOEXEC);
    home_start(NULL);
    home_receives(TCP, NULL);
    mover_stop_next("source:serving"); /* the VM may run at home */
    bring(NULL);
    mover_await_stop(&bringer);
    borrow_compared();
    verifier_hold(verifier_find());
    snprintf(path, sizeof(path), "%s/page", mover_folder);
    vm_do(&vms[1], "pmemsave",
          json_pack("{s:i, s:i, s:s}", "val", LEFT, "size", 1, "filename", path));
    byte = 0x5b;
    assert_int_equal(pwrite(base, &byte, 1, LEFT), 1);
    close(base);
    verifier_let_go();
    mover_kill(&bringer, SIGCONT);
    returned();
}

/* Its memory is protected as long as the VM may return to it: what has come is still compared with
 * what it was. */
static void test_home_is_reset_while_pages_wait(void)
{
    static const struct vm_options resets = {.append = "mib=16 beat=32",
                                             .extra = {"-action", "reboot=reset"}};
    borrow_options = resets;
    pair_start(&resets);
    mover_receive(&receiver, &vms[1], TCP, (const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_start(&sender, (const char *[]){"borrow", receiver.uri, "--qmp", vms[0].tool, "--json",
                                          "--yes", "--fill", TIMED, NULL});
    mover_await(&sender, "filling", 0);
    mover_await_entry("source", "guarded", json_true());
    verifier_hold(verifier_find());
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    mover_await(&sender, "filling", 100);
    vm_do(&vms[0], "system_reset", NULL);
    mover_await_words(&sender, "the pages are what they were");
    home_and_bring();
    mover_await_words(&bringer, "compared");
    verifier_let_go();
    brought();
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, NULL}, calm.append);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "another client has reset the VM");
    vm_kill(&vms[0]); /* its monitor may answer nobody */
}

/* Without the attacker all is as before, and each page was compared before the VM left. */
static void test_it_returns_by_the_relay(void)
{
    lent_by_a_relay(NULL);
    mover_kill(&sender, SIGCONT);
    vm_wait_beats(&vms[1], pair_beats);
    home_and_bring();
    returned();
}

int main(void)
{
    pair_beats = 8;
    wire = mmap(NULL, sizeof(*wire), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (wire == MAP_FAILED)
        return 1;
    static const struct vm_test tests[] = {
        VM_TEST(test_a_byte_is_changed_on_the_way),
        VM_TEST(test_it_does_not_return_before_its_pages_are_compared),
        VM_TEST(test_a_byte_is_changed_beside_the_return),
        VM_TEST(test_a_byte_is_changed_on_the_way_home),
        VM_TEST(test_a_page_of_the_life_at_home_is_no_difference),
        VM_TEST(test_home_is_reset_while_pages_wait),
        VM_TEST(test_it_returns_by_the_relay),
        {0}};
    return vm_tests(tests, end);
}
