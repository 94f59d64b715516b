// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that are answered before the back end has run them (frontend-glue/client_calls), against a
// device on which every mistake in the order of work shows: tests/doubles/gvirtus/world.h.
//
//   test_pipeline PLUGIN.so PROVIDER [PROGRAMS]
#include "tests/doubles/gvirtus/world.h"
#include "tests/gvirtus/scene.h"

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <mutex>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

constexpr std::uint64_t STREAM = 100;

// A front end, and the calls that the tests make.
struct App : FrontEnd {
    std::shared_ptr<Communicator> over;

    explicit App(std::shared_ptr<Communicator> communicator, bool with_seconds = true)
        : FrontEnd(communicator.get(), with_seconds), over(communicator)
    {
    }
    // As <<<>>> does it.
    int launch(std::uint64_t value, std::uint64_t stream = STREAM, unsigned threads = 32,
               std::uint64_t function = KERNEL, unsigned blocks = 1)
    {
        Body configuration = world_configuration(threads, stream, blocks);
        if (int rc = call("cudaPushCallConfiguration", configuration))
            return rc;
        if (int rc = call("cudaPopCallConfiguration", Body()))
            return rc;
        if (out != configuration.bytes)
            return -4;
        return call("cudaLaunchKernel", world_launch(function, threads, stream, value, blocks));
    }
    int record(std::uint64_t event, std::uint64_t stream = STREAM)
    {
        return call("cudaEventRecord", Body().u64(event).u64(stream));
    }
    int wait(std::uint64_t stream, std::uint64_t event)
    {
        return call("cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0));
    }
    int set(std::uint64_t value, std::uint64_t stream = STREAM)
    {
        return call("cudaMemsetAsync", Body().u64(value).i32(0).u64(8).u64(stream));
    }
    int synchronize() { return call("cudaDeviceSynchronize", Body()); }
    int last_error() { return call("cudaGetLastError", Body()); }
    int peek() { return call("cudaPeekAtLastError", Body()); }
    // What has become of a stream; ~0: the copy has failed.
    std::uint64_t work(std::uint64_t stream = STREAM)
    {
        return value("cudaMemcpy", Body().host("", 1).u64(stream - 100).u64(8).i32(D2H), ~0ull);
    }
};

struct Scene {
    World *world = world_create();
    BackEnd back;

    explicit Scene(const std::string &more = "", bool timed = true)
        : back(more, [this, timed](auto listening) { world_back_end(world, listening, timed); })
    {
    }
    ~Scene()
    {
        world->held = false;
        back.end();
        world_destroy(world);
    }
    App app(const std::string &more = "", bool timed = true)
    {
        return App(connected(back.port, more), timed);
    }
};

// Polls; a minute is for machines under load.
bool becomes(const std::function<bool()> &condition)
{
    for (int i = 0; i < 60000; i++) {
        if (condition())
            return true;
        usleep(1000);
    }
    return false;
}

// What n launches with the values 0 to n-1 make of a stream.
std::uint64_t launched(unsigned n, std::uint64_t work = 0)
{
    for (unsigned i = 0; i < n; i++)
        work = work * 6364136223846793005u + i + 1;
    return work;
}

// Makes this front end sure of itself, as a program's first launch does.
bool warm(App *app)
{
    REQUIRE(app->launch(0) == 0 && app->launch(1) == 0);
    REQUIRE(app->record(0) == 0 && app->wait(STREAM + 1, 0) == 0 && app->set(7, STREAM + 2) == 0);
    REQUIRE(app->synchronize() == 0 && app->last_error() == 0);
    return true;
}

/* ----------------------------------------------------------------- what is answered */

// Of a back end that runs none of it, and in the order of the calls.
bool launches_do_not_wait()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    scene.world->held = true;
    const std::uint64_t requests = scene.world->requests;
    for (unsigned i = 1; i < 5000; i++)
        REQUIRE(app.launch(i) == 0);
    REQUIRE(scene.world->launches == 1);
    scene.world->held = false;
    REQUIRE(app.work() == launched(5000));
    REQUIRE(scene.world->launches == 5000);
    REQUIRE(scene.world->requests == requests + 5000); // the launches alone, and the copy
    return true;
}

// Nobody calls anything more.
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

