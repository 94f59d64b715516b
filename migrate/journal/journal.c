/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The files: read, listed, written, removed. */
#include "migrate/journal/journal_internal.h"

#include "common/write_whole.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOUCHED ".touched"
#define BACK    ".back"

void ibx_journal_page_state_path(const struct ibx_record *record, enum ibx_journal_page_state kind,
                                 char *path, size_t size)
{
    static const char *const suffixes[] = {[IBX_PAGE_STATE_ARRIVED] = ".arrived",
                                           [IBX_PAGE_STATE_TAGS] = ".tags",
                                           [IBX_PAGE_STATE_BASE] = ".base",
                                           [IBX_PAGE_STATE_MAP] = ".map"};
    char name[NAME_BYTES];
    ibx_journal_name(record, suffixes[kind], name);
    snprintf(path, size, "/dev/shm/ibx-%s", name);
}

/* ------------------------------------------------------------ reading */

static int damaged(const char *folder, const char *name, struct ibx_error *err, const char *why)
{
    return ibx_error_set(
        err, -EBADMSG,
        "%s/%.80s is not a record of a migration (%.300s): before you remove it, see what "
        "ib-migrate status says on the other host, and what ib-migrate(1) says of a damaged record",
        folder, name, why);
}

static bool check_file(const struct stat *st)
{
    return S_ISREG(st->st_mode) && (st->st_uid == geteuid() || st->st_uid == 0) &&
           !(st->st_mode & 022) && st->st_size <= (off_t)JOURNAL_BYTES_MAX;
}

/* Reads a file with this suffix, a record or its copy; `record` is unchanged on failure. -ENOENT,
 * without `err`: there is no such file. */
static int load_file(const char *folder, int dir, const char *name, const char *suffix,
                     struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_record found;
    struct ibx_error why = {0};
    struct stat st;
    char expected[NAME_BYTES], hint[REMEDY_BYTES];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    const int code = fd < 0 ? -errno : 0;
    if (code && code != -ELOOP)
        return ibx_error_set(err, code, "record %s/%s cannot be read: %s%s", folder, name,
                             strerror(-code), ibx_journal_remedy(code, "", hint));
    if (fd < 0 || fstat(fd, &st) || !check_file(&st)) {
        if (fd >= 0)
            close(fd);
        return damaged(folder, name, err,
                       "it is no regular file of at most 256 KiB that only this user can write");
    }
    char *text = malloc(JOURNAL_BYTES_MAX);
    ssize_t n = text ? read(fd, text, JOURNAL_BYTES_MAX) : -1;
    int read_errno = errno;
    close(fd);
    int rc = n < 0 ? ibx_error_set(err, -read_errno, "record %s/%s cannot be read: %s", folder,
                                   name, strerror(read_errno))
                   : 0;
    if (!rc && (rc = ibx_journal_text_parse(text, (size_t)n, &found, &why)))
        rc = rc == -EPROTONOSUPPORT
                 ? ibx_error_set(err, rc, "record %s/%.80s %s", folder, name, why.message)
                 : damaged(folder, name, err, why.message);
    if (text)
        OPENSSL_cleanse(text, JOURNAL_BYTES_MAX);
    free(text);
    if (rc)
        return rc;
    ibx_journal_name(&found, suffix, expected);
    if (strcmp(name, expected) != 0)
        return damaged(folder, name, err, "its id or role is not that of its name");
    *record = found;
    record->changed = st.st_mtim;
    return 0;
}

static int load(const char *folder, int dir, const char *name, struct ibx_record *record,
                struct ibx_error *err)
{
    return load_file(folder, dir, name, RECORD, record, err);
}

/* Whether a record is there, but not what it said. Its disk may take a new one all the same. */
static bool is_damage(int rc)
{
    return rc == -EBADMSG || rc == -EIO;
}

/* Reads the copy of the record with this name. */
static int load_copy(const char *folder, int dir, const char *name, struct ibx_record *record)
{
    const size_t stem = strlen(name) - strlen(RECORD);
    char copy[NAME_BYTES];
    if (stem + strlen(RECORD_COPY) >= sizeof(copy))
        return -ENOENT;
    snprintf(copy, sizeof(copy), "%.*s%s", (int)stem, name, RECORD_COPY);
    return load_file(folder, dir, copy, RECORD_COPY, record, NULL);
}

