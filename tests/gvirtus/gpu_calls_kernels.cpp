// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Kernels: launches, and which client's they are; kernels that are registered, looked up and
// unregistered at the same time.
#include "tests/gvirtus/gpu_calls_scene.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"

#include <csignal>

namespace
{

Body string(Body body, const char *text)
{
    return body.u64(std::strlen(text) + 1).host(text, std::strlen(text) + 1);
}

// With the name of its module, and nothing else.
Body register_function(Remote &remote, std::uint64_t function, const char *name)
{
    const Body module = string(Body(), "0x4a0128");
    remote.call("cudaRegisterFatBinary", module);
    remote.call("cudaRegisterFunction",
                string(string(Body(module).u64(function), name), name).u64(0).u64(0));
    return module;
}

bool kernels()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(), captured = remote.stream_create(),
                        to = remote.malloc(4096), from = remote.malloc(4096);
    auto bytes = random_bytes(4096, 5);
    std::vector<char> got(4096);
    REQUIRE(remote.to_device(from, bytes.data(), 4096) == 0);
    auto launch = [&](std::uint64_t function, unsigned threads, std::uint64_t n) {
        return gpu.made("cudaLaunchKernel", kernel(function, threads, stream, to, from, n));
    };
    auto there = [&](std::size_t n) {
        return remote.stream_synchronize(stream) == 0 && remote.peek(to, got.data(), n) &&
               !std::memcmp(got.data(), bytes.data(), n);
    };
    auto by_runtime = [&] { // the runtime's launch looks it up as well
        return launch(IBX_DOUBLE_KERNEL, 32, 1000) >= 2 && there(1000);
    };
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 1000) == 1 && there(1000)); // it is looked up
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2000) == 0 && there(2000)); // it is known
    const unsigned long launched = remote.stats().copies_async;
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2000) == 0);
    REQUIRE(remote.stats().copies_async == launched + 1); // once
    // After a registration, by whatever call, it is looked up again.
    for (const char *name :
         {"__cudaRegisterFunction", "cudaRegisterFunction", "cudaUnregisterFatBinary"}) {
        remote.call(name, Body());
        REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2500) == 1);
        REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2500) == 0);
    }
    // What is no kernel goes to GVirtuS, whose handlers here run anything; no error is left.
    REQUIRE(launch(0x8000, 32, 3000) == 2 && there(3000) && remote.get_last_error() == 0);
    // The runtime refuses a launch that fails, and keeps its error.
    const std::uint64_t handled = remote.handled();
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 2000, 4000) == -1 && remote.get_last_error() == 1);
    REQUIRE(remote.handled() == handled);
    REQUIRE(by_runtime());
    remote.call("__cudaRegisterFunction", Body());
    REQUIRE(launch(IBX_DOUBLE_KERNEL, 32, 2500) == 1);
    // While a client captures a stream, the runtime makes the launches of all clients.
    Client other(gpu);
    other.remote.call("cudaStreamBeginCapture", Body().u64(captured).i32(0));
    remote.call("__cudaRegisterFunction", Body());
    REQUIRE(by_runtime());
    // A call that fails ends no capture, and begins none.
    REQUIRE(other.remote.call("cudaStreamEndCapture", Body().u64(0)) == 1);
    REQUIRE(by_runtime());
    REQUIRE(other.remote.call("cudaStreamEndCapture", Body().u64(captured)) == 0);
    REQUIRE(other.remote.call("cudaStreamBeginCapture", Body().u64(0).i32(0)) == 1);
    return HOLDS(!by_runtime());
}

