// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Forked children, threads that connect, a first thread that ends, and a back end that is killed.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static void say(int to, const char *word)
{
    if (write(to, word, std::strlen(word)) < 0)
        std::_Exit(1);
}

// A child that calls exit(3), with output that it has not written yet, and with exit handlers of
// its own and of libraries.
bool forked_exit()
{
    static int ends[2];
    REQUIRE(device_memory() && pipe(ends) == 0);
    std::fflush(nullptr);
    const pid_t child = fork();
    if (!child) {
        alarm(10 * patience_times());
        std::ios_base::sync_with_stdio(false);
        dup2(ends[1], STDOUT_FILENO);
        std::cout << "stream ";
        std::wcout << L"wide ";
        std::fputs("buffered", fdopen(ends[1], "w"));
        std::atexit([] { say(ends[1], "handler "); });
        stub_at_end([] { say(ends[1], "library "); });
        std::exit(7);
    }
    close(ends[1]);
    std::string said;
    char some[100];
    for (ssize_t n; (n = read(ends[0], some, sizeof(some))) > 0;)
        said.append(some, static_cast<std::size_t>(n));
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    return HOLDS(said == "handler library stream wide buffered");
}

// GVirtuS's destructors close the connection after those of the program's own libraries have run.
bool closes_at_exit()
{
    REQUIRE(device_memory() && cudaDeviceSynchronize() == 0);
    stub_at_end([] {
        alarm(10 * patience_times());
        stub_close();
    });
    return true;
}

// Threads that have ended are no reason to leave GVirtuS's destructors out.
bool threads_have_ended()
{
    std::thread([] { device_memory(); }).join();
    REQUIRE(device_memory() && cudaDeviceSynchronize() == 0);
    stub_at_end([] {
        stub_close();
        std::_Exit(0);
    });
    return false; // the exit handler makes that a success
}

// Others are in calls as main() returns, or about to connect, until the process ends: nothing of
// theirs is freed.
bool threads_go_on()
{
    static std::atomic<unsigned> began;
    static const auto begin = [](auto call) {
        std::thread([call] {
            for (bool first = true;; first = false) {
                call();
                began += first;
            }
        }).detach();
    };
    begin([device = device_memory(1u << 20), memory = std::vector<char>(1u << 20)] {
        cudaMemcpy(device, memory.data(), memory.size(), H2D);
    });
    begin([] { std::thread([] { cudaGetLastError(); }).join(); });
    std::thread([] { // one that rests
        cudaGetLastError();
        began++;
        pause();
    })
        .detach();
    std::thread([] { // and one that has the lock of a stream
        flockfile(stdin);
        began++;
        pause();
    })
        .detach();
    stub_at_end([] { std::_Exit(1); });
    while (began < 4)
        std::this_thread::yield();
    return true;
}

// The destructors of all libraries have run.
static std::atomic<bool> waits_for_destructors, destroyed;

// The library calls it behind all of them.
extern "C" int fcloseall()
{
    using Close = int();
    static auto *next = reinterpret_cast<Close *>(dlsym(RTLD_NEXT, "fcloseall"));
    for (destroyed = true; waits_for_destructors;)
        std::this_thread::yield();
    return next();
}

// The same with one that does not connect before the destructors have run.
bool thread_connects_last()
{
    static std::atomic<bool> rests;
    std::thread([] {
        cudaGetLastError();
        rests = true;
        pause();
    }).detach();
    std::thread([] {
        while (!destroyed)
            std::this_thread::yield();
        std::_Exit(cudaGetLastError() != 0);
    }).detach();
    stub_at_end([] { std::_Exit(1); });
    while (!rests)
        std::this_thread::yield();
    waits_for_destructors = true;
    return true;
}

// A thread that has returned waits until its launches were answered, and closes its connection
// then: until then nothing that they use is freed. The back end stands still meanwhile.
bool thread_ends_late()
{
    static std::atomic<pid_t> ending;
    struct Last {
        ~Last() { ending = gettid(); }
    };
    REQUIRE(device_memory() && cudaDeviceSynchronize() == 0);
    std::thread([] {
        static thread_local Last last;
        static_cast<void>(&last);
        char *device = device_memory();
        bool good = stub_launch(device, device + 1000, 1000, nullptr) == 0;
        good = good && cudaDeviceSynchronize() == 0;
        stop(std::atoi(std::getenv("STUB_BACK_END")));
        if (!good || stub_launch(device, device + 1000, 1000, nullptr))
            std::_Exit(1);
    }).detach();
    stub_at_end([] { std::_Exit(1); });
    while (!ending || thread_state(getpid(), ending) != 'S')
        std::this_thread::yield();
    return true;
}

