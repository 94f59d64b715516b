/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The runtime as a whole.
 *
 *   attach.c         the plugin attaches
 *   ends.c           the ends of a device's context and of a stream
 *   process_end.c    the end of a process: forked children, threads that are in calls
 *   composed.c       calls that consist of others
 *   queries.c        questions about streams, devices and kernels
 *   outputs.c        answers that have no place, questions about what is no kernel
 *   absent.c         calls that are not there for a remote GPU
 *   per_thread.c     the names of calls in programs with a default stream for each thread
 *   libraries.c      libraries of kernels that a program loads
 *   lone_variables.c variables of such libraries as have no kernel
 *   libcublaslt.c    libraries of that name
 *   search.c         libibx-search.so: where the loader finds libraries
 *   static_runtime.c, runtime_inside.c  programs and libraries with a runtime of their own
 *   runtime_answers.c  what functions of these return that lead nowhere
 *   loader.c, elf_functions.c, code.c, first_call.c  how that is found and changed, in the loader
 *                    (early.h); where its functions lead to at first
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_H

#include "frontend-glue/preload/preload.h"

/* ---------------------------------------------------------------------------------- libraries.c */

/* The library that has this kernel; NULL: it is the program's own, or none. */
void *ibx_frontend_library_of(const void *kernel);

/* ----------------------------------------------------------------------------- lone_variables.c */

/* The memory of a variable of n bytes on the current device: that of one in a library without
 * kernels, whose images are those of a fat binary of `size` bytes. *all: its memory on each device.
 */
struct lone_variable;
int ibx_frontend_lone_variable(struct lone_variable **all, const uint8_t *fat, size_t size,
                               const char *name, size_t n, void **address);
void ibx_frontend_lone_variables_end(struct lone_variable *all);

#endif
