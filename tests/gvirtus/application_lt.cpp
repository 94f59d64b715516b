// SPDX-License-Identifier: LGPL-2.1-or-later
//
// cuBLASLt: descriptors are the program's, work names its stream.
#include "tests/gvirtus/application_math.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace lt
{
namespace
{

constexpr int FLOATS = 0, DOUBLES = 1, COMPUTE_FLOATS = 68;
constexpr int POINTER_MODE = 2, TRANSPOSES_A = 3, EPILOGUE = 7, BIAS = 8, A_SCALE = 17, FAST = 25,
              BIAS_TYPE = 26, EMULATION = 38;
constexpr std::uint64_t COUNT_MOST = 128; // algorithms of one search

void *layout(std::uint64_t rows, std::uint64_t columns)
{
    void *made = nullptr;
    return math("cublasLtMatrixLayoutCreate", &made, FLOATS, rows, columns,
                static_cast<std::int64_t>(rows))
               ? nullptr
               : made;
}

void *product(int scale = FLOATS)
{
    void *made = nullptr;
    return math("cublasLtMatmulDescCreate", &made, COMPUTE_FLOATS, scale) ? nullptr : made;
}

template <typename T> int set(void *of, int attribute, T value)
{
    return math("cublasLtMatmulDescSetAttribute", of, attribute, static_cast<const void *>(&value),
                sizeof(value));
}

// Of two by two: D = alpha A B + beta C.
struct Squares {
    void *handle = nullptr, *of = layout(2, 2), *stream = nullptr;
    float *a = device_copy<float>({1, 2, 3, 4}), *b = device_copy<float>({1, 0, 0, 1});
    float *c = device_copy<float>({10, 20, 30, 40}), *d = device_copy<float>({0, 0, 0, 0});

    int multiply(void *by, const void *alpha, const void *beta, const void *algorithm = nullptr)
    {
        return math("cublasLtMatmul", handle, by, alpha, a, of, b, of, beta, c, of, d, of,
                    algorithm, static_cast<void *>(nullptr), std::size_t{0}, stream);
    }
    std::vector<float> result() const { return host_copy(d, 4); }
};

// Only the program knows what is in a descriptor: no call asks the back end.
bool descriptors()
{
    void *by = product(), *one = layout(3, 5);
    int mode = 9;
    std::int8_t fast = 9;
    std::uint64_t rows = 0, bias = 1;
    std::size_t written = 0;
    const auto get = [&](const char *type, void *of, int attribute, void *value, std::size_t n) {
        return math(("cublasLt" + std::string(type) + "GetAttribute").c_str(), of, attribute, value,
                    n, &written);
    };
    REQUIRE(by && one);
    REQUIRE(get("MatrixLayout", one, 2, &rows, 8) == 0 && rows == 3 && written == 8);
    REQUIRE(get("MatrixLayout", one, 3, nullptr, 0) == 0 && written == 8);
    REQUIRE(get("MatrixLayout", one, 5, &mode, 4) == 0 && mode == 1); // batches
    REQUIRE(get("MatmulDesc", by, POINTER_MODE, &mode, 4) == 0 && mode == 0 && written == 4);
    REQUIRE(get("MatmulDesc", by, BIAS_TYPE, &mode, 4) == 0 && mode == -1);
    REQUIRE(get("MatmulDesc", by, BIAS, &bias, 8) == 0 && bias == 0);
    REQUIRE(set(by, POINTER_MODE, 1) == 0 && set(by, FAST, std::int8_t{1}) == 0);
    REQUIRE(set(by, POINTER_MODE, 4) == 0 && set(by, A_SCALE, std::uint64_t{0x7000}) == 0);
    REQUIRE(get("MatmulDesc", by, POINTER_MODE, &mode, 4) == 0 && mode == 4);
    REQUIRE(get("MatmulDesc", by, FAST, &fast, 1) == 0 && fast == 1 && written == 1);
    // Sizes and attributes that are none, and what is no such descriptor.
    REQUIRE(set(by, POINTER_MODE, std::uint64_t{1}) == INVALID_VALUE);
    REQUIRE(set(by, 63, 1) == INVALID_VALUE && set(by, -1, 1) == INVALID_VALUE);
    REQUIRE(set(one, POINTER_MODE, 1) == INVALID_VALUE && set(nullptr, 2, 1) == INVALID_VALUE);
    REQUIRE(get("MatmulDesc", by, FAST, &mode, 4) == INVALID_VALUE);
    REQUIRE(set(by, EMULATION, std::uint64_t{0}) == 0);
    REQUIRE(set(by, EMULATION, reinterpret_cast<std::uint64_t>(&mode)) == NOT_SUPPORTED);
    // In the program's own memory, which is as long as it says.
    alignas(8) std::array<char, 64> own;
    own.fill('x');
    REQUIRE(math("cublasLtMatrixLayoutInit_internal", static_cast<void *>(own.data()),
                 std::size_t{40}, FLOATS, std::uint64_t{7}, std::uint64_t{8},
                 std::int64_t{7}) == 0);
    REQUIRE(own[40] == 'x' && own[63] == 'x');
    REQUIRE(get("MatrixLayout", own.data(), 2, &rows, 8) == 0 && rows == 7);
    const std::uint64_t offset = 5;
    REQUIRE(math("cublasLtMatrixLayoutSetAttribute", static_cast<void *>(own.data()), 6,
                 static_cast<const void *>(&offset), sizeof(offset)) == ALLOC_FAILED);
    REQUIRE(own[40] == 'x' && get("MatrixLayout", own.data(), 2, &rows, 8) == 0 && rows == 7);
    REQUIRE(math("cublasLtMatmulDescDestroy", by) == 0);
    return HOLDS(math("cublasLtMatrixLayoutDestroy", one) == 0);
}

bool products(Squares &s)
{
    void *by = product();
    float alpha = 2, beta = 1;
    REQUIRE(by && s.of && s.multiply(by, &alpha, &beta) == 0);
    REQUIRE((s.result() == std::vector<float>{12, 24, 36, 48}));
    REQUIRE(set(by, TRANSPOSES_A, 1) == 0 && s.multiply(by, &alpha, &beta) == 0);
    REQUIRE((s.result() == std::vector<float>{12, 26, 34, 48}));
    // A bias, in memory of the device.
    float *bias = device_copy<float>({100, 200});
    REQUIRE(set(by, EPILOGUE, 4) == 0 && set(by, BIAS, reinterpret_cast<std::uint64_t>(bias)) == 0);
    REQUIRE(set(by, TRANSPOSES_A, 0) == 0 && s.multiply(by, &alpha, &beta) == 0);
    REQUIRE((s.result() == std::vector<float>{112, 224, 136, 248}));
    REQUIRE(set(by, BIAS, std::uint64_t{0x1234}) == 0);
    REQUIRE(s.multiply(by, &alpha, &beta) != 0);
    REQUIRE(set(by, EPILOGUE, 1) == 0 && set(by, BIAS, std::uint64_t{0}) == 0);
    // Scalars where the descriptor says.
    float *both = device_copy<float>({3, 0});
    REQUIRE(set(by, POINTER_MODE, 1) == 0 && s.multiply(by, both, both + 1) == 0);
    REQUIRE((s.result() == std::vector<float>{3, 6, 9, 12}));
    REQUIRE(s.multiply(by, &alpha, &beta) != 0); // of the host
    REQUIRE(set(by, POINTER_MODE, 3) == 0 && s.multiply(by, both, nullptr) == 0);
    REQUIRE((s.result() == std::vector<float>{3, 6, 9, 12}));
    REQUIRE(set(by, POINTER_MODE, 4) == 0 && s.multiply(by, both, &beta) == 0);
    REQUIRE((s.result() == std::vector<float>{13, 26, 39, 52}));
    REQUIRE(set(by, POINTER_MODE, 7) == 0 && s.multiply(by, both, &beta) == INVALID_VALUE);
    void *longer = product(DOUBLES);
    const double scales[] = {0.5, 0};
    REQUIRE(longer && s.multiply(longer, &scales[0], &scales[1]) == 0);
    REQUIRE((s.result() == std::vector<float>{.5, 1, 1.5, 2}));
    REQUIRE(s.multiply(longer, nullptr, &scales[1]) == INVALID_VALUE);
    REQUIRE(s.multiply(nullptr, &alpha, &beta) == INVALID_VALUE);
    REQUIRE(s.multiply(s.of, &alpha, &beta) == INVALID_VALUE); // no product
    return HOLDS(math("cublasLtMatmulDescDestroy", by) == 0 &&
                 math("cublasLtMatmulDescDestroy", longer) == 0);
}

// A product runs behind its stream's work, and before what follows there, whatever stream the
// handle has.
bool order(Squares &s)
{
    constexpr std::size_t bytes = 4 * sizeof(float);
    void *by = product();
    const float alpha = 1, beta = 0;
    REQUIRE(by && cudaStreamCreate(&s.stream) == 0);
    stub_remote()->slow(2000);
    for (unsigned i = 0; i < 20; i++) {
        std::vector<float> got(4);
        REQUIRE(cudaMemsetAsync(s.d, 0, bytes, s.stream) == 0);
        for (unsigned k = 0; k < 3; k++)
            REQUIRE(s.multiply(by, &alpha, &beta) == 0);
        REQUIRE(cudaMemcpyAsync(got.data(), s.d, bytes, D2H, s.stream) == 0);
        REQUIRE(cudaStreamSynchronize(s.stream) == 0);
        REQUIRE((got == std::vector<float>{1, 2, 3, 4}));
    }
    stub_remote()->slow(0);
    void *gone = s.stream;
    REQUIRE(cudaStreamDestroy(s.stream) == 0 && s.multiply(by, &alpha, &beta) == INVALID_VALUE);
    s.stream = nullptr;
    REQUIRE(gone && s.multiply(by, &alpha, &beta) == 0);
    return HOLDS(math("cublasLtMatmulDescDestroy", by) == 0);
}

// A product comes behind another thread's work in its stream, also if the handle has another
// stream.
bool order_between_threads(Squares &s)
{
    constexpr std::size_t bytes = 4 * sizeof(float);
    void *by = product(), *other = nullptr, *const handle = s.handle;
    const float alpha = 1, beta = 0;
    enum { MINE, THEIRS, OVER };
    std::atomic<int> turn{MINE};
    bool set_good = true;
    REQUIRE(cudaStreamCreate(&s.stream) == 0 && cudaStreamCreate(&other) == 0);
    REQUIRE(math("cublasCreate_v2", &s.handle) == 0);
    REQUIRE(math("cublasSetStream_v2", s.handle, other) == 0);
    std::thread sets([&] {
        for (int now; (now = turn) != OVER;) {
            if (now == THEIRS) {
                for (unsigned k = 0; k < 8; k++)
                    set_good = set_good && !cudaMemsetAsync(s.d, 0, bytes, s.stream);
                turn = MINE;
            }
        }
    });
    bool good = true;
    for (unsigned i = 0; i < 40 && good; i++) {
        stub_remote()->slow(i % 2 ? 500 : 0);
        turn = THEIRS;
        while (turn != MINE)
            std::this_thread::yield();
        good = s.multiply(by, &alpha, &beta) == 0 && cudaStreamSynchronize(s.stream) == 0 &&
               s.result() == std::vector<float>{1, 2, 3, 4};
    }
    turn = OVER;
    sets.join();
    stub_remote()->slow(0);
    REQUIRE(good && set_good && math("cublasDestroy_v2", s.handle) == 0);
    REQUIRE(cudaStreamDestroy(s.stream) == 0 && cudaStreamDestroy(other) == 0);
    s.handle = handle;
    s.stream = nullptr;
    return HOLDS(math("cublasLtMatmulDescDestroy", by) == 0);
}

struct Found {
    std::uint64_t algorithm[8];
    std::size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

bool algorithms(Squares &s)
{
    void *by = product(), *preference = nullptr;
    std::vector<Found> found(200);
    int count = 0;
    const float alpha = 1, beta = 0;
    const std::uint64_t workspace = 4096;
    const auto search = [&](int wanted) {
        return math("cublasLtMatmulAlgoGetHeuristic", s.handle, by, s.of, s.of, s.of, s.of,
                    preference, wanted, found.data(), &count);
    };
    const auto prefer = [&](int attribute, auto value) {
        return math("cublasLtMatmulPreferenceSetAttribute", preference, attribute,
                    static_cast<const void *>(&value), sizeof(value));
    };
    REQUIRE(math("cublasLtMatmulPreferenceCreate", &preference) == 0 && preference);
    REQUIRE(search(1) == 0 && count == 1 && found[0].workspace == 0);
    // The same search is made once. It says nothing of other searches, nor of those with a handle
    // that no longer exists: a new handle may have its number, also if nobody has destroyed the old
    // one.
    const int first = found[0].reserved[0];
    void *other = nullptr;
    count = 0;
    found[0] = Found{};
    REQUIRE(search(1) == 0 && count == 1 && found[0].reserved[0] == first);
    REQUIRE(set(by, TRANSPOSES_A, 1) == 0 && search(1) == 0 && found[0].reserved[0] == first + 1);
    REQUIRE(set(by, TRANSPOSES_A, 0) == 0 && search(1) == 0 && search(1) == 0);
    REQUIRE(found[0].reserved[0] == first + 2); // what is usual was set
    REQUIRE(math("cublasLtCreate", &other) == 0 && search(1) == 0);
    REQUIRE(found[0].reserved[0] == first + 3 && math("cublasLtDestroy", other) == 0);
    REQUIRE(search(1) == 0 && found[0].reserved[0] == first + 4);
    REQUIRE(math("cublasCreate_v2", &other) == 0 && search(1) == 0);
    REQUIRE(found[0].reserved[0] == first + 5 && math("cublasDestroy_v2", other) == 0);
    for (std::uint64_t i = 0; i < 400; i++) // more than are known
        REQUIRE(prefer(1, i) == 0 && search(1) == 0 && found[0].workspace == i);
    REQUIRE(prefer(1, workspace) == 0 && search(3) == 0 && count == 3);
    REQUIRE(found[2].workspace == workspace && found[2].waves == 1.5F && !found[3].algorithm[0]);
    REQUIRE(search(150) == 0 && count == COUNT_MOST && found[100].workspace == workspace);
    REQUIRE(search(0) == INVALID_VALUE && search(-1) == INVALID_VALUE);
    // Addresses in a search only say how they are aligned: it calculates no product.
    REQUIRE(set(by, BIAS, std::uint64_t{0xACEBA11}) == 0 && search(2) == 0 && count == 2);
    REQUIRE(set(by, BIAS, std::uint64_t{0}) == 0);
    REQUIRE(s.multiply(by, &alpha, &beta, found[1].algorithm) == 0);
    REQUIRE((s.result() == std::vector<float>{1, 2, 3, 4}));
    const std::array<std::uint64_t, 8> none{7};
    REQUIRE(s.multiply(by, &alpha, &beta, none.data()) == INVALID_VALUE);
    // One by one.
    std::array<int, 5> ids{};
    std::array<std::uint64_t, 8> made{};
    REQUIRE(math("cublasLtMatmulAlgoGetIds", s.handle, 68, 0, 0, 0, 0, 0, 5, ids.data(), &count) ==
            0);
    REQUIRE(count == 3 && ids[2] == 9);
    REQUIRE(math("cublasLtMatmulAlgoInit", s.handle, 68, 0, 0, 0, 0, 0, 9, made.data()) == 0);
    unsigned tile = 20, back = 0;
    std::size_t written = 0;
    REQUIRE(math("cublasLtMatmulAlgoConfigSetAttribute", made.data(), 1,
                 static_cast<const void *>(&tile), sizeof(tile)) == 0);
    REQUIRE(math("cublasLtMatmulAlgoConfigGetAttribute", made.data(), 1, static_cast<void *>(&back),
                 sizeof(back), &written) == 0);
    REQUIRE(back == 20 && written == 4);
    back = 7; // no place of no bytes
    written = 0;
    REQUIRE(math("cublasLtMatmulAlgoConfigGetAttribute", made.data(), 1, static_cast<void *>(&back),
                 std::size_t{0}, &written) == 0);
    REQUIRE(back == 7 && written == 4);
    std::vector<unsigned> tiles(635);
    REQUIRE(math("cublasLtMatmulAlgoCapGetAttribute", made.data(), 6, static_cast<void *>(nullptr),
                 std::size_t{0}, &written) == 0 &&
            written == 2400);
    REQUIRE(math("cublasLtMatmulAlgoCapGetAttribute", made.data(), 6,
                 static_cast<void *>(tiles.data()), tiles.size() * 4, &written) == 0);
    REQUIRE(written == 2400 && tiles[599] == 6599);
    found[0].algorithm[0] = 77; // is not touched
    REQUIRE(math("cublasLtMatmulAlgoCheck", s.handle, by, s.of, s.of, s.of, s.of, made.data(),
                 &found[0]) == 0);
    REQUIRE(found[0].algorithm[0] == 77 && found[0].workspace == 11 && found[0].waves == 2.5F);
    REQUIRE(s.multiply(by, &alpha, &beta, made.data()) == 0 && prefer(0, 1) == 0);
    REQUIRE(search(1) == NOT_SUPPORTED);
    return HOLDS(math("cublasLtMatmulPreferenceDestroy", preference) == 0 &&
                 math("cublasLtMatmulDescDestroy", by) == 0);
}

bool transformations(Squares &s)
{
    void *turn = nullptr;
    float alpha = 2, beta = 1;
    const int yes = 1;
    const auto transform = [&](const void *first, const void *second, const float *b) {
        return math("cublasLtMatrixTransform", s.handle, turn, first, s.a, s.of, second, b,
                    b ? s.of : nullptr, s.d, s.of, static_cast<void *>(nullptr));
    };
    REQUIRE(math("cublasLtMatrixTransformDescCreate", &turn, FLOATS) == 0);
    REQUIRE(transform(&alpha, &beta, nullptr) == 0);
    REQUIRE((s.result() == std::vector<float>{2, 4, 6, 8}));
    REQUIRE(math("cublasLtMatrixTransformDescSetAttribute", turn, 2,
                 static_cast<const void *>(&yes), sizeof(yes)) == 0);
    REQUIRE(transform(&alpha, &beta, s.b) == 0);
    REQUIRE((s.result() == std::vector<float>{3, 6, 4, 9}));
    float *both = device_copy<float>({-1, 0});
    REQUIRE(math("cublasLtMatrixTransformDescSetAttribute", turn, 1,
                 static_cast<const void *>(&yes), sizeof(yes)) == 0);
    REQUIRE(transform(both, both + 1, nullptr) == 0);
    REQUIRE((s.result() == std::vector<float>{-1, -3, -2, -4}));
    return HOLDS(math("cublasLtMatrixTransformDescDestroy", turn) == 0);
}

bool versions()
{
    auto *version = preloaded<std::size_t()>("cublasLtGetVersion");
    auto *mask = preloaded<unsigned(unsigned)>("cublasLtDisableCpuInstructionsSetMask");
    int major = 0;
    REQUIRE(math("cublasLtGetProperty", 0, &major) == 0 && major == 13);
    REQUIRE(version() == 130205 && mask(1) == 0 && mask(0) == 1);
    return HOLDS(math("cublasLtLoggerSetLevel", 5) == 0 &&
                 math("cublasLtLoggerSetLevel", 6) == INVALID_VALUE);
}

// Libraries with the names of NVIDIA's: what is looked up in them is the preload's.
bool libraries()
{
    std::istringstream paths(std::getenv("IBX_TEST_LT"));
    unsigned count = 0;
    for (std::string path; std::getline(paths, path, ':'); count++) {
        void *library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
        REQUIRE(library && dlsym(library, "cublasLtMatmul") ==
                               reinterpret_cast<void *>(preloaded<int()>("cublasLtMatmul")));
        const std::string version = path.substr(path.rfind('/') + 1); // as of NVIDIA's
        REQUIRE(dlvsym(library, "ibx_lt_of_remote_gpu", version.c_str()));
    }
    return HOLDS(count == 2);
}

bool all()
{
    Squares s;
    void *other = nullptr;
    REQUIRE(s.a && s.b && s.c && s.d && math("cublasLtCreate", &s.handle) == 0 && s.handle);
    REQUIRE(descriptors() && products(s) && order(s) && order_between_threads(s) && algorithms(s) &&
            transformations(s));
    REQUIRE(versions() && libraries());
    // A handle of cuBLAS is one of this library, too; that of another library is not.
    void *const own = s.handle;
    void *by = product();
    const float alpha = 1, beta = 0;
    REQUIRE(math("cublasCreate_v2", &s.handle) == 0 && s.multiply(by, &alpha, &beta) == 0);
    REQUIRE(math("cublasLtDestroy", s.handle) == NOT_INITIALIZED);
    REQUIRE(math("cublasLtDestroy", static_cast<void *>(nullptr)) == INVALID_VALUE);
    REQUIRE(math("cublasDestroy_v2", s.handle) == 0 && math("cusolverDnCreate", &other) == 0);
    REQUIRE(s.multiply(by, &alpha, &beta) == NOT_INITIALIZED);
    s.handle = other;
    REQUIRE(s.multiply(by, &alpha, &beta) == NOT_INITIALIZED);
    REQUIRE(math("cusolverDnDestroy", other) == 0 && math("cublasLtDestroy", own) == 0);
    REQUIRE(math("cublasLtMatmulDescDestroy", by) == 0);
    REQUIRE(math("cublasLtMatrixLayoutDestroy", s.of) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

} // namespace
} // namespace lt

bool lt_library()
{
    return lt::all();
}
