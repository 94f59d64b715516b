// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls in which CUDA waits until all work in the context is over, beside another client's work
// that does not end: natively only that client's process would wait. The double keeps everybody out
// of CUDA while it waits, as the driver does in some of these calls.
#include "tests/gvirtus/gpu_calls_clients.h"

#include <poll.h>

namespace
{

const Body array_of_16 =
    number(IBX_EXT_MALLOC_ARRAY).i32(32).i32(0).i32(0).i32(0).i32(0).u64(16).u64(4).u64(0).i32(0);

// A client in a process of its own.
pid_t client_does(const Gpu &gpu, const std::function<bool(Remote &)> &body)
{
    return spawn([&gpu, body] {
        Client own(gpu);
        own.remote.get_last_error();
        own.remote.set_device(0);
        return body(own.remote) ? 0 : 1;
    });
}

// Whether the process ends, with success, while others' work goes on.
bool ends_well(pid_t pid)
{
    int status = -1;
    if (!becomes_true([&] { return waitpid(pid, &status, WNOHANG) == pid; })) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

// Launches, allocations and copies go on.
bool goes_on(Gpu &gpu)
{
    const pid_t pid = client_does(gpu, [](Remote &own) {
        const std::vector<char> bytes = random_bytes(some, 11);
        std::vector<char> got(some);
        const std::uint64_t stream = own.stream_create(1), from = own.malloc(some),
                            to = own.malloc(some);
        REQUIRE(own.to_device_async(from, bytes.data(), some, stream) == 0);
        REQUIRE(own.call("cudaLaunchKernel",
                         kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some)) == 0);
        REQUIRE(own.from_device_async(got.data(), to, some, stream) == 0);
        return HOLDS(own.stream_synchronize(stream) == 0 && own.get_last_error() == 0);
    });
    return HOLDS(ends_well(pid));
}

// The client's own work, and then a call that waits for it.
bool beside_endless(const std::string &more, const std::function<bool(Remote &)> &waits)
{
    Gpu gpu(resume + more);
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, false, false));
    const pid_t pid = client_does(gpu, [&](Remote &own) {
        const std::vector<char> bytes = random_bytes(some, 12);
        std::vector<char> got(some);
        for (unsigned flags : {1u, 0u}) {
            const std::uint64_t stream = own.stream_create(flags), from = own.malloc(some),
                                to = own.malloc(some);
            REQUIRE(own.to_device(from, bytes.data(), some) == 0);
            REQUIRE(own.call("cudaLaunchKernel",
                             kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some)) == 0);
            REQUIRE(waits(own));
            REQUIRE(own.peek(to, got.data(), some) && got == bytes);
            REQUIRE(own.free(from) == 0 && own.free(to) == 0);
            REQUIRE(!own.peek(to, got.data(), 1) && own.free(to) != 0);
            own.get_last_error();
        }
        return true;
    });
    REQUIRE(ends_well(pid));
    REQUIRE(goes_on(gpu));
    gpu.remote.hold_stream(0);
    return HOLDS(endless.end(false) && is_as_before(gpu, before));
}

bool frees_beside(const std::string &more)
{
    return beside_endless(more, [](Remote &own) { return own.free(own.malloc(some)) == 0; });
}

bool waits_beside()
{
    return beside_endless("", [](Remote &own) { return own.device_synchronize() == 0; });
}

// The endless work is in a stream for which the legacy stream waits; this client does not use that
// one.
bool beside_blocking(const std::function<int(Remote &, std::uint64_t)> &waits)
{
    Gpu gpu(resume);
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, false, false, 0));
    const pid_t pid = client_does(gpu, [&](Remote &own) {
        const std::uint64_t stream = own.stream_create(0), from = own.malloc(some),
                            to = own.malloc(some);
        REQUIRE(own.call("cudaLaunchKernel",
                         kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some)) == 0);
        REQUIRE(waits(own, to) == 0);
        return HOLDS(own.get_last_error() == 0);
    });
    REQUIRE(ends_well(pid));
    REQUIRE(goes_on(gpu));
    gpu.remote.hold_stream(0);
    return HOLDS(endless.end(false) && is_as_before(gpu, before));
}

