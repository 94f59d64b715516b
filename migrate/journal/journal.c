/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The files: where they are, written, listed, locked. */
#include "migrate/journal/journal_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME_BYTES   64u /* of a file: 32 digits, the role and a suffix */
#define TOUCHED      ".touched"
#define LOCK_TRIES   100 /* while others remove the lock's file */
#define SOCKET_BYTES sizeof(((struct sockaddr_un *)NULL)->sun_path)

static void name_of(const struct ibx_journal *record, const char *suffix, char name[NAME_BYTES])
{
    const size_t digits = (size_t)2 * IBX_MIGRATE_ID_BYTES;
    ibx_hex_text(record->id, IBX_MIGRATE_ID_BYTES, name);
    snprintf(name + digits, NAME_BYTES - digits, ".%s%s", record->source ? "source" : "destination",
             suffix);
}

void ibx_journal_path(const char *folder, const struct ibx_journal *record, const char *suffix,
                      char *path, size_t size)
{
    char name[NAME_BYTES];
    name_of(record, suffix, name);
    snprintf(path, size, "%s/%s", folder, name);
}

void ibx_journal_arrived_path(const struct ibx_journal *record, char *path, size_t size)
{
    char name[NAME_BYTES];
    name_of(record, ".arrived", name);
    snprintf(path, size, "/dev/shm/ibx-%s", name);
}

void ibx_journal_base_path(const struct ibx_journal *record, char *path, size_t size)
{
    char name[NAME_BYTES];
    name_of(record, ".base", name);
    snprintf(path, size, "/dev/shm/ibx-%s", name);
}

void ibx_journal_map_path(const struct ibx_journal *record, char *path, size_t size)
{
    char name[NAME_BYTES];
    name_of(record, ".map", name);
    snprintf(path, size, "/dev/shm/ibx-%s", name);
}

void ibx_journal_tags_path(const struct ibx_journal *record, char *path, size_t size)
{
    char name[NAME_BYTES];
    name_of(record, ".tags", name);
    snprintf(path, size, "/dev/shm/ibx-%s", name);
}

/* ------------------------------------------------------------ the folder */

static const char *home(void)
{
    const char *dir = secure_getenv("HOME");
    const struct passwd *user = dir && *dir ? NULL : getpwuid(geteuid());
    return user ? user->pw_dir : dir && *dir ? dir : "/";
}

static void choose_folder(const char *given, char folder[PATH_MAX])
{
    const char *state = secure_getenv("IBX_STATE_DIR"), *xdg = secure_getenv("XDG_STATE_HOME");
    if (!given && state && *state)
        given = state;
    if (given)
        snprintf(folder, PATH_MAX, "%s", given);
    else if (!geteuid())
        snprintf(folder, PATH_MAX, "/var/lib/ibx");
    else if (xdg && *xdg == '/')
        snprintf(folder, PATH_MAX, "%s/ibx", xdg);
    else
        snprintf(folder, PATH_MAX, "%s/.local/state/ibx", home());
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--)
        folder[n - 1] = '\0';
}

/* One folder, and durably so. */
static int make_one(const char *path)
{
    char parent[PATH_MAX];
    if (mkdir(path, 0700))
        return errno == EEXIST ? 0 : -errno;
    snprintf(parent, sizeof(parent), "%s/..", path);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    return 0;
}

static int make_all(const char *folder)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof(path), "%s", folder);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int rc = stat(path, &st) ? make_one(path) : 0; /* one that exists may be read-only */
        if (rc)
            return rc;
        *slash = '/';
    }
    return stat(path, &st) ? make_one(path) : 0;
}

/* A user who can write here decides where VMs run. */
static int check_folder(const char *folder, struct ibx_error *err)
{
    struct stat st;
    if (stat(folder, &st))
        return ibx_error_set(err, -errno, "folder %s for records of migrations: %s", folder,
                             strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ibx_error_set(err, -ENOTDIR,
                             "%s is no folder, so it cannot hold records of migrations", folder);
    if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 022))
        return ibx_error_set(
            err, -EPERM,
            "folder %s for records of migrations belongs to user %u and has mode %04o: "
            "it must belong to user %u and be writable by no one else (chmod 700)",
            folder, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777), (unsigned)geteuid());
    return 0;
}

