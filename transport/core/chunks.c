/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* READs and WRITEs of any length as chunks in flight, and the event queue.
 *
 * Urgent work has chunks of its own, so that a page fault or a small call never waits for bulk
 * data. */
#include "transport/core/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define URGENT_CHUNKS 64u

static struct op_queue *queue_of(struct ibx_conn *conn, bool urgent)
{
    return urgent ? &conn->urgent : &conn->bulk;
}

static void give_back(struct op_queue *queue, struct ibx_chunk *chunk)
{
    chunk->next = queue->free;
    queue->free = chunk;
}

int ibx_chunks_init(struct ibx_conn *conn)
{
    unsigned total = conn->caps.depth + URGENT_CHUNKS;
    conn->chunks = calloc(total, sizeof(*conn->chunks));
    if (!conn->chunks)
        return -ENOMEM;
    for (unsigned i = 0; i < total; i++)
        give_back(i < conn->caps.depth ? &conn->bulk : &conn->urgent, &conn->chunks[i]);
    conn->bulk.tail = &conn->bulk.head;
    conn->urgent.tail = &conn->urgent.head;
    return 0;
}

static void free_queue(struct ibx_op *op)
{
    while (op) {
        struct ibx_op *next = op->next;
        free(op);
        op = next;
    }
}

void ibx_chunks_fini(struct ibx_conn *conn)
{
    free_queue(conn->bulk.head);
    free_queue(conn->urgent.head);
    free_queue(conn->free_ops);
    free(conn->chunks);
    free(conn->events.items);
}

/* ------------------------------------------------------------------- events */

/* Room for `more` events beyond those queued and promised. */
static int events_reserve(struct event_ring *ring, unsigned more)
{
    if (ring->count + more <= ring->capacity)
        return 0;
    unsigned capacity = ring->capacity ? ring->capacity * 2 : 64;
    while (capacity < ring->count + more)
        capacity *= 2;
    struct ibx_event *items = malloc(capacity * sizeof(*items));
    if (!items)
        return -ENOMEM;
    for (unsigned i = 0; i < ring->count; i++)
        items[i] = ring->items[(ring->head + i) & (ring->capacity - 1)];
    free(ring->items);
    *ring = (struct event_ring){.items = items, .capacity = capacity, .count = ring->count};
    return 0;
}

int ibx_events_push(struct ibx_conn *conn, const struct ibx_event *event)
{
    struct event_ring *ring = &conn->events;
    int rc = events_reserve(ring, 1 + conn->events_reserved);
    if (rc)
        return rc;
    ring->items[(ring->head + ring->count++) & (ring->capacity - 1)] = *event;
    return 0;
}

bool ibx_events_pop(struct ibx_conn *conn, struct ibx_event *event)
{
    struct event_ring *ring = &conn->events;
    if (!ring->count)
        return false;
    *event = ring->items[ring->head];
    ring->head = (ring->head + 1) & (ring->capacity - 1);
    ring->count--;
    return true;
}

/* --------------------------------------------------------------------- work */

static void op_finish(struct ibx_conn *conn, struct ibx_op *op)
{
    struct ibx_event event = {
        .type = op->kind == IBX_RDMA_READ ? IBX_EVENT_READ : IBX_EVENT_WRITE,
        .status = op->status,
        .cookie = op->cookie,
    };
    conn->events_reserved--;
    ibx_events_push(conn, &event); /* cannot fail: the post has reserved its place */
    op->next = conn->free_ops;
    conn->free_ops = op;
}

/* Takes the first op off its queue: no more of it is given to the provider. */
static void queue_pop(struct ibx_conn *conn, struct op_queue *queue)
{
    struct ibx_op *op = queue->head;
    queue->head = op->next;
    if (!queue->head)
        queue->tail = &queue->head;
    op->next = NULL;
    op->left = 0;
    if (!op->outstanding)
        op_finish(conn, op);
}

static unsigned pick_lane(struct ibx_conn *conn, bool urgent)
{
    if (urgent || !conn->caps.lanes)
        return 0;
    conn->next_lane = (conn->next_lane + 1) % conn->caps.lanes;
    return 1 + conn->next_lane;
}

