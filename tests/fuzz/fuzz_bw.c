/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Each end of ib-bw receives anything from the other. A client ends with one sentence or has
 * read the replies that it asked for; a server answers or ends the connection; and neither
 * accesses memory beyond its buffers.
 *
 *   u8 which end and what it does (bit 0: the server; bit 1: from the device), u8 bytes of the
 *   payload (client), then what the other end sends */
#include "tests/fuzz/require.h"
#include "tests/fuzz/quiet.h"
#include "tools/ib-bw/ib-bw.h"

#include "common/wire.h"

#include <errno.h>
#include <string.h>

#define MOST 4096u /* the server's --max-bytes */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Replaces the session's byte stream; the streams here have no session. */
struct ibx_session;
const char *ibx_session_reason(const struct ibx_session *s);
const struct ibx_path *ibx_session_path(const struct ibx_session *s);

const char *ibx_session_reason(const struct ibx_session *s)
{
    require(s);
    return "";
}

const struct ibx_path *ibx_session_path(const struct ibx_session *s)
{
    require(s);
    return NULL;
}

static struct ibx_reader input;
static unsigned destroyed;

static ssize_t hear(struct bw_stream *stream, void *buffer, size_t n)
{
    (void)stream;
    require(n);
    memset(buffer, 0, n); /* the caller owns all of it */
    if (n > ibx_reader_left(&input))
        return 0;
    memcpy(buffer, ibx_get_bytes(&input, n), n);
    return (ssize_t)n;
}

static ssize_t say(struct bw_stream *stream, const void *buffer, size_t n)
{
    static volatile uint8_t sum;
    (void)stream;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)buffer)[i]);
    return (ssize_t)n;
}

static int sync_it(struct bw_stream *stream)
{
    (void)stream;
    return 0;
}

static void destroy(struct bw_stream *stream)
{
    (void)stream;
    destroyed++;
}

static const struct bw_stream_ops operations = {hear, say, sync_it, destroy};

/* The buffers are allocated for each input, no longer than the slice needs. */
static void client(struct bw_stream *stream, enum bw_op op, size_t bytes)
{
    struct bw_bench bench = {.results = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    struct bw_slice slice = {.op = op, .bytes = bytes, .seed = 7, .count = 2, .warmup = 1};
    struct bw_cell cell = {0};
    struct ibx_error err = {.code = 0};
    const int rc = ibx_bw_slice_run(&bench, stream, &slice, &cell, &err);
    require(rc ? err.code == rc && err.message[0] : cell.samples == slice.count);
    require(!strchr(err.message, '\n'));
    free(cell.us);
    ibx_bw_buffer_fini(&bench.request);
    ibx_bw_buffer_fini(&bench.reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bw_stream stream = {.ops = &operations};
    input = ibx_reader_of(data, size);
    const uint8_t what = ibx_get_u8(&input), bytes = ibx_get_u8(&input);
    destroyed = 0;
    if (what & 1)
        ibx_bw_answer(&stream, MOST);
    else if (bytes)
        client(&stream, what & 2 ? BW_D2H : BW_H2D, bytes);
    require(destroyed == (what & 1));
    return 0;
}
