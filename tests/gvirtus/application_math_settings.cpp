// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Settings of cuBLAS's handles: they are in force when the handle is used, and a setting that is in
// force already makes no request.
#include "tests/gvirtus/application_math.h"

#include <thread>
#include <vector>

namespace settings
{
namespace
{

struct Handle {
    void *handle = nullptr, *stream = nullptr, *other = nullptr;
    char *memory = device_memory(2 * BYTES_MOST);
    float *y = device_copy<float>({9, 9, 9});

    int select(void *which) { return math("cublasSetStream_v2", handle, which); }
    int workspace(std::size_t n = BYTES_MOST)
    {
        return math("cublasSetWorkspace_v2", handle, static_cast<void *>(memory), n);
    }
    int mode(int which) { return math("cublasSetMathMode", handle, which); }
    int processors(int n) { return math("cublasSetSmCountTarget", handle, n); }
    int work() { return math("cublasScopy_v2", handle, 1, y, 1, y, 1); }
    // With what: a workspace, the mode, processors.
    bool works(float space, float mode, float processors)
    {
        REQUIRE(work() == 0 && cudaDeviceSynchronize() == 0);
        return HOLDS(host_copy(y, 3) == (std::vector<float>{space, mode, processors}));
    }
};

// As PyTorch does around each product.
bool around(Handle &h, int mode)
{
    return h.select(h.stream) == 0 && h.workspace() == 0 && h.mode(mode) == 0 && h.work() == 0 &&
           h.mode(0) == 0;
}

bool asks_nobody(Handle &h)
{
    REQUIRE(around(h, 2) && around(h, 2) && cudaDeviceSynchronize() == 0);
    int before = 0, behind = 0; // settings
    REQUIRE(math("cublasGetProperty", 0, &before) == 0 && before > 0);
    for (unsigned i = 0; i < 50; i++)
        REQUIRE(around(h, 2));
    REQUIRE(math("cublasGetProperty", 0, &behind) == 0 && behind == before);
    return HOLDS(h.works(1, 0, 0));
}

bool is_in_force(Handle &h)
{
    // The same stream once more: the workspace is the library's own again.
    REQUIRE(h.select(h.stream) == 0 && h.works(0, 0, 0));
    REQUIRE(h.workspace() == 0 && h.mode(3) == 0 && h.works(1, 3, 0));
    REQUIRE(h.mode(2) == 0 && h.mode(3) == 0 && h.works(1, 3, 0));
    REQUIRE(h.mode(0) == 0 && h.processors(5) == 0 && h.works(1, 0, 5));
    REQUIRE(h.processors(0) == 0 && h.processors(5) == 0 && h.processors(0) == 0);
    REQUIRE(h.works(1, 0, 0));
    // Another stream: the handle's work comes behind that of the stream; and back.
    void *is = nullptr;
    REQUIRE(h.select(h.other) == 0 && h.works(0, 0, 0) && h.select(h.stream) == 0);
    REQUIRE(h.workspace() == 0 && h.select(h.other) == 0 && h.workspace() == 0);
    REQUIRE(math("cublasGetStream_v2", h.handle, &is) == 0 && is == h.other && h.works(1, 0, 0));
    int mode = 9;
    REQUIRE(h.mode(2) == 0 && math("cublasGetMathMode", h.handle, &mode) == 0 && mode == 2);
    REQUIRE(h.mode(0) == 0 && math("cublasGetMathMode", h.handle, &mode) == 0 && mode == 0);
    // The library refuses a wrong setting at once, and the previous one may be in force no longer.
    REQUIRE(h.mode(4) == INVALID_VALUE && h.mode(0) == 0 && h.works(1, 0, 0));
    return HOLDS(h.select(h.stream) == 0 && h.workspace() == 0 && h.works(1, 0, 0));
}

// Pointer modes: whether scalars are in memory of the host or of the device.
bool pointer_modes(Handle &h)
{
    const float alpha = 2;
    float *x = device_copy<float>({1}), *y = device_copy<float>({0}), *by = device_copy<float>({3});
    const auto axpy = [&](const float *scalar) {
        return math("cublasSaxpy_v2", h.handle, 1, scalar, x, 1, y, 1);
    };
    const auto mode = [&](int is) { return math("cublasSetPointerMode_v2", h.handle, is) == 0; };
    for (float i = 1; i < 5; i++) {
        REQUIRE(mode(1) && mode(0) && mode(1) && axpy(by) == 0);
        REQUIRE(mode(0) && axpy(&alpha) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(host_copy(y, 1)[0] == 5 * i);
    }
    return true;
}

// A new stream, or handle, may have the number of one that no longer exists.
bool known_no_more(Handle &h)
{
    void *stream = nullptr, *is = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == 0 && h.select(stream) == 0 && h.workspace() == 0);
    REQUIRE(h.works(1, 0, 0) && h.select(stream) == 0);
    REQUIRE(h.select(nullptr) == 0 && h.works(0, 0, 0) && h.select(stream) == 0 && h.work() == 0);
    REQUIRE(cudaStreamDestroy(stream) == 0 && h.select(stream) != 0);
    REQUIRE(h.select(nullptr) == 0 && math("cublasGetStream_v2", h.handle, &is) == 0 && !is);
    std::vector<void *> more(40); // more than are known
    for (void *&handle : more) {
        REQUIRE(math("cublasCreate_v2", &handle) == 0 && handle);
        REQUIRE(math("cublasSetMathMode", handle, 2) == 0);
        REQUIRE(math("cublasSetMathMode", handle, 3) == 0);
        REQUIRE(math("cublasSetMathMode", handle, 2) == 0);
    }
    for (void *handle : more) {
        int mode = 0;
        REQUIRE(math("cublasGetMathMode", handle, &mode) == 0 && mode == 2);
        REQUIRE(math("cublasDestroy_v2", handle) == 0);
        REQUIRE(math("cublasSetMathMode", handle, 2) == 1);
    }
    void *fresh = nullptr; // with the number of one of those, most likely
    int mode = 9;
    REQUIRE(math("cublasCreate_v2", &fresh) == 0);
    REQUIRE(math("cublasGetMathMode", fresh, &mode) == 0 && mode == 0);
    return HOLDS(math("cublasDestroy_v2", fresh) == 0);
}

// A reset takes handles; natively they are destroyed behind it nevertheless, but not twice, and no
// made-up ones.
bool ends_after_reset()
{
    void *handle = nullptr, *generator = nullptr, *sparse = nullptr, *solver = nullptr;
    int plan = 0, ended = 0;
    REQUIRE(math("cublasCreate_v2", &handle) == 0 && math("cusparseCreate", &sparse) == 0);
    REQUIRE(math("curandCreateGenerator", &generator, 100) == 0);
    REQUIRE(math("cusolverDnCreate", &solver) == 0 && math("cufftCreate", &plan) == 0);
    REQUIRE(math("cufftCreate", &ended) == 0 && math("cufftDestroy", ended) == 0);
    REQUIRE(math("cublasDestroy_v2", generator) == 1 && cudaDeviceReset() == 0);
    REQUIRE(ended != plan && math("cufftDestroy", ended) == 1);
    REQUIRE(math("cublasDestroy_v2", handle) == 0 && math("cusparseDestroy", sparse) == 0);
    REQUIRE(math("curandDestroyGenerator", generator) == 0 && math("cufftDestroy", plan) == 0);
    REQUIRE(math("cusolverDnDestroy", solver) == 0);
    REQUIRE(math("cufftDestroy", plan) == 1 && math("cusparseDestroy", sparse) == 3);
    REQUIRE(math("cublasDestroy_v2", handle) == 1);
    return HOLDS(math("cublasDestroy_v2", static_cast<void *>(nullptr)) == 1);
}

bool all()
{
    Handle h;
    REQUIRE(h.memory && h.y && math("cublasCreate_v2", &h.handle) == 0);
    REQUIRE(cudaStreamCreate(&h.stream) == 0 && cudaStreamCreate(&h.other) == 0);
    REQUIRE(asks_nobody(h) && is_in_force(h) && pointer_modes(h) && known_no_more(h));
    bool good = false; // what one thread has set another one uses
    REQUIRE(h.mode(2) == 0 && h.mode(3) == 0 && h.mode(2) == 0);
    std::thread([&] { good = h.works(0, 2, 0); }).join();
    REQUIRE(good && math("cublasDestroy_v2", h.handle) == 0);
    REQUIRE(cudaStreamDestroy(h.stream) == 0 && cudaStreamDestroy(h.other) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

} // namespace
} // namespace settings

bool math_settings()
{
    return settings::all() && settings::ends_after_reset();
}
