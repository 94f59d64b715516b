/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Devices, streams and events, and host functions that streams and graphs call.
 *
 *   devices.c        the device that a thread has selected, and those that are used
 *   peers.c          access of devices to each other's memory
 *   owned.c          what belongs to contexts of the driver's API (driver_api/)
 *   streams.c        calls about streams and events
 *   own_streams.c    the streams of this process, and waits for them during captures
 *   captures.c       which streams are captured
 *   forks.c          which streams have joined a capture, and how they stay in it as it is split
 *   host_functions.c host functions that streams and graphs call
 *   outstanding.c    the list of those that were not called yet (outstanding.h)
 *   repeated_functions.c  the numbers of those that graphs call
 *   host_events.c    events that were recorded after such functions
 *   kept_events.c    events that this library records itself
 *   host_copies.c    copies between host and device that are such functions
 *   printed.c        what kernels print
 *
 * There are circles of calls. streams.c makes CUDA's calls, and tells the other files of each;
 * captures.c, forks.c, host_functions.c, own_streams.c and printed.c, which it calls, make some of
 * these calls themselves, by streams.c: they ask for streams, wait, or record events. host_events.c
 * enqueues by host_functions.c, which tells it of a fork. devices.c has own_streams.c wait for the
 * streams of this process and peers.c enable access, and both ask devices.c which device is
 * selected.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STREAMS_STREAMS_H
#define IBX_FRONTEND_GLUE_PRELOAD_STREAMS_STREAMS_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------ printed.c */

/* A call that waits begins: what earlier replies have told of output is not its own. */
void ibx_frontend_wait_begins(void);
/* After a call that waits: fetches and writes what kernels have printed. */
void ibx_frontend_printed(void);
/* Kernels of the program may call printf: the back end collects the output from the first launch
 * on. */
void ibx_frontend_prints(void);
/* After GVirtuS has returned `rc` for a call that waits for the stream (0: all streams): returns
 * that or, if it is 0, the error of a background copy. */
int ibx_frontend_waited(int rc, uint64_t stream);
/* Waits for the device if kernels may have printed, and writes the output. */
void ibx_frontend_print_all(void);
/* As the process ends: writes the output of kernels that have ended, if the calling thread has a
 * connection. Waits a second at most. */
void ibx_frontend_print_last(void);

/* ------------------------------------------------------------------------------------ streams.c */

/* Makes a request that becomes part of a graph: GVirtuS must not make that call. False: the stream
 * is not captured. */
bool ibx_frontend_captured(const struct extension_request *request, void *stream, int *rc);
/* A copy within the device, in the order of the stream, or of the graph into which the stream is
 * captured. `waits`: for the back end's answer, and not only for an earlier failure. False: the
 * back end does not know the request. */
bool ibx_frontend_planes_in_stream(const struct ibx_cuda_memcpy3d *copy, bool waits, void *stream,
                                   int *rc);

/* Asks CUDA about the work of a stream, whatever is known here. If the stream is captured, this
 * invalidates the capture, in whatever mode it is and whichever thread has begun it, and returns
 * 900, or 901 if it was invalid before; of the legacy stream, while one is captured that waits for
 * it, 906. */
int ibx_frontend_stream_ask(void *stream);
/* cudaEventQuery, for an event of this library's: errors of copies, which the program is to get
 * from its own calls, are not returned. */
int ibx_frontend_event_ask(void *event);
/* cudaEventRecord, for an event that the caller waits for itself, so that it leaves nothing. */
int ibx_frontend_event_record(void *event, void *stream);
/* cudaStreamWaitEvent, for such an event. */
int ibx_frontend_stream_wait_event(void *stream, void *event, unsigned flags);

/* cudaDeviceSynchronize and cudaStreamSynchronize within another call, which captures of other
 * threads do not forbid. If one begins meanwhile, the back end waits for up to 2 s until that is
 * over, and invalidates it then. */
int ibx_frontend_device_wait_within(void);
int ibx_frontend_stream_wait_within(void *stream);
/* A function to be called when cudaDeviceSynchronize has succeeded in a process with one device. It
 * returns what that returns then. */
void ibx_frontend_after_device_wait(int (*function)(void));

/* A stream is to wait for a word in memory; whether one ever was. Others may wait for that stream.
 */
void ibx_frontend_word_awaited(void);
bool ibx_frontend_words_awaited(void);

/* ----------------------------------------------------------------------------- host_functions.c */

