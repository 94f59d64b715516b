/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients open that other programs' processes have shared (shared_handles.c). CUDA maps memory
 * into this process once for all clients that open it, and does the same with pools and memory of
 * these. Each time that an event is opened, CUDA makes a new one.
 */
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/extensions/passed_descriptors.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#define LAZY_PEER_ACCESS 1 /* cudaIpcMemLazyEnablePeerAccess */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int find(const struct extension_request *e, enum ibx_shared_kind kind, const uint8_t *handle,
                struct ibx_shared_handle *theirs)
{
    return ibx_shared_handles_any() && ibx_shared_is_number(handle) &&
                   ibx_shared_handles_find(ibx_tenant_name_in_all(e->x->isolation.tenant), kind,
                                           handle, theirs)
               ? 0
               : CUDA_INVALID_HANDLE;
}

/* Notes memory as opened by the client; the first to open it notes it as the tenant's, too. */
static bool note_memory(struct gpu_session *x, enum ibx_handle_kind kind, void *memory, uint64_t n,
                        bool *again)
{
    void *context = NULL;
    const bool noted = ibx_handles_open_theirs(x, kind, (uintptr_t)memory, again);
    if (!noted || *again || !x->isolation.on)
        return noted;
    if (!x->cuda->ctx_get_current(&context) &&
        ibx_owners_add(x->isolation.tenant, (uintptr_t)memory, n, context, 0))
        return true;
    ibx_handles_remove(x, kind, (uintptr_t)memory);
    return false;
}

/* Limits *n, which another process has stated, to the allocation. */
static void limit_to_allocation(const struct extension_request *e, uint64_t memory, uint64_t *n)
{
    uint64_t base = 0;
    size_t all = 0;
    if (!e->x->cuda->mem_get_address_range(&base, &all, memory) && base + all - memory < *n)
        *n = base + all - memory;
}

int ibx_opened_memory(struct extension_request *e, const uint8_t *handle)
{
    int (*open_it)(void **memory, struct ibx_cuda_handle cuda, unsigned flags) = NULL;
    struct ibx_shared_handle theirs;
    void *memory = NULL;
    bool again;
    int rc = find(e, IBX_SHARED_MEMORY, handle, &theirs);
    if (!rc && !ready(e))
        rc = CUDA_INVALID_HANDLE;
    if (rc)
        return rc;
    FUNCTION(e, open_it);
    pthread_mutex_lock(&opening);
    rc = open_it(&memory, theirs.cuda, LAZY_PEER_ACCESS);
    if (!rc)
        limit_to_allocation(e, (uintptr_t)memory, &theirs.n);
    const bool noted = !rc && note_memory(e->x, IBX_HANDLE_OPENED, memory, theirs.n, &again);
    if (!rc && (!noted || again)) /* CUDA counts openings, and ours is closed once */
        ibx_back_end_undo("cudaIpcCloseMemHandle", (uintptr_t)memory);
    pthread_mutex_unlock(&opening);
    rc = rc || noted ? rc : CUDA_MEMORY_ALLOCATION;
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)memory);
    ibx_put_u64(&e->out, rc ? 0 : theirs.n);
    return rc;
}

/* Each opening makes an event of its own. */
int ibx_opened_event(struct extension_request *e, const uint8_t *handle)
{
    int (*open_it)(void **event, struct ibx_cuda_handle cuda) = NULL;
    struct ibx_shared_handle theirs;
    void *event = NULL;
    bool again;
    int rc = find(e, IBX_SHARED_EVENT, handle, &theirs);
    if (!rc && !ready(e))
        rc = CUDA_INVALID_HANDLE;
    if (!rc && !ibx_room_take(e->x, IBX_HOLD_EVENTS, 1))
        rc = CUDA_MEMORY_ALLOCATION;
    if (rc)
        return rc;
    FUNCTION(e, open_it);
    rc = open_it(&event, theirs.cuda);
    if (!rc && !ibx_handles_open_theirs(e->x, IBX_HANDLE_EVENT, (uintptr_t)event, &again)) {
        ibx_back_end_undo("cudaEventDestroy", (uintptr_t)event);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_room_give(e->x, IBX_HOLD_EVENTS, 1);
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)event);
    return rc;
}

