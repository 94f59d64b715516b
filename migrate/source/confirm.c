/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of the source's side. Every page is at the destination, which has that on record; so has
 * this side, before it says so. What is left is that the destination hears it, too: a tool there
 * that has not would wait for it. Whoever is told knows that nothing is needed any more, so this
 * can be said at any time, by anybody who has the record, and as often as it takes.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>

#define CONFIRM_MS 30000 /* for the destination to say that it has heard it */
#define AGAIN_MS   500   /* between two tries */

int ibx_source_confirm(struct source *s, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_CONFIRM};
    int rc = ibx_source_record(s, IBX_JOURNAL_DONE, err);
    if (rc)
        return rc;
    ibx_source_move(s, SOURCE_CONFIRMING);
    s->confirm_by_ns = ibx_deadline_in_ms(CONFIRM_MS);
    s->interrupts = 0;
    message.is.epoch = s->status.record.epoch;
    if (ibx_channel_send(&s->control, &message))
        ibx_source_link_close(s);
    return 0;
}

static void say_unheard(const struct source *s)
{
    ibx_migration_notify(
        &s->options->observer,
        "the VM runs at %s with all of its pages, but that this is confirmed may not have "
        "been heard there: if ib-migrate status there says complete, ib-migrate recover there "
        "and then here (--qmp %s) lets it end",
        s->status.record.peer, s->status.record.qmp);
}

void ibx_source_await_confirmed(struct source *s,
                                int (*hear)(void *context, const struct ibx_migrate_any *message),
                                void *context)
{
    struct ibx_error silent = {0};
    const struct ibx_options options = ibx_migration_retry_options(&s->transport);
    if (s->pages) /* they are of no more use: that they end is no news, but would wake for ever */
        ibx_page_server_failed(s->pages, &silent);
    if (s->linked && !s->confirmed && ibx_channel_take(&s->control, hear, context, &silent)) {
        ibx_source_link_close(s);
        s->retry_ns = ibx_deadline_in_ms(AGAIN_MS);
    }
    if (!s->linked && !s->confirmed && ibx_now_ns() >= s->retry_ns) {
        s->confirmed = !ibx_migration_confirm(&s->status.record, &options, &silent);
        s->retry_ns = ibx_deadline_in_ms(AGAIN_MS);
    }
    const bool late = s->interrupts || ibx_now_ns() >= s->confirm_by_ns;
    if (!s->confirmed && !late)
        return;
    if (!s->confirmed)
        say_unheard(s);
    s->status.total_ns = ibx_now_ns() - s->status.began_ns;
    ibx_source_move(s, SOURCE_DONE);
}
