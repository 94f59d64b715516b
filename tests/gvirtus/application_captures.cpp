// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What a capture forbids, and what it leaves alone. What CUDA says was observed with driver 580 on
// an H200.
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/application_arrays.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace
{

enum { MODE_GLOBAL, MODE_LOCAL, MODE_RELAXED, MODES };

constexpr std::size_t beside_n = 64 * 1024;

int status_of(void *stream)
{
    int status = -1;
    return preloaded<int(void *, int *)>("cudaStreamIsCapturing")(stream, &status) ? -1 : status;
}

struct UnsafePlace {
    int type, id;
};
struct UnsafePool {
    int allocation, handles;
    UnsafePlace location;
    void *security;
    std::size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};

// The calls that CUDA calls unsafe, and what they need.
class UnsafeCalls
{
    char *managed, *registered;
    void *made = nullptr, *host = nullptr, *pool = nullptr, *old_pool = nullptr;
    void *device = nullptr, *array = nullptr, *event = nullptr, *graph = nullptr;
    using Attach = int(void *, void *, std::size_t, unsigned);
    using Hint = int(const void *, std::size_t, int, UnsafePlace);
    using Prefetch = int(const void *, std::size_t, UnsafePlace, unsigned, void *);

  public:
    void *other = nullptr; // a stream that is not captured
    struct Call {
        const char *name;
        std::function<int()> run, undo;
    };
    std::vector<Call> calls;

    UnsafeCalls()
        : managed(managed_memory(beside_n)),
          registered(static_cast<char *>(std::aligned_alloc(4096, 2 * beside_n)))
    {
        cudaStreamCreateWithFlags(&other, 1);
        cudaMallocHost(&host, beside_n);
        host_register(registered + beside_n, beside_n);
        make_pool(1, &old_pool);
        cudaMalloc(&device, beside_n);
        malloc_array(&array, {64, 16, 0});
        cudaEventCreate(&event);
        cudaEventRecord(event, other);
        preloaded<int(void **, unsigned)>("cudaGraphCreate")(&graph, 0);
        calls = {
            {"cudaHostAlloc", [this] { return cudaHostAlloc(&made, beside_n, 0); },
             [this] { return cudaFreeHost(made); }},
            {"cudaHostAllocMapped", [this] { return cudaHostAlloc(&made, beside_n, 2); },
             [this] { return cudaFreeHost(made); }},
            {"cudaMallocHost", [this] { return cudaMallocHost(&made, beside_n); },
             [this] { return cudaFreeHost(made); }},
            {"cudaFreeHost", [this] { return cudaFreeHost(host); },
             [this] { return cudaMallocHost(&host, beside_n); }},
            {"cudaHostRegister", [this] { return host_register(registered, beside_n); },
             [this] { return host_unregister(registered); }},
            {"cudaHostUnregister", [this] { return host_unregister(registered + beside_n); },
             [this] { return host_register(registered + beside_n, beside_n); }},
            {"cudaMemAdvise", [this] { return advise(1); }, [] { return 0; }},
            {"cudaStreamAttachMemAsync", [this] { return attach(other); }, [] { return 0; }},
            {"cudaMemPoolCreate", [this] { return make_pool(1, &pool); },
             [this] { return no_pool(pool); }},
            {"cudaMemPoolCreate of the host", [this] { return make_pool(2, &pool); },
             [this] { return no_pool(pool); }},
            {"cudaMemPoolDestroy", [this] { return no_pool(old_pool); },
             [this] { return make_pool(1, &old_pool); }},
        };
        add_calls_of_the_back_end();
    }
    ~UnsafeCalls()
    {
        host_unregister(registered + beside_n);
        std::free(registered);
        cudaFreeHost(host);
        no_pool(old_pool);
        cudaFree(managed);
        cudaFree(device);
        free_array(array);
        preloaded<int(void *)>("cudaGraphDestroy")(graph);
        cudaEventDestroy(event);
        cudaStreamDestroy(other);
    }
    UnsafeCalls(const UnsafeCalls &) = delete;
    UnsafeCalls &operator=(const UnsafeCalls &) = delete;
    // Those that get to CUDA at the back end, where each thread of a client's is in a mode of its
    // own.
    void add_calls_of_the_back_end()
    {
        using Async = int(void **, std::size_t, void *);
        using FreeAsync = int(void *, void *);
        const auto nothing = [] { return 0; };
        const auto attribute = [this](const char *name) {
            std::uint64_t most = 0;
            return preloaded<int(void *, int, void *)>(name)(old_pool, 4, &most);
        };
        const std::vector<Call> more = {
            {"cudaMalloc", [this] { return cudaMalloc(&made, beside_n); },
             [this] { return cudaFree(made); }},
            {"cudaMallocPitch",
             [this] {
                 std::size_t pitch;
                 return preloaded<int(void **, std::size_t *, std::size_t, std::size_t)>(
                     "cudaMallocPitch")(&made, &pitch, 100, 10);
             },
             [this] { return cudaFree(made); }},
            {"cudaFree", [this] { return cudaFree(device); },
             [this] { return cudaMalloc(&device, beside_n); }},
            {"cudaFree of none", [] { return cudaFree(nullptr); }, nothing},
            {"cudaMallocArray",
             [this] {
                 return malloc_array(&made, {64, 16, 0});
             },
             [this] { return free_array(made); }},
            {"cudaFreeArray", [this] { return free_array(array); },
             [this] {
                 return malloc_array(&array, {64, 16, 0});
             }},
            {"cudaMallocAsync",
             [this] { return preloaded<Async>("cudaMallocAsync")(&made, beside_n, other); },
             [this] { return preloaded<FreeAsync>("cudaFreeAsync")(made, other); }},
            {"cudaMallocAsync of nothing",
             [this] { return preloaded<Async>("cudaMallocAsync")(&made, 0, other); }, nothing},
            {"cudaStreamSynchronize", [this] { return cudaStreamSynchronize(other); }, nothing},
            {"cudaStreamQuery", [this] { return cudaStreamQuery(other); }, nothing},
            {"cudaEventSynchronize", [this] { return cudaEventSynchronize(event); }, nothing},
            {"cudaEventQuery", [this] { return cudaEventQuery(event); }, nothing},
            {"cudaGraphInstantiate",
             [this] {
                 return preloaded<int(void **, void *, unsigned long long)>("cudaGraphInstantiate")(
                     &made, graph, 0);
             },
             [this] { return preloaded<int(void *)>("cudaGraphExecDestroy")(made); }},
            {"cudaMemPoolGetAttribute", [=] { return attribute("cudaMemPoolGetAttribute"); },
             nothing},
            {"cudaMemPoolSetAttribute", [=] { return attribute("cudaMemPoolSetAttribute"); },
             nothing},
            {"cudaMemPoolTrimTo",
             [this] {
                 return preloaded<int(void *, std::size_t)>("cudaMemPoolTrimTo")(old_pool, 0);
             },
             nothing},
        };
        calls.insert(calls.end(), more.begin(), more.end());
    }
    int attach(void *stream) { return attach_at(stream, managed); }
    static int attach_at(void *stream, void *memory)
    {
        return preloaded<Attach>("cudaStreamAttachMemAsync")(stream, memory, 0, 1);
    }
    int advise(int what)
    {
        return preloaded<Hint>("cudaMemAdvise_v2")(what == 1 ? managed : registered, beside_n, what,
                                                   {1, 0});
    }
    int prefetch(void *stream)
    {
        return preloaded<Prefetch>("cudaMemPrefetchAsync_v2")(managed, beside_n, {1, 0}, 0, stream);
    }
    static int make_pool(int where, void **made_pool)
    {
        UnsafePool wish = {};
        wish.allocation = 1;
        wish.location.type = where;
        return preloaded<int(void **, const UnsafePool *)>("cudaMemPoolCreate")(made_pool, &wish);
    }
    static int no_pool(void *which) { return preloaded<int(void *)>("cudaMemPoolDestroy")(which); }
};

// By the calling thread or by another one.
int run_by(bool other_thread, const std::function<int()> &call, int *last)
{
    int rc = -1;
    const auto run = [&] {
        rc = call();
        *last = cudaGetLastError();
    };
    if (other_thread)
        std::thread(run).join();
    else
        run();
    return rc;
}

// Whether the call is refused, with the capture, or made, without it.
bool treats(const UnsafeCalls::Call &call, void *stream, int mode, bool other_thread, bool refused)
{
    void *graph = &graph;
    int last = -1;
    REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
    const int rc = run_by(other_thread, call.run, &last);
    const int status = status_of(stream), end = cudaStreamEndCapture(stream, &graph);
    if (rc != (refused ? 900 : 0) || last != rc || status != 1 + refused ||
        end != (refused ? 901 : 0))
        std::fprintf(stderr, "%s in mode %d: %d, last error %d, status %d, end %d\n", call.name,
                     mode, rc, last, status, end);
    REQUIRE(rc == (refused ? 900 : 0) && last == rc && status == 1 + refused);
    REQUIRE(end == (refused ? 901 : 0) && !(refused && graph));
    REQUIRE(cudaGetLastError() == end);
    // A call that was refused can be made afterwards: nothing was changed.
    REQUIRE(refused ? call.run() == 0 && call.undo() == 0 : call.undo() == 0);
    return HOLDS(cudaGetLastError() == 0);
}

// A capture forbids a call before CUDA looks at its arguments, except for a few.
bool refused_before_arguments(UnsafeCalls &unsafe, void *stream)
{
    void *memory = nullptr, *none = nullptr, *graph = nullptr;
    char bytes[1] = {};
    const std::function<int()> wrong[] = {
        [&] { return cudaHostAlloc(nullptr, 1, 0); },
        [&] { return cudaHostAlloc(&memory, 1, 64); },
        [&] { return cudaFreeHost(nullptr); },
        [&] { return cudaFreeHost(bytes); },
        [&] { return host_register(nullptr, 1); },
        [&] { return host_unregister(bytes); },
        [&] { return unsafe.advise(2); },
        [&] { return unsafe.attach_at(unsafe.other, bytes); },
        [&] { return unsafe.make_pool(77, &none); },
        [&] { return cudaFree(nullptr); },
    };
    for (const auto &call : wrong) {
        REQUIRE(cudaStreamBeginCapture(stream, MODE_GLOBAL) == 0);
        REQUIRE(fails(call(), 900) && status_of(stream) == 2 && fails(call(), 900));
        REQUIRE(fails(cudaStreamEndCapture(stream, &graph), 901));
    }
    REQUIRE(cudaStreamBeginCapture(stream, MODE_GLOBAL) == 0);
    REQUIRE(cudaHostAlloc(&memory, 0, 0) == 0 && cudaMallocHost(&memory, 0) == 0);
    REQUIRE(fails(unsafe.advise(99), 1) && status_of(stream) == 1);
    return HOLDS(cudaStreamEndCapture(stream, &graph) == 0);
}

// The legacy stream takes no work while a stream that waits for it is captured, also if the back
// end does not get that work.
bool refused_in_legacy(UnsafeCalls &unsafe)
{
    void *stream = nullptr, *graph = nullptr, *legacy = nullptr;
    char from[8] = {}, to[8] = {};
    const std::function<int()> calls[] = {
        [&] { return unsafe.prefetch(legacy); },
        [&] { return cudaMemcpyAsync(to, from, 8, 0, legacy); },
        [&] { return cudaMemcpy(to, from, 8, 0); },
        [&] { return unsafe.attach(legacy); },
    };
    for (unsigned flags : {0u, 1u}) {
        REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == 0);
        for (unsigned i = 0; i < 4; i++) {
            const int wanted = !flags ? 906 : i == 3 ? 900 : 0;
            REQUIRE(cudaStreamBeginCapture(stream, MODE_GLOBAL) == 0);
            REQUIRE(calls[i]() == wanted && cudaGetLastError() == wanted);
            REQUIRE(status_of(stream) == 1 + (wanted != 0));
            REQUIRE(cudaStreamEndCapture(stream, &graph) == (wanted ? 901 : 0));
            cudaGetLastError();
        }
        REQUIRE(cudaStreamDestroy(stream) == 0);
    }
    return true;
}

