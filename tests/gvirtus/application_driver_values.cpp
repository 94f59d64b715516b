// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Words in memory that streams write, and wait for.
#include "tests/gvirtus/application_driver.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <thread>

namespace values
{
namespace
{

constexpr int NOT_READY = 600, NOT_SUPPORTED = 801;
enum Condition : unsigned { NOT_LESS, EQUAL, AND, NOR };

struct Operation { // CUstreamBatchMemOpParams
    int type;
    unsigned flags;
    Address address;
    std::uint64_t value;
    unsigned value_flags;
    std::uint64_t rest[2];
};

int waits(void *stream, Address at, std::uint32_t value, unsigned condition)
{
    return cu("cuStreamWaitValue32_v2", stream, at, value, condition);
}
int waits_64(void *stream, Address at, std::uint64_t value, unsigned condition)
{
    return cu("cuStreamWaitValue64", stream, at, value, condition);
}
int writes(void *stream, Address at, std::uint32_t value, unsigned flags = 0)
{
    return cu("cuStreamWriteValue32", stream, at, value, flags);
}
int writes_64(void *stream, Address at, std::uint64_t value)
{
    return cu("cuStreamWriteValue64_v2", stream, at, value, 0u);
}

struct Streams {
    void *first = nullptr, *second = nullptr;
    Address words = 0;

