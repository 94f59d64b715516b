// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Managed memory, and the program's own signals.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

constexpr std::size_t each_page = 4096;

sigjmp_buf jump;
void *volatile faulted;

void on_fault(int, siginfo_t *info, void *)
{
    faulted = info->si_addr;
    siglongjmp(jump, 1);
}

// The program's handler is called as the kernel does it; without one the signal ends the program.
void once(int)
{
    static int calls;
    sigset_t held;
    pthread_sigmask(SIG_BLOCK, nullptr, &held);
    if (calls++ || !sigismember(&held, SIGSEGV) || !sigismember(&held, SIGUSR1))
        _exit(1);
}

bool sent_signals()
{
    struct sigaction action = {};
    action.sa_handler = once;
    action.sa_flags = int(SA_RESETHAND);
    sigaddset(&action.sa_mask, SIGUSR1);
    REQUIRE(signal(SIGSEGV, SIG_IGN) != SIG_ERR && raise(SIGSEGV) == 0);
    const pid_t child = fork();
    if (!child) {
        sigaction(SIGSEGV, &action, nullptr);
        for (int i = 0; i < 2; i++)
            raise(SIGSEGV);
        _exit(2);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    return HOLDS(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
}

char *volatile handled;

// Threads that block all signals, as those of servers do, beside handlers.
bool blocked_signals()
{
    char *m = managed_memory(2 * each_page);
    sigset_t every, before, now;
    char there = 1;
    sigfillset(&every);
    REQUIRE(m);
    for (auto *set : {pthread_sigmask, sigprocmask}) {
        REQUIRE(set(SIG_BLOCK, &every, &before) == 0 && !sigismember(&before, SIGSEGV));
        m[0] = ++there;
        REQUIRE(stub_launch(m + 1, m, 1, nullptr) == 0 && m[1] == there);
        REQUIRE(stub_launch(m + 2, m, 1, nullptr) == 0);
        std::thread([m, set, &there, &now] {
            there = static_cast<char>(m[2] + 1);
            set(SIG_BLOCK, nullptr, &now);
        }).join();
        REQUIRE(m[2] + 1 == there && sigismember(&now, SIGSEGV) && sigismember(&now, SIGTERM));
        REQUIRE(set(SIG_SETMASK, &before, &now) == 0);
        REQUIRE(sigismember(&now, SIGSEGV) == 1 && sigismember(&now, SIGTERM) == 1);
        REQUIRE(set(SIG_BLOCK, nullptr, &now) == 0 && !sigismember(&now, SIGSEGV));
    }
    struct sigaction action = {};
    action.sa_handler = [](int) { handled[4] = handled[3]; };
    action.sa_mask = every;
    handled = m;
    REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
    REQUIRE(stub_launch(m + 3, m, 1, nullptr) == 0 && raise(SIGUSR1) == 0 && m[4] == m[0]);
    return HOLDS(cudaFree(m) == 0);
}

volatile sig_atomic_t interrupted;

void touches(int)
{
    interrupted = interrupted + 1;
    ++handled[4];
    handled[each_page * 18] = handled[each_page * 38];
}

// Handlers that touch other managed memory interrupt the thread that gives memory to the device.
bool signals_while_given()
{
    char *m = managed_memory(each_page * 40), *device = device_memory(100);
    struct sigaction action = {}, before[2] = {};
    void *stream = nullptr;
    handled = managed_memory(each_page * 40);
    action.sa_handler = touches;
    REQUIRE(m && handled && cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(sigaction(SIGUSR1, &action, &before[0]) == 0);
    REQUIRE(sigaction(SIGUSR2, nullptr, &before[1]) == 0 && signal(SIGUSR2, touches) != SIG_ERR);
    at_withdrawal = [] {
        raise(SIGUSR1);
        raise(SIGUSR2);
    };
    for (int i = 1; i < 20; i++) {
        m[each_page * 20] = static_cast<char>(i);
        handled[each_page * 38] = static_cast<char>(i);
        handled[4] = 0;
        interrupted = 0;
        REQUIRE(stub_launch(m + 1, m + each_page * 20, 1, i % 2 ? stream : nullptr) == 0);
        REQUIRE(interrupted && m[1] == i && handled[4] == interrupted);
        REQUIRE(handled[each_page * 18] == i);
        m[each_page * 20] = 'w'; // reads of the device take it away, too
        const int before_copy = interrupted;
        REQUIRE(cudaMemcpy(device, m + each_page * 20, 1, D2D) == 0 && interrupted > before_copy);
        REQUIRE(device_has(device, "w", 1) && handled[4] == interrupted);
    }
    at_withdrawal = nullptr;
    REQUIRE(sigaction(SIGUSR1, &before[0], nullptr) == 0);
    REQUIRE(sigaction(SIGUSR2, &before[1], nullptr) == 0);
    REQUIRE(cudaFree(handled) == 0);
    return HOLDS(cudaFree(m) == 0 && cudaFree(device) == 0);
}

void touches_in_call(int)
{
    interrupted = interrupted + 1;
    ++handled[2];
}

char *volatile handled_within;
pthread_t launching;

// A handler that waits for managed memory, in a thread that is about to give the device work, is
// interrupted by another handler that does so, too.
bool signals_while_fetched()
{
    char *m = managed_memory(each_page);
    handled = managed_memory(each_page), handled_within = managed_memory(each_page);
    launching = pthread_self();
    REQUIRE(m && handled && handled_within);
    REQUIRE(signal(SIGUSR1, [](int) { handled[1] = handled[0]; }) != SIG_ERR);
    REQUIRE(signal(SIGUSR2, [](int) { handled_within[1] = handled_within[0]; }) != SIG_ERR);
    for (int i = 1; i < 5; i++) {
        handled[0] = handled_within[0] = static_cast<char>(i);
        REQUIRE(stub_launch(m + 1, m, 1, nullptr) == 0);
        m[0] = static_cast<char>(i);
        at_withdrawal = [] { raise(SIGUSR1); };
        at_fetch = [] {
            at_fetch = nullptr;
            pthread_kill(launching, SIGUSR2);
        };
        REQUIRE(stub_launch(m + 1, m, 1, nullptr) == 0);
        at_withdrawal = nullptr;
        REQUIRE(!at_fetch && m[1] == i && handled[1] == i && handled_within[1] == i);
    }
    REQUIRE(signal(SIGUSR1, SIG_DFL) != SIG_ERR && signal(SIGUSR2, SIG_DFL) != SIG_ERR);
    REQUIRE(cudaFree(handled) == 0 && cudaFree(handled_within) == 0);
    return HOLDS(cudaFree(m) == 0);
}

// In strict ISO C, signal(3) is this function.
bool signals_of_system_v()
{
    auto *set = preloaded<sighandler_t(int, sighandler_t)>("__sysv_signal");
    volatile char *m = managed_memory(each_page);
    REQUIRE(m && set(SIGSEGV, once) == SIG_DFL);
    REQUIRE(stub_launch(const_cast<char *>(m) + 1, const_cast<char *>(m), 1, nullptr) == 0);
    REQUIRE(m[1] == 0 && set(SIGSEGV, SIG_DFL) == once);
    return HOLDS(cudaFree(const_cast<char *>(m)) == 0);
}

// Faults that are the program's own, and children, which have none of it.
bool faults_of_others()
{
    volatile char *m = managed_memory(each_page), *none;
    struct sigaction ours = {}, before = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO;
    REQUIRE(m);
    REQUIRE(sigaction(SIGSEGV, &ours, nullptr) == 0 && sigaction(SIGSEGV, nullptr, &before) == 0);
    REQUIRE(before.sa_sigaction == on_fault);
    none = static_cast<char *>(
        mmap(nullptr, each_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (!sigsetjmp(jump, 1))
        REQUIRE((*none = 1, false));
    REQUIRE(faulted == none);
    REQUIRE(stub_launch(const_cast<char *>(m) + 1, const_cast<char *>(m), 1, nullptr) == 0);
    REQUIRE(m[1] == 0); // ours are still ours
    pid_t child = fork();
    if (!child) {
        if (!sigsetjmp(jump, 1))
            _exit(m[1]);
        _exit(faulted == m + 1 ? 42 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 42);
    REQUIRE(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    return HOLDS(cudaFree(const_cast<char *>(m)) == 0);
}

int managed_cell(volatile char *m)
{
    m[0] = static_cast<char>(m[0] + 1);
    auto *memory = const_cast<char *>(m);
    return stub_launch(memory + 1, memory, 1, nullptr);
}

// By the system call itself, as the runtimes of some languages do; its struct has what the C
// library has set for another signal.
void set_by_system_call(int number, const struct sigaction &action)
{
    char of_kernel[64];
    struct sigaction before;
    sigaction(SIGUSR2, &action, &before);
    syscall(SYS_rt_sigaction, SIGUSR2, nullptr, of_kernel, 8);
    syscall(SYS_rt_sigaction, number, of_kernel, nullptr, 8);
    sigaction(SIGUSR2, &before, nullptr);
}

void leaves(int)
{
    siglongjmp(jump, 1);
}

// Handlers that are set by other names than sigaction(2) and signal(3) stay behind the library's,
// too.
bool handlers_by_other_names()
{
    volatile char *m = managed_memory(each_page);
    auto *none = static_cast<volatile char *>(
        mmap(nullptr, each_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction action = {};
    action.sa_handler = leaves;
    for (const char *name : {"", "sigset", "ssignal", "bsd_signal", "sysv_signal", "__sigaction"}) {
        m[1] = 0; // something for the launch to give
        if (!*name)
            set_by_system_call(SIGSEGV, action);
        else if (!std::strcmp(name, "__sigaction"))
            REQUIRE(preloaded<int(int, const struct sigaction *, struct sigaction *)>(name)(
                        SIGSEGV, &action, nullptr) == 0);
        else
            REQUIRE(preloaded<sighandler_t(int, sighandler_t)>(name)(SIGSEGV, leaves) == SIG_DFL);
        const bool reached = !sigsetjmp(jump, 1) && managed_cell(m) == 0 && m[1] == m[0];
        if (!reached)
            std::fprintf(stderr, "behind '%s'\n", name);
        REQUIRE(reached);
        if (!sigsetjmp(jump, 1))
            REQUIRE((*none = 1, false)); // the program's handler gets it
        REQUIRE(signal(SIGSEGV, SIG_DFL) == (std::strcmp(name, "sysv_signal") ? leaves : SIG_DFL));
    }
    return HOLDS(cudaFree(const_cast<char *>(m)) == 0);
}

std::jmp_buf plain_return;

void touches_and_leaves(int)
{
    handled[5] = handled[1];
    _longjmp(plain_return, 1); // and the signal stays blocked, as far as the program knows
}

// The program's handler of faults reads and writes managed memory, and leaves by longjmp(3) with
// the mask that it has.
bool handlers_of_faults()
{
    sigset_t held;
    auto *none = static_cast<volatile char *>(
        mmap(nullptr, each_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    handled = managed_memory(each_page);
    REQUIRE(handled && signal(SIGSEGV, touches_and_leaves) == SIG_DFL);
    REQUIRE(managed_cell(handled) == 0);
    if (!_setjmp(plain_return))
        REQUIRE((*none = 1, false));
    REQUIRE(handled[5] == handled[0] && pthread_sigmask(SIG_BLOCK, nullptr, &held) == 0);
    REQUIRE(sigismember(&held, SIGSEGV) == 1 && managed_cell(handled) == 0);
    REQUIRE(handled[1] == handled[0]);
    const pid_t child = fork(); // a fault of its own with the signal blocked ends a program
    if (!child) {
        if (!_setjmp(plain_return))
            *none = 1;
        _exit(1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    sigemptyset(&held);
    sigaddset(&held, SIGSEGV);
    REQUIRE(pthread_sigmask(SIG_UNBLOCK, &held, nullptr) == 0);
    if (!sigsetjmp(jump, 1)) { // with the mask as it was before, the signal is open again
        REQUIRE(signal(SIGSEGV, leaves) == touches_and_leaves && (*none = 1, false));
    }
    REQUIRE(pthread_sigmask(SIG_BLOCK, nullptr, &held) == 0 && !sigismember(&held, SIGSEGV));
    REQUIRE(signal(SIGSEGV, SIG_DFL) == leaves);
    return HOLDS(cudaFree(handled) == 0);
}

void copies_cell(int)
{
    handled[3] = handled[1];
}

// Calls that wait with a mask of their own, in which a handler runs.
bool waits_with_masks()
{
    struct sigaction action = {}, before = {};
    sigset_t usr1, now, but_usr1;
    const timespec none = {};
    epoll_event event;
    const int epoll = epoll_create1(0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigfillset(&but_usr1);
    sigdelset(&but_usr1, SIGUSR1);
    action.sa_handler = copies_cell;
    handled = managed_memory(each_page);
    REQUIRE(handled && sigaction(SIGUSR1, &action, &before) == 0);
    REQUIRE(pthread_sigmask(SIG_BLOCK, &usr1, &now) == 0);
    const auto interrupted_in = [&](const std::function<int()> &wait) {
        REQUIRE(managed_cell(handled) == 0 && raise(SIGUSR1) == 0 && wait() == -1);
        return HOLDS(errno == EINTR && handled[3] == handled[0]);
    };
    timespec long_one = {60, 0};
    REQUIRE(interrupted_in([&] { return sigsuspend(&but_usr1); }));
    REQUIRE(interrupted_in([&] { return ppoll(nullptr, 0, &long_one, &but_usr1); }));
    REQUIRE(interrupted_in(
        [&] { return pselect(0, nullptr, nullptr, nullptr, &long_one, &but_usr1); }));
    REQUIRE(interrupted_in([&] { return epoll_pwait(epoll, &event, 1, 60000, &but_usr1); }));
    REQUIRE(ppoll(nullptr, 0, &none, nullptr) == 0);
    REQUIRE(close(epoll) == 0 && sigaction(SIGUSR1, &before, nullptr) == 0);
    REQUIRE(pthread_sigmask(SIG_SETMASK, &now, nullptr) == 0);
    return HOLDS(cudaFree(handled) == 0);
}

void *reads_cell(void *memory)
{
    sigset_t held;
    pthread_sigmask(SIG_BLOCK, nullptr, &held);
    const auto *m = static_cast<volatile char *>(memory);
    return m[1] == m[0] && sigismember(&held, SIGSEGV) == 1 ? memory : nullptr;
}

// Masks that are set by other names.
bool masks_by_other_names()
{
    char *m = managed_memory(each_page);
    sigset_t held;
    pthread_attr_t with_mask;
    pthread_t thread;
    void *good = nullptr;
    auto *hold = preloaded<int(int)>("sighold"), *let = preloaded<int(int)>("sigrelse");
    REQUIRE(m && managed_cell(m) == 0 && hold(SIGSEGV) == 0 && reads_cell(m));
    REQUIRE(let(SIGSEGV) == 0 && managed_cell(m) == 0 && !reads_cell(m));
    auto *block = preloaded<int(int)>("sigblock"), *set = preloaded<int(int)>("sigsetmask");
    set(0); // whoever runs this may have blocked others
    REQUIRE(managed_cell(m) == 0 && block(1 << (SIGSEGV - 1)) == 0 && reads_cell(m));
    REQUIRE(set(0) == 1 << (SIGSEGV - 1) && !reads_cell(m) && set(-1) == 0);
    REQUIRE(managed_cell(m) == 0 && reads_cell(m) && (set(0) & 1 << (SIGSEGV - 1)));
    sigfillset(&held);
    REQUIRE(pthread_attr_init(&with_mask) == 0 && managed_cell(m) == 0);
    REQUIRE(pthread_attr_setsigmask_np(&with_mask, &held) == 0);
    REQUIRE(pthread_create(&thread, &with_mask, reads_cell, m) == 0);
    REQUIRE(pthread_join(thread, &good) == 0 && good == m);
    REQUIRE(pthread_attr_destroy(&with_mask) == 0);
    return HOLDS(cudaFree(m) == 0);
}

} // namespace

bool managed_signals()
{
    REQUIRE(sent_signals() && blocked_signals());
    REQUIRE(signals_while_given() && signals_while_fetched());
    REQUIRE(signals_of_system_v());
    REQUIRE(handlers_by_other_names() && handlers_of_faults());
    REQUIRE(waits_with_masks() && masks_by_other_names());
    return HOLDS(faults_of_others());
}

namespace
{

// Sends the signal to a thread again and again, the next one when a handler has run.
class Sender
{
    std::atomic<bool> over{false};
    std::thread thread;

  public:
    Sender(pthread_t to, int number)
        : thread([this, to, number] {
              while (!over) {
                  const sig_atomic_t before = interrupted;
                  pthread_kill(to, number);
                  while (!over && interrupted == before)
                      std::this_thread::yield();
              }
          })
    {
    }
    ~Sender()
    {
        over = true;
        thread.join();
    }
};

void only_counts(int)
{
    interrupted = interrupted + 1;
}

// Handlers run while their thread waits for the device, and not only after that: the device does
// nothing until some have run.
bool signals_in_waits(char *m, char *device)
{
    char byte = 0;
    REQUIRE(signal(SIGUSR2, only_counts) != SIG_ERR && cudaDeviceSynchronize() == 0);
    for (int way = 0; way < 2; way++) {
        stub_remote()->hold(true);
        REQUIRE(stub_launch(m + 1, m, 1, nullptr) == 0);
        interrupted = 0;
        bool some = false;
        const Sender sender(pthread_self(), SIGUSR2);
        std::thread lets_go([&some] {
            for (unsigned left = patience_ms(3000); left && !some; left--) {
                usleep(1000);
                some = interrupted > 20;
            }
            stub_remote()->hold(false);
        });
        const int rc = way ? cudaMemcpy(&byte, device, 1, D2H) : cudaDeviceSynchronize();
        lets_go.join();
        REQUIRE(rc == 0 && some);
    }
    return HOLDS(signal(SIGUSR2, SIG_DFL) == only_counts);
}

} // namespace

// Handlers touch managed memory wherever their thread is in a call: beside calls that were answered
// before the back end ran them, and while the thread waits for these, for a copy or for the device.
bool signals_in_calls()
{
    constexpr unsigned rounds = 60;
    char *m = managed_memory(each_page), *device = device_memory(each_page), bytes[64] = {};
    handled = managed_memory(each_page);
    interrupted = 0;
    REQUIRE(m && device && handled && signals_in_waits(m, device));
    REQUIRE(signal(SIGUSR1, touches_in_call) != SIG_ERR);
    for (unsigned i = 1; i <= rounds; i++) {
        const Sender sender(pthread_self(), SIGUSR1);
        m[0] = static_cast<char>(i);
        REQUIRE(stub_launch(m + 1, m, 1, nullptr) == 0 && cudaDeviceSynchronize() == 0);
        stub_remote()->slow(2000);
        for (unsigned j = 0; j < 3; j++) // at rest these are answered before they are run
            REQUIRE(cudaMemcpy(device, bytes, sizeof(bytes), H2D) == 0);
        REQUIRE(stub_launch(m + 2, m, 1, nullptr) == 0);
        REQUIRE((i % 2 ? cudaDeviceSynchronize() : cudaMemcpy(bytes, device, 8, D2H)) == 0);
        stub_remote()->slow(0);
        REQUIRE(cudaDeviceSynchronize() == 0 && m[1] == m[0] && m[2] == m[0]);
    }
    REQUIRE(interrupted > 0 && signal(SIGUSR1, SIG_DFL) != SIG_ERR);
    return HOLDS(cudaFree(m) == 0 && cudaFree(handled) == 0 && cudaFree(device) == 0);
}
