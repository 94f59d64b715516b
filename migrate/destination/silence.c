/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A source of which nothing comes: what is awaited of it, and what it means. */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>

#define REQUEST_MAX (1ull << 20)  /* bytes: of one request to the source, or a whole huge page */
#define RATE_MIN    (10ull << 20) /* bytes a second: slower links are not expected */

static bool awaits_something(const struct destination *d)
{
    switch (d->state) {
    case DESTINATION_WAITING:
        return d->linked;
    case DESTINATION_RESUMING:
        return d->linked && d->waiting;
    case DESTINATION_FILLING:
        return d->linked && (d->waiting || !d->serving || d->status.present < d->status.pages);
    case DESTINATION_COMPLETE:
        return d->linked && d->complete_ns && !d->confirmed;
    default:
        return false;
    }
}

/* For one request. With a limit on its bandwidth the background makes pauses of its own. */
static uint64_t longest_pause_ns(const struct destination *d)
{
    const uint64_t limit = d->waiting ? 0 : d->status.max_bandwidth;
    uint64_t bytes = REQUEST_MAX;
    for (size_t i = 0; i < d->ram.count; i++)
        bytes = d->ram.blocks[i].page_size > bytes ? d->ram.blocks[i].page_size : bytes;
    return bytes * 1000 * IBX_NS_PER_MS / (limit && limit < RATE_MIN ? limit : RATE_MIN);
}

void ibx_destination_mind_silence(struct destination *d)
{
    const struct migration_expectation heard = {
        .awaited = awaits_something(d),
        .count = d->status.bytes + d->status.present,
        .pause_ns = longest_pause_ns(d),
        .timeout_ms = d->transport.timeout_ms,
        .means = d->state == DESTINATION_WAITING
                     ? "the VM has not run here, and waits for the word that it shall"
                 : d->state == DESTINATION_COMPLETE
                     ? "all pages are here, and only its confirmation is waited for"
                     : "the VM waits where it needs a page that has not come",
    };
    ibx_migration_check_silence(&d->silence, &heard, &d->status, &d->options->observer);
}

int ibx_destination_mind_source(struct destination *d, struct ibx_error *err)
{
    const uint64_t times = (uint64_t)d->transport.timeout_ms * 5;
    const uint64_t limit_ms = times > 10000 ? times : 10000;
    const uint64_t count = d->heard + d->regions, now = ibx_now_ns();
    const bool early = d->state == DESTINATION_JOINING || d->state == DESTINATION_READY ||
                       (d->state == DESTINATION_MAPPED && !d->state_ended);
    const bool away = now - d->early_looked_ns > MIGRATION_AWAY_NS;
    d->early_looked_ns = now;
    if (!early || away || count != d->early_count) {
        d->early_at_ns = now;
        d->early_count = count;
        return 0;
    }
    if (now - d->early_at_ns < limit_ms * IBX_NS_PER_MS)
        return 0;
    return ibx_error_set(err, -ETIMEDOUT,
                         "nothing has come from %s for %u s, before the VM could run here: it "
                         "stays there; see whether ib-migrate or QEMU stands still there, and "
                         "begin anew",
                         d->status.record.peer, (unsigned)(limit_ms / 1000));
}
