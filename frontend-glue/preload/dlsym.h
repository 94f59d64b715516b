/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_DLSYM_H
#define IBX_FRONTEND_GLUE_PRELOAD_DLSYM_H

#include <link.h>

/* The C library's dlsym(3): a lookup in libcudart finds GVirtuS's functions. RTLD_NEXT means the
 * libraries after this one. */
void *ibx_frontend_dlsym(void *handle, const char *name);
/* From this call on dlsym(3) finds this library's functions. This library's constructor makes it; a
 * function that another library's constructor may call earlier has to make it itself. */
void ibx_frontend_dlsym_begin(void);
/* Python looks up the function by which a module begins, "PyInit_" and its name, in an object. Sets
 * who says which function it finds instead of `begin`, from now on. */
typedef void *ibx_python_begins(const struct link_map *object, void *begin);
void ibx_frontend_dlsym_python(ibx_python_begins *python_begins);

#endif
