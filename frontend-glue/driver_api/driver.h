/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * driver_api/: CUDA's driver API (cuInit, cuModuleLoadData, cuLaunchKernel ...), made of the calls
 * of the runtime that preload/ has. A program that calls the driver uses the remote GPU by it, and
 * may call the runtime as well: streams, events, memory, arrays and graphs are the same handles in
 * both, a CUmodule or CUlibrary is a cudaLibrary_t, and a CUfunction or CUkernel is what
 * cudaLaunchKernel() takes.
 *
 *   init.c          cuInit, versions; loads GVirtuS's libcudart if the program has not
 *   errors.c        CUresult, its names, and the runtime's last error, which stays as it was
 *   contexts.c      contexts, and each thread's stack of them
 *   green_contexts.c  contexts of a part of a device
 *   devices.c       devices and their attributes
 *   memory.c, pointers.c  memory, and questions about it
 *   copies.c, planes.c, sets.c  copies of rows, of planes, and memory that is set
 *   modules.c, links.c  modules and libraries of kernels
 *   functions.c, launches.c  kernels
 *   streams.c, arrays.c, textures.c, graphs.c, pools.c  the other things of a context
 *   stream_values.c  words in memory that streams write, and wait for
 *   per_thread.c    names of calls in programs with a default stream for each thread
 *   entry_points.c  cuGetProcAddress
 *   virtual_memory.c  memory that is mapped to reserved addresses
 *   tensor_maps.c   tensor maps
 *   absent.c        calls that are not supported over a remote GPU
 *   libcuda.c       libcuda.so.1, which has nothing of its own
 *
 * There are circles of calls. Every call begins by errors.c, which has contexts.c bring the
 * thread's context up to date and asks init.c whether the driver is initialized; both of these end
 * their calls by errors.c. contexts.c has modules.c and textures.c end what a context owns, and
 * these ask contexts.c which context is current. devices.c asks virtual_memory.c for two
 * attributes, and virtual_memory.c has devices.c check numbers of devices.
 */
#ifndef IBX_FRONTEND_GLUE_DRIVER_API_DRIVER_H
#define IBX_FRONTEND_GLUE_DRIVER_API_DRIVER_H

#include "frontend-glue/preload/preload.h"
#include "frontend-glue/session/textures.h"

/* CUDA's header has the prototypes of what is exported. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORTED __attribute__((visibility("default")))
/* Another name of a call. */
#define SAME_AS(other, call) EXPORTED extern __typeof__(call) other __attribute__((alias(#call)));

/* CUresult, beside the numbers that it shares with cudaError_t. */
#define CUDA_NOT_INITIALIZED      3
#define CUDA_NO_DEVICE            100
#define CUDA_CONTEXT_IS_DESTROYED 709

/* GVirtuS's, and those of preload/runtime/outputs.c. */
int cudaDriverGetVersion(int *version);
int cudaRuntimeGetVersion(int *version);
int cudaEventElapsedTime(float *ms, void *from, void *to);
int cudaFuncSetCacheConfig(const void *function, int config);
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                           int threads, size_t shared,
                                                           unsigned flags);
int cudaMemGetInfo(size_t *left, size_t *all);
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest);

/* ------------------------------------------------------------------------------- calls */

/* Around each call of the driver. begin(): CUDA_SUCCESS, or the error that the call has to return
 * at once. With `in_context` the thread needs a current context, whose device is selected. end()
 * converts rc, an error of the runtime or 0, to a CUresult, and restores cudaGetLastError(). */
struct ibx_driver_call {
    struct ibx_frontend_errors errors;
};
int ibx_driver_begin(struct ibx_driver_call *call, bool in_context);
int ibx_driver_end(const struct ibx_driver_call *call, int begun, int rc);

#define MADE(in_context, expression)                                                               \
    __extension__({                                                                                \
        struct ibx_driver_call driver_call;                                                        \
        const int begun = ibx_driver_begin(&driver_call, in_context);                              \
        ibx_driver_end(&driver_call, begun, begun ? begun : (expression));                         \
    })
/* The result of a call that the runtime makes in the thread's context, or without one: the driver
 * frees memory and arrays, and answers about modules, functions and pools, in the context of
 * these. */
#define IN_CONTEXT(expression) MADE(true, expression)
#define ANYWHERE(expression)   MADE(false, expression)
/* In the context of the stream or event that the call names, as the driver does: then the thread
 * need not have a current context (JAX's host functions call so). Default streams have no
 * context. */
#define IN_CONTEXT_OF(handle, expression) MADE((uintptr_t)(handle) <= 2, expression)

/* After a copy in the calling thread's own stream: waits for it. */
static inline int ibx_driver_in_own(int rc)
{
    return rc ? rc : cudaStreamSynchronize(CUDA_STREAM_PER_THREAD);
}

/* The CUresult for an error of the runtime or of this library. */
int ibx_driver_result(int rc);

/* --------------------------------------------------------------------------- init.c */

/* Whether cuInit() or the runtime was called in this process. */
bool ibx_driver_initialized(void);
void ibx_driver_set_initialized(void);

/* ----------------------------------------------------------------------- contexts.c */

struct ibx_driver_context;
/* The thread's current context; NULL: there is none. */
struct ibx_driver_context *ibx_driver_current(void);
int ibx_driver_device(const struct ibx_driver_context *context);
/* To be called before a call: adopts the device that the runtime has selected meanwhile. An error:
 * there is no context. */
int ibx_driver_adopt(void);
/* The runtime was used: if the thread has no context, the primary one of its device becomes
 * current. */
