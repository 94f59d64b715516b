/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/common.h"
#include "migrate/destination/ram.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPIN_US  50
#define CLOSE_MS 1000 /* for QEMU to close its descriptor, at a time */

static const struct ibx_state ram_states[] = {
    [RAM_UNTOUCHED] = {"untouched", IBX_TO(RAM_OPENED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [RAM_OPENED] = {"opened", IBX_TO(RAM_REGISTERED) | IBX_TO(RAM_UNTOUCHED), 0},
    [RAM_REGISTERED] = {"registered", IBX_TO(RAM_OPENED) | IBX_TO(RAM_UNTOUCHED), 0},
};
static const struct ibx_state_table ram_table = IBX_STATE_TABLE("destination ram", ram_states);

void ibx_destination_ram_init(struct destination_ram *ram, bool minor, uint64_t max_bandwidth)
{
    *ram = (struct destination_ram){.uffd.fd = -1, .minor = minor, .max_bandwidth = max_bandwidth};
    ibx_state_begin(&ram->state, &ram_table, RAM_UNTOUCHED);
}

/* ---------------------------------------------------------------- records */

/* Notes guest RAM and its userfaultfd, so that a new tool finds them without the monitor. */
static void put_on_record(const struct destination_ram *ram, struct ibx_record *record)
{
    record->uffd = ram->uffd.remote;
    record->device_way = ram->uffd.way == IBX_UFFD_DEVICE;
    ibx_journal_note_ram(record, &ram->guest);
}

int ibx_destination_ram_of_record(struct destination_ram *ram, const struct ibx_record *record,
                                  struct ibx_error *err)
{
    int rc = ibx_journal_recall_ram(record, &ram->guest, err);
    ram->borrow = record->borrow;
    return rc ? rc : ibx_page_map_init_ram(&ram->map, &ram->guest, err);
}

/* ---------------------------------------------------------------- memory */

static void range_of(const struct destination_ram *ram, unsigned i, struct ibx_fault_range *range)
{
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    uint64_t offset = 0;
    for (unsigned k = 0; k < i; k++)
        offset += ram->guest.blocks[k].size;
    *range = (struct ibx_fault_range){
        .start = block->address,
        .length = block->size,
        .page_size = (uint32_t)block->page_size,
        .first_page = ram->map.blocks[i].first,
        .reader_offset = offset,
        .alias = ram->aliases[i],
        .protect = ram->borrow != IBX_BORROW_NOT,
    };
}

/* A huge page that is punched out loses its reservation: another process could take it, and QEMU
 * would end by SIGBUS when the VM needs the page. A reservation for a file persists without a
 * mapping. */
static int reserve_huge_pages(const struct ibx_guest_block *block, struct ibx_error *err)
{
    if (block->page_size <= 4096)
        return 0;
    void *at = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd,
                    (off_t)block->offset);
    if (at == MAP_FAILED)
        return ibx_error_set(err, -errno,
                             "no huge pages of %" PRIu64 " KiB can be reserved for guest RAM %s, "
                             "which needs %" PRIu64 ": %s; make room for them (vm.nr_hugepages, a "
                             "size= of their mount, limits of a control group)",
                             block->page_size >> 10, block->id, block->size / block->page_size,
                             strerror(errno));
    munmap(at, block->size);
    return 0;
}

static int punch(const struct ibx_guest_block *block, struct ibx_error *err)
{
    if (fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->offset,
                  (off_t)block->size))
        return ibx_error_set(err, -errno, "guest RAM %s (%s) cannot be emptied: %s", block->id,
                             block->path, strerror(errno));
    return reserve_huge_pages(block, err);
}

/* From now on only the engine may put pages into guest RAM: it would miss faults otherwise. */
static int check_empty(const struct destination_ram *ram, unsigned i, struct ibx_error *err)
{
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    uint64_t written, *bits = ibx_guest_bits_make(block, err);
    if (!bits)
        return -ENOMEM;
    int rc = ibx_guest_block_written(&ram->guest, block, bits, &written, err);
    free(bits);
    if (!rc && written)
        rc = ibx_error_set(err, -EBUSY,
                           "%llu pages of guest RAM %s came back after it had been emptied: "
                           "another process has %s mapped and writes to it",
                           (unsigned long long)written, block->id, block->path);
    return rc;
}

