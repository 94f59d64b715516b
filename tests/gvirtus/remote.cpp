// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/remote_libraries.h"
#include "tests/gvirtus/remote_runtime.h"
#include "tests/fixtures/cuda_application.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <stdexcept>
#include <unistd.h>

/* ------------------------------------------------------------------- front end */

int Remote::to_symbol(std::uint64_t symbol, const void *from, std::size_t n, std::size_t offset)
{
    char address[24];
    std::snprintf(address, sizeof(address), "%p", reinterpret_cast<void *>(symbol));
    Body body;
    body.string(address).string("").host(from, n).u64(n).u64(offset).i32(H2D);
    return call("cudaMemcpyToSymbol", body);
}

/* -------------------------------------------------------------------- back end */

namespace
{

std::atomic<bool> shut, inside;         // a gate in the way of two handlers
std::atomic<bool> endless;              // work of a stream
std::atomic<unsigned> registering, met; // handlers of registrations; how often others met one
std::atomic<unsigned> registered;       // handlers of registrations that have returned
std::map<std::uint64_t, void *> host_registered; // of all clients, as in G5

std::atomic<std::uint64_t> handled; // copies and launches
std::atomic<std::uint64_t> bare;    // streams that are nothing but a handle
std::atomic<unsigned> together;     // ... that are made while another one is

// What a handler reads from its request, and its answer.
struct Frame {
    const std::vector<char> &in;
    Body &out;
    std::size_t at = 0;

