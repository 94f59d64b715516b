// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The back end gives back what clients leave behind when their processes have ended, and not
// before.
#include "tests/gvirtus/gpu_calls_clients.h"

#include <algorithm>
#include <sys/resource.h>

namespace
{

// Makes one thing of each kind, so many times, for a client that has said nothing yet.
bool makes(Remote &remote, unsigned times)
{
    const Body array = number(IBX_EXT_MALLOC_ARRAY)
                           .i32(32)
                           .i32(0)
                           .i32(0)
                           .i32(0)
                           .i32(0)
                           .u64(16)
                           .u64(4)
                           .u64(0)
                           .i32(0);
    const Body pool = [] {
        Body body = number(IBX_EXT_POOL_CREATE).i32(0).u64(0);
        body.bytes.insert(body.bytes.end(), 2, 0);
        return body;
    }();
    Body mipmap = array;
    mipmap.bytes[0] = IBX_EXT_MALLOC_MIPMAP;
    mipmap.bytes[mipmap.bytes.size() - 4] = 3; // levels
    mipmap.i32(0);
    remote.get_last_error();
    remote.set_device(0);
    for (unsigned i = 0; i < times; i++) {
        REQUIRE(remote.malloc(some));
        const std::uint64_t made = remote.address("ibxRuntime", pool),
                            stream = remote.stream_create(i % 2);
        REQUIRE(stream && made);
        REQUIRE(remote.address("ibxRuntime", array));
        const std::uint64_t levels = remote.address("ibxRuntime", mipmap);
        REQUIRE(levels);
        REQUIRE(remote.address("ibxRuntime", number(IBX_EXT_MIPMAP_LEVEL).u64(levels).i32(1)));
        REQUIRE(remote.address("ibxRuntime", number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(stream)));
        REQUIRE(remote.address("ibxRuntime",
                               number(IBX_EXT_MALLOC_FROM_POOL).u64(some).u64(made).u64(stream)));
        REQUIRE(remote.address("cudaMallocPitch", Body().u64(0).u64(100).u64(4)));
        REQUIRE(remote.call("cudaEventCreate", Body()) == 0);
    }
    return true;
}

// Over tcp, since shm finds the peer by its number.
struct OverTcp {
    std::string before = common;
    explicit OverTcp(bool on)
    {
        if (on)
            common = "rdma.provider : tcp\nrdma.timeout_ms : 60000\n";
    }
    ~OverTcp() { common = before; }
};

bool left_behind(End how, bool elsewhere)
{
    OverTcp tcp(elsewhere);
    Gpu gpu(resume);
    Client other(gpu);
    const std::uint64_t kept = other.remote.malloc(some);
    const Left before(gpu);
    for (unsigned i = 0; i < 3; i++) {
        const pid_t pid = leaves(gpu, elsewhere, how, [](Remote &own) { return makes(own, 3); });
        const int result = result_of(pid);
        if (elsewhere && result == NO_NAMESPACE)
            return true;
        REQUIRE(result == (how == End::killed ? 128 + SIGKILL : 0));
        REQUIRE(is_as_before(gpu, before));
    }
    const std::vector<char> bytes = random_bytes(some, 3);
    return HOLDS(other.remote.to_device(kept, bytes.data(), some) == 0 &&
                 gpu.remote.stats().lost_events == 0);
}

// Threads that end just before their process: the back end may see the process end first.
bool threads_end_first()
{
    OverTcp tcp(true);
    Gpu gpu(resume);
    const Left before(gpu);
    for (unsigned i = 0; i < 20; i++) {
        const int result = result_of(spawn_at(true, [&gpu]() -> int {
            std::vector<std::unique_ptr<Client>> clients;
            for (unsigned j = 0; j < 8; j++) {
                clients.push_back(std::make_unique<Client>(gpu));
                if (!(clients[j]->remote.get_last_error(), clients[j]->remote.malloc(some)))
                    return 1;
            }
            std::shared_ptr<Communicator> last = std::move(clients[0]->over);
            clients.clear();
            exit_with(std::move(last), 0);
        }));
        if (result == NO_NAMESPACE)
            return true;
        REQUIRE(result == 0 && is_as_before(gpu, before));
    }
    return true;
}

// A process is killed that has a session; the child that it has forked has one, too, and lives on.
int child_outlives(const Gpu &gpu, int killed)
{
    int has[2];
    char byte = 0;
    if (pipe(has))
        return 1;
    const pid_t parent = spawn([&]() -> int {
        if (Client own(gpu); !(own.remote.get_last_error(), own.remote.malloc(some)))
            return 1;
        if (fork())
            return pause();
        Client own(gpu);
        const bool good = (own.remote.get_last_error(), own.remote.malloc(some));
        return (good && write(has[1], &byte, 1) != 1) || pause();
    });
    if (read(has[0], &byte, 1) != 1)
        return 1;
    kill(parent, SIGKILL);
    result_of(parent);
    return write(killed, &byte, 1) != 1 || pause();
}

bool parent_is_killed()
{
    OverTcp tcp(true);
    Gpu gpu(resume);
    const Left before(gpu);
    int killed[2];
    char byte = 0;
    REQUIRE(!pipe(killed));
    const pid_t pid = spawn_at(true, [&] { return child_outlives(gpu, killed[1]); });
    close(killed[1]);
    if (read(killed[0], &byte, 1) != 1)
        return result_of(pid) == NO_NAMESPACE;
    close(killed[0]);
    const auto left = [&](unsigned n) {
        return becomes_true([&] { return Left(gpu).allocations == before.allocations + n; });
    };
    REQUIRE(left(1));
    kill(pid, SIGKILL); // the others die with it
    result_of(pid);
    return HOLDS(left(0));
}

// Other clients, who are killed in the end, look at all streams again and again, and hold these
// meanwhile.
bool left_beside_waits()
{
    Gpu gpu(resume);
    for (unsigned i = 0; i < 100; i++) // so that it takes long
        REQUIRE(gpu.remote.stream_create(1));
    const Left before(gpu);
    std::vector<pid_t> waiting;
    for (unsigned i = 0; i < 3; i++) {
        waiting.push_back(leaves(gpu, false, End::exits, [](Remote &own) {
            own.get_last_error();
            while (own.free(own.malloc(some)) == 0)
                ;
            return false;
        }));
    }
    bool well = true;
    for (unsigned i = 0; i < 20 && well; i++)
        well = result_of(leaves(gpu, false, End::exits, [](Remote &own) {
                   own.get_last_error();
                   own.set_device(0);
                   return own.malloc(some) && own.stream_create(0) && own.stream_create(1);
               })) == 0;
    for (pid_t pid : waiting)
        kill(pid, SIGKILL);
    for (pid_t pid : waiting)
        well = result_of(pid) == 128 + SIGKILL && well;
    return HOLDS(well) && HOLDS(is_as_before(gpu, before));
}

// What come_again() does in its process; 0: it has found what it had made.
int comes_again(const Gpu &gpu, int away, int go_on)
{
    const std::vector<char> bytes = random_bytes(some, 4);
    std::vector<char> got(some);
    std::uint64_t memory = 0, stream = 0;
    char byte = 0;
    {
        Client first(gpu);
        first.remote.get_last_error();
        first.remote.set_device(0);
        memory = first.remote.malloc(some);
        stream = first.remote.stream_create();
        if (first.remote.to_device(memory, bytes.data(), some))
            return 1;
    }
    if (write(away, &byte, 1) != 1 || read(go_on, &byte, 1) != 1)
        return 2;
    std::vector<std::unique_ptr<Client>> clients;
    clients.push_back(std::make_unique<Client>(gpu));
    Remote &again = clients[0]->remote;
    again.get_last_error();
    again.set_device(0);
    if (again.from_device(got.data(), memory, some) || got != bytes ||
        again.stream_synchronize(stream))
        return 3;
    end(End::exits, std::move(clients));
}

// All connections of a process end, each with its thread, and the process connects again. `resets`:
// meanwhile the only client with a connection resets the device.
bool come_again(bool elsewhere, bool resets)
{
    OverTcp tcp(elsewhere);
    Gpu gpu(resume);
    const Left before(gpu);
    int away[2], go_on[2];
    char byte = 0;
    REQUIRE(!pipe(away) && !pipe(go_on));
    const pid_t pid = spawn_at(elsewhere, [&] { return comes_again(gpu, away[1], go_on[0]); });
    close(away[1]);
    if (read(away[0], &byte, 1) != 1 && elsewhere)
        return result_of(pid) == NO_NAMESPACE;
    // What another client left that has ended after it.
    REQUIRE(result_of(leaves(gpu, false, End::killed, [](Remote &own) { return makes(own, 1); })) ==
            128 + SIGKILL);
    REQUIRE(becomes_true([&] {
        const Left now(gpu);
        return now.allocations == before.allocations + 1 && now.streams == before.streams + 1;
    }));
    REQUIRE(!resets || gpu.remote.reset() == 0);
    REQUIRE(write(go_on[1], &byte, 1) == 1 && result_of(pid) == 0);
    for (int fd : {away[0], go_on[0], go_on[1]})
        close(fd);
    return HOLDS(is_as_before(gpu, before));
}

// Processes whose end this back end cannot see, and that do not announce it, either, as those of
// earlier versions do not.
int come_and_go(const Gpu &gpu, unsigned times)
{
    std::vector<pid_t> there;
    for (unsigned i = 0; i < times; i++) {
        there.push_back(spawn([&gpu] {
            {
                Client client(gpu);
                client.remote.get_last_error();
                if (client.remote.call("cudaEventCreate", Body()))
                    return 1;
                client.over->Close();
            }
            std::_Exit(0);
        }));
        for (; there.size() == 16 || (!there.empty() && i + 1 == times); there.pop_back())
            if (result_of(there.back()))
                return 1;
    }
    return 0;
}

// The most clients without a connection for which a back end keeps what they have left.
unsigned most_away()
{
    rlimit descriptors = {};
    getrlimit(RLIMIT_NOFILE, &descriptors);
    return static_cast<unsigned>(std::min<rlim_t>(1024, descriptors.rlim_cur / 8));
}

// A process that ends between calls loses nothing: a line about it is no warning.
bool ends_between_calls()
{
    Said said;
    Gpu gpu("rdma.log : info\n");
    const pid_t child = spawn([&gpu]() -> int {
        std::vector<std::unique_ptr<Client>> clients;
        clients.push_back(std::make_unique<Client>(gpu));
        clients[0]->remote.get_last_error();
        end(End::killed, std::move(clients));
    });
    result_of(child);
    REQUIRE(becomes_true([&] { return said.has("process has ended"); }));
    return HOLDS(!said.has("ibx: warn"));
}

// While this object lives, new processes have at most so many descriptors.
struct FewDescriptors {
    rlimit before = {};
    explicit FewDescriptors(rlim_t most)
    {
        getrlimit(RLIMIT_NOFILE, &before);
        const rlimit few = {std::min(most, before.rlim_cur), before.rlim_max};
        setrlimit(RLIMIT_NOFILE, &few);
    }
    ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before); }
};

