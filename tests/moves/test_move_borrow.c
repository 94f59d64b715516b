/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate borrow and return: a VM goes away, works there, and comes home with what it wrote. */
#include "tests/scenes/line.h"
#include "tests/scenes/mover.h"

#include "common/clock.h"
#include "transport/transport.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define RAM ((size_t)VM_RAM_MIB << 20)

static struct vm home;                /* the QEMU that it returns to */
static struct mover lender, bringer;  /* receive --home, return */
static struct vm again;               /* the QEMU where it is borrowed the second time */
static struct mover keeper, repeater; /* receive --home there, borrow */
static const struct vm_options *like;

static json_int_t figure(const struct mover *mover, const char *name)
{
    json_t *summary = mover_summary(mover);
    const json_int_t value = json_integer_value(json_object_get(summary, name));
    json_decref(summary);
    return value;
}

/* ---------------------------------------------------------------- steps */

static void borrow(const char *uri, const char *const *more)
{
    const char *arguments[16] = {"borrow", receiver.uri, "--qmp", vms[0].tool,
                                 "--json", "--yes",      TIMED};
    mover_receive(&receiver, &vms[1], uri, NULL);
    for (unsigned n = 8; more && *more; more++)
        arguments[n++] = *more;
    mover_start(&sender, arguments);
}

/* Pages with data that the guest never touches. */
static void leave_data(const char *path)
{
    static uint8_t bytes[2 << 20];
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    memset(bytes, 0x5a, sizeof(bytes));
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 60 << 20), sizeof(bytes));
    close(fd);
}

/* The VM runs at vms[1], and what it has not needed yet is at vms[0]. */
static void borrowed(const struct vm_options *options, const char *uri, const char *const *more)
{
    like = options;
    pair_start(options);
    if (!strstr(options->append, "balloon"))
        leave_data(vms[0].ram);
    borrow(uri, more);
    mover_await(&sender, "filling", 0);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
}

static void home_start(const char *extra)
{
    struct vm_options options = *like;
    unsigned n = 0;
    while (options.extra[n])
        n++;
    options.extra[n] = extra;
    options.incoming = true;
    vm_start(&home, &options);
}

static void home_receives(const char *uri, const char *more)
{
    char whole[96];
    snprintf(whole, sizeof(whole), "%s%c%s", uri, strchr(uri, '?') ? '&' : '?', pair_timeout);
    mover_receive(&lender, &home, whole, (const char *[]){"--home", more, NULL});
}

static void bring(void)
{
    mover_start(&bringer, (const char *[]){"return", lender.uri, "--qmp", vms[1].tool, "--json",
                                           TIMED, NULL});
}

static void recover(struct mover *mover, const struct vm *vm)
{
    mover_start(mover, (const char *[]){"recover", "--qmp", vm->tool, "--json", TIMED, NULL});
}

/* ---------------------------------------------------------------- ends */

static bool is_unfinished(const char *path)
{
    json_t *record = json_load_file(path, 0, NULL);
    const char *state = json_string_value(json_object_get(record, "state"));
    assert_non_null(state);
    const bool unfinished = !strcmp(state, "may-run") || !strcmp(state, "not-yet");
    json_decref(record);
    return unfinished;
}

/* Of the migrations of this test, of which there are records. */
static void no_notes(void)
{
    glob_t found;
    char pattern[160], path[PATH_MAX];
    snprintf(pattern, sizeof(pattern), "%s/*.json", mover_state_dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        static const char *const kinds[] = {"arrived", "base", "map", "tags"};
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        if (is_unfinished(found.gl_pathv[i])) /* its tool was killed, and nobody has recovered it */
            continue;
        for (unsigned k = 0; k < 4; k++) {
            snprintf(path, sizeof(path), "/dev/shm/ibx-%.*s%s",
                     (int)(strlen(name) - strlen("json")), name, kinds[k]);
            if (!access(path, F_OK))
                fail_msg("%s is left over", path);
        }
    }
    globfree(&found);
}

