/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `name NUL, u64 length, body`: a frame that is parsed and encoded again has the same bytes, and
 * its values are consistent. The byte before it chooses replies to watch. */
#include "frontend-glue/device_copies/copies.h"

#include "common/wire.h"
#include "tests/fuzz/require.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void put_tail(struct ibx_writer *w, const struct ibx_frame *f)
{
    if (f->call == IBX_FRAME_MEMCPY_2D) {
        ibx_put_u64(w, f->dpitch);
        ibx_put_u64(w, f->spitch);
        ibx_put_u64(w, f->width);
        ibx_put_u64(w, f->height);
    } else {
        ibx_put_u64(w, f->width);
    }
    if (f->call == IBX_FRAME_TO_SYMBOL)
        ibx_put_u64(w, f->symbol_offset);
    ibx_put_u32(w, (uint32_t)f->kind);
    if (f->call == IBX_FRAME_MEMCPY_ASYNC)
        ibx_put_u64(w, f->stream);
}

/* Of what precedes a symbol's payload, only the address is kept. */
static void put_symbol(struct ibx_writer *w, const struct ibx_frame *f, const uint8_t *body)
{
    char address[24];
    size_t length =
        1 + (size_t)snprintf(address, sizeof(address), "%p", (void *)(uintptr_t)f->symbol);
    size_t more = (size_t)f->payload_at - 40 - length;
    ibx_put_u64(w, length);
    ibx_put_u64(w, length);
    ibx_put_bytes(w, address, length);
    ibx_put_u64(w, more);
    ibx_put_u64(w, more);
    ibx_put_bytes(w, body + 32 + length, more);
    ibx_put_u64(w, f->payload);
}

static void check_same(const struct ibx_frame *f, const uint8_t *body, size_t n)
{
    uint8_t *again = malloc(n);
    struct ibx_writer w = ibx_writer_of(again, n);
    if (f->call == IBX_FRAME_TO_SYMBOL) {
        put_symbol(&w, f, body);
    } else if (f->kind == IBX_FRAME_D2H) {
        ibx_put_u64(&w, 1);
        ibx_put_u8(&w, 0);
        ibx_put_u64(&w, f->src);
    } else {
        ibx_put_u64(&w, f->dst);
        ibx_put_u64(&w, f->kind == IBX_FRAME_H2D ? f->payload : f->src);
    }
    if (f->kind == IBX_FRAME_H2D)
        ibx_put_bytes(&w, body + f->payload_at, (size_t)f->payload);
    put_tail(&w, f);
    require(!w.failed && w.length == n && !memcmp(again, body, n));
    free(again);
}

static void check_sound(const struct ibx_frame *f)
{
    uint64_t bytes;
    require(f->width && f->height && f->width <= f->dpitch && f->width <= f->spitch);
    require(!__builtin_mul_overflow(f->dpitch, f->height, &bytes) && bytes <= UINT64_MAX - 8);
    require(f->out == (f->kind == IBX_FRAME_D2H ? bytes : 0));
    require(!__builtin_mul_overflow(f->spitch, f->height, &bytes));
    require(f->kind != IBX_FRAME_H2D || f->payload == bytes);
}

static void check_request(const uint8_t *data, size_t size)
{
    size_t name;
    enum ibx_frame_call call = ibx_frame_name(data, size, &name);
    if (call == IBX_FRAME_OTHER || size - name < 8)
        return;
    const uint8_t *body = data + name + 8;
    size_t n = size - name - 8, window = n < IBX_FRAME_WINDOW ? n : IBX_FRAME_WINDOW;
    struct ibx_frame_body windows = {body, body + n - window, n};
    struct ibx_frame frame;
    if (!ibx_frame_parse(call, &windows, &frame))
        return;
    check_sound(&frame);
    check_same(&frame, body, n);
}

/* Writes of lengths that the data chooses; a head of the learnt shape is learnt again. */
static void check_reply(const uint8_t *data, size_t size)
{
    struct ibx_reply_watch watch = {0}, again = {0};
    uint8_t head[IBX_REPLY_HEAD_MAX];
    while (size) {
        size_t n = data[0] & 15;
        n = n < size ? n : size - 1;
        ibx_reply_note_write(&watch, data + 1, n);
        if (data[0] & 16)
            ibx_reply_note_sync(&watch);
        data += 1 + n;
        size -= 1 + n;
    }
    if (watch.shape != IBX_REPLY_PLAIN && watch.shape != IBX_REPLY_TIMED)
        return;
    size_t n = ibx_reply_head(watch.shape, 1, 0.5, 0, head);
    ibx_reply_note_write(&again, head, 4);
    ibx_reply_note_write(&again, head + 4, 8);
    if (watch.shape == IBX_REPLY_TIMED)
        ibx_reply_note_write(&again, head + 12, 8);
    ibx_reply_note_sync(&again);
    require(n == (watch.shape == IBX_REPLY_TIMED ? 20 : 12) && again.shape == watch.shape);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    /* an exact copy, so that a read behind it is detected */
    uint8_t *copy = malloc(size);
    memcpy(copy, data + 1, size - 1);
    if (data[0] & 1)
        check_reply(copy, size - 1);
    else
        check_request(copy, size - 1);
    free(copy);
    return 0;
}
