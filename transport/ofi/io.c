/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Chunks, completions, sleeping, the end. */
#include "transport/ofi/ofi.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BATCH                16
#define BATCHES_PER_PROGRESS 4
#define NAP_SHORTEST_NS      50000L     /* about what a sleep costs anyway */
#define NAP_LONGEST_NS       1000000L   /* what a message may be late without a descriptor */
#define NAP_BESIDE_FD_NS     100000000L /* where the descriptor ought to suffice */
#define LOST_RECEIVES_MAX    64u
#define POLLS_PER_CLOCK      256u
#define LAST_TRANSFERS_MS    1000u
#define CLOSE_MS             100u /* for an endpoint that is busy */

int ibx_ofi_errno(int code)
{
    switch (code) {
    case FI_ETRUNC:
        return -EMSGSIZE;
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
        return -EACCES;
    case FI_EOVERRUN:
        return -EOVERFLOW;
    default:
        return code > 0 && code < FI_ERRNO_OFFSET ? -code : -EIO;
    }
}

void ibx_ofi_fail(struct ofi_endpoint *e, int status, const char *format, ...)
{
    char reason[IBX_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    if (e->state.now == OFI_LIVE)
        e->link->up->lost(e->link, status, reason);
    else if (e->state.now == OFI_SETUP && !e->failure.code)
        ibx_error_set(&e->failure, status, "%s", reason);
}

bool ibx_ofi_move(struct ofi_endpoint *e, struct ibx_state_machine *machine, unsigned to)
{
    if (!ibx_state_move(machine, to))
        return true;
    ibx_ofi_fail(e, -EINVAL, "internal error: an %s made a move that its state forbids",
                 machine->table->machine);
    return false;
}

/* Whether the peer has closed the handshake's socket. */
static bool peer_gone(const struct ofi_endpoint *e)
{
    struct pollfd socket = {.fd = ibx_link_socket(e->link), .events = POLLRDHUP};
    return poll(&socket, 1, 0) > 0;
}

bool ibx_ofi_would_lose(const struct ofi_endpoint *e)
{
    return !e->choice.native && peer_gone(e);
}

/* -------------------------------------------------------------------- chunks */

int ibx_ofi_io_init(struct ofi_endpoint *e, struct ibx_error *err)
{
    e->over_tail = &e->over;
    e->work_count = e->depth + OFI_URGENT_CHUNKS;
    e->works = calloc(e->work_count, sizeof(*e->works));
    if (!e->works)
        return ibx_error_set(err, -ENOMEM, "no memory for %u chunks", e->work_count);
    for (unsigned i = e->work_count; i-- > 0;) {
        e->works[i].use = OFI_USE_CHUNK;
        e->works[i].next = e->free_works;
        e->free_works = &e->works[i];
    }
    return 0;
}

/* A WRITE has to complete when it is visible: by a flag, or else the messages that follow are
 * ordered after it. libfabric's shm copies by itself, without a check of keys and bounds, unless
 * the same flag makes the target do it; what the target then refuses is never answered
 * (check_silence()). */
static uint64_t completion_flags(const struct ofi_endpoint *e, enum ibx_rdma_kind kind)
{
    bool complete = kind == IBX_RDMA_WRITE ? e->choice.delivery_complete : e->is_shm;
    return FI_COMPLETION | (complete ? FI_DELIVERY_COMPLETE : 0);
}

int ibx_ofi_io_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct ofi_endpoint *e = endpoint;
    struct ofi_request *r = e->free_works;
    if (ibx_ofi_stopped(e))
        return -ENOTCONN;
    if (!r)
        return -EAGAIN;
    unsigned index = chunk->lane < e->lane_count ? chunk->lane : e->lane_count - 1;
    struct ofi_lane *lane = &e->lanes[index];
    void *desc = ((struct ofi_region *)chunk->mr->provider_data)->desc;
    struct iovec iov = {chunk->local, chunk->length};
    struct fi_rma_iov remote = {
        .addr = chunk->remote_address - chunk->remote_keys[1],
        .len = chunk->length,
        .key = chunk->remote_keys[0],
    };
    struct fi_msg_rma msg = {
        .msg_iov = &iov,
        .desc = &desc,
        .iov_count = 1,
        .addr = lane->peer,
        .rma_iov = &remote,
        .rma_iov_count = 1,
        .context = &r->context,
    };
    uint64_t flags = completion_flags(e, chunk->kind);
    ssize_t rc = chunk->kind == IBX_RDMA_READ ? fi_readmsg(lane->ep, &msg, flags)
                                              : fi_writemsg(lane->ep, &msg, flags);
    if (rc == -FI_EAGAIN) {
        e->refused = true;
        return -EAGAIN;
    }
    if (rc)
        return ibx_ofi_errno((int)-rc);
    e->free_works = r->next;
    r->chunk = chunk;
    r->busy = true;
    r->epoch = e->epoch;
    e->in_flight++;
    if (!e->chunks_in_flight++)
        e->silent_since = 0;
    return 0;
}