int ibx_journal_folder(const char *given, char *folder, size_t size, struct ibx_error *err)
{
    static const struct ibx_journal any; /* of a destination: its names are longer */
    char chosen[PATH_MAX], socket_path[PATH_MAX + NAME_BYTES];
    if (given && !*given)
        return ibx_error_set(err, -EINVAL, "the folder for records of migrations has no name");
    choose_folder(given, chosen);
    ibx_journal_path(chosen, &any, ".sock", socket_path, sizeof(socket_path));
    if (strlen(socket_path) >= SOCKET_BYTES || strlen(chosen) >= size)
        return ibx_error_set(
            err, -ENAMETOOLONG,
            "folder %.200s for records of migrations has a name of %zu bytes: a socket "
            "in it has room for %zu; choose a shorter one with --state-dir",
            chosen, strlen(chosen), SOCKET_BYTES - 1 - (strlen(socket_path) - strlen(chosen)));
    int rc = make_all(chosen);
    if (rc)
        return ibx_error_set(
            err, rc,
            "folder %s for records of migrations cannot be made: %s; choose another "
            "with --state-dir",
            chosen, strerror(-rc));
    rc = check_folder(chosen, err);
    if (!rc)
        snprintf(folder, size, "%s", chosen);
    return rc;
}

static int open_folder(const char *folder, struct ibx_error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd
                   : ibx_error_set(
                         err, -errno,
                         "folder %s for records of migrations cannot be opened: %s; do this as "
                         "the user who started the migration or as root, or choose another "
                         "folder with --state-dir",
                         folder, strerror(errno));
}

/* ------------------------------------------------------------ reading */

static int damaged(const char *folder, const char *name, struct ibx_error *err, const char *why)
{
    return ibx_error_set(
        err, -EBADMSG,
        "%s/%.80s is not a record of a migration (%.300s): see at both QEMUs what it "
        "was about before you remove it",
        folder, name, why);
}

static bool check_file(const struct stat *st)
{
    return S_ISREG(st->st_mode) && (st->st_uid == geteuid() || st->st_uid == 0) &&
           !(st->st_mode & 022) && st->st_size <= (off_t)JOURNAL_BYTES_MAX;
}

/* -ENOENT: there is none; `err` is not set. */
static int load(const char *folder, int dir, const char *name, struct ibx_journal *record,
                struct ibx_error *err)
{
    struct ibx_error why = {0};
    struct stat st;
    char expected[NAME_BYTES];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0 && errno != ELOOP)
        return ibx_error_set(err, -errno, "record %s/%s cannot be read: %s", folder, name,
                             strerror(errno));
    if (fd < 0 || fstat(fd, &st) || !check_file(&st)) {
        if (fd >= 0)
            close(fd);
        return damaged(folder, name, err,
                       "it is no regular file of at most 64 KiB that only this user can write");
    }
    char *text = malloc(JOURNAL_BYTES_MAX);
    ssize_t n = text ? read(fd, text, JOURNAL_BYTES_MAX) : -1;
    int read_errno = errno;
    close(fd);
    int rc = n < 0 ? ibx_error_set(err, -read_errno, "record %s/%s cannot be read: %s", folder,
                                   name, strerror(read_errno))
                   : 0;
    if (!rc && ibx_journal_text_parse(text, (size_t)n, record, &why))
        rc = damaged(folder, name, err, why.message);
    if (text)
        OPENSSL_cleanse(text, JOURNAL_BYTES_MAX);
    free(text);
    if (rc)
        return rc;
    name_of(record, ".json", expected);
    if (strcmp(name, expected) != 0)
        return damaged(folder, name, err, "its id or role is not that of its name");
    record->changed = st.st_mtim;
    return 0;
}

static int newest_first(const void *one, const void *other)
{
    const struct ibx_journal *a = one, *b = other;
    if (a->written_s != b->written_s)
        return a->written_s < b->written_s ? 1 : -1;
    if (a->changed.tv_sec != b->changed.tv_sec)
        return a->changed.tv_sec < b->changed.tv_sec ? 1 : -1;
    if (a->changed.tv_nsec != b->changed.tv_nsec)
        return a->changed.tv_nsec < b->changed.tv_nsec ? 1 : -1;
    return memcmp(a->id, b->id, IBX_MIGRATE_ID_BYTES);
}

struct list {
    struct ibx_journal *items;
    size_t count, room;
};

static bool has(const struct list *list, const struct ibx_journal *record)
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
        struct ibx_journal *items = reallocarray(list->items, room, sizeof(*items));
        if (!items)
            return ibx_error_set(err, -ENOMEM, "no memory for the records in %s", folder);
        list->items = items;
        list->room = room;
    }
    int rc = load(folder, dir, name, &list->items[list->count], err);
    if (rc == -ENOENT) /* removed since */
        return 0;
    /* readdir(3) may return a file twice that is replaced meanwhile. */
    if (!rc && !has(list, &list->items[list->count]))
        list->count++;
    return rc;
}

