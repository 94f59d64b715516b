/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/log.h"

#include "common/clock.h"
#include "common/error.h"
#include "common/forked.h"
#include "common/line_bound.h"
#include "common/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static _Atomic int current_level = -1;
static _Atomic bool over_bar;
static bool of_library;
#define TAKEN_MS 100              /* how long a reader that takes nothing is waited for, once */
static _Atomic uint64_t untaken;  /* lines that were dropped because the reader took none */
static _Atomic uint64_t pause_ns; /* the interval of lines; 0: no limit */
static struct ibx_line_bound own[IBX_LOG_WARN + 1]; /* of errors and of warnings */
static struct ibx_line_bound *bounds = own;         /* or in memory that several processes share */
static dev_t device; /* of standard error when the library was loaded; zeros: there was none */
static ino_t inode;

/* The level that IBX_LOG names; -1: none. */
static int level_from_environment(void)
{
    const char *name = secure_getenv("IBX_LOG");
    for (int i = 0; name && i <= IBX_LOG_DEBUG; i++) {
        if (!strcmp(name, level_names[i]))
            return i;
    }
    return -1;
}

/* Sets the level the first time it is needed. */
static int find_level(void)
{
    const char *name = secure_getenv("IBX_LOG");
    const int named = level_from_environment();
    int none = -1;
    const bool first =
        atomic_compare_exchange_strong(&current_level, &none, named < 0 ? IBX_LOG_WARN : named);
    if (first && named < 0 && name && *name)
        ibx_log(IBX_LOG_WARN, "IBX_LOG=%.32s is not one of error, warn, info and debug: using warn",
                name);
    return atomic_load(&current_level);
}

bool ibx_log_enabled(enum ibx_log_level level)
{
    int now = atomic_load_explicit(&current_level, memory_order_relaxed);
    return (int)level <= (now < 0 ? find_level() : now);
}

void ibx_log_set_level(enum ibx_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

void ibx_log_over_bar(bool over)
{
    atomic_store_explicit(&over_bar, over, memory_order_relaxed);
}

void ibx_log_of_library(void)
{
    struct stat now;
    if (!fstat(STDERR_FILENO, &now)) {
        device = now.st_dev;
        inode = now.st_ino;
    }
    of_library = true;
}

static bool is_for_messages(void)
{
    struct stat now, out;
    if (!of_library)
        return true;
    if (fstat(STDERR_FILENO, &now))
        return false;
    if (now.st_dev == device && now.st_ino == inode)
        return true;
    if (fcntl(STDERR_FILENO, F_GETFD) & FD_CLOEXEC)
        return false;
    if (S_ISREG(now.st_mode) && fcntl(STDERR_FILENO, F_GETFL) & O_APPEND)
        return true;
    if (S_ISFIFO(now.st_mode) || isatty(STDERR_FILENO))
        return true;
    return !fstat(STDOUT_FILENO, &out) && out.st_dev == now.st_dev && out.st_ino == now.st_ino;
}

void ibx_log_bound(unsigned a_second)
{
    atomic_store(&pause_ns, 1000 * IBX_NS_PER_MS / a_second);
}

void ibx_log_bound_together(void)
{
    struct ibx_line_bound *all = ibx_forked_map(sizeof(own));
    if (all)
        bounds = all;
}

/* Whether the reader of standard error takes a line. One that takes nothing, such as a stopped
 * terminal or a log daemon that hangs, must not stop this process, because a VM or all clients of a
 * server may be waiting. It is waited for once, and not again until it has taken something. */
static bool is_taken(void)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&out, 1, atomic_load(&untaken) ? 0 : TAKEN_MS) != 0;
}

/* A reader that is gone (SIGPIPE), or a file that may grow no further (SIGXFSZ), must not end this
 * process: such a signal is discarded, unless it was pending before. A line that cannot be written
 * is lost without a report. */
static void write_unharmed(const char *line, size_t n)
{
    static const struct timespec at_once = {0, 0};
    const int signals[] = {SIGPIPE, SIGXFSZ};
    sigset_t pending, held, before;
    sigpending(&pending);
    sigemptyset(&held);
    for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (!sigismember(&pending, signals[i]))
            sigaddset(&held, signals[i]);
    const int error = errno;
    pthread_sigmask(SIG_BLOCK, &held, &before);
    if (write(STDERR_FILENO, line, n) < 0 && (errno == EPIPE || errno == EFBIG))
        sigtimedwait(&held, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
}

static void write_line(enum ibx_log_level level, const char *format, va_list args)
{
    char line[1024];
    const bool over = atomic_load_explicit(&over_bar, memory_order_relaxed);
    int head =
        snprintf(line, sizeof(line), "%sibx: %s: ", over ? "\r\033[K" : "", level_names[level]);
    int n = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, format, args);
    if (n < 0)
        return;
    ibx_text_plain(line + head); /* a peer or a guest may have provided some of it */
    size_t len = (size_t)head + (size_t)n;
    if (len > sizeof(line) - 2)
        len = sizeof(line) - 2;
    line[len++] = '\n';
    if (!is_taken()) {
        atomic_fetch_add(&untaken, 1);
        return;
    }
    write_unharmed(line, len);
}

__attribute__((format(printf, 2, 3))) static void say(enum ibx_log_level level, const char *format,
                                                      ...)
{
    va_list args;
    va_start(args, format);
    write_line(level, format, args);
    va_end(args);
}

static void say_left_out(enum ibx_log_level level, uint64_t lines, const char *why)
{
    if (lines)
        say(level, "%llu line%s left out: %s", (unsigned long long)lines,
            lines == 1 ? " was" : "s were", why);
}

/* Whether a line is beyond the limit of ibx_log_bound(). */
static bool is_left_out(enum ibx_log_level level)
{
    const uint64_t pause = atomic_load(&pause_ns);
    uint64_t before;
    if (level > IBX_LOG_WARN || !pause)
        return false;
    if (!ibx_line_bound_take(&bounds[level], pause, &before))
        return true;
    say_left_out(level, before, "there were too many");
    return false;
}

static void log_line(enum ibx_log_level level, const char *format, va_list args)
{
    if (!is_for_messages() || is_left_out(level))
        return;
    if (atomic_load(&untaken) && is_taken())
        say_left_out(IBX_LOG_WARN, atomic_exchange(&untaken, 0), "nobody took them");
    write_line(level, format, args);
}

/* The caller may hold locks, so its thread must not be cancelled inside. */
void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    va_list args;
    if (!ibx_log_enabled(level))
        return;
    const int cancel = ibx_thread_hold_cancel();
    va_start(args, format);
    log_line(level, format, args);
    va_end(args);
    ibx_thread_release_cancel(cancel);
}
