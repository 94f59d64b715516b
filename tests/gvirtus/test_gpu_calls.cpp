// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Short calls that the back end's plugin takes out of the stream and runs by CUDA's runtime, on
// doubles of the runtime and the driver. GVirtuS's handlers run them by the driver alone.
//
//   test_gpu_calls PLUGIN.so PROVIDER
#include "frontend-glue/session/extra.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

// The runtime is there, and the forms of replies are known.
struct Gpu {
    BackEnd back;
    std::shared_ptr<Communicator> over;
    Remote remote;

    explicit Gpu(const std::string &more = "")
        : back(more, [](auto listening) { cuda_back_end_child(listening, true); }),
          over(connected(back.port)), remote(over.get())
    {
        remote.get_last_error();
        remote.set_device(0);
        remote.free(remote.malloc(100));
    }
    // How many calls of the runtime that one makes; -1: it has failed.
    int made(const char *name, const Body &body)
    {
        const std::uint64_t before = remote.runtime_calls();
        return remote.call(name, body) ? -1 : static_cast<int>(remote.runtime_calls() - before);
    }
    std::uint64_t event()
    {
        std::uint64_t made = 0;
        if (!remote.call("cudaEventCreate", Body()) && remote.out.size() == 16)
            std::memcpy(&made, remote.out.data() + 8, 8);
        return made;
    }
};

// One more client.
struct Client {
    std::shared_ptr<Communicator> over;
    Remote remote;
    explicit Client(const Gpu &gpu) : over(connected(gpu.back.port)), remote(over.get()) {}
    Client(const Gpu &gpu, const char *options)
        : over(connected(gpu.back.port, options)), remote(over.get())
    {
    }
};

// What the back end does not know to be of this process, and so takes for another program's.
constexpr const char *of_another_program = "rdma.resume_seconds : 0\n";

Body kernel(std::uint64_t function, unsigned threads, std::uint64_t stream, std::uint64_t to,
            std::uint64_t from, std::uint64_t n)
{
    Body body, arguments;
    arguments.u64(to).u64(from).u64(n);
    body.u64(function).i32(1).i32(1).i32(1).i32(static_cast<int>(threads)).i32(1).i32(1).u64(0);
    return body.u64(stream).host(arguments.bytes.data(), arguments.bytes.size());
}

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
    // Of another form, and what is none of these, GVirtuS runs.
    REQUIRE(gpu.made("cudaStreamSynchronize", Body().u64(stream).i32(0)) == 0);
    REQUIRE(gpu.made("cudaEventCreate", Body()) == 0);
    return true;
}

// All clients have one context on a device: what one has enabled another one may enable, too, and
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
    return gpu.remote.get_last_error() == 101 &&
           peer(gpu.remote, "cudaDeviceDisablePeerAccess", false) == 705;
}

// Where allocations are counted, that is done on GVirtuS's way.
bool counted()
{
    Gpu gpu("rdma.device_memory : 1G\n");
    REQUIRE(gpu.made("cudaDeviceSynchronize", Body()) == 1);
    REQUIRE(gpu.made("cudaMalloc", Body().u64(5000)) == 0);
    const std::uint64_t device = gpu.remote.malloc(5000);
    return device && gpu.made("cudaFree", Body().u64(device)) == 0;
}

// Errors are the runtime's, and so is the thread's last one.
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

// Numbers, lengths and handles that nobody has sent: CUDA sees none of it, and the next call is as
// before. A handle that reached it would end the back end.
bool malformed()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    for (unsigned number = 0; number < IBX_EXTRAS + 3; number++) {
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
    return device && remote.free(device) == 0;
}

// A request of our own: which function of the runtime it is; its arguments come behind it.
Body number(unsigned n)
{
    Body body;
    body.bytes = {static_cast<char>(n), 0};
    return body;
}

// A reset takes arrays away: their handles are addresses of nothing then.
bool arrays_after_reset()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Body made = number(8); // cudaMalloc3DArray: 8 bits, 100 bytes, no flags
    made.i32(8).i32(0).i32(0).i32(0).i32(1).u64(100).u64(0).u64(0).i32(0);
    std::uint64_t array = 0;
    REQUIRE(remote.call("ibxRuntime", made) == 0 && remote.out.size() == 8);
    std::memcpy(&array, remote.out.data(), 8);
    REQUIRE(remote.call("ibxRuntime", number(15).u64(array)) == 0); // cudaGetChannelDesc
    REQUIRE(remote.call("cudaDeviceReset", Body()) == 0);
    return remote.call("ibxRuntime", number(15).u64(array)) == 1;
}

