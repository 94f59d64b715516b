/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Dispatches frames; one-sided work: posts of this side, jobs for the peer. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct tcp_send, item) == 0 && offsetof(struct tcp_post, item) == 0 &&
                   offsetof(struct tcp_job, item) == 0 && offsetof(struct tcp_pad, item) == 0 &&
                   offsetof(struct tcp_check, item) == 0,
               "an item is cast to the struct that it begins");

static const struct ibx_state post_states[] = {
    [TCP_POST_FREE] = {"free", IBX_TO(TCP_POST_QUEUED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [TCP_POST_QUEUED] =
        {"queued", IBX_TO(TCP_POST_WAITING) | IBX_TO(TCP_POST_ANSWERED) | IBX_TO(TCP_POST_FREE), 0},
    [TCP_POST_WAITING] = {"waiting",
                          IBX_TO(TCP_POST_ARRIVING) | IBX_TO(TCP_POST_ANSWERED) |
                              IBX_TO(TCP_POST_FREE),
                          0},
    [TCP_POST_ARRIVING] = {"arriving", IBX_TO(TCP_POST_FREE), 0},
    [TCP_POST_ANSWERED] = {"answered", IBX_TO(TCP_POST_FREE), 0}};
static const struct ibx_state_table post_table = IBX_STATE_TABLE("tcp post", post_states);

static const struct ibx_state job_states[] = {
    [TCP_JOB_FREE] = {"free",
                      IBX_TO(TCP_JOB_SENDING) | IBX_TO(TCP_JOB_RECEIVING) |
                          IBX_TO(TCP_JOB_ANSWERING),
                      IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [TCP_JOB_SENDING] = {"sending", IBX_TO(TCP_JOB_FREE) | IBX_TO(TCP_JOB_ANSWERING), 0},
    [TCP_JOB_RECEIVING] = {"receiving", IBX_TO(TCP_JOB_ANSWERING), 0},
    [TCP_JOB_ANSWERING] = {"answering", IBX_TO(TCP_JOB_FREE), 0}};
static const struct ibx_state_table job_table = IBX_STATE_TABLE("tcp job", job_states);

int ibx_tcp_work_init(struct tcp *tcp, struct ibx_error *err)
{
    tcp->posts = calloc(tcp->mine.depth, sizeof(*tcp->posts));
    tcp->jobs = calloc(tcp->peer.depth, sizeof(*tcp->jobs));
    if (!tcp->posts || !tcp->jobs)
        return ibx_error_set(err, -ENOMEM, "no memory for %u requests in flight; lower rdma.depth",
                             tcp->mine.depth);
    for (unsigned i = tcp->mine.depth; i-- > 0; tcp->posts_free = &tcp->posts[i]) {
        ibx_state_begin(&tcp->posts[i].state, &post_table, TCP_POST_FREE);
        tcp->posts[i].next = tcp->posts_free;
    }
    for (unsigned i = tcp->peer.depth; i-- > 0; tcp->jobs_free = &tcp->jobs[i]) {
        ibx_state_begin(&tcp->jobs[i].state, &job_table, TCP_JOB_FREE);
        tcp->jobs[i].next = tcp->jobs_free;
    }
    return 0;
}

void ibx_tcp_work_fini(struct tcp *tcp)
{
    free(tcp->posts);
    free(tcp->jobs);
}

/* ----------------------------------------------------------------- own requests */

static void post_finish(struct tcp *tcp, struct tcp_post *post, int status)
{
    struct ibx_chunk *chunk = post->chunk;
    if (!ibx_tcp_move(tcp, &post->state, TCP_POST_FREE))
        return;
    post->chunk = NULL;
    post->generation++;
    tcp->posts_used--;
    post->next = tcp->posts_free;
    tcp->posts_free = post;
    tcp->reports++;
    tcp->link->up->chunk_done(tcp->link, chunk, status);
}

int ibx_tcp_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct tcp *tcp = endpoint;
    struct tcp_post *post = tcp->posts_free;
    if (chunk->lane > tcp->lane_count || !chunk->length || chunk->length > IBX_TCP_BODY_MAX)
        return -EINVAL;
    /* progress() reports why the connection is over. One that drains sends nothing any more. */
    if (!post || tcp->state.now != TCP_LIVE || !ibx_tcp_move(tcp, &post->state, TCP_POST_QUEUED))
        return -EAGAIN;
    tcp->posts_free = post->next;
    tcp->posts_used++;
    bool write = chunk->kind == IBX_RDMA_WRITE;
    struct ibx_tcp_frame frame = {
        .type = write ? IBX_TCP_WRITE : IBX_TCP_READ,
        .lane = write ? 0 : (uint8_t)chunk->lane,
        .id = (uint32_t)post->generation << 16 | (uint32_t)(post - tcp->posts),
        .length = (uint32_t)chunk->length,
        .key = chunk->remote_keys[0],
        .address = chunk->remote_address,
    };
    ibx_tcp_item_init(&post->item, TCP_ITEM_POST, &frame);
    post->item.body = write ? chunk->local : NULL;
    post->item.length = write ? chunk->length : 0;
    post->chunk = chunk;
    post->zerocopy_sends = 0;
    ibx_tcp_lane_queue(&tcp->lanes[write ? chunk->lane : 0], &post->item);
    /* Urgent work is sent at once, bulk by the next progress(), and so are posts that others
     * follow: a system call for each would wake the peer for each. */
    if (chunk->lane == 0 && !chunk->more)
        ibx_tcp_lane_push(&tcp->lanes[0]);
    return 0;
}

/* The post that an answer names, if it may be answered at all now. */
static struct tcp_post *post_answered(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    uint32_t index = frame->id & UINT16_MAX;
    struct tcp_post *post = index < tcp->mine.depth ? &tcp->posts[index] : NULL;
    if (post && post->generation == frame->id >> 16) {
        bool read = post->chunk && post->chunk->kind == IBX_RDMA_READ;
        if (post->state.now == TCP_POST_WAITING &&
            (frame->type == IBX_TCP_DATA ? read : frame->type == IBX_TCP_NAK || !read))
            return post;
        /* io_uring and threads may complete the answer before it completes the request. */
        if (post->state.now == TCP_POST_QUEUED && !read && frame->type != IBX_TCP_DATA &&
            (tcp->lanes[post->chunk->lane].uring_out ||
             ibx_tcp_thread_sends(&tcp->lanes[post->chunk->lane])))
            return post;
    }
    ibx_tcp_fail(tcp, -EPROTO, "the peer answered request %u, which is not waiting for that",
                 frame->id);
    return NULL;
}

static void on_data(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp_post *post = post_answered(lane, frame);
    if (!post)
        return;
    if (post->chunk->length != frame->length || post->chunk->lane != lane->index) {
        ibx_tcp_fail(lane->tcp, -EPROTO,
                     "the peer answered a READ of %zu bytes on lane %u with %u bytes on lane %u",
                     post->chunk->length, post->chunk->lane, frame->length, lane->index);
        return;
    }
    if (!ibx_tcp_move(lane->tcp, &post->state, TCP_POST_ARRIVING))
        return;
    lane->awaited--;
    ibx_tcp_lane_expect(lane, TCP_INPUT_DATA, post, post->chunk->local, frame->length);
}

static void on_ack(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    struct tcp_post *post = post_answered(lane, frame);
    int status = frame->type == IBX_TCP_ACK ? 0 : ibx_tcp_status_errno(frame->status);
    if (!post)
        return;
    if (post->state.now == TCP_POST_QUEUED || post->zerocopy_sends) {
        ibx_tcp_move(tcp, &post->state, TCP_POST_ANSWERED);
        post->status = status;
        return;
    }
    if (post->chunk->kind == IBX_RDMA_READ)
        tcp->lanes[post->chunk->lane].awaited--;
    post_finish(tcp, post, status);
}

static void on_post_sent(struct tcp *tcp, struct tcp_post *post)
{
    if (post->state.now == TCP_POST_ANSWERED) {
        if (!post->zerocopy_sends)
            post_finish(tcp, post, post->status);
        return;
    }
    if (ibx_tcp_move(tcp, &post->state, TCP_POST_WAITING) && post->chunk->kind == IBX_RDMA_READ)
        tcp->lanes[post->chunk->lane].awaited++;
}

void ibx_tcp_on_post_released(struct tcp *tcp, struct tcp_post *post)
{
    bool left = post->item.sent == sizeof(post->item.header) + post->item.length;
    post->zerocopy_sends--;
    if (!post->zerocopy_sends && left && post->state.now == TCP_POST_ANSWERED)
        post_finish(tcp, post, post->status);
}

/* ---------------------------------------------------------------- peer's requests */

static struct tcp_job *job_take(struct tcp *tcp, const struct ibx_tcp_frame *frame)
{
    if (!tcp->jobs_free && tcp_uring(tcp))
        ibx_tcp_uring_collect(tcp);
    else if (!tcp->jobs_free)
        ibx_tcp_threads_collect(tcp);
    struct tcp_job *job = tcp->jobs_free;
    if (!job) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer has more than the agreed %u requests in flight",
                     tcp->peer.depth);
        return NULL;
    }
    tcp->jobs_free = job->next;
    *job = (struct tcp_job){.id = frame->id, .state = job->state};
    LIST_INSERT_HEAD(&tcp->jobs_used, job, entry);
    return job;
}

