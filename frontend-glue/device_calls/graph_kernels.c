/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What graphs need of clients. As long as a graph has a function of a client's module, the module
 * stays in CUDA (client_functions.h). User objects of CUDA's tell when the graph, its copies and
 * its executable graphs are gone. The graph of a conditional node has its object in the graph that
 * it ends with, too. Of a function that a node has in an executable graph alone, that one's handle
 * tells.
 */
#include "frontend-glue/device_calls/device_calls.h"

#define NO_SYNC 1u /* cudaUserObjectNoDestructorSync */
#define MOVES   1u /* cudaGraphUserObjectMove */

static bool retain(struct gpu_session *x, void *graph, void *what, void (*end)(void *what))
{
    int (*make)(void **object, void *of, void (*destroy)(void *of), unsigned count,
                unsigned flags) = NULL;
    int (*release)(void *object, unsigned count) = NULL;
    int (*hold)(void *in, void *object, unsigned count, unsigned flags) = NULL;
    void *object = NULL, *outer = pointer_to(ibx_handles_outermost(x, (uintptr_t)graph));
    unsigned count = outer == graph ? 1 : 2;
    const bool had_error = ibx_back_end_has_error();
    *(void **)&make = ibx_back_end_runtime("cudaUserObjectCreate");
    *(void **)&release = ibx_back_end_runtime("cudaUserObjectRelease");
    *(void **)&hold = ibx_back_end_runtime("cudaGraphRetainUserObject");
    if (!graph || !make || !release || !hold || make(&object, what, end, count, NO_SYNC)) {
        end(what);
        object = NULL;
    }
    while (object && count && !hold(count == 2 ? outer : graph, object, 1, MOVES))
        count--;
    if (object && count)
        release(object, count);
    if (count && !had_error)
        ibx_back_end_forget_error();
    return !count;
}

/* A graph has one object for each module and array, however often its nodes are set: CUDA removes
 * none while the graph exists, and copies all of them at each update. */
bool ibx_graph_retain(struct gpu_session *x, void *graph, void *what, void (*end)(void *what))
{
    if (ibx_handles_graph_has(x, (uintptr_t)graph, what)) {
        end(what);
        return true;
    }
    if (!retain(x, graph, what, end))
        return false;
    ibx_handles_graph_note(x, (uintptr_t)graph, what);
    return true;
}

void ibx_graph_has_kernel(struct gpu_session *x, void *graph)
{
    struct ibx_client_module *module = ibx_functions_graph_begin(&x->launches.user);
    if (module && !ibx_graph_retain(x, graph, module, ibx_functions_graph_end))
        ibx_functions_graph_unknown(module);
}

void ibx_graph_exec_has_kernel(struct gpu_session *x, const void *exec, const void *node)
{
    void *module = ibx_functions_graph_begin(&x->launches.user);
    if (!ibx_handles_exec_has(x, (uintptr_t)exec, (uintptr_t)node, &module, module ? 1 : 0,
                              ibx_functions_graph_end))
        ibx_functions_graph_unknown(module);
}

static void captured(struct gpu_session *x, uint64_t stream)
{
    uint64_t id = 0;
    void *graph = NULL;
    const struct ibx_client_module *module = x->launches.user.held;
    struct captured_module *c = &x->launches.captured[((uintptr_t)module >> 6) % CAPTURED_MODULES];
    if (!ibx_captures_graph(x, stream, &id, &graph))
        return;
    if (c->module != module || c->id != id)
        ibx_graph_has_kernel(x, graph);
    ibx_captures_graphs_let_go(x);
    *c = (struct captured_module){module, id};
}

/* A capture that another thread has ended meanwhile may have the launch. */
void ibx_graph_captures_kernel(struct gpu_session *x, uint64_t stream, unsigned before)
{
    if (ibx_captures_any() && x->launches.user.held)
        captured(x, stream);
    if (ibx_captures_ended_since(x, before))
        ibx_functions_graph_unknown(x->launches.user.held);
}
