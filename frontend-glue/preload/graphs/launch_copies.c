/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The bytes that a graph's copies from pageable memory need. CUDA reads them within
 * cudaGraphLaunch, so that the program may change them when that returns. It takes what it has room
 * for before anything of the graph has run, and waits for the graph with the rest. So does this
 * file. A copy that CUDA makes of bytes which the same graph, or an earlier launch, copies to that
 * memory has those: CUDA waits for them within the launch. Such a copy is made when the graph gets
 * there, and the launch waits for it.
 *
 * Page-locked memory is read when the graph gets there.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

struct span {
    uintptr_t begin, end;
};

/* A launch, while it is prepared. */
struct prepared {
    const uint64_t *numbers;
    size_t count;
    size_t written_count, written_room;
    struct span *written; /* of copies to this process's memory, sorted, and apart */
    bool no_memory;       /* for these */
};

/* ------------------------------------------------------------------------- one copy's bytes */

/* The copy that a function makes; NULL: none, or one of nothing. */
static const struct ibx_host_copy *copy_of(const struct host_node *host)
{
    const struct ibx_host_copy *copy =
        ibx_frontend_graph_copies(host->function) ? host->argument : NULL;
    return copy && ibx_host_copy_bytes(&copy->bytes) ? copy : NULL;
}

static struct span span_of(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                           const struct ibx_cuda_extent *extent)
{
    const size_t first = at->depth * memory->y + at->height;
    const size_t last =
        (at->depth + extent->depth - 1) * memory->y + at->height + extent->height - 1;
    const uintptr_t column = (uintptr_t)memory->at + at->width;
    return (struct span){column + first * memory->pitch,
                         column + last * memory->pitch + extent->width};
}

static bool is_to_host(const struct ibx_host_copy *copy)
{
    return copy->bytes.kind == CUDA_MEMCPY_FROM_DEVICE || copy->bytes.kind == CUDA_MEMCPY_ON_HOST;
}

/* Whether it reads pageable memory, and which. */
static bool reads_pageable(const struct ibx_host_copy *copy, struct span *span)
{
    const struct ibx_cuda_memcpy3d *p = &copy->bytes;
    if (p->kind != CUDA_MEMCPY_TO_DEVICE && p->kind != CUDA_MEMCPY_ON_HOST)
        return false;
    *span = span_of(&p->from, &p->from_at, &p->extent);
    return ibx_frontend_host_memory((const void *)span->begin, span->end - span->begin) ==
           HOST_PAGEABLE;
}

/* ---------------------------------------------------------------------- what copies write */

static void note_written(const struct host_node *host, void *context)
{
    struct prepared *launch = context;
    const struct ibx_host_copy *copy = copy_of(host);
    if (!copy || !is_to_host(copy) || launch->no_memory)
        return;
    if (launch->written_count == launch->written_room) {
        const size_t room = launch->written_room ? 2 * launch->written_room : 64;
        struct span *more = realloc(launch->written, room * sizeof(*more));
        launch->no_memory = !more;
        if (!more)
            return;
        launch->written = more;
        launch->written_room = room;
    }
    launch->written[launch->written_count++] =
        span_of(&copy->bytes.to, &copy->bytes.to_at, &copy->bytes.extent);
}

static int compare_begins(const void *a, const void *b)
{
    const struct span *left = a, *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

/* Sorts the spans and joins those that overlap, so that any can be found. */
static void sort_written(struct prepared *launch)
{
    size_t n = 0;
    if (launch->written_count)
        qsort(launch->written, launch->written_count, sizeof(*launch->written), compare_begins);
    for (size_t i = 0; i < launch->written_count; i++) {
        const struct span next = launch->written[i];
        struct span *last = n ? launch->written + n - 1 : NULL;
        if (!last || next.begin > last->end)
            launch->written[n++] = next;
        else if (next.end > last->end)
            last->end = next.end;
    }
    launch->written_count = n;
}

static int compare_spans(const void *wanted, const void *written)
{
    const struct span *left = wanted, *right = written;
    return left->end <= right->begin ? -1 : left->begin >= right->end;
}

static bool is_written(const struct prepared *launch, const struct span *span)
{
    return launch->written_count &&
           bsearch(span, launch->written, launch->written_count, sizeof(*span), compare_spans);
}

/* ------------------------------------------------------------------------------ the launch */

/* Whether the graph reads pageable memory. */
static bool reads_any(const struct prepared *launch)
{
    struct host_node host;
    struct span span;
    const struct ibx_host_copy *copy;
    size_t i = 0;
    while (i < launch->count && !(ibx_frontend_host_function_of(launch->numbers[i], &host) &&
                                  (copy = copy_of(&host)) && reads_pageable(copy, &span)))
        i++;
    return i < launch->count;
}

static void note_all_written(struct prepared *launch)
{
    struct host_node host;
    for (size_t i = 0; i < launch->count; i++)
        if (ibx_frontend_host_function_of(launch->numbers[i], &host))
            note_written(&host, launch);
    ibx_frontend_host_outstanding(note_written, launch);
    sort_written(launch);
}

static struct ibx_launch_copy prepare(const struct prepared *launch, uint64_t number)
{
    struct ibx_launch_copy made = {IBX_READS_LATER, NULL};
    struct host_node host;
    struct span span;
    const struct ibx_host_copy *copy =
        ibx_frontend_host_function_of(number, &host) ? copy_of(&host) : NULL;
    if (!copy || !reads_pageable(copy, &span))
        return made;
    if (host.function == ibx_host_copy_exchange && !is_written(launch, &span))
        made.taken = ibx_launch_bytes_take(copy);
    made.reads = made.taken ? IBX_READS_TAKEN : IBX_READS_AWAITED;
    return made;
}

int ibx_frontend_copies_launch(const uint64_t *numbers, size_t count, void *stream,
                               int (*launch)(void *exec, void *stream), void *exec)
{
    struct prepared all = {.numbers = numbers, .count = count};
    if (!reads_any(&all))
        return ibx_frontend_host_launch(numbers, NULL, count, stream, launch, exec);
    note_all_written(&all);
    struct ibx_launch_copy *copies = all.no_memory ? NULL : calloc(count, sizeof(*copies));
    for (size_t i = 0; copies && i < count; i++)
        copies[i] = prepare(&all, numbers[i]);
    const int rc = copies ? ibx_frontend_host_launch(numbers, copies, count, stream, launch, exec)
                          : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    for (size_t i = 0; copies && i < count; i++)
        ibx_launch_bytes_free(copies[i].taken); /* that no function has got */
    free(copies);
    free(all.written);
    return rc;
}