/* libfabric is done with a chunk or a send. It is reported later, from progress or abort: this may
 * run inside a deregistration. */
static void io_over(struct ofi_endpoint *e, struct ofi_request *r, int status)
{
    r->busy = false;
    r->status = status;
    r->next = NULL;
    *e->over_tail = r;
    e->over_tail = &r->next;
    e->in_flight--;
    if (r->use != OFI_USE_CHUNK)
        return;
    e->chunks_in_flight--;
    e->silent_since = 0;
    ibx_ofi_fence_on_chunk(e, r);
}

static void report(struct ofi_endpoint *e)
{
    struct ofi_request *r;
    while ((r = e->over)) {
        e->over = r->next;
        if (!e->over)
            e->over_tail = &e->over;
        struct ofi_request **list = r->use == OFI_USE_CHUNK ? &e->free_works : &e->free_sends;
        struct ibx_chunk *chunk = r->chunk;
        bool reported = r->use == OFI_USE_CHUNK || r->signaled;
        r->chunk = NULL;
        r->next = *list;
        *list = r;
        if (!reported)
            continue;
        e->made++;
        if (chunk)
            e->link->up->chunk_done(e->link, chunk, r->status);
        else
            e->link->up->send_done(e->link, r->cookie, r->status);
    }
}

/* --------------------------------------------------------------- completions */

static void completed(struct ofi_endpoint *e, const struct fi_cq_msg_entry *entry)
{
    struct ofi_request *r = entry->op_context;
    if (!r)
        return;
    if (r->use == OFI_USE_RECV) {
        e->receives_lost = 0;
        ibx_ofi_on_message(e, r, entry->len);
    }
    if (r->busy)
        io_over(e, r, 0);
}

static const char *name_of(const struct ofi_request *r)
{
    if (!r)
        return "an operation";
    if (r->use == OFI_USE_CHUNK)
        return r->chunk && r->chunk->kind == IBX_RDMA_READ ? "a READ" : "a WRITE";
    return r->use == OFI_USE_SEND ? "a message" : "a receive";
}

static void failed(struct ofi_endpoint *e, const struct fi_cq_err_entry *entry)
{
    struct ofi_request *r = entry->op_context;
    if (r && r->use == OFI_USE_RECV && entry->err == FI_ETRUNC) {
        ibx_ofi_on_truncated(e, r);
        return;
    }
    /* An unauthenticated sender that closes in the middle of a message spoils a receive, too. The
     * end of the peer itself shows at the handshake's socket. */
    if (r && r->use == OFI_USE_RECV && ++e->receives_lost < LOST_RECEIVES_MAX) {
        ibx_log(IBX_LOG_INFO, "ofi: a receive failed: %s", fi_strerror(entry->err));
        ibx_ofi_msg_repost(e, r);
        return;
    }
    char native[128] = "";
    const char *detail =
        fi_cq_strerror(e->cq, entry->prov_errno, entry->err_data, native, sizeof(native));
    int status = ibx_ofi_errno(entry->err);
    ibx_ofi_fail(e, status, "libfabric's %s reports that %s failed: %s (%s, code %d)",
                 e->own.provider, name_of(r), fi_strerror(entry->err),
                 detail ? detail : "no detail", entry->prov_errno);
    if (r && r->busy)
        io_over(e, r, status);
}

static bool take_error(struct ofi_endpoint *e)
{
    struct fi_cq_err_entry entry = {0};
    ssize_t n = fi_cq_readerr(e->cq, &entry, 0);
    if (n == 1)
        failed(e, &entry);
    return n == 1;
}

