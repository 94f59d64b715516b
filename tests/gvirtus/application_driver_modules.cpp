// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Modules that have only variables, calls of threads without a context, arguments of kernels in one
// buffer, messages of the compiler.
#include "tests/gvirtus/application_driver.h"
#include "tests/gvirtus/cubin.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <unistd.h>

namespace
{

const std::string text = "what it begins with";
enum class Addresses { none, some }; // that the driver would write into it

// A cubin with variables alone: "zeros" of 300 bytes, "begun" of those of `text`.
std::vector<char> variables_cubin(Addresses addresses)
{
    Cubin cubin;
    const Elf64_Section zeros = cubin.section(".nv.global", SHT_NOBITS, std::string(512, '\0')),
                        begun = cubin.section(".nv.global.init", SHT_PROGBITS,
                                              std::string(10, 'x') + text);
    cubin.section(".rela", SHT_RELA, std::string(addresses == Addresses::some ? 24 : 0, '\0'),
                  begun);
    cubin.symbol("zeros", STT_OBJECT, zeros, 300);
    cubin.symbol("begun", STT_OBJECT, begun, text.size(), 10);
    return cubin.image();
}

bool bytes_at(Address address, const std::string &bytes)
{
    std::string back(bytes.size(), '?');
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), address, back.size()) == 0);
    return HOLDS(back == bytes);
}

bool can_free(Address address)
{
    return cu("cuMemFree_v2", address) == 0;
}

void *const legacy = nullptr;

} // namespace

