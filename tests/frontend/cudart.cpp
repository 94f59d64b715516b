// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/frontend/cudart.h"
#include "tests/cuda/remote.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

namespace
{

std::atomic<std::uint64_t> copies, hosts;

struct FrontEnd {
    std::shared_ptr<Communicator> over;
    std::unique_ptr<Remote> remote;
};

// As GVirtuS does it: by the thread's id, made by the first call and never given back.
std::mutex front_ends_lock;
std::map<pid_t, FrontEnd> *front_ends;

FrontEnd connected()
{
    const char *plugin = std::getenv("STUB_PLUGIN"), *port = std::getenv("STUB_PORT");
    FrontEnd made;
    try {
        made.over = make_communicator(load_plugin(plugin), "tcp/ip", "oldtcp", "127.0.0.1",
                                      static_cast<std::uint16_t>(std::atoi(port)));
        made.over->Connect();
    } catch (const std::string &why) {
        std::fprintf(stderr, "%s\n", why.c_str());
        std::exit(EXIT_FAILURE);
    }
    made.remote = std::make_unique<Remote>(made.over.get());
    return made;
}

Remote *mine()
{
    pid_t thread = gettid();
    {
        std::lock_guard<std::mutex> lock(front_ends_lock);
        if (!front_ends)
            front_ends = new std::map<pid_t, FrontEnd>;
        auto found = front_ends->find(thread);
        if (found != front_ends->end())
            return found->second.remote.get();
    }
    FrontEnd made = connected();
    std::lock_guard<std::mutex> lock(front_ends_lock);
    return (*front_ends)[thread] = std::move(made), (*front_ends)[thread].remote.get();
}

// Without a plugin, as with a communicator of GVirtuS's own: "device memory" of this process.
bool stock()
{
    return !std::getenv("STUB_PLUGIN");
}

std::uint64_t number(const void *pointer)
{
    return reinterpret_cast<std::uintptr_t>(pointer);
}

} // namespace

EXPORTED int cudaMalloc(void **device, std::size_t n)
{
    std::uint64_t address = stock() ? number(std::malloc(n)) : mine()->malloc(n);
    *device = reinterpret_cast<void *>(address);
    return address ? 0 : 2;
}

EXPORTED int cudaFree(void *device)
{
    if (stock())
        return std::free(device), 0;
    return mine()->free(number(device));
}

EXPORTED int cudaMemcpy(void *to, const void *from, std::size_t n, int kind)
{
    copies++;
    if (stock())
        return std::memmove(to, from, n), 0;
    if (kind == H2D)
        return mine()->to_device(number(to), from, n);
    if (kind == D2H)
        return mine()->from_device(to, number(from), n);
    return mine()->on_device(number(to), number(from), n);
}

EXPORTED int cudaMemcpyAsync(void *to, const void *from, std::size_t n, int kind, void *stream)
{
    copies++;
    if (stock())
        return std::memmove(to, from, n), 0;
    if (kind == H2D)
        return mine()->to_device_async(number(to), from, n, number(stream));
    if (kind == D2H)
        return mine()->from_device_async(to, number(from), n, number(stream));
    return mine()->on_device_async(number(to), number(from), n, number(stream));
}

EXPORTED int cudaStreamCreate(void **stream)
{
    std::uint64_t made = mine()->stream_create();
    *stream = reinterpret_cast<void *>(made);
    return made ? 0 : 1;
}

EXPORTED int cudaStreamSynchronize(void *stream)
{
    return mine()->stream_synchronize(number(stream));
}

EXPORTED int cudaStreamQuery(void *stream)
{
    return mine()->stream_query(number(stream));
}

EXPORTED int cudaDeviceSynchronize()
{
    return stock() ? 0 : mine()->device_synchronize();
}

EXPORTED int cudaMallocHost(void **address, std::size_t n)
{
    hosts++;
    *address = std::malloc(n);
    return *address ? 0 : 2;
}

EXPORTED int cudaHostAlloc(void **address, std::size_t n, unsigned)
{
    return cudaMallocHost(address, n);
}

EXPORTED int cudaFreeHost(void *address)
{
    hosts++;
    std::free(address);
    return 0;
}

EXPORTED std::uint64_t stub_hosts()
{
    return hosts;
}

EXPORTED std::uint64_t stub_copies()
{
    return copies;
}

EXPORTED Remote *stub_remote()
{
    return mine();
}
