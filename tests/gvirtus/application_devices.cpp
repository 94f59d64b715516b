// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Applications that use both devices of the double.
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/application_driver.h"

#include <cstring>
#include <functional>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace
{

// By a thread that has that device selected.
bool on_device(int device, const std::function<bool()> &run)
{
    bool good = false;
    std::thread other([&] { good = !cudaSetDevice(device) && run(); });
    other.join();
    return good;
}

} // namespace

// As natively, whatever other programs of the back end have enabled.
bool peers()
{
    struct Attributes {
        int type, device;
        void *on_device, *on_host;
        char more[64];
    } what = {};
    auto *ask = preloaded<int(Attributes *, const void *)>("cudaPointerGetAttributes");
    auto *set = preloaded<int(void *, int, std::size_t, void *)>("cudaMemsetAsync");
    char *own = nullptr;
    char *near = device_memory(1000), *far = nullptr;
    std::vector<char> bytes(1000), back(1000);
    int can = -1;
    random_fill(bytes.data(), bytes.size(), 3);
    REQUIRE(near && cudaMemcpy(near, bytes.data(), bytes.size(), H2D) == 0);
    REQUIRE(cudaDeviceCanAccessPeer(&can, 1, 0) == 0 && can == 1);
    REQUIRE(cudaDeviceDisablePeerAccess(1) == 705 && cudaGetLastError() == 705);
    REQUIRE(cudaDeviceEnablePeerAccess(1, 0) == 0 && cudaGetLastError() == 0);
    REQUIRE(cudaDeviceEnablePeerAccess(1, 0) == 704 && cudaGetLastError() == 704);
    REQUIRE(cudaDeviceEnablePeerAccess(1, 1) == 1 && cudaGetLastError() == 1); // there are no flags
    REQUIRE(cudaDeviceEnablePeerAccess(0, 0) == 101 && cudaDeviceEnablePeerAccess(7, 0) == 101);
    REQUIRE(cudaGetLastError() == 101 && cudaGetLastError() == 0);
    REQUIRE(ask(&what, near + 5) == 0 && what.device == 0 && what.on_device == near + 5);
    REQUIRE(on_device(1, [&] {
        REQUIRE((own = device_memory(100)) && ask(&what, near + 5) == 0);
        REQUIRE(what.type == 2 && what.device == 0 && !what.on_device);
        for (int i = 0; i < 5; i++) // from some on, such a call is answered before it is made
            REQUIRE(cudaMemset(own, 1, 100) == 0 && set(own, 1, 100, nullptr) == 0);
        REQUIRE(fails(cudaMemset(near, 1, 100), 1) && fails(set(near, 1, 100, nullptr), 1));
        return HOLDS(cudaDeviceSynchronize() == 0);
    }));
    REQUIRE(on_device(1, [&] {
        return cudaDeviceEnablePeerAccess(0, 0) == 0 && ask(&what, near) == 0 &&
               what.on_device == near && set(near, bytes[0], 1, nullptr) == 0 &&
               cudaDeviceEnablePeerAccess(0, 0) == 704 &&
               cudaMalloc(reinterpret_cast<void **>(&far), 1000) == 0 &&
               stub_launch(far, near, 1000, nullptr) == 0 && cudaDeviceSynchronize() == 0 &&
               cudaMemcpy(back.data(), far, 1000, D2H) == 0 && back == bytes;
    }));
    REQUIRE(cudaDeviceDisablePeerAccess(1) == 0 && cudaGetLastError() == 0);
    REQUIRE(cudaDeviceDisablePeerAccess(1) == 705 && cudaGetLastError() == 705);
    REQUIRE(cudaDeviceEnablePeerAccess(1, 0) == 0 && cudaDeviceReset() == 0);
    return HOLDS(cudaDeviceEnablePeerAccess(1, 0) == 0);
}

