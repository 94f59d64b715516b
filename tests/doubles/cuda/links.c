/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The driver's linker. It compiles any PTX that has no "nonsense" in it; of that it says in which
 * line it is, as far as there is room in the log, and of others a word where it is to be verbose.
 * It links what has no ".extern" in it, and says of that that something is undefined, unless there
 * are several images. These are linked to the last cubin. */
#include "tests/doubles/cuda/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALID_PTX 218
#define UNKNOWN     999 /* what the linker of an H200's driver returns for an undefined symbol */

static bool held;

enum { WALL_TIME = 2, INFO_LOG, INFO_BYTES, ERROR_LOG, ERROR_BYTES, VERBOSE = 12, OPTIONS };

struct link {
    void **values[OPTIONS]; /* NULL: not an option */
    void *first[OPTIONS];   /* what they were, such as the room in a log */
    unsigned added;
    bool lacks; /* a symbol that does not exist */
    void *cubin;
    size_t cubin_bytes;
};

EXPORT void ibx_double_hold_linker(bool hold)
{
    pthread_mutex_lock(&mutex);
    held = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

EXPORT int cuLinkCreate_v2(unsigned count, int *options, void **values, void **state)
{
    const int code = enter("cuLinkCreate");
    if (code)
        return code;
    struct link *l = calloc(1, sizeof(*l));
    for (unsigned i = 0; l && i < count; i++)
        if (options[i] >= 0 && options[i] < OPTIONS) {
            l->values[options[i]] = &values[i];
            l->first[options[i]] = values[i];
        }
    *state = l;
    return leave(l ? SUCCESS : OUT_OF_MEMORY);
}

/* Writes as much of the text as there is room for, and a NUL. The length of a text that is cut is
 * the room. */
static void say(struct link *l, int log, const char *text)
{
    void **to = l->values[log], **room = l->values[log + 1];
    const uint32_t n = (uint32_t)(uintptr_t)l->first[log + 1];
    if (to && *to && n)
        snprintf(*to, n, "%s", text);
    if (room)
        *room = (void *)(uintptr_t)(strlen(text) < n ? strlen(text) : n);
}

static unsigned line_of(const char *text, const char *at)
{
    unsigned line = 1;
    for (; text < at; text++)
        line += *text == '\n';
    return line;
}

EXPORT int cuLinkAddData_v2(void *state, int kind, void *data, size_t n, const char *name,
                            unsigned count, int *options, void **values)
{
    struct link *l = state;
    char text[200];
    const int code = enter("cuLinkAddData");
    if (code)
        return code;
    if (!n || count || options || values)
        return leave(INVALID_VALUE);
    if (kind == 0) {
        free(l->cubin);
        l->cubin = malloc(n);
        memcpy(l->cubin, data, n);
        l->cubin_bytes = n;
        l->added++;
        return leave(SUCCESS);
    }
    if (kind != 1 || ((const char *)data)[n - 1])
        return leave(INVALID_VALUE);
    for (stats.linking++; held;)
        wait_for_change();
    stats.linking--;
    const char *wrong = strstr(data, "nonsense");
    snprintf(text, sizeof(text), "ptxas fatal : %s, line %u: nonsense", name,
             wrong ? line_of(data, wrong) : 0);
    const bool verbose = l->values[VERBOSE] && *l->values[VERBOSE];
    const float ms = 12.5f;
    say(l, ERROR_LOG, wrong ? text : "");
    say(l, INFO_LOG, verbose ? "ptxas info : 24 registers" : "");
    if (l->values[WALL_TIME])
        memcpy(l->values[WALL_TIME], &ms, sizeof(ms));
    l->added++;
    l->lacks = l->lacks || strstr(data, ".extern");
    return leave(wrong ? INVALID_PTX : SUCCESS);
}

EXPORT int cuLinkComplete(void *state, void **image, size_t *n)
{
    struct link *l = state;
    const int code = enter("cuLinkComplete");
    if (code)
        return code;
    if (l->lacks && l->added == 1) {
        say(l, ERROR_LOG, "nvlink error : undefined reference");
        return leave(UNKNOWN);
    }
    *image = l->cubin ? l->cubin : state;
    *n = l->cubin ? l->cubin_bytes : l->added;
    return leave(l->added ? SUCCESS : INVALID_VALUE);
}

EXPORT int cuLinkDestroy(void *state)
{
    const int code = enter("cuLinkDestroy");
    if (code)
        return code;
    free(((struct link *)state)->cubin);
    free(state);
    return leave(SUCCESS);
}
