// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Functions of cuBLAS, cuRAND and cuFFT, which the preload calls by extension requests.
#include "tests/gvirtus/application_math.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace
{

void *blas()
{
    void *made = nullptr;
    return math("cublasCreate_v2", &made) ? nullptr : made;
}

int amax(void *handle, int n, const float *x, int *result)
{
    return math("cublasIsamax_v2", handle, n, x, 1, result);
}

int axpy(void *handle, int n, const float *alpha, const float *x, float *y)
{
    return math("cublasSaxpy_v2", handle, n, alpha, x, 1, y, 1);
}

// Scalars and results in memory of the host, and of the device.
bool scalars(void *handle)
{
    float *x = device_copy<float>({1, -7, 3}), *y = device_copy<float>({10, 20, 30});
    int where = 0, mode = -1;
    float alpha = 2;
    REQUIRE(x && y && amax(handle, 3, x, &where) == 0 && where == 2);
    for (float i = 1; i < 4; i++) { // answered early from the second on
        REQUIRE(axpy(handle, 3, &alpha, x, y) == 0);
        REQUIRE((host_copy(y, 3) == std::vector<float>{10 + 2 * i, 20 - 14 * i, 30 + 6 * i}));
    }
    int *found = device_copy<int>({0});
    float *scale = device_copy<float>({-6});
    REQUIRE(math("cublasSetPointerMode_v2", handle, 1) == 0);
    REQUIRE(math("cublasGetPointerMode_v2", handle, &mode) == 0 && mode == 1);
    int version = 0;
    REQUIRE(math("cublasGetVersion_v2", static_cast<void *>(nullptr), &version) == 0);
    REQUIRE(version == 130000);
    REQUIRE(math("cublasGetVersion_v2", reinterpret_cast<void *>(0x1230), &version) == 1);
    REQUIRE(axpy(handle, 3, scale, x, y) == 0 && amax(handle, 3, x, found) == 0);
    REQUIRE((host_copy(y, 3) == std::vector<float>{10, 20, 30}) && host_copy(found, 1)[0] == 2);
    REQUIRE(math("cublasSetPointerMode_v2", handle, 0) == 0);
    REQUIRE(axpy(handle, 3, &alpha, x, y) == 0 && host_copy(y, 1)[0] == 12);
    float a = 3, b = 4, c = 0, s = 0;
    REQUIRE(math("cublasSrotg_v2", handle, &a, &b, &c, &s) == 0);
    REQUIRE(a == 5 && std::fabs(c - 0.6f) < 1e-6f && std::fabs(s - 0.8f) < 1e-6f);
    // A scalar is as long as its type says.
    std::array<char, 16> bytes;
    random_fill(bytes.data(), bytes.size(), 5);
    char *out = device_copy(std::vector<char>(16, 'x'));
    for (const int compute : {64, 68, 70}) {
        const std::size_t n = compute == 64 ? 2 : compute == 68 ? 4 : 8;
        REQUIRE(math("cublasGemmEx", handle, 0, 0, 1, 1, 1, bytes.data(), x, 0, 1, x, 0, 1,
                     bytes.data(), out, 0, 1, compute, -1) == 0);
        REQUIRE(device_has(out, bytes.data(), n));
    }
    REQUIRE(math("cublasGemmEx", handle, 0, 0, 1, 1, 1, bytes.data(), x, 0, 1, x, 0, 1,
                 bytes.data(), out, 0, 1, 999, -1) == INVALID_VALUE);
    REQUIRE(math("cublasHgemm", handle, 0, 0, 1, 1, 1, &bytes[4], x, 1, x, 1, &bytes[4], out, 1) ==
            0);
    REQUIRE(device_has(out, &bytes[4], 2));
    return HOLDS(cudaFree(x) == 0 && cudaFree(y) == 0);
}

bool batches(void *handle)
{
    double *a = device_copy<double>({1, 2, 3}), *b = device_copy<double>({5, 0, 6, 0, 7});
    double *c = device_copy<double>({1, 1, 1}), alpha = 2, beta = 1;
    REQUIRE(math("cublasDgemmStridedBatched", handle, 0, 0, 1, 1, 1, &alpha, a, 1, 1LL, b, 1, 2LL,
                 &beta, c, 1, 1LL, 3) == 0);
    REQUIRE((host_copy(c, 3) == std::vector<double>{11, 25, 43}));
    int info = 9;
    REQUIRE(math("cublasSgetrsBatched", handle, 0, 3, 1, a, 1, a, c, 1, &info, 1) == 0);
    REQUIRE(info == 0);
    info = 9;
    REQUIRE(math("cublasSgeqrfBatched", handle, 3, 3, a, 3, c, &info, 1) == 0);
    return HOLDS(info == 0);
}

// Eleven arrays of so many numbers each: short ones, too many of them to be short, and long ones.
bool groups(void *handle, std::size_t count)
{
    const std::int64_t much = (std::int64_t{1} << 32) + 1;
    const auto last = [&](auto number) {
        std::vector<decltype(number)> all(count, 0);
        all.back() = number;
        return all;
    };
    const auto transa = last(1), transb = last(2);
    const auto rows = last(much), columns = last(std::int64_t{4}), inner = last(std::int64_t{5}),
               lda = last(std::int64_t{6}), ldb = last(std::int64_t{7}),
               ldc = last(std::int64_t{8}), sizes = last(std::int64_t{9});
    const auto first = last(.5F), second = last(.25F);
    double *all = device_copy(std::vector<double>(11, 0));
    REQUIRE(math("cublasSgemmGroupedBatched_64", handle, transa.data(), transb.data(), rows.data(),
                 columns.data(), inner.data(), first.data(), all, lda.data(), all, ldb.data(),
                 second.data(), all, ldc.data(), static_cast<std::int64_t>(count),
                 sizes.data()) == 0);
    REQUIRE((host_copy(all, 11) ==
             std::vector<double>{static_cast<double>(much), 4, 5, 6, 7, 8, .5, .25, 9, 1, 2}));
    return HOLDS(cudaFree(all) == 0);
}

// The names with integers of 64 bits.
bool of_64_bits(void *handle)
{
    float *x = device_copy<float>({1, -7, 3}), *y = device_copy<float>({10, 20, 30});
    std::int64_t where = -1;
    const std::int64_t n = 3, one = 1, much = (std::int64_t{1} << 32) + 1;
    const float alpha = 2;
    const auto axpy_64 = [&](std::int64_t count) {
        return math("cublasSaxpy_v2_64", handle, count, &alpha, x, one, y, one);
    };
    REQUIRE(math("cublasIsamax_v2_64", handle, n, x, one, &where) == 0 && where == 2);
    REQUIRE(axpy_64(n) == 0 && axpy_64(much) == INVALID_VALUE);
    REQUIRE((host_copy(y, 3) == std::vector<float>{12, 6, 36}));
    REQUIRE(groups(handle, 2) && groups(handle, 60) && groups(handle, 128) && groups(handle, 800));
    const std::vector<float> values = {1, 2, 3};
    REQUIRE(math("cublasSetVector_64", n, std::int64_t{4}, values.data(), one, x, one) == 0);
    REQUIRE(math("cublasSetVector_64", much << 20, much, values.data(), one, x, one) ==
            INVALID_VALUE);
    return HOLDS(host_copy(x, 3) == values && cudaFree(x) == 0 && cudaFree(y) == 0);
}

// Work of a handle comes behind its stream's earlier work, and before the later work there.
bool order(void *handle)
{
    constexpr int n = 4;
    void *stream = nullptr, *back = nullptr;
    float *x = device_copy<float>(std::vector<float>(n, 1)), alpha = 1;
    float *y = device_copy<float>(std::vector<float>(n, 0));
    const std::vector<float> zeros(n, 0);
    REQUIRE(cudaStreamCreate(&stream) == 0);
    REQUIRE(math("cublasSetStream_v2", handle, stream) == 0);
    REQUIRE(math("cublasGetStream_v2", handle, &back) == 0 && back == stream);
    stub_remote()->slow(2000);
    for (unsigned i = 0; i < 20; i++) {
        REQUIRE(cudaMemsetAsync(y, 0, n * sizeof(float), stream) == 0);
        for (unsigned k = 0; k < 3; k++)
            REQUIRE(axpy(handle, n, &alpha, x, y) == 0);
        std::vector<float> got(n);
        REQUIRE(cudaMemcpyAsync(got.data(), y, n * sizeof(float), D2H, stream) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0 && got == std::vector<float>(n, 3));
    }
    stub_remote()->slow(0);
    REQUIRE(math("cublasSetStream_v2", handle, (void *)nullptr) == 0);
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaFree(x) == 0 && cudaFree(y) == 0);
}