// Memory of this process's, where some of a device is or was.
static char *both(char *device)
{
    void *at = mmap(device, 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return at == device ? device : nullptr;
}

// After cudaDeviceReset the device's memory is no longer in the way of the host's; that of other
// devices is.
bool memory_after_reset()
{
    char *other = device_memory(4096), *device = nullptr;
    const std::vector<char> bytes(4096, 'b');
    REQUIRE(other && cudaSetDevice(1) == 0 && (device = device_memory(4096)));
    REQUIRE(cudaDeviceReset() == 0 && both(device) && both(other));
    REQUIRE(cudaMemcpy(device, bytes.data(), 4096, DEFAULT) == 0);
    REQUIRE(!std::memcmp(device, bytes.data(), 4096));
    REQUIRE(cudaSetDevice(0) == 0 && cudaMemcpy(other, bytes.data(), 4096, DEFAULT) == 0);
    REQUIRE(other[0] == 0 && munmap(other, 4096) == 0 && cudaFree(other) == 0);
    return HOLDS(munmap(device, 4096) == 0);
}

// Memory of pools is the stream's device's, whichever is selected.
bool pools_of_devices()
{
    struct Attributes {
        int type, device;
        void *on_device, *on_host;
        char more[64];
    } what = {};
    auto *allocate = preloaded<int(void **, std::size_t, void *)>("cudaMallocAsync");
    auto *give_back = preloaded<int(void *, void *)>("cudaFreeAsync");
    auto *ask = preloaded<int(Attributes *, const void *)>("cudaPointerGetAttributes");
    void *streams[2], *memory = nullptr;
    REQUIRE(device_memory(100));
    for (int i = 0; i < 2; i++)
        REQUIRE(cudaSetDevice(i) == 0 && cudaStreamCreate(&streams[i]) == 0);
    for (int selected = 0; selected < 2; selected++) {
        for (int i = 0; i < 2; i++) {
            REQUIRE(cudaSetDevice(selected) == 0 && allocate(&memory, 5000, streams[i]) == 0);
            REQUIRE(ask(&what, memory) == 0 && what.type == 2 && what.device == i);
            REQUIRE(give_back(memory, streams[i]) == 0);
        }
        REQUIRE(allocate(&memory, 5000, nullptr) == 0 && ask(&what, memory) == 0);
        REQUIRE(what.device == selected && give_back(memory, nullptr) == 0);
    }
    return true;
}

namespace
{

// cudaMemPoolProps, and cudaMemcpy3DPeerParms.
struct PoolProperties {
    int allocation, handles, type, device;
    void *security;
    std::size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};
struct PeerPlanes {
    void *from_array;
    std::size_t from_at[3];
    struct {
        void *at;
        std::size_t pitch, x, y;
    } from;
    int from_device;
    void *to_array;
    std::size_t to_at[3];
    decltype(from) to;
    int to_device;
    std::size_t extent[3];
};

// Whether the copies between devices make each side what `bytes` has.
bool copied(char *to, int to_device, char *from, int from_device, const std::vector<char> &bytes)
{
    auto *peer = preloaded<int(void *, int, const void *, int, std::size_t)>("cudaMemcpyPeer");
    auto *later =
        preloaded<int(void *, int, const void *, int, std::size_t, void *)>("cudaMemcpyPeerAsync");
    std::vector<char> back(bytes.size());
    const auto seen = [&](char *memory, int device) {
        return on_device(device, [&] {
            return !cudaMemcpy(back.data(), memory, back.size(), DEFAULT) && back == bytes;
        });
    };
    REQUIRE(on_device(from_device,
                      [&] { return !cudaMemcpy(from, bytes.data(), bytes.size(), DEFAULT); }));
    REQUIRE(peer(to, to_device, from, from_device, bytes.size()) == 0 && seen(to, to_device));
    REQUIRE(on_device(from_device, [&] { return !cudaMemset(from, 7, bytes.size()); }));
    REQUIRE(later(from, from_device, to, to_device, bytes.size(), nullptr) == 0);
    return HOLDS(cudaStreamSynchronize(nullptr) == 0 && seen(from, from_device));
}

// By each function of the driver's, of which the asynchronous one need not have waited.
bool copied_in_planes(char *to, int to_device, char *from, int from_device)
{
    std::vector<char> bytes(4000);
    PeerCopy copy = {};
    copy.from_type = copy.to_type = 2; // CU_MEMORYTYPE_DEVICE
    copy.from = reinterpret_cast<Address>(from), copy.to = reinterpret_cast<Address>(to);
    copy.from_pitch = copy.to_pitch = copy.width = 100;
    copy.from_height = copy.to_height = copy.rows = 10;
    copy.planes = 4;
    for (unsigned i = 0; i < 2; i++) {
        random_fill(bytes.data(), bytes.size(), 77 + i);
        REQUIRE(on_device(from_device,
                          [&] { return !cudaMemcpy(from, bytes.data(), bytes.size(), DEFAULT); }));
        REQUIRE((i ? cu("cuMemcpy3DPeer", &copy)
                   : cu("cuMemcpy3DPeerAsync", &copy, static_cast<void *>(nullptr))) == 0);
        REQUIRE(cudaStreamSynchronize(nullptr) == 0 && on_device(to_device, [&] {
                    std::vector<char> back(bytes.size());
                    return !cudaMemcpy(back.data(), to, back.size(), DEFAULT) && back == bytes;
                }));
    }
    return true;
}

} // namespace

// The memory of a pool is of the pool's device, whichever stream it is for; and a copy between
// devices reaches it from each.
bool pools_of_peers()
{
    struct Attributes {
        int type, device;
        void *on_device, *on_host;
        char more[64];
    } what = {};
    using FromPool = int(void **, std::size_t, void *, void *);
    auto *create = preloaded<int(void **, const PoolProperties *)>("cudaMemPoolCreate");
    auto *allocate = preloaded<FromPool>("cudaMallocFromPoolAsync");
    auto *ask = preloaded<int(Attributes *, const void *)>("cudaPointerGetAttributes");
    auto *own = preloaded<int(void **, int)>("cudaDeviceGetDefaultMemPool");
    auto *select = preloaded<int(int, void *)>("cudaDeviceSetMemPool");
    auto *planes = preloaded<int(const PeerPlanes *)>("cudaMemcpy3DPeer");
    void *pools[4] = {}, *made[4] = {}, *stream = nullptr, *locked = nullptr;
    char *memory[2] = {};
    std::vector<char> bytes(4000);
    for (int i = 0; i < 2; i++)
        REQUIRE(on_device(i, [&] { return (memory[i] = device_memory(4000)) != nullptr; }));
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMallocHost(&locked, 4000) == 0);
    for (int i = 0; i < 4; i++) {
        const PoolProperties wish = {1, 0, 1, i % 2, nullptr, 0, 0, {}};
        REQUIRE(i < 2 ? own(&pools[i], i) == 0 : create(&pools[i], &wish) == 0);
        REQUIRE(allocate(&made[i], 4000, pools[i], stream) == 0);
        REQUIRE(ask(&what, made[i]) == 0 && what.type == 2 && what.device == i % 2);
        REQUIRE(select(i % 2, pools[i]) == 0 && fails(select(!(i % 2), pools[i]), 1));
    }
    unsigned seed = 0;
    for (int selected = 0; selected < 2; selected++) {
        REQUIRE(cudaSetDevice(selected) == 0);
        for (int i = 0; i < 4; i++) {
            auto *pooled = static_cast<char *>(made[i]);
            for (int of = 0; of < 2; of++) {
                random_fill(bytes.data(), bytes.size(), ++seed);
                REQUIRE(copied(pooled, i % 2, memory[of], of, bytes));
                REQUIRE(copied(memory[of], of, pooled, i % 2, bytes));
            }
            random_fill(bytes.data(), bytes.size(), ++seed);
            REQUIRE(copied(pooled, i % 2, static_cast<char *>(made[3 - i]), !(i % 2), bytes));
            REQUIRE(copied(pooled, i % 2, static_cast<char *>(locked), 0, bytes));
            PeerPlanes some = {};
            some.from = {memory[1], 100, 100, 10};
            some.to = {pooled, 100, 100, 10};
            some.from_device = 1;
            some.to_device = i % 2;
            some.extent[0] = 100, some.extent[1] = 10, some.extent[2] = 4;
            REQUIRE(planes(&some) == 0 && copied(memory[1], 1, pooled, i % 2, bytes));
            auto *apart = static_cast<char *>(made[3 - i]); // neither device reaches both
            some.from = {apart, 100, 100, 10};
            some.from_device = !(i % 2);
            random_fill(bytes.data(), bytes.size(), ++seed);
            REQUIRE(on_device(
                !(i % 2), [&] { return !cudaMemcpy(apart, bytes.data(), bytes.size(), DEFAULT); }));
            REQUIRE(planes(&some) == 0 && on_device(i % 2, [&] {
                        std::vector<char> back(bytes.size());
                        return !cudaMemcpy(back.data(), pooled, back.size(), DEFAULT) &&
                               back == bytes;
                    }));
            REQUIRE(copied_in_planes(pooled, i % 2, apart, !(i % 2)));
            REQUIRE(copied_in_planes(pooled, i % 2, memory[!(i % 2)], !(i % 2)));
        }
        int now = -1;
        REQUIRE(cudaGetDevice(&now) == 0 && now == selected);
    }
    return HOLDS(cudaGetLastError() == 0);
}