// What they leave stays, but not for all clients that there have ever been. With as many as a back
// end keeps at most this takes long: over tcp, in tests/run --all.
bool many_are_away()
{
    const FewDescriptors few(provider == "tcp" ? RLIM_INFINITY : 1024);
    const unsigned most = most_away();
    OverTcp tcp(true);
    Gpu gpu(resume);
    const Left before(gpu);
    const int result = result_of(spawn_at(true, [&] { return come_and_go(gpu, most + 20); }));
    if (result == NO_NAMESPACE)
        return true;
    REQUIRE(result == 0);
    return becomes_true([&] { return Left(gpu).events == before.events + most; });
}

// A client with endless work is killed. Others go on, and what that work uses stays.
bool endless_work(unsigned flags)
{
    Gpu gpu(resume);
    Remote &remote = gpu.remote;
    const std::uint64_t mine = remote.malloc(some), stream = remote.stream_create(flags);
    const std::vector<char> bytes = random_bytes(some, 5);
    std::vector<char> got(some);
    int begun[2];
    std::uint64_t theirs[2] = {};
    REQUIRE(!pipe(begun));
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [&](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        theirs[0] = own.malloc(some);
        theirs[1] = own.stream_create(flags);
        own.hold_stream(theirs[1]);
        return own.call("cudaLaunchKernel",
                        kernel(IBX_DOUBLE_KERNEL, 32, theirs[1], theirs[0], mine, some)) == 0 &&
               write(begun[1], theirs, sizeof(theirs)) == sizeof(theirs);
    });
    REQUIRE(read(begun[0], theirs, sizeof(theirs)) == sizeof(theirs));
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    for (unsigned i = 0; i < 200; i++) {
        REQUIRE(remote.to_device_async(mine, bytes.data(), some, stream) == 0);
        REQUIRE(remote.stream_synchronize(stream) == 0);
        REQUIRE(remote.from_device_async(got.data(), mine, some, stream) == 0);
        REQUIRE(remote.stream_synchronize(stream) == 0 && got == bytes);
        REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)) == 0);
        REQUIRE(remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    }
    REQUIRE(remote.peek(theirs[0], got.data(), 1));
    const Left now(gpu);
    REQUIRE(now.allocations == before.allocations + 1 && now.streams == before.streams + 1);
    remote.hold_stream(0);
    close(begun[0]);
    close(begun[1]);
    return becomes_true([&] { return Left(gpu).allocations == before.allocations; });
}

