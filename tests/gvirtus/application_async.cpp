// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

// An asynchronous copy of a few bytes from the device does not wait for them.
static bool few_under_way(char *device, void *stream, char *back)
{
    for (const std::size_t n : {1u, 4u, 127u}) {
        const std::vector<char> bytes(n, static_cast<char>('a' + n % 16));
        REQUIRE(cudaMemcpyAsync(device, bytes.data(), n, H2D, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0);
        stub_remote()->slow(300000);
        REQUIRE(cudaMemcpyAsync(back, device, n, D2H, stream) == 0);
        REQUIRE(cudaStreamQuery(stream) == 600);
        stub_remote()->slow(0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(back, bytes.data(), n));
    }
    return true;
}

// The GPU reads and writes page-locked memory after the call has returned.
static bool async_under_way(char *device, void *stream, char *there, char *back, std::size_t n)
{
    std::vector<char> before(n, 'z');
    random_fill(there, n, static_cast<unsigned>(n));
    std::memcpy(back, before.data(), n);
    stub_remote()->hold(true);
    REQUIRE(cudaMemcpyAsync(device, there, n, H2D, stream) == 0);
    REQUIRE(cudaMemcpyAsync(back, device, n, D2H, stream) == 0);
    REQUIRE(cudaStreamQuery(stream) == 600);
    // Too early by CUDA's rules: if the copy has this byte, it was not made in the call.
    there[n / 2] = 'n';
    REQUIRE(!std::memcmp(back, before.data(), n));
    stub_remote()->hold(false);
    // Another thread's call sees these copies, too.
    int seen = -1;
    std::thread other([&] { seen = cudaStreamSynchronize(stream); });
    other.join();
    REQUIRE(seen == 0 && cudaStreamQuery(stream) == 0);
    REQUIRE(there[n / 2] == 'n' && !std::memcmp(back, there, n));
    return HOLDS(device_has(device, there, n));
}

static bool async_freed(char *device, void *stream)
{
    void *memory, *again;
    constexpr std::size_t n = 1u << 20;
    std::vector<char> expected(n);
    random_fill(expected.data(), n, 5);
    REQUIRE(cudaMallocHost(&memory, n) == 0);
    std::memcpy(memory, expected.data(), n);
    stub_remote()->slow(100000);
    REQUIRE(cudaMemcpyAsync(device, memory, n, H2D, stream) == 0);
    REQUIRE(cudaFreeHost(memory) == 0);
    REQUIRE(cudaMallocHost(&again, n) == 0);
    std::memset(again, '!', n);
    stub_remote()->slow(0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device, expected.data(), n));
    return HOLDS(cudaFreeHost(again) == 0);
}

