/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reads the device state of a VM that is frozen, while QEMU's events are heard. */
#include "migrate/snapshot/freeze.h"

#include "common/clock.h"
#include "migrate/common/common.h"
#include "migrate/common/vm.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int keep(struct ibx_freeze_state *state, const uint8_t *bytes, size_t n,
                struct ibx_error *err)
{
    if (n > IBX_SNAPSHOT_STATE_MAX - state->length)
        return ibx_error_set(err, -EFBIG, "the device state is longer than %llu bytes",
                             IBX_SNAPSHOT_STATE_MAX);
    if (state->length + n > state->room) {
        const size_t room = 2 * (state->length + n);
        uint8_t *more = realloc(state->bytes, room);
        if (!more)
            return ibx_error_set(err, -ENOMEM, "no memory for %zu bytes of device state", room);
        state->bytes = more;
        state->room = room;
    }
    memcpy(state->bytes + state->length, bytes, n);
    state->length += n;
    return 0;
}

int ibx_freeze_state_read(struct ibx_freeze_state *state, const struct ibx_freeze_source *source,
                          unsigned timeout_ms, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    uint8_t bytes[IBX_VM_STREAM_NARROW];
    for (;;) {
        ibx_migration_stop_at("freeze", "reading");
        int rc = source->hear(source->context, err);
        if (rc)
            return rc;
        const ssize_t n = read(source->fd, bytes, sizeof(bytes));
        const int code = n < 0 ? errno : 0;
        if (!n) /* QEMU may have reported something just before the end */
            return source->hear(source->context, err);
        if (n > 0 && (rc = keep(state, bytes, (size_t)n, err)))
            return rc;
        if (n > 0)
            continue;
        if (code != EAGAIN && code != EINTR)
            return ibx_error_set(err, -code, "QEMU's device state cannot be read: %s",
                                 strerror(code));
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "QEMU did not write its state within %u s: see whether it is "
                                 "stopped, or waits for a disk of the VM",
                                 timeout_ms / 1000);
        struct pollfd wait[] = {{.fd = source->fd, .events = POLLIN},
                                {.fd = source->events_fd, .events = POLLIN},
                                {.fd = source->signals_fd, .events = POLLIN}};
        poll(wait, 3, ibx_ms_until(deadline));
    }
}
