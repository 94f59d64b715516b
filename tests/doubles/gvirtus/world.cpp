// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/doubles/gvirtus/world.h"

#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/math_calls.h"

#include <climits>
#include <cstdlib>
#include <cstring>
#include <linux/futex.h>
#include <map>
#include <new>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

World *world_create()
{
    void *memory =
        mmap(nullptr, sizeof(World), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        std::abort();
    auto *world = new (memory) World{};
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&world->lock, &shared);
    world_clear(world);
    return world;
}

void world_destroy(World *world)
{
    munmap(world, sizeof(*world));
}

void world_clear(World *world)
{
    std::memset(world->work, 0, sizeof(world->work));
    std::memset(world->events, 0, sizeof(world->events));
    std::memset(world->allocated, 0, sizeof(world->allocated));
    std::memset(world->destroyed, 0, sizeof(world->destroyed));
    std::memset(world->libraries, 0, sizeof(world->libraries));
    world->libraries[0] = {true, 100};
    for (WorldCapture &capture : world->captures)
        capture = {};
    std::memset(world->captured, 0, sizeof(world->captured));
    for (WorldCapturedEvent &event : world->captured_events)
        event = {};
    for (WorldGraph &graph : world->graphs)
        graph = {};
    for (WorldGraph &exec : world->execs)
        exec = {};
}

bool world_captures(const World *world)
{
    for (const WorldCapture &capture : world->captures)
        if (capture.number)
            return true;
    return false;
}

Body world_configuration(unsigned threads, std::uint64_t stream, unsigned blocks)
{
    Body body;
    for (unsigned n : {blocks, 1u, 1u, threads, 1u, 1u})
        body.put(n);
    return body.u64(0).u64(stream);
}

Body world_launch(std::uint64_t function, unsigned threads, std::uint64_t stream,
                  std::uint64_t value, unsigned blocks)
{
    Body body, configuration = world_configuration(threads, stream, blocks);
    body.u64(function);
    append(&body.bytes, configuration.bytes.data(), configuration.bytes.size());
    return body.host(&value, sizeof(value));
}

