/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Bytes that are lost on their way although TCP works: a relay between the hosts, which has a
 * connection with each end, may swallow some, or send them twice or in another order.
 *
 * Each frame has its place, so the next frame on the lane shows what happened before it. If none
 * follows, nobody would learn that the last one is missing, and both ends would wait. So an end
 * that waits and hears nothing sends a CHECK on each lane, which the other end answers by one at
 * once; like all frames these have places. A process that polls nothing, since it runs a handler
 * for example, answers later, which is no sign of a loss. But its kernel acknowledges, so CHECKs
 * also show that the network is silent (probe.c). The longer this side has waited, the longer are
 * the intervals between them, since a long wait may end a little later.
 *
 * Where a part of a frame is lost, what follows is taken for the rest of it, CHECKs, too. So they
 * say how many bytes of the other direction have come. An answer says nothing new: what came before
 * its question, which was in its place, and not whether the peer has read what lies behind that.
 * Who asks has read its input and waits, as everybody does amid a frame. Bytes that the peer's host
 * or a relay has acknowledged, and that such a peer has not received for timeout_ms, are lost: a
 * relay whose own TCP has to try again also passes nothing for some seconds. These have to be the
 * same bytes all the time: if the peer has received more than had been sent when it was found to
 * lack some, what it lacks now is younger. If anything but CHECKs was sent meanwhile, each of these
 * may have crossed other bytes, such as the reply to another call, and proves nothing.
 *
 * The end that finds out ends the connection. A session that can, goes on over another one.
 */
#include "transport/tcp/tcp.h"

#include "common/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#define CHECK_MS  250u  /* without a byte from the peer: then it is asked, and again after ... */
#define PART      32u   /* ... that, or this part of the wait so far if it is more, ... */
#define MOST_MS   2000u /* ... but no more than this */
#define PAUSED_MS 1000u /* a process that is so late has not polled, and begins to wait */
#define LOST_MS   2000u /* for which bytes are missing at least, before they are lost */
#define PAUSES    4u    /* between CHECKs that say so, at least, in that time */
#define TRICKLE   (2 * IBX_TCP_FRAME_BYTES) /* a lane */

static bool is_amid_a_frame(const struct tcp_lane *lane)
{
    return lane->body_left || lane->stage_have ||
           (lane->tls && !ibx_tcp_thread_receives(lane) && ibx_tls_has_part(lane->tls));
}

bool ibx_tcp_checks_wanted(const struct tcp *tcp)
{
    if (!tcp->places)
        return false;
    bool waits = ibx_link_role(tcp->link) == IBX_ROLE_CLIENT || tcp->posts_used;
    for (unsigned i = 0; i <= tcp->lane_count && !waits; i++)
        waits = is_amid_a_frame(&tcp->lanes[i]);
    return waits;
}

/* Bytes of frames that have come so far. */
static uint64_t come(struct tcp_lane *lane)
{
    return lane->come - lane->body_left + lane->stage_have + ibx_tcp_thread_got(lane);
}

static void check_send(struct tcp_lane *lane, struct tcp_check *check, enum ibx_tcp_check kind,
                       uint64_t bytes)
{
    const struct ibx_tcp_frame frame = {
        .type = IBX_TCP_CHECK, .lane = (uint8_t)kind, .id = (uint32_t)bytes};
    if (check->queued)
        return;
    ibx_tcp_item_init(&check->item, TCP_ITEM_CHECK, &frame);
    check->queued = true;
    ibx_tcp_lane_queue(lane, &check->item);
}

/* io_uring does not tell how much of a body has come. */
static bool is_known(const struct tcp_lane *lane)
{
    return !lane->index || !tcp_uring(lane->tcp) || !lane->body_left;
}

void ibx_tcp_check_ask(struct tcp_lane *lane)
{
    if (is_known(lane))
        check_send(lane, &lane->ask, IBX_TCP_ASKS, come(lane));
}

/* From one CHECK to the next. */
static uint64_t pause_ns(uint64_t quiet_ns)
{
    const uint64_t least = CHECK_MS * IBX_NS_PER_MS, most = MOST_MS * IBX_NS_PER_MS;
    const uint64_t pause = quiet_ns / PART;
    return pause < least ? least : pause > most ? most : pause;
}

void ibx_tcp_sign_send(struct tcp_lane *lane)
{
    check_send(lane, &lane->answer, IBX_TCP_LIVES, lane->come);
}

/* How long the peer may be silent while this side waits; 0: for ever. A client may be stopped for
 * any time: if what it sends is swallowed, its own limit ends the connection. Only servers with
 * answer_ms know that their clients poll. */
static unsigned silence_limit_ms(const struct tcp *tcp)
{
    const struct ibx_options *options = ibx_link_options(tcp->link);
    if (tcp->expects_signs)
        return options->silence_ms;
    return ibx_link_role(tcp->link) == IBX_ROLE_SERVER && tcp->posts_used ? options->answer_ms : 0;
}

/* Ends a connection whose peer has been silent for too long. */
static void check_silence(struct tcp *tcp, uint64_t all, uint64_t now)
{
    const unsigned limit_ms = silence_limit_ms(tcp);
    if (all != tcp->heard_all || !tcp->alive_since)
        tcp->alive_since = now;
    tcp->heard_all = all;
    if (!limit_ms || now - tcp->alive_since < limit_ms * IBX_NS_PER_MS)
        return;
    ibx_tcp_fail(
        tcp, -ETIMEDOUT,
        "the peer has given no sign of life for %u s, though its host or something between "
        "the hosts answers",
        limit_ms / 1000);
}

