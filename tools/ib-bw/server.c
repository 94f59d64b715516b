/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Doors, and a thread for every client that comes through one, as in GVirtuS's back end. */
#include "tools/ib-bw/ib-bw.h"

#include "common/log.h"
#include "frontend-glue/session/session.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct door {
    struct bw_server *server;
    struct ibx_session *session;   /* of calls, */
    struct ibx_listener *listener; /* raw */
    int stock_fd;                  /* or stock */
};

struct bw_server {
    const struct bw_args *args;
    struct door doors[BW_DOORS_MAX + 1];
    unsigned door_count;
    atomic_uint clients;
};

/* One of these two; owned by its thread. */
struct client {
    struct bw_server *server;
    struct bw_stream *stream;
    struct ibx_conn *conn;
};

static void client_drop(struct client *client)
{
    if (client->stream)
        client->stream->ops->destroy(client->stream);
    ibx_close(client->conn);
}

static void *client_main(void *argument)
{
    struct client client = *(struct client *)argument;
    free(argument);
    if (client.conn)
        ibx_bw_raw_answer(client.conn, client.server->args->max_bytes);
    else
        ibx_bw_answer(client.stream, client.server->args->max_bytes);
    atomic_fetch_sub(&client.server->clients, 1);
    return NULL;
}

/* Takes the client over. */
static void client_start(const struct client *client)
{
    struct bw_server *server = client->server;
    struct client *copy = malloc(sizeof(*copy));
    pthread_t thread;
    unsigned others = atomic_fetch_add(&server->clients, 1);
    if (copy && others < server->args->max_clients) {
        *copy = *client;
        if (!pthread_create(&thread, NULL, client_main, copy)) {
            pthread_detach(thread);
            return;
        }
    }
    if (others >= server->args->max_clients)
        ibx_log(IBX_LOG_WARN, "a client was turned away: %u are served already (--max-clients)",
                others);
    else
        ibx_log(IBX_LOG_ERROR, "a client was turned away: no thread for it");
    atomic_fetch_sub(&server->clients, 1);
    struct client gone = *client;
    free(copy);
    client_drop(&gone);
}

/* Such as no more descriptors: said, and waited out. */
static void accept_failed(const char *message)
{
    ibx_log(IBX_LOG_ERROR, "%s", message);
    poll(NULL, 0, 100);
}

static void *session_door(void *argument)
{
    struct door *door = argument;
    for (;;) {
        struct ibx_error err = {0};
        struct ibx_session *session;
        struct client client = {.server = door->server};
        if (ibx_session_accept(door->session, &session, &err) ||
            ibx_bw_stream_of_session(session, &client.stream, &err))
            accept_failed(err.message);
        else
            client_start(&client);
    }
    return NULL;
}

static void *raw_door(void *argument)
{
    struct door *door = argument;
    for (;;) {
        struct pollfd wait = {.fd = ibx_listener_fd(door->listener), .events = POLLIN};
        poll(&wait, 1, -1);
        struct ibx_error err = {0};
        struct client client = {.server = door->server};
        int rc = ibx_accept(door->listener, &client.conn, &err);
        if (!rc)
            client_start(&client);
        else if (rc != -EAGAIN)
            accept_failed(err.message);
    }
    return NULL;
}

static void *stock_door(void *argument)
{
    struct door *door = argument;
    for (;;) {
        struct ibx_error err = {0};
        struct client client = {.server = door->server};
        int fd = accept4(door->stock_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            accept_failed(strerror(errno));
        else if (ibx_bw_stream_of_stock(fd, &client.stream, &err))
            accept_failed(err.message);
        else
            client_start(&client);
    }
    return NULL;
}

int ibx_bw_server_create(const struct bw_args *args, struct bw_server **server,
                         struct ibx_error *err)
{
    struct bw_server *s = calloc(1, sizeof(*s));
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a server");
    s->args = args;
    *server = s;
    return 0;
}

static struct door *door_add(struct bw_server *server, struct ibx_error *err)
{
    if (server->door_count == sizeof(server->doors) / sizeof(server->doors[0])) {
        ibx_error_set(err, -ENFILE, "a server has at most %d doors", BW_DOORS_MAX + 1);
        return NULL;
    }
    struct door *door = &server->doors[server->door_count];
    *door = (struct door){.server = server, .stock_fd = -1};
    return door;
}

int ibx_bw_server_open(struct bw_server *server, const char *uri, const char **real,
                       struct ibx_error *err)
{
    struct door *door = door_add(server, err);
    if (!door)
        return err ? err->code : -ENFILE;
    const struct ibx_options *options = &server->args->options;
    int rc;
    if (server->args->raw) {
        rc = ibx_listen(uri, options, &door->listener, err);
        *real = rc ? NULL : ibx_listener_uri(door->listener);
    } else {
        rc = ibx_session_create(uri, options, &door->session, err);
        if (!rc)
            rc = ibx_session_serve(door->session, err);
        *real = rc ? NULL : ibx_session_uri(door->session);
    }
    if (rc)
        ibx_session_destroy(door->session);
    else
        server->door_count++;
    return rc;
}

int ibx_bw_server_open_stock(struct bw_server *server, const char *where, uint16_t *port,
                             struct ibx_error *err)
{
    struct door *door = door_add(server, err);
    if (!door)
        return err ? err->code : -ENFILE;
    int rc = ibx_bw_stock_listen(where, &door->stock_fd, port, err);
    if (!rc)
        server->door_count++;
    return rc;
}

int ibx_bw_server_start(struct bw_server *server, struct ibx_error *err)
{
    for (unsigned i = 0; i < server->door_count; i++) {
        struct door *door = &server->doors[i];
        void *(*run)(void *) = door->session    ? session_door
                               : door->listener ? raw_door
                                                : stock_door;
        pthread_t thread;
        int rc = pthread_create(&thread, NULL, run, door);
        if (rc)
            return ibx_error_set(err, -rc, "no thread for a door: %s", strerror(rc));
        pthread_detach(thread);
    }
    return 0;
}

/* Its threads use doors and server until the process ends, so neither is freed. What would outlive
 * the process is the socket of a door in the file system. */
void ibx_bw_server_leave(struct bw_server *server)
{
    struct ibx_uri uri;
    for (unsigned i = 0; server && i < server->door_count; i++) {
        struct door *door = &server->doors[i];
        const char *text = door->session    ? ibx_session_uri(door->session)
                           : door->listener ? ibx_listener_uri(door->listener)
                                            : "";
        if (!ibx_uri_parse(text, &uri, NULL) && uri.path[0])
            unlink(uri.path);
    }
}
