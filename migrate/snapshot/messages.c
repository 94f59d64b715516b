/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/snapshot.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int take_version(struct ibx_reader *r, struct ibx_error *err)
{
    const uint32_t magic = ibx_get_u32(r);
    const uint16_t version = ibx_get_u16(r);
    if (r->failed || magic != IBX_SNAPSHOT_MAGIC)
        return -EPROTO;
    if (version != IBX_SNAPSHOT_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT,
                             "the other side speaks version %u of the snapshot protocol, this "
                             "ib-migrate version %u: use one of the same release at both ends",
                             version, IBX_SNAPSHOT_VERSION);
    return 0;
}

static int take_open(struct ibx_reader *r, struct ibx_snapshot_any *m, struct ibx_error *err)
{
    const int rc = take_version(r, err);
    const uint8_t whole = ibx_get_u8(r);
    m->whole = whole;
    return rc ? rc : whole > 1 ? -EPROTO : 0;
}

static void take_id(struct ibx_reader *r, struct ibx_snapshot_any *m)
{
    const uint8_t *id = ibx_get_bytes(r, sizeof(m->id));
    if (id)
        memcpy(m->id, id, sizeof(m->id));
}

static int take_list(struct ibx_reader *r, struct ibx_snapshot_any *m)
{
    take_id(r, m);
    m->regions = ibx_get_u32(r);
    const uint8_t asked = ibx_get_u8(r);
    m->asked = asked;
    return asked <= 1 && !(asked && m->regions) ? 0 : -EPROTO;
}

static void take_rest(struct ibx_reader *r, struct ibx_bytes *bytes)
{
    bytes->bytes = r->data + r->position;
    bytes->length = ibx_reader_left(r);
    r->position = r->length;
}

/* Takes the group's address; port 0: it is a group over verbs. */
static int take_group(struct ibx_reader *r, struct ibx_snapshot_any *m)
{
    const uint8_t length = ibx_get_u8(r);
    const uint8_t *host = length == 4 || length == 16 ? ibx_get_bytes(r, length) : NULL;
    const uint16_t port = ibx_get_u16(r);
    const uint8_t *id = ibx_get_bytes(r, sizeof(m->group.id));
    const uint8_t *sealed = ibx_get_bytes(r, sizeof(m->sealed));
    m->group.rate = ibx_get_u64(r);
    if (!host || !id || !sealed)
        return -EPROTO;
    memcpy(m->group.id, id, sizeof(m->group.id));
    memcpy(m->sealed, sealed, sizeof(m->sealed));
    ibx_address_make(&m->group.address, host, length, htons(port));
    return ibx_multicast_is_group(&m->group.address) &&
                   (m->group.address.ss_family == AF_INET6) == (length == 16)
               ? 0
               : -EPROTO;
}

/* A part of something that has `most` bytes at the most. */
static int take_part(struct ibx_reader *r, struct ibx_snapshot_any *m, uint32_t most)
{
    m->length = ibx_get_u32(r);
    m->offset = ibx_get_u32(r);
    if (r->failed)
        return -EPROTO;
    take_rest(r, &m->bytes);
    return m->bytes.length && m->length <= most && m->offset <= m->length &&
                   m->bytes.length <= m->length - m->offset
               ? 0
               : -EPROTO;
}

