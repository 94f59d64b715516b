/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"
#include "migrate/destination/state_tail.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define STREAM_NAME "ibx-state"
#define STATE_MAX   (1ull << 30) /* bytes of device state that wait for QEMU */
#define SPIN_US     50
#define ROM_AT      0xc0000u /* in guest RAM: option ROMs, and QEMU's kvmvapic.bin among them */
#define ROM_BYTES   0x20000u
#define LET_GO_MS   1000 /* for QEMU to close its descriptor, at a time */

/* ---------------------------------------------------------------- finding */

int ibx_destination_vm_measure(struct destination *d, struct ibx_error *err)
{
    struct ibx_migrate_hello own = {0};
    ibx_migrate_hello_describe(&own, &d->ram);
    d->status.ram_bytes = d->ram.bytes;
    return ibx_page_map_init(&d->map, own.blocks, own.block_count, err);
}

int ibx_destination_vm_find(struct destination *d, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_qmp_connect(d->options->qmp, deadline, &d->qmp, err);
    if (!rc)
        rc = ibx_guest_ram_find(d->qmp, 0, true, &d->ram, deadline, err);
    return rc;
}

/* So that it can be found again without the monitor. */
static void put_on_record(struct destination *d)
{
    struct ibx_journal *record = &d->status.record;
    record->block_count = (unsigned)d->ram.count;
    for (size_t i = 0; i < d->ram.count; i++) {
        const struct ibx_guest_block *block = &d->ram.blocks[i];
        struct ibx_journal_block *at = &record->blocks[i];
        memcpy(at->id, block->id, sizeof(at->id));
        at->size = block->size;
        at->page_size = block->page_size;
        at->offset = block->offset;
        at->address = block->address;
        at->dev = block->dev;
        at->ino = block->ino;
    }
}

int ibx_destination_vm_recall(struct destination *d, struct ibx_error *err)
{
    const struct ibx_journal *record = &d->status.record;
    struct ibx_guest_ram *ram = &d->ram;
    ram->blocks = calloc(record->block_count, sizeof(*ram->blocks));
    if (!ram->blocks)
        return ibx_error_set(err, -ENOMEM, "no memory for a description of guest RAM");
    ram->pid = record->pid;
    ram->count = record->block_count;
    memcpy(ram->uuid, record->uuid, sizeof(ram->uuid));
    memcpy(ram->name, record->name, sizeof(ram->name));
    for (unsigned i = 0; i < record->block_count; i++) {
        const struct ibx_journal_block *at = &record->blocks[i];
        ram->blocks[i] = (struct ibx_guest_block){.size = at->size,
                                                  .page_size = at->page_size,
                                                  .offset = at->offset,
                                                  .address = at->address,
                                                  .dev = at->dev,
                                                  .ino = at->ino,
                                                  .fd = -1};
        memcpy(ram->blocks[i].id, at->id, sizeof(at->id));
        ram->bytes += at->size;
    }
    return ibx_destination_vm_measure(d, err);
}

int ibx_destination_vm_find_again(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_vm_recall(d, err);
    return rc ? rc : ibx_guest_ram_reopen(&d->ram, true, err);
}

/* ---------------------------------------------------------------- memory */

static void range_of(const struct destination *d, unsigned i, struct ibx_fault_range *range)
{
    const struct ibx_guest_block *block = &d->ram.blocks[i];
    uint64_t offset = 0;
    for (unsigned k = 0; k < i; k++)
        offset += d->ram.blocks[k].size;
    *range = (struct ibx_fault_range){
        .start = block->address,
        .length = block->size,
        .page_size = (uint32_t)block->page_size,
        .first_page = d->map.blocks[i].first,
        .reader_offset = offset,
        .alias = d->aliases[i],
    };
}

static int punch(const struct ibx_guest_block *block, struct ibx_error *err)
{
    if (fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->offset,
                  (off_t)block->size))
        return ibx_error_set(err, -errno, "guest RAM %s (%s) cannot be emptied: %s", block->id,
                             block->path, strerror(errno));
    return 0;
}

