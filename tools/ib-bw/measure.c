/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The order in which cells are filled, and what a terminal shows of it. */
#include "tools/ib-bw/ib-bw.h"
#include "tools/options.h"

#include "common/clock.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALL_BYTES ((size_t)64 << 10)
#define LARGE_BYTES ((size_t)16 << 20)
#define COPY_BYTES  ((size_t)64 << 20) /* more than a cache holds */
#define COPY_ROUNDS 5

void ibx_bw_progress(const char *format, ...)
{
    va_list args;
    if (!ibx_tool_terminal(STDERR_FILENO))
        return;
    fputs("\r\033[K", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

/* Calls before the first that counts: short ones wake both ends up, long ones fault the memory in.
 */
static unsigned warmup_calls(size_t bytes)
{
    return bytes <= SMALL_BYTES ? 16 : bytes < LARGE_BYTES ? 3 : 1;
}

/* Closes a path. Its cells so far stay, and the reason is listed. */
static void give_up(struct bw_bench *bench, unsigned path, const struct bw_slice *slice,
                    const char *why)
{
    char size[BW_SIZE_TEXT], reason[512];
    snprintf(reason, sizeof(reason), "stopped at %s %s: %.400s", ibx_bw_op_names[slice->op],
             ibx_bw_size_print(slice->bytes, size), why);
    pthread_mutex_lock(&bench->results.lock);
    ibx_bw_results_refuse(&bench->results, bench->results.paths[path], reason);
    pthread_mutex_unlock(&bench->results.lock);
    bench->streams[path]->ops->destroy(bench->streams[path]);
    bench->streams[path] = NULL;
}

/* Runs one slice on every path. Returns the first error, after all paths have had their slices. */
static int run_round(struct bw_bench *bench, const struct bw_slice *slice, unsigned size,
                     unsigned round, struct ibx_error *err)
{
    struct bw_results *results = &bench->results;
    int first = 0;
    for (unsigned path = 0; path < results->path_count && !atomic_load(&results->stopped); path++) {
        struct ibx_error why = {0};
        char text[BW_SIZE_TEXT];
        if (!bench->streams[path])
            continue;
        ibx_bw_progress("%s %s, round %u of %u: %s", ibx_bw_op_names[slice->op],
                        ibx_bw_size_print(slice->bytes, text), round + 1, bench->args->rounds,
                        results->paths[path]);
        int rc = ibx_bw_slice_run(bench, bench->streams[path], slice,
                                  ibx_bw_results_cell(results, path, slice->op, size), &why);
        if (!rc)
            continue;
        if (atomic_load(&results->stopped))
            return first; /* the error is a result of the signal, which stopped the server, too */
        if (!first)
            first = ibx_error_set(err, rc, "%s: %.600s", results->paths[path], why.message);
        give_up(bench, path, slice, why.message);
    }
    return first;
}

int ibx_bw_bench_measure(struct bw_bench *bench, struct ibx_error *err)
{
    const struct bw_args *args = bench->args;
    int first = 0;
    for (unsigned op = 0; op < BW_OPS; op++) {
        for (unsigned size = 0; size < args->size_count; size++) {
            for (unsigned round = 0; round < args->rounds; round++) {
                struct bw_slice slice = {
                    .op = (enum bw_op)op,
                    .bytes = args->sizes[size],
                    .seed = (uint64_t)op << 48 | (uint64_t)size << 32 | (round + 1),
                    .count = args->count / args->rounds + (round < args->count % args->rounds),
                    .budget_ns = (uint64_t)(args->seconds * 1e9 / args->rounds),
                    .warmup = warmup_calls(args->sizes[size]),
                };
                if (args->count && !slice.count)
                    break;
                int rc = run_round(bench, &slice, size, round, first ? NULL : err);
                first = first ? first : rc;
            }
        }
    }
    ibx_bw_progress("%s", "");
    return first;
}

double ibx_bw_memcpy_rate(void)
{
    uint8_t *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    uint64_t best = UINT64_MAX;
    if (from && to) {
        ibx_bw_payload_fill(from, COPY_BYTES, 1);
        memset(to, 1, COPY_BYTES);
    }
    for (unsigned i = 0; from && to && i < COPY_ROUNDS; i++) {
        uint64_t start_ns = ibx_now_ns();
        memcpy(to, from, COPY_BYTES);
        __asm__ volatile("" : : "r"(to) : "memory"); /* keeps the compiler from dropping the copy */
        uint64_t ns = ibx_now_ns() - start_ns;
        best = ns < best ? ns : best;
    }
    free(from);
    free(to);
    return best == UINT64_MAX ? 0 : (double)COPY_BYTES / (double)best;
}
