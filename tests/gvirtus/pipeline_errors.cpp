// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Errors of calls that were answered early, and back ends that are killed.
#include "tests/gvirtus/pipeline_scene.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

namespace
{

// A call returns its own errors, as natively.
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
        REQUIRE(app.record(STREAM) == 400 && app.last_error() == 400); // a stream is no event
        REQUIRE(app.wait(STREAM + 1, STREAM) == 400 && app.last_error() == 400);
    }
    return true;
}

// The next call that waits returns errors that nobody could know, and they are the last error.
bool errors_later()
{
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app));
    for (bool waits : {true, false}) {
        scene.world->fails_with = 701;
        scene.world->fails_in = 2;
        REQUIRE(app.launch(1) == 0 && app.launch(1) == 0);
        REQUIRE(becomes([&] { return scene.world->fails_in == 0; }));
        if (waits)
            REQUIRE(app.synchronize() == 701 && app.synchronize() == 0);
        REQUIRE(app.peek() == 701);
        REQUIRE(app.last_error() == 701 && app.last_error() == 0);
        REQUIRE(app.synchronize() == 0);
        REQUIRE(app.launch(1) == 0 && app.last_error() == 0); // it succeeds again
    }
    scene.world->fails_with = 701; // a reset returns it, too
    scene.world->fails_in = 1;
    REQUIRE(app.launch(1) == 0 && becomes([&] { return scene.world->fails_in == 0; }));
    REQUIRE(app.call("cudaDeviceReset", Body()) == 701 && app.synchronize() == 0);
    REQUIRE(app.last_error() == 701 && app.last_error() == 0 && warm(&app));
    // If success was not certain, a query of the last error waits for the call.
    for (int i = 0; i < 3; i++) {
        REQUIRE(app.set(1, 99) == 0 && app.last_error() == 400 && app.last_error() == 0);
        REQUIRE(app.set(1) == 0 && app.last_error() == 0 && app.synchronize() == 0);
    }
    // An error that a waiting call has returned is not returned again, if the device is well.
    REQUIRE(app.launch(1) == 0 && app.synchronize() == 0);
    REQUIRE(app.call("testBreak", Body().u64(700)) == 0 && app.launch(1) == 0);
    REQUIRE(app.synchronize() == 700 && app.call("testHeal", Body()) == 0);
    REQUIRE(app.synchronize() == 0);
    app.last_error();
    REQUIRE(app.last_error() == 0 && app.launch(1) == 0 && app.synchronize() == 0);
    // An error that stays in CUDA, stays here.
    REQUIRE(app.call("testBreak", Body().u64(700)) == 0);
    app.launch(1);
    REQUIRE(app.synchronize() == 700 && app.last_error() == 700 && app.last_error() == 700);
    REQUIRE(app.launch(1) == 700 && app.peek() == 700 && app.work() == ~0ull);
    REQUIRE(app.call("testHeal", Body()) == 0);
    app.last_error();
    REQUIRE(app.last_error() == 0 && app.launch(1) == 0 && app.synchronize() == 0);
    return true;
}

// A sticky error that a wait has returned: no call succeeds any more, in any thread, also not one
// that has succeeded before, and streams that were idle are no longer.
bool sticky_errors()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    const auto query = [](App *any) { return any->call("cudaStreamQuery", Body().u64(STREAM)); };
    REQUIRE(warm(&app) && warm(&other));
    for (int i = 0; i < 2; i++) {
        for (App *any : {&app, &other})
            REQUIRE(any->launch(1) == 0 && any->set(7) == 0 && any->synchronize() == 0);
        REQUIRE(query(&app) == 0);
        scene.world->fatal = 700;
        REQUIRE(app.synchronize() == 700);
        for (App *any : {&app, &other}) {
            REQUIRE(any->launch(1) == 700 && any->set(7) == 700);
            REQUIRE(any->record(0) == 700 && query(any) == 700);
        }
        scene.world->fatal = 0; // as after a reset
        REQUIRE(app.synchronize() == 0);
        for (App *any : {&app, &other})
            REQUIRE(any->last_error() == 700 && any->last_error() == 0);
    }
    scene.world->held = true; // launches are early again
    const bool early = app.launch(1) == 0;
    scene.world->held = false;
    return HOLDS(early && app.synchronize() == 0);
}

