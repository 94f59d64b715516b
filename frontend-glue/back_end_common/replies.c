/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The shape of GVirtuS's replies, and heads of that shape. */
#include "frontend-glue/back_end_common/back_end.h"

#include <stdatomic.h>

/* The shape of all sessions' replies. A session without a reply so far has only this one. */
static _Atomic enum ibx_reply_shape shape_of_all;

void ibx_reply_note_write(struct ibx_reply_watch *watch, const void *bytes, size_t n)
{
    if (!n)
        return;
    if (watch->count < 4)
        watch->sizes[watch->count] = n;
    watch->last_size = n;
    memcpy(watch->last, bytes, n < sizeof(watch->last) ? n : sizeof(watch->last));
    if (n == 4 && !watch->count) {
        struct ibx_reader r = ibx_reader_of(bytes, 4);
        watch->exit_code = (int32_t)ibx_get_u32(&r);
    }
    if (n == 8 && (watch->count == 1 || watch->count == 2)) {
        struct ibx_reader r = ibx_reader_of(bytes, 8);
        *(watch->count == 1 ? &watch->second : &watch->third) = ibx_get_u64(&r);
    }
    watch->count++;
}

/* One case is ambiguous: writes of 4, 8, 8 bytes are a length of 8 and a payload of 8 bytes, or
 * seconds and a length of 0. As seconds, the 8 would be 4e-323. */
static enum ibx_reply_shape shape_of(const struct ibx_reply_watch *watch)
{
    const size_t *sizes = watch->sizes;
    if (watch->count < 2 || watch->count > 4 || sizes[0] != 4 || sizes[1] != 8)
        return IBX_REPLY_ODD;
    if (watch->count == 2)
        return watch->second ? IBX_REPLY_ODD : IBX_REPLY_PLAIN;
    if (watch->count == 3 && watch->second == sizes[2])
        return IBX_REPLY_PLAIN;
    if (sizes[2] != 8 || watch->third != (watch->count == 4 ? sizes[3] : 0))
        return IBX_REPLY_ODD;
    return IBX_REPLY_TIMED;
}

void ibx_reply_note_sync(struct ibx_reply_watch *watch)
{
    if (!watch->count)
        return;
    enum ibx_reply_shape shape = shape_of(watch);
    bool agrees = watch->shape == IBX_REPLY_UNKNOWN || watch->shape == shape;
    watch->shape = agrees ? shape : IBX_REPLY_ODD;
    watch->count = 0;
}

size_t ibx_reply_head(enum ibx_reply_shape shape, int32_t exit_code, double seconds,
                      uint64_t out_length, uint8_t head[IBX_REPLY_HEAD_MAX])
{
    struct ibx_writer w = ibx_writer_of(head, IBX_REPLY_HEAD_MAX);
    ibx_put_u32(&w, (uint32_t)exit_code);
    if (shape == IBX_REPLY_TIMED) {
        uint64_t bits;
        memcpy(&bits, &seconds, sizeof(bits));
        ibx_put_u64(&w, bits);
    }
    ibx_put_u64(&w, out_length);
    return w.length;
}

void ibx_reply_know(enum ibx_reply_shape shape)
{
    if (shape != IBX_REPLY_ODD && atomic_load(&shape_of_all) != shape)
        atomic_store(&shape_of_all, shape);
}

enum ibx_reply_shape ibx_reply_shape_known(const struct ibx_reply_watch *watch)
{
    return watch->shape == IBX_REPLY_UNKNOWN ? atomic_load(&shape_of_all) : watch->shape;
}

bool ibx_reply_can_read(const struct ibx_reply_watch *watch)
{
    const enum ibx_reply_shape shape = ibx_reply_shape_known(watch);
    return shape == IBX_REPLY_PLAIN || shape == IBX_REPLY_TIMED;
}