// More than may be kept: the caller waits, and nothing is lost.
bool more_than_fits()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(app.launch(0) == 0);
    scene.world->held = true;
    std::atomic<unsigned> launches{1};
    constexpr unsigned most = 8000;
    std::thread other([&] {
        while (launches < most) { // of long arguments
            Body body = world_launch(KERNEL, 32, STREAM, launches);
            body.bytes.resize(1800);
            const std::uint64_t arguments = body.bytes.size() - 56;
            std::memcpy(&body.bytes[48], &arguments, 8);
            if (app.call("cudaLaunchKernel", body))
                return;
            launches++;
        }
    });
    REQUIRE(becomes([&] { return launches > most / 2; }));
    scene.world->held = false;
    other.join();
    REQUIRE(launches == most && app.work() == launched(most));
    return true;
}

// The rest of what is enqueued, by its mode.
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
        std::thread other([&] {
            app.launch(1), step++;
            app.record(0), step++;
            app.wait(STREAM + 1, 0), step++;
            app.set(1, STREAM + 2), step++;
        });
        const unsigned last = off ? 0 : all ? 4 : 3;
        bool reached = becomes([&] { return step == last; });
        if (last < 4) // it has sent the next one, and waits
            reached = reached && becomes([&] { return scene.world->requests > requests + off; });
        usleep(last < 4 ? 20000 : 0);
        const unsigned seen = step;
        scene.world->held = false;
        other.join();
        REQUIRE(reached && seen == last);
        REQUIRE(app.synchronize() == 0);
    }
    return true;
}

bool state_is_known()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    int garbage = 0;
    auto device = [&] {
        garbage++;
        std::int32_t found = -1; // the body is what was there before
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

// A stream without work stays so until somebody adds some, an event that is over until it is
// recorded again.
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

// How many requests a call is: 1: the back end was asked, -1: an error.
int asked(Scene *scene, App *app, const char *name, const Body &body)
{
    const std::uint64_t requests = scene->world->requests;
    return app->call(name, body) ? -1 : static_cast<int>(scene->world->requests - requests);
}

// A wait for one device says nothing of the streams of another one.
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

// Work that a thread was about to add when another one has found a stream at rest.
bool rest_is_over_when_a_call_returns()
{
    for (bool early : {true, false}) {
        Scene scene;
        App app = scene.app(), other = scene.app(), third = scene.app();
        REQUIRE(warm(&app) && warm(&other) && warm(&third) && other.launch(1, 0) == 0);
        REQUIRE(third.launch(1, STREAM + 3) == 0 && other.synchronize() == 0);
        const Body stream = Body().u64(STREAM + 1);
        std::atomic<bool> begun{false}, ended{false};
        scene.world->held = true;
        REQUIRE(!early || third.launch(1, STREAM + 3) == 0);
        std::thread launching([&] { // waits for the third one, or for the back end
            begun = true;
            other.launch(1, 0, early ? 32 : 64);
            ended = true;
        });
        REQUIRE(becomes([&] { return begun.load(); }));
        usleep(50000);
        REQUIRE(!ended && asked(&scene, &app, "cudaStreamQuery", stream) >= 0);
        REQUIRE(app.call("cudaStreamQuery", stream) == 0);
        scene.world->held = false;
        launching.join();
        REQUIRE(other.synchronize() == 0);
        REQUIRE(asked(&scene, &app, "cudaStreamQuery", stream) == 1);
    }
    return true;
}

// What has succeeded on one device, or on one stream, need not on another one.
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
    return app.synchronize() == 0;
}

// Events that other processes record and wait for, in an order that nobody sees here.
bool shared_with_others()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    const Body event = Body().u64(1);
    REQUIRE(app.call("cudaEventQuery", event) == 0 && app.call("cudaEventQuery", event) == 0);
    REQUIRE(asked(&scene, &app, "cudaEventQuery", event) == 0);
    REQUIRE(other.call("cudaIpcOpenEventHandle", Body().u64(1)) == 0);
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

// Front ends and back ends that write no seconds are served as ever.
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

/* --------------------------------------------------------------------------- errors */

