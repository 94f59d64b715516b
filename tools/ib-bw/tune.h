/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-bw tune: which way copies between a client and the GPU of this host should
 * take. Private to the files tools/ib-bw-tune*.
 *
 *   ib-bw-tune.c          the command: ways, measuring, the file
 *   ib-bw-tune-back.c     the back end, a process of its own, which has the GPU
 *   ib-bw-tune-choose.c   from times to sizes
 *   ib-bw-tune-show.c     the table
 *
 * Each way has a connection of its own, whose back end is told to take that way
 * whatever the size; what it could not take so is known by its counts and left
 * out.
 */
#ifndef IBX_TOOLS_IB_BW_TUNE_H
#define IBX_TOOLS_IB_BW_TUNE_H

#include "frontend-glue/session/session.h"
#include "tools/ib-bw/ib-bw.h"

enum tune_kind {
    TUNE_INLINE,
    TUNE_CHUNKS,
    TUNE_CREW,
    TUNE_SHARED,
    TUNE_IN_PLACE,
    TUNE_FAR,    /* chunks, over the fabric of --over ... */
    TUNE_DIRECT, /* ... and none, over the same */
};

#define TUNE_WAYS_MAX 12u
#define TUNE_MARGIN   1.05 /* a way must be so much faster to take the place of another one */

struct tune_way {
    enum tune_kind kind;
    char name[24];
    struct ibx_choice choice; /* that makes copies take it */
    /* Microseconds, medians, by enum ibx_choice_direction; 0: such copies cannot take it. */
    double times[2][BW_SIZES_MAX];
    char refused[256]; /* why, or why not all of them; "" */
};

struct tune {
    size_t sizes[BW_SIZES_MAX]; /* ascending */
    unsigned size_count;
    struct tune_way ways[TUNE_WAYS_MAX];
    unsigned way_count;
    char path[192], far_path[192];    /* what both ends are connected by; --over, or "" */
    char no_crew[64], no_direct[256]; /* why there is no such way; "" */
    struct ibx_tuning result;
};

/* The ways that there are with so many processors; `over`: and over another fabric. */
void ibx_tune_ways_init(struct tune *tune, unsigned processors, bool over);
/* Whether its connection is of that fabric. */
bool ibx_tune_way_far(const struct tune_way *way);
/* Fills tune->result.choice; what was not measured is as without a file. */
void ibx_tune_choose(struct tune *tune);
/* The index of the first size from which on `later` takes the place of `first`, its times counted
 * `margin` times as long; `n`: never; -1: there is no size at which both were measured. A time of 0
 * is none. */
int ibx_tune_crossover(const double *first, const double *later, unsigned n, double margin);
void ibx_tune_print(const struct tune *tune, FILE *out);

/* ------------------------------------------------------------------ the back end */

#define TUNE_COUNT "ibBwCount" /* asks for struct ibx_copy_counts, five u64, and a sentence */

struct tune_back {
    pid_t pid;                   /* 0: there is none */
    char uri[300], far_uri[300]; /* the second: of --over, or "" */
    uint64_t device;             /* memory for the longest copy */
};

/* Forks it: the first client that connects takes the first way, and so on. Fills in the place, too.
 * Without a GPU one sentence says so. */
int ibx_tune_back_start(const struct bw_args *args, struct tune *tune, struct tune_back *back,
                        struct ibx_error *err);
void ibx_tune_back_stop(struct tune_back *back);

#endif
