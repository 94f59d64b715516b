/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A connection that could be made again, over a network that is silent for a while: TCP doubles the
 * pause between two tries, so that it may notice only after twice the silence that the network is
 * back. A client that waits asks more often, by a request for another connection to the same
 * address. When that is answered and this connection's bytes still are not, this connection is
 * given up, and its user continues over another one.
 *
 * What the peer sends into the silence is tried again by its kernel, at its pace, and this end does
 * not know of it. So a client that has heard nothing for a while sends a frame that means nothing:
 * its kernel then knows whether that arrives.
 *
 * If this end's bytes are acknowledged before the request is answered, the peer's may still wait
 * for their next try. So the connection is given up, too, if then nothing comes on the lane, not
 * even the answer to a CHECK that is sent now: it would be behind those bytes. A peer that runs a
 * handler answers late, and loses little.
 *
 * A peer's process that is stopped or slow is no silence: its kernel acknowledges. A network may
 * also pass the small packets of a request and lose long ones (long_packets.c). So a young
 * connection is left alone for longer: or else each one would be given up in turn.
 */
#include "transport/tcp/tcp.h"

#include "common/clock.h"
#include "common/descriptor.h"

#include <linux/sockios.h>
#include <linux/tcp.h> /* not <netinet/tcp.h>, whose tcp_info is shorter */
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define IDLE_MS    300u  /* without a byte from the peer: then it is asked */
#define SILENT_MS  200u  /* since a retransmission without an answer was seen */
#define MUTE_MS    200u  /* since a silence is over, without a byte from the peer */
#define TICK_MS    10u   /* the kernel's times may be older by this much */
#define YOUNG_MS   1000u /* a connection that is no older when the silence begins ... */
#define PATIENT_MS IBX_TCP_PATIENT_MS /* ... is left alone for so long, but for one request */
#define DOUBTS     2u                 /* times PATIENT_MS, if it has not sent again meanwhile */
#define ANSWER_MS  100u               /* for a request for a connection, or 3 round trips */
#define TRIPS      3u

static bool info_of(const struct tcp_lane *lane, struct tcp_info *info)
{
    socklen_t length = sizeof(*info);
    return !getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, info, &length);
}

/* Whether bytes of this lane were sent again, and nothing has come since. Probes of a closed window
 * are none: a kernel answers few of them. */
static bool lane_silent(const struct tcp_lane *lane, struct tcp_info *info)
{
    int unacknowledged = 0;
    return !ioctl(lane->fd, SIOCOUTQ, &unacknowledged) && unacknowledged && info_of(lane, info) &&
           info->tcpi_retransmits && !info->tcpi_probes &&
           info->tcpi_last_data_sent < info->tcpi_last_ack_recv;
}

/* A forked child may have the socket open, too: closing it here would not end the watch. */
static void drop(struct tcp *tcp)
{
    struct tcp_probe *probe = &tcp->probe;
    if (probe->fd >= 0) {
        epoll_ctl(tcp->writable, EPOLL_CTL_DEL, probe->fd, NULL);
        close(probe->fd);
    }
    probe->fd = -1;
}

