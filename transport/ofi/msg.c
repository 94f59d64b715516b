/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages over libfabric: a header with a cookie, receives posted ahead, a credit for each, and
 * the order of sending.
 *
 * Receives complete in any order (a layered provider may fetch long messages by rendezvous while
 * short ones overtake them), so DATA waits in a window for its turn.
 */
#include "transport/ofi/ofi.h"
#include "transport/core/crypto.h"

#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct header {
    uint64_t cookie;
    uint32_t sequence, length;
    uint16_t credits;
    uint8_t kind, lane;
};

static void put_header(uint8_t *out, const struct header *h)
{
    struct ibx_writer w = ibx_writer_of(out, OFI_HEADER_BYTES);
    ibx_put_u64(&w, h->cookie);
    ibx_put_u32(&w, h->sequence);
    ibx_put_u32(&w, h->length);
    ibx_put_u16(&w, h->credits);
    ibx_put_u8(&w, h->kind);
    ibx_put_u8(&w, h->lane);
    ibx_put_u32(&w, 0);
}

static struct header get_header(const uint8_t *bytes)
{
    struct ibx_reader r = ibx_reader_of(bytes, OFI_HEADER_BYTES);
    struct header h;
    h.cookie = ibx_get_u64(&r);
    h.sequence = ibx_get_u32(&r);
    h.length = ibx_get_u32(&r);
    h.credits = ibx_get_u16(&r);
    h.kind = ibx_get_u8(&r);
    h.lane = ibx_get_u8(&r);
    return h;
}

/* ------------------------------------------------------------------- buffers */

/* CREDIT messages need no credit, but they need a posted receive. Each gives back at least as many
 * credits as the peer was known to have, so those not yet seen by the peer are about
 * log2(slots). */
static unsigned spare_recvs(unsigned slots)
{
    unsigned spare = 6; /* HELLO, FENCE and FENCED too */
    while (slots >>= 1)
        spare++;
    return spare;
}

static void free_list_push(struct ofi_request **list, struct ofi_request *r)
{
    r->next = *list;
    *list = r;
}

static struct ofi_request *free_list_pop(struct ofi_request **list)
{
    struct ofi_request *r = *list;
    if (r)
        *list = r->next;
    return r;
}

