/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/common.h"
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"
#include "migrate/source/stream.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define MAGIC          "QEVM" /* a state begins with it */
#define VM_DESCRIPTION 6
#define HEAD           6 /* bytes before the JSON */

#define JSON_MAX     (64u << 20) /* bytes, far more than any VM has */
#define BYTES_A_TURN (4u << 20)  /* a QEMU that writes on and on does not keep the caller */

#define GROWS_MS  6             /* if no more comes for so long, QEMU has filled its socket */
#define WAITS_MAX (256u * 1024) /* bytes of the state that may wait for the page map */

static const struct ibx_state stream_states[] = {
    [STREAM_CLOSED] = {"closed", IBX_TO(STREAM_MADE), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [STREAM_MADE] = {"made", IBX_TO(STREAM_NARROW) | IBX_TO(STREAM_OPEN) | IBX_TO(STREAM_CLOSED),
                     0},
    [STREAM_NARROW] = {"narrow", IBX_TO(STREAM_OPEN) | IBX_TO(STREAM_CLOSED), 0},
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
    if (rc)
        return rc;
    *hold = ibx_return_path_name(stream->fd);
    ibx_vm_stream_narrow(stream->theirs);
    return ibx_state_move(&stream->state, STREAM_MADE);
}

int ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp, const json_t *before,
                           struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_vm_migrate_without_ram(qmp, before, stream->theirs, deadline, err);
    return rc ? rc : ibx_state_move(&stream->state, STREAM_NARROW);
}

static void close_theirs(struct source_stream *stream)
{
    if (stream->theirs >= 0)
        close(stream->theirs);
    stream->theirs = -1;
}

int ibx_source_stream_widen(struct source_stream *stream)
{
    if (stream->state.now != STREAM_NARROW)
        return 0;
    ibx_vm_stream_widen(stream->theirs);
    close_theirs(stream);
    return ibx_state_move(&stream->state, STREAM_OPEN);
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
 * a byte 0 (EOF), a byte 6, a u32 length, big-endian, and so much JSON, in which no byte is 0. The
 * QEMU that loads it reads over the JSON, which is a third of the state of a small VM. So what may
 * be the end is held back, and the end is sent with as little JSON as there can be.
 */
static const uint8_t shortest_end[HEAD + 2] = {0, VM_DESCRIPTION, 0, 0, 0, 2, '{', '}'};

/* Whether all that has come since the head of an end may be its JSON. */
static bool may_be_json(const uint8_t *end, size_t length)
{
    const uint32_t json =
        (uint32_t)end[2] << 24 | (uint32_t)end[3] << 16 | (uint32_t)end[4] << 8 | end[5];
    return json <= JSON_MAX && length <= HEAD + (size_t)json;
}

/* Where the end may begin in these bytes, as far as they have come; `length`: nowhere. */
size_t ibx_state_may_end(const uint8_t *bytes, size_t length)
{
    const uint8_t *last = length ? memrchr(bytes, 0, length) : NULL;
    if (!last)
        return length;
    const size_t to = (size_t)(last - bytes);
    for (size_t i = to > HEAD ? to - HEAD : 0; i <= to; i++)
        if (!bytes[i] && (i + 1 >= length || bytes[i + 1] == VM_DESCRIPTION) &&
            (i + HEAD >= length || (bytes[i + HEAD] == '{' && may_be_json(bytes + i, length - i))))
            return i;
    return length;
}

/* Where the end begins, if these bytes are all of it; `length`: they are not. */
size_t ibx_state_ends(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i <= HEAD && i + HEAD < length; i++) {
        const uint8_t *t = bytes + i;
        const uint32_t json =
            (uint32_t)t[2] << 24 | (uint32_t)t[3] << 16 | (uint32_t)t[4] << 8 | t[5];
        if (!t[0] && t[1] == VM_DESCRIPTION && t[HEAD] == '{' && json == length - i - HEAD)
            return i;
    }
    return length;
}

