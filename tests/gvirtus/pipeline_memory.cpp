// SPDX-License-Identifier: LGPL-2.1-or-later
//
// cudaFree does not wait if the device has no work, and the next cudaMalloc gets the memory again.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/pipeline_scene.h"

#include <functional>
#include <thread>

namespace
{

bool frees_do_not_wait()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && app.free(app.malloc()) == 0); // shows the form of the call
    const std::uint64_t block = app.malloc();
    REQUIRE(block && app.synchronize() == 0);
    scene.world->held = true;
    REQUIRE(app.free(block) == 0 && scene.world->allocated[0]);
    scene.world->held = false;
    REQUIRE(becomes([&] { return !scene.world->allocated[0]; }));
    // In order: the next allocation finds the memory.
    std::uint64_t blocks[WORLD_BLOCKS];
    for (std::uint64_t &one : blocks)
        REQUIRE((one = app.malloc()) != 0);
    REQUIRE(app.malloc() == 0 && app.last_error() == 2 && app.synchronize() == 0);
    for (unsigned i = 0; i < 100; i++)
        REQUIRE(app.free(blocks[i % 4]) == 0 && app.malloc() == blocks[i % 4]);
    // Two in a row, the second while the first one is outstanding.
    scene.world->held = true;
    REQUIRE(app.free(blocks[0]) == 0 && app.free(blocks[1]) == 0 && scene.world->allocated[0]);
    scene.world->held = false;
    REQUIRE(app.malloc() == blocks[0] && app.malloc() == blocks[1]);
    return true;
}

// cudaFree does not know memory that was freed in a stream: it asks the back end.
bool freed_in_a_stream()
{
    Scene scene("rdma.gpu : off\n"); // the world runs such requests

    App app = scene.app();
    REQUIRE(warm(&app) && app.free(app.malloc()) == 0);
    const std::uint64_t block = app.malloc();
    Body body;
    body.put(static_cast<std::uint16_t>(IBX_EXT_FREE_ASYNC)).u64(block).u64(0);
    const ibx_frontend_request request{
        IBX_EXT_NAME, body.bytes.data(), body.bytes.size(), nullptr, 0, false};
    REQUIRE(block && app.synchronize() == 0);
    REQUIRE(direct->call(&request, &app.answer) == 0 && app.answer == 0);
    REQUIRE(app.synchronize() == 0 && app.free(block) == 1);
    return HOLDS(app.last_error() == 1);
}

// Frees that may fail, or have to wait for work, wait for the back end.
bool other_frees_wait()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other) && app.free(app.malloc()) == 0);
    REQUIRE(app.synchronize() == 0);
    REQUIRE(app.free(0x5000) == 1 && app.last_error() == 1 && app.last_error() == 0);
    const std::uint64_t block = app.malloc();
    REQUIRE(app.synchronize() == 0 && app.free(block) == 0);
    REQUIRE(app.free(block) == 1 && app.last_error() == 1); // twice
    auto waits = [&](const std::function<bool()> &before) {
        const std::uint64_t one = app.malloc();
        if (!one || app.synchronize() || !before())
            return false;
        scene.world->held = true;
        Waiting thread([&] { app.free(one); });
        const bool waited = thread.waits();
        scene.world->held = false;
        thread.join();
        return waited;
    };
    auto at_once = [&] { // otherwise it would wait for ever
        const std::uint64_t one = app.malloc();
        if (!one || app.synchronize())
            return false;
        scene.world->held = true;
        const int rc = app.free(one);
        scene.world->held = false;
        return rc == 0;
    };
    REQUIRE(at_once());
    REQUIRE(waits([&] { return app.launch(1) == 0; }));
    REQUIRE(waits([&] { return other.launch(1) == 0; }));
    REQUIRE(waits([&] { return app.record(0) == 0; }));
    REQUIRE(waits([&] { return app.set(1) == 0; }));
    REQUIRE(waits([&] { return app.call("cudaDeviceReset", Body()) == 0; }));
    REQUIRE(at_once());
    REQUIRE(waits([&] { return app.call("cudaSetDevice", Body().i32(1)) == 0; }));
    return true;
}

// Another thread's next call gets the memory that a thread has freed.
bool memory_between_threads()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other) && app.free(app.malloc()) == 0);
    std::uint64_t blocks[WORLD_BLOCKS];
    for (std::uint64_t &one : blocks)
        REQUIRE((one = app.malloc()) != 0);
    scene.world->slow_us = 300;
    for (unsigned i = 0; i < 40; i++) {
        App &one = i % 2 ? app : other, &next = i % 2 ? other : app;
        REQUIRE(one.synchronize() == 0 && one.free(blocks[i % 4]) == 0);
        REQUIRE(next.malloc() == blocks[i % 4]);
    }
    return true;
}

} // namespace

// Each in a process of its own, which has selected no other device yet.
void check_memory()
{
    auto alone = [](const char *what, bool (*test)()) {
        check(what, [=] { return result_of(spawn([=] { return test() ? 0 : 1; })) == 0; });
    };
    alone("memory that is given back at rest", frees_do_not_wait);
    alone("memory that is given back otherwise", other_frees_wait);
    alone("memory that was freed in a stream", freed_in_a_stream);
    alone("memory that another thread gets", memory_between_threads);
}
