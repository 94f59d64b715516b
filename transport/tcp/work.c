/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What frames mean, and one-sided work: posts of this side, jobs for the peer. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct tcp_letter, item) == 0 && offsetof(struct tcp_post, item) == 0 &&
                   offsetof(struct tcp_job, item) == 0,
               "an item is cast to the struct that it begins");

int ibx_tcp_work_init(struct tcp *tcp, struct ibx_error *err)
{
    tcp->posts = calloc(tcp->mine.depth, sizeof(*tcp->posts));
    tcp->jobs = calloc(tcp->peer.depth, sizeof(*tcp->jobs));
    if (!tcp->posts || !tcp->jobs)
        return ibx_error_set(err, -ENOMEM, "no memory for %u requests in flight; lower depth",
                             tcp->mine.depth);
    for (unsigned i = tcp->mine.depth; i-- > 0; tcp->posts_free = &tcp->posts[i])
        tcp->posts[i].next = tcp->posts_free;
    for (unsigned i = tcp->peer.depth; i-- > 0; tcp->jobs_free = &tcp->jobs[i])
        tcp->jobs[i].next = tcp->jobs_free;
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
    post->chunk = NULL;
    post->state = TCP_POST_FREE;
    post->generation++;
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
    if (!post || tcp->status) /* progress has the sentence for the latter */
        return -EAGAIN;
    tcp->posts_free = post->next;
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
    post->notices = 0;
    post->state = TCP_POST_QUEUED;
    ibx_tcp_lane_queue(&tcp->lanes[write ? chunk->lane : 0], &post->item);
    /* Urgent work leaves at once; bulk is gathered until the next turn. */
    if (chunk->lane == 0)
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
        if (post->state == TCP_POST_WAITING &&
            (frame->type == IBX_TCP_DATA ? read : frame->type == IBX_TCP_NAK || !read))
            return post;
        /* The ring may hear of the answer before it hears that the request has left. */
        if (post->state == TCP_POST_QUEUED && !read && frame->type != IBX_TCP_DATA &&
            tcp->lanes[post->chunk->lane].ring_out)
            return post;
    }
    ibx_tcp_fail(tcp, -EPROTO, "the peer answered request %u, which is not waiting for that",
                 frame->id);
    return NULL;
}

static void data_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp_post *post = post_answered(lane, frame);
    if (!post)
        return;
    if (post->chunk->length != frame->length || post->chunk->lane != lane->index) {
        ibx_tcp_fail(lane->tcp, -EPROTO,
                     "the peer answered a READ of %zu bytes on lane %u with %u "
                     "bytes on lane %u",
                     post->chunk->length, post->chunk->lane, frame->length, lane->index);
        return;
    }
    post->state = TCP_POST_ARRIVING;
    lane->awaited--;
    lane->body = post->chunk->local;
    lane->body_left = frame->length;
    lane->body_kind = TCP_BODY_POST;
    lane->body_owner = post;
}

static void verdict_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    struct tcp_post *post = post_answered(lane, frame);
    int status = frame->type == IBX_TCP_ACK ? 0 : ibx_tcp_status_errno(frame->status);
    if (!post)
        return;
    if (post->state == TCP_POST_QUEUED || post->notices) {
        post->state = TCP_POST_ANSWERED;
        post->status = status;
        return;
    }
    if (post->chunk->kind == IBX_RDMA_READ)
        tcp->lanes[post->chunk->lane].awaited--;
    post_finish(tcp, post, status);
}

static void post_left(struct tcp *tcp, struct tcp_post *post)
{
    if (post->state == TCP_POST_ANSWERED) {
        if (!post->notices)
            post_finish(tcp, post, post->status);
        return;
    }
    post->state = TCP_POST_WAITING;
    if (post->chunk->kind == IBX_RDMA_READ)
        tcp->lanes[post->chunk->lane].awaited++;
}

void ibx_tcp_post_noticed(struct tcp *tcp, struct tcp_post *post)
{
    bool left = post->item.sent == sizeof(post->item.header) + post->item.length;
    post->notices--;
    if (!post->notices && left && post->state == TCP_POST_ANSWERED)
        post_finish(tcp, post, post->status);
}

/* ---------------------------------------------------------------- peer's requests */

static struct tcp_job *job_take(struct tcp *tcp, const struct ibx_tcp_frame *frame)
{
    struct tcp_job *job = tcp->jobs_free;
    if (!job) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer has more than the agreed %u requests in flight",
                     tcp->peer.depth);
        return NULL;
    }
    tcp->jobs_free = job->next;
    *job = (struct tcp_job){.id = frame->id, .next = tcp->jobs_used};
    if (job->next)
        job->next->prev = job;
    tcp->jobs_used = job;
    return job;
}

static void job_free(struct tcp *tcp, struct tcp_job *job)
{
    if (job->prev)
        job->prev->next = job->next;
    else
        tcp->jobs_used = job->next;
    if (job->next)
        job->next->prev = job->prev;
    job->state = TCP_JOB_FREE;
    job->mr = NULL;
    job->next = tcp->jobs_free;
    tcp->jobs_free = job;
}

