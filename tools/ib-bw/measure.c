/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The order in which cells are filled, and what the person in front of the terminal sees of it. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define SMALL_BYTES ((size_t)64 << 10)
#define LARGE_BYTES ((size_t)16 << 20)

/* Short calls need a few to wake both ends up; of long ones the first faults the memory in. */
static unsigned warmup_calls(size_t bytes)
{
    return bytes <= SMALL_BYTES ? 16 : bytes < LARGE_BYTES ? 3 : 1;
}

static void show_progress(const struct bw_results *results, const struct bw_slice *slice,
                          unsigned round, unsigned rounds, unsigned path)
{
    char size[BW_SIZE_TEXT];
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s %s, round %u of %u: %s", ibx_bw_op_name(slice->op),
                ibx_bw_size_print(slice->bytes, size), round + 1, rounds, results->paths[path]);
}

static void clear_progress(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* The path goes, its cells so far stay, the reason is told. */
static void give_up(struct bw_bench *bench, unsigned which, const struct bw_slice *slice,
                    const char *why)
{
    struct bw_path *path = bench->open[which];
    char size[BW_SIZE_TEXT], reason[512];
    const char *name = bench->results.paths[path->index];
    snprintf(reason, sizeof(reason), "stopped at %s %s: %.400s", ibx_bw_op_name(slice->op),
             ibx_bw_size_print(slice->bytes, size), why);
    pthread_mutex_lock(&bench->results.lock);
    ibx_bw_results_refuse(&bench->results, name, reason);
    pthread_mutex_unlock(&bench->results.lock);
    path->destroy(path);
    bench->open_count--;
    memmove(&bench->open[which], &bench->open[which + 1],
            (bench->open_count - which) * sizeof(bench->open[0]));
}

/* One slice on every path. Returns the first error, after which the other paths had theirs. */
static int run_round(struct bw_bench *bench, const struct bw_slice *slice, unsigned op,
                     unsigned size, unsigned round, struct ibx_error *err)
{
    int first = 0;
    unsigned i = 0;
    while (i < bench->open_count && !atomic_load(&ibx_bw_stop)) {
        struct bw_path *path = bench->open[i];
        struct bw_cell *cell = ibx_bw_results_cell(&bench->results, path->index, op, size);
        struct ibx_error why = {0};
        show_progress(&bench->results, slice, round, bench->args->rounds, path->index);
        int rc = path->run(path, slice, &bench->results, cell, &why);
        if (rc && atomic_load(&ibx_bw_stop))
            return first; /* the server was stopped as well */
        if (!rc) {
            i++;
            continue;
        }
        if (!first)
            first = ibx_error_set(err, rc, "%s: %.600s", bench->results.paths[path->index],
                                  why.message);
        give_up(bench, i, slice, why.message);
    }
    return first;
}

static uint64_t share(uint64_t count, unsigned round, unsigned rounds)
{
    return count / rounds + (round < count % rounds);
}

int ibx_bw_bench_measure(struct bw_bench *bench, struct ibx_error *err)
{
    const struct bw_args *args = bench->args;
    const struct bw_results *results = &bench->results;
    int first = 0;
    for (unsigned op = 0; op < results->op_count; op++) {
        for (unsigned size = 0; size < results->size_count; size++) {
            for (unsigned round = 0; round < args->rounds; round++) {
                struct bw_slice slice = {
                    .op = results->ops[op],
                    .bytes = results->sizes[size],
                    .seed = (uint64_t)op << 48 | (uint64_t)size << 32 | (round + 1),
                    .count = args->count ? share(args->count, round, args->rounds) : 0,
                    .budget_ns = (uint64_t)(args->seconds * 1e9 / args->rounds),
                    .warmup = warmup_calls(results->sizes[size]),
                };
                if (args->count && !slice.count)
                    break;
                int rc = run_round(bench, &slice, op, size, round, first ? NULL : err);
                first = first ? first : rc;
            }
        }
    }
    clear_progress();
    return first;
}