/* A host function for a stream: `function` or `callback`, the other one is NULL. */
struct ibx_frontend_host_call {
    void *stream, *argument;
    void (*function)(void *argument);
    void (*callback)(void *stream, int status, void *argument);
};
/* Enqueues it, for the CUDA call `name`. Returns what that returns. */
int ibx_frontend_host_enqueue(const struct ibx_frontend_host_call *wish, const char *name);
/* Whether host functions of the application are outstanding: a stream has not passed them yet.
 * Quick. */
bool ibx_frontend_host_functions(void);
/* How many ever were, each launch of a graph's counted. */
uint64_t ibx_frontend_host_made(void);
/* Whether newer bytes of managed memory are copied to the device beside the legacy stream: copies
 * there would end a capture, or might wait for a function that accesses such memory, or for the
 * parent of a child. Quick. */
bool ibx_frontend_gives_beside(void);
/* What is called around functions of the application. */
struct ibx_frontend_around {
    /* Before the first one: waits for what was begun while ibx_frontend_gives_beside() was false,
     * and is true now. */
    void (*first)(void);
    void (*begins)(void), (*ends)(void); /* before and after each, in its thread */
};
/* Sets these calls, for good. For functions that may be running already, `begins` is called at
 * once, in the calling thread. */
void ibx_frontend_around_functions(const struct ibx_frontend_around *calls);
/* A mark, to be taken before the calling thread waits for a stream (or all streams) and passed to
 * _host_lost() afterwards. */
uint64_t ibx_frontend_host_enqueued(void);
/* The number of a function that graphs call, and its queue; 0: there is no memory, or the back end
 * does not know host functions. The same function and argument have the same number, which is never
 * freed. */
uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue);
/* The function of a number; false: there is none. */
bool ibx_frontend_host_function_of(uint64_t number, struct host_node *host);
/* What a launch of a graph does about one function of the graph. */
enum ibx_launch_use {
    IBX_COPY_LATER,   /* nothing: it copies nothing, or with what is there when the graph gets there
                       */
    IBX_COPY_TAKEN,   /* it has taken the bytes that are copied */
    IBX_COPY_UNTAKEN, /* it waits until it can take them, or until the copy is made */
    IBX_COPY_AWAITED  /* it waits until the copy is made */
};
struct ibx_launch_bytes;
struct ibx_launch_copy {
    enum ibx_launch_use use;
    struct ibx_launch_bytes *taken; /* of IBX_COPY_TAKEN */
};
struct ibx_launch {
    const uint64_t *numbers;        /* of the functions that the graph calls */
    struct ibx_launch_copy *copies; /* for each; NULL: IBX_COPY_LATER for all */
    size_t count;
    uint64_t id; /* is set */
};
/* Calls launch(exec, stream) for a graph that calls these functions, which are outstanding from
 * then on. What the launch has taken for one is the function's then. Returns a CUDA error. */
int ibx_frontend_host_launch(struct ibx_launch *made, void *stream,
                             int (*launch)(void *exec, void *stream), void *exec);
/* A wait for what a launch awaits. Begins with the code CUDA_NOT_READY and zeros. */
struct ibx_launch_wait {
    int code;      /* CUDA_NOT_READY: it goes on */
    uint64_t seen; /* what has changed so far */
    uint64_t ask;  /* when the stream is asked whether it has failed; 0: it was asked */
};
/* Waits until it is over or something changes, so that perhaps bytes can be taken now. After an
 * error, which is the wait's code then, CUDA calls no function. */
void ibx_frontend_host_await(const struct ibx_launch *launch, void *stream,
                             struct ibx_launch_wait *wait);
/* Gives a function of the launch the bytes that this has taken since. False: it does not need them.
 */
bool ibx_frontend_host_give(uint64_t launch, uint64_t number, struct ibx_launch_bytes *taken);
/* Calls `visit`, which makes no call, for each function that is outstanding or is being called. */
void ibx_frontend_host_outstanding(void (*visit)(const struct host_node *host, void *context),
                                   void *context);
/* After a wait for the stream, or for all: whether functions that were enqueued before the mark
 * were not called, and never will be. */
bool ibx_frontend_host_lost(uint64_t mark, bool all, const void *stream);
/* The same for a wait for an event: _event() notes that it was recorded in the stream. */
void ibx_frontend_host_event(void *event, void *stream);
bool ibx_frontend_host_event_lost(const void *event);
void ibx_frontend_host_events_in_child(void);
/* Whether a host function that work in the stream comes after has not returned yet: one in the
 * stream, or in a stream with which it is ordered. */
bool ibx_frontend_host_waits(const void *stream);
/* The same after waiting up to `ms` milliseconds for their streams to pass them; also if the order
 * is that of an event in the legacy stream, which _ordered() notes. */
