/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Between message_fields.c, which knows the fields of each message, and protocol.c, which encodes
 * and decodes any of them. */
#ifndef IBX_MIGRATE_CHANNEL_FIELDS_H
#define IBX_MIGRATE_CHANNEL_FIELDS_H

#include "migrate/channel/protocol.h"

#include <stddef.h>

enum field_kind {
    FIELD_END,
    FIELD_HEAD,   /* magic and version; nothing in the struct */
    FIELD_UINT,   /* as long on the wire as in the struct */
    FIELD_BYTES,  /* a fixed number; min 1: not all of them are 0 */
    FIELD_TEXT,   /* a string; min 1: not empty */
    FIELD_REMOTE, /* struct ibx_remote */
    FIELD_LIST,   /* u16 count, then that many structs */
    FIELD_REST,   /* struct ibx_bytes: all that is left, at least one */
};

struct field {
    enum field_kind kind;
    const char *name;  /* in errors */
    size_t at, size;   /* offset in the struct, bytes; LIST: of the array, of one item */
    uint64_t min, max; /* of a UINT or a LIST's count */
    const struct field *items;
    size_t count_at; /* LIST */
};

struct message {
    const char *name;
    const struct field *fields;
    int (*check)(const void *content, struct ibx_error *err);
    size_t heap; /* bytes of the struct that the message points to; 0: it is in the message */
};

/* The fields and checks of this type of message. NULL: there is no such type. */
const struct message *ibx_message_of(unsigned type);

static inline bool any_set(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i])
            return true;
    return false;
}

#endif
