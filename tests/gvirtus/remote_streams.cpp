// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote_calls.h"
#include "tests/gvirtus/remote_runtime.h"

#include <unistd.h>

namespace
{

std::atomic<std::uint64_t> bare;        // streams that are nothing but a handle
std::atomic<unsigned> together;         // ... that are made while another one is
std::atomic<void *> by_driver{nullptr}; // the stream that the driver's double captures

int capture_begins_or_ends(Frame &f)
{
    auto *stream = f.pointer();
    void *graph = nullptr;
    if (!stream || !runtime().begin_capture)
        return stream ? 0 : 1; // as if every stream but NULL were captured
    if (f.name == "cudaStreamBeginCapture") {
        const auto mode = f.get<std::int32_t>();
        by_driver = mode == 2 ? stream : by_driver.load(); // relaxed
        return mode == 2 ? f.app->begin_capture(stream, 2) : runtime().begin_capture(stream, mode);
    }
    const bool of_driver = by_driver == stream;
    by_driver = of_driver ? nullptr : by_driver.load();
    const int rc =
        of_driver ? f.app->end_capture(stream, &graph) : runtime().end_capture(stream, &graph);
    if (rc && of_driver)
        runtime().fail(rc); // as the runtime, which makes it the last error
    if (!rc)
        f.out.u64(reinterpret_cast<std::uint64_t>(graph));
    return rc;
}

int exchange_capture_mode(Frame &f)
{
    auto mode = f.get<std::int32_t>();
    const int rc = f.app->exchange_mode(&mode);
    f.out.i32(mode);
    return rc;
}

int event_create(Frame &f)
{
    void *event = nullptr;
    int rc = f.app->event_create(&event, f.name == "cudaEventCreate" ? 0 : f.get<unsigned>());
    return rc ? rc : f.answer(&event, 8);
}

int stream_create(Frame &f)
{
    void *stream = nullptr;
    int rc = f.app->stream_create(&stream, f.get<unsigned>());
    return rc ? rc : f.answer(&stream, 8);
}

} // namespace

const Calls stream_calls = {
    {"cudaStreamCreate", stream_create},
    {"cudaStreamCreateWithFlags", stream_create},
    {"cudaStreamDestroy",
     [](Frame &f) -> int {
         auto *stream = f.pointer();
         void *graph = nullptr, *captured = stream;
         if (stream && by_driver.compare_exchange_strong(captured, nullptr))
             f.app->end_capture(stream, &graph);
         else if (runtime().stream_destroyed)
             runtime().stream_destroyed(stream);
         return f.app->stream_destroy(stream);
     }},
    {"cuStreamCreate",
     [](Frame &f) -> int {
         if (f.get<std::uint64_t>()) {
             together++;
             while (together % 2)
                 usleep(100);
         }
         const std::uint64_t stream = 0x100000 + 16 * bare++;
         return f.answer(&stream, 8);
     }},
    {"cuStreamDestroy", [](Frame &) { return 0; }},
    {"cudaStreamSynchronize",
     [](Frame &f) -> int { return f.app->stream_synchronize(f.pointer()); }},
    {"cudaThreadExchangeStreamCaptureMode", exchange_capture_mode},
    {"cudaStreamQuery", [](Frame &f) -> int { return f.app->stream_query(f.pointer()); }},
    {"cudaStreamWaitEvent",
     [](Frame &f) -> int {
         auto *stream = f.pointer();
         return f.app->stream_wait_event(stream, f.pointer(), 0);
     }},
    {"cudaEventCreate", event_create},
    {"cudaEventCreateWithFlags", event_create},
    {"cudaEventRecord",
     [](Frame &f) -> int {
         auto *event = f.pointer();
         return f.app->event_record(event, f.pointer());
     }},
    {"cudaEventQuery", [](Frame &f) -> int { return f.app->event_query(f.pointer()); }},
    {"cudaEventSynchronize", [](Frame &f) -> int { return f.app->event_synchronize(f.pointer()); }},
    {"cudaEventDestroy", [](Frame &f) -> int { return f.app->event_destroy(f.pointer()); }},
};

const Calls graph_calls = {
    {"cudaStreamBeginCapture", capture_begins_or_ends},
    {"cudaStreamEndCapture", capture_begins_or_ends},
    {"cudaGraphInstantiate",
     [](Frame &f) -> int {
         auto *graph = f.pointer();
         void *exec = nullptr;
         const int rc = graph ? runtime().graph_instantiate(&exec, graph, 0) : 1;
         if (!rc)
             f.out.u64(reinterpret_cast<std::uint64_t>(exec));
         return rc;
     }},
    {"cudaGraphLaunch",
     [](Frame &f) -> int {
         auto *exec = f.pointer();
         if (!exec)
             return 1;
         return runtime().graph_launch(exec, f.pointer());
     }},
    {"cudaGraphDestroy",
     [](Frame &f) -> int {
         auto *graph = f.pointer();
         return graph ? runtime().graph_destroy(graph) : 1;
     }},
    // Fills memory; its stream is where GVirtuS has it.
    {"cudaLaunchKernel",
     [](Frame &f) -> int {
         work.met += work.registering != 0;
         f.at = 40;
         work.handled++;
         auto stream = f.get<std::uint64_t>();
         f.get<std::uint64_t>();
         auto to = f.get<std::uint64_t>(), from = f.get<std::uint64_t>();
         return f.app->copy_async(to, from, f.get<std::uint64_t>(),
                                  reinterpret_cast<void *>(stream));
     }},
};