static int list_folder(const char *folder, struct list *list, struct ibx_error *err)
{
    int fd = open_folder(folder, err), rc = 0;
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return ibx_error_set(err, -ENOMEM, "no memory for the records in %s", folder);
    }
    for (const struct dirent *entry; !rc && (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name);
        if (entry->d_name[0] != '.' && n > 5 && !strcmp(entry->d_name + n - 5, ".json"))
            rc = list_add(list, folder, fd, entry->d_name, err);
    }
    closedir(dir);
    if (list->count)
        qsort(list->items, list->count, sizeof(*list->items), newest_first);
    return rc;
}

int ibx_journal_list(const char *folder, struct ibx_journal **records, size_t *count,
                     struct ibx_error *err)
{
    struct list list = {0};
    int rc = list_folder(folder, &list, err);
    if (rc) {
        free(list.items);
        return rc;
    }
    *records = list.items;
    *count = list.count;
    return 0;
}

int ibx_journal_reload(const char *folder, struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_journal now;
    char name[NAME_BYTES];
    int dir = open_folder(folder, err);
    if (dir < 0)
        return dir;
    name_of(record, ".json", name);
    int rc = load(folder, dir, name, &now, err);
    close(dir);
    if (rc == -ENOENT)
        return ibx_error_set(err, rc, "the record of this migration was removed from %s", folder);
    if (!rc)
        *record = now;
    return rc;
}

int ibx_journal_find(const char *folder, const char *qmp,
                     bool (*fits)(const struct ibx_journal *record), struct ibx_journal *record,
                     struct ibx_error *err)
{
    struct ibx_journal *all;
    size_t count, i = 0;
    int rc = ibx_journal_list(folder, &all, &count, err);
    if (rc)
        return rc;
    while (i < count && (strcmp(qmp, all[i].qmp) || !fits(&all[i])))
        i++;
    if (i < count)
        *record = all[i];
    else
        rc = ibx_error_set(err, -ENOENT,
                           "there is no unfinished migration of the QEMU at %s recorded in %s: "
                           "\"ib-migrate status\" shows the records",
                           qmp, folder);
    free(all);
    return rc;
}

int ibx_journal_find_return(const char *folder, const struct ibx_journal *borrowed,
                            bool (*fits)(const struct ibx_journal *record),
                            struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_journal *all;
    size_t count, i = 0;
    int rc = ibx_journal_list(folder, &all, &count, err);
    if (rc)
        return rc;
    while (i < count && (all[i].source == borrowed->source ||
                         memcmp(all[i].base, borrowed->id, sizeof(all[i].base)) || !fits(&all[i])))
        i++;
    if (i < count)
        *record = all[i];
    else
        rc = ibx_error_set(err, -ENOENT, "no return of this VM is recorded in %s", folder);
    free(all);
    return rc;
}

/* ------------------------------------------------------------ writing */

static int write_whole(int dir, const char *name, const char *text, size_t length)
{
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = fchmod(fd, 0600) ? -errno : 0; /* whatever the umask */
    for (size_t done = 0; !rc && done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            rc = -errno;
    }
    if (!rc && fsync(fd))
        rc = -errno;
    if (close(fd) && !rc)
        rc = -errno;
    return rc;
}

/* Writes it under another name, and rename(2) replaces the old one at once. */
static int replace(const char *folder, int dir, const struct ibx_journal *record,
                   struct ibx_error *err)
{
    char name[NAME_BYTES], fresh[NAME_BYTES], *text;
    size_t length;
    int rc = ibx_journal_text_make(record, &text, &length, err);
    if (rc)
        return rc;
    name_of(record, ".json", name);
    name_of(record, ".new", fresh);
    rc = write_whole(dir, fresh, text, length);
    OPENSSL_cleanse(text, length);
    free(text);
    if (!rc && renameat(dir, fresh, dir, name))
        rc = -errno;
    if (rc)
        unlinkat(dir, fresh, 0);
    if (!rc && fsync(dir))
        rc = -errno;
    return rc ? ibx_error_set(err, rc,
                              "record %s/%s cannot be written: %s; free space and rights in that "
                              "folder, or choose another with --state-dir",
                              folder, name, strerror(-rc))
              : 0;
}

