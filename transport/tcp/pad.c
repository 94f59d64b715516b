/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * TCP sends little at first, and twice as much with each round trip: over a long wire much that is
 * sent at once takes several round trips. So the windows are widened before it is needed, by frames
 * that the peer drops. They are queued one by one, and the kernel takes only few bytes ahead of
 * those that it sends, so that what is sent next need not wait for many.
 */
#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#define FRAME_BYTES  (64u << 10)  /* with that, messages on lane 0 keep their turn */
#define UNSENT_BYTES (128u << 10) /* in the kernel, beyond what is on its way */

static const uint8_t nothing[FRAME_BYTES];

/* What the kernel takes ahead; 0: as usual. */
static void unsent_most(const struct tcp_lane *lane, int bytes)
{
    setsockopt(lane->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

static void next(struct tcp_pad *pad)
{
    const size_t length = pad->left < FRAME_BYTES ? pad->left : FRAME_BYTES;
    const struct ibx_tcp_frame frame = {.type = IBX_TCP_PAD, .length = (uint32_t)length};
    if (!length || pad->queued)
        return;
    ibx_tcp_item_init(&pad->item, TCP_ITEM_PAD, &frame);
    pad->item.body = nothing;
    pad->item.length = length;
    pad->left -= length;
    pad->queued = true;
    ibx_tcp_lane_queue(pad->lane, &pad->item);
}

void ibx_tcp_on_pad_sent(struct tcp_pad *pad)
{
    pad->queued = false;
    if (!pad->left)
        unsent_most(pad->lane, 0);
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
        unsent_most(lane, bytes ? UNSENT_BYTES : 0);
        next(&lane->pad);
        if (!i)
            ibx_tcp_lane_push(lane);
    }
}
