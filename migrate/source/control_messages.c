/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int unexpected(const struct source *s, const struct ibx_migrate_any *message,
                      struct ibx_error *err)
{
    return ibx_error_set(err, -EPROTO, "the destination sent %s while the source was %s",
                         ibx_migrate_message_name(message->type),
                         ibx_state_name(s->state.table, s->state.now));
}

/* Notes the status of the VM there, and tells the operator if nobody has stopped it. */
static void note_status(struct source *s, const char *status)
{
    struct ibx_record *record = &s->status.record;
    char why[IBX_ERROR_MAX];
    const bool news = strcmp(record->vm_status, status) != 0;
    snprintf(record->vm_status, sizeof(record->vm_status), "%s", status);
    if (news && ibx_vm_say_stopped(NULL, status, why, sizeof(why), 0))
        ibx_migration_notify(&s->options->observer, "the VM is stopped there (\"%s\"): %s", status,
                             why);
}

/* A destination's tool counts from its own start. The first figures after a reconnection that are
 * less than before are those of a recover, and what the tool before it fetched belongs to this
 * migration, too. */
static void keep_earlier(struct source *s, const struct ibx_migrate_progress *progress)
{
    struct source_earlier *earlier = &s->earlier;
    if (earlier->reconnects == s->status.reconnects)
        return;
    earlier->reconnects = s->status.reconnects;
    if (progress->bytes >= s->status.bytes - earlier->bytes &&
        progress->faults >= s->status.faults - earlier->faults)
        return;
    earlier->bytes = s->status.bytes;
    earlier->faults = s->status.faults;
    earlier->fault_max_ns = s->status.fault_max_ns;
}

static void on_progress(struct source *s, const struct ibx_migrate_progress *progress)
{
    if (s->state.now == SOURCE_CONFIRMING) /* QEMU there is slow to let go: CONFIRMED waits */
        ibx_source_await_longer(s);
    if (progress->status[0])
        note_status(s, progress->status);
    s->vm.ran_there |= !strcmp(progress->status, "running");
    s->status.present = progress->present;
    keep_earlier(s, progress);
    s->status.bytes = s->earlier.bytes + progress->bytes;
    s->status.faults = s->earlier.faults + progress->faults;
    if (progress->faults || !s->earlier.faults) {
        s->status.fault_p50_ns = progress->fault_p50_ns;
        s->status.fault_p99_ns = progress->fault_p99_ns;
    }
    s->status.fault_max_ns = progress->fault_max_ns > s->earlier.fault_max_ns
                                 ? progress->fault_max_ns
                                 : s->earlier.fault_max_ns;
}

/* The downtime ends only when the VM runs there. */
static int on_running(struct source *s, const char *status, struct ibx_error *err)
{
    s->status.message[0] = 0; /* it said that RUNNING was overdue */
    s->vm.ran_there |= strcmp(status, "paused") != 0;
    note_status(s, status);
    if (s->state.now != SOURCE_COMMITTED)
        return 0;
    if (s->vm.ran && s->vm.stop_ns && !strcmp(status, "running")) {
        uint64_t now = ibx_now_ns();
        s->status.commit_ns = now - s->loaded_ns;
        s->status.downtime_ns = now - s->vm.stop_ns;
    }
    int rc = ibx_source_move(s, SOURCE_SERVING, err);
    if (!rc && !strcmp(status, "paused"))
        ibx_source_blame_export(s);
    if (!rc)
        ibx_source_verify_ahead(s);
    return rc;
}

/* Pages that were not fetched are of no use to anybody. */
static int on_ended(struct source *s, const char *reason, struct ibx_error *err)
{
    const bool returned = s->status.record.borrow && !strcmp(reason, IBX_JOURNAL_RETURNED);
    if (s->peer.now != PEER_ENDED)
        ibx_migration_notify(&s->options->observer,
                             returned ? "the VM has returned: this QEMU is not needed any more"
                                      : "the guest has shut the VM down at the destination: pages "
                                        "that are still here are not needed any more");
    snprintf(s->status.record.vm_status, sizeof(s->status.record.vm_status), "%s", reason);
    int rc = s->state.now == SOURCE_COMMITTED ? ibx_source_move(s, SOURCE_SERVING, err) : 0;
    return rc || s->peer.now == PEER_ENDED ? rc : ibx_state_move(&s->peer, PEER_ENDED);
}

static int on_complete(struct source *s, const struct ibx_migrate_totals *totals,
                       struct ibx_error *err)
{
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    const struct ibx_page_map *map = &s->vm.map;
    on_progress(s, &totals->progress);
    ibx_page_map_hash(map, hash);
    if (totals->pages != map->pages || memcmp(totals->hash, hash, sizeof(hash)))
        return ibx_source_other_map(s, totals, err);
    s->complete_epoch = s->status.record.epoch;
    if (s->peer.now == PEER_COMPLETE)
        return 0;
    ibx_source_all_came(s);
    return ibx_state_move(&s->peer, PEER_COMPLETE);
}

