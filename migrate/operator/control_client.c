/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Asks a running migration over its control socket. */
#include "migrate/migrate.h"

#include "common/clock.h"
#include "common/own_user.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAITING    ".waiting"
#define ANSWER_MAX 65536u /* bytes */
#define RETRY_MS   5      /* between tries to connect while the listener's backlog is full */
#define LOOK_MS    100    /* between looks whether the process that has to answer is stopped */

void ibx_control_socket_waiting_path(const char *folder, pid_t pid, char *path, size_t size)
{
    snprintf(path, size, "%s/%d" WAITING, folder, (int)pid);
}

/* The pid in the name of such a socket; 0: it is no such name. */
static pid_t waiting_pid(const char *name)
{
    char *end;
    long pid = strtol(name, &end, 10);
    return *name >= '1' && *name <= '9' && !strcmp(end, WAITING) && pid <= INT_MAX ? (pid_t)pid : 0;
}

int ibx_control_socket_waiting(const char *folder,
                               void (*each)(void *context, const char *path, pid_t pid),
                               void *context, struct ibx_error *err)
{
    DIR *dir = opendir(folder);
    char path[PATH_MAX];
    if (!dir && errno == ENOENT) /* a folder without records, as in ibx_journal_folder() */
        return 0;
    if (!dir)
        return ibx_error_set(
            err, -errno,
            "folder %s for records of migrations cannot be opened: %s; do this as the "
            "user who started the migration, or choose another folder with --state-dir",
            folder, strerror(errno));
    for (const struct dirent *entry; (entry = readdir(dir));) {
        pid_t pid = waiting_pid(entry->d_name);
        if (!pid)
            continue;
        ibx_control_socket_waiting_path(folder, pid, path, sizeof(path));
        if (kill(pid, 0) && errno == ESRCH)
            unlink(path);
        else
            each(context, path, pid);
    }
    closedir(dir);
    return 0;
}

static int no_tool(const char *path, int code, struct ibx_error *err)
{
    if (code == -ECONNREFUSED || code == -ENOENT)
        return ibx_error_set(err, code,
                             "no ib-migrate is at work on this migration (no process answers at "
                             "%s)",
                             path);
    if (code == -EACCES || code == -EPERM)
        return ibx_error_set(err, code,
                             "%s belongs to another user: ask as the one who started the migration",
                             path);
    return ibx_error_set(err, code, "%s: %s", path, strerror(-code));
}

static int late(const char *path, struct ibx_error *err)
{
    return ibx_error_set(err, -ETIMEDOUT, "the ib-migrate at %s does not answer: is it stopped?",
                         path);
}

static int connect_to(const char *path, uint64_t deadline_ns, int *out, struct ibx_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return no_tool(path, -ENAMETOOLONG, err);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return no_tool(path, -errno, err);
    while (connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
        int code = -errno;
        if (code == -EINTR || (code == -EAGAIN && ibx_now_ns() < deadline_ns)) {
            poll(NULL, 0, RETRY_MS);
            continue;
        }
        close(fd);
        return code == -EAGAIN ? late(path, err) : no_tool(path, code, err);
    }
    if (!ibx_is_own_users_socket(fd)) {
        close(fd);
        return no_tool(path, -EPERM, err);
    }
    *out = fd;
    return 0;
}

/* Whether the process that listens there is stopped, by a signal or its terminal. It will answer
 * only when somebody continues it. */
static bool is_stopped(int fd)
{
    struct ucred listener;
    socklen_t size = sizeof(listener);
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &listener, &size) &&
           ibx_process_state(listener.pid) == 'T';
}

/* Receives a whole line into `text` and ends it by a NUL. */
static int receive_line(int fd, const char *path, char *text, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    size_t length = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int left_ms = ibx_ms_until(deadline_ns);
        int ready = poll(&p, 1, left_ms < LOOK_MS ? left_ms : LOOK_MS);
        if ((ready < 0 && errno == EINTR) || (!ready && left_ms > LOOK_MS && !is_stopped(fd)))
            continue;
        if (ready <= 0)
            return ready ? no_tool(path, -errno, err) : late(path, err);
        ssize_t n = recv(fd, text + length, ANSWER_MAX - 1 - length, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return ibx_error_set(err, -ECONNRESET, "the ib-migrate at %s ended without an answer",
                                 path);
        char *end = memchr(text + length, '\n', (size_t)n);
        length += (size_t)n;
        if (end) {
            *end = '\0';
            return 0;
        }
        if (length == ANSWER_MAX - 1)
            return ibx_error_set(err, -EPROTO, "%s answers without end: is it ib-migrate's?", path);
    }
}

static int understand(const char *path, const char *text, json_t **answer, struct ibx_error *err)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    const char *refused = json_string_value(json_object_get(json, "error"));
    int rc = 0;
    if (!json_is_object(json) || (refused && !*refused)) {
        rc = ibx_error_set(err, -EPROTO,
                           "%s does not answer with a JSON object that says something: is it "
                           "ib-migrate's?",
                           path);
    } else if (refused) {
        rc = json_is_true(json_object_get(json, "away")) ? -ENOTCONN : -EREMOTEIO;
        ibx_error_set(err, rc, "%s", refused);
        if (err)
            ibx_text_sanitize(err->message);
    }
    if (rc)
        json_decref(json);
    else
        *answer = json;
    return rc;
}

int ibx_control_socket_ask(const char *path, json_t *request, json_t **answer, uint64_t deadline_ns,
                           struct ibx_error *err)
{
    char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    char *line = malloc(ANSWER_MAX);
    int fd = -1, rc = -ENOMEM;
    json_decref(request);
    if (!text || !line) {
        ibx_error_set(err, rc, "no memory to ask %s", path);
        goto out;
    }
    rc = connect_to(path, deadline_ns, &fd, err);
    if (rc)
        goto out;
    size_t length = strlen(text);
    text[length] = '\n'; /* replaces the NUL; a request fits into any socket buffer */
    if (send(fd, text, length + 1, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)(length + 1))
        rc = ibx_error_set(err, -ECONNRESET, "the ib-migrate at %s has ended", path);
    if (!rc)
        rc = receive_line(fd, path, line, deadline_ns, err);
    if (!rc)
        rc = understand(path, line, answer, err);
out:
    if (fd >= 0)
        close(fd);
    free(line);
    free(text);
    return rc;
}
