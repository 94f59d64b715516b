/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory and contexts of the double. */
#include "tests/doubles/cuda/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONTEXTS   8u
#define ATTRIBUTES 160

/* Front ends have no memory at these addresses. A test that needs an address of both sides maps
 * some there. */
#define DEVICE_BASE ((uintptr_t)0x200000000000)

/* CUdevice_attribute */
#define PCI_BUS         33
#define MAPS_MEMORY     102
#define EXPORTS_MEMORY  103
#define GPU_DIRECT_RDMA 116

static struct context contexts[2] = {{.device = 0}, {.device = 1}};
static __thread struct context *below[CONTEXTS]; /* the current one */
static __thread unsigned depth;
static bool peers[2]; /* whether kernels of the device reach memory of the other device */

/* ----------------------------------------------------------------------- memory */

/* An entry whose allocation is gone, or a new one. */
static struct allocation *free_entry(void)
{
    struct allocation **at = &allocations;
    while (*at && (*at)->address)
        at = &(*at)->next;
    if (!*at)
        *at = calloc(1, sizeof(**at));
    return *at;
}

static void forget(struct allocation *a)
{
    *a = (struct allocation){.next = a->next};
}

/* The first address with room for so many bytes: where mmap(2) should put them. */
static void *room_for(size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE); /* of the kernel, 4 KiB or more */
    uintptr_t at = DEVICE_BASE, from = 0;
    while (at != from) {
        from = at;
        for (const struct allocation *a = allocations; a; a = a->next) {
            uintptr_t begin = (uintptr_t)a->address;
            uintptr_t end = begin + a->mapped + PAGE;
            at = begin && begin < at + n && at < end ? (end + page - 1) / page * page : at;
        }
    }
    return (void *)at;
}

struct allocation *memory_map(int fd, size_t n, int device)
{
    static unsigned long long ids;
    struct allocation *a = free_entry();
    size_t mapped = (n + PAGE - 1) / PAGE * PAGE;
    if (!a || fd < 0)
        return NULL;
    void *bytes = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* A page more, so that no two allocations touch. */
    void *address =
        mmap(room_for(mapped + PAGE), mapped + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED || address == MAP_FAILED)
        return NULL;
    *a = (struct allocation){.next = a->next,
                             .address = address,
                             .bytes = bytes,
                             .size = n,
                             .mapped = mapped,
                             .fd = fd,
                             .device = device,
                             .id = ++ids};
    return a;
}

struct allocation *memory_reserve(size_t n)
{
    struct allocation *a = free_entry();
    void *bytes = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *address = mmap(room_for(n + PAGE), n + PAGE, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!a || bytes == MAP_FAILED || address == MAP_FAILED)
        return NULL;
    *a = (struct allocation){.next = a->next,
                             .address = address,
                             .bytes = bytes,
                             .size = n,
                             .mapped = n,
                             .fd = -1,
                             .device = current->device,
                             .stays = true,
                             .reserved = true};
    return a;
}

/* ---------------------------------------------------- what was there before stays, as on a GPU */

#define LEFTOVERS   8u
#define LEFTOVER_OF ((size_t)64 << 10) /* how much of an allocation is kept */

static struct leftover {
    uint8_t *bytes;
    size_t mapped;
} leftovers[LEFTOVERS];
static unsigned leftover_next;

static size_t kept_of(size_t mapped)
{
    return mapped < LEFTOVER_OF ? mapped : LEFTOVER_OF;
}

static void keep_leftover(const struct allocation *a)
{
    struct leftover *l = &leftovers[leftover_next++ % LEFTOVERS];
    free(l->bytes);
    l->mapped = a->mapped;
    l->bytes = malloc(kept_of(a->mapped));
    if (l->bytes)
        memcpy(l->bytes, a->bytes, kept_of(a->mapped));
}

static void put_leftover(const struct allocation *a)
{
    for (struct leftover *l = leftovers; l < leftovers + LEFTOVERS; l++) {
        if (!l->bytes || l->mapped != a->mapped)
            continue;
        memcpy(a->bytes, l->bytes, kept_of(a->mapped));
        free(l->bytes);
        l->bytes = NULL;
        return;
    }
}

