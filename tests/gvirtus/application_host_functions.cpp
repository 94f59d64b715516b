// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Functions of the host in streams: cudaLaunchHostFunc, cudaStreamAddCallback.
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/connections.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace
{

using LaunchHost = int(void *, void (*)(void *), void *);
using AddCallback = int(void *, void (*)(void *, int, void *), void *, unsigned);

void set_flag(void *flag)
{
    *static_cast<std::atomic<int> *>(flag) = 1;
}

// Waits for a flag that the enqueuing thread sets only after the call has returned.
void wait_for_flag(void *flags)
{
    auto *both = static_cast<std::atomic<int> *>(flags);
    while (!both[0])
        std::this_thread::yield();
    both[1] = 1;
}

// Ends when that thread has waited for longer than a copy waits for a function.
void wait_for_waiting(void *thread)
{
    for (int asleep = 0; asleep < 300; usleep(1000))
        asleep = thread_state(getpid(), *static_cast<pid_t *>(thread)) == 'S' ? asleep + 1 : 0;
}

struct Step {
    char *memory;
    char expected, written;
    std::atomic<bool> may; // be called: until then it waits
    bool right;
};

// Reads what an earlier copy has written, and writes what a later one reads.
void step(void *argument)
{
    auto *s = static_cast<Step *>(argument);
    while (!s->may)
        std::this_thread::yield();
    s->right = s->memory[0] == s->expected && s->memory[9999] == s->expected;
    std::memset(s->memory, s->written, 10000);
}

struct Called {
    std::vector<int> *order;
    int number;
    void *stream;
    bool right;
};

void note_call(void *stream, int status, void *argument)
{
    auto *c = static_cast<Called *>(argument);
    c->right = stream == c->stream && !status;
    c->order->push_back(c->number);
}

struct Calls {
    void *stream, *event, *device, *pinned, *registered;
    char *host;
    std::vector<int> codes;
    int last;
};

// CUDA permits none of these calls in such a function. Those that wait would wait for themselves;
// the others it may permit.
void call_cuda(void *argument)
{
    auto *c = static_cast<Calls *>(argument);
    void *made = nullptr;
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    c->codes = {cudaStreamSynchronize(c->stream),
                cudaDeviceSynchronize(),
                cudaStreamQuery(nullptr),
                cudaMalloc(&made, 100),
                cudaFree(c->device),
                cudaMemcpy(c->device, c->host, 100, H2D),
                cudaMemcpyAsync(c->host, c->device, 100, D2H, c->stream),
                cudaMemset(c->device, 1, 100),
                launch_host(c->stream, set_flag, nullptr),
                stub_launch(c->host, c->host, 1, c->stream),
                cudaFreeHost(c->pinned),
                host_unregister(c->registered)};
    c->last = cudaGetLastError();
    c->codes.push_back(cudaGetLastError() == 0 && cudaSetDevice(0) == 0 ? 800 : 0);
    const bool asks = cudaEventQuery(c->event) == 0 && cudaEventSynchronize(c->event) == 0;
    c->codes.push_back(asks ? 800 : 0);
}

} // namespace

bool calls_in_host_functions()
{
    char host[100] = {}, registered[100] = {};
    Calls calls = {nullptr, nullptr, device_memory(100), nullptr, registered, host, {}, 0};
    REQUIRE(cudaMallocHost(&calls.pinned, 100) == 0 && host_register(registered, 100) == 0);
    REQUIRE(cudaEventCreate(&calls.event) == 0 && cudaEventRecord(calls.event, nullptr) == 0);
    REQUIRE(cudaStreamCreate(&calls.stream) == 0);
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(calls.stream, call_cuda, &calls) == 0);
    REQUIRE(cudaStreamSynchronize(calls.stream) == 0 && cudaGetLastError() == 0);
    for (int code : calls.codes)
        REQUIRE(code == 800);
    REQUIRE(calls.codes.size() == 14 && calls.last == 800);
    REQUIRE(cudaFreeHost(calls.pinned) == 0 && host_unregister(registered) == 0);
    return HOLDS(cudaFree(calls.device) == 0 && cudaEventDestroy(calls.event) == 0 &&
                 cudaStreamDestroy(calls.stream) == 0);
}