static const struct ibx_state recv_states[] = {
    [OFI_RECV_IDLE] = {"idle", IBX_TO(OFI_RECV_POSTED) | IBX_TO(OFI_RECV_WAITING),
                       IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [OFI_RECV_POSTED] = {"posted", IBX_TO(OFI_RECV_IDLE), 0},
    [OFI_RECV_WAITING] = {"waiting", IBX_TO(OFI_RECV_HELD), 0},
    [OFI_RECV_HELD] = {"held", IBX_TO(OFI_RECV_IDLE), 0}};
static const struct ibx_state_table recv_table = IBX_STATE_TABLE("ofi receive", recv_states);

static void lay_out_buffers(struct ofi_endpoint *e, unsigned lane0_recvs)
{
    uint8_t *next = e->memory;
    for (unsigned i = 0; i < e->recv_count; i++, next += e->buffer_bytes) {
        struct ofi_request *r = &e->recvs[i];
        r->use = OFI_USE_RECV;
        ibx_state_begin(&r->state, &recv_table, OFI_RECV_IDLE);
        r->lane = i < lane0_recvs ? 0 : 1 + (i - lane0_recvs) / 2;
        r->buffer = next;
        free_list_push(&e->idle_recvs, r);
    }
    for (unsigned i = 0; i < e->send_count; i++, next += e->buffer_bytes) {
        struct ofi_request *r = &e->sends[i];
        r->use = OFI_USE_SEND;
        r->buffer = next;
        free_list_push(&e->free_sends, r);
    }
}

/* Two for the HELLO of every further lane: an unauthenticated message may use up one. */
static unsigned recvs_of(unsigned slots, unsigned lanes)
{
    return slots + spare_recvs(slots) + 2 * (lanes - 1);
}

static unsigned sends_of(unsigned slots, unsigned lanes)
{
    return slots + spare_recvs(slots) + lanes;
}

static size_t buffer_of(size_t message)
{
    return (OFI_HEADER_BYTES + message + 63) & ~(size_t)63;
}

size_t ibx_ofi_msg_memory(unsigned slots, size_t message, unsigned lanes)
{
    return (recvs_of(slots, lanes) + sends_of(slots, lanes)) * buffer_of(message);
}

int ibx_ofi_msg_init(struct ofi_endpoint *e, struct ibx_error *err)
{
    unsigned slots = e->own.slots, lane0_recvs = recvs_of(slots, 1);
    e->recv_count = recvs_of(slots, e->lane_count);
    e->send_count = sends_of(slots, e->lane_count);
    e->window_mask = 1;
    while (e->window_mask < slots)
        e->window_mask <<= 1;
    e->buffer_bytes = buffer_of(e->own.message);
    e->memory_bytes = e->buffer_bytes * (e->recv_count + e->send_count);
    e->recvs = calloc(e->recv_count, sizeof(*e->recvs));
    e->sends = calloc(e->send_count, sizeof(*e->sends));
    e->window = calloc(e->window_mask, sizeof(struct ofi_request *));
    void *memory =
        mmap(NULL, e->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED)
        e->memory = memory;
    if (!e->recvs || !e->sends || !e->window || !e->memory)
        return ibx_error_set(err, -ENOMEM, "no memory for %u messages of %u bytes",
                             e->recv_count + e->send_count, e->own.message);
    e->window_mask--;
    lay_out_buffers(e, lane0_recvs);
    return 0;
}

void ibx_ofi_msg_fini(struct ofi_endpoint *e)
{
    if (e->memory)
        munmap(e->memory, e->memory_bytes);
    free(e->recvs);
    free(e->sends);
    free(e->window);
}

static void post_recv(struct ofi_endpoint *e, struct ofi_request *r)
{
    /* An old cookie must not authenticate a message that is truncated. */
    memset(r->buffer, 0, OFI_HEADER_BYTES);
    ssize_t rc = fi_recv(e->lanes[r->lane].ep, r->buffer, e->buffer_bytes, e->memory_desc,
                         FI_ADDR_UNSPEC, &r->context);
    if (!rc) {
        ibx_ofi_move(e, &r->state, OFI_RECV_POSTED);
        if (r->owes_credit)
            e->returned++;
        r->owes_credit = false;
        return;
    }
    free_list_push(&e->idle_recvs, r);
    if (rc != -FI_EAGAIN)
        ibx_ofi_fail(e, ibx_ofi_errno((int)-rc), "libfabric's %s takes no receive: %s",
                     e->own.provider, fi_strerror((int)-rc));
}

void ibx_ofi_msg_repost(struct ofi_endpoint *e, struct ofi_request *r)
{
    if (ibx_ofi_move(e, &r->state, OFI_RECV_IDLE) && !ibx_ofi_stopped(e))
        post_recv(e, r);
}

void ibx_ofi_msg_post(struct ofi_endpoint *e)
{
    struct ofi_request *list = e->idle_recvs;
    e->idle_recvs = NULL;
    while (list) {
        struct ofi_request *r = free_list_pop(&list);
        if (e->lanes[r->lane].ep) /* hardware may have had fewer endpoints */
            post_recv(e, r);
    }
}

/* ------------------------------------------------------------------- sending */

/* Gives the message in r->buffer to libfabric. */
static ssize_t post(struct ofi_endpoint *e, struct ofi_request *r, const struct ofi_lane *lane,
                    size_t length)
{
    if (!r->signaled && length <= e->choice.info->tx_attr->inject_size) {
        ssize_t rc = fi_inject(lane->ep, r->buffer, length, lane->peer);
        if (!rc)
            free_list_push(&e->free_sends, r);
        return rc;
    }
    ssize_t rc = fi_send(lane->ep, r->buffer, length, e->memory_desc, lane->peer, &r->context);
    if (!rc) {
        r->busy = true;
        e->in_flight++;
    }
    return rc;
}

/* Sends a message on lane h.lane. DATA and CREDIT carry the credits that are due. `cookie` is
 * reported by send_done() if `signaled`. */
static int send_message(struct ofi_endpoint *e, struct header h, const struct iovec *iov,
                        int iovcnt, uint64_t cookie, bool signaled)
{
    struct ofi_request *r = ibx_ofi_would_lose(e) ? NULL : free_list_pop(&e->free_sends);
    if (!r)
        return -EAGAIN;
    h.cookie = e->cookie_out;
    h.credits = h.kind == OFI_DATA || h.kind == OFI_CREDIT ? (uint16_t)e->returned : 0;
    put_header(r->buffer, &h);
    ibx_gather(r->buffer + OFI_HEADER_BYTES, iov, iovcnt);
    r->signaled = signaled;
    r->cookie = cookie;
    ssize_t rc = post(e, r, &e->lanes[h.lane], OFI_HEADER_BYTES + h.length);
    if (!rc) {
        e->missing -= h.credits;
        e->returned -= h.credits;
        return 0;
    }
    free_list_push(&e->free_sends, r);
    if (rc == -FI_EAGAIN) {
        e->refused = true;
        return -EAGAIN;
    }
    ibx_ofi_fail(e, ibx_ofi_errno((int)-rc), "libfabric's %s cannot send: %s", e->own.provider,
                 fi_strerror((int)-rc));
    return ibx_ofi_errno((int)-rc);
}

int ibx_ofi_msg_hello(struct ofi_endpoint *e, unsigned lane)
{
    struct iovec proof = {e->proof_out, IBX_PROOF_BYTES};
    return send_message(
        e, (struct header){.kind = OFI_HELLO, .lane = (uint8_t)lane, .length = IBX_PROOF_BYTES},
        &proof, 1, 0, false);
}

int ibx_ofi_msg_control(struct ofi_endpoint *e, enum ofi_kind kind, uint32_t number)
{
    return send_message(e, (struct header){.kind = (uint8_t)kind, .sequence = number}, NULL, 0, 0,
                        false);
}

int ibx_ofi_msg_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                     uint64_t cookie, unsigned flags)
{
    struct ofi_endpoint *e = endpoint;
    if (ibx_ofi_stopped(e))
        return -ENOTCONN;
    e->send_turn = OFI_SEND_REFUSED;
    if (e->credits < (flags & IBX_SPARING ? 2 : 1))
        return -EAGAIN;
    struct header h = {.kind = OFI_DATA, .sequence = e->next_send, .length = (uint32_t)length};
    int rc = send_message(e, h, iov, iovcnt, cookie, flags & IBX_SIGNALED);
    if (rc)
        return rc;
    e->send_turn = OFI_SEND_TAKEN;
    e->next_send++;
    e->credits--;
    return 0;
}

