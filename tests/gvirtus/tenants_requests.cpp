// SPDX-License-Identifier: LGPL-2.1-or-later
//
// In extension requests (frontend-glue/session/extensions.h) a tenant can name only its own
// things.
#include "tests/gvirtus/tenants_scene.h"

#include "frontend-glue/session/extensions.h"

#include <cstring>

namespace
{

// An extension request (frontend-glue/session/extensions.h), by its number.
Body extra(int number)
{
    Body body;
    body.bytes = {static_cast<char>(number), 0};
    return body;
}
constexpr const char *extra_name = "ibxRuntime";

std::uint64_t made(Remote *remote, const Body &body)
{
    std::uint64_t handle = 0;
    if (!remote->call(extra_name, body) && remote->out.size() == 8)
        std::memcpy(&handle, remote->out.data(), 8);
    return handle;
}

Body array_of_bytes(std::uint64_t n)
{
    return extra(8).i32(8).i32(0).i32(0).i32(0).i32(1).u64(n).u64(0).u64(0).i32(0);
}

// What a handler sends with an error is an address of the back end's, or bytes of its heap.
bool answers_with_errors()
{
    TenantsBackEnd back;
    Client alice(back, "alice");
    alice.remote.get_last_error();
    REQUIRE(alice.remote.call("cudaMallocManaged", Body().u64(0).u64(64).i32(1)) == 2);
    REQUIRE(alice.remote.out.size() == 16);
    return zeros({alice.remote.out.begin() + 8, alice.remote.out.end()});
}

// Such a request is refused if it names another tenant's memory of pools, arrays, or queues of
// functions.
bool extension_requests()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    Remote *a = &alice.remote, *b = &bob.remote;
    REQUIRE(a->malloc(100) && b->malloc(100) && !a->get_last_error() && !b->get_last_error());
    const std::uint64_t pooled = made(a, extra(20).u64(4096).u64(0)),
                        array = made(a, array_of_bytes(64));
    const std::uint64_t queue = made(a, extra(28)), own = made(b, extra(20).u64(4096).u64(0)),
                        own_array = made(b, array_of_bytes(64));
    REQUIRE(pooled && array && queue && own && own_array);
    const std::vector<char> bytes = random_bytes(4096, 3);
    REQUIRE(a->to_device(pooled, bytes.data(), 4096) == 0);
    REQUIRE(b->to_device(pooled, bytes.data(), 64) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(10).u64(array).u64(0).u64(0).u64(own).u64(64)) ==
            bad_pointer);
    REQUIRE(b->call(extra_name, extra(10).u64(own_array).u64(0).u64(0).u64(pooled).u64(64)) ==
            bad_pointer);
    REQUIRE(b->call(extra_name, extra(11).u64(pooled).u64(own_array).u64(0).u64(0).u64(64)) ==
            bad_pointer);
    REQUIRE(b->call(extra_name, extra(22).u64(pooled).u64(0)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(9).u64(array)) == bad_pointer);
    Body texture = extra(16);
    texture.i32(2).u64(pooled).i32(8).i32(0).i32(0).i32(0).i32(2).u64(64);
    for (int i = 1; i <= 18; i++)
        texture.i32(i);
    texture.bytes.push_back(0);
    const std::uint64_t of_array = made(a, texture);
    REQUIRE(of_array && b->call(extra_name, texture) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(17).u64(of_array)) == bad_pointer);
    REQUIRE(a->call(extra_name, extra(19).u64(of_array)) == bad_pointer); // no surface
    REQUIRE(a->call(extra_name, extra(17).u64(of_array)) == 0);
    const auto rows_to = [](std::uint64_t to, std::uint64_t from) {
        return extra(IBX_EXT_2D_TO_ARRAY).u64(to).u64(0).u64(0).u64(from).u64(64).u64(64).u64(1);
    };
    const auto rows_from = [](std::uint64_t to, std::uint64_t from) {
        return extra(IBX_EXT_2D_FROM_ARRAY).u64(to).u64(64).u64(from).u64(0).u64(0).u64(64).u64(1);
    };
    REQUIRE(b->call(extra_name, rows_to(own_array, own)) == 0);
    REQUIRE(b->call(extra_name, rows_from(own, own_array)) == 0);
    REQUIRE(b->call(extra_name, rows_to(array, own)) == bad_pointer);
    REQUIRE(b->call(extra_name, rows_to(own_array, pooled)) == bad_pointer);
    REQUIRE(b->call(extra_name, rows_from(own, array)) == bad_pointer);
    REQUIRE(b->call(extra_name, rows_from(pooled, own_array)) == bad_pointer);
    REQUIRE(
        b->call(extra_name, extra(IBX_EXT_FROM_ARRAY).u64(own).u64(array).u64(0).u64(0).u64(64)) ==
        bad_pointer);
    for (int number : {IBX_EXT_CREATE_TEXTURE, IBX_EXT_CREATE_SURFACE}) {
        const auto over = [&](std::uint64_t at) {
            Body body = extra(number).i32(IBX_RESOURCE_ARRAY).u64(at);
            if (number == IBX_EXT_CREATE_SURFACE)
                return body;
            for (int i = 1; i <= 18; i++)
                body.i32(i);
            body.bytes.push_back(0);
            return body;
        };
        REQUIRE(b->call(extra_name, over(array)) == bad_pointer && made(b, over(own_array)));
    }
    // GVirtuS's own handler frees NULL instead.
    REQUIRE(b->call("cudaFreeArray", Body().u64(array)) == 0);
    REQUIRE(a->call(extra_name, extra(15).u64(array)) == 0);
    // A handle of another kind would end the back end if CUDA got it.
    const std::uint64_t pool = made(b, extra(23).i32(0));
    REQUIRE(pool && b->call(extra_name, extra(9).u64(pool)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(15).u64(pool)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(21).u64(64).u64(own_array).u64(0)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(21).u64(64).u64(pool).u64(0)) == 0);
    // Rows that begin in the tenant's own memory and leave it.
    const std::uint64_t far = made(a, extra(20).u64(4096).u64(0));
    // Allocators give out higher and higher addresses, or lower and lower ones (ThreadSanitizer's).
    const std::uint64_t below = own < far ? own : b->malloc(4096);
    const auto rows_there = [&](std::uint64_t row) {
        return extra(14)
            .u64(0)
            .u64(0)
            .u64(row)
            .u64(0)
            .u64(below)
            .u64(64)
            .u64(64)
            .u64(1)
            .u64(own_array)
            .u64(0)
            .u64(0)
            .u64(0)
            .u64(0)
            .u64(0)
            .u64(0)
            .u64(0)
            .u64(64)
            .u64(1)
            .u64(1)
            .i32(3);
    };
    REQUIRE(below && far > below && b->call(extra_name, rows_there(3)) == 0);
    REQUIRE(b->call(extra_name, rows_there((far - below) / 64)) == bad_pointer);
    Body call = extra(29);
    call.u64(0).u64(queue).u64(1);
    call.bytes.push_back(0);
    REQUIRE(b->call(extra_name, call) == bad_pointer);
    REQUIRE(untouched(a, pooled, bytes));
    // A tenant can use its own things; what was given back is nobody's.
    REQUIRE(b->call(extra_name, extra(10).u64(own_array).u64(0).u64(0).u64(own).u64(64)) == 0);
    REQUIRE(a->call(extra_name, extra(22).u64(pooled).u64(0)) == 0);
    return HOLDS(a->call(extra_name, extra(9).u64(array)) == 0);
}

