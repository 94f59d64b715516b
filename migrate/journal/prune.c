/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Deletes records that are not needed any more. */
#include "migrate/journal/journal_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool ibx_journal_qemu_gone(const struct ibx_record *record)
{
    return record->pid > 0 && record->pid_started && ibx_journal_process_ended(record);
}

static bool is_away(const struct ibx_record *record)
{
    return record->source && record->borrow && !ibx_journal_over(record);
}

/* All records, as they were at the start. One that was over then is still over. */
struct listed {
    struct ibx_record *records;
    size_t count;
};

/* Whether a borrowed VM has returned here by this migration, while the record of its borrowing
 * still says that it is away. Without this record the borrower could return the VM once more, into
 * the memory of a VM that runs. */
static bool keeps_from_returning(const struct listed *all, const struct ibx_record *record)
{
    bool keeps = false;
    if (!ibx_journal_returns(record) || !ibx_journal_ran_here(record))
        return false;
    for (size_t i = 0; i < all->count; i++)
        keeps |= is_away(&all->records[i]) &&
                 !memcmp(all->records[i].id, record->base, sizeof(record->base));
    return keeps;
}

/* Whether somebody has to remove the memory of the record's QEMU when that has ended: a source's
 * after a completed migration. A destination's only if ib-migrate run has made it, since otherwise
 * it is the VM's own; but then however the migration has ended. `path`: where that memory is. */
static bool has_memory(const struct ibx_record *record, char path[PATH_MAX])
{
    if (!ibx_journal_memory_file(record, path))
        return false;
    return record->source ? record->state == IBX_JOURNAL_DONE || record->state == IBX_JOURNAL_ENDED
                          : ibx_journal_in_run_folder(path);
}

static bool share_memory(const struct ibx_record *a, const struct ibx_record *b)
{
    for (unsigned i = 0; i < a->block_count; i++)
        for (unsigned k = 0; k < b->block_count; k++)
            if (a->blocks[i].dev == b->blocks[k].dev && a->blocks[i].ino == b->blocks[k].ino)
                return true;
    return false;
}

/* Whether a tool serves the memory of the VM that left by this migration, or can: recover does. */
static bool serves_memory(const struct ibx_record *record)
{
    char path[PATH_MAX];
    return record->source && !ibx_journal_over(record) && !ibx_journal_lost_there(record) &&
           ibx_journal_memory_file(record, path);
}

/* Whether a VM has left from the same memory by another migration, which is not over: then pages
 * may be nowhere but there. The VM came here by this migration, or left by it, and used the same
 * file again when it was here again. */
static bool is_served_on(const struct listed *all, const struct ibx_record *record)
{
    bool served = false;
    for (size_t i = 0; i < all->count; i++) {
        const struct ibx_record *other = &all->records[i];
        const bool same =
            other->source == record->source && !memcmp(other->id, record->id, sizeof(other->id));
        served |= !same && serves_memory(other) && share_memory(record, other);
    }
    return served;
}

static const char lives_in_run_folder[] =
    "its QEMU lives, in memory that ib-migrate run has made: when it has ended, prune --remove "
    "removes that";

/* Why the record has to stay; NULL: it may be deleted. */
static const char *needed(const struct listed *all, const struct ibx_record *record,
                          const struct ibx_journal_prune *which)
{
    char path[PATH_MAX];
    if (keeps_from_returning(all, record))
        return "the VM returned by this migration, and the one by which it was borrowed is not "
               "over: end that one first (ib-migrate recover, or prune --unfinished)";
    const bool gone = ibx_journal_qemu_gone(record);
    if (!ibx_journal_over(record) && !which->unfinished)
        return "it is not over";
    if (!ibx_journal_over(record) && record->state != IBX_JOURNAL_COMPLETE &&
        record->state != IBX_JOURNAL_SHUT_DOWN && !gone)
        return "it is not over, and its QEMU lives";
    if (serves_memory(record))
        return "it is not over, and the memory of its QEMU, which has ended, is still there: "
               "ib-migrate recover serves it to the destination; when the VM is lost there, too, "
               "remove that file";
    if (is_served_on(all, record) && has_memory(record, path))
        return record->source ? "a later migration from the same memory is not over, and needs it"
                              : "the VM was migrated on from here, and that migration, which is "
                                "not over, needs the memory that ib-migrate run has made";
    if (record->source && !gone &&
        (record->state == IBX_JOURNAL_DONE || record->state == IBX_JOURNAL_ENDED))
        return "its QEMU lives and must not be continued";
    if (!record->source && !gone && ibx_journal_over(record) && has_memory(record, path))
        return lives_in_run_folder;
    if (!record->source && which->keep_memory && has_memory(record, path))
        return "nothing else says where the memory is that ib-migrate run has made";
    return NULL;
}

/* Whether the migration ended before the VM could run at the destination; nothing is left to do. */
static bool has_failed(const struct ibx_record *record)
{
    return record->state == IBX_JOURNAL_KEPT || record->state == IBX_JOURNAL_GIVEN_UP;
}

/* Whether the memory of a VM that is lost at both ends was set aside, under a name that only the
 * record has. */
static bool leaves_aside(const struct ibx_record *record)
{
    char path[PATH_MAX];
    return record->source && ibx_journal_lost_there(record) && ibx_journal_qemu_gone(record) &&
           ibx_journal_memory_file(record, path) && ibx_journal_is_aside(record, path);
}

/* How many of the records up to the current one, the newest first, are over, and have failed. */
struct newer {
    size_t over, failed;
};

static bool too_young(const struct ibx_journal_prune *which, const struct ibx_record *record,
                      const struct newer *newer)
{
    if (which->superseded && has_failed(record) &&
        (!strcmp(which->superseded, record->qmp) || newer->failed > IBX_JOURNAL_KEEP_FAILED))
        return false;
    return record->written_s >= which->before_s && newer->over <= which->keep;
}