namespace
{

template <typename T> T get(const std::vector<char> &in, std::size_t at)
{
    T value{};
    if (at + sizeof(T) <= in.size())
        std::memcpy(&value, in.data() + at, sizeof(T));
    return value;
}

std::uint64_t number(const std::vector<char> &in, std::size_t at)
{
    return get<std::uint64_t>(in, at);
}

constexpr int INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_CONFIGURATION = 9, INVALID_FUNCTION = 98,
              INVALID_DEVICE = 101, INVALID_CLUSTER = 912, NO_KERNEL_IMAGE = 209,
              INVALID_HANDLE = 400, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
              CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905,
              CAPTURE_IMPLICIT = 906, CAPTURE_WRONG_THREAD = 908, CAPTURE_IS_RELAXED = 2,
              CAPTURED_EVENT = 907;

bool is_stream(std::uint64_t stream)
{
    return stream >= 100 && stream < 100 + WORLD_STREAMS;
}

// The capture that a stream is in.
WorldCapture *capture_of(World *world, std::uint64_t stream)
{
    for (WorldCapture &capture : world->captures)
        if (is_stream(stream) && capture.number && capture.number == world->captured[stream - 100])
            return &capture;
    return nullptr;
}

int take_into(World *world, WorldCapture *capture, std::uint64_t stream, std::uint64_t value)
{
    if (capture->invalid || capture->graph.count == WORLD_CAPTURED)
        return CAPTURE_INVALIDATED;
    capture->graph.values[capture->graph.count++] = value;
    world->calls[stream - 100]++;
    world->ahead[stream - 100]++;
    return 0;
}

// Adds work to a stream. 0 is the legacy stream, which is ordered with all others.
int enqueue(World *world, std::uint64_t stream, std::uint64_t value)
{
    if (!stream && world_captures(world)) {
        for (WorldCapture &capture : world->captures)
            capture.invalid = capture.number;
        return CAPTURE_IMPLICIT;
    }
    if (stream == WORLD_THREAD_STREAM)
        return 0;
    if (stream && !is_stream(stream))
        return INVALID_HANDLE;
    if (WorldCapture *capture = capture_of(world, stream))
        return take_into(world, capture, stream, value);
    for (unsigned i = 0; i < WORLD_STREAMS; i++) {
        if (stream ? stream == 100 + i : i != WORLD_NON_BLOCKING)
            world->work[i] = world->work[i] * 6364136223846793005u + value + 1;
    }
    return 0;
}

int launch(World *world, const WorldThread *thread, const std::vector<char> &in)
{
    const auto threads = get<unsigned>(in, 20), blocks = get<unsigned>(in, 8);
    if (world->fails_in && --world->fails_in == 0)
        return world->fails_with;
    if (!blocks || !threads || threads > 1024)
        return INVALID_CONFIGURATION;
    if (number(in, 0) >= KERNEL_UNKNOWN)
        return INVALID_FUNCTION;
    if (number(in, 0) == KERNEL_OF_DEVICE_0 && thread->device)
        return NO_KERNEL_IMAGE;
    if (number(in, 0) == KERNEL_OF_CLUSTERS && blocks % 3)
        return INVALID_CLUSTER;
    world->launches++;
    return enqueue(world, number(in, 40), number(in, 56));
}

// Returns an event that was destroyed. 0 is never an event that was made.
int event_create(World *world, Body *out)
{
    for (std::uint64_t i = 1; i < WORLD_EVENTS; i++) {
        if (!world->destroyed[i])
            continue;
        world->destroyed[i] = false;
        world->captured_events[i] = {};
        world->events[i] = 0;
        return out->u64(8).u64(i), 0;
    }
    return NO_MEMORY;
}

int event_record(World *world, std::uint64_t event, std::uint64_t stream)
{
    if (event >= WORLD_EVENTS || world->destroyed[event] || (stream && !is_stream(stream)))
        return INVALID_HANDLE;
    if (!stream && world_captures(world))
        return enqueue(world, stream, 0);
    if (!stream) {
        world->captured_events[event] = {};
        world->events[event] = world->work[0] ^ world->work[1] ^ world->work[2];
        return 0;
    }
    const WorldCapture *capture = capture_of(world, stream);
    if (capture && capture->invalid)
        return CAPTURE_INVALIDATED;
    const unsigned i = static_cast<unsigned>(stream - 100);
    world->captured_events[event] = {world->captured[i], i, world->calls[i]};
    world->events[event] = world->work[i];
    return 0;
}

// A stream joins the capture in which the event was recorded, or comes back to it.
int wait_in_capture(World *world, std::uint64_t stream, const WorldCapturedEvent &event)
{
    WorldCapture *capture = capture_of(world, stream);
    WorldCapture *of = capture_of(world, event.stream + 100);
    if (of && of->number != event.capture)
        of = nullptr;
    if (capture && capture->invalid)
        return CAPTURE_INVALIDATED;
    if (capture && of != capture) {
        capture->invalid = true;
        return CAPTURE_ISOLATION;
    }
    if (!of)
        return CAPTURED_EVENT;
    if (of->invalid)
        return CAPTURE_INVALIDATED;
    const std::uint64_t i = stream - 100;
    if (!capture) {
        world->captured[i] = of->number;
        world->calls[i] = 0;
    }
    world->ahead[i]++;
    if (of == &world->captures[i] && world->calls[event.stream] == event.after)
        world->ahead[event.stream] = 0;
    return 0;
}

int stream_wait_event(World *world, std::uint64_t stream, std::uint64_t event)
{
    if (event >= WORLD_EVENTS || world->destroyed[event])
        return INVALID_HANDLE;
    const WorldCapturedEvent &captured = world->captured_events[event];
    if (is_stream(stream) && (captured.capture || capture_of(world, stream)))
        return wait_in_capture(world, stream, captured);
    return captured.capture ? CAPTURED_EVENT : enqueue(world, stream, world->events[event]);
}

// What a payload adds to a stream's number.
std::uint64_t digest(const char *from, std::size_t n)
{
    std::uint64_t all = 0xcbf29ce484222325u;
    for (std::size_t i = 0; i < n; i++)
        all = (all ^ static_cast<unsigned char>(from[i])) * 0x100000001b3u;
    return all;
}

// Makes `n` bytes of a stream's number; the first eight are the number.
std::vector<char> as_bytes(std::uint64_t number, std::size_t n)
{
    std::vector<char> bytes((n + 7) / 8 * 8);
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
        std::memcpy(bytes.data() + at, &number, 8);
        number = number * 6364136223846793005u + 1442695040888963407u;
    }
    bytes.resize(n);
    return bytes;
}

