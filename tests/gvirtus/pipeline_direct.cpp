// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that the preload makes without GVirtuS's front end, and what it knows without a call.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/pipeline_scene.h"

#include <cerrno>
#include <string>
#include <thread>

namespace
{

// As the preload makes it; `done` tells whether GVirtuS was not needed.
int make(const char *name, const Body &body, bool *done, void *out = nullptr, std::size_t n = 0)
{
    int rc = -1;
    const ibx_frontend_request request{name, body.bytes.data(), body.bytes.size(), out, n, false};
    const int answer = direct->call(&request, &rc);
    *done = !answer;
    return answer && answer != -ENOTCONN ? -2 : rc;
}

int must(const char *name, const Body &body)
{
    bool done;
    const int rc = make(name, body, &done);
    return done ? rc : -3;
}

bool knows(ibx_frontend_fact fact, std::uint64_t handle = 0)
{
    int answer;
    return direct->knows(fact, handle, &answer);
}

const Body none, event0 = Body().u64(0), stream0 = Body().u64(STREAM),
                 record0 = Body().u64(0).u64(STREAM), wait0 = Body().u64(STREAM + 1).u64(0).i32(0);

// Calls only in a form that GVirtuS's front end has used, and only on the thread's own connection.
bool only_what_gvirtus_has_made()
{
    Scene scene;
    bool done;
    App app = scene.app();
    make("cudaEventRecord", record0, &done);
    REQUIRE(!done);
    REQUIRE(app.record(0) == 0 && must("cudaEventRecord", record0) == 0);
    make("cudaEventRecord", Body().u64(0).u64(STREAM).i32(0), &done); // another form
    REQUIRE(!done);
    make("cudaEventRecord", record0, &done, &done, 1);
    REQUIRE(!done);
    make("cudaStreamWaitEvent", wait0, &done);
    REQUIRE(!done && becomes([&] { return scene.world->requests == 2; }));
    const std::uint64_t requests = scene.world->requests;
    std::thread([&] { make("cudaEventRecord", record0, &done); }).join();
    REQUIRE(!done && scene.world->requests == requests);
    return true;
}

// Such calls keep one order with those of GVirtuS.
bool in_order()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    std::uint64_t expected = app.work(), other = app.work(STREAM + 1);
    for (unsigned i = 0; i < 300; i++) {
        REQUIRE(app.launch(i) == 0 && must("cudaEventRecord", record0) == 0);
        expected = expected * 6364136223846793005u + i + 1;
        REQUIRE((i % 2 ? must("cudaStreamWaitEvent", wait0) : app.wait(STREAM + 1, 0)) == 0);
        other = other * 6364136223846793005u + expected + 1;
        if (i % 16 == 0)
            REQUIRE(must("cudaDeviceSynchronize", none) == 0);
        if (i % 16 == 0)
            REQUIRE(scene.world->events[0] == expected && scene.world->work[1] == other);
    }
    return HOLDS(app.work() == expected && app.work(STREAM + 1) == other);
}

bool memory()
{
    Scene scene;
    App app = scene.app();
    std::uint64_t address = 0, again = 0;
    bool done;
    REQUIRE(warm(&app) && app.free(app.malloc()) == 0);
    REQUIRE(make("cudaMalloc", Body().u64(WORLD_BLOCK), &done, &address, 8) == 0 && done &&
            address);
    REQUIRE(app.synchronize() == 0 && must("cudaFree", Body().u64(address)) == 0);
    REQUIRE(make("cudaMalloc", Body().u64(WORLD_BLOCK), &done, &again, 8) == 0 && again == address);
    for (unsigned i = 1; i < WORLD_BLOCKS; i++)
        REQUIRE(app.malloc());
    REQUIRE(make("cudaMalloc", Body().u64(WORLD_BLOCK), &done, &again, 8) == 2 && done);
    REQUIRE(app.last_error() == 2 && again == address);
    return true;
}

