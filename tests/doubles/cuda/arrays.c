/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's runtime: arrays, textures, attributes, functions of the host. An array is
 * memory of the device, with rows without gaps. A handle that this file has not made ends the
 * process, as with CUDA. */
#include "frontend-glue/session/extensions.h"
#include "tests/doubles/cuda/runtime.h"

#include <stdlib.h>

#define ON_DEVICE     3
#define INVALID_VALUE 1
#define BAD_FILTER    26
#define UNSUPPORTED   900

struct array {
    uint64_t magic;
    char *bytes; /* of the device */
    size_t row, height, depth;
    struct ibx_cuda_channel channel;
};
#define MAGIC 0x6172726179ull

static struct array *array_of(void *handle)
{
    struct array *array = handle;
    if (array->magic != MAGIC) /* reading it may have ended the process already */
        abort();
    return array;
}

static struct ibx_array_unit unit_of(const struct array *a)
{
    return ibx_array_unit_of(&a->channel);
}

/* Copies between addresses of the device, for which CUDA does not wait. */
static int copy(void *to, const void *from, size_t n)
{
    int (*run)(uint64_t to, uint64_t from, size_t n, void *stream) = NULL;
    int (*range_of)(uint64_t * base, size_t * size, uint64_t address) = NULL;
    *(void **)&run = driver_function("cuMemcpyAsync");
    *(void **)&range_of = driver_function("cuMemGetAddressRange_v2");
    if (range_of(NULL, NULL, (uintptr_t)to) || range_of(NULL, NULL, (uintptr_t)from))
        return INVALID_VALUE;
    return run((uintptr_t)to, (uintptr_t)from, n, NULL);
}

EXPORT int cudaMalloc3DArray(void **made, const struct ibx_cuda_channel *channel,
                             struct ibx_cuda_extent extent, unsigned flags)
{
    struct array *a = calloc(1, sizeof(*a));
    *a = (struct array){.magic = MAGIC, .channel = *channel};
    const struct ibx_array_unit unit = unit_of(a);
    a->row = ibx_array_units(&unit, extent.width) * unit.bytes;
    a->height = ibx_array_units(&unit, extent.height ? extent.height : 1);
    a->depth = extent.depth ? extent.depth : 1;
    void *bytes = NULL;
    int rc =
        flags > 63 || !a->row ? INVALID_VALUE : cudaMalloc(&bytes, a->row * a->height * a->depth);
    a->bytes = bytes;
    if (rc) {
        free(a);
        return returns(rc);
    }
    void (*is_of_array)(uint64_t device) = NULL;
    *(void **)&is_of_array = driver_function("ibx_double_of_array");
    is_of_array((uintptr_t)bytes);
    *made = a;
    return returns(0);
}

/* An array that has gone with its context does not exist. */
EXPORT int cudaFreeArray(void *handle)
{
    struct array *a = array_of(handle);
    int (*free_it)(uint64_t device) = NULL;
    *(void **)&free_it = driver_function("ibx_double_free_array");
    const int rc = returns(free_it((uintptr_t)a->bytes));
    if (rc == INVALID_VALUE)
        abort();
    if (rc == UNSUPPORTED) /* in a capture: it stays */
        return returns(rc);
    a->magic = 0;
    free(a);
    return returns(rc);
}

struct mipmap {
    uint64_t magic;
    unsigned count;
    void *levels[8];
};
#define MIPMAP_MAGIC 0x70616d70696dull

static struct mipmap *mipmap_of(const void *handle)
{
    struct mipmap *mipmap = (struct mipmap *)(uintptr_t)handle;
    if (mipmap->magic != MIPMAP_MAGIC)
        abort();
    return mipmap;
}

EXPORT int cudaFreeMipmappedArray(void *handle)
{
    struct mipmap *mipmap = mipmap_of(handle);
    for (unsigned i = 0; i < mipmap->count; i++) {
        if (cudaFreeArray(mipmap->levels[i]) == UNSUPPORTED) /* in a capture: all stay */
            return UNSUPPORTED;
    }
    mipmap->magic = 0;
    free(mipmap);
    return returns(0);
}

