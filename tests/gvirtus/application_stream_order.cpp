// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The order between the legacy stream and others: work in a blocking stream, and in a thread's own,
// begins after the work that was in the legacy stream before; in a non-blocking stream it does not.
// The same holds for copies that the preload makes itself, or whose bytes it reads in the call.
#include "tests/gvirtus/application_arrays.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#include <unistd.h>

namespace
{
namespace order
{

using LaunchHost = int(void *, void (*)(void *), void *);
using Planes = ibx_cuda_memcpy3d;
using Rows = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, int,
                 void *);

void *const threads_own = reinterpret_cast<void *>(2); // cudaStreamPerThread
constexpr std::size_t bytes = 4000, row = 100, pitch = 200, height = bytes / pitch;
constexpr char before = 'a', written = 'b', set = 'c';
char variable[1]; // of the device

// What the first stream is in when the call is made.
enum class Work {
    FUNCTION, // of the host, which writes the memory
    KERNEL,   // that writes the memory
};

// The work in the first stream goes on when the call has returned or, unless only that counts,
// when the caller has waited for longer than a copy waits for a function.
struct Gate {
    char *memory;
    pid_t caller;
    bool only_returned;
    std::atomic<bool> returned{false};
    int longest = 300; // ms

    void pass() const
    {
        for (int asleep = 0; !returned && (only_returned || asleep < longest); usleep(1000))
            asleep = thread_state(getpid(), caller) == 'S' ? asleep + 1 : 0;
    }
};

// The work of a stream does not run until the gate is passed.
class HeldStream
{
  public:
    HeldStream(void *stream, Gate *until) : gate(until)
    {
        stub_remote()->hold_stream(stream ? reinterpret_cast<std::uintptr_t>(stream) : 1);
        opens = std::thread([this] {
            Remote *remote = stub_remote();
            gate->pass();
            open = true;
            remote->hold_stream(0);
        });
    }
    ~HeldStream() { end(); }
    bool is_open() const { return open; }
    // The call has returned. Waits until the stream is not held.
    void end()
    {
        gate->returned = true;
        if (opens.joinable())
            opens.join();
    }

  private:
    Gate *gate;
    std::atomic<bool> open{false};
    std::thread opens;
};

void write_behind_gate(void *argument)
{
    const auto *gate = static_cast<Gate *>(argument);
    gate->pass();
    std::memset(gate->memory, written, bytes);
}

struct Scene {
    char *memory = page_locked(bytes), *device = device_memory(2 * bytes), *from = device + bytes;
    char *managed = managed_memory(bytes);
    void *array = nullptr;
    bool symbols = false;
    std::vector<char> copied = std::vector<char>(bytes);

