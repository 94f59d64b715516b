/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * memcpy(3) to memory that a device reads next, and this processor does not:
 * past its caches. A device's reads of lines that a core has changed and still
 * holds are half as fast as of others, and to fetch a line first that is
 * overwritten as a whole takes time as well.
 */
#ifndef IBX_COMMON_STREAM_COPY_H
#define IBX_COMMON_STREAM_COPY_H

#include <stddef.h>

/* Devices and other processors see all of it when this returns. */
void ibx_stream_copy(void *to, const void *from, size_t n);

#endif
