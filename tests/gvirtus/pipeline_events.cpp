// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Events that the process has made: their end, and whether their last record was run.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/pipeline_scene.h"

#include <atomic>
#include <cstring>

namespace
{

// Makes an event, which has to be this one.
bool makes_event(App *app, std::uint64_t event)
{
    std::uint64_t made = 0;
    if (!app->call("cudaEventCreate", Body()) && app->out.size() == 16)
        std::memcpy(&made, app->out.data() + 8, 8);
    return HOLDS(made == event);
}

// The end of an event that this process has made does not wait, in whatever thread, and what is
// known of others stays; that of any other event waits, since it may fail.
bool events_end_early()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    for (std::uint64_t event : {4u, 5u, 6u})
        REQUIRE(asked(&scene, &app, "cudaEventDestroy", Body().u64(event)) == 1);
    REQUIRE(other.call("cudaEventDestroy", Body().u64(3)) == 0);
    REQUIRE(makes_event(&app, 3) && makes_event(&app, 4) && makes_event(&app, 5));
    REQUIRE(app.record(4) == 0 && app.synchronize() == 0);
    scene.world->held = true;
    REQUIRE(other.call("cudaEventDestroy", Body().u64(3)) == 0);
    REQUIRE(app.record(0) == 0 && app.record(4) == 0 && app.wait(STREAM, 4) == 0);
    REQUIRE(app.call("cudaEventDestroy", Body().u64(4)) == 0 && app.record(5) == 0);
    scene.world->held = false;
    REQUIRE(app.synchronize() == 0 && other.synchronize() == 0);
    REQUIRE(scene.world->destroyed[3] && scene.world->destroyed[4] && !scene.world->destroyed[5]);
    for (std::uint64_t event : {3u, 4u}) {
        REQUIRE(app.record(event) == 400 && app.wait(STREAM, event) == 400);
        REQUIRE(app.last_error() == 400);
    }
    REQUIRE(makes_event(&other, 3) && other.record(3) == 0 && app.wait(STREAM, 3) == 0);
    return HOLDS(app.synchronize() == 0 && app.last_error() == 0 && other.last_error() == 0);
}

// The end of an event comes after what other threads have recorded in it.
bool events_end_in_order()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    REQUIRE(app.call("cudaEventDestroy", Body().u64(6)) == 0 &&
            other.call("cudaEventDestroy", Body().u64(5)) == 0);
    scene.world->slow_us = 200;
    for (unsigned i = 0; i < 6; i++) {
        REQUIRE(makes_event(&app, 5) && app.record(5) == 0);
        for (unsigned j = 0; j < 20; j++)
            REQUIRE(app.launch(j) == 0);
        REQUIRE(app.record(5) == 0 && app.wait(STREAM, 5) == 0);
        REQUIRE(other.call("cudaEventDestroy", Body().u64(5)) == 0);
        REQUIRE(app.synchronize() == 0 && other.synchronize() == 0);
    }
    scene.world->slow_us = 0;
    return HOLDS(app.last_error() == 0);
}

// An event that this process has not made may be any: whoever asks for one that it has made comes
// after what another thread has recorded.
bool events_of_others_in_order()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other) && app.call("cudaEventDestroy", Body().u64(5)) == 0);
    REQUIRE(makes_event(&app, 5) && app.record(5) == 0 && app.synchronize() == 0);
    REQUIRE(other.record(0) == 0 && other.synchronize() == 0);
    const std::uint64_t launches = scene.world->launches;
    scene.world->slow_us = 500;
    for (unsigned i = 0; i < 20; i++)
        REQUIRE(other.launch(i) == 0);
    REQUIRE(other.record(0) == 0);
    REQUIRE(app.call("cudaEventQuery", Body().u64(5)) == 0);
    return HOLDS(scene.world->launches == launches + 20) && other.synchronize() == 0;
}

// A launch that records an event comes after what another thread has recorded in it.
bool events_of_launches_in_order()
{
    constexpr std::uint64_t stream = STREAM + 3;
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other) && app.call("cudaEventDestroy", Body().u64(5)) == 0);
    REQUIRE(makes_event(&app, 5) && other.record(5) == 0 && other.synchronize() == 0);
    for (std::uint32_t attribute :
         {7u, 12u}) { // cudaLaunchAttributeProgrammaticEvent, ...Completion
        const std::uint64_t value[8] = {5}, launches = scene.world->launches;
        const std::vector<char> launch = world_launch(KERNEL, 32, stream, 1, 1).bytes;
        Body body = Body().put<std::uint16_t>(IBX_EXT_LAUNCH_QUEUED).put<std::uint16_t>(68);
        body.put(attribute).put(value).bytes.insert(body.bytes.end(), launch.begin(), launch.end());
        scene.world->slow_us = 500;
        for (unsigned i = 0; i < 20; i++)
            REQUIRE(other.launch(i) == 0);
        REQUIRE(other.record(5) == 0);
        REQUIRE(app.call(IBX_EXT_QUEUE, body.u64(stream)) == -1); // the model knows no such launch
        REQUIRE(scene.world->launches == launches + 20 && other.synchronize() == 0);
    }
    return true;
}

