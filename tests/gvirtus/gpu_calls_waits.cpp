// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Streams that wait: for words in memory, while their client is killed (natively such a wait ends
// with its process), and for events.
#include "tests/gvirtus/gpu_calls_clients.h"

#include <algorithm>

namespace
{

constexpr unsigned for_other_processes = 6; // an event's flags; it takes no times

enum Condition { NOT_LESS, EQUAL, AND, NOR };

int waits(Remote &remote, std::uint64_t stream, std::uint64_t at, std::uint64_t value,
          Condition condition, bool wide = false)
{
    return remote.call("ibxEnqueue", number(IBX_EXT_STREAM_VALUE)
                                         .u64(at)
                                         .u64(value)
                                         .i32(wide ? IBX_VALUE_WAIT_64 : IBX_VALUE_WAIT_32)
                                         .i32(condition)
                                         .u64(stream));
}

// Before the first wait in a context the back end makes a stream there, which it keeps.
bool has_waited(Gpu &gpu)
{
    const std::vector<char> zeros(4, '\0');
    const std::uint64_t at = gpu.remote.malloc(some);
    REQUIRE(at && gpu.remote.to_device(at, zeros.data(), 4) == 0);
    REQUIRE(waits(gpu.remote, 0, at, 0, EQUAL) == 0);
    return HOLDS(gpu.remote.free(at) == 0);
}

// Waits of all kinds, several for one word, which have different values. The stream that the back
// end had in that context before is gone with a reset.
bool waits_are_ended()
{
    Gpu gpu(resume);
    REQUIRE(has_waited(gpu) && gpu.remote.call("cudaDeviceReset", Body()) == 0);
    REQUIRE(has_waited(gpu));
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        std::vector<char> words(some, '\0');
        std::fill_n(words.begin() + 24, 4, '\xff');
        const std::uint64_t at = own.malloc(some), first = own.stream_create(1),
                            second = own.stream_create(1);
        REQUIRE(at && own.to_device(at, words.data(), some) == 0);
        REQUIRE(waits(own, first, at, 7, EQUAL) == 0 && waits(own, second, at, 8, EQUAL) == 0);
        REQUIRE(waits(own, first, at, 9, EQUAL) == 0 && waits(own, second, at, 7, EQUAL) == 0);
        REQUIRE(waits(own, first, at + 8, 1ull << 40, NOT_LESS, true) == 0);
        REQUIRE(waits(own, first, at + 16, 6, AND) == 0);
        REQUIRE(waits(own, second, at + 24, 0xff00, NOR) == 0);
        return own.call("cudaLaunchKernel",
                        kernel(IBX_DOUBLE_KERNEL, 32, first, at, at + 1024, 1024)) == 0;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    return HOLDS(is_as_before(gpu, before));
}

// One stream waits, while another one goes on from wait to wait.
bool old_wait_is_ended()
{
    Gpu gpu(resume);
    REQUIRE(has_waited(gpu));
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const std::vector<char> zeros(some, '\0');
        const std::uint64_t at = own.malloc(some), first = own.stream_create(1),
                            second = own.stream_create(1);
        REQUIRE(at && own.to_device(at, zeros.data(), some) == 0);
        REQUIRE(waits(own, first, at, 7, EQUAL) == 0);
        for (unsigned i = 0; i < 1025; i++)
            REQUIRE(waits(own, second, at + 8, 0, EQUAL) == 0);
        return own.stream_synchronize(second) == 0; // the back end has had all of them
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    return HOLDS(is_as_before(gpu, before));
}

// A client whose memory another one has open is left alone: that one may still write the word. The
// wait of a client that was killed just before is ended meanwhile.
bool wait_for_another_client()
{
    Gpu gpu(resume);
    int shared[2], opened[2];
    char byte = 0;
    std::vector<char> handle(64);
    const std::vector<char> zeros(some, '\0'), ones(4, 1);
    std::vector<char> got(4, 'x');
    REQUIRE(!pipe(shared) && !pipe(opened) && has_waited(gpu));
    const Left before(gpu);
    const auto begins = [&](Remote &own, std::uint64_t *at) {
        own.get_last_error();
        own.set_device(0);
        *at = own.malloc(some);
        const std::uint64_t stream = own.stream_create(1);
        REQUIRE(*at && own.to_device(*at, zeros.data(), some) == 0);
        return waits(own, stream, *at, 0x01010101, EQUAL) == 0;
    };
    const pid_t first = leaves(gpu, false, End::killed, [&](Remote &own) {
        std::uint64_t at = 0;
        return begins(own, &at) &&
               own.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(at)) == 0 &&
               write(shared[1], own.out.data(), 64) == 64 && read(opened[0], &byte, 1) == 1;
    });
    REQUIRE(read(shared[0], handle.data(), 64) == 64);
    Body open = number(IBX_EXT_IPC_OPEN_MEMORY), close_it = number(IBX_EXT_IPC_CLOSE);
    open.bytes.insert(open.bytes.end(), handle.begin(), handle.end());
    const std::uint64_t word = gpu.remote.address("ibxRuntime", open);
    const pid_t second = leaves(gpu, false, End::killed, [&](Remote &own) {
        std::uint64_t at = 0;
        return begins(own, &at);
    });
    REQUIRE(result_of(second) == 128 + SIGKILL);
    REQUIRE(word && write(opened[1], &byte, 1) == 1 && result_of(first) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] {
        const Left now(gpu);
        return now.allocations == before.allocations + 1 && now.streams == before.streams + 1;
    }));
    REQUIRE(gpu.remote.peek(word, got.data(), 4) && got == std::vector<char>(4, '\0'));
    REQUIRE(gpu.remote.to_device(word, ones.data(), 4) == 0);
    close_it.bytes.push_back(0);
    REQUIRE(becomes_true([&] { return Left(gpu).streams == before.streams; }));
    REQUIRE(gpu.remote.call("ibxRuntime", close_it.u64(word)) == 0);
    for (int fd : {shared[0], shared[1], opened[0], opened[1]})
        close(fd);
    return HOLDS(is_as_before(gpu, before));
}

