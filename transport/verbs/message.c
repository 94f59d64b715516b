/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages on lane 0.
 *
 * Every message begins with a header: u8 type, u8 0, u16 credits, u32 0. Both sides start with
 * `slots` credits. A message costs one; the receiver posts its buffer again and then returns the
 * credit, in the header of its next message or in a credit message. Buffers are posted in batches,
 * or as soon as the peer has no credit left.
 *
 * A credit message costs no credit. It is sent when half of the slots are owed, or when the peer
 * has no credit left at all. A peer that reads none of them cannot cause more than two, and
 * CREDIT_RECEIVES buffers beyond the slots take them. So a receive is always posted, and "receiver
 * not ready" never happens.
 *
 * Short messages go inline. One message in `batch` is signaled; its completion frees the send
 * buffers of all before it.
 */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEADER_BYTES    8u
#define CREDIT_RECEIVES 4u
#define CREDIT_SENDS    4u /* entries of the send queue that only credit messages take */
#define BATCH_MAX       64u

enum message_type { TYPE_MESSAGE = 1, TYPE_CREDIT = 2 };

static unsigned batch_of(unsigned slots)
{
    unsigned batch = slots / 4 ? slots / 4 : 1;
    return batch < BATCH_MAX ? batch : BATCH_MAX;
}

/* Up to a batch of sends may be over and still wait for the next completion. */
static unsigned sends_of(unsigned slots)
{
    return slots + batch_of(slots) + CREDIT_SENDS;
}

static unsigned receives_of(unsigned slots)
{
    return slots + CREDIT_RECEIVES;
}

unsigned ibx_verbs_messages_sends(const struct verbs *v)
{
    return sends_of(ibx_link_options(v->link)->slots);
}

unsigned ibx_verbs_messages_receives(const struct verbs *v)
{
    return receives_of(ibx_link_options(v->link)->slots);
}

static size_t stride_of(size_t message)
{
    return (HEADER_BYTES + message + 63) & ~(size_t)63;
}

size_t ibx_verbs_message_memory(const struct ibx_options *options)
{
    return (sends_of(options->slots) + receives_of(options->slots)) * stride_of(options->message);
}

/* Fills in what work requests have in common in every post. */
static void fill_in(struct verbs_messages *m)
{
    m->send =
        (struct ibv_send_wr){.sg_list = &m->send_segment, .num_sge = 1, .opcode = IBV_WR_SEND};
    m->send_segment.lkey = m->mr->lkey;
    for (unsigned slot = 0; slot < m->receives; slot++) {
        struct verbs_receive *receive = &m->posts[slot];
        receive->sge = (struct ibv_sge){.addr = (uintptr_t)(m->block + slot * m->stride),
                                        .length = (uint32_t)(HEADER_BYTES + m->message_max),
                                        .lkey = m->mr->lkey};
        receive->wr = (struct ibv_recv_wr){.wr_id = (uint64_t)slot << 2 | VERBS_ID_RECEIVE,
                                           .sg_list = &receive->sge,
                                           .num_sge = 1};
    }
}

int ibx_verbs_messages_open(struct verbs *v, struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(v->link);
    struct verbs_messages *m = &v->messages;
    m->slots = m->credits = options->slots;
    m->message_max = options->message;
    m->batch = batch_of(m->slots);
    m->receives = ibx_verbs_messages_receives(v);
    m->buffers = ibx_verbs_messages_sends(v);
    m->stride = stride_of(m->message_max);
    m->block_length = m->stride * (m->receives + m->buffers);
    m->sends = calloc(m->buffers, sizeof(*m->sends));
    m->posts = calloc(m->receives, sizeof(*m->posts));
    if (!m->sends || !m->posts)
        return ibx_error_set(err, -ENOMEM, "no memory for %u sends and %u receives", m->buffers,
                             m->receives);
    m->block =
        mmap(NULL, m->block_length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->block == MAP_FAILED) {
        m->block = NULL;
        return ibx_error_set(err, -ENOMEM, "no memory for message buffers of %zu bytes",
                             m->block_length);
    }
    m->mr = ibv_reg_mr(v->rails[0].pd, m->block, m->block_length, IBV_ACCESS_LOCAL_WRITE);
    if (!m->mr)
        return ibx_verbs_mr_error(errno, m->block, m->block_length,
                                  ibv_get_device_name(v->rails[0].context->device), err);
    fill_in(m);
    return 0;
}

void ibx_verbs_messages_close(struct verbs *v)
{
    struct verbs_messages *m = &v->messages;
    if (m->mr)
        ibv_dereg_mr(m->mr);
    if (m->block)
        munmap(m->block, m->block_length);
    free(m->posts);
    free(m->sends);
    *m = (struct verbs_messages){0};
}

/* ------------------------------------------------------------------- receiving */

static void put_aside(struct verbs_messages *m, uint64_t slot)
{
    m->posts[slot].wr.next = m->unposted;
    m->unposted = &m->posts[slot].wr;
}

static int post_receives(struct verbs *v)
{
    struct verbs_messages *m = &v->messages;
    struct ibv_recv_wr *bad;
    int rc = -ibv_post_recv(v->lanes[0].qp, m->unposted, &bad);
    m->unposted = NULL;
    m->owed += m->released;
    m->released = 0;
    return rc;
}

int ibx_verbs_messages_prepost(struct verbs *v, struct ibx_error *err)
{
    for (unsigned slot = 0; slot < v->messages.receives; slot++)
        put_aside(&v->messages, slot);
    int rc = post_receives(v);
    return rc ? ibx_error_set(err, rc, "cannot post %u receives: %s", v->messages.receives,
                              strerror(-rc))
              : 0;
}