// A thread that is in relaxed mode may call what it likes.
bool permitted_in_relaxed_mode(const UnsafeCalls &unsafe, void *stream)
{
    auto *exchange = preloaded<int(int *)>("cudaThreadExchangeStreamCaptureMode");
    int mode = MODE_RELAXED;
    REQUIRE(exchange(&mode) == 0);
    for (const UnsafeCalls::Call &call : unsafe.calls)
        REQUIRE(treats(call, stream, MODE_GLOBAL, false, false));
    return HOLDS(exchange(&mode) == 0);
}

// Page-locked memory that ends beside a capture that permits it waits for what is not captured,
// too, whether it was in a copy or not.
bool waits_beside_capture(void *other, void *stream)
{
    auto *launch = preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc");
    char *device = device_memory(beside_n);
    std::vector<char> registered(beside_n);
    for (bool allocated : {true, false})
        for (bool used : {false, true}) {
            UntilItWaits w;
            void *memory = registered.data(), *graph = nullptr;
            REQUIRE((allocated ? cudaMallocHost(&memory, beside_n)
                               : host_register(memory, beside_n)) == 0);
            REQUIRE(!used || cudaMemcpyAsync(device, memory, beside_n, H2D, other) == 0);
            REQUIRE(cudaStreamSynchronize(other) == 0);
            REQUIRE(cudaStreamBeginCapture(stream, MODE_RELAXED) == 0);
            REQUIRE(launch(other, until_it_waits, &w) == 0);
            const int rc = allocated ? cudaFreeHost(memory) : host_unregister(memory);
            const bool waited = w.over;
            REQUIRE(cudaStreamSynchronize(other) == 0 && rc == 0 && waited);
            REQUIRE(status_of(stream) == 1 && cudaStreamEndCapture(stream, &graph) == 0);
        }
    return HOLDS(cudaFree(device) == 0);
}

