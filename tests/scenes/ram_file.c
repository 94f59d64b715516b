/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/ram_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int file_open(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

void ram_leave_data(const char *path)
{
    static uint8_t bytes[2 << 20];
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    memset(bytes, 0x5a, sizeof(bytes));
    assert_int_equal(pwrite(fd, bytes, sizeof(bytes), 60 << 20), sizeof(bytes));
    close(fd);
}

uint8_t *ram_copy(const char *path)
{
    uint8_t *copy =
        mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int fd = file_open(path);
    assert_true(copy != MAP_FAILED);
    assert_int_equal(read(fd, copy, RAM_BYTES), RAM_BYTES);
    close(fd);
    return copy;
}

void ram_free(uint8_t *copy)
{
    munmap(copy, RAM_BYTES);
}

void ram_is(const char *path, const uint8_t *wanted)
{
    uint8_t *is = ram_copy(path);
    for (size_t at = 0; at < RAM_BYTES; at += RAM_PAGE)
        if (memcmp(is + at, wanted + at, RAM_PAGE))
            fail_msg("the page at 0x%zx is another one", at);
    ram_free(is);
}

unsigned ram_overlay(uint8_t *copy, const char *path)
{
    static bool there[RAM_PAGES];
    unsigned others = 0;
    uint8_t *bytes = ram_copy(path);
    ram_pages(path, there);
    for (size_t at = 0; at < RAM_BYTES; at += RAM_PAGE) {
        if (!there[at / RAM_PAGE])
            continue;
        others += memcmp(copy + at, bytes + at, RAM_PAGE) != 0;
        memcpy(copy + at, bytes + at, RAM_PAGE);
    }
    ram_free(bytes);
    return others;
}

unsigned ram_pages(const char *path, bool there[RAM_PAGES])
{
    unsigned count = 0;
    const int fd = file_open(path);
    memset(there, 0, RAM_PAGES);
    for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0; at += (off_t)RAM_PAGE) {
        there[at / (off_t)RAM_PAGE] = true;
        count++;
    }
    close(fd);
    return count;
}
