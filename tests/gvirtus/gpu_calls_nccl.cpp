// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Requests for NCCL by a client that lies. The double of its library looks into each communicator
// and each address.
#include "tests/gvirtus/gpu_calls_math.h"

#include "frontend-glue/session/math_nccl.h"

#include <vector>

namespace
{

constexpr int BAD = NCCL_INVALID_ARGUMENT, FLOAT = 7, SUM = 0;

// The id that a request returns; empty: it has failed with *code.
std::vector<char> unique_id(Remote &remote, int *code = nullptr)
{
    const int rc = remote.call(IBX_MATH_ASKS, byte(function(IBX_MATH_ncclGetUniqueId, 0), 1));
    if (code)
        *code = rc;
    const bool good = !rc && remote.out.size() == IBX_NCCL_ID_BYTES;
    return good ? std::vector<char>(remote.out.begin(), remote.out.end()) : std::vector<char>();
}

// -1: the request has failed.
int state_of(Remote &remote, std::uint64_t comm, int wait)
{
    std::int32_t value = -1;
    if (!remote.call(IBX_MATH_ASKS,
                     byte(function(IBX_MATH_ncclCommGetAsyncError, comm).i32(wait), 1)) &&
        remote.out.size() == sizeof(value))
        std::memcpy(&value, remote.out.data(), sizeof(value));
    return value;
}

// A communicator of one rank.
struct Ranks {
    Remote &remote;
    std::uint64_t comm;

    explicit Ranks(Remote &by) : remote(by), comm(0)
    {
        remote.get_last_error();
        const std::vector<char> id = unique_id(remote);
        if (!id.empty())
            comm = made(id, 1, 0);
        if (comm && state(1))
            comm = 0;
    }

    std::uint64_t made(const std::vector<char> &id, int ranks, int rank)
    {
        Body body =
            byte(function(IBX_MATH_ncclCommInitRankConfig, 0).i32(ranks).i32(rank).i32(0), 1);
        body = byte(body, 1);
        body.bytes.insert(body.bytes.end(), id.begin(), id.end());
        return remote.address(IBX_MATH_SETS_UP, byte(body, 0));
    }

    int state(int wait) { return state_of(remote, comm, wait); }

    // Begins to split it; all ranks are for one new communicator.
    std::uint64_t split(std::uint64_t one, int key)
    {
        const Body body =
            byte(function(IBX_MATH_ncclCommSplit, 0).u64(one).i32(0).i32(key).i32(0), 1);
        return remote.address(IBX_MATH_SETS_UP, byte(body, 0));
    }

