/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A handler of GVirtuS that registers kernels or variables runs neither beside another one nor
 * beside a handler that looks them up.
 *
 * gvirtus_handlers/: protects GVirtuS's handlers, which check little, against what clients ask of
 * them.
 *
 *   registrations.c     handlers that register kernels run one at a time
 *   client_functions.c  names for kernels that clients register under the same addresses
 *   module_owners.c     whose modules these are
 *   request_shapes.c    what handlers do with a request before CUDA checks it
 *   copy_structs.c      ... with the parameters of a copy as a struct
 *   library_shapes.c    ... with lengths of arrays of libraries
 *   library_arrays.c    ... with arrays that are shorter than their count
 *   fat_binaries.c      ... with offsets and lengths that lead out of a fat binary
 *   load_options.c      ... with options of cuModuleLoadDataEx that lead out of its memory
 *   named_memory.c      which device memory GVirtuS's requests name
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REGISTRATIONS_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REGISTRATIONS_H

#include "frontend-glue/back_end_common/back_end.h"

/* What a handler of GVirtuS does with registrations, by its request's name. */
enum registrations_use ibx_registrations_use(const char *name);
/* Around a handler; begin() is called when all of the request has been read. A handler that changes
 * registrations waits for those that look them up, for a bounded time. */
void ibx_registrations_begin(struct gpu_session *x);
void ibx_registrations_end(struct gpu_session *x);
/* changed(): kernels were registered or unloaded; changes(): how often that has happened. */
void ibx_registrations_changed(void);
unsigned ibx_registrations_changes(void);

#endif
