/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Devices, streams and events, and functions of the host that streams and graphs call.
 *
 *   devices.c        the device that a thread has selected, and those that are used
 *   peers.c          access of devices to each other's memory
 *   owned.c          what contexts of the driver's API have (driver_api/)
 *   streams.c        calls about streams and events, and memory that is set
 *   own_streams.c    the streams of this process, and waits for them beside captures
 *   captures.c       whether streams are captured
 *   host_functions.c functions of the host that streams and graphs call
 *   host_copies.c    copies between host and device that are such functions
 *   printed.c        what kernels print
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STREAMS_STREAMS_H
#define IBX_FRONTEND_GLUE_PRELOAD_STREAMS_STREAMS_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------ printed.c */

/* A call that waits is over: what kernels have printed appears. */
void ibx_frontend_printed(void);
/* Kernels of the program's may print: the back end keeps that from the first launch on. */
void ibx_frontend_prints(void);
/* GVirtuS has returned `rc` for a call that waits for the stream (0: all streams): returns that, or
 * the error of a background copy, which appears then. */
int ibx_frontend_waited(int rc, uint64_t stream);
/* Waits for kernels, if some may print, and for what they print. */
void ibx_frontend_print_all(void);

/* ------------------------------------------------------------------------------------ streams.c */

/* A copy within the device, in the order of the stream, or of the graph that the stream is captured
 * for. False: the back end does not know such a request. */
bool ibx_frontend_planes_in_stream(const struct ibx_cuda_memcpy3d *copy, void *stream, int *rc);
/* Elements of 2 or 4 bytes in the order of a stream that is not captured. False likewise. */
bool ibx_frontend_set_elements(const struct ibx_cuda_memset *set, void *stream, int *rc);

/* ----------------------------------------------------------------------------- host_functions.c */

/* A function that a stream is to wait for; one of the two is NULL. */
struct ibx_frontend_host_call {
    void *stream, *argument;
    void (*function)(void *argument);
    void (*callback)(void *stream, int status, void *argument);
};
/* What the call of that name returns. */
int ibx_frontend_host_enqueue(const struct ibx_frontend_host_call *wish, const char *name);
/* Whether functions of the application's are outstanding, that a stream has still to wait for. */
bool ibx_frontend_host_functions(void);
/* Before the calling thread waits for a stream, or for all: a mark. Behind that: whether functions
 * that were in it at the mark were not called, and never are. */
uint64_t ibx_frontend_host_enqueued(void);
/* The number of a function that graphs call, and the queue that has it; 0: there is no memory, or
 * the back end knows no functions. It is the same for the same two, and never given back. */
uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue);
/* The function of such a number; false: there is none. */
bool ibx_frontend_host_function_of(uint64_t number, struct host_node *host);
/* launch(exec, stream), by which these functions are outstanding. */
int ibx_frontend_host_launch(const uint64_t *numbers, size_t count, void *stream,
                             int (*launch)(void *exec, void *stream), void *exec);
bool ibx_frontend_host_lost(uint64_t mark, bool all, const void *stream);
/* The same for the wait for an event, which was recorded in the stream. */
void ibx_frontend_host_event(void *event, void *stream);
bool ibx_frontend_host_event_lost(const void *event);
/* Whether there are some in that stream that have not returned. */
bool ibx_frontend_host_waits(const void *stream);
/* The same, also when the first of them was waited for so long. */
bool ibx_frontend_host_in_stream(const void *stream, unsigned ms);
/* Whether any that are outstanding are never called, in whatever stream. */
bool ibx_frontend_host_gone(void);
/* A device was reset: those that are outstanding are so no more. */
void ibx_frontend_host_reset(void);

/* ----------------------------------------------------------------------------------- captures.c */

/* One is about to be begun; one is over, or was not begun. */
void ibx_frontend_capture_begins(void);
void ibx_frontend_capture_gone(void);
/* The same of one of a thread's own stream, which had no work before if it has `rested`. The lock
 * of ranges is held. */
void ibx_frontend_thread_capture_begins(bool rested);
void ibx_frontend_thread_capture_ends(bool rested);
/* Whether the stream is being captured; quick while this process captures nothing. */
bool ibx_frontend_captures(void *stream);
/* Whether this process captures any. */
bool ibx_frontend_capturing(void);
/* captures.c: whether any thread captures its own; how many that had no work before. */
bool ibx_frontend_threads_capture(unsigned *rested);

