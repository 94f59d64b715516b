/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A device that flushes work requests too late. The linker's --wrap replaces libibverbs, so no
 * device is needed. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct ibx_state any[] = {
    [VERBS_LIVE] = {"live", IBX_TO(VERBS_ABORTED), IBX_STATE_INITIAL},
    [VERBS_LOST] = {"lost", 0, 0},
    [VERBS_REPORTED] = {"reported", 0, 0},
    [VERBS_ABORTED] = {"aborted", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table table = IBX_STATE_TABLE("any", any);

static struct ibx_chunk chunk;
/* stale: completions that the queue has after the queue pair was destroyed */
static unsigned reports, stale;

int __wrap_ibv_destroy_qp(struct ibv_qp *qp);
int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);

int __wrap_ibv_destroy_qp(struct ibv_qp *qp)
{
    (void)qp;
    stale = 1;
    return 0;
}

int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    (void)qp;
    (void)attr;
    (void)mask;
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    (void)cq;
    if (!stale || n < 1)
        return 0;
    stale--;
    *wc = (struct ibv_wc){.wr_id = (uintptr_t)&chunk, .status = IBV_WC_WR_FLUSH_ERR};
    return 1;
}

static void chunk_done(struct ibx_link *link, struct ibx_chunk *done, int status)
{
    (void)link;
    assert_ptr_equal(done, &chunk);
    assert_int_equal(status, -ECONNRESET);
    reports++;
}

/* A chunk is reported when its queue pair is given up, and not a second time when the device
 * completes it after all. */
static void test_flushed_after_it_was_given_up(void **state)
{
    (void)state;
    static const struct ibx_upcalls up = {.chunk_done = chunk_done};
    static struct ibx_link link = {.up = &up};
    static struct ibv_context context = {.ops.poll_cq = poll_cq};
    static struct ibv_cq cq = {.context = &context};
    static struct ibv_qp qp;
    static struct verbs_device device = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static struct verbs v = {.link = &link, .rail_count = 1, .lane_count = 1};
    static struct verbs_lane lane = {.rail = &v.rails[0], .qp = &qp, .flight = &chunk, .chunks = 1};
    v.rails[0].cq = &cq;
    v.rails[0].device = &device;
    v.lanes = &lane;
    assert_int_equal(ibx_state_begin(&v.state, &table, VERBS_LIVE), 0);
    ibx_provider_verbs.abort(&v);
    assert_int_equal(ibx_provider_verbs.progress(&v), 0);
    v.abort_deadline = 0; /* has passed */
    assert_int_equal(ibx_provider_verbs.progress(&v), 1);
    assert_int_equal(reports, 1);
    assert_int_equal(stale, 1);
    assert_int_equal(ibx_provider_verbs.progress(&v), 0);
    assert_int_equal(reports, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flushed_after_it_was_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
