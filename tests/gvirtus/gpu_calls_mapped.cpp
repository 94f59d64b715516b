// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Memory that is made apart from its addresses, and mapped there: which client owns it, what a
// client may ask for, and how it ends.
#include "tests/gvirtus/gpu_calls_clients.h"

namespace
{

constexpr int bad_value = 1, out_of_memory = 2, not_supported = 801;
constexpr int unknown = -1;              // GVirtuS has no handler of that name
constexpr std::uint64_t each = 2u << 20; // the double's granularity

std::uint64_t reserve(Remote &own, std::uint64_t n)
{
    return own.address("ibxRuntime", number(IBX_EXT_VIRTUAL_RESERVE).u64(n).u64(0));
}
int code_of_create(Remote &own, std::uint64_t n, int device = 0)
{
    return own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_CREATE).u64(n).i32(device));
}
std::uint64_t create(Remote &own, std::uint64_t n)
{
    return own.address("ibxRuntime", number(IBX_EXT_VIRTUAL_CREATE).u64(n).i32(0));
}
int map(Remote &own, std::uint64_t at, std::uint64_t n, std::uint64_t piece)
{
    return own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_MAP).u64(at).u64(n).u64(piece));
}
int unmap(Remote &own, std::uint64_t at, std::uint64_t n)
{
    return own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_UNMAP).u64(at).u64(n));
}
int set_access(Remote &own, std::uint64_t at, std::uint64_t n, int device = 0, int flags = 3)
{
    return own.call("ibxRuntime",
                    number(IBX_EXT_VIRTUAL_SET_ACCESS).u64(at).u64(n).i32(device).i32(flags));
}
int release(Remote &own, std::uint64_t piece)
{
    return own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_RELEASE).u64(piece));
}
int free_addresses(Remote &own, std::uint64_t at, std::uint64_t n)
{
    return own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_FREE).u64(at).u64(n));
}

// So many addresses; only the first piece has memory.
struct Mapped {
    std::uint64_t at = 0, piece = 0;
    bool make(Remote &own, std::uint64_t n = each)
    {
        at = reserve(own, 4 * each);
        piece = create(own, n);
        REQUIRE(at && piece && map(own, at, n, piece) == 0);
        return HOLDS(set_access(own, at, n) == 0);
    }
    bool end(Remote &own, std::uint64_t n = each) const
    {
        REQUIRE(unmap(own, at, n) == 0 && release(own, piece) == 0);
        return HOLDS(free_addresses(own, at, 4 * each) == 0);
    }
};

bool nothing_left(Gpu &gpu)
{
    return becomes_true([&] {
        const ibx_double_stats now = gpu.remote.stats();
        return now.reservations == 0 && now.mappable == 0;
    });
}

bool another(const Gpu &gpu, const std::function<bool(Remote &)> &body)
{
    return result_of(spawn([&] {
               Client own(gpu);
               own.remote.get_last_error();
               own.remote.set_device(0);
               return body(own.remote) ? 0 : 1;
           })) == 0;
}

bool has(Remote &remote, std::uint64_t memory, const std::vector<char> &bytes)
{
    std::vector<char> got(bytes.size());
    return remote.from_device(got.data(), memory, got.size()) == 0 && got == bytes;
}

// A stream writes a word, or waits for it: CUstreamBatchMemOpType.
int stream_value(Remote &remote, std::uint64_t at, int type)
{
    return remote.call("ibxEnqueue",
                       number(IBX_EXT_STREAM_VALUE).u64(at).u64(1).i32(type).i32(0).u64(0));
}

