// SPDX-License-Identifier: LGPL-2.1-or-later
#include "frontend-glue/plugin/uncaught.h"

#include <cstdlib>
#include <exception>
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
    end_client = nullptr;
    end(client_here, what);
}

// Nobody catches the exception, so nothing of the thread's stack has been unwound, and this handler
// must not return. So the thread is ended on a new stack.
void on_terminate()
{
    ucontext_t alone;
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

} // namespace

void ibx_uncaught_prepare()
{
    if (std::get_terminate() != on_terminate)
        before = std::set_terminate(on_terminate);
}

void ibx_uncaught_ends(void (*end)(void *client, const char *what), void *client)
{
    end_client = end;
    client_here = client;
}
