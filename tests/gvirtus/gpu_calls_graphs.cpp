// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls beside graphs that wait for their clients: none of them may keep the driver from what such
// a graph needs.
#include "tests/gvirtus/gpu_calls_scene.h"
#include "tests/fixtures/patience.h"

#include <csignal>
#include <cstdlib>
#include <ctime>

namespace
{

// The number that an extension request returns.
std::uint64_t answer(Remote &remote, const char *name, const Body &body)
{
    std::uint64_t value = ~0ull;
    if (!remote.call(name, body) && remote.out.size() >= sizeof(value))
        std::memcpy(&value, remote.out.data(), sizeof(value));
    return value;
}

// The function that is to be called, or 0: none yet. `over` is the one that was called.
std::uint64_t ask(Remote &remote, std::uint64_t over)
{
    Body body = number(IBX_EXT_HOST_ASK).u64(over);
    body.bytes.push_back(0);
    return answer(remote, IBX_EXT_WORK, body);
}

// A client that waits until its graph calls a function, then makes a copy in a stream that waits
// for nothing else, and lets the graph go on.
bool serve(Remote &remote, std::uint64_t to, std::vector<char> &bytes)
{
    std::uint64_t called = 0;
    while (!called)
        called = ask(remote, 0);
    const std::uint64_t stream = remote.stream_create(1);
    return called == 1 && remote.to_device_async(to, bytes.data(), bytes.size(), stream) == 0 &&
           remote.stream_synchronize(stream) == 0 && ask(remote, called) != ~0ull;
}

// A graph that calls a function of `calls`, in a stream of the first client, and another client.
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
        queue = answer(calls.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN));
        exec = graph([this](Body node) { return node.u64(queue).u64(1); });
    }
    // An executable graph of one node, with a function or an empty one.
    template <typename F> std::uint64_t graph(const F &function)
    {
        Remote &remote = gpu.remote;
        const std::uint64_t made =
            answer(remote, "ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
        Body node = number(IBX_EXT_NODE_HOST).u64(made);
        node.bytes.insert(node.bytes.end(), 2, 0); // behind no other
        if (remote.call("ibxRuntime", function(node)) != 0)
            return 0;
        const Body body = number(IBX_EXT_GRAPH_INSTANTIATE).u64(made).u64(0);
        const std::uint64_t exec_made = answer(remote, "ibxRuntime", body);
        return exec_made == ~0ull ? 0 : exec_made;
    }
    bool launch() { return gpu.remote.call("cudaGraphLaunch", Body().u64(exec).u64(stream)) == 0; }
    bool serve() { return ::serve(calls.remote, to, bytes); }
};

// If CUDA makes no object that tells when the graph is gone, its function stays. This is no error
// of the thread; an earlier error stays.
bool error_before_a_function()
{
    Waiting w;
    const auto function = [&w](Body node) { return node.u64(w.queue).u64(1); };
    for (int before : {0, 7}) {
        w.gpu.remote.fail(before);
        w.gpu.remote.inject("cudaUserObjectCreate", 1, 2, false);
        REQUIRE(w.graph(function) != 0);
        w.gpu.remote.inject("", 0, 0, false);
        REQUIRE((w.gpu.remote.get_last_error() != 0) == (before != 0));
    }
    return true;
}

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
    return HOLDS(w.launch() && w.serve() && w.gpu.remote.stream_synchronize(w.stream) == 0);
}

// The same with a copy of few bytes, which waits for the graph.
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
    return HOLDS(served && code == 0 && w.gpu.remote.stats().copies_sync == before.copies_sync);
}

// The request for a node that does nothing.
Body empty(Body node)
{
    node.bytes[0] = IBX_EXT_NODE_EMPTY;
    return node;
}

// Destroys an executable graph; whether the call returns without `help`.
bool destroys(Waiting &w, Remote &remote, std::uint64_t exec, const std::function<void()> &help)
{
    Calling destroying(w.gpu.back, [&] {
        return remote.call("ibxRuntime", number(IBX_EXT_EXEC_DESTROY).u64(exec));
    });
    destroying.settle();
    const bool returned = destroying.returned();
    if (!returned)
        help();
    return HOLDS(returned && destroying.result() == 0);
}

