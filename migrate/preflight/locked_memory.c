/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Guest RAM that a fabric pins, and the limit of locked memory. */
#include "migrate/pages/pages.h"
#include "migrate/preflight/preflight.h"

#include "common/locked.h"

#include <errno.h>
#include <stdlib.h>

static bool any_set(const uint64_t *bits, uint64_t first, uint64_t end)
{
    for (; first < end; first++)
        if (bits[first / 64] >> (first % 64) & 1)
            return true;
    return false;
}

static int block_bytes(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                       uint64_t *bytes, struct ibx_error *err)
{
    const uint64_t pages = block->size / block->page_size;
    const uint64_t piece =
        block->page_size > IBX_EXPORT_PIECE ? 1 : IBX_EXPORT_PIECE / block->page_size;
    uint64_t written, *bits = malloc((size_t)(pages + 63) / 64 * 8);
    if (!bits)
        return ibx_error_set(err, -ENOMEM, "no memory for a page map");
    int rc = ibx_guest_block_written(ram, block, bits, &written, err);
    for (uint64_t at = 0; !rc && at < pages; at += piece) {
        const uint64_t end = pages - at < piece ? pages : at + piece;
        *bytes += any_set(bits, at, end) ? (end - at) * block->page_size : 0;
    }
    free(bits);
    return rc;
}

int ibx_preflight_locked_bytes(const struct ibx_guest_ram *ram, uint64_t *bytes,
                               struct ibx_error *err)
{
    uint64_t sum = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < ram->count; i++)
        if (ram->blocks[i].fd >= 0)
            rc = block_bytes(ram, &ram->blocks[i], &sum, err);
    if (!rc)
        *bytes = sum;
    return rc;
}

void ibx_preflight_locked(const char *who, uint64_t bytes, struct ibx_blockers *blockers)
{
    struct ibx_error why = {0};
    uint64_t limit;
    if (!ibx_locked_limit(&limit) || bytes <= limit)
        return;
    ibx_locked_error(&why, who, bytes, limit);
    ibx_blockers_add(blockers, "%s", why.message);
}
