/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* IPv4 and IPv6 addresses. From any thread. */
#ifndef IBX_COMMON_ADDRESS_H
#define IBX_COMMON_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* The bytes of the host's address, 4 or 16; NULL for another family. */
const void *ibx_address_host(const struct sockaddr *address, size_t *length);
/* The port, in network order, to be read or written; NULL for another family. */
in_port_t *ibx_address_port(struct sockaddr_storage *address);
/* From 4 or 16 bytes of a host's address; IPv4 in IPv6 becomes IPv4. */
void ibx_address_make(struct sockaddr_storage *address, const void *host, size_t length,
                      in_port_t port);
/* Whether both name one host; the ports do not count. */
bool ibx_address_same(const struct sockaddr *a, const struct sockaddr *b);
/* A socket's own address or its peer's, with the port; IPv4 in IPv6 as IPv4. False, and AF_UNSPEC,
 * when it has none, or one of another family. */
bool ibx_address_of_socket(int fd, bool peer, struct sockaddr_storage *address);

/* Whether a connected socket has met itself: TCP does that where nobody listens, if the kernel
 * gives the socket the port that it connects to. It is aborted then, and only to be closed. */
bool ibx_address_meets_itself(int fd);

#endif
