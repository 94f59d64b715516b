/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of the double of CUDA's runtime. */
#ifndef TESTS_DOUBLES_CUDA_RUNTIME_H
#define TESTS_DOUBLES_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORT __attribute__((visibility("default")))

/* A function of the driver's double; NULL: it has none of that name. */
void *driver_function(const char *name);
/* The device of a stream, by the driver's double. */
int device_of_stream(void *stream, int *device);
/* Around calls that are made on that device. */
void enter_device(int device);
void leave_device(void);
/* Whether this is the function of a kernel, or a name that the back end's plugin has given a
 * client's function. */
bool is_kernel(const void *function);
/* The function by which that kernel was looked up. */
const void *function_of_kernel(void *kernel);
/* Counts a call, notes its error for the thread, and returns it. */
int returns(int code);

int cudaMalloc(void **address, size_t n);
int cudaFree(void *address);
int cudaEventRecord(void *event, void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument);

struct ibx_cuda_memcpy3d;
/* arrays.c: the same copy between memory alone, with columns in bytes; false: it goes beyond an
 * array. */
bool copies_memory(const struct ibx_cuda_memcpy3d *copy, struct ibx_cuda_memcpy3d *memory);
/* cudaMalloc of memory for which cudaFree does not wait. */
int graph_malloc(void **address, size_t n);
/* The graph of that memory ends. */
void graph_free(void *address);

/* graph_copies.c */
int cudaStreamUpdateCaptureDependencies(void *stream, void *const *nodes, const void *edges,
                                        size_t count, unsigned flags);

/* graphs.c: whether the stream is captured, and the function with it. */
bool captures_function(void *stream, void (*function)(void *argument), void *argument);
/* Of a call that CUDA permits in no capture: its error in this one, which has no graph then. */
int captures_nothing(const void *stream);
/* Likewise a node that records the event, or waits for it. */
bool captures_event(void *stream, bool records, void *event);
bool captures_memory(void *stream, bool allocates, void *memory, size_t n);
/* Around a wait for the device, which ends captures that are under way, or begin meanwhile. False:
 * there was one. */
bool device_wait_begins(void);
void device_wait_ends(void);
/* Whether work may go into the legacy stream. If not, this ends the capture of a stream that the
 * legacy stream blocks. */
bool legacy_fits_captures(void);
/* Whether the thread may load a module. If not, this ends the capture that the thread has begun. */
bool load_fits_captures(void);
/* runtime.c: the error of a call that CUDA calls unsafe; 0: no capture forbids it. */
int is_unsafe(const char *function);
/* Whether the stream's capture has lost its graph: then CUDA takes no more work. */
bool capture_is_lost(const void *stream);

#endif