    template <typename T> T get()
    {
        T value{};
        if (at + sizeof(T) > in.size())
            return value;
        std::memcpy(&value, in.data() + at, sizeof(T));
        at += sizeof(T);
        return value;
    }
    const char *host(std::uint64_t *n)
    {
        *n = get<std::uint64_t>();
        const char *bytes = in.data() + at;
        at += *n;
        return bytes;
    }
    template <typename T> T back(std::size_t behind) const
    {
        T value{};
        if (in.size() >= behind + sizeof(T))
            std::memcpy(&value, in.data() + in.size() - behind - sizeof(T), sizeof(T));
        return value;
    }
    int answer(const void *bytes, std::size_t n)
    {
        out.host(bytes, n);
        return 0;
    }
};

int copy(Frame &f, std::size_t behind)
{
    const cuda_calls *app = cuda_application();
    auto kind = f.back<std::int32_t>(behind);
    auto count = f.back<std::uint64_t>(behind + 4);
    std::uint64_t n;
    handled++;
    if (behind && (!kind || kind == 4)) // on the host, by the front end
        return 0;
    if (behind)
        app->stream_synchronize(reinterpret_cast<void *>(f.back<std::uint64_t>(0)));
    if (kind == H2D) {
        auto to = f.get<std::uint64_t>();
        const char *from = f.host(&n);
        return n < count ? 1 : app->to_device(to, from, count);
    }
    if (kind == D2H) {
        f.host(&n);
        std::vector<char> bytes(count, 'g'); // what the heap held
        int rc = app->from_device(bytes.data(), f.get<std::uint64_t>(), count);
        f.out.host(bytes.data(), count);
        return rc;
    }
    if (kind != D2D)
        return 21;
    auto to = f.get<std::uint64_t>(), from = f.get<std::uint64_t>();
    int rc = app->copy_async(to, from, count, nullptr);
    return rc ? rc : app->stream_synchronize(nullptr);
}

int copy_2d(Frame &f)
{
    const cuda_calls *app = cuda_application();
    auto kind = f.back<std::int32_t>(0);
    auto height = f.back<std::uint64_t>(4), width = f.back<std::uint64_t>(12);
    auto spitch = f.back<std::uint64_t>(20), dpitch = f.back<std::uint64_t>(28);
    std::uint64_t n;
    handled++;
    if (kind == H2D) {
        auto to = f.get<std::uint64_t>();
        const char *from = f.host(&n);
        for (std::uint64_t i = 0; i < height; i++) {
            if (int rc = app->to_device(to + i * dpitch, from + i * spitch, width))
                return rc;
        }
        return 0;
    }
    std::vector<char> rows(kind == D2H ? dpitch * height : 0, 'g'); // what lies between them
    if (kind == D2H)
        f.host(&n);
    auto to = kind == D2D ? f.get<std::uint64_t>() : 0, from = f.get<std::uint64_t>();
    int rc = kind == D2H || kind == D2D ? 0 : 21;
    for (std::uint64_t i = 0; i < height && !rc; i++)
        rc = kind == D2H ? app->from_device(&rows[i * dpitch], from + i * spitch, width)
                         : app->copy_async(to + i * dpitch, from + i * spitch, width, nullptr);
    if (kind == D2H)
        f.out.host(rows.data(), rows.size());
    return rc;
}

// Names of variables, by their addresses in the client.
std::map<std::uint64_t, std::uint64_t> names;
std::mutex names_lock;

std::uint64_t name_of(std::uint64_t symbol)
{
    std::lock_guard<std::mutex> guard(names_lock);
    auto found = names.find(symbol);
    return found == names.end() ? symbol : found->second;
}

int register_var(Frame &f)
{
    auto symbol = f.get<std::uint64_t>(), device = f.get<std::uint64_t>();
    auto n = f.get<std::uint64_t>(), name = f.get<std::uint64_t>();
    {
        std::lock_guard<std::mutex> guard(names_lock);
        names[symbol] = name;
    }
    return runtime().register_var
               ? runtime().register_var(reinterpret_cast<void *>(name), device, n)
               : 1;
}

// The body as it came, for a test to compare.
std::vector<char> last_symbol_body;
std::mutex last_symbol_lock;

int copy_to_symbol(Frame &f)
{
    auto kind = f.back<std::int32_t>(0);
    auto offset = f.back<std::uint64_t>(4), count = f.back<std::uint64_t>(12);
    std::uint64_t n;
    {
        std::lock_guard<std::mutex> guard(last_symbol_lock);
        last_symbol_body = f.in;
    }
    handled++;
    f.get<std::uint64_t>();
    const char *name = f.host(&n);
    f.get<std::uint64_t>();
    f.host(&n);
    if (kind != H2D)
        return 21;
    const char *from = f.host(&n);
    void *device = nullptr;
    void *symbol = reinterpret_cast<void *>(name_of(std::strtoul(name, nullptr, 16)));
    if (!runtime().address || runtime().address(&device, symbol))
        return 13;
    return cuda_application()->to_device(reinterpret_cast<std::uint64_t>(device) + offset, from,
                                         count);
}

int double_calls(const std::string &name, Frame &f)
{
    const cuda_calls *app = cuda_application();
    if (name == "cudaTestPeek") {
        auto device = f.get<std::uint64_t>(), n = f.get<std::uint64_t>();
        std::vector<char> bytes(n);
        bool good = app->peek ? app->peek(device, bytes.data(), n)
                              : !app->from_device(bytes.data(), device, n);
        return good ? f.answer(bytes.data(), n) : 1;
    }
    if (name == "testMalloc") { // of a library, which the plugin does not see
        std::uint64_t device = 0;
        int rc = app->mem_alloc(&device, f.get<std::uint64_t>());
        f.out.u64(device);
        return rc;
    }
    if (name == "testStream") { // likewise
        void *stream = nullptr;
        int rc = app->stream_create(&stream, 1);
        return rc ? rc : f.answer(&stream, 8);
    }
    if (name == "testCopy") { // likewise, in that stream
        auto *stream = reinterpret_cast<void *>(f.get<std::uint64_t>());
        auto to = f.get<std::uint64_t>(), from = f.get<std::uint64_t>();
        return app->copy_async(to, from, f.get<std::uint64_t>(), stream);
    }
    if (name == "testFill") { // of a library, in the legacy stream
        auto device = f.get<std::uint64_t>();
        const std::vector<char> bytes(f.get<std::uint64_t>(), 'f');
        return app->to_device(device, bytes.data(), bytes.size());
    }
    if (name == "testExit") // a library ends the process
        std::_Exit(static_cast<int>(f.get<std::uint64_t>()));
    if (name == "cudaTestRegisterVar")
        return register_var(f);
    if (name == "cudaTestRegisterFunction")
        return runtime().register_function(reinterpret_cast<void *>(f.get<std::uint64_t>()));
    if (name == "cudaTestFail")
        return runtime().fail(f.get<std::int32_t>());
    if (name == "cudaTestSymbolBody") {
        std::lock_guard<std::mutex> guard(last_symbol_lock);
        return f.answer(last_symbol_body.data(), last_symbol_body.size());
    }
    if (name == "cudaTestRuntimeCalls") {
        std::uint64_t count = runtime().calls ? runtime().calls() : ~0ull;
        return f.answer(&count, 8);
    }
    if (name == "cudaTestLibraryHandles") {
        const std::uint64_t count = library_handles();
        return f.answer(&count, 8);
    }
    if (name == "cudaTestHandled") {
        std::uint64_t count = handled;
        return f.answer(&count, 8);
    }
    if (name == "cudaTestStats") {
        ibx_double_stats stats{};
        if (app->get_stats)
            app->get_stats(&stats);
        return f.answer(&stats, sizeof(stats));
    }
    if (name == "cudaTestSlow") {
        if (app->slow)
            app->slow(static_cast<unsigned>(f.get<std::uint64_t>()));
        return app->slow ? 0 : 1;
    }
    if (name == "cudaTestGate") {
        shut = f.get<std::uint64_t>();
        return 0;
    }
    if (name == "cudaTestMode") { // the thread's mode for captures
        int (*exchange)(int *mode) = nullptr;
        void *driver = dlopen(std::getenv("IBX_LIBCUDA"), RTLD_LAZY | RTLD_NOLOAD);
        *reinterpret_cast<void **>(&exchange) =
            driver ? dlsym(driver, "cuThreadExchangeStreamCaptureMode") : nullptr;
        int mode = 0;
        if (!exchange || exchange(&mode))
            return 1;
        const std::uint64_t was = static_cast<std::uint64_t>(mode);
        exchange(&mode);
        return f.answer(&was, 8);
    }
    if (name == "cudaTestMet") {
        std::uint64_t count = met;
        return f.answer(&count, 8);
    }
    if (name == "cudaTestRegistered") {
        std::uint64_t count = registered;
        return f.answer(&count, 8);
    }
    if (name == "cudaTestInside") {
        std::uint64_t is = inside;
        return f.answer(&is, 8);
    }
    if (name == "cudaTestCapture") {
        app->capture(reinterpret_cast<void *>(f.get<std::uint64_t>()));
        return 0;
    }
    if (name == "cudaTestNoContext") // as in a thread that has not used a device
        return app->ctx_set_current(nullptr);
    if (name == "cudaTestHold") {
        app->hold(f.get<std::uint64_t>());
        return 0;
    }
    if (name == "cudaTestHoldLinker") {
        app->hold_linker(f.get<std::uint64_t>());
        return 0;
    }
    if (name == "cudaTestHoldStream") {
        auto *stream = reinterpret_cast<void *>(f.get<std::uint64_t>());
        app->hold_stream(stream);
        endless = stream != nullptr;
        return 0;
    }
    if (name == "cudaTestReleaseStream") {
        app->release_stream(reinterpret_cast<void *>(f.get<std::uint64_t>()));
        return 0;
    }
    if (name == "cudaTestSay") { // of GVirtuS, not of a kernel
        std::puts("said by a handler");
        return 0;
    }
    if (name == "cudaTestPrint") {
        std::uint64_t n;
        app->print(f.host(&n));
        return 0;
    }
    if (name == "cudaTestInject") {
        auto in = static_cast<unsigned>(f.get<std::uint64_t>());
        auto code = f.get<std::int32_t>(), sticky = f.get<std::int32_t>();
        std::uint64_t n;
        const char *function = f.host(&n);
        app->inject(in ? function : nullptr, in, code, sticky != 0);
        return 0;
    }
    return -1;
}

std::atomic<std::uint64_t> handles_made;

// A plan is an array of one int, which is counted.
int answer_made(Frame &f, const std::string &name, std::uint64_t made, int code)
{
    if (name == "cufftCreate")
        f.out.u64(sizeof(std::int32_t)).i32(static_cast<std::int32_t>(made));
    else
        f.out.u64(made);
    return code;
}

std::atomic<void *> by_driver{nullptr}; // the stream that the driver's double captures

// Like CUDA's runtime, makes a context current at the first call that needs one.
int execute(const std::string &name, Frame &f, int *current)
{
    const cuda_calls *app = cuda_application();
    if (name == "cudaMemcpyPeerAsync" && is_captured(f.back<std::uint64_t>(0)))
        return 900;
    if (is_echoed(name))
        return f.answer(f.in.data(), f.in.size());
    if (name == "cuModuleLoadDataEx" || name == "testSameReply") { // with values of options
        const auto options = f.in.empty() ? 3 : f.get<std::uint32_t>();
        f.out.u64(0x5000'0000 + 16 * ++handles_made);
        for (std::uint32_t i = 0; i < options; i++)
            f.out.u64(8).u64(0x7ffc'0000'1000);
        return 0;
    }
    if (name.rfind("test", 0) == 0 || name.rfind("cudaTest", 0) == 0)
        return double_calls(name, f);
    if (name == "curandGenerateUniform" || name == "nvmlSystemGetDriverVersion") {
        std::string unset(256, 'g'); // what the heap held
        if (name[0] == 'n')
            std::memcpy(unset.data(), "580.1", 6);
        f.out.host(unset.data(), unset.size());
        return name[0] == 'n' ? 0 : 103;
    }
    if (makes_handle(name) && !f.in.empty()) {
        f.out.u64(0x5000'0000 + 16 * ++handles_made);
        return 0;
    }
    int code = 0;
    std::uint64_t made = 0;
    if (library_makes(name, &made, &code))
        return answer_made(f, name, made, code);
    if (name == "cublasDestroy_v2")
        return library_ends_blas(f.get<std::uint64_t>());
    if (name == "cufftDestroy")
        return library_ends_plan(f.get<std::int32_t>());
    if (name == "cudaSetDevice") {
        auto device = f.get<std::int32_t>();
        if (device != 0 && device != 1)
            return 101;
        cuda_application_use(device);
        *current = device;
        return 0;
    }
    if (*current < 0)
        cuda_application_use(*current = 0);
    if (name == "cudaStreamBeginCapture" || name == "cudaStreamEndCapture") {
        auto *stream = reinterpret_cast<void *>(f.get<std::uint64_t>());
        void *graph = nullptr;
        if (!stream || !runtime().begin_capture)
            return stream ? 0 : 1; // as if every stream but NULL were captured
        if (name == "cudaStreamBeginCapture" && f.get<std::int32_t>() == 2) { // relaxed
            by_driver = stream;
            return app->begin_capture(stream, 2);
        }
        if (name == "cudaStreamBeginCapture")
            return runtime().begin_capture(stream, 0);
        const bool of_driver = by_driver == stream;
        by_driver = of_driver ? nullptr : by_driver.load();
        const int rc =
            of_driver ? app->end_capture(stream, &graph) : runtime().end_capture(stream, &graph);
        if (!rc)
            f.out.u64(reinterpret_cast<std::uint64_t>(graph));
        return rc;
    }
    if (name == "cudaStreamDestroy") {
        auto *stream = reinterpret_cast<void *>(f.get<std::uint64_t>());
        void *graph = nullptr, *captured = stream;
        if (stream && by_driver.compare_exchange_strong(captured, nullptr))
            app->end_capture(stream, &graph);
        else if (runtime().stream_destroyed)
            runtime().stream_destroyed(stream);
        return app->stream_destroy(stream);
    }
    if (name == "cudaMemPoolDestroy") {
        auto *pool = reinterpret_cast<void *>(f.get<std::uint64_t>());
        return pool ? runtime().pool_destroy(pool) : 1;
    }
    if (name == "cudaGraphDestroy") {
        auto *graph = reinterpret_cast<void *>(f.get<std::uint64_t>());
        return graph ? runtime().graph_destroy(graph) : 1;
    }
    if (name == "cudaGraphLaunch") {
        auto *exec = reinterpret_cast<void *>(f.get<std::uint64_t>());
        if (!exec)
            return 1;
        return runtime().graph_launch(exec, reinterpret_cast<void *>(f.get<std::uint64_t>()));
    }
    if (name == "__cudaRegisterFunction") {
        met += registering++ != 0;
        usleep(100);
        registering--;
        f.out.bytes.resize(f.get<std::uint64_t>());
        registered++;
        return -1;
    }
    if (name == "cudaLaunchKernel" || name == "cudaMemcpyToSymbol")
        met += registering != 0;
    if (name == "cudaUnregisterFatBinary" || name == "cudaMemcpyFromSymbol") {
        for (inside = true; shut || (endless && name == "cudaUnregisterFatBinary");)
            usleep(1000); // the latter waits for all work
        return inside = false, -1;
    }
    if (name == "cudaMemcpy")
        return copy(f, 0);
    if (name == "cudaMemcpyAsync")
        return copy(f, 8);
    if (name == "cudaMemcpy2D")
        return copy_2d(f);
    if (name == "cudaMemcpyToSymbol")
        return copy_to_symbol(f);
    if (name == "cudaGetSymbolAddress") {
        std::uint64_t n;
        f.get<std::uint64_t>();
        void *found = nullptr;
        void *symbol = reinterpret_cast<void *>(name_of(std::strtoul(f.host(&n), nullptr, 16)));
        if (!runtime().address || runtime().address(&found, symbol))
            return 13;
        return f.answer(&found, sizeof(found));
    }
    if (name == "throws")
        throw std::runtime_error("thrown by a handler");
    if (name == "cudaStreamSynchronize")
        return app->stream_synchronize(reinterpret_cast<void *>(f.get<std::uint64_t>()));
    if (name == "cudaStreamQuery")
        return app->stream_query(reinterpret_cast<void *>(f.get<std::uint64_t>()));
    if (name == "cudaDeviceSynchronize")
        return app->ctx_synchronize();
    if (name == "cudaEventRecord") {
        auto *event = reinterpret_cast<void *>(f.get<std::uint64_t>());
        return app->event_record(event, reinterpret_cast<void *>(f.get<std::uint64_t>()));
    }
    if (name == "cudaEventQuery")
        return app->event_query(reinterpret_cast<void *>(f.get<std::uint64_t>()));
    if (name == "cudaEventSynchronize")
        return app->event_synchronize(reinterpret_cast<void *>(f.get<std::uint64_t>()));
    if (name == "cudaEventDestroy")
        return app->event_destroy(reinterpret_cast<void *>(f.get<std::uint64_t>()));
    if (name == "cudaStreamWaitEvent") {
        auto *stream = reinterpret_cast<void *>(f.get<std::uint64_t>());
        return app->stream_wait_event(stream, reinterpret_cast<void *>(f.get<std::uint64_t>()), 0);
    }
    if (name == "cudaEventCreate" || name == "cudaEventCreateWithFlags") {
        void *event = nullptr;
        int rc = app->event_create(&event, name == "cudaEventCreate" ? 0 : f.get<unsigned>());
        return rc ? rc : f.answer(&event, 8);
    }
    if (name == "cudaGetLastError")
        return runtime().get_last_error ? runtime().get_last_error() : 0;
    if (name == "cudaPeekAtLastError")
        return 0;                     // none of these handlers leaves one
    if (name == "cudaLaunchKernel") { // fills memory; its stream is where GVirtuS has it
        f.at = 40;
        handled++;
        auto stream = f.get<std::uint64_t>();
        f.get<std::uint64_t>();
        auto to = f.get<std::uint64_t>(), from = f.get<std::uint64_t>();
        return app->copy_async(to, from, f.get<std::uint64_t>(), reinterpret_cast<void *>(stream));
    }
    if (name == "cudaGetDevice") {
        f.out.i32(*current);
        return 0;
    }
    if (name == "cudaGetDeviceCount") {
        const std::int32_t count = 2;
        return f.answer(&count, sizeof(count));
    }
    if (name == "cudaDeviceGetAttribute") { // 33: the PCI bus; 75: the compute capability, 8 and 9
        f.get<std::uint64_t>();
        f.get<std::int32_t>();
        const auto attribute = f.get<std::int32_t>(), device = f.get<std::int32_t>();
        const std::int32_t value = attribute == 33 ? device + 3 : attribute == 75 ? device + 8 : 0;
        return device == 0 || device == 1 ? f.answer(&value, sizeof(value)) : 101;
    }
    if (name == "cudaDeviceCanAccessPeer") {
        f.get<std::uint64_t>();
        f.get<std::int32_t>();
        const auto device = f.get<std::int32_t>();
        const std::int32_t can = device != f.get<std::int32_t>();
        return f.answer(&can, sizeof(can));
    }
    if (name == "cudaDeviceEnablePeerAccess") {
        const auto peer = f.get<std::int32_t>();
        return runtime().enable_peer(peer, f.get<unsigned>());
    }
    if (name == "cudaDeviceDisablePeerAccess")
        return runtime().disable_peer(f.get<std::int32_t>());
    if (name == "cudaDeviceReset")
        return app->primary_reset(*current);
    static thread_local unsigned pushed;
    if (name == "cudaPushCallConfiguration") {
        pushed++;
        return 0;
    }
    if (name == "cudaPopCallConfiguration") {
        const bool none = pushed == 0;
        pushed -= none ? 0 : 1;
        return none ? 52 : 0;
    }
    if (name == "cudaHostRegister") {
        const auto key = f.get<std::uint64_t>(), n = f.get<std::uint64_t>();
        void *memory = std::malloc(n);
        host_registered[key] = memory;
        return app->host_register(memory, n, f.get<unsigned>());
    }
    if (name == "cudaHostUnregister") {
        const auto entry = host_registered.find(f.get<std::uint64_t>());
        if (entry == host_registered.end())
            return 713;
        const int rc = app->host_unregister(entry->second);
        std::free(entry->second);
        host_registered.erase(entry);
        return rc;
    }
    if (name == "cuMemUnmap") {
        const auto at = f.get<std::uint64_t>();
        return app->mem_unmap(at, f.get<std::uint64_t>());
    }
    if (name == "cuMemCreate") {
        unsigned long long handle = 0;
        const auto bytes = f.get<std::uint64_t>();
        const std::int32_t of_device[8] = {1, 0, 1, 0};
        const int rc = app->mem_create(&handle, bytes, of_device, 0);
        return rc ? rc : f.answer(&handle, sizeof(handle));
    }
    if (name == "cuMemFree")
        return app->mem_free(f.get<std::uint64_t>());
    if (name == "cudaFree") {
        const int rc = app->mem_free(f.get<std::uint64_t>());
        if (rc && runtime().fail)
            runtime().fail(rc);
        return rc;
    }
    if (name == "cudaMalloc") {
        std::uint64_t device = 0;
        int rc = app->mem_alloc(&device, f.get<std::uint64_t>());
        f.out.u64(device);
        return rc;
    }
    if (name == "cudaMallocArray") { // its handle lies inside of memory
        std::uint64_t device = 0;
        int rc = app->mem_alloc(&device, 4096);
        f.out.u64(device + 64);
        return rc;
    }
    if (name == "cudaFreeArray") {
        auto array = f.get<std::uint64_t>();
        return array ? app->mem_free(array - 64) : 0;
    }
    if (name == "cudaMallocPitch") {
        std::uint64_t device = 0;
        f.get<std::uint64_t>();
        std::uint64_t pitch = (f.get<std::uint64_t>() + 511) / 512 * 512;
        const auto rows = f.get<std::uint64_t>(); // for 0 rows the runtime returns NULL
        int rc = rows ? app->mem_alloc(&device, pitch * rows) : 0;
        f.out.u64(device).u64(pitch);
        return rc;
    }
    if (name == "cudaMemset") {
        auto device = f.get<std::uint64_t>();
        auto fill = static_cast<char>(f.get<std::int32_t>());
        std::vector<char> bytes(f.get<std::uint64_t>(), fill);
        return app->to_device(device, bytes.data(), bytes.size());
    }
    if (name == "cudaStreamCreate" || name == "cudaStreamCreateWithFlags") {
        void *stream = nullptr;
        int rc = app->stream_create(&stream, f.get<unsigned>());
        return rc ? rc : f.answer(&stream, 8);
    }
    if (name == "cuStreamCreate") {
        if (f.get<std::uint64_t>()) {
            together++;
            while (together % 2)
                usleep(100);
        }
        const std::uint64_t stream = 0x100000 + 16 * bare++;
        return f.answer(&stream, 8);
    }
    if (name == "cuStreamDestroy")
        return 0;
    if (name == "cuCtxCreate" || name == "cudaIpcOpenMemHandle") {
        const std::uint64_t any = 0x200000;
        return f.answer(&any, 8);
    }
    return -1;
}

} // namespace

void cuda_back_end_child(std::shared_ptr<Communicator> listening, bool timed)
{
    runtime(); // as part of a plugin, before there are clients
    serve_clients(
        listening,
        []() -> Handler {
            if (std::getenv("IBX_TEST_PLUGINS")) // GVirtuS loads all of its plugins then
                runtime();
            return [device = -1](const std::string &name, const std::vector<char> &in,
                                 Body *out) mutable {
                Frame frame{in, *out};
                return execute(name, frame, &device);
            };
        },
        timed);
}
