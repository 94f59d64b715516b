/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device state, into the destination's QEMU, without its end before the commit. Part of
 * destination.h. */
#ifndef IBX_MIGRATE_DESTINATION_STREAM_H
#define IBX_MIGRATE_DESTINATION_STREAM_H

#include "common/state_machine.h"
#include "migrate/qemu/qemu.h"

/*
 * state machine: destination stream
 *   [*] -> CLOSED -> TAKING -> WHOLE -> RELEASED    RELEASED: the end may go to QEMU, too
 *   RELEASED -> ENDING -> FED -> [*]                ENDING: some of the end has gone to QEMU
 *   [*] -> ENDING                                   recover: the tool before may have sent it
 *   TAKING | WHOLE | RELEASED | ENDING -> CUT -> [*]
 */
enum destination_stream_state {
    STREAM_CLOSED,
    STREAM_TAKING,
    STREAM_WHOLE,
    STREAM_RELEASED,
    STREAM_ENDING,
    STREAM_FED,
    STREAM_CUT
};

struct destination_stream {
    struct ibx_state_machine state;
    int fd;  /* into QEMU; -1: none */
    int fed; /* libvirt drives, QEMU has all: the same, open because QEMU may still answer; or -1 */
    bool managed;
    uint8_t *bytes;                   /* what QEMU has not taken yet */
    size_t from, sure, end, capacity; /* `sure`: no EOF before it, for certain */
    uint64_t total;                   /* bytes that came */
    uint8_t last[6];                  /* of them, the latest: a section's footer and EOF */
    unsigned matched;                 /* bytes so far of what ends the set-up of guest RAM */
    uint64_t ram_set_up;              /* bytes up to that end; 0: not found yet */
};

/*
 * QEMU's stream ends with the byte QEMU_VM_EOF (0) and, for almost every machine type, a
 * description for debuggers behind it: QEMU_VM_VMDESCRIPTION (6), u32 length, big-endian, JSON. The
 * VM runs as soon as EOF was read, even when the description is cut off. So EOF is what is held
 * back until the commit, not just the last byte.
 *
 * How many of these bytes (the stream's latest) QEMU may have now, certainly without EOF. When the
 * stream has `ended`, the rest is EOF and what follows it, and `*whole` is whether it was
 * recognised; otherwise the stream is not QEMU's.
 */
size_t ibx_state_tail(const uint8_t *bytes, size_t length, bool ended, bool *whole);

/* CLOSED, or for recover ENDING. */
void ibx_destination_stream_init(struct destination_stream *stream,
                                 enum destination_stream_state first);
/* Connects to the socket at which libvirt has this QEMU wait for its device state. -EAGAIN: QEMU
 * does not listen yet. 0 also when it is connected. */
int ibx_destination_stream_connect(struct destination_stream *stream, const char *path, pid_t qemu,
                                   struct ibx_error *err);
/* QEMU waits for the device state from here on. It is told to, unless the stream is connected. */
int ibx_destination_stream_open(struct destination_stream *stream, struct ibx_qmp *qmp,
                                struct ibx_error *err);
/* Keeps bytes that have come, for ibx_destination_stream_feed(). -EPROTO: more than 1 GiB would
 * wait for QEMU; -ENOMEM. */
int ibx_destination_stream_append(struct destination_stream *stream, const uint8_t *bytes,
                                  size_t length, struct ibx_error *err);
/* All has come. -EPROTO: it is not `total` bytes, or does not end as QEMU's streams do. */
int ibx_destination_stream_end(struct destination_stream *stream, uint64_t total,
                               struct ibx_error *err);
/* Writes to QEMU what it takes without blocking; before RELEASED without EOF. */
int ibx_destination_stream_feed(struct destination_stream *stream, struct ibx_error *err);
/* QEMU takes no more at the moment. */
bool ibx_destination_stream_stuck(const struct destination_stream *stream);
/* QEMU has read everything but the end. */
bool ibx_destination_stream_loaded(const struct destination_stream *stream);
/* QEMU has read the set-up of each RAM block, and its main thread has parsed it: nothing after that
 * depends on the capability x-ignore-shared. */
bool ibx_destination_stream_past_ram(const struct destination_stream *stream);
/* Closes the stream before its end, so that QEMU's incoming migration fails. */
void ibx_destination_stream_cut(struct destination_stream *stream);
void ibx_destination_stream_fini(struct destination_stream *stream);

#endif
