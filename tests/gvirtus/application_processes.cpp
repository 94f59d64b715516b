// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Memory and events that two processes of one tenant share.
#include "tests/gvirtus/application_driver.h"
#include "tests/gvirtus/graph_calls.h"
#include "tests/fixtures/patience.h"

#include <cstring>
#include <string>
#include <vector>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

using graph_calls::run;

struct Handle {
    char bytes[64];
};

constexpr std::size_t shared_bytes = 300000;

// The two processes meet.
struct Meeting {
    int to[2], back[2];
    Meeting()
    {
        if (pipe(to) || pipe(back))
            std::abort();
    }
    // The other's ends, so that it is seen to end.
    void leave(bool parent) const
    {
        close(parent ? to[0] : to[1]);
        close(parent ? back[1] : back[0]);
    }
    template <typename T> bool tell(bool parent, const T &what) const
    {
        return write(parent ? to[1] : back[1], &what, sizeof(what)) == sizeof(what);
    }
    template <typename T> bool hear(bool parent, T *what) const
    {
        return read(parent ? back[0] : to[0], what, sizeof(*what)) == sizeof(*what);
    }
};

struct Shared {
    Handle memory, event;
};

bool open_memory(void **memory, const Handle &handle, unsigned flags = 1)
{
    return run("cudaIpcOpenMemHandle", memory, handle, flags) == 0;
}

// Made-up handles, and handles of the other kind.
bool forged(const Shared &shared)
{
    void *got = nullptr;
    for (std::size_t at : {0u, 15u, 16u, 63u}) {
        Shared other = shared;
        other.memory.bytes[at] = static_cast<char>(other.memory.bytes[at] ^ 1);
        other.event.bytes[at] = static_cast<char>(other.event.bytes[at] ^ 1);
        REQUIRE(fails(run("cudaIpcOpenMemHandle", &got, other.memory, 1u), 1));
        REQUIRE(fails(run("cudaIpcOpenEventHandle", &got, other.event), 205));
    }
    REQUIRE(fails(run("cudaIpcOpenMemHandle", &got, shared.event, 1u), 1));
    REQUIRE(fails(run("cudaIpcOpenEventHandle", &got, shared.memory), 205));
    REQUIRE(fails(run("cudaIpcOpenMemHandle", &got, shared.memory, 0u), 1));
    return HOLDS(fails(run("cudaIpcCloseMemHandle", static_cast<void *>(&got)), 1) && !got);
}