bool destroys(Waiting &w, Remote &remote, std::uint64_t exec)
{
    return destroys(w, remote, exec, [&w] { w.serve(); });
}

// Whether the executable graph cannot be named.
bool is_gone(Waiting &w, std::uint64_t exec)
{
    const int code = w.gpu.remote.call("cudaGraphLaunch", Body().u64(exec).u64(w.stream));
    const int late = w.gpu.remote.get_last_error(); // it may be told by the next call
    return HOLDS((code ? code : late) == 400 || (code ? code : late) == 1);
}

// An executable graph is destroyed that has not ended: here, one behind the first one. CUDA would
// wait for it, and keep out the copy for which the first one waits. It is destroyed, and its
// function is called, as soon as that is over. A capture of another client's changes nothing.
bool destroyed_beside_graphs(bool captures)
{
    Waiting w;
    const std::uint64_t captured = captures ? w.other.remote.stream_create(1) : 0;
    const Body capture = Body().u64(captured).i32(2);
    REQUIRE(!captures || w.other.remote.call("cudaStreamBeginCapture", capture) == 0);
    Client asks(w.gpu);
    asks.remote.get_last_error();
    asks.remote.set_device(0);
    const std::uint64_t queue = answer(asks.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN));
    const std::uint64_t behind = w.graph([queue](Body node) { return node.u64(queue).u64(2); });
    REQUIRE(w.exec && behind && w.launch());
    REQUIRE(w.gpu.remote.call("cudaGraphLaunch", Body().u64(behind).u64(w.stream)) == 0);
    REQUIRE(destroys(w, w.other.remote, behind, [&] {
        w.serve();
        while (!ask(asks.remote, 0))
            ;
        ask(asks.remote, 2);
    }));
    REQUIRE(!captures || w.other.remote.call("cudaStreamEndCapture", Body().u64(captured)) == 0);
    REQUIRE(is_gone(w, behind));
    const bool served = w.serve();
    while (!ask(asks.remote, 0))
        ;
    const unsigned long execs = w.gpu.remote.stats().execs;
    REQUIRE(w.graph(empty)); // looks at those that are to be destroyed
    REQUIRE(served && w.gpu.remote.stats().execs == execs + 1);
    REQUIRE(ask(asks.remote, 2) != ~0ull && w.gpu.remote.device_synchronize() == 0);
    return HOLDS(w.graph(empty) && w.gpu.remote.stats().execs == execs + 1);
}

// A client resets the device while an executable graph runs that it has destroyed: CUDA destroys
// that with the device's context, or before, if others use this.
bool reset_beside_a_destroyed_one(bool alone)
{
    Waiting w;
    std::unique_ptr<Client> apart;
    if (!alone)
        apart = std::make_unique<Client>(w.gpu, of_another_program);
    if (apart)
        apart->remote.get_last_error();
    REQUIRE(w.exec && w.launch() && destroys(w, w.gpu.remote, w.exec));
    const unsigned long execs = w.gpu.remote.stats().execs;
    Calling resetting(w.gpu.back, [&] { return w.gpu.remote.reset(); });
    resetting.settle();
    const bool waited = !resetting.returned();
    std::uint64_t called = 0;
    while (!called)
        called = ask(w.calls.remote, 0);
    ask(w.calls.remote, called);
    REQUIRE(waited && resetting.result() == 0 && w.gpu.remote.get_last_error() == 0);
    REQUIRE(w.gpu.remote.stats().execs == execs - !alone); // the double's stay after a reset
    w.gpu.remote.set_device(0);
    w.calls.remote.set_device(0);
    w.stream = w.gpu.remote.stream_create();
    w.to = w.calls.remote.malloc(4096);
    w.exec = w.graph([&w](Body node) { return node.u64(w.queue).u64(1); });
    REQUIRE(w.exec && w.launch() && destroys(w, w.gpu.remote, w.exec) && w.serve());
    REQUIRE(w.gpu.remote.stream_synchronize(w.stream) == 0 && w.graph(empty));
    return HOLDS(w.gpu.remote.stats().execs == execs - !alone + 1 &&
                 w.gpu.remote.stats().lost_events == 0);
}

