/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The point of no return, at the source. Before it any failure leaves the VM here. After it the VM
 * continues here only when the destination reports that it never ran there; after any other failure
 * the source connects again. The journal has been MAY_RUN since before the VM stopped.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

/* The watchdog is dismissed first: after COMMIT it must not continue the VM. */
int ibx_source_commit(struct source *s, struct ibx_error *err)
{
    int rc = ibx_watchdog_commit(&s->vm.watchdog, err);
    if (rc)
        return rc;
    s->loaded_ns = ibx_now_ns();
    s->status.record.was_running = s->vm.ran; /* somebody may have paused it meanwhile */
    s->status.state_ns = s->loaded_ns - s->mapped_ns;
    rc = ibx_source_move(s, SOURCE_COMMITTED, err);
    return rc ? rc : ibx_source_link_send(&s->link, IBX_MIGRATE_COMMIT, err);
}
