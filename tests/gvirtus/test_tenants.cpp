// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Tenants of one back end: clients whose keys have different names, and a double of libcuda.
//
//   test_tenants PLUGIN.so PROVIDER
#include "frontend-glue/session/extra.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace
{

constexpr int bad_pointer = 1; // cudaErrorInvalidValue
constexpr int gone = 999;      // what a client gets when its session has ended
constexpr std::size_t device_size = 4u << 20;

std::string keys()
{
    return "rdma.key_file : " + folder + "/keys\n";
}

struct TenantsBackEnd : BackEnd {
    explicit TenantsBackEnd(const std::string &more = "")
        : BackEnd(keys() + more, [](auto listening) { cuda_back_end_child(listening, true); })
    {
    }
};

struct Client {
    std::shared_ptr<Communicator> over;
    Remote remote;

    Client(const BackEnd &back, const std::string &name)
        : over(connected(back.port, keys() + "rdma.name : " + name + "\n")), remote(over.get())
    {
    }
};

// To and from the device by each path that its size can take, and each kind of request.
const std::size_t sizes[] = {1, 4, 100, 16384, 70000, 600001, 3500000};

Body rows_to(std::uint64_t device, const std::vector<char> &bytes, std::size_t width)
{
    Body body;
    std::size_t height = bytes.size() / width;
    body.u64(device).host(bytes.data(), width * height);
    return body.u64(width).u64(width).u64(width).u64(height).i32(H2D);
}

Body rows_from(std::uint64_t device, std::size_t n, std::size_t width)
{
    Body body;
    body.host("", 1).u64(device);
    return body.u64(width).u64(width).u64(width).u64(n / width).i32(D2H);
}

bool works(Remote *remote, std::uint64_t device, std::size_t room)
{
    for (std::size_t n : sizes) {
        if (n > room)
            break;
        auto sent = random_bytes(n, 7), got = random_bytes(n, 8);
        REQUIRE(remote->to_device(device, sent.data(), n) == 0);
        REQUIRE(remote->from_device(got.data(), device, n) == 0 && got == sent);
        REQUIRE(remote->to_device_async(device + room - n, sent.data(), n, 0) == 0);
        REQUIRE(remote->from_device_async(got.data(), device + room - n, n, 0) == 0);
        REQUIRE(got == sent);
    }
    return true;
}

bool zeros(const std::vector<char> &bytes)
{
    for (char c : bytes)
        REQUIRE(c == 0);
    return true;
}

// Each request that names `theirs`, at its first byte or in the middle; `own` is the client's.
bool refused(Remote *remote, std::uint64_t theirs, std::uint64_t own, std::size_t room)
{
    for (std::size_t n : sizes) {
        for (std::uint64_t at : {theirs, theirs + room - n, theirs + (room - n) / 2}) {
            if (n > room)
                continue;
            auto bytes = random_bytes(n, 9);
            REQUIRE(remote->to_device(at, bytes.data(), n) == bad_pointer);
            REQUIRE(remote->to_device_async(at, bytes.data(), n, 0) == bad_pointer);
            REQUIRE(remote->from_device(bytes.data(), at, n) == bad_pointer);
            REQUIRE(zeros(remote->out));
            REQUIRE(remote->from_device_async(bytes.data(), at, n, 0) == bad_pointer);
            REQUIRE(zeros(remote->out));
            REQUIRE(remote->on_device(own, at, n) == bad_pointer);
            REQUIRE(remote->on_device(at, own, n) == bad_pointer);
            REQUIRE(remote->on_device_async(own, at, n, 0) == bad_pointer);
            REQUIRE(remote->on_device_async(at, own, n, 0) == bad_pointer);
            REQUIRE(remote->call("cudaMemset", Body().u64(at).i32(3).u64(n)) == bad_pointer);
            if (n < 200)
                continue;
            REQUIRE(remote->call("cudaMemcpy2D", rows_to(at, bytes, 50)) == bad_pointer);
            REQUIRE(remote->call("cudaMemcpy2D", rows_from(at, n, 50)) == bad_pointer);
            REQUIRE(zeros(remote->out));
        }
    }
    return true;
}

bool untouched(Remote *owner, std::uint64_t device, const std::vector<char> &bytes)
{
    std::vector<char> got(bytes.size());
    REQUIRE(owner->from_device(got.data(), device, got.size()) == 0);
    REQUIRE(got == bytes);
    return true;
}

/* ------------------------------------------------------------------------ tests */

bool one_application()
{
    TenantsBackEnd back;
    Client first(back, "alice"), second(back, "alice"), other(back, "bob");
    std::uint64_t device = first.remote.malloc(device_size);
    REQUIRE(device && other.remote.malloc(100));
    REQUIRE(works(&first.remote, device, device_size));
    REQUIRE(second.remote.get_last_error() == 0); // a reply, by which its copies are ours
    REQUIRE(works(&second.remote, device, device_size));
    REQUIRE(second.remote.handled() == 0);
    REQUIRE(second.remote.free(device) == 0);
    return true;
}

// A request of our own (frontend-glue/session/extra.h), by its number.
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

// What such a request names of another tenant's is refused as well: memory of pools, arrays, and
// queues of functions.
bool requests_of_ours()
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
    // GVirtuS's own handler frees NULL instead.
    REQUIRE(b->call("cudaFreeArray", Body().u64(array)) == 0);
    REQUIRE(a->call(extra_name, extra(15).u64(array)) == 0);
    // A handle of another kind ends the back end if CUDA gets it.
    const std::uint64_t pool = made(b, extra(23).i32(0));
    REQUIRE(pool && b->call(extra_name, extra(9).u64(pool)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(15).u64(pool)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(21).u64(64).u64(own_array).u64(0)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(21).u64(64).u64(pool).u64(0)) == 0);
    // Rows that begin in one's own memory and leave it.
    const std::uint64_t far = made(a, extra(20).u64(4096).u64(0));
    const auto rows_there = [&](std::uint64_t row) {
        return extra(14)
            .u64(0)
            .u64(0)
            .u64(row)
            .u64(0)
            .u64(own)
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
    REQUIRE(far > own && b->call(extra_name, rows_there(3)) == 0);
    REQUIRE(b->call(extra_name, rows_there((far - own) / 64)) == bad_pointer);
    Body call = extra(29);
    call.u64(0).u64(queue).u64(1);
    call.bytes.push_back(0);
    REQUIRE(b->call(extra_name, call) == bad_pointer);
    REQUIRE(untouched(a, pooled, bytes));
    // One's own is one's own, and what was given back is nobody's.
    REQUIRE(b->call(extra_name, extra(10).u64(own_array).u64(0).u64(0).u64(own).u64(64)) == 0);
    REQUIRE(a->call(extra_name, extra(22).u64(pooled).u64(0)) == 0);
    return a->call(extra_name, extra(9).u64(array)) == 0;
}

// Graphs, their nodes and what is made of them are a tenant's, and what their nodes name is, too.
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
        return made(remote, extra(IBX_EXTRA_GRAPH_CREATE).i32(0));
    };
    // Behind no node, or behind one: 64 bytes are set.
    const auto set = [](std::uint64_t graph, std::uint64_t at, std::uint64_t behind = 0) {
        Body body = extra(IBX_EXTRA_NODE_MEMSET).u64(graph);
        body.put(static_cast<std::uint16_t>(behind != 0));
        if (behind)
            body.u64(behind);
        return body.u64(at).u64(0).i32(1).i32(1).u64(64).u64(1);
    };
    const auto exec_of = [](std::uint64_t graph) {
        return extra(IBX_EXTRA_GRAPH_INSTANTIATE).u64(graph).u64(0);
    };
    const std::uint64_t graph = make(a), other = make(b), node = made(a, set(graph, memory));
    const std::uint64_t exec = made(a, exec_of(graph));
    REQUIRE(graph && other && node && exec);
    REQUIRE(b->call(extra_name, set(graph, own)) == bad_pointer);
    REQUIRE(b->call(extra_name, set(other, memory)) == bad_pointer);
    REQUIRE(b->call(extra_name, set(other, own, node)) == bad_pointer);
    REQUIRE(b->call(extra_name, exec_of(graph)) == bad_pointer);
    for (int number : {IBX_EXTRA_GRAPH_DESTROY, IBX_EXTRA_GRAPH_CLONE, IBX_EXTRA_NODE_TYPE,
                       IBX_EXTRA_NODE_DESTROY, IBX_EXTRA_EXEC_DESTROY})
        for (std::uint64_t handle : {graph, node, exec})
            REQUIRE(b->call(extra_name, extra(number).u64(handle)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(IBX_EXTRA_EXEC_UPDATE).u64(exec).u64(other)) == bad_pointer);
    Body copy = extra(IBX_EXTRA_NODE_MEMCPY).u64(other);
    copy.put(static_cast<std::uint16_t>(0));
    for (std::uint64_t word :
         {std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, memory,
          std::uint64_t{64}, std::uint64_t{64}, std::uint64_t{1}, std::uint64_t{0},
          std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{0}, own, std::uint64_t{64},
          std::uint64_t{64}, std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{1},
          std::uint64_t{1}})
        copy.u64(word);
    REQUIRE(b->call(extra_name, copy.i32(3)) == bad_pointer);
    REQUIRE(b->call(extra_name, extra(IBX_EXTRA_MEMSET).u64(memory).i32(1).u64(64).u64(0)) ==
            bad_pointer);
    // GVirtuS's own handlers get NULL instead of another tenant's.
    REQUIRE(b->call("cudaGraphLaunch", Body().u64(exec).u64(0)) != 0);
    REQUIRE(b->call("cudaGraphDestroy", Body().u64(graph)) != 0);
    REQUIRE(untouched(a, memory, bytes));
    // One's own; and what GVirtuS's handler has destroyed is no more.
    REQUIRE(made(b, set(other, own)) && made(a, set(graph, memory, node)));
    REQUIRE(a->call("cudaGraphLaunch", Body().u64(exec).u64(0)) == 0);
    std::vector<char> set_bytes(64);
    REQUIRE(a->device_synchronize() == 0 && a->peek(memory, set_bytes.data(), 64));
    REQUIRE(set_bytes == std::vector<char>(64, 1));
    REQUIRE(a->call("cudaGraphDestroy", Body().u64(graph)) == 0);
    REQUIRE(a->call(extra_name, extra(IBX_EXTRA_NODE_TYPE).u64(node)) == bad_pointer);
    return a->call(extra_name, exec_of(graph)) == bad_pointer;
}

