/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Contexts. The back end has one context for each device, CUDA's primary one: a context that a
 * program creates is that of its device under another name. The difference is what is freed with
 * it: memory, streams, events, modules and arrays that were made while it was current.
 *
 * Each thread has a stack of contexts; the device of the top one is selected for the runtime. If
 * the stack is empty, a call of the runtime makes the primary context current.
 */
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#include <pthread.h>
#include <stdlib.h>

#define DEVICES 64
#define STACK   32u
#define FLAGS   0x3fu /* flags that a context may have */
#define VERSION 3020  /* of the API for which contexts are made */

struct ibx_driver_context {
    struct ibx_driver_context *next;
    int device;
    atomic_uint flags;
    unsigned long long id;
    _Atomic enum { CONTEXT_PRIMARY, CONTEXT_CREATED, CONTEXT_DESTROYED } state;
    unsigned retained; /* how often a primary one was retained */
    unsigned attached; /* how often a created one has to be detached until it is destroyed */
    unsigned part;     /* multiprocessors of a green context; 0: it is of the whole device */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_driver_context primary[DEVICES];
static struct ibx_driver_context *created; /* also destroyed ones: a thread may still have them */
static unsigned long long ids = DEVICES;

static _Thread_local struct ibx_driver_context *stack[STACK];
static _Thread_local unsigned depth;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    depth = 0;
    for (struct ibx_driver_context *c = created; c; c = c->next)
        c->state = CONTEXT_DESTROYED;
    for (int i = 0; i < DEVICES; i++) {
        primary[i].retained = 0;
        primary[i].flags = 0;
    }
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
    for (int i = 0; i < DEVICES; i++)
        primary[i].id = (unsigned)(primary[i].device = i) + 1;
}

/* -------------------------------------------------------------------------------- the stack */

struct ibx_driver_context *ibx_driver_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int ibx_driver_device(const struct ibx_driver_context *context)
{
    return context->device;
}

bool ibx_driver_is_context(const void *context)
{
    if (!context)
        return false;
    for (int i = 0; i < DEVICES; i++)
        if (context == &primary[i])
            return true;
    pthread_mutex_lock(&lock);
    const struct ibx_driver_context *c = created;
    while (c && c != context)
        c = c->next;
    const bool is = c && c->state == CONTEXT_CREATED;
    pthread_mutex_unlock(&lock);
    return is;
}

int ibx_driver_device_of(const void *context)
{
    return !context                         ? ibx_frontend_current_device()
           : ibx_driver_is_context(context) ? ibx_driver_device(context)
                                            : -1;
}

void *ibx_driver_primary(int device)
{
    return device >= 0 && device < DEVICES ? &primary[device] : NULL;
}

/* The context of the device that the runtime has selected. */
static struct ibx_driver_context *selected(void)
{
    return ibx_driver_primary(ibx_frontend_current_device());
}

int ibx_driver_adopt(void)
{
    struct ibx_driver_context *top = ibx_driver_current();
    if (!top)
        return CUDA_INVALID_CONTEXT;
    if (top->state == CONTEXT_DESTROYED)
        return CUDA_CONTEXT_IS_DESTROYED;
    if (top->device != ibx_frontend_current_device())
        stack[depth - 1] = selected();
    return CUDA_SUCCESS;
}

void ibx_driver_runtime_used(void)
{
    struct ibx_driver_context *context = depth ? NULL : selected();
    if (context)
        stack[depth++] = context;
}

/* NULL: the device stays selected, with no context. */
static int make_current(struct ibx_driver_context *context)
{
    if (!context || context->device == ibx_frontend_current_device())
        return CUDA_SUCCESS;
    return cudaSetDevice(context->device);
}

static int push(struct ibx_driver_context *context)
{
    if (depth == STACK)
        return CUDA_MEMORY_ALLOCATION;
    const int rc = make_current(context);
    if (!rc)
        stack[depth++] = context;
    return rc;
}

static int pop(struct ibx_driver_context **context)
{
    if (!depth)
        return CUDA_INVALID_CONTEXT;
    *context = stack[--depth];
    return make_current(ibx_driver_current());
}

static int set(struct ibx_driver_context *context)
{
    if (!context) {
        depth -= depth > 0;
        return make_current(ibx_driver_current());
    }
    const int rc = make_current(context);
    if (!rc && !depth)
        depth = 1;
    if (!rc)
        stack[depth - 1] = context;
    return rc;
}

EXPORTED int cuCtxPushCurrent_v2(void *context)
{
    return ANYWHERE(ibx_driver_is_context(context) ? push(context) : CUDA_INVALID_CONTEXT);
}

