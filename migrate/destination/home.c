/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A VM returns to where it was borrowed from. Its memory is still here, as it was at its stop, in
 * the files of the QEMU that it left. They take the place of those of this QEMU, so that nothing
 * but the VM itself ever writes to them; the pages that it has written since are dropped and then
 * fetched as in any migration with pages that came before the stop (warm.c).
 *
 * From the first page that is dropped on the files are not what they were at the stop. If the VM
 * does not return after all, the pages that the borrower lacks are still here, since it has all
 * that the VM has written there; but the VM cannot be restarted here from its stop any more
 * (ibx_journal_touch_base()).
 */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_MS  500    /* for QEMU to tell the name of a file */
#define NAMES_MS 10000u /* for its monitor to be there after a recovery */

static bool is_home(const struct destination *d)
{
    return d->home.record.epoch != 0;
}

/* An error if a QEMU here has the memory of this VM, or had it while the VM ran: then no other QEMU
 * may take it, whatever the borrower says. If a QEMU had it and has ended before the VM ran, the
 * memory is as it was. */
static int check_return(const struct ibx_record *before, struct ibx_error *err)
{
    if (ibx_journal_ran_here(before))
        return ibx_error_set(err, -EALREADY,
                             "the VM has returned already, into QEMU (process %d): its memory is "
                             "not what it left any more",
                             (int)before->pid);
    if (before->state == IBX_JOURNAL_GIVEN_UP || !ibx_journal_qemu_lives(before))
        return 0;
    return ibx_error_set(err, -EBUSY,
                         "QEMU (process %d) has it, for a return that is not over: end that QEMU, "
                         "or ib-migrate recover %s",
                         (int)before->pid, ibx_journal_options(before->qmp).text);
}

/* After a rollback that was killed, the VM may run here in this memory. */
static int check_not_taken_back(const char *folder, const struct ibx_record *away,
                                struct ibx_error *err)
{
    return ibx_journal_back_marked(folder, away)
               ? ibx_error_set(err, -EBUSY,
                               "a rollback has begun and has not recorded its end, so that the VM "
                               "may run here in its memory: ib-migrate recover %s finds out",
                               ibx_journal_options(away->qmp).text)
               : 0;
}

/* Finds the record of the migration by which the VM left. An error if somebody else than this
 * receiver has or had its memory (`own`: this receiver's record, or NULL). */
static int find_record(const struct destination *d, const uint8_t base[IBX_MIGRATE_ID_BYTES],
                       const struct ibx_record *own, struct ibx_record *record,
                       struct ibx_error *err)
{
    struct ibx_record *all;
    size_t count, i = 0;
    int rc = ibx_journal_list(d->options->folder, &all, &count, err);
    if (rc)
        return rc;
    while (i < count &&
           (!all[i].source || !all[i].borrow || memcmp(all[i].id, base, IBX_MIGRATE_ID_BYTES)))
        i++;
    if (i == count || all[i].state != IBX_JOURNAL_MOVED)
        rc = ibx_error_set(err, -ENOENT,
                           "the records in %s have no such VM that was borrowed from here and is "
                           "away",
                           d->options->folder);
    else
        rc = check_not_taken_back(d->options->folder, &all[i], err);
    if (!rc)
        *record = all[i];
    for (i = 0; !rc && i < count; i++)
        if (!all[i].source && !memcmp(all[i].base, base, IBX_MIGRATE_ID_BYTES) &&
            !(own && !memcmp(all[i].id, own->id, sizeof(own->id))))
            rc = check_return(&all[i], err);
    free(all);
    return rc;
}

/* Checks that again when this tool has locked the memory: since the VM was accepted here, it may
 * have returned to another QEMU whose tool has ended, and have run there. */
static int check_alone(struct destination *d, struct ibx_error *err)
{
    const struct ibx_record *own = &d->status.record;
    return find_record(d, own->base, own, &d->home.record, err);
}

/* Finds which pages are left of the memory: an earlier return that failed may have dropped some. */
static int find_pages(struct destination_home *home, struct ibx_error *err)
{
    ibx_page_map_fini(&home->has);
    int rc = ibx_page_map_init_ram(&home->has, &home->ram, err);
    return rc ? rc : ibx_page_map_search(&home->has, &home->ram, err);
}

