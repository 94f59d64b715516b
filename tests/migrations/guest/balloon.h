/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A driver for virtio-balloon (its legacy interface, by I/O ports). It gives back pages of its own,
 * which it has filled before, as many as the host asks for; takes them again when that wants fewer;
 * and looks at one of them a call for good. Nothing happens on a machine without a balloon.
 */
#ifndef IBX_TESTS_GUEST_BALLOON_H
#define IBX_TESTS_GUEST_BALLOON_H

#include <stdint.h>

#define BALLOON_POISON (1u << 4) /* pages are cleared as they are freed */

/* What it may give back: `pages` pages from this address on, which are filled now. It has these of
 * the features that the host offers. */
void balloon_init(uintptr_t base, uint32_t pages, uint32_t features);
/* Does what the host wishes, and waits until that is done. 0, or the address of a page that is not
 * what it must be. `changed`: how many are given back now, if that is another number than before.
 */
uintptr_t balloon_turn(uint32_t *now, int *changed);

#endif