static int map_alias(struct destination_ram *ram, unsigned i, struct ibx_error *err)
{
    const struct ibx_guest_block *block = &ram->guest.blocks[i];
    void *alias = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd,
                       (off_t)block->offset);
    if (alias == MAP_FAILED)
        return ibx_error_set(err, -errno, "guest RAM %s cannot be mapped: %s", block->id,
                             strerror(errno));
    ram->aliases[i] = alias;
    return 0;
}

static int register_block(struct destination_ram *ram, unsigned i, struct ibx_error *err)
{
    struct ibx_fault_range range;
    int rc = ram->kept ? 0 : punch(&ram->guest.blocks[i], err);
    if (!rc && ram->minor)
        rc = map_alias(ram, i, err);
    range_of(ram, i, &range);
    if (!rc)
        rc = ibx_fault_register(ram->uffd.fd, &range, err);
    return rc || ram->kept ? rc : check_empty(ram, i, err);
}

static int enable(struct destination_ram *ram, struct ibx_error *err)
{
    struct ibx_error lacks = {0};
    uint64_t features = IBX_FAULT_EVENT_REMOVE | (ram->borrow ? IBX_FAULT_DIRTY : 0), minor = 0;
#ifdef UFFD_FEATURE_MINOR_SHMEM
    minor = ram->minor ? UFFD_FEATURE_MINOR_SHMEM : 0;
#endif
    const bool wish = ram->kept && minor;
    int rc = ibx_fault_uffd_enable(ram->uffd.fd, features | minor, wish ? &lacks : err);
    if (!rc || !wish)
        return rc;
    ram->minor = false;
    return ibx_fault_uffd_enable(ram->uffd.fd, features, err);
}

static int register_blocks(struct destination_ram *ram, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < ram->guest.count; i++)
        rc = register_block(ram, i, err);
    return rc;
}

static void forget_aliases(struct destination_ram *ram)
{
    for (unsigned i = 0; i < ram->guest.count; i++) {
        if (ram->aliases[i])
            munmap(ram->aliases[i], ram->guest.blocks[i].size);
        ram->aliases[i] = NULL;
    }
}

/* A page that QEMU has mapped makes no fault, and QEMU would see it half done while a READ
 * overwrites it. A QEMU that locks its memory has mapped its pages: then guest RAM is registered
 * again, without minor faults. Once pages are registered, QEMU maps none by itself. */
static int check_covered(struct destination_ram *ram, struct ibx_error *err)
{
    bool mapped = false;
    if (!destination_ram_covered(ram) ||
        (!ibx_guest_ram_any_mapped(&ram->guest, &mapped) && !mapped))
        return 0;
    for (unsigned i = 0; i < ram->guest.count; i++) {
        struct ibx_fault_range range;
        range_of(ram, i, &range);
        int rc = ibx_fault_unregister(ram->uffd.fd, &range, err);
        if (rc)
            return rc;
    }
    forget_aliases(ram);
    ram->minor = false;
    return register_blocks(ram, err);
}

/* The page states may have taken the space that the pages need, because guest RAM is in /dev/shm,
 * too. */
static int check_room(const struct destination_ram *ram, struct ibx_error *err)
{
    struct ibx_blockers blockers = {.holds = ram->holds, .takes_over = ram->kept};
    ibx_preflight_space(&ram->guest, &blockers);
    return blockers.count ? ibx_error_set(err, -ENOSPC, "%s", blockers.reasons[0]) : 0;
}

int ibx_destination_ram_watch(struct destination_ram *ram, struct ibx_qmp *qmp,
                              struct ibx_record *record, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_uffd_make(ram->guest.pid, qmp, IBX_UFFD_ANY, &ram->uffd, deadline, err);
    if (!rc)
        rc = ibx_state_move(&ram->state, RAM_OPENED);
    if (!rc)
        rc = ibx_guest_ram_huge_pages(&ram->guest, false, deadline, err);
    if (!rc)
        rc = enable(ram, err);
    /* From the first try on: what was registered before an error has to be unregistered. */
    if (!rc)
        rc = ibx_state_move(&ram->state, RAM_REGISTERED);
    if (!rc)
        rc = register_blocks(ram, err);
    if (!rc)
        rc = check_covered(ram, err);
    if (!rc)
        rc = ibx_destination_arrived_make(ram, record, err);
    if (!rc && ram->borrow)
        rc = ibx_destination_base_make(ram, record, err);
    if (!rc && record->verify)
        rc = ibx_destination_tags_make(ram, record, err);
    if (!rc)
        rc = check_room(ram, err);
    if (!rc)
        put_on_record(ram, record);
    return rc;
}

