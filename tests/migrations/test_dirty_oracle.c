/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Compares the tracker (migrate/qemu/tracker.c, on which `send --warm` and `return` rely) with what
 * QEMU itself calls dirty. QEMU's pre-copy of the same guest, at the same time, goes to this
 * program, which reads pages and their addresses from the stream. If a page comes again, QEMU has
 * found it dirty in a later look, and so after the tracker's beginning: if its bytes differ, the
 * tracker must have seen it.
 *
 * The comparison is exact only in this direction. Nobody can choose or know when QEMU looks, so one
 * scan of the tracker cannot be compared with one look of QEMU's: all scans together are compared.
 * QEMU calls more pages dirty than are written: with TCG the guest's page tables, whenever it looks
 * something up there for a write (these come again with the same bytes, and are counted), and
 * everything that a device has mapped for writing. The tracker has more than QEMU's stream: what
 * was written before the page was first sent. The guest passes through its memory about once
 * meanwhile: a page that one scan missed is not written again in time to hide that.
 */
#include "tests/fixtures/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE  4096u
#define PAGES ((size_t)(VM_RAM_MIB << 20) / PAGE)
/* Bytes a second. QEMU ends by itself once less is dirty than goes in 1 ms: two pages. A guest that
 * gets no processor meanwhile writes less: then the VM goes on, and another migration with it. */
#define BANDWIDTH (8 << 20)
#define LOOKS     5
#define BEATS     60 /* of the guest, 32 pages each, while QEMU looks */
#define SCAN_MS   40

/* Of QEMU's stream: migration/savevm.c and migration/ram.c of its sources name them. */
enum {
    MAGIC = 0x5145564d,
    SECTION_START = 1,
    SECTION_PART = 2,
    SECTION_END = 3,
    SECTION_CONFIGURATION = 7,
    SECTION_FOOTER = 0x7e,
    RAM_ZERO = 0x02,
    RAM_SIZES = 0x04,
    RAM_PAGE = 0x08,
    RAM_END = 0x10,
    RAM_SAME_BLOCK = 0x20,
    RAM_FLUSH = 0x200,
    RAM_FLAGS = 0xfff,
};

static struct vm vm;
static struct sink {
    int listener;
    FILE *in;
    char block[256];      /* of the last page */
    uint64_t hash[PAGES]; /* of the bytes with which a page of guest RAM came last */
    bool again[PAGES];    /* it has come more than once */
    bool changed[PAGES];  /* ... with other bytes */
    bool came[PAGES];
    unsigned others; /* pages of other blocks */
    char wrong[128]; /* what was not understood; "" */
    pthread_t thread;
} sink;
static uint64_t seen[PAGES / 64]; /* by the tracker */

/* ---------------------------------------------------------------- the stream */

static uint64_t take(unsigned bytes)
{
    uint64_t value = 0;
    while (bytes--) {
        const int c = getc(sink.in);
        if (c == EOF) {
            snprintf(sink.wrong, sizeof(sink.wrong), "the stream has ended");
            return 0;
        }
        value = value << 8 | (unsigned)c;
    }
    return value;
}

/* FNV-1a of so many bytes. */
static uint64_t take_hash(uint64_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    while (bytes-- && !sink.wrong[0])
        hash = (hash ^ take(1)) * 0x100000001b3u;
    return hash;
}

static void skip_bytes(uint64_t bytes)
{
    while (bytes-- && !sink.wrong[0])
        take(1);
}

static void take_name(char name[256])
{
    const unsigned length = (unsigned)take(1);
    for (unsigned i = 0; i < length; i++)
        name[i] = (char)take(1);
    name[length] = '\0';
}

static void take_sizes(uint64_t total)
{
    char name[256];
    for (uint64_t bytes = 0; bytes < total && !sink.wrong[0];) {
        take_name(name);
        bytes += take(8);
    }
}

static void take_page(uint64_t word)
{
    if (!(word & RAM_SAME_BLOCK))
        take_name(sink.block);
    const uint64_t page = word / PAGE;
    const uint64_t hash = word & RAM_PAGE ? take_hash(PAGE) : take(1);
    if (strcmp(sink.block, "mem0") != 0 || page >= PAGES) {
        sink.others++;
        return;
    }
    sink.again[page] |= sink.came[page];
    sink.changed[page] |= sink.came[page] && hash != sink.hash[page];
    sink.came[page] = true;
    sink.hash[page] = hash;
}