EXPORTED int cuCtxPopCurrent_v2(void **context)
{
    struct ibx_driver_context *popped = NULL;
    const int rc = ANYWHERE(pop(&popped));
    if (!rc && context)
        *context = popped;
    return rc;
}

EXPORTED int cuCtxSetCurrent(void *context)
{
    return ANYWHERE(!context || ibx_driver_is_context(context) ? set(context)
                                                               : CUDA_INVALID_CONTEXT);
}

EXPORTED int cuCtxGetCurrent(void **context)
{
    return ANYWHERE(context ? (*context = ibx_driver_current(), CUDA_SUCCESS) : CUDA_INVALID_VALUE);
}

EXPORTED int cuCtxGetDevice(int *device)
{
    return IN_CONTEXT(device ? (*device = ibx_driver_current()->device, CUDA_SUCCESS)
                             : CUDA_INVALID_VALUE);
}

/* The context, or the current one if it is NULL. NULL: there is none. */
static const struct ibx_driver_context *named(const void *context)
{
    return !context ? ibx_driver_current() : ibx_driver_is_context(context) ? context : NULL;
}

EXPORTED int cuCtxGetDevice_v2(int *device, void *context)
{
    const struct ibx_driver_context *c = NULL;
    return ANYWHERE(!device                ? CUDA_INVALID_VALUE
                    : (c = named(context)) ? (*device = c->device, CUDA_SUCCESS)
                                           : CUDA_INVALID_CONTEXT);
}

/* ---------------------------------------------------------------------- made, and destroyed */

/* NULL: there is no memory. */
static struct ibx_driver_context *made(int device, unsigned flags)
{
    struct ibx_driver_context *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->device = device;
    c->flags = flags;
    c->state = CONTEXT_CREATED;
    c->attached = 1;
    return c;
}

static void add(struct ibx_driver_context *c)
{
    pthread_mutex_lock(&lock);
    c->id = ++ids;
    c->next = created;
    created = c;
    pthread_mutex_unlock(&lock);
}

static int create(void **context, unsigned flags, int device)
{
    int rc = ibx_driver_check_device(device);
    if (rc || !context || flags & ~FLAGS || device >= DEVICES)
        return rc ? rc : CUDA_INVALID_VALUE;
    struct ibx_driver_context *c = made(device, flags);
    if (!c)
        return CUDA_MEMORY_ALLOCATION;
    rc = push(c);
    if (rc) {
        free(c);
        return rc;
    }
    add(c);
    *context = c;
    return CUDA_SUCCESS;
}

int ibx_driver_create_part(void **context, int device, unsigned multiprocessors)
{
    struct ibx_driver_context *c = device < DEVICES ? made(device, 0) : NULL;
    if (!c)
        return CUDA_MEMORY_ALLOCATION;
    c->part = multiprocessors;
    pthread_mutex_lock(&lock);
    primary[device].retained++;
    pthread_mutex_unlock(&lock);
    add(c);
    *context = c;
    return CUDA_SUCCESS;
}

unsigned ibx_driver_part(const void *context)
{
    const struct ibx_driver_context *c = context;
    return ibx_driver_is_context(context) ? c->part : 0;
}

unsigned long long ibx_driver_id(const void *context)
{
    const struct ibx_driver_context *c = context;
    return c->id;
}

/* Frees what was made in the context, users before what they use. */
static void empty(const struct ibx_driver_context *context)
{
    static const struct {
        enum owned_kind kind;
        int (*end)(void *handle);
    } ends[] = {{OWNED_TEXTURE, ibx_driver_end_texture},
                {OWNED_SURFACE, ibx_driver_end_surface},
                {OWNED_LIBRARY, ibx_driver_unload},
                {OWNED_EVENT, cudaEventDestroy},
                {OWNED_STREAM, cudaStreamDestroy},
                {OWNED_MIPMAP, cudaFreeMipmappedArray},
                {OWNED_ARRAY, cudaFreeArray},
                {OWNED_MEMORY, cudaFree},
                {OWNED_HOST, cudaFreeHost},
                {OWNED_REGISTERED, cudaHostUnregister}};
    void *handle;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        while ((handle = ibx_frontend_owned_take(ends[i].kind, context)))
            ends[i].end(handle);
}

static int release(int device);

/* Waits for the context's work before it destroys the context. Captures may be another one's, of
 * the same device: so beside them streams are waited for one by one, if that can be. What was made
 * in a green context stays: it is the primary context's, which it has retained. */