bool host_functions()
{
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    auto *add_callback = preloaded<AddCallback>("cudaStreamAddCallback");
    void *stream = nullptr, *other = nullptr, *pinned = nullptr, *slow = nullptr, *apart = nullptr;
    char *device = device_memory();
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    // The call does not wait, the stream does, and others do not.
    std::atomic<int> flags[2] = {{0}, {0}}, flag{0};
    REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
    REQUIRE(launch_host(stream, set_flag, &flag) == 0 && cudaStreamQuery(stream) == 600);
    REQUIRE(flags[1] == 0 && flag == 0);
    flags[0] = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1 && flag == 1);
    cudaGetLastError(); // of the double, that it was not ready
    // Between copies, of memory of each kind.
    REQUIRE(cudaMallocHost(&pinned, 10000) == 0 && cudaMallocHost(&slow, 10000) == 0);
    std::vector<char> pageable(10000), there(10000, 'a'), back(10000);
    for (char *memory : {static_cast<char *>(pinned), pageable.data()}) {
        Step s = {memory, 'a', 'b', {memory == pinned}, false};
        REQUIRE(cudaMemcpyAsync(device, there.data(), 10000, H2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(memory, device, 10000, D2H, stream) == 0);
        stub_remote()->slow(50000); // the stream gets to the function when the next copy was asked
        REQUIRE(cudaMemcpyAsync(device + 10000, slow, 10000, H2D, stream) == 0);
        REQUIRE(launch_host(stream, step, &s) == 0);
        REQUIRE(cudaMemcpyAsync(device, memory, 10000, H2D, stream) == 0);
        s.may = true;
        REQUIRE(cudaMemcpyAsync(back.data(), device, 10000, D2H, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0);
        // The bytes of pageable memory are those of the call, as CUDA takes them there.
        REQUIRE(s.right && back == (memory == pinned ? std::vector<char>(10000, 'b') : there));
        stub_remote()->slow(0);
    }
    // For copies from the device to page-locked memory the stream's order is enough.
    flags[0] = !over_shm;
    flags[1] = 0;
    REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
    REQUIRE(cudaMemcpyAsync(pinned, device, 10000, D2H, stream) == 0);
    flags[0] = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1);
    REQUIRE(!std::memcmp(pinned, back.data(), 10000));
    // Calls that copy such memory to the device do not wait, either: the function may wait for what
    // the program enqueues next.
    REQUIRE(stub_launch(device + 10100, device, 1, stream) == 0); // which loads the kernel
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    for (int round = 0; round < 3; round++) {
        char *memory = static_cast<char *>(pinned);
        std::memset(memory, 'x', 10000);
        flags[0] = flags[1] = 0;
        REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
        REQUIRE(cudaMemcpyAsync(device, memory, 10000, H2D, stream) == 0);
        REQUIRE(cudaMemcpyAsync(device + 10000, memory + 7, 100, H2D, stream) == 0);
        REQUIRE(stub_launch(device + 10100, device, 10000, stream) == 0);
        memory[0] = memory[9999] = memory[7] = static_cast<char>('a' + round);
        flags[0] = 1;
        REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1);
        REQUIRE(device_has(device, memory, 10000) && device_has(device + 10000, memory + 7, 100));
        REQUIRE(device_has(device + 10100, memory, 10000) && cudaGetLastError() == 0);
    }
    // A copy that cannot be made so waits in its call, and nothing has failed.
    pid_t thread = gettid();
    for (int before : {0, 1}) {
        REQUIRE(before == 0 || launch_host(stream, nullptr, nullptr) == before);
        REQUIRE(launch_host(stream, wait_for_waiting, &thread) == 0);
        stub_remote()->inject("cudaGraphInstantiate", 1, 2, false);
        REQUIRE(cudaMemcpyAsync(device + 300, static_cast<char *>(pinned) + before, 55, H2D,
                                stream) == 0);
        stub_remote()->inject("", 0, 0, false);
        REQUIRE(cudaGetLastError() == before && cudaGetLastError() == 0);
    }
    // Other copies do not wait, either, after many of them, also while a function in another stream
    // waits.
    REQUIRE(cudaStreamCreateWithFlags(&apart, 1) == 0);
    stub_remote()->hold_stream(reinterpret_cast<std::uintptr_t>(apart));
    REQUIRE(cudaMemsetAsync(device, 0, 1, apart) == 0 && launch_host(apart, set_flag, &flag) == 0);
    for (int round = 0; round < 2; round++) {
        char *memory = static_cast<char *>(pinned);
        std::memset(memory, 'x', 200);
        flags[0] = flags[1] = 0;
        REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
        for (std::size_t n = 1; n <= 40; n++)
            REQUIRE(cudaMemcpyAsync(device + 100 * n, memory + n + 40 * round, n, H2D, stream) ==
                    0);
        for (int i = 0; i < 200; i++)
            memory[i] = static_cast<char>(i + round);
        flags[0] = 1;
        REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1);
        for (std::size_t n = 1; n <= 40; n++)
            REQUIRE(device_has(device + 100 * n, memory + n + 40 * round, n));
    }
    stub_remote()->hold_stream(0);
    REQUIRE(cudaStreamDestroy(apart) == 0);
    // A copy that waits does so in the order of the legacy stream; the program has not waited for
    // that.
    for (int way = 0; way < 4; way++) {
        char *memory = way % 2 ? pageable.data() : static_cast<char *>(pinned);
        Step s = {memory, 'a', 'b', {true}, false};
        std::memset(memory, 'a', 10000);
        stub_remote()->slow(50000);
        REQUIRE(cudaMemcpyAsync(device + 10000, slow, 10000, H2D, stream) == 0);
        REQUIRE(launch_host(stream, step, &s) == 0);
        REQUIRE((way < 2 ? cudaMemcpy(device, memory, 10000, H2D)
                         : cudaMemcpy2D(device, 100, memory, 200, 100, 50, H2D)) == 0);
        stub_remote()->slow(0);
        REQUIRE(cudaMemcpy(back.data(), device, 5000, D2H) == 0 && s.right);
        REQUIRE(back[0] == 'b' && back[4999] == 'b');
        std::fill(back.begin(), back.end(), 'x');
    }
    for (char *memory : {static_cast<char *>(pinned), pageable.data()}) {
        Step s = {memory, 'a', 'b', {true}, false};
        std::memset(memory, 'a', 10000);
        stub_remote()->slow(50000);
        REQUIRE(cudaMemcpyAsync(device + 10000, slow, 10000, H2D, stream) == 0);
        REQUIRE(launch_host(stream, step, &s) == 0);
        REQUIRE(cudaMemcpy(back.data(), memory, 10000, 0) == 0);
        stub_remote()->slow(0);
        REQUIRE(s.right && back == std::vector<char>(10000, 'b'));
    }
    // So does memset of registered memory, which the program itself sets.
    std::vector<char> registered(10000);
    REQUIRE(host_register(registered.data(), registered.size()) == 0);
    for (bool async : {false, true}) {
        std::fill(registered.begin(), registered.end(), 'a');
        Step s = {registered.data(), 'a', 'b', {true}, false};
        stub_remote()->slow(50000);
        REQUIRE(cudaMemcpyAsync(device + 10000, slow, 10000, H2D, stream) == 0);
        REQUIRE(launch_host(stream, step, &s) == 0);
        REQUIRE((async ? cudaMemsetAsync(registered.data(), 'c', registered.size(), stream)
                       : cudaMemset(registered.data(), 'c', registered.size())) == 0);
        stub_remote()->slow(0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && s.right);
        REQUIRE(registered == std::vector<char>(10000, 'c'));
    }
    REQUIRE(host_unregister(registered.data()) == 0);
    // The legacy stream does not wait for others; the test's alarm ends it otherwise.
    REQUIRE(cudaStreamCreateWithFlags(&apart, 1) == 0);
    flags[0] = flags[1] = 0;
    REQUIRE(launch_host(apart, wait_for_flag, flags) == 0);
    REQUIRE(cudaMemcpy(back.data(), there.data(), 10000, 0) == 0 && back == there);
    REQUIRE(cudaMemcpy(back.data(), pinned, 10000, 0) == 0 && back[0] == 'b' && !flags[1]);
    flags[0] = 1;
    REQUIRE(cudaStreamSynchronize(apart) == 0 && flags[1] == 1);
    // Callbacks of two streams, each in its order.
    std::vector<int> order[2];
    std::vector<Called> calls(100);
    for (int i = 0; i < 100; i++) {
        calls[std::size_t(i)] = {&order[i % 2], i, i % 2 ? other : stream, false};
        REQUIRE(add_callback(i % 2 ? other : stream, note_call, &calls[std::size_t(i)], 0) == 0);
    }
    REQUIRE(cudaDeviceSynchronize() == 0);
    for (int i = 0; i < 100; i++)
        REQUIRE(calls[std::size_t(i)].right && order[i % 2][std::size_t(i / 2)] == i);
    // The call returns its errors, and no function is called.
    REQUIRE(fails(launch_host(reinterpret_cast<void *>(12345), set_flag, nullptr), 400));
    REQUIRE(fails(launch_host(stream, nullptr, nullptr), 1));
    REQUIRE(fails(add_callback(stream, note_call, nullptr, 1), 1));
    return HOLDS(cudaFreeHost(pinned) == 0 && cudaFreeHost(slow) == 0);
}

