// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that the back end's plugin runs itself: gpu_calls_scene.h.
//
//   test_gpu_calls PLUGIN.so PROVIDER
#include "tests/gvirtus/gpu_calls_scene.h"
#include "tests/fixtures/patience.h"

#include <fcntl.h>
#include <sys/mman.h>

namespace
{

bool each_call()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(), event = gpu.event();
    REQUIRE(stream && event);
    REQUIRE(gpu.made("cudaEventRecord", Body().u64(event).u64(stream)) == 1);
    REQUIRE(gpu.made("cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0)) == 1);
    REQUIRE(gpu.made("cudaEventSynchronize", Body().u64(event)) == 1);
    REQUIRE(gpu.made("cudaEventQuery", Body().u64(event)) == 1);
    REQUIRE(gpu.made("cudaStreamSynchronize", Body().u64(stream)) == 1);
    REQUIRE(gpu.made("cudaStreamQuery", Body().u64(stream)) == 1);
    REQUIRE(gpu.made("cudaDeviceSynchronize", Body()) == 1);
    REQUIRE(gpu.made("cudaMalloc", Body().u64(5000)) == 1);
    std::uint64_t device = remote.malloc(5000);
    REQUIRE(device && remote.out.size() == 8);
    REQUIRE(gpu.made("cudaMemset", Body().u64(device).i32(7).u64(5000)) == 1);
    char got[5000] = {};
    REQUIRE(remote.peek(device, got, sizeof(got)) && got[0] == 7 && got[4999] == 7);
    REQUIRE(gpu.made("cudaFree", Body().u64(device)) == 1);
    // GVirtuS runs calls of another form, and all other calls.
    REQUIRE(gpu.made("cudaStreamSynchronize", Body().u64(stream).i32(0)) == 0);
    REQUIRE(gpu.made("cudaEventCreate", Body()) == 0);
    return true;
}

// All clients have one context on a device: a client may enable what another one has enabled, and
// keeps it when the first one disables it.
bool peers()
{
    Gpu gpu;
    Client first(gpu), second(gpu);
    const std::uint64_t near = gpu.remote.malloc(1000);
    REQUIRE(second.remote.set_device(1) == 0);
    const std::uint64_t far = second.remote.malloc(1000);
    const auto peer = [](Remote &remote, const char *what, bool flags) {
        const Body body = flags ? Body().i32(0).i32(0) : Body().i32(0);
        return remote.call(what, body);
    };
    REQUIRE(near && far && first.remote.set_device(1) == 0);
    for (Client *client : {&first, &second, &first}) {
        REQUIRE(peer(client->remote, "cudaDeviceEnablePeerAccess", true) == 0);
        REQUIRE(client->remote.get_last_error() == 0);
    }
    REQUIRE(peer(first.remote, "cudaDeviceDisablePeerAccess", false) == 0);
    REQUIRE(second.remote.call("cudaLaunchKernel",
                               kernel(IBX_DOUBLE_KERNEL, 1, 0, far, near, 1000)) == 0);
    REQUIRE(second.remote.device_synchronize() == 0);
    REQUIRE(peer(gpu.remote, "cudaDeviceEnablePeerAccess", true) == 101); // its own
    return HOLDS(gpu.remote.get_last_error() == 101 &&
                 peer(gpu.remote, "cudaDeviceDisablePeerAccess", false) == 705);
}

// A call with a device that does not exist leaves the selected device.
bool no_such_device()
{
    Gpu gpu;
    const std::vector<char> bytes(5000, 'd');
    const std::uint64_t device = gpu.remote.malloc(5000), handled = gpu.remote.handled();
    REQUIRE(device && gpu.remote.set_device(9) == 101);
    REQUIRE(gpu.remote.to_device(device, bytes.data(), bytes.size()) == 0);
    REQUIRE(gpu.remote.handled() == handled && gpu.made("cudaMalloc", Body().u64(50)) == 1);
    REQUIRE(gpu.remote.set_device(1) == 0 && gpu.remote.set_device(9) == 101);
    const std::uint64_t far = gpu.remote.malloc(5000);
    REQUIRE(far && gpu.remote.to_device(far, bytes.data(), bytes.size()) == 0);
    return HOLDS(gpu.remote.handled() == handled);
}

// If allocations are counted, GVirtuS's handlers run these calls.
bool counted()
{
    Gpu gpu("rdma.device_memory : 1G\n");
    REQUIRE(gpu.made("cudaDeviceSynchronize", Body()) == 1);
    REQUIRE(gpu.made("cudaMalloc", Body().u64(5000)) == 0);
    const std::uint64_t device = gpu.remote.malloc(5000);
    return HOLDS(device && gpu.made("cudaFree", Body().u64(device)) == 0);
}

// Errors are the runtime's, and so is the thread's last error.
bool errors()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t calls = remote.runtime_calls();
    REQUIRE(remote.stream_query(12345) == 400 && remote.runtime_calls() == calls + 1);
    REQUIRE(remote.get_last_error() == 400 && remote.get_last_error() == 0);
    REQUIRE(remote.free(12345) != 0 && remote.get_last_error() != 0);
    REQUIRE(remote.malloc(std::size_t{1} << 60) == 0 && remote.get_last_error() == 2);
    return true;
}

// Streams and events that nobody has made, or that are handles of another kind: CUDA takes a handle
// for an address in the back end.
bool made_up_handles()
{
    Gpu gpu;
    Client other(gpu);
    Remote &remote = gpu.remote;
    const std::uint64_t wild = 0x7fffdeadbee0, to = remote.malloc(4096);
    remote.get_last_error();
    const std::uint64_t stream = remote.stream_create(), event = gpu.event();
    REQUIRE(stream && event && to);
    const auto own = [&](const char *what, const Body &body) {
        return remote.call(what, body) == 400 && remote.get_last_error() == 400;
    };
    for (const std::uint64_t bad : {wild, event, stream + 8}) {
        REQUIRE(own("cudaStreamSynchronize", Body().u64(bad)));
        REQUIRE(own("cudaStreamQuery", Body().u64(bad)));
        REQUIRE(own("cudaEventRecord", Body().u64(event).u64(bad)));
        REQUIRE(own("cudaStreamWaitEvent", Body().u64(bad).u64(event).i32(0)));
        REQUIRE(own("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, bad, to, to, 10)));
    }
    for (const std::uint64_t bad : {wild, stream, event + 8, std::uint64_t{0}}) {
        REQUIRE(own("cudaEventRecord", Body().u64(bad).u64(stream)));
        REQUIRE(own("cudaStreamWaitEvent", Body().u64(stream).u64(bad).i32(0)));
        REQUIRE(own("cudaEventQuery", Body().u64(bad)));
        REQUIRE(own("cudaEventSynchronize", Body().u64(bad)));
    }
    // A session that has seen no reply yet: GVirtuS runs its calls.
    Client late(gpu);
    REQUIRE(late.remote.call("cudaEventQuery", Body().u64(wild)) == 400);
    Client first(gpu);
    REQUIRE(first.remote.call("cudaStreamSynchronize", Body().u64(wild).i32(0)) == 0);
    std::vector<char> bytes(4096, 'x');
    REQUIRE(remote.to_device_async(to, bytes.data(), 4096, wild) == 0);
    REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(wild).i32(0)) == 1);
    for (const std::uint64_t bad : {wild, stream, event, to}) {
        REQUIRE(remote.call("cudaGraphDestroy", Body().u64(bad)) == 1);
        REQUIRE(remote.call("cudaGraphLaunch", Body().u64(bad).u64(stream)) == 1);
    }
    // Other sessions of the client can name what one has made, until it is destroyed.
    REQUIRE(other.remote.stream_query(stream) == 0);
    REQUIRE(other.remote.call("cudaEventRecord", Body().u64(event).u64(stream)) == 0);
    REQUIRE(remote.call("cudaEventDestroy", Body().u64(event)) == 0);
    REQUIRE(other.remote.call("cudaEventRecord", Body().u64(event).u64(stream)) == 400);
    return HOLDS(remote.stream_synchronize(stream) == 0 && remote.stream_synchronize(1) == 0 &&
                 remote.stream_synchronize(2) == 0);
}

// Requests in which GVirtuS's handlers read a stream, an event or a graph: made-up ones become
// NULL, and nothing else changes.
bool made_up_for_handlers()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(), event = gpu.event(), none = 0,
                        wild = 0x7fffdeadbee0,
                        graph = remote.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0)),
                        exec = remote.address("ibxRuntime",
                                              number(IBX_EXT_GRAPH_INSTANTIATE).u64(graph).u64(0));
    const struct {
        const char *name;
        std::size_t n, at;
        std::uint64_t good;
        char first = 0; // byte: a length that is not 0
    } rows[] = {
        {"cudaIpcGetEventHandle", 80, 72, event},
        {"cudaIpcGetEventHandle", 16, 8, event},
        {"cudaMemcpyPeerAsync", 40, 32, stream},
        {"cuEventElapsedTime", 28, 12, event, 4},
        {"cuEventElapsedTime", 28, 20, event, 4},
        {"cuEventElapsedTime", 24, 8, event},
        {"cuEventElapsedTime", 24, 16, event},
        {"cuEventElapsedTime", 60, 8, event}, // more behind what the handler reads
        {"cudaEventElapsedTime", 60, 16, event},
        {"cudaEventElapsedTime", 60, 12, event, 1},
        {"cudaEventElapsedTime", 28, 20, event, 4},
        {"cuLaunchGridAsync", 24, 16, stream},
        {"cuMemsetD32Async", 28, 20, stream},
        {"cuStreamWriteValue32", 24, 0, stream},
        {"cudaGraphGetNodes", 16, 0, graph},
        {"cudaGraphExecDestroy", 8, 0, exec},
    };
    REQUIRE(stream && event && graph && exec);
    for (const auto &row : rows) {
        for (const std::uint64_t handle : {wild, row.good}) {
            Body body;
            body.bytes.assign(row.n, 0);
            body.bytes[0] = row.first;
            std::memcpy(&body.bytes[row.at], &handle, 8);
            std::vector<char> expected = body.bytes, got(row.n);
            std::memcpy(&expected[row.at], handle == wild ? &none : &handle, 8);
            REQUIRE(remote.call(row.name, body) == 0 && remote.out.size() == row.n + 8);
            std::memcpy(got.data(), remote.out.data() + 8, row.n);
            if (got != expected)
                std::fprintf(stderr, "%s, byte %zu\n", row.name, row.at);
            REQUIRE(got == expected);
        }
    }
    return true;
}

