// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that CUDA does not have: tests look at the back end by them, and at CUDA's double.
#include "tests/gvirtus/remote_calls.h"
#include "tests/gvirtus/remote_libraries.h"
#include "tests/gvirtus/remote_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace
{

template <typename T> int answer_number(Frame &f, const T &value)
{
    const std::uint64_t number = value;
    return f.answer(&number, sizeof(number));
}

} // namespace

const Calls test_calls = {
    {"cudaTestPeek",
     [](Frame &f) -> int {
         auto device = f.get<std::uint64_t>(), n = f.get<std::uint64_t>();
         std::vector<char> bytes(n);
         bool good = f.app->peek ? f.app->peek(device, bytes.data(), n)
                                 : !f.app->from_device(bytes.data(), device, n);
         return good ? f.answer(bytes.data(), n) : 1;
     }},
    // Of a library, which the plugin does not see; so are the next two.
    {"testMalloc",
     [](Frame &f) -> int {
         std::uint64_t device = 0;
         int rc = f.app->mem_alloc(&device, f.get<std::uint64_t>());
         f.out.u64(device);
         return rc;
     }},
    {"testStream",
     [](Frame &f) -> int {
         void *stream = nullptr;
         int rc = f.app->stream_create(&stream, 1);
         return rc ? rc : f.answer(&stream, 8);
     }},
    // In that stream.
    {"testCopy",
     [](Frame &f) -> int {
         auto *stream = f.pointer();
         auto to = f.get<std::uint64_t>(), from = f.get<std::uint64_t>();
         return f.app->copy_async(to, from, f.get<std::uint64_t>(), stream);
     }},
    // Of a library, in the legacy stream.
    {"testFill",
     [](Frame &f) -> int {
         auto device = f.get<std::uint64_t>();
         const std::vector<char> bytes(f.get<std::uint64_t>(), 'f');
         return f.app->to_device(device, bytes.data(), bytes.size());
     }},
    // A library ends the process.
    {"testExit", [](Frame &f) -> int { std::_Exit(static_cast<int>(f.get<std::uint64_t>())); }},
    {"cudaTestRegisterVar", register_var},
    {"cudaTestRegisterFunction",
     [](Frame &f) -> int { return runtime().register_function(f.pointer()); }},
    {"cudaTestFail", [](Frame &f) -> int { return runtime().fail(f.get<std::int32_t>()); }},
    {"cudaTestSymbolBody", last_symbol_body},
    {"cudaTestRuntimeCalls",
     [](Frame &f) { return answer_number(f, runtime().calls ? runtime().calls() : ~0ull); }},
    {"cudaTestLibraryHandles", [](Frame &f) { return answer_number(f, library_handles()); }},
    {"cudaTestHandled", [](Frame &f) { return answer_number(f, work.handled); }},
    {"cudaTestStats",
     [](Frame &f) -> int {
         ibx_double_stats stats{};
         if (f.app->get_stats)
             f.app->get_stats(&stats);
         return f.answer(&stats, sizeof(stats));
     }},
    {"cudaTestSlow",
     [](Frame &f) -> int {
         if (f.app->slow)
             f.app->slow(static_cast<unsigned>(f.get<std::uint64_t>()));
         return f.app->slow ? 0 : 1;
     }},
    {"cudaTestGate",
     [](Frame &f) -> int {
         work.shut = f.get<std::uint64_t>();
         return 0;
     }},
    // The thread's mode for captures.
    {"cudaTestMode",
     [](Frame &f) -> int {
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
     }},
    {"cudaTestMet", [](Frame &f) { return answer_number(f, work.met); }},
    {"cudaTestRegistered", [](Frame &f) { return answer_number(f, work.registered); }},
    {"cudaTestInside", [](Frame &f) { return answer_number(f, work.inside); }},
    {"cudaTestCapture",
     [](Frame &f) -> int {
         f.app->capture(f.pointer());
         return 0;
     }},
    // As in a thread that has not used a device.
    {"cudaTestNoContext", [](Frame &f) -> int { return f.app->ctx_set_current(nullptr); }},
    {"cudaTestHold",
     [](Frame &f) -> int {
         f.app->hold(f.get<std::uint64_t>());
         return 0;
     }},
    {"cudaTestHoldLinker",
     [](Frame &f) -> int {
         f.app->hold_linker(f.get<std::uint64_t>());
         return 0;
     }},
    {"cudaTestHoldStream",
     [](Frame &f) -> int {
         auto *stream = f.pointer();
         f.app->hold_stream(stream);
         work.endless = stream != nullptr;
         return 0;
     }},
    {"cudaStreamTestRelease",
     [](Frame &f) -> int {
         f.app->release_stream(f.pointer());
         return 0;
     }},
    {"cudaStreamTestWaits",
     [](Frame &f) { return answer_number(f, f.app->stream_waits(f.pointer())); }},
    // Of GVirtuS, not of a kernel.
    {"cudaTestSay",
     [](Frame &) -> int {
         std::puts("said by a handler");
         return 0;
     }},
    {"cudaTestPrint",
     [](Frame &f) -> int {
         std::uint64_t n;
         f.app->print(f.host(&n));
         return 0;
     }},
    {"cudaTestInject",
     [](Frame &f) -> int {
         auto in = static_cast<unsigned>(f.get<std::uint64_t>());
         auto code = f.get<std::int32_t>(), sticky = f.get<std::int32_t>();
         std::uint64_t n;
         const char *function = f.host(&n);
         f.app->inject(in ? function : nullptr, in, code, sticky != 0);
         return 0;
     }},
};
