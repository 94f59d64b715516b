/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A limit on lines of one kind, for a log that a peer must not fill: so many a second, and at once
 * as many as in ten seconds. From any thread, without a lock.
 */
#ifndef IBX_COMMON_LINE_BOUND_H
#define IBX_COMMON_LINE_BOUND_H

#include <stdbool.h>
#include <stdint.h>

/* For lines of one kind. Begins as zeros. It may be in memory that several processes share, any of
 * which may have written anything there. */
struct ibx_line_bound {
    _Atomic uint64_t due;      /* when the next line is due if all come at their interval */
    _Atomic uint64_t left_out; /* lines refused since the last one that was not */
};

/* Whether one more line is allowed; `pause_ns` is the interval of lines. Then `*left_out` is how
 * many were refused since the last one that was allowed. */
bool ibx_line_bound_take(struct ibx_line_bound *bound, uint64_t pause_ns, uint64_t *left_out);

#endif