// A client may have 1024 that are destroyed and still run; for the next one it waits.
bool many_destroyed()
{
    Waiting w;
    Remote &remote = w.gpu.remote;
    std::vector<std::uint64_t> execs;
    REQUIRE(w.exec && w.launch());
    for (unsigned i = 0; i <= 1024; i++) {
        execs.push_back(w.graph(empty));
        REQUIRE(execs.back() &&
                remote.call("cudaGraphLaunch", Body().u64(execs.back()).u64(w.stream)) == 0);
    }
    const unsigned long made = remote.stats().execs;
    const auto destroy = [&](unsigned i) {
        return w.other.remote.call("ibxRuntime", number(IBX_EXT_EXEC_DESTROY).u64(execs[i]));
    };
    Calling most(w.gpu.back, [&] {
        int code = 0;
        for (unsigned i = 0; i < 1024 && !code; i++)
            code = destroy(i);
        return code;
    });
    const auto finish = [&w](Calling &calling) {
        calling.settle();
        const bool returned = calling.returned();
        if (!returned)
            w.serve();
        return returned && calling.result() == 0;
    };
    REQUIRE(finish(most) && remote.stats().execs == made);
    Calling last(w.gpu.back, [&] { return destroy(1024); });
    REQUIRE(!finish(last) && last.result() == 0);
    REQUIRE(remote.stream_synchronize(w.stream) == 0);
    for (unsigned i = 0; i < 1024 / 64; i++) // each time some are destroyed
        REQUIRE(w.graph(empty));
    return HOLDS(remote.stats().execs == made - 1025 + 1024 / 64);
}

// A function that a node has in an executable graph alone is called by the launches before it is
// replaced, and before the graph is updated.
bool replaced_beside_graphs()
{
    Waiting w;
    Remote &remote = w.gpu.remote;
    const std::uint64_t made = answer(remote, "ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
    Body body = number(IBX_EXT_NODE_HOST).u64(made);
    body.bytes.insert(body.bytes.end(), 2, 0);
    const std::uint64_t node = answer(remote, "ibxRuntime", body.u64(w.queue).u64(1));
    w.exec = answer(remote, "ibxRuntime", number(IBX_EXT_GRAPH_INSTANTIATE).u64(made).u64(0));
    for (const std::uint64_t function : {2U, 3U, 4U}) {
        body = number(IBX_EXT_SET_HOST).u64(w.exec).u64(node).u64(w.queue).u64(function);
        REQUIRE(remote.call("ibxRuntime", body) == 0 && w.launch());
    }
    body = number(IBX_EXT_EXEC_UPDATE).u64(w.exec).u64(made);
    std::uint64_t called = 0;
    for (const std::uint64_t function : {2U, 3U, 4U}) {
        for (std::uint64_t next = 0; !next; called = next)
            next = ask(w.calls.remote, called);
        REQUIRE(called == function);
    }
    return HOLDS(ask(w.calls.remote, called) == 0 && remote.stream_synchronize(w.stream) == 0 &&
                 answer(remote, "ibxRuntime", body) == 0 && w.launch() && w.serve());
}

// The same with a kernel that the driver loads at its first launch.
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
    return HOLDS(served && code == 0 && w.launch() && w.serve() &&
                 w.gpu.remote.stream_synchronize(w.stream) == 0);
}