// ... and spoil no capture of another thread that begins meanwhile.
bool frees_spoil_no_capture()
{
    char *device = device_memory(beside_n);
    void *stream = nullptr, *other = nullptr, *graph = nullptr;
    std::atomic<bool> over{false}, good{true};
    for (void **made : {&stream, &other})
        REQUIRE(cudaStreamCreateWithFlags(made, 1) == 0);
    std::thread frees([&] {
        void *memory = nullptr;
        while (!over)
            if (cudaMallocHost(&memory, beside_n) || cudaMemsetAsync(device, 1, beside_n, other) ||
                cudaFreeHost(memory))
                good = false;
    });
    unsigned spoilt = 0;
    for (int i = 0; i < 2000; i++) {
        if (cudaStreamBeginCapture(stream, MODE_LOCAL) || cudaMemsetAsync(device, 0, 16, stream))
            good = false;
        if (cudaStreamEndCapture(stream, &graph))
            spoilt++;
        else
            preloaded<int(void *)>("cudaGraphDestroy")(graph);
    }
    over = true;
    frees.join();
    REQUIRE(good && spoilt == 0 && cudaFree(device) == 0);
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaStreamDestroy(other) == 0);
}

// ... and is told then that other streams have work, by whichever thread the capture is.
bool asks_in_relaxed_mode(void *other, void *stream, bool other_thread)
{
    auto *exchange = preloaded<int(int *)>("cudaThreadExchangeStreamCaptureMode");
    auto *launch = preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc");
    std::atomic<bool> set{false};
    void *event = nullptr, *graph = nullptr;
    int asked[2] = {}, last;
    REQUIRE(cudaEventCreate(&event) == 0);
    REQUIRE(cudaStreamBeginCapture(stream, MODE_GLOBAL) == 0);
    REQUIRE(launch(other, until_set, &set) == 0 && cudaEventRecord(event, other) == 0);
    const auto ask = [&] {
        int mode = MODE_RELAXED;
        exchange(&mode);
        asked[0] = cudaStreamQuery(other);
        asked[1] = cudaEventQuery(event);
        exchange(&mode);
        return mode == MODE_RELAXED ? 0 : -1;
    };
    const int rc = run_by(other_thread, ask, &last), status = status_of(stream);
    set = true;
    REQUIRE(rc == 0 && asked[0] == 600 && asked[1] == 600 && status == 1);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0 && graph);
    cudaGetLastError(); // that it was not ready
    return HOLDS(cudaStreamSynchronize(other) == 0 && cudaEventDestroy(event) == 0);
}

