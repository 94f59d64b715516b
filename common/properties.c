/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/properties.h"

#include "common/file_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* isspace(3) of the C locale: the process may run in another one. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Drops white space at both ends, in place. */
static char *trim(char *text)
{
    while (is_space(*text))
        text++;
    size_t n = strlen(text);
    while (n && is_space(text[n - 1]))
        n--;
    text[n] = '\0';
    return text;
}

static int add_item(struct ibx_properties *p, const char *key, const char *value, unsigned line)
{
    const struct ibx_property property = {.key = key, .value = value, .line = line};
    if (ibx_properties_find(p, key)) {
        p->ignored = property;
        return 0;
    }
    if (p->count == IBX_PROPERTIES_ENTRIES_MAX)
        return -E2BIG;
    if (!(p->count & (p->count - 1))) { /* full at every power of two */
        size_t capacity = p->count ? 2 * p->count : 1;
        struct ibx_property *items = realloc(p->items, capacity * sizeof(*items));
        if (!items)
            return -ENOMEM;
        p->items = items;
    }
    p->items[p->count++] = property;
    return 0;
}

/* Shown characters of a bad line: enough to find it, too few for a secret that is there by mistake.
 */
#define SHOWN 16

/* One line without its newline, NUL-terminated; cut into pieces in place. */
static int parse_line(struct ibx_properties *p, const char *name, char *text, unsigned line,
                      struct ibx_error *err)
{
    text[strcspn(text, "#")] = '\0';
    text = trim(text);
    if (!*text)
        return 0;
    char *colon = strchr(text, ':');
    if (!colon) {
        ibx_text_sanitize(text);
        return ibx_error_set(err, -EINVAL,
                             "%s line %u: \"%.*s%s\" is not an entry: write key : value", name,
                             line, SHOWN, text, strlen(text) > SHOWN ? "..." : "");
    }
    *colon = '\0';
    int rc = add_item(p, trim(text), trim(colon + 1), line);
    if (rc == -E2BIG)
        return ibx_error_set(err, -EINVAL, "%s line %u: more than %d entries: is it the right file",
                             name, line, IBX_PROPERTIES_ENTRIES_MAX);
    if (rc)
        return ibx_error_set(err, rc, "%s: no memory for its entries", name);
    return 0;
}

static int parse_lines(struct ibx_properties *p, const char *name, size_t length,
                       struct ibx_error *err)
{
    char *text = p->text;
    char *end = text + length;
    for (unsigned line = 1; text < end; line++) {
        char *newline = memchr(text, '\n', (size_t)(end - text));
        char *stop = newline ? newline : end;
        if (memchr(text, '\0', (size_t)(stop - text)))
            return ibx_error_set(err, -EINVAL, "%s line %u holds a NUL byte: it is not a text file",
                                 name, line);
        *stop = '\0'; /* the buffer has room for it behind the end, too */
        int rc = parse_line(p, name, text, line, err);
        if (rc)
            return rc;
        text = stop + 1;
    }
    return 0;
}

int ibx_properties_parse(const char *name, const char *text, size_t length,
                         struct ibx_properties *properties, struct ibx_error *err)
{
    if (length > IBX_PROPERTIES_BYTES_MAX)
        return ibx_error_set(err, -EINVAL, "%s is longer than %d bytes: is it the right file", name,
                             IBX_PROPERTIES_BYTES_MAX);
    struct ibx_properties p = {.text = malloc(length + 1)};
    if (!p.text)
        return ibx_error_set(err, -ENOMEM, "%s: no memory for its %zu bytes", name, length);
    if (length)
        memcpy(p.text, text, length);
    int rc = parse_lines(&p, name, length, err);
    if (rc) {
        ibx_properties_fini(&p);
        return rc;
    }
    *properties = p;
    return 0;
}

/* Reads up to `size` bytes; their number or a negative errno. */
static ssize_t read_file(int fd, char *buffer, size_t size)
{
    size_t have = 0;
    while (have < size) {
        ssize_t n = read(fd, buffer + have, size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (!n)
            break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

/* /dev/null is a file without entries, which everybody can write. It is not opened. */
static bool is_null(const char *file)
{
    struct stat st;
    return !stat(file, &st) && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

int ibx_properties_load(const char *file, struct ibx_properties *properties, struct ibx_error *err)
{
    if (is_null(file))
        return ibx_properties_parse(file, "", 0, properties, err);
    int rc = 0, fd = ibx_file_open(file, IBX_FILE_CONFIGURATION, err);
    if (fd < 0)
        return fd;
    /* One byte more than allowed, so that the parser refuses a longer file. */
    char *text = malloc(IBX_PROPERTIES_BYTES_MAX + 1);
    ssize_t n = text ? read_file(fd, text, IBX_PROPERTIES_BYTES_MAX + 1) : 0;
    if (!text)
        rc = ibx_error_set(err, -ENOMEM, "no memory to read %s", file);
    else if (n < 0)
        rc = ibx_error_set(err, (int)n, "cannot read %s: %s", file, strerror((int)-n));
    else
        rc = ibx_properties_parse(file, text, (size_t)n, properties, err);
    free(text);
    close(fd);
    return rc;
}

void ibx_properties_fini(struct ibx_properties *properties)
{
    free(properties->items);
    free(properties->text);
    *properties = (struct ibx_properties){0};
}

const struct ibx_property *ibx_properties_find(const struct ibx_properties *properties,
                                               const char *key)
{
    for (size_t i = 0; i < properties->count; i++) {
        if (!strcmp(properties->items[i].key, key))
            return &properties->items[i];
    }
    return NULL;
}

bool ibx_properties_item(const char **rest, const char **item, size_t *length)
{
    const char *at = *rest + strspn(*rest, ",");
    *item = at;
    *length = strcspn(at, ",");
    *rest = at + *length;
    return *length > 0;
}

int ibx_properties_prefix(const char *file, const struct ibx_property *entry, int rc,
                          struct ibx_error *err)
{
    char key[80];
    snprintf(key, sizeof(key), "%.79s", entry->key);
    ibx_text_sanitize(key);
    return ibx_error_prefix(err, rc, "%s line %u (%s)", file, entry->line, key);
}
