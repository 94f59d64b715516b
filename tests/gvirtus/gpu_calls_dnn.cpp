// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Requests for graphs of cuDNN by a client that lies. The double multiplies tensor 1 by tensor 3,
// which is passed by its value, and writes tensor 2.
#include "tests/gvirtus/gpu_calls_math.h"

#include <vector>

namespace
{

// A client's handle, and plans.
struct Graphs {
    struct Attribute {
        std::int32_t name, type;
    };
    // The tensors of a plan; a tensor's number, and that it is passed by its value.
    static constexpr Attribute TENSORS = {401, 15}, NUMBER = {906, 3}, BY_VALUE = {908, 2};
    static constexpr std::int32_t PLAN = 5, TENSOR = 17;
    static constexpr int BAD = 2000, NO_HANDLE = 1001;

    Remote &remote;
    std::uint64_t handle;

    explicit Graphs(Remote &by)
        : remote(by),
          handle(by.address(IBX_MATH_SETS_UP, byte(function(IBX_MATH_cudnnCreate, 0), 1)))
    {
    }

    std::uint64_t made(std::int32_t type)
    {
        return remote.address(
            IBX_MATH_SETS_UP,
            byte(function(IBX_MATH_cudnnBackendCreateDescriptor, 0).i32(type), 1));
    }

    int set(std::uint64_t descriptor, Attribute attribute, const std::vector<std::uint64_t> &values)
    {
        Body body = function(IBX_MATH_cudnnBackendSetAttribute, descriptor);
        body = byte(body.i32(attribute.name).i32(attribute.type).u64(values.size()), 1);
        for (const std::uint64_t value : values)
            body = attribute.type == BY_VALUE.type ? byte(body, value != 0) : body.u64(value);
        return remote.call(IBX_MATH_SETS_UP, body);
    }

    // Fills one descriptor from another.
    int fill(std::uint64_t from, std::uint64_t to)
    {
        Body body = function(IBX_MATH_cudnnBackendGetAttribute, from);
        body = byte(body.i32(TENSORS.name).i32(TENSORS.type).u64(1), 1);
        return remote.call(IBX_MATH_WAITS, byte(body, 1).u64(to));
    }

    int finalize(std::uint64_t descriptor)
    {
        return remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cudnnBackendFinalize, descriptor));
    }

    // 0: it could not be made.
    std::uint64_t tensor(std::uint64_t number)
    {
        const std::uint64_t one = made(TENSOR);
        const bool good = one && !set(one, NUMBER, {number}) &&
                          !set(one, BY_VALUE, {number == 3 ? 1u : 0u}) && !finalize(one);
        return good ? one : 0;
    }

    std::uint64_t plan()
    {
        const std::uint64_t one = made(PLAN);
        const bool good =
            one && !set(one, TENSORS, {tensor(1), tensor(2), tensor(3)}) && !finalize(one);
        return good ? one : 0;
    }

    // An execution that multiplies by 2.0. `values`: the tensors that it has values of.
    Body execution(std::uint64_t plan, std::uint64_t from, std::uint64_t to,
                   std::uint64_t workspace = 0, unsigned values = 1) const
    {
        Body body = function(IBX_MATH_cudnnBackendExecute, handle);
        body = byte(body.u64(plan).i32(3).u64(workspace), 1).u64(3).u64(1).u64(2);
        body = byte(body, 1).u64(0).u64(from).u64(to);
        body = byte(body, 1).u64(0x40000000).u64(0).u64(0);
        return byte(byte(byte(byte(body, 1), values & 1), values >> 1 & 1), values >> 2 & 1);
    }

    int execute(std::uint64_t plan, std::uint64_t from, std::uint64_t to,
                std::uint64_t workspace = 0, unsigned values = 1)
    {
        return remote.call(IBX_MATH_ADDS, execution(plan, from, to, workspace, values));
    }
};

// Requests that the preload would not send.
bool graph_executions()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Graphs own(remote);
    const float ones[4] = {1, 1, 1, 1};
    const std::uint64_t x = remote.malloc(some), plan = own.plan();
    REQUIRE(own.handle && x && plan && remote.to_device(x, ones, sizeof(ones)) == 0);
    REQUIRE(own.execute(plan, x, x) == 0 && at(remote, x) == 2);
    // With fewer bytes, whichever number, and with one too many.
    const Body whole = own.execution(plan, x, x);
    for (std::size_t n = 0; n < whole.bytes.size() + 2; n++) {
        Body body = whole;
        body.bytes.resize(n);
        if (n != whole.bytes.size())
            REQUIRE(remote.call(IBX_MATH_ADDS, body) != 0);
    }
    // No value for the tensor that the library reads in memory of the host; made-up plans.
    REQUIRE(own.execute(plan, x, x, 0, 6) == Graphs::BAD);
    for (const std::uint64_t none : {std::uint64_t{0}, plan + 8, x, own.handle, own.tensor(1)})
        REQUIRE(own.execute(none, x, x) != 0);
    return HOLDS(at(remote, x) == 2 && own.execute(plan, x, x) == 0);
}