bool async()
{
    char *device = device_memory(), *there, *back;
    constexpr std::size_t most = 3000000;
    void *stream;
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&there), most + 7) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&back), most + 7) == 0);
    for (std::size_t n : {std::size_t{200}, std::size_t{30001}, std::size_t{100000}, most}) {
        if (over_shm && taken)
            REQUIRE(async_under_way(device + 3, stream, there + 7, back + 5, n));
        // Ordinary memory may be used again at once, whatever it is copied over.
        std::vector<char> memory(n), expected(n);
        stub_remote()->slow(10000);
        random_fill(memory.data(), n, 1);
        expected = memory;
        REQUIRE(cudaMemcpyAsync(device, memory.data(), n, H2D, stream) == 0);
        std::memset(memory.data(), 'y', n);
        REQUIRE(cudaMemcpyAsync(memory.data(), device, n, D2H, stream) == 0);
        REQUIRE(memory == expected);
        stub_remote()->slow(0);
        // Between two others of its stream; the last one is complete once the stream was waited
        // for.
        random_fill(there, n, 2);
        REQUIRE(cudaMemcpyAsync(device, there, n, H2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(device + n, device, n, D2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(back, device + n, n, D2H, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0);
        REQUIRE(!std::memcmp(back, there, n));
        // A synchronous copy comes after those under way, in the order of the legacy stream.
        random_fill(there, n, 3);
        REQUIRE(cudaMemcpyAsync(device, there, n, H2D, stream) == 0);
        REQUIRE(cudaMemcpy(back, device, n, D2H) == 0);
        REQUIRE(!std::memcmp(back, there, n));
    }
    REQUIRE(!over_shm || !taken || few_under_way(device + 3, stream, back + 5));
    REQUIRE(async_freed(device, stream));
    if (over_shm && taken) { // what fails later shows where it is waited for
        stub_remote()->inject("dma", 1, 46, true);
        REQUIRE(cudaMemcpyAsync(device, there, most, H2D, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 46);
        REQUIRE(cudaMemcpyAsync(device, there, most, H2D, stream) == 46);
        stub_remote()->inject("", 0, 0, false);
    }
    REQUIRE(round_trip(device, there, most, 4, stream));
    REQUIRE(stub_remote()->stats().unpinned_async == 0);
    return HOLDS(cudaFreeHost(there) == 0 && cudaFreeHost(back) == 0);
}

// Has the driver do something to the back end: 'h' holds the GPU, 'r' lets it go again.
static bool driver(char what)
{
    char byte;
    return write(STDOUT_FILENO, &what, 1) == 1 && read(STDIN_FILENO, &byte, 1) == 1;
}

struct Background {
    char *device, *there, *back;
    void *stream, *other, *event;
    std::size_t n;
};

// Copies to the device and back: the calls return before any copy can have been made.
static bool background_begin(const Background &b, unsigned seed)
{
    random_fill(b.there, b.n, seed);
    std::memset(b.back, 'z', b.n);
    while (cudaEventQuery(b.event) == 600) // what was enqueued in the other stream before
        usleep(1000);
    REQUIRE(driver('h'));
    REQUIRE(cudaMemcpyAsync(b.device, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(cudaMemcpyAsync(b.back, b.device, b.n, D2H, b.stream) == 0);
    REQUIRE(cudaStreamQuery(b.stream) == 600 && cudaStreamQuery(nullptr) == 600);
    // What is in no stream, or in another stream, goes on meanwhile.
    REQUIRE(cudaStreamQuery(b.other) == 0);
    REQUIRE(stub_launch(b.device + b.n, b.device + b.n, 1, b.other) == 0);
    REQUIRE(cudaEventRecord(b.event, b.other) == 0 && cudaEventQuery(b.event) == 600);
    void *more;
    REQUIRE(cudaMalloc(&more, 100) == 0 && cudaGetLastError() == 0);
    return true;
}

// Another thread lets the GPU go while this one is in the call; when that returns, the copies are
// over.
static bool background_ends(const Background &b, unsigned seed, const std::function<bool()> &wait)
{
    REQUIRE(background_begin(b, seed));
    bool released = false;
    std::thread other([&] { released = driver('r'); });
    bool good = wait();
    bool same = !std::memcmp(b.back, b.there, b.n);
    other.join();
    REQUIRE(good && same && released);
    return HOLDS(device_has(b.device, b.there, b.n));
}

static bool background_waits(const Background &b)
{
    char *spare = device_memory(1000), small[100];
    bool good[2] = {};
    const std::function<bool()> ways[] = {
        [&] { return cudaStreamSynchronize(b.stream) == 0; },
        [&] { return cudaDeviceSynchronize() == 0; },
        [&] {
            return cudaEventRecord(b.event, b.stream) == 0 && cudaEventSynchronize(b.event) == 0;
        },
        [&] {
            int rc = cudaEventRecord(b.event, b.stream);
            while (!rc && (rc = cudaEventQuery(b.event)) == 600)
                rc = 0;
            return rc == 0;
        },
        [&] {
            int rc;
            while ((rc = cudaStreamQuery(b.stream)) == 600)
                sched_yield();
            return rc == 0;
        },
        [&] { return cudaMemcpy(small, b.device, sizeof(small), D2H) == 0; },
        [&] { return cudaMemcpy(b.device + b.n, b.device, 10, D2D) == 0; },
        [&] { return cudaMemcpy2D(small, 20, b.device, 10, 10, 5, D2H) == 0; },
        [&] { return cudaFree(spare) == 0; },
        [&] { // in its stream's order
            return stub_launch(b.device + b.n, b.device, b.n, b.stream) == 0 &&
                   cudaStreamSynchronize(b.stream) == 0 && device_has(b.device + b.n, b.there, b.n);
        },
        [&] { return cudaMemcpyAsync(small, b.device, 100, D2H, b.stream) == 0; },
        [&] { // another thread's, too
            std::thread other([&] { good[0] = cudaStreamSynchronize(b.stream) == 0; });
            other.join();
            return good[0];
        },
        [&] {
            std::thread other([&] { good[1] = cudaMemcpy(small, b.device, 100, D2H) == 0; });
            other.join();
            return good[1];
        },
    };
    unsigned seed = 0;
    for (const auto &way : ways) {
        if (background_ends(b, ++seed, way))
            continue;
        std::fprintf(stderr, "way %u\n", seed);
        return false;
    }
    return true;
}

// An error that CUDA finds only when it runs the copy is returned once, by the call that waits for
// it.
static bool background_errors(Background &b)
{
    char *late = reinterpret_cast<char *>(std::uintptr_t(0x7f) << 40); // which nobody has given out
    REQUIRE(cudaMemcpyAsync(late, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(cudaStreamSynchronize(b.other) == 0);
    REQUIRE(cudaStreamSynchronize(b.stream) == 1 && cudaPeekAtLastError() == 1);
    REQUIRE(cudaGetLastError() == 1 && cudaGetLastError() == 0);
    REQUIRE(cudaStreamSynchronize(b.stream) == 0);
    REQUIRE(cudaMemcpyAsync(b.back, late, b.n, D2H, b.stream) == 0);
    REQUIRE(cudaDeviceSynchronize() == 1 && cudaDeviceSynchronize() == 0);
    REQUIRE(cudaMemcpyAsync(late, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(cudaMemcpy(b.back, b.device, 10, D2H) == 1);
    REQUIRE(cudaMemcpy(b.back, b.device, 10, D2H) == 0);
    for (unsigned i = 0; i < 40; i++) // more than anybody keeps
        REQUIRE(cudaMemcpyAsync(late, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(cudaStreamSynchronize(b.stream) == 1);
    for (unsigned i = 0; i < 20; i++)
        cudaStreamSynchronize(b.stream);
    REQUIRE(cudaStreamSynchronize(b.stream) == 0);
    REQUIRE(cudaMemcpyAsync(late, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(cudaMemcpyAsync(late, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(cudaStreamSynchronize(b.stream) == 1 && cudaGetLastError() == 1);
    REQUIRE(stub_remote()->reset() == 0); // and to whoever begins anew, not even once
    REQUIRE(cudaDeviceSynchronize() == 0);
    b.device = device_memory();
    REQUIRE(b.device && cudaStreamCreate(&b.stream) == 0 && cudaStreamCreate(&b.other) == 0);
    REQUIRE(cudaEventCreate(&b.event) == 0);
    stub_remote()->inject("dma", 1, 46, true);
    REQUIRE(cudaMemcpyAsync(b.device, b.there, b.n, H2D, b.stream) == 0);
    REQUIRE(!taken || cudaStreamSynchronize(b.stream) == 46);
    stub_remote()->inject("", 0, 0, false);
    cudaDeviceSynchronize();
    cudaGetLastError();
    return HOLDS(cudaDeviceSynchronize() == 0);
}

// Many streams, of several threads, each in its own order.
static bool background_threads()
{
    bool good[3] = {};
    std::vector<std::thread> all;
    for (unsigned t = 0; t < 3; t++)
        all.emplace_back([&good, t] {
            constexpr std::size_t n = 400000;
            void *streams[3];
            char *device = device_memory();
            std::vector<char> there(6 * n), back(6 * n);
            good[t] = device && !host_register(there.data(), there.size(), 0) &&
                      !host_register(back.data(), back.size(), 0);
            for (void *&stream : streams)
                good[t] = good[t] && !cudaStreamCreate(&stream);
            for (unsigned round = 0; round < 10 && good[t]; round++) {
                random_fill(there.data(), there.size(), t * 100 + round);
                for (unsigned i = 0; i < 6 && good[t]; i++) {
                    void *stream = streams[i % 3];
                    char *at = device + i * 2 * n, *host = &there[i * n];
                    good[t] = !cudaMemcpyAsync(at, host, n, H2D, stream) &&
                              !stub_launch(at + n, at, n, stream) &&
                              !cudaMemcpyAsync(&back[i * n], at + n, n, D2H, stream);
                }
                for (unsigned i = 0; i < 3; i++)
                    good[t] = good[t] && !cudaStreamSynchronize(streams[i]);
                good[t] = good[t] && there == back;
            }
            good[t] = good[t] && !host_unregister(there.data()) && !host_unregister(back.data());
        });
    for (std::thread &thread : all)
        thread.join();
    return good[0] && good[1] && good[2];
}

// Over shm with registered memory, which the back end does not see; elsewhere also with allocated
// memory.
bool background(bool registered)
{
    constexpr std::size_t n = 3000000;
    Background b = {device_memory(), nullptr, nullptr, nullptr, nullptr, nullptr, n};
    std::vector<char> ordinary(2 * n);
    void *memory = ordinary.data();
    REQUIRE(registered ? host_register(memory, 2 * n, 0) == 0
                       : cudaMallocHost(&memory, 2 * n) == 0);
    b.there = static_cast<char *>(memory);
    b.back = b.there + n;
    REQUIRE(b.device && cudaStreamCreate(&b.stream) == 0 && cudaStreamCreate(&b.other) == 0);
    REQUIRE(cudaEventCreate(&b.event) == 0);
    REQUIRE(background_waits(b));
    REQUIRE(background_errors(b));
    REQUIRE(background_begin(b, 99));
    pid_t child = fork();
    if (!child) { // has none of them under way, and a connection of its own
        alarm(20 * patience_times());
        int rc = cudaStreamQuery(b.stream); // how far it is at the back end
        bool good = (rc == 0 || rc == 600) && (registered || cudaFreeHost(memory) == 0);
        std::_Exit(good ? 0 : 1);
    }
    bool released = false;
    std::thread other([&] { released = driver('r'); });
    REQUIRE((registered ? host_unregister(memory) : cudaFreeHost(memory)) == 0);
    other.join();
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0 && released);
    REQUIRE(!registered || !std::memcmp(b.there, b.back, n));
    REQUIRE(stub_copies() == 2); // the one within the device, and a thread's first call
    REQUIRE(cudaStreamQuery(b.stream) == 0);
    return HOLDS(background_threads());
}

// Bytes on their way from the device have come before they are copied on, by each call that copies.
static bool copied_on(char *device, void *stream, char *memory, std::size_t n)
{
    std::vector<char> expected(n), got(n);
    const std::function<int()> ways[] = {
        [&] { return cudaMemcpyAsync(got.data(), memory, n, 0, stream); },
        [&] { return cudaMemcpyAsync(got.data(), memory, n, DEFAULT, stream); },
        [&] { return cudaMemcpy(got.data(), memory, n, 0); },
        [&] { return cudaMemcpy(got.data(), memory, n, DEFAULT); },
        [&] { return cudaMemcpy2D(got.data(), n / 4, memory, n / 4, n / 4, 4, 0); },
        [&] { return cudaMemcpy2DAsync(got.data(), n / 4, memory, n / 4, n / 4, 4, 0, stream); },
    };
    unsigned seed = 0;
    for (const auto &way : ways) {
        random_fill(expected.data(), n, ++seed);
        REQUIRE(cudaMemcpy(device, expected.data(), n, H2D) == 0);
        std::memset(memory, 'z', n);
        stub_remote()->slow(20000);
        REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, stream) == 0);
        REQUIRE(way() == 0);
        stub_remote()->slow(0);
        if (got == expected)
            continue;
        std::fprintf(stderr, "way %u\n", seed);
        return false;
    }
    // And bytes on their way to the device are not overwritten before they have left.
    random_fill(expected.data(), n, ++seed);
    std::memcpy(memory, expected.data(), n);
    stub_remote()->slow(20000);
    REQUIRE(cudaMemcpyAsync(device, memory, n, H2D, stream) == 0);
    REQUIRE(cudaMemcpyAsync(memory + 1, got.data(), n - 2, 0, stream) == 0);
    stub_remote()->slow(0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    return HOLDS(device_has(device, expected.data(), n));
}

// Whatever GVirtuS's last request has returned; the bytes between rows stay as they are.
static bool copies_rows_on_host(char *device, void *stream)
{
    constexpr std::size_t pitch = 64, width = 40, height = 10, n = pitch * height;
    std::vector<char> from(n), to(n);
    random_fill(from.data(), n, 1);
    REQUIRE(cudaFree(device + 1) != 0 && cudaMemcpy(to.data(), from.data(), n, 0) == 0);
    REQUIRE(to == from && cudaGetLastError() == 1); // cudaFree's
    for (bool async : {false, true}) {
        to.assign(n, 'g');
        REQUIRE(
            (async
                 ? cudaMemcpy2DAsync(to.data(), pitch, from.data(), pitch, width, height, 0, stream)
                 : cudaMemcpy2D(to.data(), pitch, from.data(), pitch, width, height, 0)) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0);
        for (std::size_t i = 0; i < n; i++)
            REQUIRE(to[i] == (i % pitch < width ? from[i] : 'g'));
    }
    REQUIRE(cudaMemcpy2D(to.data(), width, from.data(), width - 1, width, 2, 0) == 12);
    REQUIRE(cudaMemcpy2D(to.data(), 1, nullptr, 1, 0, 2, 0) == 0 && cudaGetLastError() == 12);
    to.assign(n, 'g'); // a row alone needs no pitches, or has enough
    REQUIRE(cudaMemcpy2D(to.data(), 0, from.data(), 0, width, 1, 0) == 0 && to[width - 1] != 'g');
    REQUIRE(fails(cudaMemcpy2D(to.data(), 8, from.data(), 8, 9, 1, 0), 1));
    REQUIRE(cudaMemcpy2D(device, 0, from.data() + 1, 0, 50, 1, H2D) == 0);
    REQUIRE(device_has(device, from.data() + 1, 50));
    REQUIRE(cudaMemcpy2D(device, 0, from.data() + 3, 64, 50, 1, H2D) == 0);
    REQUIRE(device_has(device, from.data() + 3, 50));
    REQUIRE(fails(cudaMemcpy2D(device, 40, from.data(), 40, 50, 1, H2D), 1));
    REQUIRE(cudaMemcpy(nullptr, from.data(), n, 0) == 1 && cudaGetLastError() == 1);
    // Memory that the kind of the copy says is the host's, and that is not.
    REQUIRE(cudaMemcpy(device, from.data() + 2, 60, 0) == 0 &&
            device_has(device, from.data() + 2, 60));
    REQUIRE(cudaMemcpyAsync(to.data(), device, 60, 0, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(to.data(), &from[2], 60));
    constexpr int no_kind = 7;
    REQUIRE(cudaMemcpy(device, from.data(), n, no_kind) == 21 && cudaGetLastError() == 21);
    REQUIRE(cudaMemcpyAsync(device, from.data(), n, -1, stream) == 21);
    REQUIRE(cudaMemcpy2D(device, pitch, from.data(), pitch, width, 2, no_kind) == 21);
    REQUIRE(cudaMemcpy2DAsync(device, pitch, from.data(), pitch, width, 2, no_kind, stream) == 21);
    return HOLDS(cudaGetLastError() == 21 && cudaGetLastError() == 0);
}

bool on_host()
{
    constexpr std::size_t n = 1u << 20;
    char *device = device_memory();
    void *stream, *memory;
    std::vector<char> ordinary(n);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(copies_rows_on_host(device, stream));
    REQUIRE(cudaMallocHost(&memory, n) == 0 && host_register(ordinary.data(), n, 0) == 0);
    REQUIRE(copied_on(device, stream, static_cast<char *>(memory), n));
    REQUIRE(copied_on(device, stream, ordinary.data(), n));
    REQUIRE(cudaFreeHost(memory) == 0 && host_unregister(ordinary.data()) == 0);
    return true;
}

// Copies on another device than that of the thread that frees their memory.
bool devices()
{
    constexpr std::size_t n = 1u << 20;
    void *memory, *again;
    char *far = nullptr;
    std::vector<char> expected(n);
    random_fill(expected.data(), n, 5);
    REQUIRE(device_memory());
    for (int from = 0; from < 2; from++) {
        REQUIRE(cudaMallocHost(&memory, n) == 0);
        std::memcpy(memory, expected.data(), n);
        bool good = false;
        REQUIRE(cudaSetDevice(from) == 0);
        std::thread other([&] {
            void *stream;
            good = cudaSetDevice(1 - from) == 0 && cudaStreamCreate(&stream) == 0;
            far = device_memory(n);
            stub_remote()->slow(100000);
            good = good && far && cudaMemcpyAsync(far, memory, n, H2D, stream) == 0;
        });
        other.join();
        std::uint64_t selections = stub_selections();
        REQUIRE(good && cudaFreeHost(memory) == 0);
        REQUIRE(stub_selections() == selections + 2);
        REQUIRE(cudaMallocHost(&again, n) == 0);
        std::memset(again, '!', n);
        stub_remote()->slow(0);
        REQUIRE(device_has(far, expected.data(), n)); // nothing waits for it any more
        REQUIRE(cudaFreeHost(again) == 0 && stub_selections() == selections + 2);
        char *near = device_memory(n); // the thread's device is what it was
        REQUIRE(near && cudaMemcpy(near, expected.data(), n, H2D) == 0);
        REQUIRE(cudaFree(near) == 0 && cudaFree(far) == 0);
    }
    // A child begins on the first device, and is left there.
    REQUIRE(cudaSetDevice(1) == 0);
    pid_t child = fork();
    if (!child) {
        void *stream;
        char *own = device_memory(n);
        bool good = own && cudaStreamCreate(&stream) == 0 && cudaMallocHost(&memory, n) == 0;
        good = good && cudaMemcpyAsync(own, memory, n, H2D, stream) == 0;
        std::uint64_t selections = stub_selections();
        good = good && cudaFreeHost(memory) == 0 && stub_selections() == selections;
        std::_Exit(good ? 0 : 1);
    }
    int status = -1;
    return HOLDS(waitpid(child, &status, 0) == child && status == 0);
}

// The thread stays on the device that it had, and so do its copies in the background.
bool no_device()
{
    constexpr std::size_t n = 1u << 20;
    std::vector<char> memory(n);
    REQUIRE(device_memory() && host_register(memory.data(), n, 0) == 0);
    for (int device : {0, 1}) {
        void *stream;
        REQUIRE(device == 0 || cudaSetDevice(device) == 0);
        char *there = device_memory();
        REQUIRE(there && cudaStreamCreate(&stream) == 0);
        for (unsigned round = 0; round < 2; round++) {
            REQUIRE(cudaSetDevice(7) == 101);
            random_fill(memory.data(), n, round);
            REQUIRE(cudaMemcpyAsync(there, memory.data(), n, H2D, stream) == 0);
            REQUIRE(cudaStreamSynchronize(stream) == 0);
            REQUIRE(device_has(there, memory.data(), n));
        }
    }
    return HOLDS(host_unregister(memory.data()) == 0);
}

bool leaves()
{
    char *device = device_memory(), *memory;
    void *stream;
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&memory), device_bytes_each) == 0);
    std::memset(memory, 'l', device_bytes_each);
    stub_remote()->slow(30000);
    for (unsigned i = 0; i < 10; i++) {
        int rc = i % 2 ? cudaMemcpyAsync(memory, device, device_bytes_each, D2H, stream)
                       : cudaMemcpyAsync(device, memory, device_bytes_each, H2D, stream);
        REQUIRE(rc == 0);
    }
    std::_Exit(0);
}

// It is made before main() and destroyed after it, without a call of CUDA.
static struct Lasting {
    ~Lasting()
    {
        if (back != there)
            std::_Exit(3);
    }
    std::vector<char> there, back;
} lasting;

bool exits()
{
    constexpr std::size_t n = 3000000;
    char *device = device_memory();
    void *stream;
    lasting.there.resize(n);
    lasting.back.resize(n);
    random_fill(lasting.there.data(), n, 1);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(host_register(lasting.there.data(), n, 0) == 0 &&
            host_register(lasting.back.data(), n, 0) == 0);
    stub_remote()->slow(20000);
    REQUIRE(cudaMemcpyAsync(device, lasting.there.data(), n, H2D, stream) == 0);
    REQUIRE(cudaMemcpyAsync(lasting.back.data(), device, n, D2H, stream) == 0);
    return true;
}

// Likewise, with copies in the background: whoever waits for them is told, and nobody waits for
// ever.
bool killed_background()
{
    constexpr std::size_t n = 1u << 20;
    char *device = device_memory();
    void *streams[3];
    std::vector<char> memory(n, 'k');
    REQUIRE(host_register(memory.data(), n, 0) == 0);
    for (void *&stream : streams)
        REQUIRE(cudaStreamCreate(&stream) == 0);
    stub_remote()->slow(5000);
    int rc = 0;
    for (unsigned i = 0; !rc; i++) {
        rc = cudaMemcpyAsync(device + i % 3 * n, memory.data(), n, H2D, streams[i % 3]);
        REQUIRE(i != 9 || write(STDOUT_FILENO, "k", 1) == 1);
        if (i % 20 == 19 && !rc)
            rc = cudaStreamSynchronize(streams[i % 3]);
    }
    REQUIRE(rc == 999);
    REQUIRE(cudaMemcpyAsync(device, memory.data(), n, H2D, streams[0]) == 999);
    REQUIRE(cudaStreamSynchronize(streams[0]) == 999 && cudaDeviceSynchronize() == 999);
    return HOLDS(host_unregister(memory.data()) == 0);
}
