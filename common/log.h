/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Log lines on standard error: "ibx: LEVEL: text". The level is read once from IBX_LOG (error,
 * warn, info, debug; default warn). Safe from any thread; one line is one write(2). Lines are
 * dropped, not waited for, while the reader takes nothing; the next line that it takes says how
 * many were.
 */
#ifndef IBX_COMMON_LOG_H
#define IBX_COMMON_LOG_H

#include <stdbool.h>

enum ibx_log_level { IBX_LOG_ERROR, IBX_LOG_WARN, IBX_LOG_INFO, IBX_LOG_DEBUG };

void ibx_log(enum ibx_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* While set, each line first erases the terminal's line, where a progress bar may be. */
void ibx_log_over_bar(bool over);
bool ibx_log_enabled(enum ibx_log_level level);
/* Call it once, as a library is loaded into a program that is not ours. Such a program may close
 * its standard error and open a file of its own under that number. So from then on lines go only to
 * the standard error of that moment, or to a file in its place that is meant for it: without
 * FD_CLOEXEC, and a terminal, a pipe, a file opened for appending, or the same as standard
 * output. */
void ibx_log_of_library(void);

/* From now on so many warnings a second at most, and so many errors, and at once ten times as many:
 * clients must not fill the log of a server. The next line of that kind says how many were left
 * out. */
void ibx_log_bound(unsigned a_second);
/* Call it before the process forks: the limit is then that of the process and its children
 * together. */
void ibx_log_bound_together(void);

/* Overrides the environment, for tools with --verbose and for tests. */
void ibx_log_set_level(enum ibx_log_level level);

#endif
