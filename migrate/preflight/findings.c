/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Blockers and notes as texts, and the names in them. */
#include "migrate/preflight/description.h"

#include <stdarg.h>
#include <stdio.h>

#define NAMED_MAX 3 /* devices or properties in one sentence */

void ibx_blockers_add(struct ibx_blockers *blockers, const char *format, ...)
{
    size_t at = blockers->count++;
    if (at >= IBX_BLOCKERS_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(blockers->reasons[at], sizeof(blockers->reasons[at]), format, arguments);
    va_end(arguments);
    ibx_text_sanitize(blockers->reasons[at]);
}

void ibx_blockers_note(struct ibx_blockers *blockers, const char *format, ...)
{
    size_t at = blockers->note_count;
    if (at >= IBX_NOTES_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(blockers->notes[at], sizeof(blockers->notes[at]), format, arguments);
    va_end(arguments);
    ibx_text_sanitize(blockers->notes[at]);
    blockers->note_count++;
}

void ibx_names_add(struct ibx_names *names, const char *format, ...)
{
    va_list arguments;
    if (names->count++ >= NAMED_MAX || names->used >= sizeof(names->text) - 3)
        return;
    if (names->used)
        names->used +=
            (size_t)snprintf(names->text + names->used, sizeof(names->text) - names->used, ", ");
    va_start(arguments, format);
    names->used += (size_t)vsnprintf(names->text + names->used, sizeof(names->text) - names->used,
                                     format, arguments);
    va_end(arguments);
}

const char *ibx_names_more(const struct ibx_names *names, char out[32])
{
    *out = '\0';
    if (names->count > NAMED_MAX)
        snprintf(out, 32, " and %u more", names->count - NAMED_MAX);
    return out;
}

const char *ibx_member(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}
