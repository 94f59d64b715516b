/* SPDX-License-Identifier: LGPL-2.1-or-later */
// Arrays of floats: application_arrays.cpp, application_extensions.cpp.
#ifndef IBX_TESTS_GVIRTUS_APPLICATION_ARRAYS_H
#define IBX_TESTS_GVIRTUS_APPLICATION_ARRAYS_H

#include "tests/gvirtus/application.h"

#include "frontend-glue/session/extensions.h"

const ibx_cuda_channel channel_of_floats = {32, 0, 0, 0, 2};

inline int malloc_array(void **array, ibx_cuda_extent extent, unsigned flags = 0)
{
    return preloaded<int(void **, const ibx_cuda_channel *, ibx_cuda_extent, unsigned)>(
        "cudaMalloc3DArray")(array, &channel_of_floats, extent, flags);
}
inline int free_array(void *array)
{
    return preloaded<int(void *)>("cudaFreeArray")(array);
}

#endif
