/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A child's end of the socket at which children.c listens, and what both ends say there. */
#include "migrate/snapshot/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_S 10

/* ------------------------------------------------------------ a child as text */

json_t *ibx_snapshot_child_json(const struct snapshot_child *child)
{
    json_t *addresses = json_array();
    for (unsigned i = 0; addresses && i < child->count; i++)
        json_array_append_new(addresses, json_integer((json_int_t)child->addresses[i]));
    return json_pack("{s:i, s:I, s:i, s:o}", "pid", (int)child->pid, "started",
                     (json_int_t)child->started, "userfaultfd", child->remote, "addresses",
                     addresses);
}

int ibx_snapshot_child_read(const char *text, size_t length, unsigned count,
                            struct snapshot_child *child, struct ibx_error *err)
{
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL), *addresses = NULL;
    int pid = 0, remote = -1;
    json_int_t started = 0;
    struct snapshot_child found = {.count = count};
    bool good = json && !json_unpack(json, "{s:i, s:I, s:i, s:o}", "pid", &pid, "started", &started,
                                     "userfaultfd", &remote, "addresses", &addresses);
    good = good && pid > 0 && remote >= 0 && started > 0 && json_array_size(addresses) == count;
    for (unsigned i = 0; good && i < count; i++) {
        const json_int_t value = json_integer_value(json_array_get(addresses, i));
        good = value > 0 && value % IBX_SNAPSHOT_PAGE == 0;
        found.addresses[i] = (uint64_t)value;
    }
    json_decref(json);
    found.pid = pid;
    found.remote = remote;
    found.started = (uint64_t)started;
    if (good)
        *child = found;
    return good ? 0
                : ibx_error_set(err, -EPROTO,
                                "this is no child of a snapshot of %u memory "
                                "backends",
                                count);
}

/* ------------------------------------------------------------ the socket */

struct sockaddr_un ibx_snapshot_child_address(int folder)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" SNAPSHOT_SOCKET,
             folder);
    return address;
}

void ibx_snapshot_child_limit(int fd)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

static int read_reply(const char *text, size_t length, const struct ibx_snapshot_folder *folder,
                      bool *whole, struct snapshot_holes *holes, struct ibx_error *err)
{
    json_t *json = json_loadb(text, length, 0, NULL);
    const char *error = json_string_value(json_object_get(json, "error"));
    const json_t *is = json_object_get(json, "whole");
    int rc = 0;
    if (error)
        rc = ibx_error_set(err, -EREMOTEIO, "the cache refuses this child: %.500s", error);
    else if (!json_is_boolean(is))
        rc = ibx_error_set(err, -EPROTO, "the cache's answer is not understood");
    else
        *whole = json_is_true(is);
    if (!rc)
        ibx_snapshot_holes_read(json_object_get(json, "zeros"), folder, holes);
    json_decref(json);
    return rc;
}

static int connect_to(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    const struct sockaddr_un address = ibx_snapshot_child_address(folder->at);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc = 0;
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)))
        rc = ibx_error_set(
            err, -errno,
            "nothing fills the cache %s (%s): start ib-migrate serve --cache with that folder",
            folder->path, strerror(errno));
    if (rc && fd >= 0)
        close(fd);
    return rc ? rc : fd;
}

int ibx_snapshot_child_expected(const struct ibx_snapshot_folder *folder, struct ibx_error *err)
{
    const int fd = connect_to(folder, err);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 0;
}

int ibx_snapshot_child_hand_over(const struct ibx_snapshot_folder *folder,
                                 const struct snapshot_child *child, bool *whole,
                                 struct snapshot_holes *holes, struct ibx_error *err)
{
    char reply[SNAPSHOT_CHILD_TEXT];
    const int fd = connect_to(folder, err);
    if (fd < 0)
        return fd;
    json_t *json = ibx_snapshot_child_json(child);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    int rc = text ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a child");
    ibx_snapshot_child_limit(fd);
    if (!rc && send(fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        rc = ibx_error_set(err, -errno, "the cache cannot be told of this child: %s",
                           strerror(errno));
    const ssize_t n = rc ? 0 : recv(fd, reply, sizeof(reply), 0);
    if (!rc && n <= 0)
        rc = ibx_error_set(err, -ECONNRESET, "the cache does not answer");
    if (!rc)
        rc = read_reply(reply, (size_t)n, folder, whole, holes, err);
    free(text);
    json_decref(json);
    close(fd);
    return rc;
}
