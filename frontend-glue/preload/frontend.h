/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the plugin and libibx-frontend.so know of each other. The one is loaded by
 * GVirtuS (RTLD_LOCAL), the other is preloaded into the application, where it
 * stands before GVirtuS's libcudart; either may be there without the other, and
 * they may be of different builds.
 *
 * With its first connection the plugin looks for ibx_frontend_attach() in the
 * global scope and hands over its calls. They stay valid for the life of the
 * process, since the plugin is never unloaded.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_FRONTEND_H
#define IBX_FRONTEND_GLUE_PRELOAD_FRONTEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Goes up with any change below. */
#define IBX_FRONTEND_VERSION 6u

/* cudaMemcpy, cudaMemcpyAsync or cudaMemcpy2D between memory of the device and of the caller. */
struct ibx_frontend_copy {
    bool to_device;
    bool async; /* cudaMemcpyAsync, in `stream` */
    uint64_t device;
    void *host; /* only read when `to_device` */
    size_t n;   /* bytes, not 0: of one row if there are rows */
    uint64_t stream;
    bool lasting; /* `host` is in allocate()'s memory ... */
    bool pinned;  /* ... or in other memory that is page-locked to the application */
    bool whole;   /* in one frame, as without the preload, even where parts would be faster */
    /* cudaMemcpy2D: not 0, and pitches of n at least, whose products with it are no more than
     * PTRDIFF_MAX. Nothing between two rows of the host's is changed. */
    size_t rows, host_pitch, device_pitch;
};

struct ibx_frontend_calls {
    unsigned version;
    /* Runs the copy over the connection that GVirtuS made in the calling thread, and returns when
     * it is done or, an asynchronous one in lasting or pinned memory, perhaps before: 0,
     * and *exit_code is what the CUDA call has to return. -ENOTCONN: this thread has no connection,
     * or none that works: then nothing was done, and GVirtuS has to be called. */
    int (*copy)(const struct ibx_frontend_copy *copy, int *exit_code);

    /* Page-locked memory of n bytes (not 0) for all of the process's threads and connections; NULL:
     * there is none. It is page aligned and bound to no connection. */
    void *(*allocate)(size_t n);
    void (*release)(void *address, size_t n);
    /* Memory that the application is about to copy often, of its own making: registers it for the
     * calling thread's connection, where that pays. Nothing has to be undone. */
    void (*prepare)(void *address, size_t n);

    /* Of copies that copy() has left to be run in the background, of any thread: whether there is
     * one in the stream (of 0 to 2: in any); the first error of one that this has not returned yet,
     * or 0; returns when there is none in that memory. */
    bool (*pending)(uint64_t stream);
    int (*failure)(uint64_t stream);
    void (*finish)(const void *address, size_t n);
};

#define IBX_FRONTEND_ATTACH "ibx_frontend_attach"
/* Exported by libibx-frontend.so. From any thread, any number of times. */
void ibx_frontend_attach(const struct ibx_frontend_calls *calls);

#endif
