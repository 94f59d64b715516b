// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Graphs with nodes that decide what comes next, and graphs that are moved into others.
#include "tests/gvirtus/graph_calls.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace graph_calls;

namespace
{

struct Condition {
    unsigned long long handle;
    int type;
    unsigned size;
    void **graphs;
};
struct Child {
    void *graph;
    int ownership;
};
struct Parameters {
    int type, reserved[3];
    union {
        long long words[29];
        Child child;
        Kernel kernel;
        Set set;
        Condition conditional;
    };
    long long more;
};

int add_node(void **node, void *graph, void *const *behind, std::size_t count, Parameters *p)
{
    return run<void **, void *, void *const *, const void *, std::size_t, Parameters *>(
        "cudaGraphAddNode", node, graph, behind, nullptr, count, p);
}

int add_set(void **node, void *graph, void *const *behind, std::size_t count, char *at, char value)
{
    Parameters p = {};
    p.type = 2;
    p.set = {at, 10, static_cast<unsigned>(value), 1, 10, 1};
    return add_node(node, graph, behind, count, &p);
}

// An "if" with two bodies.
int add_if(void **node, void *graph, void *const *behind, std::size_t count, unsigned value,
           void **bodies)
{
    Parameters p = {};
    int rc = run<unsigned long long *, void *, unsigned, unsigned>(
        "cudaGraphConditionalHandleCreate", &p.conditional.handle, graph, value, 1);
    p.type = 13;
    p.conditional.size = 2;
    rc = rc ? rc : add_node(node, graph, behind, count, &p);
    for (int i = 0; i < 2 && !rc; i++)
        bodies[i] = p.conditional.graphs[i];
    return rc;
}

bool runs(void *graph, void *stream)
{
    void *exec = nullptr;
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0);
}

int capture_info(void *stream, int *status, void **graph, void *const **last, std::size_t *count)
{
    unsigned long long id = 0;
    const int rc = run<void *, int *, unsigned long long *, void **, void *const **, const void **,
                       std::size_t *>("cudaStreamGetCaptureInfo", stream, status, &id, graph, last,
                                      nullptr, count);
    if (rc || (*status == 1) != (id > 0))
        return rc ? rc : -1;
    unsigned long long same = 0; // by the name of CUDA 12
    const int again =
        run<void *, int *, unsigned long long *, void **, void *const **, std::size_t *>(
            "cudaStreamGetCaptureInfo_v2", stream, status, &same, graph, last, count);
    return again ? again : same == id ? 0 : -1;
}

// How many nodes of that type are in a graph, without those in graphs within it.
std::size_t count_of(void *graph, int wanted)
{
    void *nodes[64];
    std::size_t count = 64, found = 0;
    int type = 0;
    if (run<void *, void **, std::size_t *>("cudaGraphGetNodes", graph, nodes, &count))
        return 99;
    for (std::size_t i = 0; i < count; i++)
        found += !run("cudaGraphNodeGetType", nodes[i], &type) && type == wanted;
    return found;
}

