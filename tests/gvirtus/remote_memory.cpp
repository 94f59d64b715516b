// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote_calls.h"
#include "tests/gvirtus/remote_runtime.h"

#include <cstdlib>
#include <mutex>

namespace
{

// Within the device, in a stream that is captured.
int copy_captured(Frame &f, std::uint64_t n, void *stream)
{
    ibx_cuda_memcpy3d p = {};
    p.to = {f.pointer(), n, n, 1};
    p.from = {f.pointer(), n, n, 1};
    p.extent = {n, 1, 1};
    p.kind = D2D;
    return runtime().copy_planes(&p, stream);
}

// A synchronous copy within the device, and rows, which the driver never reads early.
int copy_within(Frame &f, std::uint64_t to, std::uint64_t from, std::size_t n)
{
    if (f.app->copy_in_turn)
        f.app->copy_in_turn(true);
    const int rc = f.app->copy_async(to, from, n, nullptr);
    if (f.app->copy_in_turn)
        f.app->copy_in_turn(false);
    return rc;
}

int copy(Frame &f, std::size_t behind)
{
    auto kind = f.back<std::int32_t>(behind);
    auto count = f.back<std::uint64_t>(behind + 4);
    std::uint64_t n;
    work.handled++;
    if (behind && (!kind || kind == 4)) // on the host, by the front end
        return 0;
    auto *stream = reinterpret_cast<void *>(behind ? f.back<std::uint64_t>(0) : 0);
    const bool captured = behind && is_captured(f.back<std::uint64_t>(0));
    if (captured && kind == D2D)
        return copy_captured(f, count, stream);
    if (behind && !captured)
        f.app->stream_synchronize(stream);
    if (kind == H2D) {
        auto to = f.get<std::uint64_t>();
        const char *from = f.host(&n);
        return n < count ? 1 : f.app->to_device(to, from, count);
    }
    if (kind == D2H) {
        f.host(&n);
        std::vector<char> bytes(count, 'g'); // what the heap held
        int rc = f.app->from_device(bytes.data(), f.get<std::uint64_t>(), count);
        f.out.host(bytes.data(), count);
        return rc;
    }
    if (kind != D2D)
        return 21;
    auto to = f.get<std::uint64_t>(), from = f.get<std::uint64_t>();
    const int rc =
        behind ? f.app->copy_async(to, from, count, nullptr) : copy_within(f, to, from, count);
    return rc ? rc : f.app->stream_synchronize(nullptr);
}

int copy_2d(Frame &f)
{
    auto kind = f.back<std::int32_t>(0);
    auto height = f.back<std::uint64_t>(4), width = f.back<std::uint64_t>(12);
    auto spitch = f.back<std::uint64_t>(20), dpitch = f.back<std::uint64_t>(28);
    std::uint64_t n;
    work.handled++;
    if (kind == H2D) {
        auto to = f.get<std::uint64_t>();
        const char *from = f.host(&n);
        for (std::uint64_t i = 0; i < height; i++) {
            if (int rc = f.app->to_device(to + i * dpitch, from + i * spitch, width))
                return rc;
        }
        return 0;
    }
    std::vector<char> rows(kind == D2H ? dpitch * height : 0, 'g'); // what lies between them
    if (kind == D2H)
        f.host(&n);
    auto to = kind == D2D ? f.get<std::uint64_t>() : 0, from = f.get<std::uint64_t>();
    int rc = kind == D2H || kind == D2D ? 0 : 21;
    for (std::uint64_t i = 0; i < height && !rc; i++)
        rc = kind == D2H ? f.app->from_device(&rows[i * dpitch], from + i * spitch, width)
                         : copy_within(f, to + i * dpitch, from + i * spitch, width);
    if (kind == D2H)
        f.out.host(rows.data(), rows.size());
    return rc;
}

// Names of variables, by their addresses in the client.
std::map<std::uint64_t, std::uint64_t> names;
std::mutex names_lock;

std::uint64_t name_of(std::uint64_t symbol)
{
    std::lock_guard<std::mutex> guard(names_lock);
    auto found = names.find(symbol);
    return found == names.end() ? symbol : found->second;
}

std::vector<char> symbol_body;
std::mutex symbol_lock;

int copy_to_symbol(Frame &f)
{
    auto kind = f.back<std::int32_t>(0);
    auto offset = f.back<std::uint64_t>(4), count = f.back<std::uint64_t>(12);
    std::uint64_t n;
    {
        std::lock_guard<std::mutex> guard(symbol_lock);
        symbol_body = f.in;
    }
    work.met += work.registering != 0;
    work.handled++;
    f.get<std::uint64_t>();
    const char *name = f.host(&n);
    f.get<std::uint64_t>();
    f.host(&n);
    if (kind != H2D)
        return 21;
    const char *from = f.host(&n);
    void *device = nullptr;
    void *symbol = reinterpret_cast<void *>(name_of(std::strtoul(name, nullptr, 16)));
    if (!runtime().address || runtime().address(&device, symbol))
        return 13;
    return f.app->to_device(reinterpret_cast<std::uint64_t>(device) + offset, from, count);
}

std::map<std::uint64_t, void *> host_registered; // of all clients, as in G5

} // namespace