/* It runs at home, all that it ever printed is right, and nothing is left over. */
static void is_home(void)
{
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    MOVER_RUN(0, "check", "--qmp", home.tool); /* it can go again */
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, NULL}, like->append);
    no_notes();
}

static void returned(void)
{
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    is_home();
}

/* The VM runs on where it was borrowed to. */
static void stays_away(void)
{
    assert_int_equal(vm_beats(&home), 0);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, like->append);
}

/* ---------------------------------------------------------------- every byte */

static uint8_t *copy_of(const char *path)
{
    uint8_t *copy = mmap(NULL, RAM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && copy != MAP_FAILED);
    assert_int_equal(read(fd, copy, RAM), RAM); /* of holes, which stay holes */
    close(fd);
    return copy;
}

/* What the VM has there, where it has something, else what it left. Returns how many pages are not
 * as it left them. */
static unsigned overlay(uint8_t *left, const char *path)
{
    unsigned written = 0;
    uint8_t *there = copy_of(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0; at += 4096) {
        written += memcmp(left + at, there + at, 4096) != 0;
        memcpy(left + at, there + at, 4096);
    }
    close(fd);
    munmap(there, RAM);
    return written;
}

static void pages_of(const char *path, bool there[RAM / 4096])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    memset(there, 0, RAM / 4096);
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0; at += 4096)
        there[at / 4096] = true;
    close(fd);
}

static void same_bytes(const uint8_t *is, const uint8_t *wanted)
{
    for (size_t at = 0; at < RAM; at += 4096)
        if (memcmp(is + at, wanted + at, 4096))
            fail_msg("the page at 0x%zx is another one", at);
}

/* It is paused at home, before it has run there. */
static void every_byte(const struct vm_options *options, const char *there, const char *back,
                       const char *const *more)
{
    borrowed(options, there, more);
    uint8_t *wanted = copy_of(vms[0].ram);
    home_start("-S");
    home_receives(back, "--paused");
    bring();
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    const unsigned written = overlay(wanted, vms[1].ram);
    uint8_t *is = copy_of(home.ram);
    same_bytes(is, wanted);
    munmap(is, RAM);
    munmap(wanted, RAM);
    const json_int_t bytes = figure(&lender, "wire_bytes");
    print_message("%d pages had come, %u were written; %.2f times that went back; stop %.1f ms and "
                  "%.1f ms\n",
                  (int)figure(&receiver, "present_pages"), written,
                  (double)bytes / 4096 / (written + 1),
                  (double)figure(&sender, "downtime_ns") / 1e6,
                  (double)figure(&bringer, "downtime_ns") / 1e6);
    assert_true(written > 0 && bytes <= (json_int_t)written * 4096 * 105 / 100 + 16 * 4096);
    vm_do(&home, "cont", NULL);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    is_home();
}

static void test_first_there_and_back(void)
{
    every_byte(&(struct vm_options){.append = "mib=16"}, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0",
               NULL);
    assert_true(figure(&sender, "present_pages") < figure(&sender, "pages"));
}

static void test_over_shm(void)
{
    every_byte(&(struct vm_options){.append = "cpus=2 mib=8", .two = true}, "shm://127.0.0.1:0",
               "shm://127.0.0.1:0", (const char *[]){"--fill", NULL});
}

/* The balloon of this VM has the size for so many bytes of RAM, and QEMU has told so. */
static void balloon_has(struct vm *vm, json_int_t bytes)
{
    json_int_t actual = 0;
    vm_do(vm, "balloon", json_pack("{s:I}", "value", bytes));
    while (actual != bytes) {
        json_t *event = vm_event(vm, "BALLOON_CHANGE", NULL);
        actual = json_integer_value(json_object_get(json_object_get(event, "data"), "actual"));
        json_decref(event);
    }
}

/* Memory that the VM had given back when it left, and has used since: at home these are holes,
 * which a QEMU that locks its memory fills with zeros when it maps them. */
