/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages that come while the VM still runs at the source. Each part has a fault engine of its own,
 * which uses the page connections, and for which all other pages count as present. A page that
 * comes again is dropped before: it becomes a hole in the file of guest RAM, and the kernel reports
 * the first touch of it like that of any page that has not come. QEMU gets none of the device state
 * before the last of these are dropped: loading it reads guest RAM.
 */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static const struct ibx_state warm_states[] = {
    [WARM_OFF] = {"off", IBX_TO(WARM_WISHED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [WARM_WISHED] = {"wished", IBX_TO(WARM_OFF) | IBX_TO(WARM_IDLE), IBX_STATE_FINAL},
    [WARM_IDLE] = {"idle", IBX_TO(WARM_NAMED) | IBX_TO(WARM_PREPARED), IBX_STATE_FINAL},
    [WARM_NAMED] = {"named", IBX_TO(WARM_FETCHING), IBX_STATE_FINAL},
    [WARM_FETCHING] = {"fetching", IBX_TO(WARM_IDLE), IBX_STATE_FINAL},
    [WARM_PREPARED] = {"prepared", IBX_TO(WARM_SETTLED), IBX_STATE_FINAL},
    [WARM_SETTLED] = {"settled", IBX_TO(WARM_APPLIED), IBX_STATE_FINAL},
    [WARM_APPLIED] = {"applied", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table warm_table = IBX_STATE_TABLE("destination warm", warm_states);

void ibx_destination_warm_init(struct destination_warm *warm)
{
    ibx_state_begin(&warm->state, &warm_table, WARM_OFF);
}

int ibx_destination_warm_wish(struct destination_warm *warm, bool wished)
{
    const unsigned to = wished ? WARM_WISHED : WARM_OFF;
    return warm->state.now == to ? 0 : ibx_state_move(&warm->state, to);
}

int ibx_destination_warm_begin(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_page_map_init_ram(&d->warm.part, &d->ram.guest, err);
    if (!rc)
        rc = ibx_page_map_init_ram(&d->warm.gone, &d->ram.guest, err);
    if (!rc)
        rc = ibx_page_map_init_ram(&d->ram.had, &d->ram.guest, err);
    return rc ? rc : ibx_state_move(&d->warm.state, WARM_IDLE);
}

void ibx_destination_warm_fini(struct destination_warm *warm)
{
    ibx_page_map_fini(&warm->part);
    ibx_page_map_fini(&warm->gone);
}

/* ---------------------------------------------------------------- dropping */

/* The pages of `part` that are here do not count any more. */
static int forget(struct destination *d, struct ibx_error *err)
{
    struct destination_warm *warm = &d->warm;
    ibx_page_map_copy(&warm->gone, &warm->part);
    ibx_page_map_keep(&warm->gone, &d->ram.had);
    return ibx_destination_ram_forget(&d->ram, &warm->gone, err);
}

/* The same, and they become holes, so that QEMU finds none of them. */
static int drop(struct destination *d, struct ibx_error *err)
{
    int rc = forget(d, err);
    if (destination_ram_covered(&d->ram))
        ibx_page_map_remove(&d->home.has, &d->warm.gone);
    return rc ? rc : ibx_destination_ram_drop(&d->ram, &d->warm.gone, err);
}

/* The same for pages that come again, or that the page map will call zero. If QEMU sees no page
 * before it is served, they need not become holes: they come over the old bytes. */
static int drop_stale(struct destination *d, struct ibx_error *err)
{
    return destination_ram_covered(&d->ram) ? forget(d, err) : drop(d, err);
}

/* ---------------------------------------------------------------- a part */

static int send_done(struct destination *d, uint64_t bytes, uint64_t ns, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ROUND_DONE};
    message.is.round_done = (struct ibx_migrate_round_done){d->warm.round.number, bytes, ns};
    return ibx_channel_send(&d->link.control, &message, err);
}

static int fetch(struct destination *d, struct ibx_error *err)
{
    struct destination_warm *warm = &d->warm;
    int rc = ibx_destination_link_check_regions(&d->link, warm->round.regions, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_state_move(&warm->state, WARM_FETCHING);
    warm->since_ns = ibx_now_ns();
    return rc ? rc
              : ibx_destination_ram_fetch(&d->ram, d->link.readers, d->link.count, &warm->part,
                                          err);
}

static int fetched(struct destination *d, struct ibx_error *err)
{
    struct destination_warm *warm = &d->warm;
    struct ibx_fault_stats stats;
    const enum ibx_fault_state state = ibx_fault_state(d->ram.engine);
    if (state == IBX_FAULT_STOPPED)
        return ibx_fault_reason(d->ram.engine, err);
    if (state != IBX_FAULT_COMPLETE) {
        ibx_destination_send_progress(d);
        return 0;
    }
    ibx_fault_stats(d->ram.engine, &stats);
    if (stats.removes) /* pages that were given back are zero now, and count as having come */
        return ibx_error_set(err, -EBUSY,
                             "QEMU has given back guest RAM here while pages of it came: leave its "
                             "memory alone until the VM runs");
    ibx_destination_ram_end_engine(&d->ram);
    for (unsigned i = 0; i < d->link.count; i++)
        ibx_page_reader_disarm(d->link.readers[i]);
    ibx_page_map_add(&d->ram.had, &warm->part);
    d->ram.warm_bytes += stats.bytes;
    d->status.warm_bytes = d->ram.warm_bytes;
    int rc = ibx_state_move(&warm->state, WARM_IDLE);
    return rc ? rc : send_done(d, stats.bytes, ibx_now_ns() - warm->since_ns, err);
}

int ibx_destination_warm_step(struct destination *d, struct ibx_error *err)
{
    int rc = 0;
    if (d->warm.state.now == WARM_NAMED)
        rc = fetch(d, err);
    return !rc && d->warm.state.now == WARM_FETCHING ? fetched(d, err) : rc;
}

/* ---------------------------------------------------------------- messages */

/* Whether ROUND or ROUND_END may come now. */
static bool takes(const struct destination *d)
{
    const unsigned now = d->warm.state.now;
    return d->state.now == DESTINATION_READY && d->link.state.now == LINK_OPEN &&
           (now == WARM_IDLE || now == WARM_PREPARED);
}

static int unexpected(const struct destination *d, const char *what, struct ibx_error *err)
{
    return ibx_error_set(err, -EPROTO,
                         "the source sent %s while the destination was %s, and the pages before "
                         "the stop were %s",
                         what, ibx_state_name(d->state.table, d->state.now),
                         ibx_state_name(&warm_table, d->warm.state.now));
}

int ibx_destination_warm_on_round(struct destination *d, const struct ibx_bytes *piece,
                                  struct ibx_error *err)
{
    struct destination_warm *warm = &d->warm;
    if (!takes(d))
        return unexpected(d, "ROUND", err);
    if (warm->part.next == warm->part.pages) /* the first piece of another round */
        ibx_page_map_restart(&warm->part);
    return ibx_page_map_decode(&warm->part, piece->bytes, piece->length, err);
}

/* Pages that are written from here on are named when the VM has stopped. The engine that will serve
 * them is made now, and told what is here, because that takes a millisecond or two. */
static int prepare(struct destination *d, struct ibx_error *err)
{
    const uint64_t from_ns = ibx_now_ns();
    ibx_destination_compared_ask(d); /* the VM is about to stop there */
    int rc = d->warm.round.kind == IBX_ROUND_STALE ? drop_stale(d, err) : drop(d, err);
    const uint64_t ns = ibx_now_ns() - from_ns;
    if (!rc && d->warm.state.now == WARM_PREPARED)
        return send_done(d, 0, ns, err);
    if (!rc)
        rc = ibx_destination_ram_engine(&d->ram, d->link.readers, d->link.count, false, err);
    if (!rc)
        rc = ibx_destination_ram_mark_had(&d->ram, err);
    if (!rc)
        rc = ibx_state_move(&d->warm.state, WARM_PREPARED);
    return rc ? rc : send_done(d, 0, ns, err);
}

int ibx_destination_warm_on_end(struct destination *d, const struct ibx_migrate_round *round,
                                struct ibx_error *err)
{
    struct destination_warm *warm = &d->warm;
    const bool last = round->kind == IBX_ROUND_LAST, prepared = warm->state.now == WARM_PREPARED;
    const bool fetch = round->kind == IBX_ROUND_FETCH;
    /* In covered memory nothing may be fetched before the stop: QEMU would see such a page, and it
     * could not come again unseen. */
    if (!takes(d) || (last && !prepared) ||
        (fetch && (prepared || destination_ram_covered(&d->ram))))
        return unexpected(d, "ROUND_END", err);
    if (warm->part.next != warm->part.pages || warm->part.data_pages != round->pages ||
        round->number != warm->round.number + 1)
        return ibx_error_set(err, -EPROTO,
                             "round %u does not add up: %" PRIu64 " of %" PRIu64
                             " pages are described, %" PRIu64 " named, announced %" PRIu64,
                             round->number, warm->part.next, warm->part.pages,
                             warm->part.data_pages, round->pages);
    warm->round = *round;
    if (round->kind == IBX_ROUND_DROP || round->kind == IBX_ROUND_STALE)
        return prepare(d, err);
    int rc = drop_stale(d, err);
    return rc ? rc : ibx_state_move(&warm->state, last ? WARM_SETTLED : WARM_NAMED);
}

/* ---------------------------------------------------------------- the page map */

int ibx_destination_warm_apply(struct destination *d, struct ibx_error *err)
{
    struct destination_warm *warm = &d->warm;
    if (warm->state.now == WARM_OFF || warm->state.now == WARM_APPLIED)
        return 0;
    if (warm->state.now != WARM_SETTLED)
        return unexpected(d, "MAP_END", err);
    /* Drops what is zero at the source by now. In covered memory the old bytes of pages that do not
     * count any more may still be there. */
    ibx_page_map_copy(&warm->part, destination_ram_covered(&d->ram) ? &d->home.has : &d->ram.had);
    ibx_page_map_remove(&warm->part, &d->ram.map);
    int rc = forget(d, err);
    if (!rc)
        rc = ibx_destination_ram_drop(&d->ram, &warm->part, err);
    d->status.warm_pages = d->ram.had.data_pages;
    return rc ? rc : ibx_state_move(&warm->state, WARM_APPLIED);
}

bool ibx_destination_warm_holds(const struct destination *d)
{
    if (destination_ram_covered(&d->ram)) /* then QEMU waits at its first touch */
        return false;
    return d->warm.state.now >= WARM_IDLE && d->warm.state.now != WARM_APPLIED;
}
