// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/doubles/gvirtus/cudart_internal.h"
#include "tests/doubles/gvirtus/front_end.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unistd.h>
#include <utility>

extern "C" void stub_log_begin(); // log4cplus.cpp
extern "C" void stub_log();

namespace
{

void (*at_end)();

// Runs once, as the destructor of the library or of an object in it.
void end_once()
{
    if (at_end)
        std::exchange(at_end, nullptr)();
}

// dlopen(3) of a library whose destructors have run initialises it again: GVirtuS's front end would
// connect, and hang.
[[gnu::constructor]] void begin()
{
    static bool begun;
    if (begun) {
        std::fputs("libcudart was begun once more\n", stderr);
        std::_Exit(1);
    }
    begun = true;
    stub_log_begin();
    if (std::atexit(end_once))
        std::abort();
}

[[gnu::destructor]] void end()
{
    end_once();
}

std::atomic<std::uint64_t> copies, hosts, selections, calls;
std::atomic<unsigned> connecting, connecting_most;

struct Connection {
    std::shared_ptr<Communicator> over;
    std::unique_ptr<Remote> remote;
};

// As in GVirtuS: by the thread's id, made by the first call, and never destroyed.
std::map<pid_t, Connection> *front_ends;

// GVirtuS sets up its log for each connection; in a child that is forked meanwhile this lock stays
// locked. The plugin is loaded without the lock, since a library's constructor that connects may
// hold the loader's lock.
std::mutex log_lock;

Connection connected(Create create)
{
    const char *port = std::getenv("STUB_PORT");
    Connection made;
    try {
        made.over = make_communicator(create, "tcp/ip", "oldtcp", "127.0.0.1",
                                      static_cast<std::uint16_t>(std::atoi(port)));
        made.over->Connect();
    } catch (const std::string &why) {
        std::fprintf(stderr, "%s\n", why.c_str());
        std::exit(EXIT_FAILURE);
    }
    made.remote = std::make_unique<Remote>(made.over.get());
    return made;
}

Remote *connection()
{
    pid_t thread = gettid();
    {
        std::lock_guard<std::mutex> lock(gFrontendMutex);
        if (!front_ends)
            front_ends = new std::map<pid_t, Connection>;
        auto found = front_ends->find(thread);
        if (found != front_ends->end())
            return found->second.remote.get();
    }
    const unsigned now = ++connecting;
    for (unsigned most = connecting_most;
         most < now && !connecting_most.compare_exchange_weak(most, now);)
        ;
    Connection made;
    const Create create = load_plugin(std::getenv("STUB_PLUGIN"));
    {
        std::lock_guard<std::mutex> lock(log_lock);
        made = connected(create);
    }
    connecting--;
    std::lock_guard<std::mutex> lock(gFrontendMutex);
    return (*front_ends)[thread] = std::move(made), (*front_ends)[thread].remote.get();
}

// Addresses that were ever returned as device memory. By these GVirtuS decides what
// cudaMemcpyDefault means.
std::mutex device_pointers_lock;
std::set<const void *> *device_pointers;

bool is_device(const void *pointer)
{
    std::lock_guard<std::mutex> lock(device_pointers_lock);
    return device_pointers && device_pointers->count(pointer);
}

int kind_of(const void *to, const void *from, int kind)
{
    if (kind != 4)
        return kind;
    return is_device(to) ? (is_device(from) ? D2D : H2D) : (is_device(from) ? D2H : 0);
}

// Without a plugin, as with a communicator of GVirtuS's own: "device memory" of this process.
bool stock()
{
    return !std::getenv("STUB_PLUGIN");
}

} // namespace

Remote *mine()
{
    static gvirtus::frontend::Frontend front_end;
    stub_log(); // as GVirtuS does in each call
    calls++;
    Remote *remote = connection();
    front_end.Prepare();
    return remote;
}

// The n bytes of the last reply from `at` on. If it is shorter, GVirtuS throws a string as well.
static const char *out_at(std::size_t at, std::size_t n)
{
    const std::vector<char> &out = mine()->out;
    if (out.size() < at || out.size() - at < n)
        throw std::string("the reply is too short");
    return out.data() + at;
}

