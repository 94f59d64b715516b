// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Clients that share a GPU, run by tools/bench/gpu --shared:
//
//   bench-clients LIBCUDART SECONDS [PART]
//
// Each client is a process that copies page-locked memory to the device in a loop, over this
// libcudart, GVirtuS's or CUDA's own, and over what is preloaded before it. Prints what short
// copies cost alone, among themselves, and beside a client that copies without end (one copy of 256
// MiB after the other, or 8 of 16 MiB at once); then what equal clients get. Ends with DONE:
//
//   SHARED MEDIAN 99TH GREEDY WHAT   microseconds of the short copies, GB/s of the greedy one
//   EQUAL SUM RATIO WHAT             GB/s together, slowest to fastest
//
// With PART, only the lines whose WHAT contains it.
#include "tests/gvirtus/bench_measure.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csignal>
#include <dlfcn.h>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

constexpr std::size_t KIB = 1024, MIB = 1024 * KIB;
constexpr unsigned clients_max = 8, samples_max = 1u << 16;
constexpr unsigned at_once = 8; // copies that a greedy client leaves behind

struct Result {
    double seconds;
    std::uint64_t copies, samples;
    float times[samples_max]; // microseconds
};

struct Shared {
    std::atomic<unsigned> ready, failed;
    std::atomic<bool> go, stop;
    Result results[clients_max];
};

struct Client {
    std::size_t bytes;
    bool asynchronous;
};

Shared *shared;
const char *libcudart;
double slice;
std::string wanted; // a part of what is measured

// Ends the process without the destructors of GVirtuS's front ends, which may fail.
[[noreturn]] void leave(int status)
{
    std::fflush(stdout);
    _exit(status);
}

[[noreturn]] void fail(const char *what, int rc)
{
    if (!shared->failed++) // the others for the same reason
        std::fprintf(stderr, "bench-clients: %s: error %d\n", what, rc);
    leave(1);
}

template <typename F> F symbol(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found)
        fail(name, 0);
    return reinterpret_cast<F>(found);
}

void must(int rc, const char *what)
{
    if (rc)
        fail(what, rc);
}

// A client's device and host memory, and how it copies once.
class Copier
{
  public:
    explicit Copier(const Client &client) : what(client)
    {
        copy = symbol<decltype(copy)>("cudaMemcpy");
        copy_async = symbol<decltype(copy_async)>("cudaMemcpyAsync");
        wait = symbol<decltype(wait)>("cudaStreamSynchronize");
        auto create = symbol<int (*)(void **)>("cudaStreamCreate");
        must(symbol<int (*)(void **, std::size_t)>("cudaMalloc")(&device, what.bytes),
             "cudaMalloc");
        must(symbol<int (*)(void **, std::size_t)>("cudaMallocHost")(&host, what.bytes),
             "cudaMallocHost");
        std::memset(host, 7, what.bytes);
        for (unsigned i = 0; what.asynchronous && i < at_once; i++)
            must(create(&streams[i]), "cudaStreamCreate");
    }
    // One copy; with `asynchronous` one more behind those that are under way.
    void once()
    {
        if (!what.asynchronous) {
            must(copy(device, host, what.bytes, 1), "cudaMemcpy");
            return;
        }
        void *stream = streams[begun % at_once];
        if (begun++ >= at_once)
            must(wait(stream), "cudaStreamSynchronize");
        must(copy_async(device, host, what.bytes, 1, stream), "cudaMemcpyAsync");
    }

  private:
    Client what;
    int (*copy)(void *, const void *, std::size_t, int);
    int (*copy_async)(void *, const void *, std::size_t, int, void *);
    int (*wait)(void *);
    void *device = nullptr, *host = nullptr, *streams[at_once] = {};
    unsigned begun = 0;
};

[[noreturn]] void run_client(const Client &client, Result *result)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!dlopen(libcudart, RTLD_NOW | RTLD_GLOBAL))
        fail(dlerror(), 0);
    Copier copier(client);
    for (int i = 0; i < 20; i++)
        copier.once();
    shared->ready++;
    while (!shared->go)
        usleep(100);
    const double began = now();
    double before = began;
    while (!shared->stop) {
        copier.once();
        const double after = now();
        if (result->samples < samples_max)
            result->times[result->samples++] = static_cast<float>((after - before) * 1e6);
        before = after;
        result->copies++;
    }
    result->seconds = now() - began;
    leave(0);
}