// Beside a client that has no work under way a wait costs no more than alone: no stream, no event.
bool waits_cheaply_beside_idle()
{
    Gpu gpu;
    const auto calls = [&gpu] {
        const Body memory = Body().u64(gpu.remote.malloc(some));
        return std::make_pair(gpu.made("cudaFree", memory),
                              gpu.made("cudaDeviceSynchronize", Body()));
    };
    const auto alone = calls();
    Client other(gpu, of_another_program);
    other.remote.get_last_error();
    other.remote.set_device(0);
    const std::uint64_t to = other.remote.malloc(some), from = other.remote.malloc(some);
    for (const std::uint64_t stream : {std::uint64_t{0}, other.remote.stream_create(0)})
        REQUIRE(other.remote.call("cudaLaunchKernel",
                                  kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some)) == 0);
    REQUIRE(other.remote.device_synchronize() == 0);
    const auto beside = calls();
    return HOLDS(alone.first > 0 && beside.first <= alone.first && alone.second > 0 &&
                 beside.second <= alone.second);
}

// CUDA has no call that frees arrays without a wait: the back end frees them later.
bool frees_array_beside()
{
    return beside_endless("", [](Remote &own) {
        Body mipmap = array_of_16;
        mipmap.bytes[0] = IBX_EXT_MALLOC_MIPMAP;
        mipmap.bytes[mipmap.bytes.size() - 4] = 3; // levels
        mipmap.i32(0);
        const std::uint64_t array = own.address("ibxRuntime", array_of_16),
                            levels = own.address("ibxRuntime", mipmap);
        REQUIRE(array && levels);
        REQUIRE(own.call("ibxRuntime", number(IBX_EXT_FREE_ARRAY).u64(array)) == 0);
        REQUIRE(own.call("ibxRuntime", number(IBX_EXT_FREE_ARRAY).u64(array)) != 0);
        REQUIRE(own.call("ibxRuntime", number(IBX_EXT_FREE_MIPMAP).u64(levels)) == 0);
        return HOLDS(own.get_last_error() == 0);
    });
}

// An array that was to be freed later goes with the context, and what is at its address after that
// is not freed.
bool array_before_reset()
{
    Gpu gpu(resume);
    Client again(gpu);
    again.remote.get_last_error();
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, true, false));
    REQUIRE(ends_well(client_does(gpu, [](Remote &own) {
        const std::uint64_t array = own.address("ibxRuntime", array_of_16);
        REQUIRE(array && own.malloc(some));
        return HOLDS(own.call("ibxRuntime", number(IBX_EXT_FREE_ARRAY).u64(array)) == 0);
    })));
    // That client's memory is given back: it has ended.
    REQUIRE(becomes_true([&] { return Left(gpu).allocations == before.allocations + 3; }));
    const unsigned long waits = gpu.remote.stats().waits;
    // As long as a thread of the back end is still in the call that freed the memory, this client
    // does not count as alone: its reset gives back only what it has made itself, and returns.
    std::atomic<int> code{-1};
    std::atomic<bool> begun{false};
    std::thread resetting(
        [&] { becomes_true([&] { return (code = gpu.remote.reset()) != 0 || begun; }); });
    begun = becomes_true([&] { return again.remote.stats().waits != waits; });
    again.remote.hold_stream(0);
    resetting.join();
    REQUIRE(begun && code == 0);
    for (unsigned i = 0; i < 8; i++)
        REQUIRE(gpu.remote.address("ibxRuntime", array_of_16) && gpu.remote.malloc(some));
    const Left made(gpu);
    REQUIRE(result_of(leaves(gpu, false, End::killed,
                             [](Remote &own) { return own.malloc(some) != 0; })) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] { return Left(gpu).allocations == made.allocations; }));
    REQUIRE(goes_on(gpu)); // and what that one leaves comes behind all that was there
    return HOLDS(becomes_true([&] { return Left(gpu).allocations == made.allocations; }) &&
                 Left(gpu).allocations >= 16);
}