// A wait for the device ends captures in every mode, whoever has begun them.
bool refused_in_every_mode(void *stream)
{
    auto *exchange = preloaded<int(int *)>("cudaThreadExchangeStreamCaptureMode");
    bool good = true;
    for (int mode = MODE_GLOBAL; mode < MODES; mode++)
        for (bool other_thread : {false, true})
            for (bool relaxed : {false, true}) {
                void *graph = nullptr;
                int last, by = MODE_RELAXED;
                const auto wait = [&] {
                    if (relaxed)
                        exchange(&by);
                    const int rc = cudaDeviceSynchronize();
                    if (relaxed)
                        exchange(&by);
                    return rc;
                };
                REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
                const int rc = run_by(other_thread, wait, &last), status = status_of(stream);
                const int end = cudaStreamEndCapture(stream, &graph);
                cudaGetLastError();
                good = good && rc == 900 && status == 2 && end == 901;
            }
    return HOLDS(good);
}

// An event that was recorded in a capture has an error of its own, whoever asks about it. (Captures
// in mode RELAXED are the driver's double's, which knows of no events.)
bool refused_of_captured_events(void *stream)
{
    void *event = nullptr, *graph = nullptr;
    int last;
    REQUIRE(cudaEventCreate(&event) == 0);
    for (auto *call : {cudaEventQuery, cudaEventSynchronize})
        for (int mode : {MODE_GLOBAL, MODE_LOCAL})
            for (bool other_thread : {false, true}) {
                const auto ask = [&] { return call(event); };
                REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
                REQUIRE(cudaEventRecord(event, stream) == 0);
                REQUIRE(run_by(other_thread, ask, &last) == 907 && status_of(stream) == 2);
                REQUIRE(fails(cudaStreamEndCapture(stream, &graph), 901));
                REQUIRE(cudaEventRecord(event, stream) == 0);
                REQUIRE(cudaStreamSynchronize(stream) == 0 && ask() == 0);
            }
    return HOLDS(cudaEventDestroy(event) == 0);
}

