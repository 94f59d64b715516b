/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by extra_graphs.c and extra_nodes.c. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_EXTRA_GRAPHS_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_EXTRA_GRAPHS_H

#include "frontend-glue/device_copies/extra.h"

static inline bool is_graph(const struct extra *e, const void *graph)
{
    return ibx_handles_know(e->x, IBX_HANDLE_GRAPH, (uintptr_t)graph);
}

static inline bool is_exec(const struct extra *e, const void *exec)
{
    return ibx_handles_know(e->x, IBX_HANDLE_EXEC, (uintptr_t)exec);
}

/* What was made, and cannot be noted, is given back by the runtime's function of that name. */
static inline int ibx_extra_no_memory(const char *undo, const void *made)
{
    ibx_extra_undo(undo, (uintptr_t)made);
    return CUDA_MEMORY_ALLOCATION;
}

#endif
