/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu_internal.h"

#include "common/thread.h"
#include "userfaultfd/dirty.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PART_PAGES    4096u /* pages that a thread takes at a time; a multiple of 64 */
#define SCANNERS_MOST 4u

void ibx_tracker_init(struct ibx_tracker *tracker)
{
    *tracker = (struct ibx_tracker){.uffd = -1, .pagemap = -1};
}

/* Makes the userfaultfd. QEMU keeps no copy, so that when this tool ends, even by SIGKILL, the
 * kernel removes the protection. */
static int make(struct ibx_tracker *tracker, struct ibx_qmp *qmp, uint64_t deadline_ns,
                struct ibx_error *err)
{
    struct ibx_uffd made;
    int rc = ibx_uffd_make(tracker->ram->pid, qmp, IBX_UFFD_ANY, &made, deadline_ns, err);
    if (rc)
        return rc;
    tracker->uffd = fcntl(made.fd, F_DUPFD_CLOEXEC, 0);
    if (tracker->uffd < 0)
        rc =
            ibx_error_set(err, -errno, "no descriptor for QEMU's userfaultfd: %s", strerror(errno));
    const int closed = ibx_uffd_close_in_qemu(&made, deadline_ns, rc ? NULL : err);
    if (closed) /* it stays in QEMU, unused */
        close(made.fd);
    return rc ? rc : closed;
}

static int open_pagemap(struct ibx_tracker *tracker, struct ibx_error *err)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)tracker->ram->pid);
    tracker->pagemap = open(path, O_RDONLY | O_CLOEXEC);
    if (tracker->pagemap >= 0)
        return 0;
    return ibx_error_set(err, -errno, "%s cannot be opened: %s; run this tool as root", path,
                         strerror(errno));
}

/* `pages` of a block, from the page `first` on. */
static struct ibx_dirty_range part_of(const struct ibx_tracker *tracker,
                                      const struct ibx_guest_block *block, uint64_t first,
                                      uint64_t pages)
{
    return (struct ibx_dirty_range){tracker->pagemap, block->address + first * block->page_size,
                                    pages * block->page_size, block->page_size};
}

static struct ibx_dirty_range all_of(const struct ibx_tracker *tracker, size_t block)
{
    const struct ibx_guest_block *of = &tracker->ram->blocks[block];
    return part_of(tracker, of, 0, of->size / of->page_size);
}

int ibx_tracker_open(struct ibx_tracker *tracker, const struct ibx_guest_ram *ram,
                     struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    tracker->ram = ram;
    int rc = open_pagemap(tracker, err);
    if (!rc)
        rc = make(tracker, qmp, deadline_ns, err);
    if (!rc)
        rc = ibx_dirty_enable(tracker->uffd, err);
    for (size_t i = 0; !rc && i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        rc = ibx_dirty_register(tracker->uffd, block->address, block->size, err);
        const struct ibx_dirty_range one = part_of(tracker, block, 0, 1);
        if (!rc) /* fails now if this kernel cannot scan */
            rc = ibx_dirty_scan(&one, false, NULL, err);
    }
    if (rc)
        ibx_tracker_close(tracker);
    return rc;
}

int ibx_tracker_attach(struct ibx_tracker *tracker, const struct ibx_guest_ram *ram,
                       struct ibx_error *err)
{
    tracker->ram = ram;
    return open_pagemap(tracker, err);
}

int ibx_guest_ram_protect(const struct ibx_guest_ram *ram, struct ibx_error *err)
{
    struct ibx_tracker tracker = {.ram = ram, .uffd = -1, .pagemap = -1};
    int rc = open_pagemap(&tracker, err);
    for (size_t i = 0; !rc && i < ram->count; i++) {
        const struct ibx_dirty_range range = all_of(&tracker, i);
        rc = ibx_dirty_scan(&range, true, NULL, err);
    }
    ibx_tracker_close(&tracker);
    return rc;
}

int ibx_guest_ram_any_mapped(const struct ibx_guest_ram *ram, bool *any)
{
    struct ibx_tracker tracker = {.ram = ram, .uffd = -1, .pagemap = -1};
    int rc = open_pagemap(&tracker, NULL);
    uint64_t count = 0;
    *any = false;
    for (size_t i = 0; !rc && !*any && i < ram->count; i++) {
        const struct ibx_dirty_range range = all_of(&tracker, i);
        rc = ibx_dirty_mapped(&range, true, NULL, &count, NULL);
        *any = count != 0;
    }
    ibx_tracker_close(&tracker);
    return rc;
}

/* ---------------------------------------------------------------- the last scan */

/* A scan that several threads share. */
struct scan {
    const struct ibx_tracker *tracker;
    const struct ibx_guest_block *of;
    const uint64_t *among;
    uint64_t *bits;
    pthread_mutex_t lock;
    uint64_t next, most; /* the first page not taken; pages to take at a time, at most */
};

struct scanner {
    struct scan *scan;
    pthread_t thread;
    int rc;
    struct ibx_error err;
};

static bool is_of_use(const struct scan *scan, uint64_t page, uint64_t pages)
{
    const uint64_t end = page + PART_PAGES < pages ? page + PART_PAGES : pages;
    bool found = !scan->among;
    for (; !found && page < end; page += 64)
        found = scan->among[page / 64] != 0;
    return found;
}