    bool begin()
    {
        REQUIRE(memory && device && managed && malloc_array(&array, {bytes / 4, 0, 0}) == 0);
        symbols = stub_remote()->register_var(reinterpret_cast<std::uint64_t>(variable),
                                              reinterpret_cast<std::uint64_t>(device), bytes);
        REQUIRE(cudaMemset(from, written, bytes) == 0);
        // A kernel has been loaded. One that names the memory makes it managed memory, except over
        // shm; functions of the host must not touch that.
        return HOLDS(stub_launch(over_shm ? memory : device, from, bytes, nullptr) == 0 &&
                     cudaDeviceSynchronize() == 0);
    }
    bool in_copied(char letter, std::size_t n) const
    {
        return std::memcmp(copied.data(), std::vector<char>(n, letter).data(), n) == 0;
    }
    bool in_managed(char letter) const
    {
        return std::memcmp(managed, std::vector<char>(bytes, letter).data(), bytes) == 0;
    }
    bool on_device(char letter, std::size_t n) const
    {
        return device_has(device, std::vector<char>(n, letter).data(), n);
    }
};

int rows_on_host(Scene &s, void *stream)
{
    return preloaded<Rows>("cudaMemcpy2DAsync")(s.copied.data(), pitch, s.memory, pitch, row,
                                                height, 0, stream);
}

int planes_on_host(Scene &s, void *stream)
{
    Planes p = {};
    p.from = {s.memory, pitch, pitch, height / 2};
    p.to = {s.copied.data(), pitch, pitch, height / 2};
    p.extent = {row, height / 2, 2};
    return preloaded<int(const Planes *, void *)>("cudaMemcpy3DAsync")(&p, stream);
}

Planes planes_within(char *host)
{
    Planes p = {};
    p.from = {host + bytes, pitch, pitch, height / 2};
    p.to = {host, pitch, pitch, height / 2};
    p.extent = {row, height / 2, 2};
    return p;
}

int to_array(Scene &s, void *stream)
{
    return preloaded<int(void *, std::size_t, std::size_t, const void *, std::size_t, int, void *)>(
        "cudaMemcpyToArrayAsync")(s.array, 0, 0, s.memory, bytes, H2D, stream);
}

bool in_array(const Scene &s, char letter)
{
    std::vector<char> there(bytes), wanted(bytes, letter);
    REQUIRE(preloaded<int(void *, void *, std::size_t, std::size_t, std::size_t, int)>(
                "cudaMemcpyFromArray")(there.data(), s.array, 0, 0, bytes, D2H) == 0);
    return HOLDS(there == wanted);
}

int to_symbol(Scene &s, void *stream)
{
    return preloaded<int(const void *, const void *, std::size_t, std::size_t, int, void *)>(
        "cudaMemcpyToSymbolAsync")(variable, s.memory, bytes, 0, H2D, stream);
}

// `earlier`: so many bytes before the memory the planes begin.
int row_of_planes(void *to, const Scene &s, void *stream, std::size_t earlier = 0)
{
    Planes p = {};
    p.from = {s.memory - earlier, bytes + earlier, bytes + earlier, 1};
    p.from_at.width = earlier;
    p.to = {to, bytes, bytes, 1};
    p.extent = {bytes, 1, 1};
    p.kind = DEFAULT;
    return preloaded<int(const Planes *, void *)>("cudaMemcpy3DAsync")(&p, stream);
}

// Over tcp the memory of planes that begin in no memory is not known.
std::size_t elsewhere()
{
    return over_shm ? 1 << 16 : 0;
}

// A call that reads the memory, or writes to it.
const struct MemoryCall {
    const char *name;
    int (*make)(Scene &s, void *stream);
    bool (*has)(const Scene &s, char letter); // what the call has read
    bool returns;                             // before the work that it comes after is over
    bool in_own; // it is made in its own stream, and not in the legacy one
    bool symbols;
    bool may_be_early = false; // the driver may read the bytes in the call
} ways[] = {
    {"bytes on the host",
     [](Scene &s, void *stream) {
         return cudaMemcpyAsync(s.copied.data(), s.memory, bytes, 0, stream);
     },
     [](const Scene &s, char letter) { return s.in_copied(letter, bytes); }, false, true, false},
    {"rows on the host", rows_on_host,
     [](const Scene &s, char letter) { return s.in_copied(letter, row); }, false, true, false},
    {"planes on the host", planes_on_host,
     [](const Scene &s, char letter) { return s.in_copied(letter, row); }, false, true, false},
    {"few bytes to the device",
     [](Scene &s, void *stream) { return cudaMemcpyAsync(s.device, s.memory, 4, H2D, stream); },
     [](const Scene &s, char letter) { return s.on_device(letter, 4); }, true, true, false, true},
    {"many bytes to the device",
     [](Scene &s, void *stream) { return cudaMemcpyAsync(s.device, s.memory, bytes, H2D, stream); },
     [](const Scene &s, char letter) { return s.on_device(letter, bytes); }, true, true, false,
     true},
    // In the legacy stream, behind whatever the first stream is.
    {"bytes to the device, waited for",
     [](Scene &s, void *) { return cudaMemcpy(s.device, s.memory, bytes, H2D); },
     [](const Scene &s, char letter) { return s.on_device(letter, bytes); }, false, false, false,
     true},
    {"bytes to managed memory",
     [](Scene &s, void *stream) {
         return cudaMemcpyAsync(s.managed, s.memory, bytes, DEFAULT, stream);
     },
     [](const Scene &s, char letter) { return s.in_managed(letter); }, false, false, false, true},
    {"bytes to managed memory, waited for",
     [](Scene &s, void *) { return cudaMemcpy(s.managed, s.memory, bytes, DEFAULT); },
     [](const Scene &s, char letter) { return s.in_managed(letter); }, false, false, false, true},
    {"a row to the device",
     [](Scene &s, void *stream) { return row_of_planes(s.device, s, stream); },
     [](const Scene &s, char letter) { return s.on_device(letter, bytes); }, false, false, false,
     true},
    {"a row of planes that begin elsewhere",
     [](Scene &s, void *stream) { return row_of_planes(s.device, s, stream, elsewhere()); },
     [](const Scene &s, char letter) { return s.on_device(letter, bytes); }, false, false, false,
     true},
    {"a row to managed memory",
     [](Scene &s, void *stream) { return row_of_planes(s.managed, s, stream); },
     [](const Scene &s, char letter) { return s.in_managed(letter); }, false, false, false, true},
    {"rows to the device",
     [](Scene &s, void *stream) {
         return preloaded<Rows>("cudaMemcpy2DAsync")(s.device, row, s.memory, pitch, row, height,
                                                     H2D, stream);
     },
     [](const Scene &s, char letter) { return s.on_device(letter, row * height); }, false, false,
     false},
    {"to an array", to_array, in_array, false, false, false},
    {"to a variable", to_symbol,
     [](const Scene &s, char letter) { return s.on_device(letter, bytes); }, false, false, true},
};

// Two streams, and whether work in the second one comes after what is in the first.
struct Pair {
    const char *name;
    void *first, *then;
    bool ordered;
    void *event = nullptr; // is recorded in the legacy stream between them
};

// Makes the call in the second stream while the first one is in work that will write the memory.
bool made_behind(Scene &s, const MemoryCall &way, Work work, const Pair &streams)
{
    const bool held = work == Work::KERNEL;
    Gate gate{s.memory, gettid(), !streams.ordered || (way.returns && !held)};
    std::unique_ptr<HeldStream> work_of_kernel;
    std::memset(s.memory, before, bytes);
    std::memset(s.managed, 'x', bytes);
    std::fill(s.copied.begin(), s.copied.end(), 'x');
    REQUIRE(cudaMemset(s.device, 'x', bytes) == 0 && cudaDeviceSynchronize() == 0);
    if (held)
        work_of_kernel = std::make_unique<HeldStream>(streams.first, &gate);
    int rc =
        held ? stub_launch(s.memory, s.from, bytes, streams.first)
             : preloaded<LaunchHost>("cudaLaunchHostFunc")(streams.first, write_behind_gate, &gate);
    if (!streams.first || streams.event) // the other one is known to have no work itself
        rc = rc ? rc : cudaStreamSynchronize(streams.then);
    if (streams.event)
        rc = rc ? rc : cudaEventRecord(streams.event, nullptr);
    rc = rc ? rc : way.make(s, streams.then);
    if (!streams.ordered) // it is read before the memory is written
        rc = rc ? rc : cudaStreamSynchronize(streams.then);
    gate.returned = true;
    work_of_kernel.reset();
    REQUIRE(rc == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(s.memory[0] == written && s.memory[bytes - 1] == written);
    return HOLDS(way.has(s, streams.ordered ? written : before));
}

// Registered memory is set by the preload itself, behind what the function writes.
bool set_behind(void *stream)
{
    std::vector<char> memory(bytes, before);
    Gate gate{memory.data(), gettid(), false};
    REQUIRE(host_register(memory.data(), bytes) == 0);
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(nullptr, write_behind_gate, &gate) == 0);
    REQUIRE(cudaMemsetAsync(memory.data(), set, bytes, stream) == 0);
    gate.returned = true;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && cudaStreamSynchronize(nullptr) == 0);
    REQUIRE(memory == std::vector<char>(bytes, set));
    return HOLDS(host_unregister(memory.data()) == 0);
}