// Those of the call itself are what it returns, as natively.
bool errors_at_once()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    for (int i = 0; i < 3; i++) {
        REQUIRE(app.launch(1, STREAM, 2000) == 9 && app.peek() == 9 && app.last_error() == 9);
        REQUIRE(app.launch(1, STREAM, 32, KERNEL, 0) == 9 && app.last_error() == 9);
        REQUIRE(app.launch(1, STREAM, 32, KERNEL_UNKNOWN) == 98 && app.launch(1) == 0);
        REQUIRE(app.last_error() == 98 && app.last_error() == 0);
        REQUIRE(app.record(99) == 400 && app.last_error() == 400 && app.last_error() == 0);
    }
    return true;
}

// Those that nobody could know are returned by the next call that waits, and are the last error.
bool errors_later()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    for (bool waits : {true, false}) {
        scene.world->fails_with = 702;
        scene.world->fails_in = 2;
        REQUIRE(app.launch(1) == 0 && app.launch(1) == 0);
        REQUIRE(becomes([&] { return scene.world->fails_in == 0; }));
        if (waits)
            REQUIRE(app.synchronize() == 702 && app.synchronize() == 0);
        REQUIRE(app.peek() == 702);
        REQUIRE(app.last_error() == 702 && app.last_error() == 0);
        REQUIRE(app.synchronize() == 0);
        REQUIRE(app.launch(1) == 0 && app.last_error() == 0); // it succeeds again
    }
    // Where success was not certain, the last error waits for it.
    for (int i = 0; i < 3; i++) {
        REQUIRE(app.set(1, 99) == 0 && app.last_error() == 400 && app.last_error() == 0);
        REQUIRE(app.set(1) == 0 && app.last_error() == 0 && app.synchronize() == 0);
    }
    // One that a call which waits has returned is not returned again, when the device is well.
    REQUIRE(app.launch(1) == 0 && app.synchronize() == 0);
    REQUIRE(app.call("testBreak", Body().u64(700)) == 0 && app.launch(1) == 0);
    REQUIRE(app.synchronize() == 700 && app.call("testHeal", Body()) == 0);
    REQUIRE(app.synchronize() == 0);
    app.last_error();
    REQUIRE(app.last_error() == 0 && app.launch(1) == 0 && app.synchronize() == 0);
    // What stays, stays.
    REQUIRE(app.call("testBreak", Body().u64(700)) == 0);
    app.launch(1);
    REQUIRE(app.synchronize() == 700 && app.last_error() == 700 && app.last_error() == 700);
    REQUIRE(app.launch(1) == 700 && app.peek() == 700 && app.work() == ~0ull);
    REQUIRE(app.call("testHeal", Body()) == 0);
    app.last_error();
    REQUIRE(app.last_error() == 0 && app.launch(1) == 0 && app.synchronize() == 0);
    return true;
}

// A back end that is killed with launches outstanding.
bool killed(bool held)
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    scene.world->held = held;
    for (unsigned i = 0; i < 300; i++)
        REQUIRE(app.launch(i) == 0);
    scene.back.end();
    int rc = 0;
    REQUIRE(becomes([&] { return (rc = app.launch(1)) != 0; }));
    REQUIRE(rc == 999);
    REQUIRE(app.last_error() == 999 && app.peek() == 999 && app.synchronize() == 999);
    REQUIRE(app.call("cudaGetDevice", Body()) == 999 && app.record(0) == 999);
    REQUIRE(app.launch(1) == 999 && app.set(1) == 999 && app.work() == ~0ull);
    return true;
}

// The first call after it is one that waits.
bool killed_before_a_wait()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    scene.world->held = true;
    REQUIRE(app.launch(1) == 0);
    scene.back.end();
    REQUIRE(app.synchronize() == 999 && app.last_error() == 999 && app.launch(1) == 999);
    return true;
}

/* --------------------------------------------------------------- threads, processes */

// A thread that hands over to another one: what it has launched comes first.
bool threads_in_order()
{
    Scene scene;
    App first = scene.app(), second = scene.app();
    REQUIRE(warm(&first) && warm(&second));
    std::uint64_t expected = first.work();
    scene.world->slow_us = 200;
    for (unsigned i = 0; i < 60; i++) {
        App &app = i % 2 ? first : second, &other = i % 2 ? second : first;
        for (unsigned j = 0; j < 5; j++) {
            REQUIRE(app.launch(i, i % 3 ? STREAM : 0) == 0);
            expected = expected * 6364136223846793005u + i + 1;
        }
        if (i % 7 == 0)
            REQUIRE(other.work() == expected);
        if (i % 5 == 0) { // by an event
            REQUIRE(app.record(1) == 0 && other.wait(STREAM + 1, 1) == 0);
            REQUIRE(other.synchronize() == 0 && scene.world->events[1] == expected);
        }
    }
    REQUIRE(first.work() == expected);
    return true;
}

