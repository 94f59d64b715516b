/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * From times to the sizes at which one way replaces another.
 *
 * A crossover between two ways is the size at which the product of all times is least, where the
 * times of the way for larger sizes count TUNE_MARGIN times as long. So one slow cell among good
 * ones changes nothing, and of two equal ways the one for smaller sizes is kept. Only for memory
 * that both ends map, the margin favours the other way: in place takes less processor time.
 */
#include "tools/ib-bw/tune.h"

#include <math.h>
#include <string.h>

#define LONG_BYTES ((size_t)1 << 20) /* chunks are chosen by copies of this size and more */

/* The logarithm of the gain if `later` is taken from size `from` on; positive: it is faster. */
static double gain(const double *first, const double *later, unsigned from, unsigned n,
                   double margin)
{
    double sum = 0;
    for (unsigned i = from; i < n; i++) {
        if (first[i] > 0 && later[i] > 0)
            sum += log(first[i] / (later[i] * margin));
    }
    return sum;
}

int ibx_tune_crossover(const double *first, const double *later, unsigned n, double margin)
{
    int best = -1;
    double most = 0;
    for (unsigned i = n; i-- > 0;) {
        if (!(first[i] > 0 && later[i] > 0))
            continue;
        if (best < 0)
            best = (int)n;
        double here = gain(first, later, i, n, margin);
        if (here > most) {
            most = here;
            best = (int)i;
        }
    }
    return best;
}

static const struct tune_way *way_of(const struct tune *tune, enum tune_kind kind)
{
    for (unsigned i = 0; i < tune->way_count; i++) {
        if (tune->ways[i].kind == kind)
            return &tune->ways[i];
    }
    return NULL;
}

/* The way of a kind that gains most over `base`; NULL: none is faster. Chunk sizes are judged by
 * long copies, other ways by the sizes for which they replace `base`. */
static const struct tune_way *best_of(const struct tune *tune, enum tune_kind kind,
                                      const struct tune_way *base)
{
    const struct tune_way *best = NULL;
    const unsigned n = tune->size_count;
    double most = 0;
    unsigned first_long = 0;
    while (first_long < n && tune->sizes[first_long] < LONG_BYTES)
        first_long++;
    for (unsigned i = 0; i < tune->way_count; i++) {
        const struct tune_way *way = &tune->ways[i];
        double sum = 0;
        for (unsigned d = 0; d < 2 && way->kind == kind; d++) {
            int at = kind == TUNE_CHUNKS
                         ? (int)first_long
                         : ibx_tune_crossover(base->times[d], way->times[d], n, TUNE_MARGIN);
            if (at >= 0)
                sum += gain(base->times[d], way->times[d], (unsigned)at, n, TUNE_MARGIN);
        }
        if (sum > most) {
            most = sum;
            best = way;
        }
    }
    return best;
}

/* The size from which `later` is taken: 0 if from the first size at which both were measured. */
static uint64_t size_from(const struct tune *tune, const double *first, const double *later,
                          double margin, uint64_t unknown)
{
    int at = ibx_tune_crossover(first, later, tune->size_count, margin);
    if (at < 0)
        return unknown;
    if (at == (int)tune->size_count)
        return IBX_CHOICE_NEVER;
    for (int i = 0; i < at; i++) {
        if (first[i] > 0 && later[i] > 0)
            return tune->sizes[at];
    }
    return 0;
}

/* The largest size for which inline is better. */
static uint64_t inline_most(const struct tune *tune, unsigned d, const struct tune_way *inlined,
                            const struct tune_way *chunks)
{
    static const uint64_t bounds[] = {IBX_CHOICE_TO_MAX, IBX_CHOICE_FROM_MAX};
    int at = ibx_tune_crossover(inlined->times[d], chunks->times[d], tune->size_count, TUNE_MARGIN);
    uint64_t most = 0;
    if (at < 0)
        return ibx_choice_default.ways[d].inline_max;
    for (int i = 0; i < at; i++) {
        if (inlined->times[d][i] > 0 && tune->sizes[i] <= bounds[d])
            most = tune->sizes[i];
    }
    return most;
}

void ibx_tune_choose(struct tune *tune)
{
    struct ibx_choice *choice = &tune->result.choice;
    const struct tune_way *chunks = way_of(tune, TUNE_CHUNKS);
    const struct tune_way *chunk = best_of(tune, TUNE_CHUNKS, chunks),
                          *threads = best_of(tune, TUNE_THREADS, chunks),
                          *direct = way_of(tune, TUNE_DIRECT);
    *choice = ibx_choice_default;
    choice->chunk = (chunk ? chunk : chunks)->choice.chunk;
    choice->threads = threads ? threads->choice.threads : 0;
    if (!threads)
        threads = way_of(tune, TUNE_THREADS);
    for (unsigned d = 0; d < 2; d++) {
        struct ibx_choice_way *way = &choice->ways[d];
        const struct ibx_choice_way *unknown = &ibx_choice_default.ways[d];
        way->inline_max = inline_most(tune, d, way_of(tune, TUNE_INLINE), chunks);
        way->in_place_min = size_from(tune, way_of(tune, TUNE_SHARED)->times[d],
                                      way_of(tune, TUNE_IN_PLACE)->times[d], 1 / TUNE_MARGIN,
                                      unknown->in_place_min);
        if (direct)
            way->direct_min = size_from(tune, way_of(tune, TUNE_FAR)->times[d], direct->times[d],
                                        TUNE_MARGIN, unknown->direct_min);
        if (threads)
            way->copy_threads_min = size_from(tune, chunks->times[d], threads->times[d],
                                              TUNE_MARGIN, unknown->copy_threads_min);
    }
    tune->result.found = true;
}