/* ---------------------------------------------------------------- recover */

/* Whether the tool before this one had registered this address for minor faults too. */
static bool is_minor(void *address, uint64_t start, uint64_t end, const char *flags)
{
    const uint64_t at = *(const uint64_t *)address;
    return start <= at && at < end && strstr(flags, " ui");
}

int ibx_destination_ram_take_uffd(struct destination_ram *ram, const struct ibx_record *record,
                                  struct ibx_error *err)
{
    int rc = ibx_uffd_take(record->pid, record->uffd, &ram->uffd, err);
    ram->recovered = true;
    if (!rc)
        rc = ibx_state_move(&ram->state, RAM_OPENED);
    return rc ? rc : ibx_state_move(&ram->state, RAM_REGISTERED);
}

int ibx_destination_ram_recover(struct destination_ram *ram, const struct ibx_record *record,
                                struct ibx_error *err)
{
    int rc = ibx_destination_ram_take_uffd(ram, record, err);
    const struct ibx_guest_block *block = ram->guest.blocks;
    while (block->unmapped && block < ram->guest.blocks + ram->guest.count - 1)
        block++;
    uint64_t address = block->address;
    const int minor = rc ? 0 : ibx_proc_find_flags(record->pid, is_minor, &address);
    if (minor < 0)
        rc = ibx_error_set(
            err, minor,
            "/proc does not show how the memory of QEMU (process %d) waits for its pages: %s%s",
            (int)record->pid, strerror(-minor), ibx_proc_remedy(minor));
    ram->minor = minor > 0;
    for (unsigned i = 0; !rc && ram->minor && i < ram->guest.count; i++)
        rc = map_alias(ram, i, err);
    if (!rc)
        rc = ibx_destination_arrived_find(ram, record, err);
    return rc || !record->verify ? rc : ibx_destination_tags_find(ram, record, err);
}

/* ---------------------------------------------------------------- engine */

/* Runs of known-zero pages need no fetching. */
static int mark_zero(void *context, uint64_t first, uint64_t count, bool data)
{
    struct destination_ram *ram = context;
    return data ? 0 : ibx_fault_mark_zero(ram->engine, first, count);
}

static bool is_noted(const _Atomic uint64_t *words, uint64_t page)
{
    return atomic_load(&words[page / 64]) >> (page % 64) & 1;
}

static bool has_arrived(const struct destination_ram *ram, uint64_t page)
{
    return is_noted(ram->arrived.memory, page);
}

static void arrived_before(const struct destination_ram *ram, uint8_t *present)
{
    for (uint64_t k = 0; k < ram->map.pages; k++)
        if (has_arrived(ram, k))
            present[k / 8] = (uint8_t)(present[k / 8] | 1u << (k % 8));
}

/* Finds the pages that are present after a tool has died: those in the page cache, swapped-out ones
 * included. In minor mode READs go into the page cache and may be incomplete, so there only the
 * noted pages count. Of huge pages the cache tells only the number, but these stay mapped, so the
 * mappings count. In files that other processes have as well, a page has to be noted, too: it is
 * noted right before it is placed. A page that was in its place and is not there any more was given
 * back: it counts as present. Of a block that QEMU has left nothing counts but what was noted when
 * it was in its place: the kernel may take a huge page for one page that is written into the file,
 * and the rest of that is no hole any more. */