bool say(const char *name, Work work, const char *streams, bool good)
{
    if (!good)
        std::fprintf(stderr, "%s, behind a %s, %s\n", name,
                     work == Work::KERNEL ? "kernel" : "function", streams);
    return good;
}

// As measured on an H200: a wait for a blocking stream does not include the legacy stream, but what
// is enqueued in it comes after that.
bool wait_is_for_one(void *stream)
{
    void *event = nullptr;
    char *device = device_memory(2 * bytes);
    REQUIRE(cudaEventCreate(&event) == 0 && cudaStreamSynchronize(stream) == 0);
    stub_remote()->hold_stream(1);
    REQUIRE(stub_launch(device, device + bytes, bytes, nullptr) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && cudaStreamQuery(stream) == 0);
    REQUIRE(cudaEventRecord(event, stream) == 0 && cudaEventQuery(event) == 600);
    stub_remote()->hold_stream(0);
    return HOLDS(cudaEventSynchronize(event) == 0 && cudaEventDestroy(event) == 0);
}

// Blocking streams that are ordered by an event in the legacy stream, and by nothing else there.
bool copied_behind_event(Scene &s, void *event, void *first, void *second)
{
    Gate gate{nullptr, gettid(), false};
    std::memset(s.memory, before, bytes);
    REQUIRE(cudaMemset(s.device, written, bytes) == 0);
    HeldStream held(first, &gate);
    int rc = cudaDeviceSynchronize(); // behind the call that holds it, which may be work for all
                                      // they know
    rc = rc ? rc : cudaMemcpyAsync(s.memory, s.device, bytes, D2H, first);
    rc = rc ? rc : cudaEventRecord(event, nullptr);
    rc = rc ? rc : cudaMemcpyAsync(s.copied.data(), s.memory, bytes, 0, second);
    held.end();
    return HOLDS(rc == 0 && s.in_copied(written, bytes));
}