// A client that resets the device gives back what is its own. Others go on: natively they are
// processes, and their contexts are not one.
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
    // What one has freed, and another has got since, is the other's.
    REQUIRE(other.remote.free(other.remote.malloc(1000)) == 0);
    const std::uint64_t again = gpu.remote.malloc(1000);
    REQUIRE(again && other.remote.reset() == 0 && gpu.remote.peek(again, got.data(), 1000));
    REQUIRE(other.remote.malloc(100) && other.remote.reset() == 0);
    // One that comes in pieces, and would be GVirtuS's.
    char name[] = "cudaDeviceReset", length[8] = {}, reply[20];
    other.over->Write(name, 8);
    other.over->Sync();
    other.over->Write(name + 8, sizeof(name) - 8);
    other.over->Write(length, sizeof(length));
    other.over->Sync();
    REQUIRE(other.over->Read(reply, sizeof(reply)) == sizeof(reply) && reply[0] == -1);
    return gpu.remote.peek(again, got.data(), 1000) && other.remote.reset() == 0;
}

// All connections of a program's threads are one client: it is alone, and the reset is CUDA's.
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
    return !gpu.remote.peek(mine, &byte, 1) && gpu.remote.peek(theirs, &byte, 1);
}

// A conditional node by a handle that was made up, or whose graph is no more: CUDA takes it for
// what it is not.
bool conditions_that_are_none()
{
    Gpu gpu;
    Client other(gpu);
    Remote &remote = gpu.remote;
    const auto create = [&] {
        return remote.address("ibxRuntime", number(IBX_EXTRA_GRAPH_CREATE).i32(0));
    };
    const auto node = [&](std::uint64_t graph, std::uint64_t handle) {
        Body body = number(IBX_EXTRA_NODE_CONDITIONAL).u64(graph);
        body.bytes.insert(body.bytes.end(), 2, 0); // behind none
        return remote.call("ibxRuntime", body.u64(handle).i32(0).i32(1));
    };
    const std::uint64_t graph = create(), gone = create();
    const auto condition = [&](std::uint64_t of) {
        return remote.address("ibxRuntime",
                              number(IBX_EXTRA_GRAPH_CONDITION).u64(of).i32(1).i32(1));
    };
    const std::uint64_t good = condition(graph), of_gone = condition(gone);
    REQUIRE(graph && gone && good && of_gone);
    REQUIRE(node(graph, 0) == 1 && node(graph, 0x7fffdeadbeef) == 1 && node(graph, graph) == 1);
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXTRA_GRAPH_DESTROY).u64(gone)) == 0);
    REQUIRE(node(graph, of_gone) == 1);
    return node(graph, good) == 0;
}

// One session uses what another one gives back: CUDA does not get what is no more.
bool used_and_given_back()
{
    Gpu gpu;
    Client other(gpu);
    other.remote.get_last_error();
    other.remote.set_device(0);
    std::uint64_t pool = 0, made = 0, inside = 0;
    Body create = number(IBX_EXTRA_POOL_CREATE);
    create.i32(0).u64(0).bytes.insert(create.bytes.end(), 2, 0);
    REQUIRE((pool = gpu.remote.address("ibxRuntime", create)));
    std::thread using_it([&] {
        const Body stays = number(IBX_EXTRA_MALLOC_FROM_POOL).u64(4096).u64(pool).u64(78);
        made = other.remote.address("ibxRuntime", stays);
    });
    const Body get = number(IBX_EXTRA_POOL_GET).u64(pool).i32(6);
    while (!inside && gpu.remote.call("ibxRuntime", get) == 0)
        inside = gpu.remote.address("ibxRuntime", get);
    const int destroyed = gpu.remote.call("ibxRuntime", number(IBX_EXTRA_POOL_DESTROY).u64(pool));
    using_it.join();
    REQUIRE(inside && made && destroyed == 0);
    return gpu.remote.call("ibxRuntime", get) == 1 && other.remote.free(made) == 0;
}