// Handles for other processes are good for those of one tenant.
bool handles_of_ours()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), again(back, "alice"), bob(back, "bob");
    REQUIRE(again.remote.get_last_error() == 0); // by which a session learns the form of replies
    Remote *a = &alice.remote, *b = &bob.remote;
    const std::uint64_t memory = a->malloc(5000), own = b->malloc(5000);
    REQUIRE(memory && own && !a->get_last_error() && !b->get_last_error());
    const auto create = [a] {
        Body flags;
        flags.put(6u);
        std::uint64_t event = 0;
        if (!a->call("cudaEventCreateWithFlags", flags) && a->out.size() == 16)
            std::memcpy(&event, a->out.data() + 8, 8);
        return event;
    };
    const std::uint64_t event = create();
    const auto handle = [](Remote *remote, int number, std::uint64_t of) {
        const bool good = !remote->call(extra_name, extra(number).u64(of));
        return good && remote->out.size() == 64 ? remote->out : std::vector<char>();
    };
    const auto open = [](Remote *remote, int number, const std::vector<char> &of) {
        Body body = extra(number);
        append(&body.bytes, of.data(), of.size());
        return remote->call(extra_name, body);
    };
    const auto one = handle(a, IBX_EXTRA_IPC_MEMORY, memory + 17);
    const auto two = handle(a, IBX_EXTRA_IPC_EVENT, event);
    REQUIRE(!one.empty() && !two.empty() && one != two);
    REQUIRE(b->call(extra_name, extra(IBX_EXTRA_IPC_MEMORY).u64(memory)) == bad_pointer);
    REQUIRE(open(b, IBX_EXTRA_IPC_OPEN_MEMORY, one) == 400);
    REQUIRE(open(b, IBX_EXTRA_IPC_OPEN_EVENT, two) == 400);
    REQUIRE(open(&again.remote, IBX_EXTRA_IPC_OPEN_MEMORY, one) == 0);
    REQUIRE(again.remote.out.size() == 16 && !std::memcmp(again.remote.out.data(), &memory, 8));
    REQUIRE(open(&again.remote, IBX_EXTRA_IPC_OPEN_EVENT, two) == 0);
    REQUIRE(!std::memcmp(again.remote.out.data(), &event, 8));
    REQUIRE(open(a, IBX_EXTRA_IPC_OPEN_MEMORY, std::vector<char>(63)) == bad_pointer);
    REQUIRE(open(a, IBX_EXTRA_IPC_OPEN_MEMORY, std::vector<char>(64)) == 400);
    // The other tenant's, at an address that was this one's.
    REQUIRE(a->free(memory) == 0 && open(a, IBX_EXTRA_IPC_OPEN_MEMORY, one) == 400);
    REQUIRE(b->malloc(5000) == memory && open(a, IBX_EXTRA_IPC_OPEN_MEMORY, one) == 400);
    REQUIRE(handle(b, IBX_EXTRA_IPC_MEMORY, memory) != one);
    REQUIRE(a->call("cudaEventDestroy", Body().u64(event)) == 0);
    REQUIRE(open(a, IBX_EXTRA_IPC_OPEN_EVENT, two) == 400);
    return !handle(b, IBX_EXTRA_IPC_MEMORY, own).empty();
}