// A made-up handle never gets to the library, which would look into it.
bool refused(void *handle)
{
    int where = 0;
    float *x = device_copy<float>({1}), alpha = 1;
    void *generator = nullptr, *gone = blas(), *junk = reinterpret_cast<void *>(0x1234);
    void *legacy = reinterpret_cast<void *>(1);
    REQUIRE(math("curandCreateGenerator", &generator, 100) == 0 && gone);
    REQUIRE(math("cublasDestroy_v2", gone) == 0);
    for (void *none : {junk, generator, gone, (void *)nullptr}) {
        REQUIRE(amax(none, 1, x, &where) == NOT_INITIALIZED);
        REQUIRE(axpy(none, 1, &alpha, x, x) == NOT_INITIALIZED);
        REQUIRE(math("cublasDestroy_v2", none) == NOT_INITIALIZED);
    }
    REQUIRE(math("curandSetStream", handle, legacy) == 101);
    REQUIRE(math("curandSetStream", generator, junk) == 104);
    REQUIRE(math("cublasSetStream_v2", handle, junk) == INVALID_VALUE);
    REQUIRE(amax(handle, 1, reinterpret_cast<float *>(junk), &where) != 0);
    for (const int plan : {-1, 0, 5, 63, 1 << 30})
        REQUIRE(math("cufftExecC2C", plan, x, x, 1) == 1);
    REQUIRE(math("curandDestroyGenerator", generator) == 0);
    return HOLDS(cudaGetLastError() == 0 && amax(handle, 1, x, &where) == 0 && where == 1);
}

