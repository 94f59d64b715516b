/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * io_uring as the engine of the bulk lanes. Lane 0 stays with system calls, which answer a small
 * message in less time.
 *
 * A lane has at most one receive and one send in the kernel. The receive is either a whole body
 * (MSG_WAITALL, into its destination) or the next header. With SEND_ZC the kernel uses a WRITE's
 * memory until its notification. Answers to the peer's READs are always copied, so that a
 * deregistration need not wait for a peer.
 *
 * Recent kernels (6.18 does) count that memory as locked, for all processes of a user without
 * CAP_IPC_LOCK. Where RLIMIT_MEMLOCK allows no more of it, the connection continues with copies.
 */
#include "transport/tcp/tcp.h"

#include "common/descriptor.h"
#include "common/log.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

enum ring_kind { RING_IN, RING_OUT, RING_OUT_ZEROCOPY, RING_CANCEL };

/* user_data: post, lane, kind */
#define TAG(post, lane, kind) ((uint64_t)(post) << 16 | (uint64_t)(lane) << 8 | (uint64_t)(kind))

struct completion {
    uint64_t tag;
    int result;
    unsigned flags;
};

struct tcp_uring {
    struct io_uring ring;
    unsigned in_flight; /* requests without their last completion */
    bool stopping;
    bool zerocopy; /* SEND_ZC may have been used; the kernel may still have some of that */
    /* Completions taken from the kernel and not handled yet. */
    unsigned count, capacity;
    uint8_t scrap[16 << 10]; /* for bodies to be discarded, of all lanes at once */
    struct completion completions[];
};

int ibx_tcp_uring_open(struct tcp *tcp)
{
    /* A receive and a send a lane, a notification a post, the cancellations. */
    unsigned capacity = 4 * (tcp->lane_count + 1) + 2 * tcp->mine.depth;
    struct tcp_uring *r = calloc(1, sizeof(*r) + capacity * sizeof(r->completions[0]));
    if (!r)
        return -ENOMEM;
    r->capacity = capacity;
    r->zerocopy = tcp->engine == TCP_ENGINE_URING_ZC;
    struct io_uring_params params = {.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_CQSIZE,
                                     .cq_entries = capacity};
    unsigned entries = 4 * (tcp->lane_count + 1);
    int rc = io_uring_queue_init_params(entries, &r->ring, &params);
    if (rc == -EINVAL) { /* a kernel before 5.19 */
        params = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = capacity};
        rc = io_uring_queue_init_params(entries, &r->ring, &params);
    }
    if (rc) {
        free(r);
        return rc;
    }
    r->ring.ring_fd = r->ring.enter_ring_fd = ibx_descriptor_apart(r->ring.ring_fd);
    rc = ibx_link_watch(tcp->link, r->ring.ring_fd);
    if (rc) {
        io_uring_queue_exit(&r->ring);
        free(r);
        return rc;
    }
    tcp->uring = r;
    return 0;
}

/* --------------------------------------------------------------------- requests */

static struct io_uring_sqe *sqe_take(struct tcp_uring *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    if (!sqe) {
        io_uring_submit(&r->ring);
        sqe = io_uring_get_sqe(&r->ring);
    }
    if (sqe)
        r->in_flight++;
    return sqe;
}

static void lane_receive(struct tcp_uring *r, struct tcp_lane *lane)
{
    struct io_uring_sqe *sqe = sqe_take(r);
    if (!sqe)
        return;
    if (lane->body_left && !lane->body)
        io_uring_prep_recv(sqe, lane->fd, r->scrap,
                           lane->body_left < sizeof(r->scrap) ? lane->body_left : sizeof(r->scrap),
                           0);
    else if (lane->body_left)
        io_uring_prep_recv(sqe, lane->fd, lane->body, lane->body_left, MSG_WAITALL);
    else
        io_uring_prep_recv(sqe, lane->fd, lane->stage + lane->stage_have,
                           IBX_TCP_FRAME_BYTES - lane->stage_have, 0);
    io_uring_sqe_set_data64(sqe, TAG(0, lane->index, RING_IN));
    lane->uring_in = true;
}

