/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a migration whose pages at the destination are not, or may not be, what they were
 * here at the stop. The VM must not go on with them, so its tool there has to learn it: over the
 * link, over a new one where that is lost, or when `recover` is called here.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define TELL_MS       5000 /* for a destination to take BROKEN, or to be reached for that */
#define TELL_AGAIN_MS 250  /* between two tries to reach it */

/* The destination answers BROKEN when the VM is paused. */
static int on_answer(void *context, const struct ibx_migrate_any *message)
{
    bool *told = context;
    if (message->type != IBX_MIGRATE_BROKEN)
        return 0;
    *told = true;
    return -EISCONN;
}

static bool tell(struct source *s, const char *why, uint64_t deadline)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_BROKEN};
    bool told = false;
    memcpy(message.is.reason, why, strnlen(why, sizeof(message.is.reason) - 1));
    if (source_linked(&s->link) && !ibx_channel_send(&s->link.control, &message, NULL))
        ibx_channel_take_until(&s->link.control, on_answer, &told, deadline, NULL);
    return told;
}

/* 0: the destination knows it, or has never run the VM. */
static int tell_anew(struct source *s, const char *why, uint64_t deadline, struct ibx_error *err)
{
    struct ibx_record *record = &s->status.record;
    ibx_source_link_close(&s->link);
    record->epoch++;
    int rc = ibx_migration_record(s->options->folder, record, record->state, err);
    if (!rc)
        rc = ibx_source_link_rejoin(&s->link, err);
    if (rc == -ECANCELED)
        return 0;
    if (!rc && !tell(s, why, deadline))
        rc = ibx_error_set(err, -ETIMEDOUT, "the destination (%s) did not answer", record->peer);
    return rc;
}

static int tell_until(struct source *s, const char *why, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(TELL_MS);
    int rc;
    if (tell(s, why, deadline))
        return 0;
    while ((rc = tell_anew(s, why, deadline, err)) && ibx_now_ns() < deadline)
        poll(NULL, 0, TELL_AGAIN_MS);
    return rc;
}

int ibx_source_broken(struct source *s, bool untold, struct ibx_error *err)
{
    struct ibx_error silent = {0}, mute = {0};
    int rc = ibx_source_move(s, SOURCE_BROKEN, &silent);
    if (rc)
        return ibx_error_set(err, rc, "%s", silent.message);
    if (ibx_migration_record(s->options->folder, &s->status.record, IBX_JOURNAL_BROKEN, &silent))
        ibx_migration_notify(&s->options->observer, "%s", silent.message);
    const struct ibx_error why = *err;
    if (untold && tell_until(s, why.message, &mute))
        ibx_migration_notify(&s->options->observer,
                             "%s could not be told that the migration is broken (%s): pause the VM "
                             "there; \"ib-migrate recover\" here tells its ib-migrate, when one "
                             "runs there",
                             s->status.record.peer, mute.message);
    return ibx_error_set(err, -EBADMSG, "the migration is broken: %s", why.message);
}

int ibx_source_recover_broken(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    struct ibx_error mute = {0};
    int rc = ibx_journal_recall_ram(record, &s->vm.ram, err);
    if (!rc)
        rc = ibx_source_move(s, SOURCE_BROKEN, err);
    if (rc)
        return rc;
    rc = tell_until(s, "its source has found that its memory there may be wrong", &mute);
    return rc ? ibx_error_set(err, -EBADMSG,
                              "the migration is broken, and %s could not be told (%s): unless "
                              "ib-migrate status there says so already, start ib-migrate recover "
                              "there and call it here again, or pause the VM there",
                              record->peer, mute.message)
              : ibx_error_set(err, -EBADMSG, "the migration to %s, which knows it, is broken",
                              record->peer);
}
