/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 *      core  --calls-->  fault injection  --calls-->  inner endpoint
 *      core  <--reports- fault injection  <--reports- inner endpoint
 */
#include "transport/fault_injection/fault_injection.h"

#include "transport/core/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum held_kind { HELD_CHUNK, HELD_MESSAGE, HELD_SEND, HELD_LOST };

/* A report of the inner endpoint on its way to the core. */
struct held {
    enum held_kind kind;
    int status;
    unsigned long arrived; /* the poll during which it came */
    struct ibx_chunk *chunk;
    const void *data;
    size_t length;
    uint64_t token; /* the slot of a message, the cookie of a send */
};

/* A corrupted message: the inner endpoint's own memory may be read-only. */
struct copy {
    struct copy *next;
    uint64_t slot;
    uint8_t data[];
};

struct injector {
    struct ibx_provider provider; /* takes the inner one's place in the connection */
    struct ibx_link core;         /* what the inner endpoint reported to before */
    struct ibx_injected_faults *faults;
    const struct ibx_provider *inner;
    void *endpoint; /* the inner one */

    struct held *ring; /* of `capacity`, a power of two; `count` from `head` on */
    size_t capacity;
    size_t head;
    size_t count;
    unsigned long polls;
    int reports; /* made during this progress */

    struct copy *copies;
    bool break_now; /* disconnect_in was reached: reported at the next poll */
    bool aborted;
    char reason[192]; /* of the HELD_LOST */
};

/* Lets one pass; true when it is the one that was meant. */
static bool countdown(unsigned *left)
{
    return *left && --*left == 0;
}

/* ---------------------------------------------------------------- holding */

static int ring_grow(struct injector *f)
{
    size_t capacity = f->capacity ? f->capacity * 2 : 64;
    struct held *ring = malloc(capacity * sizeof(*ring));
    if (!ring)
        return -ENOMEM;
    for (size_t i = 0; i < f->count; i++)
        ring[i] = f->ring[(f->head + i) & (f->capacity - 1)];
    free(f->ring);
    f->ring = ring;
    f->capacity = capacity;
    f->head = 0;
    return 0;
}

static int hold(struct injector *f, struct held held)
{
    if (f->count == f->capacity && ring_grow(f))
        return -ENOMEM;
    held.arrived = f->polls;
    f->ring[(f->head + f->count++) & (f->capacity - 1)] = held;
    return 0;
}

/* ------------------------------------------------------------- delivering */

static void flip_a_bit(uint8_t *bytes, size_t length)
{
    if (length)
        bytes[length / 2] ^= 1;
}

static void deliver_chunk(struct injector *f, const struct held *held)
{
    struct ibx_chunk *chunk = held->chunk;
    /* GPU memory is out of the CPU's reach: the count goes on to a READ that can be corrupted. */
    if (!held->status && chunk->kind == IBX_RDMA_READ && chunk->mr->span.kind == IBX_MEMORY_HOST &&
        countdown(&f->faults->corrupt_in))
        flip_a_bit(chunk->local, chunk->length);
    f->core.up->chunk_done(&f->core, chunk, held->status);
}

static void deliver_message(struct injector *f, const struct held *held)
{
    if (f->aborted) {
        f->inner->release(f->endpoint, held->token);
        return;
    }
    f->faults->seen++;
    bool dropped = countdown(&f->faults->drop_in);
    bool corrupted = countdown(&f->faults->corrupt_in);
    if (countdown(&f->faults->disconnect_in))
        f->break_now = dropped = true;
    if (dropped) {
        f->inner->release(f->endpoint, held->token);
        return;
    }
    const void *data = held->data;
    struct copy *copy = corrupted ? malloc(sizeof(*copy) + held->length) : NULL;
    if (copy) {
        if (held->length)
            memcpy(copy->data, held->data, held->length);
        flip_a_bit(copy->data, held->length);
        copy->slot = held->token;
        copy->next = f->copies;
        f->copies = copy;
        data = copy->data;
    }
    f->core.up->message(&f->core, data, held->length, held->token);
}

