// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Modules of forked children. So many processes end, in each way, that the back end, which may have
// 1 MiB of modules here, would be full if it kept those of ended processes.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

constexpr std::size_t module_bytes = 64u << 10;
constexpr unsigned processes_each = 40;

void register_function(void **module, const char *function)
{
    preloaded<void(void **, const void *, char *, const char *, int, void *, void *, void *, void *,
                   int *)>("__cudaRegisterFunction")(module, function, nullptr, "kernel", -1,
                                                     nullptr, nullptr, nullptr, nullptr, nullptr);
}

struct Module {
    std::uint64_t wrapper[8];
    char kernel[1], variable[1];
    void **handle;

    // As code of nvcc's does it. This libcudart does not launch that kernel.
    explicit Module(bool has_variable = true)
    {
        using Variable = void(void **, char *, char *, const char *, int, std::size_t, int, int);
        handle = preloaded<void **(void *)>("__cudaRegisterFatBinary")(wrapper);
        for (const char *one :
             {static_cast<const char *>(kernel), static_cast<const char *>(&stub_kernel)})
            register_function(handle, one);
        if (has_variable)
            preloaded<Variable>("__cudaRegisterVar")(handle, variable, variable, "v5.0.64", 0, 1, 0,
                                                     0);
    }
};

bool launches_well()
{
    char *device = device_memory(4096);
    return device && stub_launch(device + 8, device, 8, nullptr) == 0 &&
           cudaDeviceSynchronize() == 0;
}

// A process of its own for each.
bool many(const std::function<void()> &run, int status_wanted)
{
    for (unsigned i = 0; i < processes_each; i++) {
        int status = -1;
        const pid_t child = fork();
        if (!child) {
            alarm(20 * patience_times());
            run();
            _exit(1);
        }
        REQUIRE(waitpid(child, &status, 0) == child && status == status_wanted);
    }
    return true;
}

// The child's parent has ended, and perhaps the back end has seen that.
void orphan(int result, pid_t parent)
{
    alarm(20 * patience_times());
    while (getppid() == parent)
        usleep(1000);
    const char good = launches_well() ? 'g' : 'b';
    _exit(write(result, &good, 1) != 1);
}

bool many_orphans()
{
    for (unsigned i = 0; i < processes_each; i++) {
        int ends[2], status = -1;
        char said = 0;
        REQUIRE(pipe(ends) == 0);
        const pid_t child = fork();
        if (!child) {
            static Module mine(false);
            const bool good = launches_well();
            const pid_t parent = getpid();
            if (good && !fork())
                orphan(ends[1], parent);
            _exit(!good);
        }
        close(ends[1]);
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        REQUIRE(read(ends[0], &said, 1) == 1 && said == 'g');
        REQUIRE(read(ends[0], &said, 1) == 0);
        close(ends[0]);
    }
    return true;
}

// A thread that does not wait for ever; the mutex that it did not get in time, and whether it waits
// for that now.
thread_local bool impatient;
std::atomic<pthread_mutex_t *> late;
std::atomic<bool> waits_for_late;

// A child's second thread while the first registers its modules.
bool two_threads()
{
    static std::atomic<bool> over;
    std::string seen;
    stub_hold_registered(true);
    std::thread first([] { launches_well(); });
    while (!stub_holds_registered())
        usleep(100);
    std::thread other([&] {
        device_memory(4096); // connects
        impatient = true;
        launches_well();
        seen = stub_registered();
        over = true;
    });
    while (!over && !waits_for_late)
        usleep(100);
    stub_hold_registered(false);
    first.join();
    other.join();
    return HOLDS(waits_for_late && seen.back() == 'E');
}

} // namespace

// Called by the preload in place of the C library's.
extern "C" int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept
{
    static auto *next =
        reinterpret_cast<int (*)(pthread_mutex_t *)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    if (impatient && mutex == late)
        waits_for_late = true;
    const int rc = next(mutex);
    got_lock(__builtin_return_address(0));
    return rc;
}

