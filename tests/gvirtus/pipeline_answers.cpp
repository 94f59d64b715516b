// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that do not wait, and answers that are known without asking.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/pipeline_scene.h"

#include "frontend-glue/session/math_calls.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

namespace
{

Body long_launch(std::uint64_t value, std::uint64_t arguments)
{
    Body body = world_launch(KERNEL, 32, STREAM, value);
    body.bytes.resize(56 + arguments);
    std::memcpy(&body.bytes[48], &arguments, 8);
    return body;
}

// With a back end that runs nothing yet, and in the order of the calls.
bool launches_do_not_wait()
{
    const unsigned count = provider == "shm" ? 5000 : 1000;
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    scene.world->held = true;
    const std::uint64_t requests = scene.world->requests;
    for (unsigned i = 1; i < count; i++)
        REQUIRE(app.launch(i) == 0);
    REQUIRE(scene.world->launches == 1);
    scene.world->held = false;
    REQUIRE(app.work() == launched(count));
    REQUIRE(scene.world->launches == count);
    REQUIRE(scene.world->requests == requests + count); // the launches alone, and the copy
    return true;
}

// The same, with all the arguments that GVirtuS's front end can write.
bool long_launches_do_not_wait()
{
    const std::size_t lengths[] = {8, 1900, 2100, 3000, 4096, 4352};
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    scene.world->held = true;
    std::atomic<unsigned> launches{1};
    Waiting other([&] {
        for (std::size_t length : lengths)
            launches += !app.call("cudaLaunchKernel", long_launch(launches, length));
    });
    const bool early = becomes([&] { return launches == 1 + std::size(lengths); });
    const std::uint64_t run = scene.world->launches;
    scene.world->held = false;
    other.join();
    REQUIRE(early && run == 1 && app.work() == launched(launches));
    return true;
}

// How often each thread of this process has gone to sleep.
std::map<std::string, unsigned long> naps()
{
    std::map<std::string, unsigned long> all;
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(task.path() / "status");
        for (std::string word; file >> word;)
            if (word == "voluntary_ctxt_switches:")
                file >> all[task.path()];
    }
    return all;
}

// While the back end has enough to do, the sender looks every 100 us, not every 20.
bool the_sender_naps()
{
    constexpr unsigned long wakes = 200;
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    scene.world->held = true;
    for (unsigned i = 1; i < 5000; i++)
        REQUIRE(app.launch(i) == 0);
    const auto began = std::chrono::steady_clock::now(); // and no later than the first is counted
    auto before = naps();
    REQUIRE(becomes([&] {
        const auto now = naps();
        return std::any_of(now.begin(), now.end(), [&](const auto &thread) {
            return thread.second - before[thread.first] >= wakes;
        });
    }));
    const auto took = std::chrono::steady_clock::now() - began;
    scene.world->held = false;
    REQUIRE(took > std::chrono::milliseconds(18) && app.work() == launched(5000));
    return true;
}

bool graphs_do_not_wait()
{
    Scene scene;
    App app = scene.app();
    const Body graph = Body().u64(3).u64(STREAM);
    REQUIRE(warm(&app) && app.call("cudaGraphLaunch", graph) == 0);
    std::uint64_t expected = app.work();
    scene.world->held = true;
    for (unsigned i = 0; i < 100; i++)
        REQUIRE(app.call("cudaGraphLaunch", graph) == 0);
    scene.world->held = false;
    for (unsigned i = 0; i < 100; i++)
        expected = expected * 6364136223846793005u + 3 + 1;
    REQUIRE(app.work() == expected);
    REQUIRE(app.call("cudaGraphLaunch", Body().u64(WORLD_EVENTS).u64(STREAM)) == 1);
    return HOLDS(app.last_error() == 1);
}

// The stream's value after a library's call.
std::uint64_t with(std::uint64_t work, std::uint64_t value)
{
    return work * 6364136223846793005u + value + 1;
}

