// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote_runtime.h"
#include "tests/gvirtus/remote_libraries.h"

#include <cstdlib>
#include <dlfcn.h>

const Runtime &runtime()
{
    static const Runtime found = [] {
        Runtime made;
        const char *path = std::getenv("IBX_TEST_CUDART");
        void *handle = path ? dlopen(path, RTLD_LAZY) : nullptr;
        load_libraries();
        if (handle) {
            *reinterpret_cast<void **>(&made.register_var) =
                dlsym(handle, "ibx_double_register_var");
            *reinterpret_cast<void **>(&made.register_function) =
                dlsym(handle, "ibx_double_register_function");
            *reinterpret_cast<void **>(&made.address) = dlsym(handle, "cudaGetSymbolAddress");
            *reinterpret_cast<void **>(&made.get_last_error) = dlsym(handle, "cudaGetLastError");
            *reinterpret_cast<void **>(&made.fail) = dlsym(handle, "ibx_double_fail");
            *reinterpret_cast<void **>(&made.free) = dlsym(handle, "cudaFree");
            *reinterpret_cast<void **>(&made.calls) = dlsym(handle, "ibx_double_runtime_calls");
            *reinterpret_cast<void **>(&made.begin_capture) =
                dlsym(handle, "cudaStreamBeginCapture");
            *reinterpret_cast<void **>(&made.end_capture) = dlsym(handle, "cudaStreamEndCapture");
            *reinterpret_cast<void **>(&made.is_capturing) = dlsym(handle, "cudaStreamIsCapturing");
            *reinterpret_cast<void **>(&made.stream_destroyed) =
                dlsym(handle, "ibx_double_stream_destroyed");
            *reinterpret_cast<void **>(&made.graph_destroy) = dlsym(handle, "cudaGraphDestroy");
            *reinterpret_cast<void **>(&made.pool_destroy) = dlsym(handle, "cudaMemPoolDestroy");
            *reinterpret_cast<void **>(&made.graph_instantiate) =
                dlsym(handle, "cudaGraphInstantiateWithFlags");
            *reinterpret_cast<void **>(&made.graph_launch) = dlsym(handle, "cudaGraphLaunch");
            *reinterpret_cast<void **>(&made.enable_peer) =
                dlsym(handle, "cudaDeviceEnablePeerAccess");
            *reinterpret_cast<void **>(&made.disable_peer) =
                dlsym(handle, "cudaDeviceDisablePeerAccess");
            *reinterpret_cast<void **>(&made.copy_planes) = dlsym(handle, "cudaMemcpy3DAsync");
            *reinterpret_cast<void **>(&made.copy_peer) = dlsym(handle, "cudaMemcpyPeerAsync");
        }
        return made;
    }();
    return found;
}

bool is_captured(std::uint64_t stream)
{
    int status = 0;
    return runtime().is_capturing &&
           !runtime().is_capturing(reinterpret_cast<void *>(stream), &status) && status;
}