EXPORTED int cudaMalloc(void **device, std::size_t n)
{
    std::uint64_t address = stock() ? number(std::malloc(n)) : mine()->malloc(n);
    *device = reinterpret_cast<void *>(address);
    std::lock_guard<std::mutex> lock(device_pointers_lock);
    if (!device_pointers)
        device_pointers = new std::set<const void *>;
    device_pointers->insert(*device);
    return address ? 0 : 2;
}

EXPORTED int cudaMallocPitch(void **device, std::size_t *pitch, std::size_t width,
                             std::size_t height)
{
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(device, *pitch * height);
}

EXPORTED int cudaFree(void *device)
{
    if (stock())
        return std::free(device), 0;
    return mine()->free(number(device));
}

EXPORTED int cudaMemcpy(void *to, const void *from, std::size_t n, int kind)
{
    copies++;
    kind = kind_of(to, from, kind);
    if (stock() || !kind) // as G5
        return std::memmove(to, from, n), stock() ? 0 : mine()->exit_code;
    if (kind == H2D)
        return mine()->to_device(number(to), from, n);
    if (kind == D2H)
        return mine()->from_device(to, number(from), n);
    if (kind != D2D) // likewise
        return mine()->exit_code;
    return mine()->on_device(number(to), number(from), n);
}

EXPORTED int cudaMemcpyAsync(void *to, const void *from, std::size_t n, int kind, void *stream)
{
    copies++;
    if (stock())
        return std::memmove(to, from, n), 0;
    if (kind == H2D)
        return mine()->to_device_async(number(to), from, n, number(stream));
    if (kind == D2H)
        return mine()->from_device_async(to, number(from), n, number(stream));
    if (kind != D2D) { // copied on the host at once, without waiting for work at the back end
        Body body;
        mine()->call("cudaMemcpyAsync", body.host("", 1).host("", 1).i32(kind).u64(number(stream)));
        return std::memmove(to, from, n), 0;
    }
    return mine()->on_device_async(number(to), number(from), n, number(stream));
}

EXPORTED int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                 std::size_t n, void *stream)
{
    Body body;
    body.u64(number(to)).i32(to_device).u64(number(from)).i32(from_device);
    return mine()->call("cudaMemcpyPeerAsync", body.u64(n).u64(number(stream)));
}

// Also reads and overwrites host memory between the rows, and behind the last one.
EXPORTED int cudaMemcpy2D(void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch,
                          std::size_t width, std::size_t height, int kind)
{
    copies++;
    kind = kind_of(to, from, kind);
    if (!kind && to_pitch == from_pitch) // as G5
        return std::memcpy(to, from, to_pitch * height), 0;
    for (std::size_t i = 0; i < height && (stock() || !kind); i++)
        std::memcpy(static_cast<char *>(to) + i * to_pitch,
                    static_cast<const char *>(from) + i * from_pitch, width);
    if (stock() || !kind)
        return 0;
    Body body;
    if (kind == D2H)
        body.host("", 1).u64(number(from));
    else if (kind == H2D)
        body.u64(number(to)).host(from, from_pitch * height);
    else
        body.u64(number(to)).u64(number(from));
    body.u64(to_pitch).u64(from_pitch).u64(width).u64(height).i32(kind);
    int rc = mine()->call("cudaMemcpy2D", body);
    if (kind == D2H && !rc)
        std::memmove(to, out_at(8, to_pitch * height), to_pitch * height);
    return rc;
}

// Writes to these addresses without a check.
extern "C" EXPORTED int cudaMemGetInfo(std::size_t *left, std::size_t *all)
{
    *left = 1u << 20;
    *all = 2u << 20;
    return 0;
}

extern "C" EXPORTED int cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return 0;
}

EXPORTED int cudaMemcpy2DAsync(void *, std::size_t, const void *, std::size_t, std::size_t,
                               std::size_t, int, void *)
{
    copies++;
    return 999; // in no generation
}