// A level goes with its mipmapped array: GVirtuS's handler does not free one, either.
bool levels_for_handlers()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Body make = number(IBX_EXT_MALLOC_MIPMAP).i32(32).i32(0).i32(0).i32(0).i32(2);
    const std::uint64_t mipmap =
                            remote.address("ibxRuntime", make.u64(16).u64(4).u64(0).i32(2).i32(0)),
                        level = remote.address("ibxRuntime",
                                               number(IBX_EXT_MIPMAP_LEVEL).u64(mipmap).i32(1));
    REQUIRE(mipmap && level && remote.call("cudaFreeArray", Body().u64(level)) == 0); // of NULL
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_CHANNEL_DESC).u64(level)) == 0);
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_FREE_MIPMAP).u64(mipmap)) == 0);
    return HOLDS(remote.call("ibxRuntime", number(IBX_EXT_CHANNEL_DESC).u64(level)) == 1);
}

// A client says that memory of the back end itself is the device's: here, of the same program.
bool memory_of_the_back_end()
{
    static char own[1 << 20];
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t memory = remote.malloc(4096),
                        own_at = reinterpret_cast<std::uintptr_t>(own);
    Body create = number(IBX_EXT_GRAPH_CREATE);
    const std::uint64_t graph = remote.address("ibxRuntime", create.i32(0)),
                        queue = remote.address("ibxRuntime", number(IBX_EXT_HOST_OPEN));
    REQUIRE(memory && graph && queue);
    const auto planes = [](Body body, std::uint64_t from, std::uint64_t to, int kind) {
        for (const std::uint64_t value :
             {std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, from,
              std::uint64_t{100}, std::uint64_t{100}, std::uint64_t{1}, std::uint64_t{0},
              std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, to, std::uint64_t{100},
              std::uint64_t{100}, std::uint64_t{1}, std::uint64_t{100}, std::uint64_t{1},
              std::uint64_t{1}})
            body.u64(value);
        return body.i32(kind);
    };
    const auto node = [&](unsigned what) {
        Body body = number(what).u64(graph);
        body.bytes.insert(body.bytes.end(), 2, 0); // behind none
        return body;
    };
    const auto slot = [&](std::uint64_t function) {
        return node(IBX_EXT_NODE_COPY).u64(queue).u64(function);
    };
    const struct {
        std::uint64_t at;
        int rc;
    } there[] = {{own_at, 1}, {memory, 0}};
    for (const auto &t : there) {
        REQUIRE(remote.call("ibxRuntime", planes(slot(1), 0, t.at, H2D)) == t.rc);
        REQUIRE(remote.call("ibxRuntime", planes(slot(2), t.at, 0, D2H)) == t.rc);
        REQUIRE(remote.call("ibxRuntime",
                            planes(node(IBX_EXT_NODE_MEMCPY), t.at, memory + 100, D2D)) == t.rc);
        REQUIRE(remote.call("ibxRuntime",
                            planes(node(IBX_EXT_NODE_MEMCPY), memory + 100, t.at, D2D)) == t.rc);
        REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_MEMSET).u64(t.at).i32(7).u64(8).u64(0)) ==
                t.rc);
    }
    // A range that ends there.
    return HOLDS(
        remote.call("ibxRuntime",
                    number(IBX_EXT_MEMSET).u64(memory).i32(7).u64(own_at - memory + 8).u64(0)) ==
        1);
}