bool node_by_node(char *device, void *stream)
{
    void *graph = nullptr, *node = nullptr, *branch = nullptr, *bodies[2], *inner[2];
    for (unsigned value : {1u, 0u}) {
        REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
        REQUIRE(add_set(&node, graph, nullptr, 0, device, 'a') == 0);
        REQUIRE(add_if(&branch, graph, &node, 1, value, bodies) == 0);
        REQUIRE(add_set(&node, bodies[0], nullptr, 0, device, 'b') == 0);
        REQUIRE(add_if(&node, bodies[1], nullptr, 0, 1, inner) == 0);
        // By capture, behind a node that is there already.
        REQUIRE(add_set(&node, inner[0], nullptr, 0, device, 'x') == 0);
        const unsigned char plain[8] = {}, unknown[8] = {0, 0, 9}; // data of edges
        const auto begin = [&](const unsigned char *edge) {
            return run<void *, void *, void *const *, const void *, std::size_t, int>(
                "cudaStreamBeginCaptureToGraph", stream, inner[0], &node, edge, 1, 0);
        };
        REQUIRE(fails(begin(unknown), 1) && begin(value ? plain : nullptr) == 0);
        REQUIRE(cudaMemsetAsync(device, 'c', 10, stream) == 0);
        REQUIRE((run<void *, void **>("cudaStreamEndCapture", stream, nullptr) == 0));
        REQUIRE(runs(graph, stream));
        REQUIRE(device_has(device, value ? "bbbbbbbbbb" : "cccccccccc", 10));
        int type = 0;
        REQUIRE(run("cudaGraphNodeGetType", branch, &type) == 0 && type == 13);
        // The bodies are the node's, and go with the graph.
        REQUIRE(fails(run("cudaGraphDestroy", bodies[0]), 1));
        REQUIRE(fails(run("cudaGraphDestroyNode", branch), 801));
        REQUIRE(run("cudaGraphDestroy", graph) == 0);
        REQUIRE(fails(add_set(&node, bodies[0], nullptr, 0, device, 'd'), 1));
        REQUIRE(fails(add_set(&node, inner[0], nullptr, 0, device, 'd'), 1));
    }
    return true;
}

// Nodes in a body are changed by the executable graph that has the body in it, as XLA does.
bool changed_in_bodies(char *device, void *stream)
{
    void *graph = nullptr, *other = nullptr, *node = nullptr, *bodies[2], *inner[2], *set = nullptr;
    void *copy = nullptr, *exec = nullptr;
    REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
    REQUIRE((run<void **, unsigned>("cudaGraphCreate", &other, 0) == 0));
    REQUIRE(add_if(&node, graph, nullptr, 0, 1, bodies) == 0);
    REQUIRE(add_set(&set, bodies[0], nullptr, 0, device, 'a') == 0);
    REQUIRE(add_if(&node, bodies[0], &set, 1, 1, inner) == 0);
    REQUIRE(
        (run<void **, void *, void *const *, std::size_t, void *, const void *, std::size_t, int>(
             "cudaGraphAddMemcpyNode1D", &copy, inner[0], nullptr, 0, device + 20, device, 5, 3) ==
         0));
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device, "aaaaaaaaaa", 10) && device_has(device + 20, "aaaaa", 5));
    const Set bs = {device, 10, 'b', 1, 10, 1};
    const auto change = [&](void *of) {
        return run<void *, void *, const Set *>("cudaGraphExecMemsetNodeSetParams", exec, of, &bs);
    };
    REQUIRE(change(set) == 0);
    REQUIRE(
        (run<void *, void *, void *, const void *, std::size_t, int>(
             "cudaGraphExecMemcpyNodeSetParams1D", exec, copy, device + 30, device, 7, 3) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device, "bbbbbbbbbb", 10) && device_has(device + 20, "aaaaa", 5));
    REQUIRE(device_has(device + 30, "bbbbbbb", 7));
    // Not those of another graph, nor what has come since.
    REQUIRE(add_set(&node, other, nullptr, 0, device, 'c') == 0 && fails(change(node), 1));
    REQUIRE(add_set(&node, bodies[0], nullptr, 0, device, 'c') == 0 && fails(change(node), 1));
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && run("cudaGraphDestroy", graph) == 0);
    return HOLDS(run("cudaGraphDestroy", other) == 0);
}

int add_graph(void **node, void *graph, void *child, int ownership)
{
    Parameters p = {};
    p.type = 4;
    p.child = {child, ownership};
    return add_node(node, graph, nullptr, 0, &p);
}

