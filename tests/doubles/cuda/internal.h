/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of the double of CUDA's driver. */
#ifndef TESTS_DOUBLES_CUDA_INTERNAL_H
#define TESTS_DOUBLES_CUDA_INTERNAL_H

#include "gpudirect/gpudirect.h"
#include "tests/doubles/cuda/driver.h"

#include <pthread.h>

/* No header here declares the driver's names. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))
#define PAGE   4096u

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    DEVICES_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_IS = 704,
    PEER_ACCESS_IS_NOT = 705,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900
};

struct allocation {
    struct allocation *next; /* in the list of all that there ever were */
    uint8_t *address; /* what the application sees: traps, unless it is host memory; NULL: gone */
    uint8_t *bytes;   /* where they are */
    size_t size, mapped;
    int fd;
    int device;     /* -1: pinned host memory */
    unsigned flags; /* it was registered with */
    unsigned long long id;
    unsigned sync_memops;
    void *pool;      /* the pool that it is of: freed without a wait; NULL: none */
    int by;          /* host memory: the device whose context has registered it */
    bool stays;      /* after a reset of the device, too */
    unsigned opened; /* how often it was opened from another process; 0: it is this process's */
    bool reserved;   /* only addresses: virtual.c has what is mapped there */
    bool of_array;   /* an array's: only the array's end frees it */
};

struct context {
    int device;
    bool second; /* of cuCtxCreate: its work has connections of its own */
};

extern pthread_mutex_t mutex;
extern pthread_cond_t changed; /* anything under the lock */
/* Locked. For a second at most: glibc before 2.41 loses a wake now and then (its bug 25847). */
void wait_for_change(void);
extern struct allocation *allocations;
extern __thread struct context *current;
extern int sticky_error;
extern struct ibx_double_stats stats;

/* driver.c */

/* Takes the lock. Not 0: the call has to return this, and the lock is not taken. */
int enter(const char *function);
/* Releases the lock, and returns `code`. */
int leave(int code);
/* To be called after a wait, without the lock: writes what kernels have printed, and returns
 * `code`. */
int waited(int code);
/* The allocation, or pinned host memory, that holds the range. */
struct allocation *find(const void *address, size_t n);
/* The bytes of a range of device memory; NULL: it is not within one allocation. */
uint8_t *device_bytes(uint64_t device, size_t n);
/* Whether ibx_double_inject() has this call of `function` fail. */
bool fails(const char *function, int *code);
/* The error that stays, of the current context; 0: there is none. */
int sticky(void);
/* If IBX_DOUBLE_ALONE is set, calls of other threads wait between these two. */
void begin_alone(void);
void end_alone(void);
/* The same whatever the environment has. */
void keep_out(bool begins);

/* streams.c, events.c, driver_copies.c */

/* Waits for all streams, as between begin_alone() and end_alone(). */
void wait_for_all(void);
/* The same for streams of the current device, or of a device. */
void wait_for_device(void);
void wait_for_work_on(int device);
/* Whether copies to or from it have not been run yet. */
bool in_use(const uint8_t *address, size_t n);
/* As ibx_double_slow(), with one delay for cuMemcpyHtoD and cuMemcpyDtoH, and another for all other
 * copies. */
void slow_each(unsigned sync_us, unsigned async_us);
void streams_forget(int device);
/* Whether it is a stream of the current device. */
bool stream_is_here(void *handle);
/* Whether it is a stream, and whether it is a blocking one. */
bool stream_known(void *handle, bool *blocking);
void events_forget(int device);
/* Makes a copy between memory of these types (IBX_CUDA_MEMORY_*) for the call `name`; returns what
 * this call returns. */
int copy_plain(const char *name, unsigned to_type, uint64_t to, unsigned from_type, uint64_t from,
               size_t n, void *stream, bool sync);
int ibx_double_fill(uint64_t to, const void *bytes, size_t n, void *stream);

/* memory.c */