// Graphs, their nodes and executable graphs are a tenant's; so has everything to be that nodes
// name.
bool graphs_of_ours()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    Remote *a = &alice.remote, *b = &bob.remote;
    const std::uint64_t memory = a->malloc(4096), own = b->malloc(4096);
    REQUIRE(memory && own && !a->get_last_error() && !b->get_last_error());
    const std::vector<char> bytes = random_bytes(4096, 4);
    REQUIRE(a->to_device(memory, bytes.data(), 4096) == 0);
    const auto make = [](Remote *remote) {
        return made(remote, extra(IBX_EXT_GRAPH_CREATE).i32(0));
    };
    // Behind no node, or behind one: 64 bytes are set.
    const auto set = [](std::uint64_t graph, std::uint64_t at, std::uint64_t behind = 0) {
        Body body = extra(IBX_EXT_NODE_MEMSET).u64(graph);
        body.put(static_cast<std::uint16_t>(behind != 0));
        if (behind)
            body.u64(behind);
        return body.u64(at).u64(0).i32(1).i32(1).u64(64).u64(1);
    };
    const auto exec_of = [](std::uint64_t graph) {
        return extra(IBX_EXT_GRAPH_INSTANTIATE).u64(graph).u64(0);
    };
    const std::uint64_t graph = make(a), other = make(b), node = made(a, set(graph, memory));
    const std::uint64_t exec = made(a, exec_of(graph));
    REQUIRE(graph && other && node && exec);
    REQUIRE(b->call(extra_name, set(graph, own)) == bad_pointer);
    REQUIRE(b->call(extra_name, set(other, memory)) == bad_pointer);
    REQUIRE(b->call(extra_name, set(other, own, node)) == bad_pointer);
    REQUIRE(b->call(extra_name, exec_of(graph)) == bad_pointer);
    for (int number : {IBX_EXT_GRAPH_DESTROY, IBX_EXT_GRAPH_CLONE, IBX_EXT_NODE_TYPE,
                       IBX_EXT_NODE_DESTROY, IBX_EXT_EXEC_DESTROY})
        for (std::uint64_t handle : {graph, node, exec})
            REQUIRE(b->call(extra_name, extra(number).u64(handle)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(IBX_EXT_EXEC_UPDATE).u64(exec).u64(other)) == bad_pointer);
    Body copy = extra(IBX_EXT_NODE_MEMCPY).u64(other);
    copy.put(static_cast<std::uint16_t>(0));
    for (std::uint64_t word :
         {std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, memory,
          std::uint64_t{64}, std::uint64_t{64}, std::uint64_t{1}, std::uint64_t{0},
          std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, own, std::uint64_t{64},
          std::uint64_t{64}, std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{1},
          std::uint64_t{1}})
        copy.u64(word);
    REQUIRE(b->call(extra_name, copy.i32(3)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(IBX_EXT_MEMSET).u64(memory).i32(1).u64(64).u64(0)) ==
            bad_pointer);
    Body nodes = extra(IBX_EXT_GRAPH_NODES).u64(graph).u64(0);
    nodes.bytes.push_back(0);
    for (const Body &asks :
         {nodes, extra(IBX_EXT_GRAPH_FUNCTIONS).u64(graph).u64(0),
          extra(IBX_EXT_EXEC_UPLOAD).u64(exec).u64(0), extra(IBX_EXT_EXEC_FLAGS).u64(exec)})
        REQUIRE(b->call(extra_name, asks) == bad_pointer && a->call(extra_name, asks) == 0);
    const std::uint64_t theirs = made(b, exec_of(other));
    REQUIRE(theirs &&
            b->call(extra_name, extra(IBX_EXT_EXEC_UPDATE).u64(theirs).u64(graph)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(IBX_EXT_EXEC_UPDATE).u64(theirs).u64(other)) == 0);
    for (int of_node :
         {IBX_EXT_NODE_TYPE, IBX_EXT_NODE_DESTROY, IBX_EXT_GET_EVENT, IBX_EXT_GET_HOST,
          IBX_EXT_GET_CHILD, IBX_EXT_GET_MEMORY, IBX_EXT_GET_MEMSET, IBX_EXT_GET_COPY})
        REQUIRE(b->call(extra_name, extra(of_node).u64(node)) == bad_pointer);
    // GVirtuS's own handlers get NULL instead of another tenant's.
    REQUIRE(b->call("cudaGraphLaunch", Body().u64(exec).u64(0)) != 0);
    REQUIRE(b->call("cudaGraphDestroy", Body().u64(graph)) != 0);
    REQUIRE(untouched(a, memory, bytes));
    // The tenant's own are accepted; what GVirtuS's handler has destroyed no longer exists.
    REQUIRE(made(b, set(other, own)) && made(a, set(graph, memory, node)));
    REQUIRE(a->call("cudaGraphLaunch", Body().u64(exec).u64(0)) == 0);
    std::vector<char> set_bytes(64);
    REQUIRE(a->device_synchronize() == 0 && a->peek(memory, set_bytes.data(), 64));
    REQUIRE(set_bytes == std::vector<char>(64, 1));
    REQUIRE(a->call("cudaGraphDestroy", Body().u64(graph)) == 0);
    REQUIRE(a->call(extra_name, extra(IBX_EXT_NODE_TYPE).u64(node)) == bad_pointer);
    return HOLDS(a->call(extra_name, exec_of(graph)) == bad_pointer);
}

