// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Copies from GVirtuS's frames to device memory and back: a back-end process with the plugin and a
// double of libcuda, and front ends that send it what GVirtuS's front end does.
//
//   test_gpu PLUGIN.so PROVIDER [HOST]
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <unistd.h>

namespace
{

// `timed`: replies carry seconds, as from G2 on.
struct CudaBackEnd : BackEnd {
    explicit CudaBackEnd(const std::string &more = "", bool timed = true)
        : BackEnd(more, [timed](auto listening) { cuda_back_end_child(listening, timed); })
    {
    }
};

struct Gpu {
    CudaBackEnd back;
    std::shared_ptr<Communicator> over;
    Remote remote;

    explicit Gpu(const std::string &more = "", bool timed = true)
        : back(more, timed), over(connected(back.port)), remote(over.get(), timed)
    {
    }
};

bool device_has(Remote *remote, std::uint64_t device, const std::vector<char> &bytes)
{
    std::vector<char> got(bytes.size(), 'x');
    REQUIRE(remote->peek(device, got.data(), got.size()));
    REQUIRE(got == bytes);
    return true;
}

// Whether no copy of ours has read or written host memory that is not pinned.
bool clean(Remote *remote, std::uint64_t handled)
{
    REQUIRE(remote->handled() == handled);
    REQUIRE(remote->stats().unpinned_async == 0);
    return true;
}

bool round_trip(Remote *remote, std::uint64_t device, std::size_t n, unsigned seed)
{
    auto sent = random_bytes(n, seed), got = random_bytes(n, seed + 1);
    REQUIRE(remote->to_device(device, sent.data(), n) == 0);
    REQUIRE(remote->out.empty());
    REQUIRE(device_has(remote, device, sent));
    REQUIRE(remote->from_device(got.data(), device, n) == 0);
    REQUIRE(got == sent);
    return true;
}

/* ------------------------------------------------------------------------ tests */

const std::size_t sizes[] = {1,      4,      100,     4096,    4097,    16384,   16385,
                             65507,  65536,  100001,  131072,  262145,  524259,  524288,
                             524289, 786432, 1048576, 1048577, 4194304, 17000003};
constexpr std::size_t device_size = 20u << 20;
unsigned programs = 1000;
bool on_double; // not on a real driver, which such tests could harm

bool all_sizes(const std::string &more, bool timed, bool ours)
{
    Gpu gpu(more, timed);
    Remote &remote = gpu.remote;
    std::uint64_t device = remote.malloc(device_size);
    REQUIRE(device);
    std::uint64_t copies = 0;
    for (std::size_t n : sizes) {
        REQUIRE(round_trip(&remote, device + n % 977, n, static_cast<unsigned>(copies)));
        copies += 2;
    }
    REQUIRE(remote.seconds >= 0 && remote.seconds < 600);
    REQUIRE(clean(&remote, ours ? 0 : copies));
    return true;
}

bool streams_and_device()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t a = remote.malloc(device_size), b = remote.malloc(device_size);
    std::uint64_t stream = remote.stream_create();
    REQUIRE(a && b && stream);
    remote.slow(2000);
    unsigned seed = 1;
    for (std::uint64_t on : {stream, std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}}) {
        for (std::size_t n : {std::size_t{100}, std::size_t{70000}, std::size_t{3000001}}) {
            auto sent = random_bytes(n, seed++), got = random_bytes(n, seed);
            REQUIRE(remote.to_device_async(a, sent.data(), n, on) == 0);
            // A copy within the device waits for nothing, and the stream keeps the order.
            REQUIRE(remote.on_device_async(b, a, n, on) == 0);
            REQUIRE(remote.from_device_async(got.data(), b, n, on) == 0);
            REQUIRE(got == sent);
            sent = random_bytes(n, seed++);
            REQUIRE(remote.to_device(b, sent.data(), n) == 0);
            REQUIRE(remote.on_device(a, b, n) == 0);
            REQUIRE(remote.from_device(got.data(), a, n) == 0);
            REQUIRE(got == sent);
        }
    }
    REQUIRE(clean(&remote, 0));
    return true;
}