// What a copy to the device may name: a stream's number, or bytes of one allocation.
bool is_memory(const World *world, std::uint64_t at, std::uint64_t n)
{
    const std::uint64_t i = at / WORLD_BLOCK - 1, into = at % WORLD_BLOCK;
    return (at && at < WORLD_STREAMS) || // the back end names NULL in place of others' memory
           (i < WORLD_BLOCKS && world->allocated[i] && n <= WORLD_BLOCK - into);
}

int copy(World *world, const std::vector<char> &in, std::size_t behind, Body *out)
{
    const auto kind = get<std::int32_t>(in, in.size() - behind - 4);
    const std::uint64_t stream = behind ? number(in, in.size() - 8) : 0;
    const std::uint64_t at = number(in, kind == D2H ? 9 : 0);
    if (kind == D2H) {
        const std::uint64_t n = number(in, 17);
        if (at >= WORLD_STREAMS || n > WORLD_COPY_MAX)
            return INVALID_VALUE;
        const std::vector<char> bytes = as_bytes(world->work[at], n);
        return out->host(bytes.data(), bytes.size()), 0;
    }
    const std::uint64_t n = number(in, 8);
    if (n > in.size() || in.size() - n < 16 || !is_memory(world, at, n))
        return INVALID_VALUE;
    return enqueue(world, stream, digest(in.data() + 16, n));
}

int pop(WorldThread *thread, Body *out)
{
    if (thread->configurations.empty())
        return INVALID_CONFIGURATION;
    const std::vector<char> &top = thread->configurations.back();
    append(&out->bytes, top.data(), top.size());
    thread->configurations.pop_back();
    return 0;
}

int begin_capture(World *world, const WorldThread *thread, const std::vector<char> &in)
{
    const std::uint64_t stream = number(in, 0);
    if (stream == WORLD_THREAD_STREAM) // of any thread: its number is not kept
        return 0;
    if (!is_stream(stream) || capture_of(world, stream))
        return INVALID_VALUE;
    const std::uint64_t i = stream - 100;
    const void *by = get<std::int32_t>(in, 8) == CAPTURE_IS_RELAXED ? nullptr : thread;
    world->captures[i] = {++world->captures_begun, false, by, {}};
    world->captured[i] = world->captures_begun;
    world->calls[i] = world->ahead[i] = 0;
    return 0;
}

// The index of an unused graph or executable graph; WORLD_GRAPHS: there is none.
unsigned free_graph(const WorldGraph *graphs)
{
    unsigned i = 0;
    while (i < WORLD_GRAPHS && graphs[i].used)
        i++;
    return i;
}

void destroy_stream(World *world, std::uint64_t stream)
{
    if (!is_stream(stream))
        return;
    WorldCapture *capture = &world->captures[stream - 100];
    for (std::uint64_t &number : world->captured)
        number = number == capture->number ? 0 : number;
    *capture = {};
}