// Wrong numbers, lengths and handles: CUDA sees none of these, and the next call works as before. A
// wrong handle that reached CUDA would end the back end.
bool malformed()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    for (unsigned number = 0; number < IBX_EXT_REQUESTS + 3; number++) {
        for (unsigned n = 0; n < 200; n += n < 60 ? 1 : 7) {
            Body body;
            body.bytes = random_bytes(n + 2, number * 1000 + n);
            body.bytes[0] = static_cast<char>(number);
            body.bytes[1] = 0;
            REQUIRE(remote.call("ibxRuntime", body) != 999);
        }
    }
    Body unknown, none;
    unknown.bytes = {static_cast<char>(200), 0};
    REQUIRE(remote.call("ibxRuntime", unknown) == 801 && remote.call("ibxRuntime", none) == 801);
    remote.get_last_error();
    std::uint64_t device = remote.malloc(100);
    return HOLDS(device && remote.free(device) == 0);
}

std::uint64_t array_of_bytes(Remote &remote, std::uint64_t n)
{
    return remote.address("ibxRuntime",
                          number(8).i32(8).i32(0).i32(0).i32(0).i32(1).u64(n).u64(0).u64(0).i32(0));
}

// A client guesses where the memory of its array is, and frees that: with CUDA an array's memory
// has no address. So the array is there, and is freed once.
bool memory_of_an_array()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    char got;
    const std::uint64_t memory = remote.malloc(100);
    REQUIRE(memory && remote.free(memory) == 0 && !remote.peek(memory, &got, 1));
    const std::uint64_t array = array_of_bytes(remote, 100);
    REQUIRE(array && remote.peek(memory, &got, 1));
    REQUIRE(remote.call("ibxRuntime", number(22).u64(memory).u64(0)) == 1); // cudaFreeAsync
    REQUIRE(remote.free(memory) == 1 && remote.peek(memory, &got, 1));
    REQUIRE(remote.call("ibxRuntime", number(9).u64(array)) == 0); // cudaFreeArray
    return HOLDS(!remote.peek(memory, &got, 1));
}

