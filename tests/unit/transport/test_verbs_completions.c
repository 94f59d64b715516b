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

static struct ibv_wc queue[1024]; /* completions that the device has */
static unsigned queued, polled, armed;

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

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)cq;
    (void)solicited;
    armed++;
    return 0;
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

static const struct ibx_state states[] = {
    [VERBS_EVENT_UNARMED] = {"unarmed", IBX_TO(VERBS_EVENT_FRESH), IBX_STATE_INITIAL},
    [VERBS_EVENT_FRESH] = {"fresh", IBX_TO(VERBS_EVENT_ARMED), 0},
    [VERBS_EVENT_ARMED] = {"armed", IBX_TO(VERBS_EVENT_UNARMED), 0},
};
static const struct ibx_state_table table = IBX_STATE_TABLE("event", states);

static char block[RECEIVES * STRIDE];
static struct verbs_receive posts[RECEIVES];
static struct verbs_send sends[1];

/* A connection with one queue pair, over which the peer may send SLOTS messages. */
static struct verbs *connection(void)
{
    static const struct ibx_upcalls up = {.message = up_message, .lost = up_lost};
    static struct ibx_link link = {.up = &up};
    static struct ibv_context context = {
        .ops = {.poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_recv = post_recv}};
    static struct ibv_cq cq = {.context = &context};
    static struct ibv_qp qp = {.context = &context};
    static struct verbs_lane lane = {.qp = &qp};
    static struct verbs v;
    memset(block, 0, sizeof(block));
    memset(&told, 0, sizeof(told));
    queued = polled = armed = 0;
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
    assert_int_equal(ibx_state_begin(&v.rails[0].event, &table, VERBS_EVENT_UNARMED), 0);
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

/* One call of progress() does not take all of very many completions. What it leaves raises no
 * event, so nobody may sleep before the rest was taken. */
static void test_no_sleep_before_all_completions_are_taken(void **state)
{
    enum { MANY = 700 };
    struct verbs *v = connection();
    unsigned arms = 0;
    (void)state;
    /* Of unsignaled sends, which make no event for the user. */
    for (unsigned i = 0; i < MANY; i++)
        complete((struct ibv_wc){.wr_id = VERBS_ID_SEND});
    while (ibx_provider_verbs.arm(v) && arms++ < MANY)
        ibx_provider_verbs.progress(v);
    assert_true(arms < MANY);
    assert_int_equal(polled, MANY);
    assert_int_equal(armed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_with_immediate_data),
        cmocka_unit_test(test_no_sleep_before_all_completions_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
