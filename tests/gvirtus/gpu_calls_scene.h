// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Short calls that the back end's plugin takes out of the stream of requests, and runs by CUDA's
// runtime, on doubles of the runtime and the driver. Handlers of GVirtuS here only use the driver.
#ifndef TESTS_GVIRTUS_GPU_CALLS_SCENE_H
#define TESTS_GVIRTUS_GPU_CALLS_SCENE_H

#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

// A back end in which the runtime is loaded and the forms of replies are known, and a client.
struct Gpu {
    BackEnd back;
    std::shared_ptr<Communicator> over;
    Remote remote;

    explicit Gpu(const std::string &more = "")
        : back(more, [](auto listening) { cuda_back_end_child(listening, true); }),
          over(connected(back.port)), remote(over.get())
    {
        remote.get_last_error();
        remote.set_device(0);
        remote.free(remote.malloc(100));
    }
    // How many calls of the runtime this call makes; -1: it has failed.
    int made(const char *name, const Body &body)
    {
        const std::uint64_t before = remote.runtime_calls();
        return remote.call(name, body) ? -1 : static_cast<int>(remote.runtime_calls() - before);
    }
    std::uint64_t event()
    {
        std::uint64_t made = 0;
        if (!remote.call("cudaEventCreate", Body()) && remote.out.size() == 16)
            std::memcpy(&made, remote.out.data() + 8, 8);
        return made;
    }
};

// Captures what back ends that begin meanwhile write to standard error.
struct Said {
    int before = dup(STDERR_FILENO), log = memfd_create("log", MFD_CLOEXEC);
    Said()
    {
        fcntl(log, F_SETFL, O_APPEND);
        dup2(log, STDERR_FILENO);
        report_to = before;
    }
    ~Said()
    {
        report_to = STDERR_FILENO;
        dup2(before, STDERR_FILENO);
        close(before);
        close(log);
    }
    bool has(const std::string &text) const
    {
        std::string all(static_cast<std::size_t>(lseek(log, 0, SEEK_END)), 0);
        all.resize(static_cast<std::size_t>(pread(log, all.data(), all.size(), 0)));
        return all.find(text) != std::string::npos;
    }
};

// One more client.
struct Client {
    std::shared_ptr<Communicator> over;
    Remote remote;
    explicit Client(const Gpu &gpu) : over(connected(gpu.back.port)), remote(over.get()) {}
    Client(const Gpu &gpu, const char *options)
        : over(connected(gpu.back.port, options)), remote(over.get())
    {
    }
};

// With these options the back end does not know that a connection is this process's, and takes it
// for another program's.
constexpr const char *of_another_program = "rdma.resume_seconds : 0\n";

inline Body kernel(std::uint64_t function, unsigned threads, std::uint64_t stream, std::uint64_t to,
                   std::uint64_t from, std::uint64_t n)
{
    Body body, arguments;
    arguments.u64(to).u64(from).u64(n);
    body.u64(function).i32(1).i32(1).i32(1).i32(static_cast<int>(threads)).i32(1).i32(1).u64(0);
    return body.u64(stream).host(arguments.bytes.data(), arguments.bytes.size());
}

// The beginning of an extension request: its number. Its arguments follow.
inline Body number(unsigned n)
{
    Body body;
    body.bytes = {static_cast<char>(n), 0};
    return body;
}

// The tests of gpu_calls_FILE.cpp.
void check_calls_apart();
void check_calls_mapped();
void check_calls_math();
void check_calls_dnn();
void check_calls_nccl();
void check_calls_beside();
void check_calls_captures();
void check_calls_clears();
void check_calls_ends();
void check_calls_waits();
void check_calls_graphs();
void check_calls_kernels();

#endif
