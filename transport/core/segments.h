/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Hosts to which a network passes short packets and silently loses long ones: because of a tunnel
 * on the way, and a firewall that drops the ICMP messages about it. TCP repeats such a packet until
 * it gives up. A client that has met such a host makes its next connections there with shorter
 * segments, in both directions. All connections of this process share this knowledge. From any
 * thread.
 */
#ifndef IBX_TRANSPORT_CORE_SEGMENTS_H
#define IBX_TRANSPORT_CORE_SEGMENTS_H

struct sockaddr;

/* For a client: segments of `bytes` bytes are lost between this host and the peer. The next
 * connections there have shorter ones, down to 536 bytes. */
void ibx_segments_lost(const struct sockaddr *peer, unsigned bytes);
/* Call it before connect(2) to this host: limits the socket's segments. Returns the limit in bytes;
 * 0: there is none. */
unsigned ibx_segments_limit(int fd, const struct sockaddr *to);
/* The same limit for the peer of a connected socket, which is left as it is. */
unsigned ibx_segments_limit_of(int fd);

#endif