// How many calls the back end makes for work in the legacy stream, waits, and so many copies on the
// host in the other stream.
std::uint64_t calls_of(Scene &s, void *stream, bool settled, unsigned copies)
{
    Remote *remote = stub_remote();
    const std::uint64_t calls = remote->runtime_calls();
    bool good = stub_launch(s.device, s.from, bytes, nullptr) == 0;
    good = (!settled || cudaStreamSynchronize(nullptr) == 0) && good;
    good = cudaStreamSynchronize(stream) == 0 && good;
    for (unsigned i = 0; i < copies; i++)
        good = cudaMemcpyAsync(s.copied.data(), s.memory, bytes, 0, stream) == 0 && good;
    return good ? remote->runtime_calls() - calls : 0;
}

// A copy is no request if nothing can be left of the stream's work and of the legacy stream's. What
// is left of the legacy stream's is waited for once.
bool asks_once(Scene &s, void *stream)
{
    const std::uint64_t none = calls_of(s, stream, true, 0);
    REQUIRE(none && calls_of(s, stream, true, 10) == none);
    const std::uint64_t few = calls_of(s, stream, false, 2);
    return HOLDS(few && calls_of(s, stream, false, 10) == few);
}

// Whether the work that this stream was given last has not begun, since it comes after other work.
bool comes_after_other_work(void *stream)
{
    int rc;
    while ((rc = cudaStreamQuery(stream)) == 600 &&
           !stub_remote()->stream_waits(reinterpret_cast<std::uintptr_t>(stream)))
        std::this_thread::yield();
    return rc == 600;
}

// A prefetch is work of its stream: in the legacy one it orders blocking streams, as any other.
bool prefetch_between(const Scene &s, void *first, void *second)
{
    constexpr std::uint64_t device = 1; // its type; the upper half is its number
    auto *prefetch = preloaded<int(const void *, std::size_t, std::uint64_t, unsigned, void *)>(
        "cudaMemPrefetchAsync_v2");
    char *managed = managed_memory(bytes);
    static Gate gate{s.memory, 0, true};
    gate.returned = false;
    REQUIRE(managed && cudaDeviceSynchronize() == 0);
    std::memset(s.memory, before, bytes);
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(first, write_behind_gate, &gate) == 0);
    const bool waits = prefetch(managed, bytes, device, 0, nullptr) == 0 &&
                       cudaMemsetAsync(s.device, set, bytes, second) == 0 &&
                       comes_after_other_work(second);
    gate.returned = true;
    REQUIRE(cudaStreamSynchronize(second) == 0 && waits && s.memory[bytes - 1] == written);
    return HOLDS(cudaFree(managed) == 0);
}

