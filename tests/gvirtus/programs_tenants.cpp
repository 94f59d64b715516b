// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A back end with a process for each tenant (rdma.processes : tenant).
#include "tests/gvirtus/programs_scene.h"

#include <thread>
#include <utility>

namespace
{

const std::string no_waiting = "rdma.idle_seconds : 0\n", waits_long = "rdma.idle_seconds : 3600\n";

struct Tenants : Listening {
    explicit Tenants(const std::string &more = no_waiting, std::size_t spare = 0)
        : Listening(more, spare, "tenant")
    {
    }
};

bool programs_share_it()
{
    const Tenants back;
    Program a(back), b(back);
    REQUIRE(a.ask(WORKS) == 1 && b.ask(WORKS) == 1 && back.children().size() == 1);
    const long before = b.ask(ALLOCATIONS);
    REQUIRE(a.ask(ALLOCATES) == 1 && b.ask(ALLOCATIONS) == before + 1);
    a.end();
    REQUIRE(b.ask(WORKS) == 1 && b.ask(FORKS) == 1 && b.ask(SHARES) == 1);
    b.end();
    return HOLDS(back.has(0));
}

bool each_tenant_has_one()
{
    const std::string keys = keys_of_two();
    const Tenants back(keys + no_waiting);
    const std::string alice = keys + "rdma.name : alice\n", bob = keys + "rdma.name : bob\n";
    Program a(back, alice), b(back, bob);
    const Program c(back, alice);
    REQUIRE(a.ask(WORKS) == 1 && b.ask(WORKS) == 1 && c.ask(WORKS) == 1);
    REQUIRE(back.children().size() == 2);
    const long alices = c.ask(ALLOCATIONS), bobs = b.ask(ALLOCATIONS);
    REQUIRE(a.ask(ALLOCATES) == 1);
    REQUIRE(c.ask(ALLOCATIONS) == alices + 1 && b.ask(ALLOCATIONS) == bobs);
    REQUIRE(b.ask(BREAKS) == broken && b.ask(SYNCHRONIZES) == broken);
    REQUIRE(a.ask(WORKS) == 1 && c.ask(WORKS) == 1);
    b.end();
    return HOLDS(back.has(1) && a.ask(WORKS) == 1);
}

// Programs that are there see the error (natively only the faulty one would); a later one does not.
bool broken_by_one_of_them()
{
    const Said said;
    const Tenants back(waits_long);
    Program a(back), b(back);
    REQUIRE(a.ask(WORKS) == 1 && b.ask(WORKS) == 1 && back.children().size() == 1);
    REQUIRE(a.ask(BREAKS) == broken && b.ask(SYNCHRONIZES) == broken);
    const Program c(back);
    REQUIRE(c.ask(WORKS) == 1 && back.children().size() == 2);
    const Program d(back);
    REQUIRE(d.ask(WORKS) == 1 && back.children().size() == 2);
    REQUIRE(b.ask(SYNCHRONIZES) == broken); // and its new threads are where it is
    REQUIRE(b.ask(SHARES) == 0 && back.children().size() == 2);
    a.end();
    REQUIRE(b.ask(SYNCHRONIZES) == broken);
    b.end();
    REQUIRE(back.has(1) && c.ask(WORKS) == 1);
    return HOLDS(said.has("those that begin later get another process"));
}

bool stays_for_the_next()
{
    const Tenants back(waits_long);
    pid_t first = 0;
    for (int i = 0; i < 5; i++) {
        Program a(back);
        REQUIRE(a.ask(ALLOCATES) == 1 && back.children().size() == 1);
        first = first ? first : back.children().front();
        REQUIRE(back.children().front() == first);
        a.end(i % 2 ? SIGKILL : 0);
    }
    return HOLDS(back.children().size() == 1 && back.children().front() == first);
}

bool does_not_stay_for_ever()
{
    const Tenants back("rdma.idle_seconds : 1\n");
    Program a(back);
    REQUIRE(a.ask(WORKS) == 1 && back.children().size() == 1);
    a.end();
    REQUIRE(back.has(0));
    return HOLDS(Program(back).ask(WORKS) == 1);
}

bool crashed_of_one()
{
    const Said said;
    const std::string keys = keys_of_two();
    const Tenants back(keys + waits_long);
    const Program a(back, keys + "rdma.name : alice\n");
    REQUIRE(a.ask(WORKS) == 1);
    const pid_t alices = back.children().front();
    const Program b(back, keys + "rdma.name : bob\n");
    REQUIRE(b.ask(WORKS) == 1 && kill(alices, SIGSEGV) == 0);
    REQUIRE(becomes_true([&] { return a.ask(SYNCHRONIZES) == lost; }));
    const Program c(back, keys + "rdma.name : alice\n");
    return HOLDS(b.ask(WORKS) == 1 && c.ask(WORKS) == 1 && back.has(2));
}

bool goes_on_in_its_process()
{
    const Tenants back(resume + waits_long);
    const Program a(back, resume), b(back, resume);
    REQUIRE(a.ask(ALLOCATES) == 1 && b.ask(WORKS) == 1);
    const long had = a.ask(ALLOCATIONS);
    REQUIRE(a.ask(CUTS) > 0 && a.ask(ALLOCATIONS) == had && a.ask(WORKS) == 1);
    return HOLDS(b.ask(WORKS) == 1 && back.children().size() == 1);
}

[[noreturn]] void with_a_thread(const std::shared_ptr<Communicator> &listening)
{
    std::thread([] { pause(); }).detach();
    cuda_back_end_child(listening, true);
}

// With the option, such a back end does not begin.
bool must_fork()
{
    for (const char *const each : {"tenant", "program"}) {
        const Said said;
        configure(std::string("rdma.processes : ") + each + "\n");
        const auto listening = make_communicator(create, "tcp/ip", "oldtcp", host, free_port());
        REQUIRE(result_of(spawn([&]() -> int {
                    alarm(60 * patience_times()); // a back end that serves would go on for ever
                    with_a_thread(listening);
                })) == EXIT_FAILURE);
        REQUIRE(
            said.has(std::string("rdma.processes : ") + each + " needs a back end that can fork"));
    }
    return true;
}

// Without the option a back end that has threads already serves everybody in its own process, and
// says so.
bool cannot_fork()
{
    const Said said;
    const std::string before = std::exchange(processes, "");
    const BackEnd back(std::string("rdma.log : warn\n") + resume, with_a_thread);
    processes = before;
    const Program a(back, resume), b(back, resume);
    REQUIRE(a.ask(WORKS) == 1 && back.children().empty());
    const long had = b.ask(ALLOCATIONS);
    REQUIRE(a.ask(ALLOCATES) == 1 && b.ask(ALLOCATIONS) == had + 1);
    REQUIRE(a.ask(CUTS) > 0 && a.ask(WORKS) == 1 && b.ask(ALLOCATIONS) == had + 1);
    return HOLDS(said.has("one process serves all clients, whose kernels reach each other's"));
}

bool spare_is_the_tenants()
{
    const Tenants back(no_waiting, 1);
    REQUIRE(back.has(0));
    const pid_t first = back.children().front();
    const Program a(back), b(back);
    REQUIRE(a.ask(WORKS) == 1 && b.ask(WORKS) == 1 && back.has(1));
    return HOLDS(back.children().front() == first);
}

} // namespace

void check_programs_tenants()
{
    check("programs of a tenant share a process", programs_share_it);
    check("each tenant has a process", each_tenant_has_one);
    check("a tenant's context that is broken", broken_by_one_of_them);
    check("a tenant's process stays for its next program", stays_for_the_next);
    check("... but not for ever", does_not_stay_for_ever);
    check("a tenant whose process crashes", crashed_of_one);
    check("a session goes on in its tenant's process", goes_on_in_its_process);
    check("a spare process becomes a tenant's", spare_is_the_tenants);
    check("a back end that cannot fork", cannot_fork);
    check("... and is to", must_fork);
}
