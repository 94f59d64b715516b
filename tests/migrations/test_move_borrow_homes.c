/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate borrow and return where something is not as usual: a home with little room, locked or
 * touched memory, a borrower that keeps silent about the return. */
#include "tests/fixtures/borrow.h"
#include "tests/fixtures/line.h"
#include "tests/fixtures/ram_file.h"
#include "tests/migrations/guest/churn.h"

#include "common/clock.h"
#include "migrate/journal/journal.h"
#include "transport/transport.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* Memory that the VM had given back when it left, and has used since: at home these are holes. */
static void borrowed_with_holes(void)
{
    borrow_options =
        (struct vm_options){.append = "balloon=2048 mib=4 idle=2000000", .extra = {VM_BALLOON}};
    pair_start(&borrow_options);
    vm_balloon(&vms[0], 56 << 20);
    borrow_tools(TCP, NULL);
}

static void fill_holes(void)
{
    vm_balloon(&vms[1], 64 << 20);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
}

/* A QEMU that locks its memory fills the holes with zeros when it maps the file. */
static void test_holes_of_a_home_that_locks_memory(void)
{
    borrowed_with_holes();
    fill_holes();
    borrow_options.extra[2] = "-overcommit";
    borrow_options.extra[3] = "mem-lock=on";
    home_with_every_byte(TCP);
}

/* Reads each page but these, as other processes may: holes become pages of zeros. */
static void touch_pages(const char *path, const bool had[RAM_PAGES])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const volatile uint8_t *at = mmap(NULL, RAM_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    unsigned sum = 0;
    assert_true(at != MAP_FAILED);
    for (size_t i = 0; i < RAM_PAGES; i++)
        sum += had[i] ? 0 : at[i * RAM_PAGE];
    (void)sum;
    munmap((void *)(uintptr_t)at, RAM_BYTES);
    close(fd);
}

/* As a registration of memory does: the VM writes to such pages without a fault. */
static void test_pages_that_others_have_looked_at(void)
{
    static bool had[RAM_PAGES];
    borrowed_with_holes();
    ram_pages(vms[0].ram, had);
    touch_pages(vms[1].ram, had);
    fill_holes();
    home_with_every_byte(TCP);
}

/* At home its QEMU from before and the tool of that have the file, too. Its holes are pages to come
 * until the bringer goes on. */
static void home_to_be_looked_at(const char *more, const char *stop_at)
{
    borrowed(&(struct vm_options){.append = "mib=16"}, TCP, NULL);
    mover_stop_next("source:serving");
    if (stop_at)
        mover_stop_next(stop_at);
    home_start(NULL);
    home_receives(TCP, NULL);
    bring(more);
    mover_await_stop(&bringer);
    for (const uint64_t until = vm_soon(); !access(vms[0].ram, F_OK); poll(NULL, 0, 5))
        assert_true(ibx_now_ns() < until); /* it gets the name that the QEMU knows */
}

/* The VM does not see what is in the file before a page comes. */
static void test_home_that_others_have_looked_at(void)
{
    static const bool none[RAM_PAGES];
    home_to_be_looked_at(NULL, NULL);
    touch_pages(home.ram, none);
    mover_kill(&bringer, SIGCONT);
    returned();
}

/* The holes among the pages that the guest churns. Where these are zeros, it prints other sums and
 * runs on; with code of zeros it would reset, and its QEMU could end before its tool finds one. */
static void look_at_the_working_set(void)
{
    static bool others[RAM_PAGES];
    const size_t first = CHURN_BASE / RAM_PAGE, end = first + ((size_t)CHURN_MIB << 20) / RAM_PAGE;
    unsigned holes = 0;
    ram_pages(home.ram, others);
    for (size_t i = 0; i < RAM_PAGES; i++) {
        others[i] |= i < first || i >= end;
        holes += !others[i];
    }
    assert_true(holes > 0);
    touch_pages(home.ram, others);
}

/* If missing pages are holes, the VM would find zeros. */
static void holes_are_found_to_be_looked_at(void)
{
    mover_kill(&bringer, SIGCONT);
    mover_ends(&lender, 1);
    mover_must_print(&lender, "somebody else has");
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "the migration is broken");
    /* What it had not fetched where it was borrowed to is only there: nobody tells to end that. */
    mover_must_print(MOVER_RUN(0, "status", "--qmp", home.tool),
                     "if it had all of its pages there, else start it from its disk");
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[1].tool),
                     "it is lost, since it cannot go on there either");
}