static void lane_send(struct tcp_uring *r, struct tcp_lane *lane)
{
    struct tcp *tcp = lane->tcp;
    struct io_uring_sqe *sqe = sqe_take(r);
    if (!sqe)
        return;
    lane->uring_message = (struct msghdr){.msg_iov = lane->uring_pieces};
    lane->uring_message.msg_iovlen = (size_t)ibx_tcp_lane_pieces(lane, lane->uring_pieces);
    struct tcp_item *item = lane->flight[0];
    if (tcp->engine == TCP_ENGINE_URING_ZC && item->kind == TCP_ITEM_POST) {
        /* One post alone, so that the notification can name it. */
        bool header_left = item->sent < sizeof(item->header);
        lane->uring_message.msg_iovlen = header_left && item->length ? 2 : 1;
        io_uring_prep_sendmsg_zc(sqe, lane->fd, &lane->uring_message, MSG_NOSIGNAL | MSG_WAITALL);
        io_uring_sqe_set_data64(
            sqe, TAG((struct tcp_post *)item - tcp->posts, lane->index, RING_OUT_ZEROCOPY));
    } else {
        io_uring_prep_sendmsg(sqe, lane->fd, &lane->uring_message, MSG_NOSIGNAL | MSG_WAITALL);
        io_uring_sqe_set_data64(sqe, TAG(0, lane->index, RING_OUT));
    }
    lane->uring_out = true;
}

/* ------------------------------------------------------------------- completions */

static void take_completions(struct tcp_uring *r)
{
    struct io_uring_cqe *cqe;
    while (r->count < r->capacity && !io_uring_peek_cqe(&r->ring, &cqe)) {
        r->completions[r->count++] = (struct completion){
            .tag = io_uring_cqe_get_data64(cqe), .result = cqe->res, .flags = cqe->flags};
        if (!(cqe->flags & IORING_CQE_F_MORE))
            r->in_flight--;
        io_uring_cqe_seen(&r->ring, cqe);
    }
}

static void received(struct tcp_lane *lane, int result)
{
    if (result > 0)
        ibx_tcp_lane_received(lane, (size_t)result);
    else if (result != -EINTR && result != -EAGAIN && result != -ECANCELED)
        ibx_tcp_lane_broken(lane, -result);
}

/* A kernel or a socket without SEND_ZC, or no more memory may be locked. */
static bool refuses_zerocopy(int result)
{
    return result == -EINVAL || result == -EOPNOTSUPP || result == -ENOMEM;
}

static void sent(struct tcp_lane *lane, const struct completion *o)
{
    struct tcp *tcp = lane->tcp;
    struct tcp_post *post = &tcp->posts[o->tag >> 16];
    bool zerocopy = (o->tag & 0xff) == RING_OUT_ZEROCOPY;
    if (o->flags & IORING_CQE_F_NOTIF) {
        ibx_tcp_on_post_released(tcp, post);
        return;
    }
    if (zerocopy && o->flags & IORING_CQE_F_MORE)
        post->zerocopy_sends++;
    if (o->result > 0) {
        ibx_tcp_lane_sent(lane, (size_t)o->result);
    } else if (zerocopy && refuses_zerocopy(o->result)) {
        if (tcp->engine == TCP_ENGINE_URING_ZC)
            ibx_log(IBX_LOG_INFO, "tcp continues with copies, because SEND_ZC is refused: %s%s",
                    strerror(-o->result),
                    o->result == -ENOMEM ? " (see ulimit -l, or grant CAP_IPC_LOCK)" : "");
        tcp->engine = TCP_ENGINE_URING;
    } else if (o->result != -EINTR && o->result != -EAGAIN && o->result != -ECANCELED) {
        ibx_tcp_lane_broken(lane, -o->result);
    }
}

/* After the connection has failed only what the kernel holds still counts. */
static void complete(struct tcp *tcp, struct completion *completion)
{
    const struct completion now = *completion, *o = &now;
    struct tcp_lane *lane = &tcp->lanes[o->tag >> 8 & 0xff];
    unsigned kind = o->tag & 0xff;
    completion->tag = TAG(0, lane->index, RING_CANCEL); /* it is handled once */
    if (kind == RING_CANCEL)
        return;
    if (kind == RING_IN)
        lane->uring_in = false;
    else if (!(o->flags & IORING_CQE_F_NOTIF))
        lane->uring_out = false;
    if (tcp->status || tcp->uring->stopping)
        return;
    if (kind == RING_IN)
        received(lane, o->result);
    else
        sent(lane, o);
}

