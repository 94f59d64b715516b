// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Requests for functions of cuBLAS and other libraries by a client that lies. The libraries'
// doubles look into each handle, and into scalars if the pointer mode says that these are the
// host's: a made-up address that got there would end the back end.
#include "tests/gvirtus/gpu_calls_math.h"

#include <algorithm>

namespace
{

constexpr int NOT_INITIALIZED = 1, INVALID_VALUE = 7; // of cuBLAS

std::uint64_t blas(Remote &remote)
{
    return remote.address(IBX_MATH_SETS_UP, byte(function(IBX_MATH_cublasCreate_v2, 0), 1));
}

// cublasSaxpy of n numbers; `alpha` is a number of the host, or an address.
Body axpy(std::uint64_t handle, std::uint64_t x, unsigned mode = 0, std::uint64_t alpha = 0,
          int n = 1)
{
    Body body = function(IBX_MATH_cublasSaxpy_v2, handle, mode);
    body.i32(n).u64(x).i32(1).u64(x).i32(1);
    if (mode)
        return body.u64(alpha);
    body = byte(body, 1);
    return body.i32(0x40000000); // 2.0
}

bool malformed()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const float one = 1;
    const std::uint64_t x = remote.malloc(64), handle = blas(remote);
    REQUIRE(x && handle && remote.to_device(x, &one, sizeof(one)) == 0);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == 0 && at(remote, x) == 3);
    // With fewer bytes, whichever number, and with one too many.
    const Body whole = axpy(handle, x);
    for (std::size_t n = 0; n < whole.bytes.size() + 2; n++) {
        Body body = whole;
        body.bytes.resize(n);
        if (n != whole.bytes.size())
            REQUIRE(remote.call(IBX_MATH_ADDS, body) != 0);
    }
    REQUIRE(at(remote, x) == 3);
    // Made-up handles, and memory that is not the device's.
    for (const std::uint64_t none : {std::uint64_t{0}, handle + 8, x, std::uint64_t{0x1234}})
        REQUIRE(remote.call(IBX_MATH_ADDS, axpy(none, x)) == NOT_INITIALIZED);
    // The library knows where scalars are.
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x, 1, 0x1234)) == INVALID_VALUE);
    REQUIRE(remote.call(IBX_MATH_SETS_UP,
                        function(IBX_MATH_cublasSetPointerMode_v2, handle).i32(1)) == 0);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == INVALID_VALUE && at(remote, x) == 3);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x, 1, x)) == 0 && at(remote, x) == 12);
    // Numbers of no function, and of functions that this library lacks.
    for (const unsigned number : {0u, 0x1000u, 0x1fffu, 0x7fffu, 0x8fffu, 0x9001u, 0xffffu})
        REQUIRE(remote.call(IBX_MATH_ADDS, function(number, handle)) == IBX_MATH_ABSENT);
    REQUIRE(remote.call(IBX_MATH_WAITS, function(IBX_MATH_cublasSnrm2_v2, handle)) ==
            IBX_MATH_ABSENT);
    for (unsigned number = 0x1000; number < 0x7100; number++) {
        if (number == 0x3040)
            number = 0x7000; // cuDNN's
        Body body = function(number, number % 3 ? handle : number, number % 2);
        const std::vector<char> more = random_bytes(number % 97, number);
        body.bytes.insert(body.bytes.end(), more.begin(), more.end());
        if (number != IBX_MATH_cublasDestroy_v2)
            remote.call(IBX_MATH_WAITS, body);
    }
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cublasDestroy_v2, handle)) == 0);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cublasDestroy_v2, handle)) ==
            NOT_INITIALIZED);
    return HOLDS(remote.free(x) == 0);
}

