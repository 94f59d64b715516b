// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Large modules, which are registered when one of their kernels is needed.
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace
{

constexpr std::size_t least = 65536; // bytes of such a module, decompressed
constexpr std::size_t searched = 64u << 20;

// A fat binary with one cubin, and the arguments of nvcc's calls for it.
struct LargeModule {
    struct {
        std::uint32_t magic = 0x466243b1, version = 1;
        const void *fat = nullptr, *more = nullptr;
    } wrapper;
    std::vector<char> fat;
    char kernel[1] = {};
    void **handle = nullptr;

    // `expanded`: bytes of what is compressed, if it is; nothing here decompresses this one.
    explicit LargeModule(std::uint64_t data = least, std::uint64_t expanded = 0) : fat(80 + data)
    {
        const std::uint64_t bytes = 64 + data;
        const std::uint32_t magic = 0xba55ed50, head = 64;
        const std::uint16_t version = 1, header = 16, kind = 2, entry = 0x101;
        std::memcpy(fat.data(), &magic, 4);
        std::memcpy(&fat[4], &version, 2);
        std::memcpy(&fat[6], &header, 2);
        std::memcpy(&fat[8], &bytes, 8);
        std::memcpy(&fat[16], &kind, 2);
        std::memcpy(&fat[18], &entry, 2);
        std::memcpy(&fat[20], &head, 4);
        std::memcpy(&fat[24], &data, 8);
        std::memcpy(&fat[72], &expanded, 8);
        wrapper.fat = fat.data();
        handle = preloaded<void **(void *)>("__cudaRegisterFatBinary")(&wrapper);
    }

    void function(const char *address, const char *name) const
    {
        using Function = void(void **, const void *, char *, const char *, int, void *, void *,
                              void *, void *, int *);
        preloaded<Function>("__cudaRegisterFunction")(handle, address, nullptr, name, -1, nullptr,
                                                      nullptr, nullptr, nullptr, nullptr);
    }

    void variable(char *symbol) const
    {
        using Variable = void(void **, char *, char *, const char *, int, std::size_t, int, int);
        preloaded<Variable>("__cudaRegisterVar")(handle, symbol, symbol, "v5.0.64", 0, 1, 0, 0);
    }

    void ends() const { preloaded<void(void **)>("__cudaRegisterFatBinaryEnd")(handle); }
    void unload() const { preloaded<void(void **)>("__cudaUnregisterFatBinary")(handle); }
};

bool launches_well()
{
    static char *device = device_memory(4096);
    return device && stub_launch(device + 8, device, 8, nullptr) == 0 &&
           cudaDeviceSynchronize() == 0;
}

// What was registered since `before` was.
std::string since(const std::string &before)
{
    return std::string(stub_registered()).substr(before.size());
}

bool by_two_threads()
{
    LargeModule module;
    module.function(&stub_kernel, "kernel");
    module.ends();
    const std::string before = stub_registered();
    bool good[2] = {};
    std::thread other([&] { good[0] = launches_well(); });
    good[1] = launches_well();
    other.join();
    module.unload();
    return HOLDS(good[0] && good[1] && since(before) == "Mk(kernel)E");
}

// The first use of a module may be in a capture, which goes on.
bool in_capture()
{
    auto *begin = preloaded<int(void *, int)>("cudaStreamBeginCapture");
    auto *end = preloaded<int(void *, void **)>("cudaStreamEndCapture");
    for (const int mode : {0, 1, 2}) {
        LargeModule module;
        void *stream = nullptr, *graph = nullptr;
        char *device = device_memory(4096);
        REQUIRE(device && cudaStreamCreate(&stream) == 0);
        module.function(&stub_kernel, "captured");
        module.ends();
        const std::string before = stub_registered();
        REQUIRE(begin(stream, mode) == 0 && since(before).empty());
        REQUIRE(stub_launch(device + 8, device, 8, stream) == 0);
        REQUIRE(since(before) == "Mk(captured)E");
        REQUIRE(end(stream, &graph) == 0 && graph);
        module.unload();
    }
    return HOLDS(cudaGetLastError() == 0);
}

// A child registers what it needs for itself, and so does its parent.
bool by_child()
{
    LargeModule module;
    int status = 1;
    module.function(&stub_kernel, "kernel");
    module.ends();
    const std::string before = stub_registered();
    const pid_t child = fork();
    if (!child) {
        alarm(20 * patience_times());
        _exit(!(launches_well() && since(before) == "Mk(kernel)E"));
    }
    REQUIRE(waitpid(child, &status, 0) == child && !status && since(before).empty());
    REQUIRE(launches_well() && since(before) == "Mk(kernel)E");
    module.unload();
    return true;
}

// A constructor of a library that is being opened, in whose thread the loader has its lock, needs a
// module while another thread registers a compressed one: that must not wait for the loader then.
const LargeModule *needed_by_constructor;
std::atomic<pid_t> registering_thread;
std::atomic<bool> other_connected, constructor_runs, registered_it;

int attributes_of(const void *kernel)
{
    static auto *ask = preloaded<int(void *, const void *)>("cudaFuncGetAttributes");
    alignas(8) char attributes[4096];
    return ask(attributes, kernel);
}

void constructor()
{
    for (constructor_runs = true; !registering_thread;)
        usleep(100);
    while (!registered_it && thread_state(getpid(), registering_thread) != 'S')
        usleep(100);
    attributes_of(needed_by_constructor->kernel);
}

} // namespace

