// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Programs that share a process of the back end: none gives back, writes to or reads what another
// program has made, though all share one context and its addresses. This process is one of the
// programs.
#include "tests/gvirtus/gpu_calls_clients.h"

#include <algorithm>
#include <poll.h>

namespace
{

constexpr int bad_value = 1; // cudaErrorInvalidValue

const Body array_of_words =
    number(IBX_EXT_MALLOC_ARRAY).i32(32).i32(0).i32(0).i32(0).i32(0).u64(16).u64(4).u64(0).i32(0);

// Runs `body` as another program, in a process of its own.
pid_t begin_another(const Gpu &gpu, const std::function<bool(Remote &)> &body,
                    const std::string &options = "")
{
    return spawn([&gpu, body, options] {
        Client own(gpu, options.c_str());
        own.remote.get_last_error();
        own.remote.set_device(0);
        return body(own.remote) ? 0 : 1;
    });
}

bool another(const Gpu &gpu, const std::function<bool(Remote &)> &body,
             const std::string &options = "")
{
    return result_of(begin_another(gpu, body, options)) == 0;
}

// A pipe in each direction between two processes.
struct Pipes {
    int there[2] = {-1, -1}, back[2] = {-1, -1};
    Pipes()
    {
        if (pipe(there) || pipe(back))
            std::abort();
    }
    ~Pipes()
    {
        for (int fd : {there[0], there[1], back[0], back[1]})
            close(fd);
    }
    static bool put(const int fds[2], std::uint64_t value)
    {
        return write(fds[1], &value, sizeof(value)) == sizeof(value);
    }
    static std::uint64_t get(const int fds[2])
    {
        std::uint64_t value = 0;
        return read(fds[0], &value, sizeof(value)) == sizeof(value) ? value : 0;
    }
};

bool has(Remote &remote, std::uint64_t memory, const std::vector<char> &bytes)
{
    std::vector<char> got(bytes.size());
    return remote.from_device(got.data(), memory, got.size()) == 0 && got == bytes;
}

using GivesBack = std::function<int(Remote &, std::uint64_t)>;

int frees(Remote &own, std::uint64_t memory)
{
    return own.free(memory);
}

int frees_in_stream(Remote &own, std::uint64_t memory)
{
    return own.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(memory).u64(0));
}

// By a handler of GVirtuS's.
int frees_by_driver(Remote &own, std::uint64_t memory)
{
    return own.call("cuMemFree", Body().u64(memory));
}

// A program gives memory back twice, and in between another program gets the memory.
bool given_back_twice(const std::string &options, const GivesBack &give, bool by_runtime = false)
{
    Said said;
    Gpu gpu(options + "rdma.log : warn\n");
    Pipes pipes;
    const pid_t pid = begin_another(gpu, [&](Remote &own) {
        const std::uint64_t memory = own.malloc(some);
        REQUIRE(memory && own.free(memory) == 0 && Pipes::put(pipes.there, memory));
        REQUIRE(Pipes::get(pipes.back));
        REQUIRE(give(own, memory) == bad_value);
        const std::vector<char> bytes = random_bytes(some, 21);
        REQUIRE(own.to_device(memory, bytes.data(), some) == bad_value);
        REQUIRE(!by_runtime || (own.get_last_error() == bad_value && own.get_last_error() == 0));
        const std::uint64_t next = own.malloc(some);
        return HOLDS(next && next != memory && own.free(next) == 0);
    });
    const std::uint64_t before = Pipes::get(pipes.there), memory = gpu.remote.malloc(some);
    const std::vector<char> bytes = random_bytes(some, 20);
    REQUIRE(before && memory == before && gpu.remote.to_device(memory, bytes.data(), some) == 0);
    REQUIRE(Pipes::put(pipes.back, 1) && result_of(pid) == 0);
    REQUIRE(has(gpu.remote, memory, bytes));
    const std::string who = "process " + std::to_string(pid),
                      whose = "process " + std::to_string(getpid());
    REQUIRE(said.has(who + " names memory of " + whose));
    return HOLDS(gpu.remote.free(memory) == 0 && gpu.remote.free(memory) == bad_value);
}

