/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Samples and their medians. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const ibx_bw_op_names[BW_OPS] = {[BW_H2D] = "h2d", [BW_D2H] = "d2h"};
const char *const ibx_bw_op_titles[BW_OPS] = {
    [BW_H2D] = "H2D: cudaMemcpy to the device", [BW_D2H] = "D2H: cudaMemcpy from the device"};

int ibx_bw_results_init(struct bw_results *results, const struct bw_args *args,
                        struct ibx_error *err)
{
    *results = (struct bw_results){.sizes = args->sizes,
                                   .size_count = args->size_count,
                                   .stock = -1,
                                   .pins = {.client = -1, .server = -1}};
    if (gethostname(results->host, sizeof(results->host) - 1))
        snprintf(results->host, sizeof(results->host), "unknown");
    ibx_text_sanitize(results->host);
    results->cells =
        calloc((size_t)BW_PATHS_MAX * BW_OPS * results->size_count, sizeof(*results->cells));
    if (!results->cells)
        return ibx_error_set(err, -ENOMEM, "no memory for results");
    pthread_mutex_init(&results->lock, NULL);
    return 0;
}

void ibx_bw_results_fini(struct bw_results *results)
{
    if (!results->cells)
        return;
    for (size_t i = 0; i < (size_t)BW_PATHS_MAX * BW_OPS * results->size_count; i++)
        free(results->cells[i].us);
    free(results->cells);
    pthread_mutex_destroy(&results->lock);
}

struct bw_cell *ibx_bw_results_cell(const struct bw_results *results, unsigned path, enum bw_op op,
                                    unsigned size)
{
    return &results->cells[((size_t)path * BW_OPS + op) * results->size_count + size];
}

bool ibx_bw_results_measured(const struct bw_results *results, enum bw_op op, unsigned from,
                             unsigned count)
{
    for (unsigned path = 0; path < results->path_count; path++) {
        for (unsigned size = from; size < from + count; size++) {
            if (ibx_bw_results_cell(results, path, op, size)->samples)
                return true;
        }
    }
    return false;
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
    double *us = room > BW_CALLS_MAX ? NULL : realloc(cell->us, room * sizeof(*us));
    if (!us)
        return false;
    cell->us = us;
    cell->room = room;
    return true;
}

bool ibx_bw_cell_add(struct bw_results *results, struct bw_cell *cell, uint64_t ns)
{
    pthread_mutex_lock(&results->lock);
    bool room = cell->samples < cell->room || cell_grow(cell);
    if (room)
        cell->us[cell->samples++] = (double)(ns ? ns : 1) / 1e3;
    pthread_mutex_unlock(&results->lock);
    return room;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double ibx_bw_median(double *samples, size_t n)
{
    if (!n)
        return 0;
    qsort(samples, n, sizeof(*samples), by_value);
    return (samples[n / 2] + samples[(n - 1) / 2]) / 2;
}

struct bw_summary ibx_bw_results_summary(const struct bw_results *results, unsigned path,
                                         enum bw_op op, unsigned size)
{
    struct bw_cell *cell = ibx_bw_results_cell(results, path, op, size);
    struct bw_summary summary = {.calls = cell->samples,
                                 .median_us = ibx_bw_median(cell->us, cell->samples)};
    if (!summary.calls)
        return summary;
    size_t rank = (cell->samples * 99 + 99) / 100; /* the nearest rank, from 1 */
    summary.p99_us = cell->us[rank - 1];
    summary.gbps = (double)results->sizes[size] / (summary.median_us * 1e3);
    if (results->stock >= 0) {
        cell = ibx_bw_results_cell(results, (unsigned)results->stock, op, size);
        summary.ratio = ibx_bw_median(cell->us, cell->samples) / summary.median_us;
    }
    return summary;
}
