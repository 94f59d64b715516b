/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the verbs provider asks libibverbs to register. The linker's --wrap replaces libibverbs,
 * so no device is needed. */
#include "common/log.h"
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static struct asked {
    unsigned plain, dmabuf, left;
    void *address;
    uint64_t offset, iova;
    size_t length;
    int fd, access;
    int refuse;    /* errno of the next registrations; 0: they succeed */
    int keeps;     /* errno of the next deregistrations; 0: they succeed */
    bool readonly; /* the memory is mapped read-only */
    struct ibv_pd *of;
} asked;
static struct ibv_mr made[IBX_RAILS_MAX];

struct ibv_mr *__wrap_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access);
struct ibv_mr *__wrap_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access);
struct ibv_mr *__wrap_ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned access);
int __wrap_ibv_dereg_mr(struct ibv_mr *mr);

/* How the provider has changed queue pairs. */
static struct changed {
    unsigned times;
    int mask, refuse;
    unsigned access;
    struct ibv_qp *qps[8];
    enum ibv_qp_state state; /* the state of all of them */
    int stays;               /* why they cannot be ended; 0: they can */
} changed;

int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int __wrap_ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct ibv_qp_init_attr *init);

int __wrap_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    changed.qps[changed.times++] = qp;
    changed.mask = mask;
    changed.access = attr->qp_access_flags;
    if (attr->qp_state == IBV_QPS_ERR) {
        changed.state = changed.stays ? changed.state : IBV_QPS_ERR;
        return changed.stays;
    }
    assert_int_equal(attr->qp_state, IBV_QPS_RTS);
    return changed.state == IBV_QPS_RTS ? changed.refuse : EINVAL;
}

int __wrap_ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                        struct ibv_qp_init_attr *init)
{
    (void)qp;
    (void)mask;
    (void)init;
    attr->qp_state = changed.state;
    return 0;
}

static struct ibv_mr *answer(void)
{
    bool denied = asked.readonly && asked.access & IBV_ACCESS_LOCAL_WRITE;
    errno = denied ? EFAULT : asked.refuse;
    if (errno)
        return NULL;
    struct ibv_mr *mr = &made[(asked.plain + asked.dmabuf - 1) % IBX_RAILS_MAX];
    mr->pd = asked.of;
    return mr;
}

struct ibv_mr *__wrap_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                        uint64_t iova, int fd, int access)
{
    asked.of = pd;
    asked.dmabuf++;
    asked.offset = offset;
    asked.length = length;
    asked.iova = iova;
    asked.fd = fd;
    asked.access = access;
    return answer();
}

struct ibv_mr *__wrap_ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    asked.of = pd;
    asked.plain++;
    asked.address = address;
    asked.length = length;
    asked.access = access;
    return answer();
}

struct ibv_mr *__wrap_ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
                                       uint64_t iova, unsigned access)
{
    (void)iova;
    return __wrap_ibv_reg_mr(pd, address, length, (int)access);
}

int __wrap_ibv_dereg_mr(struct ibv_mr *mr)
{
    (void)mr;
    asked.left++;
    return asked.keeps;
}

static unsigned warnings;

void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...);

void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)format;
    warnings += level == IBX_LOG_WARN;
}

/* Why the connection is over: verbs.c is not part of this test. */
static int lost;

void ibx_verbs_lost(struct verbs *v, int status, const char *format, ...)
{
    (void)v;
    (void)format;
    lost = status;
}

static struct ibv_device device = {.name = "mlx5_9"};
static struct ibv_context context = {.device = &device};
static struct ibv_pd pd, another;

static struct verbs_device devices[2];

static struct verbs *provider(unsigned rails)
{
    static struct verbs v;
    v = (struct verbs){.rail_count = rails};
    for (unsigned i = 0; i < rails; i++) {
        devices[i] = (struct verbs_device){.lock = PTHREAD_MUTEX_INITIALIZER};
        v.rails[i].device = &devices[i];
        v.rails[i].pd = &pd;
        v.rails[i].context = &context;
    }
    asked = (struct asked){0};
    return &v;
}

static struct ibx_mr gpu_memory(int fd)
{
    return (struct ibx_mr){
        .span = {(void *)0x7f0000003000, 0x40000, IBX_MEMORY_CUDA, fd, 0x1000, 0},
        .access = IBX_ACCESS_LOCAL,
    };
}