/* Sends a CREDIT when as many credits are due as the peer is known to have left. */
static void send_credits(struct ofi_endpoint *e)
{
    if (e->returned && e->returned >= e->own.slots - e->missing)
        ibx_ofi_msg_control(e, OFI_CREDIT, 0);
}

void ibx_ofi_msg_release(void *endpoint, uint64_t slot)
{
    struct ofi_endpoint *e = endpoint;
    if (slot >= e->recv_count || e->recvs[slot].state.now != OFI_RECV_HELD)
        return;
    struct ofi_request *r = &e->recvs[slot];
    if (!ibx_ofi_move(e, &r->state, OFI_RECV_IDLE) || ibx_ofi_stopped(e))
        return;
    r->owes_credit = true;
    post_recv(e, r);
    send_credits(e);
}

/* ------------------------------------------------------------------- receiving */

static void on_hello(struct ofi_endpoint *e, const struct header *h, const struct ofi_request *r)
{
    struct ofi_lane *lane = &e->lanes[r->lane];
    const uint8_t *proof = r->buffer + OFI_HEADER_BYTES;
    if (h->length != IBX_PROOF_BYTES || h->lane != r->lane || !ibx_hash_equal(proof, e->proof_in))
        ibx_log(IBX_LOG_INFO, "ofi: a HELLO without a valid proof was dropped");
    else if (lane->state.now == OFI_LANE_NEW)
        ibx_ofi_move(e, &lane->state, OFI_LANE_PROVEN);
    else if (lane->state.now == OFI_LANE_SENT)
        ibx_ofi_move(e, &lane->state, OFI_LANE_READY);
}

