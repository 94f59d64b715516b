// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Page-locked memory that is pinned in parts, or not at all, for a session of the program.
#include "tests/gvirtus/graph_calls.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>

namespace
{

constexpr std::size_t sent_bytes = 1u << 20;

// A way to send the memory on to the device, or to other host memory.
struct Way {
    const char *name;
    std::function<int(char *to)> run;
    std::size_t row, pitch;
};

const char *wanted; // the bytes that are to be sent on

void fill(void *memory)
{
    usleep(10000);
    std::memcpy(memory, wanted, sent_bytes);
}

enum Before { COPIED, CONNECTED, NOTHING };

bool rows_have(const char *to, const char *bytes, const Way &way)
{
    bool good = true;
    for (std::size_t at = 0; at < sent_bytes && good; at += way.pitch)
        good = device_has(to + at, bytes + at, way.row);
    return good;
}

// Work of a stream fills the memory, and another thread, whose session may not pin it, sends it on
// at once. `filled`: begins that work. `before`: what that thread has called before.
bool goes_on(char *device, char *memory, const Way &way, unsigned seed,
             const std::function<int()> &filled, Before before)
{
    const std::vector<char> bytes = random_bytes(sent_bytes, seed);
    std::promise<void> ready, fills;
    wanted = bytes.data();
    int rc = cudaMemcpy(device, bytes.data(), sent_bytes, H2D);
    rc = rc ? rc : cudaMemset(device + sent_bytes, 0, sent_bytes);
    REQUIRE(rc == 0 && cudaDeviceSynchronize() == 0);
    std::memset(memory, 'o', sent_bytes);
    std::thread sends([&] {
        if (before == CONNECTED)
            cudaGetLastError();
        if (before == COPIED)
            rc = cudaMemcpy(device + 2 * sent_bytes, bytes.data(), 100, H2D);
        ready.set_value();
        fills.get_future().wait();
        rc = rc ? rc : way.run(device + sent_bytes);
    });
    ready.get_future().wait();
    stub_remote()->slow(10000);
    const int begun = filled();
    fills.set_value();
    sends.join();
    stub_remote()->slow(0);
    REQUIRE(begun == 0 && rc == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(!std::memcmp(memory, bytes.data(), sent_bytes));
    return HOLDS(rows_have(device + sent_bytes, bytes.data(), way));
}

// By each kind of copy, behind each kind of work.
bool goes_on_by_all(char *device, char *memory, void *stream,
                    const std::vector<std::function<int()>> &fills)
{
    void *const own = reinterpret_cast<void *>(2);
    const auto copy = [&](std::size_t bytes, void *in) {
        return [=](char *to) { return cudaMemcpyAsync(to, memory, bytes, H2D, in); };
    };
    const Way ways[] = {
        {"in the stream", copy(sent_bytes, stream), sent_bytes, sent_bytes},
        {"few bytes in the stream", copy(1000, stream), 1000, sent_bytes},
        {"some bytes in the stream", copy(40000, stream), 40000, sent_bytes},
        {"in the legacy stream", copy(sent_bytes, nullptr), sent_bytes, sent_bytes},
        {"in the thread's own stream, behind an event",
         [=](char *to) {
             void *event = nullptr;
             int rc = cudaEventCreate(&event);
             rc = rc ? rc : cudaEventRecord(event, stream);
             rc = rc ? rc : cudaStreamWaitEvent(own, event, 0);
             return rc ? rc : cudaMemcpyAsync(to, memory, sent_bytes, H2D, own);
         },
         sent_bytes, sent_bytes},
        {"with another device selected",
         [=](char *to) {
             const int rc = cudaSetDevice(1);
             return rc ? rc : cudaMemcpyAsync(to, memory, sent_bytes, H2D, stream);
         },
         sent_bytes, sent_bytes},
        {"at once", [=](char *to) { return cudaMemcpy(to, memory, sent_bytes, H2D); }, sent_bytes,
         sent_bytes},
        {"few bytes at once", [=](char *to) { return cudaMemcpy(to, memory, 1000, H2D); }, 1000,
         sent_bytes},
        {"rows",
         [=](char *to) {
             return cudaMemcpy2D(to, sent_bytes / 4, memory, sent_bytes / 4, 1000, 4, H2D);
         },
         1000, sent_bytes / 4},
        {"rows in the stream",
         [=](char *to) {
             return cudaMemcpy2DAsync(to, sent_bytes / 4, memory, sent_bytes / 4, 1000, 4, H2D,
                                      stream);
         },
         1000, sent_bytes / 4},
        {"planes in the stream",
         [=](char *to) {
             const ibx_cuda_memcpy3d p = graph_calls::copy_of(to, memory, sent_bytes, H2D);
             return graph_calls::run<const ibx_cuda_memcpy3d *, void *>("cudaMemcpy3DAsync", &p,
                                                                        stream);
         },
         sent_bytes, sent_bytes},
    };
    unsigned seed = 0;
    bool good = true;
    for (std::size_t i = 0; i < fills.size(); i++)
        for (const Way &way : ways)
            for (Before before : {COPIED, CONNECTED, NOTHING}) {
                if ((i && before != COPIED) ||
                    goes_on(device, memory, way, seed++, fills[i], before))
                    continue;
                std::fprintf(stderr, "%s, filled by %zu, before: %d\n", way.name, i,
                             static_cast<int>(before));
                good = false;
            }
    return HOLDS(good);
}

} // namespace

bool sent_on_beyond_pins()
{
    char *device = device_memory(), *memory = nullptr;
    void *stream = nullptr;
    std::vector<char> registered(sent_bytes);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory), sent_bytes) == 0);
    // The main thread's session has pinned it, and the map for kernels takes the rest of the room.
    REQUIRE(stub_launch(memory, device, sent_bytes, stream) == 0 &&
            cudaStreamSynchronize(stream) == 0);
    const auto by_copy = [=](char *to) {
        return [=] { return cudaMemcpyAsync(to, device, sent_bytes, D2H, stream); };
    };
    const auto by_host = [=](char *to) {
        return [=] {
            return graph_calls::run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", stream,
                                                                      fill, to);
        };
    };
    std::vector<std::function<int()>> fills = {
        by_copy(memory), [=] { return stub_launch(memory, device, sent_bytes, stream); }};
    if (over_shm) // elsewhere it is managed memory now, which functions must not touch
        fills.push_back(by_host(memory));
    REQUIRE(goes_on_by_all(device, memory, stream, fills));
    REQUIRE(host_register(registered.data(), sent_bytes) == 0);
    REQUIRE(goes_on_by_all(device, registered.data(), stream,
                           {by_copy(registered.data()), by_host(registered.data())}));
    REQUIRE(host_unregister(registered.data()) == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFreeHost(memory) == 0 && cudaFree(device) == 0);
}

