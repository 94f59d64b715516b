/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of QEMU's migration stream, which the destination's tool holds back until the commit.
 *
 * QEMU's stream ends with the byte QEMU_VM_EOF (0) and, for almost every machine type, a
 * description for debuggers behind it: QEMU_VM_VMDESCRIPTION (6), u32 length, big-endian, JSON. The
 * VM runs as soon as EOF was read, also when the description is cut off: then QEMU does not even
 * complain. So it is EOF that has to be held back, not just any last byte.
 */
#ifndef IBX_MIGRATE_DESTINATION_STATE_TAIL_H
#define IBX_MIGRATE_DESTINATION_STATE_TAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many of these bytes (the stream's latest) QEMU may have now, certainly without its EOF. When
 * the stream has `ended`, what is left over is EOF and what follows it, and `*whole` says whether
 * it was recognised; otherwise the stream is not QEMU's. */
size_t ibx_state_tail(const uint8_t *bytes, size_t length, bool ended, bool *whole);

#endif
