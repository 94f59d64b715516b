// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Pools of memory that programs share, each with a process of the back end.
#include "tests/gvirtus/programs_ipc.h"

#include <fstream>
#include <sstream>
#include <sys/resource.h>
#include <sys/un.h>

namespace programs_ipc
{
namespace
{

// A pool of the first program, and memory in it that is all ones.
struct Shared {
    One &maker;
    std::uint64_t pool, memory = 0;
    Handle of_pool, of_memory;

    explicit Shared(One &its) : maker(its), pool((its.remote.free(its.malloc()), its.pool()))
    {
        if (!pool || its.allocate(pool, &memory) || its.fill(memory, 1))
            return;
        of_pool = its.handle(IBX_EXT_IPC_POOL, pool);
        of_memory = its.handle(IBX_EXT_IPC_MEMORY, memory);
    }
    bool is() const { return !of_pool.empty() && !of_memory.empty(); }
};

// The pool and its memory as another program has opened them.
struct Opened {
    std::uint64_t pool = 0, memory = 0;
    int code;

    Opened(One &by, const Shared &shared)
        : code(by.open(IBX_EXT_IPC_OPEN_POOL, shared.of_pool, &pool))
    {
        if (!code)
            code = by.open_pointer(pool, shared.of_memory, &memory);
    }
    bool close(One &by) const
    {
        return by.close_it(memory_kind, memory) == 0 && by.close_it(pool_kind, pool) == 0;
    }
};

struct Has {
    unsigned long pools, allocations;
    explicit Has(One &one)
    {
        const ibx_double_stats now = one.remote.stats();
        pools = now.pools;
        allocations = now.allocations;
    }
    bool operator==(const Has &other) const
    {
        return pools == other.pools && allocations == other.allocations;
    }
};

bool becomes(One &one, const Has &what)
{
    return becomes_true([&] { return Has(one) == what; });
}

bool pools_of_another()
{
    const Listening back;
    Program a(back), b(back);
    const Shared shared(a);
    const std::uint64_t own = b.malloc(), its = b.pool();
    REQUIRE(shared.is() && own && its);
    const Has before(b);
    const Opened opened(b, shared);
    REQUIRE(opened.code == 0 && b.reads(opened.memory) == 1);
    REQUIRE(opened.memory != own && opened.pool != its);
    // It is the same memory, by copies and by kernels of either.
    REQUIRE(b.fill(opened.memory, 2) == 0 && a.reads(shared.memory) == 2);
    REQUIRE(a.fill(shared.memory, 3) == 0 && b.launch(0, own, opened.memory) == 0);
    REQUIRE(b.remote.device_synchronize() == 0 && b.reads(own) == 3);
    // The other program has no access to anything else of the pool.
    std::uint64_t none = 0;
    const Body set = number(IBX_EXT_POOL_SET).u64(opened.pool).i32(4).u64(9);
    REQUIRE(b.allocate(opened.pool, &none) == bad_value);
    REQUIRE(b.remote.call("ibxRuntime", set) == bad_value);
    REQUIRE(b.handle(IBX_EXT_IPC_POOL, opened.pool).empty());
    REQUIRE(b.handle(IBX_EXT_IPC_MEMORY, opened.memory).empty());
    REQUIRE(b.remote.call("ibxRuntime",
                          number(IBX_EXT_POOL_SET_ACCESS).u64(opened.pool).i32(1).i32(3)) == 0);
    REQUIRE(b.close_it(memory_kind, opened.memory) == 0 && b.reads(opened.memory) > 1000);
    REQUIRE(b.close_it(pool_kind, opened.pool) == 0 && Has(b) == before);
    return HOLDS(a.reads(shared.memory) == 3);
}

// CUDA's own errors.
bool what_is_none()
{
    const Listening back;
    Program a(back), b(back);
    const Shared shared(a), another(a);
    const std::uint64_t closed = a.pool(0), plain = a.malloc();
    std::uint64_t in_closed = 0;
    REQUIRE(shared.is() && another.is() && closed && plain && b.malloc());
    REQUIRE(a.handle(IBX_EXT_IPC_POOL, closed).empty() && a.allocate(closed, &in_closed) == 0);
    REQUIRE(a.handle(IBX_EXT_IPC_MEMORY, in_closed).empty());
    const Has before(b);
    const Opened opened(b, shared);
    REQUIRE(opened.code == 0);
    REQUIRE(b.open_memory(shared.of_memory) == no_handle);
    REQUIRE(b.open_pointer(opened.pool, another.of_memory) == bad_value);
    REQUIRE(b.open_pointer(opened.pool, a.handle(IBX_EXT_IPC_MEMORY, plain)) == no_handle);
    REQUIRE(b.open_pointer(opened.pool, shared.of_pool) == no_handle);
    REQUIRE(b.open(IBX_EXT_IPC_OPEN_POOL, shared.of_memory) == no_handle);
    REQUIRE(b.open_pointer(4096, shared.of_memory) == bad_value);
    REQUIRE(opened.close(b) && b.close_it(pool_kind, opened.pool) == 0);
    REQUIRE(b.open_pointer(opened.pool, shared.of_memory) == bad_value);
    // After its maker has freed the memory and destroyed the pool, neither can be opened.
    REQUIRE(a.remote.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(shared.memory).u64(0)) == 0);
    REQUIRE(a.remote.call("ibxRuntime", number(IBX_EXT_POOL_DESTROY).u64(shared.pool)) == 0);
    REQUIRE(Opened(b, shared).code == no_handle);
    return HOLDS(Has(b) == before);
}

// CUDA has a pool's memory once in a process, however many have opened it, and does not count them.
bool opened_by_several()
{
    const Listening back;
    Program a(back), b(back);
    const Shared shared(a);
    REQUIRE(shared.is() && b.malloc() && b.child.malloc());
    const Has before(b);
    const Opened one(b, shared), two(b, shared), three(b.child, shared);
    REQUIRE(!one.code && !two.code && !three.code && one.pool == two.pool);
    REQUIRE(one.pool == three.pool && one.memory == two.memory && one.memory == three.memory);
    REQUIRE(one.close(b) && b.reads(one.memory) == 1 && two.close(b) && two.close(b));
    REQUIRE(b.child.reads(three.memory) == 1);
    REQUIRE(b.close_it(memory_kind, three.memory) == 0 && b.child.reads(three.memory) == 1);
    const Opened again(b, shared);
    REQUIRE(again.code == 0 && three.close(b.child) && b.reads(again.memory) == 1);
    REQUIRE(again.close(b));
    return HOLDS(Has(b) == before);
}

// A closed pool stays while memory of it is open, and goes then: otherwise it would keep all of the
// pool's memory.
bool closed_before_its_memory()
{
    const Listening back;
    Program a(back), b(back);
    const Shared shared(a);
    REQUIRE(shared.is() && b.malloc());
    const Has before(b);
    const Opened opened(b, shared);
    REQUIRE(opened.code == 0 && b.close_it(pool_kind, opened.pool) == 0);
    REQUIRE(b.reads(opened.memory) == 1 && !(Has(b) == before));
    REQUIRE(b.close_it(memory_kind, opened.memory) == 0);
    return HOLDS(Has(b) == before);
}

bool pool_left_open()
{
    const Listening back;
    Program a(back), b(back);
    const Shared shared(a);
    REQUIRE(shared.is() && b.malloc());
    // From this a session learns the form of replies.
    REQUIRE(b.child.remote.free(b.child.malloc()) == 0);
    const Has before(b);
    const Opened first(b.child, shared), second(b.child, shared);
    REQUIRE(first.code == 0 && second.code == 0);
    REQUIRE(b.child.close_it(pool_kind, first.pool) == 0);
    b.child.end();
    return HOLDS(becomes(b, before) && a.reads(shared.memory) == 1);
}

// The same if another client of the process has opened it, too.
bool left_to_another()
{
    const Listening back;
    Program a(back), b(back);
    const Shared shared(a);
    REQUIRE(shared.is() && b.malloc() && b.child.malloc());
    const std::uint64_t last = b.child.malloc();
    const Has before(b);
    const Opened its(b.child, shared), own(b, shared);
    REQUIRE(last && its.code == 0 && own.code == 0);
    b.child.end();
    REQUIRE(becomes_true([&] { return b.remote.stats().allocations <= before.allocations - 1; }));
    REQUIRE(b.reads(own.memory) == 1 && b.fill(own.memory, 5) == 0 && a.reads(shared.memory) == 5);
    REQUIRE(own.close(b));
    return HOLDS(b.remote.stats().pools == before.pools);
}

bool pool_of_one_tenant()
{
    const std::string file = keys_of_two(), name = file + "rdma.name : ";
    const Listening back(file);
    Program alice(back, name + "alice\n"), again(back, name + "alice\n"), bob(back, name + "bob\n");
    const Shared shared(alice);
    REQUIRE(shared.is() && again.malloc() && bob.malloc());
    REQUIRE(Opened(bob, shared).code == no_handle);
    const Opened opened(again, shared);
    REQUIRE(opened.code == 0 && bob.open_pointer(opened.pool, shared.of_memory) == bad_value);
    return HOLDS(again.reads(opened.memory) == 1);
}

// What is open stays, as natively; what is not open cannot be opened any more.
bool pool_maker_ends(bool crashes)
{
    const Listening back(resume);
    Program a(back, resume);
    const Shared shared(a), other(a);
    REQUIRE(shared.is() && other.is());
    Program b(back, resume);
    REQUIRE(b.malloc());
    const Has before(b);
    const Opened opened(b, shared);
    REQUIRE(opened.code == 0);
    if (crashes)
        REQUIRE(kill(back.children().front(), SIGKILL) == 0);
    else
        a.end(SIGKILL);
    REQUIRE(back.has(1));
    REQUIRE(becomes_true([&] { return Opened(b, other).code == no_handle; }));
    REQUIRE(Opened(b, shared).code == no_handle && b.reads(opened.memory) == 1);
    REQUIRE(opened.close(b));
    return HOLDS(Has(b) == before);
}

bool opener_ends()
{
    const Listening back(resume);
    Program a(back, resume);
    const Shared shared(a);
    Program b(back, resume);
    REQUIRE(shared.is() && b.malloc() && Opened(b, shared).code == 0);
    const pid_t of_b = back.children().back();
    REQUIRE(kill(of_b, SIGKILL) == 0 && back.has(1));
    Program c(back, resume);
    REQUIRE(c.malloc());
    const Opened opened(c, shared);
    return HOLDS(opened.code == 0 && c.reads(opened.memory) == 1 && a.reads(shared.memory) == 1);
}

std::ptrdiff_t open_files(pid_t process)
{
    const std::filesystem::path all = "/proc/" + std::to_string(process) + "/fd";
    return std::distance(std::filesystem::directory_iterator(all), {});
}

// Descriptors: one for each shared pool, as long as it exists, and none in a process that has
// opened it.
bool its_descriptors()
{
    const Listening back;
    Program a(back);
    REQUIRE(a.child.malloc());
    // Both have connected. Then the socket, by which the first one is passed.
    {
        const Shared first(a);
        REQUIRE(first.is() &&
                a.remote.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(first.memory).u64(0)) ==
                    0);
        REQUIRE(!a.remote.call("ibxRuntime", number(IBX_EXT_POOL_DESTROY).u64(first.pool)));
    }
    const pid_t of_a = back.children().front();
    const std::ptrdiff_t before = open_files(of_a);
    const Shared shared(a);
    REQUIRE(shared.is() && shared.of_pool == a.handle(IBX_EXT_IPC_POOL, shared.pool));
    Program b(back);
    REQUIRE(b.malloc() && b.child.malloc());
    const pid_t of_b = back.children().back();
    const auto open_and_close = [&] {
        const Opened opened(b, shared);
        return opened.code == 0 && opened.close(b);
    };
    REQUIRE(open_and_close());
    const std::ptrdiff_t without = open_files(of_b);
    for (int i = 0; i < 30; i++)
        REQUIRE(open_and_close());
    REQUIRE(becomes_true([&] { return open_files(of_b) < without + 30; }));
    REQUIRE(!a.remote.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(shared.memory).u64(0)));
    REQUIRE(!a.remote.call("ibxRuntime", number(IBX_EXT_POOL_DESTROY).u64(shared.pool)));
    return HOLDS(becomes_true([&] { return open_files(of_a) <= before; }));
}

