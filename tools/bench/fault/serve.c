/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end that serves memory, as the source of a migration does. */
#include "tools/bench/fault/fault.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_NAME "/objects/served"

static int make_block(const struct bench_args *args, struct ibx_guest_block *block,
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
        return ibx_error_set(err, -errno, "the memory to serve cannot be mapped: %s",
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

/* Waits until the other end closes and prints the cost of serving here: almost none over RDMA. */
static void await_close(struct ibx_page_server *pages)
{
    struct pollfd wait = {.fd = ibx_page_server_fd(pages), .events = POLLIN};
    uint64_t began = ibx_now_ns();
    while (!ibx_page_server_failed(pages, NULL))
        poll(&wait, 1, -1);
    double cpu = (double)ibx_page_server_cpu_ns(pages), took = (double)(ibx_now_ns() - began);
    fprintf(stderr, "ib-fault: serving took %.1f ms of processor time, %.2f %% of the time\n",
            cpu / 1e6, 100 * cpu / took);
}

static int serve(const struct bench_args *args, const char *uri, struct ibx_guest_block *block,
                 struct ibx_error *err)
{
    struct ibx_guest_ram ram = {.blocks = block, .count = 1};
    struct ibx_page_server_config config = {
        .ram = &ram, .uri = uri, .options = &args->options, .links = args->links};
    struct ibx_page_server *pages = NULL;
    ibx_bench_join_make(args, &config.join);
    int rc = ibx_bench_cpus_use(&args->server, err);
    if (!rc)
        rc = make_block(args, block, err);
    if (!rc)
        rc = ibx_page_server_open(&config, &pages, err);
    if (!rc)
        rc = expose(args, pages, err);
    if (!rc)
        await_close(pages);
    ibx_page_server_close(pages);
    return rc;
}

int ibx_bench_serve(const struct bench_args *args, const char *uri)
{
    struct ibx_guest_block block = {.fd = -1};
    struct ibx_error err = {0};
    int rc = serve(args, uri, &block, &err);
    if (block.fd >= 0)
        close(block.fd);
    if (rc)
        fprintf(stderr, "ib-fault: serving: %s\n", err.message);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