// In the captured stream, neither can be made in any mode.
bool refused_in_the_stream(UnsafeCalls &unsafe, void *stream)
{
    for (int mode = MODE_GLOBAL; mode < MODES; mode++)
        for (bool attaches : {false, true}) {
            void *graph = nullptr;
            const auto call = [&] {
                return attaches ? unsafe.attach(stream) : unsafe.prefetch(stream);
            };
            REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
            REQUIRE(unsafe.prefetch(unsafe.other) == 0 && status_of(stream) == 1);
            REQUIRE(fails(call(), 900) && status_of(stream) == 2 && fails(call(), 901));
            REQUIRE(cudaStreamEndCapture(stream, &graph) == 901 && cudaGetLastError() == 901);
            REQUIRE(!graph && call() == 0);
        }
    return true;
}

// The stream of a thread can be named by that thread alone.
bool refused_beside_another_threads_stream(const UnsafeCalls &unsafe)
{
    void *const own = reinterpret_cast<void *>(2), *graph = &graph;
    int last = 0;
    REQUIRE(cudaStreamBeginCapture(own, MODE_GLOBAL) == 0);
    REQUIRE(run_by(true, unsafe.calls[0].run, &last) == 900 && last == 900);
    return HOLDS(fails(cudaStreamEndCapture(own, &graph), 901) && !graph);
}