bool resets_beside()
{
    Gpu gpu(resume);
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, false, false));
    const pid_t pid = client_does(gpu, [](Remote &own) {
        REQUIRE(own.malloc(some) && own.stream_create(1) && own.event_create());
        REQUIRE(own.address("ibxRuntime", array_of_16));
        REQUIRE(own.reset() == 0);
        const std::uint64_t again = own.malloc(some);
        return HOLDS(again && own.free(again) == 0);
    });
    REQUIRE(ends_well(pid));
    REQUIRE(goes_on(gpu));
    gpu.remote.hold_stream(0);
    return HOLDS(endless.end(false) && is_as_before(gpu, before));
}

// A client unloads its modules, as a program does at its end, one for each of its files. Others
// register meanwhile.
bool unloads_beside()
{
    Gpu gpu(resume);
    Endless endless;
    const auto text = [](Body body, const char *of) {
        return body.u64(std::strlen(of) + 1).host(of, std::strlen(of) + 1);
    };
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, false, false));
    for (unsigned i = 0; i < 2; i++) {
        const pid_t pid = client_does(gpu, [&](Remote &own) {
            const Body module = text(Body(), "0x4a0128");
            own.call("cudaRegisterFatBinary", module);
            own.call("cudaRegisterFunction", text(text(Body(module).u64(0x401b30), "sum"), "sum"));
            for (unsigned k = 0; k < 60; k++)
                own.call("cudaUnregisterFatBinary",
                         k ? text(Body(), ("0x5a" + std::to_string(k)).c_str()) : module);
            return HOLDS(own.get_last_error() == 0);
        });
        REQUIRE(ends_well(pid));
    }
    const unsigned long queued = gpu.remote.stats().queued; // behind the endless work
    gpu.remote.hold_stream(0);
    return HOLDS(endless.end(false) && is_as_before(gpu, before) && queued <= 4);
}

constexpr std::uint64_t of_library = 3; // a stream that only a user's library knows

