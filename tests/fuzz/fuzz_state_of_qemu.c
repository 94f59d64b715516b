/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The device state that a QEMU writes, whatever it is and however its bytes arrive: what the source
 * takes for its end is one, and no stream that has one goes without. The first byte says in what
 * pieces the others come.
 */
#include "migrate/source/stream.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STATE_MOST 4096u /* bytes */
#define HEAD       6u    /* EOF, 6, the length of the JSON */

static size_t piece_of(uint8_t choice, size_t left)
{
    const size_t n = 1 + choice % 64u;
    return n < left ? n : left;
}

static size_t json_at(const uint8_t *end)
{
    return (size_t)end[2] << 24 | (size_t)end[3] << 16 | (size_t)end[4] << 8 | end[5];
}

/* Whether these bytes, and no fewer, are an end with a description. */
static bool is_described_end(const uint8_t *bytes, size_t n)
{
    return n > HEAD && !bytes[0] && bytes[1] == 6 && bytes[HEAD] == '{' &&
           json_at(bytes) == n - HEAD;
}

/* Where the end begins of a stream that has one; n: it has none. */
static size_t end_of(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i + HEAD < n; i++)
        if (is_described_end(bytes + i, n - i) && !memchr(bytes + i + HEAD, 0, n - i - HEAD))
            return i;
    return n;
}

static void take(const uint8_t *bytes, size_t n, uint8_t choice)
{
    size_t sent = 0, end;
    for (size_t at = 0, some; at < n; at += some) {
        some = piece_of(choice, n - at);
        const size_t held = at + some - sent, more = ibx_state_may_end(bytes + sent, held);
        require(more <= held);
        sent += more;
    }
    end = ibx_state_ends(bytes + sent, n - sent);
    require(end <= n - sent);
    if (end < n - sent)
        require(is_described_end(bytes + sent + end, n - sent - end));
    else
        require(end_of(bytes, n) == n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > STATE_MOST)
        return 0;
    uint8_t *bytes = malloc(size - 1); /* not a byte to spare */
    require(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    take(bytes, size - 1, data[0]);
    free(bytes);
    return 0;
}
