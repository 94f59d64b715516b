// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Events that the preload keeps, by which copies within host memory wait for the legacy stream.
#include "tests/gvirtus/application.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

namespace
{
namespace kept
{

constexpr std::size_t bytes = 4000;

// A launch, and a copy on the host in the legacy stream, which waits for it. GVirtuS's front end is
// called for events that are made and destroyed.
struct LaunchAndCopy {
    char *device = nullptr;
    std::vector<char> host = std::vector<char>(2 * bytes);

    bool begin() { return (device = device_memory(2 * bytes)) != nullptr; }
    bool make(unsigned times = 1)
    {
        bool good = true;
        for (unsigned i = 0; i < times && good; i++)
            good = stub_launch(device, device + bytes, bytes, nullptr) == 0 &&
                   cudaMemcpy(host.data(), host.data() + bytes, bytes, 0) == 0;
        return good;
    }
    bool makes_no_events()
    {
        const std::uint64_t calls = stub_calls();
        return HOLDS(make(10) && stub_calls() == calls);
    }
};

} // namespace kept
} // namespace

// The events by which copies on the host wait are made once, and again if they are gone.
bool events_are_kept()
{
    kept::LaunchAndCopy pair;
    REQUIRE(pair.begin() && pair.make() && pair.makes_no_events());
    std::atomic<unsigned> good{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 20; i++) // more than are kept
        threads.emplace_back([&] {
            kept::LaunchAndCopy own;
            good += own.begin() && own.make(20) && cudaFree(own.device) == 0;
        });
    for (std::thread &t : threads)
        t.join();
    REQUIRE(good == 20 && pair.makes_no_events());
    REQUIRE(cudaDeviceReset() == 0 && pair.begin() && pair.make() && pair.makes_no_events());
    // An event is one device's.
    const char *of_first = pair.device;
    for (int device : {1, 0, 1}) {
        REQUIRE(cudaSetDevice(device) == 0 && pair.begin() && pair.make());
        REQUIRE(device == 0 || cudaDeviceReset() == 0);
    }
    return HOLDS(of_first && cudaSetDevice(0) == 0 && pair.begin() && pair.make());
}

// They are gone with the back end's process, also if another thread has made them.
bool events_after_a_loss()
{
    bool lost = false;
    std::thread([&] {
        kept::LaunchAndCopy pair;
        lost = pair.begin() && pair.make(2) &&
               kill(std::atoi(std::getenv("STUB_BACK_END")), SIGKILL) == 0 &&
               cudaDeviceSynchronize() != 0;
    }).join();
    kept::LaunchAndCopy pair;
    REQUIRE(lost && pair.begin());
    return HOLDS(pair.make() && pair.makes_no_events());
}
