/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * preload/: libibx-frontend.so, which LD_PRELOAD loads into an application of GVirtuS. It takes the
 * calls of CUDA's runtime before GVirtuS's libcudart sees them, and has the plugin make them:
 * copies go directly between the application's memory and the connection. A call goes to GVirtuS's
 * own function if this library has none, in a thread's first call (by which GVirtuS connects), and
 * whenever another communicator is configured.
 *
 *   gvirtus.c            the plugin's table, GVirtuS's functions, calls without these,
 *                        cudaGetLastError
 *   extensions.c         calls that GVirtuS lacks, as extension requests
 *   unloading.c          exit(3) in a signal handler that has interrupted a call
 *   errors.c             names and descriptions of errors
 *   dlsym.c              programs that find CUDA's functions by dlsym(3)
 *   loaded_libraries.c   the libraries that are loaded in this process
 *   local_libraries.c    cuRAND and others that would use a GPU of this host
 *   visible_devices.c    CUDA_VISIBLE_DEVICES of the program
 *   ranges.c             sorted lists of memory ranges
 *
 * All folders use these files. A folder calls only the folders below it in this list:
 *
 *   runtime/         the runtime as a whole: start and end of a process, calls that are composed of
 *                    others or are missing
 *   static_runtime/  programs and libraries into which the runtime is linked statically
 *   math_libraries/  cuBLAS, cuFFT, cuDNN and others
 *   copies/          cudaMemcpy; arrays, textures and variables as sources and destinations
 *   graphs/          graphs, and the capture of streams into them
 *   kernels/         launches; modules with their kernels and variables
 *   memory/          device, page-locked, managed and pooled memory, and that of other processes
 *   streams/         devices, streams, events, and host functions in streams
 *
 * This header is all that plugin and preload know of each other. GVirtuS loads the plugin with
 * RTLD_LOCAL. Each works without the other, and they may come from different builds.
 *
 * With its first connection the plugin looks for ibx_frontend_attach() in the global scope and
 * passes its table. The table stays valid because the plugin is never unloaded.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_ATTACH_TABLE_H
#define IBX_FRONTEND_GLUE_PRELOAD_ATTACH_TABLE_H

#include "common/handlers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Increases with any change below. */
#define IBX_FRONTEND_VERSION 30u

/* cudaMemcpy, cudaMemcpyAsync or cudaMemcpy2D between memory of the device and of the caller. */
struct ibx_frontend_copy {
    bool to_device;
    bool async; /* cudaMemcpyAsync, in `stream` */
    uint64_t device;
    void *host;             /* the host memory; not written if `to_device` */
    const void *registered; /* NULL, or the registered memory whose pages `host` has; is not for
                               copy(), but for withheld() */
    size_t n;               /* bytes, not 0; with rows: of one row */
    uint64_t stream;
    bool lasting; /* `host` is in memory from allocate() */
    bool pinned;  /* `host` is in such memory or in other page-locked memory */
    bool checked; /* asynchronous, and copy() returns what CUDA says: the device's side may be none
                   */
    bool settle;  /* asynchronous, but copy() returns only when the copy is complete */
    bool alone;   /* asynchronous, and ordered with no other request of this process: those may wait
                     for work that waits for this copy */
    bool whole;   /* in one frame, as without the preload, even if parts would be faster */
    /* cudaMemcpy2D: rows is not 0, both pitches are at least n, and their products with rows are at
     * most PTRDIFF_MAX. The bytes between two rows of the host memory are not changed. */
    size_t rows, host_pitch, device_pitch;
};

/* Bytes from the first one of the host memory to the last one, with the gaps between rows. */
static inline size_t ibx_frontend_copy_extent(const struct ibx_frontend_copy *copy)
{
    return (copy->rows ? copy->rows - 1 : 0) * copy->host_pitch + copy->n;
}