/* GPU memory is registered by its dma-buf, with local access only: a READ may write to it, and
 * no peer gets a key. */
static void test_gpu_memory_by_dmabuf(void **state)
{
    (void)state;
    struct verbs *v = provider(2);
    struct ibx_mr mr = gpu_memory(77);
    uint32_t lkey = 0;
    made[0] = (struct ibv_mr){.lkey = 5, .rkey = 6};
    made[1] = (struct ibv_mr){.lkey = 7, .rkey = 8};
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    assert_true(asked.dmabuf == 2 && !asked.plain);
    assert_true(asked.fd == 77 && asked.offset == 0x1000 && asked.length == 0x40000);
    assert_true(asked.iova == 0x7f0000003000 && asked.iova % 4096 == asked.offset % 4096);
    assert_int_equal(asked.access, IBV_ACCESS_LOCAL_WRITE);
    for (unsigned i = 0; i < IBX_RAILS_MAX; i++)
        assert_true(mr.keys[i] == 0);
    assert_int_equal(ibx_verbs_mr_lkey(&mr, 1, true, &lkey), 0);
    assert_int_equal(lkey, 7);
    ibx_verbs_mr_deregister(v, &mr);
    assert_int_equal(asked.left, 2);
}

/* Without a dma-buf it is registered by its address, which nvidia-peermem handles. */
static void test_gpu_memory_by_address(void **state)
{
    (void)state;
    struct verbs *v = provider(1);
    struct ibx_mr mr = gpu_memory(-1);
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    assert_true(asked.plain == 1 && !asked.dmabuf && asked.address == (void *)0x7f0000003000);
    assert_int_equal(asked.access, IBV_ACCESS_LOCAL_WRITE);
    ibx_verbs_mr_deregister(v, &mr);
}

/* A refusal is reported. Unlike host memory, GPU memory is not registered again without write
 * access. */
static void test_refused(void **state)
{
    (void)state;
    static const int codes[] = {EOPNOTSUPP, EFAULT, EACCES, EINVAL};
    for (unsigned i = 0; i < 4; i++) {
        struct verbs *v = provider(1);
        struct ibx_mr mr = gpu_memory(3);
        struct ibx_error err = {0};
        asked.refuse = codes[i];
        assert_int_equal(ibx_verbs_mr_register(v, &mr, &err), -codes[i]);
        assert_non_null(strstr(err.message, "mlx5_9"));
        assert_int_equal(asked.dmabuf, 1);
    }
    uint8_t bytes[64];
    struct verbs *v = provider(1);
    struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes))};
    asked.refuse = EFAULT;
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), -EFAULT);
    assert_int_equal(asked.plain, 2);
}

/* Read-only memory can be the source of WRITEs, but not the target of a READ. */
static void test_read_only(void **state)
{
    (void)state;
    uint8_t bytes[64];
    uint32_t lkey = 0;
    struct verbs *v = provider(1);
    struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes)),
                        .access = IBX_ACCESS_REMOTE_READ};
    asked.readonly = true;
    made[1] = (struct ibv_mr){.lkey = 5, .rkey = 6};
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    assert_int_equal(asked.access, IBV_ACCESS_REMOTE_READ);
    assert_int_equal(ibx_verbs_mr_lkey(&mr, 0, true, &lkey), -EACCES);
    assert_int_equal(ibx_verbs_mr_lkey(&mr, 0, false, &lkey), 0);
    assert_int_equal(lkey, 5);
    ibx_verbs_mr_deregister(v, &mr);
    /* Remote write access to it is refused. */
    mr.access = IBX_ACCESS_REMOTE_WRITE;
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), -EFAULT);
}

/* The error for an invalid dma-buf shows whether the device's driver supports dma-bufs. */
static void test_probe(void **state)
{
    (void)state;
    struct verbs *v = provider(1);
    asked.refuse = EBADF;
    assert_true(ibx_verbs_mr_dmabuf(v));
    asked.refuse = EOPNOTSUPP;
    assert_false(ibx_verbs_mr_dmabuf(v));
    assert_true(asked.fd == -1 && !asked.left);
}

/* A region and its twin share one registration if they have the same protection domain. It ends
 * with the last of them. */