int ibx_ofi_io_take(struct ofi_endpoint *e)
{
    int taken = 0;
    for (int batch = 0; batch < BATCHES_PER_PROGRESS && e->state.now != OFI_CLOSED; batch++) {
        struct fi_cq_msg_entry entries[BATCH];
        ssize_t n = fi_cq_read(e->cq, entries, BATCH);
        if (n == -FI_EAGAIN || n == 0)
            break;
        if (n == -FI_EAVAIL) {
            if (!take_error(e))
                break;
            taken++;
            continue;
        }
        if (n < 0) {
            ibx_ofi_fail(e, ibx_ofi_errno((int)-n), "libfabric's %s has lost its completions: %s",
                         e->own.provider, fi_strerror((int)-n));
            break;
        }
        for (ssize_t i = 0; i < n; i++)
            completed(e, &entries[i]);
        taken += (int)n;
        if (n < BATCH)
            break;
    }
    return taken;
}

/* libfabric's shm has no timeout: the connection is lost when no chunk completes for timeout_ms. */
static void check_silence(struct ofi_endpoint *e)
{
    if (!e->is_shm || !e->chunks_in_flight)
        return;
    uint64_t now = ibx_now_ns();
    unsigned limit_ms = ibx_link_options(e->link)->timeout_ms;
    if (!e->silent_since)
        e->silent_since = now;
    else if (now - e->silent_since > limit_ms * IBX_NS_PER_MS)
        ibx_ofi_fail(e, -ETIMEDOUT,
                     "the peer has not answered a READ or WRITE over libfabric's %s for %u ms: it "
                     "does not poll, or refuses the access",
                     e->own.provider, limit_ms);
}

int ibx_ofi_io_close_lanes(struct ofi_endpoint *e)
{
    int rc = 0;
    ibx_ofi_mr_detach_all(e);
    for (unsigned i = 0; i < OFI_LANES_MAX; i++) {
        const int failed_by = e->lanes[i].ep ? fi_close(&e->lanes[i].ep->fid) : 0;
        if (!failed_by)
            e->lanes[i].ep = NULL;
        rc = rc ? rc : failed_by;
    }
    if (!rc && e->state.now != OFI_CLOSED)
        ibx_ofi_move(e, &e->state, OFI_CLOSED);
    return rc;
}

/* Closes the endpoints of a stopped connection: libfabric touches no memory of closed ones any
 * more. What was in flight is over, reported by the next progress or abort. */
static void close_stopped(struct ofi_endpoint *e)
{
    if (e->state.now == OFI_CLOSED)
        return;
    int rc = ibx_ofi_io_close_lanes(e);
    if (rc) {
        ibx_log(IBX_LOG_DEBUG, "ofi: an endpoint does not close yet: %s", fi_strerror(-rc));
        return;
    }
    for (unsigned i = 0; i < e->work_count; i++) {
        if (e->works[i].busy)
            io_over(e, &e->works[i], -ECONNRESET);
    }
    for (unsigned i = 0; i < e->send_count; i++) {
        if (e->sends[i].busy)
            io_over(e, &e->sends[i], -ECONNRESET);
    }
}

/* If its endpoint is closed in the middle of the answer, libfabric 1.17's tcp reports a READ twice,
 * the second time without a context; rxm uses that, and the process crashes. So what is in flight
 * first has time to end by itself, or by the end of its sockets when the peer has died. */
static void finish(struct ofi_endpoint *e)
{
    if (e->chunks_in_flight && ibx_now_ns() < e->abort_deadline)
        ibx_ofi_io_take(e);
    if (!e->chunks_in_flight || ibx_now_ns() >= e->abort_deadline)
        close_stopped(e);
    report(e);
}

