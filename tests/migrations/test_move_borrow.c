/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate borrow and return: a VM goes away, works there, and comes home with what it wrote. */
#include "tests/fixtures/borrow.h"
#include "tests/fixtures/ram_file.h"

#include "common/clock.h"

#include <fcntl.h>
#include <unistd.h>

/* Compares every byte; almost only pages that were written go back. */
static void every_byte(const struct vm_options *options, const char *there, const char *back,
                       const char *const *more)
{
    borrowed(options, there, more);
    const unsigned written = home_with_every_byte(back);
    const json_int_t bytes = mover_figure(&lender, "wire_bytes");
    print_message("%d pages had come, %u were written; %.2f times that went back; stop %.1f ms and "
                  "%.1f ms\n",
                  (int)mover_figure(&receiver, "present_pages"), written,
                  (double)bytes / 4096 / (written + 1),
                  (double)mover_figure(&sender, "downtime_ns") / 1e6,
                  (double)mover_figure(&bringer, "downtime_ns") / 1e6);
    assert_in_range(mover_figure(&lender, "filled_ns"), 1, mover_figure(&lender, "total_ns"));
    assert_true(written > 0 && bytes <= (json_int_t)written * 4096 * 105 / 100 + 16 * 4096);
    vm_do(&home, "cont", NULL);
    pair_done();
    is_home();
}

static void test_first_there_and_back(void)
{
    every_byte(&(struct vm_options){.append = "mib=16"}, TCP, TCP, NULL);
    assert_true(mover_figure(&sender, "present_pages") < mover_figure(&sender, "pages"));
}

static void test_over_shm(void)
{
    every_byte(&(struct vm_options){.append = "cpus=2 mib=8", .two = true}, "shm://127.0.0.1:0",
               "shm://127.0.0.1:0", (const char *[]){"--fill", NULL});
}

static const struct vm_options with_balloon = {.append = "balloon=2048 mib=4 idle=2000000",
                                               .extra = {VM_BALLOON}};

/* Memory that the VM has given back there and looked at since is zero, also at home, where it was
 * something else; also if the tool that fetches its pages was killed in between. */
static void given_back_and_read(bool killed)
{
    static bool had[RAM_PAGES], has[RAM_PAGES];
    char line[64], text[256];
    unsigned page = (unsigned)(20 << 20) / 4096;
    borrowed(&with_balloon, TCP, NULL);
    ram_pages(vms[0].ram, had);
    vm_balloon(&vms[1], 60 << 20);
    vm_balloon(&vms[1], 56 << 20);
    ram_pages(vms[1].ram, has);
    while (!had[page] || has[page])
        assert_true(++page < RAM_PAGES);
    if (killed) {
        mover_kill(&receiver, SIGKILL);
        mover_recover(&receiver, &vms[1]);
        mover_await(&receiver, "filling", 0);
        mover_await(&sender, "filling", 0);
    }
    snprintf(line, sizeof(line), "xp /1wx 0x%x", page * 4096);
    vm_hmp(&vms[1], line, text, sizeof(text));
    assert_non_null(strstr(text, "0x00000000"));
    home_start("-S");
    home_receives(TCP, "--paused");
    bring(NULL);
    brought();
    vm_hmp(&home, line, text, sizeof(text));
    assert_non_null(strstr(text, "0x00000000"));
    mover_end_all(NULL);
}

static void test_given_back_and_read(void)
{
    given_back_and_read(false);
    given_back_and_read(true);
}

/* Memory that the guest gives back where it is borrowed is zero at home, too. */
static void test_balloon(void)
{
    static bool pages[RAM_PAGES];
    borrowed(&with_balloon, TCP, NULL);
    const unsigned before = ram_pages(vms[0].ram, pages);
    vm_balloon(&vms[1], 56 << 20);
    home_and_bring();
    brought();
    assert_true(ram_pages(home.ram, pages) < before - 1900);
    vm_balloon(&home, 64 << 20);
    vm_await_words(&home, "balloon 00000000");
    assert_false(vm_printed(&vms[1], "wrong") || vm_printed(&home, "wrong"));
    pair_done();
}

static struct vm again;               /* the QEMU where it is borrowed the second time */
static struct mover keeper, repeater; /* receive --home there, borrow */

/* The borrower keeps the VM's memory: the third trip carries only what was written at home
 * since. */
