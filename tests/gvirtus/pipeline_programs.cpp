// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Random programs: each call is also made on a model of a native device.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/pipeline_scene.h"
#include "tests/gvirtus/random_numbers.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

// A call of a program, with the model's answer beside it.
struct Call {
    const char *name;
    Body body;
};

// Handles of graphs: so few that most exist.
std::uint64_t any_graph(Random *random, std::uint64_t first)
{
    return first + random->below(3);
}

// In GVirtuS's frame, or in one of ours.
Call random_set(Random *random, std::uint64_t value, std::uint64_t stream)
{
    if (random->below(2))
        return {"cudaMemsetAsync", Body().u64(value).i32(0).u64(8).u64(stream)};
    Body body;
    body.put(static_cast<std::uint16_t>(IBX_EXT_MEMSET));
    return {IBX_EXT_QUEUE, body.u64(value).i32(0).u64(8).u64(stream)};
}

// A copy to the beginning or the end of an allocation, or past it, sometimes one that does not
// exist.
Call random_copy(Random *random)
{
    static const std::size_t sizes[] = {4, 1900, 1901, 9000, 20000, 65536};
    const std::size_t n = sizes[random->below(random->below(8) ? 4 : 6)];
    const std::uint64_t block = (1 + random->below(WORLD_BLOCKS)) * WORLD_BLOCK;
    const std::uint64_t at =
        random->below(3) ? block : block + WORLD_BLOCK - n + random->below(20) / 19;
    const std::vector<char> bytes = random_bytes(n, static_cast<unsigned>(random->below(1u << 16)));
    return {"cudaMemcpy", Body().u64(at).host(bytes.data(), n).u64(n).i32(H2D)};
}

