/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The loader's (ld.so's) list of objects, and the moments at which it has mapped new ones and has
 * not called their constructors yet. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_LOADER_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_LOADER_H

#include "frontend-glue/preload/runtime/runtime_inside.h"

#include <stdbool.h>

/* What this library's constructor calls, after all that was loaded with the program has been looked
 * at; or now, if the loader has left that out. `name`: of the program, where the loader was called
 * by its own. False: what is opened from now on will not be seen. */
bool ibx_loader_begin(const char *name);
/* One that has not been told of; NULL: there is none. */
struct ibx_inside *ibx_loader_untold(void);
/* From ibx_loader_begin() on, as the loader has mapped something: in a thread of the program's that
 * opens a library, which has the loader's lock. */
void ibx_loader_tell(void);

#endif
