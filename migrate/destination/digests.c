/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Digests of the pages that have come, which the source compares with its RAM: of each range once
 * all of it is here, and of all other ranges at the end. A page that has no tag then was given back
 * by the guest. Each link begins with the first range again: the source knows which ranges it has
 * compared.
 *
 * In minor mode QEMU can give back a page that is on its way: it empties the file, and only then
 * the event comes by which the tag of the emptied page is taken back. QEMU holds the lock of its
 * main loop meanwhile. So in minor mode a range is sent when that loop has answered since all of
 * the range was in its place.
 *
 * A VM that is borrowed gets its pages any time later, or never. So what has come is sent from time
 * to time, each page once: when the source has answered by COMPARED, it does not look at the page
 * again, and may change it. The tool by which the VM returns waits for that (source/return.c).
 */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define RANGES_AT_ONCE 200u /* in a message: 16 kB */
/* The source compares while other pages come. What it gets late, it compares after the last page.
 */
#define LOOK_MS    10
#define SETTLE_MS  200 /* the same in minor mode: QEMU is asked */
#define LOOK_SHARE 10  /* one part in so many of this thread's time is for looks, at most */
#define COME_MS    200 /* borrowed: so long others are expected after some have come */
#define LENT_MS    1   /* borrowed: the VM is about to return, which waits for the comparison */

void ibx_destination_digests_restart(struct destination *d)
{
    free(d->digests.sent);
    free(d->digests.ranges);
    d->digests = (struct destination_digests){.left = 0};
}

static int begin(struct destination *d, struct ibx_error *err)
{
    struct destination_digests *digests = &d->digests;
    if (digests->sent)
        return 0;
    digests->left = ibx_digest_ranges(d->ram.map.pages);
    digests->sent = calloc(digests->left, sizeof(*digests->sent));
    digests->ranges = calloc(digests->left, sizeof(*digests->ranges));
    if (digests->sent && digests->ranges)
        return 0;
    ibx_destination_digests_restart(d);
    return ibx_error_set(err, -ENOMEM, "no memory for digests of pages");
}

static bool in_place(const struct destination *d, uint64_t range)
{
    const uint64_t first = range * IBX_DIGEST_PAGES;
    for (unsigned i = 0; d->ram.engine && i < ibx_digest_pages(&d->ram.map, range); i++)
        if (!ibx_fault_present(d->ram.engine, first + i))
            return false;
    return true;
}

int ibx_destination_digests_settle(struct destination *d)
{
    int rc = d->ram.minor && d->ram.page_tags ? ibx_destination_qemu_pass(&d->qemu) : 0;
    if (!rc && d->ram.engine)
        ibx_fault_note_events(d->ram.engine);
    return rc;
}

/* In minor mode: finds which ranges may be sent by now. */
static void settle(struct destination *d)
{
    struct destination_digests *digests = &d->digests;
    const uint64_t ranges = ibx_digest_ranges(d->ram.map.pages);
    unsigned count = 0;
    for (uint64_t range = 0; range < ranges; range++) {
        if (digests->ranges[range] == RANGE_COMES && ibx_page_tags_whole(d->ram.page_tags, range) &&
            in_place(d, range))
            digests->ranges[range] = RANGE_IN_PLACE;
        count += digests->ranges[range] == RANGE_IN_PLACE;
    }
    if (!count || ibx_destination_digests_settle(d))
        return;
    for (uint64_t range = 0; range < ranges; range++)
        if (digests->ranges[range] == RANGE_IN_PLACE)
            digests->ranges[range] = RANGE_SETTLED;
}

static bool may_be_told(const struct destination *d, uint64_t range)
{
    return d->ram.minor ? d->digests.ranges[range] == RANGE_SETTLED
                        : ibx_page_tags_whole(d->ram.page_tags, range);
}

/* Whether the range may be in the next message, and its entry. */
static bool is_next(const struct destination *d, bool all, uint64_t range)
{
    if (d->ram.borrow)
        return ibx_page_tags_fresh(d->ram.page_tags, range);
    return !d->digests.sent[range] && (all || may_be_told(d, range));
}

static bool encode(struct destination *d, uint64_t range, uint8_t entry[IBX_DIGEST_ENTRY])
{
    return d->ram.borrow ? ibx_page_tags_fresh_entry(d->ram.page_tags, range, entry)
                         : ibx_page_tags_entry(d->ram.page_tags, range, entry);
}