// Programs with kernels at the same addresses: each launches its own, also after all its
// connections have ended, and as a child; a session that may be of the one or the other launches
// none.
bool kernels_of_several_programs()
{
    Gpu gpu;
    const std::uint64_t function = 0x401b30, to = gpu.remote.malloc(4096);
    // A launch like one that has succeeded is answered early: its error comes with the next wait.
    auto launch = [&](Client &client) {
        client.remote.get_last_error();
        client.remote.set_device(0);
        const int rc = client.remote.call("cudaLaunchKernel", kernel(function, 32, 0, to, to, 8));
        return rc ? rc : client.remote.device_synchronize();
    };
    auto begin = [&](Client &client, const char *called) {
        register_function(client.remote, function, called);
        return launch(client) == 0;
    };
    Client own(gpu), unknown(gpu, of_another_program);
    REQUIRE(begin(own, "product") && launch(unknown) == 0);
    REQUIRE(result_of(spawn([&]() -> int {
                {
                    Client first(gpu);
                    REQUIRE(begin(first, "sum"));
                }
                for (unsigned i = 0; i < 10; i++) {
                    Client again(gpu), thread(gpu, of_another_program);
                    REQUIRE(launch(again) == 0 && launch(thread) == 98);
                }
                return result_of(spawn([&]() -> int {
                           Client child(gpu);
                           return launch(child) == 0;
                       })) == 1;
            })) == 1);
    REQUIRE(launch(own) == 0);
    return HOLDS(launch(unknown) == 98);
}

// A process has said that its children will ask for its kernels, and has ended. A child that has
// connected before need not ask.
bool kernels_of_ended_parent()
{
    Gpu gpu;
    const std::uint64_t function = 0x401b30, to = gpu.remote.malloc(4096);
    auto launch = [&](Client &client) {
        client.remote.get_last_error();
        const int rc = client.remote.call("cudaLaunchKernel", kernel(function, 32, 0, to, to, 8));
        return rc ? rc : client.remote.device_synchronize();
    };
    int said[2], go[2];
    char byte;
    REQUIRE(pipe(said) == 0 && pipe(go) == 0);
    REQUIRE(result_of(spawn([&]() -> int {
                Client parent(gpu);
                Body share;
                share.put<std::uint16_t>(IBX_EXT_SHARE_MODULES).u64(0);
                register_function(parent.remote, function, "sum");
                bool good = launch(parent) == 0 && parent.remote.call("ibxRuntime", share) == 0;
                if (!fork()) {
                    // The parent's connection, too, as a daemon.
                    for (int fd = open_fd_from(3); fd >= 0; fd = open_fd_from(fd + 1))
                        if (fd != said[1] && fd != go[0])
                            close(fd);
                    Client child(gpu);
                    good = good && launch(child) == 0 && write(said[1], "c", 1) == 1;
                    good = good && read(go[0], &byte, 1) == 1 && launch(child) == 0;
                    _exit(write(said[1], good ? "g" : "b", 1) != 1);
                }
                _exit(!(read(said[0], &byte, 1) == 1 && byte == 'c'));
            })) == 0);
    for (int i = 0; i < 10; i++) // the end of such a session unloads what is to be unloaded
        Client(gpu).remote.get_last_error();
    REQUIRE(write(go[1], "g", 1) == 1 && read(said[0], &byte, 1) == 1);
    return HOLDS(byte == 'g');
}

// A client with kernels is killed beside endless work of another client: the kernels are not
// unloaded meanwhile, since nobody could register others during that.
bool kernels_beside_endless_work()
{
    Said said;
    Gpu gpu("rdma.resume_seconds : 1\nrdma.log : warn\n");
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(1), to = remote.malloc(4096);
    std::atomic<bool> registered{false};
    remote.hold_stream(stream);
    REQUIRE(remote.call("cudaLaunchKernel",
                        kernel(IBX_DOUBLE_KERNEL, 32, stream, to, to + 2048, 8)) == 0);
    REQUIRE(result_of(spawn([&]() -> int {
                Client client(gpu);
                Body share;
                share.put<std::uint16_t>(IBX_EXT_SHARE_MODULES).u64(0);
                client.remote.get_last_error();
                client.remote.set_device(0);
                client.remote.call("ibxRuntime", share);
                register_function(client.remote, 0x401b30, "sum");
                return raise(SIGKILL);
            })) == 128 + SIGKILL);
    bool told = false;
    for (unsigned left = patience_ms(10000); left && !told; left--) {
        told = said.has("stay loaded while work of process " + std::to_string(getpid()));
        usleep(told ? 0 : 1000);
    }
    Client other(gpu);
    std::thread registers([&] {
        register_function(other.remote, 0x401c40, "other");
        registered = true;
    });
    for (unsigned left = patience_ms(10000); left && !registered; left--)
        usleep(1000);
    const bool good = registered;
    remote.hold_stream(0);
    registers.join();
    return HOLDS(told && good);
}

