/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the two ends of `ib-migrate run` send to each other. However the bytes arrive, the
 * objects are those of the lines, in order, up to the first line that is not an object. The
 * first byte says in which pieces they arrive. */
#include "tests/fuzz/require.h"
#include "tools/ib-migrate/run.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define BYTES_MAX 32768u /* a pipe holds them */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For comparison: the object of the next line, or NULL if it is not an object. */
static json_t *wanted_of(const char **text, const char *end)
{
    const char *line = *text, *stop = memchr(line, '\n', (size_t)(end - line));
    require(stop);
    *text = stop + 1;
    json_t *object = json_loadb(line, (size_t)(stop - line), JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(object))
        return object;
    json_decref(object);
    return NULL;
}

/* Takes all that has arrived. False after a line that is not an object. */
static bool take_all(struct json_lines *lines, const char **text, const char *written)
{
    while (*text < written && memchr(*text, '\n', (size_t)(written - *text))) {
        int rc = 1;
        json_t *object = ibx_json_lines_next(lines, &rc);
        if (!object && !rc) /* the rest of a line that was read before */
            continue;
        json_t *wanted = wanted_of(text, written);
        require(object ? !rc : rc == -EPROTO);
        require(object ? json_equal(object, wanted) : !wanted);
        json_decref(object);
        json_decref(wanted);
        if (rc)
            return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2], rc = 1;
    if (!size || size > BYTES_MAX)
        return 0;
    const size_t piece = data[0] ? data[0] : size;
    const char *text = (const char *)data + 1, *end = (const char *)data + size, *at = text;
    struct json_lines lines;
    require(!pipe(ends));
    ibx_json_lines_init(&lines, ends[0]);
    bool good = true;
    while (good && at < end) {
        const size_t n = (size_t)(end - at) < piece ? (size_t)(end - at) : piece;
        require(write(ends[1], at, n) == (ssize_t)n);
        at += n;
        good = take_all(&lines, &text, at);
    }
    close(ends[1]);
    for (unsigned i = 0; good && i < 2; i++) /* a line without an end does not count */
        require(!ibx_json_lines_next(&lines, &rc) && (!rc || rc == -EPIPE));
    require(!good || rc == -EPIPE);
    ibx_json_lines_fini(&lines);
    close(ends[0]);
    return 0;
}
