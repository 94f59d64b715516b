/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Minor mode: which pages have come, in shared memory that outlives the tool. READs go into the
 * page cache. So a page there may be incomplete, because a tool died while it fetched it. Or the
 * guest may have changed it and the kernel unmapped it (to swap it out, to move it). The first kind
 * has to be fetched again, the second kind never, and only this file tells them apart.
 *
 * Where a VM returns, others have its files, too: also without minor mode a page of zeros there may
 * come from who looked at a hole.
 */
#include "migrate/destination/ram.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- minor mode: which have come */

/* One bit a page. */
static size_t bits_bytes(const struct destination_ram *ram)
{
    return (size_t)(ram->map.pages + 63) / 64 * 8;
}

/* Of a borrowed VM also which are in their place. */
static size_t arrived_bytes(const struct destination_ram *ram)
{
    return bits_bytes(ram) * (ram->borrow ? 2 : 1);
}

_Atomic uint64_t *ibx_destination_placed(const struct destination_ram *ram)
{
    return ram->borrow && ram->arrived.memory
               ? (_Atomic uint64_t *)ram->arrived.memory + bits_bytes(ram) / 8
               : NULL;
}

int ibx_destination_arrived_make(struct destination_ram *ram, const struct ibx_record *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_ARRIVED, path, sizeof(path));
    return ibx_note_make(
        &ram->arrived, arrived_bytes(ram), path, "it is noted which pages have come",
        ram->minor && !ram->kept ? "receive without --minor" : "migrate by send", err);
}

int ibx_destination_arrived_find(struct destination_ram *ram, const struct ibx_record *record,
                                 struct ibx_error *err)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_ARRIVED, path, sizeof(path));
    int rc = ibx_note_find(&ram->arrived, arrived_bytes(ram), path, err);
    return rc != -ESTALE
               ? rc
               : ibx_error_set(err, rc,
                               "%s, where the tool before this one noted which pages have come, "
                               "is gone or is not its: which of the VM's pages are whole cannot "
                               "be known; end this QEMU, and ib-migrate rollback at "
                               "the source continues the VM from where it was stopped",
                               path);
}

void ibx_destination_arrived_remove(const struct ibx_record *record)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_ARRIVED, path, sizeof(path));
    unlink(path);
    ibx_journal_note_path(record, IBX_NOTE_BASE, path, sizeof(path));
    unlink(path);
}

/* ---------------------------------------------------------------- borrowed: what the source has */

int ibx_destination_base_make(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_BASE, path, sizeof(path));
    return ibx_note_make(&ram->base, bits_bytes(ram), path, "the memory of the VM at home is noted",
                         "migrate the VM by send", err);
}

/* The map of the stop: at home holes may become pages of zeros later. */
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

static size_t tags_bytes(const struct destination_ram *ram)
{
    return (size_t)ram->map.pages * sizeof(uint64_t);
}

static int use_tags(struct destination_ram *ram, const struct ibx_record *record,
                    struct ibx_error *err)
{
    return ibx_page_tags_create(&ram->map, ram->tags.memory, record->verify_key,
                                IBX_MIGRATE_LINKS_MAX + 1, &ram->page_tags, err);
}

int ibx_destination_tags_make(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_TAGS, path, sizeof(path));
    int rc = ibx_note_make(&ram->tags, tags_bytes(ram), path, "the digests of pages are noted",
                           "receive and send with --no-verify", err);
    return rc ? rc : use_tags(ram, record, err);
}

int ibx_destination_tags_find(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_TAGS, path, sizeof(path));
    int rc = ibx_note_find(&ram->tags, tags_bytes(ram), path, err);
    return rc == 0 ? use_tags(ram, record, err)
           : rc != -ESTALE
               ? rc
               : ibx_error_set(err, rc,
                               "%s, where the tool before this one noted the digests of "
                               "pages, is gone or is not its: recover with --no-verify "
                               "at both ends to go on without comparing them",
                               path);
}

void ibx_destination_tags_remove(const struct ibx_record *record)
{
    char path[128];
    ibx_journal_note_path(record, IBX_NOTE_TAGS, path, sizeof(path));
    unlink(path);
}
