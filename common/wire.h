/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Field-by-field little-endian encoding for everything that crosses a wire. Once a field does not
 * fit, all later calls of a writer do nothing and those of a reader return zeros. So check `failed`
 * once, at the end.
 */
#ifndef IBX_COMMON_WIRE_H
#define IBX_COMMON_WIRE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ibx_writer {
    uint8_t *data;
    size_t capacity; /* bytes */
    size_t length;   /* bytes written so far */
    bool failed;     /* a field did not fit */
};

struct ibx_reader {
    const uint8_t *data;
    size_t length;   /* bytes */
    size_t position; /* bytes consumed */
    bool failed;     /* a field ran past the end */
};

/* No designated initialisers: this is also compiled as C++. */
static inline struct ibx_writer ibx_writer_of(void *data, size_t capacity)
{
    struct ibx_writer writer = {(uint8_t *)data, capacity, 0, false};
    return writer;
}

static inline struct ibx_reader ibx_reader_of(const void *data, size_t length)
{
    struct ibx_reader reader = {(const uint8_t *)data, length, 0, false};
    return reader;
}

static inline size_t ibx_reader_left(const struct ibx_reader *r)
{
    return r->failed ? 0 : r->length - r->position;
}

static inline void ibx_put_bytes(struct ibx_writer *w, const void *bytes, size_t n)
{
    if (w->failed || n > w->capacity - w->length) {
        w->failed = true;
        return;
    }
    if (n)
        memcpy(w->data + w->length, bytes, n);
    w->length += n;
}

/* From this host's order to little-endian, or back. <endian.h> has these only if the program that
 * includes this header asks for more than the C standard. */
static inline uint16_t ibx_le16(uint16_t v)
{
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? v : __builtin_bswap16(v);
}
static inline uint32_t ibx_le32(uint32_t v)
{
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? v : __builtin_bswap32(v);
}
static inline uint64_t ibx_le64(uint64_t v)
{
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? v : __builtin_bswap64(v);
}

/* Writes an integer of 1 to 8 bytes, for tables of fields. */
static inline void ibx_put_uint(struct ibx_writer *w, uint64_t value, unsigned bytes)
{
    const uint64_t little = ibx_le64(value);
    ibx_put_bytes(w, &little, bytes);
}

/* These make one store for each field. Byte by byte, the compiler makes some 75 instructions for 8
 * bytes. */
static inline void ibx_put_u8(struct ibx_writer *w, uint8_t v)
{
    ibx_put_bytes(w, &v, sizeof(v));
}
static inline void ibx_put_u16(struct ibx_writer *w, uint16_t v)
{
    const uint16_t little = ibx_le16(v);
    ibx_put_bytes(w, &little, sizeof(little));
}
static inline void ibx_put_u32(struct ibx_writer *w, uint32_t v)
{
    const uint32_t little = ibx_le32(v);
    ibx_put_bytes(w, &little, sizeof(little));
}
static inline void ibx_put_u64(struct ibx_writer *w, uint64_t v)
{
    const uint64_t little = ibx_le64(v);
    ibx_put_bytes(w, &little, sizeof(little));
}

/* A string of at most 65535 bytes: u16 length, then the bytes without a NUL. */
static inline void ibx_put_string(struct ibx_writer *w, const char *s)
{
    size_t n = strlen(s);
    if (n > UINT16_MAX) {
        w->failed = true;
        return;
    }
    ibx_put_u16(w, (uint16_t)n);
    ibx_put_bytes(w, s, n);
}

/* The next n bytes inside the reader's buffer, or NULL. */
static inline const uint8_t *ibx_get_bytes(struct ibx_reader *r, size_t n)
{
    if (r->failed || n > r->length - r->position) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->data + r->position;
    r->position += n;
    return p;
}

/* Reads an integer of 1 to 8 bytes, for tables of fields. */
static inline uint64_t ibx_get_uint(struct ibx_reader *r, unsigned bytes)
{
    uint64_t little = 0;
    const uint8_t *p = ibx_get_bytes(r, bytes);
    if (p)
        memcpy(&little, p, bytes);
    return ibx_le64(little);
}

static inline uint8_t ibx_get_u8(struct ibx_reader *r)
{
    const uint8_t *p = ibx_get_bytes(r, 1);
    return p ? *p : (uint8_t)0;
}
static inline uint16_t ibx_get_u16(struct ibx_reader *r)
{
    uint16_t little = 0;
    const uint8_t *p = ibx_get_bytes(r, sizeof(little));
    if (p)
        memcpy(&little, p, sizeof(little));
    return ibx_le16(little);
}
static inline uint32_t ibx_get_u32(struct ibx_reader *r)
{
    uint32_t little = 0;
    const uint8_t *p = ibx_get_bytes(r, sizeof(little));
    if (p)
        memcpy(&little, p, sizeof(little));
    return ibx_le32(little);
}
static inline uint64_t ibx_get_u64(struct ibx_reader *r)
{
    uint64_t little = 0;
    const uint8_t *p = ibx_get_bytes(r, sizeof(little));
    if (p)
        memcpy(&little, p, sizeof(little));
    return ibx_le64(little);
}

/* A result: 0 or a negative errno as Linux numbers them; -EPROTO in place of anything else. */
static inline int ibx_get_errno(struct ibx_reader *r)
{
    int code = (int)ibx_get_u32(r);
    return code > 0 || code < -4095 ? -EPROTO : code;
}

/* Copies a string into `out` (always NUL-terminated); fails when it is longer than size-1 or holds
 * a NUL byte. */
static inline void ibx_get_string(struct ibx_reader *r, char *out, size_t size)
{
    size_t n = ibx_get_u16(r);
    const uint8_t *p = ibx_get_bytes(r, n);
    out[0] = '\0';
    if (!p)
        return;
    if (n >= size || memchr(p, 0, n)) {
        r->failed = true;
        return;
    }
    memcpy(out, p, n);
    out[n] = '\0';
}

#endif
