/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies, and what bytes are copied to and from beside memory.
 *
 *   memcpy.c         cudaMemcpy*
 *   symbols.c        copies to and from variables, and the profiler's calls
 *   arrays.c, mipmaps.c, textures.c  arrays, textures and surfaces, in requests of our own
 *   device_things.c  what of these a reset of the device takes
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_COPIES_COPIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_COPIES_COPIES_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------- memcpy.c */

/* Before memory of this process is read or written here, in the order of the legacy stream: copies
 * that are under way there and functions of the application's have ended. */
int ibx_frontend_before_host(const void *memory, size_t n);

/* ------------------------------------------------------------------------------------- arrays.c */

struct ibx_frontend_array {
    const void *array;
    struct ibx_cuda_channel channel;
    struct ibx_cuda_extent extent;
    unsigned flags;
    int device;
};
/* One that there is from now on, until it goes, or the device is reset. */
void ibx_frontend_array_made(const struct ibx_frontend_array *array);
void ibx_frontend_array_gone(const void *array);
/* Bytes of an element; 0: nobody says. *known: this process has made the array, and need not
 * believe the back end, which may say another size each time that it is asked. */
size_t ibx_frontend_array_element(const void *array, bool *known);

#endif
