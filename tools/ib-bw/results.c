/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Samples, and what they come to. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ibx_bw_op_name(enum bw_op op)
{
    static const char *const names[] = {[BW_H2D] = "h2d",
                                        [BW_D2H] = "d2h",
                                        [BW_READ] = "read",
                                        [BW_WRITE] = "write",
                                        [BW_PING] = "ping"};
    return names[op];
}

int ibx_bw_results_init(struct bw_results *results, const struct bw_args *args)
{
    *results = (struct bw_results){
        .sizes = args->sizes, .size_count = args->size_count, .pins = {.client = -1, .server = -1}};
    static const enum bw_op calls[] = {BW_H2D, BW_D2H}, raw[] = {BW_READ, BW_WRITE, BW_PING};
    results->op_count = args->raw ? 3 : 2;
    memcpy(results->ops, args->raw ? raw : calls, results->op_count * sizeof(raw[0]));
    if (gethostname(results->host, sizeof(results->host) - 1))
        snprintf(results->host, sizeof(results->host), "unknown");
    ibx_text_sanitize(results->host);
    results->cells = calloc((size_t)BW_PATHS_MAX * results->op_count * results->size_count,
                            sizeof(*results->cells));
    if (!results->cells)
        return -ENOMEM;
    pthread_mutex_init(&results->lock, NULL);
    return 0;
}

void ibx_bw_results_fini(struct bw_results *results)
{
    if (!results->cells)
        return;
    size_t count = (size_t)BW_PATHS_MAX * results->op_count * results->size_count;
    for (size_t i = 0; i < count; i++)
        free(results->cells[i].ns);
    free(results->cells);
    pthread_mutex_destroy(&results->lock);
}

int ibx_bw_results_path(struct bw_results *results, const char *name)
{
    if (results->path_count == BW_PATHS_MAX)
        return -ENOMEM;
    unsigned index = results->path_count++;
    snprintf(results->paths[index], sizeof(results->paths[index]), "%s", name);
    return (int)index;
}

struct bw_cell *ibx_bw_results_cell(const struct bw_results *results, unsigned path, unsigned op,
                                    unsigned size)
{
    size_t row = (size_t)path * results->op_count + op;
    return &results->cells[row * results->size_count + size];
}

void ibx_bw_results_refuse(struct bw_results *results, const char *path, const char *reason)
{
    if (results->refused_count == sizeof(results->refused) / sizeof(results->refused[0]))
        return;
    struct bw_refusal *refusal = &results->refused[results->refused_count++];
    snprintf(refusal->path, sizeof(refusal->path), "%s", path);
    snprintf(refusal->reason, sizeof(refusal->reason), "%.511s", reason);
    ibx_text_sanitize(refusal->reason);
}

static bool cell_grow(struct bw_cell *cell)
{
    size_t room = cell->room ? cell->room * 2 : 64;
    uint64_t *ns = room > BW_CALLS_MAX ? NULL : realloc(cell->ns, room * sizeof(*ns));
    if (!ns)
        return false;
    cell->ns = ns;
    cell->room = room;
    return true;
}

bool ibx_bw_cell_add(struct bw_results *results, struct bw_cell *cell, uint64_t ns)
{
    pthread_mutex_lock(&results->lock);
    bool room = cell->samples < cell->room || cell_grow(cell);
    if (room) {
        cell->ns[cell->samples++] = ns ? ns : 1;
        cell->calls++;
    }
    pthread_mutex_unlock(&results->lock);
    return room;
}

void ibx_bw_cell_add_window(struct bw_results *results, struct bw_cell *cell, uint64_t calls,
                            uint64_t window_ns)
{
    pthread_mutex_lock(&results->lock);
    cell->calls += calls;
    cell->window_ns += window_ns;
    pthread_mutex_unlock(&results->lock);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int by_ratio(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the samples: their order no longer matters. 0 without any. */
static double median_us(struct bw_cell *cell)
{
    if (!cell->samples)
        return 0;
    qsort(cell->ns, cell->samples, sizeof(cell->ns[0]), by_value);
    size_t half = cell->samples / 2;
    uint64_t upper = cell->ns[half], lower = cell->ns[(cell->samples - 1) / 2];
    return (double)(upper + lower) / 2e3;
}

struct bw_summary ibx_bw_results_summary(const struct bw_results *results, unsigned path,
                                         unsigned op, unsigned size)
{
    struct bw_cell *cell = ibx_bw_results_cell(results, path, op, size);
    struct bw_summary summary = {.calls = cell->calls, .median_us = median_us(cell)};
    if (!cell->samples)
        return (struct bw_summary){0};
    double bytes = (double)results->sizes[size];
    size_t rank = (cell->samples * 99 + 99) / 100; /* the nearest rank, from 1 */
    summary.p99_us = (double)cell->ns[rank - 1] / 1e3;
    summary.gbps = cell->window_ns ? bytes * (double)cell->calls / (double)cell->window_ns
                                   : bytes / (summary.median_us * 1e3);
    for (unsigned i = 0; i < results->path_count; i++) {
        if (!strcmp(results->paths[i], BW_STOCK))
            summary.ratio =
                median_us(ibx_bw_results_cell(results, i, op, size)) / summary.median_us;
    }
    return summary;
}

double ibx_bw_results_ratio(const struct bw_results *results, unsigned path, unsigned op,
                            size_t from, size_t to)
{
    double ratios[BW_SIZES_MAX];
    unsigned n = 0;
    for (unsigned i = 0; i < results->size_count; i++) {
        double ratio = ibx_bw_results_summary(results, path, op, i).ratio;
        if (results->sizes[i] >= from && results->sizes[i] <= to && ratio > 0)
            ratios[n++] = ratio;
    }
    if (!n)
        return 0;
    qsort(ratios, n, sizeof(ratios[0]), by_ratio);
    return (ratios[n / 2] + ratios[(n - 1) / 2]) / 2;
}
