/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Clients' modules with functions that nodes have in an executable graph, and not in the graph that
 * it was made of; and modules that handlers of the driver's API have made. */
#include "frontend-glue/handles/handle_lists.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"

#include <stdlib.h>

void ibx_handle_forget_modules(struct handle *h)
{
    while (h->module_count)
        ibx_functions_graph_end(h->modules[--h->module_count]);
    free(h->modules);
    h->modules = NULL;
}

/* Locked. */
static bool has(const struct handle *h, const struct ibx_client_module *module)
{
    unsigned i = 0;
    while (i < h->module_count && h->modules[i] != module)
        i++;
    return i < h->module_count;
}

/* Locked. False: no memory. */
static bool add(struct handle *h, struct ibx_client_module *module)
{
    struct ibx_client_module **more =
        realloc(h->modules, (h->module_count + 1) * sizeof(*h->modules));
    if (!more)
        return false;
    h->modules = more;
    h->modules[h->module_count++] = module;
    return true;
}

bool ibx_handles_exec_has(struct gpu_session *x, uint64_t exec, struct ibx_client_module *module)
{
    pthread_mutex_lock(&ibx_handles_lock);
    struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    const bool had = found && has(found, module), good = had || (found && add(found, module));
    pthread_mutex_unlock(&ibx_handles_lock);
    if (had)
        ibx_functions_graph_end(module);
    return good;
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

void ibx_handles_exec_captured(struct gpu_session *x, uint64_t exec)
{
    pthread_mutex_lock(&ibx_handles_lock);
    const struct handle *found = ibx_handle_find(x, IBX_HANDLE_EXEC, exec);
    for (unsigned i = 0; found && i < found->module_count; i++)
        ibx_functions_graph_unknown(found->modules[i]);
    pthread_mutex_unlock(&ibx_handles_lock);
}