// Kernels that were unregistered are loaded again, also at such a moment.
bool loaded_again_beside_graphs()
{
    Waiting w;
    const std::uint64_t memory = w.other.remote.malloc(8192);
    const Body launch = kernel(IBX_DOUBLE_KERNEL, 32, 0, memory, memory + 4096, 4096);
    REQUIRE(w.exec && w.other.remote.call("cudaLaunchKernel", launch) == 0);
    for (const bool taken : {false, true}) {
        if (taken)
            w.other.remote.call("cudaUnregisterFatBinary", Body());
        else
            w.other.remote.call("__cudaRegisterFunction", Body()); // looked up, but loaded
        REQUIRE(w.launch());
        const unsigned long before = w.gpu.remote.stats().waits;
        std::atomic<int> code{-1};
        std::thread launching([&] { code = w.other.remote.call("cudaLaunchKernel", launch); });
        while (code == -1 && w.gpu.remote.stats().waits == before)
            usleep(1000);
        const bool waits = w.gpu.remote.stats().waits != before;
        REQUIRE((w.serve(), launching.join(), code == 0));
        REQUIRE(waits == taken);
    }
    return true;
}

// One more client, which launches a graph of one function in a stream of its own.
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
// All end, whether they are served at once, or only after all calls that launch them have returned.
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

// ------------------------------------------------------------ slots

// A node of a graph that copies n bytes from the client to the device.
Body copy_node(std::uint64_t graph, std::uint64_t queue, std::uint64_t function, std::uint64_t to,
               std::uint64_t n)
{
    Body node = number(IBX_EXT_NODE_COPY).u64(graph);
    node.bytes.insert(node.bytes.end(), 2, 0); // behind no other
    node.u64(queue).u64(function);
    for (unsigned i = 0; i < 12; i++)
        node.u64(0); // no array, no address of the host's, from and to the beginning
    return node.u64(to).u64(n).u64(n).u64(1).u64(n).u64(1).u64(1).i32(H2D);
}

// A session, and what it needs for a graph with one such node.
struct Copier {
    Client client;
    Remote &remote = client.remote;
    std::uint64_t graph = 0, exec = 0, to = 0;
    const std::uint64_t n;

    Copier(const Gpu &gpu, int device, std::uint64_t bytes) : client(gpu), n(bytes)
    {
        remote.get_last_error();
        remote.set_device(device);
        to = remote.malloc(n);
    }
    // What the request for the node answers.
    int make(std::uint64_t queue, std::uint64_t function)
    {
        graph = answer(remote, "ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
        const int rc = remote.call("ibxRuntime", copy_node(graph, queue, function, to, n));
        if (!rc)
            exec =
                answer(remote, "ibxRuntime", number(IBX_EXT_GRAPH_INSTANTIATE).u64(graph).u64(0));
        return rc;
    }
};

constexpr int NO_ROOM = 100;

enum class Leaving { KEEPS, KILLED, DESTROYS, DESTROYS_KILLED };

// A client's process. If it is to be killed, or destroys the graphs, that happens while its graph
// waits for it.
int copies_and_ends(const Gpu &gpu, std::uint64_t n, Leaving how)
{
    const bool killed = how == Leaving::KILLED || how == Leaving::DESTROYS_KILLED;
    const bool gives_back = how == Leaving::DESTROYS || how == Leaving::DESTROYS_KILLED;
    Copier copier(gpu, 0, n);
    Client calls(gpu);
    calls.remote.get_last_error();
    const std::uint64_t queue = answer(calls.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN)),
                        stream = copier.remote.stream_create();
    const int rc = copier.make(queue, 1);
    if (rc)
        return rc == 801 ? NO_ROOM : 1;
    if (how == Leaving::KEEPS)
        return copier.exec ? 0 : 1;
    if (copier.remote.call("cudaGraphLaunch", Body().u64(copier.exec).u64(stream)))
        return 1;
    while (!ask(calls.remote, 0))
        ;
    if (gives_back &&
        (copier.remote.call("ibxRuntime", number(IBX_EXT_EXEC_DESTROY).u64(copier.exec)) ||
         copier.remote.call("ibxRuntime", number(IBX_EXT_GRAPH_DESTROY).u64(copier.graph))))
        return 1;
    if (killed)
        kill(getpid(), SIGKILL);
    return killed ? 1 : 0;
}