// Each call that copies or sets memory.
bool copies_refused(Remote &own, std::uint64_t theirs, std::uint64_t mine)
{
    const std::uint64_t stream = own.stream_create(1);
    for (const std::uint64_t in : {std::uint64_t{0}, stream}) {
        for (const std::size_t n : {1u, 100u, 4000u}) {
            std::vector<char> bytes = random_bytes(n, 22);
            const std::uint64_t at = theirs + some - n;
            REQUIRE(own.to_device(at, bytes.data(), n) == bad_value);
            REQUIRE(own.from_device(bytes.data(), at, n) == bad_value);
            REQUIRE(own.on_device(mine, at, n) == bad_value);
            REQUIRE(own.on_device(at, mine, n) == bad_value);
            REQUIRE(own.to_device_async(at, bytes.data(), n, in) == bad_value);
            REQUIRE(own.from_device_async(bytes.data(), at, n, in) == bad_value);
            REQUIRE(own.on_device_async(mine, at, n, in) == bad_value);
            REQUIRE(own.on_device_async(at, mine, n, in) == bad_value);
            REQUIRE(own.call("cudaMemset", Body().u64(at).i32(3).u64(n)) == bad_value);
            REQUIRE(own.call("ibxRuntime", number(IBX_EXT_MEMSET).u64(at).i32(3).u64(n).u64(in)) ==
                    bad_value);
            REQUIRE(
                own.call("ibxRuntime",
                         number(IBX_EXT_MEMSET_2D).u64(at).u64(n).i32(3).u64(n).u64(1).u64(in)) ==
                bad_value);
        }
    }
    REQUIRE(own.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(theirs)) == bad_value);
    return true;
}

bool memory_of_another_program(const std::string &options)
{
    Gpu gpu(options);
    const std::vector<char> bytes = random_bytes(some, 23);
    const std::uint64_t first = gpu.remote.malloc(some),
                        pooled = gpu.remote.address("ibxRuntime",
                                                    number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(0)),
                        pitched =
                            gpu.remote.address("cudaMallocPitch", Body().u64(0).u64(some).u64(1));
    for (const std::uint64_t memory : {first, pooled, pitched}) {
        REQUIRE(memory && gpu.remote.to_device(memory, bytes.data(), some) == 0);
        REQUIRE(another(gpu, [&](Remote &own) {
            const std::uint64_t mine = own.malloc(some);
            REQUIRE(mine && copies_refused(own, memory, mine));
            for (const auto give : {frees, frees_in_stream, frees_by_driver})
                REQUIRE(give(own, memory) == bad_value);
            REQUIRE(own.on_device(mine, mine + some / 2, 8) == 0);
            return HOLDS(own.free(mine) == 0);
        }));
        REQUIRE(has(gpu.remote, memory, bytes) && gpu.remote.free(memory) == 0);
    }
    return true;
}

// ... also if it lies behind much memory of the program's own, and one call names all of that.
// Allocators give out higher and higher addresses, or lower and lower ones (ThreadSanitizer's).
bool memory_behind_much()
{
    Gpu gpu;
    Pipes pipes;
    const std::uint64_t before = gpu.remote.malloc(64);
    const pid_t pid = begin_another(gpu, [&](Remote &own) {
        Body set = number(IBX_EXT_NODE_MEMSET)
                       .u64(own.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0)));
        const std::uint64_t first = own.malloc(64);
        std::uint64_t last = first;
        for (unsigned i = 0; i < 100; i++)
            REQUIRE((last = own.malloc(64)) != 0);
        REQUIRE(Pipes::put(pipes.there, first));
        const std::uint64_t after = Pipes::get(pipes.back), low = std::min(first, last),
                            theirs = std::max(before, after), n = theirs + 64 - low;
        set.put(static_cast<std::uint16_t>(0));
        set.u64(low).u64(0).i32(1).i32(1).u64(n).u64(1);
        return HOLDS(theirs > std::max(first, last) && own.call("ibxRuntime", set) == bad_value);
    });
    REQUIRE(before && Pipes::get(pipes.there) && Pipes::put(pipes.back, gpu.remote.malloc(64)));
    return HOLDS(result_of(pid) == 0);
}