EXPORT int cudaMallocMipmappedArray(void **made, const struct ibx_cuda_channel *channel,
                                    struct ibx_cuda_extent extent, unsigned levels, unsigned flags)
{
    struct mipmap *mipmap = calloc(1, sizeof(*mipmap));
    int rc = 0;
    mipmap->magic = MIPMAP_MAGIC;
    while (mipmap->count < levels && mipmap->count < 8 && extent.width >> mipmap->count && !rc) {
        const unsigned i = mipmap->count;
        const struct ibx_cuda_extent level = {extent.width >> i, extent.height >> i, 0};
        rc = cudaMalloc3DArray(&mipmap->levels[i], channel, level, flags);
        mipmap->count += !rc;
    }
    if (rc)
        cudaFreeMipmappedArray(mipmap);
    else
        *made = mipmap;
    return returns(rc);
}

EXPORT int cudaGetMipmappedArrayLevel(void **array, const void *handle, unsigned level)
{
    const struct mipmap *mipmap = mipmap_of(handle);
    if (level >= mipmap->count)
        return returns(INVALID_VALUE);
    *array = mipmap->levels[level];
    return returns(0);
}

EXPORT int cudaGetChannelDesc(struct ibx_cuda_channel *channel, void *handle)
{
    *channel = array_of(handle)->channel;
    return returns(0);
}

static bool holds(const struct array *a, size_t x, size_t y, size_t n)
{
    const size_t at = y * a->row + x, all = a->row * a->height;
    return at <= all && n <= all - at;
}

EXPORT int cudaMemcpyToArray(void *handle, size_t x, size_t y, const void *from, size_t n, int kind)
{
    struct array *a = array_of(handle);
    if (kind != ON_DEVICE || !holds(a, x, y, n))
        return returns(INVALID_VALUE);
    return returns(copy(a->bytes + y * a->row + x, from, n));
}

EXPORT int cudaMemcpyFromArray(void *to, void *handle, size_t x, size_t y, size_t n, int kind)
{
    struct array *a = array_of(handle);
    if (kind != ON_DEVICE || !holds(a, x, y, n))
        return returns(INVALID_VALUE);
    return returns(copy(to, a->bytes + y * a->row + x, n));
}

/* The address n bytes behind another one, whatever is there. */
static void *behind(const void *address, size_t n)
{
    return (void *)((uintptr_t)address + n);
}

EXPORT int cudaMemcpy2DToArray(void *handle, size_t x, size_t y, const void *from, size_t pitch,
                               size_t width, size_t height, int kind)
{
    int rc = 0;
    for (size_t i = 0; width && i < height && !rc; i++)
        rc = cudaMemcpyToArray(handle, x, y + i, behind(from, i * pitch), width, kind);
    return rc;
}

EXPORT int cudaMemcpy2DFromArray(void *to, size_t pitch, void *handle, size_t x, size_t y,
                                 size_t width, size_t height, int kind)
{
    int rc = 0;
    for (size_t i = 0; width && i < height && !rc; i++)
        rc = cudaMemcpyFromArray(behind(to, i * pitch), handle, x, y + i, width, kind);
    return rc;
}

/* One side of a copy as memory of the device, whose columns are bytes. */
static void as_memory(void *handle, struct ibx_cuda_pitched *memory, struct ibx_cuda_extent *at,
                      const struct ibx_array_unit *unit)
{
    const struct array *a = handle ? array_of(handle) : NULL;
    at->width = at->width / (a ? unit->texels : 1) * unit->bytes;
    if (!a)
        return;
    at->height /= unit->texels;
    *memory = (struct ibx_cuda_pitched){a->bytes, a->row, a->row, a->height};
}

