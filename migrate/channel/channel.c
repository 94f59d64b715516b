/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/channel/channel.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS 16

struct control_queued {
    struct control_queued *next;
    size_t length;
    uint8_t bytes[];
};

void ibx_channel_init(struct ibx_channel *control, struct ibx_conn *conn)
{
    *control = (struct ibx_channel){.conn = conn};
    control->tail = &control->head;
}

static int enqueue(struct ibx_channel *control, const uint8_t *bytes, size_t length)
{
    struct control_queued *item = malloc(sizeof(*item) + length);
    if (!item)
        return -ENOMEM;
    item->next = NULL;
    item->length = length;
    memcpy(item->bytes, bytes, length);
    *control->tail = item;
    control->tail = &item->next;
    return 0;
}

int ibx_channel_send(struct ibx_channel *control, const struct ibx_migrate_any *message)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    if (!control->conn)
        return -ENOTCONN;
    ssize_t length = ibx_migrate_encode(message, bytes, sizeof(bytes));
    if (length < 0)
        return (int)length;
    control->sent += (uint64_t)length;
    struct iovec iov = {bytes, (size_t)length};
    const unsigned flags = message->type == IBX_MIGRATE_ABORT ? 0 : IBX_SPARING;
    int rc = control->head ? -EAGAIN : ibx_send(control->conn, &iov, 1, 0, flags);
    return rc == -EAGAIN ? enqueue(control, bytes, (size_t)length) : rc;
}

int ibx_channel_send_plain(struct ibx_channel *control, enum ibx_migrate_message type)
{
    struct ibx_migrate_any message = {.type = type};
    return ibx_channel_send(control, &message);
}

static void queue_drop(struct ibx_channel *control)
{
    while (control->head) {
        struct control_queued *item = control->head;
        control->head = item->next;
        free(item);
    }
    control->tail = &control->head;
}

int ibx_channel_send_abort(struct ibx_channel *control, const char *sentence)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ABORT};
    queue_drop(control);
    strncpy(message.is.sentence, sentence, sizeof(message.is.sentence) - 1);
    return ibx_channel_send(control, &message);
}

static int flush(struct ibx_channel *control)
{
    while (control->head) {
        struct control_queued *item = control->head;
        struct iovec iov = {item->bytes, item->length};
        int rc = ibx_send(control->conn, &iov, 1, 0, IBX_SPARING);
        if (rc)
            return rc == -EAGAIN ? 0 : rc;
        control->head = item->next;
        if (!control->head)
            control->tail = &control->head;
        free(item);
    }
    return 0;
}

static int lost(const struct ibx_channel *control, int code, struct ibx_error *err)
{
    const char *reason = ibx_conn_reason(control->conn);
    return ibx_error_set(err, code < 0 ? code : -ECONNRESET, "the connection with %s is lost: %s",
                         ibx_conn_path(control->conn)->peer,
                         reason[0] ? reason : "the other side closed it");
}

static int take_message(const struct ibx_event *event,
                        int (*each)(void *context, const struct ibx_migrate_any *message),
                        void *context, struct ibx_error *err)
{
    struct ibx_migrate_any message;
    int rc = ibx_migrate_decode(event->data, event->length, &message, err);
    if (rc)
        return rc;
    rc = each(context, &message);
    ibx_migrate_message_free(&message);
    return rc;
}

int ibx_channel_take(struct ibx_channel *control,
                     int (*each)(void *context, const struct ibx_migrate_any *message),
                     void *context, struct ibx_error *err)
{
    struct ibx_event events[EVENTS];
    int n, rc = 0, end = 0;
    if (!control->conn)
        return 0;
    while (!rc && (n = ibx_poll(control->conn, events, EVENTS)) > 0) {
        for (int i = 0; i < n; i++) {
            if (events[i].type == IBX_EVENT_CLOSED)
                end = lost(control, events[i].status, err);
            if (events[i].type != IBX_EVENT_MESSAGE)
                continue;
            if (!rc)
                rc = take_message(&events[i], each, context, err);
            ibx_message_release(control->conn, &events[i]);
        }
    }
    if (!rc && !end && n < 0)
        end = lost(control, n, err);
    if (!rc && !end && flush(control))
        end = lost(control, 0, err);
    return rc ? rc : end;
}

int ibx_channel_arm(struct ibx_channel *control, int *fd)
{
    *fd = control->conn ? ibx_fd(control->conn) : -1;
    return control->conn ? ibx_arm(control->conn) : 0;
}

bool ibx_channel_idle(const struct ibx_channel *control)
{
    return !control->head;
}

size_t ibx_channel_room(const struct ibx_channel *control)
{
    size_t max = ibx_conn_caps(control->conn)->message_max;
    return (max < IBX_MIGRATE_MESSAGE ? max : IBX_MIGRATE_MESSAGE) - 1;
}

static int ignore(void *context, const struct ibx_migrate_any *message)
{
    (void)context, (void)message;
    return 0;
}

int ibx_channel_take_until(struct ibx_channel *control,
                           int (*each)(void *context, const struct ibx_migrate_any *message),
                           void *context, uint64_t deadline_ns, struct ibx_error *err)
{
    struct pollfd wait = {.events = POLLIN};
    int rc = 0;
    while (control->conn && !(rc = ibx_channel_take(control, each, context, err)) &&
           ibx_now_ns() < deadline_ns)
        if (!ibx_channel_arm(control, &wait.fd))
            poll(&wait, 1, ibx_ms_until(deadline_ns) < 100 ? ibx_ms_until(deadline_ns) : 100);
    return rc;
}

void ibx_channel_linger(struct ibx_channel *control, uint64_t deadline_ns)
{
    ibx_channel_take_until(control, ignore, NULL, deadline_ns, NULL);
}

void ibx_channel_fini(struct ibx_channel *control)
{
    queue_drop(control);
    ibx_close(control->conn);
    ibx_channel_init(control, NULL);
}
