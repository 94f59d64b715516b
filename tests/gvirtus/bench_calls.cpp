// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What calls without copies cost a front end, with each value of rdma.pipeline in turns, against a
// back end that does nothing (tests/doubles/gvirtus/world.h): so the figures have only our own
// part. With kernels of a real GPU: tests/gvirtus/bench_calls.cu, which tools/bench/gpu --gvirtus
// runs.
//
//   bench-calls PLUGIN.so PROVIDER [--rounds N] [--delay MICROSECONDS] [--modes NAME,...]
//
// --delay puts a relay between the two ends that holds every byte so long each way (tcp only).
// Prints the median of the rounds, and the least and the most, in microseconds.
#include "tests/doubles/gvirtus/world.h"
#include "tests/gvirtus/scene.h"

#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

namespace
{

using Clock = std::chrono::steady_clock;

/* ------------------------------------------------------------------------- the relay */

struct Piece {
    Clock::time_point due;
    std::vector<char> bytes;
};

// One direction of one connection.
void relay_direction(int from, int to, std::chrono::microseconds delay)
{
    std::deque<Piece> pieces;
    std::mutex lock;
    std::condition_variable changed;
    bool ended = false;
    std::thread writer([&] {
        prctl(PR_SET_TIMERSLACK, 1);
        for (;;) {
            std::unique_lock<std::mutex> guard(lock);
            changed.wait(guard, [&] { return ended || !pieces.empty(); });
            if (pieces.empty())
                break;
            Piece piece = std::move(pieces.front());
            pieces.pop_front();
            guard.unlock();
            std::this_thread::sleep_until(piece.due);
            if (write(to, piece.bytes.data(), piece.bytes.size()) < 0)
                break;
        }
        shutdown(to, SHUT_WR);
    });
    std::vector<char> buffer(1u << 18);
    for (ssize_t n; (n = read(from, buffer.data(), buffer.size())) > 0;) {
        Piece piece{Clock::now() + delay, {buffer.begin(), buffer.begin() + n}};
        std::lock_guard<std::mutex> guard(lock);
        pieces.push_back(std::move(piece));
        changed.notify_one();
    }
    {
        std::lock_guard<std::mutex> guard(lock);
        ended = true;
        changed.notify_one();
    }
    writer.join();
}

sockaddr_in local(std::uint16_t port)
{
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

[[noreturn]] void relay(int listener, std::uint16_t port, unsigned delay_us)
{
    const std::chrono::microseconds delay(delay_us);
    const int one = 1;
    for (;;) {
        int client = accept(listener, nullptr, nullptr), server = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address = local(port);
        if (client < 0 || connect(server, reinterpret_cast<sockaddr *>(&address), sizeof(address)))
            std::_Exit(1);
        for (int fd : {client, server})
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        std::thread(relay_direction, client, server, delay).detach();
        std::thread(relay_direction, server, client, delay).detach();
    }
}

// The port at which it listens.
std::uint16_t relay_begin(std::uint16_t port, unsigned delay_us)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = local(0);
    socklen_t length = sizeof(address);
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(address)) ||
        listen(listener, 64))
        std::abort();
    getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length);
    spawn([&]() -> int { relay(listener, port, delay_us); });
    return ntohs(address.sin_port);
}

/* ----------------------------------------------------------------------- measuring */

using Row = std::vector<double>;
std::map<std::string, std::map<std::string, Row>> rows; // by what is measured, and by mode

void must(int rc, const char *what)
{
    if (!rc)
        return;
    std::fprintf(stderr, "bench-calls: %s: error %d\n", what, rc);
    std::exit(1);
}

// As <<<>>> does it.
int launch(FrontEnd &front, std::uint64_t value)
{
    int rc = front.call("cudaPushCallConfiguration", world_configuration(32, 100));
    if (!rc)
        rc = front.call("cudaPopCallConfiguration", Body());
    return rc ? rc : front.call("cudaLaunchKernel", world_launch(KERNEL, 32, 100, value));
}

double microseconds(const std::function<void()> &what, unsigned times = 1)
{
    const auto begin = Clock::now();
    for (unsigned i = 0; i < times; i++)
        what();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / times;
}

