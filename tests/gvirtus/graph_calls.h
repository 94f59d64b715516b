// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's calls for graphs, as the preload has them. Shared by the files about graphs.
#ifndef TESTS_GVIRTUS_GRAPH_CALLS_H
#define TESTS_GVIRTUS_GRAPH_CALLS_H

#include "tests/gvirtus/application.h"

#include "frontend-glue/session/extensions.h"

#include <cstddef>
#include <cstring>
#include <vector>

namespace graph_calls
{

using Planes = ibx_cuda_memcpy3d;
using Set = ibx_cuda_memset;

struct Kernel {
    const void *function;
    StubDim3 grid, block;
    unsigned shared;
    void **arguments, **extra;
};
struct Host {
    void (*function)(void *);
    void *argument;
};
struct Allocation {
    int kind, shared_as, location, device;
    char rest[72];
    const void *access;
    std::size_t access_count, n;
    void *address;
};
struct Update {
    int result;
    void *node, *other;
};

// Calls a function of the preload. The arguments must have exactly the types of its parameters.
template <typename... T> int run(const char *name, T... arguments)
{
    return preloaded<int(T...)>(name)(arguments...);
}

inline Planes copy_of(void *to, const void *from, std::size_t n, int kind)
{
    Planes p = {};
    p.from = {const_cast<void *>(from), n, n, 1};
    p.to = {to, n, n, 1};
    p.extent = {n, 1, 1};
    p.kind = kind;
    return p;
}

// A graph, and its nodes in the order in which they were added.
struct Graph {
    void *handle = nullptr;
    std::vector<void *> nodes;

    Graph() { run<void **, unsigned>("cudaGraphCreate", &handle, 0); }
    template <typename T>
    int add(const char *name, const std::vector<void *> &behind, const T *what)
    {
        void *node = nullptr;
        const int rc = run<void **, void *, void *const *, std::size_t, const T *>(
            name, &node, handle, behind.data(), behind.size(), what);
        if (!rc)
            nodes.push_back(node);
        return rc;
    }
    void *made(unsigned long long flags = 0) const
    {
        void *exec = nullptr;
        run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, handle, flags);
        return exec;
    }
    std::size_t size() const
    {
        std::size_t n = 0;
        run<void *, void **, std::size_t *>("cudaGraphGetNodes", handle, nullptr, &n);
        return n;
    }
    int destroy() { return run("cudaGraphDestroy", handle); }
};

// A launch does not wait for a copy to page-locked memory.
struct PageLocked {
    const std::size_t n;
    char *const at;

    PageLocked(std::size_t bytes, char fill) : n(bytes), at(page_locked(bytes)) { fill_with(fill); }
    PageLocked(const PageLocked &) = delete;
    ~PageLocked() { cudaFreeHost(at); }
    void fill_with(char fill) { std::memset(at, fill, n); }
    bool operator==(const std::vector<char> &other) const
    {
        return other == std::vector<char>(at, at + n);
    }
};

inline int launch(void *exec, void *stream)
{
    return run("cudaGraphLaunch", exec, stream);
}

} // namespace graph_calls

bool added_for_nothing(char *device);

#endif
