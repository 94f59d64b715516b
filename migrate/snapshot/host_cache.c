/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * This host's cache of a snapshot, for `clone URI`: a folder by the snapshot's id in a folder of
 * this user's on tmpfs, and a process of its own that fills it. Whoever comes first makes both;
 * who comes at the same time waits at a lock until a child can be made.
 *
 * Nobody looks after that process: it is started again by another one, which does nothing else and
 * so is not ended by anything else, as long as it is killed, or fails, and there is a child, which
 * would wait for its pages.
 */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG "log"

#define READY 'r' /* the folder's path follows */
#define WRONG 'w' /* an error message follows */

#define LOG_BYTES (1u << 20) /* after about so many a new log is begun; the old one is kept */

#define PAUSE_MS     100u /* before it is started again; it doubles */
#define PAUSE_MAX_MS 5000u
#define LIVED_MS     10000u /* after that the pause is short again */

/* What a process that fills the cache leaves for the next one, in memory that they share. */
struct legacy {
    _Atomic bool served;                /* it has had a child, or may have */
    char folder[PATH_MAX];              /* of this cache; "": not found yet */
    char name[2 * IBX_SNAPSHOT_ID + 1]; /* its last part */
};

struct filler {
    struct ibx_serve_options options;
    struct ibx_host_cache *cache;
    struct legacy *legacy;
    int told; /* the pipe to the process that waits; -1: it has been told, or has gone */
    int lock;
    int top;                            /* this user's folder of caches; -1: not found yet */
    int folder;                         /* this cache there; -1: it has no log yet */
    int ended;                          /* how the process before this one did, as of waitpid() */
    char name[2 * IBX_SNAPSHOT_ID + 1]; /* of this cache there */
};

/* ------------------------------------------------------------ the folders */

/* Whether another user has made what is there. */
static bool is_of_others(const char *path)
{
    struct stat st;
    return !lstat(path, &st) && st.st_uid != geteuid();
}

/* Makes a folder whose name ends in XXXXXX, and locks it until the descriptor that it returns is
 * closed; -1: that is not possible. */
static int make_locked(char *name)
{
    if (!mkdtemp(name)) /* 0700 */
        return -1;
    const int fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && !flock(fd, LOCK_EX))
        return fd;
    if (fd >= 0)
        close(fd);
    rmdir(name);
    return -1;
}

/* Takes the place of what another user has made there, if this user may, as root may: it gets
 * another name, and is removed unless it is a folder with files in it. Removing it and trying again
 * would not do: the other user could be faster. If another process of this user has done the same
 * meanwhile, its folder gets its name back: what has had that name for a moment stays locked until
 * then, so that open_top() does not use it. */
static void take_place(const char *path)
{
    char fresh[PATH_MAX];
    snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path);
    const int lock = make_locked(fresh);
    if (lock < 0)
        return;
    if (!renameat2(AT_FDCWD, fresh, AT_FDCWD, path, RENAME_EXCHANGE) && !is_of_others(fresh))
        renameat2(AT_FDCWD, fresh, AT_FDCWD, path, RENAME_EXCHANGE);
    if (rmdir(fresh) && errno == ENOTDIR)
        unlink(fresh);
    close(lock);
}

/* Whether this folder of the user's own has that name, and not only for a moment. */
static bool has_name(int fd, const char *path)
{
    struct stat here, there;
    flock(fd, LOCK_SH); /* waits for take_place() */
    const bool same = !fstat(fd, &here) && !lstat(path, &there) && here.st_dev == there.st_dev &&
                      here.st_ino == there.st_ino;
    flock(fd, LOCK_UN);
    return same;
}

/* Opens the folder that has this name now. */
static int open_present(const char *path, struct ibx_error *err)
{
    if (mkdir(path, 0700) && errno != EEXIST)
        return ibx_error_set(err, -errno, "the folder %s cannot be made: %s", path,
                             strerror(errno));
    if (is_of_others(path))
        take_place(path);
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) /* others can make a link there */
        return ibx_error_set(err, -ENOTDIR,
                             "%s is no folder, or a link to one: remove it, or serve --cache into "
                             "a folder of your own and clone that",
                             path);
    return fd < 0 ? ibx_error_set(err, -errno, "%s: %s", path, strerror(errno)) : fd;
}