// The bodies of conditional nodes are their tenant's, as long as the graph exists.
bool bodies_of_ours()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    Remote *a = &alice.remote, *b = &bob.remote;
    REQUIRE(a->malloc(100) && b->malloc(100) && !a->get_last_error() && !b->get_last_error());
    const auto empty_in = [](std::uint64_t graph) {
        Body body = extra(IBX_EXT_NODE_EMPTY).u64(graph);
        body.put(static_cast<std::uint16_t>(0));
        return body;
    };
    const std::uint64_t graph = made(a, extra(IBX_EXT_GRAPH_CREATE).i32(0)),
                        handle = made(a, extra(IBX_EXT_GRAPH_CONDITION).u64(graph).i32(1).i32(1));
    const Body condition = extra(IBX_EXT_GRAPH_CONDITION).u64(graph).i32(1).i32(1);
    REQUIRE(b->call(extra_name, condition) == 1);
    const std::uint64_t theirs = made(b, extra(IBX_EXT_GRAPH_CREATE).i32(0));
    Body on_ours = extra(IBX_EXT_NODE_CONDITIONAL).u64(theirs);
    on_ours.put(static_cast<std::uint16_t>(0));
    REQUIRE(theirs && b->call(extra_name, on_ours.u64(handle).i32(0).i32(2)) == 1);
    for (int number : {IBX_EXT_NODE_CHILD, IBX_EXT_NODE_MOVED}) {
        Body part = extra(number).u64(theirs);
        part.put(static_cast<std::uint16_t>(0));
        REQUIRE(b->call(extra_name, part.u64(graph)) == 1);
    }
    Body node = extra(IBX_EXT_NODE_CONDITIONAL).u64(graph);
    node.put(static_cast<std::uint16_t>(0));
    REQUIRE(graph && handle && !a->call(extra_name, node.u64(handle).i32(0).i32(2)));
    std::uint64_t bodies[2];
    REQUIRE(a->out.size() >= 24);
    std::memcpy(bodies, a->out.data() + 8, 16);
    for (std::uint64_t body : bodies) {
        REQUIRE(body && made(a, empty_in(body)) && b->call(extra_name, empty_in(body)) == 1);
        REQUIRE(b->call(extra_name, extra(IBX_EXT_GRAPH_INSTANTIATE).u64(body).u64(0)) == 1);
        REQUIRE(b->call("cudaGraphDestroy", Body().u64(body)) != 0); // of NULL
        REQUIRE(a->call(extra_name, extra(IBX_EXT_GRAPH_DESTROY).u64(body)) == bad_pointer);
    }
    REQUIRE(made(a, empty_in(bodies[1])));
    REQUIRE(a->call(extra_name, extra(IBX_EXT_GRAPH_DESTROY).u64(graph)) == 0);
    for (std::uint64_t body : bodies)
        REQUIRE(a->call(extra_name, empty_in(body)) == bad_pointer);
    REQUIRE(a->call(extra_name, condition) == 1);
    return HOLDS(made(a, extra(IBX_EXT_GRAPH_CREATE).i32(0)));
}

