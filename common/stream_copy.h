/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* memcpy(3) by stores that bypass the caches, to memory that a device reads next and this processor
 * does not. A device reads lines that a core has changed and still holds at half the speed of
 * others. Also, it saves fetching each line that is then overwritten as a whole. */
#ifndef IBX_COMMON_STREAM_COPY_H
#define IBX_COMMON_STREAM_COPY_H

#include <stddef.h>

/* On return, devices and other processors see all of it. */
void ibx_stream_copy(void *to, const void *from, size_t n);

#endif
