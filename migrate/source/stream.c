/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/hold.h"
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC          "QEVM" /* a state begins with it */
#define VM_DESCRIPTION 6
#define HEAD           6 /* bytes before the JSON */

static const struct ibx_state stream_states[] = {
    [STREAM_CLOSED] = {"closed", IBX_TO(STREAM_MADE), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [STREAM_MADE] = {"made", IBX_TO(STREAM_OPEN) | IBX_TO(STREAM_CLOSED), 0},
    [STREAM_OPEN] = {"open", IBX_TO(STREAM_READ) | IBX_TO(STREAM_CLOSED), 0},
    [STREAM_READ] = {"read", IBX_TO(STREAM_SENT) | IBX_TO(STREAM_CLOSED), 0},
    [STREAM_SENT] = {"sent", IBX_TO(STREAM_HELD) | IBX_TO(STREAM_CLOSED), 0},
    [STREAM_HELD] = {"held", IBX_TO(STREAM_RELEASED) | IBX_TO(STREAM_CLOSED), IBX_STATE_INITIAL},
    [STREAM_RELEASED] = {"released", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table stream_table = IBX_STATE_TABLE("source stream", stream_states);

void ibx_source_stream_init(struct source_stream *stream)
{
    *stream = (struct source_stream){.fd = -1, .theirs = -1};
    ibx_state_begin(&stream->state, &stream_table, STREAM_CLOSED);
}

int ibx_source_stream_make(struct source_stream *stream, uint64_t *hold, struct ibx_error *err)
{
    int rc = ibx_vm_stream(&stream->fd, &stream->theirs, err);
    if (!rc)
        *hold = ibx_hold_name(stream->fd);
    return rc ? rc : ibx_state_move(&stream->state, STREAM_MADE);
}

int ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_hold_allow(qmp, true, deadline, err);
    if (!rc)
        rc = ibx_hold_describe(qmp, deadline, err);
    if (!rc)
        rc = ibx_vm_migrate(qmp, false, stream->theirs, deadline, err);
    close(stream->theirs);
    stream->theirs = -1;
    return rc ? rc : ibx_state_move(&stream->state, STREAM_OPEN);
}

int ibx_source_stream_adopt(struct source_stream *stream, int fd, struct ibx_error *err)
{
    int rc = ibx_state_move(&stream->state, STREAM_MADE);
    if (!rc)
        rc = ibx_state_move(&stream->state, STREAM_OPEN);
    if (rc) {
        close(fd);
        return ibx_error_set(err, rc, "QEMU has started a second migration");
    }
    stream->managed = true;
    stream->fd = fd;
    return 0;
}

/*
 * QEMU's stream has no end of file while it is held open. It ends with a description for debuggers:
 * a byte 0 (EOF), a byte 6, a u32 length, big-endian, and so much JSON, in which no byte is 0. So
 * what is kept of the stream is what follows its last 0, and HEAD bytes before that.
 */
static int keep_tail(struct source_stream *stream, const uint8_t *bytes, size_t n,
                     struct ibx_error *err)
{
    if (stream->tail_length + n > stream->tail_room) {
        const size_t room = 2 * (stream->tail_length + n);
        uint8_t *more = realloc(stream->tail, room);
        if (!more)
            return ibx_error_set(err, -ENOMEM, "no memory for the device state");
        stream->tail = more;
        stream->tail_room = room;
    }
    memcpy(stream->tail + stream->tail_length, bytes, n);
    const uint8_t *last = memrchr(stream->tail + stream->tail_length, 0, n);
    stream->tail_length += n;
    if (!last || last - stream->tail < HEAD)
        return 0;
    stream->tail_length -= (size_t)(last - HEAD - stream->tail);
    memmove(stream->tail, last - HEAD, stream->tail_length);
    return 0;
}

static bool is_whole(const struct source_stream *stream)
{
    const uint8_t *t = stream->tail;
    for (size_t i = 0; i <= HEAD && i + HEAD < stream->tail_length; i++, t++) {
        const uint32_t length =
            (uint32_t)t[2] << 24 | (uint32_t)t[3] << 16 | (uint32_t)t[4] << 8 | t[5];
        if (!t[0] && t[1] == VM_DESCRIPTION && t[HEAD] == '{' &&
            length == stream->tail_length - i - HEAD)
            return true;
    }
    return false;
}

static int read_all(struct source_stream *stream)
{
    free(stream->tail);
    stream->tail = NULL;
    return ibx_state_move(&stream->state, STREAM_READ);
}

int ibx_source_stream_carry(struct source_stream *stream, struct ibx_channel *control, bool saved,
                            struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    const size_t room = stream->state.now == STREAM_OPEN ? ibx_channel_room(control) : 0;
    while (stream->state.now == STREAM_OPEN && ibx_channel_idle(control)) {
        ssize_t n = read(stream->fd, bytes, room < sizeof(bytes) ? room : sizeof(bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return saved && is_whole(stream) ? read_all(stream) : 0;
        if (n < 0)
            return ibx_error_set(err, -errno, "QEMU's device state cannot be read: %s",
                                 strerror(errno));
        if (n == 0)
            return ibx_error_set(err, -EIO,
                                 "QEMU has ended its migration before it was complete: see its "
                                 "log");
        if (stream->managed && !stream->bytes && memcmp(bytes, MAGIC, n < 4 ? (size_t)n : 4))
            return ibx_error_set(err, -EPERM,
                                 "QEMU does not send its state in plain: if virsh migrate was "
                                 "given --tls, leave it out, this link has TLS of its own "
                                 "(--key-file)");
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE};
        message.is.state.bytes = bytes;
        message.is.state.length = (size_t)n;
        int rc = keep_tail(stream, bytes, (size_t)n, err);
        if (!rc)
            rc = ibx_channel_send(control, &message, err);
        if (rc)
            return rc;
        stream->bytes += (uint64_t)n;
    }
    return 0;
}

int ibx_source_stream_end(struct source_stream *stream, struct ibx_channel *control,
                          struct ibx_qmp *qmp, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE_END};
    message.is.state_bytes = stream->bytes;
    int rc = ibx_state_move(&stream->state, STREAM_SENT);
    if (!rc)
        rc = ibx_channel_send(control, &message, err);
    /* Meanwhile the destination loads it. */
    if (!rc && !stream->managed)
        rc = ibx_hold_keep(qmp, stream->fd, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc ? rc : ibx_state_move(&stream->state, STREAM_HELD);
}

int ibx_source_stream_take(struct source_stream *stream, pid_t pid, uint64_t hold,
                           struct ibx_error *err)
{
    int rc = ibx_hold_take(pid, hold, &stream->fd, err);
    return rc ? rc : ibx_state_begin(&stream->state, &stream_table, STREAM_HELD);
}

static void leave(struct source_stream *stream, enum source_stream_state to)
{
    close(stream->fd);
    if (stream->theirs >= 0)
        close(stream->theirs);
    stream->fd = stream->theirs = -1;
    free(stream->tail);
    stream->tail = NULL;
    ibx_state_move(&stream->state, to);
}

/* This end stays open until the tool ends: QEMU may still read. */
int ibx_source_stream_let_go(struct source_stream *stream, struct ibx_error *err)
{
    int rc = ibx_state_move(&stream->state, STREAM_RELEASED);
    return rc ? rc : ibx_hold_say_shut(stream->fd, err);
}

int ibx_source_stream_release(struct source_stream *stream, struct ibx_qmp *qmp,
                              struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    if (stream->state.now != STREAM_HELD)
        return 0;
    int rc = ibx_hold_release(qmp, stream->fd, deadline, err);
    if (!rc)
        leave(stream, STREAM_RELEASED);
    return rc ? rc : ibx_hold_allow(qmp, false, deadline, err);
}

void ibx_source_stream_close(struct source_stream *stream)
{
    if (stream->fd >= 0 && stream->state.now == STREAM_RELEASED)
        close(stream->fd);
    else if (stream->fd >= 0)
        leave(stream, STREAM_CLOSED);
    stream->fd = -1;
}