void ibx_tcp_uring_progress(struct tcp *tcp)
{
    struct tcp_uring *r = tcp->uring;
    take_completions(r);
    for (unsigned i = 0; i < r->count; i++)
        complete(tcp, &r->completions[i]);
    r->count = 0;
    for (unsigned i = 1; i <= tcp->lane_count && !tcp->status && tcp->state.now != TCP_DRAINING;
         i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        if (!lane->uring_in)
            lane_receive(r, lane);
        if (!lane->uring_out && ibx_tcp_lane_has_output(lane))
            lane_send(r, lane);
    }
    if (io_uring_sq_ready(&r->ring)) {
        int rc = io_uring_submit(&r->ring);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
            ibx_tcp_fail(tcp, rc, "io_uring takes no more work: %s", strerror(-rc));
    }
}

bool ibx_tcp_uring_has_refused(const struct tcp *tcp)
{
    return io_uring_sq_ready(&tcp->uring->ring) > 0;
}

/* May run inside of ibx_tcp_uring_progress(), for which completed receives stay. */
void ibx_tcp_uring_collect(struct tcp *tcp)
{
    struct tcp_uring *r = tcp->uring;
    take_completions(r);
    for (unsigned i = 0; i < r->count; i++) {
        const unsigned kind = r->completions[i].tag & 0xff;
        if (kind == RING_OUT || kind == RING_OUT_ZEROCOPY)
            complete(tcp, &r->completions[i]);
    }
}

/* ---------------------------------------------------------------------- cancelling */

static void cancel(struct tcp_uring *r, struct tcp_lane *lane, enum ring_kind kind)
{
    struct io_uring_sqe *sqe = sqe_take(r);
    if (!sqe)
        return;
    io_uring_prep_cancel64(sqe, TAG(0, lane->index, kind), 0);
    io_uring_sqe_set_data64(sqe, TAG(0, lane->index, RING_CANCEL));
}

static void await_completions(struct tcp_uring *r)
{
    io_uring_submit_and_wait(&r->ring, 1);
    take_completions(r);
}

void ibx_tcp_uring_cancel_input(struct tcp_lane *lane)
{
    struct tcp_uring *r = lane->tcp->uring;
    if (!lane->uring_in)
        return;
    cancel(r, lane, RING_IN);
    /* Other lanes' completions wait for the next progress(): nothing is reported from here. */
    for (unsigned at = 0; lane->uring_in; at++) {
        while (at == r->count)
            await_completions(r);
        if (r->completions[at].tag == TAG(0, lane->index, RING_IN))
            complete(lane->tcp, &r->completions[at]);
    }
}

static void stop(struct tcp *tcp)
{
    struct tcp_uring *r = tcp->uring;
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    r->stopping = true;
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        if (lane->uring_in)
            cancel(r, lane, RING_IN);
        if (lane->uring_out)
            cancel(r, lane, RING_OUT);
        shutdown(lane->fd, SHUT_RDWR);
        /* A reset, which makes the kernel drop what it still holds for zero-copy sends. */
        if (r->zerocopy)
            connect(lane->fd, &nowhere, sizeof(nowhere));
    }
    io_uring_submit(&r->ring);
}

bool ibx_tcp_uring_stop(struct tcp *tcp)
{
    struct tcp_uring *r = tcp->uring;
    if (!r->stopping)
        stop(tcp);
    do {
        take_completions(r);
        for (unsigned i = 0; i < r->count; i++)
            complete(tcp, &r->completions[i]);
        r->count = 0;
    } while (io_uring_cq_ready(&r->ring));
    return r->in_flight == 0;
}

void ibx_tcp_uring_settle(struct tcp *tcp)
{
    while (!ibx_tcp_uring_stop(tcp))
        await_completions(tcp->uring);
}

void ibx_tcp_uring_close(struct tcp *tcp)
{
    struct tcp_uring *r = tcp->uring;
    ibx_tcp_uring_settle(tcp);
    ibx_link_unwatch(tcp->link, r->ring.ring_fd);
    io_uring_queue_exit(&r->ring);
    free(r);
    tcp->uring = NULL;
}