// Has the driver do something to another client: 'h' gives it work without end, 'r' ends that.
static bool driver(char what)
{
    char byte;
    return write(STDOUT_FILENO, &what, 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1;
}

static bool comes_back(char *device, char *memory, std::size_t n, void *stream, unsigned seed)
{
    const std::vector<char> bytes = random_bytes(n, seed);
    std::memcpy(memory, bytes.data(), n);
    REQUIRE(cudaMemcpyAsync(device, memory, n, H2D, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    std::memset(memory, 0, n);
    REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, stream) == 0);
    return HOLDS(cudaStreamSynchronize(stream) == 0 && has(memory, bytes));
}

// A longer allocation takes the place of one that was freed, while another client has work under
// way: to unpin that one would wait for it.
bool pinned_beside_others()
{
    constexpr std::size_t n = 4u << 20;
    char *device = device_memory(2 * n), *memory = nullptr;
    void *stream = nullptr;
    REQUIRE(device && cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (std::size_t more : {std::size_t{0}, n / 2, n}) {
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory), n + more) == 0);
        REQUIRE(comes_back(device, memory, n + more, stream, 1));
        if (more == n)
            break;
        REQUIRE(cudaFreeHost(memory) == 0);
        REQUIRE(more || driver('h'));
    }
    REQUIRE(driver('r') && comes_back(device, memory, 2 * n, stream, 2));
    REQUIRE(cudaFreeHost(memory) == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0);
}