namespace
{

// Each of many short copies from one variable to one place has the value at its call. Work of the
// stream that comes between them reads it.
bool values_behind_gate(char *device, void *stream)
{
    constexpr unsigned many = 200;
    std::atomic<int> flags[2] = {{0}, {0}};
    std::vector<unsigned> seen(many);
    char *place = device, *seen_there = device + 4096;
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(stream, wait_for_flag, flags) == 0);
    for (unsigned i = 0, value; i < many; i++) {
        value = 1000 + i;
        REQUIRE(cudaMemcpyAsync(place, &value, sizeof(value), H2D, stream) == 0);
        value = 0;
        REQUIRE(cudaMemcpyAsync(seen_there + i * sizeof(value), place, sizeof(value), D2D,
                                stream) == 0);
    }
    REQUIRE(!flags[1]);
    flags[0] = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1);
    REQUIRE(cudaMemcpy(seen.data(), seen_there, many * sizeof(unsigned), D2H) == 0);
    for (unsigned i = 0; i < many; i++)
        REQUIRE(seen[i] == 1000 + i);
    return true;
}

} // namespace

// A function that waits until the program has enqueued the copies behind it: as natively, no call
// that copies waits for the function. Otherwise the test's alarm ends the test.
bool host_functions_as_gates()
{
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    auto *enter = preloaded<int(void *, std::size_t, unsigned)>("cudaHostRegister");
    void *stream = nullptr, *pinned = nullptr;
    char *device = device_memory();
    std::vector<char> registered(200000), pageable(65536);
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMallocHost(&pinned, 200000) == 0);
    REQUIRE(enter(registered.data(), registered.size(), 0) == 0);
    REQUIRE(stub_launch(device + 200000, device, 1, stream) == 0); // which loads the kernel
    REQUIRE(cudaStreamSynchronize(stream) == 0);
    char *memories[] = {static_cast<char *>(pinned), registered.data(), pageable.data()};
    for (int way = 0; way < 5; way++) { // from the device to pageable memory natively waits, too
        char *memory = memories[way % 3];
        const bool to_device = way < 3, takes = memory == pageable.data();
        for (std::size_t n :
             {std::size_t(4), std::size_t(10000), std::size_t(65536), std::size_t(200000)}) {
            if (takes && n > pageable.size()) // so does this
                continue;
            std::atomic<int> flags[2] = {{0}, {0}};
            std::vector<char> before(n, 'x'), after(n, static_cast<char>('a' + way));
            std::memset(memory, 'x', n);
            if (!to_device)
                REQUIRE(cudaMemcpy(device, after.data(), n, H2D) == 0);
            REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
            REQUIRE(cudaMemcpyAsync(to_device ? device : memory, to_device ? memory : device, n,
                                    to_device ? H2D : D2H, stream) == 0);
            if (to_device)
                std::memcpy(memory, after.data(), n);
            REQUIRE(!flags[1]);
            flags[0] = 1;
            REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1);
            if (to_device)
                REQUIRE(device_has(device, takes ? before.data() : after.data(), n));
            else
                REQUIRE(!std::memcmp(memory, after.data(), n));
        }
    }
    REQUIRE(values_behind_gate(device, stream));
    return HOLDS(cudaGetLastError() == 0);
}

