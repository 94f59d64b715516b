// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Threads and processes that end, or fork.
#include "tests/gvirtus/pipeline_scene.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <sys/wait.h>
#include <thread>

namespace
{

// Ends with a launch that its back end does not run, once a byte comes.
int ends_when_told(Scene *scene, int told)
{
    static App *kept; // an application that ends does not free it
    char byte;
    auto *app = kept = new App(scene->app());
    if (!warm(app))
        return 1;
    scene->world->held = true;
    if (app->launch(0) || read(told, &byte, 1) != 1)
        return 1;
    std::exit(0);
}

// A thread that ends before the back end has run its launches. It waits for longer than the end of
// a process that begins later.
bool a_thread_ends()
{
    Scene of_process;
    int pipe_ends[2];
    REQUIRE(pipe(pipe_ends) == 0);
    const pid_t process = spawn([&] { return ends_when_told(&of_process, pipe_ends[0]); });
    Scene scene;
    App app = scene.app();
    App *of_thread = nullptr; // as in GVirtuS it outlives the thread
    std::atomic<bool> launched_all{false};
    REQUIRE(warm(&app));
    std::thread thread([&] {
        of_thread = new App(scene.app());
        if (!warm(of_thread))
            return;
        scene.world->held = true;
        for (unsigned i = 0; i < 300; i++)
            of_thread->launch(i);
        launched_all = true;
    });
    const bool begun = becomes([&] { return launched_all.load(); });
    const bool told = write(pipe_ends[1], "", 1) == 1;
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    const int result = result_of(process);
    scene.world->held = false;
    thread.join();
    REQUIRE(begun && told && result == 0);
    REQUIRE(app.synchronize() == 0 && scene.world->launches == 304);
    delete of_thread;
    return true;
}

// Runs `ending` in a process of its own, which ends at once.
bool leaves(const std::function<void(App *)> &ending)
{
    Scene scene;
    pid_t pid = spawn([&]() -> int {
        static App *kept; // an application that ends does not free it
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

// GVirtuS's destructors delete all front ends as a process ends, whatever their threads do.
bool beside_a_call()
{
    Scene scene;
    const pid_t pid = spawn([&]() -> int {
        std::atomic<App *> app{nullptr};
        Waiting thread([&] {
            auto *made = new App(scene.app());
            if (!warm(made))
                std::_Exit(1);
            app = made;
            scene.world->held = true;
            made->launch(1);
            made->synchronize(); // which never ends
        });
        if (!becomes([&] { return app.load(); }) || !thread.waits())
            std::_Exit(2);
        delete app.load();
        std::_Exit(0);
    });
    int status = -1;
    const bool ended = becomes([&] { return waitpid(pid, &status, WNOHANG) == pid; });
    if (!ended)
        kill(pid, SIGKILL);
    scene.world->held = false;
    return HOLDS(ended && WIFEXITED(status) && WEXITSTATUS(status) == 0);
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

} // namespace

void check_processes()
{
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
    check("a front end that is destroyed beside a call of its thread", beside_a_call);
    check("a forked child", forked);
}