bool generators()
{
    void *generator = nullptr, *stream = nullptr;
    float *to = device_copy<float>({0, 0, 0});
    unsigned *counts = device_copy<unsigned>({0, 0});
    REQUIRE(math("curandCreateGenerator", &generator, 77) == 103);
    REQUIRE(math("curandCreateGenerator", &generator, 100) == 0 && generator);
    REQUIRE(cudaStreamCreate(&stream) == 0 && math("curandSetStream", generator, stream) == 0);
    REQUIRE(math("curandSetPseudoRandomGeneratorSeed", generator, 5ull) == 0);
    REQUIRE(math("curandSetGeneratorOrdering", generator, 2) == 0);
    for (float i = 0; i < 3; i++) {
        REQUIRE(math("curandGenerateNormal", generator, to, std::size_t{3}, 100.f, 2.f) == 0);
        REQUIRE(cudaStreamSynchronize(stream) == 0);
        REQUIRE((host_copy(to, 3) == std::vector<float>{114 + 6 * i, 116 + 6 * i, 118 + 6 * i}));
    }
    REQUIRE(math("curandGeneratePoisson", generator, counts, std::size_t{2}, 1000.) == 0);
    REQUIRE((host_copy(counts, 2) == std::vector<unsigned>{1016, 1017}));
    return HOLDS(math("curandDestroyGenerator", generator) == 0);
}

bool plans()
{
    int plan = -1, other = -1, n[2] = {8, 9};
    std::size_t work = 0;
    int *x = device_copy<int>({5}), *y = device_copy<int>({0});
    REQUIRE(math("cufftPlanMany", &plan, 2, n, n, 1, 72, n, 1, 72, 0x29, 3) == 0 && plan > 0);
    REQUIRE(math("cufftExecC2C", plan, x, y, -1) == 0 && host_copy(y, 1)[0] == 5 + 810 - 1);
    REQUIRE(math("cufftCreate", &other) == 0 && other != plan);
    REQUIRE(math("cufftMakePlanMany", other, 1, n, (int *)nullptr, 1, 0, (int *)nullptr, 1, 0, 0x29,
                 3, (std::size_t *)nullptr) == 4);
    REQUIRE(math("cufftGetSize", plan, (std::size_t *)nullptr) == 4);
    REQUIRE(math("cufftMakePlanMany", other, 1, n, (int *)nullptr, 1, 0, (int *)nullptr, 1, 0, 0x29,
                 3, &work) == 0);
    REQUIRE(work == 800 && math("cufftExecC2C", other, x, y, 1) == 0);
    REQUIRE(host_copy(y, 1)[0] == 5 + 800 + 1);
    // More dimensions than there are: as the library says.
    int many[10] = {1};
    REQUIRE(math("cufftPlanMany", &plan, 10, many, many, 1, 1, many, 1, 1, 0x29, 1) == 4);
    REQUIRE(math("cufftPlanMany", &plan, -1, many, many, 1, 1, many, 1, 1, 0x29, 1) == 4);
    REQUIRE(math("cufftDestroy", other) == 0 && math("cufftExecC2C", other, x, y, 1) == 1);
    return true;
}

bool vectors()
{
    const std::vector<float> values = {1, 2, 3, 4, 5, 6};
    std::vector<float> got(6, 0);
    float *at = device_copy(std::vector<float>(12, 9));
    REQUIRE(math("cublasSetVector", 3, 4, values.data(), 2, at, 3) == 0);
    const auto there = host_copy(at, 7);
    REQUIRE((there == std::vector<float>{1, 9, 9, 3, 9, 9, 5}));
    REQUIRE(math("cublasGetVector", 3, 4, at, 3, got.data(), 1) == 0);
    REQUIRE((got == std::vector<float>{1, 3, 5, 0, 0, 0}));
    REQUIRE(math("cublasSetMatrix", 2, 2, 4, values.data(), 3, at, 2) == 0);
    REQUIRE((host_copy(at, 4) == std::vector<float>{1, 2, 4, 5}));
    REQUIRE(math("cublasGetMatrix", 2, 2, 4, at, 2, got.data(), 3) == 0);
    REQUIRE((got == std::vector<float>{1, 2, 5, 4, 5, 0}));
    return HOLDS(math("cublasSetVector", 3, 0, values.data(), 1, at, 1) == INVALID_VALUE);
}