extern "C" int pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                       const timespec *until) noexcept
{
    using Lock = int(pthread_mutex_t *, clockid_t, const timespec *);
    static auto *next = reinterpret_cast<Lock *>(dlsym(RTLD_NEXT, "pthread_mutex_clocklock"));
    const int rc = impatient ? pthread_mutex_trylock(mutex) : next(mutex, clock, until);
    if (rc && impatient)
        late = mutex;
    if (!rc)
        got_lock(__builtin_return_address(0));
    return rc && impatient ? ETIMEDOUT : rc;
}

bool modules_of_two_threads()
{
    static Module program;
    REQUIRE(launches_well());
    const pid_t child = fork();
    if (!child) {
        alarm(20 * patience_times());
        _exit(!two_threads());
    }
    int status = -1;
    return HOLDS(waitpid(child, &status, 0) == child && status == 0);
}

// A child that is forked while another thread looks up variables that are declared __managed__.
bool modules_and_forks()
{
    using Managed = void(void **, void *, char *, const char *, int, std::size_t, int, int);
    static void *module[1], *none[1];
    static char *pointer;
    auto *init = preloaded<char(void **)>("__cudaInitModule");
    const pid_t back_end = std::atoi(std::getenv("STUB_BACK_END"));
    std::atomic<pid_t> other{0};
    std::atomic<bool> stopped{false};
    register_function(module, &stub_kernel);
    preloaded<Managed>("__cudaRegisterManagedVar")(module, &pointer, nullptr, "m3.0.8", 0, 8, 0, 0);
    REQUIRE(launches_well() && managed_memory(1u << 20));
    std::thread first([&] {
        device_memory(4096); // connects
        for (other = gettid(); !stopped;)
            std::this_thread::yield();
        init(module);
    });
    while (!other)
        usleep(100);
    stop(back_end);
    stopped = true;
    while (thread_state(getpid(), other) != 'S')
        usleep(100);
    const pid_t child = fork();
    if (!child) {
        alarm(20 * patience_times());
        _exit(init(none) != 1);
    }
    int status = -1;
    const bool good = waitpid(child, &status, 0) == child && status == 0;
    kill(back_end, SIGCONT);
    first.join();
    return HOLDS(good && pointer);
}

// A process was killed, and its child goes on: what the process had.
bool left_beside_child()
{
    int hold[2], status = 0;
    REQUIRE(pipe(hold) == 0);
    const pid_t parent = fork();
    if (!parent) {
        void *stream;
        if (!device_memory(4096) || cudaStreamCreate(&stream))
            _exit(1);
        char byte;
        if (!fork()) {
            close(hold[1]);
            _exit(read(hold[0], &byte, 1) != 0);
        }
        raise(SIGKILL);
    }
    REQUIRE(waitpid(parent, &status, 0) == parent && WIFSIGNALED(status));
    alarm(20 * patience_times());
    for (bool left = true; left; usleep(1000)) {
        const ibx_double_stats stats = stub_remote()->stats();
        left = stats.streams || stats.allocations;
    }
    alarm(0);
    close(hold[0]);
    close(hold[1]);
    return true;
}

static bool modules_go(bool beside)
{
    stub_registers(module_bytes);
    static Module program;
    static std::unique_ptr<Module> other; // without variables
    if (beside)
        other = std::make_unique<Module>(false);
    REQUIRE(launches_well());
    // Modules that a child registers again, and its own ones.
    REQUIRE(many([] { _exit(!launches_well()); }, 0));
    REQUIRE(many(
        [] {
            static Module mine;
            if (launches_well())
                raise(SIGKILL);
        },
        SIGKILL));
    REQUIRE(many_orphans());
    return HOLDS(launches_well());
}

bool modules_of_ended()
{
    return modules_go(true);
}

bool modules_of_ended_alone()
{
    return modules_go(false);
}

// daemon(3) before the first call. Once told to, the child says whether its launch was good, and
// whether it has registered its parent's module again: 'a' both, 'g' the former, 'b' neither.
bool daemon_launches()
{
    stub_registers(module_bytes);
    static Module program(false);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child)
        _exit(0);
    char byte;
    const std::string before = stub_registered();
    REQUIRE(read(STDIN_FILENO, &byte, 1) == 1);
    alarm(20 * patience_times());
    const bool good = launches_well();
    const char said = !good ? 'b' : stub_registered() != before ? 'a' : 'g';
    return HOLDS(write(STDOUT_FILENO, &said, 1) == 1);
}
