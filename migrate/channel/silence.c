/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The other side is there, as far as the network knows, and nothing comes from it: its tool stands
 * still (SIGSTOP, a debugger, a host without processors) or the network does and has not been found
 * dead yet. Nothing can be done about it from here but to say so.
 */
#include "migrate/operator/move_internal.h"

#include "common/clock.h"

#define SILENT_MIN_MS 1000

static unsigned seconds(uint64_t ns)
{
    return (unsigned)(ns / (1000 * IBX_NS_PER_MS));
}

void ibx_migration_mind_silence(struct move_silence *silence, const struct move_heard *heard,
                                struct ibx_migrate_status *status,
                                const struct ibx_migrate_tell *tell)
{
    const uint64_t now = ibx_now_ns();
    const uint64_t limit_ms =
        heard->timeout_ms / 2 > SILENT_MIN_MS ? heard->timeout_ms / 2 : SILENT_MIN_MS;
    const char *peer = status->record.peer[0] ? status->record.peer : "the other side";
    const bool came = silence->count != heard->count;
    const bool away = now - silence->looked_ns > MOVE_OWN_PAUSE_NS;
    silence->looked_ns = now;
    if (away || !heard->awaited || came) {
        if (silence->said && came)
            ibx_migration_say(tell, "%s is heard again, after %u s", peer,
                              seconds(now - silence->since_ns));
        *silence = (struct move_silence){.since_ns = now, .looked_ns = now, .count = heard->count};
        status->silent_ns = 0;
        return;
    }
    if (now - silence->since_ns < limit_ms * IBX_NS_PER_MS + heard->pause_ns)
        return;
    status->silent_ns = now - silence->since_ns;
    if (silence->said)
        return;
    silence->said = true;
    ibx_migration_say(
        tell,
        "nothing has come from %s for %u s: %s; nothing is lost: see whether the ib-migrate "
        "there stands still and whether the network is up, and the move goes on by itself",
        peer, seconds(status->silent_ns), heard->means);
}