void ibx_driver_runtime_used(void);
bool ibx_driver_is_context(const void *context);
/* The device of a context, or of the current one for NULL; -1: it is no context. */
int ibx_driver_device_of(const void *context);
/* The primary context of that device; NULL: there is no such device. */
void *ibx_driver_primary(int device);
/* Creates a green context, of so many multiprocessors, which does not become current. It retains
 * the primary one. */
int ibx_driver_create_part(void **context, int device, unsigned multiprocessors);
/* The number of its multiprocessors; 0: it is no context, or none of a part. */
unsigned ibx_driver_part(const void *context);
unsigned long long ibx_driver_id(const void *context);
int ibx_driver_destroy(struct ibx_driver_context *context);

/* ------------------------------------------------------------------ green_contexts.c */

/* The green context of a stream; NULL: it has none. */
void *ibx_driver_part_of_stream(const void *stream);

/* ------------------------------------------------------------------------- devices.c */

/* CUDA_SUCCESS if the device exists, or an error. */
int ibx_driver_check_device(int device);
int ibx_driver_attribute(int *value, int attribute, int device);

/* ------------------------------------------------------------------------- textures.c */

int ibx_driver_end_texture(void *handle);
int ibx_driver_end_surface(void *handle);

/* ------------------------------------------------------------------------- arrays.c */

/* CUDA_ARRAY3D_DESCRIPTOR. CUDA_ARRAY_DESCRIPTOR has only some of these members. */
struct ibx_driver_array {
    size_t width, height, depth;
    unsigned format, channels, flags;
};
/* Bytes of an element of an array; 0: *rc is the error. *known: this library knows the array;
 * otherwise only the back end does. */
size_t ibx_driver_element(const void *array, bool *known, int *rc);

/* ------------------------------------------------------------------------- planes.c */

/* CUmemorytype */
enum { IN_HOST = 1, IN_DEVICE, IN_ARRAY, UNIFIED };
struct ibx_driver_side {
    size_t x, y, z; /* x in bytes */
    int type;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch, height;
};
struct ibx_driver_planes {
    struct ibx_driver_side from, to;
    size_t width, rows, planes; /* width in bytes */
};
/* CUDA_MEMCPY2D */
struct ibx_driver_memcpy2d {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    uint64_t from_device;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_type;
    void *to_host;
    uint64_t to_device;
    void *to_array;
    size_t to_pitch, width, rows;
};
/* CUDA_MEMCPY3D */
struct ibx_driver_memcpy3d {
    size_t from_x, from_y, from_z, from_level;
    int from_type;
    const void *from_host;
    uint64_t from_device;
    void *from_array, *reserved_from;
    size_t from_pitch, from_height;
    size_t to_x, to_y, to_z, to_level;
    int to_type;
    void *to_host;
    uint64_t to_device;
    void *to_array, *reserved_to;
    size_t to_pitch, to_height;
    size_t width, rows, planes;
};
/* Converts the copy to the runtime's form. An error: the runtime cannot make it. */
int ibx_driver_memcpy3d(struct ibx_cuda_memcpy3d *copy, const struct ibx_driver_memcpy3d *planes);
/* The other way round. */
int ibx_driver_planes_of(struct ibx_driver_memcpy3d *planes, const struct ibx_cuda_memcpy3d *copy);

/* ----------------------------------------------------------------------- launches.c */

/* CUlaunchConfig */
struct ibx_driver_launch {
    struct dim3 grid, block;
    unsigned shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned count;
};
/* Converts the launch to the runtime's form; false: it is invalid. */
bool ibx_driver_config(struct launch_config *config, const struct ibx_driver_launch *launch);

#define IBX_DRIVER_FEW 64u
/* Pointers to arguments that were passed as one buffer in the kernel's layout (`extra`). */
struct ibx_driver_arguments {
    void *few[IBX_DRIVER_FEW], **more;
    void **all; /* either of these */
};
/* Whether arguments are passed in this way: some programs pass an empty list beside separate
 * arguments. */
bool ibx_driver_is_packed(void *const *extra);
/* unpack() finds the arguments; on success unpacked() frees what that has allocated. */
int ibx_driver_unpack(struct ibx_driver_arguments *a, const void *function, void **extra);
void ibx_driver_unpacked(struct ibx_driver_arguments *a);
/* To be called before a library is unloaded: what was set for launches of its kernels ends. */
void ibx_driver_launches_forget(const void *library);

/* ---------------------------------------------------------------- modules.c */

/* Unloads a library or module. Returns the runtime's error. */
int ibx_driver_unload(void *library);

/* ---------------------------------------------------------------- virtual_memory.c */

/* Whether the back end can map memory to reserved addresses. */
bool ibx_driver_maps_memory(int device);
/* ... and shares it with other processes. */
bool ibx_driver_exports_memory(int device);
/* What is at an address. MAPPED: *is describes the mapping. */
enum ibx_driver_place { NOT_RESERVED, RESERVED, MAPPED };
struct ibx_driver_mapping {
    uint64_t begin, n;
    uint64_t number, memory; /* unique numbers of the mapping, and of its memory */
    int device, access;
};
enum ibx_driver_place ibx_driver_mapping(uint64_t address, struct ibx_driver_mapping *is);

/* ------------------------------------------------------------------------ absent.c */

/* Whether it is a call that is exported, returns CUDA_ERROR_NOT_SUPPORTED, and is not found by its
 * name in cuGetProcAddress(). */
bool ibx_driver_is_absent(const char *name);

#endif
