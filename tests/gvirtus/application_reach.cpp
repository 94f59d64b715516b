// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Page-locked memory as arguments of kernels.
#include "tests/gvirtus/graph_calls.h"
#include "tests/scenes/patience.h"

#include "frontend-glue/session/extra.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

constexpr std::size_t bytes_each = 300 << 10;

// Over shm both ends have the same pages; elsewhere the memory becomes managed with the launch.
bool reached()
{
    return taken;
}

// The first call has the back end load CUDA's runtime.
char *page_locked(std::size_t n)
{
    void *memory = nullptr;
    if (cudaGetLastError())
        return nullptr;
    return cudaMallocHost(&memory, n) ? nullptr : static_cast<char *>(memory);
}

// The back end has it run, where the plugin runs the copies; otherwise it is refused, and nothing
// else is the worse for it.
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
    REQUIRE(cudaGetLastError() == 0); // the back end loads CUDA's runtime
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

// What a kernel writes there goes on in the order of the stream, however it is copied.
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

// What a client without this library may ask for, at an address of its choice.
int asks(std::uint64_t address, std::uint64_t n, std::uint64_t offset)
{
    return stub_remote()->call(
        IBX_EXTRA_NAME,
        Body().put(std::uint16_t{IBX_EXTRA_HOST_MAP}).u64(address).u64(n).u64(offset));
}

// In the middle of other memory of the back end, of pages that were never touched, and so on.
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
        REQUIRE(asks(wish.address, wish.n, wish.offset) == 801);
    // Nor pages of its own in such places, or where it has something.
    const std::uint64_t own = IBX_EXTRA_OWN_PAGES;
    for (unsigned i = 0; i < 7; i++)
        REQUIRE(asks(wishes[i].address, wishes[i].n, own) == 801);
    REQUIRE(asks(wishes[12].address, page, own) == 801);
    if (!over_shm)
        return true;
    // Where this client has a map already the new one takes its place.
    return HOLDS(asks(there, page, 0) == 0);
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
    std::vector<char> registered(bytes_each);
    REQUIRE(host_register(registered.data(), bytes_each) == 0);
    const int rc = stub_launch(device, registered.data(), 10, nullptr);
    REQUIRE(rc == 801 && cudaGetLastError() == 801 && cudaDeviceSynchronize() == 0);
    REQUIRE(host_unregister(registered.data()) == 0);
    REQUIRE(cudaFreeHost(from) == 0 && cudaFreeHost(to) == 0 && cudaFreeHost(word) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaGetLastError() == 0);
}

// A client whose only session has ended is another one with the next.
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

// A reset takes it: it is freed, or page-locked no more.
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

// The back end has nothing of this process's where this has it. The test's alarm ends it otherwise.
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

// A thread has a session that the back end knows nothing of, when the last one ends that it knows.
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

