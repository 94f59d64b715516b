/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages: their slots, the credits for these, and sends that the socket did not take at once. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEND_PIECES 15 /* longer gather lists are copied */

/* The round trips of one-sided work cost more than the copies of a message up to 512 KiB
 * (docs/experiments.md). So messages may be longer than the option `message`: up to there by the
 * first factor, beyond it by the second, and by room for the user's header. Memory for a long one
 * is allocated, or lent by the program, while it exists. */
#define BIG_FACTOR        32u
#define BIG_FACTOR_BEYOND 8u
#define BIG_BYTES         (512u << 10)
#define BIG_EXTRA         4096u

static size_t longest(size_t unit)
{
    const size_t more = unit * BIG_FACTOR < BIG_BYTES ? unit * BIG_FACTOR : BIG_BYTES;
    const size_t beyond = unit * BIG_FACTOR_BEYOND;
    const size_t max = (beyond > more ? beyond : more) + BIG_EXTRA;
    return max < IBX_TCP_MESSAGE_MAX ? max : IBX_TCP_MESSAGE_MAX;
}

/* The inbox, as many sends, the stage of lane 0, and what is kept of long messages. */
size_t ibx_tcp_message_memory(const struct ibx_options *options)
{
    return (2 * (size_t)options->slots + 1) * options->message +
           IBX_TCP_SPARES * longest(options->message);
}

/* Memory for one long message. The program lends one at a time, so that a peer that sends many
 * ahead holds no more of that memory. */
static uint8_t *big_take(struct tcp *tcp, size_t length)
{
    const struct ibx_message_memory *lender = ibx_link_options(tcp->link)->long_messages;
    uint8_t *lent = lender && !tcp->lent ? lender->take(length) : NULL;
    if (lent)
        return tcp->lent = lent;
    return tcp->spare_count ? tcp->spare[--tcp->spare_count] : malloc(tcp->message_max);
}

/* Accepts NULL. */
static void big_give(struct tcp *tcp, uint8_t *bytes)
{
    if (bytes && bytes == tcp->lent) {
        tcp->lent = NULL;
        ibx_link_options(tcp->link)->long_messages->give(bytes);
    } else if (bytes && tcp->spare_count < IBX_TCP_SPARES) {
        tcp->spare[tcp->spare_count++] = bytes;
    } else {
        free(bytes);
    }
}

int ibx_tcp_messages_init(struct tcp *tcp, struct ibx_error *err)
{
    const struct ibx_tcp_terms *a = &tcp->mine, *b = &tcp->peer; /* both ends compute the same */
    tcp->message_unit = a->message < b->message ? a->message : b->message;
    tcp->message_max = longest(tcp->message_unit);
    tcp->credits = b->slots;
    tcp->peer_credits = a->slots;
    tcp->inbox = malloc(tcp->mine.slots * tcp->message_unit);
    tcp->inbox_free = calloc(tcp->mine.slots, sizeof(*tcp->inbox_free));
    tcp->inbox_taken = calloc(tcp->mine.slots, sizeof(*tcp->inbox_taken));
    tcp->big = calloc(tcp->mine.slots, sizeof(*tcp->big));
    tcp->sends = calloc(tcp->peer.slots, sizeof(*tcp->sends));
    if (!tcp->inbox || !tcp->inbox_free || !tcp->inbox_taken || !tcp->big || !tcp->sends)
        return ibx_error_set(
            err, -ENOMEM,
            "no memory for %u messages of %zu bytes; lower rdma.slots or rdma.message",
            tcp->mine.slots, tcp->message_unit);
    /* Stack and list give the same members again and again, so that an idle connection's memory
     * stays untouched. */
    for (unsigned i = tcp->mine.slots; i-- > 0;)
        tcp->inbox_free[tcp->inbox_count++] = i;
    for (unsigned i = tcp->peer.slots; i-- > 0; tcp->sends_free = &tcp->sends[i])
        tcp->sends[i].next = tcp->sends_free;
    tcp->sends_gone_tail = &tcp->sends_gone;
    return 0;
}