static void test_twins(void **state)
{
    (void)state;
    uint8_t bytes[64];
    struct verbs *v = provider(2);
    struct ibx_mr first = {.span = ibx_span_host(bytes, sizeof(bytes)),
                           .access = IBX_ACCESS_REMOTE_READ};
    v->rails[1].pd = &another;
    made[0] = (struct ibv_mr){.lkey = 5, .rkey = 6};
    made[1] = (struct ibv_mr){.lkey = 7, .rkey = 8};
    made[2] = (struct ibv_mr){.lkey = 9, .rkey = 10};
    assert_int_equal(ibx_verbs_mr_register(v, &first, NULL), 0);
    assert_int_equal(asked.plain, 2);
    struct ibx_mr second = {.span = first.span, .access = first.access, .twin = &first};
    struct ibv_pd third_pd;
    struct verbs other = {.rail_count = 2};
    other.rails[0] = (struct verbs_rail){.pd = &another, .context = &context};
    other.rails[1] = (struct verbs_rail){.pd = &third_pd, .context = &context};
    assert_int_equal(ibx_verbs_mr_register(&other, &second, NULL), 0);
    assert_int_equal(asked.plain, 3);
    assert_true(second.keys[0] == 8 && second.keys[1] == 10);
    ibx_verbs_mr_deregister(v, &first);
    assert_int_equal(asked.left, 1);
    uint32_t lkey = 0;
    assert_int_equal(ibx_verbs_mr_lkey(&second, 0, true, &lkey), 0);
    assert_int_equal(lkey, 7);
    ibx_verbs_mr_deregister(&other, &second);
    assert_int_equal(asked.left, 3);
}

/* Registers with this access. Returns how many queue pairs were changed. */
static unsigned exposing(struct verbs *v, unsigned access)
{
    static uint8_t bytes[64];
    struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes)), .access = access};
    unsigned before = changed.times;
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    ibx_verbs_mr_deregister(v, &mr);
    return changed.times - before;
}

/* Queue pairs accept a peer's requests from the first exposed region on, and only of the kind
 * that it is exposed to. */
static void test_queue_pairs_accept_requests_once_exposed(void **state)
{
    (void)state;
    struct ibv_qp qps[3];
    struct verbs_lane lanes[3];
    struct verbs *v = provider(1);
    for (unsigned i = 0; i < 3; i++)
        lanes[i] = (struct verbs_lane){.qp = &qps[i], .rail = &v->rails[0]};
    v->lanes = lanes;
    v->lane_count = 3;
    changed = (struct changed){.state = IBV_QPS_RTS};
    assert_int_equal(exposing(v, IBX_ACCESS_LOCAL), 0);
    assert_int_equal(exposing(v, IBX_ACCESS_REMOTE_READ), 3);
    assert_int_equal(changed.access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    assert_int_equal(changed.mask, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
    assert_true(changed.qps[0] == &qps[0] && changed.qps[2] == &qps[2]);
    assert_int_equal(exposing(v, IBX_ACCESS_REMOTE_READ), 0);
    assert_int_equal(exposing(v, IBX_ACCESS_REMOTE_WRITE), 3);
    assert_int_equal(changed.access,
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    assert_int_equal(exposing(v, IBX_ACCESS_REMOTE_READ), 0);
}

/* If the device refuses the change, the region is not exposed. If the queue pairs have ended,
 * nothing needs to be changed. */
static void test_exposure_refused(void **state)
{
    (void)state;
    uint8_t bytes[64];
    struct ibv_qp qp;
    struct verbs *v = provider(1);
    struct verbs_lane lane = {.qp = &qp, .rail = &v->rails[0]};
    struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes)),
                        .access = IBX_ACCESS_REMOTE_READ};
    struct ibx_error err = {0};
    v->lanes = &lane;
    v->lane_count = 1;
    changed = (struct changed){.state = IBV_QPS_RTS, .refuse = EOPNOTSUPP};
    assert_int_equal(ibx_verbs_mr_register(v, &mr, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.message, "mlx5_9"));
    assert_int_equal(asked.left, 1);
    assert_int_equal(v->exposed, 0);
    changed = (struct changed){.state = IBV_QPS_ERR};
    assert_int_equal(exposing(v, IBX_ACCESS_REMOTE_READ), 1);
}

