/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The running tool's end of the control socket; control_client.c is the other one. */
#include "migrate/operator/control_socket.h"

#include "common/clock.h"
#include "common/own_user.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LINE_MAX_BYTES  4096u /* of a request */
#define BACKLOG         16
#define RENEW_MS        500  /* between two looks whether the file of the socket is still there */
#define ACCEPT_PAUSE_MS 1000 /* after a failed accept: without descriptors, poll would spin */

struct client {
    int fd; /* -1: free */
    size_t length;
    uint64_t active_ns;
    char line[LINE_MAX_BYTES];
};

struct ibx_control_socket {
    int fd;
    dev_t dev; /* of the socket's file, so that only this one is removed at the end */
    ino_t ino;
    struct sockaddr_un address;
    const struct ibx_control_socket_ops *ops;
    void *context;
    uint64_t accept_after_ns, renew_ns;
    struct client clients[IBX_CONTROL_SOCKET_CLIENTS_MAX];
};

/* ------------------------------------------------------------ opening */

/* Whether a process listens at a socket's address: 1, 0 (a dead process left it), or an error. */
static int alive_at(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int rc = connect(fd, (const struct sockaddr *)address, sizeof(*address)) ? -errno : 0;
    close(fd);
    if (!rc || rc == -EAGAIN) /* EAGAIN: its backlog is full */
        return 1;
    return rc == -ECONNREFUSED || rc == -ENOENT ? 0 : rc;
}

/* Removes what a dead process left, so that bind(2) can succeed. */
static int remove_stale(const struct sockaddr_un *address, struct ibx_error *err)
{
    const char *path = address->sun_path;
    struct stat st;
    if (lstat(path, &st))
        return errno == ENOENT ? 0 : ibx_error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return ibx_error_set(err, -EEXIST,
                             "%s is in the place of the migration's socket and is none: remove it",
                             path);
    int alive = alive_at(address);
    if (alive < 0)
        return ibx_error_set(err, alive, "%s: %s", path, strerror(-alive));
    if (alive)
        return ibx_error_set(err, -EADDRINUSE,
                             "%s: another ib-migrate is at work on this migration; \"ib-migrate "
                             "status\" shows how far it is",
                             path);
    if (unlink(path) && errno != ENOENT)
        return ibx_error_set(err, -errno,
                             "%s, which a dead tool left behind, cannot be removed: %s", path,
                             strerror(errno));
    return 0;
}

static int listen_at(struct ibx_control_socket *server, const char *other, struct ibx_error *err)
{
    struct stat st;
    /* The file gets the mode that the socket has when it is bound: never open to others. */
    if (fchmod(server->fd, 0600) ||
        bind(server->fd, (const struct sockaddr *)&server->address, sizeof(server->address)) ||
        lstat(server->address.sun_path, &st) || listen(server->fd, BACKLOG))
        return ibx_error_set(
            err, -errno, "%s cannot be made: %s; its folder needs room and must be writable: %s",
            server->address.sun_path, strerror(errno), other);
    server->dev = st.st_dev;
    server->ino = st.st_ino;
    return 0;
}

/* Somebody has removed the file, perhaps with its folder, which is there again when the record is
 * written anew. Clients that are connected stay so. */
static void renew(struct ibx_control_socket *server)
{
    struct stat st;
    if (ibx_now_ns() < server->renew_ns)
        return;
    server->renew_ns = ibx_deadline_in_ms(RENEW_MS);
    if (!lstat(server->address.sun_path, &st) || errno != ENOENT)
        return;
    const int before = server->fd;
    server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server->fd >= 0 && !listen_at(server, "", NULL)) {
        close(before);
        return;
    }
    if (server->fd >= 0)
        close(server->fd);
    server->fd = before;
}

int ibx_control_socket_open(const char *path, const struct ibx_control_socket_ops *ops,
                            void *context, const char *other, struct ibx_control_socket **out,
                            struct ibx_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return ibx_error_set(err, -ENAMETOOLONG,
                             "%s is longer than the %zu bytes of a socket's address: use a shorter "
                             "--state-dir",
                             path, sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, strlen(path));
    int rc = remove_stale(&address, err);
    if (rc)
        return rc;
    struct ibx_control_socket *server = calloc(1, sizeof(*server));
    if (!server)
        return ibx_error_set(err, -ENOMEM, "no memory for the migration's socket");
    server->address = address;
    server->ops = ops;
    server->context = context;
    for (unsigned i = 0; i < IBX_CONTROL_SOCKET_CLIENTS_MAX; i++)
        server->clients[i].fd = -1;
    server->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    rc = server->fd < 0 ? ibx_error_set(err, -errno, "no socket for %s: %s", path, strerror(errno))
                        : listen_at(server, other, err);
    if (rc) {
        ibx_control_socket_close(server);
        return rc;
    }
    *out = server;
    return 0;
}

static void drop(struct client *client)
{
    close(client->fd);
    client->fd = -1;
}

void ibx_control_socket_close(struct ibx_control_socket *server)
{
    struct stat st;
    if (!server)
        return;
    for (unsigned i = 0; i < IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        if (server->clients[i].fd >= 0)
            drop(&server->clients[i]);
    }
    if (server->ino && !lstat(server->address.sun_path, &st) && st.st_dev == server->dev &&
        st.st_ino == server->ino)
        unlink(server->address.sun_path);
    if (server->fd >= 0)
        close(server->fd);
    free(server);
}

/* ------------------------------------------------------------ answers */

static json_t *error_json(const char *sentence)
{
    return json_pack("{s:o}", "error", ibx_json_text(sentence));
}

