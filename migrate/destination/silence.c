/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"

#include "common/clock.h"
#include "common/shell_word.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define REQUEST_MAX (1ull << 20)  /* bytes: of one request to the source, or a whole huge page */
#define AWAY_TIMES  60            /* times timeout_ms, between notices that the source is away */
#define AWAY_MS     10000u        /* a source that waits for recover tries every 5 s */
#define RUNS_MS     10000u        /* for QEMU to run a VM that it has been given */
#define RATE_MIN    (10ull << 20) /* bytes per second: slower links are not expected */

static bool awaits_something(const struct destination *d)
{
    const bool follow = d->ram.borrow != IBX_BORROW_LAZY; /* the pages that nobody waits for */
    const bool incomplete =
        d->link.state.now != LINK_SERVING || (follow && d->status.present < d->status.pages);
    switch (d->state.now) {
    case DESTINATION_WAITING:
        return true;
    case DESTINATION_RESUMING:
        return d->ram.waiting;
    case DESTINATION_FILLING:
        return d->ram.waiting || incomplete;
    case DESTINATION_COMPLETE:
    case DESTINATION_SHUT_DOWN:
        return d->complete_ns && d->peer.now != PEER_CONFIRMED;
    default:
        return false;
    }
}

/* How long one request may take. With a limit on its bandwidth the background makes pauses of its
 * own. */
static uint64_t longest_pause_ns(const struct destination *d)
{
    const uint64_t limit = d->ram.waiting ? 0 : d->ram.max_bandwidth;
    uint64_t bytes = REQUEST_MAX;
    for (size_t i = 0; i < d->ram.guest.count; i++)
        bytes = d->ram.guest.blocks[i].page_size > bytes ? d->ram.guest.blocks[i].page_size : bytes;
    return bytes * 1000 * IBX_NS_PER_MS / (limit && limit < RATE_MIN ? limit : RATE_MIN);
}

/* Whether the VM needs pages of the source. False where libvirt has not continued the VM yet: that
 * matters more, and the operator was told. */
static bool misses_pages(const struct destination *d)
{
    return (d->state.now == DESTINATION_FILLING ||
            (d->state.now == DESTINATION_RESUMING && !d->qemu.managed)) &&
           !ibx_destination_ram_whole(&d->ram);
}

/* How to end QEMU. If it is libvirt's, not by a signal, because libvirt would take the domain for
 * crashed. */
static void how_to_end(const struct ibx_record *record, char *text, size_t size)
{
    if (record->libvirt)
        snprintf(text, size, "virsh destroy %s", ibx_shell_word(record->name).text);
    else
        snprintf(text, size, "kill -9 %d", (int)record->pid);
}

static uint64_t away_every_ns(const struct destination *d)
{
    return (uint64_t)d->transport.timeout_ms * AWAY_TIMES * IBX_NS_PER_MS;
}

/* The least time without a source until the operator is told what to do if it never comes. */
static uint64_t away_first_ns(const struct destination *d)
{
    const uint64_t every_ns = away_every_ns(d);
    return every_ns < AWAY_MS * IBX_NS_PER_MS ? every_ns : AWAY_MS * IBX_NS_PER_MS;
}

void ibx_destination_tell_waits(struct destination *d)
{
    if (!misses_pages(d))
        return;
    d->tell_away_ns = d->lost_ns + away_first_ns(d);
    ibx_migration_notify(
        &d->options->observer,
        "the VM waits for pages until the source is back, which connects by "
        "itself if its ib-migrate is at work (otherwise ib-migrate recover there)");
}

static void tell_away(const struct destination *d, uint64_t now)
{
    const struct ibx_record *record = &d->status.record;
    const uint64_t seconds = (now - d->lost_ns) / (1000 * IBX_NS_PER_MS);
    char end[4 * sizeof(record->name) + 32];
    how_to_end(record, end, sizeof(end));
    ibx_migration_notify(
        &d->options->observer,
        "the source has been away for %" PRIu64 " s: the VM waits for pages until it is back "
        "(ib-migrate recover there); if all of QEMU, ib-migrate and the file of guest RAM are gone "
        "there, these pages are lost, and the VM goes on only until it needs one: end its QEMU "
        "here (%s), start it from its disk, and ib-migrate prune --unfinished %s ends this record",
        seconds, end, ibx_journal_options(record->qmp).text);
}