    bool begin()
    {
        return HOLDS(
            cu("cuStreamCreate", &first, 1u) == 0 && cu("cuStreamCreate", &second, 1u) == 0 &&
            cu("cuMemAlloc_v2", &words, std::size_t{64}) == 0 &&
            cu("cuMemsetD8_v2", words, static_cast<unsigned char>(0), std::size_t{64}) == 0);
    }
    std::uint64_t word(unsigned i) const
    {
        std::uint64_t is = 0;
        cu("cuMemcpyDtoH_v2", static_cast<void *>(&is), words + 8 * i, sizeof(is));
        return is;
    }
};

// What the first stream waits for is written in the second one, behind work of its own.
bool between_streams(const Streams &s)
{
    const struct {
        unsigned condition;
        std::uint32_t awaited, before, written;
    } all[] = {{EQUAL, 7, 6, 7},
               {NOT_LESS, 3, 2, 0x80000002},
               {NOT_LESS, 0xffffffff, 0xfffffffe, 1},
               {AND, 6, 8, 4},
               {NOR, 0xffff0000, 0xffff, 0xfffe}};
    for (const auto &each : all) {
        REQUIRE(writes(s.second, s.words, each.before) == 0);
        REQUIRE(cu("cuStreamSynchronize", s.second) == 0);
        REQUIRE(waits(s.first, s.words, each.awaited, each.condition) == 0);
        REQUIRE(writes(s.first, s.words + 8, each.written) == 0);
        REQUIRE(cu("cuStreamQuery", s.first) == NOT_READY && s.word(0) == each.before);
        REQUIRE(writes(s.second, s.words, each.written, 1) == 1); // CUDA 12 has no flags
        REQUIRE(writes(s.second, s.words, each.written) == 0);
        REQUIRE(cu("cuStreamSynchronize", s.first) == 0 && s.word(1) == each.written);
    }
    const std::uint64_t wide = 0x123456789abcdef0;
    REQUIRE(waits_64(s.first, s.words, wide, EQUAL) == 0);
    REQUIRE(writes(s.second, s.words, 0x9abcdef0) == 0);
    REQUIRE(cu("cuStreamSynchronize", s.second) == 0 && cu("cuStreamQuery", s.first) == NOT_READY);
    REQUIRE(writes_64(s.second, s.words, wide) == 0);
    return HOLDS(cu("cuStreamSynchronize", s.first) == 0 && s.word(0) == wide);
}

// Another thread is in a call that waits for the stream.
bool between_threads(const Streams &s, void *context)
{
    REQUIRE(writes(s.second, s.words, 0) == 0);
    REQUIRE(waits(s.first, s.words, 1, EQUAL) == 0);
    std::atomic<int> code{-1};
    std::thread thread([&] {
        const int rc = cu("cuCtxSetCurrent", context);
        code = rc ? rc : cu("cuStreamSynchronize", s.first);
    });
    for (std::uint32_t i = 0; i < 50; i++)
        REQUIRE(writes(s.second, s.words + 16, i) == 0);
    REQUIRE(cu("cuStreamSynchronize", s.second) == 0 && s.word(2) == 49 && code == -1);
    REQUIRE(writes(s.second, s.words, 1) == 0);
    thread.join();
    return HOLDS(code == 0);
}

bool batches(const Streams &s)
{
    enum { WAIT = 1, WRITE, FLUSH, WAIT_64, WRITE_64, BARRIER };
    const Operation waiting[] = {{WAIT, 0, s.words, 0xffffffff00000009, EQUAL, {}},
                                 {WAIT_64, 0, s.words + 8, 1ull << 40, NOT_LESS, {}},
                                 {WRITE, 0, s.words + 16, 11, 0, {}}};
    const Operation writing[] = {{WRITE, 0, s.words, 9, 0, {}},
                                 {BARRIER, 1, 0, 0, 0, {}},
                                 {WRITE_64, 0, s.words + 8, 1ull << 41, 0, {}}};
    const Operation flushing = {FLUSH, 0, 0, 0, 0, {}}, unknown = {77, 0, s.words, 0, 0, {}};
    // the last one of a batch is refused, which must not leave the first one
    const Operation refused[] = {{WAIT, 0, s.words, 77, EQUAL, {}}, flushing},
                    wrong[] = {{WAIT, 0, s.words, 77, EQUAL, {}}, unknown};
    const auto run = [](void *stream, unsigned count, const Operation *all, unsigned flags = 0) {
        return cu("cuStreamBatchMemOp_v2", stream, count, all, flags);
    };
    REQUIRE(writes_64(s.second, s.words, 0) == 0 && writes_64(s.second, s.words + 8, 0) == 0);
    REQUIRE(writes_64(s.second, s.words + 16, 0) == 0);
    REQUIRE(cu("cuStreamSynchronize", s.second) == 0 && run(s.first, 3, waiting) == 0);
    REQUIRE(cu("cuStreamQuery", s.first) == NOT_READY && run(s.second, 3, writing) == 0);
    REQUIRE(cu("cuStreamSynchronize", s.first) == 0 && s.word(2) == 11);
    REQUIRE(run(s.first, 0, nullptr) == 0 && run(s.first, 1, &flushing) == NOT_SUPPORTED);
    REQUIRE(run(s.first, 2, refused) == NOT_SUPPORTED && run(s.first, 2, wrong) == 1);
    REQUIRE(cu("cuStreamQuery", s.first) == 0);
    return HOLDS(run(s.first, 1, &unknown) == 1 && run(s.first, 256, waiting) == 1 &&
                 run(s.first, 3, waiting, 1) == 1);
}

// Copies behind a wait return before the thread that calls them writes the word. Bytes of other
// memory than page-locked are taken in the call.
bool copies_behind(const Streams &s)
{
    constexpr std::size_t most = 256 << 10, few = 32;
    Address memory = 0;
    void *pinned = nullptr;
    REQUIRE(cu("cuMemAlloc_v2", &memory, most) == 0);
    REQUIRE(cu("cuMemHostAlloc", &pinned, 2 * most, 0u) == 0);
    char *const from = static_cast<char *>(pinned), *const back = from + most;
    for (const std::size_t n : {std::size_t{64}, std::size_t{4096}, most}) {
        std::array<char, few> taken{};
        taken.fill('t');
        std::fill(from, from + n, 'a');
        std::fill(back, back + n, 'b');
        REQUIRE(writes(s.second, s.words, 0) == 0 && cu("cuStreamSynchronize", s.second) == 0);
        REQUIRE(waits(s.first, s.words, 1, EQUAL) == 0);
        REQUIRE(cu("cuMemcpyHtoDAsync_v2", memory, pinned, n, s.first) == 0);
        REQUIRE(cu("cuMemcpyHtoDAsync_v2", memory, static_cast<void *>(taken.data()), few,
                   s.first) == 0);
        REQUIRE(cu("cuMemcpyDtoHAsync_v2", static_cast<void *>(back), memory, n, s.first) == 0);
        taken.fill('l');
        std::fill(from, from + n, 'c');
        REQUIRE(cu("cuStreamQuery", s.first) == NOT_READY && back[0] == 'b');
        REQUIRE(writes(s.second, s.words, 1) == 0 && cu("cuStreamSynchronize", s.first) == 0);
        REQUIRE(std::count(back, back + few, 't') == few);
        REQUIRE(std::count(back + few, back + n, 'c') == static_cast<std::ptrdiff_t>(n - few));
    }
    return HOLDS(cu("cuMemFreeHost", pinned) == 0 && cu("cuMemFree_v2", memory) == 0);
}

// Words in page-locked memory are seen by both sides at once, or refused.
bool page_locked(const Streams &s)
{
    void *memory = nullptr;
    REQUIRE(cu("cuMemHostAlloc", &memory, std::size_t{64}, 0u) == 0);
    auto *word = static_cast<volatile std::uint32_t *>(memory);
    const auto at = reinterpret_cast<Address>(memory);
    word[0] = word[1] = 0;
    if (!over_shm) {
        REQUIRE(waits(s.first, at, 1, EQUAL) == NOT_SUPPORTED);
        REQUIRE(writes(s.first, at, 1) == NOT_SUPPORTED && word[0] == 0);
        return HOLDS(cu("cuMemFreeHost", memory) == 0);
    }
    REQUIRE(waits(s.first, at, 1, EQUAL) == 0 && writes(s.first, at + 4, 2) == 0);
    REQUIRE(cu("cuStreamQuery", s.first) == NOT_READY && word[1] == 0);
    word[0] = 1;
    while (word[1] != 2) // no call of this thread is needed
        sched_yield();
    return HOLDS(cu("cuStreamSynchronize", s.first) == 0 && cu("cuMemFreeHost", memory) == 0);
}

bool refused(const Streams &s)
{
    Address managed = 0, gone = 0;
    void *graph = nullptr;
    REQUIRE(waits(s.first, 0, 1, EQUAL) == 1 && writes(s.first, s.words + 2, 1) == 1);
    REQUIRE(waits_64(s.first, s.words + 4, 1, EQUAL) == 1);
    REQUIRE(waits(s.first, s.words, 1, 4) == 1 && writes(s.first, s.words, 1, 2) == 1);
    REQUIRE(waits(s.first, s.words, 1, 1u << 30) == NOT_SUPPORTED);
    REQUIRE(cu("cuMemAllocManaged", &managed, std::size_t{64}, 1u) == 0);
    REQUIRE(writes(s.first, managed, 1) == 1 && cu("cuMemFree_v2", managed) == 0);
    REQUIRE(cu("cuMemAlloc_v2", &gone, std::size_t{64}) == 0 && cu("cuMemFree_v2", gone) == 0);
    // As for memory that is set, the next wait tells.
    const int rc = writes(s.first, gone, 1), later = cu("cuStreamSynchronize", s.first);
    REQUIRE(rc == 1 || (rc == 0 && later == 1));
    REQUIRE(cu("cuStreamBeginCapture_v2", s.first, 0) == 0);
    REQUIRE(writes(s.first, s.words, 1) == NOT_SUPPORTED);
    REQUIRE(cu("cuStreamEndCapture", s.first, &graph) == 0 && cu("cuGraphDestroy", graph) == 0);
    REQUIRE(writes(s.first, s.words, 5) == 0 && cu("cuStreamSynchronize", s.first) == 0);
    return HOLDS((s.word(0) & 0xffffffff) == 5);
}

} // namespace
} // namespace values