static void job_free(struct tcp *tcp, struct tcp_job *job)
{
    if (!ibx_tcp_move(tcp, &job->state, TCP_JOB_FREE))
        return;
    LIST_REMOVE(job, entry);
    job->mr = NULL;
    job->next = tcp->jobs_free;
    tcp->jobs_free = job;
}

static void job_answer(struct tcp *tcp, struct tcp_job *job)
{
    struct ibx_tcp_frame frame = {
        .type = job->status ? IBX_TCP_NAK : IBX_TCP_ACK, .status = job->status, .id = job->id};
    if (!ibx_tcp_move(tcp, &job->state, TCP_JOB_ANSWERING))
        return;
    job->mr = NULL;
    job->item = (struct tcp_item){0};
    ibx_tcp_item_init(&job->item, TCP_ITEM_JOB, &frame);
    ibx_tcp_lane_queue(&tcp->lanes[0], &job->item);
}

static void on_read(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    if (frame->lane > tcp->lane_count) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer requests an answer on lane %u of %u", frame->lane,
                     tcp->lane_count);
        return;
    }
    struct tcp_job *job = job_take(tcp, frame);
    if (!job)
        return;
    job->status = ibx_tcp_region_find(tcp, frame, IBX_ACCESS_REMOTE_READ, &job->mr);
    if (job->status) {
        job_answer(tcp, job);
        return;
    }
    struct ibx_tcp_frame data = {.type = IBX_TCP_DATA, .id = frame->id, .length = frame->length};
    if (!ibx_tcp_move(tcp, &job->state, TCP_JOB_SENDING))
        return;
    job->lane = &tcp->lanes[frame->lane];
    ibx_tcp_item_init(&job->item, TCP_ITEM_JOB, &data);
    job->item.body = (const uint8_t *)(uintptr_t)frame->address;
    job->item.length = frame->length;
    ibx_tcp_lane_queue(job->lane, &job->item);
}