/* Keeps DATA until its turn; false when the peer broke the protocol. */
static bool on_data(struct ofi_endpoint *e, const struct header *h, struct ofi_request *r)
{
    struct ofi_request **entry = &e->window[h->sequence & e->window_mask];
    if (h->sequence - e->next_deliver >= e->own.slots || *entry || r->lane ||
        h->length > e->own.message || e->missing >= e->own.slots) { /* more than it has credits */
        ibx_ofi_fail(e, -EPROTO, "the peer sent message %u of %u bytes when %u was expected",
                     h->sequence, h->length, e->next_deliver);
        return false;
    }
    *entry = r;
    e->missing++;
    return ibx_ofi_move(e, &r->state, OFI_RECV_WAITING);
}

void ibx_ofi_on_message(struct ofi_endpoint *e, struct ofi_request *r, size_t length)
{
    struct header h = {0};
    if (length >= OFI_HEADER_BYTES)
        h = get_header(r->buffer);
    r->length = length;
    ibx_ofi_move(e, &r->state, OFI_RECV_IDLE);
    bool genuine = length >= OFI_HEADER_BYTES && h.cookie == e->cookie_in;
    if (!genuine) {
        ibx_log(IBX_LOG_INFO, "ofi: a message of %zu bytes without its cookie was dropped", length);
    } else if (h.length != length - OFI_HEADER_BYTES || h.kind < OFI_HELLO || h.kind > OFI_FENCED) {
        ibx_ofi_fail(e, -EPROTO, "the peer sent a malformed message of %zu bytes", length);
    } else if (h.credits > e->peer.slots - e->credits) {
        ibx_ofi_fail(e, -EPROTO, "the peer returned %u credits, more than it had received",
                     h.credits);
    } else {
        e->credits += h.credits;
        if (h.kind == OFI_HELLO)
            on_hello(e, &h, r);
        if (h.kind == OFI_FENCE)
            ibx_ofi_on_fence(e, h.sequence);
        if (h.kind == OFI_FENCED)
            ibx_ofi_on_fenced(e, h.sequence);
        if (h.kind == OFI_DATA && on_data(e, &h, r))
            return;
    }
    if (!ibx_ofi_stopped(e))
        post_recv(e, r);
}

/* The message was longer than any receive. Our peer knows the limit, so a message without the
 * cookie is not from it. */
void ibx_ofi_on_truncated(struct ofi_endpoint *e, struct ofi_request *r)
{
    if (get_header(r->buffer).cookie == e->cookie_in)
        ibx_ofi_fail(e, -EPROTO, "the peer sent a message longer than %u bytes", e->own.message);
    else
        ibx_log(IBX_LOG_INFO, "ofi: an overlong message without its cookie was dropped");
    ibx_ofi_msg_repost(e, r);
}

bool ibx_ofi_msg_deliverable(const struct ofi_endpoint *e)
{
    return e->window[e->next_deliver & e->window_mask];
}

void ibx_ofi_msg_deliver(struct ofi_endpoint *e)
{
    while (!ibx_ofi_stopped(e) && ibx_ofi_msg_deliverable(e)) {
        struct ofi_request **entry = &e->window[e->next_deliver & e->window_mask];
        struct ofi_request *r = *entry;
        *entry = NULL;
        e->next_deliver++;
        ibx_ofi_move(e, &r->state, OFI_RECV_HELD);
        e->made++;
        e->link->up->message(e->link, r->buffer + OFI_HEADER_BYTES, r->length - OFI_HEADER_BYTES,
                             (uint64_t)(r - e->recvs));
    }
    if (!ibx_ofi_stopped(e))
        send_credits(e);
}