// Without descriptors the call returns CUDA's error for the operating system, and the next one
// succeeds.
bool without_descriptors()
{
    const Said said;
    const Listening back;
    Program a(back);
    const Shared shared(a);
    Program b(back);
    REQUIRE(shared.is() && b.malloc() && b.child.malloc()); // both have connected
    const pid_t of_b = back.children().back();
    const Has before(b);
    rlimit limit{};
    REQUIRE(prlimit(of_b, RLIMIT_NOFILE, nullptr, &limit) == 0);
    const rlimit none = {0, limit.rlim_max};
    REQUIRE(prlimit(of_b, RLIMIT_NOFILE, &none, nullptr) == 0);
    REQUIRE(Opened(b, shared).code == os_failed && Has(b) == before);
    REQUIRE(prlimit(of_b, RLIMIT_NOFILE, &limit, nullptr) == 0);
    REQUIRE(said.has("opens a pool of memory of another program, which is refused"));
    const Opened opened(b, shared);
    return HOLDS(opened.code == 0 && b.reads(opened.memory) == 1);
}

// The names, without their first byte, of the abstract unix sockets at which the process listens.
std::vector<std::string> listens_at(pid_t process)
{
    std::vector<std::string> names;
    std::ifstream sockets("/proc/net/unix");
    for (std::string line, flags, type, inode, name, skip; std::getline(sockets, line);) {
        std::istringstream fields(line);
        fields >> skip >> skip >> skip >> flags >> type >> skip >> inode;
        if (!(fields >> name) || name[0] != '@' || flags != "00010000" || type != "0005")
            continue;
        const std::string link = "socket:[" + inode + "]";
        const std::filesystem::path all = "/proc/" + std::to_string(process) + "/fd";
        for (const auto &entry : std::filesystem::directory_iterator(all))
            if (std::filesystem::read_symlink(entry.path()) == link)
                names.push_back(name.substr(1));
    }
    return names;
}