// Calls with arguments that have succeeded before, while nothing was set up anew, do not wait;
// calls with a result do.
bool calls_of_libraries_do_not_wait()
{
    const Body handle = Body().u64(1), gemm = Body().u64(1).u64(7),
               fft = Body().u64(1).u64(9).i32(1);
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && app.call("cublasCreate_v2", handle) == 0);
    REQUIRE(app.call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
    std::uint64_t expected = app.work();
    for (int i = 0; i < 2; i++) {
        REQUIRE(app.call("cublasSgemm_v2", gemm) == 0 && app.call("cufftExecC2C", fft) == 0);
        REQUIRE(app.out == Body().u64(9).bytes);
        expected = with(with(expected, 7), 9);
        REQUIRE(app.work() == expected);
        const std::uint64_t requests = scene.world->requests; // it has that stream
        REQUIRE(app.call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
        REQUIRE(scene.world->requests == requests);
        REQUIRE(app.call("cublasSetMathMode", Body().u64(1).i32(1)) == 0);
        REQUIRE(app.call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
        REQUIRE(scene.world->requests == requests + 2);
        REQUIRE(app.call("cublasSgemm_v2", gemm) == 0 && app.call("cufftExecC2C", fft) == 0);
        expected = with(with(expected, 7), 9);
        REQUIRE(app.call("cudaEventDestroy", Body().u64(3)) == 0); // which is none of theirs
        scene.world->held = true;
        for (unsigned n = 0; n < 100; n++) {
            REQUIRE(app.call("cublasSgemm_v2", gemm) == 0 && app.out.empty());
            REQUIRE(app.call("cufftExecC2C", fft) == 0 && app.out == Body().u64(9).bytes);
            expected = with(with(expected, 7), 9);
        }
        scene.world->held = false;
        REQUIRE(app.call("cublasDdot_v2", gemm) == 0);
        expected = with(expected, 7);
        REQUIRE(app.out == Body().u64(expected).bytes && app.work() == expected);
        REQUIRE(app.call("cublasDestroy_v2", handle) == 0);
        REQUIRE(app.call("cublasSgemm_v2", gemm) == LIBRARY_NOT_INITIALIZED);
        REQUIRE(app.call("cublasCreate_v2", handle) == 0);
        REQUIRE(app.call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
    }
    REQUIRE(app.call("cublasSgemm_v2", gemm) == 0 &&
            app.call("cudaStreamDestroy", Body().u64(STREAM)) == 0);
    return HOLDS(app.last_error() == 0 && app.synchronize() == 0);
}

// The same of extension requests.
bool extension_requests_of_libraries_do_not_wait()
{
    const Body work = Body().u64(1).u64(7), selects = Body().u64(1).u64(STREAM);
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && app.call(IBX_MATH_SELECTS, selects) == 0);
    std::uint64_t expected = with(app.work(), 7);
    REQUIRE(app.call(IBX_MATH_ADDS, work) == 0 && app.work() == expected);
    std::uint64_t requests = scene.world->requests;
    REQUIRE(app.call(IBX_MATH_SELECTS, selects) == 0 && scene.world->requests == requests);
    scene.world->held = true; // nothing is answered meanwhile
    for (unsigned n = 0; n < 100; n++) {
        REQUIRE(app.call(IBX_MATH_ADDS, work) == 0 && app.out.empty());
        expected = with(expected, 7);
    }
    scene.world->held = false;
    // A call that names its stream.
    const Body there = Body().u64(1).u64(5).u64(STREAM);
    REQUIRE(app.call(IBX_MATH_ADDS_IN, there) == 0);
    scene.world->held = true;
    for (unsigned n = 0; n < 100; n++)
        REQUIRE(app.call(IBX_MATH_ADDS_IN, there) == 0 && app.out.empty());
    scene.world->held = false;
    for (unsigned n = 0; n < 101; n++)
        expected = with(expected, 5);
    expected = with(expected, 7);
    REQUIRE(app.call(IBX_MATH_WAITS, work) == 0 && app.out == Body().u64(expected).bytes);
    // They may fail with something that is set up anew.
    REQUIRE(app.call(IBX_MATH_SETS_UP, Body().u64(1).i32(1)) == 0);
    scene.world->library_fails = LIBRARY_FAILED;
    REQUIRE(app.call(IBX_MATH_ADDS, work) == LIBRARY_FAILED && app.work() == expected);
    requests = scene.world->requests;
    REQUIRE(app.call(IBX_MATH_SELECTS, selects) == 0 && scene.world->requests == requests + 1);
    return HOLDS(app.last_error() == 0 && app.synchronize() == 0);
}

// A new stream may have the number of one that was destroyed; and after a failure nothing is known.
bool streams_of_libraries_are_known_no_more()
{
    const Body selects = Body().u64(1).u64(STREAM);
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && app.call("cublasSetStream_v2", selects) == 0);
    std::uint64_t requests = scene.world->requests;
    REQUIRE(app.call("cublasSetStream_v2", selects) == 0 && scene.world->requests == requests);
    REQUIRE(app.call("cudaStreamDestroy", Body().u64(STREAM)) == 0);
    REQUIRE(app.call("cublasSetStream_v2", selects) == 0);
    REQUIRE(scene.world->requests == requests + 2);
    REQUIRE(app.call("cublasDestroy_v2", Body().u64(1)) == 0);
    REQUIRE(app.call("cublasCreate_v2", Body().u64(1)) == 0);
    REQUIRE(app.call("cublasSetStream_v2", selects) == 0);
    scene.world->library_fails = LIBRARY_FAILED;
    REQUIRE(app.call("cublasSetStream_v2", Body().u64(1).u64(STREAM + 1)) == LIBRARY_FAILED);
    requests = scene.world->requests;
    REQUIRE(app.call("cublasSetStream_v2", selects) == 0);
    REQUIRE(scene.world->requests == requests + 1);
    // A handle has the number of one that went with its back end.
    REQUIRE(app.call("cublasCreate_v2", Body()) == 0 && app.out == Body().u64(1).bytes);
    REQUIRE(app.call("cublasSetStream_v2", selects) == 0);
    return HOLDS(scene.world->requests == requests + 3);
}

// Calls are sent though the program makes no further call.
bool what_is_left_behind_is_sent()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    for (unsigned n : {1u, 2u, 3u, 40u, 1000u}) {
        const std::uint64_t before = scene.world->launches;
        for (unsigned i = 0; i < n; i++)
            REQUIRE(app.launch(i) == 0);
        REQUIRE(becomes([&] { return scene.world->launches == before + n; }));
    }
    return true;
}

