/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/common.h"
#include "migrate/common/libvirt.h"
#include "migrate/common/vm.h"
#include "migrate/destination/stream.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define STATE_MAX       (1ull << 30) /* bytes of device state that wait for QEMU */
#define VM_EOF          0x00
#define VM_DESCRIPTION  0x06
#define VM_FOOTER       0x7e
#define RAM_EOS         0x10
#define EOS_ZEROS       7u          /* bytes before RAM_EOS */
#define HEAD            6           /* EOF, VMDESCRIPTION, length */
#define DESCRIPTION_MAX (64u << 20) /* bytes, far more than any VM has */

static const struct ibx_state stream_states[] = {
    [STREAM_CLOSED] = {"closed", IBX_TO(STREAM_TAKING), IBX_STATE_INITIAL},
    [STREAM_TAKING] = {"taking", IBX_TO(STREAM_WHOLE) | IBX_TO(STREAM_CUT), 0},
    [STREAM_WHOLE] = {"whole", IBX_TO(STREAM_RELEASED) | IBX_TO(STREAM_CUT), 0},
    [STREAM_RELEASED] = {"released", IBX_TO(STREAM_ENDING) | IBX_TO(STREAM_CUT), 0},
    [STREAM_ENDING] = {"ending", IBX_TO(STREAM_FED) | IBX_TO(STREAM_CUT), IBX_STATE_INITIAL},
    [STREAM_FED] = {"fed", 0, IBX_STATE_FINAL},
    [STREAM_CUT] = {"cut", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table stream_table =
    IBX_STATE_TABLE("destination stream", stream_states);

/* ---------------------------------------------------------------- the end */

/* Whether the stream may end with what begins here, as far as it has come. With `ended`: whether it
 * does. */
static bool may_be_tail(const uint8_t *at, size_t length, bool ended)
{
    if (at[0] != VM_EOF)
        return false;
    if (length == 1)
        return true;
    if (at[1] != VM_DESCRIPTION)
        return false;
    if (length < HEAD)
        return !ended;
    uint32_t size = (uint32_t)at[2] << 24 | (uint32_t)at[3] << 16 | (uint32_t)at[4] << 8 | at[5];
    if (size > DESCRIPTION_MAX || (length > HEAD && at[HEAD] != '{'))
        return false;
    return ended ? length == HEAD + (size_t)size : length <= HEAD + (size_t)size;
}

size_t ibx_state_tail(const uint8_t *bytes, size_t length, bool ended, bool *whole)
{
    *whole = false;
    for (size_t i = 0; i < length; i++) {
        if (may_be_tail(bytes + i, length - i, ended)) {
            *whole = ended;
            return i;
        }
    }
    return length ? length - 1 : 0;
}

/* The set-up of guest RAM ends with the flag EOS (0x10, 8 bytes, big-endian) and the section's
 * footer (0x7e). A machine type without footers has no such place. */
static void find_ram(struct destination_stream *stream, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length && !stream->ram_set_up; i++) {
        const uint8_t byte = bytes[i];
        if (stream->matched == EOS_ZEROS + 1 && byte == VM_FOOTER)
            stream->ram_set_up = stream->total + i + 1;
        else if (stream->matched == EOS_ZEROS && byte == RAM_EOS)
            stream->matched++;
        else if (byte)
            stream->matched = 0;
        else
            stream->matched = stream->matched < EOS_ZEROS ? stream->matched + 1 : EOS_ZEROS;
    }
}

static void keep_last(struct destination_stream *stream, const uint8_t *bytes, size_t length)
{
    const size_t room = sizeof(stream->last), n = length < room ? length : room;
    memmove(stream->last, stream->last + n, room - n);
    memcpy(stream->last + room - n, bytes + length - n, n);
}

/* The last section has a footer if that of guest RAM had one. Without it, and without a
 * description, the byte that looks like EOF is one at which the state was cut off. */
static bool is_cut_off(const struct destination_stream *stream)
{
    return stream->ram_set_up && stream->end - stream->sure == 1 && stream->last[0] != VM_FOOTER;
}

/* Moves `sure` up to what may be EOF. With `ended`, returns whether EOF was recognised. */
static bool find_tail(struct destination_stream *stream, bool ended)
{
    bool whole = false;
    if (stream->sure < stream->end)
        stream->sure +=
            ibx_state_tail(stream->bytes + stream->sure, stream->end - stream->sure, ended, &whole);
    return whole;
}

/* ---------------------------------------------------------------- the stream */

void ibx_destination_stream_init(struct destination_stream *stream,
                                 enum destination_stream_state first)
{
    *stream = (struct destination_stream){.fd = -1, .fed = -1};
    ibx_state_begin(&stream->state, &stream_table, first);
}

int ibx_destination_stream_open(struct destination_stream *stream, struct ibx_qmp *qmp,
                                struct ibx_error *err)
{
    if (stream->fd >= 0)
        return ibx_state_move(&stream->state, STREAM_TAKING);
    int theirs, rc = ibx_vm_stream(&stream->fd, &theirs, err);
    if (rc)
        return rc;
    rc = ibx_vm_migrate(qmp, true, theirs, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    close(theirs);
    if (!rc)
        return ibx_state_move(&stream->state, STREAM_TAKING);
    close(stream->fd);
    stream->fd = -1;
    return rc;
}

int ibx_destination_stream_connect(struct destination_stream *stream, const char *path, pid_t qemu,
                                   struct ibx_error *err)
{
    stream->managed = true;
    return stream->fd >= 0 ? 0 : ibx_libvirt_connect(path, qemu, &stream->fd, err);
}

/* Reuses the room of what QEMU has taken. If that is less than the rest, makes more, so that no
 * byte moves often: twice what waits now, however much has passed. */
static int make_room(struct destination_stream *stream, size_t length)
{
    const size_t left = stream->end - stream->from;
    if (stream->end + length <= stream->capacity)
        return 0;
    const bool grows = stream->from < left || left + length > stream->capacity;
    if (left)
        memmove(stream->bytes, stream->bytes + stream->from, left);
    stream->sure -= stream->from;
    stream->from = 0;
    stream->end = left;
    if (!grows)
        return 0;
    const size_t capacity = 2 * (left + length);
    uint8_t *bigger = realloc(stream->bytes, capacity);
    if (!bigger)
        return -ENOMEM;
    stream->bytes = bigger;
    stream->capacity = capacity;
    return 0;
}

int ibx_destination_stream_append(struct destination_stream *stream, const uint8_t *bytes,
                                  size_t length, struct ibx_error *err)
{
    if (length > STATE_MAX - (stream->end - stream->from))
        return ibx_error_set(err, -EPROTO, "the device state is longer than %llu MiB",
                             STATE_MAX >> 20);
    if (make_room(stream, length))
        return ibx_error_set(err, -ENOMEM, "no memory for the device state");
    memcpy(stream->bytes + stream->end, bytes, length);
    find_ram(stream, bytes, length);
    keep_last(stream, bytes, length);
    stream->end += length;
    stream->total += length;
    return 0;
}

int ibx_destination_stream_end(struct destination_stream *stream, uint64_t total,
                               struct ibx_error *err)
{
    if (total != stream->total || !total)
        return ibx_error_set(err, -EPROTO,
                             "the device state has %" PRIu64 " bytes, announced were %" PRIu64,
                             stream->total, total);
    if (!find_tail(stream, true) || is_cut_off(stream))
        return ibx_error_set(err, -EPROTO,
                             "the device state does not end as QEMU's do, so its end cannot be "
                             "held back until the commit");
    return ibx_state_move(&stream->state, STREAM_WHOLE);
}

/* Up to where QEMU may read now. */
static size_t limit(const struct destination_stream *stream)
{
    return stream->state.now >= STREAM_RELEASED ? stream->end : stream->sure;
}

/* This QEMU answers the source's QEMU over its return path. The source's QEMU waits there only for
 * this tool's counterpart (migrate/common/return_path.h), so the answers are dropped. They have to
 * be read: if this end were closed with unread bytes, QEMU's next read would fail. */
static void drop_answers(const struct destination_stream *stream)
{
    uint8_t bytes[64];
    while (recv(stream->fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
        ;
}

int ibx_destination_stream_feed(struct destination_stream *stream, struct ibx_error *err)
{
    if (stream->fd < 0)
        return 0;
    drop_answers(stream);
    if (stream->state.now == STREAM_TAKING)
        find_tail(stream, false);
    while (stream->from < limit(stream)) {
        ssize_t n = send(stream->fd, stream->bytes + stream->from, limit(stream) - stream->from,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0)
            return ibx_error_set(err, -errno,
                                 "QEMU has stopped reading the device state (%s): see its log",
                                 strerror(errno));
        stream->from += (size_t)n;
        if (stream->state.now == STREAM_RELEASED)
            ibx_state_move(&stream->state, STREAM_ENDING);
    }
    if (stream->state.now != STREAM_ENDING)
        return 0;
    if (stream->managed) {
        shutdown(stream->fd, SHUT_WR);
        stream->fed = stream->fd;
        stream->fd = -1;
    } else {
        ibx_destination_stream_fini(stream);
    }
    return ibx_state_move(&stream->state, STREAM_FED);
}

bool ibx_destination_stream_stuck(const struct destination_stream *stream)
{
    return stream->fd >= 0 && stream->from < limit(stream);
}

/* Whether QEMU has left at most `rest` bytes unread. The kernel counts the memory that they take,
 * which is never less. */
static bool is_read(const struct destination_stream *stream, uint64_t rest)
{
    int unread;
    return stream->fd >= 0 && !ioctl(stream->fd, SIOCOUTQ, &unread) && unread >= 0 &&
           (uint64_t)unread <= rest;
}

bool ibx_destination_stream_loaded(const struct destination_stream *stream)
{
    return stream->state.now >= STREAM_WHOLE && !ibx_destination_stream_stuck(stream) &&
           is_read(stream, 0);
}

bool ibx_destination_stream_past_ram(const struct destination_stream *stream)
{
    const uint64_t given = stream->total - (stream->end - stream->from);
    return stream->ram_set_up && given >= stream->ram_set_up &&
           is_read(stream, given - stream->ram_set_up);
}

void ibx_destination_stream_cut(struct destination_stream *stream)
{
    ibx_destination_stream_fini(stream);
    if (ibx_state_allows(&stream_table, stream->state.now, STREAM_CUT))
        ibx_state_move(&stream->state, STREAM_CUT);
}

void ibx_destination_stream_fini(struct destination_stream *stream)
{
    if (stream->fd >= 0)
        close(stream->fd);
    if (stream->fed >= 0)
        close(stream->fed);
    stream->fd = stream->fed = -1;
    free(stream->bytes);
    stream->bytes = NULL;
    stream->from = stream->sure = stream->end = stream->capacity = 0;
}