/* Sends one message of ranges that follow each other, from `range` on; moves it behind them. */
static int send_some(struct destination *d, bool all, uint64_t *range, struct ibx_error *err)
{
    static uint8_t entries[RANGES_AT_ONCE * IBX_DIGEST_ENTRY];
    struct destination_digests *digests = &d->digests;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_DIGEST};
    const uint64_t ranges = ibx_digest_ranges(d->ram.map.pages);
    unsigned count = 0;
    message.is.digest.first = *range * IBX_DIGEST_PAGES;
    while (*range < ranges && count < RANGES_AT_ONCE && is_next(d, all, *range)) {
        if (!encode(d, *range, entries + (size_t)count * IBX_DIGEST_ENTRY))
            return ibx_error_set(err, -ENOMEM, "there is no memory for the digests of pages");
        digests->sent[*range] = true;
        digests->left -= d->ram.borrow == IBX_BORROW_NOT;
        count++;
        (*range)++;
    }
    if (!count) {
        (*range)++;
        return 0;
    }
    message.is.digest.entries.bytes = entries;
    message.is.digest.entries.length = (size_t)count * IBX_DIGEST_ENTRY;
    digests->told++;
    digests->told_ns = ibx_now_ns();
    return ibx_channel_send(&d->link.control, &message, err);
}

static bool due(const struct destination *d)
{
    if (!d->ram.page_tags || !destination_linked(&d->link))
        return false;
    /* While a new link brings the page map again, the map shows no page with data yet. */
    return d->state.now == DESTINATION_COMPLETE ||
           (d->link.state.now == LINK_SERVING && ibx_now_ns() >= d->digests.look_ns);
}

/* Nothing wakes this thread for them: it looks often while it finds some. */
static bool pages_come(const struct destination *d)
{
    return ibx_page_tags_uncompared(d->ram.page_tags) ||
           ibx_now_ns() - d->digests.told_ns < COME_MS * IBX_NS_PER_MS;
}

uint64_t ibx_destination_digests_wait_ns(const struct destination *d)
{
    const bool filling = d->state.now == DESTINATION_FILLING && d->link.state.now == LINK_SERVING;
    const bool more = !d->digests.sent || d->digests.left;
    if (filling && d->ram.page_tags && d->ram.borrow)
        return d->lent         ? LENT_MS * IBX_NS_PER_MS
               : pages_come(d) ? LOOK_MS * IBX_NS_PER_MS
                               : UINT64_MAX;
    return filling && d->ram.page_tags && more ? LOOK_MS * IBX_NS_PER_MS : UINT64_MAX;
}

/* -EAGAIN: the source has not compared all pages that have come. One COMPARED answers all that is
 * sent here. */
static int send_fresh(struct destination *d, struct ibx_error *err)
{
    struct destination_digests *digests = &d->digests;
    const uint64_t ranges = ibx_digest_ranges(d->ram.map.pages);
    int rc = 0;
    /* When the VM is at home, home's memory is not what it was for a page that came since. */
    if (!ibx_page_tags_uncompared(d->ram.page_tags) || ibx_journal_has_returned(&d->status.record))
        return 0;
    if (digests->told != digests->answered)
        return -EAGAIN;
    rc = begin(d, err);
    for (uint64_t range = 0; !rc && range < ranges && ibx_channel_idle(&d->link.control);)
        rc = send_some(d, false, &range, err);
    digests->look_ns = ibx_now_ns() + (d->lent ? LENT_MS : LOOK_MS) * IBX_NS_PER_MS;
    return rc ? rc : -EAGAIN;
}

int ibx_destination_on_compared(struct destination *d, uint64_t count, struct ibx_error *err)
{
    struct destination_digests *digests = &d->digests;
    if (!d->ram.page_tags || count <= digests->answered || count > digests->told)
        return ibx_error_set(err, -EPROTO,
                             "the source has compared %" PRIu64 " digests, after %" PRIu64
                             " of the %" PRIu64 " that it was sent",
                             count, digests->answered, digests->told);
    if (count < digests->told) /* those that came meanwhile are answered later */
        return 0;
    for (uint64_t range = 0; range < ibx_digest_ranges(d->ram.map.pages); range++) {
        if (digests->sent[range])
            ibx_page_tags_agreed(d->ram.page_tags, range);
        digests->sent[range] = false;
    }
    digests->answered = count;
    return 0;
}

int ibx_destination_send_digests(struct destination *d, struct ibx_error *err)
{
    const bool all = d->state.now == DESTINATION_COMPLETE;
    struct destination_digests *digests = &d->digests;
    if (!due(d))
        return 0;
    if (d->ram.borrow)
        return send_fresh(d, err);
    const uint64_t before = ibx_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    int rc = begin(d, err);
    if (!rc && !all && d->ram.minor)
        settle(d);
    const uint64_t ranges = ibx_digest_ranges(d->ram.map.pages);
    for (uint64_t range = 0; !rc && digests->left && range < ranges;) {
        if (!ibx_channel_idle(&d->link.control))
            return -EAGAIN;
        rc = send_some(d, all, &range, err);
    }
    const uint64_t took = ibx_clock_ns(CLOCK_THREAD_CPUTIME_ID) - before,
                   least = (d->ram.minor ? SETTLE_MS : LOOK_MS) * IBX_NS_PER_MS;
    digests->look_ns = ibx_now_ns() + (took * LOOK_SHARE > least ? took * LOOK_SHARE : least);
    return rc ? rc : all || !digests->left ? 0 : -EAGAIN;
}