static void on_write(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    struct tcp_job *job = job_take(tcp, frame);
    if (!job)
        return;
    job->status = ibx_tcp_region_find(tcp, frame, IBX_ACCESS_REMOTE_WRITE, &job->mr);
    if (!ibx_tcp_move(tcp, &job->state, TCP_JOB_RECEIVING))
        return;
    job->lane = lane;
    ibx_tcp_lane_expect(lane, TCP_INPUT_WRITE, job,
                        job->status ? NULL : (uint8_t *)(uintptr_t)frame->address, frame->length);
}

static void job_forget(struct tcp *tcp, struct tcp_job *job)
{
    job->status = IBX_TCP_STATUS_ACCESS;
    if (job->state.now == TCP_JOB_RECEIVING) {
        job->mr = NULL;
        job->lane->body = NULL; /* the rest is discarded */
        return;
    }
    switch (ibx_tcp_lane_unqueue(job->lane, &job->item)) {
    case TCP_BACK_UNSENT:
        job_answer(tcp, job);
        break;
    case TCP_BACK_SENT:
        job_free(tcp, job);
        break;
    case TCP_BACK_TOO_LATE:
        /* The header that is on its way promises these bytes. */
        job->mr = NULL;
        ibx_tcp_fail(tcp, -ECONNABORTED, "memory was deregistered while the peer was reading it");
        if (tcp_uring(tcp))
            ibx_tcp_uring_settle(tcp);
        ibx_tcp_threads_stop(tcp);
    }
}