    int end(std::uint64_t one)
    {
        return remote.call(IBX_MATH_ABORTS, function(IBX_MATH_ncclCommAbort, one));
    }
};

struct Operation {
    unsigned call = IBX_NCCL_ALL_REDUCE;
    int type = FLOAT, op = SUM, peer = 0;
    std::uint64_t from = 0, to = 0, count = 2, comm = 0, stream = 0;
};

Body group(const std::vector<Operation> &all, std::uint64_t comm, std::uint64_t stream = 0)
{
    Body body = function(IBX_MATH_ncclGroupEnd, comm);
    body = byte(body.i32(static_cast<int>(all.size())).i32(0), 1);
    for (const Operation &o : all)
        body.i32(static_cast<int>(o.call))
            .i32(o.type)
            .i32(o.op)
            .i32(o.peer)
            .u64(o.from)
            .u64(o.to)
            .u64(o.count)
            .u64(o.comm)
            .u64(o.stream);
    return body.u64(stream);
}

const std::string allowed = "rdma.nccl : on\n";

bool operations()
{
    Gpu gpu(allowed);
    Remote &remote = gpu.remote;
    Ranks own(remote);
    const float two[] = {2, 2};
    const std::uint64_t x = remote.malloc(some), y = remote.malloc(some);
    REQUIRE(own.comm && x && y && remote.to_device(x, two, sizeof(two)) == 0);
    const Operation good{IBX_NCCL_ALL_REDUCE, FLOAT, SUM, 0, x, y, 2, own.comm, 0};
    const auto run = [&](Operation o) {
        return remote.call(IBX_MATH_ADDS_IN, group({o}, own.comm, o.stream));
    };
    REQUIRE(run(good) == 0 && at(remote, y) == 2);
    // With fewer bytes, whichever number, and with one too many.
    const Body whole = group({good}, own.comm);
    for (std::size_t n = 0; n < whole.bytes.size() + 2; n++) {
        Body body = whole;
        body.bytes.resize(n);
        if (n != whole.bytes.size())
            REQUIRE(remote.call(IBX_MATH_ADDS_IN, body) != 0);
    }
    const auto with = [&](auto Operation::*member, auto value) {
        Operation o = good;
        o.*member = value;
        return run(o);
    };
    for (const std::uint64_t none : {std::uint64_t{0}, own.comm + 8, x, std::uint64_t{0x1234}})
        REQUIRE(with(&Operation::comm, none) == BAD);
    for (const int none : {-1, 12, 1 << 30})
        REQUIRE(with(&Operation::type, none) == BAD);
    for (const int none : {-1, 5, 6, 1 << 30})
        REQUIRE(with(&Operation::op, none) == BAD);
    for (const unsigned none : {static_cast<unsigned>(IBX_NCCL_CALLS), 1u << 31})
        REQUIRE(with(&Operation::call, none) == BAD);
    for (const std::uint64_t none : {std::uint64_t{0}, UINT64_MAX})
        REQUIRE(with(&Operation::from, none) != 0 && with(&Operation::to, none) != 0);
    for (const std::uint64_t many : {UINT64_MAX, UINT64_MAX / 4, std::uint64_t{1} << 61})
        REQUIRE(with(&Operation::count, many) == BAD);
    REQUIRE(with(&Operation::stream, std::uint64_t{0x1234}) != 0);
    Operation root = good;
    root.call = IBX_NCCL_REDUCE;
    for (const int none : {-1, 1, 1 << 30}) {
        root.peer = none;
        REQUIRE(run(root) == BAD);
    }
    // Another stream than the request's; no operation, and more than there are.
    Operation apart = good;
    apart.stream = remote.stream_create();
    REQUIRE(apart.stream && remote.call(IBX_MATH_ADDS_IN, group({apart}, own.comm)) == BAD);
    REQUIRE(remote.call(IBX_MATH_ADDS_IN, group({}, own.comm)) == BAD);
    REQUIRE(remote.call(IBX_MATH_ADDS_IN, group({good, good}, own.comm)) == 0);
    REQUIRE(remote.call(IBX_MATH_ADDS_IN, group({good, apart}, own.comm)) == BAD);
    REQUIRE(run(good) == 0 && own.state(0) == 0);
    REQUIRE(own.end(own.comm) == 0 && own.end(own.comm) == BAD && run(good) == BAD);
    return HOLDS(remote.library_handles() == 0);
}

// Communicators and memory of another program.
bool communicators_apart()
{
    Gpu gpu(allowed);
    Remote &remote = gpu.remote;
    Ranks own(remote);
    const std::uint64_t x = remote.malloc(some);
    REQUIRE(own.comm && x);
    REQUIRE(result_of(spawn([&] {
                Client client(gpu);
                Ranks theirs(client.remote);
                const std::uint64_t y = client.remote.malloc(some);
                const auto run = [&](std::uint64_t comm, std::uint64_t from, std::uint64_t to) {
                    return client.remote.call(
                        IBX_MATH_ADDS_IN,
                        group({{IBX_NCCL_ALL_REDUCE, FLOAT, SUM, 0, from, to, 2, comm, 0}}, comm));
                };
                const bool good = theirs.comm && y && run(theirs.comm, y, y) == 0 &&
                                  run(theirs.comm, x, y) == BAD && run(theirs.comm, y, x) == BAD &&
                                  run(own.comm, y, y) == BAD && theirs.end(own.comm) == BAD;
                return good ? 0 : 1;
            })) == 0);
    return becomes_true([&] { return remote.library_handles() == 1; });
}

// A client makes the back end wait for ranks that never come, and have a thread for each id.
bool limits()
{
    Gpu gpu(allowed);
    Remote &remote = gpu.remote;
    Ranks own(remote);
    std::vector<char> id(IBX_NCCL_ID_BYTES);
    int code = 0;
    const auto another = [&] {
        id = unique_id(remote, &code);
        return code;
    };
    REQUIRE(own.comm);
    for (int i = 0; i < 256; i++)
        REQUIRE(another() == 0);
    const std::vector<char> last = id;
    REQUIRE(another() == NCCL_SYSTEM_ERROR);
    id = last;
    std::vector<std::uint64_t> waiting;
    for (int i = 0; i < 255; i++) {
        id[40] = static_cast<char>(i);
        waiting.push_back(own.made(id, 2, 0));
        REQUIRE(waiting.back() != 0);
    }
    REQUIRE(own.made(id, 2, 0) == 0); // as many as all handles of libraries
    for (const std::uint64_t one : waiting)
        REQUIRE(own.end(one) == 0);
    REQUIRE(own.made(id, 0, 0) == 0 && own.made(id, 2, 2) == 0 && own.made(id, 2, -1) == 0);
    return HOLDS(own.end(own.comm) == 0 && remote.library_handles() == 0);
}

// NCCL's thread for an id waits for all ranks, also if the communicator was aborted meanwhile.
bool aborted_ids()
{
    Gpu gpu(allowed);
    Ranks own(gpu.remote);
    int code = 0;
    REQUIRE(own.comm);
    for (int i = 0; i < 256; i++) {
        const std::uint64_t one = own.made(unique_id(gpu.remote), 2, 0);
        REQUIRE(one && own.end(one) == 0);
    }
    return HOLDS(unique_id(gpu.remote, &code).empty() && code == NCCL_SYSTEM_ERROR);
}

// An id counts until a communicator is made of it, and not of another one with the same address.
bool ids_alike()
{
    Gpu gpu(allowed);
    Ranks own(gpu.remote);
    const auto makes_one = [&](const std::vector<char> &id) {
        const std::uint64_t one = own.made(id, 1, 0);
        return one && state_of(gpu.remote, one, 1) == 0 && own.end(one) == 0;
    };
    std::vector<char> last;
    REQUIRE(own.comm);
    for (int i = 0; i < 256; i++)
        REQUIRE(!(last = unique_id(gpu.remote)).empty());
    for (const std::size_t at : {std::size_t{40}, last.size() - 1}) {
        std::vector<char> alike = last;
        alike[at] = 1;
        REQUIRE(makes_one(alike) && unique_id(gpu.remote).empty());
    }
    REQUIRE(makes_one(last) && !unique_id(gpu.remote).empty());
    return HOLDS(unique_id(gpu.remote).empty());
}

// What ranks have sent arrives, also if their communicators are destroyed at once.
bool destroyed()
{
    Gpu gpu(allowed);
    Ranks first(gpu.remote), second(gpu.remote);
    const auto call = [&](unsigned number, const Ranks &of) {
        return gpu.remote.call(IBX_MATH_SETS_UP, function(number, of.comm));
    };
    REQUIRE(first.comm && second.comm && gpu.remote.library_handles() == 2);
    REQUIRE(call(IBX_MATH_ncclCommDestroy, first) == 0);
    REQUIRE(call(IBX_MATH_ncclCommFinalize, second) == 0);
    REQUIRE(call(IBX_MATH_ncclCommDestroy, second) == 0);
    return HOLDS(gpu.remote.library_handles() == 0);
}

// An abort takes long: that of a part that was aborted before its parent had made it, and that of a
// parent for whose part another thread waits. Others get their answers meanwhile.
bool long_aborts()
{
    Gpu gpu(allowed);
    Client asking(gpu), waiting(gpu);
    Ranks own(gpu.remote), others(asking.remote);
    waiting.remote.get_last_error();
    std::vector<char> id = unique_id(gpu.remote);
    REQUIRE(own.comm && others.comm && !id.empty());
    id[100] = 1; // the double's aborts wait until others were answered
    const std::uint64_t a = own.made(id, 2, 0), b = own.made(id, 2, 1);
    REQUIRE(a && b && state_of(gpu.remote, a, 1) == 0 && state_of(gpu.remote, b, 1) == 0);
    std::atomic<bool> over{false};
    std::thread asks([&] {
        while (!over)
            others.state(0);
    });
    const std::uint64_t left = own.split(a, 0);
    const bool was_left = left && own.end(left) == 0;
    const std::uint64_t part = own.split(b, 1);
    const bool parted =
        part && state_of(gpu.remote, a, 1) == 0 && state_of(gpu.remote, part, 1) == 0;
    const std::uint64_t awaited = own.split(a, 0);
    int state = 0;
    std::thread waits([&] { state = state_of(waiting.remote, awaited, 1); });
    const bool ended = own.end(a) == 0;
    waits.join();
    const bool rest = own.end(awaited) == 0 && own.end(b) == 0 && own.end(part) == 0;
    over = true;
    asks.join();
    REQUIRE(was_left && parted && awaited && ended && rest && state == NCCL_INTERNAL_ERROR);
    return HOLDS(gpu.remote.library_handles() == 2);
}

// A request that gets no reply.
void send(const Client &client, const std::string &name, const Body &body)
{
    const std::uint64_t n = body.bytes.size();
    client.over->Write(name.c_str(), name.size() + 1);
    client.over->Write(reinterpret_cast<const char *>(&n), sizeof(n));
    client.over->Write(body.bytes.data(), n);
    client.over->Sync();
}

// A client that ends while it waits for a rank that never comes.
bool waits_and_ends()
{
    Gpu gpu(allowed);
    Ranks own(gpu.remote);
    REQUIRE(own.comm &&
            result_of(spawn([&] {
                Client client(gpu);
                Ranks theirs(client.remote);
                theirs.comm = theirs.made(unique_id(client.remote), 2, 0);
                send(client, IBX_MATH_ASKS,
                     byte(function(IBX_MATH_ncclCommGetAsyncError, theirs.comm).i32(1), 1));
                return theirs.comm ? 0 : 1;
            })) == 0);
    return becomes_true([&] { return gpu.remote.library_handles() == 1; });
}

// A kernel of NCCL's may wait for ranks that never come: what a client has left is aborted without
// a wait for its work.
bool left_with_endless_work()
{
    Gpu gpu(allowed);
    Ranks own(gpu.remote);
    REQUIRE(own.comm);
    const pid_t pid = leaves(gpu, false, End::killed, [](Remote &theirs) {
        const Ranks ranks(theirs);
        theirs.set_device(0);
        const std::uint64_t x = theirs.malloc(some), stream = theirs.stream_create(1);
        theirs.hold_stream(stream);
        return ranks.comm && theirs.library_handles() == 2 &&
               theirs.call("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, stream, x, x, some)) ==
                   0;
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    return becomes_true([&] { return gpu.remote.library_handles() == 1; });
}

// The same, but the client waits for that work: its session sees that it is gone only when the work
// has ended.
bool killed_in_a_wait()
{
    Gpu gpu(allowed);
    Ranks own(gpu.remote);
    REQUIRE(own.comm && result_of(spawn([&] {
                            Client client(gpu);
                            const Ranks theirs(client.remote);
                            client.remote.set_device(0);
                            const std::uint64_t x = client.remote.malloc(some),
                                                stream = client.remote.stream_create(1);
                            client.remote.hold_stream(stream);
                            client.remote.call("cudaLaunchKernel",
                                               kernel(IBX_DOUBLE_KERNEL, 32, stream, x, x, some));
                            send(client, "cudaStreamSynchronize", Body().u64(stream));
                            return theirs.comm ? 0 : 1;
                        })) == 0);
    return becomes_true([&] { return gpu.remote.library_handles() == 1; });
}

bool not_allowed()
{
    Gpu gpu;
    gpu.remote.get_last_error();
    int code = 0;
    return HOLDS(unique_id(gpu.remote, &code).empty() && code == IBX_MATH_ABSENT);
}

} // namespace

void check_calls_nccl()
{
    check("operations of NCCL", operations);
    check("communicators of another program", communicators_apart);
    check("communicators that wait for ever", limits);
    check("ids of communicators that were aborted", aborted_ids);
    check("ids that are alike", ids_alike);
    check("communicators that are destroyed", destroyed);
    check("communicators whose abort takes long", long_aborts);
    check("communicators of a client that ends in a wait", waits_and_ends);
    check("communicators of a client with endless work", left_with_endless_work);
    check("communicators of a client that is killed in a wait for its work", killed_in_a_wait);
    check("NCCL where it is not allowed", not_allowed);
}