EXPORT int cuMemAlloc_v2(uint64_t *device, size_t n)
{
    int code = enter_unsafe("cuMemAlloc");
    if (code)
        return code;
    int fd = n ? memfd_create("device", MFD_CLOEXEC) : -1;
    const bool sized = fd >= 0 && !ftruncate(fd, (off_t)((n + PAGE - 1) / PAGE * PAGE));
    const struct allocation *a = sized ? memory_map(fd, n, current->device) : NULL;
    if (!a && fd >= 0)
        close(fd);
    if (a) {
        put_leftover(a);
        *device = (uintptr_t)a->address;
    }
    return leave(a ? SUCCESS : n ? OUT_OF_MEMORY : INVALID_VALUE);
}

/* From now on this is memory of the pool or of a graph; NULL: of neither. */
EXPORT int ibx_double_pooled(uint64_t device, void *pool)
{
    pthread_mutex_lock(&mutex);
    struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (a && a->of_array)
        return leave(INVALID_VALUE);
    if (a)
        a->pool = pool;
    return leave(SUCCESS);
}

/* From now on this is an array's memory. On a GPU that has no address that a call could free. */
EXPORT void ibx_double_of_array(uint64_t device)
{
    pthread_mutex_lock(&mutex);
    struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (a)
        a->of_array = true;
    leave(SUCCESS);
}

EXPORT bool ibx_double_is_pooled(uint64_t device, const void *pool)
{
    pthread_mutex_lock(&mutex);
    const struct allocation *a = find((void *)(uintptr_t)device, 1);
    const bool is = a && a->pool == pool;
    leave(SUCCESS);
    return is;
}

/* As the driver, loads a kernel at the first such call on a device. If IBX_DOUBLE_ALONE is set,
 * this waits for all work of the device, and keeps other threads out. */
EXPORT int cuKernelGetFunction(void **function, void *kernel)
{
    static bool loaded[2];
    int code = enter("cuKernelGetFunction");
    if (code)
        return code;
    if (!loaded[current->device] && getenv("IBX_DOUBLE_ALONE"))
        wait_for_device();
    loaded[current->device] = true;
    *function = kernel;
    return leave(SUCCESS);
}

static void unmap_address(struct allocation *a)
{
    munmap(a->address, a->mapped + PAGE);
    close(a->fd);
    forget(a);
}

void memory_unmap(struct allocation *a)
{
    if (a->device >= 0 && !a->opened && !a->reserved)
        keep_leftover(a);
    munmap(a->bytes, a->mapped);
    unmap_address(a);
}

/* Bytes that have no address any more, but are in use. */
struct used_bytes {
    struct used_bytes *next;
    uint8_t *bytes;
    size_t n;
};
static struct used_bytes *used_bytes;

void memory_unmap_unused(void)
{
    for (struct used_bytes **at = &used_bytes; *at;) {
        struct used_bytes *u = *at;
        if (in_use(u->bytes, u->n)) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        munmap(u->bytes, u->n);
        free(u);
    }
}

/* The graph ends that the memory of that pool belongs to. As in CUDA, where the end of a graph
 * frees no memory, work that was given before still has the bytes, and nothing waits for it. */
EXPORT int ibx_double_end_with_graph(uint64_t device, const void *pool)
{
    pthread_mutex_lock(&mutex);
    struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (!a || a->pool != pool || (uintptr_t)a->address != device)
        return leave(INVALID_VALUE);
    struct used_bytes *u = in_use(a->bytes, a->mapped) ? malloc(sizeof(*u)) : NULL;
    if (!u) {
        memory_unmap(a);
        return leave(SUCCESS);
    }
    *u = (struct used_bytes){used_bytes, a->bytes, a->mapped};
    used_bytes = u;
    unmap_address(a);
    return leave(SUCCESS);
}

/* As the driver, waits for all work first, unless the memory is a pool's, or does not exist. If
 * IBX_DOUBLE_ALONE is set, it keeps other threads out meanwhile. */
static int free_memory(uint64_t device, bool of_array)
{
    int code = enter_unsafe("cuMemFree");
    if (code)
        return code;
    struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (a && a->device >= 0 && !a->pool && a->of_array == of_array) {
        wait_for_all();
        a = find((void *)(uintptr_t)device, 1);
    }
    if (!a || a->device < 0 || a->opened || a->reserved || a->of_array != of_array ||
        (uintptr_t)a->address != device)
        return leave(INVALID_VALUE);
    memory_unmap(a);
    return leave(SUCCESS);
}