// Once a client has registered a function, functions that nobody has registered count as none:
// neither GVirtuS nor CUDA gets them.
bool kernels_of_nobody()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t stream = remote.stream_create(), to = remote.malloc(4096),
                        from = remote.malloc(4096), function = 0x401b30;
    auto launch = [&](std::uint64_t kernel_at) {
        return remote.call("cudaLaunchKernel", kernel(kernel_at, 32, stream, to, from, 8));
    };
    REQUIRE(launch(function) == 0);
    const Body module = register_function(remote, function, "sum");
    REQUIRE(launch(function) == 0 && launch(function + 16) == 98);
    for (std::uint64_t one : {function, function + 16}) { // neither do extension requests
        const int code = one == function ? 0 : 98;
        Body parameter, clusters;
        parameter.put<std::uint16_t>(IBX_EXT_PARAMETER).u64(one).u64(1);
        clusters.put<std::uint16_t>(IBX_EXT_CLUSTERS).u64(one);
        clusters.u64(1).u64(1).u64(1).u64(0).u64(0);
        REQUIRE(remote.call("ibxRuntime", parameter) == code);
        REQUIRE(remote.call("ibxRuntime", clusters) == code);
    }
    // Nor do they get made-up events, in attributes of a launch, or of a stream.
    for (const bool made_up : {false, true}) {
        const std::uint64_t event = made_up ? 0x1234 : remote.event_create();
        for (const std::uint32_t attribute : {7u, 12u}) {
            Body clusters, set, value;
            value.put(attribute).u64(event);
            value.bytes.resize(4 + IBX_EXT_ATTRIBUTE);
            clusters.put<std::uint16_t>(IBX_EXT_CLUSTERS).u64(function);
            clusters.u64(1).u64(1).u64(1).u64(0).u64(0);
            set.put<std::uint16_t>(IBX_EXT_STREAM_SET_ATTRIBUTE).u64(stream);
            for (Body *body : {&clusters, &set})
                body->bytes.insert(body->bytes.end(), value.bytes.begin(), value.bytes.end());
            REQUIRE(remote.call("ibxRuntime", clusters) == (made_up ? 400 : 0));
            REQUIRE(remote.call("ibxRuntime", set) == 1);
        }
    }
    // Another process with the same addresses has not registered the function, and unregisters it
    // for nobody.
    REQUIRE(result_of(spawn([&]() -> int {
                Client child(gpu);
                child.remote.call("cudaUnregisterFatBinary", module);
                return 0;
            })) == 0);
    REQUIRE(launch(function) == 0);
    Client other(gpu); // also while somebody captures a stream
    REQUIRE(other.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(0)) == 0);
    const int captured = launch(function + 16);
    REQUIRE(other.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(captured == 98);
    remote.call("cudaUnregisterFatBinary", module);
    REQUIRE(launch(function) == 98);
    return true;
}

