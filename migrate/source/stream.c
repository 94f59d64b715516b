/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const struct ibx_state stream_states[] = {
    [STREAM_CLOSED] = {"closed", IBX_TO(STREAM_OPEN), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [STREAM_OPEN] = {"open", IBX_TO(STREAM_READ) | IBX_TO(STREAM_CLOSED), 0},
    [STREAM_READ] = {"read", IBX_TO(STREAM_SENT), 0},
    [STREAM_SENT] = {"sent", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table stream_table = IBX_STATE_TABLE("source stream", stream_states);

void ibx_source_stream_init(struct source_stream *stream)
{
    *stream = (struct source_stream){.fd = -1};
    ibx_state_begin(&stream->state, &stream_table, STREAM_CLOSED);
}

int ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp, struct ibx_error *err)
{
    int rc = ibx_vm_migrate(qmp, false, &stream->fd, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc ? rc : ibx_state_move(&stream->state, STREAM_OPEN);
}

static void leave(struct source_stream *stream, enum source_stream_state to)
{
    close(stream->fd);
    stream->fd = -1;
    ibx_state_move(&stream->state, to);
}

int ibx_source_stream_carry(struct source_stream *stream, struct ibx_channel *control,
                            struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    const size_t room = stream->fd >= 0 ? ibx_channel_room(control) : 0;
    while (stream->fd >= 0 && ibx_channel_idle(control)) {
        ssize_t n = read(stream->fd, bytes, room < sizeof(bytes) ? room : sizeof(bytes));
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n < 0)
            return ibx_error_set(err, -errno, "QEMU's device state cannot be read: %s",
                                 strerror(errno));
        if (n == 0) {
            leave(stream, STREAM_READ);
            return 0;
        }
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE};
        message.is.state.bytes = bytes;
        message.is.state.length = (size_t)n;
        int rc = ibx_channel_send(control, &message, err);
        if (rc)
            return rc;
        stream->bytes += (uint64_t)n;
    }
    return 0;
}

int ibx_source_stream_end(struct source_stream *stream, struct ibx_channel *control,
                          struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE_END};
    message.is.state_bytes = stream->bytes;
    int rc = ibx_state_move(&stream->state, STREAM_SENT);
    return rc ? rc : ibx_channel_send(control, &message, err);
}

void ibx_source_stream_close(struct source_stream *stream)
{
    if (stream->fd >= 0)
        leave(stream, STREAM_CLOSED);
}
