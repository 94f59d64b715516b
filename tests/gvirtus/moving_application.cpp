// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A program that uses a remote GPU in a VM that migrates, and the back end that stays where it is
// (tests/vm/test_gpu_moves.py, test_gpu_paths.py):
//
//   moving-application PLUGIN serve ADDRESS KEY-FILE
//   moving-application PLUGIN call ADDRESS PORT KEY-FILE HEARTBEATS
//
// MOVING_PROVIDER (tcp) and MOVING_TIMEOUT_MS (60000) are rdma.provider and rdma.timeout_ms of
// both. `serve` prints its port. For each line that it reads, it prints how many requests have come
// since the last line and the longest time between two of them, in microseconds of its host, which
// never stands still. It ends when its input does.
//
// `call` makes calls without a pause, also makes each on its own model of the device, and compares.
// Every hundred calls a line says how many were right. A thread writes a byte to HEARTBEATS, a
// serial line, every 5 ms: this tells when the VM itself stood still, and when only its calls did.
#include "tests/doubles/gvirtus/world.h"
#include "tests/gvirtus/scene.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace
{

/* --------------------------------------------------------------------- the back end */

struct Seen {
    std::atomic<std::uint64_t> requests, last_us, longest_us;
};

std::uint64_t now_us()
{
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

void note(Seen *seen)
{
    const std::uint64_t now = now_us(), before = seen->last_us.exchange(now);
    if (before && now - before > seen->longest_us)
        seen->longest_us = now - before;
    seen->requests++;
}

int serve()
{
    World *world = world_create();
    void *memory =
        mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto *seen = new (memory) Seen{};
    BackEnd back("", [&](std::shared_ptr<Communicator> listening) {
        serve_clients(
            listening,
            [&]() -> Handler {
                auto thread = std::make_shared<WorldThread>();
                return
                    [&, thread](const std::string &name, const std::vector<char> &in, Body *out) {
                        note(seen);
                        return world_run(world, thread.get(), name, in, out);
                    };
            },
            true);
    });
    std::printf("port %u\n", back.port);
    std::fflush(stdout);
    for (char line[16]; std::fgets(line, sizeof(line), stdin);) {
        std::printf("requests %lu longest %lu us\n",
                    static_cast<unsigned long>(seen->requests.exchange(0)),
                    static_cast<unsigned long>(seen->longest_us.exchange(0)));
        std::fflush(stdout);
    }
    return 0;
}

/* ------------------------------------------------------------------- in the guest */

[[noreturn]] void beat(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    for (;;) {
        if (write(fd, ".", 1) != 1) {
            std::printf("WRONG: no heartbeats to %s\n", path);
            std::_Exit(1);
        }
        usleep(5000);
    }
}

struct Checked {
    FrontEnd *front;
    World *world;
    WorldThread thread;
    std::uint64_t calls = 0;

    void call(const char *name, const Body &body)
    {
        Body reply;
        const int wanted = world_run(world, &thread, name, body.bytes, &reply),
                  got = front->call(name, body);
        if (got != wanted || front->out != reply.bytes) {
            std::printf("WRONG: call %lu, %s: %d and %zu bytes, not %d and %zu\n",
                        static_cast<unsigned long>(calls), name, got, front->out.size(), wanted,
                        reply.bytes.size());
            std::fflush(stdout);
            std::_Exit(1);
        }
        if (++calls % 100 == 0) {
            std::printf("right %lu\n", static_cast<unsigned long>(calls));
            std::fflush(stdout);
        }
    }
};

Body copy_to(std::uint64_t at, std::size_t n, unsigned seed)
{
    Body body;
    const std::vector<char> bytes = random_bytes(n, seed);
    return body.u64(at).host(bytes.data(), n).u64(n).i32(H2D);
}

void call_something(Checked *checked, unsigned random)
{
    const std::uint64_t stream = 100 + random % WORLD_STREAMS, event = random / 7 % WORLD_EVENTS,
                        at = random / 11 % WORLD_STREAMS;
    const std::size_t n = random / 13 % 16 ? 4096 : 65536;
    Body from;
    from.host("", 1).u64(at).u64(n).i32(D2H);
    switch (random / 64 % 16) {
    case 0:
        return checked->call("cudaEventRecord", Body().u64(event).u64(stream));
    case 1:
        return checked->call("cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0));
    case 2:
        return checked->call("cudaMemcpy", copy_to(at, n, random));
    case 3:
        return checked->call("cudaMemcpyAsync", copy_to(at, n, random).u64(stream));
    case 4:
        return checked->call("cudaMemcpy", from);
    case 5:
        return checked->call("cudaStreamSynchronize", Body().u64(stream));
    default:
        checked->call("cudaPushCallConfiguration", world_configuration(32, stream));
        checked->call("cudaPopCallConfiguration", Body());
        return checked->call("cudaLaunchKernel", world_launch(KERNEL, 32, stream, random));
    }
}

int call(std::uint16_t port, const char *heartbeats)
{
    // An endpoint may be a name, too, instead of an address.
    auto over =
        connected(port, "communicator : rdma://" + host + ":" + std::to_string(port) + "\n");
    FrontEnd front(over.get());
    Checked checked{&front, world_create(), {}};
    std::thread(beat, heartbeats).detach();
    for (unsigned random = 1;; random = random * 1664525u + 1013904223u)
        call_something(&checked, random >> 8);
}

std::string setting(const char *name, const char *usual)
{
    const char *value = std::getenv(name);
    return value && *value ? value : usual;
}

} // namespace

int main(int argc, char **argv)
{
    const bool serves = argc == 5 && std::strcmp(argv[2], "serve") == 0,
               calls = argc == 7 && std::strcmp(argv[2], "call") == 0;
    if (!serves && !calls) {
        std::fprintf(stderr, "usage: moving-application PLUGIN serve ADDRESS KEY-FILE\n"
                             "       moving-application PLUGIN call ADDRESS PORT KEY-FILE "
                             "HEARTBEATS\n");
        return 2;
    }
    scene_open(argv[1], "tcp", argv[3]);
    common = "rdma.provider : " + setting("MOVING_PROVIDER", "tcp") +
             "\nrdma.timeout_ms : " + setting("MOVING_TIMEOUT_MS", "60000") +
             "\nrdma.key_file : " + argv[serves ? 4 : 5] + "\n";
    const int rc = serves ? serve() : call(static_cast<std::uint16_t>(std::atoi(argv[4])), argv[6]);
    std::string remove = "rm -rf " + folder;
    return std::system(remove.c_str()) || rc;
}
