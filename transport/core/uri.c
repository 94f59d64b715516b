/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/transport.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

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

static int parse_port(const char *text, size_t length, uint16_t *port)
{
    unsigned value = 0;
    if (!length || length > 5)
        return -EINVAL;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]))
            return -EINVAL;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    if (value > UINT16_MAX)
        return -EINVAL;
    *port = (uint16_t)value;
    return 0;
}

static bool host_character(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

/* `text` is "HOST:PORT" or "[IPv6]:PORT", `length` bytes long. */
static int parse_authority(const char *text, size_t length, struct ibx_uri *uri,
                           struct ibx_error *err)
{
    const char *host = text;
    const char *end = text + length;
    const char *host_end;
    bool good = true;
    if (length && *text == '[') {
        host++;
        host_end = memchr(host, ']', (size_t)(end - host));
        if (!host_end || host_end + 1 == end || host_end[1] != ':')
            return ibx_error_set(err, -EINVAL, "\"%.*s\" is not [IPv6]:port", (int)length, text);
        good = memchr(host, ':', (size_t)(host_end - host)); /* no name belongs in brackets */
        for (const char *p = host; p < host_end; p++)
            good = good && (isxdigit((unsigned char)*p) || *p == ':' || *p == '.' || *p == '%' ||
                            host_character(*p));
        text = host_end + 2;
    } else {
        host_end = memchr(host, ':', length);
        if (!host_end)
            return ibx_error_set(err, -EINVAL, "\"%.*s\" has no port: write host:port", (int)length,
                                 text);
        for (const char *p = host; p < host_end; p++)
            good = good && host_character(*p);
        if (memchr(host_end + 1, ':', (size_t)(end - host_end - 1)))
            return ibx_error_set(err, -EINVAL,
                                 "\"%.*s\" has more than one colon: write an IPv6 address in "
                                 "brackets, [address]:port",
                                 (int)(length < 64 ? length : 64), text);
        text = host_end + 1;
    }
    size_t host_length = (size_t)(host_end - host);
    if (!good || !host_length || host_length >= sizeof(uri->host))
        return ibx_error_set(err, -EINVAL, "\"%.*s\" is not a host name or address",
                             (int)(host_length < 64 ? host_length : 64), host);
    if (parse_port(text, (size_t)(end - text), &uri->port))
        return ibx_error_set(err, -EINVAL, "port \"%.*s\" is not a number from 0 to 65535",
                             (int)(end - text < 32 ? end - text : 32), text);
    memcpy(uri->host, host, host_length);
    return 0;
}

int ibx_uri_parse(const char *text, struct ibx_uri *out, struct ibx_error *err)
{
    struct ibx_uri uri = {.scheme = ""};
    if (strlen(text) > 900)
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
        rc = parse_authority(rest, length, &uri, err);
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
        int rc = ibx_options_set(options, part, equals + 1, err);
        if (rc)
            return rc;
    }
    return 0;
}