// A wait of another thread has succeeded before the error, and its reply comes after that: it says
// nothing about the error.
bool sticky_errors_stay()
{
    Scene scene;
    App app = scene.app(), other = scene.app();
    REQUIRE(warm(&app) && warm(&other) && app.launch(1) == 0 && app.synchronize() == 0);
    scene.world->late = true;
    std::atomic<int> rc{-1};
    std::thread waiting([&] { rc = other.call("cudaStreamSynchronize", Body().u64(STREAM)); });
    const bool late = becomes([&] { return scene.world->late_now == 1; });
    scene.world->fatal = 700;
    const int told = app.synchronize();
    scene.world->late = false;
    waiting.join();
    REQUIRE(late && told == 700 && rc == 0);
    for (App *any : {&app, &other})
        REQUIRE(any->launch(1) == 700 && any->set(7) == 700 && any->record(0) == 700);
    scene.world->fatal = 0;
    return HOLDS(app.synchronize() == 0 && app.last_error() == 700 && app.launch(1) == 0);
}

// Errors of library calls that were answered early: their numbers are not CUDA's.
bool errors_of_libraries()
{
    const Body gemm = Body().u64(1).u64(7);
    Scene scene;
    App app = scene.app();
    REQUIRE(warm(&app) && app.call("cublasCreate_v2", Body().u64(1)) == 0);
    for (int i = 0; i < 2; i++) {
        scene.world->library_fails = LIBRARY_FAILED; // it waits, since it has not succeeded yet
        REQUIRE(app.call("cublasSgemm_v2", gemm) == LIBRARY_FAILED && app.last_error() == 0);
        REQUIRE(app.call("cublasSgemm_v2", gemm) == 0 && app.synchronize() == 0);
        scene.world->library_fails = LIBRARY_FAILED;
        REQUIRE(app.call("cublasSgemm_v2", gemm) == 0);
        REQUIRE(app.synchronize() == 719 && app.synchronize() == 0);
        REQUIRE(app.last_error() == 719 && app.last_error() == 0);
    }
    // So many requests later its number is given to another call, with an error of CUDA's.
    constexpr unsigned ahead = 16384;
    REQUIRE(app.call("cublasSgemm_v2", gemm) == 0 && app.launch(1) == 0 && app.synchronize() == 0);
    REQUIRE(app.call("cublasSgemm_v2", gemm) == 0);
    scene.world->fails_with = 701;
    scene.world->fails_in = ahead;
    for (unsigned i = 0; i < ahead; i++)
        REQUIRE(app.launch(i) == 0);
    return HOLDS(app.synchronize() == 701);
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

// The first call after the kill is one that waits.
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

// A thread has ended without a call that waits: the next waiting call of another thread returns its
// error.
bool errors_of_a_thread_that_ends()
{
    Scene scene;
    App app = scene.app();
    App *of_thread = nullptr; // as in GVirtuS it outlives the thread
    bool good = false;
    REQUIRE(warm(&app));
    std::thread([&] {
        of_thread = new App(scene.app());
        good = warm(of_thread);
        scene.world->fails_with = 701;
        scene.world->fails_in = 1;
        good = good && of_thread->launch(1) == 0;
    }).join();
    REQUIRE(good && app.launch(1) == 0 && app.synchronize() == 701 && app.synchronize() == 0);
    REQUIRE(app.last_error() == 701 && app.last_error() == 0);
    delete of_thread;
    return HOLDS(app.synchronize() == 0);
}

// With a thread's connection its launches are lost, while other threads' connections go on: each
// thread learns that from a call that would have waited for those launches.
bool one_connection_is_lost()
{
    Scene scene;
    App app = scene.app(), another = scene.app();
    const Connections connections;
    App lost = scene.app("rdma.resume_seconds : 0\n");
    REQUIRE(warm(&app) && warm(&another) && warm(&lost));
    REQUIRE(device_of(&app) == 0 && app.call("cudaSetDevice", Body().i32(1)) == 0);
    scene.world->held = true;
    REQUIRE(lost.launch(1) == 0 && lost.launch(2) == 0);
    connections.cut();
    REQUIRE(app.synchronize() == 999 && app.synchronize() == 0 && app.last_error() == 999);
    REQUIRE(device_of(&app) == 1);
    REQUIRE(another.work() == ~0ull && another.work() != ~0ull && another.synchronize() == 0);
    REQUIRE(lost.synchronize() == 999 && lost.launch(1) == 999 && app.synchronize() == 0);
    return true;
}

// Threads that begin later are told as long as nobody was told; threads that were there are told in
// any case.
bool one_connection_was_lost()
{
    Scene scene;
    App app = scene.app();
    const Connections connections;
    App lost = scene.app("rdma.resume_seconds : 0\n");
    REQUIRE(warm(&app) && warm(&lost));
    scene.world->held = true;
    REQUIRE(lost.launch(1) == 0 && lost.launch(2) == 0);
    connections.cut();
    REQUIRE(lost.synchronize() == 999);
    scene.world->held = false;
    App first = scene.app(), early = scene.app();
    REQUIRE(first.synchronize() == 999 && first.synchronize() == 0);
    for (int i = 0; i < 3; i++) {
        App later = scene.app();
        REQUIRE(later.synchronize() == 0 && later.work() != ~0ull);
    }
    REQUIRE(app.synchronize() == 999 && app.synchronize() == 0);
    return HOLDS(early.synchronize() == 999 && early.synchronize() == 0);
}

// A thread with nothing to lose takes nothing from others. Over shared memory, the memory that both
// ends map may still answer a call, until one of them looks at the socket.
bool one_connection_breaks()
{
    Scene scene;
    App app = scene.app();
    const Connections connections;
    App broken = scene.app("rdma.resume_seconds : 0\n");
    REQUIRE(warm(&app) && warm(&broken) && broken.launch(1) == 0 && broken.synchronize() == 0);
    connections.cut();
    REQUIRE(app.synchronize() == 0 && app.work() != ~0ull);
    REQUIRE(becomes([&] { return broken.synchronize() == 999; }));
    REQUIRE(app.synchronize() == 0);
    return true;
}

// With the back end's process goes everything that threads have there, also threads that make no
// calls any more: a thread that begins later, with another process, is told that, as long as nobody
// was. It would not find what others have handed it, and other things may be at the same addresses.
bool process_is_lost(bool told)
{
    Scene scene("rdma.processes : program\nrdma.spare_processes : 0\n");
    App app = scene.app(), another = scene.app();
    REQUIRE(warm(&app) && warm(&another) && app.malloc() && app.synchronize() == 0);
    const std::vector<pid_t> children = scene.back.children();
    REQUIRE(children.size() == 1 && kill(children.front(), SIGKILL) == 0);
    REQUIRE(becomes([&] { return scene.back.children().empty(); }));
    REQUIRE(!told || app.synchronize() == 999);
    App later = scene.app();
    REQUIRE(told || later.synchronize() == 999);
    REQUIRE(later.synchronize() == 0 && later.work() != ~0ull);
    REQUIRE(app.synchronize() == 999 && another.synchronize() == 999);
    App last = scene.app();
    return HOLDS(last.synchronize() == 0 && later.synchronize() == 0);
}

// The session goes on over another connection while its thread is in no call: before the back end
// gives the session up.
bool mends_between_calls(const char *mode)
{
    Scene scene;
    const Connections connections;
    App app = scene.app(std::string("rdma.pipeline : ") + mode + "\n");
    REQUIRE(warm(&app));
    const std::uint64_t work = app.work();
    for (unsigned i = 0; i < 3; i++) {
        connections.cut();
        REQUIRE(becomes([&] { return connections.live(); }));
        REQUIRE(app.launch(i) == 0 && app.synchronize() == 0);
    }
    return HOLDS(app.work() == launched(3, work));
}

} // namespace