// Memory that cannot be counted is refused where it is to be counted.
bool requests_of_ours_counted()
{
    TenantsBackEnd back("rdma.device_memory : 1G\n");
    Client alice(back, "alice");
    REQUIRE(alice.remote.malloc(100) && !alice.remote.get_last_error());
    REQUIRE(alice.remote.call(extra_name, extra(20).u64(4096).u64(0)) == 801);
    const std::uint64_t graph = made(&alice.remote, extra(IBX_EXTRA_GRAPH_CREATE).i32(0));
    Body allocation = extra(IBX_EXTRA_NODE_ALLOC).u64(graph);
    allocation.put(static_cast<std::uint16_t>(0));
    REQUIRE(graph && alice.remote.call(extra_name, allocation.i32(0).u64(4096)) == 801);
    return alice.remote.call(extra_name, array_of_bytes(64)) == 801;
}

bool another(const std::string &more)
{
    TenantsBackEnd back(more);
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t device = alice.remote.malloc(device_size);
    std::uint64_t own = bob.remote.malloc(device_size);
    auto bytes = random_bytes(device_size, 3);
    REQUIRE(alice.remote.to_device(device, bytes.data(), bytes.size()) == 0);
    REQUIRE(refused(&bob.remote, device, own, device_size));
    REQUIRE(untouched(&alice.remote, device, bytes));
    REQUIRE(works(&bob.remote, own, device_size));
    // What crosses into it, and what ends before it.
    std::uint64_t small = alice.remote.malloc(5000);
    std::vector<char> some(6000);
    REQUIRE(bob.remote.from_device(some.data(), small - 500, 501) == bad_pointer);
    REQUIRE(bob.remote.from_device(some.data(), small + 4999, 1) == bad_pointer);
    REQUIRE(alice.remote.from_device(some.data(), small + 4999, 1) == 0);
    REQUIRE(alice.remote.from_device(some.data(), small + 4999, 2) == bad_pointer); // CUDA's own
    // Pitched.
    Body pitched;
    std::uint64_t rows = alice.remote.address("cudaMallocPitch", pitched.u64(0).u64(700).u64(20));
    REQUIRE(rows && bob.remote.from_device(some.data(), rows + 1024 * 19, 700) == bad_pointer);
    REQUIRE(alice.remote.from_device(some.data(), rows + 1024 * 19, 700) == 0);
    return true;
}

