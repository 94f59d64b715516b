/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/channel/channel.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/state_machine.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/*
 * state machine: acceptor
 *   [*] -> OPEN -> CLOSING -> [*]
 */
enum acceptor_state { ACCEPTOR_OPEN, ACCEPTOR_CLOSING };
static const struct ibx_state acceptor_states[] = {
    [ACCEPTOR_OPEN] = {"open", IBX_TO(ACCEPTOR_CLOSING), IBX_STATE_INITIAL},
    [ACCEPTOR_CLOSING] = {"closing", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table acceptor_table = IBX_STATE_TABLE("acceptor", acceptor_states);

struct pending {
    struct pending *next;
    struct ibx_acceptor *acceptor;
    struct ibx_connection_request request;
};

struct ibx_acceptor {
    struct ibx_listener *listener;
    unsigned timeout_ms;
    int ready_fd, stop_fd;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t fewer; /* a thread has ended */
    struct ibx_state_machine state;
    unsigned threads;             /* one for each request in its handshake */
    struct pending *head, **tail; /* whose first message has come */
};

/* ---------------------------------------------------------------- one request */

static int first_message(struct ibx_conn *conn, unsigned timeout_ms, struct ibx_migrate_any *first,
                         struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    struct ibx_event event;
    for (;;) {
        int n = ibx_poll(conn, &event, 1);
        if (n < 0 || (n == 1 && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "it closed without a message");
        if (n == 1 && event.type == IBX_EVENT_MESSAGE) {
            int rc = ibx_migrate_decode(event.data, event.length, first, err);
            /* HELLO and JOIN are text and numbers: nothing points into the event. */
            ibx_message_release(conn, &event);
            if (rc || first->type == IBX_MIGRATE_HELLO || first->type == IBX_MIGRATE_JOIN)
                return rc;
            ibx_error_set(err, -EPROTO, "its first message is %s",
                          ibx_migrate_message_name(first->type));
            ibx_migrate_message_free(first);
            return -EPROTO;
        }
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "no message came within %u ms", timeout_ms);
        ibx_wait(conn, 100);
    }
}

static void *request_main(void *argument)
{
    struct pending *item = argument;
    struct ibx_acceptor *acceptor = item->acceptor;
    struct ibx_connection_request *request = &item->request;
    struct ibx_error err = {0};
    int rc = ibx_establish(request->conn, &err);
    if (!rc)
        rc = first_message(request->conn, acceptor->timeout_ms, &request->first, &err);
    if (rc) {
        const char *peer = ibx_conn_path(request->conn)->peer;
        const bool named = strstr(err.message, peer) != NULL;
        ibx_log(IBX_LOG_WARN, "%s%s%s%s", named ? "" : "a connection from ", named ? "" : peer,
                named ? "" : " was turned away: ", err.message);
        ibx_close(request->conn);
        free(item);
    }
    pthread_mutex_lock(&acceptor->lock);
    if (!rc) {
        *acceptor->tail = item;
        acceptor->tail = &item->next;
        eventfd_write(acceptor->ready_fd, 1);
    }
    acceptor->threads--;
    pthread_cond_signal(&acceptor->fewer);
    pthread_mutex_unlock(&acceptor->lock);
    return NULL;
}

/* ---------------------------------------------------------------- all of them */

static void request_start(struct ibx_acceptor *acceptor, struct ibx_conn *conn)
{
    pthread_t thread;
    struct pending *item = calloc(1, sizeof(*item));
    if (item)
        *item = (struct pending){.acceptor = acceptor, .request.conn = conn};
    pthread_mutex_lock(&acceptor->lock);
    const bool started = item && !pthread_create(&thread, NULL, request_main, item);
    acceptor->threads += started; /* before it can end: it takes the lock for that */
    pthread_mutex_unlock(&acceptor->lock);
    if (started) {
        pthread_detach(thread);
        return;
    }
    ibx_log(IBX_LOG_ERROR, "a connection was turned away: no thread for it");
    ibx_close(conn);
    free(item);
}

/* Waits until one more request may be handled. False: the acceptor is closing. */
static bool wait_for_room(struct ibx_acceptor *acceptor)
{
    pthread_mutex_lock(&acceptor->lock);
    while (acceptor->state.now == ACCEPTOR_OPEN && acceptor->threads >= IBX_ACCEPTOR_REQUESTS_MAX)
        pthread_cond_wait(&acceptor->fewer, &acceptor->lock);
    const bool open = acceptor->state.now == ACCEPTOR_OPEN;
    pthread_mutex_unlock(&acceptor->lock);
    return open;
}

static void *accept_main(void *argument)
{
    struct ibx_acceptor *acceptor = argument;
    struct pollfd fds[2] = {{.fd = ibx_listener_fd(acceptor->listener), .events = POLLIN},
                            {.fd = acceptor->stop_fd, .events = POLLIN}};
    while (wait_for_room(acceptor)) {
        struct ibx_error err = {0};
        struct ibx_conn *conn;
        poll(fds, 2, -1);
        if (fds[1].revents)
            break;
        int rc = ibx_accept(acceptor->listener, &conn, &err);
        if (!rc) {
            request_start(acceptor, conn);
        } else if (rc != -EAGAIN) {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            poll(&fds[1], 1, 100);
        }
    }
    return NULL;
}

static void release(struct ibx_acceptor *acceptor)
{
    ibx_listener_close(acceptor->listener);
    if (acceptor->ready_fd >= 0)
        close(acceptor->ready_fd);
    if (acceptor->stop_fd >= 0)
        close(acceptor->stop_fd);
    pthread_mutex_destroy(&acceptor->lock);
    pthread_cond_destroy(&acceptor->fewer);
    free(acceptor);
}

int ibx_acceptor_open(const char *uri, const struct ibx_options *options, struct ibx_acceptor **out,
                      struct ibx_error *err)
{
    struct ibx_acceptor *acceptor = calloc(1, sizeof(*acceptor));
    if (!acceptor)
        return ibx_error_set(err, -ENOMEM, "no memory for a listener");
    acceptor->tail = &acceptor->head;
    acceptor->timeout_ms = options->timeout_ms;
    ibx_state_begin(&acceptor->state, &acceptor_table, ACCEPTOR_OPEN);
    pthread_mutex_init(&acceptor->lock, NULL);
    pthread_cond_init(&acceptor->fewer, NULL);
    acceptor->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    acceptor->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct ibx_options own = *options;
    snprintf(own.purpose, sizeof(own.purpose), IBX_MIGRATE_PURPOSE);
    int rc = 0;
    if (acceptor->ready_fd < 0 || acceptor->stop_fd < 0)
        rc = ibx_error_set(err, -errno, "no event descriptors: %s", strerror(errno));
    if (!rc)
        rc = ibx_listen(uri, &own, &acceptor->listener, err);
    if (!rc && (rc = -pthread_create(&acceptor->thread, NULL, accept_main, acceptor)))
        ibx_error_set(err, rc, "no thread for the listener: %s", strerror(-rc));
    if (rc)
        release(acceptor);
    else
        *out = acceptor;
    return rc;
}

const char *ibx_acceptor_uri(const struct ibx_acceptor *acceptor)
{
    return ibx_listener_uri(acceptor->listener);
}

int ibx_acceptor_fd(const struct ibx_acceptor *acceptor)
{
    return acceptor->ready_fd;
}

int ibx_acceptor_take(struct ibx_acceptor *acceptor, struct ibx_connection_request *request)
{
    eventfd_t value;
    pthread_mutex_lock(&acceptor->lock);
    struct pending *item = acceptor->head;
    if (item) {
        acceptor->head = item->next;
        *request = item->request;
    }
    if (!acceptor->head) {
        acceptor->tail = &acceptor->head;
        eventfd_read(acceptor->ready_fd, &value);
    }
    pthread_mutex_unlock(&acceptor->lock);
    free(item);
    return item != NULL;
}

void ibx_acceptor_close(struct ibx_acceptor *acceptor)
{
    struct ibx_connection_request request;
    if (!acceptor)
        return;
    pthread_mutex_lock(&acceptor->lock);
    ibx_state_move(&acceptor->state, ACCEPTOR_CLOSING);
    pthread_cond_signal(&acceptor->fewer);
    pthread_mutex_unlock(&acceptor->lock);
    eventfd_write(acceptor->stop_fd, 1);
    pthread_join(acceptor->thread, NULL);
    pthread_mutex_lock(&acceptor->lock);
    while (acceptor->threads)
        pthread_cond_wait(&acceptor->fewer, &acceptor->lock);
    pthread_mutex_unlock(&acceptor->lock);
    while (ibx_acceptor_take(acceptor, &request)) {
        ibx_close(request.conn);
        ibx_migrate_message_free(&request.first);
    }
    release(acceptor);
}
