/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of this folder share. */
#ifndef IBX_MIGRATE_FIRECRACKER_INTERNAL_H
#define IBX_MIGRATE_FIRECRACKER_INTERNAL_H

#include "migrate/firecracker/firecracker.h"

#include <stdatomic.h>

/* ------------------------------------------------------------ descriptors */

/* What must not be lost while Firecracker runs: whoever serves its faults needs all of them. */
enum { KEPT_UFFD, KEPT_SOCKET, KEPT_SESSION, KEPT_PEER, KEPT_COUNT };

struct kept {
    int fds[KEPT_COUNT]; /* KEPT_PEER is a pidfd of Firecracker, or -1; the others are there */
};

static inline bool kept_any(const struct kept *kept)
{
    return kept->fds[KEPT_UFFD] >= 0;
}
void ibx_firecracker_kept_close(struct kept *kept);

/* ------------------------------------------------------------ peer.c */

/* Listens at config->socket; only `config->peer`, root and this user get a connection. */
int ibx_firecracker_listen(const struct ibx_firecracker_config *config, int *listener,
                           struct ibx_error *err);
/* Removes the socket. */
void ibx_firecracker_unlisten(const struct ibx_firecracker_config *config, int listener);
/* One connection: 0 and all descriptors but the session's, with the message. -EAGAIN: there was
 * none, or one of a stranger, or one without a byte; the next one may be Firecracker. Else what
 * came is no message that can be served. */
int ibx_firecracker_accept(const struct ibx_firecracker_config *config, int listener,
                           struct kept *kept, pid_t *pid, char *message, size_t *length,
                           struct ibx_error *err);

/* ------------------------------------------------------------ session.c */

/* The beginning of the session's memory file. After it, where the layout says how much: the page
 * map of the engine, and with --record the log of touched pages and a bit for each of them. */
#define IMAGE_BYTES 2 /* of the numbers that tell an image: its length */
struct session_header {
    uint64_t magic; /* SESSION_MAGIC: of this version */
    uint64_t began_ns;
    int64_t pid;
    _Atomic uint32_t restarts;
    _Atomic uint32_t recorded;          /* the file of --record is written */
    _Atomic uint64_t touched;           /* pages in the log */
    uint64_t image[IBX_IMAGE_IDENTITY]; /* where the pages are from, once `known` */
    _Atomic uint32_t known;
    uint64_t length; /* of the message */
    char message[IBX_FIRECRACKER_MESSAGE_MAX];
};

struct session {
    struct session_header *header;
    void *whole;
    size_t bytes;
    void *map_memory;       /* for the engine */
    _Atomic uint64_t *seen; /* a bit a page of the memory file */
    uint32_t *log;          /* pages of the memory file */
    uint64_t log_room;
};

/* The memory file with its header. */
int ibx_firecracker_session_make(const char *message, size_t length, pid_t pid, int *fd,
                                 struct ibx_error *err);
/* Maps the header alone, as soon as no other process has it, or not (-EBUSY); then all of it, when
 * the layout is known. */
int ibx_firecracker_session_map(int fd, bool waits, struct session *session, struct ibx_error *err);
int ibx_firecracker_session_extend(int fd, struct session *session,
                                   const struct ibx_fault_range *ranges, unsigned count,
                                   struct ibx_error *err);
void ibx_firecracker_session_unmap(struct session *session);
/* ibx_fault_config.touched: `context` is a session. */
void ibx_firecracker_touched(void *session, uint64_t page);
/* What was touched so far, in pages of 4096 bytes. */
int ibx_firecracker_working_set(const struct session *session, uint32_t page_size,
                                uint64_t image_bytes, struct ibx_working_set *set,
                                struct ibx_error *err);

/* The file of --record for a handler that has ended without it. -ENODATA: it had served nothing. */
int ibx_firecracker_record_left(int fd, const char *path, uint64_t *pages, struct ibx_error *err);

/* ------------------------------------------------------------ fd_store.c */

/* What systemd kept for this process; none: all are -1. */
void ibx_firecracker_stored(struct kept *kept);
void ibx_firecracker_store(const struct kept *kept);
void ibx_firecracker_forget(void);
/* Type=notify: Firecracker may connect. */
void ibx_firecracker_ready(void);

/* ------------------------------------------------------------ handler.c */

/* How a handler ends: any other way, and it is started again, as after TERMINATED if nobody has
 * asked the supervisor to end. AGAIN: the other host does not serve the snapshot, so that only a
 * microVM that is served already waits for it. */
enum { HANDLER_DONE = 0, HANDLER_REFUSED = 64, HANDLER_TERMINATED = 65, HANDLER_AGAIN = 66 };
/* What it tells the supervisor, one message each; the first byte is one of these. */
enum { TOLD_READY = 'r', TOLD_FAILED = 'f', TOLD_UNRECORDED = 'u' };
/* What the supervisor says before the SIGTERM that ends a handler; others' SIGTERM does not. */
enum { SAID_END = 'e' };

/* The handler's process: waits at `supervisor` for the descriptors and serves. */
int ibx_firecracker_handler(const struct ibx_firecracker_config *config, int supervisor);
/* Gives it the descriptors. */
int ibx_firecracker_hand_over(int handler, const struct kept *kept);

#endif
