/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The limit of locked memory (RLIMIT_MEMLOCK), and which parts of guest RAM count towards it. */
#include "migrate/pages/pages.h"
#include "migrate/preflight/preflight.h"

#include "common/locked.h"

#include <errno.h>
#include <linux/capability.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT (4u << 20)
#define MIB   (1ull << 20)

static void set_lock_capability(bool held)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    assert_int_equal(syscall(SYS_capget, &head, data), 0);
    if (held)
        data[0].effective |= data[0].permitted & 1u << CAP_IPC_LOCK;
    else
        data[0].effective &= ~(1u << CAP_IPC_LOCK);
    assert_int_equal(syscall(SYS_capset, &head, data), 0);
}

static int limited(void **state)
{
    struct rlimit *before = malloc(sizeof(*before));
    assert_non_null(before);
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, before), 0);
    const struct rlimit little = {before->rlim_max < LIMIT ? before->rlim_max : LIMIT,
                                  before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &little), 0);
    set_lock_capability(false);
    *state = before;
    return 0;
}

static int as_before(void **state)
{
    set_lock_capability(true);
    setrlimit(RLIMIT_MEMLOCK, *state);
    free(*state);
    return 0;
}

static void test_too_much_memory_is_refused(void **state)
{
    struct ibx_blockers blockers = {0};
    uint64_t limit = 0;
    char words[64];
    (void)state;
    assert_true(ibx_locked_limit(&limit));
    ibx_preflight_locked("verbs", limit, &blockers);
    assert_int_equal(blockers.count, 0);
    ibx_preflight_locked("verbs", limit + 1, &blockers);
    assert_int_equal(blockers.count, 1);
    snprintf(words, sizeof(words), "verbs cannot register %llu bytes",
             (unsigned long long)limit + 1);
    assert_non_null(strstr(blockers.reasons[0], words));
    assert_non_null(strstr(blockers.reasons[0], "RLIMIT_MEMLOCK"));
    assert_non_null(strstr(blockers.reasons[0], "ulimit -l unlimited"));
}

/* CAP_IPC_LOCK lifts the limit. */
static void test_capability_lifts_the_limit(void **state)
{
    struct ibx_blockers blockers = {0};
    uint64_t limit;
    (void)state;
    set_lock_capability(true);
    if (ibx_locked_limit(&limit))
        skip(); /* this process cannot get the capability */
    ibx_preflight_locked("verbs", UINT64_MAX, &blockers);
    assert_int_equal(blockers.count, 0);
}

/* A piece that holds data counts whole, the last one with its actual length. Private RAM does
 * not count. */
static void test_pieces_that_hold_data(void **state)
{
    struct ibx_guest_block blocks[2] = {{.fd = -1, .size = 64 * MIB, .page_size = 4096},
                                        {.size = 7 * MIB, .page_size = 4096}};
    const struct ibx_guest_ram ram = {.blocks = blocks, .count = 2};
    struct ibx_error err = {0};
    uint64_t bytes = 1;
    (void)state;
    blocks[1].fd = memfd_create("ram", MFD_CLOEXEC);
    assert_true(blocks[1].fd >= 0);
    assert_int_equal(ftruncate(blocks[1].fd, 7 * MIB), 0);
    assert_int_equal(ibx_preflight_locked_bytes(&ram, &bytes, &err), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(pwrite(blocks[1].fd, "x", 1, 3 * MIB), 1);
    assert_int_equal(pwrite(blocks[1].fd, "x", 1, 7 * MIB - 1), 1);
    assert_int_equal(ibx_preflight_locked_bytes(&ram, &bytes, &err), 0);
    assert_int_equal(bytes, IBX_EXPORT_PIECE + MIB);
    close(blocks[1].fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_too_much_memory_is_refused, limited, as_before),
        cmocka_unit_test_setup_teardown(test_capability_lifts_the_limit, limited, as_before),
        cmocka_unit_test(test_pieces_that_hold_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