/* Pages are not verified then. */
static void test_home_that_others_have_looked_at_and_kept_warm(void)
{
    home_to_be_looked_at("--keep-warm", NULL);
    look_at_the_working_set();
    holes_are_found_to_be_looked_at();
}

/* Home has long ended when the borrower reads its last message. */
static void test_told_while_the_borrower_is_busy(void)
{
    home_to_be_looked_at("--keep-warm", "destination:broken");
    look_at_the_working_set();
    mover_kill(&bringer, SIGCONT);
    mover_await_stop(&lender);
    mover_kill(&bringer, SIGSTOP);
    mover_kill(&lender, SIGCONT);
    mover_ends(&lender, 1);
    mover_kill(&bringer, SIGCONT);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "the migration is broken");
}

/* A tool that goes on does not take such pages for pages that have come. The first one would find
 * them, too, as pages may have reached it before the bringer stopped. */
static void test_home_that_others_have_looked_at_before_a_recovery(void)
{
    home_to_be_looked_at("--keep-warm", NULL);
    mover_kill(&lender, SIGKILL);
    look_at_the_working_set();
    mover_recover(&lender, &home);
    holes_are_found_to_be_looked_at();
}

/* No page is dropped at home before it comes again: a return that fails has changed little
 * there. */
static void test_home_keeps_its_pages(void)
{
    static bool pages[RAM_PAGES];
    borrowed_small();
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    const unsigned before = ram_pages(vms[0].ram, pages);
    bring_to("source:starting");
    assert_int_equal(ram_pages(vms[0].ram, pages), before);
    mover_kill(&bringer, SIGCONT);
    returned();
}

/* At home there is room for the VM's memory once, not twice. */
static void test_little_room_at_home(void)
{
    struct vm_options there;
    char ram[256], back[256];
    mover_begin();
    const char *place = mover_mount("size=90M");
    const char *object = "memory-backend-file,id=mem0,size=%uM,mem-path=%s/%s,share=on";
    snprintf(ram, sizeof(ram), object, VM_RAM_MIB, place, "first");
    snprintf(back, sizeof(back), object, VM_RAM_MIB, place, "second");
    borrow_options = (struct vm_options){.append = "mib=32", .ram = ram};
    vm_start(&vms[0], &borrow_options);
    there = borrow_options;
    there.ram = NULL;
    there.incoming = true;
    vm_start(&vms[1], &there);
    vm_wait_beats(&vms[0], 40); /* all of its memory */
    borrow_tools(TCP, NULL);
    borrow_options.ram = back;
    home_and_bring();
    returned();
}

/* A borrower that does not say that the VM has returned does not get to see its memory for
 * longer. */
static void test_silent_borrower(void)
{
    borrowed_small();
    bring_to("source:serving");
    mover_kill(&receiver, SIGSTOP);
    mover_kill(&bringer, SIGCONT);
    brought();
    mover_await_words(&sender, "no page of it is served any more");
    mover_kill(&receiver, SIGCONT);
    pair_done();
    is_home();
}

/* The number of the migration by which the VM was borrowed. */
static void borrowed_as(uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    glob_t found;
    char pattern[160];
    snprintf(pattern, sizeof(pattern), "%s/*.source.json", mover_state_dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    const char *name = strrchr(found.gl_pathv[0], '/') + 1;
    for (unsigned i = 0; i < IBX_MIGRATE_ID_BYTES; i++)
        assert_int_equal(sscanf(name + (size_t)2 * i, "%2hhx", &id[i]), 1);
    globfree(&found);
}

/* The return and a rollback at home take the memory that the VM left one after the other. */
static void test_one_at_a_time_has_the_memory_at_home(void)
{
    glob_t found;
    char pattern[160], path[PATH_MAX];
    borrowed_small();
    snprintf(pattern, sizeof(pattern), "%s/*.source.json", mover_state_dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    snprintf(path, sizeof(path), "%.*s.base", (int)(strlen(found.gl_pathv[0]) - strlen(".json")),
             found.gl_pathv[0]);
    globfree(&found);
    const int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(lock >= 0 && !flock(lock, LOCK_EX | LOCK_NB)); /* as a rollback has it */
    home_and_bring();
    mover_ends(&lender, 1);
    mover_must_print(&lender, "has the memory that the VM left here");
    mover_ends(&bringer, 1);
    stays_away();
    vm_do(&home, "query-status", NULL); /* it has none of it, and waits as before */
    mover_kill(&sender, SIGKILL);
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool),
                     "has the memory that the VM left here"); /* as a return has it */
    close(lock);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, borrow_options.append);
}

/* A return has come to `state` when the tool at home is killed, and a rollback there is killed at
 * `where`. The return goes on, and is refused. */
