/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A driver for the first IDE disk of a PC (bus mastering, by polling). It reads one part of the
 * disk after the other into buffers of its own, or writes them, one at a time and without waiting.
 * With each call it checks one of the other buffers. Nothing happens on a machine without such a
 * disk.
 */
#ifndef IBX_TESTS_GUEST_DISK_H
#define IBX_TESTS_GUEST_DISK_H

#include <stdint.h>

#define DISK_SECTOR  512u
#define DISK_BUFFERS 8u
#define DISK_BYTES   (32u << 10) /* of a buffer, and of each transfer */
#define DISK_PARTS   512u        /* of the disk, of so many bytes each */

/* The 32-bit word at such an index of the disk. */
static inline uint32_t disk_word(uint32_t index)
{
    return (index * 2654435761u) ^ 0x9e3779b9u;
}

/* The part of the disk that this transfer moves; transfers are numbered from 0. */
static inline uint32_t disk_part(uint32_t transfer)
{
    return (transfer * 37u) % DISK_PARTS;
}

/* The buffers are at this address, below 4 GiB. */
void disk_init(uintptr_t at, int to_write);
/* Returns 0, or 1 + the part of the disk that a buffer should hold and does not. `transfers`: how
 * many have ended; `changed`: whether any has since the last call. */
uint32_t disk_turn(uint32_t *transfers, int *changed);

#endif
