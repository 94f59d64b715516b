/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches by <<<>>>. The code that nvcc and clang make for it drops the launch's result, so a
 * program learns of an error only from cudaGetLastError; calls that wait do not return it.
 * Therefore such a launch is answered although it may fail. cudaGetLastError waits for its reply,
 * and asks the back end if that was an error. If a handler has refused the launch by itself, the
 * back end's CUDA does not know of it: then the reply's error is the last one.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/log.h"

bool ibx_unseen_may_be_early(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    return p->unseen && p->plain_known && p->unseens.count < IBX_UNSEEN &&
           ibx_launch_is_plain(body, n);
}

void ibx_unseen_add(struct ibx_pipeline *p, uint64_t number)
{
    size_t n;
    const uint8_t *body = ibx_request_body(p, &n);
    p->unseens.items[p->unseens.count++] =
        (struct ibx_unseen_launch){.number = number,
                                   .launch = ibx_launch_key(p, body),
                                   .stream = ibx_launch_stream_key(p, body),
                                   .resets = p->launches_from,
                                   .handles = p->others_from};
    p->unseens.open++;
}

bool ibx_unseen_replied(struct ibx_pipeline *p, uint64_t number, int exit_code)
{
    struct ibx_unseen *all = &p->unseens;
    unsigned i = 0;
    while (all->open && i < all->count && all->items[i].number != number)
        i++;
    if (!all->open || i == all->count)
        return false;
    all->open--;
    all->items[i].replied = true;
    all->items[i].failed = exit_code;
    if (!exit_code)
        return true;
    ibx_log(IBX_LOG_INFO,
            "a kernel launch by <<<>>> failed with CUDA error %d: cudaGetLastError returns it",
            exit_code);
    atomic_store(&p->launch_failure, exit_code);
    return true;
}

/* Learns from a launch that has succeeded, unless there was a reset since, or its stream's handle
 * may be that of another one by now. */
static void learn(struct ibx_pipeline *p, const struct ibx_unseen_launch *item)
{
    static const char name[] = "cudaLaunchKernel";
    if (item->failed || item->resets != ibx_process_outdated(IBX_OUTDATED_ALL) ||
        item->handles != ibx_process_outdated(IBX_OUTDATED_STREAMS))
        return;
    ibx_successes_add(&p->launches, item->launch);
    ibx_successes_add(&p->others, item->stream);
    ibx_successes_add(&p->forms, ibx_call_key(ibx_call_find(name, sizeof(name)), 0));
}

void ibx_unseen_learn(struct ibx_pipeline *p)
{
    struct ibx_unseen *all = &p->unseens;
    unsigned left = 0;
    if (!all->count)
        return;
    ibx_pipeline_forget_old(p);
    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < all->count; i++) {
        if (all->items[i].replied)
            learn(p, &all->items[i]);
        else
            all->items[left++] = all->items[i];
    }
    all->count = left;
    pthread_mutex_unlock(&p->lock);
}