/* ------------------------------------------------------------------------ pools of another */

/*
 * Within a process CUDA opens a pool of another process, and memory of it, only once, and does not
 * count openings (H200, driver 580): a second handle is the first one, and is gone when either is
 * closed. A pool with memory open is not closed: it holds all memory of that pool, even when the
 * process that made it has ended. So open memory counts as an opening of its pool.
 */

/* Locked by `opening`. */
static void give_pooled(enum ibx_handle_kind kind, uint64_t value)
{
    if (!ibx_handles_there(kind, value))
        ibx_back_end_undo(kind == IBX_HANDLE_OPENED_POOL ? "cudaMemPoolDestroy" : "cudaFree",
                          value);
}

void ibx_opened_give_back(enum ibx_handle_kind kind, uint64_t value)
{
    pthread_mutex_lock(&opening);
    give_pooled(kind, value);
    pthread_mutex_unlock(&opening);
}

static int fetch(const struct extension_request *e, const struct ibx_shared_handle *theirs, int *fd)
{
    *fd = ibx_passed_fetch(&theirs->cuda);
    if (*fd >= 0 || *fd == -ENOENT)
        return *fd < 0 ? CUDA_INVALID_HANDLE : 0;
    ibx_log(IBX_LOG_ERROR,
            "%s opens %s of another program, which is refused: its descriptor does not come from "
            "the process of the back end that has it: %s",
            ibx_session_path(e->x->s)->peer,
            theirs->kind == IBX_SHARED_POOL ? "a pool of memory" : "mapped memory", strerror(-*fd));
    return CUDA_OPERATING_SYSTEM;
}

static int open_pool(struct extension_request *e, int fd, uint64_t *opened)
{
    int (*import)(void **pool, void *descriptor, int type, unsigned flags) = NULL;
    void *pool = NULL;
    bool again;
    FUNCTION(e, import);
    pthread_mutex_lock(&opening);
    int rc = import(&pool, pointer_to((uint64_t)fd), IBX_POSIX_FILE, 0);
    if (!rc && !ibx_handles_open_theirs(e->x, IBX_HANDLE_OPENED_POOL, (uintptr_t)pool, &again)) {
        give_pooled(IBX_HANDLE_OPENED_POOL, (uintptr_t)pool);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    pthread_mutex_unlock(&opening);
    *opened = rc ? 0 : (uintptr_t)pool;
    return rc;
}

int ibx_opened_pool(struct extension_request *e, const uint8_t *handle)
{
    struct ibx_shared_handle theirs;
    uint64_t pool = 0;
    int fd = -1, rc = find(e, IBX_SHARED_POOL, handle, &theirs);
    if (!rc && !ready(e))
        rc = CUDA_INVALID_HANDLE;
    rc = rc ? rc : fetch(e, &theirs, &fd);
    if (!rc && !ibx_room_take(e->x, IBX_HOLD_POOLS, 1))
        rc = CUDA_MEMORY_ALLOCATION;
    if (!rc) {
        rc = open_pool(e, fd, &pool);
        ibx_room_give(e->x, IBX_HOLD_POOLS, 1);
    }
    if (fd >= 0)
        close(fd);
    ibx_put_u64(&e->out, pool);
    return rc;
}

int ibx_opened_mappable(const struct extension_request *e, const uint8_t *handle,
                        struct ibx_virtual_memory *is)
{
    struct ibx_shared_handle theirs;
    int fd = -1, rc = find(e, IBX_SHARED_MAPPABLE, handle, &theirs);
    rc = rc ? rc : fetch(e, &theirs, &fd);
    if (rc)
        return rc;
    *is = (struct ibx_virtual_memory){.n = theirs.n, .device = theirs.device};
    rc = ibx_virtual_import(e->x, fd, is);
    close(fd);
    return rc;
}

/* Locked by `opening`. */
static int note_pooled(struct gpu_session *x, uint64_t pool, void *memory, uint64_t n)
{
    bool again;
    if (note_memory(x, IBX_HANDLE_OPENED_POINTER, memory, n, &again) &&
        ibx_handles_open(x, IBX_HANDLE_OPENED_POOL, pool))
        return 0;
    if (ibx_handles_close(x, IBX_HANDLE_OPENED_POINTER, (uintptr_t)memory))
        ibx_handles_remove(x, IBX_HANDLE_OPENED_POINTER, (uintptr_t)memory);
    give_pooled(IBX_HANDLE_OPENED_POINTER, (uintptr_t)memory);
    return CUDA_MEMORY_ALLOCATION;
}

int ibx_opened_pointer(struct extension_request *e, const void *pool, const uint8_t *handle)
{
    int (*import)(void **memory, const void *from, const struct ibx_cuda_handle *cuda) = NULL;
    struct ibx_shared_handle theirs;
    void *memory = NULL;
    int rc = find(e, IBX_SHARED_POINTER, handle, &theirs);
    if (!rc && !ready(e))
        rc = CUDA_INVALID_HANDLE;
    if (rc)
        return rc;
    FUNCTION(e, import);
    pthread_mutex_lock(&opening);
    const bool there = ibx_handles_has(e->x, IBX_HANDLE_OPENED_POOL, (uintptr_t)pool);
    rc = there ? import(&memory, pool, &theirs.cuda) : CUDA_INVALID_VALUE;
    if (!rc)
        limit_to_allocation(e, (uintptr_t)memory, &theirs.n);
    rc = rc ? rc : note_pooled(e->x, (uintptr_t)pool, memory, theirs.n);
    pthread_mutex_unlock(&opening);
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)memory);
    ibx_put_u64(&e->out, rc ? 0 : theirs.n);
    return rc;
}

