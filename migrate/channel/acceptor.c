/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/channel/channel.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SILENT  (-ENOMSG) /* the peer closed the connection without a message */
#define LOOK_MS 100       /* between two looks whether to end */

/* One connection, which has a place until ibx_acceptor_take() hands it over. */
struct place {
    struct place *next;
    struct ibx_acceptor *acceptor;
    struct ibx_peer peer;
    bool reserved;                 /* it counts as one of IBX_ACCEPTOR_RESERVED */
    bool ready;                    /* its first message has come */
    struct ibx_conn *establishing; /* as long as ibx_establish() has it */
    struct ibx_connection_request request;
};

struct ibx_acceptor {
    struct ibx_accept_thread *accepts;
    unsigned timeout_ms;
    atomic_uint first_ms; /* of timeout_ms, for the first message */
    atomic_bool ends;     /* no first message is waited for any more */
    int ready_fd;
    pthread_mutex_t lock;     /* protects what follows */
    pthread_cond_t fewer;     /* a thread has ended */
    unsigned threads;         /* one for each place that is not ready */
    bool any_ended;           /* a thread has ended and is not joined yet: `ended` */
    pthread_t ended;          /* the last to end, which joins the one before it */
    struct place *first;      /* in the order in which they came */
    struct ibx_peer expected; /* "" address: nobody; "" name: with any key */
};

/* ---------------------------------------------------------------- places */

static bool is_expected(const struct ibx_peer *expected, const struct ibx_peer *peer)
{
    return expected->address[0] && !strcmp(expected->address, peer->address) &&
           (!expected->name[0] || !strcmp(expected->name, peer->name));
}

/* Appends `place` to the list if there is room for another connection of its peer. */
static bool take_place(struct ibx_acceptor *acceptor, struct place *place)
{
    unsigned reserved = 0, others = 0, own = 0;
    struct place **link = &acceptor->first;
    for (; *link; link = &(*link)->next) {
        const bool other = !(*link)->reserved;
        reserved += !other;
        others += other;
        own += other && ibx_peer_same(&(*link)->peer, &place->peer);
    }
    place->reserved =
        is_expected(&acceptor->expected, &place->peer) && reserved < IBX_ACCEPTOR_RESERVED;
    if (!place->reserved && (others >= IBX_ACCEPTOR_OTHERS || own >= IBX_ACCEPTOR_PEER))
        return false;
    *link = place;
    return true;
}

static void leave(struct ibx_acceptor *acceptor, struct place *place)
{
    struct place **link = &acceptor->first;
    while (*link != place)
        link = &(*link)->next;
    *link = place->next;
}

/* ---------------------------------------------------------------- one request */

