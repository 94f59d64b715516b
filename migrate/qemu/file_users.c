/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which processes can write to the files of guest RAM. */
#include "migrate/qemu/qemu_internal.h"

#include "common/clock.h"
#include "common/forked.h"
#include "common/thread.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STUCK_S 5  /* for one process */
#define ALL_S   60 /* for all processes */

static const struct ibx_guest_block *block_of(const struct ibx_guest_ram *ram, uint64_t dev,
                                              uint64_t ino)
{
    for (size_t i = 0; i < ram->count; i++)
        if (ram->blocks[i].fd >= 0 && ram->blocks[i].dev == dev && ram->blocks[i].ino == ino)
            return &ram->blocks[i];
    return NULL;
}

struct user {
    const struct ibx_guest_ram *ram;
    pid_t pid;
    const struct ibx_guest_block *found;
    int unread; /* the error after which it is not known whether a descriptor can write */
};

static bool may_write(void *context, const struct ibx_proc_mapping *m)
{
    struct user *user = context;
    if (m->permissions[1] == 'w' && m->permissions[3] == 's' && m->ino)
        user->found = block_of(user->ram, m->dev, m->ino);
    return user->found;
}

/* Whether a process counts as none that writes after this error: it has ended, or is another
 * user's. After any other one, such as a lack of descriptors, it might be one. */
static bool passes(int rc)
{
    return rc >= 0 || rc == -ENOENT || rc == -ESRCH || rc == -EACCES || rc == -EPERM;
}

/* Finds a block whose file the process has mapped, shared and writable. */
static int find_mapped(struct user *user)
{
    const int rc = ibx_proc_find_writable(user->pid, may_write, user);
    return passes(rc) ? 0 : rc;
}

/* 1: it is; 0: it is not, or has been closed; < 0: that is not known. */
static int writable(pid_t pid, int descriptor)
{
    char path[64], line[64];
    unsigned flags = O_RDONLY;
    bool read = false;
    snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)pid, descriptor);
    FILE *file = fopen(path, "re");
    while (file && !read && (errno = 0, fgets(line, sizeof(line), file)))
        read = sscanf(line, "flags: %o", &flags) == 1;
    const int code = read || errno == ENOENT || errno == ESRCH ? 0 : errno;
    if (file)
        fclose(file);
    return code ? -code : !(flags & O_PATH) && (flags & O_ACCMODE) != O_RDONLY;
}

static bool writes(void *context, int number, const char *path)
{
    struct user *user = context;
    struct stat st;
    if (!ibx_proc_stat(path, &st))
        user->found = block_of(user->ram, st.st_dev, st.st_ino);
    const int rc = user->found ? writable(user->pid, number) : 0;
    if (rc <= 0)
        user->found = NULL;
    user->unread = rc < 0 ? rc : 0;
    return rc != 0;
}

/* Finds a block whose file the process has open for writing, and may be about to map. */
static int find_opened(struct user *user)
{
    const int rc = ibx_proc_find_descriptor(user->pid, writes, user);
    return user->unread ? user->unread : passes(rc) ? 0 : rc;
}

static void name_of(pid_t pid, char *name, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(name, (int)size, file))
        snprintf(name, size, "?");
    if (file)
        fclose(file);
    name[strcspn(name, "\n")] = '\0';
    ibx_text_sanitize(name);
}

static int not_known(int code, struct ibx_error *err)
{
    return ibx_error_set(err, code,
                         "/proc cannot be read (%s), so it is not known whether another process "
                         "writes to guest RAM: %s",
                         strerror(-code),
                         code == -EMFILE   ? IBX_ERROR_RAISE_FILES
                         : code == -ENOMEM ? "try again when this host has memory"
                                           : "try again");
}

/* Sets `found` if the process can write to such a file. */
static int look_at(const struct ibx_guest_ram *ram, pid_t pid, bool mapped,
                   struct ibx_guest_user *found, struct ibx_error *err)
{
    struct user user = {.ram = ram, .pid = pid};
    int rc = find_mapped(&user);
    if (!rc && !user.found && !mapped)
        rc = find_opened(&user);
    if (rc)
        return not_known(rc, err);
    if (!user.found)
        return 0;
    found->pid = pid;
    found->block = user.found;
    name_of(pid, found->name, sizeof(found->name));
    return 0;
}

/* A child of QEMU has its memory only if both share all of their memory, since QEMU keeps it from
 * others (MADV_DONTFORK): the helper of -run-with async-teardown=on. */
static bool is_child(pid_t pid, pid_t of)
{
    unsigned long long parent = 0;
    return of && !ibx_process_status(pid, "PPid:", 10, &parent, NULL) && parent == (unsigned)of;
}