static void rollback_is_killed_in_a_return(const char *state, const char *where)
{
    struct mover rollback = {0};
    borrowed(&(struct vm_options){.append = "mib=4"}, TCP, (const char *[]){"--fill", NULL});
    mover_await(&receiver, "filling", 100);
    const struct mover *stopped = bring_to(state);
    mover_kill(&receiver, SIGSTOP); /* it does not answer */
    mover_kill(&sender, SIGKILL);
    mover_stop_next(where);
    mover_start(&rollback, (const char *[]){"rollback", "--yes", "--qmp", vms[0].tool, "--set",
                                            "timeout_ms=1000", NULL});
    mover_await_stop(&rollback);
    mover_kill(&rollback, SIGKILL);
    mover_kill(&receiver, SIGCONT);
    kill(stopped->pid, SIGCONT);
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "a rollback has begun and has not recorded its end, so "
                               "that the VM may run here in its memory");
    assert_int_equal(vm_beats(&home), 0);
}

/* The rollback has continued the VM: no QEMU may take the memory in which it runs. */
static void test_killed_rollback_has_the_memory_at_home(void)
{
    rollback_is_killed_in_a_return("source:recorded", "rollback:continued");
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
}

/* The rollback has not continued the VM, and home had accepted the return before. The memory is
 * unchanged, so the VM can still be restarted in it when its borrower is gone. */
static void test_killed_rollback_can_be_repeated_beside_a_return(void)
{
    rollback_is_killed_in_a_return("destination:named", "rollback:noted");
    mover_kill(&receiver, SIGKILL);
    vm_end(&vms[1]);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
}

/* Whether the memory of this QEMU is locked, so that nobody else can be given it. */
static bool is_locked(const struct vm *vm)
{
    struct ibx_guest_ram ram;
    char path[32];
    vm_ok(ibx_guest_ram_find(vm->qmp, true, &ram, vm_soon(), &vm_error));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ram.blocks[0].fd);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    ibx_guest_ram_fini(&ram);
    return locked;
}

/* The memory is locked as long as pages come, though the VM runs there: a late page goes into
 * it. */
static void test_memory_is_locked_while_pages_come(void)
{
    borrowed_small();
    home_start("-S");
    mover_receive(&lender, &home, TCP,
                  (const char *[]){"--home", "--paused", "--max-bandwidth", HARDLY, NULL});
    bring(NULL);
    while (!mover_printed(MOVER_RUN(0, "status", "--json", "--qmp", home.tool),
                          "\"state\":\"running\""))
        ;
    const bool locked = is_locked(&home);
    mover_await(&lender, "filling", 0);
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", home.tool);
    brought();
    pair_done();
    assert_true(locked && !is_locked(&home));
    vm_ok(ibx_qmp_execute(home.qmp, "cont", NULL, NULL, vm_soon(), &vm_error));
    is_home();
}

/* Home first marks that the VM may run there again: a tool that goes on has to know it. If somebody
 * else's file has the marker's name, it is made beside the record. */
static void test_home_where_the_marker_has_a_squatter(void)
{
    uint8_t id[IBX_MIGRATE_ID_BYTES];
    char path[128];
    borrowed_small();
    borrowed_as(id);
    ibx_journal_home_path(id, path, sizeof(path));
    assert_int_equal(mkdir(path, 0700), 0);
    if (chown(path, 65534, 65534)) {
        rmdir(path);
        skip();
    }
    home_and_bring();
    brought();
    pair_done();
    assert_int_equal(rmdir(path), 0);
    is_home();
}

static struct vm next;
static struct mover keeper;
static uint8_t away[IBX_MIGRATE_ID_BYTES]; /* the number by which it was borrowed */

static void say(struct line *line, const struct ibx_migrate_any *message)
{
    struct ibx_options options;
    struct ibx_conn *conn;
    ibx_options_init(&options);
    options.message = IBX_MIGRATE_MESSAGE;
    snprintf(options.purpose, sizeof(options.purpose), IBX_MIGRATE_PURPOSE);
    vm_ok(ibx_connect(keeper.uri, &options, &conn, &vm_error));
    ibx_channel_init(&line->control, conn);
    line_send(line, message);
}

/* A borrower that lies tells another QEMU at home that the VM, which is already there, returns.
 * Returns its answer. */