// Messages may end anywhere in a request.
bool in_pieces()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const std::uint64_t x = remote.malloc(64), handle = blas(remote), zero = 0;
    REQUIRE(x && handle && remote.to_device(x, &zero, sizeof(zero)) == 0);
    const Body body = axpy(handle, x);
    const std::uint64_t length = body.bytes.size();
    const char name[] = IBX_MATH_ADDS;
    std::vector<char> whole(name, name + sizeof(name));
    whole.insert(whole.end(), reinterpret_cast<const char *>(&length),
                 reinterpret_cast<const char *>(&length + 1));
    whole.insert(whole.end(), body.bytes.begin(), body.bytes.end());
    for (std::size_t n = 1; n < whole.size(); n++) {
        char reply[20];
        gpu.over->Write(whole.data(), n);
        gpu.over->Sync();
        gpu.over->Write(whole.data() + n, whole.size() - n);
        gpu.over->Sync();
        REQUIRE(gpu.over->Read(reply, sizeof(reply)) == sizeof(reply));
        REQUIRE(std::all_of(reply, reply + 4, [](char byte) { return byte == 0; }));
    }
    return HOLDS(remote.free(x) == 0);
}

// A library looks into its handle's stream: it must not get one that was destroyed.
bool streams()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const float one = 1;
    const std::uint64_t x = remote.malloc(64), handle = blas(remote),
                        first = remote.stream_create(), second = remote.stream_create();
    const auto select = [&](std::uint64_t stream) {
        return remote.call(IBX_MATH_SELECTS,
                           function(IBX_MATH_cublasSetStream_v2, handle).u64(stream));
    };
    const auto destroy = [&](std::uint64_t stream) {
        return remote.call("cudaStreamDestroy", Body().u64(stream));
    };
    REQUIRE(x && handle && first && second && !remote.to_device(x, &one, sizeof(one)));
    REQUIRE(select(first) == 0 && remote.call(IBX_MATH_ADDS, axpy(handle, x)) == 0);
    REQUIRE(at(remote, x) == 3 && destroy(first) == 0);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == INVALID_VALUE && at(remote, x) == 3);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == 0 &&
            at(remote, x) == 9); // the legacy one
    REQUIRE(select(first) != 0 && select(second) == 0);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == 0 && at(remote, x) == 27);
    REQUIRE(destroy(second) == 0 && select(0) == 0); // as programs do
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == 0 && at(remote, x) == 81);
    return HOLDS(!remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cublasDestroy_v2, handle)));
}

// A graph would use memory of the host that the back end has only for the call: nobody could say
// when to give it back.
bool workspaces()
{
    constexpr int not_supported = 9;
    Gpu gpu;
    Remote &remote = gpu.remote;
    const auto make = [&](unsigned number) {
        return remote.address(IBX_MATH_SETS_UP, byte(function(number, 0), 1));
    };
    const std::uint64_t x = remote.malloc(64), stream = remote.stream_create(),
                        solver = make(IBX_MATH_cusolverDnCreate),
                        parameters = make(IBX_MATH_cusolverDnCreateParams);
    const auto factor = [&](std::uint64_t host_bytes, std::uint64_t rows = 1) {
        Body body = function(IBX_MATH_cusolverDnXgetrf, solver);
        body.u64(parameters).u64(rows).u64(1).i32(1).u64(x).u64(1).u64(0).i32(1).u64(0).u64(0);
        return remote.call(IBX_MATH_ADDS, body.u64(host_bytes).u64(x));
    };
    REQUIRE(x && stream && solver && parameters && factor(64) == 0);
    // The library writes as much as it needs, whatever length it is given.
    REQUIRE(factor(80, 10) == 0 && factor(79, 10) == 3 && factor(0, 10) == 3 && factor(0) == 0);
    REQUIRE(remote.call(IBX_MATH_SELECTS,
                        function(IBX_MATH_cusolverDnSetStream, solver).u64(stream)) == 0);
    REQUIRE(factor(64) == 0);
    REQUIRE(remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(2)) == 0);
    REQUIRE(factor(64) == not_supported);
    REQUIRE(remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(factor(64) == 0);
    REQUIRE(!remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cusolverDnDestroyParams, parameters)));
    return HOLDS(!remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cusolverDnDestroy, solver)));
}

