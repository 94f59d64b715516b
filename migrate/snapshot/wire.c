/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"
#include "common/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int take_reason(struct ibx_reader *r, char *reason, size_t size)
{
    const size_t length = ibx_reader_left(r);
    if (!length || length >= size)
        return -EPROTO;
    memcpy(reason, ibx_get_bytes(r, length), length);
    reason[length] = '\0';
    ibx_text_sanitize(reason);
    return 0;
}

static int take_open(struct ibx_reader *r, struct ibx_snapshot_any *m, struct ibx_error *err)
{
    const uint32_t magic = ibx_get_u32(r);
    const uint16_t version = ibx_get_u16(r);
    const uint8_t whole = ibx_get_u8(r);
    m->whole = whole;
    if (r->failed || magic != IBX_SNAPSHOT_MAGIC || whole > 1)
        return -EPROTO;
    if (version != IBX_SNAPSHOT_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT,
                             "the other side speaks version %u of the snapshot protocol, this "
                             "ib-migrate version %u: use one of the same release at both ends",
                             version, IBX_SNAPSHOT_VERSION);
    return 0;
}

static int take_list(struct ibx_reader *r, struct ibx_snapshot_any *m)
{
    const uint8_t *id = ibx_get_bytes(r, sizeof(m->id));
    if (id)
        memcpy(m->id, id, sizeof(m->id));
    m->regions = ibx_get_u32(r);
    return id ? 0 : -EPROTO;
}

static void take_rest(struct ibx_reader *r, struct ibx_bytes *bytes)
{
    bytes->bytes = r->data + r->position;
    bytes->length = ibx_reader_left(r);
    r->position = r->length;
}

static int take_fields(struct ibx_reader *r, struct ibx_snapshot_any *m, struct ibx_error *err)
{
    switch (m->type) {
    case IBX_SNAPSHOT_OPEN:
        return take_open(r, m, err);
    case IBX_SNAPSHOT_MANIFEST:
        m->length = ibx_get_u32(r);
        m->offset = ibx_get_u32(r);
        if (r->failed)
            return -EPROTO;
        take_rest(r, &m->bytes);
        return m->bytes.length && m->length <= IBX_SNAPSHOT_TEXT_MAX && m->offset <= m->length &&
                       m->bytes.length <= m->length - m->offset
                   ? 0
                   : -EPROTO;
    case IBX_SNAPSHOT_MAP:
        take_rest(r, &m->bytes);
        return m->bytes.length ? 0 : -EPROTO;
    case IBX_SNAPSHOT_LIST:
        return take_list(r, m);
    case IBX_SNAPSHOT_REFUSED:
        return take_reason(r, m->reason, sizeof(m->reason));
    }
    return -EPROTO;
}

int ibx_snapshot_decode(const void *data, size_t length, struct ibx_snapshot_any *message,
                        struct ibx_error *err)
{
    struct ibx_reader r = ibx_reader_of(data, length);
    struct ibx_error why = {0};
    *message = (struct ibx_snapshot_any){.type = ibx_get_u8(&r)};
    const unsigned type = message->type;
    int rc = r.failed ? -EPROTO : take_fields(&r, message, &why);
    if (!rc && (r.failed || ibx_reader_left(&r)))
        rc = -EPROTO;
    if (why.code)
        return ibx_error_set(err, why.code, "%s", why.message);
    return rc ? ibx_error_set(err, rc,
                              "a message of %zu bytes that begins with %u is none of a snapshot's",
                              length, type)
              : 0;
}

ssize_t ibx_snapshot_encode(const struct ibx_snapshot_any *m, void *out, size_t size)
{
    struct ibx_writer w = ibx_writer_of(out, size);
    ibx_put_u8(&w, (uint8_t)m->type);
    switch (m->type) {
    case IBX_SNAPSHOT_OPEN:
        ibx_put_u32(&w, IBX_SNAPSHOT_MAGIC);
        ibx_put_u16(&w, IBX_SNAPSHOT_VERSION);
        ibx_put_u8(&w, m->whole);
        break;
    case IBX_SNAPSHOT_MANIFEST:
        ibx_put_u32(&w, m->length);
        ibx_put_u32(&w, m->offset);
        ibx_put_bytes(&w, m->bytes.bytes, m->bytes.length);
        break;
    case IBX_SNAPSHOT_MAP:
        ibx_put_bytes(&w, m->bytes.bytes, m->bytes.length);
        break;
    case IBX_SNAPSHOT_LIST:
        ibx_put_bytes(&w, m->id, sizeof(m->id));
        ibx_put_u32(&w, m->regions);
        break;
    case IBX_SNAPSHOT_REFUSED:
        ibx_put_bytes(&w, m->reason, strnlen(m->reason, sizeof(m->reason)));
        break;
    }
    return w.failed ? -EMSGSIZE : (ssize_t)w.length;
}

int ibx_snapshot_send(struct ibx_conn *conn, const struct ibx_snapshot_any *message,
                      uint64_t deadline_ns, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    const ssize_t length = ibx_snapshot_encode(message, bytes, sizeof(bytes));
    return length < 0 ? ibx_error_set(err, (int)length, "a message is longer than %u bytes",
                                      IBX_MIGRATE_MESSAGE)
                      : ibx_snapshot_send_bytes(conn, bytes, (size_t)length, deadline_ns, err);
}

int ibx_snapshot_send_bytes(struct ibx_conn *conn, void *bytes, size_t length, uint64_t deadline_ns,
                            struct ibx_error *err)
{
    struct iovec iov = {bytes, length};
    int rc = ibx_send(conn, &iov, 1, 0, 0);
    while (rc == -EAGAIN && ibx_now_ns() < deadline_ns) {
        struct ibx_event event;
        const int n = ibx_poll(conn, &event, 1);
        if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "the other side has closed the connection: %s",
                                 ibx_conn_reason(conn));
        if (n && event.type == IBX_EVENT_MESSAGE) {
            ibx_message_release(conn, &event);
            return ibx_error_set(err, -EPROTO, "the other side sent a message out of turn");
        }
        if (!n)
            ibx_wait(conn, 100);
        rc = ibx_send(conn, &iov, 1, 0, 0);
    }
    return rc ? ibx_error_set(err, rc == -EAGAIN ? -ETIMEDOUT : rc,
                              "a message of %zu bytes could not be sent: %s", length,
                              strerror(rc == -EAGAIN ? ETIMEDOUT : -rc))
              : 0;
}
