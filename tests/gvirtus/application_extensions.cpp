// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that GVirtuS's libcudart does not have: the preload makes them by extension requests.
#include "tests/gvirtus/application_arrays.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// A thread's capture mode is the program's own, but for the mode that would let clients end each
// other's captures.
bool capture_modes()
{
    auto *exchange = preloaded<int(int *)>("cudaThreadExchangeStreamCaptureMode");
    for (int round = 0; round < 2; round++) {
        int mode = 2;
        REQUIRE(exchange(&mode) == 0 && mode == 0);
        mode = 7;
        REQUIRE(exchange(&mode) == 1 && mode == 7);
        mode = 0;
        REQUIRE(exchange(&mode) == 0 && mode == 2 && stub_capture_mode() == 1);
    }
    // From GLOBAL to THREAD_LOCAL and back nothing changes there.
    const unsigned set = stub_capture_modes_set();
    int mode = 1;
    REQUIRE(exchange(&mode) == 0 && mode == 0 && exchange(&mode) == 0 && mode == 1);
    REQUIRE(stub_capture_modes_set() == set && stub_capture_mode() == 1);
    return HOLDS(fails(exchange(nullptr), 1));
}

namespace
{

struct Location {
    int type, id;
};
struct Access {
    Location location;
    int flags;
};
struct PoolProperties {
    int allocation, handles;
    Location location;
    void *security;
    std::size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};

// Settings of this process do not hold for other clients.
bool made_pools(void *stream, void *own)
{
    using FromPool = int(void **, std::size_t, void *, void *);
    using Current = int(void **, int);
    auto *create = preloaded<int(void **, const PoolProperties *)>("cudaMemPoolCreate");
    auto *destroy = preloaded<int(void *)>("cudaMemPoolDestroy");
    auto *select = preloaded<int(int, void *)>("cudaDeviceSetMemPool");
    auto *allow = preloaded<int(void *, const Access *, std::size_t)>("cudaMemPoolSetAccess");
    auto *allowed = preloaded<int(int *, void *, Location *)>("cudaMemPoolGetAccess");
    auto *get = preloaded<int(void *, int, void *)>("cudaMemPoolGetAttribute");
    auto *give_back = preloaded<int(void *, void *)>("cudaFreeAsync");
    PoolProperties wish = {};
    wish.allocation = wish.location.type = 1;
    wish.most = 12345;
    void *pool = nullptr, *memory = nullptr, *current = nullptr;
    std::uint64_t found = 0;
    int flags = 9;
    REQUIRE(create(&pool, &wish) == 0 && pool && pool != own);
    REQUIRE(get(pool, 7, &found) == 0 && found == 12345);
    const PoolProperties nothing = {};
    REQUIRE(fails(create(&memory, &nothing), 1) && !memory);
    REQUIRE(preloaded<FromPool>("cudaMallocFromPoolAsync")(&memory, 100, pool, stream) == 0);
    REQUIRE(give_back(memory, stream) == 0 && give_back(nullptr, stream) == 0);
    const Access list[] = {{{1, 1}, 3}, {{1, 1}, 1}};
    Location second = {1, 1}, host = {2, 0};
    REQUIRE(allow(pool, list, 1) == 0 && allowed(&flags, pool, &second) == 0 && flags == 3);
    REQUIRE(allow(pool, list, 2) == 0 && allowed(&flags, pool, &second) == 0 && flags == 1);
    REQUIRE(fails(allowed(&flags, pool, &host), 1) && fails(allow(stream, list, 1), 1));
    REQUIRE(preloaded<Current>("cudaDeviceGetMemPool")(&current, 0) == 0 && current == own);
    REQUIRE(select(0, pool) == 0 && fails(select(0, stream), 1));
    REQUIRE(preloaded<Current>("cudaDeviceGetMemPool")(&current, 0) == 0 && current == pool);
    auto *allocate = preloaded<int(void **, std::size_t, void *)>("cudaMallocAsync");
    REQUIRE(allocate(&memory, 100, stream) == 0 && give_back(memory, stream) == 0);
    // Here managed memory comes from no pool; other places are wrong.
    const struct {
        int allocation, type, id, code;
    } wrong[] = {{1, 0, 0, 1},     {1, 1, 9, 1},   {1, 3, -1, 1},  {1, 4, 0, 1},   {1, 5, 0, 1},
                 {2, 0, 0, 801},   {2, 1, 0, 801}, {2, 1, 9, 1},   {2, 2, 0, 801}, {2, 3, 0, 801},
                 {2, 3, 99999, 1}, {2, 4, 0, 801}, {2, 5, 0, 801}, {0, 1, 0, 1},   {3, 1, 0, 1}};
    for (const auto &w : wrong) {
        wish.allocation = w.allocation;
        wish.location = {w.type, w.id};
        REQUIRE(fails(create(&current, &wish), w.code));
    }
    wish.location = {1, 0};
    REQUIRE(destroy(pool) == 0 && fails(destroy(pool), 1) && fails(destroy(own), 1));
    REQUIRE(fails(get(pool, 7, &found), 1)); // the device has its own again
    REQUIRE(preloaded<Current>("cudaDeviceGetMemPool")(&current, 0) == 0 && current == own);
    REQUIRE(allocate(&memory, 100, stream) == 0 && give_back(memory, stream) == 0);
    // A forked child has no pool of its parent. A reset takes the pool away, and the device has its
    // own again.
    wish.allocation = 1;
    REQUIRE(create(&pool, &wish) == 0 && select(0, pool) == 0);
    int status = -1;
    const pid_t child = fork();
    if (!child)
        _exit(allocate(&memory, 100, nullptr) || give_back(memory, nullptr));
    REQUIRE(waitpid(child, &status, 0) == child && status == 0 && cudaDeviceReset() == 0);
    REQUIRE(preloaded<Current>("cudaDeviceGetMemPool")(&current, 0) == 0 && current != pool);
    REQUIRE(allocate(&memory, 100, nullptr) == 0);
    return HOLDS(give_back(memory, nullptr) == 0);
}

} // namespace

