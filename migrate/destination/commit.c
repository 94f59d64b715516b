/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The point of no return, at the destination. QEMU has had the whole device state except its end,
 * and so it cannot have run the VM. With the end it does. The journal has said MAY_RUN since before
 * LOADED.
 */
#include "migrate/destination/destination.h"

int ibx_destination_commit(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_move(d, DESTINATION_RESUMING, err);
    if (!rc)
        rc = ibx_state_move(&d->stream.state, STREAM_RELEASED);
    return rc ? rc : ibx_destination_stream_feed(&d->stream, err);
}
