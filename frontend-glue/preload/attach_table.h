/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * preload/: libibx-frontend.so, preloaded (LD_PRELOAD) into an application of GVirtuS. It takes the
 * calls of CUDA's runtime that move memory before GVirtuS's libcudart sees them, and has the plugin
 * run them between the application's own memory and the device. GVirtuS's own functions get all
 * other calls, and these too while the plugin has no connection: in a thread's first call, by which
 * GVirtuS connects, and always with another communicator.
 *
 *   gvirtus.c      the plugin, GVirtuS's functions, calls without these, cudaGetLastError
 *   own_requests.c        calls that GVirtuS lacks, in requests of our own
 *   errors.c       names and meanings of errors
 *   dlsym.c        programs that look for calls in libcudart by dlsym(3)
 *   loaded_libraries.c  the libraries of this process
 *   local_libraries.c   cuRAND and others that would use a GPU of this host
 *   visible_devices.c   CUDA_VISIBLE_DEVICES of the program
 *   ranges.c       lists of memory
 *
 * These are what all folders use. Each folder calls those behind it in this order, and none before:
 *
 *   runtime/         the runtime as a whole: its beginning and end in a process, its calls that
 *                    consist of others, or are missing; programs that have it in themselves
 *   math_libraries/  cuBLAS, cuFFT, cuDNN and others
 *   copies/          cudaMemcpy, and arrays, textures and variables, to which bytes are copied
 *   graphs/          graphs, and streams that are captured into them
 *   kernels/         launches; modules with their kernels and variables
 *   memory/          memory of the device, page-locked, managed, pooled, of other processes
 *   streams/         devices, streams, events, and functions of the host that streams call
 *
 * This header is all that plugin and preload know of each other. GVirtuS loads the plugin with
 * RTLD_LOCAL. Either may be there without the other, and they may come from different builds.
 *
 * With its first connection the plugin looks for ibx_frontend_attach() in the global scope and
 * passes its table. The table stays valid, since the plugin is never unloaded.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_ATTACH_TABLE_H
#define IBX_FRONTEND_GLUE_PRELOAD_ATTACH_TABLE_H

#include "common/handlers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Increases with any change below. */
#define IBX_FRONTEND_VERSION 21u

/* cudaMemcpy, cudaMemcpyAsync or cudaMemcpy2D between memory of the device and of the caller. */
struct ibx_frontend_copy {
    bool to_device;
    bool async; /* cudaMemcpyAsync, in `stream` */
    uint64_t device;
    void *host; /* only read when `to_device` */
    size_t n;   /* bytes, not 0: of one row if there are rows */
    uint64_t stream;
    bool lasting; /* `host` is in memory that allocate() has given */
    bool pinned;  /* `host` is in that or in other memory that is page-locked to the application */
    bool settle;  /* asynchronous, but the call returns when it has ended */
    bool alone;   /* asynchronous, but it comes after no request of this process's, and no request
                     of others waits for it: they may wait for what waits for this copy */
    bool whole;   /* in one frame, as without the preload, even where parts would be faster */
    /* cudaMemcpy2D: rows is not 0, the pitches are n at least, and their products with rows are
     * PTRDIFF_MAX at most. The bytes between two rows of the host do not change. */
    size_t rows, host_pitch, device_pitch;
};

/* From the first of the host's bytes to the last one, with those between rows. */
static inline size_t ibx_frontend_copy_extent(const struct ibx_frontend_copy *copy)
{
    return (copy->rows ? copy->rows - 1 : 0) * copy->host_pitch + copy->n;
}

/* A call in GVirtuS's own frame. */
struct ibx_frontend_request {
    const char *name; /* on the wire */
    const void *body;
    size_t n;  /* bytes of it */
    void *out; /* what a success returns beside its exit code: just `out_n` bytes, or none */
    size_t out_n;
    bool unseen; /* a launch by <<<>>>, as after unseen(true) */
};

/* A call of cudaLaunchKernel. */
struct ibx_frontend_launch {
    void *launch; /* GVirtuS's function */
    const void *function;
    uint32_t grid[3], block[3];
    void **arguments;
    size_t shared;
    void *stream;
};

/* What a thread may know without a request; CUDA's last error is none. */
enum ibx_frontend_fact {
    IBX_FRONTEND_NO_ERROR,     /* cudaGetLastError and cudaPeekAtLastError return cudaSuccess */
    IBX_FRONTEND_DEVICE,       /* *answer is the device that it has selected */
    IBX_FRONTEND_SELECTED,     /* cudaSetDevice(handle) has succeeded, and would again */
    IBX_FRONTEND_STREAM_RESTS, /* the stream `handle` has no work */
    IBX_FRONTEND_EVENT_OVER,   /* the event `handle` */
    IBX_FRONTEND_LEAVES, /* an asynchronous copy of `handle` bytes from the device into lasting
                            memory is under way when copy() returns, as a rule */
    IBX_FRONTEND_ERRORS, /* *answer is another number when a call of the thread's has failed
                            since, or may have */
    IBX_FRONTEND_LOSSES, /* *answer is another number when a process of the server's has ended
                            since, and with it all that was there */
};

