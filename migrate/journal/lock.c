/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Locks, which end with the processes that hold them; and whether a process is still the one
 * that was recorded. */
#include "migrate/journal/journal_internal.h"

#include "common/write_whole.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_TRIES     100  /* if others remove the lock file meanwhile */
#define NUMBER_TRIES   20   /* a process that has just locked the file still has to write its pid */
#define NUMBER_LOOK_US 1000 /* between two tries */
#define LOOKS_MOST     200  /* tries to lock while others look at the lock */
#define LOOK_US        1000

/* ------------------------------------------------------------ processes */

#define STAT_BYTES 1024

/* Reads /proc/PID/stat; `*state` is at field 3, the letter of proc(5). -ESRCH: there is none. */
static int read_stat(pid_t pid, char stat_line[STAT_BYTES], const char **state)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        return -errno;
    if (fd < 0) /* others' processes may be hidden (hidepid of proc(5)) */
        return kill(pid, 0) && errno == ESRCH ? -ESRCH : -EACCES;
    ssize_t n = read(fd, stat_line, STAT_BYTES - 1);
    const int code = errno;
    close(fd);
    if (n <= 0)
        return n < 0 ? -code : -EIO;
    stat_line[n] = '\0';
    /* Field 2 is the name, which may hold anything: what follows its last bracket is regular. */
    const char *field = strrchr(stat_line, ')');
    if (!field || field[1] != ' ')
        return -EIO;
    *state = field + 2;
    return 0;
}

/* Sets the start time of a process. -ESRCH: there is none, or it is a zombie. After any other error
 * it is not known: this host may have no memory, or no more files. */
static int read_started(pid_t pid, uint64_t *started)
{
    char stat_line[STAT_BYTES];
    const char *field = NULL;
    const int rc = read_stat(pid, stat_line, &field);
    if (rc)
        return rc;
    if (*field == 'Z' || *field == 'X')
        return -ESRCH;
    field--; /* at the blank before field 3 */
    for (int i = 3; i < 22 && field; i++)
        field = strchr(field + 1, ' ');
    *started = field ? strtoull(field, NULL, 10) : 0;
    return *started ? 0 : -EIO;
}

int ibx_process_find_start(pid_t pid, uint64_t *started, struct ibx_error *err)
{
    const int rc = pid > 0 ? read_started(pid, started) : -ESRCH;
    return rc ? ibx_error_set(err, rc, "when QEMU (process %d) started cannot be read: %s%s",
                              (int)pid, strerror(-rc), ibx_proc_remedy(rc))
              : 0;
}

uint64_t ibx_process_started(pid_t pid)
{
    uint64_t started;
    return pid > 0 && !read_started(pid, &started) ? started : 0;
}

bool ibx_process_ended(pid_t pid, uint64_t started)
{
    uint64_t now = started;
    const int rc = pid > 0 ? read_started(pid, &now) : -ESRCH;
    return rc == -ESRCH || (!rc && now != started);
}

char ibx_process_state(pid_t pid)
{
    char stat_line[STAT_BYTES];
    const char *state = NULL;
    return pid > 0 && !read_stat(pid, stat_line, &state) ? *state : '\0';
}

uint64_t ibx_process_turns(pid_t pid)
{
    char path[32], line[128];
    uint64_t turns = 0;
    snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
    if (fd >= 0)
        close(fd);
    line[n > 0 ? n : 0] = '\0';
    return sscanf(line, "%*u %*u %" SCNu64, &turns) == 1 ? turns : 0;
}

void ibx_process_boot(char boot[IBX_BOOT_BYTES])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, boot, IBX_BOOT_BYTES - 1);
    if (fd >= 0)
        close(fd);
    boot[n > 0 ? n : 0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
}

/* One that is not known differs from none. */
static bool boots_differ(const char *one, const char *other)
{
    return *one && *other && strcmp(one, other) != 0;
}

bool ibx_journal_process_ended(const struct ibx_record *record)
{
    char now[IBX_BOOT_BYTES];
    ibx_process_boot(now);
    return boots_differ(record->boot, now) || ibx_process_ended(record->pid, record->pid_started);
}

bool ibx_journal_same_process(const struct ibx_record *one, const struct ibx_record *other)
{
    return one->pid == other->pid && one->pid_started == other->pid_started &&
           !boots_differ(one->boot, other->boot);
}

static bool is_there(pid_t pid)
{
    uint64_t started;
    return pid > 0 && read_started(pid, &started) != -ESRCH;
}

/* ------------------------------------------------------------ a migration */

/* The pid in the file of a lock that is held; 0: there is no pid in it. */
static pid_t holder(int fd)
{
    long pid = 0;
    for (int i = 0; i < NUMBER_TRIES && pid <= 0; i++) {
        char text[16] = "";
        if (i)
            usleep(NUMBER_LOOK_US);
        if (pread(fd, text, sizeof(text) - 1, 0) > 0)
            pid = strtol(text, NULL, 10);
    }
    return pid > 0 && pid <= INT_MAX ? (pid_t)pid : 0;
}

pid_t ibx_journal_worker(const char *folder, const struct ibx_record *record)
{
    pid_t pid = 0;
    const int lock = ibx_journal_open_beside(folder, record, LOCK, O_RDONLY);
    if (lock < 0)
        return 0;
    if (flock(lock, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK)
        pid = holder(lock);
    close(lock);
    return is_there(pid) ? pid : 0;
}

static int lock_holder_error(int fd, const char *path, struct ibx_error *err)
{
    const pid_t pid = holder(fd);
    if (!pid)
        return ibx_error_set(err, -EBUSY, "another ib-migrate works on this migration (%s)", path);
    if (is_there(pid))
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate works on this migration: process %d (%s)",
                             (int)pid, path);
    return ibx_error_set(
        err, -EBUSY,
        "process %d worked on this migration and has ended, but its watchdog still "
        "brings the VM back: try again (%s)",
        (int)pid, path);
}

