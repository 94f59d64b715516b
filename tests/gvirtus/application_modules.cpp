// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Modules of processes that have ended, however they did: so many that the back end, which may have
// 1 MiB of them here, would be full if it did not let go of them.
#include "tests/gvirtus/application.h"
#include "tests/scenes/patience.h"

#include <csignal>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

constexpr std::size_t module_bytes = 64u << 10;
constexpr unsigned processes_each = 40;

struct Module {
    std::uint64_t wrapper[8];
    char kernel[1], variable[1];
    void **handle;

    // As the code does that nvcc makes. That kernel is none that this libcudart launches.
    explicit Module(bool has_variable = true)
    {
        using Function = void(void **, const void *, char *, const char *, int, void *, void *,
                              void *, void *, int *);
        using Variable = void(void **, char *, char *, const char *, int, std::size_t, int, int);
        auto *function = preloaded<Function>("__cudaRegisterFunction");
        handle = preloaded<void **(void *)>("__cudaRegisterFatBinary")(wrapper);
        for (const char *one :
             {static_cast<const char *>(kernel), static_cast<const char *>(&stub_kernel)})
            function(handle, one, nullptr, "kernel", -1, nullptr, nullptr, nullptr, nullptr,
                     nullptr);
        if (has_variable)
            preloaded<Variable>("__cudaRegisterVar")(handle, variable, variable, "v5.0.64", 0, 1, 0,
                                                     0);
    }
};

bool launches_well()
{
    char *device = device_memory(4096);
    return device && stub_launch(device + 8, device, 8, nullptr) == 0 &&
           cudaDeviceSynchronize() == 0;
}

// A process of its own for each.
bool many(const std::function<void()> &run, int status_wanted)
{
    for (unsigned i = 0; i < processes_each; i++) {
        int status = -1;
        const pid_t child = fork();
        if (!child) {
            alarm(20 * patience_times());
            run();
            _exit(1);
        }
        REQUIRE(waitpid(child, &status, 0) == child && status == status_wanted);
    }
    return true;
}

// Its parent has ended, and perhaps the back end has seen that.
void orphan(int result, pid_t parent)
{
    alarm(20 * patience_times());
    while (getppid() == parent)
        usleep(1000);
    const char good = launches_well() ? 'g' : 'b';
    _exit(write(result, &good, 1) != 1);
}

bool many_orphans()
{
    for (unsigned i = 0; i < processes_each; i++) {
        int ends[2], status = -1;
        char said = 0;
        REQUIRE(pipe(ends) == 0);
        const pid_t child = fork();
        if (!child) {
            static Module mine(false);
            const bool good = launches_well();
            const pid_t parent = getpid();
            if (good && !fork())
                orphan(ends[1], parent);
            _exit(!good);
        }
        close(ends[1]);
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        REQUIRE(read(ends[0], &said, 1) == 1 && said == 'g');
        REQUIRE(read(ends[0], &said, 1) == 0);
        close(ends[0]);
    }
    return true;
}

} // namespace

bool modules_of_ended()
{
    stub_registers(module_bytes);
    static Module program, other(false);
    REQUIRE(launches_well());
    // What a child registers again, and what it registers itself.
    REQUIRE(many([] { _exit(!launches_well()); }, 0));
    REQUIRE(many(
        [] {
            static Module mine;
            if (launches_well())
                raise(SIGKILL);
        },
        SIGKILL));
    REQUIRE(many_orphans());
    return HOLDS(launches_well());
}