static int take_fields(struct ibx_reader *r, struct ibx_snapshot_any *m, struct ibx_error *err)
{
    switch (m->type) {
    case IBX_SNAPSHOT_OPEN:
        return take_open(r, m, err);
    case IBX_SNAPSHOT_MANIFEST:
        return take_part(r, m, IBX_SNAPSHOT_TEXT_MAX);
    case IBX_SNAPSHOT_MAP:
        take_rest(r, &m->bytes);
        return m->bytes.length ? 0 : -EPROTO;
    case IBX_SNAPSHOT_LIST:
        return take_list(r, m);
    case IBX_SNAPSHOT_ASK:
        m->number = ibx_get_u32(r);
        m->at = ibx_get_u64(r);
        m->length = ibx_get_u32(r);
        return m->number < IBX_SNAPSHOT_ASKS && m->length && m->length <= IBX_SNAPSHOT_ASK_MAX
                   ? 0
                   : -EPROTO;
    case IBX_SNAPSHOT_PAGES:
    case IBX_SNAPSHOT_INDEX:
        m->number = m->type == IBX_SNAPSHOT_PAGES ? ibx_get_u32(r) : 0;
        m->offset = ibx_get_u32(r);
        if (r->failed)
            return -EPROTO;
        take_rest(r, &m->bytes);
        return m->bytes.length ? 0 : -EPROTO;
    case IBX_SNAPSHOT_JOIN: {
        const int rc = take_version(r, err);
        take_id(r, m);
        return rc;
    }
    case IBX_SNAPSHOT_GROUP:
        return take_group(r, m);
    case IBX_SNAPSHOT_NO_GROUP:
        m->code = ibx_get_errno(r);
        if (r->failed || !m->code)
            return -EPROTO;
        take_rest(r, &m->bytes);
        return 0;
    case IBX_SNAPSHOT_WANT:
        return take_part(r, m, IBX_SNAPSHOT_WANT_MAX);
    case IBX_SNAPSHOT_HEARD:
        m->through = ibx_get_u64(r);
        m->packets = ibx_get_u64(r);
        return 0;
    case IBX_SNAPSHOT_FED:
        m->packets = ibx_get_u64(r);
        return 0;
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

static void put_group(struct ibx_writer *w, const struct ibx_snapshot_any *m)
{
    struct sockaddr_storage address = m->group.address;
    size_t length = 0;
    const void *host = ibx_address_host((const struct sockaddr *)&address, &length);
    const in_port_t *port = ibx_address_port(&address);
    w->failed |= !host || !port;
    if (w->failed)
        return;
    ibx_put_u8(w, (uint8_t)length);
    ibx_put_bytes(w, host, length);
    ibx_put_u16(w, ntohs(*port));
    ibx_put_bytes(w, m->group.id, sizeof(m->group.id));
    ibx_put_bytes(w, m->sealed, sizeof(m->sealed));
    ibx_put_u64(w, m->group.rate);
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
    case IBX_SNAPSHOT_WANT:
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
        ibx_put_u8(&w, m->asked);
        break;
    case IBX_SNAPSHOT_ASK:
        ibx_put_u32(&w, m->number);
        ibx_put_u64(&w, m->at);
        ibx_put_u32(&w, m->length);
        break;
    case IBX_SNAPSHOT_PAGES:
    case IBX_SNAPSHOT_INDEX:
        if (m->type == IBX_SNAPSHOT_PAGES)
            ibx_put_u32(&w, m->number);
        ibx_put_u32(&w, m->offset);
        ibx_put_bytes(&w, m->bytes.bytes, m->bytes.length);
        break;
    case IBX_SNAPSHOT_JOIN:
        ibx_put_u32(&w, IBX_SNAPSHOT_MAGIC);
        ibx_put_u16(&w, IBX_SNAPSHOT_VERSION);
        ibx_put_bytes(&w, m->id, sizeof(m->id));
        break;
    case IBX_SNAPSHOT_GROUP:
        put_group(&w, m);
        break;
    case IBX_SNAPSHOT_NO_GROUP:
        ibx_put_u32(&w, (uint32_t)m->code);
        ibx_put_bytes(&w, m->bytes.bytes, m->bytes.length);
        break;
    case IBX_SNAPSHOT_HEARD:
        ibx_put_u64(&w, m->through);
        ibx_put_u64(&w, m->packets);
        break;
    case IBX_SNAPSHOT_FED:
        ibx_put_u64(&w, m->packets);
        break;
    }
    return w.failed ? -EMSGSIZE : (ssize_t)w.length;
}

int ibx_snapshot_send_unless(struct ibx_conn *conn, const struct ibx_snapshot_any *message,
                             const _Atomic bool *ends, uint64_t deadline_ns, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    const ssize_t length = ibx_snapshot_encode(message, bytes, sizeof(bytes));
    return length < 0
               ? ibx_error_set(err, (int)length, "a message is longer than %u bytes",
                               IBX_MIGRATE_MESSAGE)
               : ibx_snapshot_send_bytes(conn, bytes, (size_t)length, ends, deadline_ns, err);
}

int ibx_snapshot_send(struct ibx_conn *conn, const struct ibx_snapshot_any *message,
                      uint64_t deadline_ns, struct ibx_error *err)
{
    return ibx_snapshot_send_unless(conn, message, NULL, deadline_ns, err);
}

int ibx_snapshot_send_bytes(struct ibx_conn *conn, void *bytes, size_t length,
                            const _Atomic bool *ends, uint64_t deadline_ns, struct ibx_error *err)
{
    struct iovec iov = {bytes, length};
    int rc = ibx_send(conn, &iov, 1, 0, 0);
    while (rc == -EAGAIN && ibx_now_ns() < deadline_ns && !(ends && *ends)) {
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
