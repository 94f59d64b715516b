// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Programs whose handlers of signals end them in the middle of a call, at each moment at which the
// call has got a lock (application_exits.cpp).
#include "tests/gvirtus/frontend_scene.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace
{

constexpr int interrupted_status = 42, unloading = 4; // cudaErrorCudartUnloading
constexpr unsigned moments_most = 500;

// Sets it for the applications of a test.
struct Wish {
    const char *name;
    Wish(const char *of, const std::string &value) : name(of) { setenv(of, value.c_str(), 1); }
    ~Wish() { unsetenv(name); }
};

int ended_at(const BackEnd &back, const char *test, unsigned moment)
{
    const Wish wish("IBX_EXITS_MOMENT", std::to_string(moment));
    Application app(&back, application, test);
    const int status = app.ended();
    if (status && status != interrupted_status)
        dprintf(report_to, "moment %u: exit status %d: %s\n", moment, status, app.said().c_str());
    return status;
}

// It ends well at each moment, of which there are more than `least`.
bool ends_at_each(const BackEnd &back, const char *test, unsigned least)
{
    unsigned moment = 1, bad = 0;
    for (int status; (status = ended_at(back, test, moment)) && moment < moments_most; moment++)
        bad += status != interrupted_status;
    if (bad)
        dprintf(report_to, "%u of %u moments\n", bad, moment - 1);
    return HOLDS(!bad && moment > least && moment < moments_most);
}

bool exits_in_handlers(const char *mode, const char *how)
{
    const bool few = !std::strcmp(how, "twice") || !std::strcmp(mode, "alone");
    const Wish mode_wish("IBX_EXITS_MODE", mode), how_wish("IBX_EXITS_HOW", how);
    GpuBackEnd back(true, one_process);
    return ends_at_each(back, "exits-in-handler", few ? 10 : 30);
}

// There, GVirtuS's destructors close the connection.
bool exits_without_preload()
{
    const std::string before = std::exchange(preload, "");
    const bool good = exits_in_handlers("alone", "by exit");
    preload = before;
    return good;
}

bool exits_in_searches()
{
    GpuBackEnd back(true, one_process);
    return ends_at_each(back, "exits-in-search", 1);
}

bool exits_in_waits(const char *mode)
{
    const Wish wish("IBX_EXITS_MODE", mode);
    GpuBackEnd back;
    Application app(&back, application, "exits-in-wait");
    return HOLDS(app.ended() == interrupted_status);
}

bool exits_early()
{
    GpuBackEnd back;
    Application app(&back, application, "exits-early");
    char said[64] = {};
    REQUIRE(app.ended() == interrupted_status && read(app.out, said, sizeof(said) - 1) > 0);
    return HOLDS(!std::strcmp(said, "exits early, and in order\n"));
}

// A first call of CUDA as the process ends, in a program that has opened its libraries: what they
// have registered was called before, and GVirtuS's front end cannot connect any more. With "kernel"
// the call would register a module.
bool first_call_at_the_end(const char *which)
{
    const char *opener = std::getenv("IBX_TEST_LOCAL_OPENER");
    REQUIRE(opener);
    const Wish wish("IBX_TEST_LAST", which);
    GpuBackEnd back;
    Application app(&back, opener, cudart.c_str());
    return HOLDS(app.ended() == unloading);
}

bool good(const char *test)
{
    GpuBackEnd back;
    Application app(&back, application, test);
    return HOLDS(app.good());
}

// As GVirtuS's front end does when a communicator fails to connect.
bool ends_without_connection()
{
    GpuBackEnd back;
    Application app(&back, application, "thread-is-refused");
    return HOLDS(app.ended() == EXIT_FAILURE && lines_with(app.said(), "Connection refused") > 0);
}

// What the program has exit(3) call is not cut short.
bool ends_by_one_thread()
{
    GpuBackEnd back;
    Application app(&back, application, "threads-are-refused");
    return HOLDS(app.ended() == EXIT_FAILURE && lines_with(app.said(), "all was called") == 1);
}

bool ends_beside_standstill(const char *mode)
{
    const Wish wish("IBX_EXITS_MODE", mode);
    GpuBackEnd back(true, one_process);
    Application app(&back, application, "ends-beside-standstill");
    return HOLDS(app.good());
}

} // namespace

void check_exits()
{
    check("an application that ends in the middle of copies", ends_in_the_middle);
    for (const char *mode : {"plain", "closes", "frees", "thread", "child"})
        check((std::string("a signal handler that calls exit: ") + mode).c_str(),
              [=] { return exits_in_handlers(mode, "by exit"); });
    for (const char *how : {"at once", "quickly", "twice"})
        check((std::string("... and one that ends the process ") + how).c_str(),
              [=] { return exits_in_handlers("closes", how); });
    check("... without the preload library", exits_without_preload);
    check("... and interrupts a search", exits_in_searches);
    for (const char *mode : {"plain", "managed", "leaves"})
        check((std::string("... and interrupts a wait: ") + mode).c_str(),
              [=] { return exits_in_waits(mode); });
    check("exit before the preload library is initialized", exits_early);
    for (const char *which : {"1", "kernel"})
        check((std::string("a first call behind what libraries do as the process ends: ") + which)
                  .c_str(),
              [=] { return first_call_at_the_end(which); });
    check("threads that connect beside each other", [] { return good("threads-connect-at-once"); });
    check("... and what GVirtuS reads for that", [] { return good("endpoint-is-kept"); });
    check("... beside forks", [] { return good("forks-among-beginners"); });
    check("a thread that cannot connect", ends_without_connection);
    check("... and several at once", [] { return ends_by_one_thread(); });
    check("a back end that stands still as the process ends",
          [] { return ends_beside_standstill("plain"); });
    check("... and whose connection is closed before",
          [] { return ends_beside_standstill("closes"); });
}