/* Locked by `opening`. Closes it for the client; the last close gives it back. */
static void close_pooled(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    const uint64_t owned = ibx_room_owned(x, value);
    if (!ibx_handles_close(x, kind, value) || !ibx_handles_remove(x, kind, value))
        return;
    ibx_gpu_registrations_freed(&x->registrations, value);
    give_pooled(kind, value);
    ibx_owners_remove(value, owned);
}

static void close_pointer(struct gpu_session *x, uint64_t memory)
{
    void *pool = NULL, *values[] = {&pool};
    const int name = IBX_CUDA_POINTER_MEMPOOL;
    const bool opened = ibx_handles_opened_by(x, IBX_HANDLE_OPENED_POINTER, memory);
    if (!opened || x->cuda->pointer_get_attributes(1, &name, values, memory))
        return;
    close_pooled(x, IBX_HANDLE_OPENED_POINTER, memory);
    close_pooled(x, IBX_HANDLE_OPENED_POOL, (uintptr_t)pool);
}

/* --------------------------------------------------------------------------------- closed */

/* The last close of what another process has made. Whether the caller is to give it back to CUDA:
 * not while other requests use an event, the last of which destroys it. */
static bool close_last(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    bool later = false;
    if (kind != IBX_HANDLE_EVENT)
        return ibx_handles_remove(x, kind, value);
    return ibx_handles_destroy(x, kind, value, ibx_release_destroyed, &later) && !later;
}

void ibx_opened_close(struct extension_request *e, enum ibx_handle_kind kind, uint64_t value)
{
    struct gpu_session *x = e->x;
    bool last = false;
    pthread_mutex_lock(&opening);
    if (kind == IBX_HANDLE_OPENED_POINTER)
        close_pointer(x, value);
    else if (kind == IBX_HANDLE_OPENED_POOL)
        close_pooled(x, kind, value);
    else
        last = ibx_handles_close(x, kind, value) && close_last(x, kind, value);
    pthread_mutex_unlock(&opening);
    if (!last)
        return;
    const uint64_t owned = ibx_room_owned(x, value);
    ibx_gpu_registrations_freed(&x->registrations, value);
    ibx_frees_begin(x, value);
    ibx_back_end_undo(kind == IBX_HANDLE_EVENT ? "cudaEventDestroy" : "cudaIpcCloseMemHandle",
                      value);
    ibx_frees_end();
    ibx_owners_remove(value, owned);
}