// Whether a client has ended, or never began. By itself none ends before all are ready.
bool any_gone(const std::vector<pid_t> &pids)
{
    return std::any_of(pids.begin(), pids.end(), [](pid_t pid) {
        siginfo_t info{};
        return pid < 0 ||
               waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) ||
               info.si_pid;
    });
}

// Runs these clients at once for a slice. False: one has failed.
bool run(const std::vector<Client> &clients)
{
    std::vector<pid_t> pids;
    new (shared) Shared{};
    for (std::size_t i = 0; i < clients.size(); i++) {
        const pid_t pid = fork();
        if (!pid)
            run_client(clients[i], &shared->results[i]);
        pids.push_back(pid);
    }
    bool good = true;
    while (good && shared->ready < clients.size()) {
        usleep(1000);
        good = !any_gone(pids);
    }
    shared->go = true;
    if (good)
        usleep(static_cast<useconds_t>(slice * 1e6));
    shared->stop = true;
    for (pid_t pid : pids) {
        int status = 0;
        good = pid > 0 && waitpid(pid, &status, 0) == pid && !status && good;
    }
    return good;
}

double rate(std::size_t client, std::size_t bytes)
{
    const Result &result = shared->results[client];
    return static_cast<double>(result.copies * bytes) / result.seconds / 1e9;
}

// A percentile of the times of the first `count` clients.
double percentile(std::size_t count, double part)
{
    std::vector<float> all;
    for (std::size_t i = 0; i < count; i++)
        all.insert(all.end(), shared->results[i].times,
                   shared->results[i].times + shared->results[i].samples);
    if (all.empty())
        return 0;
    auto at = all.begin() + static_cast<long>(part * static_cast<double>(all.size() - 1));
    std::nth_element(all.begin(), at, all.end());
    return *at;
}

void short_beside(std::size_t count, std::size_t bytes, const Client *greedy, const char *beside)
{
    std::vector<Client> clients(count, Client{bytes, false});
    if (greedy)
        clients.push_back(*greedy);
    const std::string what =
        std::to_string(count) + " x " +
        (bytes < KIB ? std::to_string(bytes) + " B" : std::to_string(bytes / KIB) + " KiB");
    if ((what + beside).find(wanted) == std::string::npos)
        return;
    if (!run(clients)) {
        std::printf("FAILED %s%s\n", what.c_str(), beside);
        return;
    }
    std::printf("SHARED %.2f %.2f %.2f %s%s\n", percentile(count, 0.5), percentile(count, 0.99),
                greedy ? rate(count, greedy->bytes) : 0, what.c_str(), beside);
}

void equal(std::size_t bytes)
{
    const std::vector<Client> clients(clients_max, Client{bytes, false});
    const std::string what =
        std::to_string(clients_max) + " x " + std::to_string(bytes / MIB) + " MiB";
    if (what.find(wanted) == std::string::npos)
        return;
    if (!run(clients)) {
        std::printf("FAILED %s\n", what.c_str());
        return;
    }
    double sum = 0, slowest = rate(0, bytes), fastest = slowest;
    for (unsigned i = 0; i < clients_max; i++) {
        sum += rate(i, bytes);
        slowest = std::min(slowest, rate(i, bytes));
        fastest = std::max(fastest, rate(i, bytes));
    }
    std::printf("EQUAL %.2f %.3f %s\n", sum, slowest / fastest, what.c_str());
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4 || (slice = std::atof(argv[2])) <= 0) {
        std::fprintf(stderr, "usage: bench-clients LIBCUDART SECONDS [PART]\n");
        return 2;
    }
    wanted = argc == 4 ? argv[3] : "";
    libcudart = argv[1];
    std::setvbuf(stdout, nullptr, _IOLBF, 0); // so that no child has output to flush
    void *memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    shared = static_cast<Shared *>(memory);
    const Client long_copies{256 * MIB, false}, many_copies{16 * MIB, true};
    for (std::size_t bytes : {std::size_t{4}, 64 * KIB}) {
        short_beside(1, bytes, nullptr, "");
        short_beside(7, bytes, nullptr, "");
        short_beside(1, bytes, &long_copies, " beside 256 MiB");
        short_beside(7, bytes, &long_copies, " beside 256 MiB");
        short_beside(7, bytes, &many_copies, " beside 8 of 16 MiB");
    }
    equal(1 * MIB);
    equal(16 * MIB);
    std::printf("DONE\n");
    leave(0);
}