// The pointer mode stays what it was found to be, though another client changes it.
bool modes()
{
    constexpr int calls = 200, n = 500;
    Gpu gpu;
    Client other(gpu);
    Remote &remote = gpu.remote;
    const std::vector<float> ones(n, 1);
    const std::uint64_t x = remote.malloc(n * sizeof(float)), handle = blas(remote);
    other.remote.get_last_error();
    REQUIRE(x && handle && remote.to_device(x, ones.data(), n * sizeof(float)) == 0);
    std::atomic<bool> over{false}, changed{true};
    std::thread changes([&] {
        for (int mode = 1; !over || !mode; mode = !mode)
            changed =
                changed && other.remote.call(
                               IBX_MATH_SETS_UP,
                               function(IBX_MATH_cublasSetPointerMode_v2, handle).i32(mode)) == 0;
    });
    bool good = true;
    for (unsigned i = 0; i < calls; i++) {
        const int status = remote.call(IBX_MATH_ADDS, axpy(handle, x, i % 2, x, n));
        good = good && (!status || status == INVALID_VALUE);
    }
    over = true;
    changes.join();
    return HOLDS(good && changed);
}

// Attributes as a descriptor has them.
Body attribute(Body body, unsigned number, unsigned bytes, std::uint64_t value)
{
    const unsigned logarithm = bytes == 8 ? 3 : bytes == 4 ? 2 : 0;
    body = byte(std::move(body), number << 2 | logarithm);
    for (unsigned i = 0; i < bytes; i++)
        body = byte(std::move(body), static_cast<unsigned>(value >> 8 * i & 0xff));
    return body;
}

Body described(Body body, const Body &descriptor)
{
    body = byte(std::move(body), static_cast<unsigned>(descriptor.bytes.size()));
    body.bytes.insert(body.bytes.end(), descriptor.bytes.begin(), descriptor.bytes.end());
    return body;
}

const Body &square() // a layout of one float
{
    static const Body layout =
        attribute(attribute(attribute(attribute(Body(), 0, 4, 0), 2, 8, 1), 3, 8, 1), 4, 8, 1);
    return layout;
}

// cublasLtMatmul of matrices that each have one number, in memory of the device.
Body product(std::uint64_t handle, std::uint64_t at, const Body &by, const Body &of,
             std::uint64_t stream, std::size_t scalar = 4)
{
    Body body = function(IBX_MATH_cublasLtMatmul, handle);
    body.u64(at).u64(at).u64(at).u64(at).u64(0).u64(0); // A, B, C, D, workspace and its size
    body = described(body, by);
    const auto put = [&](std::uint32_t bits) {
        body = byte(body, 1);
        for (std::size_t i = 0; i < scalar; i++)
            body = byte(body, i < 4 ? bits >> 8 * i & 0xff : 0);
    };
    put(0x40000000); // 2.0
    body = described(described(body, of), of);
    put(0);
    return byte(described(described(body, of), of), 0).u64(stream);
}

