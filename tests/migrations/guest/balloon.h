/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A driver for virtio-balloon (its legacy interface, by I/O ports). It gives back pages of its own,
 * which it has filled before, as many as the host asks for. It takes them again when the host wants
 * fewer. With each call it also checks one of them. Nothing happens on a machine without a balloon.
 */
#ifndef IBX_TESTS_GUEST_BALLOON_H
#define IBX_TESTS_GUEST_BALLOON_H

#include <stdint.h>

#define BALLOON_POISON (1u << 4) /* pages are cleared as they are freed */

/* It may give back `pages` pages from this address on, which are filled now. `features`: those that
 * it takes if the host offers them. */
void balloon_init(uintptr_t base, uint32_t pages, uint32_t features);
/* Does what the host wishes, and waits until that is done. Returns 0, or the address of a page with
 * wrong bytes. `now`: how many pages are given back; `changed`: whether that is another number than
 * before. */
uintptr_t balloon_turn(uint32_t *now, int *changed);

#endif
