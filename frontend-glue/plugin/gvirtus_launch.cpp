// SPDX-License-Identifier: LGPL-2.1-or-later
#include "frontend-glue/plugin/gvirtus_launch.h"

#include <cstddef>
#include <cstdint>
#include <cxxabi.h>

namespace
{

struct Dim3 {
    std::uint32_t x, y, z;
};
using Launch = int(const void *function, Dim3 grid, Dim3 block, void **arguments,
                   std::size_t shared, void *stream);

Dim3 dim3_of(const std::uint32_t (&n)[3])
{
    return {n[0], n[1], n[2]};
}

} // namespace

#ifdef __clang__
__attribute__((no_sanitize("function"))) // its dim3 has the same layout, and another name
#endif
bool ibx_launch_by_gvirtus(const ibx_frontend_launch *l, int *rc)
{
    auto *launch = reinterpret_cast<Launch *>(l->launch);
    try {
        *rc = launch(l->function, dim3_of(l->grid), dim3_of(l->block), l->arguments, l->shared,
                     l->stream);
        return true;
    } catch (const abi::__forced_unwind &) { // the thread is cancelled
        throw;
    } catch (...) {
        return false;
    }
}
