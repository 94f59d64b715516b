/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory pools, as extension requests. The current pool of a device is a setting of this
 * process, and kept here, because to CUDA all clients of a process of the back end are one process.
 * Pools of this host's memory are not the back end's: see host_pools.c.
 * A pool that this process exports has a handle by which another process opens it (ipc.c,
 * handle_files.c).
 */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/memory/host_pools.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>
#include <stdlib.h>

#define DEVICES      64
#define PAGE_LOCKED  1  /* cudaMemAllocationTypePinned */
#define POSIX_FILE   1  /* cudaMemHandleTypePosixFileDescriptor */
#define MANAGED      2  /* cudaMemAllocationTypeManaged */
#define HANDLE_TYPES 15 /* all of cudaMemAllocationHandleType */
#define UNKNOWN      (-1)

static _Atomic(void *) set_for[DEVICES]; /* NULL: the default pool */
static atomic_bool any_set;              /* at some time */

static void *pool_set_for(int device)
{
    return device >= 0 && device < DEVICES ? atomic_load(&set_for[device]) : NULL;
}

/* A child has none of the parent's pools. */
static void in_child(void)
{
    for (int i = 0; i < DEVICES; i++)
        atomic_store(&set_for[i], NULL);
    ibx_host_pools_in_child();
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* The pools of the device are destroyed, and its current pool is the default again. */
void ibx_frontend_pools_reset(int device)
{
    if (device >= 0 && device < DEVICES)
        atomic_store(&set_for[device], NULL);
}

int ibx_frontend_device_of_stream(const void *stream)
{
    struct extension_request e;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_STREAM_DEVICE, "cudaStreamGetDevice");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return (uintptr_t)stream > (uintptr_t)CUDA_STREAM_PER_THREAD && !ibx_frontend_one_device() &&
                   ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code) && !code
               ? (int)ibx_get_u64(&r)
               : ibx_frontend_current_device();
}

/* ------------------------------------------------------------------------- their devices */

/* Without memory for the entry, the pool counts as the device's that its memory is allocated for.
 */
static void note_device(void *pool, int device)
{
    struct thing *made = calloc(1, sizeof(*made));
    if (!made)
        return;
    *made = (struct thing){.kind = THING_POOL, .device = device, .handle = (uintptr_t)pool};
    ibx_frontend_thing_made(made);
}

/* The device of the pool's memory; `otherwise`: this process has not seen where it comes from. */
static int device_of(const void *pool, int otherwise)
{
    const struct thing *known = ibx_frontend_thing_hold(THING_POOL, (uintptr_t)pool);
    const int device = known ? known->device : otherwise;
    ibx_frontend_things_let_go();
    return device;
}

/* ------------------------------------------------------------------------- pools of memory */

static int allocate(struct extension_request *e, void **address, size_t n, int device)
{
    uint64_t made = 0;
    int rc = address ? ibx_frontend_request_ask(e, &made) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (address)
        *address = rc ? NULL : (void *)(uintptr_t)made;
    if (rc)
        return rc;
    ibx_frontend_memory_of(*address, n, device);
    ibx_frontend_ordered_memory();
    return CUDA_SUCCESS;
}

int cudaMallocAsync(void **address, size_t n, void *stream)
{
    struct extension_request e;
    ibx_frontend_look_for_libraries();
    const int device = ibx_frontend_device_of_stream(stream);
    void *pool = atomic_load(&any_set) ? pool_set_for(device) : NULL;
    if (pool)
        return cudaMallocFromPoolAsync(address, n, pool, stream);
    const int unsafe = ibx_frontend_unsafe_in(stream);
    if (unsafe)
        return unsafe;
    ibx_frontend_request_begin(&e, IBX_EXT_MALLOC_ASYNC, "cudaMallocAsync");
    ibx_put_u64(&e.body, n);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return allocate(&e, address, n, device);
}