void ibx_destination_home_check(struct destination *d, const struct ibx_migrate_hello *hello,
                                struct ibx_blockers *blockers)
{
    static const uint8_t none[IBX_MIGRATE_ID_BYTES];
    struct destination_home found = {.record = {.epoch = 0}};
    struct ibx_error why = {0};
    const bool returns = memcmp(hello->base, none, sizeof(none)) != 0;
    if (returns != d->options->home)
        ibx_blockers_add(blockers,
                         returns ? "this VM returns: it is received with --home, where it was "
                                   "borrowed from"
                                 : "this receiver waits for a VM that returns (--home), and this "
                                   "one was not borrowed from here");
    if (blockers->count || !returns)
        return;
    int rc = find_record(d, hello->base, NULL, &found.record, &why);
    if (!rc)
        rc = ibx_journal_open_base(&found.record, &found.ram, &why);
    if (!rc)
        rc = ibx_guest_ram_adoptable(&d->ram.guest, &found.ram, &why);
    if (!rc)
        ibx_preflight_space(&found.ram, blockers);
    ibx_destination_home_fini(&d->home);
    d->home = found;
    if (rc)
        ibx_blockers_add(blockers, "the memory that the VM left here cannot be used: %s",
                         why.message);
}

/* Records that the VM can no longer be restarted here in the memory that it left. */
static int touch(struct destination *d, struct ibx_error *err)
{
    struct ibx_record *away = &d->home.record;
    int lock, rc = ibx_journal_lock_base(d->options->folder, away, &lock, err);
    if (rc)
        return rc;
    rc = ibx_migration_reload(d->options->folder, away, err); /* it may have changed meanwhile */
    if (!rc) /* before the mark, which would forbid that rollback to be repeated */
        rc = check_not_taken_back(d->options->folder, away, err);
    if (!rc)
        rc = ibx_journal_touch_base(d->options->folder, away, err);
    close(lock);
    return rc;
}

int ibx_destination_home_adopt(struct destination *d, struct ibx_error *err)
{
    struct destination_ram *ram = &d->ram;
    if (!is_home(d))
        return 0;
    for (size_t i = 0; i < ram->guest.count; i++) {
        struct ibx_guest_file file;
        ibx_guest_file_describe(ram->guest.pid, &ram->guest.blocks[i], &file);
        memcpy(d->home.names[i], file.path, sizeof(file.path));
    }
    ram->minor = !ram->borrow && ibx_destination_link_registers_free(&d->link);
    int rc = touch(d, err);
    if (!rc)
        rc = ibx_destination_lock_also(d, d->home.ram.blocks[0].fd, err);
    if (!rc)
        rc = check_alone(d, err);
    ram->kept = !rc; /* otherwise this QEMU has none of that memory */
    return rc ? rc
              : ibx_guest_ram_adopt(&ram->guest, &d->home.ram, d->qemu.qmp,
                                    ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
}

/* To be called when only the engine still fills holes. A QEMU that locks its memory has filled them
 * with zeros when it mapped the files: such a page counts as one to be dropped, not as one that
 * came. */
int ibx_destination_home_look(struct destination *d, struct ibx_error *err)
{
    return is_home(d) ? find_pages(&d->home, err) : 0;
}

int ibx_destination_home_send(struct destination *d, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_HAVE};
    const struct ibx_page_map *has = &d->home.has;
    const size_t room = ibx_channel_room(&d->link.control);
    size_t length;
    uint64_t from = 0;
    int rc = 0;
    if (!is_home(d))
        return 0;
    ibx_page_map_add(&d->ram.had, has);
    while (!rc && (length = ibx_page_map_encode(has, &from, bytes, room)) > 0) {
        message.is.map.bytes = bytes;
        message.is.map.length = length;
        rc = ibx_channel_send(&d->link.control, &message, err);
    }
    message = (struct ibx_migrate_any){.type = IBX_MIGRATE_HAVE_END};
    message.is.map_end =
        (struct ibx_migrate_map_end){.pages = has->pages, .data_pages = has->data_pages};
    ibx_page_map_hash(has, message.is.map_end.hash);
    return rc ? rc : ibx_channel_send(&d->link.control, &message, err);
}

