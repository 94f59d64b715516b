/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The runtime as a whole.
 *
 *   attach.c           what begins in the process when the plugin attaches
 *   endpoint.c         what GVirtuS's front end reads for each connection
 *   ends.c             the end of a device's context and of a stream
 *   process_end.c      exit(3) in forked children, and while threads are in calls
 *   composed.c         calls that are composed of others
 *   queries.c          queries of streams, devices and kernels
 *   versions.c         calls whose parameters differ between versions of CUDA
 *   outputs.c          checks of NULL outputs and of functions that are no kernels
 *   absent.c           calls that a remote GPU cannot have
 *   per_thread.c       the names of calls with a default stream for each thread
 *   libraries.c        libraries of kernels that a program loads (cudaLibraryLoadData)
 *   compiler.c         what the compiler of PTX says
 *   variables_without_kernels.c  variables of such libraries that have no kernel
 *   libcublaslt.c      libcublasLt.so for programs that link it
 *   search.c           libibx-search.so: where the loader finds CUDA's libraries
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------ outputs.c */

int cudaFuncGetAttributes(void *attributes, const void *function);

/* ---------------------------------------------------------------------------------- libraries.c */

/* The library (cudaLibrary_t) that has this kernel; NULL: the kernel is the program's own, or there
 * is no such kernel. */
void *ibx_frontend_library_of(const void *kernel);
/* Loads a kernel of the library. Returns what the driver returns for the image; 0 as well if nobody
 * can tell. *tried: whether there is a kernel. */
int ibx_frontend_library_try(void *library, bool *tried);
/* The library is used: it is compiled now, at the latest. Returns what the driver returns for it,
 * which cudaGetLastError() does not. */
int ibx_frontend_library_use(void *library);

/* ----------------------------------------------------------------------------------- compiler.c */

/* What options of the compiler (CUjit_option) ask for. The values are the program's. */
struct ibx_compiler_log {
    char *to;
    size_t room;
    void **filled; /* NULL: the program does not ask */
};
struct ibx_compiler {
    struct ibx_compiler_log info, error;
    void **time; /* NULL: the program does not ask for the time */
    bool is_verbose;
};
struct ibx_compiler ibx_frontend_compiler_of(unsigned count, const int *options, void **values);
/* Whether cuModuleLoadDataEx() refuses the options. */
bool ibx_frontend_compiler_is_wrong(const struct ibx_compiler *c, unsigned count,
                                    const int *options, void *const *values);
/* Tells the program how long it took to load an image, if this is PTX. */
void ibx_frontend_compiler_took(const struct ibx_compiler *c, const void *code, uint64_t ns);
/* Makes the logs empty, and the time 0. */
void ibx_frontend_compiler_is_silent(const struct ibx_compiler *c);
/* Takes back what the log of errors says. */
void ibx_frontend_compiler_no_error(const struct ibx_compiler *c);
/* Whether there is a log to write. */
bool ibx_frontend_compiler_is_asked(const struct ibx_compiler *c);
/* Writes what the back end's driver says of PTX. Returns what that driver returns, or 0 if this is
 * not known, as for any image other than PTX. `adds`: the PTX is added to a link, whose other
 * images may have what it lacks. To be called between ibx_frontend_drives() and _drove(). */
int ibx_frontend_compile(const struct ibx_compiler *c, const void *code, bool adds);
/* The same for a module. What the linker returns for an undefined symbol, the compiler returns
 * then. */
int ibx_frontend_compile_module(const struct ibx_compiler *c, const void *code);

/* --------------------------------------------------------------- variables_without_kernels.c */

/* The memory, on the current device, of a variable of n bytes in a library without kernels;
 * allocates it if needed. `fat`: the fat binary of the library, `size` bytes. *all: the list of the
 * variable's memory on each device, which _end() frees. Returns a CUDA error. */
struct variable_memory;
int ibx_frontend_variable_memory(struct variable_memory **all, const uint8_t *fat, size_t size,
                                 const char *name, size_t n, void **address);
void ibx_frontend_variable_memory_end(struct variable_memory *all);

#endif
