/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_DEVICE_OBJECTS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_DEVICE_OBJECTS_H

#include <stdint.h>

enum thing_kind { THING_ARRAY, THING_MIPMAP, THING_TEXTURE, THING_SURFACE };

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

#endif
