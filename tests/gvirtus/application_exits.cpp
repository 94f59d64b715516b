// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Handlers of signals that end the process while they have interrupted their thread in a call of
// CUDA, where it may have any lock of the preload library and of the plugin: natively such programs
// end at once.
//
// The functions of locks below, and the two in application_modules.cpp, are called in place of the
// C library's. The signal is raised when the thread has just got a lock at a place where it has not
// got one before: that is a moment. frontend_exits.cpp names the number of the moment.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>

namespace in_handlers
{

constexpr int interrupted_status = 42, unloading = 4; // cudaErrorCudartUnloading
constexpr std::size_t places_most = 512;
constexpr std::size_t bytes = 2u << 20;

// Of the thread that is to be interrupted; 0: no signal is to come.
static std::atomic<pid_t> watched;
static void *places[places_most];
static unsigned place_count, moment, moments;
static int raises;

static bool is_ours(const void *place)
{
    Dl_info info;
    return dladdr(place, &info) && info.dli_fname &&
           (std::strstr(info.dli_fname, "libibx-frontend.so") ||
            std::strstr(info.dli_fname, "libgvirtus-communicators-rdma.so"));
}

// Handlers wait while the thread has a lock of managed memory, and run outside of it.
static bool comes_now()
{
    sigset_t blocked;
    return pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 && !sigismember(&blocked, raises);
}

// The thread has a lock that it has taken at this place.
static void pass(void *place)
{
    for (unsigned i = 0; i < place_count; i++)
        if (places[i] == place)
            return;
    if (place_count == places_most)
        std::abort();
    places[place_count++] = place;
    watched = 0; // dladdr() takes locks, too
    const bool now = is_ours(place) && comes_now() && ++moments == moment;
    if (now)
        raise(raises);
    else
        watched = gettid();
}

} // namespace in_handlers

void got_lock(void *place)
{
    if (in_handlers::watched && in_handlers::watched == gettid())
        in_handlers::pass(place);
}

extern "C" int pthread_mutex_trylock(pthread_mutex_t *lock) noexcept
{
    static auto *next =
        reinterpret_cast<int (*)(pthread_mutex_t *)>(dlsym(RTLD_NEXT, "pthread_mutex_trylock"));
    const int rc = next(lock);
    if (!rc)
        got_lock(__builtin_return_address(0));
    return rc;
}

extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t *lock) noexcept
{
    static auto *next =
        reinterpret_cast<int (*)(pthread_rwlock_t *)>(dlsym(RTLD_NEXT, "pthread_rwlock_rdlock"));
    const int rc = next(lock);
    if (!rc)
        got_lock(__builtin_return_address(0));
    return rc;
}

extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t *lock) noexcept
{
    static auto *next =
        reinterpret_cast<int (*)(pthread_rwlock_t *)>(dlsym(RTLD_NEXT, "pthread_rwlock_wrlock"));
    const int rc = next(lock);
    if (!rc)
        got_lock(__builtin_return_address(0));
    return rc;
}

