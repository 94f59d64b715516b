/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The destination is lost for good: the VM's QEMU has ended there while its pages were still here,
 * or nobody listens there any more. Waiting brings nothing back: what is left is said, and the tool
 * ends.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define DECIDES_MS   10000 /* for libvirt to continue the VM here, or to end its QEMU */
#define NOBODY_TIMES 60    /* the transport's timeout, for somebody to listen there again */

static const char *peer_of(const struct source *s)
{
    return s->status.record.peer[0] ? s->status.record.peer : s->status.record.uri;
}

int ibx_source_lose_vm(struct source *s, const char *why, struct ibx_error *err)
{
    struct ibx_error unwritten = {0};
    struct ibx_journal *record = &s->status.record;
    snprintf(record->vm_status, sizeof(record->vm_status), "%s", IBX_JOURNAL_QEMU_ENDED);
    if (ibx_migration_record(s->options->folder, record, IBX_JOURNAL_MOVED, &unwritten))
        ibx_migration_notify(&s->options->observer, "%s", unwritten.message);
    snprintf(s->status.message, sizeof(s->status.message), "%s", why);
    s->decide_by_ns = ibx_deadline_in_ms(DECIDES_MS);
    return ibx_source_move(s, SOURCE_LOST, err);
}

/* Pages without the state of the devices, which was in QEMU, are of no use. */
static int lost_here_too(struct source *s, struct ibx_error *err)
{
    ibx_source_remove_files(s);
    return ibx_error_set(err, -ECONNABORTED,
                         "the VM ran at %s, where its QEMU has ended, and so has its QEMU here "
                         "(process %d): nothing can restart it from its stop, start it from its "
                         "disk (%s reports: %s)",
                         peer_of(s), (int)s->status.record.pid, peer_of(s), s->status.message);
}

/* What is left of a VM whose QEMU here lives. */
static const char *what_is_left(const struct source *s)
{
    const struct ibx_journal *record = &s->status.record;
    return record->borrow && ibx_journal_base_touched(s->options->folder, record)
               ? "a return of it had begun, so that its memory here is not what it was at its "
                 "stop: unless it runs in another QEMU here (ib-migrate status), start it from its "
                 "disk"
               : NULL;
}

int ibx_source_vm_lost(struct source *s, struct ibx_error *err)
{
    const struct ibx_journal *record = &s->status.record;
    const bool managed = source_managed(&s->vm);
    ibx_source_link_close(&s->link);
    if (managed) /* who continues the VM now may write to its memory */
        ibx_guard_release(&s->guard);
    if (managed && s->vm.qmp && ibx_now_ns() < s->decide_by_ns)
        return 0;
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    if (rc)
        return rc;
    if (managed)
        ibx_journal_unlink_files(record);
    if (ibx_journal_qemu_gone(record))
        return lost_here_too(s, err);
    return ibx_error_set(
        err, -ECONNABORTED, "the VM ran at %s, where its QEMU has ended: %s (%s reports: %s)",
        peer_of(s),
        what_is_left(s) ? what_is_left(s)
        : managed ? "virsh resume here continues it from its stop, then ib-migrate rollback ends "
                    "what is left of the migration"
                  : "its QEMU here has its memory as it was, and ib-migrate rollback continues it "
                    "from its stop",
        peer_of(s), s->status.message);
}

int ibx_source_was_lost(struct source *s, struct ibx_error *err)
{
    snprintf(s->status.message, sizeof(s->status.message), "it was said before");
    int rc = ibx_source_move(s, SOURCE_LOST, err);
    return rc ? rc : ibx_source_vm_lost(s, err);
}

int ibx_source_check_nobody(struct source *s, struct ibx_error *err)
{
    const uint64_t limit_ms = (uint64_t)s->transport.timeout_ms * NOBODY_TIMES;
    if (s->options->give_up_s || !s->nobody_ns ||
        ibx_now_ns() - s->nobody_ns < limit_ms * IBX_NS_PER_MS)
        return 0;
    int rc = ibx_source_move(s, SOURCE_LEFT, err);
    if (rc)
        return rc;
    const bool gone = ibx_journal_qemu_gone(&s->status.record);
    return ibx_error_set(
        err, -ETIMEDOUT,
        "for %" PRIu64
        " s nobody has listened at %s, where the VM may run: if its QEMU (virsh list) is "
        "there, call ib-migrate recover there, then here; if it is not, %s",
        limit_ms / 1000, s->status.record.uri,
        what_is_left(s) ? what_is_left(s)
        : gone ? "nothing can restart the VM from its stop, because its QEMU here has ended, too: "
                 "start it from its disk"
               : "ib-migrate rollback here restarts the VM from its stop");
}
