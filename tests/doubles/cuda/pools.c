/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: pools of memory. A pool that this file has not made, or that was
 * destroyed, ends the process, as with CUDA. An opened pool allows what it allows on an H200
 * (driver 580). */
#include "tests/doubles/cuda/runtime.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POOLS      64
#define POSIX_FILE 1   /* cudaMemHandleTypePosixFileDescriptor */
#define SEALS      0xc /* of a pool's file: F_SEAL_GROW | F_SEAL_WRITE */

struct location {
    int type, id;
};
struct access {
    struct location location;
    int flags;
};
struct properties {
    int allocation, handles;
    struct location location;
    void *security;
    size_t most;
    unsigned short usage;
    uint8_t reserved[54];
};

/* The first one is device 0's own, the second one device 1's. */
static struct pool {
    bool made;
    int device;
    int flags; /* of access by device 1 */
    uint64_t values[8];
    bool opened;   /* it is another process's */
    int fd;        /* the file of a pool that is made for other processes; otherwise 0 */
    uint64_t file; /* inode of its file, or of the opened pool's */
} pools[POOLS] = {{.made = true}, {.made = true, .device = 1}};

static bool is_pool(const void *handle)
{
    const struct pool *pool = handle;
    return pool >= pools && pool < pools + POOLS && pool->made;
}

static struct pool *pool_of(void *handle)
{
    if (!is_pool(handle))
        abort();
    return handle;
}

static void count_pool(int more)
{
    void (*count)(int n) = NULL;
    *(void **)&count = driver_function("ibx_double_count_pool");
    count(more);
}

static struct pool *free_pool(void)
{
    unsigned i = 2;
    while (i < POOLS && pools[i].made)
        i++;
    return i < POOLS ? &pools[i] : NULL;
}

static uint64_t inode_of(int fd)
{
    struct stat file = {0};
    return fstat(fd, &file) ? 0 : file.st_ino;
}

static int set_pool(void *address, void *pool)
{
    int (*set)(uint64_t device, void *of) = NULL;
    *(void **)&set = driver_function("ibx_double_pooled");
    return set((uintptr_t)address, pool);
}

static int allocate(void **address, size_t n, void *pool)
{
    const int rc = cudaMalloc(address, n);
    return rc ? rc : set_pool(*address, pool);
}

static uint8_t graphs; /* stands for the pool of memory of graphs */

/* No capture forbids it. */
int graph_malloc(void **address, size_t n)
{
    int (*exchange)(int *mode) = NULL;
    int mode = 2; /* cudaStreamCaptureModeRelaxed */
    *(void **)&exchange = driver_function("cuThreadExchangeStreamCaptureMode");
    exchange(&mode);
    const int rc = allocate(address, n, &graphs);
    exchange(&mode);
    return rc;
}

void graph_free(void *address)
{
    int (*end)(uint64_t device, const void *pool) = NULL;
    *(void **)&end = driver_function("ibx_double_end_with_graph");
    end((uintptr_t)address, &graphs);
}

static bool is_captured(void *stream)
{
    int (*asks)(void *of, int *status) = NULL;
    int status = 0;
    *(void **)&asks = driver_function("cuStreamIsCapturing");
    return stream && !asks(stream, &status) && status;
}

/* Memory of the stream's device, whichever device is current. */
EXPORT int cudaMallocAsync(void **address, size_t n, void *stream)
{
    int device = 0;
    if (device_of_stream(stream, &device))
        return returns(400);
    if (!n && !is_captured(stream)) {
        *address = NULL;
        return returns(is_unsafe("cudaMallocAsync"));
    }
    enter_device(device);
    const bool captured = is_captured(stream);
    const int rc = captured ? graph_malloc(address, n) : allocate(address, n, &pools[device]);
    leave_device();
    if (captured && !rc)
        captures_memory(stream, true, *address, n);
    return rc;
}

EXPORT int cudaMallocFromPoolAsync(void **address, size_t n, void *from, void *stream)
{
    struct pool *pool = pool_of(from);
    if (pool->opened)
        return returns(1);
    /* This size: the call ends when somebody sets attribute 6, or destroys the pool. */
    pool->values[6] = n == 7878;
    while (pool->values[6] && pool->made)
        usleep(1000);
    (void)stream;
    enter_device(pool_of(from)->device);
    const int rc = allocate(address, n, from);
    leave_device();
    return rc;
}

/* A capture takes only memory of graphs; other memory is refused, and the capture goes on. */
EXPORT int cudaFreeAsync(void *address, void *stream)
{
    int (*wait)(void *of) = NULL;
    bool (*is_pooled)(uint64_t device, const void *in) = NULL;
    static uint8_t no_pool; /* for memory for which cudaFree does not wait */
    *(void **)&wait = driver_function("cuStreamSynchronize");
    *(void **)&is_pooled = driver_function("ibx_double_is_pooled");
    const bool captured = is_captured(stream);
    if (captured && !is_pooled((uintptr_t)address, &graphs))
        return returns(1);
    if (captured && captures_memory(stream, false, address, 0))
        return returns(0);
    const int rc = captured ? 0 : wait(stream ? stream : (void *)1);
    if (rc || set_pool(address, &no_pool))
        return returns(rc ? rc : 1);
    return cudaFree(address);
}