bool works_in(Remote &own, std::uint64_t in, std::uint64_t to, std::uint64_t from)
{
    const std::uint64_t stream = in == of_library ? own.library_stream()
                                 : in             ? in
                                                  : own.stream_create(1);
    own.hold_stream(stream);
    if (in == of_library)
        return !own.call("testCopy", Body().u64(stream).u64(to).u64(from).u64(some));
    return !own.call("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some));
}

// The client's own work is waited for: in a stream of its own, or the one that all clients share.
bool waits_for_own(std::uint64_t in, const std::function<int(Remote &, std::uint64_t)> &wait)
{
    Gpu gpu(resume);
    Endless endless;
    int made[2];
    std::uint64_t memory = 0;
    std::vector<char> got(1);
    REQUIRE(!pipe(made) && endless.begin(gpu, false, false));
    const pid_t pid = client_does(gpu, [&](Remote &own) {
        const std::uint64_t to = own.malloc(some), from = own.malloc(some);
        REQUIRE(works_in(own, in, to, from));
        REQUIRE(write(made[1], &to, sizeof(to)) == sizeof(to));
        return HOLDS(wait(own, to) == 0);
    });
    REQUIRE(read(made[0], &memory, sizeof(memory)) == sizeof(memory));
    for (unsigned i = 0; i < 5; i++)
        REQUIRE(goes_on(gpu) && gpu.remote.peek(memory, got.data(), 1));
    REQUIRE(waitpid(pid, nullptr, WNOHANG) == 0);
    gpu.remote.hold_stream(0);
    close(made[0]);
    close(made[1]);
    return HOLDS(ends_well(pid) && endless.end(false));
}

// A client waits for all work while the default stream has some, and another client's endless work
// is in a stream that waits for that one: nothing is put behind both that would hold up others.
bool leaves_streams_alone()
{
    Gpu gpu(resume);
    const Left before(gpu);
    const std::uint64_t to = gpu.remote.malloc(some), from = gpu.remote.malloc(some),
                        stream = gpu.remote.stream_create(0), endless = gpu.remote.stream_create(0);
    const auto launch = [&](std::uint64_t in) {
        return gpu.remote.call("cudaLaunchKernel",
                               kernel(IBX_DOUBLE_KERNEL, 32, in, to, from, some)) == 0;
    };
    int made[2];
    char byte;
    REQUIRE(!pipe(made));
    gpu.remote.hold_stream(1);
    gpu.remote.hold_stream(endless);
    REQUIRE(launch(0) && launch(endless));
    const unsigned long events = gpu.remote.stats().events;
    const pid_t pid = client_does(gpu, [&](Remote &own) {
        Client thread(gpu);
        thread.remote.get_last_error();
        thread.remote.set_device(0);
        REQUIRE(thread.remote.stream_query(2) == 0); // from now on its work is unknown
        const std::uint64_t memory = own.malloc(some);
        REQUIRE(write(made[1], "", 1) == 1);
        return HOLDS(own.free(memory) == 0);
    });
    REQUIRE(read(made[0], &byte, 1) == 1);
    REQUIRE(becomes_true([&] { return gpu.remote.stats().events > events; })); // it waits
    gpu.remote.release_stream(1);
    REQUIRE(launch(stream));
    REQUIRE(becomes_true([&] { return gpu.remote.stream_query(stream) == 0; }));
    REQUIRE(waitpid(pid, nullptr, WNOHANG) == 0);
    gpu.remote.hold_stream(0);
    close(made[0]);
    close(made[1]);
    return HOLDS(ends_well(pid));
}

// A client tells this process, then waits for its own work, which ends then; others go on
// meanwhile.
bool waits_alone(Gpu &gpu, const int made[2], pid_t pid)
{
    char byte;
    REQUIRE(read(made[0], &byte, 1) == 1);
    for (unsigned i = 0; i < 5; i++)
        REQUIRE(goes_on(gpu));
    REQUIRE(waitpid(pid, nullptr, WNOHANG) == 0);
    gpu.remote.hold_stream(0);
    close(made[0]);
    close(made[1]);
    return true;
}

// Another thread of the client has work in the stream that CUDA has for that thread, and only that
// thread knows it: so all work is waited for, and nobody is kept out.
bool waits_for_thread()
{
    Gpu gpu(resume);
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, false, false));
    int made[2];
    REQUIRE(!pipe(made));
    const pid_t pid = client_does(gpu, [&](Remote &own) {
        Client thread(gpu);
        thread.remote.get_last_error();
        thread.remote.set_device(0);
        const std::uint64_t to = own.malloc(some), from = own.malloc(some);
        REQUIRE(thread.remote.call("cudaLaunchKernel",
                                   kernel(IBX_DOUBLE_KERNEL, 32, 2, to, from, some)) == 0);
        REQUIRE(write(made[1], "", 1) == 1);
        return HOLDS(own.free(to) == 0 && own.free(from) == 0);
    });
    REQUIRE(waits_alone(gpu, made, pid));
    return HOLDS(ends_well(pid) && endless.end(false) && is_as_before(gpu, before));
}

