/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Attributes of addresses. */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

/* CUpointer_attribute */
enum {
    POINTER_CONTEXT = 1,
    POINTER_MEMORY_TYPE,
    POINTER_ON_DEVICE,
    POINTER_ON_HOST,
    POINTER_SYNC_OPERATIONS = 6,
    POINTER_BUFFER,
    POINTER_IS_MANAGED,
    POINTER_DEVICE,
    POINTER_IS_FOR_IPC,
    POINTER_RANGE,
    POINTER_RANGE_SIZE,
    POINTER_MAPPED,
    POINTER_HANDLES,
    POINTER_IS_FOR_RDMA,
    POINTER_ACCESS,
    POINTER_POOL,
    POINTER_MAPPING_SIZE,
    POINTER_MAPPING_BASE,
    POINTER_MAPPING_ID,
    POINTER_IS_DECOMPRESSIBLE
};
/* enum cudaMemoryType */
enum { UNREGISTERED, HOST, DEVICE, MANAGED };

#define READ_WRITE 3 /* CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE */

static bool find(const void *address, struct range *range)
{
    return ibx_frontend_allocation(address, range) || ibx_frontend_host_range(address, range) ||
           ibx_frontend_variable_at(address, range);
}

static bool is_variable(const void *address)
{
    struct range range;
    return !ibx_frontend_given_out(address) && ibx_frontend_variable_at(address, &range);
}

static int range_of(uint64_t address, uint64_t *begin, size_t *n)
{
    struct range range = {0};
    if (!find((const void *)(uintptr_t)address, &range))
        return CUDA_INVALID_VALUE;
    if (begin)
        *begin = range.begin;
    if (n)
        *n = range.n;
    return CUDA_SUCCESS;
}

/* The range of the mapping at that address, not that of the whole reservation. */
static int mapping_or_range(uint64_t address, uint64_t *begin, size_t *n)
{
    struct ibx_driver_mapping m;
    const enum ibx_driver_place place = ibx_driver_mapping(address, &m);
    if (place != MAPPED)
        return place == RESERVED ? CUDA_INVALID_VALUE : range_of(address, begin, n);
    if (begin)
        *begin = m.begin;
    if (n)
        *n = m.n;
    return CUDA_SUCCESS;
}

/* For an address that is not CUDA's, the driver returns CUDA_ERROR_NOT_FOUND. */
EXPORTED int cuMemGetAddressRange_v2(uint64_t *begin, size_t *n, uint64_t address)
{
    const int rc = IN_CONTEXT(mapping_or_range(address, begin, n));
    return rc == CUDA_INVALID_VALUE ? CUDA_SYMBOL_NOT_FOUND : rc;
}

/* The context that owns the memory; the device's primary one, if no call of the driver has made
 * it. */
static void *context_of(const void *address, int device)
{
    struct range range;
    const void *begin = find(address, &range) ? (const void *)range.begin : address;
    const void *owner = ibx_frontend_owner(OWNED_MEMORY, begin);
    owner = owner ? owner : ibx_frontend_owner(OWNED_HOST, begin);
    return owner ? (void *)(uintptr_t)owner : ibx_driver_primary(device);
}

/* The buffer id. It tells a program that keeps something for an allocation, such as a registration,
 * that another allocation has its address. */
static uint64_t buffer_of(const void *address)
{
    struct range range;
    return find(address, &range) ? range.number : 0;
}

/* Finds an attribute of an address. False: the address has no such attribute; *size is 0 if no
 * attribute has that number. An attribute that is true or false is an int. */
static bool number_of(uint64_t *number, size_t *size, int attribute,
                      const struct pointer_attributes *a, const void *address)
{
    const bool managed = a->type == MANAGED;
    const int type = a->type == HOST ? 1 : 2; /* CU_MEMORYTYPE_HOST, _DEVICE */
    size_t n = 0;
    *size = sizeof(void *);
    switch (attribute) {
    case POINTER_CONTEXT:
        *number = (uintptr_t)context_of(address, a->device);
        return true;
    case POINTER_MEMORY_TYPE:
        *size = sizeof(int);
        *number = (uint64_t)(unsigned)type;
        return true;
    case POINTER_ON_DEVICE:
        *number = (uintptr_t)a->on_device;
        return a->on_device;
    case POINTER_ON_HOST:
        *number = (uintptr_t)a->on_host;
        return a->on_host;
    case POINTER_BUFFER:
        *number = buffer_of(address);
        return true;
    case POINTER_IS_MANAGED:
    case POINTER_MAPPED:
    case POINTER_SYNC_OPERATIONS:
    case POINTER_IS_FOR_IPC:
    case POINTER_IS_FOR_RDMA:
    case POINTER_IS_DECOMPRESSIBLE:
        *size = sizeof(int);
        *number = attribute == POINTER_MAPPED       ? 1
                  : attribute == POINTER_IS_MANAGED ? managed
                  : attribute == POINTER_IS_FOR_IPC ? a->type == DEVICE && !is_variable(address)
                                                    : 0;
        return true;
    case POINTER_DEVICE:
    case POINTER_ACCESS:
        *size = sizeof(int);
        *number = attribute == POINTER_DEVICE ? (uint64_t)(unsigned)a->device : READ_WRITE;
        return true;
    case POINTER_RANGE:
        return !range_of((uintptr_t)address, number, NULL);
    case POINTER_RANGE_SIZE:
        if (range_of((uintptr_t)address, NULL, &n))
            return false;
        *number = n;
        return true;
    case POINTER_HANDLES:
    case POINTER_POOL:
        *number = 0;
        return true;
    case POINTER_MAPPING_SIZE:
    case POINTER_MAPPING_BASE:
    case POINTER_MAPPING_ID: /* of memory that is mapped, below */
        return false;
    default:
        *size = 0;
        return false;
    }
}

