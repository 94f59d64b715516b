/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * common/ is what every folder may use, and includes no other: errors, log.h, clock.h, thread.h,
 * state_machine.h, wire.h (encoding), properties.h (configuration files), file_check.h,
 * path_check.h and path_walk.h (who decides where a path leads), own_user.h, address.h, span.h
 * (memory to register), locked.h (the limit on locked memory), rights.h (capabilities),
 * control_groups.h, verbs_fork.h, quota.h, line_bound.h, bits.h, stream_copy.h.
 *
 * An error is one sentence for a person beside a negative errno for the program. Set-up calls take
 * a last `struct ibx_error *`, which may be NULL. The function that detects the error fills it,
 * with the offending value and what to do about it; its callers pass it on unchanged.
 */
#ifndef IBX_COMMON_ERROR_H
#define IBX_COMMON_ERROR_H

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IBX_ERROR_MAX 768

struct ibx_error {
    int code;                    /* negative errno, 0 when unset */
    char message[IBX_ERROR_MAX]; /* one sentence, no newline, no final full stop */
};

/* The remedy for -EMFILE; the second form goes behind a sentence. */
#define IBX_ERROR_RAISE_FILES "raise the limit on open files (ulimit -n)"
#define IBX_ERROR_MORE_FILES  "; " IBX_ERROR_RAISE_FILES

/* The remedy for -EFBIG of a write. */
#define IBX_ERROR_RAISE_SIZE "raise the limit on the size of files (ulimit -f)"

/* Fills `err`, which may be NULL, and returns `code`. The message may quote a peer, a QEMU or a
 * file, so ibx_text_plain() is applied to it, as in ibx_error_prefix(). For -EMFILE the remedy is
 * added, unless the sentence names a limit. */
int ibx_error_set(struct ibx_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message, or "context" alone in its place if that is empty, and
 * returns err->code (or `code` when err is NULL). */
int ibx_error_prefix(struct ibx_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Replaces control characters with '?', in place, and leaves the rest of UTF-8 as it is: for a
 * sentence that may go to a terminal. */
void ibx_text_plain(char *text);

/* Replaces control characters and bytes above 0x7e with '?', in place: for text from a peer that
 * goes to a terminal. */
void ibx_text_sanitize(char *text);

#ifdef __cplusplus
}
#endif

#endif
