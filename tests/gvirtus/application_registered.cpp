// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Memory that the program has registered, as arguments of kernels.
#include "tests/gvirtus/graph_calls.h"
#include "tests/gvirtus/registered_memory.h"
#include "tests/fixtures/patience.h"

#include "frontend-glue/session/extensions.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <linux/io_uring.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OTHER_MALLOC
#endif
#endif

namespace registered
{

// Whether the back end has something in its way.
[[maybe_unused]] static bool is_in_the_way(const char *memory, std::size_t n)
{
    std::ifstream maps("/proc/" + std::string(std::getenv("STUB_BACK_END")) + "/maps");
    const unsigned long long at = reinterpret_cast<std::uintptr_t>(memory) - page_bytes;
    for (std::string line; std::getline(maps, line);) {
        const unsigned long long begin = std::stoull(line, nullptr, 16);
        const unsigned long long end = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
        if (begin < at + n + 2 * page_bytes && at < end)
            return true;
    }
    return false;
}

// A kernel reads all of `from` and writes all of `to`, both of which are registered.
static bool is_used(char *to, char *from, std::size_t n, unsigned seed)
{
    const std::vector<char> bytes = random_bytes(n, seed);
    std::memcpy(from, bytes.data(), n);
    std::memset(to, 0, n);
    REQUIRE(launches(to, from, n) && has(from, bytes));
    REQUIRE(!reach() || (is_shared(to) && is_shared(from) && has(to, bytes)));
    // Both sides see each other's writes.
    REQUIRE(launches(from, to + n / 2, 1) && (!reach() || from[0] == to[n / 2]));
    from[n - 1] = 'a';
    REQUIRE(launches(to, from + n - 1, 1) && (!reach() || to[0] == 'a'));
    return HOLDS(has(from + 1, {bytes.begin() + 1, bytes.end() - 1}));
}

// What has moved comes back.
static bool is_unregistered(char *memory, std::size_t n)
{
    const std::vector<char> before(memory, memory + n);
    REQUIRE(host_unregister(memory) == 0 && !is_shared(memory) && !is_shared(memory + n - 1));
    REQUIRE(has(memory, before) && mapping_of(memory).find("rw-p") != std::string::npos);
    return HOLDS(fails(host_unregister(memory), 713));
}

// Copies by the device itself, whose number says so: it copies to and from memory that has moved,
// as with memory of cudaMallocHost.
static unsigned long copies_of(char *device, char *memory, void *stream)
{
    const unsigned long before = stub_remote()->stats().copies_async;
    if (!HOLDS(cudaMemcpyAsync(device, memory, many, H2D, stream) == 0 &&
               cudaMemcpyAsync(memory, device, many, D2H, stream) == 0 &&
               cudaStreamSynchronize(stream) == 0))
        std::_Exit(1);
    return stub_remote()->stats().copies_async - before;
}

static bool is_copied_at_once(char *device)
{
    char *memory = new_pages(), *page_locked = nullptr;
    void *stream = nullptr;
    if (!reach())
        return true;
    REQUIRE(memory && cudaMallocHost(reinterpret_cast<void **>(&page_locked), many) == 0);
    REQUIRE(cudaStreamCreate(&stream) == 0 && host_register(memory, many) == 0);
    REQUIRE(launches(memory, memory + 1, 1, stream));
    // Until the back end has pinned it; the test's alarm ends it otherwise.
    for (char *each : {page_locked, memory})
        while (copies_of(device, each, stream) != 2)
            ;
    // In the order of the stream, and complete before the memory moves back.
    const std::vector<char> bytes = random_bytes(many, 11);
    REQUIRE(cudaMemcpy(device, bytes.data(), many, H2D) == 0);
    stub_remote()->slow(20000);
    REQUIRE(cudaMemcpyAsync(memory, device, many, D2H, stream) == 0);
    REQUIRE(cudaMemcpyAsync(device + many, memory, many, H2D, stream) == 0);
    REQUIRE(host_unregister(memory) == 0 && has(memory, bytes) && !is_shared(memory));
    stub_remote()->slow(0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && device_has(device + many, bytes.data(), many));
    REQUIRE(stub_remote()->stats().unpinned_async == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFreeHost(page_locked) == 0 && munmap(memory, many) == 0);
}

// Copies leave it where it is, and go on when a kernel has used it.
static bool is_registered_again(char *device, char *to, char *from)
{
    for (unsigned i = 0; i < 3; i++) {
        REQUIRE(host_register(to, many, i) == 0 && host_register(from, many) == 0);
        REQUIRE(round_trip(device, from, many, i) && !is_shared(to) && !is_shared(from));
        REQUIRE(is_used(to, from, many, i) && round_trip(device, from, many, i + 1));
        REQUIRE(round_trip(device, to + 5, many - 77, i + 2));
        REQUIRE(is_unregistered(to, many) && is_unregistered(from, many));
    }
    return HOLDS(round_trip(device, from, many, 3));
}

// Whether glibc's malloc(3) has mapped it for itself, which the length before it says. Other memory
// has a page in common with other allocations.
[[maybe_unused]] static bool is_alone(const char *memory)
{
    std::size_t length;
    std::memcpy(&length, memory - sizeof(length), sizeof(length));
    return length & 2;
}

static bool is_unaligned()
{
    const std::size_t n = many + 100;
    char *to = static_cast<char *>(std::malloc(n)), *from = static_cast<char *>(std::malloc(n));
    void *aligned = nullptr;
    REQUIRE(to && from && posix_memalign(&aligned, page_bytes, n) == 0);
    char *third = static_cast<char *>(aligned);
    REQUIRE(host_register(to, n) == 0 && host_register(from + 7, n - 9) == 0);
    REQUIRE(host_register(third, n) == 0);
    bool alone = false, away = false;
#ifndef OTHER_MALLOC
    alone = is_alone(to) && is_alone(from) && is_alone(third);
    for (char *each : {to, from, third})
        away = away || is_in_the_way(each, n);
#endif
    if (alone && !away)
        REQUIRE(is_used(to, from + 7, n - 9, 4) && is_used(third, to, n, 5));
    REQUIRE(alone || (is_refused(to) && is_refused(from + 7)));
    REQUIRE(is_unregistered(to, n) && is_unregistered(from + 7, n - 9));
    REQUIRE(is_unregistered(third, n));
    to = static_cast<char *>(std::realloc(to, 2 * n));
    REQUIRE(to && !is_shared(to));
    std::free(to);
    std::free(from);
    std::free(third);
    return true;
}

// The address for kernels, as far as is known.
static bool has_attributes(const char *memory, bool reached)
{
    struct {
        int type, device;
        const void *on_device, *on_host;
    } what = {};
    auto *ask = preloaded<int(void *, const void *)>("cudaPointerGetAttributes");
    REQUIRE(ask(&what, memory) == 0 && what.on_host == memory);
    return HOLDS(what.on_device == (reached ? memory : nullptr));
}

static bool has_device_pointer()
{
    char *memory = new_pages();
    void *there = nullptr;
    REQUIRE(memory && host_register(memory, many, 2) == 0);
    auto *get = preloaded<int(void **, void *, unsigned)>("cudaHostGetDevicePointer");
    // What was answered stays so.
    REQUIRE(has_attributes(memory, over_shm) && !is_shared(memory));
    REQUIRE(!syscall(SYS_mlock, memory, page_bytes) && has_attributes(memory, over_shm));
    REQUIRE(!syscall(SYS_munlock, memory, page_bytes));
    const int rc = get(&there, memory + 5, 0);
    REQUIRE(reach() ? rc == 0 && there == memory + 5 && is_shared(memory) : fails(rc, 801));
    REQUIRE(has_attributes(memory, over_shm));
    return HOLDS(is_unregistered(memory, many) && munmap(memory, many) == 0);
}

// While it cannot move, it is asked again: memory may be unlocked.
static bool has_device_pointer_later()
{
    char *memory = new_pages();
    REQUIRE(memory && !syscall(SYS_mlock, memory, page_bytes) && host_register(memory, many) == 0);
    REQUIRE(has_attributes(memory, false) && !syscall(SYS_munlock, memory, page_bytes));
    REQUIRE(has_attributes(memory, over_shm) && host_unregister(memory) == 0);
    return HOLDS(munmap(memory, many) == 0);
}

static char variables[2 * page_bytes];

// Memory that does not move: copies are as before, and a launch that names it says so.
static bool is_refused_and_copied(char *device, char *memory, std::size_t n)
{
    REQUIRE(host_register(memory, n) == 0 && is_refused(memory));
    REQUIRE(round_trip(device, memory, n, 6) && !is_shared(memory));
    return HOLDS(host_unregister(memory) == 0);
}

static bool stays(char *device)
{
    alignas(page_bytes) char on_stack[2 * page_bytes];
    char *shared = new_pages(many, MAP_SHARED), *locked = new_pages();
    char *constant = new_pages(many, MAP_PRIVATE, PROT_READ);
    char *few = static_cast<char *>(std::malloc(100));
    std::FILE *file = std::tmpfile();
    REQUIRE(shared && locked && constant && few && file && !ftruncate(fileno(file), many));
    char *of_file = static_cast<char *>(
        mmap(nullptr, many, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0));
    // AddressSanitizer makes mlock(2) do nothing.
    REQUIRE(of_file != MAP_FAILED && !syscall(SYS_mlock, locked + page_bytes, page_bytes));
    for (char *each : {shared, of_file, locked})
        REQUIRE(is_refused_and_copied(device, each, many));
    REQUIRE(is_refused_and_copied(device, on_stack, sizeof(on_stack)));
    REQUIRE(is_refused_and_copied(device, few, 100)); // and its neighbours
    REQUIRE(is_refused_and_copied(device, variables + 100, page_bytes));
    REQUIRE(host_register(constant, many, 8) == 0 && is_refused(constant)); // read only
    REQUIRE(host_unregister(constant) == 0 &&
            !syscall(SYS_munlock, locked + page_bytes, page_bytes));
    REQUIRE(host_register(locked, many) == 0 && launches(locked, locked + 1, 1));
    REQUIRE(is_unregistered(locked, many));
    std::free(few);
    std::fclose(file);
    for (char *each : {shared, constant, locked, of_file})
        REQUIRE(munmap(each, many) == 0);
    return true;
}

// Ranges that have a page in common, and others.
static bool has_neighbours(char *memory)
{
    constexpr std::size_t half = many / 2;
    REQUIRE(host_register(memory, half) == 0 && launches(memory, memory + 1, 1));
    REQUIRE(fails(host_register(memory + half - 1, half), 712));
    REQUIRE(fails(host_register(memory, 1), 712) && fails(host_register(memory + 9, 9), 712));
    REQUIRE(host_register(memory + half, half - 9) == 0); // whole pages but the last one
    REQUIRE(launches(memory + half, memory, half - 9) && launches(memory, memory + half, half - 9));
    REQUIRE(host_register(memory + many - 9, 9) == 0 && is_refused(memory + many - 9));
    REQUIRE(is_unregistered(memory, half) && launches(memory + half, memory + half + 1, 1));
    REQUIRE(is_unregistered(memory + half, half - 9) && is_refused(memory + many - 9));
    return HOLDS(host_unregister(memory + many - 9) == 0);
}

// A registration that ends while a stream is captured ends for the back end later, when the memory
// may be registered again. With `others` it gets other pages then than it had.
static bool is_unregistered_in_capture(char *memory, bool others)
{
    void *stream = nullptr, *graph = nullptr, *page_locked = nullptr;
    REQUIRE(cudaMallocHost(&page_locked, many) == 0 && cudaStreamCreate(&stream) == 0);
    REQUIRE(host_register(memory, many) == 0 && launches(memory, memory + 1, 1));
    REQUIRE((graph_calls::run<void *, int>("cudaStreamBeginCapture", stream, 2)) == 0);
    REQUIRE(host_unregister(memory) == 0 && host_register(memory, many) == 0);
    REQUIRE(!others || cudaFreeHost(page_locked) == 0);
    REQUIRE((graph_calls::run<void *, void **>("cudaStreamEndCapture", stream, &graph)) == 0);
    memory[1] = 'd';
    REQUIRE(launches(memory, memory + 1, 1) && (!reach() || memory[0] == 'd'));
    REQUIRE(others || cudaFreeHost(page_locked) == 0);
    memory[2] = 'c';
    REQUIRE(launches(memory, memory + 2, 1) && (!reach() || memory[0] == 'c'));
    return HOLDS(is_unregistered(memory, many) && cudaStreamDestroy(stream) == 0);
}

// Threads that come and go: a session of each; and a reset.
static bool is_threads(char *memory)
{
    for (unsigned i = 0; i < 3; i++) {
        bool good = false;
        REQUIRE(host_register(memory, many) == 0);
        for (unsigned t = 0; t < 2; t++) {
            std::thread([&] {
                memory[t] = static_cast<char>(i);
                // The second thread has launched nothing when it asks.
                good = t == 0 || has_attributes(memory, over_shm);
                good = good && launches(memory + 2, memory + t, 1);
                good = good && (!reach() || memory[2] == memory[t]);
            }).join();
            REQUIRE(good);
        }
        REQUIRE(cudaDeviceReset() == 0 && !is_shared(memory) && memory[1] == static_cast<char>(i));
        REQUIRE(fails(host_unregister(memory), 713));
    }
    return true;
}

// Threads write there while the memory moves, and while it moves back.
static bool is_written_meanwhile()
{
    constexpr unsigned threads = 3, words = 20;
    for (unsigned i = 0; i < 10; i++) {
        std::atomic<unsigned> begun{0}, lost{0}, rounds{0};
        std::atomic<bool> over{false};
        std::vector<std::thread> all;
        char *memory = new_pages();
        REQUIRE(memory && host_register(memory, many) == 0);
        for (unsigned t = 0; t < threads; t++)
            all.emplace_back([&, t] {
                std::uint64_t count[words] = {};
                for (unsigned w = 0; !over; w = (w + 1) % words) {
                    auto *word =
                        reinterpret_cast<volatile std::uint64_t *>(memory + 64 + w * 50000 + t * 8);
                    lost += *word != count[w];
                    *word = ++count[w];
                    begun += w == words - 1 && count[w] == 1;
                    rounds += w == words - 1;
                }
            });
        while (begun < threads)
            std::this_thread::yield();
        const bool good = launches(memory, memory + 1, 1);
        for (const unsigned before = rounds; rounds < before + threads;)
            std::this_thread::yield();
        const bool ended = host_unregister(memory) == 0 && !is_shared(memory);
        for (const unsigned before = rounds; rounds < before + threads;)
            std::this_thread::yield();
        over = true;
        for (std::thread &each : all)
            each.join();
        REQUIRE(good && ended && !lost && munmap(memory, many) == 0);
    }
    return true;
}

// A system call that writes there meanwhile is complete or fails, and the thread that moves the
// memory may be interrupted.
static char *volatile signalled;
static volatile sig_atomic_t handled;
static bool is_written_by_handlers()
{
    struct sigaction writes = {}, before = {};
    char *memory = new_pages();
    signalled = memory;
    handled = 0;
    writes.sa_handler = [](int) {
        handled = handled + 1;
        ++signalled[64];
    };
    REQUIRE(memory && host_register(memory, many) == 0);
    REQUIRE(sigaction(SIGUSR1, &writes, &before) == 0);
    at_each_step = [] { raise(SIGUSR1); };
    const bool good = launches(memory, memory + 1, 1), back = host_unregister(memory) == 0;
    at_each_step = nullptr;
    REQUIRE(good && back && sigaction(SIGUSR1, &before, nullptr) == 0);
    REQUIRE(memory[64] == handled && (handled > 0) == reach());
    return HOLDS(munmap(memory, many) == 0);
}

// ---------------------------------------------------------------------------------------- forks

// Runs in a child: 0 if it is as it should be.
template <typename F> static int child_of(F run)
{
    const pid_t child = fork();
    int status = -1;
    if (!child)
        std::_Exit(run());
    return waitpid(child, &status, 0) == child ? status : -1;
}

// The child has the bytes of the fork, and from then on both write for themselves.
static bool is_apart(char *memory, bool registered)
{
    int there[2], back[2], status = -1;
    char byte = 0;
    REQUIRE(pipe(there) == 0 && pipe(back) == 0);
    const std::vector<char> bytes = random_bytes(many, 7);
    std::memcpy(memory, bytes.data(), many);
    const pid_t child = fork();
    if (!child) {
        bool good = has(memory, bytes) && !is_shared(memory) && !is_shared(memory + many - 1);
        memory[1] = static_cast<char>(memory[1] + 1);
        good = write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1 && good;
        good = good && has(memory + 2, {bytes.begin() + 2, bytes.end()}) && memory[0] == bytes[0];
        good = good &&
               child_of([&] { return memory[1] == static_cast<char>(bytes[1] + 1) ? 0 : 1; }) == 0;
        std::_Exit(good ? 0 : 1);
    }
    REQUIRE(read(there[0], &byte, 1) == 1 && has(memory, bytes));
    std::memset(memory, 'p', many);
    REQUIRE(!registered || !reach() || (launches(memory, memory + 1, 1) && is_shared(memory)));
    REQUIRE(write(back[1], &byte, 1) == 1 && waitpid(child, &status, 0) == child && status == 0);
    for (const int fd : {there[0], there[1], back[0], back[1]})
        close(fd);
    return HOLDS(memory[0] == 'p' && memory[many - 1] == 'p');
}

// What a child has of its parent's is not shared, so its kernels do not get it.
static bool is_refused_to_a_child(char *memory)
{
    return HOLDS(child_of([&] {
                     return is_refused(memory) && host_unregister(memory) == 0 && !is_shared(memory)
                                ? 0
                                : 1;
                 }) == 0);
}

// Forks, while another thread's launches move memory and its ends move it back.
static bool is_forked_meanwhile()
{
    std::atomic<bool> over{false};
    bool good = true, others = true;
    char *memory = new_pages();
    REQUIRE(memory);
    std::memset(memory, 'm', many);
    std::thread other([&] {
        while (!over && others)
            others = host_register(memory, many) == 0 && launches(memory, memory + 1, 9) &&
                     host_unregister(memory) == 0;
    });
    for (unsigned i = 0; i < 100 && good; i++)
        good = child_of([&] {
                   for (std::size_t at = 0; at < many; at++)
                       if (memory[at] != 'm')
                           return 1;
                   return is_shared(memory) ? 2 : 0;
               }) == 0;
    over = true;
    other.join();
    return HOLDS(good && others && munmap(memory, many) == 0);
}

static bool forks()
{
    char *memory = new_pages();
    REQUIRE(memory && host_register(memory, many) == 0 && launches(memory, memory + 1, 1));
    alarm(60 * patience_times());
    REQUIRE(is_apart(memory, true) && is_refused_to_a_child(memory) && is_forked_meanwhile());
    REQUIRE(is_unregistered(memory, many) && is_apart(memory, false));
    return HOLDS(munmap(memory, many) == 0);
}

// ------------------------------------------------------------------------------ other mappings

// What shares the last page, and has moved with it, is not page-locked to the program: it may
// change those bytes as soon as a copy has returned.
static bool is_not_registered_beyond(char *device)
{
    constexpr std::size_t rest = page_bytes - 96;
    char *memory = new_pages(), *beyond = memory + many - rest;
    std::vector<char> back(rest);
    void *stream = nullptr;
    REQUIRE(memory && cudaStreamCreate(&stream) == 0 && host_register(memory, many - rest) == 0);
    REQUIRE(launches(memory, memory + 1, 1) && is_shared(beyond) == reach());
    std::memset(beyond, 'b', rest);
    stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(stream));
    std::atomic<bool> changed{false};
    std::thread opens([&, copies = gettid()] { // the copy has returned, or waits
        for (int asleep = 0; !changed && asleep < 100; usleep(1000))
            asleep = thread_state(getpid(), copies) == 'S' ? asleep + 1 : 0;
        stub_remote()->hold_stream(0);
    });
    int rc = stub_launch(device, device + rest, rest, stream);
    rc = rc ? rc : cudaMemcpyAsync(device, beyond, rest, H2D, stream);
    std::memset(beyond, 'a', rest);
    changed = true;
    opens.join();
    REQUIRE(rc == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    REQUIRE(cudaMemcpy(back.data(), device, rest, D2H) == 0 &&
            back == std::vector<char>(rest, 'b'));
    REQUIRE(host_unregister(memory) == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(munmap(memory, many) == 0);
}

// The program unmaps registered memory; what is there later is left alone.
static bool is_unmapped(char *device)
{
    char *memory = new_pages(), *kept = new_pages(), *used = new_pages();
    REQUIRE(memory && kept && used && host_register(memory, many) == 0);
    REQUIRE(launches(memory, memory + 1, 1) && munmap(memory + page_bytes, many - page_bytes) == 0);
    void *there = mmap(memory + page_bytes, page_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    REQUIRE(there == memory + page_bytes);
    std::memset(there, 'n', page_bytes);
    memory[9] = 'o';
    REQUIRE(child_of([&] { return memory[9] == 'o' && memory[page_bytes] == 'n' ? 0 : 1; }) == 0);
    REQUIRE(host_unregister(memory) == 0 && !is_shared(memory) && memory[9] == 'o');
    REQUIRE(memory[page_bytes] == 'n' && memory[2 * page_bytes - 1] == 'n');
    REQUIRE(munmap(memory, 2 * page_bytes) == 0);
    // All of it is gone when it is unregistered.
    REQUIRE(host_register(used, many) == 0 && launches(used, used + 1, 1));
    REQUIRE(munmap(used, many) == 0 && host_unregister(used) == 0);
    // Other memory may have the same place, and is registered.
    REQUIRE(mmap(used, many, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == used);
    REQUIRE(host_register(used, many) == 0 && host_register(kept, many) == 0);
    REQUIRE(is_used(used, kept, many, 8) && round_trip(device, used, many, 9));
    REQUIRE(is_unregistered(used, many) && is_unregistered(kept, many));
    return HOLDS(munmap(used, many) == 0 && munmap(kept, many) == 0);
}

// An allocator frees registered memory without a word: it gets zeros, and no memory of others.
static bool is_freed_alone()
{
    char *memory = new_pages();
    REQUIRE(memory && host_register(memory, many) == 0 && launches(memory, memory + 1, 1));
    std::memset(memory, 'f', many);
    // The program's own functions of that name, in application_in_place.cpp, come before it.
    int (*advise)(void *, std::size_t, int) = nullptr;
    *reinterpret_cast<void **>(&advise) = dlsym(RTLD_NEXT, "madvise");
    REQUIRE(advise && advise(memory + page_bytes, 2 * page_bytes, MADV_DONTNEED) == 0);
    REQUIRE(memory[page_bytes - 1] == 'f' && memory[3 * page_bytes] == 'f');
    for (std::size_t at = page_bytes; at < 3 * page_bytes; at++)
        REQUIRE(memory[at] == 0);
    char *const begin = memory;
    void *longer = mremap(memory, many, 2 * many, MREMAP_MAYMOVE);
    if (longer != MAP_FAILED) { // it has not moved
        REQUIRE(!reach());
        memory = static_cast<char *>(longer);
        REQUIRE(munmap(memory + many, many) == 0);
    }
    // Elsewhere it is found when its registration ends.
    char *there = new_pages(page_bytes);
    REQUIRE(there && mremap(memory + many / 2, page_bytes, page_bytes,
                            MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
    REQUIRE(there[9] == 'f' && is_shared(there) == reach());
    REQUIRE(memory[many - 1] == 'f' && munmap(memory, many) == 0);
    REQUIRE(host_unregister(begin) == 0 && !is_shared(there) && there[9] == 'f');
    return HOLDS(munmap(there, page_bytes) == 0);
}

// What is behind it in the shared file is other memory of this library's: neither a page that has
// moved alone nor the last one of several can be made longer.
static bool is_not_lengthened()
{
    void *(*remap)(void *, std::size_t, std::size_t, int, ...) = nullptr;
    *reinterpret_cast<void **>(&remap) = dlsym(RTLD_NEXT, "mremap");
    for (const std::size_t n : {page_bytes, 3 * page_bytes}) {
        char *memory = new_pages(n), *last = memory + n - page_bytes;
        REQUIRE(remap && memory && host_register(memory, n) == 0);
        REQUIRE(launches(memory, memory + 1, 1));
        if (reach()) {
            REQUIRE(remap(last, page_bytes, 2 * page_bytes, MREMAP_MAYMOVE) == MAP_FAILED);
            REQUIRE(errno == EFAULT && is_shared(last));
        }
        REQUIRE(is_unregistered(memory, n));
        void *longer = remap(last, page_bytes, 2 * page_bytes, MREMAP_MAYMOVE);
        REQUIRE(longer != MAP_FAILED && munmap(longer, 2 * page_bytes) == 0);
        REQUIRE(n == page_bytes || munmap(memory, n - page_bytes) == 0);
    }
    return true;
}

// At each step there may be no memory for a mapping.
static bool is_without_mappings()
{
    const std::vector<char> bytes = random_bytes(many, 10);
    bool moved = !reach();
    for (int step = 0; !moved; step++) {
        for (bool hole : {false, true}) {
            char *memory = new_pages();
            REQUIRE(memory && std::memcpy(memory, bytes.data(), many));
            REQUIRE(host_register(memory, many) == 0);
            leaves_hole = hole;
            steps_left = step;
            const int rc = stub_launch(memory, memory, 1, nullptr);
            moved = steps_left >= 0;
            steps_left = -1;
            REQUIRE(rc == (moved ? 0 : 801) && cudaGetLastError() == rc);
            REQUIRE(has(memory, bytes) && is_shared(memory) == moved);
            REQUIRE(launches(memory, memory, 1) && is_shared(memory) && has(memory, bytes));
            // On the way back
            steps_left = step;
            REQUIRE(host_unregister(memory) == 0);
            steps_left = -1;
            REQUIRE(has(memory, bytes));
            std::memset(memory, 'b', many);
            REQUIRE(host_register(memory, many) == 0 && launches(memory, memory, 1));
            REQUIRE(memory[many - 1] == 'b' && is_unregistered(memory, many));
            REQUIRE(munmap(memory, many) == 0);
        }
        REQUIRE(!moved || step > 2);
    }
    return true;
}

// What a client asks for that is not this library.
static int asks(std::uint64_t address, std::uint64_t n, std::uint64_t offset)
{
    return stub_remote()->call(
        IBX_EXT_NAME,
        Body().put(std::uint16_t{IBX_EXT_HOST_MAP_AT}).u64(address).u64(n).u64(offset));
}

// Nothing of the back end's is replaced, and nothing is where its stack grows to. After few tries a
// client learns no more about what is there.
static bool asks_for_places(char *memory)
{
    const char *back_end = std::getenv("STUB_BACK_END");
    std::ifstream maps("/proc/" + std::string(back_end) + "/maps");
    std::uint64_t stack = 0, taken_at = 0, last = 0;
    for (std::string line; std::getline(maps, line);) {
        last = std::stoull(line, nullptr, 16);
        taken_at = line.find("libc.so") != std::string::npos ? last : taken_at;
        stack = line.find("[stack]") != std::string::npos ? last : stack;
    }
    REQUIRE(stack && taken_at && host_register(memory, many) == 0);
    REQUIRE(launches(memory, memory + 1, 1)); // the shared file has pages
    const std::uint64_t there = reinterpret_cast<std::uintptr_t>(memory);
    const std::uint64_t edge = std::uint64_t{1} << 63, top = 0 - std::uint64_t{page_bytes};
    for (std::uint64_t each : {std::uint64_t{0}, std::uint64_t{page_bytes}, there + 1, edge, top,
                               stack - (64 << 20), stack, stack - page_bytes})
        REQUIRE(asks(each, page_bytes, 0) == 801);
    REQUIRE(asks(there, 0, 0) == 801 && asks(there, 1, 0) == 801);
    REQUIRE(asks(there, page_bytes, 1) == 801 && asks(there, page_bytes, IBX_EXT_OWN_PAGES) == 801);
    REQUIRE(asks(taken_at, page_bytes, 0) == 801 && cudaDeviceSynchronize() == 0);
    const std::uint64_t elsewhere = there / (std::uint64_t{1} << 30) << 30;
    REQUIRE(!reach() || asks(elsewhere - (std::uint64_t{8} << 30), page_bytes, 0) == 0);
    for (unsigned i = 0; i < 8; i++)
        REQUIRE(asks(taken_at, page_bytes, 0) == 801);
    REQUIRE(asks(elsewhere - (std::uint64_t{9} << 30), page_bytes, 0) == 801);
    return HOLDS(host_unregister(memory) == 0);
}

// While io_uring has pinned memory, pages may be among it: they stay.
bool is_pinned_by_others()
{
    char *memory = new_pages(), *other = new_pages(page_bytes);
    REQUIRE(memory && other && host_register(memory, many) == 0);
    io_uring_params p = {};
    const int ring = static_cast<int>(syscall(SYS_io_uring_setup, 1, &p));
    const iovec buffer = {other, page_bytes};
    if (ring >= 0) { // else the kernel has none, or does not allow it
        REQUIRE(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0);
        REQUIRE(is_refused(memory) && !is_shared(memory));
        REQUIRE(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, nullptr, 0) == 0);
        close(ring);
    }
    REQUIRE(!over_shm || (launches(memory, memory + 1, 1) && is_shared(memory)));
    REQUIRE(host_unregister(memory) == 0);
    return HOLDS(munmap(memory, many) == 0 && munmap(other, page_bytes) == 0);
}

} // namespace registered

bool registered_in_kernels()
{
    using namespace registered;
    REQUIRE(cudaGetLastError() == 0);
    char *device = device_memory(), *to = new_pages(), *from = new_pages();
    REQUIRE(is_unaligned() && device && to && from && is_registered_again(device, to, from));
    REQUIRE(has_device_pointer() && has_device_pointer_later());
    REQUIRE(stays(device) && has_neighbours(to));
    REQUIRE(is_unregistered_in_capture(to, false) && is_unregistered_in_capture(to, true));
    REQUIRE(is_copied_at_once(device) && is_not_registered_beyond(device));
    REQUIRE(is_unmapped(device) && cudaFree(device) == 0 && is_threads(from));
    return HOLDS(munmap(to, many) == 0 && munmap(from, many) == 0);
}

bool registered_beside_others()
{
    using namespace registered;
    REQUIRE(cudaGetLastError() == 0);
    return is_written_meanwhile() && is_written_by_handlers() && is_freed_alone() &&
           is_not_lengthened() && is_pinned_by_others() && is_without_mappings();
}

bool registered_and_forks()
{
    return cudaGetLastError() == 0 && registered::forks();
}

bool registered_anywhere()
{
    using namespace registered;
    char *memory = new_pages();
    REQUIRE(cudaGetLastError() == 0 && memory);
    bool good = false;
    std::thread([&] { good = asks_for_places(memory); }).join(); // in a session of its own
    return HOLDS(good && munmap(memory, many) == 0);
}

// The back end pins no more than it may.
bool registered_beyond_pins()
{
    using namespace registered;
    char *few = new_pages(page_bytes), *memory = new_pages(8 * many);
    REQUIRE(cudaGetLastError() == 0 && few && memory && host_register(few, page_bytes) == 0);
    REQUIRE(host_register(memory, 8 * many) == 0);
    REQUIRE(launches(few, few + 1, 1) && is_refused(memory) && !is_shared(memory));
    REQUIRE(launches(few, few + 1, 1) && is_unregistered(few, page_bytes));
    return HOLDS(host_unregister(memory) == 0);
}