bool rows_of(Remote *remote, std::uint64_t a, std::uint64_t b, std::size_t width,
             std::size_t host_pitch, std::size_t device_pitch, std::size_t height)
{
    auto host_rows = random_bytes(host_pitch * height, 5);
    auto before = random_bytes(device_pitch * height, 6), expected = before;
    REQUIRE(remote->to_device(a, before.data(), before.size()) == 0);
    REQUIRE(remote->to_device(b, before.data(), before.size()) == 0);
    Body to;
    to.u64(a).host(host_rows.data(), host_rows.size());
    to.u64(device_pitch).u64(host_pitch).u64(width).u64(height).i32(H2D);
    REQUIRE(remote->call("cudaMemcpy2D", to) == 0);
    for (std::size_t i = 0; i < height; i++)
        std::memcpy(&expected[i * device_pitch], &host_rows[i * host_pitch], width);
    REQUIRE(device_has(remote, a, expected));

    Body on;
    on.u64(b).u64(a).u64(device_pitch).u64(device_pitch).u64(width).u64(height).i32(D2D);
    REQUIRE(remote->call("cudaMemcpy2D", on) == 0);
    Body from;
    from.host("", 1).u64(b);
    from.u64(host_pitch).u64(device_pitch).u64(width).u64(height).i32(D2H);
    REQUIRE(remote->call("cudaMemcpy2D", from) == 0);
    std::vector<char> reply = remote->out;
    REQUIRE(device_has(remote, b, expected));
    REQUIRE(reply.size() == 8 + host_pitch * height);
    for (std::size_t i = 0; i < height; i++) {
        const char *row = reply.data() + 8 + i * host_pitch;
        REQUIRE(!std::memcmp(row, &host_rows[i * host_pitch], width));
        for (std::size_t gap = width; gap < host_pitch; gap++)
            REQUIRE(row[gap] == 0); // no other client's bytes
    }
    return true;
}

bool rows()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t a = remote.malloc(device_size), b = remote.malloc(device_size);
    REQUIRE(rows_of(&remote, a, b, 3, 4, 8, 5));
    REQUIRE(rows_of(&remote, a, b, 1000, 1111, 2048, 60));
    REQUIRE(rows_of(&remote, a, b, 1000, 1111, 2048, 6000));
    REQUIRE(rows_of(&remote, a, b, 4096, 4096, 4096, 2000));
    REQUIRE(clean(&remote, 0));
    return true;
}

// A request that is not exactly a copy arrives at the handler byte for byte, whatever its length.
bool passes_through()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t device = remote.malloc(device_size), handled = 0;
    for (std::size_t n : {std::size_t{64}, std::size_t{30000}, std::size_t{3000000}}) {
        auto sent = random_bytes(n, 7);
        std::vector<char> got(n);
        // Fewer bytes counted than sent: GVirtuS copies as many as are counted.
        Body fewer;
        fewer.u64(device).host(sent.data(), n).u64(n - 1).i32(H2D);
        REQUIRE(remote.call("cudaMemcpy", fewer) == 0);
        REQUIRE(remote.handled() == ++handled);
        REQUIRE(device_has(&remote, device, {sent.begin(), sent.end() - 1}));
        // One more: CUDA gets no address, and refuses it.
        Body more;
        more.u64(device).host(sent.data(), n).u64(n + 1).i32(H2D);
        REQUIRE(remote.call("cudaMemcpy", more) == 1);
        REQUIRE(remote.handled() == ++handled);
        // A kind of copy for which G5's handler has no answer: within the device, of NULL.
        REQUIRE(remote.call("cudaMemcpy", Body().u64(device).host(sent.data(), n).u64(n).i32(4)) !=
                0);
        REQUIRE(remote.handled() == ++handled);
        // Addresses that are no memory, and too little memory.
        if (on_double) {
            REQUIRE(remote.to_device(4096, sent.data(), n) == 1);
            REQUIRE(remote.to_device(device + device_size - n + 1, sent.data(), n) == 1);
            REQUIRE(remote.from_device(got.data(), device + device_size - n + 1, n) == 1);
            REQUIRE(remote.handled() == (handled += 3));
        }
        // A symbol that nobody has registered.
        REQUIRE(remote.to_symbol(0x5000, sent.data(), n, 0) == 13);
        REQUIRE(remote.handled() == ++handled);
        // And the stream goes on.
        REQUIRE(round_trip(&remote, device, n, 8));
    }
    REQUIRE(clean(&remote, handled));
    return true;
}