bool freed()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t device = alice.remote.malloc(device_size), own = bob.remote.malloc(100);
    auto bytes = random_bytes(device_size, 3);
    REQUIRE(alice.remote.to_device(device, bytes.data(), bytes.size()) == 0);
    REQUIRE(bob.remote.free(device) == bad_pointer);
    REQUIRE(bob.remote.free(device + 4096) == bad_pointer);
    REQUIRE(alice.remote.free(device + 4096) == bad_pointer); // CUDA's own: it stays alice's
    REQUIRE(refused(&bob.remote, device, own, 100));
    REQUIRE(untouched(&alice.remote, device, bytes));
    alice.remote.inject("cuMemFree", 1, 2, false); // a free that fails: it stays alice's
    REQUIRE(alice.remote.free(device) == 2);
    REQUIRE(refused(&bob.remote, device, own, 100));
    REQUIRE(alice.remote.free(device) == 0);
    // Freed, and allocated by nobody that was seen: it is nobody's.
    REQUIRE(alice.remote.address("testMalloc", Body().u64(device_size)) == device);
    REQUIRE(works(&bob.remote, device, device_size));
    REQUIRE(bob.remote.free(device) == 0);
    REQUIRE(bob.remote.malloc(device_size) == device);
    REQUIRE(works(&bob.remote, device, device_size));
    REQUIRE(refused(&alice.remote, device, device, 100));
    return true;
}

