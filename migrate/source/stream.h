/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device state, from the source's QEMU to the destination. Part of source.h. */
#ifndef IBX_MIGRATE_SOURCE_STREAM_H
#define IBX_MIGRATE_SOURCE_STREAM_H

#include "common/state_machine.h"
#include "migrate/channel/channel.h"
#include "migrate/qemu/qemu.h"

/*
 * The stream stays open when QEMU has written all of it, so that QEMU's migration does too
 * (migrate/common/return_path.h).
 *
 * state machine: source stream
 *   [*] -> CLOSED -> MADE -> NARROW -> OPEN
 *   MADE -> OPEN                           libvirt has started QEMU's migration
 *   OPEN -> READ -> SENT -> HELD           READ: all of it; SENT: with STATE_END
 *   [*] -> HELD                            recover
 *   HELD -> RELEASED -> [*]                QEMU's migration has ended
 *   MADE | NARROW | OPEN -> CLOSED         this tool's end
 *   READ | SENT | HELD -> CLOSED -> [*]    likewise; in HELD QEMU has one
 *
 * In NARROW, QEMU writes more only when this tool reads, which it does while it knows of no block
 * job that has begun: QEMU hands its disks over behind the stop, and would end by an assertion if a
 * job wrote to one then. The ROM comes before the stop, and is more than fits into the stream. So
 * are the devices of most machines, which come before the disks in QEMU before 10. QEMU 10 hands
 * the disks over first, and a machine of few devices (a bare microvm) has written none by then:
 * there, a job that begins between this tool's last read and the stop is not noticed in time. Where
 * a job has begun, the stream is closed, and QEMU's migration fails.
 */
enum source_stream_state {
    STREAM_CLOSED,
    STREAM_MADE,
    STREAM_NARROW,
    STREAM_OPEN,
    STREAM_READ,
    STREAM_SENT,
    STREAM_HELD,
    STREAM_RELEASED
};

struct source_stream {
    struct ibx_state_machine state;
    int fd;         /* to QEMU; -1 in CLOSED and RELEASED */
    int theirs;     /* MADE, NARROW: QEMU's end; else -1 */
    bool managed;   /* libvirt has started QEMU's migration, and ends it */
    uint64_t bytes; /* sent */
    uint8_t *held;  /* read and not sent: in NARROW too early, in OPEN maybe the state's end */
    size_t held_length, held_room;
    size_t pending;   /* bytes that QEMU has written and nobody has sent, by the last look */
    uint64_t grew_ns; /* when that number last changed */
    bool flows;       /* QEMU could once write no more, or nobody will: read without pauses */
};

/* Whether QEMU may write. */
static inline bool source_stream_is_open(const struct source_stream *stream)
{
    return stream->state.now == STREAM_NARROW || stream->state.now == STREAM_OPEN;
}

void ibx_source_stream_init(struct source_stream *stream);
/* Makes both ends of the stream: MADE. `*hold`: the name of this tool's end, for the journal. */
int ibx_source_stream_make(struct source_stream *stream, uint64_t *hold, struct ibx_error *err);
/* Starts QEMU's migration into it, without RAM: NARROW. `before`: QEMU's settings before.
 * -EREMOTEIO: QEMU has refused. */
int ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp, const json_t *before,
                           struct ibx_error *err);
/* In NARROW: reads up to IBX_VM_STREAM_NARROW bytes, so that QEMU can write as many; nothing if
 * QEMU has reported what the caller has not looked at, which may be that a block job has begun. */
int ibx_source_stream_read_some(struct source_stream *stream, struct ibx_qmp *qmp,
                                struct ibx_error *err);
/* Whether that may be done while nothing can be sent. */
bool ibx_source_stream_has_room(const struct source_stream *stream);
/* In NARROW: QEMU has stopped the VM, no job has begun before, and none can begin. So QEMU shall
 * write its state without waiting for this tool: OPEN. 0 in other states. */
int ibx_source_stream_widen(struct source_stream *stream);
/* libvirt has started QEMU's migration into `fd`, which is taken over: OPEN. */
int ibx_source_stream_adopt(struct source_stream *stream, int fd, struct ibx_error *err);
/* In HELD: lets QEMU end such a migration, as completed. RELEASED. */
int ibx_source_stream_let_go(struct source_stream *stream, struct ibx_error *err);
/* Looks how much QEMU has written that nobody has sent, and for its end if that is nothing. */
int ibx_source_stream_look(struct source_stream *stream, struct ibx_error *err);
/* Whether these bytes may wait for the page map, by the last look. */
bool ibx_source_stream_waits(const struct source_stream *stream, bool stopped);
/* Sends what has been read and, in OPEN, what QEMU has written since, for a turn, unless messages
 * already wait for credit. `saved`: QEMU has written its state, or is about to have. Then, if what
 * has come ends like a whole state: READ. -EPIPE: QEMU has ended its migration early. */
int ibx_source_stream_carry(struct source_stream *stream, struct ibx_channel *control, bool saved,
                            struct ibx_error *err);
/* Where the end may begin in bytes of a state that have come so far, and where it does if these are
 * all; `length`: nowhere. */
size_t ibx_state_may_end(const uint8_t *bytes, size_t length);
size_t ibx_state_ends(const uint8_t *bytes, size_t length);
/* In READ: sends STATE_END, and has QEMU hold the stream open whatever becomes of this tool. HELD.
 */
int ibx_source_stream_end(struct source_stream *stream, struct ibx_channel *control,
                          struct ibx_qmp *qmp, struct ibx_error *err);
/* Recover: takes this tool's end from QEMU (`pid`): HELD. -ENOENT: QEMU's migration is not held
 * open. */
int ibx_source_stream_take(struct source_stream *stream, pid_t pid, uint64_t hold,
                           struct ibx_error *err);
/* In HELD: the migration is complete, and QEMU's is ended: RELEASED. 0 in other states. */
int ibx_source_stream_release(struct source_stream *stream, struct ibx_qmp *qmp,
                              uint64_t deadline_ns, struct ibx_error *err);
void ibx_source_stream_close(struct source_stream *stream);

#endif