// A client's process with as many such graphs, on that device; it ends before they do.
int has_graphs(const Gpu &gpu, int device, unsigned count, std::uint64_t n)
{
    std::vector<std::unique_ptr<Copier>> copiers;
    Client calls(gpu);
    calls.remote.get_last_error();
    const std::uint64_t queue = answer(calls.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN));
    for (unsigned i = 1; i <= count; i++) {
        copiers.push_back(std::make_unique<Copier>(gpu, device, n));
        const int rc = copiers.back()->make(queue, i);
        if (rc)
            return rc == 801 ? NO_ROOM : 1;
    }
    return 0;
}

// Clients of one device had all the room for slots, and have ended: a client of another device gets
// some, at the latest once one that got none has ended.
bool room_of_another_device()
{
    Gpu gpu("rdma.pins : 256M\nrdma.tenant_share : 100\nrdma.resume_seconds : 1\n");
    const time_t limit = time(nullptr) + patience_ms(30000) / 1000;
    REQUIRE(result_of(spawn([&] { return has_graphs(gpu, 0, 4, 64u << 20); })) == 0);
    REQUIRE(result_of(spawn([&] { return has_graphs(gpu, 1, 1, 4096); })) == NO_ROOM);
    int rc = NO_ROOM;
    while (rc == NO_ROOM && time(nullptr) < limit)
        rc = result_of(spawn([&] { return has_graphs(gpu, 1, 1, 4096); }));
    return HOLDS(rc == 0 && gpu.remote.device_synchronize() == 0);
}

// Clients end, in each way, with graphs that they have not destroyed, or that run though destroyed:
// later clients have as much room for theirs.
bool room_of_the_gone(Leaving how)
{
    const bool killed = how == Leaving::KILLED || how == Leaving::DESTROYS_KILLED;
    constexpr std::uint64_t n = 1500000;
    Gpu gpu("rdma.pins : 2M\nrdma.tenant_share : 100\nrdma.resume_seconds : 1\n");
    const time_t limit = time(nullptr) + patience_ms(30000) / 1000;
    for (unsigned i = 0; i < 4; i++) {
        int rc = NO_ROOM;
        while (rc == NO_ROOM && time(nullptr) < limit) // until the one before has been noticed
            rc = result_of(spawn([&] { return copies_and_ends(gpu, n, how); }));
        REQUIRE(rc == (killed ? 128 + SIGKILL : 0));
    }
    return HOLDS(gpu.remote.device_synchronize() == 0);
}

// A client's process that launches a graph, does more, and ends before the graph has begun.
int launches_and_ends(const Gpu &gpu, const std::function<bool(Remote &)> &more)
{
    Copier copier(gpu, 0, 4096);
    Client calls(gpu);
    calls.remote.get_last_error();
    const std::uint64_t queue = answer(calls.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN)),
                        stream = copier.remote.stream_create();
    const Body launch = Body().u64(copier.make(queue, 1) ? 0 : copier.exec).u64(stream);
    if (!copier.exec || copier.remote.call("cudaGraphLaunch", launch) != 0)
        return 1;
    return more(copier.remote) ? 0 : 1;
}