bool modules_deferred_beside_open()
{
    const char *library = std::getenv("IBX_TEST_ASKS_DRIVER");
    char opened[32];
    std::snprintf(opened, sizeof(opened), "%p", reinterpret_cast<void *>(&constructor));
    REQUIRE(library && launches_well() && setenv("IBX_TEST_OPENED", opened, 1) == 0);
    LargeModule before, needed, compressed(1024, least);
    for (const LargeModule *m : {&before, &needed, &compressed}) {
        m->function(m->kernel, "kernel");
        m->ends();
    }
    attributes_of(before.kernel); // what that looks up is known from then on
    needed_by_constructor = &needed;
    alarm(20 * patience_times());
    std::thread other([&] {
        cudaGetLastError(); // connects
        other_connected = true;
        while (!constructor_runs)
            usleep(100);
        registering_thread = gettid();
        attributes_of(compressed.kernel);
        registered_it = true;
    });
    while (!other_connected)
        usleep(100);
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    other.join();
    return HOLDS(handle);
}

// Its kernels print. While a thread registers it, another one uses it as soon as it is registered:
// what its kernel prints is not lost. Bytes of the module are looked at meanwhile, so it has some
// millions.
bool modules_deferred_print()
{
    REQUIRE(launches_well());
    LargeModule module(searched);
    std::memcpy(&module.fat[80 + searched - 16], "vprintf", 7);
    module.function(&stub_kernel, "kernel");
    module.ends();
    stub_hold_registered(true);
    std::thread first([] { launches_well(); });
    while (!stub_holds_registered())
        usleep(100);
    const std::uint64_t before = stub_functions();
    stub_hold_registered(false);
    while (stub_functions() == before) // reaches GVirtuS once the module is registered there
        module.function(module.kernel, "looks");
    char *device = device_memory(4096);
    const bool good = device && stub_launch(device + 8, device, 8, nullptr) == 0;
    const std::string wrote = written([] {
        stub_remote()->print("by a kernel\n"); // before a wait for what was launched
        return cudaDeviceSynchronize() == 0;
    });
    first.join();
    module.unload();
    return HOLDS(good && wrote == "by a kernel\n");
}

bool modules_deferred()
{
    REQUIRE(launches_well()); // the kernel is known then, and a module that has it as well comes
    const std::string before = stub_registered();
    const std::uint64_t unloads = stub_unloads();
    LargeModule asked, launched, unused, small(least - 8), compressed(1024, least);
    REQUIRE(asked.handle && launched.handle && unused.handle && compressed.handle);
    REQUIRE(since(before) == "M");
    small.ends();
    asked.function(asked.kernel, "asked");
    asked.function(asked.fat.data(), "beside");
    asked.ends();
    launched.function(&stub_kernel, "launched");
    launched.ends();
    unused.function(unused.kernel, "unused");
    unused.ends();
    REQUIRE(since(before) == "ME");
    attributes_of(asked.kernel); // this libcudart knows only one kernel
    cudaGetLastError();
    REQUIRE(since(before) == "MEMk(asked)k(beside)E");
    attributes_of(asked.fat.data());
    cudaGetLastError();
    REQUIRE(since(before) == "MEMk(asked)k(beside)E");
    small.unload(); // so that kernels are looked up again
    REQUIRE(launches_well() && launches_well());
    REQUIRE(since(before) == "MEMk(asked)k(beside)EMk(launched)E");
    // A variable needs a place.
    static char symbol[1];
    LargeModule with_variable;
    const std::string now = stub_registered();
    with_variable.function(with_variable.kernel, "first");
    REQUIRE(since(now).empty());
    with_variable.variable(symbol);
    REQUIRE(since(now) == "Mk(first)v(v5.0.64,1)");
    with_variable.function(with_variable.kernel + 1, "second");
    with_variable.ends();
    REQUIRE(since(now) == "Mk(first)v(v5.0.64,1)k(second)E");
    // Nothing is unregistered that was not registered.
    unused.unload();
    compressed.unload();
    REQUIRE(stub_unloads() == unloads + 1);
    asked.unload();
    launched.unload();
    with_variable.unload();
    REQUIRE(stub_unloads() == unloads + 4);
    return HOLDS(by_two_threads() && in_capture() && by_child() && cudaGetLastError() == 0);
}