/* Up to RAM_END. */
static void take_ram(void)
{
    while (!sink.wrong[0]) {
        const uint64_t word = take(8), flags = word & RAM_FLAGS;
        if (flags & RAM_END)
            return;
        if (flags & RAM_SIZES)
            take_sizes(word & ~(uint64_t)RAM_FLAGS);
        else if (flags & (RAM_PAGE | RAM_ZERO))
            take_page(word);
        else if (flags != RAM_FLUSH)
            snprintf(sink.wrong, sizeof(sink.wrong), "flags 0x%" PRIx64 " of RAM", flags);
    }
}

/* One section; false after the last one of RAM. */
static bool take_section(void)
{
    const unsigned type = (unsigned)take(1);
    char name[256] = "ram";
    if (type == SECTION_CONFIGURATION) {
        skip_bytes(take(4));
        return true;
    }
    if (type < SECTION_START || type > SECTION_END)
        snprintf(sink.wrong, sizeof(sink.wrong), "a section of type %u", type);
    take(4);
    if (type == SECTION_START) {
        take_name(name);
        take(8);
    }
    if (strcmp(name, "ram") != 0)
        snprintf(sink.wrong, sizeof(sink.wrong), "a section of %.64s", name);
    if (!sink.wrong[0])
        take_ram();
    if (!sink.wrong[0] && take(1) == SECTION_FOOTER)
        take(4);
    return type != SECTION_END;
}

static void *drain(void *argument)
{
    const int fd = accept(sink.listener, NULL, NULL);
    sink.in = fdopen(fd, "r");
    setvbuf(sink.in, NULL, _IOFBF, 1 << 20);
    if (take(4) != MAGIC || take(4) != 3)
        snprintf(sink.wrong, sizeof(sink.wrong), "no stream of version 3");
    while (!sink.wrong[0] && take_section())
        ;
    while (!sink.wrong[0] && getc(sink.in) != EOF) /* devices */
        ;
    fclose(sink.in);
    return argument;
}

static void sink_open(char uri[128])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.64s/stream", vm.dir);
    snprintf(uri, 128, "unix:%s", address.sun_path);
    memset(&sink, 0, sizeof(sink));
    sink.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(sink.listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(sink.listener, 1), 0);
}

/* ---------------------------------------------------------------- both of them */

static void limits(int downtime_ms)
{
    vm_do(&vm, "migrate-set-parameters",
          json_pack("{s:I, s:i}", "max-bandwidth", (json_int_t)BANDWIDTH, "downtime-limit",
                    downtime_ms));
}

/* How often QEMU has looked; `status` of its migration. */
static json_int_t looks(char status[32])
{
    json_t *result = vm_run(&vm, "query-migrate", NULL);
    const char *text = json_string_value(json_object_get(result, "status"));
    const json_int_t count =
        json_integer_value(json_object_get(json_object_get(result, "ram"), "dirty-sync-count"));
    snprintf(status, 32, "%s", text ? text : "");
    json_decref(result);
    return count;
}

static void protect_all(const struct ibx_tracker *tracker)
{
    static uint64_t all[PAGES / 64], before[PAGES / 64];
    memset(all, 0xff, sizeof(all));
    vm_ok(ibx_tracker_protect(tracker, 0, all, before, &vm_error));
}

/* As `send --warm` does: protecting may find some more. */
static void scan(const struct ibx_tracker *tracker, bool last)
{
    uint64_t found[PAGES / 64] = {0};
    vm_ok(ibx_tracker_scan(tracker, 0, last, found, &vm_error));
    if (!last)
        vm_ok(ibx_tracker_protect(tracker, 0, found, seen, &vm_error));
    for (size_t i = 0; last && i < PAGES / 64; i++)
        seen[i] |= found[i];
}

/* What has been done in all of QEMU's migrations. */
struct work {
    json_int_t looks;
    unsigned long beats; /* how many there are when there have been enough; 0: not known yet */
};

/* Scans as `send --warm` does until one of QEMU's migrations is over. Returns whether that was
 * enough. */