/* Ends the migration of a destination whose source will never confirm, if the record has to stay
 * because it says where the memory of a living QEMU is. Sets `*why` then. */
static int end_instead(const char *folder, struct ibx_record *record, const char **why,
                       struct ibx_error *err)
{
    char path[PATH_MAX];
    if (record->source || ibx_journal_over(record) || ibx_journal_qemu_gone(record) ||
        !has_memory(record, path))
        return 0;
    const enum ibx_journal_state was = record->state;
    record->state = was == IBX_JOURNAL_COMPLETE ? IBX_JOURNAL_DONE : IBX_JOURNAL_ENDED;
    *why = lives_in_run_folder;
    int rc = ibx_journal_write(folder, record, err);
    if (rc) /* who prints it, or removes its key, is not to take it for one that is over */
        record->state = was;
    else
        ibx_journal_forget_page_states(record);
    return rc;
}

/* Deletes one record under its lock. Reads it again, since a tool may have changed it since it was
 * listed. Returns why it stays; NULL: it was deleted. */
static const char *remove_one(const char *folder, const struct ibx_journal_prune *which,
                              const struct listed *all, struct ibx_record *record,
                              const struct newer *newer, struct ibx_error *err)
{
    char path[PATH_MAX];
    int lock_fd;
    if (ibx_journal_lock(folder, record, &lock_fd, err))
        return err->message;
    int rc = ibx_journal_reload(folder, record, err);
    const char *why = rc ? NULL : needed(all, record, which);
    if (!rc && !why && too_young(which, record, newer))
        why = "it has just been written";
    if (!rc && !why)
        rc = end_instead(folder, record, &why, err);
    if (rc == -ENOENT) { /* another process has deleted it, and locking has made a new lock file */
        ibx_journal_unlink_beside(folder, record, LOCK);
        rc = 0;
    } else if (!rc && !why) {
        /* That of a QEMU that lives has kept the record: needed(), end_instead(). */
        if ((which->remove && has_memory(record, path)) || leaves_aside(record))
            rc = ibx_journal_remove_files(record, err);
        rc = rc ? rc : ibx_journal_remove(folder, record, err);
    }
    close(lock_fd);
    return rc ? err->message : why;
}

/* What a tool that was killed right after it wrote that has left, or an earlier version, which
 * knows no copies. A second name of guest memory keeps all of it when the VM has ended. */
static void forget_rest(const char *folder, const struct ibx_record *record)
{
    ibx_journal_unlink_beside(folder, record, RECORD_COPY);
    ibx_journal_forget_page_states(record);
    if (record->source && record->libvirt)
        ibx_journal_unlink_files(record);
}

/* Whether a file of this name is the copy of a record, of which it sets the id and the role. */
static bool is_copy(const char *name, struct ibx_record *record)
{
    char expected[NAME_BYTES], digits[3] = "";
    *record = (struct ibx_record){.source = strstr(name, ".source.") != NULL};
    for (size_t i = 0; i < IBX_MIGRATE_ID_BYTES && strlen(name) > 2 * i + 1; i++) {
        memcpy(digits, name + 2 * i, 2);
        record->id[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    ibx_journal_name(record, RECORD_COPY, expected);
    return !strcmp(name, expected);
}

static bool has_no_record(int dir, const struct ibx_record *record)
{
    char name[NAME_BYTES];
    struct stat st;
    ibx_journal_name(record, RECORD, name);
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
}

/* A copy is read only if there is a record. One of which there is none is what an earlier version
 * has left that deleted the record. */
static void forget_copy_alone(const char *folder, int dir, const struct ibx_record *record)
{
    int lock;
    if (ibx_journal_lock(folder, record, &lock, NULL)) /* its tool may write the record anew */
        return;
    if (has_no_record(dir, record))
        ibx_journal_unlink_beside(folder, record, RECORD_COPY);
    ibx_journal_unlock(folder, record, lock);
}

static void forget_copies_alone(const char *folder)
{
    struct ibx_record record;
    const int fd = ibx_journal_folder_open(folder, NULL);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (is_copy(entry->d_name, &record) && has_no_record(fd, &record))
            forget_copy_alone(folder, fd, &record);
    }
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
}

int ibx_journal_prune(const char *folder, const struct ibx_journal_prune *which,
                      struct ibx_error *err)
{
    struct listed all;
    struct newer newer = {0};
    int rc = ibx_journal_list(folder, &all.records, &all.count, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < all.count; i++) {
        struct ibx_record *record = &all.records[i];
        struct ibx_error silent = {0};
        newer.over += ibx_journal_over(record);
        newer.failed += has_failed(record);
        if (ibx_journal_over(record))
            forget_rest(folder, record);
        if ((which->qmp && strcmp(which->qmp, record->qmp)) || too_young(which, record, &newer))
            continue;
        const char *why = needed(&all, record, which);
        if (!why)
            why = remove_one(folder, which, &all, record, &newer, &silent);
        if (which->each)
            which->each(which->context, record, why);
    }
    free(all.records);
    forget_copies_alone(folder);
    return 0;
}

void ibx_journal_prune_old(const char *folder, const char *qmp)
{
    const time_t now = time(NULL), age = IBX_JOURNAL_DAYS * 86400; /* the clock may be in 1970 */
    const struct ibx_journal_prune old = {.before_s = now > age ? (uint64_t)(now - age) : 0,
                                          .keep = IBX_JOURNAL_KEEP,
                                          .superseded = qmp,
                                          .keep_memory = true};
    ibx_journal_prune(folder, &old, NULL);
}
