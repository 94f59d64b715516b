/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-bw tune: which way copies between a client and this host's GPU should take.
 *
 *   tune.c          the command: ways, measuring, the file
 *   tune-back.c     the back end, a process of its own, which has the GPU
 *   tune-choose.c   from times to sizes
 *   tune-show.c     the table
 *
 * Each way has a connection of its own, whose back end uses that way for all sizes. Its counters
 * tell which copies could not take the way; these are left out.
 */
#ifndef IBX_TOOLS_IB_BW_TUNE_H
#define IBX_TOOLS_IB_BW_TUNE_H

#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/device_copies/device_copies.h"
#include "tools/ib-bw/ib-bw.h"

enum tune_kind {
    TUNE_INLINE,
    TUNE_CHUNKS,  /* one thread through chunks of pinned memory */
    TUNE_THREADS, /* several copy threads */
    TUNE_SHARED,  /* chunks, from memory that client and back end map */
    TUNE_IN_PLACE,
    TUNE_FAR,    /* chunks, over the fabric of --over */
    TUNE_DIRECT, /* GPUDirect by the adapter, over the same fabric */
    TUNE_KINDS,
};

#define TUNE_WAYS_MAX 12u
#define TUNE_MARGIN   1.05 /* a way must be faster by this factor to replace another one */

struct tune_way {
    enum tune_kind kind;
    bool far; /* it is connected by the fabric of --over */
    char name[24];
    struct ibx_choice choice; /* makes copies take this way */
    /* Microseconds, medians, by enum ibx_choice_direction; 0: such copies cannot take it. */
    double times[2][BW_SIZES_MAX];
    char refused[256]; /* why all or some copies did not take it; "" */
};

struct tune {
    size_t sizes[BW_SIZES_MAX]; /* ascending */
    unsigned size_count;
    struct tune_way ways[TUNE_WAYS_MAX];
    unsigned way_count;
    char path[192], far_path[192];       /* the path between both ends; that of --over, or "" */
    char no_threads[64], no_direct[256]; /* why there is no such way; "" */
    struct ibx_tuning result;
};

/* Fills tune->result.choice. Values that were not measured have their defaults. */
void ibx_tune_choose(struct tune *tune);
/* The index of the size from which on `later` replaces `first`, if its times count `margin` times
 * as long; `n`: never; -1: at no size both were measured. A time of 0 means not measured. */
int ibx_tune_crossover(const double *first, const double *later, unsigned n, double margin);
/* Whether copies of some size in a direction took the way number w. */
bool ibx_tune_measured(const struct tune *tune, unsigned w, unsigned d);
void ibx_tune_print(const struct tune *tune, FILE *out);

/* ------------------------------------------------------------------ the back end */

#define TUNE_COUNT "ibBwCount" /* asks for a struct tune_count */

/* Between two processes of one binary, so it needs no encoding. */
struct tune_count {
    struct ibx_copy_counts copies;
    char refused[256]; /* ibx_device_copies_refused() */
};

struct tune_back {
    char uri[300], far_uri[300]; /* the second: of --over, or "" */
    uint64_t device;             /* memory for the longest copy */
    struct ibx_tuning_machine machine;
};

/* Forks the back end. The first client that connects uses the first way, and so on. *pid as
 * ibx_bw_child_start() sets it. -EIO with a message, also if there is no GPU. */
int ibx_tune_back_start(const struct bw_args *args, const struct tune *tune, struct tune_back *back,
                        pid_t *pid, struct ibx_error *err);

#endif