static void asks_for_another_return(struct line *line, const struct vm *there)
{
    struct ibx_guest_ram ram;
    static struct ibx_migrate_hello hello;
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = &hello};
    struct vm_options like_home = borrow_options;
    hello = (struct ibx_migrate_hello){
        .purpose = IBX_PURPOSE_MOVE, .id = {1}, .epoch = 1, .links_least = 1, .links = 1};
    memcpy(hello.base, away, sizeof(away));
    like_home.incoming = true;
    vm_start(&next, &like_home);
    mover_receive(&keeper, &next, TCP, (const char *[]){"--home", NULL});
    vm_ok(ibx_guest_ram_find(there->qmp, true, &ram, vm_soon(), &vm_error));
    ibx_migrate_hello_describe(&hello, &ram);
    hello.warm = true;
    ibx_guest_ram_fini(&ram);
    say(line, &message);
    assert_true(line_receives(line, IBX_MIGRATE_ANSWER));
}

/* The VM is at home, and stays right there. */
static void is_home_alone(void)
{
    vm_end(&next);
    mover_kill(&sender, SIGCONT);
    pair_done();
    is_home();
}

/* A borrower does not say that the VM has returned, and has it return once more. */
static void test_returned_twice(void)
{
    struct line line = {0};
    borrowed_small();
    borrowed_as(away);
    borrow_compared(); /* for which the return waits */
    mover_kill(&sender, SIGSTOP);
    home_and_bring();
    brought();
    asks_for_another_return(&line, &home);
    assert_false(line.answer.accepted);
    assert_non_null(strstr(line.answer.reasons[0], "the VM has returned already"));
    line_close(&line);
    mover_kill(&keeper, SIGINT);
    mover_ends(&keeper, 1);
    is_home_alone();
}

/* ... or has begun the second return before the VM returned, and goes on with it now. */
static void test_returned_beside_a_return_that_waits(void)
{
    struct line line = {0}, page = {0};
    char note[128];
    struct ibx_migrate_any join = {.type = IBX_MIGRATE_JOIN, .is.join = {.id = {1}, .epoch = 1}};
    borrowed_small();
    borrowed_as(away);
    borrow_compared(); /* for which the return waits */
    mover_kill(&sender, SIGSTOP);
    asks_for_another_return(&line, &vms[1]);
    assert_true(line.answer.accepted);
    ibx_journal_home_path(away, note, sizeof(note));
    home_and_bring();
    brought();
    say(&page, &join);
    line_closes(&line);
    assert_false(line.received & 1u << IBX_MIGRATE_READY);
    mover_ends(&keeper, 1);
    mover_must_print(&keeper, "the VM has returned already");
    assert_int_equal(access(note, F_OK), 0); /* that it runs here is noted as before */
    line_close(&page);
    line_close(&line);
    is_home_alone();
}

/* While it returns to one QEMU at home, somebody has it return to another one, with the same
 * memory.
 */
static void test_two_returns_at_once(void)
{
    static struct mover second;
    borrowed_small();
    const struct mover *first = bring_to("source:sending");
    struct vm_options like_home = borrow_options;
    like_home.incoming = true;
    vm_start(&next, &like_home);
    mover_receive(&keeper, &next, TCP, (const char *[]){"--home", NULL});
    mover_start(&second, (const char *[]){"return", keeper.uri, "--qmp", vms[1].tool, NULL});
    mover_ends(&second, 1);
    mover_must_print(&second, "QEMU serves one client at a time");
    mover_kill(&keeper, SIGINT);
    mover_ends(&keeper, 1);
    vm_end(&next);
    kill(first->pid, SIGCONT);
    returned();
}

int main(void)
{
    pair_beats = 8;
    static const struct vm_test tests[] = {
        VM_TEST(test_silent_borrower),
        VM_TEST(test_home_keeps_its_pages),
        VM_TEST(test_little_room_at_home),
        VM_TEST(test_home_that_others_have_looked_at),
        VM_TEST(test_home_that_others_have_looked_at_and_kept_warm),
        VM_TEST(test_told_while_the_borrower_is_busy),
        VM_TEST(test_home_that_others_have_looked_at_before_a_recovery),
        VM_TEST(test_one_at_a_time_has_the_memory_at_home),
        VM_TEST(test_killed_rollback_has_the_memory_at_home),
        VM_TEST(test_killed_rollback_can_be_repeated_beside_a_return),
        VM_TEST(test_memory_is_locked_while_pages_come),
        VM_TEST(test_home_where_the_marker_has_a_squatter),
        VM_TEST(test_pages_that_others_have_looked_at),
        VM_TEST(test_returned_twice),
        VM_TEST(test_returned_beside_a_return_that_waits),
        VM_TEST(test_two_returns_at_once),
        VM_TEST(test_holes_of_a_home_that_locks_memory),
        {0}};
    return vm_tests(tests, mover_end_all);
}