// A launch with attributes does not wait for copies in other streams, which may wait for the
// program.
bool launches_beside_gates()
{
    constexpr long ignored = 0, cooperative = 2, early = 6;
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    auto *launch = preloaded<LaunchAs>("cudaLaunchKernelExC");
    constexpr std::size_t n = 200000;
    void *gated = nullptr, *stream = nullptr, *pinned = nullptr;
    char *device = device_memory(2 * n);
    std::size_t some = 1000;
    void *to = device + some, *from = device, *arguments[] = {&to, &from, &some};
    REQUIRE(cudaStreamCreate(&gated) == 0 && cudaStreamCreate(&stream) == 0);
    REQUIRE(cudaMallocHost(&pinned, n) == 0);
    LaunchAttribute all[] = {{early, {1}}, {ignored, {1}}};
    const LaunchConfig config = {{2, 1, 1}, {32, 1, 1}, 0, stream, all, 2};
    for (bool is_early : {true, false}) {
        std::atomic<int> flags[2] = {{0}, {0}};
        const char letter = is_early ? 'e' : 'c';
        LaunchConfig its = config;
        all[0].id = is_early ? early : cooperative;
        its.count = is_early ? 2 : 1;
        REQUIRE(cudaMemset(device, letter, some) == 0);
        REQUIRE(launch(&its, &stub_kernel, arguments) == 0);
        REQUIRE(launch_host(gated, wait_for_flag, flags) == 0);
        REQUIRE(cudaMemcpyAsync(device + n, pinned, n, H2D, gated) == 0);
        REQUIRE(cudaMemcpyAsync(pinned, device + n, n, D2H, gated) == 0);
        REQUIRE(launch(&its, &stub_kernel, arguments) == 0);
        REQUIRE(!flags[1]);
        flags[0] = 1;
        REQUIRE(cudaStreamSynchronize(gated) == 0 && flags[1] == 1);
        REQUIRE(device_has(device + some, std::vector<char>(some, letter).data(), some));
    }
    return HOLDS(cudaFreeHost(pinned) == 0);
}

