// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Page-locked memory as arguments of kernels.
#include "tests/gvirtus/graph_calls.h"
#include "tests/fixtures/patience.h"

#include "frontend-glue/session/extensions.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

// The first call has the back end load CUDA's runtime.
char *page_locked(std::size_t n)
{
    void *memory = nullptr;
    if (cudaGetLastError())
        return nullptr;
    return cudaMallocHost(&memory, n) ? nullptr : static_cast<char *>(memory);
}

// A request as a client without this library may send it, with an address of its choice.
int asks_for_map(std::uint64_t address, std::uint64_t n, std::uint64_t offset)
{
    return stub_remote()->call(
        IBX_EXT_NAME, Body().put(std::uint16_t{IBX_EXT_HOST_MAP}).u64(address).u64(n).u64(offset));
}

namespace
{

// Over shm both ends have the same pages; elsewhere the launch makes the memory managed.
bool reached()
{
    return taken;
}

// If the plugin runs the copies, the back end runs the launch; otherwise the launch is refused, and
// nothing else fails.
bool runs_or_is_refused(int rc)
{
    if (reached())
        return rc == 0;
    REQUIRE(rc == 801 && cudaGetLastError() == 801);
    return HOLDS(cudaDeviceSynchronize() == 0 && cudaGetLastError() == 0);
}

bool is_copied(char *to, char *from, std::size_t n, void *stream, unsigned seed)
{
    const std::vector<char> bytes = random_bytes(n, seed);
    std::memcpy(from, bytes.data(), n);
    std::memset(to, 0, n);
    REQUIRE(runs_or_is_refused(stub_launch(to, from, n, stream)));
    return HOLDS(!reached() ||
                 (cudaStreamSynchronize(stream) == 0 && !std::memcmp(to, bytes.data(), n)));
}

bool other_launches(char *to, char *from)
{
    StubDim3 one = {1, 1, 1};
    std::size_t n = bytes_each;
    void *arguments[] = {&to, &from, &n};
    using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
    const int rc = preloaded<Launch>("cudaLaunchCooperativeKernel")(&stub_kernel, one, one,
                                                                    arguments, 0, nullptr);
    REQUIRE(runs_or_is_refused(rc));
    const struct {
        const void *function;
        StubDim3 grid, block;
        unsigned shared;
        void **arguments, **extra;
    } kernel = {&stub_kernel, one, one, 0, arguments, nullptr};
    void *graph = nullptr, *node = nullptr;
    REQUIRE(preloaded<int(void **, unsigned)>("cudaGraphCreate")(&graph, 0) == 0);
    using Add = int(void **, void *, void *const *, std::size_t, const void *);
    REQUIRE(runs_or_is_refused(
        preloaded<Add>("cudaGraphAddKernelNode")(&node, graph, nullptr, 0, &kernel)));
    return HOLDS(cudaDeviceSynchronize() == 0 &&
                 preloaded<int(void *)>("cudaGraphDestroy")(graph) == 0);
}

// Bytes that a kernel writes there are copied on in the order of the stream, by each kind of copy.
bool goes_on(char *device, void *stream)
{
    const std::vector<char> bytes = random_bytes(bytes_each, 9);
    REQUIRE(cudaMemcpy(device, bytes.data(), bytes_each, H2D) == 0);
    for (std::size_t n : {std::size_t{100}, bytes_each})
        for (unsigned way = 0; way < 4; way++) {
            char *to = page_locked(bytes_each); // of which no copy was made yet
            std::vector<char> further(bytes_each);
            REQUIRE(to);
            std::memset(to, 0, bytes_each);
            stub_remote()->slow(20000);
            REQUIRE(stub_launch(to, device, n, stream) == 0);
            const int rc = way == 0   ? cudaMemcpyAsync(device + bytes_each, to, n, H2D, stream)
                           : way == 1 ? cudaMemcpyAsync(further.data(), to, n, 0, stream)
                           : way == 2 ? cudaMemcpy(further.data(), to, n, 0)
                                      : cudaMemcpy2DAsync(device + bytes_each, n / 2, to, n / 2,
                                                          n / 2, 2, H2D, stream);
            REQUIRE(rc == 0 && cudaStreamSynchronize(stream) == 0);
            stub_remote()->slow(0);
            const bool good = way % 3 ? !std::memcmp(further.data(), bytes.data(), n)
                                      : device_has(device + bytes_each, bytes.data(), n);
            if (!good)
                std::fprintf(stderr, "%zu bytes, way %u\n", n, way);
            REQUIRE(good && cudaFreeHost(to) == 0);
        }
    return true;
}

// Without a call of CUDA's in between.
bool is_seen_at_once(char *word, const char *one)
{
    volatile char *seen = word;
    *seen = 0;
    REQUIRE(runs_or_is_refused(stub_launch(word, one, 1, nullptr)));
    while (reached() && over_shm && !*seen) // the test's alarm ends it otherwise
        ;
    REQUIRE(!reached() || *seen == *one);
    return true;
}

// Where in the shared file the back end's pages at that address are; ~0: it has none there. The
// kernel joins mappings of adjacent pages.
std::uint64_t offset_in_back_end(std::uint64_t address)
{
    std::ifstream maps("/proc/" + std::string(std::getenv("STUB_BACK_END")) + "/maps");
    for (std::string range, access, offset, rest; maps >> range >> access >> offset;) {
        const std::uint64_t begin = std::stoull(range, nullptr, 16);
        const std::uint64_t end = std::stoull(range.substr(range.find('-') + 1), nullptr, 16);
        if (address >= begin && address < end)
            return std::stoull(offset, nullptr, 16) + (address - begin);
        std::getline(maps, rest);
    }
    return ~0ull;
}

// If this client has a mapping there already, one of other pages replaces it, however long it is.
bool is_replaced(std::uint64_t address, std::uint64_t page)
{
    const std::uint64_t offset = offset_in_back_end(address);
    REQUIRE(offset != ~0ull);
    for (std::uint64_t at : {offset, offset + page, offset})
        REQUIRE(asks_for_map(address, page, at) == 0 && offset_in_back_end(address) == at);
    return true;
}

// How a copy to the device is made.
enum class Made {
    at_once,
    behind_function,
    by_graph,
};

bool is_copied_by_graph(char *to, const std::vector<char> &from, void *stream)
{
    void *graph = nullptr, *exec = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(cudaMemcpyAsync(to, from.data(), from.size(), H2D, stream) == 0);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0);
    REQUIRE((preloaded<int(void **, void *, unsigned long long)>("cudaGraphInstantiate")(
                 &exec, graph, 0) == 0));
    REQUIRE(preloaded<int(void *, void *)>("cudaGraphLaunch")(exec, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    return HOLDS(preloaded<int(void *)>("cudaGraphExecDestroy")(exec) == 0 &&
                 preloaded<int(void *)>("cudaGraphDestroy")(graph) == 0);
}

// A copy that has to come after a function of the host, which ends when this call has returned.
bool is_copied_behind_function(char *device, const std::vector<char> &object, void *stream)
{
    std::atomic<bool> flag{false};
    auto wait = [](void *of) {
        while (!*static_cast<std::atomic<bool> *>(of))
            usleep(100);
    };
    REQUIRE(cudaDeviceSynchronize() == 0);
    REQUIRE(
        (run<void *, void (*)(void *), void *>("cudaLaunchHostFunc", stream, +wait, &flag) == 0));
    const int rc = cudaMemcpyAsync(device, object.data(), object.size(), H2D, stream);
    flag = true;
    return HOLDS(rc == 0 && cudaStreamSynchronize(stream) == 0);
}

bool is_copied(char *device, const std::vector<char> &object, Made made, void *stream)
{
    if (made == Made::by_graph)
        return is_copied_by_graph(device, object, stream);
    if (made == Made::behind_function)
        return is_copied_behind_function(device, object, stream);
    return HOLDS(cudaMemcpy(device, object.data(), object.size(), H2D) == 0);
}

// A kernel may find an address in an object that was copied to the device, or in a variable there.
bool is_found_in_copies(char *device, void *stream, bool by_graph)
{
    const struct {
        std::size_t n;
        Made made;
    } copies[] = {{24, Made::at_once},
                  {8192, Made::at_once},
                  {32, Made::behind_function},
                  {24, Made::by_graph},
                  {8192, Made::by_graph}};
    for (const auto &[n, made] : copies) {
        if (made == Made::by_graph && !by_graph)
            continue;
        char *memory = page_locked(bytes_each);
        const auto address = reinterpret_cast<std::uint64_t>(memory);
        const std::uint64_t named = address + 100;
        std::vector<char> object(n);
        std::memcpy(object.data() + n - sizeof(named), &named, sizeof(named));
        REQUIRE(memory && (!over_shm || offset_in_back_end(address) == ~0ull));
        REQUIRE(is_copied(device, object, made, stream));
        REQUIRE(!over_shm || (offset_in_back_end(address) != ~0ull) == (n < 4096));
        REQUIRE(cudaFreeHost(memory) == 0);
    }
    return true;
}

// Refused addresses: in the middle of other memory of the back end, pages that were never touched,
// and so on.
bool is_refused(const char *mapped)
{
    const std::uint64_t from = 1ull << 45, until = 5ull << 44, page = 4096;
    const std::uint64_t there = reinterpret_cast<std::uintptr_t>(mapped);
    const struct {
        std::uint64_t address, n, offset;
    } wishes[] = {
        {from - page, page, 0},
        {from - page, 2 * page, 0},
        {until - page, 2 * page, 0},
        {until, page, 0},
        {from + 1, page, 0},
        {from, 1, 0},
        {from, 0, 0},
        {from, page, 1},
        {from, page, 1ull << 40},
        {from, page, 0 - page},
        {from, 0 - page, page},
        {from, page, 8ull << 30},
        {reinterpret_cast<std::uintptr_t>(&from) / page * page, page, 0},
    };
    for (const auto &wish : wishes)
        REQUIRE(asks_for_map(wish.address, wish.n, wish.offset) == 801);
    // Also refused: pages of the back end itself in such places, or where it has something.
    const std::uint64_t own = IBX_EXT_OWN_PAGES;
    for (unsigned i = 0; i < 7; i++)
        REQUIRE(asks_for_map(wishes[i].address, wishes[i].n, own) == 801);
    REQUIRE(asks_for_map(wishes[12].address, page, own) == 801);
    return !over_shm || is_replaced(there, page);
}

} // namespace

bool kernels_and_page_locked()
{
    char *device = device_memory(2 * bytes_each), *from = page_locked(bytes_each);
    char *to = page_locked(bytes_each), *word = page_locked(4);
    void *stream = nullptr;
    REQUIRE(device && from && to && word && cudaStreamCreate(&stream) == 0);
    for (unsigned i = 0; i < 3; i++)
        REQUIRE(is_copied(to, from, bytes_each, i % 2 ? stream : nullptr, i));
    REQUIRE(is_copied(to + 5, from + 77, 1000, stream, 4));
    // What a kernel has written goes on in the order of its stream.
    const std::vector<char> bytes = random_bytes(bytes_each, 5);
    REQUIRE(cudaMemcpy(device, bytes.data(), bytes_each, H2D) == 0);
    for (std::size_t n : {std::size_t{100}, bytes_each}) {
        std::memset(to, 0, bytes_each);
        stub_remote()->slow(2000);
        REQUIRE(runs_or_is_refused(stub_launch(to, device, n, nullptr)));
        const int rc = cudaMemcpy(device + bytes_each, to, n, H2D);
        stub_remote()->slow(0);
        REQUIRE(rc == 0 && (!reached() || device_has(device + bytes_each, bytes.data(), n)));
    }
    REQUIRE(!reached() || goes_on(device, stream));
    REQUIRE(!reached() || is_found_in_copies(device, stream, taken));
    std::memset(from, 1, 1);
    REQUIRE(is_seen_at_once(word, from));
    REQUIRE(!reached() || is_refused(to));
    REQUIRE(cudaFreeHost(to) == 0 && (to = page_locked(bytes_each)));
    bool good = false;
    std::thread([&] { good = is_copied(to, from, bytes_each, nullptr, 6); }).join();
    REQUIRE(good && (!taken || other_launches(to, from)));
    // At the same place there may be other memory later.
    REQUIRE(cudaFreeHost(from) == 0 && (from = page_locked(bytes_each / 2)));
    REQUIRE(is_copied(to, from, bytes_each / 2, stream, 7));
    // What cannot move to memory that is shared with the back end (application_registered.cpp).
    void *registered =
        mmap(nullptr, bytes_each, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(registered != MAP_FAILED && host_register(registered, bytes_each) == 0);
    const int rc = stub_launch(device, static_cast<char *>(registered), 10, nullptr);
    REQUIRE(rc == 801 && cudaGetLastError() == 801 && cudaDeviceSynchronize() == 0);
    REQUIRE(host_unregister(registered) == 0 && munmap(registered, bytes_each) == 0);
    REQUIRE(cudaFreeHost(from) == 0 && cudaFreeHost(to) == 0 && cudaFreeHost(word) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaGetLastError() == 0);
}

// If a client's only session has ended, it counts as another client with the next session, perhaps
// in another process of the back end.
bool page_locked_of_threads()
{
    char *from = nullptr, *to = nullptr;
    bool good[3] = {};
    for (bool &each : good)
        std::thread([&] {
            from = from ? from : page_locked(bytes_each);
            to = to ? to : page_locked(bytes_each);
            each = from && to && is_copied(to, from, bytes_each, nullptr, 8);
        }).join();
    return good[0] && good[1] && good[2];
}

// A reset takes page-locked memory: it is freed, or page-locked no longer.
bool page_locked_after_resets()
{
    auto *enter = preloaded<int(void *, std::size_t, unsigned)>("cudaHostRegister");
    auto *leave = preloaded<int(void *)>("cudaHostUnregister");
    std::vector<char> own(bytes_each);
    for (unsigned i = 0; i < 3; i++) {
        char *from = page_locked(bytes_each), *to = page_locked(bytes_each);
        REQUIRE(is_copied(to, from, bytes_each, nullptr, i));
        REQUIRE(enter(own.data(), own.size(), 0) == 0);
        REQUIRE(enter(own.data(), own.size(), 0) == 712 && cudaGetLastError() == 712);
        REQUIRE(cudaDeviceReset() == 0);
        REQUIRE(cudaFreeHost(from) == 1 && cudaFreeHost(to) == 1 && cudaGetLastError() == 1);
        REQUIRE(leave(own.data()) == 713 && cudaGetLastError() == 713);
    }
    return true;
}

// What the back end has unpinned counts no more: all of it together is more than it may pin.
bool page_locked_again()
{
    for (unsigned i = 0; i < 4; i++) {
        char *memory = page_locked(std::size_t{4} << 20);
        REQUIRE(memory && stub_launch(memory, memory + 1, 1, nullptr) == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 && cudaFreeHost(memory) == 0);
    }
    return HOLDS(cudaGetLastError() == 0);
}

// There is room for this memory once: what it was pinned for copies gives way to what kernels need,
// but not while there is work that does not end. It is still copied, by other ways.
bool page_locked_in_turn()
{
    constexpr std::size_t n = std::size_t{4} << 20;
    char *device = device_memory(2 * n), *memory = page_locked(n);
    void *stream = nullptr;
    REQUIRE(device && memory && cudaStreamCreateWithFlags(&stream, 1) == 0);
    const std::vector<char> bytes = random_bytes(n, 1);
    std::memcpy(memory, bytes.data(), n);
    REQUIRE(cudaMemcpyAsync(device, memory, n, H2D, stream) == 0);
    stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(stream));
    REQUIRE(stub_launch(device + n, device, 1, stream) == 0);
    REQUIRE(stub_launch(memory, device, 1, nullptr) == 801 && cudaGetLastError() == 801);
    stub_remote()->hold_stream(0);
    stub_remote()->slow(20000);
    REQUIRE(cudaMemcpyAsync(device + n, memory, n, H2D, stream) == 0);
    REQUIRE(stub_launch(memory, device + 1, n - 1, stream) == 0);
    stub_remote()->slow(0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(device + n, bytes.data(), n));
    REQUIRE(!std::memcmp(memory, bytes.data() + 1, n - 1) && memory[n - 1] == bytes[n - 1]);
    REQUIRE(cudaMemcpyAsync(memory, device, n, D2H, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && !std::memcmp(memory, bytes.data(), n));
    REQUIRE(cudaFreeHost(memory) == 0 && cudaStreamDestroy(stream) == 0 && cudaFree(device) == 0);
    return page_locked_again();
}

// Waits until the back end has no memory of this process any more. Otherwise the test's alarm ends
// the test.
static void wait_for_ends()
{
    const char *back_end = std::getenv("STUB_BACK_END");
    for (bool any = reached(); any;) {
        std::ifstream maps("/proc/" + std::string(back_end) + "/maps");
        any = false;
        for (std::string line; std::getline(maps, line);)
            any = any || (line.find("ibx-shared") != std::string::npos &&
                          std::stoull(line, nullptr, 16) >= 1ull << 45);
    }
}

// A thread has a session that the back end knows nothing about, and the last one ends that it
// knows.
bool page_locked_of_unknown()
{
    char *from = nullptr, *to = nullptr;
    std::atomic<unsigned> step{0};
    bool good[2] = {};
    std::thread first([&] {
        from = page_locked(bytes_each);
        to = page_locked(bytes_each);
        good[0] = from && to && is_copied(to, from, bytes_each, nullptr, 1);
        step = 1;
        while (step != 2)
            std::this_thread::yield();
    });
    std::thread second([&] {
        while (step != 1)
            std::this_thread::yield();
        stub_remote(); // connects
        step = 2;
        while (step != 3)
            std::this_thread::yield();
        good[1] = is_copied(to, from, bytes_each, nullptr, 2);
    });
    first.join();
    wait_for_ends();
    step = 3;
    second.join();
    return good[0] && good[1];
}

// Each call that sets memory is the first that gives it to the device.
static bool page_locked_is_set()
{
    namespace g = graph_calls;
    constexpr std::size_t n = 4096;
    auto *registered = static_cast<char *>(
        mmap(nullptr, bytes_each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto row = [](char *at) { return cudaMemset(at, 2, n); };
    const auto row_later = [](char *at) {
        const int rc = cudaMemsetAsync(at, 2, n, nullptr);
        return rc ? rc : cudaStreamSynchronize(nullptr);
    };
    const auto rows = [](char *at) {
        return g::run<void *, std::size_t, int, std::size_t, std::size_t>("cudaMemset2D", at, n / 4,
                                                                          2, n / 4, 4);
    };
    const auto rows_later = [](char *at) {
        const int rc = g::run<void *, std::size_t, int, std::size_t, std::size_t, void *>(
            "cudaMemset2DAsync", at, n / 4, 2, n / 4, 4, nullptr);
        return rc ? rc : cudaStreamSynchronize(nullptr);
    };
    const auto elements = [](char *at) {
        const auto address = reinterpret_cast<std::uintptr_t>(at);
        return g::run<std::uint64_t, std::uint32_t, std::size_t>("cuMemsetD32_v2", address,
                                                                 0x02020202, n / 4);
    };
    const auto node = [](char *at) {
        g::Graph graph;
        const g::Set set = {at, 0, 2, 1, n, 1};
        const int rc = graph.add("cudaGraphAddMemsetNode", {}, &set);
        return rc ? rc : g::launch(graph.made(), nullptr) || cudaStreamSynchronize(nullptr);
    };
    const auto changed_node = [](char *at) {
        g::Graph graph;
        g::Set set = {device_memory(n), 0, 1, 1, n, 1};
        int rc = graph.add("cudaGraphAddMemsetNode", {}, &set);
        set.at = at, set.value = 2;
        rc = rc ? rc
                : g::run<void *, const g::Set *>("cudaGraphMemsetNodeSetParams", graph.nodes[0],
                                                 &set);
        return rc ? rc : g::launch(graph.made(), nullptr) || cudaStreamSynchronize(nullptr);
    };
    for (int (*set)(char *) :
         {+row, +row_later, +rows, +rows_later, +elements, +node, +changed_node}) {
        char *memory = page_locked(bytes_each);
        REQUIRE(memory && std::memset(memory, 1, bytes_each) && set(memory + n) == 0);
        REQUIRE(memory[n - 1] == 1 && memory[n] == 2 && memory[2 * n - 1] == 2);
        REQUIRE(memory[2 * n] == 1 && cudaFreeHost(memory) == 0);
    }
    // Memory that was registered is set after what the stream copies there, though no kernel gets
    // it; nodes of graphs set it over shm alone, where kernels get it.
    char *device = device_memory(bytes_each);
    REQUIRE(device && cudaMemset(device, 3, bytes_each) == 0);
    REQUIRE(registered != MAP_FAILED && host_register(registered, bytes_each) == 0);
    for (int (*set)(char *) : {+row, +row_later, +rows, +rows_later, +elements}) {
        REQUIRE(cudaMemcpyAsync(registered, device, bytes_each, D2H, nullptr) == 0);
        REQUIRE(set(registered + n) == 0 && registered[n - 1] == 3 && registered[n] == 2);
        REQUIRE(registered[2 * n - 1] == 2 && registered[2 * n] == 3);
    }
    const auto words = reinterpret_cast<std::uintptr_t>(registered);
    REQUIRE((g::run<std::uint64_t, std::uint32_t, std::size_t>("cuMemsetD32_v2", words, 0x01020304,
                                                               2)) == 0);
    REQUIRE(registered[0] == 4 && registered[7] == 1 && registered[8] == 3);
    if (over_shm)
        REQUIRE(node(registered) == 0 && registered[0] == 2 && registered[n - 1] == 2 &&
                registered[n] == 2 && registered[2 * n] == 3);
    else
        REQUIRE(node(registered) == 801 && cudaGetLastError() == 801 && registered[0] == 4);
    auto *constant = static_cast<char *>(
        mmap(nullptr, bytes_each, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(constant != MAP_FAILED && host_register(constant, bytes_each, 8) == 0); // read only
    REQUIRE(row(constant) == 801 && rows(constant) == 801 && elements(constant) == 801);
    REQUIRE(cudaGetLastError() == 801 && host_unregister(constant) == 0);
    REQUIRE(munmap(constant, bytes_each) == 0);
    for (int (*set)(char *) : {+row, +row_later, +rows, +rows_later, +elements}) { // as before
        REQUIRE(cudaMemcpyAsync(registered, device, bytes_each, D2H, nullptr) == 0);
        REQUIRE(set(registered + n) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(registered[n - 1] == 3 && registered[n] == 2 && registered[2 * n - 1] == 2 &&
                registered[2 * n] == 3);
    }
    return HOLDS(host_unregister(registered) == 0 && munmap(registered, bytes_each) == 0 &&
                 cudaFree(device) == 0);
}

// One thread makes a graph and launches it; another one launches it after the first has ended.
bool page_locked_of_graphs()
{
    namespace g = graph_calls;
    char *from = nullptr, *to = nullptr;
    void *exec = nullptr;
    bool good[3] = {};
    if (!reached())
        return true;
    bool is_set = false;
    std::thread([&] { is_set = page_locked_is_set(); }).join();
    const auto runs = [&](unsigned seed) {
        const std::vector<char> bytes = random_bytes(bytes_each, seed);
        std::memcpy(from, bytes.data(), bytes_each);
        std::memset(to, 0, bytes_each);
        REQUIRE(g::launch(exec, nullptr) == 0 && cudaDeviceSynchronize() == 0);
        return !std::memcmp(to, bytes.data(), bytes_each);
    };
    std::thread([&] {
        from = page_locked(bytes_each);
        to = page_locked(bytes_each);
        std::size_t n = bytes_each;
        void *arguments[] = {&to, &from, &n};
        const g::Kernel kernel = {&stub_kernel, {1, 1, 1}, {1, 1, 1}, 0, arguments, nullptr};
        g::Graph graph;
        good[0] = graph.add("cudaGraphAddKernelNode", {}, &kernel) == 0 && (exec = graph.made()) &&
                  runs(1);
    }).join();
    for (unsigned i = 1; i < 3; i++) {
        wait_for_ends();
        std::thread([&] { good[i] = exec && runs(i + 1); }).join();
    }
    return HOLDS(is_set && good[0] && good[1] && good[2]);
}

// Forks, while another thread's launches are the first with their memory.
bool page_locked_and_forks()
{
    std::atomic<bool> over{false};
    bool good = true, others = true;
    alarm(30 * patience_times());
    std::thread other([&] {
        while (!over && others) {
            char *memory = page_locked(2 << 12);
            others = memory && runs_or_is_refused(stub_launch(memory, memory + 4096, 9, nullptr)) &&
                     cudaFreeHost(memory) == 0;
        }
    });
    for (unsigned i = 0; i < 200 && good; i++) {
        const pid_t child = fork();
        if (!child)
            std::_Exit(0);
        int status = -1;
        good = waitpid(child, &status, 0) == child && status == 0;
    }
    over = true;
    other.join();
    return good && others;
}

namespace
{

constexpr unsigned PIECES = 300;

char *piece(std::size_t n)
{
    void *memory = nullptr;
    constexpr unsigned mapped = 2;
    const int rc =
        graph_calls::run<void **, std::size_t, unsigned>("cudaHostAlloc", &memory, n, mapped);
    return rc ? nullptr : static_cast<char *>(memory);
}

std::size_t length_of(unsigned i)
{
    return i % 50 ? 1 + i * 37 % 3000 : 60000;
}

bool has_letters(const std::vector<char *> &pieces)
{
    for (unsigned i = 0; i < pieces.size(); i++)
        for (std::size_t at = 0; at < length_of(i); at++)
            REQUIRE(!pieces[i] || pieces[i][at] == static_cast<char>(i));
    return true;
}

// Allocates the pieces that are missing.
bool fill_up(std::vector<char *> &pieces)
{
    for (unsigned i = 0; i < pieces.size(); i++) {
        if (pieces[i])
            continue;
        REQUIRE((pieces[i] = piece(length_of(i))));
        std::memset(pieces[i], static_cast<char>(i), length_of(i));
    }
    return HOLDS(has_letters(pieces));
}

// What a child allocates is apart from what its parent allocates meanwhile.
bool pieces_of_a_child()
{
    int there[2], back[2], status = -1;
    char byte = 0;
    REQUIRE(pipe(there) == 0 && pipe(back) == 0);
    const pid_t child = fork();
    if (!child) {
        char *own = piece(4000);
        if (own)
            std::memset(own, 'c', 4000);
        const bool told = write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1;
        const bool kept = own && own[0] == 'c' && !std::memcmp(own, own + 1, 3999);
        std::_Exit(told && kept ? 0 : 1);
    }
    REQUIRE(read(there[0], &byte, 1) == 1);
    std::vector<char *> pieces(PIECES);
    REQUIRE(fill_up(pieces) && write(back[1], &byte, 1) == 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0 && has_letters(pieces));
    for (char *each : pieces)
        REQUIRE(cudaFreeHost(each) == 0);
    for (const int fd : {there[0], there[1], back[0], back[1]})
        close(fd);
    return true;
}

} // namespace

// Many short pieces of memory for kernels are mapped and pinned together.
bool page_locked_pieces()
{
    if (!reached() || !over_shm) // such memory is managed from the beginning
        return true;
    REQUIRE(cudaGetLastError() == 0 && cudaFreeHost(piece(100)) == 0);
    const auto before = stub_remote()->stats(); // the back end may still pin its pool
    std::vector<char *> pieces(PIECES);
    REQUIRE(fill_up(pieces));
    for (unsigned i = 0; i + 1 < PIECES; i += 29)
        REQUIRE(stub_launch(pieces[i], pieces[i + 1], 1, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0);
    for (unsigned i = 0; i + 1 < PIECES; i += 29) {
        REQUIRE(pieces[i][0] == static_cast<char>(i + 1));
        pieces[i][0] = static_cast<char>(i);
    }
    REQUIRE(stub_remote()->stats().host_pinned - before.host_pinned < PIECES / 4);
    for (unsigned i = 0; i < PIECES; i += 2) {
        REQUIRE(cudaFreeHost(pieces[i]) == 0 && cudaFreeHost(pieces[i]) == 1);
        REQUIRE(cudaGetLastError() == 1);
        pieces[i] = nullptr;
    }
    REQUIRE(fill_up(pieces) && cudaDeviceReset() == 0);
    REQUIRE(cudaFreeHost(pieces[7]) == 1 && cudaGetLastError() == 1); // they are gone with it
    for (char *&each : pieces)
        each = nullptr;
    REQUIRE(fill_up(pieces));
    REQUIRE(stub_launch(pieces[7], pieces[8], 1, nullptr) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(pieces[7][0] == 8);
    for (char *each : pieces)
        REQUIRE(cudaFreeHost(each) == 0);
    REQUIRE(stub_remote()->stats().host_pins < before.host_pins + PIECES / 4);
    return HOLDS(pieces_of_a_child());
}