static void deliver(struct injector *f, const struct held *held)
{
    f->reports++;
    switch (held->kind) {
    case HELD_CHUNK:
        deliver_chunk(f, held);
        break;
    case HELD_MESSAGE:
        deliver_message(f, held);
        break;
    case HELD_SEND:
        f->core.up->send_done(&f->core, held->token, held->status);
        break;
    case HELD_LOST:
        f->core.up->lost(&f->core, held->status, f->reason);
        break;
    }
}

/* Takes each report out before making it: the core may abort from inside. */
static void deliver_due(struct injector *f)
{
    while (f->count && !f->break_now) {
        struct held held = f->ring[f->head];
        if (!f->aborted && f->polls - held.arrived < f->faults->delay_polls)
            return;
        f->head = (f->head + 1) & (f->capacity - 1);
        f->count--;
        deliver(f, &held);
    }
}

/* Without memory to hold a report nothing may be lost: everything goes out at once, in order. */
static void hold_or_deliver(struct injector *f, struct held held)
{
    if (!hold(f, held))
        return;
    while (f->count) {
        struct held first = f->ring[f->head];
        f->head = (f->head + 1) & (f->capacity - 1);
        f->count--;
        deliver(f, &first);
    }
    deliver(f, &held);
}

/* ----------------------------------------------- the inner endpoint's reports */

static void inner_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    hold_or_deliver(link->owner, (struct held){HELD_CHUNK, .chunk = chunk, .status = status});
}

static void inner_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    hold_or_deliver(link->owner,
                    (struct held){HELD_MESSAGE, .data = data, .length = length, .token = slot});
}

static void inner_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    hold_or_deliver(link->owner, (struct held){HELD_SEND, .token = cookie, .status = status});
}

static void inner_lost(struct ibx_link *link, int status, const char *reason)
{
    struct injector *f = link->owner;
    if (f->reason[0])
        return; /* the first counts */
    strncpy(f->reason, reason, sizeof(f->reason) - 1);
    hold_or_deliver(f, (struct held){HELD_LOST, .status = status});
}

static const struct ibx_upcalls inner_upcalls = {
    .chunk_done = inner_chunk_done,
    .message = inner_message,
    .send_done = inner_send_done,
    .lost = inner_lost,
};

/* -------------------------------------------------------- the core's calls */

static int inject_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    struct injector *f = endpoint;
    return f->inner->mr_register(f->endpoint, mr, err);
}

static void inject_mr_deregister(void *endpoint, struct ibx_mr *mr)
{
    struct injector *f = endpoint;
    f->inner->mr_deregister(f->endpoint, mr);
}

static const void *inject_remote_pointer(void *endpoint, const struct ibx_remote *remote)
{
    struct injector *f = endpoint;
    return f->inner->remote_pointer ? f->inner->remote_pointer(f->endpoint, remote) : NULL;
}

static int inject_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct injector *f = endpoint;
    struct ibx_injected_faults *faults = f->faults;
    bool cut = f->break_now || faults->disconnect_in == 1;
    int rc;

    if (cut)
        rc = hold(f, (struct held){HELD_CHUNK, .chunk = chunk, .status = -ECONNRESET});
    else if (faults->fail_in == 1)
        rc = hold(f, (struct held){HELD_CHUNK, .chunk = chunk, .status = -EIO});
    else
        rc = f->inner->rdma(f->endpoint, chunk);
    if (rc)
        return rc;
    faults->seen++;
    countdown(&faults->fail_in);
    if (countdown(&faults->disconnect_in))
        f->break_now = true;
    return 0;
}