struct Things {
    std::uint64_t stream, event, array, graph, exec;
    explicit Things(Gpu &gpu)
        : stream(gpu.remote.stream_create(1)), event(gpu.event()),
          array(gpu.remote.address("ibxRuntime", array_of_words)),
          graph(gpu.remote.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0))),
          exec(
              gpu.remote.address("ibxRuntime", number(IBX_EXT_GRAPH_INSTANTIATE).u64(graph).u64(0)))
    {
    }
    bool there() const { return stream && event && array && graph && exec; }
    // Every call that gives one back. A handler of GVirtuS's may return no error, but gives nothing
    // back.
    bool refused(Remote &own) const
    {
        const auto ours = [&](int what, std::uint64_t of) {
            return own.call("ibxRuntime", number(static_cast<unsigned>(what)).u64(of));
        };
        REQUIRE(own.call("cudaStreamDestroy", Body().u64(stream)) != 0);
        REQUIRE(own.call("cudaEventDestroy", Body().u64(event)) != 0);
        own.call("cudaFreeArray", Body().u64(array));
        REQUIRE(own.call("cudaGraphDestroy", Body().u64(graph)) != 0);
        REQUIRE(ours(IBX_EXT_FREE_ARRAY, array) == bad_value);
        REQUIRE(ours(IBX_EXT_GRAPH_DESTROY, graph) == bad_value);
        REQUIRE(ours(IBX_EXT_EXEC_DESTROY, exec) == bad_value);
        // And what uses them.
        REQUIRE(own.stream_query(stream) == 400 && own.stream_synchronize(stream) == 400);
        REQUIRE(own.call("cudaEventRecord", Body().u64(event).u64(0)) == 400);
        return HOLDS(own.call("cudaGraphLaunch", Body().u64(exec).u64(0)) != 0);
    }
    bool good(Gpu &gpu) const
    {
        const auto ours = [&](int what, std::uint64_t of) {
            return gpu.remote.call("ibxRuntime", number(static_cast<unsigned>(what)).u64(of));
        };
        REQUIRE(gpu.remote.call("cudaEventRecord", Body().u64(event).u64(stream)) == 0);
        REQUIRE(gpu.remote.stream_synchronize(stream) == 0);
        REQUIRE(gpu.remote.call("cudaGraphLaunch", Body().u64(exec).u64(stream)) == 0);
        REQUIRE(gpu.remote.stream_synchronize(stream) == 0);
        REQUIRE(ours(IBX_EXT_EXEC_DESTROY, exec) == 0 && ours(IBX_EXT_FREE_ARRAY, array) == 0);
        REQUIRE(ours(IBX_EXT_GRAPH_DESTROY, graph) == 0);
        REQUIRE(gpu.remote.call("cudaEventDestroy", Body().u64(event)) == 0);
        return HOLDS(gpu.remote.call("cudaStreamDestroy", Body().u64(stream)) == 0);
    }
};

bool handles_of_another_program()
{
    Gpu gpu;
    const Things things(gpu);
    REQUIRE(things.there());
    REQUIRE(another(gpu, [&](Remote &own) { return things.refused(own); }));
    return HOLDS(things.good(gpu));
}

// Nothing is refused unless it is known to be another program's: not what a client has that does
// not say which process it is, not what a library has made unseen, nor what this program's threads
// have.
bool what_is_not_known()
{
    Gpu gpu;
    Client thread(gpu);
    const std::vector<char> bytes = random_bytes(some, 24);
    const std::uint64_t memory = gpu.remote.malloc(some), second = gpu.remote.malloc(some),
                        third = gpu.remote.malloc(some),
                        hidden = gpu.remote.address("testMalloc", Body().u64(some));
    REQUIRE(memory && second && third && hidden && thread.remote.get_last_error() == 0);
    REQUIRE(another(
        gpu,
        [&](Remote &own) {
            REQUIRE(own.to_device(memory, bytes.data(), some) == 0);
            return HOLDS(own.free(second) == 0);
        },
        of_another_program));
    REQUIRE(another(gpu, [&](Remote &own) {
        REQUIRE(own.to_device(hidden, bytes.data(), some) == 0 && has(own, hidden, bytes));
        return HOLDS(own.free(hidden) == 0);
    }));
    REQUIRE(has(thread.remote, memory, bytes) && thread.remote.free(memory) == 0);
    REQUIRE(frees_in_stream(thread.remote, third) == 0);
    return HOLDS(gpu.remote.free(memory) == bad_value);
}

