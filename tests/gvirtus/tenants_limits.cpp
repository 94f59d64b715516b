// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What a tenant may make the back end hold: sessions, requests, memory of the GPU.
#include "tests/gvirtus/cubin.h"
#include "tests/gvirtus/tenants_scene.h"
#include "tests/fixtures/patience.h"

#include "frontend-glue/session/extensions.h"

#include <csignal>
#include <ctime>
#include <sys/resource.h>
#include <thread>

namespace
{

bool has_session(Client *client)
{
    return client->remote.call("cudaGetLastError", Body()) != gone;
}

// Whether the session outlives the request, whose answer is a success even if the session ends.
bool stays_registering(Client *client, const Body &module)
{
    client->remote.call("cudaRegisterFatBinary", module);
    return has_session(client);
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
    for (int tries = 0;; tries++) { // until the back end has seen the end
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

// What a handler leaves behind when it throws still counts.
bool requests_that_throw()
{
    TenantsBackEnd back("rdma.gpu : off\nrdma.requests : 4M\nrdma.tenant_share : 50\n");
    const std::vector<char> bytes(1500000);
    Client bob(back, "bob");
    const std::uint64_t device = bob.remote.malloc(bytes.size());
    for (bool over : {false, true}) {
        Client alice(back, "alice");
        const std::uint64_t own = alice.remote.malloc(bytes.size());
        REQUIRE(alice.remote.to_device(own, bytes.data(), 700000) == (over ? gone : 0));
        REQUIRE(over || alice.remote.to_device(own, bytes.data(), bytes.size()) == 0);
        REQUIRE(over || alice.remote.call("throws", Body()) == gone);
    }
    return HOLDS(bob.remote.to_device(device, bytes.data(), bytes.size()) == 0 && back.alive());
}

bool is_mapped(Client *client, std::uint64_t there)
{
    const Body body =
        Body().put(std::uint16_t{IBX_EXT_HOST_MAP}).u64(there).u64(4096).u64(IBX_EXT_OWN_PAGES);
    return client->remote.call(IBX_EXT_NAME, body) == 0;
}

// A program that has as many pages for kernels as it may, and says how many; then it waits until
// its parent closes the pipe.
pid_t maps_much(const TenantsBackEnd &back, std::uint64_t there, const int (&says)[2],
                const int (&ends)[2])
{
    return spawn([&] {
        close(ends[1]);
        Client alice(back, "alice");
        alice.remote.get_last_error();
        unsigned made = 0;
        while (made < 2000 && is_mapped(&alice, there + std::uint64_t{8192} * made))
            made++;
        char end;
        return write(says[1], &made, sizeof(made)) == sizeof(made) && !read(ends[0], &end, 1) ? 0
                                                                                              : 1;
    });
}

// One tenant's programs leave others some of the process's mappings.
bool mapped_memory()
{
    constexpr std::uint64_t there = 0x230000000000;
    TenantsBackEnd back;
    int says[2], ends[2];
    unsigned all = 0, made;
    REQUIRE(!pipe(says) && !pipe(ends));
    std::vector<pid_t> programs;
    for (unsigned i = 0; i < 5; i++) {
        programs.push_back(maps_much(back, there + (std::uint64_t{i} << 28), says, ends));
        REQUIRE(read(says[0], &made, sizeof(made)) == sizeof(made) && made <= 1024);
        all += made;
    }
    Client bob(back, "bob");
    const bool maps =
        bob.remote.get_last_error() == 0 && is_mapped(&bob, there + (std::uint64_t{9} << 28));
    close(ends[1]);
    for (const pid_t pid : programs)
        REQUIRE(result_of(pid) == 0);
    for (const int fd : {says[0], says[1], ends[0]})
        close(fd);
    return HOLDS(all == 4096 && maps && back.alive());
}

// GVirtuS keeps a request's name until its end comes, and writes one that it does not know to its
// log, whatever that contains.
bool names()
{
    TenantsBackEnd back;
    Client bob(back, "bob");
    const std::string names[] = {std::string(1u << 20, 'a'), "cudaNothing\nERROR: bob is gone",
                                 "cudaNothing\x1b[2J", "cudaNothing\x9b"};
    REQUIRE(bob.remote.call("cudaNothing", Body()) != gone);
    REQUIRE(bob.remote.call(std::string(200, 'a').c_str(), Body()) != gone);
    for (const std::string &name : names) {
        Client alice(back, "alice");
        REQUIRE(alice.remote.call(name.c_str(), Body()) == gone);
    }
    return HOLDS(has_session(&bob) && back.alive());
}

// GVirtuS loads a file in /tmp that anybody may have written, in between, too.
bool module_files()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    REQUIRE(bob.remote.call("cuModuleLoadData", Body()) != gone);
    REQUIRE(bob.remote.call("cuModuleLoa", Body()) != gone);
    REQUIRE(alice.remote.call("cuModuleLoad", Body()) == gone);
    return HOLDS(has_session(&bob) && back.alive());
}

// Handlers whose functions CUDA's runtime no longer has: the loader would end the process.
bool absent_functions()
{
    TenantsBackEnd back;
    Client bob(back, "bob");
    REQUIRE(bob.remote.call("cudaLaunch?", Body()) != gone);
    for (const char *name : {"cudaConfigureCall", "cudaLaunch", "cudaSetupArgument",
                             "cudaRegisterShared", "cudaRegisterSharedVar"}) {
        Client alice(back, "alice");
        REQUIRE(alice.remote.call(name, Body()) == gone);
    }
    return HOLDS(has_session(&bob) && back.alive());
}

// A registration with an image of n bytes, of which 8 come, and `compressed` of which become
// `unpacked` bytes; 0: it is not compressed.
Body fat_binary(std::uint32_t n, std::uint64_t unpacked = 0, std::uint64_t compressed = 0)
{
    Body body;
    body.string("0x7f0011223344").i32(0x466243b1).i32(1).u64(88).u64(88);
    body.u64(0x00100001ba55ed50).u64(72).i32(0x1010001).i32(64).i32(static_cast<int>(n)).i32(0);
    body.u64(compressed);
    for (int i = 0; i < 4; i++)
        body.u64(0);
    return body.u64(unpacked).u64(0);
}

// Replies that handlers are making count together.
bool replies()
{
    TenantsBackEnd back("rdma.requests : 4M\nrdma.tenant_share : 50\n");
    const auto ask = [](Client *client, std::uint64_t n) {
        const Body body = Body().u64(0).string("0x1000").string("k").u64(n).u64(0).i32(D2H);
        return client->remote.call("cudaMemcpyFromSymbol", body);
    };
    Client slow(back, "alice"), gate(back, "alice");
    gate.remote.gate(true);
    std::thread staying([&] { ask(&slow, 1200000); });
    bool begun = false;
    for (const time_t limit = time(nullptr) + patience_ms(30000) / 1000;
         !begun && time(nullptr) < limit;)
        begun = gate.remote.inside();
    Client second(back, "alice"); // by a handler that does not stay
    const Body array = Body().host("", 1).u64(0).u64(0).u64(0).u64(1200000).i32(D2H);
    const bool refused = begun && second.remote.call("cudaMemcpyFromArray", array) == gone;
    gate.remote.gate(false);
    staying.join();
    REQUIRE(refused);
    for (int i = 0; i < 3; i++)
        REQUIRE(ask(&slow, 1200000) == -1);
    return HOLDS(ask(&slow, 1u << 22) == gone && has_session(&gate));
}

// ... until the client has taken them.
bool replies_that_wait()
{
    TenantsBackEnd back("rdma.gpu : off\nrdma.requests : 4M\nrdma.tenant_share : 50\n");
    const std::size_t n = 1200000;
    std::vector<char> bytes(n);
    Client slow(back, "alice"), other(back, "alice");
    const std::uint64_t own = slow.remote.malloc(n), its = other.remote.malloc(n);
    const std::uint64_t before = other.remote.handled();
    const std::string name = "cudaMemcpy";
    const Body body = Body().host("", 1).u64(own).u64(n).i32(D2H);
    const std::uint64_t length = body.bytes.size();
    slow.over->Write(name.c_str(), name.size() + 1);
    slow.over->Write(reinterpret_cast<const char *>(&length), sizeof(length));
    slow.over->Write(body.bytes.data(), length);
    slow.over->Sync();
    slow.over->Sync();
    while (other.remote.handled() == before)
        usleep(1000);
    REQUIRE(other.remote.from_device(bytes.data(), its, n) == gone);
    slow.over->Close();
    for (int tries = 0;; tries++) { // until the back end has seen the end
        Client again(back, "alice");
        const std::uint64_t device = again.remote.malloc(n);
        if (again.remote.from_device(bytes.data(), device, n) == 0)
            return true;
        REQUIRE(tries < 2000);
    }
}

// A registration with a cubin of so many kernels.
Body kernels(unsigned count)
{
    Body body;
    Cubin cubin;
    for (unsigned i = 0; i < count; i++)
        cubin.section((".nv.info." + std::to_string(i)).c_str(), SHT_PROGBITS, "");
    const std::vector<char> image = cubin.image();
    const std::uint64_t bytes = image.size() + 64;
    body.string("0x7f0011223344").i32(0x466243b1).i32(1).u64(bytes + 16).u64(bytes + 16);
    body.u64(0x00100001ba55ed50).u64(bytes).i32(0x1010002).i32(64).u64(image.size());
    for (int i = 0; i < 6; i++)
        body.u64(0);
    body.bytes.insert(body.bytes.end(), image.begin(), image.end());
    return body;
}

// The handler keeps names and parameters beside the request: of 5000 kernels 0.4 MiB come, and
// 0.7 MiB are kept.
bool kernels_of_cubins()
{
    TenantsBackEnd back("rdma.requests : 4M\nrdma.tenant_share : 50\n");
    Client alice(back, "alice"), bob(back, "bob");
    const Body many = kernels(5000);
    REQUIRE(stays_registering(&alice, many));
    REQUIRE(!stays_registering(&alice, many));
    return HOLDS(stays_registering(&bob, many));
}

// The handler makes room for the whole image, as long as it works, and for another one as long.
bool unpacked_images()
{
    TenantsBackEnd back("rdma.requests : 4M\nrdma.tenant_share : 50\n");
    Client bob(back, "bob");
    for (int i = 0; i < 3; i++)
        REQUIRE(stays_registering(&bob, fat_binary(8, 900000)));
    for (const std::uint64_t bytes : {std::uint64_t{1100000}, std::uint64_t{1} << 30}) {
        Client alice(back, "alice");
        REQUIRE(!stays_registering(&alice, fat_binary(8, bytes)));
        Client second(back, "alice"); // what the first one was refused is nobody's
        REQUIRE(stays_registering(&second, fat_binary(8, 900000)));
    }
    for (int i = 0; i < 3; i++) { // ... nor is what one took that has no handler
        Client alice(back, "alice");
        REQUIRE(!stays_registering(&alice, fat_binary(8, 900000, 9)));
    }
    bool has_room = false; // as soon as the last one has been noticed
    for (const time_t limit = time(nullptr) + patience_ms(30000) / 1000;
         !has_room && time(nullptr) < limit;) {
        Client alice(back, "alice");
        has_room = stays_registering(&alice, fat_binary(8, 900000));
    }
    REQUIRE(has_room);
    return HOLDS(stays_registering(&bob, fat_binary(8, 900000)));
}

Body load(int option)
{
    return Body().i32(1).u64(4).i32(option).string("PTX").u64(8).u64(32);
}

// Handlers would follow these lengths beyond the request, and beyond memory of 1,024 bytes.
bool beyond_memory()
{
    constexpr int registers = 0, log = 3, symbols = 17;
    TenantsBackEnd back;
    Client bob(back, "bob");
    REQUIRE(stays_registering(&bob, fat_binary(8)));
    REQUIRE(bob.remote.call("cuModuleLoadDataEx", load(registers)) != gone);
    for (const std::uint32_t n : {16u, UINT32_MAX}) {
        Client alice(back, "alice");
        REQUIRE(!stays_registering(&alice, fat_binary(n)));
    }
    Client alice(back, "alice");
    REQUIRE(alice.remote.call("cuCtxCreate", Body().i32(0).i32(0)) == 0);
    REQUIRE(alice.remote.call("cudaIpcOpenMemHandle", Body()) == -1);    // no secret leads there
    REQUIRE(alice.remote.call("cuModuleLoadDataEx", load(log)) != gone); // it is empty
    REQUIRE(alice.remote.call("cuModuleLoadDataEx", load(symbols)) == gone);
    return HOLDS(has_session(&bob) && back.alive());
}

// The runtime keeps what is pushed until it is popped.
bool pushed()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    const auto times = [](Client *client, const char *name, unsigned n) {
        int rc = 0;
        for (unsigned i = 0; i < n; i++)
            rc = client->remote.call(name, Body());
        return rc;
    };
    for (unsigned round = 0; round < 3; round++) {
        REQUIRE(times(&bob, "cudaPushCallConfiguration", 1000) != gone);
        REQUIRE(times(&bob, "cudaPopCallConfiguration", 1010) != gone);
    }
    REQUIRE(times(&alice, "cudaPushCallConfiguration", 1024) != gone);
    REQUIRE(times(&alice, "cudaPopCallConfiguratio?", 8) != gone); // which pops none
    REQUIRE(times(&alice, "cudaPushCallConfiguration", 1) == gone);
    return HOLDS(has_session(&bob) && back.alive());
}

// GVirtuS has one table of what all clients have registered.
bool registered()
{
    constexpr int unknown = -1;
    TenantsBackEnd back;
    Client alice(back, "alice");
    const Body memory = Body().u64(0x7f00'1000).u64(4096).i32(0), at = Body().u64(0x7f00'1000);
    REQUIRE(alice.remote.call("cudaHostRegister", memory) == 0);
    Client bob(back, "bob");
    REQUIRE(has_session(&bob) && bob.remote.call("cudaHostUnregister", at) == unknown);
    for (Client *client : {&bob, &alice})
        REQUIRE(client->remote.call("cudaHostRegister", memory) == unknown);
    TenantsBackEnd limited("rdma.pins : 4M\n");
    Client carol(limited, "alice");
    return HOLDS(carol.remote.call("cudaHostRegister", memory) == unknown);
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

// CUDA itself refuses too much, and nothing else changes.
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
    Body more_behind; // what the handler does not read
    more_behind.u64(0).u64(512).u64(2049).u64(1).u64(1);
    REQUIRE(!alice.remote.address("cudaMallocPitch", more_behind));
    {
        Client second_session(back, first); // the tenant's limit holds, whichever session asks
        REQUIRE(allocate(&second_session, (1u << 20) + 1) == out_of_memory);
        std::uint64_t rest = second_session.remote.malloc(1u << 20);
        REQUIRE(rest && allocate(&alice, 1) == out_of_memory);
        REQUIRE(alice.remote.free(rest) == 0);
        REQUIRE(alice.remote.free(rest) == bad_pointer); // twice
        REQUIRE(alice.remote.free(rest) == bad_pointer);
        REQUIRE(second_session.remote.free(rest + 512) == bad_pointer);
    }
    REQUIRE(allocate(&alice, (1u << 20) + 1) == out_of_memory);
    // The other tenant has as much, and is in nobody's way.
    REQUIRE(allocate(&bob, (4u << 20) + 1) == out_of_memory);
    std::uint64_t own = bob.remote.malloc(4u << 20);
    REQUIRE(own && works(&bob.remote, own, 4u << 20));
    // Again and again, of other sizes at one place.
    for (std::uint64_t n : {1000000u, 5u, 1048576u, 4096u, 1048576u}) {
        std::uint64_t again = alice.remote.malloc(n);
        REQUIRE(again && allocate(&alice, 1048577) == out_of_memory);
        REQUIRE(alice.remote.free(again) == 0);
    }
    for (int i = 0; i < 5; i++) // 0 bytes count for nothing
        REQUIRE(allocate_rows(&alice, 1u << 20, 0) == 0);
    alice.remote.inject("cuMemAlloc", 1, 2, false); // an allocation that fails counts for nothing
    REQUIRE(allocate(&alice, 1u << 20) == 2);
    // A free that fails gives nothing back, a reset everything.
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

// Memory that a request takes for an array: the handler frees NULL, so it is still the tenant's.
bool device_memory_freed_as_array()
{
    TenantsBackEnd back("rdma.device_memory : 8M\nrdma.tenant_share : 50\n");
    Client alice(back, "alice"), bob(back, "bob");
    char byte = 0;
    const std::uint64_t device = alice.remote.malloc(4u << 20);
    REQUIRE(device && bob.remote.malloc(1));
    REQUIRE(alice.remote.call("cudaFreeArray", Body().u64(device)) == 0);
    REQUIRE(allocate(&alice, 1) == out_of_memory);
    REQUIRE(bob.remote.from_device(&byte, device, 1) == bad_pointer);
    REQUIRE(alice.remote.from_device(&byte, device, 1) == 0);
    return HOLDS(alice.remote.free(device) == 0 && alice.remote.malloc(4u << 20));
}

// A client that has gone left its memory in the back end: it counts until a client of its name
// frees it.
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

// Memory of a client whose process has ended is given back, and no longer counts.
bool device_memory_of_the_gone()
{
    TenantsBackEnd back("rdma.device_memory : 8M\nrdma.tenant_share : 50\n");
    const time_t limit = time(nullptr) + patience_ms(30000) / 1000;
    for (unsigned i = 0; i < 3; i++) {
        const pid_t pid = spawn([&] {
            Client alice(back, "alice");
            while (allocate(&alice, 4u << 20) == out_of_memory && time(nullptr) < limit)
                ; // until the one before has been noticed
            return raise(SIGKILL);
        });
        REQUIRE(result_of(pid) == 128 + SIGKILL && time(nullptr) < limit);
    }
    return true;
}

// Each stream takes memory of the GPU that is not counted, and makes everybody's waits for the
// device longer.
bool streams()
{
    constexpr unsigned most = 1u << 15;
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    for (unsigned i = 0; i < most - 3; i++)
        REQUIRE(alice.remote.bare_stream_create() != 0);
    Body last[3]; // streams that exist
    for (Body &one : last)
        one.u64(alice.remote.stream_create(1));
    {
        Client second(back, "alice"); // the tenant's limit holds, whichever session asks
        REQUIRE(second.remote.call("cuStreamCreate", Body().u64(0)) == gone);
    }
    // Others have as many, and alice has events, and her streams as before.
    REQUIRE(bob.remote.bare_stream_create() && bob.remote.stream_create(1));
    REQUIRE(alice.remote.event_create());
    REQUIRE(alice.remote.call("cudaStreamDestroy", last[0]) == 0);
    // Streams that are made at the same time may exceed the limit, but not again and again.
    Client third(back, "alice"), fourth(back, "alice");
    REQUIRE(has_session(&third));
    std::uint64_t beside = 0;
    std::thread thread([&] { beside = fourth.remote.bare_stream_create(true); });
    const std::uint64_t own = third.remote.bare_stream_create(true);
    thread.join();
    REQUIRE(own && beside && third.remote.call("cudaStreamDestroy", last[1]) == 0);
    REQUIRE(third.remote.call("cuStreamCreate", Body().u64(0)) == gone);
    REQUIRE(fourth.remote.call("cudaStreamDestroy", last[2]) == 0);
    REQUIRE(fourth.remote.bare_stream_create());
    REQUIRE(alice.remote.call("cudaStreamCreate", Body()) == gone);
    return HOLDS(back.alive());
}

// A session of that name, or null.
std::unique_ptr<Client> session_of(const BackEnd &back, const char *name)
{
    try {
        auto client = std::make_unique<Client>(back, name);
        return has_session(client.get()) ? std::move(client) : nullptr;
    } catch (const std::exception &) {
        return nullptr;
    }
}

// The connections of a tenant leave descriptors of the back end's process to another tenant.
bool descriptors()
{
    rlimit usual, few;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    few = usual;
    few.rlim_cur = 300;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    TenantsBackEnd back;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    std::vector<std::unique_ptr<Client>> alices;
    while (auto another = session_of(back, "alice"))
        alices.push_back(std::move(another));
    std::vector<std::unique_ptr<Client>> bobs;
    for (int i = 0; i < 5; i++) {
        bobs.push_back(session_of(back, "bob"));
        REQUIRE(bobs.back());
    }
    return HOLDS(alices.size() > 9 && has_session(alices[0].get()) && back.alive());
}

} // namespace

void check_tenants_limits()
{
    check("sessions have a limit", sessions);
    check("... and descriptors", descriptors);
    check("requests have a limit", requests);
    check("... also those of handlers that throw", requests_that_throw);
    check("... and so have their names", names);
    check("modules that GVirtuS takes from a file", module_files);
    check("functions that the runtime lacks", absent_functions);
    check("lengths beyond the memory of a handler", beyond_memory);
    check("images that are long once they are decompressed", unpacked_images);
    check("what handlers reply counts together", replies);
    check("... until the client has taken it", replies_that_wait);
    check("kernels of cubins, of which more is kept than comes", kernels_of_cubins);
    check("what GVirtuS registers", registered);
    check("configurations of launches that none pops", pushed);
    check("mappings for kernels have a limit", mapped_memory);
    check("memory of the GPU has a limit", device_memory);
    check("... also if it is freed as an array", device_memory_freed_as_array);
    check("streams have a limit", streams);
    check("memory of the GPU that a client left behind", device_memory_left_behind);
    check("... whose process has ended", device_memory_of_the_gone);
}
