/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What happens when the peer dies.
 *
 * Its host: an idle socket has the kernel's keepalive, one with unacknowledged bytes has not.
 * TCP_USER_TIMEOUT is no substitute: it also ends a connection to a process that is stopped or
 * slow, whose window is full and whose kernel answers our probes. So this file checks sockets with
 * unacknowledged bytes itself, LOOKS times in timeout_ms. A host is silent when it leaves a
 * retransmission or two window probes unanswered, and dead when it is silent for timeout_ms. The
 * kernel doubles the pause between two probes, up to two minutes, so a host that dies behind a full
 * window is detected by keepalive on another lane, or without one by the next probes.
 *
 * Its process: the kernel closes all lanes at once. Messages that were sent before are still on
 * their way on lane 0 when a bulk lane ends; the connection drains them (ibx_tcp_drain_begin).
 */
#include "transport/tcp/tcp.h"

#include "common/clock.h"
#include "common/descriptor.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h> /* not <netinet/tcp.h>, whose tcp_info is shorter */
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOKS 8u
/* ... or more often, where a connection could be made again. */
#define PROBE_LOOK_MS 100u
/* A kernel answers two probes a second at most. So one unanswered probe is no sign; two are, after
 * SILENCE_MIN, because the first ones may be milliseconds apart. */
#define PROBES_MIN  2u
#define SILENCE_MIN 2000u /* ms */
/* The longest silence on lane 0 while the connection drains, and the most that this takes. */
#define DRAIN_MS      2000u
#define DRAIN_MOST_MS 60000u

static unsigned timeout_of(const struct tcp *tcp)
{
    return ibx_link_options(tcp->link)->timeout_ms;
}

/* None of these is needed for correctness, so their failures are not errors. */
void ibx_tcp_keepalive_set(const struct tcp *tcp, int fd)
{
    unsigned timeout_ms = timeout_of(tcp);
    int one = 1, idle = (int)((timeout_ms + 1999) / 2000), probes = 3;
    int interval = (int)((timeout_ms + 5999) / 6000);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

int ibx_tcp_peer_watch(struct tcp *tcp)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    /* A unix socket has no host behind it that could die. */
    if (getsockopt(tcp->lanes[0].fd, IPPROTO_TCP, TCP_INFO, &info, &length))
        return 0;
    tcp->timer = ibx_descriptor_apart(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (tcp->timer < 0)
        return -errno;
    ibx_tcp_probe_init(tcp);
    return ibx_link_watch(tcp->link, tcp->timer);
}

void ibx_tcp_peer_unwatch(struct tcp *tcp)
{
    if (tcp->timer < 0)
        return;
    ibx_tcp_probe_fini(tcp);
    ibx_link_unwatch(tcp->link, tcp->timer);
    close(tcp->timer);
}

/* Whether the lane has unacknowledged bytes. Ends the connection when the peer's host is dead. */
static bool lane_check(struct tcp_lane *lane, uint64_t now)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    int unacknowledged = 0;
    if (ioctl(lane->fd, SIOCOUTQ, &unacknowledged) || !unacknowledged ||
        getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &length)) {
        lane->silent_since = 0;
        ibx_tcp_long_packets_none(lane);
        return false;
    }
    /* An acknowledgement answers all probes before it, but not a retransmission into a window that
     * has shrunk; there none is due before the next one has been sent. */
    bool silent = info.tcpi_probes >= PROBES_MIN ||
                  (info.tcpi_retransmits && info.tcpi_last_data_sent < info.tcpi_last_ack_recv);
    uint64_t answered = now - info.tcpi_last_ack_recv * IBX_NS_PER_MS;
    if (!silent || answered > lane->silent_since)
        lane->silent_since = silent ? now : 0;
    ibx_tcp_long_packets_check(lane, &info, now);
    unsigned limit_ms = timeout_of(lane->tcp);
    if (limit_ms < SILENCE_MIN)
        limit_ms = SILENCE_MIN;
    if (silent && !lane->tcp->status && now - lane->silent_since >= limit_ms * IBX_NS_PER_MS)
        ibx_tcp_lane_broken(lane, ETIMEDOUT);
    return true;
}

