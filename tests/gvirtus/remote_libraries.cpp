// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote_libraries.h"

#include <cstdlib>
#include <dlfcn.h>
#include <sstream>
#include <vector>

namespace
{

std::vector<std::string> paths()
{
    const char *all = std::getenv("IBX_TEST_MATH");
    std::istringstream text(all ? all : "");
    std::vector<std::string> found;
    for (std::string path; std::getline(text, path, ':');)
        found.push_back(path);
    return found;
}

// A function of that library, or null.
void *function_of(const char *name, const char *function)
{
    void *found = nullptr;
    for (const std::string &path : paths()) {
        if (path.find(name) == path.npos)
            continue;
        void *library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        found = dlsym(library, function);
        dlclose(library);
    }
    return found;
}

struct Maker {
    const char *function, *library;
    int absent; // its status if there is no such library
};
constexpr Maker makers[] = {{"cublasCreate_v2", "libcublas.so", 1},
                            {"cufftCreate", "libcufft.so", 5},
                            {"curandCreateGenerator", "libcurand.so", 203},
                            {"curandCreateGeneratorHost", "libcurand.so", 203},
                            {"cusolverDnCreate", "libcusolver.so", 1},
                            {"cusparseCreate", "libcusparse.so", 1}};

// A function without a type does not look at it; a plan has half of the bytes.
int make(const Maker &maker, std::uint64_t *made)
{
    int (*call)(std::uint64_t * made, int type) = nullptr;
    *reinterpret_cast<void **>(&call) = function_of(maker.library, maker.function);
    return call ? call(made, 100) : maker.absent;
}

} // namespace

void load_libraries()
{
    for (const std::string &path : paths())
        dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
}

std::uint64_t library_handles()
{
    std::uint64_t count = 0;
    for (const std::string &path : paths()) {
        void *library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        auto *handles = reinterpret_cast<unsigned (*)()>(dlsym(library, "ibx_double_handles"));
        count += handles();
        dlclose(library);
    }
    // NCCL is loaded by the plugin, if a client has called it.
    const char *nccl = std::getenv("IBX_TEST_NCCL");
    void *library = nccl ? dlopen(nccl, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (library) {
        count += reinterpret_cast<unsigned (*)()>(dlsym(library, "ibx_double_handles"))();
        dlclose(library);
    }
    return count;
}

bool library_makes(const std::string &name, std::uint64_t *made, int *code)
{
    for (const Maker &maker : makers) {
        if (name != maker.function)
            continue;
        *made = 0;
        *code = make(maker, made);
        return true;
    }
    return false;
}

int library_ends_blas(std::uint64_t handle)
{
    int (*end)(std::uint64_t handle) = nullptr;
    *reinterpret_cast<void **>(&end) = function_of("libcublas.so", "cublasDestroy_v2");
    return end(handle);
}

int library_ends_plan(std::int32_t plan)
{
    int (*end)(std::int32_t plan) = nullptr;
    *reinterpret_cast<void **>(&end) = function_of("libcufft.so", "cufftDestroy");
    return end(plan);
}

bool is_echoed(const std::string &name)
{
    static const char *const echoed[] = {"cudaEventElapsedTime",
                                         "cudaIpcGetEventHandle",
                                         "cudaMemcpyPeerAsync",
                                         "cuEventElapsedTime",
                                         "cuLaunchGridAsync",
                                         "cuMemsetD32Async",
                                         "cuStreamWriteValue32",
                                         "cudaGraphGetNodes",
                                         "cudaGraphExecDestroy",
                                         "cublasSgemm_v2",
                                         "cublasLtMatmulDescSetAttribute",
                                         "cudnnActivationForward",
                                         "cudnnBackendGetAttribute",
                                         "cudnnDestroyTensorDescriptor",
                                         "cudnnSetTensor4dDescriptor",
                                         "cufftExecC2C",
                                         "cuCtxDestroy",
                                         "cuCtxSetCurrent",
                                         "cuFuncGetAttribute",
                                         "cuLaunchKernel",
                                         "cuModuleGetGlobal",
                                         "cuModuleUnload",
                                         "cuTexRefGetFlags",
                                         "nvmlDeviceGetTemperature"};
    for (const char *other : echoed)
        if (name == other)
            return true;
    return false;
}

bool makes_handle(const std::string &name)
{
    static const char *const makers[] = {"cublasLtMatmulDescCreate",
                                         "cudnnBackendCreateDescriptor",
                                         "cudnnCreate",
                                         "cudnnCreateTensorDescriptor",
                                         "cuCtxAttach",
                                         "cuCtxCreate",
                                         "cuCtxGetCurrent",
                                         "cuModuleGetFunction",
                                         "cuModuleLoadData",
                                         "nvmlDeviceGetHandleByIndex"};
    for (const char *maker : makers)
        if (name == maker)
            return true;
    return false;
}
