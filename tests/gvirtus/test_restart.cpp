// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A back end that has crashed, or has a GPU context that a client has broken, begins again:
//
//   test_restart PLUGIN.so PROVIDER
#include "tests/gvirtus/checks.h"
#include "tests/gvirtus/gpu_calls_clients.h"

#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

namespace
{

constexpr int lost = 999; // what each call of a lost session returns

// Waits for the next process. The test's limit ends the test if none comes.
pid_t next_after(const Gpu &gpu, pid_t before)
{
    pid_t now = before;
    while (now == before || now == gpu.back.pid) {
        usleep(1000);
        now = gpu.back.serving();
    }
    return now;
}

std::ptrdiff_t descriptors(pid_t process)
{
    const std::filesystem::path all = "/proc/" + std::to_string(process) + "/fd";
    return std::distance(std::filesystem::directory_iterator(all), {});
}

bool break_context(Remote *remote)
{
    const std::vector<char> bytes(100000);
    const std::uint64_t memory = remote->malloc(bytes.size());
    remote->inject("dma", 1, 719, true);
    return HOLDS(memory && remote->to_device(memory, bytes.data(), bytes.size()) == 719);
}

// A new session does not know the forms of replies yet.
bool works(Remote *remote)
{
    const std::vector<char> bytes = random_bytes(100000, 1);
    std::vector<char> got(bytes.size());
    const std::uint64_t memory = (remote->get_last_error(), remote->malloc(bytes.size()));
    REQUIRE(memory && remote->to_device(memory, bytes.data(), bytes.size()) == 0);
    REQUIRE(remote->from_device(got.data(), memory, got.size()) == 0 && got == bytes);
    return HOLDS(remote->free(memory) == 0 && remote->device_synchronize() == 0);
}

// The next client finds a GPU in order, and nobody has started anything.
bool broken_by_one()
{
    const Said said;
    Gpu gpu;
    const pid_t before = gpu.back.serving();
    {
        Client other(gpu, of_another_program);
        REQUIRE(works(&other.remote) && break_context(&gpu.remote));
        REQUIRE(gpu.remote.malloc(100) == 0 && other.remote.malloc(100) == 0);
        // While both are there: the process waits for them, but not for ever. Another program asks,
        // in a process of its own: the threads of this one are told what they have lost, whatever
        // they ask.
        const pid_t next = spawn([&gpu]() -> int {
            Client comes(gpu);
            return !works(&comes.remote);
        });
        REQUIRE(result_of(next) == 0 && next_after(gpu, before) > 0);
        REQUIRE(other.remote.device_synchronize() == lost);
        REQUIRE(gpu.remote.device_synchronize() == lost);
    }
    REQUIRE(said.has("CUDA error 719 of ") &&
            said.has("its process is replaced when they have ended"));
    return HOLDS(said.has(" of the back end has given up a broken GPU context: another one"));
}

// Again and again: nothing accumulates.
bool broken_again()
{
    Gpu gpu;
    std::ptrdiff_t first = 0;
    for (int i = 0; i < 3; i++) {
        const pid_t before = gpu.back.serving();
        {
            Client breaks(gpu, of_another_program);
            REQUIRE(works(&breaks.remote));
            first = first ? first : descriptors(before);
            REQUIRE(descriptors(before) <= first && break_context(&breaks.remote));
        }
        next_after(gpu, before);
        REQUIRE(gpu.remote.device_synchronize() == lost); // otherwise the next thread would be told
    }
    Client next(gpu, of_another_program);
    return HOLDS(works(&next.remote));
}

// A handler crashes, by a signal that sanitizers leave alone; or the kernel kills the process for
// its memory.
bool ended_by(int signal)
{
    const Said said;
    Gpu gpu;
    Client other(gpu, of_another_program);
    const pid_t before = gpu.back.serving();
    REQUIRE(works(&other.remote) && kill(before, signal) == 0);
    next_after(gpu, before);
    REQUIRE(other.remote.device_synchronize() == lost && gpu.remote.malloc(100) == 0);
    Client next(gpu, of_another_program);
    return HOLDS(works(&next.remote) && said.has(" has ended by signal " + std::to_string(signal)));
}

// A back end that somebody ends does not begin again.
bool ended_on_purpose(bool supervisor)
{
    Gpu gpu;
    const pid_t child = gpu.back.serving(), ends = supervisor ? gpu.back.pid : child;
    REQUIRE(child != gpu.back.pid && kill(ends, SIGTERM) == 0);
    while (gpu.back.alive() || kill(child, 0) == 0)
        usleep(1000);
    int status = 0;
    REQUIRE(waitpid(gpu.back.pid, &status, 0) == gpu.back.pid);
    gpu.back.pid = -1;
    return HOLDS(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

// Clients of one back end that copy all the time.
struct Copying {
    std::vector<pid_t> all;
    explicit Copying(std::uint16_t port, const std::string &options)
    {
        int begun[2];
        if (pipe2(begun, O_CLOEXEC))
            std::abort();
        for (int i = 0; i < 4; i++)
            all.push_back(spawn([&]() -> int {
                auto over = connected(port, options);
                Remote own(over.get());
                const std::vector<char> bytes(1 << 20);
                const std::uint64_t memory = (own.get_last_error(), own.malloc(bytes.size()));
                int code = memory ? 0 : 1;
                for (bool first = true; !code; first = false) {
                    code = own.to_device(memory, bytes.data(), bytes.size());
                    if (first && write(begun[1], "b", 1) != 1)
                        return 1;
                }
                return code != lost || own.device_synchronize() != lost;
            }));
        close(begun[1]);
        char byte;
        for (const pid_t client : all)
            if (read(begun[0], &byte, 1) != 1)
                std::fprintf(stderr, "client %d does not copy\n", static_cast<int>(client));
        close(begun[0]);
    }
    // All have been told.
    bool lose() const
    {
        bool good = true;
        for (const pid_t client : all)
            good &= result_of(client) == 0;
        return good;
    }
};

// Whether a client that comes now gets on.
bool serves(std::uint16_t port, const std::string &options)
{
    try {
        auto over = connected(port, options);
        Remote next(over.get());
        return works(&next);
    } catch (const std::exception &) {
        return false;
    }
}

// A service manager starts it again: at once, on the same port, while clients copy.
bool started_again(int signal, const std::string &options)
{
    const auto serve = [](auto listening) { cuda_back_end_child(listening, true); };
    const std::uint16_t port = free_port();
    auto back = std::make_unique<BackEnd>(options, serve, port);
    for (unsigned i = 0; i < 3; i++) {
        const Copying clients(port, options);
        REQUIRE(kill(back->pid, signal) == 0);
        result_of(std::exchange(back->pid, -1));
        back = std::make_unique<BackEnd>(options, serve, port);
        // The predecessor's child may have listened until a moment ago.
        REQUIRE(becomes_true([&] { return serves(port, options); }) && clients.lose());
    }
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_restart PLUGIN.so PROVIDER\n");
        return 2;
    }
    scene_open(argv[1], argv[2]);
    processes = one_process;
    check("a context that a client has broken", broken_by_one);
    check("... again and again", broken_again);
    check("a back end that has crashed", [] { return ended_by(SIGABRT); });
    check("... that was killed for want of memory", [] { return ended_by(SIGKILL); });
    check("one that is told to end", [] { return ended_on_purpose(false); });
    check("... and its supervisor", [] { return ended_on_purpose(true); });
    for (const char *each : {"one", "program"}) {
        processes = std::string("rdma.processes : ") + each + "\n";
        for (const int signal : {SIGTERM, SIGKILL})
            check((std::string("one that is started again on its port: ") + each +
                   (signal == SIGTERM ? ", SIGTERM" : ", SIGKILL"))
                      .c_str(),
                  [&] { return started_again(signal, ""); });
    }
    return scene_close();
}