static int open_top(const char *path, struct ibx_error *err)
{
    struct stat st = {0};
    int fd;
    while ((fd = open_present(path, err)) >= 0) {
        /* Another user could keep a folder locked for ever. */
        const bool own = !fstat(fd, &st) && st.st_uid == geteuid() && !(st.st_mode & 077);
        if (own && has_name(fd, path))
            return fd;
        close(fd);
        if (!own)
            return ibx_error_set(err, -EPERM,
                                 "%s is not this user's alone (user %u, mode %04o): remove it, or "
                                 "serve --cache into a folder of your own and clone that",
                                 path, (unsigned)st.st_uid, st.st_mode & 07777u);
    }
    return fd;
}

/* Removes what a process left behind that was killed before its folder was a snapshot. */
static void clear(int top, const char *name)
{
    const int fd = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        unlinkat(fd, entry->d_name, 0);
    if (dir)
        closedir(dir);
    unlinkat(top, name, AT_REMOVEDIR);
}

static int lock_of(int top, const char *name, struct ibx_error *err)
{
    char file[2 * IBX_SNAPSHOT_ID + 8];
    snprintf(file, sizeof(file), "%s.lock", name);
    const int fd = openat(top, file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && !flock(fd, LOCK_EX))
        return fd;
    const int code = errno;
    if (fd >= 0)
        close(fd);
    return ibx_error_set(err, -code, "%s cannot be locked: %s", file, strerror(code));
}

/* 1: children can be made of the cache; 0: a process has to fill it; negative: an error. */
static int usable(const struct ibx_host_cache *cache, const struct ibx_snapshot_manifest *theirs,
                  struct ibx_error *err)
{
    struct ibx_snapshot_folder folder;
    struct ibx_error why = {0};
    int rc = ibx_snapshot_folder_open(cache->folder, false, &folder, &why);
    if (rc == -ENOENT)
        return 0;
    if (rc)
        return ibx_error_set(err, rc, "%s", why.message);
    if (!ibx_snapshot_same(&folder.manifest, theirs))
        rc = ibx_error_set(err, -ESTALE, "%s has another snapshot than is served: remove it",
                           cache->folder);
    else
        rc = folder.manifest.complete || !ibx_snapshot_child_expected(&folder, NULL) ||
             ibx_snapshot_folder_is_whole_now(&folder);
    ibx_snapshot_folder_close(&folder);
    return rc;
}

/* ------------------------------------------------------------ the process that fills it */

static void tell(struct filler *filler, char what, const char *text)
{
    char line[PATH_MAX + 1];
    const int length = snprintf(line, sizeof(line), "%c%s", what, text);
    if (filler->told >= 0) {
        const ssize_t ignored = write(filler->told, line, (size_t)length);
        (void)ignored; /* nobody waits any more: it goes on for others */
        close(filler->told);
    }
    filler->told = -1;
    if (filler->lock >= 0)
        close(filler->lock);
    filler->lock = -1;
}

/* What is said from now on is in a file in the folder that was found, even if that has been
 * replaced by somebody who can write to its parent. */