// A function of the client's is called once: in no stream whose work becomes a graph, that of the
// thread included.
bool functions_in_captures()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t queue = 0;
    REQUIRE(remote.call("ibxRuntime", number(28)) == 0 && remote.out.size() == 8);
    std::memcpy(&queue, remote.out.data(), 8);
    remote.stream_query(2); // the thread's, which begins to be one
    for (std::uint64_t stream : {remote.stream_create(), std::uint64_t{2}}) {
        Body add = number(29).u64(stream).u64(queue).u64(1);
        add.bytes.push_back(0);
        remote.capture(stream);
        REQUIRE(remote.call("ibxRuntime", add) == 801);
        remote.capture(0);
    }
    return true;
}

// A copy from or to the host in a capture would be one with memory that GVirtuS's handler frees.
bool copies_in_captures()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(), other = remote.stream_create(),
                        device = remote.malloc(8192);
    std::vector<char> bytes(4096, 'a'), back(4096);
    REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)) == 0);
    remote.capture(stream);
    REQUIRE(remote.to_device_async(device, bytes.data(), 4096, stream) != 0);
    REQUIRE(remote.from_device_async(back.data(), device, 4096, stream) != 0);
    REQUIRE(remote.on_device_async(device, device + 4096, 4096, stream) == 0);
    REQUIRE(remote.to_device_async(device, bytes.data(), 4096, other) == 0);
    remote.capture(0);
    REQUIRE(remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(remote.from_device_async(back.data(), device, 4096, stream) == 0);
    return back == bytes;
}

// A number that one of our own requests has answered.
std::uint64_t answer(Remote &remote, const char *name, const Body &body)
{
    std::uint64_t value = ~0ull;
    if (!remote.call(name, body) && remote.out.size() >= sizeof(value))
        std::memcpy(&value, remote.out.data(), sizeof(value));
    return value;
}

// The function that is to be called; 0: none yet. `over` was.
std::uint64_t ask(Remote &remote, std::uint64_t over)
{
    Body body = number(IBX_EXTRA_HOST_ASK).u64(over);
    body.bytes.push_back(0);
    return answer(remote, IBX_EXTRA_WORK, body);
}

// A client that waits until its graph calls, makes a copy then, in a stream that waits for nothing
// else, and lets the graph go on.
bool serve(Remote &remote, std::uint64_t to, std::vector<char> &bytes)
{
    std::uint64_t called = 0;
    while (!called)
        called = ask(remote, 0);
    const std::uint64_t stream = remote.stream_create(1);
    return called == 1 && remote.to_device_async(to, bytes.data(), bytes.size(), stream) == 0 &&
           remote.stream_synchronize(stream) == 0 && ask(remote, called) != ~0ull;
}

// A graph that calls a function of `calls`, in a stream of the first client's, and a client beside.
struct Waiting {
    Gpu gpu;
    Client calls, other;
    std::uint64_t stream, to, queue, exec = 0;
    std::vector<char> bytes = random_bytes(4096, 7);

    explicit Waiting(const std::string &more = "") : gpu(more), calls(gpu), other(gpu)
    {
        for (Client *client : {&calls, &other}) {
            client->remote.get_last_error();
            client->remote.set_device(0);
        }
        stream = gpu.remote.stream_create();
        to = calls.remote.malloc(4096);
        queue = answer(calls.remote, "ibxRuntime", number(IBX_EXTRA_HOST_OPEN));
        exec = graph([this](Body node) { return node.u64(queue).u64(1); });
    }
    // What can be launched of a graph with one node, a function or none.
    template <typename F> std::uint64_t graph(const F &function)
    {
        Remote &remote = gpu.remote;
        const std::uint64_t made =
            answer(remote, "ibxRuntime", number(IBX_EXTRA_GRAPH_CREATE).i32(0));
        Body node = number(IBX_EXTRA_NODE_HOST).u64(made);
        node.bytes.insert(node.bytes.end(), 2, 0); // behind no other
        if (remote.call("ibxRuntime", function(node)) != 0)
            return 0;
        const Body body = number(IBX_EXTRA_GRAPH_INSTANTIATE).u64(made).u64(0);
        const std::uint64_t exec_made = answer(remote, "ibxRuntime", body);
        return exec_made == ~0ull ? 0 : exec_made;
    }
    bool launch() { return gpu.remote.call("cudaGraphLaunch", Body().u64(exec).u64(stream)) == 0; }
    bool serve() { return ::serve(calls.remote, to, bytes); }
};