// A graph that is moved into another one is that one's, with the nodes that the program knows, and
// with its objects.
bool moved(char *device, void *stream)
{
    void *graphs[3], *set = nullptr, *node = nullptr, *child = nullptr, *exec = nullptr;
    void *object = nullptr;
    bool ended = false;
    const auto end = [](void *what) { *static_cast<bool *>(what) = true; };
    for (void *&graph : graphs)
        REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
    REQUIRE((run<void **, void *, void (*)(void *), unsigned, unsigned>(
                 "cudaUserObjectCreate", &object, &ended, end, 4, 1) == 0));
    for (int i : {0, 1})
        REQUIRE((run<void *, void *, unsigned, unsigned>("cudaGraphRetainUserObject", graphs[i],
                                                         object, 2, 1) == 0));
    REQUIRE(add_set(&set, graphs[0], nullptr, 0, device, 'a') == 0);
    REQUIRE(fails(add_graph(&node, graphs[1], graphs[0], 2), 1));
    REQUIRE(fails(add_graph(&node, graphs[0], graphs[0], 1), 1));
    for (int i : {0, 1}) {
        REQUIRE(add_graph(&node, graphs[i + 1], graphs[i], 1) == 0);
        REQUIRE(run("cudaGraphChildGraphNodeGetGraph", node, &child) == 0 && child == graphs[i]);
        REQUIRE(fails(run("cudaGraphDestroy", graphs[i]), 1));
        REQUIRE(fails(add_graph(&node, graphs[2], graphs[i], 1), 1));
    }
    REQUIRE(fails(add_graph(&node, graphs[0], graphs[2], 1), 1)); // it would be within itself
    REQUIRE((run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graphs[2],
                                                      0) == 0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device, "aaaaaaaaaa", 10));
    const Set bs = {device, 10, 'b', 1, 10, 1};
    REQUIRE((run<void *, void *, const Set *>("cudaGraphExecMemsetNodeSetParams", exec, set, &bs) ==
             0));
    REQUIRE(launch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device, "bbbbbbbbbb", 10) && run("cudaGraphExecDestroy", exec) == 0);
    // It goes with the other one.
    REQUIRE(
        (run<void *, void *, unsigned>("cudaGraphReleaseUserObject", graphs[2], object, 3) == 0));
    REQUIRE(!ended && run("cudaGraphDestroy", graphs[2]) == 0 && ended);
    REQUIRE(fails(add_set(&node, graphs[0], nullptr, 0, device, 'd'), 1));
    return HOLDS(fails(run("cudaGraphDestroy", graphs[1]), 1));
}

// What the program gives a body, or a graph in a body, goes with the graph and what was made of it.
bool objects_of_bodies()
{
    void *graph = nullptr, *moves = nullptr, *copied = nullptr, *later = nullptr, *node = nullptr,
         *bodies[2], *inner[2];
    void *object = nullptr, *exec = nullptr;
    static std::atomic<int> ended;
    void (*end)(void *) = [](void *) { ended++; };
    const auto retain = [&](void *of) {
        REQUIRE((run<void **, void *, void (*)(void *), unsigned, unsigned>(
                     "cudaUserObjectCreate", &object, nullptr, end, 2, 1) == 0));
        REQUIRE((run<void *, void *, unsigned, unsigned>("cudaGraphRetainUserObject", of, object, 2,
                                                         1) == 0));
        return HOLDS(
            (run<void *, void *, unsigned>("cudaGraphReleaseUserObject", of, object, 1) == 0));
    };
    ended = 0;
    for (void **made : {&graph, &moves, &copied, &later})
        REQUIRE((run<void **, unsigned>("cudaGraphCreate", made, 0) == 0));
    REQUIRE(add_if(&node, graph, nullptr, 0, 1, bodies) == 0);
    REQUIRE(add_if(&node, bodies[0], nullptr, 0, 1, inner) == 0);
    REQUIRE(add_graph(&node, graph, moves, 1) == 0);
    REQUIRE(retain(bodies[1]) && retain(inner[1]) && retain(moves));
    REQUIRE(fails(run("cudaGraphDestroy", bodies[1]), 1) && retain(bodies[1]));
    REQUIRE(retain(copied) && retain(later)); // which come into bodies with what they have
    REQUIRE(add_graph(&node, bodies[0], copied, 0) == 0);
    REQUIRE(add_graph(&node, inner[1], later, 1) == 0);
    REQUIRE(run("cudaGraphDestroy", copied) == 0);
    REQUIRE(
        (run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graph, 0) == 0));
    REQUIRE(run("cudaGraphDestroy", graph) == 0 && ended == 0);
    return HOLDS(run("cudaGraphExecDestroy", exec) == 0 && ended == 6);
}