// A reset frees arrays: their handles are then addresses of nothing.
bool arrays_after_reset()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t array = array_of_bytes(remote, 100);
    REQUIRE(array);
    REQUIRE(remote.call("ibxRuntime", number(15).u64(array)) == 0); // cudaGetChannelDesc
    REQUIRE(remote.call("cudaDeviceReset", Body()) == 0);
    return HOLDS(remote.call("ibxRuntime", number(15).u64(array)) == 1);
}

// A client that resets the device gives back only what is its own. Others go on: natively they are
// processes, with contexts of their own.
bool reset_beside_others()
{
    Gpu gpu;
    Client other(gpu, of_another_program), early(gpu, of_another_program);
    const std::vector<char> bytes = random_bytes(4096, 11);
    std::vector<char> got(4096);
    const std::uint64_t memory = gpu.remote.malloc(4096), stream = gpu.remote.stream_create();
    REQUIRE(memory && stream && gpu.remote.to_device(memory, bytes.data(), 4096) == 0);
    REQUIRE(early.remote.reset() == 0); // its first request
    const unsigned long events = gpu.remote.stats().events;
    other.remote.get_last_error();
    const std::uint64_t theirs = other.remote.malloc(4096),
                        pooled = other.remote.address("ibxRuntime", number(20).u64(4096).u64(0));
    REQUIRE(theirs && pooled && other.remote.call("cudaEventCreate", Body()) == 0);
    REQUIRE(other.remote.reset() == 0 && other.remote.get_last_error() == 0);
    REQUIRE(!gpu.remote.peek(theirs, got.data(), 1) && !gpu.remote.peek(pooled, got.data(), 1));
    REQUIRE(gpu.remote.stats().events == events);
    REQUIRE(gpu.remote.from_device(got.data(), memory, 4096) == 0 && got == bytes);
    REQUIRE(gpu.remote.to_device_async(memory, bytes.data(), 4096, stream) == 0);
    REQUIRE(gpu.remote.stream_synchronize(stream) == 0);
    // Memory that one client has freed, and another has got since, is the other's.
    REQUIRE(other.remote.free(other.remote.malloc(1000)) == 0);
    const std::uint64_t again = gpu.remote.malloc(1000);
    REQUIRE(again && other.remote.reset() == 0 && gpu.remote.peek(again, got.data(), 1000));
    REQUIRE(other.remote.malloc(100) && other.remote.reset() == 0);
    // An error of the client's earlier work keeps nothing back: the reset was made.
    const std::uint64_t before_error = other.remote.malloc(1000);
    other.remote.inject("cuCtxSynchronize", 1, 2, false);
    REQUIRE(before_error && other.remote.reset() == 0 && other.remote.get_last_error() == 0);
    REQUIRE(!gpu.remote.peek(before_error, got.data(), 1));
    // A reset that comes in pieces, and would go to GVirtuS.
    char name[] = "cudaDeviceReset", length[8] = {}, reply[20];
    other.over->Write(name, 8);
    other.over->Sync();
    other.over->Write(name + 8, sizeof(name) - 8);
    other.over->Write(length, sizeof(length));
    other.over->Sync();
    REQUIRE(other.over->Read(reply, sizeof(reply)) == sizeof(reply) && reply[0] == -1);
    return HOLDS(gpu.remote.peek(again, got.data(), 1000) && other.remote.reset() == 0);
}