// An event that other processes can open.
std::uint64_t event_of(Remote *remote)
{
    std::uint64_t event = 0;
    if (!remote->call("cudaEventCreateWithFlags", Body().i32(6)) && remote->out.size() == 16)
        std::memcpy(&event, remote->out.data() + 8, 8);
    return event;
}

std::vector<char> handle(Remote *remote, int number, std::uint64_t of)
{
    const bool good = !remote->call(extra_name, extra(number).u64(of));
    return good && remote->out.size() == 64 ? remote->out : std::vector<char>();
}

int open(Remote *remote, int number, const std::vector<char> &of)
{
    Body body = extra(number);
    append(&body.bytes, of.data(), of.size());
    return remote->call(extra_name, body);
}

// Handles for other processes are valid only for processes of the same tenant.
bool handles_of_ours()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), again(back, "alice"), bob(back, "bob");
    REQUIRE(again.remote.get_last_error() == 0); // from this a session learns the form of replies
    Remote *a = &alice.remote, *b = &bob.remote;
    const std::uint64_t memory = a->malloc(5000), own = b->malloc(5000);
    REQUIRE(memory && own && !a->get_last_error() && !b->get_last_error());
    const std::uint64_t event = event_of(a);
    const auto one = handle(a, IBX_EXT_IPC_MEMORY, memory + 17);
    const auto two = handle(a, IBX_EXT_IPC_EVENT, event);
    REQUIRE(!one.empty() && !two.empty() && one != two);
    REQUIRE(b->call(extra_name, extra(IBX_EXT_IPC_MEMORY).u64(memory)) == bad_pointer);
    REQUIRE(open(b, IBX_EXT_IPC_OPEN_MEMORY, one) == 400);
    REQUIRE(open(b, IBX_EXT_IPC_OPEN_EVENT, two) == 400);
    REQUIRE(open(&again.remote, IBX_EXT_IPC_OPEN_MEMORY, one) == 0);
    REQUIRE(again.remote.out.size() == 16 && !std::memcmp(again.remote.out.data(), &memory, 8));
    REQUIRE(open(&again.remote, IBX_EXT_IPC_OPEN_EVENT, two) == 0);
    REQUIRE(!std::memcmp(again.remote.out.data(), &event, 8));
    REQUIRE(open(a, IBX_EXT_IPC_OPEN_MEMORY, std::vector<char>(63)) == bad_pointer);
    REQUIRE(open(a, IBX_EXT_IPC_OPEN_MEMORY, std::vector<char>(64)) == 400);
    // The other tenant's memory, at an address that was this one's.
    REQUIRE(a->free(memory) == 0 && open(a, IBX_EXT_IPC_OPEN_MEMORY, one) == 400);
    REQUIRE(b->malloc(5000) == memory && open(a, IBX_EXT_IPC_OPEN_MEMORY, one) == 400);
    REQUIRE(handle(b, IBX_EXT_IPC_MEMORY, memory) != one);
    REQUIRE(a->call("cudaEventDestroy", Body().u64(event)) == 0);
    REQUIRE(open(a, IBX_EXT_IPC_OPEN_EVENT, two) == 400);
    return HOLDS(!handle(b, IBX_EXT_IPC_MEMORY, own).empty());
}