// A client sends the content of a descriptor with each request: the back end checks the addresses
// in it.
bool descriptors()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    const float three = 3;
    const Body made_of = attribute(attribute(Body(), 0, 4, 68), 1, 4, 0);
    const std::uint64_t x = remote.malloc(some),
                        handle = remote.address(IBX_MATH_SETS_UP,
                                                byte(function(IBX_MATH_cublasLtCreate, 0), 1)),
                        mine = blas(remote);
    const auto multiply = [&](std::uint64_t of, const Body &by, const Body &layout = square(),
                              std::uint64_t stream = 0, std::size_t scalar = 4) {
        return remote.call(IBX_MATH_ADDS_IN, product(of, x, by, layout, stream, scalar));
    };
    REQUIRE(x && handle && mine && !remote.to_device(x, &three, sizeof(three)));
    REQUIRE(multiply(handle, made_of) == 0 && at(remote, x) == 18 && multiply(mine, made_of) == 0);
    REQUIRE(!remote.to_device(x, &three, sizeof(three)));
    for (const std::uint64_t none : {std::uint64_t{0}, handle + 8, x, std::uint64_t{0x1234}})
        REQUIRE(multiply(none, made_of) == NOT_INITIALIZED);
    REQUIRE(multiply(handle, made_of, square(), 0x1234) == INVALID_VALUE);
    // With fewer bytes, whichever number, and with one too many.
    const Body whole = product(handle, x, made_of, square(), 0);
    for (std::size_t n = 0; n < whole.bytes.size() + 2; n++) {
        Body body = whole;
        body.bytes.resize(n);
        if (n != whole.bytes.size())
            REQUIRE(remote.call(IBX_MATH_ADDS_IN, body) != 0);
    }
    // Addresses of the host; attributes that the library does not know, or that the descriptor does
    // not have.
    REQUIRE(multiply(handle, attribute(made_of, 38, 8, 0x1234)) == INVALID_VALUE);
    REQUIRE(multiply(handle, attribute(made_of, 38, 8, 0)) == 0);
    REQUIRE(!remote.to_device(x, &three, sizeof(three)));
    for (const unsigned number : {8u, 17u, 38u, 9u, 63u})
        REQUIRE(multiply(handle, attribute(made_of, number, 4, 1)) == INVALID_VALUE);
    REQUIRE(multiply(handle, attribute(made_of, 63, 8, 0)) == INVALID_VALUE);
    REQUIRE(multiply(handle, attribute(made_of, 2, 4, 9)) == INVALID_VALUE);
    REQUIRE(multiply(handle, attribute(made_of, 0, 4, 68)) == INVALID_VALUE); // twice
    REQUIRE(multiply(handle, Body()) == INVALID_VALUE && multiply(handle, square()) != 0);
    REQUIRE(multiply(handle, made_of, made_of) != 0 && multiply(handle, made_of, Body()) != 0);
    // Scalars that are longer than their type, or somewhere else.
    REQUIRE(multiply(handle, made_of, square(), 0, 8) == INVALID_VALUE);
    REQUIRE(multiply(handle, attribute(made_of, 2, 4, 1)) == INVALID_VALUE);
    REQUIRE(at(remote, x) == 3 && multiply(handle, attribute(made_of, 8, 8, x)) == 0);
    // Another program's memory.
    REQUIRE(result_of(spawn([&] {
                Client client(gpu);
                Remote &own = client.remote;
                own.get_last_error();
                const std::uint64_t y = own.malloc(some), lt = blas(own);
                const auto multiply_with = [&](std::uint64_t memory, std::uint64_t bias) {
                    return own.call(
                        IBX_MATH_ADDS_IN,
                        product(lt, memory, attribute(made_of, 8, 8, bias), square(), 0));
                };
                const bool good = y && lt && multiply_with(y, y) == 0 &&
                                  multiply_with(y, x) == INVALID_VALUE &&
                                  multiply_with(x, y) == INVALID_VALUE;
                return good ? 0 : 1;
            })) == 0);
    return HOLDS(!remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cublasLtDestroy, handle)));
}

// A client that makes handles again and again does not fill everybody's memory.
bool limits()
{
    constexpr unsigned most = 4096;
    constexpr int no_memory = 3, no_memory_of_rng = 102;
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::vector<std::uint64_t> made(most);
    const auto generator = [](Remote &by) {
        return by.call(IBX_MATH_SETS_UP,
                       byte(function(IBX_MATH_curandCreateGenerator, 0).i32(100), 1));
    };
    const auto end = [](Remote &by, std::uint64_t handle) {
        return by.call(IBX_MATH_SETS_UP, function(IBX_MATH_cublasDestroy_v2, handle));
    };
    const Body another = byte(function(IBX_MATH_cublasCreate_v2, 0), 1);
    remote.get_last_error();
    for (std::uint64_t &handle : made)
        REQUIRE((handle = blas(remote)) != 0);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, another) == no_memory);
    REQUIRE(remote.library_handles() == most);
    {
        Client other(gpu); // whichever session asks
        other.remote.get_last_error();
        REQUIRE(other.remote.call(IBX_MATH_SETS_UP, another) == no_memory);
        REQUIRE(generator(other.remote) == no_memory_of_rng);
        // A handler's is refused: it would be nothing that could be counted.
        REQUIRE(other.remote.call("curandCreateGeneratorHost", Body().i32(100)) == 999);
    }
    REQUIRE(end(remote, made[0]) == 0 && generator(remote) == 0);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, another) == no_memory);
    for (unsigned i = 1; i < most; i++)
        REQUIRE(end(remote, made[i]) == 0);
    return HOLDS(remote.library_handles() == 1);
}

