// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What programs do beside CUDA: children of all kinds, signals, threads that have small stacks, are
// cancelled or call CUDA as they end, and exits in odd places.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/island.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

using LaunchHost = int(void *stream, void (*function)(void *), void *argument);

// Copies, launches and waits, each of which shows what it did.
bool works(std::size_t n, unsigned seed)
{
    std::vector<char> memory(n + 2000);
    void *stream = nullptr;
    char *device = device_memory(n + 4096);
    REQUIRE(device && round_trip(device, memory.data(), n, seed));
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(stub_launch(device + 8, device, 8, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && cudaStreamDestroy(stream) == 0);
    return HOLDS(cudaFree(device) == 0 && cudaDeviceSynchronize() == 0);
}

// Threads that do so until the test is over.
struct Workers {
    std::atomic<bool> over{false}, good{true};
    std::atomic<unsigned> rounds{0};
    std::vector<std::thread> threads;

    explicit Workers(unsigned count)
    {
        for (unsigned i = 0; i < count; i++)
            threads.emplace_back([this, i] {
                for (unsigned seed = i; !over; seed += 100, rounds++)
                    good = works(70000, seed) && good;
            });
        while (rounds < count)
            std::this_thread::yield();
    }
    // If a thread has returned early, the test has failed, and the others end with the process.
    ~Workers() { join(); }
    bool join()
    {
        over = true;
        for (std::thread &thread : threads)
            thread.join();
        threads.clear();
        return good;
    }
};

bool ends_well(pid_t child)
{
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

bool child_of_vfork()
{
    const char *const arguments[] = {"true", nullptr};
    const pid_t child = vfork();
    if (!child) {
        execv("/bin/true", const_cast<char *const *>(arguments));
        _exit(1);
    }
    return ends_well(child);
}

bool child_of_spawn()
{
    char name[] = "true", *const arguments[] = {name, nullptr};
    pid_t child = 0;
    return posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ) == 0 &&
           ends_well(child);
}

bool child_of_popen()
{
    char line[16] = "";
    std::FILE *pipe = popen("echo said", "r");
    const bool read = pipe && std::fgets(line, sizeof(line), pipe);
    return pipe && pclose(pipe) == 0 && read && !std::strcmp(line, "said\n");
}

} // namespace

// Each thread starts a program, in each way that there is, while others call CUDA.
bool programs_beside_calls()
{
    Workers workers(2);
    std::atomic<bool> good{true};
    std::vector<std::thread> all;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    unsetenv("LD_PRELOAD"); // programs without that sanitizer's runtime cannot load ours
#endif
    for (auto *start : {child_of_vfork, child_of_spawn, child_of_popen,
                        +[] { return std::system("exit 0") == 0; }})
        all.emplace_back([&good, start] {
            for (int i = 0; i < 8; i++)
                good = start() && works(3000, 7) && good;
        });
    for (std::thread &thread : all)
        thread.join();
    return HOLDS(workers.join() && good);
}

// As daemon programs do, whose child closes all descriptors before it goes on.
static bool closes_descriptors(bool has_called)
{
    int status = -1;
    if (has_called && !works(3000, 1))
        return false;
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        closefrom(STDERR_FILENO + 1);
        std::exit(works(70000, 2) && works(3000000, 3) ? 0 : 1);
    }
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    return HOLDS(!has_called || works(3000, 4));
}

// daemon(3): the process goes on as another one, before its first call or behind some.
bool daemons()
{
    for (bool has_called : {false, true}) {
        REQUIRE(closes_descriptors(has_called));
        int ends[2];
        char said = 0;
        REQUIRE(pipe(ends) == 0);
        const pid_t child = fork();
        if (!child) {
            alarm(20 * patience_times());
            close(ends[0]);
            if (has_called && !works(3000, 1))
                _exit(1);
            if (daemon(1, 0)) // its parent ends by _exit(0) here
                _exit(2);
            alarm(20 * patience_times());
            said = works(70000, 2) ? 'g' : 'b';
            std::exit(write(ends[1], &said, 1) != 1);
        }
        close(ends[1]);
        REQUIRE(ends_well(child) && read(ends[0], &said, 1) == 1 && said == 'g');
        REQUIRE(read(ends[0], &said, 1) == 0);
        close(ends[0]);
    }
    return HOLDS(works(70000, 3));
}

