// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Programs that call NCCL, whose ranks are at the back end.
#include "tests/gvirtus/frontend_scene.h"

#include <vector>

namespace
{

// One of the application's own tests.
bool run_nccl(const char *test)
{
    GpuBackEnd back(true, "rdma.nccl : on\n");
    Application app(&back, application, test, "taken");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

constexpr const char *with_nccl = "rdma.nccl : on\n";

// Each program has a rank: the first one's id goes to the other one.
bool ranks_of(const BackEnd &back)
{
    std::vector<char> id(128);
    Application first(&back, application, "nccl-first-rank");
    Application second(&back, application, "nccl-second-rank");
    std::size_t n = 0;
    for (ssize_t got = 1; n < id.size() && got > 0;
         n += got > 0 ? static_cast<std::size_t>(got) : 0)
        got = read(first.out, id.data() + n, id.size() - n);
    REQUIRE(n == id.size() && write(second.in, id.data(), n) == static_cast<ssize_t>(n));
    REQUIRE(first.good());
    REQUIRE(second.good());
    return HOLDS(lines_with(first.said() + second.said(), "ibx:") == 0);
}

bool nccl_between_programs()
{
    GpuBackEnd back(true, std::string(one_process) + with_nccl);
    const Listening apart(std::string("rdma.gpu : on\n") + with_nccl);
    auto over = connected(apart.port);
    Remote other(over.get()); // Application looks for a process that serves
    other.get_last_error();
    return HOLDS(ranks_of(back) && ranks_of(apart));
}

// A rank that waits for another one is killed: the process of the back end goes on.
bool nccl_left()
{
    GpuBackEnd back(true, std::string(one_process) + with_nccl);
    auto over = connected(back.port);
    Remote other(over.get());
    other.get_last_error();
    Application app(&back, application, "nccl-left");
    char byte;
    REQUIRE(read(app.out, &byte, 1) == 1);
    while (other.library_handles() < 2) // communicators
        usleep(1000);
    kill(app.pid, SIGKILL);
    REQUIRE(!app.good());
    while (other.library_handles()) // the test's limit ends it
        usleep(1000);
    return HOLDS(ranks_of(back));
}

// A line says what to do, at either end.
bool without_nccl()
{
    GpuBackEnd back;
    Application app(&back, application, "no-nccl");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 1);
    return HOLDS(lines_with(app.said(), "the back end allows no NCCL (write rdma.nccl : on") == 1);
}

// ... as if it lacked the library.
bool without_libnccl()
{
    const std::string library = std::getenv("IBX_LIBNCCL");
    setenv("IBX_LIBNCCL", "/nowhere/libnccl.so.2", 1);
    GpuBackEnd back(true, with_nccl);
    setenv("IBX_LIBNCCL", library.c_str(), 1);
    Application app(&back, application, "no-nccl");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 1);
    return HOLDS(lines_with(app.said(), "no libnccl.so.2 (install libnccl2 there)") == 1);
}

bool nccl_by_name()
{
    GpuBackEnd back(true, with_nccl);
    Application app(&back, application, "nccl-by-name");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 2);
    return HOLDS(lines_with(app.said(), "ncclCommShrink returns ncclInvalidUsage") == 1);
}

} // namespace

// `all`: also those for which the provider makes no difference.
void check_nccl(bool all)
{
    check("nccl between programs", nccl_between_programs);
    check("nccl of a program that is killed", nccl_left);
    if (!all)
        return;
    for (const char *test : {"nccl-threads", "nccl-one-thread", "nccl-without-waiting",
                             "nccl-aborts", "nccl-asked", "nccl-destroyed"})
        check(test, [=] { return run_nccl(test); });
    check("nccl where it is not allowed", without_nccl);
    check("nccl where its library is missing", without_libnccl);
    check("nccl by the names in a program's library", nccl_by_name);
}