EXPORT int cudaDeviceGetDefaultMemPool(void **found, int device)
{
    if (device != 0 && device != 1)
        return returns(101);
    *found = &pools[device];
    return returns(0);
}

EXPORT int cudaDeviceGetMemPool(void **found, int device)
{
    return cudaDeviceGetDefaultMemPool(found, device);
}

EXPORT int cudaMemPoolSetAttribute(void *of, int attribute, void *value)
{
    if (pool_of(of)->opened)
        return returns(1);
    memcpy(&pool_of(of)->values[attribute & 7], value, attribute <= 3 ? 4 : 8);
    return returns(0);
}

EXPORT int cudaMemPoolGetAttribute(void *of, int attribute, void *value)
{
    if (pool_of(of)->opened)
        return returns(1);
    memcpy(value, &pool_of(of)->values[attribute & 7], attribute <= 3 ? 4 : 8);
    return returns(0);
}

EXPORT int cudaMemPoolTrimTo(void *of, size_t keep)
{
    (void)keep;
    return returns(pool_of(of)->opened ? 1 : 0);
}

/* A pool of memory of a device. Attribute 7 is the size that was asked for. */
EXPORT int cudaMemPoolCreate(void **pool, const struct properties *p)
{
    const int rc = is_unsafe("cudaMemPoolCreate");
    struct pool *made = rc ? NULL : free_pool();
    if (rc)
        return returns(rc);
    if (!made || p->allocation != 1 || (p->handles && p->handles != POSIX_FILE) ||
        p->location.type != 1 || (p->location.id != 0 && p->location.id != 1))
        return returns(1);
    *made = (struct pool){.made = true, .device = p->location.id, .values = {[7] = p->most}};
    if (p->handles) {
        made->fd = memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        fcntl(made->fd, F_ADD_SEALS, SEALS);
        made->file = inode_of(made->fd);
    }
    count_pool(1);
    *pool = made;
    return returns(0);
}

/* CUDA keeps an opened pool while there is memory in it. */
EXPORT int cudaMemPoolDestroy(void *handle)
{
    bool (*has_memory)(const void *of) = NULL;
    const int rc = is_unsafe("cudaMemPoolDestroy");
    if (rc)
        return returns(rc);
    struct pool *pool = pool_of(handle);
    *(void **)&has_memory = driver_function("ibx_double_pool_has_memory");
    if (pool->opened && has_memory(pool))
        return returns(1);
    if (pool->fd)
        close(pool->fd);
    pool->made = false;
    count_pool(-1);
    return returns(0);
}

EXPORT int cudaMemPoolExportToShareableHandle(void *descriptor, void *of, int type, unsigned flags)
{
    const struct pool *pool = pool_of(of);
    const int fd =
        pool->fd && type == POSIX_FILE && !flags ? fcntl(pool->fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (fd >= 0)
        memcpy(descriptor, &fd, sizeof(fd));
    return returns(fd >= 0 ? 0 : 1);
}

/* Returns the same pool each time. */
EXPORT int cudaMemPoolImportFromShareableHandle(void **pool, void *descriptor, int type,
                                                unsigned flags)
{
    const int fd = (int)(intptr_t)descriptor;
    const uint64_t file = fcntl(fd, F_GET_SEALS) == SEALS ? inode_of(fd) : 0;
    struct pool *found = NULL;
    for (unsigned i = 1; i < POOLS && file && !found; i++)
        found = pools[i].made && pools[i].opened && pools[i].file == file ? &pools[i] : NULL;
    if (found || !file || type != POSIX_FILE || flags || !(found = free_pool())) {
        *pool = found;
        return returns(found ? 0 : 1);
    }
    *found = (struct pool){.made = true, .opened = true, .file = file};
    count_pool(1);
    *pool = found;
    return returns(0);
}

EXPORT int cudaMemPoolExportPointer(void *handle, void *memory)
{
    int (*attribute)(unsigned count, const int *names, void **values, uint64_t of) = NULL;
    int (*export)(void *out, uint64_t address, uint64_t file) = NULL;
    void *pool = NULL, *values[] = {&pool};
    *(void **)&attribute = driver_function("cuPointerGetAttributes");
    *(void **)&export = driver_function("ibx_double_export_pointer");
    attribute(1, (int[]){17}, values, (uintptr_t)memory);
    const struct pool *its = is_pool(pool) ? pool : NULL;
    if (!its || !its->fd)
        return returns(1);
    return returns(export(handle, (uintptr_t)memory, its->file));
}

EXPORT int cudaMemPoolImportPointer(void **memory, void *of, const void *handle)
{
    int (*import)(void **address, const void *from, void *into) = NULL;
    struct pool *pool = pool_of(of);
    uint64_t file = 0;
    memcpy(&file, (const char *)handle + 32, sizeof(file));
    *(void **)&import = driver_function("ibx_double_import_pointer");
    return returns(pool->opened && file == pool->file ? import(memory, handle, pool) : 1);
}

EXPORT int cudaMemPoolSetAccess(void *pool, const struct access *list, size_t count)
{
    if (count != 1 || list->location.type != 1 || list->location.id != 1)
        return returns(1);
    pool_of(pool)->flags = list->flags;
    return returns(0);
}

EXPORT int cudaMemPoolGetAccess(int *flags, void *pool, const struct location *location)
{
    *flags = location->id ? pool_of(pool)->flags : 3;
    return returns(location->type == 1 ? 0 : 1);
}