bool ibx_frontend_host_before(const void *stream, unsigned ms);
void ibx_frontend_host_ordered(void);
/* Whether any of these will never be called. */
bool ibx_frontend_host_gone(const void *stream);
/* A device was reset: no function is outstanding there any more. */
void ibx_frontend_host_reset(int device);

/* -------------------------------------------------------------------------------- kept_events.c */

/* An event of the current device, without timing, that the calling thread alone records. */
struct ibx_kept_event {
    void *event;
    int device, server; /* IBX_FRONTEND_SERVER, before the event was made */
    unsigned resets;    /* of devices, likewise */
    bool may_stay;      /* `server` is known */
};
/* Makes an event, or takes one that was given back. Returns a CUDA error. */
int ibx_frontend_event_take(struct ibx_kept_event *own);
/* Keeps it for later, though its last record may not be over; or destroys it, as it does if it is
 * not `good`: a call with it has failed. */
void ibx_frontend_event_give_back(const struct ibx_kept_event *own, bool good);
/* A device was reset, which destroys its events. */
void ibx_frontend_kept_events_reset(int device);

/* ------------------------------------------------------------------------- repeated_functions.c */

/* The number of a function of graphs, a new one after *last if it has none; 0: there is no memory.
 * _find() finds the function of a number; false: there is none. Callers hold the lock of
 * host_functions.c. */
uint64_t ibx_repeated_number(const struct host_node *wanted, uint64_t *last);
bool ibx_repeated_find(uint64_t number, struct host_node *host);
void ibx_repeated_in_child(void);

/* ----------------------------------------------------------------------------------- captures.c */

/* A capture is about to begin; a capture has ended, or could not be begun. */
void ibx_frontend_capture_begins(void);
void ibx_frontend_capture_gone(void);
/* The same for a capture of a thread's own stream. `rested`: the stream had no work before. The
 * caller holds the lock of ranges. */
void ibx_frontend_thread_capture_begins(bool rested);
void ibx_frontend_thread_capture_ends(bool rested);
/* Whether the stream is being captured; quick while this process captures nothing. */
bool ibx_frontend_captures(void *stream);
/* The same; true also of a stream of which the back end cannot tell (rdma.gpu : off). */
bool ibx_frontend_may_capture(void *stream);
/* Until it lets go, no other thread of this process begins a capture, nor has a stream join one by
 * an event, unless that takes more than 1 s. For a few requests that wait for no work. let_go()
 * gets what hold() has returned. */
int ibx_frontend_captures_hold(void);
void ibx_frontend_captures_let_go(int cancel);
/* Whether it is in a capture that was invalidated. */
bool ibx_frontend_capture_is_invalid(void *stream);
/* Whether this process captures any. */
bool ibx_frontend_capturing(void);
/* Memory was allocated or freed in the order of a stream, which may be captured. */
void ibx_frontend_ordered_memory(void);
/* Whether that has happened while this process captured. */
bool ibx_frontend_captured_memory(void);
/* The mode that the program has set for the calling thread. */
int ibx_frontend_capture_mode(void);
/* Around calls of this library that CUDA forbids beside captures, on behalf of a call that it
 * permits there: _relax() returns what _relax_end() takes. */
int ibx_frontend_relax(void);
void ibx_frontend_relax_end(int mode);
/* Likewise a wait for a stream, which may be the legacy one. Returns what cudaStreamSynchronize()
 * does. */
int ibx_frontend_stream_wait(void *stream);
/* Of a call that the back end does not get: the sticky error, recorded, that all calls return from
 * now on. Quick. */
int ibx_frontend_broken(void);
/* Of a call that CUDA calls unsafe: the same, or CUDA_CAPTURE_UNSUPPORTED, recorded, if captures
 * forbid it to the calling thread; they are invalid then. Quick while this process captures
 * nothing. */
int ibx_frontend_unsafe(void);
/* The same of a call that the back end gets, which refuses it because of the thread's own captures:
 * only those of other threads are looked at. Host functions are not refused anything here. */
int ibx_frontend_unsafe_beside(void);
/* ... of a call in a stream: it is not refused if that is captured. */
int ibx_frontend_unsafe_in(void *stream);
/* Of a wait for the device that the program makes, which any capture there forbids, and of one for
 * a stream, or a query, which captures of streams that wait for the device's legacy one forbid if
 * that is the stream: their error, as above, if other threads have such captures. The thread's own
 * are left to the back end if there are no others. */
