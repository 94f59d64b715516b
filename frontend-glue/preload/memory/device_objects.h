/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_DEVICE_OBJECTS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_DEVICE_OBJECTS_H

#include "frontend-glue/preload/preload.h"

#include <stdint.h>

enum thing_kind { THING_ARRAY, THING_MIPMAP, THING_TEXTURE, THING_SURFACE, THING_POOL };

/* The first member of an entry, which is allocated by malloc() and belongs to the list. */
struct thing {
    struct thing *next;
    enum thing_kind kind;
    int device;
    uint64_t handle;
};

/* Adds an entry. It replaces one of the same handle, whose end was not seen, and which is freed. */
void ibx_frontend_thing_made(struct thing *made);
/* Removes an entry, which the caller frees; NULL: there is none. */
struct thing *ibx_frontend_thing_take(enum thing_kind kind, uint64_t handle);
/* Finds an entry and, also if there is none (NULL), locks the list until
 * ibx_frontend_things_let_go(). */
struct thing *ibx_frontend_thing_hold(enum thing_kind kind, uint64_t handle);
void ibx_frontend_things_let_go(void);
/* Frees the entries of a device that was reset: CUDA has destroyed these objects. */
void ibx_frontend_things_reset(int device);

/* Arrays. */
struct ibx_frontend_array {
    const void *array;
    struct ibx_cuda_channel channel;
    struct ibx_cuda_extent extent;
    unsigned flags;
    int device;
};
/* Notes an array that was allocated, until _gone() or a reset of its device. */
void ibx_frontend_array_made(const struct ibx_frontend_array *array);
void ibx_frontend_array_gone(const void *array);
/* An array that this process has made; false: it is none. How much of the program's memory is
 * copied depends on the size of its elements, so that must not come from the back end. */
bool ibx_frontend_array_known(const void *array, struct ibx_frontend_array *is);
/* The copy, which counts in such units if it has an array, with its memory's columns and its width
 * in bytes, and its height in rows of memory. The width is 0 if it would be too many bytes. */
struct ibx_cuda_memcpy3d ibx_frontend_planes_in_bytes(const struct ibx_cuda_memcpy3d *copy,
                                                      const struct ibx_array_unit *unit);

#endif