bool ended()
{
    TenantsBackEnd back;
    Client bob(back, "bob");
    std::uint64_t device = 0;
    std::uint64_t own = bob.remote.malloc(100);
    auto bytes = random_bytes(100, 3);
    {
        Client alice(back, "alice");
        device = alice.remote.malloc(100);
        REQUIRE(alice.remote.to_device(device, bytes.data(), 100) == 0);
        alice.over->Close();
    }
    REQUIRE(refused(&bob.remote, device, own, 100));
    Client again(back, "alice");
    REQUIRE(untouched(&again.remote, device, bytes));
    // A reset takes one's own, as of a process.
    bob.remote.get_last_error(); // by the runtime, which is there from now on
    REQUIRE(bob.remote.reset() == 0 && untouched(&again.remote, device, bytes));
    char byte;
    REQUIRE(!again.remote.peek(own, &byte, 1));
    own = bob.remote.malloc(100);
    REQUIRE(own);
    return refused(&bob.remote, device, own, 100);
}

// Whose handles are no device memory, and belong to a tenant all the same.
bool arrays()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t array = alice.remote.address("cudaMallocArray", Body().u64(1));
    char byte = 0;
    REQUIRE(array && bob.remote.malloc(100));
    REQUIRE(bob.remote.call("cudaFreeArray", Body().u64(array)) == 0); // of NULL
    REQUIRE(bob.remote.from_device(&byte, array - 64, 1) == 0);
    REQUIRE(bob.remote.from_device(&byte, array, 1) == bad_pointer);
    REQUIRE(alice.remote.call("cudaFreeArray", Body().u64(array)) == 0);
    REQUIRE(alice.remote.call("cudaFreeArray", Body().u64(array)) == bad_pointer);
    return true;
}

// A GVirtuS of another kind, whose requests cannot be looked into.
void serve_in_pieces(Communicator *client)
{
    for (;;) {
        char piece[10] = {1};
        while (piece[0]) {
            if (client->Read(piece, 1) != 1)
                return;
        }
        std::uint64_t length = 0;
        client->Read(reinterpret_cast<char *>(&length), sizeof(length));
        for (std::uint64_t some; length; length -= some) {
            some = std::min<std::uint64_t>(length, sizeof(piece));
            client->Read(piece, some);
        }
        const char reply[20] = {};
        client->Write(reply, 4);
        client->Write(reply + 4, 8);
        client->Write(reply + 12, 8);
        client->Sync();
    }
}

