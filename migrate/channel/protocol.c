/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Encodes and decodes all messages by the tables of message_fields.c, so that both sides agree. */
#include "migrate/channel/fields.h"

#include "common/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ to bytes */

static int check_range(const struct field *field, uint64_t value, struct ibx_error *err)
{
    if (value >= field->min && value <= field->max)
        return 0;
    const bool low = value < field->min;
    return ibx_error_set(err, -EPROTO, "%s is %" PRIu64 ": at %s %" PRIu64, field->name, value,
                         low ? "least" : "most", low ? field->min : field->max);
}

/* Checks a FIELD_BYTES or FIELD_TEXT at `at` against its `min`. */
static int check_content(const struct field *field, const uint8_t *at, struct ibx_error *err)
{
    if (!field->min || any_set(at, field->kind == FIELD_TEXT ? 1 : field->size))
        return 0;
    return ibx_error_set(err, -EPROTO, "%s is %s", field->name,
                         field->kind == FIELD_TEXT ? "empty" : "all zeros");
}

static uint64_t load(const void *at, size_t size)
{
    return size == 1   ? *(const uint8_t *)at
           : size == 2 ? *(const uint16_t *)at
           : size == 4 ? *(const uint32_t *)at
                       : *(const uint64_t *)at;
}

static void store(void *at, size_t size, uint64_t value)
{
    if (size == 1)
        *(uint8_t *)at = (uint8_t)value;
    else if (size == 2)
        *(uint16_t *)at = (uint16_t)value;
    else if (size == 4)
        *(uint32_t *)at = (uint32_t)value;
    else
        *(uint64_t *)at = value;
}

static int put_fields(struct ibx_writer *w, const struct field *field, const uint8_t *content)
{
    int rc = 0;
    for (; field && field->kind && !rc; field++) {
        const uint8_t *at = content + field->at;
        switch (field->kind) {
        case FIELD_HEAD:
            ibx_put_u32(w, IBX_MIGRATE_MAGIC);
            ibx_put_u16(w, IBX_MIGRATE_VERSION);
            break;
        case FIELD_UINT:
            rc = check_range(field, load(at, field->size), NULL);
            ibx_put_uint(w, load(at, field->size), (unsigned)field->size);
            break;
        case FIELD_BYTES:
            rc = check_content(field, at, NULL);
            ibx_put_bytes(w, at, field->size);
            break;
        case FIELD_TEXT:
            rc = check_content(field, at, NULL);
            ibx_put_string(w, (const char *)at);
            break;
        case FIELD_REMOTE:
            ibx_remote_put(w, (const struct ibx_remote *)(const void *)at);
            break;
        case FIELD_LIST: {
            const uint64_t count = load(content + field->count_at, 2);
            rc = check_range(field, count, NULL);
            ibx_put_u16(w, (uint16_t)count);
            for (uint64_t i = 0; !rc && i < count; i++)
                rc = put_fields(w, field->items, at + i * field->size);
            break;
        }
        default: {
            const struct ibx_bytes *rest = (const void *)at;
            rc = rest->length ? 0 : -EPROTO;
            ibx_put_bytes(w, rest->bytes, rest->length);
        }
        }
    }
    return rc;
}

static const void *content_of(const struct ibx_migrate_any *message)
{
    return message->type == IBX_MIGRATE_HELLO    ? (const void *)message->is.hello
           : message->type == IBX_MIGRATE_ANSWER ? (const void *)message->is.answer
                                                 : (const void *)&message->is;
}

ssize_t ibx_migrate_encode(const struct ibx_migrate_any *message, void *out, size_t size)
{
    const struct message *kind = ibx_message_of((unsigned)message->type);
    struct ibx_writer w =
        ibx_writer_of(out, size < IBX_MIGRATE_MESSAGE ? size : IBX_MIGRATE_MESSAGE);
    if (!kind)
        return -EINVAL;
    ibx_put_u8(&w, (uint8_t)message->type);
    if (put_fields(&w, kind->fields, content_of(message)) ||
        (kind->check && kind->check(content_of(message), NULL)))
        return -EINVAL;
    return w.failed ? -EMSGSIZE : (ssize_t)w.length;
}

/* ------------------------------------------------------------ and back */

static int get_head(struct ibx_reader *r, struct ibx_error *err)
{
    const uint32_t magic = ibx_get_u32(r);
    const uint16_t version = ibx_get_u16(r);
    if (r->failed)
        return 0; /* get_message() reports what is too short */
    if (magic != IBX_MIGRATE_MAGIC)
        return ibx_error_set(err, -EPROTO, "the peer does not speak ib-migrate");
    if (version != IBX_MIGRATE_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT,
                             "the peer speaks version %u of the protocol of ib-migrate, this is "
                             "version %u: install the same ibx on both hosts",
                             version, IBX_MIGRATE_VERSION);
    return 0;
}