// The thread that captures has ended, and another one has its pthread_t, but not its captures.
bool permitted_to_a_later_thread(const UnsafeCalls &unsafe)
{
    pthread_t by{};
    void *stream = nullptr;
    int begun = -1, rc = -1, last = -1;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    std::thread([&] {
        by = pthread_self();
        begun = cudaStreamBeginCapture(stream, MODE_LOCAL);
    }).join();
    REQUIRE(begun == 0);
    bool same = false;
    for (int i = 0; i < 100 && !same; i++)
        std::thread([&] {
            if ((same = pthread_equal(by, pthread_self()))) {
                rc = unsafe.calls[0].run();
                last = cudaGetLastError();
            }
        }).join();
    REQUIRE(same && rc == 0 && last == 0 && unsafe.calls[0].undo() == 0);
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

// The stream of a thread ends with it, and so does its capture: another thread that has waited for
// the end may use the legacy stream.
bool ends_with_its_thread()
{
    char *device = device_memory(1), byte = 0;
    for (int i = 0; i < 20; i++) {
        int begun = -1;
        std::thread([&] {
            begun = cudaStreamBeginCapture(reinterpret_cast<void *>(2), MODE_LOCAL);
        }).join();
        REQUIRE(begun == 0 && cudaMemcpy(&byte, device, 1, D2H) == 0);
    }
    return HOLDS(cudaFree(device) == 0);
}

} // namespace

// What CUDA calls unsafe is refused while the thread itself captures, but in mode RELAXED, and
// while another thread captures in mode GLOBAL.
bool captures_forbid()
{
    UnsafeCalls unsafe;
    void *stream = nullptr;
    bool good = true;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (int mode = MODE_GLOBAL; mode < MODES; mode++)
        for (const UnsafeCalls::Call &call : unsafe.calls) {
            good = treats(call, stream, mode, false, mode != MODE_RELAXED) && good;
            good = treats(call, stream, mode, true, mode == MODE_GLOBAL) && good;
        }
    REQUIRE(good);
    for (bool other_thread : {false, true})
        REQUIRE(asks_in_relaxed_mode(unsafe.other, stream, other_thread));
    REQUIRE(refused_in_every_mode(stream));
    REQUIRE(waits_beside_capture(unsafe.other, stream));
    REQUIRE(permitted_in_relaxed_mode(unsafe, stream) && refused_in_the_stream(unsafe, stream));
    REQUIRE(refused_beside_another_threads_stream(unsafe) && refused_of_captured_events(stream));
    REQUIRE(permitted_to_a_later_thread(unsafe) && ends_with_its_thread());
    REQUIRE(refused_before_arguments(unsafe, stream) && refused_in_legacy(unsafe));
    REQUIRE(frees_spoil_no_capture());
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

namespace
{

// Memory of each kind, and asynchronous copies and sets that this library completes before the call
// returns.
struct CopiesBeside {
    std::vector<char> there = random_bytes(beside_n, 5), back = std::vector<char>(beside_n);
    char *device = device_memory(beside_n);
    void *locked[2] = {}, *array = nullptr;

    using Rows = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, int,
                     void *);
    using ToArray = int(void *, std::size_t, std::size_t, const void *, std::size_t, std::size_t,
                        std::size_t, int, void *);
    using FromArray = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t,
                          std::size_t, int, void *);

    bool made()
    {
        return cudaMallocHost(&locked[0], beside_n) == 0 &&
               cudaMallocHost(&locked[1], beside_n) == 0 && malloc_array(&array, {64, 16, 0}) == 0;
    }
    bool gone()
    {
        return cudaFreeHost(locked[0]) == 0 && cudaFreeHost(locked[1]) == 0 &&
               free_array(array) == 0 && cudaFree(device) == 0;
    }
    char *first() { return static_cast<char *>(locked[0]); }
    char *second() { return static_cast<char *>(locked[1]); }

    // Within host memory; the bytes are in use by an earlier copy.
    bool on_host(void *stream)
    {
        std::memcpy(first(), there.data(), beside_n);
        REQUIRE(cudaMemcpyAsync(device, first(), beside_n, H2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(second(), device, beside_n, D2H, stream) == 0);
        REQUIRE(cudaMemcpyAsync(back.data(), second(), beside_n, 0, stream) == 0 && back == there);
        return true;
    }
    // Rows with gaps, one way and back.
    bool rows(void *stream)
    {
        auto *copy = preloaded<Rows>("cudaMemcpy2DAsync");
        REQUIRE(copy(device, 256, there.data(), 300, 200, 100, H2D, stream) == 0);
        std::fill(back.begin(), back.end(), 'x');
        REQUIRE(copy(back.data(), 400, device, 256, 200, 100, D2H, stream) == 0);
        for (std::size_t i = 0; i < 100; i++)
            REQUIRE(!std::memcmp(&back[i * 400], &there[i * 300], 200) &&
                    back[i * 400 + 200] == 'x');
        REQUIRE(copy(back.data(), 200, there.data(), 300, 200, 100, 0, stream) == 0);
        return HOLDS(!std::memcmp(&back[200], &there[300], 200));
    }
    bool arrays(void *stream)
    {
        auto *to = preloaded<ToArray>("cudaMemcpy2DToArrayAsync");
        auto *from = preloaded<FromArray>("cudaMemcpy2DFromArrayAsync");
        REQUIRE(to(array, 0, 0, there.data(), 300, 256, 16, H2D, stream) == 0);
        std::fill(back.begin(), back.end(), 'x');
        REQUIRE(from(back.data(), 400, array, 0, 0, 256, 16, D2H, stream) == 0);
        for (std::size_t i = 0; i < 16; i++)
            REQUIRE(!std::memcmp(&back[i * 400], &there[i * 300], 256));
        return true;
    }
    // Parts of elements, which are no copy of planes: the legacy stream copies them.
    bool parts(void *stream)
    {
        auto *to = preloaded<ToArray>("cudaMemcpy2DToArrayAsync");
        auto *from = preloaded<FromArray>("cudaMemcpy2DFromArrayAsync");
        REQUIRE(to(array, 2, 1, there.data(), 300, 101, 2, H2D, stream) == 0);
        REQUIRE(from(back.data(), 400, array, 2, 1, 101, 2, D2H, stream) == 0);
        return HOLDS(!std::memcmp(&back[400], &there[300], 101));
    }
};

} // namespace

