/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where functions of a runtime in a program or library lead to that are in no libcudart. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_ANSWERS_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_ANSWERS_H

/* Of that name, where there is no libcudart: cudaErrorInsufficientDriver, as without a driver. */
void *ibx_inside_unreached(const char *name);
/* Where there is one, which lacks it: cudaErrorNotSupported, and a line that names it. */
void *ibx_inside_lacked(const char *name);

#endif
