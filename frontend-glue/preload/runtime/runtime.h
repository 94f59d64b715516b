/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The runtime as a whole.
 *
 *   attach.c           what begins in the process when the plugin attaches
 *   ends.c             the end of a device's context and of a stream
 *   process_end.c      exit(3) in forked children, and while threads are in calls
 *   composed.c         calls that are composed of others
 *   queries.c          queries of streams, devices and kernels
 *   outputs.c          checks of NULL outputs and of functions that are no kernels
 *   absent.c           calls that a remote GPU cannot have
 *   per_thread.c       the names of calls with a default stream for each thread
 *   libraries.c        libraries of kernels that a program loads (cudaLibraryLoadData)
 *   variables_without_kernels.c  variables of such libraries that have no kernel
 *   libcublaslt.c      libcublasLt.so for programs that link it
 *   search.c           libibx-search.so: where the loader finds CUDA's libraries
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_H

#include "frontend-glue/preload/preload.h"

/* ---------------------------------------------------------------------------------- libraries.c */

/* The library (cudaLibrary_t) that has this kernel; NULL: the kernel is the program's own, or there
 * is no such kernel. */
void *ibx_frontend_library_of(const void *kernel);
/* Whether note_works() was called for the library. */
bool ibx_frontend_library_works(const void *library);
void ibx_frontend_library_note_works(const void *library);
/* The PTX, with a NUL, of a library that is PTX alone; NULL: it is another one, or there is none.
 * It is valid until the library is unloaded. */
const void *ibx_frontend_library_ptx(const void *library);

/* --------------------------------------------------------------- variables_without_kernels.c */

/* The memory, on the current device, of a variable of n bytes in a library without kernels;
 * allocates it if needed. `fat`: the fat binary of the library, `size` bytes. *all: the list of the
 * variable's memory on each device, which _end() frees. Returns a CUDA error. */
struct variable_memory;
int ibx_frontend_variable_memory(struct variable_memory **all, const uint8_t *fat, size_t size,
                                 const char *name, size_t n, void **address);
void ibx_frontend_variable_memory_end(struct variable_memory *all);

#endif
