/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies of rows and planes. The driver counts columns in bytes; the runtime counts them in an
 * array's elements, if an array is part of the copy.
 */
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"

/* Whether the rows of a plane go beyond the height that the program gives. 0: it gives none. */
static bool is_too_high(const struct ibx_driver_side *side, size_t rows)
{
    return side->height && (rows > side->height || side->y > side->height - rows);
}

/* The memory of one side, from the first byte of the copy on. That byte may be another
 * allocation's, so what the copy needs is compared here with the memory that the program names. */
static int memory_of(const struct ibx_driver_side *side, const struct ibx_driver_planes *all,
                     struct ibx_cuda_pitched *memory)
{
    const struct ibx_cuda_extent extent = {all->width, all->rows, all->planes};
    size_t skipped, plane, n;
    const uintptr_t begin = side->type == IN_HOST ? (uintptr_t)side->host : (uintptr_t)side->device;
    const size_t pitch = side->pitch ? side->pitch : all->width + side->x;
    const size_t height = side->height ? side->height : all->rows + side->y;
    if (!begin || pitch < all->width + side->x || is_too_high(side, all->rows) ||
        __builtin_mul_overflow(pitch, height, &plane) ||
        __builtin_mul_overflow(plane, side->z, &skipped) ||
        __builtin_add_overflow(skipped, side->y * pitch + side->x, &skipped) ||
        __builtin_add_overflow(skipped, ibx_frontend_planes_extent(pitch, height, &extent), &n) ||
        (side->type == IN_HOST ? ibx_frontend_host_is_short
                               : ibx_frontend_is_short)((const void *)begin, n))
        return CUDA_INVALID_VALUE;
    *memory = (struct ibx_cuda_pitched){(void *)(begin + skipped), pitch, pitch, height};
    return CUDA_SUCCESS;
}

static int array_of(const struct ibx_driver_side *side, size_t element, void **array,
                    struct ibx_cuda_extent *place)
{
    if (!side->array || side->x % element)
        return CUDA_INVALID_VALUE;
    *array = side->array;
    *place = (struct ibx_cuda_extent){side->x / element, side->y, side->z};
    return CUDA_SUCCESS;
}

static bool is_side(const struct ibx_driver_side *side)
{
    return side->type >= IN_HOST && side->type <= UNIFIED;
}

static int kind_of(const struct ibx_driver_planes *p)
{
    const bool from_host = p->from.type == IN_HOST, to_host = p->to.type == IN_HOST;
    if (p->from.type == UNIFIED || p->to.type == UNIFIED)
        return CUDA_MEMCPY_DEFAULT;
    return from_host ? (to_host ? CUDA_MEMCPY_ON_HOST : CUDA_MEMCPY_TO_DEVICE)
                     : (to_host ? CUDA_MEMCPY_FROM_DEVICE : CUDA_MEMCPY_ON_DEVICE);
}

/* For an array that only the back end knows. The runtime counts a row in elements, and the back end
 * may state another size of an element when it is asked again. But no row is longer than its pitch:
 * so memory that may be the host's must have no gaps behind rows. */
static int without_gaps(struct ibx_cuda_pitched *memory, const struct ibx_driver_side *side,
                        const struct ibx_driver_planes *p)
{
    if ((side->type != IN_HOST && side->type != UNIFIED) || memory->pitch == p->width)
        return CUDA_SUCCESS;
    if (p->rows > 1 || p->planes > 1)
        return CUDA_NOT_SUPPORTED;
    memory->pitch = memory->x = p->width;
    return CUDA_SUCCESS;
}

static int as_runtime(struct ibx_cuda_memcpy3d *copy, const struct ibx_driver_planes *p)
{
    const bool arrays = p->from.type == IN_ARRAY || p->to.type == IN_ARRAY;
    int rc = is_side(&p->from) && is_side(&p->to) ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    size_t element = 1;
    bool known = true;
    if (!rc && arrays)
        element =
            ibx_driver_element(p->from.type == IN_ARRAY ? p->from.array : p->to.array, &known, &rc);
    if (rc || p->width % element)
        return rc ? rc : CUDA_INVALID_VALUE;
    *copy = (struct ibx_cuda_memcpy3d){.extent = {p->width / element, p->rows, p->planes},
                                       .kind = kind_of(p)};
    rc = p->from.type == IN_ARRAY ? array_of(&p->from, element, &copy->from_array, &copy->from_at)
                                  : memory_of(&p->from, p, &copy->from);
    if (rc)
        return rc;
    rc = p->to.type == IN_ARRAY ? array_of(&p->to, element, &copy->to_array, &copy->to_at)
                                : memory_of(&p->to, p, &copy->to);
    if (!rc && !known)
        rc = without_gaps(&copy->from, &p->from, p);
    return !rc && !known ? without_gaps(&copy->to, &p->to, p) : rc;
}

static bool is_memory(const struct ibx_driver_planes *p)
{
    return p->from.type != IN_ARRAY && p->to.type != IN_ARRAY;
}

