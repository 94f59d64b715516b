/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages that QEMU needs to load any VM's devices. The source sends them with the page map,
 * because requesting them would take a round trip while the VM is stopped. If a VM returns on
 * one host, they come before the map, because the source searches for written pages while QEMU
 * loads here. */
#include "migrate/destination/destination.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int ibx_destination_early_take(struct destination *d, const struct ibx_migrate_pages *pages,
                               struct ibx_error *err)
{
    struct destination_early *early = &d->early;
    const struct ibx_page_map *map = &d->ram.map;
    const uint64_t count = pages->bytes.length / IBX_EARLY_PAGE;
    const bool mapped = d->link.state.now >= LINK_MAPPED;
    if (pages->bytes.length % IBX_EARLY_PAGE || count > IBX_EARLY_PAGES - early->count)
        return ibx_error_set(err, -EPROTO,
                             "the source sent %zu bytes of pages with the page map, where at most "
                             "%u more pages of %u bytes may come",
                             pages->bytes.length, IBX_EARLY_PAGES - early->count, IBX_EARLY_PAGE);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t page = pages->first + i;
        if (page >= map->pages || (mapped && !ibx_page_map_data(map, page)) ||
            map->blocks[ibx_page_map_block(map, page)].page_size != IBX_EARLY_PAGE)
            return ibx_error_set(err, -EPROTO,
                                 "the source sent page %" PRIu64 " with the page map, which has no "
                                 "data for it in pages of %u bytes",
                                 page, IBX_EARLY_PAGE);
    }
    if (!early->bytes)
        early->bytes = malloc((size_t)IBX_EARLY_PAGES * IBX_EARLY_PAGE);
    if (!early->bytes)
        return ibx_error_set(err, -ENOMEM, "no memory for pages that came with the page map");
    memcpy(early->bytes + (size_t)early->count * IBX_EARLY_PAGE, pages->bytes.bytes,
           pages->bytes.length);
    for (uint64_t i = 0; i < count; i++)
        early->pages[early->count++] = pages->first + i;
    return mapped ? 0 : ibx_destination_early_place(d, err);
}

int ibx_destination_early_check(const struct destination *d, struct ibx_error *err)
{
    for (unsigned i = 0; i < d->early.count; i++)
        if (!ibx_page_map_data(&d->ram.map, d->early.pages[i]))
            return ibx_error_set(err, -EPROTO,
                                 "the source sent page %" PRIu64
                                 " ahead of the page map, which has "
                                 "no data for it",
                                 d->early.pages[i]);
    return 0;
}

/* Only the map tells which pages are the right ones. So it has to be here first, unless QEMU sees
 * no page before it is served. */
static bool may_place(const struct destination *d)
{
    return d->ram.engine && (destination_ram_covered(&d->ram) ||
                             ibx_fault_state(d->ram.engine) == IBX_FAULT_SERVING);
}

/* A page that was here before the stop may have been written since: it counts as missing, until the
 * map tells. */
static void forget(struct destination_ram *ram, uint64_t page)
{
    uint64_t *word = ram->had.bits ? &ram->had.bits[page / 64] : NULL;
    if (!word || ibx_fault_state(ram->engine) != IBX_FAULT_HELD || !(*word >> page % 64 & 1))
        return;
    *word &= ~(1ull << page % 64);
    ram->had.data_pages--;
    ibx_fault_mark_missing(ram->engine, page, 1);
}

int ibx_destination_early_place(struct destination *d, struct ibx_error *err)
{
    struct destination_early *early = &d->early;
    if (!may_place(d))
        return 0;
    for (; early->placed < early->count; early->placed++) {
        forget(&d->ram, early->pages[early->placed]);
        const int rc =
            ibx_fault_push(d->ram.engine, IBX_MIGRATE_LINKS_MAX, early->pages[early->placed],
                           early->bytes + (size_t)early->placed * IBX_EARLY_PAGE, err);
        if (rc < 0)
            return rc;
        d->ram.early_bytes += rc ? IBX_EARLY_PAGE : 0;
    }
    return 0;
}

void ibx_destination_early_fini(struct destination_early *early)
{
    free(early->bytes);
    *early = (struct destination_early){.bytes = NULL};
}
