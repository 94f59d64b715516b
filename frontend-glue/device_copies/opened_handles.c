/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients open of other programs' processes (shared_handles.c), by CUDA: memory that it maps
 * into this process, once for all clients that open it, and events, which are new ones each time.
 */
#include "frontend-glue/device_copies/extra.h"

#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>

#define LAZY_PEER_ACCESS 1 /* cudaIpcMemLazyEnablePeerAccess */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static void tell_pooled(const struct extra *e)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s opens a pool of another program, or memory of one: refused, programs that have "
                "a process each share memory of cudaMalloc; take that, or rdma.processes : one",
                ibx_session_path(e->x->s)->peer);
}

static int find(const struct extra *e, enum ibx_shared_kind kind, const uint8_t *handle,
                struct ibx_shared_handle *theirs)
{
    if (!ibx_shared_handles_any() || !ibx_shared_is_number(handle) ||
        !ibx_shared_handles_find(ibx_tenant_name(e->x->isolation.tenant), kind, handle, theirs))
        return CUDA_INVALID_HANDLE;
    if (!theirs->opens)
        tell_pooled(e);
    return theirs->opens ? 0 : CUDA_NOT_SUPPORTED;
}

int ibx_opened_refused(const struct extra *e, enum ibx_shared_kind kind, const uint8_t *handle)
{
    struct ibx_shared_handle theirs;
    const int rc = find(e, kind, handle, &theirs);
    return rc ? rc : CUDA_INVALID_VALUE;
}

/* CUDA counts what is opened once more, and gives it back when it was closed as often. */
static int note_memory(struct extra *e, void *memory, uint64_t n)
{
    void *context = NULL;
    bool again;
    struct copies *x = e->x;
    bool noted = ibx_handles_open_theirs(x, IBX_HANDLE_OPENED, (uintptr_t)memory, &again);
    if (noted && !again && x->isolation.on &&
        (x->cuda->ctx_get_current(&context) ||
         !ibx_owners_add(x->isolation.tenant, (uintptr_t)memory, n, context, 0))) {
        ibx_handles_remove(x, IBX_HANDLE_OPENED, (uintptr_t)memory);
        noted = false;
    }
    if (!noted || again)
        ibx_extra_undo("cudaIpcCloseMemHandle", (uintptr_t)memory);
    return noted ? 0 : CUDA_MEMORY_ALLOCATION;
}

/* How long it is another process has said. */
static void limit_to_allocation(const struct extra *e, uint64_t memory, uint64_t *n)
{
    uint64_t base = 0;
    size_t all = 0;
    if (!e->x->cuda->mem_get_address_range(&base, &all, memory) && base + all - memory < *n)
        *n = base + all - memory;
}

int ibx_opened_memory(struct extra *e, const uint8_t *handle)
{
    int (*open_it)(void **memory, struct ibx_cuda_handle cuda, unsigned flags) = NULL;
    struct ibx_shared_handle theirs;
    void *memory = NULL;
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
    rc = rc ? rc : note_memory(e, memory, theirs.n);
    pthread_mutex_unlock(&opening);
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)memory);
    ibx_put_u64(&e->out, rc ? 0 : theirs.n);
    return rc;
}

/* Each is an event of its own. */
int ibx_opened_event(struct extra *e, const uint8_t *handle)
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
        ibx_extra_undo("cudaEventDestroy", (uintptr_t)event);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    ibx_room_give(e->x, IBX_HOLD_EVENTS, 1);
    ibx_put_u64(&e->out, rc ? 0 : (uintptr_t)event);
    return rc;
}

void ibx_opened_close(struct extra *e, enum ibx_handle_kind kind, uint64_t value)
{
    struct copies *x = e->x;
    pthread_mutex_lock(&opening);
    const bool last = ibx_handles_close(x, kind, value) && ibx_handles_remove(x, kind, value);
    pthread_mutex_unlock(&opening);
    if (!last)
        return;
    const uint64_t owned = ibx_extra_owned(x, value);
    ibx_gpu_registrations_drop(&x->registrations, value);
    ibx_frees_begin(x, value);
    ibx_extra_undo(kind == IBX_HANDLE_EVENT ? "cudaEventDestroy" : "cudaIpcCloseMemHandle", value);
    ibx_frees_end();
    ibx_extra_disown(value, owned);
}
