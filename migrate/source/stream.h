/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device state, from the source's QEMU to the destination. Part of source.h. */
#ifndef IBX_MIGRATE_SOURCE_STREAM_H
#define IBX_MIGRATE_SOURCE_STREAM_H

#include "common/state_machine.h"
#include "migrate/channel/channel.h"
#include "migrate/qemu/qemu.h"

/*
 * The stream stays open when QEMU has written all of it, so that QEMU's migration does too
 * (migrate/common/hold.h).
 *
 * state machine: source stream
 *   [*] -> CLOSED -> MADE -> OPEN -> READ -> SENT -> HELD    READ: all of it; SENT: with STATE_END
 *   [*] -> HELD                                              recover
 *   HELD -> RELEASED -> [*]                                  QEMU's migration has ended
 *   MADE | OPEN | READ | SENT | HELD -> CLOSED -> [*]        this tool's end; in HELD QEMU has one
 */
enum source_stream_state {
    STREAM_CLOSED,
    STREAM_MADE,
    STREAM_OPEN,
    STREAM_READ,
    STREAM_SENT,
    STREAM_HELD,
    STREAM_RELEASED
};

struct source_stream {
    struct ibx_state_machine state;
    int fd;         /* to QEMU; -1 in CLOSED and RELEASED */
    int theirs;     /* MADE: QEMU's end; else -1 */
    bool managed;   /* libvirt has started QEMU's migration, and ends it */
    uint64_t bytes; /* sent */
    uint8_t *held;  /* OPEN: read and not sent, since the state may end with it */
    size_t held_length, held_room;
    size_t pending;   /* OPEN: bytes that QEMU has written and nobody has read, by the last look */
    uint64_t grew_ns; /* when these were not as many as before */
    bool flows;       /* they were all that QEMU could write, once */
};

void ibx_source_stream_init(struct source_stream *stream);
/* `hold`: its name for the journal. */
int ibx_source_stream_make(struct source_stream *stream, uint64_t *hold, struct ibx_error *err);
/* Starts QEMU's migration into it. */
int ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp,
                           struct ibx_error *err);
/* libvirt has started QEMU's migration into `fd`, which is taken over. */
int ibx_source_stream_adopt(struct source_stream *stream, int fd, struct ibx_error *err);
/* HELD: lets QEMU end such a migration, as completed. */
int ibx_source_stream_let_go(struct source_stream *stream, struct ibx_error *err);
/* OPEN: looks how much QEMU has written that nobody has read. */
void ibx_source_stream_look(struct source_stream *stream);
/* Whether that may wait for the page map, by the last look. */
bool ibx_source_stream_waits(const struct source_stream *stream, bool stopped);
/* Sends what QEMU has written, for a turn, unless messages already wait for credit. READ when that
 * ends as a whole state does and `saved`: QEMU is about to have written all of it, or has. */
int ibx_source_stream_carry(struct source_stream *stream, struct ibx_channel *control, bool saved,
                            struct ibx_error *err);
/* Where the end may begin in bytes of a state that have come so far, and where it does if these are
 * all; `length`: nowhere. */
size_t ibx_state_may_end(const uint8_t *bytes, size_t length);
size_t ibx_state_ends(const uint8_t *bytes, size_t length);
/* READ: sends STATE_END, and has QEMU hold it open whatever becomes of this tool. */
int ibx_source_stream_end(struct source_stream *stream, struct ibx_channel *control,
                          struct ibx_qmp *qmp, struct ibx_error *err);
/* Recover: takes it from the QEMU `pid`. -ENOENT: QEMU's migration is not held open. */
int ibx_source_stream_take(struct source_stream *stream, pid_t pid, uint64_t hold,
                           struct ibx_error *err);
/* HELD: the migration is complete. */
int ibx_source_stream_release(struct source_stream *stream, struct ibx_qmp *qmp,
                              uint64_t deadline_ns, struct ibx_error *err);
void ibx_source_stream_close(struct source_stream *stream);

#endif
