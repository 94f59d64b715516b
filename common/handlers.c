/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/handlers.h"

#include "common/thread.h"

#include <stdatomic.h>

static _Atomic(const struct ibx_handlers_calls *) in_use;
static _Thread_local unsigned depth;

/* Pairs that the thread is in, whether they hold handlers or not, and its cancellation before the
 * outermost one. */
static _Thread_local unsigned pairs;
static _Thread_local int cancels;
/* Pairs around the handlers that run in ibx_handlers_run(). */
static _Thread_local unsigned outer;
static _Thread_local bool cut_off;

#ifdef __GLIBC__
/* longjmp(3) of the C library runs what these have pushed in frames that it leaves. */
void _pthread_cleanup_push(struct _pthread_cleanup_buffer *buffer, void (*run)(void *),
                           void *argument);
void _pthread_cleanup_pop(struct _pthread_cleanup_buffer *buffer, int runs);
#else
static void _pthread_cleanup_push(struct _pthread_cleanup_buffer *buffer, void (*run)(void *),
                                  void *argument)
{
    (void)buffer, (void)run, (void)argument;
}

static void _pthread_cleanup_pop(struct _pthread_cleanup_buffer *buffer, int runs)
{
    (void)buffer, (void)runs;
}
#endif

void ibx_handlers_use(const struct ibx_handlers_calls *calls)
{
    atomic_store(&in_use, calls);
}

static bool hold(void)
{
    const struct ibx_handlers_calls *calls = atomic_load_explicit(&in_use, memory_order_acquire);
    if (!calls || (!depth && !calls->hold()))
        return false;
    depth++;
    return true;
}

struct ibx_inside ibx_inside_begin(void)
{
    const struct ibx_inside inside = {hold(), ibx_thread_hold_cancel()};
    /* A handler that runs at another moment may have left all pairs without their ends. */
    if (!pairs || inside.cancel == PTHREAD_CANCEL_ENABLE) {
        pairs = 0;
        cancels = inside.cancel;
    }
    pairs++;
    return inside;
}

void ibx_inside_end(struct ibx_inside inside)
{
    pairs -= pairs > 0;
    ibx_thread_release_cancel(inside.cancel);
    if (inside.holds && !--depth)
        atomic_load(&in_use)->let();
}

bool ibx_handlers_held(void)
{
    return depth;
}

/* What was before a pause. */
struct before {
    int cancel;
    unsigned outer;
};

static void leave(void *argument)
{
    const struct before *before = argument;
    outer = before->outer;
    ibx_thread_release_cancel(before->cancel);
}

/* A handler's calls begin at 0, and it may never return here (longjmp). AddressSanitizer may move
 * what is on the stack elsewhere, where longjmp(3) would not find that it leaves it. */
__attribute__((no_sanitize("address"))) void ibx_handlers_run(void)
{
    const struct ibx_handlers_calls *calls = atomic_load(&in_use);
    const unsigned inside = depth, around = pairs;
    struct before before = {cancels, outer};
    struct _pthread_cleanup_buffer buffer;
    if (!inside)
        return;
    depth = pairs = 0;
    outer += around;
    _pthread_cleanup_push(&buffer, leave, &before);
    calls->let();
    calls->hold();
    _pthread_cleanup_pop(&buffer, 0);
    depth = inside;
    pairs = around;
    cancels = before.cancel;
    outer = before.outer;
}

bool ibx_inside_exits(void)
{
    cut_off = cut_off || pairs || outer;
    return cut_off;
}

bool ibx_inside_cut_off(void)
{
    return cut_off;
}
