/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of the double of CUDA's driver. */
#ifndef TESTS_DOUBLES_CUDA_INTERNAL_H
#define TESTS_DOUBLES_CUDA_INTERNAL_H

#include "gpudirect/gpudirect.h"
#include "tests/doubles/cuda/driver.h"

#include <pthread.h>

/* The driver's names are declared by nobody here. */
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
    struct allocation *next; /* of all that there have been */
    uint8_t *address; /* what the application sees: traps, unless it is host memory; NULL: gone */
    uint8_t *bytes;   /* where they are */
    size_t size, mapped;
    int fd;
    int device;     /* -1: pinned host memory */
    unsigned flags; /* it was registered with */
    unsigned long long id;
    unsigned sync_memops;
    void *pool;      /* NULL; or whose it is: given back without a wait */
    int by;          /* host memory: the device whose context has registered it */
    bool stays;      /* behind a reset of the device */
    unsigned opened; /* so often: it is another process's; 0: it is not */
    bool reserved;   /* addresses alone: what is mapped there is in virtual.c */
};

struct context {
    int device;
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

/* Takes the lock; nonzero is what the call has to return, without it. */
int enter(const char *function);
/* Gives it back and returns `code`. */
int leave(int code);
/* Returns `code`, behind a wait: writes what kernels have printed. Not locked. */
int waited(int code);
/* The allocation, or pinned host memory, that holds the range. */
struct allocation *find(const void *address, size_t n);
/* The bytes of a range of device memory; NULL: it is not within one allocation. */
uint8_t *device_bytes(uint64_t device, size_t n);
/* Whether ibx_double_inject() has this call of `function` fail. */
bool fails(const char *function, int *code);
/* The error that stays, of the current context; 0: there is none. */
int sticky(void);
/* With IBX_DOUBLE_ALONE other threads' calls wait from one to the other. */
void begin_alone(void);
void end_alone(void);

/* streams.c, events.c, driver_copies.c */

/* For all streams; alone. */
void wait_for_all(void);
/* The same for streams of the current device. */
void wait_for_device(void);
/* Whether copies to or from it have not been run yet. */
bool in_use(const uint8_t *address, size_t n);
/* As ibx_double_slow(), but cuMemcpyHtoD and cuMemcpyDtoH otherwise than all others. */
void slow_each(unsigned sync_us, unsigned async_us);
void streams_forget(int device);
/* Whether it is a stream of the current device. */
bool stream_is_here(void *handle);
/* Whether it is a stream, and of which kind. */
bool stream_known(void *handle, bool *blocking);
void events_forget(int device);
/* A copy of the types of IBX_CUDA_MEMORY_* as the call `name` makes it: what that returns. */
int copy_plain(const char *name, unsigned to_type, uint64_t to, unsigned from_type, uint64_t from,
               size_t n, void *stream, bool sync);

/* memory.c */

/* Whether kernels of the current device may use it. */
bool kernel_reaches(uint64_t address);
/* ... and whether it is memory of the host that is pinned, or of a device. */
unsigned kernel_type_of(uint64_t address);
int cuMemAlloc_v2(uint64_t *device, size_t n);
/* Maps the file as memory of that device; NULL: out of memory. */
struct allocation *memory_map(int fd, size_t n, int device);
void memory_unmap(struct allocation *a);

/* Addresses of the current device, at which nothing is; NULL: out of memory. */
struct allocation *memory_reserve(size_t n);

/* virtual.c */

/* Whether all of n bytes are mapped, with access; what is mapped there, if anything is. */
bool virtual_is_there(const struct allocation *a, size_t at, size_t n);
struct virtual_mapping {
    uint64_t begin;
    size_t n;
    unsigned long long id;
    int device;
};
bool virtual_mapping(const struct allocation *a, size_t at, struct virtual_mapping *is);

/* ipc.c */

/* What other processes open: a file that this one has. */
struct ipc_handle {
    unsigned kind;
    int process, fd, device;
    uint64_t file, n; /* its inode; bytes */
    uint64_t pool;    /* memory of one: the inode of that one's file */
    uint8_t unused[64 - 40];
};
struct ipc_handle ipc_handle_of(unsigned kind, int fd, size_t n, int device);
/* A descriptor; -1: it is none of that kind, or is gone. */
int ipc_handle_open(const struct ipc_handle *handle, unsigned kind);

/* capture.c */

/* enter() of what captures forbid, which ends them; and of what is forbidden to all. */
int enter_unsafe(const char *function);
int enter_context(const char *function);
/* What cuStreamIsCapturing() says. */
int capture_status(const void *stream);
/* Whether it is captured, and is no more: somebody has asked about its work, in whatever mode. Of
 * streams that were made the double does not mind that yet, as CUDA does. */
bool capture_spoilt(const void *stream);
/* Whether work for a stream is captured, or forbidden: then it is not run, and `code` is what the
 * call has to return. */
bool capture_takes(const void *stream, bool legacy, int *code);

#endif
