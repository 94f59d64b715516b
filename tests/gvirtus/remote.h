// SPDX-License-Identifier: LGPL-2.1-or-later
//
// For tests, the part of GVirtuS's CUDA that copies need: the frames of its front end, and a back
// end whose handlers use the library that IBX_LIBCUDA names.
#ifndef TESTS_CUDA_REMOTE_H
#define TESTS_CUDA_REMOTE_H

#include "tests/doubles/gvirtus/gvirtus.h"
#include "tests/doubles/cuda/driver.h"

#include <cstring>

// The front end of one connection.
class Remote : public FrontEnd
{
  public:
    using FrontEnd::FrontEnd;

    std::uint64_t malloc(std::size_t n) { return address("cudaMalloc", Body().u64(n)); }
    // Makes a call whose reply is an address, perhaps with a pitch. Returns the address; 0: the
    // call has failed.
    std::uint64_t address(const char *name, const Body &body)
    {
        std::uint64_t got = 0;
        if (!call(name, body) && out.size() >= sizeof(got))
            std::memcpy(&got, out.data(), sizeof(got));
        return got;
    }
    int free(std::uint64_t device) { return call("cudaFree", Body().u64(device)); }
    int set_device(std::int32_t device) { return call("cudaSetDevice", Body().i32(device)); }
    int reset() { return call("cudaDeviceReset", Body()); }
    std::uint64_t stream_create() { return value("cudaStreamCreate", Body()); }
    std::uint64_t stream_create(unsigned flags)
    {
        Body body;
        body.put(flags);
        return value("cudaStreamCreateWithFlags", body);
    }
    // By the driver API: only a handle, and any number of them. together: it returns once another
    // client's call has begun.
    std::uint64_t bare_stream_create(bool together = false)
    {
        return value("cuStreamCreate", Body().u64(together));
    }
    std::uint64_t event_create() { return value("cudaEventCreate", Body()); }
    int stream_synchronize(std::uint64_t on)
    {
        return call("cudaStreamSynchronize", Body().u64(on));
    }
    int stream_query(std::uint64_t on) { return call("cudaStreamQuery", Body().u64(on)); }
    int device_synchronize() { return call("cudaDeviceSynchronize", Body()); }
    int get_last_error() { return call("cudaGetLastError", Body()); }
    int on_device(std::uint64_t to, std::uint64_t from, std::size_t n)
    {
        return call("cudaMemcpy", Body().u64(to).u64(from).u64(n).i32(D2D));
    }
    int to_device_async(std::uint64_t to, const void *from, std::size_t n, std::uint64_t on)
    {
        return call("cudaMemcpyAsync", Body().u64(to).host(from, n).u64(n).i32(H2D).u64(on));
    }
    int from_device_async(void *to, std::uint64_t from, std::size_t n, std::uint64_t on)
    {
        Body body;
        body.host("", 1).u64(from).u64(n).i32(D2H).u64(on);
        return take_out(call("cudaMemcpyAsync", body), to, n);
    }
    int on_device_async(std::uint64_t to, std::uint64_t from, std::size_t n, std::uint64_t on)
    {
        return call("cudaMemcpyAsync", Body().u64(to).u64(from).u64(n).i32(D2D).u64(on));
    }
    // Copies to a variable that the client has at `symbol`.
    int to_symbol(std::uint64_t symbol, const void *from, std::size_t n, std::size_t offset);

    // A stream that a library makes, which the plugin does not see; for testCopy.
    std::uint64_t library_stream() { return value("testStream", Body()); }

    // The rest are not CUDA calls. Only this back end has them, and the plugin does not know them.
    // It takes their names for calls of the runtime, which have no streams of their own.
    bool peek(std::uint64_t device, void *to, std::size_t n)
    {
        return take_out(call("cudaTestPeek", Body().u64(device).u64(n)), to, n) == 0;
    }
    // Copies that the handlers have run, of all connections.
    std::uint64_t handled() { return value("cudaTestHandled", Body(), ~0ull); }
    // Handles of doubles of cuBLAS and other libraries that have not been destroyed.
    std::uint64_t library_handles() { return value("cudaTestLibraryHandles", Body(), ~0ull); }
    // Calls of the runtime, of all connections: the handlers make none but cudaGetLastError.
    std::uint64_t runtime_calls() { return value("cudaTestRuntimeCalls", Body(), ~0ull); }
    // As __cudaRegisterVar: says where the variable is from now on. The runtime knows it by `name`,
    // as if the handler had registered it under an address of its own; name 0: by the client's
    // address. False: there is no double of the runtime.
    bool register_var(std::uint64_t symbol, std::uint64_t device, std::size_t n,
                      std::uint64_t name = 0)
    {
        Body body;
        body.u64(symbol).u64(device).u64(n).u64(name ? name : symbol);
        return call("cudaTestRegisterVar", body) == 0;
    }
    // Sets the runtime's last error.
    void fail(int code) { call("cudaTestFail", Body().i32(code)); }
    // A back end that does not answer has no count of anything: all bits are set.
    ibx_double_stats stats()
    {
        ibx_double_stats stats;
        std::memset(&stats, 0xff, sizeof(stats));
        take_out(call("cudaTestStats", Body()), &stats, sizeof(stats));
        return stats;
    }
    void inject(const char *function, unsigned in, int code, bool sticky)
    {
        std::string name = function;
        call("cudaTestInject",
             Body().u64(in).i32(code).i32(sticky).host(name.c_str(), name.size() + 1));
    }
    // As if a kernel had printed that.
    void print(const std::string &text)
    {
        call("cudaTestPrint", Body().host(text.c_str(), text.size() + 1));
    }
    // gate(): whether cudaUnregisterFatBinary and cudaMemcpyFromSymbol stay in their handlers.
    // inside(): whether one is there.
    void gate(bool shut) { call("cudaTestGate", Body().u64(shut)); }
    // The capture mode of the handlers' thread.
    std::uint64_t mode() { return value("cudaTestMode", Body(), ~0ull); }
    // How often a handler ran at the same time as one of registrations.
    std::uint64_t met() { return value("cudaTestMet", Body(), ~0ull); }
    // Registrations whose handlers have returned.
    std::uint64_t registered() { return value("cudaTestRegistered", Body()); }
    bool inside() { return value("cudaTestInside", Body()) == 1; }
    void capture(std::uint64_t stream) { call("cudaTestCapture", Body().u64(stream)); } // 0: none
    void hold(bool held) { call("cudaTestHold", Body().u64(held)); }
    void hold_linker(bool held) { call("cudaTestHoldLinker", Body().u64(held)); }
    // Work of this stream alone does not run; 0: all does.
    void hold_stream(std::uint64_t stream) { call("cudaTestHoldStream", Body().u64(stream)); }
    // By its name, it gives the device no work, and so waits for no managed memory.
    void release_stream(std::uint64_t stream) { call("cudaStreamTestRelease", Body().u64(stream)); }
    // Whether the next work of this stream, which it has been given, waits for other work.
    bool stream_waits(std::uint64_t stream)
    {
        return value("cudaStreamTestWaits", Body().u64(stream)) == 1;
    }
    // The back end's thread has no context, as before its first call on a device.
    bool lose_context() { return !call("cudaTestNoContext", Body()); }
    // False: this is a real driver, to which nothing can be injected.
    bool slow(unsigned microseconds) { return call("cudaTestSlow", Body().u64(microseconds)) == 0; }
};

// The back end's forked child, as back_end_child() but with CUDA. Never returns.
[[noreturn]] void cuda_back_end_child(std::shared_ptr<Communicator> listening, bool timed);

#endif