// Each launch brings the memory of a graph back, whoever has freed it meanwhile: it stays its
// tenant's.
bool memory_of_graphs()
{
    constexpr std::uint64_t n = 4096;
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    Remote *a = &alice.remote, *b = &bob.remote;
    const std::uint64_t own = b->malloc(n), stream = a->stream_create(1);
    REQUIRE(own && stream && !a->get_last_error());
    const std::uint64_t graph = made(a, extra(IBX_EXT_GRAPH_CREATE).i32(0));
    Body node = extra(IBX_EXT_NODE_ALLOC).u64(graph);
    node.put(static_cast<std::uint16_t>(0));
    std::uint64_t address = 0;
    REQUIRE(graph && a->call(extra_name, node.i32(0).u64(n)) == 0 && a->out.size() == 16);
    std::memcpy(&address, a->out.data() + 8, 8);
    REQUIRE(refused(b, address, own, 100) && a->free(address) == 0);
    REQUIRE(a->address("testMalloc", Body().u64(n)) == address); // as by a launch
    REQUIRE(refused(b, address, own, 100) && works(a, address, 100));
    // The same by a capture, which frees it as well.
    const Body of_stream = Body().u64(stream), begin = Body().u64(stream).i32(2);
    REQUIRE(a->call("cudaStreamBeginCapture", begin) == 0);
    const std::uint64_t captured = made(a, extra(IBX_EXT_MALLOC_ASYNC).u64(n).u64(stream));
    REQUIRE(captured);
    REQUIRE(a->call(extra_name, extra(IBX_EXT_FREE_ASYNC).u64(captured).u64(stream)) == 0);
    REQUIRE(a->call("cudaStreamEndCapture", of_stream) == 0);
    REQUIRE(a->address("testMalloc", Body().u64(n)) == captured);
    return HOLDS(refused(b, captured, own, 100) && works(a, captured, 100));
}

