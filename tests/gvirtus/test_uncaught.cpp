// SPDX-License-Identifier: LGPL-2.1-or-later
//
// frontend-glue/plugin/uncaught.cpp: faults in GVirtuS's code, which end one client, and faults
// elsewhere, which are left to the handler that was there before.
//
// usage: test_uncaught LIBRARY, which has uncaught.cpp
#include "tests/doubles/gvirtus/gvirtus.h"
#include "tests/gvirtus/checks.h"

#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <dlfcn.h>
#include <exception>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern "C" void *__libc_malloc(std::size_t n);
extern "C" void *__libc_calloc(std::size_t n, std::size_t each);

namespace
{

void (*ends)(void (*end)(void *client, const char *what), void *client);
thread_local volatile bool faulting;
volatile int allocated; // while a thread was in a fault
thread_local sigjmp_buf back;

struct End {
    bool called, blocked, on_signal_stack;
};

void on_end(void *client, const char *)
{
    sigset_t blocked;
    stack_t stack;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    sigaltstack(nullptr, &stack);
    *static_cast<End *>(client) = {true, sigismember(&blocked, SIGSEGV) == 1,
                                   (stack.ss_flags & SS_ONSTACK) != 0};
}

void on_fault_before(int, siginfo_t *, void *)
{
    siglongjmp(back, 1);
}

// As it runs in a thread of GVirtuS's, so does the end: signals come as before, on the usual stack.
bool ends_like_a_thread()
{
    End end{};
    std::vector<char> bytes(1 << 16);
    std::thread([&] {
        stack_t stack{};
        stack.ss_sp = bytes.data();
        stack.ss_size = bytes.size();
        sigaltstack(&stack, nullptr);
        ends(on_end, &end);
        gvirtus_take_result(nullptr);
    }).join();
    return HOLDS(end.called && !end.blocked && !end.on_signal_stack);
}

void (*prepare)();

// How a process ends, as wait(2) has it, in which SIGSEGV was handled so before; -1: there is none.
int ends_with(void (*handler)(int), void (*act)())
{
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        const rlimit no_core{};
        struct sigaction before {
        };
        before.sa_handler = handler;
        sigaction(SIGSEGV, &before, nullptr);
        setrlimit(RLIMIT_CORE, &no_core);
        alarm(60);
        prepare();
        act();
        _exit(0);
    }
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

void fault_elsewhere()
{
    *reinterpret_cast<volatile int *>(8) = 0;
}

// GVirtuS's code accesses 8 bytes behind `result`, for a client or for none.
void fault_of_gvirtus(std::uintptr_t result, bool client)
{
    static End end;
    if (client)
        ends(on_end, &end);
    gvirtus_take_result(reinterpret_cast<gvirtus_result *>(result));
}

void signal_sent()
{
    kill(getpid(), SIGSEGV);
}

// What was there before is asked for all that is no fault of GVirtuS's at NULL, for a client.
bool leaves_the_rest()
{
    const auto exit_7 = [](int) { _exit(7); };
    const auto dies = [](void (*act)()) {
        const int status = ends_with(SIG_DFL, act);
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
    };
    const auto exits = [](void (*handler)(int), void (*act)(), int code) {
        const int status = ends_with(handler, act);
        return WIFEXITED(status) && WEXITSTATUS(status) == code;
    };
    REQUIRE(dies(fault_elsewhere) && dies(signal_sent));
    REQUIRE(exits(exit_7, fault_elsewhere, 7) && exits(exit_7, signal_sent, 7));
    REQUIRE(exits(SIG_IGN, signal_sent, 0) && !exits(SIG_IGN, fault_elsewhere, 0));
    REQUIRE(dies([] { fault_of_gvirtus(0, false); }));
    REQUIRE(dies([] { fault_of_gvirtus(4096 - 8, true); }));
    REQUIRE(dies([] { fault_of_gvirtus(std::uintptr_t{1} << 40, true); }));
    // The thread of the client ends, and with it the process, which has no other.
    REQUIRE(exits(
        exit_7, [] { fault_of_gvirtus(4096 - 16, true); }, 0));
    std::set_terminate([] { _exit(9); });
    return HOLDS(exits(
        SIG_DFL, [] { std::terminate(); }, 9));
}

// The fault may be within malloc(3), whose lock the thread then has.
bool allocates_nothing_elsewhere()
{
    allocated = 0;
    volatile bool returned = false;
    std::thread([&] {
        if (sigsetjmp(back, 1)) {
            faulting = false;
            returned = true;
            return;
        }
        faulting = true;
        *reinterpret_cast<volatile int *>(8) = 0;
    }).join();
    return HOLDS(returned && !allocated);
}

} // namespace

// The loader calls these for variables of a thread.
extern "C" __attribute__((visibility("default"))) void *malloc(std::size_t n)
{
    allocated = allocated + (faulting ? 1 : 0);
    return __libc_malloc(n);
}

extern "C" __attribute__((visibility("default"))) void *calloc(std::size_t n, std::size_t each)
{
    allocated = allocated + (faulting ? 1 : 0);
    return __libc_calloc(n, each);
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : nullptr;
    if (library) {
        *reinterpret_cast<void **>(&prepare) = dlsym(library, "_Z20ibx_uncaught_preparev");
        *reinterpret_cast<void **>(&ends) = dlsym(library, "_Z17ibx_uncaught_endsPFvPvPKcES_");
    }
    if (!prepare || !ends) {
        std::fprintf(stderr, "usage: test_uncaught LIBRARY\n");
        return EXIT_FAILURE;
    }
    check("other faults, and signals that are none, are left alone", leaves_the_rest);
    struct sigaction before {
    };
    before.sa_sigaction = on_fault_before;
    before.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &before, nullptr);
    prepare();
    check("a client ends as its thread ran", ends_like_a_thread);
    check("a fault elsewhere is handled without memory", allocates_nothing_elsewhere);
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
