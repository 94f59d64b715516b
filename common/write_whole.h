/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* write(2) until all bytes are written. */
#ifndef IBX_COMMON_WRITE_WHOLE_H
#define IBX_COMMON_WRITE_WHOLE_H

#include <stddef.h>
#include <stdint.h>

/* At the offset of the descriptor, or at `at`: 0, or the error of the call that failed; -ENOSPC: it
 * took no byte. Some of them may be written then. */
int ibx_write_whole(int fd, const void *bytes, size_t length);
int ibx_write_whole_at(int fd, const void *bytes, size_t length, uint64_t at);
/* What to do after such an error: `room`, such as "free space there", unless a limit on the size of
 * files is the cause. */
const char *ibx_write_remedy(int code, const char *room);

#endif