struct Maker {
    const char *name; // of GVirtuS's handler
    unsigned end;
};
constexpr Maker makers[] = {{"cublasCreate_v2", IBX_MATH_cublasDestroy_v2},
                            {"curandCreateGenerator", IBX_MATH_curandDestroyGenerator},
                            {"cusparseCreate", IBX_MATH_cusparseDestroy},
                            {"cusolverDnCreate", IBX_MATH_cusolverDnDestroy}};

// ... whoever makes them: those that GVirtuS's own handlers make count as well.
bool limits_of_handlers()
{
    constexpr unsigned most = 4096;
    constexpr int no_memory = 3, lost = 999;
    Gpu gpu;
    Remote &remote = gpu.remote;
    std::vector<std::uint64_t> made(most);
    const Body another = byte(function(IBX_MATH_cublasCreate_v2, 0), 1);
    const auto end = [&](unsigned i) {
        return remote.call(IBX_MATH_SETS_UP, function(makers[i % 4].end, made[i]));
    };
    remote.get_last_error();
    for (unsigned i = 0; i < most; i++)
        REQUIRE((made[i] = remote.address(makers[i % 4].name, Body().i32(100))) != 0);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, another) == no_memory);
    for (const Maker &maker : makers) {
        Client other(gpu); // whichever session asks
        other.remote.get_last_error();
        REQUIRE(other.remote.call(maker.name, Body().i32(100)) == lost);
    }
    REQUIRE(remote.library_handles() == most);
    REQUIRE(remote.call("cublasDestroy_v2", Body().u64(made[0])) == 0);
    REQUIRE((made[0] = blas(remote)) != 0 && remote.call(IBX_MATH_SETS_UP, another) == no_memory);
    for (unsigned i = 0; i < most; i++)
        REQUIRE(end(i) == 0 && end(i) != 0);
    return HOLDS(remote.library_handles() == 0);
}

// Our requests refuse to work with a handle that a handler of GVirtuS's has made: work of handlers
// keeps to no rule of these requests.
bool made_by_handlers()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    remote.get_last_error();
    const std::uint64_t x = remote.malloc(64), handle = remote.address("cublasCreate_v2", Body());
    REQUIRE(x && handle && remote.call(IBX_MATH_ADDS, axpy(handle, x)) == INVALID_VALUE);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cublasDestroy_v2, handle)) == 0);
    // A plan is an array of one int.
    REQUIRE(remote.call("cufftCreate", Body()) == 0 && remote.library_handles() == 1);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cufftDestroy, 1)) == 0);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cufftDestroy, 1)) == NOT_INITIALIZED);
    // Such handles go with their client.
    REQUIRE(result_of(spawn([&] {
                Client client(gpu);
                client.remote.get_last_error();
                for (const Maker &maker : makers)
                    if (!client.remote.address(maker.name, Body().i32(100)))
                        return 1;
                const bool good = client.remote.call("cufftCreate", Body()) == 0 &&
                                  client.remote.library_handles() == 5;
                return good ? 0 : 1;
            })) == 0);
    return becomes_true([&] { return remote.library_handles() == 0; });
}