int cudaMallocFromPoolAsync(void **address, size_t n, void *pool, void *stream)
{
    struct extension_request e;
    const int unsafe = ibx_frontend_unsafe_in(stream);
    if (unsafe)
        return unsafe;
    if (ibx_host_pool_is(pool))
        return ibx_host_pool_allocate(address, n, pool, stream);
    /* A pool of another process, from which this one cannot allocate. */
    if (ibx_frontend_opened(OPENED_POOL, pool))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_request_begin(&e, IBX_EXT_MALLOC_FROM_POOL, "cudaMallocFromPoolAsync");
    ibx_put_u64(&e.body, n);
    ibx_put_u64(&e.body, (uintptr_t)pool);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    const int device = device_of(pool, UNKNOWN);
    return allocate(&e, address, n,
                    device == UNKNOWN ? ibx_frontend_device_of_stream(stream) : device);
}

/* Managed memory is mapped in this process, too, where work of the stream may still need it. */
static int free_managed(void *address, void *stream)
{
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = ibx_frontend_stream_wait(stream);
    return rc ? rc : cudaFree(address);
}

int cudaFreeAsync(void *address, void *stream)
{
    struct extension_request e;
    const int unsafe = address ? ibx_frontend_unsafe_in(stream) : CUDA_SUCCESS;
    if (!address || unsafe)
        return unsafe;
    ibx_frontend_owned_gone(OWNED_MEMORY, address);
    ibx_frontend_request_begin(&e, IBX_EXT_FREE_ASYNC, "cudaFreeAsync");
    if (ibx_frontend_is_managed(address))
        return free_managed(address, stream);
    if (ibx_host_pool_has(address))
        return ibx_host_pool_free(address, stream);
    if (ibx_frontend_opened(OPENED_MEMORY, address) || ibx_frontend_is_reserved(address))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_frontend_pointer_closed(address))
        return CUDA_SUCCESS;
    ibx_put_u64(&e.body, (uintptr_t)address);
    ibx_put_u64(&e.body, (uintptr_t)stream);
    /* Before the call: another thread may get the same address right after it. */
    ibx_frontend_device_memory_gone(address);
    ibx_frontend_ordered_memory();
    return ibx_frontend_request_make(&e, NULL, 0);
}

static int pool_of(struct extension_request *e, void **pool, int device)
{
    uint64_t found = 0;
    ibx_put_u32(&e->body, (uint32_t)device);
    int rc = pool ? ibx_frontend_request_ask(e, &found) : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!rc) {
        *pool = (void *)(uintptr_t)found;
        note_device(*pool, device);
    }
    return rc;
}

int cudaDeviceGetDefaultMemPool(void **pool, int device)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_DEFAULT, "cudaDeviceGetDefaultMemPool");
    return pool_of(&e, pool, device);
}

int cudaDeviceGetMemPool(void **pool, int device)
{
    struct extension_request e;
    void *set = pool_set_for(device);
    if (pool && set) {
        *pool = set;
        return CUDA_SUCCESS;
    }
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_CURRENT, "cudaDeviceGetMemPool");
    return pool_of(&e, pool, device);
}

#define POOL_INTS 3 /* attributes up to this one have 32 bits, the others 64 */

int cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    struct extension_request e;
    uint64_t number = 0;
    const int unsafe = ibx_frontend_unsafe();
    if (unsafe || !value)
        return unsafe ? unsafe : ibx_frontend_fail(CUDA_INVALID_VALUE);
    memcpy(&number, value, attribute <= POOL_INTS ? sizeof(int) : sizeof(number));
    if (ibx_host_pool_is(pool))
        return ibx_host_pool_set(pool, attribute, number);
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_SET, "cudaMemPoolSetAttribute");
    ibx_put_u64(&e.body, (uintptr_t)pool);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    ibx_put_u64(&e.body, number);
    return ibx_frontend_request_make(&e, NULL, 0);
}

static int get_attribute(void *pool, int attribute, void *value)
{
    struct extension_request e;
    uint64_t number = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_GET, "cudaMemPoolGetAttribute");
    ibx_put_u64(&e.body, (uintptr_t)pool);
    ibx_put_u32(&e.body, (uint32_t)attribute);
    int rc = !value                   ? ibx_frontend_fail(CUDA_INVALID_VALUE)
             : ibx_host_pool_is(pool) ? ibx_host_pool_get(pool, attribute, &number)
                                      : ibx_frontend_request_ask(&e, &number);
    if (!rc)
        memcpy(value, &number, attribute <= POOL_INTS ? sizeof(int) : sizeof(number));
    return rc;
}

int cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    const int unsafe = ibx_frontend_unsafe();
    return unsafe ? unsafe : get_attribute(pool, attribute, value);
}

int cudaMemPoolTrimTo(void *pool, size_t keep)
{
    struct extension_request e;
    const int unsafe = ibx_frontend_unsafe();
    if (unsafe)
        return unsafe;
    if (ibx_host_pool_is(pool))
        return ibx_host_pool_trim(pool, keep);
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_TRIM, "cudaMemPoolTrimTo");
    ibx_put_u64(&e.body, (uintptr_t)pool);
    ibx_put_u64(&e.body, keep);
    return ibx_frontend_request_make(&e, NULL, 0);
}

/* ------------------------------------------------------------------------- pools of one's own */

/* CUDA's error for a pool that is not supported, or 0. */
static int wrong_pool(const struct pool_properties *p)
{
    const bool managed = p->allocation == MANAGED;
    int count = 0;
    if (p->handles & ~HANDLE_TYPES || (p->allocation != PAGE_LOCKED && !managed))
        return CUDA_INVALID_VALUE;
    switch (p->location.type) {
    case CUDA_AT_DEVICE:
        return p->location.id >= 0 && !cudaGetDeviceCount(&count) && p->location.id < count
                   ? CUDA_SUCCESS
                   : CUDA_INVALID_VALUE;
    case CUDA_AT_NODE:
        return ibx_frontend_host_node(p->location.id) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    case CUDA_AT_HOST:
        return managed || !p->handles ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    default:
        return managed ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    }
}

int cudaMemPoolCreate(void **pool, const struct pool_properties *properties)
{
    struct extension_request e;
    uint64_t made = 0;
    int rc = ibx_frontend_unsafe();
    if (rc)
        return rc;
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_CREATE, "cudaMemPoolCreate");
    if (!pool || !properties || wrong_pool(properties))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool device = properties->location.type == CUDA_AT_DEVICE;
    if (properties->allocation == PAGE_LOCKED && !device && !properties->handles)
        return ibx_host_pool_create(pool, properties->most);
    if (properties->allocation != PAGE_LOCKED || !device || properties->handles & ~POSIX_FILE)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    ibx_put_u32(&e.body, (uint32_t)properties->location.id);
    ibx_put_u64(&e.body, properties->most);
    ibx_put_u16(&e.body, properties->usage);
    if (properties->handles)
        ibx_put_u8(&e.body, (uint8_t)properties->handles);
    rc = ibx_frontend_request_ask(&e, &made);
    if (!rc) {
        *pool = (void *)(uintptr_t)made;
        note_device(*pool, properties->location.id);
    }
    return rc;
}

int cudaMemPoolDestroy(void *pool)
{
    struct extension_request e;
    int rc = ibx_frontend_unsafe();
    if (rc)
        return rc;
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_DESTROY, "cudaMemPoolDestroy");
    for (int i = 0; i < DEVICES; i++)
        atomic_compare_exchange_strong(&set_for[i], &(void *){pool}, NULL);
    if (ibx_host_pool_is(pool))
        return ibx_host_pool_destroy(pool);
    if (ibx_frontend_pool_closed(pool)) /* a pool of another process is only closed here */
        return CUDA_SUCCESS;
    ibx_put_u64(&e.body, (uintptr_t)pool);
    rc = ibx_frontend_request_make(&e, NULL, 0);
    if (!rc)
        free(ibx_frontend_thing_take(THING_POOL, (uintptr_t)pool));
    return rc;
}

int cudaDeviceSetMemPool(int device, void *pool)
{
    uint64_t unused = 0;
    if (!pool || device < 0 || device >= DEVICES || ibx_host_pool_is(pool) ||
        device_of(pool, device) != device)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    /* Checks that it is a pool. */
    const int rc = get_attribute(pool, POOL_INTS + 1, &unused);
    if (!rc) {
        atomic_store(&set_for[device], pool);
        atomic_store(&any_set, true);
    }
    return rc;
}