// What a stream is given between the work of others. None of it is work of the device here;
// natively each of it comes after what is in the stream and, by the legacy stream, in others, and
// later work comes after it (H200).
const struct Between {
    const char *name;
    int (*make)(char *host, char *managed, void *stream);
    bool of_host; // it is a copy, for which CUDA waits
    bool is_safe; // it is permitted in each mode of captures
    bool in_any;  // it is work of whichever stream it is in
} between[] = {
    {"a prefetch",
     [](char *, char *managed, void *stream) {
         constexpr std::uint64_t device = 1; // its type; the upper half is its number
         return preloaded<int(const void *, std::size_t, std::uint64_t, unsigned, void *)>(
             "cudaMemPrefetchAsync_v2")(managed, bytes, device, 0, stream);
     },
     false, true, true},
    {"memory that is attached",
     [](char *, char *managed, void *stream) {
         return preloaded<int(void *, void *, std::size_t, unsigned)>("cudaStreamAttachMemAsync")(
             stream, managed, 0, 1);
     },
     false, false, false},
    {"a copy", [](char *host, char *, void *) { return cudaMemcpy(host, host + bytes, bytes, 0); },
     true, true, false},
    {"an asynchronous copy",
     [](char *host, char *, void *stream) {
         return cudaMemcpyAsync(host, host + bytes, bytes, 0, stream);
     },
     true, true, true},
    {"a copy in cudaStreamLegacy",
     [](char *host, char *, void *) {
         void *const legacy = reinterpret_cast<void *>(1);
         return cudaMemcpyAsync(host, host + bytes, bytes, 0, legacy);
     },
     true, true, false},
    {"rows",
     [](char *host, char *, void *) {
         return preloaded<int(void *, std::size_t, const void *, std::size_t, std::size_t,
                              std::size_t, int)>("cudaMemcpy2D")(host, pitch, host + bytes, pitch,
                                                                 row, height, 0);
     },
     true, true, false},
    {"asynchronous rows",
     [](char *host, char *, void *stream) {
         return preloaded<Rows>("cudaMemcpy2DAsync")(host, pitch, host + bytes, pitch, row, height,
                                                     0, stream);
     },
     true, true, true},
    {"planes",
     [](char *host, char *, void *) {
         const Planes p = planes_within(host);
         return preloaded<int(const Planes *)>("cudaMemcpy3D")(&p);
     },
     true, true, false},
    {"asynchronous planes",
     [](char *host, char *, void *stream) {
         const Planes p = planes_within(host);
         return preloaded<int(const Planes *, void *)>("cudaMemcpy3DAsync")(&p, stream);
     },
     true, true, true},
};

enum Capture { GLOBAL, THREAD_LOCAL, RELAXED, NONE };

// Makes the call; and ends the capture of another stream, which the call has not disturbed.
bool made_beside(const Between &what, void *apart, Capture mode, char *host, char *managed)
{
    void *graph = nullptr;
    const auto end = preloaded<int(void *, void **)>("cudaStreamEndCapture");
    const int rc = what.make(host, managed, nullptr), ended = mode == NONE ? 0 : end(apart, &graph);
    if (rc || ended)
        std::fprintf(stderr, "%s: %d, end of the capture: %d\n", what.name, rc, ended);
    return !rc && !ended;
}

// Makes the call, perhaps while a non-blocking stream is captured, which changes nothing. The first
// stream is held until the call has returned or, if CUDA waits in the call, sleeps.
bool comes_between(const Scene &s, const Between &what, void *first, void *second, Capture mode)
{
    void *apart = nullptr;
    std::vector<char> host(2 * bytes, before);
    char *managed = managed_memory(bytes);
    REQUIRE(managed && cudaStreamCreateWithFlags(&apart, 1) == 0 && cudaDeviceSynchronize() == 0);
    std::fill(host.begin() + bytes, host.end(), written);
    const auto begin = preloaded<int(void *, int)>("cudaStreamBeginCapture");
    REQUIRE(mode == NONE || begin(apart, mode) == 0);
    Gate gate{nullptr, gettid(), !what.of_host};
    gate.longest = 50;
    HeldStream held(first, &gate);
    const bool made = stub_launch(s.device, s.from, bytes, first) == 0 &&
                      made_beside(what, apart, mode, host.data(), managed);
    const bool waits = held.is_open() == what.of_host &&
                       cudaMemsetAsync(s.device, set, bytes, second) == 0 &&
                       (what.of_host || comes_after_other_work(second));
    held.end();
    if (!made || !waits)
        std::fprintf(stderr, "%s is not between %p and %p, capture %d\n", what.name, first, second,
                     mode);
    REQUIRE(cudaStreamSynchronize(first) == 0 && cudaStreamSynchronize(second) == 0);
    REQUIRE(host[0] == (what.of_host ? written : before));
    return HOLDS(cudaStreamDestroy(apart) == 0 && cudaFree(managed) == 0 && made && waits);
}

