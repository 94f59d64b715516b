// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What goes on while a stream waits. Copies whose bytes CUDA takes in the call return, and hold up
// no other thread's call: what lets the stream go on may be such a call. So do forks beside calls
// that wait.
#include "tests/gvirtus/application_arrays.h"

#include "tests/fixtures/patience.h"

#include <atomic>
#include <chrono>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{
namespace held
{

constexpr std::size_t most = 64u << 10; // bytes that CUDA takes
constexpr std::size_t lengths[] = {4, 1900, 2000, 30000, most};
void *const threads_own = reinterpret_cast<void *>(2); // cudaStreamPerThread

// A thread whose calls come behind a copy of another one. Its last call lets the streams go on.
class Beside
{
  public:
    Beside()
        : thread([this] {
              Remote *remote = stub_remote();
              char *memory = device_memory(64);
              connected = true;
              while (!begins)
                  std::this_thread::yield();
              good = memory && cudaMemsetAsync(memory, 1, 64, nullptr) == 0 &&
                     cudaFree(nullptr) == 0 && device_memory(64) && cudaGetLastError() == 0;
              remote->hold_stream(0);
          })
    {
        while (!connected)
            std::this_thread::yield();
    }
    ~Beside() { thread.join(); }
    Beside(const Beside &) = delete;
    Beside &operator=(const Beside &) = delete;
    bool end()
    {
        begins = true;
        thread.join();
        thread = std::thread([] {});
        return good;
    }

  private:
    std::atomic<bool> connected{false}, begins{false};
    bool good = false;
    std::thread thread;
};

bool returns(char *target, std::size_t n, int kind, void *stream)
{
    std::vector<char> bytes = random_bytes(n, static_cast<unsigned>(n)), copied = bytes;
    Beside other;
    stub_remote()->hold_stream(stream ? reinterpret_cast<std::uintptr_t>(stream) : 1);
    const int rc = cudaMemcpyAsync(target, bytes.data(), n, kind, stream);
    std::fill(bytes.begin(), bytes.end(), 'x'); // they have been taken
    const bool good = other.end();
    REQUIRE(rc == 0 && good && cudaDeviceSynchronize() == 0);
    return HOLDS(device_has(target, copied.data(), n));
}

bool each_length(char *target, void *stream)
{
    for (std::size_t n : lengths)
        for (int kind : {static_cast<int>(H2D), DEFAULT})
            REQUIRE(returns(target, n, kind, stream));
    return true;
}

} // namespace held
} // namespace

bool bytes_are_taken()
{
    using namespace held;
    void *blocking = nullptr, *apart = nullptr;
    REQUIRE(cudaStreamCreate(&blocking) == 0 && cudaStreamCreateWithFlags(&apart, 1) == 0);
    for (char *target : {device_memory(most), managed_memory(most)})
        for (void *stream : {blocking, apart, threads_own, static_cast<void *>(nullptr)})
            REQUIRE(target && each_length(target, stream));
    return HOLDS(cudaStreamDestroy(blocking) == 0 && cudaStreamDestroy(apart) == 0);
}

namespace
{
namespace gates
{

using LaunchHost = int(void *, void (*)(void *), void *);
using CopyRows = int(void *, std::size_t, const void *, std::size_t, std::size_t, std::size_t, int,
                     void *);
constexpr std::size_t pitch = 3000, width = 1000, rows = 70, area = pitch * rows;

std::atomic<bool> opened, passed;

void wait_until_opened(void *)
{
    while (!opened)
        usleep(100);
    passed = true;
}

struct Scene {
    void *gated = nullptr, *between = nullptr, *stream = nullptr, *events[2] = {};
    char *device = device_memory(area), *allocated = nullptr;
    std::vector<char> registered = std::vector<char>(area),
                      pageable = std::vector<char>(held::most);