// A client is killed while its child has its connection as well, so that this does not end: the
// back end waits for the next request, or, with as many unread answers, for room for the next one.
bool killed_with_a_child(unsigned unread)
{
    Gpu gpu(resume);
    const Left before(gpu);
    int hold[2];
    REQUIRE(!pipe(hold));
    const pid_t pid = spawn([&] {
        constexpr char request[] = "cudaGetLastError\0\0\0\0\0\0\0\0";
        Client client(gpu, "rdma.pipeline : off\n");
        client.remote.get_last_error();
        if (!client.remote.malloc(some))
            return 1;
        for (unsigned i = 0; i < unread; i++) {
            client.over->Write(request, sizeof(request));
            client.over->Sync();
        }
        char byte;
        if (!fork()) {
            close(hold[1]);
            std::_Exit(read(hold[0], &byte, 1) != 0);
        }
        return raise(SIGKILL);
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] { return Left(gpu).allocations == before.allocations; }));
    close(hold[0]);
    close(hold[1]);
    return true;
}

// Beside that, another client is killed: what it had is given back, but for its array, as CUDA
// waits for all work before it frees an array. A line says so, and why; there is one about the
// first client, too.
bool ends_beside_endless(bool killed, unsigned flags)
{
    Said said;
    Gpu gpu(std::string(resume) + "rdma.log : warn\n");
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, killed, false, flags));
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const Body array = number(IBX_EXT_MALLOC_ARRAY).i32(32).i32(0).i32(0).i32(0).i32(0);
        for (unsigned i = 0; i < 12; i++)
            REQUIRE(own.malloc(some) && own.stream_create(i % 2));
        return own.call("cudaEventCreate", Body()) == 0 &&
               own.address("ibxRuntime", Body(array).u64(16).u64(4).u64(0).i32(0)) != 0;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] { // one event tells when the endless work is over
        const Left now(gpu);
        return now.allocations == before.allocations + 3 && now.streams == before.streams + 1 &&
               now.events == before.events + 1;
    }));
    const std::string other = "process " + std::to_string(endless.pid);
    REQUIRE(becomes_true([&] {
        return said.has("process " + std::to_string(pid) + " has ended; some of its GPU memory") &&
               said.has("until the work of " + other + " ends");
    }));
    REQUIRE(!killed || becomes_true([&] { return said.has(other + " has ended, but for "); }));
    gpu.remote.hold_stream(0);
    return HOLDS(endless.end(killed) && is_as_before(gpu, before));
}

