/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* IPv4 and IPv6 addresses. From any thread. */
#ifndef IBX_COMMON_ADDRESS_H
#define IBX_COMMON_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* The bytes of the host's address, and in *length their number, 4 or 16; NULL for another
 * family. */
const void *ibx_address_host(const struct sockaddr *address, size_t *length);
/* The port, in network order, to be read or written; NULL for another family. */
in_port_t *ibx_address_port(struct sockaddr_storage *address);
/* Makes an address of the 4 or 16 bytes of a host's address and a port in network order; IPv4 in
 * IPv6 becomes IPv4. */
void ibx_address_make(struct sockaddr_storage *address, const void *host, size_t length,
                      in_port_t port);
/* Whether both name one host; the ports do not count. */
bool ibx_address_same(const struct sockaddr *a, const struct sockaddr *b);
/* The address and port of a socket or of its peer; IPv4 in IPv6 becomes IPv4. False, with
 * AF_UNSPEC: the socket has no address, or one of another family. */
bool ibx_address_of_socket(int fd, bool peer, struct sockaddr_storage *address);

/* Whether a TCP socket is connected to itself. That happens where nobody listens, if the kernel
 * gives the socket the port that it connects to. close(2) then resets the connection, and nothing
 * else is to be done with the socket. */
bool ibx_address_meets_itself(int fd);

#endif