/* A call in a frame as GVirtuS's front end writes it. */
struct ibx_frontend_request {
    const char *name; /* the routine name on the wire */
    const void *body;
    size_t n;  /* bytes of the body */
    void *out; /* for the result of a successful call: exactly `out_n` bytes; NULL if 0 */
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

/* What the plugin may know without a request; none of these changes CUDA's last error. */
enum ibx_frontend_fact {
    IBX_FRONTEND_NO_ERROR,     /* cudaGetLastError and cudaPeekAtLastError return cudaSuccess */
    IBX_FRONTEND_DEVICE,       /* *answer is the device that it has selected */
    IBX_FRONTEND_SELECTED,     /* cudaSetDevice(handle) has succeeded, and would again */
    IBX_FRONTEND_STREAM_RESTS, /* the stream `handle` has no work */
    IBX_FRONTEND_LEGACY_RESTS, /* the legacy stream has none that blocking streams wait for */
    IBX_FRONTEND_EVENT_OVER,   /* the event `handle` has completed */
    IBX_FRONTEND_LEAVES, /* as a rule, an asynchronous copy of `handle` bytes from the device into
                            memory of allocate() is still under way when copy() returns */
    IBX_FRONTEND_NONE_KNOWN, /* no call of this thread is known to have left an error */
    IBX_FRONTEND_NONE_LATE,  /* no call that was answered before it was run has left one, or may */
    IBX_FRONTEND_ERRORS, /* *answer changes when a call of this thread has failed, or may have */
    IBX_FRONTEND_LOSSES, /* *answer changes when a process of the server has ended, and with it all
                            that it had allocated */
    IBX_FRONTEND_ANSWERED, /* *answer is how many calls of this thread were answered early */
    IBX_FRONTEND_FAILURES, /* *answer differs from what it was when `handle` calls were answered
                              only if a later call of this thread has failed; it is not known while
                              one of these may fail yet */
    IBX_FRONTEND_LAUNCH_FAILURE, /* *answer is the error of a launch by <<<>>>, the only one unread
                                    of calls that were answered before they were run */
    IBX_FRONTEND_EVENT_PENDING,  /* the event `handle` has not completed: its record was not run */
    IBX_FRONTEND_SHARED, /* memory of allocate() at `handle`, if that is not 0, and of this session
                            as a rule, is shared with the back end */
    IBX_FRONTEND_ALL_RESTS,    /* no stream has work that the legacy stream would wait for */
    IBX_FRONTEND_DEVICE_RESTS, /* no stream has any work */
    IBX_FRONTEND_PRINTED, /* a reply since the last question has told whether kernels have printed
                             something: *answer */
    IBX_FRONTEND_SERVER, /* *answer is another one if what the back end had made before may be gone:
                            a connection of this process has broken for good, or this thread's is
                            with another process of the server */
    IBX_FRONTEND_BROKEN, /* a sticky error has broken this process's contexts: *answer */
};

/* What the preload has to do before and after each call that may give the device work. request() is
 * told GVirtuS's own requests by their names alone, with no body. None of these functions may call
 * GVirtuS; they may call copy(). If one returns an error, that is the result of the CUDA call, but
 * GVirtuS's own requests are sent all the same. If it sets *begun, with or without an error, over()
 * follows in the same thread once the call is under way.
 *
 * withheld() is called before these. It returns whether the kernel must not be given the host
 * memory of a copy because another thread may take away access to it. GVirtuS's front end, which
 * touches the memory itself, then has to make the copy.
 *
 * handlers: the program's signal handlers wait while a thread is inside the plugin
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
    /* Makes the copy over the connection that GVirtuS made in the calling thread. 0: *exit_code is
     * what the CUDA call has to return; an asynchronous copy of lasting or pinned memory may still
     * be under way. -ENOTCONN: this thread has no working connection. Nothing was done, and GVirtuS
     * has to be called. */
    int (*copy)(const struct ibx_frontend_copy *copy, int *exit_code);

    /* Makes a call over the same connection, without GVirtuS. 0: *exit_code is what it has to
     * return. -ENOTCONN: nothing was done, and GVirtuS has to be called. Either there is no
     * connection, or copies are under way in the background, or GVirtuS's front end has made no
     * such call in this thread yet, from which the plugin learns the form of its frames. */
    int (*call)(const struct ibx_frontend_request *request, int *exit_code);
    /* To be called before GVirtuS makes a launch: whether it is by <<<>>>. The program does not see
     * the result of these, so the launch need not wait for it. */
    void (*unseen)(bool unseen);
    /* Between divert() and diverted() a cudaLaunchKernel that GVirtuS writes in this thread is kept
     * instead of sent, and GVirtuS gets a success. divert() is false without a working connection.
     * diverted() returns the kept body, n bytes, valid until the thread's next call; NULL: GVirtuS
     * wrote none, or it is too long. */
    bool (*divert)(void);
    const void *(*diverted)(size_t *n);
    /* Makes the launch by GVirtuS's function. False: it threw an exception, as G5 does if it has
     * not found a kernel's arguments. It reads these from cubins, and not from PTX. */
    bool (*launch)(const struct ibx_frontend_launch *launch, int *rc);
    /* Whether the fact is known to be true. */
    bool (*knows)(enum ibx_frontend_fact fact, uint64_t handle, int *answer);
    /* How often work may have been left in the legacy stream so far; and that it is over up to this
     * number, because the caller has waited for an event behind it in a blocking stream. */
    uint64_t (*legacy_left)(void);
    void (*legacy_over)(uint64_t left);
    /* The same of work in all streams that the legacy one waits for, and an event in that. */
    uint64_t (*all_left)(void);
    void (*all_over)(uint64_t left);
    /* To be called before and after an event is recorded in the legacy stream: blocking streams may
     * wait for others' work now because of it. */
    void (*legacy_orders)(void);