// A launch with fewer bytes of arguments than its kernel takes: GVirtuS's handler, which would read
// on behind them, does not get it, and CUDA does not get sizes that a client has made up.
bool launches_with_too_little()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t to = remote.malloc(1 << 16), stream = remote.stream_create();
    const auto body = [&](std::uint64_t size, std::size_t bytes, Body begun) {
        std::vector<char> all(bytes, 'b');
        if (bytes >= 8)
            std::memcpy(all.data(), &to, 8);
        begun.u64(IBX_DOUBLE_WIDE + size).i32(1).i32(1).i32(1).i32(1).i32(1).i32(1).u64(0);
        return begun.u64(stream).host(all.data(), all.size());
    };
    const auto own = [&](std::uint64_t size, std::size_t bytes) {
        return remote.call("ibxRuntime",
                           body(size, bytes, number(IBX_EXT_LAUNCH).put<std::uint16_t>(0)));
    };
    remote.get_last_error();
    for (std::size_t bytes : {0u, 8u, 24u, 4096u}) { // of 20,012
        REQUIRE(remote.call("cudaLaunchKernel", body(20000, bytes, Body())) == 1);
        REQUIRE(remote.get_last_error() == 1);
    }
    // The same if it is longer than what the driver takes in one piece, and beside a capture.
    const std::uint64_t captured = remote.stream_create();
    const auto refused = [&](std::uint64_t size, std::size_t bytes) {
        return remote.call("cudaLaunchKernel", body(size, bytes, Body())) == 1 &&
               remote.get_last_error() == 1; // CUDA's runtime, which no handler here calls
    };
    REQUIRE(refused(20100, 4100));
    REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(captured).i32(0)) == 0);
    REQUIRE(refused(20200, 0) && refused(20300, 24) && refused(20400, 4100));
    REQUIRE(refused(20500, 20512)); // whole, but GVirtuS does not know where arguments are
    REQUIRE(remote.call("cudaStreamEndCapture", Body().u64(captured)) == 0);
    const std::uint64_t handled = remote.handled();
    REQUIRE(remote.call("cudaLaunchKernel", body(5000, 5012, Body())) == 0);
    REQUIRE(remote.handled() == handled);
    REQUIRE(remote.call("cudaLaunchKernel", body(100, 0, Body())) == 1);
    Body none =
        body(100, 112, Body()); // all are there, but the handler takes a length of 0 for NULL
    std::memset(&none.bytes[48], 0, 8);
    REQUIRE(remote.call("cudaLaunchKernel", none) == 1 && remote.get_last_error() == 1);
    REQUIRE(remote.handled() == handled);
    // Some are there. The handler may know another kernel of that name, which has only these.
    REQUIRE(refused(100, 8) && refused(100, 111));
    Body other_length = body(100, 112, Body());
    std::memset(&other_length.bytes[48], 1, 1);
    REQUIRE(remote.call("cudaLaunchKernel", other_length) == 1 && remote.get_last_error() == 1);
    REQUIRE(remote.handled() == handled);
    for (std::size_t bytes : {0u, 24u, 4096u, 4097u, 20008u, 20011u, 32765u, 60000u})
        REQUIRE(own(20000, bytes) == 1);
    REQUIRE(own(20000, 20012) == 0 && own(20000, 32764) == 0 && own(4084, 4096) == 0);
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_LAUNCH).put<std::uint16_t>(0)) == 1);
    for (const std::uint64_t first : {0u, 1u, 3u, 0xffffffffu}) {
        const int left = first < 3 ? static_cast<int>(3 - first) : 0;
        REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_PARAMETERS)
                                              .u64(IBX_DOUBLE_WIDE + 20000)
                                              .i32(static_cast<std::int32_t>(first))) == 0);
        int count = -1;
        REQUIRE(remote.out.size() == 260);
        std::memcpy(&count, remote.out.data(), 4);
        REQUIRE(count == left);
    }
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_PARAMETERS).u64(0x1234).i32(0)) == 98);
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_PARAMETERS).u64(0x1234)) == 1);
    char there[2] = {};
    REQUIRE(remote.call("cudaStreamSynchronize", Body().u64(stream)) == 0);
    return HOLDS(remote.peek(to, there, 2) && there[1] == static_cast<char>('b' + 0x62));
}

