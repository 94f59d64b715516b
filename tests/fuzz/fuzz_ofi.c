/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The ofi provider receives anything from a peer. An offer or answer that can be parsed encodes
 * to the same bytes; messages are delivered once each, in the order of their numbers, from the
 * buffer into which they were received. This file replaces libfabric's endpoint, and accepts
 * every receive and send.
 *
 *   first byte 0   the rest is an offer
 *   else           messages, each of them: u8 which of the posted receives, u8 what is filled in
 *                  (bit 0: the cookie; 1: the right length; 2: a sequence number near the next one;
 *                  3: the proof of a HELLO; 4: libfabric reports that it was truncated; 5 to 7: how
 *                  many of the oldest delivered messages are released first), u16 length, bytes */
#include "tests/fuzz/require.h"
#include "tests/fuzz/quiet.h"
#include "transport/ofi/ofi.h"

#include <string.h>

#define SLOTS   4u
#define MESSAGE 512u
#define LANES   2u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ofi_endpoint *e;
static bool is_over;
static struct {
    uint64_t slot;
    size_t length;
    uint32_t sequence;
} held[SLOTS * 8];
static unsigned held_count;

static ssize_t take_receive(struct fid_ep *ep, void *buffer, size_t n, void *desc, fi_addr_t from,
                            void *context)
{
    (void)ep, (void)desc, (void)from, (void)context;
    require(buffer && n == e->buffer_bytes);
    return 0;
}

static ssize_t take_send(struct fid_ep *ep, const void *bytes, size_t n, void *desc, fi_addr_t to,
                         void *context)
{
    (void)ep, (void)desc, (void)to, (void)context;
    require(bytes && n >= OFI_HEADER_BYTES && n <= e->buffer_bytes);
    return 0;
}

static ssize_t take_inject(struct fid_ep *ep, const void *bytes, size_t n, fi_addr_t to)
{
    return take_send(ep, bytes, n, NULL, to, NULL);
}

static struct fi_ops_msg operations = {
    .recv = take_receive, .send = take_send, .inject = take_inject};
static struct fid_ep endpoint = {.msg = &operations};
static struct fi_tx_attr attributes = {.inject_size = MESSAGE};
static struct fi_info info = {.tx_attr = &attributes};

static void on_message(struct ibx_link *link, const void *bytes, size_t length, uint64_t slot)
{
    (void)link;
    require(slot < e->recv_count && bytes == e->recvs[slot].buffer + OFI_HEADER_BYTES);
    require(length <= MESSAGE && e->recvs[slot].state.now == OFI_RECV_HELD);
    require(held_count < SLOTS * 8);
    held[held_count].length = length;
    held[held_count].sequence = e->next_deliver;
    held[held_count++].slot = slot;
    require(held_count < 2 || held[held_count - 1].sequence == held[held_count - 2].sequence + 1);
}

static void on_lost(struct ibx_link *link, int status, const char *reason)
{
    (void)link;
    require(status < 0 && reason[0] && !strstr(reason, "internal error"));
    is_over = true;
}

static const struct ibx_upcalls upcalls = {.message = on_message, .lost = on_lost};

/* The state in which ofi_finish() leaves it. */
static void begin(struct ibx_link *link)
{
    void *made;
    require(!ibx_provider_ofi.open(link, &made, NULL));
    e = made;
    e->choice.info = &info;
    e->choice.native = true;
    e->lane_count = LANES;
    e->own.slots = e->peer.slots = e->credits = SLOTS;
    e->own.message = MESSAGE;
    e->cookie_in = 0x1122334455667788;
    memset(e->proof_in, 0x5a, sizeof(e->proof_in));
    for (unsigned i = 0; i < LANES; i++) {
        e->lanes[i].ep = &endpoint;
        ibx_state_begin(&e->lanes[i].state, &ibx_ofi_lane_table, OFI_LANE_NEW);
    }
    require(!ibx_ofi_msg_init(e, NULL));
    require(ibx_ofi_move(e, &e->state, OFI_LIVE));
    ibx_ofi_msg_post(e);
    held_count = 0;
    is_over = false;
}

