/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether the host behind a socket still answers.
 *
 * An idle socket has the kernel's keepalive. One with bytes on their way has not,
 * and TCP_USER_TIMEOUT is no substitute: it also ends a connection to a process
 * that is stopped or slow, whose window is full and whose kernel answers each of
 * our probes. So as long as bytes are unacknowledged this looks at them itself,
 * LOOKS times in timeout_ms: silent is who leaves a retransmission or two window
 * probes unanswered, and dead who has been silent for all of timeout_ms.
 *
 * The kernel doubles the pause between two probes, up to two minutes. A host that
 * dies behind a full window is therefore missed on another, idle lane, and only
 * where there is none by the next probes.
 */
#include "transport/tcp/tcp.h"

#include "common/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOKS 8u
/* A kernel answers probes twice a second at most, so these are no sign: two in a row are, and for
 * so long, since the pause between the first ones may be of milliseconds. */
#define PROBES_MIN  2u
#define SILENCE_MIN 2000u /* ms */
/* Nothing has come on lane 0 for so long, and the peer has closed another one. */
#define PARTING_MS 2000u

static unsigned timeout_of(const struct tcp *tcp)
{
    return ibx_link_options(tcp->link)->timeout_ms;
}

/* None of these is needed for correctness, so their failures are not errors. */
void ibx_tcp_alive_tune(const struct tcp *tcp, int fd)
{
    unsigned timeout_ms = timeout_of(tcp);
    int one = 1, idle = (int)((timeout_ms + 1999) / 2000), probes = 3;
    int interval = (int)((timeout_ms + 5999) / 6000);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

int ibx_tcp_alive_open(struct tcp *tcp)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    /* Nobody dies unnoticed at the other end of a unix socket. */
    if (getsockopt(tcp->lanes[0].fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        return 0;
    tcp->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (tcp->timer < 0)
        return -errno;
    return ibx_link_watch(tcp->link, tcp->timer);
}

void ibx_tcp_alive_close(struct tcp *tcp)
{
    if (tcp->timer < 0)
        return;
    ibx_link_unwatch(tcp->link, tcp->timer);
    close(tcp->timer);
}

/* Whether bytes of this lane are on their way; ends the connection when nobody takes them. */
static bool lane_waits(struct tcp_lane *lane, uint64_t now)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    int unacknowledged = 0;
    if (ioctl(lane->fd, SIOCOUTQ, &unacknowledged) || !unacknowledged ||
        getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &length)) {
        lane->silent_since = 0;
        return false;
    }
    /* Any acknowledgement answers the probes. It does not answer a retransmission into a window
     * that has shrunk, but there none is due before the next one has been sent. */
    bool silent = info.tcpi_probes >= PROBES_MIN ||
                  (info.tcpi_retransmits && info.tcpi_last_data_sent < info.tcpi_last_ack_recv);
    uint64_t heard = now - info.tcpi_last_ack_recv * IBX_NS_PER_MS;
    if (!silent || heard > lane->silent_since)
        lane->silent_since = silent ? now : 0;
    unsigned limit_ms = timeout_of(lane->tcp);
    if (limit_ms < SILENCE_MIN)
        limit_ms = SILENCE_MIN;
    if (silent && now - lane->silent_since >= limit_ms * IBX_NS_PER_MS)
        ibx_tcp_lane_broken(lane, ETIMEDOUT);
    return true;
}

/* The next look is in so many milliseconds; 0: none until something is written. */
static void timer_set(struct tcp *tcp, uint64_t now, unsigned ms)
{
    struct itimerspec in = {
        .it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000 * IBX_NS_PER_MS)}};
    tcp->look_at = ms ? now + ms * IBX_NS_PER_MS : 0;
    timerfd_settime(tcp->timer, 0, &in, NULL);
}

void ibx_tcp_alive_check(struct tcp *tcp)
{
    if (tcp->timer < 0 || tcp->parting || (!tcp->look_at && !tcp->wrote))
        return;
    uint64_t now = ibx_now_ns();
    if (now < tcp->look_at)
        return;
    bool waits = tcp->wrote;
    tcp->wrote = false;
    for (unsigned i = 0; i <= tcp->lane_count && tcp->look_at && !tcp->status; i++)
        waits |= lane_waits(&tcp->lanes[i], now);
    timer_set(tcp, now, waits ? timeout_of(tcp) / LOOKS : 0);
}

bool ibx_tcp_alive_part(struct tcp *tcp)
{
    /* What was written to a unix socket is there. */
    if (tcp->timer < 0)
        return false;
    if (!tcp->parting)
        timer_set(tcp, ibx_now_ns(), PARTING_MS);
    tcp->parting = true;
    return true;
}

void ibx_tcp_alive_parting(struct tcp *tcp)
{
    uint64_t now = ibx_now_ns();
    if (tcp->moved)
        timer_set(tcp, now, PARTING_MS);
    else if (now >= tcp->look_at)
        ibx_tcp_fail(tcp, -ECONNRESET, "the peer closed one socket of the connection");
}