// Makes the call in a stream behind work of that stream, or of the legacy one; none of the memory
// is used by it. Natively a wait for the stream then includes that work.
bool comes_after(const Scene &s, const Between &what, void *first, void *then, bool ordered)
{
    std::vector<char> host(2 * bytes, before);
    char *managed = managed_memory(bytes);
    REQUIRE(managed && cudaDeviceSynchronize() == 0);
    std::fill(host.begin() + bytes, host.end(), written);
    Gate gate{nullptr, gettid(), !ordered || !what.of_host};
    gate.longest = 50;
    HeldStream held(first, &gate);
    int rc = first == then ? 0 : cudaStreamSynchronize(then); // it has no work itself
    rc = rc ? rc : stub_launch(s.device, s.from, bytes, first);
    rc = rc ? rc : what.make(host.data(), managed, then);
    const int busy = ordered && !what.of_host ? 600 : 0;
    const bool good =
        rc == 0 && held.is_open() == (ordered && what.of_host) && cudaStreamQuery(then) == busy;
    held.end();
    if (!good)
        std::fprintf(stderr, "%s in %p, behind work in %p: %d\n", what.name, then, first, rc);
    REQUIRE(cudaDeviceSynchronize() == 0 && host[0] == (what.of_host ? written : before));
    return HOLDS(cudaFree(managed) == 0 && good);
}

bool each_comes_after(const Scene &s, void *blocking)
{
    void *apart = nullptr;
    bool good = cudaStreamCreateWithFlags(&apart, 1) == 0;
    const struct {
        void *first, *then;
        bool ordered;
    } pairs[] = {{nullptr, blocking, true},  {nullptr, threads_own, true},
                 {blocking, blocking, true}, {threads_own, threads_own, true},
                 {apart, apart, true},       {nullptr, apart, false}};
    for (const Between &what : between)
        for (const auto &pair : pairs)
            good =
                (!what.in_any || comes_after(s, what, pair.first, pair.then, pair.ordered)) && good;
    return HOLDS(good && cudaStreamDestroy(apart) == 0);
}

// How many calls the back end makes for work, a wait for all of it perhaps, and so many copies on
// the host in the other stream.
std::uint64_t calls_for(const Scene &s, void *stream, bool settled, unsigned copies, void *then)
{
    std::vector<char> host(2 * bytes, before);
    const std::uint64_t calls = stub_remote()->runtime_calls();
    bool good = stub_launch(s.device, s.from, bytes, stream) == 0;
    good = (!settled || cudaDeviceSynchronize() == 0) && good;
    for (unsigned i = 0; i < copies; i++)
        good = cudaMemcpyAsync(host.data(), &host[bytes], bytes, 0, then) == 0 && good;
    good = cudaDeviceSynchronize() == 0 && good;
    return good ? stub_remote()->runtime_calls() - calls : 0;
}

// Copies are no requests if there is no work; and one waits for what is left, in a stream of its
// own perhaps two do.
bool waits_once(const Scene &s, void *stream, void *then)
{
    const std::uint64_t none = calls_for(s, stream, true, 0, then);
    REQUIRE(none && calls_for(s, stream, true, 10, then) == none);
    const std::uint64_t few = calls_for(s, stream, false, then ? 2 : 1, then);
    return HOLDS(few && calls_for(s, stream, false, 10, then) == few);
}

// Page-locked memory that kernels have named is managed memory, except over shm: copies from it
// read what a kernel before them writes, which goes on when the call has returned, or waits.
bool copied_behind_kernel(Scene &s, const MemoryCall &way, void *first, void *then)
{
    Gate gate{nullptr, gettid(), false};
    gate.longest = 50;
    std::memset(s.memory, before, bytes);
    std::memset(s.managed, 'x', bytes);
    REQUIRE(cudaMemset(s.device, 'x', bytes) == 0 && cudaDeviceSynchronize() == 0);
    HeldStream held(first, &gate);
    int rc = stub_launch(s.memory, s.from, bytes, first);
    rc = rc ? rc : way.make(s, then);
    held.end();
    REQUIRE(rc == 0 && cudaDeviceSynchronize() == 0 && s.memory[bytes - 1] == written);
    return HOLDS(way.has(s, written));
}

} // namespace order
} // namespace