static void begin_log(struct filler *filler)
{
    if (filler->folder < 0)
        filler->folder =
            openat(filler->top, filler->name, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    const int log = filler->folder < 0
                        ? -1
                        : openat(filler->folder, LOG,
                                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log >= 0) {
        dup2(log, STDERR_FILENO);
        close(log);
    }
}

static bool is_log_long(void)
{
    struct stat st;
    return !fstat(STDERR_FILENO, &st) && S_ISREG(st.st_mode) && st.st_size > (off_t)LOG_BYTES;
}

/* The log takes memory of the host, for as long as there are children. One that cannot be replaced,
 * for example because the tmpfs has no file left, is emptied. */
static void keep_log_short(struct filler *filler)
{
    if (filler->folder < 0 || !is_log_long())
        return;
    renameat(filler->folder, LOG, filler->folder, LOG ".old");
    begin_log(filler);
    const int ignored = is_log_long() ? ftruncate(STDERR_FILENO, 0) : 0;
    (void)ignored; /* this is tried again */
}

/* From the first call on children find it. */
static void on_status(void *context, const struct ibx_serve_status *status)
{
    struct filler *filler = context;
    (void)status;
    if (filler->lock < 0) {
        keep_log_short(filler);
        return;
    }
    begin_log(filler);
    tell(filler, READY, filler->cache->folder);
    filler->legacy->served = true; /* who has not been told waits for the end of all of this */
}

static void on_notify(void *context, const char *line)
{
    (void)context;
    dprintf(STDERR_FILENO, "%s\n", line);
}

/* Keeps others, who look for the cache of this name as well, out until tell(). */
static int lock_cache(struct filler *filler, struct ibx_error *err)
{
    filler->top = open_top(filler->cache->top, err);
    if (filler->top < 0)
        return filler->top;
    filler->lock = lock_of(filler->top, filler->name, err);
    return filler->lock < 0 ? filler->lock : 0;
}

/* Finds out which snapshot is served, and whether this host has a cache of it. 0: this process has
 * to fill one. */
static int find(struct filler *filler, struct ibx_error *err)
{
    struct ibx_host_cache *cache = filler->cache;
    char *name = filler->name;
    struct ibx_snapshot_reader *reader = NULL;
    int rc = -EINVAL;
    for (unsigned i = 0; rc && i < filler->options.cache_count; i++)
        rc = ibx_snapshot_reader_open(filler->options.caches[i], &filler->options.transport, 1,
                                      &reader, err);
    if (rc)
        return rc;
    const struct ibx_snapshot_manifest *m = ibx_snapshot_reader_manifest(reader);
    for (unsigned i = 0; i < IBX_SNAPSHOT_ID; i++)
        snprintf(name + 2 * i, 3, "%02x", m->id[i]);
    snprintf(cache->folder, sizeof(cache->folder), "%s/%s", cache->top, name);
    rc = ibx_snapshot_memory_file_refuse(m, err);
    if (!rc)
        rc = lock_cache(filler, err);
    if (!rc)
        rc = usable(cache, m, err);
    if (!rc && faccessat(filler->top, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        char manifest[sizeof(filler->name) + 16];
        snprintf(manifest, sizeof(manifest), "%s/manifest.json", name);
        if (faccessat(filler->top, manifest, F_OK, AT_SYMLINK_NOFOLLOW))
            clear(filler->top, name);
    }
    ibx_snapshot_reader_close(reader);
    return rc;
}

/* The same after a process that has filled it and ended, without a server. 0: this process has to
 * fill it, if it can. */
static int find_again(struct filler *filler, struct ibx_error *err)
{
    struct ibx_snapshot_folder folder;
    snprintf(filler->cache->folder, sizeof(filler->cache->folder), "%s", filler->legacy->folder);
    memcpy(filler->name, filler->legacy->name, sizeof(filler->name));
    int rc = lock_cache(filler, err);
    if (rc)
        return rc;
    begin_log(filler);
    rc = ibx_snapshot_folder_open(filler->cache->folder, false, &folder, err);
    if (rc)
        return rc;
    if (folder.manifest.complete)
        ibx_snapshot_let_left_go(&folder);
    rc = folder.manifest.complete || !ibx_snapshot_child_expected(&folder, NULL);
    ibx_snapshot_folder_close(&folder);
    if (!rc && WIFSIGNALED(filler->ended))
        dprintf(STDERR_FILENO,
                "the process that filled this cache was killed by signal %d: it is started again\n",
                WTERMSIG(filler->ended));
    return rc;
}

static void fill(struct filler *filler)
{
    struct ibx_error err = {0};
    prctl(PR_SET_NAME, "ibx-cache");
    int rc = *filler->legacy->folder ? find_again(filler, &err) : find(filler, &err);
    if (rc > 0)
        tell(filler, READY, filler->cache->folder);
    filler->options.folder = filler->cache->folder;
    filler->options.status = on_status;
    filler->options.notify = on_notify;
    filler->options.context = filler;
    filler->options.until_unused = true;
    if (!rc) {
        snprintf(filler->legacy->folder, sizeof(filler->legacy->folder), "%s",
                 filler->cache->folder);
        memcpy(filler->legacy->name, filler->name, sizeof(filler->name));
        rc = ibx_snapshot_serve(&filler->options, &err);
    }
    if (rc < 0) {
        dprintf(STDERR_FILENO, "%s\n", err.message);
        tell(filler, WRONG, err.message);
    }
    _exit(rc < 0);
}

/* ------------------------------------------------------------ who starts it again */

/* Whether a child waits for its pages, or will. */
static bool is_missed(const struct legacy *legacy)
{
    struct ibx_snapshot_folder folder;
    if (!legacy->served || ibx_snapshot_folder_open(legacy->folder, false, &folder, NULL))
        return false;
    const bool left = ibx_snapshot_children_left(&folder);
    ibx_snapshot_folder_close(&folder);
    return left;
}

/* Also by a signal that came before it could take one, or when it ended for another reason. */
static bool was_told_to_end(int status)
{
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGINT ||
                                   WTERMSIG(status) == SIGHUP);
}

/* Until it has ended: how. */
static int fill_once(struct filler *filler)
{
    int status = 0;
    const pid_t pid = fork();
    if (!pid)
        fill(filler);
    if (filler->told >= 0) /* who waits is to see that it has ended */
        close(filler->told);
    filler->told = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 ? status : W_EXITCODE(1, 0);
}

static void supervise(struct filler *filler)
{
    unsigned pause_ms = PAUSE_MS;
    prctl(PR_SET_NAME, "ibx-cache-super");
    filler->legacy = mmap(NULL, sizeof(*filler->legacy), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (filler->legacy == MAP_FAILED) {
        tell(filler, WRONG, "no memory for the process that fills this host's cache");
        _exit(1);
    }
    for (;;) {
        const uint64_t since = ibx_now_ns();
        filler->ended = fill_once(filler);
        if (!filler->ended || was_told_to_end(filler->ended) || !is_missed(filler->legacy))
            _exit(filler->ended != 0);
        if (ibx_now_ns() - since > LIVED_MS * IBX_NS_PER_MS)
            pause_ms = PAUSE_MS;
        poll(NULL, 0, (int)pause_ms);
        pause_ms = pause_ms * 2 < PAUSE_MAX_MS ? pause_ms * 2 : PAUSE_MAX_MS;
    }
}

/* ------------------------------------------------------------ who waits for it */

static int take_answer(int fd, struct ibx_host_cache *cache, struct ibx_error *err)
{
    char line[PATH_MAX + 2];
    size_t length = 0;
    ssize_t n;
    while (
        length < sizeof(line) - 1 &&
        ((n = read(fd, line + length, sizeof(line) - 1 - length)) > 0 || (n < 0 && errno == EINTR)))
        length += n > 0 ? (size_t)n : 0;
    line[length] = '\0';
    if (*line == READY) {
        snprintf(cache->folder, sizeof(cache->folder), "%.*s", PATH_MAX - 1, line + 1);
        return 0;
    }
    return ibx_error_set(err, -EREMOTEIO, "%s",
                         *line == WRONG ? line + 1
                                        : "the process that was to fill this host's cache has "
                                          "ended: see the kernel's log");
}

int ibx_snapshot_host_cache(const struct ibx_serve_options *options, struct ibx_host_cache *cache,
                            struct ibx_error *err)
{
    int pipes[2];
    snprintf(cache->top, sizeof(cache->top), "/dev/shm/ibx-snapshots-%u", (unsigned)geteuid());
    if (pipe2(pipes, O_CLOEXEC))
        return ibx_error_set(err, -errno, "no pipe: %s", strerror(errno));
    const pid_t pid = fork();
    if (!pid) {
        struct filler filler = {.options = *options,
                                .cache = cache,
                                .told = pipes[1],
                                .lock = -1,
                                .top = -1,
                                .folder = -1};
        const int null = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
            dup2(null, fd);
        /* This process outlives the command, so it must not keep pipes or locks of the command
         * open, for whose end others may wait. */
        const unsigned told = (unsigned)pipes[1];
        if (told > 3)
            close_range(3, told - 1, 0);
        close_range(told + 1, ~0u, 0);
        setsid();
        if (chdir("/"))
            _exit(1);
        supervise(&filler);
    }
    const int code = errno;
    close(pipes[1]);
    int rc = pid < 0 ? ibx_error_set_task(err, -code, "no process that fills a cache")
                     : take_answer(pipes[0], cache, err);
    close(pipes[0]);
    if (rc && pid > 0)
        waitpid(pid, NULL, 0);
    return rc;
}
