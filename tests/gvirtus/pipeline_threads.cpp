// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The order between threads.
#include "tests/gvirtus/pipeline_scene.h"

#include <atomic>
#include <thread>
#include <vector>

namespace
{

// A thread hands over to another one: the first one's launches come first.
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

// Likewise with calls of libraries: only their handle knows the stream.
bool libraries_in_order()
{
    const Body gemm = Body().u64(1).u64(7);
    Scene scene;
    App first = scene.app(), second = scene.app();
    REQUIRE(warm(&first) && warm(&second));
    REQUIRE(first.call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
    REQUIRE(first.call("cublasSgemm_v2", gemm) == 0 && second.call("cublasSgemm_v2", gemm) == 0);
    std::uint64_t expected = first.work();
    scene.world->slow_us = 200;
    for (unsigned i = 0; i < 60; i++) {
        App &app = i % 2 ? first : second, &other = i % 2 ? second : first;
        for (unsigned j = 0; j < 5; j++) {
            REQUIRE(app.call("cublasSgemm_v2", gemm) == 0);
            expected = expected * 6364136223846793005u + 7 + 1;
        }
        REQUIRE(other.launch(i) == 0);
        expected = expected * 6364136223846793005u + i + 1;
        if (i % 7 == 0)
            REQUIRE(other.work() == expected);
    }
    REQUIRE(first.work() == expected);
    return true;
}

// The first thread has handle 1, in STREAM; handle 2 is made for the second, in the next stream.
bool have_handles(App *first, App *second)
{
    REQUIRE(warm(first) && warm(second));
    REQUIRE(second->call("cublasCreate_v2", Body().u64(2)) == 0);
    REQUIRE(first->call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
    return HOLDS(second->call("cublasSetStream_v2", Body().u64(2).u64(STREAM + 1)) == 0);
}

// Each thread has a handle of its own, with another stream.
bool libraries_apart()
{
    const Body gemms[] = {Body().u64(1).u64(7), Body().u64(2).u64(7)};
    Scene scene;
    App first = scene.app(), second = scene.app();
    REQUIRE(have_handles(&first, &second));
    REQUIRE(first.call("cublasSgemm_v2", gemms[0]) == 0);
    REQUIRE(second.call("cublasSgemm_v2", gemms[1]) == 0);
    const std::uint64_t requests = scene.world->requests;
    scene.world->held = true;
    for (unsigned i = 0; i < 10; i++) { // the test's limit ends it if one waits
        REQUIRE(first.call("cublasSgemm_v2", gemms[0]) == 0);
        REQUIRE(second.call("cublasSgemm_v2", gemms[1]) == 0);
        REQUIRE(first.call("cublasSetStream_v2", Body().u64(1).u64(STREAM)) == 0);
    }
    scene.world->held = false;
    REQUIRE(first.synchronize() == 0 && scene.world->requests == requests + 21);
    // A handle gets another stream only after the work that others have added with it.
    scene.world->slow_us = 500;
    std::uint64_t work = second.work(STREAM + 1), other = second.work(STREAM + 2);
    for (unsigned i = 0; i < 20; i++) {
        REQUIRE(second.call("cublasSgemm_v2", gemms[1]) == 0);
        REQUIRE(first.call("cublasSetStream_v2", Body().u64(2).u64(STREAM + 1 + (i + 1) % 2)) == 0);
        (i % 2 ? other : work) = (i % 2 ? other : work) * 6364136223846793005u + 7 + 1;
    }
    return HOLDS(second.work(STREAM + 1) == work && second.work(STREAM + 2) == other);
}

// cublasLtMatmul names its stream, and takes a handle of cuBLAS's for one of its own.
bool a_library_that_names_the_stream()
{
    const Body own = Body().u64(2).u64(7), named = Body().u64(1).u64(8).u64(STREAM + 1);
    Scene scene;
    App first = scene.app(), second = scene.app();
    REQUIRE(have_handles(&first, &second));
    REQUIRE(second.call("cublasSgemm_v2", own) == 0 && first.call("cublasLtMatmul", named) == 0);
    std::uint64_t expected = first.work(STREAM + 1);
    scene.world->slow_us = 200;
    for (unsigned i = 0; i < 20; i++) {
        for (unsigned j = 0; j < 5; j++) {
            REQUIRE(second.call("cublasSgemm_v2", own) == 0);
            expected = expected * 6364136223846793005u + 7 + 1;
        }
        REQUIRE(first.call("cublasLtMatmul", named) == 0);
        expected = expected * 6364136223846793005u + 8 + 1;
    }
    return HOLDS(first.work(STREAM + 1) == expected);
}

// A thread with outstanding calls of its own: replies to these come while it looks for the replies
// of others.
bool a_quick_thread_behind_a_slow_one()
{
    Scene scene;
    App slow = scene.app(), quick = scene.app();
    REQUIRE(warm(&slow) && warm(&quick));
    std::uint64_t expected = slow.work();
    for (unsigned i = 0; i < 100; i++) {
        const std::uint64_t requests = scene.world->requests;
        scene.world->slow_us = 3000;
        REQUIRE(slow.launch(i) == 0);
        expected = expected * 6364136223846793005u + i + 1;
        while (scene.world->requests == requests)
            std::this_thread::yield();
        usleep(200); // the back end is about to look how slow that is
        scene.world->slow_us = 0;
        for (unsigned j = 0; j < 10; j++)
            REQUIRE(quick.launch(j, STREAM + 1) == 0);
        REQUIRE(quick.work() == expected);
    }
    return true;
}

// Two streams that only an event orders.
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

// A thread that waits for its own stream does not hold up another one, and is not held up by it.
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

// More threads than the sender looks at in one round, and none of them ever rests. They need 80
// connections, of which libfabric's emulations make a few in a second: each asks all of its
// providers for all of the host's interfaces.
bool many_busy_threads()
{
    if (provider == "ofi")
        return true;
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
    const std::uint64_t before = scene.world->requests;
    std::thread launching([&] {
        while (!ends) {
            for (App &one : busy)
                one.launch(1, WORLD_THREAD_STREAM);
            usleep(1000);
        }
    });
    const bool busy_now = becomes([&] { return scene.world->requests > before; });
    std::thread waiting([&] {
        app.synchronize();
        waited = true;
    });
    const bool good = becomes([&] { return waited.load(); });
    ends = true;
    scene.world->slow_us = 0;
    launching.join();
    waiting.join();
    return HOLDS(busy_now && good);
}

// Two threads at once, without an order between them.
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

// Launches before a registration of memory are run, whether another call follows or not: another
// thread may wait for them.
bool launches_before_registration()
{
    Scene scene;
    std::vector<char> memory(1 << 20);
    App second = scene.app(), first = scene.app(); // the latter's connection is the thread's
    REQUIRE(warm(&second) && warm(&first));
    std::atomic<bool> waited{false};
    scene.world->held = true;
    for (unsigned i = 0; i < 20; i++)
        REQUIRE(first.launch(i) == 0);
    direct->prepare(memory.data(), memory.size());
    scene.world->held = false;
    std::thread waiting([&] { waited = second.synchronize() == 0; });
    const bool good = becomes([&] { return waited.load(); });
    first.synchronize();
    waiting.join();
    return HOLDS(good);
}

struct Cancelled {
    App *app;
    std::atomic<bool> begins{false}, behind{false};
};

void *call_and_be_cancelled(void *argument)
{
    auto *self = static_cast<Cancelled *>(argument);
    self->app->launch(1);
    self->begins = true;
    self->app->synchronize(); // the back end is held
    self->behind = true;
    for (;;)
        pause();
}

// pthread_cancel() of a thread in the middle of a call: the call is made, other threads go on.
bool a_cancelled_thread()
{
    Scene scene;
    App first = scene.app(), second = scene.app();
    REQUIRE(warm(&first) && warm(&second));
    std::uint64_t expected = first.work();
    Cancelled cancelled{&first};
    pthread_t thread;
    scene.world->held = true;
    REQUIRE(!pthread_create(&thread, nullptr, call_and_be_cancelled, &cancelled));
    REQUIRE(becomes([&] { return cancelled.begins.load(); }));
    pthread_cancel(thread);
    scene.world->held = false;
    pthread_join(thread, nullptr);
    REQUIRE(cancelled.behind);
    expected = expected * 6364136223846793005u + 1 + 1;
    REQUIRE(second.work() == expected && second.launch(2) == 0);
    expected = expected * 6364136223846793005u + 2 + 1;
    REQUIRE(first.work() == expected);
    return true;
}

// A thread that never waits gets ahead only so far: others' calls come after the launches that it
// has left.
bool an_endless_thread()
{
    constexpr unsigned most = 16384, calls = most + 500;
    Scene scene;
    App endless = scene.app(), other = scene.app();
    REQUIRE(warm(&endless) && warm(&other));
    std::atomic<unsigned> made{0};
    std::atomic<bool> good{true};
    scene.world->held = true;
    Calling calling(scene.back, [&] {
        for (unsigned i = 0; i < calls && good; i++, made++)
            good = endless.set(i) == 0;
        return 0;
    });
    const bool far = becomes([&] { return made >= most || !good; });
    calling.settle();
    const unsigned ahead = made;
    scene.world->held = false;
    calling.result();
    REQUIRE(far && ahead == most);
    REQUIRE(good && made == calls && other.synchronize() == 0);
    return true;
}

// A thread destroys a stream, or an event, for which another one waits.
bool destroyed_beside_wait(bool event)
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    const Body thing = Body().u64(event ? 5 : STREAM);
    REQUIRE(warm(&app) && warm(&other) && app.record(5) == 0 && app.synchronize() == 0);
    REQUIRE(app.launch(1) == 0 && app.record(5) == 0);
    scene.world->late = true;
    Calling waiting(scene.back, [&] {
        return other.call(event ? "cudaEventSynchronize" : "cudaStreamSynchronize", thing);
    });
    const bool late = becomes([&] { return scene.world->late_now == 1; });
    Calling destroying(scene.back, [&] {
        return app.call(event ? "cudaEventDestroy" : "cudaStreamDestroy", thing);
    });
    destroying.settle();
    const bool at_once = destroying.returned() && !waiting.returned();
    scene.world->late = false;
    REQUIRE(late && at_once && destroying.result() == 0);
    return HOLDS(waiting.result() == 0);
}

} // namespace

void check_threads()
{
    check("threads that hand over to each other", threads_in_order);
    check("threads in order with libraries", libraries_in_order);
    check("threads apart with libraries", libraries_apart);
    check("a library that names the stream", a_library_that_names_the_stream);
    check("a quick thread behind a slow one", a_quick_thread_behind_a_slow_one);
    check("threads whose streams an event orders", threads_and_events);
    check("threads that have nothing to do with each other", threads_apart);
    check("threads that never rest", many_busy_threads);
    check("a thread that never waits", an_endless_thread);
    check("launches before memory is registered", launches_before_registration);
    check("a stream that is destroyed beside a wait for it",
          [] { return destroyed_beside_wait(false); });
    check("... an event", [] { return destroyed_beside_wait(true); });
    check("a thread that is cancelled inside a call", a_cancelled_thread);
    check("threads at once", threads_at_once);
}