EXPORT int cuMemFree_v2(uint64_t device)
{
    return free_memory(device, false);
}

EXPORT int ibx_double_free_array(uint64_t device)
{
    return free_memory(device, true);
}

/* IBX_DOUBLE_LOOKS: microseconds that it takes. */
EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t device)
{
    const char *us = getenv("IBX_DOUBLE_LOOKS");
    if (us)
        usleep((unsigned)atoi(us));
    int code = enter("cuMemGetAddressRange");
    if (code)
        return code;
    const struct allocation *a = find((void *)(uintptr_t)device, 1);
    if (!a)
        return leave(INVALID_VALUE);
    struct virtual_mapping m = {(uintptr_t)a->address, a->size, 0, 0};
    if (a->reserved)
        virtual_mapping(a, (uintptr_t)device - (uintptr_t)a->address, &m);
    if (base)
        *base = m.begin;
    if (size)
        *size = m.n;
    return leave(SUCCESS);
}

static int attributes[ATTRIBUTES] = {
    [PCI_BUS] = 3,
    [MAPS_MEMORY] = 1,
    [EXPORTS_MEMORY] = 1,
    [GPU_DIRECT_RDMA] = 1,
    [IBX_CUDA_DEVICE_DMA_BUF] = 1,
    [IBX_CUDA_DEVICE_RDMA_ORDERING] = IBX_CUDA_ORDERING_OWNER,
};

EXPORT void ibx_double_attribute(int attribute, int value)
{
    pthread_mutex_lock(&mutex);
    attributes[attribute] = value;
    leave(0);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    if (device != 0 && device != 1)
        return INVALID_DEVICE;
    if (attribute <= 0 || attribute >= ATTRIBUTES)
        return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    *value = attributes[attribute] + (attribute == PCI_BUS ? device : 0);
    return leave(SUCCESS);
}

EXPORT int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    int code = enter("cuFlushGPUDirectRDMAWrites");
    if (code)
        return code;
    if (target != IBX_CUDA_FLUSH_CURRENT_CTX || (scope != 100 && scope != 200))
        return leave(INVALID_VALUE);
    if (!(attributes[IBX_CUDA_DEVICE_RDMA_FLUSH] & IBX_CUDA_FLUSH_BY_HOST))
        return leave(NOT_SUPPORTED);
    stats.flushes++;
    return leave(SUCCESS);
}

EXPORT int cuPointerSetAttribute(const void *value, int attribute, uint64_t pointer)
{
    int code = enter_unsafe("cuPointerSetAttribute");
    if (code)
        return code;
    struct allocation *a = find((void *)(uintptr_t)pointer, 1);
    if (!a || a->device < 0 || attribute != IBX_CUDA_POINTER_SYNC_MEMOPS)
        return leave(INVALID_VALUE);
    stats.sync_memops += !a->sync_memops;
    memcpy(&a->sync_memops, value, sizeof(a->sync_memops));
    return leave(SUCCESS);
}

/* Of whole pages, as the driver wants them. */
EXPORT int cuMemGetHandleForAddressRange(void *handle, uint64_t device, size_t n, int type,
                                         unsigned long long flags)
{
    int code = enter("cuMemGetHandleForAddressRange");
    if (code)
        return code;
    const struct allocation *a = find((void *)(uintptr_t)device, 1);
    bool whole = a && a->device >= 0 && (uintptr_t)a->address == device && n == a->mapped;
    if (!whole || type != IBX_CUDA_RANGE_DMA_BUF_FD || flags & ~IBX_CUDA_RANGE_DMA_BUF_PCIE)
        return leave(INVALID_VALUE);
    if (!attributes[IBX_CUDA_DEVICE_DMA_BUF] || (flags && !attributes[0]))
        return leave(NOT_SUPPORTED);
    int fd = dup(a->fd);
    memcpy(handle, &fd, sizeof(fd));
    stats.exports++;
    return leave(fd < 0 ? OUT_OF_MEMORY : SUCCESS);
}