// A graph that gets the handle of one that ended in another graph is no part of that one.
bool objects_after_moved()
{
    void *graph = nullptr, *moves = nullptr, *node = nullptr, *object = nullptr, *next = nullptr;
    std::vector<void *> others;
    bool ended = false;
    void (*end)(void *) = [](void *what) { *static_cast<bool *>(what) = true; };
    REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
    REQUIRE((run<void **, unsigned>("cudaGraphCreate", &moves, 0) == 0));
    REQUIRE(add_graph(&node, graph, moves, 1) == 0 && run("cudaGraphDestroyNode", node) == 0);
    while (next != moves && others.size() < 50) { // ASan gives out no such memory again
        REQUIRE((run<void **, unsigned>("cudaGraphCreate", &next, 0) == 0));
        others.push_back(next);
    }
    REQUIRE((run<void **, void *, void (*)(void *), unsigned, unsigned>(
                 "cudaUserObjectCreate", &object, &ended, end, 1, 1) == 0));
    REQUIRE((run<void *, void *, unsigned, unsigned>("cudaGraphRetainUserObject", next, object, 1,
                                                     1) == 0));
    REQUIRE(run("cudaGraphDestroy", graph) == 0 && !ended);
    for (void *other : others)
        REQUIRE(run("cudaGraphDestroy", other) == 0);
    return HOLDS(ended);
}

// What is moved into a graph comes too late for the executable graphs that it has already.
bool moved_later(char *device)
{
    void *graphs[2], *set = nullptr, *node = nullptr, *exec = nullptr;
    for (void *&graph : graphs)
        REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
    REQUIRE(add_set(&set, graphs[0], nullptr, 0, device, 'a') == 0);
    REQUIRE(add_set(&node, graphs[1], nullptr, 0, device, 'a') == 0);
    REQUIRE((run<void **, void *, unsigned long long>("cudaGraphInstantiate", &exec, graphs[1],
                                                      0) == 0));
    REQUIRE(add_graph(&node, graphs[1], graphs[0], 1) == 0);
    const Set bs = {device, 10, 'b', 1, 10, 1};
    REQUIRE(fails(
        run<void *, void *, const Set *>("cudaGraphExecMemsetNodeSetParams", exec, set, &bs), 1));
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0);
    return HOLDS(run("cudaGraphDestroy", graphs[1]) == 0);
}

// What was captured so far comes before the node that is added to the capture, the rest behind it.
bool while_captured(char *device, void *stream)
{
    void *graph = nullptr, *again = nullptr, *branch = nullptr, *bodies[2];
    void *const *last = nullptr;
    std::size_t count = 9;
    int status = 9;
    REQUIRE(capture_info(stream, &status, &graph, &last, &count) == 0 && status == 0 && count == 9);
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE(capture_info(stream, &status, &graph, &last, &count) == 0 && status == 1);
    REQUIRE(graph && count == 0); // nothing is in it yet
    int asked = 9;                // by another thread
    std::thread([&] {
        int is = 9;
        asked = capture_info(stream, &is, &again, nullptr, nullptr);
    }).join();
    REQUIRE(asked == 0 && again == graph);
    REQUIRE(cudaMemsetAsync(device, 'a', 20, stream) == 0);
    REQUIRE(capture_info(stream, &status, nullptr, nullptr, nullptr) == 0 && status == 1);
    REQUIRE(capture_info(stream, &status, &again, &last, &count) == 0 && again == graph);
    REQUIRE(count == 1 && add_if(&branch, graph, last, count, 1, bodies) == 0);
    REQUIRE(add_set(&again, bodies[0], nullptr, 0, device, 'b') == 0);
    REQUIRE((run<void *, void *const *, const void *, std::size_t, unsigned>(
                 "cudaStreamUpdateCaptureDependencies", stream, &branch, nullptr, 1, 1) == 0));
    REQUIRE(cudaMemsetAsync(device + 5, 'c', 2, stream) == 0);
    REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
    REQUIRE(count_of(graph, 4) == 0 && count_of(graph, 2) == 2); // what was captured: no graphs
    REQUIRE(runs(graph, stream) && device_has(device, "bbbbbccbbbaaaaaaaaaa", 20));
    REQUIRE(run("cudaGraphDestroy", graph) == 0);
    // Without a part behind it.
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", stream, 0) == 0));
    REQUIRE(cudaMemsetAsync(device, 'd', 20, stream) == 0);
    REQUIRE(capture_info(stream, &status, &graph, &last, &count) == 0 && count == 1);
    REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
    REQUIRE(runs(graph, stream) && device_has(device, "dddddddddddddddddddd", 20));
    return true;
}