static int hold_back(struct source_stream *stream, const uint8_t *bytes, size_t n,
                     struct ibx_error *err)
{
    if (stream->held_length + n > stream->held_room) {
        const size_t room = 2 * (stream->held_length + n);
        uint8_t *more = realloc(stream->held, room);
        if (!more)
            return ibx_error_set(err, -ENOMEM, "no memory for the device state");
        stream->held = more;
        stream->held_room = room;
    }
    memcpy(stream->held + stream->held_length, bytes, n);
    stream->held_length += n;
    return 0;
}

static int cannot_read(struct ibx_error *err)
{
    return ibx_error_set(err, -errno, "QEMU's device state cannot be read: %s", strerror(errno));
}

static int send_bytes(struct source_stream *stream, struct ibx_channel *control,
                      const uint8_t *bytes, size_t length, struct ibx_error *err)
{
    const size_t most = ibx_channel_room(control);
    int rc = 0;
    for (size_t n; !rc && length; bytes += n, length -= n) {
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE};
        n = length < most ? length : most;
        message.is.state.bytes = bytes;
        message.is.state.length = n;
        rc = ibx_channel_send(control, &message, err);
        stream->bytes += rc ? 0 : n;
    }
    return rc;
}

/* Sends the first `n` bytes that are held back. */
static int let_out(struct source_stream *stream, struct ibx_channel *control, size_t n,
                   struct ibx_error *err)
{
    int rc = send_bytes(stream, control, stream->held, n, err);
    if (rc || !n)
        return rc;
    stream->held_length -= n;
    memmove(stream->held, stream->held + n, stream->held_length);
    return 0;
}

/* Sends all that cannot be the end. */
static int let_most_out(struct source_stream *stream, struct ibx_channel *control,
                        struct ibx_error *err)
{
    return let_out(stream, control, ibx_state_may_end(stream->held, stream->held_length), err);
}

/* Nothing can be read now: if what is held back is a whole end, sends the shortest end, and goes to
 * READ. */
static int check_end(struct source_stream *stream, struct ibx_channel *control,
                     struct ibx_error *err)
{
    const size_t end = ibx_state_ends(stream->held, stream->held_length);
    if (end == stream->held_length)
        return 0;
    int rc = let_out(stream, control, end, err);
    if (!rc)
        rc = send_bytes(stream, control, shortest_end, sizeof(shortest_end), err);
    free(stream->held);
    stream->held = NULL;
    stream->held_length = stream->held_room = 0;
    return rc ? rc : ibx_state_move(&stream->state, STREAM_READ);
}

/* Whether nobody can write any more. */
static bool has_ended(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) > 0;
}

int ibx_source_stream_look(struct source_stream *stream, struct ibx_error *err)
{
    int bytes = 0;
    if (source_stream_is_open(stream) && ioctl(stream->fd, FIONREAD, &bytes))
        return ibx_error_set(err, -errno,
                             "how much of QEMU's device state can be read is not to be seen "
                             "(FIONREAD): %s; allow ioctl(2) to ib-migrate where a seccomp profile "
                             "or a security module denies it",
                             strerror(errno));
    const size_t pending = source_stream_is_open(stream) ? stream->held_length + (size_t)bytes : 0;
    if (stream->pending != pending)
        stream->grew_ns = ibx_now_ns();
    stream->pending = pending;
    stream->flows |= pending ? ibx_now_ns() - stream->grew_ns > GROWS_MS * IBX_NS_PER_MS
                             : source_stream_is_open(stream) && has_ended(stream->fd);
    return 0;
}

/* A QEMU whose stream nobody reads can fill its socket before it reports that the VM is stopped,
 * and would never report it. Such a QEMU has much to write, for instance of a screen on which the
 * guest draws all the time, and comes to an end only if its stream is read without pauses. */
bool ibx_source_stream_waits(const struct source_stream *stream, bool stopped)
{
    return source_stream_is_open(stream) && stream->pending < WAITS_MAX &&
           (stopped || !stream->flows);
}

bool ibx_source_stream_has_room(const struct source_stream *stream)
{
    return stream->held_length < WAITS_MAX;
}

