/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: handles for other processes, and their memory. Codes are those of an
 * H100 (driver 580). */
#include "tests/doubles/cuda/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIND        0xd /* of handles */
#define POOL_MEMORY 0xb

struct ipc_handle ipc_handle_of(unsigned kind, int fd, size_t n, int device)
{
    struct stat file = {0};
    fstat(fd, &file);
    return (struct ipc_handle){
        .kind = kind, .process = getpid(), .fd = fd, .device = device, .file = file.st_ino, .n = n};
}

int ipc_handle_open(const struct ipc_handle *handle, unsigned kind)
{
    struct stat file = {0};
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->process, handle->fd);
    const int fd = handle->kind == kind ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && !fstat(fd, &file) && file.st_ino == handle->file)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Of what cuMemAlloc has allocated. */
EXPORT int cuIpcGetMemHandle(struct ipc_handle *handle, uint64_t device)
{
    int code = enter("cuIpcGetMemHandle");
    if (code)
        return code;
    const struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (!a || a->device < 0 || a->pool || a->opened)
        return leave(INVALID_VALUE);
    *handle = ipc_handle_of(KIND, a->fd, a->size, a->device);
    return leave(SUCCESS);
}

static struct allocation *find_opened(uint64_t file, const void *pool)
{
    struct stat its = {0};
    for (struct allocation *a = allocations; a; a = a->next) {
        if (a->address && (pool ? a->pool == pool : a->opened) && !fstat(a->fd, &its) &&
            its.st_ino == file)
            return a;
    }
    return NULL;
}

EXPORT int cuIpcOpenMemHandle_v2(uint64_t *device, struct ipc_handle handle, unsigned flags)
{
    int code = enter_unsafe("cuIpcOpenMemHandle");
    if (code)
        return code;
    const bool own = handle.kind == KIND && handle.process == getpid();
    struct allocation *a = own || handle.kind != KIND ? NULL : find_opened(handle.file, NULL);
    const int fd = a || flags != 1 ? -1 : ipc_handle_open(&handle, KIND);
    if (!own && fd >= 0)
        a = memory_map(fd, handle.n, handle.device);
    if (fd >= 0 && !a)
        close(fd);
    if (!a)
        return leave(own ? INVALID_CONTEXT : INVALID_VALUE);
    a->opened++;
    *device = (uintptr_t)a->address;
    return leave(SUCCESS);
}

EXPORT int cuIpcCloseMemHandle(uint64_t device)
{
    int code = enter_unsafe("cuIpcCloseMemHandle");
    if (code)
        return code;
    struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (!a || !a->opened || (uintptr_t)a->address != device)
        return leave(INVALID_VALUE);
    if (a->opened > 1)
        a->opened--;
    else
        memory_unmap(a);
    return leave(SUCCESS);
}

/* Memory of a pool whose file has that inode. */
EXPORT int ibx_double_export_pointer(struct ipc_handle *handle, uint64_t device, uint64_t pool)
{
    pthread_mutex_lock(&mutex);
    const struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (!a)
        return leave(INVALID_VALUE);
    *handle = ipc_handle_of(POOL_MEMORY, a->fd, a->size, a->device);
    handle->pool = pool;
    return leave(SUCCESS);
}

/* Imports memory into the pool that was opened. As on an H200 (driver 580), memory that was
 * imported before is at the same address, and imports are not counted: one free ends it. */
EXPORT int ibx_double_import_pointer(uint64_t *device, const struct ipc_handle *handle, void *pool)
{
    pthread_mutex_lock(&mutex);
    struct allocation *a = find_opened(handle->file, pool);
    const int fd = a ? -1 : ipc_handle_open(handle, POOL_MEMORY);
    if (fd >= 0)
        a = memory_map(fd, handle->n, handle->device);
    if (fd >= 0 && !a)
        close(fd);
    if (!a)
        return leave(INVALID_VALUE);
    a->pool = pool;
    *device = (uintptr_t)a->address;
    return leave(SUCCESS);
}

EXPORT bool ibx_double_pool_has_memory(const void *pool)
{
    bool any = false;
    pthread_mutex_lock(&mutex);
    for (const struct allocation *a = allocations; a; a = a->next)
        any = any || (a->address && a->pool == pool);
    leave(SUCCESS);
    return any;
}

EXPORT void ibx_double_count_pool(int more)
{
    pthread_mutex_lock(&mutex);
    stats.pools += (unsigned long)more;
    leave(SUCCESS);
}
