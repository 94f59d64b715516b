/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where the records of this user are, and checks that nobody else decides what is in them. */
#include "migrate/journal/journal_internal.h"

#include "common/path_check.h"
#include "common/shell_word.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_BYTES sizeof(((struct sockaddr_un *)NULL)->sun_path)

/* The folder that this process has chosen and checked. Whoever can exchange a folder on the path
 * can lead that to another one of the same user's. Its number is kept, not a descriptor: a watchdog
 * has closed all but its own. */
static struct {
    char path[PATH_MAX];
    dev_t dev;
    ino_t ino; /* 0: there was no folder */
} chosen_folder;

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

/* Makes one folder and syncs its parent, so that it survives a crash of the host. */
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

/* Whoever can write to the folder decides where VMs run, so only this user and root may. */
static int check_folder(int fd, const char *folder, struct ibx_error *err)
{
    struct stat st;
    if (fstat(fd, &st))
        return ibx_error_set(err, -errno, "folder %s for records of migrations: %s", folder,
                             strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ibx_error_set(err, -ENOTDIR,
                             "%s is no folder, so it cannot hold records of migrations", folder);
    if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & 022))
        return ibx_error_set(
            err, -EPERM,
            "folder %s for records of migrations belongs to user %u and has mode %04o: "
            "it must belong to user %u and be writable by no one else (chmod 700); what another "
            "user has started, only that user can ask about",
            folder, (unsigned)st.st_uid, (unsigned)(st.st_mode & 07777), (unsigned)geteuid());
    return 0;
}

static void choose(const char *folder, int fd)
{
    struct stat st = {0};
    if (fd >= 0 && fstat(fd, &st))
        st.st_ino = 0;
    snprintf(chosen_folder.path, sizeof(chosen_folder.path), "%s", folder);
    chosen_folder.dev = st.st_dev;
    chosen_folder.ino = st.st_ino;
}

/* Checks the folder to which the path leads now, and that no other user can change where it leads.
 */
static int check_way(const char *folder, bool missing, struct ibx_error *err)
{
    int fd = -ENOENT;
    int rc = ibx_path_find("folder ", folder, &fd, err);
    if (!rc && fd >= 0)
        rc = check_folder(fd, folder, err);
    else if (!rc && !missing)
        rc = ibx_error_set(err, fd,
                           "folder %s for records of migrations cannot be opened: %s; do this as "
                           "the user who started the migration, or choose another with "
                           "--state-dir",
                           folder, strerror(-fd));
    if (!rc)
        choose(folder, fd);
    if (fd >= 0)
        close(fd);
    return rc;
}

static char given_folder[SOCKET_BYTES]; /* by --state-dir; "" none */

void ibx_journal_note_given_folder(const char *given)
{
    snprintf(given_folder, sizeof(given_folder), "%s", given ? given : "");
}

struct ibx_journal_options ibx_journal_options(const char *qmp)
{
    struct ibx_journal_options out;
    snprintf(out.text, sizeof(out.text), "--qmp %s", ibx_shell_word(qmp).text);
    const size_t used = strlen(out.text);
    if (*given_folder)
        snprintf(out.text + used, sizeof(out.text) - used, " --state-dir %s",
                 ibx_shell_word(given_folder).text);
    return out;
}

int ibx_journal_folder(const char *given, bool make, char *folder, size_t size,
                       struct ibx_error *err)
{
    static const struct ibx_record any; /* a destination's: its file names are the longer ones */
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
    /* The path is checked before anything is made there, and the folder again afterwards. */
    int rc = ibx_path_check("folder ", chosen, err);
    if (rc)
        return rc;
    const bool missing = !make && access(chosen, F_OK) && errno == ENOENT;
    rc = make ? make_all(chosen) : 0;
    if (rc)
        return ibx_error_set(
            err, rc,
            "folder %s for records of migrations cannot be made: %s; choose another "
            "with --state-dir",
            chosen, strerror(-rc));
    rc = check_way(chosen, missing, err);
    if (rc)
        return rc;
    snprintf(folder, size, "%s", chosen);
    return 0;
}

/* Whether the limit on the size of files lets this process write any record. */
static int check_size(const char *folder, struct ibx_error *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur >= JOURNAL_BYTES_MAX)
        return 0;
    return ibx_error_set(err, -EFBIG,
                         "folder %s for records of migrations: a record may come to need %u KiB, "
                         "and this process may write files of %llu KiB; " IBX_ERROR_RAISE_SIZE,
                         folder, JOURNAL_BYTES_MAX >> 10, (unsigned long long)limit.rlim_cur >> 10);
}

