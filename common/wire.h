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

static inline void ibx_put_uint(struct ibx_writer *w, uint64_t value, unsigned bytes)
{
    uint8_t out[8];
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
    ibx_put_bytes(w, out, bytes);
}

static inline void ibx_put_u8(struct ibx_writer *w, uint8_t v)
{
    ibx_put_uint(w, v, 1);
}
static inline void ibx_put_u16(struct ibx_writer *w, uint16_t v)
{
    ibx_put_uint(w, v, 2);
}
static inline void ibx_put_u32(struct ibx_writer *w, uint32_t v)
{
    ibx_put_uint(w, v, 4);
}
static inline void ibx_put_u64(struct ibx_writer *w, uint64_t v)
{
    ibx_put_uint(w, v, 8);
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

static inline uint64_t ibx_get_uint(struct ibx_reader *r, unsigned bytes)
{
    const uint8_t *p = ibx_get_bytes(r, bytes);
    uint64_t value = 0;
    for (unsigned i = 0; p && i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static inline uint8_t ibx_get_u8(struct ibx_reader *r)
{
    return (uint8_t)ibx_get_uint(r, 1);
}
static inline uint16_t ibx_get_u16(struct ibx_reader *r)
{
    return (uint16_t)ibx_get_uint(r, 2);
}
static inline uint32_t ibx_get_u32(struct ibx_reader *r)
{
    return (uint32_t)ibx_get_uint(r, 4);
}
static inline uint64_t ibx_get_u64(struct ibx_reader *r)
{
    return ibx_get_uint(r, 8);
}

/* 0 or a negative errno, as Linux has them; -EPROTO in place of anything else. */
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