static void test_holes_of_a_home_that_locks_memory(void)
{
    static struct vm_options options;
    options =
        (struct vm_options){.append = "balloon=2048 mib=4 idle=2000000",
                            .extra = {"-device", "virtio-balloon-pci,disable-modern=on,addr=5"}};
    like = &options;
    pair_start(&options);
    balloon_has(&vms[0], 56 << 20);
    borrow("tcp://127.0.0.1:0", NULL);
    mover_await(&sender, "filling", 0);
    balloon_has(&vms[1], 64 << 20);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    options.extra[2] = "-overcommit";
    options.extra[3] = "mem-lock=on";
    home_start("-S");
    uint8_t *wanted = copy_of(vms[0].ram);
    home_receives("tcp://127.0.0.1:0", "--paused");
    bring();
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    overlay(wanted, vms[1].ram);
    uint8_t *is = copy_of(home.ram);
    same_bytes(is, wanted);
    munmap(is, RAM);
    munmap(wanted, RAM);
}

/* What the VM has given back there and looked at since is zero, also at home, where it had been
 * something else. */
static void test_given_back_and_read(void)
{
    static bool had[RAM / 4096], has[RAM / 4096];
    char line[64], text[256];
    unsigned page = (unsigned)(20 << 20) / 4096;
    borrowed(
        &(struct vm_options){.append = "balloon=2048 mib=4 idle=2000000",
                             .extra = {"-device", "virtio-balloon-pci,disable-modern=on,addr=5"}},
        "tcp://127.0.0.1:0", NULL);
    pages_of(vms[0].ram, had);
    balloon_has(&vms[1], 60 << 20);
    balloon_has(&vms[1], 56 << 20);
    pages_of(vms[1].ram, has);
    while (!had[page] || has[page])
        assert_true(++page < RAM / 4096);
    snprintf(line, sizeof(line), "xp /1wx 0x%x", page * 4096);
    vm_hmp(&vms[1], line, text, sizeof(text));
    assert_non_null(strstr(text, "0x00000000"));
    home_start("-S");
    home_receives("tcp://127.0.0.1:0", "--paused");
    bring();
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    vm_hmp(&home, line, text, sizeof(text));
    assert_non_null(strstr(text, "0x00000000"));
}

/* Looks at each page but these, as others may: holes become pages of zeros. */
static void touch_pages(const char *path, const bool had[RAM / 4096])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const volatile uint8_t *at = mmap(NULL, RAM, PROT_READ, MAP_SHARED, fd, 0);
    unsigned sum = 0;
    assert_true(at != MAP_FAILED);
    for (size_t i = 0; i < RAM / 4096; i++)
        sum += had[i] ? 0 : at[i * 4096];
    (void)sum;
    munmap((void *)(uintptr_t)at, RAM);
    close(fd);
}

/* As a registration of memory does: the VM writes to such pages without a fault. */
static void test_pages_that_others_have_looked_at(void)
{
    static bool had[RAM / 4096];
    static struct vm_options options;
    options =
        (struct vm_options){.append = "balloon=2048 mib=4 idle=2000000",
                            .extra = {"-device", "virtio-balloon-pci,disable-modern=on,addr=5"}};
    like = &options;
    pair_start(&options);
    balloon_has(&vms[0], 56 << 20);
    borrow("tcp://127.0.0.1:0", NULL);
    mover_await(&sender, "filling", 0);
    pages_of(vms[0].ram, had);
    touch_pages(vms[1].ram, had);
    balloon_has(&vms[1], 64 << 20);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    uint8_t *wanted = copy_of(vms[0].ram);
    home_start("-S");
    home_receives("tcp://127.0.0.1:0", "--paused");
    bring();
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    overlay(wanted, vms[1].ram);
    uint8_t *is = copy_of(home.ram);
    same_bytes(is, wanted);
    munmap(is, RAM);
    munmap(wanted, RAM);
}

