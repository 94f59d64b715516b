/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writing all bytes to a file that accepts only a part at a time, or refuses the rest. */
#include "common/write_whole.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define BYTES 10000u

static uint8_t bytes[BYTES];

static void is_there(int fd, size_t at, size_t length)
{
    uint8_t got[BYTES];
    assert_int_equal(pread(fd, got, sizeof(got), (off_t)at), length);
    assert_memory_equal(got, bytes, length);
}

static int file(void)
{
    const int fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(fd >= 0);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 7);
    return fd;
}

static void test_whole_file(NO_STATE)
{
    const int fd = file();
    assert_int_equal(ibx_write_whole_at(fd, bytes, BYTES, 100), 0);
    is_there(fd, 100, BYTES);
    assert_int_equal(ibx_write_whole(fd, bytes, BYTES), 0);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), BYTES);
    assert_int_equal(pwrite(fd, "", 1, BYTES), 1);
    assert_int_equal(ibx_write_whole(fd, bytes, 0), 0);
    close(fd);
}

/* A write(2) up to the file size limit accepts the bytes below it; only the next one fails. */
static void test_file_at_its_size_limit(NO_STATE)
{
    struct rlimit before, limit;
    const int fd = file();
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = BYTES / 2;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const int at = ibx_write_whole_at(fd, bytes, BYTES, 0), after = ibx_write_whole(fd, bytes, 1);
    const off_t end = lseek(fd, 0, SEEK_END);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(at, -EFBIG);
    assert_int_equal(after, 0);
    assert_int_equal(end, BYTES / 2);
    is_there(fd, 0, BYTES / 2);
    close(fd);
    assert_int_equal(ibx_write_whole(fd, bytes, 1), -EBADF);
}

/* A reader empties the pipe little by little. */
static void test_slowly_emptied_pipe(NO_STATE)
{
    int ends[2];
    uint8_t got[BYTES];
    file();
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 0);
    const pid_t pid = fork();
    if (!pid)
        _exit(ibx_write_whole(ends[1], bytes, BYTES) != 0);
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], got + length, length + 7 < BYTES ? 7 : BYTES - length)) > 0;)
        length += (size_t)n;
    assert_int_equal(length, BYTES);
    assert_memory_equal(got, bytes, BYTES);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole_file),
                                       cmocka_unit_test(test_file_at_its_size_limit),
                                       cmocka_unit_test(test_slowly_emptied_pipe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
