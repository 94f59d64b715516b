/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/write_protection.h"

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

static const struct ibx_state protection_states[] = {
    [PROTECTION_NONE] = {"none", IBX_TO(PROTECTION_MADE) | IBX_TO(PROTECTION_CAUGHT),
                         IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [PROTECTION_MADE] =
        {"made", IBX_TO(PROTECTION_ARMED) | IBX_TO(PROTECTION_CAUGHT) | IBX_TO(PROTECTION_NONE), 0},
    [PROTECTION_ARMED] = {"armed", IBX_TO(PROTECTION_CAUGHT) | IBX_TO(PROTECTION_NONE), 0},
    [PROTECTION_CAUGHT] = {"caught", IBX_TO(PROTECTION_NONE), 0},
};
static const struct ibx_state_table protection_table =
    IBX_STATE_TABLE("write protection", protection_states);

void ibx_write_protection_init(struct ibx_write_protection *protection)
{
    *protection = (struct ibx_write_protection){.uffd = {.fd = -1, .remote = -1}};
    ibx_state_begin(&protection->state, &protection_table, PROTECTION_NONE);
}

/* ---------------------------------------------------------------- making */

static void describe(struct ibx_write_protection *protection, const struct ibx_guest_ram *ram)
{
    protection->count = protection->range = 0;
    protection->offset = 0;
    for (size_t i = 0; i < ram->count && protection->count < IBX_GUEST_BLOCKS_MAX; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        if (!block->address)
            continue;
        memcpy(protection->ranges[protection->count].id, block->id, sizeof(block->id));
        protection->ranges[protection->count].start = block->address;
        protection->ranges[protection->count++].length = block->size;
    }
}

static int register_all(struct ibx_write_protection *protection, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < protection->count; i++)
        rc = ibx_protect_register(protection->uffd.fd, protection->ranges[i].start,
                                  protection->ranges[i].length, err);
    return rc;
}

int ibx_write_protection_make(struct ibx_write_protection *protection,
                              const struct ibx_guest_ram *ram, struct ibx_qmp *qmp,
                              struct ibx_error *err)
{
    int rc = ibx_uffd_make(ram->pid, qmp, IBX_UFFD_ANY, &protection->uffd,
                           ibx_deadline_in_ms(MAKE_MS), err);
    if (rc)
        return rc;
    describe(protection, ram);
    ibx_state_move(&protection->state, PROTECTION_MADE);
    rc = ibx_protect_enable(protection->uffd.fd, err);
    if (rc)
        ibx_write_protection_release(protection);
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

int ibx_write_protection_take(struct ibx_write_protection *protection,
                              const struct ibx_guest_ram *ram, int remote, struct ibx_error *err)
{
    int rc = ibx_uffd_take(ram->pid, remote, &protection->uffd, err);
    if (rc)
        return rc;
    describe(protection, ram);
    /* That tool may have been killed before it enabled the API of the new userfaultfd. */
    if (!ibx_protect_enable(protection->uffd.fd, NULL))
        ibx_log(IBX_LOG_INFO, "migration: the userfaultfd of the source's QEMU is unused");
    return ibx_state_move(&protection->state, somebody_waits(protection->uffd.fd)
                                                  ? PROTECTION_CAUGHT
                                                  : PROTECTION_MADE);
}

bool ibx_write_protection_look(struct ibx_write_protection *protection)
{
    if (protection->state.now != PROTECTION_MADE || !somebody_waits(protection->uffd.fd))
        return false;
    ibx_state_move(&protection->state, PROTECTION_CAUGHT);
    return true;
}

/* ---------------------------------------------------------------- at work */

int ibx_write_protection_arm(struct ibx_write_protection *protection, struct ibx_error *err)
{
    if (protection->state.now != PROTECTION_MADE)
        return 0;
    int rc = protection->range || protection->offset ? 0 : register_all(protection, err);
    if (rc)
        return rc;
    const uint64_t left = protection->ranges[protection->range].length - protection->offset;
    const uint64_t part = left < PART_BYTES ? left : PART_BYTES;
    rc = ibx_protect_forbid(protection->uffd.fd,
                            protection->ranges[protection->range].start + protection->offset, part,
                            err);
    if (rc)
        return rc;
    protection->offset += part;
    if (part < left)
        return -EAGAIN;
    protection->offset = 0;
    return ++protection->range < protection->count
               ? -EAGAIN
               : ibx_state_move(&protection->state, PROTECTION_ARMED);
}

bool ibx_write_protection_ends(const struct ibx_write_protection *protection)
{
    return protection->state.now == PROTECTION_MADE && protection->range + 1 == protection->count &&
           protection->ranges[protection->range].length - protection->offset <= PART_BYTES;
}

int ibx_write_protection_check(struct ibx_write_protection *protection, struct ibx_error *err)
{
    uint64_t address;
    if ((protection->state.now != PROTECTION_MADE && protection->state.now != PROTECTION_ARMED) ||
        ibx_protect_next(protection->uffd.fd, &address))
        return 0;
    ibx_state_move(&protection->state, PROTECTION_CAUGHT);
    for (unsigned i = 0; i < protection->count; i++)
        if (address - protection->ranges[i].start < protection->ranges[i].length)
            return ibx_error_set(
                err, -EBUSY,
                "QEMU (process %d) tried to write to the VM's memory here (%s at 0x%" PRIx64
                "), and is blocked in that write",
                (int)protection->uffd.pid, protection->ranges[i].id,
                address - protection->ranges[i].start);
    return ibx_error_set(
        err, -EBUSY,
        "QEMU (process %d) tried to write to the VM's memory here, and is blocked in that write",
        (int)protection->uffd.pid);
}

/* ---------------------------------------------------------------- the end */

/* Memory that is not registered is writable, and a waiting thread that is woken repeats its write.
 * If QEMU cannot close its copy, it keeps a descriptor that does nothing. */
void ibx_write_protection_release(struct ibx_write_protection *protection)
{
    struct ibx_error why = {0};
    if (protection->state.now == PROTECTION_NONE)
        return;
    for (unsigned i = 0; i < protection->count; i++) {
        const struct ibx_fault_range range = {.start = protection->ranges[i].start,
                                              .length = protection->ranges[i].length};
        ibx_fault_unregister(protection->uffd.fd, &range, NULL);
        ibx_protect_retry(protection->uffd.fd, range.start, range.length);
    }
    if (ibx_uffd_close_in_qemu(&protection->uffd, ibx_deadline_in_ms(CLOSE_MS), &why))
        ibx_log(IBX_LOG_INFO, "migration: QEMU keeps an unused userfaultfd: %s", why.message);
    ibx_write_protection_leave(protection);
}

void ibx_write_protection_leave(struct ibx_write_protection *protection)
{
    if (protection->uffd.fd >= 0)
        close(protection->uffd.fd);
    protection->uffd.fd = protection->uffd.remote = -1;
    if (protection->state.now != PROTECTION_NONE)
        ibx_state_move(&protection->state, PROTECTION_NONE);
}