/* At home, whose QEMU from before and its tool have the file, too, the VM would find zeros. */
static void test_home_that_others_have_looked_at(void)
{
    static const bool none[RAM / 4096];
    borrowed(&(struct vm_options){.append = "mib=16"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    mover_stop_next("source:serving");
    bring();
    mover_await_stop(&bringer);
    for (const uint64_t until = vm_soon(); !access(vms[0].ram, F_OK); poll(NULL, 0, 5))
        assert_true(ibx_now_ns() < until); /* it gets the name that the QEMU knows */
    touch_pages(home.ram, none);
    mover_kill(&bringer, SIGCONT);
    mover_ends(&lender, 1);
    mover_must_print(&lender, "somebody else has");
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "the migration is broken");
}

/* A borrower that does not say that the VM has returned does not see its memory for longer. */
static void test_silent_borrower(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    mover_stop_next("source:serving");
    bring();
    mover_await_stop(&bringer);
    mover_kill(&receiver, SIGSTOP);
    mover_kill(&bringer, SIGCONT);
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    mover_await_words(&sender, "no page of it is served any more");
    mover_kill(&receiver, SIGCONT);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    is_home();
}

/* At home there is room for the VM's memory once, not twice. */
static void test_little_room_at_home(void)
{
    static struct vm_options options = {.append = "mib=32"};
    char place[96], ram[256], back[256];
    mover_begin();
    snprintf(place, sizeof(place), "%s/small", mover_folder);
    assert_int_equal(mkdir(place, 0700), 0);
    if (mount("none", place, "tmpfs", 0, "size=90M"))
        skip();
    const char *object = "memory-backend-file,id=mem0,size=%uM,mem-path=%s/%s,share=on";
    snprintf(ram, sizeof(ram), object, VM_RAM_MIB, place, "first");
    snprintf(back, sizeof(back), object, VM_RAM_MIB, place, "second");
    options.ram = ram;
    like = &options;
    vm_start(&vms[0], &options);
    options.ram = NULL;
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], 40); /* all of its memory */
    borrow("tcp://127.0.0.1:0", NULL);
    mover_await(&sender, "filling", 0);
    options.ram = back;
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    returned();
    vm_end(&vms[0]);
    vm_end(&home);
    assert_int_equal(umount2(place, MNT_DETACH), 0);
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

/* A borrower that keeps to itself that the VM has returned lets it return once more. */
static void test_returned_twice(void)
{
    struct ibx_options options;
    struct ibx_conn *conn;
    struct vm *next = &again;
    struct line line = {0};
    struct ibx_guest_ram ram;
    static struct ibx_migrate_hello hello;
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = &hello};
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    hello = (struct ibx_migrate_hello){
        .purpose = IBX_PURPOSE_MOVE, .id = {1}, .epoch = 1, .links_least = 1, .links = 1};
    borrowed_as(hello.base);
    mover_kill(&sender, SIGSTOP);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);

    struct vm_options like_home = *like;
    like_home.incoming = true;
    vm_start(next, &like_home);
    mover_receive(&keeper, next, "tcp://127.0.0.1:0", (const char *[]){"--home", NULL});
    vm_ok(ibx_guest_ram_find(home.qmp, true, &ram, vm_soon(), &vm_error));
    ibx_migrate_hello_describe(&hello, &ram);
    hello.warm = true;
    ibx_guest_ram_fini(&ram);
    ibx_options_init(&options);
    options.message = IBX_MIGRATE_MESSAGE;
    snprintf(options.purpose, sizeof(options.purpose), IBX_MIGRATE_PURPOSE);
    vm_ok(ibx_connect(keeper.uri, &options, &conn, &vm_error));
    ibx_channel_init(&line.control, conn);
    line_send(&line, &message);
    assert_true(line_receives(&line, IBX_MIGRATE_ANSWER));
    assert_false(line.answer.accepted);
    assert_non_null(strstr(line.answer.reasons[0], "the VM has returned already"));
    line_close(&line);
    mover_kill(&keeper, SIGINT);
    mover_ends(&keeper, 1);
    vm_end(next);
    mover_kill(&sender, SIGCONT);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    is_home();
}

/* ---------------------------------------------------------------- there once more */

