/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Compares what the destination has received with guest RAM as it is here now. The source keeps
 * everything until all of it is the same. pages/digest.h says what that does not find. */
#include "migrate/common/vm.h"
#include "migrate/source/source.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <string.h>

#define TELL_MS 2000 /* for QEMU to answer */

/* Pages are compared where the link has them mapped to be served. */
static void see_link(struct source *s)
{
    if (s->verifier && !s->status.record.borrow && s->link.pages)
        ibx_verifier_see(s->verifier, ibx_page_server_view(s->link.pages));
}

static int open_verifier(struct source *s, struct ibx_error *err)
{
    if (s->verifier)
        return 0;
    int rc = ibx_verifier_open(&s->vm.ram, &s->vm.map, s->status.record.verify_key, 0, &s->verifier,
                               err);
    if (!rc && s->status.record.borrow)
        ibx_verifier_compare_parts(s->verifier);
    if (!rc && s->stop_map.looked_again)
        ibx_verifier_look_into_holes(s->verifier);
    if (!rc)
        see_link(s);
    if (!rc)
        ibx_verifier_miss(s->verifier, s->missed.first, s->missed.count);
    return rc;
}

/* Without a verifier: digests have come that nobody compares. */
static void miss(struct source *s, const struct ibx_migrate_digest *digest)
{
    const uint64_t first = digest->first / IBX_DIGEST_PAGES;
    const uint64_t end = first + digest->entries.length / IBX_DIGEST_ENTRY;
    const uint64_t before = s->missed.first + s->missed.count;
    s->missed.first = !s->missed.count || first < s->missed.first ? first : s->missed.first;
    s->missed.count = (end > before ? end : before) - s->missed.first;
}

/* Only where there are processors for it, and the destination waits for the wire. */
void ibx_source_verify_ahead(struct source *s)
{
    struct ibx_error later = {0}; /* reported at the first DIGEST */
    if (s->status.record.verify && source_linked(&s->link) && !source_returns(s) &&
        !s->status.record.borrow && ibx_conn_path(s->link.control.conn)->remote &&
        ibx_thread_may_spin() && !open_verifier(s, &later))
        ibx_verifier_foresee(s->verifier);
}

int ibx_source_on_digest(struct source *s, const struct ibx_migrate_digest *digest,
                         struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = open_verifier(s, &why);
    if (rc)
        miss(s, digest);
    else
        rc = ibx_verifier_take(s->verifier, digest->first, &digest->entries, &why);
    s->parts.heard += !rc;
    if (rc && rc != -EPROTO)
        s->given_up = why;
    if (rc && err)
        *err = why;
    return rc;
}

/* Whether QEMU has reported something that is not read yet. When every page has come, somebody may
 * change memory here that is still compared: QEMU reports a reset when it is over. */
static bool has_told(struct source *s)
{
    char status[32];
    return s->protecting.now == PROTECTING_NEEDLESS && s->vm.qmp &&
           !ibx_vm_status(s->vm.qmp, status, sizeof(status), ibx_deadline_in_ms(TELL_MS), NULL) &&
           ibx_qmp_has_events(s->vm.qmp);
}

void ibx_source_verify_unlinked(struct source *s)
{
    if (s->verifier)
        ibx_verifier_see(s->verifier, NULL);
}

/* The digests of a borrowed VM come over a new link as far as they were not answered. */
void ibx_source_verify_anew(struct source *s)
{
    see_link(s);
    s->parts.heard = s->parts.told = 0;
    if (!s->status.record.borrow)
        return;
    s->missed.first = s->missed.count = 0;
    if (s->verifier)
        ibx_verifier_drop_parts(s->verifier);
}

/* `idle`: all that has come was compared, and nothing differs. From here on this side may change
 * these pages. */
static int tell_compared(struct source *s, bool idle, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPARED};
    if (!s->status.record.borrow || !idle || s->parts.told == s->parts.heard ||
        !source_linked(&s->link) || ibx_verifier_missed(s->verifier))
        return 0;
    message.is.compared = s->parts.told = s->parts.heard;
    return ibx_channel_send(&s->link.control, &message, err);
}

int ibx_source_check_pages(struct source *s, struct ibx_error *err)
{
    /* `uncompared` needs COMPLETE, which comes after the last COMPARED of a borrowed VM: no
     * destination waits for another. Before that its memory here is protected, or the migration
     * breaks (intruder.c). */
    if (!s->verifier || !source_committed(s) || s->uncompared)
        return 0;
    struct ibx_error wrong = {0};
    const bool idle = ibx_verifier_idle(s->verifier); /* asked before the result */
    const int rc = ibx_verifier_result(s->verifier, &wrong);
    if (!rc || rc == -EAGAIN)
        return tell_compared(s, idle, err);
    /* What a QEMU that the VM has left reads there may be a page of the VM's life here. All pages
     * that the VM had were compared before it came. */
    if (s->status.record.borrow && ibx_journal_home_marked(s->options->folder, &s->status.record))
        return 0;
    if (s->state.now == SOURCE_CONFIRMING) /* ENDED: the verdict says it */
        return 0;
    if (rc == -ENOMEM) { /* nothing is known of some pages: their digests come over the next link */
        ibx_verifier_try_again(s->verifier);
        s->given_up = wrong;
        *err = wrong;
        return rc;
    }
    if (has_told(s)) /* that is read before this is checked again */
        return 0;
    if (source_linked(&s->link)) {
        *err = wrong;
        return ibx_source_broken(s, true, err);
    }
    /* The VM runs there with these pages until its tool knows: the next link is for that. If this
     * tool ends before that, the next one finds them again: over a new link all is compared again
     * or, of a borrowed VM, what was not answered, as these pages. */
    if (!s->untold)
        ibx_migration_notify(&s->options->observer,
                             "%s; the destination cannot be told before it is connected again: "
                             "pause the VM there",
                             wrong.message);
    s->untold = true;
    memcpy(s->status.message, wrong.message, sizeof(s->status.message));
    return 0;
}

int ibx_source_verified(struct source *s, struct ibx_error *err)
{
    if (!s->status.record.verify || s->uncompared)
        return 0;
    /* Asked before the result, which the last comparison may set meanwhile. */
    const bool idle = !s->verifier || ibx_verifier_idle(s->verifier);
    int rc = s->verifier ? ibx_verifier_result(s->verifier, err) : -EAGAIN;
    /* Of a borrowed VM that stays there: they came before COMPLETE, as far as they were not
     * compared before. */
    if (rc == -EAGAIN && idle && s->status.record.borrow)
        return 0;
    /* Each link brings the digests of all pages before COMPLETE. */
    if (rc == -EAGAIN && idle && s->complete_epoch == s->status.record.epoch)
        return ibx_error_set(err, -EPROTO,
                             "the destination reports the migration as complete without the "
                             "digests of all pages: this side keeps all pages");
    return rc;
}
