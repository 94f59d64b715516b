/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The point of no return, at the source. Before it any failure leaves the VM here. From here on
 * only the destination's statement that the VM never ran there brings it back, and every other
 * failure is mended by connecting again. The journal has said MAY_RUN since before the VM stopped.
 */
#include "migrate/source/source.h"

#include "common/clock.h"

/* The watchdog first: after COMMIT it must not continue the VM. */
int ibx_source_commit(struct source *s, struct ibx_error *err)
{
    int rc = ibx_watchdog_commit(&s->vm.watchdog, err);
    if (rc)
        return rc;
    s->loaded_ns = ibx_now_ns();
    s->status.state_ns = s->loaded_ns - s->mapped_ns;
    rc = ibx_source_move(s, SOURCE_COMMITTED, err);
    return rc ? rc : ibx_source_link_send(&s->link, IBX_MIGRATE_COMMIT, err);
}