/* The borrower keeps its memory: the third trip has what was written at home since, and no more. */
static void test_kept_warm(void)
{
    static bool had[RAM / 4096], has[RAM / 4096];
    struct vm_options options;
    unsigned lacked = 0;
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    mover_start(&bringer, (const char *[]){"return", lender.uri, "--qmp", vms[1].tool, "--json",
                                           "--keep-warm", TIMED, NULL});
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    mover_await(&lender, "filling", 100);
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    const json_int_t before = figure(&lender, "wire_bytes");
    assert_true(before > 0 && before <= (4 << 20) + 64 * 4096);

    uint8_t *wanted = copy_of(vms[1].ram);
    pages_of(vms[1].ram, had);
    options = *like;
    options.incoming = true;
    options.extra[0] = "-S";
    vm_start(&again, &options);
    mover_receive(&keeper, &again, "tcp://127.0.0.1:0",
                  (const char *[]){"--home", "--paused", NULL});
    mover_start(&repeater, (const char *[]){"borrow", keeper.uri, "--qmp", home.tool, "--json",
                                            "--yes", "--fill", TIMED, NULL});
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    mover_await(&keeper, "filling", 100);
    const json_int_t bytes = figure(&keeper, "wire_bytes");
    const unsigned written = overlay(wanted, home.ram);
    pages_of(home.ram, has);
    for (unsigned i = 0; i < RAM / 4096; i++)
        lacked += has[i] && !had[i];
    uint8_t *is = copy_of(again.ram);
    same_bytes(is, wanted);
    munmap(is, RAM);
    munmap(wanted, RAM);
    print_message("%u pages there again: %u were others, %u had never been there\n",
                  (unsigned)(bytes / 4096), written, lacked);
    assert_true(bytes <= (json_int_t)(written + lacked) * 4096 * 105 / 100 + 16 * 4096);
    vm_do(&again, "cont", NULL);
    vm_wait_beats(&again, vm_beats(&again) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, &again, NULL}, like->append);

    vm_kill(&again); /* home had all of its pages when it left */
    mover_ends(&keeper, 3);
    mover_ends(&repeater, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", home.tool);
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, NULL}, like->append);
}

/* ---------------------------------------------------------------- who is killed */

/* Before the commit the VM stays away, and it can return later. */
static void killed_before(const char *state)
{
    const bool destination = !strncmp(state, "destination", 11);
    struct mover *killed = destination ? &lender : &bringer;
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    if (destination)
        mover_stop_next(state);
    home_receives("tcp://127.0.0.1:0", NULL);
    if (!destination)
        mover_stop_next(state);
    bring();
    mover_await_stop(killed);
    mover_kill(killed, SIGKILL);
    mover_ends(destination ? &bringer : &lender, 1);
    stays_away();
    vm_end(&home); /* which may have its memory */
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    returned();
    mover_end_all(NULL);
}

/* After it everything goes on. */
static void killed_after(const char *state)
{
    const bool destination = !strncmp(state, "destination", 11);
    struct mover *killed = destination ? &lender : &bringer;
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    if (destination)
        mover_stop_next(state);
    home_receives("tcp://127.0.0.1:0", NULL);
    if (!destination)
        mover_stop_next(state);
    bring();
    mover_await_stop(killed);
    mover_kill(killed, SIGKILL);
    recover(killed, destination ? &home : &vms[1]);
    returned();
    mover_end_all(NULL);
}

/* While the VM is away. */
static void killed_while_away(struct mover *killed, const struct vm *vm)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    mover_kill(killed, SIGKILL);
    recover(killed, vm);
    mover_await(&sender, "filling", 0);
    mover_await(&receiver, "filling", 0);
    stays_away();
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    returned();
    mover_end_all(NULL);
}

static void test_first_killed(void)
{
    killed_after("destination:filling");
}

static void test_killed_before_the_commit(void)
{
    static const char *const states[] = {"source:exposing",   "source:warming", "source:starting",
                                         "source:stopped",    "source:sending", "destination:ready",
                                         "destination:mapped"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i]);
        killed_before(states[i]);
    }
}