EXPORT int cuPointerGetAttributes(unsigned count, const int *names, void **values, uint64_t pointer)
{
    int code = enter("cuPointerGetAttributes");
    if (code)
        return code;
    const struct allocation *a = find((void *)(uintptr_t)pointer, 1);
    struct virtual_mapping m = {.id = a ? a->id : 0, .device = a ? a->device : -2};
    if (a && a->reserved)
        virtual_mapping(a, (uintptr_t)pointer - (uintptr_t)a->address, &m);
    for (unsigned i = 0; i < count; i++) {
        unsigned type = !a ? 0 : a->device < 0 ? IBX_CUDA_MEMORY_HOST : IBX_CUDA_MEMORY_DEVICE;
        if (names[i] == IBX_CUDA_POINTER_MEMORY_TYPE)
            memcpy(values[i], &type, sizeof(type));
        else if (names[i] == IBX_CUDA_POINTER_IS_MANAGED)
            memset(values[i], 0, sizeof(unsigned));
        else if (names[i] == IBX_CUDA_POINTER_BUFFER_ID)
            memcpy(values[i], &m.id, sizeof(m.id));
        else if (names[i] == IBX_CUDA_POINTER_ORDINAL)
            memcpy(values[i], &m.device, sizeof(int));
        else if (names[i] == IBX_CUDA_POINTER_RANGE_START)
            memcpy(values[i], &(uint64_t){a ? (uintptr_t)a->address : 0}, sizeof(uint64_t));
        else if (names[i] == IBX_CUDA_POINTER_RANGE_SIZE)
            memcpy(values[i], &(size_t){a ? a->size : 0}, sizeof(size_t));
        else if (names[i] == IBX_CUDA_POINTER_MEMPOOL)
            memcpy(values[i], &(void *){a ? a->pool : NULL}, sizeof(void *));
        else
            return leave(INVALID_VALUE);
    }
    return leave(SUCCESS);
}

/* Whether any of the bytes is known already. */
static bool touches(const uint8_t *address, size_t n)
{
    for (const struct allocation *a = allocations; a; a = a->next) {
        if (a->address && a->address < address + n && address < a->address + a->size)
            return true;
    }
    return false;
}

EXPORT int cuMemHostRegister_v2(void *address, size_t n, unsigned flags)
{
    int code = enter_unsafe("cuMemHostRegister");
    if (code)
        return code;
    struct allocation *a = free_entry();
    if (!a || !n || touches(address, n))
        return leave(!n ? INVALID_VALUE : a ? ALREADY_REGISTERED : OUT_OF_MEMORY);
    *a = (struct allocation){.next = a->next,
                             .address = address,
                             .bytes = address,
                             .size = n,
                             .fd = -1,
                             .device = -1,
                             .flags = flags,
                             .by = current->device};
    stats.host_pins++;
    stats.host_pinned++;
    return leave(SUCCESS);
}

/* As the driver, waits for all work first, and keeps other threads out meanwhile. Memory that
 * copies of ibx still use is counted as a fault. */
EXPORT int cuMemHostUnregister(void *address)
{
    int code = enter_unsafe("cuMemHostUnregister");
    if (code)
        return code;
    struct allocation *a = find(address, 1);
    if (!a || a->device >= 0 || a->address != address)
        return leave(NOT_REGISTERED);
    stats.busy_unpins += in_use(a->address, a->size);
    wait_for_all();
    forget(a);
    stats.host_pins--;
    return leave(SUCCESS);
}

EXPORT int cuMemHostGetFlags(unsigned *flags, void *address)
{
    int code = enter("cuMemHostGetFlags");
    if (code)
        return code;
    const struct allocation *a = find(address, 1);
    bool pinned = a && a->device < 0;
    if (pinned)
        *flags = a->flags;
    return leave(pinned ? SUCCESS : INVALID_VALUE);
}

/* --------------------------------------------------------------------- contexts */

/* Other programs set variables of the environment: IBX_DOUBLE_ATTRIBUTES, "NUMBER=VALUE ...", is
 * for ibx_double_attribute(); IBX_DOUBLE_SLOW, two numbers, is for slow_each(); and
 * IBX_DOUBLE_ABSENT names a file without which the process never has a GPU. */