int end_capture(World *world, const WorldThread *thread, std::uint64_t stream, Body *out)
{
    if (stream == WORLD_THREAD_STREAM)
        return 0;
    if (!is_stream(stream) || !capture_of(world, stream))
        return INVALID_VALUE;
    WorldCapture *capture = &world->captures[stream - 100];
    if (capture != capture_of(world, stream))
        return CAPTURE_UNMATCHED;
    int rc = capture->by && capture->by != thread ? CAPTURE_WRONG_THREAD
             : capture->invalid                   ? CAPTURE_INVALIDATED
                                                  : 0;
    for (unsigned i = 0; i < WORLD_STREAMS; i++) {
        if (world->captured[i] != capture->number)
            continue;
        if (!rc && i != stream - 100 && world->ahead[i])
            rc = CAPTURE_UNJOINED;
        world->captured[i] = 0;
    }
    const unsigned at = free_graph(world->graphs);
    if (!rc && at == WORLD_GRAPHS)
        rc = NO_MEMORY;
    if (!rc) {
        world->graphs[at] = capture->graph;
        world->graphs[at].used = true;
        out->u64(WORLD_GRAPH + at);
    }
    *capture = {};
    return rc;
}

WorldGraph *graph_of(WorldGraph *graphs, std::uint64_t first, std::uint64_t handle)
{
    return handle >= first && handle < first + WORLD_GRAPHS && graphs[handle - first].used
               ? &graphs[handle - first]
               : nullptr;
}

int instantiate(World *world, std::uint64_t handle, Body *out)
{
    const WorldGraph *graph = graph_of(world->graphs, WORLD_GRAPH, handle);
    const unsigned at = free_graph(world->execs);
    if (!graph || at == WORLD_GRAPHS)
        return graph ? NO_MEMORY : INVALID_VALUE;
    world->execs[at] = *graph;
    return out->u64(WORLD_EXEC + at), 0;
}

int destroy_graph(WorldGraph *graph)
{
    if (!graph)
        return INVALID_VALUE;
    *graph = {};
    return 0;
}

int graph_launch(World *world, std::uint64_t handle, std::uint64_t stream)
{
    const WorldGraph *exec = graph_of(world->execs, WORLD_EXEC, handle);
    int rc = 0;
    if (handle < WORLD_EVENTS)
        return enqueue(world, stream, handle);
    if (!exec)
        return INVALID_VALUE;
    for (unsigned i = 0; i < exec->count && !rc; i++)
        rc = enqueue(world, stream, exec->values[i]);
    return rc;
}

// A wait for a stream, or a question about one, breaks its capture.
int ask_stream(World *world, std::uint64_t stream)
{
    WorldCapture *capture = capture_of(world, stream);
    if (!capture)
        return 0;
    const int rc = capture->invalid ? CAPTURE_INVALIDATED : CAPTURE_UNSUPPORTED;
    capture->invalid = true;
    return rc;
}

int ask_event(World *world, std::uint64_t event)
{
    return event < WORLD_EVENTS && world->captured_events[event].capture ? CAPTURED_EVENT : 0;
}

int allocate(World *world, Body *out)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        if (world->allocated[i])
            continue;
        world->allocated[i] = true;
        out->u64((i + 1) * WORLD_BLOCK);
        return 0;
    }
    return NO_MEMORY;
}

int give_back(World *world, std::uint64_t address)
{
    const std::uint64_t i = address / WORLD_BLOCK - 1;
    if (address && (address % WORLD_BLOCK || i >= WORLD_BLOCKS || !world->allocated[i]))
        return INVALID_VALUE;
    if (address)
        world->allocated[i] = false;
    return 0;
}

// Requests of the preload: cudaFreeAsync; and those for events that processes share, which do
// nothing here.
int extra(World *world, int request, const std::vector<char> &in)
{
    if (request == IBX_EXT_FREE_ASYNC)
        return give_back(world, number(in, 2));
    return request == IBX_EXT_IPC_EVENT || request == IBX_EXT_IPC_OPEN_EVENT ? 0 : -1;
}

// The call of GVirtuS that stands for an extension request. It has the same body.
std::string name_of(const std::string &name)
{
    static const std::map<std::string, std::string> names = {
        {IBX_MATH_ADDS, "cublasSgemm_v2"},        {IBX_MATH_ADDS_IN, "cublasLtMatmul"},
        {IBX_MATH_SELECTS, "cublasSetStream_v2"}, {IBX_MATH_SETS_UP, "cublasSetMathMode"},
        {IBX_MATH_WAITS, "cublasDdot_v2"},
    };
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
}