// A client has opened another client's memory. Its work uses the memory, and it closes it. The
// memory stays as long as that work runs, whether the owner waits for the work or goes on.
bool stays_for_opener(bool waits, const std::function<bool(Remote &, std::uint64_t)> &gives_back)
{
    struct Shared {
        std::uint64_t memory, other; // the latter nobody opens
        char handle[64];
    } shared{};
    Gpu gpu(resume);
    int told[2], made[2], ends[2], opener_ends[2];
    char byte;
    std::vector<char> got(1);
    REQUIRE(!pipe(told) && !pipe(made) && !pipe(ends) && !pipe(opener_ends));
    const pid_t owner = client_does(gpu, [&](Remote &own) {
        shared.memory = own.malloc(some);
        shared.other = own.malloc(some);
        REQUIRE(own.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(shared.memory)) == 0);
        std::memcpy(shared.handle, own.out.data(), sizeof(shared.handle));
        REQUIRE(write(told[1], &shared, sizeof(shared)) == sizeof(shared));
        return read(ends[0], &byte, 1) == 1 && gives_back(own, shared.memory);
    });
    REQUIRE(read(told[0], &shared, sizeof(shared)) == sizeof(shared));
    const pid_t opener = client_does(gpu, [&](Remote &own) {
        Body open = number(IBX_EXT_IPC_OPEN_MEMORY), close_it = number(IBX_EXT_IPC_CLOSE);
        open.bytes.insert(open.bytes.end(), shared.handle, shared.handle + sizeof(shared.handle));
        const std::uint64_t from = own.malloc(some), stream = own.stream_create(1);
        own.hold_stream(stream);
        close_it.bytes.push_back(0);
        REQUIRE(own.address("ibxRuntime", open) == shared.memory);
        REQUIRE(own.call("cudaLaunchKernel",
                         kernel(IBX_DOUBLE_KERNEL, 32, stream, shared.memory, from, some)) == 0);
        REQUIRE(own.call("ibxRuntime", close_it.u64(shared.memory)) == 0);
        return write(made[1], "", 1) == 1 && read(opener_ends[0], &byte, 1) == 1;
    });
    REQUIRE(read(made[0], &byte, 1) == 1 && write(ends[1], "", 1) == 1);
    for (unsigned i = 0; waits && i < 5; i++)
        REQUIRE(goes_on(gpu) && waitpid(owner, nullptr, WNOHANG) == 0);
    REQUIRE(waits || becomes_true([&] { return !gpu.remote.peek(shared.other, got.data(), 1); }));
    REQUIRE(gpu.remote.peek(shared.memory, got.data(), 1));
    gpu.remote.hold_stream(0);
    REQUIRE(ends_well(owner) && write(opener_ends[1], "", 1) == 1 && ends_well(opener));
    for (const int *both : {told, made, ends, opener_ends}) {
        close(both[0]);
        close(both[1]);
    }
    return HOLDS(becomes_true([&] { return !gpu.remote.peek(shared.memory, got.data(), 1); }));
}

// A client's process that always keeps so much work ahead of the GPU, until somebody writes to it.
// It says when it has that much.
pid_t steady(const Gpu &gpu, unsigned ahead, const int begun[2], const int ends[2])
{
    return client_does(gpu, [=](Remote &own) {
        const std::uint64_t to = own.malloc(some), from = own.malloc(some);
        std::vector<std::uint64_t> events;
        pollfd end = {ends[0], POLLIN, 0};
        for (unsigned i = 0; i < ahead; i++)
            events.push_back(own.event_create());
        for (unsigned i = 0; poll(&end, 1, 0) == 0; i++) {
            if (i >= ahead)
                REQUIRE(own.call("cudaEventSynchronize", Body().u64(events[i % ahead])) == 0);
            REQUIRE(own.call("cudaLaunchKernel",
                             kernel(IBX_DOUBLE_KERNEL, 32, 0, to, from, some)) == 0);
            REQUIRE(own.call("cudaEventRecord", Body().u64(events[i % ahead]).u64(0)) == 0);
            REQUIRE(i != ahead || write(begun[1], "", 1) == 1);
        }
        return true;
    });
}

