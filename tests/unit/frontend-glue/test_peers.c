/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Access of devices to each other's memory: what the program's calls return, and what is enabled
 * for managed memory. The back end is simulated: it enables as often as it is asked, and says so.
 */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/unit/frontend-glue/next_calls.h"

#include "common/log.h"

#define DEVICES     64 /* as many as are noted */
#define ENABLED     704
#define NOT_ENABLED 705

static struct {
    bool attached, apart;
    int device, fails; /* what enabling returns */
    unsigned used;     /* devices, as bits */
    unsigned visits, enables, disables, cleared, warnings;
    int enabled[8][2]; /* the current device and its peer */
} is;

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    static const struct ibx_frontend_calls calls = {.version = IBX_FRONTEND_VERSION};
    return is.attached ? &calls : NULL;
}

int ibx_frontend_fail(int code)
{
    return code;
}

void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)level, (void)format;
    is.warnings++;
}

int ibx_frontend_current_device(void)
{
    return is.device;
}

void ibx_frontend_each_device(void (*visit)(int device))
{
    const int before = is.device;
    is.visits++;
    for (is.device = 0; is.used >> is.device; is.device++)
        if (is.used >> is.device & 1)
            visit(is.device);
    is.device = before;
}

static int next_cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)flags;
    is.enabled[is.enables % 8][0] = is.device;
    is.enabled[is.enables++ % 8][1] = peer;
    return is.fails;
}

static int next_cudaDeviceDisablePeerAccess(int peer)
{
    (void)peer;
    is.disables++;
    return is.fails;
}

static int next_cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer && !is.apart;
    return 0;
}

static int next_cudaGetLastError(void)
{
    is.cleared++;
    return 0;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    RETURN_NEXT(symbol, cudaDeviceEnablePeerAccess);
    RETURN_NEXT(symbol, cudaDeviceDisablePeerAccess);
    RETURN_NEXT(symbol, cudaDeviceCanAccessPeer);
    RETURN_NEXT(symbol, cudaGetLastError);
    return NULL;
}

/* The devices' state stays from test to test: each one begins with devices that were reset. */
static int begin(void **state)
{
    (void)state;
    for (int device = 0; device < 4; device++)
        ibx_frontend_peers_reset(device);
    memset(&is, 0, sizeof(is));
    is.attached = true;
    is.used = 1;
    return 0;
}

/* ------------------------------------------------------------- the program's calls */

static void access_is_enabled_once(NO_STATE)
{
    assert_false(ibx_frontend_peers_reach(1));
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    assert_true(ibx_frontend_peers_reach(1));
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), ENABLED);
    assert_int_equal(is.enables, 1);
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 1), 0); /* CUDA looks at the flags first */
    assert_int_equal(is.enables, 2);
}

/* GVirtuS makes the calls then, and knows what they return. */
static void without_the_plugin_nothing_is_noted(NO_STATE)
{
    is.attached = false;
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    assert_int_equal(is.enables, 2);
    assert_int_equal(cudaDeviceDisablePeerAccess(2), 0);
    assert_int_equal(is.disables, 1);
}

static void access_that_was_not_enabled_is_not_disabled(NO_STATE)
{
    assert_int_equal(cudaDeviceDisablePeerAccess(1), NOT_ENABLED);
    assert_int_equal(is.disables, 0);
    assert_int_equal(cudaDeviceDisablePeerAccess(0), 0); /* CUDA says what is wrong with this */
    assert_int_equal(is.disables, 1);
}

static void access_is_disabled_once(NO_STATE)
{
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    assert_int_equal(cudaDeviceDisablePeerAccess(1), 0);
    assert_int_equal(cudaDeviceDisablePeerAccess(1), NOT_ENABLED);
    assert_false(ibx_frontend_peers_reach(1));
    assert_int_equal(is.disables, 1);
}

static void calls_that_fail_change_nothing(NO_STATE)
{
    is.fails = 101;
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 101);
    assert_false(ibx_frontend_peers_reach(1));
    is.fails = 0;
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    is.fails = 999;
    assert_int_equal(cudaDeviceDisablePeerAccess(1), 999);
    assert_true(ibx_frontend_peers_reach(1));
}

static void a_device_reaches_itself_and_those_without_notes(NO_STATE)
{
    assert_true(ibx_frontend_peers_reach(0));
    assert_true(ibx_frontend_peers_reach(-1));
    assert_true(ibx_frontend_peers_reach(DEVICES));
    is.device = DEVICES;
    assert_true(ibx_frontend_peers_reach(0));
    assert_int_equal(cudaDeviceDisablePeerAccess(0), 0);
    assert_int_equal(is.disables, 1);
}