// What a client has left is being freed, and CUDA waits for a word as it frees it, on another
// device, when the client is killed that would write the word.
bool wait_is_ended_beside_frees()
{
    Gpu gpu(resume);
    int ends[2];
    char byte = 0;
    REQUIRE(!pipe(ends) && gpu.remote.set_device(1) == 0 && has_waited(gpu));
    REQUIRE(gpu.remote.set_device(0) == 0);
    const Left before(gpu);
    const pid_t waiting = leaves(gpu, false, End::killed, [&](Remote &own) {
        const std::vector<char> zeros(some, '\0');
        own.get_last_error();
        own.set_device(1);
        const std::uint64_t at = own.malloc(some), stream = own.stream_create(1);
        return at && own.to_device(at, zeros.data(), some) == 0 &&
               waits(own, stream, at, 7, EQUAL) == 0 && read(ends[0], &byte, 1) == 1;
    });
    REQUIRE(becomes_true([&] { return Left(gpu).streams > before.streams; }));
    const unsigned long frees = gpu.remote.stats().waits;
    REQUIRE(result_of(leaves(gpu, false, End::killed, [](Remote &own) {
                own.get_last_error();
                own.set_device(0);
                return own.malloc(some) != 0;
            })) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] { return gpu.remote.stats().waits > frees; }));
    REQUIRE(write(ends[1], &byte, 1) == 1 && result_of(waiting) == 128 + SIGKILL);
    close(ends[0]);
    close(ends[1]);
    return HOLDS(is_as_before(gpu, before));
}

// While another client's copy waits for the word, as work of the default stream does for
// blocking streams, the driver makes no stream.
bool wait_beside_a_copy()
{
    Gpu gpu(resume);
    REQUIRE(has_waited(gpu));
    const Left before(gpu);
    const std::uint64_t memory = gpu.remote.malloc(some);
    const std::vector<char> ones(4, 1);
    std::vector<char> got(4, 'x');
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const std::vector<char> zeros(some, '\0');
        const std::uint64_t at = own.malloc(some), stream = own.stream_create(0);
        REQUIRE(at && stream && own.to_device(at, zeros.data(), some) == 0);
        return waits(own, stream, at, 7, EQUAL) == 0;
    });
    REQUIRE(memory && result_of(pid) == 128 + SIGKILL);
    REQUIRE(gpu.remote.to_device(memory, ones.data(), 4) == 0);
    REQUIRE(gpu.remote.peek(memory, got.data(), 4) && got == ones);
    REQUIRE(gpu.remote.free(memory) == 0);
    return HOLDS(is_as_before(gpu, before));
}