// More calls than may be kept: the caller waits, and nothing is lost.
bool more_than_fits()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    scene.world->held = true;
    std::atomic<unsigned> launches{1};
    constexpr unsigned most = 5000, kept = 4000; // some 4,700 fit
    std::thread other([&] {
        while (launches < most) { // of long arguments
            if (app.call("cudaLaunchKernel", long_launch(launches, 1744)))
                return;
            launches++;
        }
    });
    REQUIRE(becomes([&] { return launches > kept; }));
    scene.world->held = false;
    other.join();
    REQUIRE(launches == most && app.work() == launched(most));
    return true;
}

// What else is enqueued early, by the value of rdma.pipeline.
bool modes()
{
    for (const char *mode : {"all", "launches", "off"}) {
        Scene scene(std::string("rdma.pipeline : ") + mode + "\n");
        App app = scene.app(std::string("rdma.pipeline : ") + mode + "\n");
        REQUIRE(warm(&app));
        const bool off = !std::strcmp(mode, "off"), all = !std::strcmp(mode, "all");
        std::uint64_t requests = scene.world->requests;
        REQUIRE(app.last_error() == 0);
        REQUIRE(scene.world->requests == requests + off);
        scene.world->held = true;
        std::atomic<unsigned> step{0};
        Waiting other([&] {
            app.launch(1), step++;
            app.record(0), step++;
            app.wait(STREAM + 1, 0), step++;
            app.set(1, STREAM + 2), step++;
        });
        const unsigned last = off ? 0 : all ? 4 : 3;
        bool reached = becomes([&] { return step == last; });
        if (last < 4) // it has sent the next one, and waits
            reached = reached && becomes([&] { return scene.world->requests > requests + off; }) &&
                      other.waits();
        const unsigned seen = step;
        scene.world->held = false;
        other.join();
        REQUIRE(reached && seen == last);
        REQUIRE(app.synchronize() == 0);
    }
    return true;
}