// The other process: it uses what it opens as its own, and does not give it back.
bool child_of(const Meeting &meeting)
{
    Shared shared;
    void *memory = nullptr, *again = nullptr, *event = nullptr, *stream = nullptr;
    char go;
    REQUIRE(meeting.hear(false, &shared) && cudaGetLastError() == 0);
    char *own = device_memory(shared_bytes);
    REQUIRE(own && cudaStreamCreateWithFlags(&stream, 1) == 0 && forged(shared));
    REQUIRE(open_memory(&memory, shared.memory) && open_memory(&again, shared.memory));
    REQUIRE(again == memory);
    REQUIRE(run("cudaIpcOpenEventHandle", &event, shared.event) == 0 && event);
    // This process's work comes behind the other's, which begins once this one has enqueued its
    // own.
    std::vector<char> expected(shared_bytes, 'p'), got(shared_bytes);
    REQUIRE(cudaStreamWaitEvent(stream, event, 0) == 0);
    REQUIRE(cudaMemcpyAsync(own, memory, shared_bytes, D2D, stream) == 0 &&
            meeting.tell(false, 'e'));
    REQUIRE(cudaMemcpyAsync(got.data(), memory, shared_bytes, DEFAULT, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && got == expected);
    REQUIRE(device_has(own, expected.data(), shared_bytes));
    // And the other way round.
    stub_remote()->hold(true);
    REQUIRE(cudaMemsetAsync(memory, 'c', shared_bytes, stream) == 0 &&
            cudaEventRecord(event, stream) == 0);
    REQUIRE(meeting.tell(false, 'r') && meeting.hear(false, &go));
    stub_remote()->hold(false);
    REQUIRE(meeting.hear(false, &go));
    REQUIRE(fails(cudaFree(memory), 1));
    REQUIRE(run("cudaIpcCloseMemHandle", memory) == 0 && fails(cudaFree(memory), 1));
    REQUIRE(run("cudaIpcCloseMemHandle", memory) == 0);
    REQUIRE(fails(run("cudaIpcCloseMemHandle", memory), 1));
    REQUIRE(run("cudaEventDestroy", event) == 0 && cudaFree(own) == 0);
    REQUIRE(meeting.tell(false, 'c') && meeting.hear(false, &go));
    // Freed memory and a destroyed event cannot be opened, and neither can what is there now.
    REQUIRE(fails(run("cudaIpcOpenMemHandle", &memory, shared.memory, 1u), 1));
    return HOLDS(fails(run("cudaIpcOpenEventHandle", &event, shared.event), 205));
}

bool parent_of(const Meeting &meeting)
{
    Shared shared, again;
    void *stream = nullptr, *event = nullptr, *plain = nullptr;
    char go;
    REQUIRE(cudaGetLastError() == 0);
    char *memory = device_memory(shared_bytes), *other = device_memory(shared_bytes);
    const std::vector<char> first(shared_bytes, 'p'), second(shared_bytes, 'c');
    REQUIRE(memory && other && cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(cudaMemcpy(other, first.data(), shared_bytes, H2D) == 0 &&
            cudaMemset(memory, 0, shared_bytes) == 0);
    REQUIRE(cudaEventCreateWithFlags(&event, 6) == 0 && cudaEventCreate(&plain) == 0);
    REQUIRE(run("cudaIpcGetMemHandle", &shared.memory, static_cast<void *>(memory)) == 0);
    REQUIRE(run("cudaIpcGetEventHandle", &shared.event, event) == 0);
    // The allocation has one handle, whatever of it is named.
    REQUIRE(run("cudaIpcGetMemHandle", &again.memory, static_cast<void *>(memory + 100)) == 0);
    REQUIRE(!std::memcmp(&again.memory, &shared.memory, sizeof(Handle)));
    REQUIRE(fails(run("cudaIpcGetMemHandle", &again.memory, static_cast<void *>(&go)), 1));
    void *managed = nullptr;
    REQUIRE(run("cudaMallocManaged", &managed, std::size_t{100}, 1u) == 0);
    REQUIRE(fails(run("cudaIpcGetMemHandle", &again.memory, managed), 1) && cudaFree(managed) == 0);
    const Handle none{};
    std::memset(&again.event, 'x', sizeof(Handle));
    REQUIRE(fails(run("cudaIpcGetEventHandle", &again.event, plain), 400));
    REQUIRE(!std::memcmp(&again.event, &none, sizeof(Handle)));
    // They are for other processes.
    void *own = nullptr;
    REQUIRE(fails(run("cudaIpcOpenMemHandle", &own, shared.memory, 1u), 201));
    REQUIRE(fails(run("cudaIpcOpenEventHandle", &own, shared.event), 201) && !own);
    REQUIRE(fails(run("cudaIpcCloseMemHandle", static_cast<void *>(memory)), 1));
    stub_remote()->hold(true);
    for (int i = 0; i < 50; i++) // so that what does not wait for it is first
        REQUIRE(cudaMemcpyAsync(memory + shared_bytes / 2, memory, shared_bytes / 2, D2D, stream) ==
                0);
    REQUIRE(cudaMemcpyAsync(memory, other, shared_bytes, D2D, stream) == 0);
    REQUIRE(cudaEventRecord(event, stream) == 0 && meeting.tell(true, shared));
    REQUIRE(meeting.hear(true, &go));
    stub_remote()->hold(false);
    REQUIRE(meeting.hear(true, &go) && cudaEventQuery(event) == 600 && meeting.tell(true, 'q'));
    cudaGetLastError();
    REQUIRE(cudaEventSynchronize(event) == 0);
    REQUIRE(device_has(memory, second.data(), shared_bytes) && meeting.tell(true, 'f'));
    // After the other process has closed them, they are as before.
    REQUIRE(meeting.hear(true, &go) && device_has(memory, second.data(), shared_bytes));
    REQUIRE(cudaEventRecord(event, stream) == 0 && cudaEventSynchronize(event) == 0);
    REQUIRE(cudaFree(memory) == 0 && run("cudaEventDestroy", event) == 0);
    REQUIRE(device_memory(shared_bytes) == memory && meeting.tell(true, 'g'));
    return HOLDS(cudaFree(other) == 0);
}

// It opens the memory before it has done anything else on the device.
bool child_that_begins(const Meeting &meeting)
{
    Handle handle;
    void *memory = nullptr;
    char got = 0;
    REQUIRE(meeting.hear(false, &handle) && cudaGetLastError() == 0);
    REQUIRE(stub_remote()->lose_context() && open_memory(&memory, handle));
    REQUIRE(cudaMemcpy(&got, memory, 1, D2H) == 0 && got == 'f');
    return HOLDS(run("cudaIpcCloseMemHandle", memory) == 0 && meeting.tell(false, 'c'));
}

bool parent_of_that(const Meeting &meeting)
{
    Handle handle;
    char closed;
    REQUIRE(cudaGetLastError() == 0);
    char *memory = device_memory(shared_bytes);
    REQUIRE(memory && cudaMemset(memory, 'f', shared_bytes) == 0);
    REQUIRE(run("cudaIpcGetMemHandle", &handle, static_cast<void *>(memory)) == 0);
    REQUIRE(meeting.tell(true, handle) && meeting.hear(true, &closed));
    return HOLDS(cudaFree(memory) == 0);
}

// A reset closes what was opened.
bool child_that_resets(const Meeting &meeting)
{
    Handle handle;
    void *opened = nullptr;
    REQUIRE(meeting.hear(false, &handle) && cudaGetLastError() == 0);
    REQUIRE(open_memory(&opened, handle) && fails(cudaFree(opened), 1));
    REQUIRE(cudaDeviceReset() == 0);
    return HOLDS(fails(run("cudaIpcCloseMemHandle", opened), 1) && meeting.tell(false, 'c'));
}

} // namespace

static bool both(bool (*child_does)(const Meeting &), bool (*parent_does)(const Meeting &))
{
    Meeting meeting;
    const pid_t child = fork();
    if (!child) {
        alarm(60 * patience_times());
        meeting.leave(false);
        std::_Exit(child_does(meeting) ? 0 : 1);
    }
    meeting.leave(true);
    const bool good = parent_does(meeting);
    close(meeting.to[1]); // then it hears nothing any more
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0 && good;
}

// Neither process has called CUDA before: two programs, as a back end sees them.
bool programs()
{
    return both(child_of, parent_of);
}

bool processes()
{
    return both(child_that_begins, parent_of_that) && both(child_of, parent_of) &&
           both(child_that_resets, parent_of_that);
}

namespace
{

struct SharedPool {
    int file; // of the parent's: the child opens it by /proc
    pid_t parent;
    Handle memory, of_another;
};

int import_pool(void **pool, int file)
{
    return run("cudaMemPoolImportFromShareableHandle", pool,
               reinterpret_cast<void *>(std::intptr_t(file)), 1, 0u);
}

int import_pointer(void **memory, void *pool, const Handle *handle)
{
    return run("cudaMemPoolImportPointer", memory, pool, handle);
}

bool child_of_pool(const Meeting &meeting)
{
    SharedPool shared;
    void *pool = nullptr, *memory = nullptr, *stream = nullptr;
    REQUIRE(meeting.hear(false, &shared) && cudaGetLastError() == 0);
    const std::string path =
        "/proc/" + std::to_string(shared.parent) + "/fd/" + std::to_string(shared.file);
    const int file = open(path.c_str(), O_RDONLY), other = open("/proc/self/stat", O_RDONLY);
    REQUIRE(cudaStreamCreateWithFlags(&stream, 1) == 0);
    REQUIRE(fails(import_pool(&pool, other), 1) && import_pool(&pool, file) == 0 && pool);
    REQUIRE(fails(import_pointer(&memory, pool, &shared.of_another), 1));
    REQUIRE(fails(import_pointer(&memory, stream, &shared.memory), 1));
    REQUIRE(import_pointer(&memory, pool, &shared.memory) == 0 && memory);
    REQUIRE(device_has(static_cast<char *>(memory), std::string(shared_bytes, 'p').c_str(),
                       shared_bytes));
    REQUIRE(cudaMemsetAsync(memory, 'c', shared_bytes, stream) == 0 &&
            cudaStreamSynchronize(stream) == 0);
    // The process has no pool of its own there, and gives back only its view of the pool.
    void *made = nullptr;
    REQUIRE(fails(run("cudaMallocFromPoolAsync", &made, std::size_t{9}, pool, stream), 1));
    REQUIRE(run("cudaFreeAsync", memory, stream) == 0);
    REQUIRE(import_pointer(&memory, pool, &shared.memory) == 0 && cudaFree(memory) == 0);
    REQUIRE(run("cudaMemPoolDestroy", pool) == 0);
    char go;
    REQUIRE(meeting.tell(false, 'f') && meeting.hear(false, &go));
    return fails(import_pool(&pool, file), 400); // that is no more
}

// Its descriptor is one of a small file: a limit for files fails the call, and does not end the
// program.
bool is_no_handle_with_short_files(void *pool)
{
    rlimit before, none;
    int file = -1;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
    const int rc =
        run("cudaMemPoolExportToShareableHandle", static_cast<void *>(&file), pool, 1, 0u);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    return HOLDS(fails(rc, 2) && file == -1);
}

bool parent_of_pool(const Meeting &meeting)
{
    const struct {
        int allocation = 1, handles = 1, type = 1, device = 0;
        void *rest[9] = {};
    } wish;
    SharedPool shared = {};
    void *pool = nullptr, *second = nullptr, *memory = nullptr, *other = nullptr, *stream = nullptr;
    char go;
    shared.parent = getpid();
    REQUIRE(cudaGetLastError() == 0 && cudaStreamCreate(&stream) == 0);
    REQUIRE(run("cudaMemPoolCreate", &pool, static_cast<const void *>(&wish)) == 0);
    REQUIRE(run("cudaMemPoolCreate", &second, static_cast<const void *>(&wish)) == 0);
    REQUIRE(run("cudaMallocFromPoolAsync", &memory, shared_bytes, pool, stream) == 0);
    REQUIRE(run("cudaMallocFromPoolAsync", &other, shared_bytes, second, stream) == 0);
    REQUIRE(cudaMemsetAsync(memory, 'p', shared_bytes, stream) == 0 &&
            cudaStreamSynchronize(stream) == 0);
    REQUIRE(is_no_handle_with_short_files(pool));
    REQUIRE(run("cudaMemPoolExportToShareableHandle", static_cast<void *>(&shared.file), pool, 1,
                0u) == 0);
    REQUIRE(fails(run("cudaMemPoolExportToShareableHandle", static_cast<void *>(&go), pool, 8, 0u),
                  801));
    REQUIRE(run("cudaMemPoolExportPointer", &shared.memory, memory) == 0);
    REQUIRE(run("cudaMemPoolExportPointer", &shared.of_another, other) == 0);
    REQUIRE(meeting.tell(true, shared) && meeting.hear(true, &go));
    REQUIRE(device_has(static_cast<char *>(memory), std::string(shared_bytes, 'c').c_str(),
                       shared_bytes));
    REQUIRE(run("cudaFreeAsync", memory, stream) == 0 && run("cudaFreeAsync", other, stream) == 0);
    REQUIRE(run("cudaMemPoolDestroy", second) == 0);
    REQUIRE(run("cudaMemPoolDestroy", pool) == 0 && meeting.tell(true, 'd'));
    return true;
}

} // namespace

bool processes_and_pools()
{
    return both(child_of_pool, parent_of_pool);
}

namespace
{

constexpr std::size_t mapped_bytes = 2u << 20;

// Memory of cuMemCreate at addresses of its own.
struct Mapped {
    Address at = 0, handle = 0;

    bool create(int handles)
    {
        MappedProperties wish;
        wish.handles = handles;
        return cu("cuMemCreate", &handle, mapped_bytes,
                  static_cast<const MappedProperties *>(&wish), 0ull) == 0;
    }
    int import(int file)
    {
        return cu("cuMemImportFromShareableHandle", &handle,
                  reinterpret_cast<void *>(std::intptr_t(file)), 1);
    }
    bool map()
    {
        const MappedAccess access;
        return cu("cuMemAddressReserve", &at, mapped_bytes, std::size_t{0}, Address{0}, 0ull) ==
                   0 &&
               cu("cuMemMap", at, mapped_bytes, std::size_t{0}, handle, 0ull) == 0 &&
               cu("cuMemSetAccess", at, mapped_bytes, &access, std::size_t{1}) == 0;
    }
    int export_it(int *file, int type = 1, unsigned long long flags = 0) const
    {
        return cu("cuMemExportToShareableHandle", static_cast<void *>(file), handle, type, flags);
    }
    bool fill(char byte) const
    {
        return cu("cuMemsetD8_v2", at, static_cast<unsigned char>(byte), mapped_bytes) == 0;
    }
    bool has(char byte) const
    {
        return device_has(reinterpret_cast<char *>(at), std::string(mapped_bytes, byte).c_str(),
                          mapped_bytes);
    }
    bool release() const { return cu("cuMemRelease", handle) == 0; }
    bool unmap() const
    {
        return cu("cuMemUnmap", at, mapped_bytes) == 0 &&
               cu("cuMemAddressFree", at, mapped_bytes) == 0;
    }
};

// The back end gives back what a process has left a little later.
void wait_until_nothing_is_mapped()
{
    for (auto stats = stub_remote()->stats(); stats.mappable || stats.reservations;) {
        usleep(1000);
        stats = stub_remote()->stats();
    }
}

// What is no handle, or not one of this memory.
bool exports_nothing(const Mapped &memory)
{
    Mapped plain, none;
    int file = -1, supported = 0;
    REQUIRE(cu("cuDeviceGetAttribute", &supported, 103, 0) == 0 && supported == 1);
    REQUIRE(plain.create(0) && plain.export_it(&file) == 1 && plain.release());
    REQUIRE(plain.export_it(&file) == 1 && none.export_it(&file) == 1);
    REQUIRE(memory.export_it(nullptr) == 1 && memory.export_it(&file, 1, 1) == 1);
    REQUIRE(memory.export_it(&file, 8) == 801 && memory.export_it(&file, 2) == 801 && file == -1);
    REQUIRE(none.import(-1) == 1 && none.import(0) == 1 && !none.handle);
    REQUIRE(cu("cuMemImportFromShareableHandle", static_cast<Address *>(nullptr),
               static_cast<void *>(nullptr), 1) == 1);
    return HOLDS(
        cu("cuMemImportFromShareableHandle", &none.handle, static_cast<void *>(&file), 8) == 801);
}

// Memory that the process has exported is the same memory where it imports it itself.
bool imports_its_own(const Mapped &memory, int file)
{
    Mapped same, again;
    REQUIRE(same.import(file) == 0 && again.import(file) == 0 && same.handle && again.release());
    MappedProperties is;
    is.device = is.handles = 9;
    REQUIRE(cu("cuMemGetAllocationPropertiesFromHandle", &is, same.handle) == 0);
    REQUIRE(is.handles == 0 && is.device == 0);
    REQUIRE(same.map() && same.at != memory.at && same.fill('o') && memory.has('o'));
    REQUIRE(same.release() && memory.fill('p') && same.has('p'));
    return HOLDS(same.unmap() && memory.has('p'));
}

bool child_of_mapped(const Meeting &meeting)
{
    SharedPool shared;
    void *context = nullptr;
    Mapped memory, again;
    char go;
    REQUIRE(driver_has_context(&context) && meeting.hear(false, &shared));
    const std::string path =
        "/proc/" + std::to_string(shared.parent) + "/fd/" + std::to_string(shared.file);
    const int file = open(path.c_str(), O_RDONLY), other = open("/proc/self/stat", O_RDONLY);
    REQUIRE(memory.import(other) == 1 && memory.import(file) == 0 && memory.map());
    REQUIRE(memory.has('p') && memory.fill('c') && meeting.tell(false, 'f'));
    // It stays when the process that has made it no longer has it; others cannot import it then.
    REQUIRE(meeting.hear(false, &go) && memory.has('c') && again.import(file) == 1);
    REQUIRE(memory.release() && memory.fill('d') && memory.has('d') && memory.unmap());
    wait_until_nothing_is_mapped();
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0);
}

bool parent_of_mapped(const Meeting &meeting)
{
    SharedPool shared = {};
    void *context = nullptr;
    Mapped memory;
    int second = -1;
    char go;
    shared.parent = getpid();
    REQUIRE(driver_has_context(&context) && memory.create(1) && exports_nothing(memory));
    REQUIRE(memory.map() && memory.fill('p') && memory.export_it(&shared.file) == 0);
    REQUIRE(memory.export_it(&second) == 0 && second != shared.file && close(second) == 0);
    REQUIRE(imports_its_own(memory, shared.file));
    REQUIRE(meeting.tell(true, shared) && meeting.hear(true, &go) && memory.has('c'));
    REQUIRE(memory.release() && memory.has('c') && memory.unmap() && meeting.tell(true, 'g'));
    wait_until_nothing_is_mapped();
    return HOLDS(cudaGetLastError() == 0);
}

// It ends with the memory mapped.
bool child_that_leaves_it_mapped(const Meeting &meeting)
{
    SharedPool shared;
    void *context = nullptr;
    Mapped memory;
    REQUIRE(driver_has_context(&context) && meeting.hear(false, &shared));
    const std::string path =
        "/proc/" + std::to_string(shared.parent) + "/fd/" + std::to_string(shared.file);
    const int file = open(path.c_str(), O_RDONLY);
    REQUIRE(memory.import(file) == 0 && memory.map() && memory.has('p'));
    return HOLDS(meeting.tell(false, 'm'));
}

bool parent_that_goes_on(const Meeting &meeting)
{
    SharedPool shared = {};
    void *context = nullptr;
    Mapped memory;
    char mapped;
    shared.parent = getpid();
    REQUIRE(driver_has_context(&context) && memory.create(1) && memory.map() && memory.fill('p'));
    REQUIRE(memory.export_it(&shared.file) == 0 && meeting.tell(true, shared));
    REQUIRE(meeting.hear(true, &mapped));
    while (stub_remote()->stats().reservations > 1) // until what it has left was given back
        usleep(1000);
    return HOLDS(memory.has('p') && memory.unmap() && memory.release());
}

} // namespace