// Each module has its own variables, other ones on each device; they go with their module.
bool driver_lone_variables()
{
    void *context = nullptr, *other = nullptr, *module = nullptr, *again = nullptr;
    Address zeros = 0, begun = 0, there = 0;
    std::size_t n = 0;
    const std::vector<char> image = variables_cubin(Addresses::none),
                            with_addresses = variables_cubin(Addresses::some);
    const auto global = [](Address *at, std::size_t *size, void *of, const char *name) {
        return cu("cuModuleGetGlobal_v2", at, size, of, name);
    };
    REQUIRE(driver_has_context(&context));
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    REQUIRE(global(&zeros, &n, module, "zeros") == 0 && zeros && n == 300);
    REQUIRE(bytes_at(zeros, std::string(300, '\0')));
    REQUIRE(global(&begun, &n, module, "begun") == 0 && n == text.size());
    REQUIRE(bytes_at(begun, text) && global(&there, &n, module, "other") == 500);
    // What the program writes to a variable stays, and other modules do not see it.
    REQUIRE(cu("cuMemcpyHtoD_v2", begun, static_cast<const void *>("its"), std::size_t{3}) == 0);
    REQUIRE(global(&there, nullptr, module, "begun") == 0 && there == begun);
    REQUIRE(bytes_at(begun, "its" + text.substr(3)));
    REQUIRE(cu("cuModuleLoadData", &again, static_cast<const void *>(image.data())) == 0);
    REQUIRE(global(&there, &n, again, "begun") == 0 && there != begun && bytes_at(there, text));
    REQUIRE(cu("cuCtxCreate_v2", &other, 0u, 1) == 0);
    Address on_other = 0;
    REQUIRE(global(&on_other, &n, module, "begun") == 0 && on_other != begun);
    REQUIRE(bytes_at(on_other, text) && cu("cuCtxDestroy_v2", other) == 0);
    // It goes when its device is reset. What the program has there then is no variable.
    void *memory = nullptr;
    REQUIRE(cudaSetDevice(1) == 0 && cudaDeviceReset() == 0 && cudaMalloc(&memory, n) == 0);
    REQUIRE(reinterpret_cast<Address>(memory) == on_other);
    REQUIRE(cu("cuCtxCreate_v2", &other, 0u, 1) == 0);
    REQUIRE(global(&on_other, &n, module, "begun") == 0);
    REQUIRE(on_other != reinterpret_cast<Address>(memory) && bytes_at(on_other, text));
    REQUIRE(cudaFree(memory) == 0 && cu("cuCtxDestroy_v2", other) == 0 && cudaSetDevice(0) == 0);
    REQUIRE(cu("cuModuleUnload", again) == 0 && !can_free(there));
    REQUIRE(cu("cuModuleLoadData", &again, static_cast<const void *>(with_addresses.data())) == 0);
    REQUIRE(global(&there, &n, again, "zeros") == 0 && global(&there, &n, again, "begun") == 500);
    REQUIRE(cu("cuCtxDestroy_v2", context) == 0);
    REQUIRE(driver_has_context(&context) && !can_free(zeros) && !can_free(begun));
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// A pool of the device's memory, which is no context's.
static bool uses_pool()
{
    struct {
        int allocations = 1, handles = 0, location = 1, device = 0;
        void *security = nullptr;
        std::size_t most = 0;
        unsigned char reserved[56] = {0};
    } properties;
    void *pool = nullptr;
    std::uint64_t keep = 1 << 20, kept = 0;
    REQUIRE(cu("cuMemPoolCreate", &pool, static_cast<const void *>(&properties)) == 0 && pool);
    REQUIRE(cu("cuMemPoolSetAttribute", pool, 4, static_cast<void *>(&keep)) == 0);
    REQUIRE(cu("cuMemPoolGetAttribute", pool, 4, static_cast<void *>(&kept)) == 0 && kept == keep);
    return HOLDS(cu("cuMemPoolDestroy", pool) == 0);
}

// A call that names a stream or an event runs in that one's context; any other call needs a current
// context, unless it names a module, a function, a graph, a pool, an array, or memory that is to be
// freed.
bool driver_without_context()
{
    void *context = nullptr, *stream = nullptr, *event = nullptr, *module = nullptr;
    void *function = nullptr, *own = nullptr, *pinned = nullptr, *array = nullptr;
    struct Planar {
        std::size_t width, height;
        int format; // 32: float
        unsigned channels;
    };
    const Planar floats{8, 4, 32, 1};
    Address memory = 0, other = 0;
    constexpr std::size_t n = 1000;
    const std::vector<char> image = library_cubin(), bytes = random_bytes(n, 8);
    std::vector<char> back(n);
    std::atomic<int> called{0};
    bool good = false;
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 2 * n) == 0);
    REQUIRE(cu("cuArrayCreate_v2", &array, static_cast<const void *>(&floats)) == 0);
    REQUIRE(cu("cuMemAlloc_v2", &other, n) == 0 && cu("cuMemAllocHost_v2", &pinned, n) == 0);
    REQUIRE(cu("cuStreamCreate", &stream, 1u) == 0 && cu("cuEventCreate", &event, 0u) == 0);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    const auto call = [](void *argument) { ++*static_cast<std::atomic<int> *>(argument); };
    const auto works = [&] {
        void *current = &own, *of = nullptr, **none = nullptr;
        Address to = memory + n, from = memory, pooled = 0;
        std::size_t length = n;
        int type = 0;
        void *arguments[] = {&to, &from, &length};
        const auto launch = [&](void *in) {
            return cu("cuLaunchKernel", static_cast<const void *>(function), 1u, 1u, 1u, 1u, 1u, 1u,
                      0u, in, static_cast<void **>(arguments), none);
        };
        const auto copy = [&](void *in) {
            return cu("cuMemcpyHtoDAsync_v2", memory, static_cast<const void *>(bytes.data()), n,
                      in);
        };
        REQUIRE(cu("cuCtxGetCurrent", &current) == 0 && !current);
        REQUIRE(cu("cuModuleGetFunction", &function, module,
                   static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
        REQUIRE(copy(legacy) == 201 && copy(stream) == 0 && launch(legacy) == 201 &&
                launch(stream) == 0);
        // Likewise what a program calls that is compiled for a default stream of each thread.
        const auto copy_by_thread = [&](void *in) {
            return cu("cuMemcpyDtoHAsync_v2_ptsz", static_cast<void *>(back.data()), to, n, in);
        };
        REQUIRE(copy_by_thread(stream) == 0 && copy_by_thread(legacy) == 201);
        REQUIRE(cu("cuLaunchHostFunc", stream, +call, static_cast<void *>(&called)) == 0);
        REQUIRE(cu("cuLaunchHostFunc", legacy, +call, static_cast<void *>(&called)) == 201);
        REQUIRE(cu("cuEventRecord", event, stream) == 0 &&
                cu("cuEventRecord", event, legacy) == 201);
        REQUIRE(cu("cuStreamWaitEvent", stream, event, 0u) == 0);
        REQUIRE(cu("cuEventSynchronize", event) == 0 && cu("cuEventQuery", event) == 0);
        REQUIRE(cu("cuStreamSynchronize", stream) == 0 && cu("cuStreamQuery", stream) == 0);
        REQUIRE(cu("cuStreamSynchronize", legacy) == 201 && called == 1 && back == bytes);
        REQUIRE(cu("cuMemAllocAsync", &pooled, n, stream) == 0);
        REQUIRE(cu("cuMemFreeAsync", pooled, stream) == 0);
        REQUIRE(cu("cuPointerGetAttribute", static_cast<void *>(&type), 2, memory) == 0);
        REQUIRE(type == 2 && cu("cuStreamGetCtx", static_cast<const void *>(stream), &of) == 0);
        REQUIRE(of == context && cu("cuMemAlloc_v2", &pooled, n) == 201);
        // What names the memory, the module or the pool, as C++ wrappers of the driver call it.
        unsigned count = 0;
        void *found = nullptr, *graph = nullptr, *node = nullptr;
        int registers = -1;
        std::size_t offset = 1;
        Planar found_floats{};
        REQUIRE(cu("cuModuleGetFunctionCount", &count, module) == 0 && count);
        REQUIRE(cu("cuModuleEnumerateFunctions", &found, 1u, module) == 0 && found);
        REQUIRE(cu("cuModuleGetGlobal_v2", &to, &length, module,
                   static_cast<const char *>("none")) == 500);
        REQUIRE(cu("cuFuncGetModule", &found, static_cast<const void *>(function)) == 0);
        REQUIRE(found == module &&
                cu("cuFuncGetAttribute", &registers, 4, static_cast<const void *>(function)) == 0);
        // The runtime here lacks these two: 801, but not 201.
        REQUIRE(cu("cuFuncSetCacheConfig", static_cast<const void *>(function), 0) == 801);
        REQUIRE(cu("cuFuncSetAttribute", static_cast<const void *>(function), 9, 0) == 801);
        REQUIRE(cu("cuFuncGetParamInfo", static_cast<const void *>(function), std::size_t{0},
                   &offset, &length) == 0);
        REQUIRE(cu("cuArrayGetDescriptor_v2", &found_floats, array) == 0 &&
                found_floats.width == 8 && found_floats.height == 4);
        REQUIRE(cu("cuGraphCreate", &graph, 0u) == 0);
        REQUIRE(cu("cuGraphAddEmptyNode", &node, graph, static_cast<const void **>(nullptr),
                   std::size_t{0}) == 0);
        const DriverSet set = {memory, 0, 1, 1, n, 1};
        const auto add = [&](void *in) {
            return cu("cuGraphAddMemsetNode", &node, graph, static_cast<void *const *>(nullptr),
                      std::size_t{0}, &set, in);
        };
        REQUIRE(add(nullptr) == 1 && add(context) == 0);
        REQUIRE(cu("cuGraphInstantiateWithFlags", &found, graph, 0ull) == 201);
        REQUIRE(cu("cuGraphDestroy", graph) == 0 && cu("cuArrayDestroy", array) == 0);
        REQUIRE(cu("cuMemHostUnregister", static_cast<void *>(back.data())) == 713);
        REQUIRE(cu("cuMemFreeHost", pinned) == 0 && cu("cuMemFree_v2", other) == 0);
        REQUIRE(uses_pool());
        REQUIRE(cu("cuModuleUnload", module) == 0);
        return HOLDS(cu("cuCtxGetCurrent", &current) == 0 && !current);
    };
    std::thread([&] { good = works(); }).join();
    REQUIRE(good && cu("cuStreamDestroy_v2", stream) == 0 && cu("cuEventDestroy_v2", event) == 0);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

namespace
{

// CUDA_KERNEL_NODE_PARAMS, alone and in CUgraphNodeParams.
struct KernelNode {
    const void *function;
    unsigned grid[3], block[3], shared;
    void **arguments, **extra;
    const void *kernel;
    void *context;
};
struct AnyNode {
    int type, reserved[3];
    union {
        KernelNode kernel;
        char bytes[232];
    };
    long long reserved_too;
};

// CUDA 11's calls, which ctypes finds by their plain names: their struct has no kernel or context.
bool older_packed_nodes(const KernelNode &packed, Address *to, Address memory,
                        const std::string &whole)
{
    void *graph = nullptr, *node = nullptr, *exec = nullptr;
    const struct Older {
        const void *function;
        unsigned grid[3], block[3], shared;
        void **arguments, **extra;
    } kernel = {packed.function, {1, 1, 1}, {1, 1, 1}, 0, nullptr, packed.extra};
    Older got = {};
    *to = memory;
    REQUIRE(cu("cuGraphCreate", &graph, 0u) == 0);
    REQUIRE(cu("cuGraphAddKernelNode", &node, graph, static_cast<void *const *>(nullptr),
               std::size_t{0}, &kernel) == 0);
    REQUIRE(cu("cuGraphKernelNodeGetParams", node, &got) == 0 && got.function == kernel.function);
    const std::size_t n = whole.size();
    *to = memory + n;
    REQUIRE(cu("cuGraphKernelNodeSetParams", node, &kernel) == 0);
    REQUIRE(cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull) == 0);
    REQUIRE(cu("cuGraphLaunch", exec, legacy) == 0 && cu("cuCtxSynchronize") == 0);
    *to = memory + 2 * n;
    REQUIRE(cu("cuGraphExecKernelNodeSetParams", exec, node, &kernel) == 0);
    REQUIRE(cu("cuGraphExecKernelNodeSetParams", nullptr, node, &kernel) == 1);
    REQUIRE(cu("cuGraphLaunch", exec, legacy) == 0 && cu("cuCtxSynchronize") == 0);
    REQUIRE(bytes_at(memory + n, whole) && bytes_at(memory + 2 * n, whole));
    return HOLDS(cu("cuGraphExecDestroy", exec) == 0 && cu("cuGraphDestroy", graph) == 0);
}

} // namespace

// In nodes of graphs as in launches.
bool driver_packed_nodes()
{
    void *context = nullptr, *module = nullptr, *function = nullptr, *graph = nullptr;
    void *nodes[2] = {}, *exec = nullptr;
    Address memory = 0;
    constexpr std::size_t n = 1000;
    const std::vector<char> image = library_cubin(), bytes = random_bytes(n, 9);
    REQUIRE(driver_has_context(&context) && cu("cuMemAlloc_v2", &memory, 7 * n) == 0);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(image.data())) == 0);
    REQUIRE(cu("cuModuleGetFunction", &function, module,
               static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    REQUIRE(cu("cuMemcpyHtoD_v2", memory, static_cast<const void *>(bytes.data()), n) == 0);
    struct Packed {
        Address to, from;
        std::size_t n;
    } packed = {memory + n, memory, n};
    std::size_t size = sizeof(packed);
    void *extra[] = {reinterpret_cast<void *>(1), &packed, reinterpret_cast<void *>(2), &size,
                     nullptr};
    KernelNode kernel = {function, {1, 1, 1}, {1, 1, 1}, 0, nullptr, extra, nullptr, context};
    const auto add = [&](void **node, void *const *behind) {
        return cu("cuGraphAddKernelNode_v2", node, graph, behind, std::size_t{behind ? 1u : 0u},
                  static_cast<const KernelNode *>(&kernel));
    };
    REQUIRE(cu("cuGraphCreate", &graph, 0u) == 0 && add(&nodes[0], nullptr) == 0);
    AnyNode any = {};
    any.kernel = kernel;
    packed = {memory + 2 * n, memory + n, n};
    // Edges as usual, one that may be overlapped, and of a kind that is not known.
    unsigned char edge[8] = {0, 0, 9};
    const auto add_behind = [&](void **node) {
        return cu("cuGraphAddNode_v2", node, graph, static_cast<void *const *>(&nodes[0]),
                  static_cast<const void *>(edge), std::size_t{1}, &any);
    };
    REQUIRE(add_behind(&nodes[1]) == 1);
    edge[0] = 1, edge[2] = 1;
    REQUIRE(add_behind(&nodes[1]) == 0 && cu("cuGraphDestroyNode", nodes[1]) == 0);
    edge[0] = 0, edge[2] = 0;
    REQUIRE(add_behind(&nodes[1]) == 0);
    REQUIRE(cu("cuGraphInstantiateWithFlags", &exec, graph, 0ull) == 0);
    REQUIRE(cu("cuGraphLaunch", exec, legacy) == 0 && cu("cuCtxSynchronize") == 0);
    const std::string whole(bytes.data(), n);
    REQUIRE(bytes_at(memory + n, whole) && bytes_at(memory + 2 * n, whole));
    packed = {memory + 3 * n, memory + n, n};
    REQUIRE(cu("cuGraphExecKernelNodeSetParams_v2", exec, nodes[1],
               static_cast<const KernelNode *>(&kernel)) == 0);
    REQUIRE(cu("cuGraphLaunch", exec, legacy) == 0 && cu("cuCtxSynchronize") == 0);
    REQUIRE(bytes_at(memory + 3 * n, whole));
    // Fewer bytes than the kernel's arguments have; both kinds of arguments.
    void *arguments[] = {&packed.to, &packed.from, &packed.n};
    size = sizeof(packed) - 8;
    REQUIRE(add(&nodes[1], nullptr) == 1);
    size = sizeof(packed), kernel.arguments = arguments;
    REQUIRE(add(&nodes[1], nullptr) == 1);
    REQUIRE(cu("cuGraphExecDestroy", exec) == 0 && cu("cuGraphDestroy", graph) == 0);
    REQUIRE(older_packed_nodes(kernel, &packed.to, memory + 4 * n, whole));
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

namespace
{

// The compiler's options: the sizes of the logs, its time, and whether it says more.
struct Told {
    std::vector<char> info, error;
    int options[6] = {3, 4, 5, 6, 2, 12};
    void *values[6];

    Told(std::size_t info_room, std::size_t error_room, bool verbose)
        : info(info_room + 1, 'x'),
          error(error_room + 1, 'x'), values{info.data(),
                                             reinterpret_cast<void *>(info_room),
                                             error.data(),
                                             reinterpret_cast<void *>(error_room),
                                             this,
                                             reinterpret_cast<void *>(std::uintptr_t{verbose})}
    {
    }
    // What a log contains; the number of its bytes is returned, or the room if it is cut, and
    // nothing is written behind its end.
    static bool log_is(const std::vector<char> &log, const void *filled, const std::string &whole)
    {
        const std::size_t room = log.size() - 1;
        const bool cut = whole.size() >= room;
        const std::string wanted = cut ? whole.substr(0, room - 1) : whole;
        REQUIRE(log.back() == 'x' && log[wanted.size()] == 0 && log.data() == wanted);
        return HOLDS(reinterpret_cast<std::uintptr_t>(filled) == (cut ? room : wanted.size()));
    }
    bool logs_are(const std::string &in_info, const std::string &in_error) const
    {
        return HOLDS(log_is(info, values[1], in_info) && log_is(error, values[3], in_error));
    }
    float time() const
    {
        float ms;
        std::memcpy(&ms, &values[4], sizeof(ms));
        return ms;
    }
    bool is(const std::string &in_info, const std::string &in_error, float ms) const
    {
        return HOLDS(logs_are(in_info, in_error) && time() == ms);
    }
};

std::string ptx_with(const std::string &kernels)
{
    return ".version 9.0\n.target sm_90a\n.address_size 64\n" + kernels;
}

const std::string good_ptx = ptx_with(".visible .entry " STUB_LIBRARY_KERNEL
                                      "(.param .u64 a, .param .u64 b, .param .u64 c)\n{\n ret;\n}"),
                  bad_ptx = ptx_with(".visible .entry " STUB_STRANGE_KERNEL "()\n{\n nonsense;\n}"),
                  strange_ptx = ptx_with(".visible .entry " STUB_STRANGE_KERNEL "()\n{\n}");

int load_module(void **module, const std::string &ptx, Told *told)
{
    return cu("cuModuleLoadDataEx", module, static_cast<const void *>(ptx.c_str()), 6u,
              static_cast<int *>(told->options), static_cast<void **>(told->values));
}

int load_library(void **library, const std::string &ptx, Told *told)
{
    return cu("cuLibraryLoadData", library, static_cast<const void *>(ptx.c_str()),
              static_cast<int *>(told->options), static_cast<void **>(told->values), 6u,
              static_cast<int *>(nullptr), static_cast<void **>(nullptr), 0u);
}

// A library is compiled when it is first used.
int use_library(void **module, const std::string &ptx, Told *told)
{
    void *library = nullptr;
    int rc = load_library(&library, ptx, told);
    if (!rc)
        rc = cu("cuLibraryGetModule", module, library);
    return library ? rc : -1;
}

// By the linker, into a module.
int load_linked(void **module, const std::string &ptx, Told *told)
{
    void *state = nullptr, *image = nullptr;
    std::size_t n = 0;
    int rc = cu("cuLinkCreate_v2", 6u, static_cast<int *>(told->options),
                static_cast<void **>(told->values), &state);
    if (!rc)
        rc = cu("cuLinkAddData_v2", state, 1, static_cast<const void *>(ptx.data()), ptx.size(),
                "name", 0u, static_cast<int *>(nullptr), static_cast<void **>(nullptr));
    if (!rc)
        rc = cu("cuLinkComplete", state, &image, &n);
    if (!rc)
        rc = cu("cuModuleLoadData", module, static_cast<const void *>(image));
    return cu("cuLinkDestroy", state) ? -1 : rc;
}

} // namespace

// What lacks something can be added to a link, as other images may have it, but not be linked
// alone: the log says so, where somebody can tell, and if there is one.
static bool adds_what_lacks(bool logs)
{
    const std::string lacks = good_ptx + "\n.extern .func other;";
    Told told(100, 100, false);
    void *state = nullptr, *image = nullptr;
    std::size_t n = 0;
    REQUIRE(cu("cuLinkCreate_v2", logs ? 6u : 0u, static_cast<int *>(told.options),
               static_cast<void **>(told.values), &state) == 0);
    REQUIRE(cu("cuLinkAddData_v2", state, 1, static_cast<const void *>(lacks.data()), lacks.size(),
               "name", 0u, static_cast<int *>(nullptr), static_cast<void **>(nullptr)) == 0);
    REQUIRE(!logs || told.is("", "", taken ? 12.5f : 0));
    REQUIRE(cu("cuLinkComplete", state, &image, &n) == (taken ? 999 : 0) && !image == taken);
    REQUIRE(!logs ||
            told.is("", taken ? "nvlink error : undefined reference" : "", taken ? 12.5f : 0));
    return HOLDS(cu("cuLinkDestroy", state) == 0);
}

// A link that has ended is none, and neither is what was never one.
static bool ends_links_once()
{
    std::uint64_t none[300] = {0x4b4e494c}; // as a link that has ended may begin
    void *image = nullptr;
    std::size_t n = 0;
    for (int i = 0; i < 3; i++) {
        void *state = nullptr;
        REQUIRE(cu("cuLinkCreate_v2", 0u, static_cast<int *>(nullptr),
                   static_cast<void **>(nullptr), &state) == 0);
        REQUIRE(cu("cuLinkDestroy", state) == 0 && cu("cuLinkDestroy", state) == 400);
        REQUIRE(cu("cuLinkComplete", state, &image, &n) == 400 && !image);
    }
    return HOLDS(cu("cuLinkDestroy", static_cast<void *>(none)) == 400 &&
                 cu("cuLinkDestroy", static_cast<void *>(nullptr)) == 400);
}

// Several images are linked by the back end, which says what is wrong when they are.
static bool links_several()
{
    const std::vector<char> cubin = library_cubin();
    const auto link = [&](const std::string &ptx, std::vector<char> *linked) {
        void *state = nullptr, *image = nullptr, *again = nullptr;
        std::size_t n = 0;
        const auto add = [&](int type, const char *data, std::size_t bytes) {
            return cu("cuLinkAddData_v2", state, type, static_cast<const void *>(data), bytes,
                      "name", 0u, static_cast<int *>(nullptr), static_cast<void **>(nullptr));
        };
        if (cu("cuLinkCreate_v2", 0u, static_cast<int *>(nullptr), static_cast<void **>(nullptr),
               &state) ||
            add(1, ptx.data(), ptx.size()) || add(0, cubin.data(), cubin.size()))
            return -1;
        const int rc = cu("cuLinkComplete", state, &image, &n);
        if (!rc && (cu("cuLinkComplete", state, &again, &n) || again != image))
            return -1;
        linked->assign(static_cast<char *>(image), static_cast<char *>(image) + n);
        return cu("cuLinkDestroy", state) ? -1 : rc;
    };
    void *module = nullptr, *function = nullptr;
    std::vector<char> linked;
    REQUIRE(link(bad_ptx, &linked) == 218 && linked.empty());
    REQUIRE(link(good_ptx + "\n.extern .func other;", &linked) == 0 && linked == cubin);
    REQUIRE(cu("cuModuleLoadData", &module, static_cast<const void *>(linked.data())) == 0);
    REQUIRE(cu("cuModuleGetFunction", &function, module,
               static_cast<const char *>(STUB_LIBRARY_KERNEL)) == 0);
    return HOLDS(cu("cuModuleUnload", module) == 0);
}

// A capture that begins while another thread links, or compiles, goes on.
static bool links_beside_a_capture()
{
    const std::vector<char> cubin = library_cubin();
    const std::string ptx = good_ptx + "\n.extern .func other;";
    auto *launch_host = preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc");
    void *blocking = nullptr, *captured = nullptr, *graph = nullptr, *context = nullptr;
    REQUIRE(cudaStreamCreate(&blocking) == 0 && cudaStreamCreateWithFlags(&captured, 1) == 0);
    REQUIRE(cu("cuCtxGetCurrent", &context) == 0 && context);
    for (bool several : {true, false}) {
        std::atomic<bool> set{false}, over{false};
        std::atomic<pid_t> linker{0};
        void *state = nullptr, *image = nullptr;
        std::size_t n = 0;
        int rc = -1;
        REQUIRE(cu("cuLinkCreate_v2", 0u, static_cast<int *>(nullptr),
                   static_cast<void **>(nullptr), &state) == 0);
        REQUIRE(cu("cuLinkAddData_v2", state, 1, static_cast<const void *>(ptx.data()), ptx.size(),
                   "name", 0u, static_cast<int *>(nullptr), static_cast<void **>(nullptr)) == 0);
        REQUIRE(!several || cu("cuLinkAddData_v2", state, 0,
                               static_cast<const void *>(cubin.data()), cubin.size(), "name", 0u,
                               static_cast<int *>(nullptr), static_cast<void **>(nullptr)) == 0);
        REQUIRE(launch_host(blocking, until_set, &set) == 0); // what is linked is copied behind it
        std::thread links([&] {
            cu("cuCtxSetCurrent", context);
            linker = gettid();
            rc = cu("cuLinkComplete", state, &image, &n);
            over = true;
        });
        for (int asleep = 0; asleep < 200 && !over; usleep(1000))
            asleep = thread_state(getpid(), linker) == 'S' ? asleep + 1 : 0;
        const int begun = cudaStreamBeginCapture(captured, 0);
        set = true;
        links.join();
        REQUIRE(begun == 0 && (rc == 0 || !several));
        REQUIRE(cudaStreamEndCapture(captured, &graph) == 0 && graph);
        REQUIRE(cu("cuLinkDestroy", state) == 0 && cudaStreamSynchronize(blocking) == 0);
    }
    return HOLDS(cudaStreamDestroy(blocking) == 0 && cudaStreamDestroy(captured) == 0);
}

// A module that lacks something is PTX that cannot be compiled, whoever finds out.
static bool lacks_something()
{
    const std::string lacks = strange_ptx + "\n.extern .func other;";
    for (auto *load : {load_module, use_library}) {
        Told told(100, 100, false);
        void *loaded = nullptr;
        REQUIRE(load(&loaded, lacks, &told) == 218 && !loaded);
        REQUIRE(told.is("", "nvlink error : undefined reference", 12.5f));
    }
    return true;
}

// What is wrong with a library appears when it is first used, or at once if modules are to be
// loaded at once.
static bool loads_late()
{
    void *library = nullptr, *made = nullptr;
    int mode = 0;
    std::uint64_t address = 1;
    Told none(0, 0, false);
    REQUIRE(cu("cuModuleGetLoadingMode", &mode) == 0 && mode == 2);
    unsigned count = 9;
    for (const std::string &ptx : {bad_ptx, ptx_with("nonsense")}) {
        REQUIRE(load_library(&library, ptx, &none) == 0 && library);
        REQUIRE(cu("cuLibraryGetKernelCount", &count, library) == 0 && count == 0);
        REQUIRE(cu("cuLibraryEnumerateKernels", &made, 1u, library) == 0 && !made);
        REQUIRE(cu("cuLibraryGetKernel", &made, library, STUB_STRANGE_KERNEL) == 218);
        REQUIRE(cu("cuLibraryGetModule", &made, library) == 218 && !made);
        REQUIRE(cu("cuLibraryGetGlobal", &address, static_cast<std::size_t *>(nullptr), library,
                   "other") == 218 &&
                !address);
        REQUIRE(cu("cuLibraryUnload", library) == 0);
    }
    // Without memory to load it now, it has its kernels.
    const std::string large = ptx_with(".visible .entry " STUB_LARGE_KERNEL "()\n{\n ret;\n}");
    REQUIRE(load_library(&library, large, &none) == 0);
    REQUIRE(cu("cuLibraryGetKernel", &made, library, STUB_LARGE_KERNEL) == 2 && !made);
    REQUIRE(cu("cuLibraryGetKernelCount", &count, library) == 0 && count == 1);
    REQUIRE(cu("cuLibraryEnumerateKernels", &made, 1u, library) == 0 && made);
    made = nullptr;
    REQUIRE(cu("cuLibraryUnload", library) == 0);
    REQUIRE(load_library(&library, good_ptx, &none) == 0);
    REQUIRE(cu("cuLibraryGetGlobal", &address, static_cast<std::size_t *>(nullptr), library,
               "other") == 500);
    REQUIRE(cu("cuLibraryGetKernel", &made, library, "other") == 500 && !made);
    REQUIRE(cu("cuLibraryGetKernel", &made, library, STUB_LIBRARY_KERNEL) == 0 && made);
    REQUIRE(cu("cuLibraryGetModule", &made, library) == 0 && cu("cuLibraryUnload", library) == 0);
    REQUIRE(cu("cuLibraryGetKernel", &made, library, STUB_LIBRARY_KERNEL) == 400);
    library = nullptr;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    const int rc = load_library(&library, bad_ptx, &none);
    REQUIRE(cu("cuModuleGetLoadingMode", &mode) == 0 && mode == 1);
    unsetenv("CUDA_MODULE_LOADING");
    return HOLDS(rc && !library);
}

// A module that the back end has loaded stays, whatever the linker says of it.
static bool stays_loaded()
{
    const std::string odd = good_ptx + "\n.extern .func other;";
    for (auto *load : {load_module, use_library}) {
        Told told(100, 100, true);
        void *loaded = nullptr;
        REQUIRE(load(&loaded, odd, &told) == 0 && loaded);
        REQUIRE(told.logs_are(taken ? "ptxas info : 24 registers" : "", ""));
        REQUIRE(taken ? told.time() == 12.5f : (load == load_module) == (told.time() > 0));
    }
    return true;
}

// Options that do not exist, or lack their values, are refused; the time needs no logs.
bool options_are_checked()
{
    void *loaded = nullptr, *values[] = {nullptr, nullptr};
    const auto load = [&](unsigned count, std::vector<int> options) {
        return cu("cuModuleLoadDataEx", &loaded, static_cast<const void *>(good_ptx.c_str()), count,
                  options.empty() ? nullptr : options.data(),
                  options.empty() ? nullptr : static_cast<void **>(values));
    };
    REQUIRE(load(1, {77}) == 1 && load(1, {-1}) == 1 && load(1, {}) == 1 && !loaded);
    REQUIRE(load(2, {7, 2}) == 0 && loaded && !values[0] && values[1]);
    values[1] = nullptr;
    REQUIRE(load(2, {2, 2}) == 0 && !values[0] && !values[1]); // twice: neither, as natively
    values[1] = reinterpret_cast<void *>(100);
    for (const int log : {3, 5})
        REQUIRE(load(2, {log, log + 1}) == 1 && values[1] == reinterpret_cast<void *>(100));
    values[1] = nullptr;
    return HOLDS(load(0, {}) == 0);
}

// Each call that takes PTX says why it cannot be compiled; if the back end does not say, the error
// is the same and the logs are empty.
bool driver_compiler_says()
{
    const std::string why = "ptxas fatal : the client's PTX, line 6: nonsense",
                      info = "ptxas info : 24 registers";
    void *context = nullptr, *loaded = nullptr;
    REQUIRE(driver_has_context(&context));
    for (auto *load : {load_module, use_library, load_linked}) {
        const bool linked = load == load_linked;
        Told wrong(100, 100, false), verbose(100, 100, true), quiet(100, 100, false);
        const int rc = load(&loaded, bad_ptx, &wrong);
        REQUIRE(taken ? rc == 218 && wrong.is("", why, 12.5f) : rc && wrong.is("", "", 0));
        REQUIRE(!loaded && load(&loaded, good_ptx, &verbose) == 0 && loaded);
        // The time to load a module, if the linker has not told its own.
        const bool timed = load == load_module;
        REQUIRE(verbose.logs_are(taken ? info : "", "") &&
                (taken ? verbose.time() == 12.5f : timed == (verbose.time() > 0)));
        loaded = nullptr;
        REQUIRE(load(&loaded, good_ptx, &quiet) == 0 && loaded && quiet.logs_are("", ""));
        REQUIRE(linked && taken ? quiet.time() == 12.5f : timed == (quiet.time() > 0));
        loaded = nullptr;
        if (!taken)
            continue;
        // Less room than the log needs, no room at all, and more than a log ever has.
        Told few(1, 10, true), none(0, 0, false), much(100, 1u << 20, false);
        REQUIRE(load(&loaded, bad_ptx, &few) == 218 && few.is(info, why, 12.5f));
        REQUIRE(load(&loaded, bad_ptx, &none) != 0 && !loaded);
        REQUIRE(none.info[0] == 'x' && none.error[0] == 'x' && !none.values[1] && !none.values[3]);
        REQUIRE(load(&loaded, bad_ptx, &much) == 218 && much.is("", why, 12.5f));
        // Nothing that is known as a kernel.
        Told strange(100, 100, false);
        REQUIRE(load(&loaded, ptx_with("nonsense"), &strange) == 218);
        REQUIRE(strange.is("", "ptxas fatal : the client's PTX, line 4: nonsense", 12.5f));
        REQUIRE(!loaded);
    }
    REQUIRE(adds_what_lacks(true) && adds_what_lacks(false) && stays_loaded() &&
            options_are_checked() && ends_links_once());
    REQUIRE(!taken ||
            (lacks_something() && loads_late() && links_several() && links_beside_a_capture()));
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}