namespace
{

// A program that a seed makes, whose every operation waits by events for those before it that use
// the same memory. So its result is that of one operation after another.
class Random
{
    struct Memory {
        char *at = nullptr;
        std::vector<char> bytes; // what it should have
        void *event = nullptr;   // behind its last use
        bool pinned = false, registered = false;
    };
    std::mt19937 random;
    std::vector<Memory> memories;
    void *streams[4] = {};

    std::size_t below(std::size_t n) { return n ? random() % n : 0; }
    Memory &any(bool pinned)
    {
        std::vector<std::size_t> fit;
        for (std::size_t i = 0; i < memories.size(); i++)
            if (memories[i].pinned == pinned)
                fit.push_back(i);
        return memories[fit[below(fit.size())]];
    }
    bool add(bool pinned)
    {
        Memory m;
        const std::size_t n = (1 + below(40)) << (10 + below(7));
        m.bytes.resize(n);
        m.pinned = pinned;
        auto **place = reinterpret_cast<void **>(&m.at);
        m.registered = pinned && !below(4);
        if (m.registered)
            REQUIRE((*place = std::malloc(n)) && host_register(*place, n) == 0);
        else
            REQUIRE((pinned ? cudaMallocHost(place, n) : cudaMalloc(place, n)) == 0);
        REQUIRE(cudaEventCreate(&m.event) == 0);
        if (pinned)
            std::memset(m.at, 0, n);
        else
            REQUIRE(cudaMemset(m.at, 0, n) == 0 && cudaDeviceSynchronize() == 0);
        memories.push_back(m);
        return true;
    }
    bool remove()
    {
        Memory &m = any(true);
        REQUIRE(!m.registered || cudaEventSynchronize(m.event) == 0);
        REQUIRE((m.registered ? host_unregister(m.at) : cudaFreeHost(m.at)) == 0);
        std::free(m.registered ? m.at : nullptr);
        m = memories.back();
        memories.pop_back();
        return true;
    }
    bool is_right(Memory &m)
    {
        REQUIRE(cudaEventSynchronize(m.event) == 0);
        return HOLDS(m.pinned ? !std::memcmp(m.at, m.bytes.data(), m.bytes.size())
                              : device_has(m.at, m.bytes.data(), m.bytes.size()));
    }
    bool host_writes(Memory &m)
    {
        REQUIRE(cudaEventSynchronize(m.event) == 0);
        random_fill(m.bytes.data(), m.bytes.size(), random());
        std::memcpy(m.at, m.bytes.data(), m.bytes.size());
        return true;
    }
    bool copies(Memory &to, Memory &from, int way)
    {
        void *stream = streams[below(4)];
        const std::size_t most = std::min(to.bytes.size(), from.bytes.size());
        std::size_t n = way == 2 ? 1 + below(1900) : 1 + below(most);
        n = std::min(n, most);
        const std::size_t there = below(to.bytes.size() - n + 1),
                          here = below(from.bytes.size() - n + 1);
        const int kind = to.pinned ? D2H : H2D;
        int rc = 0;
        if (way == 0) { // at once
            rc = cudaEventSynchronize(to.event);
            rc = rc ? rc : cudaEventSynchronize(from.event);
            rc = rc ? rc : cudaMemcpy(to.at + there, from.at + here, n, kind);
        } else {
            rc = cudaStreamWaitEvent(stream, to.event, 0);
            rc = rc ? rc : cudaStreamWaitEvent(stream, from.event, 0);
            if (way == 3)
                rc = rc ? rc : stub_launch(to.at + there, from.at + here, n, stream);
            else
                rc = rc ? rc
                        : cudaMemcpyAsync(to.at + there, from.at + here, n,
                                          below(2) ? kind : DEFAULT, stream);
            if (way == 3 && rc == 801) // kernels cannot reach it
                return HOLDS(cudaGetLastError() == 801);
            rc = rc ? rc : cudaEventRecord(to.event, stream);
            rc = rc ? rc : cudaEventRecord(from.event, stream);
        }
        std::memcpy(to.bytes.data() + there, from.bytes.data() + here, n);
        REQUIRE(rc == 0);
        return true;
    }
    bool step()
    {
        std::size_t pinned = 0;
        for (const Memory &m : memories)
            pinned += m.pinned;
        const std::size_t what = below(20);
        if (what == 0 && pinned < 14)
            return add(true);
        if (what == 1 && pinned > 3)
            return remove();
        if (what == 2)
            return host_writes(any(true));
        if (what == 3)
            return is_right(any(below(2)));
        const bool out = below(2);
        return copies(any(out), any(!out), static_cast<int>(below(4)));
    }