// Kernels of all devices use page-locked memory, as natively; the program need not enable anything
// for that, and notices nothing.
bool managed_on_devices()
{
    using Allocate = int(void **, std::size_t, unsigned);
    auto *allocate = preloaded<Allocate>("cudaMallocManaged");
    constexpr std::size_t n = 100000;
    std::vector<char> bytes(n);
    REQUIRE(device_memory(100));
    for (int holder = 0; holder < 2; holder++) {
        char *memory = nullptr, *own = nullptr;
        random_fill(bytes.data(), n, 8 + static_cast<unsigned>(holder));
        if (holder) // the other device was in use before
            REQUIRE(cudaSetDevice(1) == 0 && cudaSetDevice(0) == 0);
        REQUIRE(on_device(holder,
                          [&] { return !allocate(reinterpret_cast<void **>(&memory), 2 * n, 1); }));
        std::memcpy(memory, bytes.data(), n);
        REQUIRE(on_device(!holder, [&] {
            return !cudaMalloc(reinterpret_cast<void **>(&own), n) &&
                   !stub_launch(own, memory, n, nullptr) &&
                   !stub_launch(memory + n, own, n, nullptr) && !cudaDeviceSynchronize();
        }));
        REQUIRE(!std::memcmp(memory + n, bytes.data(), n));
        memory[n + 5] = 'x';
        REQUIRE(on_device(holder, [&] {
            return !stub_launch(memory, memory + n, n, nullptr) && !cudaDeviceSynchronize();
        }));
        REQUIRE(memory[5] == 'x' && memory[6] == bytes[6]);
        REQUIRE(cudaFree(memory) == 0 && cudaFree(own) == 0 && cudaGetLastError() == 0);
    }
    for (int device = 0; device < 2; device++)
        REQUIRE(on_device(device, [&] { return cudaDeviceEnablePeerAccess(!device, 0) == 0; }));
    return true;
}
