// SPDX-License-Identifier: LGPL-2.1-or-later
#include "frontend-glue/plugin/uncaught.h"

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace
{

constexpr std::size_t STACK = 1 << 18;

struct Stack {
    void *bytes = nullptr;
    ~Stack()
    {
        if (bytes)
            munmap(bytes, STACK);
    }
};

std::terminate_handler before;
struct sigaction fault_before;
thread_local void (*end_client)(void *client, const char *what);
thread_local void *client_here;
thread_local Stack last_stack; // until the thread has left it

void leave()
{
    pthread_exit(nullptr);
}

void call_end(const char *what)
{
    auto *end = end_client;
    end_client = nullptr; // of what fails from now on, the process may end
    end(client_here, what);
}

// Nothing of the thread's stack has been unwound, and the caller cannot return. So the thread is
// ended on a new stack.
[[noreturn]] void end_thread()
{
    ucontext_t alone;
    last_stack.bytes =
        mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (last_stack.bytes == MAP_FAILED || getcontext(&alone))
        std::abort();
    alone.uc_stack.ss_sp = last_stack.bytes;
    alone.uc_stack.ss_size = STACK;
    alone.uc_link = nullptr;
    makecontext(&alone, leave, 0);
    setcontext(&alone);
    std::abort();
}

void on_terminate()
{
    if (!end_client)
        before();
    try {
        if (std::exception_ptr thrown = std::current_exception())
            std::rethrow_exception(thrown);
        call_end("no exception");
    } catch (const std::exception &e) {
        call_end(e.what());
    } catch (...) {
        call_end("no std::exception");
    }
    end_thread();
}

/* ------------------------------------------------------------------- handlers without result */

constexpr std::uintptr_t SMALL = 4096; // members of an object at NULL have addresses below this

std::uintptr_t instruction_of(const void *context)
{
    const auto &machine = static_cast<const ucontext_t *>(context)->uc_mcontext;
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return machine.pc;
#else
    (void)machine;
    return 0;
#endif
}

// Whether an instruction is GVirtuS's own. That code holds no lock where it follows NULL; libraries
// that it calls may do so.
bool is_of_gvirtus(std::uintptr_t instruction)
{
    Dl_info object{}, own{};
    if (!instruction || !dladdr(reinterpret_cast<void *>(instruction), &object) ||
        !object.dli_fname || !dladdr(reinterpret_cast<void *>(leave), &own))
        return false;
    const char *slash = std::strrchr(object.dli_fname, '/');
    return object.dli_fbase != own.dli_fbase &&
           std::strstr(slash ? slash + 1 : object.dli_fname, "gvirtus");
}

// The instruction is run again after this, and the signal of another process is sent again.
void end_process(int number, const siginfo_t &info)
{
    sigaction(number, &fault_before, nullptr);
    if (info.si_code <= 0)
        raise(number);
}

// A fault of any other kind, and a signal that is none, are handled as before, which usually ends
// the process.
void on_fault(int number, siginfo_t *info, void *context)
{
    if (end_client && info->si_code == SEGV_MAPERR &&
        reinterpret_cast<std::uintptr_t>(info->si_addr) < SMALL &&
        is_of_gvirtus(instruction_of(context))) {
        call_end("it has returned no result, or follows a pointer that the request does not have");
        end_thread();
    }
    if (fault_before.sa_flags & SA_SIGINFO)
        fault_before.sa_sigaction(number, info, context);
    else if (fault_before.sa_handler != SIG_DFL && fault_before.sa_handler != SIG_IGN)
        fault_before.sa_handler(number);
    else
        end_process(number, *info);
}

void catch_faults()
{
    struct sigaction ours {
    };
    if (sigaction(SIGSEGV, nullptr, &fault_before))
        return;
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | (fault_before.sa_flags & SA_ONSTACK);
    ours.sa_mask = fault_before.sa_mask;
    sigaction(SIGSEGV, &ours, nullptr);
}

} // namespace

void ibx_uncaught_prepare()
{
    if (std::get_terminate() != on_terminate)
        before = std::set_terminate(on_terminate);
    static std::once_flag once;
    std::call_once(once, catch_faults);
}

void ibx_uncaught_ends(void (*end)(void *client, const char *what), void *client)
{
    end_client = end;
    client_here = client;
}
