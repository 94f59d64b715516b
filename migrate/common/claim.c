/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Claiming a VM, so that only one tool works on it; also one that the watchdog of a killed tool may
 * still have. */
#include "migrate/common/common.h"
#include "migrate/common/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The lock is on a folder of QEMU's in /proc, which only those can open who may work on its VM: a
 * pidfd, which is the same file for all mounts of /proc, could be locked by any user. */
static int open_lockable(pid_t qemu)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)qemu);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int ibx_vm_lock(pid_t qemu, int *fd)
{
    *fd = open_lockable(qemu);
    if (*fd < 0)
        return -errno;
    if (!flock(*fd, LOCK_EX | LOCK_NB))
        return 0;
    const int rc = -errno;
    close(*fd);
    *fd = -1;
    return rc;
}

static int refuse_claimed(pid_t qemu, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "another ib-migrate works on the VM of this QEMU (process %d), perhaps a "
                         "freeze, or one with another --state-dir: wait for its end",
                         (int)qemu);
}

/* Where it cannot be locked, QEMU alone refuses a second migration. */
int ibx_vm_claim(pid_t qemu, int *fd, struct ibx_error *err)
{
    return ibx_vm_lock(qemu, fd) == -EWOULDBLOCK ? refuse_claimed(qemu, err) : 0;
}

/* The process that has locked this file by flock(2), by /proc/locks; whoever may read a file can
 * lock it. 0: none, or it is not to be seen. */
static pid_t find_locker(int fd)
{
    char line[256];
    unsigned major, minor;
    unsigned long inode;
    int pid, found = 0;
    struct stat st;
    FILE *locks = fstat(fd, &st) ? NULL : fopen("/proc/locks", "re");
    while (locks && !found && fgets(line, sizeof(line), locks))
        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &major, &minor, &inode) == 4 &&
            inode == st.st_ino && makedev(major, minor) == st.st_dev)
            found = pid;
    if (locks)
        fclose(locks);
    return found;
}

static int refuse_locked(const struct ibx_guest_ram *ram, pid_t locker, bool again,
                         struct ibx_error *err)
{
    char holder[64] = "another process", path[64], name[32] = "";
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)locker);
    FILE *comm = locker > 0 ? fopen(path, "re") : NULL;
    if (comm && fgets(name, sizeof(name), comm)) {
        name[strcspn(name, "\n")] = '\0';
        ibx_text_sanitize(name);
        snprintf(holder, sizeof(holder), "process %d (%s)", (int)locker, name);
    }
    if (comm)
        fclose(comm);
    if (!strcmp(name, "ib-migrate") && again)
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate (process %d) continues the migration to this QEMU "
                             "(process %d), by another copy of its record (--state-dir): leave it "
                             "to that one",
                             (int)locker, (int)ram->pid);
    if (!strcmp(name, "ib-migrate"))
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate (process %d) is receiving a VM into this QEMU "
                             "(process %d): wait for it, or start another QEMU for this VM",
                             (int)locker, (int)ram->pid);
    return ibx_error_set(err, -EBUSY,
                         "%s has locked the file of guest RAM %s of this QEMU (process %d), which "
                         "only one receiver may lock: wait for it if it is an ib-migrate, "
                         "otherwise end it, and let no other user open the file (mode 0600)",
                         holder, ram->blocks[0].id, (int)ram->pid);
}

int ibx_vm_refuse_locked(const struct ibx_guest_ram *ram, int fd, bool again, struct ibx_error *err)
{
    return refuse_locked(ram, find_locker(fd), again, err);
}

int ibx_vm_check_claimed(const struct ibx_guest_ram *ram, bool source, struct ibx_error *err)
{
    const int fd = open_lockable(ram->pid);
    const pid_t of_vm = fd >= 0 ? find_locker(fd) : 0;
    if (fd >= 0)
        close(fd);
    if (of_vm)
        return refuse_claimed(ram->pid, err);
    const pid_t of_ram = !source && ram->count ? find_locker(ram->blocks[0].fd) : 0;
    return of_ram ? refuse_locked(ram, of_ram, false, err) : 0;
}

int ibx_vm_claim_when_free(pid_t qemu, int *claim, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_LOCK_MS);
    int rc;
    while ((rc = ibx_vm_claim(qemu, claim, err)) == -EBUSY && ibx_now_ns() < deadline)
        poll(NULL, 0, MIGRATION_LOCK_LOOK_MS);
    return rc;
}

/* That watchdog needs QEMU's monitor, which serves one client, and changes the VM and its record.
 * So this tool lets go of the monitor meanwhile, and then looks again. */
static int find_again(const struct ibx_vm_search *search, pid_t qemu, int *claim,
                      struct ibx_error *claimed, struct ibx_error *err)
{
    pid_t found = 0;
    search->lose(search->context);
    if (!ibx_vm_claim_when_free(qemu, claim, claimed))
        *claimed = (struct ibx_error){0}; /* of an earlier try */
    int rc = search->find(search->context, &found, err);
    return rc || found == qemu
               ? rc
               : ibx_error_set(err, -ESRCH,
                               "the QEMU of process %d has ended meanwhile, and %s is that of "
                               "process %d: begin again",
                               (int)qemu, search->qmp, (int)found);
}

int ibx_vm_find_and_claim(const struct ibx_vm_search *search, int *claim, struct ibx_error *claimed,
                          struct ibx_error *err)
{
    pid_t qemu = 0;
    *claimed = (struct ibx_error){0};
    int rc = search->find(search->context, &qemu, err);
    return rc || !ibx_vm_claim(qemu, claim, claimed)
               ? rc
               : find_again(search, qemu, claim, claimed, err);
}
