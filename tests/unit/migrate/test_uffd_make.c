/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A userfaultfd is made in a QEMU that a security module confines. Linked by --wrap: this process
 * is QEMU, and makes the calls that a test allows. */
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define QMP ((struct ibx_qmp *)&given)

static int given;      /* the device, as QEMU has it */
static long denied[2]; /* system calls */
static int denied_code;
static struct ibx_error error;

int __wrap_ibx_inject_syscall(pid_t pid, long number, const uint64_t arguments[6], int64_t *result,
                              uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_inject_syscall(pid_t pid, long number, const uint64_t arguments[6], int64_t *result,
                              uint64_t deadline_ns, struct ibx_error *err)
{
    (void)deadline_ns, (void)err;
    assert_int_equal(pid, getpid());
    if (number == denied[0] || number == denied[1]) {
        *result = -denied_code;
        return 0;
    }
    *result = syscall(number, arguments[0], arguments[1], arguments[2]);
    assert_true(*result >= 0);
    return 0;
}

int __wrap_ibx_qmp_getfd(struct ibx_qmp *qmp, const char *name, int fd, uint64_t deadline_ns,
                         struct ibx_error *err);
int __wrap_ibx_qmp_getfd(struct ibx_qmp *qmp, const char *name, int fd, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    (void)name, (void)deadline_ns, (void)err;
    assert_ptr_equal(qmp, QMP);
    given = dup(fd);
    assert_true(given >= 0);
    return 0;
}

int __wrap_ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                           json_t **result, uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                           json_t **result, uint64_t deadline_ns, struct ibx_error *err)
{
    (void)result, (void)deadline_ns, (void)err;
    assert_ptr_equal(qmp, QMP);
    assert_string_equal(command, "closefd");
    json_decref(arguments);
    close(given);
    return 0;
}

/* A QEMU that may call userfaultfd(2), as far as /proc tells, but gets this error. */
static int make(int code, long also, struct ibx_uffd *uffd)
{
    enum ibx_uffd_way way = IBX_UFFD_ANY;
    if (access("/dev/userfaultfd", R_OK | W_OK) || ibx_uffd_possible(getpid(), &way, NULL) ||
        way != IBX_UFFD_SYSCALL)
        skip();
    denied[0] = SYS_userfaultfd;
    denied[1] = also;
    denied_code = code;
    memset(&error, 0, sizeof(error));
    return ibx_uffd_make(getpid(), QMP, IBX_UFFD_ANY, uffd, ibx_deadline_in_ms(10000), &error);
}

static void test_the_device_is_the_second_way(NO_STATE)
{
    static const int codes[] = {EPERM, EACCES};
    for (unsigned i = 0; i < 2; i++) {
        struct ibx_uffd uffd;
        assert_int_equal(make(codes[i], 0, &uffd), 0);
        assert_int_equal(uffd.way, IBX_UFFD_DEVICE);
        close(uffd.fd);
        close(uffd.remote);
    }
}

static void test_no_way_is_left(NO_STATE)
{
    struct ibx_uffd uffd = {.fd = 77};
    assert_int_equal(make(EACCES, SYS_ioctl, &uffd), -EACCES);
    text_has(error.message, "is not allowed to create a userfaultfd: Permission denied; where");
    text_has(error.message, "policy, allow it a userfaultfd");
    assert_int_equal(uffd.fd, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_device_is_the_second_way),
        cmocka_unit_test(test_no_way_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
