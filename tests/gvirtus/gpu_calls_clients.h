// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Clients in processes of their own, and what they leave in the double of CUDA.
#ifndef TESTS_GVIRTUS_GPU_CALLS_CLIENTS_H
#define TESTS_GVIRTUS_GPU_CALLS_CLIENTS_H

#include "tests/gvirtus/gpu_calls_scene.h"
#include "tests/fixtures/patience.h"

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>

constexpr const char *resume = "rdma.resume_seconds : 1\n";
constexpr std::uint64_t some = 5000; // bytes

struct Left {
    unsigned long allocations, streams, events;
    explicit Left(Gpu &gpu)
    {
        const ibx_double_stats now = gpu.remote.stats();
        allocations = now.allocations;
        streams = now.streams;
        events = now.events;
    }
    bool operator==(const Left &o) const
    {
        return allocations == o.allocations && streams == o.streams && events == o.events;
    }
};

template <typename F> bool becomes_true(const F &condition)
{
    const time_t limit = time(nullptr) + patience_ms(30000) / 1000;
    bool is = false;
    while (!(is = condition()) && time(nullptr) < limit)
        usleep(1000);
    return is;
}

inline bool is_as_before(Gpu &gpu, const Left &before)
{
    return becomes_true([&] { return Left(gpu) == before; });
}

// How a client's process ends. One that closes its connections does not say that it ends.
enum class End { killed, exits, closes };

[[noreturn]] inline void end(End how, std::vector<std::unique_ptr<Client>> clients)
{
    if (how == End::killed) {
        kill(getpid(), SIGKILL);
        std::_Exit(128 + SIGKILL); // the first process of a namespace cannot kill itself
    }
    for (auto &client : clients)
        if (how == End::exits)
            until_exit.push_back(std::move(client->over));
    clients.clear();
    if (how == End::exits)
        std::exit(0);
    std::_Exit(0);
}

constexpr int NO_NAMESPACE = 77;

// As spawn(); but if `elsewhere` is true, `body` runs in a namespace of its own, where its number
// means nothing to the back end, as on another host.
inline pid_t spawn_at(bool elsewhere, const std::function<int()> &body)
{
    if (!elsewhere)
        return spawn(body);
    return spawn([&body] {
        if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
            return NO_NAMESPACE;
        const pid_t pid = fork();
        if (!pid) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            std::_Exit(body());
        }
        return pid < 0 ? NO_NAMESPACE : result_of(pid);
    });
}

// A client's process with two connections.
inline pid_t leaves(const Gpu &gpu, bool elsewhere, End how,
                    const std::function<bool(Remote &)> &more)
{
    return spawn_at(elsewhere, [&gpu, how, more]() -> int {
        std::vector<std::unique_ptr<Client>> clients;
        for (unsigned i = 0; i < 2; i++)
            clients.push_back(std::make_unique<Client>(gpu));
        clients[1]->remote.get_last_error();
        if (!more(clients[0]->remote))
            return 1;
        end(how, std::move(clients));
    });
}

// A client with work that does not end. The client is killed, or runs until end() writes to it.
struct Endless {
    int begun[2] = {-1, -1}, ends[2] = {-1, -1};
    std::uint64_t stream = 0;
    pid_t pid = 0;

    // flags: of its stream; 0: a stream that waits for the legacy stream.
    bool begin(const Gpu &gpu, bool killed, bool destroyed, unsigned flags = 1)
    {
        REQUIRE(!pipe(begun) && !pipe(ends));
        pid = leaves(gpu, false, killed ? End::killed : End::exits, [=](Remote &own) {
            char byte;
            own.get_last_error();
            own.set_device(0);
            const std::uint64_t memory = own.malloc(some), from = own.malloc(some),
                                made = own.stream_create(flags);
            own.hold_stream(made);
            const bool works = own.call("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, made,
                                                                   memory, from, some)) == 0 &&
                               (!destroyed || own.call("cudaStreamDestroy", Body().u64(made)) == 0);
            return works && write(begun[1], &made, sizeof(made)) == sizeof(made) &&
                   (killed || read(ends[0], &byte, 1) == 1);
        });
        REQUIRE(read(begun[0], &stream, sizeof(stream)) == sizeof(stream));
        return !killed || result_of(pid) == 128 + SIGKILL;
    }
    bool end(bool killed) const
    {
        return killed || (write(ends[1], "", 1) == 1 && !result_of(pid));
    }
    ~Endless()
    {
        for (int fd : {begun[0], begun[1], ends[0], ends[1]})
            close(fd);
    }
};

#endif
