/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a sender's rate follows the reports of its members. Hosts and links are simulated. */
#include "migrate/multicast/multicast.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <string.h>

#define MOST     (128ull << 20)
#define DATAGRAM 1460u
#define HOSTS    3u
#define STEP     (100 * IBX_NS_PER_MS) /* between two reports */

struct host {
    struct ibx_multicast_hearing hearing;
    uint64_t capacity; /* bytes per second; 0: unlimited */
    unsigned lost;     /* losses in thousandths, at any rate */
    uint64_t came, rest;
};

static struct ibx_multicast_rate rate;
static struct host hosts[HOSTS];
static uint64_t sent, now, delivered; /* `delivered`: to the first host */

static int begin(void **state)
{
    (void)state;
    memset(hosts, 0, sizeof(hosts));
    sent = delivered = 0;
    now = 1000 * STEP;
    ibx_multicast_rate_init(&rate, MOST);
    return 0;
}

/* Sends for a tenth of a second; then each member reports what it has received. */
static void step(unsigned count)
{
    const uint64_t datagrams = rate.now / 10 / DATAGRAM;
    bool well = true;
    sent += datagrams;
    now += STEP;
    for (unsigned i = 0; i < count; i++) {
        const uint64_t room = hosts[i].capacity / 10 / DATAGRAM;
        uint64_t came = room && datagrams > room ? room : datagrams;
        came = came * (1000 - hosts[i].lost) / 1000;
        hosts[i].came += came;
        delivered += i ? 0 : came;
        assert_true(ibx_multicast_rate_heard(&rate, &hosts[i].hearing, came ? sent : 0,
                                             hosts[i].came, sent, now));
    }
    for (unsigned i = 0; i < count; i++)
        well &= ibx_multicast_hears_well(&hosts[i].hearing);
    if (well)
        ibx_multicast_rate_raise(&rate, now);
    assert_in_range(rate.now, MOST / 8, MOST);
}

static void steps(unsigned n, unsigned count)
{
    while (n--)
        step(count);
}

/* Links that always lose a little do not lower the rate. The sender starts slowly, but not for
 * long. */
static void test_lossy_links_keep_the_rate(NO_STATE)
{
    hosts[1].lost = 10;
    assert_int_equal(rate.now, MOST / 4);
    steps(4, HOSTS);
    assert_int_equal(rate.now, MOST);
    steps(100, HOSTS);
    assert_true(rate.now == MOST && !rate.lowered);
}

/* The slowest host is found within a second and gets most of what it can receive, with little
 * loss. */
static void test_follows_the_slowest(NO_STATE)
{
    hosts[0].capacity = MOST * 2 / 5;
    steps(10, HOSTS);
    assert_in_range(rate.now, MOST / 4, MOST / 2);
    const uint64_t before = sent;
    delivered = 0;
    steps(200, HOSTS);
    assert_true(delivered * DATAGRAM > hosts[0].capacity * 20 / 100 * 75);
    assert_true(delivered > (sent - before) / 100 * 93);
    /* When it can receive more, it gets more. */
    hosts[0].capacity = 0;
    steps(60, HOSTS);
    assert_int_equal(rate.now, MOST);
}

/* A loss lowers the rate once: what was sent before says nothing about the new rate. */
static void test_loss_lowers_the_rate_once(NO_STATE)
{
    rate.now = MOST;
    assert_true(ibx_multicast_rate_heard(&rate, &hosts[0].hearing, 1000, 1000, 1000, now));
    assert_true(ibx_multicast_rate_heard(&rate, &hosts[0].hearing, 2000, 1800, 5000, now));
    const uint64_t once = rate.now;
    assert_in_range(once, MOST / 4 * 2, MOST / 10 * 8);
    assert_true(ibx_multicast_rate_heard(&rate, &hosts[0].hearing, 4000, 3400, 6000, now));
    assert_true(ibx_multicast_rate_heard(&rate, &hosts[0].hearing, 6000, 5000, 7000, now));
    assert_int_equal(rate.now, once);
    assert_true(ibx_multicast_rate_heard(&rate, &hosts[0].hearing, 8000, 6600, 8000, now));
    assert_true(rate.now < once && rate.lowered == 2);
}