// A client waits for all work that is there now, not for later work: another client has 1.6 s of
// work all the time.
bool waits_beside_steady()
{
    Gpu gpu(resume);
    int begun[2], ends[2];
    char byte;
    REQUIRE(!pipe(begun) && !pipe(ends) && gpu.remote.slow(100000));
    const pid_t worker = steady(gpu, 16, begun, ends);
    REQUIRE(read(begun[0], &byte, 1) == 1);
    const pid_t pid = client_does(gpu, [&](Remote &own) {
        Client thread(gpu);
        thread.remote.get_last_error();
        thread.remote.set_device(0);
        REQUIRE(thread.remote.stream_query(2) == 0); // from now on its work is unknown
        return HOLDS(own.free(own.malloc(some)) == 0);
    });
    const bool well = HOLDS(ends_well(pid) && waitpid(worker, nullptr, WNOHANG) == 0);
    REQUIRE(write(ends[1], "", 1) == 1);
    for (int fd : {begun[0], begun[1], ends[0], ends[1]})
        close(fd);
    return HOLDS(ends_well(worker) && well);
}

// A client has ended, and its work in the default stream is over, although others always have some
// there: its memory is freed.
bool ends_beside_steady()
{
    Gpu gpu(resume);
    int begun[2], ends[2];
    char byte;
    REQUIRE(!pipe(begun) && !pipe(ends));
    const pid_t worker = steady(gpu, 16, begun, ends);
    REQUIRE(gpu.remote.slow(100000) && read(begun[0], &byte, 1) == 1);
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const std::uint64_t to = own.malloc(some), from = own.malloc(some);
        return own.call("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, 0, to, from, some)) == 0;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    const bool gone = becomes_true([&] { return Left(gpu).allocations == before.allocations; });
    const bool well = HOLDS(gone && waitpid(worker, nullptr, WNOHANG) == 0);
    REQUIRE(write(ends[1], "", 1) == 1);
    for (int fd : {begun[0], begun[1], ends[0], ends[1]})
        close(fd);
    return HOLDS(ends_well(worker) && well);
}

// A session of the same process enqueues work somewhere, and perhaps ends; then the other session
// waits for the device.
bool waits_for_other_session(const char *options, bool ends, std::uint64_t in)
{
    Gpu gpu(resume);
    const std::uint64_t to = gpu.remote.malloc(some), from = gpu.remote.malloc(some);
    int made[2];
    REQUIRE(!pipe(made));
    const pid_t pid = spawn([&] {
        Client own(gpu, options);
        own.remote.get_last_error();
        own.remote.set_device(0);
        auto thread = std::make_unique<Client>(gpu, options);
        thread->remote.get_last_error();
        thread->remote.set_device(0);
        const std::uint64_t stream = in ? in : thread->remote.stream_create(1);
        thread->remote.hold_stream(stream);
        if (thread->remote.call("cudaLaunchKernel",
                                kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some)) != 0)
            return 1;
        if (ends)
            thread.reset();
        return write(made[1], "", 1) == 1 && own.remote.device_synchronize() == 0 ? 0 : 1;
    });
    REQUIRE(waits_alone(gpu, made, pid));
    return HOLDS(ends_well(pid));
}

// By one connection a client frees host memory that stands for its own, while a copy of another
// connection is under way there.
bool unmapped_beside_a_copy(bool to_device)
{
    constexpr std::size_t n = 48u << 20;
    constexpr std::uint64_t there = 0x210000000000;
    Gpu gpu;
    Client copies(gpu);
    std::vector<char> bytes = random_bytes(n, 31), got = to_device ? bytes : std::vector<char>(n);
    REQUIRE(copies.remote.get_last_error() == 0 &&
            gpu.remote.call("ibxRuntime",
                            number(IBX_EXT_HOST_MAP).u64(there).u64(n).u64(IBX_EXT_OWN_PAGES)) ==
                0);
    REQUIRE(copies.remote.to_device(there, bytes.data(), n) == 0 && gpu.remote.slow(30000));
    const auto before = gpu.remote.stats().copies_async;
    std::atomic<bool> over{false};
    int rc = -1;
    std::thread copy([&] {
        rc = to_device ? copies.remote.to_device(there, got.data(), n)
                       : copies.remote.from_device(got.data(), there, n);
        over = true;
    });
    while (gpu.remote.stats().copies_async == before && !over)
        std::this_thread::yield();
    const int unmapped = gpu.remote.call("ibxRuntime", number(IBX_EXT_HOST_UNMAP).u64(there));
    gpu.remote.slow(0);
    copy.join();
    return HOLDS(unmapped == 0 && rc == 0 && got == bytes && copies.remote.malloc(100));
}

