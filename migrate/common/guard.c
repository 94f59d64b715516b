/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/guard.h"

#include "common/clock.h"
#include "common/log.h"
#include "userfaultfd/fault.h"
#include "userfaultfd/protect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAKE_MS    2000
#define CLOSE_MS   1000
#define PART_BYTES (16ull << 20)

static const struct ibx_state guard_states[] = {
    [GUARD_NONE] = {"none", IBX_TO(GUARD_MADE) | IBX_TO(GUARD_CAUGHT),
                    IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [GUARD_MADE] = {"made", IBX_TO(GUARD_ARMED) | IBX_TO(GUARD_CAUGHT) | IBX_TO(GUARD_NONE), 0},
    [GUARD_ARMED] = {"armed", IBX_TO(GUARD_CAUGHT) | IBX_TO(GUARD_NONE), 0},
    [GUARD_CAUGHT] = {"caught", IBX_TO(GUARD_NONE), 0},
};
static const struct ibx_state_table guard_table = IBX_STATE_TABLE("guard", guard_states);

void ibx_guard_init(struct ibx_guard *guard)
{
    *guard = (struct ibx_guard){.uffd = {.fd = -1, .remote = -1}};
    ibx_state_begin(&guard->state, &guard_table, GUARD_NONE);
}

/* ---------------------------------------------------------------- making */

static void describe(struct ibx_guard *guard, const struct ibx_guest_ram *ram)
{
    guard->count = guard->range = 0;
    guard->offset = 0;
    for (size_t i = 0; i < ram->count && guard->count < IBX_GUEST_BLOCKS_MAX; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        if (!block->address)
            continue;
        memcpy(guard->ranges[guard->count].id, block->id, sizeof(block->id));
        guard->ranges[guard->count].start = block->address;
        guard->ranges[guard->count++].length = block->size;
    }
}

static int register_all(struct ibx_guard *guard, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < guard->count; i++)
        rc = ibx_protect_register(guard->uffd.fd, guard->ranges[i].start, guard->ranges[i].length,
                                  err);
    return rc;
}

int ibx_guard_make(struct ibx_guard *guard, const struct ibx_guest_ram *ram, struct ibx_qmp *qmp,
                   struct ibx_error *err)
{
    int rc =
        ibx_uffd_make(ram->pid, qmp, IBX_UFFD_ANY, &guard->uffd, ibx_deadline_in_ms(MAKE_MS), err);
    if (rc)
        return rc;
    describe(guard, ram);
    ibx_state_move(&guard->state, GUARD_MADE);
    rc = ibx_protect_enable(guard->uffd.fd, err);
    if (rc)
        ibx_guard_release(guard);
    return rc;
}

/* Whether a thread waits, by /proc/self/fdinfo: "total" also counts threads whose fault has been
 * read. */
static bool somebody_waits(int uffd)
{
    char path[64], line[128];
    unsigned long total = 0;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", uffd);
    FILE *info = fopen(path, "re");
    while (info && fgets(line, sizeof(line), info))
        if (sscanf(line, "total: %lu", &total) == 1)
            break;
    if (info)
        fclose(info);
    return total > 0;
}

int ibx_guard_take(struct ibx_guard *guard, const struct ibx_guest_ram *ram, int remote,
                   struct ibx_error *err)
{
    int rc = ibx_uffd_take(ram->pid, remote, &guard->uffd, err);
    if (rc)
        return rc;
    describe(guard, ram);
    /* That tool may have been killed before it enabled the API of the new userfaultfd. */
    if (!ibx_protect_enable(guard->uffd.fd, NULL))
        ibx_log(IBX_LOG_INFO, "migration: the userfaultfd of the source's QEMU is unused");
    return ibx_state_move(&guard->state,
                          somebody_waits(guard->uffd.fd) ? GUARD_CAUGHT : GUARD_MADE);
}

bool ibx_guard_look(struct ibx_guard *guard)
{
    if (guard->state.now != GUARD_MADE || !somebody_waits(guard->uffd.fd))
        return false;
    ibx_state_move(&guard->state, GUARD_CAUGHT);
    return true;
}

/* ---------------------------------------------------------------- at work */

int ibx_guard_arm(struct ibx_guard *guard, struct ibx_error *err)
{
    if (guard->state.now != GUARD_MADE)
        return 0;
    int rc = guard->range || guard->offset ? 0 : register_all(guard, err);
    if (rc)
        return rc;
    const uint64_t left = guard->ranges[guard->range].length - guard->offset;
    const uint64_t part = left < PART_BYTES ? left : PART_BYTES;
    rc = ibx_protect_forbid(guard->uffd.fd, guard->ranges[guard->range].start + guard->offset, part,
                            err);
    if (rc)
        return rc;
    guard->offset += part;
    if (part < left)
        return -EAGAIN;
    guard->offset = 0;
    return ++guard->range < guard->count ? -EAGAIN : ibx_state_move(&guard->state, GUARD_ARMED);
}

bool ibx_guard_ends(const struct ibx_guard *guard)
{
    return guard->state.now == GUARD_MADE && guard->range + 1 == guard->count &&
           guard->ranges[guard->range].length - guard->offset <= PART_BYTES;
}

int ibx_guard_check(struct ibx_guard *guard, struct ibx_error *err)
{
    uint64_t address;
    if ((guard->state.now != GUARD_MADE && guard->state.now != GUARD_ARMED) ||
        ibx_protect_next(guard->uffd.fd, &address))
        return 0;
    ibx_state_move(&guard->state, GUARD_CAUGHT);
    for (unsigned i = 0; i < guard->count; i++)
        if (address - guard->ranges[i].start < guard->ranges[i].length)
            return ibx_error_set(
                err, -EBUSY,
                "QEMU (process %d) tried to write to the VM's memory here (%s at 0x%" PRIx64
                "), and is blocked in that write",
                (int)guard->uffd.pid, guard->ranges[i].id, address - guard->ranges[i].start);
    return ibx_error_set(
        err, -EBUSY,
        "QEMU (process %d) tried to write to the VM's memory here, and is blocked in that write",
        (int)guard->uffd.pid);
}

/* ---------------------------------------------------------------- the end */

/* Memory that is not registered is writable, and a waiting thread that is woken repeats its write.
 * If QEMU cannot close its copy, it keeps a descriptor that does nothing. */
void ibx_guard_release(struct ibx_guard *guard)
{
    struct ibx_error why = {0};
    if (guard->state.now == GUARD_NONE)
        return;
    for (unsigned i = 0; i < guard->count; i++) {
        const struct ibx_fault_range range = {.start = guard->ranges[i].start,
                                              .length = guard->ranges[i].length};
        ibx_fault_unregister(guard->uffd.fd, &range, NULL);
        ibx_protect_retry(guard->uffd.fd, range.start, range.length);
    }
    if (ibx_uffd_close_in_qemu(&guard->uffd, ibx_deadline_in_ms(CLOSE_MS), &why))
        ibx_log(IBX_LOG_INFO, "migration: QEMU keeps an unused userfaultfd: %s", why.message);
    ibx_guard_leave(guard);
}

void ibx_guard_leave(struct ibx_guard *guard)
{
    if (guard->uffd.fd >= 0)
        close(guard->uffd.fd);
    guard->uffd.fd = guard->uffd.remote = -1;
    if (guard->state.now != GUARD_NONE)
        ibx_state_move(&guard->state, GUARD_NONE);
}
