/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <string.h>

static const struct ibx_state source_states[] = {
    [SOURCE_ASKING] = {"asking",
                       IBX_TO(SOURCE_EXPOSING) | IBX_TO(SOURCE_KEPT) | IBX_TO(SOURCE_STRANDED),
                       IBX_STATE_INITIAL},
    [SOURCE_EXPOSING] = {"exposing",
                         IBX_TO(SOURCE_WARMING) | IBX_TO(SOURCE_STARTING) | IBX_TO(SOURCE_KEPT) |
                             IBX_TO(SOURCE_STRANDED),
                         0},
    [SOURCE_WARMING] = {"warming",
                        IBX_TO(SOURCE_STARTING) | IBX_TO(SOURCE_KEPT) | IBX_TO(SOURCE_STRANDED), 0},
    [SOURCE_STARTING] = {"starting",
                         IBX_TO(SOURCE_STOPPED) | IBX_TO(SOURCE_KEPT) | IBX_TO(SOURCE_STRANDED), 0},
    [SOURCE_STOPPED] = {"stopped",
                        IBX_TO(SOURCE_SENDING) | IBX_TO(SOURCE_KEPT) | IBX_TO(SOURCE_STRANDED), 0},
    [SOURCE_SENDING] = {"sending",
                        IBX_TO(SOURCE_COMMITTED) | IBX_TO(SOURCE_KEPT) | IBX_TO(SOURCE_STRANDED),
                        0},
    [SOURCE_COMMITTED] = {"committed",
                          IBX_TO(SOURCE_SERVING) | IBX_TO(SOURCE_LEFT) | IBX_TO(SOURCE_KEPT) |
                              IBX_TO(SOURCE_STRANDED) | IBX_TO(SOURCE_BROKEN),
                          IBX_STATE_INITIAL},
    [SOURCE_SERVING] = {"serving",
                        IBX_TO(SOURCE_CONFIRMING) | IBX_TO(SOURCE_LOST) | IBX_TO(SOURCE_LEFT) |
                            IBX_TO(SOURCE_BROKEN),
                        IBX_STATE_INITIAL},
    [SOURCE_LOST] = {"lost", IBX_TO(SOURCE_KEPT) | IBX_TO(SOURCE_STRANDED) | IBX_TO(SOURCE_LEFT),
                     0},
    [SOURCE_CONFIRMING] = {"confirming", IBX_TO(SOURCE_DONE), 0},
    [SOURCE_DONE] = {"done", 0, IBX_STATE_FINAL},
    [SOURCE_KEPT] = {"kept", 0, IBX_STATE_FINAL},
    [SOURCE_STRANDED] = {"stranded", 0, IBX_STATE_FINAL},
    [SOURCE_LEFT] = {"left", 0, IBX_STATE_FINAL},
    [SOURCE_BROKEN] = {"broken", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table source_table = IBX_STATE_TABLE("source", source_states);

static const struct ibx_state peer_states[] = {
    [PEER_QUIET] = {"quiet", IBX_TO(PEER_READY) | IBX_TO(PEER_ABORTED), IBX_STATE_INITIAL},
    [PEER_READY] = {"ready", IBX_TO(PEER_LOADED) | IBX_TO(PEER_ABORTED), 0},
    [PEER_LOADED] = {"loaded", IBX_TO(PEER_COMPLETE) | IBX_TO(PEER_ENDED) | IBX_TO(PEER_ABORTED),
                     IBX_STATE_INITIAL},
    [PEER_ENDED] = {"ended", IBX_TO(PEER_CONFIRMED), 0},
    [PEER_COMPLETE] = {"complete", IBX_TO(PEER_CONFIRMED), 0},
    [PEER_CONFIRMED] = {"confirmed", 0, IBX_STATE_FINAL},
    [PEER_ABORTED] = {"aborted", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table peer_table = IBX_STATE_TABLE("source peer", peer_states);

int ibx_source_begin(struct source *s, enum source_state first)
{
    int rc =
        ibx_state_begin(&s->peer, &peer_table, first == SOURCE_ASKING ? PEER_QUIET : PEER_LOADED);
    return rc ? rc : ibx_state_begin(&s->state, &source_table, first);
}

int ibx_source_move(struct source *s, enum source_state to, struct ibx_error *err)
{
    if (to == SOURCE_STOPPED) {
        s->still_ns = ibx_now_ns();
        s->away_ns = 0;
    }
    if (to == SOURCE_STOPPED || to == SOURCE_COMMITTED)
        s->still_told = false;
    int rc = ibx_migration_enter(&s->state, "source", to, err);
    if (!rc && to >= SOURCE_STARTING && to <= SOURCE_COMMITTED)
        s->busy_until_ns = ibx_migration_busy_until();
    return rc;
}

enum ibx_migrate_phase ibx_source_phase(const struct source *s)
{
    switch (s->state.now) {
    case SOURCE_ASKING:
        return IBX_PHASE_WAITING;
    case SOURCE_EXPOSING:
        return IBX_PHASE_PREPARING;
    case SOURCE_STARTING: /* no phase comes twice, and the destination's is still "warming", too */
        return s->warm.state.now == WARM_OFF ? IBX_PHASE_PREPARING : IBX_PHASE_WARMING;
    case SOURCE_WARMING:
        return IBX_PHASE_WARMING;
    case SOURCE_STOPPED:
    case SOURCE_SENDING:
        return IBX_PHASE_SWITCHING;
    case SOURCE_COMMITTED:
        return source_linked(&s->link) ? IBX_PHASE_SWITCHING : IBX_PHASE_RECONNECTING;
    case SOURCE_SERVING:
    case SOURCE_CONFIRMING:
        if (s->status.record.state == IBX_JOURNAL_ENDED)
            return IBX_PHASE_ENDED;
        return source_linked(&s->link) ? IBX_PHASE_FILLING : IBX_PHASE_RECONNECTING;
    case SOURCE_DONE:
        return s->status.record.state == IBX_JOURNAL_ENDED ? IBX_PHASE_ENDED : IBX_PHASE_DONE;
    default:
        return IBX_PHASE_FAILED;
    }
}

void ibx_source_update(struct source *s)
{
    s->status.ram_bytes = s->vm.ram.bytes;
    s->status.state_bytes = s->stream.bytes;
    s->status.source_cpu_ns = s->link.cpu_ns;
    if (s->state.now != SOURCE_ASKING) {
        s->status.pages = s->vm.map.pages;
        s->status.zero_pages = s->vm.map.pages - s->vm.map.data_pages;
    }
    if (s->link.pages)
        memcpy(s->status.path, ibx_page_server_path(s->link.pages)->description,
               sizeof(s->status.path));
}
