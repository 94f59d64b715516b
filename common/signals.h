/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Signals that were ignored when a process began, and stay so: nohup(1) has SIGHUP ignored, and a
 * shell without job control has SIGINT and SIGQUIT ignored for what it starts in the background
 * ("command &"), because the terminal sends them to all that the user sees. */
#ifndef IBX_COMMON_SIGNALS_H
#define IBX_COMMON_SIGNALS_H

#include <signal.h>
#include <stddef.h>

/* Sets `set` to those of these signals that are not ignored. A signal that is both ignored and
 * blocked would be queued, so the others must not be blocked to be read (signalfd(2)). */
void ibx_signals_heeded(const int *numbers, size_t count, sigset_t *set);

#endif
