/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* As Python would: CUDA's runtime is loaded by dlopen(3) alone, by a library that does not share
 * it, and called by an undefined symbol. How the process ends: "copies": as usual. "forked": its
 * child calls exit(3), too. "threads": beside a thread that goes on to call CUDA. With "looked-up"
 * all calls come from that libcudart by dlsym(3). */
#include "tests/fixtures/patience.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*cuda_malloc)(void **device, size_t n);
static int (*cuda_memcpy)(void *to, const void *from, size_t n, int kind);
static void (*at_end)(void (*function)(void));
static char there[100000], back[100000];

static int copies(void)
{
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

typedef int malloc_managed(void **address, size_t n, unsigned flags);
typedef int count_of(int *count);

/* The functions are the preload's, also those that GVirtuS lacks, but for those that only GVirtuS
 * has; everything else is found where it was. */
static int looked_up(void *library)
{
    malloc_managed *managed;
    count_of *count;
    char *memory = NULL;
    int n = 0;
    *(void **)&managed = dlsym(library, "cudaMallocManaged");
    *(void **)&count = dlsym(library, "cudaGetDeviceCount");
    dlsym(library, "cudaNothing");
    if (!managed || !count || dlsym(library, "cudaMalloc") != dlsym(RTLD_DEFAULT, "cudaMalloc") ||
        dlsym(RTLD_NEXT, "cudaMalloc") != dlsym(RTLD_DEFAULT, "cudaMalloc") || dlerror() ||
        dlsym(library, "cudaNothing") || !dlerror())
        return 1;
    if (managed((void **)&memory, sizeof(there), 1) || count(&n) || !n)
        return 1;
    memcpy(memory, there, sizeof(there));
    return cuda_memcpy(back, memory, sizeof(back), 2) || memcmp(there, back, sizeof(back)) != 0;
}

static void say_handler(void)
{
    fputs("the program's handler\n", stderr);
}

static void fail(void)
{
    _exit(1);
}

static atomic_bool called, over;

/* As the process ends, sanitizers walk through the libraries themselves, and would hang there. */
#if defined(__has_feature)
#define HAS(what) __has_feature(what)
#else
#define HAS(what) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HAS(address_sanitizer) ||     \
    HAS(thread_sanitizer)
#define WALKS false
#else
#define WALKS true
#endif

static int stay(struct dl_phdr_info *library, size_t size, void *nothing)
{
    (void)library;
    (void)size;
    (void)nothing;
    atomic_store(&called, 1);
    while (!atomic_load(&over))
        sched_yield();
    return 1;
}

static void *walk(void *nothing)
{
    dl_iterate_phdr(stay, NULL);
    return nothing;
}

/* Meanwhile another thread walks through the libraries: the child has its lock for ever. */
static int forked(void)
{
    int (*preload_malloc)(void **device, size_t n) = NULL;
    pthread_t thread;
    void *device;
    *(void **)&preload_malloc = dlsym(RTLD_DEFAULT, "cudaMalloc");
    if (WALKS && pthread_create(&thread, NULL, walk, NULL))
        return 1;
    while (WALKS && !atomic_load(&called))
        sched_yield();
    const pid_t child = fork();
    if (!child) {
        alarm(20 * patience_times());
        if (WALKS)
            preload_malloc(&device, 1); /* the connection is its parent's: whatever that answers */
        atexit(say_handler);
        exit(7);
    }
    int status = -1;
    const bool ended = waitpid(child, &status, 0) == child;
    atomic_store(&over, 1);
    if (WALKS)
        pthread_join(thread, NULL);
    return !ended || !WIFEXITED(status) || WEXITSTATUS(status) != 7;
}

static void *call(void *nothing)
{
    static char byte;
    void *device;
    cuda_malloc(&device, 1);
    for (;;) {
        cuda_memcpy(device, &byte, 1, 1);
        atomic_store(&called, 1);
    }
    return nothing;
}

/* In that case GVirtuS's destructors do nothing, and the program's exit handler is called. */
static int threads(void)
{
    pthread_t thread;
    at_end(fail);
    if (pthread_create(&thread, NULL, call, NULL))
        return 1;
    while (!atomic_load(&called))
        sched_yield();
    return 0;
}

int main(int argc, char **argv)
{
    atexit(say_handler);
    void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&cuda_malloc = dlsym(library, "cudaMalloc");
    *(void **)&cuda_memcpy = dlsym(RTLD_DEFAULT, "cudaMemcpy"); /* the preload's */
    *(void **)&at_end = dlsym(library, "stub_at_end");
    if (copies() || (!strcmp(argv[2], "looked-up") && looked_up(library)))
        return 1;
    return !strcmp(argv[2], "forked") ? forked() : !strcmp(argv[2], "threads") ? threads() : 0;
}
