// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What kernels print: it appears at the client, at calls that wait and at its end.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

// What this process writes to its standard output meanwhile.
std::string written(const std::function<bool()> &during)
{
    std::fflush(stdout);
    const int before = dup(STDOUT_FILENO), file = memfd_create("output", MFD_CLOEXEC);
    dup2(file, STDOUT_FILENO);
    bool good = during();
    std::fflush(stdout);
    dup2(before, STDOUT_FILENO);
    std::string all(static_cast<std::size_t>(lseek(file, 0, SEEK_CUR)), 0);
    good = good && pread(file, all.data(), all.size(), 0) == static_cast<ssize_t>(all.size());
    close(before);
    close(file);
    return good ? all : "it fails";
}

namespace
{

// A module of nvcc's, and the arguments of its code's calls.
struct PrintingModule {
    std::uint32_t magic = 0xba55ed50;
    std::uint16_t version = 1, head = 16;
    std::uint64_t rest = 64;
    char code[64] = {};
};
struct Wrapper {
    std::uint32_t magic = 0x466243b1, version = 1;
    const PrintingModule *module;
    const void *more = nullptr;
};

void register_module(bool prints)
{
    static PrintingModule modules[2];
    static const Wrapper wrappers[2] = {{.module = &modules[0]}, {.module = &modules[1]}};
    std::memcpy(modules[1].code + 57, "vprintf", 7); // at its very end
    preloaded<void **(const void *)>("__cudaRegisterFatBinary")(&wrappers[prints]);
}

std::string written_at_the_end()
{
    return written([] { return cudaDeviceSynchronize() == 0; });
}

// Another process, and its kernels print as well: until `end` is closed nobody gets any of that.
pid_t another(int begun, const int end[2])
{
    const pid_t child = fork();
    if (child)
        return child;
    alarm(60 * patience_times());
    close(end[1]);
    char byte = 1;
    const bool good = cudaDeviceSynchronize() == 0 && write(begun, &byte, 1) == 1;
    std::_Exit(good && read(end[0], &byte, 1) == 0 ? 0 : 1);
}

bool with_another()
{
    int begun[2], end[2];
    char byte;
    REQUIRE(pipe2(begun, O_CLOEXEC) == 0 && pipe2(end, O_CLOEXEC) == 0);
    const pid_t child = another(begun[1], end);
    REQUIRE(read(begun[0], &byte, 1) == 1);
    stub_remote()->print("whose is it?\n");
    const std::string got = written_at_the_end();
    close(end[1]);
    int status = -1;
    return HOLDS(waitpid(child, &status, 0) == child && !status && got.empty());
}

// The calls that the back end's runtime gets meanwhile.
std::uint64_t runtime_calls(const std::function<bool()> &during)
{
    const std::uint64_t before = stub_remote()->runtime_calls();
    const bool good = during();
    return good ? stub_remote()->runtime_calls() - before : 0;
}

} // namespace

// The reply to a wait tells that nothing was printed, or that something was: a program whose
// kernels may print costs the back end one call for each wait, as any other does.
bool printed_told()
{
    void *stream = nullptr, *event = nullptr;
    char *device = device_memory();
    char bytes[100];
    REQUIRE(device && cudaStreamCreate(&stream) == 0 && cudaEventCreate(&event) == 0);
    const auto wait = [&] {
        return cudaMemsetAsync(device, 1, 100, stream) == 0 && cudaStreamSynchronize(stream) == 0;
    };
    const auto event_wait = [&] {
        return cudaMemsetAsync(device, 1, 100, stream) == 0 &&
               cudaEventRecord(event, stream) == 0 && cudaEventSynchronize(event) == 0;
    };
    for (int i = 0; i < 3; i++) // the first ones are GVirtuS's own
        REQUIRE(wait() && event_wait());
    const std::uint64_t calls = runtime_calls(wait), event_calls = runtime_calls(event_wait);
    REQUIRE(calls && event_calls);
    register_module(true);
    for (int i = 0; i < 3; i++) {
        REQUIRE(runtime_calls(wait) == calls && runtime_calls(event_wait) == event_calls);
        stub_remote()->print("some\n");
        REQUIRE(written(wait) == "some\n");
        stub_remote()->print("more\n");
        REQUIRE(written(event_wait) == "more\n");
        stub_remote()->print("behind a copy\n");
        REQUIRE(written([&] { return cudaMemcpy(bytes, device, 100, D2H) == 0; }) ==
                "behind a copy\n");
        stub_remote()->print("before one\n");
        REQUIRE(written([&] { return cudaMemcpy(device, bytes, 100, H2D) == 0; }) ==
                "before one\n");
        // What the reply has told is not told again for a wait that is answered in this process.
        REQUIRE(wait() && written(wait).empty());
        stub_remote()->print("in another stream\n");
        REQUIRE(written([&] { return cudaStreamSynchronize(stream) == 0; }) ==
                "in another stream\n");
    }
    return HOLDS(cudaGetLastError() == 0);
}