// Threads in calls in a forked child. Its parent has no threads yet: with threads
// AddressSanitizer's allocator might be locked in the child.
bool threads_go_on_in_child()
{
    static std::atomic<bool> called;
    const pid_t child = fork();
    if (!child) {
        alarm(10 * patience_times());
        std::thread([] {
            cudaGetLastError();
            called = true;
            pause();
        }).detach();
        while (!called)
            std::this_thread::yield();
        stub_at_end([] { std::_Exit(1); });
        std::exit(7);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

// The first thread ends, and the process goes on with others; /proc/self shows little of it then.
bool first_thread_ends()
{
    std::thread([] {
        while (access("/proc/self/fd/0", F_OK) == 0)
            std::this_thread::yield();
        char *device = device_memory();
        std::vector<char> memory(1000000);
        std::_Exit(device && round_trip(device, memory.data(), memory.size(), 1) ? 0 : 1);
    }).detach();
    pthread_exit(nullptr);
}

// pthread_cancel() of a thread that enqueues the process's first function of the host, for which
// the library begins a thread: both are made, and so are those of other threads.
bool cancelled_thread()
{
    using LaunchHost = int(void *stream, void (*function)(void *), void *argument);
    static std::atomic<int> calls;
    static const auto launch = [] {
        return preloaded<LaunchHost>("cudaLaunchHostFunc")(
            nullptr, [](void *) { calls++; }, nullptr);
    };
    pthread_t thread;
    const auto run = [](void *good) -> void * {
        const char *device = device_memory(); // connects, as any first call
        pthread_cancel(pthread_self());
        *static_cast<bool *>(good) = device && launch() == 0;
        for (;;)
            pthread_testcancel();
    };
    bool good = false;
    REQUIRE(cudaGetLastError() == 0); // the back end has CUDA's runtime
    REQUIRE(!pthread_create(&thread, nullptr, run, &good) && !pthread_join(thread, nullptr));
    REQUIRE(good && launch() == 0);
    return HOLDS(cudaDeviceSynchronize() == 0 && calls == 2);
}

// The same in its first call, which connects: others that begin do not wait for it, nor does a
// fork.
bool cancelled_in_first_call()
{
    static std::atomic<int> good;
    const auto run = [](void *) -> void * {
        pthread_cancel(pthread_self());
        void *device = nullptr;
        good += cudaMalloc(&device, 4096) == 0;
        for (;;)
            pthread_testcancel();
    };
    for (int i = 1; i <= 3; i++) {
        pthread_t thread;
        REQUIRE(!pthread_create(&thread, nullptr, run, nullptr) && !pthread_join(thread, nullptr));
        REQUIRE(good == i);
    }
    return HOLDS(device_memory() != nullptr);
}

#ifdef __x86_64__
constexpr bool is_x86_64 = true;
#else
constexpr bool is_x86_64 = false;
#endif
constexpr unsigned at_once = 4;
static thread_local bool gathers, is_refused; // at its next connect(2)
static std::atomic<unsigned> gathered;
static std::atomic<bool> held_others; // a thread connected while others had to wait for it

static void gather()
{
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::seconds(20 * patience_times());
    gathers = false;
    if (preloaded<bool()>("ibx_frontend_alone")()) {
        held_others = true;
        return;
    }
    for (gathered++; gathered < at_once && Clock::now() < until;)
        usleep(100);
}

// Called in place of the C library's, also by the plugin.
extern "C" int connect(int fd, const sockaddr *to, socklen_t n)
{
    using Connect = int(int, const sockaddr *, socklen_t);
    static auto *next = reinterpret_cast<Connect *>(dlsym(RTLD_NEXT, "connect"));
    if (gathers)
        gather();
    errno = is_refused ? ECONNREFUSED : errno;
    return is_refused ? -1 : next(fd, to, n);
}

// GVirtuS's front end makes one at a time; the connections themselves are made beside each other.
bool threads_connect_at_once()
{
    REQUIRE(cudaDeviceSynchronize() == 0);
    std::vector<std::thread> threads;
    std::atomic<unsigned> good{0};
    for (unsigned i = 0; i < at_once; i++)
        threads.emplace_back([&] {
            gathers = true;
            good += cudaDeviceSynchronize() == 0;
        });
    for (std::thread &thread : threads)
        thread.join();
    return HOLDS(good == at_once && gathered == at_once && !held_others);
}

// What GVirtuS reads for each connection is read once, and each time once the file has changed. On
// other processors it is always read.
bool endpoint_is_kept()
{
    char path[] = "/tmp/ibx-endpoint-XXXXXX";
    const int fd = mkstemp(path);
    const auto writes = [fd](const char *text) {
        const auto n = static_cast<ssize_t>(std::strlen(text));
        return !ftruncate(fd, 0) && pwrite(fd, text, std::strlen(text), 0) == n;
    };
    REQUIRE(fd >= 0 && stub_endpoint("/") == -1 && writes("17"));
    for (int i = 0; i < 3; i++)
        REQUIRE(stub_endpoint(path) == 17);
    REQUIRE(stub_endpoints_read() == 2 || !is_x86_64);
    REQUIRE(writes("5018") && stub_endpoint(path) == 5018 && stub_endpoint(path) == 5018);
    REQUIRE(writes("none") && stub_endpoint(path) == -1 && stub_endpoint(path) == -1);
    REQUIRE(writes("5018") && stub_endpoint(path) == 5018);
    REQUIRE(stub_endpoints_read() == 7 || !is_x86_64);
    close(fd);
    return HOLDS(unlink(path) == 0 && stub_endpoint(path) == -1);
}

// A fork waits for the threads that connect, and not for those that begin to connect meanwhile.
bool forks_among_beginners()
{
    constexpr unsigned chains = 8, forks = 10, most = 100;
    REQUIRE(cudaDeviceSynchronize() == 0);
    std::vector<std::thread> threads;
    std::atomic<unsigned> begun{0};
    std::atomic<bool> over{false};
    for (unsigned i = 0; i < chains; i++)
        threads.emplace_back([&] {
            while (!over)
                std::thread([&] { begun += cudaDeviceSynchronize() == 0; }).join();
        });
    unsigned meanwhile = 0;
    bool good = true;
    for (unsigned i = 0; i < forks && good && meanwhile < most; i++) {
        const unsigned before = begun;
        const pid_t child = fork();
        if (!child)
            _exit(0);
        meanwhile = begun - before;
        int status = -1;
        good = child > 0 && waitpid(child, &status, 0) == child && !status;
    }
    over = true;
    for (std::thread &thread : threads)
        thread.join();
    return HOLDS(good && meanwhile < most);
}

// Ends the process.
bool thread_is_refused()
{
    REQUIRE(cudaDeviceSynchronize() == 0);
    std::thread([] {
        is_refused = true;
        cudaDeviceSynchronize();
        std::_Exit(0);
    }).join();
    return false;
}

// exit(3) calls this. Other threads may do what they would not leave to this one.
static void at_end()
{
    for (int i = 0; i < 300; i++)
        usleep(1000);
    std::cerr << "all was called" << std::endl;
}

// Ends the process, by one thread at a time.
bool threads_are_refused()
{
    REQUIRE(cudaDeviceSynchronize() == 0);
    REQUIRE(!atexit(at_end));
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < at_once; i++)
        threads.emplace_back([] {
            gathers = is_refused = true;
            cudaDeviceSynchronize();
        });
    for (std::thread &thread : threads)
        thread.join();
    return false;
}

// The child has a connection of its own, and the parent's stays in order.
bool forked()
{
    char *device = device_memory(), *page_locked;
    std::vector<char> memory(1000000);
    REQUIRE(round_trip(device, memory.data(), memory.size(), 1));
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&page_locked), memory.size()) == 0);
    REQUIRE(round_trip(device, page_locked, memory.size(), 77));
    for (unsigned i = 0; i < 3; i++) {
        pid_t child = fork();
        if (!child) {
            char byte = 1, *nowhere = reinterpret_cast<char *>(std::uintptr_t{4096});
            bool good = cudaMemcpy(nowhere, &byte, 1, H2D) != 0;
            char *own = device_memory();
            good = good && own && round_trip(own, memory.data(), memory.size(), 2 + i);
            good = good && cudaFreeHost(page_locked) == 0; // as destructors would, at its exit
            void *mine;
            good = good && cudaMallocHost(&mine, memory.size()) == 0;
            good = good && round_trip(own, static_cast<char *>(mine), memory.size(), 9);
            std::_Exit(good ? 0 : 1);
        }
        REQUIRE(round_trip(device, memory.data(), memory.size(), 10 + i));
        int status = -1;
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        REQUIRE(round_trip(device, memory.data(), memory.size(), 20 + i));
        random_fill(memory.data(), memory.size(), 77);
        REQUIRE(!std::memcmp(page_locked, memory.data(), memory.size()));
    }
    return true;
}

