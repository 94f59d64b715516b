// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A back end with a process for each program of its clients.
#ifndef TESTS_GVIRTUS_PROGRAMS_SCENE_H
#define TESTS_GVIRTUS_PROGRAMS_SCENE_H

#include "tests/gvirtus/checks.h"
#include "tests/gvirtus/gpu_calls_clients.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr const char *by_program = "rdma.processes : program\n";

struct Listening : BackEnd {
    explicit Listening(const std::string &more = "")
        : BackEnd(by_program + more, [](auto listening) { cuda_back_end_child(listening, true); })
    {
    }
    ~Listening() // it need not have a child
    {
        std::vector<pollfd> ends;
        for (const pid_t child : children())
            ends.push_back({static_cast<int>(syscall(SYS_pidfd_open, child, 0)), POLLIN, 0});
        kill(pid, SIGKILL);
        result_of(pid);
        pid = -1;
        for (pollfd &end : ends) {
            poll(&end, 1, patience_ms(30000));
            close(end.fd);
        }
    }
    // In the order in which they were made.
    std::vector<pid_t> children() const
    {
        const std::string task = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid);
        std::ifstream list(task + "/children");
        return {std::istream_iterator<pid_t>(list), {}};
    }
    bool has(std::size_t n) const
    {
        return becomes_true([&] { return children().size() == n; });
    }
    std::ptrdiff_t descriptors() const
    {
        const std::filesystem::path all = "/proc/" + std::to_string(pid) + "/fd";
        return std::distance(std::filesystem::directory_iterator(all), {});
    }
};

// The tests of programs_ipc.cpp.
void check_programs_ipc();

#endif
