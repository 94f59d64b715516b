/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A connection over the fabric inside the process. */
#ifndef IBX_TESTS_UNIT_MEMORY_PAIR_H
#define IBX_TESTS_UNIT_MEMORY_PAIR_H

#include "tests/scenes/memory_provider.h"

/* Two ends of one connection, both for the calling thread to use. */
struct memory_pair {
    struct ibx_listener *listener;
    struct ibx_conn *server, *client;
};

int memory_pair_open(struct memory_pair *pair, const struct ibx_options *options,
                     struct ibx_error *err);
/* Closes both ends, and connects to the same listener once more. */
int memory_pair_again(struct memory_pair *pair, const struct ibx_options *options,
                      struct ibx_error *err);
void memory_pair_close(struct memory_pair *pair);

#endif
