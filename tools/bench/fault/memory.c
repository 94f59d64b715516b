/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory as both ends make and check it, and the JOIN that describes it. */
#include "tools/bench/fault/fault.h"

#include <errno.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void ibx_bench_pages_fill(void *memory, uint64_t bytes, uint32_t page_size)
{
    uint64_t *word = memory;
    const uint64_t words = page_size / 8;
    for (uint64_t page = 0; page < bytes / page_size; page++)
        for (uint64_t i = 0; i < words; i++)
            *word++ = bench_word(page, i);
}

bool ibx_bench_page_right(const void *page, uint64_t number, uint32_t page_size)
{
    const uint64_t *word = page;
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < page_size / 8; i++)
        wrong |= word[i] ^ bench_word(number, i);
    return !wrong;
}

int ibx_bench_memory_file(uint64_t bytes, uint32_t page, int *out, struct ibx_error *err)
{
    bool huge = page == BENCH_HUGE_PAGE;
    int fd = memfd_create("ib-fault", MFD_CLOEXEC | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0));
    if (fd >= 0 && !ftruncate(fd, (off_t)bytes)) {
        *out = fd;
        return 0;
    }
    int code = errno;
    if (fd >= 0)
        close(fd);
    return ibx_error_set(err, -code, "no file of %llu MiB of %s pages: %s",
                         (unsigned long long)bytes >> 20, huge ? "2 MiB" : "4 KiB", strerror(code));
}

/* A figure of /proc/meminfo; -1: there is none. */
static long long meminfo(const char *name)
{
    char line[256];
    long long value = -1;
    size_t length = strlen(name);
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && value < 0 && fgets(line, sizeof(line), file))
        if (!strncmp(line, name, length) && line[length] == ':')
            value = strtoll(line + length + 1, NULL, 10);
    if (file)
        fclose(file);
    return value;
}

/* Checked beforehand, because without enough memory the kernel would kill a process or send SIGBUS.
 */
int ibx_bench_memory_check(uint64_t bytes, uint32_t page, struct ibx_error *err)
{
    const unsigned long long mib = bytes >> 20, room = (256ull << 20) + bytes / 32;
    long long pages = meminfo("HugePages_Free"), kib = meminfo("MemAvailable");
    if (page == BENCH_HUGE_PAGE && pages >= 0 && (unsigned long long)pages < bytes / page)
        return ibx_error_set(err, -ENOMEM,
                             "%llu MiB need %llu huge pages, %lld are free: raise vm.nr_hugepages",
                             mib, (unsigned long long)bytes / page, pages);
    if (page == BENCH_SMALL_PAGE && kib >= 0 && (unsigned long long)kib < (bytes + room) / 1024)
        return ibx_error_set(err, -ENOMEM,
                             "%llu MiB and some room do not fit into the %lld MiB that are free: "
                             "take a smaller --size",
                             mib, kib / 1024);
    return 0;
}

/* --------------------------------------------------------------------- JOIN */

static const char join_magic[8] = {'i', 'b', '-', 'f', 'a', 'u', 'l', 't'};

void ibx_bench_join_make(const struct bench_args *args, struct ibx_migrate_join *join)
{
    *join = (struct ibx_migrate_join){.epoch = args->size};
    memcpy(join->id, join_magic, sizeof(join_magic));
    join->id[8] = (uint8_t)args->links;
    join->id[9] = args->page == BENCH_HUGE_PAGE;
}

int ibx_bench_join_read(const struct ibx_migrate_join *join, struct bench_args *args,
                        struct ibx_error *err)
{
    if (memcmp(join->id, join_magic, sizeof(join_magic)) || !join->id[8] ||
        join->id[8] > IBX_MIGRATE_LINKS_MAX || join->id[9] > 1 || !join->epoch ||
        join->epoch % BENCH_HUGE_PAGE || join->epoch > 1ull << 42)
        return ibx_error_set(err, -EPROTO, "the peer is no `ib-fault serve' of this version");
    args->links = join->id[8];
    args->page = join->id[9] ? BENCH_HUGE_PAGE : BENCH_SMALL_PAGE;
    args->size = join->epoch;
    return 0;
}