namespace
{

// Files and sockets of this process, which has just closed all of its descriptors: they get the
// lowest numbers. Each holds one byte, which nobody but this process may read, and nothing else.
struct OwnDescriptors {
    static constexpr int count = 96;
    int fds[count];
    ino_t files[count];
    bool opened = true;

    OwnDescriptors()
    {
        for (int i = 0; i < count; i += 3) {
            fds[i] = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
            opened = opened && fds[i] >= 0 && write(fds[i], "f", 1) == 1 &&
                     socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds + i + 1) == 0 &&
                     write(fds[i + 1], "s", 1) == 1 && write(fds[i + 2], "s", 1) == 1;
        }
        for (int i = 0; i < count; i++)
            files[i] = file(i);
        opened = opened && fds[0] == STDERR_FILENO + 1;
    }
    ino_t file(int i) const
    {
        struct stat st;
        return fstat(fds[i], &st) ? 0 : st.st_ino;
    }
    bool untouched(int i) const
    {
        char bytes[16];
        if (file(i) != files[i])
            return false;
        return i % 3 == 0 ? pread(fds[i], bytes, sizeof(bytes), 0) == 1 && *bytes == 'f' &&
                                lseek(fds[i], 0, SEEK_CUR) == 1
                          : recv(fds[i], bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT) == 1 &&
                                *bytes == 's';
    }
    bool untouched() const
    {
        bool all = true;
        for (int i = 0; i < count; i++) {
            if (untouched(i))
                continue;
            std::fprintf(stderr, "descriptor %d of the program was used\n", fds[i]);
            all = false;
        }
        return all;
    }
};

// What this process says, in a file, until it is passed on.
struct OwnMessages {
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int file = open("/tmp", O_TMPFILE | O_RDWR | O_APPEND | O_CLOEXEC, 0600);

    OwnMessages()
    {
        if (before < 0 || dup2(file, STDERR_FILENO) < 0)
            std::abort();
    }
    std::string said() const
    {
        char text[4096];
        const ssize_t length = pread(file, text, sizeof(text), 0);
        return std::string(text, text + (length < 0 ? 0 : length));
    }
    bool pass_on() const
    {
        const std::string all = said();
        return dup2(before, STDERR_FILENO) >= 0 &&
               write(STDERR_FILENO, all.data(), all.size()) == static_cast<ssize_t>(all.size());
    }
};

// Over shared memory, work may be done before either end sleeps, which is when it needs the socket.
bool works_until_connected_anew()
{
    const OwnMessages own;
    bool good = works(70000, 3);
    while (good && own.said().find("the session continues over") == std::string::npos)
        good = works(70000, 3);
    return own.pass_on() && good;
}

} // namespace

// A child, or a program, that closes the descriptors of its connections, too, and opens others,
// which get the lowest numbers.
bool own_descriptors()
{
    int status = -1;
    for (bool has_called : {false, true}) {
        REQUIRE(works(3000, 1));
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (!child) {
            alarm(20 * patience_times());
            if (has_called && !works(3000, 2))
                _exit(2);
            closefrom(STDERR_FILENO + 1);
            const OwnDescriptors own;
            const bool good = has_called ? works_until_connected_anew() : works(70000, 3);
            std::exit(own.opened && own.untouched() && good ? 0 : 1);
        }
        REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
        REQUIRE(WEXITSTATUS(status) == 0);
    }
    return HOLDS(works(3000, 4));
}