/* The next message, decoded. On success the caller releases `event`. */
static int next_message(const struct ibx_acceptor *acceptor, struct ibx_conn *conn,
                        uint64_t deadline_ns, unsigned timeout_ms, struct ibx_event *event,
                        struct ibx_migrate_any *message, struct ibx_error *err)
{
    while (!acceptor->ends) {
        int n = ibx_poll(conn, event, 1);
        if (n < 0 || (n == 1 && event->type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, SILENT, "it closed without a message");
        if (n == 1 && event->type == IBX_EVENT_MESSAGE) {
            int rc = ibx_migrate_decode(event->data, event->length, message, err);
            if (rc)
                ibx_message_release(conn, event);
            return rc;
        }
        if (ibx_now_ns() >= deadline_ns)
            return ibx_error_set(err, -ETIMEDOUT, "no message came within %u ms", timeout_ms);
        ibx_wait(conn, LOOK_MS);
    }
    return ibx_error_set(err, SILENT, "no message is waited for any more");
}

/* The text that a HELLO announces, from the messages that follow it. */
static int take_description(const struct ibx_acceptor *acceptor, struct ibx_conn *conn,
                            uint64_t deadline_ns, struct ibx_migrate_hello *hello,
                            struct ibx_error *err)
{
    const size_t length = hello->description_length;
    size_t got = 0;
    hello->description = calloc(1, length + 1);
    if (!hello->description)
        return ibx_error_set(err, -ENOMEM, "no memory for a description of %zu bytes", length);
    while (got < length) {
        struct ibx_migrate_any message;
        struct ibx_event event;
        int rc =
            next_message(acceptor, conn, deadline_ns, acceptor->timeout_ms, &event, &message, err);
        if (rc)
            return rc;
        const struct ibx_bytes *part = &message.is.description;
        if (message.type != IBX_MIGRATE_DESCRIPTION || part->length > length - got)
            rc = ibx_error_set(err, -EPROTO,
                               "%s where %zu bytes of the description of its VM are expected",
                               ibx_migrate_message_name(message.type), length - got);
        else
            memcpy(hello->description + got, part->bytes, part->length);
        got += rc ? 0 : part->length;
        ibx_migrate_message_free(&message);
        ibx_message_release(conn, &event);
        if (rc)
            return rc;
    }
    return 0;
}

static int first_message(const struct ibx_acceptor *acceptor, struct ibx_conn *conn,
                         struct ibx_migrate_any *first, struct ibx_error *err)
{
    const unsigned first_ms = acceptor->first_ms;
    const uint64_t deadline = ibx_deadline_in_ms(acceptor->timeout_ms);
    struct ibx_event event;
    int rc =
        next_message(acceptor, conn, ibx_deadline_in_ms(first_ms), first_ms, &event, first, err);
    if (rc)
        return rc;
    /* HELLO and JOIN are text and numbers: nothing points into the event. */
    ibx_message_release(conn, &event);
    if (first->type == IBX_MIGRATE_HELLO)
        rc = take_description(acceptor, conn, deadline,
                              (struct ibx_migrate_hello *)(uintptr_t)first->is.hello, err);
    else if (first->type != IBX_MIGRATE_JOIN)
        rc = ibx_error_set(err, -EPROTO, "its first message is %s",
                           ibx_migrate_message_name(first->type));
    if (rc)
        ibx_migrate_message_free(first);
    return rc;
}

/* Logs why a connection is closed, as a warning if it is `trouble`. It is none when a source closes
 * connections without a message: those that it does not need, because it was refused or wants fewer
 * than it has begun. */
static void turned_away(struct ibx_conn *conn, bool trouble, const char *why)
{
    const char *peer = ibx_conn_path(conn)->peer;
    const bool named = strstr(why, peer) != NULL;
    ibx_log(trouble ? IBX_LOG_WARN : IBX_LOG_INFO, "%s%s%s%s", named ? "" : "a connection from ",
            named ? "" : peer, named ? "" : " was turned away: ", why);
    ibx_close(conn);
}

/* Tells the peer why by ABORT, which all versions have alike. What the peer sends may have other
 * fields, and is discarded. */
static void tell_version(const struct ibx_acceptor *acceptor, struct ibx_conn *conn,
                         const char *why)
{
    const uint64_t deadline_ns = ibx_deadline_in_ms(acceptor->first_ms);
    struct ibx_channel channel;
    struct ibx_event event;
    int n;
    ibx_channel_init(&channel, conn);
    if (ibx_channel_send_abort(&channel, why))
        return;
    while (!acceptor->ends && (n = ibx_poll(conn, &event, 1)) >= 0 && ibx_now_ns() < deadline_ns) {
        if (n && event.type == IBX_EVENT_CLOSED)
            return;
        if (n && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(conn, &event);
        else if (!n)
            ibx_wait(conn, LOOK_MS);
    }
}

static int establish(struct place *place, struct ibx_error *err)
{
    const int rc = ibx_establish(place->request.conn, err);
    pthread_mutex_lock(&place->acceptor->lock);
    place->establishing = NULL;
    pthread_mutex_unlock(&place->acceptor->lock);
    return rc;
}

static void *request_main(void *argument)
{
    struct place *place = argument;
    struct ibx_acceptor *acceptor = place->acceptor;
    struct ibx_connection_request *request = &place->request;
    struct ibx_error err = {0};
    int rc = establish(place, &err);
    if (!rc) { /* an authenticated source: padding may follow its first message */
        ibx_receive_ahead(request->conn);
        rc = ibx_channel_check_room(request->conn, &err);
    }
    if (!rc) {
        rc = first_message(acceptor, request->conn, &request->first, &err);
        if (rc == -EPROTONOSUPPORT)
            tell_version(acceptor, request->conn, err.message);
    }
    if (rc)
        turned_away(request->conn, rc != SILENT && !acceptor->ends, err.message);
    pthread_mutex_lock(&acceptor->lock);
    place->ready = !rc;
    if (rc)
        leave(acceptor, place);
    else
        eventfd_write(acceptor->ready_fd, 1);
    const bool any = acceptor->any_ended;
    const pthread_t before = acceptor->ended;
    acceptor->any_ended = true;
    acceptor->ended = pthread_self();
    acceptor->threads--;
    pthread_cond_signal(&acceptor->fewer);
    pthread_mutex_unlock(&acceptor->lock);
    if (rc)
        free(place);
    if (any)
        pthread_join(before, NULL);
    return NULL;
}

/* ---------------------------------------------------------------- a connection comes */

/* Counts the thread of a place before it can end, and takes that back if there is none. */
static bool begin_thread(struct ibx_acceptor *acceptor, struct place *place)
{
    pthread_t thread;
    const bool begun = !ibx_thread_create(&thread, request_main, place);
    if (begun) {
        eventfd_write(acceptor->ready_fd, 1);
        return true;
    }
    pthread_mutex_lock(&acceptor->lock);
    acceptor->threads--;
    leave(acceptor, place);
    pthread_mutex_unlock(&acceptor->lock);
    return false;
}

/* Why the connection cannot have a place and a thread, which closes or hands it over; or NULL. */
static const char *begin_request(struct ibx_acceptor *acceptor, struct ibx_conn *conn)
{
    struct place *place = calloc(1, sizeof(*place));
    if (!place)
        return "there is no memory for it";
    *place = (struct place){.acceptor = acceptor, .establishing = conn, .request.conn = conn};
    ibx_peer_of(conn, &place->peer);
    pthread_mutex_lock(&acceptor->lock);
    const bool taken = take_place(acceptor, place);
    acceptor->threads += taken;
    pthread_mutex_unlock(&acceptor->lock);
    if (taken && begin_thread(acceptor, place))
        return NULL;
    free(place);
    return taken ? "there is no thread for it: " IBX_ERROR_RAISE_TASKS
                 : "too many connections are being set up, from there or in all: try again";
}

static void begin(void *context, struct ibx_conn *conn)
{
    const char *why = begin_request(context, conn);
    if (why)
        turned_away(conn, true, why);
}

/* ---------------------------------------------------------------- all of them */

static void release(struct ibx_acceptor *acceptor)
{
    ibx_accept_thread_close(acceptor->accepts);
    if (acceptor->ready_fd >= 0)
        close(acceptor->ready_fd);
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
    acceptor->timeout_ms = options->timeout_ms;
    acceptor->first_ms = ibx_migrate_first_ms(options);
    pthread_mutex_init(&acceptor->lock, NULL);
    pthread_cond_init(&acceptor->fewer, NULL);
    acceptor->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct ibx_options own = *options;
    snprintf(own.purpose, sizeof(own.purpose), IBX_MIGRATE_PURPOSE);
    own.small_reads = true;
    int rc = acceptor->ready_fd < 0
                 ? ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno))
                 : ibx_accept_thread_open(uri, &own, begin, acceptor, &acceptor->accepts, err);
    if (rc)
        release(acceptor);
    else
        *out = acceptor;
    return rc;
}