int ibx_frontend_device_wait_refused(void);
int ibx_frontend_legacy_wait_refused(const void *stream);
/* `next` finds the captures that do so, which graphs/ knows: the first one with a number above
 * `last`, of another thread if `others`, that forbids a call of that kind. It returns that number,
 * or 0, and sets *stream; NULL: the stream is another thread's own, and that thread will invalidate
 * the capture as it ends it. */
enum ibx_forbidden {
    FORBIDDEN_UNSAFE, /* a call that CUDA calls unsafe */
    FORBIDDEN_WAIT,   /* a wait for the selected device, by any capture there */
    FORBIDDEN_LEGACY, /* a wait for its legacy stream */
};
typedef unsigned long long ibx_frontend_next_capture(unsigned long long last,
                                                     enum ibx_forbidden call, bool others,
                                                     void **stream);
void ibx_frontend_captures_forbid(ibx_frontend_next_capture *next);
/* Of a call that CUDA permits in no stream that is captured: false, or *rc is its error, and the
 * capture is invalidated. */
bool ibx_frontend_capture_refuses(void *stream, int *rc);
/* Likewise of one in the legacy stream that the back end does not get, while a stream is captured
 * that waits for the legacy one. Other streams are never refused. */
bool ibx_frontend_legacy_refuses(void *stream, int *rc);
/* Whether any thread captures its own stream; *rested: how many of these streams had no work
 * before. */
bool ibx_frontend_threads_capture(unsigned *rested);

/* -------------------------------------------------------------------------------------- forks.c */

/* The calling thread's number, which no other thread of this process ever has. */
uint64_t ibx_frontend_thread_number(void);
/* Whether `other` is, in the calling thread, the stream that was `stream` in thread `by`:
 * cudaStreamPerThread is a different one in each thread. */
static inline bool ibx_frontend_same_stream(const void *stream, uint64_t by, const void *other)
{
    return stream == other &&
           (stream != CUDA_STREAM_PER_THREAD || by == ibx_frontend_thread_number());
}

/* A capture that this stream has begun, with the streams that have joined it. NULL, also where a
 * function takes one: nothing is known about them. */
struct ibx_forks;
struct ibx_forks *ibx_frontend_forks_begin(const void *stream);
void ibx_frontend_forks_end(struct ibx_forks *f);
/* Before that where no call can be made, or a device was reset: an event of this library's is not
 * used again. */
void ibx_frontend_forks_lose_root(struct ibx_forks *f);
/* The capture that the stream is in, as long as that does not end. */
const struct ibx_forks *ibx_frontend_forks_of(const void *stream);
bool ibx_frontend_forks_any(const struct ibx_forks *f);
/* Before the capture is split: all its streams come before what the first one captures. An error:
 * the capture is as before, and cannot be split. */
int ibx_frontend_forks_split(struct ibx_forks *f);
/* It has begun again: all its streams are in it. */
int ibx_frontend_forks_go_on(struct ibx_forks *f);
/* Before the capture ends: the streams that a split has forked join it, which the program may have
 * done before. */
int ibx_frontend_forks_join(struct ibx_forks *f);

/* Whether the event was recorded last in a capture that is under way. */
bool ibx_frontend_forks_captured(const void *event);
/* While this process captures: an event was recorded; a stream has waited for one; an event or a
 * stream is no more. _event(): what a stream has to wait for in place of the event. */
void ibx_frontend_forks_recorded(const void *event, const void *stream);
void ibx_frontend_forks_waited(void *stream, const void *event);
void *ibx_frontend_forks_event(void *event);
void ibx_frontend_forks_event_gone(const void *event);
void ibx_frontend_forks_stream_gone(const void *stream);

/* -------------------------------------------------------------------------------- own_streams.c */

/* A stream is about to be destroyed: returns what it was; false: this process did not make it.
 * _stays() takes that back if the call failed. */
bool ibx_frontend_stream_gone(const void *stream, struct range *was);
void ibx_frontend_stream_stays(const struct range *was);
/* Whether the stream and the legacy stream wait for each other. */
bool ibx_frontend_stream_blocks(const void *stream);
/* The device of a stream that this process has made; else the current one. */
int ibx_frontend_stream_device(const void *stream);
/* A device was reset. */
void ibx_frontend_streams_reset(void);
/* The calling thread is about to put work into the stream. */
void ibx_frontend_stream_used(const void *stream);
/* It has done so, perhaps in vain: then ibx_frontend_streams_rest() can wait for that, though the
 * stream may be the thread's own. Only after _note(). */