// A program may use the memory that it has opened until it closes it. It may not free it.
bool memory_that_is_open()
{
    Gpu gpu;
    const std::vector<char> bytes = random_bytes(some, 25), others = random_bytes(some, 26);
    const std::uint64_t memory = gpu.remote.malloc(some);
    REQUIRE(memory && gpu.remote.to_device(memory, bytes.data(), some) == 0);
    REQUIRE(gpu.remote.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(memory)) == 0);
    const std::vector<char> handle = gpu.remote.out;
    REQUIRE(another(gpu, [&](Remote &own) {
        Body open = number(IBX_EXT_IPC_OPEN_MEMORY), close_it = number(IBX_EXT_IPC_CLOSE);
        open.bytes.insert(open.bytes.end(), handle.begin(), handle.end());
        close_it.bytes.push_back(0);
        REQUIRE(own.malloc(some) && own.from_device(&open.bytes[0], memory, 1) == bad_value);
        open = number(IBX_EXT_IPC_OPEN_MEMORY);
        open.bytes.insert(open.bytes.end(), handle.begin(), handle.end());
        REQUIRE(own.address("ibxRuntime", open) == memory && has(own, memory, bytes));
        REQUIRE(own.to_device(memory, others.data(), some) == 0);
        REQUIRE(own.call("cudaMemset", Body().u64(memory).i32(3).u64(some)) == 0);
        REQUIRE(own.to_device(memory, others.data(), some) == 0);
        REQUIRE(own.free(memory) == bad_value && has(own, memory, others));
        REQUIRE(own.call("ibxRuntime", close_it.u64(memory)) == 0);
        return HOLDS(own.to_device(memory, bytes.data(), some) == bad_value);
    }));
    return HOLDS(has(gpu.remote, memory, others) && gpu.remote.free(memory) == 0);
}

// An event and a pool are used likewise, and end with the program that has made them.
bool events_and_pools_that_are_open()
{
    Gpu gpu;
    Body flags, pool_of = number(IBX_EXT_POOL_CREATE).i32(0).u64(0);
    flags.put(6u); // without times, and for other processes
    pool_of.put(static_cast<std::uint16_t>(0)).bytes.push_back(1); // to be passed on
    std::uint64_t event = 0;
    const std::uint64_t pool = gpu.remote.address("ibxRuntime", pool_of);
    REQUIRE(gpu.remote.call("cudaEventCreateWithFlags", flags) == 0);
    std::memcpy(&event, gpu.remote.out.data() + gpu.remote.out.size() - 8, 8);
    const auto shares = [&](unsigned what, std::uint64_t it) {
        return gpu.remote.call("ibxRuntime", number(what).u64(it)) ? std::vector<char>()
                                                                   : gpu.remote.out;
    };
    const std::vector<char> of_event = shares(IBX_EXT_IPC_EVENT, event),
                            of_pool = shares(IBX_EXT_IPC_POOL, pool);
    const auto allocate = [&](Remote &by) {
        return by.address("ibxRuntime",
                          number(IBX_EXT_MALLOC_FROM_POOL).u64(some).u64(pool).u64(0));
    };
    REQUIRE(event && pool && !of_event.empty() && !of_pool.empty());
    REQUIRE(another(gpu, [&](Remote &own) {
        Body open_event = number(IBX_EXT_IPC_OPEN_EVENT), open_pool = number(IBX_EXT_IPC_OPEN_POOL);
        open_event.bytes.insert(open_event.bytes.end(), of_event.begin(), of_event.end());
        open_pool.bytes.insert(open_pool.bytes.end(), of_pool.begin(), of_pool.end());
        REQUIRE(own.address("ibxRuntime", open_event) == event);
        REQUIRE(own.address("ibxRuntime", open_pool) == pool);
        REQUIRE(own.call("cudaEventRecord", Body().u64(event).u64(0)) == 0 && allocate(own));
        REQUIRE(own.call("cudaEventDestroy", Body().u64(event)) != 0);
        REQUIRE(own.call("cudaMemPoolDestroy", Body().u64(pool)) != 0);
        REQUIRE(own.call("ibxRuntime", number(IBX_EXT_POOL_DESTROY).u64(pool)) == bad_value);
        return HOLDS(own.call("cudaEventRecord", Body().u64(event).u64(0)) == 0 && allocate(own));
    }));
    REQUIRE(gpu.remote.call("cudaEventRecord", Body().u64(event).u64(0)) == 0);
    REQUIRE(allocate(gpu.remote));
    REQUIRE(gpu.remote.call("ibxRuntime", number(IBX_EXT_POOL_DESTROY).u64(pool)) == 0);
    return HOLDS(gpu.remote.call("cudaEventDestroy", Body().u64(event)) == 0);
}

