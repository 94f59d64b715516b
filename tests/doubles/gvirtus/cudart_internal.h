// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Shared by the files of the libcudart that does what GVirtuS's does.
#ifndef TESTS_DOUBLES_GVIRTUS_CUDART_INTERNAL_H
#define TESTS_DOUBLES_GVIRTUS_CUDART_INTERNAL_H

#include "tests/doubles/gvirtus/cudart.h"
#include "tests/gvirtus/remote.h"

#include <cstdint>

#define EXPORTED __attribute__((visibility("default")))

// This thread's connection, for a call; the first one makes it.
__attribute__((visibility("hidden"))) Remote *mine();

inline std::uint64_t number(const void *pointer)
{
    return reinterpret_cast<std::uintptr_t>(pointer);
}

#endif