namespace in_handlers
{

static std::string wish(const char *name)
{
    const char *value = std::getenv(name);
    return value ? value : "";
}

static std::atomic<bool> exits; // by the handler

// What a program owns, and gives back as its static objects are destroyed.
struct Owned {
    char *device = nullptr, *host = nullptr;
    void *stream = nullptr, *event = nullptr;
    ~Owned()
    {
        if (!exits || wish("IBX_EXITS_HOW") == "twice")
            return;
        void *more = nullptr;
        char byte = 0;
        const struct {
            const char *name;
            int rc;
        } calls[] = {
            {"cudaLaunchKernel", device ? stub_launch(device + 8, device, 8, stream) : unloading},
            {"cudaMemcpy", device ? cudaMemcpy(device, &byte, 1, H2D) : unloading},
            {"cudaFree", cudaFree(device)},
            {"cudaFreeHost", cudaFreeHost(host)},
            {"cudaStreamDestroy", stream ? cudaStreamDestroy(stream) : unloading},
            {"cudaEventDestroy", event ? cudaEventDestroy(event) : unloading},
            {"cudaMalloc", cudaMalloc(&more, 100)},
            {"cudaMallocHost", cudaMallocHost(&more, 100)},
            {"cudaHostRegister", host_register(&byte, 1)},
            {"cudaHostUnregister", host_unregister(&byte)},
            {"cudaDeviceSynchronize", cudaDeviceSynchronize()},
            {"cudaGetLastError", cudaGetLastError()},
            {"cudaDeviceReset", cudaDeviceReset()},
        };
        for (const auto &call : calls)
            if (call.rc != unloading) {
                std::fprintf(stderr, "%s returned %d in a destructor\n", call.name, call.rc);
                std::_Exit(1);
            }
    }
};

// From now on the signal comes at the next moment of that number.
static void watch(const char *wanted, int number)
{
    place_count = moments = 0;
    moment = static_cast<unsigned>(std::atoi(wish(wanted).c_str()));
    raises = number;
    watched = gettid();
}

static void ends(int number)
{
    const std::string how = wish("IBX_EXITS_HOW");
    exits = true;
    alarm(3 * patience_times());
    if (how == "twice" && number == SIGUSR1)
        watch("IBX_EXITS_MOMENT", SIGUSR2); // in the middle of exit(3)
    if (how == "at once")
        _exit(interrupted_status);
    if (how == "quickly")
        std::quick_exit(interrupted_status);
    std::exit(number == SIGUSR1 && how == "twice" ? 0 : interrupted_status);
}

using LaunchHost = int(void *stream, void (*function)(void *), void *argument);
using Allocate = int(void **address, std::size_t n, void *stream);
using Free = int(void *address, void *stream);

// Calls of all kinds, over a connection that there is.
static bool works(Owned *owned)
{
    static std::vector<char> memory(bytes), registered(bytes);
    void *more = nullptr;
    char *device = owned->device = device_memory(2 * bytes);
    REQUIRE(device && cudaMallocHost(reinterpret_cast<void **>(&owned->host), bytes) == 0);
    char *host = owned->host;
    REQUIRE(cudaStreamCreate(&owned->stream) == 0 && cudaEventCreate(&owned->event) == 0);
    for (const std::size_t n : {std::size_t{100}, bytes})
        REQUIRE(round_trip(device, memory.data(), n, 1));
    REQUIRE(host_register(registered.data(), bytes) == 0);
    REQUIRE(cudaMemset(device, 1, 100) == 0 && cudaEventRecord(owned->event, owned->stream) == 0);
    REQUIRE(stub_launch(device + 8, device, 8, owned->stream) == 0);
    for (char *each : {host, registered.data()}) {
        REQUIRE(cudaMemcpyAsync(device, each, bytes, H2D, owned->stream) == 0);
        REQUIRE(cudaMemcpyAsync(each, device, bytes, D2H, owned->stream) == 0);
    }
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(
                owned->stream, [](void *) {}, nullptr) == 0);
    REQUIRE(cudaStreamWaitEvent(nullptr, owned->event, 0) == 0);
    REQUIRE(cudaStreamSynchronize(owned->stream) == 0 && cudaEventSynchronize(owned->event) == 0);
    REQUIRE(host_unregister(registered.data()) == 0);
    REQUIRE(preloaded<Allocate>("cudaMallocAsync")(&more, 100, owned->stream) == 0);
    REQUIRE(preloaded<Free>("cudaFreeAsync")(more, owned->stream) == 0);
    REQUIRE(cudaStreamBeginCapture(owned->stream, 0) == 0);
    REQUIRE(cudaStreamEndCapture(owned->stream, &more) == 0);
    REQUIRE(preloaded<int(void *)>("cudaGraphDestroy")(more) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && cudaStreamQuery(nullptr) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

static bool gives_back(Owned *owned)
{
    REQUIRE(cudaStreamDestroy(owned->stream) == 0 && cudaEventDestroy(owned->event) == 0);
    REQUIRE(cudaFreeHost(owned->host) == 0 && cudaFree(owned->device) == 0);
    *owned = Owned();
    return HOLDS(cudaDeviceReset() == 0);
}

// Without the preload library, by GVirtuS's functions alone.
static bool works_alone()
{
    std::vector<char> memory(bytes);
    char *device = device_memory(bytes);
    void *stream = nullptr;
    for (const std::size_t n : {std::size_t{100}, bytes})
        REQUIRE(device && round_trip(device, memory.data(), n, 1));
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamSynchronize(stream) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaDeviceSynchronize() == 0);
}

static bool works_and_frees(const std::string &mode)
{
    static Owned &none = *new Owned; // never destroyed
    Owned *last = &none, *first = &none;
    if (mode == "frees") { // destroyed after what the libraries register in the first call
        static Owned object;
        last = &object;
    }
    if (wish("IBX_EXITS_HOW") != "twice")
        watch("IBX_EXITS_MOMENT", SIGUSR1);
    REQUIRE(cudaGetLastError() == 0);
    if (mode == "closes" || mode == "alone")
        stub_at_end(stub_close);
    if (mode == "alone")
        return works_alone();
    if (mode == "frees") { // and before
        static Owned object;
        first = &object;
    }
    REQUIRE(works(last) && works(first));
    if (wish("IBX_EXITS_HOW") == "twice") { // outside of all calls, with work under way
        REQUIRE(stub_launch(first->device + 8, first->device, 8, first->stream) == 0);
        REQUIRE(cudaMemcpyAsync(first->device, first->host, bytes, H2D, first->stream) == 0);
        raise(SIGUSR1);
    }
    REQUIRE(gives_back(first));
    watched = 0;
    *last = Owned();
    return true;
}

static sigjmp_buf outside;

static void leaves(int number)
{
    exits = true;
    alarm(3 * patience_times());
    siglongjmp(outside, number);
}

} // namespace in_handlers