static bool migrate_once(const struct ibx_tracker *tracker, const char *uri, struct work *work)
{
    char status[32] = "";
    bool enough = false;
    json_int_t looked = 0;
    const uint64_t until = vm_soon();
    assert_int_equal(pthread_create(&sink.thread, NULL, drain, NULL), 0);
    limits(1);
    vm_do(&vm, "migrate", json_pack("{s:s}", "uri", uri));
    while (strcmp(status, "completed") != 0) {
        assert_true(ibx_now_ns() < until && strcmp(status, "failed") != 0);
        scan(tracker, false);
        looked = looks(status);
        if (looked > 1 &&
            !work->beats) /* all pages have been sent once: what comes now was dirty */
            work->beats = vm_beats(&vm) + BEATS;
        if (work->looks + looked >= LOOKS && work->beats && vm_beats(&vm) >= work->beats &&
            !enough) {
            enough = true;
            limits(20000);
        }
        poll(NULL, 0, SCAN_MS);
    }
    pthread_join(sink.thread, NULL);
    work->looks += looked;
    return enough;
}

/* QEMU calls a migration completed a moment before it lets the VM go on. */
static void go_on(void)
{
    const uint64_t until = vm_soon();
    for (bool over = false; !over; poll(NULL, 0, SCAN_MS)) {
        json_t *result = vm_run(&vm, "query-status", NULL);
        over = !strcmp(json_string_value(json_object_get(result, "status")), "postmigrate");
        json_decref(result);
        assert_true(over || ibx_now_ns() < until);
    }
    vm_do(&vm, "cont", NULL);
}

/* In a further migration, too, pages that come with other bytes than before have been written. */
static void migrate(const struct ibx_tracker *tracker, const char *uri)
{
    struct work work = {0};
    while (!migrate_once(tracker, uri, &work)) {
        print_message("QEMU's migration has ended by itself\n");
        go_on();
    }
    scan(tracker, true);
}

static void compare(void)
{
    unsigned dirty = 0, changed = 0, missed = 0, saw = 0;
    for (size_t i = 0; i < PAGES; i++) {
        const bool tracked = seen[i / 64] >> (i % 64) & 1;
        dirty += sink.again[i];
        changed += sink.changed[i];
        saw += tracked;
        missed += sink.changed[i] && !tracked;
    }
    print_message(
        "QEMU has sent %u pages of %zu again, %u of them with other bytes; the tracker has "
        "seen %u, of these all but %u\n",
        dirty, PAGES, changed, saw, missed);
    assert_string_equal(sink.wrong, "");
    assert_true(changed > 300 && sink.others > 0);
    assert_true(saw < PAGES * 3 / 4); /* else it would say little that it has seen them */
    assert_int_equal(missed, 0);
}

static void with_guest(const struct vm_options *options)
{
    struct ibx_guest_ram ram;
    struct ibx_tracker tracker;
    char uri[128];
    memset(seen, 0, sizeof(seen));
    vm_start(&vm, options);
    vm_wait_beats(&vm, 2);
    vm_ok(ibx_guest_ram_find(vm.qmp, false, &ram, vm_soon(), &vm_error));
    assert_int_equal(ram.count, 1);
    ibx_tracker_init(&tracker);
    const int rc = ibx_tracker_open(&tracker, &ram, vm.qmp, vm_soon(), &vm_error);
    if (rc == -EOPNOTSUPP)
        skip();
    vm_ok(rc);
    protect_all(&tracker);
    sink_open(uri);
    migrate(&tracker, uri);
    close(sink.listener);
    ibx_tracker_close(&tracker);
    ibx_guest_ram_fini(&ram);
    compare();
    vm_end(&vm);
}

static void test_nothing_is_missed(void)
{
    with_guest(&(struct vm_options){.append = "mib=32 beat=32 doze=8000000"});
}

static void test_nothing_of_two_is_missed(void)
{
    with_guest(&(struct vm_options){.append = "cpus=2 mib=32 beat=32 scattered=1 doze=8000000",
                                    .two = true});
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_nothing_is_missed), VM_TEST(test_nothing_of_two_is_missed), {0}};
    return vm_tests(tests, vm_end_all);
}