/* Reads a record, or, if it is damaged, its copy. */
static int load_any(const char *folder, int dir, const char *name, struct ibx_record *record,
                    struct ibx_error *err)
{
    struct ibx_error why = {0};
    const int rc = load(folder, dir, name, record, &why);
    if (is_damage(rc)) {
        record->copied = !load_copy(folder, dir, name, record);
        if (record->copied)
            return 0;
    }
    if (rc && err && why.code)
        *err = why;
    return rc;
}

/* Orders by number, not by time, since a clock may be set back. Records of earlier versions have no
 * number and are older than all that have one. */
static int newest_first(const void *one, const void *other)
{
    const struct ibx_record *a = one, *b = other;
    if (a->number != b->number)
        return a->number < b->number ? 1 : -1;
    if (a->written_s != b->written_s)
        return a->written_s < b->written_s ? 1 : -1;
    if (a->changed.tv_sec != b->changed.tv_sec)
        return a->changed.tv_sec < b->changed.tv_sec ? 1 : -1;
    if (a->changed.tv_nsec != b->changed.tv_nsec)
        return a->changed.tv_nsec < b->changed.tv_nsec ? 1 : -1;
    return memcmp(a->id, b->id, IBX_MIGRATE_ID_BYTES);
}

bool ibx_journal_is_later(const struct ibx_record *record, const struct ibx_record *than)
{
    return record->number != than->number ? record->number > than->number
                                          : record->written_s >= than->written_s;
}

struct list {
    struct ibx_record *items;
    size_t count, room;
};

static bool has(const struct list *list, const struct ibx_record *record)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].source == record->source &&
            !memcmp(list->items[i].id, record->id, IBX_MIGRATE_ID_BYTES))
            return true;
    }
    return false;
}

static int list_add(struct list *list, const char *folder, int dir, const char *name,
                    struct ibx_error *err)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 8;
        struct ibx_record *items = reallocarray(list->items, room, sizeof(*items));
        if (!items)
            return ibx_error_set(err, -ENOMEM, "no memory for the records in %s", folder);
        list->items = items;
        list->room = room;
    }
    int rc = load_any(folder, dir, name, &list->items[list->count], err);
    if (rc == -ENOENT) /* removed since */
        return 0;
    /* readdir(3) may return a file twice that is replaced meanwhile. */
    if (!rc && !has(list, &list->items[list->count]))
        list->count++;
    return rc;
}

static bool is_record(const char *name)
{
    const size_t n = strlen(name);
    return name[0] != '.' && n > 5 && !strcmp(name + n - 5, RECORD);
}

/* Whether the error is one of a single record, beside which others may be good, and not of this
 * process. */
static bool is_of_record(int rc)
{
    return rc != -ENOMEM && rc != -EMFILE && rc != -ENFILE;
}

static int cannot_list(const char *folder, int code, struct ibx_error *err)
{
    if (code == ENOMEM)
        return ibx_error_set(err, -code, "no memory for the records in %s", folder);
    return ibx_error_set(err, -code,
                         "folder %s for records of migrations cannot be read: %s; allow fcntl(2) "
                         "to ib-migrate where a seccomp profile or a security module denies it",
                         folder, strerror(code));
}

/* With `unread`, as ibx_journal_list_readable(). */
static int list_folder(const char *folder, struct list *list, struct ibx_error *unread,
                       struct ibx_error *err)
{
    if (access(folder, F_OK) && errno == ENOENT) /* no folder: no records */
        return 0;
    int fd = ibx_journal_folder_open(folder, err), rc = 0;
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        rc = cannot_list(folder, errno, err);
        close(fd);
        return rc;
    }
    for (const struct dirent *entry; !rc && (entry = readdir(dir));) {
        struct ibx_error why = {0};
        if (is_record(entry->d_name))
            rc = list_add(list, folder, fd, entry->d_name, &why);
        if (rc && unread && is_of_record(rc)) {
            *unread = why;
            rc = 0;
        } else if (rc) {
            ibx_error_set(err, rc, "%s", why.message);
        }
    }
    closedir(dir);
    if (list->count)
        qsort(list->items, list->count, sizeof(*list->items), newest_first);
    return rc;
}

int ibx_journal_list_readable(const char *folder, struct ibx_record **records, size_t *count,
                              struct ibx_error *unread, struct ibx_error *err)
{
    struct list list = {0};
    int rc = list_folder(folder, &list, unread, err);
    if (rc) {
        free(list.items);
        return rc;
    }
    *records = list.items;
    *count = list.count;
    return 0;
}

int ibx_journal_list(const char *folder, struct ibx_record **records, size_t *count,
                     struct ibx_error *err)
{
    return ibx_journal_list_readable(folder, records, count, NULL, err);
}