// A client gives memory back while another one's graph waits for a copy of its own client. The
// driver keeps all others out while it gives memory back, and waits for graphs.
bool freed_beside_graphs(const std::string &more)
{
    Waiting w(more);
    const std::uint64_t memory = w.other.remote.malloc(4096);
    REQUIRE(w.exec && w.launch());
    const unsigned long before = w.gpu.remote.stats().waits;
    int code = -1;
    std::thread freeing([&] { code = w.other.remote.free(memory); });
    while (w.gpu.remote.stats().waits == before)
        usleep(1000);
    const bool again = w.launch(); // it is not kept out for ever
    const bool served = w.serve() && w.serve();
    freeing.join();
    REQUIRE(again && served && code == 0);
    return w.launch() && w.serve() && w.gpu.remote.stream_synchronize(w.stream) == 0;
}

// The same of a copy of few bytes, which waits for the graph.
bool copied_beside_graphs(bool to_device)
{
    Waiting w;
    const std::uint64_t memory = w.other.remote.malloc(4096);
    char bytes[100] = {};
    auto copy = [&] {
        return to_device ? w.other.remote.to_device(memory, bytes, sizeof(bytes))
                         : w.other.remote.from_device(bytes, memory, sizeof(bytes));
    };
    REQUIRE(copy() == 0 && w.exec && w.launch());
    const ibx_double_stats before = w.gpu.remote.stats();
    int code = -1;
    std::thread copying([&] { code = copy(); });
    for (ibx_double_stats now = before;
         now.copies_async + now.copies_sync == before.copies_async + before.copies_sync;
         now = w.gpu.remote.stats())
        usleep(1000);
    const bool served = w.serve();
    copying.join();
    return served && code == 0 && w.gpu.remote.stats().copies_sync == before.copies_sync;
}

// The same of an executable graph that has not ended: here, one behind the first one.
bool destroyed_beside_graphs()
{
    Waiting w;
    Client asks(w.gpu);
    asks.remote.get_last_error();
    asks.remote.set_device(0);
    const std::uint64_t queue = answer(asks.remote, "ibxRuntime", number(IBX_EXTRA_HOST_OPEN));
    const std::uint64_t behind = w.graph([queue](Body node) { return node.u64(queue).u64(2); });
    REQUIRE(w.exec && behind && w.launch());
    REQUIRE(w.gpu.remote.call("cudaGraphLaunch", Body().u64(behind).u64(w.stream)) == 0);
    std::atomic<int> code{-1};
    std::thread destroying([&] {
        code = w.other.remote.call("ibxRuntime", number(IBX_EXTRA_EXEC_DESTROY).u64(behind));
    });
    usleep(20000); // too short, and the test sees less
    const bool served = w.serve();
    while (!ask(asks.remote, 0))
        ;
    const bool waited = code == -1;
    const bool over = ask(asks.remote, 2) != ~0ull;
    destroying.join();
    return served && waited && over && code == 0;
}

// The same of a kernel that the driver loads as it is launched first.
bool loaded_beside_graphs()
{
    Waiting w;
    const std::uint64_t memory = w.other.remote.malloc(8192);
    REQUIRE(w.exec && w.launch());
    const unsigned long before = w.gpu.remote.stats().waits;
    int code = -1;
    std::thread launching([&] {
        code = w.other.remote.call("cudaLaunchKernel",
                                   kernel(IBX_DOUBLE_KERNEL, 32, 0, memory, memory + 4096, 4096));
    });
    while (w.gpu.remote.stats().waits == before)
        usleep(1000);
    const bool served = w.serve();
    launching.join();
    return served && code == 0 && w.launch() && w.serve() &&
           w.gpu.remote.stream_synchronize(w.stream) == 0;
}

// A client of its own that launches a graph of one function in a stream of its own.
struct Launcher {
    Client client;
    std::uint64_t exec, stream;
    int code = -1;
    std::thread thread;

    Launcher(Waiting &w, std::uint64_t function)
        : client(w.gpu), exec(w.graph([&](Body node) { return node.u64(w.queue).u64(function); })),
          stream(client.remote.stream_create(1))
    {
        client.remote.get_last_error();
        client.remote.set_device(0);
        thread = std::thread(
            [this] { code = client.remote.call("cudaGraphLaunch", Body().u64(exec).u64(stream)); });
    }
};

