// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's runtime in the back end of a test: the double that IBX_TEST_CUDART names. Its functions
// are NULL without one.
#ifndef TESTS_GVIRTUS_REMOTE_RUNTIME_H
#define TESTS_GVIRTUS_REMOTE_RUNTIME_H

#include "frontend-glue/session/extensions.h"

#include <cstddef>
#include <cstdint>

struct Runtime {
    int (*register_var)(const void *symbol, std::uint64_t device, std::size_t n) = nullptr;
    int (*address)(void **device, const void *symbol) = nullptr;
    int (*get_last_error)() = nullptr;
    int (*register_function)(const void *function) = nullptr;
    int (*fail)(int code) = nullptr;
    int (*free)(void *address) = nullptr;
    unsigned long (*calls)() = nullptr;
    int (*begin_capture)(void *stream, int mode) = nullptr;
    int (*end_capture)(void *stream, void **graph) = nullptr;
    int (*is_capturing)(void *stream, int *status) = nullptr;
    void (*stream_destroyed)(void *stream) = nullptr;
    int (*graph_instantiate)(void **exec, void *graph, unsigned long long flags) = nullptr;
    int (*graph_launch)(void *exec, void *stream) = nullptr;
    int (*graph_destroy)(void *graph) = nullptr;
    int (*pool_destroy)(void *pool) = nullptr;
    int (*enable_peer)(int peer, unsigned flags) = nullptr;
    int (*disable_peer)(int peer) = nullptr;
    int (*copy_planes)(const ibx_cuda_memcpy3d *copy, void *stream) = nullptr;
    int (*copy_peer)(void *to, int to_device, const void *from, int from_device, std::size_t n,
                     void *stream) = nullptr;
};

// Loaded as GVirtuS loads its plugins, and with them CUDA's runtime.
const Runtime &runtime();
bool is_captured(std::uint64_t stream);

#endif