static void job_answer(struct tcp *tcp, struct tcp_job *job)
{
    struct ibx_tcp_frame frame = {
        .type = job->status ? IBX_TCP_NAK : IBX_TCP_ACK, .status = job->status, .id = job->id};
    job->state = TCP_JOB_ANSWERING;
    job->mr = NULL;
    job->item = (struct tcp_item){0};
    ibx_tcp_item_init(&job->item, TCP_ITEM_JOB, &frame);
    ibx_tcp_lane_queue(&tcp->lanes[0], &job->item);
}

static void read_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    if (frame->lane > tcp->lane_count) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer wants an answer on lane %u of %u", frame->lane,
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
    job->state = TCP_JOB_SENDING;
    job->lane = &tcp->lanes[frame->lane];
    ibx_tcp_item_init(&job->item, TCP_ITEM_JOB, &data);
    job->item.body = (const uint8_t *)(uintptr_t)frame->address;
    job->item.length = frame->length;
    ibx_tcp_lane_queue(job->lane, &job->item);
}

static void write_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    struct tcp_job *job = job_take(tcp, frame);
    if (!job)
        return;
    job->status = ibx_tcp_region_find(tcp, frame, IBX_ACCESS_REMOTE_WRITE, &job->mr);
    job->state = TCP_JOB_RECEIVING;
    job->lane = lane;
    lane->body = job->status ? NULL : (uint8_t *)(uintptr_t)frame->address;
    lane->body_left = frame->length;
    lane->body_kind = TCP_BODY_JOB;
    lane->body_owner = job;
}

static void job_forget(struct tcp *tcp, struct tcp_job *job)
{
    job->status = IBX_TCP_STATUS_ACCESS;
    if (job->state == TCP_JOB_RECEIVING) {
        job->mr = NULL;
        job->lane->body = NULL; /* the rest goes nowhere */
    } else if (ibx_tcp_lane_unqueue(job->lane, &job->item)) {
        job_answer(tcp, job);
    } else {
        /* The peer has been promised more bytes than there are now. */
        job->mr = NULL;
        ibx_tcp_fail(tcp, -ECONNABORTED, "memory was deregistered while the peer was reading it");
        ibx_tcp_ring_settle(tcp);
    }
}

void ibx_tcp_jobs_forget(struct tcp *tcp, struct ibx_mr *mr)
{
    struct tcp_job *next;
    for (struct tcp_job *job = tcp->jobs_used; job; job = next) {
        next = job->next;
        if (job->mr != mr)
            continue;
        if (job->state == TCP_JOB_RECEIVING)
            ibx_tcp_ring_recall_input(job->lane);
        /* The recall may have brought the last bytes. */
        if (job->mr == mr)
            job_forget(tcp, job);
    }
}

/* ------------------------------------------------------------------- dispatching */

void ibx_tcp_frame_came(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    struct tcp *tcp = lane->tcp;
    if (lane->index && frame->type != IBX_TCP_DATA && frame->type != IBX_TCP_WRITE) {
        ibx_tcp_fail(tcp, -EPROTO, "the peer sent a frame of type %d on bulk lane %u", frame->type,
                     lane->index);
        return;
    }
    switch (frame->type) {
    case IBX_TCP_MESSAGE:
        ibx_tcp_message_came(lane, frame);
        break;
    case IBX_TCP_READ:
        read_came(lane, frame);
        break;
    case IBX_TCP_DATA:
        data_came(lane, frame);
        break;
    case IBX_TCP_WRITE:
        write_came(lane, frame);
        break;
    case IBX_TCP_ACK:
    case IBX_TCP_NAK:
        verdict_came(lane, frame);
        break;
    case IBX_TCP_CREDIT:
        ibx_tcp_credits_came(tcp, frame->credits);
        break;
    }
}

void ibx_tcp_body_came(struct tcp_lane *lane)
{
    enum tcp_body kind = lane->body_kind;
    lane->body_kind = TCP_BODY_NONE;
    if (kind == TCP_BODY_MESSAGE)
        ibx_tcp_message_whole(lane->tcp, lane->body);
    else if (kind == TCP_BODY_POST)
        post_finish(lane->tcp, lane->body_owner, 0);
    else if (kind == TCP_BODY_JOB)
        job_answer(lane->tcp, lane->body_owner);
    lane->body = NULL;
}

void ibx_tcp_item_left(struct tcp *tcp, struct tcp_item *item)
{
    switch (item->kind) {
    case TCP_ITEM_LETTER:
        ibx_tcp_letter_left(tcp, (struct tcp_letter *)item);
        break;
    case TCP_ITEM_POST:
        post_left(tcp, (struct tcp_post *)item);
        break;
    case TCP_ITEM_JOB:
        job_free(tcp, (struct tcp_job *)item);
        break;
    case TCP_ITEM_CREDIT:
        tcp->credit_queued = false;
        break;
    }
}

void ibx_tcp_posts_flush(struct tcp *tcp, int status)
{
    for (unsigned i = 0; i < tcp->mine.depth; i++) {
        if (tcp->posts[i].state != TCP_POST_FREE)
            post_finish(tcp, &tcp->posts[i], status);
    }
}