const char *ibx_acceptor_uri(const struct ibx_acceptor *acceptor)
{
    return ibx_accept_thread_uri(acceptor->accepts);
}

int ibx_acceptor_fd(const struct ibx_acceptor *acceptor)
{
    return acceptor->ready_fd;
}

void ibx_acceptor_expect(struct ibx_acceptor *acceptor, const struct ibx_conn *conn)
{
    pthread_mutex_lock(&acceptor->lock);
    ibx_peer_of(conn, &acceptor->expected);
    pthread_mutex_unlock(&acceptor->lock);
}

void ibx_acceptor_expect_host(struct ibx_acceptor *acceptor, const char *address, const char *key)
{
    pthread_mutex_lock(&acceptor->lock);
    acceptor->expected = (struct ibx_peer){.name = ""};
    snprintf(acceptor->expected.name, sizeof(acceptor->expected.name), "%s", key);
    snprintf(acceptor->expected.address, IBX_ADDRESS_MAX, "%s", address);
    pthread_mutex_unlock(&acceptor->lock);
}

void ibx_acceptor_first_within(struct ibx_acceptor *acceptor, unsigned ms)
{
    acceptor->first_ms = ms;
}

bool ibx_acceptor_busy(struct ibx_acceptor *acceptor)
{
    pthread_mutex_lock(&acceptor->lock);
    const bool busy = acceptor->threads > 0;
    pthread_mutex_unlock(&acceptor->lock);
    return busy;
}

int ibx_acceptor_take(struct ibx_acceptor *acceptor, struct ibx_connection_request *request)
{
    eventfd_t value;
    pthread_mutex_lock(&acceptor->lock);
    struct place *place = acceptor->first;
    while (place && !place->ready)
        place = place->next;
    if (place) {
        *request = place->request;
        leave(acceptor, place);
    } else {
        eventfd_read(acceptor->ready_fd, &value);
    }
    pthread_mutex_unlock(&acceptor->lock);
    const bool taken = place != NULL;
    free(place);
    return taken;
}

/* A peer that has stopped while its connection is set up, or before its first message, would be
 * waited for as long as its time-outs take. */
static void end_threads(struct ibx_acceptor *acceptor)
{
    acceptor->ends = true;
    pthread_mutex_lock(&acceptor->lock);
    for (const struct place *place = acceptor->first; place; place = place->next)
        if (place->establishing)
            ibx_hang_up(place->establishing);
    while (acceptor->threads)
        ibx_thread_wait(&acceptor->fewer, &acceptor->lock);
    pthread_mutex_unlock(&acceptor->lock);
    if (acceptor->any_ended)
        pthread_join(acceptor->ended, NULL);
}

void ibx_acceptor_close(struct ibx_acceptor *acceptor)
{
    struct ibx_connection_request request;
    if (!acceptor)
        return;
    ibx_accept_thread_end(acceptor->accepts);
    end_threads(acceptor);
    while (ibx_acceptor_take(acceptor, &request)) {
        ibx_close(request.conn);
        ibx_migrate_message_free(&request.first);
    }
    release(acceptor);
}
