/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * So many lines of one kind a second, and as many as in ten seconds at once, for a log that a peer
 * must not fill. From any thread, without a lock.
 */
#ifndef IBX_COMMON_LINE_BOUND_H
#define IBX_COMMON_LINE_BOUND_H

#include <stdbool.h>
#include <stdint.h>

/* Of one kind; zeros: none has come. It may be in memory of several processes, any of which may
 * have written there what it likes. */
struct ibx_line_bound {
    _Atomic uint64_t due;      /* when the next line would be, if none came early */
    _Atomic uint64_t left_out; /* lines for which there was no room */
};

/* Whether there is room for one more; `pause_ns` is what each takes. `*left_out`: how many there
 * was none for since the last one that had some. */
bool ibx_line_bound_take(struct ibx_line_bound *bound, uint64_t pause_ns, uint64_t *left_out);

#endif