// Of two streams that only an event orders.
bool threads_and_events()
{
    Scene scene;
    App first = scene.app(), second = scene.app();
    REQUIRE(warm(&first) && warm(&second));
    std::uint64_t recorded = first.work(), expected = second.work(STREAM + 1);
    scene.world->slow_us = 500;
    for (unsigned i = 0; i < 40; i++) {
        REQUIRE(first.launch(i) == 0 && first.record(0) == 0);
        REQUIRE(second.wait(STREAM + 1, 0) == 0);
        recorded = recorded * 6364136223846793005u + i + 1;
        expected = expected * 6364136223846793005u + recorded + 1;
    }
    REQUIRE(second.work(STREAM + 1) == expected);
    return true;
}

// One that waits for its own stream does not keep another one, nor is it kept by it.
bool threads_apart()
{
    Scene scene;
    App first = scene.app(), second = scene.app(), third = scene.app();
    REQUIRE(warm(&first) && warm(&second) && second.launch(0, STREAM + 1) == 0);
    scene.world->held = true;
    REQUIRE(first.launch(1, STREAM) == 0);
    REQUIRE(second.launch(1, STREAM + 1) == 0 && second.last_error() == 0);
    REQUIRE(third.call("cudaStreamCreate", Body()) == 0);
    REQUIRE(third.call("cudaStreamSynchronize", Body().u64(STREAM + 2)) == 0);
    REQUIRE(scene.world->launches == 5);
    scene.world->held = false;
    return true;
}

// More threads than fit into one look at them, none of which ever rests.
bool many_busy_threads()
{
    Scene scene;
    std::vector<App> busy;
    App app = scene.app();
    std::atomic<bool> ends{false}, waited{false};
    for (unsigned i = 0; i < 80; i++) {
        busy.push_back(scene.app());
        REQUIRE(busy[i].launch(0, WORLD_THREAD_STREAM) == 0);
        REQUIRE(busy[i].launch(0, WORLD_THREAD_STREAM) == 0);
    }
    REQUIRE(app.synchronize() == 0);
    scene.world->slow_us = 4000;
    std::thread launching([&] {
        while (!ends) {
            for (App &one : busy)
                one.launch(1, WORLD_THREAD_STREAM);
            usleep(1000);
        }
    });
    usleep(20000);
    std::thread waiting([&] {
        app.synchronize();
        waited = true;
    });
    for (unsigned i = 0; i < 10000 && !waited; i++)
        usleep(1000);
    const bool good = waited;
    ends = true;
    scene.world->slow_us = 0;
    launching.join();
    waiting.join();
    return good;
}

// Both at once, without an order between them.
bool threads_at_once()
{
    Scene scene;
    std::vector<std::thread> threads;
    std::atomic<unsigned> good{0};
    std::vector<App> apps;
    for (unsigned t = 0; t < 4; t++)
        apps.push_back(scene.app());
    for (unsigned t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            App &app = apps[t];
            bool fine = true;
            for (unsigned i = 0; i < 2000 && fine; i++) {
                fine = app.launch(i, STREAM + t) == 0 && app.last_error() == 0;
                if (i % 100 == 99)
                    fine = fine && app.work(STREAM + t) == launched(i + 1);
            }
            good += fine;
        });
    for (std::thread &thread : threads)
        thread.join();
    REQUIRE(good == 4);
    return true;
}

// A thread that ends before the back end has got to what it has launched.
bool a_thread_ends()
{
    Scene scene;
    App app = scene.app();
    App *of_thread = nullptr; // as in GVirtuS it outlives the thread
    REQUIRE(warm(&app));
    std::thread thread([&] {
        of_thread = new App(scene.app());
        if (!warm(of_thread))
            return;
        scene.world->held = true;
        for (unsigned i = 0; i < 300; i++)
            of_thread->launch(i);
    });
    usleep(2600000); // longer than an exit waits
    scene.world->held = false;
    thread.join();
    REQUIRE(app.synchronize() == 0 && scene.world->launches == 304);
    delete of_thread;
    return true;
}