// Asynchronous copies beside a capture are no part of it, also those for which this library waits.
// The legacy stream takes none while a stream that waits for it is captured.
bool copies_beside_captures()
{
    CopiesBeside copies;
    void *captured[2] = {}, *others[2] = {}, *legacy = nullptr, *graph = nullptr;
    REQUIRE(copies.made());
    for (unsigned flags : {0u, 1u})
        REQUIRE(cudaStreamCreateWithFlags(&captured[flags], flags) == 0 &&
                cudaStreamCreateWithFlags(&others[flags], flags) == 0);
    for (int mode = MODE_GLOBAL; mode < MODES; mode++)
        for (void *stream : captured)
            for (void *other : {others[0], others[1], reinterpret_cast<void *>(2), legacy}) {
                if (other == legacy && stream == captured[0])
                    continue;
                REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
                REQUIRE(copies.on_host(other) && copies.rows(other) && copies.arrays(other));
                REQUIRE(stream == captured[0] || copies.parts(other));
                REQUIRE(cudaMemsetAsync(copies.first(), 7, beside_n, other) == 0);
                REQUIRE(cudaGetLastError() == 0 && status_of(stream) == 1);
                REQUIRE(cudaStreamEndCapture(stream, &graph) == 0);
                REQUIRE(cudaStreamSynchronize(other) == 0);
                REQUIRE(has(copies.first(), std::vector<char>(beside_n, 7)));
            }
    for (unsigned i : {0u, 1u})
        REQUIRE(cudaStreamDestroy(captured[i]) == 0 && cudaStreamDestroy(others[i]) == 0);
    return HOLDS(copies.gone());
}

