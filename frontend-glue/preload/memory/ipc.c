/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory and events of other processes, as extension requests. To CUDA at the back end all
 * clients are one process, which may not open handles of its own. What a process opens is what the
 * other process has, at the same address, so this file knows what this process must not free.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

/* An opened handle. The list is protected by the lock of ranges. */
struct opened {
    struct opened *next;
    uintptr_t value;
    enum opened_kind kind;
    unsigned times;
};

static struct opened *all;
static atomic_uint count;

static struct opened **find(enum opened_kind kind, const void *value)
{
    struct opened **at = &all;
    while (*at && !((*at)->kind == kind && (*at)->value == (uintptr_t)value))
        at = &(*at)->next;
    return at;
}

static bool note(enum opened_kind kind, const void *value)
{
    ibx_frontend_ranges_lock();
    struct opened **at = find(kind, value);
    if (!*at && (*at = calloc(1, sizeof(**at)))) {
        (*at)->kind = kind;
        (*at)->value = (uintptr_t)value;
        atomic_fetch_add(&count, 1);
    }
    const bool noted = *at;
    if (noted)
        (*at)->times++;
    ibx_frontend_ranges_unlock();
    return noted;
}

/* Tells the back end that it was closed; until then the back end keeps it for this process. An
 * older back end keeps it until this process ends. */
static void tell_closed(enum opened_kind kind, const void *value)
{
    struct extension_request e;
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_CLOSE, "cudaIpcCloseMemHandle");
    ibx_put_u8(&e.body, kind == OPENED_EVENT ? 1 : kind == OPENED_POOL ? 2 : 0);
    ibx_put_u64(&e.body, (uintptr_t)value);
    ibx_frontend_request_try(&e, NULL, 0, &code);
}

/* Removes one use; returns whether it was there. *last: that was the last use. */
static bool forget(enum opened_kind kind, const void *value, bool *last)
{
    if (!atomic_load(&count))
        return false;
    ibx_frontend_ranges_lock();
    struct opened **at = find(kind, value), *there = *at;
    *last = there && !--there->times;
    if (*last) {
        *at = there->next;
        free(there);
        atomic_fetch_sub(&count, 1);
    }
    ibx_frontend_ranges_unlock();
    return there;
}

/* Takes an entry, which the caller frees; NULL: none is left. */
static struct opened *take_any(void)
{
    ibx_frontend_ranges_lock();
    struct opened *gone = all;
    if (gone) {
        all = gone->next;
        atomic_fetch_sub(&count, 1);
    }
    ibx_frontend_ranges_unlock();
    return gone;
}

bool ibx_frontend_opened(enum opened_kind kind, const void *value)
{
    if (!atomic_load(&count))
        return false;
    ibx_frontend_ranges_lock();
    const bool is = *find(kind, value);
    ibx_frontend_ranges_unlock();
    return is;
}

/* Whether the memory is this process's own: CUDA does not open handles of it there. The parent's
 * memory does not count as the child's. */
static bool is_own_memory(const void *memory)
{
    return !ibx_frontend_forked() && ibx_frontend_given_out(memory) &&
           !ibx_frontend_opened(OPENED_MEMORY, memory) &&
           !ibx_frontend_opened(OPENED_POINTER, memory);
}

static bool is_own_event(const void *event)
{
    return !ibx_frontend_forked() && ibx_frontend_opened(SHARED_EVENT, event);
}

/* ------------------------------------------------------------------------------------ memory */

int cudaIpcGetMemHandle(struct ipc_handle *handle, void *address)
{
    struct extension_request e;
    int rc;
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_MEMORY, "cudaIpcGetMemHandle");
    if (!handle || ibx_frontend_is_managed(address))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)address);
    return ibx_frontend_request_known(&e, handle->bytes, sizeof(handle->bytes), &rc)
               ? rc
               : CALL_NEXT(cudaIpcGetMemHandle, handle, address);
}

int cudaIpcOpenMemHandle(void **address, struct ipc_handle handle, unsigned flags)
{
    struct extension_request e;
    uint8_t bytes[16] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc;
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_OPEN_MEMORY, "cudaIpcOpenMemHandle");
    if (!address || !(flags & IPC_LAZY_PEER_ACCESS))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_bytes(&e.body, handle.bytes, sizeof(handle.bytes));
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), &rc))
        return CALL_NEXT(cudaIpcOpenMemHandle, address, handle, flags);
    if (rc)
        return rc == CUDA_INVALID_HANDLE ? ibx_frontend_fail(CUDA_INVALID_VALUE) : rc;
    void *memory = (void *)(uintptr_t)ibx_get_u64(&r);
    if (is_own_memory(memory))
        return ibx_frontend_fail(CUDA_INVALID_CONTEXT);
    if (!note(OPENED_MEMORY, memory))
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    ibx_frontend_device_memory(memory, ibx_get_u64(&r));
    *address = memory;
    return CUDA_SUCCESS;
}