/* What the preload does before calls that may have the device work, and behind them. GVirtuS's own
 * requests are told by their names alone; nothing of GVirtuS may be called meanwhile, but copy()
 * may. An error is what the call is to return; GVirtuS's are made all the same. Where *begun is
 * set, an error or not, over() comes when the call is under way, in the same thread.
 *
 * withheld(), before all that: whether the kernel may not be given the host's bytes of a copy,
 * since another thread may take access to them away. Then GVirtuS's front end, which touches them
 * itself, has to make the copy.
 *
 * handlers: those of the program's signals wait while a thread is inside of the plugin
 * (common/handlers.h). */
struct ibx_frontend_watch {
    int (*request)(const char *name, const void *body, size_t n, bool *begun);
    int (*copy)(const struct ibx_frontend_copy *copy, bool *begun);
    void (*over)(void);
    bool (*withheld)(const struct ibx_frontend_copy *copy);
    const struct ibx_handlers_calls *handlers;
};

struct ibx_frontend_calls {
    unsigned version;
    /* Runs the copy over the connection that GVirtuS made in the calling thread. 0: *exit_code is
     * what the CUDA call has to return; an asynchronous copy in lasting or pinned memory may still
     * be under way. -ENOTCONN: this thread has no working connection; nothing was done, and
     * GVirtuS has to be called. */
    int (*copy)(const struct ibx_frontend_copy *copy, int *exit_code);

    /* Makes a call over that connection, without GVirtuS. 0: *exit_code is what it has to return.
     * -ENOTCONN: nothing was done, and GVirtuS has to be called: there is no connection, copies are
     * under way in the background, or GVirtuS's front end has not made such a call in this thread
     * yet, which tells the form of its frames. */
    int (*call)(const struct ibx_frontend_request *request, int *exit_code);
    /* Before GVirtuS makes a launch: whether it is one by <<<>>>. Nobody sees what that returns, so
     * it need not wait to learn whether it succeeds. */
    void (*unseen)(bool unseen);
    /* From divert() to diverted() a cudaLaunchKernel of this thread's that GVirtuS writes is kept
     * and not sent, and GVirtuS gets a success. False: no working connection. diverted() returns
     * its body of n bytes, until the thread's next call; NULL: there was none, or it is too long.
     */
    bool (*divert)(void);
    const void *(*diverted)(size_t *n);
    /* Makes that call of GVirtuS's. False: it has thrown an exception instead, as G5 does where it
     * has not found a kernel's arguments: it knows them of cubins, and not of PTX. */
    bool (*launch)(const struct ibx_frontend_launch *launch, int *rc);
    /* Whether that is known to be so. */
    bool (*knows)(enum ibx_frontend_fact fact, uint64_t handle, int *answer);

    /* Page-locked memory of n bytes (not 0) for all threads and connections of the process, page
     * aligned; NULL: none is left. */
    void *(*allocate)(size_t n);
    void (*release)(void *address, size_t n);
    /* Memory of the application's own that it is about to copy often: registers it for the calling
     * thread's connection where that pays. Nothing has to be undone. */
    void (*prepare)(void *address, size_t n);

    /* Has kernels reach n bytes of memory that allocate() has given, at `address`, or no more, as
     * before release(). 0: *exit_code is CUDA's. -EOPNOTSUPP: they cannot; -ENOTCONN. */
    int (*reach)(void *address, size_t n, bool on, int *exit_code);
    /* Likewise pages of the back end's own, which are there at `address` until they are given back:
     * copies between host and device take it as an address of the device's. n is of whole pages. */
    int (*stand_in)(void *address, size_t n, bool on, int *exit_code);
    /* Another number than before: what they have reached they may reach no more, until it is
     * asked for again. */
    unsigned (*reach_epoch)(void);

    /* About copies of any thread that copy() has left to background threads. Streams 0 to 2 stand
     * for all streams. */
    bool (*pending)(uint64_t stream);              /* whether there is one in the stream */
    int (*failure)(uint64_t stream);               /* the first error not returned yet, or 0 */
    void (*finish)(const void *address, size_t n); /* waits for those in this memory */
    void (*drain)(const void *address, size_t n);  /* and for copy() of any thread's, too */

    /* From here on all threads' calls are told, for good. */
    void (*watch)(const struct ibx_frontend_watch *watch);

    /* The process is about to end beside threads that may be in calls: what the calling thread has
     * launched is run, and connections that no thread is using are closed. Who uses one of these
     * from here on waits for the end. */
    void (*leave)(void);
};

#define IBX_FRONTEND_ATTACH "ibx_frontend_attach"
#define IBX_FRONTEND_BEGINS "ibx_frontend_begins"
/* Exported by libibx-frontend.so. From any thread, any number of times. The latter in front of the
 * first request over a connection: what GVirtuS does to make one is over. */
#ifdef __cplusplus
extern "C" void ibx_frontend_attach(const struct ibx_frontend_calls *calls);
extern "C" void ibx_frontend_begins(void);
#else
void ibx_frontend_attach(const struct ibx_frontend_calls *calls);
void ibx_frontend_begins(void);
#endif

#endif