static bool within(size_t at, size_t n, size_t all)
{
    return at <= all && n <= all - at;
}

static bool in_array(void *handle, const struct ibx_cuda_extent *at,
                     const struct ibx_cuda_extent *extent)
{
    const struct array *a = handle ? array_of(handle) : NULL;
    if (!a)
        return true;
    const struct ibx_array_unit unit = unit_of(a);
    return within(at->width, extent->width, a->row / unit.bytes * unit.texels) &&
           within(at->height, extent->height, a->height * unit.texels) &&
           within(at->depth, extent->depth, a->depth);
}

/* As measured with CUDA 13: columns of memory count in elements of the array, too. */
bool copies_memory(const struct ibx_cuda_memcpy3d *p, struct ibx_cuda_memcpy3d *memory)
{
    void *array = p->from_array ? p->from_array : p->to_array;
    const struct ibx_array_unit unit =
        array ? unit_of(array_of(array)) : (struct ibx_array_unit){1, 1};
    if (!in_array(p->from_array, &p->from_at, &p->extent) ||
        !in_array(p->to_array, &p->to_at, &p->extent))
        return false;
    *memory = *p;
    memory->extent.width = ibx_array_units(&unit, p->extent.width) * unit.bytes;
    memory->extent.height = ibx_array_units(&unit, p->extent.height);
    as_memory(p->from_array, &memory->from, &memory->from_at, &unit);
    as_memory(p->to_array, &memory->to, &memory->to_at, &unit);
    return true;
}

/* Where a row begins. */
static void *row_at(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                    size_t y, size_t z)
{
    return behind(memory->at,
                  ((at->depth + z) * memory->y + at->height + y) * memory->pitch + at->width);
}

EXPORT int cudaMemcpy3D(const struct ibx_cuda_memcpy3d *p)
{
    struct ibx_cuda_memcpy3d m;
    int rc = p->kind == ON_DEVICE && copies_memory(p, &m) ? 0 : INVALID_VALUE;
    for (size_t z = 0; !rc && m.extent.width && m.extent.height && z < m.extent.depth; z++)
        for (size_t y = 0; y < m.extent.height && !rc; y++)
            rc = copy(row_at(&m.to, &m.to_at, y, z), row_at(&m.from, &m.from_at, y, z),
                      m.extent.width);
    return returns(rc);
}

/* ------------------------------------------------------------------ textures, surfaces */

enum { WORD_FILTER = 3, WORD_READ, WORD_MIPMAP_FILTER = 12 };

/* Whether the words of the texture are 1 to 18, or the words that are flags have the values that
 * the driver API gives them. A filter may be linear (1), too. */
static bool is_texture(const struct ibx_cuda_texture *how)
{
    static const bool flags[18] = {[4] = true, [5] = true, [10] = true, [16] = true, [17] = true};
    static const bool filters[18] = {[WORD_FILTER] = true, [WORD_MIPMAP_FILTER] = true};
    bool words = true, of_driver = true;
    for (int i = 0; i < 18; i++) {
        words = words && how->words[i] == i + 1;
        of_driver = of_driver && ((flags[i] && how->words[i] == 0) ||
                                  ((flags[i] || filters[i]) && how->words[i] == 1) ||
                                  (!flags[i] && how->words[i] == i + 1));
    }
    return words || of_driver;
}

/* As CUDA's runtime (H200, driver 580): integers that are read as such have no linear filter. */
static bool is_refused_filter(const struct ibx_cuda_resource *resource,
                              const struct ibx_cuda_texture *how)
{
    const struct ibx_cuda_channel *channel = &resource->of.memory.channel;
    if (resource->kind == IBX_RESOURCE_ARRAY)
        channel = &array_of(resource->of.array)->channel;
    else if (resource->kind == IBX_RESOURCE_MIPMAP)
        channel = &array_of(mipmap_of(resource->of.array)->levels[0])->channel;
    return how->words[WORD_FILTER] == 1 && how->words[WORD_READ] == 0 && channel->kind < 2;
}

