/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Modules that GVirtuS's handlers of the driver's API have made, and what is in them. */
#include "frontend-glue/handles/handle_lists.h"

#include <pthread.h>

bool ibx_handles_add_part(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value,
                          uint64_t module)
{
    return ibx_handle_add(x, kind, value, module, 1, false);
}

void ibx_handles_captured(struct gpu_session *x, uint64_t function)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_FUNCTION, function);
    struct handle *module =
        found && found->of ? ibx_handle_find(x, IBX_HANDLE_MODULE, found->of) : NULL;
    if (module)
        module->captured = true;
    pthread_mutex_unlock(&ibx_handles_lock);
}
