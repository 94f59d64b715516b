/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_DLSYM_H
#define IBX_FRONTEND_GLUE_PRELOAD_DLSYM_H

/* The C library's dlsym(3), in which libcudart has GVirtuS's functions. RTLD_NEXT: behind this
 * library. */
void *ibx_frontend_dlsym(void *handle, const char *name);
/* From here on dlsym(3) finds this library's functions. Its constructor calls that; and whoever
 * needs them in another library's, which may run before. */
void ibx_frontend_dlsym_begin(void);

#endif