bool order_behind_kernels()
{
    using namespace order;
    order::Scene s;
    void *one = nullptr, *other = nullptr;
    bool good = true;
    REQUIRE(s.begin() && cudaStreamCreate(&one) == 0 && cudaStreamCreate(&other) == 0);
    REQUIRE(stub_launch(s.memory, s.from, bytes, nullptr) == 0 && cudaDeviceSynchronize() == 0);
    const struct {
        const char *name;
        void *first, *then;
    } pairs[] = {{"from a blocking stream to the legacy one", one, nullptr},
                 {"from the legacy stream to a blocking one", nullptr, other},
                 {"from the thread's stream to the legacy one", threads_own, nullptr}};
    for (const MemoryCall &way : ways) {
        if (!way.may_be_early)
            continue;
        for (const auto &pair : pairs)
            good = say(way.name, Work::KERNEL, pair.name,
                       copied_behind_kernel(s, way, pair.first, pair.then)) &&
                   good;
    }
    return HOLDS(good && cudaGetLastError() == 0);
}

bool order_between_streams()
{
    using namespace order;
    order::Scene s;
    void *one = nullptr, *other = nullptr;
    bool good = true;
    REQUIRE(s.begin() && cudaStreamCreate(&one) == 0 && cudaStreamCreate(&other) == 0);
    for (void *stream : {one, threads_own, static_cast<void *>(nullptr)})
        REQUIRE(waits_once(s, stream, nullptr) && waits_once(s, stream, stream));
    const struct {
        void *first, *second;
    } pairs[] = {{one, other}, {one, threads_own}, {threads_own, other}, {nullptr, other}};
    for (const Between &what : between) {
        for (const auto &pair : pairs)
            good = comes_between(s, what, pair.first, pair.second, NONE) && good;
        for (Capture mode : {GLOBAL, THREAD_LOCAL, RELAXED})
            if (mode == RELAXED || what.is_safe)
                good = comes_between(s, what, one, other, mode) && good;
    }
    good = each_comes_after(s, other) && good;
    return HOLDS(good && cudaGetLastError() == 0);
}

bool order_behind_legacy()
{
    using namespace order;
    order::Scene s;
    void *blocking = nullptr, *apart = nullptr, *event = nullptr;
    bool good = true;
    REQUIRE(s.begin() && cudaEventCreate(&event) == 0);
    REQUIRE(cudaStreamCreate(&blocking) == 0 && cudaStreamCreateWithFlags(&apart, 1) == 0);
    REQUIRE(wait_is_for_one(blocking) && wait_is_for_one(threads_own));
    REQUIRE(cudaMemcpyAsync(s.memory, s.from, bytes, D2H, blocking) == 0); // used by a copy
    for (void *stream : {blocking, threads_own})
        REQUIRE(asks_once(s, stream));
    REQUIRE(copied_behind_event(s, event, threads_own, blocking));
    REQUIRE(copied_behind_event(s, event, blocking, threads_own));
    const Pair all[] = {
        {"from the legacy stream to a blocking one", nullptr, blocking, true},
        {"from the legacy stream to the thread's", nullptr, threads_own, true},
        {"from a blocking stream to the legacy one", blocking, nullptr, true},
        {"from the thread's stream to the legacy one", threads_own, nullptr, true},
        {"from the legacy stream to a non-blocking one", nullptr, apart, false},
        {"by an event to a blocking stream", threads_own, blocking, true, event},
        {"by an event to the thread's stream", blocking, threads_own, true, event},
    };
    for (Work work : {Work::FUNCTION, Work::KERNEL})
        for (const Pair &streams : all)
            for (const MemoryCall &way : ways) {
                if ((!streams.ordered && !way.in_own) || (way.symbols && !s.symbols) ||
                    (work == Work::KERNEL && (!over_shm || streams.event))) // see Scene::begin()
                    continue;
                const bool made = made_behind(s, way, work, streams);
                good = say(way.name, work, streams.name, made) && good;
            }
    for (void *stream : {blocking, threads_own})
        good = say("a set", Work::FUNCTION, "in a stream with order", set_behind(stream)) && good;
    good = prefetch_between(s, blocking, threads_own) && good;
    good = prefetch_between(s, threads_own, blocking) && good;
    return HOLDS(good && cudaGetLastError() == 0);
}