// A fork while other threads register and free: the child may do so as well.
bool forked_meanwhile()
{
    REQUIRE(device_memory());
    std::vector<char> memory(64 * 4096);
    for (std::size_t i = 2; i < 64; i++)
        REQUIRE(host_register(&memory[i * 4096], 4096, 0) == 0);
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over)
            host_unregister(&memory[0]); // takes the list's lock and nothing else
    });
    bool good = true;
    for (unsigned i = 0; i < 100 && good; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(10 * patience_times());
            std::_Exit(host_unregister(&memory[4096]) == 713 &&
                               host_unregister(&memory[2 * 4096]) == 0
                           ? 0
                           : 1);
        }
        int status = -1;
        good = waitpid(child, &status, 0) == child && status == 0;
    }
    over = true;
    other.join();
    return HOLDS(good);
}

// A thread's first call connects, and holds locks meanwhile that a child would never get. As with
// GVirtuS, the program is connected before.
bool forked_at_first_calls()
{
    REQUIRE(cudaDeviceSynchronize() == 0);
    std::vector<std::thread> threads;
    std::vector<pid_t> children;
    std::atomic<unsigned> left{4};
    std::atomic<bool> forked{false}; // AddressSanitizer has a lock as a thread ends (asan_forks.c)
    for (unsigned i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            cudaDeviceSynchronize();
            left--;
            while (!forked)
                usleep(100);
        });
    }
    while ((left && children.size() < 16) || children.size() < 4) {
        const pid_t child = fork();
        if (!child) {
            alarm(10 * patience_times());
            std::_Exit(cudaDeviceSynchronize() != 0);
        }
        children.push_back(child);
    }
    forked = true;
    for (std::thread &thread : threads)
        thread.join();
    bool good = true;
    for (const pid_t child : children) {
        int status = -1;
        good = waitpid(child, &status, 0) == child && status == 0 && good;
    }
    return HOLDS(good);
}

