/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Tenants of several processes: who they are, and what they share if a process is killed or has
 * written nonsense to the shared memory. */
#include "frontend-glue/tenants/tenants.h"

#include "tests/unit/forked_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* Two processes serve carol. The first one does this, and ends. */
static bool first_of_two(void (*does)(struct ibx_tenant *carol),
                         const struct ibx_tenant_limits *limits)
{
    int status = -1;
    if (!ibx_tenants_share(4))
        return false;
    ibx_tenants_serves(1, "carol", NULL);
    ibx_tenants_serves(2, "carol", NULL);
    const pid_t first = fork();
    if (!first) {
        ibx_tenants_are_of(1);
        does(ibx_tenant_get("carol", limits, 8));
        _exit(0);
    }
    return waitpid(first, &status, 0) == first && !status;
}

static struct ibx_quota *memory_in_second(const struct ibx_tenant_limits *limits)
{
    ibx_tenants_are_of(2);
    return ibx_tenant_quota(ibx_tenant_get("carol", limits, 8), IBX_HOLD_DEVICE);
}

/* The process was killed after it had taken the memory from its own quota, and before it took it
 * from the quota of all processes. */
static void half_take(struct ibx_tenant *carol)
{
    atomic_fetch_add(ibx_tenant_quota(carol, IBX_HOLD_DEVICE)->shared, 300);
}

/* What other processes of the same name hold is theirs, and is returned when they end. */
static int continues_after_half_a_take(void)
{
    const struct ibx_tenant_limits limits = {.device = 1000, .share = 50};
    if (!first_of_two(half_take, &limits))
        return 1;
    struct ibx_quota *quota = memory_in_second(&limits);
    if (!ibx_quota_take(quota, 500))
        return 2;
    ibx_tenants_ended(1);
    ibx_quota_give(quota, 500);
    return !ibx_quota_take(quota, 500) ? 3 : ibx_quota_take(quota, 1) ? 4 : 0;
}

/* Runs in a process of its own, which shares memory with no other one. */
static void expect_good(int (*body)(void))
{
    int status = -1;
    const pid_t pid = fork();
    if (!pid)
        _exit(body());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Without names each user is a tenant; beyond a large number all others are one. */
static int keeps_users_apart(void)
{
    const struct ibx_tenant_limits limits = {.device = 1000, .share = 50};
    if (!ibx_tenants_share(4))
        return 1;
    for (unsigned user = 0; user < 3000; user++)
        ibx_tenants_serves(user < 1500 ? 1 : 3, "", &user);
    const unsigned first = 0, second = 1;
    ibx_tenants_serves(1, "", &first);
    ibx_tenants_serves(2, "", &second);
    const pid_t other = fork();
    if (!other) {
        ibx_tenants_are_of(1);
        struct ibx_tenant *one = ibx_tenant_get("", &limits, 8);
        _exit(!one || !ibx_quota_take(ibx_tenant_quota(one, IBX_HOLD_DEVICE), 500) ||
              ibx_quota_take(ibx_tenant_quota(one, IBX_HOLD_DEVICE), 1));
    }
    int status = -1;
    if (waitpid(other, &status, 0) != other || status)
        return 2;
    ibx_tenants_are_of(2);
    struct ibx_tenant *two = ibx_tenant_get("", &limits, 8);
    if (!two || !ibx_quota_take(ibx_tenant_quota(two, IBX_HOLD_DEVICE), 500))
        return 3;
    if (ibx_tenant_quota(two, IBX_HOLD_CHUNKS)->most != 8) /* the process's own */
        return 6;
    const pid_t last = fork();
    if (!last) {
        ibx_tenants_are_of(3);
        _exit(!ibx_tenant_get("erin", &limits, 8) ? 0 : 1); /* the name has not been written */
    }
    if (waitpid(last, &status, 0) != last || status)
        return 4;
    ibx_tenants_serves(3, "erin", &second); /* there is room for names */
    ibx_tenants_are_of(3);
    return ibx_tenant_get("erin", &limits, 8) ? 0 : 5;
}

static int has(unsigned process, const struct ibx_tenant_limits *limits, uint64_t most)
{
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        ibx_tenants_are_of(process);
        struct ibx_tenant *tenant = ibx_tenant_get("", limits, 8);
        struct ibx_quota *quota = tenant ? ibx_tenant_quota(tenant, IBX_HOLD_DEVICE) : NULL;
        _exit(!quota || !ibx_quota_take(quota, most) || ibx_quota_take(quota, 1));
    }
    const bool good = waitpid(child, &status, 0) == child && !status;
    ibx_tenants_ended(process);
    return !good;
}