/* Rows between memory are copied by cudaMemcpy2D, which needs no conversion. */
static int move(const struct ibx_driver_planes *p, void *stream, bool waits)
{
    struct ibx_cuda_memcpy3d c;
    if (!p->width || !p->rows || !p->planes)
        return CUDA_SUCCESS;
    const int rc = as_runtime(&c, p);
    if (rc)
        return rc;
    if (p->planes > 1 || !is_memory(p))
        return waits ? cudaMemcpy3D(&c) : cudaMemcpy3DAsync(&c, stream);
    if (p->rows == 1)
        return waits ? cudaMemcpy(c.to.at, c.from.at, p->width, c.kind)
                     : cudaMemcpyAsync(c.to.at, c.from.at, p->width, c.kind, stream);
    return waits ? cudaMemcpy2D(c.to.at, c.to.pitch, c.from.at, c.from.pitch, p->width, p->rows,
                                c.kind)
                 : cudaMemcpy2DAsync(c.to.at, c.to.pitch, c.from.at, c.from.pitch, p->width,
                                     p->rows, c.kind, stream);
}

/* ------------------------------------------------------------------------------- rows */

static int move_rows(const struct ibx_driver_memcpy2d *r, void *stream, bool waits)
{
    if (!r)
        return CUDA_INVALID_VALUE;
    const struct ibx_driver_planes p = {.from = {r->from_x, r->from_y, 0, r->from_type,
                                                 r->from_host, r->from_device, r->from_array,
                                                 r->from_pitch, 0},
                                        .to = {r->to_x, r->to_y, 0, r->to_type, r->to_host,
                                               r->to_device, r->to_array, r->to_pitch, 0},
                                        .width = r->width,
                                        .rows = r->rows,
                                        .planes = 1};
    return move(&p, stream, waits);
}

EXPORTED int cuMemcpy2D_v2(const struct ibx_driver_memcpy2d *rows)
{
    return IN_CONTEXT(move_rows(rows, NULL, true));
}

EXPORTED int cuMemcpy2D_v2_ptds(const struct ibx_driver_memcpy2d *rows)
{
    return IN_CONTEXT(ibx_driver_in_own(move_rows(rows, CUDA_STREAM_PER_THREAD, false)));
}

EXPORTED int cuMemcpy2DAsync_v2(const struct ibx_driver_memcpy2d *rows, void *stream)
{
    return IN_CONTEXT_OF(stream, move_rows(rows, stream, false));
}

EXPORTED int cuMemcpy2DAsync_v2_ptsz(const struct ibx_driver_memcpy2d *rows, void *stream)
{
    return cuMemcpy2DAsync_v2(rows, ibx_frontend_own(stream));
}

SAME_AS(cuMemcpy2D, cuMemcpy2D_v2)
SAME_AS(cuMemcpy2DAsync, cuMemcpy2DAsync_v2)
SAME_AS(cuMemcpy2DUnaligned, cuMemcpy2D_v2)
SAME_AS(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2)
SAME_AS(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2D_v2_ptds)

/* ------------------------------------------------------------------------------- planes */

static int planes_of(struct ibx_driver_planes *p, const struct ibx_driver_memcpy3d *m)
{
    if (!m || m->from_level || m->to_level)
        return m ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE;
    *p = (struct ibx_driver_planes){.from = {m->from_x, m->from_y, m->from_z, m->from_type,
                                             m->from_host, m->from_device, m->from_array,
                                             m->from_pitch, m->from_height},
                                    .to = {m->to_x, m->to_y, m->to_z, m->to_type, m->to_host,
                                           m->to_device, m->to_array, m->to_pitch, m->to_height},
                                    .width = m->width,
                                    .rows = m->rows,
                                    .planes = m->planes};
    return CUDA_SUCCESS;
}

int ibx_driver_memcpy3d(struct ibx_cuda_memcpy3d *copy, const struct ibx_driver_memcpy3d *planes)
{
    struct ibx_driver_planes p;
    const int rc = planes_of(&p, planes);
    return rc ? rc : as_runtime(copy, &p);
}

/* The kind says what is the host's. With an array, memory's columns are counted in elements, too.
 */
int ibx_driver_planes_of(struct ibx_driver_memcpy3d *planes, const struct ibx_cuda_memcpy3d *c)
{
    int rc = CUDA_SUCCESS;
    bool known;
    const void *array = c->from_array ? c->from_array : c->to_array;
    const size_t element = array ? ibx_driver_element(array, &known, &rc) : 1;
    const bool from_host = c->kind == CUDA_MEMCPY_TO_DEVICE || c->kind == CUDA_MEMCPY_ON_HOST;
    const bool to_host = c->kind == CUDA_MEMCPY_FROM_DEVICE || c->kind == CUDA_MEMCPY_ON_HOST;
    *planes = (struct ibx_driver_memcpy3d){.from_x = c->from_at.width * element,
                                           .from_y = c->from_at.height,
                                           .from_z = c->from_at.depth,
                                           .from_type = c->from_array ? IN_ARRAY
                                                        : from_host   ? IN_HOST
                                                                      : IN_DEVICE,
                                           .from_host = from_host ? c->from.at : NULL,
                                           .from_device = from_host ? 0 : (uintptr_t)c->from.at,
                                           .from_array = c->from_array,
                                           .from_pitch = c->from.pitch,
                                           .from_height = c->from.y,
                                           .to_x = c->to_at.width * element,
                                           .to_y = c->to_at.height,
                                           .to_z = c->to_at.depth,
                                           .to_type = c->to_array ? IN_ARRAY
                                                      : to_host   ? IN_HOST
                                                                  : IN_DEVICE,
                                           .to_host = to_host ? c->to.at : NULL,
                                           .to_device = to_host ? 0 : (uintptr_t)c->to.at,
                                           .to_array = c->to_array,
                                           .to_pitch = c->to.pitch,
                                           .to_height = c->to.y,
                                           .width = c->extent.width * element,
                                           .rows = c->extent.height,
                                           .planes = c->extent.depth};
    return rc;
}

