/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The list of loaded objects of the loader (ld.so), and the moments at which it has mapped new
 * objects and has not called their constructors yet. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_LOADER_H
#define IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_LOADER_H

#include "frontend-glue/preload/static_runtime/redirect.h"

#include <stdbool.h>

/* Called by this library's constructor. The objects that were loaded with the program have been
 * examined before, by an IFUNC resolver; if that did not run, they are examined now. `name`: of the
 * program, in case it was started by the loader's own name. False: objects that are opened later
 * will not be noticed. */
bool ibx_loader_begin(const char *name);
/* An object with a runtime that was not returned before; NULL: none is left. */
struct ibx_static_runtime *ibx_loader_untold(void);
/* static_runtime.c: called after each time that the loader has mapped objects, once
 * ibx_loader_begin() was called. It runs in the thread of the program that opens a library, under
 * the loader's lock. */
void ibx_loader_tell(void);

#endif
