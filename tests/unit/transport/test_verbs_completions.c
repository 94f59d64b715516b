/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the verbs provider makes of the completions of a device. The device's driver is this file,
 * so no device is needed. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SLOTS = 4, RECEIVES = SLOTS + 4, STRIDE = 64, MESSAGE_MAX = STRIDE - 8 };

static struct ibv_wc queue[2]; /* completions that the device has */
static unsigned queued, polled;

static struct {
    unsigned messages, lost;
    int status;
    size_t length;
    uint64_t slot;
} told;

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    int taken = 0;
    (void)cq;
    while (taken < n && polled < queued)
        wc[taken++] = queue[polled++];
    return taken;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)qp;
    (void)wr;
    (void)bad;
    return 0;
}

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    (void)link;
    (void)data;
    told.messages++;
    told.length = length;
    told.slot = slot;
}

static void up_lost(struct ibx_link *link, int status, const char *reason)
{
    (void)link;
    (void)reason;
    told.lost++;
    told.status = status;
}

static char block[RECEIVES * STRIDE];
static struct verbs_receive posts[RECEIVES];
static struct verbs_send sends[1];

/* A connection with one queue pair, over which the peer may send SLOTS messages. */
static struct verbs *connection(void)
{
    static const struct ibx_upcalls up = {.message = up_message, .lost = up_lost};
    static struct ibx_link link = {.up = &up};
    static struct ibv_context context = {.ops = {.poll_cq = poll_cq, .post_recv = post_recv}};
    static struct ibv_cq cq = {.context = &context};
    static struct ibv_qp qp = {.context = &context};
    static struct verbs_lane lane = {.qp = &qp};
    static struct verbs v;
    memset(block, 0, sizeof(block));
    memset(&told, 0, sizeof(told));
    queued = polled = 0;
    v = (struct verbs){
        .link = &link,
        .rail_count = 1,
        .lane_count = 1,
        .lanes = &lane,
        .messages = {.block = block,
                     .stride = STRIDE,
                     .slots = SLOTS,
                     .credits = SLOTS,
                     .receives = RECEIVES,
                     .message_max = MESSAGE_MAX,
                     .batch = 1,
                     .buffers = 1,
                     .sends = sends,
                     .posts = posts},
    };
    lane.rail = &v.rails[0];
    v.rails[0].cq = &cq;
    return &v;
}

static void complete(struct ibv_wc wc)
{
    queue[queued++] = wc;
}

/* A WRITE with immediate data takes a receive of the peer's, but puts nothing into its buffer, and
 * its completion has the length of the WRITE. It is no message. */
static void test_write_with_immediate_data(void **state)
{
    struct verbs *v = connection();
    const struct ibv_wc sent = {
        .wr_id = 2u << 2 | VERBS_ID_RECEIVE, .opcode = IBV_WC_RECV, .byte_len = 8 + 5};
    struct ibv_wc written = sent;
    (void)state;
    block[2 * STRIDE] = 1; /* a message */
    complete(sent);
    assert_int_equal(ibx_provider_verbs.progress(v), 1);
    assert_int_equal(told.messages, 1);
    assert_int_equal(told.length, 5);
    assert_int_equal(told.slot, 2);
    ibx_provider_verbs.release(v, told.slot);
    written.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    written.byte_len = 1u << 30;
    complete(written);
    ibx_provider_verbs.progress(v);
    assert_int_equal(told.messages, 1);
    assert_int_equal(told.lost, 1);
    assert_int_equal(told.status, -EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_with_immediate_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