const char *ibx_journal_other_folder(const struct ibx_record *record)
{
    return record->written_s || ibx_journal_returns(record) ? IBX_JOURNAL_COPY_FOLDER
                                                            : IBX_JOURNAL_ANOTHER_FOLDER;
}

static int cannot_lock(const struct ibx_record *record, const char *path, int rc,
                       struct ibx_error *err)
{
    if (rc == -EMFILE)
        return ibx_error_set(err, rc, "%s cannot be opened: %s", path, strerror(-rc));
    return ibx_error_set(err, rc,
                         "%s cannot be made and locked: %s; records of migrations need a folder "
                         "that can be written to and has locks: %s",
                         path, strerror(-rc), ibx_journal_other_folder(record));
}

static int write_holder(const struct ibx_record *record, int lock, const char *path,
                        struct ibx_error *err)
{
    char text[16], remedy[160];
    const int length = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    const int rc = ftruncate(lock, 0) ? -errno : ibx_write_whole_at(lock, text, (size_t)length, 0);
    snprintf(remedy, sizeof(remedy), "free space in its folder, or %s",
             ibx_journal_other_folder(record));
    return rc ? ibx_error_set(err, rc, "lock %s cannot be written: %s; %s", path, strerror(-rc),
                              ibx_write_remedy(rc, remedy))
              : 0;
}

/* The disk became read-only. A lock that somebody has from before is seen there, too. */
static int lock_on_read_only(int dir, const struct ibx_record *record, const char *path,
                             struct ibx_error *err)
{
    const int lock = openat(dir, strrchr(path, '/') + 1, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const bool held = lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    const int rc =
        held ? lock_holder_error(lock, path, err) : cannot_lock(record, path, -EROFS, err);
    if (lock >= 0)
        close(lock);
    return rc;
}

/* Whoever looks at a lock (ibx_journal_worker()) shares it for a moment, and is waited for.
 * -EWOULDBLOCK: a tool has it, which nobody shares; -ETIMEDOUT: others do not stop looking. */
static int take(int lock)
{
    for (int i = 0; i < LOOKS_MOST; i++) {
        if (!flock(lock, LOCK_EX | LOCK_NB))
            return 0;
        if (errno != EWOULDBLOCK || flock(lock, LOCK_SH | LOCK_NB))
            return -errno;
        flock(lock, LOCK_UN);
        usleep(LOOK_US);
    }
    return -ETIMEDOUT;
}

/* -EAGAIN: the file was removed between open and lock. */
static int lock_once(int dir, const struct ibx_record *record, const char *path, int *fd,
                     struct ibx_error *err)
{
    struct stat mine, there;
    const char *name = strrchr(path, '/') + 1;
    int lock = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        return errno == EROFS ? lock_on_read_only(dir, record, path, err)
                              : cannot_lock(record, path, -errno, err);
    int rc = take(lock);
    if (rc == -EWOULDBLOCK)
        rc = lock_holder_error(lock, path, err);
    else if (rc == -ETIMEDOUT)
        rc = ibx_error_set(err, -EBUSY,
                           "another process looks at %s and does not end that (/proc/locks shows "
                           "it): try again, or end it",
                           path);
    else if (rc)
        cannot_lock(record, path, rc, err);
    else if (fstat(lock, &mine) || fstatat(dir, name, &there, 0) || mine.st_ino != there.st_ino)
        rc = -EAGAIN;
    if (!rc && (rc = write_holder(record, lock, path, err)))
        unlinkat(dir, name, 0);
    if (rc)
        close(lock);
    else
        *fd = lock;
    return rc;
}

int ibx_journal_lock(const char *folder, const struct ibx_record *record, int *fd,
                     struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = -EAGAIN;
    const int dir = ibx_journal_folder_open(folder, err);
    ibx_journal_path(folder, record, LOCK, path, sizeof(path));
    /* A tool that has no lock tries nothing again: its own limit is no remedy. */
    if (dir == -EMFILE)
        return cannot_lock(record, path, dir, err);
    if (dir < 0)
        return dir;
    for (int i = 0; i < LOCK_TRIES && rc == -EAGAIN; i++)
        rc = lock_once(dir, record, path, fd, err);
    close(dir);
    return rc == -EAGAIN ? ibx_error_set(err, -EBUSY, "lock %s is removed all the time", path) : rc;
}

void ibx_journal_unlock(const char *folder, const struct ibx_record *record, int fd)
{
    if (fd < 0)
        return;
    if (!record->written_s)
        ibx_journal_unlink_beside(folder, record, LOCK);
    close(fd);
}

/* ------------------------------------------------------------ memory that a VM left */

int ibx_journal_lock_base(const char *folder, const struct ibx_record *record, int *fd,
                          struct ibx_error *err)
{
    char path[PATH_MAX];
    ibx_journal_path(folder, record, BASE_LOCK, path, sizeof(path));
    int rc = 0, lock = ibx_journal_open_beside(folder, record, BASE_LOCK, O_RDWR | O_CREAT);
    if (lock < 0)
        rc = lock;
    else if (flock(lock, LOCK_EX | LOCK_NB))
        rc = -errno;
    if (!rc) {
        *fd = lock;
        return 0;
    }
    if (lock >= 0)
        close(lock);
    if (rc == -EWOULDBLOCK)
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate has the memory that the VM left here, for its "
                             "return or for a rollback: see ib-migrate status, and try again");
    return cannot_lock(record, path, rc, err);
}