/* If the device keeps a region, the peer must not reach it any more: its memory is free. */
static void test_kept_by_the_device(void **state)
{
    (void)state;
    uint8_t bytes[64];
    struct ibv_qp qps[2];
    struct verbs_lane lanes[2];
    struct verbs *v = provider(2);
    struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes)),
                        .access = IBX_ACCESS_REMOTE_WRITE};
    for (unsigned i = 0; i < 2; i++) {
        lanes[i] = (struct verbs_lane){.qp = &qps[i], .rail = &v->rails[i]};
        ibx_verbs_device_enter(v->rails[i].device, &lanes[i]);
    }
    v->lanes = lanes;
    v->lane_count = 2;
    changed = (struct changed){.state = IBV_QPS_RTS};
    lost = 0;
    warnings = 0;
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    assert_int_equal(changed.times, 2);
    asked.keeps = EBUSY;
    ibx_verbs_mr_deregister(v, &mr);
    assert_int_equal(asked.left, 2);
    assert_int_equal(lost, -EBUSY);
    assert_int_equal(changed.state, IBV_QPS_ERR);
    assert_int_equal(changed.times, 4);
    assert_true(changed.qps[2] == &qps[0] && changed.qps[3] == &qps[1]);
    assert_int_equal(warnings, 1);
    /* The peer has no key of this one. */
    mr = (struct ibx_mr){.span = ibx_span_host(bytes, sizeof(bytes)), .access = IBX_ACCESS_LOCAL};
    lost = 0;
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    ibx_verbs_mr_deregister(v, &mr);
    assert_int_equal(lost, 0);
    assert_int_equal(changed.times, 4);
    assert_int_equal(warnings, 2);
}

/* ... neither by another connection of the same domain. One that has gone is left alone. */
static void test_kept_in_a_shared_domain(void **state)
{
    (void)state;
    uint8_t bytes[64];
    struct ibv_qp qps[3];
    struct verbs *v = provider(1);
    struct verbs_lane lanes[3];
    struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes)),
                        .access = IBX_ACCESS_REMOTE_READ};
    for (unsigned i = 0; i < 3; i++) {
        lanes[i] = (struct verbs_lane){.qp = &qps[i], .rail = &v->rails[0]};
        ibx_verbs_device_enter(&devices[0], &lanes[i]);
    }
    ibx_verbs_device_leave(&devices[0], &lanes[1]);
    v->lanes = &lanes[0];
    v->lane_count = 1;
    changed = (struct changed){.state = IBV_QPS_RTS};
    assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
    asked.keeps = EBUSY;
    ibx_verbs_mr_deregister(v, &mr);
    assert_int_equal(changed.state, IBV_QPS_ERR);
    assert_int_equal(changed.times, 3);
    assert_true(changed.qps[1] == &qps[2] && changed.qps[2] == &qps[0]);
}

/* ... and if its queue pairs do not end either, the log says that the peer may reach the memory. */
static void test_kept_with_its_queue_pairs(void **state)
{
    (void)state;
    uint8_t bytes[64];
    struct ibv_qp qp;
    struct verbs *v = provider(1);
    struct verbs_lane lane = {.qp = &qp, .rail = &v->rails[0]};
    v->lanes = &lane;
    v->lane_count = 1;
    ibx_verbs_device_enter(&devices[0], &lane);
    for (unsigned removed = 0; removed < 2; removed++) {
        struct ibx_mr mr = {.span = ibx_span_host(bytes, sizeof(bytes)),
                            .access = IBX_ACCESS_REMOTE_WRITE};
        changed = (struct changed){.state = IBV_QPS_RTS, .stays = EIO};
        v->device_removed = removed; /* then there is nothing to reach it by */
        asked.keeps = EIO;
        warnings = 0;
        assert_int_equal(ibx_verbs_mr_register(v, &mr, NULL), 0);
        ibx_verbs_mr_deregister(v, &mr);
        assert_int_equal(warnings, removed ? 1 : 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_memory_by_dmabuf),
        cmocka_unit_test(test_gpu_memory_by_address),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_queue_pairs_accept_requests_once_exposed),
        cmocka_unit_test(test_exposure_refused),
        cmocka_unit_test(test_kept_by_the_device),
        cmocka_unit_test(test_kept_in_a_shared_domain),
        cmocka_unit_test(test_kept_with_its_queue_pairs),
    };
    return cmocka_run_group_tests_name("verbs_mr", tests, NULL, NULL);
}