bool processes_and_mapped()
{
    return both(child_of_mapped, parent_of_mapped) &&
           both(child_that_leaves_it_mapped, parent_that_goes_on);
}

namespace
{

struct Theirs {
    void *memory, *stream, *event, *graph;
};

// It gives its memory back twice, though the other process has been given it meanwhile, and names
// other things of that process, as a program with a stale pointer does.
bool child_with_stale_pointers(const Meeting &meeting)
{
    Theirs theirs;
    char go;
    std::vector<char> bytes(shared_bytes, 's');
    REQUIRE(meeting.hear(false, &go) && cudaGetLastError() == 0);
    char *own = device_memory(shared_bytes), *stale = device_memory(shared_bytes);
    REQUIRE(own && stale && cudaFree(stale) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(meeting.tell(false, stale) && meeting.hear(false, &theirs) && theirs.memory == stale);
    REQUIRE(fails(cudaFree(stale), 1));
    REQUIRE(fails(run("cudaFreeAsync", theirs.memory, static_cast<void *>(nullptr)), 1));
    REQUIRE(cudaMemcpy(stale, bytes.data(), shared_bytes, H2D) == 1);
    REQUIRE(cudaMemcpy(bytes.data(), stale + 1, 9, D2H) == 1);
    REQUIRE(cudaMemcpy(own, stale, shared_bytes, D2D) == 1);
    REQUIRE(cudaMemset(stale, 's', shared_bytes) == 1);
    cudaGetLastError();
    REQUIRE(fails(cudaStreamSynchronize(theirs.stream), 400));
    REQUIRE(fails(cudaEventQuery(theirs.event), 400));
    REQUIRE(run("cudaEventDestroy", theirs.event) == 400);
    REQUIRE(run("cudaStreamDestroy", theirs.stream) != 0);
    REQUIRE(run("cudaGraphDestroy", theirs.graph) != 0);
    cudaGetLastError();
    REQUIRE(cudaMemset(own, 's', shared_bytes) == 0 && cudaFree(own) == 0);
    return HOLDS(meeting.tell(false, 'd'));
}

bool parent_beside_that(const Meeting &meeting)
{
    Theirs mine = {};
    void *stale = nullptr, *exec = nullptr;
    char go;
    const std::vector<char> bytes(shared_bytes, 'b');
    REQUIRE(cudaGetLastError() == 0 && meeting.tell(true, 'g') && meeting.hear(true, &stale));
    mine.memory = device_memory(shared_bytes);
    REQUIRE(mine.memory && mine.memory == stale);
    REQUIRE(cudaMemcpy(mine.memory, bytes.data(), shared_bytes, H2D) == 0);
    REQUIRE(cudaStreamCreateWithFlags(&mine.stream, 1) == 0 && cudaEventCreate(&mine.event) == 0);
    REQUIRE(run("cudaGraphCreate", &mine.graph, 0u) == 0);
    REQUIRE(meeting.tell(true, mine) && meeting.hear(true, &go));
    REQUIRE(device_has(static_cast<char *>(mine.memory), bytes.data(), shared_bytes));
    REQUIRE(cudaEventRecord(mine.event, mine.stream) == 0 &&
            cudaStreamSynchronize(mine.stream) == 0);
    REQUIRE(run("cudaGraphInstantiate", &exec, mine.graph, 0ull) == 0);
    REQUIRE(run("cudaGraphExecDestroy", exec) == 0 && run("cudaGraphDestroy", mine.graph) == 0);
    REQUIRE(run("cudaEventDestroy", mine.event) == 0);
    return HOLDS(run("cudaStreamDestroy", mine.stream) == 0 && cudaFree(mine.memory) == 0);
}

} // namespace

bool processes_apart()
{
    return both(child_with_stale_pointers, parent_beside_that);
}