static void test_killed_after_the_commit(void)
{
    static const char *const states[] = {"source:committed", "source:serving", "source:confirming",
                                         "destination:complete"};
    for (unsigned i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        print_message("%s\n", states[i]);
        killed_after(states[i]);
    }
}

/* QEMU has not got the end of the device state: the VM never ran at home, which only the operator
 * can know. */
static void test_killed_in_the_commit(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    mover_stop_next("destination:resuming");
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    mover_await_stop(&lender);
    mover_kill(&lender, SIGKILL);
    recover(&lender, &home);
    assert_int_not_equal(mover_wait(&lender), 0);
    mover_await(&bringer, "broken", 0);
    mover_kill(&bringer, SIGINT);
    mover_await_words(&bringer, "interrupt once more");
    mover_kill(&bringer, SIGINT);
    mover_ends(&bringer, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[1].tool, TIMED);
    stays_away();
    vm_end(&home);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    returned();
}

static void test_killed_while_away(void)
{
    killed_while_away(&receiver, &vms[1]);
    killed_while_away(&sender, &vms[0]);
}

/* The tools of the first migration are of no use any more when they are killed in the second one,
 * and have to learn that. */
static void test_killed_while_it_returns(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    mover_stop_next("source:serving");
    bring();
    mover_await_stop(&bringer);
    mover_kill(&receiver, SIGKILL);
    mover_kill(&sender, SIGKILL);
    mover_kill(&bringer, SIGCONT);
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    recover(&receiver, &vms[1]);
    recover(&sender, &vms[0]);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    is_home();
}

/* ---------------------------------------------------------------- which QEMU ends */

/* Its memory at home is in a file. */
static void test_home_ends_while_away(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    vm_kill(&vms[0]);
    mover_await_words(&sender, "its pages are held here");
    stays_away();
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    returned();
}

/* What is left is the memory of its stop. */
static void test_borrower_ends(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_ends(&sender, 3);
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, like->append);
}

/* The memory of the stop is no more once pages were dropped. */
static void test_base_after_a_return_that_failed(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    mover_stop_next("source:sending");
    bring();
    mover_await_stop(&bringer);
    vm_kill(&home);
    mover_kill(&bringer, SIGCONT);
    mover_ends(&bringer, 1);
    mover_ends(&lender, 1);
    stays_away();
    vm_kill(&vms[1]);
    mover_ends(&receiver, 3);
    mover_ends(&sender, 3);
    mover_must_print(&sender, "in another QEMU here (ib-migrate status), start it from its disk");
    mover_must_print(MOVER_RUN(1, "rollback", "--yes", "--qmp", vms[0].tool),
                     "a return of this VM has begun");
}

/* ---------------------------------------------------------------- what is refused, what is not */

static bool serial_has(const struct vm *vm, const char *words)
{
    static char text[1 << 20];
    const int fd = open(vm->serial, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return strstr(text, words) != NULL;
}

static json_int_t balloon_of(struct vm *vm)
{
    json_t *result = vm_run(vm, "query-balloon", NULL);
    const json_int_t bytes = json_integer_value(json_object_get(result, "actual"));
    json_decref(result);
    return bytes;
}

static void set_balloon(struct vm *vm, unsigned mib)
{
    const uint64_t until = vm_soon();
    vm_do(vm, "balloon", json_pack("{s:i}", "value", mib << 20));
    while (balloon_of(vm) != (json_int_t)mib << 20) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
}

static unsigned count_pages(const char *path)
{
    static bool there[RAM / 4096];
    unsigned count = 0;
    pages_of(path, there);
    for (unsigned i = 0; i < RAM / 4096; i++)
        count += there[i];
    return count;
}

/* What the guest gives back where it is borrowed is zero at home, too. */
static void test_balloon(void)
{
    const uint64_t until = vm_soon();
    borrowed(
        &(struct vm_options){.append = "balloon=2048 mib=4 idle=2000000",
                             .extra = {"-device", "virtio-balloon-pci,disable-modern=on,addr=5"}},
        "tcp://127.0.0.1:0", NULL);
    const unsigned before = count_pages(vms[0].ram);
    set_balloon(&vms[1], 56);
    home_start(NULL);
    home_receives("tcp://127.0.0.1:0", NULL);
    bring();
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    assert_true(count_pages(home.ram) < before - 1900);
    set_balloon(&home, 64);
    while (!serial_has(&home, "balloon 00000000")) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
    assert_false(serial_has(&vms[1], "wrong") || serial_has(&home, "wrong"));
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
}

static void test_stays(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0",
             (const char *[]){"--fill", NULL});
    mover_await(&receiver, "filling", 100);
    mover_kill(&receiver, SIGINT);
    pair_done();
    pair_moved(like->append);
    no_notes();
}