/* Nobody but the engine may put a page there from now on, or a fault would never be seen. */
static int check_empty(const struct destination *d, unsigned i, struct ibx_error *err)
{
    const struct ibx_guest_block *block = &d->ram.blocks[i];
    uint64_t pages = block->size / block->page_size, written;
    uint64_t *bits = malloc((size_t)(pages + 63) / 64 * 8);
    if (!bits)
        return ibx_error_set(err, -ENOMEM, "no memory for a page map");
    int rc = ibx_guest_block_written(&d->ram, block, bits, &written, err);
    free(bits);
    if (!rc && written)
        rc = ibx_error_set(err, -EBUSY,
                           "%llu pages of guest RAM %s came back after it had been emptied: "
                           "somebody else has %s mapped and writes to it",
                           (unsigned long long)written, block->id, block->path);
    return rc;
}

static int map_alias(struct destination *d, unsigned i, struct ibx_error *err)
{
    const struct ibx_guest_block *block = &d->ram.blocks[i];
    void *alias = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd,
                       (off_t)block->offset);
    if (alias == MAP_FAILED)
        return ibx_error_set(err, -errno, "guest RAM %s cannot be mapped: %s", block->id,
                             strerror(errno));
    d->aliases[i] = alias;
    return 0;
}

static int watch_memory(struct destination *d, struct ibx_error *err)
{
    uint64_t features = IBX_FAULT_EVENT_REMOVE;
#ifdef UFFD_FEATURE_MINOR_SHMEM
    features |= d->minor ? UFFD_FEATURE_MINOR_SHMEM : 0;
#endif
    int rc = ibx_fault_uffd_enable(d->uffd.fd, features, err);
    if (!rc && d->minor)
        rc = ibx_destination_arrived_make(d, err);
    for (unsigned i = 0; !rc && i < d->ram.count; i++) {
        struct ibx_fault_range range;
        rc = punch(&d->ram.blocks[i], err);
        if (!rc && d->minor)
            rc = map_alias(d, i, err);
        range_of(d, i, &range);
        if (!rc)
            rc = ibx_fault_register(d->uffd.fd, &range, err);
        d->registered = true;
        if (!rc)
            rc = check_empty(d, i, err);
    }
    return rc;
}

static int await_state(struct destination *d, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return ibx_error_set(err, -errno, "no socket for the device state: %s", strerror(errno));
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    d->stream = pair[0];
    int rc = ibx_qmp_getfd(d->qmp, STREAM_NAME, pair[1], deadline, err);
    close(pair[1]);
    if (!rc)
        rc = ibx_qmp_execute(d->qmp, "migrate-incoming",
                             json_pack("{s:s}", "uri", "fd:" STREAM_NAME), NULL, deadline, err);
    return rc;
}

int ibx_destination_vm_prepare(struct destination *d, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_capabilities_set(d->qmp, &d->capabilities, deadline, err);
    if (!rc)
        rc = ibx_uffd_make(d->ram.pid, d->qmp, IBX_UFFD_ANY, &d->uffd, deadline, err);
    if (!rc)
        rc = watch_memory(d, err);
    if (rc)
        return rc;
    d->status.record.uffd = d->uffd.remote;
    d->status.record.device_way = d->uffd.way == IBX_UFFD_DEVICE;
    put_on_record(d);
    rc = ibx_destination_record(d, IBX_JOURNAL_MAY_RUN, err);
    return rc ? rc : await_state(d, err);
}

/* Whether the dead tool had registered this address for minor faults too: VmFlags has "ui". */
static bool was_minor(pid_t pid, uint64_t address)
{
    char line[512];
    bool within = false, minor = false;
    snprintf(line, sizeof(line), "/proc/%d/smaps", (int)pid);
    FILE *file = fopen(line, "re");
    while (file && fgets(line, sizeof(line), file)) {
        unsigned long long from, to;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            within = from <= address && address < to;
        else if (within && !strncmp(line, "VmFlags:", 8))
            minor = strstr(line, " ui") != NULL;
    }
    if (file)
        fclose(file);
    return minor;
}

int ibx_destination_vm_take_over(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_uffd_take(d->ram.pid, d->status.record.uffd, &d->uffd, err);
    d->registered = !rc;
    d->taken_over = true;
    d->minor = was_minor(d->ram.pid, d->ram.blocks[0].address);
    for (unsigned i = 0; !rc && d->minor && i < d->ram.count; i++)
        rc = map_alias(d, i, err);
    return rc || !d->minor ? rc : ibx_destination_arrived_find(d, err);
}

/* ---------------------------------------------------------------- engine */