void ibx_tcp_jobs_forget(struct tcp *tcp, struct ibx_mr *mr)
{
    struct tcp_job *next;
    for (struct tcp_job *job = LIST_FIRST(&tcp->jobs_used); job; job = next) {
        next = LIST_NEXT(job, entry);
        if (job->mr != mr)
            continue;
        if (tcp_uring(tcp) && job->state.now == TCP_JOB_RECEIVING)
            ibx_tcp_uring_cancel_input(job->lane);
        else if (job->state.now == TCP_JOB_RECEIVING)
            ibx_tcp_thread_cancel_input(job->lane);
        /* The last bytes may have arrived before the cancellation. */
        if (job->mr == mr)
            job_forget(tcp, job);
    }
}

/* ------------------------------------------------------------------- dispatching */

void ibx_tcp_on_frame(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    if (!ibx_tcp_in_place(lane, frame))
        return;
    if (lane->index && frame->type != IBX_TCP_DATA && frame->type != IBX_TCP_WRITE &&
        frame->type != IBX_TCP_PAD && frame->type != IBX_TCP_CHECK) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer sent a frame of type %d on bulk lane %u", frame->type,
                     lane->index);
        return;
    }
    switch (frame->type) {
    case IBX_TCP_MESSAGE:
        ibx_tcp_on_message(lane, frame);
        break;
    case IBX_TCP_READ:
        on_read(lane, frame);
        break;
    case IBX_TCP_DATA:
        on_data(lane, frame);
        break;
    case IBX_TCP_WRITE:
        on_write(lane, frame);
        break;
    case IBX_TCP_ACK:
    case IBX_TCP_NAK:
        on_ack(lane, frame);
        break;
    case IBX_TCP_CREDIT:
        ibx_tcp_on_credits(tcp, frame->credits);
        break;
    case IBX_TCP_PAD:
        ibx_tcp_lane_expect(lane, TCP_INPUT_PAD, NULL, NULL, frame->length);
        break;
    case IBX_TCP_CHECK:
        ibx_tcp_on_check(lane, frame);
        break;
    }
}

void ibx_tcp_on_body(struct tcp_lane *lane)
{
    unsigned kind = lane->input.now;
    if (!ibx_tcp_move(lane->tcp, &lane->input, TCP_INPUT_HEADER))
        return;
    if (kind == TCP_INPUT_MESSAGE)
        ibx_tcp_on_message_end(lane->tcp, lane->body);
    else if (kind == TCP_INPUT_DATA)
        post_finish(lane->tcp, lane->body_owner, 0);
    else if (kind == TCP_INPUT_WRITE)
        job_answer(lane->tcp, lane->body_owner);
    lane->body = NULL;
}

void ibx_tcp_on_item_sent(struct tcp *tcp, struct tcp_item *item)
{
    switch (item->kind) {
    case TCP_ITEM_SEND:
        ibx_tcp_on_send_gone(tcp, (struct tcp_send *)item);
        break;
    case TCP_ITEM_POST:
        on_post_sent(tcp, (struct tcp_post *)item);
        break;
    case TCP_ITEM_JOB:
        job_free(tcp, (struct tcp_job *)item);
        break;
    case TCP_ITEM_CREDIT:
        tcp->credit_queued = false;
        break;
    case TCP_ITEM_PAD:
        ibx_tcp_on_pad_sent((struct tcp_pad *)item);
        break;
    case TCP_ITEM_CHECK:
        ((struct tcp_check *)item)->queued = false;
        break;
    }
}

bool ibx_tcp_posts_have_answered(const struct tcp *tcp)
{
    unsigned i = 0;
    while (i < tcp->mine.depth && tcp->posts[i].state.now != TCP_POST_ANSWERED)
        i++;
    return i < tcp->mine.depth;
}

void ibx_tcp_posts_flush(struct tcp *tcp, int status)
{
    for (unsigned i = 0; i < tcp->mine.depth; i++) {
        if (tcp->posts[i].state.now != TCP_POST_FREE)
            post_finish(tcp, &tcp->posts[i], status);
    }
}
