/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Kernels in graphs. As long as a graph has a function of a client's module, the module stays in
 * CUDA (client_functions.h). User objects of CUDA's tell when the graph, its copies and its
 * executable graphs are gone. The graph of a conditional node has its object in the graph that it
 * ends with, too. Of a function that a node has in an executable graph alone, that one's handle
 * tells.
 */
#include "frontend-glue/device_calls/device_calls.h"

#define NO_SYNC 1u /* cudaUserObjectNoDestructorSync */
#define MOVES   1u /* cudaGraphUserObjectMove */

static bool retain(struct gpu_session *x, void *graph)
{
    int (*make)(void **object, void *what, void (*destroy)(void *what), unsigned count,
                unsigned flags) = NULL;
    int (*release)(void *object, unsigned count) = NULL;
    int (*hold)(void *graph, void *object, unsigned count, unsigned flags) = NULL;
    void *object = NULL;
    *(void **)&make = ibx_back_end_runtime("cudaUserObjectCreate");
    *(void **)&release = ibx_back_end_runtime("cudaUserObjectRelease");
    *(void **)&hold = ibx_back_end_runtime("cudaGraphRetainUserObject");
    if (!make || !release || !hold)
        return false;
    struct ibx_client_module *module = ibx_functions_graph_begin(&x->launches.user);
    if (make(&object, module, ibx_functions_graph_end, 1, NO_SYNC)) {
        ibx_functions_graph_end(module);
        return false;
    }
    const bool held = !hold(graph, object, 1, MOVES);
    if (!held)
        release(object, 1);
    return held;
}

static bool retain_in_all(struct gpu_session *x, void *graph)
{
    void *outer = pointer_to(ibx_handles_outermost(x, (uintptr_t)graph));
    return graph && retain(x, graph) && (outer == graph || retain(x, outer));
}

void ibx_graph_has_kernel(struct gpu_session *x, void *graph)
{
    const bool had_error = ibx_back_end_has_error();
    if (!x->launches.user.held || retain_in_all(x, graph))
        return;
    ibx_functions_graph_unknown(x->launches.user.held);
    if (!had_error)
        ibx_back_end_forget_error();
}

void ibx_graph_exec_has_kernel(struct gpu_session *x, const void *exec)
{
    struct ibx_client_module *module = ibx_functions_graph_begin(&x->launches.user);
    if (!module || ibx_handles_exec_has(x, (uintptr_t)exec, module))
        return;
    ibx_functions_graph_unknown(x->launches.user.held);
    ibx_functions_graph_end(module);
}

static void captured(struct gpu_session *x, uint64_t stream)
{
    uint64_t id = 0;
    void *graph = NULL;
    const struct ibx_client_module *module = x->launches.user.held;
    struct captured_module *c = &x->launches.captured[((uintptr_t)module >> 6) % CAPTURED_MODULES];
    if (!ibx_captures_graph(x, stream, &id, &graph) || (c->module == module && c->id == id))
        return;
    ibx_graph_has_kernel(x, graph);
    *c = (struct captured_module){module, id};
}

void ibx_graph_captures_kernel(struct gpu_session *x, uint64_t stream)
{
    if (ibx_captures_any() && x->launches.user.held)
        captured(x, stream);
}