/* Pages came twice there, with different bytes; or, when a VM returns, a page was there before the
 * right one came; or the file of its guest RAM was cut short. */
static int on_broken(struct source *s, const struct ibx_migrate_any *message, struct ibx_error *err)
{
    if (s->state.now != SOURCE_COMMITTED && s->state.now != SOURCE_SERVING)
        return unexpected(s, message, err);
    ibx_error_set(err, -EBADMSG, "%s", message->is.reason);
    return ibx_source_broken(s, false, err);
}

/* After RUNNING an ABORT means that the VM's QEMU has ended there. */
static int on_abort(struct source *s, const char *why, struct ibx_error *err)
{
    if (s->state.now == SOURCE_SERVING)
        return ibx_source_lose_vm(s, why, err);
    if (ibx_state_allows(s->peer.table, s->peer.now, PEER_ABORTED) &&
        s->state.now <= SOURCE_COMMITTED)
        ibx_state_move(&s->peer, PEER_ABORTED);
    return ibx_error_set(err, -ECONNABORTED, "the destination gave up: %s", why);
}

/* Whether the destination may send this now. */
static bool is_expected(const struct source *s, enum ibx_migrate_message type)
{
    const enum source_state now = s->state.now;
    const bool quiet = now == SOURCE_EXPOSING && s->peer.now == PEER_QUIET;
    if (s->peer.now == PEER_ABORTED)
        return type == IBX_MIGRATE_ABORT; /* whoever has given up says nothing more */
    switch (type) {
    case IBX_MIGRATE_READY:
        return quiet;
    case IBX_MIGRATE_HAVE:
    case IBX_MIGRATE_HAVE_END:
        return quiet && source_returns(s);
    case IBX_MIGRATE_LOADED:
        return now == SOURCE_SENDING && s->stream.state.now >= STREAM_HELD &&
               s->peer.now == PEER_READY;
    case IBX_MIGRATE_RUNNING:
        return source_committed(s);
    case IBX_MIGRATE_PROGRESS:
        return source_committed(s) || now == SOURCE_WARMING;
    case IBX_MIGRATE_ROUND_DONE:
        return now == SOURCE_WARMING;
    case IBX_MIGRATE_COMPLETE: /* sent again before CONFIRM had come */
        return now == SOURCE_CONFIRMING || (now == SOURCE_SERVING && s->peer.now != PEER_ENDED);
    case IBX_MIGRATE_ENDED:
        return now == SOURCE_CONFIRMING ||
               ((now == SOURCE_COMMITTED || now == SOURCE_SERVING) && s->peer.now != PEER_COMPLETE);
    case IBX_MIGRATE_CONFIRMED:
        return now == SOURCE_CONFIRMING;
    case IBX_MIGRATE_DIGEST:
        return now == SOURCE_CONFIRMING || (source_committed(s) && s->status.record.verify);
    case IBX_MIGRATE_BROKEN:
    case IBX_MIGRATE_ABORT:
        return true;
    default:
        return false;
    }
}

int ibx_source_on_message(void *context, const struct ibx_migrate_any *message)
{
    struct message_context *h = context;
    struct source *s = h->source;
    const bool confirming = s->state.now == SOURCE_CONFIRMING;
    s->messages++;
    s->heard_ns = ibx_now_ns();
    if (!is_expected(s, message->type))
        return unexpected(s, message, h->err);
    switch (message->type) {
    case IBX_MIGRATE_READY:
        ibx_source_link_quiet(&s->link);
        return ibx_state_move(&s->peer, PEER_READY);
    case IBX_MIGRATE_HAVE:
    case IBX_MIGRATE_HAVE_END:
        return ibx_source_return_on_have(s, message, h->err);
    case IBX_MIGRATE_LOADED:
        return ibx_state_move(&s->peer, PEER_LOADED);
    case IBX_MIGRATE_RUNNING:
        return on_running(s, message->is.status, h->err);
    case IBX_MIGRATE_PROGRESS:
        on_progress(s, &message->is.progress);
        return 0;
    case IBX_MIGRATE_ROUND_DONE:
        return ibx_source_warm_on_done(s, &message->is.round_done, h->err);
    case IBX_MIGRATE_COMPLETE:
        return confirming ? 0 : on_complete(s, &message->is.totals, h->err);
    case IBX_MIGRATE_ENDED:
        return confirming ? 0 : on_ended(s, message->is.status, h->err);
    case IBX_MIGRATE_CONFIRMED:
        return s->peer.now == PEER_CONFIRMED ? 0 : ibx_state_move(&s->peer, PEER_CONFIRMED);
    case IBX_MIGRATE_DIGEST:
        return confirming ? 0 : ibx_source_on_digest(s, &message->is.digest, h->err);
    case IBX_MIGRATE_BROKEN:
        return on_broken(s, message, h->err);
    case IBX_MIGRATE_ABORT:
        return on_abort(s, message->is.reason, h->err);
    default:
        return 0;
    }
}