void check_errors()
{
    check("errors that a call returns", errors_at_once);
    check("errors that appear later", errors_later);
    check("sticky errors", sticky_errors);
    check("... that come before the reply of an older call", sticky_errors_stay);
    check("errors of libraries' calls", errors_of_libraries);
    check("a back end that is killed", [] { return apart([] { return killed(false); }); });
    check("a back end that is killed while it is busy",
          [] { return apart([] { return killed(true); }); });
    check("the same, seen by a call that waits", [] { return apart(killed_before_a_wait); });
    check("a process of the back end that is killed between calls",
          [] { return apart([] { return process_is_lost(false); }); });
    check("... of which a thread was told",
          [] { return apart([] { return process_is_lost(true); }); });
    check("errors of a thread that has ended", errors_of_a_thread_that_ends);
    if (provider == "ofi") // it has sockets that are no connections, and wakes itself by them
        return;
    check("one thread's connection that is lost", [] { return apart(one_connection_is_lost); });
    check("threads that begin after it was", [] { return apart(one_connection_was_lost); });
    check("one that breaks between calls", [] { return apart(one_connection_breaks); });
    for (const char *mode : {"all", "launches", "off"})
        check((std::string("connections that break between calls: ") + mode).c_str(),
              [mode] { return apart([mode] { return mends_between_calls(mode); }); });
}