// A host generator of GVirtuS's handler would write to addresses of the back end's process.
bool host_generators()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    remote.get_last_error();
    const std::uint64_t x = remote.malloc(64),
                        made = remote.address("curandCreateGeneratorHost", Body().i32(100));
    REQUIRE(x && made);
    const auto normal = [&](std::uint64_t to) {
        Body body = function(IBX_MATH_curandGenerateNormal, made);
        return remote.call(IBX_MATH_ADDS, body.u64(to).u64(1).i32(0).i32(0));
    };
    const auto seeded = [&] {
        Body body = function(IBX_MATH_curandSetPseudoRandomGeneratorSeed, made);
        return remote.call(IBX_MATH_SETS_UP, body.u64(7));
    };
    REQUIRE(seeded() == 0 && normal(x) == 104 && normal(0) == 104);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_curandDestroyGenerator, made)) == 0);
    return HOLDS(remote.library_handles() == 0);
}

// What a generator for the host makes is in the reply of GVirtuS's handler, so it has a limit.
bool numbers_for_host()
{
    Gpu gpu("rdma.requests : 1M\n");
    Remote &remote = gpu.remote;
    remote.get_last_error();
    const std::uint64_t host = remote.address("curandCreateGeneratorHost", Body().i32(100)),
                        device = remote.address("curandCreateGenerator", Body().i32(100));
    const auto ends = [&remote](const char *name, std::uint64_t of, std::uint64_t n) {
        return remote.call(name, Body().u64(of).u64(n)) == 999;
    };
    const char *floats = "curandGenerateUniform", *doubles = "curandGenerateUniformDouble";
    REQUIRE(host && device && !ends(floats, host, 1u << 18) && !ends(doubles, host, 1u << 17));
    REQUIRE(!ends(floats, device, 1u << 30) && !ends(floats, host, std::uint64_t{1} << 62));
    // Made by a request of the client's own: the handlers may take it for one that was there
    // before.
    Client plain(gpu);
    plain.remote.get_last_error();
    const std::uint64_t own = plain.remote.address(
        IBX_MATH_SETS_UP, byte(function(IBX_MATH_curandCreateGenerator, 0).i32(100), 1));
    REQUIRE(own && plain.remote.call(floats, Body().u64(own).u64(1u << 18)) != 999);
    REQUIRE(plain.remote.call(floats, Body().u64(own).u64((1u << 18) + 1)) == 999);
    Client other(gpu);
    const std::uint64_t theirs = other.remote.address("curandCreateGeneratorHost", Body().i32(100));
    REQUIRE(theirs);
    REQUIRE(other.remote.call(doubles, Body().u64(theirs).u64((1u << 17) + 1)) == 999);
    return HOLDS(ends(floats, host, (1u << 18) + 1));
}

// Tables of cuRAND are written to memory of the client's that has room for them.
bool random_tables()
{
    constexpr int table = IBX_TABLE_CONSTANTS_64, refused = 1, absent = 801;
    constexpr std::size_t n = 160000;
    Gpu gpu;
    gpu.remote.get_last_error();
    const auto fetch = [](Remote &remote, int which, std::uint64_t to) {
        return remote.call("ibxRuntime", number(IBX_EXT_RANDOM_TABLE).i32(which).u64(to));
    };
    const std::uint64_t memory = gpu.remote.malloc(n), few = gpu.remote.malloc(n - 1);
    const std::vector<char> before(n, 'b');
    std::vector<std::uint64_t> there(n / 8);
    REQUIRE(memory && few && gpu.remote.to_device(memory, before.data(), n) == 0);
    REQUIRE(result_of(spawn([&] {
                Client other(gpu);
                other.remote.get_last_error();
                other.remote.set_device(0);
                return fetch(other.remote, table, memory) == refused ? 0 : 1;
            })) == 0);
    for (const int none : {-1, static_cast<int>(IBX_TABLES)})
        REQUIRE(fetch(gpu.remote, none, memory) == refused);
    REQUIRE(fetch(gpu.remote, table, few) == refused);
    REQUIRE(fetch(gpu.remote, table, memory + 1) == refused);
    REQUIRE(fetch(gpu.remote, IBX_TABLE_CONSTANTS_32, memory) == absent);
    REQUIRE(gpu.remote.from_device(there.data(), memory, n) == 0);
    REQUIRE(!std::memcmp(there.data(), before.data(), n));
    REQUIRE(fetch(gpu.remote, table, memory) == 0);
    return HOLDS(gpu.remote.from_device(there.data(), memory, n) == 0 && !there[0] &&
                 there[1] == 1ull << 33 && there.back() == 19999ull << 33);
}

