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

/* How many bytes the character of UTF-8 has that begins here; 1 if it is none. */
static size_t character(const unsigned char *p)
{
    const size_t n = *p < 0xc2 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 1;
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xf0 && p[1] < 0x90)) /* there is a shorter form */
        return 1;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 1;
    return n;
}

/* The bytes 0xc2 0x80 to 0xc2 0x9f are UTF-8's other control characters. A terminal obeys them as
 * it obeys ESC, and one of another character set the single bytes 0x80 to 0x9f. */
void ibx_text_plain(char *text)
{
    size_t n;
    for (unsigned char *p = (unsigned char *)text; *p; p += n) {
        n = character(p);
        const bool control =
            n == 1 ? *p < 0x20 || (*p >= 0x7f && *p <= 0x9f) : n == 2 && *p == 0xc2 && p[1] <= 0x9f;
        if (control)
            memset(p, '?', n);
    }
}

void ibx_text_sanitize(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p > 0x7e)
            *p = '?';
    }
}
