/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Guest RAM of the destination and the notes of it: what the engine is told, which pages a tool
 * that takes over counts as present, and memory that this side cannot or must not use. This process
 * acts as QEMU. */
#include "migrate/destination/ram.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGES 8u
#define PAGE  4096u

static struct destination_ram ram;
static struct ibx_record record;
static struct ibx_error error;
static uint8_t *at;        /* guest RAM, as QEMU has it mapped */
static char engine_memory; /* takes the engine's place */
#define ENGINE ((struct ibx_fault *)&engine_memory)

/* ------------------------------------------------------------ replaced functions */

static struct {
    uint64_t written;     /* pages that are found in the file; their bits */
    bool mapped, no_room; /* QEMU has mapped pages; the notes have taken the room */
    bool uncovered;       /* a page with data is in no region */
    enum ibx_fault_state engine;
    struct ibx_fault_stats stats;
} is;
static struct {
    unsigned registered, unregistered, destroyed;
    bool alias; /* of the last range */
    bool took_over;
    struct ibx_fault_config config;
    struct ibx_fault_range range;
    bool rebuilt;
    uint8_t present;
    uint8_t missing, zero; /* pages that were marked so */
} was;

int __wrap_ibx_uffd_make(pid_t pid, struct ibx_qmp *qmp, enum ibx_uffd_way way,
                         struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_uffd_make(pid_t pid, struct ibx_qmp *qmp, enum ibx_uffd_way way,
                         struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    *uffd = (struct ibx_uffd){.pid = pid, .fd = -1, .remote = 7, .way = way};
    return 0;
}

int __wrap_ibx_guest_ram_huge_pages(const struct ibx_guest_ram *guest, bool allowed,
                                    uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_guest_ram_huge_pages(const struct ibx_guest_ram *guest, bool allowed,
                                    uint64_t deadline_ns, struct ibx_error *err)
{
    (void)guest, (void)allowed, (void)deadline_ns, (void)err;
    return 0;
}

int __wrap_ibx_fault_uffd_enable(int uffd, uint64_t features, struct ibx_error *err);
int __wrap_ibx_fault_uffd_enable(int uffd, uint64_t features, struct ibx_error *err)
{
    (void)uffd, (void)features, (void)err;
    return 0;
}

int __wrap_ibx_fault_register(int uffd, const struct ibx_fault_range *range, struct ibx_error *err);
int __wrap_ibx_fault_register(int uffd, const struct ibx_fault_range *range, struct ibx_error *err)
{
    (void)uffd, (void)err;
    was.registered++;
    was.alias = range->alias != NULL;
    return 0;
}

int __wrap_ibx_fault_unregister(int uffd, const struct ibx_fault_range *range,
                                struct ibx_error *err);
int __wrap_ibx_fault_unregister(int uffd, const struct ibx_fault_range *range,
                                struct ibx_error *err)
{
    (void)uffd, (void)range, (void)err;
    was.unregistered++;
    return 0;
}

int __wrap_ibx_guest_ram_any_mapped(const struct ibx_guest_ram *guest, bool *any);
int __wrap_ibx_guest_ram_any_mapped(const struct ibx_guest_ram *guest, bool *any)
{
    (void)guest;
    *any = is.mapped;
    return 0;
}

int __wrap_ibx_guest_block_written(const struct ibx_guest_ram *guest,
                                   const struct ibx_guest_block *block, uint64_t *bits,
                                   uint64_t *count, struct ibx_error *err);
int __wrap_ibx_guest_block_written(const struct ibx_guest_ram *guest,
                                   const struct ibx_guest_block *block, uint64_t *bits,
                                   uint64_t *count, struct ibx_error *err)
{
    (void)guest, (void)block, (void)err;
    bits[0] = is.written;
    *count = (uint64_t)__builtin_popcountll(is.written);
    return 0;
}

void __wrap_ibx_preflight_space(const struct ibx_guest_ram *guest, struct ibx_blockers *blockers);
void __wrap_ibx_preflight_space(const struct ibx_guest_ram *guest, struct ibx_blockers *blockers)
{
    (void)guest;
    was.took_over = blockers->takes_over;
    if (is.no_room)
        ibx_blockers_add(blockers, "there is no room");
}

struct ibx_conn *__wrap_ibx_page_reader_conn(const struct ibx_page_reader *reader);
struct ibx_conn *__wrap_ibx_page_reader_conn(const struct ibx_page_reader *reader)
{
    (void)reader;
    return NULL;
}

const struct ibx_path *__wrap_ibx_conn_path(const struct ibx_conn *conn);
const struct ibx_path *__wrap_ibx_conn_path(const struct ibx_conn *conn)
{
    static const struct ibx_path path;
    (void)conn;
    return &path;
}

int __wrap_ibx_page_reader_serve(struct ibx_page_reader *reader, size_t buffer_bytes,
                                 struct ibx_fault_reader *as, struct ibx_error *err);
int __wrap_ibx_page_reader_serve(struct ibx_page_reader *reader, size_t buffer_bytes,
                                 struct ibx_fault_reader *as, struct ibx_error *err)
{
    (void)reader, (void)buffer_bytes, (void)as, (void)err;
    return 0;
}

int __wrap_ibx_page_reader_arm(struct ibx_page_reader *reader, size_t buffer_bytes,
                               struct ibx_fault_reader *as, struct ibx_error *err);
int __wrap_ibx_page_reader_arm(struct ibx_page_reader *reader, size_t buffer_bytes,
                               struct ibx_fault_reader *as, struct ibx_error *err)
{
    (void)reader, (void)buffer_bytes, (void)as, (void)err;
    return 0;
}

int __wrap_ibx_page_reader_covers(const struct ibx_page_reader *reader,
                                  const struct ibx_page_map *map, struct ibx_error *err);
int __wrap_ibx_page_reader_covers(const struct ibx_page_reader *reader,
                                  const struct ibx_page_map *map, struct ibx_error *err)
{
    (void)reader;
    assert_ptr_equal(map, &ram.map);
    return is.uncovered ? ibx_error_set(err, -EPROTO, "page 3 is in no region") : 0;
}

int __wrap_ibx_fault_create(const struct ibx_fault_config *config, struct ibx_fault **engine,
                            struct ibx_error *err);
int __wrap_ibx_fault_create(const struct ibx_fault_config *config, struct ibx_fault **engine,
                            struct ibx_error *err)
{
    (void)err;
    was.config = *config;
    was.range = config->ranges[0];
    *engine = ENGINE;
    return 0;
}

void __wrap_ibx_fault_destroy(struct ibx_fault *engine);
void __wrap_ibx_fault_destroy(struct ibx_fault *engine)
{
    was.destroyed += engine != NULL;
}

enum ibx_fault_state __wrap_ibx_fault_state(const struct ibx_fault *engine);
enum ibx_fault_state __wrap_ibx_fault_state(const struct ibx_fault *engine)
{
    (void)engine;
    return is.engine;
}

void __wrap_ibx_fault_stats(const struct ibx_fault *engine, struct ibx_fault_stats *stats);
void __wrap_ibx_fault_stats(const struct ibx_fault *engine, struct ibx_fault_stats *stats)
{
    (void)engine;
    *stats = is.stats;
}

int __wrap_ibx_fault_rebuild(struct ibx_fault *engine, const uint8_t *present, uint64_t pages,
                             struct ibx_error *err);
int __wrap_ibx_fault_rebuild(struct ibx_fault *engine, const uint8_t *present, uint64_t pages,
                             struct ibx_error *err)
{
    (void)engine, (void)err;
    assert_int_equal(pages, PAGES);
    was.rebuilt = true;
    was.present = present[0];
    return 0;
}

int __wrap_ibx_fault_mark_zero(struct ibx_fault *engine, uint64_t first, uint64_t count);
int __wrap_ibx_fault_mark_zero(struct ibx_fault *engine, uint64_t first, uint64_t count)
{
    (void)engine;
    for (uint64_t page = first; page < first + count; page++)
        was.zero = (uint8_t)(was.zero | 1u << page);
    return 0;
}

int __wrap_ibx_fault_mark_missing(struct ibx_fault *engine, uint64_t first, uint64_t count);
int __wrap_ibx_fault_mark_missing(struct ibx_fault *engine, uint64_t first, uint64_t count)
{
    (void)engine;
    for (uint64_t page = first; page < first + count; page++)
        was.missing = (uint8_t)(was.missing | 1u << page);
    return 0;
}

int __wrap_ibx_fault_serve(struct ibx_fault *engine);
int __wrap_ibx_fault_serve(struct ibx_fault *engine)
{
    (void)engine;
    return 0;
}

/* ------------------------------------------------------------ steps */

static int begin(void **state)
{
    static struct ibx_guest_block block;
    struct stat st;
    (void)state;
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    ibx_destination_ram_init(&ram, false, 0);
    block = (struct ibx_guest_block){.id = "ram0",
                                     .path = "/dev/shm/ram0",
                                     .size = PAGES * PAGE,
                                     .page_size = PAGE,
                                     .fd = memfd_create("ram0", MFD_CLOEXEC)};
    if (block.fd < 0 || ftruncate(block.fd, PAGES * PAGE) || fstat(block.fd, &st))
        return -1;
    at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd, 0);
    block.address = (uintptr_t)at;
    block.dev = st.st_dev;
    block.ino = st.st_ino;
    ram.guest = (struct ibx_guest_ram){
        .pid = getpid(), .blocks = &block, .count = 1, .bytes = PAGES * PAGE, .machine = "none"};
    record = (struct ibx_record){.written_s = 1, .pid = getpid()};
    snprintf((char *)record.id, sizeof(record.id), "%d ram", (int)getpid());
    return at == MAP_FAILED || ibx_page_map_init_ram(&ram.map, &ram.guest, &error);
}

static int end(void **state)
{
    (void)state;
    ibx_destination_arrived_remove(&record);
    ibx_destination_tags_remove(&record);
    munmap(at, PAGES * PAGE);
    close(ram.guest.blocks[0].fd);
    ram.guest = (struct ibx_guest_ram){.count = 0};
    for (unsigned i = 0; i < COUNT(ram.aliases); i++)
        ram.aliases[i] = NULL;
    ibx_destination_ram_fini(&ram);
    return 0;
}

static int watch(void)
{
    memset(&error, 0, sizeof(error));
    return ibx_destination_ram_watch(&ram, NULL, &record, &error);
}

static void make_engine(bool runs)
{
    struct ibx_page_reader *reader = NULL;
    assert_int_equal(ibx_destination_ram_engine(&ram, &reader, 1, runs, &error), 0);
}

static void make_arrived(uint64_t arrived, uint64_t placed)
{
    assert_int_equal(ibx_destination_arrived_make(&ram, &record, &error), 0);
    *(uint64_t *)ram.arrived.memory = arrived;
    *(uint64_t *)(void *)ibx_destination_placed(&ram) = placed;
}

static uint64_t arrived(void)
{
    return *(const uint64_t *)ram.arrived.memory;
}

static uint64_t placed(void)
{
    return *(const uint64_t *)(const void *)ibx_destination_placed(&ram);
}

/* These pages of the VM, as a map. */
static struct ibx_page_map map_of(uint64_t bits)
{
    struct ibx_page_map map;
    assert_int_equal(ibx_page_map_init_ram(&map, &ram.guest, &error), 0);
    for (unsigned i = 0; i < PAGES; i++)
        if (bits >> i & 1)
            ibx_page_map_set(&map, i, 1);
    return map;
}

static void page_comes(uint64_t page, uint8_t byte)
{
    uint8_t bytes[PAGE];
    memset(bytes, byte, sizeof(bytes));
    assert_int_equal(ibx_page_tags_note(ram.page_tags, 0, page, 1, bytes, &error), 0);
}

/* ------------------------------------------------------------ before the VM comes */

/* It would see pages that are not its own. */
static void memory_that_somebody_writes_to(NO_STATE)
{
    memset(at, 1, PAGE);
    is.written = 5;
    assert_int_equal(watch(), -EBUSY);
    text_has(error.message, "2 pages of guest RAM ram0 came back after it had been emptied");
    assert_int_equal(at[0], 0);
}

/* Memory that the VM left here has its pages, and is not emptied. */
static void memory_that_is_kept(NO_STATE)
{
    memset(at, 1, PAGE);
    is.written = 1;
    ram.kept = true;
    assert_int_equal(watch(), 0);
    assert_int_equal(at[0], 1);
    assert_true(was.took_over);
    assert_int_equal(record.uffd, 7);
}

static void the_notes_take_the_room(NO_STATE)
{
    is.no_room = true;
    assert_int_equal(watch(), -ENOSPC);
    text_has(error.message, "there is no room");
    assert_false(was.took_over);
}

/* Then a READ into the page cache would change what QEMU sees, without a fault. */
static void qemu_has_mapped_pages(NO_STATE)
{
    ram.kept = ram.minor = true;
    is.mapped = true;
    assert_int_equal(watch(), 0);
    assert_false(ram.minor);
    assert_int_equal(was.registered, 2);
    assert_int_equal(was.unregistered, 1);
    assert_false(was.alias);
    assert_null(ram.aliases[0]);
}

static void qemu_has_mapped_none(NO_STATE)
{
    ram.kept = ram.minor = true;
    assert_int_equal(watch(), 0);
    assert_true(ram.minor && was.alias && ram.aliases[0]);
    assert_int_equal(was.registered, 1);
    munmap(ram.aliases[0], PAGES * PAGE);
}

/* ------------------------------------------------------------ the engine */

static void the_engine_of_a_vm_that_stays(NO_STATE)
{
    assert_int_equal(watch(), 0);
    make_engine(true);
    assert_false(was.range.protect || was.config.exclusive || was.config.no_background);
    assert_true(!was.config.check && !was.config.removed);
    assert_ptr_equal(was.config.arrived, ram.arrived.memory);
    assert_ptr_equal(was.config.placed, ibx_destination_placed(&ram));
    make_engine(false);
    assert_true(was.config.no_background);
}

/* What it writes is found when it returns, and until then only what it needs comes. */
static void the_engine_of_a_borrowed_vm(NO_STATE)
{
    ram.borrow = IBX_BORROW_LAZY;
    assert_int_equal(watch(), 0);
    make_engine(true);
    assert_true(was.range.protect && was.config.no_background && !was.config.exclusive);
}

/* Others have its files, and may put pages there. */
static void the_engine_of_a_vm_that_has_returned(NO_STATE)
{
    ram.kept = true;
    assert_int_equal(watch(), 0);
    make_engine(true);
    assert_true(was.config.exclusive && !was.range.protect);
}

/* A tag may have been computed from a page that QEMU had emptied: then the page comes again. */
static void the_engine_of_a_verified_vm(NO_STATE)
{
    record.verify = true;
    assert_int_equal(watch(), 0);
    make_engine(true);
    assert_ptr_equal(was.config.check, ibx_page_tags_note);
    page_comes(3, 0);
    was.config.removed(was.config.check_context, 3, 1);
    page_comes(3, 1);
    assert_int_equal(ibx_page_tags_conflict(ram.page_tags, &error), 0);
}

/* It would be lost with the source, and is missed before the VM is committed. */
static void a_page_is_in_no_region(NO_STATE)
{
    struct ibx_page_reader *reader = NULL;
    for (unsigned i = 0; i < 2; i++) {
        is.uncovered = i;
        assert_int_equal(ibx_destination_ram_serve(&ram, &reader, 1, false, &error),
                         i ? -EPROTO : 0);
        assert_int_equal(was.destroyed, i);
        assert_int_equal(ram.engine == NULL, i);
    }
}

/* ------------------------------------------------------------ a tool takes over */

/* Where other processes have the files, a page in the file may be a hole that one of them has read.
 * A page that was in its place and is gone was given back, and must not come again. */
static void which_pages_count_as_present(NO_STATE)
{
    static const struct {
        bool recovered, kept, minor, unmapped;
        uint8_t present;
    } cases[] = {
        {false, false, false, false, 0},        {true, false, false, false, 0x3 | 0x10},
        {true, true, false, false, 0x2 | 0x10}, {true, false, true, false, 0x2 | 0x8},
        {true, false, false, true, 0x10},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        if (i)
            begin(NULL);
        make_arrived(0x2 | 0x8, 0x10);
        is.written = 0x3;
        ram.recovered = cases[i].recovered;
        ram.kept = cases[i].kept;
        ram.minor = cases[i].minor;
        ram.guest.blocks[0].unmapped = cases[i].unmapped;
        ram.engine = ENGINE;
        ibx_page_map_set(&ram.map, 1, 2);
        assert_int_equal(ibx_destination_ram_serve(&ram, NULL, 0, true, &error), 0);
        assert_int_equal(was.zero, 0xf9); /* they hold no data at the source, and never come */
        assert_int_equal(was.rebuilt, cases[i].recovered);
        assert_int_equal(was.present, cases[i].present);
        if (i + 1 < COUNT(cases))
            end(NULL);
    }
}

/* ------------------------------------------------------------ pages that come again */

static void pages_are_forgotten(NO_STATE)
{
    struct ibx_page_map again = map_of(0x6);
    make_arrived(0xff, 0xff);
    ram.had = map_of(0x7);
    ram.engine = ENGINE;
    assert_int_equal(ibx_destination_ram_forget(&ram, &again, &error), 0);
    assert_int_equal(ram.had.bits[0], 0x1);
    assert_int_equal(arrived(), 0xf9);
    assert_int_equal(placed(), 0xf9);
    assert_int_equal(was.missing, 0x6);
    ibx_page_map_fini(&again);
}

/* With another content, which is no conflict. */
static void pages_are_dropped(NO_STATE)
{
    struct ibx_page_map again = map_of(0x6);
    record.verify = true;
    assert_int_equal(watch(), 0);
    memset(at, 1, PAGES * PAGE);
    page_comes(1, 1);
    assert_int_equal(ibx_destination_ram_drop(&ram, &again, &error), 0);
    assert_true(at[0] == 1 && at[PAGE] == 0 && at[2 * PAGE] == 0 && at[3 * PAGE] == 1);
    page_comes(1, 2);
    assert_int_equal(ibx_page_tags_conflict(ram.page_tags, &error), 0);
    ibx_page_map_fini(&again);
}

/* ------------------------------------------------------------ notes */

/* A tool that takes over must not fetch them: the VM may have written to them. */
static void pages_that_were_here_are_noted(NO_STATE)
{
    make_arrived(0x1, 0x1);
    ibx_destination_arrived_had(&ram);
    assert_int_equal(arrived(), 0x1);
    ram.had = map_of(0x6);
    ibx_destination_arrived_had(&ram);
    assert_int_equal(arrived(), 0x7);
    assert_int_equal(placed(), 0x7);
}

/* By that the return knows what home has. */
static void the_map_of_a_borrowed_vm_is_noted(NO_STATE)
{
    ibx_destination_base_note(&ram); /* there is no note */
    assert_int_equal(ibx_destination_base_make(&ram, &record, &error), 0);
    ibx_page_map_set(&ram.map, 2, 3);
    ibx_destination_base_note(&ram);
    assert_int_equal(*(const uint64_t *)ram.base.memory, 0x1c);
}

/* It does not return before the source has compared these. */
static void pages_of_a_borrowed_vm_are_counted(NO_STATE)
{
    ram.borrow = IBX_BORROW_FILL;
    assert_int_equal(ibx_destination_tags_make(&ram, &record, &error), 0);
    page_comes(1, 1);
    page_comes(2, 1);
    assert_int_equal(((const uint64_t *)ram.tags.memory)[PAGES], 2);
}

/* ------------------------------------------------------------ the end */

/* The engine of a borrowed VM is stopped with its link, whether it has all pages or not. */
static void whether_all_pages_are_here(NO_STATE)
{
    assert_false(ibx_destination_ram_whole(&ram));
    ram.engine = ENGINE;
    is.engine = IBX_FAULT_SERVING;
    is.stats = (struct ibx_fault_stats){.pages = PAGES, .present = PAGES};
    assert_false(ibx_destination_ram_whole(&ram));
    is.engine = IBX_FAULT_COMPLETE;
    assert_true(ibx_destination_ram_whole(&ram));
    is.engine = IBX_FAULT_STOPPED;
    assert_true(ibx_destination_ram_whole(&ram));
    is.stats.present--;
    assert_false(ibx_destination_ram_whole(&ram));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_that_somebody_writes_to),
        TEST(memory_that_is_kept),
        TEST(the_notes_take_the_room),
        TEST(qemu_has_mapped_pages),
        TEST(qemu_has_mapped_none),
        TEST(the_engine_of_a_vm_that_stays),
        TEST(the_engine_of_a_borrowed_vm),
        TEST(the_engine_of_a_vm_that_has_returned),
        TEST(the_engine_of_a_verified_vm),
        TEST(a_page_is_in_no_region),
        TEST(which_pages_count_as_present),
        TEST(pages_are_forgotten),
        TEST(pages_are_dropped),
        TEST(pages_that_were_here_are_noted),
        TEST(the_map_of_a_borrowed_vm_is_noted),
        TEST(pages_of_a_borrowed_vm_are_counted),
        TEST(whether_all_pages_are_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