/* Waits for this process's work in it, as the driver does before it unmaps the memory. */
int cudaIpcCloseMemHandle(void *address)
{
    bool last = false;
    if (!forget(OPENED_MEMORY, address, &last)) {
        __typeof__(&cudaIpcCloseMemHandle) next =
            ibx_frontend_plugin() ? NULL : NEXT(cudaIpcCloseMemHandle);
        return next ? next(address) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    }
    if (last)
        ibx_frontend_device_memory_gone(address);
    const int rc = ibx_frontend_capturing() ? CUDA_SUCCESS : ibx_frontend_device_wait_within();
    tell_closed(OPENED_MEMORY, address);
    return rc;
}

/* ------------------------------------------------------------------------------------ events */

int cudaIpcGetEventHandle(struct ipc_handle *handle, void *event)
{
    struct extension_request e;
    int rc;
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_EVENT, "cudaIpcGetEventHandle");
    if (!handle)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)event);
    if (!ibx_frontend_request_known(&e, handle->bytes, sizeof(handle->bytes), &rc))
        return CALL_NEXT(cudaIpcGetEventHandle, handle, event);
    if (rc) /* as of an event that cannot be shared: programs look at the handle (Warp) */
        *handle = (struct ipc_handle){0};
    else if (!ibx_frontend_opened(SHARED_EVENT, event))
        note(SHARED_EVENT, event);
    return rc;
}

int cudaIpcOpenEventHandle(void **event, struct ipc_handle handle)
{
    struct extension_request e;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int rc;
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_OPEN_EVENT, "cudaIpcOpenEventHandle");
    if (!event)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_bytes(&e.body, handle.bytes, sizeof(handle.bytes));
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), &rc))
        return CALL_NEXT(cudaIpcOpenEventHandle, event, handle);
    void *opened = (void *)(uintptr_t)ibx_get_u64(&r);
    if (rc == CUDA_INVALID_HANDLE)
        return ibx_frontend_fail(CUDA_MAP_FAILED);
    if (!rc && is_own_event(opened))
        rc = ibx_frontend_fail(CUDA_INVALID_CONTEXT);
    if (!rc && !note(OPENED_EVENT, opened))
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (!rc)
        *event = opened;
    return rc;
}

/* An event of another process is only closed here. */
int cudaEventDestroy(void *event)
{
    ibx_frontend_owned_gone(OWNED_EVENT, event);
    if (ibx_frontend_capturing())
        ibx_frontend_forks_event_gone(event);
    bool last;
    forget(SHARED_EVENT, event, &last);
    if (!forget(OPENED_EVENT, event, &last))
        return CALL_NEXT(cudaEventDestroy, event);
    tell_closed(OPENED_EVENT, event);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------- pools, and memory of them */

bool ibx_frontend_pool_opened(void *pool)
{
    return note(OPENED_POOL, pool);
}

bool ibx_frontend_pool_closed(const void *pool)
{
    bool last;
    const bool opened = forget(OPENED_POOL, pool, &last);
    if (opened)
        tell_closed(OPENED_POOL, pool);
    return opened;
}

bool ibx_frontend_pointer_opened(void *memory, size_t n)
{
    if (!note(OPENED_POINTER, memory))
        return false;
    ibx_frontend_device_memory(memory, n);
    return true;
}

bool ibx_frontend_pointer_closed(const void *memory)
{
    bool last = false;
    const bool opened = forget(OPENED_POINTER, memory, &last);
    if (last)
        ibx_frontend_device_memory_gone(memory);
    if (opened)
        tell_closed(OPENED_POINTER, memory);
    return opened;
}

/* --------------------------------------------------------------------------------------- all */

void ibx_frontend_opened_reset(void)
{
    for (struct opened *gone; (gone = take_any());) {
        if (gone->kind == OPENED_MEMORY || gone->kind == OPENED_POINTER)
            ibx_frontend_device_memory_gone((void *)gone->value);
        for (; gone->times && gone->kind != SHARED_EVENT; gone->times--)
            tell_closed(gone->kind, (void *)gone->value);
        free(gone);
    }
}
