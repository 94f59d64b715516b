/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Devices. A CUdevice is the runtime's device number. Values that do not change are fetched
 * once. */
#include "frontend-glue/driver_api/driver.h"

#include "common/fork_lock.h"

#include <pthread.h>
#include <stdlib.h>

#define DEVICES    64
#define ATTRIBUTES 160 /* more than CUDA has */

#define EXPORTS_MEMORY 103 /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
#define MAPS_MEMORY    102 /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
#define TENSOR_MAPS    127 /* TENSOR_MAP_ACCESS_SUPPORTED */

#define CAPABILITY_MAJOR  75 /* COMPUTE_CAPABILITY_MAJOR */
#define TENSOR_MAPS_SINCE 9  /* the compute capability that has them (PTX: cp.async.bulk.tensor) */

/* cudaDeviceProp; later members depend on the version. */
#define PROPERTIES_MAX 4096u
struct properties {
    char name[256];
    uint8_t uuid[16];
    char luid[8];
    unsigned luid_mask;
    size_t memory;
};

/* CUdevice_attribute: the runtime has the same numbers, except for these, which only the driver
 * has. Features that this library lacks are reported as missing. */
static const struct {
    int attribute, value;
} own[] = {
    {92, 0},  /* CAN_USE_STREAM_MEM_OPS_V1 */
    {93, 0},  /* CAN_USE_64_BIT_STREAM_MEM_OPS_V1 */
    {94, 0},  /* CAN_USE_STREAM_WAIT_VALUE_NOR_V1 */
    {98, 0},  /* CAN_FLUSH_REMOTE_WRITES */
    {104, 0}, /* HANDLE_TYPE_WIN32_HANDLE_SUPPORTED */
    {105, 0}, /* HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED */
    {107, 0}, /* GENERIC_COMPRESSION_SUPPORTED, of memory that is mapped */
    {110, 0}, /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
    {112, 0}, /* SPARSE_CUDA_ARRAY_SUPPORTED */
    {114, 0}, /* TIMELINE_SEMAPHORE_INTEROP_SUPPORTED */
    {116, 0}, /* GPU_DIRECT_RDMA_SUPPORTED: with a device of this host */
    {121, 0}, /* DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED */
    {122, 0}, /* CAN_USE_64_BIT_STREAM_MEM_OPS */
    {123, 0}, /* CAN_USE_STREAM_WAIT_VALUE_NOR */
    {124, 0}, /* DMA_BUF_SUPPORTED */
    {128, 0}, /* HANDLE_TYPE_FABRIC_SUPPORTED */
    {129, 0}, /* UNIFIED_FUNCTION_POINTERS */
    {132, 0}, /* MULTICAST_SUPPORTED */
    {135, 0}, /* D3D12_CIG_SUPPORTED */
    {136, 0}, /* MEM_DECOMPRESS_ALGORITHM_MASK */
    {137, 0}, /* MEM_DECOMPRESS_MAXIMUM_LENGTH */
    {138, 0}, /* VULKAN_CIG_SUPPORTED */
    {141, 0}, /* HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {143, 0}, /* HOST_NUMA_MULTINODE_IPC_SUPPORTED */
    {145, 0}, /* HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {146, 0}, /* HOST_ALLOC_DMA_BUF_SUPPORTED */
};

/* What is known of a device. A known attribute is stored shifted left by one bit, with the lowest
 * bit set; 0: not known. */
struct device {
    struct properties properties;
    atomic_bool has_properties;
    _Atomic uint64_t attributes[ATTRIBUTES];
};
static _Atomic(struct device *) devices[DEVICES];
static atomic_int device_count; /* -1: not known */

static void in_child(void)
{
    atomic_store(&device_count, -1);
}

__attribute__((constructor)) static void begin(void)
{
    in_child();
    pthread_atfork(NULL, NULL, in_child);
}

static int count(int *devices_there)
{
    int there = atomic_load(&device_count);
    const int rc = there < 0 ? cudaGetDeviceCount(&there) : CUDA_SUCCESS;
    if (rc)
        return rc;
    atomic_store(&device_count, there);
    *devices_there = there;
    return CUDA_SUCCESS;
}

int ibx_driver_check_device(int device)
{
    int there = 0;
    const int rc = count(&there);
    return rc ? rc : device >= 0 && device < there ? CUDA_SUCCESS : CUDA_INVALID_DEVICE;
}

/* NULL: no memory, or a device for which nothing is kept. */
static struct device *known(int device)
{
    if (device < 0 || device >= DEVICES)
        return NULL;
    struct device *d = atomic_load(&devices[device]);
    if (d)
        return d;
    struct device *made = calloc(1, sizeof(*made));
    if (made && atomic_compare_exchange_strong(&devices[device], &d, made))
        return made;
    free(made);
    return d;
}

/* The runtime has no such attribute. */
static int has_tensor_maps(int *value, int device)
{
    int major = 0;
    const int rc = cudaDeviceGetAttribute(&major, CAPABILITY_MAJOR, device);
    *value = major >= TENSOR_MAPS_SINCE;
    return rc;
}

static int attribute_of(int *value, int attribute, int device)
{
    struct device *d = known(device);
    const bool kept = d && attribute > 0 && attribute < ATTRIBUTES;
    const uint64_t is = kept ? atomic_load(&d->attributes[attribute]) : 0;
    if (is) {
        *value = (int)(uint32_t)(is >> 1);
        return CUDA_SUCCESS;
    }
    int rc = CUDA_SUCCESS;
    if (attribute == MAPS_MEMORY) /* the runtime has no such attribute, and not the next one */
        *value = ibx_driver_maps_memory(device);
    else if (attribute == EXPORTS_MEMORY)
        *value = ibx_driver_exports_memory(device);
    else if (attribute == TENSOR_MAPS)
        rc = has_tensor_maps(value, device);
    else
        rc = cudaDeviceGetAttribute(value, attribute, device);
    if (!rc && kept)
        atomic_store(&d->attributes[attribute], (uint64_t)(uint32_t)*value << 1 | 1);
    return rc;
}

