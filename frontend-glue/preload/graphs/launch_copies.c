/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What launches of graphs do about the graph's copies of pageable memory. CUDA reads and writes
 * such memory within cudaGraphLaunch. Of a copy to the device it takes the bytes, as far as it has
 * room, before anything of the graph has run. A copy from the device, which may write to pageable
 * memory, and one within the host's memory, of whatever kind, is made when the launch returns; and
 * of what they write a later copy of the graph has the new bytes. So the program may change the
 * memory when the launch returns, and read what the graph has copied there.
 *
 * Here a launch takes the bytes, too. For those that it cannot take yet, because copies which are
 * to come first write them, or for lack of room, and for the other copies it waits when it has sent
 * its request: a function of this process makes these copies when the graph gets there. If the
 * memory was page-locked when the node was added, nobody waits for its copy.
 */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

/* A launch, while it is prepared. */
struct prepared {
    const uint64_t *numbers;
    size_t count;
    size_t written_count, written_room;
    struct ibx_host_span *written; /* of copies to this process's memory, sorted, and apart */
    bool no_memory;                /* for these */
};

/* ------------------------------------------------------------------------- one copy's bytes */

/* The copy that a function makes; NULL: none, or one of nothing. */
static const struct ibx_host_copy *copy_of(const struct host_node *host)
{
    const struct ibx_host_copy *copy =
        ibx_frontend_graph_copies(host->function) ? host->argument : NULL;
    return copy && ibx_host_copy_bytes(&copy->bytes) ? copy : NULL;
}

static bool is_to_host(const struct ibx_host_copy *copy)
{
    return copy->bytes.kind == CUDA_MEMCPY_FROM_DEVICE || copy->bytes.kind == CUDA_MEMCPY_ON_HOST;
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
        struct ibx_host_span *more = realloc(launch->written, room * sizeof(*more));
        launch->no_memory = !more;
        if (!more)
            return;
        launch->written = more;
        launch->written_room = room;
    }
    launch->written[launch->written_count++] = ibx_host_copy_writes(&copy->bytes);
}