void ibx_tcp_messages_fini(struct tcp *tcp)
{
    for (unsigned i = 0; tcp->sends && i < tcp->peer.slots; i++)
        free(tcp->sends[i].buffer);
    for (unsigned i = 0; tcp->big && i < tcp->mine.slots; i++)
        big_give(tcp, tcp->big[i]);
    while (tcp->spare_count)
        free(tcp->spare[--tcp->spare_count]);
    free(tcp->big);
    free(tcp->inbox);
    free(tcp->inbox_free);
    free(tcp->inbox_taken);
    free(tcp->sends);
}

/* --------------------------------------------------------------------- credits */

static uint16_t owed_take(struct tcp *tcp)
{
    unsigned owed = tcp->owed;
    tcp->peer_credits += owed;
    tcp->owed = 0;
    return (uint16_t)owed;
}

void ibx_tcp_on_credits(struct tcp *tcp, unsigned n)
{
    unsigned sent = tcp->peer.slots - tcp->credits;
    if (n > sent)
        ibx_tcp_fail(tcp, -EPROTO, "the peer gave back room for %u messages, but only %u were sent",
                     n, sent);
    else
        tcp->credits += n;
}

void ibx_tcp_credits_return(struct tcp *tcp)
{
    /* A message returns credits, too. But a peer without any cannot ask for them, so it gets them
     * when it is down to half of the slots. */
    if (!tcp->owed || tcp->credit_queued || tcp->peer_credits > tcp->mine.slots / 2)
        return;
    struct ibx_tcp_frame frame = {.type = IBX_TCP_CREDIT, .credits = owed_take(tcp)};
    ibx_tcp_item_init(&tcp->credit_item, TCP_ITEM_CREDIT, &frame);
    tcp->credit_queued = true;
    ibx_tcp_lane_queue(&tcp->lanes[0], &tcp->credit_item);
}

/* --------------------------------------------------------------------- sending */

void ibx_tcp_on_send_gone(struct tcp *tcp, struct tcp_send *send)
{
    if (send->item.length > tcp->message_unit) {
        free(send->buffer); /* so that a once busy connection does not keep many of them */
        send->buffer = NULL;
    }
    send->item.length = 0;
    if (send->signaled) {
        send->next = NULL;
        *tcp->sends_gone_tail = send;
        tcp->sends_gone_tail = &send->next;
    } else {
        send->next = tcp->sends_free;
        tcp->sends_free = send;
    }
}

static void send_report(struct tcp *tcp, struct tcp_send *send, int status)
{
    send->signaled = false;
    send->next = tcp->sends_free;
    tcp->sends_free = send;
    tcp->reports++;
    tcp->link->up->send_done(tcp->link, send->cookie, status);
}

void ibx_tcp_sends_report(struct tcp *tcp)
{
    struct tcp_send *send = tcp->sends_gone;
    tcp->sends_gone = NULL;
    tcp->sends_gone_tail = &tcp->sends_gone;
    while (send) {
        struct tcp_send *next = send->next;
        send_report(tcp, send, 0);
        send = next;
    }
}

void ibx_tcp_sends_flush(struct tcp *tcp, int status)
{
    ibx_tcp_sends_report(tcp);
    for (unsigned i = 0; i < tcp->peer.slots; i++) {
        if (tcp->sends[i].signaled)
            send_report(tcp, &tcp->sends[i], status);
    }
}

/* Tries to send without a copy. Returns the bytes that the socket took, 0 when none. */
static size_t send_now(struct tcp *tcp, uint8_t *header, const struct iovec *iov, int iovcnt)
{
    struct tcp_lane *lane = &tcp->lanes[0];
    if (iovcnt > SEND_PIECES || ibx_tcp_lane_has_output(lane))
        return 0;
    struct iovec pieces[1 + SEND_PIECES] = {{header, IBX_TCP_FRAME_BYTES}};
    if (iovcnt)
        memcpy(pieces + 1, iov, (size_t)iovcnt * sizeof(*iov));
    tcp->wrote = true;
    if (tcp->places)
        ibx_tcp_frame_place(header, lane->gone);
    ssize_t n = ibx_tcp_lane_write(lane, pieces, 1 + iovcnt);
    lane->gone += n > 0 ? (size_t)n : 0;
    /* An error of the socket is found again, and reported, by the next push. */
    return n > 0 ? (size_t)n : 0;
}