/* A source that comes back continues by itself. One that is gone for good never says so: the
 * operator is told from time to time. */
static void check_away(struct destination *d)
{
    const uint64_t now = ibx_now_ns();
    if (destination_linked(&d->link)) {
        d->tell_away_ns = 0;
        return;
    }
    if (!d->tell_away_ns)
        d->tell_away_ns = d->lost_ns + away_every_ns(d);
    if (now < d->tell_away_ns || now - d->lost_ns < away_first_ns(d) || !misses_pages(d))
        return;
    d->tell_away_ns = now + away_every_ns(d);
    tell_away(d, now);
}

/* A QEMU that is stopped, or whose disk does not answer, reports nothing. Told once: it may go on
 * by itself, and nobody but it can run the VM now. */
static void check_qemu(struct destination *d)
{
    const uint64_t now = ibx_now_ns();
    const int pid = (int)d->status.record.pid;
    if (d->state.now != DESTINATION_RESUMING || d->qemu.managed || d->ram.waiting) {
        d->loaded_ns = 0;
        return;
    }
    d->loaded_ns = d->loaded_ns ? d->loaded_ns : now;
    if (d->told_loaded || now - d->loaded_ns < RUNS_MS * IBX_NS_PER_MS)
        return;
    d->told_loaded = true;
    ibx_migration_notify(&d->options->observer,
                         "QEMU (process %d) has been given the whole VM, and for %u s has not "
                         "reported that it runs: it may be stopped (kill -CONT %d continues it) "
                         "or wait for a disk; the source keeps all pages meanwhile",
                         pid, RUNS_MS / 1000, pid);
}

/* What notify_lost() has told is over: pages have come, and the link has not been lost for that. */
static void check_room(struct destination *d)
{
    if (!d->full || !destination_linked(&d->link) || d->status.present == d->full_present ||
        ibx_now_ns() - d->back_ns < DESTINATION_SOON_MS * IBX_NS_PER_MS)
        return;
    d->full = false;
    ibx_migration_notify(&d->options->observer,
                         "this host has room for pages again, and the source is back: %s",
                         d->status.record.peer);
}

void ibx_destination_check_silence(struct destination *d)
{
    check_away(d);
    check_room(d);
    check_qemu(d);
    const struct migration_expectation expected = {
        .awaited = destination_linked(&d->link) && awaits_something(d),
        .count = d->status.bytes + d->status.present,
        .pause_ns = longest_pause_ns(d),
        .timeout_ms = d->transport.timeout_ms,
        .means = d->state.now == DESTINATION_WAITING
                     ? "the VM has not run here, and waits for the source to hand it over"
                 : d->state.now == DESTINATION_COMPLETE
                     ? "all pages are here, and only its confirmation is missing"
                 : d->state.now == DESTINATION_SHUT_DOWN
                     ? "the guest has shut the VM down, and only its confirmation is missing"
                     : "the VM waits where it needs a page that has not come",
    };
    ibx_migration_check_silence(&d->silence, &expected, &d->status, &d->options->observer);
}

int ibx_destination_check_stall(struct destination *d, struct ibx_error *err)
{
    const uint64_t limit_ms = ibx_migration_stall_ms(&d->transport), now = ibx_now_ns();
    const uint64_t count = d->messages + d->link.regions + d->status.bytes;
    const bool awaited =
        d->state.now == DESTINATION_JOINING || d->state.now == DESTINATION_READY ||
        (d->state.now == DESTINATION_MAPPED && d->stream.state.now == STREAM_TAKING);
    const bool away = now - d->stall_look_ns > MIGRATION_AWAY_NS;
    d->stall_look_ns = now;
    if (!awaited || away || count != d->stall_count) {
        d->stall_since_ns = now;
        d->stall_count = count;
        return 0;
    }
    if (now - d->stall_since_ns < limit_ms * IBX_NS_PER_MS)
        return 0;
    return ibx_error_set(err, -ETIMEDOUT,
                         "nothing has come from %s for %u s, before the VM could run here: it "
                         "stays there; check whether ib-migrate or QEMU is stopped there, and "
                         "start again",
                         d->status.record.peer, (unsigned)(limit_ms / 1000));
}
