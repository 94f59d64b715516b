/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with a libcudart of its own (local_cudart.c), which it finds by DT_RPATH. If it gets a
 * path, it opens that library, too, and calls a function in it. OPENS: it is not linked with the
 * libcudart, first changes its title, and may get the name of the function, and IBX_TEST_LAST: then
 * it calls that as the process ends, and nothing else; "kernel": asks about a kernel then, that of
 * a large module that it has registered. Its exit status is what CUDA returns. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
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

/* A fat binary with one cubin, of as many bytes as are registered when they are needed. */
#define LARGE 65536u
static struct {
    uint32_t magic;
    uint16_t version, head;
    uint64_t rest;
    uint16_t kind, entry;
    uint32_t entry_head;
    uint64_t n;
    uint8_t more[48 + LARGE];
} fat = {0xba55ed50u, 1, 16, 64 + LARGE, 2, 0x101, 64, LARGE, {0}};
static struct {
    uint32_t magic, version;
    const void *fat, *more;
} wrapper = {0x466243b1u, 1, &fat, NULL};
static char kernel;

/* What is registered goes to the back end, so that GVirtuS connects for that. */
static int register_large(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void **(*begins)(void *wrapper) = NULL;
    void (*function)(void **handle, const char *function, char *device, const char *name, int limit,
                     void *thread, void *block, void *size, void *grid, int *warp) = NULL;
    void (*ends)(void **handle) = NULL, (*sends)(size_t n) = NULL;
    *(void **)&begins = dlsym(RTLD_DEFAULT, "__cudaRegisterFatBinary");
    *(void **)&function = dlsym(RTLD_DEFAULT, "__cudaRegisterFunction");
    *(void **)&ends = dlsym(RTLD_DEFAULT, "__cudaRegisterFatBinaryEnd");
    *(void **)&sends = library ? dlsym(library, "stub_registers") : NULL;
    if (!begins || !function || !ends || !sends)
        return -1;
    sends(1);
    void **handle = begins(&wrapper);
    function(handle, &kernel, NULL, "large", -1, NULL, NULL, NULL, NULL, NULL);
    ends(handle);
    return 0;
}

static int ask_kernel(int *unused)
{
    static char attributes[4096];
    int (*ask)(void *attributes, const void *function) = NULL;
    (void)unused;
    *(void **)&ask = dlsym(RTLD_DEFAULT, "cudaFuncGetAttributes");
    return ask ? ask(attributes, &kernel) : -1;
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
    const int is_kernel = is_last && !strcmp(is_last, "kernel"); /* the title is written over it */
    if (is_last && atexit(call_last))
        return -1;
    char *path = count > 1 ? strdup(arguments[1]) : NULL,
         *name = strdup(count > 2 ? arguments[2] : "cudaGetDeviceCount");
    if (!path || !name || set_title(arguments[0]))
        return -1;
    get_count_of *get_count = opened(path, name);
    if (is_kernel && register_large(path))
        return -1;
    last = is_kernel ? ask_kernel : is_last ? get_count : NULL;
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
