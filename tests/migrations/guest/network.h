/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A driver for virtio-net (its legacy interface, by I/O ports), which sends, and receives nothing.
 * Like an operating system's, it remembers its MAC, whatever the device has. Nothing happens on a
 * machine without such a card.
 */
#ifndef IBX_TESTS_GUEST_NETWORK_H
#define IBX_TESTS_GUEST_NETWORK_H

#include <stdint.h>

#define NETWORK_MAC_TEXT 18u /* "52:54:00:12:34:56" */

void network_init(void);
/* Returns 1 if the carrier has come or gone since the last call; *link is 1 if there is a
 * carrier. */
int network_link(uint32_t *link);
/* Returns 1 if the card had another MAC, and now has this one. */
int network_take(const char *mac);
/* A broadcast frame with its MAC; waits until the device has taken it. */
void network_send(void);

#endif