// A request of ours that sets memory comes after all work in its stream, by any thread, and does
// not wait for it.
bool sets()
{
    Scene scene("rdma.gpu : off\n"); // the world runs such requests
    App first = scene.app(), second = scene.app();
    const auto set = [](std::uint64_t value, int number = IBX_EXT_MEMSET) {
        Body body;
        body.put(static_cast<std::uint16_t>(number));
        return body.u64(value).i32(0).u64(8).u64(STREAM);
    };
    REQUIRE(warm(&first) && warm(&second) && must(IBX_EXT_QUEUE, set(0)) == 0);
    std::uint64_t expected = second.work();
    scene.world->slow_us = 200;
    for (unsigned i = 0; i < 40; i++) {
        for (unsigned j = 0; j < 5; j++) {
            REQUIRE(first.launch(i) == 0);
            expected = expected * 6364136223846793005u + i + 1;
        }
        REQUIRE(must(IBX_EXT_QUEUE, set(i)) == 0);
        expected = expected * 6364136223846793005u + i + 1;
    }
    REQUIRE(second.work() == expected);
    scene.world->held = true;
    REQUIRE(must(IBX_EXT_QUEUE, set(1)) == 0);
    scene.world->held = false;
    // A request that the back end does not know waits, and returns an error.
    return HOLDS(must(IBX_EXT_QUEUE, set(1, IBX_EXT_MEMSET_2D)) == -1);
}

int launch_unseen(std::uint64_t value, unsigned threads = 32)
{
    const Body body = world_launch(KERNEL, threads, STREAM, value);
    const ibx_frontend_request request{
        "cudaLaunchKernel", body.bytes.data(), body.bytes.size(), nullptr, 0, true};
    int rc = -1;
    return direct->call(&request, &rc) ? -3 : rc;
}

// Launches by <<<>>> do not wait, not even the first one. An error becomes the last error, and no
// other call returns it.
bool unseen()
{
    Scene scene;
    App app = scene.app();
    const auto by_gvirtus = [&](unsigned threads) {
        return app.call("cudaLaunchKernel", world_launch(KERNEL, threads, STREAM, 2));
    };
    REQUIRE(launch_unseen(0) == -3); // how this back end replies nobody knows yet
    REQUIRE(app.last_error() == 0);
    scene.world->held = true;
    REQUIRE(launch_unseen(0) == 0 && launch_unseen(1, 64) == 0 && scene.world->launches == 0);
    direct->unseen(true);
    REQUIRE(by_gvirtus(96) == 0 && scene.world->launches == 0);
    REQUIRE(!knows(IBX_FRONTEND_NO_ERROR)); // that is not certain
    scene.world->held = false;
    REQUIRE(app.last_error() == 0 && app.work() == launched(3));
    scene.world->held = true; // what has succeeded succeeds again
    REQUIRE(launch_unseen(0) == 0 && knows(IBX_FRONTEND_NO_ERROR));
    REQUIRE(launch_unseen(0, 128) == 0 && !knows(IBX_FRONTEND_NO_ERROR));
    scene.world->held = false;
    for (int i = 0; i < 3; i++) {
        REQUIRE(launch_unseen(1, 2000) == 0 && app.synchronize() == 0 && app.peek() == 9);
        REQUIRE(app.last_error() == 9 && app.last_error() == 0 && knows(IBX_FRONTEND_NO_ERROR));
        REQUIRE(launch_unseen(1, 2000) == 0 && app.synchronize() == 0 && app.last_error() == 9);
        REQUIRE(app.last_error() == 0);
        direct->unseen(true); // holds for one launch
        REQUIRE(by_gvirtus(2000) == 0 && by_gvirtus(2000) == 9 && app.last_error() == 9);
        REQUIRE(app.last_error() == 0);
        direct->unseen(true); // for a launch that GVirtuS has not sent
        direct->unseen(false);
        REQUIRE(by_gvirtus(2000) == 9 && app.last_error() == 9);
        REQUIRE(app.last_error() == 0);
        REQUIRE(launch_unseen(1, 2000) == 0);
        REQUIRE(must("cudaLaunchKernel", world_launch(KERNEL, 2000, STREAM, 1)) == 9);
        REQUIRE(app.last_error() == 9 && app.last_error() == 0);
    }
    scene.world->refuses = 2; // CUDA knows nothing of it there
    REQUIRE(launch_unseen(0, 256) == 0 && app.synchronize() == 0 && app.peek() == 2);
    REQUIRE(!knows(IBX_FRONTEND_NO_ERROR) && app.last_error() == 2 && app.last_error() == 0);
    REQUIRE(launch_unseen(0, 256) == 0 && app.last_error() == 2 && app.last_error() == 0);
    scene.world->refuses = 0;
    REQUIRE(knows(IBX_FRONTEND_NO_ERROR));
    for (unsigned threads = 1; threads < 100; threads++) // more than are kept
        REQUIRE(launch_unseen(0, threads) == 0);
    REQUIRE(app.synchronize() == 0 && app.last_error() == 0);
    for (unsigned threads = 1; threads < 100; threads++)
        REQUIRE(launch_unseen(0, threads) == 0 && knows(IBX_FRONTEND_NO_ERROR));
    REQUIRE(app.call("cudaDeviceReset", none) == 0); // from then on nothing is certain
    return HOLDS(launch_unseen(0) == 0 && !knows(IBX_FRONTEND_NO_ERROR) && app.last_error() == 0);
}