// A call while a stream is being captured: mostly one that a capture takes, in that stream.
Call random_captured_call(Random *random, const World *world)
{
    const std::uint64_t value = random->next() >> 8, event = random->below(3);
    std::uint64_t stream = STREAM + random->below(WORLD_STREAMS);
    for (unsigned i = 0; i < WORLD_STREAMS && random->below(4); i++)
        if (world->captures[i].number)
            stream = STREAM + i;
    switch (random->below(10)) {
    case 0:
        return {"cudaEventRecord", Body().u64(event).u64(stream)};
    case 1:
        return {"cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0)};
    case 2:
        return {"cudaStreamEndCapture", Body().u64(stream).i32(0)};
    case 3:
        return random_set(random, value, stream);
    case 4:
        return {"cudaMemcpyAsync", Body().u64(1).host(&value, 8).u64(8).i32(H2D).u64(stream)};
    case 5:
        return {"cudaGraphLaunch", Body().u64(any_graph(random, WORLD_EXEC)).u64(stream)};
    case 6:
        return {"cudaGetLastError", Body()};
    default:
        return {"cudaLaunchKernel", world_launch(KERNEL, 32, stream, value, 1)};
    }
}

// Calls that begin captures, and calls with their graphs.
Call random_graph_call(Random *random)
{
    const std::uint64_t stream = STREAM + random->below(WORLD_STREAMS);
    switch (random->below(10)) {
    case 0:
    case 1:
        return {"cudaStreamBeginCapture", Body().u64(stream).i32(2)};
    case 2:
    case 3:
        return {"cudaGraphInstantiate", Body().u64(any_graph(random, WORLD_GRAPH)).u64(0)};
    case 4:
        return {"cudaStreamEndCapture", Body().u64(stream).i32(0)};
    case 5:
        return random->below(2)
                   ? Call{"cudaGraphExecDestroy", Body().u64(any_graph(random, WORLD_EXEC))}
                   : Call{"cudaGraphDestroy", Body().u64(any_graph(random, WORLD_GRAPH))};
    default: // repeated in one stream: then it is answered early
        return {"cudaGraphLaunch",
                Body().u64(any_graph(random, WORLD_EXEC)).u64(random->below(2) ? STREAM : stream)};
    }
}

// Mostly with the same few arguments: then it is answered early.
Call random_library_call(Random *random)
{
    const std::uint64_t handle = 1 + random->below(20) / 15 + random->below(30) / 29;
    const std::uint64_t value = random->below(2);
    switch (random->below(24)) {
    case 0:
        return {"cublasCreate_v2", Body().u64(handle)};
    case 1:
        return {random->below(3) ? "cublasCreate_v2" : "cublasDestroy_v2", Body().u64(handle)};
    case 2:
        return {
            "cublasSetStream_v2",
            Body().u64(handle).u64(random->below(9) ? STREAM + random->below(WORLD_STREAMS) : 0)};
    case 3:
        return {"cublasDdot_v2", Body().u64(handle).u64(value)};
    case 4:
    case 5:
    case 6:
        return {"cufftExecC2C", Body().u64(handle).u64(value).i32(1)};
    default:
        return {"cublasSgemm_v2", Body().u64(handle).u64(value)};
    }
}

// Events that come and go, recorded behind launches in a stream of the thread's own: what is to
// come after them can only be told by the events.
Call random_event_call(Random *random, std::uint64_t thread)
{
    const std::uint64_t event = 1 + random->below(8) / 7, stream = STREAM + thread;
    switch (random->below(20)) {
    case 0:
        return {random->below(2) ? "cudaEventQuery" : "cudaEventSynchronize", Body().u64(event)};
    case 1:
        return {random->below(2) ? "cudaGetLastError" : "cudaDeviceSynchronize", Body()};
    case 2:
    case 3:
        return {"cudaEventCreate", Body()};
    case 4:
    case 5:
        return {"cudaEventDestroy", Body().u64(event)};
    case 6:
    case 7:
        return {"cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0)};
    case 8:
    case 9:
    case 10:
    case 11:
        return {"cudaEventRecord", Body().u64(event).u64(stream)};
    default:
        return {"cudaLaunchKernel", world_launch(KERNEL, 32, stream, random->next() >> 8, 1)};
    }
}

// A call that a program could make.
Call random_call(Random *random, const World *world)
{
    if (world_captures(world) && random->below(30))
        return random_captured_call(random, world);
    if (!random->below(4))
        return random_graph_call(random);
    if (!random->below(4))
        return random_event_call(random, random->below(3));
    const std::uint64_t value = random->next() >> 8, event = random->below(WORLD_EVENTS);
    const std::uint64_t stream = random->below(6) ? STREAM + random->below(WORLD_STREAMS) : 0;
    switch (random->below(40)) {
    case 35:
    case 36:
    case 37:
    case 38:
    case 39:
        return random_library_call(random);
    case 33:
    case 34:
        return random_copy(random);
    case 31:
        return {"cudaEventDestroy", Body().u64(event)};
    case 32:
        return {"cudaEventCreate", Body()};
    case 30:
        return {"cudaGraphLaunch",
                Body().u64(random->below(WORLD_EVENTS + 1)).u64(random->below(40) ? stream : 77)};
    case 26:
    case 27:
        return {"cudaMalloc", Body().u64(WORLD_BLOCK)};
    case 28:
    case 29:
        return {"cudaFree", Body().u64(random->below(WORLD_BLOCKS + 2) * WORLD_BLOCK)};
    case 24:
        return {"cudaDeviceGetStreamPriorityRange", Body()};
    case 25:
        return {random->below(8) ? "cudaEventQuery" : "cudaEventDestroy", Body().u64(event)};
    case 0:
        return {"cudaGetLastError", Body()};
    case 1:
        return {"cudaPeekAtLastError", Body()};
    case 2:
        return {"cudaDeviceSynchronize", Body()};
    case 3:
        return {"cudaStreamSynchronize", Body().u64(stream)};
    case 4:
        return {"cudaMemcpy", Body().host("", 1).u64(random->below(WORLD_STREAMS)).u64(8).i32(D2H)};
    case 5:
        return {"cudaMemcpy", Body().u64(1).host(&value, 8).u64(8).i32(H2D)};
    case 6:
        return {"cudaMemcpyAsync", Body().u64(1).host(&value, 8).u64(8).i32(H2D).u64(stream)};
    case 7: // only what its stream orders: others' work may have run or not
        return {"cudaMemcpyAsync",
                Body()
                    .host("", 1)
                    .u64(stream ? stream - STREAM : random->below(WORLD_NON_BLOCKING))
                    .u64(8)
                    .i32(D2H)
                    .u64(stream)};
    case 8:
        return random_set(random, value, stream);
    case 9:
        if (random->below(4)) // copies return early as long as there is one device
            return {"cudaSetDevice", Body().i32(0)};
        return {"cudaSetDevice", Body().i32(static_cast<int>(random->below(3)))};
    case 10:
        return {"cudaGetDevice", Body()};
    case 11:
    case 12:
        return {"cudaEventRecord",
                Body()
                    .u64(event + random->below(20) / 19)
                    .u64(random->below(5) ? STREAM + random->below(WORLD_STREAMS) : 0)};
    case 13:
    case 14:
        return {"cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0)};
    case 15:
    case 16:
        return {"cudaEventQuery", Body().u64(event)};
    default: // mostly good ones
        return {"cudaLaunchKernel", world_launch(random->below(30)  ? KERNEL + random->below(3)
                                                 : random->below(4) ? KERNEL_OF_DEVICE_0
                                                                    : KERNEL_UNKNOWN,
                                                 random->below(20) ? 32u << random->below(3) : 4000,
                                                 random->below(40) ? stream : 77, value,
                                                 static_cast<unsigned>(random->below(40)))};
    }
}

constexpr int UNSEEN = -77; // what a launch by <<<>>> returns

// Makes a synchronous copy to the device, and changes its memory at once.
bool copies_as_preload(App *app, const Call &made)
{
    const std::size_t n = made.body.bytes.size();
    std::int32_t kind = 0;
    if (n < 28 || std::strcmp(made.name, "cudaMemcpy"))
        return false;
    std::memcpy(&kind, made.body.bytes.data() + n - 4, 4);
    std::vector<char> payload(made.body.bytes.begin() + 16, made.body.bytes.end() - 12);
    ibx_frontend_copy copy{};
    copy.to_device = true;
    std::memcpy(&copy.device, made.body.bytes.data(), 8);
    copy.host = payload.data();
    copy.n = payload.size();
    const bool done = kind == H2D && !direct->copy(&copy, &app->answer);
    std::memset(payload.data(), 0x5a, payload.size());
    return done;
}

// Makes a call as the preload would, if that makes it; `answer` and `out` are set as the app's.
bool as_preload(App *app, const Call &made)
{
    static const char *const without[] = {"cudaEventRecord",
                                          "cudaStreamWaitEvent",
                                          "cudaDeviceSynchronize",
                                          "cudaStreamSynchronize",
                                          "cudaEventQuery",
                                          "cudaMalloc",
                                          "cudaFree",
                                          "cudaGraphLaunch",
                                          "cudaLaunchKernel",
                                          IBX_EXT_QUEUE};
    const bool error = !std::strncmp(made.name + 4, "GetLast", 7) ||
                       !std::strncmp(made.name + 4, "PeekAtLast", 10);
    const bool over = !std::strcmp(made.name, "cudaEventQuery"),
               rests = !std::strcmp(made.name, "cudaStreamSynchronize");
    std::uint64_t handle = 0;
    std::int32_t device = 0;
    if (made.body.bytes.size() == 8)
        std::memcpy(&handle, made.body.bytes.data(), 8);
    if (made.body.bytes.size() == 4)
        std::memcpy(&device, made.body.bytes.data(), 4);
    app->out.clear();
    app->answer = 0;
    while (over && direct->knows(IBX_FRONTEND_EVENT_PENDING, handle, nullptr))
        std::this_thread::yield(); // it is run without another call of this thread
    if ((error && direct->knows(IBX_FRONTEND_NO_ERROR, 0, nullptr)) ||
        (over && direct->knows(IBX_FRONTEND_EVENT_OVER, handle, nullptr)) ||
        (rests && direct->knows(IBX_FRONTEND_STREAM_RESTS, handle, nullptr)) ||
        (!std::strcmp(made.name, "cudaSetDevice") &&
         direct->knows(IBX_FRONTEND_SELECTED, static_cast<std::uint64_t>(device), nullptr)))
        return true;
    if (!std::strcmp(made.name, "cudaGetDevice") &&
        direct->knows(IBX_FRONTEND_DEVICE, 0, &device)) {
        app->out = Body().i32(device).bytes;
        return true;
    }
    if (copies_as_preload(app, made))
        return true;
    bool makes = false;
    for (const char *name : without)
        makes = makes || !std::strcmp(made.name, name);
    char got[8];
    const std::size_t n = !std::strcmp(made.name, "cudaMalloc") ? 8 : 0;
    const bool launch = !std::strcmp(made.name, "cudaLaunchKernel");
    const ibx_frontend_request request{
        made.name, made.body.bytes.data(), made.body.bytes.size(), got, n, launch};
    if (!makes || direct->call(&request, &app->answer))
        return false;
    if (!app->answer)
        app->out.assign(got, got + n);
    if (launch)
        app->answer = UNSEEN;
    return true;
}

enum class Kind { any, events, breaks };

// Threads that take turns, each with a connection and a counterpart in the model. Connections may
// break, and the sessions go on.
class Program
{
  public:
    Program(Scene *scene, unsigned count, std::uint64_t seed, Kind kind)
        : random{seed * 77 + 1}, breaks(kind == Kind::breaks), of_events(kind == Kind::events)
    {
        apps.resize(count);
        natives.resize(count);
        for (unsigned i = 0; i < count; i++)
            threads.emplace_back([this, i, scene] { serve(i, scene); });
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return connected_count == count; });
    }
    ~Program()
    {
        hand(-1);
        for (std::thread &thread : threads)
            thread.join();
        world_destroy(model);
    }
    bool run(unsigned calls);
    World *model = world_create();

  private:
    void serve(unsigned index, Scene *scene);
    void hand(int to);
    bool step(unsigned index, const Call &made);

    const Connections connections;
    Random random;
    bool breaks, of_events;
    std::vector<std::unique_ptr<App>> apps; // each made by its thread
    unsigned connected_count = 0;
    std::vector<WorldThread> natives;
    std::vector<std::thread> threads;
    std::mutex lock;
    std::condition_variable changed;
    int turn = -2; // -2: nobody's, -1: all end
    const Call *call = nullptr;
    bool preloaded = false; // make the call as the preload does
    bool prepares = false;  // memory, before the call
    int answer = 0;
};

void Program::serve(unsigned index, Scene *scene)
{
    std::vector<char> memory(1 << 17);
    std::unique_lock<std::mutex> guard(lock);
    apps[index] = std::make_unique<App>(scene->app());
    connected_count++;
    changed.notify_all();
    for (;;) {
        changed.wait(guard, [&] { return turn == -1 || turn == static_cast<int>(index); });
        if (turn == -1)
            return;
        App &app = *apps[index];
        if (prepares)
            direct->prepare(memory.data(), memory.size());
        answer =
            preloaded && as_preload(&app, *call) ? app.answer : app.call(call->name, call->body);
        turn = -2;
        changed.notify_all();
    }
}

void Program::hand(int to)
{
    std::unique_lock<std::mutex> guard(lock);
    turn = to;
    changed.notify_all();
    if (to >= 0)
        changed.wait(guard, [&] { return turn == -2; });
}

bool Program::step(unsigned index, const Call &made)
{
    Body out;
    call = &made;
    preloaded = random.below(2);
    prepares = !random.below(30);
    if (breaks && !random.below(20))
        connections.cut();
    hand(static_cast<int>(index));
    int native = world_run(model, &natives[index], made.name, made.body.bytes, &out);
    if (answer != native && answer != UNSEEN)
        std::fprintf(stderr, "%s returns %d, natively %d\n", made.name, answer, native);
    REQUIRE(answer == native || answer == UNSEEN);
    REQUIRE(native || apps[index]->out == out.bytes);
    return true;
}

bool Program::run(unsigned calls)
{
    for (unsigned i = 0, copies = 0, index = 0; i < calls; i++) {
        if (!of_events || !random.below(6)) // in a row, so that a thread gets ahead
            index = static_cast<unsigned>(random.below(apps.size()));
        if (!copies && !of_events && !random.below(16)) // at rest several in a row
            copies = 6;
        const Call made = copies == 6 ? Call{"cudaDeviceSynchronize", Body()}
                          : copies    ? random_copy(&random)
                          : of_events ? random_event_call(&random, index)
                                      : random_call(&random, model);
        copies -= copies > 0;
        const bool launch = !std::strcmp(made.name, "cudaLaunchKernel");
        Call before{"cudaPushCallConfiguration", Body()};
        if (launch)
            append(&before.body.bytes, made.body.bytes.data() + 8, 40);
        if (launch && (!step(index, before) || !step(index, {"cudaPopCallConfiguration", Body()})))
            return false;
        if (!step(index, made)) {
            std::fprintf(stderr, "call %u, thread %u: %s: %d\n", i, index, made.name, answer);
            return false;
        }
    }
    return true;
}

// IBX_TEST_SEED in the environment makes other programs than usual.
std::uint64_t seed_of_all()
{
    const char *seed = std::getenv("IBX_TEST_SEED");
    return seed ? std::strtoull(seed, nullptr, 10) : 0;
}

bool random_programs(unsigned count, unsigned threads, Kind kind)
{
    Scene scene("rdma.gpu : off\n"); // the world runs requests of ours
    for (unsigned i = 0; i < count; i++) {
        world_clear(scene.world);
        scene.world->slow_us = kind == Kind::events ? 1000 : i % 4 ? 0 : 20;
        // Each in a process of its own: others may have left captures or selected a device, and
        // then nothing returns early.
        const pid_t pid = spawn([&] {
            Program program(&scene, threads, seed_of_all() * 1000003 + i * 31 + threads, kind);
            return program.run(60 + i % 90) ? 0 : 1;
        });
        if (result_of(pid)) {
            std::fprintf(stderr, "program %u of %u threads, IBX_TEST_SEED=%llu\n", i, threads,
                         static_cast<unsigned long long>(seed_of_all()));
            return false;
        }
    }
    return true;
}

} // namespace

void check_programs(unsigned programs)
{
    check("random programs", [=] { return random_programs(programs, 1, Kind::any); });
    check("random programs of three threads",
          [=] { return random_programs(programs / 2, 3, Kind::any); });
    check("random programs of threads that share events",
          [=] { return random_programs(programs, 3, Kind::events); });
    if (provider != "ofi") // it connects only a few times in a second
        check("random programs whose connections break",
              [=] { return random_programs(programs / 2 + 1, 2, Kind::breaks); });
}
