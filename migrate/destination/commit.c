/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The point of no return, at the destination. Without the end of the device state QEMU cannot
 * have run the VM; with it, QEMU runs the VM. The journal has been MAY_RUN since before LOADED. */
#include "migrate/destination/destination.h"

int ibx_destination_commit(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_move(d, DESTINATION_RESUMING, err);
    if (rc)
        return rc;
    rc = ibx_destination_home_comes(d, err);
    if (rc)
        return ibx_destination_refuse_commit(d, rc, err);
    ibx_destination_watchdog_commit(&d->watchdog);
    rc = ibx_state_move(&d->stream.state, STREAM_RELEASED);
    return rc ? rc : ibx_destination_stream_feed(&d->stream, err);
}
