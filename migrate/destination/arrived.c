/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which pages have come, and which are in their place, in shared memory that outlives the tool.
 *
 * A page that was in its place and is a hole now was given back by the guest: it is zero, and must
 * not come again, which only this file tells.
 *
 * In minor mode READs go into the page cache. So a page there may be incomplete, because a tool
 * died while it fetched it. Or the guest may have changed it and the kernel unmapped it (to swap it
 * out, to move it). The first kind has to be fetched again, the second kind never.
 *
 * If a VM returns, other processes have its files, too: then even without minor mode a page of
 * zeros may come from a process that has read a hole.
 */
#include "migrate/destination/ram.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- which have come */

/* Bytes of a list with one bit for each page. The page state has two: which pages have come, then
 * which are in their place. */
static size_t bits_bytes(const struct destination_ram *ram)
{
    return (size_t)(ram->map.pages + 63) / 64 * 8;
}

_Atomic uint64_t *ibx_destination_placed(const struct destination_ram *ram)
{
    return ram->arrived.memory && ram->arrived.bytes == 2 * bits_bytes(ram)
               ? (_Atomic uint64_t *)ram->arrived.memory + bits_bytes(ram) / 8
               : NULL;
}

static bool counts_only_noted(const struct destination_ram *ram)
{
    return ram->minor || ram->borrow || ram->kept;
}

int ibx_destination_arrived_make(struct destination_ram *ram, const struct ibx_record *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_ARRIVED, path, sizeof(path));
    return ibx_page_state_make(&ram->arrived, 2 * bits_bytes(ram), path,
                               "it is noted which pages have come",
                               ram->borrow || ram->kept ? "migrate by send" : "try again", err);
}

/* An earlier version made the second list only for a borrowed VM, and made no file where there was
 * no need. */
int ibx_destination_arrived_find(struct destination_ram *ram, const struct ibx_record *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_ARRIVED, path, sizeof(path));
    int rc = ibx_page_state_find(&ram->arrived, 2 * bits_bytes(ram), path, err);
    if (rc == -ESTALE && !ram->borrow)
        rc = ibx_page_state_find(&ram->arrived, bits_bytes(ram), path, err);
    if (rc == -ESTALE && !counts_only_noted(ram))
        return 0;
    return rc != -ESTALE
               ? rc
               : ibx_error_set(err, rc,
                               "%s, where the previous ib-migrate recorded which pages have come, "
                               "is gone or not its own, so that nobody can tell which pages of the "
                               "VM are complete: end this QEMU, and ib-migrate rollback at the "
                               "source continues the VM from where it was stopped%s",
                               path, ibx_journal_restarts_if(record));
}

static int forget_run(void *context, uint64_t first, uint64_t count, bool gone)
{
    struct destination_ram *ram = context;
    _Atomic uint64_t *arrived = ram->arrived.memory, *placed = ibx_destination_placed(ram);
    for (uint64_t page = first; gone && page < first + count; page++) {
        atomic_fetch_and(&arrived[page / 64], ~(1ull << page % 64));
        if (placed)
            atomic_fetch_and(&placed[page / 64], ~(1ull << page % 64));
    }
    return 0;
}

void ibx_destination_arrived_forget(struct destination_ram *ram, const struct ibx_page_map *pages)
{
    if (ram->arrived.memory)
        ibx_page_map_runs(pages, forget_run, ram);
}

/* Page states are made after the first record. If that could not be written, because a source has
 * chosen the id of another migration, files of that name are those of the other one. */
static void remove_state(const struct ibx_record *record, enum ibx_journal_page_state kind)
{
    char path[128];
    ibx_journal_page_state_path(record, kind, path, sizeof(path));
    if (record->written_s)
        unlink(path);
}

void ibx_destination_arrived_remove(const struct ibx_record *record)
{
    remove_state(record, IBX_PAGE_STATE_ARRIVED);
    remove_state(record, IBX_PAGE_STATE_BASE);
}

/* ---------------------------------------------------------------- borrowed: what the source has */

int ibx_destination_base_make(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_BASE, path, sizeof(path));
    return ibx_page_state_make(&ram->base, bits_bytes(ram), path,
                               "the memory of the VM at home is noted", "migrate the VM by send",
                               err);
}

/* Keeps the map of the stop: at home, holes may become pages of zeros later. */
void ibx_destination_base_note(struct destination_ram *ram)
{
    if (ram->base.memory)
        memcpy(ram->base.memory, ram->map.bits, ram->base.bytes);
}

void ibx_destination_arrived_had(struct destination_ram *ram)
{
    _Atomic uint64_t *arrived = ram->arrived.memory, *placed = ibx_destination_placed(ram);
    for (uint64_t i = 0; arrived && ram->had.bits && i < (ram->had.pages + 63) / 64; i++) {
        atomic_fetch_or(&arrived[i], ram->had.bits[i]);
        if (placed)
            atomic_fetch_or(&placed[i], ram->had.bits[i]);
    }
}

/* ---------------------------------------------------------------- verified: what has come */

/* A tag for each page; of a VM that is borrowed then the number of those that are not compared,
 * which the tool by which it returns reads (source/return.c). */
static size_t tags_bytes(const struct destination_ram *ram)
{
    return ((size_t)ram->map.pages + (ram->borrow != IBX_BORROW_NOT)) * sizeof(uint64_t);
}

static int use_tags(struct destination_ram *ram, const struct ibx_record *record,
                    struct ibx_error *err)
{
    int rc = ibx_page_tags_create(&ram->map, ram->tags.memory, record->verify_key,
                                  IBX_MIGRATE_LINKS_MAX + 1, &ram->page_tags, err);
    if (!rc && ram->borrow)
        ibx_page_tags_count(ram->page_tags, (_Atomic uint64_t *)ram->tags.memory + ram->map.pages);
    return rc;
}

int ibx_destination_tags_make(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_TAGS, path, sizeof(path));
    int rc =
        ibx_page_state_make(&ram->tags, tags_bytes(ram), path, "the digests of pages are noted",
                            "receive and send with --no-verify", err);
    return rc ? rc : use_tags(ram, record, err);
}

int ibx_destination_tags_find(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_TAGS, path, sizeof(path));
    int rc = ibx_page_state_find(&ram->tags, tags_bytes(ram), path, err);
    return rc == 0 ? use_tags(ram, record, err)
           : rc != -ESTALE
               ? rc
               : ibx_error_set(err, rc,
                               "%s, where the previous ib-migrate recorded the digests of pages, "
                               "is gone or not its own: recover with --no-verify at both ends to "
                               "continue without comparing them",
                               path);
}

void ibx_destination_tags_remove(const struct ibx_record *record)
{
    remove_state(record, IBX_PAGE_STATE_TAGS);
}