/* The back end's own user, and root, could end it or change its share, so it reserves nothing
 * from them unless told to. From others it does. */
static int keeps_nothing_from_its_own_user(void)
{
    struct ibx_tenant_limits limits = {.device = 1000};
    const unsigned own = geteuid(), root = 0, other = 12345;
    if (!ibx_tenants_share(4))
        return 1;
    ibx_tenants_serves(1, "", &own);
    if (has(1, &limits, 1000))
        return 2;
    ibx_tenants_serves(1, "", &root);
    if (has(1, &limits, 1000))
        return 3;
    ibx_tenants_serves(1, "", &other);
    if (has(1, &limits, 750))
        return 4;
    limits.share = 60;
    ibx_tenants_serves(1, "", &own);
    return has(1, &limits, 600) ? 5 : 0;
}

static void test_users(void **state)
{
    (void)state;
    expect_good(keeps_users_apart);
    expect_good(keeps_nothing_from_its_own_user);
}

static void test_killed_while_it_takes(void **state)
{
    (void)state;
    expect_good(continues_after_half_a_take);
}

/* A process that was taken over has written to what it shares. */
static void write_nonsense(struct ibx_tenant *carol)
{
    for (unsigned i = 0; i < IBX_HOLDS; i++) {
        struct ibx_quota *quota = ibx_tenant_quota(carol, (enum ibx_hold)i);
        if (quota->shared)
            atomic_store(quota->shared, UINT64_MAX);
    }
}

static int outlives_one_that_goes_wrong(void)
{
    const struct ibx_tenant_limits limits = {.device = 1000, .share = 50};
    if (!first_of_two(write_nonsense, &limits))
        return 1;
    ibx_tenants_ended(1);
    return ibx_quota_take(memory_in_second(&limits), 500) ? 0 : 2;
}

/* Whatever is there, the listening process and those of others continue: they follow no address
 * and wait for nobody. Their limits may be lost. */
static int continues_with_any_contents(void)
{
    const struct ibx_tenant_limits limits = {.device = 1000, .share = 50};
    if (!ibx_tenants_share(4))
        return 1;
    uint64_t seed = 1;
    for (unsigned i = 0; i < 20; i++) {
        ibx_tenants_serves(1, "carol", NULL);
        ibx_tenants_serves(2, "dave", NULL);
        ibx_tenants_are_of(1);
        struct ibx_tenant *carol = ibx_tenant_get("carol", &limits, 8);
        if (!carol)
            return 2;
        shared_fill_at_random(&seed);
        struct ibx_quota *quota = ibx_tenant_quota(carol, IBX_HOLD_DEVICE);
        if (ibx_quota_take(quota, 1))
            ibx_quota_give(quota, 1);
        ibx_quota_note(quota, 5);
        ibx_tenants_ended(1);
        ibx_tenants_ended(2);
        /* the name has not been written */
        if (ibx_tenant_get(i % 2 ? "erin" : "frank", &limits, 8))
            return 3;
    }
    return 0;
}

static void test_anything(void **state)
{
    (void)state;
    expect_good(continues_with_any_contents);
}

static void test_process_writes_nonsense(void **state)
{
    (void)state;
    expect_good(outlives_one_that_goes_wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_users), /* before this process has a tenant without a name */
        cmocka_unit_test(test_killed_while_it_takes),
        cmocka_unit_test(test_process_writes_nonsense),
        cmocka_unit_test(test_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