int ibx_driver_destroy(struct ibx_driver_context *context)
{
    if (context->state != CONTEXT_CREATED)
        return CUDA_INVALID_CONTEXT;
    const bool current = context == ibx_driver_current();
    int before = ibx_frontend_current_device(), rc = CUDA_SUCCESS;
    if (before != context->device)
        rc = cudaSetDevice(context->device);
    if (!rc && (!ibx_frontend_capturing() || ibx_frontend_streams_rest(true)))
        rc = ibx_frontend_device_wait_within();
    if (!context->part)
        empty(context);
    pthread_mutex_lock(&lock);
    const bool first = context->state == CONTEXT_CREATED; /* no other thread has destroyed it */
    context->state = CONTEXT_DESTROYED;
    pthread_mutex_unlock(&lock);
    if (first && context->part)
        release(context->device);
    if (current)
        depth--;
    else if (before != context->device)
        cudaSetDevice(before);
    if (current)
        make_current(ibx_driver_current());
    return rc;
}

/* Later versions also take affinities (_v3) and parameters for graphics (_v4). */
EXPORTED int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
    return ANYWHERE(create(context, flags, device));
}

EXPORTED int cuCtxCreate_v3(void **context, const void *affinities, int count, unsigned flags,
                            int device)
{
    (void)affinities;
    return ANYWHERE(count ? CUDA_NOT_SUPPORTED : create(context, flags, device));
}

struct create_parameters {
    const void *affinities;
    int count;
    const void *shared; /* with graphics */
};

EXPORTED int cuCtxCreate_v4(void **context, const struct create_parameters *p, unsigned flags,
                            int device)
{
    return ANYWHERE(p && (p->count || p->shared) ? CUDA_NOT_SUPPORTED
                                                 : create(context, flags, device));
}

EXPORTED int cuCtxDestroy_v2(void *context)
{
    return ANYWHERE(!context                         ? CUDA_INVALID_VALUE
                    : ibx_driver_is_context(context) ? ibx_driver_destroy(context)
                                                     : CUDA_INVALID_CONTEXT);
}

static int attach(void **context, unsigned flags)
{
    struct ibx_driver_context *now = ibx_driver_current();
    if (!context || flags)
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    now->attached++;
    pthread_mutex_unlock(&lock);
    *context = now;
    return CUDA_SUCCESS;
}

EXPORTED int cuCtxAttach(void **context, unsigned flags)
{
    return IN_CONTEXT(attach(context, flags));
}

/* A primary context is not destroyed. */
static int detach(struct ibx_driver_context *context)
{
    const int rc = ibx_driver_adopt();
    if (rc || context != ibx_driver_current())
        return rc ? rc : CUDA_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    context->attached -= context->attached > 0;
    const bool last = context->state == CONTEXT_CREATED && !context->attached;
    pthread_mutex_unlock(&lock);
    return last ? ibx_driver_destroy(context) : CUDA_SUCCESS;
}

EXPORTED int cuCtxDetach(void *context)
{
    return ANYWHERE(detach(context));
}

/* ------------------------------------------------------------------------- primary ones */

static int check(int device)
{
    const int rc = ibx_driver_check_device(device);
    return rc ? rc : device < DEVICES ? CUDA_SUCCESS : CUDA_INVALID_DEVICE;
}

static int retain(void **context, int device)
{
    const int rc = check(device);
    if (rc || !context)
        return rc ? rc : CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    primary[device].retained++;
    pthread_mutex_unlock(&lock);
    *context = &primary[device];
    return CUDA_SUCCESS;
}

/* The last release frees what was made in it, unless the process has used the runtime. */
static int release(int device)
{
    const int rc = check(device);
    if (rc)
        return rc;
    pthread_mutex_lock(&lock);
    const unsigned had = primary[device].retained;
    primary[device].retained -= had > 0;
    pthread_mutex_unlock(&lock);
    if (had == 1 && !ibx_frontend_runtime_ever())
        empty(&primary[device]);
    return had ? CUDA_SUCCESS : CUDA_INVALID_CONTEXT;
}

static int reset(int device)
{
    const int before = ibx_frontend_current_device();
    int rc = check(device);
    if (!rc && before != device)
        rc = cudaSetDevice(device);
    if (!rc)
        rc = cudaDeviceReset();
    if (before != ibx_frontend_current_device())
        cudaSetDevice(before);
    return rc;
}

static int state_of(int device, unsigned *flags, int *active)
{
    const int rc = check(device);
    if (rc || !flags || !active)
        return rc ? rc : CUDA_INVALID_VALUE;
    *flags = primary[device].flags;
    pthread_mutex_lock(&lock);
    *active = primary[device].retained || ibx_frontend_device_in_use(device);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static int set_flags(int device, unsigned flags)
{
    const int rc = check(device);
    if (rc || flags & ~FLAGS)
        return rc ? rc : CUDA_INVALID_VALUE;
    primary[device].flags = flags;
    return CUDA_SUCCESS;
}

EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device)
{
    return ANYWHERE(retain(context, device));
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int device)
{
    return ANYWHERE(release(device));
}