static int check_move(const struct ibx_journal *previous, const struct ibx_journal *record,
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

int ibx_journal_write(const char *folder, struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_journal previous = {0}, next = *record;
    struct timespec now;
    char name[NAME_BYTES];
    int dir = open_folder(folder, err);
    if (dir < 0)
        return dir;
    if (record->verify)
        mlock(record->verify_key, sizeof(record->verify_key)); /* as RLIMIT_MEMLOCK allows */
    name_of(record, ".json", name);
    int rc = load(folder, dir, name, &previous, err);
    if (!rc || rc == -ENOENT)
        rc = check_move(&previous, record, err);
    clock_gettime(CLOCK_REALTIME, &now);
    next.written_s = (uint64_t)now.tv_sec;
    if (!rc)
        rc = replace(folder, dir, &next, err);
    close(dir);
    if (!rc)
        record->written_s = next.written_s;
    return rc;
}

int ibx_journal_remove(const char *folder, const struct ibx_journal *record, struct ibx_error *err)
{
    static const char *const beside[] = {".new", ".sock", ".lock", TOUCHED};
    char name[NAME_BYTES], arrived[NAME_BYTES + 32];
    int dir = open_folder(folder, err);
    if (dir < 0)
        return dir;
    name_of(record, ".json", name);
    int rc = unlinkat(dir, name, 0) || fsync(dir) ? -errno : 0;
    if (rc)
        ibx_error_set(err, rc, "record %s/%s cannot be removed: %s", folder, name, strerror(-rc));
    for (unsigned i = 0; !rc && i < sizeof(beside) / sizeof(beside[0]); i++) {
        name_of(record, beside[i], name);
        unlinkat(dir, name, 0);
    }
    ibx_journal_arrived_path(record, arrived, sizeof(arrived));
    if (!rc)
        unlink(arrived);
    ibx_journal_tags_path(record, arrived, sizeof(arrived));
    if (!rc)
        unlink(arrived);
    ibx_journal_base_path(record, arrived, sizeof(arrived));
    if (!rc)
        unlink(arrived);
    ibx_journal_map_path(record, arrived, sizeof(arrived));
    if (!rc)
        unlink(arrived);
    close(dir);
    return rc;
}

/* ------------------------------------------------------------ bases */

int ibx_journal_touch_base(const char *folder, const struct ibx_journal *record,
                           struct ibx_error *err)
{
    char name[NAME_BYTES];
    int dir = open_folder(folder, err);
    if (dir < 0)
        return dir;
    name_of(record, TOUCHED, name);
    int rc = write_whole(dir, name, "", 0);
    if (!rc && fsync(dir))
        rc = -errno;
    close(dir);
    return rc ? ibx_error_set(err, rc, "%s/%s cannot be written: %s", folder, name, strerror(-rc))
              : 0;
}

bool ibx_journal_base_touched(const char *folder, const struct ibx_journal *record)
{
    char path[PATH_MAX];
    ibx_journal_path(folder, record, TOUCHED, path, sizeof(path));
    return !access(path, F_OK);
}

/* ------------------------------------------------------------ lock and processes */

static int lock_holder_error(int fd, const char *path, struct ibx_error *err)
{
    char text[16] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid <= 0 || pid > INT_MAX)
        return ibx_error_set(err, -EBUSY, "another ib-migrate works on this migration (%s)", path);
    if (ibx_process_started((pid_t)pid))
        return ibx_error_set(
            err, -EBUSY, "another ib-migrate works on this migration: process %ld (%s)", pid, path);
    return ibx_error_set(
        err, -EBUSY,
        "process %ld worked on this migration and has ended, but its watchdog still "
        "brings the VM back: try again (%s)",
        pid, path);
}

/* -EAGAIN: the file was removed between open and lock. */
static int lock_once(const char *path, int *fd, struct ibx_error *err)
{
    struct stat mine, there;
    char text[16];
    int lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        return ibx_error_set(err, -errno, "lock %s: %s", path, strerror(errno));
    int rc = flock(lock, LOCK_EX | LOCK_NB) ? -errno : 0;
    if (rc == -EWOULDBLOCK)
        rc = lock_holder_error(lock, path, err);
    else if (rc)
        ibx_error_set(err, rc, "lock %s: %s", path, strerror(-rc));
    else if (fstat(lock, &mine) || stat(path, &there) || mine.st_ino != there.st_ino)
        rc = -EAGAIN;
    int length = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (!rc && (ftruncate(lock, 0) || pwrite(lock, text, (size_t)length, 0) != length))
        rc = ibx_error_set(err, -EIO, "lock %s cannot be written: %s", path, strerror(errno));
    if (rc)
        close(lock);
    else
        *fd = lock;
    return rc;
}

int ibx_journal_lock(const char *folder, const struct ibx_journal *record, int *fd,
                     struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = -EAGAIN;
    ibx_journal_path(folder, record, ".lock", path, sizeof(path));
    for (int i = 0; i < LOCK_TRIES && rc == -EAGAIN; i++)
        rc = lock_once(path, fd, err);
    return rc == -EAGAIN ? ibx_error_set(err, -EBUSY, "lock %s is removed all the time", path) : rc;
}

uint64_t ibx_process_started(pid_t pid)
{
    char path[32], stat_line[1024];
    if (pid <= 0)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, stat_line, sizeof(stat_line) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    stat_line[n] = '\0';
    /* Field 2 is the name, which may hold anything: what follows its last bracket is regular. */
    const char *field = strrchr(stat_line, ')');
    if (!field || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    field++; /* at the blank before field 3 */
    for (int i = 3; i < 22 && field; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}