static json_t *ok_or_error(int rc, const struct ibx_error *err)
{
    json_t *answer = rc ? error_json(err->message) : json_pack("{s:b}", "ok", 1);
    if (rc == -ENOTCONN)
        json_object_set_new(answer, "away", json_true());
    return answer;
}

static json_t *set_answer(const struct ibx_control_socket *server, const json_t *request)
{
    const json_t *bytes = json_object_get(request, "max-bandwidth");
    struct ibx_error err = {0};
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0)
        return error_json("\"set\" needs \"max-bandwidth\", a number of bytes a second from 0 on "
                          "(0: no limit)");
    int rc = server->ops->set_bandwidth(server->context, (uint64_t)json_integer_value(bytes), &err);
    return ok_or_error(rc, &err);
}

static json_t *status_answer(const struct ibx_control_socket *server)
{
    struct ibx_migrate_status status = {0};
    server->ops->status(server->context, &status);
    return json_pack("{s:o}", "status", ibx_migrate_status_json(&status));
}

static json_t *answer_of(const struct ibx_control_socket *server, const char *line, size_t length)
{
    json_t *request = json_loadb(line, length, JSON_REJECT_DUPLICATES, NULL);
    const char *command = json_string_value(json_object_get(request, "command"));
    struct ibx_error err = {0};
    json_t *answer;
    if (!json_is_object(request)) {
        answer = error_json("the request is not a JSON object");
    } else if (command && !strcmp(command, "status")) {
        answer = status_answer(server);
    } else if (command && !strcmp(command, "cancel")) {
        int rc = server->ops->cancel(server->context, &err);
        answer = ok_or_error(rc, &err);
    } else if (command && !strcmp(command, "lend")) {
        int rc = server->ops->lend(server->context, &err);
        answer = ok_or_error(rc, &err);
    } else if (command && !strcmp(command, "reconnect")) {
        int rc = server->ops->reconnect(server->context, &err);
        answer = ok_or_error(rc, &err);
    } else if (command && !strcmp(command, "set")) {
        answer = set_answer(server, request);
    } else {
        ibx_error_set(&err, -EINVAL,
                      "there is no command \"%.64s\": it is \"status\", \"cancel\", \"lend\", "
                      "\"reconnect\" or \"set\"",
                      command ? command : "");
        ibx_text_sanitize(err.message); /* it may have been cut inside a UTF-8 character */
        answer = error_json(err.message);
    }
    json_decref(request);
    return answer;
}

/* Sends an answer. False: the client has to be closed, because it has gone, or does not read its
 * answers, of which its buffer holds many. */
static bool send_answer(int fd, json_t *answer)
{
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    if (!text)
        return false;
    size_t length = strlen(text);
    text[length] = '\n'; /* replaces the NUL */
    ssize_t n = send(fd, text, length + 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    free(text);
    return n == (ssize_t)(length + 1);
}

/* ------------------------------------------------------------ clients */

static bool answer_lines(const struct ibx_control_socket *server, struct client *client)
{
    size_t done = 0;
    char *end;
    while ((end = memchr(client->line + done, '\n', client->length - done))) {
        size_t length = (size_t)(end - (client->line + done));
        if (!send_answer(client->fd, answer_of(server, client->line + done, length)))
            return false;
        done += length + 1;
    }
    client->length -= done;
    memmove(client->line, client->line + done, client->length);
    if (client->length < sizeof(client->line))
        return true;
    send_answer(client->fd, error_json("the request is longer than 4096 bytes"));
    return false;
}

static void serve_client(const struct ibx_control_socket *server, struct client *client)
{
    ssize_t n = recv(client->fd, client->line + client->length,
                     sizeof(client->line) - client->length, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        drop(client);
        return;
    }
    client->length += (size_t)n;
    client->active_ns = ibx_now_ns();
    if (!answer_lines(server, client))
        drop(client);
}

/* A free entry, or that of the client that has been idle for longest. */
static struct client *slot_for_one(struct ibx_control_socket *server)
{
    struct client *oldest = &server->clients[0];
    for (unsigned i = 0; i < IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        struct client *client = &server->clients[i];
        if (client->fd < 0)
            return client;
        if (client->active_ns < oldest->active_ns)
            oldest = client;
    }
    drop(oldest);
    return oldest;
}

static void accept_clients(struct ibx_control_socket *server)
{
    for (unsigned i = 0; i < IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        int fd = accept4(server->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                server->accept_after_ns = ibx_deadline_in_ms(ACCEPT_PAUSE_MS);
            return;
        }
        if (!ibx_is_own_users_socket(fd)) {
            close(fd);
            continue;
        }
        struct client *client = slot_for_one(server);
        client->fd = fd;
        client->length = 0;
        client->active_ns = ibx_now_ns();
    }
}

unsigned ibx_control_socket_poll_fds(struct ibx_control_socket *server, struct pollfd *fds)
{
    unsigned count = 0;
    renew(server);
    if (ibx_now_ns() >= server->accept_after_ns)
        fds[count++] = (struct pollfd){.fd = server->fd, .events = POLLIN};
    for (unsigned i = 0; i < IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        if (server->clients[i].fd >= 0)
            fds[count++] = (struct pollfd){.fd = server->clients[i].fd, .events = POLLIN};
    }
    return count;
}

void ibx_control_socket_serve(struct ibx_control_socket *server)
{
    for (unsigned i = 0; i < IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        if (server->clients[i].fd >= 0)
            serve_client(server, &server->clients[i]);
    }
    if (ibx_now_ns() >= server->accept_after_ns)
        accept_clients(server);
}
