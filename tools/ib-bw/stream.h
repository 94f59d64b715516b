/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A stream, which GVirtuS calls a communicator: ours or stock's. For C and C++, since stock's uses
 * C++'s streams. */
#ifndef IBX_TOOLS_IB_BW_STREAM_H
#define IBX_TOOLS_IB_BW_STREAM_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "common/error.h" /* plain C */

struct bw_stream;

struct bw_stream_ops {
    /* Both transfer exactly n bytes and return n; 0: the stream has ended; or a negative errno. */
    ssize_t (*read)(struct bw_stream *stream, void *buffer, size_t n);
    ssize_t (*write)(struct bw_stream *stream, const void *buffer, size_t n);
    int (*sync)(struct bw_stream *stream);
    void (*destroy)(struct bw_stream *stream);
};

struct bw_stream {
    const struct bw_stream_ops *ops;
    struct ibx_session *session; /* owned by the stream; NULL: a stream of stock's */
};

/* Makes a stream of a connected socket, which it takes over, also on failure (-ENOMEM, -EMFILE). */
int ibx_bw_stream_of_stock(int fd, struct bw_stream **stream, struct ibx_error *err);

#ifdef __cplusplus
}
#endif

#endif
