// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A back end with a process for each program of its clients.
#ifndef TESTS_GVIRTUS_PROGRAMS_SCENE_H
#define TESTS_GVIRTUS_PROGRAMS_SCENE_H

#include "tests/gvirtus/checks.h"
#include "tests/gvirtus/gpu_calls_clients.h"

#include <filesystem>
#include <iterator>

constexpr const char *by_program = "rdma.processes : program\n";

struct Listening : BackEnd {
    explicit Listening(const std::string &more = "")
        : BackEnd(by_program + more, [](auto listening) { cuda_back_end_child(listening, true); })
    {
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