static int reload(const char *folder, struct ibx_record *record,
                  int (*read_it)(const char *folder, int dir, const char *name,
                                 struct ibx_record *record, struct ibx_error *err),
                  struct ibx_error *err)
{
    char name[NAME_BYTES];
    int dir = ibx_journal_folder_open(folder, err);
    if (dir < 0)
        return dir;
    ibx_journal_name(record, RECORD, name);
    int rc = read_it(folder, dir, name, record, err);
    close(dir);
    return rc == -ENOENT
               ? ibx_error_set(err, rc, "the record of this migration was removed from %s", folder)
               : rc;
}

int ibx_journal_reload(const char *folder, struct ibx_record *record, struct ibx_error *err)
{
    return reload(folder, record, load_any, err);
}

int ibx_journal_check(const char *folder, const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_record there = *record;
    const int rc = reload(folder, &there, load, err);
    return is_damage(rc) ? -EBADMSG : rc;
}

int ibx_journal_find(const char *folder, const char *qmp,
                     bool (*fits)(const struct ibx_record *record), struct ibx_record *record,
                     struct ibx_error *err)
{
    struct ibx_record *all;
    struct ibx_error unread = {0};
    size_t count, i = 0;
    int rc = ibx_journal_list_readable(folder, &all, &count, &unread, err);
    if (rc)
        return rc;
    while (i < count && (strcmp(qmp, all[i].qmp) || !fits(&all[i])))
        i++;
    /* What a borrowed VM and its return may do depends on each other's records. */
    if (unread.code && (i == count || all[i].borrow || ibx_journal_returns(&all[i])))
        rc = ibx_error_set(err, unread.code, "%s", unread.message);
    else if (i < count)
        *record = all[i];
    else
        rc = ibx_error_set(err, -ENOENT,
                           "there is no unfinished migration of the QEMU at %s recorded in %s: "
                           "\"ib-migrate status\" shows the records",
                           qmp, folder);
    free(all);
    return rc;
}

int ibx_journal_find_return(const char *folder, const struct ibx_record *borrowed,
                            bool (*fits)(const struct ibx_record *record),
                            struct ibx_record *record)
{
    struct ibx_record *all;
    size_t count, i = 0;
    int rc = ibx_journal_list(folder, &all, &count, NULL);
    if (rc)
        return rc;
    while (i < count && (all[i].source == borrowed->source ||
                         memcmp(all[i].base, borrowed->id, sizeof(all[i].base)) || !fits(&all[i])))
        i++;
    if (i < count)
        *record = all[i];
    else
        rc = -ENOENT;
    free(all);
    return rc;
}

/* ------------------------------------------------------------ writing */

static int write_new(int dir, const char *name, const char *text, size_t length, bool durably)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = fchmod(fd, 0600) ? -errno : 0; /* independent of the umask */
    if (!rc)
        rc = ibx_write_whole(fd, text, length);
    if (!rc && durably && fsync(fd))
        rc = -errno;
    if (close(fd) && !rc)
        rc = -errno;
    return rc;
}

/* Writes the record, or its copy, to a new file, which then replaces the old one by rename(2). */
static int put(int dir, const struct ibx_record *record, const char *suffix, bool durably,
               struct ibx_error *err)
{
    char name[NAME_BYTES], fresh[NAME_BYTES], *text;
    size_t length;
    int rc = ibx_journal_text_make(record, &text, &length, err);
    if (rc)
        return rc;
    ibx_journal_name(record, suffix, name);
    ibx_journal_name(record, ".new", fresh);
    rc = write_new(dir, fresh, text, length, durably);
    OPENSSL_cleanse(text, length);
    free(text);
    if (!rc && renameat(dir, fresh, dir, name))
        rc = -errno;
    if (rc)
        unlinkat(dir, fresh, 0);
    return rc;
}

static void forget_copy(int dir, const struct ibx_record *record)
{
    char name[NAME_BYTES];
    ibx_journal_name(record, RECORD_COPY, name);
    unlinkat(dir, name, 0);
}

/* Keeps a copy while only the record says what is left to be done and the VM may not be here, for a
 * tool that finds the record damaged when its own has ended. The copy is written before the record
 * and is never older, so that it never says that the VM is here when it may run elsewhere; only a
 * record that is damaged is written first. It need not be on disk: the VM does not survive the
 * host. */
static void put_copy(int dir, const struct ibx_record *record)
{
    const struct ibx_state *state = ibx_journal_state_of(record->source, (unsigned)record->state);
    if (!state || state->flags & (IBX_STATE_INITIAL | IBX_STATE_FINAL) ||
        put(dir, record, RECORD_COPY, false, NULL))
        forget_copy(dir, record);
}

