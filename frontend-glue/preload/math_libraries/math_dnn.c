/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs of cuDNN (cudnnBackend*). The descriptor of one execution, a variant pack, stays in this
 * process: the addresses of tensors, and the values of those that are passed by value. It is sent
 * with the execution, which is then one request that does not wait. The address of such a
 * descriptor is odd, unlike others.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "common/fork_lock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>

#define BAD_PARAM     2000
#define NOT_FINALIZED 2004
#define NOT_SUPPORTED 3000
#define NO_MEMORY     4003

/* cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t */
#define PACK           16
#define PACK_NUMBERS   1000
#define PACK_ADDRESSES 1001
#define PACK_WORKSPACE 1003
#define TYPE_INT64     3
#define TYPE_POINTER   6

#define VALUE_SIZE 8

struct pack {
    struct pack *next;
    enum { PACK_OPEN, PACK_FINAL } state;
    int numbers, addresses; /* the lengths of the arrays */
    int64_t *number;        /* NULL: not set */
    void **address, *workspace;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pack *packs; /* a list; few exist at a time */

IBX_FORKS_WAIT_FOR(lock);

/* The pack, if the descriptor is one, else NULL. A descriptor of the back end may have any value,
 * so the list is searched. */
static struct pack *pack_of(const void *descriptor)
{
    const uintptr_t at = (uintptr_t)descriptor;
    struct pack *p = NULL;
    if (at % 2) {
        pthread_mutex_lock(&lock);
        for (p = packs; p && (uintptr_t)p != at - 1;)
            p = p->next;
        pthread_mutex_unlock(&lock);
    }
    return p;
}

static int create_pack(void **made)
{
    struct pack *p = calloc(1, sizeof(*p));
    if (!p)
        return NO_MEMORY;
    pthread_mutex_lock(&lock);
    p->next = packs;
    packs = p;
    pthread_mutex_unlock(&lock);
    *made = (char *)p + 1;
    return 0;
}

static int destroy_pack(struct pack *gone)
{
    pthread_mutex_lock(&lock);
    struct pack **at = &packs;
    while (*at && *at != gone)
        at = &(*at)->next;
    if (*at)
        *at = gone->next;
    pthread_mutex_unlock(&lock);
    free(gone->number);
    free(gone->address);
    free(gone);
    return 0;
}

static int tell_many(int64_t count)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "cudnnBackendSetAttribute returns CUDNN_STATUS_NOT_SUPPORTED: an execution has %u "
                "tensors at most over a remote GPU, and this one has %lld",
                IBX_MATH_TENSORS, (long long)count);
    return NOT_SUPPORTED;
}

/* Replaces an array by a copy of `array`; false: there is no memory. */
static bool keep_array(void **to, int *counts, const void *array, int64_t count)
{
    void *made = malloc((size_t)count * 8);
    if (!made)
        return false;
    memcpy(made, array, (size_t)count * 8);
    free(*to);
    *to = made;
    *counts = (int)count;
    return true;
}

static int set_in_pack(struct pack *p, int name, int type, int64_t count, const void *array)
{
    const bool numbers = name == PACK_NUMBERS;
    if (p->state != PACK_OPEN || count <= 0 || !array)
        return BAD_PARAM;
    if (name != PACK_NUMBERS && name != PACK_ADDRESSES && name != PACK_WORKSPACE)
        return NOT_SUPPORTED;
    if (type != (numbers ? TYPE_INT64 : TYPE_POINTER) || (name == PACK_WORKSPACE && count != 1))
        return BAD_PARAM;
    if (count > IBX_MATH_TENSORS)
        return tell_many(count);
    if (name == PACK_WORKSPACE) {
        memcpy(&p->workspace, array, sizeof(p->workspace));
        return 0;
    }
    void *is = numbers ? (void *)p->number : (void *)p->address;
    if (!keep_array(&is, numbers ? &p->numbers : &p->addresses, array, count))
        return NO_MEMORY;
    if (numbers)
        p->number = is;
    else
        p->address = is;
    return 0;
}

/* ------------------------------------------------------------------------------- execution */

/* Reads the value of a tensor that may be passed by value. The back end knows which ones are. A
 * value has at most 8 bytes, and is aligned to its size. A device address may happen to be mapped
 * here as well; an address that cannot be read has no value. */