bool is_of_library(const std::string &name)
{
    return name.compare(0, 6, "cublas") == 0 || name.compare(0, 5, "cufft") == 0 ||
           name_of(name) != name;
}

// Work is a value that is added to the handle's stream. If that fails, the library returns a status
// of its own, and it is not an error of CUDA. cuFFT's handler returns an address, too.
int library(World *world, const std::string &name, const std::vector<char> &in, Body *out)
{
    const bool first = name == "cublasCreate_v2" && in.empty();
    const std::uint64_t handle = first ? 1 : number(in, 0);
    if (first)
        out->u64(handle);
    if (!handle || handle > WORLD_LIBRARIES)
        return LIBRARY_INVALID_VALUE;
    WorldLibrary *of = &world->libraries[handle - 1];
    if (name == "cublasCreate_v2")
        return *of = {true, 0}, 0;
    if (!of->made)
        return LIBRARY_NOT_INITIALIZED;
    if (name == "cublasDestroy_v2")
        return of->made = false, 0;
    if (const int status = world->library_fails.exchange(0))
        return status;
    if (name == "cublasSetStream_v2")
        return of->stream = number(in, 8), 0;
    if (name == "cublasSetMathMode")
        return 0;
    const std::uint64_t value = number(in, 8);
    const bool names = name == "cublasLtMatmul" && in.size() >= 24; // its stream comes last
    if (world->fatal || enqueue(world, names ? number(in, in.size() - 8) : of->stream, value))
        return LIBRARY_FAILED;
    if (name == "cufftExecC2C")
        out->u64(value);
    if (name == "cublasDdot_v2") // the result, after all work so far
        out->u64(world->work[of->stream ? of->stream - 100 : 0]);
    return 0;
}

bool enqueues(const std::string &name, const std::vector<char> &in)
{
    if (is_of_library(name))
        return true;
    if (name == "cudaMemcpy")
        return in.size() >= 4 && get<std::int32_t>(in, in.size() - 4) == H2D;
    return name == "cudaLaunchKernel" || name == "cudaEventRecord" ||
           name == "cudaStreamWaitEvent" || name == "cudaMemsetAsync" ||
           name == "cudaMemcpyAsync" || name == "cudaFree" || name == "cudaGraphLaunch" ||
           name == IBX_EXT_QUEUE;
}