  public:
    explicit Random(unsigned seed) : random(seed) {}
    bool run(unsigned turns)
    {
        for (unsigned i = 0; i < 4; i++)
            REQUIRE(cudaStreamCreateWithFlags(&streams[i], i % 2) == 0);
        for (unsigned i = 0; i < 12; i++)
            REQUIRE(add(i % 2));
        bool good = true;
        const auto some = [&](unsigned most) {
            for (std::size_t left = 1 + below(most); left && good; left--)
                good = step();
        };
        for (unsigned i = 0; i < turns && good; i++) {
            some(10);
            std::thread([&] { some(20); }).join(); // over a session of its own
        }
        for (Memory &m : memories)
            good = is_right(m) && good;
        return good;
    }
};

} // namespace

// Two such programs at once, in threads. IBX_TEST_SEED and IBX_TEST_TURNS make other and longer
// ones.
bool random_pins()
{
    const char *seed = std::getenv("IBX_TEST_SEED"), *turns = std::getenv("IBX_TEST_TURNS");
    const auto first = seed ? static_cast<unsigned>(std::stoul(seed)) : 1;
    const auto most = turns ? static_cast<unsigned>(std::stoul(turns)) : 12;
    bool other = false;
    stub_remote()->slow(500);
    std::thread beside([&] { other = Random(first + 1).run(most); });
    const bool own = Random(first).run(most);
    beside.join();
    stub_remote()->slow(0);
    return HOLDS(own && other);
}

