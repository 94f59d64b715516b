/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server or a reader of a snapshot that writes what a test wants, over a real connection. */
#ifndef IBX_TESTS_SCENES_SNAPSHOT_PEER_H
#define IBX_TESTS_SCENES_SNAPSHOT_PEER_H

#include "migrate/snapshot/snapshot.h"
#include "tests/scenes/unit.h"

#define RAM (8 * IBX_SNAPSHOT_PAGE)

/* Of a VM with RAM bytes in one block, and 100 of its devices. */
extern const char manifest[];
extern unsigned answer_ms; /* that a peer waits for an answer */
extern unsigned patience;  /* ms, for what is to come: main() sets it */
extern struct ibx_error error;

struct ibx_options options(void);

struct step {
    const void *bytes;
    size_t length;
};

/* One message: 4,096 bytes at most. */
void put(struct ibx_conn *conn, const void *bytes, size_t length);
/* Takes what comes, until then, or until the other end has closed. */
void linger_until(struct ibx_conn *conn, uint64_t until);
void linger(struct ibx_conn *conn);

#endif
