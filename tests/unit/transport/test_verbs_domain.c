/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device that connections of a domain share. The linker's --wrap replaces libibverbs, so no
 * device is needed. */
#include "tests/fixtures/unit.h"
#include "transport/verbs/verbs.h"

static struct ibv_pd pds[4];
static struct ibv_context contexts[4];
static unsigned opened, closed;

struct ibv_context *__wrap_ibv_open_device(struct ibv_device *device);
int __wrap_ibv_close_device(struct ibv_context *context);
struct ibv_pd *__wrap_ibv_alloc_pd(struct ibv_context *context);
int __wrap_ibv_dealloc_pd(struct ibv_pd *pd);

struct ibv_context *__wrap_ibv_open_device(struct ibv_device *device)
{
    contexts[opened].device = device;
    return &contexts[opened++];
}

int __wrap_ibv_close_device(struct ibv_context *context)
{
    (void)context;
    closed++;
    return 0;
}

struct ibv_pd *__wrap_ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = &pds[context - contexts];
    pd->context = context;
    return pd;
}

int __wrap_ibv_dealloc_pd(struct ibv_pd *pd)
{
    (void)pd;
    return 0;
}

static struct verbs_device *hold(struct ibx_domain *domain, struct ibv_device *device)
{
    struct verbs_device *held = NULL;
    assert_int_equal(ibx_verbs_device_hold(domain, device, &held, NULL), 0);
    return held;
}

/* While one connection still has the device that was taken away, another one finds the device that
 * came back, and does not get the old one. */
static void a_device_that_came_back_is_opened(NO_STATE)
{
    struct ibv_device before = {.name = "mlx5_0"}, after = {.name = "mlx5_0"};
    struct ibx_domain *domain;
    assert_int_equal(ibx_domain_create(&domain, NULL), 0);
    struct verbs_device *old = hold(domain, &before), *same = hold(domain, &before);
    assert_ptr_equal(old, same);
    assert_int_equal(opened, 1);
    struct verbs_device *new = hold(domain, &after);
    assert_ptr_not_equal(new, old);
    assert_ptr_equal(new->context->device, &after);
    assert_ptr_equal(new->pd->context, new->context);
    assert_ptr_equal(hold(domain, &after), new);
    assert_int_equal(opened, 2);
    ibx_verbs_device_release(old);
    assert_int_equal(closed, 0);
    ibx_verbs_device_release(same);
    assert_int_equal(closed, 1);
    ibx_verbs_device_release(new);
    ibx_verbs_device_release(new);
    assert_int_equal(closed, 2);
    ibx_domain_release(domain);
}

/* The peer knows the key of a region that the device keeps, and may connect again while other
 * connections still have the device. */
static void a_device_with_a_region_that_it_keeps_is_opened_anew(NO_STATE)
{
    struct ibv_device device = {.name = "mlx5_0"};
    struct ibx_domain *domain;
    struct verbs_lane early = {.qp = NULL}, late = {.qp = NULL};
    opened = closed = 0;
    assert_int_equal(ibx_domain_create(&domain, NULL), 0);
    struct verbs_device *shut = hold(domain, &device), *late_there = hold(domain, &device);
    assert_true(ibx_verbs_device_enter(shut, &early));
    ibx_verbs_device_leave(shut, &early);
    assert_int_equal(ibx_verbs_device_shut(shut), 0);
    struct verbs_device *new = hold(domain, &device);
    assert_ptr_not_equal(new, shut);
    assert_ptr_not_equal(new->pd, shut->pd);
    assert_ptr_equal(hold(domain, &device), new);
    assert_false(ibx_verbs_device_enter(late_there, &late));
    ibx_verbs_device_leave(late_there, &late);
    ibx_verbs_device_release(shut);
    ibx_verbs_device_release(late_there);
    assert_int_equal(closed, 1);
    ibx_verbs_device_release(new);
    ibx_verbs_device_release(new);
    assert_int_equal(closed, 2);
    ibx_domain_release(domain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_came_back_is_opened),
        cmocka_unit_test(a_device_with_a_region_that_it_keeps_is_opened_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
