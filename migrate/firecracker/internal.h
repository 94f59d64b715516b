/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of this folder share. */
#ifndef IBX_MIGRATE_FIRECRACKER_INTERNAL_H
#define IBX_MIGRATE_FIRECRACKER_INTERNAL_H

#include "migrate/firecracker/firecracker.h"

#include <stdatomic.h>

/* ------------------------------------------------------------ descriptors */

/* Descriptors that must not be lost while Firecracker runs: serving its faults needs all of them.
 */
enum { KEPT_UFFD, KEPT_SOCKET, KEPT_SESSION, KEPT_PEER, KEPT_COUNT };

struct kept {
    int fds[KEPT_COUNT]; /* KEPT_PEER is a pidfd of Firecracker and may be -1, the others not */
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
/* What a Firecracker has sent, and who it is. */
struct hello {
    pid_t pid;     /* 0: not known */
    size_t length; /* of the message */
    char message[IBX_FIRECRACKER_MESSAGE_MAX];
};
/* Accepts a connection and receives its message: sets all descriptors but the session's. -EAGAIN:
 * there was no connection, or one of a stranger, or one that sent nothing; the next one may be
 * Firecracker. Other errors: the message cannot be served. */
int ibx_firecracker_accept(const struct ibx_firecracker_config *config, int listener,
                           struct kept *kept, struct hello *hello, struct ibx_error *err);

/* ------------------------------------------------------------ session.c */

/* The beginning of the session's memory file. It is followed, with sizes that depend on the layout,
 * by the engine's page map, and with --record by the log of touched pages and a bit for each page.
 */
#define IMAGE_BYTES 2 /* index of the length among the numbers that identify an image */
struct session_header {
    uint64_t magic; /* SESSION_MAGIC: of this version */
    uint64_t began_ns;
    int64_t pid;
    _Atomic uint32_t restarts;
    _Atomic uint32_t recorded;          /* 1: the file of --record is written */
    _Atomic uint64_t touched;           /* pages in the log */
    uint64_t image[IBX_IMAGE_IDENTITY]; /* the identity of the image, once `known` */
    _Atomic uint32_t known;
    uint64_t length; /* of the message */
    char message[IBX_FIRECRACKER_MESSAGE_MAX];
};

struct session {
    struct session_header *header;
    void *whole;
    size_t bytes;
    void *map_memory;       /* for the engine */
    _Atomic uint64_t *seen; /* a bit for each page of the memory file: it is in the log */
    uint32_t *log;          /* touched pages of the memory file, each plus one */
    uint64_t log_room;
};

/* Makes the memory file with its header. */
int ibx_firecracker_session_make(const struct hello *hello, int *fd, struct ibx_error *err);
/* Locks the memory file and maps its header. If another process has the lock, it waits with
 * `waits`, and otherwise returns -EBUSY. The second function maps all of it, once the layout is
 * known. */
int ibx_firecracker_session_map(int fd, bool waits, struct session *session, struct ibx_error *err);
int ibx_firecracker_session_extend(int fd, struct session *session,
                                   const struct ibx_fault_range *ranges, unsigned count,
                                   struct ibx_error *err);
/* ibx_fault_config.touched: `context` is a session. */
void ibx_firecracker_touched(void *session, uint64_t page);
/* Makes the working set of the pages touched so far, in pages of 4096 bytes. */
int ibx_firecracker_working_set(const struct session *session, uint32_t page_size,
                                uint64_t image_bytes, struct ibx_working_set *set,
                                struct ibx_error *err);

/* Writes the file of --record for a handler that has ended without having written it. -ENODATA: the
 * handler had served nothing. */
int ibx_firecracker_record_left(int fd, const char *path, uint64_t *pages, struct ibx_error *err);

/* ------------------------------------------------------------ fd_store.c */

/* Gets the descriptors that systemd has kept for this process; all are -1 if it has none. Then:
 * stores them; removes them from the store. */
void ibx_firecracker_stored(struct kept *kept);
void ibx_firecracker_store(const struct kept *kept);
void ibx_firecracker_forget(void);
/* Tells systemd (Type=notify) that Firecracker may connect, or that the one whose descriptors it
 * has kept is served. */
void ibx_firecracker_ready(void);

/* ------------------------------------------------------------ handler.c */

/* Exit statuses of a handler. After any other end it is started again, and also after TERMINATED
 * unless the supervisor was asked to end. AGAIN: the server does not serve the snapshot at present;
 * it is started again only for a microVM that has connected. */
enum { HANDLER_DONE = 0, HANDLER_REFUSED = 64, HANDLER_TERMINATED = 65, HANDLER_AGAIN = 66 };
/* The first byte of each message of a handler to the supervisor. */
enum { TOLD_READY = 'r', TOLD_FAILED = 'f', TOLD_UNRECORDED = 'u' };
/* The supervisor sends this before the SIGTERM that ends a handler, which ignores other SIGTERMs.
 */
enum { SAID_END = 'e' };

/* The main function of the handler's process: receives the descriptors from socket `supervisor` and
 * serves. Returns the exit status. */
int ibx_firecracker_handler(const struct ibx_firecracker_config *config, int supervisor);
/* Sends the descriptors to a handler. */
int ibx_firecracker_hand_over(int handler, const struct kept *kept);

#endif
