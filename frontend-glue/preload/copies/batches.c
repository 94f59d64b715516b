/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Several copies in one call (cudaMemcpyBatchAsync, cudaMemcpy3DBatchAsync). They are made one
 * after another, in the order of the stream. A copy that is wrong keeps out those behind it, as it
 * does natively (H200), and one of planes also those before it, unless only its memory is wrong. A
 * copy that only the back end finds wrong keeps out none.
 */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdint.h>

#define AT_ONCE 2 /* cudaMemcpySrcAccessOrderDuringApiCall */
#define ORDERS  3
#define OVERLAP 1u /* cudaMemcpyFlagPreferOverlapWithCompute, a hint */

static bool is_part_of(const void *address, size_t n)
{
    return address && n && n <= PTRDIFF_MAX &&
           !(ibx_frontend_goes_beyond((uintptr_t)address, n) && ibx_frontend_is_device(address));
}

static bool is_way(int order, unsigned flags)
{
    return order > 0 && order <= ORDERS && !(flags & ~OVERLAP);
}

/* ------------------------------------------------------------------------------------- of rows */

/* Each entry of the attributes is for the copies from first[i] on. */
static bool are_ways(const struct copy_attributes *attributes, const size_t *first,
                     size_t attribute_count, size_t count, bool *at_once)
{
    bool good = attributes && first && attribute_count && attribute_count <= count && !first[0];
    for (size_t i = 0; i < attribute_count && good; i++) {
        good = is_way(attributes[i].order, attributes[i].flags) && first[i] < count &&
               (!i || first[i] > first[i - 1]);
        *at_once = *at_once || attributes[i].order == AT_ONCE;
    }
    return good;
}

/* Also after a failure, the sources of the copies that were made may change. */
static int end(int rc, bool at_once, void *stream)
{
    const int waited = at_once ? ibx_frontend_stream_wait(stream) : CUDA_SUCCESS;
    return rc ? rc : waited;
}

int ibx_frontend_copy_batch(const struct copy_batch *b, size_t *failed, void *stream)
{
    size_t none;
    bool at_once = false;
    failed = failed ? failed : &none;
    *failed = SIZE_MAX;
    if (!b->to || !b->from || !b->n || (uintptr_t)stream <= 1 ||
        !are_ways(b->attributes, b->first, b->attribute_count, b->count, &at_once))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_CAPTURE_UNSUPPORTED);
    int rc = CUDA_SUCCESS;
    for (size_t i = 0; i < b->count && !rc; i++) {
        rc = is_part_of(b->to[i], b->n[i]) && is_part_of(b->from[i], b->n[i])
                 ? cudaMemcpyAsync(b->to[i], b->from[i], b->n[i], CUDA_MEMCPY_DEFAULT, stream)
                 : ibx_frontend_fail(CUDA_INVALID_VALUE);
        if (rc)
            *failed = i;
    }
    return end(rc, at_once, stream);
}

/* Before CUDA 13 there is one more parameter before the stream: where the index of the copy that
 * fails is written. */
int cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *n, size_t count,
                         const struct copy_attributes *attributes, const size_t *first,
                         size_t attribute_count, void *a, void *b)
{
    const bool counts = ibx_frontend_before_13();
    const struct copy_batch batch = {to, from, n, count, attributes, first, attribute_count};
    return ibx_frontend_copy_batch(&batch, counts ? a : NULL, counts ? b : a);
}

/* One copy, which may be captured, and be in the legacy stream. */
int cudaMemcpyWithAttributesAsync(void *to, const void *from, size_t n,
                                  const struct copy_attributes *how, void *stream)
{
    if (!how || !is_way(how->order, how->flags) || !is_part_of(to, n) || !is_part_of(from, n))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool waits = how->order == AT_ONCE && !ibx_frontend_captures(stream);
    return end(cudaMemcpyAsync(to, from, n, CUDA_MEMCPY_DEFAULT, stream), waits, stream);
}

/* ----------------------------------------------------------------------------------- of planes */

enum { POINTER = 1, ARRAY }; /* cudaMemcpy3DOperandType */

