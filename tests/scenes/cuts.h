/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Connections that break: each gets the fault injector before its first message. For programs that
 * are linked with -Wl,--wrap=ibx_connect,--wrap=ibx_establish.
 */
#ifndef IBX_TESTS_SCENES_CUTS_H
#define IBX_TESTS_SCENES_CUTS_H

#include "tests/scenes/session_pair.h"

#define CUTS_PLANNED 4u
#define CUTS_FAULTS  64u

/* Of one end: where its connections are cut, in their order; 0: not. Beyond the last by `often`. */
struct cut_end {
    struct ibx_injected_faults faults[CUTS_FAULTS]; /* a connection each, in a ring */
    unsigned plan[CUTS_PLANNED];
    unsigned count;       /* connections so far */
    size_t often;         /* cut after 1 to so many events, 0: never */
    struct random random; /* for that */
};
extern struct cut_end client_end, server_end;

/* Changes what the client's n-th connection is made with, or NULL. */
extern void (*cuts_connect_with)(struct ibx_options *options, unsigned n);
/* The same of the server's, which is established with them. */
extern void (*cuts_establish_with)(struct ibx_options *options, unsigned n);

void cuts_plan_nothing(void);
/* No more cuts, in the thread of this end. */
void cuts_disarm(struct cut_end *end);

int __real_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                       struct ibx_error *err);

#endif
