/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A kernel that lacks features of userfaultfd. Before Linux 5.18 it does not report where in a
 * huge page a fault was, and ibx works without that. Other features are required. */
#include "tests/fixtures/fault_memory.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

#define EXACT_ADDRESS (1ull << 11)
#define WP_ASYNC      (1ull << 15)

static uint64_t lacks;      /* features that the kernel does not know */
static unsigned handshakes; /* attempted handshakes */
static uint64_t enabled;    /* features of the successful one */

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    struct uffdio_api *api = argument;
    if (request != UFFDIO_API)
        return __real_ioctl(fd, request, argument);
    const uint64_t wanted = api->features;
    handshakes++;
    if (wanted & lacks) { /* as kernels do */
        *api = (struct uffdio_api){.api = 0};
        errno = EINVAL;
        return -1;
    }
    const int rc = __real_ioctl(fd, request, argument);
    enabled = rc ? enabled : wanted;
    api->features &= ~lacks;
    return rc;
}

static int begin(void **state)
{
    (void)state;
    lacks = handshakes = 0;
    enabled = 0;
    return 0;
}

/* One handshake with the feature; on an older kernel a second one without it. */
static void test_exact_addresses_if_available(void **state)
{
    struct ibx_error err = {0};
    int fd;
    (void)state;
    assert_int_equal(ibx_fault_uffd_open(IBX_FAULT_EVENT_REMOVE, &fd, &err), 0);
    assert_int_equal(handshakes, 1);
    assert_int_equal(enabled, IBX_FAULT_EVENT_REMOVE | EXACT_ADDRESS);
    close(fd);
    lacks = EXACT_ADDRESS;
    assert_int_equal(ibx_fault_uffd_open(IBX_FAULT_EVENT_REMOVE, &fd, &err), 0);
    assert_int_equal(handshakes, 3);
    assert_int_equal(enabled, IBX_FAULT_EVENT_REMOVE);
    close(fd);
}

static void test_faults_are_served(void **state)
{
    (void)state;
    lacks = EXACT_ADDRESS;
    assert_int_equal(rig_make_pair(state), 0);
    rig_serve();
    for (uint64_t page = 0; page < PAGES; page += 97)
        touch(page);
    everything_is_right();
    assert_int_equal(enabled, IBX_FAULT_EVENT_REMOVE);
}

/* The message names the required feature, not the optional one. */
static void test_required_feature_is_missing(void **state)
{
    struct ibx_error err = {0};
    int fd = -1;
    (void)state;
    lacks = EXACT_ADDRESS | WP_ASYNC;
    assert_int_equal(ibx_fault_uffd_open(WP_ASYNC, &fd, &err), -EOPNOTSUPP);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(err.message, "lacks feature WP_ASYNC"));
    lacks = 0;
    assert_int_equal(ibx_fault_uffd_open(0, &fd, &err), 0);
    lacks = EXACT_ADDRESS;
    assert_int_equal(ibx_fault_uffd_enable(fd, 0, &err), -EINVAL);
    assert_non_null(strstr(err.message, "was enabled before"));
    close(fd);
}

#define OLDER_TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        OLDER_TEST(test_exact_addresses_if_available),
        cmocka_unit_test_setup_teardown(test_faults_are_served, begin, rig_end),
        OLDER_TEST(test_required_feature_is_missing),
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