bool in_pieces()
{
    BackEnd back(keys() + "rdma.gpu : off\n", [](auto listening) {
        listening->Serve();
        for (;;)
            std::thread(serve_in_pieces, const_cast<Communicator *>(listening->Accept())).detach();
    });
    Client alice(back, "alice"), bob(back, "bob");
    char bytes[100] = {};
    REQUIRE(alice.remote.call("cudaLaunchKernel", Body().host(bytes, sizeof(bytes))) == 0);
    REQUIRE(bob.remote.call("cudaFree", Body().u64(4096)) == 0); // whole, it happens to be
    REQUIRE(bob.remote.to_device(4096, bytes, sizeof(bytes)) == gone);
    REQUIRE(alice.remote.call("cudaGetLastError", Body()) == 0);
    return true;
}

// Before the session has had a reply whose shape tells how to answer.
bool first_request()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t device = alice.remote.malloc(100000);
    auto bytes = random_bytes(100000, 3);
    REQUIRE(alice.remote.to_device(device, bytes.data(), 100000) == 0);
    std::vector<char> got(100000);
    REQUIRE(bob.remote.from_device(got.data(), device, 100000) == bad_pointer);
    REQUIRE(untouched(&alice.remote, device, bytes));
    return true;
}

bool shared()
{
    TenantsBackEnd back("rdma.tenants : shared\n");
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t device = alice.remote.malloc(device_size);
    REQUIRE(works(&bob.remote, device, device_size));
    REQUIRE(bob.remote.free(device) == 0);
    return true;
}

// What the heap held does not leave with the error of a copy from an address that is none.
bool failed_copies()
{
    TenantsBackEnd back;
    Client alice(back, "alice");
    REQUIRE(alice.remote.malloc(100));
    for (std::size_t n : {std::size_t{4}, std::size_t{8}, std::size_t{5000}, std::size_t{300000}}) {
        std::vector<char> got(n);
        REQUIRE(alice.remote.from_device(got.data(), 4096, n) == bad_pointer);
        REQUIRE(alice.remote.out.size() == n + 8 && zeros(alice.remote.out));
    }
    return true;
}

bool log_line()
{
    const std::string file = folder + "/log";
    BackEnd back(keys() + "rdma.log : warn\n", [&](auto listening) {
        if (!std::freopen(file.c_str(), "w", stderr))
            std::abort();
        cuda_back_end_child(listening, true);
    });
    {
        Client alice(back, "alice"), bob(back, "bob");
        std::uint64_t device = alice.remote.malloc(100);
        for (int i = 0; i < 3; i++)
            REQUIRE(bob.remote.free(device) == bad_pointer);
    }
    std::ifstream log(file);
    unsigned lines = 0;
    for (std::string line; std::getline(log, line);) {
        bool both = line.find("\"alice\"") != std::string::npos &&
                    line.find("\"bob\"") != std::string::npos &&
                    line.find("cudaFree") != std::string::npos;
        REQUIRE(line.find("0123456789") == std::string::npos);
        lines += both;
    }
    REQUIRE(lines == 1);
    return true;
}

bool has_session(Client *client)
{
    return client->remote.call("cudaGetLastError", Body()) != gone;
}

bool sessions()
{
    TenantsBackEnd back("rdma.sessions : 4\nrdma.tenant_share : 75\n");
    auto first = std::make_unique<Client>(back, "alice");
    Client second(back, "alice"), third(back, "alice");
    REQUIRE(has_session(first.get()) && has_session(&second) && has_session(&third));
    Client fourth(back, "alice"), bob(back, "bob"), more(back, "bob");
    REQUIRE(!has_session(&fourth));
    REQUIRE(has_session(&bob));
    REQUIRE(!has_session(&more));
    REQUIRE(has_session(&second));
    first->over->Close();
    for (int tries = 0;; tries++) { // until the back end has seen that
        Client again(back, "alice");
        if (has_session(&again))
            break;
        REQUIRE(tries < 2000);
    }
    return true;
}