// In a process of its own, which ends at once.
bool leaves(const std::function<void(App *)> &ending)
{
    Scene scene;
    pid_t pid = spawn([&]() -> int {
        static App *kept; // by an application that ends
        auto *app = kept = new App(scene.app());
        if (!warm(app))
            return 1;
        for (unsigned i = 0; i < 500; i++) {
            if (app->launch(i))
                return 1;
        }
        ending(app);
        return 1;
    });
    REQUIRE(result_of(pid) == 0);
    REQUIRE(becomes([&] { return scene.world->launches == 502; }));
    return true;
}

bool forked()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    scene.world->slow_us = 100;
    for (unsigned i = 0; i < 50; i++)
        REQUIRE(app.launch(i) == 0);
    pid_t pid = spawn([&]() -> int { // as GVirtuS does in a child
        App other = scene.app();
        bool good = warm(&other);
        for (unsigned i = 0; i < 50 && good; i++)
            good = other.launch(i, STREAM + 3) == 0;
        return good && other.work(STREAM + 3) == launched(50) ? 0 : 1;
    });
    for (unsigned i = 50; i < 100; i++)
        REQUIRE(app.launch(i) == 0);
    REQUIRE(result_of(pid) == 0);
    REQUIRE(app.synchronize() == 0 && scene.world->launches == 154);
    return true;
}

/* ------------------------------------------------------------------ random programs */

struct Random {
    std::uint64_t state;
    std::uint64_t next()
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 2685821657736338717u;
    }
    unsigned below(unsigned n) { return static_cast<unsigned>(next() >> 33) % n; }
};

// A call of a program, with the model's answer beside it.
struct Call {
    const char *name;
    Body body;
};

// One that a program would make; `certain`: none whose own error may come later.
Call random_call(Random *random)
{
    const std::uint64_t value = random->next() >> 8, event = random->below(WORLD_EVENTS);
    const std::uint64_t stream = random->below(6) ? STREAM + random->below(WORLD_STREAMS) : 0;
    switch (random->below(26)) {
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
    case 7:
        return {"cudaMemcpyAsync",
                Body().host("", 1).u64(random->below(WORLD_STREAMS)).u64(8).i32(D2H).u64(stream)};
    case 8:
        return {"cudaMemsetAsync", Body().u64(value).i32(0).u64(8).u64(stream)};
    case 9:
        return {"cudaSetDevice", Body().i32(static_cast<int>(random->below(3)))};
    case 10:
        return {"cudaGetDevice", Body()};
    case 11:
    case 12:
        return {
            "cudaEventRecord",
            Body().u64(event + random->below(20) / 19).u64(STREAM + random->below(WORLD_STREAMS))};
    case 13:
    case 14:
        return {"cudaStreamWaitEvent", Body().u64(stream).u64(event).i32(0)};
    case 15:
        return {random->below(2) ? "cudaStreamBeginCapture" : "cudaStreamEndCapture",
                Body().u64(STREAM + random->below(WORLD_STREAMS)).i32(0)};
    case 16:
        return {"cudaEventQuery", Body().u64(event)};
    default: // mostly good ones
        return {"cudaLaunchKernel",
                world_launch(random->below(30)  ? KERNEL + random->below(3)
                             : random->below(4) ? KERNEL_OF_DEVICE_0
                                                : KERNEL_UNKNOWN,
                             random->below(20) ? 32u << random->below(3) : 4000,
                             random->below(40) ? stream : 77, value, random->below(40))};
    }
}