/* Takes the next pages to scan: sets `first` and returns how many; 0: none is left. */
static uint64_t take_part(struct scan *scan, uint64_t *first)
{
    const uint64_t pages = scan->of->size / scan->of->page_size;
    uint64_t count = 0;
    pthread_mutex_lock(&scan->lock);
    while (scan->next < pages && count < scan->most) {
        const bool use = is_of_use(scan, scan->next, pages);
        if (!use && count)
            break;
        if (use && !count)
            *first = scan->next;
        count += use ? PART_PAGES : 0;
        scan->next += PART_PAGES;
    }
    pthread_mutex_unlock(&scan->lock);
    return count && *first + count > pages ? pages - *first : count;
}

static void *scan_parts(void *argument)
{
    struct scanner *scanner = argument;
    struct scan *scan = scanner->scan;
    uint64_t first = 0, n;
    while (!scanner->rc && (n = take_part(scan, &first)) > 0) {
        const struct ibx_dirty_range part = part_of(scan->tracker, scan->of, first, n);
        scanner->rc = ibx_dirty_scan(&part, false, scan->bits + first / 64, &scanner->err);
    }
    return NULL;
}

int ibx_tracker_scan_last(const struct ibx_tracker *tracker, size_t block, const uint64_t *among,
                          uint64_t *bits, struct ibx_error *err)
{
    struct scan scan = {.tracker = tracker,
                        .of = &tracker->ram->blocks[block],
                        .among = among,
                        .bits = bits,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .most = UINT64_MAX};
    struct scanner scanners[SCANNERS_MOST] = {{.scan = &scan}};
    const uint64_t parts = scan.of->size / scan.of->page_size / PART_PAGES;
    unsigned more = 1;
    int rc = 0;
    if (parts > 1 && ibx_thread_may_spin())
        scan.most = PART_PAGES;
    for (; scan.most == PART_PAGES && more < SCANNERS_MOST; more++) {
        scanners[more].scan = &scan;
        if (pthread_create(&scanners[more].thread, NULL, scan_parts, &scanners[more]))
            break;
    }
    scan_parts(&scanners[0]);
    for (unsigned i = 0; i < more; i++) {
        if (i)
            pthread_join(scanners[i].thread, NULL);
        if (!rc && scanners[i].rc)
            rc = ibx_error_set(err, scanners[i].rc, "%s", scanners[i].err.message);
    }
    return rc;
}

int ibx_tracker_scan(const struct ibx_tracker *tracker, size_t block, bool last, uint64_t *bits,
                     struct ibx_error *err)
{
    const struct ibx_dirty_range range = all_of(tracker, block);
    return last || tracker->uffd < 0 ? ibx_tracker_scan_last(tracker, block, NULL, bits, err)
                                     : ibx_dirty_scan(&range, false, bits, err);
}

int ibx_tracker_protect(const struct ibx_tracker *tracker, size_t block, const uint64_t *which,
                        uint64_t *bits, struct ibx_error *err)
{
    const struct ibx_dirty_range range = all_of(tracker, block);
    return ibx_dirty_protect(&range, which, bits, err);
}

int ibx_tracker_mapped(const struct ibx_tracker *tracker, size_t block, uint64_t *bits,
                       uint64_t *count, struct ibx_error *err)
{
    const struct ibx_dirty_range range = all_of(tracker, block);
    return ibx_dirty_mapped(&range, false, bits, count, err);
}

int ibx_tracker_mapped_part(const struct ibx_tracker *tracker, size_t block, uint64_t first,
                            uint64_t pages, uint64_t *bits, struct ibx_error *err)
{
    const struct ibx_dirty_range part =
        part_of(tracker, &tracker->ram->blocks[block], first, pages);
    return ibx_dirty_mapped(&part, false, bits, NULL, err);
}

/* Whether reads of a block node may fill pages that the kernel has pinned. */
static bool pins(const json_t *node)
{
    const char *driver = json_string_value(json_object_get(node, "drv"));
    return json_is_true(json_object_get(json_object_get(node, "cache"), "direct")) ||
           (driver && !strncmp(driver, "host_", 5));
}

/* Runs a transaction without actions: before the first action of any transaction QEMU waits for all
 * requests to its block devices. */
int ibx_tracker_settle(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *nodes, *node;
    size_t i;
    bool some = false;
    int rc = ibx_qmp_block_nodes(qmp, &nodes, deadline_ns, err);
    if (rc)
        return rc;
    json_array_foreach(nodes, i, node) some |= pins(node);
    json_decref(nodes);
    if (!some)
        return 0;
    rc =
        ibx_qmp_execute(qmp, "transaction", json_pack("{s:[]}", "actions"), NULL, deadline_ns, err);
    return rc ? ibx_error_prefix(err, rc, "the VM's disks do not come to rest") : 0;
}

void ibx_tracker_close(struct ibx_tracker *tracker)
{
    for (size_t i = 0; tracker->uffd >= 0 && i < tracker->ram->count; i++)
        ibx_dirty_unregister(tracker->uffd, tracker->ram->blocks[i].address,
                             tracker->ram->blocks[i].size);
    if (tracker->uffd >= 0)
        close(tracker->uffd);
    if (tracker->pagemap >= 0)
        close(tracker->pagemap);
    ibx_tracker_init(tracker);
}
