/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/conn.h"

#include <linux/tcp.h> /* not <netinet/tcp.h>, which does not know the least */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

uint64_t ibx_conn_round_trip(const struct ibx_conn *conn)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    if (getsockopt(conn->handshake_socket, IPPROTO_TCP, TCP_INFO, &info, &length) ||
        length < offsetof(struct tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt) ||
        info.tcpi_min_rtt == UINT32_MAX)
        return 0;
    return info.tcpi_min_rtt * UINT64_C(1000);
}
