/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Limits how many functions of graphs may wait for their clients at a time, over all clients. A
 * stream that waits for a function has one of the connections that a context has to the GPU, of
 * which there are 8 unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise. If all of these wait, copies
 * get no further in any stream, and a function may be such a copy of its client's: then nothing
 * would go on any more. So a launch is delayed until there is room for its graph's functions.
 * Functions that copy by slots (graph_slots.h) do not count: they end without CUDA.
 *
 * The work behind these functions may need the launch that is delayed, and after an error CUDA
 * calls none of them. So no launch is delayed for long, and functions that have not been called by
 * then do not count any more.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdatomic.h>

#define ROOM    6u    /* functions; the other 2 of the 8 connections are left for copies */
#define ROOM_MS 1000u /* a launch is delayed so long while no function is called */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned under_way; /* functions of graphs that were launched, and not called yet */

static _Atomic unsigned repeated; /* functions that graphs call, launched or not */

void ibx_graph_functions_count(int more)
{
    atomic_fetch_add(&repeated, (unsigned)more);
}

bool ibx_host_work_repeats(void)
{
    return atomic_load(&repeated);
}

/* Locked. */
static void wait_for_room(unsigned functions)
{
    uint64_t deadline = ibx_deadline_in_ms(ROOM_MS);
    while (under_way && under_way + functions > ROOM) {
        const unsigned before = under_way;
        const struct timespec until = ibx_timespec_of(deadline);
        if (pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until))
            under_way = 0;
        else if (under_way < before)
            deadline = ibx_deadline_in_ms(ROOM_MS);
    }
}

void ibx_graph_room_take(unsigned functions)
{
    if (!functions)
        return;
    pthread_mutex_lock(&lock);
    wait_for_room(functions);
    under_way += functions;
    pthread_mutex_unlock(&lock);
}

void ibx_graph_room_give(unsigned functions)
{
    if (!functions)
        return;
    pthread_mutex_lock(&lock);
    under_way -= functions < under_way ? functions : under_way;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