// A thread has begun a capture; another one ends it, and begins one more in the same stream. The
// end of the first thread leaves this capture alone.
bool capture_beside_the_leaving()
{
    Gpu gpu("rdma.resume_seconds : 1\n");
    Client other(gpu, of_another_program); // whose streams are not refused
    Remote &remote = other.remote;
    remote.get_last_error();
    remote.set_device(0);
    const std::uint64_t stream = remote.stream_create(1);
    const Body of_stream = Body().u64(stream), begin = Body().u64(stream).i32(2);
    int begun[2], over[2];
    char byte = 0;
    REQUIRE(stream && !pipe(begun) && !pipe(over));
    remote.hold(true);
    const pid_t child = spawn([&] {
        return launches_and_ends(gpu, [&](Remote &own) {
            return own.call("cudaStreamBeginCapture", begin) == 0 &&
                   write(begun[1], &byte, 1) == 1 && read(over[0], &byte, 1) == 1;
        });
    });
    REQUIRE(read(begun[0], &byte, 1) == 1);
    REQUIRE(remote.call("cudaStreamEndCapture", of_stream) == 0 && remote.out.size() == 8);
    REQUIRE(remote.call("cudaStreamBeginCapture", begin) == 0);
    REQUIRE(write(over[1], &byte, 1) == 1 && result_of(child) == 0);
    while (!remote.stats().event_waits)
        usleep(1000);
    remote.hold(false);
    REQUIRE(remote.call("cudaStreamEndCapture", of_stream) == 0);
    for (int fd : {begun[0], begun[1], over[0], over[1]})
        close(fd);
    return remote.out.size() == 8; // the graph
}

// A reset beside the end of the last other client: its graphs are given back one by one, and their
// context stays.
bool reset_beside_the_leaving()
{
    Gpu gpu("rdma.resume_seconds : 1\n");
    Copier own(gpu, 0, 4096); // its slot's memory is pinned as long as the context is there
    REQUIRE(own.make(answer(gpu.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN)), 1) == 0);
    const unsigned long pins = gpu.remote.stats().host_pins;
    gpu.remote.hold(true);
    REQUIRE(result_of(
                spawn([&] { return launches_and_ends(gpu, [](Remote &) { return true; }); })) == 0);
    while (!gpu.remote.stats().event_waits)
        usleep(1000);
    std::atomic<int> code{-1};
    std::thread resetting([&] { code = own.remote.reset(); });
    while (code < 0)
        usleep(1000);
    gpu.remote.hold(false);
    resetting.join();
    while (gpu.remote.stats().event_waits)
        usleep(1000);
    const ibx_double_stats after = gpu.remote.stats();
    return HOLDS(code == 0 && after.host_pins >= pins && !after.lost_events &&
                 gpu.remote.device_synchronize() == 0);
}

// The client's bytes for the function that it calls, and the graph's end.
bool copies(Remote &calls, Copier &copier, std::uint64_t function, std::uint64_t stream)
{
    const std::vector<char> bytes = random_bytes(copier.n, 9);
    std::vector<char> got(copier.n);
    while (!ask(calls, 0))
        ;
    REQUIRE(calls.to_device_async(1ull << 63 | function << 32, bytes.data(), copier.n, 0) == 0);
    REQUIRE(ask(calls, function) != ~0ull && copier.remote.stream_synchronize(stream) == 0);
    return HOLDS(copier.remote.peek(copier.to, got.data(), copier.n) && got == bytes);
}

// On each of two devices a graph that copies, and the session that is asked for their functions.
struct OnBoth {
    Gpu gpu;
    Client calls;
    Copier near, far;
    std::uint64_t queue;

    explicit OnBoth(std::uint64_t n, const std::string &more = "")
        : gpu(more), calls(gpu), near(gpu, 0, n), far(gpu, 1, n)
    {
        calls.remote.get_last_error();
        queue = answer(calls.remote, "ibxRuntime", number(IBX_EXT_HOST_OPEN));
    }
    bool made() { return near.make(queue, 1) == 0 && far.make(queue, 2) == 0; }
};

// The context of one device is reset: the memory that graphs of another device copy through stays.
bool another_device_is_reset()
{
    OnBoth both(5000);
    const std::uint64_t stream = both.far.remote.stream_create();
    REQUIRE(both.made());
    const unsigned long before = both.gpu.remote.stats().unpinned_async;
    REQUIRE(both.near.remote.reset() == 0);
    REQUIRE(both.far.remote.call("cudaGraphLaunch", Body().u64(both.far.exec).u64(stream)) == 0);
    return HOLDS(copies(both.calls.remote, both.far, 2, stream) &&
                 both.gpu.remote.stats().unpinned_async == before);
}