// Graphs of several clients, more than a GPU has connections for, each with a copy of the client's.
// All end, whether they are served at once, or not before the last launch has not stayed any more.
bool many_graphs(unsigned count, bool at_once)
{
    Waiting w;
    const std::uint64_t stream = w.calls.remote.stream_create(1);
    std::vector<std::unique_ptr<Launcher>> launchers;
    for (unsigned i = 1; i <= count; i++)
        launchers.push_back(std::make_unique<Launcher>(w, i + 1));
    if (!at_once)
        for (auto &launcher : launchers)
            launcher->thread.join();
    std::uint64_t called = 0;
    bool right = true;
    for (unsigned served = 0; served < count && right; served += called != 0) {
        called = ask(w.calls.remote, called);
        right = called != ~0ull;
        if (called)
            right = w.calls.remote.to_device_async(w.to, w.bytes.data(), 4096, stream) == 0 &&
                    w.calls.remote.stream_synchronize(stream) == 0;
    }
    right = right && ask(w.calls.remote, called) != ~0ull;
    for (auto &launcher : launchers) {
        if (at_once)
            launcher->thread.join();
        right = right && launcher->code == 0;
        right = right && launcher->client.remote.stream_synchronize(launcher->stream) == 0;
    }
    return right;
}

bool kernels()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(), to = remote.malloc(4096),
                        from = remote.malloc(4096);
    auto bytes = random_bytes(4096, 5);
    std::vector<char> got(4096);
    REQUIRE(remote.to_device(from, bytes.data(), 4096) == 0);
    auto launch = [&](std::uint64_t function, unsigned threads, std::uint64_t n) {
        return gpu.made("cudaLaunchKernel", kernel(function, threads, stream, to, from, n));
    };
    auto there = [&](std::size_t n) {
        return remote.stream_synchronize(stream) == 0 && remote.peek(to, got.data(), n) &&
               !std::memcmp(got.data(), bytes.data(), n);
    };
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 1000) == 1 && there(1000)); // it is looked up
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2000) == 0 && there(2000)); // it is known
    const unsigned long launched = remote.stats().copies_async;
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2000) == 0);
    REQUIRE(remote.stats().copies_async == launched + 1); // once
    // After something was registered, by whatever name, it is looked up again.
    for (const char *name :
         {"__cudaRegisterFunction", "cudaRegisterFunction", "cudaUnregisterFatBinary"}) {
        remote.call(name, Body());
        REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2500) == 1);
        REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2500) == 0);
    }
    // What fails is GVirtuS's, whose handlers here run anything; no error is left.
    REQUIRE(launch(0x8000, 32, 3000) == 1 && there(3000) && remote.get_last_error() == 0);
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 2000, 4000) == 0 && there(4000));
    REQUIRE(remote.get_last_error() == 0);
    // While a client captures a stream GVirtuS runs those of all.
    Client other(gpu);
    other.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0));
    remote.call("__cudaRegisterFunction", Body());
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 1000) == 0 && there(1000));
    // One that fails ends none, and begins none.
    REQUIRE(other.remote.call("cudaStreamEndCapture", Body().u64(0)) == 1);
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 1000) == 0 && there(1000));
    REQUIRE(other.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(other.remote.call("cudaStreamBeginCapture", Body().u64(0).i32(0)) == 1);
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 1000) == 1 && there(1000));
    return true;
}

// A client's capture is not ended by another one that waits for the device, nor in its way.
bool captures_apart()
{
    Gpu gpu;
    Client other(gpu);
    const std::uint64_t stream = gpu.remote.stream_create(1);
    other.remote.get_last_error();
    other.remote.set_device(0);
    REQUIRE(other.remote.device_synchronize() == 0);
    REQUIRE(gpu.remote.mode() == 1 && other.remote.mode() == 1); // THREAD_LOCAL
    REQUIRE(gpu.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)) == 0);
    std::atomic<bool> ends{false};
    bool waited = false;
    std::thread waiting([&] { waited = other.remote.device_synchronize() == 0 && ends; });
    usleep(20000); // too short, and the test sees less
    ends = true;
    REQUIRE(gpu.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    waiting.join();
    return waited;
}

// How many of ten captures of the stream are refused or ended by others.
unsigned captures_lost(Gpu &gpu, std::uint64_t stream, int mode)
{
    unsigned lost = 0;
    for (unsigned i = 0; i < 10; i++)
        lost += gpu.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(mode)) ||
                gpu.remote.call("cudaStreamEndCapture", Body().u64(stream));
    return lost;
}