// A program takes another device's access away from a pool that all programs have.
bool access_to_pool_of_all()
{
    Gpu gpu;
    const std::uint64_t pool =
        gpu.remote.address("ibxRuntime", number(IBX_EXT_POOL_DEFAULT).i32(0));
    const auto sets = [&](Remote &by, int flags) {
        return by.call("ibxRuntime", number(IBX_EXT_POOL_SET_ACCESS).u64(pool).i32(1).i32(flags)) ==
               0;
    };
    const auto has = [&](Remote &by, int flags) {
        return by.call("ibxRuntime", number(IBX_EXT_POOL_GET_ACCESS).u64(pool).i32(1)) == 0 &&
               by.out.size() == 4 && by.out[0] == flags;
    };
    REQUIRE(pool && sets(gpu.remote, 3) && has(gpu.remote, 3));
    REQUIRE(another(gpu, [&](Remote &own) {
        REQUIRE(own.address("ibxRuntime", number(IBX_EXT_POOL_DEFAULT).i32(0)) == pool);
        REQUIRE(sets(own, 1) && has(own, 3) && sets(own, 0) && has(own, 3));
        return HOLDS(sets(own, 3));
    }));
    REQUIRE(has(gpu.remote, 3));
    REQUIRE(becomes_true([&] { return sets(gpu.remote, 1) && has(gpu.remote, 1); }));
    return HOLDS(sets(gpu.remote, 0) && has(gpu.remote, 0));
}

// A graph within another one ends with that, whichever call is to end it before.
bool graphs_within_others()
{
    Gpu gpu;
    const auto make = [&] {
        return gpu.remote.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0));
    };
    const std::uint64_t inner = make(), outer = make();
    Body add = number(IBX_EXT_NODE_CHILD).u64(outer);
    add.put(static_cast<std::uint16_t>(0));
    const std::uint64_t node = gpu.remote.address("ibxRuntime", add.u64(inner)),
                        child =
                            gpu.remote.address("ibxRuntime", number(IBX_EXT_GET_CHILD).u64(node));
    REQUIRE(inner && outer && node && child && child != inner);
    REQUIRE(gpu.remote.call("cudaGraphDestroy", Body().u64(child)) != 0);
    REQUIRE(gpu.remote.address("ibxRuntime", number(IBX_EXT_GET_CHILD).u64(node)) == child);
    // CUDA ends the process if a graph is to be within itself.
    for (const std::uint64_t place : {outer, child}) {
        Body itself = number(IBX_EXT_NODE_CHILD).u64(place);
        itself.put(static_cast<std::uint16_t>(0));
        REQUIRE(gpu.remote.call("ibxRuntime", itself.u64(outer)) == bad_value);
    }
    REQUIRE(gpu.remote.call("cudaGraphDestroy", Body().u64(outer)) == 0);
    return HOLDS(gpu.remote.call("cudaGraphDestroy", Body().u64(inner)) == 0);
}

// Memory of a graph is given back, and comes back with the next launch: no other program has a part
// in it, whatever it has been given back by.
bool graph_memory_of_another()
{
    Gpu gpu;
    Body node = number(IBX_EXT_NODE_ALLOC)
                    .u64(gpu.remote.address("ibxRuntime", number(IBX_EXT_GRAPH_CREATE).i32(0)));
    const std::uint64_t stream = gpu.remote.stream_create(1);
    std::uint64_t memory = 0;
    node.put(static_cast<std::uint16_t>(0));
    REQUIRE(gpu.remote.call("ibxRuntime", node.i32(0).u64(some)) == 0);
    std::memcpy(&memory, gpu.remote.out.data() + 8, 8);
    REQUIRE(gpu.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(2)) == 0);
    const std::uint64_t captured =
        gpu.remote.address("ibxRuntime", number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(stream));
    REQUIRE(gpu.remote.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(captured).u64(stream)) ==
            0);
    REQUIRE(gpu.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(gpu.remote.address("testMalloc", Body().u64(some)) == captured); // as by a launch
    for (const auto give : {frees, frees_in_stream, frees_by_driver}) {
        REQUIRE(give(gpu.remote, memory) == 0);
        REQUIRE(gpu.remote.address("testMalloc", Body().u64(some)) == memory);
        const std::vector<char> bytes = random_bytes(some, 29);
        for (const std::uint64_t at : {memory, captured}) {
            REQUIRE(gpu.remote.to_device(at, bytes.data(), some) == 0);
            REQUIRE(another(gpu, [&](Remote &own) {
                const std::uint64_t mine = own.malloc(some);
                REQUIRE(mine && copies_refused(own, at, mine) && own.free(mine) == 0);
                return HOLDS(own.free(at) == bad_value);
            }));
            REQUIRE(has(gpu.remote, at, bytes));
        }
    }
    return true;
}

