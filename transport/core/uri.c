/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/transport.h"

#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"

static const char *const schemes[] = {"rdma", "shm", "verbs", "ofi", "tcp"};

static int parse_scheme(const char *text, size_t length, struct ibx_uri *uri, struct ibx_error *err)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strlen(schemes[i]) == length && !memcmp(schemes[i], text, length)) {
            memcpy(uri->scheme, text, length);
            return 0;
        }
    }
    return ibx_error_set(err, -EINVAL,
                         "URI scheme \"%.*s\" is not known: use rdma, shm, verbs, ofi or tcp",
                         (int)(length < 32 ? length : 32), text);
}

static int parse_port(const char *text, uint16_t *port)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long value = strtoul(text, NULL, 10);
    if (!digits || digits > 5 || text[digits] || value > UINT16_MAX)
        return -EINVAL;
    *port = (uint16_t)value;
    return 0;
}

/* RFC 6874 writes the percent sign in front of an interface as %25; getnameinfo(3) does not, and an
 * interface may have a name that begins with these digits. */
static void zone_decode(char *host)
{
    char *zone = strchr(host, '%');
    if (zone && !strncmp(zone, "%25", 3) && zone[3] && !if_nametoindex(zone + 1))
        memmove(zone + 1, zone + 3, strlen(zone + 3) + 1);
}

/* `text` is "HOST:PORT" or "[IPv6]:PORT"; it is cut in pieces. */
static int parse_authority(char *text, struct ibx_uri *uri, struct ibx_error *err)
{
    char *host = text, *port;
    bool good;
    if (*text == '[') {
        char *end = strchr(++host, ']');
        if (!end || end[1] != ':')
            return ibx_error_set(err, -EINVAL, "\"%s\" is not [IPv6]:port", text);
        *end = '\0';
        port = end + 2;
        zone_decode(host);
        good = strchr(host, ':') && !host[strspn(host, NAME_CHARACTERS ":%")];
    } else {
        port = strchr(text, ':');
        if (!port)
            return ibx_error_set(err, -EINVAL, "\"%s\" has no port: write host:port", text);
        if (strchr(port + 1, ':'))
            return ibx_error_set(err, -EINVAL,
                                 "\"%.64s\" has more than one colon: write an IPv6 address in "
                                 "brackets, [address]:port",
                                 text);
        *port++ = '\0';
        good = !host[strspn(host, NAME_CHARACTERS)];
    }
    size_t length = strlen(host);
    if (!length)
        return ibx_error_set(err, -EINVAL,
                             "\"%s:%.32s\" has no host: write host:port (0.0.0.0 listens at all "
                             "addresses)",
                             *text ? "[]" : "", port);
    if (!good || length >= sizeof(uri->host))
        return ibx_error_set(err, -EINVAL,
                             "\"%.64s\" is not a host name or address: write host:port, or "
                             "[IPv6]:port",
                             host);
    if (parse_port(port, &uri->port))
        return ibx_error_set(err, -EINVAL, "port \"%.32s\" is not a number from 0 to 65535", port);
    memcpy(uri->host, host, length);
    return 0;
}

int ibx_uri_parse(const char *text, struct ibx_uri *out, struct ibx_error *err)
{
    struct ibx_uri uri = {.scheme = ""};
    if (strlen(text) > IBX_URI_MAX)
        return ibx_error_set(err, -EINVAL, "URI of %zu characters is too long", strlen(text));
    const char *mark = strstr(text, "://");
    if (!mark)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not a URI: write rdma://host:port", text);
    int rc = parse_scheme(text, (size_t)(mark - text), &uri, err);
    if (rc)
        return rc;
    const char *rest = mark + 3;
    size_t length = strcspn(rest, "?");
    const char *query = rest[length] ? rest + length + 1 : "";
    if (strlen(query) >= sizeof(uri.query))
        return ibx_error_set(err, -EINVAL, "URI query \"%.32s...\" is too long", query);
    memcpy(uri.query, query, strlen(query) + 1);

    if (*rest == '/') {
        if (length >= sizeof(uri.path))
            return ibx_error_set(err, -EINVAL, "socket path \"%.*s\" is longer than %zu characters",
                                 (int)length, rest, sizeof(uri.path) - 1);
        if (strcmp(uri.scheme, "shm") && strcmp(uri.scheme, "rdma"))
            return ibx_error_set(err, -EINVAL,
                                 "%s:// needs host:port; a socket path goes with shm:// or rdma://",
                                 uri.scheme);
        memcpy(uri.path, rest, length);
    } else {
        char authority[IBX_URI_MAX + 1];
        snprintf(authority, sizeof(authority), "%.*s", (int)length, rest);
        rc = parse_authority(authority, &uri, err);
        if (rc)
            return rc;
    }
    *out = uri;
    return 0;
}

void ibx_uri_print(const struct ibx_uri *uri, char *out, size_t size)
{
    if (uri->path[0])
        snprintf(out, size, "%s://%s", uri->scheme, uri->path);
    else if (strchr(uri->host, ':'))
        snprintf(out, size, "%s://[%s]:%u", uri->scheme, uri->host, uri->port);
    else
        snprintf(out, size, "%s://%s:%u", uri->scheme, uri->host, uri->port);
}

int ibx_uri_options(const struct ibx_uri *uri, struct ibx_options *options, struct ibx_error *err)
{
    if (strcmp(uri->scheme, "rdma"))
        snprintf(options->provider, sizeof(options->provider), "%s", uri->scheme);
    char query[sizeof(uri->query)];
    memcpy(query, uri->query, sizeof(query));
    char *save = NULL;
    for (char *part = strtok_r(query, "&", &save); part; part = strtok_r(NULL, "&", &save)) {
        char *equals = strchr(part, '=');
        if (!equals)
            return ibx_error_set(err, -EINVAL, "\"%s\" in the URI is not key=value", part);
        *equals = '\0';
        int rc = ibx_options_set_given(options, part, equals + 1, err);
        if (rc)
            return rc;
    }
    return 0;
}