static void test_filled(void)
{
    struct ibx_options options;
    char text[256];
    ibx_options_init(&options);
    strcpy(options.ofi_provider, "tcp");
    if (ibx_provider_probe("ofi", &options, text, sizeof(text), NULL))
        skip();
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    home_receives("ofi://127.0.0.1:0?ofi_provider=tcp", NULL);
    bring();
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "or borrow it with --fill");
    stays_away();
    mover_end_all(NULL);
    borrowed(&(struct vm_options){.append = "mib=4"}, "tcp://127.0.0.1:0",
             (const char *[]){"--fill", NULL});
    mover_await(&receiver, "filling", 100);
    home_start(NULL);
    home_receives("ofi://127.0.0.1:0?ofi_provider=tcp", NULL);
    bring();
    returned();
}

static void test_refused(void)
{
    struct vm_options options = {.append = "mib=4"};
    pair_start(&options);
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", (const char *[]){"--stand-still", NULL});
    mover_must_print(MOVER_RUN(1, "borrow", receiver.uri, "--qmp", vms[0].tool, "--yes"),
                     "without --stand-still");
    mover_end_all(NULL);
    borrowed(&options, "tcp://127.0.0.1:0", NULL);
    home_start(NULL);
    mover_receive(&lender, &home, "tcp://127.0.0.1:0", NULL);
    bring();
    mover_ends(&bringer, 1);
    mover_must_print(&bringer, "it is received with --home");
    mover_kill(&lender, SIGINT);
    mover_ends(&lender, 1);
    home_receives("tcp://127.0.0.1:0", NULL);
    mover_must_print(MOVER_RUN(1, "send", "--qmp", vms[1].tool, lender.uri),
                     "has a client already");
    stays_away();
    bring();
    returned();
    mover_must_print(MOVER_RUN(1, "return", "--qmp", home.tool, "tcp://127.0.0.1:1"),
                     "was borrowed");
}

int main(void)
{
    pair_beats = 8;
    static const struct vm_test tests[] = {VM_TEST(test_first_there_and_back),
                                           VM_TEST(test_over_shm),
                                           VM_TEST(test_silent_borrower),
                                           VM_TEST(test_little_room_at_home),
                                           VM_TEST(test_given_back_and_read),
                                           VM_TEST(test_home_that_others_have_looked_at),
                                           VM_TEST(test_pages_that_others_have_looked_at),
                                           VM_TEST(test_returned_twice),
                                           VM_TEST(test_holes_of_a_home_that_locks_memory),
                                           VM_TEST(test_first_killed),
                                           VM_TEST(test_borrower_ends),
                                           VM_TEST(test_kept_warm),
                                           VM_TEST(test_refused),
                                           VM_TEST(test_killed_before_the_commit),
                                           VM_TEST(test_killed_after_the_commit),
                                           VM_TEST(test_killed_in_the_commit),
                                           VM_TEST(test_killed_while_away),
                                           VM_TEST(test_killed_while_it_returns),
                                           VM_TEST(test_home_ends_while_away),
                                           VM_TEST(test_base_after_a_return_that_failed),
                                           VM_TEST(test_balloon),
                                           VM_TEST(test_stays),
                                           VM_TEST(test_filled),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
