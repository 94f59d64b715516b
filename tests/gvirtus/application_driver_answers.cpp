// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's driver API: what its calls answer where documentation leaves it open, as NVIDIA's driver
// (580) was seen to.
#include "tests/gvirtus/application_driver.h"

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

int ask(void *answer, int attribute, Address address)
{
    return cu("cuPointerGetAttribute", answer, attribute, address);
}

} // namespace

// Truth values are ints; an allocation at the address of a freed one counts as another allocation.
bool driver_pointer_answers()
{
    void *context = nullptr;
    Address memory = 0, again = 0;
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, std::size_t{5000}) == 0);
    for (int attribute : {8, 10, 13, 15, 21}) {
        std::uint32_t answer[2] = {0xaaaaaaaa, 0xaaaaaaaa};
        REQUIRE(ask(answer, attribute, memory) == 0);
        REQUIRE(answer[0] <= 1 && answer[1] == 0xaaaaaaaa);
    }
    std::uint64_t id = 0, other = 0;
    REQUIRE(ask(&id, 7, memory) == 0 && ask(&other, 7, memory + 99) == 0 && id && id == other);
    REQUIRE(cu("cuMemFree_v2", memory) == 0);
    REQUIRE(cu("cuMemAlloc_v2", &again, std::size_t{5000}) == 0 && again == memory);
    REQUIRE(ask(&other, 7, again) == 0 && other != id);
    int type = 0;
    const int kinds[] = {2, 99};
    void *data[] = {&type, &type};
    REQUIRE(cu("cuPointerGetAttributes", 2u, static_cast<const int *>(kinds),
               static_cast<void **>(data), again) == 1);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

namespace
{

bool lies_in(Address address, Address begins, std::size_t length)
{
    Address begin = 0, start = 0;
    std::size_t n = 0, size = 0;
    REQUIRE(cu("cuMemGetAddressRange_v2", &begin, &n, address) == 0);
    REQUIRE(begin == begins && n == length);
    REQUIRE(ask(&start, 11, address) == 0 && ask(&size, 12, address) == 0);
    return HOLDS(start == begins && size == length);
}

} // namespace