int ibx_source_stream_read_some(struct source_stream *stream, struct ibx_qmp *qmp,
                                struct ibx_error *err)
{
    uint8_t bytes[IBX_VM_STREAM_NARROW];
    const int rc = ibx_qmp_pump(qmp, err);
    if (rc || ibx_qmp_has_events(qmp))
        return rc;
    const ssize_t n = read(stream->fd, bytes, sizeof(bytes));
    if (n > 0)
        return hold_back(stream, bytes, (size_t)n, err);
    return n == 0 || errno == EINTR || errno == EAGAIN ? 0 : cannot_read(err);
}

int ibx_source_stream_carry(struct source_stream *stream, struct ibx_channel *control, bool saved,
                            struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    const bool open = source_stream_is_open(stream);
    const size_t room = open ? ibx_channel_room(control) : 0;
    size_t taken = 0;
    int rc = open && ibx_channel_idle(control) ? let_most_out(stream, control, err) : 0;
    while (!rc && stream->state.now == STREAM_OPEN && ibx_channel_idle(control) &&
           taken < BYTES_A_TURN) {
        ssize_t n = read(stream->fd, bytes, room < sizeof(bytes) ? room : sizeof(bytes));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return saved ? check_end(stream, control, err) : 0;
        if (n < 0)
            return cannot_read(err);
        if (n == 0)
            return ibx_error_set(err, -EPIPE, "QEMU has ended its migration early: see its log");
        if (stream->managed && !stream->bytes && !stream->held_length &&
            memcmp(bytes, MAGIC, n < 4 ? (size_t)n : 4))
            return ibx_error_set(
                err, -EPERM,
                "QEMU wants to send its state encrypted: if virsh migrate was given --tls, leave "
                "it out; this link has its own TLS (--key-file)");
        taken += (size_t)n;
        rc = hold_back(stream, bytes, (size_t)n, err);
        if (!rc)
            rc = let_most_out(stream, control, err);
    }
    return rc;
}

int ibx_source_stream_end(struct source_stream *stream, struct ibx_channel *control,
                          struct ibx_qmp *qmp, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE_END};
    message.is.state_bytes = stream->bytes;
    int rc = ibx_state_move(&stream->state, STREAM_SENT);
    if (!rc)
        rc = ibx_channel_send(control, &message, err);
    /* The destination loads the state meanwhile. */
    if (!rc && !stream->managed)
        rc = ibx_return_path_keep(qmp, stream->fd, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc ? rc : ibx_state_move(&stream->state, STREAM_HELD);
}

int ibx_source_stream_take(struct source_stream *stream, pid_t pid, uint64_t hold,
                           struct ibx_error *err)
{
    int rc = ibx_return_path_take(pid, hold, &stream->fd, err);
    return rc ? rc : ibx_state_begin(&stream->state, &stream_table, STREAM_HELD);
}

static void leave(struct source_stream *stream, enum source_stream_state to)
{
    close(stream->fd);
    stream->fd = -1;
    close_theirs(stream);
    free(stream->held);
    stream->held = NULL;
    ibx_state_move(&stream->state, to);
}

/* This end stays open until the tool ends: QEMU may still read. */
int ibx_source_stream_let_go(struct source_stream *stream, struct ibx_error *err)
{
    int rc = ibx_state_move(&stream->state, STREAM_RELEASED);
    return rc ? rc : ibx_return_path_send_shut(stream->fd, err);
}

int ibx_source_stream_release(struct source_stream *stream, struct ibx_qmp *qmp,
                              uint64_t deadline_ns, struct ibx_error *err)
{
    if (stream->state.now != STREAM_HELD)
        return 0;
    int rc = ibx_return_path_release(qmp, stream->fd, deadline_ns, err);
    if (rc)
        return rc;
    ibx_return_path_forget(qmp, deadline_ns);
    leave(stream, STREAM_RELEASED);
    return 0;
}

void ibx_source_stream_close(struct source_stream *stream)
{
    if (stream->fd >= 0 && stream->state.now == STREAM_RELEASED)
        close(stream->fd);
    else if (stream->fd >= 0)
        leave(stream, STREAM_CLOSED);
    stream->fd = -1;
}
