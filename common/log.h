/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Log lines on standard error: "ibx: LEVEL: text". The level is read once from
 * IBX_LOG (error, warn, info, debug; default warn). Safe from any thread; one
 * line is one write(2). It does not wait for a reader that takes nothing: what
 * was left out for that the next line says that is taken.
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
/* Called once as a library is loaded into a program that is not ours, which may close its standard
 * error and open a file of its own under that number. From then on lines go to the standard error
 * that there is now; to what comes in its place only where that is meant for it: a terminal, a
 * pipe, a file opened for appending, or the same as standard output. */
void ibx_log_of_library(void);

/* From now on so many warnings a second, and so many errors, and ten times as many at once: clients
 * must not fill the log of a server. What was left out the next line of that kind says. */
void ibx_log_bound(unsigned a_second);
/* Before it forks: this process and its children have so many together. */
void ibx_log_bound_together(void);

/* Overrides the environment, for tools with --verbose and for tests. */
void ibx_log_set_level(enum ibx_log_level level);

#endif
