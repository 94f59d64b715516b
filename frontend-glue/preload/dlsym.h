/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_DLSYM_H
#define IBX_FRONTEND_GLUE_PRELOAD_DLSYM_H

/* The C library's dlsym(3), in which libcudart has GVirtuS's functions. RTLD_NEXT: behind this
 * library. */
void *ibx_frontend_dlsym(void *handle, const char *name);

#endif