// A process that does not know the key is sent nothing, and keeps nobody out.
bool strangers()
{
    const Listening back;
    Program a(back);
    const Shared shared(a);
    Program b(back);
    REQUIRE(shared.is() && b.malloc());
    const std::vector<std::string> names = listens_at(back.children().front());
    REQUIRE(names.size() == 1);
    for (const std::string &name : names) {
        sockaddr_un at{};
        at.sun_family = AF_UNIX;
        std::memcpy(at.sun_path + 1, name.data(), name.size());
        const int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                  fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const auto length =
            static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
        REQUIRE(connect(silent, reinterpret_cast<sockaddr *>(&at), length) == 0);
        REQUIRE(connect(fd, reinterpret_cast<sockaddr *>(&at), length) == 0);
        char byte;
        REQUIRE(send(fd, shared.of_pool.data(), 16, MSG_NOSIGNAL) == 16);
        REQUIRE(read(fd, &byte, 1) <= 0);
        close(fd);
        close(silent);
    }
    return HOLDS(Opened(b, shared).code == 0);
}

} // namespace
} // namespace programs_ipc

void check_programs_pools()
{
    using namespace programs_ipc;
    check("pools of another program", pools_of_another);
    check("... that are none", what_is_none);
    check("... that several have open", opened_by_several);
    check("... that are closed before their memory", closed_before_its_memory);
    check("... that a process leaves open", pool_left_open);
    check("... that a process leaves open to another", left_to_another);
    check("... are one tenant's", pool_of_one_tenant);
    check("the pool of a program that ends", [] { return pool_maker_ends(false); });
    check("... and whose process crashes", [] { return pool_maker_ends(true); });
    check("a process that has a pool open crashes", opener_ends);
    check("descriptors of pools", its_descriptors);
    check("no descriptor for a pool", without_descriptors);
    check("who asks for a pool without its key", strangers);
}
