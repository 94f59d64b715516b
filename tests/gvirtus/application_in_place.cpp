// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Page-locked memory that becomes managed where it is.
#include "tests/gvirtus/graph_calls.h"

#include "frontend-glue/session/extensions.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

void (*at_each_step)();
void (*at_withdrawal)(), (*at_fetch)();
int steps_left = -1;
bool leaves_hole;

static bool step_fails()
{
    if (steps_left < 0 || steps_left--)
        return false;
    errno = ENOMEM;
    return true;
}

// Also called by the library.
extern "C" int mprotect(void *address, std::size_t n, int access) noexcept
{
    if (access == PROT_READ && step_fails())
        return -1;
    const long rc = syscall(SYS_mprotect, address, n, access);
    if (at_each_step && access == PROT_READ)
        at_each_step();
    if (at_fetch && access == PROT_READ)
        at_fetch();
    if (at_withdrawal && access == PROT_NONE)
        at_withdrawal();
    return static_cast<int>(rc);
}

extern "C" int fallocate(int fd, int mode, off_t at, off_t n)
{
    return step_fails() ? -1 : static_cast<int>(syscall(SYS_fallocate, fd, mode, at, n));
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

// Neither copies nor queries make page-locked memory managed.
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

// A launch names the memory while a copy is under way there, in another stream.
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

// A handler that writes to the memory interrupts the thread that names it.
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

// A child that is forked meanwhile has a copy of the memory, or nothing there.
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

// At any step there may be no memory for another mapping: then the program's bytes are where they
// were, and the launch fails.
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
        REQUIRE(!named || step > 5);
    }
    return true;
}

// It takes the pages of a file: a limit for files fails the launch, and does not end the program.
bool is_named_with_short_files()
{
    rlimit before, few;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    few = before;
    few.rlim_cur = bytes_each - 1;
    char *memory = page_locked(bytes_each);
    REQUIRE(memory && std::memset(memory, 'a', bytes_each));
    REQUIRE(setrlimit(RLIMIT_FSIZE, &few) == 0);
    const int rc = stub_launch(memory, memory, 1, nullptr);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    REQUIRE(rc == 801 && cudaGetLastError() == 801 && !is_in_place(memory) && memory[9] == 'a');
    REQUIRE(is_named(memory) && is_in_place(memory));
    return HOLDS(cudaFreeHost(memory) == 0);
}

// A reset of the device that was selected when memory was allocated takes none that another device
// uses.
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

// A child has no such memory; and what the child has at the back end is in its parent's way.
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
        const bool took = asks_for_map(reinterpret_cast<std::uintptr_t>(taken_away), 4096,
                                       IBX_EXT_OWN_PAGES) == 0;
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
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    REQUIRE(stays_as_it_is(device, stream) && is_named_beside_copy(device, stream));
    REQUIRE(is_named_beside_copies(device));
    REQUIRE(is_named_beside_writes() && is_named_beside_signals() && is_named_beside_forks());
    REQUIRE(over_shm || (is_not_a_childs() && is_named_without_mappings()));
    REQUIRE(over_shm || is_named_with_short_files());
    REQUIRE(cudaFree(device) == 0 && outlasts_reset_of_another());
    return HOLDS(cudaGetLastError() == 0);
}