// A client begins a reset, alone, and does not go on: others are served all the same.
bool reset_that_stays()
{
    Gpu gpu;
    char name[] = "cudaDeviceReset", length[8] = {}, reply[20];
    gpu.over->Write(name, sizeof(name));
    gpu.over->Sync();
    gpu.back.settle();
    Client other(gpu, of_another_program);
    other.remote.get_last_error();
    const std::uint64_t memory = other.remote.malloc(100);
    gpu.over->Write(length, sizeof(length));
    gpu.over->Sync();
    REQUIRE(gpu.over->Read(reply, sizeof(reply)) == sizeof(reply) && reply[0] == -1);
    return HOLDS(memory && other.remote.free(memory) == 0 && gpu.remote.reset() == 0);
}

// All connections of a program's threads are one client: it is alone, and CUDA's own reset is
// called.
bool reset_by_one_of_several_threads()
{
    Gpu gpu;
    Client thread(gpu);
    char byte;
    thread.remote.get_last_error();
    const std::uint64_t memory = thread.remote.malloc(4096);
    const std::uint64_t calls = gpu.remote.runtime_calls();
    REQUIRE(memory && gpu.remote.reset() == 0 && gpu.remote.runtime_calls() == calls);
    REQUIRE(!gpu.remote.peek(memory, &byte, 1));
    Client other(gpu, of_another_program);
    const std::uint64_t theirs = (other.remote.get_last_error(), other.remote.malloc(4096)),
                        mine = thread.remote.malloc(4096);
    REQUIRE(theirs && mine && gpu.remote.reset() == 0);
    return HOLDS(!gpu.remote.peek(mine, &byte, 1) && gpu.remote.peek(theirs, &byte, 1));
}