/* -------------------------------------------------------------------------------- own_streams.c */

/* The stream is about to be destroyed: the flags with which it was made; false: not by this
 * process. And where it is not: it is there still. */
bool ibx_frontend_stream_gone(const void *stream, unsigned *flags);
void ibx_frontend_stream_stays(void *stream, unsigned flags);
/* A device was reset. */
void ibx_frontend_streams_reset(void);
/* A thread is about to have work done there. */
void ibx_frontend_stream_used(const void *stream);
/* Likewise: it has waited for its own stream, or (NULL) for the device, and all is over. */
void ibx_frontend_stream_rests(const void *stream);
/* How many threads with such streams have ended; and that what these had there is over. */
unsigned ibx_frontend_threads_ended(void);
void ibx_frontend_threads_rest(unsigned so_far);
/* While streams are being captured: waits for the work of the others that this process has made,
 * and of the legacy one unless a captured stream waits for that. It ends no capture. `all_work`:
 * CUDA_CAPTURE_UNSUPPORTED where threads' own streams may have some that is not waited for. */
int ibx_frontend_streams_rest(bool all_work);

/* -------------------------------------------------------------------------------- host_copies.c */

/* A copy from or to memory of the device's that is over when this returns, and that no capture
 * minds. By the one thread that serves accesses to managed memory; the device stays selected there.
 */
int ibx_frontend_copy_beside(void *to, const void *from, size_t n, int kind, int device);
/* Whether few bytes from the device are to come with the word that a function is to be called. */
bool ibx_frontend_graph_takes_bytes(void);
/* Whether it is none of the program's. */
bool ibx_frontend_graph_copies(void (*function)(void *argument));
/* Such bytes have come for a function. False: that is none which would take them. */
bool ibx_frontend_graph_copied(void (*function)(void *argument), void *argument, uint8_t *bytes,
                               size_t n);
/* A device was reset. */
void ibx_frontend_graph_reset(void);
/* The error of one that was made in a graph since the last call, or 0. */
int ibx_frontend_graph_failure(void);

/* ------------------------------------------------------------------------------------ devices.c */

/* The one that the calling thread has selected. */
int ibx_frontend_current_device(void);
/* The calling thread uses the device that it has selected. */
void ibx_frontend_device_used(void);
bool ibx_frontend_device_in_use(int device);
/* Whether there was no other one so far. */
bool ibx_frontend_one_device(void);
/* Waits for all work on every device that this process has used. An error: perhaps not for all. */
int ibx_frontend_devices_wait(void);
/* Calls it with every device that this process may use, which is selected then. */
void ibx_frontend_each_device(void (*visit)(int device));

/* -------------------------------------------------------------------------------------- peers.c */

/* The device was reset, and the access of its kernels to others, and of others to it. */
void ibx_frontend_peers_reset(int device);
/* The thread has selected that device. */
void ibx_frontend_peers_selected(int device);
/* It has managed memory from now on. */
void ibx_frontend_peers_hold(int device);

/* -------------------------------------------------------------------------------------- owned.c */

/* Of the driver's API: what a context has. */
enum owned_kind {
    OWNED_MEMORY,
    OWNED_HOST,
    OWNED_REGISTERED,
    OWNED_STREAM,
    OWNED_EVENT,
    OWNED_LIBRARY,
    OWNED_ARRAY,
    OWNED_MIPMAP,
    OWNED_TEXTURE,
    OWNED_SURFACE
};
/* It was made on the current device. */
void ibx_frontend_owned(enum owned_kind kind, const void *handle, const void *owner);
/* NULL: no context of the driver's has it. */
const void *ibx_frontend_owner(enum owned_kind kind, const void *handle);
/* It is about to be ended. Quick where there is none. */
void ibx_frontend_owned_gone(enum owned_kind kind, const void *handle);
/* One that the owner has; NULL: none. It is taken out. */
void *ibx_frontend_owned_take(enum owned_kind kind, const void *owner);
/* The device was reset. */
void ibx_frontend_owned_reset(int device);

#endif