// The handler has seen this body.
bool saw_symbol(Remote *remote, const Body &body)
{
    REQUIRE(remote->call("cudaTestSymbolBody", Body()) == 0);
    REQUIRE(remote->out.size() == 8 + body.bytes.size());
    REQUIRE(!std::memcmp(remote->out.data() + 8, body.bytes.data(), body.bytes.size()));
    return true;
}

bool symbols()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t variable = 0x55aa00004010, other = 0x55aa00009000, moved = 0x55aa0000a000;
    std::uint64_t device = remote.malloc(device_size), handled = 0;
    if (!remote.register_var(variable, device + 512, device_size - 1024))
        return true; // nothing stands for CUDA's runtime here
    for (std::size_t n : {std::size_t{1}, std::size_t{64}, std::size_t{16385}, std::size_t{100000},
                          std::size_t{7000001}}) {
        remote.get_last_error();
        auto sent = random_bytes(n, 3), before = random_bytes(n + 3, 4), expected = before;
        REQUIRE(remote.to_device(device + 512, before.data(), before.size()) == 0);
        REQUIRE(remote.to_symbol(variable, sent.data(), n, 3) == 0);
        std::memcpy(&expected[3], sent.data(), n);
        REQUIRE(device_has(&remote, device + 512, expected));
        REQUIRE(clean(&remote, handled));
        // Beyond the end of the variable, which the runtime has to refuse; a variable that does not
        // exist; and copies that GVirtuS does not make from the host: the handler gets these byte
        // for byte.
        for (std::size_t offset : {device_size - 1024 - n + 1, std::size_t{0}}) {
            Body body;
            body.string(offset ? "0x55aa00004010" : "0x55aa00009000").string("");
            body.host(sent.data(), n).u64(n).u64(offset).i32(H2D);
            REQUIRE(remote.call("cudaMemcpyToSymbol", body) == (offset ? 0 : 13));
            REQUIRE(saw_symbol(&remote, body));
            REQUIRE(remote.handled() == ++handled);
        }
        Body odd;
        odd.string("0x55aa00004010").string("a value of its own, long enough");
        odd.host(sent.data(), n).u64(n).u64(0).i32(D2D);
        REQUIRE(remote.call("cudaMemcpyToSymbol", odd) == 21);
        REQUIRE(saw_symbol(&remote, odd));
        REQUIRE(remote.handled() == ++handled);
    }
    // Host memory is no symbol's, whatever the runtime says.
    remote.get_last_error();
    REQUIRE(remote.register_var(other, 4096, 4096));
    REQUIRE(remote.to_symbol(other, "x", 1, 0) == 1);
    REQUIRE(remote.handled() == ++handled);
    // A variable that is registered elsewhere is looked up in vain: this is no error of the client,
    // and does not replace one.
    REQUIRE(remote.register_var(moved, device + 512, 4096, moved + 64));
    for (int before : {0, 2}) {
        remote.fail(before);
        REQUIRE(remote.to_symbol(moved, "xy", 2, 1) == 0);
        REQUIRE(remote.handled() == ++handled);
        REQUIRE(remote.get_last_error() == before);
        REQUIRE(device_has(&remote, device + 513, {'x', 'y'}));
    }
    return true;
}

