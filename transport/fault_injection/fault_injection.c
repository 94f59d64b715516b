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

enum report_kind { REPORT_CHUNK, REPORT_MESSAGE, REPORT_SEND, REPORT_LOST };

/* A report of the inner endpoint on its way to the core. */
struct report {
    enum report_kind kind;
    int status;
    struct ibx_chunk *chunk;
    const void *data;
    size_t length;
    uint64_t token;        /* the slot of a message, the cookie of a send */
    unsigned long arrived; /* the poll during which it came */
    struct report *next;
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

    struct report *held, **held_tail;
    struct copy *copies;
    unsigned long polls;
    int reports;    /* made during this progress */
    bool break_now; /* disconnect_in was reached: reported at the next poll */
    bool cut;       /* by a message that did not arrive: none behind it does, either */
    bool aborted;
    char reason[192]; /* of the REPORT_LOST */
};

/* Counts one; true when it is the one to fail. */
static bool countdown(_Atomic unsigned *left)
{
    return *left && --*left == 0;
}

static void *allocate(size_t size)
{
    void *memory = malloc(size);
    if (!memory)
        abort(); /* only tests come here */
    return memory;
}

static void hold(struct injector *f, struct report report)
{
    struct report *held = allocate(sizeof(*held));
    *held = report;
    held->arrived = f->polls;
    *f->held_tail = held;
    f->held_tail = &held->next;
}

/* ------------------------------------------------------------- delivering */

static void flip_a_bit(uint8_t *bytes, size_t length)
{
    if (length)
        bytes[length / 2] ^= 1;
}

static void deliver_chunk(struct injector *f, const struct report *report)
{
    struct ibx_chunk *chunk = report->chunk;
    /* The CPU cannot reach GPU memory: the count goes on to a READ that can be corrupted. */
    if (!report->status && chunk->kind == IBX_RDMA_READ &&
        chunk->mr->span.kind == IBX_MEMORY_HOST && countdown(&f->faults->corrupt_in))
        flip_a_bit(chunk->local, chunk->length);
    f->core.up->chunk_done(&f->core, chunk, report->status);
}

static const void *corrupted_copy(struct injector *f, const struct report *message)
{
    struct copy *copy = allocate(sizeof(*copy) + message->length);
    if (message->length)
        memcpy(copy->data, message->data, message->length);
    flip_a_bit(copy->data, message->length);
    copy->slot = message->token;
    copy->next = f->copies;
    f->copies = copy;
    return copy->data;
}

static void deliver_message(struct injector *f, const struct report *message)
{
    bool dropped = false, corrupted = false;
    if (f->cut || f->aborted) /* its credit is not returned, as if it had not come */
        return;
    if (!dropped) {
        f->faults->seen++;
        dropped = countdown(&f->faults->drop_in);
        corrupted = countdown(&f->faults->corrupt_in);
        if (countdown(&f->faults->disconnect_in))
            f->break_now = f->cut = true;
    }
    if (f->cut)
        return;
    if (dropped)
        f->inner->release(f->endpoint, message->token);
    else
        f->core.up->message(&f->core, corrupted ? corrupted_copy(f, message) : message->data,
                            message->length, message->token);
}

static void deliver(struct injector *f, const struct report *report)
{
    f->reports++;
    if (report->kind == REPORT_CHUNK)
        deliver_chunk(f, report);
    else if (report->kind == REPORT_MESSAGE)
        deliver_message(f, report);
    else if (report->kind == REPORT_SEND)
        f->core.up->send_done(&f->core, report->token, report->status);
    else
        f->core.up->lost(&f->core, report->status, f->reason);
}

/* Takes each report out before making it: the core may abort from inside. */
static void deliver_due(struct injector *f)
{
    while (f->held && !f->break_now) {
        struct report *report = f->held;
        if (!f->aborted && f->polls - report->arrived < f->faults->delay_polls)
            return;
        f->held = report->next;
        if (!f->held)
            f->held_tail = &f->held;
        deliver(f, report);
        free(report);
    }
}

/* ----------------------------------------------- the inner endpoint's reports */

static void inner_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    hold(link->owner, (struct report){REPORT_CHUNK, .chunk = chunk, .status = status});
}

static void inner_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    hold(link->owner,
         (struct report){REPORT_MESSAGE, .data = data, .length = length, .token = slot});
}

static void inner_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    hold(link->owner, (struct report){REPORT_SEND, .token = cookie, .status = status});
}