/* Sends what `iov` holds with one bit flipped. */
static int send_corrupted(struct injector *f, const struct iovec *iov, int iovcnt, size_t length,
                          uint64_t cookie, unsigned flags)
{
    uint8_t *bytes = malloc(length ? length : 1);
    if (!bytes)
        return -ENOMEM;
    size_t at = 0;
    for (int i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len)
            memcpy(bytes + at, iov[i].iov_base, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    flip_a_bit(bytes, length);
    int rc = f->inner->send(f->endpoint, &(struct iovec){bytes, length}, 1, length, cookie, flags);
    free(bytes);
    return rc;
}

static int inject_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                       uint64_t cookie, unsigned flags)
{
    struct injector *f = endpoint;
    struct ibx_injected_faults *faults = f->faults;
    bool cut = f->break_now || faults->disconnect_in == 1;
    int rc = 0;

    if (cut || faults->drop_in == 1) {
        if (flags & IBX_SIGNALED)
            rc =
                hold(f, (struct held){HELD_SEND, .token = cookie, .status = cut ? -ECONNRESET : 0});
    } else if (faults->corrupt_in == 1) {
        rc = send_corrupted(f, iov, iovcnt, length, cookie, flags);
    } else {
        rc = f->inner->send(f->endpoint, iov, iovcnt, length, cookie, flags);
    }
    if (rc)
        return rc;
    faults->seen++;
    countdown(&faults->drop_in);
    countdown(&faults->corrupt_in);
    if (countdown(&faults->disconnect_in))
        f->break_now = true;
    return 0;
}

static void inject_release(void *endpoint, uint64_t slot)
{
    struct injector *f = endpoint;
    for (struct copy **at = &f->copies; *at; at = &(*at)->next) {
        if ((*at)->slot != slot)
            continue;
        struct copy *copy = *at;
        *at = copy->next;
        free(copy);
        break;
    }
    f->inner->release(f->endpoint, slot);
}

static int inject_progress(void *endpoint)
{
    struct injector *f = endpoint;
    f->polls++;
    f->reports = 0;
    if (f->break_now && !f->aborted) {
        f->break_now = false;
        f->reports++;
        f->core.up->lost(&f->core, -ECONNRESET, "an injected fault broke the connection");
        return f->reports;
    }
    int moved = f->inner->progress(f->endpoint);
    deliver_due(f);
    return f->reports ? f->reports : moved;
}

/* Reports are only let out by polls, so there is no sleeping while some are held. */
static int inject_arm(void *endpoint)
{
    struct injector *f = endpoint;
    return f->count || f->break_now ? 1 : f->inner->arm(f->endpoint);
}

static void inject_abort(void *endpoint)
{
    struct injector *f = endpoint;
    f->aborted = true;
    f->break_now = false;
    f->inner->abort(f->endpoint);
    deliver_due(f);
}

static void inject_close(void *endpoint)
{
    struct injector *f = endpoint;
    f->inner->close(f->endpoint);
    while (f->copies) {
        struct copy *copy = f->copies;
        f->copies = copy->next;
        free(copy);
    }
    free(f->ring);
    free(f);
}

int ibx_fault_injection_attach(struct ibx_conn *conn, struct ibx_injected_faults *faults,
                               struct ibx_error *err)
{
    if (conn->state.now != CONN_ESTABLISHED)
        return ibx_error_set(err, -ENOTCONN, "faults need an established connection");
    struct injector *f = calloc(1, sizeof(*f));
    if (!f)
        return ibx_error_set(err, -ENOMEM, "no memory for fault injection");
    *f = (struct injector){
        .provider = {.name = conn->provider->name,
                     .takes_socket = conn->provider->takes_socket,
                     .mr_register = inject_mr_register,
                     .mr_deregister = inject_mr_deregister,
                     .remote_pointer = inject_remote_pointer,
                     .rdma = inject_rdma,
                     .send = inject_send,
                     .release = inject_release,
                     .progress = inject_progress,
                     .arm = inject_arm,
                     .abort = inject_abort,
                     .close = inject_close},
        .core = conn->link,
        .faults = faults,
        .inner = conn->provider,
        .endpoint = conn->endpoint,
    };
    conn->link = (struct ibx_link){.up = &inner_upcalls, .conn = conn, .owner = f};
    conn->provider = &f->provider;
    conn->endpoint = f;
    return 0;
}
