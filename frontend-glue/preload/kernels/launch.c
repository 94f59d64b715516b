/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * nvcc 13 turns <<<>>> into two calls that no generation of GVirtuS has: one returns a handle of
 * the kernel, the other launches it. Here the handle is the host function, as for
 * cudaLaunchKernel(), which all generations since G2 have. If a libcudart has the two calls, it
 * gets them.
 *
 * Launches with attributes, such as cooperative ones, are extension requests, and so are those
 * with more than 4 KiB of arguments. GVirtuS's front end knows the sizes of a kernel's arguments:
 * it writes a plain launch, which is kept and not sent. Otherwise the back end is asked.
 */
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/fork_lock.h"
#include "common/thread.h"

enum { /* cudaLaunchAttributeID */
       ATTRIBUTE_COOPERATIVE = 2,
       ATTRIBUTE_CLUSTER = 4,
       ATTRIBUTE_CLUSTER_POLICY,
       ATTRIBUTE_BEGINS_EARLY,
       ATTRIBUTE_EVENT, /* cudaLaunchAttributeProgrammaticEvent */
       ATTRIBUTE_PRIORITY,
       ATTRIBUTE_COMPLETION_EVENT = 12
};

int __cudaGetKernel(void **kernel, const void *function)
{
    __typeof__(&__cudaGetKernel) next = NEXT(__cudaGetKernel);
    if (next) {
        ibx_frontend_module_needed(function);
        const int rc = next(kernel, function);
        if (!rc)
            /* It may be launched by this handle, too. */
            ibx_frontend_kernel_registered(*kernel, NULL);
        return rc;
    }
    *kernel = (void *)(uintptr_t)function;
    return CUDA_SUCCESS;
}

/* The launch configurations that <<<>>> pushes before it evaluates the kernel's arguments, which
 * may launch kernels themselves, and pops afterwards. A launch contains its configuration, so it
 * need not leave this process. */
#define CONFIGURATIONS 32u
static _Thread_local struct {
    struct dim3 grid, block;
    size_t shared;
    void *stream;
} pushed[CONFIGURATIONS];
static _Thread_local unsigned depth; /* deeper ones go to GVirtuS */
static _Thread_local bool popped; /* a configuration was popped, and nothing was launched since */

/* The code for <<<>>> pops the configuration, launches, and ignores the result. */
bool ibx_frontend_launch_unseen(void)
{
    const bool unseen = popped;
    popped = false;
    return unseen;
}

unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared,
                                     void *stream)
{
    const unsigned at = depth++;
    popped = false;
    if (at >= CONFIGURATIONS) {
        const unsigned rc =
            (unsigned)CALL_NEXT(__cudaPushCallConfiguration, grid, block, shared, stream);
        depth -= rc != 0;
        return rc;
    }
    pushed[at].grid = grid;
    pushed[at].block = block;
    pushed[at].shared = shared;
    pushed[at].stream = stream;
    return 0;
}

int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream)
{
    if (!depth)
        return ibx_frontend_fail(CUDA_MISSING_CONFIGURATION);
    const unsigned at = --depth;
    popped = true;
    if (at >= CONFIGURATIONS)
        return CALL_NEXT(__cudaPopCallConfiguration, grid, block, shared, stream);
    *grid = pushed[at].grid;
    *block = pushed[at].block;
    *shared = pushed[at].shared;
    memcpy(stream, &pushed[at].stream, sizeof(pushed[at].stream));
    return CUDA_SUCCESS;
}

ibx_frontend_launcher ibx_frontend_plain_launch(void)
{
    static _Atomic(void *) launch;
    ibx_frontend_launcher next = NULL;
    *(void **)&next = ibx_frontend_next(&launch, "cudaLaunchKernel");
    return next;
}

int __cudaLaunchKernel(void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                       size_t shared, void *stream)
{
    const bool theirs = NEXT(__cudaLaunchKernel);
    const struct launch_config config = {grid, block, shared, stream, NULL, 0};
    const bool unseen = ibx_frontend_launch_unseen();
    const struct ibx_frontend_calls *plugin = theirs ? ibx_frontend_plugin() : NULL;
    if (plugin)
        plugin->unseen(unseen);
    return theirs ? CALL_NEXT(__cudaLaunchKernel, kernel, grid, block, arguments, shared, stream)
                  : ibx_frontend_launch(kernel, &config, arguments, unseen);
}

bool ibx_frontend_launch_caught(const struct ibx_frontend_calls *calls,
                                const struct launch_config *config, const void *function,
                                void **arguments, int *rc)
{
    ibx_frontend_launcher by_gvirtus = ibx_frontend_plain_launch();
    const struct ibx_frontend_launch launch = {
        .launch = *(void **)&by_gvirtus,
        .function = function,
        .grid = {config->grid.x, config->grid.y, config->grid.z},
        .block = {config->block.x, config->block.y, config->block.z},
        .arguments = arguments,
        .shared = config->shared,
        .stream = config->stream};
    return calls->launch(&launch, rc);
}

static struct ibx_fork_lock maps = IBX_FORK_LOCK; /* of GVirtuS's front end */

void ibx_frontend_gvirtus_maps_lock(void)
{
    ibx_fork_lock_take(&maps);
}

void ibx_frontend_gvirtus_maps_unlock(void)
{
    ibx_fork_lock_release(&maps);
}