// The process is killed while a stream waits for a word in memory of the device, for which a thread
// waits, and another one for a word in page-locked memory.
bool driver_killed_while_waiting()
{
    void *context = nullptr, *memory = nullptr;
    values::Streams s;
    REQUIRE(driver_has_context(&context) && s.begin());
    REQUIRE(cu("cuMemHostAlloc", &memory, std::size_t{64}, 0u) == 0);
    std::memset(memory, 0, 64);
    if (over_shm)
        REQUIRE(values::waits(s.second, reinterpret_cast<Address>(memory), 1, values::EQUAL) == 0);
    REQUIRE(values::waits(s.first, s.words, 1, values::EQUAL) == 0);
    std::thread([&] {
        cu("cuCtxSetCurrent", context);
        cu("cuStreamSynchronize", s.first);
    }).detach();
    for (unsigned i = 0; i < 50; i++)
        REQUIRE(cu("cuStreamQuery", s.first) == values::NOT_READY);
    return raise(SIGKILL) == 0;
}

// The same in the default stream of another device, and so in another context.
static bool waits_elsewhere(void *memory, void *context)
{
    void *other = nullptr;
    REQUIRE(cu("cuDevicePrimaryCtxRetain", &other, 1) == 0 && cu("cuCtxSetCurrent", other) == 0);
    REQUIRE(values::waits(nullptr, reinterpret_cast<Address>(memory), 1, values::EQUAL) == 0);
    return HOLDS(cu("cuCtxSetCurrent", context) == 0);
}

// Page-locked memory is no handle, and the default stream is none.
static bool killed_without_handles(bool in_call)
{
    void *context = nullptr, *memory = nullptr;
    REQUIRE(driver_has_context(&context));
    REQUIRE(cu("cuMemHostAlloc", &memory, std::size_t{64}, 0u) == 0);
    std::memset(memory, 0, 64);
    if (over_shm)
        REQUIRE(values::waits(nullptr, reinterpret_cast<Address>(memory), 1, values::EQUAL) == 0);
    if (over_shm && !in_call)
        REQUIRE(waits_elsewhere(static_cast<char *>(memory) + 8, context));
    if (in_call)
        std::thread([&] {
            cu("cuCtxSetCurrent", context);
            cu("cuStreamSynchronize", static_cast<void *>(nullptr));
        }).detach();
    for (unsigned i = 0; over_shm && in_call && i < 50; i++)
        REQUIRE(cu("cuStreamQuery", static_cast<void *>(nullptr)) == values::NOT_READY);
    return raise(SIGKILL) == 0;
}

bool driver_killed_without_handles()
{
    return killed_without_handles(false);
}
bool driver_killed_in_call_without_handles()
{
    return killed_without_handles(true);
}

bool driver_values()
{
    void *context = nullptr;
    values::Streams s;
    REQUIRE(driver_has_context(&context) && s.begin());
    REQUIRE(values::between_streams(s) && values::between_threads(s, context) &&
            values::batches(s));
    REQUIRE(values::copies_behind(s) && values::page_locked(s) && values::refused(s));
    REQUIRE(cu("cuStreamDestroy_v2", s.first) == 0 && cu("cuStreamDestroy_v2", s.second) == 0);
    return HOLDS(cu("cuMemFree_v2", s.words) == 0 && cu("cuCtxDestroy_v2", context) == 0);
}
