// SPDX-License-Identifier: LGPL-2.1-or-later
//
// More programs than permitted, each with a process of the back end.
#include "tests/gvirtus/programs_scene.h"

#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/resource.h>

namespace
{

// A program that gets no process is told so, unless another program of its key's name has ended.
// Programs that have a process can use all descriptors there.
bool crowd()
{
    const Descriptors usual(1024);
    const std::string file = keys_of_two();
    const std::string alice = file + "rdma.name : alice\n";
    const Listening back(file + "rdma.tenant_share : 1\n"); // of 1024
    std::vector<std::unique_ptr<Program>> all;
    for (int i = 0; i < 10; i++) {
        all.push_back(std::make_unique<Program>(back, alice));
        REQUIRE(all.back()->ask(WORKS) == 1);
    }
    const auto told = [&](const std::string &more) {
        return 0 == result_of(spawn([&]() -> int {
                   try {
                       connected(back.port, alice + more);
                   } catch (const std::exception &e) {
                       return !std::strstr(e.what(), "as many as rdma.tenant_share");
                   }
                   return 1;
               }));
    };
    REQUIRE(told("") && (provider == "verbs" || told("rdma.encryption : required\n")));
    REQUIRE(all.back()->ask(FORKS) == 1); // a child is the same program
    const Program bob(back, file + "rdma.name : bob\n");
    REQUIRE(bob.ask(WORKS) == 1 && back.children().size() == 11);
    all.front()->end();
    REQUIRE(back.has(10));
    return HOLDS(Program(back, alice).ask(WORKS) == 1);
}

// The process that listens has few descriptors: the programs of one name do not take all of them.
bool crowd_without_descriptors()
{
    const std::string file = keys_of_two();
    const Listening back(file);
    const rlimit few = {64, 4096};
    REQUIRE(prlimit(back.pid, RLIMIT_NOFILE, &few, nullptr) == 0);
    std::vector<std::unique_ptr<Program>> all;
    do
        all.push_back(std::make_unique<Program>(back, file + "rdma.name : alice\n"));
    while (all.back()->ask(WORKS) == 1 && all.size() < 60);
    REQUIRE(all.size() > 10);
    const Program bob(back, file + "rdma.name : bob\n");
    return HOLDS(bob.ask(WORKS) == 1);
}

// How many programs the back end serves at once.
std::size_t served(const BackEnd &back)
{
    std::vector<std::unique_ptr<Program>> all;
    do
        all.push_back(std::make_unique<Program>(back));
    while (all.back()->ask(WORKS) == 1 && all.size() < 20);
    return all.size() - 1; // the last one got no process
}

// The same for programs of another user; only root can become that user.
std::size_t served_as_another_user(const BackEnd &back)
{
    std::vector<pid_t> all;
    int over[2], answers[2];
    char answer = 'g';
    if (pipe2(over, O_CLOEXEC) || pipe2(answers, O_CLOEXEC))
        std::abort();
    while (answer == 'g' && all.size() < 20) {
        all.push_back(spawn([&]() -> int {
            close(over[1]);
            const bool good = as_another_user(back, [&](Remote *its) {
                const bool works_there = works(its) == 1;
                return write(answers[1], works_there ? "g" : "b", 1) == 1 && works_there &&
                       read(over[0], &answer, 1) == 0;
            });
            return write(answers[1], "e", 1) != 1 || !good;
        }));
        if (read(answers[0], &answer, 1) != 1)
            break;
    }
    for (const int end : {over[0], over[1], answers[0], answers[1]})
        close(end);
    for (const pid_t program : all)
        result_of(program);
    return all.size() - 1;
}

// Without keys, programs of another user do not take everything that the option limits: that user
// gets `most`, and the rest is left to others.
bool crowd_of_a_user(const std::string &option, std::size_t most)
{
    if (geteuid())
        return true;
    const Listening back(option);
    REQUIRE(served_as_another_user(back) == most);
    return true;
}

// ... but the back end's own user, who could end it anyway, gets everything, unless the option is
// set.
bool crowd_of_its_own_user(const std::string &option, std::size_t all, std::size_t most)
{
    const Listening back(option);
    REQUIRE(served(back) == all);
    const Listening other(option + "rdma.tenant_share : 75\n");
    REQUIRE(served(other) == most);
    return true;
}

// The hard limit counts for the back end; its processes have the soft one.
bool soft_limit_of_descriptors()
{
    const std::string file = keys_of_two();
    const BackEnd back("rdma.processes : program\nrdma.spare_processes : 0\n" + file,
                       [](auto listening) {
                           const rlimit few = {64, 1024};
                           if (setrlimit(RLIMIT_NOFILE, &few))
                               std::_Exit(3);
                           cuda_back_end_child(listening, true);
                       });
    std::vector<std::unique_ptr<Program>> all;
    for (unsigned i = 0; i < 25; i++) {
        all.push_back(std::make_unique<Program>(back, file + "rdma.name : alice\n"));
        REQUIRE(all.back()->ask(WORKS) == 1);
    }
    rlimit its{};
    REQUIRE(prlimit(back.children().back(), RLIMIT_NOFILE, nullptr, &its) == 0);
    return HOLDS(its.rlim_cur == 64 && its.rlim_max == 1024);
}

} // namespace

void check_programs_crowds()
{
    const std::string programs = "rdma.most_processes : 8\n", sessions = "rdma.sessions : 4\n";
    check("more programs than there may be", crowd);
    if (provider == "verbs") // its clients are on another host, and need more descriptors
        return;
    check("... than descriptors", crowd_without_descriptors);
    check("... than the soft limit of descriptors", soft_limit_of_descriptors);
    check("... than a user may have", [&] { return crowd_of_a_user(programs, 6); });
    check("... and of other limits", [&] { return crowd_of_a_user(sessions, 3); });
    check("... than the back end's own user may have",
          [&] { return crowd_of_its_own_user(programs, 8, 6); });
    check("... and of other limits", [&] { return crowd_of_its_own_user(sessions, 4, 3); });
}