// What the driver's compiler says about PTX in memory of the device; it writes its logs behind the
// PTX.
bool compiler_says()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::string ptx = ".version 9.0\nnonsense";
    const auto n = static_cast<std::uint32_t>(ptx.size());
    const std::uint64_t memory = remote.malloc(4096);
    const auto compile = [&](std::uint64_t at, std::uint64_t bytes, std::uint32_t info,
                             std::uint32_t error, char verbose) {
        return remote.call("ibxRuntime", number(IBX_EXT_COMPILE)
                                             .u64(at)
                                             .u64(bytes)
                                             .i32(static_cast<std::int32_t>(info))
                                             .i32(static_cast<std::int32_t>(error))
                                             .put<char>(verbose));
    };
    const auto word = [&](std::size_t i) {
        std::uint32_t value = 0;
        std::memcpy(&value, remote.out.data() + 4 * i, 4);
        return value;
    };
    REQUIRE(memory && remote.to_device(memory, ptx.data(), n) == 0);
    std::vector<char> logs(64, 'x');
    REQUIRE(compile(memory, n, 30, 20, 1) == 0 && remote.out.size() == 16);
    REQUIRE(word(0) == 218 && word(2) == 25 && word(3) == 20); // cut: the room
    REQUIRE(remote.peek(memory + n, logs.data(), 50));
    REQUIRE(!std::strcmp(logs.data(), "ptxas info : 24 registers"));
    REQUIRE(!std::strcmp(logs.data() + 30, "ptxas fatal : the c"));
    REQUIRE(compile(memory, n - 8, 0, 0, 0) == 0 && !word(0) && !word(2) && !word(3));
    // Without linking, nothing is missing; a flag that does not exist.
    const std::string lacks = ".extern .func other;";
    const auto m = static_cast<std::uint32_t>(lacks.size());
    REQUIRE(remote.to_device(memory, lacks.data(), m) == 0);
    REQUIRE(compile(memory, m, 30, 20, 2) == 0 && !word(0));
    REQUIRE(compile(memory, m, 30, 20, 3) == 0 && !word(0) && word(2) == 25);
    REQUIRE(compile(memory, m, 30, 20, 0) == 0 && word(0) == 999);
    REQUIRE(compile(memory, m, 30, 20, 4) == 1);
    // More than is permitted, or than the client owns; no PTX at all; a body that is too short.
    REQUIRE(compile(memory, 0, 30, 20, 0) == 1 && compile(memory, n, 4096 - n, 1, 0) == 1);
    REQUIRE(compile(memory, n, 65537, 0, 0) == 1 && compile(memory, n, 0, 65537, 0) == 1);
    REQUIRE(compile(memory, (8u << 20) + 1, 0, 0, 0) == 1);
    REQUIRE(compile(memory, ~std::uint64_t{0}, 30, 20, 0) == 1);
    REQUIRE(compile(memory + (1u << 30), n, 30, 20, 0) == 1 && compile(0, n, 30, 20, 0) == 1);
    REQUIRE(remote.call("ibxRuntime", number(IBX_EXT_COMPILE).u64(memory).u64(n)) == 1);
    return HOLDS(remote.get_last_error() == 0 && remote.free(memory) == 0);
}

// Images in memory of the device, which the driver's linker makes one of: PTX, and a cubin, which
// is the result in the double.
bool linker_links()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::string ptx = ".extern .func other;", cubin = "\177ELF" + std::string(96, '\0');
    const std::uint64_t n = ptx.size() + 1, room = 4096, memory = remote.malloc(room);
    const auto link = [&](std::uint64_t at, std::uint64_t bytes, std::uint16_t count,
                          std::uint64_t first, std::uint64_t second) {
        Body body = number(IBX_EXT_LINK).u64(at).u64(bytes);
        body.put(count);
        return remote.call("ibxRuntime", body.i32(1).u64(first).i32(0).u64(second));
    };
    const auto said = [&](std::uint64_t *bytes) {
        std::uint32_t value = 0;
        std::memcpy(&value, remote.out.data(), 4);
        std::memcpy(bytes, remote.out.data() + 4, 8);
        return value;
    };
    std::uint64_t made = 0;
    std::vector<char> back(100);
    REQUIRE(memory && remote.to_device(memory, ptx.c_str(), n) == 0);
    REQUIRE(remote.to_device(memory + 32, cubin.data(), 100) == 0);
    REQUIRE(link(memory, room, 2, n, 100) == 0 && remote.out.size() == 12 && !said(&made));
    REQUIRE(made == 100 && remote.peek(memory, back.data(), 100) &&
            std::string(back.data(), 100) == cubin);
    // PTX without a NUL, a cubin with sections beyond its end, and one that is an address.
    const auto refuses = [&](std::size_t at, const std::string &bytes, std::uint64_t first) {
        std::string changed = cubin;
        changed.replace(at, bytes.size(), bytes);
        return remote.to_device(memory, ptx.c_str(), n) == 0 &&
               remote.to_device(memory + 32, changed.data(), 100) == 0 &&
               link(memory, room, 2, first, 100) == 0 && said(&made) == 200 && !made;
    };
    REQUIRE(refuses(0, "\177ELF", n - 1));
    REQUIRE(refuses(42, "\x40", n) && refuses(0, "\xb1\x43\x62\x46", n));
    // No room for the images, or not the client's; none, too many, or too long ones.
    REQUIRE(link(memory, 32 + 100, 2, n, 100) == 1);
    REQUIRE(link(memory + (1u << 30), room, 2, n, 100) == 1 && link(0, room, 2, n, 100) == 1);
    REQUIRE(link(memory, room, 0, n, 100) == 1 && link(memory, room, 65, n, 100) == 1);
    REQUIRE(link(memory, room, 2, 0, 100) == 1 && link(memory, room, 1, n, 100) == 1);
    REQUIRE(link(memory, room, 2, ~std::uint64_t{0}, 100) == 1);
    REQUIRE(link(memory, ~std::uint64_t{0}, 2, n, (32u << 20) + 1) == 1);
    return HOLDS(remote.get_last_error() == 0 && remote.free(memory) == 0);
}