// Errors are those of the same calls by GVirtuS.
bool errors()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && knows(IBX_FRONTEND_NO_ERROR));
    REQUIRE(must("cudaEventRecord", Body().u64(99).u64(STREAM)) == 400);
    REQUIRE(!knows(IBX_FRONTEND_NO_ERROR) && app.peek() == 400 && app.last_error() == 400);
    REQUIRE(app.last_error() == 0 && knows(IBX_FRONTEND_NO_ERROR));
    scene.world->fails_with = 701; // of a launch that was answered
    scene.world->fails_in = 1;
    REQUIRE(app.launch(1) == 0 && becomes([&] { return scene.world->fails_in == 0; }));
    REQUIRE(must("cudaDeviceSynchronize", none) == 701 && !knows(IBX_FRONTEND_NO_ERROR));
    REQUIRE(must("cudaDeviceSynchronize", none) == 0 && app.last_error() == 701);
    REQUIRE(app.last_error() == 0 && knows(IBX_FRONTEND_NO_ERROR));
    scene.back.end();
    REQUIRE(becomes([&] {
        bool done;
        const int rc = make("cudaDeviceSynchronize", none, &done);
        return !done || rc == 999;
    }));
    REQUIRE(!knows(IBX_FRONTEND_NO_ERROR) && !knows(IBX_FRONTEND_STREAM_RESTS, STREAM));
    return HOLDS(app.synchronize() == 999 && app.last_error() == 999);
}

bool facts()
{
    Scene scene;
    int device = -1;
    App app = scene.app();
    REQUIRE(!knows(IBX_FRONTEND_NO_ERROR) && !knows(IBX_FRONTEND_DEVICE));
    REQUIRE(warm(&app) && knows(IBX_FRONTEND_NO_ERROR));
    REQUIRE(app.call("cudaGetDevice", none) == 0);
    REQUIRE(direct->knows(IBX_FRONTEND_DEVICE, 0, &device) && device == 0);
    REQUIRE(!knows(IBX_FRONTEND_SELECTED, 0)); // no device was selected
    REQUIRE(app.call("cudaSetDevice", Body().i32(0)) == 0 && knows(IBX_FRONTEND_SELECTED, 0));
    REQUIRE(!knows(IBX_FRONTEND_SELECTED, 1));
    REQUIRE(app.call("cudaStreamQuery", stream0) == 0 && app.call("cudaEventQuery", event0) == 0);
    REQUIRE(knows(IBX_FRONTEND_STREAM_RESTS, STREAM) && knows(IBX_FRONTEND_EVENT_OVER, 0));
    REQUIRE(!knows(IBX_FRONTEND_STREAM_RESTS, STREAM + 1) && !knows(IBX_FRONTEND_EVENT_OVER, 1));
    REQUIRE(must("cudaEventRecord", record0) == 0);
    REQUIRE(!knows(IBX_FRONTEND_STREAM_RESTS, STREAM) && !knows(IBX_FRONTEND_EVENT_OVER, 0));
    const std::uint64_t requests = scene.world->requests;
    for (int i = 0; i < 100; i++)
        REQUIRE(knows(IBX_FRONTEND_NO_ERROR) && knows(IBX_FRONTEND_SELECTED, 0));
    REQUIRE(scene.world->requests <= requests + 1); // that of the event may have come meanwhile
    REQUIRE(app.call("cudaSetDevice", Body().i32(1)) == 0 && !knows(IBX_FRONTEND_SELECTED, 0));
    REQUIRE(knows(IBX_FRONTEND_SELECTED, 1) && !knows(IBX_FRONTEND_DEVICE));
    REQUIRE(app.call("cudaGetDevice", none) == 0);
    REQUIRE(direct->knows(IBX_FRONTEND_DEVICE, 0, &device) && device == 1);
    REQUIRE(app.call("cudaDeviceReset", none) == 0 && !knows(IBX_FRONTEND_DEVICE));
    REQUIRE(!knows(IBX_FRONTEND_SELECTED, 1));
    return true;
}

} // namespace

void check_direct()
{
    check("calls without GVirtuS, as it makes them", only_what_gvirtus_has_made);
    check("their order", in_order);
    check("memory without GVirtuS", memory);
    check("memory that is set by a request of ours", sets);
    check("launches by <<<>>>", unseen);
    check("their errors", errors);
    check("what is known without a call", facts);
}
