/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Keeps handlers of GVirtuS's apart that register kernels and variables, or look them up.
 *
 * gvirtus_handlers/: what clients may make GVirtuS's handlers do, which check little.
 *
 *   registrations.c  keeps handlers apart that register kernels
 *   client_functions.c  ... and what clients register under the same addresses
 *   module_owners.c  whose modules these are
 *   request_shapes.c what handlers do with a request before CUDA checks it
 *   named_memory.c   which device memory GVirtuS's requests name
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REGISTRATIONS_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REGISTRATIONS_H

#include "frontend-glue/back_end/back_end.h"

/* What a handler of GVirtuS's does, by its request's name. */
enum registrations_use ibx_registrations_use(const char *name);
/* Around it; the former when all of the request has been read. One that changes them waits for
 * those that look up, for a bounded time. */
void ibx_registrations_begin(struct gpu_session *x);
void ibx_registrations_end(struct gpu_session *x);
/* Kernels were registered, or are no more; how often. */
void ibx_registrations_changed(void);
unsigned ibx_registrations_changes(void);

#endif