bool errors()
{
    for (std::size_t n : {std::size_t{64}, std::size_t{100000}, std::size_t{6000000}}) {
        Gpu gpu;
        Remote &remote = gpu.remote;
        std::uint64_t device = remote.malloc(device_size);
        // The driver refuses a copy of ours: the handler copies, and nothing has failed.
        for (const char *function : {"cuMemcpyHtoDAsync", "cuMemcpyHtoD", "cuMemcpyDtoHAsync",
                                     "cuEventRecord", "cuMemHostGetFlags"}) {
            remote.inject(function, 1, 2, false);
            REQUIRE(round_trip(&remote, device, n, 9));
            remote.inject(function, 0, 0, false);
        }
        // Something earlier in the stream was illegal: the error stays.
        std::uint64_t handled = remote.handled();
        auto bytes = random_bytes(n, 1);
        remote.inject(n > 16384 ? "dma" : "cuMemcpyHtoD", n > 100000 ? 3 : 1, 700, true);
        REQUIRE(remote.to_device(device, bytes.data(), n) == 700);
        REQUIRE(remote.from_device(bytes.data(), device, n) == 700);
        REQUIRE(clean(&remote, handled + 2));
    }
    return true;
}

bool devices_and_reset()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    auto bytes = random_bytes(1000000, 3);
    // Before any call made a context, and before any reply, the handler copies.
    REQUIRE(remote.to_device(4096, bytes.data(), 4) == 1);
    REQUIRE(remote.handled() == 1);
    std::uint64_t zero = remote.malloc(device_size);
    REQUIRE(round_trip(&remote, zero, 1000000, 1));
    REQUIRE(remote.handled() == 1);
    REQUIRE(remote.set_device(1) == 0);
    std::uint64_t one = remote.malloc(device_size);
    REQUIRE(round_trip(&remote, one, 1000000, 2));
    REQUIRE(remote.handled() == 1);
    // Between devices; then memory of another device than the current one.
    REQUIRE(remote.on_device(zero, one, 1000000) == 0);
    REQUIRE(remote.handled() == 1);
    REQUIRE(remote.from_device(bytes.data(), zero, 1000000) == 0);
    REQUIRE(remote.handled() == 2);
    REQUIRE(bytes == random_bytes(1000000, 2));
    // A device that does not exist: the runtime keeps the one it has.
    REQUIRE(remote.set_device(7) == 101);
    REQUIRE(round_trip(&remote, one, 1000, 4));
    REQUIRE(remote.handled() == 2);
    REQUIRE(remote.set_device(0) == 0);
    REQUIRE(remote.reset() == 0);
    zero = remote.malloc(device_size);
    REQUIRE(round_trip(&remote, zero, 1000000, 5));
    REQUIRE(clean(&remote, 2));
    return true;
}

// More connections than chunks: GVirtuS makes copies that find no chunk.
bool many_clients()
{
    CudaBackEnd back("rdma.gpu_memory : 2M\n");
    std::vector<pid_t> clients;
    // An emulated fabric with two processors loses packets of more connections.
    unsigned count = provider == "verbs" ? 2 : 6;
    for (unsigned i = 0; i < count; i++)
        clients.push_back(spawn([&, i]() -> int {
            auto over = connected(back.port);
            Remote remote(over.get());
            std::uint64_t device = remote.malloc(device_size);
            for (unsigned round = 0; round < 5; round++) {
                for (std::size_t n : {std::size_t{40000}, std::size_t{5000000}}) {
                    if (!round_trip(&remote, device, n, 100 * i + round))
                        return 1;
                }
            }
            return 0;
        }));
    bool good = true;
    for (pid_t pid : clients)
        good = result_of(pid) == 0 && good;
    REQUIRE(good && back.alive());
    auto over = connected(back.port);
    Remote remote(over.get());
    REQUIRE(remote.malloc(1));
    REQUIRE(remote.stats().unpinned_async == 0);
    return true;
}