static int compare_begins(const void *a, const void *b)
{
    const struct ibx_host_span *left = a, *right = b;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

/* Sorts the spans and joins those that overlap, so that any can be found. */
static void sort_written(struct prepared *launch)
{
    size_t n = 0;
    if (launch->written_count)
        qsort(launch->written, launch->written_count, sizeof(*launch->written), compare_begins);
    for (size_t i = 0; i < launch->written_count; i++) {
        const struct ibx_host_span next = launch->written[i];
        struct ibx_host_span *last = n ? launch->written + n - 1 : NULL;
        if (!last || next.begin > last->end)
            launch->written[n++] = next;
        else if (next.end > last->end)
            last->end = next.end;
    }
    launch->written_count = n;
}

static int compare_spans(const void *wanted, const void *written)
{
    const struct ibx_host_span *left = wanted, *right = written;
    return left->end <= right->begin ? -1 : left->begin >= right->end;
}

static bool is_written(const struct prepared *launch, const struct ibx_host_span *span)
{
    return launch->written_count &&
           bsearch(span, launch->written, launch->written_count, sizeof(*span), compare_spans);
}

/* ------------------------------------------------------------------------------ the launch */

/* The copy that a launch takes, or waits for; NULL: none. */
static const struct ibx_host_copy *pageable_of(uint64_t number, struct host_node *host)
{
    const struct ibx_host_copy *copy =
        ibx_frontend_host_function_of(number, host) ? copy_of(host) : NULL;
    return copy && copy->pageable ? copy : NULL;
}

static bool has_pageable(const uint64_t *numbers, size_t count)
{
    struct host_node host;
    size_t i = 0;
    while (i < count && !pageable_of(numbers[i], &host))
        i++;
    return i < count;
}

/* What is written before the graph can read it: by its own copies and, in whatever stream they are,
 * by those that are outstanding. `own`: the graph's are not outstanding yet. */
static void note_all_written(struct prepared *launch, bool own)
{
    struct host_node host;
    launch->written_count = 0;
    for (size_t i = 0; own && i < launch->count; i++)
        if (ibx_frontend_host_function_of(launch->numbers[i], &host))
            note_written(&host, launch);
    ibx_frontend_host_outstanding(note_written, launch);
    sort_written(launch);
}

/* Takes the bytes of a copy to the device. NULL: they cannot be taken yet. */
static struct ibx_launch_bytes *take(const struct prepared *launch,
                                     const struct ibx_host_copy *copy)
{
    const struct ibx_host_span span = ibx_host_copy_reads(&copy->bytes);
    return launch->no_memory || is_written(launch, &span) ? NULL : ibx_launch_bytes_take(copy);
}

static struct ibx_launch_copy prepare(const struct prepared *launch, uint64_t number)
{
    struct ibx_launch_copy made = {IBX_COPY_LATER, NULL};
    struct host_node host;
    const struct ibx_host_copy *copy = pageable_of(number, &host);
    if (!copy)
        return made;
    if (is_to_host(copy) || host.function != ibx_host_copy_exchange)
        made.use = IBX_COPY_AWAITED;
    else
        made.use = (made.taken = take(launch, copy)) ? IBX_COPY_TAKEN : IBX_COPY_UNTAKEN;
    if (made.taken && ibx_frontend_host_any())
        ibx_frontend_copied_reach(made.taken->bytes, made.taken->n);
    return made;
}

/* ------------------------------------------------------------------------------ the wait */

/* Takes the bytes that can be taken now. */
static void take_more(struct prepared *all, const struct ibx_launch *launch)
{
    struct host_node host;
    bool noted = false;
    for (size_t i = 0; i < launch->count; i++) {
        if (launch->copies[i].use != IBX_COPY_UNTAKEN ||
            !ibx_frontend_host_function_of(launch->numbers[i], &host))
            continue;
        if (!noted)
            note_all_written(all, false);
        noted = true;
        struct ibx_launch_bytes *taken = take(all, host.argument);
        if (!taken)
            continue;
        launch->copies[i].use = IBX_COPY_TAKEN;
        if (!ibx_frontend_host_give(launch->id, launch->numbers[i], taken))
            ibx_launch_bytes_free(taken); /* the graph has got there */
    }
}

/* Returns a CUDA error. */
static int await(struct prepared *all, const struct ibx_launch *launch, void *stream)
{
    struct ibx_launch_wait wait = {.code = CUDA_NOT_READY};
    do {
        take_more(all, launch);
        ibx_frontend_host_await(launch, stream, &wait);
    } while (wait.code == CUDA_NOT_READY);
    return wait.code ? ibx_frontend_fail(wait.code) : CUDA_SUCCESS;
}

int ibx_frontend_copies_launch(const uint64_t *numbers, size_t count, void *stream,
                               int (*launch)(void *exec, void *stream), void *exec)
{
    struct prepared all = {.numbers = numbers, .count = count};
    struct ibx_launch made = {.numbers = numbers, .count = count};
    if (!has_pageable(numbers, count))
        return ibx_frontend_host_launch(&made, stream, launch, exec);
    note_all_written(&all, true);
    made.copies = all.no_memory ? NULL : calloc(count, sizeof(*made.copies));
    for (size_t i = 0; made.copies && i < count; i++)
        made.copies[i] = prepare(&all, numbers[i]);
    int rc = made.copies ? ibx_frontend_host_launch(&made, stream, launch, exec)
                         : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (!rc)
        rc = await(&all, &made, stream);
    for (size_t i = 0; made.copies && i < count; i++)
        ibx_launch_bytes_free(made.copies[i].taken); /* that no function has got */
    free(made.copies);
    free(all.written);
    return rc;
}