static void inner_lost(struct ibx_link *link, int status, const char *reason)
{
    struct injector *f = link->owner;
    if (f->reason[0])
        return; /* the first counts */
    strncpy(f->reason, reason, sizeof(f->reason) - 1);
    hold(f, (struct report){REPORT_LOST, .status = status});
}

static const struct ibx_upcalls inner_upcalls = {inner_chunk_done, inner_message, inner_send_done,
                                                 inner_lost};

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

static bool cuts(const struct injector *f)
{
    return f->break_now || f->faults->disconnect_in == 1;
}

/* Counts a chunk or message that has left. */
static void passed(struct injector *f)
{
    f->faults->seen++;
    if (countdown(&f->faults->disconnect_in))
        f->break_now = true;
}

static int inject_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct injector *f = endpoint;
    int status = cuts(f) ? -ECONNRESET : f->faults->fail_in == 1 ? -EIO : 0;
    int rc = 0;
    if (status)
        hold(f, (struct report){REPORT_CHUNK, .chunk = chunk, .status = status});
    else
        rc = f->inner->rdma(f->endpoint, chunk);
    if (rc)
        return rc;
    countdown(&f->faults->fail_in);
    passed(f);
    return 0;
}

/* Sends the bytes of `iov` with one bit flipped. */
static int send_corrupted(struct injector *f, const struct iovec *iov, int iovcnt, size_t length,
                          uint64_t cookie, unsigned flags)
{
    uint8_t *bytes = allocate(length + 1);
    ibx_gather(bytes, iov, iovcnt);
    flip_a_bit(bytes, length);
    int rc = f->inner->send(f->endpoint, &(struct iovec){bytes, length}, 1, length, cookie, flags);
    free(bytes);
    return rc;
}

static int inject_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                       uint64_t cookie, unsigned flags)
{
    struct injector *f = endpoint;
    int rc = 0;
    if (f->break_now && !(flags & IBX_SIGNALED)) /* as without credit */
        return -EAGAIN;
    if (cuts(f) || f->faults->drop_in == 1) {
        int status = cuts(f) ? -ECONNRESET : 0;
        if (flags & IBX_SIGNALED)
            hold(f, (struct report){REPORT_SEND, .token = cookie, .status = status});
    } else if (f->faults->corrupt_in == 1) {
        rc = send_corrupted(f, iov, iovcnt, length, cookie, flags);
    } else {
        rc = f->inner->send(f->endpoint, iov, iovcnt, length, cookie, flags);
    }
    if (rc)
        return rc;
    countdown(&f->faults->drop_in);
    countdown(&f->faults->corrupt_in);
    passed(f);
    return 0;
}

static void inject_release(void *endpoint, uint64_t slot)
{
    struct injector *f = endpoint;
    struct copy **at = &f->copies;
    while (*at && (*at)->slot != slot)
        at = &(*at)->next;
    if (*at) {
        struct copy *copy = *at;
        *at = copy->next;
        free(copy);
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
        f->core.up->lost(&f->core, -ECONNRESET, "an injected fault broke the connection");
        return f->reports + 1;
    }
    int moved = f->inner->progress(f->endpoint);
    deliver_due(f);
    return f->reports ? f->reports : moved;
}

/* Only polls deliver reports, so there is no sleeping while some are held. */
static int inject_arm(void *endpoint)
{
    struct injector *f = endpoint;
    return f->held || f->break_now ? 1 : f->inner->arm(f->endpoint);
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
    while (f->held) {
        struct report *report = f->held;
        f->held = report->next;
        free(report);
    }
    free(f);
}

int ibx_fault_injection_attach(struct ibx_conn *conn, struct ibx_injected_faults *faults,
                               struct ibx_error *err)
{
    if (conn->state.now != CONN_ESTABLISHED)
        return ibx_error_set(err, -ENOTCONN, "faults need an established connection");
    struct injector *f = allocate(sizeof(*f));
    *f = (struct injector){
        .provider = {.name = conn->provider->name,
                     .takes_socket = conn->provider->takes_socket,
                     .mr_register = inject_mr_register,
                     .mr_deregister = inject_mr_deregister,
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
        .held_tail = &f->held,
    };
    conn->link = (struct ibx_link){.up = &inner_upcalls, .conn = conn, .owner = f};
    conn->provider = &f->provider;
    conn->endpoint = f;
    return 0;
}