// Front ends die while their bytes are on the way: the chunks come back.
bool killed()
{
    Gpu gpu("rdma.gpu_memory : 2M\n");
    Remote &remote = gpu.remote;
    std::uint64_t device = remote.malloc(device_size);
    remote.slow(500);
    for (unsigned i = 0; i < 12; i++) {
        int ready[2];
        REQUIRE(pipe(ready) == 0);
        pid_t pid = spawn([&]() -> int {
            auto mine = connected(gpu.back.port);
            Remote victim(mine.get());
            std::uint64_t memory = victim.malloc(device_size);
            auto bytes = random_bytes(device_size, i);
            for (unsigned round = 0;; round++) {
                if (write(ready[1], "r", 1) != 1)
                    return 1;
                if (i % 2)
                    victim.to_device(memory, bytes.data(), device_size);
                else
                    victim.from_device(bytes.data(), memory, device_size);
            }
        });
        char c[3];
        for (unsigned n = 0; n < 1 + i / 4; n++)
            REQUIRE(read(ready[0], c, 1) == 1);
        kill(pid, SIGKILL);
        REQUIRE(result_of(pid) == 128 + SIGKILL);
        close(ready[0]);
        close(ready[1]);
    }
    remote.slow(0);
    REQUIRE(gpu.back.alive());
    // Chunks come back when the sessions have noticed the end; from then on nothing is left to
    // GVirtuS.
    std::uint64_t before;
    do {
        before = remote.handled();
        REQUIRE(round_trip(&remote, device, 5000000, 77));
    } while (remote.handled() != before);
    return true;
}

// Numbers that are the same in each run.
struct Dice {
    std::uint32_t state;
    std::size_t below(std::size_t n)
    {
        state = state * 1664525u + 1013904223u;
        return (static_cast<std::size_t>(state >> 8) * 65537u + (state >> 4)) % n;
    }
    // Short ones more often than long ones.
    std::size_t size(std::size_t most) { return 1 + below((most >> below(12)) | 1); }
};

struct Twin { // device memory, and the bytes that it has to have
    std::uint64_t device;
    std::vector<char> bytes;
};

bool random_copy(Remote *remote, Dice *dice, Twin *twins, const std::uint64_t *streams)
{
    Twin &a = twins[dice->below(2)], &b = twins[dice->below(2)];
    std::size_t n = dice->size(a.bytes.size() / 2), most = a.bytes.size() - n + 1;
    std::size_t at = dice->below(most), from = dice->below(most);
    std::uint64_t stream = streams[dice->below(4)];
    bool async = dice->below(2);
    auto memory = random_bytes(n, dice->state);
    if (&a == &b && at < from + n && from < at + n)
        from = at; // parts of one memory must not overlap, unless they are the same
    switch (dice->below(3)) {
    case 0:
        REQUIRE((async ? remote->to_device_async(a.device + at, memory.data(), n, stream)
                       : remote->to_device(a.device + at, memory.data(), n)) == 0);
        std::memcpy(&a.bytes[at], memory.data(), n);
        return true;
    case 1:
        REQUIRE((async ? remote->on_device_async(a.device + at, b.device + from, n, stream)
                       : remote->on_device(a.device + at, b.device + from, n)) == 0);
        std::memmove(&a.bytes[at], &b.bytes[from], n);
        return true;
    default:
        REQUIRE((async ? remote->from_device_async(memory.data(), b.device + from, n, stream)
                       : remote->from_device(memory.data(), b.device + from, n)) == 0);
        REQUIRE(!std::memcmp(&b.bytes[from], memory.data(), n));
        return true;
    }
}

