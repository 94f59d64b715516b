/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end that lends memory, as a move's source does; and memory as both ends make it. */
#include "tools/bench/ib-fault.h"

#include "common/clock.h"

#include <errno.h>
#include <linux/memfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_NAME "/objects/lent"

/* ------------------------------------------------------------------- memory */

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

/* A figure of /proc/meminfo; -1 where there is none. */
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

/* More than there is would end with the kernel killing somebody, or with SIGBUS. */
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
        return ibx_error_set(err, -EPROTO, "who came is no `ib-fault lend` of this version");
    args->links = join->id[8];
    args->page = join->id[9] ? BENCH_HUGE_PAGE : BENCH_SMALL_PAGE;
    args->size = join->epoch;
    return 0;
}

/* ------------------------------------------------------------------ lending */

static int block_make(const struct bench_args *args, struct ibx_guest_block *block,
                      struct ibx_error *err)
{
    *block = (struct ibx_guest_block){
        .id = BLOCK_NAME, .size = args->size, .page_size = args->page, .shared = true, .fd = -1};
    int rc = ibx_bench_memory_file(args->size, args->page, &block->fd, err);
    if (rc)
        return rc;
    void *memory =
        mmap(NULL, args->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, block->fd, 0);
    if (memory == MAP_FAILED)
        return ibx_error_set(err, -errno, "the memory to lend cannot be mapped: %s",
                             strerror(errno));
    ibx_bench_pages_fill(memory, args->size, args->page);
    munmap(memory, args->size);
    return 0;
}

static int expose(const struct bench_args *args, struct ibx_page_server *pages,
                  struct ibx_error *err)
{
    struct ibx_page_map map;
    struct ibx_migrate_block block = {
        .id = BLOCK_NAME, .size = args->size, .page_size = args->page};
    struct pollfd wait = {.fd = ibx_page_server_fd(pages), .events = POLLIN};
    uint32_t regions;
    int rc = ibx_page_map_init(&map, &block, 1, err);
    if (rc)
        return rc;
    size_t bytes = (size_t)(map.pages + 63) / 64 * 8;
    uint64_t *bits = malloc(bytes);
    rc = bits ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a page map");
    if (!rc) {
        memset(bits, 0xff, bytes);
        ibx_page_map_put_block(&map, 0, bits);
        rc = ibx_page_server_expose(pages, &map, err);
    }
    while (!rc && (rc = ibx_page_server_done(pages, &regions, err)) == -EAGAIN) {
        poll(&wait, 1, -1);
        rc = 0;
    }
    free(bits);
    ibx_page_map_fini(&map);
    return rc;
}

/* Until the other end has had all it wants; then says what that took here: over RDMA next to none.
 */
static void await_leave(struct ibx_page_server *pages)
{
    struct pollfd wait = {.fd = ibx_page_server_fd(pages), .events = POLLIN};
    uint64_t began = ibx_now_ns();
    while (!ibx_page_server_failed(pages, NULL))
        poll(&wait, 1, -1);
    double cpu = (double)ibx_page_server_cpu_ns(pages), took = (double)(ibx_now_ns() - began);
    fprintf(stderr, "ib-fault: lending took %.1f ms of processor time, %.2f %% of the time\n",
            cpu / 1e6, 100 * cpu / took);
}

static int lend(const struct bench_args *args, const char *uri, struct ibx_guest_block *block,
                struct ibx_error *err)
{
    struct ibx_guest_ram ram = {.blocks = block, .count = 1};
    struct ibx_page_server_config config = {
        .ram = &ram, .uri = uri, .options = &args->options, .links = args->links};
    struct ibx_page_server *pages = NULL;
    ibx_bench_join_make(args, &config.join);
    int rc = ibx_bench_cpus_use(&args->lender, err);
    if (!rc)
        rc = block_make(args, block, err);
    if (!rc)
        rc = ibx_page_server_open(&config, &pages, err);
    if (!rc)
        rc = expose(args, pages, err);
    if (!rc)
        await_leave(pages);
    ibx_page_server_close(pages);
    return rc;
}

int ibx_bench_lend(const struct bench_args *args, const char *uri)
{
    struct ibx_guest_block block = {.fd = -1};
    struct ibx_error err = {0};
    int rc = lend(args, uri, &block, &err);
    if (block.fd >= 0)
        close(block.fd);
    if (rc)
        fprintf(stderr, "ib-fault: lending: %s\n", err.message);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
