// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Synchronous copies to the device that return before they are made, if nobody can notice that.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/pipeline_scene.h"

#include <functional>
#include <thread>
#include <vector>

namespace
{

constexpr std::size_t copy_sizes[] = {4, 1900, 1901, 10000, 16000, 20000, 65536};

// A copy as the preload makes it. Once the call has returned, other bytes are written to its
// memory.
int copy(std::uint64_t to, std::size_t n, unsigned seed)
{
    std::vector<char> bytes = random_bytes(n, seed);
    ibx_frontend_copy what{};
    int rc = -1;
    what.to_device = true;
    what.device = to;
    what.host = bytes.data();
    what.n = n;
    if (direct->copy(&what, &rc))
        return -3;
    std::memset(bytes.data(), 0x5a, n);
    return rc;
}

Body body_of(std::uint64_t to, std::size_t n, unsigned seed)
{
    const std::vector<char> bytes = random_bytes(n, seed);
    return Body().u64(to).host(bytes.data(), n).u64(n).i32(H2D);
}

// The same on a world of its own.
struct Model {
    World *world = world_create();
    WorldThread thread;

    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    explicit Model(const World *like)
    {
        for (unsigned i = 0; i < WORLD_STREAMS; i++)
            world->work[i] = like->work[i];
    }
    ~Model() { world_destroy(world); }
    int call(const char *name, const Body &body)
    {
        Body out;
        return world_run(world, &thread, name, body.bytes, &out);
    }
    void copy(std::size_t n, unsigned seed) { call("cudaMemcpy", body_of(1, n, seed)); }
    bool is(App *app)
    {
        for (unsigned i = 0; i < WORLD_STREAMS; i++)
            if (app->work(STREAM + i) != world->work[i])
                return false;
        return true;
    }
};

// How long a copy may be to return early: over shm only short ones in messages do, since no GPU
// takes others from memory that both ends map.
bool goes_ahead(std::size_t n)
{
    return provider == "tcp" || n < 15000;
}

// Memory for copies, by a front end that knows that nothing has failed.
std::uint64_t begin(App *app)
{
    const std::uint64_t block = warm(app) ? app->malloc() : 0;
    return block && !copy(block, 4, 0) && !copy(block, 5000, 0) && !app->synchronize() ? block : 0;
}

// The calls return while the device takes nothing; the copies are made in order, with the bytes at
// the time of the call.
bool copies_do_not_wait()
{
    Scene scene;
    App app = scene.app();
    const std::uint64_t block = begin(&app);
    REQUIRE(block);
    Model model(scene.world);
    scene.world->held = true;
    for (std::size_t n : copy_sizes) { // not more than may be under way
        if (!goes_ahead(n))
            continue;
        REQUIRE(copy(block + 7, n, 1) == 0 && app.last_error() == 0);
        model.copy(n, 1);
        if (n > 1900)
            continue;
        REQUIRE(app.call("cudaMemcpy", body_of(block, n, 2)) == 0);
        model.copy(n, 2);
    }
    scene.world->held = false;
    REQUIRE(model.is(&app));
    for (unsigned i = 0; i < 60; i++) { // more than may be under way
        REQUIRE(copy(block, copy_sizes[i % 7], i) == 0);
        model.copy(copy_sizes[i % 7], i);
        REQUIRE(i % 11 || (app.launch(i, STREAM + i % 4) == 0));
        if (i % 11 == 0)
            model.call("cudaLaunchKernel", world_launch(KERNEL, 32, STREAM + i % 4, i));
    }
    return HOLDS(model.is(&app) && app.synchronize() == 0 && app.last_error() == 0);
}

// Whether a copy waits for the device; `before` is called first. -1: something is wrong.
int waits_after(Scene *scene, std::uint64_t to, std::size_t n,
                const std::function<bool(App *app, std::uint64_t block)> &before)
{
    std::atomic<int> begun{-1}; // 0, 1: the device takes nothing from now on
    std::atomic<int> rc{-1};
    Waiting thread([&] { // copies go over the connection of the calling thread
        App app = scene->app();
        const std::uint64_t block = begin(&app);
        const bool good = block && before(&app, block);
        scene->world->held = good;
        begun = good;
        if (good)
            rc = copy(to ? to : block, n, 1);
        if (block)
            app.free(block);
    });
    const bool good = becomes([&] { return begun >= 0; }) && begun;
    const bool waited = good && thread.waits() && rc == -1; // or the end of the thread does it
    scene->world->held = false;
    thread.join();
    return good && rc == 0 ? waited : -1;
}

bool other_copies_wait()
{
    for (std::size_t n : {std::size_t{4}, std::size_t{5000}}) {
        Scene scene("rdma.gpu : off\n"); // the world runs such requests
        const auto waits = [&](const std::function<bool(App *, std::uint64_t)> &before,
                               std::uint64_t to = 0) { return waits_after(&scene, to, n, before); };
        App other = scene.app();
        const Body graph = Body().u64(1).u64(STREAM);
        REQUIRE(warm(&other));
        REQUIRE(waits([](App *, std::uint64_t) { return true; }) == 0);
        REQUIRE(waits([](App *app, std::uint64_t) { return app->record(0) == 0; }) == 0);
        // Memory that this process has not allocated.
        REQUIRE(waits([](App *, std::uint64_t) { return true; }, 1) == 1);
        // Work that a synchronous copy waits for natively.
        REQUIRE(waits([](App *app, std::uint64_t) { return app->launch(1) == 0; }) == 1);
        REQUIRE(waits([](App *app, std::uint64_t) { return app->set(1) == 0; }) == 1);
        REQUIRE(waits([](App *app, std::uint64_t) { return app->wait(STREAM, 0) == 0; }) == 1);
        REQUIRE(waits([&](App *app, std::uint64_t) {
                    return app->call("cudaGraphLaunch", graph) == 0;
                }) == 1);
        REQUIRE(waits([&](App *, std::uint64_t) { return other.launch(1) == 0; }) == 1);
        REQUIRE(waits([](App *app, std::uint64_t) {
                    return app->launch(1) == 0 && app->synchronize() == 0;
                }) == 0);
        REQUIRE(waits([&](App *, std::uint64_t) {
                    return other.launch(1) == 0 && other.work() != ~0ull;
                }) == 0);
        REQUIRE(waits([](App *app, std::uint64_t) { // this need not wait for other streams, either
                    return app->launch(1) == 0 &&
                           app->call("cudaStreamSynchronize", Body().u64(0)) == 0;
                }) == 1);
        REQUIRE(waits([](App *app, std::uint64_t) { // a copy of nothing waits for nothing
                    const Body none = Body().host("", 1).u64(0).u64(0).i32(D2H);
                    return app->launch(1) == 0 && app->call("cudaMemcpy", none) == 0;
                }) == 1);
        REQUIRE(waits([](App *app, std::uint64_t) {
                    return app->launch(1) == 0 &&
                           app->call("cudaStreamSynchronize", Body().u64(STREAM)) == 0;
                }) == 1); // others may have work
    }
    return true;
}

// Each of these makes copies wait for the rest of the process.
bool copies_wait_for_good(const std::function<bool(App *app)> &since)
{
    Scene scene("rdma.gpu : off\n");
    const auto before = [&](App *app, std::uint64_t) {
        return since(app) && app->synchronize() == 0;
    };
    return waits_after(&scene, 0, 4, before) == 1 && waits_after(&scene, 0, 5000, before) == 1;
}

bool memory_that_processes_share()
{
    return copies_wait_for_good([](App *app) {
        Body body;
        body.put(static_cast<std::uint16_t>(IBX_EXT_IPC_MEMORY));
        app->call(IBX_EXT_NAME, body);
        return true;
    });
}

bool copies_beside_other_devices()
{
    return copies_wait_for_good(
        [](App *app) { return app->call("cudaSetDevice", Body().i32(1)) == 0; });
}

bool while_a_stream_is_captured()
{
    Scene scene;
    App app = scene.app();
    const std::uint64_t block = begin(&app);
    REQUIRE(block && app.call("cudaStreamBeginCapture", Body().u64(STREAM).i32(0)) == 0);
    REQUIRE(copy(block, 4, 1) == 906 && app.last_error() == 906); // as CUDA has it
    REQUIRE(app.call("cudaStreamEndCapture", Body().u64(STREAM).i32(0)) == 901);
    REQUIRE(app.last_error() == 901 && app.synchronize() == 0);
    return HOLDS(copy(block, 5000, 1) == 0);
}

// A capture ends with its stream, with the device's reset, and when a thread tries to end it that
// may not: then copies return early again.
bool behind_captures()
{
    Scene scene;
    const Body begun = Body().u64(STREAM).i32(0), stream = Body().u64(STREAM);
    for (const char *end : {"cudaStreamDestroy", "cudaDeviceReset"})
        REQUIRE(waits_after(&scene, 0, 4, [&](App *app, std::uint64_t block) {
                    REQUIRE(app->call("cudaStreamBeginCapture", begun) == 0);
                    REQUIRE(app->call(end, stream) == 0 && app->last_error() == 0);
                    REQUIRE(app->free(block) == 0 && app->malloc() == block);
                    return !copy(block, 4, 0) && app->synchronize() == 0;
                }) == 0);
    return waits_after(&scene, 0, 4, [&](App *app, std::uint64_t block) {
               REQUIRE(app->call("cudaStreamBeginCapture", begun) == 0);
               int rc = 0;
               std::thread([&] {
                   App other = scene.app();
                   rc = other.call("cudaStreamEndCapture", stream);
               }).join();
               REQUIRE(rc == 908 && app->free(block) == 0 && app->malloc() == block);
               return !copy(block, 4, 0) && app->synchronize() == 0;
           }) == 0;
}

// The reset of one device leaves captures of other devices' streams: calls wait as beside captures.
bool captures_of_other_devices()
{
    Scene scene;
    std::atomic<int> begun{-1}, rc{-1};
    Waiting thread([&] {
        App app = scene.app();
        const bool good = warm(&app) && app.call("cudaSetDevice", Body().i32(1)) == 0 &&
                          app.call("cudaStreamBeginCapture", Body().u64(STREAM).i32(0)) == 0 &&
                          app.call("cudaDeviceReset", Body()) == 0 && warm(&app);
        scene.world->held = good;
        begun = good;
        if (good)
            rc = app.launch(1);
    });
    const bool good = becomes([&] { return begun >= 0; }) && begun;
    const bool waited = good && thread.waits() && rc == -1;
    scene.world->held = false;
    thread.join();
    return waited && rc == 0;
}

// cudaStreamPerThread is another stream in each thread, and so are its captures.
bool beside_captures_of_threads()
{
    Scene scene;
    const Body own = Body().u64(WORLD_THREAD_STREAM).i32(0);
    const auto captures = [&](App *app) { return app->call("cudaStreamBeginCapture", own) == 0; };
    const auto ends = [&](App *app) { return app->call("cudaStreamEndCapture", own) == 0; };
    const auto two = [&](bool both_end) {
        return waits_after(&scene, 0, 4, [&](App *app, std::uint64_t block) {
            bool good = captures(app);
            std::thread([&] {
                App other = scene.app();
                good = good && captures(&other) && ends(&other);
            }).join();
            good = good && (!both_end || (ends(app) && app->free(block) == 0 &&
                                          app->malloc() == block && !copy(block, 4, 0)));
            return good && app->synchronize() == 0;
        });
    };
    return two(true) == 0 && two(false) == 1;
}

// The call itself refuses a wrong address.
bool wrong_addresses()
{
    Scene scene;
    App app = scene.app();
    const std::uint64_t block = begin(&app);
    REQUIRE(block && app.malloc() == block + WORLD_BLOCK && app.synchronize() == 0);
    for (std::size_t n : {std::size_t{100}, std::size_t{5000}}) {
        for (std::uint64_t wrong :
             {block - 1, block + 5 * WORLD_BLOCK, block + 2 * WORLD_BLOCK - n + 1,
              block + WORLD_BLOCK - n + 1, std::uint64_t{50}, std::uint64_t{0}}) {
            REQUIRE(copy(wrong, n, 1) == 1 && app.last_error() == 1 && app.last_error() == 0);
            REQUIRE(app.malloc() == block + 2 * WORLD_BLOCK); // as an error is forgotten
            REQUIRE(app.free(block + 2 * WORLD_BLOCK) == 0);
        }
        REQUIRE(copy(block + WORLD_BLOCK - n, n, 1) == 0);
    }
    REQUIRE(app.free(block) == 0 && copy(block, 4, 1) == 1 && copy(block, 5000, 1) == 1);
    return true;
}

// The next call that waits returns an error that nobody could know before.
bool errors_come_later()
{
    Scene scene;
    App app = scene.app();
    for (std::size_t n : {std::size_t{4}, std::size_t{5000}}) {
        const std::uint64_t block = begin(&app);
        REQUIRE(block);
        scene.world->held = true;
        REQUIRE(copy(block, n, 1) == 0);
        scene.world->fatal = 700;
        scene.world->held = false;
        REQUIRE(app.synchronize() == 700 && copy(block, n, 1) == 700);
        scene.world->fatal = 0;
        REQUIRE(app.last_error() == 700 && app.last_error() == 0);
        REQUIRE(copy(block, n, 1) == 0 && app.synchronize() == 0 && app.free(block) == 0);
    }
    const std::uint64_t block = begin(&app);
    scene.back.end();
    REQUIRE(becomes([&] { return copy(block, 5000, 1) != 0; }));
    return HOLDS(app.last_error() == 999);
}

// Another thread's next calls come behind the copies, also in a stream that does not wait for the
// legacy one.
bool in_order_between_threads()
{
    Scene scene;
    App other = scene.app(), app = scene.app(); // `direct` goes over the last one
    const std::uint64_t block = begin(&app);
    REQUIRE(block && warm(&other) && other.launch(0, STREAM + WORLD_NON_BLOCKING) == 0 &&
            other.synchronize() == 0);
    Model model(scene.world);
    for (std::size_t n : {std::size_t{8}, std::size_t{6000}}) {
        for (unsigned stream = 0; stream < WORLD_STREAMS; stream++) {
            scene.world->held = true;
            REQUIRE(copy(block, n, stream) == 0);
            model.copy(n, stream);
            Waiting thread([&] { other.launch(0, STREAM + stream); });
            const bool waited = thread.waits();
            scene.world->held = false;
            thread.join();
            REQUIRE(waited && other.synchronize() == 0);
            model.call("cudaLaunchKernel", world_launch(KERNEL, 32, STREAM + stream, 0));
        }
    }
    return HOLDS(model.is(&app));
}

// A copy from page-locked memory that is answered before it is made; `lasting`: of memory from
// allocate().
int copy_later(std::uint64_t to, const std::vector<char> &bytes, bool lasting)
{
    ibx_frontend_copy what{};
    int rc = -1;
    what.to_device = what.async = what.pinned = true;
    what.lasting = lasting;
    what.stream = STREAM;
    what.device = to;
    what.host = const_cast<char *>(bytes.data());
    what.n = bytes.size();
    return direct->copy(&what, &rc) ? -3 : rc;
}

// Sessions go on though their threads make no calls, also those for copies in the background: the
// back end keeps lost ones only for a short time.
bool connections_that_break_at_rest()
{
    Scene scene;
    const Connections connections;
    App app = scene.app();
    const std::uint64_t block = begin(&app);
    REQUIRE(block);
    Model model(scene.world);
    const auto copies = [&](unsigned seed) {
        for (std::size_t n : {std::size_t{5000}, std::size_t{1} << 17}) { // the latter by a helper
            const std::vector<char> bytes = random_bytes(n, seed);
            Body body = body_of(1, n, seed);
            REQUIRE(copy_later(block, bytes, n == 5000) == 0 && app.synchronize() == 0);
            REQUIRE(direct->failure(STREAM) == 0);
            model.call("cudaMemcpyAsync", body.u64(STREAM));
        }
        return true;
    };
    for (unsigned i = 0; i < 3; i++) {
        REQUIRE(copies(i));
        connections.cut();
        REQUIRE(becomes([&] { return connections.live(); }));
    }
    return HOLDS(copies(3) && model.is(&app));
}

} // namespace

// Some run in a process of their own, since they change it for good.
void check_copies()
{
    auto alone = [](const char *what, bool (*test)()) {
        check(what, [=] { return result_of(spawn([=] { return test() ? 0 : 1; })) == 0; });
    };
    alone("copies to the device that do not wait", copies_do_not_wait);
    alone("copies to the device that wait", other_copies_wait);
    alone("copies to memory that processes share", memory_that_processes_share);
    alone("copies beside other devices", copies_beside_other_devices);
    alone("copies while a stream is captured", while_a_stream_is_captured);
    alone("copies behind captures that nobody ends", behind_captures);
    alone("calls behind the reset of one of several devices", captures_of_other_devices);
    alone("copies while threads capture their own streams", beside_captures_of_threads);
    alone("copies to wrong addresses", wrong_addresses);
    alone("errors of copies that have returned", errors_come_later);
    alone("copies, and what another thread does next", in_order_between_threads);
    if (provider != "ofi") // as in check_errors()
        alone("copies behind breaks while nobody calls anything", connections_that_break_at_rest);
}
