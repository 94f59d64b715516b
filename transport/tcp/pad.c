/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * TCP sends little at first, and twice as much with each round trip: over a long wire much that is
 * sent at once takes several round trips. So the windows are widened before it is needed, by frames
 * that the peer drops. They are queued one by one, and the kernel takes only few bytes ahead of
 * those that it sends, so that what is sent next need not wait for many. Once the wire has all that
 * it takes they end.
 */
#include "transport/tcp/tcp.h"

#include <linux/tcp.h> /* not <netinet/tcp.h>, which does not know the least round trip */
#include <netinet/in.h>

#define FRAME_BYTES (32u << 10)
#define HOSTS_US    20000u

static const uint8_t nothing[FRAME_BYTES];

/* Limits how many bytes the kernel takes ahead of those that it sends; 0: as it chooses. */
static void unsent_most(const struct tcp_lane *lane, uint32_t bytes)
{
    setsockopt(lane->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

/* Whether the wire takes more padding. If so, the kernel takes ahead what it may send a round trip
 * later, too: nobody may poll the connection then, and with less BBR would take that for all that
 * the wire carries. If packets stand in a queue for half as long as they travel, and for longer
 * than hosts take, the wire is full: more would only be in front of what is sent next. */
static bool wire_takes(const struct tcp_lane *lane)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    const bool known = !getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &length) &&
                       info.tcpi_min_rtt && info.tcpi_min_rtt != UINT32_MAX;
    const bool takes = !known || info.tcpi_rtt < info.tcpi_min_rtt / 2 * 3 + HOSTS_US;
    if (takes)
        unsent_most(lane, 2 * info.tcpi_snd_cwnd * info.tcpi_snd_mss);
    return takes;
}

static void queue(struct tcp_pad *pad, size_t length)
{
    const struct ibx_tcp_frame frame = {.type = IBX_TCP_PAD, .length = (uint32_t)length};
    ibx_tcp_item_init(&pad->item, TCP_ITEM_PAD, &frame);
    pad->item.body = nothing;
    pad->item.length = length;
    pad->queued = true;
    ibx_tcp_lane_queue(pad->lane, &pad->item);
}

static void next(struct tcp_pad *pad)
{
    if (pad->queued)
        return;
    if (!pad->left || !wire_takes(pad->lane)) {
        pad->left = 0;
        unsent_most(pad->lane, ibx_link_options(pad->lane->tcp->link)->unsent_max);
        return;
    }
    const size_t length = pad->left < FRAME_BYTES ? pad->left : FRAME_BYTES;
    pad->left -= length;
    queue(pad, length);
}

void ibx_tcp_on_pad_sent(struct tcp_pad *pad)
{
    pad->queued = false;
    next(pad);
}

void ibx_tcp_pad(void *endpoint, size_t bytes)
{
    struct tcp *tcp = endpoint;
    if (tcp->same_host || tcp->status)
        return;
    for (unsigned i = tcp->lane_count ? 1 : 0; i <= tcp->lane_count; i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        lane->pad.left = bytes;
        next(&lane->pad);
        /* io_uring may have some of the lane's output; its next progress goes on. */
        if (!tcp_uring(tcp))
            ibx_tcp_lane_push(lane);
    }
}

void ibx_tcp_pad_once(struct tcp_lane *lane)
{
    if (!lane->pad.queued)
        queue(&lane->pad, 1);
}