// A helper process that shares this process's memory, and calls no function of CUDA. A sanitizer
// would take it for this thread.
bool helpers_of_clone()
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct Shared {
        std::atomic<unsigned> count{0};
        std::atomic<bool> over{false};
    } shared;
    const auto help = [](void *argument) {
        auto *s = static_cast<Shared *>(argument);
        while (!s->over)
            s->count++;
        return 0;
    };
    Workers workers(1);
    for (int i = 0; i < 5; i++) {
        std::vector<char> stack(64 << 10);
        shared.over = false;
        shared.count = 0;
        const pid_t child = clone(help, stack.data() + stack.size(),
                                  CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, &shared);
        while (child > 0 && !shared.count)
            std::this_thread::yield();
        const bool good = works(70000, 5);
        shared.over = true;
        REQUIRE(ends_well(child) && good);
    }
    REQUIRE(workers.join());
#endif
    return true;
}

// Handlers that wait for the device, in the middle of the program's own code.
bool waits_in_signal_handlers()
{
    static std::atomic<int> waits, result;
    struct sigaction action = {}, before = {};
    action.sa_handler = [](int) {
        result = result | cudaDeviceSynchronize();
        waits++;
    };
    REQUIRE(works(3000, 1) && sigaction(SIGUSR1, &action, &before) == 0);
    char *device = device_memory(4096);
    for (int i = 0; i < 50; i++) {
        REQUIRE(stub_launch(device + 8, device, 8, nullptr) == 0);
        raise(SIGUSR1);
        REQUIRE(waits == i + 1 && !result);
    }
    std::thread([] { raise(SIGUSR1); }).join(); // in a thread that has no connection
    return HOLDS(waits == 51 && !result && sigaction(SIGUSR1, &before, nullptr) == 0);
}