bool pools()
{
    using Allocate = int(void **, std::size_t, void *);
    using FromPool = int(void **, std::size_t, void *, void *);
    using Attribute = int(void *, int, void *);
    auto *allocate = preloaded<Allocate>("cudaMallocAsync");
    auto *give_back = preloaded<int(void *, void *)>("cudaFreeAsync");
    void *stream = nullptr, *memory = nullptr, *pool = nullptr, *other = nullptr;
    std::vector<char> bytes(5000), back(5000);
    random_fill(bytes.data(), bytes.size(), 5);
    REQUIRE(cudaStreamCreate(&stream) == 0 && allocate(&memory, 5000, stream) == 0 && memory);
    REQUIRE(cudaMemcpyAsync(memory, bytes.data(), 5000, H2D, stream) == 0);
    REQUIRE(cudaMemcpyAsync(back.data(), memory, 5000, DEFAULT, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && back == bytes);
    REQUIRE(give_back(memory, stream) == 0 && fails(give_back(memory, stream), 1));
    REQUIRE(fails(allocate(&memory, 5000, reinterpret_cast<void *>(77)), 400)); // no stream
    REQUIRE(preloaded<int(void **, int)>("cudaDeviceGetDefaultMemPool")(&pool, 0) == 0 && pool);
    REQUIRE(preloaded<FromPool>("cudaMallocFromPoolAsync")(&other, 100, pool, stream) == 0);
    REQUIRE(give_back(other, stream) == 0);
    REQUIRE(fails(preloaded<FromPool>("cudaMallocFromPoolAsync")(&other, 9, stream, stream), 1));
    std::uint64_t all = ~std::uint64_t{0} - 5, found = 0;
    REQUIRE(preloaded<Attribute>("cudaMemPoolSetAttribute")(pool, 4, &all) == 0);
    REQUIRE(preloaded<Attribute>("cudaMemPoolGetAttribute")(pool, 4, &found) == 0 && found == all);
    int little[2] = {0, 33}, one = 1; // only an int is written
    REQUIRE(preloaded<Attribute>("cudaMemPoolSetAttribute")(pool, 1, &one) == 0);
    REQUIRE(preloaded<Attribute>("cudaMemPoolGetAttribute")(pool, 1, little) == 0);
    REQUIRE(little[0] == 1 && little[1] == 33);
    return HOLDS(made_pools(stream, pool));
}

// While another thread always has copies in the background.
bool meanwhile()
{
    std::atomic<bool> ends{false}, good{false}, begun{false};
    std::thread copies([&] {
        std::vector<char> memory(1 << 20);
        char *device = device_memory(1 << 20);
        void *stream = nullptr;
        good = device && cudaStreamCreate(&stream) == 0 &&
               host_register(memory.data(), memory.size()) == 0;
        while (good && !ends) {
            good = cudaMemcpyAsync(device, memory.data(), memory.size(), H2D, stream) == 0;
            begun = true;
        }
        good = good && cudaStreamSynchronize(stream) == 0 && host_unregister(memory.data()) == 0;
        begun = true;
    });
    void *array = nullptr;
    while (!begun)
        std::this_thread::yield();
    bool all = true;
    for (int i = 0; i < 4 && all; i++)
        all = malloc_array(&array, {100, 30, 0}) == 0 && free_array(array) == 0;
    ends = true;
    copies.join();
    return HOLDS(all && good);
}

// In a thread whose first call it is, too.
bool cooperative()
{
    using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
    auto *launch = preloaded<Launch>("cudaLaunchCooperativeKernel");
    std::size_t n = 100000;
    char *device = device_memory(2 * n);
    void *stream = nullptr, *to = device + n, *from = device;
    void *arguments[] = {&to, &from, &n};
    std::vector<char> memory(n);
    random_fill(memory.data(), n, 6);
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMemcpyAsync(device, memory.data(), n, H2D, stream) == 0);
    bool good = false;
    std::thread([&] { // behind an error, which stays the last one
        void *none = nullptr;
        good = malloc_array(&none, {100, 30, 0}, 64) == 1;
        good = launch(&stub_kernel, {1000, 1, 1}, {100, 1, 1}, arguments, 0, stream) == 0 && good;
        good = cudaGetLastError() == 1 && good;
    })
        .join();
    REQUIRE(good && cudaStreamSynchronize(stream) == 0);
    REQUIRE(device_has(device + n, memory.data(), n));
    std::thread([&] { // a kernel that CUDA does not give: it says why
        stub_remote()->inject("cuKernelGetFunction", 1, 46, false);
        good = fails(launch(&stub_kernel, {9, 1, 1}, {100, 1, 1}, arguments, 0, stream), 46);
    })
        .join();
    REQUIRE(good);
    // The error is this launch's, and a plain launch afterwards is a plain one.
    REQUIRE(fails(launch(&n, {1, 1, 1}, {1, 1, 1}, arguments, 0, stream), 98));
    REQUIRE(cudaMemset(device + n, 0, n) == 0);
    REQUIRE(cudaLaunchKernel(&stub_kernel, {1000, 1, 1}, {100, 1, 1}, arguments, 0, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(device + n, memory.data(), n));
    // Attributes of streams, whole.
    char value[64], back[64] = {};
    random_fill(value, sizeof(value), 7);
    using Set = int(void *, int, const void *);
    using Get = int(void *, int, void *);
    REQUIRE(preloaded<Set>("cudaStreamSetAttribute")(stream, 1, value) == 0);
    REQUIRE(preloaded<Get>("cudaStreamGetAttribute")(stream, 1, back) == 0);
    REQUIRE(!std::memcmp(value, back, sizeof(value)));
    REQUIRE(fails(preloaded<Set>("cudaStreamSetAttribute")(stream, 2, value), 1));
    void *other = nullptr;
    int flags[2] = {5, 5}, priority = 5;
    auto *flags_of = preloaded<int(void *, int *)>("cudaStreamGetFlags");
    REQUIRE(cudaStreamCreateWithFlags(&other, 1) == 0);
    REQUIRE(flags_of(stream, &flags[0]) == 0 && flags_of(other, &flags[1]) == 0);
    REQUIRE(flags[0] == 0 && flags[1] == 1);
    REQUIRE(preloaded<int(void *, int *)>("cudaStreamGetPriority")(other, &priority) == 0);
    REQUIRE(priority == -2);
    return HOLDS(fails(flags_of(stream, nullptr), 1));
}

// What an attribute's value does not use may hold anything, and makes no other launch of one that
// has succeeded.
static bool launches_of_unset_bytes(const void *kernel, void **arguments, void *stream)
{
    auto *launch = preloaded<LaunchAs>("cudaLaunchKernelExC");
    LaunchAttribute cooperative = {2, {1}};
    const LaunchConfig config = {{10, 1, 1}, {100, 1, 1}, 0, stream, &cooperative, 1};
    unsigned early = 0;
    for (int i = 0; i < 20; i++) {
        cooperative.value[1] = cooperative.value[15] = i;
        REQUIRE(launch(&config, kernel, arguments) == 0 && cudaGetLastError() == 0);
        cooperative.value[1] = cooperative.value[15] = 1000 + i;
        stub_remote()->inject("cuLaunchKernel", 1, 46, false);
        early += !launch(&config, kernel, arguments);
        cudaDeviceSynchronize();
        REQUIRE(cudaGetLastError() == 46 && cudaGetLastError() == 0);
    }
    return HOLDS(early);
}

// A launch with attributes that has succeeded is not waited for when it is made again. If it fails
// then, the error comes later.
bool cooperative_again()
{
    using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
    auto *launch = preloaded<Launch>("cudaLaunchCooperativeKernel");
    std::size_t n = 3000;
    char *device = device_memory(2 * n);
    void *stream = nullptr, *to = device + n, *from = device, *arguments[] = {&to, &from, &n};
    const auto again = [&](unsigned grid = 10) {
        return launch(&stub_kernel, {grid, 1, 1}, {100, 1, 1}, arguments, 0, stream);
    };
    unsigned early = 0;
    REQUIRE(device && cudaMemset(device, 'c', n) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (unsigned i = 0; i < 20; i++) {
        for (unsigned k = 0; k < 20; k++)
            REQUIRE(again() == 0 && cudaGetLastError() == 0);
        REQUIRE(fails(again(1001 + i), 720)); // which has not succeeded before
        REQUIRE(fails(again(0), 1));          // nor has that
        stub_remote()->inject("cuLaunchKernel", 1, 46, false);
        const int rc = again();
        early += !rc;
        const int waited = cudaDeviceSynchronize();
        REQUIRE((!rc || rc == 46) && (!waited || (!rc && waited == 46)));
        REQUIRE(cudaGetLastError() == 46 && cudaGetLastError() == 0);
    }
    REQUIRE(early && device_has(device + n, std::vector<char>(n, 'c').data(), n));
    REQUIRE(launches_of_unset_bytes(&stub_kernel, arguments, stream));
    // A stream that is gone is no stream, and another one may get its handle.
    REQUIRE(cudaStreamDestroy(stream) == 0 && again() != 0 && cudaGetLastError() != 0);
    REQUIRE(cudaStreamCreate(&stream) == 0 && again() == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0);
}

// A back end that does not know these requests.
bool not_supported()
{
    using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
    using LaunchHost = int(void *, void (*)(void *), void *);
    void *array = nullptr, *to = nullptr, *from = nullptr;
    std::size_t n = 1000;
    void *arguments[] = {&to, &from, &n};
    char *device = device_memory(2 * n);
    to = device + n, from = device;
    std::vector<char> memory(n, 'a'), other(n, 'b');
    REQUIRE(cudaMemcpy(device, memory.data(), n, H2D) == 0);
    REQUIRE(cudaMemcpy(device + n, other.data(), n, H2D) == 0);
    REQUIRE(fails(malloc_array(&array, {100, 30, 0}), 801) && !array);
    REQUIRE(fails(preloaded<Launch>("cudaLaunchCooperativeKernel")(
                      &stub_kernel, {10, 1, 1}, {100, 1, 1}, arguments, 0, nullptr),
                  801));
    REQUIRE(fails(preloaded<LaunchHost>("cudaLaunchHostFunc")(
                      nullptr, [](void *) {}, nullptr),
                  801));
    REQUIRE(cudaDeviceSynchronize() == 0); // no plain launch took its place
    return HOLDS(device_has(device + n, other.data(), n));
}
