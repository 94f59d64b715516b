// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Shared by the tests of CUDA's driver API.
#ifndef TESTS_FRONTEND_APPLICATION_DRIVER_H
#define TESTS_FRONTEND_APPLICATION_DRIVER_H

#include "tests/gvirtus/application.h"

using Address = std::uint64_t;

struct DriverSet { // CUDA_MEMSET_NODE_PARAMS
    Address at;
    std::size_t pitch;
    unsigned value, element;
    std::size_t width, height;
};

// CUmemAllocationProp, CUmemLocation, CUmemAccessDesc
struct MappedProperties {
    int type = 1, handles = 0, at = 1, device = 0;
    void *meta = nullptr;
    unsigned char flags[8] = {};
};
struct MappedLocation {
    int at = 1, device = 0;
};
struct MappedAccess {
    MappedLocation at;
    int flags = 3;
};

struct PeerCopy { // CUDA_MEMCPY3D_PEER
    std::size_t from_place[4];
    int from_type;
    const void *from_host;
    Address from;
    void *from_array, *from_context;
    std::size_t from_pitch, from_height, to_place[4];
    int to_type;
    void *to_host;
    Address to;
    void *to_array, *to_context;
    std::size_t to_pitch, to_height, width, rows, planes;
};

// Calls a function by its name. Its arguments have the types of those that are given.
template <typename... Arguments> int cu(const char *name, Arguments... arguments)
{
    auto *call = preloaded<int(Arguments...)>(name);
    return call ? call(arguments...) : -1;
}

inline bool driver_has_context(void **context)
{
    return HOLDS(cu("cuInit", 0u) == 0 && cu("cuCtxCreate_v2", context, 0u, 0) == 0);
}

#endif