static void release(unsigned count)
{
    const unsigned n = count < held_count ? count : held_count;
    for (unsigned i = 0; i < n; i++)
        ibx_ofi_msg_release(e, held[i].slot);
    memmove(held, held + n, (held_count - n) * sizeof(held[0]));
    held_count -= n;
}

static struct ofi_request *posted(unsigned number)
{
    for (unsigned i = 0; i < e->recv_count; i++) {
        struct ofi_request *r = &e->recvs[(number + i) % e->recv_count];
        if (r->state.now == OFI_RECV_POSTED)
            return r;
    }
    return NULL;
}

static void hear(struct ibx_reader *input)
{
    const uint8_t number = ibx_get_u8(input), how = ibx_get_u8(input);
    size_t length = ibx_get_u16(input) % (e->buffer_bytes + 1);
    length = length < ibx_reader_left(input) ? length : ibx_reader_left(input);
    const uint8_t *bytes = ibx_get_bytes(input, length);
    release(how >> 5);
    struct ofi_request *r = posted(number);
    if (input->failed || !r)
        return;
    if (length)
        memcpy(r->buffer, bytes, length);
    if (how & 1 && length >= 8)
        memcpy(r->buffer, &(uint64_t){ibx_le64(e->cookie_in)}, 8);
    if (how & 4 && length >= 12)
        memcpy(r->buffer + 8, &(uint32_t){ibx_le32(e->next_deliver + number % 4)}, 4);
    if (how & 2 && length >= OFI_HEADER_BYTES)
        memcpy(r->buffer + 12, &(uint32_t){ibx_le32((uint32_t)length - OFI_HEADER_BYTES)}, 4);
    if (how & 8 && length >= OFI_HEADER_BYTES + IBX_PROOF_BYTES)
        memcpy(r->buffer + OFI_HEADER_BYTES, e->proof_in, IBX_PROOF_BYTES);
    if (how & 16) {
        ibx_ofi_on_truncated(e, r);
        return;
    }
    ibx_ofi_on_message(e, r, length);
    ibx_ofi_msg_deliver(e);
    ibx_ofi_fence_answer(e);
}

static void messages(struct ibx_reader *input)
{
    struct ibx_link link = {.up = &upcalls};
    begin(&link);
    while (ibx_reader_left(input) && !is_over && !input->failed) {
        hear(input);
        require(e->credits <= SLOTS && e->missing <= SLOTS && e->returned <= e->missing);
        require(held_count <= SLOTS);
    }
    ibx_ofi_msg_fini(e);
    free(e);
}

static void offer(struct ibx_reader *input)
{
    static uint8_t written[8192];
    struct ofi_side side = {.slots = 0}, again = {.slots = 0};
    struct sockaddr_storage local;
    struct ibx_error err = {.code = 0};
    if (ibx_ofi_side_get(input, &side, &err)) {
        require(err.code && err.message[0]);
        return;
    }
    struct ibx_writer w = ibx_writer_of(written, sizeof(written));
    ibx_ofi_side_put(&w, &side);
    struct ibx_reader r = ibx_reader_of(written, w.length);
    require(!w.failed && !ibx_ofi_side_get(&r, &again, NULL) && r.position == w.length);
    require(!memcmp(&side, &again, sizeof(side)));
    ibx_ofi_side_local_towards(&side, &local);
    for (uint32_t format = FI_ADDR_STR - 1; format <= FI_ADDR_STR; format++) {
        again.addr_format = format;
        ibx_ofi_side_fits(&again, &side);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_reader input = ibx_reader_of(data, size);
    if (ibx_get_u8(&input))
        messages(&input);
    else
        offer(&input);
    return 0;
}
