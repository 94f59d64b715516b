/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/channel/channel.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 16
#define A_TURN 4096 /* messages that one call takes at most: more than can wait for it */

struct ibx_channel_item {
    struct ibx_channel_item *next;
    size_t length;
    uint8_t bytes[];
};

void ibx_channel_init(struct ibx_channel *channel, struct ibx_conn *conn)
{
    *channel = (struct ibx_channel){.conn = conn};
    channel->tail = &channel->head;
}

static int enqueue(struct ibx_channel *channel, const uint8_t *bytes, size_t length)
{
    struct ibx_channel_item *item = malloc(sizeof(*item) + length);
    if (!item)
        return -ENOMEM;
    item->next = NULL;
    item->length = length;
    memcpy(item->bytes, bytes, length);
    *channel->tail = item;
    channel->tail = &item->next;
    return 0;
}

static int try_send(struct ibx_channel *channel, const struct ibx_migrate_any *message)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    if (!channel->conn)
        return -ENOTCONN;
    ssize_t length = ibx_migrate_encode(message, bytes, sizeof(bytes));
    if (length < 0)
        return (int)length;
    struct iovec iov = {bytes, (size_t)length};
    const unsigned flags = message->type == IBX_MIGRATE_ABORT ? 0 : IBX_SPARING;
    int rc = channel->head ? -EAGAIN : ibx_send(channel->conn, &iov, 1, 0, flags);
    return rc == -EAGAIN ? enqueue(channel, bytes, (size_t)length) : rc;
}

int ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                     struct ibx_error *err)
{
    int rc = try_send(channel, message);
    return rc ? ibx_error_set(err, rc, "%s could not be sent: %s",
                              ibx_migrate_message_name(message->type), strerror(-rc))
              : 0;
}

int ibx_channel_send_plain(struct ibx_channel *channel, enum ibx_migrate_message type,
                           struct ibx_error *err)
{
    return ibx_channel_send(channel, &(struct ibx_migrate_any){.type = type}, err);
}

static void queue_drop(struct ibx_channel *channel)
{
    while (channel->head) {
        struct ibx_channel_item *item = channel->head;
        channel->head = item->next;
        free(item);
    }
    channel->tail = &channel->head;
}

int ibx_channel_send_abort(struct ibx_channel *channel, const char *reason)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ABORT};
    queue_drop(channel);
    strncpy(message.is.reason, reason, sizeof(message.is.reason) - 1);
    return ibx_channel_send(channel, &message, NULL);
}

static int flush(struct ibx_channel *channel)
{
    while (channel->head) {
        struct ibx_channel_item *item = channel->head;
        struct iovec iov = {item->bytes, item->length};
        int rc = ibx_send(channel->conn, &iov, 1, 0, IBX_SPARING);
        if (rc)
            return rc == -EAGAIN ? 0 : rc;
        channel->head = item->next;
        if (!channel->head)
            channel->tail = &channel->head;
        free(item);
    }
    return 0;
}

static int lost(const struct ibx_channel *channel, int code, struct ibx_error *err)
{
    const char *reason = ibx_conn_reason(channel->conn);
    return ibx_error_set(err, code < 0 ? code : -ECONNRESET, "the connection with %s is lost: %s",
                         ibx_conn_path(channel->conn)->peer,
                         reason[0] ? reason : "the other side closed it");
}

static int take_message(const struct ibx_event *event, ibx_channel_handler handle, void *context,
                        struct ibx_error *err)
{
    struct ibx_migrate_any message;
    int rc = ibx_migrate_decode(event->data, event->length, &message, err);
    if (rc)
        return rc;
    rc = handle(context, &message);
    ibx_migrate_message_free(&message);
    return rc;
}

/* `at_once`: how many events are taken from the connection together; after an error of `handle` the
 * rest of them is lost. A_TURN bounds the loop: a peer that sends faster than its messages are
 * handled does not keep the caller here. */
static int take(struct ibx_channel *channel, int at_once, ibx_channel_handler handle, void *context,
                struct ibx_error *err)
{
    struct ibx_event events[EVENTS];
    int n = 0, rc = 0, end = 0;
    if (!channel->conn)
        return 0;
    for (int left = A_TURN; !rc && left > 0; left -= n) {
        if ((n = ibx_poll(channel->conn, events, at_once)) <= 0)
            break;
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_CLOSED && !rc) /* otherwise `rc` says more */
                end = lost(channel, events[i].status, err);
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            if (!rc)
                rc = take_message(&events[i], handle, context, err);
            ibx_message_release(channel->conn, &events[i]);
        }
    }
    if (!rc && !end && n < 0)
        end = lost(channel, n, err);
    if (!rc && !end && flush(channel))
        end = lost(channel, 0, err);
    return rc ? rc : end;
}

int ibx_channel_take(struct ibx_channel *channel, ibx_channel_handler handle, void *context,
                     struct ibx_error *err)
{
    return take(channel, EVENTS, handle, context, err);
}

int ibx_channel_arm(struct ibx_channel *channel, int *fd)
{
    *fd = channel->conn ? ibx_fd(channel->conn) : -1;
    return channel->conn ? ibx_arm(channel->conn) : 0;
}

bool ibx_channel_idle(const struct ibx_channel *channel)
{
    return !channel->head;
}

size_t ibx_channel_room(const struct ibx_channel *channel)
{
    size_t max = ibx_conn_caps(channel->conn)->message_max;
    return (max < IBX_MIGRATE_MESSAGE ? max : IBX_MIGRATE_MESSAGE) - 1;
}

int ibx_channel_check_room(const struct ibx_conn *conn, struct ibx_error *err)
{
    const size_t max = ibx_conn_caps(conn)->message_max;
    return max >= IBX_MIGRATE_MESSAGE_LEAST
               ? 0
               : ibx_error_set(err, -EMSGSIZE,
                               "the connection with %s takes messages of %zu bytes, and %u are "
                               "needed: leave message= out of the URIs at both ends",
                               ibx_conn_path(conn)->peer, max, IBX_MIGRATE_MESSAGE_LEAST);
}

static int ignore(void *context, const struct ibx_migrate_any *message)
{
    (void)context, (void)message;
    return 0;
}

int ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handle, void *context,
                           uint64_t deadline_ns, struct ibx_error *err)
{
    struct pollfd wait = {.events = POLLIN};
    int rc = 0;
    while (channel->conn && !(rc = take(channel, 1, handle, context, err)) &&
           ibx_now_ns() < deadline_ns)
        if (!ibx_channel_arm(channel, &wait.fd))
            poll(&wait, 1, ibx_ms_until(deadline_ns) < 100 ? ibx_ms_until(deadline_ns) : 100);
    return rc;
}

void ibx_channel_linger(struct ibx_channel *channel, uint64_t deadline_ns)
{
    ibx_channel_take_until(channel, ignore, NULL, deadline_ns, NULL);
}

void ibx_channel_fini(struct ibx_channel *channel)
{
    queue_drop(channel);
    ibx_close(channel->conn);
    ibx_channel_init(channel, NULL);
}
