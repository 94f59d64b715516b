/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls of the functions of extensions/ and device_calls/ that give back, or have to know of,
 * what the files here know only by its handle. */
#include "frontend-glue/clients/clients.h"

#include <stdatomic.h>

static _Atomic(const struct ibx_end_hooks *) hooks;

void ibx_end_hooks_set(const struct ibx_end_hooks *set)
{
    atomic_store(&hooks, set);
}

void ibx_end_gone(uint64_t value)
{
    const struct ibx_end_hooks *h = atomic_load(&hooks);
    ibx_shared_event_gone(value);
    ibx_pending_clear_gone(value);
    if (h)
        h->gone(value);
}

void ibx_end_mappable_gone(uint64_t number)
{
    const struct ibx_end_hooks *h = atomic_load(&hooks);
    if (h)
        h->mappable_gone(number);
}

void ibx_end_forget(const void *context)
{
    const struct ibx_end_hooks *h = atomic_load(&hooks);
    ibx_shared_event_forget(context);
    if (h)
        h->forget(context);
}

void ibx_end_opened(enum ibx_handle_kind kind, uint64_t value)
{
    const struct ibx_end_hooks *h = atomic_load(&hooks);
    if (h)
        h->give_back_opened(kind, value);
}

void ibx_end_math(unsigned type, uint64_t handle)
{
    const struct ibx_end_hooks *h = atomic_load(&hooks);
    if (h)
        h->give_back_math(type, handle);
}
