// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Page-locked memory that the back end does not pin for a session: rdma.pins leaves no room.
#include "tests/gvirtus/graph_calls.h"

#include <functional>
#include <future>
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