// A thread's own stream is asked about as any other.
bool own_stream_captured(char *device)
{
    void *graph = nullptr, *again = nullptr, *own = reinterpret_cast<void *>(2);
    void *const *last = nullptr;
    std::size_t count = 9;
    int status = 9;
    REQUIRE((run<void *, int>("cudaStreamBeginCapture", own, 0) == 0));
    REQUIRE(cudaMemsetAsync(device, 'e', 20, own) == 0);
    REQUIRE(capture_info(own, &status, &graph, &last, &count) == 0 && status == 1 && count == 1);
    REQUIRE(add_set(&again, graph, last, 1, device, 'f') == 0);
    REQUIRE((run<void *, void *const *, const void *, std::size_t, unsigned>(
                 "cudaStreamUpdateCaptureDependencies", own, &again, nullptr, 1, 1) == 0));
    REQUIRE(run("cudaStreamEndCapture", own, &again) == 0 && again == graph);
    REQUIRE(count_of(graph, 4) == 0 && count_of(graph, 2) == 2 && runs(graph, own));
    return HOLDS(device_has(device, "ffffffffff", 10) && run("cudaGraphDestroy", graph) == 0);
}

// CUDA clones no graph that allocates memory or frees it. What a capture has of these is in the
// program's graph nevertheless, also where the program gives the graph, and no call leaves an
// error.
bool memory_while_captured(char *device, void *stream)
{
    void *graph = nullptr, *again = nullptr, *memory = nullptr;
    void *const *last = nullptr;
    std::size_t count = 9;
    int status = 9;
    const auto allocates = [&] {
        REQUIRE((run<void **, std::size_t, void *>("cudaMallocAsync", &memory, 100, stream) == 0));
        REQUIRE((run<void **, std::size_t, void *>("cudaMallocAsync", &memory, 100, stream) == 0));
        REQUIRE(capture_info(stream, &status, &again, &last, &count) == 0 && status == 1);
        return HOLDS(count == 1 && again == graph);
    };
    const auto uses = [&](char what) {
        REQUIRE(cudaMemsetAsync(memory, what, 20, stream) == 0);
        REQUIRE(cudaMemcpyAsync(device, memory, 20, 3, stream) == 0);
        REQUIRE(run("cudaFreeAsync", memory, stream) == 0);
        REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
        REQUIRE(count_of(graph, 4) == 0 && count_of(graph, 10) == (what == 'n' ? 4u : 2u));
        REQUIRE(cudaGetLastError() == 0 && runs(graph, stream));
        return HOLDS(device_has(device, std::string(20, what).c_str(), 20));
    };
    cudaGetLastError(); // of what has failed before
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(capture_info(stream, &status, &graph, nullptr, nullptr) == 0 && graph);
    REQUIRE(allocates() && uses('m') && run("cudaGraphDestroy", graph) == 0);
    REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
    REQUIRE((run<void *, void *, void *const *, const void *, std::size_t, int>(
                 "cudaStreamBeginCaptureToGraph", stream, graph, nullptr, nullptr, 0, 0) == 0));
    REQUIRE(allocates() && allocates() && uses('n'));
    return HOLDS(run("cudaGraphDestroy", graph) == 0);
}

