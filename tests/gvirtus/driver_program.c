/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program that uses only the driver: its first argument names libcuda.so.1, and it is linked with
 * nothing of CUDA. With a second argument it opens that library in a namespace of its own
 * (dlmopen(3)). If the first one is empty it calls the runtime, which it has not loaded. */
#include "tests/fixtures/patience.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N 100000

static char there[N], back[N];

typedef int init(unsigned flags);
typedef int create(void **context, unsigned flags, int device);
typedef int allocate(uint64_t *address, size_t n);
typedef int write_to(uint64_t to, const void *from, size_t n);
typedef int read_from(void *to, uint64_t from, size_t n);

#define FIND(function, name) *(void **)&(function) = dlsym(library, name)

/* Returns the last digits of the error that is to be expected. */
static int allocates(void)
{
    int (*allocate_there)(void **memory, size_t n);
    void *library = NULL, *memory = NULL;
    FIND(allocate_there, "cudaMalloc");
    return allocate_there ? 100 + allocate_there(&memory, N) % 100 : 2;
}

int main(int argc, char **argv)
{
    init *cu_init;
    create *cu_create;
    allocate *cu_allocate;
    write_to *cu_write;
    read_from *cu_read;
    void *context = NULL;
    uint64_t memory = 0;
    alarm(50 * patience_times());
    if (argc > 1 && !*argv[1])
        return allocates();
    void *library = argc > 2   ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL)
                    : argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)
                               : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FIND(cu_init, "cuInit");
    FIND(cu_create, "cuCtxCreate_v2");
    FIND(cu_allocate, "cuMemAlloc_v2");
    FIND(cu_write, "cuMemcpyHtoD_v2");
    FIND(cu_read, "cuMemcpyDtoH_v2");
    if (!cu_init || !cu_create || !cu_allocate || !cu_write || !cu_read ||
        dlsym(library, "cuNothing"))
        return 2;
    memset(there, 'd', sizeof(there));
    const int rc = cu_init(0);
    if (rc)
        return 100 + rc % 100;
    if (cu_create(&context, 0, 0) || cu_allocate(&memory, N) || cu_write(memory, there, N) ||
        cu_read(back, memory, N))
        return 3;
    return memcmp(there, back, N) != 0;
}
