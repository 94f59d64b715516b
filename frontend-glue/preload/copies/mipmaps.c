/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Mipmapped arrays, as extension requests. Their levels are arrays, which end with them. */
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

#define LEVELS  32u   /* more than any array has */
#define LAYERED 0x01u /* cudaArrayLayered, cudaArrayCubemap: the depth is a number of layers */
#define CUBEMAP 0x04u

struct mipmap {
    struct thing thing;
    struct ibx_frontend_array whole; /* the size of level 0 */
    void *levels[LEVELS];            /* NULL: not requested yet */
};

static size_t halved(size_t n, unsigned level)
{
    return !n || n >> level ? n >> level : 1;
}

static struct ibx_frontend_array level_like(const struct ibx_frontend_array *whole, void *array,
                                            unsigned level)
{
    struct ibx_frontend_array like = *whole;
    like.array = array;
    like.extent.width = halved(like.extent.width, level);
    like.extent.height = halved(like.extent.height, level);
    if (!(like.flags & (LAYERED | CUBEMAP)))
        like.extent.depth = halved(like.extent.depth, level);
    return like;
}

static void levels_gone(const struct mipmap *gone)
{
    for (unsigned i = 0; gone && i < LEVELS; i++) {
        if (gone->levels[i])
            ibx_frontend_array_gone(gone->levels[i]);
    }
}

/* After levels_gone(): they are still there. */
static void stays(struct mipmap *m)
{
    for (unsigned i = 0; i < LEVELS; i++) {
        const struct ibx_frontend_array like = level_like(&m->whole, m->levels[i], i);
        if (like.array)
            ibx_frontend_array_made(&like);
    }
    ibx_frontend_thing_made(&m->thing);
}

static struct mipmap *take(const void *mipmap)
{
    return (struct mipmap *)ibx_frontend_thing_take(THING_MIPMAP, (uintptr_t)mipmap);
}

/* The list is locked until ibx_frontend_things_let_go(). */
static struct mipmap *hold(const void *mipmap)
{
    return (struct mipmap *)ibx_frontend_thing_hold(THING_MIPMAP, (uintptr_t)mipmap);
}

int cudaMallocMipmappedArray(void **mipmap, const struct ibx_cuda_channel *channel,
                             struct ibx_cuda_extent extent, unsigned levels, unsigned flags)
{
    struct extension_request e;
    uint64_t handle = 0;
    if (!mipmap || !channel)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int unsafe = ibx_frontend_unsafe_beside();
    if (unsafe)
        return unsafe;
    ibx_frontend_request_begin(&e, IBX_EXT_MALLOC_MIPMAP, "cudaMallocMipmappedArray");
    ibx_layout_put(&e.body, IBX_LAYOUT_CHANNEL, channel);
    ibx_layout_put(&e.body, IBX_LAYOUT_EXTENT, &extent);
    ibx_put_u32(&e.body, levels);
    ibx_put_u32(&e.body, flags);
    ibx_frontend_device_used();
    struct mipmap *made = calloc(1, sizeof(*made));
    const int rc =
        made ? ibx_frontend_request_ask(&e, &handle) : ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    if (rc) {
        free(made);
        return rc;
    }
    *mipmap = (void *)(uintptr_t)handle;
    made->whole = (struct ibx_frontend_array){*mipmap, *channel, extent, flags,
                                              ibx_frontend_current_device()};
    made->thing =
        (struct thing){.kind = THING_MIPMAP, .device = made->whole.device, .handle = handle};
    struct mipmap *former = take(*mipmap); /* with this handle; its end was not seen */
    levels_gone(former);
    free(former);
    ibx_frontend_thing_made(&made->thing);
    return CUDA_SUCCESS;
}

/* The entry is removed before the call: another thread may get the same handles right after it. */
int cudaFreeMipmappedArray(void *mipmap)
{
    struct extension_request e;
    const int unsafe = mipmap ? ibx_frontend_unsafe_beside() : CUDA_SUCCESS;
    if (!mipmap || unsafe)
        return unsafe;
    ibx_frontend_owned_gone(OWNED_MIPMAP, mipmap);
    ibx_frontend_request_begin(&e, IBX_EXT_FREE_MIPMAP, "cudaFreeMipmappedArray");
    ibx_put_u64(&e.body, (uintptr_t)mipmap);
    struct mipmap *taken = take(mipmap);
    levels_gone(taken);
    ibx_frontend_before_free();
    const int rc = ibx_frontend_freed(ibx_frontend_request_make(&e, NULL, 0));
    if (rc == CUDA_CAPTURE_UNSUPPORTED && taken)
        stays(taken);
    else
        free(taken);
    return rc;
}

/* The array of a level; NULL: the back end has to be asked. */
static void *known_level(const void *mipmap, unsigned level)
{
    const struct mipmap *found = hold(mipmap);
    void *array = found && level < LEVELS ? found->levels[level] : NULL;
    ibx_frontend_things_let_go();
    return array;
}

static void note_level(const void *mipmap, unsigned level, void *array)
{
    struct ibx_frontend_array like = {.array = NULL};
    struct mipmap *found = hold(mipmap);
    if (found && level < LEVELS) {
        found->levels[level] = array;
        like = level_like(&found->whole, array, level);
    }
    ibx_frontend_things_let_go();
    if (like.array)
        ibx_frontend_array_made(&like);
}

int cudaGetMipmappedArrayLevel(void **array, const void *mipmap, unsigned level)
{
    struct extension_request e;
    uint64_t handle = 0;
    if (!array || !mipmap)
        return ibx_frontend_fail(array ? CUDA_INVALID_HANDLE : CUDA_INVALID_VALUE);
    void *known = known_level(mipmap, level);
    if (known) {
        *array = known;
        return CUDA_SUCCESS;
    }
    ibx_frontend_request_begin(&e, IBX_EXT_MIPMAP_LEVEL, "cudaGetMipmappedArrayLevel");
    ibx_put_u64(&e.body, (uintptr_t)mipmap);
    ibx_put_u32(&e.body, level);
    const int rc = ibx_frontend_request_ask(&e, &handle);
    if (rc)
        return rc;
    *array = (void *)(uintptr_t)handle;
    note_level(mipmap, level, *array);
    return CUDA_SUCCESS;
}
