/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * common/ is what every folder may use, and includes no other:
 *
 *   error.c          errors, and text that may go to a terminal
 *   log.c            log lines on standard error
 *   line_bound.c     a limit on lines of one kind
 *   thread.c         threads beside a program's own, and their waits
 *   handlers.c       a program's signal handlers, in threads that are inside of this library
 *   fork_lock.c      a lock that a forked child finds free
 *   forked.c         memory that forked processes share
 *   shared_table.c   ... as a table without locks
 *   state_machine.c  state machines as tables
 *   quota.c          how much of something may be held at once
 *   properties.c     the grammar of gvirtus.properties
 *   file_check.c     whether a file may decide what a process does
 *   path_check.c     who decides where a path leads; by path_walk.c, name by name
 *   own_user.c       users who may do to this process whatever they like
 *   rights.c         capabilities; library_environment.c: variables that would lend them to others
 *   locked.c         the limit on locked memory
 *   control_groups.c  which control groups limit the memory of a process
 *   address.c        IPv4 and IPv6 addresses
 *   descriptor.c     descriptors that go with a message over a unix socket
 *   unix_connect.c   connections to unix sockets whose queue is full
 *   shell_word.c     a path in a command that can be pasted
 *   signals.c        which signals were ignored when the process began
 *   write_whole.c    write(2) until all bytes are written
 *   stream_copy.c    copies that bypass the caches
 *   wire.h (encoding), span.h (memory to register), clock.h, bits.h, verbs_fork.h
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

/* The remedy for -ENOMEM of a process whose address space is limited. */
#define IBX_ERROR_RAISE_SPACE "raise the limit on address space (ulimit -v)"

/* The remedy for -EFBIG of a write. */
#define IBX_ERROR_RAISE_SIZE "raise the limit on the size of files (ulimit -f)"

/* The remedy for -EAGAIN of fork(2), and of pthread_create(3), which also returns it if there is no
 * room for a stack. */
#define IBX_ERROR_RAISE_TASKS                                                                      \
    "raise the limits on processes (ulimit -u), on tasks (TasksMax, pids.max), and on address "    \
    "space (ulimit -v)"

/* Fills `err`, which may be NULL, and returns `code`. The message may quote a peer, a QEMU or a
 * file, so ibx_text_plain() is applied to it, as in ibx_error_prefix(). For -EMFILE, and for
 * -ENOMEM where RLIMIT_AS is set, the remedy is added, unless the sentence names a limit. */
int ibx_error_set(struct ibx_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a `code` that another process or host has met: no remedy is added, since its limits
 * are not this process's. */
int ibx_error_set_theirs(struct ibx_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same as ibx_error_set() for a thread or a process that could not begin: `format` says which,
 * and the text of the code follows, with the remedy. */
int ibx_error_set_task(struct ibx_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message, or "context" alone in its place if that is empty, and
 * returns err->code (or `code` when err is NULL). */
int ibx_error_prefix(struct ibx_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Replaces control characters with '?', in place, those of 8-bit character sets as well where they
 * are no part of UTF-8, and leaves the rest as it is: for a sentence that may go to a terminal. */
void ibx_text_plain(char *text);

/* Replaces control characters and bytes above 0x7e with '?', in place: for text from a peer that
 * goes to a terminal. */
void ibx_text_sanitize(char *text);

#ifdef __cplusplus
}
#endif

#endif
