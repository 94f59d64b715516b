/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/tcp/frame.h"

#include <errno.h>

#define VERSION  2u /* messages may be longer than in 1 */
#define PLACE_AT 4u

static const uint8_t hello_magic[4] = {'i', 'b', 'x', 'L'};

/* Which fields a type has; the others are zero. */
enum { HAS_LANE = 1, HAS_CREDITS = 2, HAS_STATUS = 4, HAS_ID = 8, HAS_LENGTH = 16, HAS_KEY = 32 };

static const unsigned char fields[] = {
    [IBX_TCP_MESSAGE] = HAS_CREDITS | HAS_LENGTH,
    [IBX_TCP_READ] = HAS_LANE | HAS_ID | HAS_LENGTH | HAS_KEY,
    [IBX_TCP_DATA] = HAS_ID | HAS_LENGTH,
    [IBX_TCP_WRITE] = HAS_ID | HAS_LENGTH | HAS_KEY,
    [IBX_TCP_ACK] = HAS_ID,
    [IBX_TCP_NAK] = HAS_STATUS | HAS_ID,
    [IBX_TCP_CREDIT] = HAS_CREDITS,
    [IBX_TCP_PAD] = HAS_LENGTH,
    [IBX_TCP_CHECK] = HAS_LANE | HAS_ID,
};

void ibx_tcp_frame_put(const struct ibx_tcp_frame *frame, uint8_t out[IBX_TCP_FRAME_BYTES])
{
    struct ibx_writer w = ibx_writer_of(out, IBX_TCP_FRAME_BYTES);
    ibx_put_u8(&w, (uint8_t)frame->type);
    ibx_put_u8(&w, frame->lane);
    ibx_put_u16(&w, frame->credits);
    ibx_put_u32(&w, frame->type == IBX_TCP_NAK ? frame->status : frame->place);
    ibx_put_u32(&w, frame->id);
    ibx_put_u32(&w, frame->length);
    ibx_put_u64(&w, frame->key);
    ibx_put_u64(&w, frame->address);
}

static bool length_valid(const struct ibx_tcp_frame *f)
{
    if (f->type == IBX_TCP_MESSAGE)
        return f->length <= IBX_TCP_MESSAGE_MAX;
    return f->length >= 1 && f->length <= IBX_TCP_BODY_MAX;
}

int ibx_tcp_frame_get(const uint8_t in[IBX_TCP_FRAME_BYTES], struct ibx_tcp_frame *out)
{
    struct ibx_reader r = ibx_reader_of(in, IBX_TCP_FRAME_BYTES);
    struct ibx_tcp_frame f;
    unsigned type = ibx_get_u8(&r);
    if (!type || type >= sizeof(fields))
        return -EPROTO;
    f.type = (enum ibx_tcp_type)type;
    f.lane = ibx_get_u8(&r);
    f.credits = ibx_get_u16(&r);
    const uint32_t word = ibx_get_u32(&r);
    f.status = type == IBX_TCP_NAK ? word : 0;
    f.place = type == IBX_TCP_NAK ? 0 : word;
    f.id = ibx_get_u32(&r);
    f.length = ibx_get_u32(&r);
    f.key = ibx_get_u64(&r);
    f.address = ibx_get_u64(&r);

    unsigned has = fields[type];
    if ((!(has & HAS_LANE) && f.lane) || (!(has & HAS_CREDITS) && f.credits) ||
        (!(has & HAS_ID) && f.id) || (!(has & HAS_KEY) && (f.key || f.address)))
        return -EPROTO;
    if (has & HAS_LENGTH ? !length_valid(&f) : f.length != 0)
        return -EPROTO;
    if ((has & HAS_STATUS && !ibx_tcp_status_errno(f.status)) ||
        (type == IBX_TCP_CREDIT && !f.credits) || (type == IBX_TCP_CHECK && f.lane > IBX_TCP_LIVES))
        return -EPROTO;
    *out = f;
    return 0;
}

void ibx_tcp_frame_place(uint8_t frame[IBX_TCP_FRAME_BYTES], uint64_t place)
{
    struct ibx_writer w = ibx_writer_of(frame + PLACE_AT, sizeof(uint32_t));
    if (frame[0] != IBX_TCP_NAK)
        ibx_put_u32(&w, (uint32_t)place);
}

size_t ibx_tcp_frame_size(const struct ibx_tcp_frame *frame)
{
    return IBX_TCP_FRAME_BYTES + (frame->type == IBX_TCP_READ ? 0 : frame->length);
}

int ibx_tcp_status_errno(uint32_t status)
{
    switch (status) {
    case IBX_TCP_STATUS_ACCESS:
        return -EACCES;
    case IBX_TCP_STATUS_RANGE:
        return -ERANGE;
    default:
        return 0;
    }
}

void ibx_tcp_hello_put(unsigned lane, const uint8_t proof[IBX_PROOF_BYTES],
                       uint8_t out[IBX_TCP_HELLO_BYTES])
{
    struct ibx_writer w = ibx_writer_of(out, IBX_TCP_HELLO_BYTES);
    ibx_put_bytes(&w, hello_magic, sizeof(hello_magic));
    ibx_put_u8(&w, VERSION);
    ibx_put_u8(&w, (uint8_t)lane);
    ibx_put_u16(&w, 0);
    ibx_put_bytes(&w, proof, IBX_PROOF_BYTES);
}

int ibx_tcp_hello_get(const uint8_t in[IBX_TCP_HELLO_BYTES], unsigned *lane, const uint8_t **proof)
{
    struct ibx_reader r = ibx_reader_of(in, IBX_TCP_HELLO_BYTES);
    if (memcmp(ibx_get_bytes(&r, sizeof(hello_magic)), hello_magic, sizeof(hello_magic)) ||
        ibx_get_u8(&r) != VERSION)
        return -EPROTO;
    unsigned n = ibx_get_u8(&r);
    if (!n || n > IBX_TCP_LANES_MAX || ibx_get_u16(&r))
        return -EPROTO;
    *lane = n;
    *proof = ibx_get_bytes(&r, IBX_PROOF_BYTES);
    return 0;
}

void ibx_tcp_terms_put(const struct ibx_tcp_terms *terms, struct ibx_writer *w)
{
    ibx_put_u8(w, VERSION);
    ibx_put_u16(w, (uint16_t)terms->lanes);
    ibx_put_u16(w, (uint16_t)terms->slots);
    ibx_put_u16(w, (uint16_t)terms->depth);
    ibx_put_u32(w, terms->message);
}

int ibx_tcp_terms_get(struct ibx_reader *r, struct ibx_tcp_terms *out)
{
    unsigned version = ibx_get_u8(r);
    struct ibx_tcp_terms t;
    t.lanes = ibx_get_u16(r);
    t.slots = ibx_get_u16(r);
    t.depth = ibx_get_u16(r);
    t.message = ibx_get_u32(r);
    if (r->failed || version != VERSION || t.lanes > IBX_TCP_LANES_MAX || !t.slots ||
        t.slots > IBX_TCP_SLOTS_MAX || !t.depth || t.depth > IBX_TCP_DEPTH_MAX || !t.message ||
        t.message > IBX_TCP_MESSAGE_MAX)
        return -EPROTO;
    *out = t;
    return 0;
}