// A capture cannot free memory that is no graph's: CUDA refuses that, and the memory stays its
// program's, which may share it.
bool memory_freed_in_a_capture()
{
    Gpu gpu;
    const std::vector<char> bytes = random_bytes(some, 31);
    const std::uint64_t memory = gpu.remote.malloc(some), stream = gpu.remote.stream_create(1);
    REQUIRE(memory && stream && gpu.remote.to_device(memory, bytes.data(), some) == 0);
    REQUIRE(gpu.remote.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(memory)) == 0);
    const std::vector<char> handle = gpu.remote.out;
    REQUIRE(gpu.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(2)) == 0);
    REQUIRE(gpu.remote.call("ibxRuntime", number(IBX_EXT_FREE_ASYNC).u64(memory).u64(stream)) ==
            bad_value);
    REQUIRE(gpu.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(another(gpu, [&](Remote &own) {
        const std::uint64_t mine = own.malloc(some);
        REQUIRE(mine && copies_refused(own, memory, mine) && own.free(memory) == bad_value);
        Body open = number(IBX_EXT_IPC_OPEN_MEMORY);
        open.bytes.insert(open.bytes.end(), handle.begin(), handle.end());
        return HOLDS(own.address("ibxRuntime", open) == memory && has(own, memory, bytes));
    }));
    REQUIRE(has(gpu.remote, memory, bytes));
    return HOLDS(gpu.remote.free(memory) == 0 && gpu.remote.free(memory) == bad_value);
}

// A program does not find the bytes of another program in memory that it gets, by whichever call;
// and the memory is cleared before, not after, the program writes to it, while the GPU is slow.
bool memory_that_comes_back(const std::string &options)
{
    Gpu gpu(options);
    const std::vector<char> bytes = random_bytes(some, 27), others = random_bytes(some, 28);
    const std::vector<char> zeros(some, 0);
    std::vector<char> got(some);
    const bool counted = !options.empty();
    const auto make = [counted](Remote &own, unsigned how) {
        return how == 0 || (how == 1 && counted) ? own.malloc(some)
               : how == 1 ? own.address("ibxRuntime", number(IBX_EXT_MALLOC_ASYNC).u64(some).u64(0))
                          : own.address("cudaMallocPitch", Body().u64(0).u64(some).u64(1));
    };
    for (unsigned how = 0; how < 3; how++) {
        const std::uint64_t memory = make(gpu.remote, how);
        REQUIRE(memory && gpu.remote.to_device(memory, bytes.data(), some) == 0);
        REQUIRE((how == 1 ? frees_in_stream : frees)(gpu.remote, memory) == 0);
        REQUIRE(another(gpu, [&](Remote &own) {
            own.slow(20000);
            const std::uint64_t mine = make(own, how);
            const bool same = mine == memory && own.from_device(got.data(), mine, some) == 0;
            REQUIRE(same && got == zeros && own.to_device(mine, others.data(), some) == 0);
            const bool good = own.device_synchronize() == 0 && has(own, mine, others);
            own.slow(0);
            return HOLDS(good && own.free(mine) == 0);
        }));
    }
    return true;
}

// In a process that has had only one program nothing is cleared.
bool costs_nothing_alone()
{
    Gpu gpu;
    const int alone = gpu.made("cudaMalloc", Body().u64(some));
    REQUIRE(alone == 1 && another(gpu, [](Remote &own) { return own.malloc(some) != 0; }));
    return HOLDS(gpu.made("cudaMalloc", Body().u64(some)) > alone);
}

// CUDA sets nothing if the length is 0, also where a program's memory ends.
bool nothing_is_set()
{
    Gpu gpu;
    return HOLDS(another(gpu, [&](Remote &own) {
        const std::uint64_t end = own.malloc(4096) + 4096;
        for (const Body &body :
             {number(IBX_EXT_MEMSET).u64(end).i32(3).u64(0).u64(0),
              number(IBX_EXT_MEMSET_2D).u64(end).u64(512).i32(3).u64(0).u64(4).u64(0)})
            REQUIRE(own.call("ibxRuntime", body) == 0);
        return HOLDS(own.call("cudaMemset", Body().u64(end).i32(3).u64(0)) == 0);
    }));
}