// Work goes on in a stream that was destroyed: nothing that the work uses is given back. The test's
// handler leaves the stream itself as it is.
bool endless_in_destroyed_stream()
{
    Gpu gpu(resume);
    Endless endless;
    const Left before(gpu);
    REQUIRE(endless.begin(gpu, true, true));
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &own) { return own.malloc(some); });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    REQUIRE(becomes_true([&] { return Left(gpu).allocations == before.allocations + 2; }));
    gpu.remote.hold_stream(0);
    return becomes_true([&] {
        const Left now(gpu);
        return now.allocations == before.allocations && now.events == before.events;
    });
}

// The same in the stream that CUDA has for each thread, which has no handle and goes with the
// thread, and with memory of a pool, which is given back without a wait.
bool endless_work_of_thread()
{
    Gpu gpu(resume);
    Remote &remote = gpu.remote;
    const std::uint64_t mine = remote.malloc(some), own_stream = 2;
    std::vector<char> got(some);
    int begun[2];
    std::uint64_t theirs = 0;
    REQUIRE(!pipe(begun));
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [&](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        theirs = own.address("ibxRuntime", number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(own_stream));
        own.hold_stream(own_stream);
        return theirs &&
               own.call("cudaLaunchKernel",
                        kernel(IBX_DOUBLE_KERNEL, 32, own_stream, theirs, mine, some)) == 0 &&
               write(begun[1], &theirs, sizeof(theirs)) == sizeof(theirs);
    });
    REQUIRE(read(begun[0], &theirs, sizeof(theirs)) == sizeof(theirs));
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    for (unsigned i = 0; i < 1000; i++)
        REQUIRE(remote.peek(theirs, got.data(), 1));
    REQUIRE(Left(gpu).allocations == before.allocations + 1);
    remote.hold_stream(0);
    close(begun[0]);
    close(begun[1]);
    return HOLDS(is_as_before(gpu, before));
}