int ibx_driver_attribute(int *value, int attribute, int device)
{
    const int rc = value ? ibx_driver_check_device(device) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (own[i].attribute == attribute) {
            *value = own[i].value;
            return CUDA_SUCCESS;
        }
    return attribute_of(value, attribute, device);
}

static int properties_of(struct properties *properties, int device)
{
    union {
        struct properties properties;
        uint8_t bytes[PROPERTIES_MAX];
    } all = {0};
    int rc = ibx_driver_check_device(device);
    struct device *d = rc ? NULL : known(device);
    if (d && atomic_load(&d->has_properties)) {
        *properties = d->properties;
        return CUDA_SUCCESS;
    }
    rc = rc ? rc : cudaGetDeviceProperties(&all, device);
    if (rc)
        return rc;
    all.properties.name[sizeof(all.properties.name) - 1] = 0;
    *properties = all.properties;
    static struct ibx_fork_lock lock = IBX_FORK_LOCK;
    ibx_fork_lock_take(&lock);
    if (d && !atomic_load(&d->has_properties)) {
        d->properties = all.properties;
        atomic_store(&d->has_properties, true);
    }
    ibx_fork_lock_release(&lock);
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------- calls */

EXPORTED int cuDeviceGetCount(int *there)
{
    return ANYWHERE(there ? count(there) : CUDA_INVALID_VALUE);
}

EXPORTED int cuDeviceGet(int *device, int ordinal)
{
    const int rc = ANYWHERE(device ? ibx_driver_check_device(ordinal) : CUDA_INVALID_VALUE);
    if (!rc)
        *device = ordinal;
    return rc;
}

EXPORTED int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return ANYWHERE(ibx_driver_attribute(value, attribute, device));
}

EXPORTED int cuDeviceGetName(char *name, int n, int device)
{
    struct properties p;
    const int rc = ANYWHERE(name && n > 0 ? properties_of(&p, device) : CUDA_INVALID_VALUE);
    if (!rc) {
        const size_t length = strnlen(p.name, (size_t)n - 1);
        memcpy(name, p.name, length);
        name[length] = 0;
    }
    return rc;
}

EXPORTED int cuDeviceGetUuid_v2(uint8_t uuid[16], int device)
{
    struct properties p;
    const int rc = ANYWHERE(uuid ? properties_of(&p, device) : CUDA_INVALID_VALUE);
    if (!rc)
        memcpy(uuid, p.uuid, sizeof(p.uuid));
    return rc;
}

EXPORTED int cuDeviceGetLuid(char *luid, unsigned *mask, int device)
{
    (void)device;
    return ANYWHERE(luid && mask ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE);
}

EXPORTED int cuDeviceTotalMem_v2(size_t *n, int device)
{
    struct properties p;
    const int rc = ANYWHERE(n ? properties_of(&p, device) : CUDA_INVALID_VALUE);
    if (!rc)
        *n = p.memory;
    return rc;
}

EXPORTED int cuDeviceComputeCapability(int *major, int *minor, int device)
{
    int one = 0, other = 0;
    int rc = ANYWHERE(major && minor ? ibx_driver_attribute(&one, 75, device) : CUDA_INVALID_VALUE);
    if (!rc)
        rc = ANYWHERE(ibx_driver_attribute(&other, 76, device));
    if (!rc) {
        *major = one;
        *minor = other;
    }
    return rc;
}

/* CUdevprop, and the attributes of its members. */
EXPORTED int cuDeviceGetProperties(int *properties, int device)
{
    static const int attributes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    int values[sizeof(attributes) / sizeof(attributes[0])] = {0};
    int rc = properties ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]) && !rc; i++)
        rc = ANYWHERE(ibx_driver_attribute(&values[i], attributes[i], device));
    if (!rc)
        memcpy(properties, values, sizeof(values));
    return rc;
}

EXPORTED int cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to)
{
    return ANYWHERE(cudaDeviceGetP2PAttribute(value, attribute, from, to));
}

EXPORTED int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    return ANYWHERE(cudaDeviceCanAccessPeer(can, device, peer));
}

EXPORTED int cuDeviceGetByPCIBusId(int *device, const char *id)
{
    return ANYWHERE(cudaDeviceGetByPCIBusId(device, id));
}

EXPORTED int cuDeviceGetPCIBusId(char *id, int n, int device)
{
    int rc = ANYWHERE(ibx_driver_check_device(device));
    return rc ? rc : ANYWHERE(cudaDeviceGetPCIBusId(id, n, device));
}

EXPORTED int cuDeviceGetTexture1DLinearMaxWidth(size_t *most, unsigned format, unsigned channels,
                                                int device)
{
    struct ibx_cuda_channel channel;
    return ANYWHERE(ibx_driver_channel(&channel, format, channels)
                        ? cudaDeviceGetTexture1DLinearMaxWidth(most, &channel, device)
                        : CUDA_INVALID_VALUE);
}

/* Parts of a device's multiprocessors. */
EXPORTED int cuDeviceGetExecAffinitySupport(int *value, int type, int device)
{
    (void)type;
    return ANYWHERE(value ? (*value = 0, ibx_driver_check_device(device)) : CUDA_INVALID_VALUE);
}

SAME_AS(cuDeviceGetUuid, cuDeviceGetUuid_v2)
SAME_AS(cuDeviceTotalMem, cuDeviceTotalMem_v2)