EXPORT int cuInit(unsigned flags)
{
    const char *text = getenv("IBX_DOUBLE_ABSENT");
    int attribute, value, used;
    unsigned sync_us, async_us;
    if (text && access(text, F_OK))
        sticky_error = NO_DEVICE;
    if (sticky_error == NO_DEVICE)
        return NO_DEVICE;
    text = getenv("IBX_DOUBLE_SLOW");
    if (text && sscanf(text, "%u %u", &sync_us, &async_us) == 2)
        slow_each(sync_us, async_us);
    text = getenv("IBX_DOUBLE_ATTRIBUTES");
    for (; text && sscanf(text, "%d=%d%n", &attribute, &value, &used) == 2; text += used) {
        if (attribute >= 0 && attribute < ATTRIBUTES)
            ibx_double_attribute(attribute, value);
    }
    return flags ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 || ordinal == 1 ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuDeviceGetCount(int *count)
{
    *count = 2;
    return SUCCESS;
}

EXPORT int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "double %d", device);
    return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)16 << 30;
    return SUCCESS;
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int code = SUCCESS;
    pthread_mutex_lock(&mutex);
    if (!fails("cuDevicePrimaryCtxRetain", &code))
        *context = &contexts[device];
    stats.primary_holds += !code;
    return leave(code);
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    pthread_mutex_lock(&mutex);
    stats.primary_holds--;
    return leave(SUCCESS);
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = 1;
    return device == 0 || device == 1 ? SUCCESS : INVALID_DEVICE;
}

/* Memory, pinning, events, streams and access to peers belong to the context, and are gone with it.
 * After a sticky error the process may not use the devices any more. */
EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
    pthread_mutex_lock(&mutex);
    wait_for_work_on(device);
    for (struct allocation *a = allocations; a; a = a->next) {
        if (a->address && a->device == device && !a->stays)
            memory_unmap(a);
        if (!a->address || a->device >= 0 || a->by != device)
            continue;
        forget(a);
        stats.host_pins--;
    }
    events_forget(device);
    streams_forget(device);
    peers[0] = peers[1] = false;
    if (sticky_error)
        sticky_error = DEVICES_UNAVAILABLE;
    return leave(SUCCESS);
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    const bool both = (device == 0 || device == 1) && (peer == 0 || peer == 1);
    *can = both && device != peer;
    return both ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    int code = enter_unsafe("cuCtxEnablePeerAccess");
    if (code)
        return code;
    if (flags || context == current)
        return leave(flags ? INVALID_VALUE : INVALID_DEVICE);
    code = peers[current->device] ? PEER_ACCESS_IS : SUCCESS;
    peers[current->device] = true;
    return leave(code);
}

EXPORT int cuCtxDisablePeerAccess(void *context)
{
    int code = enter_unsafe("cuCtxDisablePeerAccess");
    if (code)
        return code;
    code = context != current && peers[current->device] ? SUCCESS : PEER_ACCESS_IS_NOT;
    peers[current->device] = false;
    return leave(code);
}

bool kernel_reaches(uint64_t address)
{
    pthread_mutex_lock(&mutex);
    const struct allocation *a = find((void *)(uintptr_t)address, 1);
    const bool can = a && (a->device < 0 || a->device == current->device || peers[current->device]);
    return !leave(!can);
}

bool is_out_of_reach(uint64_t address)
{
    const struct allocation *a = find((void *)(uintptr_t)address, 1);
    return a && a->device >= 0 && a->device != current->device &&
           (a->pool || !peers[current->device]);
}

unsigned kernel_type_of(uint64_t address)
{
    pthread_mutex_lock(&mutex);
    const struct allocation *a = find((void *)(uintptr_t)address, 1);
    const bool pinned = a && a->device < 0;
    leave(SUCCESS);
    return pinned ? IBX_CUDA_MEMORY_HOST : IBX_CUDA_MEMORY_DEVICE;
}

EXPORT int cuCtxSetCurrent(void *context)
{
    current = context;
    return SUCCESS;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    *context = current;
    return SUCCESS;
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
    if (!context || depth == CONTEXTS)
        return INVALID_CONTEXT;
    below[depth++] = current;
    current = context;
    return SUCCESS;
}

EXPORT int cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    if (context)
        *context = current;
    current = below[--depth];
    return SUCCESS;
}

EXPORT int cuCtxGetDevice(int *device)
{
    int code = enter("cuCtxGetDevice");
    if (code)
        return code;
    *device = current->device;
    return leave(SUCCESS);
}

EXPORT int cuGetErrorName(int code, const char **name)
{
    *name = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
            : code == 700         ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                  : "CUDA_ERROR_OF_THE_DOUBLE";
    return SUCCESS;
}