// Each variable is a range and a buffer of its own, until its module is unloaded.
bool driver_ranges_of_variables()
{
    void *context = nullptr, *module = nullptr;
    Address one = 0, other = 0;
    std::size_t n = 0;
    std::uint64_t id = 0, others = 0;
    int for_ipc = -1;
    const std::vector<char> image = library_cubin();
    const auto load = [&] {
        return cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0 &&
               cu("cuModuleGetGlobal_v2", &one, &n, module, "v1.16.8") == 0;
    };
    REQUIRE(driver_has_context(&context) && load());
    REQUIRE(cu("cuModuleGetGlobal_v2", &other, &n, module, "v2.4096.100") == 0);
    REQUIRE(lies_in(one, one, 8) && lies_in(one + 7, one, 8) && lies_in(other + 3, other, n));
    REQUIRE(ask(&id, 7, one + 3) == 0 && ask(&others, 7, other) == 0 && id && id != others);
    REQUIRE(ask(&others, 7, one) == 0 && others == id);
    REQUIRE(ask(&for_ipc, 10, one) == 0 && for_ipc == 0);
    for (const Address outside : {one - 1, one + 8})
        REQUIRE(cu("cuMemGetAddressRange_v2", &other, &n, outside) == 500);
    REQUIRE(cu("cuModuleUnload", module) == 0);
    REQUIRE(cu("cuMemGetAddressRange_v2", &other, &n, one) == 500);
    // The same variable of another module is another buffer.
    REQUIRE(load() && ask(&others, 7, one) == 0 && others != id);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

namespace
{

// What the thread that forks has called is none of its child's calls, in which the driver has not
// begun; and there a call of the runtime counts for all threads.
bool begins_again_in_children()
{
    int count = 0, status = -1;
    for (bool uses : {false, true}) {
        REQUIRE(cudaDeviceSynchronize() == 0); // no call of the driver has seen it when it forks
        const pid_t child = fork();
        if (!child && uses) {
            int rc = cudaDeviceSynchronize();
            std::thread([&] { rc = rc ? rc : cu("cuDeviceGetCount", &count); }).join();
            _exit(rc);
        }
        if (!child)
            _exit(cu("cuDeviceGetCount", &count) == 3 ? 0 : 1);
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    }
    return true;
}

} // namespace

// The runtime begins the driver for all threads, and makes a context current in its own.
bool driver_begins_in_another_thread()
{
    void *context = &context;
    int count = 0, rc = -1, status = -1;
    REQUIRE(cu("cuDeviceGetCount", &count) == 3);
    std::thread([&] { rc = cudaDeviceSynchronize(); }).join();
    REQUIRE(rc == 0 && cu("cuDeviceGetCount", &count) == 0 && count > 0);
    REQUIRE(cu("cuCtxGetCurrent", &context) == 0 && !context);
    const pid_t child = fork();
    if (!child)
        _exit(cu("cuDeviceGetCount", &count) == 3 ? 0 : 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    return HOLDS(begins_again_in_children());
}

// The context that the runtime has made current stays so when another library begins to use the
// driver, as NVRTC does.
bool driver_begins_after_runtime()
{
    void *memory = nullptr, *context = nullptr, *module = nullptr;
    int version = 0, status = -1;
    const std::vector<char> image = library_cubin();
    REQUIRE(cudaMalloc(&memory, 100) == 0);
    REQUIRE(cu("cuDriverGetVersion", &version) == 0 && version);
    REQUIRE(cu("cuCtxGetCurrent", &context) == 0 && context);
    const pid_t child = fork(); // there the driver begins once more
    if (!child)
        _exit(cudaMalloc(&memory, 100) == 0 && cu("cuInit", 0u) == 0 &&
                      cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0
                  ? 0
                  : 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    return HOLDS(cudaFree(memory) == 0 && cudaGetLastError() == 0);
}

namespace
{

// What the driver finds current after a call of the runtime in a thread that makes no other.
bool leaves(bool one, const std::function<int()> &call)
{
    bool good = false;
    std::thread([&] {
        void *context = &good;
        const int rc = call();
        good = rc == 0 && cu("cuCtxGetCurrent", &context) == 0 && (context != nullptr) == one;
    }).join();
    return HOLDS(good);
}

} // namespace

// Calls of the runtime that ask about devices or errors begin the driver, but natively (H200) make
// no context current.
bool driver_after_questions()
{
    void *memory = nullptr;
    int n = 0;
    REQUIRE(leaves(false, [&] { return cudaGetDeviceCount(&n); }));
    REQUIRE(leaves(false, [&] { return cudaGetDevice(&n); }));
    REQUIRE(leaves(false, [] { return cudaGetLastError(); }));
    REQUIRE(leaves(false, [&] {
        return preloaded<int(int *, int, int)>("cudaDeviceGetAttribute")(&n, 10, 0);
    }));
    std::vector<char> properties(4096);
    REQUIRE(leaves(false, [&] {
        return preloaded<int(void *, int)>("cudaGetDeviceProperties_v2")(properties.data(), 0);
    }));
    REQUIRE(leaves(true, [] { return cudaSetDevice(0); }));
    REQUIRE(leaves(true, [&] { return cudaGetDeviceCount(&n) || cudaMalloc(&memory, 100); }));
    REQUIRE(leaves(true, [&] { return cudaFree(memory) || cudaGetDeviceCount(&n); }));
    return true;
}

// Null arguments that are no error; names that do not exist; what belongs to the parent alone.
bool driver_odd_answers()
{
    void *context = nullptr, *host = &context, *found = &context;
    const std::size_t none = 0;
    REQUIRE(driver_has_context(&context));
    REQUIRE(cu("cuMemHostAlloc", &host, none, 0u) == 0 && !host);
    host = &context;
    REQUIRE(cu("cuMemAllocHost_v2", &host, none) == 0 && !host);
    REQUIRE(cu("cuMemFreeHost", static_cast<void *>(nullptr)) == 0);
    const std::size_t much = std::size_t{1} << 50;
    Address memory = 5;
    REQUIRE(cu("cuMemAlloc_v2", &memory, much) == 2 && !memory);
    memory = 5;
    REQUIRE(cu("cuMemAlloc_v2", &memory, none) == 1 && !memory);
    memory = 5;
    REQUIRE(cu("cuMemAllocManaged", &memory, much, 1u) == 2 && !memory);
    memory = 5;
    REQUIRE(cu("cuMemAllocAsync", &memory, much, static_cast<void *>(nullptr)) == 2 && !memory);
    int status = -1;
    const auto get = [&](const char *name, int version, unsigned long long flags, int *told) {
        return cu("cuGetProcAddress_v2", name, &found, version, flags, told);
    };
    REQUIRE(get("cuNoSuch", 12000, 0, nullptr) == 0 && !found);
    REQUIRE(cu("cuGetProcAddress", "cuNoSuch", &found, 12000, 0ull) == 0 && !found);
    REQUIRE(get("cuLaunchKernel", 12000, 3, &status) == 0 && status == 0 && found);
    REQUIRE(get("cuLaunchKernel", 12000, 4, &status) == 1);
    REQUIRE(get("cuLaunchKernel", 99999, 0, &status) == 1);
    REQUIRE(cu("cuDevicePrimaryCtxRetain", &host, 0) == 0);
    const pid_t child = fork();
    if (!child)
        _exit(cu("cuInit", 0u) == 0 && cu("cuDevicePrimaryCtxRelease_v2", 0) == 201 ? 0 : 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(cu("cuDevicePrimaryCtxRelease_v2", 0) == 0);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// Launches with a list that has nothing in it, beside arguments, too.
bool driver_launch_answers()
{
    void *context = nullptr, *module = nullptr, *function = nullptr;
    Address memory = 0;
    std::size_t n = 1000;
    const std::vector<char> image = library_cubin(), bytes = random_bytes(n, 6);
    std::vector<char> back(n);
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 2 * n) == 0);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    REQUIRE(cu("cuModuleGetFunction", &function, module,
               static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    REQUIRE(cu("cuModuleGetGlobal_v2", static_cast<Address *>(nullptr),
               static_cast<std::size_t *>(nullptr), module, "v1.16.8") == 1);
    // Questions about no function, and for no functions.
    void *is = nullptr;
    const void *const none = nullptr;
    const char *name = nullptr;
    std::size_t at = 0, length = 0;
    int state = 0;
    REQUIRE(cu("cuFuncGetName", &name, none) == 1 && cu("cuFuncGetModule", &is, none) == 1);
    REQUIRE(cu("cuFuncLoad", none) == 400 && cu("cuFuncIsLoaded", &state, none) == 400);
    REQUIRE(cu("cuFuncGetParamInfo", none, std::size_t{0}, &at, &length) == 1);
    REQUIRE(cu("cuKernelGetName", &name, none) == 1 && cu("cuKernelGetLibrary", &is, none) == 400);
    REQUIRE(cu("cuKernelGetFunction", &is, static_cast<void *>(nullptr)) == 400);
    REQUIRE(cu("cuKernelGetParamInfo", none, std::size_t{0}, &at, &length) == 1);
    REQUIRE(cu("cuModuleEnumerateFunctions", &is, 0u, module) == 0 && !is);
    REQUIRE(cu("cuModuleEnumerateFunctions", static_cast<void **>(nullptr), 0u, module) == 1);
    REQUIRE(cu("cuModuleEnumerateFunctions", &is, 0u, static_cast<void *>(nullptr)) == 400);
    REQUIRE(cu("cuCtxDestroy_v2", static_cast<void *>(nullptr)) == 1);
    Address to = memory + n, from = memory;
    void *arguments[] = {&to, &from, &n}, *end[] = {nullptr};
    const auto launch = [&](void **given, void **extra) {
        return cu("cuLaunchKernel", static_cast<const void *>(function), 1u, 1u, 1u, 1u, 1u, 1u, 0u,
                  static_cast<void *>(nullptr), given, extra);
    };
    REQUIRE(cu("cuMemcpyHtoD_v2", memory, static_cast<const void *>(bytes.data()), n) == 0);
    REQUIRE(launch(arguments, end) == 0);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), memory + n, n) == 0);
    REQUIRE(back == bytes);
    void *no_size[] = {reinterpret_cast<void *>(1), &to, nullptr};
    REQUIRE(launch(nullptr, no_size) == 1); // its arguments are missing
    REQUIRE(launch(arguments, no_size) == 1);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// CUdevResource
struct DriverPart {
    int type = 0;
    unsigned char own[92] = {};
    unsigned count = 0, least = 0, multiple = 0, reserved[9] = {};
};

// A device of `all` multiprocessors is divided into pieces of `each`, or more where the device has
// no such pieces.
static bool is_divided(int device, unsigned all, unsigned each, unsigned flags)
{
    DriverPart whole, parts[3], rest;
    unsigned n = 3, possible = 0;
    REQUIRE(cu("cuDeviceGetDevResource", device, &whole, 1) == 0);
    REQUIRE(whole.type == 1 && whole.count == all);
    REQUIRE(whole.least == (device ? 8 : 4) && whole.multiple == (device ? 8 : 2));
    auto *const none = static_cast<DriverPart *>(nullptr);
    REQUIRE(cu("cuDevSmResourceSplitByCount", none, &possible, &whole, none, flags, each) == 0);
    REQUIRE(cu("cuDevSmResourceSplitByCount", &parts[0], &n, &whole, &rest, flags, each) == 0);
    REQUIRE(n && n <= 3 && n <= possible && possible == all / parts[0].count);
    REQUIRE(parts[0].count >= each && parts[0].count % parts[0].multiple == 0);
    for (unsigned i = 0; i < n; i++)
        REQUIRE(parts[i].type == 1 && parts[i].count == parts[0].count);
    REQUIRE(rest.count == all - n * parts[0].count && (rest.type == 1) == (rest.count > 0));
    n = 1;
    REQUIRE(cu("cuDevSmResourceSplitByCount", &parts[0], &n, &whole, none, flags, all + 1) == 1);
    REQUIRE(cu("cuDevSmResourceSplitByCount", &parts[0], &n, &whole, none, 8u, each) == 1);
    const DriverPart nothing;
    return HOLDS(cu("cuDevSmResourceSplitByCount", &parts[0], &n, &nothing, none, 0u, each) == 914);
}

// The context that is current, and that of a stream.
static bool is_of_green(void *stream, void *green)
{
    void *context = nullptr, *its = nullptr, *same = nullptr;
    REQUIRE(cu("cuStreamGetGreenCtx", stream, &same) == 0 && same == green);
    REQUIRE(cu("cuStreamGetCtx_v2", stream, &context, &its) == 0 && its == green);
    void *primary = nullptr;
    REQUIRE(cu("cuDevicePrimaryCtxRetain", &primary, 0) == 0);
    return HOLDS(context == primary && cu("cuDevicePrimaryCtxRelease_v2", 0) == 0);
}

// What is made in a green context stays when it ends.
static bool stays(void *green, Address *memory, void **stream)
{
    void *context = nullptr, *popped = nullptr;
    REQUIRE(cu("cuCtxFromGreenCtx", &context, green) == 0);
    REQUIRE(cu("cuCtxPushCurrent_v2", context) == 0 &&
            cu("cuMemAlloc_v2", memory, std::size_t{64}) == 0);
    REQUIRE(cu("cuStreamCreate", stream, 1u) == 0 && is_of_green(*stream, green));
    REQUIRE(is_of_green(nullptr, green) && cu("cuCtxPopCurrent_v2", &popped) == 0);
    REQUIRE(popped == context && cu("cuGreenCtxDestroy", green) == 0);
    REQUIRE(cu("cuGreenCtxDestroy", green) == 201 && cu("cuCtxPushCurrent_v2", context) == 201);
    REQUIRE(is_of_green(*stream, nullptr) && cu("cuStreamGetCtx", *stream, &popped) == 0);
    REQUIRE(cu("cuCtxPushCurrent_v2", popped) == 0 && cu("cuCtxPopCurrent_v2", &context) == 0);
    return HOLDS(cu("cuMemsetD8Async", *memory, static_cast<unsigned char>(3), std::size_t{64},
                    *stream) == 0 &&
                 cu("cuStreamSynchronize", *stream) == 0);
}

// A green context retains the primary one, whose memory is freed when both are gone.
static bool retains()
{
    void *primary = nullptr, *popped = nullptr, *description = nullptr, *green = nullptr;
    Address memory = 0;
    DriverPart part;
    int type = 0;
    REQUIRE(cu("cuDevicePrimaryCtxRetain", &primary, 0) == 0);
    REQUIRE(cu("cuCtxPushCurrent_v2", primary) == 0);
    REQUIRE(cu("cuMemAlloc_v2", &memory, std::size_t{64}) == 0);
    REQUIRE(cu("cuDeviceGetDevResource", 0, &part, 1) == 0);
    REQUIRE(cu("cuDevResourceGenerateDesc", &description, &part, 1u) == 0);
    REQUIRE(cu("cuGreenCtxCreate", &green, description, 0, 1u) == 0);
    REQUIRE(cu("cuDevicePrimaryCtxRelease_v2", 0) == 0 && ask(&type, 2, memory) == 0);
    REQUIRE(cu("cuGreenCtxDestroy", green) == 0 && ask(&type, 2, memory) == 1);
    REQUIRE(cu("cuDevicePrimaryCtxRelease_v2", 0) == 201);
    return HOLDS(cu("cuCtxPopCurrent_v2", &popped) == 0);
}

// The same by the runtime's calls; its execution contexts are also those of whole devices.
static bool runtime_has_them(unsigned all)
{
    void *description = nullptr, *green = nullptr, *whole = nullptr, *stream = nullptr;
    DriverPart part, is;
    unsigned n = 1;
    int device = 9;
    auto *const none = static_cast<DriverPart *>(nullptr);
    REQUIRE(cu("cudaDeviceGetDevResource", 1, &part, 1) == 0 && part.count == all);
    REQUIRE(cu("cudaDevSmResourceSplitByCount", &is, &n, &part, none, 0u, 16u) == 0);
    REQUIRE(n == 1 && is.count == 16);
    REQUIRE(cu("cudaDevResourceGenerateDesc", &description, &is, 1u) == 0);
    REQUIRE(cu("cudaGreenCtxCreate", &green, description, 0, 0u) == 1 && cudaGetLastError() == 1);
    REQUIRE(cu("cudaGreenCtxCreate", &green, description, 1, 0u) == 0);
    REQUIRE(cu("cudaExecutionCtxGetDevResource", green, &is, 1) == 0 && is.count == 16);
    REQUIRE(cu("cudaExecutionCtxGetDevice", &device, green) == 0 && device == 1);
    REQUIRE(cu("cudaExecutionCtxStreamCreate", &stream, green, 1u, 0) == 0);
    REQUIRE(cu("cudaStreamGetDevResource", stream, &is, 1) == 0 && is.count == 16);
    REQUIRE(cu("cudaExecutionCtxSynchronize", green) == 0 && cudaStreamDestroy(stream) == 0);
    unsigned long long id = 0, other = 0;
    REQUIRE(cu("cudaExecutionCtxGetId", green, &id) == 0);
    REQUIRE(cu("cudaDeviceGetExecutionCtx", &whole, 1) == 0 && whole && whole != green);
    REQUIRE(cu("cudaExecutionCtxGetId", whole, &other) == 0 && id != other);
    REQUIRE(cu("cudaExecutionCtxGetDevResource", whole, &is, 1) == 0 && is.count == all);
    REQUIRE(cu("cudaExecutionCtxStreamCreate", &stream, whole, 0u, 0) == 0);
    REQUIRE(cu("cudaStreamGetDevResource", stream, &is, 1) == 0 && is.count == all);
    REQUIRE(cudaStreamDestroy(stream) == 0);
    // Its device is not the current one, and only that one's reset is its end.
    REQUIRE(cu("cudaExecutionCtxStreamCreate", &stream, green, 1u, 0) == 0);
    REQUIRE(cu("cuDevicePrimaryCtxReset_v2", 0) == 0);
    REQUIRE(cu("cudaStreamGetDevResource", stream, &is, 1) == 0 && is.count == 16);
    REQUIRE(cudaStreamDestroy(stream) == 0 && cu("cudaExecutionCtxDestroy", green) == 0);
    REQUIRE(cu("cudaExecutionCtxDestroy", green) == 1 && cudaGetLastError() == 1);
    return HOLDS(cudaGetDevice(&device) == 0 && device == 0);
}

// Contexts of a part of a device are the device's, with streams of their own.
bool driver_green_contexts()
{
    void *context = nullptr, *description = nullptr, *green = nullptr, *stream = nullptr;
    int count = 0;
    Address memory = 0;
    REQUIRE(driver_has_context(&context) && cu("cuDeviceGetAttribute", &count, 16, 0) == 0);
    REQUIRE(retains());
    const auto all = static_cast<unsigned>(count);
    for (const int device : {0, 1})
        for (const unsigned each : {0u, 1u, 16u, 17u, all / 2 - 2, all / 2})
            REQUIRE(is_divided(device, all, each, 0) && is_divided(device, all, each, 1));
    DriverPart part, is;
    REQUIRE(cu("cuDeviceGetDevResource", 0, &part, 2) == 914);
    REQUIRE(cu("cuDeviceGetDevResource", 0, &part, 1) == 0);
    REQUIRE(cu("cuDevResourceGenerateDesc", &description, &part, 1u) == 0);
    REQUIRE(cu("cuGreenCtxCreate", &green, description, 0, 0u) == 1);
    REQUIRE(cu("cuGreenCtxCreate", &green, static_cast<void *>(&part), 0, 1u) == 1);
    REQUIRE(cu("cuGreenCtxCreate", &green, description, 0, 1u) == 0 && green);
    REQUIRE(cu("cuGreenCtxGetDevResource", green, &is, 1) == 0 && is.count == part.count);
    REQUIRE(cu("cuCtxGetDevResource", context, &is, 1) == 0 && is.count == all);
    REQUIRE(cu("cuGreenCtxGetDevResource", context, &is, 1) == 201);
    unsigned long long id = 0, its = 0;
    REQUIRE(cu("cuGreenCtxGetId", green, &id) == 0 && cu("cuCtxGetId", green, &its) == 0);
    REQUIRE(id == its && cu("cuGreenCtxStreamCreate", &stream, green, 0u, 0) == 1);
    REQUIRE(cu("cuGreenCtxStreamCreate", &stream, green, 1u, 0) == 0);
    REQUIRE(is_of_green(stream, green));
    void *same = stream;
    REQUIRE(cu("cuStreamGetGreenCtx", static_cast<void *>(nullptr), &same) == 0 && !same);
    REQUIRE(cu("cuStreamDestroy_v2", stream) == 0 && stays(green, &memory, &stream));
    REQUIRE(cu("cuStreamDestroy_v2", stream) == 0 && cu("cuMemFree_v2", memory) == 0);
    REQUIRE(runtime_has_them(all));
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// Launches before CUDA 4: what is set stays with the kernel.
bool driver_launches_what_is_set()
{
    void *context = nullptr, *module = nullptr, *function = nullptr, *stream = nullptr;
    void *const none = nullptr;
    Address memory = 0;
    constexpr std::size_t n = 1000;
    const std::vector<char> image = library_cubin();
    std::vector<char> bytes = random_bytes(n, 31), back(n);
    REQUIRE(cu("cuInit", 0u) == 0 && cu("cuParamSetSize", none, 8u) == 201);
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 2 * n) == 0);
    REQUIRE(cu("cuStreamCreate", &stream, 1u) == 0);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    REQUIRE(cu("cuModuleGetFunction", &function, module,
               static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    const auto set = [&](int at, Address value) {
        return cu("cuParamSetv", function, at, static_cast<void *>(&value), 8u);
    };
    const auto in_grid = [&](int width, int height) {
        return cu("cuLaunchGrid", function, width, height);
    };
    REQUIRE(cu("cuLaunch", function) == 1); // there are no arguments
    REQUIRE(cu("cuFuncSetSharedSize", function, 64u) == 0);
    REQUIRE(set(0, memory + n) == 0 && set(8, memory) == 0);
    REQUIRE(cu("cuParamSeti", function, 16, unsigned(n)) == 0);
    REQUIRE(cu("cuParamSetf", function, 20, 0.0f) == 0);
    REQUIRE(cu("cuLaunch", function) == 1); // 0 bytes of arguments
    REQUIRE(cu("cuParamSetSize", function, 24u) == 0);
    REQUIRE(cu("cuLaunch", function) == 1); // more shared memory than the double has
    REQUIRE(cu("cuFuncSetSharedSize", function, 0u) == 0);
    for (int i = 0; i < 3; i++) { // at first in blocks of one thread, as long as no shape is set
        if (i)
            REQUIRE(cu("cuFuncSetBlockShape", function, i, 1, 1) == 0);
        bytes[0]++;
        REQUIRE(cu("cuMemcpyHtoD_v2", memory, static_cast<const void *>(bytes.data()), n) == 0);
        REQUIRE((i == 0   ? cu("cuLaunch", function)
                 : i == 1 ? in_grid(1, 1)
                          : cu("cuLaunchGridAsync", function, 1, 1, stream)) == 0);
        REQUIRE(cu("cuCtxSynchronize") == 0);
        REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), memory + n, n) == 0);
        REQUIRE(back == bytes);
    }
    REQUIRE(cu("cuLaunch", none) == 400 && in_grid(0, 1) == 1 && in_grid(1, -1) == 1);
    REQUIRE(cu("cuFuncSetBlockShape", function, 0, 1, 1) == 1);
    REQUIRE(cu("cuFuncSetBlockShape", none, 1, 1, 1) == 400);
    REQUIRE(cu("cuParamSetSize", function, 4097u) == 1);
    REQUIRE(cu("cuParamSeti", function, 4093, 1u) == 1 && cu("cuParamSeti", function, -1, 1u) == 1);
    REQUIRE(cu("cuParamSetv", function, 0, none, 1u) == 1);
    // It ends with the module, whose addresses another one may get.
    std::set<void *> before;
    while (before.size() < 500 && before.insert(function).second) {
        REQUIRE(cu("cuFuncSetSharedSize", function, 64u) == 0);
        REQUIRE(cu("cuModuleUnload", module) == 0);
        REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
        REQUIRE(cu("cuModuleGetFunction", &function, module,
                   static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    }
    REQUIRE(set(0, memory + n) == 0 && set(8, memory) == 0 && set(16, n) == 0);
    REQUIRE(cu("cuParamSetSize", function, 24u) == 0 && cu("cuLaunch", function) == 0);
    // ... but not with another module.
    void *other = nullptr;
    REQUIRE(cu("cuModuleLoadData", &other, static_cast<const void *>(image.data())) == 0);
    REQUIRE(cu("cuModuleUnload", other) == 0 && cu("cuLaunch", function) == 0);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// Elements that no byte alone makes: one call of the back end's, in one row or several.
// The wait for a context's work spoils no capture of another thread in another context.
static bool context_ends_beside_a_capture()
{
    void *stream = nullptr, *graph = nullptr;
    int rc = -1;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaStreamBeginCapture(stream, 1) == 0);
    std::thread([&] {
        void *context = nullptr;
        rc = cu("cuCtxCreate_v2", &context, 0u, 0);
        rc = rc ? rc : cu("cuCtxDestroy_v2", context);
    }).join();
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0 && graph);
    return HOLDS(rc == 0 && cudaStreamDestroy(stream) == 0);
}

bool driver_sets_elements()
{
    void *context = nullptr, *stream = nullptr;
    Address memory = 0;
    constexpr std::size_t n = 100000;
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, n) == 0);
    REQUIRE(cu("cuStreamCreate", &stream, 1u) == 0);
    std::vector<char> expected = random_bytes(n, 12), back(n);
    REQUIRE(cu("cuMemcpyHtoD_v2", memory, static_cast<const void *>(expected.data()), n) == 0);
    const unsigned long copies = stub_remote()->stats().copies_async;
    REQUIRE(cu("cuMemsetD32Async", memory + 4, 0x01020304u, std::size_t{20000}, stream) == 0);
    REQUIRE(cu("cuStreamSynchronize", stream) == 0);
    REQUIRE(stub_remote()->stats().copies_async == copies + 1); // by which the double sets
    REQUIRE(cu("cuMemsetD2D16Async", memory + 90000, std::size_t{100}, std::uint16_t{0x1234},
               std::size_t{20}, std::size_t{7}, stream) == 0);
    REQUIRE(cu("cuStreamSynchronize", stream) == 0);
    for (std::size_t i = 4; i < 80004; i += 4)
        std::memcpy(&expected[i], "\4\3\2\1", 4);
    for (std::size_t y = 0; y < 7; y++)
        for (std::size_t i = 0; i < 40; i += 2)
            std::memcpy(&expected[90000 + y * 100 + i], "\x34\x12", 2);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), memory, n) == 0);
    REQUIRE(back == expected);
    REQUIRE(cu("cuMemsetD32Async", memory, 1u, n / 4 + 1, stream) == 1);
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
    return HOLDS(context_ends_beside_a_capture());
}