// A conditional node with a made-up handle, or one whose graph was destroyed: CUDA would take it
// for something else.
bool conditions_that_are_none()
{
    Gpu gpu;
    Client other(gpu);
    Remote &remote = gpu.remote;
    const auto create = [&] {
        return remote.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
    };
    const auto node = [&](std::uint64_t graph, std::uint64_t handle) {
        Body body = number(IBX_EXT_NODE_CONDITIONAL).u64(graph);
        body.bytes.insert(body.bytes.end(), 2, 0); // behind none
        return remote.call("ibxRuntime", body.u64(handle).i32(0).i32(1));
    };
    const std::uint64_t graph = create(), gone = create();
    const auto condition = [&](std::uint64_t of) {
        return remote.address("ibxRuntime", number(IBX_EXT_GRAPH_CONDITION).u64(of).i32(1).i32(1));
    };
    const std::uint64_t good = condition(graph), of_gone = condition(gone);
    REQUIRE(graph && gone && good && of_gone);
    REQUIRE(node(graph, 0) == 1 && node(graph, 0x7fffdeadbeef) == 1 && node(graph, graph) == 1);
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_GRAPH_DESTROY).u64(gone)) == 0);
    REQUIRE(node(graph, of_gone) == 1);
    REQUIRE(node(create(), good) == 1); // it ends with its own graph
    return HOLDS(node(graph, good) == 0);
}

// A session uses what another one gives back: CUDA does not get handles that no longer exist.
bool used_and_given_back()
{
    Gpu gpu;
    Client uses(gpu), destroys(gpu);
    for (Client *client : {&uses, &destroys})
        REQUIRE(client->remote.get_last_error() == 0 && client->remote.set_device(0) == 0);
    std::uint64_t pool = 0, made = 0, inside = 0;
    Body create = number(IBX_EXT_POOL_CREATE);
    create.i32(0).u64(0).bytes.insert(create.bytes.end(), 2, 0);
    REQUIRE((pool = gpu.remote.address("ibxRuntime", create)));
    // The double's call ends when the attribute, which it sets, is 0 again.
    Calling using_it(gpu.back, [&] {
        made = uses.remote.address("ibxRuntime",
                                   number(IBX_EXT_MALLOC_FROM_POOL).u64(7878).u64(pool).u64(0));
        return made ? 0 : 1;
    });
    const Body get = number(IBX_EXT_POOL_GET).u64(pool).i32(6);
    while (!inside && gpu.remote.call("ibxRuntime", get) == 0)
        inside = gpu.remote.address("ibxRuntime", get);
    Calling destroying(gpu.back, [&] {
        return destroys.remote.call("ibxRuntime", number(IBX_EXT_POOL_DESTROY).u64(pool));
    });
    destroying.settle();
    const bool waited = !destroying.returned();
    const int ended =
        gpu.remote.call("ibxRuntime", number(IBX_EXT_POOL_SET).u64(pool).i32(6).u64(0));
    REQUIRE(inside && waited && ended == 0 && using_it.result() == 0 && destroying.result() == 0);
    return HOLDS(gpu.remote.call("ibxRuntime", get) == 1 && uses.remote.free(made) == 0);
}

// ... nor what a handler of GVirtuS's has given back.
bool given_back_by_a_handler()
{
    Gpu gpu;
    Body create = number(IBX_EXT_POOL_CREATE);
    create.i32(0).u64(0).bytes.insert(create.bytes.end(), 2, 0);
    const std::uint64_t pool = gpu.remote.address("ibxRuntime", create);
    const Body get = number(IBX_EXT_POOL_GET).u64(pool).i32(6);
    REQUIRE(pool && gpu.remote.call("ibxRuntime", get) == 0);
    REQUIRE(gpu.remote.call("cudaMemPoolDestroy", Body().u64(pool)) == 0);
    REQUIRE(gpu.remote.call("ibxRuntime", get) == 1);
    return HOLDS(gpu.remote.call("cudaMemPoolDestroy", Body().u64(pool)) == 1);
}