// Memory of a pool that a handler of GVirtuS's frees while it is being cleared, since another
// tenant may have used it.
bool pooled_memory_freed_at_once()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    Remote *a = &alice.remote;
    REQUIRE(a->malloc(100) && !a->get_last_error() && bob.remote.malloc(100));
    const std::uint64_t stream = a->stream_create(1);
    REQUIRE(stream && a->slow(100000));
    const std::uint64_t memory = made(a, extra(IBX_EXT_MALLOC_ASYNC).u64(4096).u64(stream));
    const Body freed = Body().u64(memory);
    REQUIRE(memory && a->call("cuMemFree", freed) == 0 && a->call("cuMemFree", freed) != 0);
    a->slow(0);
    REQUIRE(a->stream_synchronize(stream) == 0);
    return HOLDS(a->device_synchronize() == 0 && a->malloc(100));
}

// Requests that free arrays name graphs, executable graphs, events and memory: handlers get no
// array, since CUDA would follow it, and what exists is still known, and counts.
bool freed_as_arrays()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    Remote *a = &alice.remote;
    const std::uint64_t memory = a->malloc(5000);
    REQUIRE(memory && bob.remote.malloc(1) && !a->get_last_error());
    const std::uint64_t graph = made(a, extra(IBX_EXT_GRAPH_CREATE).i32(0));
    const std::uint64_t exec = made(a, extra(IBX_EXT_GRAPH_INSTANTIATE).u64(graph).u64(0));
    const std::uint64_t event = event_of(a);
    REQUIRE(graph && exec && event);
    const auto shared_memory = handle(a, IBX_EXT_IPC_MEMORY, memory),
               shared_event = handle(a, IBX_EXT_IPC_EVENT, event);
    REQUIRE(!shared_memory.empty() && !shared_event.empty());
    for (std::uint64_t value : {graph, exec, event, memory}) {
        REQUIRE(a->call("cudaFreeArray", Body().u64(value)) == 0);    // of NULL
        REQUIRE(a->call("cuArrayDestroy", Body().u64(value)) == 400); // of NULL
    }
    const std::uint64_t array = a->address("cuArrayCreate", Body());
    REQUIRE(array && bob.remote.call("cuArrayDestroy", Body().u64(array)) == 400);
    REQUIRE(a->call("cuArrayDestroy", Body().u64(array)) == 0);
    REQUIRE(a->call("cuArrayDestroy", Body().u64(array)) == 400);
    REQUIRE(open(a, IBX_EXT_IPC_OPEN_MEMORY, shared_memory) == 0);
    REQUIRE(open(a, IBX_EXT_IPC_OPEN_EVENT, shared_event) == 0);
    REQUIRE(a->call(extra_name, extra(IBX_EXT_EXEC_DESTROY).u64(exec)) == 0);
    return HOLDS(a->call(extra_name, extra(IBX_EXT_GRAPH_DESTROY).u64(graph)) == 0);
}

// If memory is counted, requests for memory that cannot be counted are refused.
bool extension_requests_counted()
{
    TenantsBackEnd back("rdma.device_memory : 1G\n");
    Client alice(back, "alice");
    REQUIRE(alice.remote.malloc(100) && !alice.remote.get_last_error());
    REQUIRE(alice.remote.call(extra_name, extra(20).u64(4096).u64(0)) == 801);
    const std::uint64_t graph = made(&alice.remote, extra(IBX_EXT_GRAPH_CREATE).i32(0));
    Body allocation = extra(IBX_EXT_NODE_ALLOC).u64(graph);
    allocation.put(static_cast<std::uint16_t>(0));
    REQUIRE(graph && alice.remote.call(extra_name, allocation.i32(0).u64(4096)) == 801);
    return HOLDS(alice.remote.call(extra_name, array_of_bytes(64)) == 801);
}

} // namespace

void check_tenants_requests()
{
    check("what comes with an error", answers_with_errors);
    check("extension requests", extension_requests);
    check("graphs", graphs_of_ours);
    check("bodies of conditional nodes", bodies_of_ours);
    check("memory of graphs", memory_of_graphs);
    check("memory of a pool that is freed before it is cleared", pooled_memory_freed_at_once);
    check("handles for other processes", handles_of_ours);
    check("the same where memory is counted", extension_requests_counted);
    check("things that are freed as arrays", freed_as_arrays);
}