// Threads that take turns, each with a connection and its counterpart in the model.
class Program
{
  public:
    Program(Scene *scene, unsigned count, std::uint64_t seed) : random{seed * 77 + 1}
    {
        for (unsigned i = 0; i < count; i++) {
            apps.push_back(scene->app());
            natives.emplace_back();
        }
        for (unsigned i = 0; i < count; i++)
            threads.emplace_back([this, i] { serve(i); });
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
    void serve(unsigned index);
    void hand(int to);
    bool step(unsigned index, const Call &made);

    Random random;
    std::vector<App> apps;
    std::vector<WorldThread> natives;
    std::vector<std::thread> threads;
    std::mutex lock;
    std::condition_variable changed;
    int turn = -2; // -2: nobody's, -1: all end
    const Call *call = nullptr;
    int answer = 0;
};

void Program::serve(unsigned index)
{
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
        changed.wait(guard, [&] { return turn == -1 || turn == static_cast<int>(index); });
        if (turn == -1)
            return;
        answer = apps[index].call(call->name, call->body);
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
    hand(static_cast<int>(index));
    int native = world_run(model, &natives[index], made.name, made.body.bytes, &out);
    REQUIRE(answer == native);
    REQUIRE(native || apps[index].out == out.bytes);
    return true;
}

bool Program::run(unsigned calls)
{
    for (unsigned i = 0; i < calls; i++) {
        const unsigned index = random.below(static_cast<unsigned>(apps.size()));
        const Call made = random_call(&random);
        const bool launch = !std::strcmp(made.name, "cudaLaunchKernel");
        Call before{"cudaPushCallConfiguration", Body()};
        if (launch)
            append(&before.body.bytes, made.body.bytes.data() + 8, 40);
        if (launch && (!step(index, before) || !step(index, {"cudaPopCallConfiguration", Body()})))
            return false;
        // In a capture these fail, and tell it later.
        const bool later =
            !std::strncmp(made.name, "cudaMem", 7) && std::strstr(made.name, "Async");
        bool captures = false;
        for (bool capturing : model->capturing)
            captures = captures || capturing;
        if (later && captures)
            continue;
        if (!step(index, made)) {
            std::fprintf(stderr, "call %u, thread %u: %s: %d\n", i, index, made.name, answer);
            return false;
        }
    }
    return true;
}

bool random_programs(unsigned count, unsigned threads)
{
    Scene scene;
    for (unsigned i = 0; i < count; i++) {
        std::memset(scene.world->work, 0, sizeof(scene.world->work));
        std::memset(scene.world->events, 0, sizeof(scene.world->events));
        std::memset(scene.world->capturing, 0, sizeof(scene.world->capturing));
        std::memset(scene.world->destroyed, 0, sizeof(scene.world->destroyed));
        scene.world->slow_us = i % 4 ? 0 : 20;
        Program program(&scene, threads, i * 31 + threads);
        if (!program.run(60 + i % 90)) {
            std::fprintf(stderr, "program %u of %u threads\n", i, threads);
            return false;
        }
    }
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_pipeline PLUGIN.so PROVIDER [PROGRAMS]\n");
        return 2;
    }
    const unsigned programs =
        argc > 3 ? static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)) : 16;
    scene_open(argv[1], argv[2]);

    check("launches do not wait", launches_do_not_wait);
    check("what is left behind is sent", what_is_left_behind_is_sent);
    check("more than fits", more_than_fits);
    check("what waits in which mode", modes);
    check("state that is known", state_is_known);
    check("streams and events at rest", rest_is_known);
    check("streams of another device at rest", rest_of_one_device);
    check("rest that another thread ends", rest_is_over_when_a_call_returns);
    check("another device, another stream", other_devices);
    check("an event that another thread destroys", destroyed_elsewhere);
    check("events that processes share", [] { // for good: in a process of its own
        return result_of(spawn([] { return shared_with_others() ? 0 : 1; })) == 0;
    });
    check("replies without seconds", other_replies);
    check("errors that a call returns", errors_at_once);
    check("errors that appear later", errors_later);
    check("a back end that is killed", [] { return killed(false); });
    check("a back end that is killed while it is busy", [] { return killed(true); });
    check("the same, seen by a call that waits", killed_before_a_wait);
    check("threads that hand over to each other", threads_in_order);
    check("threads whose streams an event orders", threads_and_events);
    check("threads that have nothing to do with each other", threads_apart);
    check("threads that never rest", many_busy_threads);
    check("threads at once", threads_at_once);
    check("a thread that ends", a_thread_ends);
    check("exit", [] { return leaves([](App *) { std::exit(0); }); });
    check("a connection that is closed", [] {
        return leaves([](App *app) {
            app->over->Close();
            std::_Exit(0);
        });
    });
    check("a front end that is destroyed", [] {
        return leaves([](App *app) {
            delete app;
            std::_Exit(0);
        });
    });
    check("a forked child", forked);
    check("random programs", [=] { return random_programs(programs, 1); });
    check("random programs of three threads", [=] { return random_programs(programs / 2, 3); });

    return scene_close();
}
