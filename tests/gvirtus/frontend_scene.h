// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What test_frontend's files share: a back end with a GPU, and an application beside it.
#ifndef TESTS_FRONTEND_SCENE_H
#define TESTS_FRONTEND_SCENE_H

#include "tests/gvirtus/programs_scene.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

inline std::string plugin, preload, application, application_local, cudart, local_library;

// A back end none of whose processes may end by a fault, also while it frees what the applications
// have left. That would be a check that does not hold, reported when this object goes.
struct GpuBackEnd : Overheard, BackEnd {
    explicit GpuBackEnd(bool taken = true, const std::string &more = "")
        : BackEnd((taken ? "rdma.gpu : on\n" : "rdma.gpu : off\n") + more, [this](auto listening) {
              speaks();
              cuda_back_end_child(listening, true);
          })
    {
        listens();
    }
    ~GpuBackEnd()
    {
        // Not for long: this process may have a connection itself.
        for (unsigned i = 0; i < 500 && alive() && children().size() > 1; i++)
            usleep(1000);
        end();
        HOLDS_AT_END(faults() == wanted_faults);
    }
    unsigned wanted_faults = 0; // of a test that ends processes itself
};

// An application. If a check does not hold while this object exists, it reports how the application
// has ended, and what it has printed.
struct Application {
    pid_t pid;
    int out, in; // of its standard output and input
    std::string log;

    // Against `back`, or with GVirtuS's own communicator when that is null.
    Application(const BackEnd *back, const std::string &program, const std::string &argument,
                const char *more = nullptr)
        : log(folder + "/log" + std::to_string(++begun))
    {
        int ends[2], back_ends[2];
        if (pipe2(ends, O_CLOEXEC) || pipe2(back_ends, O_CLOEXEC))
            std::abort();
        const pid_t serving = back ? back->serving() : 0;
        pid = spawn([&]() -> int {
            dup2(ends[1], STDOUT_FILENO);
            dup2(back_ends[0], STDIN_FILENO);
            dup2(open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), STDERR_FILENO);
            setenv("LD_PRELOAD", preload.c_str(), 1);
            // Before the folders that meson sets, which may have another libcudart.
            const char *libraries = std::getenv("LD_LIBRARY_PATH");
            std::string first = cudart.substr(0, cudart.rfind('/'));
            setenv("LD_LIBRARY_PATH", (first + ":" + (libraries ? libraries : "")).c_str(), 1);
            if (back) {
                setenv("STUB_PROVIDER", provider.c_str(), 1);
                setenv("STUB_PLUGIN", plugin.c_str(), 1);
                setenv("STUB_BACK_END", std::to_string(serving).c_str(), 1);
                setenv("STUB_PORT", std::to_string(back->port).c_str(), 1);
            }
            execl(program.c_str(), program.c_str(), argument.c_str(), more, nullptr);
            return 127;
        });
        close(ends[1]);
        close(back_ends[0]);
        out = ends[0];
        in = back_ends[1];
    }
    ~Application()
    {
        close(out);
        close(in);
        if (not_held != not_held_before)
            report();
    }

    std::string said() const
    {
        std::ifstream file(log);
        return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    }
    bool good() { return ended() == 0; }
    int ended() // its exit status
    {
        if (status < 0)
            status = result_of(pid);
        return status;
    }

  private:
    static constexpr unsigned lines = 8; // that are shown of its first and of its last lines
    static inline unsigned begun;        // each has its own log: children may write to earlier ones
    const unsigned not_held_before = not_held;
    int status = -1;

    // tests/count-results recognizes each line by itself.
    void report() const
    {
        std::vector<std::string> all;
        std::istringstream text(said());
        for (std::string line; std::getline(text, line);)
            all.push_back(line);
        if (status < 0)
            dprintf(report_to, "said: (its exit status was not asked for)\n");
        else
            dprintf(report_to, "said: (exit status %d)\n", status);
        for (std::size_t i = 0; i < all.size(); i++)
            if (i < lines || i + lines >= all.size())
                dprintf(report_to, "said: %s\n", all[i].c_str());
            else if (i == lines)
                dprintf(report_to, "said: (%zu lines)\n", all.size() - 2 * lines);
    }
};

inline std::size_t lines_with(const std::string &text, const std::string &part)
{
    std::size_t count = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at++)
        count++;
    return count;
}

// Whether the back end has mapped a client's memory at the client's address.
inline bool has_maps(const GpuBackEnd &back)
{
    std::ifstream maps("/proc/" + std::to_string(back.serving()) + "/maps");
    bool any = false;
    for (std::string line; std::getline(maps, line) && !any;) {
        const unsigned long long begin = std::stoull(line, nullptr, 16);
        any = begin >= 1ull << 45 && begin < 5ull << 44 && lines_with(line, "ibx-shared");
    }
    return any;
}

// GVirtuS's libcudart, by the name that it has for that version of CUDA.
struct Installed {
    const std::string in = folder + "/front end";
    explicit Installed(int version = 13)
    {
        std::filesystem::create_directory(in);
        std::filesystem::create_symlink(std::filesystem::absolute(cudart),
                                        in + "/libcudart.so." + std::to_string(version));
        const char *libraries = std::getenv("LD_LIBRARY_PATH");
        before = libraries ? libraries : "";
        setenv("LD_LIBRARY_PATH", (in + ":" + before).c_str(), 1);
    }
    ~Installed()
    {
        setenv("LD_LIBRARY_PATH", before.c_str(), 1);
        std::filesystem::remove_all(in);
    }

  private:
    std::string before;
};

// frontend_nccl.cpp
void check_nccl(bool all);

// frontend_exits.cpp
void check_exits();

// frontend_registered.cpp
// Kernels use page-locked memory: one line says if they cannot reach it. Nothing of it stays.
bool reach(const char *test, bool taken);
void check_registered();

// frontend_math.cpp
bool without_math();
bool too_long_for_dnn();
bool without_some_math();
bool math_first();
bool leaves_math();

// frontend_failures.cpp
bool functions_lost(const char *test);
bool own_threads_unconnected();
bool memory_that_may_not_be_touched();
bool sets_after_a_loss();
bool events_after_a_loss();
bool mapped_for_ever();
bool function_for_ever();
bool killed_in_graph(const char *test);
bool killed_beside_endless();
bool daemons_that_launch();
bool lied_to();
bool ends_in_the_middle();
bool killed(const char *test, unsigned rounds, unsigned pause);
bool library_loaded_later(const char *file, const char *test, const char *line);
bool libraries_found_elsewhere();
bool libraries_found_by_tokens();
bool libraries_of_its_own();
bool libraries_ask_driver();
bool driver_alone();
bool driver_elsewhere();
bool driver_beside_versions();
bool driver_without_gvirtus();
bool runtime_without_gvirtus();
bool green_contexts();
bool absent();
bool stock(const char *test, const char *warning);
bool loaded_locally(const char *test, unsigned ends);
bool printed_last(const char *test, const char *wanted);

// frontend_static.cpp
bool static_runtime();
bool static_runtime_host_only();
bool static_runtime_allocator();
bool static_runtime_odd_starts();
bool static_runtime_refused();
bool static_libraries_linked();
bool static_libraries_opened(const char *how);
bool static_libraries_lacking();
bool static_libraries_elsewhere();
bool static_libraries_refused();
bool static_runtime_of_python();

#endif