// Descriptors that other descriptors are made of, and that the library itself reads.
bool descriptors(void *other)
{
    void *handle = nullptr, *x = nullptr, *y = nullptr, *junk = reinterpret_cast<void *>(0x1234);
    float *one = device_copy<float>({3, 4}), *two = device_copy<float>({5}), result = 0;
    std::int64_t size = 0;
    void *values = nullptr;
    int type = 9;
    const auto times = [&](void *of, void *with, float *to) {
        return math("cusparseSpVV", of, 0, with, y, to, 0, (void *)nullptr);
    };
    REQUIRE(math("cusparseCreate", &handle) == 0 && handle);
    REQUIRE(math("cusparseCreateSpVec", &x, std::int64_t{2}, std::int64_t{2}, one, one, 2, 0, 0) ==
            0);
    REQUIRE(math("cusparseCreateDnVec", &y, std::int64_t{1}, two, 0) == 0 && x && y);
    REQUIRE(math("cusparseDnVecGet", y, &size, &values, &type) == 0);
    REQUIRE(size == 1 && values == two && type == 0);
    REQUIRE(times(handle, x, &result) == 0 && result == 15);
    float by = 2, with = 10;
    REQUIRE(math("cusparseAxpby", handle, &by, x, &with, y) == 0 && host_copy(two, 1)[0] == 56);
    by = 0, with = 1;
    REQUIRE(math("cusparseAxpby", handle, &by, x, &with, y) == 0 && host_copy(two, 1)[0] == 56);
    REQUIRE(math("cusparseAxpby", handle, &by, x, &with, x) == 3);
    for (const int half : {2, 14}) { // scalars of half precision's vectors are floats
        void *of_halves = nullptr;
        by = 1.5, with = 2;
        float *to = device_copy<float>({10});
        REQUIRE(math("cusparseCreateDnVec", &of_halves, std::int64_t{1}, to, half) == 0);
        REQUIRE(math("cusparseAxpby", handle, &by, x, &with, of_halves) == 0);
        REQUIRE(host_copy(to, 1)[0] == 1.5F * host_copy(one, 1)[0] + 20);
        REQUIRE(math("cusparseDestroyDnVec", of_halves) == 0);
    }
    REQUIRE(times(handle, x, &result) == 0 && result == 3 * 56);
    // Handles of another type and of another library, and made-up ones.
    for (void *none : {y, handle, other, junk, (void *)nullptr})
        REQUIRE(times(handle, none, &result) == 3);
    REQUIRE(times(x, x, &result) == 1 && times(other, x, &result) == 1);
    REQUIRE(math("cusparseSetPointerMode", handle, 1) == 0 && times(handle, x, one) == 0);
    REQUIRE(host_copy(one, 1)[0] == 3 * 56 && math("cusparseDestroySpVec", x) == 0);
    REQUIRE(times(handle, x, one) == 3 && math("cusparseDestroyDnVec", y) == 0);
    return HOLDS(math("cusparseDestroy", (void *)nullptr) == 0 &&
                 math("cusparseDestroy", handle) == 0);
}

// Tables of the library, which stay where they are.
bool random_tables()
{
    constexpr std::size_t dimensions = 20000;
    const std::uint32_t *vectors = nullptr, *scrambled = nullptr, *again = nullptr;
    const std::uint64_t *constants = nullptr, *none = nullptr;
    REQUIRE(math("curandGetDirectionVectors32", &vectors, 101) == 0);
    REQUIRE(math("curandGetDirectionVectors32", &scrambled, 102) == 0);
    REQUIRE(math("curandGetDirectionVectors32", &again, 101) == 0 && again == vectors);
    for (std::size_t i = 0; i < dimensions * 32; i++)
        REQUIRE(vectors[i] == i + 101 && scrambled[i] == i + 102);
    REQUIRE(math("curandGetScrambleConstants64", &constants) == 0);
    for (std::size_t i = 0; i < dimensions; i++)
        REQUIRE(constants[i] == i << 33);
    REQUIRE(math("curandGetDirectionVectors32", &again, 103) == 104);
    REQUIRE(math("curandGetDirectionVectors64", &none, 102) == 104);
    REQUIRE(math("curandGetDirectionVectors64", &none, 103) == 203); // the double has none
    return HOLDS(!none && cudaGetLastError() == 0);
}