void measure(FrontEnd &front, const std::string &mode)
{
    Body copy;
    copy.host("", 1).u64(0).u64(8).i32(D2H);
    const Body event = Body().u64(0).u64(100), wait = Body().u64(101).u64(0).i32(0);
    auto synchronize = [&] { must(front.call("cudaDeviceSynchronize", Body()), "synchronize"); };
    auto named = [&](const char *name, const Body &body) {
        return [&front, name, &body] { must(front.call(name, body), name); };
    };
    auto row = [&](const char *what, double us) { rows[what][mode].push_back(us); };
    auto launched = [&] { must(launch(front, 1), "a launch"); };
    const Body none;
    for (int i = 0; i < 3; i++) { // the first calls of a program do not count
        launched();
        named("cudaEventRecord", event)();
        named("cudaStreamWaitEvent", wait)();
        named("cudaGetLastError", none)();
        named("cudaGetDevice", none)();
        synchronize();
    }
    double alone = microseconds(launched, 10000);
    row("1 launch, mean of 10,000", alone);
    row("2 the same, until they have run", alone + microseconds(synchronize) / 10000);
    row("3 200 launches and 8 B back", microseconds([&] {
            for (int i = 0; i < 200; i++)
                launched();
            named("cudaMemcpy", copy)();
        }));
    row("4 launch + cudaDeviceSynchronize", microseconds(
                                                [&] {
                                                    launched();
                                                    synchronize();
                                                },
                                                200));
    row("5 cudaEventRecord", microseconds(named("cudaEventRecord", event), 2000));
    synchronize();
    row("6 cudaStreamWaitEvent", microseconds(named("cudaStreamWaitEvent", wait), 2000));
    synchronize();
    row("7 cudaGetLastError", microseconds(named("cudaGetLastError", none), 2000));
    row("8 cudaGetDevice", microseconds(named("cudaGetDevice", none), 2000));
    row("9 cudaStreamQuery", microseconds(named("cudaStreamQuery", Body().u64(100)), 200));
}

} // namespace

int main(int argc, char **argv)
{
    unsigned rounds = 5, delay = 0;
    std::string modes = "off,launches,all";
    for (int i = 3; i + 1 < argc; i += 2) {
        const std::string option = argv[i];
        if (option == "--rounds")
            rounds = static_cast<unsigned>(std::atoi(argv[i + 1]));
        else if (option == "--delay")
            delay = static_cast<unsigned>(std::atoi(argv[i + 1]));
        else if (option == "--modes")
            modes = argv[i + 1];
        else
            argc = 0;
    }
    if (argc < 3 || !rounds) {
        std::fprintf(stderr, "usage: bench-calls PLUGIN.so PROVIDER [--rounds N] [--delay US] "
                             "[--modes NAME,...]\n");
        return 2;
    }
    scene_open(argv[1], argv[2]);
    World *world = world_create();
    {
        BackEnd back("", [world](auto listening) { world_back_end(world, listening, true); });
        const std::uint16_t port = delay ? relay_begin(back.port, delay) : back.port;
        for (unsigned round = 0; round < rounds; round++) {
            for (std::size_t at = 0; at < modes.size();) {
                const std::size_t end = std::min(modes.find(',', at), modes.size());
                const std::string mode = modes.substr(at, end - at);
                auto over = connected(port, "rdma.pipeline : " + mode + "\n");
                FrontEnd front(over.get());
                measure(front, mode);
                at = end + 1;
            }
        }
    }
    for (auto &row : rows) {
        std::printf("%-36s", row.first.c_str() + 2);
        for (auto &cell : row.second) {
            std::sort(cell.second.begin(), cell.second.end());
            std::printf("  %s %.2f (%.2f to %.2f)", cell.first.c_str(),
                        cell.second[cell.second.size() / 2], cell.second.front(),
                        cell.second.back());
        }
        std::printf("\n");
    }
    world_destroy(world);
    std::string remove = "rm -rf " + folder;
    return std::system(remove.c_str()) != 0;
}