static int send_fill(struct tcp *tcp, struct tcp_send *send, const struct iovec *iov, int iovcnt,
                     size_t length)
{
    if (!send->buffer)
        send->buffer = malloc(length > tcp->message_unit ? length : tcp->message_unit);
    else if (length > tcp->message_unit) {
        free(send->buffer);
        send->buffer = malloc(length);
    }
    if (!send->buffer)
        return -ENOMEM;
    ibx_gather(send->buffer, iov, iovcnt);
    send->item.body = send->buffer;
    send->item.length = length;
    return 0;
}

int ibx_tcp_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                 uint64_t cookie, unsigned flags)
{
    struct tcp *tcp = endpoint;
    struct tcp_send *send = tcp->sends_free;
    if (tcp->credits < (flags & IBX_SPARING ? 2 : 1) || !send || tcp->state.now != TCP_LIVE)
        return -EAGAIN; /* progress() reports why the connection is over */
    struct ibx_tcp_frame frame = {
        .type = IBX_TCP_MESSAGE, .credits = owed_take(tcp), .length = (uint32_t)length};
    send->signaled = flags & IBX_SIGNALED;
    send->cookie = cookie;
    ibx_tcp_item_init(&send->item, TCP_ITEM_SEND, &frame);

    size_t sent = send_now(tcp, send->item.header, iov, iovcnt);
    bool whole = sent == IBX_TCP_FRAME_BYTES + length;
    if (!whole) {
        /* Part of it may be sent already: without memory for the rest the stream is over. */
        if (send_fill(tcp, send, iov, iovcnt, length)) {
            ibx_tcp_fail(tcp, -ENOMEM, "no memory for a message of %zu bytes", length);
            return -EAGAIN;
        }
        ibx_tcp_lane_queue(&tcp->lanes[0], &send->item);
        send->item.sent = sent;
    }
    tcp->credits--;
    if (!whole || send->signaled) {
        tcp->sends_free = send->next;
        if (whole)
            ibx_tcp_on_send_gone(tcp, send);
    }
    return 0;
}

/* ------------------------------------------------------------------- receiving */

uint8_t *ibx_tcp_inbox_next(const struct tcp *tcp)
{
    if (!tcp->inbox_count)
        return NULL;
    return tcp->inbox + tcp->inbox_free[tcp->inbox_count - 1] * tcp->message_unit;
}

void ibx_tcp_on_message(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    ibx_tcp_on_credits(tcp, frame->credits);
    if (frame->length > tcp->message_max || !tcp->peer_credits || !tcp->inbox_count) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer sent a message of %u bytes, with room for %u of %zu",
                     frame->length, tcp->peer_credits, tcp->message_max);
        return;
    }
    uint8_t *bytes = ibx_tcp_inbox_next(tcp);
    uint32_t slot = tcp->inbox_free[tcp->inbox_count - 1];
    if (frame->length > tcp->message_unit) {
        bytes = big_take(tcp, frame->length);
        tcp->big[slot] = bytes;
        if (!bytes) {
            ibx_tcp_fail(tcp, -ENOMEM, "no memory for a message of %u bytes", frame->length);
            return;
        }
    }
    tcp->inbox_count--;
    tcp->inbox_taken[slot] = 1;
    tcp->peer_credits--;
    tcp->arriving = slot;
    tcp->arriving_at = bytes;
    ibx_tcp_lane_expect(lane, TCP_INPUT_MESSAGE, NULL, bytes, frame->length);
    if (!frame->length)
        ibx_tcp_on_body(lane);
}

void ibx_tcp_on_message_end(struct tcp *tcp, const uint8_t *end)
{
    size_t length = (size_t)(end - tcp->arriving_at);
    tcp->reports++;
    tcp->link->up->message(tcp->link, tcp->arriving_at, length, tcp->arriving);
}

void ibx_tcp_release(void *endpoint, uint64_t slot)
{
    struct tcp *tcp = endpoint;
    if (slot >= tcp->mine.slots || !tcp->inbox_taken[slot])
        return;
    big_give(tcp, tcp->big[slot]);
    tcp->big[slot] = NULL;
    tcp->inbox_taken[slot] = 0;
    tcp->inbox_free[tcp->inbox_count++] = (uint32_t)slot;
    tcp->owed++;
}