    bool begin()
    {
        auto *enter = preloaded<int(void *, std::size_t, unsigned)>("cudaHostRegister");
        REQUIRE(cudaStreamCreateWithFlags(&gated, 1) == 0);
        REQUIRE(cudaStreamCreateWithFlags(&between, 1) == 0);
        REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
        for (void *&event : events)
            REQUIRE(cudaEventCreate(&event) == 0);
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&allocated), area) == 0);
        return HOLDS(enter(registered.data(), area, 0) == 0);
    }

    // `stream` comes after a function in another one, by way of a third.
    bool close()
    {
        opened = passed = false;
        REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(gated, wait_until_opened, nullptr) ==
                0);
        REQUIRE(cudaEventRecord(events[0], gated) == 0);
        REQUIRE(cudaStreamWaitEvent(between, events[0], 0) == 0);
        REQUIRE(cudaEventRecord(events[1], between) == 0);
        return HOLDS(cudaStreamWaitEvent(stream, events[1], 0) == 0);
    }

    bool open()
    {
        const bool waited = passed;
        opened = true;
        return HOLDS(cudaStreamSynchronize(stream) == 0 && !waited && passed);
    }
};

// Makes the call, which does not wait for the function. Bytes that are read later are those that
// the program writes meanwhile.
template <typename Copy>
bool one_copy(Scene &s, char *memory, std::size_t n, bool to_device, Copy copy)
{
    const bool takes = memory == s.pageable.data();
    std::vector<char> old(n, 'o'), before = random_bytes(n, 1), after = random_bytes(n, 2);
    std::memcpy(memory, to_device ? before.data() : old.data(), n);
    REQUIRE(cudaMemcpy(s.device, to_device ? old.data() : after.data(), n, H2D) == 0);
    REQUIRE(s.close());
    const int rc = to_device ? copy(s.device, memory, H2D) : copy(memory, s.device, D2H);
    if (to_device)
        std::memcpy(memory, after.data(), n);
    REQUIRE(s.open() && rc == 0);
    const std::vector<char> &from = takes ? before : after;
    std::vector<char> expected = old, got(n);
    copy(expected.data(), const_cast<char *>(from.data()), 0);
    REQUIRE(cudaMemcpy(got.data(), s.device, n, D2H) == 0);
    return HOLDS(!std::memcmp(to_device ? got.data() : memory, expected.data(), n));
}

bool plain(Scene &s, char *memory, std::size_t n, bool to_device)
{
    return one_copy(s, memory, n, to_device, [=, &s](char *to, char *from, int kind) {
        return cudaMemcpyAsync(to, from, n, kind, kind ? s.stream : nullptr);
    });
}

bool with_gaps(Scene &s, char *memory, bool to_device)
{
    auto *copy_rows = preloaded<CopyRows>("cudaMemcpy2DAsync");
    return one_copy(s, memory, area, to_device, [=, &s](char *to, char *from, int kind) {
        return copy_rows(to, pitch, from, pitch, width, rows, kind, kind ? s.stream : nullptr);
    });
}

bool behind_events(Scene &s)
{
    for (std::size_t n : {std::size_t(4), std::size_t(10000), held::most, std::size_t(200000)})
        for (bool to_device : {true, false})
            for (char *memory : {s.allocated, s.registered.data(), s.pageable.data()})
                REQUIRE((memory == s.pageable.data() && (n > held::most || !to_device)) ||
                        plain(s, memory, n, to_device));
    return true;
}

bool rows_behind_events(Scene &s)
{
    for (bool to_device : {true, false})
        for (char *memory : {s.allocated, s.registered.data()})
            REQUIRE(with_gaps(s, memory, to_device));
    return true;
}

// The wait for a function that may return at once is no longer than what a graph costs, or so.
// Before a long copy it is 100 ms.
bool short_ones_soon(Scene &s)
{
    constexpr int many = 30;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < many; i++) {
        char *memory = i % 2 ? s.allocated : s.registered.data();
        REQUIRE(s.close());
        REQUIRE(cudaMemcpyAsync(s.device, memory, held::most, H2D, s.gated) == 0);
        REQUIRE(s.open());
    }
    const auto took = std::chrono::steady_clock::now() - began;
    return HOLDS(took < many * std::chrono::milliseconds(100));
}

// CUDA takes the bytes of short pageable copies in the call, and waits for no function.
bool taken_soon(Scene &s)
{
    constexpr int many = 30;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < many; i++) {
        REQUIRE(s.close());
        void *stream = i % 2 ? s.gated : s.stream;
        REQUIRE(cudaMemcpyAsync(s.device, s.pageable.data(), held::most, H2D, stream) == 0);
        REQUIRE(s.open());
    }
    const auto took = std::chrono::steady_clock::now() - began;
    return HOLDS(took < many / 2 * std::chrono::milliseconds(100));
}