static int move_planes(const struct ibx_driver_memcpy3d *planes, void *stream, bool waits)
{
    struct ibx_driver_planes p;
    const int rc = planes_of(&p, planes);
    return rc ? rc : move(&p, stream, waits);
}

EXPORTED int cuMemcpy3D_v2(const struct ibx_driver_memcpy3d *planes)
{
    return IN_CONTEXT(move_planes(planes, NULL, true));
}

EXPORTED int cuMemcpy3D_v2_ptds(const struct ibx_driver_memcpy3d *planes)
{
    return IN_CONTEXT(ibx_driver_in_own(move_planes(planes, CUDA_STREAM_PER_THREAD, false)));
}

EXPORTED int cuMemcpy3DAsync_v2(const struct ibx_driver_memcpy3d *planes, void *stream)
{
    return IN_CONTEXT_OF(stream, move_planes(planes, stream, false));
}

EXPORTED int cuMemcpy3DAsync_v2_ptsz(const struct ibx_driver_memcpy3d *planes, void *stream)
{
    return cuMemcpy3DAsync_v2(planes, ibx_frontend_own(stream));
}

/* Within the devices' memory, which may be pools' that not each device reaches. */
static int move_on_devices(const struct ibx_cuda_memcpy3d *c, int to_device, int from_device,
                           void *stream, bool waits)
{
    const struct peer_planes p = {.from_array = c->from_array,
                                  .from_at = c->from_at,
                                  .from = c->from,
                                  .from_device = from_device,
                                  .to_array = c->to_array,
                                  .to_at = c->to_at,
                                  .to = c->to,
                                  .to_device = to_device,
                                  .extent = c->extent};
    return waits ? cudaMemcpy3DPeer(&p) : cudaMemcpy3DPeerAsync(&p, stream);
}

/* Copies between contexts of any devices: an address belongs to one device. CUDA_MEMCPY3D_PEER has
 * the contexts, which may be NULL, in the reserved members of CUDA_MEMCPY3D. */
static int move_peers(const struct ibx_driver_memcpy3d *p, void *stream, bool waits)
{
    const bool some = p && p->width && p->rows && p->planes;
    const int to_device = some ? ibx_driver_device_of(p->reserved_to) : 0;
    const int from_device = some ? ibx_driver_device_of(p->reserved_from) : 0;
    if (to_device < 0 || from_device < 0)
        return CUDA_INVALID_CONTEXT;
    if (some && !waits && ibx_frontend_captures(stream)) {
        const uint64_t to = p->to_array ? p->from_device : p->to_device;
        const uint64_t from = p->from_array ? p->to_device : p->from_device;
        return ibx_frontend_peers_captured((void *)(uintptr_t)to, to_device,
                                           (void *)(uintptr_t)from, from_device, p->width, stream);
    }
    struct ibx_cuda_memcpy3d c;
    if (some && !ibx_driver_memcpy3d(&c, p) && c.kind == CUDA_MEMCPY_ON_DEVICE)
        return move_on_devices(&c, to_device, from_device, stream, waits);
    return move_planes(p, stream, waits);
}

EXPORTED int cuMemcpy3DPeer(const struct ibx_driver_memcpy3d *planes)
{
    return IN_CONTEXT(move_peers(planes, NULL, true));
}

EXPORTED int cuMemcpy3DPeer_ptds(const struct ibx_driver_memcpy3d *planes)
{
    return IN_CONTEXT(ibx_driver_in_own(move_peers(planes, CUDA_STREAM_PER_THREAD, false)));
}

EXPORTED int cuMemcpy3DPeerAsync(const struct ibx_driver_memcpy3d *planes, void *stream)
{
    return IN_CONTEXT_OF(stream, move_peers(planes, stream, false));
}

EXPORTED int cuMemcpy3DPeerAsync_ptsz(const struct ibx_driver_memcpy3d *planes, void *stream)
{
    return cuMemcpy3DPeerAsync(planes, ibx_frontend_own(stream));
}

SAME_AS(cuMemcpy3D, cuMemcpy3D_v2)
SAME_AS(cuMemcpy3DAsync, cuMemcpy3DAsync_v2)
