/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The grammar of gvirtus.properties, as classic GVirtuS itself reads it:
 *
 *   '#' ends a line anywhere, also inside a value
 *   an entry is split at its first ':'; white space around key and value is dropped
 *   keys are looked up in lower case, so an entry counts only when its key is written so
 *   the first of several entries with one key counts
 *   a list (`plugins`) is split at ',' and its items are not trimmed
 *
 * A line without ':' is an error for both. ibx also refuses a NUL byte and a size beyond the limits
 * below.
 */
#ifndef IBX_COMMON_PROPERTIES_H
#define IBX_COMMON_PROPERTIES_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>

#define IBX_PROPERTIES_BYTES_MAX   (256 * 1024)
#define IBX_PROPERTIES_ENTRIES_MAX 1024

struct ibx_property {
    const char *key;
    const char *value; /* "" when nothing follows the colon */
    unsigned line;     /* from 1 */
};

struct ibx_properties {
    char *text;                 /* what the entries point into */
    struct ibx_property *items; /* in the order of the file, each key once */
    size_t count;
    struct ibx_property ignored; /* the last entry with the key of an earlier one; key NULL: none */
};

/* Parses `length` bytes, which need not end with a newline or a NUL; `name` is the file's, for
 * messages. Call ibx_properties_fini() after success. -EINVAL: not such a file; -ENOMEM. */
int ibx_properties_parse(const char *name, const char *text, size_t length,
                         struct ibx_properties *properties, struct ibx_error *err);
/* Parses a file that ibx_file_open() opens, or /dev/null, which has no entries. Has the errors of
 * these functions, and those of read(2). */
int ibx_properties_load(const char *file, struct ibx_properties *properties, struct ibx_error *err);
void ibx_properties_fini(struct ibx_properties *properties);

/* The entry with this key, or NULL. */
const struct ibx_property *ibx_properties_find(const struct ibx_properties *properties,
                                               const char *key);

/* Puts "FILE line N (KEY): " before the message of an entry's error `rc`, which is returned. */
int ibx_properties_prefix(const char *file, const struct ibx_property *entry, int rc,
                          struct ibx_error *err);

/* The next non-empty item of a list, `*length` bytes without a NUL. `*rest` is the value at first,
 * and each call advances it. False: there are no more. */
bool ibx_properties_item(const char **rest, const char **item, size_t *length);

#endif
