/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where libvirt drives QEMU's migration: what it sets, its gate, and what it decides. It continues
 * the VM here when its migration has failed at the destination, and otherwise ends QEMU here.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>

#define SET_MS  10000 /* for libvirt to set pause-before-switchover, once it may connect */
#define LAST_MS 1000  /* for the destination to say that its QEMU has ended */

/* ---------------------------------------------------------------- before the stop */

void ibx_source_libvirt_link_files(struct source *s)
{
    struct ibx_error why = {0};
    if (ibx_journal_link_files(&s->status.record, &why))
        ibx_migration_notify(&s->options->observer,
                             "should this ib-migrate be killed while pages are missing, they are "
                             "lost, because libvirt ends the source's QEMU (%s)",
                             why.message);
}

/* A libvirt that sets nothing of the kind, or a QEMU that refuses, pauses. */
int ibx_source_libvirt_has_set(struct source *s, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    if (!source_managed(&s->vm))
        return 0;
    if (!s->pause_by_ns)
        s->pause_by_ns = ibx_deadline_in_ms(SET_MS);
    int rc = ibx_libvirt_skip_pause(s->vm.qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS), &silent);
    if (rc == -EAGAIN && ibx_now_ns() < s->pause_by_ns)
        return rc;
    rc = ibx_libvirt_check_settings(s->vm.qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    s->vm.undo.touched |=
        rc != 0; /* QEMU may wait at the gate itself, in a migration that it began */
    return rc;
}

int ibx_source_libvirt_gate(struct source *s, struct ibx_error *err)
{
    int fd, rc = ibx_gate_take(&s->gate, s->vm.ram.pid, &fd, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    return ibx_source_stream_adopt(&s->stream, fd, err);
}

/* ---------------------------------------------------------------- what it decides */

/* QEMU's migration is complete as far as libvirt can see, and RUNNING has not come; or the VM's
 * QEMU has ended at the destination. */
static bool decides(const struct source *s)
{
    return s->state.now == SOURCE_COMMITTED || s->state.now == SOURCE_LOST ||
           (s->state.now == SOURCE_SENDING && s->stream.state.now == STREAM_RELEASED);
}

bool ibx_source_libvirt_resumed(struct source *s)
{
    if (!source_managed(&s->vm))
        return false;
    ibx_source_take_last_abort(s, LAST_MS, NULL);
    if (!decides(s))
        return false;
    if (s->vm.libvirt.now != LIBVIRT_CONTINUED)
        ibx_state_move(&s->vm.libvirt, LIBVIRT_CONTINUED);
    return true;
}

int ibx_source_libvirt_check(struct source *s, struct ibx_error *err)
{
    if (s->vm.libvirt.now != LIBVIRT_CONTINUED)
        return 0;
    ibx_error_set(err, -ECANCELED, "libvirt has continued the VM here: %s %s%s",
                  s->state.now == SOURCE_LOST ? "its QEMU at" : "its migration to",
                  s->status.record.peer,
                  s->state.now == SOURCE_LOST
                      ? " has ended, and what it did there is lost: check its file systems"
                      : " failed there");
    return ibx_source_keep(s, -ECANCELED, err);
}