// Memory, tensors, plans and handles of another program.
bool foreign_graphs()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Graphs own(remote);
    const float ones[4] = {1, 1, 1, 1};
    const std::uint64_t x = remote.malloc(some), plan = own.plan(), tensor = own.tensor(1);
    REQUIRE(own.handle && x && plan && tensor && remote.to_device(x, ones, sizeof(ones)) == 0);
    REQUIRE(result_of(spawn([&] {
                Client client(gpu);
                client.remote.get_last_error();
                Graphs its(client.remote);
                const std::uint64_t y = client.remote.malloc(some), with = its.plan(),
                                    more = its.made(Graphs::PLAN);
                const bool works = its.handle && y && with && more && !its.execute(with, y, y, y);
                const bool memory = its.execute(with, x, y) == Graphs::BAD &&
                                    its.execute(with, y, x) == Graphs::BAD &&
                                    its.execute(with, y, y, x) == Graphs::BAD;
                const bool handles = its.execute(plan, y, y) != 0 &&
                                     its.set(more, Graphs::TENSORS, {tensor}) == Graphs::BAD;
                its.handle = own.handle;
                return works && memory && handles && its.execute(with, y, y) == Graphs::NO_HANDLE
                           ? 0
                           : 1;
            })) == 0);
    return HOLDS(at(remote, x) == 1);
}

// A tensor that the library has filled from another one cannot be set by value: nothing here knows
// how long it is.
bool filled_tensors()
{
    Gpu gpu;
    Graphs own(gpu.remote);
    const float ones[4] = {1, 1, 1, 1};
    const std::uint64_t x = gpu.remote.malloc(some), plan = own.plan();
    const std::uint64_t filled = own.made(Graphs::TENSOR), before = own.made(Graphs::TENSOR);
    REQUIRE(plan && filled && before && gpu.remote.to_device(x, ones, sizeof(ones)) == 0);
    REQUIRE(own.set(before, Graphs::NUMBER, {1}) == 0 &&
            own.set(before, Graphs::BY_VALUE, {1}) == 0);
    for (const std::uint64_t one : {filled, before}) {
        REQUIRE(own.fill(plan, one) == 0);
        REQUIRE(own.set(one, Graphs::BY_VALUE, {1}) == Graphs::BAD);
        REQUIRE(own.set(one, Graphs::NUMBER, {1}) == Graphs::BAD);
    }
    // It is of tensor 3 that it has the value, and of no other one.
    const std::uint64_t with = own.made(Graphs::PLAN);
    REQUIRE(own.set(with, Graphs::TENSORS, {before, own.tensor(2)}) == 0);
    return HOLDS(own.finalize(with) == 0 && own.execute(with, x, x) == 0 && at(gpu.remote, x) == 2);
}

// PyTorch keeps 10,000 plans with everything that they are made of; some plans have more memory
// than others.
bool many_graphs()
{
    constexpr unsigned most = 262144, heavy = 16, plans = most / heavy;
    Gpu gpu;
    Remote &remote = gpu.remote;
    Graphs own(remote);
    const auto end = [&](std::uint64_t descriptor) {
        return remote.call(IBX_MATH_SETS_UP,
                           function(IBX_MATH_cudnnBackendDestroyDescriptor, descriptor));
    };
    std::vector<std::uint64_t> made(plans), more(heavy);
    for (std::uint64_t &plan : made)
        REQUIRE((plan = own.made(Graphs::PLAN)) != 0);
    REQUIRE(own.made(Graphs::PLAN) == 0 && own.made(Graphs::TENSOR) == 0);
    REQUIRE(end(made[0]) == 0 && (more[0] = own.made(Graphs::TENSOR)) != 0);
    REQUIRE(own.made(Graphs::PLAN) == 0); // there is room for 15 others
    for (unsigned i = 1; i < heavy; i++)
        REQUIRE((more[i] = own.made(Graphs::TENSOR)) != 0);
    REQUIRE(own.made(Graphs::TENSOR) == 0);
    for (const std::uint64_t one : more)
        REQUIRE(end(one) == 0);
    return HOLDS((made[0] = own.made(Graphs::PLAN)) != 0 && own.made(Graphs::TENSOR) == 0);
}

} // namespace

void check_calls_dnn()
{
    check("requests for graphs of cuDNN", graph_executions);
    check("... that name what is another program's", foreign_graphs);
    check("... with tensors that the library has filled", filled_tensors);
    check("... and as many as a program may have", many_graphs);
}