// A call that has succeeded is CUDA's to refuse while a stream is captured that waits for the
// legacy one, into whichever graph.
bool refused_while_captured(char *device, void *stream)
{
    void *graph = nullptr, *again = nullptr;
    for (bool given : {false, true}) {
        REQUIRE((run<void **, unsigned>("cudaGraphCreate", &graph, 0) == 0));
        for (unsigned i = 0; i < 3; i++)
            REQUIRE(cudaMemsetAsync(device, 'a', 10, nullptr) == 0 && cudaDeviceSynchronize() == 0);
        if (given)
            REQUIRE(
                (run<void *, void *, void *const *, const void *, std::size_t, int>(
                     "cudaStreamBeginCaptureToGraph", stream, graph, nullptr, nullptr, 0, 0) == 0));
        else
            REQUIRE(cudaStreamBeginCapture(stream, 0) == 0);
        REQUIRE(fails(cudaMemsetAsync(device, 'a', 10, nullptr), 906));
        REQUIRE(fails(run("cudaStreamEndCapture", stream, &again), 901));
        REQUIRE(given || run("cudaGraphDestroy", graph) == 0); // CUDA has destroyed it
    }
    return true;
}

int number_of(void *stream, unsigned long long *id)
{
    int status = 9;
    const int rc = run<void *, int *, unsigned long long *, void **, void *const **, const void **,
                       std::size_t *>("cudaStreamGetCaptureInfo", stream, &status, id, nullptr,
                                      nullptr, nullptr, nullptr);
    return rc ? rc : status == 1 ? 0 : -1;
}

// Streams and events of a capture that forks.
struct Forks {
    void *other, *third, *early, *late;
    bool begins()
    {
        REQUIRE(cudaStreamCreate(&other) == 0 && cudaStreamCreate(&third) == 0);
        return HOLDS(cudaEventCreate(&early) == 0 && cudaEventCreate(&late) == 0);
    }
    bool ends()
    {
        REQUIRE(cudaStreamDestroy(other) == 0 && cudaStreamDestroy(third) == 0);
        return HOLDS(cudaEventDestroy(early) == 0 && cudaEventDestroy(late) == 0);
    }
    // The second stream comes behind the first one.
    static bool follow(void *second, void *first, void *event)
    {
        REQUIRE(cudaEventRecord(event, first) == 0);
        return HOLDS(cudaStreamWaitEvent(second, event, 0) == 0);
    }
};

// A question about the graph changes nothing in a capture that other streams have joined: these are
// in it, also behind events that were recorded before the question, and nothing runs.
bool forked(char *device, void *stream)
{
    Forks f;
    void *graph = nullptr, *again = nullptr, *branch = nullptr, *bodies[2];
    void *const *last = nullptr;
    unsigned long long id = 0, same = 0;
    std::size_t count = 0;
    int status = 0;
    REQUIRE(f.begins() && cudaMemset(device, '.', 20) == 0);
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0 && number_of(stream, &id) == 0);
    REQUIRE(cudaMemsetAsync(device, 'a', 20, stream) == 0 && f.follow(f.other, stream, f.early));
    REQUIRE(cudaMemsetAsync(device + 5, 'b', 5, f.other) == 0);
    REQUIRE(capture_info(stream, &status, &graph, &last, &count) == 0 && status == 1 && graph);
    REQUIRE(count == 1 && number_of(stream, &same) == 0 && same == id);
    REQUIRE(number_of(f.other, &same) == 0 && same == id); // asked about a stream that has joined
    REQUIRE(capture_info(f.other, &status, &again, &last, &count) == 0 && again == graph);
    REQUIRE(count == 1 && add_if(&branch, graph, last, count, 1, bodies) == 0);
    REQUIRE(add_set(&again, bodies[0], nullptr, 0, device + 8, 'c') == 0);
    REQUIRE((run<void *, void *const *, const void *, std::size_t, unsigned>(
                 "cudaStreamUpdateCaptureDependencies", stream, &branch, nullptr, 1, 1) == 0));
    REQUIRE(capture_info(stream, &status, &again, &last, &count) == 0 && count == 1);
    REQUIRE(*last == branch);
    REQUIRE(cudaMemsetAsync(device + 18, 'd', 1, f.other) == 0);
    REQUIRE(cudaStreamWaitEvent(f.third, f.early, 0) == 0); // recorded before the questions
    REQUIRE(cudaMemsetAsync(device, 'e', 1, f.third) == 0);
    REQUIRE(f.follow(stream, f.third, f.late) && f.follow(stream, f.other, f.early));
    REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
    REQUIRE(device_has(device, "....................", 20) && number_of(f.other, &same) == -1);
    REQUIRE(count_of(graph, 4) == 0 && runs(graph, stream));
    REQUIRE(device_has(device, "eaaaabbbccccccccccda", 20));
    return HOLDS(run("cudaGraphDestroy", graph) == 0 && f.ends());
}