// The function with the most arguments.
bool random_decomposition()
{
    void *handle = nullptr, *parameters = nullptr, *none = nullptr;
    int *info = device_copy<int>({0});
    double *a = device_copy<double>({1});
    std::size_t device = 0, host = 0;
    const auto number = [](int of) { return std::int64_t{of}; };
    REQUIRE(math("cusolverDnCreate", &handle) == 0 &&
            math("cusolverDnCreateParams", &parameters) == 0);
    REQUIRE(math("cusolverDnXgesvdr_bufferSize", handle, parameters, 'S', 'N', number(1), number(2),
                 number(3), number(4), number(5), 1, a, number(6), 0, none, 4, a, number(7), 5,
                 none, number(9), 1, &device, &host) == 0);
    REQUIRE(device == 8 && host == 24);
    std::vector<char> workspace(host);
    for (const std::size_t bytes : {host, host - 1})
        REQUIRE(math("cusolverDnXgesvdr", handle, parameters, 'S', 'N', number(1), number(2),
                     number(3), number(4), number(5), 1, a, number(6), 0, none, 4, a, number(7), 5,
                     none, number(9), 1, a, device, workspace.data(), bytes,
                     info) == (bytes == host ? 0 : 3));
    REQUIRE(host_copy(info, 1)[0] == 1234567);
    REQUIRE(math("cusolverDnDestroyParams", parameters) == 0);
    return HOLDS(math("cusolverDnDestroy", handle) == 0);
}

// A function that works in memory of the host gets memory of the back end.
bool solvers()
{
    void *handle = nullptr, *parameters = nullptr, *none = nullptr;
    int *info = device_copy<int>({0}), size = 0;
    double *a = device_copy<double>({1});
    const auto factor = [&](std::size_t bytes) {
        return math("cusolverDnXgetrf", handle, parameters, std::int64_t{6}, std::int64_t{7}, 1, a,
                    std::int64_t{6}, (void *)nullptr, 1, a, std::size_t{8}, (void *)nullptr, bytes,
                    info);
    };
    REQUIRE(math("cusolverDnCreate", &handle) == 0 &&
            math("cusolverDnCreateParams", &parameters) == 0);
    REQUIRE(math("cusolverDnDgetrf_bufferSize", handle, 6, 7, a, 6, &size) == 0 && size == 42);
    REQUIRE(factor(1 << 20) == 0 && host_copy(info, 1)[0] == 42 && factor(0) == 0);
    REQUIRE(factor(std::size_t{1} << 40) == 3);
    std::swap(parameters, none); // the library uses its own defaults then
    REQUIRE(cudaMemset(info, 0, sizeof(*info)) == 0 && factor(8) == 0);
    REQUIRE(host_copy(info, 1)[0] == 42);
    std::swap(parameters, none);
    REQUIRE(math("cusolverDnDestroyParams", parameters) == 0 && factor(8) == 3);
    REQUIRE(math("cusolverDnDestroyParams", none) == 0);
    return HOLDS(math("cusolverDnDestroy", handle) == 0);
}

// A zero pivot is a status of its own, and where it is, is a result nevertheless.
static bool finds_pivot(void *sparse, int *on_device)
{
    void *info = nullptr;
    int at = -5;
    REQUIRE(math("cusparseCreateBsrilu02Info", &info) == 0);
    REQUIRE(math("cusparseXbsrilu02_zeroPivot", sparse, info, on_device) == 9);
    REQUIRE(host_copy(on_device, 1)[0] == 7 && math("cusparseSetPointerMode", sparse, 0) == 0);
    REQUIRE(math("cusparseXbsrilu02_zeroPivot", sparse, info, &at) == 0 && at == -1);
    REQUIRE(math("cusparseXbsrilu02_zeroPivot", sparse, info, &at) == 9 && at == 7);
    REQUIRE(math("cusparseDestroyBsrilu02Info", (void *)nullptr) == 0);
    return HOLDS(math("cusparseDestroyBsrilu02Info", info) == 0);
}

// Functions of cuSPARSE for single matrices: a result that is in memory of either side, and an
// object that one call fills and another one uses.
static bool sorts_matrix(void *matrix)
{
    void *sparse = nullptr, *info = nullptr;
    float *dense = device_copy<float>({1, 0, 2, 3, 0, 4});
    double *values = device_copy<double>({5, 6});
    int *each = device_copy<int>({9, 9, 9}), total = 9;
    const auto sort = [&](const char *name, void *with) {
        return math(name, sparse, 1, 2, 2, matrix, values, each, each, with, nullptr);
    };
    REQUIRE(math("cusparseCreate", &sparse) == 0);
    REQUIRE(math("cusparseSnnz", sparse, 0, 2, 3, matrix, dense, 2, each, &total) == 0);
    REQUIRE(total == 4 && (host_copy(each, 3) == std::vector<int>{2, 2, 9}));
    REQUIRE(math("cusparseSetPointerMode", sparse, 1) == 0);
    REQUIRE(math("cusparseSnnz", sparse, 1, 2, 3, matrix, dense, 2, each, each) == 0);
    REQUIRE((host_copy(each, 3) == std::vector<int>{4, 2, 1}));
    REQUIRE(math("cusparseCreateCsru2csrInfo", &info) == 0 && info);
    REQUIRE(sort("cusparseDcsru2csr", info) == 0 && host_copy(values, 2)[0] == 6);
    REQUIRE(sort("cusparseDcsr2csru", info) == 0 && host_copy(values, 2)[0] == 5);
    REQUIRE(sort("cusparseDcsru2csr", matrix) == 3 && sort("cusparseDcsru2csr", nullptr) == 3);
    REQUIRE(finds_pivot(sparse, each));
    REQUIRE(math("cusparseDestroyCsru2csrInfo", info) == 0);
    return HOLDS(sort("cusparseDcsr2csru", info) == 3 && math("cusparseDestroy", sparse) == 0);
}