const void *ibx_frontend_launch_body(const struct launch_config *config, const void *function,
                                     void **arguments, size_t *n, int *rc)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    ibx_frontend_launcher write_launch = ibx_frontend_plain_launch();
    *rc = ibx_frontend_no_kernel(function);
    if (*rc)
        return NULL;
    if (!calls || !calls->divert()) {
        ibx_frontend_connect();
        calls = ibx_frontend_plugin();
        if (!calls || !calls->divert())
            write_launch = NULL;
    }
    if (!write_launch) {
        *rc = CUDA_NOT_SUPPORTED;
        return NULL;
    }
    const int cancel = ibx_thread_hold_cancel();
    ibx_frontend_gvirtus_maps_lock();
    const bool made = ibx_frontend_launch_caught(calls, config, function, arguments, rc);
    ibx_frontend_gvirtus_maps_unlock();
    ibx_thread_release_cancel(cancel);
    const void *body = calls->diverted(n);
    if (!made)
        *rc = CUDA_UNKNOWN;
    else if (!body && !*rc) /* the body is too long */
        *rc = CUDA_NOT_SUPPORTED;
    return *rc ? NULL : body;
}

/* Makes the request, which the back end may not know. */
static bool request_known(const struct extension_request *e, int *rc)
{
    if (!ibx_frontend_request_try(e, NULL, 0, rc) || *rc < 0)
        return false;
    *rc = *rc ? ibx_frontend_fail(*rc) : CUDA_SUCCESS;
    return true;
}

/* The bytes of a value that an attribute uses. */
static size_t value_bytes(int id)
{
    switch (id) {
    case ATTRIBUTE_COOPERATIVE:
    case ATTRIBUTE_CLUSTER_POLICY:
    case ATTRIBUTE_BEGINS_EARLY:
    case ATTRIBUTE_PRIORITY:
        return sizeof(int);
    case ATTRIBUTE_CLUSTER:
        return sizeof(struct dim3);
    default:
        return IBX_EXT_ATTRIBUTE;
    }
}

/* Programs leave the other bytes as they were. With these the launch would be another one than that
 * which has succeeded before. */
static void put_attribute(struct ibx_writer *w, const struct launch_attribute *attribute)
{
    uint8_t value[IBX_EXT_ATTRIBUTE] = {0};
    memcpy(value, attribute->value, value_bytes(attribute->id));
    ibx_put_u32(w, (uint32_t)attribute->id);
    ibx_put_bytes(w, value, sizeof(value));
}

/* `known`: NULL, or the launch follows only what is in its stream, and is not waited for if the
 * same one has succeeded before; then whether the back end knows such a request. */
static int launch_ours(const struct launch_config *config, const void *function, void **arguments,
                       bool *known)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, known ? IBX_EXT_LAUNCH_QUEUED : IBX_EXT_LAUNCH,
                               config->count ? "a launch with attributes" : "a long launch");
    ibx_put_u16(&e.body, (uint16_t)(config->count * (4 + IBX_EXT_ATTRIBUTE)));
    for (unsigned i = 0; i < config->count && !e.body.failed; i++)
        put_attribute(&e.body, &config->attributes[i]);
    int rc = ibx_frontend_put_launch(&e, config, function, arguments);
    if (!rc && known && !ibx_frontend_request_room(&e, 8))
        rc = ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (!rc) {
        ibx_frontend_device_used();
        if (known) {
            ibx_put_u64(&e.body, (uintptr_t)config->stream);
            *known = request_known(&e, &rc);
        } else {
            rc = ibx_frontend_request_make(&e, NULL, 0);
        }
    }
    ibx_frontend_request_free(&e);
    return rc;
}

/* Streams join a capture by the events that its launches record. In a capture CUDA refuses those
 * with cudaEventRecordExternal (801). */
static void note_events(const struct launch_config *config)
{
    for (unsigned i = 0; i < config->count; i++) {
        const struct launch_attribute *attribute = &config->attributes[i];
        void *event;
        if (attribute->id != ATTRIBUTE_EVENT && attribute->id != ATTRIBUTE_COMPLETION_EVENT)
            continue;
        memcpy(&event, attribute->value, sizeof(event));
        ibx_frontend_forks_recorded(event, config->stream);
    }
}

static int launch_known(const struct launch_config *config, const void *function, void **arguments)
{
    static atomic_bool unknown; /* to the back end, which is older */
    bool known = true;
    if (!config->count || atomic_load_explicit(&unknown, memory_order_relaxed) ||
        ibx_frontend_captures(config->stream))
        return launch_ours(config, function, arguments, NULL);
    const int rc = launch_ours(config, function, arguments, &known);
    if (known)
        return rc;
    if (rc < 0) /* not if there is no connection */
        atomic_store_explicit(&unknown, true, memory_order_relaxed);
    return launch_ours(config, function, arguments, NULL);
}

int ibx_frontend_launch_ours(const struct launch_config *config, const void *function,
                             void **arguments)
{
    const int rc = launch_known(config, function, arguments);
    if (!rc && ibx_frontend_capturing())
        note_events(config);
    return rc;
}

int cudaLaunchKernelExC(const struct launch_config *config, const void *function, void **arguments)
{
    if (!config || (config->count && !config->attributes))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    ibx_frontend_launch_unseen();
    return ibx_frontend_launch(function, config, arguments, false);
}

int cudaLaunchCooperativeKernel(const void *function, struct dim3 grid, struct dim3 block,
                                void **arguments, size_t shared, void *stream)
{
    struct launch_attribute cooperative = {.id = ATTRIBUTE_COOPERATIVE};
    const int on = 1;
    memcpy(cooperative.value, &on, sizeof(on));
    const struct launch_config config = {grid, block, shared, stream, &cooperative, 1};
    return cudaLaunchKernelExC(&config, function, arguments);
}