// A launch may record the event by which a stream joins the capture, before or after the question:
// cudaLaunchAttributeID 7 or 12.
bool forked_by_launches(char *device, void *stream)
{
    auto *launches = preloaded<LaunchAs>("cudaLaunchKernelExC");
    std::size_t n = 10, count = 0;
    void *to = device + 80, *from = device + 60, *arguments[] = {&to, &from, &n};
    for (const long records : {7, 12}) {
        Forks f;
        void *graph = nullptr, *again = nullptr;
        void *const *last = nullptr;
        int status = 0;
        REQUIRE(f.begins() && cudaMemset(device, '.', 20) == 0);
        LaunchAttribute attribute = {records, {}};
        const LaunchConfig config = {{1, 1, 1}, {1, 1, 1}, 0, stream, &attribute, 1};
        std::memcpy(attribute.value, &f.early, sizeof(f.early));
        REQUIRE(cudaStreamBeginCapture(stream, 0) == 0);
        REQUIRE(cudaMemsetAsync(device, 'l', 20, stream) == 0);
        attribute.value[2] = 1; // cudaEventRecordExternal
        REQUIRE(fails(launches(&config, &stub_kernel, arguments), 801));
        attribute.value[2] = 0;
        REQUIRE(launches(&config, &stub_kernel, arguments) == 0);
        REQUIRE(cudaStreamWaitEvent(f.other, f.early, 0) == 0);
        REQUIRE(cudaMemsetAsync(device + 5, 'm', 5, f.other) == 0);
        REQUIRE(capture_info(f.other, &status, &graph, &last, &count) == 0 && status == 1);
        REQUIRE(cudaStreamWaitEvent(f.third, f.early, 0) == 0);
        REQUIRE(cudaMemsetAsync(device, 'n', 1, f.third) == 0);
        REQUIRE(f.follow(stream, f.third, f.late) && f.follow(stream, f.other, f.late));
        REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
        REQUIRE(cudaGetLastError() == 0 && device_has(device, "....................", 20));
        REQUIRE(runs(graph, stream) && device_has(device, "nllllmmmmmllllllllll", 20));
        REQUIRE(run("cudaGraphDestroy", graph) == 0 && f.ends());
    }
    return true;
}

