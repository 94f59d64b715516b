/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces transport's connections by ones whose peer is the fuzzer's input: its messages, each
 * after its length in two bytes; 0xffff ends a connection, and what follows belongs to the next
 * one. Aborts if the session does what it must not do. */
#ifndef IBX_TESTS_FUZZ_FAKE_TRANSPORT_H
#define IBX_TESTS_FUZZ_FAKE_TRANSPORT_H

#include "common/wire.h"
#include "transport/transport.h"

#include <stdbool.h>
#include <stdlib.h>

#define FAKE_SLOTS   4u
#define FAKE_MESSAGE 1024u

struct ibx_session;

static inline void require(bool good)
{
    if (!good)
        abort();
}

/* Called before each input. Flags: bit 1: nothing can be registered; 2: every third send has no
 * credit; 3: copies fail; 4: registrations come from a cache; 7: what is READ is the frame of a
 * request. `name`: the peer's, "": none. */
void fake_transport_begin(uint8_t flags, struct ibx_reader input, const char *name);
/* Sets the session that uses the connections; NULL: no session uses them any more. */
void fake_transport_of(struct ibx_session *session);
/* Returns the next connection, with the messages up to its end; NULL: there are no more. */
struct ibx_conn *fake_conn_next(void);
/* Returns the number of regions of all connections. */
unsigned fake_transport_regions(void);

#endif
