/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that uses only the driver: its first argument names libcuda.so.1, and it is linked with
 * nothing of CUDA. The second argument may be "namespace": it opens that library in a namespace of
 * its own (dlmopen(3)); or "version-12" or "version-13": it makes calls that the runtime of this
 * version and the driver have in other forms. If the first one is empty it calls the runtime, which
 * it has not loaded. */
#include "tests/fixtures/patience.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 100000

static char there[N], back[N];

typedef int init(unsigned flags);
typedef int create(void **context, unsigned flags, int device);
typedef int allocate(uint64_t *address, size_t n);
typedef int write_to(uint64_t to, const void *from, size_t n);
typedef int read_from(void *to, uint64_t from, size_t n);
typedef int create_graph(void **graph, unsigned flags);
typedef int add_empty(void **node, void *graph, void *const *behind, size_t count);
typedef int change_edges(void *graph, void *const *from, void *const *to, const void *edges,
                         size_t count);
typedef int get_edges(void *graph, void **from, void **to, void *edges, size_t *count);
typedef int get_neighbours(void *node, void **nodes, void *edges, size_t *count);

#define FIND(function, name) *(void **)&(function) = dlsym(library, name)

/* Returns the last digits of the error that is to be expected. */
static int allocates(void)
{
    int (*allocate_there)(void **memory, size_t n);
    void *library = NULL, *memory = NULL;
    FIND(allocate_there, "cudaMalloc");
    return allocate_there ? 100 + allocate_there(&memory, N) % 100 : 2;
}

/* Whether an edge is plain: all of its 8 bytes are 0. The ninth byte is not the edge's. */
static int is_plain(uint8_t edge[9])
{
    static const uint8_t plain[9] = {[8] = 0xee};
    const int is = !memcmp(edge, plain, sizeof(plain));
    memset(edge, 0xee, sizeof(plain));
    return is;
}

/* Only kernels have edges with data, and only data that is known. */
static int changes(void *library, void *graph, void *const *nodes)
{
    const uint8_t plain[8] = {0}, early[8] = {1, 0, 1}, unknown[8] = {0, 0, 9};
    change_edges *cu_add, *cu_remove;
    FIND(cu_add, "cuGraphAddDependencies_v2");
    FIND(cu_remove, "cuGraphRemoveDependencies_v2");
    if (cu_remove(graph, &nodes[0], &nodes[1], plain, 1) ||
        cu_add(graph, &nodes[0], &nodes[1], plain, 1))
        return 8;
    if (cu_remove(graph, &nodes[0], &nodes[1], early, 1) != 1 ||
        cu_add(graph, &nodes[0], &nodes[1], early, 1) != 1)
        return 9;
    return cu_remove(graph, &nodes[0], &nodes[1], unknown, 1) == 1 ? 0 : 10;
}

/* The runtime has parameters for this data from CUDA 13 on. */
static int runtime_changes(int version, void *graph, void *const *nodes)
{
    void *library = NULL, *from = NULL, *to = NULL;
    size_t count = 1;
    change_edges *add, *remove;
    get_edges *edges;
    FIND(add, "cudaGraphAddDependencies");
    FIND(remove, "cudaGraphRemoveDependencies");
    FIND(edges, "cudaGraphGetEdges");
    if (version < 13)
        return remove(graph, &nodes[0], &nodes[1], (void *)1, 0) ||
               edges(graph, &from, &to, &count, NULL) || count ||
               add(graph, &nodes[0], &nodes[1], (void *)1, 0);
    return remove(graph, &nodes[0], &nodes[1], NULL, 1) || edges(graph, &from, &to, NULL, &count) ||
           count || add(graph, &nodes[0], &nodes[1], NULL, 1);
}

typedef int allocate_managed(void **memory, size_t n, unsigned flags);
typedef int advise(const void *memory, size_t n, int advice, uint64_t where);
typedef int prefetch(const void *memory, size_t n, uint64_t where, uint64_t flags, void *stream);
typedef int get_attribute(void *value, size_t size, int which, const void *memory, size_t n);