// NVIDIA Warp joins what has forked by the nodes of the graph, and not by events.
bool joined_by_nodes(char *device, void *stream)
{
    Forks f;
    void *graph = nullptr, *again = nullptr;
    void *const *last = nullptr;
    std::size_t count = 0;
    int status = 0;
    REQUIRE(f.begins() && cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(f.follow(f.other, stream, f.early)); // there is no work yet
    REQUIRE(capture_info(stream, &status, &graph, &last, &count) == 0 && status == 1);
    REQUIRE(cudaMemsetAsync(device, 'f', 20, f.other) == 0);
    REQUIRE(capture_info(stream, &status, &graph, &last, &count) == 0 && count == 0);
    REQUIRE(capture_info(f.other, &status, &graph, &last, &count) == 0 && count == 1);
    void *const node = *last;
    REQUIRE((run<void *, void *const *, const void *, std::size_t, unsigned>(
                 "cudaStreamUpdateCaptureDependencies", stream, &node, nullptr, 1, 1) == 0));
    REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
    REQUIRE(runs(graph, stream) && device_has(device, "ffffffffffffffffffff", 20));
    REQUIRE(run("cudaGraphDestroy", graph) == 0);
    // Nothing else is joined for the program, neither by a question.
    for (bool asks : {false, true}) {
        REQUIRE(cudaStreamBeginCapture(stream, 0) == 0 && f.follow(f.other, stream, f.early));
        REQUIRE(cudaMemsetAsync(device, 'g', 20, f.other) == 0);
        if (asks)
            REQUIRE(capture_info(f.other, &status, &graph, &last, &count) == 0 && graph);
        REQUIRE(fails(run("cudaStreamEndCapture", stream, &again), 904) && !again);
    }
    REQUIRE(fails(add_set(&again, graph, nullptr, 0, device, 'g'), 1)); // it has ended
    REQUIRE(fails(run("cudaGraphDestroy", graph), 1));
    return HOLDS(device_has(device, "ffffffffffffffffffff", 20) && f.ends());
}

// A capture that goes on into the graph of one that has ended has that one's number.
bool goes_on(char *device, void *stream)
{
    void *graph = nullptr, *again = nullptr;
    unsigned long long id = 0, same = 0, next = 0;
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0 && number_of(stream, &id) == 0);
    REQUIRE(cudaMemsetAsync(device, 'h', 20, stream) == 0);
    REQUIRE(run("cudaStreamEndCapture", stream, &graph) == 0);
    for (int i = 0; i < 2; i++) {
        REQUIRE((run<void *, void *, void *const *, const void *, std::size_t, int>(
                     "cudaStreamBeginCaptureToGraph", stream, graph, nullptr, nullptr, 0, 0) == 0));
        REQUIRE(number_of(stream, &same) == 0 && same == id);
        REQUIRE(run("cudaStreamEndCapture", stream, &again) == 0 && again == graph);
    }
    REQUIRE(run("cudaGraphDestroy", graph) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(number_of(stream, &next) == 0 && next != id);
    REQUIRE(run("cudaStreamEndCapture", stream, &graph) == 0);
    return HOLDS(run("cudaGraphDestroy", graph) == 0);
}

// A stream that has joined a capture has that one's number, by which PyTorch finds the pool of
// memory that is for the capture alone.
bool joined(void *stream)
{
    const auto number = number_of;
    void *other = nullptr, *third = nullptr, *event = nullptr, *graph = nullptr;
    unsigned long long id = 0, same = 0;
    REQUIRE(cudaStreamCreate(&other) == 0 && cudaStreamCreate(&third) == 0);
    REQUIRE(cudaEventCreate(&event) == 0 && cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(cudaEventRecord(event, stream) == 0 && cudaStreamWaitEvent(other, event, 0) == 0);
    REQUIRE(number(stream, &id) == 0 && id && number(other, &same) == 0 && same == id);
    // Also while there are two captures.
    REQUIRE(cudaStreamBeginCapture(third, 2) == 0 && number(other, nullptr) == 0);
    REQUIRE(number(other, &same) == 0 && same == id && number(stream, &same) == 0 && same == id);
    REQUIRE(cudaStreamEndCapture(third, &graph) == 0);
    REQUIRE(number(other, &same) == 0 && same == id);
    REQUIRE(cudaEventRecord(event, other) == 0 && cudaStreamWaitEvent(stream, event, 0) == 0);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0);
    REQUIRE(number(other, &same) == -1 && run("cudaGraphDestroy", graph) == 0);
    REQUIRE(cudaStreamDestroy(other) == 0 && cudaStreamDestroy(third) == 0);
    return HOLDS(cudaEventDestroy(event) == 0);
}

} // namespace

bool conditions()
{
    char *device = device_memory(100);
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(node_by_node(device, stream) && changed_in_bodies(device, stream));
    REQUIRE(moved(device, stream) && moved_later(device) && objects_of_bodies());
    REQUIRE(objects_after_moved());
    REQUIRE(memory_while_captured(device, stream));
    REQUIRE(forked(device, stream) && joined_by_nodes(device, stream) && goes_on(device, stream));
    REQUIRE(forked_by_launches(device, stream));
    REQUIRE(own_stream_captured(device) && refused_while_captured(device, stream));
    return HOLDS(while_captured(device, stream) && joined(stream));
}