EXPORTED int cudaGetSymbolAddress(void **address, const void *symbol)
{
    char text[24];
    Body body;
    std::snprintf(text, sizeof(text), "%p", symbol);
    int rc = mine()->call("cudaGetSymbolAddress", body.string(text));
    if (!rc)
        std::memcpy(address, out_at(8, sizeof(*address)), sizeof(*address));
    return rc;
}

// Copies to a variable from the host only.
EXPORTED int cudaMemcpyToSymbol(const void *symbol, const void *from, std::size_t n,
                                std::size_t offset, int)
{
    copies++;
    return mine()->to_symbol(number(symbol), from, n, offset);
}

EXPORTED int cudaStreamCreate(void **stream)
{
    std::uint64_t made = mine()->stream_create();
    *stream = reinterpret_cast<void *>(made);
    return made ? 0 : 1;
}

EXPORTED int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    std::uint64_t made = mine()->stream_create(flags);
    *stream = reinterpret_cast<void *>(made);
    return made ? 0 : 1;
}

EXPORTED int cudaStreamDestroy(void *stream)
{
    return mine()->call("cudaStreamDestroy", Body().u64(number(stream)));
}

EXPORTED int cudaStreamBeginCapture(void *stream, int mode)
{
    return mine()->call("cudaStreamBeginCapture", Body().u64(number(stream)).i32(mode));
}

EXPORTED int cudaStreamEndCapture(void *stream, void **graph)
{
    int rc = mine()->call("cudaStreamEndCapture", Body().u64(number(stream)).u64(8).u64(0));
    if (!rc)
        std::memcpy(graph, out_at(0, sizeof(*graph)), sizeof(*graph));
    return rc;
}

EXPORTED int cudaGraphLaunch(void *exec, void *stream)
{
    return mine()->call("cudaGraphLaunch", Body().u64(number(exec)).u64(number(stream)));
}

EXPORTED int cudaStreamSynchronize(void *stream)
{
    return mine()->stream_synchronize(number(stream));
}

EXPORTED int cudaStreamQuery(void *stream)
{
    return mine()->stream_query(number(stream));
}

static int event_create(const char *name, const Body &body, void **event)
{
    int rc = mine()->call(name, body);
    if (!rc)
        std::memcpy(event, out_at(8, sizeof(*event)), sizeof(*event));
    return rc;
}

EXPORTED int cudaEventCreate(void **event)
{
    return event_create("cudaEventCreate", Body(), event);
}

EXPORTED int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    Body body;
    body.put(flags);
    return event_create("cudaEventCreateWithFlags", body, event);
}

EXPORTED int cudaEventDestroy(void *event)
{
    return mine()->call("cudaEventDestroy", Body().u64(number(event)));
}

EXPORTED int cudaEventRecord(void *event, void *stream)
{
    return mine()->call("cudaEventRecord", Body().u64(number(event)).u64(number(stream)));
}

EXPORTED int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    Body body;
    body.u64(number(stream)).u64(number(event)).put(flags);
    return mine()->call("cudaStreamWaitEvent", body);
}

EXPORTED int cudaEventQuery(void *event)
{
    return mine()->call("cudaEventQuery", Body().u64(number(event)));
}

EXPORTED int cudaMemset(void *to, int value, std::size_t n)
{
    return mine()->call("cudaMemset", Body().u64(number(to)).i32(value).u64(n));
}

EXPORTED int cudaMemsetAsync(void *to, int value, std::size_t n, void *)
{
    return cudaMemset(to, value, n); // as G5
}

EXPORTED int cudaEventSynchronize(void *event)
{
    return mine()->call("cudaEventSynchronize", Body().u64(number(event)));
}

EXPORTED int cudaGetLastError()
{
    return stock() ? 0 : mine()->call("cudaGetLastError", Body());
}

EXPORTED int cudaPeekAtLastError()
{
    return stock() ? 0 : mine()->call("cudaPeekAtLastError", Body());
}