// The same for systems in host memory. Each of these functions is there.
bool solves_on_host(void *handle, void *matrix)
{
    const double values[] = {2, 4, 0.01}, b[] = {8, 8, 8};
    const int places[] = {0, 1, 2, 3};
    double x[3] = {};
    int singular = 9;
    for (const char *name : {"cusolverSpDcsrlsvluHost", "cusolverSpDcsrlsvqrHost"}) {
        const auto solve = [&](void *with, int n, const double *right, double tolerance) {
            return math(name, with, n, n, matrix, values, places, places, right, tolerance, 0, x,
                        &singular);
        };
        REQUIRE(solve(handle, 3, b, 0.001) == 0 && singular == -1);
        REQUIRE(x[0] == 4 && x[1] == 2 && x[2] == 800);
        REQUIRE(solve(handle, 3, b, 0.1) == 0 && singular == 2 && x[2] == 0);
        REQUIRE(solve(handle, 3, nullptr, 0.1) == 3 && solve(handle, 0, b, 0.1) == 3);
        REQUIRE(solve(handle, -1, b, 0.1) == 3 && solve(matrix, 3, b, 0.1) == 1);
    }
    for (const std::string method : {"csrlsvluHost", "csrlsvqrHost", "csrlsvcholHost"}) {
        for (const char *of : {"cusolverSpS", "cusolverSpC"})
            REQUIRE(math((of + method).c_str(), handle, 0, 0, matrix, values, places, places, b,
                         0.1f, 0, x, &singular) == 3);
        for (const char *of : {"cusolverSpD", "cusolverSpZ"})
            REQUIRE(math((of + method).c_str(), handle, 0, 0, matrix, values, places, places, b,
                         0.1, 0, x, &singular) == 3);
    }
    return true;
}

// ... also while the handle's stream is captured: the device has no part in it natively.
bool solves_on_host_unnoticed(void *handle, void *matrix)
{
    void *stream = nullptr, *graph = nullptr, *none = nullptr;
    std::size_t nodes = 9;
    REQUIRE(cudaStreamCreate(&stream) == 0 && math("cusolverSpSetStream", handle, stream) == 0);
    REQUIRE(math("cudaStreamBeginCapture", stream, 0) == 0 && solves_on_host(handle, matrix));
    REQUIRE(math("cudaStreamEndCapture", stream, &graph) == 0);
    REQUIRE(math("cudaGraphGetNodes", graph, none, &nodes) == 0 && nodes == 0);
    REQUIRE(math("cusolverSpSetStream", handle, none) == 0);
    return HOLDS(cudaStreamDestroy(stream) == 0 && cudaGetLastError() == 0);
}

