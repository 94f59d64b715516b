/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* As Python would: CUDA's runtime is loaded by dlopen(3) alone, by a library that does not share
 * it, and called by a symbol that was left open. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*cuda_malloc)(void **device, size_t n) = NULL;
    int (*cuda_memcpy)(void *to, const void *from, size_t n, int kind) = NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&cuda_malloc = dlsym(library, "cudaMalloc");
    *(void **)&cuda_memcpy = dlsym(RTLD_DEFAULT, "cudaMemcpy"); /* the preload's */
    static char there[100000], back[100000];
    void *device;
    memset(there, 'q', sizeof(there));
    int rc = cuda_memcpy ? cuda_malloc(&device, sizeof(there)) : -1;
    if (!rc)
        rc = cuda_memcpy(device, there, sizeof(there), 1);
    if (!rc) /* within the device: this one is GVirtuS's, which has to be found */
        rc = cuda_memcpy(device, (char *)device + 50000, 50000, 3);
    if (!rc)
        rc = cuda_memcpy(back, device, sizeof(back), 2);
    return rc || memcmp(there, back, sizeof(back)) != 0;
}
