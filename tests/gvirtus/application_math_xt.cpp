// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Functions of cuBLASXt, whose matrices are in memory of the host or of the device.
#include "tests/gvirtus/application_math.h"

#include <cstdint>

namespace xt
{

constexpr int TRANSPOSED = 1, RIGHT = 1, INTERNAL_ERROR = 14;

// C = 2 A B + 3 C; A has two rows and three columns, B three rows and two columns. The leading
// dimensions of A and C are longer than their columns.
const std::vector<float> a = {1, 4, -9, 2, 5, -9, 3, 6}, b = {1, 2, 3, 4, 5, 6},
                         c = {1, 1, -9, 1, 1}, product = {31, 67, -9, 67, 157};
const std::vector<float> a_transposed = {1, 2, 3, 4, 5, 6};

static int multiply(void *handle, int transa, const float *first, std::size_t lda,
                    const float *second, float *out, std::size_t ldc, float beta = 3)
{
    const float alpha = 2;
    return math("cublasXtSgemm", handle, transa, 0, std::size_t{2}, std::size_t{2}, std::size_t{3},
                &alpha, first, lda, second, std::size_t{3}, &beta, out, ldc);
}

static unsigned long copies()
{
    const ibx_double_stats now = stub_remote()->stats();
    return now.copies_sync + now.copies_async;
}

// What is multiplied by 0 is not copied to the device.
static bool products_alone(void *handle)
{
    unsigned long made[2];
    for (const float beta : {0.F, 3.F}) {
        std::vector<float> out = c;
        const unsigned long before = copies();
        REQUIRE(multiply(handle, 0, a.data(), 3, b.data(), out.data(), 3, beta) == 0);
        made[beta != 0] = copies() - before;
        REQUIRE(out == (beta != 0 ? product : std::vector<float>{28, 64, -9, 64, 154}));
    }
    return HOLDS(made[0] && made[0] < made[1]);
}

static bool products(void *handle)
{
    std::vector<float> out = c;
    REQUIRE(multiply(handle, 0, a.data(), 3, b.data(), out.data(), 3) == 0 && out == product);
    out = c;
    REQUIRE(multiply(handle, TRANSPOSED, a_transposed.data(), 3, b.data(), out.data(), 3) == 0);
    REQUIRE(out == product);
    // Natively a product over nothing leaves C as it is.
    const float three = 3;
    std::vector<float> same = c;
    REQUIRE(math("cublasXtSgemm", handle, 0, 0, std::size_t{2}, std::size_t{2}, std::size_t{0},
                 &three, a.data(), std::size_t{3}, b.data(), std::size_t{3}, &three, same.data(),
                 std::size_t{3}) == 0);
    REQUIRE(same == c);
    float *on_device = device_copy(a), *result = device_copy(c);
    REQUIRE(multiply(handle, 0, on_device, 3, b.data(), result, 3) == 0);
    REQUIRE(host_copy(result, c.size()) == product);
    REQUIRE(multiply(handle, 0, a.data(), 1, b.data(), out.data(), 3) == INVALID_VALUE);
    REQUIRE(multiply(handle, 0, a.data(), 3, nullptr, out.data(), 3) == INVALID_VALUE);
    return HOLDS(out == product && cudaFree(on_device) == 0 && cudaFree(result) == 0);
}

// The doubles of these write into the last matrix: how many rows each matrix has at the device, and
// the last number of the first one, so all of it is there.
static bool shapes(void *handle)
{
    const std::size_t m = 2, n = 3, k = 4;
    std::vector<double> first(16), second(16), out(16);
    for (std::size_t i = 0; i < first.size(); i++)
        first[i] = static_cast<double>(i);
    const double one = 1;
    const auto is = [&](double rows, double last) { // and those behind the matrix are unharmed
        const bool good = out[0] == rows && out[1] == last && out[15] == 0;
        out.assign(16, 0);
        return good;
    };
    for (const int side : {0, RIGHT}) {
        const std::size_t order = side ? n : m;
        const double last = static_cast<double>((order - 1) * 4 + order - 1);
        REQUIRE(math("cublasXtDsymm", handle, side, 0, m, n, &one, first.data(), k, second.data(),
                     k, &one, out.data(), k) == 0);
        REQUIRE(is(static_cast<double>(order), last));
        REQUIRE(math("cublasXtDtrmm", handle, side, 0, 0, 0, m, n, &one, first.data(), k,
                     second.data(), k, out.data(), k) == 0);
        REQUIRE(is(static_cast<double>(order), last));
        REQUIRE(math("cublasXtDtrsm", handle, side, 0, 0, 0, m, n, &one, first.data(), k,
                     out.data(), k) == 0);
        REQUIRE(is(static_cast<double>(order), last));
    }
    REQUIRE(math("cublasXtDsyrk", handle, 0, 0, n, m, &one, first.data(), k, &one, out.data(), k) ==
            0);
    REQUIRE(is(3, 6));
    REQUIRE(math("cublasXtDsyrk", handle, 0, TRANSPOSED, n, m, &one, first.data(), k, &one,
                 out.data(), k) == 0);
    return HOLDS(is(2, 9));
}

static bool settings(void *handle)
{
    int value = 0;
    REQUIRE(math("cublasXtGetBlockDim", handle, &value) == 0 && value == 1024);
    REQUIRE(math("cublasXtSetBlockDim", handle, 64) == 0);
    REQUIRE(math("cublasXtGetBlockDim", handle, &value) == 0 && value == 64);
    REQUIRE(math("cublasXtSetBlockDim", handle, 0) == INVALID_VALUE);
    REQUIRE(math("cublasXtSetPinningMemMode", handle, 5) == INVALID_VALUE);
    REQUIRE(math("cublasXtSetPinningMemMode", handle, 1) == 0);
    REQUIRE(math("cublasXtGetPinningMemMode", handle, &value) == 0 && value == 1);
    return HOLDS(math("cublasXtSetCpuRatio", handle, 0, 0, 0.5F) == 0);
}

} // namespace xt

bool host_matrices()
{
    void *handle = nullptr, *const none = nullptr;
    int device = 0, boards = 0, absent[] = {0, 99};
    float out[4];
    REQUIRE(math("cublasXtCreate", &handle) == 0 && handle);
    REQUIRE(xt::multiply(handle, 0, xt::a.data(), 3, xt::b.data(), out, 3) == NOT_INITIALIZED);
    REQUIRE(math("cublasXtDeviceSelect", handle, 2, absent) == xt::INTERNAL_ERROR);
    REQUIRE(math("cublasXtDeviceSelect", handle, 1, &device) == 0);
    REQUIRE(math("cublasXtDeviceSelect", handle, 1, &device) == INVALID_VALUE); // once
    REQUIRE(math("cublasXtGetNumBoards", 1, &device, &boards) == 0 && boards == 1);
    REQUIRE(xt::products(handle) && xt::products_alone(handle) && xt::shapes(handle) &&
            xt::settings(handle));
    REQUIRE(math("cublasXtDestroy", handle) == 0 &&
            math("cublasXtDestroy", none) == NOT_INITIALIZED);
    return HOLDS(cudaGetLastError() == 0);
}