int register_var(Frame &f)
{
    auto symbol = f.get<std::uint64_t>(), device = f.get<std::uint64_t>();
    auto n = f.get<std::uint64_t>(), name = f.get<std::uint64_t>();
    {
        std::lock_guard<std::mutex> guard(names_lock);
        names[symbol] = name;
    }
    return runtime().register_var
               ? runtime().register_var(reinterpret_cast<void *>(name), device, n)
               : 1;
}

int last_symbol_body(Frame &f)
{
    std::lock_guard<std::mutex> guard(symbol_lock);
    return f.answer(symbol_body.data(), symbol_body.size());
}

const Calls copy_calls = {
    {"cudaMemcpy", [](Frame &f) { return copy(f, 0); }},
    {"cudaMemcpyAsync", [](Frame &f) { return copy(f, 8); }},
    {"cudaMemcpy2D", copy_2d},
    {"cudaMemcpyToSymbol", copy_to_symbol},
    {"cudaGetSymbolAddress",
     [](Frame &f) -> int {
         std::uint64_t n;
         f.get<std::uint64_t>();
         void *found = nullptr;
         void *symbol = reinterpret_cast<void *>(name_of(std::strtoul(f.host(&n), nullptr, 16)));
         if (!runtime().address || runtime().address(&found, symbol))
             return 13;
         return f.answer(&found, sizeof(found));
     }},
    {"cudaMemset",
     [](Frame &f) -> int {
         auto device = f.get<std::uint64_t>();
         auto fill = static_cast<char>(f.get<std::int32_t>());
         std::vector<char> bytes(f.get<std::uint64_t>(), fill);
         return f.app->to_device(device, bytes.data(), bytes.size());
     }},
};

const Calls memory_calls = {
    {"cudaMalloc",
     [](Frame &f) -> int {
         std::uint64_t device = 0;
         int rc = f.app->mem_alloc(&device, f.get<std::uint64_t>());
         f.out.u64(device);
         return rc;
     }},
    // Its handle lies inside of memory.
    {"cudaMallocArray",
     [](Frame &f) -> int {
         std::uint64_t device = 0;
         int rc = f.app->mem_alloc(&device, 4096);
         f.out.u64(device + 64);
         return rc;
     }},
    {"cudaMallocPitch",
     [](Frame &f) -> int {
         std::uint64_t device = 0;
         f.get<std::uint64_t>();
         std::uint64_t pitch = (f.get<std::uint64_t>() + 511) / 512 * 512;
         const auto rows = f.get<std::uint64_t>(); // for 0 rows the runtime returns NULL
         int rc = rows ? f.app->mem_alloc(&device, pitch * rows) : 0;
         f.out.u64(device).u64(pitch);
         return rc;
     }},
    {"cudaFree",
     [](Frame &f) -> int {
         const auto device = f.get<std::uint64_t>();
         if (!device) // there is nothing to free, but captures forbid the call
             return runtime().free ? runtime().free(nullptr) : 0;
         const int rc = f.app->mem_free(device);
         if (rc && runtime().fail)
             runtime().fail(rc);
         return rc;
     }},
    {"cudaFreeArray",
     [](Frame &f) -> int {
         auto array = f.get<std::uint64_t>();
         return array ? f.app->mem_free(array - 64) : 0;
     }},
    {"cuArrayCreate",
     [](Frame &f) -> int {
         std::uint64_t device = 0;
         int rc = f.app->mem_alloc(&device, 4096);
         f.out.u64(device + 64);
         return rc;
     }},
    {"cuArrayDestroy",
     [](Frame &f) -> int {
         auto array = f.get<std::uint64_t>();
         return array ? f.app->mem_free(array - 64) : 400;
     }},
    {"cudaHostRegister",
     [](Frame &f) -> int {
         const auto key = f.get<std::uint64_t>(), n = f.get<std::uint64_t>();
         void *memory = std::malloc(n);
         host_registered[key] = memory;
         return f.app->host_register(memory, n, f.get<unsigned>());
     }},
    {"cudaHostUnregister",
     [](Frame &f) -> int {
         const auto entry = host_registered.find(f.get<std::uint64_t>());
         if (entry == host_registered.end())
             return 713;
         const int rc = f.app->host_unregister(entry->second);
         std::free(entry->second);
         host_registered.erase(entry);
         return rc;
     }},
    {"cuMemCreate",
     [](Frame &f) -> int {
         unsigned long long handle = 0;
         const auto bytes = f.get<std::uint64_t>();
         const std::int32_t of_device[8] = {1, 0, 1, 0};
         const int rc = f.app->mem_create(&handle, bytes, of_device, 0);
         return rc ? rc : f.answer(&handle, sizeof(handle));
     }},
    {"cuMemUnmap",
     [](Frame &f) -> int {
         const auto at = f.get<std::uint64_t>();
         return f.app->mem_unmap(at, f.get<std::uint64_t>());
     }},
    {"cuMemFree", [](Frame &f) -> int { return f.app->mem_free(f.get<std::uint64_t>()); }},
    {"cudaMemPoolDestroy",
     [](Frame &f) -> int {
         auto *pool = f.pointer();
         return pool ? runtime().pool_destroy(pool) : 1;
     }},
};
