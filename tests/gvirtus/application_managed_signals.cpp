// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Managed memory, and the program's own signals.
#include "tests/gvirtus/application.h"

#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <sys/mman.h>
#include <sys/wait.h>
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

// Its handler is called as the kernel does it, and where it has none the signal ends it.
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

// Threads that block all signals, as those of servers do, and handlers meanwhile.
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

// The thread that gives memory to the device is interrupted by handlers that touch other such
// memory.
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

// In strict ISO C signal(3) is this one.
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

} // namespace

bool managed_signals()
{
    REQUIRE(sent_signals() && blocked_signals());
    REQUIRE(signals_while_given() && signals_of_system_v());
    return HOLDS(faults_of_others());
}
