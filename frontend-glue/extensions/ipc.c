/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about memory and events of other processes (cudaIpc*). All clients of a back
 * end are threads of one process with one context: memory that one has allocated has the same
 * address for the others, and CUDA would refuse to open its own handle in the process that made it.
 * So a handle is a random number that is valid only here, for clients of the tenant that asked for
 * it, until the memory is freed or the event destroyed. Using either after that is undefined in
 * CUDA, too. What its maker leaves when it ends is kept until all clients that have opened it have
 * closed it.
 *
 * If each program has a process of its own, the number leads other programs' processes to CUDA's
 * handle (shared_handles.c): what they open by it is memory, an event or a pool of another process,
 * as natively. For a pool, and for memory of cuMemCreate, CUDA's handle is a descriptor, which they
 * fetch (passed_descriptors.c).
 */
#include "frontend-glue/extensions/extensions.h"
#include "frontend-glue/extensions/passed_descriptors.h"
#include "frontend-glue/clients/virtual_memory.h"

#include "common/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SHARED_MAX 4096u             /* most of a tenant */
#define NUMBER     IBX_SHARED_NUMBER /* the first bytes of a handle; the others are zero */
#define BUCKETS    1024u             /* each free of any client looks into one */

struct shared {
    struct shared *next, **at;          /* of all, the newest first */
    struct shared *next_there, **there; /* of the bucket of its value */
    uint8_t number[NUMBER];
    enum ibx_shared_kind kind;
    uint64_t value, n; /* an event, a pool, or memory of n bytes; the number of the latter */
    int device;        /* of memory that is mapped */
    unsigned long long buffer; /* memory: CUDA's unique number of the allocation */
    const void *context;       /* in which it is; NULL: not known */
    const struct ibx_tenant *tenant;
    const struct gpu_session *maker; /* NULL: its session has ended */
    bool known;                      /* it is in the list of handles.c */
    bool pooled;                     /* memory of a pool */
    struct ibx_cuda_handle cuda;
    int place; /* in shared_handles.h; -1: not published */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared *all, *buckets[BUCKETS];
static atomic_uint count;

/* ---------------------------------------------------------------------------- the list; locked */

static struct shared **bucket_of(uint64_t value)
{
    return &buckets[(value * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BUCKETS];
}

static void add(struct shared *s)
{
    s->at = &all;
    s->next = all;
    if (s->next)
        s->next->at = &s->next;
    all = s;
    s->there = bucket_of(s->value);
    s->next_there = *s->there;
    if (s->next_there)
        s->next_there->there = &s->next_there;
    *s->there = s;
    atomic_fetch_add(&count, 1);
}

/* Whether other processes open it by CUDA's descriptor. */
static bool is_descriptor(enum ibx_shared_kind kind)
{
    return kind == IBX_SHARED_POOL || kind == IBX_SHARED_MAPPABLE;
}

/* Ends the offer of a descriptor, if there is one. */
static void withdraw(const struct shared *s)
{
    if (is_descriptor(s->kind) && ibx_shared_handles_any())
        ibx_passed_withdraw(&s->cuda);
}

static void drop(struct shared *gone)
{
    *gone->at = gone->next;
    if (gone->next)
        gone->next->at = gone->at;
    *gone->there = gone->next_there;
    if (gone->next_there)
        gone->next_there->there = gone->there;
    ibx_shared_handles_withdraw(gone->place);
    withdraw(gone);
    free(gone);
    atomic_fetch_sub(&count, 1);
}

static void drop_value(enum ibx_shared_kind kind, uint64_t value)
{
    for (struct shared *s = *bucket_of(value), *next; s; s = next) {
        next = s->next_there;
        if (s->kind == kind && s->value == value)
            drop(s);
    }
}

static struct shared *find_value(const struct shared *like)
{
    struct shared *s = *bucket_of(like->value);
    while (s && !(s->kind == like->kind && s->value == like->value && s->buffer == like->buffer &&
                  s->tenant == like->tenant))
        s = s->next_there;
    return s;
}

static const struct shared *find_number(const struct ibx_tenant *tenant, enum ibx_shared_kind kind,
                                        const uint8_t *handle)
{
    const struct shared *s = all;
    if (!ibx_shared_is_number(handle))
        return NULL;
    while (s && !(s->tenant == tenant && s->kind == kind && !memcmp(s->number, handle, NUMBER)))
        s = s->next;
    return s;
}

/* Makes room for another entry of the tenant. Entries stay when their session has ended; if the
 * tenant has too many entries, the oldest one without a session is dropped. False: there is no such
 * entry. */
static bool make_room(const struct ibx_tenant *tenant)
{
    unsigned of_tenant = 0;
    struct shared *left = NULL;
    if (atomic_load(&count) < SHARED_MAX) /* all tenants' */
        return true;
    for (struct shared *s = all; s; s = s->next) {
        of_tenant += s->tenant == tenant;
        if (s->tenant == tenant && !s->maker)
            left = s;
    }
    if (of_tenant < SHARED_MAX)
        return true;
    if (left)
        drop(left);
    return left;
}

/* False: there is no room. */
static bool publish(struct shared *s)
{
    struct ibx_shared_handle handle = {.kind = s->pooled ? IBX_SHARED_POINTER : s->kind,
                                       .cuda = s->cuda,
                                       .n = s->n,
                                       .device = s->device};
    if (!ibx_shared_handles_any())
        return true;
    memcpy(handle.number, s->number, sizeof(handle.number));
    s->place = ibx_shared_handles_publish(ibx_tenant_name_in_all(s->tenant), &handle);
    return s->place >= 0;
}

static struct shared *enter(const struct shared *made)
{
    drop_value(made->kind, made->value); /* an old one whose end was not seen */
    struct shared *s = make_room(made->tenant) ? malloc(sizeof(*s)) : NULL;
    if (!s)
        return NULL;
    *s = *made;
    s->place = -1;
    if (getrandom(s->number, sizeof(s->number), 0) != (ssize_t)sizeof(s->number) || !publish(s)) {
        free(s);
        return NULL;
    }
    add(s);
    return s;
}

/* ---------------------------------------------------------------------------------- its ends */

void ibx_ipc_gone(uint64_t value)
{
    if (!atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    for (enum ibx_shared_kind kind = IBX_SHARED_MEMORY; kind <= IBX_SHARED_POOL; kind++)
        drop_value(kind, value);
    pthread_mutex_unlock(&lock);
}

void ibx_ipc_mappable_gone(uint64_t number)
{
    if (!atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    drop_value(IBX_SHARED_MAPPABLE, number);
    pthread_mutex_unlock(&lock);
}

void ibx_ipc_end(const struct gpu_session *x)
{
    if (!atomic_load(&count))
        return;
    pthread_mutex_lock(&lock);
    for (struct shared *s = all; s; s = s->next)
        s->maker = s->maker == x ? NULL : s->maker;
    pthread_mutex_unlock(&lock);
}

void ibx_ipc_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct shared *s = all, *next; s; s = next) {
        next = s->next;
        if (!context || !s->context || s->context == context)
            drop(s);
    }
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------------------------- requests */

/* Finds the allocation of device memory with that address in it, if the client may name it. */
static bool measure(const struct extension_request *e, uint64_t address, struct shared *s)
{
    static const int names[] = {IBX_CUDA_POINTER_MEMORY_TYPE, IBX_CUDA_POINTER_IS_MANAGED,
                                IBX_CUDA_POINTER_BUFFER_ID, IBX_CUDA_POINTER_RANGE_START,
                                IBX_CUDA_POINTER_RANGE_SIZE};
    unsigned type = 0, managed = 0;
    size_t n = 0;
    void *values[] = {&type, &managed, &s->buffer, &s->value, &n};
    if (!address || ibx_virtual_holds(address) || !ready(e) ||
        e->x->cuda->pointer_get_attributes(5, names, values, address) ||
        type != IBX_CUDA_MEMORY_DEVICE || managed || !s->value || !n)
        return false;
    s->n = n;
    return mine(e, pointer_to(s->value), n);
}

/* NULL: it is not memory of a pool. */
static void *pool_of(const struct extension_request *e, uint64_t memory)
{
    void *pool = NULL, *values[] = {&pool};
    e->x->cuda->pointer_get_attributes(1, &(int){IBX_CUDA_POINTER_MEMPOOL}, values, memory);
    return pool;
}

static enum ibx_handle_kind handle_kind(enum ibx_shared_kind kind)
{
    return kind == IBX_SHARED_MEMORY     ? IBX_HANDLE_MEMORY
           : kind == IBX_SHARED_EVENT    ? IBX_HANDLE_EVENT
           : kind == IBX_SHARED_MAPPABLE ? IBX_HANDLE_MAPPABLE
                                         : IBX_HANDLE_MADE_POOL;
}

static int share(struct extension_request *e, struct shared *wish)
{
    void *context = NULL;
    uint8_t handle[IBX_EXT_HANDLE] = {0};
    wish->tenant = e->x->isolation.tenant;
    wish->maker = e->x;
    wish->known = wish->kind != IBX_SHARED_MAPPABLE &&
                  ibx_handles_has(e->x, handle_kind(wish->kind), wish->value);
    if (ibx_back_end_have_cuda(e->x) && !e->x->cuda->ctx_get_current(&context))
        wish->context = context;
    pthread_mutex_lock(&lock);
    struct shared *s = find_value(wish);
    if (s || !(s = enter(wish)))
        withdraw(wish);
    if (s) {
        s->maker = wish->maker;
        memcpy(handle, s->number, NUMBER);
    }
    pthread_mutex_unlock(&lock);
    if (s && (wish->kind == IBX_SHARED_MAPPABLE || ibx_shared_handles_any()))
        ibx_handles_expose(e->x, handle_kind(wish->kind), wish->value);
    ibx_put_bytes(&e->out, handle, sizeof(handle));
    return s ? 0 : CUDA_MEMORY_ALLOCATION;
}

static int share_memory(struct extension_request *e)
{
    int (*get)(struct ibx_cuda_handle * handle, void *memory) = NULL;
    struct shared wish = {0};
    const uint64_t address = ibx_get_u64(&e->in);
    if (!whole(e) || !measure(e, address, &wish))
        return CUDA_INVALID_VALUE;
    if (!ibx_shared_handles_any())
        return share(e, &wish);
    FUNCTION(e, get);
    wish.pooled = pool_of(e, wish.value);
    if (wish.pooled)
        *(void **)&get = ibx_back_end_runtime("cudaMemPoolExportPointer");
    const int rc = get ? get(&wish.cuda, pointer_to(wish.value)) : CUDA_NOT_SUPPORTED;
    return rc ? rc : share(e, &wish);
}

/* CUDA's own call checks whether the event can be shared. */
static int share_event(struct extension_request *e)
{
    int (*get)(struct ibx_cuda_handle * handle, void *event) = NULL;
    struct shared wish = {.kind = IBX_SHARED_EVENT, .value = (uintptr_t)event_in(e)};
    if (!whole(e) || !wish.value)
        return CUDA_INVALID_VALUE;
    FUNCTION(e, get);
    const int rc = get(&wish.cuda, pointer_to(wish.value));
    return rc ? rc : share(e, &wish);
}

static const uint8_t *handle_in(struct extension_request *e)
{
    const uint8_t *handle = ibx_get_bytes(&e->in, IBX_EXT_HANDLE);
    return whole(e) ? handle : NULL;
}

static int open_shared(const struct extension_request *e, enum ibx_shared_kind kind,
                       const uint8_t *handle, struct shared *found)
{
    pthread_mutex_lock(&lock);
    const struct shared *s = find_number(e->x->isolation.tenant, kind, handle);
    if (s)
        *found = *s;
    const bool there = s && (!s->known || ibx_handles_open(e->x, handle_kind(kind), s->value));
    pthread_mutex_unlock(&lock);
    return there ? 0 : CUDA_INVALID_HANDLE;
}

/* Checks that the memory is still what was shared, and that it is of `pool`, unless that is
 * NULL. */
static int check_found(struct extension_request *e, const struct shared *found, const void *pool)
{
    struct shared now = {0};
    if (!measure(e, found->value, &now) || now.buffer != found->buffer) { /* freed unseen */
        ibx_ipc_gone(found->value);
        return CUDA_INVALID_HANDLE;
    }
    return pool && pool_of(e, found->value) != pool ? CUDA_INVALID_VALUE : 0;
}

/* As cudaIpcOpenMemHandle does, gives the current device access to memory of another one. Most
 * likely another client has enabled it before, which would become the runtime's last error in place
 * of the client's; the driver has no last error. */
static void reach(const struct extension_request *e, uint64_t memory)
{
    const struct ibx_cuda *cuda = e->x->cuda;
    int (*enable)(void *peer, unsigned flags) = NULL;
    int current = -1, device = -1;
    void *peer = NULL, *values[] = {&device};
    *(void **)&enable = ibx_cuda_symbol("cuCtxEnablePeerAccess");
    if (!enable || !cuda->device_primary_ctx_retain || !cuda->device_primary_ctx_release ||
        cuda->ctx_get_device(&current) ||
        cuda->pointer_get_attributes(1, &(int){IBX_CUDA_POINTER_ORDINAL}, values, memory) ||
        device < 0 || device == current || cuda->device_primary_ctx_retain(&peer, device))
        return;
    enable(peer, 0);
    cuda->device_primary_ctx_release(device);
}

static int open_found(struct extension_request *e, const uint8_t *handle, const void *pool)
{
    struct shared found = {0};
    int rc = open_shared(e, IBX_SHARED_MEMORY, handle, &found);
    if (rc)
        return rc;
    rc = check_found(e, &found, pool);
    if (rc && found.known)
        ibx_handles_close(e->x, handle_kind(IBX_SHARED_MEMORY), found.value);
    if (rc)
        return rc;
    reach(e, found.value);
    ibx_put_u64(&e->out, found.value);
    ibx_put_u64(&e->out, found.n);
    return 0;
}

/* Takes over the descriptor. */
static int offer(const struct extension_request *e, struct shared *wish, int fd)
{
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    const int rc = ibx_passed_offer(fd, &wish->cuda);
    if (rc)
        ibx_log(
            IBX_LOG_ERROR, "%s shares %s, which is refused: %s", ibx_session_path(e->x->s)->peer,
            wish->kind == IBX_SHARED_POOL ? "a pool of memory" : "mapped memory", strerror(-rc));
    return rc ? CUDA_OPERATING_SYSTEM : 0;
}

static int offer_pool(struct extension_request *e, struct shared *wish)
{
    int (*get)(int *fd, void *pool, int type, unsigned flags) = NULL;
    int fd = -1;
    FUNCTION(e, get);
    const int rc = get(&fd, pointer_to(wish->value), IBX_POSIX_FILE, 0);
    return rc ? rc : offer(e, wish, fd);
}

static int share_pool(struct extension_request *e)
{
    struct shared wish = {.kind = IBX_SHARED_POOL, .value = ibx_get_u64(&e->in)};
    if (!whole(e) || !ibx_handles_know(e->x, IBX_HANDLE_MADE_POOL, wish.value))
        return CUDA_INVALID_VALUE;
    const int rc = ibx_shared_handles_any() ? offer_pool(e, &wish) : 0;
    return rc ? rc : share(e, &wish);
}

static int share_mappable(struct extension_request *e)
{
    struct shared wish = {.kind = IBX_SHARED_MAPPABLE, .value = ibx_get_u64(&e->in)};
    struct ibx_virtual_memory is;
    int fd = -1;
    if (!whole(e) || !ibx_handles_know(e->x, IBX_HANDLE_MAPPABLE, wish.value))
        return CUDA_INVALID_VALUE;
    int rc = ibx_virtual_export(wish.value, ibx_shared_handles_any() ? &fd : NULL, &is);
    if (rc)
        return rc;
    wish.n = is.n;
    wish.device = is.device;
    rc = fd >= 0 ? offer(e, &wish, fd) : 0;
    return rc ? rc : share(e, &wish);
}

/* ------------------------------------------------------------------------ opened and closed */

static int open_memory(struct extension_request *e)
{
    const uint8_t *handle = handle_in(e);
    if (!handle)
        return CUDA_INVALID_VALUE;
    const int rc = open_found(e, handle, NULL);
    return rc == CUDA_INVALID_HANDLE ? ibx_opened_memory(e, handle) : rc;
}

static int open_pointer(struct extension_request *e)
{
    const void *pool = pointer(&e->in);
    const uint8_t *handle = handle_in(e);
    if (!handle || !pool)
        return CUDA_INVALID_VALUE;
    if (ibx_handles_has(e->x, IBX_HANDLE_OPENED_POOL, (uintptr_t)pool))
        return ibx_opened_pointer(e, pool, handle);
    return ibx_extension_is_pool(e, pool) ? open_found(e, handle, pool) : CUDA_INVALID_VALUE;
}

static int open_pool(struct extension_request *e)
{
    struct shared found = {0};
    const uint8_t *handle = handle_in(e);
    int rc = handle ? open_shared(e, IBX_SHARED_POOL, handle, &found) : CUDA_INVALID_VALUE;
    if (rc == CUDA_INVALID_HANDLE)
        return ibx_opened_pool(e, handle);
    ibx_put_u64(&e->out, found.value);
    return rc;
}

/* The client gets a number of its own for the memory, and names it no longer by _VIRTUAL_RELEASE.
 */
static int open_mappable(struct extension_request *e)
{
    struct shared found = {0};
    struct ibx_virtual_memory is;
    const uint8_t *handle = handle_in(e);
    if (!handle || !ready(e) || !ibx_virtual_is_known())
        return handle ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE;
    int rc = open_shared(e, IBX_SHARED_MAPPABLE, handle, &found);
    rc = rc ? ibx_opened_mappable(e, handle, &is) : ibx_virtual_name_again(e->x, found.value, &is);
    if (rc)
        return rc;
    if (!ibx_handles_add(e->x, IBX_HANDLE_MAPPABLE, is.number)) {
        ibx_virtual_end_memory(is.number);
        return CUDA_MEMORY_ALLOCATION;
    }
    ibx_clients_share(ibx_clients_number(e->x));
    ibx_put_u64(&e->out, is.number);
    ibx_put_u64(&e->out, is.n);
    ibx_put_u32(&e->out, (uint32_t)is.device);
    return 0;
}

static int open_event(struct extension_request *e)
{
    struct shared found = {0};
    const uint8_t *handle = handle_in(e);
    const int rc = handle ? open_shared(e, IBX_SHARED_EVENT, handle, &found) : CUDA_INVALID_VALUE;
    if (rc == CUDA_INVALID_HANDLE)
        return ibx_opened_event(e, handle);
    ibx_put_u64(&e->out, found.value);
    return rc;
}

/* Closing something that was never opened succeeds, and does nothing. */
static int close_shared(struct extension_request *e)
{
    const uint8_t kind = ibx_get_u8(&e->in);
    const uint64_t value = ibx_get_u64(&e->in);
    if (!whole(e) || kind > IBX_SHARED_POOL)
        return CUDA_INVALID_VALUE;
    enum ibx_handle_kind what = handle_kind((enum ibx_shared_kind)kind);
    if (kind == IBX_SHARED_MEMORY && ibx_handles_has(e->x, IBX_HANDLE_OPENED, value))
        what = IBX_HANDLE_OPENED;
    else if (kind == IBX_SHARED_MEMORY && ibx_handles_has(e->x, IBX_HANDLE_OPENED_POINTER, value))
        what = IBX_HANDLE_OPENED_POINTER;
    else if (kind == IBX_SHARED_POOL && ibx_handles_has(e->x, IBX_HANDLE_OPENED_POOL, value))
        what = IBX_HANDLE_OPENED_POOL;
    ibx_opened_close(e, what, value);
    return 0;
}

const struct extension_call ibx_ipc_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_IPC_MEMORY] = {"cudaIpcGetMemHandle", share_memory},
    [IBX_EXT_IPC_OPEN_MEMORY] = {"cudaIpcOpenMemHandle", open_memory},
    [IBX_EXT_IPC_EVENT] = {"cudaIpcGetEventHandle", share_event},
    [IBX_EXT_IPC_OPEN_EVENT] = {"cudaIpcOpenEventHandle", open_event},
    [IBX_EXT_IPC_POOL] = {"cudaMemPoolExportToShareableHandle", share_pool},
    [IBX_EXT_IPC_OPEN_POOL] = {"cudaMemPoolImportFromShareableHandle", open_pool},
    [IBX_EXT_IPC_OPEN_POINTER] = {"cudaMemPoolImportPointer", open_pointer},
    [IBX_EXT_VIRTUAL_EXPORT] = {NULL, share_mappable},
    [IBX_EXT_VIRTUAL_IMPORT] = {NULL, open_mappable},
    [IBX_EXT_IPC_CLOSE] = {"cudaIpcGetMemHandle", close_shared},
};