// The host's memory for PTX and its logs counts as GVirtuS's buffers for requests do.
bool compiler_takes_memory()
{
    Gpu gpu("rdma.requests : 1M\n");
    constexpr std::uint64_t n = 1000000, longer = 1 << 20;
    const std::uint64_t memory = gpu.remote.malloc(2 << 20);
    const auto compile = [&](std::uint64_t bytes, int log) {
        return gpu.remote.call(
            "ibxRuntime",
            number(IBX_EXT_COMPILE).u64(memory).u64(bytes).i32(log).i32(log).put<char>(0));
    };
    REQUIRE(memory && !gpu.remote.call("cudaMemset", Body().u64(memory).i32('x').u64(2 << 20)));
    for (unsigned i = 0; i < 3; i++) { // each gives back what it has taken
        REQUIRE(compile(n, 100) == 0 && compile(longer, 0) == 2);
        REQUIRE(compile(n, 32 << 10) == 2);
    }
    return HOLDS(gpu.remote.get_last_error() == 0);
}

// The memory of PTX that is being compiled is freed behind that, when the logs are in it.
bool compiler_beside_free()
{
    Gpu gpu(resume);
    Client compiles(gpu), frees(gpu);
    const std::string ptx = ".version 7.0";
    const std::uint64_t memory = gpu.remote.malloc(4096);
    REQUIRE(memory && gpu.remote.to_device(memory, ptx.data(), ptx.size()) == 0);
    for (Client *client : {&compiles, &frees})
        REQUIRE(client->remote.get_last_error() == 0 && client->remote.set_device(0) == 0);
    gpu.remote.hold_linker(true);
    Calling compiling(gpu.back, [&] {
        return compiles.remote.call(
            "ibxRuntime",
            number(IBX_EXT_COMPILE).u64(memory).u64(ptx.size()).i32(30).i32(20).put<char>(0));
    });
    const bool begun = becomes_true([&] { return gpu.remote.stats().linking > 0; });
    Calling freeing(gpu.back, [&] { return frees.remote.free(memory); });
    freeing.settle();
    const bool waited = !freeing.returned();
    gpu.remote.hold_linker(false);
    return HOLDS(begun && waited && compiling.result() == 0 && freeing.result() == 0);
}

// A kernel that is looked up while another client unregisters some is looked up once more.
bool kernels_meanwhile()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    Client other(gpu);
    const std::uint64_t stream = remote.stream_create(), to = remote.malloc(4096),
                        from = remote.malloc(4096);
    auto launch = [&] {
        return gpu.made("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, 8));
    };
    REQUIRE(launch() == 1 && launch() == 0);
    remote.gate(true);
    std::thread taking([&] { other.remote.call("cudaUnregisterFatBinary", Body()); });
    bool begun = false;
    for (unsigned left = patience_ms(10000); left && !begun; left--) {
        begun = remote.inside();
        usleep(begun ? 0 : 1000);
    }
    const int looked_up = launch();
    remote.gate(false);
    taking.join();
    REQUIRE(begun);
    REQUIRE(looked_up == 1);
    REQUIRE(launch() == 1 && launch() == 0);
    return true;
}