// Many at once: replies leave together, and in order.
bool many()
{
    Gpu gpu;
    const std::uint64_t stream = gpu.remote.stream_create(), to = gpu.remote.malloc(4096),
                        from = gpu.remote.malloc(4096), event = gpu.event();
    auto bytes = random_bytes(4096, 6);
    REQUIRE(gpu.remote.to_device(from, bytes.data(), 4096) == 0);
    for (unsigned i = 0; i < 2000; i++) {
        const std::uint64_t at = i % 512;
        REQUIRE(gpu.remote.call("cudaLaunchKernel",
                                kernel(IBX_DOUBLE_KERNEL, 32, stream, to + at, from + at, 8)) == 0);
        REQUIRE(gpu.remote.call("cudaEventRecord", Body().u64(event).u64(stream)) == 0);
        if (i % 100 == 99)
            REQUIRE(gpu.remote.device_synchronize() == 0);
    }
    std::vector<char> got(519);
    REQUIRE(gpu.remote.peek(to, got.data(), got.size()));
    return HOLDS(!std::memcmp(got.data(), bytes.data(), got.size()));
}

// Like CUDA, the back end has no full table of streams or memory, and what is given back is gone.
bool as_much_as_it_likes()
{
    Gpu gpu;
    std::vector<std::uint64_t> streams, memory;
    const ibx_double_stats before = gpu.remote.stats();
    for (unsigned i = 0; i < 300; i++) {
        streams.push_back(gpu.remote.stream_create(i % 2));
        memory.push_back(gpu.remote.malloc(16));
        REQUIRE(streams.back() && memory.back());
    }
    for (unsigned i = 0; i < 300; i++) {
        REQUIRE(gpu.remote.call("cudaStreamDestroy", Body().u64(streams[i])) == 0);
        REQUIRE(gpu.remote.free(memory[i]) == 0);
    }
    const ibx_double_stats now = gpu.remote.stats();
    return HOLDS(now.streams == before.streams && now.allocations == before.allocations);
}

// A client that asks again and again does not fill the back end's log.
bool what_is_not_mapped_is_said_once()
{
    const int before = dup(STDERR_FILENO), log = memfd_create("log", 0);
    REQUIRE(before >= 0 && log >= 0 && !fcntl(log, F_SETFL, O_APPEND));
    dup2(log, STDERR_FILENO);
    auto gpu = std::make_unique<Gpu>("rdma.log : warn\n");
    dup2(before, STDERR_FILENO);
    close(before);
    for (std::uint64_t i = 1; i <= 50; i++)
        REQUIRE(gpu->remote.call("ibxRuntime",
                                 number(IBX_EXT_HOST_MAP).u64(i << 12).u64(4096).u64(0)) == 801);
    gpu.reset();
    std::vector<char> said(1u << 16);
    said.resize(static_cast<std::size_t>(pread(log, said.data(), said.size(), 0)));
    close(log);
    const std::string text(said.begin(), said.end());
    const std::size_t first = text.find("page-locked memory at");
    return first != text.npos && text.find("page-locked memory at", first + 1) == text.npos;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_gpu_calls PLUGIN.so PROVIDER\n");
        return 2;
    }
    scene_open(argv[1], argv[2]);
    check("each call", each_call);
    check("access to peers", peers);
    check("a device that there is not", no_such_device);
    check("memory that is counted", counted);
    check("errors", errors);
    check("handles of streams and events that were made up", made_up_handles);
    check("levels of mipmapped arrays", levels_for_handlers);
    check("... in requests that GVirtuS runs", made_up_for_handlers);
    check("memory of the back end's own", memory_of_the_back_end);
    check("extension requests that are malformed", malformed);
    check("page-locked memory that is not mapped", what_is_not_mapped_is_said_once);
    check("memory of an array", memory_of_an_array);
    check("arrays after a reset", arrays_after_reset);
    check("a reset beside other clients", reset_beside_others);
    check("... by one of a program's threads", reset_by_one_of_several_threads);
    check("... that stays", reset_that_stays);
    check("conditions that are none", conditions_that_are_none);
    check("what one uses and another gives back", used_and_given_back);
    check("... or by a handler of GVirtuS's", given_back_by_a_handler);
    check_calls_math();
    check_calls_dnn();
    check_calls_nccl();
    check_calls_apart();
    check_calls_mapped();
    check_calls_beside();
    check_calls_captures();
    check_calls_clears();
    check_calls_ends();
    check_calls_waits();
    check_calls_graphs();
    check_calls_kernels();
    check("many at once", many);
    check("many streams and allocations", as_much_as_it_likes);
    return scene_close();
}