void ibx_frontend_stream_worked(void *stream);
void ibx_frontend_own_work_note(void);
/* Whether the calling thread's own stream may have work. */
bool ibx_frontend_stream_is_used(void);
/* The calling thread has waited for its own stream or (NULL) for the device: the stream has no
 * work. */
void ibx_frontend_stream_rests(const void *stream);
/* How many threads that used their own stream have ended; and that the streams of the first
 * `so_far` of them have no work any more. */
unsigned ibx_frontend_threads_ended(void);
void ibx_frontend_threads_rest(unsigned so_far);
/* Whether a fork has made this process. The back end's legacy stream is the parent's, too. */
bool ibx_frontend_is_child(void);
/* Waits for the current device; in a forked child for the streams of its own alone. While nothing
 * is captured. Returns a CUDA error. */
int ibx_frontend_own_work_wait(void);
/* While streams are captured: waits for the work of all other streams that this process has made,
 * and of the legacy stream, unless a captured stream waits for that. Invalidates no capture.
 * `all_work`: returns CUDA_CAPTURE_UNSUPPORTED if streams of threads may have work that cannot be
 * waited for. */
int ibx_frontend_streams_rest(bool all_work);

/* -------------------------------------------------------------------------------- host_copies.c */

/* A copy between host and device that is complete when this returns, and that no capture notices.
 * Only for threads that serve accesses to managed memory. The device stays selected. */
int ibx_frontend_copy_beside(void *to, const void *from, size_t n, int kind, int device);
/* Whether short copies from the device are to come with the message that a function is to be
 * called. */
bool ibx_frontend_graph_takes_bytes(void);
/* Whether the function is one of this library's that make copies. */
bool ibx_frontend_graph_copies(void (*function)(void *argument));
/* Such bytes have arrived for a function. False: it is no function that takes them. */
bool ibx_frontend_graph_copied(void (*function)(void *argument), void *argument, uint8_t *bytes,
                               size_t n);
/* Copies the bytes that a launch has taken to the back end, for a function of this kind. _free()
 * ignores NULL. */
void ibx_frontend_graph_give(void *argument, struct ibx_launch_bytes *taken);
void ibx_launch_bytes_free(struct ibx_launch_bytes *taken);
/* A device was reset. */
void ibx_frontend_graph_reset(void);
/* The error of a copy in a graph since the last call, or 0. */
int ibx_frontend_graph_failure(void);

/* ------------------------------------------------------------------------------------ devices.c */

/* The device that the calling thread has selected. */
int ibx_frontend_current_device(void);
/* The calling thread uses the device that it has selected. */
void ibx_frontend_device_used(void);
bool ibx_frontend_device_in_use(int device);
/* Whether this process has used only one device so far. */
bool ibx_frontend_one_device(void);
/* Waits for all work on each device that this process has used, in a forked child for its own.
 * After an error, some may not have been waited for. */
int ibx_frontend_devices_wait(void);
/* Calls `visit` for each device that this process may have used, which is selected then. */
void ibx_frontend_each_device(void (*visit)(int device));

/* -------------------------------------------------------------------------------------- peers.c */

/* A device was reset, which ends the access of its kernels to other devices, and of others to it.
 */
void ibx_frontend_peers_reset(int device);
/* Whether the current device has access to that device's memory, as far as the application knows:
 * it is the same device, or the application has enabled access. */
bool ibx_frontend_peers_reach(int device);
/* The calling thread has selected the device. */
void ibx_frontend_peers_selected(int device);
/* The device has managed memory from now on. */
void ibx_frontend_peers_hold(int device);

/* -------------------------------------------------------------------------------------- owned.c */

/* What belongs to a context of the driver's API. */
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
/* Notes that it was made on the current device and belongs to context `owner`. */
void ibx_frontend_owned(enum owned_kind kind, const void *handle, const void *owner);
/* The context to which it belongs; NULL: none. */
const void *ibx_frontend_owner(enum owned_kind kind, const void *handle);
/* It is about to be destroyed. Quick if there is nothing in the list. */
void ibx_frontend_owned_gone(enum owned_kind kind, const void *handle);
/* The same; _again() takes it back, if the call has failed. */
struct owned_note {
    const void *owner, *handle; /* owner NULL: there was nothing */
    enum owned_kind kind;
    int device;
};
void ibx_frontend_owned_lift(enum owned_kind kind, const void *handle, struct owned_note *note);
void ibx_frontend_owned_again(const struct owned_note *note);
/* Takes something that belongs to the context out of the list; NULL: there is nothing. */
void *ibx_frontend_owned_take(enum owned_kind kind, const void *owner);
/* The device was reset. */
void ibx_frontend_owned_reset(int device);

#endif
