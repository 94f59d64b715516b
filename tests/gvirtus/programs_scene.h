// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A back end with several processes for its clients.
#ifndef TESTS_GVIRTUS_PROGRAMS_SCENE_H
#define TESTS_GVIRTUS_PROGRAMS_SCENE_H

#include "tests/gvirtus/checks.h"
#include "tests/gvirtus/gpu_calls_clients.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <sys/resource.h>
#include <sys/socket.h>

constexpr int lost = 999;    // what calls of a lost session return
constexpr int broken = 719;  // what calls in a broken context return
constexpr long at_once = 64; // connections of one program
constexpr long piece = 256 << 10, long_bytes = 16 * piece;

// Limits the descriptors of programs that are started meanwhile.
struct Descriptors {
    rlimit before{};
    explicit Descriptors(rlim_t most)
    {
        getrlimit(RLIMIT_NOFILE, &before);
        const rlimit now = {most, std::max(most, before.rlim_max)};
        if (setrlimit(RLIMIT_NOFILE, &now))
            std::perror("setrlimit");
    }
    ~Descriptors() { setrlimit(RLIMIT_NOFILE, &before); }
    Descriptors(const Descriptors &) = delete;
    Descriptors &operator=(const Descriptors &) = delete;
};

struct Listening : BackEnd {
    std::size_t spares;
    explicit Listening(const std::string &more = "", std::size_t spare = 0,
                       const std::string &each = "program")
        : BackEnd("rdma.processes : " + each + "\nrdma.spare_processes : " + std::to_string(spare) +
                      "\n" + more,
                  [](auto listening) { cuda_back_end_child(listening, true); }),
          spares(spare)
    {
    }
    // Whether it has n processes for clients (waits for this).
    bool has(std::size_t n) const
    {
        return becomes_true([&] { return children().size() == spares + n; });
    }
    std::ptrdiff_t descriptors() const
    {
        const std::filesystem::path all = "/proc/" + std::to_string(pid) + "/fd";
        return std::distance(std::filesystem::directory_iterator(all), {});
    }
};

enum Order : char {
    WORKS,
    ALLOCATES,
    ALLOCATIONS,
    BREAKS,
    SYNCHRONIZES,
    CUTS,
    SHARES,
    FORKS,
    FILLS,
    CONNECTS,
    COPIES_LONG,
    COPIES_SHORT
};

// The option that names a file with keys of alice and bob.
std::string keys_of_two();

long works(Remote *remote);
long carry_out(Order order, Remote *remote, std::uint16_t port, const std::string &options);

// Runs `body` as another user, without a key. Only root can do so; for others it is true.
bool as_another_user(const BackEnd &back, const std::function<bool(Remote *)> &body);

// A client's process that was not forked from one that has connected.
struct Program {
    pid_t pid = -1;
    int orders = -1;

    explicit Program(const BackEnd &back, const std::string &options = "")
    {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
            std::abort();
        pid = spawn([&]() -> int {
            close(ends[0]);
            auto over = connected(back.port, options);
            Remote remote(over.get());
            Order order;
            while (read(ends[1], &order, sizeof(order)) == sizeof(order)) {
                const long answer = carry_out(order, &remote, back.port, options);
                if (write(ends[1], &answer, sizeof(answer)) != sizeof(answer))
                    return 1;
            }
            exit_with(std::move(over), 0);
        });
        close(ends[1]);
        orders = ends[0];
    }
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;
    ~Program() { end(); }
    bool begin(Order order) const { return write(orders, &order, sizeof(order)) == sizeof(order); }
    long answer() const
    {
        long answer = -1;
        return read(orders, &answer, sizeof(answer)) == sizeof(answer) ? answer : -1;
    }
    long ask(Order order) const { return begin(order) ? answer() : -1; }
    void end(int signal = 0)
    {
        if (pid < 0)
            return;
        if (signal)
            kill(pid, signal);
        shutdown(orders, SHUT_RDWR); // other processes may have it, too
        close(orders);
        result_of(pid);
        pid = -1;
    }
};

// Those of programs_crowds.cpp, programs_ipc.cpp, programs_pools.cpp and programs_tenants.cpp.
void check_programs_crowds();
void check_programs_ipc();
void check_programs_pools();
void check_programs_tenants();

#endif
