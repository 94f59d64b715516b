// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The memory of one tenant is nobody else's: tenants_scene.h.
//
//   test_tenants PLUGIN.so PROVIDER
#include "tests/gvirtus/tenants_scene.h"

#include "frontend-glue/session/extensions.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace
{

bool one_application()
{
    TenantsBackEnd back;
    Client first(back, "alice"), second(back, "alice"), other(back, "bob");
    std::uint64_t device = first.remote.malloc(device_size);
    REQUIRE(device && other.remote.malloc(100));
    REQUIRE(works(&first.remote, device, device_size));
    REQUIRE(second.remote.get_last_error() == 0); // from now on the plugin makes copies
    REQUIRE(works(&second.remote, device, device_size));
    REQUIRE(second.remote.handled() == 0);
    REQUIRE(second.remote.free(device) == 0);
    return true;
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
    // Copies that cross into this memory, and copies that end before it.
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
    // Freed, and then allocated by somebody that was not seen: it is nobody's.
    REQUIRE(alice.remote.address("testMalloc", Body().u64(device_size)) == device);
    REQUIRE(works(&bob.remote, device, device_size));
    REQUIRE(bob.remote.free(device) == 0);
    REQUIRE(bob.remote.malloc(device_size) == device);
    REQUIRE(works(&bob.remote, device, device_size));
    REQUIRE(refused(&alice.remote, device, device, 100));
    return true;
}

// By one connection a client frees memory while a copy of another connection is under way there,
// and another tenant gets the memory.
bool freed_beside_a_copy(bool to_device)
{
    constexpr std::size_t n = 48u << 20, tail = 1u << 20;
    TenantsBackEnd back;
    Client copies(back, "alice"), frees(back, "alice"), bob(back, "bob");
    std::uint64_t device = copies.remote.malloc(n);
    std::vector<char> buffer(n, 'a'), secret(tail, 's'), now(tail);
    REQUIRE(device && copies.remote.to_device(device, buffer.data(), n) == 0);
    REQUIRE(frees.remote.get_last_error() == 0 && bob.remote.slow(30000));
    const auto before = bob.remote.stats().copies_async;
    std::atomic<bool> over{false};
    int rc = -1;
    std::thread copy([&] {
        rc = to_device ? copies.remote.to_device(device, buffer.data(), n)
                       : copies.remote.from_device(buffer.data(), device, n);
        over = true;
    });
    while (bob.remote.stats().copies_async == before && !over)
        std::this_thread::yield();
    const int freed_rc = frees.remote.free(device);
    bob.remote.slow(0);
    const std::uint64_t again = bob.remote.malloc(n);
    const bool written = again && bob.remote.to_device(again + n - tail, secret.data(), tail) == 0;
    copy.join();
    REQUIRE(rc == 0 && freed_rc == 0 && again == device && written);
    REQUIRE(bob.remote.from_device(now.data(), again + n - tail, tail) == 0 && now == secret);
    return HOLDS(buffer == std::vector<char>(n, 'a') && bob.remote.free(again) == 0);
}

// A client that frees another tenant's memory, or unmaps what is there, does not wait for the
// copies of that tenant, nor keep them out.
bool freed_beside_anothers_copy()
{
    constexpr std::size_t n = 48u << 20;
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    std::uint64_t device = bob.remote.malloc(n);
    std::vector<char> buffer(n, 'b');
    REQUIRE(device && bob.remote.to_device(device, buffer.data(), n) == 0);
    REQUIRE(alice.remote.malloc(1) && alice.remote.get_last_error() == 0);
    REQUIRE(alice.remote.slow(30000));
    Body unmap; // an extension request: what is mapped at these addresses
    unmap.bytes = {static_cast<char>(IBX_EXT_VIRTUAL_UNMAP & 255), 0};
    unmap.u64(device).u64(UINT64_MAX - device);
    const auto copies = [&] { return alice.remote.stats().copies_async; };
    const auto before = copies();
    std::atomic<int> rc{-1};
    std::thread copy([&] { rc = bob.remote.to_device(device, buffer.data(), n); });
    while (copies() == before && rc < 0)
        std::this_thread::yield();
    const int freed = alice.remote.free(device);
    const auto after_free = copies();
    const int unmapped = alice.remote.call("ibxRuntime", unmap);
    const auto after_unmap = copies();
    alice.remote.slow(0);
    copy.join();
    REQUIRE(rc == 0 && freed == bad_pointer && unmapped == bad_pointer);
    REQUIRE(after_free < copies() && after_unmap < copies());
    return HOLDS(bob.remote.free(device) == 0);
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
    // A reset takes only the tenant's own memory, as it would a process's.
    bob.remote.get_last_error(); // by the runtime, which is there from now on
    REQUIRE(bob.remote.reset() == 0 && untouched(&again.remote, device, bytes));
    char byte;
    REQUIRE(!again.remote.peek(own, &byte, 1));
    own = bob.remote.malloc(100);
    REQUIRE(own);
    return HOLDS(refused(&bob.remote, device, own, 100));
}

// Arrays: their handles are no device memory, but belong to a tenant all the same.
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
    REQUIRE(alice.remote.call("cudaFreeArray", Body().u64(array)) == 0); // of NULL
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

// Before the session has had a reply, which shows in what form to answer.
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

// The error of a copy from a wrong address sends no bytes of the heap.
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
        if (!std::freopen(file.c_str(), "a", stderr))
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

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_tenants PLUGIN.so PROVIDER\n");
        return 2;
    }
    scene_open(argv[1], argv[2], nullptr);
    processes = one_process;
    write_file(folder + "/keys",
               "alice:0123456789abcdef0123456789abcdef\n"
               "bob:0123456789abcdef0123456789abcde0\n",
               0600);
    check("sessions of one tenant share their memory", one_application);
    check_tenants_requests();
    check("another tenant's memory is refused", [] { return another(""); });
    check("by GVirtuS's handlers, too", [] { return another("rdma.gpu : off\n"); });
    check("frees", freed);
    for (bool to_device : {false, true})
        check("frees beside a copy", [=] { return freed_beside_a_copy(to_device); });
    check("... of another tenant", freed_beside_anothers_copy);
    check("memory outlives its session", ended);
    check("the first request", first_request);
    check("arrays", arrays);
    check("a GVirtuS that reads in pieces", in_pieces);
    check("rdma.tenants : shared", shared);
    check("failed copies carry nothing", failed_copies);
    check("one line in the log", log_line);
    check_tenants_limits();
    check_tenants_handles();
    return scene_close();
}