IBX_UNSANITIZED static bool read_value(const void *at, uint8_t value[VALUE_SIZE])
{
    if (!at || !ibx_frontend_is_readable(at))
        return false;
    const size_t n = (uintptr_t)at % 8 == 0   ? 8
                     : (uintptr_t)at % 4 == 0 ? 4
                     : (uintptr_t)at % 2 == 0 ? 2
                                              : 1;
    const volatile uint8_t *from = at;
    for (size_t i = 0; i < n; i++)
        value[i] = from[i];
    return true;
}

static int execute(void *handle, void *plan, const struct pack *p)
{
    if (p->state != PACK_FINAL)
        return NOT_FINALIZED;
    if (p->numbers != p->addresses || !p->numbers)
        return BAD_PARAM;
    const size_t count = (size_t)p->numbers;
    uint8_t *values = calloc(count, VALUE_SIZE + 1), *has = values + count * VALUE_SIZE;
    if (!values)
        return NO_MEMORY;
    ibx_frontend_arguments_reach(p->address, count * sizeof(p->address[0]));
    for (size_t i = 0; i < count; i++)
        has[i] = read_value(p->address[i], values + i * VALUE_SIZE);
    const union ibx_math_value arguments[] = {
        {.p = handle},    {.p = plan},       {.i = p->numbers}, {.p = p->workspace},
        {.p = p->number}, {.p = p->address}, {.p = values},     {.p = has}};
    const int status = ibx_frontend_math(IBX_MATH_cudnnBackendExecute, arguments);
    free(values);
    return status;
}

/* ------------------------------------------------------------------------------- functions */

/* Declared in cudnn.h. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cudnnBackendCreateDescriptor(int type, void *made)
{
    const union ibx_math_value values[] = {{.i = type}, {.p = made}};
    if (!made)
        return BAD_PARAM;
    return type == PACK ? create_pack(made)
                        : ibx_frontend_math(IBX_MATH_cudnnBackendCreateDescriptor, values);
}

EXPORTED int cudnnBackendDestroyDescriptor(void *descriptor)
{
    const union ibx_math_value values[] = {{.p = descriptor}};
    struct pack *p = pack_of(descriptor);
    return p ? destroy_pack(p) : ibx_frontend_math(IBX_MATH_cudnnBackendDestroyDescriptor, values);
}

EXPORTED int cudnnBackendFinalize(void *descriptor)
{
    const union ibx_math_value values[] = {{.p = descriptor}};
    struct pack *p = pack_of(descriptor);
    return p ? (p->state = PACK_FINAL, 0)
             : ibx_frontend_math(IBX_MATH_cudnnBackendFinalize, values);
}

EXPORTED int cudnnBackendSetAttribute(void *descriptor, int name, int type, uint64_t count,
                                      void *array)
{
    const union ibx_math_value values[] = {
        {.p = descriptor}, {.i = name}, {.i = type}, {.l = count}, {.p = count ? array : NULL}};
    struct pack *p = pack_of(descriptor);
    return p ? set_in_pack(p, name, type, (int64_t)count, array)
             : ibx_frontend_math(IBX_MATH_cudnnBackendSetAttribute, values);
}

EXPORTED int cudnnBackendGetAttribute(void *descriptor, int name, int type, uint64_t count,
                                      void *written, void *array)
{
    const union ibx_math_value values[] = {
        {.p = descriptor}, {.i = name},    {.i = type},
        {.l = count},      {.p = written}, {.p = (int64_t)count > 0 ? array : NULL}};
    return pack_of(descriptor) ? NOT_SUPPORTED
                               : ibx_frontend_math(IBX_MATH_cudnnBackendGetAttribute, values);
}

EXPORTED int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    const struct pack *p = pack_of(pack);
    return p ? execute(handle, plan, p) : BAD_PARAM;
}

/* A libraryPropertyType of the back end's library; -1: unknown. */
static int property(int type)
{
    int value = -1;
    const union ibx_math_value values[] = {{.i = type}, {.p = &value}};
    return ibx_frontend_math(IBX_MATH_cudnnGetProperty, values) ? -1 : value;
}

/* The version of the back end's library; if it has none, that of cuDNN in this process. */
EXPORTED size_t cudnnGetVersion(void)
{
    static _Atomic(void *) found;
    static atomic_size_t known;
    size_t (*next)(void) = NULL;
    size_t version = atomic_load(&known);
    if (version)
        return version;
    const int major = property(0), minor = property(1), patch = property(2);
    if (major >= 0 && minor >= 0 && patch >= 0) {
        version = (size_t)major * 10000 + (size_t)minor * 100 + (size_t)patch;
        atomic_store(&known, version);
        return version;
    }
    *(void **)&next = ibx_frontend_next(&found, "cudnnGetVersion");
    return next ? next() : 0;
}
