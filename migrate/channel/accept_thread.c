/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/channel/channel.h"

#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FILES_NEEDED 4u /* descriptors, before a connection can tell its peer what it lacks */

struct ibx_accept_thread {
    struct ibx_listener *listener;
    struct ibx_admission admission;
    int stop_fd;
    pthread_t thread;
    bool ended; /* the thread has ended and was joined */
    void (*came)(void *context, struct ibx_conn *conn);
    void *context;
};

/* The peer's address without the port, which is another one for each connection. */
static void address_of(const struct ibx_conn *conn, char address[IBX_ADDRESS_MAX])
{
    const char *from = ibx_conn_path(conn)->peer, *colon = strrchr(from, ':');
    const bool port = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
    const size_t length = port ? (size_t)(colon - from) : strlen(from);
    snprintf(address, IBX_ADDRESS_MAX, "%.*s",
             length < IBX_ADDRESS_MAX ? (int)length : (int)IBX_ADDRESS_MAX - 1, from);
}

void ibx_peer_of(const struct ibx_conn *conn, struct ibx_peer *peer)
{
    snprintf(peer->name, sizeof(peer->name), "%s", ibx_conn_path(conn)->name);
    address_of(conn, peer->address);
}

bool ibx_peer_same(const struct ibx_peer *a, const struct ibx_peer *b)
{
    return !strcmp(a->name, b->name) && (a->name[0] || !strcmp(a->address, b->address));
}

static bool lacks_files(const struct ibx_accept_thread *accepts)
{
    int fds[FILES_NEEDED];
    unsigned n = 0;
    while (n < FILES_NEEDED && (fds[n] = fcntl(accepts->stop_fd, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    const bool lacks = n < FILES_NEEDED;
    while (n)
        close(fds[--n]);
    return lacks;
}

/* A peer can be told only now: over TLS it takes a thread to say anything later. */
static const char *refuses(void *context, const struct ibx_conn *conn, const char *name)
{
    (void)conn, (void)name;
    return ibx_thread_check(1) ? "ib-migrate has no thread there for it: " IBX_ERROR_RAISE_TASKS
           : lacks_files(context)
               ? "ib-migrate has no descriptors there for it: " IBX_ERROR_RAISE_FILES
               : NULL;
}

static void *accept_main(void *argument)
{
    struct ibx_accept_thread *accepts = argument;
    struct pollfd fds[2] = {{.fd = ibx_listener_fd(accepts->listener), .events = POLLIN},
                            {.fd = accepts->stop_fd, .events = POLLIN}};
    char said[IBX_ERROR_MAX] = ""; /* the last error that was logged: repetitions are not */
    for (;;) {
        struct ibx_error err = {0};
        struct ibx_conn *conn;
        poll(fds, 2, -1);
        if (fds[1].revents)
            return NULL;
        int rc = ibx_accept(accepts->listener, &conn, &err);
        if (!rc) {
            said[0] = '\0';
            accepts->came(accepts->context, conn);
        } else if (rc != -EAGAIN) {
            if (strcmp(said, err.message) != 0)
                ibx_log(IBX_LOG_ERROR, "%s", err.message);
            memcpy(said, err.message, sizeof(said));
            poll(&fds[1], 1, 100);
        }
    }
}

static void release(struct ibx_accept_thread *accepts)
{
    ibx_listener_close(accepts->listener);
    if (accepts->stop_fd >= 0)
        close(accepts->stop_fd);
    free(accepts);
}

int ibx_accept_thread_open(const char *uri, const struct ibx_options *options,
                           void (*came)(void *context, struct ibx_conn *conn), void *context,
                           struct ibx_accept_thread **out, struct ibx_error *err)
{
    struct ibx_accept_thread *accepts = calloc(1, sizeof(*accepts));
    if (!accepts)
        return ibx_error_set(err, -ENOMEM, "no memory for a listener");
    struct ibx_options own = *options;
    accepts->admission = (struct ibx_admission){refuses, accepts};
    own.admission = &accepts->admission;
    accepts->came = came;
    accepts->context = context;
    accepts->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = accepts->stop_fd < 0
                 ? ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno))
                 : ibx_listen_check(uri, &own, err);
    if (!rc)
        rc = ibx_listen(uri, &own, &accepts->listener, err);
    if (!rc && (rc = -pthread_create(&accepts->thread, NULL, accept_main, accepts)))
        ibx_error_set_task(err, rc, "no thread for the listener");
    if (rc)
        release(accepts);
    else
        *out = accepts;
    return rc;
}

const char *ibx_accept_thread_uri(const struct ibx_accept_thread *accepts)
{
    return ibx_listener_uri(accepts->listener);
}

void ibx_accept_thread_end(struct ibx_accept_thread *accepts)
{
    if (accepts->ended)
        return;
    eventfd_write(accepts->stop_fd, 1);
    pthread_join(accepts->thread, NULL);
    accepts->ended = true;
}

void ibx_accept_thread_close(struct ibx_accept_thread *accepts)
{
    if (!accepts)
        return;
    ibx_accept_thread_end(accepts);
    release(accepts);
}
