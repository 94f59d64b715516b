// SPDX-License-Identifier: LGPL-2.1-or-later
#include "frontend-glue/plugin/uncaught.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <link.h>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace
{

constexpr std::size_t STACK = 8 << 20; // a thread's usual size; only touched pages take memory

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

void call_end(const char *what)
{
    auto *end = end_client;
    end_client = nullptr; // of what fails from now on, the process may end
    end(client_here, what);
}

void leave()
{
    pthread_exit(nullptr);
}

void leave_after_fault()
{
    call_end("it has returned no result, or follows a pointer that the request does not have");
    pthread_exit(nullptr);
}

// Nothing of the thread's stack has been unwound, and the caller cannot return. So the thread is
// ended on a new stack, with these signals blocked; null: as they are.
[[noreturn]] void end_thread(void (*last)(), const sigset_t *blocked)
{
    ucontext_t alone;
    last_stack.bytes = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (last_stack.bytes == MAP_FAILED || getcontext(&alone))
        std::abort();
    alone.uc_stack.ss_sp = last_stack.bytes;
    alone.uc_stack.ss_size = STACK;
    alone.uc_link = nullptr;
    if (blocked)
        alone.uc_sigmask = *blocked;
    makecontext(&alone, last, 0);
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
    end_thread(leave, nullptr);
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

/* Where the code of GVirtuS is: its program and its libraries, by their names. The handler of the
 * signal must not ask the loader, whose lock another thread may hold while it waits for one that
 * the faulting thread has, as that of malloc(3). */
struct Code {
    std::uintptr_t from, until;
};
constexpr std::size_t CODES = 64;
Code codes[CODES];
std::atomic<std::size_t> code_count; // only grows; GVirtuS unloads nothing

void add_code(Code code)
{
    const std::size_t n = code_count;
    for (std::size_t i = 0; i < n; i++)
        if (codes[i].from == code.from)
            return;
    if (n == CODES) // faults there end the process
        return;
    codes[n] = code;
    code_count = n + 1;
}

int add_object(dl_phdr_info *object, std::size_t, void *)
{
    static const char here = 0;
    const auto own = reinterpret_cast<std::uintptr_t>(&here);
    const char *name =
        object->dlpi_name && object->dlpi_name[0] ? object->dlpi_name : program_invocation_name;
    const char *slash = std::strrchr(name, '/');
    Code found[4];
    std::size_t count = 0;
    if (!std::strstr(slash ? slash + 1 : name, "gvirtus"))
        return 0;
    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = object->dlpi_phdr[i];
        const std::uintptr_t from = object->dlpi_addr + part.p_vaddr;
        if (part.p_type == PT_LOAD && own >= from && own - from < part.p_memsz)
            return 0; // this plugin
        if (part.p_type == PT_LOAD && part.p_flags & PF_X && count < 4)
            found[count++] = {from, from + part.p_memsz};
    }
    for (std::size_t i = 0; i < count; i++)
        add_code(found[i]);
    return 0;
}

// Whether an instruction is GVirtuS's own. That code holds no lock where it follows NULL; libraries
// that it calls may do so.
bool is_of_gvirtus(std::uintptr_t instruction)
{
    const std::size_t n = code_count;
    for (std::size_t i = 0; i < n; i++)
        if (instruction >= codes[i].from && instruction < codes[i].until)
            return true;
    return false;
}

// The instruction is run again after this, and the signal of another process is sent again.
void end_process(int number, const siginfo_t &info)
{
    sigaction(number, &fault_before, nullptr);
    if (info.si_code <= 0)
        raise(number);
}

// A fault of any other kind, and a signal that is none, are handled as before, which usually ends
// the process. There the thread may be anywhere, as in malloc(3): so nothing is used that may
// allocate, not even a variable of the thread.
void on_fault(int number, siginfo_t *info, void *context)
{
    if (info->si_code == SEGV_MAPERR && reinterpret_cast<std::uintptr_t>(info->si_addr) < SMALL &&
        is_of_gvirtus(instruction_of(context)) && end_client)
        end_thread(leave_after_fault, &static_cast<const ucontext_t *>(context)->uc_sigmask);
    if (fault_before.sa_handler == SIG_DFL || fault_before.sa_handler == SIG_IGN)
        end_process(number, *info);
    else if (fault_before.sa_flags & SA_SIGINFO)
        fault_before.sa_sigaction(number, info, context);
    else
        fault_before.sa_handler(number);
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
    static std::mutex adding;
    std::call_once(once, catch_faults);
    const std::lock_guard<std::mutex> alone(adding);
    dl_iterate_phdr(add_object, nullptr); // handlers have been loaded since
}

void ibx_uncaught_ends(void (*end)(void *client, const char *what), void *client)
{
    end_client = end;
    client_here = client;
}