int ibx_destination_home_comes(struct destination *d, struct ibx_error *err)
{
    int rc = is_home(d) ? ibx_journal_mark_home(d->options->folder, d->home.record.id, err) : 0;
    return rc ? ibx_error_prefix(err, rc, "the VM stays where it was") : 0;
}

void ibx_destination_home_never_came(const struct destination *d)
{
    const struct ibx_record *record = &d->status.record;
    /* Before MAY_RUN this side has not had the memory: the marker may be another receiver's. */
    if (ibx_journal_returns(record) && record->state == IBX_JOURNAL_MAY_RUN)
        ibx_journal_unmark_home(d->options->folder, record->base);
}

void ibx_destination_home_rename(struct destination *d)
{
    struct ibx_error why = {0};
    if (is_home(d) &&
        ibx_journal_rename_base(&d->home.record, d->home.names, &d->status.record, &why))
        ibx_migration_notify(&d->options->observer,
                             "the VM's memory keeps the name that it had before (%s), which QEMU "
                             "does not know: the VM cannot be migrated from here",
                             why.message);
}

void ibx_destination_home_recover(struct destination *d)
{
    struct ibx_record *all;
    size_t count;
    const struct ibx_record *record = &d->status.record;
    d->ram.kept = ibx_journal_returns(record);
    if (!d->ram.kept || ibx_journal_list(d->options->folder, &all, &count, NULL))
        return;
    for (size_t i = 0; i < count; i++)
        if (all[i].source && all[i].borrow &&
            !memcmp(all[i].id, record->base, sizeof(record->base)))
            d->home.record = all[i];
    free(all);
}

/* Asks QEMU for the path of a memory back end. */
static int ask_name(struct destination *d, const char *id, char name[IBX_GUEST_FILE_PATH],
                    struct ibx_error *err)
{
    char path[IBX_GUEST_ID_MAX + 16];
    json_t *value;
    snprintf(path, sizeof(path), "/objects/%s", id);
    int rc = ibx_qmp_execute(d->qemu.qmp, "qom-get",
                             json_pack("{s:s, s:s}", "path", path, "property", "mem-path"), &value,
                             ibx_deadline_in_ms(NAME_MS), err);
    if (rc)
        return rc;
    const char *text = json_string_value(value);
    if (text && *text == '/')
        snprintf(name, IBX_GUEST_FILE_PATH, "%s", text);
    json_decref(value);
    return 0;
}

bool ibx_destination_home_rename_late(struct destination *d)
{
    struct ibx_error why = {0};
    const struct ibx_guest_ram *ram = &d->ram.guest;
    int rc = 0;
    if (!is_home(d) || !d->ram.recovered)
        return false;
    for (size_t i = 0; d->qemu.qmp && !rc && i < ram->count; i++)
        rc = ask_name(d, ram->blocks[i].id, d->home.names[i], &why);
    if ((!d->qemu.qmp || rc) && ibx_now_ns() - d->lost_ns < NAMES_MS * IBX_NS_PER_MS)
        return true;
    if (!rc)
        ibx_destination_home_rename(d);
    ibx_destination_record(d, d->status.record.state, NULL);
    d->home.record.epoch = 0;
    return false;
}

void ibx_destination_home_give_up(struct destination *d)
{
    struct ibx_error why = {0};
    if (!d->ram.kept || !ibx_journal_qemu_lives(&d->status.record))
        return;
    int rc = d->qemu.qmp ? ibx_vm_quit(d->qemu.qmp, &why)
                         : ibx_error_set(&why, -ENOTCONN, "its monitor is lost");
    if (rc)
        ibx_migration_notify(&d->options->observer,
                             "QEMU (process %d) here has the memory of the VM, which has not "
                             "returned, and could not be ended (%s): end it",
                             (int)d->status.record.pid, why.message);
}

void ibx_destination_home_fini(struct destination_home *home)
{
    ibx_page_map_fini(&home->has);
    ibx_guest_ram_fini(&home->ram);
    home->record.epoch = 0;
}