/* Runs of known-zero pages need no fetching. */
static int mark_zero(void *context, uint64_t first, uint64_t count, bool data)
{
    struct destination *d = context;
    return data ? 0 : ibx_fault_mark_zero(d->engine, first, count);
}

static void arrived_before(const struct destination *d, uint8_t *present)
{
    for (uint64_t k = 0; k < d->map.pages; k++)
        if (atomic_load(&d->arrived[k / 64]) >> (k % 64) & 1)
            present[k / 8] = (uint8_t)(present[k / 8] | 1u << (k % 8));
}

/* What is there already, after a tool has died: the pages in the page cache, and among them those
 * that were swapped out. But READs go into that in minor mode, and may have been cut off half-way:
 * there it is what was noted. Of huge pages, which nobody unmaps, the cache tells only the number.
 */
static int rebuild(struct destination *d, struct ibx_error *err)
{
    uint8_t *present = calloc(1, (size_t)(d->map.pages + 7) / 8);
    int rc = present ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a page map");
    if (present && d->minor)
        arrived_before(d, present);
    for (unsigned i = 0; !rc && !d->minor && i < d->ram.count; i++) {
        const struct ibx_guest_block *block = &d->ram.blocks[i];
        const uint64_t pages = block->size / block->page_size;
        uint64_t written, *bits = malloc((size_t)(pages + 63) / 64 * 8);
        if (!bits) {
            rc = ibx_error_set(err, -ENOMEM, "no memory for a page map");
            break;
        }
        rc = block->page_size > 4096 ? ibx_guest_block_mapped(&d->ram, block, bits, &written, err)
                                     : ibx_guest_block_written(&d->ram, block, bits, &written, err);
        for (uint64_t k = 0; !rc && k < pages; k++) {
            uint64_t at = d->map.blocks[i].first + k;
            if (bits[k / 64] >> (k % 64) & 1)
                present[at / 8] = (uint8_t)(present[at / 8] | 1u << (at % 8));
        }
        free(bits);
    }
    if (!rc)
        rc = ibx_fault_rebuild(d->engine, present, d->map.pages, err);
    free(present);
    return rc;
}

static int arm_sources(struct destination *d, struct ibx_fault_reader *as, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < d->hello.links; i++) {
        rc = ibx_page_reader_arm(d->sources[i], d->buffer_bytes, &as[i], err);
        if (!rc)
            rc = ibx_page_reader_covers(d->sources[i], &d->map, err);
        if (!rc && d->minor)
            rc = ibx_page_reader_aliases(d->sources[i], i ? d->sources[0] : NULL, d->aliases, err);
    }
    return rc;
}

/* On PCs the option ROM of the APIC is what loading devices touches in guest RAM with every VM: it
 * is fetched while QEMU still writes its state. */
static void foresee(const struct destination *d, struct ibx_fault_config *config)
{
    const uint64_t page_size = d->ram.blocks[0].page_size;
    if (strncmp(d->ram.machine, "pc-", 3) != 0)
        return;
    config->early = d->map.blocks[0].first + ROM_AT / page_size;
    config->early_count = (ROM_BYTES + page_size - 1) / page_size;
}

int ibx_destination_vm_engine(struct destination *d, struct ibx_error *err)
{
    struct ibx_fault_range ranges[IBX_GUEST_BLOCKS_MAX];
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    struct ibx_fault_config config = {
        .uffd = d->uffd.fd,
        .events = true,
        .ranges = ranges,
        .range_count = (unsigned)d->ram.count,
        .readers = as,
        .worker_count = d->hello.links,
        .spin_us = ibx_thread_may_spin() ? SPIN_US : 0,
        /* Before it runs only loading devices wants pages, and processors are dear. */
        .no_background = !d->resumed,
        .fault_workers = 1,
        .max_bandwidth = d->status.max_bandwidth,
        .arrived = d->arrived,
    };
    int rc = 0;
    foresee(d, &config);
    for (unsigned i = 0; i < d->ram.count; i++)
        range_of(d, i, &ranges[i]);
    d->buffer_bytes = ibx_fault_buffer_bytes(&config);
    /* Pinning memory takes long, or is refused: not when the VM stands still. */
    for (unsigned i = 0; !rc && i < d->hello.links; i++) {
        rc = ibx_page_reader_serve(d->sources[i], d->buffer_bytes, &as[i], err);
        if (!rc && d->minor)
            rc = ibx_page_reader_aliases(d->sources[i], i ? d->sources[0] : NULL, d->aliases, err);
    }
    return rc ? rc : ibx_fault_create(&config, &d->engine, err);
}