bool requests()
{
    TenantsBackEnd back("rdma.gpu : off\nrdma.requests : 4M\nrdma.tenant_share : 50\n");
    std::vector<char> bytes(3u << 20);
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t device = alice.remote.malloc(bytes.size());
    REQUIRE(alice.remote.to_device(device, bytes.data(), 1u << 20) == 0);
    {
        Client second(back, "alice"); // together they would hold more than half
        REQUIRE(second.remote.to_device(device, bytes.data(), 1u << 20) == gone);
    }
    REQUIRE(alice.remote.to_device(device, bytes.data(), 1u << 20) == 0);
    std::uint64_t own = bob.remote.malloc(bytes.size());
    REQUIRE(bob.remote.to_device(own, bytes.data(), 2000000) == 0);
    REQUIRE(bob.remote.from_device(bytes.data(), own, 2000000) == 0);
    REQUIRE(bob.remote.from_device(bytes.data(), own, 3000000) == gone);
    REQUIRE(alice.remote.to_device(device, bytes.data(), 3u << 20) == gone);
    REQUIRE(back.alive());
    // Copies that the plugin runs itself are not in GVirtuS's buffers.
    TenantsBackEnd ours("rdma.requests : 1M\n");
    Client carol(ours, "alice");
    std::uint64_t large = carol.remote.malloc(bytes.size());
    REQUIRE(carol.remote.to_device(large, bytes.data(), bytes.size()) == 0);
    REQUIRE(carol.remote.from_device(bytes.data(), large, bytes.size()) == 0);
    return true;
}

constexpr int out_of_memory = 2;

int allocate(Client *client, std::uint64_t n)
{
    return client->remote.call("cudaMalloc", Body().u64(n));
}

int allocate_rows(Client *client, std::uint64_t width, std::uint64_t height)
{
    return client->remote.call("cudaMallocPitch", Body().u64(0).u64(width).u64(height));
}