// Another program names what is not its own, in each call.
bool mapped_of_another()
{
    Gpu gpu;
    Mapped mapped;
    const std::vector<char> bytes = random_bytes(each, 31);
    REQUIRE(mapped.make(gpu.remote));
    const std::uint64_t spare = create(gpu.remote, each);
    REQUIRE(spare && gpu.remote.to_device(mapped.at, bytes.data(), each) == 0);
    REQUIRE(another(gpu, [&](Remote &own) {
        Mapped mine;
        std::vector<char> got(64);
        REQUIRE(mine.make(own));
        for (const std::uint64_t at : {mapped.at, mapped.at + each}) { // mapped, and not
            REQUIRE(own.to_device(at, got.data(), 64) == bad_value);
            REQUIRE(own.from_device(got.data(), at, 64) == bad_value);
            REQUIRE(own.on_device(mine.at, at, 64) == bad_value);
            REQUIRE(own.on_device(at, mine.at, 64) == bad_value);
            REQUIRE(own.call("cudaMemset", Body().u64(at).i32(3).u64(9)) == bad_value);
            REQUIRE(own.call("ibxRuntime", number(IBX_EXT_MEMSET_ELEMENTS)
                                               .u64(at)
                                               .u64(0)
                                               .i32(3)
                                               .i32(4)
                                               .u64(9)
                                               .u64(1)
                                               .u64(0)) == bad_value);
            REQUIRE(own.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(at)) == bad_value);
            for (const int type : {0, 1, 2, 3, 4, 5, 6})
                REQUIRE(stream_value(own, at, type) == bad_value);
            REQUIRE(own.free(at) == bad_value);
            REQUIRE(map(own, at, each, mine.piece) == bad_value);
        }
        for (const int type : {0, 3, 6, -1})
            REQUIRE(stream_value(own, mine.at, type) == bad_value);
        REQUIRE(stream_value(own, mine.at + 2, 2) == bad_value);
        REQUIRE(stream_value(own, mine.at + 4, 5) == bad_value);
        REQUIRE(stream_value(own, mine.at, 2) == 0 && stream_value(own, mine.at, 1) == 0);
        REQUIRE(own.device_synchronize() == 0); // before the word is unmapped
        REQUIRE(map(own, mine.at + each, each, spare) == bad_value);
        REQUIRE(map(own, mine.at + each, each, mapped.piece) == bad_value);
        REQUIRE(unmap(own, mapped.at, each) == bad_value);
        REQUIRE(set_access(own, mapped.at, each) == bad_value);
        REQUIRE(own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_GET_ACCESS).u64(mapped.at).i32(0)) ==
                bad_value);
        REQUIRE(release(own, mapped.piece) == bad_value && release(own, spare) == bad_value);
        REQUIRE(free_addresses(own, mapped.at, 4 * each) == bad_value);
        // G5's handlers for such memory check nothing.
        REQUIRE(own.call("cuMemUnmap", Body().u64(mapped.at).u64(each)) == unknown);
        return mine.end(own);
    }));
    REQUIRE(has(gpu.remote, mapped.at, bytes) && release(gpu.remote, spare) == 0);
    return HOLDS(mapped.end(gpu.remote) && nothing_left(gpu));
}

// A client may send anything: CUDA itself would end the process, or map memory of others.
bool mapped_without_sense()
{
    Gpu gpu;
    Mapped mapped;
    Remote &own = gpu.remote;
    REQUIRE(mapped.make(own));
    const std::uint64_t at = mapped.at, spare = create(own, 2 * each), most = UINT64_MAX;
    for (const std::uint64_t piece : {std::uint64_t{0}, std::uint64_t{77}, most, at, spare + 1}) {
        REQUIRE(release(own, piece) == bad_value);
        REQUIRE(map(own, at + each, each, piece) == bad_value);
    }
    REQUIRE(map(own, at + 3 * each, 2 * each, spare) == bad_value);
    REQUIRE(map(own, at, 2 * each, spare) == bad_value); // something is there
    REQUIRE(map(own, at - each, 2 * each, spare) == bad_value);
    REQUIRE(map(own, most - each, 2 * each, spare) == bad_value);
    REQUIRE(map(own, at + each, each, spare) == not_supported);
    REQUIRE(map(own, at + each, 0, spare) == bad_value);
    for (const std::uint64_t n : {std::uint64_t{0}, each / 2, 2 * each, most, most - at + 1}) {
        REQUIRE(n == 2 * each || unmap(own, at, n) == bad_value);
        REQUIRE(set_access(own, at, n) == bad_value && free_addresses(own, at, n) == bad_value);
    }
    REQUIRE(unmap(own, at - each, 2 * each) == bad_value && unmap(own, at, 5 * each) == bad_value);
    REQUIRE(free_addresses(own, at, 4 * each) == bad_value); // something is mapped
    REQUIRE(set_access(own, at, each, 0, 7) == bad_value);
    REQUIRE(set_access(own, at, each, 9) == bad_value &&
            set_access(own, at, each, -1) == bad_value);
    REQUIRE(code_of_create(own, most) == bad_value && code_of_create(own, each, 9) == bad_value);
    REQUIRE(reserve(own, most) == 0 && reserve(own, 0) == 0);
    REQUIRE(own.call("ibxRuntime", number(IBX_EXT_VIRTUAL_MAP).u64(at)) == bad_value);
    REQUIRE(own.free(at) == bad_value);
    const std::vector<char> bytes = random_bytes(each, 32);
    REQUIRE(own.to_device(at, bytes.data(), each) == 0 && has(own, at, bytes));
    // Copies of more than is mapped are errors, and do not end the back end.
    std::vector<char> more(2 * each);
    REQUIRE(own.to_device(at, more.data(), more.size()) == bad_value && has(own, at, bytes));
    REQUIRE(release(own, spare) == 0 && release(own, spare) == bad_value);
    return HOLDS(mapped.end(own) && nothing_left(gpu));
}