/* Returns an error for a bad value; if the message is too short, only r->failed is set. */
static int get_fields(struct ibx_reader *r, const struct field *field, uint8_t *content,
                      struct ibx_error *err)
{
    int rc = 0;
    for (; field && field->kind && !rc && !r->failed; field++) {
        uint8_t *at = content + field->at;
        switch (field->kind) {
        case FIELD_HEAD:
            rc = get_head(r, err);
            break;
        case FIELD_UINT: {
            const uint64_t value = ibx_get_uint(r, (unsigned)field->size);
            rc = r->failed ? 0 : check_range(field, value, err);
            if (!rc)
                store(at, field->size, value);
            break;
        }
        case FIELD_BYTES: {
            const uint8_t *bytes = ibx_get_bytes(r, field->size);
            if (bytes)
                memcpy(at, bytes, field->size);
            rc = r->failed ? 0 : check_content(field, at, err);
            break;
        }
        case FIELD_TEXT:
            ibx_get_string(r, (char *)at, field->size);
            ibx_text_sanitize((char *)at);
            rc = r->failed ? 0 : check_content(field, at, err);
            break;
        case FIELD_REMOTE:
            ibx_remote_get(r, (struct ibx_remote *)(void *)at);
            break;
        case FIELD_LIST: {
            const uint16_t count = ibx_get_u16(r);
            rc = r->failed ? 0 : check_range(field, count, err);
            store(content + field->count_at, 2, count);
            for (unsigned i = 0; !rc && i < count; i++)
                rc = get_fields(r, field->items, at + i * field->size, err);
            break;
        }
        default: {
            struct ibx_bytes *rest = (void *)at;
            rest->length = ibx_reader_left(r);
            rest->bytes = ibx_get_bytes(r, rest->length);
            rc = rest->length ? 0 : ibx_error_set(err, -EPROTO, "it is empty");
        }
        }
    }
    return rc;
}

static int get_message(struct ibx_reader *r, struct ibx_migrate_any *message, struct ibx_error *err)
{
    const struct message *kind = ibx_message_of((unsigned)message->type);
    if (!kind)
        return ibx_error_set(err, -EPROTO, "message type %u is not known", (unsigned)message->type);
    void *content = kind->heap ? calloc(1, kind->heap) : &message->is;
    if (!content)
        return ibx_error_set(err, -ENOMEM, "no memory for %s", kind->name);
    if (message->type == IBX_MIGRATE_HELLO)
        message->is.hello = content;
    if (message->type == IBX_MIGRATE_ANSWER)
        message->is.answer = content;
    int rc = get_fields(r, kind->fields, content, err);
    if (!rc && r->failed)
        rc = ibx_error_set(err, -EPROTO,
                           "it is truncated, or one of its fields is too long or is not text");
    if (!rc && kind->check)
        rc = kind->check(content, err);
    if (!rc && ibx_reader_left(r))
        rc = ibx_error_set(err, -EPROTO, "%zu bytes follow its end", ibx_reader_left(r));
    return rc;
}

int ibx_migrate_decode(const void *data, size_t length, struct ibx_migrate_any *message,
                       struct ibx_error *err)
{
    struct ibx_reader r = ibx_reader_of(data, length);
    struct ibx_migrate_any found;
    if (!length || length > IBX_MIGRATE_MESSAGE)
        return ibx_error_set(err, -EPROTO, "a message has %zu bytes, and must have 1 to %u", length,
                             IBX_MIGRATE_MESSAGE);
    memset(&found, 0, sizeof(found));
    found.type = (enum ibx_migrate_message)ibx_get_u8(&r);
    int rc = get_message(&r, &found, err);
    if (!rc) {
        *message = found;
        return 0;
    }
    if (rc == -EPROTO)
        ibx_error_prefix(err, rc, "%s from the peer is not valid",
                         ibx_migrate_message_name(found.type));
    ibx_migrate_message_free(&found);
    return rc;
}

void ibx_migrate_message_free(struct ibx_migrate_any *message)
{
    if (message->type == IBX_MIGRATE_HELLO && message->is.hello)
        free(message->is.hello->description);
    if (message->type == IBX_MIGRATE_HELLO || message->type == IBX_MIGRATE_ANSWER)
        free((void *)(uintptr_t)content_of(message));
    memset(message, 0, sizeof(*message));
}