// An event whose record was not run cannot have completed, and the record is run without another
// call.
bool events_pend()
{
    Scene scene;
    App other = scene.app(), app = scene.app(); // the latter's connection is the thread's
    const auto pends = [](std::uint64_t event) {
        return direct->knows(IBX_FRONTEND_EVENT_PENDING, event, nullptr) != 0;
    };
    REQUIRE(warm(&app) && warm(&other) && app.call("cudaEventDestroy", Body().u64(5)) == 0);
    REQUIRE(makes_event(&other, 5) && other.record(5) == 0 && other.synchronize() == 0);
    REQUIRE(!pends(5) && !pends(0) && !pends(7));
    scene.world->held = true;
    for (unsigned i = 0; i < 30; i++)
        REQUIRE(other.launch(i) == 0);
    REQUIRE(other.record(0) == 0 && other.record(5) == 0);
    REQUIRE(pends(5) && !pends(0)); // that was not made by this process
    scene.world->held = false;
    REQUIRE(becomes([&] { return !pends(5); }));
    return HOLDS(asked(&scene, &app, "cudaEventQuery", Body().u64(5)) == 1);
}

// A launch keeps its thread as long as CUDA's queue is full. The replies to calls before it do not
// wait for that: whoever waits for their event may be the one that ends it.
bool before_a_launch_that_blocks(const char *name, std::uint64_t handle)
{
    constexpr std::uint64_t full = STREAM + WORLD_NON_BLOCKING;
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other) && app.call("cudaEventDestroy", Body().u64(5)) == 0);
    REQUIRE(makes_event(&app, 5) && app.record(5) == 0 && app.launch(0, full) == 0);
    REQUIRE(app.launch(1, full) == 0 && app.synchronize() == 0);
    const std::uint64_t launches = scene.world->launches;
    scene.world->held = true;
    scene.world->full = true;
    for (unsigned i = 0; i < 20; i++)
        REQUIRE(app.launch(i) == 0);
    REQUIRE(app.record(5) == 0 && app.launch(2, full) == 0);
    scene.world->held = false;
    std::atomic<bool> over{false};
    Waiting thread([&] { over = other.call(name, Body().u64(handle)) == 0; });
    const bool good = becomes([&] { return over.load(); });
    REQUIRE(scene.world->launches == launches + 20);
    scene.world->full = false;
    thread.join();
    return HOLDS(good && app.synchronize() == 0 && scene.world->launches == launches + 21);
}

bool events_before_a_launch_that_blocks()
{
    return before_a_launch_that_blocks("cudaEventSynchronize", 5);
}

// Nor does a wait for another stream.
bool streams_beside_a_launch_that_blocks()
{
    return before_a_launch_that_blocks("cudaStreamSynchronize", STREAM);
}

// A wait for a stream comes after what another thread has added to it, however many streams that
// thread has used since.
bool streams_before_many_others()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other));
    for (unsigned i = 0; i < WORLD_STREAMS; i++)
        REQUIRE(app.launch(0, STREAM + i) == 0);
    REQUIRE(app.synchronize() == 0);
    const std::uint64_t launches = scene.world->launches;
    scene.world->slow_us = 200;
    for (unsigned i = 0; i < 20; i++)
        REQUIRE(app.launch(i) == 0);
    for (unsigned i = 1; i < WORLD_STREAMS; i++)
        REQUIRE(app.launch(0, STREAM + i) == 0);
    REQUIRE(other.call("cudaStreamSynchronize", Body().u64(STREAM)) == 0);
    return HOLDS(scene.world->launches >= launches + 20) && app.synchronize() == 0;
}

} // namespace

void check_events()
{
    check("events whose end does not wait", events_end_early);
    check("... and comes after other threads' records", events_end_in_order);
    check("... of which one is not this process's", events_of_others_in_order);
    check("... and of launches, too", events_of_launches_in_order);
    check("events whose record was not run", events_pend);
    check("events before a launch that blocks", events_before_a_launch_that_blocks);
    check("streams beside a launch that blocks", streams_beside_a_launch_that_blocks);
    check("streams before many others", streams_before_many_others);
}