// A client is killed whose memory a device still reads. CUDA unpins memory behind the work of the
// device on which it was pinned; work of another one would fail, and all work of its context.
bool unmapped_beside_another_device()
{
    constexpr std::uint64_t there = 0x220000000000;
    Gpu gpu(resume);
    const auto before = gpu.remote.stats();
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const int mapped = own.call(
            "ibxRuntime", number(IBX_EXT_HOST_MAP).u64(there).u64(8192).u64(IBX_EXT_OWN_PAGES));
        own.set_device(1);
        const std::uint64_t memory = own.malloc(some), stream = own.stream_create(1);
        return mapped == 0 && own.slow(6000000) &&
               own.on_device_async(memory, there, some, stream) == 0;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] { return gpu.remote.stats().host_pins == before.host_pins; }));
    gpu.remote.slow(0);
    return HOLDS(gpu.remote.stats().busy_unpins == before.busy_unpins);
}

} // namespace

void check_calls_beside()
{
    check("host memory of a killed client beside work of another device",
          unmapped_beside_another_device);
    for (const bool to_device : {false, true})
        check("host memory given back beside a copy",
              [=] { return unmapped_beside_a_copy(to_device); });
    const auto frees = [](Remote &own, std::uint64_t memory) { return own.free(memory); };
    const auto waits = [](Remote &own, std::uint64_t) { return own.device_synchronize(); };
    setenv("IBX_DOUBLE_ALONE", "1", 1);
    check("memory given back beside another client's endless work",
          [] { return frees_beside(""); });
    check("... that is counted", [] { return frees_beside("rdma.device_memory : 64M\n"); });
    check("... in a stream that waits for the legacy one", [=] { return beside_blocking(frees); });
    check("a wait for the device", waits_beside);
    check("... beside work in such a stream", [=] { return beside_blocking(waits); });
    check("... beside a client that has nothing to do", waits_cheaply_beside_idle);
    check("arrays given back", frees_array_beside);
    check("a reset of the device", resets_beside);
    check("kernels taken away", unloads_beside);
    check("memory that the client's own work uses", [=] { return waits_for_own(0, frees); });
    check("... in the stream of its thread", [=] { return waits_for_own(2, frees); });
    check("... in the stream of all", [=] { return waits_for_own(1, frees); });
    check("... in one of a user's library", [=] { return waits_for_own(of_library, frees); });
    check("... in that of another thread", waits_for_thread);
    check("... nor are streams held up that wait for that", leaves_streams_alone);
    check("a wait for the client's own work", [=] { return waits_for_own(0, waits); });
    check("... in the stream of its thread", [=] { return waits_for_own(2, waits); });
    check("... in the stream of all", [=] { return waits_for_own(1, waits); });
    check("memory that work of another client uses, which has closed it", [] {
        return stays_for_opener(
            true, [](Remote &own, std::uint64_t memory) { return own.free(memory) == 0; });
    });
    check("... as its owner resets the device", [] {
        return stays_for_opener(false, [](Remote &own, std::uint64_t) { return own.reset() == 0; });
    });
    check("... as its owner ends",
          [] { return stays_for_opener(false, [](Remote &, std::uint64_t) { return true; }); });
    check("a wait for all work beside a client that always has some", waits_beside_steady);
    check("... what one leaves that is killed", ends_beside_steady);
    check("a wait for the work of a session of a process that is not known",
          [] { return waits_for_other_session(of_another_program, false, 0); });
    check("... of a session that has ended",
          [] { return waits_for_other_session(resume, true, 2); });
    unsetenv("IBX_DOUBLE_ALONE");
    check("arrays given back, and then a reset", array_before_reset);
}