/* From HELD. */
static int serve_first(struct destination *d, struct ibx_error *err)
{
    int rc = d->taken_over ? rebuild(d, err) : 0;
    if (!rc && (rc = ibx_page_map_runs(&d->map, mark_zero, d)))
        ibx_error_set(err, rc, "zero pages could not be marked: %s", strerror(-rc));
    if (!rc && (rc = ibx_fault_serve(d->engine)))
        ibx_error_set(err, rc, "the fault engine does not start: %s", strerror(-rc));
    return rc;
}

int ibx_destination_vm_serve(struct destination *d, struct ibx_error *err)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    int rc = d->engine ? 0 : ibx_destination_vm_engine(d, err);
    const bool first = !rc && ibx_fault_state(d->engine) == IBX_FAULT_HELD;
    if (!rc)
        rc = arm_sources(d, as, err);
    if (!rc)
        rc = first ? serve_first(d, err) : ibx_fault_resume(d->engine, as, err);
    if (rc && first) { /* it would keep the page connections, and could not be resumed */
        ibx_fault_destroy(d->engine);
        d->engine = NULL;
    }
    return rc;
}

void ibx_destination_vm_stats(struct destination *d)
{
    struct ibx_fault_stats stats;
    struct ibx_migrate_status *s = &d->status;
    if (!d->engine || ibx_fault_state(d->engine) == IBX_FAULT_HELD)
        return;
    ibx_fault_stats(d->engine, &stats);
    s->pages = stats.pages;
    s->present = stats.present;
    s->zero_pages = stats.by_cause[IBX_FAULT_BY_ZERO];
    d->waiting = stats.waiting;
    d->discarded = stats.by_cause[IBX_FAULT_BY_REMOVE];
    s->bytes = stats.bytes;
    s->faults = stats.faults;
    s->fault_p50_ns = stats.latency_p50;
    s->fault_p99_ns = stats.latency_p99;
    s->fault_max_ns = stats.latency_max;
    s->fault_sum_ns = stats.latency_sum;
}

/* ---------------------------------------------------------------- device state */

/* What QEMU has taken makes room when it is as much as what it has not: so no byte is moved often.
 */
static int make_room(struct destination *d, size_t length)
{
    const size_t left = d->unfed_end - d->unfed_from;
    if (d->unfed_end + length <= d->unfed_capacity)
        return 0;
    if (d->unfed_from >= left) {
        if (left)
            memmove(d->unfed, d->unfed + d->unfed_from, left);
        d->unfed_sure -= d->unfed_from;
        d->unfed_from = 0;
        d->unfed_end = left;
    }
    if (d->unfed_end + length <= d->unfed_capacity)
        return 0;
    const size_t capacity = 2 * (d->unfed_end + length);
    uint8_t *bigger = realloc(d->unfed, capacity);
    if (!bigger)
        return -ENOMEM;
    d->unfed = bigger;
    d->unfed_capacity = capacity;
    return 0;
}

int ibx_destination_vm_state(struct destination *d, const uint8_t *bytes, size_t length,
                             struct ibx_error *err)
{
    if (length > STATE_MAX - (d->unfed_end - d->unfed_from))
        return ibx_error_set(err, -EPROTO, "the device state is longer than %llu MiB",
                             STATE_MAX >> 20);
    if (make_room(d, length))
        return ibx_error_set(err, -ENOMEM, "no memory for the device state");
    memcpy(d->unfed + d->unfed_end, bytes, length);
    d->unfed_end += length;
    d->state_total += length;
    d->status.state_bytes = d->state_total;
    return 0;
}

/* Moves `unfed_sure` up to what may be EOF; whether that was recognised, when all has come. */
static bool find_tail(struct destination *d)
{
    bool whole = false;
    if (d->unfed_sure < d->unfed_end)
        d->unfed_sure += ibx_state_tail(d->unfed + d->unfed_sure, d->unfed_end - d->unfed_sure,
                                        d->state_ended, &whole);
    return whole;
}

