/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connections in the place of transport's, whose peer is a fuzzer's input: its messages, each after
 * its length in two bytes; 0xffff is the end of a connection, and what follows is of the next one.
 * What the session must not do aborts. */
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

/* Before each input. The flags: bit 1: nothing can be registered; 2: every third send finds no
 * credit; 3: copies fail; 4: registrations come from a cache; 7: what is READ is a request's frame.
 * `name`: of the peer, "": it has none. */
void fake_transport_begin(uint8_t flags, struct ibx_reader input, const char *name);
/* The session that uses the connections; NULL: none any more. */
void fake_transport_of(struct ibx_session *session);
/* The next connection, with the messages up to its end; NULL: there are no more. */
struct ibx_conn *fake_conn_next(void);
/* How many regions of all connections there are. */
unsigned fake_transport_regions(void);

#endif