int ibx_journal_folder_check_writable(const char *folder, struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = check_size(folder, err);
    if (rc)
        return rc;
    snprintf(path, sizeof(path), "%s", folder);
    while ((rc = faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) ? -errno : 0) == -ENOENT &&
           strcmp(path, "/") != 0 && strcmp(path, ".") != 0) {
        char *slash = strrchr(path, '/');
        if (slash)
            slash[slash == path] = '\0';
        else
            strcpy(path, ".");
    }
    return rc ? ibx_error_set(err, rc,
                              "folder %s for records of migrations cannot be written to: %s; "
                              "choose another with --state-dir",
                              folder, strerror(-rc))
              : 0;
}

/* ------------------------------------------------------------ opening */

const char *ibx_journal_remedy(int code, const char *other, char text[REMEDY_BYTES])
{
    struct rlimit limit = {0};
    snprintf(text, REMEDY_BYTES, "%s", code == -EFBIG ? "; " IBX_ERROR_RAISE_SIZE : other);
    if (code != -EMFILE || getrlimit(RLIMIT_NOFILE, &limit))
        return text;
    const rlim_t more = limit.rlim_cur < 512 ? 1024 : 2 * limit.rlim_cur;
    snprintf(text, REMEDY_BYTES, "; raise that limit: prlimit --pid %d --nofile=%llu%s",
             (int)getpid(), (unsigned long long)more, more <= limit.rlim_max ? ":" : "");
    return text;
}

/* Whether this folder is not the one that was checked under this name. */
static bool is_another(int fd, const char *folder)
{
    struct stat st;
    return !strcmp(folder, chosen_folder.path) &&
           (fstat(fd, &st) || st.st_dev != chosen_folder.dev || st.st_ino != chosen_folder.ino);
}

/* Opens what the path leads to, with a check of each folder and link on the way. */
static int open_way(const char *folder, struct ibx_error *err)
{
    int way = -ENOENT;
    const int rc = ibx_path_find("folder ", folder, &way, err);
    if (rc || way < 0)
        return rc ? rc : way;
    int fd = openat(way, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fd = fd < 0 ? -errno : fd;
    close(way);
    return fd;
}

int ibx_journal_folder_open(const char *folder, struct ibx_error *err)
{
    char hint[REMEDY_BYTES];
    struct ibx_error refused = {0};
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = fd < 0 ? -errno : 0;
    if (!code && is_another(fd, folder)) {
        close(fd);
        fd = open_way(folder, &refused);
        code = fd < 0 ? fd : 0;
    }
    if (!code)
        code = check_folder(fd, folder, &refused);
    if (!code) {
        if (is_another(fd, folder))
            choose(folder, fd);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    if (refused.code)
        return ibx_error_set(err, code, "%s", refused.message);
    return ibx_error_set(err, code, "folder %s for records of migrations cannot be opened: %s%s",
                         folder, strerror(-code),
                         ibx_journal_remedy(code,
                                            "; do this as the user who started the migration, or "
                                            "choose another folder with --state-dir for a new one",
                                            hint));
}

void ibx_hex_text(const uint8_t *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

void ibx_journal_name(const struct ibx_record *record, const char *suffix, char name[NAME_BYTES])
{
    const size_t digits = (size_t)2 * IBX_MIGRATE_ID_BYTES;
    ibx_hex_text(record->id, IBX_MIGRATE_ID_BYTES, name);
    snprintf(name + digits, NAME_BYTES - digits, ".%s%s", record->source ? "source" : "destination",
             suffix);
}

void ibx_journal_path(const char *folder, const struct ibx_record *record, const char *suffix,
                      char *path, size_t size)
{
    char name[NAME_BYTES];
    ibx_journal_name(record, suffix, name);
    snprintf(path, size, "%s/%s", folder, name);
}

int ibx_journal_open_beside(const char *folder, const struct ibx_record *record, const char *suffix,
                            int flags)
{
    char name[NAME_BYTES];
    const int dir = ibx_journal_folder_open(folder, NULL);
    if (dir < 0)
        return dir;
    ibx_journal_name(record, suffix, name);
    const int fd = openat(dir, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600), code = -errno;
    close(dir);
    return fd < 0 ? code : fd;
}

int ibx_journal_look_beside(const char *folder, const struct ibx_record *record, const char *suffix,
                            struct stat *st)
{
    char path[PATH_MAX];
    const int dir = ibx_journal_folder_open(folder, NULL);
    ibx_journal_path(folder, record, suffix, path, sizeof(path));
    if (dir < 0 && dir != -EMFILE && dir != -ENFILE)
        return dir;
    const int rc =
        dir < 0 ? lstat(path, st) : fstatat(dir, strrchr(path, '/') + 1, st, AT_SYMLINK_NOFOLLOW);
    const int code = rc ? -errno : 0;
    if (dir >= 0)
        close(dir);
    return code;
}

void ibx_journal_unlink_beside(const char *folder, const struct ibx_record *record,
                               const char *suffix)
{
    char name[NAME_BYTES];
    const int dir = ibx_journal_folder_open(folder, NULL);
    if (dir < 0)
        return;
    ibx_journal_name(record, suffix, name);
    unlinkat(dir, name, 0);
    close(dir);
}
