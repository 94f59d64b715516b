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
#include <thread>
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
    void (*prepare)() = nullptr;
    if (library) {
        *reinterpret_cast<void **>(&prepare) = dlsym(library, "_Z20ibx_uncaught_preparev");
        *reinterpret_cast<void **>(&ends) = dlsym(library, "_Z17ibx_uncaught_endsPFvPvPKcES_");
    }
    if (!prepare || !ends) {
        std::fprintf(stderr, "usage: test_uncaught LIBRARY\n");
        return EXIT_FAILURE;
    }
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
