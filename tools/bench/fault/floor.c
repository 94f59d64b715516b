/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A page reader without a network: a memcpy of this process's memory. A fault over it costs what
 * this kernel and this engine cost. */
#include "tools/bench/fault/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LOCAL_MAX (64u << 20) /* bytes; more than a cache holds */
#define READY     64u

struct local {
    const struct bench *bench;
    struct ibx_fault_arrival ready[READY];
    unsigned count;
};

static int request(void *context, const struct ibx_fault_request *wanted)
{
    struct local *local = context;
    const struct bench *b = local->bench;
    const uint64_t bytes = b->local_pages * b->args->page;
    if (local->count == READY)
        return -EAGAIN;
    for (size_t done = 0; done < wanted->length;) {
        uint64_t at = (wanted->offset + done) % bytes;
        size_t part = wanted->length - done;
        if (part > bytes - at)
            part = (size_t)(bytes - at);
        memcpy((uint8_t *)wanted->buffer + done, b->local + at, part);
        done += part;
    }
    local->ready[local->count++] =
        (struct ibx_fault_arrival){.cookie = wanted->cookie, .length = wanted->length};
    return 0;
}

static int take(void *context, struct ibx_fault_arrival *arrivals, int max)
{
    struct local *local = context;
    unsigned n = local->count < (unsigned)max ? local->count : (unsigned)max;
    memcpy(arrivals, local->ready, n * sizeof(*arrivals));
    local->count -= n;
    memmove(local->ready, local->ready + n, local->count * sizeof(*arrivals));
    return (int)n;
}

static int arm(void *context)
{
    const struct local *local = context;
    return local->count > 0;
}

static const struct ibx_fault_reader_ops operations = {
    .request = request, .poll = take, .arm = arm};

int ibx_bench_floor_make(struct bench *b, struct ibx_error *err)
{
    uint64_t bytes = b->args->size < LOCAL_MAX ? b->args->size : LOCAL_MAX;
    b->local = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->local == MAP_FAILED) {
        b->local = NULL;
        return ibx_error_set(err, -ENOMEM, "no memory for %llu MiB of pages",
                             (unsigned long long)bytes >> 20);
    }
    b->local_pages = bytes / b->args->page;
    ibx_bench_pages_fill(b->local, bytes, b->args->page);
    for (unsigned i = 0; i < b->links; i++) {
        struct local *local = calloc(1, sizeof(*local));
        if (!local)
            return ibx_error_set(err, -ENOMEM, "no memory to read pages");
        local->bench = b;
        b->floor[i] = (struct ibx_fault_reader){
            .ops = &operations, .context = local, .buffer = b->wire[i].buffer};
    }
    return 0;
}

void ibx_bench_floor_free(struct bench *b)
{
    for (unsigned i = 0; i < b->links; i++)
        free(b->floor[i].context);
    if (b->local)
        munmap(b->local, b->local_pages * b->args->page);
}