/* Sets the timer for the next check, in `ms`; 0: there is none until something is written. */
static void timer_set(struct tcp *tcp, uint64_t now, unsigned ms)
{
    struct itimerspec in = {
        .it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000 * IBX_NS_PER_MS)}};
    tcp->look_at = ms ? now + ms * IBX_NS_PER_MS : 0;
    timerfd_settime(tcp->timer, 0, &in, NULL);
}

static unsigned look_ms(const struct tcp *tcp, uint64_t now, bool checks)
{
    const unsigned most = timeout_of(tcp) / LOOKS;
    const uint64_t check_ms =
        checks ? (tcp->check_at - now + IBX_NS_PER_MS - 1) / IBX_NS_PER_MS : most;
    const unsigned ms = check_ms < most ? (unsigned)check_ms : most;
    const bool again = ibx_link_options(tcp->link)->follow_address && !tcp->same_host;
    return again && ms > PROBE_LOOK_MS ? PROBE_LOOK_MS : ms;
}

void ibx_tcp_peer_check(struct tcp *tcp)
{
    const bool probes = tcp->probe.able;
    if (tcp->timer < 0 || tcp->state.now != TCP_LIVE ||
        (!tcp->look_at && !tcp->wrote && !probes && !ibx_tcp_checks_wanted(tcp)))
        return;
    uint64_t now = ibx_now_ns();
    if (now < tcp->look_at && (!probes || tcp->probe.fd < 0))
        return;
    if (probes)
        ibx_tcp_probe_check(tcp, now);
    if (now < tcp->look_at || tcp->status)
        return;
    const bool checks = ibx_tcp_checks_wanted(tcp);
    if (checks)
        ibx_tcp_checks_look(tcp, now);
    bool waits = tcp->wrote;
    tcp->wrote = false;
    for (unsigned i = 0; i <= tcp->lane_count && tcp->look_at && !tcp->status; i++)
        waits |= lane_check(&tcp->lanes[i], now);
    timer_set(tcp, now, waits || probes || checks ? look_ms(tcp, now, checks) : 0);
}

/* While the connection drains, nothing is sent: the peer's host would answer with a reset, and the
 * kernel then discards what has arrived. A peer that lives learns from the end of our lane 0 that
 * the connection is over. */
bool ibx_tcp_drain_begin(struct tcp *tcp)
{
    /* What was written to a unix socket has arrived already. */
    if (tcp->timer < 0)
        return false;
    if (tcp->state.now != TCP_LIVE)
        return tcp->state.now == TCP_DRAINING;
    ibx_tcp_move(tcp, &tcp->state, TCP_DRAINING);
    ibx_tcp_threads_stop(tcp);
    const uint64_t now = ibx_now_ns();
    tcp->drain_until = now + DRAIN_MOST_MS * IBX_NS_PER_MS;
    timer_set(tcp, now, DRAIN_MS);
    shutdown(tcp->lanes[0].fd, SHUT_WR);
    /* A socket on which nothing can be sent counts as writable. */
    ibx_link_unwatch(tcp->link, tcp->writable);
    for (unsigned i = 1; i <= tcp->lane_count; i++) {
        if (tcp->lanes[i].watched)
            ibx_link_unwatch(tcp->link, tcp->lanes[i].fd);
        tcp->lanes[i].watched = false;
    }
    return true;
}

void ibx_tcp_drain_check(struct tcp *tcp)
{
    uint64_t now = ibx_now_ns();
    if (tcp->moved && now < tcp->drain_until)
        timer_set(tcp, now, DRAIN_MS);
    else if (now >= tcp->look_at || now >= tcp->drain_until)
        ibx_tcp_fail(tcp, -ECONNRESET, "the peer closed one socket of the connection");
}