// GVirtuS's handlers use maps of kernels and variables without a lock: two never run a registration
// at the same time.
bool registered_at_once()
{
    Gpu gpu;
    std::vector<std::thread> programs;
    for (unsigned i = 0; i < 6; i++)
        programs.emplace_back([&gpu, i] {
            Client client(gpu);
            const std::uint64_t stream = client.remote.stream_create();
            const char byte = 1;
            for (unsigned n = 0; n < 40; n++) {
                client.remote.call("__cudaRegisterFunction", Body());
                if (i < 2) // not a kernel that the plugin launches
                    client.remote.call("cudaLaunchKernel", kernel(0x8000, 32, stream, 0, 0, 0));
                if (i == 2)
                    client.remote.to_symbol(1, &byte, 1, 0);
            }
        });
    for (auto &program : programs)
        program.join();
    return gpu.remote.met() == 0;
}

// A look-up that does not return, since its client's kernel does not end, holds back others once,
// and for a bounded time.
bool registered_beside_one_that_stays()
{
    Gpu gpu;
    Client other(gpu);
    gpu.remote.gate(true);
    std::thread staying([&] { other.remote.call("cudaMemcpyFromSymbol", Body()); });
    std::atomic<unsigned> registered{0};
    std::thread registering([&] {
        Client client(gpu);
        while (!client.remote.inside())
            usleep(1000);
        for (; registered < 40; registered++)
            client.remote.call("__cudaRegisterFunction", Body());
    });
    for (unsigned left = patience_ms(20000); left && registered < 40; left--)
        usleep(1000);
    const bool all = registered == 40;
    gpu.remote.gate(false);
    staying.join();
    registering.join();
    for (unsigned i = 0; i < 2; i++) { // a look-up that was passed does not count when it ends
        REQUIRE(other.remote.call("cudaMemcpyFromSymbol", Body()) == -1);
        REQUIRE(gpu.remote.call("__cudaRegisterFunction", Body()) == -1);
    }
    return HOLDS(all);
}

// A handler that has returned holds nobody up, even if its client does not take the reply, which is
// longer than what may be on its way.
bool registered_beside_a_reply_that_waits()
{
    Gpu gpu("rdma.slots : 4\nrdma.message : 4K\n");
    Client slow(gpu);
    slow.remote.get_last_error();
    const Body body = Body().u64(60000);
    const std::uint64_t length = body.bytes.size();
    const std::string name = "__cudaRegisterFunction";
    slow.over->Write(name.c_str(), name.size() + 1);
    slow.over->Write(reinterpret_cast<const char *>(&length), sizeof(length));
    slow.over->Write(body.bytes.data(), length);
    slow.over->Sync();
    slow.over->Sync();
    REQUIRE(becomes_true([&] { return gpu.remote.registered() == 1; }));
    std::atomic<bool> registered{false};
    std::thread registering([&] {
        Client(gpu).remote.call("__cudaRegisterFunction", Body());
        registered = true;
    });
    for (unsigned left = patience_ms(5000); left && !registered; left--)
        usleep(1000);
    const bool beside = registered;
    slow.over->Close();
    registering.join();
    return HOLDS(beside);
}

} // namespace

void check_calls_kernels()
{
    check("kernels", kernels);
    check("kernels that nobody has registered", kernels_of_nobody);
    check("launches with too little", launches_with_too_little);
    check("kernels of several programs at one address", kernels_of_several_programs);
    check("kernels of a parent that has ended", kernels_of_ended_parent);
    check("kernels of a killed client beside endless work", kernels_beside_endless_work);
    check("kernels while some are taken away", kernels_meanwhile);
    check("what the compiler of PTX says", compiler_says);
    check("... and of images that the driver links", linker_links);
    check("... of as much as the limit on memory for requests allows", compiler_takes_memory);
    check("... beside a free of that memory", compiler_beside_free);
    check("registrations of several clients", registered_at_once);
    check("... beside one that does not return", registered_beside_one_that_stays);
    check("... beside a reply that waits", registered_beside_a_reply_that_waits);
}
