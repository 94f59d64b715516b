// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Registered memory that kernels use, and what handlers of forks do in a child before the preload
// library's.
#include "tests/gvirtus/registered_memory.h"

#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace
{

constexpr std::size_t own_pages = 3;

// Where a child is to map pages of its own; null: nowhere.
char *own_at;

// No call of another library: sanitizers have not begun when begin() runs.
void in_child()
{
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void *made = own_at ? mmap(own_at, own_pages * registered::page_bytes, PROT_READ | PROT_WRITE,
                               kind, -1, 0)
                        : nullptr;
    if (made == MAP_FAILED)
        own_at = nullptr;
    else if (made)
        std::memset(made, 'o', own_pages * registered::page_bytes);
}

// Before the constructors of libraries, so that in_child() runs before theirs.
#if defined(__clang__)
__attribute__((no_sanitize("address", "undefined")))
#endif
void begin()
{
    pthread_atfork(nullptr, nullptr, in_child);
}

__attribute__((section(".preinit_array"), used)) void (*const at_start)() = begin;

} // namespace

// A child keeps what such a handler has mapped where its parent has registered memory, and gets all
// the other bytes of that.
bool registered_and_handlers_of_forks()
{
    using namespace registered;
    const std::size_t first = 77 * page_bytes, end = first + own_pages * page_bytes;
    char *memory = new_pages();
    REQUIRE(cudaGetLastError() == 0 && memory && host_register(memory, many) == 0);
    REQUIRE(launches(memory, memory + 1, 1) && is_shared(memory) == reach());
    std::vector<char> bytes = random_bytes(many, 12);
    std::memcpy(memory, bytes.data(), many);
    own_at = memory + first;
    int status = -1;
    const pid_t child = fork();
    if (!child) {
        if (own_at)
            std::memset(&bytes[first], 'o', end - first);
        std::_Exit(!reach() == !own_at && has(memory, bytes) && !is_shared(memory) ? 0 : 1);
    }
    own_at = nullptr;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0 && has(memory, bytes));
    return HOLDS(host_unregister(memory) == 0 && munmap(memory, many) == 0);
}