/* A view's layers are 7 and 9. */
EXPORT int cudaCreateTextureObject(unsigned long long *texture,
                                   const struct ibx_cuda_resource *resource,
                                   const struct ibx_cuda_texture *how,
                                   const struct ibx_cuda_view *view)
{
    if (!is_texture(how))
        return returns(INVALID_VALUE);
    if (is_refused_filter(resource, how))
        return returns(BAD_FILTER);
    if (view && (view->levels_and_layers[2] != 7 || view->levels_and_layers[3] != 9))
        return returns(INVALID_VALUE);
    if (resource->kind == IBX_RESOURCE_ARRAY)
        array_of(resource->of.array);
    else if (resource->kind == IBX_RESOURCE_MIPMAP)
        mipmap_of(resource->of.array);
    else if (resource->of.memory.sizes[0] % 64 || resource->of.memory.channel.kind != 2)
        return returns(INVALID_VALUE);
    *texture = 1000u + (unsigned)resource->kind + (view ? 100u : 0u);
    return returns(0);
}

EXPORT int cudaDestroyTextureObject(unsigned long long texture)
{
    return returns(texture >= 1000 && texture < 1200 ? 0 : INVALID_VALUE);
}

EXPORT int cudaCreateSurfaceObject(unsigned long long *surface,
                                   const struct ibx_cuda_resource *resource)
{
    array_of(resource->of.array);
    *surface = 2000;
    return returns(0);
}

EXPORT int cudaDestroySurfaceObject(unsigned long long surface)
{
    return returns(surface == 2000 ? 0 : INVALID_VALUE);
}

/* ------------------------------------------------------------------------- attributes */

static uint8_t attribute_value[64];

EXPORT int cudaStreamSetAttribute(void *stream, int attribute, const void *value)
{
    char *event = NULL;
    (void)stream;
    memcpy(&event, value, sizeof(event));
    if (attribute == 7 || attribute == 12) /* the value begins with an event, which is used */
        *(volatile char *)event += 0;
    memcpy(attribute_value, value, sizeof(attribute_value));
    return returns(attribute == 1 ? 0 : INVALID_VALUE);
}

EXPORT int cudaStreamGetAttribute(void *stream, int attribute, void *value)
{
    (void)stream;
    memcpy(value, attribute_value, sizeof(attribute_value));
    return returns(attribute == 1 ? 0 : INVALID_VALUE);
}

EXPORT int cudaStreamGetFlags(void *stream, unsigned *flags)
{
    int (*get)(void *, unsigned *) = NULL;
    *(void **)&get = driver_function("cuStreamGetFlags");
    return returns(get(stream, flags));
}

EXPORT int cudaStreamGetPriority(void *stream, int *priority)
{
    (void)stream;
    *priority = -2;
    return returns(0);
}

/* ------------------------------------------------------------------- functions of the host */

EXPORT int cudaLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    int (*launch)(void *, void (*)(void *), void *) = NULL;
    if (captures_function(stream, function, argument))
        return returns(0);
    *(void **)&launch = driver_function("cuLaunchHostFunc");
    return returns(launch(stream, function, argument));
}

struct callback {
    void *stream, *argument;
    void (*function)(void *stream, int status, void *argument);
};

static void call_back(void *callback)
{
    struct callback c = *(struct callback *)callback;
    free(callback);
    c.function(c.stream, 0, c.argument);
}

EXPORT int cudaStreamAddCallback(void *stream,
                                 void (*function)(void *stream, int status, void *argument),
                                 void *argument, unsigned flags)
{
    struct callback *c = malloc(sizeof(*c));
    *c = (struct callback){stream, argument, function};
    int rc = flags ? INVALID_VALUE : captures_nothing(stream);
    rc = rc ? returns(rc) : cudaLaunchHostFunc(stream, call_back, c);
    if (rc)
        free(c);
    return rc;
}
