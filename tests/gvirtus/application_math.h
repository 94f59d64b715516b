/* SPDX-License-Identifier: LGPL-2.1-or-later */
// For tests of functions of cuBLAS and others: application_math.cpp, application_lt.cpp.
#ifndef IBX_TESTS_GVIRTUS_APPLICATION_MATH_H
#define IBX_TESTS_GVIRTUS_APPLICATION_MATH_H

#include "tests/gvirtus/application.h"

#include <vector>

constexpr std::size_t BYTES_MOST = 64;
// Of cuBLAS and cuBLASLt.
constexpr int NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15;

template <typename... T> int math(const char *name, T... arguments)
{
    auto *function = preloaded<int(T...)>(name);
    return function ? function(arguments...) : -1;
}

template <typename T> T *device_copy(const std::vector<T> &values)
{
    char *at = device_memory(values.size() * sizeof(T) + BYTES_MOST);
    const std::size_t n = values.size() * sizeof(T);
    return at && !cudaMemcpy(at, values.data(), n, H2D) ? reinterpret_cast<T *>(at) : nullptr;
}

template <typename T> std::vector<T> host_copy(const T *at, std::size_t count)
{
    std::vector<T> values(count);
    if (cudaMemcpy(values.data(), at, count * sizeof(T), D2H))
        values.clear();
    return values;
}

// application_math_xt.cpp
bool host_matrices();

#endif