bool printed()
{
    void *stream = nullptr, *event = nullptr;
    char *device = device_memory();
    std::string much, got;
    char bytes[100];
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaEventCreate(&event) == 0);
    REQUIRE(stub_remote()->get_last_error() == 0); // the back end has CUDA's runtime from then on
    register_module(false);
    stub_remote()->print("before\n"); // such a program asks for nothing
    REQUIRE(written_at_the_end().empty());
    register_module(true);
    REQUIRE(written_at_the_end().empty());
    stub_remote()->print("one\n");
    REQUIRE(stub_remote()->call("cudaTestSay", Body()) == 0);
    REQUIRE(written_at_the_end() == "one\n");
    for (unsigned i = 0; i < 1000; i++)
        much += "line " + std::to_string(i) + "\n";
    stub_remote()->print(much);
    REQUIRE(written([&] { return cudaStreamSynchronize(stream) == 0; }) == much);
    stub_remote()->print("two\n");
    REQUIRE(written([&] {
                return cudaEventRecord(event, stream) == 0 && cudaEventSynchronize(event) == 0;
            }) == "two\n");
    stub_remote()->print("three\n");
    REQUIRE(written([&] { return cudaMemcpy(bytes, device, 100, D2H) == 0; }) == "three\n");
    stub_remote()->print("four\n");
    REQUIRE(written([&] { return cudaFree(device) == 0; }) == "four\n");
    void *locked = nullptr;
    alignas(4096) static char registered[4096];
    REQUIRE(cudaMallocHost(&locked, 4000) == 0 && host_register(registered, 4096, 0) == 0);
    stub_remote()->print("five\n");
    REQUIRE(written([&] { return cudaFreeHost(locked) == 0; }) == "five\n");
    stub_remote()->print("six\n");
    REQUIRE(written([&] { return host_unregister(registered) == 0; }) == "six\n");
    stub_remote()->print("at its end\n");
    REQUIRE(written([] { return cudaDeviceReset() == 0; }) == "at its end\n");
    REQUIRE(with_another());
    for (unsigned i = 0; got.empty() && i < 20000; i++) { // the other one is gone in a moment
        stub_remote()->print("five\n");
        got = written_at_the_end();
        usleep(1000);
    }
    return HOLDS(got == "five\n" && cudaGetLastError() == 0);
}

// What a kernel has printed when nothing waits for it any more. The end of the process is the
// caller's.
bool printed_last(PrintedLast end)
{
    using LaunchHost = int(void *stream, void (*function)(void *), void *argument);
    REQUIRE(device_memory() && stub_remote()->get_last_error() == 0);
    register_module(true);
    REQUIRE(written_at_the_end().empty());
    stub_remote()->print("behind all waits\n");
    switch (end) {
    case PrintedLast::returns:
        return true;
    case PrintedLast::child: { // whose exit leaves its parent's alone
        const pid_t child = fork();
        int status = -1;
        if (!child) {
            alarm(10 * patience_times());
            std::exit(0);
        }
        return HOLDS(waitpid(child, &status, 0) == child && !status);
    }
    case PrintedLast::function:
        preloaded<LaunchHost>("cudaLaunchHostFunc")(
            nullptr, [](void *) { std::exit(0); }, nullptr);
        break;
    case PrintedLast::thread: // which has no connection
        std::thread([] { std::exit(0); }).detach();
        break;
    case PrintedLast::stopped:
        stop(std::atoi(std::getenv("STUB_BACK_END")));
        return true;
    case PrintedLast::at_once:
        std::_Exit(0);
    }
    for (;;)
        pause();
}