/* Also the access of other devices to it. */
static void a_reset_ends_access(NO_STATE)
{
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    is.device = 1;
    assert_int_equal(cudaDeviceEnablePeerAccess(2, 0), 0);
    is.device = 2;
    assert_int_equal(cudaDeviceEnablePeerAccess(3, 0), 0);
    ibx_frontend_peers_reset(1);
    assert_true(ibx_frontend_peers_reach(3));
    is.device = 1;
    assert_false(ibx_frontend_peers_reach(2));
    is.device = 0;
    assert_false(ibx_frontend_peers_reach(1));
}

/* ------------------------------------------------------------- managed memory */

static void assert_linked(unsigned i, int device, int peer)
{
    assert_true(is.enables > i);
    assert_int_equal(is.enabled[i][0], device);
    assert_int_equal(is.enabled[i][1], peer);
}

/* Device 3 has managed memory for the rest of the process. Devices that are not used yet get access
 * when they are selected. */
static void device_3_has_managed_memory(void)
{
    is.used = 0;
    ibx_frontend_peers_hold(3);
    assert_int_equal(is.enables, 0);
}

/* The first one of these tests. */
static void devices_get_access_to_managed_memory_once(NO_STATE)
{
    is.used = 7;
    is.device = 3;
    ibx_frontend_peers_hold(3);
    assert_int_equal(is.enables, 3);
    for (int device = 0; device < 3; device++)
        assert_linked((unsigned)device, device, 3);
    assert_int_equal(is.cleared, 0); /* an error is the program's */
    ibx_frontend_peers_hold(3);      /* more managed memory: no requests to all devices */
    assert_int_equal(is.visits, 1);
    is.device = 0;
    ibx_frontend_peers_selected(0);
    assert_int_equal(is.enables, 3);
    assert_false(ibx_frontend_peers_reach(3)); /* which the program's calls do not show */
    assert_int_equal(cudaDeviceEnablePeerAccess(3, 0), 0);
}

/* CUDA ends access in both directions; the memory of device 3 is still there. */
static void after_a_reset_managed_memory_is_reached_again(NO_STATE)
{
    device_3_has_managed_memory();
    ibx_frontend_peers_selected(0);
    is.device = 1;
    ibx_frontend_peers_selected(1);
    assert_int_equal(is.enables, 2);
    ibx_frontend_peers_reset(1);
    assert_int_equal(is.enables, 3);
    assert_linked(2, 1, 3);
    ibx_frontend_peers_selected(1);
    assert_int_equal(is.enables, 3);
    is.device = 3;
    ibx_frontend_peers_reset(3);
    is.device = 0;
    ibx_frontend_peers_selected(0);
    assert_int_equal(is.enables, 4);
    assert_linked(3, 0, 3);
}

/* Another client has enabled it: the program's cudaGetLastError() must not say so. */
static void access_that_there_is_already_is_no_error(NO_STATE)
{
    device_3_has_managed_memory();
    is.fails = ENABLED;
    ibx_frontend_peers_selected(1);
    assert_int_equal(is.enables, 1);
    assert_int_equal(is.cleared, 1);
    assert_int_equal(is.warnings, 0);
}

static void devices_without_access_are_told_once(NO_STATE)
{
    device_3_has_managed_memory();
    is.apart = true;
    ibx_frontend_peers_selected(1);
    ibx_frontend_peers_selected(2);
    assert_int_equal(is.warnings, 1);
    assert_int_equal(is.enables, 0);
}

static int child_begins_anew(void)
{
    is.enables = 0;
    is.device = 1;
    ibx_frontend_peers_selected(1);
    if (is.enables) /* no managed memory */
        return 1;
    is.device = 0;
    if (ibx_frontend_peers_reach(1) || cudaDeviceEnablePeerAccess(1, 0))
        return 2;
    is.enables = 0;
    is.used = 4;
    ibx_frontend_peers_hold(3);
    return is.enables == 1 ? 0 : 3; /* its connection has enabled nothing for device 2 yet */
}

static void a_child_has_no_access(NO_STATE)
{
    device_3_has_managed_memory();
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), 0);
    is.device = 2;
    ibx_frontend_peers_selected(2);
    is.device = 0;
    passes_in_child(child_begins_anew);
    assert_true(ibx_frontend_peers_reach(1));
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(access_is_enabled_once),
                                       TEST(without_the_plugin_nothing_is_noted),
                                       TEST(access_that_was_not_enabled_is_not_disabled),
                                       TEST(access_is_disabled_once),
                                       TEST(calls_that_fail_change_nothing),
                                       TEST(a_device_reaches_itself_and_those_without_notes),
                                       TEST(a_reset_ends_access),
                                       TEST(devices_get_access_to_managed_memory_once),
                                       TEST(after_a_reset_managed_memory_is_reached_again),
                                       TEST(access_that_there_is_already_is_no_error),
                                       TEST(devices_without_access_are_told_once),
                                       TEST(a_child_has_no_access)};
    return cmocka_run_group_tests_name("peers", tests, NULL, NULL);
}
