/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages at the destination that differ from those of the source: no side calls the migration
 * complete, the VM is paused there, and can be taken back. A byte of the source's RAM that is
 * changed while the page is fetched stands for a forged packet.
 */
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/held_verifier.h"
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE    4096u
#define PAGES   (VM_RAM_MIB << 8)
#define RANGE   512u
#define MANY    64u /* pages: QEMU may have touched a few zero ones since */
#define LOOK_MS 2
#define AT      1234 /* the byte of a page that is changed */

static const struct vm_options stays = {.append = "", .extra = {"-no-shutdown"}};

/* ------------------------------------------------------------ both sides' RAM */

static int files[2];
static uint8_t *memory; /* the source's */

static void open_both(void)
{
    for (unsigned i = 0; i < 2; i++)
        assert_true((files[i] = open(vms[i].ram, i ? O_RDONLY : O_RDWR)) >= 0);
    memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0);
    assert_true(memory != MAP_FAILED);
}

static void close_both(void)
{
    munmap(memory, (size_t)PAGES * PAGE);
    close(files[0]);
    close(files[1]);
}

static bool present(unsigned side, uint64_t page)
{
    return lseek(files[side], (off_t)(page * PAGE), SEEK_DATA) == (off_t)(page * PAGE);
}

/* The last page with data at the source in a range that is not complete at the destination: a page
 * that the destination has, or one that it lacks. */
static uint64_t choose(bool there)
{
    for (uint64_t range = PAGES / RANGE; range-- > 0;) {
        uint64_t found = 0, lacking = 0;
        for (uint64_t page = range * RANGE; page < (range + 1) * RANGE; page++) {
            if (!present(0, page))
                continue;
            lacking += !present(1, page);
            if (present(1, page) == there)
                found = page;
        }
        if (found && lacking > MANY)
            return found;
    }
    fail_msg("there is no such page");
    return 0;
}

static void speed(const char *limit)
{
    MOVER_RUN(0, "set", "--max-bandwidth", limit, "--qmp", vms[1].tool);
}

/* ------------------------------------------------------------ what must follow */

static void goes_on_at_the_source(void)
{
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

/* What the summary says of the VM, and what the record keeps of that. */
static void says_paused(const struct mover *there)
{
    json_t *summary = mover_summary(there), *record = json_object_get(summary, "record");
    assert_string_equal(json_string_value(json_object_get(summary, "vm_status")), "paused");
    assert_string_equal(json_string_value(json_object_get(record, "vm_status")), "paused");
    json_decref(summary);
}

/* Neither QEMU runs the VM; once that of the destination has ended, it goes on at the source. */
static void broken(struct mover *there, struct mover *here)
{
    mover_ends(here, 1);
    mover_ends(there, 1);
    mover_must_print(here, "migration is broken");
    mover_must_print(here, "guest RAM (mem0");
    mover_must_print(there, "migration is broken");
    mover_must_print(there, "was paused");
    says_paused(there);
    assert_false(vm_runs(&vms[1]));
    assert_false(vm_runs(&vms[0]));
    MOVER_RUN(1, "recover", "--qmp", vms[1].tool, TIMED);
    vm_end(&vms[1]);
    goes_on_at_the_source();
}

/* Whether a page came to the destination while a byte of it was another one at the source. A page
 * that was under way before has the byte as it was, or any other one if the guest, which rewrites
 * whole pages, has waited for it. */
static bool came_forged(void)
{
    const uint64_t page = choose(false), deadline = vm_soon();
    uint8_t *const byte = memory + page * PAGE + AT, was = *byte;
    uint8_t there;
    *byte = was ^ 0x40;
    speed("2M");
    while (!present(1, page)) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, LOOK_MS);
    }
    assert_int_equal(pread(files[1], &there, 1, (off_t)(page * PAGE + AT)), 1);
    *byte = was;
    speed(HARDLY);
    return there == (was ^ 0x40);
}

static void test_a_byte_is_forged_on_the_way(void)
{
    pair_filling(&stays, NULL);
    open_both();
    /* Until the byte is as it was, however late this test sees the page. */
    verifier_hold(verifier_find());
    while (!came_forged())
        ;
    speed("0");
    close_both();
    verifier_let_go();
    broken(&receiver, &sender);
}

/* Changes a page that has come at the source, while others of its range are missing. */
static uint64_t change_one(void)
{
    const uint64_t page = choose(true);
    memory[page * PAGE + AT] ^= 0x40;
    return page;
}