/* After a failed write: restores the previous record. The caller continues from the previous state,
 * and from the one that was written its state machine might have no move onward. */
static void put_back(int dir, const struct ibx_record *previous, const struct ibx_record *record)
{
    char name[NAME_BYTES];
    ibx_journal_name(record, RECORD, name);
    if (previous->state)
        put(dir, previous, RECORD, false, NULL);
    else
        unlinkat(dir, name, 0);
}

static void put_copy_back(int dir, const struct ibx_record *previous,
                          const struct ibx_record *record)
{
    if (previous->state)
        put_copy(dir, previous);
    else
        forget_copy(dir, record);
}

/* A tool that has begun keeps its folder until it ends. */
static int unwritten(const char *folder, const struct ibx_record *before, int rc,
                     struct ibx_error *err)
{
    char name[NAME_BYTES], hint[REMEDY_BYTES], other[REMEDY_BYTES];
    snprintf(other, sizeof(other), "; free space and rights in that folder, or %s%s",
             before->written_s ? "once this ib-migrate has ended, " : "",
             ibx_journal_other_folder(before));
    ibx_journal_name(before, RECORD, name);
    return ibx_error_set(err, rc, "record %s/%s cannot be written: %s%s", folder, name,
                         strerror(-rc), ibx_journal_remedy(rc, other, hint));
}

/* `damaged`: the copy is all that is left of `previous`, so it stays until the record is there. An
 * error that is not the folder's is told; one of the folder is left to the caller. */
static int replace(int dir, const struct ibx_record *previous, bool damaged,
                   const struct ibx_record *record, struct ibx_error *why)
{
    if (!damaged)
        put_copy(dir, record);
    int rc = put(dir, record, RECORD, true, why);
    if (!damaged && (rc == -ENOSPC || rc == -EDQUOT)) { /* the record needs the room of its copy */
        forget_copy(dir, record);
        rc = put(dir, record, RECORD, true, why);
    }
    if (!rc && fsync(dir)) {
        rc = -errno;
        put_back(dir, previous, record);
    }
    if (damaged && !rc)
        put_copy(dir, record);
    else if (!damaged && rc)
        put_copy_back(dir, previous, record);
    return rc;
}

static int check_move(const struct ibx_record *previous, const struct ibx_record *record,
                      struct ibx_error *err)
{
    if (!ibx_journal_move_allowed(record->source, previous->state, record->state))
        return ibx_error_set(
            err, -EINVAL, "a migration that is %s at its %s cannot become %s there",
            previous->state ? ibx_journal_state_name(previous->state) : "new",
            record->source ? "source" : "destination", ibx_journal_state_name(record->state));
    if (record->epoch < previous->epoch || !record->epoch || record->epoch > INT64_MAX)
        return ibx_error_set(err, -EINVAL,
                             "epoch %" PRIu64 " of a migration cannot follow epoch %" PRIu64,
                             record->epoch, previous->epoch);
    return 0;
}

/* The number of a new record: the highest plus one. Two tools that start at the same moment, for
 * different QEMUs, may get the same. Records that cannot be read are skipped here. */
static int next_number(const char *folder, uint64_t *number, struct ibx_error *err)
{
    struct ibx_record *one = malloc(sizeof(*one));
    const int fd = one ? ibx_journal_folder_open(folder, err) : -ENOMEM;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const int code = errno;
    uint64_t highest = 0;
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (is_record(entry->d_name) && !load_any(folder, fd, entry->d_name, one, NULL) &&
            one->number > highest)
            highest = one->number;
    }
    if (one)
        OPENSSL_cleanse(one, sizeof(*one));
    free(one);
    if (dir)
        closedir(dir);
    else if (fd >= 0)
        close(fd);
    if (!dir)
        return fd < 0 && fd != -ENOMEM ? fd : cannot_list(folder, fd < 0 ? ENOMEM : code, err);
    *number = highest < INT64_MAX ? highest + 1 : highest;
    return 0;
}

/* Somebody has removed or damaged the record of this tool while it works on it, and perhaps removed
 * the lock file, too. The lock that the tool holds is then on a deleted file, so it takes another
 * one, which is held until this process ends. */
static int lock_again(const char *folder, const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int fd, rc = ibx_journal_lock(folder, record, &fd, &why);
    if (rc && rc != -EBUSY && err)
        *err = why;
    return rc == -EBUSY ? 0 : rc;
}

