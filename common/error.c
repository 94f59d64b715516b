/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/error.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static bool space_is_limited(void)
{
    struct rlimit limit;
    return !getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY;
}

/* Adds the remedy for -EMFILE and for -ENOMEM, unless the sentence names a limit already. */
static void add_remedy(char *message, size_t size, int code)
{
    const size_t used = strlen(message);
    if (strstr(message, "limit"))
        return;
    if (code == -EMFILE)
        snprintf(message + used, size - used, IBX_ERROR_MORE_FILES);
    else if (code == -ENOMEM && space_is_limited())
        snprintf(message + used, size - used, "; " IBX_ERROR_RAISE_SPACE);
}

static void set(struct ibx_error *err, int code, bool ours, const char *format, va_list args)
{
    char message[IBX_ERROR_MAX] = ""; /* not err->message, which may be among the arguments */
    vsnprintf(message, sizeof(message), format, args);
    if (ours)
        add_remedy(message, sizeof(message), code);
    ibx_text_plain(message);
    memcpy(err->message, message, strlen(message) + 1);
    err->code = code;
}

int ibx_error_set(struct ibx_error *err, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (err)
        set(err, code, true, format, args);
    va_end(args);
    return code;
}

int ibx_error_set_theirs(struct ibx_error *err, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (err)
        set(err, code, false, format, args);
    va_end(args);
    return code;
}

int ibx_error_set_task(struct ibx_error *err, int code, const char *format, ...)
{
    char which[IBX_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(which, sizeof(which), format, args);
    va_end(args);
    return ibx_error_set(err, code, "%s: %s%s", which, strerror(-code),
                         code == -EAGAIN ? "; " IBX_ERROR_RAISE_TASKS : "");
}

int ibx_error_prefix(struct ibx_error *err, int code, const char *format, ...)
{
    if (!err)
        return code;
    char rest[IBX_ERROR_MAX];
    memcpy(rest, err->message, sizeof(rest));
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : strlen(err->message);
    if (*rest && used + 3 < sizeof(err->message))
        snprintf(err->message + used, sizeof(err->message) - used, ": %.*s",
                 (int)(sizeof(err->message) - used - 3), rest);
    ibx_text_plain(err->message);
    if (!err->code)
        err->code = code;
    return err->code;
}

/* The bytes 0xc2 0x80 to 0xc2 0x9f are UTF-8's other control characters. A terminal obeys them as
 * it obeys ESC. */
void ibx_text_plain(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
        else if (*p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
            p[0] = p[1] = '?';
    }
}

void ibx_text_sanitize(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p > 0x7e)
            *p = '?';
    }
}
