/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/channel/acceptor.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct waiting {
    struct waiting *next;
    struct ibx_acceptor *porch;
    struct ibx_connection_request knock;
};

struct ibx_acceptor {
    struct ibx_listener *listener;
    unsigned timeout_ms;
    int ready_fd, stop_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t fewer; /* a thread has ended */
    unsigned threads;     /* at work on a knock */
    bool closing;
    struct waiting *head, **tail;
};

/* ---------------------------------------------------------------- one knock */

/* The first message, copied out of the connection; text and numbers only, so nothing points back.
 */
static int first_message(struct ibx_conn *conn, unsigned timeout_ms, struct ibx_migrate_any *first,
                         struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    struct ibx_event event;
    for (;;) {
        int n = ibx_poll(conn, &event, 1);
        if (n < 0 || (n == 1 && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "it went away without a word");
        if (n == 1 && event.type == IBX_EVENT_MESSAGE) {
            int rc = ibx_migrate_decode(event.data, event.length, first, err);
            ibx_message_release(conn, &event);
            if (!rc && first->type != IBX_MIGRATE_HELLO && first->type != IBX_MIGRATE_JOIN)
                rc = ibx_error_set(err, -EPROTO, "its first message is %s",
                                   ibx_migrate_message_name(first->type));
            return rc;
        }
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "it said nothing for %u ms", timeout_ms);
        ibx_wait(conn, 100);
    }
}

static void *greet(void *argument)
{
    struct waiting *guest = argument;
    struct ibx_acceptor *porch = guest->porch;
    struct ibx_error err = {0};
    int rc = ibx_establish(guest->knock.conn, &err);
    if (!rc)
        rc = first_message(guest->knock.conn, porch->timeout_ms, &guest->knock.first, &err);
    if (rc) {
        const char *peer = ibx_conn_path(guest->knock.conn)->peer;
        const bool named = strstr(err.message, peer) != NULL;
        ibx_log(IBX_LOG_WARN, "%s%s%s%s", named ? "" : "a connection from ", named ? "" : peer,
                named ? "" : " was turned away: ", err.message);
        ibx_close(guest->knock.conn);
        free(guest);
    }
    pthread_mutex_lock(&porch->lock);
    if (!rc) {
        *porch->tail = guest;
        porch->tail = &guest->next;
        eventfd_write(porch->ready_fd, 1);
    }
    porch->threads--;
    pthread_cond_signal(&porch->fewer);
    pthread_mutex_unlock(&porch->lock);
    return NULL;
}

/* ---------------------------------------------------------------- the door */

static void let_in(struct ibx_acceptor *porch, struct ibx_conn *conn)
{
    pthread_t thread;
    struct waiting *guest = calloc(1, sizeof(*guest));
    pthread_mutex_lock(&porch->lock);
    porch->threads++;
    pthread_mutex_unlock(&porch->lock);
    if (guest) {
        *guest = (struct waiting){.porch = porch, .knock.conn = conn};
        if (!pthread_create(&thread, NULL, greet, guest)) {
            pthread_detach(thread);
            return;
        }
    }
    ibx_log(IBX_LOG_ERROR, "a connection was turned away: no thread for it");
    ibx_close(conn);
    free(guest);
    pthread_mutex_lock(&porch->lock);
    porch->threads--;
    pthread_mutex_unlock(&porch->lock);
}

/* False when the porch closes. */
static bool room(struct ibx_acceptor *porch)
{
    pthread_mutex_lock(&porch->lock);
    while (!porch->closing && porch->threads >= IBX_ACCEPTOR_KNOCKS_MAX)
        pthread_cond_wait(&porch->fewer, &porch->lock);
    bool open = !porch->closing;
    pthread_mutex_unlock(&porch->lock);
    return open;
}

static void *stand(void *argument)
{
    struct ibx_acceptor *porch = argument;
    struct pollfd fds[2] = {{.fd = ibx_listener_fd(porch->listener), .events = POLLIN},
                            {.fd = porch->stop_fd, .events = POLLIN}};
    while (room(porch)) {
        struct ibx_error err = {0};
        struct ibx_conn *conn;
        poll(fds, 2, -1);
        if (fds[1].revents)
            break;
        int rc = ibx_accept(porch->listener, &conn, &err);
        if (!rc) {
            let_in(porch, conn);
        } else if (rc != -EAGAIN) {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            poll(&fds[1], 1, 100);
        }
    }
    return NULL;
}

int ibx_acceptor_open(const char *uri, const struct ibx_options *options, struct ibx_acceptor **out,
                      struct ibx_error *err)
{
    struct ibx_acceptor *porch = calloc(1, sizeof(*porch));
    if (!porch)
        return ibx_error_set(err, -ENOMEM, "no memory for a listener");
    porch->tail = &porch->head;
    porch->timeout_ms = options->timeout_ms;
    pthread_mutex_init(&porch->lock, NULL);
    pthread_cond_init(&porch->fewer, NULL);
    porch->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    porch->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = 0;
    if (porch->ready_fd < 0 || porch->stop_fd < 0)
        rc = ibx_error_set(err, -errno, "no event descriptors: %s", strerror(errno));
    if (!rc)
        rc = ibx_listen(uri, options, &porch->listener, err);
    if (!rc && (rc = -pthread_create(&porch->thread, NULL, stand, porch)))
        ibx_error_set(err, rc, "no thread for the door: %s", strerror(-rc));
    if (!rc) {
        *out = porch;
        return 0;
    }
    ibx_listener_close(porch->listener);
    if (porch->ready_fd >= 0)
        close(porch->ready_fd);
    if (porch->stop_fd >= 0)
        close(porch->stop_fd);
    free(porch);
    return rc;
}

const char *ibx_acceptor_uri(const struct ibx_acceptor *porch)
{
    return ibx_listener_uri(porch->listener);
}

int ibx_acceptor_fd(const struct ibx_acceptor *porch)
{
    return porch->ready_fd;
}

int ibx_acceptor_take(struct ibx_acceptor *porch, struct ibx_connection_request *knock)
{
    eventfd_t value;
    pthread_mutex_lock(&porch->lock);
    struct waiting *guest = porch->head;
    if (guest) {
        porch->head = guest->next;
        *knock = guest->knock;
    }
    if (!porch->head) {
        porch->tail = &porch->head;
        eventfd_read(porch->ready_fd, &value);
    }
    pthread_mutex_unlock(&porch->lock);
    free(guest);
    return guest != NULL;
}

void ibx_acceptor_close(struct ibx_acceptor *porch)
{
    struct ibx_connection_request knock;
    if (!porch)
        return;
    pthread_mutex_lock(&porch->lock);
    porch->closing = true;
    pthread_cond_signal(&porch->fewer);
    pthread_mutex_unlock(&porch->lock);
    eventfd_write(porch->stop_fd, 1);
    pthread_join(porch->thread, NULL);
    pthread_mutex_lock(&porch->lock);
    while (porch->threads)
        pthread_cond_wait(&porch->fewer, &porch->lock);
    pthread_mutex_unlock(&porch->lock);
    while (ibx_acceptor_take(porch, &knock))
        ibx_close(knock.conn);
    ibx_listener_close(porch->listener);
    close(porch->ready_fd);
    close(porch->stop_fd);
    pthread_mutex_destroy(&porch->lock);
    pthread_cond_destroy(&porch->fewer);
    free(porch);
}