/* What both sides count in: bytes without arrays, and blocks where arrays have these. Memory has no
 * more bytes than the program says: so beside memory, the size of an array's elements must not come
 * from the back end, and nor must the lengths of an array of blocks. */
static int unit_of(const struct planes_operand *from, const struct planes_operand *to,
                   struct ibx_array_unit *unit)
{
    const struct planes_operand *sides[] = {from, to};
    *unit = (struct ibx_array_unit){0, 1};
    for (unsigned i = 0; i < 2; i++) {
        struct ibx_array_unit is;
        bool known;
        if (sides[i]->type != ARRAY)
            continue;
        if (!ibx_frontend_array_unit(sides[i]->of.array.array, &is, &known) ||
            (!known && (is.texels > 1 || sides[1 - i]->type != ARRAY)) ||
            (unit->bytes && unit->texels != is.texels))
            return CUDA_NOT_SUPPORTED;
        if (unit->bytes && unit->bytes != is.bytes)
            return CUDA_INVALID_VALUE;
        *unit = is;
    }
    unit->bytes = unit->bytes ? unit->bytes : 1;
    return CUDA_SUCCESS;
}

/* Memory from the first byte of the copy on: lengths are in elements, and 0 is what is copied. */
static bool memory_of(const struct planes_operand *o, const struct ibx_cuda_extent *extent,
                      size_t element, struct ibx_cuda_pitched *memory)
{
    const size_t length = o->of.memory.row ? o->of.memory.row : extent->width;
    const size_t rows = o->of.memory.rows ? o->of.memory.rows : extent->height;
    size_t pitch;
    if (length < extent->width || rows < extent->height ||
        __builtin_mul_overflow(length, element, &pitch))
        return false;
    *memory = (struct ibx_cuda_pitched){o->of.memory.at, pitch, pitch, rows};
    return true;
}

static bool side_of(const struct planes_operand *o, const struct ibx_cuda_extent *extent,
                    size_t element, void **array, struct ibx_cuda_extent *at,
                    struct ibx_cuda_pitched *memory)
{
    if (o->type != ARRAY)
        return o->type == POINTER && memory_of(o, extent, element, memory);
    *array = o->of.array.array;
    *at = o->of.array.at;
    return *array;
}

/* *most: the end of n blocks from one on in an array that is so long, whose last block may have
 * fewer elements. */
static bool in_texels(size_t texels, size_t length, size_t *at, size_t n, size_t *most)
{
    if (__builtin_mul_overflow(*at, texels, at) || __builtin_mul_overflow(n, texels, &n))
        return false;
    const size_t left = *at < length ? length - *at : 0;
    n = n > left && n - left < texels ? left : n;
    *most = n < *most ? n : *most;
    return true;
}

/* cudaMemcpy3D counts an array of blocks, and what is copied from and to it, in elements. */
static bool count_texels(const void *array, size_t texels, struct ibx_cuda_extent *at,
                         const struct ibx_cuda_extent *blocks, struct ibx_cuda_extent *extent)
{
    struct ibx_frontend_array is;
    return !array || texels == 1 ||
           (ibx_frontend_array_known(array, &is) &&
            in_texels(texels, is.extent.width, &at->width, blocks->width, &extent->width) &&
            in_texels(texels, is.extent.height, &at->height, blocks->height, &extent->height));
}

static int as_copy(const struct planes_in_batch *p, struct ibx_cuda_memcpy3d *copy, size_t *element)
{
    struct ibx_array_unit unit;
    *copy = (struct ibx_cuda_memcpy3d){.extent = p->extent, .kind = CUDA_MEMCPY_DEFAULT};
    if (!is_way(p->order, p->flags) || (p->from.type == ARRAY && !p->from.of.array.array) ||
        (p->to.type == ARRAY && !p->to.of.array.array) || !p->extent.width || !p->extent.height ||
        !p->extent.depth)
        return CUDA_INVALID_VALUE;
    const int rc = unit_of(&p->from, &p->to, &unit);
    *element = unit.bytes;
    if (rc)
        return rc;
    if (unit.texels > 1)
        copy->extent.width = copy->extent.height = SIZE_MAX;
    return side_of(&p->from, &p->extent, *element, &copy->from_array, &copy->from_at,
                   &copy->from) &&
                   side_of(&p->to, &p->extent, *element, &copy->to_array, &copy->to_at,
                           &copy->to) &&
                   count_texels(copy->from_array, unit.texels, &copy->from_at, &p->extent,
                                &copy->extent) &&
                   count_texels(copy->to_array, unit.texels, &copy->to_at, &p->extent,
                                &copy->extent)
               ? CUDA_SUCCESS
               : CUDA_INVALID_VALUE;
}

