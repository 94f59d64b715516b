// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Calls that are answered before the back end has run them (frontend-glue/call_pipeline), on a
// device that shows every mistake in the order of work (tests/doubles/gvirtus/world.h).
#ifndef TESTS_GVIRTUS_PIPELINE_SCENE_H
#define TESTS_GVIRTUS_PIPELINE_SCENE_H

#include "frontend-glue/preload/attach_table.h"
#include "tests/doubles/gvirtus/world.h"
#include "tests/gvirtus/connections.h"
#include "tests/gvirtus/scene.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

constexpr std::uint64_t STREAM = 100;

// A front end, and the calls that the tests make.
struct App : FrontEnd {
    std::shared_ptr<Communicator> over;
    int answer = 0; // of a call that was made in another way

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
    // 0: it has failed.
    std::uint64_t malloc()
    {
        std::uint64_t address = 0;
        if (!call("cudaMalloc", Body().u64(WORLD_BLOCK)) && out.size() == 8)
            std::memcpy(&address, out.data(), 8);
        return address;
    }
    int free(std::uint64_t address) { return call("cudaFree", Body().u64(address)); }
    int synchronize() { return call("cudaDeviceSynchronize", Body()); }
    int last_error() { return call("cudaGetLastError", Body()); }
    int peek() { return call("cudaPeekAtLastError", Body()); }
    // The number of a stream; ~0: the copy has failed.
    std::uint64_t work(std::uint64_t stream = STREAM)
    {
        return value("cudaMemcpy", Body().host("", 1).u64(stream - 100).u64(8).i32(D2H), ~0ull);
    }
};

// The table that the plugin gives a preload, since this test takes the place of one. Its calls go
// over the connection that the calling thread has made last.
extern const ibx_frontend_calls *direct;

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
        world->full = false;
        back.end();
        world_destroy(world);
    }
    App app(const std::string &more = "", bool timed = true)
    {
        return App(connected(back.port, more), timed);
    }
};

// Polls until the condition is true, for a minute of an idle machine.
inline bool becomes(const std::function<bool()> &condition)
{
    for (unsigned left = patience_ms(60000); left; left--) {
        if (condition())
            return true;
        usleep(1000);
    }
    return false;
}

// The number of a stream after n launches with the values 0 to n-1.
inline std::uint64_t launched(unsigned n, std::uint64_t work = 0)
{
    for (unsigned i = 0; i < n; i++)
        work = work * 6364136223846793005u + i + 1;
    return work;
}

// Makes the calls by which this front end learns what it may answer itself, as a program's first
// launches do.
inline bool warm(App *app)
{
    REQUIRE(app->launch(0) == 0 && app->launch(1) == 0);
    REQUIRE(app->record(0) == 0 && app->wait(STREAM + 1, 0) == 0 && app->set(7, STREAM + 2) == 0);
    REQUIRE(app->synchronize() == 0 && app->last_error() == 0);
    return true;
}

// A thread that may wait for something that the test does later.
class Waiting
{
    static constexpr unsigned LOOKS = 20;
    std::atomic<int> tid{0};
    std::atomic<bool> over{false};
    std::thread thread;

    // Whether the thread sleeps, or has slept since the last look: it may wait by short naps, and
    // run after each.
    bool rests(unsigned long *naps) const
    {
        char line[128], state = 0;
        unsigned long now = *naps;
        const std::string path = "/proc/self/task/" + std::to_string(tid) + "/status";
        std::FILE *file = std::fopen(path.c_str(), "re");
        while (file && std::fgets(line, sizeof(line), file)) {
            std::sscanf(line, "State: %c", &state);
            std::sscanf(line, "voluntary_ctxt_switches: %lu", &now);
        }
        if (file)
            std::fclose(file);
        const bool napped = now != *naps;
        *naps = now;
        return napped || state == 'S';
    }

  public:
    explicit Waiting(std::function<void()> run)
        : thread([this, run = std::move(run)] {
              tid = gettid();
              run();
              over = true;
          })
    {
    }
    ~Waiting() { join(); }
    void join()
    {
        if (thread.joinable())
            thread.join();
    }
    // Whether it waits: it sleeps at each of many looks. A thread that sleeps for a lock does not
    // do so at all of them, since the holder of the lock gets a processor meanwhile, however busy
    // the machine is. False: the thread has ended.
    bool waits() const
    {
        const useconds_t apart = patience_ms(1) * 1000;
        unsigned long naps = 0;
        unsigned rested = 0;
        becomes([&] {
            if (tid && !over && rests(&naps)) {
                rested++;
                usleep(apart);
            }
            return over || rested == LOOKS;
        });
        return !over && rested == LOOKS;
    }
};

// How many requests a call makes: 1: the back end was asked; -1: the call has failed.
inline int asked(Scene *scene, App *app, const char *name, const Body &body)
{
    const std::uint64_t requests = scene->world->requests;
    return app->call(name, body) ? -1 : static_cast<int>(scene->world->requests - requests);
}

// What cudaGetDevice returns; -1: it has failed.
inline std::int32_t device_of(App *app)
{
    std::int32_t found = -1;
    if (!app->call("cudaGetDevice", Body()) && app->out.size() == 4)
        std::memcpy(&found, app->out.data(), 4);
    return found;
}

// Runs a test in a process of its own: when calls are lost, all threads of the process get the
// error.
inline bool apart(const std::function<bool()> &test)
{
    return result_of(spawn([&] { return test() ? 0 : 1; })) == 0;
}

// The tests, by subject; each file ends with its list.
void check_answers();
void check_direct();
void check_memory();
void check_copies();
void check_errors();
void check_events();
void check_threads();
void check_processes();
void check_programs(unsigned programs);

#endif