EXPORTED int cuDevicePrimaryCtxReset_v2(int device)
{
    return ANYWHERE(reset(device));
}

EXPORTED int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    return ANYWHERE(state_of(device, flags, active));
}

EXPORTED int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags)
{
    return ANYWHERE(set_flags(device, flags));
}

/* ---------------------------------------------------------------------- what is known of one */

#define MAP_HOST 8u /* CU_CTX_MAP_HOST, which each context has since CUDA 11 */

EXPORTED int cuCtxGetFlags(unsigned *flags)
{
    return IN_CONTEXT(flags ? (*flags = ibx_driver_current()->flags | MAP_HOST, CUDA_SUCCESS)
                            : CUDA_INVALID_VALUE);
}

static int set_current_flags(unsigned flags)
{
    if (flags & ~FLAGS)
        return CUDA_INVALID_VALUE;
    ibx_driver_current()->flags = flags;
    return CUDA_SUCCESS;
}

EXPORTED int cuCtxSetFlags(unsigned flags)
{
    return IN_CONTEXT(set_current_flags(flags));
}

EXPORTED int cuCtxGetId(void *context, unsigned long long *id)
{
    const struct ibx_driver_context *c = NULL;
    return ANYWHERE(!id                    ? CUDA_INVALID_VALUE
                    : (c = named(context)) ? (*id = c->id, CUDA_SUCCESS)
                                           : CUDA_INVALID_CONTEXT);
}

EXPORTED int cuCtxGetApiVersion(void *context, unsigned *version)
{
    return ANYWHERE(!version         ? CUDA_INVALID_VALUE
                    : named(context) ? (*version = VERSION, CUDA_SUCCESS)
                                     : CUDA_INVALID_CONTEXT);
}

EXPORTED int cuCtxSynchronize(void)
{
    return IN_CONTEXT(cudaDeviceSynchronize());
}

static int wait_for(const void *context)
{
    const struct ibx_driver_context *c = named(context);
    const int before = ibx_frontend_current_device();
    if (!c)
        return CUDA_INVALID_CONTEXT;
    int rc = c->device == before ? CUDA_SUCCESS : cudaSetDevice(c->device);
    if (!rc)
        rc = cudaDeviceSynchronize();
    if (before != ibx_frontend_current_device())
        cudaSetDevice(before);
    return rc;
}

EXPORTED int cuCtxSynchronize_v2(void *context)
{
    return ANYWHERE(wait_for(context));
}

EXPORTED int cuCtxSetLimit(int limit, size_t value)
{
    return IN_CONTEXT(cudaDeviceSetLimit(limit, value));
}

EXPORTED int cuCtxGetLimit(size_t *value, int limit)
{
    return IN_CONTEXT(cudaDeviceGetLimit(value, limit));
}

EXPORTED int cuCtxGetCacheConfig(int *config)
{
    return IN_CONTEXT(cudaDeviceGetCacheConfig(config));
}

EXPORTED int cuCtxSetCacheConfig(int config)
{
    return IN_CONTEXT(CALL_NEXT(cudaDeviceSetCacheConfig, config));
}

EXPORTED int cuCtxGetSharedMemConfig(int *config)
{
    return IN_CONTEXT(cudaDeviceGetSharedMemConfig(config));
}

EXPORTED int cuCtxSetSharedMemConfig(int config)
{
    return IN_CONTEXT(cudaDeviceSetSharedMemConfig(config));
}

EXPORTED int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    return IN_CONTEXT(cudaDeviceGetStreamPriorityRange(least, greatest));
}

EXPORTED int cuCtxResetPersistingL2Cache(void)
{
    return IN_CONTEXT(cudaCtxResetPersistingL2Cache());
}

EXPORTED int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    return IN_CONTEXT(
        ibx_driver_is_context(context)
            ? cudaDeviceEnablePeerAccess(((struct ibx_driver_context *)context)->device, flags)
            : CUDA_INVALID_CONTEXT);
}

EXPORTED int cuCtxDisablePeerAccess(void *context)
{
    return IN_CONTEXT(
        ibx_driver_is_context(context)
            ? cudaDeviceDisablePeerAccess(((struct ibx_driver_context *)context)->device)
            : CUDA_INVALID_CONTEXT);
}

SAME_AS(cuCtxPushCurrent, cuCtxPushCurrent_v2)
SAME_AS(cuCtxPopCurrent, cuCtxPopCurrent_v2)
SAME_AS(cuCtxCreate, cuCtxCreate_v2)
SAME_AS(cuCtxDestroy, cuCtxDestroy_v2)
SAME_AS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)
SAME_AS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2)
SAME_AS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2)
