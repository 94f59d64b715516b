/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A network that passes short packets and loses long ones: where one of its links takes shorter
 * packets than the hosts send, and what ICMP tells of it is dropped on its way. Connections are
 * made and answered, acknowledgements and keepalives come, and no long packet arrives, however
 * often it is sent again. TCP finds out by itself where net.ipv4.tcp_mtu_probing is 1 or 2; it is 0
 * by default.
 *
 * So a lane that sends again and has nothing new acknowledged ends its connection, though the
 * peer's host answers. Where a connection can be made again, that is soon, and the next one to this
 * host has shorter segments (core/segments.c).
 *
 * A network may also have been silent for a while. When it is back, another packet of the peer may
 * come first: so a lane is given up only if this end has sent again since then, in vain.
 *
 * A peer that takes nothing is another matter: its window is closed, and what is sent then is a
 * probe of that. Kernels before 5.4 do not tell the window, and end no connection here. A receiver
 * before Linux 6.6 that has no memory for what fits into its window (net.ipv4.tcp_mem is used up,
 * or tcp_adv_win_scale is 4 or more) drops it without a word, whatever its process does: that looks
 * as if the network lost it, here and in peer_death.c and probe.c.
 */
#include "transport/tcp/tcp.h"

#include "common/address.h"
#include "common/clock.h"
#include "transport/core/segments.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h> /* not <netinet/tcp.h>, whose tcp_info is shorter */
#include <netinet/in.h>
#include <sys/ioctl.h>

#define LIMIT_MIN   2000u /* ms */
#define SETTLE_MS   1000u /* after so long, what was on its way has come */
#define ANSWER_MS   200u  /* for an acknowledgement, or 3 round trips */
#define TRIPS       3u
#define SHORT_BYTES 512u /* every network passes so much */

/* How long a lane may be stuck. Other checks wait for an answer for timeout_ms; this one waits for
 * less, because its error says more. */
static unsigned limit_ms(const struct tcp *tcp)
{
    const struct ibx_options *options = ibx_link_options(tcp->link);
    const unsigned most = options->timeout_ms / 4 * 3;
    const unsigned ms = most > LIMIT_MIN ? most : LIMIT_MIN;
    return options->follow_address && ms > IBX_TCP_PATIENT_MS ? IBX_TCP_PATIENT_MS : ms;
}

/* How many segments have come from the peer's host, on whatever lane. Keepalives count, too, which
 * acknowledge nothing. */
static uint64_t segments_of(const struct tcp *tcp)
{
    uint64_t count = 0;
    for (unsigned i = 0; i <= tcp->lane_count; i++) {
        struct tcp_info info = {0};
        socklen_t length = sizeof(info);
        if (!getsockopt(tcp->lanes[i].fd, IPPROTO_TCP, TCP_INFO, &info, &length))
            count += info.tcpi_segs_in;
    }
    return count;
}

/* Resets the connection at once. A kernel that encrypts may refuse that; then closing resets it. */
void ibx_tcp_reset(struct tcp_lane *lane)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    const struct linger at_once = {.l_onoff = 1};
    setsockopt(lane->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    connect(lane->fd, &none, sizeof(none));
}

void ibx_tcp_long_packets_lost(struct tcp_lane *lane, const struct tcp_info *info, unsigned ms)
{
    struct tcp *tcp = lane->tcp;
    struct sockaddr_storage peer;
    int left = 0;
    ioctl(lane->fd, SIOCOUTQ, &left);
    const unsigned segment =
        (unsigned)left < info->tcpi_snd_mss ? (unsigned)left : info->tcpi_snd_mss;
    tcp->stuck = true;
    if (segment <= SHORT_BYTES) {
        ibx_tcp_fail(tcp, -ETIMEDOUT,
                     "%d bytes were not acknowledged for %u ms, though the peer's host answers",
                     left, ms);
        return;
    }
    if (ibx_link_role(tcp->link) == IBX_ROLE_CLIENT && ibx_address_of_socket(lane->fd, true, &peer))
        ibx_segments_lost((struct sockaddr *)&peer, info->tcpi_snd_mss);
    ibx_tcp_fail(tcp, -EMSGSIZE,
                 "%d bytes were not acknowledged for %u ms, though the peer's host answers: the "
                 "network loses packets with %u bytes of data; set net.ipv4.tcp_mtu_probing to 1 "
                 "at both hosts, and see that the peer's has memory for TCP (net.ipv4.tcp_mem)",
                 left, ms, segment);
}

void ibx_tcp_long_packets_none(struct tcp_lane *lane)
{
    lane->stuck_since = lane->answers_since = lane->segments = 0;
}

bool ibx_tcp_long_packets_tried(const struct tcp_lane *lane, const struct tcp_info *info,
                                uint64_t now)
{
    const unsigned trips_ms = TRIPS * (info->tcpi_rtt / 1000), sent_ms = info->tcpi_last_data_sent;
    return lane->answers_since && now - sent_ms * IBX_NS_PER_MS > lane->answers_since &&
           sent_ms > (trips_ms > ANSWER_MS ? trips_ms : ANSWER_MS);
}

void ibx_tcp_long_packets_check(struct tcp_lane *lane, const struct tcp_info *info, uint64_t now)
{
    const bool sends_again = info->tcpi_retransmits && !info->tcpi_probes && info->tcpi_snd_wnd;
    if (!sends_again || info->tcpi_bytes_acked != lane->acknowledged)
        ibx_tcp_long_packets_none(lane);
    lane->acknowledged = info->tcpi_bytes_acked;
    if (!sends_again)
        return;
    if (!lane->stuck_since)
        lane->stuck_since = now;
    const uint64_t ms = (now - lane->stuck_since) / IBX_NS_PER_MS;
    if (ms < SETTLE_MS)
        return;
    const uint64_t segments = segments_of(lane->tcp);
    if (!lane->segments)
        lane->segments = segments;
    if (!lane->answers_since && segments != lane->segments)
        lane->answers_since = now;
    if (ms >= limit_ms(lane->tcp) && ibx_tcp_long_packets_tried(lane, info, now))
        ibx_tcp_long_packets_lost(lane, info, (unsigned)ms);
}