/* Asks for another connection; its answer wakes the sleeper. */
static void ask(struct tcp *tcp, const struct tcp_info *info, uint64_t now)
{
    struct tcp_probe *probe = &tcp->probe;
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    struct epoll_event event = {.events = EPOLLOUT};
    const unsigned trips_ms = TRIPS * (info->tcpi_rtt / 1000);
    if (getpeername(tcp->lanes[0].fd, (struct sockaddr *)&address, &length))
        return;
    probe->fd = ibx_descriptor_apart(
        socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    probe->began = now;
    probe->until = now + (trips_ms > ANSWER_MS ? trips_ms : ANSWER_MS) * IBX_NS_PER_MS;
    if (probe->fd >= 0 && !connect(probe->fd, (struct sockaddr *)&address, length))
        return;
    if (probe->fd < 0 || errno != EINPROGRESS ||
        epoll_ctl(tcp->writable, EPOLL_CTL_ADD, probe->fd, &event))
        drop(tcp);
}

/* 1: the request was answered; 0: not yet; -1: it has failed. */
static int answered(const struct tcp_probe *probe)
{
    struct pollfd look = {.fd = probe->fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);
    if (poll(&look, 1, 0) <= 0)
        return 0;
    return getsockopt(probe->fd, SOL_SOCKET, SO_ERROR, &error, &length) || error ? -1 : 1;
}

/* Whether a silence began while the connection was young. */
static bool is_young(uint64_t began, const struct tcp *tcp)
{
    return began - tcp->probe.born < YOUNG_MS * IBX_NS_PER_MS;
}

/* Decides what to do when another connection is answered and this lane is not. */
static void judge(struct tcp *tcp, const struct tcp_info *info, uint64_t now)
{
    struct tcp_lane *lane = tcp->probe.lane;
    const uint64_t silent_ms = (now - lane->unanswered_since) / IBX_NS_PER_MS;
    const bool young = is_young(lane->unanswered_since, tcp);
    if (!lane->answers_since)
        lane->answers_since = now;
    if (young && silent_ms < PATIENT_MS)
        return;
    if (young && ibx_tcp_long_packets_tried(lane, info, now))
        ibx_tcp_long_packets_lost(lane, info, info->tcpi_last_ack_recv);
    else if (!young || silent_ms >= DOUBTS * PATIENT_MS)
        ibx_tcp_fail(tcp, -ETIMEDOUT,
                     "nothing was acknowledged for %u ms, but a new connection is answered",
                     info->tcpi_last_ack_recv);
}

static void follow_up(struct tcp *tcp, const struct tcp_info *info, uint64_t now)
{
    struct tcp_probe *probe = &tcp->probe;
    const int answer = answered(probe);
    const bool since = now - info->tcpi_last_ack_recv * IBX_NS_PER_MS > probe->began;
    if (answer > 0 && !since)
        judge(tcp, info, now);
    if (answer || now >= probe->until)
        drop(tcp);
}

/* Sends a frame that means nothing, if nothing has come for a while. */
static void ping(struct tcp *tcp)
{
    struct tcp_lane *first = &tcp->lanes[0];
    struct tcp_info info;
    if (tcp->wrote || ibx_tcp_lane_has_output(first) || !info_of(first, &info) ||
        info.tcpi_unacked || info.tcpi_last_data_recv < IDLE_MS ||
        info.tcpi_last_ack_recv < IDLE_MS)
        return;
    ibx_tcp_pad_once(first);
}

void ibx_tcp_probe_init(struct tcp *tcp)
{
    const struct ibx_options *options = ibx_link_options(tcp->link);
    tcp->probe = (struct tcp_probe){.fd = -1, .born = ibx_now_ns()};
    tcp->probe.able = options->follow_address && ibx_link_role(tcp->link) == IBX_ROLE_CLIENT &&
                      tcp->timer >= 0 && !tcp->same_host;
}

void ibx_tcp_probe_fini(struct tcp *tcp)
{
    drop(tcp);
}

/* The lane is not silent, or not any more. */
static void back(struct tcp *tcp, struct tcp_lane *lane, uint64_t now)
{
    const uint64_t began = lane->unanswered_since;
    struct tcp_info info;
    lane->unanswered_since = 0;
    if (began && tcp->places && !is_young(began, tcp) && now - began >= SILENT_MS * IBX_NS_PER_MS) {
        lane->back_since = now;
        ibx_tcp_check_ask(lane); /* while others are busy, no CHECK has been sent on this lane */
    }
    if (!lane->back_since)
        return;
    const uint64_t back_ms = (now - lane->back_since) / IBX_NS_PER_MS;
    const uint64_t since_ms = (now - lane->unanswered_at) / IBX_NS_PER_MS + TICK_MS;
    if (!info_of(lane, &info) || info.tcpi_last_data_recv <= since_ms)
        lane->back_since = 0;
    else if (info.tcpi_notsent_bytes)
        lane->back_since = now; /* a CHECK may be behind them */
    else if (back_ms >= MUTE_MS + TRIPS * (info.tcpi_rtt / 1000))
        ibx_tcp_fail(tcp, -ETIMEDOUT, "nothing has come for %u ms, in which the network was silent",
                     info.tcpi_last_data_recv);
}

/* The lane that has been silent for longest; NULL: none is. If packets are lost now on one lane and
 * then on another, no lane is silent for long. */
static struct tcp_lane *most_silent(struct tcp *tcp, uint64_t now, struct tcp_info *info)
{
    struct tcp_lane *most = NULL;
    for (unsigned i = 0; i <= tcp->lane_count; i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        struct tcp_info of_lane;
        if (!lane_silent(lane, &of_lane)) {
            back(tcp, lane, now);
            continue;
        }
        if (!lane->unanswered_since)
            lane->unanswered_since = now;
        lane->unanswered_at = now;
        if (lane->back_since) /* it is silent again */
            lane->back_since = now;
        if (most && most->unanswered_since <= lane->unanswered_since)
            continue;
        most = lane;
        *info = of_lane;
    }
    return most;
}

void ibx_tcp_probe_check(struct tcp *tcp, uint64_t now)
{
    struct tcp_probe *probe = &tcp->probe;
    struct tcp_info info = {0};
    struct tcp_lane *lane = most_silent(tcp, now, &info);
    if (!lane || (probe->fd >= 0 && probe->lane != lane))
        drop(tcp);
    if (!lane) {
        if (!tcp->places) /* else loss.c does */
            ping(tcp);
        return;
    }
    const bool known = is_young(lane->unanswered_since, tcp) && lane->answers_since;
    const unsigned patient_ms = known ? PATIENT_MS : SILENT_MS;
    if (probe->fd >= 0)
        follow_up(tcp, &info, now);
    probe->lane = lane;
    if (!tcp->status && probe->fd < 0 && now - lane->unanswered_since >= patient_ms * IBX_NS_PER_MS)
        ask(tcp, &info, now);
}