static int look_at_all(const struct ibx_guest_ram *ram, pid_t qemu, bool mapped, atomic_int *at,
                       struct ibx_guest_user *found, struct ibx_error *err)
{
    DIR *dir = opendir("/proc");
    const struct dirent *entry;
    int rc = 0;
    if (!dir)
        return not_known(-errno, err);
    while (!rc && !found->pid && (errno = 0, entry = readdir(dir))) {
        const pid_t pid = isdigit((unsigned char)*entry->d_name) ? (pid_t)atoi(entry->d_name) : 0;
        if (!pid || pid == getpid() || pid == qemu)
            continue;
        atomic_store(at, pid);
        rc = look_at(ram, pid, mapped, found, err);
        if (found->pid && is_child(pid, qemu))
            found->pid = 0;
    }
    if (!rc && !found->pid && errno)
        rc = not_known(-errno, err);
    closedir(dir);
    return rc;
}

/* ---------------------------------------------------------------- with a deadline */

/* The maps of a process cannot be read while one of its threads has their lock, which may wait for
 * a file server that does not answer. So a thread looks, and is left behind if need be. */
struct search {
    atomic_uint ended, let_go; /* let_go: by one of the two threads; the other one frees it */
    atomic_int at;             /* the process that is looked at */
    pid_t qemu;
    bool mapped;
    struct ibx_guest_user found;
    int rc;
    struct ibx_error err;
    struct ibx_guest_ram ram;
    struct ibx_guest_block blocks[]; /* only whether they are open, and which files they are */
};

static void let_go(struct search *search)
{
    if (atomic_fetch_add(&search->let_go, 1))
        free(search);
}

static void *run_search(void *argument)
{
    struct search *search = argument;
    search->rc = look_at_all(&search->ram, search->qemu, search->mapped, &search->at,
                             &search->found, &search->err);
    atomic_store(&search->ended, 1);
    ibx_forked_wake(&search->ended);
    let_go(search);
    return NULL;
}

static bool ends_in_time(struct search *search)
{
    const uint64_t all = ibx_deadline_in_ms(ALL_S * 1000);
    uint64_t deadline = 0;
    for (int was = -1; !atomic_load(&search->ended);) {
        const int at = atomic_load(&search->at);
        if (at != was)
            deadline = ibx_deadline_in_ms(STUCK_S * 1000);
        else if (ibx_now_ns() >= deadline || ibx_now_ns() >= all)
            return false;
        was = at;
        ibx_forked_wait(&search->ended, 0, deadline < all ? deadline : all);
    }
    return true;
}

static int is_stuck(pid_t pid, struct ibx_error *err)
{
    char name[32];
    name_of(pid, name, sizeof(name));
    return ibx_error_set(err, -ETIMEDOUT,
                         "/proc/%d/maps (%s) could not be read within %d seconds, as where that "
                         "process waits for a disk or for a file server, so it is not known "
                         "whether it writes to guest RAM: try again when it has what it waits "
                         "for, or end it",
                         (int)pid, name, STUCK_S);
}

int ibx_guest_ram_find_user(const struct ibx_guest_ram *ram, pid_t qemu, bool mapped,
                            struct ibx_guest_user *found, struct ibx_error *err)
{
    const size_t bytes = ram->count * sizeof(*ram->blocks);
    struct search *search = calloc(1, sizeof(*search) + bytes);
    *found = (struct ibx_guest_user){.pid = 0};
    if (!search)
        return not_known(-ENOMEM, err);
    search->qemu = qemu;
    search->mapped = mapped;
    if (bytes)
        memcpy(search->blocks, ram->blocks, bytes);
    search->ram.blocks = search->blocks;
    search->ram.count = ram->count;
    int rc = ibx_thread_begin(NULL, run_search, search);
    if (rc) {
        free(search);
        return not_known(rc, err);
    }
    if (!ends_in_time(search)) {
        rc = is_stuck(atomic_load(&search->at), err);
        let_go(search);
        return rc;
    }
    rc = search->rc;
    if (rc && err)
        *err = search->err;
    *found = search->found;
    if (found->block)
        found->block = &ram->blocks[found->block - search->blocks];
    let_go(search);
    return rc;
}

int ibx_guest_ram_check_unused(const struct ibx_guest_ram *ram, struct ibx_error *err)
{
    struct ibx_guest_user user;
    const int rc = ibx_guest_ram_find_user(ram, 0, false, &user, err);
    if (rc || !user.pid)
        return rc;
    return ibx_error_set(err, -EBUSY,
                         "process %d (%s) uses %s, the file of guest RAM %s, and may have "
                         "overwritten the VM's memory: if it has written nothing there, end it and "
                         "try again",
                         (int)user.pid, user.name, user.block->path, user.block->id);
}