// Each of several streams is waited for once, if copies in them come in turns: of those that have
// the functions, and of those that wait for them.
bool each_once(Scene &s)
{
    constexpr int many = 10, streams = 4;
    auto *launch = preloaded<LaunchHost>("cudaLaunchHostFunc");
    auto *copy_rows = preloaded<CopyRows>("cudaMemcpy2DAsync");
    void *with[streams], *behind[streams];
    opened = false;
    for (int i = 0; i < streams; i++) {
        REQUIRE(cudaStreamCreateWithFlags(&with[i], 1) == 0);
        REQUIRE(cudaStreamCreateWithFlags(&behind[i], 1) == 0);
        REQUIRE(launch(with[i], wait_until_opened, nullptr) == 0);
        REQUIRE(cudaEventRecord(s.events[0], with[i]) == 0);
        REQUIRE(cudaStreamWaitEvent(behind[i], s.events[0], 0) == 0);
    }
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < many; i++)
        for (int j = 0; j < streams; j++) {
            REQUIRE(cudaMemcpyAsync(s.device, s.allocated, area, H2D, with[j]) == 0);
            REQUIRE(copy_rows(s.device, pitch, s.allocated, pitch, width, rows, H2D, behind[j]) ==
                    0);
        }
    const auto took = std::chrono::steady_clock::now() - began;
    opened = true;
    REQUIRE(cudaDeviceSynchronize() == 0);
    for (int i = 0; i < streams; i++)
        REQUIRE(cudaStreamDestroy(with[i]) == 0 && cudaStreamDestroy(behind[i]) == 0);
    return HOLDS(took < many / 2 * 2 * streams * std::chrono::milliseconds(100));
}

// A stream is waited for once, also if copies in one that has no work come between.
bool once_beside_another(Scene &s)
{
    constexpr int many = 10;
    auto *copy_rows = preloaded<CopyRows>("cudaMemcpy2DAsync");
    void *idle = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&idle, 1) == 0 && s.close());
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < many; i++)
        for (void *stream : {s.stream, idle})
            REQUIRE(copy_rows(s.device, pitch, s.allocated, pitch, width, rows, H2D, stream) == 0);
    const auto took = std::chrono::steady_clock::now() - began;
    REQUIRE(s.open() && cudaStreamDestroy(idle) == 0);
    return HOLDS(took < many / 2 * std::chrono::milliseconds(100));
}

// Managed memory is zero without a wait for the work of any stream. The first makes threads that
// connect, which may take as long as until_it_waits() does.
bool managed_beside()
{
    void *stream = nullptr;
    UntilItWaits w;
    std::vector<char> got(5000, 'g');
    char *first = managed_memory(got.size());
    REQUIRE(first && cudaStreamCreate(&stream) == 0);
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(stream, until_it_waits, &w) == 0);
    char *managed = managed_memory(got.size());
    const bool waited = w.over;
    REQUIRE(managed && cudaStreamSynchronize(stream) == 0 && !waited);
    REQUIRE(cudaMemcpy(got.data(), managed, got.size(), DEFAULT) == 0);
    REQUIRE(got == std::vector<char>(got.size()));
    REQUIRE(cudaFree(managed) == 0 && cudaFree(first) == 0);
    return HOLDS(cudaStreamDestroy(stream) == 0);
}

} // namespace gates
} // namespace

// Natively no call that copies page-locked memory waits for its stream, whatever that waits for.
bool copies_behind_gates()
{
    gates::Scene s;
    REQUIRE(s.begin());
    REQUIRE(gates::behind_events(s));
    REQUIRE(gates::rows_behind_events(s));
    REQUIRE(gates::short_ones_soon(s));
    REQUIRE(gates::once_beside_another(s));
    const bool soon = gates::taken_soon(s);
    REQUIRE(gates::each_once(s) && soon);
    REQUIRE(gates::managed_beside());
    return HOLDS(cudaGetLastError() == 0);
}

namespace
{
namespace forks
{

using LaunchHost = int(void *, void (*)(void *), void *);
constexpr std::size_t many = 1 << 20;

std::atomic<bool> goes_on;

void wait_until_it_goes_on(void *)
{
    while (!goes_on)
        usleep(1000);
}

// The stream waits for a function, and everything below for the stream.
struct Scene {
    void *stream = nullptr, *event = nullptr;
    char *device = device_memory(many), *managed = managed_memory(many), *page_locked = nullptr;
    std::vector<char> memory = std::vector<char>(many);