// One that begins is not ended by waits for the device of another client, one behind the other, and
// is not kept out by them.
bool captures_beside_waits()
{
    Gpu gpu;
    Client other(gpu);
    const std::uint64_t stream = gpu.remote.stream_create(1), busy = gpu.remote.stream_create(1),
                        to = gpu.remote.malloc(4096), from = gpu.remote.malloc(4096);
    other.remote.get_last_error();
    other.remote.set_device(0);
    REQUIRE(gpu.remote.slow(500));
    std::atomic<bool> over{false};
    const unsigned long before = gpu.remote.stats().waits;
    unsigned failed = 0;
    std::thread waiting([&] {
        while (!over)
            failed += other.remote.call("cudaLaunchKernel",
                                        kernel(IBX_DOUBLE_KERNEL, 32, busy, to, from, 8)) ||
                      other.remote.device_synchronize();
    });
    while (gpu.remote.stats().waits == before)
        usleep(1000);
    const unsigned lost = captures_lost(gpu, stream, 0);
    over = true;
    waiting.join();
    return !failed && !lost;
}

// One of a stream that waits for the legacy one is not ended by work there, nor in its way.
bool captures_beside_legacy()
{
    Gpu gpu;
    Client other(gpu);
    const std::uint64_t blocking = gpu.remote.stream_create(0), to = gpu.remote.malloc(4096),
                        from = gpu.remote.malloc(1 << 20);
    const std::vector<char> bytes(1 << 20, 'a');
    other.remote.get_last_error();
    other.remote.set_device(0);
    const std::function<int()> works[] = {
        [&] { return other.remote.to_device(from, bytes.data(), 4096); },
        [&] { return other.remote.to_device_async(from, bytes.data(), 4096, 0); },
        [&] {
            const Body launch = kernel(IBX_DOUBLE_KERNEL, 32, 0, to, from, 8);
            return other.remote.call("cudaLaunchKernel", launch);
        },
        [&] { return other.remote.call("cudaMemset", Body().u64(to).i32(5).u64(100)); },
        [&] { return other.remote.call("testFill", Body().u64(to).u64(100)); },
    };
    for (const auto &work : works) {
        REQUIRE(!gpu.remote.call("cudaStreamBeginCapture", Body().u64(blocking).i32(2)));
        int worked = -1;
        std::thread working([&] { worked = work(); });
        usleep(10000); // too short, and the test sees less
        const int ended = gpu.remote.call("cudaStreamEndCapture", Body().u64(blocking));
        working.join();
        REQUIRE(worked == 0 && ended == 0);
    }
    // Copies that may be made piece by piece, one behind the other.
    std::atomic<unsigned> copied{0};
    std::atomic<bool> over{false};
    unsigned failed = 0;
    std::thread copying([&] {
        for (; !over; copied++)
            failed += other.remote.to_device(from, bytes.data(), bytes.size()) != 0;
    });
    while (!copied)
        usleep(1000);
    const unsigned lost = captures_lost(gpu, blocking, 2);
    over = true;
    copying.join();
    return !failed && !lost;
}

// What a client captured that is gone is waited for no more.
bool captures_left()
{
    Gpu gpu;
    const std::uint64_t stream = gpu.remote.stream_create(1), to = gpu.remote.malloc(4096),
                        from = gpu.remote.malloc(4096);
    // The back end leaves kernels to GVirtuS while a client captures.
    auto apart = [&] {
        gpu.remote.call("__cudaRegisterFunction", Body());
        const Body launch = kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, 8);
        return gpu.made("cudaLaunchKernel", launch) == 1;
    };
    REQUIRE(apart());
    {
        Client leaving(gpu);
        REQUIRE(!leaving.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)));
        REQUIRE(!apart());
    }
    bool gone = false;
    for (unsigned i = 0; i < 5000 && !(gone = apart()); i++)
        usleep(1000);
    return gone;
}