static void repost(struct verbs *v)
{
    int rc = v->state.now == VERBS_ABORTED ? 0 : post_receives(v);
    if (rc)
        ibx_verbs_lost(v, rc, "cannot post a receive: %s", strerror(-rc));
}

int ibx_verbs_message_received(struct verbs *v, uint64_t slot, size_t bytes)
{
    struct verbs_messages *m = &v->messages;
    const char *buffer = m->block + slot * m->stride;
    struct ibx_reader r = ibx_reader_of(buffer, bytes < HEADER_BYTES ? bytes : HEADER_BYTES);
    unsigned type = ibx_get_u8(&r), zero = ibx_get_u8(&r), credits = ibx_get_u16(&r);
    uint32_t zeros = ibx_get_u32(&r);
    bool sane = !r.failed && !zero && !zeros && credits <= m->slots - m->credits &&
                (type == TYPE_MESSAGE ? m->held < m->slots
                                      : type == TYPE_CREDIT && credits && bytes == HEADER_BYTES);
    if (!sane) {
        v->link->up->lost(v->link, -EPROTO, "the peer broke the protocol of messages");
        return 1;
    }
    m->credits += credits;
    if (type == TYPE_CREDIT) {
        put_aside(m, slot);
        repost(v);
        return 1;
    }
    m->held++;
    v->link->up->message(v->link, buffer + HEADER_BYTES, bytes - HEADER_BYTES, slot);
    return 1;
}

void ibx_verbs_release(void *endpoint, uint64_t slot)
{
    struct verbs *v = endpoint;
    if (v->state.now == VERBS_ABORTED || slot >= v->messages.receives)
        return;
    put_aside(&v->messages, slot);
    v->messages.released++;
    ibx_verbs_credits_return(v);
}

/* -------------------------------------------------------------------- sending */

/* Send buffers are a ring in the order of posting. Inline sends use it too, so that all sends are
 * counted alike. */
static unsigned next_send(const struct verbs_messages *m)
{
    unsigned next = m->first + m->count;
    return next < m->buffers ? next : next - m->buffers;
}

static char *send_buffer(struct verbs_messages *m)
{
    return m->block + (m->receives + next_send(m)) * m->stride;
}

static size_t put_header(struct verbs_messages *m, enum message_type type, char *out)
{
    struct ibx_writer w = ibx_writer_of(out, HEADER_BYTES);
    ibx_put_u8(&w, (uint8_t)type);
    ibx_put_u8(&w, 0);
    ibx_put_u16(&w, (uint16_t)m->owed);
    ibx_put_u32(&w, 0);
    return w.length;
}

/* Posts `bytes` of buffer; the header's credits count as given once that worked. */
static int post_send(struct verbs *v, char *buffer, size_t bytes, uint64_t cookie, bool signaled)
{
    struct verbs_messages *m = &v->messages;
    struct verbs_lane *lane = &v->lanes[0];
    bool notify = signaled || m->unsignaled + 1 >= m->batch;
    struct ibv_send_wr *bad;
    m->send_segment.addr = (uintptr_t)buffer;
    m->send_segment.length = (uint32_t)bytes;
    m->send.wr_id = (lane->posted + 1) << 2 | VERBS_ID_SEND;
    m->send.send_flags =
        (notify ? IBV_SEND_SIGNALED : 0) | (bytes > lane->inline_max ? 0 : IBV_SEND_INLINE);
    int rc = ibv_post_send(lane->qp, &m->send, &bad);
    if (rc)
        return -rc;
    lane->posted++;
    m->unsignaled = notify ? 0 : m->unsignaled + 1;
    m->sends[next_send(m)] =
        (struct verbs_send){.number = lane->posted, .cookie = cookie, .signaled = signaled};
    m->count++;
    m->held -= m->owed;
    m->owed = 0;
    return 0;
}

int ibx_verbs_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                   uint64_t cookie, unsigned flags)
{
    struct verbs *v = endpoint;
    struct verbs_messages *m = &v->messages;
    if (m->credits < (flags & IBX_SPARING ? 2 : 1) || m->count >= m->buffers - CREDIT_SENDS)
        return -EAGAIN;
    if (length > m->message_max)
        return -EMSGSIZE;
    char *buffer = send_buffer(m);
    size_t bytes = put_header(m, TYPE_MESSAGE, buffer);
    bytes = (size_t)(ibx_gather((uint8_t *)buffer + bytes, iov, iovcnt) - (uint8_t *)buffer);
    int rc = post_send(v, buffer, bytes, cookie, flags & IBX_SIGNALED);
    if (!rc)
        m->credits--;
    return rc;
}

void ibx_verbs_credits_return(struct verbs *v)
{
    struct verbs_messages *m = &v->messages;
    bool spent = m->held == m->slots; /* the peer can send nothing without credits */
    if (m->released && (spent || m->released >= m->batch))
        repost(v);
    bool due = m->owed && (m->owed >= (m->slots + 1) / 2 || spent);
    if (!due || v->state.now == VERBS_ABORTED || m->count >= m->buffers)
        return;
    char *buffer = send_buffer(m);
    int rc = post_send(v, buffer, put_header(m, TYPE_CREDIT, buffer), 0, false);
    if (rc)
        ibx_verbs_lost(v, rc, "cannot return credits: %s", strerror(-rc));
}

int ibx_verbs_sends_retire(struct verbs *v, uint64_t number, int status)
{
    struct verbs_messages *m = &v->messages;
    int made = 0;
    while (m->count && m->sends[m->first].number <= number) {
        struct verbs_send done = m->sends[m->first];
        m->first = m->first + 1 < m->buffers ? m->first + 1 : 0;
        m->count--;
        made++;
        if (done.signaled)
            v->link->up->send_done(v->link, done.cookie, status);
    }
    return made;
}
