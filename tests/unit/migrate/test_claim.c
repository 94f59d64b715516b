/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A tool claims a VM that the watchdog of a killed tool still has. Linked by --wrap: the lock is
 * free when a test says so, and time passes while the tool waits. This process is QEMU. */
#include "migrate/common/common.h"
#include "migrate/common/vm.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <poll.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define BEGIN_MS 1000000u
#define NEVER_MS (BEGIN_MS + 60000)

#define QEMU getpid()

int __wrap_flock(int fd, int operation);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

static unsigned now_ms, free_ms, claims, finds, losses;
static pid_t again; /* the QEMU that is found the second time; 0: none */
static int claim;
static struct ibx_error claimed, error;

int __wrap_flock(int fd, int operation)
{
    assert_true(fd >= 0);
    assert_int_equal(operation, LOCK_EX | LOCK_NB);
    claims++;
    if (claims > 1 && finds)
        assert_int_equal(losses, 1); /* the watchdog needs the monitor */
    if (now_ms >= free_ms)
        return 0;
    errno = EWOULDBLOCK;
    return -1;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    assert_true(!fds && !n && timeout_ms > 0);
    assert_in_range(now_ms, BEGIN_MS, NEVER_MS);
    now_ms += (unsigned)timeout_ms;
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){now_ms / 1000, now_ms % 1000 * 1000000l};
    return 0;
}

static int find(void *context, pid_t *qemu, struct ibx_error *err)
{
    assert_ptr_equal(context, &again);
    *qemu = finds++ ? again : QEMU;
    return *qemu ? 0 : ibx_error_set(err, -ENOENT, "there is no QEMU");
}

static void lose(void *context)
{
    assert_ptr_equal(context, &again);
    losses++;
}

static int find_and_claim(void)
{
    const struct ibx_vm_search search = {find, lose, &again, "/run/vm.qmp"};
    return ibx_vm_find_and_claim(&search, &claim, &claimed, &error);
}

static int begin(void **state)
{
    (void)state;
    now_ms = free_ms = BEGIN_MS;
    claims = finds = losses = 0;
    again = QEMU;
    claim = -1;
    claimed = error = (struct ibx_error){0};
    return 0;
}

static int end(void **state)
{
    (void)state;
    return claim >= 0 && close(claim);
}

static void test_free_at_once(NO_STATE)
{
    assert_int_equal(find_and_claim(), 0);
    assert_true(claim >= 0);
    assert_true(claims == 1 && finds == 1 && !losses && now_ms == BEGIN_MS);
}

/* The earlier error counts no more. */
static void test_free_later(NO_STATE)
{
    free_ms = BEGIN_MS + MIGRATION_LOCK_MS / 2;
    assert_int_equal(find_and_claim(), 0);
    assert_true(claim >= 0);
    assert_int_equal(claimed.code, 0);
    assert_string_equal(claimed.message, "");
    assert_true(finds == 2 && losses == 1);
    assert_in_range(now_ms, free_ms, free_ms + MIGRATION_LOCK_LOOK_MS);
}

/* The caller may have a better reason for why the VM is not free. */
static void test_never_free(NO_STATE)
{
    free_ms = NEVER_MS;
    assert_int_equal(find_and_claim(), 0);
    assert_int_equal(claim, -1);
    assert_int_equal(claimed.code, -EBUSY);
    assert_true(finds == 2 && losses == 1);
    assert_in_range(now_ms, BEGIN_MS + MIGRATION_LOCK_MS,
                    BEGIN_MS + MIGRATION_LOCK_MS + MIGRATION_LOCK_LOOK_MS);
}

static void test_another_meanwhile(NO_STATE)
{
    char text[160];
    free_ms = BEGIN_MS + 1;
    again = QEMU + 1;
    assert_int_equal(find_and_claim(), -ESRCH);
    snprintf(text, sizeof(text),
             "the QEMU of process %d has ended meanwhile, and /run/vm.qmp is that of process %d",
             (int)QEMU, (int)again);
    assert_int_equal(strncmp(error.message, text, strlen(text)), 0);
}

static void test_none_meanwhile(NO_STATE)
{
    free_ms = BEGIN_MS + 1;
    again = 0;
    assert_int_equal(find_and_claim(), -ENOENT);
    assert_string_equal(error.message, "there is no QEMU");
}

/* Returns as soon as it is free. */
static void test_free_at_the_next_look(NO_STATE)
{
    free_ms = BEGIN_MS + MIGRATION_LOCK_LOOK_MS;
    assert_int_equal(ibx_vm_claim_when_free(QEMU, &claim, &error), 0);
    assert_true(claim >= 0);
    assert_int_equal(now_ms, free_ms);
    assert_int_equal(claims, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_free_at_once, begin, end),
        cmocka_unit_test_setup_teardown(test_free_later, begin, end),
        cmocka_unit_test_setup_teardown(test_never_free, begin, end),
        cmocka_unit_test_setup_teardown(test_another_meanwhile, begin, end),
        cmocka_unit_test_setup_teardown(test_none_meanwhile, begin, end),
        cmocka_unit_test_setup_teardown(test_free_at_the_next_look, begin, end),
    };
    return cmocka_run_group_tests_name("claim", tests, NULL, NULL);
}
