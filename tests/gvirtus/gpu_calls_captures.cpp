// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Streams that are being captured: calls that are no part of a graph stay outside, and clients do
// not end each other's captures.
#include "tests/gvirtus/gpu_calls_scene.h"
#include "tests/fixtures/patience.h"

namespace
{

// A function of the client is to be called once: it is refused in a stream whose work becomes a
// graph, also in that of the thread.
bool functions_in_captures()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t queue = 0;
    REQUIRE(remote.call("ibxRuntime", number(28)) == 0 && remote.out.size() == 8);
    std::memcpy(&queue, remote.out.data(), 8);
    remote.stream_query(2); // the thread's stream, which is in use from now on
    for (std::uint64_t stream : {remote.stream_create(), std::uint64_t{2}}) {
        Body add = number(29).u64(stream).u64(queue).u64(1);
        add.bytes.push_back(0);
        remote.capture(stream);
        REQUIRE(remote.call("ibxRuntime", add) == 801);
        remote.capture(0);
    }
    return true;
}

// A kernel that is looked up for the first time while its client captures ends no capture.
bool kernels_in_captures()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create();
    const Body asks = number(IBX_EXT_PARAMETERS).u64(IBX_DOUBLE_WIDE + 20000).i32(0);
    const Body empty = kernel(IBX_DOUBLE_WIDE + 10000, 1, stream, 0, 0, 0);
    Body launch = number(IBX_EXT_LAUNCH).put<std::uint16_t>(0);
    launch.bytes.insert(launch.bytes.end(), empty.bytes.begin(), empty.bytes.end());
    REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)) == 0);
    REQUIRE(remote.call("ibxRuntime", asks) == 0);
    REQUIRE(remote.call("ibxRuntime", launch) == 1);
    REQUIRE(remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    return HOLDS(remote.get_last_error() == 0);
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
    REQUIRE(remote.stream_synchronize(other) == 0);
    REQUIRE(remote.from_device_async(back.data(), device, 4096, stream) == 0);
    return HOLDS(back == bytes);
}

// A client that waits for the device does not end another client's capture, and is not held up by
// it.
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
    Calling waiting(gpu.back, [&] { return other.remote.device_synchronize() || !ends; });
    waiting.settle();
    ends = true;
    REQUIRE(gpu.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    return HOLDS(waiting.result() == 0);
}

// A client frees memory while it captures the stream of its thread in relaxed mode. Natively that
// ends no capture, and beside another client it ends none, either.
bool frees_in_own_capture()
{
    Gpu gpu;
    Client other(gpu, of_another_program);
    other.remote.get_last_error();
    other.remote.set_device(0);
    const std::uint64_t memory = gpu.remote.malloc(4096);
    REQUIRE(other.remote.malloc(4096) && gpu.remote.stream_query(2) == 0);
    REQUIRE(gpu.remote.call("cudaStreamBeginCapture", Body().u64(2).i32(2)) == 0);
    REQUIRE(gpu.remote.free(memory) == 0);
    return HOLDS(gpu.remote.call("cudaStreamEndCapture", Body().u64(2)) == 0);
}

// A client that is told of what its kernels print asks about another stream while it captures the
// stream of its thread in relaxed mode.
bool printed_beside_own_capture()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Body tell = number(IBX_EXT_PRINTED);
    tell.bytes.push_back(static_cast<char>(IBX_EXT_PRINTED_TELL));
    const std::uint64_t stream = remote.stream_create(1);
    REQUIRE(remote.call("ibxRuntime", tell) == 0);
    REQUIRE(remote.stream_query(2) == 0 && remote.stream_query(stream) == 0);
    REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(2).i32(2)) == 0);
    REQUIRE(remote.stream_query(stream) == 0);
    return HOLDS(remote.call("cudaStreamEndCapture", Body().u64(2)) == 0);
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

// A client that waits for the device again and again does not end a capture that another client
// begins, and does not keep it out.
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
    return HOLDS(!failed && !lost);
}

// Work in the legacy stream does not end the capture of a stream that waits for it, and is not held
// up by it.
bool captures_beside_legacy()
{
    Gpu gpu;
    Client other(gpu, of_another_program);
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
        Calling working(gpu.back, work);
        working.settle();
        const int ended = gpu.remote.call("cudaStreamEndCapture", Body().u64(blocking));
        REQUIRE(working.result() == 0 && ended == 0);
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
    return HOLDS(!failed && !lost);
}

// Nobody waits for the captures of a client that has ended, and they are in nobody's way.
bool captures_left()
{
    Gpu gpu;
    const std::uint64_t stream = gpu.remote.stream_create(1), to = gpu.remote.malloc(4096),
                        from = gpu.remote.malloc(4096);
    // The back end leaves kernels to the runtime while a client captures.
    auto apart = [&] {
        const Body launch = kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, 8);
        return static_cast<unsigned>(gpu.made("cudaLaunchKernel", launch)) < 2;
    };
    REQUIRE(apart());
    {
        Client leaving(gpu);
        REQUIRE(!leaving.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)));
        REQUIRE(!apart());
    }
    // A client's end takes a while, and makes calls of the runtime, which are counted, too.
    auto soon_apart = [&] {
        bool is = apart();
        for (unsigned left = patience_ms(5000); left && !is; left--, is = apart())
            usleep(1000);
        return is;
    };
    REQUIRE(soon_apart() && gpu.remote.device_synchronize() == 0);
    // The same after captures that the client ended itself, and after later ones of others.
    REQUIRE(!gpu.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)));
    {
        Client leaving(gpu);
        REQUIRE(leaving.remote.call("cudaStreamBeginCapture", Body().u64(0).i32(0)) == 1);
    }
    REQUIRE(!gpu.remote.call("cudaStreamEndCapture", Body().u64(stream)) && soon_apart());
    // A capture ends with its stream.
    const std::uint64_t other = gpu.remote.stream_create(1);
    REQUIRE(!gpu.remote.call("cudaStreamBeginCapture", Body().u64(other).i32(0)) && !apart());
    REQUIRE(!gpu.remote.call("cudaStreamDestroy", Body().u64(other)) && soon_apart());
    // Also where another thread of the client ends it, or the stream.
    Client thread(gpu);
    thread.remote.get_last_error();
    thread.remote.set_device(0);
    for (const char *ends : {"cudaStreamEndCapture", "cudaStreamDestroy"}) {
        const std::uint64_t third = gpu.remote.stream_create(1);
        REQUIRE(!gpu.remote.call("cudaStreamBeginCapture", Body().u64(third).i32(2)) && !apart());
        REQUIRE(!thread.remote.call(ends, Body().u64(third)) && soon_apart());
    }
    // ... and where it may not: CUDA ends it, too.
    REQUIRE(!gpu.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)) && !apart());
    REQUIRE(thread.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 908 && soon_apart());
    return HOLDS(gpu.remote.device_synchronize() == 0);
}

} // namespace

void check_calls_captures()
{
    check("functions in captures", functions_in_captures);
    check("kernels in captures", kernels_in_captures);
    check("copies in captures", copies_in_captures);
    check("captures of several clients", captures_apart);
    check("... of the thread's stream, while memory is given back", frees_in_own_capture);
    check("... and a client is told what kernels print", printed_beside_own_capture);
    check("... beside waits for the device", captures_beside_waits);
    check("... beside work in the legacy stream", captures_beside_legacy);
    check("... that a client has left", captures_left);
}
