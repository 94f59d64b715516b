// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What calls cost apart from the GPU's part: an application with the preload before a libcudart
// that does what GVirtuS's does, and a back end with a GPU that does nothing.
//
//   bench-overhead PLUGIN.so PRELOAD.so LIBCUDART.so shm|tcp [CALLS]
//
// with IBX_LIBCUDA naming libidle-cuda.so. A line for each call: microseconds, the median and the
// least of CALLS. Page-locked memory. Both ends poll as if there were 16 processors; `chrt -f 20`
// keeps other programs off two of them. LIMIT=d65536 makes only one kind of call, to count its
// instructions.
#include "tests/gvirtus/bench_measure.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <sched.h>
#include <unistd.h>

// Called in place of the C library's, also by the plugin.
extern "C" __attribute__((visibility("default"))) int sched_getaffinity(pid_t, std::size_t n,
                                                                        cpu_set_t *set) noexcept
{
    CPU_ZERO_S(n, set);
    for (std::size_t i = 0; i < 16; i++)
        CPU_SET_S(i, n, set);
    return 0;
}

namespace
{

template <typename F> F symbol(const char *name)
{
    return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
}

struct Calls {
    int (*copy)(void *, const void *, std::size_t, int);
    int (*synchronize)();
    void *host, *device;
};

// One function, so that a profiler can be given its name.
__attribute__((noinline)) bool measured(const Calls &c, const char *what, std::vector<double> *all)
{
    const std::size_t n = std::strtoul(what + 1, nullptr, 10);
    bool good = true;
    for (double &time : *all) {
        const double began = now();
        const int rc = *what == 'd'   ? c.copy(c.host, c.device, n, 2)
                       : *what == 'h' ? c.copy(c.device, c.host, n, 1)
                                      : c.synchronize();
        time = now() - began;
        good = good && !rc;
    }
    return good;
}

int application(const char *cudart, std::size_t calls)
{
    constexpr std::size_t bytes = 1 << 20;
    if (!dlopen(cudart, RTLD_NOW | RTLD_GLOBAL)) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    Calls c{symbol<decltype(Calls::copy)>("cudaMemcpy"),
            symbol<decltype(Calls::synchronize)>("cudaDeviceSynchronize"), nullptr, nullptr};
    if (symbol<int (*)(void **, std::size_t)>("cudaMalloc")(&c.device, bytes) ||
        symbol<int (*)(void **, std::size_t)>("cudaMallocHost")(&c.host, bytes))
        return 1;
    std::memset(c.host, 1, bytes);
    const char *limit = std::getenv("LIMIT");
    for (const char *what : {"d4", "d65536", "h4", "h65536", "s"}) {
        std::vector<double> first(200), all(calls);
        if (limit && std::strcmp(limit, what) != 0)
            continue;
        if (!measured(c, what, &first) || !measured(c, what, &all))
            return 1;
        std::sort(all.begin(), all.end());
        std::printf("%-22s %8.3f %8.3f\n",
                    *what == 's' ? "cudaDeviceSynchronize"
                                 : ((*what == 'd' ? "from the device, " : "to the device, ") +
                                    std::string(what + 1))
                                       .c_str(),
                    all[all.size() / 2] * 1e6, all[0] * 1e6);
    }
    std::fflush(stdout);
    _exit(0); // the destructors of GVirtuS's front ends are not to be relied on
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 4 && !std::strcmp(argv[1], "--application"))
        return application(argv[2], std::strtoul(argv[3], nullptr, 10));
    if (argc < 5) {
        std::fputs("usage: bench-overhead PLUGIN PRELOAD LIBCUDART shm|tcp [CALLS]\n", stderr);
        return 2;
    }
    scene_open(argv[1], argv[4]);
    processes = one_process;
    BackEnd back("rdma.gpu : on\n", [](auto listening) { cuda_back_end_child(listening, true); });
    const pid_t serving = back.serving();
    const pid_t child = spawn([&]() -> int {
        setenv("LD_PRELOAD", argv[2], 1);
        setenv("STUB_PLUGIN", argv[1], 1);
        setenv("STUB_BACK_END", std::to_string(serving).c_str(), 1);
        setenv("STUB_PORT", std::to_string(back.port).c_str(), 1);
        setenv("STUB_PROVIDER", argv[4], 1);
        const std::string self = std::filesystem::read_symlink("/proc/self/exe");
        execl(self.c_str(), argv[0], "--application", argv[3], argc > 5 ? argv[5] : "20000",
              nullptr);
        return 127;
    });
    const int result = result_of(child);
    back.end();
    return scene_close() || result;
}