int ibx_ofi_io_progress(void *endpoint)
{
    struct ofi_endpoint *e = endpoint;
    e->made = 0;
    if (ibx_ofi_stopped(e)) {
        finish(e);
        return e->made;
    }
    bool refused = e->refused;
    e->refused = false;
    ibx_ofi_msg_post(e);
    int taken = ibx_ofi_io_take(e);
    if (taken) {
        e->idle_since = 0;
        if (e->send_turn == OFI_SEND_REFUSED)
            e->send_turn = OFI_SEND_AGAIN;
    }
    report(e);
    ibx_ofi_msg_deliver(e);
    ibx_ofi_fence_answer(e);
    if (!taken && ++e->idle_polls % POLLS_PER_CLOCK == 0)
        check_silence(e);
    /* The core posts again what libfabric refused only after something happened; every other time
     * this counts as such, so that a dead peer is still detected. */
    if (refused && !taken && !e->made) {
        e->retry_turn = !e->retry_turn;
        return e->retry_turn;
    }
    /* A credit makes no upcall, but a sender may wait for it. */
    return taken + e->made;
}

/* ------------------------------------------------------------------- sleeping */

static void set_timer(struct ofi_endpoint *e, long ns)
{
    struct itimerspec spec = {.it_value.tv_nsec = ns};
    timerfd_settime(e->timer_fd, 0, &spec, NULL);
}

/* A nap lasts an eighth of the time since something happened: so a wait is longer by an eighth at
 * most. */
static long nap_length(struct ofi_endpoint *e)
{
    uint64_t now = ibx_now_ns();
    if (!e->idle_since)
        e->idle_since = now;
    uint64_t ns = (now - e->idle_since) / 8;
    if (ns < NAP_SHORTEST_NS)
        return NAP_SHORTEST_NS;
    return ns < NAP_LONGEST_NS ? (long)ns : NAP_LONGEST_NS;
}

bool ibx_ofi_io_nap(struct ofi_endpoint *e)
{
    struct fid *fids[] = {&e->cq->fid};
    if (e->cq_fd >= 0 && fi_trywait(e->home->fabric, fids, 1))
        return true;
    struct pollfd wait[2] = {
        {.fd = ibx_link_socket(e->link), .events = POLLRDHUP},
        {.fd = e->cq_fd, .events = POLLIN}, /* ignored when negative */
    };
    struct timespec limit = {.tv_nsec = e->cq_fd >= 0 ? NAP_LONGEST_NS : NAP_SHORTEST_NS};
    ppoll(wait, 2, &limit, NULL);
    return !(wait[0].revents & (POLLRDHUP | POLLHUP | POLLERR));
}

int ibx_ofi_io_arm(void *endpoint)
{
    struct ofi_endpoint *e = endpoint;
    if (ibx_ofi_stopped(e) || e->over)
        return 1;
    if (e->send_turn == OFI_SEND_AGAIN) { /* once */
        e->send_turn = OFI_SEND_TAKEN;
        return 1;
    }
    if (e->idle_recvs || ibx_ofi_msg_deliverable(e) || (e->refused && !e->in_flight))
        return 1;
    check_silence(e);
    if (e->cq_fd < 0) {
        set_timer(e, nap_length(e));
        return 0;
    }
    struct fid *fids[] = {&e->cq->fid};
    if (fi_trywait(e->home->fabric, fids, 1))
        return 1;
    if (e->timer_fd >= 0)
        set_timer(e, NAP_BESIDE_FD_NS);
    return 0;
}

/* --------------------------------------------------------------------- the end */

static void stop(struct ofi_endpoint *e)
{
    if (ibx_ofi_stopped(e))
        return;
    ibx_ofi_move(e, &e->state, OFI_STOPPED);
    e->abort_deadline = ibx_deadline_in_ms(LAST_TRANSFERS_MS);
}

void ibx_ofi_io_end(struct ofi_endpoint *e)
{
    stop(e);
    uint64_t now = ibx_now_ns();
    if (!e->end_deadline)
        e->end_deadline =
            (now < e->abort_deadline ? e->abort_deadline : now) + CLOSE_MS * IBX_NS_PER_MS;
    else if (now >= e->end_deadline)
        close_stopped(e);
    for (; e->state.now == OFI_STOPPED && now < e->end_deadline; now = ibx_now_ns()) {
        if (!e->chunks_in_flight || now >= e->abort_deadline)
            close_stopped(e);
        if (e->state.now == OFI_STOPPED && !ibx_ofi_io_take(e))
            poll(NULL, 0, 1);
    }
}

void ibx_ofi_io_abort(void *endpoint)
{
    struct ofi_endpoint *e = endpoint;
    stop(e);
    finish(e);
}
