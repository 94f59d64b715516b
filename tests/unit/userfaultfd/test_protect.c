/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared memory to which this process may not write for a while. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"
#include "userfaultfd/protect.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE  4096u
#define PAGES 4u

static struct {
    int uffd;
    uint8_t *memory;
    _Atomic bool written;
    pthread_t writer;
} guarded;

static uint64_t address_of(unsigned page)
{
    return (uintptr_t)guarded.memory + page * PAGE;
}

static int begin(void **state)
{
    (void)state;
    guarded.uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    guarded.memory =
        mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    guarded.written = false;
    assert_true(guarded.uffd >= 0 && guarded.memory != MAP_FAILED);
    memset(guarded.memory, 1, PAGES * PAGE);
    return 0;
}

static int end(void **state)
{
    (void)state;
    close(guarded.uffd);
    munmap(guarded.memory, PAGES * PAGE);
    return 0;
}

static void enable(void)
{
    struct ibx_error err = {0};
    if (ibx_protect_enable(guarded.uffd, &err) == -EOPNOTSUPP)
        skip();
    if (ibx_protect_register(guarded.uffd, address_of(0), PAGES * PAGE, &err))
        fail_msg("%s", err.message);
}

static void *write_to_page_2(void *unused)
{
    (void)unused;
    guarded.memory[2 * PAGE + 5] = 2;
    atomic_store(&guarded.written, true);
    return NULL;
}

/* The address of the next write that waits. */
static uint64_t next(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(60000));
    uint64_t address = 0;
    int rc;
    while ((rc = ibx_protect_next(guarded.uffd, &address)) == -EAGAIN && ibx_now_ns() < deadline)
        sched_yield();
    assert_int_equal(rc, 0);
    return address;
}

/* Only pages 2 and 3 are forbidden. Who writes there waits, also after it was woken, until the
 * userfaultfd ends. */
static void test_writes_wait(NO_STATE)
{
    uint64_t address;
    enable();
    assert_int_equal(ibx_protect_forbid(guarded.uffd, address_of(2), 2 * PAGE, NULL), 0);
    guarded.memory[PAGE] = 2;
    assert_int_equal(guarded.memory[3 * PAGE], 1);
    assert_int_equal(ibx_protect_next(guarded.uffd, &address), -EAGAIN);
    assert_int_equal(pthread_create(&guarded.writer, NULL, write_to_page_2, NULL), 0);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(next() / PAGE, address_of(2) / PAGE);
        assert_int_equal(ibx_protect_next(guarded.uffd, &address), -EAGAIN);
        assert_false(atomic_load(&guarded.written));
        assert_int_equal(guarded.memory[2 * PAGE + 5], 1);
        if (i < 2)
            assert_int_equal(ibx_protect_retry(guarded.uffd, address_of(2), PAGE), 0);
    }
    close(guarded.uffd);
    guarded.uffd = -1;
    pthread_join(guarded.writer, NULL);
    assert_true(guarded.written && guarded.memory[2 * PAGE + 5] == 2);
}

/* Memory that is not registered is not protected, and the caller is told so. */
static void test_other_memory(NO_STATE)
{
    struct ibx_error err = {0};
    enable();
    assert_int_equal(munmap(guarded.memory + 2 * PAGE, PAGE), 0);
    assert_int_equal(ibx_protect_forbid(guarded.uffd, address_of(2), PAGE, &err), -ENOENT);
    text_has(err.message, "protecting 0x1000 bytes at 0x");
    assert_int_equal(ibx_protect_register(guarded.uffd, address_of(2), PAGE, &err), -EINVAL);
    text_has(err.message, "registering 0x1000 bytes at 0x");
    assert_int_equal(ibx_protect_retry(-1, address_of(0), PAGE), -EBADF);
    assert_int_equal(ibx_protect_forbid(guarded.uffd, address_of(0), 2 * PAGE, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_writes_wait, begin, end),
        cmocka_unit_test_setup_teardown(test_other_memory, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
