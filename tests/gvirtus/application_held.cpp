// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What goes on while a stream waits. Copies whose bytes CUDA takes in the call return, and hold up
// no other thread's call: what lets the stream go on may be such a call. So do forks beside calls
// that wait.
#include "tests/gvirtus/application_arrays.h"

#include "tests/fixtures/patience.h"

#include <atomic>
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
    char *own = device_memory(8), got[8] = {}, bytes[8] = "a child";
    REQUIRE(own && cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(cudaMemcpyAsync(own, bytes, 8, H2D, stream) == 0);
    REQUIRE(cudaMemcpyAsync(got, own, 8, D2H, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(got, bytes, 8));
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