// Gates of such copies go with the context, and later gates at the same addresses stay.
bool gates_after_reset()
{
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    char *first = nullptr;
    for (char letter : {'a', 'b', 'c'}) {
        const std::vector<char> there(10000, letter);
        void *stream = nullptr;
        std::atomic<int> flags[2] = {{0}, {0}};
        char *device = device_memory(10000);
        first = first ? first : device;
        REQUIRE(device == first && cudaStreamCreate(&stream) == 0);
        REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
        REQUIRE(cudaMemcpyAsync(device, there.data(), there.size(), H2D, stream) == 0);
        REQUIRE(!flags[1]);
        flags[0] = 1;
        REQUIRE(cudaStreamSynchronize(stream) == 0 && flags[1] == 1);
        REQUIRE(device_has(device, there.data(), there.size()));
        REQUIRE(cudaDeviceReset() == 0);
    }
    return HOLDS(cudaGetLastError() == 0);
}

namespace
{

// A copy of the letter behind a function, on a new allocation: in a context with an error, or in a
// good one, in which the letter is copied.
bool copied_behind_function(char letter, bool fails, char **device)
{
    void *const own = reinterpret_cast<void *>(2); // cudaStreamPerThread, also after a reset
    const std::vector<char> there(1000, letter);
    std::atomic<int> flags[2] = {{0}, {0}};
    REQUIRE((*device = device_memory(3000)) != nullptr);
    if (fails) {
        stub_remote()->inject("dma", 1, 46, true);
        stub_remote()->hold(true);
        REQUIRE(stub_launch(*device + 1000, *device + 2000, 1000, own) == 0);
    }
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(own, wait_for_flag, flags) == 0);
    REQUIRE(cudaMemcpyAsync(*device, there.data(), there.size(), H2D, own) == 0 && !flags[1]);
    flags[0] = 1;
    if (fails)
        stub_remote()->hold(false);
    REQUIRE(cudaStreamSynchronize(own) == (fails ? 46 : 0) && flags[1] == (fails ? 0 : 1));
    return HOLDS(fails || device_has(*device, there.data(), there.size()));
}

