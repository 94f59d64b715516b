// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Memory and events that programs share, each with a process of the back end.
#include "tests/gvirtus/programs_ipc.h"

namespace programs_ipc
{
namespace
{

bool memory_of_another()
{
    const Listening back;
    Program a(back), b(back);
    const std::uint64_t memory = a.malloc(), own = b.malloc(), second = b.malloc();
    REQUIRE(memory && own && second && a.fill(memory, 1) == 0 && b.fill(own, 5) == 0);
    const unsigned long before = b.remote.stats().allocations;
    const Handle handle = a.handle(IBX_EXT_IPC_MEMORY, memory + 17);
    std::uint64_t opened = 0, again = 0;
    REQUIRE(!handle.empty() && handle == a.handle(IBX_EXT_IPC_MEMORY, memory));
    REQUIRE(b.open_memory(handle, &opened) == 0 && b.remote.out.size() == 16);
    REQUIRE(!std::memcmp(b.remote.out.data() + 8, &bytes_shared, 8) && b.reads(opened) == 1);
    REQUIRE(opened != own && opened != second && b.reads(own) == 5);
    // It is the same memory, by copies and by kernels of either.
    REQUIRE(b.fill(opened, 2) == 0 && a.reads(memory) == 2 && a.fill(memory, 3) == 0);
    REQUIRE(b.launch(0, own, opened) == 0 && b.remote.device_synchronize() == 0);
    REQUIRE(b.reads(own) == 3 && b.launch(0, opened, second) == 0 && b.fill(second, 4) == 0);
    // CUDA neither frees opened memory nor exports it.
    REQUIRE(b.remote.free(opened) == bad_value && b.reads(opened) != 1001);
    REQUIRE(b.handle(IBX_EXT_IPC_MEMORY, opened).empty());
    REQUIRE(b.open_memory(handle, &again) == 0 && again == opened);
    REQUIRE(b.close_it(memory_kind, opened) == 0 && b.fill(opened, 6) == 0);
    REQUIRE(a.reads(memory) == 6 && b.remote.stats().allocations == before + 1);
    REQUIRE(b.close_it(memory_kind, opened) == 0 && b.close_it(memory_kind, opened) == 0);
    REQUIRE(b.remote.stats().allocations == before && b.reads(opened) > 1000);
    b.remote.get_last_error();
    // Open again, and freed by its owner.
    REQUIRE(b.open_memory(handle, &opened) == 0 && b.reads(opened) == 6);
    REQUIRE(a.remote.free(memory) == 0 && b.open_memory(handle) == no_handle);
    return HOLDS(b.reads(opened) == 6 && b.close_it(memory_kind, opened) == 0);
}

int wait_for(One *one, std::uint64_t stream, std::uint64_t event)
{
    Body body;
    body.u64(stream).u64(event).put(0u);
    return one->remote.call("cudaStreamWaitEvent", body);
}

// In the process that has made such an event, CUDA's driver ends by SIGSEGV at such a wait.
bool event_of_another_device()
{
    const Listening back;
    Program a(back);
    const std::uint64_t to = a.malloc(), from = a.malloc(), event = a.event();
    const std::uint64_t stream = a.remote.stream_create(1);
    REQUIRE(to && from && event && stream && a.fill(to, 1) == 0 && a.fill(from, 2) == 0);
    std::uint64_t opened = 0;
    REQUIRE(a.child.malloc());
    REQUIRE(a.child.open(IBX_EXT_IPC_OPEN_EVENT, a.handle(IBX_EXT_IPC_EVENT, event), &opened) == 0);
    REQUIRE(opened == event && a.child.remote.set_device(1) == 0);
    const std::uint64_t its = a.child.remote.stream_create(1);
    const unsigned long events = a.remote.stats().events, streams = a.remote.stats().streams;
    REQUIRE(its && wait_for(&a.child, its, opened) == 0); // nobody has recorded it
    REQUIRE(a.child.remote.stream_synchronize(its) == 0);
    a.remote.hold_stream(stream);
    REQUIRE(a.launch(stream, to, from) == 0);
    REQUIRE(a.with_event("cudaEventRecord", event, stream) == 0);
    for (const std::uint64_t waits : {its, std::uint64_t{0}})
        REQUIRE(wait_for(&a.child, waits, opened) == 0);
    REQUIRE(wait_for(&a, 0, event) == 0 && a.child.remote.stream_query(its) == not_ready);
    a.remote.release_stream(stream);
    REQUIRE(a.child.remote.stream_synchronize(its) == 0 && a.reads(to) == 2);
    const ibx_double_stats now = a.remote.stats();
    return HOLDS(now.events == events && now.streams == streams);
}

// Natively cudaIpcOpenMemHandle enables the access.
bool memory_of_another_device()
{
    const Listening back;
    Program a(back);
    const std::uint64_t memory = a.malloc();
    std::uint64_t opened = 0;
    REQUIRE(memory && a.fill(memory, 7) == 0 && a.child.remote.set_device(1) == 0);
    const std::uint64_t own = a.child.malloc();
    REQUIRE(own && a.child.open_memory(a.handle(IBX_EXT_IPC_MEMORY, memory), &opened) == 0);
    REQUIRE(opened == memory && a.child.remote.get_last_error() == 0);
    // The access is there, which is no error, and an error of before stays the last one.
    REQUIRE(a.child.remote.call("cudaEventQuery", Body().u64(77)) == 400);
    REQUIRE(a.child.open_memory(a.handle(IBX_EXT_IPC_MEMORY, memory), &opened) == 0);
    REQUIRE(a.child.remote.get_last_error() == 400);
    REQUIRE(a.child.launch(0, own, opened) == 0 && a.child.remote.device_synchronize() == 0);
    return HOLDS(a.child.reads(own) == 7);
}

bool forked_ones_share_it()
{
    const Listening back;
    Program a(back), b(back);
    const std::uint64_t memory = a.malloc();
    std::uint64_t opened = 0, its = 0;
    REQUIRE(memory && b.malloc() && a.fill(memory, 1) == 0 && b.child.malloc());
    const unsigned long before = b.remote.stats().allocations;
    const Handle handle = a.handle(IBX_EXT_IPC_MEMORY, memory);
    REQUIRE(a.child.malloc() && a.child.open_memory(handle, &its) == 0 && its == memory);
    REQUIRE(b.child.open_memory(handle, &its) == 0 && b.open_memory(handle, &opened) == 0);
    REQUIRE(its == opened && b.close_it(memory_kind, opened) == 0 && b.child.reads(its) == 1);
    REQUIRE(b.open_memory(handle, &opened) == 0 && b.child.close_it(memory_kind, its) == 0);
    REQUIRE(b.reads(opened) == 1 && b.close_it(memory_kind, opened) == 0);
    REQUIRE(b.remote.stats().allocations == before);
    // What a client leaves open is closed at its end, unless another client has it open.
    REQUIRE(b.child.open_memory(handle, &its) == 0 && b.open_memory(handle, &opened) == 0);
    b.child.end();
    REQUIRE(becomes_true([&] { return b.remote.stats().allocations == before; }));
    REQUIRE(b.reads(opened) == 1 && b.close_it(memory_kind, opened) == 0);
    return HOLDS(b.reads(opened) > 1000 && a.reads(memory) == 1);
}

bool left_open()
{
    const Listening back;
    Program a(back), b(back);
    const std::uint64_t memory = a.malloc(), event = a.event();
    REQUIRE(memory && event && b.malloc() && a.fill(memory, 1) == 0);
    REQUIRE(b.child.remote.free(b.child.malloc()) ==
            0); // from this a session learns the form of replies
    const ibx_double_stats before = b.remote.stats();
    const Handle of_memory = a.handle(IBX_EXT_IPC_MEMORY, memory);
    REQUIRE(b.child.open_memory(of_memory) == 0 && b.child.open_memory(of_memory) == 0);
    REQUIRE(b.child.open(IBX_EXT_IPC_OPEN_EVENT, a.handle(IBX_EXT_IPC_EVENT, event)) == 0);
    b.child.end();
    REQUIRE(becomes_true([&] {
        const ibx_double_stats now = b.remote.stats();
        return now.allocations == before.allocations && now.events == before.events;
    }));
    return HOLDS(a.reads(memory) == 1);
}

// As natively, memory that others have open keeps its bytes.
bool left_shared()
{
    const Listening back(resume);
    Program a(back, resume), b(back, resume);
    REQUIRE(a.malloc() && b.malloc());
    const unsigned long before = a.remote.stats().allocations;
    const std::uint64_t memory = a.child.malloc();
    std::uint64_t opened = 0;
    REQUIRE(memory && a.child.fill(memory, 3) == 0);
    const Handle handle = a.child.handle(IBX_EXT_IPC_MEMORY, memory);
    REQUIRE(b.open_memory(handle, &opened) == 0 && b.reads(opened) == 3);
    a.child.end();
    REQUIRE(becomes_true([&] { return a.remote.stats().allocations == before; }));
    return HOLDS(b.reads(opened) == 3 && b.open_memory(handle) == no_handle);
}

bool of_one_tenant()
{
    const std::string file = keys_of_two(), name = file + "rdma.name : ";
    const Listening back(file);
    Program alice(back, name + "alice\n"), again(back, name + "alice\n"), bob(back, name + "bob\n");
    const std::uint64_t memory = alice.malloc(), event = alice.event();
    REQUIRE(memory && event && alice.fill(memory, 1) == 0 && again.malloc() && bob.malloc());
    const Handle of_memory = alice.handle(IBX_EXT_IPC_MEMORY, memory);
    const Handle of_event = alice.handle(IBX_EXT_IPC_EVENT, event);
    std::uint64_t opened = 0;
    REQUIRE(bob.open_memory(of_memory) == no_handle);
    REQUIRE(bob.open(IBX_EXT_IPC_OPEN_EVENT, of_event) == no_handle);
    REQUIRE(again.open(IBX_EXT_IPC_OPEN_EVENT, of_event) == 0);
    return HOLDS(again.open_memory(of_memory, &opened) == 0 && again.reads(opened) == 1);
}

// As natively, CUDA opens nothing of another user.
bool of_one_user()
{
    const Listening back;
    Program a(back), again(back);
    const std::uint64_t memory = a.malloc();
    REQUIRE(memory && a.fill(memory, 1) == 0 && again.malloc());
    const Handle handle = a.handle(IBX_EXT_IPC_MEMORY, memory);
    REQUIRE(!handle.empty() && as_another_user(back, [&](Remote *its) {
        Body body = number(IBX_EXT_IPC_OPEN_MEMORY);
        append(&body.bytes, handle.data(), handle.size());
        return works(its) == 1 && its->call("ibxRuntime", body) == no_handle;
    }));
    std::uint64_t opened = 0;
    return HOLDS(again.open_memory(handle, &opened) == 0 && again.reads(opened) == 1);
}

bool hostile_numbers()
{
    const Listening back;
    Program a(back), b(back);
    const std::uint64_t memory = a.malloc();
    REQUIRE(memory && b.malloc());
    const Handle handle = a.handle(IBX_EXT_IPC_MEMORY, memory);
    Handle longer = handle, other = handle;
    longer[40] = 1;
    other[3] = static_cast<char>(other[3] + 1);
    for (const Handle &none : {longer, other, Handle(64), Handle(64, 'Z')}) {
        REQUIRE(b.open_memory(none) == no_handle);
        REQUIRE(b.open(IBX_EXT_IPC_OPEN_EVENT, none) == no_handle);
        REQUIRE(b.open(IBX_EXT_IPC_OPEN_POOL, none) == no_handle);
    }
    REQUIRE(b.open(IBX_EXT_IPC_OPEN_EVENT, handle) == no_handle);
    REQUIRE(b.open_memory(Handle(handle.begin(), handle.end() - 1)) == bad_value);
    REQUIRE(b.close_it(memory_kind, memory) == 0 && b.close_it(event_kind, 4096) == 0);
    return HOLDS(b.open_memory(handle) == 0 && a.fill(memory, 1) == 0);
}

// What is open stays, as natively; what is not open cannot be opened any more.
bool maker_ends(bool crashes)
{
    const Listening back(resume);
    Program a(back, resume);
    const std::uint64_t memory = a.malloc(), other = a.malloc(), event = a.event();
    REQUIRE(memory && other && event && a.fill(memory, 1) == 0);
    Program b(back, resume);
    const Handle handle = a.handle(IBX_EXT_IPC_MEMORY, memory);
    const Handle of_other = a.handle(IBX_EXT_IPC_MEMORY, other);
    const Handle of_event = a.handle(IBX_EXT_IPC_EVENT, event);
    std::uint64_t opened = 0, its_event = 0;
    REQUIRE(b.malloc() && b.open_memory(handle, &opened) == 0 && b.reads(opened) == 1);
    REQUIRE(b.open(IBX_EXT_IPC_OPEN_EVENT, of_event, &its_event) == 0);
    if (crashes)
        REQUIRE(kill(back.children().front(), SIGKILL) == 0);
    else
        a.end(SIGKILL);
    REQUIRE(back.has(1));
    REQUIRE(becomes_true([&] { return b.open_memory(of_other) == no_handle; }));
    REQUIRE(becomes_true([&] { return b.open_memory(handle) == no_handle; }));
    REQUIRE(becomes_true([&] { return b.open(IBX_EXT_IPC_OPEN_EVENT, of_event) == no_handle; }));
    REQUIRE(b.reads(opened) == 1 && b.remote.call("cudaEventQuery", Body().u64(its_event)) == 0);
    // Another one takes its place.
    Program c(back, resume);
    const std::uint64_t fresh = c.malloc();
    REQUIRE(fresh && c.fill(fresh, 7) == 0 && b.open_memory(of_other) == no_handle);
    std::uint64_t of_c = 0;
    REQUIRE(b.open_memory(c.handle(IBX_EXT_IPC_MEMORY, fresh), &of_c) == 0);
    return HOLDS(b.reads(of_c) == 7 && b.reads(opened) == 1);
}

bool events_of_another()
{
    const Listening back;
    Program a(back), b(back);
    const std::uint64_t memory = a.malloc(), from = a.malloc(), own = b.malloc(), event = a.event();
    const std::uint64_t stream = a.remote.stream_create(1), its = b.remote.stream_create(1);
    REQUIRE(memory && from && own && event && stream && its && b.fill(own, 0) == 0);
    REQUIRE(a.fill(memory, 1) == 0 && a.fill(from, 2) == 0);
    const unsigned long before = b.remote.stats().events;
    const Handle handle = a.handle(IBX_EXT_IPC_EVENT, event);
    std::uint64_t opened = 0, second = 0, shared = 0;
    REQUIRE(!handle.empty() && b.open(IBX_EXT_IPC_OPEN_EVENT, handle, &opened) == 0);
    REQUIRE(b.open(IBX_EXT_IPC_OPEN_EVENT, handle, &second) == 0 && second != opened);
    REQUIRE(b.open_memory(a.handle(IBX_EXT_IPC_MEMORY, memory), &shared) == 0);
    const auto query = [&] { return b.remote.call("cudaEventQuery", Body().u64(opened)); };
    REQUIRE(query() == 0); // nobody has recorded it
    a.remote.hold_stream(stream);
    REQUIRE(a.launch(stream, memory, from) == 0);
    REQUIRE(a.with_event("cudaEventRecord", event, stream) == 0 && query() == not_ready);
    Body wait;
    wait.u64(its).u64(opened).put(0u);
    REQUIRE(b.remote.call("cudaStreamWaitEvent", wait) == 0);
    REQUIRE(b.launch(its, own, shared) == 0 && b.remote.stream_query(its) == not_ready);
    REQUIRE(b.reads(shared) == 1);
    a.remote.release_stream(stream);
    REQUIRE(b.remote.stream_synchronize(its) == 0 && query() == 0 && b.reads(own) == 2);
    REQUIRE(b.close_it(event_kind, opened) == 0 && query() == no_handle);
    REQUIRE(b.remote.stats().events == before + 1);
    REQUIRE(a.remote.call("cudaEventDestroy", Body().u64(event)) == 0);
    REQUIRE(b.open(IBX_EXT_IPC_OPEN_EVENT, handle) == no_handle);
    REQUIRE(b.close_it(event_kind, second) == 0 && b.remote.stats().events == before);
    return HOLDS(a.handle(IBX_EXT_IPC_EVENT, a.remote.event_create()).empty()); // not to share
}

bool no_more_than_4096()
{
    const Descriptors enough(8192); // the double has one for each
    const Listening back(resume);
    Program a(back, resume), b(back, resume);
    const std::uint64_t memory = b.malloc();
    std::vector<std::uint64_t> events;
    REQUIRE(memory && a.malloc());
    for (unsigned i = 0; i < 4096; i++) {
        events.push_back(a.event());
        REQUIRE(events.back() && !a.handle(IBX_EXT_IPC_EVENT, events.back()).empty());
    }
    REQUIRE(b.remote.call("ibxRuntime", number(IBX_EXT_IPC_MEMORY).u64(memory)) == no_memory);
    REQUIRE(a.remote.call("cudaEventDestroy", Body().u64(events[7])) == 0);
    const Handle handle = b.handle(IBX_EXT_IPC_MEMORY, memory);
    REQUIRE(!handle.empty() && a.open_memory(handle) == 0);
    REQUIRE(a.handle(IBX_EXT_IPC_EVENT, a.event()).empty());
    a.end();
    REQUIRE(back.has(1));
    return HOLDS(becomes_true([&] { return !b.handle(IBX_EXT_IPC_EVENT, b.event()).empty(); }));
}

} // namespace
} // namespace programs_ipc

void check_programs_ipc()
{
    using namespace programs_ipc;
    check("memory of another program", memory_of_another);
    check("... in forked processes of the other one", forked_ones_share_it);
    check("... and on another device", memory_of_another_device);
    check("... and events, that a process leaves open", left_open);
    check("... and what it has shared", left_shared);
    check("... are one tenant's", of_one_tenant);
    if (provider != "verbs") // whose clients are on another host
        check("... and without keys one user's", of_one_user);
    check("handles that are none", hostile_numbers);
    check("what a program has shared that ends", [] { return maker_ends(false); });
    check("... and whose process crashes", [] { return maker_ends(true); });
    check("an event of another program", events_of_another);
    check("an event for others that a stream of another device waits for", event_of_another_device);
    check("a tenant shares no more than 4096 things", no_more_than_4096);
}