/* Whether more of the peer has come since it was noted. Where a part of a frame has been lost, the
 * peer's CHECKs are taken for the rest of it, and tell nothing: that is a trickle. `parts` becomes
 * less when a CHECK is whole of which a part was noted. */
static bool hears(struct tcp *tcp, uint64_t frames, uint64_t parts)
{
    const int64_t trickle = (int64_t)TRICKLE * (tcp->lane_count + 1);
    const bool more = frames != tcp->heard || (int64_t)(parts - tcp->heard_parts) > trickle;
    if (more) {
        tcp->heard = frames;
        tcp->heard_parts = parts;
    }
    return more;
}

void ibx_tcp_checks_look(struct tcp *tcp, uint64_t now)
{
    uint64_t all = 0, frames = 0;
    for (unsigned i = 0; i <= tcp->lane_count; i++) {
        all += come(&tcp->lanes[i]);
        frames += tcp->lanes[i].come;
    }
    if (tcp->check_at && now > tcp->check_at + PAUSED_MS * IBX_NS_PER_MS)
        tcp->quiet_since = tcp->alive_since = now;
    check_silence(tcp, all, now);
    if (hears(tcp, frames - tcp->checks * IBX_TCP_FRAME_BYTES, all - frames) || !tcp->check_at) {
        tcp->quiet_since = now;
        tcp->check_at = now + CHECK_MS * IBX_NS_PER_MS;
    }
    if (now < tcp->check_at || tcp->status)
        return;
    for (unsigned i = 0; i <= tcp->lane_count; i++)
        ibx_tcp_check_ask(&tcp->lanes[i]);
    tcp->check_at = now + pause_ns(now - tcp->quiet_since);
}

/* For how long the peer has waited since it last said what it has received. In a pause that is
 * longer than those of who waits, it or this process was away, and the next CHECKs may be old: it
 * counts as a short one. */
static uint64_t waited_ns(struct tcp_lane *lane, uint64_t now, uint64_t lost_ns)
{
    const uint64_t pause = now - lane->lacking_at, most = lost_ns / PAUSES;
    lane->lacking_at = now;
    return pause < most ? pause : most;
}

/* Whether TCP may still have bytes that were sent before these CHECKs. A host acknowledges a CHECK
 * that it does not answer some 40 ms late, and one is often on its way. */
static bool has_older(const struct tcp_lane *lane, uint64_t checks)
{
    int unacknowledged = 0;
    return ioctl(lane->fd, SIOCOUTQ, &unacknowledged) || (uint64_t)unacknowledged > checks;
}

/* The peer, which waits and has read its input, has received so many bytes on this lane, modulo
 * 2^32. It lacks the bytes that were noted if it lacks more than the CHECKs since. */
static void judge(struct tcp_lane *lane, uint32_t received)
{
    uint64_t checks;
    const uint64_t now = ibx_now_ns(), all = ibx_tcp_thread_gone(lane, &checks);
    const uint64_t gone = all - checks, since = checks - lane->lacking_checks;
    const uint32_t lacks = (uint32_t)all - received;
    const unsigned timeout_ms = ibx_link_options(lane->tcp->link)->timeout_ms;
    const uint64_t lost_ns = (timeout_ms > LOST_MS ? timeout_ms : LOST_MS) * IBX_NS_PER_MS;
    if (!lacks || lacks > INT32_MAX || !lane->lacking || lacks < lane->lacking || lacks <= since ||
        gone != lane->lacking_gone) {
        lane->lacking = lacks > INT32_MAX ? 0 : lacks;
        lane->lacking_gone = gone;
        lane->lacking_checks = checks;
        lane->lacking_at = now;
        lane->lacking_ns = 0;
        return;
    }
    lane->lacking_ns += waited_ns(lane, now, lost_ns);
    if (lane->lacking_ns >= lost_ns && !has_older(lane, since))
        ibx_tcp_fail(lane->tcp, -EBADMSG,
                     "%u bytes that were sent on lane %u are acknowledged, and have not arrived: "
                     "something between the hosts lost them",
                     lacks, lane->index);
}

void ibx_tcp_on_check(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    lane->tcp->checks++;
    if (frame->lane == IBX_TCP_LIVES) { /* its thread is away: what it has received says nothing */
        if (!lane->tcp->expects_signs)
            ibx_tcp_fail(lane->tcp, -EPROTO, "the peer sent a sign of life that was not agreed on");
        return;
    }
    if (frame->lane != IBX_TCP_ASKS) /* what came before its question, and nothing is known yet */
        return;                      /* of what lies behind that */
    judge(lane, frame->id);
    if (lane->tcp->state.now == TCP_LIVE)
        check_send(lane, &lane->answer, IBX_TCP_ANSWERS, lane->come);
}

bool ibx_tcp_in_place(struct tcp_lane *lane, const struct ibx_tcp_frame *frame)
{
    const uint32_t place = lane->tcp->places ? (uint32_t)lane->come : 0;
    lane->come += ibx_tcp_frame_size(frame);
    const bool agreed = lane->tcp->places || frame->type != IBX_TCP_CHECK;
    if (agreed && (frame->place == place || frame->type == IBX_TCP_NAK))
        return true;
    if (!lane->tcp->places)
        ibx_tcp_fail(lane->tcp, -EPROTO, "the peer sent a frame of type %u that is malformed",
                     frame->type);
    else
        ibx_tcp_fail(lane->tcp, -EBADMSG,
                     "a frame on lane %u is not the one that the peer sent next: something between "
                     "the hosts lost, repeated or reordered bytes",
                     lane->index);
    return false;
}