// It is not known which context was reset: a graph may belong to either.
bool some_device_is_reset()
{
    OnBoth both(500000, "rdma.pins : 1M\nrdma.tenant_share : 100\n");
    REQUIRE(both.made());
    both.gpu.remote.inject("cuDevicePrimaryCtxRetain", 1, 2, false);
    REQUIRE(both.near.remote.reset() == 0);
    Copier third(both.gpu, 1, 500000);
    return HOLDS(third.make(both.queue, 3) == 801);
}

// A graph that waits for an event, launched before and after the event is destroyed. Then it is not
// made executable once more.
bool event_destroyed(bool by_handler)
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t event = gpu.event(), stream = remote.stream_create();
    const std::uint64_t graph = answer(remote, "ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
    Body node = number(IBX_EXT_NODE_WAIT).u64(graph);
    node.bytes.insert(node.bytes.end(), 2, 0); // behind no other
    REQUIRE(event && remote.call("ibxRuntime", node.u64(event)) == 0);
    const char *name = by_handler ? "cudaGraphInstantiate" : "ibxRuntime";
    const int refused = by_handler ? 1 : 400; // of NULL
    const Body body = (by_handler ? Body() : number(IBX_EXT_GRAPH_INSTANTIATE)).u64(graph).u64(0);
    const Body launch = Body().u64(answer(remote, name, body)).u64(stream);
    REQUIRE(remote.call("cudaGraphLaunch", launch) == 0);
    REQUIRE(remote.call("cudaEventDestroy", Body().u64(event)) == 0);
    const int code = remote.call("cudaGraphLaunch", launch); // may be told by the next call
    REQUIRE((code ? code : remote.stream_synchronize(stream)) == 400);
    return HOLDS(remote.call(name, body) == refused && remote.stream_synchronize(stream) == 0);
}

} // namespace

void check_calls_graphs()
{
    setenv("IBX_DOUBLE_ALONE", "1", 1);
    check("memory given back beside graphs", [] { return freed_beside_graphs(""); });
    check("... that is counted", [] { return freed_beside_graphs("rdma.device_memory : 64M\n"); });
    check("few bytes copied to the device beside graphs",
          [] { return copied_beside_graphs(true); });
    check("... from the device", [] { return copied_beside_graphs(false); });
    check("an executable graph destroyed beside graphs",
          [] { return destroyed_beside_graphs(false); });
    check("... and a capture", [] { return destroyed_beside_graphs(true); });
    check("... and the device reset", [] { return reset_beside_a_destroyed_one(true); });
    check("... with another program", [] { return reset_beside_a_destroyed_one(false); });
    check("... many of them", many_destroyed);
    check("a function replaced in an executable graph", replaced_beside_graphs);
    check("a kernel loaded beside graphs", loaded_beside_graphs);
    check("... and again, when it was taken away", loaded_again_beside_graphs);
    check("graphs of many clients that wait", [] { return many_graphs(12, true); });
    check("... for more than a second", [] { return many_graphs(8, false); });
    unsetenv("IBX_DOUBLE_ALONE");
    check("a function for a graph behind an error", error_before_a_function);
    check("an event destroyed that a graph waits for", [] { return event_destroyed(false); });
    check("... made executable by a handler", [] { return event_destroyed(true); });
    check("graphs of clients that have ended", [] { return room_of_the_gone(Leaving::KEEPS); });
    check("... that were killed", [] { return room_of_the_gone(Leaving::KILLED); });
    check("... that have destroyed them", [] { return room_of_the_gone(Leaving::DESTROYS); });
    check("... and were killed", [] { return room_of_the_gone(Leaving::DESTROYS_KILLED); });
    check("... on another device", room_of_another_device);
    check("... while another one resets the device", reset_beside_the_leaving);
    check("... while another one captures", capture_beside_the_leaving);
    check("graphs beside a reset of another device", another_device_is_reset);
    check("... of one that is not known", some_device_is_reset);
}