// How often a fork has waited in vain for threads that connect.
static std::atomic<unsigned> forks_late;

// A fork waits for threads that connect, and a child that is forked beside them may hang. So on a
// slow machine it waits longer than in a program, but not if a program would not wait at all.
extern "C" int pthread_rwlock_clockwrlock(pthread_rwlock_t *lock, clockid_t clock,
                                          const timespec *until) noexcept
{
    using Lock = int(pthread_rwlock_t *, clockid_t, const timespec *);
    static auto *next = reinterpret_cast<Lock *>(dlsym(RTLD_NEXT, "pthread_rwlock_clockwrlock"));
    timespec now, later = *until;
    clock_gettime(clock, &now);
    const long ms = (until->tv_sec - now.tv_sec) * 1000 + (until->tv_nsec - now.tv_nsec) / 1000000;
    later.tv_sec += ms * 10 * patience_times() / 1000;
    const int rc = next(lock, clock, &later);
    forks_late += rc == ETIMEDOUT;
    return rc;
}

// A thread's first call may take as long as it likes.
bool forked_beside_first_call()
{
    static std::atomic<bool> over;
    using LaunchHost = int(void *stream, void (*function)(void *), void *argument);
    const auto wait = [](void *) {
        while (!over)
            usleep(100);
    };
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(nullptr, wait, nullptr) == 0);
    const std::uint64_t before = stub_calls();
    std::thread first([] { cudaDeviceSynchronize(); });
    while (stub_calls() == before)
        usleep(100);
    const pid_t child = fork();
    if (!child)
        _exit(0);
    over = true;
    first.join();
    int status = -1;
    return HOLDS(waitpid(child, &status, 0) == child && status == 0 && !forks_late);
}

