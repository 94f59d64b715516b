// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Requests for functions of libraries, as bodies: gpu_calls_math.cpp, gpu_calls_dnn.cpp.
#ifndef TESTS_GVIRTUS_GPU_CALLS_MATH_H
#define TESTS_GVIRTUS_GPU_CALLS_MATH_H

#include "tests/gvirtus/gpu_calls_clients.h"

#include "frontend-glue/session/math_calls.h"

// The beginning of a body. `mode` is the pointer mode in it.
inline Body function(unsigned number, std::uint64_t handle, unsigned mode = 0)
{
    Body body;
    body.u64(handle);
    body.bytes.push_back(static_cast<char>(number));
    body.bytes.push_back(static_cast<char>(number >> 8));
    body.bytes.push_back(static_cast<char>(mode));
    return body;
}

inline Body byte(Body body, unsigned value)
{
    body.bytes.push_back(static_cast<char>(value));
    return body;
}

// The number at this address; -1: it cannot be read.
inline float at(Remote &remote, std::uint64_t device)
{
    float value = 0;
    return remote.peek(device, &value, sizeof(value)) ? value : -1;
}

#endif
