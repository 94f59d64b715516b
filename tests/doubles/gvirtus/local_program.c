/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that brings a libcudart of its own (local_cudart.c), and finds it by DT_RPATH; given a
 * path, it opens that, too, and calls what is in it. It ends with what CUDA returns. */
#include <dlfcn.h>
#include <stddef.h>

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **device, size_t n);
int cudaFree(void *device);

int main(int count, char **arguments)
{
    int devices = 0, (*get_count)(int *) = cudaGetDeviceCount;
    void *device = NULL;
    int rc = cudaMalloc(&device, 4096);
    if (!rc)
        rc = cudaFree(device);
    if (!rc && count > 1) {
        void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        if (library)
            *(void **)&get_count = dlsym(library, "cudaGetDeviceCount");
        rc = library && get_count ? 0 : -1;
    }
    if (!rc)
        rc = get_count(&devices);
    return rc ? rc : devices < 1;
}
