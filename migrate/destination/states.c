/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"

#include <string.h>

static const struct ibx_state destination_states[] = {
    [DESTINATION_LISTENING] = {"listening",
                               IBX_TO(DESTINATION_JOINING) | IBX_TO(DESTINATION_GIVEN_UP),
                               IBX_STATE_INITIAL},
    [DESTINATION_JOINING] = {"joining", IBX_TO(DESTINATION_READY) | IBX_TO(DESTINATION_GIVEN_UP),
                             0},
    [DESTINATION_READY] = {"ready", IBX_TO(DESTINATION_MAPPED) | IBX_TO(DESTINATION_GIVEN_UP), 0},
    [DESTINATION_MAPPED] = {"mapped", IBX_TO(DESTINATION_WAITING) | IBX_TO(DESTINATION_GIVEN_UP),
                            0},
    [DESTINATION_WAITING] = {"waiting",
                             IBX_TO(DESTINATION_RESUMING) | IBX_TO(DESTINATION_GIVEN_UP) |
                                 IBX_TO(DESTINATION_ANSWERING),
                             0},
    [DESTINATION_RESUMING] = {"resuming",
                              IBX_TO(DESTINATION_FILLING) | IBX_TO(DESTINATION_GIVEN_UP) |
                                  IBX_TO(DESTINATION_ANSWERING) | IBX_TO(DESTINATION_FAILED) |
                                  IBX_TO(DESTINATION_LEFT) | IBX_TO(DESTINATION_BROKEN) |
                                  IBX_TO(DESTINATION_SHUT_DOWN),
                              IBX_STATE_INITIAL},
    [DESTINATION_FILLING] = {"filling",
                             IBX_TO(DESTINATION_COMPLETE) | IBX_TO(DESTINATION_GIVEN_UP) |
                                 IBX_TO(DESTINATION_FAILED) | IBX_TO(DESTINATION_LEFT) |
                                 IBX_TO(DESTINATION_BROKEN) | IBX_TO(DESTINATION_SHUT_DOWN),
                             IBX_STATE_INITIAL},
    [DESTINATION_COMPLETE] = {"complete",
                              IBX_TO(DESTINATION_DONE) | IBX_TO(DESTINATION_LEFT) |
                                  IBX_TO(DESTINATION_BROKEN),
                              IBX_STATE_INITIAL},
    [DESTINATION_SHUT_DOWN] = {"shut down",
                               IBX_TO(DESTINATION_DONE) | IBX_TO(DESTINATION_LEFT) |
                                   IBX_TO(DESTINATION_BROKEN),
                               IBX_STATE_INITIAL},
    [DESTINATION_DONE] = {"done", 0, IBX_STATE_FINAL},
    [DESTINATION_ANSWERING] = {"answering", IBX_TO(DESTINATION_GIVEN_UP), 0},
    [DESTINATION_GIVEN_UP] = {"given up", 0, IBX_STATE_FINAL},
    [DESTINATION_FAILED] = {"failed", 0, IBX_STATE_FINAL},
    [DESTINATION_LEFT] = {"left", 0, IBX_STATE_FINAL},
    [DESTINATION_BROKEN] = {"broken", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table destination_table =
    IBX_STATE_TABLE("destination", destination_states);

static const struct ibx_state peer_states[] = {
    [PEER_QUIET] = {"quiet", IBX_TO(PEER_ABORTED) | IBX_TO(PEER_CONFIRMED), IBX_STATE_INITIAL},
    [PEER_ABORTED] = {"aborted", IBX_TO(PEER_CONFIRMED), IBX_STATE_FINAL},
    [PEER_CONFIRMED] = {"confirmed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table peer_table = IBX_STATE_TABLE("destination peer", peer_states);

int ibx_destination_begin(struct destination *d, enum destination_state first)
{
    int rc = ibx_state_begin(&d->peer, &peer_table, PEER_QUIET);
    return rc ? rc : ibx_state_begin(&d->state, &destination_table, first);
}

int ibx_destination_move(struct destination *d, enum destination_state to, struct ibx_error *err)
{
    int rc = ibx_migration_enter(&d->state, "destination", to, err);
    if (!rc && to >= DESTINATION_MAPPED && to <= DESTINATION_RESUMING)
        d->busy_until_ns = ibx_migration_busy_until();
    return rc;
}

/* How a state looks from outside: the phase, with a link and without one, and the state in an
 * ANSWER. */
static const struct {
    enum ibx_migrate_phase linked, lost;
    enum ibx_answer_state answer;
} views[] = {
    [DESTINATION_LISTENING] = {IBX_PHASE_WAITING, IBX_PHASE_WAITING, IBX_ANSWER_NONE},
    [DESTINATION_JOINING] = {IBX_PHASE_PREPARING, IBX_PHASE_PREPARING, IBX_ANSWER_NONE},
    [DESTINATION_READY] = {IBX_PHASE_PREPARING, IBX_PHASE_PREPARING, IBX_ANSWER_NONE},
    [DESTINATION_MAPPED] = {IBX_PHASE_SWITCHING, IBX_PHASE_SWITCHING, IBX_ANSWER_NONE},
    [DESTINATION_WAITING] = {IBX_PHASE_SWITCHING, IBX_PHASE_RECONNECTING, IBX_ANSWER_WAITING},
    [DESTINATION_RESUMING] = {IBX_PHASE_SWITCHING, IBX_PHASE_RECONNECTING, IBX_ANSWER_RUNNING},
    [DESTINATION_FILLING] = {IBX_PHASE_FILLING, IBX_PHASE_RECONNECTING, IBX_ANSWER_RUNNING},
    [DESTINATION_COMPLETE] = {IBX_PHASE_FILLING, IBX_PHASE_RECONNECTING, IBX_ANSWER_COMPLETE},
    [DESTINATION_SHUT_DOWN] = {IBX_PHASE_ENDED, IBX_PHASE_RECONNECTING, IBX_ANSWER_ENDED},
    [DESTINATION_DONE] = {IBX_PHASE_DONE, IBX_PHASE_DONE, IBX_ANSWER_COMPLETE},
    [DESTINATION_ANSWERING] = {IBX_PHASE_FAILED, IBX_PHASE_FAILED, IBX_ANSWER_GIVEN_UP},
    [DESTINATION_GIVEN_UP] = {IBX_PHASE_FAILED, IBX_PHASE_FAILED, IBX_ANSWER_GIVEN_UP},
    [DESTINATION_FAILED] = {IBX_PHASE_FAILED, IBX_PHASE_FAILED, IBX_ANSWER_NONE},
    [DESTINATION_LEFT] = {IBX_PHASE_FAILED, IBX_PHASE_FAILED, IBX_ANSWER_NONE},
    [DESTINATION_BROKEN] = {IBX_PHASE_FAILED, IBX_PHASE_FAILED, IBX_ANSWER_NONE},
};

enum ibx_migrate_phase ibx_destination_phase(const struct destination *d)
{
    if (d->status.record.state == IBX_JOURNAL_ENDED)
        return IBX_PHASE_ENDED;
    if (d->state.now == DESTINATION_READY && d->warm.state.now != WARM_OFF)
        return IBX_PHASE_WARMING;
    return destination_linked(&d->link) ? views[d->state.now].linked : views[d->state.now].lost;
}

enum ibx_answer_state ibx_destination_answer_state(const struct destination *d)
{
    if (d->status.record.state == IBX_JOURNAL_ENDED)
        return IBX_ANSWER_ENDED;
    return views[d->state.now].answer;
}

int ibx_destination_record(struct destination *d, enum ibx_journal_state state,
                           struct ibx_error *err)
{
    return ibx_migration_record(d->options->folder, &d->status.record, state, err);
}

void ibx_destination_update(struct destination *d)
{
    d->status.ram_bytes = d->ram.guest.bytes;
    d->status.max_bandwidth = d->ram.max_bandwidth;
    d->status.state_bytes = d->stream.total;
    if (d->qemu.status[0])
        memcpy(d->status.record.vm_status, d->qemu.status, sizeof(d->qemu.status));
    ibx_destination_ram_stats(&d->ram, &d->status);
}