static void test_kept_warm(void)
{
    static bool had[RAM_PAGES], has[RAM_PAGES];
    struct vm_options options;
    unsigned lacked = 0;
    borrowed_small();
    home_start(NULL);
    home_receives(TCP, NULL);
    bring("--keep-warm");
    pair_done();
    mover_await(&lender, "filling", 100);
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    const json_int_t before = mover_figure(&lender, "wire_bytes");
    assert_true(before > 0 && before <= (4 << 20) + 64 * 4096);

    uint8_t *wanted = ram_copy(vms[1].ram);
    ram_pages(vms[1].ram, had);
    options = borrow_options;
    options.incoming = true;
    options.extra[0] = "-S";
    vm_start(&again, &options);
    mover_receive(&keeper, &again, TCP, (const char *[]){"--home", "--paused", NULL});
    mover_start(&repeater, (const char *[]){"borrow", keeper.uri, "--qmp", home.tool, "--json",
                                            "--yes", "--fill", TIMED, NULL});
    brought();
    mover_await(&keeper, "filling", 100);
    const json_int_t bytes = mover_figure(&keeper, "wire_bytes");
    const unsigned written = ram_overlay(wanted, home.ram);
    ram_pages(home.ram, has);
    for (unsigned i = 0; i < RAM_PAGES; i++)
        lacked += has[i] && !had[i];
    ram_is(again.ram, wanted);
    ram_free(wanted);
    print_message("%u pages there again: %u were others, %u had never been there\n",
                  (unsigned)(bytes / 4096), written, lacked);
    assert_true(bytes <= (json_int_t)(written + lacked) * 4096 * 105 / 100 + 16 * 4096);
    vm_do(&again, "cont", NULL);
    vm_wait_beats(&again, vm_beats(&again) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, &again, NULL},
                     borrow_options.append);

    vm_kill(&again); /* home had all of its pages when it left */
    mover_ends(&keeper, 3);
    mover_ends(&repeater, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", home.tool);
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, NULL}, borrow_options.append);
}

static void test_stays(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, TCP, (const char *[]){"--fill", NULL});
    mover_await(&receiver, "filling", 100);
    mover_kill(&receiver, SIGINT);
    pair_done();
    pair_moved(borrow_options.append);
    no_notes();
}

/* If a borrowed VM needs no page for a while, no tool takes the silence for a lost peer. */
static void test_idle_is_no_silence(void)
{
    json_int_t came = -1, since = 0, now = 0;
    const unsigned timeout_ms = patience_ms(2000);
    char uri[64];
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:0?timeout_ms=%u", timeout_ms);
    borrowed(&(struct vm_options){.append = "mib=4"}, uri, NULL);
    for (const uint64_t deadline = vm_soon(); now - since < timeout_ms * 1500000ll;
         poll(NULL, 0, 50)) {
        assert_true(ibx_now_ns() < deadline);
        mover_await(&receiver, "filling", 0);
        now = mover_figure(&receiver, "elapsed_ns");
        const json_int_t count =
            mover_figure(&receiver, "wire_bytes") + mover_figure(&receiver, "present_pages");
        since = count != came ? now : since;
        came = count;
        assert_false(mover_printed(&receiver, "nothing has come from"));
    }
    assert_true(mover_figure(&receiver, "present_pages") < mover_figure(&receiver, "pages"));
    stays_away();
    mover_end_all(NULL);
}

static void test_filled(void)
{
    mover_needs_ofi();
    pair_timeout = PATIENT;
    borrowed_small();
    home_start(NULL);
    home_receives(OFI, NULL);
    bring(NULL);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "or borrow it with --fill");
    stays_away();
    mover_end_all(NULL);
    borrowed(&(struct vm_options){.append = "mib=4"}, TCP, (const char *[]){"--fill", NULL});
    mover_await(&receiver, "filling", 100);
    home_start(NULL);
    home_receives(OFI, NULL);
    bring(NULL);
    returned();
    pair_timeout = PAIR_TIMEOUT;
}

static void test_refused(void)
{
    struct vm_options options = {.append = "mib=4"};
    pair_start(&options);
    mover_receive(&receiver, &vms[1], TCP, (const char *[]){"--stand-still", NULL});
    mover_must_print(MOVER_RUN(1, "borrow", receiver.uri, "--qmp", vms[0].tool, "--yes"),
                     "cannot be received with --stand-still");
    mover_end_all(NULL);
    borrowed(&options, TCP, NULL);
    home_start(NULL);
    mover_receive(&lender, &home, TCP, NULL);
    bring(NULL);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "it is received with --home");
    mover_kill(&lender, SIGINT);
    mover_ends(&lender, 1);
    home_receives(TCP, NULL);
    struct mover *const refused = MOVER_RUN(1, "send", "--qmp", vms[1].tool, lender.uri);
    mover_must_print(refused, "has a client already");
    mover_must_print(refused, "a borrowed VM leaves by ib-migrate return alone");
    mover_must_print(MOVER_RUN(1, "receive", "--home", "--qmp", vms[0].tool, "--listen", TCP),
                     "a VM, also this one, comes into a QEMU of its own: start one with");
    stays_away();
    bring(NULL);
    returned();
    mover_must_print(MOVER_RUN(1, "return", "--qmp", home.tool, "tcp://127.0.0.1:1"),
                     "was borrowed: \"ib-migrate status\" shows");
}