/* Whether kernels of the current device may use this address. */
bool kernel_reaches(uint64_t address);
/* Locked. Whether it is memory of another device, to which the current one has no access. */
bool is_out_of_reach(uint64_t address);
/* The type of the memory: pinned memory of the host, or else memory of a device. */
unsigned kernel_type_of(uint64_t address);
int cuMemAlloc_v2(uint64_t *device, size_t n);
/* Maps the file as memory of that device; NULL: out of memory. */
struct allocation *memory_map(int fd, size_t n, int device);
void memory_unmap(struct allocation *a);
/* A copy is over: it may have been the last one that used such bytes. */
void memory_unmap_unused(void);

/* Reserves addresses of the current device, at which nothing is mapped; NULL: out of memory. */
struct allocation *memory_reserve(size_t n);

/* virtual.c */

/* is_there(): whether all n bytes are mapped, with access. mapping(): what is mapped there; false:
 * nothing. */
bool virtual_is_there(const struct allocation *a, size_t at, size_t n);
struct virtual_mapping {
    uint64_t begin;
    size_t n;
    unsigned long long id;
    int device;
};
bool virtual_mapping(const struct allocation *a, size_t at, struct virtual_mapping *is);

/* ipc.c */

/* What other processes open: a file that this process has. */
struct ipc_handle {
    unsigned kind;
    int process, fd, device;
    uint64_t file, n; /* its inode; bytes */
    uint64_t pool;    /* for memory of a pool: the inode of the pool's file */
    uint8_t unused[64 - 40];
};
struct ipc_handle ipc_handle_of(unsigned kind, int fd, size_t n, int device);
/* Returns a descriptor; -1: the handle is not of that kind, or is gone. */
int ipc_handle_open(const struct ipc_handle *handle, unsigned kind);

/* capture.c */

/* enter() for calls that captures forbid, and that end a capture; and for a call that is forbidden
 * in all modes. */
int enter_unsafe(const char *function);
int enter_context(const char *function);
/* enter_unsafe() for a call about an event: if that was recorded in a capture last, this is its
 * error. */
int enter_event(const char *function, const void *event);
/* What cuStreamIsCapturing() says. */
int capture_status(const void *stream);
/* A call asks about the stream's work. This invalidates its capture, in any mode, and the call
 * returns that error; 0: the stream is not captured. */
int capture_spoilt(const void *stream);

/* A stream waits for an event: the error, if captures have one. */
int capture_waits(const void *stream, const void *event);

/* modules.c: whether it is a kernel that copies. */
bool is_copy_kernel(const void *kernel);

/* second_context.c: bytes of an element that the plugin's kernel copies; 0: it is another one. */
size_t second_kernel_element(const void *kernel);

/* capture_streams.c: the streams in the capture of the runtime's double. */

/* It begins in the stream, or (NULL) has ended. */
void capture_streams_reset(void *stream);
/* Whether the stream is in it. */
bool capture_has(const void *stream);
/* Something was captured in the stream, which is in it. */
void capture_streams_work(const void *stream);
/* That became a node. behind(): the nodes behind which the stream's next one comes, and how many;
 * `behind` has room for 64. set(): cudaStreamUpdateCaptureDependencies. */
void capture_streams_node(const void *stream, void *node);
size_t capture_streams_behind(const void *stream, void **behind);
void capture_streams_set(const void *stream, void *const *made, size_t count, bool adds);
/* An event is recorded in a stream, and a stream waits for one: that joins it to the capture. It
 * returns an error, and sets *lost if the capture is invalid then. */
void capture_records(const void *stream, const void *event);
int capture_joins(const void *stream, const void *event, bool *lost);
/* Whether the event was recorded in the capture, which is under way. */
bool capture_has_event(const void *event);
/* The event has another meaning from now on, or none. */
void capture_forgets(const void *event);
/* Whether a stream has work, or has joined the capture, that the first one has not waited for. */
bool capture_is_unjoined(void);
/* Whether work for a stream is captured, or forbidden: then it is not run, and the call has to
 * return *code. */
bool capture_takes(const void *stream, bool legacy, int *code);

#endif