// A handle that a handler has destroyed does not exist any more.
bool ended_by_handlers()
{
    Gpu gpu;
    Remote &remote = gpu.remote;
    remote.get_last_error();
    const std::uint64_t x = remote.malloc(64), handle = blas(remote),
                        plan = remote.address(IBX_MATH_SETS_UP,
                                              byte(function(IBX_MATH_cufftCreate, 0), 1));
    REQUIRE(x && handle && plan && remote.library_handles() == 2);
    REQUIRE(remote.call("cublasDestroy_v2", Body().u64(handle)) == 0);
    REQUIRE(remote.call(IBX_MATH_ADDS, axpy(handle, x)) == NOT_INITIALIZED);
    REQUIRE(remote.call("cufftDestroy", Body().i32(static_cast<std::int32_t>(plan))) == 0);
    REQUIRE(remote.call(IBX_MATH_SETS_UP, function(IBX_MATH_cufftDestroy, plan)) ==
            NOT_INITIALIZED);
    return HOLDS(remote.library_handles() == 0);
}

// Libraries change plans and generators without a lock.
bool in_one()
{
    constexpr int calls = 200;
    Gpu gpu;
    Client other(gpu);
    Remote &remote = gpu.remote;
    other.remote.get_last_error();
    const std::uint64_t x = remote.malloc(64),
                        generator = remote.address(
                            IBX_MATH_SETS_UP,
                            byte(function(IBX_MATH_curandCreateGenerator, 0).i32(100), 1)),
                        plan = remote.address(IBX_MATH_SETS_UP,
                                              byte(function(IBX_MATH_cufftCreate, 0), 1));
    REQUIRE(x && generator && plan);
    const auto both = [&](Remote &by) {
        Body makes = function(IBX_MATH_cufftMakePlanMany, plan);
        makes.i32(1).i32(1).i32(1).i32(1).i32(1).i32(0x29).i32(1);
        makes = byte(byte(byte(byte(makes, 1).i32(8), 0), 0), 1);
        Body normal = function(IBX_MATH_curandGenerateNormal, generator);
        return by.call(IBX_MATH_SETS_UP, makes) == 0 &&
               by.call(IBX_MATH_ADDS, normal.u64(x).u64(1).i32(0).i32(0)) == 0;
    };
    bool good = true, others = true;
    std::thread thread([&] {
        for (int i = 0; i < calls; i++)
            others = others && both(other.remote);
    });
    for (int i = 0; i < calls; i++)
        good = good && both(remote);
    thread.join();
    return HOLDS(good && others);
}

} // namespace

void check_calls_math()
{
    check("requests for libraries with descriptors", descriptors);
    check("requests for libraries while the pointer mode changes", modes);
    check("requests for libraries whose stream is gone", streams);
    check("requests for libraries that work in memory of the host", workspaces);
    check("requests for libraries in pieces", in_pieces);
    check("handles of libraries have a limit", limits);
    check("... also those that handlers of GVirtuS's make", limits_of_handlers);
    check("... which are known as theirs, and go with their client", made_by_handlers);
    check("... those of a handler of GVirtuS's fill no memory of the back end", host_generators);
    check("... whose numbers are in a reply", numbers_for_host);
    check("... what a handler has ended is none of them", ended_by_handlers);
    check("... plans and generators have one user at a time", in_one);
    check("requests for libraries that are malformed", malformed);
    check("tables of libraries", random_tables);
}