// In the process that has made such an event, CUDA's driver ends by SIGSEGV if a stream of another
// device waits for it. CUDA's runtime gives a thread that has used no device yet its context only
// in such a call.
bool waits_without_a_context()
{
    Gpu gpu;
    Client thread(gpu);
    Body flags, wait;
    std::uint64_t event = 0;
    const std::uint64_t stream = gpu.remote.stream_create(1);
    REQUIRE(stream && gpu.remote.set_device(1) == 0);
    flags.put(for_other_processes);
    REQUIRE(gpu.remote.call("cudaEventCreateWithFlags", flags) == 0);
    REQUIRE(gpu.remote.out.size() == 16);
    std::memcpy(&event, gpu.remote.out.data() + 8, 8);
    wait.u64(stream).u64(event).put(0u);
    REQUIRE(thread.remote.call("cudaStreamWaitEvent", wait) == 0);
    REQUIRE(thread.remote.stream_synchronize(stream) == 0);
    return HOLDS(gpu.remote.set_device(0) == 0 && gpu.remote.stream_query(stream) == 0);
}

// A thread of the program destroys a stream, or an event, for which another thread waits. Nobody
// can name it from then on, and it ends with the wait.
bool destroyed_beside_wait(const char *waits, const char *destroys)
{
    Gpu gpu;
    Client waiter(gpu), destroyer(gpu);
    Remote &remote = gpu.remote;
    for (Client *client : {&waiter, &destroyer})
        REQUIRE(client->remote.get_last_error() == 0 && client->remote.set_device(0) == 0);
    const bool is_event = !std::strncmp(waits, "cudaEvent", 9);
    const auto count = [&] { return is_event ? Left(gpu).events : Left(gpu).streams; };
    const unsigned long before = count();
    const std::uint64_t stream = remote.stream_create(1), event = gpu.event(),
                        to = remote.malloc(some), from = remote.malloc(some);
    const Body thing = Body().u64(is_event ? event : stream);
    remote.hold_stream(stream);
    REQUIRE(remote.call("cudaLaunchKernel",
                        kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, 1024)) == 0);
    REQUIRE(remote.call("cudaEventRecord", Body().u64(event).u64(stream)) == 0);
    Calling waiting(gpu.back, [&] { return waiter.remote.call(waits, thing); });
    waiting.settle();
    Calling destroying(gpu.back, [&] { return destroyer.remote.call(destroys, thing); });
    destroying.settle();
    const bool at_once = destroying.returned();
    const int named = remote.call(is_event ? "cudaEventQuery" : "cudaStreamQuery", thing);
    const int again = remote.call(destroys, thing);
    const bool waited = !waiting.returned() && count() == before + 1;
    remote.release_stream(stream);
    const int result = waiting.result(), rc = destroying.result();
    REQUIRE(rc == 0 && at_once && waited && result == 0 && named == 400 && again == 400);
    REQUIRE(becomes_true([&] { return count() == before; }));
    return HOLDS(remote.call(is_event ? "cudaStreamDestroy" : "cudaEventDestroy",
                             Body().u64(is_event ? stream : event)) == 0);
}

} // namespace

void check_calls_waits()
{
    check("a client that is killed while its streams wait for words", waits_are_ended);
    check("... for one of them, longer than a thousand others last", old_wait_is_ended);
    check("... for which a copy of another client waits, too", wait_beside_a_copy);
    check("... as CUDA waits for that to free memory of another one", wait_is_ended_beside_frees);
    if (provider == "shm") // it takes three seconds
        check("... in memory that another one has open", wait_for_another_client);
    check("a wait for an event for others in a thread that has used no device",
          waits_without_a_context);
    check("a stream that is destroyed beside a wait for it",
          [] { return destroyed_beside_wait("cudaStreamSynchronize", "cudaStreamDestroy"); });
    check("... an event",
          [] { return destroyed_beside_wait("cudaEventSynchronize", "cudaEventDestroy"); });
}