/* The attributes of mapped memory that differ from those of other memory. */
static void number_of_mapping(uint64_t *number, int attribute, const struct ibx_driver_mapping *m,
                              bool *has)
{
    *has = true;
    switch (attribute) {
    case POINTER_BUFFER:
        *number = m->number << 1 | UINT64_C(1) << 63; /* unlike that of any allocation */
        break;
    case POINTER_CONTEXT: /* it is in no context */
    case POINTER_IS_FOR_IPC:
        *number = 0;
        break;
    case POINTER_ACCESS:
        *number = (uint64_t)(unsigned)m->access;
        break;
    case POINTER_MAPPING_SIZE:
        *number = m->n;
        break;
    case POINTER_MAPPING_BASE:
        *number = m->begin;
        break;
    case POINTER_MAPPING_ID:
        *number = m->memory;
        break;
    default:
        *has = false;
    }
}

/* What is known of an address. */
struct known {
    struct pointer_attributes is;
    enum ibx_driver_place place;
    struct ibx_driver_mapping mapping;
    const void *address;
};

static int look_at(struct known *k, const void *address)
{
    *k = (struct known){.address = address};
    k->place = ibx_driver_mapping((uintptr_t)address, &k->mapping);
    if (k->place == NOT_RESERVED)
        return cudaPointerGetAttributes(&k->is, address);
    if (k->place == MAPPED)
        k->is = (struct pointer_attributes){DEVICE, k->mapping.device, (void *)(uintptr_t)address,
                                            NULL};
    return CUDA_SUCCESS;
}

static bool tell(const struct known *k, uint64_t *number, size_t *size, int attribute)
{
    bool has = number_of(number, size, attribute, &k->is, k->address), of_mapping = false;
    if (k->place == MAPPED)
        number_of_mapping(number, attribute, &k->mapping, &of_mapping);
    return has || of_mapping;
}

static void put(void *to, uint64_t number, size_t size)
{
    const uint32_t low = (uint32_t)number;
    memcpy(to, size == sizeof(low) ? (const void *)&low : &number, size);
}

static int attribute_of(void *data, int attribute, const void *address)
{
    struct known k;
    uint64_t number = 0;
    size_t size = 0;
    if (!data)
        return CUDA_INVALID_VALUE;
    const int rc = look_at(&k, address);
    if (rc || k.is.type == UNREGISTERED || !tell(&k, &number, &size, attribute))
        return rc ? rc : CUDA_INVALID_VALUE;
    put(data, number, size);
    return CUDA_SUCCESS;
}

EXPORTED int cuPointerGetAttribute(void *data, int attribute, uint64_t address)
{
    return ANYWHERE(attribute_of(data, attribute, (const void *)(uintptr_t)address));
}

/* Attributes that an address does not have are 0 (a device: -2); if it is not CUDA's, all are. */
static int attributes_of(unsigned count, const int *attributes, void **data, const void *address)
{
    struct known k;
    if (!count || !attributes || !data)
        return CUDA_INVALID_VALUE;
    int rc = look_at(&k, address);
    for (unsigned i = 0; i < count && !rc; i++) {
        uint64_t number = 0;
        size_t size = 0;
        const bool has = tell(&k, &number, &size, attributes[i]);
        const bool device = attributes[i] == POINTER_DEVICE;
        if (!size)
            rc = CUDA_INVALID_VALUE;
        else if (data[i])
            put(data[i],
                has && k.is.type != UNREGISTERED ? number
                : device                         ? UINT64_MAX - 1
                                                 : 0,
                size);
    }
    return rc;
}

EXPORTED int cuPointerGetAttributes(unsigned count, const int *attributes, void **data,
                                    uint64_t address)
{
    return ANYWHERE(attributes_of(count, attributes, data, (const void *)(uintptr_t)address));
}

/* Only CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: as far as a program can tell, copies are always
 * synchronous here. */
EXPORTED int cuPointerSetAttribute(const void *value, int attribute, uint64_t address)
{
    (void)address;
    return IN_CONTEXT(value && attribute == POINTER_SYNC_OPERATIONS ? CUDA_SUCCESS
                                                                    : CUDA_INVALID_VALUE);
}

SAME_AS(cuMemGetAddressRange, cuMemGetAddressRange_v2)