/* Gives the provider the next chunk of the first op; -EAGAIN when no chunk or no lane is free. */
static int give_chunk(struct ibx_conn *conn, struct op_queue *queue)
{
    struct ibx_op *op = queue->head;
    struct ibx_chunk *chunk = queue->free;
    if (!chunk)
        return -EAGAIN;
    queue->free = chunk->next;
    *chunk = (struct ibx_chunk){
        .kind = op->kind,
        .local = op->local,
        .mr = op->mr,
        .remote_address = op->remote,
        .remote_keys = op->keys,
        .length = op->left < conn->caps.chunk ? op->left : conn->caps.chunk,
        .more = op->more,
        .op = op,
    };
    int rc = -EAGAIN;
    unsigned tries = op->urgent || !conn->caps.lanes ? 1 : conn->caps.lanes;
    while (rc == -EAGAIN && tries--) {
        chunk->lane = pick_lane(conn, op->urgent);
        rc = conn->provider->rdma(conn->endpoint, chunk);
    }
    if (rc) {
        give_back(queue, chunk);
        return rc;
    }
    op->outstanding++;
    conn->in_flight++;
    op->local += chunk->length;
    op->remote += chunk->length;
    op->left -= chunk->length;
    return 0;
}

static int dispatch_queue(struct ibx_conn *conn, struct op_queue *queue)
{
    while (queue->head) {
        struct ibx_op *op = queue->head;
        int rc = 0;
        while (op->left && !op->status && !rc)
            rc = give_chunk(conn, queue);
        if (rc)
            return rc;
        queue_pop(conn, queue);
    }
    return 0;
}

void ibx_chunks_dispatch(struct ibx_conn *conn)
{
    if (conn->state.now != CONN_ESTABLISHED)
        return;
    int rc = dispatch_queue(conn, &conn->urgent);
    if (!rc || rc == -EAGAIN)
        rc = dispatch_queue(conn, &conn->bulk);
    if (rc && rc != -EAGAIN)
        ibx_conn_lost(conn, rc, strerror(-rc));
}

static void flush_queue(struct ibx_conn *conn, struct op_queue *queue, int status)
{
    while (queue->head) {
        if (!queue->head->status)
            queue->head->status = status;
        queue_pop(conn, queue);
    }
}

void ibx_chunks_flush(struct ibx_conn *conn, int status)
{
    flush_queue(conn, &conn->urgent, status);
    flush_queue(conn, &conn->bulk, status);
}

void ibx_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    struct ibx_conn *conn = link->conn;
    struct ibx_op *op = chunk->op;
    chunk->op = NULL;
    give_back(queue_of(conn, op->urgent), chunk);
    conn->in_flight--;
    op->outstanding--;
    if (status && !op->status)
        op->status = status;
    /* An op with bytes left is still in its queue; dispatch finishes it there. */
    if (!op->outstanding && !op->left)
        op_finish(conn, op);
}

/* --------------------------------------------------------------------- posts */

static struct ibx_op *op_take(struct ibx_conn *conn)
{
    if (events_reserve(&conn->events, conn->events_reserved + 2))
        return NULL;
    struct ibx_op *op = conn->free_ops;
    if (op)
        conn->free_ops = op->next;
    else
        op = malloc(sizeof(*op));
    if (op)
        conn->events_reserved++;
    return op;
}

static bool inside(uint64_t start, uint64_t length, uint64_t outer_start, uint64_t outer_length)
{
    return start >= outer_start && start - outer_start <= outer_length &&
           length <= outer_length - (start - outer_start);
}

static int post(struct ibx_conn *conn, enum ibx_rdma_kind kind, struct ibx_mr *mr, void *local,
                const struct ibx_remote *remote, uint64_t offset, size_t length, uint64_t cookie,
                unsigned flags)
{
    if (!ibx_conn_is_up(conn))
        return -ENOTCONN;
    if (offset > remote->length || length > remote->length - offset ||
        remote->address + offset < remote->address ||
        remote->address + offset + length < remote->address)
        return -ERANGE;
    if (length && !inside((uintptr_t)local, length, (uintptr_t)mr->span.address, mr->span.length))
        return -ERANGE;
    if (mr->dead)
        return -EOPNOTSUPP;
    struct ibx_op *op = op_take(conn);
    if (!op)
        return -ENOMEM;
    *op = (struct ibx_op){
        .kind = kind,
        .urgent = flags & IBX_URGENT,
        .more = flags & IBX_MORE,
        .cookie = cookie,
        .mr = mr,
        .local = local,
        .remote = remote->address + offset,
        .left = length,
    };
    memcpy(op->keys, remote->keys, sizeof(op->keys));
    struct op_queue *queue = queue_of(conn, op->urgent);
    *queue->tail = op;
    queue->tail = &op->next;
    ibx_chunks_dispatch(conn);
    return 0;
}

int ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
             uint64_t offset, size_t length, uint64_t cookie, unsigned flags)
{
    return post(conn, IBX_RDMA_READ, mr, local, remote, offset, length, cookie, flags);
}

int ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
              const struct ibx_remote *remote, uint64_t offset, size_t length, uint64_t cookie,
              unsigned flags)
{
    /* The local side of a WRITE is only read; chunks serve both directions. */
    return post(conn, IBX_RDMA_WRITE, mr, (void *)(uintptr_t)local, remote, offset, length, cookie,
                flags);
}