// Copies of nothing are made in a capture that was invalidated, too, and invalidate none; of planes
// only the latter. Copies from or to NULL are errors, and no part of a capture.
bool empty_copies_in_captures()
{
    auto *rows = preloaded<CopiesBeside::Rows>("cudaMemcpy2DAsync");
    char *device = device_memory(beside_n), bytes[64] = {};
    void *stream = nullptr, *graph = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    for (bool broken : {false, true})
        for (int mode = MODE_GLOBAL; mode < MODES; mode++) {
            REQUIRE(cudaStreamBeginCapture(stream, mode) == 0);
            if (broken)
                REQUIRE(fails(cudaStreamQuery(stream), 900));
            REQUIRE(rows(device, 64, device + 1024, 64, 0, 4, D2D, stream) == 0);
            REQUIRE(rows(device, 64, device + 1024, 64, 8, 0, D2D, stream) == 0);
            REQUIRE(rows(device, 64, bytes, 64, 0, 4, H2D, stream) == 0);
            REQUIRE(rows(bytes, 64, device, 64, 0, 4, DEFAULT, stream) == 0);
            REQUIRE(rows(bytes, 64, bytes + 32, 64, 0, 4, 0, stream) == 0);
            for (int kind : {0, int(H2D), int(D2H), int(D2D), DEFAULT})
                REQUIRE(cudaMemcpyAsync(kind == 0 || kind == D2H ? bytes : device,
                                        kind == 0 || kind == H2D ? bytes + 32 : device, 0, kind,
                                        stream) == 0);
            if (!broken) {
                REQUIRE(fails(rows(nullptr, 64, device, 64, 8, 4, D2H, stream), 1));
                REQUIRE(fails(rows(device, 64, nullptr, 64, 8, 4, H2D, stream), 1));
            }
            const ibx_cuda_memcpy3d none = {};
            REQUIRE(preloaded<int(const ibx_cuda_memcpy3d *, void *)>("cudaMemcpy3DAsync")(
                        &none, stream) == (broken ? 901 : 0));
            REQUIRE(status_of(stream) == 1 + broken && cudaGetLastError() == (broken ? 901 : 0));
            REQUIRE(cudaStreamEndCapture(stream, &graph) == (broken ? 901 : 0));
            REQUIRE(cudaGetLastError() == (broken ? 901 : 0));
        }
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaFree(device) == 0);
}

// The plugin knows of captures into a graph that the program gives, too: it answers no launch there
// before CUDA has captured it, and the end of one leaves others known.
bool captures_are_known()
{
    auto *into = preloaded<int(void *, void *, void *const *, const void *, std::size_t, int)>(
        "cudaStreamBeginCaptureToGraph");
    char *device = device_memory(100);
    void *streams[2] = {}, *graph = nullptr, *captured = nullptr;
    for (void *&stream : streams)
        REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    const auto works = [&] { return stub_launch(device, device + 50, 10, streams[0]); };
    const auto is_spoilt = [&] {
        REQUIRE(works() == 0 && fails(cudaStreamQuery(streams[0]), 900) && fails(works(), 901));
        return HOLDS(fails(cudaStreamEndCapture(streams[0], &captured), 901) && !captured);
    };
    for (bool given : {false, true}) {
        for (int i = 0; i < 4; i++)
            REQUIRE(works() == 0 && cudaStreamSynchronize(streams[0]) == 0);
        REQUIRE(preloaded<int(void **, unsigned)>("cudaGraphCreate")(&graph, 0) == 0);
        REQUIRE((given ? into(streams[0], graph, nullptr, nullptr, 0, MODE_RELAXED)
                       : cudaStreamBeginCapture(streams[0], MODE_RELAXED)) == 0);
        REQUIRE(is_spoilt());
    }
    REQUIRE(preloaded<int(void **, unsigned)>("cudaGraphCreate")(&graph, 0) == 0);
    REQUIRE(cudaStreamBeginCapture(streams[0], MODE_RELAXED) == 0);
    REQUIRE(into(streams[1], graph, nullptr, nullptr, 0, MODE_RELAXED) == 0);
    REQUIRE(cudaStreamEndCapture(streams[1], &captured) == 0 && captured == graph);
    REQUIRE(is_spoilt());
    for (void *stream : streams)
        REQUIRE(cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0);
}