EXPORTED int cudaDeviceSynchronize()
{
    return stock() ? 0 : mine()->device_synchronize();
}

EXPORTED int cudaDeviceReset()
{
    return mine()->reset();
}

EXPORTED int cudaGetDevice(int *device)
{
    *device = 0;
    if (stock())
        return 0;
    const int rc = mine()->call("cudaGetDevice", Body());
    if (!rc)
        std::memcpy(device, out_at(0, sizeof(*device)), sizeof(*device));
    return rc;
}

static int answer(int rc, int *number)
{
    if (!rc)
        std::memcpy(number, out_at(8, sizeof(*number)), sizeof(*number));
    return rc;
}

EXPORTED int cudaGetDeviceCount(int *count)
{
    return answer(mine()->call("cudaGetDeviceCount", Body()), count);
}

EXPORTED int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    Body body;
    body.host(value, sizeof(*value)).i32(attribute).i32(device);
    return answer(mine()->call("cudaDeviceGetAttribute", body), value);
}

// CUDA 12's cudaDeviceProp, in which nothing is known.
extern "C" EXPORTED int cudaGetDeviceProperties_v2(void *properties, int)
{
    std::memset(properties, 1, 1032);
    return 0;
}

EXPORTED int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    Body body;
    body.host(can, sizeof(*can)).i32(device).i32(peer);
    return answer(mine()->call("cudaDeviceCanAccessPeer", body), can);
}

EXPORTED int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    Body body;
    return mine()->call("cudaDeviceEnablePeerAccess", body.i32(peer).put(flags));
}

EXPORTED int cudaDeviceDisablePeerAccess(int peer)
{
    return mine()->call("cudaDeviceDisablePeerAccess", Body().i32(peer));
}

EXPORTED int cudaSetDevice(int device)
{
    selections++;
    return stock() ? 0 : mine()->set_device(device);
}

EXPORTED int cudaMallocHost(void **address, std::size_t n)
{
    hosts++;
    *address = std::malloc(n);
    return *address ? 0 : 2;
}

EXPORTED int cudaHostAlloc(void **address, std::size_t n, unsigned)
{
    return cudaMallocHost(address, n);
}

EXPORTED int cudaFreeHost(void *address)
{
    hosts++;
    std::free(address);
    return 0;
}

EXPORTED void stub_same_number(pid_t ended)
{
    std::lock_guard<std::mutex> lock(gFrontendMutex);
    (*front_ends)[gettid()] = std::move((*front_ends)[ended]);
}

EXPORTED std::uint64_t stub_hosts()
{
    return hosts;
}

EXPORTED std::uint64_t stub_selections()
{
    return selections;
}

EXPORTED void stub_at_end(void (*function)())
{
    at_end = function;
}

// As at the back end: its plugin has chosen this mode.
static thread_local int capture_mode = 1;
static thread_local unsigned capture_modes_set;

EXPORTED int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    capture_modes_set++;
    if (*mode < 0 || *mode > 2)
        return 1;
    mine()->call("cudaThreadExchangeStreamCaptureMode", Body().i32(*mode));
    std::swap(*mode, capture_mode);
    return 0;
}

EXPORTED int stub_capture_mode()
{
    return capture_mode;
}

EXPORTED unsigned stub_capture_modes_set()
{
    return capture_modes_set;
}

EXPORTED void stub_close()
{
    std::lock_guard<std::mutex> lock(gFrontendMutex);
    front_ends->erase(gettid());
}

EXPORTED void stub_disconnect()
{
    std::lock_guard<std::mutex> lock(gFrontendMutex);
    const auto found = front_ends->find(gettid());
    if (found != front_ends->end())
        found->second.over->Close();
}

EXPORTED std::uint64_t stub_copies()
{
    return copies;
}

EXPORTED unsigned stub_connecting_most()
{
    return connecting_most;
}

EXPORTED std::uint64_t stub_calls()
{
    return calls;
}

EXPORTED Remote *stub_remote()
{
    return connection();
}
