// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Copies whose bytes CUDA takes in the call: they return while their stream waits, and hold up no
// other thread's call. What lets the stream go on may be such a call.
#include "tests/gvirtus/application_arrays.h"

#include <atomic>
#include <thread>
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