// A kernel that is looked up while another client takes some away is looked up once more.
bool kernels_meanwhile()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Client other(gpu);
    const std::uint64_t stream = remote.stream_create(), to = remote.malloc(4096),
                        from = remote.malloc(4096);
    auto launch = [&] {
        return gpu.made("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, 8));
    };
    REQUIRE(launch() == 1 && launch() == 0);
    remote.gate(true);
    std::thread taking([&] { other.remote.call("cudaUnregisterFatBinary", Body()); });
    bool begun = false;
    for (unsigned i = 0; i < 10000 && !begun; i++) {
        begun = remote.inside();
        usleep(begun ? 0 : 1000);
    }
    const int looked_up = launch();
    remote.gate(false);
    taking.join();
    REQUIRE(begun);
    REQUIRE(looked_up == 1);
    REQUIRE(launch() == 1 && launch() == 0);
    return true;
}

// GVirtuS's handlers use maps of kernels and variables without a lock: none registers beside
// others.
bool registered_at_once()
{
    Gpu gpu;
    std::vector<std::thread> programs;
    for (unsigned i = 0; i < 6; i++)
        programs.emplace_back([&gpu, i] {
            Client client(gpu);
            const std::uint64_t stream = client.remote.stream_create();
            const char byte = 1;
            for (unsigned n = 0; n < 40; n++) {
                client.remote.call("__cudaRegisterFunction", Body());
                if (i < 2) // not one that the plugin launches
                    client.remote.call("cudaLaunchKernel", kernel(0x8000, 32, stream, 0, 0, 0));
                if (i == 2)
                    client.remote.to_symbol(1, &byte, 1, 0);
            }
        });
    for (auto &program : programs)
        program.join();
    return gpu.remote.met() == 0;
}

// One that looks up and does not return, since its client's kernel does not end, holds back others
// once, and for a bounded time.
bool registered_beside_one_that_stays()
{
    Gpu gpu;
    Client other(gpu);
    gpu.remote.gate(true);
    std::thread staying([&] { other.remote.call("cudaMemcpyFromSymbol", Body()); });
    std::atomic<unsigned> registered{0};
    std::thread registering([&] {
        Client client(gpu);
        while (!client.remote.inside())
            usleep(1000);
        for (; registered < 40; registered++)
            client.remote.call("__cudaRegisterFunction", Body());
    });
    for (unsigned i = 0; i < 20000 && registered < 40; i++)
        usleep(1000);
    const bool all = registered == 40;
    gpu.remote.gate(false);
    staying.join();
    registering.join();
    for (unsigned i = 0; i < 2; i++) { // what has been passed is not counted when it ends
        REQUIRE(other.remote.call("cudaMemcpyFromSymbol", Body()) == -1);
        REQUIRE(gpu.remote.call("__cudaRegisterFunction", Body()) == -1);
    }
    return all;
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
    return !std::memcmp(got.data(), bytes.data(), got.size());
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
    check("memory that is counted", counted);
    check("errors", errors);
    check("requests of our own that are malformed", malformed);
    check("arrays after a reset", arrays_after_reset);
    check("a reset beside other clients", reset_beside_others);
    check("... by one of a program's threads", reset_by_one_of_several_threads);
    check("conditions that are none", conditions_that_are_none);
    check("what one uses and another gives back", used_and_given_back);
    check("functions in captures", functions_in_captures);
    check("copies in captures", copies_in_captures);
    setenv("IBX_DOUBLE_ALONE", "1", 1);
    check("memory given back beside graphs", [] { return freed_beside_graphs(""); });
    check("... that is counted", [] { return freed_beside_graphs("rdma.device_memory : 64M\n"); });
    check("few bytes copied to the device beside graphs",
          [] { return copied_beside_graphs(true); });
    check("... from the device", [] { return copied_beside_graphs(false); });
    check("an executable graph destroyed beside graphs", destroyed_beside_graphs);
    check("a kernel loaded beside graphs", loaded_beside_graphs);
    check("graphs of many clients that wait", [] { return many_graphs(12, true); });
    check("... for more than a second", [] { return many_graphs(8, false); });
    unsetenv("IBX_DOUBLE_ALONE");
    check("kernels", kernels);
    check("kernels while some are taken away", kernels_meanwhile);
    check("captures of several clients", captures_apart);
    check("... beside waits for the device", captures_beside_waits);
    check("... beside work in the legacy stream", captures_beside_legacy);
    check("... that a client has left", captures_left);
    check("registrations of several clients", registered_at_once);
    check("... beside one that does not return", registered_beside_one_that_stays);
    check("many at once", many);
    return scene_close();
}
