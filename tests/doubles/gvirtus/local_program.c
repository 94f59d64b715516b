/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with a libcudart of its own (local_cudart.c), which it finds by DT_RPATH. If it gets a
 * path, it opens that library, too, and calls a function in it. OPENS: it is not linked with the
 * libcudart, first changes its title, and may get the name of the function, and IBX_TEST_LAST: then
 * it calls that as the process ends, and nothing else. Its exit status is what CUDA returns. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int get_count_of(int *count);

static get_count_of *opened(const char *path, const char *name)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    get_count_of *get_count = NULL;
    if (library)
        *(void **)&get_count = dlsym(library, name);
    return get_count;
}

#ifdef OPENS
/* As setproctitle(3) does if nothing else is long enough: writes over the arguments and the
 * environment, which follow each other. */
static int set_title(char *over)
{
    char **all = environ, *end = over, **copies;
    size_t n = 0;
    while (all[n])
        n++;
    copies = calloc(n + 1, sizeof(*copies));
    for (size_t i = 0; i < n && copies; i++) {
        if (!(copies[i] = strdup(all[i])))
            return -1;
        end = all[i] > end ? all[i] + strlen(all[i]) : end;
    }
    if (!copies)
        return -1;
    environ = copies;
    memset(over, 0, (size_t)(end - over));
    memcpy(over, "worker", sizeof("worker"));
    return 0;
}

static get_count_of *last;

/* Behind all that libraries have left to exit(3), which were opened later. */
static void call_last(void)
{
    int devices = 0;
    if (last)
        _exit(last(&devices));
}

int main(int count, char **arguments)
{
    int devices = 0;
    const char *is_last = getenv("IBX_TEST_LAST");
    if (is_last && atexit(call_last))
        return -1;
    char *path = count > 1 ? strdup(arguments[1]) : NULL,
         *name = strdup(count > 2 ? arguments[2] : "cudaGetDeviceCount");
    if (!path || !name || set_title(arguments[0]))
        return -1;
    get_count_of *get_count = opened(path, name);
    last = is_last ? get_count : NULL;
    if (last)
        return 0;
    const int rc = get_count ? get_count(&devices) : -1;
    free(path);
    free(name);
    return rc ? rc : devices < 1;
}
#else
int cudaGetDeviceCount(int *count);
int cudaMalloc(void **device, size_t n);
int cudaFree(void *device);

int main(int count, char **arguments)
{
    int devices = 0;
    get_count_of *get_count = cudaGetDeviceCount;
    void *device = NULL;
    int rc = cudaMalloc(&device, 4096);
    if (!rc)
        rc = cudaFree(device);
    if (!rc && count > 1 && !(get_count = opened(arguments[1], "cudaGetDeviceCount")))
        rc = -1;
    if (!rc)
        rc = get_count(&devices);
    return rc ? rc : devices < 1;
}
#endif