// Solvers for sparse matrices, which cuSPARSE describes.
bool sparse_solvers()
{
    void *handle = nullptr, *matrix = nullptr, *info = nullptr, *none = nullptr, *again = nullptr;
    double *values = device_copy<double>({2, 4, 0.01}), *b = device_copy<double>({8, 8, 8});
    double *x = device_copy<double>({0, 0, 0});
    int *places = device_copy<int>({0, 1, 2, 3}), singular = 9, algorithms[2] = {0, 0};
    const auto solve = [&](void *with, void *of, double tolerance) {
        return math("cusolverSpDcsrlsvqr", with, 3, 3, of, values, places, places, b, tolerance, 0,
                    x, &singular);
    };
    REQUIRE(math("cusolverSpCreate", &handle) == 0 && handle);
    REQUIRE(math("cusparseCreateMatDescr", &matrix) == 0);
    REQUIRE(math("cusparseSetMatType", matrix, 2) == 0 && math("cusparseGetMatType", matrix) == 2);
    REQUIRE(solve(handle, matrix, 0.001) == 0 && singular == -1);
    REQUIRE((host_copy(x, 3) == std::vector<double>{4, 2, 800}));
    REQUIRE(solve(handle, matrix, 0.1) == 0 && singular == 2 && host_copy(x, 3)[2] == 0);
    REQUIRE(solves_on_host(handle, matrix) && solves_on_host_unnoticed(handle, matrix));
    REQUIRE(math("cusolverSpSetStream", handle, reinterpret_cast<void *>(0x1234)) == 3);
    void *stream = nullptr; // a stream that no longer exists
    REQUIRE(cudaStreamCreate(&stream) == 0 && math("cusolverSpSetStream", handle, stream) == 0);
    REQUIRE(solve(handle, matrix, 0.1) == 0 && solves_on_host(handle, matrix));
    REQUIRE(cudaStreamDestroy(stream) == 0);
    REQUIRE(solve(handle, matrix, 0.1) == 3 && solve(handle, matrix, 0.1) == 0);
    REQUIRE(math("cusolverSpCreateCsrqrInfo", &info) == 0);
    for (void *wrong : {info, handle, none})
        REQUIRE(solve(handle, wrong, 0.1) == 3);
    REQUIRE(solve(matrix, matrix, 0.1) == 1 && math("cusolverSpDestroyCsrqrInfo", info) == 0);
    REQUIRE(sorts_matrix(matrix));
    REQUIRE(math("cusparseDestroyMatDescr", matrix) == 0 && solve(handle, matrix, 0.1) == 3);
    REQUIRE(math("cusolverSpDestroy", handle) == 0 && solve(handle, matrix, 0.1) == 1);
    // A handle that is the last argument.
    const auto reset = [&](void *of) {
        return math("cusolverRfResetValues", 7, 3, places, places, values, places, places, of);
    };
    REQUIRE(math("cusolverRfCreate", &again) == 0 && reset(again) == 0 && reset(none) == 1);
    REQUIRE(math("cusolverRfGetAlgs", again, &algorithms[0], &algorithms[1]) == 0);
    REQUIRE(algorithms[0] == 732 && algorithms[1] == 5 && math("cusolverRfDestroy", again) == 0);
    return HOLDS(reset(again) == 1);
}

// Numbers in memory of the host that may be absent; as many outputs as there are matrices.
bool dense_solvers()
{
    void *handle = nullptr, *parameters = nullptr;
    double low = 3, high = 45, *const none = nullptr;
    std::int64_t found = 0;
    std::size_t on_device = 0, on_host = 9;
    float *a = device_copy<float>({1});
    int *info = device_copy<int>({7});
    const auto size = [&](int range, const double *from, const double *to) {
        return math("cusolverDnXsyevdx_bufferSize", handle, parameters, 1, range, 0,
                    std::int64_t{5}, 1, a, std::int64_t{5}, from, to, std::int64_t{2},
                    std::int64_t{9}, &found, 1, a, 1, &on_device, &on_host);
    };
    REQUIRE(math("cusolverDnCreate", &handle) == 0 &&
            math("cusolverDnCreateParams", &parameters) == 0);
    REQUIRE(size(1001, &low, &high) == 0 && found == 42 && on_device == 7 && on_host == 8);
    REQUIRE(size(1000, none, none) == 0 && found == 0 && on_host == 0);
    REQUIRE(size(1001, none, &high) == 3);
    std::vector<double> residuals(101, -1);
    REQUIRE(math("cusolverDnSgesvdaStridedBatched", handle, 0, 1, 1, 1, a, 1, 1LL, a, 1LL, a, 1,
                 1LL, a, 1, 1LL, a, 1, info, residuals.data(), 100) == 0);
    REQUIRE(residuals[99] == 49.5 && residuals[100] == -1 && host_copy(info, 1)[0] == 0);
    return HOLDS(math("cusolverDnDestroyParams", parameters) == 0 &&
                 math("cusolverDnDestroy", handle) == 0);
}

bool attributes()
{
    void *matrix = nullptr;
    float *values = device_copy<float>({1});
    int fill = 1, back = 0;
    REQUIRE(math("cusparseCreateCsr", &matrix, std::int64_t{1}, std::int64_t{1}, std::int64_t{1},
                 values, values, values, 2, 2, 0, 0) == 0);
    REQUIRE(math("cusparseSpMatSetAttribute", matrix, 0, &fill, sizeof(fill)) == 0);
    REQUIRE(math("cusparseSpMatGetAttribute", matrix, 0, &back, sizeof(back)) == 0 && back == 1);
    REQUIRE(math("cusparseSpMatGetAttribute", matrix, 1, &back, sizeof(back)) == 3);
    REQUIRE(math("cusparseDestroySpMat", (void *)nullptr) == 0);
    return HOLDS(math("cusparseDestroySpMat", matrix) == 0);
}

} // namespace

