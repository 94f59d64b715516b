/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ANSWERED_MS 1000 /* for a source to take that BROKEN has been understood */

static int unexpected(const struct destination *d, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    return ibx_error_set(err, -EPROTO, "the source sent %s while the destination was %s",
                         ibx_migrate_message_name(message->type),
                         ibx_state_name(d->state.table, d->state.now));
}

/* The device state and the page map are taken in any order. */
static bool takes_state(const struct destination *d)
{
    return (d->state.now == DESTINATION_READY || d->state.now == DESTINATION_MAPPED) &&
           d->stream.state.now == STREAM_TAKING;
}

static bool takes_map(const struct destination *d)
{
    return d->link.state.now == LINK_OPEN &&
           (d->state.now == DESTINATION_READY || d->state.now == DESTINATION_WAITING ||
            d->state.now == DESTINATION_RESUMING || d->state.now == DESTINATION_FILLING);
}

static int on_map_end(struct destination *d, const struct ibx_migrate_map_end *end,
                      struct ibx_error *err)
{
    const struct ibx_page_map *map = &d->ram.map;
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    ibx_page_map_hash(map, hash);
    if (map->next != map->pages || end->pages != map->pages || end->data_pages != map->data_pages ||
        memcmp(hash, end->hash, sizeof(hash)))
        return ibx_error_set(err, -EPROTO,
                             "the page map does not add up: %" PRIu64 " of %" PRIu64
                             " pages, %" PRIu64 " with data, announced %" PRIu64,
                             map->next, map->pages, map->data_pages, end->data_pages);
    d->link.map_end = *end;
    int rc = d->state.now == DESTINATION_READY ? ibx_destination_early_check(d, err) : 0;
    if (rc)
        return rc;
    if (d->state.now == DESTINATION_READY)
        ibx_destination_base_note(&d->ram);
    rc = ibx_destination_warm_apply(d, err);
    if (!rc)
        ibx_destination_arrived_had(&d->ram);
    return rc ? rc : ibx_state_move(&d->link.state, LINK_MAPPED);
}

/* The first one means that the VM is about to stop. */
static int on_state(struct destination *d, const struct ibx_bytes *state, struct ibx_error *err)
{
    if (!d->stream.total) {
        d->busy_until_ns = ibx_migration_busy_until();
        ibx_destination_compared_ask(d); /* QEMU answers before it has loaded */
    }
    int rc = ibx_destination_stream_append(&d->stream, state->bytes, state->length, err);
    return rc || ibx_destination_warm_holds(d) ? rc : ibx_destination_stream_feed(&d->stream, err);
}

static int on_commit(struct destination *d, const struct ibx_migrate_any *message,
                     struct ibx_error *err)
{
    if (d->state.now != DESTINATION_WAITING || message->is.commit.epoch != d->status.record.epoch)
        return unexpected(d, message, err);
    d->wish = message->is.commit.runs ? WISH_RUNS : WISH_PAUSED;
    return ibx_destination_commit(d, err);
}

/* The VM has been running here for long, or waits to be continued. */
static int on_decided(struct destination *d, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    if (!d->qemu.managed || !destination_ours(d) || message->is.epoch != d->status.record.epoch)
        return unexpected(d, message, err);
    if (d->state.now == DESTINATION_RESUMING)
        ibx_destination_qemu_decided(&d->qemu);
    return 0;
}

static int on_confirm(struct destination *d, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    if (!destination_settled(d) || !d->complete_ns || message->is.epoch != d->status.record.epoch)
        return unexpected(d, message, err);
    return d->peer.now == PEER_CONFIRMED ? 0 : ibx_state_move(&d->peer, PEER_CONFIRMED);
}

static int on_abort(struct destination *d, const char *why, struct ibx_error *err)
{
    if (d->peer.now == PEER_QUIET)
        ibx_state_move(&d->peer, PEER_ABORTED);
    if (d->qemu.managed && destination_ours(d) && !destination_settled(d))
        return ibx_destination_taken_back(d, why, err);
    return ibx_error_set(err, -ECONNABORTED, "the source gave up: %s", why);
}

static int on_broken(struct destination *d, const struct ibx_migrate_any *message,
                     struct ibx_error *err)
{
    /* The source may know this even if pages are not compared. In WAITING its COMMIT was lost. */
    if (!destination_ours(d) && d->state.now != DESTINATION_WAITING)
        return unexpected(d, message, err);
    ibx_error_set(err, -EBADMSG, "%s", message->is.reason);
    struct ibx_migrate_any answer = *message; /* which the source waits for */
    const bool back =
        !strncmp(message->is.reason, IBX_MIGRATE_TAKEN_BACK, sizeof(IBX_MIGRATE_TAKEN_BACK) - 1);
    int rc = back ? ibx_destination_rolled_back(d, err) : ibx_destination_broken(d, false, err);
    if (d->unpaused.code)
        snprintf(answer.is.reason, sizeof(answer.is.reason), "%s%.700s", IBX_MIGRATE_NOT_PAUSED,
                 d->unpaused.message);
    if (destination_over(d) && destination_linked(&d->link) &&
        !ibx_channel_send(&d->link.control, &answer, NULL))
        ibx_channel_linger(&d->link.control, ibx_deadline_in_ms(ANSWERED_MS));
    return rc;
}

int ibx_destination_on_message(void *context, const struct ibx_migrate_any *message)
{
    struct message_context *h = context;
    struct destination *d = h->destination;
    d->messages++;
    switch (message->type) {
    case IBX_MIGRATE_STATE:
        return takes_state(d) ? on_state(d, &message->is.state, h->err)
                              : unexpected(d, message, h->err);
    case IBX_MIGRATE_STATE_END:
        if (!takes_state(d) || d->link.state.now < LINK_MAPPED)
            return unexpected(d, message, h->err);
        return ibx_destination_stream_end(&d->stream, message->is.state_bytes, h->err);
    case IBX_MIGRATE_MAP:
        return takes_map(d) ? ibx_page_map_decode(&d->ram.map, message->is.map.bytes,
                                                  message->is.map.length, h->err)
                            : unexpected(d, message, h->err);
    case IBX_MIGRATE_MAP_END:
        return takes_map(d) ? on_map_end(d, &message->is.map_end, h->err)
                            : unexpected(d, message, h->err);
    case IBX_MIGRATE_PAGES:
        if (!takes_state(d) || (d->link.state.now < LINK_MAPPED && !d->ram.kept))
            return unexpected(d, message, h->err);
        return ibx_destination_early_take(d, &message->is.pages, h->err);
    case IBX_MIGRATE_ROUND:
        return ibx_destination_warm_on_round(d, &message->is.map, h->err);
    case IBX_MIGRATE_ROUND_END:
        return ibx_destination_warm_on_end(d, &message->is.round, h->err);
    case IBX_MIGRATE_COMMIT:
        return on_commit(d, message, h->err);
    case IBX_MIGRATE_DECIDED:
        return on_decided(d, message, h->err);
    case IBX_MIGRATE_COMPARED:
        return d->ram.borrow && destination_ours(d)
                   ? ibx_destination_on_compared(d, message->is.compared, h->err)
                   : unexpected(d, message, h->err);
    case IBX_MIGRATE_CONFIRM:
        return on_confirm(d, message, h->err);
    case IBX_MIGRATE_BROKEN:
        return on_broken(d, message, h->err);
    case IBX_MIGRATE_ABORT:
        return on_abort(d, message->is.reason, h->err);
    default:
        return unexpected(d, message, h->err);
    }
}