// One thread makes a graph, and launches it; another one does when the first has ended.
bool page_locked_of_graphs()
{
    namespace g = graph_calls;
    char *from = nullptr, *to = nullptr;
    void *exec = nullptr;
    bool good[3] = {};
    if (!reached())
        return true;
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
    return HOLDS(good[0] && good[1] && good[2]);
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

// Those that there are not.
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

// What a child allocates is not what its parent does meanwhile.
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
    if (!reached() || !over_shm) // it is managed memory from the beginning
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

static void (*at_each_step)(); // the steps in which memory becomes managed where it is
void (*at_withdrawal)();
static int steps_left = -1; // until one has no memory for another mapping; below 0: all have
static bool leaves_hole;    // the last step has unmapped what was there, as Linux may have it

static bool step_fails()
{
    if (steps_left < 0 || steps_left--)
        return false;
    errno = ENOMEM;
    return true;
}

// The library's calls, too.
extern "C" int mprotect(void *address, std::size_t n, int access) noexcept
{
    if (access == PROT_READ && step_fails())
        return -1;
    const long rc = syscall(SYS_mprotect, address, n, access);
    if (at_each_step && access == PROT_READ)
        at_each_step();
    if (at_withdrawal && access == PROT_NONE)
        at_withdrawal();
    return static_cast<int>(rc);
}

extern "C" int madvise(void *address, std::size_t n, int advice) noexcept
{
    if (at_each_step && advice == MADV_DONTFORK)
        at_each_step();
    if (advice == MADV_DONTFORK && step_fails())
        return -1;
    return static_cast<int>(syscall(SYS_madvise, address, n, advice));
}

extern "C" void *mremap(void *from, std::size_t n, std::size_t now, int flags, ...) noexcept
{
    void *to = nullptr;
    if (flags & MREMAP_FIXED) {
        va_list more;
        va_start(more, flags);
        to = va_arg(more, void *);
        va_end(more);
    }
    if (step_fails()) {
        if (to && leaves_hole)
            munmap(to, now);
        return MAP_FAILED;
    }
    return reinterpret_cast<void *>(syscall(SYS_mremap, from, n, now, flags, to));
}

namespace
{

// Whether it has become managed memory.
bool is_in_place(const void *memory)
{
    std::ifstream maps("/proc/self/maps");
    const unsigned long long at = reinterpret_cast<std::uintptr_t>(memory);
    for (std::string line; std::getline(maps, line);) {
        const unsigned long long begin = std::stoull(line, nullptr, 16);
        const unsigned long long end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
        if (at >= begin && at < end)
            return line.find("ibx-managed") != std::string::npos;
    }
    return false;
}

bool is_named(char *memory)
{
    return HOLDS(stub_launch(memory, memory + 1, 1, nullptr) == 0);
}

// Neither copies nor questions make it managed.
bool stays_as_it_is(char *device, void *stream)
{
    char *memory = page_locked(bytes_each);
    struct {
        int type, device;
        void *on_device, *on_host;
    } what = {};
    REQUIRE(memory && round_trip(device, memory, bytes_each, 20, stream));
    auto *ask = preloaded<int(void *, const void *)>("cudaPointerGetAttributes");
    REQUIRE(ask(&what, memory) == 0);
    REQUIRE(what.on_device == memory && what.on_host == memory && !is_in_place(memory));
    REQUIRE(is_named(memory) && is_in_place(memory) == !over_shm);
    for (void *each : {static_cast<void *>(nullptr), stream})
        REQUIRE(round_trip(device, memory, bytes_each, 21, each));
    REQUIRE(is_named(memory) && cudaDeviceSynchronize() == 0 && memory[0] == memory[1]);
    // By the address that it has on the device.
    const std::vector<char> bytes = random_bytes(bytes_each, 24);
    std::vector<char> back(bytes_each);
    REQUIRE(cudaMemcpy(memory, bytes.data(), bytes_each, H2D) == 0 && has(memory, bytes));
    REQUIRE(cudaMemcpy(back.data(), memory, bytes_each, D2H) == 0 && back == bytes);
    return HOLDS(cudaFreeHost(memory) == 0 && cudaFreeHost(memory) == 1 && cudaGetLastError() == 1);
}

// A copy is under way there, in another stream.
bool is_named_beside_copy(char *device, void *stream)
{
    const std::vector<char> bytes = random_bytes(bytes_each, 22);
    void *second = nullptr;
    char *memory = page_locked(2 * bytes_each);
    REQUIRE(memory && cudaStreamCreate(&second) == 0);
    REQUIRE(cudaMemcpy(device, bytes.data(), bytes_each, H2D) == 0);
    stub_remote()->slow(20000);
    REQUIRE(cudaMemcpyAsync(memory, device, bytes_each, D2H, stream) == 0);
    REQUIRE(stub_launch(memory + bytes_each, device, 100, second) == 0);
    stub_remote()->slow(0);
    REQUIRE(cudaDeviceSynchronize() == 0 && has(memory, bytes));
    REQUIRE(!std::memcmp(memory + bytes_each, bytes.data(), 100));
    return HOLDS(cudaFreeHost(memory) == 0 && cudaStreamDestroy(second) == 0);
}

// Another thread's copies go on.
bool is_named_beside_copies(char *device)
{
    constexpr std::size_t n = 4 << 20; // longer than any message
    const std::vector<char> bytes = random_bytes(n, 23);
    REQUIRE(cudaMemcpy(device, bytes.data(), n, H2D) == 0);
    for (unsigned i = 0; i < 20; i++) {
        char *memory = page_locked(100000 + n);
        std::atomic<unsigned> copies{0};
        std::atomic<bool> over{false};
        bool good = true;
        REQUIRE(memory);
        std::thread other([&] {
            for (; !over && good; copies++) {
                std::memset(memory + 100000, 0, n);
                good = cudaMemcpy(memory + 100000, device, n, D2H) == 0 &&
                       has(memory + 100000, bytes) &&
                       cudaMemcpy(device + n, memory + 100000, n, H2D) == 0;
            }
            copies = 1000;
        });
        while (copies < 2 + i % 3)
            std::this_thread::yield();
        const bool named = is_named(memory);
        const unsigned before = copies;
        while (copies < before + 2 && copies < 1000)
            std::this_thread::yield();
        over = true;
        other.join();
        REQUIRE(good && named && device_has(device + n, bytes.data(), n));
        REQUIRE(cudaFreeHost(memory) == 0);
    }
    return true;
}

// Threads write there meanwhile.
bool is_named_beside_writes()
{
    constexpr unsigned threads = 3, words = 20;
    for (unsigned i = 0; i < 10; i++) {
        std::atomic<unsigned> begun{0}, lost{0};
        std::atomic<bool> over{false};
        std::vector<std::thread> all;
        char *memory = page_locked(bytes_each);
        REQUIRE(memory && std::memset(memory, 0, bytes_each));
        for (unsigned t = 0; t < threads; t++)
            all.emplace_back([&, t] {
                std::uint64_t count[words] = {};
                for (unsigned w = 0; !over; w = (w + 1) % words) {
                    auto *word =
                        reinterpret_cast<volatile std::uint64_t *>(memory + 64 + w * 15000 + t * 8);
                    lost += *word != count[w];
                    *word = ++count[w];
                    begun += w == words - 1 && count[w] == 1;
                }
            });
        while (begun < threads)
            std::this_thread::yield();
        const bool good = is_named(memory) && cudaDeviceSynchronize() == 0;
        over = true;
        for (std::thread &each : all)
            each.join();
        REQUIRE(good && !lost && cudaFreeHost(memory) == 0);
    }
    return true;
}

char *volatile named_memory;
volatile sig_atomic_t handler_runs, wrong_children;

// The thread that names the memory is interrupted by a handler that writes there.
bool is_named_beside_signals()
{
    struct sigaction writes = {}, before = {};
    named_memory = page_locked(bytes_each);
    REQUIRE(named_memory);
    writes.sa_handler = [](int) {
        handler_runs = handler_runs + 1;
        ++named_memory[64];
    };
    REQUIRE(sigaction(SIGUSR1, &writes, &before) == 0);
    named_memory[64] = 0;
    handler_runs = 0;
    at_each_step = [] { raise(SIGUSR1); };
    const bool good = is_named(named_memory);
    at_each_step = nullptr;
    REQUIRE(good && sigaction(SIGUSR1, &before, nullptr) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(named_memory[64] == handler_runs && (handler_runs > 0) == !over_shm);
    return HOLDS(cudaFreeHost(named_memory) == 0);
}

// A child that begins meanwhile has a copy of its own, or none.
bool is_named_beside_forks()
{
    named_memory = page_locked(bytes_each);
    REQUIRE(named_memory);
    wrong_children = 0;
    at_each_step = [] {
        const pid_t child = fork();
        if (!child) {
            if (is_in_place(named_memory))
                std::_Exit(1);
            std::_Exit(!msync(named_memory, 1, MS_ASYNC) && ++named_memory[bytes_each / 2] != 1);
        }
        int status = -1;
        wrong_children = wrong_children || waitpid(child, &status, 0) != child || status != 0;
    };
    const bool good = std::memset(named_memory, 0, bytes_each) && is_named(named_memory);
    at_each_step = nullptr;
    REQUIRE(good && !wrong_children && cudaDeviceSynchronize() == 0 &&
            !named_memory[bytes_each / 2]);
    return HOLDS(cudaFreeHost(named_memory) == 0);
}

// There may be no memory for another mapping, at any step: then the program has its bytes where
// they were, and the launch fails.
bool is_named_without_mappings()
{
    const std::vector<char> bytes = random_bytes(bytes_each, 25);
    bool named = false;
    for (int step = 0; !named; step++) {
        for (bool hole : {false, true}) {
            char *memory = page_locked(bytes_each);
            REQUIRE(memory && std::memcpy(memory, bytes.data(), bytes_each));
            leaves_hole = hole;
            steps_left = step;
            const int rc = stub_launch(memory, memory, 1, nullptr);
            named = steps_left >= 0;
            steps_left = -1;
            REQUIRE(rc == (named ? 0 : 801) && cudaGetLastError() == rc);
            REQUIRE(has(memory, bytes) && is_in_place(memory) == named);
            std::memset(memory, step, bytes_each);
            REQUIRE(is_named(memory) && is_in_place(memory) && memory[bytes_each - 1] == step);
            REQUIRE(cudaFreeHost(memory) == 0);
        }
        REQUIRE(!named || step > 3);
    }
    return true;
}

// A reset of the device that was selected then takes none of another one's.
bool outlasts_reset_of_another()
{
    REQUIRE(cudaSetDevice(1) == 0);
    char *memory = page_locked(bytes_each);
    REQUIRE(memory && std::memset(memory, 'a', bytes_each) && cudaSetDevice(0) == 0);
    REQUIRE(is_named(memory) && cudaDeviceReset() == 0 && cudaSetDevice(1) == 0);
    REQUIRE(memory[0] == 'a' && (memory[1] = 'b') && is_named(memory));
    REQUIRE(cudaDeviceSynchronize() == 0 && memory[0] == 'b' && memory[bytes_each - 1] == 'a');
    return HOLDS(cudaFreeHost(memory) == 0 && cudaSetDevice(0) == 0);
}

// A child has no such memory; and what it has at the back end is in its parent's way.
bool is_not_a_childs()
{
    char *memory = page_locked(bytes_each), *taken_away = page_locked(bytes_each), byte = 0;
    int there[2], back[2], status = -1;
    REQUIRE(memory && taken_away && is_named(memory) && cudaDeviceSynchronize() == 0);
    REQUIRE(pipe(there) == 0 && pipe(back) == 0);
    const pid_t child = fork();
    if (!child) {
        const bool refused = cudaGetLastError() == 0 &&
                             stub_launch(memory, memory, 1, nullptr) == 801 &&
                             cudaGetLastError() == 801 && cudaDeviceSynchronize() == 0;
        const bool took =
            asks(reinterpret_cast<std::uintptr_t>(taken_away), 4096, IBX_EXTRA_OWN_PAGES) == 0;
        const bool told = write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1;
        std::_Exit(refused && took && told && cudaFreeHost(memory) == 0 ? 0 : 1);
    }
    REQUIRE(read(there[0], &byte, 1) == 1);
    std::memset(taken_away, 'a', bytes_each);
    REQUIRE(stub_launch(taken_away, memory, 1, nullptr) == 801 && cudaGetLastError() == 801);
    REQUIRE(taken_away[bytes_each - 1] == 'a' && !is_in_place(taken_away));
    REQUIRE(write(back[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    while (stub_launch(taken_away, memory, 1, nullptr)) // the test's alarm ends it otherwise
        cudaGetLastError();
    REQUIRE(cudaDeviceSynchronize() == 0 && taken_away[0] == memory[0] && taken_away[1] == 'a');
    for (const int fd : {there[0], there[1], back[0], back[1]})
        close(fd);
    return HOLDS(cudaFreeHost(memory) == 0 && cudaFreeHost(taken_away) == 0);
}

} // namespace

// Page-locked memory becomes managed where the back end cannot have its pages.
bool page_locked_in_place()
{
    void *stream = nullptr;
    char *device = device_memory();
    REQUIRE(runtime_is_there() && device && cudaStreamCreate(&stream) == 0);
    REQUIRE(stays_as_it_is(device, stream) && is_named_beside_copy(device, stream));
    REQUIRE(is_named_beside_copies(device));
    REQUIRE(is_named_beside_writes() && is_named_beside_signals() && is_named_beside_forks());
    REQUIRE(over_shm || (is_not_a_childs() && is_named_without_mappings()));
    REQUIRE(cudaFree(device) == 0 && outlasts_reset_of_another());
    return HOLDS(cudaGetLastError() == 0);
}