// <<<>>> pushes before it evaluates the kernel's arguments: if these throw, nobody pops. The last
// one pushed is popped first, however many there are.
bool configurations_that_nobody_pops()
{
    constexpr unsigned count = 40; // more than are kept here
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    for (unsigned i = 1; i <= count; i++)
        REQUIRE(app.call("cudaPushCallConfiguration", world_configuration(32, STREAM, i)) == 0);
    for (unsigned i = count; i; i--) {
        REQUIRE(app.call("cudaPopCallConfiguration", Body()) == 0);
        REQUIRE(app.out == world_configuration(32, STREAM, i).bytes);
    }
    const std::uint64_t requests = scene.world->requests;
    REQUIRE(app.launch(1) == 0 && app.launch(2) == 0 && app.synchronize() == 0);
    REQUIRE(scene.world->requests == requests + 3); // here, as before
    return HOLDS(app.call("cudaPopCallConfiguration", Body()) == 9);
}

bool state_is_known()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    int garbage = 0;
    auto device = [&] {
        garbage++;
        std::int32_t found = -1; // the body is what it was before
        if (!app.call("cudaGetDevice", Body().host(&garbage, 4)) && app.out.size() == 4)
            std::memcpy(&found, app.out.data(), 4);
        return found;
    };
    auto select = [&](std::int32_t to) { return app.call("cudaSetDevice", Body().i32(to)); };
    REQUIRE(device() == 0 && select(0) == 0 && device() == 0 && app.peek() == 0);
    REQUIRE(app.call("cudaGetDeviceCount", Body()) == 0 && app.out == Body().i32(2).bytes);
    std::uint64_t requests = scene.world->requests;
    for (int i = 0; i < 3; i++) {
        REQUIRE(device() == 0 && select(0) == 0 && app.last_error() == 0 && app.peek() == 0);
        REQUIRE(app.call("cudaGetDeviceCount", Body()) == 0 && app.out == Body().i32(2).bytes);
    }
    REQUIRE(scene.world->requests == requests);
    REQUIRE(select(1) == 0 && device() == 1 && select(1) == 0 && device() == 1);
    REQUIRE(select(7) == 101 && device() == 1 && app.last_error() == 101 && app.last_error() == 0);
    REQUIRE(select(0) == 0 && device() == 0);
    return true;
}

// A stream without work stays so until somebody adds some; an event that is over stays over until
// it is recorded again.
bool rest_is_known()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    const Body stream = Body().u64(STREAM), event = Body().u64(0);
    auto asked = [&](const char *name, const Body &body) { // 1: the back end was, -1: an error
        const std::uint64_t requests = scene.world->requests;
        return app.call(name, body) ? -1 : static_cast<int>(scene.world->requests - requests);
    };
    const std::uint64_t value = 1;
    for (int i = 0; i < 6; i++) {
        REQUIRE(asked("cudaStreamQuery", stream) == 1 && asked("cudaEventQuery", event) == 1);
        REQUIRE(asked("cudaStreamQuery", stream) == 0 && asked("cudaEventQuery", event) == 0);
        REQUIRE(asked("cudaStreamSynchronize", stream) == 0);
        REQUIRE(asked("cudaEventSynchronize", event) == 0);
        REQUIRE(asked("cudaGetDevice", Body()) <= 1 && asked("cudaStreamQuery", stream) == 0);
        App &by = i % 2 ? app : other;
        if (i < 2)
            REQUIRE(by.launch(1) == 0);
        else if (i < 4)
            REQUIRE(by.record(0) == 0);
        else
            REQUIRE(by.call("cudaMemcpy", Body().u64(1).host(&value, 8).u64(8).i32(H2D)) == 0);
        REQUIRE(other.synchronize() == 0); // so that requests are counted
    }
    REQUIRE(asked("cudaStreamQuery", stream) >= 0 && app.synchronize() == 0);
    REQUIRE(asked("cudaStreamQuery", stream) == 0);
    REQUIRE(app.call("cudaStreamDestroy", stream) == 0 && asked("cudaStreamQuery", stream) == 1);
    return true;
}