bool math_libraries()
{
    void *handle = blas();
    REQUIRE(handle && scalars(handle) && batches(handle) && order(handle) && refused(handle));
    REQUIRE(of_64_bits(handle));
    REQUIRE(generators() && plans() && vectors() && descriptors(handle) && solvers());
    REQUIRE(random_decomposition() && random_tables());
    REQUIRE(sparse_solvers() && dense_solvers() && attributes() && host_matrices());
    bool other = false; // a thread whose first call is one of these
    std::thread([&] {
        void *made = blas();
        float *x = device_copy<float>({1, 4}), alpha = 1;
        other = made && axpy(made, 2, &alpha, x, x) == 0 && host_copy(x, 2)[1] == 8 &&
                math("cublasDestroy_v2", made) == 0;
    }).join();
    REQUIRE(other);
    auto *text = preloaded<const char *(int)>("cublasGetStatusString");
    REQUIRE(!std::strcmp(text(7), "an unsupported value or parameter was passed to the function"));
    REQUIRE(!std::strcmp(text(2), text(-1)) && math("cublasDestroy_v2", handle) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

// The library's call is the program's first call.
bool math_library_first()
{
    void *handle = blas();
    const float alpha = 2;
    float *x = device_copy<float>({1, -7, 3});
    int where = 0;
    REQUIRE(handle && x && amax(handle, 3, x, &where) == 0 && where == 2);
    REQUIRE(math("cublasSetPointerMode_v2", handle, 1) == 0);
    const float *scale = device_copy<float>({2});
    REQUIRE(axpy(handle, 3, scale, x, x) == 0 && host_copy(x, 1)[0] == 3 * alpha / 2);
    return HOLDS(math("cublasDestroy_v2", handle) == 0);
}

// With a back end without these libraries.
bool no_math_libraries()
{
    void *handle = nullptr;
    int plan = -1;
    REQUIRE(math("cublasCreate_v2", &handle) == NOT_SUPPORTED && !handle);
    // The program's own cuDNN gets no handle that a back end may have made.
    const std::string all = std::getenv("IBX_TEST_MATH"), name = "libcudnn.so";
    const std::size_t end = all.find(name) + name.size(), colon = all.rfind(':', end);
    const std::string own = all.substr(colon + 1, end - colon - 1); // also without a colon
    std::size_t n = 0;
    REQUIRE(dlopen(own.c_str(), RTLD_NOW | RTLD_LOCAL) && !math("cudnnGetProperty", 0, &plan));
    REQUIRE(plan == 9 && (plan = -1)); // it is asked
    handle = reinterpret_cast<void *>(16);
    REQUIRE(math("cudnnGetTensorSizeInBytes", handle, &n) == 3000);
    REQUIRE(math("cudnnBackendFinalize", handle) == 3000);
    return HOLDS(math("cufftCreate", &plan) == 16 && plan == -1 && cudaGetLastError() == 0);
}

// The loader loads a module of Python with all functions that it names, or not at all.
bool absent_from_math()
{
    float a = 0;
    for (int round = 0; round < 2; round++) {
        REQUIRE(math("cusparseSnnz_compress", nullptr, 1, nullptr, &a, nullptr, nullptr, nullptr,
                     0.5f) == 10);
        REQUIRE(math("cusparseCreateColorInfo", nullptr) == 10);
        REQUIRE(math("cusolverSpCcsreigvsi", nullptr, 1, 1) == 9);
        REQUIRE(math("cublasXtSspmm", nullptr, 0, 0) == NOT_SUPPORTED);
        REQUIRE(math("cufftXtSetWorkArea", 1, nullptr) == 16);
        REQUIRE(math("cufftXtExecDescriptorZ2Z", 1, nullptr, nullptr, 1) == 16);
    }
    return HOLDS(cudaGetLastError() == 0);
}

// Many calls that are answered early, by threads with a stream and a handle each.
bool math_threads()
{
    constexpr int CALLS = 3000; // with fewer, a message seldom ends in a request
    constexpr std::size_t THREADS = 4;
    std::array<bool, THREADS> good{};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < THREADS; i++)
        threads.emplace_back([&good, i] {
            void *stream = nullptr, *handle = nullptr;
            float *x = device_copy<float>({1, 1}), *y = device_copy<float>({0, 0}), alpha = 1;
            bool all = !cudaStreamCreate(&stream) && (handle = blas()) && x && y;
            for (int call = 0; call < CALLS && all; call++)
                all = math("cublasSetStream_v2", handle, stream) == 0 &&
                      axpy(handle, 2, &alpha, x, y) == 0;
            good[i] = all && cudaStreamSynchronize(stream) == 0 && host_copy(y, 2)[1] == CALLS;
        });
    for (std::thread &thread : threads)
        thread.join();
    return HOLDS(std::all_of(good.begin(), good.end(), [](bool is) { return is; }));
}

// A process of the back end that other programs use, too, gives back what a program leaves.
bool leaves_math_libraries()
{
    void *generator = nullptr;
    int plan = 0;
    REQUIRE(blas() && math("cufftCreate", &plan) == 0);
    return HOLDS(math("curandCreateGenerator", &generator, 100) == 0);
}
