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
    std::size_t spares;
    explicit Listening(const std::string &more = "", std::size_t spare = 0)
        : BackEnd(by_program + ("rdma.spare_processes : " + std::to_string(spare)) + "\n" + more,
                  [](auto listening) { cuda_back_end_child(listening, true); }),
          spares(spare)
    {
    }
    // So many processes of programs.
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

// The tests of programs_ipc.cpp.
void check_programs_ipc();

#endif
