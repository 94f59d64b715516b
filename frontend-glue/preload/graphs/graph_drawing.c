/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* cudaGraphDebugDotPrint: writes a graph as a drawing for Graphviz. CUDA would write the file on
 * the back end's host, so this file makes it here from queries of the nodes. */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"

#include "common/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDA_OPERATING_SYSTEM 304
#define SHOWS_HANDLES         (1u | 1u << 10) /* cudaGraphDebugDotFlagsVerbose, ...FlagsHandles */

static const char *name_of(int type)
{
    static const char *const names[] = {
        "KERNEL",    "MEMCPY",     "MEMSET",       "HOST",           "GRAPH",
        "EMPTY",     "EVENT_WAIT", "EVENT_RECORD", "EXT_SEM_SIGNAL", "EXT_SEM_WAIT",
        "MEM_ALLOC", "MEM_FREE",   "BATCH_MEM_OP", "CONDITIONAL"};
    return type >= 0 && (size_t)type < sizeof(names) / sizeof(names[0]) ? names[type] : "NODE";
}

static size_t index_of(void *const *nodes, size_t count, const void *node)
{
    size_t i = 0;
    while (i < count && nodes[i] != node)
        i++;
    return i;
}

struct drawing {
    FILE *file;
    unsigned number; /* of the next graph in it */
    bool handles;
};

static int draw(struct drawing *d, void *graph, unsigned depth);

static int draw_node(struct drawing *d, void *node, const char *id, unsigned depth)
{
    FILE *const file = d->file;
    struct kernel_node kernel = {.function = NULL};
    void *child = NULL;
    int type = 0, rc = cudaGraphNodeGetType(node, &type);
    if (rc)
        return rc;
    const bool asks =
        type == IBX_FRONTEND_NODE_KERNEL && !cudaGraphKernelNodeGetParams(node, &kernel);
    const char *called = asks ? ibx_frontend_name_of_kernel(kernel.function) : NULL;
    fprintf(file, "\"%s\"[shape=\"rectangle\" label=\"%s\\n%s", id, id, name_of(type));
    if (asks)
        fprintf(file, "\\n%s\\n\\<\\<\\<(%u,%u,%u),(%u,%u,%u),%u\\>\\>\\>", called ? called : "",
                kernel.grid.x, kernel.grid.y, kernel.grid.z, kernel.block.x, kernel.block.y,
                kernel.block.z, kernel.shared);
    if (d->handles)
        fprintf(file, "\\nnode handle: 0x%016" PRIxPTR, (uintptr_t)node);
    if (d->handles && asks)
        fprintf(file, "\\nfunc handle: 0x%016" PRIxPTR, (uintptr_t)kernel.function);
    fprintf(file, "\"];\n");
    if (type == IBX_FRONTEND_NODE_GRAPH && depth < IBX_EXT_GRAPHS_DEEP &&
        !(rc = cudaGraphChildGraphNodeGetGraph(node, &child)))
        rc = draw(d, child, depth + 1);
    return rc;
}

static int draw_edges(FILE *file, void *graph, void *const *nodes, size_t count, unsigned self)
{
    size_t edges = 0;
    int rc = cudaGraphGetEdges_v2(graph, NULL, NULL, NULL, &edges);
    void **ends = rc ? NULL : calloc(2 * edges + 1, sizeof(*ends));
    uint8_t *data = rc ? NULL : calloc(edges + 1, IBX_EXT_EDGE); /* CUDA does not draw it */
    if (!rc && (!ends || !data))
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    const size_t room = edges;
    if (!rc && edges)
        rc = cudaGraphGetEdges_v2(graph, ends, ends + room, data, &edges);
    for (size_t i = 0; !rc && i < edges; i++)
        fprintf(file, "\"graph_%u_node_%zu\" -> \"graph_%u_node_%zu\";\n", self,
                index_of(nodes, count, ends[i]), self, index_of(nodes, count, ends[room + i]));
    free(ends);
    free(data);
    return rc;
}

static int draw(struct drawing *d, void *graph, unsigned depth)
{
    FILE *const file = d->file;
    const unsigned self = d->number++;
    size_t count = 0;
    int rc = cudaGraphGetNodes(graph, NULL, &count);
    void **nodes = rc ? NULL : calloc(count + 1, sizeof(*nodes));
    if (!rc && !nodes)
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (!rc && count)
        rc = cudaGraphGetNodes(graph, nodes, &count);
    fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\" graph[style=\"dashed\"];\n", self,
            self);
    for (size_t i = 0; !rc && i < count; i++) {
        char id[64];
        snprintf(id, sizeof(id), "graph_%u_node_%zu", self, i);
        rc = draw_node(d, nodes[i], id, depth);
    }
    if (!rc)
        rc = draw_edges(file, graph, nodes, count, self);
    fprintf(file, "}\n");
    free(nodes);
    return rc;
}

static int draw_into(const char *path, void *graph, unsigned flags)
{
    FILE *file = fopen(path, "we");
    struct drawing d = {.file = file, .handles = flags & SHOWS_HANDLES};
    if (!file)
        return ibx_frontend_fail(CUDA_OPERATING_SYSTEM);
    fprintf(file, "digraph dot {\n");
    const int rc = draw(&d, graph, 0);
    fprintf(file, "}\n");
    const bool written = !ferror(file);
    return fclose(file) || !written ? ibx_frontend_fail(CUDA_OPERATING_SYSTEM) : rc;
}

/* Of the flags, which ask for more in a node, those for handles count. */
int cudaGraphDebugDotPrint(void *graph, const char *path, unsigned flags)
{
    size_t count = 0;
    int rc = path ? cudaGraphGetNodes(graph, NULL, &count) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (rc)
        return rc;
    const int cancel = ibx_thread_hold_cancel();
    rc = draw_into(path, graph, flags);
    ibx_thread_release_cancel(cancel);
    return rc;
}
