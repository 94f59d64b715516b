/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Both ends of an shm connection, whose socket lies in a directory of the test's own; and others on
 * this host. */
#ifndef IBX_TESTS_SCENES_SHM_PLACES_H
#define IBX_TESTS_SCENES_SHM_PLACES_H

#include "tests/scenes/shm_pair.h"

extern char base[64]; /* a directory of this test, which everybody may search */
/* For a setup and a teardown. */
int places_make(void **state);
int places_remove(void **state);

/* The end looks for sockets in this directory in `base`, which is made if need be. */
void directory_of(struct end *end, const char *name, mode_t mode, uid_t owner);
extern uint8_t offered[512]; /* what the server has offered, for the client */
extern size_t offered_length;
/* What the client's join() of an offer returns. */
int join(const uint8_t *bytes, size_t length);

uint64_t in_time(void);
/* An error with these words in it. */
void said(const struct ibx_error *err, const char *words);
/* A process that dies with this one. */
pid_t start(void (*run)(void));
/* A SEQPACKET socket that listens at the path, or is connected to who does. */
int unix_at(const char *path, bool bound);

#endif