int execute(World *world, WorldThread *thread, const std::string &name, const std::vector<char> &in,
            Body *out)
{
    if (world->fatal && name != "testHeal")
        return static_cast<int>(world->fatal);
    if (name == "cudaPushCallConfiguration")
        return thread->configurations.push_back(in), 0;
    if (name == "cudaPopCallConfiguration")
        return pop(thread, out);
    if (name == "cudaLaunchKernel")
        return launch(world, thread, in);
    if (name == "cudaEventRecord")
        return event_record(world, number(in, 0), number(in, 8));
    if (name == "cudaStreamWaitEvent")
        return stream_wait_event(world, number(in, 0), number(in, 8));
    if (name == "cudaMemsetAsync")
        return enqueue(world, number(in, 20), number(in, 0));
    if (name == IBX_EXT_QUEUE) // always cudaMemsetAsync
        return get<std::uint16_t>(in, 0) == IBX_EXT_MEMSET
                   ? enqueue(world, number(in, 22), number(in, 2))
                   : -1;
    if (name == "cudaMemcpyAsync")
        return copy(world, in, 8, out);
    if (name == "cudaMemcpy")
        return copy(world, in, 0, out);
    if (name == "cudaStreamBeginCapture")
        return begin_capture(world, thread, in);
    if (name == "cudaStreamEndCapture")
        return end_capture(world, thread, number(in, 0), out);
    if (name == "cudaGraphInstantiate")
        return instantiate(world, number(in, 0), out);
    if (name == "cudaGraphDestroy")
        return destroy_graph(graph_of(world->graphs, WORLD_GRAPH, number(in, 0)));
    if (name == "cudaGraphExecDestroy")
        return destroy_graph(graph_of(world->execs, WORLD_EXEC, number(in, 0)));
    if (name == "cudaStreamSynchronize" || name == "cudaStreamQuery")
        return ask_stream(world, number(in, 0));
    if (name == "cudaEventQuery" || name == "cudaEventSynchronize")
        return ask_event(world, number(in, 0));
    if (name == "cudaSetDevice") {
        const auto device = get<std::int32_t>(in, 0);
        if (device < 0 || device > 1)
            return INVALID_DEVICE;
        thread->device = device;
    }
    if (name == "cudaGraphLaunch")
        return graph_launch(world, number(in, 0), number(in, 8));
    if (name == "cudaMalloc")
        return allocate(world, out);
    if (name == "cudaFree")
        return give_back(world, number(in, 0));
    if (name == IBX_EXT_NAME)
        return extra(world, get<std::uint16_t>(in, 0), in);
    if (name == "cudaGetDevice")
        out->put(thread->device);
    if (name == "cudaEventDestroy" && number(in, 0) < WORLD_EVENTS)
        world->destroyed[number(in, 0)] = true;
    if (name == "cudaStreamDestroy")
        destroy_stream(world, number(in, 0));
    for (unsigned i = 0; name == "cudaDeviceReset" && i < WORLD_STREAMS; i++)
        destroy_stream(world, 100 + i);
    if (name == "cudaEventCreate")
        return event_create(world, out);
    if (name == "cudaDeviceGetStreamPriorityRange") // a different one on each device
        out->i32(-3 - thread->device);
    if (name == "cudaGetDeviceCount")
        out->i32(2);
    if (name == "testBreak")
        world->fatal = number(in, 0);
    if (name == "testHeal")
        world->fatal = 0;
    if (name == "testFail")
        return get<std::int32_t>(in, 0);
    return 0;
}

} // namespace

Gate &Gate::operator=(bool shut)
{
    shut_ = shut;
    if (!shut)
        syscall(SYS_futex, &shut_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return *this;
}

void Gate::pass()
{
    while (shut_)
        syscall(SYS_futex, &shut_, FUTEX_WAIT, 1, nullptr, nullptr, 0);
}

int world_run(World *world, WorldThread *thread, const std::string &name,
              const std::vector<char> &in, Body *out)
{
    world->requests++;
    if (enqueues(name, in))
        world->held.pass();
    if (name == "cudaLaunchKernel" && number(in, 40) == 100 + WORLD_NON_BLOCKING)
        world->full.pass();
    if (world->slow_us)
        usleep(world->slow_us);
    if (name == "cudaGetLastError" || name == "cudaPeekAtLastError") {
        const int code = world->fatal ? static_cast<int>(world->fatal) : thread->last_error;
        thread->last_error = name == "cudaGetLastError" ? 0 : code;
        return code;
    }
    if (name == "cudaLaunchKernel" && world->refuses) // this is not a last error
        return world->refuses;
    pthread_mutex_lock(&world->lock);
    const bool of_library = is_of_library(name);
    const int rc =
        of_library ? library(world, name_of(name), in, out) : execute(world, thread, name, in, out);
    pthread_mutex_unlock(&world->lock);
    if (rc && !of_library)
        thread->last_error = rc;
    if (name == "cudaStreamSynchronize" || name == "cudaEventSynchronize") {
        world->late_now++;
        world->late.pass();
        world->late_now--;
    }
    return rc;
}

void world_back_end(World *world, std::shared_ptr<Communicator> listening, bool timed)
{
    serve_clients(
        listening,
        [world]() -> Handler {
            auto thread = std::make_shared<WorldThread>();
            return
                [world, thread](const std::string &name, const std::vector<char> &in, Body *out) {
                    return world_run(world, thread.get(), name, in, out);
                };
        },
        timed);
}