// A wait for one device says nothing about the streams of another device.
bool rest_of_one_device()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    const Body stream = Body().u64(STREAM);
    REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 1);
    REQUIRE(app.launch(1) == 0 && app.call("cudaSetDevice", Body().i32(1)) == 0);
    REQUIRE(app.synchronize() == 0);
    REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 1);
    return true;
}

// cudaFree(NULL) waits for nothing, so it says nothing about streams.
bool rest_after_freeing_nothing()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && app.synchronize() == 0);
    const Body stream = Body().u64(STREAM);
    REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 1);
    REQUIRE(app.launch(1) == 0 && app.free(0) == 0);
    REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 1);
    const std::uint64_t block = app.malloc();
    REQUIRE(block && app.launch(1) == 0 && app.free(block) == 0);
    REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 0);
    return true;
}

// A thread finds a stream at rest while another one is about to add work to it.
bool rest_is_over_when_a_call_returns()
{
    for (bool early : {true, false}) {
        Scene scene;
        App app = scene.app(), other = scene.app(), third = scene.app();
        REQUIRE(warm(&app) && warm(&other) && warm(&third) && other.launch(1, 0) == 0);
        REQUIRE(third.launch(1, STREAM + 3) == 0 && other.synchronize() == 0);
        const Body stream = Body().u64(STREAM + 1);
        scene.world->held = true;
        REQUIRE(!early || third.launch(1, STREAM + 3) == 0);
        // Waits for the third one, or for the back end.
        Waiting launching([&] { other.launch(1, 0, early ? 32 : 64); });
        const bool waits = launching.waits();
        const int asks = asked(&scene, &app, "cudaStreamQuery", stream),
                  rests = app.call("cudaStreamQuery", stream);
        scene.world->held = false;
        launching.join();
        REQUIRE(waits && asks >= 0 && rests == 0);
        REQUIRE(other.synchronize() == 0);
        REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 1);
    }
    return true;
}

// A call that has succeeded on one device, or in one stream, may fail on another device, or in
// another stream.
bool other_devices()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    auto select = [&](std::int32_t to) { return app.call("cudaSetDevice", Body().i32(to)); };
    auto range = [&] {
        std::int32_t found = 0;
        if (!app.call("cudaDeviceGetStreamPriorityRange", Body()) && app.out.size() == 4)
            std::memcpy(&found, app.out.data(), 4);
        return found;
    };
    auto launch = [&] { return app.launch(1, STREAM, 32, KERNEL_OF_DEVICE_0); };
    REQUIRE(launch() == 0 && launch() == 0 && range() == -3 && range() == -3);
    for (int i = 0; i < 3; i++) {
        REQUIRE(select(1) == 0 && range() == -4 && range() == -4);
        REQUIRE(app.launch(1) == 0); // the stream is good
        REQUIRE(launch() == 209 && app.last_error() == 209 && app.last_error() == 0);
        REQUIRE(select(9) == 101 && range() == -4 && launch() == 209 && app.last_error() == 209);
        REQUIRE(select(0) == 0 && range() == -3 && range() == -3);
        REQUIRE(launch() == 0 && app.last_error() == 0);
    }
    REQUIRE(app.launch(1, 77) == 400 && app.last_error() == 400 && app.last_error() == 0);
    return HOLDS(app.synchronize() == 0);
}