// Its exit status is 42 if the moment has come, and 0 if there are not so many.
bool exits_in_handler()
{
    using namespace in_handlers;
    const std::string mode = wish("IBX_EXITS_MODE");
    REQUIRE(signal(SIGUSR1, ends) != SIG_ERR && signal(SIGUSR2, ends) != SIG_ERR);
    const pid_t child = mode == "child" ? fork() : 0;
    if (child) {
        int status = 1;
        REQUIRE(waitpid(child, &status, 0) == child);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    if (mode != "thread")
        return works_and_frees(mode);
    bool good = false;
    std::thread([&] { good = works_and_frees(mode); }).join();
    return good;
}

// The handler interrupts a search among the managed memory, some of which a destructor frees.
bool exits_in_search()
{
    using namespace in_handlers;
    static struct Managed {
        char *memory = nullptr;
        ~Managed()
        {
            if (const int rc = cudaFree(memory); rc && rc != unloading) {
                std::fprintf(stderr, "cudaFree returned %d in a destructor\n", rc);
                std::_Exit(1);
            }
        }
    } managed;
    char byte = 0;
    REQUIRE((managed.memory = managed_memory(4096)) && signal(SIGUSR1, ends) != SIG_ERR);
    watch("IBX_EXITS_MOMENT", SIGUSR1);
    REQUIRE(cudaMemcpy(managed.memory, &byte, 1, H2D) == 0);
    REQUIRE(cudaMemcpy(&byte, managed.memory, 1, D2H) == 0);
    watched = 0;
    return true;
}

// The device does nothing until the process ends, and the handler interrupts the thread that waits
// for it; in a program with managed memory between two pieces of its wait. Or it leaves the wait,
// and the program ends outside of it: what it gives back is refused as in the handler, since the
// answer to the wait is still to come.
bool exits_in_wait()
{
    using namespace in_handlers;
    static Owned last;
    char *device = device_memory(4096);
    if (wish("IBX_EXITS_MODE") == "managed")
        REQUIRE(managed_memory(4096));
    static Owned first;
    auto *handler = wish("IBX_EXITS_MODE") == "leaves" ? in_handlers::leaves : in_handlers::ends;
    REQUIRE(signal(SIGUSR1, handler) != SIG_ERR);
    stub_at_end(stub_close);
    stub_remote()->hold(true);
    REQUIRE(device && stub_launch(device + 8, device, 8, nullptr) == 0);
    std::thread([waits = pthread_self()] {
        while (thread_state(getpid(), getpid()) != 'S')
            std::this_thread::yield();
        pthread_kill(waits, SIGUSR1);
        pause();
    }).detach();
    if (sigsetjmp(outside, 1))
        std::exit(interrupted_status);
    cudaDeviceSynchronize();
    return false;
}

// exit(3) before the preload library is initialized, as a library's constructor may call it that
// finds no licence: what was registered is called, and streams are flushed.
#if defined(__clang__)
__attribute__((no_sanitize("address", "undefined")))
#endif
static void
exits_early(int argc, char **argv, char **)
{
    if (argc < 2 || std::strcmp(argv[1], "exits-early") != 0)
        return;
    std::printf("exits early, ");
    std::atexit([] { std::printf("and in order\n"); });
    std::exit(in_handlers::interrupted_status);
}

__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **, char **) = exits_early;

namespace
{

using Clock = std::chrono::steady_clock;

constexpr auto limit_of_waits = std::chrono::seconds(2); // IBX_PIPELINE_END_MS

// How long the main thread has slept in waits at the end of the process. Without the longest sleep
// that is never more than the limit, on however busy a machine: only the last sleep of a wait goes
// on beyond it, and no other wait follows one that has used the limit up.
std::atomic<bool> sleeps_count;
Clock::duration slept, longest_sleep;

void close_and_check_waits()
{
    if (in_handlers::wish("IBX_EXITS_MODE") == "closes")
        stub_disconnect();
    stub_close();
    sleeps_count = false;
    if (slept == Clock::duration() || slept - longest_sleep > limit_of_waits) {
        std::fprintf(stderr, "the process has slept for %lld ms at its end\n",
                     static_cast<long long>(slept / std::chrono::milliseconds(1)));
        std::_Exit(1);
    }
}

} // namespace

// The C library's, with which the pipeline waits.
extern "C" int nanosleep(const timespec *wanted, timespec *left)
{
    const bool counts = sleeps_count && gettid() == getpid();
    const Clock::time_point begun = counts ? Clock::now() : Clock::time_point();
    const int code = clock_nanosleep(CLOCK_MONOTONIC, 0, wanted, left);
    if (counts) {
        const Clock::duration one = Clock::now() - begun;
        slept += one;
        longest_sleep = std::max(longest_sleep, one);
    }
    errno = code ? code : errno;
    return code ? -1 : 0;
}

// A back end that stands still delays the end of the process by no more than one limit, wherever it
// is waited for.
bool ends_beside_standstill()
{
    char *device = device_memory(4096);
    REQUIRE(device && stub_launch(device + 8, device, 8, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0);
    stop(std::atoi(std::getenv("STUB_BACK_END")));
    REQUIRE(stub_launch(device + 8, device, 8, nullptr) == 0);
    stub_at_end(close_and_check_waits);
    sleeps_count = true;
    alarm(4 + patience_times()); // of which 2 are for the limit, and some for what does not sleep
    return true;
}