/* Before CUDA 13 hints are for a device, whose number some hints do not use. */
static int hints(int version)
{
    const uint64_t no_device = (uint32_t)-2, host = version < 13 ? (uint32_t)-1 : 2;
    void *library = NULL, *memory;
    int preferred = 9, prefetched = 9;
    allocate_managed *make;
    advise *hint;
    prefetch *fetch;
    get_attribute *get;
    FIND(make, "cudaMallocManaged");
    FIND(hint, "cudaMemAdvise");
    FIND(fetch, "cudaMemPrefetchAsync");
    FIND(get, "cudaMemRangeGetAttribute");
    if (make(&memory, N, 1) || hint(memory, N, 3, host) || get(&preferred, 4, 2, memory, N) ||
        fetch(memory, N, host, 0, NULL) || get(&prefetched, 4, 4, memory, N))
        return 12;
    if (preferred != -1 || prefetched != -1)
        return 13;
    if (version < 13 && (hint(memory, N, 1, no_device) || hint(memory, N, 4, no_device) ||
                         fetch(memory, N, no_device, 0, NULL) != 101))
        return 14;
    return 0;
}

/* A graph with one edge. */
static int edges(void *library, int version)
{
    create_graph *cu_create;
    add_empty *cu_add;
    get_edges *cu_edges;
    get_neighbours *cu_before, *cu_behind;
    void *graph, *nodes[2], *from, *to;
    uint8_t edge[9];
    size_t count = 1;
    FIND(cu_create, "cuGraphCreate");
    FIND(cu_add, "cuGraphAddEmptyNode");
    FIND(cu_edges, "cuGraphGetEdges_v2");
    FIND(cu_before, "cuGraphNodeGetDependencies_v2");
    FIND(cu_behind, "cuGraphNodeGetDependentNodes_v2");
    memset(edge, 0xee, sizeof(edge));
    if (cu_create(&graph, 0) || cu_add(&nodes[0], graph, NULL, 0) ||
        cu_add(&nodes[1], graph, nodes, 1))
        return 4;
    if (cu_edges(graph, &from, &to, edge, &count) || count != 1 || from != nodes[0] ||
        to != nodes[1] || !is_plain(edge))
        return 5;
    if (cu_before(nodes[1], &from, edge, &count) || count != 1 || from != nodes[0] ||
        !is_plain(edge))
        return 6;
    if (cu_behind(nodes[0], &to, edge, &count) || count != 1 || to != nodes[1] || !is_plain(edge))
        return 7;
    return runtime_changes(version, graph, nodes) ? 11 : changes(library, graph, nodes);
}

static int calls_of(int version, void *library)
{
    const int rc = edges(library, version);
    return rc ? rc : hints(version);
}

int main(int argc, char **argv)
{
    init *cu_init;
    create *cu_create;
    allocate *cu_allocate;
    write_to *cu_write;
    read_from *cu_read;
    void *context = NULL;
    uint64_t memory = 0;
    alarm(50 * patience_times());
    if (argc > 1 && !*argv[1])
        return allocates();
    const int apart = argc > 2 && !strcmp(argv[2], "namespace");
    void *library = apart      ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL)
                    : argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)
                               : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FIND(cu_init, "cuInit");
    FIND(cu_create, "cuCtxCreate_v2");
    FIND(cu_allocate, "cuMemAlloc_v2");
    FIND(cu_write, "cuMemcpyHtoD_v2");
    FIND(cu_read, "cuMemcpyDtoH_v2");
    if (!cu_init || !cu_create || !cu_allocate || !cu_write || !cu_read ||
        dlsym(library, "cuNothing"))
        return 2;
    memset(there, 'd', sizeof(there));
    const int rc = cu_init(0);
    if (rc)
        return 100 + rc % 100;
    if (cu_create(&context, 0, 0) || cu_allocate(&memory, N) || cu_write(memory, there, N) ||
        cu_read(back, memory, N))
        return 3;
    if (argc > 2 && !apart)
        return calls_of(atoi(argv[2] + strlen("version-")), library);
    return memcmp(there, back, N) != 0;
}