namespace
{

// A way to get page-locked memory, and to end it.
struct Kind {
    const char *name;
    int (*begin)(void *memory, std::size_t n); // NULL: it is allocated, by _allocate
    int (*allocate)(void **memory, std::size_t n);
    int (*end)(void *memory);
    bool kernels; // it is mapped for kernels
};

constexpr std::size_t ended_bytes = 100000; // bytes

// Natively the call that ends page-locked memory returns when all streams have no work, whatever
// that work accesses. `used`: a copy of that memory is outstanding, too.
bool waits_as_it_ends(const Kind &kind, char *device, unsigned flags, bool used)
{
    void *stream = nullptr, *memory = nullptr, *other = nullptr;
    UntilItWaits before;
    std::vector<char> ordinary(ended_bytes, 'o');
    const std::vector<char> expected(ended_bytes, 'e');
    auto *launch_host = preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc");
    REQUIRE(cudaMallocHost(&other, ended_bytes) == 0 && cudaMemset(device, 'd', ended_bytes) == 0);
    REQUIRE((kind.allocate ? kind.allocate(&memory, ended_bytes) : 0) == 0);
    memory = memory ? memory : ordinary.data();
    REQUIRE((kind.begin ? kind.begin(memory, ended_bytes) : 0) == 0);
    std::memset(memory, 'e', ended_bytes);
    std::memset(other, 'o', ended_bytes);
    REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(launch_host(stream, until_it_waits, &before) == 0);
    if (used)
        REQUIRE(cudaMemcpyAsync(device, memory, ended_bytes, H2D, stream) == 0);
    else
        REQUIRE(cudaMemsetAsync(device, 'e', ended_bytes, stream) == 0);
    REQUIRE(cudaMemcpyAsync(other, device, ended_bytes, D2H, stream) == 0);
    const int rc = kind.end(memory);
    const bool waited = before.over && has(static_cast<char *>(other), expected);
    ordinary.assign(ended_bytes, 'z');
    REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(device, expected.data(), ended_bytes));
    REQUIRE(has(static_cast<char *>(other), expected));
    REQUIRE(cudaFreeHost(other) == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(rc == 0 && waited);
}

// Without work it ends at once. (Where kernels have the memory, the back end waits itself.)
bool ends_alone(const Kind &kind)
{
    void *memory = nullptr;
    std::vector<char> ordinary(ended_bytes);
    REQUIRE((kind.allocate ? kind.allocate(&memory, ended_bytes) : 0) == 0);
    memory = memory ? memory : ordinary.data();
    REQUIRE((kind.begin ? kind.begin(memory, ended_bytes) : 0) == 0);
    const unsigned long waits = stub_remote()->stats().waits; // a request that may leave work
    REQUIRE(cudaDeviceSynchronize() == 0 && kind.end(memory) == 0);
    return HOLDS(stub_remote()->stats().waits == waits + 1);
}

void *of_gvirtus; // memory that it allocated before there was a connection

int by_driver(void *memory, const char *name)
{
    return preloaded<int(void *)>(name)(memory);
}

} // namespace

bool page_locked_ends()
{
    const auto allocate = [](void **memory, std::size_t n) { return cudaMallocHost(memory, n); };
    const auto mapped = [](void **memory, std::size_t n) { return cudaHostAlloc(memory, n, 2); };
    const auto enlist = [](void *memory, std::size_t n) { return host_register(memory, n); };
    const auto unlist = [](void *memory) { return host_unregister(memory); };
    const Kind kinds[] = {
        {"allocated", nullptr, allocate, cudaFreeHost, false},
        {"mapped", nullptr, mapped, cudaFreeHost, true},
        {"registered", enlist, nullptr, unlist, false},
        {"freed by the driver's API", nullptr, allocate,
         [](void *memory) { return by_driver(memory, "cuMemFreeHost"); }, false},
        {"unregistered by the driver's API", enlist, nullptr,
         [](void *memory) { return by_driver(memory, "cuMemHostUnregister"); }, false},
    };
    const Kind by_gvirtus = {"allocated by GVirtuS", nullptr,
                             [](void **memory, std::size_t) {
                                 *memory = of_gvirtus;
                                 return 0;
                             },
                             cudaFreeHost, false};
    REQUIRE(cudaMallocHost(&of_gvirtus, ended_bytes) == 0 && stub_hosts() == 1);
    char *device = device_memory(ended_bytes);
    REQUIRE(device);
    bool good = waits_as_it_ends(by_gvirtus, device, 1, false) && stub_hosts() == 2;
    for (const Kind &kind : kinds)
        for (unsigned flags = 0; flags < 2; flags++)
            for (bool used : {false, true})
                if (!waits_as_it_ends(kind, device, flags, used)) {
                    std::fprintf(stderr, "%s, flags %u, used %d\n", kind.name, flags, used);
                    good = false;
                }
    for (const Kind &kind : kinds)
        good = (kind.kernels || ends_alone(kind)) && good;
    return HOLDS(good && cudaFree(device) == 0);
}