// A program has ended, and the back end is about to free its memory, after clearing it.
bool memory_that_is_cleared()
{
    Gpu gpu(resume);
    Pipes pipes;
    const Left before(gpu);
    gpu.remote.hold(true);
    REQUIRE(result_of(leaves(gpu, false, End::killed, [&](Remote &own) {
                own.get_last_error();
                own.set_device(0);
                return Pipes::put(pipes.there, own.malloc(some));
            })) == 128 + SIGKILL);
    const std::uint64_t memory = Pipes::get(pipes.there);
    REQUIRE(memory && becomes_true([&] { return gpu.remote.stats().queued > 0; }));
    const bool well = another(gpu, [&](Remote &own) {
        for (const auto give : {frees, frees_in_stream, frees_by_driver})
            REQUIRE(give(own, memory) == bad_value);
        return true;
    });
    gpu.remote.hold(false);
    return HOLDS(well && is_as_before(gpu, before));
}

// A thread that allocates, fills, reads and gives back, each time in another way.
bool works_all_the_time(Remote &own, unsigned char tag, unsigned times, bool pools)
{
    std::vector<char> got;
    own.get_last_error();
    own.set_device(0);
    for (unsigned i = 0; i < times; i++) {
        const std::size_t n = i % 3 ? 5000 : 300;
        const bool pooled = pools && i % 4 == 3;
        const std::uint64_t memory =
            pooled ? own.address("ibxRuntime", number(IBX_EXT_MALLOC_ASYNC).u64(n).u64(0))
                   : own.malloc(n);
        const std::vector<char> expected(n, static_cast<char>(tag + i % 16));
        REQUIRE(memory != 0);
        got.assign(n, 0);
        REQUIRE(own.call("cudaMemset",
                         Body().u64(memory).i32(tag + static_cast<int>(i % 16)).u64(n)) == 0);
        REQUIRE(own.from_device(got.data(), memory, n) == 0 && got == expected);
        if (i % 5 == 0)
            REQUIRE(own.to_device(memory, expected.data(), n) == 0);
        REQUIRE(own.from_device(got.data(), memory, n) == 0 && got == expected);
        REQUIRE((i % 2 ? frees : i % 8 ? frees_in_stream : frees_by_driver)(own, memory) == 0);
    }
    return HOLDS(own.get_last_error() == 0);
}