bool random_rows(Remote *remote, Dice *dice, Twin *twins)
{
    Twin &a = twins[dice->below(2)];
    std::size_t width = dice->size(5000), height = dice->size(200);
    std::size_t device_pitch = width + dice->below(300), host_pitch = width + dice->below(300);
    std::size_t at = dice->below(a.bytes.size() - device_pitch * height);
    auto memory = random_bytes(host_pitch * height, dice->state);
    Body body;
    if (dice->below(2)) {
        body.u64(a.device + at).host(memory.data(), memory.size());
        body.u64(device_pitch).u64(host_pitch).u64(width).u64(height).i32(H2D);
        REQUIRE(remote->call("cudaMemcpy2D", body) == 0);
        for (std::size_t i = 0; i < height; i++)
            std::memcpy(&a.bytes[at + i * device_pitch], &memory[i * host_pitch], width);
        return true;
    }
    body.host("", 1).u64(a.device + at);
    body.u64(host_pitch).u64(device_pitch).u64(width).u64(height).i32(D2H);
    REQUIRE(remote->call("cudaMemcpy2D", body) == 0);
    REQUIRE(remote->out.size() == 8 + host_pitch * height);
    for (std::size_t i = 0; i < height; i++)
        REQUIRE(
            !std::memcmp(&a.bytes[at + i * device_pitch], &remote->out[8 + i * host_pitch], width));
    return true;
}

// On the legacy stream and on blocking streams, which CUDA orders with it.
bool random_programs()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Twin twins[2];
    std::uint64_t streams[4] = {0, 1, 0, 0};
    for (Twin &twin : twins) {
        twin.bytes = random_bytes(2500000, 11);
        twin.device = remote.malloc(twin.bytes.size());
        REQUIRE(remote.to_device(twin.device, twin.bytes.data(), twin.bytes.size()) == 0);
    }
    // Two blocking streams have no order between them: one is enough to mix with the legacy one.
    streams[2] = streams[3] = remote.stream_create();
    for (std::uint32_t seed = 0; seed < programs; seed++) {
        Dice dice{seed * 2654435761u};
        remote.slow(seed % 4 ? 0 : 100);
        for (std::size_t steps = dice.size(12); steps; steps--) {
            bool good = dice.below(5) ? random_copy(&remote, &dice, twins, streams)
                                      : random_rows(&remote, &dice, twins);
            if (!good) {
                std::fprintf(stderr, "in program %u\n", seed);
                return false;
            }
        }
    }
    for (Twin &twin : twins)
        REQUIRE(device_has(&remote, twin.device, twin.bytes));
    REQUIRE(clean(&remote, 0));
    return true;
}

bool is_double()
{
    return Gpu().remote.slow(0);
}

// A front end may run on a host without a driver, and a probe could break its context.
bool front_end_stays_away()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::uint64_t device = remote.malloc(device_size);
    REQUIRE(round_trip(&remote, device, 3000000, 1));
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        REQUIRE(line.find("cuda-double") == std::string::npos);
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_gpu PLUGIN.so PROVIDER [HOST]\n");
        return 2;
    }
    scene_open(argv[1], argv[2], argc > 3 ? argv[3] : nullptr);
    if (provider == "verbs" || getenv("IBX_CONTRACT_SMALL")) // with an emulator, or a sanitizer
        programs = 60;
    on_double = is_double();
    check("the front end loads no CUDA", front_end_stays_away);
    check("all sizes, none of them seen by GVirtuS", [] { return all_sizes("", true, true); });
    check("rdma.gpu : off, all seen by it",
          [] { return all_sizes("rdma.gpu : off\n", true, false); });
    check("replies without seconds, as G1's", [] { return all_sizes("", false, true); });
    check("chunks for a part of a copy at a time",
          [] { return all_sizes("rdma.gpu_memory : 1M\n", true, true); });
    check("streams, and copies within the device", streams_and_device);
    check("rows", rows);
    check((std::to_string(programs) + " random programs").c_str(), random_programs);
    check("what is no copy passes through", passes_through);
    check("symbols", symbols);
    if (on_double) {
        check("errors", errors);
        check("devices, and a reset", devices_and_reset);
    }
    check("more clients than chunks", many_clients);
    check("clients killed in the middle", killed);

    return scene_close();
}