// A client that captures many streams is killed: nothing of it stays, and nothing of others.
bool many_captures()
{
    Gpu gpu(resume);
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [&](Remote &own) {
        REQUIRE(makes(own, 1));
        for (unsigned i = 0; i < 12; i++) {
            const std::uint64_t stream = own.stream_create(1);
            REQUIRE(stream && !own.call("cudaStreamBeginCapture", Body().u64(stream).i32(2)));
        }
        return true;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    return HOLDS(is_as_before(gpu, before));
}

// Memory that a graph allocates goes with its client, whoever had that address before.
bool memory_of_a_graph()
{
    Gpu gpu(resume);
    const Left before(gpu);
    const pid_t pid = leaves(gpu, false, End::killed, [&](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const std::uint64_t graph = own.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
        Body node = number(IBX_EXT_NODE_ALLOC).u64(graph);
        node.put(static_cast<std::uint16_t>(0));
        return graph && own.call("ibxRuntime", node.i32(0).u64(some)) == 0;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    return HOLDS(is_as_before(gpu, before));
}

// The maker of memory that another client has opened is killed: the memory is then that client's,
// and is given back once that client has closed it, before the maker's end or after it. A client
// that was refused has not opened it.
bool opened_by_another(unsigned opens, unsigned closes_before, unsigned closes_behind,
                       bool refused = false)
{
    Gpu gpu(resume);
    Remote &remote = gpu.remote;
    const Left before(gpu);
    const std::vector<char> bytes = random_bytes(some, 6);
    std::vector<char> got(some), handle(64);
    int shared[2], opened[2];
    char byte = 0;
    std::uint64_t memory = 0;
    REQUIRE(!pipe(shared) && !pipe(opened));
    const pid_t pid = leaves(gpu, false, End::killed, [&](Remote &own) {
        own.get_last_error();
        own.set_device(0);
        const std::uint64_t made = own.malloc(some), second = own.malloc(some);
        return second && own.to_device(made, bytes.data(), some) == 0 &&
               own.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(made)) == 0 &&
               write(shared[1], own.out.data(), 64) == 64 && read(opened[0], &byte, 1) == 1;
    });
    REQUIRE(read(shared[0], handle.data(), 64) == 64);
    Body open = number(IBX_EXT_IPC_OPEN_MEMORY);
    open.bytes.insert(open.bytes.end(), handle.begin(), handle.end());
    for (unsigned i = 0; i < opens; i++)
        REQUIRE((memory = remote.address("ibxRuntime", open)));
    if (refused) { // as memory of a pool, which it is not
        const std::uint64_t pool =
            remote.address("ibxRuntime", number(IBX_EXT_POOL_DEFAULT).i32(0));
        Body of_pool = number(IBX_EXT_IPC_OPEN_POINTER).u64(pool);
        of_pool.bytes.insert(of_pool.bytes.end(), handle.begin(), handle.end());
        REQUIRE(pool && remote.call("ibxRuntime", of_pool) == 1);
    }
    Body close_it = number(IBX_EXT_IPC_CLOSE);
    close_it.bytes.push_back(0);
    close_it.u64(memory);
    for (unsigned i = 0; i < closes_before; i++)
        REQUIRE(remote.call("ibxRuntime", close_it) == 0);
    REQUIRE(write(opened[1], &byte, 1) == 1 && result_of(pid) == 128 + SIGKILL);
    const bool stays = closes_before < opens;
    REQUIRE(becomes_true([&] { return Left(gpu).allocations == before.allocations + stays; }));
    REQUIRE(!stays || (remote.from_device(got.data(), memory, some) == 0 && got == bytes));
    for (unsigned i = 0; i < closes_behind; i++)
        REQUIRE(remote.call("ibxRuntime", close_it) == 0);
    for (int fd : {shared[0], shared[1], opened[0], opened[1]})
        close(fd);
    if (closes_before + closes_behind < opens)
        return remote.from_device(got.data(), memory, some) == 0 && got == bytes;
    return becomes_true([&] { return Left(gpu).allocations == before.allocations; });
}

} // namespace

void check_calls_ends()
{
    check("what clients leave that are killed", [] { return left_behind(End::killed, false); });
    check("... that exit", [] { return left_behind(End::exits, false); });
    check("... that end", [] { return left_behind(End::closes, false); });
    check("... that are killed on another host", [] { return left_behind(End::killed, true); });
    check("... that exit on another host", [] { return left_behind(End::exits, true); });
    check("... that end on another host", [] { return left_behind(End::closes, true); });
    check("... whose threads end just before, on another host", threads_end_first);
    check("... beside a child, on another host", parent_is_killed);
    check("... beside others that wait for all work", left_beside_waits);
    check("a client that has no connection for a while", [] { return come_again(false, false); });
    check("... on another host", [] { return come_again(true, false); });
    check("... while another client resets the device", [] { return come_again(false, true); });
    check("... the same on another host", [] { return come_again(true, true); });
    check("clients that come and go on another host", many_are_away);
    check("a process that is killed between calls, of which a line tells", ends_between_calls);
    check("a client that is killed beside its endless work", [] { return endless_work(1); });
    check("... in a blocking stream", [] { return endless_work(0); });
    check("... in the stream of a thread", endless_work_of_thread);
    check("a client that is killed beside another one's endless work",
          [] { return ends_beside_endless(false, 1); });
    check("... of one that was killed, too", [] { return ends_beside_endless(true, 1); });
    check("... in a stream that waits for the legacy one",
          [] { return ends_beside_endless(false, 0); });
    check("a client that is killed and leaves a child", [] { return killed_with_a_child(0); });
    check("... before it has read its answers", // each way 16 are under way at most
          [] { return killed_with_a_child(24); });
    check("endless work in a stream that was destroyed", endless_in_destroyed_stream);
    check("a client that is killed while it captures many streams", many_captures);
    check("memory of a graph of a killed client", memory_of_a_graph);
    check("memory of a killed client that another one uses",
          [] { return opened_by_another(1, 0, 0); });
    check("... has used", [] { return opened_by_another(2, 2, 0); });
    check("... uses for a while", [] { return opened_by_another(2, 1, 1); });
    check("... uses twice", [] { return opened_by_another(2, 0, 1); });
    check("... may not use", [] { return opened_by_another(0, 0, 0, true); });
}
