/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Listeners, a thread for every client, and the command serve. */
#include "tools/ib-bw/ib-bw.h"

#include "common/log.h"
#include "frontend-glue/session/session.h"
#include "tools/options.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct bw_args *args;
static atomic_uint clients;

static void *client_main(void *stream)
{
    ibx_bw_answer(stream, args->max_bytes);
    atomic_fetch_sub(&clients, 1);
    return NULL;
}

/* Starts a thread for a client; takes over the stream. */
static void client_start(struct bw_stream *stream)
{
    pthread_t thread;
    unsigned others = atomic_fetch_add(&clients, 1);
    if (others >= args->max_clients) {
        ibx_log(IBX_LOG_WARN, "a client was refused: %u are already being served (--max-clients)",
                others);
    } else if (pthread_create(&thread, NULL, client_main, stream)) {
        ibx_log(IBX_LOG_ERROR, "a client was refused: there is no thread for it");
    } else {
        pthread_detach(thread);
        return;
    }
    atomic_fetch_sub(&clients, 1);
    stream->ops->destroy(stream);
}

/* What a listener's thread accepts clients from. */
struct listener {
    struct ibx_session *session; /* NULL: stock's socket */
    int stock_fd;
};

static int accept_client(const struct listener *listener, struct bw_stream **stream,
                         struct ibx_error *err)
{
    struct ibx_session *session;
    if (listener->session) {
        int rc = ibx_session_accept(listener->session, &session, err);
        return rc ? rc : ibx_bw_stream_of_session(session, stream, err);
    }
    int fd = accept4(listener->stock_fd, NULL, NULL, SOCK_CLOEXEC);
    return fd < 0 ? ibx_error_set(err, -errno, "stock: %s", strerror(errno))
                  : ibx_bw_stream_of_stock(fd, stream, err);
}

static void *listener_main(void *argument)
{
    const struct listener *listener = argument;
    for (;;) {
        struct ibx_error err = {0};
        struct bw_stream *stream;
        if (!accept_client(listener, &stream, &err)) {
            client_start(stream);
        } else {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            poll(NULL, 0, 100); /* there may be no free descriptors for the moment */
        }
    }
    return NULL;
}

static int listener_start(struct listener with, struct ibx_error *err)
{
    struct listener *listener = malloc(sizeof(*listener));
    pthread_t thread;
    if (!listener)
        return ibx_error_set(err, -ENOMEM, "no memory for a listener");
    *listener = with;
    int rc = pthread_create(&thread, NULL, listener_main, listener);
    if (rc)
        return ibx_error_set_task(err, -rc, "no thread for a listener");
    pthread_detach(thread);
    return 0;
}

void ibx_bw_server_init(const struct bw_args *of)
{
    args = of;
}

int ibx_bw_server_open(const char *uri, const char **real, struct ibx_error *err)
{
    struct ibx_session *session;
    int rc = ibx_listen_check(uri, &args->options, err);
    if (!rc)
        rc = ibx_bw_session_listen(uri, &args->options, &session, err);
    if (rc)
        return rc;
    *real = ibx_session_uri(session);
    return listener_start((struct listener){session, -1}, err);
}

int ibx_bw_server_open_stock(const char *where, uint16_t *port, struct ibx_error *err)
{
    int fd;
    int rc = ibx_bw_stock_listen(where, &fd, port, err);
    return rc ? rc : listener_start((struct listener){NULL, fd}, err);
}

/* ---------------------------------------------------------------------- serve */

static int open_listeners(const char **real, struct ibx_error *err)
{
    uint16_t port;
    int rc = ibx_bw_server_open(args->uri, real, err);
    if (rc)
        return rc;
    bool any_host = args->options.key_file[0] || args->options.insecure || strchr(args->uri, '?');
    printf("serving calls at %s%s\n", *real,
           any_host ? "" : " to this host only: others need a key (--key-file)");
    if (args->stock) {
        rc = ibx_bw_server_open_stock(args->stock, &port, err);
        if (!rc)
            printf("serving stock, which has no authentication, at port %u\n", port);
    }
    return rc;
}

int ibx_bw_serve(const struct bw_args *of)
{
    struct ibx_error err = {0};
    struct ibx_uri uri;
    const char *real = "";
    sigset_t set;
    int number;
    ibx_bw_server_init(of);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int rc = open_listeners(&real, &err);
    if (!rc) {
        fflush(stdout);
        sigwait(&set, &number);
    }
    /* The session is not closed, since its threads use it, but a unix socket has to be removed. */
    if (!ibx_uri_parse(real, &uri, NULL) && uri.path[0])
        unlink(uri.path);
    _exit(rc ? ibx_tool_fail(&err) : EXIT_SUCCESS); /* exit(3) would race with the threads */
}