static int rebuild(struct destination_ram *ram, struct ibx_error *err)
{
    const _Atomic uint64_t *placed = ibx_destination_placed(ram);
    uint8_t *present = calloc(1, (size_t)(ram->map.pages + 7) / 8);
    int rc = present ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a page map");
    if (present && ram->minor)
        arrived_before(ram, present);
    for (unsigned i = 0; !rc && !ram->minor && i < ram->guest.count; i++) {
        const struct ibx_guest_block *block = &ram->guest.blocks[i];
        const uint64_t pages = block->size / block->page_size;
        const bool look = !block->unmapped || !placed;
        uint64_t written, *bits = ibx_guest_bits_make(block, err);
        if (!bits)
            rc = -ENOMEM;
        else if (block->page_size > 4096)
            rc = ibx_guest_block_mapped(&ram->guest, block, bits, &written, err);
        else
            rc = ibx_guest_block_written(&ram->guest, block, bits, &written, err);
        for (uint64_t k = 0; !rc && k < pages; k++) {
            uint64_t at = ram->map.blocks[i].first + k;
            if ((look && bits[k / 64] >> (k % 64) & 1 && (!ram->kept || has_arrived(ram, at))) ||
                (placed && is_noted(placed, at)))
                present[at / 8] = (uint8_t)(present[at / 8] | 1u << (at % 8));
        }
        free(bits);
    }
    if (!rc)
        rc = ibx_fault_rebuild(ram->engine, present, ram->map.pages, err);
    free(present);
    return rc;
}

static int arm_readers(struct destination_ram *ram, struct ibx_page_reader **readers,
                       unsigned count, struct ibx_fault_reader *as, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < count; i++) {
        rc = ibx_page_reader_arm(readers[i], ram->buffer_bytes, &as[i], err);
        if (!rc)
            rc = ibx_page_reader_covers(readers[i], &ram->map, err);
        if (!rc && ram->minor)
            rc = ibx_page_reader_aliases(readers[i], i ? readers[0] : NULL, ram->aliases, err);
    }
    return rc;
}

/* Fetches what loading devices needs while QEMU still writes its state, unless it comes with the
 * page map (early.c). */
static void fetch_early(const struct destination_ram *ram, struct ibx_fault_config *config)
{
    const uint64_t page_size = ram->guest.blocks[0].page_size;
    const bool comes = config->wire && page_size == IBX_EARLY_PAGE && !ram->had.pages;
    if (comes || strncmp(ram->guest.machine, IBX_EARLY_MACHINES, strlen(IBX_EARLY_MACHINES)) != 0)
        return;
    config->early = ram->map.blocks[0].first + IBX_EARLY_AT / page_size;
    config->early_count = (IBX_EARLY_BYTES + page_size - 1) / page_size;
}

/* QEMU empties the page cache before the event: so the tag may have been computed from the emptied
 * page. */
static void forget_removed(void *context, uint64_t page, uint64_t pages)
{
    ibx_page_tags_forget(context, page, pages);
}

enum fetching {
    FETCHING_FAULTS,    /* what somebody waits for */
    FETCHING_ALL,       /* and all other pages, in the background */
    FETCHING_BACKGROUND /* these alone: nobody waits for a page */
};

static int make_engine(struct destination_ram *ram, struct ibx_page_reader **readers,
                       unsigned count, enum fetching what, struct ibx_error *err)
{
    struct ibx_fault_range ranges[IBX_GUEST_BLOCKS_MAX];
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    const struct ibx_path *path = ibx_conn_path(ibx_page_reader_conn(readers[0]));
    struct ibx_fault_config config = {
        .uffd = ram->uffd.fd,
        .events = true,
        .ranges = ranges,
        .range_count = (unsigned)ram->guest.count,
        .readers = as,
        .worker_count = count,
        .spin_us = ibx_thread_may_spin() ? SPIN_US : 0,
        /* Before the VM runs only loading devices needs pages. */
        .no_background = what == FETCHING_FAULTS,
        .wire = path->remote,
        .round_trip_ns = path->round_trip_ns,
        .fault_workers = 1,
        .no_faults = what == FETCHING_BACKGROUND,
        .max_bandwidth = ram->max_bandwidth,
        .arrived = ram->arrived.memory,
        .placed = ibx_destination_placed(ram),
        .cached = destination_ram_covered(ram),
        .exclusive = ram->kept, /* other processes have these files */
        .check = ram->page_tags ? ibx_page_tags_note : NULL,
        .check_context = ram->page_tags,
        .removed = ram->page_tags ? forget_removed : NULL,
        .unmapped = ibx_destination_ram_keep_unmapped,
        .unmapped_context = ram,
    };
    int rc = 0;
    fetch_early(ram, &config);
    for (unsigned i = 0; i < ram->guest.count; i++)
        range_of(ram, i, &ranges[i]);
    ram->buffer_bytes = ibx_fault_buffer_bytes(&config);
    /* Now, because pinning memory may take long, or fail: neither may happen while the VM is
     * stopped. */
    for (unsigned i = 0; !rc && i < count; i++) {
        rc = ibx_page_reader_serve(readers[i], ram->buffer_bytes, &as[i], err);
        if (!rc && ram->minor)
            rc = ibx_page_reader_aliases(readers[i], i ? readers[0] : NULL, ram->aliases, err);
    }
    return rc ? rc : ibx_fault_create(&config, &ram->engine, err);
}