// A thread that a call of GVirtuS's own has connected does not connect any more, however long its
// first call of the library takes.
bool forked_beside_connected()
{
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(stream));
    REQUIRE(cudaMemsetAsync(device_memory(8), 1, 8, stream) == 0);
    std::atomic<pid_t> caller{0};
    std::atomic<int> rc{-1};
    std::thread other([&] {
        stub_remote()->mode(); // no function of the library's
        caller = gettid();
        rc = cudaStreamSynchronize(stream);
    });
    for (int asleep = 0; rc == -1 && asleep < 50; usleep(1000))
        asleep = caller && thread_state(getpid(), caller) == 'S' ? asleep + 1 : 0;
    const pid_t child = fork();
    if (!child)
        _exit(0);
    const bool beside = rc == -1;
    stub_remote()->release_stream(reinterpret_cast<std::uintptr_t>(stream));
    other.join();
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    return HOLDS(beside && rc == 0 && !forks_late && cudaStreamDestroy(stream) == 0);
}

// ... which a thread that connects changes meanwhile.
bool looks_under_the_lock()
{
    int *memory = nullptr;
    const unsigned before = stub_unlocked_looks();
    const std::uint64_t calls = stub_calls();
    std::vector<std::thread> threads;
    std::atomic<unsigned> good{0};
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&] { good += cudaDeviceSynchronize() == 0; });
    for (std::thread &thread : threads)
        thread.join();
    REQUIRE(good == 8 && cudaMalloc(reinterpret_cast<void **>(&memory), 4) == 0);
    return HOLDS(cudaFree(memory) == 0 && stub_calls() > calls && stub_unlocked_looks() == before);
}

// A fork while another thread looks through GVirtuS's connections, as each of its calls does.
bool forked_beside_a_look()
{
    auto *lock = static_cast<std::mutex *>(dlsym(RTLD_DEFAULT, "gFrontendMutex"));
    REQUIRE(lock && cudaGetLastError() == 0); // it has a connection
    std::atomic<int> state{0};
    std::thread other([&] {
        std::lock_guard<std::mutex> guard(*lock);
        state = 1;
        while (state == 1)
            std::this_thread::yield();
    });
    while (!state)
        std::this_thread::yield();
    const pid_t child = fork();
    if (!child) {
        alarm(10 * patience_times());
        _exit(cudaDeviceSynchronize());
    }
    state = 2;
    other.join();
    int status = -1;
    return HOLDS(waitpid(child, &status, 0) == child && status == 0 &&
                 cudaDeviceSynchronize() == 0);
}

// The driver kills the back end when it reads the byte; the copy in hand may be any.
bool killed()
{
    char *device = device_memory();
    std::vector<char> memory(device_bytes_each, 'k');
    char *page_locked;
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&page_locked), device_bytes_each) == 0);
    std::memset(page_locked, 'k', device_bytes_each);
    stub_remote()->slow(2000);
    REQUIRE(write(STDOUT_FILENO, "k", 1) == 1);
    int rc = 0;
    for (unsigned i = 0; !rc; i++)
        rc = i % 2 ? cudaMemcpy(i % 3 ? page_locked : memory.data(), device, memory.size(), D2H)
                   : cudaMemcpy(device, i % 3 ? page_locked : memory.data(), memory.size(), H2D);
    REQUIRE(rc == 999);
    std::fprintf(stderr, "the first failure\n"); // and why has been said by now
    REQUIRE(cudaMemcpy(device, memory.data(), 100, H2D) == 999);
    REQUIRE(cudaMemcpy(memory.data(), device, memory.size(), D2H) != 0);
    void *more;
    REQUIRE(cudaMalloc(&more, 100) != 0);
    std::memset(page_locked, 'z', device_bytes_each); // it is the application's until it frees it
    REQUIRE(cudaMallocHost(&more, 100) == 0 && cudaFreeHost(more) == 0);
    REQUIRE(cudaFreeHost(page_locked) == 0);
    // A library that is loaded now gets a handle: GVirtuS uses it, even if it is null.
    static const char fat[64] = "\x50\xed\x55\xba\1\0\x10";
    const struct {
        std::uint32_t magic, version;
        const void *fat;
        void *unused;
    } wrapper = {0x466243b1, 1, fat, nullptr};
    stub_registers(sizeof(fat));
    REQUIRE(preloaded<void **(const void *)>("__cudaRegisterFatBinary")(&wrapper));
    return cudaMalloc(&more, 100) != 0;
}