    /* Page-locked memory of n bytes (not 0), page-aligned, for all threads and connections of the
     * process; NULL: none is left. release() takes the same n. */
    void *(*allocate)(size_t n);
    void (*release)(void *address, size_t n);
    /* Host memory that the application is about to copy often: it is registered for the calling
     * thread's connection if that pays. Nothing has to be undone. */
    void (*prepare)(void *address, size_t n);

    /* Lets kernels access n bytes of memory from allocate() at the address `at`: its own, or that
     * of other memory of the program, in whole pages; with `on` false, ends that, as must be done
     * before release(). 0: *exit_code is CUDA's. -EOPNOTSUPP: this connection cannot do it.
     * -ENOTCONN: no working connection. */
    int (*reach)(const void *memory, uintptr_t at, size_t n, bool on, int *exit_code);
    /* The same with pages of the back end's, which it maps at `address` until they are released. A
     * copy between host and device takes such an address for one of the device. n is a multiple of
     * the page size. */
    int (*stand_in)(void *address, size_t n, bool on, int *exit_code);
    /* Changes when the back end has lost what reach() gave: kernels have no access until reach() is
     * called again. */
    unsigned (*reach_epoch)(void);

    /* Copies of all threads that copy() has left to background threads. Streams 0 to 2 (the default
     * streams) stand for all streams. */
    bool (*pending)(uint64_t stream); /* whether one is under way in the stream */
    int (*failure)(uint64_t stream);  /* the first error that was not returned yet, or 0 */
    void (*finish)(const void *address, size_t n); /* waits for those that use this memory */
    /* ... and for other threads that are in copy() with it. */
    void (*drain)(const void *address, size_t n);

    /* From now on `watch` is called for the calls of all threads. It cannot be taken back. */
    void (*watch)(const struct ibx_frontend_watch *watch);

    /* The process is about to end. last_call() makes the call as call() does, but waits `ms` at
     * most; after that the connection has ended. -ENOTCONN: nothing was done, since this thread has
     * no working connection, or what it has enqueued was not run within that time. */
    int (*last_call)(const struct ibx_frontend_request *request, unsigned ms, int *exit_code);
    /* The process is about to end while other threads may be in calls. The calling thread's
     * launches are completed, and connections that no thread uses are closed. A thread that calls
     * any of these functions from now on sleeps until the process ends. */
    void (*leave)(void);
    /* The calling thread has called exit(3). True: in a signal handler that has interrupted it
     * inside of the plugin, whose locks and connections it may have there. The process then ends
     * without their being closed, and the thread must not call any other of these functions but
     * leave(). */
    bool (*exits)(void);
};

#define IBX_FRONTEND_ATTACH  "ibx_frontend_attach"
#define IBX_FRONTEND_BEGINS  "ibx_frontend_begins"
#define IBX_FRONTEND_ALONE   "ibx_frontend_alone"
#define IBX_FRONTEND_LET     "ibx_frontend_let"
#define IBX_FRONTEND_ATTEMPT "ibx_frontend_attempt"
/* Exported by libibx-frontend.so. All may be called from any thread, any number of times.
 * _begins() is called before the first request of a connection: GVirtuS has made that connection.
 * _attempt() is called before a connection is made. It returns 0 in a thread of the program. A
 * thread of the library's own counts its attempts to connect, and no number is used twice in a
 * process.
 * _alone(): whether the thread has other threads wait until its connection is made. If so, the
 * connection may be made when GVirtuS writes its first request: _let(), then, before the connection
 * is made, lets the others go on. */
#ifdef __cplusplus
extern "C" void ibx_frontend_attach(const struct ibx_frontend_calls *calls);
extern "C" void ibx_frontend_begins(void);
extern "C" uint64_t ibx_frontend_attempt(void);
extern "C" bool ibx_frontend_alone(void);
extern "C" void ibx_frontend_let(void);
#else
void ibx_frontend_attach(const struct ibx_frontend_calls *calls);
void ibx_frontend_begins(void);
uint64_t ibx_frontend_attempt(void);
bool ibx_frontend_alone(void);
void ibx_frontend_let(void);
#endif

#endif
