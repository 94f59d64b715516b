/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bytes in and out of one socket: frames are sent in order, bodies arrive where they belong. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What one progress() moves on a lane before the next one's turn: it bounds how long an urgent
 * frame waits for the thread, about 50 microseconds at 10 GB/s. */
#define TURN_BYTES (512u << 10)
/* On lane 0 everything else overtakes a READ or WRITE that is longer than this: it is bulk that has
 * no lane of its own. */
#define SMALL_BYTES (64u << 10)
#define SCRAP_BYTES (16u << 10)
/* After the link broke: no kernel holds more of one socket, unless its receive buffer is larger. */
#define READ_OUT_BYTES ((size_t)64 << 20)

static const struct ibx_state input_states[] = {
    [TCP_INPUT_HEADER] = {"header",
                          IBX_TO(TCP_INPUT_MESSAGE) | IBX_TO(TCP_INPUT_DATA) |
                              IBX_TO(TCP_INPUT_WRITE) | IBX_TO(TCP_INPUT_PAD),
                          IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [TCP_INPUT_MESSAGE] = {"message", IBX_TO(TCP_INPUT_HEADER), 0},
    [TCP_INPUT_DATA] = {"data", IBX_TO(TCP_INPUT_HEADER), 0},
    [TCP_INPUT_WRITE] = {"write", IBX_TO(TCP_INPUT_HEADER), 0},
    [TCP_INPUT_PAD] = {"padding", IBX_TO(TCP_INPUT_HEADER), 0}};
static const struct ibx_state_table input_table = IBX_STATE_TABLE("tcp lane input", input_states);

int ibx_tcp_lane_init(struct tcp_lane *lane, struct tcp *tcp, unsigned index, int fd)
{
    *lane = (struct tcp_lane){.tcp = tcp, .index = index, .fd = fd, .tls = lane->tls};
    ibx_state_begin(&lane->input, &input_table, TCP_INPUT_HEADER);
    lane->pad.lane = lane;
    lane->small.tail = &lane->small.head;
    lane->large.tail = &lane->large.head;
    lane->stage = malloc(IBX_TCP_FRAME_BYTES + (index ? 0 : tcp->message_unit));
    return lane->stage ? 0 : -ENOMEM;
}

/* --------------------------------------------------------------------- output */

void ibx_tcp_item_init(struct tcp_item *item, enum tcp_item_kind kind,
                       const struct ibx_tcp_frame *frame)
{
    item->kind = kind;
    ibx_tcp_frame_put(frame, item->header);
}

static struct tcp_item *queue_pop(struct tcp_item_queue *queue)
{
    struct tcp_item *item = queue->head;
    if (item) {
        queue->head = item->next;
        if (!queue->head)
            queue->tail = &queue->head;
    }
    return item;
}

static bool queue_remove(struct tcp_item_queue *queue, struct tcp_item *item)
{
    struct tcp_item **at = &queue->head;
    while (*at && *at != item)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = item->next;
    if (!item->next)
        queue->tail = at;
    return true;
}

void ibx_tcp_lane_queue(struct tcp_lane *lane, struct tcp_item *item)
{
    item->sent = 0;
    item->next = NULL;
    /* Messages keep their order, whatever their length. */
    bool small = lane->index == 0 && (item->kind == TCP_ITEM_SEND || item->length <= SMALL_BYTES);
    struct tcp_item_queue *queue = small ? &lane->small : &lane->large;
    *queue->tail = item;
    queue->tail = &item->next;
}

struct tcp_item *ibx_tcp_lane_pop(struct tcp_lane *lane)
{
    struct tcp_item *item = queue_pop(&lane->small);
    return item ? item : queue_pop(&lane->large);
}

enum tcp_back ibx_tcp_lane_unqueue(struct tcp_lane *lane, struct tcp_item *item)
{
    if (queue_remove(&lane->small, item) || queue_remove(&lane->large, item))
        return TCP_BACK_UNSENT;
    if (lane->thread)
        return ibx_tcp_thread_unqueue(lane, item);
    unsigned i = 0;
    while (i < lane->flight_count && lane->flight[i] != item)
        i++;
    if (i == lane->flight_count || item->sent || lane->uring_out)
        return TCP_BACK_TOO_LATE;
    lane->flight_count--;
    memmove(&lane->flight[i], &lane->flight[i + 1],
            (lane->flight_count - i) * sizeof(lane->flight[0]));
    return TCP_BACK_UNSENT;
}

bool ibx_tcp_lane_has_output(const struct tcp_lane *lane)
{
    if (lane->flight_count || lane->small.head || lane->large.head)
        return true;
    return lane->thread ? ibx_tcp_thread_sends(lane) : lane->tls && ibx_tls_unsent(lane->tls);
}

bool ibx_tcp_lane_has_input(const struct tcp_lane *lane)
{
    return lane->tls && !ibx_tcp_thread_receives(lane) && ibx_tls_readable(lane->tls);
}

ssize_t ibx_tcp_lane_write(struct tcp_lane *lane, struct iovec *pieces, int count)
{
    if (lane->tls)
        return ibx_tls_send(lane->tls, pieces, count);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    ssize_t n;
    do {
        n = sendmsg(lane->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

ssize_t ibx_tcp_lane_read(struct tcp_lane *lane, struct iovec *pieces, int count)
{
    if (lane->tls)
        return ibx_tls_receive(lane->tls, pieces, count);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    ssize_t n;
    do {
        n = recvmsg(lane->fd, &message, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static size_t bytes_of(const struct iovec *pieces, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

int ibx_tcp_lane_pieces(struct tcp_lane *lane, struct iovec *pieces)
{
    size_t bytes = 0;
    uint64_t place = 0;
    int n = 0;
    lane->tcp->wrote = true;
    for (unsigned i = 0; i < IBX_TCP_FLIGHT && bytes < TURN_BYTES; i++) {
        if (i == lane->flight_count) {
            struct tcp_item *next = ibx_tcp_lane_pop(lane);
            if (!next)
                break;
            lane->flight[lane->flight_count++] = next;
        }
        struct tcp_item *item = lane->flight[i];
        size_t body_sent = 0;
        if (!i)
            place = lane->gone - item->sent; /* a part may be gone before it came here */
        if (!item->sent && lane->tcp->places)
            ibx_tcp_frame_place(item->header, place);
        place += sizeof(item->header) + item->length;
        if (item->sent < sizeof(item->header)) {
            pieces[n++] = (struct iovec){.iov_base = item->header + item->sent,
                                         .iov_len = sizeof(item->header) - item->sent};
            bytes += sizeof(item->header) - item->sent;
        } else {
            body_sent = item->sent - sizeof(item->header);
        }
        size_t left = item->length - body_sent;
        if (left > TURN_BYTES - bytes)
            left = TURN_BYTES - bytes;
        if (left) {
            /* sendmsg() only reads; iovec serves both directions. */
            pieces[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(item->body + body_sent),
                                         .iov_len = left};
            bytes += left;
        }
    }
    return n;
}

void ibx_tcp_lane_sent(struct tcp_lane *lane, size_t n)
{
    lane->tcp->moved = true;
    lane->gone += n;
    unsigned done = 0;
    while (n) {
        struct tcp_item *item = lane->flight[done];
        size_t left = sizeof(item->header) + item->length - item->sent;
        size_t took = n < left ? n : left;
        item->sent += took;
        lane->gone_checks += item->kind == TCP_ITEM_CHECK ? took : 0;
        n -= took;
        if (took < left)
            break;
        done++;
    }
    struct tcp_item *gone[IBX_TCP_FLIGHT];
    memcpy(gone, lane->flight, done * sizeof(gone[0]));
    lane->flight_count -= done;
    memmove(lane->flight, lane->flight + done, lane->flight_count * sizeof(gone[0]));
    for (unsigned i = 0; i < done; i++)
        ibx_tcp_on_item_sent(lane->tcp, gone[i]);
}

void ibx_tcp_lane_push(struct tcp_lane *lane)
{
    size_t moved = 0;
    if (ibx_tcp_thread_push(lane))
        return;
    lane->blocked = false;
    while (!lane->tcp->status && moved < TURN_BYTES && ibx_tcp_lane_has_output(lane)) {
        struct iovec pieces[2 * IBX_TCP_FLIGHT];
        int count = ibx_tcp_lane_pieces(lane, pieces);
        ssize_t n = ibx_tcp_lane_write(lane, pieces, count);
        if (n < 0 && n != -EAGAIN) {
            ibx_tcp_lane_broken(lane, (int)-n);
            return;
        }
        if (n > 0)
            ibx_tcp_lane_sent(lane, (size_t)n);
        /* TLS may take only a part of the pieces. The lane is blocked if the socket has not taken
         * all that TLS has. */
        if (n < 0 ||
            (lane->tls ? ibx_tls_unsent(lane->tls) : (size_t)n < bytes_of(pieces, count))) {
            lane->blocked = true;
            return;
        }
        moved += (size_t)n;
    }
}

/* ---------------------------------------------------------------------- input */

void ibx_tcp_lane_expect(struct tcp_lane *lane, enum tcp_input kind, void *owner, uint8_t *body,
                         size_t length)
{
    if (!ibx_tcp_move(lane->tcp, &lane->input, kind))
        return;
    lane->body_owner = owner;
    lane->body = body;
    lane->body_left = length;
}

static void body_take(struct tcp_lane *lane, size_t n)
{
    if (lane->body)
        lane->body += n;
    lane->body_left -= n;
    if (!lane->body_left)
        ibx_tcp_on_body(lane);
}

/* Handles what the stage holds; returns how many bytes of it are used up. */
static size_t stage_read(struct tcp_lane *lane)
{
    size_t at = 0;
    while (!lane->tcp->status) {
        size_t there = lane->stage_have - at;
        if (lane->body_left) {
            size_t n = there < lane->body_left ? there : lane->body_left;
            if (!n)
                break;
            if (lane->body)
                memcpy(lane->body, lane->stage + at, n);
            at += n;
            body_take(lane, n);
            continue;
        }
        if (there < IBX_TCP_FRAME_BYTES)
            break;
        struct ibx_tcp_frame frame;
        if (ibx_tcp_frame_get(lane->stage + at, &frame)) {
            ibx_tcp_fail(lane->tcp, -EPROTO, "the peer sent a frame of type %u that is malformed",
                         lane->stage[at]);
            break;
        }
        at += IBX_TCP_FRAME_BYTES;
        ibx_tcp_on_frame(lane, &frame);
    }
    return at;
}

/* Handles the header in the stage. `extra` bytes behind it were read into the slot of the next
 * message, on the guess that it is one; if it is none, they are moved to the stage. */
static void guess_settle(struct tcp_lane *lane, size_t extra)
{
    const uint8_t *guess = ibx_tcp_inbox_next(lane->tcp);
    struct ibx_tcp_frame frame;
    if (ibx_tcp_frame_get(lane->stage, &frame) || frame.type != IBX_TCP_MESSAGE) {
        memcpy(lane->stage + IBX_TCP_FRAME_BYTES, guess, extra);
        lane->stage_have = IBX_TCP_FRAME_BYTES + extra;
        return;
    }
    size_t mine = frame.length < extra ? frame.length : extra;
    memcpy(lane->stage, guess + mine, extra - mine);
    lane->stage_have = extra - mine;
    ibx_tcp_on_frame(lane, &frame);
    if (!mine || lane->tcp->status)
        return;
    if (lane->body != guess)
        memcpy(lane->body, guess, mine);
    body_take(lane, mine);
}

void ibx_tcp_lane_received(struct tcp_lane *lane, size_t n)
{
    lane->tcp->moved = true;
    lane->quiet = 0;
    size_t direct = n < lane->body_left ? n : lane->body_left;
    if (direct)
        body_take(lane, direct);
    n -= direct;
    size_t room = IBX_TCP_FRAME_BYTES - lane->stage_have;
    lane->stage_have += n < room ? n : room;
    if (n > room)
        guess_settle(lane, n - room);
    size_t used = stage_read(lane);
    lane->stage_have -= used;
    if (used && lane->stage_have)
        memmove(lane->stage, lane->stage + used, lane->stage_have);
}

/* Where the next bytes go: what is left of a body, then a header, and on lane 0, on a guess, a
 * message, straight into the slot that it will get. */
static int input_pieces(struct tcp_lane *lane, struct iovec *pieces, uint8_t *scrap)
{
    size_t left = lane->body_left;
    int count = 0;
    if (left) {
        size_t limit = lane->body ? TURN_BYTES : SCRAP_BYTES;
        pieces[count++] =
            (struct iovec){lane->body ? lane->body : scrap, left < limit ? left : limit};
        if (left > limit)
            return count;
    }
    pieces[count++] =
        (struct iovec){lane->stage + lane->stage_have, IBX_TCP_FRAME_BYTES - lane->stage_have};
    uint8_t *guess = lane->index || left || lane->stage_have ? NULL : ibx_tcp_inbox_next(lane->tcp);
    if (guess)
        pieces[count++] = (struct iovec){guess, lane->tcp->message_unit};
    return count;
}

/* Takes what has arrived, for one turn; returns how many bytes. */
static size_t pull(struct tcp_lane *lane)
{
    size_t moved = 0;
    while (!lane->tcp->status && moved < TURN_BYTES) {
        uint8_t scrap[SCRAP_BYTES];
        struct iovec pieces[3];
        if (ibx_tcp_thread_pull(lane))
            break;
        int count = input_pieces(lane, pieces, scrap);
        ssize_t n = ibx_tcp_lane_read(lane, pieces, count);
        if (n == -EAGAIN) {
            lane->quiet++;
            break;
        }
        if (n <= 0) {
            ibx_tcp_lane_broken(lane, (int)-n);
            break;
        }
        size_t wanted = bytes_of(pieces, count);
        ibx_tcp_lane_received(lane, (size_t)n);
        moved += (size_t)n;
        if ((size_t)n < wanted && !ibx_tcp_lane_has_input(lane))
            break;
    }
    return moved;
}

void ibx_tcp_lane_pull(struct tcp_lane *lane)
{
    pull(lane);
}

void ibx_tcp_lane_broken(struct tcp_lane *lane, int code)
{
    struct tcp *tcp = lane->tcp;
    bool closed = !code || code == EPIPE;
    if (code == EBADMSG) {
        ibx_tcp_fail(tcp, -EBADMSG, "what the peer sent on lane %u was changed on its way",
                     lane->index);
        return;
    }
    if (lane->index && (closed || code == ECONNRESET) && ibx_tcp_drain_begin(tcp))
        return;
    if (ibx_tcp_runs(tcp))
        ibx_tcp_move(tcp, &tcp->state, TCP_BROKEN);
    if (closed)
        ibx_tcp_fail(tcp, -ECONNRESET, "the peer closed the connection");
    else if (code == ETIMEDOUT)
        ibx_tcp_fail(tcp, -ETIMEDOUT, "the peer has not answered for %u ms: the link is dead",
                     ibx_link_options(tcp->link)->timeout_ms);
    else if (code == EFAULT) /* a processor that copies gets SIGBUS instead, as with TLS */
        ibx_tcp_fail(tcp, -EFAULT,
                     "memory that was to be sent or filled cannot be accessed (%s): its file was "
                     "cut short, or this host's memory is broken",
                     strerror(code));
    else
        ibx_tcp_fail(tcp, -code, "the link to the peer broke: %s", strerror(code));
}

/* A peer may send on, as fast as this side reads, though it acknowledges nothing or reads nothing
 * any more. So this ends behind what can have arrived before. */
void ibx_tcp_lane_read_out(struct tcp_lane *lane)
{
    struct tcp *tcp = lane->tcp;
    int status = tcp->status, room = 0;
    socklen_t length = sizeof(room);
    unsigned quiet;
    size_t left = READ_OUT_BYTES, took;
    if (!getsockopt(lane->fd, SOL_SOCKET, SO_RCVBUF, &room, &length) && room > 0 &&
        (size_t)room > left)
        left = (size_t)room;
    tcp->status = 0;
    do {
        quiet = lane->quiet;
        took = pull(lane);
        left -= took < left ? took : left;
    } while (left && !tcp->status && lane->quiet <= quiet);
    tcp->status = status;
}