static void test_the_source_changes_its_memory(void)
{
    static struct mover setter;
    /* Either side's wish is enough. */
    static const char *const both[][2] = {{"--no-verify", NULL}, {NULL, "--no-verify"}};
    for (unsigned i = 0; i < 2; i++) {
        pair_start(&stays);
        pair_receive((const char *[]){"--max-bandwidth", HARDLY, both[i][0], NULL});
        pair_send((const char *[]){both[i][1], NULL});
        mover_await(&receiver, "filling", 0);
        open_both();
        const uint64_t page = change_one();
        /* It finds no tool if they have seen the change already, and have ended. */
        mover_start(&setter,
                    (const char *[]){"set", "--max-bandwidth", "0", "--qmp", vms[1].tool, NULL});
        mover_await_words(&sender, "migration is broken");
        memory[page * PAGE + AT] ^= 0x40;
        close_both();
        broken(&receiver, &sender);
        mover_end_all(NULL);
    }
}

static void test_nobody_looks(void)
{
    pair_start(NULL);
    pair_receive((const char *[]){"--max-bandwidth", HARDLY, "--no-verify", NULL});
    pair_send((const char *[]){"--no-verify", NULL});
    mover_await(&receiver, "filling", 0);
    open_both();
    change_one();
    close_both();
    pair_filled();
}

/* A tool that continues also compares pages that came before it. */
static void test_recover_compares_all(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct mover *which = i ? &sender : &receiver;
        pair_filling(&stays, NULL);
        open_both();
        mover_kill(which, SIGKILL);
        const uint64_t page = change_one();
        pair_recover(which);
        if (i)
            speed("0");
        mover_await_words(&sender, "migration is broken");
        memory[page * PAGE + AT] ^= 0x40;
        close_both();
        broken(&receiver, &sender);
        mover_end_all(NULL);
    }
}

/* A destination that finds all connections ended still reads the source's last message. */
static void test_told_while_the_destination_is_busy(void)
{
    pair_filling(&stays, NULL);
    open_both();
    mover_kill(&sender, SIGKILL);
    const uint64_t page = change_one();
    mover_stop_next("source:broken");
    pair_recover(&sender);
    speed("0");
    mover_await_stop(&sender);
    mover_kill(&receiver, SIGSTOP);
    mover_kill(&sender, SIGCONT);
    mover_await_record("source", "broken");
    mover_await_asleep(&sender); /* it waits until it is heard */
    mover_kill(&sender, SIGKILL);
    mover_kill(&receiver, SIGCONT);
    memory[page * PAGE + AT] ^= 0x40;
    close_both();
    mover_ends(&receiver, 1);
    mover_must_print(&receiver, "migration is broken");
    vm_kill(&vms[1]); /* which may wait for a page */
    goes_on_at_the_source();
}

/* ------------------------------------------------------------ without a link */

/* A process whose thread is held does not end. */
static int end_all(void **state)
{
    verifier_let_go();
    return mover_end_all(state);
}

/* Wrong pages are found while the link is lost: the destination is told over the next one. */
static void test_told_over_the_next_link(void)
{
    pair_filling(&stays, NULL);
    const pid_t verifier = verifier_find();
    open_both();
    verifier_hold(verifier);
    const uint64_t page = change_one();
    speed("0");
    mover_await(&receiver, "filling", 100);
    mover_await_asleep(&receiver); /* all is said */
    mover_kill(&receiver, SIGKILL);
    mover_await_words(&sender, "connecting again");
    verifier_let_go();
    mover_await_words(&sender, "cannot be told before it is connected again");
    mover_await_record("source", "moved");
    memory[page * PAGE + AT] ^= 0x40;
    close_both();
    pair_recover(&receiver);
    broken(&receiver, &sender);
}

/* How often the source's tool has guest RAM mapped. */
static unsigned mappings(void)
{
    char path[64], line[512];
    unsigned count = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)sender.pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, vms[0].ram) != NULL;
    fclose(file);
    return count;
}

static void await_mappings(unsigned count)
{
    const uint64_t deadline = vm_soon();
    while (mappings() != count) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, LOOK_MS);
    }
}

/* With its link a source loses its mapping of guest RAM, which takes long to unmap, also if it has
 * compared pages there. It compares them in the next link's. */
static void test_compared_in_the_mapping_of_the_link(void)
{
    pair_filling(NULL, NULL);
    verifier_find();
    await_mappings(1);
    mover_kill(&receiver, SIGKILL);
    mover_await_words(&sender, "connecting again");
    await_mappings(0);
    pair_recover(&receiver);
    mover_await(&receiver, "filling", 0);
    await_mappings(1);
    pair_filled();
}

int main(void)
{
    pair_timeout = "timeout_ms=10000";
    static const struct vm_test tests[] = {VM_TEST(test_a_byte_is_forged_on_the_way),
                                           VM_TEST(test_the_source_changes_its_memory),
                                           VM_TEST(test_nobody_looks),
                                           VM_TEST(test_recover_compares_all),
                                           VM_TEST(test_told_while_the_destination_is_busy),
                                           VM_TEST(test_told_over_the_next_link),
                                           VM_TEST(test_compared_in_the_mapping_of_the_link),
                                           {0}};
    return vm_tests(tests, end_all);
}
