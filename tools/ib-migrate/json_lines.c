/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The two ends of run speak JSON, an object a line. */
#include "tools/ib-migrate/run.h"

#include "common/write_whole.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEP     65536u
#define ROOM_MAX (4u << 20) /* bytes of an object; the arguments of any QEMU are shorter */

void ibx_json_lines_init(struct json_lines *lines, int fd)
{
    *lines = (struct json_lines){.fd = fd};
}

void ibx_json_lines_fini(struct json_lines *lines)
{
    free(lines->text);
    lines->text = NULL;
}

static void note_strange(struct json_lines *lines, size_t length)
{
    snprintf(lines->strange, sizeof(lines->strange), "%.*s", (int)length, lines->text);
    ibx_text_sanitize(lines->strange);
}

static json_t *take_line(struct json_lines *lines, int *rc)
{
    char *end = lines->length ? memchr(lines->text, '\n', lines->length) : NULL;
    if (!end)
        return NULL;
    const size_t length = (size_t)(end - lines->text);
    json_t *object = json_loadb(lines->text, length, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object))
        note_strange(lines, length);
    lines->length -= length + 1;
    memmove(lines->text, end + 1, lines->length);
    if (!json_is_object(object)) {
        json_decref(object);
        *rc = -EPROTO;
        return NULL;
    }
    return object;
}

json_t *ibx_json_lines_next(struct json_lines *lines, int *rc)
{
    *rc = 0;
    json_t *object = take_line(lines, rc);
    if (object || *rc)
        return object;
    if (lines->room - lines->length < STEP) {
        char *more = lines->room < ROOM_MAX ? realloc(lines->text, lines->room + STEP) : NULL;
        if (!more) {
            note_strange(lines, lines->length);
            *rc = -EPROTO;
            return NULL;
        }
        lines->text = more;
        lines->room += STEP;
    }
    ssize_t n = read(lines->fd, lines->text + lines->length, lines->room - lines->length);
    if (n <= 0) {
        *rc = n < 0 && (errno == EINTR || errno == EAGAIN) ? 0 : -EPIPE;
        return NULL;
    }
    lines->length += (size_t)n;
    return take_line(lines, rc);
}

int ibx_json_lines_put(int fd, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text)
        return -ENOMEM;
    const size_t length = strlen(text) + 1;
    text[length - 1] = '\n';
    const int rc = ibx_write_whole(fd, text, length);
    free(text);
    return rc;
}