int ibx_destination_vm_state_end(struct destination *d, struct ibx_error *err)
{
    d->state_ended = true;
    return find_tail(d)
               ? 0
               : ibx_error_set(err, -EPROTO,
                               "the device state does not end as QEMU's do, so its end cannot be "
                               "held back until the commit");
}

int ibx_destination_vm_feed(struct destination *d, struct ibx_error *err)
{
    const size_t from = d->unfed_from;
    int rc = 0;
    if (d->stream < 0)
        return 0;
    if (!d->committed)
        find_tail(d);
    const size_t end = d->committed ? d->unfed_end : d->unfed_sure;
    while (d->unfed_from < end) {
        ssize_t n = send(d->stream, d->unfed + d->unfed_from, end - d->unfed_from, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            rc = ibx_error_set(
                err, -errno, "QEMU does not take the device state any more (%s): its log says why",
                strerror(errno));
        if (n < 0)
            break;
        d->unfed_from += (size_t)n;
    }
    d->ending = d->ending || (d->committed && d->unfed_from > from);
    d->stuck = d->unfed_from < end;
    if (!rc && d->committed && d->unfed_from == d->unfed_end) {
        close(d->stream);
        d->stream = -1;
    }
    return rc;
}

bool ibx_destination_vm_loaded(const struct destination *d)
{
    int unread = 1;
    return d->state_ended && !d->stuck && d->stream >= 0 && !ioctl(d->stream, SIOCOUTQ, &unread) &&
           unread == 0;
}

/* ---------------------------------------------------------------- letting go */

/* As far as it goes, and again without harm; the first error. */
static int unregister(struct destination *d, struct ibx_error *err)
{
    int first = 0;
    for (unsigned i = 0; d->registered && i < d->ram.count; i++) {
        struct ibx_fault_range range;
        range_of(d, i, &range);
        int rc = ibx_fault_unregister(d->uffd.fd, &range, first ? NULL : err);
        first = first ? first : rc;
    }
    d->registered = d->registered && first;
    return first;
}

void ibx_destination_vm_leave_monitor(struct destination *d)
{
    struct ibx_error silent = {0};
    if (d->qmp)
        ibx_capabilities_restore(d->qmp, d->capabilities, ibx_deadline_in_ms(MIGRATION_QMP_MS),
                                 &silent);
    ibx_qmp_close(d->qmp);
    d->qmp = NULL;
}

int ibx_destination_vm_let_go(struct destination *d, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (d->uffd.fd < 0)
        return 0;
    ibx_destination_vm_stats(d);
    /* First, since until then the engine answers those who touch zero pages. */
    int rc = unregister(d, err);
    ibx_fault_destroy(d->engine);
    d->engine = NULL;
    /* With the last descriptor the kernel itself unregisters what is left. */
    int closed = ibx_uffd_close_in_qemu(&d->uffd, ibx_deadline_in_ms(LET_GO_MS), &why);
    if (closed && ibx_destination_qemu_lives(d))
        return rc ? rc : ibx_error_set(err, closed, "%s", why.message);
    if (closed)
        close(d->uffd.fd);
    d->uffd.fd = -1;
    d->registered = false;
    return 0;
}

void ibx_destination_vm_give_up(struct destination *d)
{
    struct ibx_error silent = {0};
    if (d->stream >= 0)
        close(d->stream); /* first, so that QEMU fails instead of running on zero pages */
    d->stream = -1;
    ibx_fault_destroy(d->engine);
    d->engine = NULL;
    ibx_destination_arrived_remove(d);
    if (d->uffd.fd < 0)
        return;
    unregister(d, &silent);
    if (ibx_uffd_close_in_qemu(&d->uffd, ibx_deadline_in_ms(1000), &silent))
        close(d->uffd.fd);
    d->uffd.fd = -1;
}

void ibx_destination_vm_fini(struct destination *d)
{
    ibx_fault_destroy(d->engine);
    if (d->uffd.fd >= 0)
        close(d->uffd.fd);
    if (d->stream >= 0)
        close(d->stream);
    for (unsigned i = 0; i < d->ram.count; i++)
        if (d->aliases[i])
            munmap(d->aliases[i], d->ram.blocks[i].size);
    ibx_destination_arrived_end(d);
    free(d->unfed);
    json_decref(d->capabilities);
    ibx_page_map_fini(&d->map);
    ibx_guest_ram_fini(&d->ram);
    ibx_qmp_close(d->qmp);
}