/* Whether a side that is memory is there, and long enough. */
static bool is_there(const void *array, const struct ibx_cuda_pitched *memory,
                     struct ibx_cuda_extent extent, size_t element)
{
    extent.width *= element; /* memory_of() has seen that it fits */
    return array ||
           is_part_of(memory->at, ibx_frontend_planes_extent(memory->pitch, memory->y, &extent));
}

/* Rows between memory need no planes. */
static int copy_planes(const struct ibx_cuda_memcpy3d *c, void *stream)
{
    const struct ibx_cuda_extent *e = &c->extent;
    if (e->depth > 1 || c->from_array || c->to_array)
        return cudaMemcpy3DAsync(c, stream);
    if (e->height == 1)
        return cudaMemcpyAsync(c->to.at, c->from.at, e->width, c->kind, stream);
    return cudaMemcpy2DAsync(c->to.at, c->to.pitch, c->from.at, c->from.pitch, e->width, e->height,
                             c->kind, stream);
}

/* The copy that an entry describes. */
static int copy_entry(const struct planes_in_batch *p, void *stream)
{
    struct ibx_cuda_memcpy3d copy;
    size_t element;
    int rc = as_copy(p, &copy, &element);
    if (!rc && (!is_there(copy.from_array, &copy.from, p->extent, element) ||
                !is_there(copy.to_array, &copy.to, p->extent, element)))
        rc = CUDA_INVALID_VALUE;
    return rc ? ibx_frontend_fail(rc) : copy_planes(&copy, stream);
}

int ibx_frontend_copy_planes_batch(size_t count, const struct planes_in_batch *list, size_t *failed,
                                   unsigned long long flags, void *stream)
{
    struct ibx_cuda_memcpy3d copy;
    size_t none, element, wrong = 0;
    bool at_once = false;
    int rc = CUDA_SUCCESS;
    failed = failed ? failed : &none;
    *failed = SIZE_MAX;
    if (!count || !list || flags || (uintptr_t)stream <= 1)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (; wrong < count && !(rc = as_copy(&list[wrong], &copy, &element)); wrong++)
        at_once = at_once || list[wrong].order == AT_ONCE;
    if (wrong < count) {
        *failed = wrong;
        return ibx_frontend_fail(rc);
    }
    if (ibx_frontend_captures(stream))
        return ibx_frontend_fail(CUDA_CAPTURE_UNSUPPORTED);
    for (size_t i = 0; i < count && !rc; i++)
        if ((rc = copy_entry(&list[i], stream)))
            *failed = i;
    return end(rc, at_once, stream);
}

int cudaMemcpy3DWithAttributesAsync(const struct planes_in_batch *p, unsigned long long flags,
                                    void *stream)
{
    if (!p || flags)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool waits = p->order == AT_ONCE && !ibx_frontend_captures(stream);
    return end(copy_entry(p, stream), waits, stream);
}

/* Before CUDA 13 there is one more parameter before the flags: where the index of the copy that
 * fails is written. */
int cudaMemcpy3DBatchAsync(size_t count, const struct planes_in_batch *list, uintptr_t a,
                           uintptr_t b, void *c)
{
    return ibx_frontend_before_13()
               ? ibx_frontend_copy_planes_batch(count, list, (size_t *)a, b, c)
               : ibx_frontend_copy_planes_batch(count, list, NULL, a, (void *)b);
}