// Too much is refused by CUDA itself, and nothing else changes.
bool device_memory_of(const std::string &more, const char *first, const char *second)
{
    TenantsBackEnd back("rdma.device_memory : 8M\nrdma.tenant_share : 50\n" + more);
    Client alice(back, first), bob(back, second);
    std::uint64_t device = alice.remote.malloc(3u << 20);
    auto bytes = random_bytes(3u << 20, 3), got = random_bytes(3u << 20, 4);
    REQUIRE(device && alice.remote.to_device(device, bytes.data(), bytes.size()) == 0);
    REQUIRE(allocate(&alice, (1u << 20) + 1) == out_of_memory);
    REQUIRE(allocate(&alice, UINT64_MAX) == out_of_memory);
    REQUIRE(allocate_rows(&alice, 1, 2049) == out_of_memory);
    REQUIRE(allocate_rows(&alice, 600, 1u << 19) == out_of_memory);
    REQUIRE(allocate_rows(&alice, 1, UINT64_MAX) == out_of_memory);
    {
        Client second_session(back, first); // it is the tenant's, whichever session asks
        REQUIRE(allocate(&second_session, (1u << 20) + 1) == out_of_memory);
        std::uint64_t rest = second_session.remote.malloc(1u << 20);
        REQUIRE(rest && allocate(&alice, 1) == out_of_memory);
        REQUIRE(alice.remote.free(rest) == 0);
        REQUIRE(alice.remote.free(rest) == bad_pointer); // twice
        REQUIRE(alice.remote.free(rest) == bad_pointer);
        REQUIRE(second_session.remote.free(rest + 512) == bad_pointer);
    }
    REQUIRE(allocate(&alice, (1u << 20) + 1) == out_of_memory);
    // The other one has as much, and is in nobody's way.
    REQUIRE(allocate(&bob, (4u << 20) + 1) == out_of_memory);
    std::uint64_t own = bob.remote.malloc(4u << 20);
    REQUIRE(own && works(&bob.remote, own, 4u << 20));
    // Again and again, of other sizes at one place.
    for (std::uint64_t n : {1000000u, 5u, 1048576u, 4096u, 1048576u}) {
        std::uint64_t again = alice.remote.malloc(n);
        REQUIRE(again && allocate(&alice, 1048577) == out_of_memory);
        REQUIRE(alice.remote.free(again) == 0);
    }
    for (int i = 0; i < 5; i++) // nothing counts for nothing
        REQUIRE(allocate_rows(&alice, 1u << 20, 0) == 0);
    alice.remote.inject("cuMemAlloc", 1, 2, false); // one that fails counts for nothing
    REQUIRE(allocate(&alice, 1u << 20) == 2);
    // A free that fails gives nothing back, a reset all.
    alice.remote.inject("cuMemFree", 1, 2, false);
    REQUIRE(alice.remote.free(device) == 2);
    REQUIRE(allocate(&alice, (1u << 20) + 1) == out_of_memory);
    REQUIRE(alice.remote.from_device(got.data(), device, got.size()) == 0 && got == bytes);
    REQUIRE(alice.remote.free(device) == 0);
    REQUIRE(alice.remote.malloc(4u << 20));
    REQUIRE(allocate(&alice, 1) == out_of_memory);
    REQUIRE(alice.remote.reset() == 0);
    REQUIRE(alice.remote.malloc(4u << 20));
    return true;
}

bool device_memory()
{
    return device_memory_of("", "alice", "bob") &&
           device_memory_of("rdma.gpu : off\n", "alice", "bob") &&
           device_memory_of("rdma.tenants : shared\n", "bob", "alice");
}

// A client that is gone left its memory in the back end: it counts until its name frees it.
bool device_memory_left_behind()
{
    TenantsBackEnd back("rdma.device_memory : 8M\nrdma.tenant_share : 50\n");
    Client bob(back, "bob");
    std::uint64_t device = 0;
    {
        Client alice(back, "alice");
        device = alice.remote.malloc(4u << 20);
        alice.over->Close();
    }
    Client again(back, "alice");
    REQUIRE(device && allocate(&again, 1) == out_of_memory);
    REQUIRE(bob.remote.free(device) == bad_pointer);
    REQUIRE(again.remote.malloc(1) == 0 && bob.remote.malloc(4u << 20));
    REQUIRE(again.remote.free(device) == 0 && again.remote.malloc(4u << 20));
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_tenants PLUGIN.so PROVIDER\n");
        return 2;
    }
    scene_open(argv[1], argv[2], nullptr);
    write_file(folder + "/keys",
               "alice:0123456789abcdef0123456789abcdef\n"
               "bob:0123456789abcdef0123456789abcde0\n",
               0600);
    check("sessions of one tenant share their memory", one_application);
    check("requests of our own", requests_of_ours);
    check("graphs", graphs_of_ours);
    check("handles for other processes", handles_of_ours);
    check("the same where memory is counted", requests_of_ours_counted);
    check("another tenant's memory is refused", [] { return another(""); });
    check("by GVirtuS's handlers, too", [] { return another("rdma.gpu : off\n"); });
    check("frees", freed);
    check("memory outlives its session", ended);
    check("the first request", first_request);
    check("arrays", arrays);
    check("a GVirtuS that reads in pieces", in_pieces);
    check("rdma.tenants : shared", shared);
    check("failed copies carry nothing", failed_copies);
    check("one line in the log", log_line);
    check("sessions have a limit", sessions);
    check("requests have a limit", requests);
    check("memory of the GPU has a limit", device_memory);
    check("memory of the GPU that a client left behind", device_memory_left_behind);
    return scene_close();
}