// A device that a thread has selected before can be selected again, until contexts are reset.
bool other_devices_again()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    auto select = [&](App *by, std::int32_t to) {
        return asked(&scene, by, "cudaSetDevice", Body().i32(to));
    };
    REQUIRE(select(&app, 1) == 1 && select(&app, 0) == 1 && select(&other, 1) == 1);
    auto device = [&] { return device_of(&app); };
    auto launch = [&] { return app.launch(1, STREAM, 32, KERNEL_OF_DEVICE_0); };
    REQUIRE(launch() == 0 && device() == 0);
    scene.world->held = true;
    for (int i = 0; i < 20; i++) {
        for (const std::int32_t to : {1, 0})
            REQUIRE(app.call("cudaSetDevice", Body().i32(to)) == 0);
        REQUIRE(launch() == 0);
    }
    REQUIRE(app.call("cudaSetDevice", Body().i32(1)) == 0);
    scene.world->held = false;
    REQUIRE(device() == 1 && launch() == 209 && app.last_error() == 209);
    REQUIRE(app.call("cudaSetDevice", Body().i32(9)) == 101 && app.last_error() == 101);
    REQUIRE(device() == 1 && select(&app, 0) == 1 && device() == 0 && launch() == 0);
    REQUIRE(app.synchronize() == 0 && other.call("cudaDeviceReset", Body()) == 0);
    return HOLDS(select(&app, 1) == 1 && select(&app, 0) == 1 && app.synchronize() == 0);
}

// A kernel that is declared to have clusters takes only grids of whole clusters.
bool clusters()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    auto launch = [&](unsigned blocks) {
        return app.launch(1, STREAM, 32, KERNEL_OF_CLUSTERS, blocks);
    };
    for (int i = 0; i < 3; i++) {
        REQUIRE(launch(3) == 0 && launch(9) == 0 && launch(24) == 0);
        REQUIRE(launch(25) == 912 && app.last_error() == 912 && app.last_error() == 0);
        REQUIRE(launch(8) == 912 && launch(6) == 0 && app.last_error() == 912);
    }
    scene.world->held = true; // with other grids of the same kind none waits
    REQUIRE(launch(3) == 0 && launch(9) == 0 && launch(69) == 0 && launch(3 * 257) == 0);
    scene.world->held = false;
    return app.synchronize() == 0;
}

// A first record of an event, or a first wait for one, cannot fail, either, if this process made
// the event and the stream.
bool new_events()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    const auto create = [](App *one) {
        std::uint64_t event = 0;
        if (!one->call("cudaEventCreate", Body()) && one->out.size() == 16)
            std::memcpy(&event, one->out.data() + 8, 8);
        return event;
    };
    for (std::uint64_t event : {4u, 5u, 6u})
        REQUIRE(app.call("cudaEventDestroy", Body().u64(event)) == 0);
    REQUIRE(app.launch(0) == 0 && create(&app) == 4 && create(&app) == 5);
    const std::uint64_t expected = app.work();
    scene.world->held = true;
    REQUIRE(app.record(4) == 0 && app.record(5, 0) == 0 && app.wait(STREAM, 4) == 0);
    scene.world->held = false;
    REQUIRE(app.synchronize() == 0 && scene.world->events[4] == expected);
    // It can fail with an event that was not made or was destroyed, or in an unknown stream.
    REQUIRE(app.record(6) == 400 && app.last_error() == 400);
    REQUIRE(app.record(4, 77) == 400 && app.last_error() == 400);
    REQUIRE(other.call("cudaEventDestroy", Body().u64(5)) == 0);
    REQUIRE(app.record(5) == 400 && app.wait(STREAM, 5) == 400 && app.last_error() == 400);
    return HOLDS(app.wait(STREAM, 4) == 0 && app.last_error() == 0);
}