int cudaMemPoolSetAccess(void *pool, const struct memory_access *list, size_t count)
{
    int rc = ibx_frontend_unsafe();
    if (!rc && count && !list)
        rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < count && !rc && ibx_host_pool_is(pool); i++)
        rc = ibx_host_pool_access(pool, &list[i].location, &list[i].flags, NULL);
    for (size_t i = 0; i < count && !rc && !ibx_host_pool_is(pool); i++) {
        struct extension_request e;
        ibx_frontend_request_begin(&e, IBX_EXT_POOL_SET_ACCESS, "cudaMemPoolSetAccess");
        ibx_put_u64(&e.body, (uintptr_t)pool);
        ibx_put_u32(&e.body, (uint32_t)list[i].location.id);
        ibx_put_u32(&e.body, (uint32_t)list[i].flags);
        rc = list[i].location.type == CUDA_AT_DEVICE ? ibx_frontend_request_make(&e, NULL, 0)
                                                     : ibx_frontend_fail(CUDA_INVALID_VALUE);
    }
    return rc;
}

int cudaMemPoolGetAccess(int *flags, void *pool, const struct memory_location *location)
{
    struct extension_request e;
    uint8_t bytes[4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_POOL_GET_ACCESS, "cudaMemPoolGetAccess");
    if (flags && location && ibx_host_pool_is(pool))
        return ibx_host_pool_access(pool, location, NULL, flags);
    if (!flags || !location || location->type != CUDA_AT_DEVICE)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)pool);
    ibx_put_u32(&e.body, (uint32_t)location->id);
    const int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    if (!rc)
        *flags = (int)ibx_get_u32(&r);
    return rc;
}

/* ------------------------------------------------------------------------- of other processes */

int cudaMemPoolExportToShareableHandle(void *made, void *pool, int type, unsigned flags)
{
    struct extension_request e;
    uint8_t handle[IBX_EXT_HANDLE];
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_POOL, "cudaMemPoolExportToShareableHandle");
    const bool wrong = !made || flags || ibx_host_pool_is(pool);
    if (wrong || type != POSIX_FILE)
        return ibx_frontend_fail(wrong ? CUDA_INVALID_VALUE : CUDA_NOT_SUPPORTED);
    ibx_put_u64(&e.body, (uintptr_t)pool);
    const int rc = ibx_frontend_request_make(&e, handle, sizeof(handle));
    if (rc)
        return rc;
    const int fd = ibx_frontend_handle_file(FILE_OF_POOL, handle);
    if (fd < 0)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    memcpy(made, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

/* `handle` is the file descriptor itself, which remains the caller's. */
int cudaMemPoolImportFromShareableHandle(void **pool, void *handle, int type, unsigned flags)
{
    struct extension_request e;
    uint64_t found = 0;
    uint8_t bytes[IBX_EXT_HANDLE];
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_OPEN_POOL, "cudaMemPoolImportFromShareableHandle");
    if (!pool || flags || type != POSIX_FILE)
        return ibx_frontend_fail(!pool || flags ? CUDA_INVALID_VALUE : CUDA_NOT_SUPPORTED);
    if (!ibx_frontend_handle_in_file(FILE_OF_POOL, (int)(intptr_t)handle, bytes))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_bytes(&e.body, bytes, sizeof(bytes));
    int rc = ibx_frontend_request_ask(&e, &found);
    if (!rc && !ibx_frontend_pool_opened((void *)(uintptr_t)found))
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (!rc)
        *pool = (void *)(uintptr_t)found;
    return rc;
}

int cudaMemPoolExportPointer(struct ipc_handle *handle, void *address)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_MEMORY, "cudaMemPoolExportPointer");
    if (!handle)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)address);
    return ibx_frontend_request_make(&e, handle->bytes, sizeof(handle->bytes));
}

int cudaMemPoolImportPointer(void **address, void *pool, const struct ipc_handle *handle)
{
    struct extension_request e;
    uint8_t bytes[16] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_frontend_request_begin(&e, IBX_EXT_IPC_OPEN_POINTER, "cudaMemPoolImportPointer");
    if (!address || !handle)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_put_u64(&e.body, (uintptr_t)pool);
    ibx_put_bytes(&e.body, handle->bytes, sizeof(handle->bytes));
    const int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    if (rc)
        return rc;
    void *memory = (void *)(uintptr_t)ibx_get_u64(&r);
    if (!ibx_frontend_pointer_opened(memory, ibx_get_u64(&r)))
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    *address = memory;
    return CUDA_SUCCESS;
}