// What a program leaves is given back, also beside endless work of others; nobody else finds the
// bytes that it had there.
bool mapped_and_left(End how, bool endless)
{
    Gpu gpu(resume);
    Endless other;
    const std::vector<char> bytes = random_bytes(each, 33), zeros(each, 0);
    REQUIRE(!endless || other.begin(gpu, false, false));
    const int result = result_of(leaves(gpu, false, how, [&](Remote &own) {
        Mapped mapped, released;
        own.get_last_error();
        own.set_device(0);
        REQUIRE(mapped.make(own) && released.make(own, 2 * each));
        REQUIRE(release(own, released.piece) == 0 && create(own, each) && reserve(own, each));
        return HOLDS(own.to_device(mapped.at, bytes.data(), each) == 0 &&
                     own.stats().mappable == 3);
    }));
    REQUIRE(result == (how == End::killed ? 128 + SIGKILL : 0) && nothing_left(gpu));
    if (endless) {
        gpu.remote.release_stream(other.stream);
        return HOLDS(other.end(false));
    }
    Mapped mapped;
    REQUIRE(mapped.make(gpu.remote) && has(gpu.remote, mapped.at, zeros));
    return HOLDS(mapped.end(gpu.remote));
}

// Another program gets memory that one has given back, without that one's bytes.
bool mapped_before()
{
    Gpu gpu;
    const std::vector<char> bytes = random_bytes(each, 34), zeros(each, 0);
    REQUIRE(another(gpu, [](Remote &own) { return own.malloc(some) != 0; }));
    Mapped mapped;
    REQUIRE(mapped.make(gpu.remote) && gpu.remote.to_device(mapped.at, bytes.data(), each) == 0);
    REQUIRE(mapped.end(gpu.remote));
    return HOLDS(another(gpu, [&](Remote &own) {
        Mapped mine;
        REQUIRE(mine.make(own) && has(own, mine.at, zeros));
        return mine.end(own);
    }));
}

// By a reset, beside another client and alone.
bool goes_with_a_reset()
{
    Gpu gpu;
    Mapped mapped;
    REQUIRE(another(gpu, [](Remote &own) {
        Mapped mine;
        REQUIRE(mine.make(own) && own.reset() == 0);
        std::vector<char> got(9);
        return HOLDS(own.from_device(got.data(), mine.at, 9) == bad_value &&
                     release(own, mine.piece) == bad_value && own.stats().mappable == 0);
    }));
    REQUIRE(mapped.make(gpu.remote) && gpu.remote.reset() == 0);
    return HOLDS(nothing_left(gpu) && release(gpu.remote, mapped.piece) == bad_value &&
                 mapped.make(gpu.remote) && mapped.end(gpu.remote));
}

// Such memory counts from its making until it has neither a handle nor a mapping.
bool mapped_counts()
{
    Gpu gpu("rdma.device_memory : 8M\n");
    Mapped mapped;
    Remote &own = gpu.remote;
    REQUIRE(mapped.make(own, 2 * each));
    REQUIRE(code_of_create(own, 3 * each) == out_of_memory);
    const std::uint64_t rest = own.malloc(2 * each);
    REQUIRE(rest && code_of_create(own, each) == out_of_memory && own.free(rest) == 0);
    REQUIRE(release(own, mapped.piece) == 0 && code_of_create(own, 3 * each) == out_of_memory);
    REQUIRE(unmap(own, mapped.at, 2 * each) == 0);
    const std::uint64_t all = create(own, 4 * each);
    REQUIRE(all && own.malloc(each) == 0 && release(own, all) == 0 && own.malloc(each));
    // Nor is what G5's handlers make counted.
    REQUIRE(own.call("cuMemCreate", Body().u64(each)) == unknown);
    REQUIRE(own.call("cuCtxCreate", Body().i32(0).i32(0)) == unknown);
    return HOLDS(free_addresses(own, mapped.at, 4 * each) == 0 && nothing_left(gpu));
}

} // namespace

void check_calls_mapped()
{
    check("memory that another program has mapped", mapped_of_another);
    check("mapped memory that another program has had", mapped_before);
    check("mappings of no sense", mapped_without_sense);
    check("mapped memory of one that is killed",
          [] { return mapped_and_left(End::killed, false); });
    check("... of one that exits", [] { return mapped_and_left(End::exits, false); });
    check("... beside work that does not end", [] { return mapped_and_left(End::killed, true); });
    check("mapped memory that goes with a reset", goes_with_a_reset);
    check("mapped memory that has a limit", mapped_counts);
}
