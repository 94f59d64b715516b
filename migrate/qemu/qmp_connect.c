/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds the socket of a QEMU's monitor by its path, and connects to it. */
#include "migrate/qemu/qemu.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/shell_word.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define RETRY_MS      5
#define GREETING_MS   1000 /* without one, another client has the monitor */
#define ADDRESS_BYTES sizeof(((struct sockaddr_un *)NULL)->sun_path)

bool ibx_qmp_reachable(const char *path)
{
    const char *slash = strrchr(path, '/');
    return *path && strlen(path) < PATH_MAX &&
           (strlen(path) < ADDRESS_BYTES || (slash && strlen(slash + 1) <= IBX_QMP_NAME_MAX));
}

/* The address of the socket at `path`. If the path is too long for one, it goes through the opened
 * `folder`, which the caller closes after connecting; -1: not needed. (QEMU may have been started
 * in a deep folder with a short relative path.) */
static int address_of(const char *path, struct sockaddr_un *to, int *folder, struct ibx_error *err)
{
    char place[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!ibx_qmp_reachable(path))
        return ibx_error_set(err, -ENAMETOOLONG,
                             "the path of the QMP socket \"%.128s\" must have 1 to %zu bytes, or "
                             "its name in a folder 1 to %u",
                             path, ADDRESS_BYTES - 1, IBX_QMP_NAME_MAX);
    if (strlen(path) < ADDRESS_BYTES) {
        memcpy(to->sun_path, path, strlen(path));
        return 0;
    }
    snprintf(place, sizeof(place), "%.*s", (int)(slash + 1 - path), path);
    *folder = open(place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0)
        return ibx_error_set(err, -errno, "cannot open the folder of the QMP socket %s: %s", path,
                             strerror(errno));
    snprintf(to->sun_path, sizeof(to->sun_path), "/proc/self/fd/%d/%s", *folder, slash + 1);
    return 0;
}

static int refused(const char *path, int code, struct ibx_error *err)
{
    struct stat st;
    if (code == EACCES)
        return ibx_error_set(err, -code,
                             "cannot connect to the QMP socket %s: %s; run this tool as root "
                             "or as QEMU's user",
                             path, strerror(code));
    /* Not advised to start QEMU with this path: it would remove the file. */
    if (code == ECONNREFUSED && !stat(path, &st) && !S_ISSOCK(st.st_mode))
        return ibx_error_set(
            err, -code, "%s is no socket: give the path that QEMU has in -qmp unix:PATH", path);
    return ibx_error_set(err, -code,
                         "cannot connect to the QMP socket %s: %s; start QEMU with -qmp "
                         "unix:%s,server=on,wait=off",
                         path, strerror(code), ibx_shell_word(path).text);
}

static int connect_to(const char *path, const struct sockaddr_un *to, uint64_t deadline_ns,
                      struct ibx_error *err)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return ibx_error_set(err, -errno, "cannot make a socket: %s", strerror(errno));
    /* EAGAIN: the listener's backlog is full; poll(2) cannot wait until it is not. */
    while (connect(fd, (const struct sockaddr *)to, sizeof(*to))) {
        int code = errno;
        if ((code == EAGAIN || code == EINTR) && ibx_now_ns() < deadline_ns) {
            poll(NULL, 0, RETRY_MS);
            continue;
        }
        close(fd);
        if (code == EAGAIN)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "the QMP socket %s takes no more clients: other tools hold it, "
                                 "give this one a -qmp socket of its own; or QEMU itself is "
                                 "stopped (SIGSTOP, a debugger): let it go on",
                                 path);
        return refused(path, code, err);
    }
    return fd;
}

/* libvirt's daemons keep their monitor as long as they run. */
static bool is_libvirt(const char *client)
{
    return strstr(client, "(libvirtd)") || strstr(client, "(virtqemud)");
}

/* One that was killed may have left the VM stopped, and its watchdog lets it run. */
static bool is_watchdog(const char *client)
{
    return strstr(client, "(ibx-watchdog)") != NULL;
}

static int refuse_client(const char *path, const char *client, int code, struct ibx_error *err)
{
    if (is_watchdog(client))
        return ibx_error_set(err, code,
                             "another ib-migrate works on the VM of this QEMU: its watchdog, %s, "
                             "has the QMP socket %s, by which it puts back what that ib-migrate "
                             "has changed: do not end it; if it is stopped, let it go on (kill "
                             "-CONT)",
                             client, path);
    return ibx_error_set(
        err, code, "%s has the QMP socket %s, and QEMU serves one client at a time: %s", client,
        path,
        is_libvirt(client) ? "libvirt needs it, so give the domain a second monitor for this "
                             "tool (qemu:commandline, see ib-migrate(1)), which it has from its "
                             "next start on"
                           : "give this tool a -qmp socket of its own, or end that process");
}

/* QEMU greets at once if no other client has the monitor. */
static int await_greeting(const char *path, int fd, uint64_t deadline_ns, struct ibx_error *err)
{
    struct pollfd greeting = {.fd = fd, .events = POLLIN};
    char client[64];
    bool at_work;
    if (ibx_ms_until(deadline_ns) <= GREETING_MS || poll(&greeting, 1, GREETING_MS) ||
        ibx_qmp_client_find(path, &at_work, client, sizeof(client)))
        return 0;
    if (at_work)
        return ibx_error_set(err, -EBUSY,
                             "%s works at the QMP socket %s, and QEMU serves one client at a time: "
                             "wait until it has ended, or end it",
                             client, path);
    if (is_libvirt(client))
        return refuse_client(path, client, -EBUSY, err);
    ibx_log(IBX_LOG_WARN,
            "%s has the QMP socket %s, and QEMU serves one client at a time: waiting %d s at most",
            client, path, ibx_ms_until(deadline_ns) / 1000);
    return 0;
}

/* `look`: whether to look who has the monitor, if it does not greet. */
static int connect_and_greet(const char *path, bool look, uint64_t deadline_ns,
                             struct ibx_qmp **qmp, struct ibx_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int folder = -1;
    int rc = address_of(path, &to, &folder, err);
    if (rc)
        return rc;
    int fd = connect_to(path, &to, deadline_ns, err);
    if (folder >= 0)
        close(folder);
    if (fd < 0)
        return fd;
    rc = look ? await_greeting(path, fd, deadline_ns, err) : 0;
    if (rc) {
        close(fd);
        return rc;
    }
    char client[64];
    bool at_work;
    rc = ibx_qmp_attach(fd, deadline_ns, qmp, err);
    if (rc == -ETIMEDOUT && !ibx_qmp_client_find(path, &at_work, client, sizeof(client)))
        return refuse_client(path, client, rc, err);
    return rc ? ibx_error_prefix(err, rc, "%s", path) : 0;
}

int ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                    struct ibx_error *err)
{
    return connect_and_greet(path, false, deadline_ns, qmp, err);
}

int ibx_qmp_connect_unless_busy(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                                struct ibx_error *err)
{
    return connect_and_greet(path, true, deadline_ns, qmp, err);
}
