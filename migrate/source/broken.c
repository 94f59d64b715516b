/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end of a migration whose pages at the destination are not, or may not be, what they were
 * here at the stop. The VM must not continue with them, so the tool there must learn it: over
 * the link, over a new link if that is lost, or when `recover` is called here. */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define TELL_MS       5000 /* in which new links are made to a destination that has not answered */
#define TELL_ONCE_MS  2500 /* for the answer over one link, which may be cut; a pause takes 2 s */
#define TELL_AGAIN_MS 250  /* between two tries to reach it */

/* What is to be told, and the answer. */
struct telling {
    const char *why;
    bool told;
    struct ibx_error unpaused; /* code not 0: the destination cannot pause the VM */
};

/* The destination answers with BROKEN, too, when the VM is paused, or with why it is not. A BROKEN
 * that it has sent by itself meanwhile shows as well that it knows. */
static int on_answer(void *context, const struct ibx_migrate_any *message)
{
    static const char not_paused[] = IBX_MIGRATE_NOT_PAUSED;
    struct telling *t = context;
    if (message->type != IBX_MIGRATE_BROKEN)
        return 0;
    t->told = true;
    if (!strncmp(message->is.reason, not_paused, sizeof(not_paused) - 1))
        ibx_error_set(&t->unpaused, -EBUSY, "%s", message->is.reason + sizeof(not_paused) - 1);
    return -EISCONN;
}

static bool tell(struct source *s, struct telling *t)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_BROKEN};
    memcpy(message.is.reason, t->why, strnlen(t->why, sizeof(message.is.reason) - 1));
    if (source_linked(&s->link) && !ibx_channel_send(&s->link.control, &message, NULL))
        ibx_channel_take_until(&s->link.control, on_answer, t, ibx_deadline_in_ms(TELL_ONCE_MS),
                               NULL);
    return t->told;
}

/* 0: the destination knows it, or has never run the VM. */
static int tell_anew(struct source *s, struct telling *t, struct ibx_error *err)
{
    enum ibx_answer_state there = (enum ibx_answer_state)0;
    ibx_source_link_close(&s->link);
    int rc = ibx_source_note_epoch(s, err);
    if (!rc)
        rc = ibx_source_link_rejoin(&s->link, &there, err);
    ibx_source_tried(s, rc, there);
    if (rc == -ECANCELED)
        return 0;
    if (!rc && !tell(s, t))
        rc = ibx_error_set(err, -ETIMEDOUT, "the destination (%s) did not answer",
                           s->status.record.peer);
    return rc;
}

static int tell_until(struct source *s, struct telling *t, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(TELL_MS);
    int rc;
    if (tell(s, t))
        return 0;
    while ((rc = tell_anew(s, t, err)) && ibx_now_ns() < deadline)
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
    struct telling telling = {.why = why.message};
    if (untold && tell_until(s, &telling, &mute))
        ibx_migration_notify(&s->options->observer,
                             "%s could not be told that the migration is broken (%s): pause the VM "
                             "there; \"ib-migrate recover\" here tells its ib-migrate, when one "
                             "runs there",
                             s->status.record.peer, mute.message);
    else if (telling.unpaused.code)
        ibx_migration_notify(&s->options->observer,
                             "%s knows that the migration is broken, and could not pause the VM "
                             "(%s): end its QEMU there",
                             s->status.record.peer, telling.unpaused.message);
    return ibx_error_set(err, -EBADMSG, "the migration is broken: %s", why.message);
}

/* Pages that the destination lacks are lost, also those of memory that was removed here. This side
 * names the file, which the end of a link does not, and does not try again: each link would end
 * like the last one. Without a link it may have all pages by now, and over one without page
 * connections it has. */
int ibx_source_check_files(struct source *s, int code, struct ibx_error *err)
{
    struct ibx_error cut = {0};
    const bool needed = s->state.now <= SOURCE_SERVING && s->peer.now <= PEER_LOADED &&
                        (!source_committed(s) || s->link.pages);
    if (!needed || !ibx_guest_ram_check_sizes(&s->vm.ram, false, &cut))
        return code;
    *err = cut;
    return source_committed(s) ? ibx_source_broken(s, true, err) : cut.code;
}

int ibx_source_recover_broken(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    struct telling telling = {.why = "its source has found that its memory there may be wrong"};
    struct ibx_error mute = {0};
    int rc = ibx_journal_recall_ram(record, &s->vm.ram, err);
    if (!rc)
        rc = ibx_source_move(s, SOURCE_BROKEN, err);
    if (rc)
        return rc;
    rc = tell_until(s, &telling, &mute);
    if (telling.unpaused.code)
        return ibx_error_set(err, -EBADMSG,
                             "the migration to %s, which knows it, is broken, and the VM could not "
                             "be paused there (%s): end its QEMU",
                             record->peer, telling.unpaused.message);
    return rc ? ibx_error_set(err, -EBADMSG,
                              "the migration is broken, and %s could not be told (%s): unless "
                              "ib-migrate status there says so already, start ib-migrate recover "
                              "there and call it here again, or pause the VM there",
                              record->peer, mute.message)
              : ibx_error_set(err, -EBADMSG, "the migration to %s, which knows it, is broken",
                              record->peer);
}
