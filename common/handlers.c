/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/handlers.h"

#include "common/thread.h"

#include <stdatomic.h>
#include <stddef.h>

static _Atomic(const struct ibx_handlers_calls *) in_use;
static _Thread_local unsigned depth;

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
    const bool holds = hold();
    return (struct ibx_inside){holds, ibx_thread_hold_cancel()};
}

void ibx_inside_end(struct ibx_inside inside)
{
    ibx_thread_release_cancel(inside.cancel);
    if (inside.holds && !--depth)
        atomic_load(&in_use)->let();
}

bool ibx_handlers_held(void)
{
    return depth;
}

void ibx_handlers_run(void)
{
    const struct ibx_handlers_calls *calls = atomic_load(&in_use);
    const unsigned inside = depth;
    if (!inside)
        return;
    depth = 0; /* a handler's calls begin at 0, and it may never return here (longjmp) */
    calls->let();
    calls->hold();
    depth = inside;
}