    bool begin()
    {
        REQUIRE(device && managed && cudaStreamCreate(&stream) == 0);
        REQUIRE(cudaEventCreate(&event) == 0 && cudaMemset(managed, 0, many) == 0);
        REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&page_locked), many) == 0);
        REQUIRE(stub_launch(device, device + 64, 64, stream) == 0 && cudaDeviceSynchronize() == 0);
        goes_on = false;
        REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(stream, wait_until_it_goes_on,
                                                            nullptr) == 0);
        REQUIRE(stub_launch(managed, device, 8, stream) == 0);
        return HOLDS(cudaEventRecord(event, stream) == 0);
    }
};

// Calls that another thread is in, in the library and the back end, when the process forks.
const struct Inside {
    const char *name;
    int (*call)(Scene &s);
} insides[] = {
    {"a wait for a stream", [](Scene &s) { return cudaStreamSynchronize(s.stream); }},
    {"a wait for the device", [](Scene &) { return cudaDeviceSynchronize(); }},
    {"a wait for an event", [](Scene &s) { return cudaEventSynchronize(s.event); }},
    {"a copy from the device",
     [](Scene &s) { return cudaMemcpy(s.memory.data(), s.device, many, D2H); }},
    {"a copy of few bytes from the device",
     [](Scene &s) { return cudaMemcpy(s.memory.data(), s.device, 8, D2H); }},
    {"a copy to the device",
     [](Scene &s) { return cudaMemcpy(s.device, s.memory.data(), many, H2D); }},
    {"an asynchronous copy to pageable memory",
     [](Scene &s) { return cudaMemcpyAsync(s.memory.data(), s.device, many, D2H, s.stream); }},
    {"a copy on the host",
     [](Scene &s) { return cudaMemcpyAsync(s.memory.data(), s.page_locked, 64, 0, s.stream); }},
    {"a free", [](Scene &s) { return cudaFree(s.device); }},
    {"an access to managed memory",
     [](Scene &s) { return static_cast<int>(static_cast<volatile char *>(s.managed)[8]); }},
};

// The child has a connection of its own.
bool child_works()
{
    void *stream = nullptr, *page_locked = nullptr;
    char *managed = managed_memory(5000); // while nothing else is known of the child
    REQUIRE(managed && !managed[0] && !managed[4999]);
    char *own = device_memory(8), got[8] = {}, bytes[8] = "a child";
    REQUIRE(own && cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(cudaMemcpyAsync(own, bytes, 8, H2D, stream) == 0);
    REQUIRE(cudaMemcpyAsync(got, own, 8, D2H, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(got, bytes, 8));
    std::memcpy(managed, bytes, 8);
    REQUIRE(stub_launch(managed + 64, managed, 8, stream) == 0);
    REQUIRE(!std::memcmp(managed + 64, bytes, 8)); // which waits for the child's own work
    return HOLDS(cudaMallocHost(&page_locked, many) == 0 && cudaFreeHost(page_locked) == 0);
}

bool forks_beside(const Inside &inside)
{
    Scene s;
    REQUIRE(s.begin());
    std::atomic<pid_t> caller{0};
    std::atomic<int> rc{-1};
    std::thread other([&] {
        const bool connected = device_memory(8);
        caller = gettid();
        rc = connected ? inside.call(s) : 2;
    });
    for (int asleep = 0; rc == -1 && asleep < 50; usleep(1000))
        asleep = caller && thread_state(getpid(), caller) == 'S' ? asleep + 1 : 0;
    const bool is_inside = rc == -1;
    const pid_t child = fork();
    if (!child) {
        alarm(10 * patience_times());
        std::_Exit(child_works() ? 0 : 1);
    }
    int status = -1;
    const bool ended = waitpid(child, &status, 0) == child;
    goes_on = true;
    other.join();
    return HOLDS(is_inside && ended && status == 0 && rc == 0 && cudaDeviceSynchronize() == 0);
}

} // namespace forks
} // namespace

bool forked_beside_waits()
{
    bool good = true;
    for (const forks::Inside &inside : forks::insides) {
        const bool this_one = forks::forks_beside(inside);
        if (!this_one)
            std::fprintf(stderr, "a fork beside %s\n", inside.name);
        good = good && this_one;
    }
    return HOLDS(good);
}