int ibx_destination_ram_engine(struct destination_ram *ram, struct ibx_page_reader **readers,
                               unsigned count, bool runs, struct ibx_error *err)
{
    const bool all = runs && ram->borrow != IBX_BORROW_LAZY;
    return make_engine(ram, readers, count, all ? FETCHING_ALL : FETCHING_FAULTS, err);
}

static int mark_had(void *context, uint64_t first, uint64_t count, bool had)
{
    struct destination_ram *ram = context;
    return had ? ibx_fault_mark_present(ram->engine, first, count) : 0;
}

int ibx_destination_ram_mark_had(struct destination_ram *ram, struct ibx_error *err)
{
    const int rc = ibx_page_map_runs(&ram->had, mark_had, ram);
    return rc ? ibx_error_set(err, rc, "pages that are there could not be marked: %s",
                              strerror(-rc))
              : 0;
}

static int mark_gone(void *context, uint64_t first, uint64_t count, bool gone)
{
    struct destination_ram *ram = context;
    return gone ? ibx_fault_mark_missing(ram->engine, first, count) : 0;
}

int ibx_destination_ram_forget(struct destination_ram *ram, const struct ibx_page_map *pages,
                               struct ibx_error *err)
{
    ibx_page_map_remove(&ram->had, pages);
    ibx_destination_arrived_forget(ram, pages);
    const int rc = ram->engine ? ibx_page_map_runs(pages, mark_gone, ram) : 0;
    return rc ? ibx_error_set(err, rc, "pages that come again could not be marked: %s",
                              strerror(-rc))
              : 0;
}

/* Starts an engine that is HELD. */
static int serve_first(struct destination_ram *ram, struct ibx_error *err)
{
    int rc = ram->recovered ? rebuild(ram, err) : 0;
    if (!rc)
        rc = ibx_destination_ram_mark_had(ram, err);
    if (!rc && (rc = ibx_page_map_runs(&ram->map, mark_zero, ram)))
        ibx_error_set(err, rc, "zero pages could not be marked: %s", strerror(-rc));
    if (!rc && (rc = ibx_fault_serve(ram->engine)))
        ibx_error_set(err, rc, "page faults cannot be served: %s", strerror(-rc));
    return rc;
}

int ibx_destination_ram_serve(struct destination_ram *ram, struct ibx_page_reader **readers,
                              unsigned count, bool runs, struct ibx_error *err)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    int rc = ram->engine ? 0 : ibx_destination_ram_engine(ram, readers, count, runs, err);
    const bool first = !rc && ibx_fault_state(ram->engine) == IBX_FAULT_HELD;
    if (!rc)
        rc = arm_readers(ram, readers, count, as, err);
    if (!rc)
        rc = first ? serve_first(ram, err) : ibx_fault_resume(ram->engine, as, err);
    if (rc && first) { /* it would keep the page connections, and could not be resumed */
        ibx_fault_destroy(ram->engine);
        ram->engine = NULL;
    }
    return rc;
}

/* Pages outside of this part count as present, though they may be missing. A fault on one waits for
 * the engine that knows, because this one would answer it with a zero page. */
static int mark_others(void *context, uint64_t first, uint64_t count, bool wanted)
{
    struct destination_ram *ram = context;
    return wanted ? 0 : ibx_fault_mark_present(ram->engine, first, count);
}