// pthread_cancel() of threads in the middle of copies; other threads go on with theirs.
bool cancelled_in_copies()
{
    struct Copy {
        char *device, *memory;
        std::size_t n;
        std::atomic<bool> began;
        bool to_device;
    };
    const auto run = [](void *argument) -> void * {
        auto *c = static_cast<Copy *>(argument);
        for (;;) {
            c->began = true;
            pthread_testcancel();
            if (c->to_device ? cudaMemcpy(c->device, c->memory, c->n, H2D)
                             : cudaMemcpy(c->memory, c->device, c->n, D2H))
                return argument;
        }
    };
    Workers workers(1);
    char *pinned = nullptr;
    REQUIRE(cudaMallocHost(reinterpret_cast<void **>(&pinned), 3000000) == 0);
    std::vector<char> pageable(3000000);
    char *device = device_memory(3000000);
    REQUIRE(device);
    for (int i = 0; i < 24; i++) {
        Copy copy = {device,
                     i & 1 ? pinned : pageable.data(),
                     i & 2 ? 3000000ul : 3000ul,
                     {false},
                     (i & 4) != 0};
        pthread_t thread;
        void *result = nullptr;
        REQUIRE(pthread_create(&thread, nullptr, run, &copy) == 0);
        while (!copy.began)
            std::this_thread::yield();
        usleep(static_cast<unsigned>(i) * 100); // anywhere
        REQUIRE(pthread_cancel(thread) == 0);
        REQUIRE(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        REQUIRE(works(70000, 9));
    }
    return HOLDS(workers.join() && cudaFreeHost(pinned) == 0 && cudaFree(device) == 0);
}

namespace
{

// Calls of all kinds, and accesses to memory that the device has used.
bool calls_of_all_kinds()
{
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    static std::atomic<int> called;
    const int before = called;
    void *stream = nullptr, *event = nullptr, *pinned = nullptr, *graph = nullptr, *exec = nullptr;
    std::vector<char> memory(200000, 'r');
    char *managed = managed_memory(100000), *device = device_memory(400000);
    REQUIRE(managed && device && works(300000, 1));
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaEventCreate(&event) == 0);
    REQUIRE(cudaMallocHost(&pinned, 200000) == 0 && host_register(memory.data(), 200000) == 0);
    std::memset(managed, 1, 100000);
    REQUIRE(stub_launch(managed + 50000, managed, 50000, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && managed[99999] == 1);
    char *page_locked = static_cast<char *>(pinned);
    std::memset(page_locked, 2, 200000);
    REQUIRE(stub_launch(page_locked + 100000, page_locked, 50000, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && page_locked[149999] == 2);
    for (void *host : {pinned, static_cast<void *>(memory.data())}) {
        REQUIRE(cudaMemcpyAsync(device, host, 200000, H2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(host, device, 200000, D2H, stream) == 0);
    }
    REQUIRE(cudaEventRecord(event, stream) == 0 && cudaEventSynchronize(event) == 0);
    REQUIRE(launch_host(
                stream, [](void *) { called++; }, nullptr) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && called == before + 1);
    REQUIRE(cudaStreamBeginCapture(stream, 0) == 0);
    REQUIRE(cudaMemcpyAsync(device, pinned, 100, H2D, stream) == 0);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0);
    REQUIRE(preloaded<int(void **, void *, unsigned long long)>("cudaGraphInstantiate")(
                &exec, graph, 0) == 0);
    REQUIRE(cudaGraphLaunch(exec, stream) == 0 && cudaStreamSynchronize(stream) == 0);
    REQUIRE(preloaded<int(void *, const char *, unsigned)>("cudaGraphDebugDotPrint")(
                graph, "/dev/null", 0) == 0);
    REQUIRE(preloaded<int(void *)>("cudaGraphExecDestroy")(exec) == 0);
    REQUIRE(preloaded<int(void *)>("cudaGraphDestroy")(graph) == 0);
    REQUIRE(cudaMemcpy2D(device, 200, memory.data(), 300, 100, 50, H2D) == 0);
    REQUIRE(cudaEventDestroy(event) == 0 && cudaStreamDestroy(stream) == 0);
    REQUIRE(cudaFreeHost(pinned) == 0 && host_unregister(memory.data()) == 0);
    return HOLDS(cudaFree(managed) == 0 && cudaFree(device) == 0);
}

} // namespace

// None of these calls is a cancellation point.
bool cancelled_before_calls()
{
    const auto run = [](void *good) -> void * {
        pthread_cancel(pthread_self());
        *static_cast<bool *>(good) = calls_of_all_kinds();
        for (;;)
            pthread_testcancel();
    };
    for (int i = 0; i < 2; i++) {
        bool good = false;
        pthread_t thread;
        REQUIRE(pthread_create(&thread, nullptr, run, &good) == 0);
        REQUIRE(pthread_join(thread, nullptr) == 0 && good);
    }
    return HOLDS(calls_of_all_kinds());
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) // they take several times as much
constexpr std::size_t small_stack = 1 << 20;
#else
constexpr std::size_t small_stack = 128 << 10;
#endif

static bool works_on_managed_memory()
{
    char *managed = managed_memory(100000);
    REQUIRE(managed);
    std::memset(managed, 1, 100000);
    REQUIRE(stub_launch(managed + 50000, managed, 50000, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && managed[99999] == 1);
    return HOLDS(cudaFree(managed) == 0);
}

// Threads with as little stack as a limit of 128 KiB gives each.
bool small_stacks()
{
    pthread_attr_t attributes;
    pthread_t threads[4];
    const auto run = [](void *) -> void * {
        static char good;
        return works(300000, 1) && works(3000000, 3) && works_on_managed_memory() ? &good : nullptr;
    };
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstacksize(&attributes, small_stack) == 0);
    for (pthread_t &thread : threads)
        REQUIRE(pthread_create(&thread, &attributes, run, nullptr) == 0);
    bool all = true;
    for (pthread_t thread : threads) {
        void *good = nullptr;
        all = pthread_join(thread, &good) == 0 && good && all;
    }
    return HOLDS(pthread_attr_destroy(&attributes) == 0 && all);
}

// A library with kernels is closed and opened while other threads launch theirs.
bool modules_beside_launches()
{
    static std::uint64_t wrapper[8], stays[8];
    static char kernel[1];
    auto *enter = preloaded<void **(void *)>("__cudaRegisterFatBinary");
    auto *leave = preloaded<void(void **)>("__cudaUnregisterFatBinary");
    auto *end = preloaded<void(void **)>("__cudaRegisterFatBinaryEnd");
    auto *function = preloaded<void(void **, const void *, char *, const char *, int, void *,
                                    void *, void *, void *, int *)>("__cudaRegisterFunction");
    REQUIRE(enter && leave && function);
    function(enter(stays), &stub_kernel, nullptr, "stub", -1, nullptr, nullptr, nullptr, nullptr,
             nullptr);
    Workers workers(2);
    for (int i = 0; i < 200; i++) {
        void **module = enter(wrapper);
        function(module, kernel, nullptr, "kernel", -1, nullptr, nullptr, nullptr, nullptr,
                 nullptr);
        if (end)
            end(module);
        leave(module);
    }
    return HOLDS(workers.join() && works(3000, 4));
}

// exit(3) in a function that a stream has reached, while the first thread waits for that function,
// or does anything else.
bool exits_in_host_function(Meanwhile what)
{
    void *stream = nullptr;
    REQUIRE(works(3000, 4) && cudaStreamCreate(&stream) == 0);
    std::atexit([] { // as a program's own would
        void *device = nullptr;
        cudaMalloc(&device, 100);
        cudaFree(device);
    });
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(
                stream, [](void *) { std::exit(0); }, nullptr) == 0);
    while (what == Meanwhile::works)
        works(70000, 1);
    if (what == Meanwhile::waits)
        cudaStreamSynchronize(stream);
    pause();
    return false;
}

namespace
{

// Things that a thread owns, and gives back when it ends.
struct Owns {
    char *device = nullptr;
    void *stream = nullptr, *event = nullptr;
    std::atomic<int> *good = nullptr;
    ~Owns()
    {
        std::vector<char> memory(5000), back(5000, 'x');
        random_fill(memory.data(), memory.size(), 3);
        bool all = good && cudaMemcpy(device, memory.data(), 5000, H2D) == 0;
        all = all && cudaMemcpyAsync(back.data(), device, 5000, D2H, stream) == 0;
        all = all && cudaStreamSynchronize(stream) == 0 && back == memory;
        all = all && stub_launch(device + 8, device, 8, stream) == 0;
        all = all && cudaEventRecord(event, stream) == 0 && cudaEventSynchronize(event) == 0;
        all = all && cudaEventDestroy(event) == 0 && cudaStreamDestroy(stream) == 0;
        all = all && cudaFree(device) == 0 && cudaDeviceSynchronize() == 0;
        if (good && all)
            ++*good;
    }
    bool fill(std::atomic<int> *counter)
    {
        good = counter;
        device = device_memory(8192);
        return device && cudaStreamCreate(&stream) == 0 && cudaEventCreate(&event) == 0;
    }
};

thread_local Owns owned;

} // namespace

// Destructors of a thread's variables call CUDA: of a variable that was made before the thread's
// first call, and of one that was made later; and destructors of pthread_key_create(3), which come
// last.
bool calls_as_threads_end()
{
    static std::atomic<int> good;
    static pthread_key_t key;
    REQUIRE(pthread_key_create(&key, [](void *owns) { delete static_cast<Owns *>(owns); }) == 0);
    for (int i = 0; i < 3; i++) {
        good = 0;
        std::thread([] { owned.fill(&good); }).join();
        REQUIRE(good == 1);
        std::thread([] {
            device_memory(100);
            owned.fill(&good);
        }).join();
        REQUIRE(good == 2);
        std::thread([] {
            auto owns = std::make_unique<Owns>();
            owns->fill(&good);
            pthread_setspecific(key, owns.release());
        }).join();
        REQUIRE(good == 3);
        std::thread([] { // whose first call that is
            auto *owns = new Owns;
            std::thread([owns] { owns->fill(&good); }).join();
            pthread_setspecific(key, owns);
        })
            .join();
        REQUIRE(good == 4);
    }
    return HOLDS(pthread_key_delete(key) == 0 && works(3000, 1));
}

// The same with a process's variables.
bool calls_as_process_ends()
{
    static std::atomic<int> good;
    static Owns last;
    REQUIRE(last.fill(&good) && owned.fill(&good));
    std::atexit([] { alarm(20 * patience_times()); });
    return true;
}