// Events that other processes record and wait for, in an order that this process does not see.
bool shared_with_others(const char *name, const Body &request)
{
    Scene scene("rdma.gpu : off\n"); // the world runs requests of ours
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    const Body event = Body().u64(1);
    REQUIRE(app.call("cudaEventQuery", event) == 0 && app.call("cudaEventQuery", event) == 0);
    REQUIRE(asked(&scene, &app, "cudaEventQuery", event) == 0);
    REQUIRE(other.call(name, request) == 0);
    for (int i = 0; i < 2; i++) {
        REQUIRE(asked(&scene, &app, "cudaEventQuery", event) == 1);
        REQUIRE(asked(&scene, &app, "cudaEventQuery", event) == 1);
        const std::uint64_t launches = scene.world->launches;
        REQUIRE(app.launch(1) == 0 && scene.world->launches == launches + 1);
        REQUIRE(app.record(0) == 0 && scene.world->events[0] == scene.world->work[0]);
    }
    return true;
}

// An event that another thread has destroyed.
bool destroyed_elsewhere()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && app.record(0) == 0 && app.synchronize() == 0);
    REQUIRE(other.call("cudaEventDestroy", Body().u64(0)) == 0);
    REQUIRE(app.record(0) == 400 && app.last_error() == 400);
    REQUIRE(app.wait(STREAM + 1, 0) == 400 && app.last_error() == 400);
    return true;
}

// Front ends and back ends whose replies have no seconds are served as before.
bool other_replies()
{
    Scene scene("", false);
    App app = scene.app("", false);
    for (unsigned i = 0; i < 20; i++) {
        REQUIRE(app.launch(i) == 0 && app.last_error() == 0);
        REQUIRE(scene.world->launches == i + 1);
    }
    REQUIRE(app.work() == launched(20));
    return true;
}

} // namespace

void check_answers()
{
    check("launches do not wait", launches_do_not_wait);
    check("long launches do not wait", long_launches_do_not_wait);
    check("the sender naps", the_sender_naps);
    check("graphs do not wait", graphs_do_not_wait);
    check("calls of libraries do not wait", calls_of_libraries_do_not_wait);
    check("... in extension requests", extension_requests_of_libraries_do_not_wait);
    check("streams of libraries that are known no more", streams_of_libraries_are_known_no_more);
    check("what is left behind is sent", what_is_left_behind_is_sent);
    check("more than fits", more_than_fits);
    check("what waits in which mode", modes);
    check("configurations that nobody pops", configurations_that_nobody_pops);
    check("state that is known", state_is_known);
    check("streams and events at rest", rest_is_known);
    check("streams of another device at rest", rest_of_one_device);
    check("streams after cudaFree(NULL)", [] { // in a process that has selected no other device yet
        return result_of(spawn([] { return rest_after_freeing_nothing() ? 0 : 1; })) == 0;
    });
    check("rest that another thread ends", rest_is_over_when_a_call_returns);
    check("another device, another stream", other_devices);
    check("a device that was selected before", other_devices_again);
    check("grids of a kernel that has clusters", clusters);
    check("an event that another thread destroys", destroyed_elsewhere);
    check("events that were made here", new_events);
    check("events that processes share", [] { // this lasts: in a process of its own
        const auto run = [](const char *name, const Body &body) {
            return result_of(spawn([&] { return shared_with_others(name, body) ? 0 : 1; })) == 0;
        };
        Body get, open;
        get.put(static_cast<std::uint16_t>(IBX_EXT_IPC_EVENT)).u64(1);
        open.put(static_cast<std::uint16_t>(IBX_EXT_IPC_OPEN_EVENT)).u64(1);
        return run("cudaIpcOpenEventHandle", Body().u64(1)) && run(IBX_EXT_NAME, get) &&
               run(IBX_EXT_NAME, open);
    });
    check("replies without seconds", other_replies);
}