int ibx_destination_ram_fetch(struct destination_ram *ram, struct ibx_page_reader **readers,
                              unsigned count, const struct ibx_page_map *pages,
                              struct ibx_error *err)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    int rc = make_engine(ram, readers, count, FETCHING_BACKGROUND, err);
    for (unsigned i = 0; !rc && i < count; i++) {
        rc = ibx_page_reader_arm(readers[i], ram->buffer_bytes, &as[i], err);
        if (!rc)
            rc = ibx_page_reader_covers(readers[i], pages, err);
    }
    if (!rc && (rc = ibx_page_map_runs(pages, mark_others, ram)))
        ibx_error_set(err, rc, "pages that are there could not be marked: %s", strerror(-rc));
    if (!rc && (rc = ibx_fault_serve(ram->engine)))
        ibx_error_set(err, rc, "page faults cannot be served: %s", strerror(-rc));
    return rc;
}

/* If the kernel cannot take a page out of a huge page of shared memory, for example because it is
 * pinned, it only clears it, and does not say so. The page would still be there, as zeros, when the
 * right one comes. */
static bool is_hole(const struct ibx_guest_block *block, off_t from, off_t length)
{
    if (block->page_size > 4096) /* hugetlbfs tells no holes, and splits none of its pages */
        return true;
    const off_t data = lseek(block->fd, from, SEEK_DATA);
    return data < 0 ? errno == ENXIO : data >= from + length;
}

static int drop_run(void *context, uint64_t first, uint64_t count, bool there)
{
    struct destination_ram *ram = context;
    const unsigned at = ibx_page_map_block(&ram->map, first);
    const struct ibx_guest_block *block = &ram->guest.blocks[at];
    const off_t length = (off_t)(count * block->page_size),
                from =
                    (off_t)(block->offset + (first - ram->map.blocks[at].first) * block->page_size);
    if (!there)
        return 0;
    if (ram->page_tags)
        ibx_page_tags_forget(ram->page_tags, first, count);
    if (fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, length))
        return -errno;
    return is_hole(block, from, length) ? 0 : -EBUSY;
}

int ibx_destination_ram_drop(struct destination_ram *ram, const struct ibx_page_map *pages,
                             struct ibx_error *err)
{
    int rc = ibx_page_map_runs(pages, drop_run, ram);
    if (rc == -EBUSY)
        return ibx_error_set(err, rc,
                             "pages of guest RAM cannot be dropped: they are in a huge page of its "
                             "file that something pins; keep huge pages from the file "
                             "(/sys/kernel/mm/transparent_hugepage/shmem_enabled)%s",
                             ram->borrow || ram->kept ? "" : ", or migrate without --warm");
    if (rc)
        return ibx_error_set(err, rc, "pages of guest RAM cannot be dropped: %s", strerror(-rc));
    for (unsigned i = 0; !rc && pages->data_pages && i < ram->guest.count; i++)
        rc = reserve_huge_pages(&ram->guest.blocks[i], err);
    return rc;
}

bool ibx_destination_ram_whole(const struct destination_ram *ram)
{
    struct ibx_fault_stats stats;
    const enum ibx_fault_state state = ram->engine ? ibx_fault_state(ram->engine) : IBX_FAULT_HELD;
    if (state != IBX_FAULT_STOPPED) /* as when the link of a borrowed VM is lost */
        return state == IBX_FAULT_COMPLETE;
    ibx_fault_stats(ram->engine, &stats);
    return stats.present == stats.pages;
}

bool ibx_destination_ram_stopped(const struct destination_ram *ram)
{
    return !ram->engine || ibx_fault_state(ram->engine) == IBX_FAULT_STOPPED;
}

void ibx_destination_ram_set_bandwidth(struct destination_ram *ram, uint64_t bytes_per_second)
{
    ram->max_bandwidth = bytes_per_second;
    if (ram->engine)
        ibx_fault_set_bandwidth(ram->engine, bytes_per_second);
}

/* Before the stop, an engine treats pages that its part does not fetch as present. */
static void warm_stats(const struct destination_ram *ram, const struct ibx_fault_stats *stats,
                       struct ibx_migrate_status *status)
{
    status->pages = stats->pages;
    status->present = ram->had.data_pages + stats->present - stats->by_cause[IBX_FAULT_BY_REBUILD];
    status->bytes = ram->warm_bytes + stats->bytes;
}