// A program of several threads.
bool threads_work(const Gpu &gpu, unsigned char tag, unsigned times, bool pools)
{
    std::vector<std::thread> threads;
    std::atomic<unsigned> good{0};
    for (unsigned i = 0; i < 4; i++) {
        threads.emplace_back([&, i] {
            Client own(gpu);
            good += works_all_the_time(own.remote, static_cast<unsigned char>(tag + 16 * i), times,
                                       pools);
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    return HOLDS(good == 4);
}

bool is_refused(int code)
{
    if (code != bad_value)
        std::fprintf(stderr, "error %d\n", code);
    return code == bad_value;
}

// A program that gives everything back twice, until somebody writes to it.
bool frees_twice_all_the_time(Remote &own, int until)
{
    std::vector<char> bytes(300, 'd');
    pollfd end = {until, POLLIN, 0};
    for (unsigned i = 0; poll(&end, 1, 0) == 0; i++) {
        const std::size_t n = i % 3 ? 5000 : 300;
        const std::uint64_t memory = own.malloc(n);
        REQUIRE(memory && own.free(memory) == 0);
        for (const auto give : {frees, frees_in_stream, frees_by_driver})
            REQUIRE(is_refused(give(own, memory)));
        REQUIRE(is_refused(own.to_device(memory, bytes.data(), bytes.size())));
        REQUIRE(is_refused(own.call("cudaMemset", Body().u64(memory).i32('d').u64(n))));
    }
    return true;
}

// Threads of one program free addresses that are no memory, again and again, and CUDA takes a
// moment to find that out. Other programs get memory meanwhile: before all these calls are over.
bool memory_beside_wrong_calls()
{
    constexpr unsigned threads = 32, calls = 3000;
    setenv("IBX_DOUBLE_LOOKS", "1000", 1);
    Gpu gpu;
    unsetenv("IBX_DOUBLE_LOOKS");
    Pipes pipes;
    const pid_t bad = spawn([&] {
        std::vector<std::thread> all;
        std::atomic<unsigned> told{0};
        for (unsigned i = 0; i < threads; i++)
            all.emplace_back([&, i] {
                Client own(gpu);
                pollfd end = {pipes.there[0], POLLIN, 0};
                own.remote.get_last_error();
                for (unsigned k = 0; k < calls && poll(&end, 1, 0) == 0; k++) {
                    own.remote.free(16 + i);
                    if (k == 10)
                        Pipes::put(pipes.back, 1);
                }
                told += poll(&end, 1, 0) > 0;
            });
        for (std::thread &thread : all)
            thread.join();
        return told == threads ? 0 : 1;
    });
    for (unsigned i = 0; i < threads; i++)
        REQUIRE(Pipes::get(pipes.back));
    for (unsigned i = 0; i < 100; i++)
        REQUIRE(gpu.remote.free(gpu.remote.malloc(some)) == 0);
    REQUIRE(Pipes::put(pipes.there, 1));
    return HOLDS(result_of(bad) == 0);
}

// Programs are killed and leave memory: the back end frees it.
bool leave_all_the_time(const Gpu &gpu, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        REQUIRE(result_of(leaves(gpu, false, End::killed, [](Remote &own) {
                    own.get_last_error();
                    own.set_device(0);
                    for (unsigned k = 0; k < 20; k++)
                        REQUIRE(own.malloc(k % 3 ? 5000 : 300));
                    return true;
                })) == 128 + SIGKILL);
    return true;
}

// What a program has at an address is its own: no call of another program has an effect there,
// whatever others do at the same moment.
bool all_at_once(const std::string &options, bool pools)
{
    const unsigned times = provider == "shm" ? 100 : 250; // shm is what CI runs
    Gpu gpu(std::string(resume) + options);
    Pipes pipes;
    const Left before(gpu);
    const auto program = [&](unsigned char tag) {
        return spawn(
            [&gpu, tag, times, pools] { return threads_work(gpu, tag, times, pools) ? 0 : 1; });
    };
    const pid_t bad = begin_another(
        gpu, [&](Remote &own) { return frees_twice_all_the_time(own, pipes.there[0]); });
    const pid_t first = program(0), second = program(64);
    bool well = leave_all_the_time(gpu, 8);
    well = result_of(first) == 0 && well;
    well = result_of(second) == 0 && well;
    REQUIRE(Pipes::put(pipes.there, 1));
    well = result_of(bad) == 0 && well;
    return HOLDS(well) && HOLDS(is_as_before(gpu, before));
}

} // namespace

void check_calls_apart()
{
    check("memory that a program gives back twice",
          [] { return given_back_twice("", frees, true); });
    check("... in a stream", [] { return given_back_twice("", frees_in_stream); });
    check("... by the driver's call", [] { return given_back_twice("", frees_by_driver); });
    check("... that is counted",
          [] { return given_back_twice("rdma.device_memory : 64M\n", frees); });
    check("memory of another program", [] { return memory_of_another_program(""); });
    check("... behind very much of its own", memory_behind_much);
    check("handles of another program", handles_of_another_program);
    check("what is not known to be another program's", what_is_not_known);
    check("memory of another program's that is open", memory_that_is_open);
    check("events and pools that are open", events_and_pools_that_are_open);
    check("access to a device's own pool", access_to_pool_of_all);
    check("graphs within others end with them", graphs_within_others);
    check("memory of another program's graph", graph_memory_of_another);
    check("memory that is freed in a capture", memory_freed_in_a_capture);
    check("memory that another program has had", [] { return memory_that_comes_back(""); });
    check("... that has a limit",
          [] { return memory_that_comes_back("rdma.device_memory : 64M\n"); });
    check("what that costs one that is alone", costs_nothing_alone);
    check("no memory at all, that is set", nothing_is_set);
    check("memory of another program that has ended", memory_that_is_cleared);
    check("memory beside very many wrong calls", memory_beside_wrong_calls);
    check("programs that make memory and give it back at the same time",
          [] { return all_at_once("", true); });
    check("... which is counted", [] { return all_at_once("rdma.device_memory : 640M\n", false); });
}