// Of several devices one is reset. A copy that was lost with the context has no bytes for a later
// one.
bool copies_after_reset_of_second()
{
    char *lost = nullptr, *device = nullptr;
    REQUIRE(device_memory(1) && cudaSetDevice(1) == 0);
    REQUIRE(copied_behind_function('a', true, &lost) && cudaDeviceReset() == 0);
    stub_remote()->inject("", 0, 0, false);
    REQUIRE(cudaGetLastError() == 0 || cudaGetLastError() == 0);
    return HOLDS(copied_behind_function('b', false, &device) && device == lost);
}

} // namespace

// In a context with an error no function is called; after its reset nobody waits for them.
bool host_functions_after_reset()
{
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    std::vector<char> there(10000, 'a'), back(10000);
    void *stream = nullptr;
    std::atomic<int> flag{0};
    char *device = device_memory(10000);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    stub_remote()->inject("dma", 1, 46, true);
    stub_remote()->hold(true);
    REQUIRE(stub_launch(device + 5000, device, 5000, stream) == 0);
    REQUIRE(launch_host(stream, set_flag, &flag) == 0);
    stub_remote()->hold(false);
    REQUIRE(cudaStreamSynchronize(stream) == 46 && cudaDeviceReset() == 0 && !flag);
    stub_remote()->inject("", 0, 0, false);
    REQUIRE(cudaGetLastError() == 0 || cudaGetLastError() == 0);
    device = device_memory(10000);
    REQUIRE(device && cudaStreamCreate(&stream) == 0);
    // Each wait for a function that is not called takes 40 ms; on a busy machine others may, too.
    using std::chrono::steady_clock;
    auto shortest = steady_clock::duration::max();
    for (int i = 0; i < 50; i++) {
        const auto began = steady_clock::now();
        REQUIRE(cudaDeviceSynchronize() == 0);
        shortest = std::min(shortest, steady_clock::now() - began);
    }
    REQUIRE(shortest < std::chrono::milliseconds(20));
    REQUIRE(cudaMemcpyAsync(device, there.data(), 10000, H2D, stream) == 0);
    REQUIRE(launch_host(stream, set_flag, &flag) == 0);
    REQUIRE(cudaMemcpyAsync(back.data(), device, 10000, D2H, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && flag);
    REQUIRE(back == there && cudaFree(device) == 0);
    return copies_after_reset_of_second();
}

// Over a connection that breaks for good: if a function was not called, the next wait returns an
// error.
bool host_functions_lost()
{
    auto *launch_host = preloaded<LaunchHost>("cudaLaunchHostFunc");
    void *stream = nullptr, *other = nullptr, *event = nullptr, *earlier = nullptr;
    std::atomic<int> flags[2] = {{0}, {0}}, flag{0};
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamCreate(&other) == 0);
    REQUIRE(cudaEventCreate(&event) == 0 && cudaEventCreate(&earlier) == 0);
    const Connections of_threads;
    REQUIRE(launch_host(stream, wait_for_flag, flags) == 0);
    REQUIRE(cudaEventRecord(earlier, other) == 0);
    REQUIRE(launch_host(stream, set_flag, &flag) == 0 && cudaStreamSynchronize(other) == 0);
    REQUIRE(cudaEventRecord(event, stream) == 0);
    of_threads.cut();
    flags[0] = 1;
    REQUIRE(cudaStreamSynchronize(stream) == 999 && cudaGetLastError() == 999 && flag == 0);
    REQUIRE(cudaEventSynchronize(event) == 999 && cudaEventSynchronize(earlier) == 0);
    REQUIRE(preloaded<int(void *)>("cudaEventQuery")(event) == 999);
    REQUIRE(cudaDeviceSynchronize() == 999 && cudaStreamSynchronize(other) == 0);
    return HOLDS(fails(launch_host(stream, set_flag, &flag), 801));
}

