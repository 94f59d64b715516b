/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A crowd without the key at a listener: 2,000 sockets that say nothing, stop in the middle of a
 * HELLO, send a byte now and then, or go as far as one can without the key; and 200 new ones a
 * second in the place of the oldest. */
#ifndef IBX_TESTS_SCENES_STRANGERS_H
#define IBX_TESTS_SCENES_STRANGERS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct strangers {
    const char *to, *from; /* IPv4 */
    uint16_t port;
    unsigned addresses;   /* from which they come, from `from` on */
    const uint8_t *hello; /* that they may send; NULL: they say nothing */
    size_t hello_length;
    const char *namespace; /* of the network; NULL: this one */
    const uint8_t *proof;  /* a PROOF that is none, for a flood */
    size_t proof_length;
};

/* In a process of its own; returns once all have come. */
pid_t strangers_begin(const struct strangers *of);
/* A flood instead: as many handshakes as a processor can begin, each up to a wrong PROOF. */
pid_t strangers_flood(const struct strangers *of);
void strangers_end(pid_t child);

#endif
