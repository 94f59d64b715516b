/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How fast a sender sends: at most as fast as it was told, and slower while its members lose more
 * than a link does by itself. It begins with a quarter of that, since a whole snapshot may be sent
 * before anybody can report that it does not come, and doubles until the first loss. After a loss
 * the rate becomes a little less than what has come of it, once for all that was sent at one rate;
 * without a loss it grows by steady steps. It does not fall below a floor: a member that loses most
 * of what is sent at that rate does not count until it hears again, so that one bad host does not
 * slow down the others.
 */
#include "migrate/multicast/multicast.h"

#include "common/clock.h"

#define FLOOR_SHARE 8u  /* the floor is the highest rate divided by this */
#define FIRST_SHARE 4u  /* likewise the first rate */
#define STEP_SHARE  32u /* likewise the step by which it grows once there was a loss */
#define STEP_NS     (100 * IBX_NS_PER_MS)
#define CALM_NS     (500 * IBX_NS_PER_MS) /* after a loss, before it grows */
#define LEAST_HEARD 64u                   /* fewest datagrams from which a loss is computed */
#define LOSS_MOST   20u                   /* thousandths; less is not blamed on the rate */
#define LOSS_DEAF   500u                  /* thousandths; at the floor, the member hears little */
#define DEAF_MOST   5u                    /* such reports in a row: the member does not count */
#define LEFT_LEAST  250u /* thousandths of the rate that one step leaves at least */

void ibx_multicast_rate_init(struct ibx_multicast_rate *rate, uint64_t most)
{
    const uint64_t least = most / FLOOR_SHARE;
    const uint64_t first = most / FIRST_SHARE;
    *rate = (struct ibx_multicast_rate){.most = most};
    rate->least = least > IBX_MULTICAST_RATE_MIN ? least : IBX_MULTICAST_RATE_MIN;
    rate->now = first > rate->least ? first : rate->least;
}

bool ibx_multicast_counts(const struct ibx_multicast_hearing *hearing)
{
    return hearing->deaf < DEAF_MOST;
}

bool ibx_multicast_hears_well(const struct ibx_multicast_hearing *hearing)
{
    return !ibx_multicast_counts(hearing) || hearing->loss < LOSS_MOST;
}

static void lower(struct ibx_multicast_rate *rate, unsigned loss, uint64_t sent, uint64_t now_ns)
{
    const unsigned left = (1000 - loss) / 16 * 15;
    const uint64_t less = rate->now / 1000 * (left > LEFT_LEAST ? left : LEFT_LEAST);
    rate->now = less > rate->least ? less : rate->least;
    rate->settled = sent;
    rate->lowered_ns = now_ns;
    rate->lowered++;
}

/* Notes the loss of a member: `got` of `all` datagrams have come. */
static void judge(const struct ibx_multicast_rate *rate, struct ibx_multicast_hearing *h,
                  uint64_t all, uint64_t got)
{
    h->loss = got < all ? (unsigned)((all - got) * 1000 / all) : 0;
    if (h->loss < LOSS_DEAF)
        h->deaf = 0;
    else if (rate->now == rate->least && h->deaf < DEAF_MOST)
        h->deaf++;
}

bool ibx_multicast_rate_heard(struct ibx_multicast_rate *rate,
                              struct ibx_multicast_hearing *hearing, uint64_t through,
                              uint64_t came, uint64_t sent, uint64_t now_ns)
{
    struct ibx_multicast_hearing *h = hearing;
    if (came > through || through < h->through || came < h->came)
        return false;
    if (through > sent) /* another member has forged a datagram with such a number */
        return true;
    const bool silent = through == h->through; /* nothing of what was sent meanwhile has come */
    const uint64_t from = silent ? h->sent : h->through;
    const uint64_t all = (silent ? sent : through) - from;
    const uint64_t got = came - h->came;
    if (h->begun && all < LEAST_HEARD)
        return true;
    if (h->begun)
        judge(rate, h, all, got);
    h->begun = true;
    h->through = through;
    h->came = came;
    h->sent = sent;
    /* Lowered once only for all that was sent at one rate. */
    if (!ibx_multicast_hears_well(h) && from >= rate->settled && rate->now > rate->least)
        lower(rate, h->loss, sent, now_ns);
    return true;
}

void ibx_multicast_rate_raise(struct ibx_multicast_rate *rate, uint64_t now_ns)
{
    const uint64_t more = rate->now + (rate->lowered ? rate->most / STEP_SHARE : rate->now);
    if (rate->now == rate->most || now_ns - rate->raised_ns < STEP_NS ||
        now_ns - rate->lowered_ns < CALM_NS)
        return;
    rate->now = more < rate->most ? more : rate->most;
    rate->raised_ns = now_ns;
}