// The process exits with functions that nobody has called yet, and one that is never called.
bool host_functions_at_exit()
{
    static std::atomic<int> flags[2];
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    for (int i = 0; i < 10; i++)
        REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(stream, set_flag, flags) == 0);
    stub_remote()->slow(1000000);
    cudaMemcpyAsync(device_memory(), flags, 8, H2D, stream);
    preloaded<LaunchHost>("cudaLaunchHostFunc")(stream, set_flag, flags);
    std::exit(0);
}

namespace
{

void never_return(void *flag)
{
    for (set_flag(flag);;)
        pause();
}

} // namespace

// One of them does not return: the process ends all the same.
bool host_function_for_ever()
{
    std::atomic<int> flag{0};
    void *stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(preloaded<LaunchHost>("cudaLaunchHostFunc")(stream, never_return, &flag) == 0);
    while (!flag)
        std::this_thread::yield();
    std::exit(0);
}

// While the process has no descriptor for the connections of the library's own threads, calls that
// need one of these fail, and the program goes on. Later they succeed.
bool own_threads_unconnected()
{
    constexpr std::size_t n = 100000;
    rlimit usual;
    std::atomic<int> called{0};
    void *managed = nullptr;
    std::vector<char> memory(n);
    const auto launch = preloaded<LaunchHost>("cudaLaunchHostFunc");
    const auto allocate = preloaded<int(void **, std::size_t, unsigned)>("cudaMallocManaged");
    char *device = device_memory(n);
    REQUIRE(device && !getrlimit(RLIMIT_NOFILE, &usual));
    const rlimit none = {0, usual.rlim_max};
    for (int round = 0; round < 2; round++) { // each call tries anew
        REQUIRE(!setrlimit(RLIMIT_NOFILE, &none));
        const int of_function = launch(nullptr, set_flag, &called);
        const int of_memory = allocate(&managed, n, 1);
        const bool copies = round_trip(device, memory.data(), n - 2, 5);
        REQUIRE(!setrlimit(RLIMIT_NOFILE, &usual));
        REQUIRE(of_function == 999 && of_memory == 2 && copies && !called && !managed);
    }
    REQUIRE(cudaGetLastError() == 2 && !launch(nullptr, set_flag, &called));
    REQUIRE(!cudaDeviceSynchronize() && called == 1 && !allocate(&managed, n, 1));
    std::memset(managed, 7, n);
    return HOLDS(static_cast<char *>(managed)[n - 1] == 7 && !cudaFree(managed));
}