/* A host that loses most datagrams at any rate, or receives nothing, slows the others down for a
 * while only. When it receives again, its reports count again. */
static void test_unreachable_host_has_no_influence(NO_STATE)
{
    for (unsigned kind = 0; kind < 2; kind++) {
        begin(NULL);
        hosts[2].lost = kind ? 1000 : 800;
        steps(12, HOSTS);
        assert_true(rate.lowered > 0);
        assert_false(ibx_multicast_counts(&hosts[2].hearing));
        steps(60, HOSTS);
        assert_int_equal(rate.now, MOST);
        assert_false(ibx_multicast_counts(&hosts[2].hearing));
        hosts[2].lost = 0;
        if (kind)
            continue; /* in this model it would receive everything that was sent before */
        steps(3, HOSTS);
        assert_true(ibx_multicast_counts(&hosts[2].hearing));
        hosts[2].capacity = MOST / 2;
        steps(10, HOSTS);
        assert_true(rate.now < MOST / 4 * 3);
    }
}

/* A host that loses most of what was sent too fast keeps its influence, however often it reports
 * that. */
static void test_slow_host_has_influence(NO_STATE)
{
    struct ibx_multicast_hearing *h = &hosts[0].hearing;
    rate.now = MOST;
    assert_true(ibx_multicast_rate_heard(&rate, h, 1000, 1000, 1000, now));
    for (uint64_t i = 1; i <= 10; i++)
        assert_true(
            ibx_multicast_rate_heard(&rate, h, 1000 + 1000 * i, 1000 + 400 * i, 20000, now));
    assert_true(rate.lowered == 1 && rate.now > MOST / 8);
    assert_true(ibx_multicast_counts(h));
}

/* After a loss the rate is constant for half a second, and then grows in small steps. */
static void test_rate_is_constant_after_a_loss(NO_STATE)
{
    struct ibx_multicast_hearing *h = &hosts[0].hearing;
    rate.now = MOST;
    assert_true(ibx_multicast_rate_heard(&rate, h, 1000, 1000, 1000, now));
    assert_true(ibx_multicast_rate_heard(&rate, h, 2000, 1500, 2000, now));
    const uint64_t lowered = rate.now;
    assert_true(lowered < MOST);
    ibx_multicast_rate_raise(&rate, now + 4 * STEP);
    assert_int_equal(rate.now, lowered);
    ibx_multicast_rate_raise(&rate, now + 5 * STEP);
    assert_int_equal(rate.now, lowered + MOST / 32);
}

/* Impossible reports are an error. Reports that another member may have forged are ignored. */
static void test_impossible_reports(NO_STATE)
{
    struct ibx_multicast_hearing *h = &hosts[0].hearing;
    assert_true(ibx_multicast_rate_heard(&rate, h, 1000, 900, 1000, now));
    assert_false(ibx_multicast_rate_heard(&rate, h, 1100, 1101, 2000, now));
    assert_false(ibx_multicast_rate_heard(&rate, h, 999, 900, 2000, now));
    assert_false(ibx_multicast_rate_heard(&rate, h, 1100, 899, 2000, now));
    assert_true(ibx_multicast_rate_heard(&rate, h, UINT64_MAX, 900, 2000, now));
    /* too few datagrams to judge */
    assert_true(ibx_multicast_rate_heard(&rate, h, 1010, 900, 1010, now));
    assert_true(rate.now == MOST / 4 && h->through == 1000);
    ibx_multicast_rate_init(&rate, IBX_MULTICAST_RATE_MIN);
    assert_true(ibx_multicast_rate_heard(&rate, h, 2000, 900, 2000, now));
    assert_int_equal(rate.now, IBX_MULTICAST_RATE_MIN);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_lossy_links_keep_the_rate, begin),
        cmocka_unit_test_setup(test_follows_the_slowest, begin),
        cmocka_unit_test_setup(test_loss_lowers_the_rate_once, begin),
        cmocka_unit_test_setup(test_unreachable_host_has_no_influence, begin),
        cmocka_unit_test_setup(test_slow_host_has_influence, begin),
        cmocka_unit_test_setup(test_rate_is_constant_after_a_loss, begin),
        cmocka_unit_test_setup(test_impossible_reports, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
