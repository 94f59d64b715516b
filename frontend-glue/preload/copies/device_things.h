/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_COPIES_DEVICE_THINGS_H
#define IBX_FRONTEND_GLUE_PRELOAD_COPIES_DEVICE_THINGS_H

#include <stdint.h>

enum thing_kind { THING_ARRAY, THING_MIPMAP, THING_TEXTURE, THING_SURFACE };

/* The beginning of what is known of one, which was allocated. */
struct thing {
    struct thing *next;
    enum thing_kind kind;
    int device;
    uint64_t handle;
};

/* It is there from now on, in place of one with that handle whose end was not seen. */
void ibx_frontend_thing_made(struct thing *made);
/* It is there no more: to be freed. NULL: it was not. */
struct thing *ibx_frontend_thing_take(enum thing_kind kind, uint64_t handle);
/* NULL: there is none. In both cases all are as they are until the caller lets go. */
struct thing *ibx_frontend_thing_hold(enum thing_kind kind, uint64_t handle);
void ibx_frontend_things_let_go(void);
/* The device was reset, and what is its own went with its context. */
void ibx_frontend_things_reset(int device);

#endif
