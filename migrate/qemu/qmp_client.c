/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the process that uses a monitor, of which QEMU serves one client at a time: asks the
 * kernel by sock_diag(7) for the connections of that socket. */
#include "migrate/qemu/qemu.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define ESTABLISHED  1u /* a state of sockets, as of TCP */
#define MINOR_BITS   20 /* of a device, as the kernel writes it here */
#define ANSWER_BYTES 32768

/* ------------------------------------------------------------ the kernel's answer */

static bool is_at(const struct unix_diag_vfs *vfs, const struct stat *st)
{
    return vfs->udiag_vfs_ino == (uint32_t)st->st_ino &&
           vfs->udiag_vfs_dev == (major(st->st_dev) << MINOR_BITS | minor(st->st_dev));
}

/* The other end of a connection of this socket that QEMU has accepted; 0: it is none. Those that
 * wait to be accepted have no inode. */
static uint32_t peer_of(const struct nlmsghdr *head, const struct stat *st)
{
    const struct unix_diag_msg *is = NLMSG_DATA(head);
    uint32_t peer = 0;
    bool at = false;
    if (head->nlmsg_len < NLMSG_LENGTH(sizeof(*is)) || !is->udiag_ino)
        return 0;
    for (size_t next = NLMSG_LENGTH(sizeof(*is));
         next + sizeof(struct rtattr) <= head->nlmsg_len;) {
        const struct rtattr *a = (const struct rtattr *)((const char *)head + next);
        if (a->rta_len < sizeof(*a) || next + a->rta_len > head->nlmsg_len)
            break;
        if (a->rta_type == UNIX_DIAG_VFS && RTA_PAYLOAD(a) >= sizeof(struct unix_diag_vfs))
            at = is_at(RTA_DATA(a), st);
        else if (a->rta_type == UNIX_DIAG_PEER && RTA_PAYLOAD(a) >= sizeof(peer))
            memcpy(&peer, RTA_DATA(a), sizeof(peer));
        next += RTA_ALIGN(a->rta_len);
    }
    return at ? peer : 0;
}

static int ask(void)
{
    struct {
        struct nlmsghdr head;
        struct unix_diag_req is;
    } request = {.head = {.nlmsg_len = sizeof(request),
                          .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                          .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                 .is = {.sdiag_family = AF_UNIX,
                        .udiag_states = 1u << ESTABLISHED,
                        .udiag_show = UDIAG_SHOW_VFS | UDIAG_SHOW_PEER}};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0 || send(fd, &request, sizeof(request), 0) == (ssize_t)sizeof(request))
        return fd;
    close(fd);
    return -1;
}

/* The inode of the socket at the other end of QEMU's accepted connection; 0: there is none. */
static uint32_t find_peer(const struct stat *st)
{
    char *bytes = malloc(ANSWER_BYTES);
    const int fd = bytes ? ask() : -1;
    uint32_t peer = 0;
    bool more = fd >= 0;
    while (more && !peer) {
        struct sockaddr_nl from = {.nl_pid = UINT32_MAX};
        socklen_t length = sizeof(from);
        ssize_t n = recvfrom(fd, bytes, ANSWER_BYTES, 0, (struct sockaddr *)&from, &length);
        more = n > 0 && !from.nl_pid;
        for (const struct nlmsghdr *head = (const struct nlmsghdr *)bytes;
             more && !peer && NLMSG_OK(head, n); head = NLMSG_NEXT(head, n)) {
            more = head->nlmsg_type == SOCK_DIAG_BY_FAMILY; /* not NLMSG_DONE, nor an error */
            peer = more ? peer_of(head, st) : 0;
        }
    }
    if (fd >= 0)
        close(fd);
    free(bytes);
    return peer;
}

/* ------------------------------------------------------------ the process */

/* The process that has a socket. */
static pid_t find_owner(uint32_t inode)
{
    pid_t found = 0;
    DIR *dir = opendir("/proc");
    for (const struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        const pid_t pid = isdigit((unsigned char)*entry->d_name) ? (pid_t)atoi(entry->d_name) : 0;
        if (pid && ibx_proc_find_socket(pid, inode) >= 0)
            found = pid;
    }
    if (dir)
        closedir(dir);
    return found;
}

/* Whether an ib-migrate with this command keeps a monitor for as long as it works on a VM. */
static bool works(const char *command)
{
    static const char *const asks[] = {"check", "rollback"};
    for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++)
        if (!strcmp(command, asks[i]))
            return false;
    return true;
}

/* The first argument of the process; NULL: none, or it cannot be read. To be freed by free(). */
static char *command_of(pid_t pid)
{
    FILE *words = ibx_proc_arguments(pid);
    char *word = NULL;
    size_t size = 0;
    const bool has = words && getdelim(&word, &size, '\0', words) > 0 &&
                     getdelim(&word, &size, '\0', words) > 0 && isalpha((unsigned char)*word);
    if (words)
        fclose(words);
    if (!has) {
        free(word);
        word = NULL;
    }
    return word;
}

/* The name of its program; of an ib-migrate also its first argument, the command. */
static bool describe(pid_t pid, char *text, size_t size)
{
    char path[32], name[32] = "?";
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
    FILE *comm = fopen(path, "re");
    if (comm && fgets(name, sizeof(name), comm))
        name[strcspn(name, "\n")] = '\0';
    if (comm)
        fclose(comm);
    char *command = strcmp(name, "ib-migrate") ? NULL : command_of(pid);
    snprintf(text, size, "process %d (%s%s%.16s)", (int)pid, name, command ? " " : "",
             command ? command : "");
    ibx_text_sanitize(text);
    const bool at_work = command && works(command); /* without one, it has just ended */
    free(command);
    return at_work;
}

int ibx_qmp_client_find(const char *path, bool *at_work, char *text, size_t size)
{
    struct stat st;
    const uint32_t peer = stat(path, &st) || !S_ISSOCK(st.st_mode) ? 0 : find_peer(&st);
    const pid_t pid = peer ? find_owner(peer) : 0;
    if (!pid || pid == getpid())
        return -ENOENT;
    *at_work = describe(pid, text, size);
    return 0;
}
