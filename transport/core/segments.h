/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Hosts to which a network passes short packets and loses long ones without a word: a tunnel in the
 * way, and a firewall that drops what ICMP would tell. TCP sends such a packet again until it gives
 * up. A client that has met one makes its next connections there with shorter segments, for both
 * directions. All of this process's connections share what is known. From any thread.
 */
#ifndef IBX_TRANSPORT_CORE_SEGMENTS_H
#define IBX_TRANSPORT_CORE_SEGMENTS_H

struct sockaddr;

/* Client: segments of so many bytes are lost between this host and that one. The next connections
 * have shorter ones, down to 536 bytes. */
void ibx_segments_lost(const struct sockaddr *peer, unsigned bytes);
/* Before connect(2) to this host: limits the socket's segments. The most bytes of one; 0: none. */
unsigned ibx_segments_limit(int fd, const struct sockaddr *to);
/* Of a connected socket's peer: likewise. */
unsigned ibx_segments_limit_of(int fd);

#endif