void ibx_destination_ram_stats(struct destination_ram *ram, struct ibx_migrate_status *status)
{
    struct ibx_fault_stats stats;
    if (!ram->engine || ibx_fault_state(ram->engine) == IBX_FAULT_HELD)
        return;
    ibx_fault_stats(ram->engine, &stats);
    if (ram->map.next != ram->map.pages) {
        warm_stats(ram, &stats, status);
        return;
    }
    ram->waiting = stats.waiting;
    ram->discarded = stats.by_cause[IBX_FAULT_BY_REMOVE];
    status->pages = stats.pages;
    status->present = stats.present;
    status->zero_pages = stats.by_cause[IBX_FAULT_BY_ZERO];
    status->bytes = ram->warm_bytes + ram->early_bytes + stats.bytes;
    status->faults = stats.faults;
    status->fault_p50_ns = stats.latency_p50;
    status->fault_p99_ns = stats.latency_p99;
    status->fault_max_ns = stats.latency_max;
    status->fault_sum_ns = stats.latency_sum;
}

/* ---------------------------------------------------------------- letting go */

void ibx_destination_ram_end_engine(struct destination_ram *ram)
{
    ibx_fault_destroy(ram->engine);
    ram->engine = NULL;
}

/* Continues after an error, and can be called again without harm. Returns the first error. */
static int unregister(struct destination_ram *ram, struct ibx_error *err)
{
    int first = 0;
    if (ram->state.now != RAM_REGISTERED)
        return 0;
    for (unsigned i = 0; i < ram->guest.count; i++) {
        struct ibx_fault_range range;
        range_of(ram, i, &range);
        int rc = ibx_fault_unregister(ram->uffd.fd, &range, first ? NULL : err);
        if (rc && !first && !ibx_destination_ram_unmapped(ram, i))
            first = rc;
    }
    return first ? first : ibx_state_move(&ram->state, RAM_OPENED);
}

void ibx_destination_ram_abandon(struct destination_ram *ram)
{
    if (ram->uffd.fd >= 0)
        close(ram->uffd.fd);
    ram->uffd.fd = -1;
    if (ram->state.now != RAM_UNTOUCHED)
        ibx_state_move(&ram->state, RAM_UNTOUCHED);
}

int ibx_destination_ram_let_go(struct destination_ram *ram, const struct ibx_record *record,
                               struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (ram->state.now == RAM_UNTOUCHED)
        return 0;
    /* First, because until then the engine answers faults on zero pages. */
    int rc = unregister(ram, err);
    ibx_destination_ram_end_engine(ram);
    /* When the last descriptor is closed, the kernel unregisters the rest. */
    int closed = ibx_uffd_close_in_qemu(&ram->uffd, ibx_deadline_in_ms(CLOSE_MS), &why);
    if (closed && ibx_journal_qemu_lives(record))
        return rc ? rc : ibx_error_set(err, closed, "%s", why.message);
    if (!closed) { /* it is closed here, too */
        ram->uffd.fd = -1;
        /* Without huge pages the VM is slower, not wrong. */
        ibx_guest_ram_huge_pages(&ram->guest, true, ibx_deadline_in_ms(CLOSE_MS), NULL);
    }
    ibx_destination_ram_abandon(ram);
    return 0;
}

void ibx_destination_ram_give_up(struct destination_ram *ram, const struct ibx_record *record)
{
    struct ibx_error silent = {0};
    ibx_destination_ram_end_engine(ram);
    ibx_destination_arrived_remove(record);
    ibx_destination_tags_remove(record);
    if (ibx_destination_ram_let_go(ram, record, &silent))
        ibx_destination_ram_abandon(ram);
}

void ibx_destination_ram_fini(struct destination_ram *ram)
{
    ibx_destination_ram_end_engine(ram);
    if (ram->uffd.fd >= 0)
        close(ram->uffd.fd);
    forget_aliases(ram);
    ibx_page_tags_destroy(ram->page_tags);
    ibx_page_state_fini(&ram->arrived);
    ibx_page_state_fini(&ram->base);
    ibx_page_state_fini(&ram->tags);
    ibx_page_map_fini(&ram->map);
    ibx_page_map_fini(&ram->had);
    ibx_guest_ram_fini(&ram->guest);
}