/* Home has no memory that was plugged in where the VM is, and knows nothing of its pages. */
static void plug_memory(const char *id, const char *file)
{
    vm_do(&vms[1], "object-add",
          json_pack("{s:s,s:s,s:i,s:s,s:b}", "qom-type", "memory-backend-file", "id", id, "size",
                    32 << 20, "mem-path", file, "share", 1));
    vm_do(&vms[1], "device_add",
          json_pack("{s:s,s:s,s:s}", "driver", "pc-dimm", "id", "dimm", "memdev", id));
}

/* By the ports of ACPI, as a guest that has been asked for it does. */
static void unplug_memory(const char *id)
{
    char text[64];
    vm_do(&vms[1], "device_del", json_pack("{s:s}", "id", "dimm"));
    vm_hmp(&vms[1], "o /4 0xa00 0", text, sizeof(text));
    vm_hmp(&vms[1], "o /1 0xa14 8", text, sizeof(text));
    json_decref(vm_event(&vms[1], "DEVICE_DELETED", NULL));
    vm_do(&vms[1], "object-del", json_pack("{s:s}", "id", id));
}

static void return_is_refused(const char *words)
{
    bring(NULL);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, words);
}

static void test_memory_that_is_plugged_in_there(void)
{
    char file[96];
    snprintf(file, sizeof(file), "/dev/shm/ibx-test-dimm-%d", (int)getpid());
    borrowed(&(struct vm_options){.append = "mib=4", .extra = {"-m", "64M,slots=1,maxmem=1G"}}, TCP,
             NULL);
    plug_memory("more", file);
    home_start(NULL);
    home_receives(TCP, NULL);
    return_is_refused("guest RAM more (32 MiB) was plugged in while the VM was here");
    stays_away();
    unplug_memory("more");
    unlink(file);
    bring(NULL);
    returned();
}

/* Memory of the same name is not what the VM had when it came, nor what is at home. */
static void test_memory_that_is_another_one_there(void)
{
    char file[96];
    snprintf(file, sizeof(file), "/dev/shm/ibx-test-dimm-%d", (int)getpid());
    borrowed(&(struct vm_options){.append = "mib=4",
                                  .extra = {"-m", "64M,slots=1,maxmem=1G", "-object",
                                            "memory-backend-file,id=more,size=32M,mem-path="
                                            "/dev/shm,share=on",
                                            "-device", "pc-dimm,id=dimm,memdev=more"}},
             TCP, NULL);
    unplug_memory("more");
    home_start(NULL);
    home_receives(TCP, NULL);
    return_is_refused("guest RAM more (32 MiB) was plugged out while the VM was here");
    plug_memory("more", file);
    return_is_refused("guest RAM more (32 MiB) was plugged in while the VM was here, and more "
                      "(32 MiB) was plugged out: it cannot return");
    stays_away();
    unlink(file);
}

/* As the back end of a vhost-user device that is plugged in there, and out again. */
static void test_another_process_has_had_the_memory(void)
{
    borrowed_small();
    const int fd = open(vms[1].ram, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    mover_await_words(&receiver, "it cannot return");
    close(fd);
    home_and_bring();
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "whose writes to its memory are not seen");
    stays_away();
    mover_kill(&lender, SIGINT);
    mover_ends(&lender, 1);
}

int main(void)
{
    pair_beats = 8;
    static const struct vm_test tests[] = {VM_TEST(test_first_there_and_back),
                                           VM_TEST(test_over_shm),
                                           VM_TEST(test_given_back_and_read),
                                           VM_TEST(test_balloon),
                                           VM_TEST(test_kept_warm),
                                           VM_TEST(test_stays),
                                           VM_TEST(test_filled),
                                           VM_TEST(test_idle_is_no_silence),
                                           VM_TEST(test_refused),
                                           VM_TEST(test_memory_that_is_plugged_in_there),
                                           VM_TEST(test_memory_that_is_another_one_there),
                                           VM_TEST(test_another_process_has_had_the_memory),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