int ibx_journal_write(const char *folder, struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_record previous = {0}, next = *record;
    struct ibx_error damage = {0}, why = {0};
    struct timespec now;
    char name[NAME_BYTES];
    int dir = ibx_journal_folder_open(folder, err);
    if (dir < 0)
        return dir;
    if (record->verify)
        mlock(record->verify_key, sizeof(record->verify_key)); /* as RLIMIT_MEMLOCK allows */
    ibx_journal_name(record, RECORD, name);
    int rc = load(folder, dir, name, &previous, &damage);
    /* Its own tool knows all that was in a record which somebody has damaged. */
    const bool again = record->written_s && (rc == -ENOENT || is_damage(rc));
    const bool fresh = rc == -ENOENT, damaged = again && !fresh;
    if (damaged)
        load_copy(folder, dir, name, &previous);
    next.number = again ? record->number : previous.number;
    if (again)
        rc = lock_again(folder, record, err);
    else if (!rc || fresh)
        rc = check_move(&previous, record, err);
    else if (err)
        *err = damage;
    if (!rc && fresh && !again)
        rc = next_number(folder, &next.number, err);
    clock_gettime(CLOCK_REALTIME, &now);
    next.written_s = (uint64_t)now.tv_sec;
    if (!rc && (rc = replace(dir, &previous, damaged, &next, &why)))
        rc = why.code ? ibx_error_set(err, rc, "%s", why.message)
                      : unwritten(folder, record, rc, err);
    close(dir);
    if (!rc) {
        record->written_s = next.written_s;
        record->number = next.number;
        record->copied = false;
    }
    return rc;
}

int ibx_journal_remove(const char *folder, const struct ibx_record *record, struct ibx_error *err)
{
    static const char *const beside[] = {RECORD_COPY, ".new",    ".sock", LOCK,
                                         TOUCHED,     BASE_LOCK, HOME,    BACK};
    char name[NAME_BYTES];
    int dir = ibx_journal_folder_open(folder, err);
    if (dir < 0)
        return dir;
    ibx_journal_name(record, RECORD, name);
    int rc = unlinkat(dir, name, 0) || fsync(dir) ? -errno : 0;
    if (rc)
        ibx_error_set(err, rc, "record %s/%s cannot be removed: %s", folder, name, strerror(-rc));
    for (unsigned i = 0; !rc && i < sizeof(beside) / sizeof(beside[0]); i++) {
        ibx_journal_name(record, beside[i], name);
        unlinkat(dir, name, 0);
    }
    if (!rc)
        ibx_journal_forget_page_states(record);
    close(dir);
    return rc;
}

void ibx_journal_forget_page_states(const struct ibx_record *record)
{
    char path[NAME_BYTES + 32];
    for (unsigned kind = 0; kind < IBX_PAGE_STATE_KINDS; kind++) {
        ibx_journal_page_state_path(record, (enum ibx_journal_page_state)kind, path, sizeof(path));
        unlink(path);
    }
    if (!record->source || !record->borrow)
        return;
    ibx_journal_home_path(record->id, path, sizeof(path));
    unlink(path);
}

/* ------------------------------------------------------------ durable markers */

static int mark_beside(const char *folder, const struct ibx_record *record, const char *suffix,
                       struct ibx_error *err)
{
    char name[NAME_BYTES];
    int dir = ibx_journal_folder_open(folder, err);
    if (dir < 0)
        return dir;
    ibx_journal_name(record, suffix, name);
    int rc = write_new(dir, name, "", 0, true);
    if (!rc && fsync(dir))
        rc = -errno;
    close(dir);
    return rc ? ibx_error_set(err, rc, "%s/%s cannot be written: %s", folder, name, strerror(-rc))
              : 0;
}

int ibx_journal_touch_base(const char *folder, const struct ibx_record *record,
                           struct ibx_error *err)
{
    return mark_beside(folder, record, TOUCHED, err);
}

bool ibx_journal_base_touched(const char *folder, const struct ibx_record *record)
{
    struct stat st;
    return ibx_journal_look_beside(folder, record, TOUCHED, &st) != -ENOENT;
}

int ibx_journal_mark_back(const char *folder, const struct ibx_record *record,
                          struct ibx_error *err)
{
    return mark_beside(folder, record, BACK, err);
}

bool ibx_journal_back_marked(const char *folder, const struct ibx_record *record)
{
    struct stat st;
    return record->source && ibx_journal_look_beside(folder, record, BACK, &st) != -ENOENT;
}

void ibx_journal_unmark_back(const char *folder, const struct ibx_record *record)
{
    ibx_journal_unlink_beside(folder, record, BACK);
}
